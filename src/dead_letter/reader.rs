//! Reads the segments of a directory, of all nodes, while gateways write, rotate and remove them.
//!
//! A [`Snapshot`] fixes what there is; a [`Reader`] streams it; a [`Follower`] goes on from there. A line whose checksum
//! fails is counted as damaged and passed over. The unfinished last line of a node's last segment is no damage: it is
//! being written.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::entry::Entry;
use super::line::MAX_LINE;
use super::reserve;
use super::segment::{Segment, list};
use super::store::{StoreError, first_instant, modified};

/// Bytes that are read at once.
const CHUNK: usize = 64 * 1024;

/// An entry and the line that it was read from.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// What the line says.
    pub entry: Entry,
    /// The line, without its line feed.
    pub line: String,
}

/// The segments of a directory at one moment, oldest first.
#[derive(Clone, Debug)]
pub struct Snapshot {
    directory: PathBuf,
    segments: Vec<Segment>,
}

impl Snapshot {
    /// Looks into `directory`.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn take(directory: &Path) -> Result<Self, StoreError> {
        let mut segments = list(directory).map_err(StoreError::io("read", directory))?;
        for at in 0..segments.len() {
            let next_node = segments.get(at + 1).map(|next| next.name.node.clone());
            if let Some(segment) = segments.get_mut(at).filter(|own| next_node.as_ref() != Some(&own.name.node)) {
                segment.bytes = whole_lines(segment).unwrap_or(segment.bytes);
            }
        }
        segments.sort_by_cached_key(|segment| {
            let first = first_instant(&segment.path).unwrap_or_else(|| modified(&segment.path));
            (first, segment.name.clone())
        });
        Ok(Self { directory: directory.to_owned(), segments })
    }

    /// What was there, oldest first by each segment's first line.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Reads all of it.
    pub fn read(&self) -> Reader {
        Reader::over(self.segments.iter().cloned())
    }

    /// Reads one segment of it.
    pub fn read_one(&self, segment: &Segment) -> Reader {
        Reader::over(std::iter::once(segment.clone()))
    }

    /// Reads what is written after it was taken.
    pub fn follow(&self) -> Follower {
        let mut cursors = BTreeMap::new();
        for segment in &self.segments {
            let cursor = Cursor { sequence: segment.name.sequence, offset: segment.bytes, file: None };
            let known = cursors.entry(segment.name.node.clone()).or_insert(Cursor { file: None, ..cursor });
            if known.sequence <= cursor.sequence {
                *known = cursor;
            }
        }
        Follower { directory: self.directory.clone(), cursors, damaged: 0 }
    }
}

/// Streams the entries of a [`Snapshot`].
pub struct Reader {
    waiting: VecDeque<Segment>,
    current: Option<(PathBuf, Lines<io::Take<File>>)>,
    damaged: u64,
}

impl Reader {
    fn over(segments: impl Iterator<Item = Segment>) -> Self {
        Self { waiting: segments.collect(), current: None, damaged: 0 }
    }

    /// The next entry; `None` at the end.
    ///
    /// # Errors
    /// A segment cannot be read. One that retention has removed meanwhile is no error.
    pub fn next_entry(&mut self) -> Result<Option<Found>, StoreError> {
        loop {
            let Some((path, lines)) = &mut self.current else {
                let Some(segment) = self.waiting.pop_front() else { return Ok(None) };
                self.current = match File::open(&segment.path) {
                    Ok(file) => Some((segment.path, Lines::new(file.take(segment.bytes)))),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                    Err(error) => return Err(StoreError::io("open", &segment.path)(error)),
                };
                continue;
            };
            match lines.next_line().map_err(StoreError::io("read", path))? {
                Line::Sound(found) => return Ok(Some(found)),
                Line::Damaged => self.damaged += 1,
                Line::End { unfinished } => {
                    self.damaged += u64::from(unfinished > 0);
                    self.current = None;
                }
            }
        }
    }

    /// How many lines so far were no entries.
    pub fn damaged(&self) -> u64 {
        self.damaged
    }
}

/// Goes on where a [`Snapshot`] ended, across rotation.
pub struct Follower {
    directory: PathBuf,
    cursors: BTreeMap<String, Cursor>,
    damaged: u64,
}

struct Cursor {
    sequence: u64,
    /// Up to where it has been read.
    offset: u64,
    /// Kept open, so that a segment which retention removes is read to its end.
    file: Option<File>,
}

impl Follower {
    /// Shows what was written since the last call.
    ///
    /// # Errors
    /// The directory or a segment cannot be read.
    pub fn poll(&mut self, show: &mut dyn FnMut(Found)) -> Result<(), StoreError> {
        // Listed before it is read: a segment that has a successor by now gets no more lines.
        let segments = match list(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            listed => listed.map_err(StoreError::io("read", &self.directory))?,
        };
        for (at, segment) in segments.iter().enumerate() {
            let name = &segment.name;
            if name.node.contains(reserve::MARK) {
                // Its lines were elsewhere before, and have been shown.
                continue;
            }
            let cursor = self.cursors.entry(name.node.clone()).or_insert(Cursor {
                sequence: name.sequence,
                offset: 0,
                file: None,
            });
            if name.sequence > cursor.sequence {
                self.damaged += u64::from(cursor.read(None, &mut self.damaged, show)? > 0);
                *cursor = Cursor { sequence: name.sequence, offset: 0, file: None };
            }
            if name.sequence == cursor.sequence {
                let unfinished = cursor.read(Some(&segment.path), &mut self.damaged, show)?;
                let is_last = segments.get(at + 1).is_none_or(|next| next.name.node != name.node);
                if unfinished > 0 && !is_last {
                    self.damaged += 1;
                    cursor.offset += unfinished;
                }
            }
        }
        Ok(())
    }

    /// How many lines so far were no entries.
    pub fn damaged(&self) -> u64 {
        self.damaged
    }
}

impl Cursor {
    /// Reads whole lines to the end; says how many bytes of an unfinished one follow. A file that is not open yet is
    /// opened at `path`.
    fn read(&mut self, path: Option<&Path>, damaged: &mut u64, show: &mut dyn FnMut(Found)) -> Result<u64, StoreError> {
        let shown = path.unwrap_or(Path::new("a segment"));
        if self.file.is_none()
            && let Some(path) = path
        {
            self.file = match File::open(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
                opened => Some(opened.map_err(StoreError::io("open", path))?),
            };
        }
        let Some(file) = &mut self.file else { return Ok(0) };
        let failed = || StoreError::io("read", shown);
        // Recovery may have cut off what a crash left.
        self.offset = self.offset.min(file.metadata().map_err(failed())?.len());
        file.seek(SeekFrom::Start(self.offset)).map_err(failed())?;
        let mut lines = Lines::new(&*file);
        loop {
            match lines.next_line().map_err(failed())? {
                Line::Sound(found) => show(found),
                Line::Damaged => *damaged += 1,
                Line::End { unfinished } => return Ok(unfinished),
            }
            self.offset += lines.taken;
        }
    }
}

pub(super) enum Line {
    Sound(Found),
    Damaged,
    End {
        /// Bytes after the last line feed.
        unfinished: u64,
    },
}

pub(super) struct Lines<R> {
    input: BufReader<R>,
    buffer: Vec<u8>,
    /// Bytes of the last line, line feed included.
    taken: u64,
}

impl<R: Read> Lines<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input: BufReader::with_capacity(CHUNK, input), buffer: Vec::new(), taken: 0 }
    }

    /// Bytes of the last line, line feed included.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// The next line. Of one that is longer than any entry no more than [`MAX_LINE`] bytes are held.
    pub(super) fn next_line(&mut self) -> io::Result<Line> {
        self.buffer.clear();
        self.taken = 0;
        loop {
            let chunk = match self.input.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                chunk => chunk?,
            };
            if chunk.is_empty() {
                return Ok(Line::End { unfinished: self.taken });
            }
            let feed = chunk.iter().position(|&byte| byte == b'\n');
            let length = feed.map_or(chunk.len(), |at| at + 1);
            let text = chunk.get(..feed.unwrap_or(length)).unwrap_or_default();
            let room = MAX_LINE.saturating_sub(self.buffer.len());
            self.buffer.extend_from_slice(text.get(..room.min(text.len())).unwrap_or_default());
            self.taken += length as u64;
            self.input.consume(length);
            if feed.is_some() {
                break;
            }
        }
        let entry = if self.taken > MAX_LINE as u64 { None } else { Entry::parse(&self.buffer) };
        Ok(match (entry, String::from_utf8(std::mem::take(&mut self.buffer))) {
            (Some(entry), Ok(line)) => Line::Sound(Found { entry, line }),
            _ => Line::Damaged,
        })
    }
}

/// The length of a segment up to its last line feed, if that is near its end.
pub(super) fn whole_lines(segment: &Segment) -> Option<u64> {
    let start = segment.bytes.saturating_sub(MAX_LINE as u64);
    let mut file = File::open(&segment.path).ok()?;
    file.seek(SeekFrom::Start(start)).ok()?;
    let mut tail = Vec::new();
    file.take(segment.bytes - start).read_to_end(&mut tail).ok()?;
    let length = tail.iter().rposition(|&byte| byte == b'\n').map(|at| at as u64 + 1);
    if start == 0 { Some(length.unwrap_or(0)) } else { length.map(|length| start + length) }
}
