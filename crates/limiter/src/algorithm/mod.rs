//! The algorithms, behind one closed enum: which limit was configured ([`Algorithm`]) and, inside the room, how its
//! state is kept and asked ([`Rule`]).
//!
//! An algorithm is pure arithmetic on the words of one key. It knows nothing of tables, queues, locks or other
//! limits; those know nothing of what the words mean. A new algorithm is one file with its parameters and its
//! [`Meter`](several::Meter), one rate of it; `several` puts the rates of one limit side by side. The other rooms count
//! on this:
//!
//! - words that are all zero are the state of a key that was never seen;
//! - every question is asked of words that were [advanced](Rule::advance) to `now` first;
//! - without a commit, room once there stays (so the latest of several rates is when all have room);
//! - [idle](Rule::is_idle) words may be forgotten: no later decision changes, or it is stricter;
//! - what is [given back](Rule::give_back) is at most what was taken, and leaves the bound that the algorithm promises
//!   kept, counted with what requests have cost in the end.

mod calendar_window;
mod concurrency;
mod divisor;
mod error;
mod fixed_window;
mod gcra;
mod leaky_bucket;
mod pace;
mod packed_counter;
mod penalty;
mod ring;
mod rule;
mod scaled;
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
pub use penalty::{Penalty, PenaltyError};
pub use scaled::FULL_SCALE;
pub use sliding_counter::SlidingCounter;
pub use sliding_log::{MAX_LOG, SlidingLog};
pub use sliding_window::SlidingWindow;
pub use smooth_bursty::SmoothBursty;
pub use timer_wheel::{Bound, MAX_SLOTS, TimerWheel, TimerWheelError};
pub use token_bucket::{Refill, TokenBucket};
pub use warm_up::{MAX_COLD_FACTOR, WarmUp};

pub(super) use rule::Rule;
pub(super) use scaled::share_of;
pub(super) use several::CostOutcome;

use super::calendar_rate::CalendarRate;
use super::quota::{MAX_DEFAULT_QUEUE, Rate};
use sluicegate_time::{Span, Tick};

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

/// When a cost fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FitTime {
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

/// The facts that are kept of a commit, so that a part of it can be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommitFacts {
    /// When it was committed, which may be a little after it was due.
    pub(crate) at: Tick,
    /// The first words of the rate's chunk, as the commit left them.
    pub(crate) words: [u64; 2],
    /// How much others of the same key have been given back since.
    pub(crate) given: u64,
    /// It may have been committed in part after `at`, or a little before.
    pub(crate) is_about: bool,
}

/// The effect of a refusal on those behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Noted {
    /// Nothing: room comes when it would have come.
    Nothing,
    /// It was entered like a request: room comes later.
    Entered,
    /// A block has begun: until it ends there is no room at all.
    Blocked,
}

/// How one rate stands for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RateStanding {
    pub(super) remaining: u64,
    /// When `remaining` grows; `None` when it is at its most.
    pub(super) grows_at: Option<Tick>,
}

/// The effect of a changed configuration on the words of the keys; the later, the more is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LayoutChange {
    /// They stay as they are.
    Kept,
    /// They mean the same, in other words.
    Repacked,
    /// They are rebuilt: other slots, another pace.
    Rescaled,
    /// They mean nothing to the new rule, and every key starts afresh.
    Reset,
}

/// The fate of the counts of an [`Algorithm`] when another one takes its place.
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

    /// One of them as it is written: of a month its unit, which has no length.
    pub fn rate_text(&self, rate: usize) -> String {
        let unit = if let Self::FixedWindow(window) = self { window.unit_of(rate) } else { None };
        let rate = self.rates().get(rate);
        let of_calendar = rate.zip(unit).and_then(|(rate, unit)| CalendarRate::new(rate.limit(), unit).ok());
        of_calendar.map(|rate| rate.to_string()).or_else(|| rate.map(ToString::to_string)).unwrap_or_default()
    }

    /// Whether it compares what it has counted in a window with its rate, so that another rate may hold for a single request.
    /// Where time refills, what is there does not say what was taken.
    pub fn counts_in_window(&self) -> bool {
        matches!(self, Self::TimerWheel(_) | Self::FixedWindow(_) | Self::SlidingCounter(_) | Self::SlidingLog(_))
    }

    /// The largest cost that it ever admits: a request that costs more is refused without a time to come back.
    pub fn largest_cost(&self) -> u64 {
        Rule::new(self, None, None).largest()
    }

    /// The most that is counted of a cost that is known only when it has been spent: what is ever admitted, or a window's
    /// worth, whichever is more.
    pub fn largest_charge(&self) -> u64 {
        Rule::new(self, None, None).most_counted()
    }

    /// The size of a key in the table: its fingerprint and its words.
    pub fn bytes_per_key(&self) -> u64 {
        (1 + Rule::new(self, None, None).words() as u64) * 8
    }

    /// The fate of the counts of `old` if this takes its place.
    pub fn carries(&self, old: &Self) -> Carry {
        let old = Rule::new(old, None, None);
        match Rule::new(self, None, Some(&old)).layout_since(&old) {
            LayoutChange::Kept | LayoutChange::Repacked => Carry::Kept,
            LayoutChange::Rescaled => Carry::Rescaled,
            LayoutChange::Reset => Carry::Nothing,
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

impl RateStanding {
    /// Nothing remains before there is room for one.
    #[inline]
    fn none_until(room: FitTime) -> Self {
        Self { remaining: 0, grows_at: if let FitTime::At { at, .. } = room { Some(at) } else { None } }
    }

    /// `remaining` of at most `most`; it grows when one more than that has room.
    fn before(remaining: u64, most: u64, room: impl Fn(u64) -> FitTime) -> Self {
        let grows_at = match remaining.checked_add(1).filter(|more| *more <= most).map(room) {
            Some(FitTime::At { at, .. }) => Some(at),
            _ => None,
        };
        Self { remaining, grows_at }
    }
}

/// Whether what was due at `a` is not too late at `b` to count as of `a`.
fn in_time(a: Tick, b: Tick) -> bool {
    a <= b && b.since(a) <= TIMER_SLACK
}

#[cfg(test)]
mod tests;
