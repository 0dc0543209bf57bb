//! Time as the pure rooms see it: an instant ([`Tick`]) and a length ([`Span`]), both in whole nanoseconds.
//!
//! Pure code takes `now: Tick` as an argument. The only reading of a clock in the crate is [`Clock::now`].
//! All arithmetic saturates: an absurd configuration gives a far deadline, never a wrapped one.
//!
//! Time as people tell it, days in a [`Zone`], is here too: [`Calendar`] says when the window of an instant begins and
//! ends, [`Schedule`] whether something holds. Both remember what they said last, for all threads, so that to ask them is a
//! load and a comparison.
//!
//! A tick is Unix time as of the process's start, and monotonic since: a wall clock that is set moves no tick. The time that
//! people and other machines go by is a [`Wall`], and a [`WallOffset`] says what it is at a tick. Calendars and schedules
//! go by it.

#[macro_use]
extern crate sluicegate_words;

mod calendar;
mod clock;
mod schedule;
mod stretch;
mod wall;
mod wheel;
mod zone;

use std::fmt;
use std::ops::{Add, Sub};
use std::str::FromStr;
use std::time::Duration;

pub use calendar::{Calendar, CalendarUnit, CalendarWindow, CountedWindow};
pub use clock::{Clock, ManualClock};
pub use schedule::{DayTime, Days, LocalTime, Schedule, ScheduleError, ScheduleRules, Weekday};
pub use wall::{Wall, WallOffset, WallState};
pub use wheel::{Handle, Wheel};
pub use zone::{UnknownZone, Zone};

/// An instant, in nanoseconds.
///
/// In production tick 0 is the Unix epoch, as the wall clock had it at start, and ticks are monotonic from there: it is no
/// time to be shown, which is a [`Wall`]. Under a [`ManualClock`] tick 0 is wherever the test starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tick(u64);

/// A length of time, in nanoseconds; at most about 584 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(u64);

impl Tick {
    /// The first instant.
    pub const ZERO: Self = Self(0);
    /// The last instant that can be represented: "never".
    pub const MAX: Self = Self(u64::MAX);

    /// The instant `nanos` nanoseconds after tick 0.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since tick 0.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to `self`; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Span {
    /// No time at all.
    pub const ZERO: Self = Self(0);
    /// The longest span: "without end".
    pub const MAX: Self = Self(u64::MAX);

    /// The time before a try is repeated, by chance: from nothing to a bound that is `first` after one try, doubles with each, and
    /// is at most `most`. `random` is any number ("full jitter": Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog,
    /// 2015).
    pub fn full_jitter(first: Self, most: Self, tries: u32, random: u64) -> Self {
        let bound = first.0.saturating_mul(1 << tries.saturating_sub(1).min(40)).min(most.0);
        Self(((u128::from(bound) * u128::from(random)) >> 64) as u64)
    }

    /// A span of `nanos` nanoseconds.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// A span of `millis` milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// A span of `secs` seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// Its length in nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Its length in milliseconds, to the microsecond: the rest is noise to people.
    pub fn in_millis(self) -> f64 {
        (self.0 / 1_000) as f64 / 1_000.0
    }

    /// Its length in milliseconds, rounded up.
    pub const fn as_millis_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// Its length in seconds, rounded up: what `Retry-After` and the rate headers count in.
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000_000)
    }

    /// Whether it is no time at all.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl Add<Span> for Tick {
    type Output = Self;
    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Sub<Span> for Tick {
    type Output = Self;
    fn sub(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        Self::from_nanos(span.0)
    }
}

impl From<Duration> for Span {
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

const UNITS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60 * 1_000_000_000),
    ("h", 3_600 * 1_000_000_000),
    ("d", 86_400 * 1_000_000_000),
];

/// Why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpanError {
    /// It is not a whole number followed by a unit.
    Form,
    /// The unit is none of `ns us ms s m h d`.
    Unit(String),
    /// It is longer than 584 years.
    TooLong,
}

impl fmt::Display for SpanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Form => {
                write!(f, "a duration is a whole number and a unit, like \"250ms\", \"5s\" or \"1m\"")
            }
            Self::Unit(unit) => write!(f, "{unit:?} is no unit of time: use ns, us, ms, s, m, h or d"),
            Self::TooLong => write!(f, "a duration is at most 584 years"),
        }
    }
}

impl std::error::Error for SpanError {}

impl FromStr for Span {
    type Err = SpanError;

    /// Parses `"250ms"`, `"5s"`, `"1m"`: a whole number and one of `ns us ms s m h d`.
    fn from_str(text: &str) -> Result<Self, SpanError> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        if number.is_empty() || unit.is_empty() {
            return Err(SpanError::Form);
        }
        let nanos = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(|| SpanError::Unit(unit.to_owned()))?.1;
        let number: u64 = number.parse().map_err(|_| SpanError::TooLong)?;
        number.checked_mul(nanos).map(Span).ok_or(SpanError::TooLong)
    }
}

impl fmt::Display for Span {
    /// The shortest exact form: `1m`, `1500ms`, `250us`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0s");
        }
        let (name, nanos) = UNITS.iter().rev().find(|(_, nanos)| self.0.is_multiple_of(*nanos)).unwrap_or(&UNITS[0]);
        write!(f, "{}{name}", self.0 / nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_parse_and_print_the_same_text() {
        for text in ["250ms", "5s", "1m", "2h", "14d", "7ns", "90us", "0s", "1500ms"] {
            assert_eq!(text.parse::<Span>().map(|span| span.to_string()), Ok(text.to_owned()));
        }
        assert_eq!("60s".parse::<Span>().unwrap().to_string(), "1m");
    }

    #[test]
    fn refuses_what_is_no_duration() {
        assert_eq!("".parse::<Span>(), Err(SpanError::Form));
        assert_eq!("5".parse::<Span>(), Err(SpanError::Form));
        assert_eq!("-5s".parse::<Span>(), Err(SpanError::Form));
        assert_eq!("5 s".parse::<Span>(), Err(SpanError::Unit(" s".into())));
        assert_eq!("1.5s".parse::<Span>(), Err(SpanError::Unit(".5s".into())));
        assert_eq!("99999999999d".parse::<Span>(), Err(SpanError::TooLong));
        assert_eq!("99999999999999999999999s".parse::<Span>(), Err(SpanError::TooLong));
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Tick::MAX + Span::from_secs(1), Tick::MAX);
        assert_eq!(Tick::ZERO - Span::from_secs(1), Tick::ZERO);
        assert_eq!(Tick::ZERO.since(Tick::from_nanos(5)), Span::ZERO);
        assert_eq!(Span::from_nanos(1).as_secs_ceil(), 1);
        assert_eq!(Span::from_secs(2).as_secs_ceil(), 2);
    }
}
