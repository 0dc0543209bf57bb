//! The room through its door: goldens, waiting, several limits, reloads, bounded tables, threads.

mod algorithms;
mod at_most;
mod calendar;
mod charges;
mod concurrency;
mod corrections;
mod fast_path;
mod fleet;
mod fleet_costs;
mod fleet_made;
mod fleet_outage;
mod fleet_outbox;
mod fleet_parts;
mod fleet_waiting;
mod follow;
mod forgetting;
mod goldens;
mod later;
mod peek;
mod peer_spends;
mod penalty;
mod persist;
mod reload;
mod renewals;
mod scale;
mod several;
mod table_bound;
mod threads;
mod waiting;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Wake, Waker};

use super::*;
use sluicegate_time::{Span, Tick};

pub(super) fn at(millis: u64) -> Tick {
    Tick::ZERO + Span::from_millis(millis)
}

pub(super) fn key(name: u64) -> Fingerprint {
    let mut key = KeyHasher::fixed().start();
    key.part(0, &name.to_le_bytes());
    key.finish()
}

pub(super) fn wheel(rates: &[&str], slots: Option<u32>, bound: Bound) -> Algorithm {
    let rates: Vec<Rate> = rates.iter().map(|rate| rate.parse().unwrap()).collect();
    Algorithm::TimerWheel(TimerWheel::new(&rates, slots, bound).unwrap())
}

pub(super) fn spec(rate: &str) -> LimitSpec {
    LimitSpec { max_keys: 1_000, ..LimitSpec::new(rate, wheel(&[rate], None, Bound::Sliding)) }
}

pub(super) fn waiting(rate: &str, max_wait_millis: u64) -> LimitSpec {
    LimitSpec { max_wait: Span::from_millis(max_wait_millis), ..spec(rate) }
}

pub(super) fn policy(limits: &[&Arc<Limit>]) -> Arc<Policy> {
    Policy::new(limits.iter().map(|limit| Arc::clone(limit)).collect()).unwrap()
}

pub(super) fn one(spec: LimitSpec) -> (Arc<Limit>, Arc<Policy>) {
    let limit = Limit::new(spec);
    let policy = policy(&[&limit]);
    (limit, policy)
}

pub(super) fn asks(name: u64, cost: u64) -> [Ask; MAX_LIMITS] {
    [Ask { key: Some(key(name)), cost, counting: Counting::AtOnce, ..Ask::default() }; MAX_LIMITS]
}

pub(super) fn check(policy: &Arc<Policy>, name: u64, cost: u64, now: Tick) -> Verdict {
    policy.check(&asks(name, cost), Span::MAX, now, &mut Report::default())
}

pub(super) fn admitted(policy: &Arc<Policy>, name: u64, now: Tick) -> bool {
    matches!(check(policy, name, 1, now), Verdict::Admitted(_))
}

/// How many of cost 1 more a key has at `now`.
pub(super) fn drain(policy: &Arc<Policy>, name: u64, now: Tick) -> usize {
    (0..1_000).take_while(|_| admitted(policy, name, now)).count()
}

pub(super) fn refused(verdict: Verdict) -> Refusal {
    match verdict {
        Verdict::Refused(refusal) => refusal,
        other => panic!("{other:?} is no refusal"),
    }
}

pub(super) fn queued(verdict: Verdict) -> Waiting {
    match verdict {
        Verdict::Queued(ticket) => Waiting { ticket, woken: Arc::default() },
        other => panic!("{other:?} does not wait"),
    }
}

/// A ticket, and how often it was woken.
pub(super) struct Waiting {
    pub(super) ticket: Ticket,
    woken: Arc<Woken>,
}

#[derive(Default)]
struct Woken(AtomicU64);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Waiting {
    pub(super) fn attempt(&mut self, now: Tick) -> Attempt {
        self.ticket.attempt(now, &Waker::from(Arc::clone(&self.woken)), &mut Report::default())
    }

    pub(super) fn wake_at(&mut self, now: Tick) -> Tick {
        match self.attempt(now) {
            Attempt::Pending { wake_at } => wake_at,
            other => panic!("{other:?} is not pending"),
        }
    }

    pub(super) fn times_woken(&self) -> u64 {
        self.woken.0.load(Ordering::SeqCst)
    }

    pub(super) fn timed_out(&mut self, now: Tick) -> Refusal {
        match self.attempt(now) {
            Attempt::TimedOut(refusal) => refusal,
            other => panic!("{other:?} has not timed out"),
        }
    }
}
