//! Wakes the fleet thread when a shard has an urgent message for the store.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::Waker;

/// Whom to wake when there is something urgent.
#[derive(Debug, Default)]
pub(super) struct UrgentSignal {
    pub(super) is_urgent: AtomicBool,
    pub(super) listener: Mutex<Option<Waker>>,
    /// The shard from which is collected first the next time.
    pub(super) turn: AtomicUsize,
}

impl UrgentSignal {
    /// There is something urgent. Not under a shard's lock: waking runs code of the caller.
    pub(super) fn ring(&self) {
        if !self.is_urgent.swap(true, Ordering::AcqRel) {
            let listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(listener) = listener {
                listener.wake();
            }
        }
    }
}
