//! Reads a log in parts, each from where the one before ended, however long that is ago and whatever became of the segments.
//!
//! Each node's segments are read in their order. Of several nodes the one comes first whose next segment begins first.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;

use super::cursor::{LogCursor, LogPosition, is_reserve};
use super::filter::Filter;
use super::reader::{Found, found, whole_lines};
use super::scan::{LineSplitter, Raw, first_instant};
use super::segment::{Segment, SegmentName, list, modified};
use super::store::StoreError;
use sluicegate_redact::Redactor;
use sluicegate_time::{Clock, Span, Tick, Wall};

/// Bytes before a place of which a cursor has the checksum: the end of a line, with a checksum of its own.
const MARKED: usize = 16;

/// A file's time and its lines' times are of clocks that may differ by less than this. Segments that lie farther outside of
/// what is asked for are not read.
const SLACK: Span = Span::from_secs(3_600);

/// A log as those see it who do not write it.
#[derive(Clone)]
pub struct Archive {
    /// Where its segments are.
    pub directory: PathBuf,
    /// Finds keys that were redacted.
    pub redactor: Redactor,
    /// Tells what was how long ago, and how long a reading takes.
    pub clock: Clock,
}

/// How much is read at once.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Entries that match.
    pub entries: usize,
    /// Bytes of their lines; a first one that is longer is there all the same.
    pub line_bytes: usize,
    /// Bytes of all lines, up to one line more.
    pub read_bytes: u64,
    /// How long, up to one line more.
    pub time: Span,
}

/// The outcome of a reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArchivePart {
    /// Where the next one goes on.
    pub cursor: LogCursor,
    /// Whether nothing more was there.
    pub is_end: bool,
    /// Lines that are no entries.
    pub damaged: u64,
    /// Whether a segment was gone, or written anew, of which something may not have been read.
    pub has_gap: bool,
}

impl Archive {
    /// Shows what matches, each entry with the cursor behind it, from a cursor on or from the beginning.
    ///
    /// # Errors
    /// The directory or a segment cannot be read.
    pub fn read(
        &self,
        from: Option<&LogCursor>,
        filter: &Filter,
        bounds: &Bounds,
        show: &mut dyn FnMut(&Found, &LogCursor),
    ) -> Result<ArchivePart, StoreError> {
        let segments = list(&self.directory).map_err(StoreError::io("read", &self.directory))?;
        let cursor = from.cloned().unwrap_or_else(|| LogCursor::before(&segments));
        let part = ArchivePart { cursor, is_end: true, ..ArchivePart::default() };
        let deadline = self.clock.now() + bounds.time;
        let mut walk = ArchiveWalk {
            archive: self,
            filter,
            left: *bounds,
            deadline,
            has_shown: false,
            part,
            waiting: BTreeMap::new(),
        };
        walk.find(segments);
        while let Some(node) = walk.next_node() {
            if walk.read_segment(&node, show)? == ScanControl::Stop || (walk.step(&node) && walk.is_used_up()) {
                walk.part.is_end = false;
                break;
            }
        }
        Ok(walk.part)
    }

    /// Behind all that is there.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn end(&self) -> Result<LogCursor, StoreError> {
        let segments = list(&self.directory).map_err(StoreError::io("read", &self.directory))?;
        let own = segments.into_iter().filter(|segment| !is_reserve(&segment.name.node));
        // The last one of each node stays.
        let last: BTreeMap<String, Segment> = own.map(|segment| (segment.name.node.clone(), segment)).collect();
        let place = |segment: &Segment| {
            let offset = whole_lines(segment).unwrap_or(segment.bytes);
            LogPosition { sequence: segment.name.sequence, offset, ..LogPosition::default() }
        };
        Ok(LogCursor { places: last.into_iter().map(|(node, segment)| (node, place(&segment))).collect() })
    }
}

/// Whether a reading goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScanControl {
    GoOn,
    Stop,
}

struct ArchiveWalk<'a> {
    archive: &'a Archive,
    filter: &'a Filter,
    left: Bounds,
    deadline: Tick,
    has_shown: bool,
    part: ArchivePart,
    /// The segments that are left of each node, and when the first of them begins, if somebody had to know.
    waiting: BTreeMap<String, (VecDeque<Segment>, Option<Wall>)>,
}

impl ArchiveWalk<'_> {
    /// Finds where each node goes on.
    fn find(&mut self, segments: Vec<Segment>) {
        let mut nodes: BTreeMap<String, VecDeque<Segment>> = BTreeMap::new();
        for segment in segments {
            nodes.entry(segment.name.node.clone()).or_default().push_back(segment);
        }
        let places = &mut self.part.cursor.places;
        let before = places.len();
        places.retain(|node, _| nodes.contains_key(node));
        self.part.has_gap |= places.len() < before;
        for (node, mut segments) in nodes {
            let Some(oldest) = segments.front().map(|segment| segment.name.sequence) else { continue };
            let place = match places.get_mut(&node) {
                Some(place) => place,
                // Its lines were elsewhere when the reading began.
                None if is_reserve(&node) => continue,
                None => {
                    places.entry(node.clone()).or_insert(LogPosition { sequence: oldest, ..LogPosition::default() })
                }
            };
            if let Some((last, _)) = place.end {
                segments.retain(|segment| segment.name.sequence <= last);
                if segments.is_empty() {
                    self.part.has_gap = true;
                    places.remove(&node);
                    continue;
                }
            }
            let own = segments.iter().find(|segment| segment.name.sequence == place.sequence);
            if own.is_none_or(|own| !is_before(own, place)) {
                self.part.has_gap = true;
                let next = segments.iter().map(|segment| segment.name.sequence).find(|next| *next >= place.sequence);
                // Where all are older the node began anew.
                *place = LogPosition { sequence: next.unwrap_or(oldest), end: place.end, ..LogPosition::default() };
            }
            segments.retain(|segment| segment.name.sequence >= place.sequence);
            let is_read = segments.len() == 1 && segments.front().is_some_and(|last| last.bytes == place.offset);
            if !is_read && !segments.is_empty() {
                self.waiting.insert(node, (segments, None));
            }
        }
    }

    /// The node whose next segment begins first.
    fn next_node(&mut self) -> Option<String> {
        if self.waiting.len() == 1 && self.filter.until.is_none() {
            return self.waiting.keys().next().cloned();
        }
        for (segments, begin) in self.waiting.values_mut() {
            if let (Some(first), None) = (segments.front(), &begin) {
                *begin = Some(first_instant(&first.path).unwrap_or_else(|| modified(&first.path)));
            }
        }
        let (node, (_, begin)) = self.waiting.iter().min_by_key(|(_, (_, begin))| *begin)?;
        let is_past = self.filter.until.zip(*begin).is_some_and(|(until, begin)| begin > until + SLACK);
        if is_past { None } else { Some(node.clone()) }
    }

    /// Reads on in the next segment of a node.
    fn read_segment(
        &mut self,
        node: &str,
        show: &mut dyn FnMut(&Found, &LogCursor),
    ) -> Result<ScanControl, StoreError> {
        let Some((segments, _)) = self.waiting.get(node) else { return Ok(ScanControl::GoOn) };
        let (Some(segment), is_last) = (segments.front(), segments.len() == 1) else { return Ok(ScanControl::GoOn) };
        let (sequence, path) = (segment.name.sequence, segment.path.clone());
        let place = self.part.cursor.places.get(node).copied().unwrap_or_default();
        if self.filter.since.is_some_and(|since| modified(&path) + SLACK < since) {
            return Ok(ScanControl::GoOn);
        }
        let mut file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.part.has_gap = true;
                return Ok(ScanControl::GoOn);
            }
            opened => opened.map_err(StoreError::io("open", &path))?,
        };
        file.seek(SeekFrom::Start(place.offset)).map_err(StoreError::io("read", &path))?;
        let length = place.end.filter(|(last, _)| *last == sequence).map(|(_, end)| end.saturating_sub(place.offset));
        let mut lines = LineSplitter::new(file.take(length.unwrap_or(u64::MAX)), Vec::new());
        // Damaged lines at the end of a segment may yet be cut off from it: the place moves only with what follows.
        let mut passed = 0;
        loop {
            let entry = match lines.next_line().map_err(StoreError::io("read", &path))? {
                Raw::Line(line) => found(line),
                Raw::TooLong => None,
                Raw::End { unfinished } => {
                    self.part.damaged += u64::from(unfinished > 0 && !is_last);
                    return Ok(ScanControl::GoOn);
                }
            };
            if let Some(found) = entry {
                let is_wanted = self.filter.matches(&found.entry);
                if is_wanted && !self.has_room(&found) {
                    self.advance(node, passed, 0);
                    return Ok(ScanControl::Stop);
                }
                self.advance(node, passed + lines.taken(), mark(found.line.as_bytes()));
                passed = 0;
                if is_wanted {
                    self.has_shown = true;
                    self.left.entries = self.left.entries.saturating_sub(1);
                    self.left.line_bytes = self.left.line_bytes.saturating_sub(found.line.len());
                    show(&found, &self.part.cursor);
                }
            } else {
                self.part.damaged += 1;
                passed += lines.taken();
            }
            self.left.read_bytes = self.left.read_bytes.saturating_sub(lines.taken());
            if self.is_used_up() {
                self.advance(node, passed, 0);
                return Ok(ScanControl::Stop);
            }
        }
    }

    /// A segment has been read to its end: goes on to the next of its node, if there is one. Whether the cursor has moved.
    fn step(&mut self, node: &str) -> bool {
        let Some((segments, begin)) = self.waiting.get_mut(node) else { return false };
        let read = segments.pop_front();
        *begin = None;
        let Some(place) = self.part.cursor.places.get_mut(node) else { return false };
        match segments.front().map(|next| next.name.sequence) {
            // One that was made while the directory was listed may be missing in the list while its successor is there.
            Some(next) if read.is_some_and(|read| is_one_between(&read, next)) => {
                self.part.is_end = false;
                self.waiting.remove(node);
                false
            }
            Some(next) => {
                *place = LogPosition { sequence: next, end: place.end, ..LogPosition::default() };
                true
            }
            None => {
                if place.end.is_some() {
                    self.part.cursor.places.remove(node);
                }
                self.waiting.remove(node);
                false
            }
        }
    }

    fn advance(&mut self, node: &str, bytes: u64, mark: u32) {
        if bytes > 0
            && let Some(place) = self.part.cursor.places.get_mut(node)
        {
            place.offset += bytes;
            place.mark = mark;
        }
    }

    fn has_room(&self, found: &Found) -> bool {
        self.left.entries > 0 && (!self.has_shown || found.line.len() <= self.left.line_bytes)
    }

    fn is_used_up(&self) -> bool {
        self.left.read_bytes == 0 || self.archive.clock.now() >= self.deadline
    }
}

/// Whether the segment that follows `read` exists, and another one is taken for its successor.
fn is_one_between(read: &Segment, next: u64) -> bool {
    let follows = SegmentName { node: read.name.node.clone(), sequence: read.name.sequence + 1 };
    next > follows.sequence && read.path.with_file_name(follows.file_name()).exists()
}

/// The checksum of the end of a line.
pub(super) fn mark(line: &[u8]) -> u32 {
    crc32c::crc32c(line.get(line.len().saturating_sub(MARKED)..).unwrap_or_default())
}

/// Whether the segment is still the one in which the place was.
fn is_before(segment: &Segment, place: &LogPosition) -> bool {
    if place.mark == 0 || segment.bytes <= place.offset {
        return segment.bytes >= place.offset;
    }
    let read = || {
        let mut file = File::open(&segment.path)?;
        // Its line feed stands before the place.
        file.seek(SeekFrom::Start(place.offset.saturating_sub(MARKED as u64 + 1)))?;
        let mut bytes = [0; MARKED];
        file.read_exact(&mut bytes)?;
        io::Result::Ok(mark(&bytes))
    };
    // One that cannot be read is told of when it is read.
    read().map_or(true, |mark| mark == place.mark)
}
