//! Files that are made or replaced as a whole or not at all.

use std::collections::hash_map::RandomState;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::hash::BuildHasher as _;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Replaces a file by what `fill` writes: it is there as a whole, with all that was written synced, or as it was. Only its owner
/// may read it.
///
/// # Errors
/// The directory is not there or not writable, or the disk is full; what was begun is removed.
pub fn replace_by<T>(path: &Path, fill: impl FnOnce(File) -> io::Result<(File, T)>) -> io::Result<T> {
    let new = beside(path, ".new");
    let written = write_new(&new, fill).and_then(|written| {
        fs::rename(&new, path)?;
        sync_directory_of(path);
        Ok(written)
    });
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

/// Replaces a file by these bytes, as [`replace_by`] does.
///
/// # Errors
/// As there.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_by(path, |mut file| {
        file.write_all(bytes)?;
        Ok((file, ()))
    })
}

/// Writes a file that is not there: it is there as a whole, with all that was written synced, or not at all. Only its owner may
/// read it.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`]: there is one of that name, which stays. Else as [`replace_by`].
pub fn create(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // By chance: several processes may make the file at once, and those of two containers may have the same number.
    let new = beside(path, &format!(".{:016x}", RandomState::new().hash_one(0_u8)));
    let written = write_new(&new, |mut file| {
        file.write_all(bytes)?;
        Ok((file, ()))
    });
    // Unlike a rename this takes no other one's place.
    let linked = written.and_then(|()| fs::hard_link(&new, path));
    let _ = fs::remove_file(&new);
    linked?;
    sync_directory_of(path);
    Ok(())
}

/// Syncs the directory of a file, so that the file's name survives a crash, too; where a file system cannot, it cannot.
pub fn sync_directory_of(path: &Path) {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let _ = File::open(directory).and_then(|directory| directory.sync_all());
}

/// A path with something behind its name.
pub fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn write_new<T>(path: &Path, fill: impl FnOnce(File) -> io::Result<(File, T)>) -> io::Result<T> {
    // One of an earlier run may belong to somebody else, or be a link.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let (file, written) = fill(file)?;
    file.sync_all()?;
    Ok(written)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn of_several_that_make_a_file_one_does() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let made: Vec<io::Result<()>> = std::thread::scope(|scope| {
            let makers: Vec<_> = (0..8)
                .map(|own| {
                    scope.spawn({
                        let path = &path;
                        move || create(path, &[own; 1_000])
                    })
                })
                .collect();
            makers.into_iter().map(|maker| maker.join().unwrap()).collect()
        });
        let won = made.iter().position(Result::is_ok).unwrap();
        let lost = made.iter().filter_map(|made| made.as_ref().err()).map(io::Error::kind);
        assert_eq!(lost.collect::<Vec<_>>(), [io::ErrorKind::AlreadyExists; 7]);
        assert_eq!(fs::read(&path).unwrap(), [won as u8; 1_000]);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_or_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        replace(&path, b"one").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        // A link that somebody has planted is not followed.
        let other = directory.path().join("other");
        fs::write(&other, "theirs").unwrap();
        std::os::unix::fs::symlink(&other, beside(&path, ".new")).unwrap();
        replace(&path, b"two").unwrap();
        assert_eq!((fs::read(&path).unwrap(), fs::read(&other).unwrap()), (b"two".to_vec(), b"theirs".to_vec()));
        let failed = replace_by(&path, |mut file| {
            file.write_all(b"half")?;
            Err::<(File, ()), _>(io::Error::other("no more"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "no more");
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "nothing is left beside it");
    }
}
