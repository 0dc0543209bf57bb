//! Single keys, as an operator treats them.

use std::sync::atomic::Ordering;
use std::task::Waker;

use super::{EffectiveMode, Fingerprint, Shard};
use crate::lease::ReportQueue;
use crate::queue::Wakers;
use crate::sync::AtomicU64;
use sluicegate_time::Tick;

impl Shard {
    /// Forgets what is counted of a key. Answers whether something was that still counts, and whom to wake once no lock is held.
    pub(crate) fn forget_key(&mut self, key: Fingerprint, now: Tick, keys: &AtomicU64) -> (bool, Vec<Waker>) {
        self.latest = self.latest.max(now);
        let Some(at) = self.table.find(key) else { return (false, self.fronts_of(key)) };
        let has_counted = !self.params.is_idle(self.table.state(at), self.latest);
        self.ledger.forget(Some(key));
        self.era += 1;
        if self.is_shared() {
            self.clear_shared(key, at);
        } else {
            // To a queue, a key without a record is one that was never seen.
            self.table.remove(at);
            keys.fetch_sub(1, Ordering::Relaxed);
        }
        (has_counted, self.fronts_of(key))
    }

    /// Ends the block of a penalty. Answers whether there was one, and whom to wake once no lock is held.
    pub(crate) fn end_block(&mut self, key: Fingerprint, now: Tick) -> (bool, Vec<Waker>) {
        self.latest = self.latest.max(now);
        let Some(at) = self.table.find(key) else { return (false, Vec::new()) };
        let state = self.table.state_mut(at);
        let was_blocked = self.params.rule.blocked_until(state, self.latest).is_some();
        if was_blocked {
            self.params.rule.end_block(state);
        }
        (was_blocked, self.fronts_of(key))
    }

    /// Until when a penalty blocks a key.
    pub(crate) fn blocked_until(&self, key: Fingerprint, now: Tick) -> Option<Tick> {
        self.params.spec.penalty?;
        let at = self.table.find(key).filter(|_| self.params.stance == EffectiveMode::Enforce)?;
        self.params.rule.blocked_until(self.table.state(at), now.max(self.latest))
    }

    /// Whether a penalty blocks the key of this record, as of the last question.
    pub(crate) fn is_blocked(&self, at: usize) -> bool {
        self.params.rule.blocked_until(self.table.state(at), self.latest).is_some()
    }

    /// The front of the key's line and the head of its queue have to look again.
    fn fronts_of(&mut self, key: Fingerprint) -> Vec<Waker> {
        let front = self.book.as_mut().and_then(|book| book.lines.wake(key));
        let Wakers { next, done: _ } = self.queues.wake_head(key);
        front.into_iter().chain(next).collect()
    }

    /// Empties the record of a shared limit where it is: requests may wait for the store's answer, which is to find it.
    /// An answer on its way is one of before, so those who wait ask once more.
    fn clear_shared(&mut self, key: Fingerprint, at: usize) {
        let Self { params, table, book, latest, .. } = self;
        let state = table.state_mut(at);
        let mut lease = params.lease_of(state);
        lease.forget();
        state.fill(0);
        params.rule.advance(state, *latest);
        if let Some(book) = book.as_mut().filter(|book| book.lines.has(key)) {
            book.list(&mut lease, key, Some(ReportQueue::Asks));
        }
        params.set_lease(state, lease);
    }
}
