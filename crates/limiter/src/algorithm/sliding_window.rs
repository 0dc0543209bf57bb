use super::ring::Ring;
use super::several::RateMeter;
use super::timer_wheel::slots_for;
use super::{AlgorithmError, Bound, CommitFacts, FitTime, LayoutChange, Moment, RateStanding};
use crate::MAX_RATES;
use crate::quota::Rate;
use sluicegate_time::{Span, Tick};

const SLOTS: u32 = 10;

/// The sliding window of sub-windows, each with a cap of its own.
///
/// **Promises** what [`Bound::Sliding`] does, `L` in any stretch of `W - w` with `w = W / slots`, and besides never
/// more than `slot_limit` in one sub-window: a burst is spread over the window. **Costs** what a timer wheel of as many
/// slots does: 32 bytes a key for 10 sub-windows and `L` up to 127. **Choose it** when the whole quota must not be
/// used up at once. **Source**: the sliding window counter of the Java articles on rate limiting; there the room of an
/// arrival may be off by one, here sub-windows are counted from tick 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    pub(super) rates: Vec<Rate>,
    slots: Vec<u32>,
    pub(super) slot_limit: Option<u64>,
}

impl SlidingWindow {
    /// Every one of `rates` (1 to [`MAX_RATES`]) holds.
    ///
    /// `slots` is the number of sub-windows of each window, which it has to divide in nanoseconds into equal ones of
    /// at least 1 ms; without it there are 10, or the nearest number that divides. `slot_limit` is how many a
    /// sub-window admits, at least 1; without it twice the even share, rounded up.
    pub fn new(rates: &[Rate], slots: Option<u32>, slot_limit: Option<u64>) -> Result<Self, AlgorithmError> {
        if rates.is_empty() {
            return Err(AlgorithmError::NoRates);
        }
        if rates.len() > MAX_RATES {
            return Err(AlgorithmError::TooManyRates { given: rates.len() });
        }
        if slot_limit == Some(0) {
            return Err(AlgorithmError::ZeroSlotLimit);
        }
        let slots_of = |rate: &Rate| slots_for(*rate, slots, SLOTS, Bound::Sliding).map_err(AlgorithmError::Slots);
        let slots = rates.iter().map(slots_of).collect::<Result<_, _>>()?;
        Ok(Self { rates: rates.to_vec(), slots, slot_limit })
    }

    /// Its rates.
    pub fn rates(&self) -> &[Rate] {
        &self.rates
    }

    /// The sub-windows of the `i`-th rate; `None` if there is no such rate.
    pub fn slots_of(&self, i: usize) -> Option<u32> {
        self.slots.get(i).copied()
    }

    /// How many a sub-window of the `i`-th rate admits, at most its limit; `None` if there is no such rate.
    pub fn slot_limit_of(&self, i: usize) -> Option<u64> {
        let (limit, slots) = (self.rates.get(i)?.limit(), u64::from(*self.slots.get(i)?));
        Some(self.slot_limit.unwrap_or_else(|| (limit * 2).div_ceil(slots.max(1)).max(1)).min(limit))
    }

    pub(super) fn meters(&self) -> Vec<CappedRing> {
        let meter = |(index, rate): (usize, &Rate)| {
            let slots = self.slots_of(index).unwrap_or(1);
            let cap = self.slot_limit_of(index).unwrap_or(rate.limit());
            CappedRing { ring: Ring::new(rate.limit(), rate.window(), slots, slots, 0), cap }
        };
        self.rates.iter().enumerate().map(meter).collect()
    }

    /// The same, whose sub-windows hold debts.
    pub(super) fn meters_with_debts(&self) -> Vec<CappedRing> {
        let with_debts = |meter: CappedRing| CappedRing { ring: meter.ring.with_debts(), cap: meter.cap };
        self.meters().into_iter().map(with_debts).collect()
    }
}

/// One rate: a ring whose newest slot takes no more than `cap`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CappedRing {
    ring: Ring,
    /// At most the limit.
    cap: u64,
}

impl RateMeter for CappedRing {
    fn words(&self) -> usize {
        self.ring.words()
    }

    fn quota(&self) -> (u64, Span) {
        self.ring.quota()
    }

    #[inline]
    fn largest(&self) -> u64 {
        self.cap
    }

    fn fresh(&self) -> u64 {
        self.cap
    }

    #[inline]
    fn advance(&self, chunk: &mut [u64], now: Tick) {
        self.ring.advance(chunk, now);
    }

    #[inline]
    fn room(&self, chunk: &[u64], cost: u64, _: Tick) -> FitTime {
        if cost > self.cap {
            return FitTime::Never { rate: 0 };
        }
        let room = self.ring.room(chunk, cost);
        // A later slot is empty yet, so that there only the sum counts.
        if room == FitTime::Now && self.ring.newest(chunk).saturating_add(cost) > self.cap {
            return FitTime::At { at: self.ring.newest_until(chunk), rate: 0 };
        }
        room
    }

    #[inline]
    fn commit(&self, chunk: &mut [u64], cost: u64, _: Moment) {
        self.ring.commit(chunk, cost);
    }

    fn give_back(&self, chunk: &mut [u64], cost: u64, taken: &CommitFacts, _: Tick) {
        self.ring.take_back(chunk, cost, taken);
    }

    fn standing(&self, chunk: &[u64], now: Tick) -> RateStanding {
        let of_window = self.ring.limit.saturating_sub(self.ring.sum(chunk));
        let remaining = of_window.min(self.cap.saturating_sub(self.ring.newest(chunk)));
        RateStanding::before(remaining, self.cap, |more| self.room(chunk, more, now))
    }

    fn grant_ends(&self, chunk: &[u64]) -> Option<Tick> {
        Some(self.ring.newest_until(chunk))
    }

    fn is_idle(&self, chunk: &[u64], now: Tick) -> bool {
        self.ring.is_empty_at(chunk, now)
    }

    fn same_moment(&self, a: Tick, b: Tick) -> bool {
        self.ring.same_moment(a, b)
    }

    fn layout_since(&self, old: &Self) -> LayoutChange {
        self.ring.layout_since(&old.ring)
    }

    fn source(&self, index: usize, olds: &[Self]) -> Option<usize> {
        let rings: Vec<Ring> = olds.iter().map(|old| old.ring).collect();
        self.ring.source(index, &rings)
    }

    fn remembering(&self, old: &Self) -> Self {
        Self { ring: self.ring.remembering(&old.ring), cap: self.cap }
    }

    fn take_over(&self, old: &Self, from: &[u64], to: &mut [u64], latest: Tick) {
        self.ring.take_over(&old.ring, from, to, latest);
    }
}
