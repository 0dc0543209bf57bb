//! The algorithms, behind one closed enum: which limit was configured ([`Algorithm`]) and, inside the room, how its
//! state is kept and asked ([`Rule`]).
//!
//! An algorithm is pure arithmetic on the words of one key. It knows nothing of tables, queues, locks or other
//! limits; those know nothing of what the words mean. A new algorithm is one file, one variant here and its arm in
//! every `match` below. What the other rooms count on:
//!
//! - words that are all zero are the state of a key that was never seen;
//! - every question is asked of words that were [advanced](Rule::advance) to `now` first;
//! - without a commit, room once there stays (so the latest of several rates is when all have room);
//! - [idle](Rule::is_idle) words may be forgotten: no later decision changes.

mod ring;
mod timer_wheel;

pub use timer_wheel::{Bound, MAX_SLOTS, TimerWheel, TimerWheelError};

use super::quota::Rate;
use crate::time::{Span, Tick};
use timer_wheel::Rings;

/// How a limit counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Counts per slot of a ring: the default.
    TimerWheel(TimerWheel),
}

impl Algorithm {
    /// Its rates, all of which must hold.
    pub fn rates(&self) -> &[Rate] {
        match self {
            Self::TimerWheel(wheel) => wheel.rates(),
        }
    }
}

/// An algorithm with the layout of its state: what the table, the queues and the policy work with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    TimerWheel(Rings),
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
    /// The cost is above what `rate` ever admits.
    Never {
        rate: usize,
    },
}

/// How one rate stands for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) remaining: u64,
    /// When `remaining` grows; `None` when it is at its most.
    pub(super) grows_at: Option<Tick>,
}

/// What a changed configuration means for the words of the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// They stay as they are.
    Kept,
    /// They mean the same, in other words.
    Repacked,
    /// They are rebuilt: other slots.
    Rescaled,
}

impl Rule {
    /// `previous` is the rule that the words of the keys were written under.
    pub(super) fn new(algorithm: &Algorithm, previous: Option<&Self>) -> Self {
        match algorithm {
            Algorithm::TimerWheel(wheel) => {
                Self::TimerWheel(Rings::new(wheel, previous.map(|Self::TimerWheel(rings)| rings)))
            }
        }
    }

    /// Words of state per key; at least one.
    pub(super) fn words(&self) -> usize {
        match self {
            Self::TimerWheel(rings) => rings.words(),
        }
    }

    /// The quota and window of one rate.
    pub(super) fn quota(&self, rate: usize) -> (u64, Span) {
        match self {
            Self::TimerWheel(rings) => rings.quota(rate),
        }
    }

    pub(super) fn rates(&self) -> usize {
        match self {
            Self::TimerWheel(rings) => rings.rates(),
        }
    }

    /// The rate that could never admit `cost`, if there is one.
    #[inline]
    pub(super) fn too_costly(&self, cost: u64) -> Option<usize> {
        match self {
            Self::TimerWheel(rings) => rings.too_costly(cost),
        }
    }

    /// Brings the state up to `now`; never back.
    #[inline]
    pub(super) fn advance(&self, state: &mut [u64], now: Tick) {
        match self {
            Self::TimerWheel(rings) => rings.advance(state, now),
        }
    }

    /// When `cost` fits, as of the instant that `state` was advanced to.
    #[inline]
    pub(super) fn room(&self, state: &[u64], cost: u64) -> Room {
        match self {
            Self::TimerWheel(rings) => rings.room(state, cost),
        }
    }

    /// Takes `cost`, at the instant that `state` was advanced to.
    #[inline]
    pub(super) fn commit(&self, state: &mut [u64], cost: u64) {
        match self {
            Self::TimerWheel(rings) => rings.commit(state, cost),
        }
    }

    /// How a rate stands, as of the instant that `state` was advanced to. `next` is when a cost of 1 fits into it, if
    /// [`room`](Self::room) has just said so: refusals are many, and need not be told twice.
    pub(super) fn standing(&self, state: &[u64], rate: usize, next: Option<Tick>) -> Standing {
        match self {
            Self::TimerWheel(rings) => rings.standing(state, rate, next),
        }
    }

    /// Whether forgetting the state at `now` changes no later decision. Does not advance it.
    pub(super) fn is_idle(&self, state: &[u64], now: Tick) -> bool {
        match self {
            Self::TimerWheel(rings) => rings.is_idle(state, now),
        }
    }

    /// A number that grows with the time of the last use: which of two keys was used less recently.
    pub(super) fn recency(&self, state: &[u64]) -> u64 {
        match self {
            Self::TimerWheel(_) => Rings::recency(state),
        }
    }

    /// Whether a commit at `a` leaves the same state as one at `b`.
    pub(super) fn same_moment(&self, a: Tick, b: Tick) -> bool {
        match self {
            Self::TimerWheel(rings) => rings.same_moment(a, b),
        }
    }

    /// What has to happen to words that were written under `old`.
    pub(super) fn layout_since(&self, old: &Self) -> Layout {
        match (self, old) {
            (Self::TimerWheel(rings), Self::TimerWheel(old)) => rings.layout_since(old),
        }
    }

    /// Rebuilds the words `from`, written under `old` up to the instant `latest`, into the zeroed words `to`.
    pub(super) fn take_over(&self, old: &Self, from: &[u64], to: &mut [u64], latest: Tick) {
        match (self, old) {
            (Self::TimerWheel(rings), Self::TimerWheel(old)) => rings.take_over(old, from, to, latest),
        }
    }

    /// How many may wait per key when the configuration does not say: what the first rate admits in `max_wait`.
    pub(super) fn default_queue(&self, max_wait: Span) -> u64 {
        let (limit, window) = self.quota(0);
        limit.saturating_mul(max_wait.as_nanos().div_ceil(window.as_nanos().max(1)))
    }
}
