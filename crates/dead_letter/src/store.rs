//! The directory of one node's segments: its lock, the active segment, rotation, syncing and retention.
//!
//! Several processes may share a directory, as the old one and the new one do during a restart. Each takes a slot, the first
//! one that is free, and writes segments of its own series: `NODE` in slot 1, `NODE~2` in slot 2, and so on. The process of
//! slot 1 alone removes what is too old or too much; when it ends, another one takes its slot within a second, and its
//! segments.
//!
//! Invariants: a segment holds whole lines only, whatever the disk did (what a failed write left behind is cut off, or
//! the segment is sealed and never written again); the active segment is never removed; files of other nodes are never
//! touched.

use std::collections::VecDeque;
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::recovery::{Recovery, recover};
use super::reserve::{ByClass, ReasonClass, Reserve};
use super::scan::first_instant;
use super::segment::{
    Disk, Segment, SegmentFile, SegmentName, is_deleted, length_of, list, make_directory, modified, node_name, private,
    torn_path, write_all,
};
use sluicegate_config::{DeadLetter, Fsync};
use sluicegate_time::{Span, Tick, WallOffset};

const LOCK: &str = ".lock";
/// Processes that share a directory at once, at most.
pub(super) const MAX_SLOTS: u32 = 8;
/// Stands between the node and the slot: no node's name has it.
const SLOT_MARK: char = '~';
/// How often sealed segments are looked at again.
const LOOK_AGAIN: Span = Span::from_secs(60);

/// An error of the files, with its place.
#[derive(Debug)]
pub enum StoreError {
    /// As many other processes write into the directory as may.
    InUse(PathBuf),
    /// Another purge works in the directory.
    Purging(PathBuf),
    /// The file system refused something.
    Io {
        /// The action that was tried.
        doing: &'static str,
        /// With what.
        path: PathBuf,
        /// The error of the file system.
        source: io::Error,
    },
}

impl StoreError {
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse(directory) => write!(
                f,
                "the dead-letter directory {} is in use by {MAX_SLOTS} other gateways: wait until one that drains has ended, or give each its own",
                directory.display()
            ),
            Self::Purging(directory) => {
                write!(f, "another purge works in {}: wait until it has ended", directory.display())
            }
            Self::Io { doing, path, source } => write!(f, "dead letters: cannot {doing} {}: {source}", path.display()),
        }
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::InUse(_) | Self::Purging(_) => None,
            Self::Io { source, .. } => Some(source),
        }
    }
}

impl From<StoreError> for io::Error {
    fn from(error: StoreError) -> Self {
        let kind = match &error {
            StoreError::InUse(_) | StoreError::Purging(_) => io::ErrorKind::ResourceBusy,
            StoreError::Io { source, .. } => source.kind(),
        };
        Self::new(kind, error)
    }
}

/// A batch that did not get to the disk as a whole.
#[derive(Debug)]
pub(super) struct AppendError {
    /// How many bytes of it, whole lines, did.
    pub(super) kept: usize,
    pub(super) source: StoreError,
}

/// The directory; a slot of it is taken while this lives.
pub(super) struct SegmentStore {
    directory: PathBuf,
    node: String,
    disk: Box<dyn Disk>,
    slot: u32,
    lock: Lock,
    active: Option<Active>,
    sealed: VecDeque<Sealed>,
    reserve: Reserve,
    next_sequence: u64,
    /// When it last looked at what it sealed.
    looked: Option<Tick>,
}

struct Active {
    file: Box<dyn SegmentFile>,
    /// Not known of what was there before a restart.
    holds: Option<ByClass>,
    name: SegmentName,
    path: PathBuf,
    length: u64,
    opened: Tick,
    unsynced_since: Option<Tick>,
}

impl Active {
    /// Takes the lines in that end within the first `bytes`.
    fn grow(&mut self, bytes: usize, ends: &[(usize, ReasonClass)]) {
        self.length += bytes as u64;
        let Some(holds) = &mut self.holds else { return };
        let mut start = 0;
        for (end, class) in ends.iter().filter(|(end, _)| *end <= bytes) {
            holds.add(*class, (end - start) as u64);
            start = *end;
        }
    }
}

struct Sealed {
    path: PathBuf,
    holds: Option<ByClass>,
    /// Its torn tail included.
    bytes: u64,
    last_written: Tick,
}

impl SegmentStore {
    /// Makes the directory, takes a slot of it, and mends the node's last segment, which is then written on.
    pub(super) fn open(
        directory: &Path,
        node: &str,
        disk: Box<dyn Disk>,
    ) -> Result<(Self, Option<Recovery>), StoreError> {
        let directory = std::path::absolute(directory).map_err(StoreError::io("find", directory))?;
        let (slot, lock) = take_slot(&directory)?;
        let mut store = Self {
            node: node_name(node),
            disk,
            slot,
            lock,
            active: None,
            sealed: VecDeque::new(),
            reserve: Reserve::find(&directory, &node_name(node), &[]),
            next_sequence: 1,
            looked: None,
            directory,
        };
        let recovery = store.take_stock()?;
        Ok((store, recovery))
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn node(&self) -> &str {
        &self.node
    }

    /// The segment that is being written.
    pub(super) fn segment(&self) -> Option<&Path> {
        self.active.as_ref().map(|active| active.path.as_path())
    }

    /// Appends whole lines; `ends` are the offsets in `batch` behind each, and what each is.
    pub(super) fn append(
        &mut self,
        batch: &[u8],
        ends: &[(usize, ReasonClass)],
        fsync: Fsync,
        now: Tick,
    ) -> Result<(), AppendError> {
        let active = self.writable(now).map_err(|source| AppendError { kept: 0, source })?;
        let failure = match write_all(active.file.as_mut(), batch) {
            Ok(()) if fsync == Fsync::Always => match active.file.sync() {
                Ok(()) => None,
                Err(error) => Some((batch.len(), 0, "sync", error)),
            },
            Ok(()) => None,
            Err((written, error)) => {
                let whole =
                    ends.iter().map(|(end, _)| *end).take_while(|end| *end <= written).last().unwrap_or_default();
                Some((whole, whole, "write", error))
            }
        };
        let Some((whole, wanted, doing, error)) = failure else {
            active.grow(batch.len(), ends);
            if fsync != Fsync::Always {
                active.unsynced_since.get_or_insert(now);
            }
            return Ok(());
        };
        let source = StoreError::io(doing, &active.path)(error);
        // If even the cut fails, the whole lines are on the disk and stay; the torn rest is the last of its segment.
        let kept = if active.file.truncate(active.length + wanted as u64).is_ok() { wanted } else { whole };
        active.grow(kept, ends);
        self.abandon(now);
        Err(AppendError { kept, source })
    }

    /// Seals the active segment if it has grown too large or too old.
    pub(super) fn rotate(&mut self, settings: &DeadLetter, now: Tick) -> Result<(), StoreError> {
        let due = self.active.as_ref().is_some_and(|active| {
            active.length > 0
                && (active.length >= settings.rotate_size || now.since(active.opened) >= settings.rotate_age)
        });
        if due { self.seal(settings.fsync, now) } else { Ok(()) }
    }

    /// Forces what is written to the disk if the policy says so by now.
    pub(super) fn sync(&mut self, fsync: Fsync, now: Tick) -> Result<(), StoreError> {
        if self.sync_due(fsync).is_some_and(|due| now >= due) { self.sync_active(now) } else { Ok(()) }
    }

    /// When [`Store::sync`] is due.
    pub(super) fn sync_due(&self, fsync: Fsync) -> Option<Tick> {
        let Fsync::Interval(interval) = fsync else { return None };
        Some(self.active.as_ref()?.unsynced_since? + interval)
    }

    /// Ends the active segment; a later append starts the next.
    pub(super) fn seal(&mut self, fsync: Fsync, now: Tick) -> Result<(), StoreError> {
        let synced = if fsync == Fsync::Never { Ok(()) } else { self.sync_active(now) };
        self.abandon(now);
        synced
    }

    /// Whether another process has the first slot, and removes what is too old or too much.
    #[cfg(test)]
    pub(super) fn is_second(&self) -> bool {
        self.slot > 1
    }

    /// Takes the first slot if it is free by now, and all segments that nobody writes.
    fn look_for_first_slot(&mut self, settings: &DeadLetter, now: Tick) -> Result<(), StoreError> {
        let first = match lock_slot(&self.directory, 1) {
            Err(StoreError::InUse(_)) => return Ok(()),
            other => other?,
        };
        // Its own segment goes on in the other series.
        self.seal(settings.fsync, now)?;
        (self.slot, self.lock) = (1, first);
        let mut segments = list(&self.directory).map_err(StoreError::io("read", &self.directory))?;
        self.reserve = Reserve::find(&self.directory, &self.node, &segments);
        let last = segments.iter().filter(|segment| segment.name.node == self.node).map(|own| own.name.sequence).max();
        self.next_sequence = last.unwrap_or(0).saturating_add(1);
        segments.retain(|segment| segment.name.node == self.node);
        self.adopt(segments)?;
        self.adopt_series()
    }

    /// Takes the segments of series that no process writes.
    fn adopt_series(&mut self) -> Result<(), StoreError> {
        for slot in 2..=MAX_SLOTS {
            let series = series(&self.node, slot);
            let mut segments = list(&self.directory).map_err(StoreError::io("read", &self.directory))?;
            segments.retain(|segment| segment.name.node == series);
            if segments.is_empty() {
                continue;
            }
            // Held while it looks, so that nobody begins to write meanwhile.
            match lock_slot(&self.directory, slot) {
                Err(StoreError::InUse(_)) => {}
                Err(other) => return Err(other),
                Ok(_held) => self.adopt(segments)?,
            }
        }
        Ok(())
    }

    /// Takes segments as sealed ones, the oldest first.
    fn adopt(&mut self, segments: Vec<Segment>) -> Result<(), StoreError> {
        for segment in segments {
            if self.sealed.iter().any(|sealed| sealed.path == segment.path) {
                continue;
            }
            recover(&segment.path).map_err(StoreError::io("mend", &segment.path))?;
            self.sealed.push_back(Sealed {
                holds: None,
                bytes: length_of(&segment.path) + length_of(&torn_path(&segment.path)),
                last_written: WallOffset::of_system().tick(modified(&segment.path)),
                path: segment.path,
            });
        }
        self.sealed.make_contiguous().sort_by_key(|sealed| sealed.last_written);
        Ok(())
    }

    /// Removes sealed segments, oldest first, until size and age are within bounds. Of one that goes for its size, lines of
    /// reasons that the rest holds too little of are kept ([`Reserve`]).
    pub(super) fn retain(&mut self, settings: &DeadLetter, now: Tick) -> Result<(), StoreError> {
        if self.slot > 1 {
            self.look_for_first_slot(settings, now)?;
        }
        if self.slot > 1 {
            return Ok(());
        }
        if self.looked.is_none_or(|last| now.since(last) >= LOOK_AGAIN) || self.total() > settings.max_total_size {
            self.looked = Some(now);
            self.look_again()?;
        }
        self.reserve.expire(settings.max_age, now)?;
        while let Some(oldest) = self.sealed.front() {
            if self.total() <= settings.max_total_size && now.since(oldest.last_written) <= settings.max_age {
                break;
            }
            let kept = self.keep_of_oldest(settings, now);
            self.remove_oldest()?;
            // A line that could not be kept is no reason for the log to grow.
            kept?;
        }
        while self.total() > settings.max_total_size && self.reserve.shrink()? {}
        Ok(())
    }

    /// Takes over what a purge does to sealed segments: it removes some and writes some anew, in another process.
    fn look_again(&mut self) -> Result<(), StoreError> {
        self.sealed.retain_mut(|sealed| {
            let bytes = length_of(&sealed.path) + length_of(&torn_path(&sealed.path));
            if bytes != sealed.bytes {
                (sealed.bytes, sealed.holds) = (bytes, None);
            }
            bytes > 0 || sealed.path.exists()
        });
        self.reserve.look_again();
        // One that retention removed while a purge wrote it anew is back. Without a directory there is none.
        let mut segments = list(&self.directory).unwrap_or_default();
        let active = self.active.as_ref().map(|active| active.name.sequence);
        let end = active.unwrap_or(self.next_sequence);
        segments.retain(|segment| {
            let is_own = segment.name.node == self.node && segment.name.sequence < end;
            is_own && !self.sealed.iter().any(|sealed| sealed.path == segment.path)
        });
        if segments.is_empty() { Ok(()) } else { self.adopt(segments) }
    }

    fn total(&self) -> u64 {
        let active = self.active.as_ref().map_or(0, |active| active.length);
        let sealed = self.sealed.iter().map(|sealed| sealed.bytes);
        sealed.fold(active, u64::saturating_add).saturating_add(self.reserve.bytes())
    }

    fn keep_of_oldest(&mut self, settings: &DeadLetter, now: Tick) -> Result<(), StoreError> {
        let Some(oldest) = self.sealed.front() else { return Ok(()) };
        let mut rest = ByClass::default();
        let others = self.sealed.iter().skip(1).map(|sealed| sealed.holds.as_ref());
        for holds in others.chain(self.active.iter().map(|active| active.holds.as_ref())).flatten() {
            rest.add_all(holds);
        }
        let is_too_old = now.since(oldest.last_written) > settings.max_age;
        if is_too_old || !Reserve::wants(oldest.holds.as_ref(), &rest, settings.max_total_size) {
            return Ok(());
        }
        let source = (oldest.path.as_path(), oldest.last_written);
        self.reserve.keep(&*self.disk, source, &rest, settings.max_total_size)
    }

    fn remove_oldest(&mut self) -> Result<(), StoreError> {
        let Some(oldest) = self.sealed.front() else { return Ok(()) };
        remove(&oldest.path)?;
        remove(&torn_path(&oldest.path))?;
        self.sealed.pop_front();
        Ok(())
    }

    /// Finds what the node has written before.
    fn take_stock(&mut self) -> Result<Option<Recovery>, StoreError> {
        let mut segments = list(&self.directory).map_err(StoreError::io("read", &self.directory))?;
        let all = segments.clone();
        let own = series(&self.node, self.slot);
        segments.retain(|segment| segment.name.node == own);
        if self.slot > 1 {
            tracing::info!(target: "sluicegate::dead_letter::store", directory = %self.directory.display(), "another process writes dead letters here: sharing");
            self.next_sequence = segments.last().map_or(1, |last| last.name.sequence.saturating_add(1));
            return Ok(None);
        }
        self.reserve = Reserve::find(&self.directory, &self.node, &all);
        self.adopt_series()?;
        let Some(last) = segments.pop() else { return Ok(None) };
        self.next_sequence = last.name.sequence.saturating_add(1);
        for segment in segments {
            self.sealed.push_back(Sealed {
                holds: None,
                bytes: segment.bytes + length_of(&torn_path(&segment.path)),
                last_written: WallOffset::of_system().tick(modified(&segment.path)),
                path: segment.path,
            });
        }
        let recovery = recover(&last.path).map_err(StoreError::io("mend", &last.path))?;
        let file = self.disk.open(&last.path, false).map_err(StoreError::io("open", &last.path))?;
        self.active = Some(Active {
            file,
            holds: None,
            name: last.name,
            length: recovery.kept,
            opened: WallOffset::of_system().tick(first_instant(&last.path).unwrap_or_else(|| modified(&last.path))),
            path: last.path,
            unsynced_since: None,
        });
        Ok(Some(recovery))
    }

    /// The active segment, or a new one if there is none, or if someone deleted it.
    fn writable(&mut self, now: Tick) -> Result<&mut Active, StoreError> {
        let active = match self.active.take() {
            Some(active) if !active.file.is_deleted() => active,
            Some(active) => {
                tracing::warn!(target: "sluicegate::dead_letter::store", segment = %active.path.display(), "the dead-letter segment being written was deleted");
                self.create(now)?
            }
            None => self.create(now)?,
        };
        Ok(self.active.insert(active))
    }

    fn create(&mut self, now: Tick) -> Result<Active, StoreError> {
        if is_deleted(&self.lock.0) {
            self.lock = lock_slot(&self.directory, self.slot)?;
        }
        let name = SegmentName { node: series(&self.node, self.slot), sequence: self.next_sequence };
        let path = self.directory.join(name.file_name());
        let file = match self.disk.open(&path, true) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.next_sequence += 1;
                return Err(StoreError::io("create", &path)(error));
            }
            opened => opened.map_err(StoreError::io("create", &path))?,
        };
        self.next_sequence += 1;
        Ok(Active { file, holds: Some(ByClass::default()), name, path, length: 0, opened: now, unsynced_since: None })
    }

    /// Writes no more to the active segment. One without a line leaves no file behind, and gives its number back.
    fn abandon(&mut self, now: Tick) {
        let Some(active) = self.active.take() else { return };
        if active.length == 0 && remove(&active.path).is_ok() {
            self.next_sequence = active.name.sequence;
            return;
        }
        let bytes = active.length + length_of(&torn_path(&active.path));
        self.sealed.push_back(Sealed { path: active.path, holds: active.holds, bytes, last_written: now });
    }

    fn sync_active(&mut self, now: Tick) -> Result<(), StoreError> {
        let Some(active) = &mut self.active else { return Ok(()) };
        active.unsynced_since = None;
        let Err(error) = active.file.sync() else { return Ok(()) };
        let error = StoreError::io("sync", &active.path)(error);
        // After a failed fsync the kernel may call lost pages clean: only a new file can be trusted.
        self.abandon(now);
        Err(error)
    }
}

/// Holds the lock of a directory: until it is dropped, or until our death.
pub(super) struct Lock(pub(super) File);

impl Drop for Lock {
    fn drop(&mut self) {
        // To close the file is not enough while a process that is being started still has a copy of it: it has one between its
        // fork and its exec.
        let _ = self.0.unlock();
    }
}

/// The slot of a series.
pub(super) fn slot_of(series: &str) -> u32 {
    series.rsplit_once(SLOT_MARK).and_then(|(_, slot)| slot.parse().ok()).unwrap_or(1)
}

/// Whether a process has this slot. It makes no file.
pub(super) fn is_held(directory: &Path, slot: u32) -> Result<bool, StoreError> {
    let path = directory.join(series(LOCK, slot));
    let file = match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened.map_err(StoreError::io("open", &path))?,
    };
    Ok(try_lock(file, &path)?.is_none())
}

/// The series of segments of a slot.
fn series(node: &str, slot: u32) -> String {
    if slot == 1 { node.to_owned() } else { format!("{node}{SLOT_MARK}{slot}") }
}

/// The first slot that is free.
fn take_slot(directory: &Path) -> Result<(u32, Lock), StoreError> {
    for slot in 1..MAX_SLOTS {
        match lock_slot(directory, slot) {
            Err(StoreError::InUse(_)) => {}
            other => return Ok((slot, other?)),
        }
    }
    Ok((MAX_SLOTS, lock_slot(directory, MAX_SLOTS)?))
}

/// Makes the directory if need be, and takes this slot of it.
pub(super) fn lock_slot(directory: &Path, slot: u32) -> Result<Lock, StoreError> {
    make_directory(directory).map_err(StoreError::io("make", directory))?;
    lock(&directory.join(series(LOCK, slot)))?.ok_or_else(|| StoreError::InUse(directory.to_owned()))
}

/// The lock of a file, which is made if need be; `None` if another process has it.
pub(super) fn lock(path: &Path) -> Result<Option<Lock>, StoreError> {
    let file = private().write(true).create(true).truncate(false).open(path).map_err(StoreError::io("open", path))?;
    try_lock(file, path)
}

fn try_lock(file: File, path: &Path) -> Result<Option<Lock>, StoreError> {
    match file.try_lock() {
        Ok(()) => Ok(Some(Lock(file))),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(StoreError::io("lock", path)(error)),
    }
}

pub(super) fn remove(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StoreError::io("remove", path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_given_up_is_free_even_while_a_child_has_a_copy_of_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let held = lock_slot(directory.path(), 1).unwrap();
        assert!(matches!(lock_slot(directory.path(), 1), Err(StoreError::InUse(_))));
        // A fork shares the open file like this.
        let _copy = held.0.try_clone().unwrap();
        drop(held);
        assert!(lock_slot(directory.path(), 1).is_ok());
    }
}
