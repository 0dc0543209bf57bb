use std::collections::BTreeMap;

use sluicegate_time::{Span, Tick};

use crate::rate::DebtBucket;
use crate::{PeerId, RefillRate};

/// The spend of this gateway of one key: its cumulative count, how much of it a bucket would still remember, and the count
/// that each peer has acknowledged.
///
/// The level is that of a bucket from which only this gateway spends, as it was one to two graces ago, and all that was spent
/// since. So it is never below what was spent within a grace: a receiver that hears of each spend within a grace charges all of
/// it. It is at most the burst and the refill of two graces.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OwnTotal {
    pub(crate) epoch: u64,
    pub(crate) count: u64,
    pub(crate) told: BTreeMap<PeerId, u64>,
    bucket: DebtBucket,
    /// The number of the grace that is now, and the two before it began with these levels.
    slot: u64,
    level_before: u128,
    level_begun: u128,
    /// The units that were spent in the one before, and in this one.
    spent_before: u128,
    spent: u128,
}

impl OwnTotal {
    pub(crate) fn new(epoch: u64, now: Tick) -> Self {
        Self {
            epoch,
            count: 0,
            told: BTreeMap::new(),
            bucket: DebtBucket::new(0, now),
            slot: 0,
            level_before: 0,
            level_begun: 0,
            spent_before: 0,
            spent: 0,
        }
    }

    pub(crate) fn spend(&mut self, rate: &RefillRate, cost: u64, (grace, now): (Span, Tick)) {
        self.advance(rate, grace, now);
        let units = rate.units(cost);
        self.count = self.count.saturating_add(cost);
        self.spent = self.spent.saturating_add(units);
        self.bucket.charge(rate, units, now);
    }

    /// The units that are missing from a bucket from which only this gateway spends.
    pub(crate) fn missing(&self, rate: &RefillRate, now: Tick) -> u128 {
        self.bucket.missing(rate, now)
    }

    /// The units that a receiver is to charge at most.
    pub(crate) fn level(&mut self, rate: &RefillRate, grace: Span, now: Tick) -> u128 {
        self.advance(rate, grace, now);
        self.level_before.saturating_add(self.spent_before).saturating_add(self.spent)
    }

    /// The count that a peer is not known to know.
    pub(crate) fn untold(&self, peer: PeerId) -> u64 {
        self.count.saturating_sub(self.told.get(&peer).copied().unwrap_or_default())
    }

    fn advance(&mut self, rate: &RefillRate, grace: Span, now: Tick) {
        let grace = grace.as_nanos().max(1);
        let slot = now.as_nanos() / grace;
        let level_at = |slot: u64| self.bucket.missing(rate, Tick::from_nanos(slot.saturating_mul(grace)));
        match slot.checked_sub(self.slot) {
            None | Some(0) => return,
            Some(1) => (self.level_before, self.spent_before) = (self.level_begun, self.spent),
            Some(_) => (self.level_before, self.spent_before) = (level_at(slot - 1), 0),
        }
        (self.level_begun, self.spent, self.slot) = (level_at(slot), 0, slot);
    }
}
