//! The segments of deferred requests on the disk: `DIRECTORY/deferred-SEQUENCE.jsonl`, written by one process at a time.
//!
//! Every start begins a new segment, and what a crash has left unfinished at the end of the last one was promised to nobody. A
//! write that fails is taken back; one that cannot be is left behind, in a segment that nobody writes to any more.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use super::index::{Index, LinePosition};
use super::line::{self, DeferredLine, Totals};
use crate::segment::{self, Disk, Segment, SegmentFile, SegmentName, write_all};
use crate::store::{Lock, StoreError, lock};
use sluicegate_time::{Span, Tick, WallOffset};

const LOCK: &str = ".lock";
const NODE: &str = "deferred";
/// No line is longer: a request with the largest body that may be kept, and its head.
pub(super) const MAX_LINE: usize = 16 * 1024 * 1024;

/// When another segment begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rotation {
    pub(super) bytes: u64,
    pub(super) age: Span,
}

/// The directory, which is locked while this lives.
pub(super) struct Files {
    directory: PathBuf,
    disk: Box<dyn Disk>,
    active: Option<Active>,
    next: u64,
    /// Makes the times of ticks that lines have.
    offset: WallOffset,
    _lock: Lock,
}

struct Active {
    number: u64,
    file: Box<dyn SegmentFile>,
    length: u64,
    opened: Tick,
    /// Whether the disk may not have all of it yet.
    is_unsynced: bool,
}

/// Lines that were appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Appended {
    pub(super) segment: u64,
    /// Where the first of them is.
    pub(super) offset: u64,
    /// The bytes by which the segment grew.
    pub(super) bytes: u64,
}

/// The findings when a directory was opened, but for requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Lines that cannot be read.
    pub(super) damaged: u64,
}

impl Files {
    /// Makes the directory and locks it; then `index` learns what is there. An error gives the disk back.
    pub(super) fn open(
        directory: &Path,
        disk: Box<dyn Disk>,
        index: &mut Index,
        offset: &WallOffset,
    ) -> Result<(Self, Found), (StoreError, Box<dyn Disk>)> {
        match Self::take(directory, index, offset) {
            Ok((lock, next, found)) => {
                let directory = directory.to_owned();
                Ok((Self { directory, disk, active: None, next, offset: offset.clone(), _lock: lock }, found))
            }
            Err(error) => Err((error, disk)),
        }
    }

    fn take(directory: &Path, index: &mut Index, offset: &WallOffset) -> Result<(Lock, u64, Found), StoreError> {
        segment::make_directory(directory).map_err(StoreError::io("make", directory))?;
        let lock = lock(&directory.join(LOCK))?.ok_or_else(|| StoreError::InUse(directory.to_owned()))?;
        let mut last = 0;
        let found = scan(directory, offset, &mut |visit| match visit {
            Visit::Segment(number, bytes) => {
                last = number;
                index.begin(number);
                index.grew(number, bytes);
            }
            Visit::Line(line, place) => learn(line, place, index),
        })?;
        Ok((lock, last + 1, found))
    }

    /// The segment that is written to, or will be.
    pub(super) fn active(&self) -> u64 {
        self.active.as_ref().map_or(self.next, |active| active.number)
    }

    /// Appends whole lines. With `sync` they are durable then, else after [`sync`](Self::sync); the death of this process takes
    /// them in neither case. `totals` are those of before.
    pub(super) fn append(
        &mut self,
        lines: &[u8],
        totals: &Totals,
        rotation: &Rotation,
        sync: bool,
        now: Tick,
    ) -> Result<Appended, StoreError> {
        self.rotate(rotation, now);
        if self.active.is_none() {
            self.active = Some(self.begin(now)?);
        }
        let directory = self.directory.clone();
        let Some(active) = &mut self.active else { return Err(StoreError::InUse(directory)) };
        let path = path(&directory, active.number);
        let mut bytes = Vec::new();
        if active.length == 0 {
            line::write_begin(&mut bytes, totals, self.offset.wall(now));
        }
        let offset = active.length + bytes.len() as u64;
        bytes.extend_from_slice(lines);
        let written = write_all(active.file.as_mut(), &bytes).map_err(|(_, error)| error);
        let durable = written.and_then(|()| if sync { active.file.sync() } else { Ok(()) });
        if let Err(error) = durable {
            // Nobody was told of it: what is there of it must not be found by the next process.
            if active.file.truncate(active.length).is_err() || active.file.sync().is_err() {
                self.active = None;
            }
            return Err(StoreError::io("write", &path)(error));
        }
        let bytes = bytes.len() as u64;
        active.length += bytes;
        active.is_unsynced = !sync;
        Ok(Appended { segment: active.number, offset, bytes })
    }

    /// Whether there are lines that are not durable.
    pub(super) fn is_unsynced(&self) -> bool {
        self.active.as_ref().is_some_and(|active| active.is_unsynced)
    }

    /// Makes all lines durable.
    pub(super) fn sync(&mut self) -> Result<(), StoreError> {
        let Some(active) = self.active.as_mut().filter(|active| active.is_unsynced) else { return Ok(()) };
        active.is_unsynced = false;
        active.file.sync().map_err(StoreError::io("write", &path(&self.directory, active.number)))
    }

    /// Removes a segment.
    pub(super) fn remove(&self, number: u64) -> Result<(), StoreError> {
        let path = path(&self.directory, number);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StoreError::io("remove", &path)(error)),
            _ => Ok(()),
        }
    }

    fn rotate(&mut self, rotation: &Rotation, now: Tick) {
        let is_over = |active: &mut Active| {
            let is_full = active.length >= rotation.bytes || now.since(active.opened) >= rotation.age;
            is_full || active.file.is_deleted()
        };
        if let Some(mut last) = self.active.take_if(is_over)
            && last.is_unsynced
            && let Err(error) = last.file.sync()
        {
            tracing::warn!(target: "sluicegate::dead_letter::deferred::files", %error, "what was sent of deferred requests may be sent again if the machine stops now");
        }
    }

    fn begin(&mut self, now: Tick) -> Result<Active, StoreError> {
        segment::make_directory(&self.directory).map_err(StoreError::io("make", &self.directory))?;
        let number = self.next;
        let path = path(&self.directory, number);
        let file = self.disk.open(&path, true).map_err(StoreError::io("make", &path))?;
        self.next += 1;
        Ok(Active { number, file, length: 0, opened: now, is_unsynced: false })
    }
}

/// A part of a directory.
pub(super) enum Visit {
    /// A segment, by its number, and its bytes.
    Segment(u64, u64),
    /// A line of it.
    Line(DeferredLine, LinePosition),
}

/// Shows `visit` all segments of a directory and their lines, in their order.
pub(super) fn scan(directory: &Path, offset: &WallOffset, visit: &mut dyn FnMut(Visit)) -> Result<Found, StoreError> {
    let mut found = Found::default();
    for segment in segments(directory)? {
        let number = segment.name.sequence;
        visit(Visit::Segment(number, segment.bytes));
        match File::open(&segment.path) {
            Ok(file) => {
                read_segment(file, (number, offset), visit, &mut found)
                    .map_err(StoreError::io("read", &segment.path))?;
            }
            // It was removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(StoreError::io("read", &segment.path)(error)),
        }
    }
    Ok(found)
}

fn segments(directory: &Path) -> Result<Vec<Segment>, StoreError> {
    let mut segments = match segment::list(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        listed => listed.map_err(StoreError::io("read", directory))?,
    };
    segments.retain(|segment| segment.name.node == NODE);
    Ok(segments)
}

/// Whether there is a segment in a directory.
pub(super) fn has_any(directory: &Path) -> bool {
    segments(directory).is_ok_and(|segments| !segments.is_empty())
}

fn read_segment(
    file: File,
    (number, clock): (u64, &WallOffset),
    visit: &mut dyn FnMut(Visit),
    found: &mut Found,
) -> io::Result<()> {
    let mut reader = BufReader::with_capacity(256 * 1024, file);
    let (mut offset, mut bytes, mut is_cut) = (0, Vec::new(), false);
    loop {
        bytes.clear();
        let length = reader.by_ref().take(MAX_LINE as u64).read_until(b'\n', &mut bytes)?;
        if length == 0 {
            return Ok(());
        }
        let was_cut = std::mem::replace(&mut is_cut, bytes.last() != Some(&b'\n'));
        let place = LinePosition { segment: number, offset, length: u32::try_from(length).unwrap_or(u32::MAX) };
        offset += length as u64;
        // The rest of a line that is too long, or the end that a crash has left.
        let whole = bytes.strip_suffix(b"\n").filter(|_| !was_cut);
        match whole.map(|line| line::read(line, clock)) {
            Some(Some(line)) => visit(Visit::Line(line, place)),
            Some(None) => found.damaged += 1,
            None => {}
        }
    }
}

fn learn(line: DeferredLine, place: LinePosition, index: &mut Index) {
    match line {
        DeferredLine::Begins(totals) => index.found_begin(place.segment, &totals),
        DeferredLine::Request { id, at, method: _, shown, is_copy } => {
            index.found_request(id, &shown, place, is_copy, at);
        }
        DeferredLine::End { id, ended, has_answer } => index.end(id, ended, has_answer.then_some(place)),
    }
}

/// The line at a place, without its line feed.
pub(super) fn read_at(directory: &Path, place: LinePosition) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; place.length as usize];
    File::open(path(directory, place.segment))?.read_exact_at(&mut bytes, place.offset)?;
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    Ok(bytes)
}

fn path(directory: &Path, number: u64) -> PathBuf {
    directory.join(SegmentName { node: NODE.to_owned(), sequence: number }.file_name())
}
