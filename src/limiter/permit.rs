use std::sync::Arc;

use super::key::Fingerprint;
use super::limit::Limit;
use crate::time::Tick;

/// What an admitted request still owes to its limits: to count it once it is known how it ended, where a limit was
/// [asked for that](super::Ask::later), and to give back what it took when it ends, which dropping the permit does, where
/// a limit counts how many are in flight. Nothing for all others.
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use = "dropping it says that the request has ended"]
pub struct Permit(Option<Box<Grant>>);

/// What is owed to one limit.
#[derive(Debug)]
struct Grant {
    /// The limit's index in the policy.
    place: usize,
    limit: Arc<Limit>,
    key: Fingerprint,
    cost: u64,
    owes: Owes,
    /// What the other limits get back: a list, so that whoever has nothing to give back carries one word.
    others: Permit,
}

/// What is owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owes {
    /// To give back what was taken.
    Release {
        /// Since when the key has been known to the limit: a record made anew gets nothing back.
        era: u64,
    },
    /// To be counted, or not.
    Count,
    /// It was said whether it counts.
    Nothing,
}

impl Permit {
    /// Whether there is nothing to give back and nothing to count.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Counts the request, as of `now`, in those limits that were asked to count later and for which `counts` says so; it
    /// is called with the limit's index in the policy. Once it was called, nothing more is counted.
    ///
    /// There may be no room any more: others were let in meanwhile. It is counted all the same, and the next ones wait
    /// for it.
    pub fn settle(&mut self, now: Tick, mut counts: impl FnMut(usize) -> bool) {
        let mut next = &mut self.0;
        while let Some(grant) = next {
            if grant.owes == Owes::Count {
                grant.owes = Owes::Nothing;
                if counts(grant.place) {
                    let Grant { limit, key, cost, .. } = &**grant;
                    let wakers = limit.lock(*key).count(*key, *cost, now, limit.keys());
                    wakers.wake();
                }
            }
            next = &mut grant.others.0;
        }
    }

    /// Puts one more before what there is.
    pub(super) fn add(&mut self, place: usize, limit: &Arc<Limit>, key: Fingerprint, cost: u64, owes: Owes) {
        let others = std::mem::take(self);
        *self = Self(Some(Box::new(Grant { place, limit: Arc::clone(limit), key, cost, owes, others })));
    }
}

/// Not that of the permit: whoever has nothing to give back pays for a look at one word.
impl Drop for Grant {
    fn drop(&mut self) {
        let Owes::Release { era } = self.owes else { return };
        let wakers = self.limit.lock(self.key).release(self.key, self.cost, era);
        // Waking runs code of the caller: the lock is given back by now. The others follow, as many as a route has limits.
        wakers.wake();
    }
}

impl PartialEq for Grant {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.limit, &other.limit)
            && (self.place, self.key, self.cost, self.owes) == (other.place, other.key, other.cost, other.owes)
            && self.others == other.others
    }
}

impl Eq for Grant {}
