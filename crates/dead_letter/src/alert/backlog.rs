//! How many records of a directory are neither replayed nor gone, and how old the oldest of them is: counted from the files, so
//! that the writer has nothing to do with it.
//!
//! Each look reads what was appended to segments since the last one, and to the journals of replays. A segment that somebody
//! has rewritten is counted again, one that is gone counts no more.
//!
//! In memory are: of each segment the number of its records by the minute of their ids; of records that were sent
//! four bytes each. Where an id is sent twice, or its record is gone, that changes nothing.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::super::line::is_sound;
use super::super::segment::{SegmentName, list};
use super::super::store::StoreError;
use super::mark::OpenRecords;
use super::tail::{Tail, TailProgress};
use sluicegate_time::{Span, Wall};

/// Where replays tell what became of each record, below the log's directory.
const JOURNALS: &str = "replays";
/// The end of a journal's name.
const JOURNAL: &str = "jsonl";
/// The state of a record that needs no replay any more.
const SENT: &str = "sent";

/// Bytes that one look reads at most.
const BUDGET: u64 = 128 << 20;
/// Records that were sent of which one look hears at most.
const MAX_FRESH: usize = 64 * 1024;
/// Records that were sent that are known at most, those of the last minutes; 4 bytes each.
const MAX_SENT: usize = 1 << 20;

const MINUTE_MILLIS: u64 = 60_000;

/// A record by its id: the minute of its time, and a print of all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Id {
    minute: u32,
    print: u32,
}

impl Id {
    /// That of the text of a UUID of version 7, with its milliseconds.
    fn parse(text: &[u8]) -> Option<(Self, u64)> {
        let mut bits = 0_u128;
        let is_dash = |at: usize| [8, 13, 18, 23].contains(&at);
        if text.len() != 36 {
            return None;
        }
        for (at, byte) in text.iter().enumerate() {
            if is_dash(at) {
                continue;
            }
            bits = (bits << 4) | u128::from(char::from(*byte).to_digit(16)?);
        }
        let millis = (bits >> 80) as u64;
        let print = bits ^ (bits >> 32) ^ (bits >> 64) ^ (bits >> 96);
        Some((Self { minute: u32::try_from(millis / MINUTE_MILLIS).ok()?, print: print as u32 }, millis))
    }
}

/// A segment that has been read, up to its tail.
#[derive(Debug, Default)]
struct CountedSegment {
    tail: Tail,
    /// Records that wait, by the minutes of their ids.
    minutes: BTreeMap<u32, u64>,
    /// Of its oldest record, whether that waits or not; of the others a minute is all that is known.
    first_millis: Option<u64>,
    /// It was read from its beginning since the segments were read to their ends last: what has been sent is not counted in it.
    is_new: bool,
}

impl CountedSegment {
    fn oldest_millis(&self) -> Option<u64> {
        let minute = self.minutes.keys().next()?;
        let start = u64::from(*minute) * MINUTE_MILLIS;
        Some(self.first_millis.map_or(start, |first| first.max(start)))
    }

    /// Takes one record off that minute, if there is one.
    fn take(&mut self, minute: u32) -> bool {
        let Some(count) = self.minutes.get_mut(&minute) else { return false };
        *count -= 1;
        if *count == 0 {
            self.minutes.remove(&minute);
        }
        true
    }
}

/// The records that were sent, as far as they may still be in the log.
#[derive(Debug, Default)]
struct Sent {
    /// Sorted.
    prints: BTreeMap<u32, Vec<u32>>,
    count: usize,
}

impl Sent {
    /// Whether it is new.
    fn insert(&mut self, id: Id) -> bool {
        let prints = self.prints.entry(id.minute).or_default();
        let Err(at) = prints.binary_search(&id.print) else { return false };
        prints.insert(at, id.print);
        self.count += 1;
        while self.count > MAX_SENT
            && let Some((_, oldest)) = self.prints.pop_first()
        {
            self.count -= oldest.len();
        }
        true
    }

    fn has(&self, id: Id) -> bool {
        self.prints.get(&id.minute).is_some_and(|prints| prints.binary_search(&id.print).is_ok())
    }

    /// Forgets those before a minute.
    fn forget_before(&mut self, minute: u32) {
        while let Some(entry) = self.prints.first_entry().filter(|entry| *entry.key() < minute) {
            self.count -= entry.remove().len();
        }
    }
}

/// The count.
#[derive(Debug)]
pub(super) struct Backlog {
    directory: PathBuf,
    segments: BTreeMap<SegmentName, CountedSegment>,
    journals: BTreeMap<PathBuf, Tail>,
    sent: Sent,
    /// Those that journals told of at the beginning of this pass.
    fresh: BTreeSet<Id>,
    /// A pass over the segments that an earlier look began.
    pass: Option<TailProgress>,
}

impl Backlog {
    pub(super) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            segments: BTreeMap::new(),
            journals: BTreeMap::new(),
            sent: Sent::default(),
            fresh: BTreeSet::new(),
            pass: None,
        }
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Reads what is new. `None`: not all of it yet; the next look goes on.
    pub(super) fn look(&mut self) -> Result<Option<OpenRecords>, StoreError> {
        self.look_at(&mut BUDGET.clone())
    }

    fn look_at(&mut self, budget: &mut u64) -> Result<Option<OpenRecords>, StoreError> {
        // Journals first, and then all segments: what journals tell of is found there at the latest in this pass.
        let journals = match self.pass {
            Some(journals) => journals,
            None => self.read_journals(budget)?,
        };
        if self.segments.is_empty() && self.pass.is_none() {
            // Nothing has been counted that would have to be taken off.
            self.fresh.clear();
            if journals == TailProgress::Part {
                return Ok(None);
            }
        }
        self.pass = Some(journals);
        if self.read_segments(budget)? == TailProgress::Part {
            return Ok(None);
        }
        self.pass = None;
        for id in std::mem::take(&mut self.fresh) {
            // One that no segment has is gone already.
            let _ = self.segments.values_mut().any(|segment| !segment.is_new && segment.take(id.minute));
        }
        self.segments.values_mut().for_each(|segment| segment.is_new = false);
        let standing = self.standing();
        // A segment that is rewritten is counted again: what is there still, and was sent, has to be known.
        let oldest = self.segments.values().filter_map(|segment| segment.first_millis).min();
        self.sent.forget_before(oldest.map_or(u32::MAX, |millis| (millis / MINUTE_MILLIS) as u32));
        Ok((journals == TailProgress::All).then_some(standing))
    }

    fn standing(&self) -> OpenRecords {
        let records = self.segments.values().flat_map(|segment| segment.minutes.values()).sum();
        let oldest = self.segments.values().filter_map(CountedSegment::oldest_millis).min();
        OpenRecords { records, oldest: oldest.map(|millis| Wall::EPOCH + Span::from_millis(millis)) }
    }

    fn read_journals(&mut self, budget: &mut u64) -> Result<TailProgress, StoreError> {
        let directory = self.directory.join(JOURNALS);
        let files = journals(&directory).map_err(StoreError::io("read", &directory))?;
        self.journals.retain(|path, _| files.contains(path));
        let counts = !self.segments.is_empty();
        for path in files {
            let tail = self.journals.entry(path.clone()).or_default();
            let (sent, fresh) = (&mut self.sent, &mut self.fresh);
            let show = |line: &[u8]| {
                if let Some(id) = sent_id(line)
                    && sent.insert(id)
                    && counts
                {
                    fresh.insert(id);
                }
                fresh.len() < MAX_FRESH
            };
            // A record that was sent once stays so, whatever the file says now.
            match tail.read(&path, budget, || {}, show) {
                Ok(TailProgress::All) => {}
                Ok(TailProgress::Part) => return Ok(TailProgress::Part),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(StoreError::io("read", &path)(error)),
            }
        }
        Ok(TailProgress::All)
    }

    fn read_segments(&mut self, budget: &mut u64) -> Result<TailProgress, StoreError> {
        let found = match list(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            found => found.map_err(StoreError::io("read", &self.directory))?,
        };
        let names: BTreeSet<&SegmentName> = found.iter().map(|segment| &segment.name).collect();
        self.segments.retain(|name, _| names.contains(name));
        for segment in &found {
            let CountedSegment { tail, minutes, first_millis, is_new } =
                self.segments.entry(segment.name.clone()).or_default();
            let (sent, fresh) = (&self.sent, &mut self.fresh);
            let (begun, cleared) = (Cell::new(false), Cell::new(true));
            let show = |line: &[u8]| {
                if !cleared.replace(true) {
                    minutes.clear();
                    *first_millis = None;
                }
                let Some((id, millis)) = record_id(line) else { return true };
                *first_millis = Some(first_millis.map_or(millis, |first| first.min(millis)));
                if sent.has(id) {
                    // It was not counted, so it is not to be taken off.
                    fresh.remove(&id);
                } else {
                    *minutes.entry(id.minute).or_default() += 1;
                }
                true
            };
            let begin = || {
                begun.set(true);
                cleared.set(false);
            };
            let read = tail.read(&segment.path, budget, begin, show);
            if !cleared.get() {
                // It has no line.
                minutes.clear();
                *first_millis = None;
            }
            *is_new |= begun.get();
            match read {
                Ok(TailProgress::All) => {}
                Ok(TailProgress::Part) => return Ok(TailProgress::Part),
                Err(error) if error.kind() == io::ErrorKind::NotFound => drop(self.segments.remove(&segment.name)),
                Err(error) => return Err(StoreError::io("read", &segment.path)(error)),
            }
        }
        Ok(TailProgress::All)
    }
}

/// The journals of a directory; none if there is no such directory.
fn journals(directory: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        entries => entries?,
    };
    let is_journal = |path: &PathBuf| path.extension().is_some_and(|own| own == JOURNAL);
    let paths: io::Result<Vec<PathBuf>> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
    Ok(paths?.into_iter().filter(is_journal).collect())
}

/// A line of a journal, as far as it matters here.
#[derive(Deserialize)]
struct BacklogLine<'l> {
    #[serde(borrow)]
    id: &'l str,
    #[serde(borrow)]
    state: &'l str,
}

/// The record that a line of a journal calls sent.
fn sent_id(line: &[u8]) -> Option<Id> {
    let told: BacklogLine<'_> = serde_json::from_slice(line).ok()?;
    (told.state == SENT).then(|| Id::parse(told.id.as_bytes()))?.map(|(id, _)| id)
}

/// The record that a line of a segment is, by its id; `None`: it stands for many, or is damaged.
fn record_id(line: &[u8]) -> Option<(Id, u64)> {
    const START: &[u8] = b"{\"v\":1,\"id\":\"";
    const TIME: &[u8] = b"\",\"ts\":\"";
    const REASON: &[u8] = b"\",\"reason\":\"";
    let rest = line.strip_prefix(START)?;
    let (id, rest) = rest.split_at_checked(36)?;
    let rest = rest.strip_prefix(TIME)?;
    // In place of a reason the others have a mark.
    let end = memchr::memchr(b'"', rest)?;
    let reason = rest.get(end..)?.strip_prefix(REASON);
    // A request that is deferred is sent without anybody's doing.
    let is_record = reason.is_some_and(|reason| !reason.starts_with(b"deferred\""));
    Id::parse(id).filter(|_| is_record && is_sound(line))
}

#[cfg(test)]
mod tests;
