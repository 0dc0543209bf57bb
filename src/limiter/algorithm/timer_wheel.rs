use std::fmt;

use super::ring::Ring;
use super::{Layout, Room, Standing};
use crate::limiter::MAX_RATES;
use crate::limiter::quota::Rate;
use crate::time::{Span, Tick};

/// The most slots per window. What a key costs grows with them.
pub const MAX_SLOTS: u32 = 3_600;
const MIN_SLOT: Span = Span::from_millis(1);
const LONG_WINDOW: Span = Span::from_secs(60);

/// What a timer wheel promises, for `L` requests per window `W` in `N` slots of `w = W / N`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Bound {
    /// Never more than `L` in any aligned `W`: one slot, the classic wheel; up to `2 L` across an edge.
    Slot,
    /// Never more than `L` in any stretch of `W - w`; `L / W` when saturated.
    #[default]
    Sliding,
    /// Never more than `L` in any stretch of `W`; `L / W x N / (N + 1)` when saturated.
    Strict,
}

/// The timer wheel: for each key, a ring of how many were *admitted* in each of the last slots.
///
/// **Promises** what its [`Bound`] says; a burst of `L` at once is admitted in every mode. Finishing a request gives
/// nothing back: it limits a rate, not a concurrency. **Costs** two words a key and the counts of its slots, packed
/// in the narrowest of 8 to 64 bits that holds `L`: 32 bytes for 10 slots and `L` up to 255. **Choose it** when in
/// doubt. **Source**: the sliding window of counters over Varghese and Lauck's timing wheel ("Hashed and
/// Hierarchical Timing Wheels", 1987), where a slot has a queue as long as the rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimerWheel {
    rates: Vec<Rate>,
    slots: Vec<u32>,
    bound: Bound,
}

/// Why rates and slots make no timer wheel; each says what would.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerWheelError {
    /// Not one rate.
    NoRates,
    /// More than [`MAX_RATES`] rates.
    TooManyRates {
        /// How many there are.
        given: usize,
    },
    /// A window shorter than the shortest slot, 1 ms.
    WindowTooShort {
        /// The rate.
        rate: Rate,
    },
    /// The slots do not divide the window, are shorter than 1 ms, or are more than [`MAX_SLOTS`].
    Slots {
        /// The rate whose window they should divide.
        rate: Rate,
        /// How many were asked for.
        slots: u32,
        /// The nearest number that works.
        nearest: u32,
    },
}

impl TimerWheel {
    /// A wheel on which every one of `rates` (1 to [`MAX_RATES`]) holds.
    ///
    /// `slots` is the number of slots per window, for each rate; it has to divide the window in nanoseconds into
    /// slots of at least 1 ms. Without it a window below 60 s has 10 slots and a longer one 60, or the nearest number
    /// that divides. [`Bound::Slot`] always has one slot.
    pub fn new(rates: &[Rate], slots: Option<u32>, bound: Bound) -> Result<Self, TimerWheelError> {
        if rates.is_empty() {
            return Err(TimerWheelError::NoRates);
        }
        if rates.len() > MAX_RATES {
            return Err(TimerWheelError::TooManyRates { given: rates.len() });
        }
        let slots = rates.iter().map(|rate| slots_for(*rate, slots, bound)).collect::<Result<_, _>>()?;
        Ok(Self { rates: rates.to_vec(), slots, bound })
    }

    /// Its rates.
    pub fn rates(&self) -> &[Rate] {
        &self.rates
    }

    /// What it promises.
    pub fn bound(&self) -> Bound {
        self.bound
    }

    /// The slots per window of the `i`-th rate; `None` if there is no such rate.
    pub fn slots_of(&self, i: usize) -> Option<u32> {
        self.slots.get(i).copied()
    }
}

impl fmt::Display for TimerWheelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRates => write!(f, "a timer wheel needs a rate, like \"100/s\""),
            Self::TooManyRates { given } => write!(f, "{given} rates in one limit: at most {MAX_RATES}"),
            Self::WindowTooShort { rate } => {
                write!(f, "the window of {rate} is shorter than the shortest slot: use {MIN_SLOT} or longer")
            }
            Self::Slots { rate, slots, nearest } => write!(
                f,
                "{slots} slots do not divide the window of {rate} into equal slots of at least {MIN_SLOT}, \
                 at most {MAX_SLOTS} of them: use slots = {nearest}"
            ),
        }
    }
}

impl std::error::Error for TimerWheelError {}

fn slots_for(rate: Rate, slots: Option<u32>, bound: Bound) -> Result<u32, TimerWheelError> {
    let window = rate.window();
    if window < MIN_SLOT {
        return Err(TimerWheelError::WindowTooShort { rate });
    }
    let default = if window < LONG_WINDOW { 10 } else { 60 };
    match (bound, slots) {
        (Bound::Slot, _) => Ok(1),
        (_, Some(slots)) if divides(window, slots) => Ok(slots),
        (_, Some(slots)) => Err(TimerWheelError::Slots { rate, slots, nearest: nearest(window, slots) }),
        (_, None) => Ok(nearest(window, default)),
    }
}

fn divides(window: Span, slots: u32) -> bool {
    let slots_u64 = u64::from(slots);
    (1..=MAX_SLOTS).contains(&slots)
        && window.as_nanos().is_multiple_of(slots_u64)
        && window.as_nanos() / slots_u64 >= MIN_SLOT.as_nanos()
}

/// The nearest number of slots that divides the window, the smaller of two; 1 always does.
fn nearest(window: Span, slots: u32) -> u32 {
    let slots = slots.clamp(1, MAX_SLOTS);
    (0..MAX_SLOTS)
        .flat_map(|away| [slots.saturating_sub(away), slots.saturating_add(away)])
        .find(|candidate| divides(window, *candidate))
        .unwrap_or(1)
}

/// The rings of one limit, side by side in the words of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::limiter) struct Rings(Vec<Ring>);

impl Rings {
    pub(super) fn new(wheel: &TimerWheel, previous: Option<&Self>) -> Self {
        let ring = |(index, rate): (usize, &Rate)| {
            let slots = wheel.slots_of(index).unwrap_or(1);
            let summed = if wheel.bound == Bound::Strict { slots + 1 } else { slots };
            let ring = Ring::new(rate.limit(), rate.window(), slots, summed, 0);
            let source = previous.and_then(|previous| previous.source_of(&ring, index));
            let ceiling = source.map_or(0, |(_, old)| old.ceiling());
            Ring::new(rate.limit(), rate.window(), slots, summed, ceiling)
        };
        Self(wheel.rates.iter().enumerate().map(ring).collect())
    }

    pub(super) fn words(&self) -> usize {
        self.0.iter().map(Ring::words).sum()
    }

    pub(super) fn rates(&self) -> usize {
        self.0.len()
    }

    pub(super) fn quota(&self, rate: usize) -> (u64, Span) {
        self.0.get(rate).map_or((0, Span::ZERO), |ring| (ring.limit, ring.window))
    }

    pub(super) fn too_costly(&self, cost: u64) -> Option<usize> {
        self.0.iter().position(|ring| cost > ring.limit)
    }

    #[inline]
    pub(super) fn advance(&self, mut state: &mut [u64], now: Tick) {
        for ring in &self.0 {
            let Some((chunk, rest)) = state.split_at_mut_checked(ring.words()) else { return };
            ring.advance(chunk, now);
            state = rest;
        }
    }

    #[inline]
    pub(super) fn room(&self, state: &[u64], cost: u64) -> Room {
        let mut all = Room::Now;
        for (rate, (ring, chunk)) in self.chunks(state).enumerate() {
            match ring.room(chunk, cost) {
                Room::Now => {}
                Room::Never { .. } => return Room::Never { rate },
                Room::At { at, .. } => match all {
                    Room::At { at: latest, .. } if latest >= at => {}
                    _ => all = Room::At { at, rate },
                },
            }
        }
        all
    }

    #[inline]
    pub(super) fn commit(&self, mut state: &mut [u64], cost: u64) {
        for ring in &self.0 {
            let Some((chunk, rest)) = state.split_at_mut_checked(ring.words()) else { return };
            ring.commit(chunk, cost);
            state = rest;
        }
    }

    pub(super) fn standing(&self, state: &[u64], rate: usize, next: Option<Tick>) -> Standing {
        let Some((ring, chunk)) = self.chunks(state).nth(rate) else {
            return Standing { remaining: 0, grows_at: None };
        };
        let (remaining, grows_at) = ring.standing(chunk, next);
        Standing { remaining, grows_at }
    }

    pub(super) fn is_idle(&self, state: &[u64], now: Tick) -> bool {
        self.chunks(state).all(|(ring, chunk)| ring.is_empty_at(chunk, now))
    }

    pub(super) fn recency(state: &[u64]) -> u64 {
        state.first().copied().unwrap_or(0)
    }

    pub(super) fn same_moment(&self, a: Tick, b: Tick) -> bool {
        self.0.iter().all(|ring| ring.slot_at(a) == ring.slot_at(b))
    }

    pub(super) fn layout_since(&self, old: &Self) -> Layout {
        let pairs = || self.0.iter().zip(&old.0);
        if self.0.len() != old.0.len() || !pairs().all(|(new, old)| new.same_slots(old)) {
            Layout::Rescaled
        } else if pairs().all(|(new, old)| new.same_layout(old)) {
            Layout::Kept
        } else {
            Layout::Repacked
        }
    }

    pub(super) fn take_over(&self, old: &Self, from: &[u64], mut to: &mut [u64], latest: Tick) {
        for (index, ring) in self.0.iter().enumerate() {
            let Some((chunk, rest)) = to.split_at_mut_checked(ring.words()) else { return };
            if let Some((source, old_ring)) = old.source_of(ring, index)
                && let Some((_, from)) = old.chunks(from).nth(source)
            {
                ring.take_over(old_ring, from, chunk, latest);
            }
            to = rest;
        }
    }

    /// The ring here that knows best what a new ring should start from: the one with the same slots, else the finest
    /// history that reaches far enough back, else the longest.
    fn source_of(&self, new: &Ring, index: usize) -> Option<(usize, &Ring)> {
        let same = |at: usize| self.0.get(at).filter(|old| old.same_slots(new)).map(|old| (at, old));
        same(index).or_else(|| (0..self.0.len()).find_map(same)).or_else(|| {
            let reaching = self.0.iter().enumerate().filter(|(_, old)| old.coverage() >= new.coverage());
            reaching
                .min_by_key(|(_, old)| old.coverage())
                .or_else(|| self.0.iter().enumerate().max_by_key(|(_, old)| old.coverage()))
        })
    }

    fn chunks<'a>(&'a self, mut state: &'a [u64]) -> impl Iterator<Item = (&'a Ring, &'a [u64])> + 'a {
        self.0.iter().map_while(move |ring| {
            let (chunk, rest) = state.split_at_checked(ring.words())?;
            state = rest;
            Some((ring, chunk))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wheel(rate: &str, slots: Option<u32>, bound: Bound) -> Result<TimerWheel, TimerWheelError> {
        TimerWheel::new(&[rate.parse().unwrap()], slots, bound)
    }

    fn slots(rate: &str, slots: Option<u32>, bound: Bound) -> Option<u32> {
        wheel(rate, slots, bound).unwrap().slots_of(0)
    }

    #[test]
    fn windows_have_ten_slots_below_a_minute_and_sixty_from_there() {
        assert_eq!(slots("3/s", None, Bound::Sliding), Some(10));
        assert_eq!(slots("3/59s", None, Bound::Sliding), Some(10));
        assert_eq!(slots("3/60s", None, Bound::Strict), Some(60));
        assert_eq!(slots("3/h", None, Bound::Strict), Some(60));
        assert_eq!(slots("3/h", None, Bound::Slot), Some(1));
        assert_eq!(slots("3/h", Some(7), Bound::Slot), Some(1));
        assert_eq!(slots("3/5ms", None, Bound::Sliding), Some(5), "slots are not shorter than 1 ms");
        assert_eq!(slots("3/1000000007ns", None, Bound::Sliding), Some(1), "a prime number of nanoseconds");
        assert_eq!(wheel("3/s", None, Bound::Strict).unwrap().slots_of(1), None);
    }

    #[test]
    fn slots_that_do_not_divide_name_the_nearest_that_do() {
        for (rate, slots, nearest) in
            [("3/s", 7, 8), ("3/s", 3, 2), ("3/s", 0, 1), ("3/s", 5000, 1000), ("3/2ms", 5, 2)]
        {
            let error = wheel(rate, Some(slots), Bound::Sliding).unwrap_err();
            let parsed = rate.parse().unwrap();
            assert_eq!(error, TimerWheelError::Slots { rate: parsed, slots, nearest });
            assert!(error.to_string().ends_with(&format!("use slots = {nearest}")), "{error}");
            assert_eq!(self::slots(rate, Some(nearest), Bound::Sliding), Some(nearest));
        }
        assert!(matches!(wheel("3/999us", None, Bound::Slot), Err(TimerWheelError::WindowTooShort { .. })));
        assert_eq!(TimerWheel::new(&[], None, Bound::Slot), Err(TimerWheelError::NoRates));
        let rate = "3/s".parse().unwrap();
        assert_eq!(TimerWheel::new(&[rate; 5], None, Bound::Slot), Err(TimerWheelError::TooManyRates { given: 5 }));
    }

    #[test]
    fn a_changed_limit_keeps_the_words_and_changed_slots_rebuild_them() {
        let rings = |rate, slots, bound, previous| Rings::new(&wheel(rate, slots, bound).unwrap(), previous);
        let old = rings("200/s", None, Bound::Sliding, None);
        assert_eq!(rings("5/s", None, Bound::Sliding, Some(&old)).layout_since(&old), Layout::Kept);
        assert_eq!(rings("300/s", None, Bound::Sliding, Some(&old)).layout_since(&old), Layout::Repacked);
        assert_eq!(rings("200/s", Some(20), Bound::Sliding, Some(&old)).layout_since(&old), Layout::Rescaled);
        assert_eq!(rings("200/s", None, Bound::Strict, Some(&old)).layout_since(&old), Layout::Rescaled);
        assert_eq!(rings("200/2s", None, Bound::Sliding, Some(&old)).layout_since(&old), Layout::Rescaled);
    }

    #[test]
    fn swapped_rates_keep_their_own_counts() {
        let (second, minute) = ("10/s".parse().unwrap(), "100/m".parse().unwrap());
        let old = Rings::new(&TimerWheel::new(&[second, minute], None, Bound::Sliding).unwrap(), None);
        let new = Rings::new(&TimerWheel::new(&[minute, second], None, Bound::Sliding).unwrap(), Some(&old));
        let (mut from, mut to) = (vec![0; old.words()], vec![0; new.words()]);
        let now = Tick::ZERO + Span::from_secs(90);
        old.advance(&mut from, now - Span::from_secs(5));
        old.commit(&mut from, 4);
        old.advance(&mut from, now);
        old.commit(&mut from, 3);
        new.take_over(&old, &from, &mut to, now);
        assert_eq!(new.standing(&to, 0, None).remaining, 93);
        assert_eq!(new.standing(&to, 1, None).remaining, 7);
        assert_eq!(new.quota(1), (10, Span::from_secs(1)));
    }
}
