//! The lines that a sink gets at once: some that follow each other in one segment. Those between two places of a segment are
//! always the same, so that a batch which is sent again has the bytes of before.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::super::archive::{self, Archive, Bounds};
use super::super::cursor::{LogCursor, Place};
use super::super::filter::Filter;
use super::super::reader::{Found, found};
use super::super::scan::{Lines, Raw};
use super::super::segment::SegmentName;
use super::super::store::StoreError;
use super::place::Stretch;
use crate::time::{Span, Tick};

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
    pub(super) stretch: Stretch,
    /// Its lines, each with its line feed.
    pub(super) body: Bytes,
    /// The same of the same bytes, and of no others.
    pub(super) mark: Arc<str>,
    /// When the first of its lines was written.
    pub(super) oldest: Tick,
}

/// The outcome of a reading.
#[derive(Debug)]
pub(super) enum Next {
    Batch(Batch),
    /// There are no lines up to here; whether that is the log's end.
    Nothing(LogCursor, bool),
}

/// Reads the batch behind a cursor.
pub(super) fn next(archive: &Archive, from: &LogCursor, lines: usize) -> Result<Next, StoreError> {
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
        Some(gathering) => Next::Batch(gathering.end()),
        None => Next::Nothing(part.cursor, part.is_end),
    })
}

/// Reads the batch of that stretch; `None` if it is gone.
pub(super) fn again(directory: &Path, stretch: &Stretch) -> Result<Option<Batch>, StoreError> {
    let name = SegmentName { node: stretch.node.clone(), sequence: stretch.sequence };
    let path = directory.join(name.file_name());
    let mut file = match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(StoreError::io("open", &path))?,
    };
    file.seek(SeekFrom::Start(stretch.from)).map_err(StoreError::io("read", &path))?;
    // The file says how long it is, and may say anything.
    let length = stretch.to.saturating_sub(stretch.from).min(MAX_READ);
    let mut lines = Lines::new(file.take(length), Vec::new());
    let (mut body, mut oldest, mut count) = (Vec::new(), None, 0);
    loop {
        match lines.next_line().map_err(StoreError::io("read", &path))? {
            Raw::Line(line) => {
                if let Some(found) = found(line) {
                    oldest.get_or_insert(found.entry.at());
                    put(&mut body, &found);
                    count += 1;
                }
            }
            Raw::TooLong => {}
            Raw::End { .. } => break,
        }
    }
    let Some(oldest) = oldest else { return Ok(None) };
    Ok(Some(batch(Stretch { lines: count, ..stretch.clone() }, body, oldest)))
}

fn batch(stretch: Stretch, body: Vec<u8>, oldest: Tick) -> Batch {
    let digest = Sha256::digest(&body);
    let digits: Vec<String> = digest.iter().take(MARK).map(|byte| format!("{byte:02x}")).collect();
    Batch { stretch, body: body.into(), mark: digits.concat().into(), oldest }
}

fn put(body: &mut Vec<u8>, found: &Found) {
    body.extend_from_slice(found.line.as_bytes());
    body.push(b'\n');
}

/// A batch that is being read.
struct Gathering {
    stretch: Stretch,
    body: Vec<u8>,
    oldest: Tick,
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
        let stretch = Stretch {
            node: node.clone(),
            sequence: place.sequence,
            from: place.offset - length,
            to: place.offset,
            lines: 1,
            then: cursor.clone(),
        };
        let mut body = Vec::new();
        put(&mut body, found);
        Some(Self { stretch, body, oldest: found.entry.at() })
    }

    /// Takes a line in if it follows in the same segment.
    fn add(&mut self, found: &Found, cursor: &LogCursor) -> bool {
        let Stretch { node, sequence, to, lines, then, .. } = &mut self.stretch;
        let mark = archive::mark(found.line.as_bytes());
        let follows = |place: &&Place| place.sequence == *sequence && place.offset > *to && place.mark == mark;
        let Some(place) = cursor.places.get(node).filter(follows) else { return false };
        (*to, *lines) = (place.offset, *lines + 1);
        if let Some(own) = then.places.get_mut(node) {
            *own = *place;
        }
        put(&mut self.body, found);
        true
    }

    fn end(self) -> Batch {
        batch(self.stretch, self.body, self.oldest)
    }
}
