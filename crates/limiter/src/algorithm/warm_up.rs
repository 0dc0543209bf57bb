use super::pace::{Pace, checked};
use super::several::RateMeter;
use super::{AlgorithmError, FitTime, LayoutChange, Moment, RateStanding, in_time};
use crate::quota::Rate;
use sluicegate_time::{Span, Tick};

/// The largest cold factor.
pub const MAX_COLD_FACTOR: u32 = 100;

const COLD_FACTOR: u32 = 3;
const LONGEST: Span = Span::from_secs(3_600);

/// Guava's smooth warm-up: a key that rested is cold and gets through `cold_factor` times as slowly; under load it
/// warms up to its rate within `warm_up`.
///
/// **Promises** that requests are at least `W / L` apart, and the first ones after a rest up to `cold_factor` times
/// that. A request passes when it is its turn whatever it costs, and the next one pays by waiting, as with
/// [`SmoothBursty`](super::SmoothBursty). It waits by itself: `max_wait` is 1 s if not said otherwise; a cold key of
/// which the next request is `cold_factor x W / L` away needs at least that. **Costs** three words a key, 32 bytes with
/// its fingerprint. **Choose it** before a server with cold caches. **Source**: Guava, `SmoothRateLimiter.
/// SmoothWarmingUp`. A key never seen is cold.
///
/// A cost that a request took and did not have in the end is not given back: how cold the key was before is not kept,
/// and a key that is too warm would be let through too fast.
///
/// Guava stores permits; what is kept here is their mirror in time, how long the key would have to rest to be cold
/// again. In it the interval between requests falls on a straight line from `cold_factor x W / L` (cold) to `W / L`,
/// so that the time a request costs is a difference of two squares, in whole numbers of 2^-16 ns: no floating point,
/// and each rounding is to the strict side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmUp {
    pub(super) rates: Vec<Rate>,
    period: Span,
    cold_factor: u32,
}

impl WarmUp {
    /// Every one of `rates` (1 to [`MAX_RATES`](crate::MAX_RATES)) holds. `warm_up` is how long a cold key
    /// under load takes to its full rate, at least 1 ms and at most an hour; `cold_factor` is 2 to
    /// [`MAX_COLD_FACTOR`], without it 3.
    pub fn new(rates: &[Rate], warm_up: Span, cold_factor: Option<u32>) -> Result<Self, AlgorithmError> {
        let (rates, cold_factor) = (checked(rates)?, cold_factor.unwrap_or(COLD_FACTOR));
        if warm_up < Span::from_millis(1) || warm_up > LONGEST {
            return Err(AlgorithmError::WarmUp { longest: LONGEST });
        }
        if !(2..=MAX_COLD_FACTOR).contains(&cold_factor) {
            return Err(AlgorithmError::ColdFactor { given: cold_factor });
        }
        Ok(Self { rates, period: warm_up, cold_factor })
    }

    /// Its rates.
    pub fn rates(&self) -> &[Rate] {
        &self.rates
    }

    /// How long a cold key takes to its full rate.
    pub fn warm_up(&self) -> Span {
        self.period
    }

    /// How many times slower a cold key is.
    pub fn cold_factor(&self) -> u32 {
        self.cold_factor
    }

    /// How far apart the first two requests of a cold key are at most, over all rates: `cold_factor x W / L`.
    pub fn coldest(&self) -> Span {
        let interval = |rate: &Rate| {
            let nanos = u128::from(rate.window().as_nanos()) * u128::from(self.cold_factor);
            Span::from_nanos(u64::try_from(nanos.div_ceil(u128::from(rate.limit()))).unwrap_or(u64::MAX))
        };
        self.rates.iter().map(interval).max().unwrap_or_default()
    }

    pub(super) fn meters(&self) -> Vec<Warmth> {
        let factor = u128::from(self.cold_factor);
        let rest = fixed(self.period);
        // Of the rest from warm to cold, the part in which the interval is above W / L: 4 / (5 + cold_factor).
        let slope = rest * 4 / (5 + factor);
        self.rates.iter().map(|rate| Warmth { rate: *rate, pace: Pace::new(*rate), factor, rest, slope }).collect()
    }
}

/// One rate. Three words: the next turn in nanoseconds, its fraction, and the *warmth* as of then: how much rest it
/// would take to be cold, in fixed point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Warmth {
    rate: Rate,
    pace: Pace,
    factor: u128,
    /// The warmth of a key that has reached its rate with nothing stored.
    rest: u128,
    /// Up to this warmth the interval between requests falls.
    slope: u128,
}

/// Bits of a nanosecond's fraction.
const BITS: u32 = 16;

#[derive(Clone, Copy)]
struct Stand {
    /// In fixed point.
    next: u128,
    warmth: u128,
}

impl Warmth {
    /// The state at `now`: a turn in the past has become rest.
    fn as_of(chunk: &[u64], now: Tick) -> Stand {
        let word = |index| u128::from(chunk.get(index).copied().unwrap_or(0));
        let (next, now) = ((word(0) << BITS) + word(1), u128::from(now.as_nanos()) << BITS);
        Stand { next: next.max(now), warmth: word(2).saturating_sub(now.saturating_sub(next)) }
    }

    /// The time that `cost` requests take at the rate, in fixed point, rounded up.
    fn time_of(&self, cost: u64) -> u128 {
        let nanos = u128::from(cost) * u128::from(self.rate.window().as_nanos());
        let limit = u128::from(self.rate.limit());
        ((nanos / limit) << BITS) + ((nanos % limit) << BITS).div_ceil(limit)
    }

    /// The warmth that `time` at the rate brings, `2 (1 + f) / (5 + f)` of it, rounded down.
    fn warms(&self, time: u128) -> u128 {
        time.saturating_mul(2 * (1 + self.factor)) / (5 + self.factor)
    }

    /// The time that it takes to warm up from cold to `warmth`, rounded down: `(5 + f) / (2 (1 + f))` of the area under
    /// the interval, which falls from `f` to 1 along the slope.
    fn area(&self, warmth: u128) -> u128 {
        let (factor, slope) = (self.factor, self.slope.max(1));
        let on_slope = warmth.min(slope);
        let sloping = on_slope * (2 * slope * factor - (factor - 1) * on_slope) / (2 * slope);
        (sloping + (warmth - on_slope)) * (5 + factor) / (2 * (1 + factor))
    }

    /// The permits that a key of this warmth has stored, and how much more rest the next one takes.
    fn stored(&self, warmth: u128) -> (u64, u128) {
        let rested = self.rest.saturating_sub(warmth);
        // A permit takes W / L x 2 (1 + f) / (5 + f) of rest.
        let permit = (u128::from(self.rate.window().as_nanos()) << BITS) * 2 * (1 + self.factor);
        let share = u128::from(self.rate.limit()) * (5 + self.factor);
        let stored = rested * share / permit;
        let next = ((stored + 1) * permit).div_ceil(share);
        (u64::try_from(stored).unwrap_or(u64::MAX), next.saturating_sub(rested))
    }
}

impl RateMeter for Warmth {
    fn words(&self) -> usize {
        3
    }

    fn quota(&self) -> (u64, Span) {
        (self.rate.limit(), self.rate.window())
    }

    #[inline]
    fn largest(&self) -> u64 {
        self.pace.largest()
    }

    fn fresh(&self) -> u64 {
        self.stored(0).0.saturating_add(1)
    }

    #[inline]
    fn room(&self, chunk: &[u64], cost: u64, now: Tick) -> FitTime {
        if cost > self.largest() {
            return FitTime::Never { rate: 0 };
        }
        let next = turn(chunk);
        if next <= now { FitTime::Now } else { FitTime::At { at: next, rate: 0 } }
    }

    fn commit(&self, chunk: &mut [u64], cost: u64, moment: Moment) {
        let before = Self::as_of(chunk, moment.due);
        let time = self.time_of(cost);
        let warmth = before.warmth.saturating_add(self.warms(time)).min(self.rest);
        // Once it is warm the rest of the cost goes at the rate.
        let gained = warmth.saturating_sub(before.warmth);
        let at_rate = if warmth == self.rest {
            time.saturating_sub(gained * (5 + self.factor) / (2 * (1 + self.factor)))
        } else {
            0
        };
        let wait = self.area(warmth) - self.area(before.warmth.min(warmth)) + 1 + at_rate;
        let wait = if cost == 0 { 0 } else { wait };
        let next = before.next.saturating_add(wait);
        let nanos = u64::try_from(next >> BITS).unwrap_or(u64::MAX);
        let fraction = (next & ((1 << BITS) - 1)) as u64;
        for (word, value) in chunk.iter_mut().zip([nanos, fraction, warmth as u64]) {
            *word = value;
        }
    }

    /// The whole permits stored, and one more if it is somebody's turn.
    fn standing(&self, chunk: &[u64], now: Tick) -> RateStanding {
        let (stored, next_permit) = self.stored(Self::as_of(chunk, now).warmth);
        if let FitTime::At { at, .. } = self.room(chunk, 1, now) {
            return RateStanding { remaining: stored, grows_at: Some(at) };
        }
        let grows = stored < self.stored(0).0;
        let nanos = u64::try_from(next_permit.div_ceil(1 << BITS)).unwrap_or(u64::MAX);
        let grows_at = grows.then(|| now + Span::from_nanos(nanos));
        RateStanding { remaining: stored.saturating_add(1), grows_at }
    }

    /// Cold.
    fn is_idle(&self, chunk: &[u64], now: Tick) -> bool {
        turn(chunk) <= now && Self::as_of(chunk, now).warmth == 0
    }

    fn same_moment(&self, a: Tick, b: Tick) -> bool {
        in_time(a, b)
    }

    fn layout_since(&self, old: &Self) -> LayoutChange {
        if self.rest == old.rest { LayoutChange::Kept } else { LayoutChange::Rescaled }
    }

    /// The next turn stays; as warm as before in proportion, rounded to the cold side.
    fn take_over(&self, old: &Self, from: &[u64], to: &mut [u64], _: Tick) {
        let warmth = u128::from(from.get(2).copied().unwrap_or(0)) * self.rest / old.rest.max(1);
        for (index, word) in to.iter_mut().enumerate() {
            *word = if index == 2 { warmth as u64 } else { from.get(index).copied().unwrap_or(0) };
        }
    }
}

fn fixed(span: Span) -> u128 {
    u128::from(span.as_nanos()) << BITS
}

/// The first whole instant of the next turn.
fn turn(chunk: &[u64]) -> Tick {
    let fraction = chunk.get(1).copied().unwrap_or(0);
    Tick::from_nanos(chunk.first().copied().unwrap_or(0).saturating_add(u64::from(fraction > 0)))
}
