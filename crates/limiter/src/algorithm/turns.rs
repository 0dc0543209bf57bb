use super::pace::Pace;
use super::several::RateMeter;
use super::{CommitFacts, FitTime, LayoutChange, Moment, RateStanding, in_time};
use crate::quota::{MAX_COUNT, Rate};
use sluicegate_time::{Span, Tick};

/// One rate that paces: the instant of the next turn. A request goes at its turn whatever it costs, and the next one
/// pays for it by waiting.
///
/// An instant in the past is time saved up, of which at most `saved` counts; so a turn and the permits that Guava
/// stores beside it are one number. Zeroes are a key that was never seen: it has saved nothing. A turn that falls
/// between two nanoseconds is taken at the later one, and without savings the next is counted from there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Turns {
    pace: Pace,
    /// How much time may be saved up, in parts; no more than the largest count takes.
    saved: u128,
}

impl Turns {
    pub(super) fn new(rate: Rate, saved: Span) -> Self {
        let pace = Pace::new(rate);
        Self { pace, saved: pace.parts_of(saved).min(pace.cost(MAX_COUNT)) }
    }

    /// How much time is saved up at `now`, when it is somebody's turn.
    fn savings(&self, chunk: &[u64], now: Tick) -> u128 {
        if chunk.iter().all(|word| *word == 0) { 0 } else { self.pace.behind(chunk, now).min(self.saved) }
    }

    fn set(&self, chunk: &mut [u64], now: Tick, debt: u128, savings: u128) {
        match savings.checked_sub(debt) {
            Some(savings) => self.pace.set_behind(chunk, now, savings),
            None => self.pace.set_ahead(chunk, now, debt - savings),
        }
    }
}

impl RateMeter for Turns {
    fn words(&self) -> usize {
        self.pace.words()
    }

    fn quota(&self) -> (u64, Span) {
        self.pace.quota()
    }

    /// Any cost passes at its turn, but for one that would block its key for a hundred years.
    #[inline]
    fn largest(&self) -> u64 {
        self.pace.largest()
    }

    fn fresh(&self) -> u64 {
        1
    }

    fn most(&self) -> u64 {
        self.pace.requests_in(self.saved).saturating_add(1)
    }

    #[inline]
    fn room(&self, chunk: &[u64], cost: u64, now: Tick) -> FitTime {
        if cost > self.largest() {
            return FitTime::Never { rate: 0 };
        }
        match self.pace.ahead(chunk, now) {
            0 => FitTime::Now,
            ahead => FitTime::At { at: self.pace.after(now, ahead), rate: 0 },
        }
    }

    #[inline]
    fn commit(&self, chunk: &mut [u64], cost: u64, moment: Moment) {
        let debt = self.pace.ahead(chunk, moment.due) + self.pace.cost(cost);
        self.set(chunk, moment.due, debt, self.savings(chunk, moment.due));
    }

    fn give_back(&self, chunk: &mut [u64], cost: u64, taken: &CommitFacts, now: Tick) {
        self.pace.move_back(chunk, cost, taken, self.saved, now);
    }

    /// The savings in whole requests, and one more if it is somebody's turn.
    fn standing(&self, chunk: &[u64], now: Tick) -> RateStanding {
        if let FitTime::At { at, .. } = self.room(chunk, 1, now) {
            return RateStanding { remaining: 0, grows_at: Some(at) };
        }
        let savings = self.savings(chunk, now);
        let stored = self.pace.requests_in(savings);
        let next = self.pace.cost(stored.saturating_add(1));
        let is_seen = chunk.iter().any(|word| *word != 0);
        let grows_at = (is_seen && next <= self.saved).then(|| self.pace.after(now, next - savings));
        RateStanding { remaining: stored + 1, grows_at }
    }

    /// All that can be saved up is; forgotten, the key comes back with nothing.
    fn is_idle(&self, chunk: &[u64], now: Tick) -> bool {
        self.pace.ahead(chunk, now) == 0 && self.pace.behind(chunk, now) >= self.saved
            || chunk.iter().all(|word| *word == 0)
    }

    fn same_moment(&self, a: Tick, b: Tick) -> bool {
        in_time(a, b)
    }

    fn layout_since(&self, old: &Self) -> LayoutChange {
        if self.pace.same_steps(&old.pace) && self.saved == old.saved {
            LayoutChange::Kept
        } else {
            LayoutChange::Rescaled
        }
    }

    /// As many requests stay owed, or saved up as far as may be.
    fn take_over(&self, old: &Self, from: &[u64], to: &mut [u64], latest: Tick) {
        let debt = self.pace.convert(&old.pace, old.pace.ahead(from, latest), true);
        let savings = self.pace.convert(&old.pace, old.savings(from, latest), false);
        self.set(to, latest, debt.min(self.pace.cost(self.largest())), savings.min(self.saved));
    }
}
