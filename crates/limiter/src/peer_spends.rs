//! A limit that gateways share without a store: what is counted here is noted for the peers, and what they count is owed here.
//!
//! Its checks are those of a limit that is not shared, with a note of each cost that is counted.

use std::sync::atomic::Ordering;

use super::key::Fingerprint;
use super::limit::{Limit, lock};
use sluicegate_time::{Span, Tick};

/// Costs that were counted of keys, in no order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerSpends {
    /// Of which key, and how much.
    pub spends: Vec<(Fingerprint, u64)>,
    /// Cost of which it is not known any more: it was not taken in time.
    pub lost: u64,
}

/// Cost that a peer has admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerDebt {
    /// So much.
    pub cost: u64,
    /// It is at most as much as comes back in this time.
    pub within: Span,
    /// It may have been counted before, by the process whose keys were taken over: then the key lacks at least that much, not more.
    pub may_be_counted: bool,
}

impl Limit {
    /// Notes each cost that is counted from now on for the peers, or no more. To be [taken](Self::take_spends) often.
    pub fn tell_peers(&self, tells: bool) {
        let params = self.lock_params();
        self.tells().store(tells, Ordering::Relaxed);
        drop(params);
        for shard in self.made() {
            lock(shard).tell_peers(tells.then(|| self.has_spends()));
        }
        if !tells {
            // Where they are told again, peers tell all of theirs again.
            self.is_heir().store(true, Ordering::Relaxed);
        }
    }

    /// Appends the costs that were noted since the last time.
    pub fn take_spends(&self, taken: &mut PeerSpends) {
        if self.has_spends().swap(false, Ordering::Relaxed) {
            for shard in self.made() {
                lock(shard).take_spends(taken);
            }
        }
    }

    /// A peer has admitted something of a key: a rate of the limit, by its index, lacks it from now on, below zero if need be. Only
    /// of token buckets with greedy refill and of gcra; of others nothing.
    pub fn owe(&self, key: Fingerprint, rate: usize, debt: PeerDebt, now: Tick) {
        let wakers = self.lock(key).owe(key, (rate, debt), now, self.keys());
        wakers.wake();
    }

    /// Whether its keys are those of a process before, or of a time before now in which it was told to peers: with what was heard of
    /// them then.
    pub fn has_taken_over(&self) -> bool {
        self.is_heir().load(Ordering::Relaxed)
    }
}
