//! Segments as files: how they are named, found, and opened for writing.

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use sluicegate_files::sync_directory_of;
use sluicegate_time::Wall;

/// Characters of a node's name that are used; more are cut off.
const MAX_NODE: usize = 64;
const EXTENSION: &str = ".jsonl";
/// The end that is added to a segment's name for the tail that recovery took off it.
const TORN: &str = ".torn";

/// `NODE-SEQ.jsonl`: names of one node sort by sequence number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentName {
    /// The node that wrote it.
    pub node: String,
    /// Counts up from 1; never used twice by one node while its segments exist.
    pub sequence: u64,
}

impl SegmentName {
    /// The name that a file has, if it is a segment's.
    pub(super) fn parse(file_name: &str) -> Option<Self> {
        let (node, digits) = file_name.strip_suffix(EXTENSION)?.rsplit_once('-')?;
        let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let sequence = digits.parse().ok().filter(|_| plain && !node.is_empty())?;
        Some(Self { node: node.to_owned(), sequence })
    }

    pub(super) fn file_name(&self) -> String {
        format!("{}-{:010}{EXTENSION}", self.node, self.sequence)
    }
}

impl fmt::Display for SegmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file_name())
    }
}

/// A segment that was found in a directory.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Its name.
    pub name: SegmentName,
    /// Where it is.
    pub path: PathBuf,
    /// Its length when it was found.
    pub bytes: u64,
}

/// All segments of a directory, by node and sequence number. A segment that disappears meanwhile is left out.
pub(super) fn list(directory: &Path) -> io::Result<Vec<Segment>> {
    let mut segments = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let Some(name) = entry.file_name().to_str().and_then(SegmentName::parse) else { continue };
        match entry.metadata() {
            Ok(metadata) if metadata.is_file() => {
                segments.push(Segment { name, path: entry.path(), bytes: metadata.len() });
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    segments.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(segments)
}

/// Where the torn tail of a segment is kept.
pub(super) fn torn_path(segment: &Path) -> PathBuf {
    let mut path = segment.as_os_str().to_owned();
    path.push(TORN);
    path.into()
}

/// A node's name as it stands in file names: letters, digits, `.`, `_` and `-`.
pub(super) fn node_name(node: &str) -> String {
    let plain =
        |character: char| if character.is_ascii_alphanumeric() || "._-".contains(character) { character } else { '_' };
    let name: String = node.chars().take(MAX_NODE).map(plain).collect();
    match name.strip_prefix('.') {
        Some(rest) => format!("_{rest}"),
        None if name.is_empty() => "node".to_owned(),
        None => name,
    }
}

/// Makes the directory, for its owner alone, if there is none.
pub(super) fn make_directory(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// How the directory's own files are opened: for their owner alone.
pub(super) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// Where segments are written to. The tests put a failing one in the place of [`Files`].
pub(super) trait Disk: Send {
    /// Opens a segment for appending: a new one, which must not exist, or one that does.
    fn open(&self, path: &Path, new: bool) -> io::Result<Box<dyn SegmentFile>>;
}

/// A segment that is being written.
pub(super) trait SegmentFile: Send {
    /// As `write(2)`: may write a part.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;
    /// Cuts it to `length`; the next write goes there.
    fn truncate(&mut self, length: u64) -> io::Result<()>;
    /// As `fdatasync(2)`.
    fn sync(&mut self) -> io::Result<()>;
    /// Whether someone deleted it.
    fn is_deleted(&self) -> bool;
}

/// The file system.
pub(super) struct Files;

impl Disk for Files {
    fn open(&self, path: &Path, new: bool) -> io::Result<Box<dyn SegmentFile>> {
        let file = private().append(true).create_new(new).open(path)?;
        if new {
            sync_directory_of(path);
        }
        Ok(Box::new(file))
    }
}

impl SegmentFile for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Write::write(self, bytes)
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }

    fn is_deleted(&self) -> bool {
        is_deleted(self)
    }
}

/// Whether the last name of an open file is gone.
pub(super) fn is_deleted(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.nlink() == 0)
}

/// The number of bytes written before an error, and the error.
pub(super) fn write_all(file: &mut dyn SegmentFile, bytes: &[u8]) -> Result<(), (usize, io::Error)> {
    let mut written = 0;
    while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
        match file.write(rest) {
            Ok(0) => return Err((written, io::ErrorKind::WriteZero.into())),
            Ok(length) => written += length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err((written, error)),
        }
    }
    Ok(())
}

pub(super) fn length_of(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

pub(super) fn modified(path: &Path) -> Wall {
    let since_epoch = fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    let since_epoch = since_epoch.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    Wall::EPOCH + since_epoch.unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_as_they_print_and_sort_by_sequence() {
        let name = SegmentName { node: "gw-eu-1".into(), sequence: 42 };
        assert_eq!(name.file_name(), "gw-eu-1-0000000042.jsonl");
        assert_eq!(SegmentName::parse("gw-eu-1-0000000042.jsonl"), Some(name.clone()));
        assert!(name.file_name() < SegmentName { sequence: 100, ..name }.file_name());
        for other in
            ["gw-1.jsonl.torn", "gw.jsonl", "-1.jsonl", "gw-.jsonl", "gw-+1.jsonl", "gw-1x.jsonl", ".lock", "gw-1.json"]
        {
            assert_eq!(SegmentName::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_nodes_name_becomes_a_plain_file_name() {
        assert_eq!(node_name("gw-1.example"), "gw-1.example");
        assert_eq!(node_name("../a b/é"), "_._a_b__");
        assert_eq!(node_name(""), "node");
        assert_eq!(node_name(&"x".repeat(200)).len(), 64);
    }

    #[test]
    fn lists_segments_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["b-2.jsonl", "b-10.jsonl", "a-3.jsonl", "b-2.jsonl.torn", ".lock", "notes.txt"] {
            fs::write(directory.path().join(name), "x").unwrap();
        }
        fs::create_dir(directory.path().join("c-1.jsonl")).unwrap();
        let found: Vec<_> = list(directory.path())
            .unwrap()
            .into_iter()
            .map(|segment| (segment.name.node, segment.name.sequence))
            .collect();
        assert_eq!(found, [("a".into(), 3), ("b".into(), 2), ("b".into(), 10)]);
    }
}
