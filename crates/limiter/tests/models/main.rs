//! The limiter under every interleaving of a few threads: nobody who waits is forgotten, no count is lost or doubled, and
//! no two locks wait for each other.
//!
//! A waiter whose wake-up is lost waits for its bell without end, which loom reports as a deadlock. Time stands still in
//! each model: no timer comes to the rescue.
#![cfg(loom)]

mod permits;
mod reload;
mod several;
mod tables;
mod waiting;

use std::sync::Arc;
use std::task::{Wake, Waker};

use loom::sync::Notify;
use loom::thread::{self, JoinHandle};
use sluicegate_limiter::time::{Span, Tick};
use sluicegate_limiter::{
    Algorithm, Ask, Attempt, Bound, Concurrency, Counting, Fingerprint, KeyHasher, Limit, LimitSpec, Permit, Policy,
    Refusal, Report, Ticket, TimerWheel, Verdict,
};

/// So many a second, in one slot: all of them again at every full second.
fn per_second(most: u64) -> LimitSpec {
    rate(&format!("{most}/s"))
}

fn rate(rate: &str) -> LimitSpec {
    spec(Algorithm::TimerWheel(TimerWheel::new(&[rate.parse().unwrap()], None, Bound::Slot).unwrap()))
}

fn in_flight(most: u64) -> LimitSpec {
    spec(Algorithm::Concurrency(Concurrency::new(most).unwrap()))
}

/// Nobody waits, unless [`patient`].
fn spec(algorithm: Algorithm) -> LimitSpec {
    LimitSpec { max_keys: 100, ..LimitSpec::new("modelled", algorithm) }
}

fn patient(spec: LimitSpec) -> LimitSpec {
    LimitSpec { max_wait: Span::from_secs(60), max_queue: Some(10), ..spec }
}

fn policy(limits: &[&Arc<Limit>]) -> Arc<Policy> {
    Policy::new(limits.iter().map(|limit| Arc::clone(limit)).collect()).unwrap()
}

fn one(spec: LimitSpec) -> (Arc<Limit>, Arc<Policy>) {
    let limit = Limit::new(spec);
    let policy = policy(&[&limit]);
    (limit, policy)
}

fn second(seconds: u64) -> Tick {
    Tick::ZERO + Span::from_secs(seconds)
}

/// The `number`th key whose shard, of two, is `shard`.
fn key(shard: u64, number: usize) -> Fingerprint {
    let named = |name: u64| {
        let mut key = KeyHasher::fixed().start();
        key.part(0, &name.to_le_bytes());
        key.finish()
    };
    (0..).map(named).filter(|key| key.bits() % 2 == shard).nth(number).unwrap()
}

/// Asks every limit for one.
fn ask(policy: &Arc<Policy>, key: Fingerprint, now: Tick) -> Verdict {
    let asks =
        vec![Ask { key: Some(key), cost: 1, counting: Counting::AtOnce, ..Ask::default() }; policy.limits().len()];
    policy.check(&asks, Span::MAX, now, &mut Report::default())
}

fn admitted(verdict: Verdict) -> Option<Permit> {
    if let Verdict::Admitted(permit) = verdict { Some(permit) } else { None }
}

fn refused(verdict: &Verdict) -> Option<Refusal> {
    if let Verdict::Refused(refusal) = verdict { Some(*refusal) } else { None }
}

/// How many more are let in at `now` that give nothing back.
fn room(policy: &Arc<Policy>, key: Fingerprint, now: Tick) -> usize {
    let permits: Vec<Permit> = std::iter::from_fn(|| admitted(ask(policy, key, now))).collect();
    permits.len()
}

/// One who waits, and the bell that its waker rings.
struct Waiting {
    ticket: Ticket,
    bell: Arc<Bell>,
}

struct Bell(Notify);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

impl Waiting {
    /// Has to be one who waits. It does not listen yet.
    fn new(verdict: Verdict) -> Self {
        let Verdict::Queued(ticket) = verdict else { panic!("{verdict:?} does not wait") };
        Self { ticket, bell: Arc::new(Bell(Notify::new())) }
    }

    /// Listens from now on, while there is no room yet, and gives up on a thread of its own: its bell may be the one that
    /// is rung in vain.
    fn cancels(mut self, now: Tick) -> JoinHandle<()> {
        let first = self.attempt(now);
        assert!(matches!(first, Attempt::Pending { .. }), "{first:?} at once");
        thread::spawn(move || drop(self))
    }

    fn attempt(&mut self, now: Tick) -> Attempt {
        self.ticket.attempt(now, &Waker::from(Arc::clone(&self.bell)), &mut Report::default())
    }

    /// Attempts now, and again whenever its bell rings, until it knows.
    fn end(mut self, now: Tick) -> Attempt {
        loop {
            match self.attempt(now) {
                Attempt::Pending { .. } => self.bell.0.wait(),
                end => return end,
            }
        }
    }

    fn get_in(self, now: Tick) -> Permit {
        match self.end(now) {
            Attempt::Admitted(permit) => permit,
            other => panic!("{other:?} is not let in"),
        }
    }
}
