//! Up to where a sink has the log, in a file: `DIRECTORY/sinks/NAME.cursor`.
//!
//! One process at a time has it, by a lock beside it. It is replaced as a whole, so it is that of before or that of after.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sluicegate_files::replace;

use super::super::cursor::LogCursor;
use super::super::segment::{is_deleted, make_directory};
use super::super::store::{Lock, StoreError, lock};

const DIRECTORY: &str = "sinks";
/// Of the file's form.
const VERSION: u32 = 1;
/// A longer file is damaged: it has two cursors and a name.
const MAX_BYTES: u64 = 256 * 1024;

/// How far a sink is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SinkProgress {
    /// Everything before this was taken, or refused, or is gone.
    pub(super) taken: LogCursor,
    /// The batch that may have been taken and may not. It is sent again as it was.
    pub(super) sent: Option<LogRange>,
}

/// Some lines that follow each other in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LogRange {
    pub(super) node: String,
    pub(super) sequence: u64,
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) lines: u64,
    /// Behind them.
    pub(super) then: LogCursor,
}

/// The content of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CheckpointContent {
    /// There is no file.
    Nothing,
    Progress(SinkProgress),
    /// It is not as it was written.
    Damaged,
}

#[derive(Serialize, Deserialize)]
struct CheckpointRecord {
    v: u32,
    taken: String,
    sent: Option<WrittenStretch>,
}

#[derive(Serialize, Deserialize)]
struct WrittenStretch {
    node: String,
    sequence: u64,
    from: u64,
    to: u64,
    lines: u64,
    then: String,
}

/// The file, while this process has it.
pub(super) struct CheckpointFile {
    path: PathBuf,
    lock: Lock,
}

impl CheckpointFile {
    /// That of a sink of the log in `directory`; `None` while another process has it.
    pub(super) fn hold(directory: &Path, name: &str) -> Result<Option<Self>, StoreError> {
        let directory = directory.join(DIRECTORY);
        make_directory(&directory).map_err(StoreError::io("make", &directory))?;
        let held = lock(&directory.join(format!("{name}.lock")))?;
        Ok(held.map(|lock| Self { path: directory.join(file_name(name)), lock }))
    }

    /// The content of the file, whoever has it.
    pub(super) fn peek(directory: &Path, name: &str) -> Result<CheckpointContent, StoreError> {
        load(&directory.join(DIRECTORY).join(file_name(name)))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether somebody removed the lock, so that another process may take the place.
    pub(super) fn is_deleted(&self) -> bool {
        is_deleted(&self.lock.0)
    }

    pub(super) fn load(&self) -> Result<CheckpointContent, StoreError> {
        load(&self.path)
    }

    /// Replaces the file; when it is done, the new one outlasts a crash of the machine.
    pub(super) fn save(&self, progress: &SinkProgress) -> Result<(), StoreError> {
        replace(&self.path, print(progress).as_bytes()).map_err(StoreError::io("write", &self.path))
    }
}

fn file_name(name: &str) -> String {
    format!("{name}.cursor")
}

fn load(path: &Path) -> Result<CheckpointContent, StoreError> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(CheckpointContent::Nothing),
        opened => opened.map_err(StoreError::io("open", path))?,
    };
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(StoreError::io("read", path))?;
    Ok(parse(&bytes).map_or(CheckpointContent::Damaged, CheckpointContent::Progress))
}

/// JSON, a line feed and its checksum.
fn print(progress: &SinkProgress) -> String {
    let sent = progress.sent.as_ref().map(|LogRange { node, sequence, from, to, lines, then }| WrittenStretch {
        node: node.clone(),
        sequence: *sequence,
        from: *from,
        to: *to,
        lines: *lines,
        then: then.to_string(),
    });
    let written = CheckpointRecord { v: VERSION, taken: progress.taken.to_string(), sent };
    // Texts and numbers alone: it cannot fail.
    let json = serde_json::to_string(&written).unwrap_or_default();
    format!("{json}\n{:08x}\n", crc32c::crc32c(json.as_bytes()))
}

fn parse(bytes: &[u8]) -> Option<SinkProgress> {
    let (json, checksum) = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?.split_once('\n')?;
    if checksum != format!("{:08x}", crc32c::crc32c(json.as_bytes())) {
        return None;
    }
    let CheckpointRecord { v, taken, sent } = serde_json::from_str(json).ok()?;
    let stretch = |WrittenStretch { node, sequence, from, to, lines, then }| {
        Some(LogRange { node, sequence, from, to, lines, then: then.parse().ok()? })
    };
    let sent = match sent {
        Some(sent) => Some(stretch(sent)?),
        None => None,
    };
    (v == VERSION).then_some(SinkProgress { taken: taken.parse().ok()?, sent })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::super::cursor::LogPosition as InLog;
    use super::*;

    fn progress() -> SinkProgress {
        let at = |offset| LogCursor {
            places: [("gw-1".to_owned(), InLog { sequence: 7, offset, mark: 5, end: None })].into(),
        };
        let sent = LogRange { node: "gw-1".into(), sequence: 7, from: 100, to: 900, lines: 3, then: at(900) };
        SinkProgress { taken: at(100), sent: Some(sent) }
    }

    #[test]
    fn it_is_kept_for_its_owner_alone_and_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let place = CheckpointFile::hold(directory.path(), "h.example:80").unwrap().unwrap();
        assert_eq!(place.load().unwrap(), CheckpointContent::Nothing);
        for progress in [progress(), SinkProgress { sent: None, ..progress() }] {
            place.save(&progress).unwrap();
            assert_eq!(place.load().unwrap(), CheckpointContent::Progress(progress));
        }
        let path = directory.path().join("sinks/h.example:80.cursor");
        assert_eq!(place.path(), path);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let mut names: Vec<_> =
            fs::read_dir(directory.path().join("sinks")).unwrap().map(|file| file.unwrap()).collect();
        names.sort_by_key(fs::DirEntry::file_name);
        assert_eq!(
            names.iter().map(fs::DirEntry::file_name).collect::<Vec<_>>(),
            ["h.example:80.cursor", "h.example:80.lock"]
        );
    }

    #[test]
    fn one_process_has_it_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let first = CheckpointFile::hold(directory.path(), "a").unwrap().unwrap();
        assert!(CheckpointFile::hold(directory.path(), "a").unwrap().is_none());
        assert!(CheckpointFile::hold(directory.path(), "b").unwrap().is_some());
        drop(first);
        assert!(CheckpointFile::hold(directory.path(), "a").unwrap().is_some());
    }

    #[test]
    fn a_file_that_was_cut_or_changed_anywhere_is_damaged() {
        let directory = tempfile::tempdir().unwrap();
        let place = CheckpointFile::hold(directory.path(), "a").unwrap().unwrap();
        let whole = print(&progress()).into_bytes();
        for at in 0..whole.len() {
            fs::write(place.path(), &whole[..at]).unwrap();
            assert_eq!(place.load().unwrap(), CheckpointContent::Damaged, "cut at {at}");
            let mut changed = whole.clone();
            changed[at] ^= 1;
            fs::write(place.path(), changed).unwrap();
            assert_eq!(place.load().unwrap(), CheckpointContent::Damaged, "changed at {at}");
        }
        for other in
            [vec![0; 1 << 20], b"\xff\n\n".to_vec(), print(&progress()).replace("\"v\":1", "\"v\":2").into_bytes()]
        {
            fs::write(place.path(), other).unwrap();
            assert_eq!(place.load().unwrap(), CheckpointContent::Damaged);
        }
    }
}
