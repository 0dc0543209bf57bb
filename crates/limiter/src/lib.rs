//! The rate limiter: who may pass, who waits, who is refused.
//!
//! A pure library. Time is an argument ([`Tick`](sluicegate_time::Tick)), nothing is read or sent, and it needs no async
//! runtime: who has to wait gets a [`Ticket`] and hands in a [`Waker`](std::task::Waker).
//!
//! # The pieces
//!
//! - [`Limit`]: one rule with its table of keys. It outlives configurations: a reload changes its parameters.
//! - [`Policy`]: the limits of one route, all or nothing. [`Policy::check`] is the one call of an arriving request.
//! - [`Policy::peek`]: what a check would say, without a trace, for a caller that explains.
//! - [`Permit`]: what an admitted request still owes: to be counted later, to be corrected to what it has really cost, or
//!   to give back at its end; mostly nothing.
//! - [`Ticket`]: the place of a request that waits; [`Ticket::attempt`] is the one call of a waiting one.
//! - [`Fingerprint`]: what is kept of a key. Made by a [`KeyHasher`] with a secret.
//! - [`Account`]: one key's count in a store that several gateways share. It answers each [`Settle`] with an [`Answer`], and
//!   is what every store is held against.
//!
//! - [`Sharing`]: how a limit is shared with other gateways. Its fleet [collects](Limit::collect) what is to be said to
//!   their store, brings back the [answers](Limit::answered), and says [how the fleet stands](Limit::set_view).
//!
//! Within: `algorithm` is arithmetic on the words of one key; `lease` is what a key of a shared limit has of its fleet; `table` keeps words per key and knows nothing of what
//! they mean; `queue` keeps who waits; `shard` is the three under one lock, and what is reserved until its real
//! cost is known; `round` takes the locks of several limits; `decision` says what becomes of a request that does not fit,
//! from facts alone.
//!
//! # Invariants
//!
//! - Every limit keeps the bound of its algorithm, whatever the interleaving of threads, cancels and reloads. Cost that
//!   is given back leaves it kept, counted with real costs; what is charged above an estimate is charged, room or not.
//! - A request that is not admitted takes nothing anywhere, and nobody is refused for a count that is about to be undone:
//!   all shards are locked, in an order that is the same for everybody, all are asked, then all count. Only the limit that
//!   refuses may take a note of that, for a [`Penalty`] or a [`SlidingLog`] that counts refusals.
//! - Arrivals never overtake a queue, and only its head may be admitted from it. The task that takes the head away
//!   wakes the next, with no lock held.
//! - Each table holds a bounded number of keys, whatever is sent. A key is forgotten without a trace only when that
//!   changes no later decision, or when the table is full.
//! - A check does a bounded amount of work, but for two things. A shard's table is copied when it grows: it is kept at
//!   about 256 KiB. A queue is walked to plan it anew after a cancel or a missed turn: up to 1,000 waiters whenever
//!   asked, a longer queue at most once in 10 ms; in between its instants, and so `retry_at`, may be later than need be.
//! - A shared limit is asked like any other: what its fleet grants lies in its table. Nobody waits for the store longer
//!   than [`Sharing::deadline`]; `lease` says by how much several gateways together may be above the limit, and why.
//! - Nothing here panics on any input; a lock that a panicking thread left behind is taken over.
//!
//! # Two choices
//!
//! - No wheel here holds the waiters: each waits on its worker's timer until the instant that it was told. Slots are
//!   arithmetic on the clock, so there is nothing to tick, and no lock is taken for those whose time has not come.
//! - A reload that changes slots rebuilds all keys at once, shard by shard under its lock, not each when next asked
//!   for: no key is ever in a layout of before, so that a check need not ask which. It holds up each shard's requests
//!   for as long as a growth does.
//!
//! # Callers
//!
//! `admission` checks and attempts; `gateway` builds limits and policies and reconfigures them; other programs may
//! embed it. Only [`Concurrency`] limits how many run at once: what it counts is given back when the [`Permit`] of a
//! request is dropped. With the others a finished request does not free quota, but what it was counted above its real
//! cost, where that is [asked for](Counting::Corrected).
//!
//! # Example
//!
//! ```
//! use sluicegate_limiter::time::{Span, Tick};
//! use sluicegate_limiter::*;
//!
//! let wheel = TimerWheel::new(&["2/s".parse()?], None, Bound::Sliding)?;
//! let limit = Limit::new(LimitSpec::new("per-client", Algorithm::TimerWheel(wheel)));
//! let policy = Policy::new(vec![limit])?;
//! let ask = [Ask { key: Some(KeyHasher::random().of(b"203.0.113.7")), cost: 1, ..Ask::default() }];
//! let mut report = Report::default();
//! let mut check = |now| policy.check(&ask, Span::MAX, now, &mut report);
//! assert!(matches!(check(Tick::ZERO), Verdict::Admitted(_)));
//! assert!(matches!(check(Tick::ZERO), Verdict::Admitted(_)));
//! let Verdict::Refused(refusal) = check(Tick::ZERO) else { panic!("two a second") };
//! assert_eq!(refusal.retry_at, Some(Tick::ZERO + Span::from_secs(1)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[macro_use]
extern crate sluicegate_words;

mod account;
mod account_log;
mod algorithm;
mod calendar_rate;
mod decision;
mod follow;
mod followed;
mod forget;
mod key;
mod lease;
mod limit;
mod outbox;
mod peer_spends;
mod permit;
mod persist;
mod policy;
mod queue;
mod quota;
mod report;
mod round;
mod settle;
mod shard;
mod sharing;
mod sync;
mod table;
mod ticket;
mod urgent_signal;
mod verdict;

/// Instants, spans and clocks: the arguments of most calls here.
pub use sluicegate_time as time;

pub use account::{Account, GRANT_RETURNS};
pub use algorithm::FULL_SCALE;
pub use algorithm::{
    Algorithm, AlgorithmError, Align, Bound, Carry, Concurrency, FixedWindow, Gcra, LeakyBucket, MAX_COLD_FACTOR,
    MAX_LOG, MAX_SLOTS, Penalty, PenaltyError, Refill, SlidingCounter, SlidingLog, SlidingWindow, SmoothBursty,
    TimerWheel, TimerWheelError, TokenBucket, WarmUp,
};
pub use calendar_rate::{CalendarRate, CalendarRateError};
pub use followed::Followed;
pub use key::{Fingerprint, KeyBuilder, KeyHasher};
pub use limit::{Limit, LimitSpec, LimitStats, Mode, OnFull, Reconfigured};
pub use peer_spends::{PeerDebt, PeerSpends};
pub use permit::Permit;
pub use persist::KeyLayout;
pub use policy::{Policy, PolicyError};
pub use quota::{MAX_COUNT, MAX_DEFAULT_QUEUE, Rate, RateError};
pub use report::{LimitState, QuotaLine, Report};
pub use settle::{Collect, Outstanding, Settle, SettleAnswer, Turn, Wanted};
pub use sharing::{AwayKeys, FleetView, LEASE_HOLD, OnFailure, PPM, Sharing, StoreSharing};
pub use ticket::Ticket;
pub use verdict::{Ask, Attempt, Counting, Peeked, Refusal, RefusalReason, Spent, Verdict};

/// The most limits on one route.
pub const MAX_LIMITS: usize = 8;
/// The most rates in one limit.
pub const MAX_RATES: usize = 4;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests;
