//! Reads the segments of a directory, of all nodes, while gateways write, rotate and remove them.
//!
//! A [`Snapshot`] fixes what there is; a [`Reader`] streams it, or what of it a filter asks for; a [`Follower`] goes on from
//! there. A line whose checksum fails is counted as damaged and passed over. With a filter most lines are passed over by their
//! bytes, unchecked: then the damaged ones are counted among those alone that may be meant. The unfinished last line of a
//! node's last segment is no damage: it is being written.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::entry::Entry;
use super::filter::Filter;
use super::line::MAX_LINE;
use super::line_prefilter::LinePrefilter;
use super::reserve;
use super::scan::{LineSplitter, Raw, first_instant};
use super::segment::{Segment, is_deleted, list, modified};
use super::store::StoreError;

/// Bytes that are searched at once for the last line feed of a segment.
const TAIL: usize = 16 * 1024;

/// An entry and the line that it was read from.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The content of the line.
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

    /// The segments that were there, oldest first by each segment's first line.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Reads all of it.
    pub fn read(&self) -> Reader {
        self.read_matching(&Filter::default())
    }

    /// Reads what `filter` asks for.
    pub fn read_matching(&self, filter: &Filter) -> Reader {
        Reader::over(self.segments.iter().cloned(), LinePrefilter::of(filter), filter.clone())
    }

    /// Reads what sums of what `filter` asks for look at: of aggregates, those that may count some of it.
    pub fn read_sums(&self, filter: &Filter) -> Reader {
        let reader = Reader::over(self.segments.iter().cloned(), LinePrefilter::of_sums(filter), filter.clone());
        Reader { is_meant: Filter::sums, ..reader }
    }

    /// Reads what `filter` asks for of one segment.
    pub fn read_one(&self, segment: &Segment, filter: &Filter) -> Reader {
        Reader::over(std::iter::once(segment.clone()), LinePrefilter::of(filter), filter.clone())
    }

    /// Reads entries whose ids begin so.
    pub fn read_ids(&self, beginning: &str) -> Reader {
        Reader::over(self.segments.iter().cloned(), LinePrefilter::of_id(beginning), Filter::default())
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
        Follower { directory: self.directory.clone(), cursors, damaged: 0, buffer: Vec::new() }
    }
}

/// Streams the entries of a [`Snapshot`].
pub struct Reader {
    waiting: VecDeque<Segment>,
    current: Option<(PathBuf, LineSplitter<io::Take<File>>)>,
    /// Of the segment before.
    buffer: Vec<u8>,
    sieve: LinePrefilter,
    filter: Filter,
    is_meant: fn(&Filter, &Entry) -> bool,
    damaged: u64,
}

impl Reader {
    fn over(segments: impl Iterator<Item = Segment>, sieve: LinePrefilter, filter: Filter) -> Self {
        Self {
            waiting: segments.collect(),
            current: None,
            buffer: Vec::new(),
            sieve,
            filter,
            is_meant: Filter::matches,
            damaged: 0,
        }
    }

    /// The next entry that is asked for; `None` at the end.
    ///
    /// # Errors
    /// A segment cannot be read. One that retention has removed meanwhile is no error.
    pub fn next_entry(&mut self) -> Result<Option<Found>, StoreError> {
        loop {
            let Some((path, lines)) = &mut self.current else {
                let Some(segment) = self.waiting.pop_front() else { return Ok(None) };
                self.current = match File::open(&segment.path) {
                    Ok(file) => {
                        let buffer = std::mem::take(&mut self.buffer);
                        Some((segment.path, LineSplitter::new(file.take(segment.bytes), buffer)))
                    }
                    Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                    Err(error) => return Err(StoreError::io("open", &segment.path)(error)),
                };
                continue;
            };
            match lines.next_line().map_err(StoreError::io("read", path))? {
                Raw::Line(line) if !self.sieve.passes(line) => {}
                Raw::Line(line) => match found(line) {
                    Some(found) if (self.is_meant)(&self.filter, &found.entry) => return Ok(Some(found)),
                    Some(_) => {}
                    None => self.damaged += 1,
                },
                Raw::TooLong => self.damaged += 1,
                Raw::End { unfinished } => {
                    self.damaged += u64::from(unfinished > 0);
                    if let Some((_, lines)) = self.current.take() {
                        self.buffer = lines.into_buffer();
                    }
                }
            }
        }
    }

    /// How many lines so far were no entries, of those that may be asked for.
    pub fn damaged(&self) -> u64 {
        self.damaged
    }
}

pub(super) fn found(line: &[u8]) -> Option<Found> {
    let entry = Entry::parse(line)?;
    Some(Found { entry, line: std::str::from_utf8(line).ok()?.to_owned() })
}

/// Goes on where a [`Snapshot`] ended, across rotation.
pub struct Follower {
    directory: PathBuf,
    cursors: BTreeMap<String, Cursor>,
    damaged: u64,
    /// Of the segment that was read last.
    buffer: Vec<u8>,
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
                self.damaged += u64::from(cursor.read(None, (&mut self.damaged, &mut self.buffer), show)? > 0);
                *cursor = Cursor { sequence: name.sequence, offset: 0, file: None };
            }
            if name.sequence == cursor.sequence {
                let unfinished = cursor.read(Some(&segment.path), (&mut self.damaged, &mut self.buffer), show)?;
                let is_last = segments.get(at + 1).is_none_or(|next| next.name.node != name.node);
                if unfinished > 0 && !is_last {
                    self.damaged += 1;
                    cursor.offset += unfinished;
                }
            }
        }
        self.follow_purges(&segments);
        Ok(())
    }

    /// Goes on at the end of what a purge has left of nodes of which it took the segment away, or wrote it anew, without a
    /// gateway: that has been shown, and the next gateway writes behind it.
    fn follow_purges(&mut self, segments: &[Segment]) {
        self.cursors.retain(|node, cursor| {
            if !cursor.file.as_ref().is_some_and(is_deleted) {
                return true;
            }
            let newest = segments.iter().rfind(|segment| segment.name.node == *node);
            if let Some(newest) = newest
                && newest.name.sequence <= cursor.sequence
            {
                *cursor = Cursor { sequence: newest.name.sequence, offset: newest.bytes, file: None };
            }
            newest.is_some()
        });
    }

    /// How many lines so far were no entries.
    pub fn damaged(&self) -> u64 {
        self.damaged
    }
}

impl Cursor {
    /// Reads whole lines to the end; says how many bytes of an unfinished one follow. A file that is not open yet is
    /// opened at `path`.
    fn read(
        &mut self,
        path: Option<&Path>,
        (damaged, buffer): (&mut u64, &mut Vec<u8>),
        show: &mut dyn FnMut(Found),
    ) -> Result<u64, StoreError> {
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
        let mut lines = LineSplitter::new(&*file, std::mem::take(buffer));
        let unfinished = loop {
            match lines.next_line().map_err(failed())? {
                Raw::Line(line) => match found(line) {
                    Some(found) => show(found),
                    None => *damaged += 1,
                },
                Raw::TooLong => *damaged += 1,
                Raw::End { unfinished } => break unfinished,
            }
            self.offset += lines.taken();
        };
        *buffer = lines.into_buffer();
        Ok(unfinished)
    }
}

/// The length of a segment up to its last line feed, if that is near its end.
pub(super) fn whole_lines(segment: &Segment) -> Option<u64> {
    let mut file = File::open(&segment.path).ok()?;
    let mut end = segment.bytes;
    let mut tail = Vec::with_capacity(TAIL);
    while end > segment.bytes.saturating_sub(MAX_LINE as u64) {
        let start = end.saturating_sub(TAIL as u64);
        file.seek(SeekFrom::Start(start)).ok()?;
        tail.clear();
        (&file).take(end - start).read_to_end(&mut tail).ok()?;
        if let Some(at) = memchr::memrchr(b'\n', &tail) {
            return Some(start + at as u64 + 1);
        }
        end = start;
    }
    (end == 0).then_some(0)
}
