//! Small text files of the kernel, read whole with a bound. Its callers are the readers of sensors.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::{error, fmt};

/// A file of this size or less is read.
const MOST: u64 = 64 * 1024;

/// Why a sensor could not be read: for a warning.
#[derive(Debug)]
pub enum SensorError {
    /// A file could not be opened or read.
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file is longer than 64 KiB.
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// A file has not what it should have.
    Malformed {
        /// The file.
        path: PathBuf,
        /// The part that is missing or is no number.
        expected: &'static str,
    },
}

impl fmt::Display for SensorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { path, source } => write!(f, "{} cannot be read: {source}", path.display()),
            Self::TooLong { path } => write!(f, "{} is longer than 64 KiB", path.display()),
            Self::Malformed { path, expected } => write!(f, "{} has no {expected}", path.display()),
        }
    }
}

impl error::Error for SensorError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Unreadable { source, .. } => Some(source),
            Self::TooLong { .. } | Self::Malformed { .. } => None,
        }
    }
}

/// A file and its text.
pub(crate) struct KernelFile {
    path: PathBuf,
    text: String,
}

impl KernelFile {
    /// Reads a file.
    pub(crate) fn read(path: &Path) -> Result<Self, SensorError> {
        let unreadable = |source| SensorError::Unreadable { path: path.to_owned(), source };
        let mut bytes = Vec::new();
        File::open(path).and_then(|file| file.take(MOST + 1).read_to_end(&mut bytes)).map_err(unreadable)?;
        if bytes.len() as u64 > MOST {
            return Err(SensorError::TooLong { path: path.to_owned() });
        }
        // A name of a process may have any bytes.
        Ok(Self { path: path.to_owned(), text: String::from_utf8_lossy(&bytes).into_owned() })
    }

    /// Reads a file; `None` if there is none.
    pub(crate) fn read_if_there(path: &Path) -> Result<Option<Self>, SensorError> {
        match Self::read(path) {
            Err(SensorError::Unreadable { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            result => result.map(Some),
        }
    }

    /// The whole text.
    pub(crate) fn text(&self) -> &str {
        self.text.trim_end()
    }

    /// The number behind a name, in a file of lines `name number` or `name: number kB`.
    pub(crate) fn number_of(&self, name: &'static str) -> Result<u64, SensorError> {
        let words = self.text.lines().map(|line| line.split_ascii_whitespace());
        let mut found = words.filter_map(|mut words| (words.next()? == name).then(|| words.next()?.parse().ok()));
        found.next().flatten().ok_or_else(|| self.malformed(name))
    }

    /// An error about the content.
    pub(crate) fn malformed(&self, expected: &'static str) -> SensorError {
        SensorError::Malformed { path: self.path.clone(), expected }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    #[test]
    fn reads_no_more_than_its_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stat");
        std::fs::write(&path, vec![b'x'; 65_536]).unwrap();
        assert_eq!(KernelFile::read(&path).unwrap().text().len(), 65_536);
        std::fs::write(&path, vec![b'x'; 65_537]).unwrap();
        let error = KernelFile::read(&path).err().unwrap();
        assert_eq!(error.to_string(), format!("{} is longer than 64 KiB", path.display()));
        assert!(error.source().is_none());
    }

    #[test]
    fn a_missing_file_is_an_error_or_none() {
        let path = Path::new("/nowhere/at/all");
        let error = KernelFile::read(path).err().unwrap();
        assert_eq!(error.to_string(), "/nowhere/at/all cannot be read: No such file or directory (os error 2)");
        assert!(error.source().is_some());
        assert!(KernelFile::read_if_there(path).unwrap().is_none());
        assert!(KernelFile::read_if_there(Path::new("/")).is_err(), "a folder is there");
    }

    #[test]
    fn a_number_that_is_none_is_an_error() {
        let file = |text: &str| KernelFile { path: "stat".into(), text: text.to_owned() };
        assert_eq!(file("a 1\nusage 25\n").number_of("usage").unwrap(), 25);
        assert_eq!(file("MemTotal:   25 kB\n").number_of("MemTotal:").unwrap(), 25);
        for text in ["", "usage", "usage x", "usage -1", "usage 1.5", "user 1", "usages 1"] {
            assert_eq!(file(text).number_of("usage").unwrap_err().to_string(), "stat has no usage", "{text}");
        }
    }
}
