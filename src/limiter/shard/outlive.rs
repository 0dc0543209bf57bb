//! Keys that outlive the process.

use std::sync::Arc;

use super::{Asking, Fingerprint, Record, Shard};
use crate::limiter::limit::Params;
use crate::limiter::sync::AtomicU64;
use crate::time::Tick;

impl Shard {
    /// Adds the records of all keys, each without what belongs to a fleet; the parameters that they were written by. `None`:
    /// there are none.
    pub(in crate::limiter) fn copy_to(&self, copied: &mut Vec<u64>) -> Option<Arc<Params>> {
        let words = self.params.rule.words();
        for at in 0..self.table.places() {
            if let Some(key) = self.table.key_at(at) {
                copied.push(key.bits());
                copied.extend_from_slice(self.table.state(at).get(..words).unwrap_or_default());
            }
        }
        (!copied.is_empty()).then(|| Arc::clone(&self.params))
    }

    /// Puts a key in with this state, if it counts at `now`, is not known and there is room; whether it was put in.
    pub(in crate::limiter) fn take_over(
        &mut self,
        key: Fingerprint,
        state: &[u64],
        now: Tick,
        keys: &AtomicU64,
    ) -> bool {
        self.latest = self.latest.max(now);
        let counts = state.len() == self.params.rule.words() && !self.params.rule.is_idle(state, self.latest);
        if !counts || self.table.find(key).is_some() {
            return false;
        }
        let Some(Record::New) = self.place_for_new(Asking::Arrival, keys) else { return false };
        let at = self.insert(key, keys);
        if let Some(own) = self.table.state_mut(at).get_mut(..state.len()) {
            own.copy_from_slice(state);
        }
        true
    }
}
