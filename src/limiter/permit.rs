use std::sync::Arc;

use super::key::Fingerprint;
use super::limit::Limit;

/// What an admitted request has to give back when it has ended, which dropping it does. Nothing, but where a limit
/// counts how many are in flight.
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use = "dropping it says that the request has ended"]
pub struct Permit(Option<Box<Grant>>);

/// What one limit gets back.
#[derive(Debug)]
struct Grant {
    limit: Arc<Limit>,
    key: Fingerprint,
    cost: u64,
    /// Since when the key has been known to the limit: a record made anew gets nothing back.
    era: u64,
    /// What the other limits get back: a list, so that whoever has nothing to give back carries one word.
    others: Permit,
}

impl Permit {
    /// Whether there is nothing to give back.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Puts one more before what there is.
    pub(super) fn add(&mut self, limit: &Arc<Limit>, key: Fingerprint, cost: u64, era: u64) {
        let others = std::mem::take(self);
        *self = Self(Some(Box::new(Grant { limit: Arc::clone(limit), key, cost, era, others })));
    }
}

/// Not that of the permit: whoever has nothing to give back pays for a look at one word.
impl Drop for Grant {
    fn drop(&mut self) {
        let wakers = self.limit.lock(self.key).release(self.key, self.cost, self.era);
        // Waking runs code of the caller: the lock is given back by now. The others follow, as many as a route has limits.
        wakers.wake();
    }
}

impl PartialEq for Grant {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.limit, &other.limit)
            && (self.key, self.cost, self.era) == (other.key, other.cost, other.era)
            && self.others == other.others
    }
}

impl Eq for Grant {}
