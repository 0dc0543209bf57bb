//! The files that a configuration names, opened so that none of them makes its reader wait.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a regular file. A pipe or a device is none; a file of the kernel whose bytes are still to come, such as
/// `/proc/kmsg`, has an error in place of them.
///
/// # Errors
/// It cannot be opened. That it is no regular file is an error of [`io::ErrorKind::Other`], as none of the system is.
pub fn open_regular(path: &Path) -> io::Result<File> {
    // Before it is opened: that alone may do something to a device.
    if !std::fs::metadata(path)?.is_file() {
        return Err(not_regular());
    }
    let file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)?;
    // Another one may have taken its place.
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_regular()) }
}

/// The bytes of a regular file; of one that is larger than `most`, one more than `most`.
///
/// # Errors
/// It cannot be read, or those of [`open_regular`].
pub fn read_regular(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(most as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn not_regular() -> io::Error {
    io::Error::other("it is not a regular file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_opened_and_nothing_that_would_wait() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "text").unwrap();
        let mut text = String::new();
        open_regular(&path).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        for (most, read) in [(5, "text"), (4, "text"), (3, "text"), (2, "tex")] {
            assert_eq!(read_regular(&path, most).unwrap(), read.as_bytes());
        }
        assert_eq!(open_regular(&directory.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        for path in [directory.path(), Path::new("/dev/zero"), Path::new("/dev/tty")] {
            assert!(open_regular(path).is_err(), "{}", path.display());
        }
        let pipe = directory.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
        let error = open_regular(&pipe).unwrap_err();
        assert_eq!((error.kind(), &*error.to_string()), (io::ErrorKind::Other, "it is not a regular file"));
        // The kernel's messages are for the superuser alone: a process that may read them gets those that are there, and no more.
        if let Ok(mut messages) = open_regular(Path::new("/proc/kmsg")) {
            while messages.read(&mut [0; 4096]).is_ok_and(|size| size > 0) {}
        }
    }
}
