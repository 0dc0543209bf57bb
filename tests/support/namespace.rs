//! Network namespaces of a test's own. Whoever runs the tests may not make them everywhere: [`or_not_run`] tells a test so.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::panic::resume_unwind;
use std::process::{Command, Stdio};
use std::thread;

use rustix::process::geteuid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const NOT_ROOT: &str = "this is not root";

/// A namespace whose loopback device is up. It is deleted with this value.
pub struct Namespace {
    pub name: String,
}

impl Namespace {
    pub fn new(name: String) -> Result<Self, String> {
        if !geteuid().is_root() {
            return Err(NOT_ROOT.to_owned());
        }
        finish("ip", &["netns", "add", &name])?;
        let namespace = Self { name };
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// Changes its devices, addresses and routes.
    pub fn ip(&self, line: &str) -> Result<(), String> {
        let words: Vec<_> = line.split(' ').collect();
        finish("ip", &[&["-n", &self.name], &words[..]].concat()).map(drop)
    }

    /// A command that runs a program in it. The process that is started becomes the program, so its id is the program's.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program).stdin(Stdio::null());
        command
    }

    /// Runs a program in it to its end.
    pub fn finish(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        finish("ip", &[&["netns", "exec", &self.name, program], arguments].concat())
    }

    /// Calls a function on a thread of its own in it. A socket stays in the namespace in which it was made, whichever thread
    /// uses it.
    pub fn inside<T: Send>(&self, f: impl FnOnce() -> T + Send) -> io::Result<T> {
        let moved = || {
            let link = File::open(format!("/run/netns/{}", self.name))?;
            move_into_link_name_space(link.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(f())
        };
        thread::scope(|scope| scope.spawn(moved).join()).unwrap_or_else(|cause| resume_unwind(cause))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(finish("ip", &["netns", "del", &self.name]));
    }
}

/// Runs a program to its end; what it has printed, or why it has failed.
pub fn finish(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    let [out, error] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    if output.status.success() { Ok(out) } else { Err(format!("{program} {arguments:?}: {error}")) }
}

/// `None`: whoever runs the tests may not make namespaces, as on a developer's machine. The test says so and ends. Where it may
/// and something else is missing, it fails.
pub fn or_not_run<T>(made: Result<T, String>, what: &str, needs: &str) -> Option<T> {
    let error = match made {
        Ok(made) => return Some(made),
        Err(error) => error,
    };
    let may_not = [NOT_ROOT, "Operation not permitted", "Permission denied"];
    assert!(may_not.iter().any(|why| error.contains(why)), "{error}\n{needs}");
    eprintln!("NOT RUN: {what}: {error}\n{needs}");
    None
}
