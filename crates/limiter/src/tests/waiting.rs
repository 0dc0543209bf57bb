use super::*;

#[test]
fn waiters_get_in_one_after_another_at_their_instants() {
    let (limit, policy) = one(waiting("1/s", 2500));
    assert!(admitted(&policy, 1, at(0)));
    let mut first = queued(check(&policy, 1, 1, at(10)));
    let mut second = queued(check(&policy, 1, 1, at(20)));
    let refusal = refused(check(&policy, 1, 1, at(30)));
    assert_eq!((refusal.why, refusal.retry_at, refusal.remaining), (RefusalReason::Rate, Some(at(500)), 0));
    assert_eq!(first.wake_at(at(30)), at(1000));
    assert_eq!(second.wake_at(at(30)), at(2522), "its deadline and the slack of a timer: the head's leaving wakes it");
    assert_eq!(first.attempt(Tick::from_nanos(999_999_999)), Attempt::Pending { wake_at: at(1000) });
    assert_eq!(limit.stats().waiting, 2);
    assert_eq!(first.attempt(at(1000)), Attempt::Admitted(Permit::default()));
    assert_eq!((first.times_woken(), second.times_woken()), (0, 1));
    assert_eq!(second.wake_at(at(1000)), at(2000));
    assert_eq!(second.attempt(at(2000)), Attempt::Admitted(Permit::default()));
    assert_eq!(limit.stats().waiting, 0);
    assert_eq!(second.timed_out(at(2001)).why, RefusalReason::WaitTimeout, "a ticket that has ended");
}

#[test]
fn an_arrival_does_not_overtake_the_queue() {
    let (_, policy) = one(waiting("2/s", 3000));
    assert!(matches!(check(&policy, 1, 1, at(0)), Verdict::Admitted(_)));
    let mut large = queued(check(&policy, 1, 2, at(1)));
    // There is room for one, but the large head blocks it.
    let mut small = queued(check(&policy, 1, 1, at(2)));
    assert_eq!(large.wake_at(at(2)), at(1000));
    assert_eq!(small.wake_at(at(500)), at(3004));
    assert_eq!(large.attempt(at(1000)), Attempt::Admitted(Permit::default()));
    assert_eq!(small.wake_at(at(1000)), at(2000));
    let _ = queued(check(&policy, 1, 1, at(1500)));
    assert_eq!(small.attempt(at(2000)), Attempt::Admitted(Permit::default()));
}

#[test]
fn a_cancel_moves_everybody_up_and_wakes_the_new_head() {
    let (_, policy) = one(waiting("1/s", 5000));
    assert!(admitted(&policy, 1, at(0)));
    let mut first = queued(check(&policy, 1, 1, at(0)));
    let mut second = queued(check(&policy, 1, 1, at(0)));
    let mut third = queued(check(&policy, 1, 1, at(0)));
    let _ = (first.wake_at(at(0)), second.wake_at(at(0)), third.wake_at(at(0)));
    drop(second);
    assert_eq!((first.times_woken(), third.times_woken()), (0, 0));
    drop(first);
    assert_eq!(third.times_woken(), 1);
    assert_eq!(third.wake_at(at(0)), at(1000));
    let mut fourth = queued(check(&policy, 1, 1, at(0)));
    assert_eq!(third.attempt(at(1000)), Attempt::Admitted(Permit::default()));
    assert_eq!(fourth.wake_at(at(1000)), at(2000));
}

#[test]
fn a_full_queue_refuses_until_its_head_leaves() {
    let (_, policy) = one(LimitSpec { max_queue: Some(1), ..waiting("1/s", 5000) });
    assert!(admitted(&policy, 1, at(0)));
    let mut first = queued(check(&policy, 1, 1, at(0)));
    let refusal = refused(check(&policy, 1, 1, at(0)));
    assert_eq!((refusal.why, refusal.retry_at), (RefusalReason::QueueFull, Some(at(1000))));
    assert_eq!(first.attempt(at(1000)), Attempt::Admitted(Permit::default()));
    let _ = queued(check(&policy, 1, 1, at(1000)));
}

#[test]
fn the_default_queue_holds_what_the_rate_admits_in_the_wait() {
    let (limit, policy) = one(waiting("2/s", 2001));
    assert_eq!(drain(&policy, 1, at(0)), 2);
    let kept: Vec<_> = (0..4).map(|_| queued(check(&policy, 1, 1, at(0)))).collect();
    assert_eq!(refused(check(&policy, 1, 1, at(0))).why, RefusalReason::Rate);
    assert_eq!(limit.stats().waiting, 4);
    drop(kept);
    assert_eq!(limit.stats().waiting, 0);
}

#[test]
fn nobody_waits_longer_than_the_request_may_take() {
    let (_, policy) = one(waiting("1/s", 5000));
    let mut report = Report::default();
    assert!(admitted(&policy, 1, at(0)));
    let timeout = Span::from_millis(900);
    let refusal = refused(policy.check(&asks(1, 1), timeout, at(0), &mut report));
    assert_eq!((refusal.why, refusal.retry_at), (RefusalReason::Rate, Some(at(100))));
    let mut in_time = queued(policy.check(&asks(1, 1), timeout, at(100), &mut report));
    assert_eq!(report.lines()[0].reset, Some(Span::from_millis(1900)), "one more would get in at 2 s");
    assert_eq!(in_time.attempt(at(1000)), Attempt::Admitted(Permit::default()), "its deadline to the nanosecond");
}

#[test]
fn a_head_whose_timer_is_a_little_late_still_gets_in() {
    for (late_micros, gets_in) in [(0, true), (1_999, true), (2_001, false)] {
        let (_, policy) = one(waiting("1/s", 1000));
        assert!(admitted(&policy, 1, at(0)));
        let mut waiter = queued(check(&policy, 1, 1, at(0)));
        assert_eq!(waiter.wake_at(at(0)), at(1000));
        let attempt = waiter.attempt(at(1000) + Span::from_nanos(late_micros * 1_000));
        assert_eq!(attempt == Attempt::Admitted(Permit::default()), gets_in, "{late_micros} us late");
    }
}

#[test]
fn a_head_that_comes_at_the_moment_of_its_deadline_gets_in_whatever_was_planned() {
    let gcra = |rate: &str| Algorithm::Gcra(Gcra::new(&[rate.parse().unwrap()], None).unwrap());
    let wheel = |rate| wheel(&[rate], None, Bound::Sliding);
    for (full, half) in [(wheel("2/s"), wheel("1/s")), (gcra("2/s"), gcra("1/s"))] {
        for (late_micros, gets_in) in [(0, true), (1_000, true), (2_001, false)] {
            let with = |algorithm: &Algorithm| LimitSpec { algorithm: algorithm.clone(), ..waiting("2/s", 500) };
            let (limit, policy) = one(with(&full));
            assert!(admitted(&policy, 1, at(0)) && admitted(&policy, 1, at(500)));
            let mut waiter = queued(check(&policy, 1, 1, at(600)));
            assert_eq!(waiter.wake_at(at(600)), at(1000));
            // At half the rate its room would come too late, as the plan for the next one finds out.
            limit.reconfigure(with(&half));
            assert_eq!(refused(check(&policy, 1, 1, at(700))).why, RefusalReason::Rate);
            limit.reconfigure(with(&full));
            let attempt = waiter.attempt(at(1100) + Span::from_nanos(late_micros * 1_000));
            let admitted = attempt == Attempt::Admitted(Permit::default());
            assert_eq!(admitted, gets_in, "{late_micros} us late for {full:?}");
        }
    }
}

#[test]
fn a_stopped_process_times_out_everybody_who_is_overdue() {
    let (limit, policy) = one(waiting("1/s", 3000));
    assert!(admitted(&policy, 1, at(0)));
    let mut waiters: Vec<_> = (0..3).map(|_| queued(check(&policy, 1, 1, at(0)))).collect();
    for waiter in &mut waiters {
        let _ = waiter.wake_at(at(0));
    }
    for waiter in &mut waiters {
        let refusal = waiter.timed_out(at(20_000));
        assert_eq!((refusal.why, refusal.limit, refusal.quota), (RefusalReason::WaitTimeout, 0, 1));
    }
    assert_eq!(limit.stats().waiting, 0);
    assert!(admitted(&policy, 1, at(20_000)));
}

#[test]
fn a_late_head_counts_where_it_gets_in_and_delays_those_behind() {
    let (_, policy) = one(waiting("1/s", 5000));
    assert!(admitted(&policy, 1, at(0)));
    let mut first = queued(check(&policy, 1, 1, at(0)));
    let mut second = queued(check(&policy, 1, 1, at(0)));
    let _ = (first.wake_at(at(0)), second.wake_at(at(0)));
    assert_eq!(first.attempt(at(1450)), Attempt::Admitted(Permit::default()));
    assert_eq!(second.wake_at(at(1450)), at(2400));
    assert_eq!(one_more(&policy, at(1450)), at(3400), "planned anew from the head");
    let mut third = queued(check(&policy, 1, 1, at(1450)));
    assert_eq!(second.attempt(at(2400)), Attempt::Admitted(Permit::default()));
    assert_eq!(third.wake_at(at(2400)), at(3400));
}

/// When one more would get in, as the report has it.
fn one_more(policy: &Arc<Policy>, now: Tick) -> Tick {
    let mut report = Report::default();
    assert!(matches!(policy.check(&asks(1, 1), Span::ZERO, now, &mut report), Verdict::Refused(_)));
    now + report.lines()[0].reset.unwrap()
}

#[test]
fn a_head_that_is_late_delays_the_plan() {
    let (_, policy) = one(waiting("1/s", 5000));
    assert!(admitted(&policy, 1, at(0)));
    let _waiters = [queued(check(&policy, 1, 1, at(0))), queued(check(&policy, 1, 1, at(0)))];
    assert_eq!(one_more(&policy, at(0)), at(3000));
    // The head's worker is busy: it cannot get in before now, in slot 14.
    assert_eq!(one_more(&policy, at(1450)), at(3400));
}

#[test]
fn a_queue_that_was_made_shorter_has_a_place_when_enough_have_left() {
    let (limit, policy) = one(waiting("1/s", 5000));
    assert!(admitted(&policy, 1, at(0)));
    let _waiters: Vec<_> = (0..3).map(|_| queued(check(&policy, 1, 1, at(0)))).collect();
    let _ = limit.reconfigure(LimitSpec { max_queue: Some(2), ..limit.spec() });
    let refusal = refused(check(&policy, 1, 1, at(0)));
    assert_eq!((refusal.why, refusal.retry_at), (RefusalReason::QueueFull, Some(at(2000))));
}

#[test]
fn a_refused_request_of_another_key_does_not_wait() {
    let (_, policy) = one(waiting("1/s", 5000));
    assert!(admitted(&policy, 1, at(0)));
    let _first = queued(check(&policy, 1, 1, at(0)));
    assert!(admitted(&policy, 2, at(0)));
}
