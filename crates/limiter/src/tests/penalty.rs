//! Keys that keep hitting their limit are blocked.

use super::*;

fn penalty(after: u64, within_secs: u64, block_secs: u64) -> Penalty {
    Penalty::new(after, Span::from_secs(within_secs), Span::from_secs(block_secs)).unwrap()
}

fn retry(policy: &Arc<Policy>, name: u64, now: Tick) -> Option<Tick> {
    let mut report = Report::default();
    match policy.check(&asks(name, 1), Span::MAX, now, &mut report) {
        Verdict::Refused(refusal) => {
            let reset = report.lines()[0].reset.map(|reset| now + reset);
            assert_eq!((refusal.remaining, reset), (0, refusal.retry_at), "the headers say the same");
            refusal.retry_at
        }
        _ => None,
    }
}

#[test]
fn the_third_refusal_in_a_minute_blocks_for_ten_and_says_so() {
    let (limit, policy) = one(LimitSpec { penalty: Some(penalty(3, 60, 600)), ..spec("2/s") });
    assert!(admitted(&policy, 1, at(0)) && admitted(&policy, 1, at(0)));
    assert_eq!(retry(&policy, 1, at(100)), Some(at(1_000)));
    assert_eq!(retry(&policy, 1, at(200)), Some(at(1_000)));
    assert_eq!(retry(&policy, 1, at(300)), Some(at(600_300)), "the refusal that begins the block names its end");
    assert_eq!(limit.stats().blocks, 1);
    for millis in [1_500, 60_000, 600_299] {
        assert_eq!(retry(&policy, 1, at(millis)), Some(at(600_300)), "not prolonged");
    }
    assert!(admitted(&policy, 2, at(1_500)), "another key goes on");
    assert!(admitted(&policy, 1, at(600_300)));
    assert_eq!(limit.stats().blocks, 1);
}

#[test]
fn every_algorithm_blocks() {
    let rate: Vec<Rate> = vec!["1/s".parse().unwrap()];
    let second = Span::from_secs(1);
    let all = [
        wheel(&["1/s"], None, Bound::Sliding),
        Algorithm::TokenBucket(TokenBucket::new(&rate, Some(1), Refill::Greedy).unwrap()),
        Algorithm::TokenBucket(TokenBucket::new(&rate, Some(1), Refill::Interval).unwrap()),
        Algorithm::Gcra(Gcra::new(&rate, None).unwrap()),
        Algorithm::FixedWindow(FixedWindow::new(&rate, Align::First).unwrap()),
        Algorithm::SlidingCounter(SlidingCounter::new(&rate).unwrap()),
        Algorithm::SmoothBursty(SmoothBursty::new(&rate, Some(second)).unwrap()),
        Algorithm::WarmUp(WarmUp::new(&rate, second, None).unwrap()),
    ];
    for algorithm in all {
        let (_, policy) = one(LimitSpec { algorithm, penalty: Some(penalty(2, 60, 100)), ..spec("1/s") });
        assert!(admitted(&policy, 1, at(0)));
        let _ = (retry(&policy, 1, at(1)), retry(&policy, 1, at(2)));
        assert_eq!(retry(&policy, 1, at(100_001)), Some(at(100_002)), "{:?}", policy.limits()[0].spec().algorithm);
        assert!(admitted(&policy, 1, at(100_002)), "{:?}", policy.limits()[0].spec().algorithm);
    }
}

#[test]
fn a_key_is_remembered_while_it_is_blocked_and_forgotten_afterwards() {
    let (limit, policy) = one(LimitSpec { penalty: Some(penalty(1, 60, 600)), ..spec("1/s") });
    assert!(admitted(&policy, 1, at(0)));
    assert!(!admitted(&policy, 1, at(1)));
    // The hand passes every place as others come, and their records are idle by the next.
    for step in 1..500 {
        assert!(admitted(&policy, 1_000 + step, at(1_100 * step)));
    }
    assert!(!admitted(&policy, 1, at(600_000)));
    for step in 600..1_100 {
        assert!(admitted(&policy, 1_000 + step, at(1_100 * step)));
    }
    assert!(limit.stats().keys < 20, "{}", limit.stats().keys);
}

#[test]
fn a_reload_keeps_blocks_and_takes_the_new_numbers_for_the_next() {
    let blocking = LimitSpec { penalty: Some(penalty(1, 60, 600)), ..spec("1/s") };
    let (limit, policy) = one(blocking.clone());
    assert!(admitted(&policy, 1, at(0)) && !admitted(&policy, 1, at(1)));
    limit.reconfigure(LimitSpec {
        penalty: Some(penalty(1, 60, 5)),
        algorithm: wheel(&["9/s"], None, Bound::Strict),
        ..blocking.clone()
    });
    assert_eq!(retry(&policy, 1, at(500_000)), Some(at(600_001)));
    limit.reconfigure(LimitSpec { penalty: None, ..blocking.clone() });
    assert!(admitted(&policy, 1, at(500_001)), "without a penalty nobody is blocked");
    limit.reconfigure(blocking);
    assert_eq!(
        retry(&policy, 1, at(500_002)),
        Some(at(1_100_002)),
        "and what was counted before is not known any more"
    );
}

#[test]
fn only_a_limit_that_refuses_itself_counts_the_refusal() {
    let strict = Limit::new(spec("1/1h"));
    let blocking = Limit::new(LimitSpec { penalty: Some(penalty(1, 60, 600)), ..spec("5/s") });
    let policy = policy(&[&strict, &blocking]);
    let both = [Ask { key: Some(key(1)), cost: 1, counting: Counting::AtOnce, ..Ask::default() }; 2];
    let check = |now| policy.check(&both, Span::MAX, now, &mut Report::default());
    assert!(matches!(check(at(0)), Verdict::Admitted(_)));
    for millis in 1..20 {
        assert!(matches!(check(at(millis)), Verdict::Refused(refusal) if refusal.limit == 0));
    }
    assert_eq!(blocking.stats().blocks, 0);
}

#[test]
fn in_shadow_mode_nobody_is_blocked() {
    let (limit, policy) = one(LimitSpec { mode: Mode::Shadow, penalty: Some(penalty(1, 60, 600)), ..spec("1/s") });
    for millis in 0..10 {
        assert!(admitted(&policy, 1, at(millis)));
    }
    assert_eq!(limit.stats().blocks, 0);
}

#[test]
fn a_block_is_told_also_where_nobody_knows_when_others_end() {
    let algorithm = Algorithm::Concurrency(Concurrency::new(1).unwrap());
    let spec = LimitSpec { algorithm, penalty: Some(penalty(2, 60, 600)), ..spec("1/s") };
    for max_wait in [Span::ZERO, Span::from_secs(3)] {
        let (_, policy) = one(LimitSpec { max_wait, max_queue: Some(1), ..spec.clone() });
        let Verdict::Admitted(permit) = check(&policy, 1, 1, at(0)) else { panic!() };
        let waiting = (!max_wait.is_zero()).then(|| check(&policy, 1, 1, at(0)));
        assert_eq!(waiting.is_some(), matches!(waiting, Some(Verdict::Queued(_))));
        assert!(!admitted(&policy, 1, at(1)) && !admitted(&policy, 1, at(2)));
        let Verdict::Refused(refusal) = check(&policy, 1, 1, at(10)) else { panic!("a blocked request does not wait") };
        assert_eq!(refusal.retry_at, Some(at(600_002) - max_wait), "{max_wait}");
        drop((waiting, permit));
        assert!(!admitted(&policy, 1, at(500_000)));
        assert!(admitted(&policy, 1, at(600_002)));
    }
}

/// A request that might have waited there was not refused by it, although nobody knows when its room comes.
#[test]
fn a_limit_of_what_is_in_flight_counts_no_refusal_of_another_one() {
    let algorithm = Algorithm::Concurrency(Concurrency::new(1).unwrap());
    let (max_wait, penalty) = (Span::from_secs(5), Some(penalty(1, 60, 100)));
    let slots = Limit::new(LimitSpec { algorithm, max_wait, penalty, ..spec("1/s") });
    let both = policy(&[&slots, &Limit::new(spec("1/s"))]);
    let Verdict::Admitted(_held) = check(&both, 1, 1, at(0)) else { panic!("the first") };
    let _ = refused(check(&both, 1, 1, at(0)));
    assert_eq!(slots.stats().blocks, 0);
    let _ = refused(policy(&[&slots]).check(&asks(1, 1), Span::ZERO, at(0), &mut Report::default()));
    assert_eq!(slots.stats().blocks, 1, "who cannot wait");
}

/// Whoever keeps a list of blocks learns of one from the refusal that begins it.
#[test]
fn a_refusal_says_until_when_its_key_is_blocked() {
    let (limit, policy) = one(LimitSpec { penalty: Some(penalty(2, 60, 600)), ..spec("1/s") });
    let until = |name, now| refused(check(&policy, name, 1, now)).blocked_until;
    assert!(admitted(&policy, 1, at(0)) && admitted(&policy, 2, at(0)));
    assert_eq!(until(1, at(1)), None);
    assert_eq!([until(1, at(2)), until(1, at(300))], [Some(at(600_002)); 2]);
    assert_eq!(until(2, at(300)), None, "another key");
    let early = policy.refuse_early(&asks(1, 1), Span::MAX, at(400), &mut Report::default());
    assert_eq!(early.unwrap().blocked_until, Some(at(600_002)));
    assert!(limit.end_block(key(1), at(500)));
    assert_eq!(until(1, at(501)), None);
}

fn growing() -> Option<Penalty> {
    penalty(1, 60, 600).growing(200, Span::from_secs(3_600)).ok()
}

/// Ends of the blocks that begin now, each at the end of the one before.
fn ends(policy: &Arc<Policy>, mut now: Tick, blocks: usize) -> Vec<Span> {
    let next = |_| {
        assert!(admitted(policy, 1, now), "{now:?}");
        let end = retry(policy, 1, now).unwrap();
        Some(end.since(std::mem::replace(&mut now, end)))
    };
    (0..blocks).filter_map(next).collect()
}

fn minutes(all: &[u64]) -> Vec<Span> {
    all.iter().map(|minutes| Span::from_secs(60 * minutes)).collect()
}

#[test]
fn a_key_that_is_blocked_again_within_a_day_is_blocked_for_longer() {
    let (limit, policy) = one(LimitSpec { penalty: growing(), ..spec("1/s") });
    assert_eq!(ends(&policy, at(0), 5), minutes(&[10, 20, 40, 60, 60]));
    let day = 86_400_000;
    let later = at(190 * 60_000 + day);
    assert_eq!(ends(&policy, later, 2), minutes(&[10, 20]), "a day without a block");
    assert_eq!(limit.stats().blocks, 7);
}

#[test]
fn how_long_the_next_block_is_outlives_a_restart_and_a_reload_and_ends_with_the_key() {
    let escalating = LimitSpec { penalty: growing(), ..spec("1/s") };
    let (limit, policy) = one(escalating.clone());
    let _ = ends(&policy, at(0), 2);
    let hour = at(3_600_000);
    let copy = || {
        let next = Limit::new(escalating.clone());
        let copied = limit.copy_keys(hour, |records| {
            next.take_over_keys(records, hour);
            Ok::<_, std::convert::Infallible>(())
        });
        copied.unwrap();
        next
    };
    let restarted = |limit: &Arc<Limit>| ends(&super::policy(&[limit]), hour, 1);
    assert_eq!(restarted(&copy()), minutes(&[40]));
    let (reloaded, forgotten, unblocked, flat) = (copy(), copy(), copy(), copy());
    reloaded.reconfigure(LimitSpec {
        algorithm: wheel(&["1/s", "50/m"], None, Bound::Strict),
        penalty: penalty(1, 60, 60).growing(300, Span::from_secs(86_400)).ok(),
        ..escalating.clone()
    });
    assert_eq!(restarted(&reloaded), minutes(&[9]), "by the new numbers");
    flat.reconfigure(LimitSpec { penalty: Some(penalty(1, 60, 600)), ..escalating.clone() });
    flat.reconfigure(escalating.clone());
    assert_eq!(restarted(&flat), minutes(&[10]));
    assert!(forgotten.forget_key(key(1), hour));
    assert_eq!(restarted(&forgotten), minutes(&[10]));
    assert_eq!(restarted(&unblocked), minutes(&[40]));
    assert!(unblocked.end_block(key(1), hour + Span::from_secs(1)));
    assert_eq!(ends(&super::policy(&[&unblocked]), hour + Span::from_secs(2), 1), minutes(&[10]));
}
