//! Keys that outlive the process: the limit that takes them over decides as the one that they came from.

use std::convert::Infallible;

use proptest::prelude::*;

use super::*;

pub(super) fn algorithms() -> Vec<Algorithm> {
    let rates: Vec<Rate> = vec!["3/s".parse().unwrap()];
    let two: Vec<Rate> = vec!["3/s".parse().unwrap(), "9/10s".parse().unwrap()];
    let second = Span::from_secs(1);
    vec![
        wheel(&["3/s"], None, Bound::Sliding),
        wheel(&["3/s", "9/10s"], Some(8), Bound::Strict),
        wheel(&["20/m"], None, Bound::Slot),
        Algorithm::TokenBucket(TokenBucket::new(&two, Some(5), Refill::Greedy).unwrap()),
        Algorithm::TokenBucket(TokenBucket::new(&rates, Some(3), Refill::Interval).unwrap()),
        Algorithm::Gcra(Gcra::new(&rates, Some(3)).unwrap()),
        Algorithm::FixedWindow(FixedWindow::new(&two, Align::First).unwrap()),
        Algorithm::SlidingWindow(SlidingWindow::new(&rates, None, None).unwrap()),
        Algorithm::SlidingCounter(SlidingCounter::new(&two).unwrap()),
        Algorithm::SlidingLog(SlidingLog::new(&rates, Span::ZERO, true).unwrap()),
        Algorithm::LeakyBucket(LeakyBucket::new(&rates, None).unwrap()),
        Algorithm::WarmUp(WarmUp::new(&rates, second, None).unwrap()),
    ]
}

/// A limit with the keys of another one, as a new process makes it.
fn taken_over(limit: &Limit, now: Tick) -> (Arc<Limit>, Arc<Policy>) {
    let next = Limit::new(limit.spec());
    assert_eq!(next.key_layout(), limit.key_layout());
    let copied = limit.copy_keys(now, |records| {
        next.take_over_keys(records, now);
        Ok::<_, Infallible>(())
    });
    copied.unwrap();
    let policy = policy(&[&next]);
    (next, policy)
}

/// The answer of a check, in words.
pub(super) fn said(policy: &Arc<Policy>, name: u64, cost: u64, now: Tick) -> String {
    let mut report = Report::default();
    match policy.check(&asks(name, cost), Span::MAX, now, &mut report) {
        Verdict::Refused(refusal) => format!("{:?} {:?} {:?}", refusal.why, refusal.retry_at, report.lines()),
        Verdict::Admitted(_) => format!("admitted {:?}", report.lines()),
        Verdict::Queued(_) => "queued".to_owned(),
    }
}

#[test]
fn what_is_in_flight_ends_with_the_process() {
    let concurrency = Algorithm::Concurrency(Concurrency::new(3).unwrap());
    assert_eq!(one(LimitSpec { algorithm: concurrency, ..spec("3/s") }).0.key_layout(), None);
}

#[test]
fn another_algorithm_number_or_penalty_is_another_layout_and_a_reload_in_between_is_not() {
    let layout = |spec: LimitSpec| one(spec).0.key_layout().unwrap();
    let own = layout(spec("10/s"));
    assert_ne!(own, layout(spec("11/s")));
    assert_ne!(own, layout(LimitSpec { algorithm: wheel(&["10/s"], None, Bound::Strict), ..spec("10/s") }));
    let penalty = Penalty::new(3, Span::from_secs(60), Span::from_secs(60)).ok();
    assert_ne!(own, layout(LimitSpec { penalty, ..spec("10/s") }));
    assert_eq!(own, layout(LimitSpec { max_keys: 7, ..spec("10/s") }));
    let (limit, policy) = one(spec("500/s"));
    assert_eq!(drain(&policy, 1, at(0)), 500);
    limit.reconfigure(spec("10/s"));
    let (_, next) = taken_over(&limit, at(1));
    assert_eq!([drain(&policy, 1, at(999)), drain(&next, 1, at(999))], [0, 0]);
    assert_eq!([drain(&policy, 1, at(1_000)), drain(&next, 1, at(1_000))], [10, 10]);
}

#[test]
fn a_full_table_and_a_known_key_are_left_as_they_are() {
    let (limit, policy) = one(LimitSpec { max_keys: 100, ..spec("1/m") });
    assert!((0..100).all(|name| admitted(&policy, name, at(0))));
    let (next, other) = one(LimitSpec { max_keys: 100, ..spec("1/m") });
    assert!((50..60).all(|name| admitted(&other, name, at(0))) && admitted(&other, 1_000, at(0)));
    let mut taken = 0;
    let copied = limit.copy_keys(at(1), |records| {
        taken += next.take_over_keys(records, at(1));
        Ok::<_, Infallible>(())
    });
    copied.unwrap();
    assert_eq!((taken, next.key_count()), (89, 100));
    let (late, _) = taken_over(&limit, at(60_000));
    assert_eq!(late.key_count(), 0, "they count no more");
}

/// One that has saved all it may is forgotten at the next chance, and comes back with nothing.
#[test]
fn what_smooth_bursty_has_saved_goes_on_and_what_it_owes() {
    let rates: Vec<Rate> = vec!["3/s".parse().unwrap()];
    let bursty = SmoothBursty::new(&rates, Some(Span::from_secs(10))).unwrap();
    let (limit, policy) = one(LimitSpec { algorithm: Algorithm::SmoothBursty(bursty), ..spec("3/s") });
    assert!(admitted(&policy, 1, at(0)) && admitted(&policy, 2, at(2_000)));
    let (_, next) = taken_over(&limit, at(2_000));
    assert_eq!(drain(&policy, 1, at(2_001)), drain(&next, 1, at(2_001)));
    assert_eq!([drain(&policy, 2, at(2_001)), drain(&next, 2, at(2_001))], [0, 0]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_decisions_after_are_those_that_the_first_process_would_have_made(
        which in 0usize..12,
        has_penalty in any::<bool>(),
        grows in any::<bool>(),
        before in prop::collection::vec((0u64..5, 1u64..3, 0u64..900), 0..60),
        after in prop::collection::vec((0u64..5, 1u64..3, 0u64..900), 1..60),
    ) {
        let penalty = has_penalty.then(|| Penalty::new(3, Span::from_secs(20), Span::from_secs(15)).unwrap());
        let penalty = penalty.map(|flat| if grows { flat.growing(150, Span::from_secs(40)).unwrap() } else { flat });
        let (limit, policy) = one(LimitSpec { algorithm: algorithms()[which].clone(), penalty, ..spec("3/s") });
        let mut millis = 1_700_000_000_000;
        for (name, cost, wait) in before {
            millis += wait;
            said(&policy, name, cost, at(millis));
        }
        let (_, next) = taken_over(&limit, at(millis));
        for (name, cost, wait) in after {
            millis += wait;
            prop_assert_eq!(said(&policy, name, cost, at(millis)), said(&next, name, cost, at(millis)));
        }
    }

    #[test]
    fn no_words_make_it_panic(
        which in 0usize..12,
        words in prop::collection::vec(prop_oneof![any::<u64>(), Just(u64::MAX), 0u64..100], 0..400),
        wait in 0u64..5_000,
    ) {
        let penalty = Penalty::new(3, Span::from_secs(20), Span::from_secs(15)).ok();
        let (limit, policy) = one(LimitSpec { algorithm: algorithms()[which].clone(), penalty, ..spec("3/s") });
        limit.take_over_keys(&words, at(1_700_000_000_000));
        let stride = limit.key_layout().unwrap().words;
        for record in words.chunks_exact(stride).filter(|record| record[0] != 0) {
            let ask = [Ask { key: Fingerprint::known(record[0]), cost: 1, counting: Counting::AtOnce, ..Ask::default() }; MAX_LIMITS];
            let now = at(1_700_000_000_000 + wait);
            let _ = policy.check(&ask, Span::MAX, now, &mut Report::default());
        }
    }
}
