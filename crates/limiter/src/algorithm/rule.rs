use std::num::NonZeroU8;

use super::several::{CostOutcome, RateSet};
use super::{
    Algorithm, CommitFacts, FitTime, LayoutChange, Moment, Noted, Penalty, RateStanding, concurrency, fixed_window,
    gcra, ring, sliding_counter, sliding_log, sliding_window, token_bucket, turns, warm_up,
};
use crate::MAX_RATES;
use sluicegate_time::{Span, Tick};

/// An algorithm with the layout of its state: what the table, the queues and the policy work with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Rule {
    TimerWheel(RateSet<ring::Ring>),
    TokenBucket(RateSet<token_bucket::Bucket>),
    Gcra(RateSet<gcra::Credit>),
    FixedWindow(RateSet<fixed_window::Window>),
    SlidingWindow(RateSet<sliding_window::CappedRing>),
    SlidingCounter(RateSet<sliding_counter::Counter>),
    LeakyBucket(RateSet<turns::Turns>),
    SlidingLog(RateSet<sliding_log::Stamps>),
    SmoothBursty(RateSet<turns::Turns>),
    WarmUp(RateSet<warm_up::Warmth>),
    Concurrency(RateSet<concurrency::Permits>),
}

/// Does something with the rates of a rule, whichever algorithm it is.
macro_rules! with_rates {
    ($rule:expr, $rates:ident => $does:expr) => {
        match $rule {
            Rule::TimerWheel($rates) => $does,
            Rule::TokenBucket($rates) => $does,
            Rule::Gcra($rates) => $does,
            Rule::FixedWindow($rates) => $does,
            Rule::SlidingWindow($rates) => $does,
            Rule::SlidingCounter($rates) => $does,
            Rule::LeakyBucket($rates) => $does,
            Rule::SlidingLog($rates) => $does,
            Rule::SmoothBursty($rates) => $does,
            Rule::WarmUp($rates) => $does,
            Rule::Concurrency($rates) => $does,
        }
    };
}

/// Does something with the rates of two rules of one algorithm, or something else if they are of two.
macro_rules! with_both {
    ($pair:expr, ($new:ident, $old:ident) => $does:expr, else $other:expr) => {
        match $pair {
            (Rule::TimerWheel($new), Rule::TimerWheel($old)) => $does,
            (Rule::TokenBucket($new), Rule::TokenBucket($old)) => $does,
            (Rule::Gcra($new), Rule::Gcra($old)) => $does,
            (Rule::FixedWindow($new), Rule::FixedWindow($old)) => $does,
            (Rule::SlidingWindow($new), Rule::SlidingWindow($old)) => $does,
            (Rule::SlidingCounter($new), Rule::SlidingCounter($old)) => $does,
            (Rule::LeakyBucket($new), Rule::LeakyBucket($old)) => $does,
            (Rule::SlidingLog($new), Rule::SlidingLog($old)) => $does,
            (Rule::SmoothBursty($new), Rule::SmoothBursty($old)) => $does,
            (Rule::WarmUp($new), Rule::WarmUp($old)) => $does,
            (Rule::Concurrency($new), Rule::Concurrency($old)) => $does,
            _ => $other,
        }
    };
}

impl Rule {
    /// `previous` is the rule that the words of the keys were written under.
    pub(crate) fn new(algorithm: &Algorithm, penalty: Option<Penalty>, previous: Option<&Self>) -> Self {
        macro_rules! rule {
            ($variant:ident, $meters:expr) => {
                Self::$variant(RateSet::new(
                    &$meters,
                    penalty,
                    previous.and_then(|previous| match previous {
                        Self::$variant(rates) => Some(rates),
                        _ => None,
                    }),
                ))
            };
        }
        match algorithm {
            Algorithm::TimerWheel(wheel) => rule!(TimerWheel, wheel.rings()),
            Algorithm::TokenBucket(bucket) => rule!(TokenBucket, bucket.meters()),
            Algorithm::Gcra(gcra) => rule!(Gcra, gcra.meters()),
            Algorithm::FixedWindow(window) => rule!(FixedWindow, window.meters()),
            Algorithm::SlidingWindow(window) => rule!(SlidingWindow, window.meters()),
            Algorithm::SlidingCounter(counter) => rule!(SlidingCounter, counter.meters()),
            Algorithm::LeakyBucket(bucket) => rule!(LeakyBucket, bucket.meters()),
            Algorithm::SlidingLog(log) => rule!(SlidingLog, log.meters()),
            Algorithm::SmoothBursty(smooth) => rule!(SmoothBursty, smooth.meters()),
            Algorithm::WarmUp(warm) => rule!(WarmUp, warm.meters()),
            Algorithm::Concurrency(concurrency) => rule!(Concurrency, concurrency.meters()),
        }
    }

    /// One that counts debts too: what is charged without room may be many times the limit, and none of it is lost.
    pub(crate) fn with_debts(algorithm: &Algorithm) -> Self {
        match algorithm {
            Algorithm::TimerWheel(wheel) => Self::TimerWheel(RateSet::new(&wheel.rings_with_debts(), None, None)),
            Algorithm::FixedWindow(window) => Self::FixedWindow(RateSet::new(&window.meters_with_debts(), None, None)),
            Algorithm::SlidingWindow(window) => {
                Self::SlidingWindow(RateSet::new(&window.meters_with_debts(), None, None))
            }
            Algorithm::SlidingCounter(counter) => {
                Self::SlidingCounter(RateSet::new(&counter.meters_with_debts(), None, None))
            }
            other => Self::new(other, None, None),
        }
    }

    /// Words of state per key; at least one.
    pub(crate) fn words(&self) -> usize {
        with_rates!(self, rates => rates.words())
    }

    /// The quota and window of one rate.
    pub(crate) fn quota(&self, rate: usize) -> (u64, Span) {
        with_rates!(self, rates => rates.quota(rate))
    }

    /// No window of one rate is longer.
    pub(crate) fn longest(&self, rate: usize) -> Span {
        with_rates!(self, rates => rates.longest(rate))
    }

    pub(crate) fn rates(&self) -> usize {
        with_rates!(self, rates => rates.rates())
    }

    /// Whether what remains is places in the queue.
    pub(crate) fn counts_waiters(&self) -> bool {
        matches!(self, Self::LeakyBucket(_))
    }

    /// The rate that could never admit `cost`, if there is one.
    #[inline]
    pub(crate) fn too_costly(&self, cost: u64) -> Option<usize> {
        match self {
            Self::TimerWheel(rings) => rings.too_costly(cost),
            other => other.too_costly_of_other(cost),
        }
    }

    /// Brings the state up to `now`; never back.
    #[allow(clippy::inline_always, reason = "that of the default is hot and small, the others are behind a call")]
    #[inline(always)]
    pub(crate) fn advance(&self, state: &mut [u64], now: Tick) {
        match self {
            Self::TimerWheel(rings) => rings.advance(state, now),
            other => other.advance_of_other(state, now),
        }
    }

    /// When `cost` fits, as of `now`, which `state` was advanced to.
    #[inline]
    pub(crate) fn room(&self, state: &[u64], cost: u64, now: Tick) -> FitTime {
        match self {
            Self::TimerWheel(rings) => rings.room(state, cost, now),
            other => other.room_of_other(state, cost, now),
        }
    }

    /// Takes `cost`, at the instant that `state` was advanced to.
    #[inline]
    pub(crate) fn commit(&self, state: &mut [u64], cost: u64, moment: Moment) {
        match self {
            Self::TimerWheel(rings) => rings.commit(state, cost, moment),
            other => other.commit_of_other(state, cost, moment),
        }
    }

    /// The months of a key begin on that day, once the window is over that counts. Of another rule than months nothing.
    pub(crate) fn renew(&self, state: &mut [u64], day: NonZeroU8, now: Tick) {
        let Self::FixedWindow(rates) = self else { return };
        for rate in 0..rates.rates() {
            if let Some((window, chunk)) = rates.rate_of(state, rate) {
                window.renew(chunk, day, now);
            }
        }
    }

    /// Whether it is one rate, with which nothing is to be done but to take a cost that fits.
    pub(crate) fn is_single(&self) -> bool {
        with_rates!(self, rates => rates.is_single()) && !self.needs_release() && !self.counts_waiters()
    }

    /// Takes `cost` if it fits, from a rule that [is single](Self::is_single); `None` from any other. `state` need not
    /// be advanced before.
    #[allow(clippy::inline_always, reason = "the whole of a check is one run of instructions")]
    #[inline(always)]
    pub(crate) fn take(&self, state: &mut [u64], cost: u64, moment: Moment) -> Option<CostOutcome> {
        with_rates!(self, rates => rates.take(state, cost, moment))
    }

    /// The most that is counted of a cost that is known when it has been spent.
    pub(crate) fn most_counted(&self) -> u64 {
        with_rates!(self, rates => rates.most_counted())
    }

    /// Whether a refusal for want of room is counted too.
    pub(crate) fn counts_refused(&self) -> bool {
        with_rates!(self, rates => rates.counts_refused())
    }

    /// Counts a refusal of `cost`, where that [is done](Self::counts_refused).
    pub(crate) fn note_refused(&self, state: &mut [u64], cost: u64, now: Tick) -> Noted {
        with_rates!(self, rates => rates.note_refused(state, cost, now))
    }

    /// Whether nothing remains when a cost of 1 has no room, and grows when it has: then a ring need not be searched
    /// twice for each of many refusals.
    pub(crate) fn stands_as_room_says(&self) -> bool {
        matches!(self, Self::TimerWheel(_))
    }

    /// Whether what is taken has to be [given back](Self::release).
    #[inline]
    pub(crate) fn needs_release(&self) -> bool {
        matches!(self, Self::Concurrency(_))
    }

    /// The era under which what is in flight was taken.
    pub(crate) fn era(&self, state: &[u64]) -> u64 {
        with_rates!(self, rates => rates.era(state))
    }

    /// Gives back what was taken under `era`; nothing if the state is of another one.
    pub(crate) fn release(&self, state: &mut [u64], cost: u64, era: u64) {
        with_rates!(self, rates => rates.release(state, cost, era));
    }

    /// The first words of each rate, which [`give_back`](Self::give_back) asks for as a commit left them.
    pub(crate) fn first_words(&self, state: &[u64]) -> [[u64; 2]; MAX_RATES] {
        with_rates!(self, rates => rates.first_words(state))
    }

    /// Gives `cost` of an earlier commit back, as of `now`, which `state` was advanced to; `taken` is that commit, for each
    /// of the rates.
    pub(crate) fn give_back(&self, state: &mut [u64], cost: u64, taken: impl Iterator<Item = CommitFacts>, now: Tick) {
        with_rates!(self, rates => rates.give_back(state, cost, taken, now));
    }

    /// A rate with a burst, greedily refilled, and its words; `None`: it is another one.
    pub(crate) fn credit_of<'s>(&self, state: &'s mut [u64], rate: usize) -> Option<(&gcra::Credit, &'s mut [u64])> {
        match self {
            Self::Gcra(rates) => rates.rate_of(state, rate),
            Self::TokenBucket(rates) => match rates.rate_of(state, rate)? {
                (token_bucket::Bucket::Greedy(credit), words) => Some((credit, words)),
                (token_bucket::Bucket::Interval(_), _) => None,
            },
            _ => None,
        }
    }

    /// How a rate stands, as of `now`, which `state` was advanced to.
    #[inline]
    pub(crate) fn standing(&self, state: &[u64], rate: usize, now: Tick) -> RateStanding {
        match self {
            Self::TimerWheel(rings) => rings.standing(state, rate, now),
            other => other.standing_of_other(state, rate, now),
        }
    }

    /// How a rate stands for a key that was never seen.
    pub(crate) fn fresh(&self, rate: usize) -> RateStanding {
        RateStanding { remaining: with_rates!(self, rates => rates.fresh(rate)), grows_at: None }
    }

    /// The most that ever remains of a key.
    pub(crate) fn most(&self, rate: usize) -> u64 {
        with_rates!(self, rates => rates.most(rate))
    }

    /// When a cost that is granted ahead has to be spent, of a state that was advanced to now; `None`: it does not matter.
    pub(crate) fn grant_ends(&self, state: &[u64]) -> Option<Tick> {
        with_rates!(self, rates => rates.grant_ends(state))
    }

    /// Whether forgetting the state at `now` makes no later decision less strict. Does not advance it.
    #[inline]
    pub(crate) fn is_idle(&self, state: &[u64], now: Tick) -> bool {
        match self {
            Self::TimerWheel(rings) => rings.is_idle(state, now),
            other => other.is_idle_of_other(state, now),
        }
    }

    /// A number that grows with the time of the last use: which of two keys was used less recently.
    pub(crate) fn recency(&self, state: &[u64]) -> u64 {
        with_rates!(self, rates => rates.recency(state))
    }

    /// Whether a commit that was due at `a` and is made at `b` leaves the same state as one made at `a`.
    pub(crate) fn same_moment(&self, a: Tick, b: Tick) -> bool {
        with_rates!(self, rates => rates.same_moment(a, b))
    }

    /// The change that words written under `old` need.
    pub(crate) fn layout_since(&self, old: &Self) -> LayoutChange {
        with_both!((self, old), (rates, old) => rates.layout_since(old), else LayoutChange::Reset)
    }

    /// Rebuilds the words `from`, written under `old` up to the instant `latest`, into the zeroed words `to`. Words of
    /// another algorithm mean nothing here.
    pub(crate) fn take_over(&self, old: &Self, from: &[u64], to: &mut [u64], latest: Tick) {
        with_both!((self, old), (rates, old) => rates.take_over(old, from, to, latest), else ());
    }

    /// Until when the penalty blocks a key; `None` if it does not.
    pub(crate) fn blocked_until(&self, state: &[u64], now: Tick) -> Option<Tick> {
        with_rates!(self, rates => rates.blocked_until(state, now))
    }

    /// Ends the block of the penalty, if there is one.
    pub(crate) fn end_block(&self, state: &mut [u64]) {
        with_rates!(self, rates => rates.end_block(state));
    }

    /// Writes the state of a key of which so much of each rate remains at `now`, as if the rest had just been taken.
    pub(crate) fn show(&self, state: &mut [u64], remaining: &[u64], now: Tick) {
        with_rates!(self, rates => rates.show(state, remaining, now));
    }

    /// The largest cost that is ever admitted.
    pub(crate) fn largest(&self) -> u64 {
        with_rates!(self, rates => rates.largest())
    }
}

/// The default is asked without a detour, the others behind one call: so the code of each check stays small enough to be
/// put in line.
impl Rule {
    #[inline(never)]
    fn too_costly_of_other(&self, cost: u64) -> Option<usize> {
        with_rates!(self, rates => rates.too_costly(cost))
    }

    #[inline(never)]
    fn advance_of_other(&self, state: &mut [u64], now: Tick) {
        with_rates!(self, rates => rates.advance(state, now));
    }

    #[inline(never)]
    fn room_of_other(&self, state: &[u64], cost: u64, now: Tick) -> FitTime {
        with_rates!(self, rates => rates.room(state, cost, now))
    }

    #[inline(never)]
    fn commit_of_other(&self, state: &mut [u64], cost: u64, moment: Moment) {
        with_rates!(self, rates => rates.commit(state, cost, moment));
    }

    #[inline(never)]
    fn standing_of_other(&self, state: &[u64], rate: usize, now: Tick) -> RateStanding {
        with_rates!(self, rates => rates.standing(state, rate, now))
    }

    #[inline(never)]
    fn is_idle_of_other(&self, state: &[u64], now: Tick) -> bool {
        with_rates!(self, rates => rates.is_idle(state, now))
    }
}
