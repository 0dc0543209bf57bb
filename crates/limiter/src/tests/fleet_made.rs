//! Keys that have no place in the store, since too many were made in it, on a driven clock.

use std::collections::HashSet;

use super::fleet_outage::{all_messages, leased};
use super::*;

/// One of two gateways that makes at most a hundred keys in the store; one client takes half of them and one more.
fn hundred(rate: &str) -> (Arc<Limit>, Arc<Policy>) {
    let sharing = Some(Sharing::Store(leased(OnFailure::Closed)));
    let (limit, policy) = one(LimitSpec { sharing, max_keys: 100, ..spec(rate) });
    limit.set_view(FleetView { live: 2, is_known: true, is_up: true });
    (limit, policy)
}

/// The store answers all that the gateway has to say, from empty accounts. The keys that it spoke of.
fn talk(limit: &Limit, now: Tick) -> Vec<Wanted> {
    limit.begin(Turn::All);
    let wanted = all_messages(limit, now);
    for wanted in &wanted {
        let answer = Account::new(&limit.spec().algorithm).settle(&wanted.settle, LEASE_HOLD, now);
        limit.answered(wanted, now, &answer, now);
    }
    wanted
}

#[test]
fn keys_that_are_counted_once_they_are_answered_fill_the_store_no_more_than_others() {
    for (counting, spent) in [
        (Counting::AtOnce, Spent::AsAsked),
        (Counting::Later, Spent::AsAsked),
        (Counting::Later, Spent::Cost(7)),
        (Counting::Corrected, Spent::Cost(7)),
    ] {
        let (limit, policy) = hundred("10/h");
        let mut made = HashSet::new();
        for name in 0..1_500 {
            let ask = Ask { key: Some(key(name)), cost: 1, counting, ..Ask::default() };
            let Verdict::Admitted(mut permit) = policy.check(&[ask], Span::MAX, at(name), &mut Report::default())
            else {
                panic!("{name} is not admitted")
            };
            permit.settle(at(name), |_, _| spent);
            made.extend(talk(&limit, at(name)).iter().map(|wanted| wanted.key));
        }
        assert_eq!(made.len(), 51, "{counting:?}, {spent:?}");
        let alone = limit.outstanding(at(1_500)).alone;
        let each = if spent == Spent::AsAsked { 1 } else { 7 };
        assert_eq!(alone, each * 1_449, "{counting:?}, {spent:?}");
    }
}

/// A key that is counted once its request is answered has its part of the limit alone, and no more.
#[test]
fn a_key_without_a_place_is_limited_although_it_is_counted_later() {
    let (limit, policy) = hundred("10/h");
    for name in 0..60 {
        assert!(admitted(&policy, name, at(0)));
    }
    let (mut passed, before) = (0, limit.outstanding(at(0)).alone);
    for millis in 1..40 {
        let ask = Ask { key: Some(key(99)), cost: 1, counting: Counting::Later, ..Ask::default() };
        if let Verdict::Admitted(mut permit) = policy.check(&[ask], Span::MAX, at(millis), &mut Report::default()) {
            permit.settle(at(millis), |_, _| Spent::AsAsked);
            passed += 1;
        }
    }
    assert_eq!((passed, limit.outstanding(at(40)).alone - before), (5, 5));
}

#[test]
fn a_key_that_had_no_place_has_one_once_there_is_and_takes_its_count_along() {
    let (limit, policy) = hundred("8/s");
    for name in 0..60 {
        assert!(admitted(&policy, name, at(0)));
    }
    talk(&limit, at(1));
    let before = limit.outstanding(at(1)).alone;
    let pass = |tries, millis| (0..tries).filter(|_| admitted(&policy, 99, at(millis))).count();
    assert_eq!(pass(20, 10), 4, "half of it, alone");
    assert_eq!(pass(1, 1_030), 1, "too many keys of the window before");
    assert_eq!(pass(20, 1_500), 3);
    assert!(talk(&limit, at(1_501)).iter().all(|wanted| wanted.key != key(99)));
    // There are places again: the store counts it, beginning with the three of less than a second ago.
    let mut waiting = queued(check(&policy, 99, 1, at(2_040)));
    let _ = waiting.wake_at(at(2_040));
    let wanted = all_messages(&limit, at(2_040));
    let [Wanted { key: asked, settle, .. }] = wanted[..] else { panic!("{wanted:?}") };
    assert_eq!((asked, settle.spent, settle.need), (key(99), 3, 1));
    let answer = Account::new(&limit.spec().algorithm).settle(&settle, LEASE_HOLD, at(2_040));
    assert_eq!(answer.remaining[0] + answer.granted, 5);
    limit.answered(&wanted[0], at(2_040), &answer, at(2_041));
    assert!(matches!(waiting.attempt(at(2_041)), Attempt::Admitted(_)));
    assert_eq!(limit.outstanding(at(2_041)).alone - before, 8);
}
