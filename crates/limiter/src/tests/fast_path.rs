//! The short way of a check answers what the long way does.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug)]
struct Step {
    /// Nanoseconds since the one before, or before it: workers read their clocks at different times.
    after: i64,
    key: u64,
    cost: u64,
    /// A waiting one stays until so many more have come.
    stays: usize,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let after = prop_oneof![
        3 => Just(0),
        3 => (0i64..400).prop_map(|millis| millis * 1_000_000),
        2 => 0i64..2_000_000_000,
        1 => -3_000_000i64..0,
        1 => Just(1),
    ];
    let cost = prop_oneof![6 => Just(1u64), 2 => 0u64..12, 1 => 200u64..70_000];
    let step = (after, 0u64..3, cost, 0usize..5);
    // Fewer than there are between two sweeps, which come at other moments by the short way: a smooth-bursty key that is
    // forgotten comes back with nothing.
    prop::collection::vec(step.prop_map(|(after, key, cost, stays)| Step { after, key, cost, stays }), 1..60)
}

fn rates() -> impl Strategy<Value = Vec<Rate>> {
    let limit = prop_oneof![5 => 1u64..8, 1 => 120u64..135, 1 => 32_760u64..32_775, 1 => Just(5_000_000_000u64)];
    let window = prop_oneof![Just(100u64), Just(300), Just(1_000), Just(60_000)];
    let rate = (limit, window).prop_map(|(limit, millis)| Rate::new(limit, Span::from_millis(millis)).unwrap());
    prop::collection::vec(rate, 1..3)
}

/// Every algorithm; now and then one with two rates, which have to go the long way.
fn algorithms() -> impl Strategy<Value = Algorithm> {
    (rates(), 3u64..9, 0..15).prop_map(|(rates, burst, which)| {
        let (rates, one) = (&rates[..], &rates[..1]);
        match which {
            0 => TimerWheel::new(rates, None, Bound::Sliding).map(Algorithm::TimerWheel).map_err(AlgorithmError::Slots),
            1 => {
                TimerWheel::new(one, Some(10), Bound::Strict).map(Algorithm::TimerWheel).map_err(AlgorithmError::Slots)
            }
            2 => TimerWheel::new(one, None, Bound::Slot).map(Algorithm::TimerWheel).map_err(AlgorithmError::Slots),
            3 => TimerWheel::new(one, None, Bound::Sliding).map(Algorithm::TimerWheel).map_err(AlgorithmError::Slots),
            4 => TokenBucket::new(one, Some(burst), Refill::Greedy).map(Algorithm::TokenBucket),
            5 => TokenBucket::new(one, Some(burst), Refill::Interval).map(Algorithm::TokenBucket),
            6 => Gcra::new(one, Some(burst)).map(Algorithm::Gcra),
            7 => LeakyBucket::new(one, Some(burst)).map(Algorithm::LeakyBucket),
            8 => FixedWindow::new(one, if burst > 5 { Align::Epoch } else { Align::First }).map(Algorithm::FixedWindow),
            9 => SlidingWindow::new(one, None, None).map(Algorithm::SlidingWindow),
            10 => SlidingCounter::new(one).map(Algorithm::SlidingCounter),
            11 => SlidingLog::new(&["7/s".parse().unwrap()], Span::from_millis(burst), burst > 5)
                .map(Algorithm::SlidingLog),
            12 => SmoothBursty::new(one, Some(Span::from_millis(burst * 100))).map(Algorithm::SmoothBursty),
            13 => WarmUp::new(one, Span::from_millis(burst * 200), None).map(Algorithm::WarmUp),
            _ => Concurrency::new(burst).map(Algorithm::Concurrency),
        }
        .unwrap()
    })
}

proptest! {
    #[test]
    fn the_short_way_answers_what_the_long_way_does(
        algorithm in algorithms(),
        (max_wait, steps) in (prop_oneof![Just(0u64), Just(500)], steps()),
    ) {
        // With room for all keys: which one a full table forgets depends on where its clock hand stands.
        let rates = algorithm.rates().to_vec();
        let spec = LimitSpec { algorithm, max_wait: Span::from_millis(max_wait), ..spec("1/s") };
        let ((_, short), (_, long)) = (one(spec.clone()), one(spec));
        let (mut a, mut b) = (Report::default(), Report::default());
        let mut now = Tick::from_nanos(1_800_000_000_000_000_000);
        let mut held: Vec<(usize, (Verdict, Verdict))> = Vec::new();
        for (index, step) in steps.into_iter().enumerate() {
            let by = Span::from_nanos(step.after.unsigned_abs());
            now = if step.after < 0 { now - by } else { now + by };
            held.retain(|(until, ..)| *until > index);
            let ask = asks(step.key, step.cost);
            let verdicts = (short.check(&ask, Span::MAX, now, &mut a), long.check_long(&ask, Span::MAX, now, &mut b));
            prop_assert_eq!(a.lines(), b.lines());
            for line in a.lines() {
                prop_assert!(line.remaining <= line.quota, "{line:?}");
                let product = |count: u64, span: Span| u128::from(count) * u128::from(span.as_nanos());
                let is_pace = |rate: &Rate| product(line.quota, rate.window()) == product(rate.limit(), line.window);
                prop_assert!(rates.get(line.rate).is_none_or(is_pace), "{line:?}");
            }
            match &verdicts {
                (Verdict::Admitted(a), Verdict::Admitted(b)) => prop_assert_eq!(a.is_empty(), b.is_empty()),
                (Verdict::Refused(a), Verdict::Refused(b)) => prop_assert_eq!(a, b),
                (Verdict::Queued(_), Verdict::Queued(_)) => {}
                other => prop_assert!(false, "{other:?}"),
            }
            held.push((index + step.stays, verdicts));
        }
    }
}

#[test]
fn the_usual_limit_goes_the_short_way() {
    let (limit, policy) = one(spec("2/s"));
    assert!(admitted(&policy, 1, at(0)));
    let alone = |cost, now| limit.lock(key(1)).check_alone(key(1), cost, now, limit.keys());
    assert!(alone(1, at(0)).is_some_and(|alone| alone.room_at.is_none() && alone.remaining == 0));
    assert!(alone(1, at(0)).is_some_and(|alone| alone.room_at == Some(at(1_000))));
    assert!(alone(3, at(0)).is_none(), "never");
    let shard = limit.lock(key(2)).check_alone(key(2), 1, at(0), limit.keys());
    assert!(shard.is_none(), "a key that is new");
}

#[test]
fn checks_by_the_short_way_sweep_idle_keys_too() {
    let (limit, policy) = one(spec("2/s"));
    // Two keys of one shard.
    let ask = |high: u64| {
        let key = Some(Fingerprint::from_bits(high << 40 | 1));
        [Ask { key, cost: 1, counting: Counting::AtOnce, ..Ask::default() }]
    };
    let check = |high, now| drop(policy.check(&ask(high), Span::MAX, now, &mut Report::default()));
    check(1, at(0));
    check(2, at(0));
    assert_eq!(limit.stats().keys, 2);
    for _ in 0..256 {
        check(1, at(5_000));
    }
    assert_eq!(limit.stats().keys, 1);
}
