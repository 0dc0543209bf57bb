use std::fmt;
use std::num::NonZeroU8;
use std::sync::Arc;

use super::CommitFacts;
use sluicegate_time::{Calendar, CalendarUnit, CountedWindow, Span, Tick, Zone};

/// The reading of the clock by which a worker counts is no older than this.
const AHEAD: Span = Span::from_secs(60);

/// Windows begin with a second: what is below says by which of the calendars.
const SECOND: u64 = 1_000_000_000;

/// The calendars of one rate.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Calendars {
    /// That of keys of which nothing else is said.
    usual: Arc<Calendar>,
    /// Of months those that begin on the second day, the third and so on.
    others: Arc<[Calendar]>,
}

/// One rate in the windows of a calendar: the arithmetic of its two words, when the window of the count began, and the
/// count. The first one says by which day, too, the months of this key begin: the count is held to the end of its window, and
/// the next window may begin on another day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OfCalendar {
    pub(super) limit: u64,
    calendar: Calendars,
}

impl Calendars {
    pub(super) fn new(unit: CalendarUnit, zone: &Zone) -> Self {
        let usual = Calendar::new(unit, zone.clone());
        let days = (2..=31).filter(|_| unit == CalendarUnit::Month);
        Self { others: days.map(|day| usual.with_months_from(day)).collect(), usual: Arc::new(usual) }
    }

    /// The same, each changed.
    pub(super) fn map(&self, change: impl Fn(&Calendar) -> Calendar) -> Self {
        Self { usual: Arc::new(change(&self.usual)), others: self.others.iter().map(change).collect() }
    }

    /// The one of keys of which nothing else is said.
    pub(super) fn usual(&self) -> &Calendar {
        &self.usual
    }

    /// The one that a word names, and its number in it.
    #[inline]
    fn of_word(&self, word: u64) -> (&Calendar, u64) {
        let tag = word % SECOND;
        let other = usize::try_from(tag).ok().and_then(|tag| self.others.get(tag.checked_sub(1)?));
        other.map_or((&self.usual, 0), |calendar| (calendar, tag))
    }
}

impl fmt::Debug for Calendars {
    /// The others follow from the usual one. State files know a limit by this text, those of before there were others too.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.usual.fmt(f)
    }
}

impl OfCalendar {
    pub(super) fn new(limit: u64, calendar: Calendars) -> Self {
        Self { limit, calendar }
    }

    /// A window of the usual length.
    pub(super) fn usual(&self) -> Span {
        self.calendar.usual.unit().usual()
    }

    /// Longer than any window: clocks are moved by a day at most.
    pub(super) fn longest(&self) -> Span {
        Span::from_nanos(self.usual().as_nanos().saturating_mul(2))
    }

    /// Whether the windows of both begin at the same instants.
    pub(super) fn is_alike(&self, other: &Self) -> bool {
        self.calendar.usual == other.calendar.usual
    }

    /// Whether two instants are in one window, whatever day it began on.
    pub(super) fn is_same_window(&self, a: Tick, b: Tick) -> bool {
        let Calendars { usual, others } = &self.calendar;
        let is_same = |calendar: &Calendar| calendar.counted(a).from == calendar.counted(b).from;
        is_same(usual) && others.iter().all(is_same)
    }

    /// The months of the key begin on that day, once the window is over that counts. Of other units nothing.
    pub(super) fn renew(&self, chunk: &mut [u64], day: NonZeroU8, now: Tick) {
        if self.calendar.others.is_empty() {
            return;
        }
        let (calendar, tag) = self.calendar.of_word(u64::from(day.get()) - 1);
        let (_, is_counted) = self.window(chunk, now);
        if let [began, count, ..] = chunk
            // The month of the epoch begins with the word that a new key has.
            && (!is_counted || (*began, *count) == (0, 0))
        {
            (*began, *count) = (calendar.counted(now).from.as_nanos() + tag, 0);
        }
    }

    /// When the window ends that is counted in at `now`, and what it counts. That is the one of now, or the next one that a worker
    /// has counted in whose clock reading is a little newer.
    #[inline]
    pub(super) fn count(&self, chunk: &[u64], now: Tick) -> (Tick, u64) {
        let (window, is_counted) = self.window(chunk, now);
        (window.until, chunk.get(1).copied().filter(|_| is_counted).unwrap_or(0))
    }

    #[inline]
    pub(super) fn commit(&self, chunk: &mut [u64], cost: u64, now: Tick) {
        let (window, is_counted) = self.window(chunk, now);
        if let [began, count, ..] = chunk {
            if !is_counted {
                let (_, tag) = self.calendar.of_word(*began);
                (*began, *count) = (window.from.as_nanos() + tag, 0);
            }
            *count = count.saturating_add(cost);
        }
    }

    /// The window that is counted in at `now`, and whether the count is of it. One of a window that is far ahead is of a wall
    /// clock that was wrong: it would count for as long as that window is ahead.
    #[inline]
    fn window(&self, chunk: &[u64], now: Tick) -> (CountedWindow, bool) {
        let word = chunk.first().copied().unwrap_or(0);
        let (calendar, tag) = self.calendar.of_word(word);
        let (window, began) = (calendar.counted(now), word - tag);
        if began > window.from.as_nanos() {
            let next = calendar.counted(now + AHEAD);
            return if began == next.from.as_nanos() { (next, true) } else { (window, false) };
        }
        (window, began == window.from.as_nanos())
    }

    /// Nothing once another window has begun.
    pub(super) fn give_back(chunk: &mut [u64], cost: u64, taken: &CommitFacts) {
        if let ([began, count, ..], [began_then, _]) = (chunk, taken.words)
            && *began == began_then
        {
            *count = count.saturating_sub(cost);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Span = Span::from_secs(86_400);

    #[test]
    fn who_is_behind_counts_in_the_newer_window_and_is_told_its_end() {
        let days = OfCalendar::new(9, Calendars::new(CalendarUnit::Day, &Zone::utc()));
        let midnight = Tick::ZERO + DAY;
        let (behind, mut chunk) = (midnight - Span::from_nanos(1), [0, 0]);
        days.commit(&mut chunk, 2, behind);
        assert_eq!((days.count(&chunk, behind), days.count(&chunk, midnight)), ((midnight, 2), (midnight + DAY, 0)));
        days.commit(&mut chunk, 3, midnight);
        days.commit(&mut chunk, 1, behind);
        for now in [behind, midnight] {
            assert_eq!(days.count(&chunk, now), (midnight + DAY, 4));
        }
        days.commit(&mut chunk, u64::MAX, behind);
        assert_eq!(days.count(&chunk, midnight).1, u64::MAX, "it does not wrap");
    }

    #[test]
    fn nothing_is_given_back_once_another_window_has_begun() {
        let days = OfCalendar::new(9, Calendars::new(CalendarUnit::Day, &Zone::utc()));
        let (noon, mut chunk) = (Tick::ZERO + Span::from_secs(43_200), [0, 0]);
        days.commit(&mut chunk, 5, noon);
        let taken = CommitFacts { at: noon, words: chunk, given: 0, is_about: false };
        OfCalendar::give_back(&mut chunk, 2, &taken);
        assert_eq!(days.count(&chunk, noon).1, 3);
        days.commit(&mut chunk, 4, noon + DAY);
        OfCalendar::give_back(&mut chunk, 3, &taken);
        assert_eq!(days.count(&chunk, noon + DAY).1, 4);
    }
}
