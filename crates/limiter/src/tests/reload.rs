use super::*;

#[test]
fn a_new_limit_applies_to_the_next_request_and_keeps_the_counts() {
    let (limit, policy) = one(spec("3/s"));
    assert_eq!(drain(&policy, 1, at(0)), 3);
    assert_eq!(limit.reconfigure(spec("3/s")), Reconfigured::Same);
    assert_eq!(limit.reconfigure(LimitSpec { name: "3/s".into(), ..spec("5/s") }), Reconfigured::Changed);
    assert_eq!(drain(&policy, 1, at(0)), 2);
    assert_eq!(limit.reconfigure(spec("500/s")), Reconfigured::Changed, "in wider counts");
    assert_eq!(drain(&policy, 1, at(0)), 495);
    assert_eq!(limit.reconfigure(spec("2/s")), Reconfigured::Changed);
    assert_eq!(refused(check(&policy, 1, 1, at(999))).retry_at, Some(at(1000)));
    assert_eq!(drain(&policy, 1, at(1000)), 2);
    assert_eq!(limit.spec(), spec("2/s"));
}

#[test]
fn other_slots_keep_every_count_in_the_window() {
    let (limit, policy) = one(spec("10/s"));
    for millis in [50, 250, 949] {
        assert!(admitted(&policy, 1, at(millis)));
    }
    let four = LimitSpec { algorithm: wheel(&["10/s"], Some(4), Bound::Sliding), ..spec("10/s") };
    assert_eq!(limit.reconfigure(four), Reconfigured::Rescaled);
    assert_eq!(drain(&policy, 1, at(999)), 7);
    assert_eq!(drain(&policy, 1, at(1000)), 1, "slots of 250 ms now");
    let strict = LimitSpec { algorithm: wheel(&["10/s"], None, Bound::Strict), ..spec("10/s") };
    assert_eq!(limit.reconfigure(strict), Reconfigured::Rescaled);
    assert_eq!(drain(&policy, 1, at(1000)), 0);
    assert_eq!(limit.stats().keys, 1);
}

#[test]
fn a_rescale_forgets_idle_keys() {
    let (limit, policy) = one(spec("10/s"));
    assert!(admitted(&policy, 1, at(0)));
    assert!(admitted(&policy, 2, at(1500)));
    assert_eq!(limit.stats().keys, 2);
    assert_eq!(limit.reconfigure(spec("10/2s")), Reconfigured::Rescaled);
    assert_eq!((limit.stats().keys, limit.stats().evicted_idle), (1, 1));
}

#[test]
fn a_worker_that_read_its_clock_earlier_does_not_age_the_counts() {
    let (limit, policy) = one(spec("1/s"));
    assert!(admitted(&policy, 1, at(1000)));
    assert!(!admitted(&policy, 1, at(999)));
    let four = LimitSpec { algorithm: wheel(&["1/s"], Some(4), Bound::Sliding), ..spec("1/s") };
    assert_eq!(limit.reconfigure(four), Reconfigured::Rescaled);
    assert_eq!(refused(check(&policy, 1, 1, at(1001))).retry_at, Some(at(2000)));
}

#[test]
fn a_coarse_slot_under_way_is_not_pushed_into_the_future() {
    let (limit, policy) = one(LimitSpec { algorithm: wheel(&["100/h"], None, Bound::Slot), ..spec("100/h") });
    assert_eq!(drain(&policy, 1, at(60_000)), 100);
    assert_eq!(limit.reconfigure(spec("100/s")), Reconfigured::Rescaled);
    assert_eq!(drain(&policy, 1, at(60_999)), 0);
    assert_eq!(drain(&policy, 1, at(61_000)), 100);
}

#[test]
fn waiters_keep_their_place_and_deadline() {
    let (limit, policy) = one(waiting("1/s", 5000));
    assert!(admitted(&policy, 1, at(0)));
    let mut first = queued(check(&policy, 1, 1, at(0)));
    let mut second = queued(check(&policy, 1, 1, at(0)));
    let _ = (first.wake_at(at(0)), second.wake_at(at(0)));
    assert_eq!(limit.reconfigure(waiting("1/500ms", 0)), Reconfigured::Rescaled);
    assert_eq!((first.times_woken(), second.times_woken()), (1, 0));
    assert_eq!(first.wake_at(at(0)), at(500));
    assert_eq!(second.wake_at(at(0)), at(5002));
    assert_eq!(refused(check(&policy, 1, 1, at(0))).why, RefusalReason::Rate, "arrivals do not wait any more");
    let mut report = Report::default();
    let _ = policy.check(&asks(1, 1), Span::MAX, at(0), &mut report);
    assert_eq!(report.lines()[0].reset, Some(Span::from_millis(1500)), "planned by the new rate");
    assert_eq!(first.attempt(at(500)), Attempt::Admitted(Permit::default()));
    assert_eq!(second.attempt(at(1000)), Attempt::Admitted(Permit::default()));
}

#[test]
fn a_waiter_that_a_lowered_limit_can_never_admit_ends_at_once() {
    let (limit, policy) = one(waiting("2/s", 3000));
    assert_eq!(drain(&policy, 1, at(0)), 2);
    let mut large = queued(check(&policy, 1, 2, at(0)));
    let mut small = queued(check(&policy, 1, 1, at(10)));
    let _ = (large.wake_at(at(0)), small.wake_at(at(10)));
    assert_eq!(limit.reconfigure(waiting("1/s", 3000)), Reconfigured::Changed);
    assert_eq!(large.times_woken(), 1);
    let mut report = Report::default();
    let _ = policy.check(&asks(1, 1), Span::MAX, at(500), &mut report);
    assert_eq!(
        report.lines()[0].reset,
        Some(Span::from_millis(2500)),
        "1 s for the small one, 2 s for this, 3 s for the next"
    );
    let refusal = large.timed_out(at(500));
    assert_eq!((refusal.why, refusal.retry_at), (RefusalReason::WaitTimeout, None), "two never fit into one");
    assert_eq!(small.times_woken(), 1);
    assert_eq!(small.wake_at(at(500)), at(1000));
    assert_eq!(small.attempt(at(1000)), Attempt::Admitted(Permit::default()));
}

#[test]
fn a_limit_that_stops_enforcing_lets_its_waiters_go_in_order() {
    type Stop = fn(&Limit);
    let off: Stop = |limit| _ = limit.reconfigure(LimitSpec { mode: Mode::Off, ..limit.spec() });
    let shadow: Stop = |limit| _ = limit.reconfigure(LimitSpec { mode: Mode::Shadow, ..limit.spec() });
    for stop in [off, shadow, Limit::release] {
        let (limit, policy) = one(waiting("1/s", 5000));
        assert!(admitted(&policy, 1, at(0)));
        let mut first = queued(check(&policy, 1, 1, at(0)));
        let mut second = queued(check(&policy, 1, 1, at(0)));
        let _ = (first.wake_at(at(0)), second.wake_at(at(0)));
        stop(&limit);
        assert_eq!((first.times_woken(), second.times_woken()), (1, 0));
        assert!(matches!(second.attempt(at(1)), Attempt::Pending { .. }), "not before the first");
        assert_eq!(first.attempt(at(1)), Attempt::Admitted(Permit::default()));
        assert_eq!(second.times_woken(), 1);
        assert_eq!(second.attempt(at(1)), Attempt::Admitted(Permit::default()));
        assert!(admitted(&policy, 1, at(1)));
    }
}

#[test]
fn a_released_limit_forgets_its_keys_and_can_come_back() {
    let (limit, policy) = one(spec("1/s"));
    assert_eq!(drain(&policy, 1, at(0)), 1);
    limit.release();
    assert_eq!(limit.stats().keys, 0);
    assert_eq!(drain(&policy, 1, at(0)), 1_000);
    assert_eq!(limit.reconfigure(spec("1/s")), Reconfigured::Changed);
    assert_eq!(drain(&policy, 1, at(0)), 1);
}

#[test]
fn a_closed_limit_ends_its_waiters_and_refuses_nobody() {
    let (limit, policy) = one(waiting("1/s", 5000));
    assert!(admitted(&policy, 1, at(0)));
    let mut waiters = [queued(check(&policy, 1, 1, at(0))), queued(check(&policy, 1, 1, at(0)))];
    let _ = (waiters[0].wake_at(at(0)), waiters[1].wake_at(at(0)));
    limit.close();
    assert_eq!(waiters[0].times_woken(), 1);
    assert_eq!(waiters[0].timed_out(at(5)).why, RefusalReason::WaitTimeout);
    assert_eq!(waiters[1].times_woken(), 1);
    assert_eq!(waiters[1].timed_out(at(5)).why, RefusalReason::WaitTimeout);
    assert_eq!(limit.stats().waiting, 0);
    limit.release();
    let _ = limit.reconfigure(spec("2/s"));
    assert_eq!(drain(&policy, 1, at(5)), 1_000, "closed for good");
}
