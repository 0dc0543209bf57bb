use std::num::NonZeroU8;

use super::calendar_window::{Calendars, OfCalendar};
use super::pace::checked;
use super::ring::Ring;
use super::several::{RateMeter, likeliest};
use super::{AlgorithmError, CommitFacts, FitTime, LayoutChange, Moment, RateStanding, in_time};
use crate::calendar_rate::CalendarRate;
use crate::quota::Rate;
use sluicegate_time::{Calendar, CalendarUnit, Span, Tick, WallOffset, Weekday, Zone};

/// Where the windows of a [`FixedWindow`] begin, if not by a calendar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Align {
    /// At the multiples of the window since tick 0, for all keys at once: a window of `1m` is a minute of the clock.
    #[default]
    Epoch,
    /// For each key at the first request after the window before is over.
    First,
}

/// The fixed window: so many in a window, and then a new one.
///
/// **Promises** never more than `L` in one window, so up to `2 L` across an edge; a window ends when it was to end, it
/// is not renewed by who comes. Windows are of one length, or those of a [`Calendar`]. **Costs** two words a key, 24 bytes with its fingerprint. **Choose it** for quotas that
/// people know by the calendar ("3000 an hour"), and, with `max_wait`, for the limiters that refill a semaphore every
/// period. **Source**: Redis, `INCR` pattern "rate limiter"; done right, since there a renewed `EXPIRE` keeps a busy
/// key shut for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    /// Of a calendar those of its units' usual lengths.
    pub(super) rates: Vec<Rate>,
    begins: Begins,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Begins {
    Aligned(Align),
    /// Of each rate. Those for all that the limit is made into, so that each is looked up once.
    OfCalendar(Zone, Vec<Calendars>),
}

impl FixedWindow {
    /// Every one of `rates` (1 to [`MAX_RATES`](crate::MAX_RATES)) holds, each in its own windows of at most
    /// a hundred years.
    pub fn new(rates: &[Rate], align: Align) -> Result<Self, AlgorithmError> {
        Ok(Self { rates: checked(rates)?, begins: Begins::Aligned(align) })
    }

    /// Every one of `rates` (1 to [`MAX_RATES`](crate::MAX_RATES)) holds, each in the windows of the calendar of
    /// `zone`.
    pub fn of_calendar(rates: &[CalendarRate], zone: &Zone) -> Result<Self, AlgorithmError> {
        let calendars = rates.iter().map(|rate| Calendars::new(rate.unit(), zone)).collect();
        let usual: Vec<Rate> = rates.iter().map(|rate| rate.usual()).collect();
        Ok(Self { rates: checked(&usual)?, begins: Begins::OfCalendar(zone.clone(), calendars) })
    }

    /// The same, whose weeks of a calendar begin on that day.
    #[must_use]
    pub fn with_weeks_from(mut self, day: Weekday) -> Self {
        if let Begins::OfCalendar(_, calendars) = &mut self.begins {
            for calendar in calendars {
                *calendar = calendar.map(|calendar| calendar.clone().with_weeks_from(day));
            }
        }
        self
    }

    /// The first day of the weeks by which a rate counts, if one does.
    pub fn week_start(&self) -> Option<Weekday> {
        (0..self.rates.len()).find_map(|rate| self.calendar_of(rate)?.week_start())
    }

    /// The same, whose calendar goes by another wall clock than the machine's.
    #[must_use]
    pub fn going_by(mut self, offset: &WallOffset) -> Self {
        if let Begins::OfCalendar(_, calendars) = &mut self.begins {
            for calendar in calendars {
                *calendar = calendar.map(|calendar| calendar.moved_to(offset.clone()));
            }
        }
        self
    }

    /// Its rates; those of a calendar in the usual lengths of its units.
    pub fn rates(&self) -> &[Rate] {
        &self.rates
    }

    /// Where windows begin; `None`: by a calendar.
    pub fn align(&self) -> Option<Align> {
        match self.begins {
            Begins::Aligned(align) => Some(align),
            Begins::OfCalendar(..) => None,
        }
    }

    /// By whose calendar they begin, if by one.
    pub fn zone(&self) -> Option<&Zone> {
        match &self.begins {
            Begins::Aligned(_) => None,
            Begins::OfCalendar(zone, _) => Some(zone),
        }
    }

    /// The calendar of a rate, if its windows are those of one.
    pub fn calendar_of(&self, rate: usize) -> Option<&Calendar> {
        match &self.begins {
            Begins::Aligned(_) => None,
            Begins::OfCalendar(_, calendars) => calendars.get(rate).map(Calendars::usual),
        }
    }

    /// Whether a rate counts by months, whose first day is each key's.
    pub fn has_months(&self) -> bool {
        (0..self.rates.len()).any(|rate| self.unit_of(rate) == Some(CalendarUnit::Month))
    }

    /// The unit of the windows of a rate, if they follow a calendar.
    pub fn unit_of(&self, rate: usize) -> Option<CalendarUnit> {
        self.calendar_of(rate).map(Calendar::unit)
    }

    pub(super) fn meters(&self) -> Vec<Window> {
        match &self.begins {
            Begins::Aligned(align) => self.rates.iter().map(|rate| Window::aligned(*rate, *align)).collect(),
            Begins::OfCalendar(_, calendars) => {
                let window = |(rate, calendars): (&Rate, &Calendars)| {
                    Window::OfCalendar(OfCalendar::new(rate.limit(), calendars.clone()))
                };
                self.rates.iter().zip(calendars).map(window).collect()
            }
        }
    }

    /// The same, whose counts hold debts.
    pub(super) fn meters_with_debts(&self) -> Vec<Window> {
        let with_debts = |window| match window {
            Window::Aligned(ring) => Window::Aligned(ring.with_debts()),
            other => other,
        };
        self.meters().into_iter().map(with_debts).collect()
    }
}

/// One rate's window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Window {
    /// A ring of one slot.
    Aligned(Ring),
    /// Two words: when it opened, and the count; no count, no window.
    Opened { limit: u64, window: Span },
    /// Two words: when that of the count began, and the count.
    OfCalendar(OfCalendar),
}

impl Window {
    fn aligned(rate: Rate, align: Align) -> Self {
        match align {
            Align::Epoch => Self::Aligned(Ring::new(rate.limit(), rate.window(), 1, 1, 0)),
            Align::First => Self::Opened { limit: rate.limit(), window: rate.window() },
        }
    }

    /// When the window at `now` ends and what it counts.
    fn count(&self, chunk: &[u64], now: Tick) -> (Tick, u64) {
        match self {
            Self::Aligned(ring) => (ring.newest_until(chunk), ring.newest(chunk)),
            Self::Opened { window, .. } => match *chunk {
                [opened, count, ..] if count > 0 && now < Tick::from_nanos(opened) + *window => {
                    (Tick::from_nanos(opened) + *window, count)
                }
                _ => (now, 0),
            },
            Self::OfCalendar(window) => window.count(chunk, now),
        }
    }

    fn limit(&self) -> u64 {
        self.quota().0
    }

    /// The months of the key begin on that day, once the window is over that counts.
    pub(super) fn renew(&self, chunk: &mut [u64], day: NonZeroU8, now: Tick) {
        if let Self::OfCalendar(window) = self {
            window.renew(chunk, day, now);
        }
    }
}

impl RateMeter for Window {
    fn words(&self) -> usize {
        match self {
            Self::Aligned(ring) => ring.words(),
            Self::Opened { .. } | Self::OfCalendar(_) => 2,
        }
    }

    fn quota(&self) -> (u64, Span) {
        match self {
            Self::Aligned(ring) => (ring.limit, ring.window),
            Self::Opened { limit, window } => (*limit, *window),
            Self::OfCalendar(window) => (window.limit, window.usual()),
        }
    }

    fn longest(&self) -> Span {
        match self {
            Self::OfCalendar(window) => window.longest(),
            _ => self.quota().1,
        }
    }

    #[inline]
    fn largest(&self) -> u64 {
        self.limit()
    }

    fn fresh(&self) -> u64 {
        self.limit()
    }

    #[inline]
    fn advance(&self, chunk: &mut [u64], now: Tick) {
        if let Self::Aligned(ring) = self {
            ring.advance(chunk, now);
        }
    }

    #[inline]
    fn room(&self, chunk: &[u64], cost: u64, now: Tick) -> FitTime {
        if cost > self.limit() {
            return FitTime::Never { rate: 0 };
        }
        let (ends, count) = self.count(chunk, now);
        if count.saturating_add(cost) <= self.limit() { FitTime::Now } else { FitTime::At { at: ends, rate: 0 } }
    }

    #[inline]
    fn commit(&self, chunk: &mut [u64], cost: u64, moment: Moment) {
        match self {
            Self::Aligned(ring) => return ring.commit(chunk, cost),
            Self::OfCalendar(window) => return window.commit(chunk, cost, moment.now),
            Self::Opened { .. } => {}
        }
        let (_, before) = self.count(chunk, moment.now);
        if let [opened, count, ..] = chunk {
            if before == 0 {
                // The window before may have ended, or been given back whole, only after the request was due.
                let began = Tick::from_nanos(*opened);
                let ended = if *count == 0 { began } else { began + self.quota().1 };
                *opened = moment.due.max(ended).as_nanos();
            }
            *count = before.saturating_add(cost);
        }
    }

    /// The window that it opened stays as it is while anything counts in it.
    fn give_back(&self, chunk: &mut [u64], cost: u64, taken: &CommitFacts, now: Tick) {
        match self {
            Self::Aligned(ring) => return ring.take_out(chunk, cost, taken.at),
            Self::OfCalendar(_) => return OfCalendar::give_back(chunk, cost, taken),
            Self::Opened { .. } => {}
        }
        let (_, current) = self.count(chunk, now);
        // A window that is over still says when it was: it keeps its count.
        if current > 0
            && let ([opened, count, ..], [opened_then, _]) = (chunk, taken.words)
            && *opened == opened_then
        {
            *count = current.saturating_sub(cost);
        }
    }

    fn standing(&self, chunk: &[u64], now: Tick) -> RateStanding {
        let remaining = self.limit().saturating_sub(self.count(chunk, now).1);
        RateStanding::before(remaining, self.limit(), |more| self.room(chunk, more, now))
    }

    fn is_idle(&self, chunk: &[u64], now: Tick) -> bool {
        match self {
            Self::Aligned(ring) => ring.is_empty_at(chunk, now),
            Self::Opened { .. } | Self::OfCalendar(_) => self.count(chunk, now).1 == 0,
        }
    }

    fn same_moment(&self, a: Tick, b: Tick) -> bool {
        match self {
            Self::Aligned(ring) => ring.slot_at(a) == ring.slot_at(b),
            Self::Opened { .. } => in_time(a, b),
            Self::OfCalendar(window) => window.is_same_window(a, b),
        }
    }

    fn layout_since(&self, old: &Self) -> LayoutChange {
        match (self, old) {
            (Self::Aligned(new), Self::Aligned(old)) => new.layout_since(old),
            (Self::Opened { window, .. }, Self::Opened { window: old, .. }) if window == old => LayoutChange::Kept,
            (Self::OfCalendar(new), Self::OfCalendar(old)) if new.is_alike(old) => LayoutChange::Kept,
            _ => LayoutChange::Rescaled,
        }
    }

    /// Of another calendar, or of none, there is nothing to count on with: its windows are others.
    fn source(&self, index: usize, olds: &[Self]) -> Option<usize> {
        if let Self::OfCalendar(new) = self {
            let same = |at: &usize| matches!(olds.get(*at), Some(Self::OfCalendar(old)) if new.is_alike(old));
            return Some(index).filter(same).or_else(|| (0..olds.len()).find(same));
        }
        let found = likeliest(self, index, olds)?;
        Some(found).filter(|at| !matches!(olds.get(*at), Some(Self::OfCalendar(_))))
    }

    fn remembering(&self, old: &Self) -> Self {
        match (self, old) {
            (Self::Aligned(new), Self::Aligned(old)) => Self::Aligned(new.remembering(old)),
            (Self::Aligned(new), Self::Opened { limit, .. }) => {
                Self::Aligned(Ring::new(new.limit, new.window, 1, 1, *limit))
            }
            _ => self.clone(),
        }
    }

    /// The present count stays: in the aligned window of now, or from when its window opened.
    fn take_over(&self, old: &Self, from: &[u64], to: &mut [u64], latest: Tick) {
        match (self, old) {
            (Self::Aligned(new), Self::Aligned(old)) => new.take_over(old, from, to, latest),
            (Self::Aligned(new), Self::Opened { .. }) => {
                new.advance(to, latest);
                new.commit(to, old.count(from, latest).1);
            }
            (Self::OfCalendar(_), _) => {
                for (to, from) in to.iter_mut().zip(from) {
                    *to = *from;
                }
            }
            // Never so: it is no source.
            (_, Self::OfCalendar(_)) => {}
            (Self::Opened { .. }, _) => {
                let opened = match old {
                    Self::Aligned(ring) => ring.newest_from(from).as_nanos(),
                    _ => from.first().copied().unwrap_or(0),
                };
                if let [began, count, ..] = to {
                    (*began, *count) = (opened, old.count(from, latest).1);
                }
            }
        }
    }
}
