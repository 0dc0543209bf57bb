//! Limits under pressure: a share of their numbers holds.

use super::*;

fn adaptive(algorithm: Algorithm) -> Arc<Limit> {
    Limit::new(LimitSpec { is_adaptive: true, ..LimitSpec::new("scaled", algorithm) })
}

/// How many of so many requests of one key pass at once.
fn pass(limit: &Arc<Limit>, name: u64, requests: usize, now: Tick) -> usize {
    let policy = policy(&[limit]);
    let ask = [Ask { key: Some(key(name)), cost: 1, counting: Counting::AtOnce, ..Ask::default() }];
    let mut permits = Vec::new();
    for _ in 0..requests {
        if let Verdict::Admitted(permit) = policy.check(&ask, Span::ZERO, now, &mut Report::default()) {
            permits.push(permit);
        }
    }
    permits.len()
}

fn rates(text: &str) -> Vec<Rate> {
    vec![text.parse().unwrap()]
}

/// Each algorithm with a rate of 100, and how many pass at once of it at 100% and at 60%.
fn all() -> Vec<(Algorithm, usize, usize)> {
    let rates = rates("100/10s");
    vec![
        (wheel(&["100/10s"], None, Bound::Sliding), 100, 60),
        (Algorithm::TokenBucket(TokenBucket::new(&rates, None, Refill::Greedy).unwrap()), 100, 60),
        (Algorithm::TokenBucket(TokenBucket::new(&rates, Some(50), Refill::Interval).unwrap()), 50, 30),
        (Algorithm::Gcra(Gcra::new(&rates, Some(20)).unwrap()), 20, 12),
        (Algorithm::FixedWindow(FixedWindow::new(&rates, Align::Epoch).unwrap()), 100, 60),
        (Algorithm::SlidingWindow(SlidingWindow::new(&rates, None, Some(30)).unwrap()), 30, 18),
        (Algorithm::SlidingCounter(SlidingCounter::new(&rates).unwrap()), 100, 60),
        (Algorithm::SlidingLog(SlidingLog::new(&rates, Span::ZERO, false).unwrap()), 100, 60),
        (Algorithm::Concurrency(Concurrency::new(100).unwrap()), 100, 60),
    ]
}

#[test]
fn an_adaptive_limit_admits_a_share_of_its_numbers() {
    for (algorithm, whole, scaled) in all() {
        let name = algorithm.name();
        let limit = adaptive(algorithm.clone());
        assert_eq!(pass(&limit, 1, 500, at(100_000)), whole, "{name}");
        limit.set_scale(6_000);
        assert_eq!(pass(&limit, 2, 500, at(100_000)), scaled, "{name}");
        assert_eq!(limit.spec().algorithm, algorithm, "its own numbers stay");
        limit.set_scale(FULL_SCALE);
        assert_eq!(pass(&limit, 3, 500, at(100_000)), whole, "{name}");
        let other = Limit::new(LimitSpec::new("other", algorithm));
        other.set_scale(6_000);
        assert_eq!(pass(&other, 1, 500, at(100_000)), whole, "{name} is not adaptive");
    }
}

#[test]
fn counts_stay_and_only_the_room_is_another() {
    let limit = adaptive(wheel(&["100/10s"], None, Bound::Sliding));
    assert_eq!(pass(&limit, 1, 50, at(100_000)), 50);
    limit.set_scale(6_000);
    assert_eq!(pass(&limit, 1, 500, at(100_000)), 10, "60 in all");
    limit.set_scale(2_000);
    assert_eq!(pass(&limit, 1, 500, at(100_000)), 0);
    limit.set_scale(8_000);
    assert_eq!(pass(&limit, 1, 500, at(100_000)), 20, "80 in all");
    // A reload keeps the scale, and scales its numbers.
    limit.reconfigure(LimitSpec { algorithm: wheel(&["200/10s"], None, Bound::Sliding), ..limit.spec() });
    assert_eq!(pass(&limit, 1, 500, at(100_000)), 80, "160 in all");
    limit.reconfigure(LimitSpec { is_adaptive: false, ..limit.spec() });
    assert_eq!(pass(&limit, 1, 500, at(100_000)), 40, "200 in all");
}

#[test]
fn a_dip_gives_nothing_back() {
    for (algorithm, whole, _) in all() {
        let name = algorithm.name();
        if matches!(&algorithm, Algorithm::Concurrency(_))
            || matches!(&algorithm, Algorithm::TokenBucket(bucket) if bucket.refill() == Refill::Interval)
        {
            // The one counts what is in flight, and that has ended; the other forgets, and `check` refuses it.
            continue;
        }
        let limit = adaptive(algorithm);
        assert_eq!(pass(&limit, 1, 500, at(100_000)), whole, "{name}");
        for scale in [2_000, FULL_SCALE, 5_000, FULL_SCALE] {
            limit.set_scale(scale);
            assert_eq!(pass(&limit, 1, 500, at(100_000)), 0, "{name} at {scale}");
        }
    }
}

#[test]
fn a_refusal_says_when_and_how_much_of_the_scaled_limit() {
    let limit = adaptive(Algorithm::Gcra(Gcra::new(&rates("10/s"), Some(1)).unwrap()));
    limit.set_scale(5_000);
    let policy = policy(&[&limit]);
    let ask = [Ask { key: Some(key(1)), cost: 1, counting: Counting::AtOnce, ..Ask::default() }];
    let mut report = Report::default();
    assert!(matches!(policy.check(&ask, Span::ZERO, at(1_000), &mut report), Verdict::Admitted(_)));
    let Verdict::Refused(refusal) = policy.check(&ask, Span::ZERO, at(1_000), &mut report) else { panic!() };
    assert_eq!((refusal.retry_at, refusal.quota, refusal.window), (Some(at(1_200)), 5, Span::from_secs(1)));
}

#[test]
fn a_limit_of_one_admits_one_however_far_it_is_scaled() {
    for (algorithm, _, _) in all() {
        let limit = adaptive(algorithm.clone());
        limit.set_scale(1);
        assert_eq!(pass(&limit, 1, 9, at(100_000)), 1, "{}", algorithm.name());
    }
}

#[test]
fn who_waits_has_a_shorter_queue_and_gets_in_when_the_limit_grows_again() {
    let limit = Limit::new(LimitSpec {
        is_adaptive: true,
        max_wait: Span::from_secs(5),
        max_queue: Some(10),
        ..LimitSpec::new("scaled", wheel(&["10/1s"], None, Bound::Sliding))
    });
    limit.set_scale(5_000);
    let policy = policy(&[&limit]);
    let ask = [Ask { key: Some(key(1)), cost: 1, counting: Counting::AtOnce, ..Ask::default() }];
    let ends = |_| match policy.check(&ask, Span::MAX, at(1_000), &mut Report::default()) {
        Verdict::Admitted(_) => ("admitted", None),
        Verdict::Queued(mut ticket) => {
            let _ = ticket.attempt(at(1_000), Waker::noop(), &mut Report::default());
            ("waits", Some(ticket))
        }
        Verdict::Refused(_) => ("refused", None),
    };
    let mut all: Vec<_> = (0..12).map(ends).collect();
    let count = |word| all.iter().filter(|(own, _)| *own == word).count();
    assert_eq!((count("admitted"), count("waits"), count("refused")), (5, 5, 2));
    limit.set_scale(FULL_SCALE);
    let mut admitted = 0;
    for ticket in all.iter_mut().filter_map(|(_, ticket)| ticket.as_mut()) {
        let attempt = ticket.attempt(at(1_000), Waker::noop(), &mut Report::default());
        admitted += usize::from(matches!(attempt, Attempt::Admitted(_)));
    }
    assert_eq!(admitted, 5);
}
