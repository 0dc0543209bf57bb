use super::pace::{LONGEST, checked};
use super::several::RateMeter;
use super::{AlgorithmError, CommitFacts, FitTime, LayoutChange, Moment, RateStanding};
use crate::quota::Rate;
use sluicegate_time::{Span, Tick};

/// The most stamps per key and rate: each takes 8 bytes of every key.
pub const MAX_LOG: u64 = 4_096;

/// The sliding log: the exact instants of the last `L` requests.
///
/// **Promises** never more than `L` in any stretch of `W`, to the nanosecond: a stamp leaves at exactly `t + W`. With
/// `min_difference` two requests are besides at least that far apart; with `count_refused` a refusal for want of room
/// is entered too, so that who does not pause is not let in. **Costs** `L + 1` words a key, 8 bytes a request: `L` is
/// at most [`MAX_LOG`]. **Choose it** where the bound must be exact and `L` is small, as for logins. **Source**: Class
/// Dojo's rolling rate limiter (2015), there in a Redis sorted set; the times at which stamps leave are kept here in a
/// ring, so that nothing is searched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingLog {
    pub(super) rates: Vec<Rate>,
    min_difference: Span,
    count_refused: bool,
}

impl SlidingLog {
    /// Every one of `rates` (1 to [`MAX_RATES`](crate::MAX_RATES)) holds, with an `L` of at most [`MAX_LOG`]
    /// each. `min_difference` is zero for none, and at most a hundred years.
    pub fn new(rates: &[Rate], min_difference: Span, count_refused: bool) -> Result<Self, AlgorithmError> {
        let rates = checked(rates)?;
        if let Some(rate) = rates.iter().find(|rate| rate.limit() > MAX_LOG) {
            return Err(AlgorithmError::LogTooLong { rate: *rate, most: MAX_LOG });
        }
        if min_difference > LONGEST {
            return Err(AlgorithmError::MinDifferenceTooLong { longest: LONGEST });
        }
        Ok(Self { rates, min_difference, count_refused })
    }

    /// Its rates.
    pub fn rates(&self) -> &[Rate] {
        &self.rates
    }

    /// How far two requests are apart at least.
    pub fn min_difference(&self) -> Span {
        self.min_difference
    }

    /// Whether refusals are entered too.
    pub fn count_refused(&self) -> bool {
        self.count_refused
    }

    pub(super) fn meters(&self) -> Vec<Stamps> {
        let Self { min_difference, count_refused, .. } = *self;
        let stamps = |rate: &Rate| Stamps {
            limit: rate.limit(),
            places: rate.limit(),
            window: rate.window(),
            min_difference,
            count_refused,
        };
        self.rates.iter().map(stamps).collect()
    }
}

/// One rate: a ring of `places` stamps behind a word that says where the next one goes, which is where the oldest is.
///
/// A stamp is the instant at which it leaves, so that a free place, zero, is one that has left. The highest bit of the
/// first word is [`LOST`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stamps {
    limit: u64,
    /// As many as the largest limit since the start: what was counted by that is not forgotten.
    places: u64,
    window: Span,
    min_difference: Span,
    count_refused: bool,
}

/// Stamps were written over before they had left, because more was counted than there was room for. How many is not known,
/// so none is taken out. The next entry that finds room ends it: by then the oldest stamp has left, and with it all that
/// are as old as those that were lost.
const LOST: u64 = 1 << 63;

impl Stamps {
    /// When the `nth` oldest stamp, from 0, leaves.
    #[inline]
    fn leaves(&self, chunk: &[u64], nth: u64) -> Tick {
        Tick::from_nanos(chunk.get(self.place(chunk, nth)).copied().unwrap_or(0))
    }

    /// The index of the word that holds the `nth` oldest stamp.
    #[inline]
    fn place(&self, chunk: &[u64], nth: u64) -> usize {
        let oldest = chunk.first().copied().unwrap_or(0) & !LOST;
        1 + ((oldest + nth) % self.places.max(1)) as usize
    }

    /// From when `min_difference` allows another one.
    fn apart(&self, chunk: &[u64]) -> Tick {
        let newest = self.leaves(chunk, self.places.saturating_sub(1));
        let is_there = newest > Tick::ZERO && !self.min_difference.is_zero();
        if is_there { newest - self.window + self.min_difference } else { Tick::ZERO }
    }

    fn live(&self, chunk: &[u64], now: Tick) -> u64 {
        self.places - self.left_by(chunk, now)
    }

    /// How many places are free at `at`, or hold a stamp that leaves by then.
    fn left_by(&self, chunk: &[u64], at: Tick) -> u64 {
        // Oldest first, they leave in order: the first that has not left is found by halving.
        let (mut left, mut live) = (0, self.places);
        while left < live {
            let middle = left.midpoint(live);
            if self.leaves(chunk, middle) <= at { left = middle + 1 } else { live = middle }
        }
        left
    }

    fn enter(&self, chunk: &mut [u64], count: u64, leaves: Tick) {
        let Some((word, stamps)) = chunk.split_first_mut() else { return };
        if count == 0 {
            return;
        }
        let now = (leaves - self.window).as_nanos();
        let mut next = *word & !LOST;
        let mut lost = count > self.places;
        for _ in 0..count.min(self.places) {
            if let Some(stamp) = stamps.get_mut(next as usize) {
                lost |= *stamp > now;
                *stamp = leaves.as_nanos();
            }
            next = if next + 1 >= self.places { 0 } else { next + 1 };
        }
        *word = if lost { next | LOST } else { next };
    }

    /// Takes `count` of the stamps out that leave at `leaves`: the older ones move up, and the oldest places are free.
    fn take_out(&self, chunk: &mut [u64], count: u64, leaves: Tick) {
        let end = self.left_by(chunk, leaves);
        let first = self.left_by(chunk, leaves - Span::from_nanos(1));
        let gone = count.min(end - first);
        for nth in (0..end).rev() {
            let (from, to) = (nth.checked_sub(gone), self.place(chunk, nth));
            let stamp = from.map_or(0, |from| self.leaves(chunk, from).as_nanos());
            if let Some(place) = chunk.get_mut(to) {
                *place = stamp;
            }
        }
    }
}

impl RateMeter for Stamps {
    fn words(&self) -> usize {
        1 + self.places as usize
    }

    fn quota(&self) -> (u64, Span) {
        (self.limit, self.window)
    }

    #[inline]
    fn largest(&self) -> u64 {
        self.limit
    }

    fn fresh(&self) -> u64 {
        if self.min_difference.is_zero() { self.limit } else { 1 }
    }

    #[inline]
    fn room(&self, chunk: &[u64], cost: u64, now: Tick) -> FitTime {
        if cost > self.limit {
            return FitTime::Never { rate: 0 };
        }
        // The places of the oldest have to be free.
        let free = if cost == 0 { Tick::ZERO } else { self.leaves(chunk, self.places - self.limit + cost - 1) };
        let at = free.max(self.apart(chunk));
        if at <= now { FitTime::Now } else { FitTime::At { at, rate: 0 } }
    }

    /// Entered when it passes, not when its timer was due: the bound is over real time.
    #[inline]
    fn commit(&self, chunk: &mut [u64], cost: u64, moment: Moment) {
        self.enter(chunk, cost, moment.now + self.window);
    }

    fn give_back(&self, chunk: &mut [u64], cost: u64, taken: &CommitFacts, _: Tick) {
        // Also where they have left already: they may keep others at a distance still.
        if cost > 0 && chunk.first().is_some_and(|word| word & LOST == 0) {
            self.take_out(chunk, cost, taken.at + self.window);
        }
    }

    fn counts_refused(&self) -> bool {
        self.count_refused
    }

    fn note_refused(&self, chunk: &mut [u64], cost: u64, now: Tick) {
        if self.count_refused {
            self.enter(chunk, cost, now + self.window);
        }
    }

    /// With a `min_difference` at most one is admitted at any instant.
    fn standing(&self, chunk: &[u64], now: Tick) -> RateStanding {
        let free = self.limit.saturating_sub(self.live(chunk, now));
        let remaining = if self.apart(chunk) > now { 0 } else { free.min(self.fresh()) };
        RateStanding::before(remaining, self.fresh(), |more| self.room(chunk, more, now))
    }

    fn is_idle(&self, chunk: &[u64], now: Tick) -> bool {
        self.leaves(chunk, self.places.saturating_sub(1)) <= now && self.apart(chunk) <= now
    }

    fn recency(&self, chunk: &[u64]) -> u64 {
        self.leaves(chunk, self.places.saturating_sub(1)).as_nanos()
    }

    fn same_moment(&self, a: Tick, b: Tick) -> bool {
        a == b
    }

    fn layout_since(&self, old: &Self) -> LayoutChange {
        if self.places == old.places && self.window == old.window { LayoutChange::Kept } else { LayoutChange::Rescaled }
    }

    fn remembering(&self, old: &Self) -> Self {
        Self { places: self.places.max(old.places), ..self.clone() }
    }

    /// As many stamps stay as there are places, the newest ones, and leave by the new window.
    fn take_over(&self, old: &Self, from: &[u64], to: &mut [u64], _: Tick) {
        for nth in old.places.saturating_sub(self.places)..old.places {
            let leaves = old.leaves(from, nth);
            if leaves > Tick::ZERO {
                self.enter(to, 1, leaves - old.window + self.window);
            }
        }
    }
}
