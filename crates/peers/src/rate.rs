use sluicegate_time::{Span, Tick};

/// The numbers of a token bucket with greedy refill, or of a gcra: so many tokens a window, and a burst.
///
/// Amounts are counted in units, so that nothing is rounded: a token is as many units as its window has nanoseconds, and
/// `limit` units come back each nanosecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RefillRate {
    limit: u64,
    window: Span,
    burst: u64,
}

impl RefillRate {
    /// The rate of `limit` tokens a window, with `burst` at once. `None` if one of them is zero, or if the burst takes more
    /// than a hundred years to come back.
    pub fn new(limit: u64, window: Span, burst: u64) -> Option<Self> {
        const LONGEST: u128 = 100 * 366 * 86_400 * 1_000_000_000;
        let is_some = limit > 0 && burst > 0 && !window.is_zero();
        let refill = u128::from(burst).saturating_mul(u128::from(window.as_nanos()));
        let fits = refill <= LONGEST.saturating_mul(u128::from(limit));
        (is_some && fits).then_some(Self { limit, window, burst })
    }

    /// The tokens that are there at most.
    pub fn burst(&self) -> u64 {
        self.burst
    }

    /// The units of so many tokens.
    pub fn units(&self, tokens: u64) -> u128 {
        u128::from(tokens) * u128::from(self.window.as_nanos())
    }

    /// The units that come back in a span.
    pub fn refilled(&self, span: Span) -> u128 {
        u128::from(self.limit) * u128::from(span.as_nanos())
    }

    /// The time in which so many units come back, rounded up to the nanosecond.
    pub fn time_for(&self, units: u128) -> Span {
        Span::from_nanos(u64::try_from(units.div_ceil(u128::from(self.limit.max(1)))).unwrap_or(u64::MAX))
    }
}

/// A token bucket that may be below zero: the units that are missing from a full one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DebtBucket {
    missing: u128,
    at: Tick,
}

impl DebtBucket {
    pub(crate) fn new(missing: u128, at: Tick) -> Self {
        Self { missing, at }
    }

    /// The units that are missing then. Time that goes back changes nothing.
    pub(crate) fn missing(&self, rate: &RefillRate, now: Tick) -> u128 {
        self.missing.saturating_sub(rate.refilled(now.since(self.at)))
    }

    /// Takes units out, whether they are there or not.
    pub(crate) fn charge(&mut self, rate: &RefillRate, units: u128, now: Tick) {
        self.missing = self.missing(rate, now).saturating_add(units);
        self.at = self.at.max(now);
    }

    /// Takes a cost out if it is there; otherwise the earliest instant at which it will be. As the limiter's buckets do.
    #[cfg(test)]
    pub(crate) fn take(&mut self, rate: &RefillRate, cost: u64, now: Tick) -> Result<(), Tick> {
        if cost > rate.burst() {
            return Err(Tick::MAX);
        }
        let wanted = self.missing(rate, now).saturating_add(rate.units(cost));
        let excess = wanted.saturating_sub(rate.units(rate.burst()));
        if excess > 0 {
            return Err(now.max(self.at) + rate.time_for(excess));
        }
        self.charge(rate, rate.units(cost), now);
        Ok(())
    }

    /// When it is full again.
    pub(crate) fn full_at(&self, rate: &RefillRate) -> Tick {
        self.at + rate.time_for(self.missing)
    }
}
