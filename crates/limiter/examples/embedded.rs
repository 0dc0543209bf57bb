//! The limiter in a program of your own: no gateway, no async runtime.
//!
//! `cargo run --example embedded`. It asserts what it prints.

use std::error::Error;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};

use sluicegate_limiter::time::{Clock, ManualClock, Span, Tick};
use sluicegate_limiter::{
    Algorithm, Ask, Attempt, Concurrency, Gcra, KeyHasher, Limit, LimitSpec, Permit, Policy, Refill, Report, Ticket,
    TokenBucket, Verdict,
};

/// Three things that a limiter is for.
pub fn main() -> Result<(), Box<dyn Error>> {
    refuse_with_a_time_to_come_back()?;
    wait_for_room()?;
    bound_what_runs_at_once()
}

/// A limit, and the policy of it alone. Several limits in one policy are all or nothing.
fn policy(name: &str, algorithm: Algorithm, max_wait: Span) -> Result<Arc<Policy>, Box<dyn Error>> {
    let limit = Limit::new(LimitSpec { max_wait, ..LimitSpec::new(name, algorithm) });
    Ok(Policy::new(vec![limit])?)
}

/// The client that asks, as a fingerprint under a secret of this process, and the cost of the request.
fn ask(hasher: &KeyHasher, client: &str) -> [Ask; 1] {
    [Ask { key: Some(hasher.of(client.as_bytes())), cost: 1, ..Ask::default() }]
}

/// Three at once and ten a second for each client, under a clock that is moved by hand.
fn refuse_with_a_time_to_come_back() -> Result<(), Box<dyn Error>> {
    let bucket = TokenBucket::new(&["10/s".parse()?], Some(3), Refill::Greedy)?;
    let policy = policy("per-client", Algorithm::TokenBucket(bucket), Span::ZERO)?;
    let (clock, hasher, mut report) = (ManualClock::new(), KeyHasher::random(), Report::default());
    let mut passes = |client, now: Tick| match policy.check(&ask(&hasher, client), Span::MAX, now, &mut report) {
        Verdict::Admitted(_) => Ok(()),
        Verdict::Refused(refusal) => Err(refusal),
        Verdict::Queued(_) => unreachable!("max_wait is zero"),
    };

    for _ in 0..3 {
        assert!(passes("al", clock.now()).is_ok());
    }
    let refusal = passes("al", clock.now()).expect_err("the bucket is empty");
    let retry_at = refusal.retry_at.expect("time helps");
    assert_eq!(retry_at.since(clock.now()), Span::from_millis(100));
    assert!(passes("bo", clock.now()).is_ok(), "each client has a bucket of its own");

    clock.advance((retry_at - Span::from_nanos(1)).since(clock.now()));
    assert!(passes("al", clock.now()).is_err(), "a nanosecond too early");
    clock.advance(Span::from_nanos(1));
    assert!(passes("al", clock.now()).is_ok());
    println!("refused by {:?}: back in 100ms, and then admitted", policy.limits()[refusal.limit].name());
    Ok(())
}

/// One every 20 ms, and who comes too early waits: on the machine's clock, with a thread as the runtime.
fn wait_for_room() -> Result<(), Box<dyn Error>> {
    let gcra = Gcra::new(&["1/20ms".parse()?], None)?;
    let policy = policy("paced", Algorithm::Gcra(gcra), Span::from_secs(1))?;
    let (clock, hasher, mut report) = (Clock::system(), KeyHasher::random(), Report::default());
    let mut check = |now| policy.check(&ask(&hasher, "al"), Span::MAX, now, &mut report);

    let first = clock.now();
    assert!(matches!(check(first), Verdict::Admitted(_)));
    let Verdict::Queued(ticket) = check(first) else { return Err("the second has to wait".into()) };
    let _permit = wait(ticket, &clock)?;
    let waited = clock.now().since(first);
    assert!(waited >= Span::from_millis(20), "{waited}");
    println!("the second waited for its 20ms");
    Ok(())
}

/// Sleeps until the ticket's turn: attempts at the instant it was told, and whenever somebody wakes it.
fn wait(mut ticket: Ticket, clock: &Clock) -> Result<Permit, Box<dyn Error>> {
    let (waker, mut report) = (Waker::from(Arc::new(Unpark(thread::current()))), Report::default());
    loop {
        let now = clock.now();
        match ticket.attempt(now, &waker, &mut report) {
            Attempt::Admitted(permit) => return Ok(permit),
            Attempt::Pending { wake_at } => {
                thread::park_timeout(wake_at.since(now).into());
            }
            Attempt::TimedOut(refusal) => return Err(format!("{:?}", refusal.why).into()),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Two at once for each client: a request is in flight until its permit is dropped.
fn bound_what_runs_at_once() -> Result<(), Box<dyn Error>> {
    let policy = policy("at-once", Algorithm::Concurrency(Concurrency::new(2)?), Span::ZERO)?;
    let (hasher, mut report) = (KeyHasher::random(), Report::default());
    let mut start = || match policy.check(&ask(&hasher, "al"), Span::MAX, Tick::ZERO, &mut report) {
        Verdict::Admitted(permit) => Some(permit),
        _ => None,
    };

    let first = start().expect("nothing runs");
    let second = start().expect("one runs");
    assert!(start().is_none(), "two run");
    drop(first);
    let third = start().expect("one has ended");
    assert!(start().is_none());
    drop((second, third));
    println!("two at once: the third passed when the first had ended");
    Ok(())
}
