use super::pace::checked;
use super::ring::Ring;
use super::several::RateMeter;
use super::{AlgorithmError, CommitFacts, FitTime, LayoutChange, Moment, RateStanding};
use crate::quota::Rate;
use sluicegate_time::{Span, Tick};

/// The sliding counter: two windows counted from tick 0, the one before weighted by the share of it that a window
/// ending now still covers.
///
/// **Promises** that `floor(current + previous x remaining share) + cost <= L` at each admission: exact if the
/// requests of the window before came evenly, else off by as much as they did not; `L / W` when saturated. **Costs**
/// two words a key for `L` below 2^31, 24 bytes with its fingerprint, else three. **Choose it** for long windows where
/// slots would take too much memory and a fixed window's edge is too sharp. **Source**: Cloudflare, "How we built rate
/// limiting capable of scaling to millions of domains" (2017).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingCounter {
    pub(super) rates: Vec<Rate>,
}

impl SlidingCounter {
    /// Every one of `rates` (1 to [`MAX_RATES`](crate::MAX_RATES)) holds, over at most a hundred years.
    pub fn new(rates: &[Rate]) -> Result<Self, AlgorithmError> {
        Ok(Self { rates: checked(rates)? })
    }

    /// Its rates.
    pub fn rates(&self) -> &[Rate] {
        &self.rates
    }

    pub(super) fn meters(&self) -> Vec<Counter> {
        let counter = |rate: &Rate| Counter(Ring::new(rate.limit(), rate.window(), 1, 2, 0));
        self.rates.iter().map(counter).collect()
    }

    /// The same, whose windows hold debts.
    pub(super) fn meters_with_debts(&self) -> Vec<Counter> {
        self.meters().iter().map(|counter| Counter(counter.0.with_debts())).collect()
    }
}

/// One rate: a ring of two slots, each a window long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Counter(Ring);

impl Counter {
    /// The counts of the window before and of this one, and how far this one has gone.
    fn counts(&self, chunk: &[u64], now: Tick) -> (u64, u64, u64) {
        let current = self.0.newest(chunk);
        let gone = now.since(self.0.newest_from(chunk)).as_nanos();
        (self.0.sum(chunk) - current, current, gone)
    }

    /// The weight of `previous` when `gone` of the window after it has passed.
    fn weight(&self, previous: u64, gone: u64) -> u64 {
        let window = self.0.window.as_nanos().max(1);
        let left = window.saturating_sub(gone);
        (u128::from(previous) * u128::from(left) / u128::from(window)) as u64
    }

    /// When so much of a window has gone that what was counted in the one before weighs at most `most`; `None` if not
    /// before its end.
    fn lightens(&self, previous: u64, most: u64) -> Option<u64> {
        let window = self.0.window.as_nanos();
        // floor(previous x left / window) <= most, that is previous x left < (most + 1) x window.
        let below = (u128::from(most) + 1) * u128::from(window) - 1;
        let left = below.checked_div(u128::from(previous)).unwrap_or(u128::MAX);
        let gone = window.saturating_sub(u64::try_from(left).unwrap_or(u64::MAX));
        (gone < window).then_some(gone)
    }
}

impl RateMeter for Counter {
    fn words(&self) -> usize {
        self.0.words()
    }

    fn quota(&self) -> (u64, Span) {
        self.0.quota()
    }

    #[inline]
    fn largest(&self) -> u64 {
        self.0.limit
    }

    fn fresh(&self) -> u64 {
        self.0.limit
    }

    #[inline]
    fn advance(&self, chunk: &mut [u64], now: Tick) {
        self.0.advance(chunk, now);
    }

    #[inline]
    fn room(&self, chunk: &[u64], cost: u64, now: Tick) -> FitTime {
        let Some(most) = self.0.limit.checked_sub(cost) else { return FitTime::Never { rate: 0 } };
        let (previous, current, gone) = self.counts(chunk, now);
        if current.saturating_add(self.weight(previous, gone)) <= most {
            return FitTime::Now;
        }
        let (from, until) = (self.0.newest_from(chunk), self.0.newest_until(chunk));
        let in_this =
            most.checked_sub(current).and_then(|most| Some(from + Span::from_nanos(self.lightens(previous, most)?)));
        let in_next = || Some(until + Span::from_nanos(self.lightens(current, most)?));
        FitTime::At { at: in_this.or_else(in_next).unwrap_or(until + self.0.window), rate: 0 }
    }

    #[inline]
    fn commit(&self, chunk: &mut [u64], cost: u64, _: Moment) {
        self.0.commit(chunk, cost);
    }

    fn give_back(&self, chunk: &mut [u64], cost: u64, taken: &CommitFacts, _: Tick) {
        self.0.take_out(chunk, cost, taken.at);
    }

    fn standing(&self, chunk: &[u64], now: Tick) -> RateStanding {
        let (previous, current, gone) = self.counts(chunk, now);
        let remaining = self.0.limit.saturating_sub(current).saturating_sub(self.weight(previous, gone));
        RateStanding::before(remaining, self.0.limit, |more| self.room(chunk, more, now))
    }

    fn grant_ends(&self, chunk: &[u64]) -> Option<Tick> {
        Some(self.0.newest_until(chunk))
    }

    fn is_idle(&self, chunk: &[u64], now: Tick) -> bool {
        self.0.is_empty_at(chunk, now)
    }

    fn same_moment(&self, a: Tick, b: Tick) -> bool {
        self.0.same_moment(a, b)
    }

    fn layout_since(&self, old: &Self) -> LayoutChange {
        self.0.layout_since(&old.0)
    }

    fn source(&self, index: usize, olds: &[Self]) -> Option<usize> {
        let rings: Vec<Ring> = olds.iter().map(|old| old.0).collect();
        self.0.source(index, &rings)
    }

    fn remembering(&self, old: &Self) -> Self {
        Self(self.0.remembering(&old.0))
    }

    fn take_over(&self, old: &Self, from: &[u64], to: &mut [u64], latest: Tick) {
        self.0.take_over(&old.0, from, to, latest);
    }
}
