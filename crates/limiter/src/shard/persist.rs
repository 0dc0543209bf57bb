//! Keys that outlive the process.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Fingerprint, Shard};
use crate::limit::Params;
use crate::sync::AtomicU64;
use sluicegate_time::Tick;

impl Shard {
    /// Adds the records of all keys, each without what belongs to a fleet; the parameters that they were written by. `None`:
    /// there are none.
    pub(crate) fn copy_to(&self, copied: &mut Vec<u64>) -> Option<Arc<Params>> {
        let words = self.params.rule.words();
        for at in 0..self.table.places() {
            if let Some(key) = self.table.key_at(at) {
                copied.push(key.bits());
                copied.extend_from_slice(self.table.state(at).get(..words).unwrap_or_default());
            }
        }
        (!copied.is_empty()).then(|| Arc::clone(&self.params))
    }

    /// Puts keys in with these states, those that count at `now` and are not known, as long as there is room; how many.
    pub(crate) fn take_over(&mut self, records: &[(Fingerprint, &[u64])], now: Tick, keys: &AtomicU64) -> u64 {
        self.latest = self.latest.max(now);
        let rule = &self.params.rule;
        let counts = |state: &[u64]| state.len() == rule.words() && !rule.is_idle(state, self.latest);
        let known = keys.load(Ordering::Relaxed);
        let room = usize::try_from(self.params.spec.max_keys.saturating_sub(known)).unwrap_or(usize::MAX);
        self.table.reserve(records.iter().filter(|(_, state)| counts(state)).count().min(room));
        let mut taken = 0;
        for (key, state) in records.iter().filter(|(_, state)| counts(state)) {
            if taken == room || self.table.find(*key).is_some() {
                continue;
            }
            let at = self.table.insert(*key);
            if let Some(own) = self.table.state_mut(at).get_mut(..state.len()) {
                own.copy_from_slice(state);
            }
            taken += 1;
        }
        keys.fetch_add(taken as u64, Ordering::Relaxed);
        taken as u64
    }
}
