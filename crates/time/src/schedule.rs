use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::ToSpan;
use jiff::civil::{Date, DateTime};

use super::stretch::Stretch;
use super::zone::Zone;
use super::{Tick, WallOffset};

/// Seconds in a day of 24 hours, which is what clocks on walls count.
const DAY: u32 = 86_400;

/// By how many seconds a worker may be behind.
const BEHIND: u64 = 60;

/// A time of day as clocks show it: seconds since midnight, up to 24:00.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DayTime(u32);

/// A date and a time of day as clocks and calendars show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalTime(DateTime);

words! {
    /// A day of the week.
    pub enum Weekday {
        /// Monday.
        Monday = "monday",
        /// Tuesday.
        Tuesday = "tuesday",
        /// Wednesday.
        Wednesday = "wednesday",
        /// Thursday.
        Thursday = "thursday",
        /// Friday.
        Friday = "friday",
        /// Saturday.
        Saturday = "saturday",
        /// Sunday.
        Sunday = "sunday",
    }
}

/// Some days of the week.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Days(u8);

/// When something holds, as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleRules {
    hours: Hours,
    zone: Zone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hours {
    /// On each of these days from one time until another; where that is not later, of the next day.
    Weekly { days: Days, from: DayTime, until: DayTime },
    /// Once, from a time and until another.
    Once { from: Option<LocalTime>, until: Option<LocalTime> },
}

/// Why something is no schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleError {
    /// A time of day is not `HH:MM` or `HH:MM:SS`, or there is no such time.
    DayTime,
    /// A local time is not like `2026-12-24T18:00`, or there is no such date or time.
    LocalTime,
    /// A day begins at 00:00, and not with the 24:00 of the one before.
    FromMidnight,
    /// It begins when it ends.
    SameTime,
    /// It ends before it begins.
    Backwards,
    /// It names no day.
    NoDays,
    /// It neither begins nor ends.
    Endless,
}

/// When something holds, for traffic, by the wall clock. The answer for now, and from when until when it is so, is remembered in
/// one word for all threads: a question is two loads and a comparison. The thread that finds that the word is about
/// another time works it out anew, from the rules alone, so that it does not matter who does, and how often.
pub struct Schedule {
    rules: ScheduleRules,
    known: AtomicU64,
    offset: WallOffset,
}

impl DayTime {
    /// The first instant of a day.
    pub const MIDNIGHT: Self = Self(0);
    /// The end of a day: 24:00.
    pub const END: Self = Self(DAY);
}

impl Days {
    /// Every day.
    pub const ALL: Self = Self(0b111_1111);

    /// These and one more.
    #[must_use]
    pub fn with(self, day: Weekday) -> Self {
        Self(self.0 | 1 << day as u8)
    }

    fn has(self, date: Date) -> bool {
        self.0 >> date.weekday().to_monday_zero_offset() & 1 == 1
    }
}

impl Weekday {
    /// The first three letters of its name.
    pub fn short(self) -> &'static str {
        self.word().get(..3).unwrap_or_default()
    }
}

impl ScheduleRules {
    /// On each of `days` from `from` until before `until`, by the clocks of `zone`. If `until` is earlier than `from`, it
    /// is that of the day after, and the days are those on which it begins.
    ///
    /// Where clocks are changed, a time that is skipped is as much later as they go forward, and of one that comes twice the
    /// first is meant; of what then ends before it begins there is nothing.
    pub fn weekly(days: Days, from: DayTime, until: DayTime, zone: Zone) -> Result<Self, ScheduleError> {
        match (days, from, until) {
            (Days(0), ..) => Err(ScheduleError::NoDays),
            (_, DayTime::END, _) => Err(ScheduleError::FromMidnight),
            (_, from, until) if from == until => Err(ScheduleError::SameTime),
            _ => Ok(Self { hours: Hours::Weekly { days, from, until }, zone }),
        }
    }

    /// Once: from `from`, or from ever, until before `until`, or for ever, by the clocks of `zone`.
    pub fn once(from: Option<LocalTime>, until: Option<LocalTime>, zone: Zone) -> Result<Self, ScheduleError> {
        match (from, until) {
            (None, None) => Err(ScheduleError::Endless),
            (Some(from), Some(until)) if zone.at(from.0) == zone.at(until.0) => Err(ScheduleError::SameTime),
            (Some(from), Some(until)) if zone.at(from.0) > zone.at(until.0) => Err(ScheduleError::Backwards),
            _ => Ok(Self { hours: Hours::Once { from, until }, zone }),
        }
    }

    /// Whether it holds at `now`, and from when until when that is so or is known to be.
    fn at(&self, second: u64) -> Stretch {
        // A tick ends in 2554.
        let now = i64::try_from(second).unwrap_or(i64::MAX);
        let (from, until, holds) = match self.hours {
            Hours::Weekly { days, from, until } => self.week(days, (from, until), now),
            Hours::Once { from, until } => {
                let from = from.map_or(i64::MIN, |from| self.zone.at(from.0));
                let until = until.map_or(i64::MAX, |until| self.zone.at(until.0));
                match now {
                    _ if now < from => (i64::MIN, from, false),
                    _ if now < until => (from, until, true),
                    _ => (until, i64::MAX, false),
                }
            }
        };
        Stretch::new(from, until, holds, second)
    }

    /// All that begins on the days around now, put together. A skipped day moves what begins on it by a day at most.
    fn week(&self, days: Days, (from, until): (DayTime, DayTime), now: i64) -> (i64, i64, bool) {
        let today = self.zone.local(now).date();
        let day = |offset: i64| today.checked_add(offset.days()).unwrap_or(today);
        let mut held: Vec<(i64, i64)> = (-4..=9)
            .filter(|offset| days.has(day(*offset)))
            .map(|offset| {
                let ends = offset + i64::from(until < from || until == DayTime::END);
                (self.zone.at(shown(day(offset), from)), self.zone.at(shown(day(ends), until)))
            })
            .filter(|(from, until)| from < until)
            .collect();
        held.sort_unstable();
        let mut merged: Vec<(i64, i64)> = Vec::with_capacity(held.len());
        for (from, until) in held {
            match merged.last_mut() {
                Some((_, last)) if from <= *last => *last = until.max(*last),
                _ => merged.push((from, until)),
            }
        }
        // What is known of.
        let midnight = |offset| self.zone.at(shown(day(offset), DayTime::MIDNIGHT));
        let (first, last) = (midnight(-1).min(now), midnight(7));
        let begun = merged.partition_point(|(from, _)| *from <= now);
        match begun.checked_sub(1).and_then(|latest| merged.get(latest)) {
            Some((from, until)) if now < *until => (first.max(*from), last.min(*until), true),
            before => {
                let from = before.map_or(first, |(_, until)| first.max(*until));
                (from, merged.get(begun).map_or(last, |(from, _)| last.min(*from)), false)
            }
        }
    }
}

impl Schedule {
    /// For these rules, by the wall clock of the machine.
    pub fn new(rules: ScheduleRules) -> Self {
        Self::going_by(WallOffset::of_system(), rules)
    }

    /// The same by another one.
    pub fn going_by(offset: WallOffset, rules: ScheduleRules) -> Self {
        Self { rules, known: AtomicU64::new(0), offset }
    }

    /// Whether it holds at `now`.
    #[inline]
    pub fn is_active(&self, now: Tick) -> bool {
        let second = self.offset.wall(now).as_secs();
        let known = Stretch::from_bits(self.known.load(Ordering::Relaxed));
        if known.contains(second) { known.mark() } else { self.look_up(second, known) }
    }

    /// An earlier time than the remembered one is asked for by a worker that is a little behind, and soon by none; a much earlier
    /// one once the wall clock was set back.
    #[cold]
    fn look_up(&self, second: u64, known: Stretch) -> bool {
        let found = self.rules.at(second);
        if found > known || second + BEHIND < known.from().as_secs() {
            self.known.store(found.bits(), Ordering::Relaxed);
        }
        found.mark()
    }
}

impl PartialEq for Schedule {
    /// By its rules.
    fn eq(&self, other: &Self) -> bool {
        self.rules == other.rules
    }
}

impl Eq for Schedule {}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Schedule({})", self.rules)
    }
}

impl FromStr for DayTime {
    type Err = ScheduleError;

    /// Parses `09:00`, `23:59:59` and `24:00`.
    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        let (hour, minute, second) = clock(text).ok_or(ScheduleError::DayTime)?;
        match (hour, minute, second) {
            (24, 0, 0) => Ok(Self::END),
            (0..24, 0..60, 0..60) => Ok(Self(hour * 3_600 + minute * 60 + second)),
            _ => Err(ScheduleError::DayTime),
        }
    }
}

impl FromStr for LocalTime {
    type Err = ScheduleError;

    /// Parses `2026-12-24T18:00` and `2026-12-24T18:00:00`.
    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        let read = || {
            let (date, time) = text.split_once('T')?;
            let (year, rest) = date.split_once('-')?;
            let (month, day) = rest.split_once('-')?;
            let (year, month, day) = (digits(year, 4)?, digits(month, 2)?, digits(day, 2)?);
            let date = Date::new(i16::try_from(year).ok()?, i8::try_from(month).ok()?, i8::try_from(day).ok()?).ok()?;
            let time: DayTime = time.parse().ok().filter(|time| *time != DayTime::END)?;
            Some(Self(shown(date, time)))
        };
        read().ok_or(ScheduleError::LocalTime)
    }
}

impl fmt::Display for DayTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hour, minute, second) = (self.0 / 3_600, self.0 / 60 % 60, self.0 % 60);
        write!(f, "{hour:02}:{minute:02}")?;
        if second == 0 { Ok(()) } else { write!(f, ":{second:02}") }
    }
}

impl fmt::Display for LocalTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (time, seconds) = (self.0.time(), self.0.second());
        write!(f, "{}T{:02}:{:02}", self.0.date(), time.hour(), time.minute())?;
        if seconds == 0 { Ok(()) } else { write!(f, ":{seconds:02}") }
    }
}

impl fmt::Display for Days {
    /// `mon-fri`, `sat sun`, `every day`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::ALL {
            return f.write_str("every day");
        }
        let mut gap = "";
        for day in Weekday::ALL.into_iter().filter(|day| self.with(*day) == *self) {
            write!(f, "{gap}{}", day.short())?;
            gap = " ";
        }
        Ok(())
    }
}

impl fmt::Display for ScheduleRules {
    /// `09:00 to 18:00, mon tue, Europe/Berlin`; `from 2026-12-24T18:00, UTC`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.hours {
            Hours::Weekly { days, from, until } => write!(f, "{from} to {until}, {days}")?,
            Hours::Once { from: Some(from), until: Some(until) } => write!(f, "{from} to {until}")?,
            Hours::Once { from: Some(from), until: None } => write!(f, "from {from}")?,
            Hours::Once { from: None, until: Some(until) } => write!(f, "until {until}")?,
            Hours::Once { from: None, until: None } => f.write_str("always")?,
        }
        write!(f, ", {}", self.zone)
    }
}

impl fmt::Display for ScheduleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DayTime => "a time of day is HH:MM or HH:MM:SS, like \"09:00\", up to \"24:00\"",
            Self::LocalTime => "a date and time is like \"2026-12-24T18:00\", by the clocks of `zone`",
            Self::FromMidnight => "24:00 is the end of a day, and 00:00 its beginning",
            Self::SameTime => "it begins when it ends",
            Self::Backwards => "it ends before it begins",
            Self::NoDays => "it names no day",
            Self::Endless => "it neither begins nor ends",
        })
    }
}

impl std::error::Error for ScheduleError {}

/// The reading of clocks on a date at a time of it; 24:00 is its 00:00.
fn shown(date: Date, DayTime(seconds): DayTime) -> DateTime {
    let part = |number: u32| i8::try_from(number).unwrap_or(0);
    date.at(part(seconds / 3_600 % 24), part(seconds / 60 % 60), part(seconds % 60), 0)
}

/// `HH:MM` or `HH:MM:SS`.
fn clock(text: &str) -> Option<(u32, u32, u32)> {
    let (hour, rest) = text.split_once(':')?;
    let (minute, second) = rest.split_once(':').unwrap_or((rest, "00"));
    Some((digits(hour, 2)?, digits(minute, 2)?, digits(second, 2)?))
}

/// Just so many digits.
fn digits(text: &str, count: usize) -> Option<u32> {
    let is_number = text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

#[cfg(test)]
mod tests;
