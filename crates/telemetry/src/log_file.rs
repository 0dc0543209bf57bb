//! A file that a log is appended to. It is opened anew when somebody asks for that, as after logrotate has renamed it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The group may read logs.
const MODE: u32 = 0o640;

/// Asks for a file to be opened anew.
#[derive(Clone, Debug, Default)]
pub struct Reopen(Arc<AtomicU64>);

impl Reopen {
    /// At the next write or flush.
    pub fn ask(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The file.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    file: File,
    reopen: Reopen,
    /// How often it was asked for when the file was opened.
    seen: u64,
}

impl LogFile {
    /// Opens it, or makes it.
    ///
    /// # Errors
    /// The directory is not there, or the file is not this user's to write.
    pub fn open(path: &Path, reopen: &Reopen) -> io::Result<Self> {
        let seen = reopen.0.load(Ordering::Relaxed);
        Ok(Self { path: path.to_owned(), file: open(path)?, reopen: reopen.clone(), seen })
    }

    /// One that cannot be opened anew is written on.
    fn renew(&mut self) {
        let asked = self.reopen.0.load(Ordering::Relaxed);
        if asked == self.seen {
            return;
        }
        self.seen = asked;
        match open(&self.path) {
            Ok(file) => self.file = file,
            Err(error) => {
                let path = self.path.display();
                tracing::error!(target: "sluicegate::telemetry::log_file", %path, %error, "the log file cannot be opened anew; the old one is written on");
            }
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(MODE).open(path)
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.renew();
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.renew();
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn goes_on_in_a_new_file_once_it_is_asked_and_in_the_old_one_where_there_can_be_none() {
        let directory = tempfile::tempdir().unwrap();
        let (path, old) = (directory.path().join("log"), directory.path().join("log.1"));
        let reopen = Reopen::default();
        let mut log = LogFile::open(&path, &reopen).unwrap();
        log.write_all(b"one\n").unwrap();
        fs::rename(&path, &old).unwrap();
        log.write_all(b"two\n").unwrap();
        reopen.ask();
        log.flush().unwrap();
        log.write_all(b"three\n").unwrap();
        assert_eq!(fs::read_to_string(&old).unwrap(), "one\ntwo\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "three\n");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        fs::hard_link(&old, directory.path().join("kept")).unwrap();
        reopen.ask();
        log.write_all(b"four\n").unwrap();
        fs::remove_dir(&path).unwrap();
        reopen.ask();
        log.write_all(b"five\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "five\n");
        assert!(LogFile::open(&directory.path().join("none/log"), &reopen).is_err());
    }
}
