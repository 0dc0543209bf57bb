use std::sync::Arc;

use super::CommitFacts;
use sluicegate_time::{Calendar, CountedWindow, Span, Tick};

/// The reading of the clock by which a worker counts is no older than this.
const AHEAD: Span = Span::from_secs(60);

/// One rate in the windows of a calendar: the arithmetic of its two words, when the window of the count began, and the
/// count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OfCalendar {
    pub(super) limit: u64,
    pub(super) calendar: Arc<Calendar>,
}

impl OfCalendar {
    pub(super) fn new(limit: u64, calendar: Arc<Calendar>) -> Self {
        Self { limit, calendar }
    }

    /// Longer than any window: clocks are moved by a day at most.
    pub(super) fn longest(&self) -> Span {
        let usual = self.calendar.unit().usual();
        Span::from_nanos(usual.as_nanos().saturating_mul(2))
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
                (*began, *count) = (window.from.as_nanos(), 0);
            }
            *count = count.saturating_add(cost);
        }
    }

    /// The window that is counted in at `now`, and whether the count is of it. One of a window that is far ahead is of a wall
    /// clock that was wrong: it would count for as long as that window is ahead.
    #[inline]
    fn window(&self, chunk: &[u64], now: Tick) -> (CountedWindow, bool) {
        let window = self.calendar.counted(now);
        match chunk.first() {
            Some(began) if *began == window.from.as_nanos() => (window, true),
            Some(began) if *began > window.from.as_nanos() => {
                let next = self.calendar.counted(now + AHEAD);
                if *began == next.from.as_nanos() { (next, true) } else { (window, false) }
            }
            _ => (window, false),
        }
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
    use sluicegate_time::{CalendarUnit, Zone};

    const DAY: Span = Span::from_secs(86_400);

    #[test]
    fn who_is_behind_counts_in_the_newer_window_and_is_told_its_end() {
        let days = OfCalendar::new(9, Arc::new(Calendar::new(CalendarUnit::Day, Zone::utc())));
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
        let days = OfCalendar::new(9, Arc::new(Calendar::new(CalendarUnit::Day, Zone::utc())));
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
