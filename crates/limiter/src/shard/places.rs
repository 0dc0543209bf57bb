//! Places for records: who gets one, who is forgotten for it, and how the table follows the keys that live.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Asking, Fingerprint, LOOKED_AT, OnFull, PASSED, Record, SWEPT, Shard};
use crate::sync::AtomicU64;

impl Shard {
    /// Where the record of a new key may go; `None`: nowhere.
    #[inline(never)]
    pub(super) fn place_for_new(&mut self, asking: Asking, keys: &AtomicU64) -> Option<Record> {
        if keys.load(Ordering::Relaxed) < self.params.spec.max_keys {
            return Some(Record::New);
        }
        match (self.params.spec.on_full, self.victim()) {
            (_, Some((of, true))) => Some(Record::Instead { of, idle: true }),
            (OnFull::EvictOldest, Some((of, false))) => Some(Record::Instead { of, idle: false }),
            // Its record was idle and has been swept: the key is not new, and this is its turn.
            _ if asking == Asking::Head => Some(Record::New),
            // All keys are in other shards, because the bound was lowered a lot: at most one a shard above it.
            (OnFull::EvictOldest, None) if self.table.len() == 0 => Some(Record::New),
            (OnFull::Allow, _) => Some(Record::Uncounted),
            (OnFull::EvictOldest | OnFull::Refuse, _) => None,
        }
    }

    /// Where the record of a key is from now on; `None`, and counted, if it is to have none.
    #[inline]
    pub(super) fn place(&mut self, record: Record, key: Fingerprint, keys: &AtomicU64) -> Option<usize> {
        match record {
            Record::At(at) => Some(at),
            Record::New => Some(self.insert(key, keys)),
            Record::Instead { of, idle } => {
                self.evict(of, idle, keys);
                Some(self.insert(key, keys))
            }
            Record::Uncounted => {
                self.counts.allowed_full += 1;
                None
            }
        }
    }

    /// Of the records that the hand passes the first idle one, else the least recently used; never one with a queue.
    fn victim(&mut self) -> Option<(usize, bool)> {
        let mut oldest = None;
        let mut looked_at = 0;
        for _ in 0..PASSED {
            if looked_at == LOOKED_AT {
                break;
            }
            let at = self.table.tick_hand()?;
            let Some(key) = self.table.key_at(at) else { continue };
            looked_at += 1;
            if self.queues.has(key) || self.awaits_store(key) {
                continue;
            }
            let state = self.table.state(at);
            if self.params.is_idle(state, self.latest) {
                return Some((at, true));
            }
            let recency = self.params.rule.recency(state);
            if oldest.is_none_or(|(_, least)| recency < least) {
                oldest = Some((at, recency));
            }
        }
        oldest.map(|(at, _)| (at, false))
    }

    pub(super) fn insert(&mut self, key: Fingerprint, keys: &AtomicU64) -> usize {
        self.sweep(keys);
        if self.table.is_full() {
            self.resize(keys);
        }
        let before = keys.fetch_add(1, Ordering::Relaxed);
        let params = &*self.params;
        if before > params.spec.max_keys && params.spec.on_full == OnFull::EvictOldest {
            // The bound was lowered: come down to it by one more with every new key.
            if let Some((at, idle)) = self.victim() {
                self.evict(at, idle, keys);
            }
        }
        let at = self.table.insert(key);
        self.params.rule.advance(self.table.state_mut(at), self.latest);
        at
    }

    /// Drops the idle records among the next few that the hand passes. A queue does not keep one: to it, a key without
    /// a record is one whose state is empty.
    pub(super) fn sweep(&mut self, keys: &AtomicU64) {
        for _ in 0..SWEPT {
            let Some(at) = self.table.tick_hand() else { break };
            if self.table.key_at(at).is_some() && self.params.is_idle(self.table.state(at), self.latest) {
                self.evict(at, true, keys);
            }
        }
        if self.table.is_sparse() {
            self.resize(keys);
        }
    }

    pub(super) fn evict(&mut self, at: usize, idle: bool, keys: &AtomicU64) {
        if !idle {
            self.ledger.forget(self.table.key_at(at));
            self.leave_over(at, &Arc::clone(&self.params));
        }
        self.table.remove(at);
        keys.fetch_sub(1, Ordering::Relaxed);
        if idle {
            self.counts.evicted_idle += 1;
        } else {
            self.counts.evicted_live += 1;
            self.era += 1;
        }
    }

    /// Grows or shrinks the table to what is live.
    fn resize(&mut self, keys: &AtomicU64) {
        let (before, latest, params) = (self.table.len(), self.latest, &self.params);
        self.table.resize(|state| !params.is_idle(state, latest));
        self.dropped(before, keys);
    }

    pub(super) fn dropped(&mut self, before: usize, keys: &AtomicU64) {
        let dropped = (before - self.table.len()) as u64;
        self.counts.evicted_idle += dropped;
        keys.fetch_sub(dropped, Ordering::Relaxed);
    }
}
