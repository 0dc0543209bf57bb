//! The GCRA of the limiter beside that of the crate `governor`, request by request.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::clock::{Clock, FakeRelativeClock};
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use proptest::prelude::*;
use sluicegate::limiter::{
    Algorithm, Ask, Gcra, KeyHasher, Limit, LimitSpec, Policy, Rate, RefusalReason, Report, Verdict,
};
use sluicegate::time::{Span, Tick};

/// The answer of either limiter; instants are nanoseconds from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Passes,
    NotBefore(u64),
    Never,
}

struct Ours(Arc<Policy>);

impl Ours {
    fn new(rate: Rate, burst: u32) -> Self {
        let gcra = Gcra::new(&[rate], Some(u64::from(burst))).expect("a limit");
        Self(Policy::new(vec![Limit::new(LimitSpec::new("gcra", Algorithm::Gcra(gcra)))]).expect("a policy"))
    }

    fn ask(&self, now: u64, cost: u32) -> Answer {
        let ask = [Ask { key: Some(KeyHasher::fixed().of(b"one")), cost: u64::from(cost), ..Ask::default() }];
        match self.0.check(&ask, Span::MAX, Tick::from_nanos(now), &mut Report::default()) {
            Verdict::Admitted(_) => Answer::Passes,
            Verdict::Refused(refusal) if refusal.why == RefusalReason::TooCostly => Answer::Never,
            Verdict::Refused(refusal) => Answer::NotBefore(refusal.retry_at.expect("it fits some day").as_nanos()),
            Verdict::Queued(_) => panic!("nobody waits"),
        }
    }
}

struct Theirs {
    clock: FakeRelativeClock,
    limiter: RateLimiter<NotKeyed, InMemoryState, FakeRelativeClock, NoOpMiddleware<Nanos>>,
}

impl Theirs {
    fn new(quota: Quota, burst: u32) -> Self {
        let clock = FakeRelativeClock::default();
        Self { limiter: RateLimiter::direct_with_clock(quota.allow_burst(count(burst)), clock.clone()), clock }
    }

    fn ask(&self, now: u64, cost: u32) -> Answer {
        self.clock.advance(Duration::from_nanos(now - self.clock.now().as_u64()));
        match self.limiter.check_n(count(cost)) {
            Ok(Ok(())) => Answer::Passes,
            Ok(Err(refusal)) => {
                let wait = refusal.wait_time_from(self.clock.now());
                Answer::NotBefore(now + u64::try_from(wait.as_nanos()).expect("a short wait"))
            }
            Err(_) => Answer::Never,
        }
    }
}

fn count(count: u32) -> NonZeroU32 {
    NonZeroU32::new(count).expect("not zero")
}

/// When the next request comes: in thousandths of the time that one takes, or where the last refusal said.
#[derive(Clone, Copy, Debug)]
enum When {
    After(u64),
    AtRetry,
    JustBeforeRetry,
}

impl When {
    fn instant(self, now: u64, retry: u64, interval: u64) -> u64 {
        match self {
            Self::After(thousandths) => {
                now + u64::try_from(u128::from(interval) * u128::from(thousandths) / 1_000).expect("in time")
            }
            Self::AtRetry => retry.max(now),
            Self::JustBeforeRetry => retry.saturating_sub(1).max(now),
        }
    }
}

/// When, and at what cost: one in eight costs more than the burst, or nearly.
fn arrivals(burst: u32) -> impl Strategy<Value = Vec<(When, u32)>> {
    let when = prop_oneof![
        3 => Just(When::After(0)),
        4 => (0u64..3_000).prop_map(When::After),
        1 => (0u64..2_000 * u64::from(burst)).prop_map(When::After),
        2 => Just(When::AtRetry),
        2 => Just(When::JustBeforeRetry),
    ];
    let cost = prop_oneof![5 => Just(1u32), 2 => 1..=burst, 1 => burst.max(2) - 1..=burst + 2];
    prop::collection::vec((when, cost), 1..80)
}

fn bursts() -> impl Strategy<Value = u32> {
    prop_oneof![Just(1u32), 2u32..6, 6u32..200]
}

/// Rates that take a whole number of nanoseconds a request, which governor does not round: that number, and how many of
/// them a window has here.
fn whole_rates() -> impl Strategy<Value = (u64, u64)> {
    let interval =
        prop_oneof![Just(1u64), 2u64..20, 20u64..2_000_000, (1u64..100_000).prop_map(|micros| micros * 1_000)];
    (interval, prop_oneof![Just(1u64), 1u64..1_000])
}

/// So many in a second, a minute or an hour, of which governor makes a whole interval.
fn any_rates() -> impl Strategy<Value = (u32, Rate, Quota)> {
    (1u32..2_000_000, 0usize..3).prop_map(|(limit, window)| {
        let (seconds, quota) = [
            (1, Quota::per_second(count(limit))),
            (60, Quota::per_minute(count(limit))),
            (3_600, Quota::per_hour(count(limit))),
        ][window];
        (limit, Rate::new(u64::from(limit), Span::from_secs(seconds)).expect("a rate"), quota)
    })
}

/// The admitted requests, and the promise of the algorithm in its own words.
struct Promise {
    rate: Rate,
    burst: u32,
    log: Vec<(u64, u32)>,
}

impl Promise {
    /// Whether one more would leave no stretch of any length `t`, up to now, with more than `burst + L t / W`.
    fn allows(&self, now: u64, cost: u32) -> bool {
        let (limit, window) = (u128::from(self.rate.limit()), u128::from(self.rate.window().as_nanos()));
        let within = |total: u128, since: u64| {
            total * window <= u128::from(self.burst) * window + u128::from(now - since) * limit
        };
        let mut total = u128::from(cost);
        within(total, now)
            && self.log.iter().rev().all(|(at, cost)| {
                total += u128::from(*cost);
                within(total, *at)
            })
    }

    fn admitted(&self) -> u64 {
        self.log.iter().map(|(_, cost)| u64::from(*cost)).sum()
    }

    /// The answer of governor if it has admitted the same.
    fn asked_of_governor(&self, quota: Quota, now: u64, cost: u32) -> Answer {
        let governor = Theirs::new(quota, self.burst);
        for (at, cost) in &self.log {
            assert_eq!(governor.ask(*at, *cost), Answer::Passes);
        }
        governor.ask(now, cost)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn governor_says_the_same_of_every_request_where_it_does_not_round(
        (interval, per_window) in whole_rates(),
        (burst, arrivals) in bursts().prop_flat_map(|burst| (Just(burst), arrivals(burst))),
    ) {
        let rate = Rate::new(per_window, Span::from_nanos(interval * per_window)).expect("a rate");
        let ours = Ours::new(rate, burst);
        let theirs = Theirs::new(Quota::with_period(Duration::from_nanos(interval)).expect("not zero"), burst);
        let (mut now, mut retry) = (0, 0);
        for (step, (when, cost)) in arrivals.into_iter().enumerate() {
            now = when.instant(now, retry, interval);
            let answer = ours.ask(now, cost);
            prop_assert_eq!(answer, theirs.ask(now, cost), "request {} at {}", step, now);
            if let Answer::NotBefore(at) = answer {
                retry = at;
            }
        }
    }

    /// Governor drops the fraction of a nanosecond and is a little fast; we keep to the promise exactly.
    #[test]
    fn governor_refuses_nothing_that_is_admitted_and_is_early_by_what_it_rounds(
        (limit, rate, quota) in any_rates(),
        (burst, arrivals) in bursts().prop_flat_map(|burst| (Just(burst), arrivals(burst))),
    ) {
        let interval = rate.window().as_nanos() / u64::from(limit);
        let ours = Ours::new(rate, burst);
        let mut promise = Promise { rate, burst, log: Vec::new() };
        let (mut now, mut retry) = (0, 0);
        for (step, (when, cost)) in arrivals.into_iter().enumerate() {
            now = when.instant(now, retry, interval);
            let (answer, theirs) = (ours.ask(now, cost), promise.asked_of_governor(quota, now, cost));
            prop_assert_eq!(answer == Answer::Passes, promise.allows(now, cost), "request {} at {}", step, now);
            match answer {
                Answer::Passes => {
                    prop_assert_eq!(theirs, Answer::Passes, "request {} at {}", step, now);
                    promise.log.push((now, cost));
                }
                Answer::NotBefore(at) => {
                    prop_assert!(promise.allows(at, cost) && !promise.allows(at - 1, cost));
                    let earliest = match theirs {
                        Answer::Passes => now,
                        Answer::NotBefore(earliest) => earliest,
                        Answer::Never => u64::MAX,
                    };
                    prop_assert!(earliest <= at, "{} is before {}", at, earliest);
                    // Less than a nanosecond for each request that was admitted, and for rounding up.
                    prop_assert!(at - earliest <= promise.admitted() + 1, "{} is long after {}", at, earliest);
                    retry = at;
                }
                Answer::Never => prop_assert_eq!(theirs, Answer::Never),
            }
        }
    }
}

/// The time of a request is no whole number of nanoseconds, and an instant is: ours is the first that is not too early.
#[test]
fn a_fourth_request_within_one_second_passes_governor_at_three_a_second() {
    // Each passes at the instant that the refusal before it has named.
    let passed = |ask: &dyn Fn(u64) -> Answer| {
        let (mut now, mut passed) = (0, Vec::new());
        for _ in 0..8 {
            match ask(now) {
                Answer::Passes => passed.push(now),
                Answer::NotBefore(at) => now = at,
                Answer::Never => {}
            }
        }
        passed
    };
    let ours = Ours::new("3/s".parse().expect("a rate"), 1);
    let theirs = Theirs::new(Quota::per_second(count(3)), 1);
    assert_eq!(passed(&|now| ours.ask(now, 1)), [0, 333_333_334, 666_666_668, 1_000_000_002]);
    assert_eq!(passed(&|now| theirs.ask(now, 1)), [0, 333_333_333, 666_666_666, 999_999_999]);
}
