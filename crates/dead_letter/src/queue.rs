//! The queue between the request path and the writer: bounded in records and in bytes, and exact about what it loses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::record::Draft;
use super::tally::Drops;

/// Records that may wait for the writer; one more is a counted drop.
pub(super) const MAX_QUEUED: u64 = 8192;
/// Bytes that they may hold together; more is a counted drop.
pub(super) const MAX_QUEUED_BYTES: u64 = 16 * 1024 * 1024;
/// Room for wake-ups beside the records.
const WAKES: usize = 8;

/// Counters of the fate of the offered requests so far. With what waits in the queue and in flood control's counters,
/// these add up to what was offered.
#[derive(Default)]
pub(super) struct Counters {
    /// Records on disk.
    pub(super) written: AtomicU64,
    /// Requests counted in aggregates on disk.
    pub(super) aggregated: AtomicU64,
    pub(super) queue_full: AtomicU64,
    pub(super) disk_error: AtomicU64,
    records: AtomicU64,
    bytes: AtomicU64,
    /// Set once: from then on every offer is a drop.
    pub(super) closed: AtomicBool,
}

impl Counters {
    pub(super) fn drops(&self) -> Drops {
        Drops {
            queue_full: self.queue_full.load(Ordering::Relaxed),
            disk_error: self.disk_error.load(Ordering::Relaxed),
        }
    }

    /// How many records and bytes wait.
    pub(super) fn queued(&self) -> (u64, u64) {
        (self.records.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

/// A message in the queue.
pub(super) enum QueueMessage {
    /// A record to write.
    Record(QueueSlot),
    /// Look at the orders.
    Wake,
}

/// A queue of its own.
pub(super) fn queue() -> (SyncSender<QueueMessage>, Receiver<QueueMessage>) {
    sync_channel(MAX_QUEUED as usize + WAKES)
}

/// A place in the queue. Whichever way it ends but by [`Place::take`], its record is a counted drop: a full channel, a
/// receiver that is gone, a queue thrown away with its records.
pub(super) struct QueueSlot {
    counters: Arc<Counters>,
    weight: u64,
    charged: u64,
    draft: Option<Box<Draft>>,
}

impl QueueSlot {
    /// Takes a place, before anything is built for it; `None` if the queue is full, and then the drop has been counted.
    pub(super) fn reserve(counters: &Arc<Counters>) -> Option<Self> {
        let before = counters.records.fetch_add(1, Ordering::Relaxed);
        let place = Self { counters: Arc::clone(counters), weight: 0, charged: 0, draft: None };
        if before < MAX_QUEUED && counters.bytes.load(Ordering::Relaxed) < MAX_QUEUED_BYTES {
            return Some(place);
        }
        counters.queue_full.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Puts the record in; `None` if the queue holds too many bytes, and then the drop has been counted.
    pub(super) fn fill(mut self, draft: Draft, charged: u64) -> Option<Self> {
        self.charged = charged;
        self.weight = draft.weight();
        self.draft = Some(Box::new(draft));
        let before = self.counters.bytes.fetch_add(self.weight, Ordering::Relaxed);
        (before.saturating_add(self.weight) <= MAX_QUEUED_BYTES).then_some(self)
    }

    /// Takes the record out, and how many bytes flood control has charged for it.
    pub(super) fn take(mut self) -> Option<(Box<Draft>, u64)> {
        self.draft.take().map(|draft| (draft, self.charged))
    }
}

impl Drop for QueueSlot {
    fn drop(&mut self) {
        self.counters.records.fetch_sub(1, Ordering::Relaxed);
        self.counters.bytes.fetch_sub(self.weight, Ordering::Relaxed);
        if self.draft.is_some() {
            self.counters.queue_full.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::draft;
    use super::*;

    fn offer(sender: &SyncSender<QueueMessage>, counters: &Arc<Counters>, draft: Draft) -> bool {
        let place = QueueSlot::reserve(counters).and_then(|place| place.fill(draft, 0));
        place.is_some_and(|place| sender.try_send(QueueMessage::Record(place)).is_ok())
    }

    #[test]
    fn holds_8192_records_and_no_more() {
        let counters = Arc::new(Counters::default());
        let (sender, receiver) = queue();
        assert_eq!((0..8200).filter(|_| offer(&sender, &counters, draft())).count(), 8192);
        assert_eq!(counters.queued().0, 8192);
        assert_eq!(counters.drops().queue_full, 8);
        drop(receiver);
        assert_eq!(counters.queued(), (0, 0));
        assert_eq!(counters.drops().queue_full, 8200, "what the queue held when it was thrown away");
    }

    #[test]
    fn holds_16_mebibytes_and_no_more() {
        let counters = Arc::new(Counters::default());
        let (sender, receiver) = queue();
        let mut large = draft();
        large.path = "x".repeat(1024 * 1024).into();
        let weight = large.weight();
        assert!(weight > 1024 * 1024);
        let fitting = (0..20).filter(|_| offer(&sender, &counters, large.clone())).count() as u64;
        assert_eq!(fitting, MAX_QUEUED_BYTES / weight);
        assert_eq!(counters.drops().queue_full, 20 - fitting);
        assert_eq!(counters.queued(), (fitting, fitting * weight));
        let Ok(QueueMessage::Record(place)) = receiver.try_recv() else { panic!("a record") };
        assert_eq!(place.take().unwrap().0.path.text.len(), 1024 * 1024);
        assert!(offer(&sender, &counters, draft()));
        assert_eq!(counters.drops().queue_full, 20 - fitting, "a record that was taken is no drop");
    }

    #[test]
    fn an_offer_to_a_queue_without_a_receiver_is_a_drop() {
        let counters = Arc::new(Counters::default());
        let (sender, receiver) = queue();
        drop(receiver);
        assert!(!offer(&sender, &counters, draft()));
        assert_eq!(counters.drops(), Drops { queue_full: 1, disk_error: 0 });
        assert_eq!(counters.queued(), (0, 0));
    }
}
