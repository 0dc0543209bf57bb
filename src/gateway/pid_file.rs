//! The file that names the process of the gateway, for whoever signals it.
//!
//! The process holds a lock on it. So a file that a crash has left is told from that of a process that runs, and nobody signals
//! a stranger who was given the number since.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process;

use crate::files;
use rustix::fs::OFlags;

/// A number is no longer.
const MAX_BYTES: u64 = 32;

/// The file of this process, removed when this is dropped, unless another process has its place by then.
#[derive(Debug)]
pub struct PidFile {
    path: PathBuf,
    /// Locked.
    _file: Option<File>,
}

/// One that is written, beside its place.
#[derive(Debug)]
pub struct Prepared {
    path: PathBuf,
    new: PathBuf,
    file: Option<File>,
}

impl Prepared {
    /// Writes it beside `path`, so that whatever can fail has failed before anybody is served.
    ///
    /// # Errors
    /// The directory is not there, or not writable; or another process has the file, and this one does not `take_over`.
    pub fn beside(path: &Path, takes_over: bool) -> io::Result<Self> {
        if let Some(other) = PidFile::holder(path).ok().filter(|_| !takes_over) {
            return Err(io::Error::other(format!("{} is that of process {other}, which runs", path.display())));
        }
        let new = files::beside(path, ".new");
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&new)?;
        file.try_lock()?;
        writeln!(file, "{}", process::id())?;
        Ok(Self { path: path.to_owned(), new, file: Some(file) })
    }

    /// Puts it in its place: this process is the gateway from now on.
    ///
    /// # Errors
    /// It cannot be renamed.
    pub fn publish(mut self) -> io::Result<PidFile> {
        fs::rename(&self.new, &self.path)?;
        Ok(PidFile { path: self.path.clone(), _file: self.file.take() })
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if self.file.is_some() {
            let _ = fs::remove_file(&self.new);
        }
    }
}

impl PidFile {
    /// The process that holds the file at `path`.
    ///
    /// # Errors
    /// There is none, in words.
    pub fn holder(path: &Path) -> Result<u32, String> {
        let shown = path.display();
        // Whatever lies there, this does not wait for anybody.
        let file = match OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(format!("no gateway runs that has the pid_file {shown}: there is no such file"));
            }
            opened => opened.map_err(|error| format!("the pid_file {shown} cannot be read: {error}"))?,
        };
        let owner = file.metadata().map_err(|error| format!("the pid_file {shown} cannot be read: {error}"))?;
        if !owner.is_file() {
            return Err(format!("the pid_file {shown} is no file"));
        }
        match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(format!("the pid_file {shown} cannot be locked: {error}")),
            Ok(()) => return Err(format!("no gateway runs: the pid_file {shown} was left by one that has ended")),
        }
        let pid = number_in(file).ok_or_else(|| format!("the pid_file {shown} holds no number of a process"))?;
        // A user who can write the file could have root signal processes of others by it.
        if fs::metadata(format!("/proc/{pid}")).is_ok_and(|process| process.uid() == owner.uid()) {
            Ok(pid)
        } else {
            Err(format!("the pid_file {shown} names process {pid}, which is not of the file's owner"))
        }
    }
}

fn number_in(file: File) -> Option<u32> {
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    text.trim_end().parse().ok().filter(|pid| *pid > 1)
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if File::open(&self.path).ok().and_then(number_in) == Some(process::id()) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_names_who_holds_it_and_goes_with_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pid");
        assert!(PidFile::holder(&path).unwrap_err().contains("no such file"));
        let prepared = Prepared::beside(&path, false).unwrap();
        assert!(!path.exists());
        let held = prepared.publish().unwrap();
        assert_eq!(PidFile::holder(&path), Ok(process::id()));
        assert!(Prepared::beside(&path, true).is_ok(), "who takes over");
        drop(held);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        fs::write(&path, "12345\n").unwrap();
        assert!(PidFile::holder(&path).unwrap_err().contains("was left by one that has ended"));
        // One that another process has put in its place stays.
        let held = Prepared::beside(&path, false).unwrap().publish().unwrap();
        fs::write(directory.path().join("other"), "12345\n").unwrap();
        fs::rename(directory.path().join("other"), &path).unwrap();
        drop(held);
        assert_eq!(fs::read_to_string(&path).unwrap(), "12345\n");
    }

    #[test]
    fn other_text_is_nobody() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pid");
        for text in ["", "0\n", "1\n", "-3\n", "12 13\n", "99999999999\n", "x"] {
            fs::write(&path, text).unwrap();
            let file = File::open(&path).unwrap();
            file.try_lock().unwrap();
            assert!(PidFile::holder(&path).is_err(), "{text:?}");
        }
    }
}
