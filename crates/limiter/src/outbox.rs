//! The messages between a shared limit and its fleet: the side of [`Limit`] that the fleet's thread calls.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::task::Waker;

use super::key::Fingerprint;
use super::limit::{Limit, lock, wake_all};
use super::settle::{Collect, Outstanding, SettleAnswer, Turn, Wanted};
use super::sharing::{AwayKeys, FleetView};
use sluicegate_time::Tick;

impl Limit {
    /// Answers whether a shard has something to say before the next round, once. A shard that comes from then on is
    /// heard the next time.
    pub fn take_urgent(&self) -> bool {
        self.bell().is_urgent.swap(false, Ordering::AcqRel)
    }

    /// From now on these keys have their turn.
    pub fn begin(&self, turn: Turn) {
        for shard in self.made() {
            lock(shard).begin(turn);
        }
    }

    /// Collects messages to the store, as of `now`, behind `wanted`, until there are `most` in it: as many as are sent at
    /// once. Each is to be answered. Keys whose messages have no room, or that `is_free` does not take now, stay listed, in
    /// their order; shards take turns. Answers whether there are some that it did not take.
    pub fn collect(
        &self,
        collect: Collect,
        (most, is_free): (usize, &dyn Fn(Fingerprint) -> bool),
        now: Tick,
        wanted: &mut Vec<Wanted>,
    ) -> bool {
        let (first, mut has_busy) = (self.bell().turn.load(Ordering::Relaxed), false);
        for (index, shard) in self.made().enumerate().skip(first).chain(self.made().enumerate().take(first)) {
            has_busy |= lock(shard).collect(collect, (most, is_free), now, wanted);
            if wanted.len() >= most {
                self.bell().turn.store(index + 1, Ordering::Relaxed);
                break;
            }
        }
        has_busy
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
    pub fn answered(&self, wanted: &Wanted, sent: Tick, answer: &SettleAnswer, now: Tick) {
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

    /// No answer came in time. `is_refused`: the store has refused to answer, and would again; the task that waits for
    /// that waits no longer.
    pub fn unanswered(&self, wanted: &Wanted, is_refused: bool, now: Tick) {
        let mut shard = self.lock(wanted.key);
        let given_up = shard.unanswered(wanted, is_refused, now);
        let rings = shard.takes_ring();
        drop(shard);
        wake_all(given_up);
        if rings {
            self.bell().ring();
        }
    }

    /// Sets the view of the fleet. No task goes on waiting for a store that has gone, and the task that waits for the
    /// room of this gateway's own count asks a store that is back.
    pub fn set_view(&self, view: FleetView) {
        let old = self.seen().swap(view);
        if old.is_up != view.is_up {
            wake_all(self.made().flat_map(|shard| lock(shard).fronts()).collect());
        }
    }

    /// From now on the part of the store that holds these keys is away, as the whole is where [`set_view`](Self::set_view) says so;
    /// `None`: no part is.
    pub fn set_away(&self, keys: Option<AwayKeys>) {
        self.seen().set_away(keys);
        wake_all(self.made().flat_map(|shard| lock(shard).fronts()).collect());
    }

    /// The view of the fleet.
    pub fn view(&self) -> FleetView {
        self.seen().load()
    }

    /// Forgets what the store has refused: another one is asked from now on.
    pub fn forget_refusals(&self) {
        let mut fronts = Vec::new();
        for shard in self.made() {
            let mut shard = lock(shard);
            shard.forget_refusals(false);
            fronts.append(&mut shard.fronts());
        }
        wake_all(fronts);
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
