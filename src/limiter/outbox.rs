//! The messages between a shared limit and its fleet: the side of [`Limit`] that the fleet's thread calls.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::task::Waker;

use super::limit::{Limit, lock, wake_all};
use super::settle::{Answer, Collect, Outstanding, Wanted};
use super::sharing::FleetView;
use crate::time::Tick;

impl Limit {
    /// Collects the messages to the store, as of `now`. Each settle that it puts behind `wanted` is to be answered.
    pub fn collect(&self, round: Collect, now: Tick, wanted: &mut Vec<Wanted>) {
        // Before the shards are looked at: who rings from then on is heard the next time.
        let was_urgent = self.bell().is_urgent.swap(false, Ordering::AcqRel);
        if round == Collect::Urgent && !was_urgent {
            return;
        }
        for shard in self.made() {
            lock(shard).collect(round, now, wanted);
        }
    }

    /// Wakes `waker`, once, when there is something urgent to collect; answers whether there is already.
    pub fn listen(&self, waker: &Waker) -> bool {
        let replaced = {
            let mut listener = self.bell().listener.lock().unwrap_or_else(PoisonError::into_inner);
            match &*listener {
                Some(known) if known.will_wake(waker) => None,
                _ => listener.replace(waker.clone()),
            }
        };
        drop(replaced);
        self.bell().is_urgent.load(Ordering::Acquire)
    }

    /// The store has answered, to a settle that was sent at `sent`.
    pub fn answered(&self, wanted: &Wanted, sent: Tick, answer: &Answer, now: Tick) {
        let mut shard = self.lock(wanted.key);
        let front = shard.answered(wanted, sent, answer, now);
        let rings = shard.takes_ring();
        drop(shard);
        if let Some(front) = front {
            front.wake();
        }
        if rings {
            self.bell().ring();
        }
    }

    /// No answer came in time.
    pub fn unanswered(&self, wanted: &Wanted, now: Tick) {
        self.lock(wanted.key).unanswered(wanted, now);
    }

    /// Sets the view of the fleet. Nobody goes on waiting for a store that has gone, and whoever waits for the room of this
    /// gateway's own count asks a store that is back.
    pub fn set_view(&self, view: FleetView) {
        let old = self.seen().swap(view);
        if old.is_up != view.is_up {
            wake_all(self.made().flat_map(|shard| lock(shard).fronts()).collect());
        }
    }

    /// The view of the fleet.
    pub fn view(&self) -> FleetView {
        self.seen().load()
    }

    /// Sums up the grants and debts of all keys. Takes each shard's lock in turn.
    pub fn outstanding(&self, now: Tick) -> Outstanding {
        let mut all = Outstanding::default();
        for shard in self.made() {
            lock(shard).add_outstanding(now, &mut all);
        }
        all
    }
}
