//! The state that the two threads of alerts and their handle share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::mark::{Crossing, OpenRecords};
use super::outbox::Outbox;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct AlertShared {
    outbox: Mutex<Outbox>,
    /// Rings when there is something new in the outbox, or it is closed.
    pub(super) bell: Notify,
    closed: AtomicBool,
    pub(super) figures: AlertFigures,
}

impl AlertShared {
    pub(super) fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.bell.notify_one();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

/// The figures that metrics show.
#[derive(Debug, Default)]
pub(super) struct AlertFigures {
    pub(super) records: AtomicU64,
    /// In nanoseconds; 0: there is none.
    pub(super) oldest: AtomicU64,
    /// By figure and state.
    crossings: [[AtomicU64; 2]; 4],
    pub(super) failures: AtomicU64,
}

impl AlertFigures {
    pub(super) fn stand(&self, standing: OpenRecords) {
        self.records.store(standing.records, Ordering::Relaxed);
        self.oldest.store(standing.oldest.map_or(0, sluicegate_time::Wall::as_nanos), Ordering::Relaxed);
    }

    pub(super) fn count(&self, crossing: &Crossing) {
        if let Some(counter) = self.counter(crossing.figure as usize, crossing.state as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn counter(&self, figure: usize, state: usize) -> Option<&AtomicU64> {
        self.crossings.get(figure)?.get(state)
    }
}
