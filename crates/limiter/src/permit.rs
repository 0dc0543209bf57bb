use std::sync::Arc;

use super::key::Fingerprint;
use super::limit::Limit;
use super::shard::Reserved;
use super::verdict::Spent;
use sluicegate_time::Tick;

/// The debt of an admitted request to its limits: to count it, or to correct what it was counted as, once it is known
/// how it ended, where a limit was [asked for that](super::Counting); and to give back what it took when it ends, which
/// dropping the permit does, where a limit counts how many are in flight. Nothing for all others.
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use = "dropping it says that the request has ended"]
pub struct Permit(Option<Box<Grant>>);

/// The debt to one limit.
#[derive(Debug)]
struct Grant {
    /// The limit's index in the policy.
    place: usize,
    limit: Arc<Limit>,
    key: Fingerprint,
    cost: u64,
    owes: Owes,
    /// The debts to the other limits: a list, so that a request that has nothing to give back carries one word.
    others: Permit,
}

/// The kind of a debt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owes {
    /// To give back what was taken.
    Release {
        /// Since when the key has been known to the limit: a record made anew gets nothing back.
        era: u64,
    },
    /// To be counted, or not.
    Count {
        /// The client, as it was [asked](super::Ask::client).
        client: u32,
    },
    /// To be corrected.
    Correct(Reserved),
    /// It was said what it has cost.
    Nothing,
}

impl Permit {
    /// Whether there is nothing to give back and nothing to count.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Counts the request, as of `now`, in those limits that were asked to count later, and corrects it in those that were
    /// asked to correct; `spent` says what it has cost, and is called with the limit's index in the policy and the cost that
    /// was asked. Once it has said so nothing more changes; a permit that is dropped before counts nothing later, and leaves
    /// estimates as they are.
    ///
    /// A request that is counted now may find no room any more: others were let in meanwhile. It is counted all the
    /// same, and the next ones wait for it; but not where the key owes more than a window already, and never more than
    /// [`Algorithm::largest_charge`](super::Algorithm::largest_charge). If a request has cost less than it was counted
    /// as, the difference is given back as far as time has not brought it back already, and no further than leaves the
    /// limit's bound kept, counted with real costs. Nothing is given back once the key was forgotten, because the table
    /// is full, or its counts were rebuilt by a reload.
    pub fn settle(&mut self, now: Tick, mut spent: impl FnMut(usize, u64) -> Spent) {
        let mut next = &mut self.0;
        while let Some(grant) = next {
            if matches!(grant.owes, Owes::Count { .. } | Owes::Correct(_)) {
                let real = match spent(grant.place, grant.cost) {
                    Spent::Nothing => Some(0),
                    Spent::AsAsked => Some(grant.cost),
                    Spent::Cost(real) => Some(real),
                    Spent::Unknown => None,
                };
                if let Some(real) = real {
                    let owes = std::mem::replace(&mut grant.owes, Owes::Nothing);
                    grant.settle(owes, real, now);
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

impl Grant {
    /// Pays what is owed, for a request that has cost `real`.
    fn settle(&self, owes: Owes, real: u64, now: Tick) {
        let Self { limit, key, cost, .. } = self;
        let wakers = match owes {
            Owes::Count { client } if real > 0 => return limit.count(*key, client, real, now),
            Owes::Correct(reserved) => limit.lock(*key).correct(*key, &reserved, (*cost, real), now, limit.keys()),
            Owes::Release { era } => limit.lock(*key).release(*key, *cost, era),
            Owes::Count { .. } | Owes::Nothing => return,
        };
        // Waking runs code of the caller: the lock is given back by now.
        wakers.wake();
    }
}

/// Not that of the permit: the code that has nothing to give back pays for a look at one word.
impl Drop for Grant {
    fn drop(&mut self) {
        match self.owes {
            // The others follow, as many as a route has limits.
            Owes::Release { .. } => self.settle(self.owes, self.cost, Tick::ZERO),
            Owes::Correct(reserved) => self.limit.lock(self.key).let_stand(self.key, &reserved),
            Owes::Count { .. } | Owes::Nothing => {}
        }
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

#[cfg(test)]
mod tests {
    use super::super::tests::{key, spec};
    use super::*;

    #[test]
    fn two_are_equal_just_when_they_owe_the_same_to_the_same_limits() {
        let (limit, other) = (Limit::new(spec("1/s")), Limit::new(spec("1/s")));
        let with = |grants: &[(usize, &Arc<Limit>, u64)]| {
            let mut permit = Permit::default();
            for (place, limit, cost) in grants {
                permit.add(*place, limit, key(1), *cost, Owes::Count { client: 0 });
            }
            permit
        };
        let all = [
            with(&[]),
            with(&[(0, &limit, 1)]),
            with(&[(0, &other, 1)]),
            with(&[(1, &limit, 1)]),
            with(&[(0, &limit, 2)]),
            with(&[(1, &other, 1), (0, &limit, 1)]),
            with(&[(1, &other, 2), (0, &limit, 1)]),
        ];
        for (i, a) in all.iter().enumerate() {
            for (j, b) in all.iter().enumerate() {
                assert_eq!(a == b, i == j, "{i} and {j}");
            }
        }
        assert_eq!(with(&[(1, &other, 1), (0, &limit, 1)]), all[5]);
    }
}
