use std::fmt;

use super::ring::Ring;
use crate::MAX_RATES;
use crate::quota::Rate;
use sluicegate_time::Span;

/// The most slots per window. A key costs more with each of them.
pub const MAX_SLOTS: u32 = 3_600;
const MIN_SLOT: Span = Span::from_millis(1);
const LONG_WINDOW: Span = Span::from_secs(60);

words! {
    /// The promise of a timer wheel, for `L` requests per window `W` in `N` slots of `w = W / N`.
    pub enum Bound default Sliding {
        /// Never more than `L` in any stretch of `W - w`; `L / W` when saturated.
        Sliding = "sliding",
        /// Never more than `L` in any aligned `W`: one slot, the classic wheel; up to `2 L` across an edge.
        Slot = "slot",
        /// Never more than `L` in any stretch of `W`; `L / W x N / (N + 1)` when saturated.
        Strict = "strict",
    }
}

/// The timer wheel: for each key, a ring of how many were *admitted* in each of the last slots.
///
/// **Promises** what its [`Bound`] says; a burst of `L` at once is admitted in every mode. Finishing a request gives
/// nothing back: it limits a rate, not a concurrency. **Costs** two words a key and the counts of its slots, packed
/// in the narrowest of 8 to 64 bits that holds twice `L`: 32 bytes for 10 slots and `L` up to 127. **Choose it** when in
/// doubt. **Source**: the sliding window of counters over Varghese and Lauck's timing wheel ("Hashed and
/// Hierarchical Timing Wheels", 1987), where a slot has a queue as long as the rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimerWheel {
    pub(super) rates: Vec<Rate>,
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
        let slots_of = |rate: &Rate| {
            let default = if rate.window() < LONG_WINDOW { 10 } else { 60 };
            slots_for(*rate, slots, default, bound)
        };
        let slots = rates.iter().map(slots_of).collect::<Result<_, _>>()?;
        Ok(Self { rates: rates.to_vec(), slots, bound })
    }

    /// Its rates.
    pub fn rates(&self) -> &[Rate] {
        &self.rates
    }

    /// The bound that it promises.
    pub fn bound(&self) -> Bound {
        self.bound
    }

    /// The slots per window of the `i`-th rate; `None` if there is no such rate.
    pub fn slots_of(&self, i: usize) -> Option<u32> {
        self.slots.get(i).copied()
    }

    /// A ring for each rate, without a past.
    pub(super) fn rings(&self) -> Vec<Ring> {
        let ring = |(rate, slots): (&Rate, &u32)| {
            let summed = if self.bound == Bound::Strict { slots + 1 } else { *slots };
            Ring::new(rate.limit(), rate.window(), *slots, summed, 0)
        };
        self.rates.iter().zip(&self.slots).map(ring).collect()
    }

    /// The same, whose slots hold debts.
    pub(super) fn rings_with_debts(&self) -> Vec<Ring> {
        self.rings().iter().map(Ring::with_debts).collect()
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

/// The slots of a window: `slots` if they divide it; if not given, the number nearest to `default` that does.
pub(super) fn slots_for(rate: Rate, slots: Option<u32>, default: u32, bound: Bound) -> Result<u32, TimerWheelError> {
    let window = rate.window();
    if window < MIN_SLOT {
        return Err(TimerWheelError::WindowTooShort { rate });
    }
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

#[cfg(test)]
mod tests {
    use super::super::several::RateSet;
    use super::super::{LayoutChange, Moment};
    use super::*;
    use sluicegate_time::Tick;

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
        let rings =
            |rate, slots, bound, previous| RateSet::new(&wheel(rate, slots, bound).unwrap().rings(), None, previous);
        let old = rings("100/s", None, Bound::Sliding, None);
        assert_eq!(rings("5/s", None, Bound::Sliding, Some(&old)).layout_since(&old), LayoutChange::Kept);
        assert_eq!(rings("300/s", None, Bound::Sliding, Some(&old)).layout_since(&old), LayoutChange::Repacked);
        assert_eq!(rings("100/s", Some(20), Bound::Sliding, Some(&old)).layout_since(&old), LayoutChange::Rescaled);
        assert_eq!(rings("100/s", None, Bound::Strict, Some(&old)).layout_since(&old), LayoutChange::Rescaled);
        assert_eq!(rings("100/2s", None, Bound::Sliding, Some(&old)).layout_since(&old), LayoutChange::Rescaled);
    }

    #[test]
    fn swapped_rates_keep_their_own_counts() {
        let (second, minute) = ("10/s".parse().unwrap(), "100/m".parse().unwrap());
        let rings = |rates: &[Rate], previous: Option<&RateSet<Ring>>| {
            RateSet::new(&TimerWheel::new(rates, None, Bound::Sliding).unwrap().rings(), None, previous)
        };
        let old = rings(&[second, minute], None);
        let new = rings(&[minute, second], Some(&old));
        let (mut from, mut to) = (vec![0; old.words()], vec![0; new.words()]);
        let now = Tick::ZERO + Span::from_secs(90);
        old.advance(&mut from, now - Span::from_secs(5));
        old.commit(&mut from, 4, Moment::at(now - Span::from_secs(5)));
        old.advance(&mut from, now);
        old.commit(&mut from, 3, Moment::at(now));
        new.take_over(&old, &from, &mut to, now);
        assert_eq!(new.standing(&to, 0, now).remaining, 93);
        assert_eq!(new.standing(&to, 1, now).remaining, 7);
        assert_eq!(new.quota(1), (10, Span::from_secs(1)));
    }
}
