//! The algorithms, behind one closed enum: which limit was configured ([`Algorithm`]) and, inside the room, how its
//! state is kept and asked ([`Rule`]).
//!
//! An algorithm is pure arithmetic on the words of one key. It knows nothing of tables, queues, locks or other
//! limits; those know nothing of what the words mean. A new algorithm is one file with its parameters and its
//! [`Meter`](several::Meter), one rate of it; `several` puts the rates of one limit side by side. What the other rooms
//! count on:
//!
//! - words that are all zero are the state of a key that was never seen;
//! - every question is asked of words that were [advanced](Rule::advance) to `now` first;
//! - without a commit, room once there stays (so the latest of several rates is when all have room);
//! - [idle](Rule::is_idle) words may be forgotten: no later decision changes, or it is stricter.

mod concurrency;
mod error;
mod fixed_window;
mod gcra;
mod leaky_bucket;
mod pace;
mod ring;
mod several;
mod sliding_counter;
mod sliding_log;
mod sliding_window;
mod smooth_bursty;
mod timer_wheel;
mod token_bucket;
mod turns;
mod warm_up;

pub use concurrency::Concurrency;
pub use error::AlgorithmError;
pub use fixed_window::{Align, FixedWindow};
pub use gcra::Gcra;
pub use leaky_bucket::LeakyBucket;
pub use sliding_counter::SlidingCounter;
pub use sliding_log::{MAX_LOG, SlidingLog};
pub use sliding_window::SlidingWindow;
pub use smooth_bursty::SmoothBursty;
pub use timer_wheel::{Bound, MAX_SLOTS, TimerWheel, TimerWheelError};
pub use token_bucket::{Refill, TokenBucket};
pub use warm_up::{MAX_COLD_FACTOR, WarmUp};

use super::limit::MAX_DEFAULT_QUEUE;
use super::quota::Rate;
use crate::time::{Span, Tick};
use several::Several;

/// How a limit counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Counts per slot of a ring: the default.
    TimerWheel(TimerWheel),
    /// A bucket of tokens that refills.
    TokenBucket(TokenBucket),
    /// One instant per key.
    Gcra(Gcra),
    /// So many in a window, and then a new one.
    FixedWindow(FixedWindow),
    /// Sub-windows with a cap each.
    SlidingWindow(SlidingWindow),
    /// Two windows, the older one weighted.
    SlidingCounter(SlidingCounter),
    /// A queue that drips.
    LeakyBucket(LeakyBucket),
    /// The exact instants of the last requests.
    SlidingLog(SlidingLog),
    /// A big request passes now, and the next one pays.
    SmoothBursty(SmoothBursty),
    /// Slow after a rest, and faster as it warms up.
    WarmUp(WarmUp),
    /// So many at once.
    Concurrency(Concurrency),
}

/// An algorithm with the layout of its state: what the table, the queues and the policy work with.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Rule {
    TimerWheel(Several<ring::Ring>),
    TokenBucket(Several<token_bucket::Bucket>),
    Gcra(Several<gcra::Credit>),
    FixedWindow(Several<fixed_window::Window>),
    SlidingWindow(Several<sliding_window::CappedRing>),
    SlidingCounter(Several<sliding_counter::Counter>),
    LeakyBucket(Several<turns::Turns>),
    SlidingLog(Several<sliding_log::Stamps>),
    SmoothBursty(Several<turns::Turns>),
    WarmUp(Several<warm_up::Warmth>),
    Concurrency(Several<concurrency::Permits>),
}

/// When a cost fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    Now,
    /// From this instant, if nobody else takes it; `rate` is the one whose room comes last.
    At {
        at: Tick,
        rate: usize,
    },
    /// When enough of those in flight have ended, and nobody knows when that is.
    OnRelease {
        rate: usize,
    },
    /// The cost is above what `rate` ever admits.
    Never {
        rate: usize,
    },
}

/// When and under which era something is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) now: Tick,
    /// When its timer was set for, at most [`TIMER_SLACK`] before now: what reckons from instants counts it then, so
    /// that a timer that is a little late each time does not slow the limit down.
    pub(super) due: Tick,
    /// Grows whenever a live key is forgotten: what is given back to one of another era is not its own.
    pub(super) era: u64,
}

/// How one rate stands for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) remaining: u64,
    /// When `remaining` grows; `None` when it is at its most.
    pub(super) grows_at: Option<Tick>,
}

/// What a changed configuration means for the words of the keys; the later, the more is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Layout {
    /// They stay as they are.
    Kept,
    /// They mean the same, in other words.
    Repacked,
    /// They are rebuilt: other slots, another pace.
    Rescaled,
    /// They mean nothing to the new rule, and every key starts afresh.
    Reset,
}

/// What becomes of the counts of an [`Algorithm`] when another one takes its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carry {
    /// They stay as they are.
    Kept,
    /// They are taken over as far as the other shape allows, never less strictly.
    Rescaled,
    /// Nothing: every key starts afresh.
    Nothing,
}

/// How late a worker's timer may be.
pub(super) const TIMER_SLACK: Span = Span::from_millis(2);

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

impl Algorithm {
    /// Its name in a configuration.
    pub fn name(&self) -> &'static str {
        match self {
            Self::TimerWheel(_) => "timer-wheel",
            Self::TokenBucket(_) => "token-bucket",
            Self::Gcra(_) => "gcra",
            Self::FixedWindow(_) => "fixed-window",
            Self::SlidingWindow(_) => "sliding-window",
            Self::SlidingCounter(_) => "sliding-counter",
            Self::LeakyBucket(_) => "leaky-bucket",
            Self::SlidingLog(_) => "sliding-log",
            Self::SmoothBursty(_) => "smooth-bursty",
            Self::WarmUp(_) => "warm-up",
            Self::Concurrency(_) => "concurrency",
        }
    }

    /// Its rates, all of which must hold; none if it counts what is in flight.
    pub fn rates(&self) -> &[Rate] {
        match self {
            Self::TimerWheel(wheel) => wheel.rates(),
            Self::TokenBucket(bucket) => bucket.rates(),
            Self::Gcra(gcra) => gcra.rates(),
            Self::FixedWindow(window) => window.rates(),
            Self::SlidingWindow(window) => window.rates(),
            Self::SlidingCounter(counter) => counter.rates(),
            Self::LeakyBucket(bucket) => bucket.rates(),
            Self::SlidingLog(log) => log.rates(),
            Self::SmoothBursty(smooth) => smooth.rates(),
            Self::WarmUp(warm) => warm.rates(),
            Self::Concurrency(_) => &[],
        }
    }

    /// The largest cost that it ever admits: a request that costs more is refused without a time to come back.
    pub fn largest_cost(&self) -> u64 {
        with_rates!(&Rule::new(self, None), rates => rates.largest())
    }

    /// What a key takes in the table: its fingerprint and its words.
    pub fn bytes_per_key(&self) -> u64 {
        (1 + Rule::new(self, None).words() as u64) * 8
    }

    /// What becomes of the counts of `old` if this takes its place.
    pub fn carries(&self, old: &Self) -> Carry {
        let old = Rule::new(old, None);
        match Rule::new(self, Some(&old)).layout_since(&old) {
            Layout::Kept | Layout::Repacked => Carry::Kept,
            Layout::Rescaled => Carry::Rescaled,
            Layout::Reset => Carry::Nothing,
        }
    }

    /// How long a request may wait when nothing else is said: the pacing ones do nothing but make wait.
    pub fn default_max_wait(&self) -> Span {
        match self {
            Self::LeakyBucket(_) | Self::SmoothBursty(_) | Self::WarmUp(_) => Span::from_secs(1),
            _ => Span::ZERO,
        }
    }

    /// How many may wait per key when nothing else is said: what a leaky bucket holds; as many as may be in flight; for
    /// the others what the first rate admits in `max_wait`, at most [`MAX_DEFAULT_QUEUE`].
    pub fn default_max_queue(&self, max_wait: Span) -> u64 {
        let admitted = |rate: &Rate| {
            let windows = max_wait.as_nanos().div_ceil(rate.window().as_nanos().max(1));
            rate.limit().saturating_mul(windows).min(MAX_DEFAULT_QUEUE)
        };
        match self {
            Self::LeakyBucket(bucket) => bucket.max_waiting(),
            Self::Concurrency(concurrency) if !max_wait.is_zero() => concurrency.max_in_flight().min(MAX_DEFAULT_QUEUE),
            _ => self.rates().first().map_or(0, admitted),
        }
    }
}

impl Moment {
    /// Counted just when it is due.
    pub(super) fn at(now: Tick) -> Self {
        Self { now, due: now, era: 0 }
    }
}

impl Standing {
    /// `remaining` of at most `most`; it grows when one more than that has room.
    fn before(remaining: u64, most: u64, room: impl Fn(u64) -> Room) -> Self {
        let grows_at = match remaining.checked_add(1).filter(|more| *more <= most).map(room) {
            Some(Room::At { at, .. }) => Some(at),
            _ => None,
        };
        Self { remaining, grows_at }
    }
}

impl Rule {
    /// `previous` is the rule that the words of the keys were written under.
    pub(super) fn new(algorithm: &Algorithm, previous: Option<&Self>) -> Self {
        macro_rules! rule {
            ($variant:ident, $meters:expr) => {
                Self::$variant(Several::new(
                    &$meters,
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

    /// Words of state per key; at least one.
    pub(super) fn words(&self) -> usize {
        with_rates!(self, rates => rates.words())
    }

    /// The quota and window of one rate.
    pub(super) fn quota(&self, rate: usize) -> (u64, Span) {
        with_rates!(self, rates => rates.quota(rate))
    }

    pub(super) fn rates(&self) -> usize {
        with_rates!(self, rates => rates.rates())
    }

    /// Whether what remains is places in the queue.
    pub(super) fn counts_waiters(&self) -> bool {
        matches!(self, Self::LeakyBucket(_))
    }

    /// The rate that could never admit `cost`, if there is one.
    #[inline]
    pub(super) fn too_costly(&self, cost: u64) -> Option<usize> {
        with_rates!(self, rates => rates.too_costly(cost))
    }

    /// Brings the state up to `now`; never back.
    #[inline]
    pub(super) fn advance(&self, state: &mut [u64], now: Tick) {
        with_rates!(self, rates => rates.advance(state, now));
    }

    /// When `cost` fits, as of `now`, which `state` was advanced to.
    #[inline]
    pub(super) fn room(&self, state: &[u64], cost: u64, now: Tick) -> Room {
        with_rates!(self, rates => rates.room(state, cost, now))
    }

    /// Takes `cost`, at the instant that `state` was advanced to.
    #[inline]
    pub(super) fn commit(&self, state: &mut [u64], cost: u64, moment: Moment) {
        with_rates!(self, rates => rates.commit(state, cost, moment));
    }

    /// Whether a refusal for want of room is counted too.
    pub(super) fn counts_refused(&self) -> bool {
        with_rates!(self, rates => rates.counts_refused())
    }

    /// Counts a refusal of `cost`, where that [is done](Self::counts_refused).
    pub(super) fn note_refused(&self, state: &mut [u64], cost: u64, now: Tick) {
        with_rates!(self, rates => rates.note_refused(state, cost, now));
    }

    /// Whether nothing remains when a cost of 1 has no room, and grows when it has: then a ring need not be searched
    /// twice for each of many refusals.
    pub(super) fn stands_as_room_says(&self) -> bool {
        matches!(self, Self::TimerWheel(_))
    }

    /// Whether what is taken has to be [given back](Self::release).
    #[inline]
    pub(super) fn needs_release(&self) -> bool {
        with_rates!(self, rates => rates.needs_release())
    }

    /// The era under which what is in flight was taken.
    pub(super) fn era(&self, state: &[u64]) -> u64 {
        with_rates!(self, rates => rates.era(state))
    }

    /// Gives back what was taken under `era`; nothing if the state is of another one.
    pub(super) fn release(&self, state: &mut [u64], cost: u64, era: u64) {
        with_rates!(self, rates => rates.release(state, cost, era));
    }

    /// How a rate stands, as of `now`, which `state` was advanced to.
    #[inline]
    pub(super) fn standing(&self, state: &[u64], rate: usize, now: Tick) -> Standing {
        with_rates!(self, rates => rates.standing(state, rate, now))
    }

    /// How a rate stands for a key that was never seen.
    pub(super) fn fresh(&self, rate: usize) -> Standing {
        Standing { remaining: with_rates!(self, rates => rates.fresh(rate)), grows_at: None }
    }

    /// Whether forgetting the state at `now` makes no later decision less strict. Does not advance it.
    pub(super) fn is_idle(&self, state: &[u64], now: Tick) -> bool {
        with_rates!(self, rates => rates.is_idle(state, now))
    }

    /// A number that grows with the time of the last use: which of two keys was used less recently.
    pub(super) fn recency(&self, state: &[u64]) -> u64 {
        with_rates!(self, rates => rates.recency(state))
    }

    /// Whether a commit that was due at `a` and is made at `b` leaves the same state as one made at `a`.
    pub(super) fn same_moment(&self, a: Tick, b: Tick) -> bool {
        with_rates!(self, rates => rates.same_moment(a, b))
    }

    /// What has to happen to words that were written under `old`.
    pub(super) fn layout_since(&self, old: &Self) -> Layout {
        with_both!((self, old), (rates, old) => rates.layout_since(old), else Layout::Reset)
    }

    /// Rebuilds the words `from`, written under `old` up to the instant `latest`, into the zeroed words `to`. Words of
    /// another algorithm mean nothing here.
    pub(super) fn take_over(&self, old: &Self, from: &[u64], to: &mut [u64], latest: Tick) {
        with_both!((self, old), (rates, old) => rates.take_over(old, from, to, latest), else ());
    }
}

/// Whether what was due at `a` is not too late at `b` to count as of `a`.
fn in_time(a: Tick, b: Tick) -> bool {
    a <= b && b.since(a) <= TIMER_SLACK
}

#[cfg(test)]
mod tests;
