use super::*;

fn pattern(bound: Bound) -> String {
    let (_, policy) = one(LimitSpec { algorithm: wheel(&["3/1s"], None, bound), ..spec("3/s") });
    [0, 100, 900, 950, 1000, 1000, 1000, 1000, 4200, 5000]
        .map(|millis| if admitted(&policy, 1, at(millis)) { 'A' } else { 'R' })
        .iter()
        .collect()
}

#[test]
fn three_a_second_in_one_slot() {
    assert_eq!(pattern(Bound::Slot), "AAARAAARAA");
}

#[test]
fn three_a_second_sliding() {
    assert_eq!(pattern(Bound::Sliding), "AAARARRRAA");
}

#[test]
fn three_a_second_strict() {
    assert_eq!(pattern(Bound::Strict), "AAARRRRRAA");
}

/// Admitted in 110 s by 10/1s when somebody asks every millisecond.
fn saturated(bound: Bound) -> usize {
    let (_, policy) = one(LimitSpec { algorithm: wheel(&["10/1s"], None, bound), ..spec("10/s") });
    (0..110_000).filter(|millis| admitted(&policy, 1, at(*millis))).count()
}

#[test]
fn saturated_slot_and_sliding_admit_the_rate_and_strict_ten_elevenths_of_it() {
    assert_eq!(saturated(Bound::Slot), 10 * 110);
    assert_eq!(saturated(Bound::Sliding), 10 * 110);
    assert_eq!(saturated(Bound::Strict), 10 * 100, "9.09 a window");
}

#[test]
fn a_burst_of_the_limit_passes_at_once_in_every_mode() {
    for bound in [Bound::Slot, Bound::Sliding, Bound::Strict] {
        let (_, policy) = one(LimitSpec { algorithm: wheel(&["50/s"], None, bound), ..spec("50/s") });
        assert_eq!(drain(&policy, 1, at(777)), 50);
        assert_eq!(drain(&policy, 2, at(777)), 50, "keys do not share");
    }
}

#[test]
fn every_rate_of_a_limit_holds() {
    let (_, policy) = one(LimitSpec { algorithm: wheel(&["2/s", "3/10s"], None, Bound::Sliding), ..spec("2/s") });
    let mut report = Report::default();
    assert_eq!(drain(&policy, 1, at(0)), 2);
    let refusal = refused(check(&policy, 1, 1, at(0)));
    assert_eq!((refusal.quota, refusal.retry_at), (2, Some(at(1000))));
    assert_eq!(drain(&policy, 1, at(1000)), 1);
    let refusal = refused(policy.check(&asks(1, 1), Span::MAX, at(1000), &mut report));
    assert_eq!((refusal.quota, refusal.window, refusal.retry_at), (3, Span::from_secs(10), Some(at(10_000))));
    let line = QuotaLine { limit: 0, rate: 0, shadow: false, quota: 2, ..QuotaLine::default() };
    let second = Span::from_secs(1);
    assert_eq!(
        report.lines(),
        [
            QuotaLine { window: second, remaining: 1, reset: Some(second), ..line },
            QuotaLine { rate: 1, quota: 3, window: Span::from_secs(10), reset: Some(Span::from_secs(9)), ..line },
        ]
    );
}

#[test]
fn a_full_quota_has_no_reset() {
    let (_, policy) = one(spec("2/s"));
    let mut report = Report::default();
    let _ = policy.check(&asks(1, 3), Span::MAX, at(0), &mut report);
    assert_eq!((report.lines()[0].remaining, report.lines()[0].reset), (2, None));
}

#[test]
fn a_cost_above_the_limit_never_fits() {
    let (_, policy) = one(waiting("5/s", 60_000));
    let refusal = refused(check(&policy, 1, 6, at(0)));
    assert_eq!((refusal.why, refusal.retry_at, refusal.remaining), (RefusalReason::TooCostly, None, 5));
    assert!(matches!(check(&policy, 1, 5, at(0)), Verdict::Admitted(_)));
}

#[test]
fn the_largest_numbers_do_not_wrap() {
    let (_, policy) = one(waiting("1000000000000/5000d", u64::MAX));
    assert!(matches!(check(&policy, 1, MAX_COUNT, at(0)), Verdict::Admitted(_)));
    let _ = queued(check(&policy, 1, MAX_COUNT, at(0)));
    assert_eq!(refused(check(&policy, 1, u64::MAX, Tick::MAX)).why, RefusalReason::TooCostly);
    let (_, policy) = one(spec("3/584y".replace("584y", "200000d").as_str()));
    assert_eq!(drain(&policy, 1, Tick::MAX), 3);
}

#[test]
fn a_limit_without_a_key_does_not_apply() {
    let (limit, policy) = one(spec("1/s"));
    let mut report = Report::default();
    for _ in 0..3 {
        assert!(matches!(
            policy.check(
                &[Ask { key: None, cost: 1, counting: Counting::AtOnce, ..Ask::default() }],
                Span::MAX,
                at(0),
                &mut report
            ),
            Verdict::Admitted(_)
        ));
        assert!(matches!(policy.check(&[], Span::MAX, at(0), &mut report), Verdict::Admitted(_)));
    }
    assert_eq!((report.lines().len(), limit.stats().keys), (0, 0));
}

#[test]
fn a_worker_that_read_its_clock_earlier_counts_in_the_newest_slot() {
    let (_, policy) = one(spec("2/s"));
    assert!(admitted(&policy, 1, at(1000)));
    assert!(admitted(&policy, 1, at(999)));
    let refusal = refused(check(&policy, 1, 1, at(999)));
    assert_eq!(refusal.retry_at, Some(at(2000)));
    assert!(!admitted(&policy, 1, at(1999)));
    assert!(admitted(&policy, 1, at(2000)));
}
