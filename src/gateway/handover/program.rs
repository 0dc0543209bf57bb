//! How this process was started, so that another one can be started in the same way.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The binary and the arguments of this process.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
}

impl Program {
    /// Looks at it while the file is still the one that runs: afterwards another one may lie in its place, which is what an
    /// upgrade is for.
    pub fn of_this_process() -> io::Result<Self> {
        let running = env::current_exe()?;
        let arguments: Vec<_> = env::args_os().collect();
        // By the name that it was called by, where that leads to it: it may be a link that is to lead to the next version.
        let called = arguments.first().and_then(|name| find(name)).filter(|called| is_same(called, &running));
        Ok(Self { path: called.unwrap_or(running), arguments })
    }

    /// The file that is started next.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// To start it again, whichever file is there by now.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        if let Some((name, arguments)) = self.arguments.split_first() {
            command.arg0(name).args(arguments);
        }
        command
    }
}

/// Where a shell finds it.
fn find(name: &OsStr) -> Option<PathBuf> {
    let path = Path::new(name);
    if path.components().count() > 1 {
        return std::path::absolute(path).ok();
    }
    env::split_paths(&env::var_os("PATH")?).map(|directory| directory.join(path)).find(|path| path.is_file())
}

fn is_same(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino())).ok();
    identity(one).is_some_and(|one| identity(other) == Some(one))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_a_slash_is_found_where_a_shell_finds_it() {
        assert!(find(OsStr::new("sh")).is_some_and(|path| path.is_absolute() && path.ends_with("sh")));
        assert!(find(OsStr::new("no-such-program")).is_none());
        assert_eq!(find(OsStr::new("/x/y")), Some("/x/y".into()));
        let program = Program::of_this_process().unwrap();
        assert!(is_same(program.path(), &env::current_exe().unwrap()));
    }
}
