//! The part of the log that a sink does not have: how much it is, and how much of it went before it was sent.
//!
//! Lines are counted as they are written, because nobody can count those of a segment that is gone. So the counts are exact
//! for what was there at a look; of a segment that goes before it was counted only the segment is.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom};
use std::path::Path;

use super::super::cursor::{LogCursor, LogPosition, is_reserve};
use super::super::segment::Segment;
use super::checkpoint::LogRange;

/// Bytes that a look counts: a long log takes several.
const BUDGET: u64 = 64 << 20;
const CHUNK: usize = 64 * 1024;

/// The part that went before it was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lost {
    /// Files of which something was not sent, or may not have been.
    pub(super) segments: u64,
    /// Lines of them that were counted.
    pub(super) lines: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct LossCounter {
    nodes: BTreeMap<String, NodeLosses>,
}

#[derive(Debug)]
struct NodeLosses {
    /// The highest number of a segment that was seen.
    seen: u64,
    rests: BTreeMap<u64, Rest>,
}

/// The part of a segment that was not sent.
#[derive(Debug, PartialEq, Eq)]
struct Rest {
    from: u64,
    /// Up to here its lines are counted.
    counted: u64,
    lines: u64,
    /// How long it was.
    bytes: u64,
}

impl LossCounter {
    /// Takes in the log as it is, `cursor` being in front of what was not read yet.
    pub(super) fn look(&mut self, segments: &[Segment], cursor: &LogCursor) -> Lost {
        let mut there: BTreeMap<&str, Vec<&Segment>> = BTreeMap::new();
        for segment in segments.iter().filter(|segment| !is_reserve(&segment.name.node)) {
            there.entry(&segment.name.node).or_default().push(segment);
        }
        let mut lost = Lost::default();
        let mut budget = BUDGET;
        self.nodes.retain(|name, node| {
            let own = there.get(name.as_str()).map_or(&[][..], Vec::as_slice);
            node.forget_gone(own, &mut lost);
            !own.is_empty()
        });
        for (name, own) in there {
            let place = cursor.places.get(name);
            let Some((first, last)) = own.first().zip(own.last()) else { continue };
            let node = self.nodes.entry(name.to_owned()).or_insert_with(|| {
                // Nothing of a node that the cursor does not know was ever sent, nor seen.
                let seen = place.map_or(first.name.sequence, |place| place.sequence).saturating_sub(1);
                NodeLosses { seen, rests: BTreeMap::new() }
            });
            node.find_unseen(&own, &mut lost);
            node.seen = last.name.sequence;
            node.count(&own, place, &mut budget);
        }
        lost
    }

    /// A batch has been read.
    pub(super) fn take(&mut self, stretch: &LogRange) {
        if let Some(rest) = self.rest(stretch) {
            rest.from = stretch.to;
            rest.lines = rest.lines.saturating_sub(stretch.lines);
            if rest.counted <= rest.from {
                (rest.counted, rest.lines) = (rest.from, 0);
            }
        }
    }

    /// Whether a look has seen the segment of it.
    pub(super) fn knows(&self, stretch: &LogRange) -> bool {
        self.nodes.get(&stretch.node).is_some_and(|node| node.rests.contains_key(&stretch.sequence))
    }

    pub(super) fn lines(&self) -> u64 {
        self.rests().map(|rest| rest.lines).sum()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.rests().map(|rest| rest.bytes.saturating_sub(rest.from)).sum()
    }

    fn rests(&self) -> impl Iterator<Item = &Rest> {
        self.nodes.values().flat_map(|node| node.rests.values())
    }

    fn rest(&mut self, stretch: &LogRange) -> Option<&mut Rest> {
        self.nodes.get_mut(&stretch.node)?.rests.get_mut(&stretch.sequence)
    }
}

impl NodeLosses {
    fn forget_gone(&mut self, there: &[&Segment], lost: &mut Lost) {
        self.rests.retain(|sequence, rest| {
            let is_there = there.binary_search_by_key(sequence, |segment| segment.name.sequence).is_ok();
            if !is_there && (rest.lines > 0 || rest.counted < rest.bytes) {
                lost.segments += 1;
                lost.lines += rest.lines;
            }
            is_there
        });
    }

    /// Counts those that came and went between two looks, by the gap in the numbers.
    fn find_unseen(&mut self, there: &[&Segment], lost: &mut Lost) {
        let next = there.iter().map(|segment| segment.name.sequence).find(|sequence| *sequence > self.seen);
        lost.segments += next.map_or(0, |next| next - self.seen - 1);
    }

    fn count(&mut self, there: &[&Segment], place: Option<&LogPosition>, budget: &mut u64) {
        for segment in there {
            let sequence = segment.name.sequence;
            let from = match place {
                Some(place) if sequence < place.sequence => {
                    self.rests.remove(&sequence);
                    continue;
                }
                Some(place) if sequence == place.sequence => place.offset,
                _ => 0,
            };
            let fresh = || Rest { from, counted: from, lines: 0, bytes: 0 };
            let rest = self.rests.entry(sequence).or_insert_with(fresh);
            if segment.bytes < rest.counted || rest.from != from {
                // It was written anew, or the place went back, or on over damaged lines or by another process: it is counted
                // anew.
                *rest = fresh();
            }
            rest.bytes = segment.bytes;
            let end = segment.bytes.min(rest.counted.saturating_add(*budget));
            // One that is gone, or cannot be read, is told of by the code that reads its lines.
            if let Ok((lines, counted)) = count_lines(&segment.path, rest.counted, end) {
                *budget = budget.saturating_sub(counted - rest.counted);
                rest.lines += lines;
                rest.counted = counted;
            }
        }
    }
}

/// Line feeds between two places of a file, and where the last of them ends.
fn count_lines(path: &Path, from: u64, to: u64) -> io::Result<(u64, u64)> {
    if from >= to {
        return Ok((0, from));
    }
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(from))?;
    let mut input = file.take(to - from);
    let mut chunk = vec![0; CHUNK];
    let (mut lines, mut at, mut end) = (0, from, from);
    loop {
        let length = match input.read(&mut chunk) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        let read = chunk.get(..length).unwrap_or_default();
        if read.is_empty() {
            return Ok((lines, end));
        }
        for feed in memchr::memchr_iter(b'\n', read) {
            lines += 1;
            end = at + feed as u64 + 1;
        }
        at += length as u64;
    }
}
