//! When keys are asked for again.

use crate::time::{Span, Tick};

/// Between two requests for keys at least.
const LEAST: Span = Span::from_secs(60);
/// As long as an answer does not say how long it holds.
const USUAL: Span = Span::from_secs(15 * 60);
/// How long an answer holds, whatever it says.
const FRESH: std::ops::RangeInclusive<Span> = Span::from_secs(5 * 60)..=Span::from_secs(24 * 3_600);

/// When keys are asked for again.
#[derive(Debug, Default)]
pub(super) struct FetchPace {
    /// The last request.
    last: Option<Tick>,
    next: Tick,
    is_wanted: bool,
    is_away: bool,
}

impl FetchPace {
    /// A token has named a key that is not there.
    pub(super) fn want(&mut self) {
        self.is_wanted = true;
    }

    /// How long to wait until the next request; zero: it is due.
    pub(super) fn wait(&self, now: Tick) -> Span {
        let soonest = self.last.map_or(Tick::ZERO, |last| last + LEAST);
        let due = if self.is_wanted { soonest.min(self.next) } else { self.next };
        due.since(now)
    }

    /// There was an answer, which holds for so long; whether that is news.
    pub(super) fn answered(&mut self, now: Tick, fresh: Option<Span>) -> bool {
        let fresh = fresh.map_or(USUAL, |fresh| fresh.clamp(*FRESH.start(), *FRESH.end()));
        (self.last, self.next, self.is_wanted) = (Some(now), now + fresh, false);
        std::mem::take(&mut self.is_away)
    }

    /// There was none; whether that is news.
    pub(super) fn away(&mut self, now: Tick) -> bool {
        (self.last, self.next, self.is_wanted) = (Some(now), now + LEAST, false);
        !std::mem::replace(&mut self.is_away, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Tick {
        Tick::ZERO + Span::from_secs(secs)
    }

    #[test]
    fn an_answer_holds_as_long_as_it_says_within_bounds() {
        for (says, holds) in [
            (None, 900),
            (Some(0), 300),
            (Some(299), 300),
            (Some(301), 301),
            (Some(86_400), 86_400),
            (Some(1_000_000), 86_400),
        ] {
            let mut pace = FetchPace::default();
            assert_eq!(pace.wait(at(1_000)), Span::ZERO, "the first time at once");
            assert!(!pace.answered(at(1_000), says.map(Span::from_secs)), "no news");
            assert_eq!(pace.wait(at(1_000)), Span::from_secs(holds), "{says:?}");
            assert_eq!(pace.wait(at(1_000 + holds)), Span::ZERO);
        }
    }

    #[test]
    fn an_unknown_key_asks_once_a_minute_at_most() {
        let mut pace = FetchPace::default();
        pace.answered(at(100), None);
        pace.want();
        assert_eq!(pace.wait(at(101)), Span::from_secs(59));
        assert_eq!(pace.wait(at(160)), Span::ZERO);
        pace.answered(at(160), None);
        assert_eq!(pace.wait(at(160)), Span::from_secs(900), "the wish was answered");
        pace.want();
        pace.want();
        assert_eq!(pace.wait(at(300)), Span::ZERO, "the last request is long ago");
    }

    #[test]
    fn a_source_that_is_away_is_asked_each_minute_and_told_once() {
        let mut pace = FetchPace::default();
        assert!(pace.away(at(10)));
        pace.want();
        assert_eq!(pace.wait(at(10)), Span::from_secs(60));
        assert!(!pace.away(at(70)), "no news");
        assert!(pace.answered(at(130), None), "news");
        assert!(pace.away(at(2_000)), "news again");
    }
}
