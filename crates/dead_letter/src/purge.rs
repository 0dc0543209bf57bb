//! Removes what a filter asks for from the segments of a directory, of all nodes, while gateways write.
//!
//! A segment of which nothing is left is unlinked. One of which something is left is written anew beside it
//! (`NAME.jsonl.purge`, which no reader and no gateway takes for a segment), synced, and renamed over it: whenever the process
//! dies, the segment is as it was or as it is to be. The next purge removes what it leaves beside.
//!
//! A segment that a gateway writes to is left alone: the newest of each series of a slot that a process has (`store`
//! tells of slots). Older ones are sealed; their gateway looks at them again before it counts on them. The first slot
//! is held meanwhile, if it is free: who starts takes another one, begins segments of its own, and takes the first
//! slot, with all that is in the directory, when the purge has ended. No process writes on an older segment of another
//! slot.

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileExt, MetadataExt, fchown};
use std::path::{Path, PathBuf};

use super::entry::Entry;
use super::filter::Filter;
use super::line_prefilter::LinePrefilter;
use super::scan::{LineSplitter, Raw};
use super::segment::{Segment, SegmentName, length_of, list, private, torn_path};
use super::store::{Lock, MAX_SLOTS, StoreError, is_held, lock, lock_slot, remove, slot_of};
use sluicegate_files::sync_directory_of;

/// Held while a purge works.
const LOCK: &str = ".purge";
/// The end that is added to a segment's name for the one that is to take its place.
const NEW: &str = ".purge";
/// Bytes that are written at once.
const CHUNK: usize = 256 * 1024;

/// How much is removed, or is found and may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// Requests with a record of their own.
    pub records: u64,
    /// Aggregates.
    pub aggregates: u64,
    /// Requests that these count.
    pub aggregated: u64,
    /// Summaries of drops.
    pub gaps: u64,
    /// Lines that are no entries; only where all goes.
    pub damaged: u64,
    /// Bytes of all these, and of torn ends beside segments that go.
    pub bytes: u64,
    /// Segments of which nothing is left.
    pub unlinked: u64,
    /// Segments of which something is left.
    pub rewritten: u64,
}

impl Purged {
    /// How many lines.
    pub fn lines(&self) -> u64 {
        self.records + self.aggregates + self.gaps + self.damaged
    }

    fn add(&mut self, other: &Self) {
        let Self { records, aggregates, aggregated, gaps, damaged, bytes, unlinked, rewritten } = other;
        self.records += records;
        self.aggregates += aggregates;
        self.aggregated = self.aggregated.saturating_add(*aggregated);
        self.gaps += gaps;
        self.damaged += damaged;
        self.bytes += bytes;
        self.unlinked += unlinked;
        self.rewritten += rewritten;
    }

    fn take(&mut self, entry: Option<&Entry>, bytes: u64) {
        self.bytes += bytes;
        match entry {
            Some(Entry::Record(_)) => self.records += 1,
            Some(Entry::Aggregate(aggregate)) => {
                self.aggregates += 1;
                self.aggregated = self.aggregated.saturating_add(aggregate.count);
            }
            Some(Entry::Dropped(_)) => self.gaps += 1,
            None => self.damaged += 1,
        }
    }
}

/// The work that a purge is about to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PurgePlan {
    /// The lines that go.
    pub goes: Purged,
    /// How many segments there are.
    pub segments: u64,
    /// Segments that a gateway writes to, with what of each is asked for and stays.
    pub stays: Vec<(SegmentName, Purged)>,
}

/// A purge; no other one works in the directory while this lives.
pub struct Purge {
    filter: Filter,
    sieve: LinePrefilter,
    segments: Vec<Segment>,
    /// Of these, those that a gateway writes to.
    written: BTreeSet<SegmentName>,
    /// Those that have something that goes, and whether all of it does.
    found: Vec<(Segment, bool)>,
    _held: Vec<Lock>,
}

impl Purge {
    /// Looks at a directory, and sees to it that nobody begins to write to what is in it.
    ///
    /// # Errors
    /// It cannot be read or locked, or another purge works in it.
    pub fn open(directory: &Path, filter: Filter) -> Result<Self, StoreError> {
        let owner = fs::metadata(directory).map_err(StoreError::io("read", directory))?;
        let path = directory.join(LOCK);
        let own = lock(&path)?.ok_or_else(|| StoreError::Purging(directory.to_owned()))?;
        let mut held = vec![own];
        // Listed before slots are looked at: a process that begins later begins segments that are not listed, but in the first slot.
        let segments = list(directory).map_err(StoreError::io("read", directory))?;
        let mut busy = [false; MAX_SLOTS as usize + 1];
        for (slot, is_busy) in (0..).zip(&mut busy).skip(2) {
            *is_busy = is_held(directory, slot)?;
        }
        match lock_slot(directory, 1) {
            Ok(first) => held.push(first),
            Err(StoreError::InUse(_)) => busy[1] = true,
            Err(error) => return Err(error),
        }
        for lock in &held {
            // One that root has just made would keep the gateway out. Of another user's there is nothing to give.
            let _ = give(&lock.0, &owner);
        }
        let is_busy = |name: &SegmentName| busy.get(slot_of(&name.node) as usize).copied().unwrap_or(true);
        let is_newest =
            |at: usize, name: &SegmentName| segments.get(at + 1).is_none_or(|next| next.name.node != name.node);
        let written = segments.iter().map(|segment| &segment.name).enumerate();
        let written = written.filter(|(at, name)| is_newest(*at, name) && is_busy(name));
        let written = written.map(|(_, name)| name.clone()).collect();
        for segment in &segments {
            remove(&new_path(&segment.path))?;
        }
        let (sieve, found) = (LinePrefilter::of(&filter), Vec::new());
        Ok(Self { filter, sieve, segments, written, found, _held: held })
    }

    /// Finds what goes; removes nothing.
    ///
    /// # Errors
    /// A segment cannot be read.
    pub fn plan(&mut self) -> Result<PurgePlan, StoreError> {
        let mut plan = PurgePlan { segments: self.segments.len() as u64, ..PurgePlan::default() };
        let mut buffer = Vec::new();
        self.found.clear();
        for segment in &self.segments {
            let Some((file, _)) = open(&segment.path)? else { continue };
            let (mut goes, is_rest) = self.sift(&file, &segment.path, &mut buffer, |_| Ok(()))?;
            if self.written.contains(&segment.name) {
                plan.stays.push((segment.name.clone(), goes));
            } else if goes.lines() > 0 || self.filter.is_empty() {
                if is_rest {
                    goes.rewritten += 1;
                } else {
                    goes.unlinked += 1;
                    goes.bytes += length_of(&torn_path(&segment.path));
                }
                self.found.push((segment.clone(), !is_rest));
                plan.goes.add(&goes);
            }
        }
        Ok(plan)
    }

    /// Removes what [`Purge::plan`] found, whole segments first: they make room for those that are written anew.
    ///
    /// # Errors
    /// A segment cannot be written or removed. Those before it are done, it and those behind it are as they were.
    pub fn run(&self) -> Result<Purged, StoreError> {
        let mut purged = Purged::default();
        let mut buffer = Vec::new();
        for wanted in [true, false] {
            for (segment, _) in self.found.iter().filter(|(_, goes_whole)| *goes_whole == wanted) {
                purged.add(&self.purge(&segment.path, &mut buffer)?);
            }
        }
        Ok(purged)
    }

    fn purge(&self, path: &Path, buffer: &mut Vec<u8>) -> Result<Purged, StoreError> {
        // One that retention has removed meanwhile.
        let Some((file, metadata)) = open(path)? else { return Ok(Purged::default()) };
        let new = new_path(path);
        let mut out: Option<BufWriter<File>> = None;
        let sifted = self.sift(&file, path, buffer, |kept| {
            let failed = || StoreError::io("write", &new);
            let out = match &mut out {
                Some(out) => out,
                None => out.insert(BufWriter::with_capacity(CHUNK, create(&new, &metadata).map_err(failed())?)),
            };
            match kept {
                RewrittenPart::Line(line) => out.write_all(line).and_then(|()| out.write_all(b"\n")).map_err(failed()),
                RewrittenPart::Piece { start, length } => copy(&file, start, length, out).map_err(failed()),
            }
        });
        let replaced = sifted.and_then(|(mut goes, _)| {
            if let Some(out) = out {
                finish(out, &metadata).map_err(StoreError::io("write", &new))?;
                // Retention may have removed it: then it does not come back.
                if !fs::metadata(path).is_ok_and(|now| now.ino() == metadata.ino()) {
                    remove(&new)?;
                    return Ok(Purged::default());
                }
                fs::rename(&new, path).map_err(StoreError::io("replace", path))?;
                goes.rewritten += 1;
            } else {
                goes.bytes += length_of(&torn_path(path));
                remove(path)?;
                remove(&torn_path(path))?;
                goes.unlinked += 1;
            }
            Ok(goes)
        });
        if replaced.is_err() {
            let _ = fs::remove_file(&new);
        }
        sync_directory_of(path);
        replaced
    }

    /// Sums up what goes of a segment and gives away what is kept; says whether there is any.
    fn sift(
        &self,
        file: &File,
        path: &Path,
        buffer: &mut Vec<u8>,
        mut keep: impl FnMut(RewrittenPart<'_>) -> Result<(), StoreError>,
    ) -> Result<(Purged, bool), StoreError> {
        let all_goes = self.filter.is_empty();
        let mut goes = Purged::default();
        let (mut start, mut is_rest) = (0, false);
        let mut lines = LineSplitter::new(file, std::mem::take(buffer));
        loop {
            let is_end = match lines.next_line().map_err(StoreError::io("read", path))? {
                Raw::Line(line) => {
                    let entry = self.sieve.passes(line).then(|| Entry::parse(line)).flatten();
                    if all_goes || entry.as_ref().is_some_and(|entry| self.filter.matches(entry)) {
                        goes.take(entry.as_ref(), line.len() as u64 + 1);
                    } else {
                        is_rest = true;
                        keep(RewrittenPart::Line(line))?;
                    }
                    start += line.len() as u64 + 1;
                    continue;
                }
                Raw::TooLong => false,
                Raw::End { .. } => true,
            };
            // What is no line of ours, or not yet one, is kept as it is.
            let length = lines.taken();
            if length > 0 && all_goes {
                goes.take(None, length);
            } else if length > 0 {
                is_rest = true;
                keep(RewrittenPart::Piece { start, length })?;
            }
            start += length;
            if is_end {
                *buffer = lines.into_buffer();
                return Ok((goes, is_rest));
            }
        }
    }
}

/// The part of a segment that is written anew.
enum RewrittenPart<'a> {
    /// A line, without its line feed.
    Line(&'a [u8]),
    /// A part of the file that no buffer holds.
    Piece { start: u64, length: u64 },
}

fn new_path(segment: &Path) -> PathBuf {
    let mut path = segment.as_os_str().to_owned();
    path.push(NEW);
    path.into()
}

/// A segment, unless it is gone.
fn open(path: &Path) -> Result<Option<(File, Metadata)>, StoreError> {
    match File::open(path).and_then(|file| file.metadata().map(|metadata| (file, metadata))) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some).map_err(StoreError::io("open", path)),
    }
}

/// For the owner of the old one alone: a purge may be run by root, and the gateway by another user.
fn create(new: &Path, old: &Metadata) -> io::Result<File> {
    let file = private().write(true).create_new(true).open(new)?;
    give(&file, old)?;
    Ok(file)
}

fn give(file: &File, like: &Metadata) -> io::Result<()> {
    if file.metadata()?.uid() == like.uid() {
        return Ok(());
    }
    fchown(file, Some(like.uid()), Some(like.gid()))
}

fn copy(file: &File, mut start: u64, length: u64, out: &mut impl Write) -> io::Result<()> {
    let end = start + length;
    let mut piece = vec![0; CHUNK];
    while start < end {
        let room = usize::try_from(end - start).map_or(CHUNK, |left| left.min(CHUNK));
        let room = piece.get_mut(..room).unwrap_or_default();
        file.read_exact_at(room, start)?;
        out.write_all(room)?;
        start += room.len() as u64;
    }
    Ok(())
}

/// It keeps the time of the old one, by which it goes at its age.
fn finish(out: BufWriter<File>, old: &Metadata) -> io::Result<()> {
    let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.set_modified(old.modified()?)?;
    file.sync_all()
}
