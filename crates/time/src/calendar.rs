use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::ToSpan;
use jiff::civil::Date;

use super::schedule::Weekday;
use super::stretch::Stretch;
use super::zone::Zone;
use super::{Span, Tick, Wall, WallOffset};

/// The unit of a calendar's windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CalendarUnit {
    /// An hour of the clock, 60 minutes. One that comes twice, when clocks go back, is two.
    Hour,
    /// From midnight to midnight: 23 or 25 hours when clocks are changed.
    Day,
    /// From Monday on (ISO 8601), unless [another day](Calendar::with_weeks_from) is the first.
    Week,
    /// From the first on, unless [another day](Calendar::with_months_from) begins it.
    Month,
}

/// A window of a [`Calendar`], the first instant in it and the first after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalendarWindow {
    /// Its first instant.
    pub from: Wall,
    /// The first instant after it.
    pub until: Wall,
}

/// The window that is counted in at a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedWindow {
    /// Its first instant, by which it is known.
    pub from: Wall,
    /// When another one is counted in.
    pub until: Tick,
}

/// The hours, days, weeks or months of one time zone. Two are equal if they cut time at the same places.
///
/// The last two windows that somebody asked for are remembered for all threads, each in one word: the one of now, and one
/// that was looked ahead to, or that a worker is still in. Whatever was remembered, the answer is the same.
pub struct Calendar {
    unit: CalendarUnit,
    zone: Zone,
    /// The first day of weeks.
    week_start: Weekday,
    /// The first day of months, 1 to 31; the last one of a month that is shorter.
    month_start: i8,
    known: [AtomicU64; 2],
    offset: WallOffset,
}

impl CalendarUnit {
    /// How long one usually is; a month is 30 days.
    pub const fn usual(self) -> Span {
        Span::from_secs(match self {
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Week => 7 * 86_400,
            Self::Month => 30 * 86_400,
        })
    }
}

impl Calendar {
    /// The calendar of a zone, cut into units, by the wall clock of the machine.
    pub fn new(unit: CalendarUnit, zone: Zone) -> Self {
        Self::going_by(WallOffset::of_system(), unit, zone)
    }

    /// The same by another one.
    pub fn going_by(offset: WallOffset, unit: CalendarUnit, zone: Zone) -> Self {
        let known = [AtomicU64::new(0), AtomicU64::new(0)];
        Self { unit, zone, week_start: Weekday::Monday, month_start: 1, known, offset }
    }

    /// The same, whose weeks begin on that day.
    #[must_use]
    pub fn with_weeks_from(self, week_start: Weekday) -> Self {
        Self { week_start, ..self.clone() }
    }

    /// The same, whose months begin on that day, 1 to 31: on the last one of a month that is shorter.
    #[must_use]
    pub fn with_months_from(&self, day: u8) -> Self {
        let is_month = self.unit == CalendarUnit::Month;
        Self { month_start: if is_month { day.clamp(1, 31).cast_signed() } else { 1 }, ..self.clone() }
    }

    /// The same, by another wall clock.
    #[must_use]
    pub fn moved_to(&self, offset: WallOffset) -> Self {
        let Self { week_start, month_start, .. } = *self;
        Self { week_start, month_start, ..Self::going_by(offset, self.unit, self.zone.clone()) }
    }

    /// The unit of its windows.
    pub fn unit(&self) -> CalendarUnit {
        self.unit
    }

    /// The first day of its windows, if these are weeks.
    pub fn week_start(&self) -> Option<Weekday> {
        (self.unit == CalendarUnit::Week).then_some(self.week_start)
    }

    /// The zone whose clocks it goes by.
    pub fn zone(&self) -> &Zone {
        &self.zone
    }

    /// The window that is counted in at `now`: that of the wall clock's highest reading in the last 24 hours of the monotonic clock.
    /// So a wall clock that is set back gives no window again, and one that was wrong for a while freezes none for longer.
    #[inline]
    pub fn counted(&self, now: Tick) -> CountedWindow {
        let (highest, ends) = self.offset.highest(now);
        let window = self.window(highest);
        let until = self.offset.tick(window.until);
        // When that reading is too old the window may be the same one still.
        let is_cut = ends < until && self.window(self.offset.wall(ends)).from != window.from;
        CountedWindow { from: window.from, until: if is_cut { ends } else { until } }
    }

    /// The window of an instant.
    #[inline]
    pub fn window(&self, now: Wall) -> CalendarWindow {
        let second = now.as_secs();
        for known in &self.known {
            let known = Stretch::from_bits(known.load(Ordering::Relaxed));
            if known.contains(second) {
                return CalendarWindow { from: known.from(), until: known.until() };
            }
        }
        self.look_up(second)
    }

    /// A newer window takes the place of the older one; any other that of the newer, which was looked ahead to.
    #[cold]
    fn look_up(&self, second: u64) -> CalendarWindow {
        let found = self.find(second);
        let [a, b] = self.known.each_ref().map(|known| known.load(Ordering::Relaxed));
        let [first, second] = &self.known;
        let (older, newer) = if a <= b { (first, second) } else { (second, first) };
        let place = if found.bits() > a.max(b) { older } else { newer };
        place.store(found.bits(), Ordering::Relaxed);
        CalendarWindow { from: found.from(), until: found.until() }
    }

    fn find(&self, second: u64) -> Stretch {
        // A tick ends in 2554.
        let now = i64::try_from(second).unwrap_or(i64::MAX);
        let (from, until) = match self.unit {
            CalendarUnit::Hour => self.hour(now),
            _ => self.days(now),
        };
        // Wherever the rules of a zone put its days, this one is in its window.
        Stretch::new(from.min(now), until.max(now.saturating_add(1)), false, second)
    }

    /// Hours begin anew wherever clocks are changed by no whole hour.
    fn hour(&self, now: i64) -> (i64, i64) {
        let local = self.zone.local(now);
        let into = i64::from(local.minute()) * 60 + i64::from(local.second());
        let begun = now - into;
        (begun.max(self.zone.changed_before(now)), (begun + 3_600).min(self.zone.changes_after(now)))
    }

    /// Where clocks go back over midnight it is the date before once more: a date begins when it is shown first.
    fn days(&self, now: i64) -> (i64, i64) {
        let mut first = self.first_date(self.zone.local(now).date());
        let mut next = self.after(first);
        if self.zone.begins(next) <= now {
            (first, next) = (next, self.after(next));
        }
        (self.zone.begins(first), self.zone.begins(next))
    }

    /// The first date of the unit that a date is in.
    fn first_date(&self, date: Date) -> Date {
        match self.unit {
            CalendarUnit::Hour | CalendarUnit::Day => date,
            CalendarUnit::Week => {
                let days = i64::from(date.weekday().to_monday_zero_offset()) - self.week_start as i64;
                date.checked_sub(days.rem_euclid(7).days()).unwrap_or(date)
            }
            CalendarUnit::Month => {
                let begins = self.begin_of_month(date);
                if begins <= date {
                    return begins;
                }
                let before = date.first_of_month().yesterday();
                before.map_or(begins, |before| self.begin_of_month(before))
            }
        }
    }

    /// The date on which the window begins that begins in the month of a date.
    fn begin_of_month(&self, date: Date) -> Date {
        let day = self.month_start.min(date.days_in_month());
        date.with().day(day).build().unwrap_or(date)
    }

    /// The first date of the next unit.
    fn after(&self, first: Date) -> Date {
        let next = match self.unit {
            CalendarUnit::Hour | CalendarUnit::Day => first.checked_add(1.day()),
            CalendarUnit::Week => first.checked_add(7.days()),
            CalendarUnit::Month => first.first_of_month().checked_add(1.month()).map(|next| self.begin_of_month(next)),
        };
        next.unwrap_or(first)
    }
}

impl Clone for Calendar {
    /// The copy remembers for itself.
    fn clone(&self) -> Self {
        self.moved_to(self.offset.clone())
    }
}

impl PartialEq for Calendar {
    fn eq(&self, other: &Self) -> bool {
        self.unit == other.unit
            && self.zone == other.zone
            && self.week_start() == other.week_start()
            && self.month_start == other.month_start
    }
}

impl Eq for Calendar {}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // State files know a calendar by this text, those of before week_start too.
        match self.week_start().filter(|day| *day != Weekday::Monday) {
            Some(day) => write!(f, "Calendar({:?} from {}, {})", self.unit, day.word(), self.zone),
            None if self.month_start > 1 => {
                write!(f, "Calendar({:?} from {}, {})", self.unit, self.month_start, self.zone)
            }
            None => write!(f, "Calendar({:?}, {})", self.unit, self.zone),
        }
    }
}

#[cfg(test)]
mod tests;
