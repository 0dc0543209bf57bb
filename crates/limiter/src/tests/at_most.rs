//! A rate that holds for one request, below that of its limit.

use std::num::NonZeroU64;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use sluicegate_time::Zone;

/// Algorithms that count in a window, of so many requests in ten seconds or a day.
const ALGORITHMS: usize = 8;

fn algorithm(kind: usize, limit: u64) -> Algorithm {
    let rates = [format!("{limit}/10s").parse().unwrap()];
    match kind {
        0 => Algorithm::TimerWheel(TimerWheel::new(&rates, None, Bound::Sliding).unwrap()),
        1 => Algorithm::TimerWheel(TimerWheel::new(&rates, None, Bound::Strict).unwrap()),
        2 => Algorithm::TimerWheel(TimerWheel::new(&rates, None, Bound::Slot).unwrap()),
        3 => Algorithm::FixedWindow(FixedWindow::new(&rates, Align::Epoch).unwrap()),
        4 => Algorithm::FixedWindow(FixedWindow::new(&rates, Align::First).unwrap()),
        5 => {
            let rates = [format!("{limit}/d").parse().unwrap()];
            Algorithm::FixedWindow(FixedWindow::of_calendar(&rates, &Zone::utc()).unwrap())
        }
        6 => Algorithm::SlidingLog(SlidingLog::new(&rates, Span::ZERO, false).unwrap()),
        _ => Algorithm::SlidingCounter(SlidingCounter::new(&rates).unwrap()),
    }
}

fn of(kind: usize, limit: u64) -> Arc<Policy> {
    one(LimitSpec { algorithm: algorithm(kind, limit), ..spec("1/s") }).1
}

/// The verdict in words, and the lines, for a request that is held to `most`.
fn told(policy: &Arc<Policy>, cost: u64, most: Option<u64>, now: Tick) -> String {
    let mut asks = asks(1, cost);
    asks[0].at_most = most.and_then(NonZeroU64::new);
    let mut report = Report::default();
    let verdict = match policy.check(&asks, Span::MAX, now, &mut report) {
        Verdict::Admitted(_) => "admitted".to_owned(),
        other => format!("{:?}", refused(other)),
    };
    format!("{verdict} {:?}", report.lines())
}

#[test]
fn each_request_is_held_to_its_own_number_and_all_are_counted_together() {
    let window = of(3, 10);
    let passes =
        |most: Option<u64>, now| (0..20).take_while(|_| told(&window, 1, most, now).starts_with("admitted")).count();
    let ends = at(10_000);
    assert_eq!(passes(Some(3), at(0)), 3);
    assert_eq!(passes(Some(5), at(1)), 2);
    assert_eq!(passes(Some(3), at(2)), 0);
    let mut asks = asks(1, 1);
    asks[0].at_most = NonZeroU64::new(3);
    let mut report = Report::default();
    let refusal = refused(window.check(&asks, Span::MAX, at(3), &mut report));
    assert_eq!((refusal.quota, refusal.remaining, refusal.retry_at), (3, 0, Some(ends)));
    assert_eq!(report.lines()[0].reset, Some(ends.since(at(3))));
    assert_eq!(passes(Some(20), at(4)), 5, "the rate of the limit is the most");
    assert_eq!(passes(None, at(5)), 0);
    assert_eq!(passes(Some(4), ends), 4);
    assert_eq!(passes(None, ends), 6);
    // A cost above the number never fits, whatever is left.
    asks[0].cost = 4;
    let refusal = refused(window.check(&asks, Span::MAX, at(20_000), &mut report));
    assert_eq!((refusal.why, refusal.retry_at), (RefusalReason::TooCostly, None));
}

#[test]
fn the_other_limits_of_a_route_hold_as_they_are() {
    let limits = [of(3, 10), of(6, 10)].map(|policy| Arc::clone(&policy.limits()[0]));
    let both = policy(&[&limits[0], &limits[1]]);
    let mut asks = asks(1, 1);
    asks[1].at_most = NonZeroU64::new(2);
    let passes = || matches!(both.check(&asks, Span::MAX, at(0), &mut Report::default()), Verdict::Admitted(_));
    assert_eq!([passes(), passes(), passes()], [true, true, false]);
    assert_eq!(drain(&policy(&[&limits[0]]), 1, at(0)), 8, "the refused one is counted nowhere");
}

proptest! {
    /// A limit of 10 of which each request may have 4 decides and tells as one of 4 does.
    #[test]
    fn a_limit_of_which_all_may_have_less_is_one_of_less(
        kind in 0..ALGORITHMS,
        most in 1_u64..10,
        steps in vec((0_u64..4_000, prop_oneof![4 => Just(1_u64), 1 => 1_u64..6]), 1..60),
    ) {
        let (held, plain) = (of(kind, 10), of(kind, most));
        let mut now = 0;
        for (advance, cost) in steps {
            now += advance;
            prop_assert_eq!(told(&held, cost, Some(most), at(now)), told(&plain, cost, None, at(now)), "at {}", now);
        }
    }
}
