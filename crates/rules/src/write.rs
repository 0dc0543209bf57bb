//! A file replaced as a whole: whenever the machine stops, it is as it was or as it is to be.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use sluicegate_files::{create, sync_directory_of};

/// Why a file was not written. It is as it was.
#[derive(Debug)]
pub enum WriteError {
    /// Somebody else has changed it meanwhile.
    Changed,
    /// The file or its directory does not allow it.
    Failed {
        /// The file, or its directory.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Failed { path, source } = self else {
            return f
                .write_str("The file was changed by somebody else meanwhile. Read it again and repeat the change.");
        };
        write!(f, "{} cannot be written: {source}. ", path.display())?;
        f.write_str(match source.kind() {
            io::ErrorKind::PermissionDenied => {
                "Let the gateway's user own the file and write to its directory, or say [admin] rules = \"read-only\"."
            }
            io::ErrorKind::ReadOnlyFilesystem => {
                "Mount the directory writable, or say [admin] rules = \"read-only\" and change the file where it comes from."
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "Make room on the disk and repeat the change.",
            io::ErrorKind::NotFound => "Put the file back and repeat the change.",
            _ => "Mend that and repeat the change.",
        })
    }
}

impl std::error::Error for WriteError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Failed { source, .. } => Some(source),
            Self::Changed => None,
        }
    }
}

/// Writes a text in the place of a file. Mode and owner stay. Where the path is a link, the file behind it is replaced and
/// the link stays. `is_unchanged` is asked last of all, so that a change by an editor is not lost.
///
/// # Errors
/// The file cannot be written, or has changed.
pub fn write_atomically(path: &Path, text: &[u8], is_unchanged: impl FnOnce() -> bool) -> Result<(), WriteError> {
    let mut new = Replacement::begin(path)?;
    new.write_all(text).map_err(|source| new.failed(source))?;
    new.commit(is_unchanged)
}

/// Writes a text into a file that is not there, for its owner alone: it may have secrets in it.
///
/// # Errors
/// It cannot be written, or is there meanwhile.
pub fn write_new(path: &Path, text: &[u8]) -> Result<(), WriteError> {
    create(path, text).map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => WriteError::Changed,
        _ => WriteError::Failed { path: path.to_owned(), source },
    })
}

/// A new file beside the one that it is to replace. Dropped, it leaves nothing.
#[derive(Debug)]
pub struct Replacement {
    real: PathBuf,
    new: PathBuf,
    file: File,
}

impl Replacement {
    /// Begins an empty file with the mode and owner of the one at `path`.
    ///
    /// # Errors
    /// There is no such file, or its directory is not writable.
    pub fn begin(path: &Path) -> Result<Self, WriteError> {
        let failed = |path: &Path, source| WriteError::Failed { path: path.to_owned(), source };
        let real = fs::canonicalize(path).map_err(|source| failed(path, source))?;
        let old = fs::metadata(&real).map_err(|source| failed(&real, source))?;
        // One name for all: a process that was killed leaves one file, and the next change removes it. A link that somebody has
        // planted there is removed, not followed.
        let new = beside(&real, ".new");
        let _ = fs::remove_file(&new);
        let directory = directory_of(&real);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new);
        let file = file.map_err(|source| failed(directory, source))?;
        let new = Self { real, new, file };
        new.take_over(&old).map_err(|source| new.failed(source))?;
        Ok(new)
    }

    /// The owner first: a change of it takes bits of the mode away.
    fn take_over(&self, old: &fs::Metadata) -> io::Result<()> {
        let own = self.file.metadata()?;
        if (own.uid(), own.gid()) != (old.uid(), old.gid()) {
            fchown(&self.file, Some(old.uid()), Some(old.gid()))?;
        }
        self.file.set_permissions(fs::Permissions::from_mode(old.mode() & 0o7777))
    }

    /// The error of an operation on the new file.
    pub fn failed(&self, source: io::Error) -> WriteError {
        WriteError::Failed { path: self.real.clone(), source }
    }

    /// Puts the new file in the place of the other one. `is_unchanged` is asked directly before.
    ///
    /// # Errors
    /// The disk is full, or the other one has changed.
    pub fn commit(self, is_unchanged: impl FnOnce() -> bool) -> Result<(), WriteError> {
        self.file.sync_all().map_err(|source| self.failed(source))?;
        if !is_unchanged() || !self.is_own() {
            return Err(WriteError::Changed);
        }
        fs::rename(&self.new, &self.real).map_err(|source| self.failed(source))?;
        sync_directory_of(&self.real);
        Ok(())
    }
}

impl Replacement {
    /// Whether the new file has its name still: another gateway that writes the same file has taken it else.
    fn is_own(&self) -> bool {
        let id = |file: &fs::Metadata| (file.dev(), file.ino());
        let named = fs::symlink_metadata(&self.new);
        self.file.metadata().is_ok_and(|own| named.is_ok_and(|named| id(&named) == id(&own)))
    }
}

impl Write for Replacement {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        // After a commit there is none of this name, or one of another gateway.
        if self.is_own() {
            let _ = fs::remove_file(&self.new);
        }
    }
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A hidden name in the same directory.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(suffix);
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_file_behind_a_link_is_replaced_and_keeps_its_mode() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("real")).unwrap();
        fs::write(at("real/g.toml"), "old").unwrap();
        fs::set_permissions(at("real/g.toml"), fs::Permissions::from_mode(0o640)).unwrap();
        symlink("real/g.toml", at("g.toml")).unwrap();
        write_atomically(&at("g.toml"), b"new", || true).unwrap();
        assert_eq!(fs::read_to_string(at("g.toml")).unwrap(), "new");
        assert_eq!(fs::read_link(at("g.toml")).unwrap(), Path::new("real/g.toml"));
        assert_eq!(fs::metadata(at("real/g.toml")).unwrap().mode() & 0o7777, 0o640);
        assert_eq!(
            (names(directory.path()), names(&at("real"))),
            (vec!["g.toml".into(), "real".into()], vec!["g.toml".into()])
        );
    }

    #[test]
    fn a_change_by_somebody_else_is_not_lost() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("g.toml");
        fs::write(&path, "old").unwrap();
        let error = write_atomically(&path, b"new", || {
            fs::write(&path, "of an editor").unwrap();
            false
        });
        assert!(matches!(error, Err(WriteError::Changed)));
        assert_eq!(fs::read_to_string(&path).unwrap(), "of an editor");
        assert_eq!(names(directory.path()), ["g.toml"]);
    }

    #[test]
    fn files_of_a_process_that_was_killed_do_not_pile_up() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("g.toml"), "old").unwrap();
        fs::write(at("other"), "other").unwrap();
        // As `kill -9` does.
        std::mem::forget(Replacement::begin(&at("g.toml")).unwrap());
        assert_eq!(names(directory.path()), [".g.toml.new", "g.toml", "other"]);
        let mut first = Replacement::begin(&at("g.toml")).unwrap();
        first.write_all(b"first").unwrap();
        // Another gateway writes the same file.
        let mut second = Replacement::begin(&at("g.toml")).unwrap();
        second.write_all(b"second").unwrap();
        assert!(matches!(first.commit(|| true), Err(WriteError::Changed)));
        second.commit(|| true).unwrap();
        assert_eq!(fs::read_to_string(at("g.toml")).unwrap(), "second");
        symlink("other", at(".g.toml.new")).unwrap();
        write_atomically(&at("g.toml"), b"new", || true).unwrap();
        let text = |name: &str| fs::read_to_string(at(name)).unwrap();
        assert_eq!((text("g.toml"), text("other")), ("new".into(), "other".into()));
        assert_eq!(names(directory.path()), ["g.toml", "other"]);
    }

    #[test]
    fn a_file_that_is_missing_is_written_and_takes_no_other_ones_place() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("g.toml");
        write_new(&path, b"new").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert!(matches!(write_new(&path, b"other"), Err(WriteError::Changed)));
        assert_eq!(
            (fs::read_to_string(&path).unwrap(), names(directory.path())),
            ("new".into(), vec!["g.toml".into()])
        );
    }

    #[test]
    fn errors_say_how_to_mend_them() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("g.toml");
        let error = write_atomically(&missing, b"new", || true).unwrap_err().to_string();
        assert!(error.ends_with("(os error 2). Put the file back and repeat the change."), "{error}");
        let said = |kind: io::ErrorKind| WriteError::Failed { path: "/etc/s".into(), source: kind.into() }.to_string();
        assert_eq!(
            said(io::ErrorKind::ReadOnlyFilesystem),
            "/etc/s cannot be written: read-only filesystem or storage medium. Mount the directory writable, or say [admin] \
             rules = \"read-only\" and change the file where it comes from."
        );
        assert!(said(io::ErrorKind::StorageFull).ends_with("Make room on the disk and repeat the change."));
        assert!(said(io::ErrorKind::PermissionDenied).contains("Let the gateway's user own the file"));
    }
}
