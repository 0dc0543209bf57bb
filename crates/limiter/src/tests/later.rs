//! Requests that are counted when it is known how they ended.

use super::*;

fn ask(policy: &Arc<Policy>, now: Tick) -> Option<Permit> {
    let later = [Ask { key: Some(key(1)), cost: 1, counting: Counting::Later, ..Ask::default() }; MAX_LIMITS];
    match policy.check(&later, Span::MAX, now, &mut Report::default()) {
        Verdict::Admitted(permit) => Some(permit),
        _ => None,
    }
}

#[test]
fn what_does_not_count_takes_nothing_and_what_counts_does() {
    let (limit, policy) = one(spec("2/1h"));
    for millis in 0..100 {
        let mut permit = ask(&policy, at(millis)).unwrap();
        assert!(!permit.is_empty());
        permit.settle(at(millis), |_, _| Spent::Nothing);
    }
    assert_eq!(limit.stats().keys, 0, "nothing is kept of who never counted");
    for millis in [100, 101] {
        ask(&policy, at(millis))
            .unwrap()
            .settle(at(millis), |place, _| if place == 0 { Spent::AsAsked } else { Spent::Nothing });
    }
    assert!(ask(&policy, at(102)).is_none());
    assert!(ask(&policy, at(3_600_000)).is_some());
}

#[test]
fn a_permit_that_is_dropped_counts_nothing_and_one_counts_once() {
    let (_, policy) = one(spec("1/1h"));
    drop(ask(&policy, at(0)).unwrap());
    let mut permit = ask(&policy, at(0)).unwrap();
    permit.settle(at(1), |_, _| Spent::Nothing);
    permit.settle(at(1), |_, _| Spent::AsAsked);
    let mut one = ask(&policy, at(2)).unwrap();
    let mut two = ask(&policy, at(2)).unwrap();
    one.settle(at(3), |_, _| Spent::AsAsked);
    one.settle(at(3), |_, _| Spent::AsAsked);
    assert!(ask(&policy, at(4)).is_none());
    // Let in before it was full, and counted all the same.
    two.settle(at(5), |_, _| Spent::AsAsked);
    assert!(ask(&policy, at(6)).is_none());
}

#[test]
fn counted_in_a_slot_of_its_own_time() {
    let (_, policy) = one(LimitSpec { algorithm: wheel(&["1/s"], Some(10), Bound::Sliding), ..spec("1/s") });
    let mut permit = ask(&policy, at(0)).unwrap();
    permit.settle(at(950), |_, _| Spent::AsAsked);
    assert!(ask(&policy, at(1_850)).is_none());
    assert!(ask(&policy, at(1_900)).is_some());
}

#[test]
fn each_limit_is_asked_by_its_place_and_others_count_at_once() {
    let (first, second) = (Limit::new(spec("5/1h")), Limit::new(spec("9/1h")));
    let policy = policy(&[&first, &second]);
    let asks = [
        Ask { key: Some(key(1)), cost: 1, counting: Counting::Later, ..Ask::default() },
        Ask { key: Some(key(1)), cost: 1, counting: Counting::AtOnce, ..Ask::default() },
    ];
    let mut report = Report::default();
    let Verdict::Admitted(mut permit) = policy.check(&asks, Span::MAX, at(0), &mut report) else { panic!() };
    let left: Vec<u64> = report.lines().iter().map(|line| line.remaining).collect();
    assert_eq!(left, [5, 8]);
    let mut places = Vec::new();
    permit.settle(at(1), |place, _| {
        places.push(place);
        Spent::AsAsked
    });
    assert_eq!(places, [0]);
    let _ = policy.check(&asks, Span::MAX, at(2), &mut report);
    let left: Vec<u64> = report.lines().iter().map(|line| line.remaining).collect();
    assert_eq!(left, [4, 7]);
}

#[test]
fn what_is_counted_above_the_limit_saturates_in_every_algorithm_and_keeps_others_out() {
    let rate: Vec<Rate> = vec!["3/1m".parse().unwrap()];
    let second = Span::from_secs(1);
    let all = [
        wheel(&["3/1m"], None, Bound::Strict),
        Algorithm::TokenBucket(TokenBucket::new(&rate, None, Refill::Greedy).unwrap()),
        Algorithm::TokenBucket(TokenBucket::new(&rate, None, Refill::Interval).unwrap()),
        Algorithm::Gcra(Gcra::new(&rate, Some(3)).unwrap()),
        Algorithm::FixedWindow(FixedWindow::new(&rate, Align::First).unwrap()),
        Algorithm::SlidingWindow(SlidingWindow::new(&rate, None, None).unwrap()),
        Algorithm::SlidingCounter(SlidingCounter::new(&rate).unwrap()),
        Algorithm::SlidingLog(SlidingLog::new(&rate, Span::ZERO, false).unwrap()),
        Algorithm::SmoothBursty(SmoothBursty::new(&rate, Some(second)).unwrap()),
        Algorithm::WarmUp(WarmUp::new(&rate, second, None).unwrap()),
    ];
    for algorithm in all {
        let name = algorithm.name();
        let (_, policy) = one(LimitSpec { algorithm, ..spec("1/s") });
        let permits: Vec<Permit> = (0..200).map(|_| ask(&policy, at(0)).unwrap()).collect();
        for mut permit in permits {
            permit.settle(at(1), |_, _| Spent::AsAsked);
        }
        assert!(ask(&policy, at(2)).is_none(), "{name}");
        let mut report = Report::default();
        let verdict = check(&policy, 1, 1, at(3));
        let Verdict::Refused(refusal) = verdict else { panic!("{name}") };
        let retry = refusal.retry_at.unwrap();
        assert!(matches!(policy.check(&asks(1, 1), Span::MAX, retry, &mut report), Verdict::Admitted(_)), "{name}");
    }
}

#[test]
fn a_limit_of_what_is_in_flight_counts_at_once() {
    let algorithm = Algorithm::Concurrency(Concurrency::new(1).unwrap());
    let (_, policy) = one(LimitSpec { algorithm, ..spec("1/s") });
    let permit = ask(&policy, at(0)).unwrap();
    assert!(ask(&policy, at(1)).is_none());
    drop(permit);
    assert!(ask(&policy, at(2)).is_some());
}

#[test]
fn who_waits_is_counted_later_too_and_a_count_puts_the_others_off() {
    let (_, policy) = one(waiting("1/s", 10_000));
    ask(&policy, at(0)).unwrap().settle(at(0), |_, _| Spent::AsAsked);
    let later = [Ask { key: Some(key(1)), cost: 1, counting: Counting::Later, ..Ask::default() }; MAX_LIMITS];
    let mut report = Report::default();
    let Verdict::Queued(mut ticket) = policy.check(&later, Span::MAX, at(1), &mut report) else { panic!() };
    let Attempt::Pending { wake_at } = ticket.attempt(at(1), Waker::noop(), &mut report) else { panic!() };
    assert_eq!(wake_at, at(1_000));
    let Attempt::Admitted(mut permit) = ticket.attempt(at(1_000), Waker::noop(), &mut report) else { panic!() };
    assert!(ask(&policy, at(1_001)).is_some(), "not counted yet");
    permit.settle(at(1_002), |_, _| Spent::AsAsked);
    assert!(ask(&policy, at(1_003)).is_none());
}

#[test]
fn many_at_once_shut_a_key_for_a_window_or_so_and_not_for_as_many_windows() {
    let rate: Vec<Rate> = vec!["5/10m".parse().unwrap()];
    let all = [
        Algorithm::Gcra(Gcra::new(&rate, None).unwrap()),
        Algorithm::TokenBucket(TokenBucket::new(&rate, None, Refill::Greedy).unwrap()),
        Algorithm::TokenBucket(TokenBucket::new(&rate, None, Refill::Interval).unwrap()),
        Algorithm::LeakyBucket(LeakyBucket::new(&rate, None).unwrap()),
        Algorithm::SmoothBursty(SmoothBursty::new(&rate, None).unwrap()),
        Algorithm::WarmUp(WarmUp::new(&rate, Span::from_secs(1), None).unwrap()),
        wheel(&["5/10m"], None, Bound::Sliding),
    ];
    for algorithm in all {
        let name = algorithm.name();
        let (_, policy) = one(LimitSpec { algorithm, ..spec("1/s") });
        let permits: Vec<Permit> = (0..1_000).map(|_| ask(&policy, at(0)).unwrap()).collect();
        for mut permit in permits {
            permit.settle(at(1), |_, _| Spent::AsAsked);
        }
        let Verdict::Refused(refusal) = check(&policy, 1, 1, at(2)) else { panic!("{name}") };
        let minutes = refusal.retry_at.unwrap().since(at(2)).as_secs_ceil() / 60;
        assert!((1..=20).contains(&minutes), "{name}: {minutes} minutes");
    }
}

#[test]
fn a_limit_that_has_come_to_count_what_is_in_flight_counts_nobody_who_gives_nothing_back() {
    let (limit, policy) = one(spec("5/s"));
    let mut permit = ask(&policy, at(0)).unwrap();
    let algorithm = Algorithm::Concurrency(Concurrency::new(1).unwrap());
    limit.reconfigure(LimitSpec { algorithm, ..limit.spec() });
    permit.settle(at(1), |_, _| Spent::AsAsked);
    drop(permit);
    assert!(ask(&policy, at(2)).is_some());
}

#[test]
fn a_cost_let_in_under_a_larger_limit_does_not_shut_the_smaller_one() {
    let bucket = |rate: &str| {
        let rates: Vec<Rate> = vec![rate.parse().unwrap()];
        Algorithm::TokenBucket(TokenBucket::new(&rates, None, Refill::Interval).unwrap())
    };
    let (limit, policy) = one(LimitSpec { algorithm: bucket("1000000000000/s"), ..spec("1/s") });
    let large = [Ask { key: Some(key(1)), cost: 1_000_000_000_000, counting: Counting::Later, ..Ask::default() }];
    let Verdict::Admitted(mut permit) = policy.check(&large, Span::MAX, at(0), &mut Report::default()) else {
        panic!()
    };
    limit.reconfigure(LimitSpec { algorithm: bucket("1/s"), ..limit.spec() });
    permit.settle(at(1), |_, _| Spent::AsAsked);
    let Verdict::Refused(refusal) = check(&policy, 1, 1, at(2)) else { panic!() };
    assert_eq!(refusal.retry_at, Some(at(1_001)));
}
