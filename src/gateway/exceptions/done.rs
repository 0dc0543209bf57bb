use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::files::{self, read_regular};

/// Bytes of a file that is read.
const MAX_BYTES: usize = 32 << 20;

/// The things that are done with keys, as the counts beside them have it: a list of their texts. It is written each time that the
/// counts are, so that the process that reads both does again whatever its counts do not have, and no more.
#[derive(Clone, Debug)]
pub struct DoneFile {
    path: PathBuf,
}

impl DoneFile {
    /// That beside a state file.
    pub fn beside(state_file: &Path) -> Self {
        Self { path: files::beside(state_file, ".acts") }
    }

    /// Reads them. A file that cannot be read is a line of the log.
    pub fn read(&self) -> BTreeSet<String> {
        match self.texts() {
            Ok(texts) => texts,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeSet::new(),
            Err(error) => {
                let file = self.path.display();
                tracing::warn!(%file, %error, "resets of the last ten minutes that other gateways have told may be done once more");
                BTreeSet::new()
            }
        }
    }

    fn texts(&self) -> io::Result<BTreeSet<String>> {
        serde_json::from_slice(&read_regular(&self.path, MAX_BYTES)?).map_err(io::Error::other)
    }

    /// Writes them. Where there are none there is no file: most gateways have no fleet.
    ///
    /// # Errors
    /// The directory is not writable, or the disk is full.
    pub fn write(&self, done: &BTreeSet<String>) -> io::Result<()> {
        if done.is_empty() {
            return match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        let json = serde_json::to_vec(done).map_err(io::Error::other)?;
        files::replace(&self.path, &json)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_is_read_as_it_was_written_and_what_is_damaged_is_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let (file, path) = (DoneFile::beside(&directory.path().join("counts")), directory.path().join("counts.acts"));
        let done = BTreeSet::from(["{\"a\": 1}".to_owned(), "b".to_owned()]);
        assert_eq!(file.read(), BTreeSet::new());
        file.write(&done).unwrap();
        assert_eq!(file.read(), done);
        file.write(&BTreeSet::new()).unwrap();
        file.write(&BTreeSet::new()).unwrap();
        assert!(!path.exists() && file.read().is_empty());
        for damaged in ["", "[", "{}", "[1]"] {
            fs::write(&path, damaged).unwrap();
            assert_eq!(file.read(), BTreeSet::new(), "{damaged}");
        }
        file.write(&done).unwrap();
        assert_eq!(file.read(), done);
    }
}
