//! A disk for tests that fails on demand.

use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};

use super::segment::{Disk, Files, SegmentFile};

/// Shared between the test and the disk that it gave away.
#[derive(Clone, Default)]
pub(super) struct Faults(Arc<(Mutex<FaultState>, Condvar)>);

#[derive(Default)]
pub(super) struct FaultState {
    /// Bytes until the disk is full; none is no bound.
    pub(super) room: Option<usize>,
    /// Opening fails.
    pub(super) no_open: bool,
    /// Cutting fails.
    pub(super) no_truncate: bool,
    /// Syncing fails.
    pub(super) no_sync: bool,
    /// Writing waits.
    pub(super) blocked: bool,
    /// Writes that began.
    pub(super) writes: u64,
    /// Syncs asked for.
    pub(super) syncs: u64,
    /// Openings asked for.
    pub(super) opens: u64,
}

impl Faults {
    pub(super) fn disk(&self) -> Box<dyn Disk> {
        Box::new(self.clone())
    }

    pub(super) fn set(&self, change: impl FnOnce(&mut FaultState)) {
        change(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
    }

    pub(super) fn get<T>(&self, look: impl FnOnce(&FaultState) -> T) -> T {
        look(&self.0.0.lock().unwrap())
    }

    pub(super) fn wait_until(&self, holds: impl Fn(&FaultState) -> bool) {
        let state = self.0.0.lock().unwrap();
        drop(self.0.1.wait_while(state, |state| !holds(state)).unwrap());
    }
}

impl Disk for Faults {
    fn open(&self, path: &Path, new: bool) -> io::Result<Box<dyn SegmentFile>> {
        self.set(|state| state.opens += 1);
        if self.get(|state| state.no_open) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(Box::new(FaultyFile { faults: self.clone(), file: Files.open(path, new)? }))
    }
}

struct FaultyFile {
    faults: Faults,
    file: Box<dyn SegmentFile>,
}

impl SegmentFile for FaultyFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.faults.set(|state| state.writes += 1);
        self.faults.wait_until(|state| !state.blocked);
        let room = self.faults.get(|state| state.room).unwrap_or(usize::MAX);
        if room == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        // A real disk may take a write in pieces.
        let written = self.file.write(&bytes[..bytes.len().min(room).min(10_000)])?;
        self.faults.set(|state| state.room = state.room.map(|room| room - written));
        Ok(written)
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        if self.faults.get(|state| state.no_truncate) {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        self.file.truncate(length)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.faults.set(|state| state.syncs += 1);
        if self.faults.get(|state| state.no_sync) { Err(io::ErrorKind::Other.into()) } else { self.file.sync() }
    }

    fn is_deleted(&self) -> bool {
        self.file.is_deleted()
    }
}
