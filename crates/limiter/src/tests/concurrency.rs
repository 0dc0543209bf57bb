//! Permits: taken, given back, waited for, and forgotten.

use std::sync::Barrier;
use std::thread;

use proptest::prelude::*;

use super::*;

fn at_once(max_in_flight: u64, max_wait_millis: u64) -> LimitSpec {
    let algorithm = Algorithm::Concurrency(Concurrency::new(max_in_flight).unwrap());
    LimitSpec { algorithm, max_wait: Span::from_millis(max_wait_millis), ..spec("1/s") }
}

fn permit(policy: &Arc<Policy>, name: u64, cost: u64, now: Tick) -> Permit {
    match check(policy, name, cost, now) {
        Verdict::Admitted(permit) => permit,
        other => panic!("{other:?} is no permit"),
    }
}

fn let_in(waiting: &mut Waiting, now: Tick) -> Permit {
    match waiting.attempt(now) {
        Attempt::Admitted(permit) => permit,
        other => panic!("{other:?} is not let in"),
    }
}

/// The remaining count, and when it grows if the report knows that.
fn remaining(policy: &Arc<Policy>, name: u64, now: Tick) -> (u64, Option<Span>) {
    let mut report = Report::default();
    let _ = policy.check(&asks(name, MAX_COUNT), Span::ZERO, now, &mut report);
    (report.lines()[0].remaining, report.lines()[0].reset)
}

#[test]
fn permits_are_given_back_at_the_end_and_not_by_time() {
    let (limit, policy) = one(at_once(2, 0));
    let first = permit(&policy, 1, 1, at(0));
    let second = permit(&policy, 1, 1, at(0));
    let refusal = refused(check(&policy, 1, 1, at(3_600_000)));
    assert_eq!(
        (refusal.why, refusal.retry_at, refusal.quota),
        (RefusalReason::Rate, Some(at(3_601_000)), 2),
        "in a second"
    );
    assert_eq!(remaining(&policy, 1, at(3_600_000)), (0, None));
    drop(first);
    assert_eq!(remaining(&policy, 1, at(3_600_000)), (1, None));
    let third = permit(&policy, 1, 1, at(3_600_000));
    assert!(!third.is_empty() && !admitted(&policy, 1, at(3_600_000)));
    drop((second, third));
    assert_eq!(remaining(&policy, 1, at(3_600_000)), (2, None));
    assert_eq!(limit.stats().keys, 1);
}

#[test]
fn other_limits_have_nothing_to_give_back() {
    let (_, policy) = one(spec("5/s"));
    assert!(permit(&policy, 1, 1, at(0)).is_empty());
    assert_eq!(permit(&policy, 1, 1, at(0)), Permit::default());
}

#[test]
fn a_cost_above_the_cap_never_fits_and_one_below_waits_for_all_of_it() {
    let (_, policy) = one(at_once(3, 5_000));
    assert_eq!(refused(check(&policy, 1, 4, at(0))).why, RefusalReason::TooCostly);
    let two = permit(&policy, 1, 2, at(0));
    let mut three = queued(check(&policy, 1, 3, at(0)));
    let mut one = queued(check(&policy, 1, 1, at(0)));
    assert_eq!(three.wake_at(at(0)), at(5_000), "nobody knows when, so at its deadline");
    assert_eq!(one.wake_at(at(0)), at(5_002), "it fits, but the one before it is first");
    drop(two);
    assert_eq!((three.times_woken(), one.times_woken()), (1, 0));
    let three = let_in(&mut three, at(10));
    assert_eq!(one.times_woken(), 1);
    assert_eq!(one.wake_at(at(10)), at(5_000));
    drop(three);
    assert_eq!(one.times_woken(), 2);
    let _one = let_in(&mut one, at(11));
}

#[test]
fn a_release_lets_in_as_many_as_fit_one_waking_the_next() {
    let (limit, policy) = one(at_once(2, 5_000));
    let both = permit(&policy, 1, 2, at(0));
    let mut waiters: Vec<_> = (0..2).map(|_| queued(check(&policy, 1, 1, at(0)))).collect();
    for waiter in &mut waiters {
        let _ = waiter.wake_at(at(0));
    }
    let refusal = refused(check(&policy, 1, 1, at(0)));
    assert_eq!(
        (refusal.why, refusal.retry_at),
        (RefusalReason::QueueFull, Some(at(1_000))),
        "as many wait as may be in flight"
    );
    drop(both);
    let first = let_in(&mut waiters[0], at(1));
    assert_eq!(waiters[1].times_woken(), 1);
    let second = let_in(&mut waiters[1], at(1));
    assert_eq!((limit.stats().waiting, remaining(&policy, 1, at(1)).0), (0, 0));
    drop((first, second));
}

#[test]
fn who_waits_in_vain_is_sent_away_at_its_deadline() {
    let (limit, policy) = one(at_once(1, 500));
    let _held = permit(&policy, 1, 1, at(0));
    let mut waiter = queued(check(&policy, 1, 1, at(0)));
    assert_eq!(waiter.wake_at(at(0)), at(500));
    assert!(matches!(waiter.attempt(at(499)), Attempt::Pending { .. }));
    assert_eq!(waiter.timed_out(at(500)).why, RefusalReason::WaitTimeout);
    assert_eq!(limit.stats().waiting, 0);
}

#[test]
fn an_arrival_after_a_release_does_not_overtake_the_queue() {
    let (_, policy) = one(LimitSpec { max_queue: Some(2), ..at_once(1, 5_000) });
    let held = permit(&policy, 1, 1, at(0));
    let mut first = queued(check(&policy, 1, 1, at(0)));
    drop(held);
    let mut second = queued(check(&policy, 1, 1, at(1)));
    assert!(matches!(second.attempt(at(1)), Attempt::Pending { .. }));
    let first = let_in(&mut first, at(1));
    assert!(matches!(second.attempt(at(2)), Attempt::Pending { .. }));
    drop(first);
    let _second = let_in(&mut second, at(2));
}

#[test]
fn a_key_in_flight_is_not_idle_and_a_forgotten_one_gets_nothing_back() {
    let (limit, policy) = one(LimitSpec { max_keys: 1, ..at_once(2, 0) });
    let old = [permit(&policy, 1, 1, at(0)), permit(&policy, 1, 1, at(0))];
    assert!(!admitted(&policy, 1, at(1_000_000)));
    // The table holds one key: this one takes the other's place, and the other comes back as new.
    drop(permit(&policy, 2, 1, at(1_000_000)));
    assert_eq!((limit.stats().evicted_live, limit.stats().evicted_idle), (1, 0));
    let new = [permit(&policy, 1, 1, at(1_000_000)), permit(&policy, 1, 1, at(1_000_000))];
    assert_eq!(limit.stats().evicted_idle, 1);
    drop(old);
    assert_eq!(remaining(&policy, 1, at(1_000_000)).0, 0, "they were of a record that is gone");
    drop(new);
    assert_eq!(remaining(&policy, 1, at(1_000_000)).0, 2);
}

#[test]
fn permits_outlive_reloads_and_come_back_only_where_they_were_taken() {
    let (limit, policy) = one(at_once(3, 0));
    let permits: Vec<_> = (0..3).map(|_| permit(&policy, 1, 1, at(0))).collect();
    assert_eq!(limit.reconfigure(at_once(1, 0)), Reconfigured::Changed);
    assert_eq!(remaining(&policy, 1, at(0)).0, 0);
    let mut permits = permits.into_iter();
    drop((permits.next(), permits.next()));
    assert_eq!(remaining(&policy, 1, at(0)).0, 0, "one is still in flight");
    assert_eq!(limit.reconfigure(spec("1/s")), Reconfigured::Restarted);
    assert_eq!(limit.reconfigure(at_once(2, 0)), Reconfigured::Restarted);
    let new = permit(&policy, 1, 1, at(0));
    drop(permits.next());
    assert_eq!(remaining(&policy, 1, at(0)).0, 1, "of the limit's life before");
    limit.release();
    assert_eq!(limit.reconfigure(at_once(1, 0)), Reconfigured::Changed);
    let newer = permit(&policy, 1, 1, at(0));
    drop(new);
    assert_eq!(remaining(&policy, 1, at(0)).0, 0);
    drop(newer);
    assert_eq!(remaining(&policy, 1, at(0)).0, 1);
}

#[test]
fn with_a_rate_beside_it_a_request_counts_in_both_or_in_none() {
    let (slots, rate) = (Limit::new(at_once(1, 5_000)), Limit::new(waiting("1/s", 5_000)));
    let both = policy(&[&slots, &rate]);
    let held = permit(&both, 1, 1, at(0));
    // Neither has room: it waits for the permit, since nobody knows when that comes, and then for the rate.
    let mut waiter = queued(check(&both, 1, 1, at(100)));
    assert_eq!(waiter.ticket.waits_for(), Some(0));
    assert_eq!(waiter.wake_at(at(100)), at(5_100));
    drop(held);
    assert_eq!(waiter.times_woken(), 1);
    assert_eq!(waiter.wake_at(at(200)), at(1_000));
    assert_eq!(waiter.ticket.waits_for(), Some(1));
    assert_eq!(remaining(&policy(&[&slots]), 1, at(200)).0, 1, "it holds nothing while it waits");
    drop(let_in(&mut waiter, at(1_000)));
    let impatient = policy(&[&slots, &Limit::new(spec("1/10s"))]);
    let held = permit(&impatient, 1, 1, at(2_000));
    let refusal = refused(check(&impatient, 1, 1, at(2_000)));
    assert_eq!((refusal.limit, refusal.retry_at), (1, Some(at(12_000))), "the latest of both");
    drop(held);
}

/// It came to this limit when its patience, counted from the arrival, was over.
#[test]
fn who_comes_to_a_full_limit_too_late_to_wait_there_ends_at_once() {
    for (max_wait, waits) in [(999, false), (1_000, false), (1_001, true)] {
        let (slow, slots) = (Limit::new(waiting("1/s", 3_000)), Limit::new(at_once(1, max_wait)));
        let both = policy(&[&slow, &slots]);
        drop(permit(&both, 1, 1, at(0)));
        let mut waiter = queued(check(&both, 1, 1, at(0)));
        assert_eq!(waiter.wake_at(at(0)), at(1_000));
        let held = permit(&policy(&[&slots]), 1, 1, at(500));
        if waits {
            assert_eq!(waiter.wake_at(at(1_000)), at(1_001));
            drop(held);
            let _permit = let_in(&mut waiter, at(1_000));
        } else {
            let refusal = waiter.timed_out(at(1_000));
            assert_eq!(
                (refusal.limit, refusal.why, refusal.retry_at),
                (1, RefusalReason::WaitTimeout, Some(at(1_000))),
                "one of now may wait"
            );
        }
        assert_eq!((slow.stats().waiting, slots.stats().waiting), (0, 0));
    }
}

#[test]
fn nobody_waits_for_a_release_whose_other_room_comes_too_late() {
    let (slots, slow) = (Limit::new(at_once(1, 5_000)), Limit::new(waiting("1/10s", 20_000)));
    let both = policy(&[&slots, &slow]);
    let _held = permit(&both, 1, 1, at(0));
    let refusal = refused(check(&both, 1, 1, at(0)));
    assert_eq!((refusal.limit, refusal.why, refusal.retry_at), (1, RefusalReason::Rate, Some(at(10_000))));
    let _ = queued(check(&both, 1, 1, at(5_000)));
}

#[test]
fn in_shadow_mode_permits_count_and_refuse_nobody() {
    let (limit, policy) = one(LimitSpec { mode: Mode::Shadow, ..at_once(1, 0) });
    let mut report = Report::default();
    let Verdict::Admitted(held) = policy.check(&asks(1, 1), Span::MAX, at(0), &mut report) else { panic!() };
    assert_eq!(report.shadow_refusals().count(), 0);
    let Verdict::Admitted(beyond) = policy.check(&asks(1, 1), Span::MAX, at(0), &mut report) else { panic!() };
    assert_eq!((report.shadow_refusals().count(), beyond.is_empty()), (1, true), "it was not counted");
    drop((held, beyond));
    let _ = policy.check(&asks(1, 1), Span::MAX, at(0), &mut report);
    assert_eq!((report.shadow_refusals().count(), limit.stats().keys), (0, 1));
}

#[test]
fn two_threads_never_have_more_in_flight_than_may_be() {
    const CAP: u64 = 3;
    let (limit, policy) = one(at_once(CAP, 0));
    let (start, in_flight, passed) = (Barrier::new(2), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                start.wait();
                let mut held = Vec::new();
                for turn in 0..100_000 {
                    if let Verdict::Admitted(permit) = check(&policy, 1, 1, at(turn)) {
                        assert!(in_flight.fetch_add(1, Ordering::SeqCst) < CAP);
                        passed.fetch_add(1, Ordering::Relaxed);
                        held.push(permit);
                    }
                    if turn % 3 == 0
                        && let Some(permit) = held.pop()
                    {
                        in_flight.fetch_sub(1, Ordering::SeqCst);
                        drop(permit);
                    }
                }
                in_flight.fetch_sub(held.len() as u64, Ordering::SeqCst);
            });
        }
    });
    assert!(passed.load(Ordering::Relaxed) > 10_000);
    assert_eq!((remaining(&policy, 1, at(200_000)).0, limit.stats().waiting), (CAP, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Arrivals, ends, cancels and reloads in any order: never above the cap that is in force, first come first served,
    /// nobody is forgotten, and in the end all of it is free.
    #[test]
    fn never_more_in_flight_than_may_be(
        cap in 1u64..5,
        steps in prop::collection::vec((0u8..10, 1u64..4, 0usize..8), 1..60),
    ) {
        let (limit, policy) = one(LimitSpec { max_queue: Some(4), ..at_once(cap, 1_000_000) });
        let (mut cap, mut held, mut waiting) = (cap, Vec::<(u64, Permit)>::new(), Vec::<(u64, Waiting, u64)>::new());
        let mut now = at(0);
        for (what, cost, which) in steps {
            now = now + Span::from_millis(1);
            match what {
                0..=4 => match check(&policy, 1, cost, now) {
                    Verdict::Admitted(permit) => {
                        prop_assert!(waiting.is_empty(), "it overtook");
                        held.push((cost, permit));
                    }
                    Verdict::Queued(ticket) => {
                        let mut place = Waiting { ticket, woken: Arc::default() };
                        let is_pending = matches!(place.attempt(now), Attempt::Pending { .. });
                        prop_assert!(is_pending);
                        waiting.push((cost, place, 0));
                    }
                    Verdict::Refused(refusal) => match refusal.why {
                        RefusalReason::TooCostly => prop_assert!(cost > cap),
                        RefusalReason::QueueFull => prop_assert!(waiting.len() >= 4),
                        other => prop_assert!(false, "{other:?} cannot be"),
                    },
                },
                5..=7 if which < held.len() => drop(held.remove(which)),
                8 if which < waiting.len() => drop(waiting.remove(which)),
                9 => {
                    cap = cost;
                    let _ = limit.reconfigure(LimitSpec { max_queue: Some(4), ..at_once(cap, 1_000_000) });
                }
                _ => {}
            }
            // The task that was woken looks again, until none is woken.
            while let Some(index) = waiting.iter().position(|(_, waiting, seen)| waiting.times_woken() > *seen) {
                let (cost, place, seen) = &mut waiting[index];
                *seen = place.times_woken();
                match place.attempt(now) {
                    Attempt::Admitted(permit) => {
                        prop_assert_eq!(index, 0, "first come first served");
                        held.push((*cost, permit));
                        waiting.remove(0);
                        let in_flight: u64 = held.iter().map(|(cost, _)| cost).sum();
                        prop_assert!(in_flight <= cap, "{} of {}", in_flight, cap);
                    }
                    Attempt::Pending { wake_at } => prop_assert!(wake_at > now),
                    Attempt::TimedOut(_) => {
                        prop_assert!(*cost > cap, "only who can never get in");
                        waiting.remove(index);
                    }
                }
            }
            if let Some((cost, _, _)) = waiting.first() {
                let in_flight: u64 = held.iter().map(|(cost, _)| cost).sum();
                prop_assert!(in_flight + cost > cap, "there is room for the head, and nobody told it");
            }
        }
        drop((held, waiting));
        prop_assert_eq!(remaining(&policy, 1, now).0, cap);
        prop_assert_eq!(limit.stats().waiting, 0);
    }
}

#[test]
fn nobody_is_told_when_others_end_while_somebody_waits() {
    let algorithm = Algorithm::Concurrency(Concurrency::new(1).unwrap());
    let (_, policy) = one(LimitSpec { algorithm, max_wait: Span::from_secs(4), max_queue: Some(1), ..spec("1/s") });
    let mut report = Report::default();
    let Verdict::Admitted(_permit) = policy.check(&asks(1, 1), Span::MAX, at(0), &mut report) else { panic!() };
    let Verdict::Queued(_ticket) = policy.check(&asks(1, 1), Span::MAX, at(0), &mut report) else { panic!() };
    assert_eq!((report.lines()[0].remaining, report.lines()[0].reset), (0, None));
    let Verdict::Refused(_) = policy.check(&asks(1, 1), Span::MAX, at(1), &mut report) else { panic!() };
    assert_eq!((report.lines()[0].remaining, report.lines()[0].reset), (0, None));
}
