use std::collections::BTreeMap;

use sluicegate_time::{Span, Tick};

use crate::{PeerId, RefillRate};

/// The spend of this gateway of one key: its cumulative count, how much of it a bucket would still remember, and the count
/// that each peer has acknowledged.
///
/// The level is that of a bucket from which only this gateway spends and which remembers for a while longer: what was spent
/// within the last one to two graces has not leaked yet. So it is never below what was spent within a grace, and a receiver
/// that hears of each spend within a grace charges all of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OwnTotal {
    pub(crate) epoch: u64,
    pub(crate) count: u64,
    pub(crate) told: BTreeMap<PeerId, u64>,
    /// The number of the grace that is now.
    slot: u64,
    /// The level when the slot before this one began, and what was spent in that one and in this.
    settled: u128,
    previous: u128,
    current: u128,
}

impl OwnTotal {
    pub(crate) fn new(epoch: u64) -> Self {
        Self { epoch, count: 0, told: BTreeMap::new(), slot: 0, settled: 0, previous: 0, current: 0 }
    }

    pub(crate) fn spend(&mut self, rate: &RefillRate, cost: u64, (grace, now): (Span, Tick)) {
        self.advance(rate, grace, now);
        self.count = self.count.saturating_add(cost);
        self.current = self.current.saturating_add(rate.units(cost));
    }

    /// The units that a bucket would still remember.
    pub(crate) fn level(&mut self, rate: &RefillRate, grace: Span, now: Tick) -> u128 {
        self.advance(rate, grace, now);
        self.settled.saturating_add(self.previous).saturating_add(self.current)
    }

    /// The count that a peer is not known to know.
    pub(crate) fn untold(&self, peer: PeerId) -> u64 {
        self.count.saturating_sub(self.told.get(&peer).copied().unwrap_or_default())
    }

    fn advance(&mut self, rate: &RefillRate, grace: Span, now: Tick) {
        let slot = now.as_nanos() / grace.as_nanos().max(1);
        let mut steps = slot.saturating_sub(self.slot);
        self.slot = self.slot.max(slot);
        let leak = rate.refilled(grace);
        for _ in 0..2 {
            if steps > 0 {
                self.settled = self.settled.saturating_sub(leak).saturating_add(self.previous);
                self.previous = std::mem::take(&mut self.current);
                steps -= 1;
            }
        }
        self.settled = self.settled.saturating_sub(leak.saturating_mul(u128::from(steps)));
    }
}
