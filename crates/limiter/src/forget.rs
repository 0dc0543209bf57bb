//! Single keys, as an operator treats them: their counts are forgotten, or the block of a penalty ends.

use super::key::Fingerprint;
use super::limit::{Limit, lock, wake_all};
use sluicegate_time::Tick;

impl Limit {
    /// Forgets all that is counted of a key, the refusals and the block of a penalty too, and wakes who waits for it. Answers
    /// whether there was anything that still counts.
    ///
    /// Of what counts requests in flight, those that are in flight now are forgotten: they give nothing back at their end. Of a
    /// limit that is shared, what this gateway was granted and has spent is not told to the store: the caller has the key
    /// removed there.
    pub fn forget_key(&self, key: Fingerprint, now: Tick) -> bool {
        let Some(shard) = self.made_for(key) else { return false };
        let mut shard = lock(shard);
        let (has_counted, heads) = shard.forget_key(key, now, self.keys());
        let rings = shard.takes_ring();
        drop(shard);
        wake_all(heads);
        if rings {
            self.bell().ring();
        }
        has_counted
    }

    /// Ends the block of a penalty, and wakes who waits; what is counted of the key stays. Answers whether it was blocked.
    pub fn end_block(&self, key: Fingerprint, now: Tick) -> bool {
        let Some(shard) = self.made_for(key) else { return false };
        let (was_blocked, heads) = lock(shard).end_block(key, now);
        wake_all(heads);
        was_blocked
    }

    /// Until when a penalty blocks a key; `None`: it does not. A limit that refuses nobody blocks nobody.
    pub fn blocked_until(&self, key: Fingerprint, now: Tick) -> Option<Tick> {
        lock(self.made_for(key)?).blocked_until(key, now)
    }
}
