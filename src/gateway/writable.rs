//! Whether the gateway could write where its file says, asked without making or opening anything.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use crate::config::{AccessFormat, Diagnostic, Model, Severity};

/// The words for a file, its path, the question whether it can be written, and how bad it is if not.
type WritableFile<'m> = (&'static str, Option<&'m PathBuf>, fn(&Path) -> io::Result<()>, Severity);

/// The files and directories that this user could not write. An error is one with which `run` ends; without `state_file` it
/// goes on.
pub fn check_writable(model: &Model) -> Vec<Diagnostic> {
    let log = &model.log;
    let access_file = log.access_file.as_ref().filter(|_| log.access != AccessFormat::Off);
    let dead_letters = model.dead_letter.as_ref().map(|section| &section.directory);
    let files: [WritableFile<'_>; 5] = [
        ("`file` of [log]", log.file.as_ref(), appends, Severity::Error),
        ("`access_file` of [log]", access_file, appends, Severity::Error),
        ("`directory` of [dead_letter]", dead_letters, makes, Severity::Error),
        ("`pid_file` of [server]", model.server.pid_file.as_ref(), replaces, Severity::Error),
        ("`state_file` of [server]", model.server.state_file.as_ref(), replaces, Severity::Warning),
    ];
    let unwritable = |(what, path, may, severity): WritableFile<'_>| {
        let path = path?;
        let error = may(path).err()?;
        let message = format!("{what} cannot be written: {}: {error}", path.display());
        let help =
            "make its directory, and let the gateway's user write there; this is asked for the user who runs `check`";
        Some(Diagnostic::of_file(severity, &message, help))
    };
    files.into_iter().filter_map(unwritable).collect()
}

/// A file that is appended to, and made where there is none.
fn appends(path: &Path) -> io::Result<()> {
    match path.metadata() {
        Ok(there) if there.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(_) => Ok(access(path, Access::WRITE_OK)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => takes_files(parent(path)),
        Err(error) => Err(error),
    }
}

/// A file in whose place another one is put.
fn replaces(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    takes_files(parent(path))
}

/// A directory that is made with those above it, where there is none.
fn makes(path: &Path) -> io::Result<()> {
    let is_missing = |path: &&Path| path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    let there = path.ancestors().find(|path| !is_missing(&or_here(path))).unwrap_or(path);
    takes_files(or_here(there))
}

fn takes_files(directory: &Path) -> io::Result<()> {
    if !directory.metadata()?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    Ok(access(directory, Access::WRITE_OK | Access::EXEC_OK)?)
}

fn parent(path: &Path) -> &Path {
    or_here(path.parent().unwrap_or(path))
}

/// The directory of a name without one.
fn or_here(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}
