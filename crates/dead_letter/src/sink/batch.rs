//! The lines that a sink gets at once: some that follow each other in one segment. Those between two places of a segment are
//! always the same, so that a batch which is sent again has the bytes of before.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use base16ct::lower::encode_string;
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::super::archive::{self, Archive, Bounds};
use super::super::cursor::{LogCursor, LogPosition};
use super::super::filter::Filter;
use super::super::line::MAX_LINE;
use super::super::reader::{Found, found};
use super::super::scan::{LineSplitter, Raw};
use super::super::segment::SegmentName;
use super::super::store::StoreError;
use super::checkpoint::LogRange;
use sluicegate_time::{Span, Wall};

/// Lines of a batch.
pub(super) const MAX_LINES: usize = 1_000;
/// Bytes of a batch. A line may be longer, then it goes alone.
const MAX_BYTES: usize = 1 << 20;
/// Bytes of the log that are read for one.
const MAX_READ: u64 = 4 << 20;
/// Bytes of the digest that are its mark.
const MARK: usize = 16;

/// A batch as it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    pub(super) stretch: LogRange,
    /// Its lines, each with its line feed.
    pub(super) body: Bytes,
    lines: Vec<BatchLine>,
    /// Whether the log went on behind it.
    pub(super) has_more: bool,
}

/// A line of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BatchLine {
    /// Where it ends in its segment. The lengths of lines do not tell, as damaged ones between them are left out.
    end: u64,
    /// When it was written.
    at: Wall,
}

impl Batch {
    /// The same of the same bytes, and of no others.
    pub(super) fn mark(&self) -> Arc<str> {
        encode_string(&Sha256::digest(&self.body)[..MARK]).into()
    }

    /// When the first of its lines was written.
    pub(super) fn oldest(&self) -> Wall {
        self.lines.first().map_or(Wall::EPOCH, |line| line.at)
    }

    /// Its first lines, and the others. Nothing is read for it: their segment may be gone.
    pub(super) fn split(&self, lines: usize) -> (Self, Option<Self>) {
        let cut = lines.checked_sub(1).filter(|_| lines < self.lines.len()).and_then(|last| {
            let feed = memchr::memchr_iter(b'\n', &self.body).nth(last)?;
            Some((self.lines.split_at_checked(lines)?, self.lines.get(last)?.end, feed))
        });
        let Some(((first, others), end, feed)) = cut else { return (self.clone(), None) };
        let head = Self {
            stretch: self.stretch.up_to(end, lines, self.body.get(..feed).unwrap_or_default()),
            body: self.body.slice(..=feed),
            lines: first.to_vec(),
            has_more: true,
        };
        let tail = Self {
            stretch: LogRange { from: end, lines: others.len() as u64, ..self.stretch.clone() },
            body: self.body.slice(feed + 1..),
            lines: others.to_vec(),
            has_more: self.has_more,
        };
        (head, Some(tail))
    }
}

impl LogRange {
    /// As it is if it ends with that line, which ends there.
    fn up_to(&self, to: u64, lines: usize, line: &[u8]) -> Self {
        let mut then = self.then.clone();
        if let Some(own) = then.places.get_mut(&self.node) {
            (own.offset, own.mark) = (to, archive::mark(line));
        }
        Self { to, lines: lines as u64, then, ..self.clone() }
    }
}

/// The outcome of a reading.
#[derive(Debug)]
pub(super) enum NextBatch {
    Batch(Batch),
    /// There are no lines up to here; whether that is the log's end.
    Nothing(LogCursor, bool),
}

/// Reads the batch behind a cursor.
pub(super) fn next(archive: &Archive, from: &LogCursor, lines: usize) -> Result<NextBatch, StoreError> {
    let bounds = Bounds { entries: lines, line_bytes: MAX_BYTES, read_bytes: MAX_READ, time: Span::from_secs(1) };
    let mut gathering: Option<Gathering> = None;
    let mut is_open = true;
    let part = archive.read(Some(from), &Filter::default(), &bounds, &mut |found, cursor| {
        is_open &= match &mut gathering {
            None => {
                gathering = Gathering::begin(from, found, cursor);
                true
            }
            Some(gathering) => is_open && gathering.add(found, cursor),
        };
    })?;
    Ok(match gathering {
        Some(gathering) => NextBatch::Batch(gathering.end(!(part.is_end && is_open))),
        None => NextBatch::Nothing(part.cursor, part.is_end),
    })
}

/// The segments in which the next reading goes on before its place, because they were written anew.
pub(super) fn written_anew<'n>(from: &LogCursor, next: &'n NextBatch) -> Vec<(&'n str, u64)> {
    let (cursor, own) = match next {
        NextBatch::Batch(Batch { stretch, .. }) => (&stretch.then, Some((&stretch.node, stretch.from))),
        NextBatch::Nothing(cursor, _) => (cursor, None),
    };
    let is_anew = |(node, place): &(&String, &LogPosition)| {
        let begin = own.filter(|(own, _)| own == node).map_or(place.offset, |(_, from)| from);
        from.places.get(*node).is_some_and(|before| before.sequence == place.sequence && begin < before.offset)
    };
    cursor.places.iter().filter(is_anew).map(|(node, place)| (&**node, place.sequence)).collect()
}

/// Reads the batch of that stretch; `None` if it is gone.
pub(super) fn again(directory: &Path, stretch: &LogRange) -> Result<Option<Batch>, StoreError> {
    let name = SegmentName { node: stretch.node.clone(), sequence: stretch.sequence };
    let path = directory.join(name.file_name());
    let mut file = match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(StoreError::io("open", &path))?,
    };
    file.seek(SeekFrom::Start(stretch.from)).map_err(StoreError::io("read", &path))?;
    // The file of the place says how long it is, and may say anything.
    let (said, length) = (stretch.to.saturating_sub(stretch.from), MAX_READ + MAX_LINE as u64);
    let mut input = LineSplitter::new(file.take(said.min(length)), Vec::new());
    let (mut body, mut lines, mut end, mut last) = (Vec::new(), Vec::new(), stretch.from, String::new());
    loop {
        let raw = input.next_line().map_err(StoreError::io("read", &path))?;
        let found = match raw {
            Raw::Line(line) => found(line),
            Raw::TooLong => None,
            Raw::End { .. } => break,
        };
        end += input.taken();
        if let Some(found) = found {
            lines.push(BatchLine { end, at: found.entry.at() });
            put(&mut body, &found);
            last = found.line;
        }
    }
    let Some(BatchLine { end, .. }) = lines.last().copied() else { return Ok(None) };
    let stretch = if said > length {
        stretch.up_to(end, lines.len(), last.as_bytes())
    } else {
        LogRange { lines: lines.len() as u64, ..stretch.clone() }
    };
    Ok(Some(Batch { stretch, body: body.into(), lines, has_more: true }))
}

fn put(body: &mut Vec<u8>, found: &Found) {
    body.extend_from_slice(found.line.as_bytes());
    body.push(b'\n');
}

/// A batch that is being read.
struct Gathering {
    stretch: LogRange,
    body: Vec<u8>,
    lines: Vec<BatchLine>,
}

impl Gathering {
    /// With its first line; `cursor` is behind that.
    fn begin(from: &LogCursor, found: &Found, cursor: &LogCursor) -> Option<Self> {
        // Of several nodes whose places have moved, it is of the one that stands behind it.
        let (length, mark) = (found.line.len() as u64 + 1, archive::mark(found.line.as_bytes()));
        let mut places = cursor.places.iter();
        let (node, place) = places.find(|(node, place)| {
            place.mark == mark && place.offset >= length && from.places.get(*node) != Some(place)
        })?;
        let stretch = LogRange {
            node: node.clone(),
            sequence: place.sequence,
            from: place.offset - length,
            to: place.offset,
            lines: 1,
            then: cursor.clone(),
        };
        let mut body = Vec::new();
        put(&mut body, found);
        let line = BatchLine { end: place.offset, at: found.entry.at() };
        Some(Self { stretch, body, lines: vec![line] })
    }

    /// Takes a line in if it follows in the same segment.
    fn add(&mut self, found: &Found, cursor: &LogCursor) -> bool {
        let LogRange { node, sequence, to, lines, then, .. } = &mut self.stretch;
        let mark = archive::mark(found.line.as_bytes());
        let follows = |place: &&LogPosition| place.sequence == *sequence && place.offset > *to && place.mark == mark;
        let Some(place) = cursor.places.get(node).filter(follows) else { return false };
        (*to, *lines) = (place.offset, *lines + 1);
        self.lines.push(BatchLine { end: place.offset, at: found.entry.at() });
        if let Some(own) = then.places.get_mut(node) {
            *own = *place;
        }
        put(&mut self.body, found);
        true
    }

    fn end(self, has_more: bool) -> Batch {
        Batch { stretch: self.stretch, body: self.body.into(), lines: self.lines, has_more }
    }
}
