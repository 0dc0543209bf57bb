//! The key of the marks, which lasts in a file of its own.

use std::fmt;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use sluicegate_files::{create, open_regular};
use uuid::{NoContext, Timestamp, Uuid};

/// A key with fewer bytes could be found by trying.
const MIN_BYTES: usize = 32;
/// A larger file is some other file.
const MAX_BYTES: u64 = 4096;
/// A user who may read the key can find keys of clients by trying; one who may write it can choose it. The group may read
/// it: that is how an orchestrator hands secrets to a process.
const FORBIDDEN_MODE: u32 = 0o006;
/// The group may write it. An orchestrator makes it so: `fsGroup` of Kubernetes sets 0660 on all files of a volume at each
/// start, so that a gateway that refused it could not start twice. It is a warning.
const GROUP_WRITES: u32 = 0o020;

/// The key that marks are made with.
#[derive(Clone)]
pub struct Secret {
    key: Box<[u8]>,
    is_group_writable: bool,
}

/// Why there is no [`Secret`].
#[derive(Debug)]
pub enum SecretError {
    /// There is no file, and none can be made.
    Make(PathBuf, io::Error),
    /// It cannot be read.
    Read(PathBuf, io::Error),
    /// It has too few bytes, or far too many.
    Length(PathBuf, u64),
    /// Every user may read or write it.
    Mode(PathBuf, u32),
}

impl fmt::Display for SecretError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Make(path, error) => write!(
                f,
                "cannot make the redaction secret {}: {error}: make the directory writable, or name a file elsewhere by \
                 `redact_secret_file`",
                path.display()
            ),
            Self::Read(path, error) => {
                write!(
                    f,
                    "cannot read the redaction secret {}: {error}: let the gateway's user read it",
                    path.display()
                )
            }
            Self::Length(path, length) => write!(
                f,
                "the redaction secret {} has {length} bytes: it needs {MIN_BYTES} to {MAX_BYTES}, such as those of \
                 `openssl rand -hex 32`; if it is damaged, remove it, and a new one is made",
                path.display()
            ),
            Self::Mode(path, mode) => write!(
                f,
                "the redaction secret {} has the mode {mode:04o}, so that every user may read or write it: chmod 600",
                path.display()
            ),
        }
    }
}

impl std::error::Error for SecretError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Make(_, error) | Self::Read(_, error) => Some(error),
            Self::Length(..) | Self::Mode(..) => None,
        }
    }
}

impl Secret {
    /// A new one: 256 bits and more of the operating system's generator, by way of version 7 UUIDs.
    pub fn random() -> Self {
        let draw = || Uuid::new_v7(Timestamp::from_unix(NoContext, 0, 0)).as_u128();
        let key = format!("{:032x}{:032x}{:032x}{:032x}", draw(), draw(), draw(), draw());
        Self { key: key.into_bytes().into(), is_group_writable: false }
    }

    /// One that another process has.
    pub fn of(bytes: &[u8]) -> Self {
        Self { key: bytes.into(), is_group_writable: false }
    }

    /// That of the file at `path`, which is made if there is none. Two gateways that start at once get the same one.
    ///
    /// # Errors
    /// See [`SecretError`].
    pub fn load_or_make(path: &Path) -> Result<Self, SecretError> {
        Self::load_or_keep(path, Self::random())
    }

    /// That of the file at `path`, which is made of this one if there is none.
    ///
    /// # Errors
    /// See [`SecretError`].
    pub fn load_or_keep(path: &Path, secret: Self) -> Result<Self, SecretError> {
        if let Some(secret) = Self::load(path)? {
            return Ok(secret);
        }
        match create(path, &[&secret.key[..], b"\n"].concat()) {
            Ok(()) => Ok(secret),
            // Somebody else was quicker.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Self::load(path)?.ok_or(SecretError::Make(path.to_owned(), error))
            }
            Err(error) => Err(SecretError::Make(path.to_owned(), error)),
        }
    }

    /// That of the file at `path`; `None` if there is no file.
    ///
    /// # Errors
    /// See [`SecretError`].
    pub fn load(path: &Path) -> Result<Option<Self>, SecretError> {
        let failed = |error| SecretError::Read(path.to_owned(), error);
        let file = match open_regular(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failed)?,
        };
        let metadata = file.metadata().map_err(failed)?;
        if metadata.mode() & FORBIDDEN_MODE != 0 {
            return Err(SecretError::Mode(path.to_owned(), metadata.mode() & 0o7777));
        }
        let mut bytes = Vec::new();
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
        let key = bytes.trim_ascii();
        if key.len() < MIN_BYTES || bytes.len() as u64 > MAX_BYTES {
            return Err(SecretError::Length(path.to_owned(), metadata.len().max(key.len() as u64)));
        }
        Ok(Some(Self { key: key.into(), is_group_writable: metadata.mode() & GROUP_WRITES != 0 }))
    }

    /// Whether it came from a file that the group may write, and so replace.
    pub fn is_group_writable(&self) -> bool {
        self.is_group_writable
    }

    /// The secret itself, for the code that derives from it.
    pub fn bytes(&self) -> &[u8] {
        &self.key
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_is_made_once_and_for_its_owner_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("redact.secret");
        assert!(Secret::load(&path).unwrap().is_none());
        let made = Secret::load_or_make(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Secret::load_or_make(&path).unwrap().key, made.key);
        assert_ne!(Secret::random().key, made.key);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left beside it");
        assert!(made.key.len() >= MIN_BYTES && format!("{made:?}") == "Secret");
    }

    #[test]
    fn all_that_start_at_once_have_the_secret_of_the_file() {
        let directory = tempfile::tempdir().unwrap();
        for round in 0..20 {
            let path = directory.path().join(format!("{round}.secret"));
            let begin = std::sync::Barrier::new(8);
            let made: Vec<_> = std::thread::scope(|scope| {
                let start = || {
                    begin.wait();
                    Secret::load_or_make(&path).unwrap().key
                };
                let started: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
                started.into_iter().map(|started| started.join().unwrap()).collect()
            });
            let kept = Secret::load(&path).unwrap().unwrap().key;
            assert!(made.iter().all(|made| *made == kept), "round {round}");
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 20, "nothing is left beside them");
    }

    #[test]
    fn the_group_may_read_it_and_is_told_of_if_it_may_write_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("redact.secret");
        fs::write(&path, [b'k'; 40]).unwrap();
        for (mode, is_group_writable) in [(0o600, false), (0o440, false), (0o640, false), (0o660, true), (0o620, true)]
        {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(Secret::load_or_make(&path).unwrap().is_group_writable(), is_group_writable, "{mode:o}");
        }
    }

    #[test]
    fn a_bad_file_is_an_error_that_says_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("redact.secret");
        let error = |text: &[u8], mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Secret::load_or_make(&path).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert!(error(&[b'k'; 31], 0o600).contains("31 bytes: it needs 32"));
        assert!(error(b" \n", 0o600).contains("remove it"));
        assert!(error(&[b'k'; 5_000], 0o600).contains("5000 bytes"));
        for mode in [0o644, 0o602, 0o664, 0o446] {
            let text = error(&[b'k'; 40], mode);
            assert!(text.contains(&format!("{mode:04o}")) && text.contains("chmod 600"), "{mode:o}: {text}");
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(matches!(Secret::load_or_make(&path), Err(SecretError::Read(..) | SecretError::Mode(..))));
        let nowhere = directory.path().join("no/such/redact.secret");
        assert!(matches!(Secret::load_or_make(&nowhere), Err(SecretError::Make(..))));
    }
}
