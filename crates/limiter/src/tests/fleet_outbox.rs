//! The messages of a shared limit when there are more than can be sent, and when the store does not take them, on a driven
//! clock.

use std::collections::HashSet;

use super::fleet_outage::{Fleet, all_messages, bucket, leased, shared};
use super::*;

const HOT: u64 = 0;

/// One of two gateways, with a large table: c is 12.
fn hundred() -> (Arc<Limit>, Arc<Policy>) {
    let sharing = Some(Sharing::Store(leased(OnFailure::Fair)));
    let (limit, policy) = one(LimitSpec { sharing, max_keys: 10_000, ..spec("100/s") });
    limit.set_view(FleetView { live: 2, is_known: true, is_up: true });
    (limit, policy)
}

fn unanswered(limit: &Limit) -> u64 {
    limit.outstanding(at(0)).unanswered
}

/// Somebody makes up keys, faster than they can be reported.
#[test]
fn a_key_that_asks_is_not_held_up_by_reports_of_others() {
    let (limit, policy) = hundred();
    for _ in 0..6 {
        assert!(admitted(&policy, HOT, at(0)), "on credit");
    }
    for name in 1..=1_000 {
        assert!(admitted(&policy, name, at(0)));
    }
    limit.begin(Turn::All);
    let mut on_their_way = Vec::new();
    limit.collect(Collect::Reports, (16, &|_| true), at(1), &mut on_their_way);
    assert_eq!(on_their_way.len(), 16);
    assert!(on_their_way.iter().all(|wanted| wanted.key != key(HOT)), "others are before it");
    let mut waiting = queued(check(&policy, HOT, 7, at(1)));
    let _ = waiting.wake_at(at(1));
    let mut asks = Vec::new();
    limit.collect(Collect::Asks, (128, &|_| true), at(1), &mut asks);
    let settle = asks[0].settle;
    assert_eq!((asks.len(), asks[0].key, settle.spent, settle.need), (1, key(HOT), 6, 7));
    let answer = Account::new(&limit.spec().algorithm).settle(&settle, LEASE_HOLD, at(1));
    limit.answered(&asks[0], at(1), &answer, at(1));
    assert_eq!(waiting.times_woken(), 1);
    assert!(matches!(waiting.attempt(at(1)), Attempt::Admitted(_)));
    assert_eq!(unanswered(&limit), 0);
}

/// Every key is reported, once, however many more come in the meantime, in whatever part of the table it lies.
#[test]
fn what_cannot_be_sent_at_once_stays_listed_and_nobody_is_passed_over() {
    let (limit, policy) = hundred();
    for name in 1..=1_000 {
        assert!(admitted(&policy, name, at(0)));
    }
    let (mut reported, mut newcomers) = (HashSet::new(), 1_000..);
    let answer = SettleAnswer { remaining: [99, 0, 0, 0], ..SettleAnswer::default() };
    // Between two batches more keys come than one of them has room for, and a round begins.
    for _ in 0..200 {
        limit.begin(Turn::All);
        let mut wanted = Vec::new();
        limit.collect(Collect::Reports, (16, &|_| true), at(1), &mut wanted);
        assert!(wanted.len() <= 16);
        for wanted in &wanted {
            assert!(reported.insert(wanted.key.bits()), "once");
            assert_eq!(wanted.settle.spent, 1);
            limit.answered(wanted, at(1), &answer, at(1));
        }
        for name in newcomers.by_ref().take(20) {
            assert!(admitted(&policy, name + 1, at(1)));
        }
    }
    let left = (1..=1_000).filter(|name| !reported.contains(&key(*name).bits())).count();
    assert_eq!(left, 0, "of those who were there first");
}

/// One client makes up keys, and others come with theirs.
#[test]
fn made_up_keys_do_not_fill_the_store() {
    let sharing = Some(Sharing::Store(leased(OnFailure::Closed)));
    let (limit, policy) = one(LimitSpec { sharing, max_keys: 100, ..spec("100/s") });
    limit.set_view(FleetView { live: 2, is_known: true, is_up: true });
    let passes = |name, client| {
        let ask = [Ask { client, ..asks(name, 1)[0] }];
        matches!(policy.check(&ask, Span::MAX, at(0), &mut Report::default()), Verdict::Admitted(_))
    };
    let reported = |most: usize| {
        limit.begin(Turn::All);
        let keys: HashSet<u64> = all_messages(&limit, at(1)).iter().map(|wanted| wanted.key.bits()).collect();
        assert!(keys.len() <= most, "{} of {most}", keys.len());
        keys
    };
    assert!((1..=5_000).all(|name| passes(name, 1)), "it is counted, if not in the store");
    let first = reported(51);
    assert_eq!(first.len(), 51);
    // The table has forgotten keys since, so new ones ask the store.
    let asking: Vec<_> = (2..10)
        .map(|client| {
            let ask = [Ask { client, ..asks(10_000 + u64::from(client), 1)[0] }];
            queued(policy.check(&ask, Span::MAX, at(0), &mut Report::default()))
        })
        .collect();
    let others = reported(49);
    assert!((2..10u64).all(|client| others.contains(&key(10_000 + client).bits())), "places are left for them");
    drop(asking);
    // Alone it has its part of the limit, by whatever `on_failure`.
    let passed = (0..200).filter(|_| passes(5_000, 1)).count();
    assert_eq!(passed, 49, "half, and one was counted before");
}

#[test]
fn whoever_asks_a_store_that_refuses_to_answer_is_decided_for_at_once() {
    for (on_failure, passes) in [(OnFailure::Fair, true), (OnFailure::Closed, false)] {
        let mut fleet = Fleet::new(1, &bucket("4/s", 4), shared(on_failure));
        let (limit, policy) = (Arc::clone(&fleet.gateways[0].0), Arc::clone(&fleet.gateways[0].1));
        let mut line: Vec<_> = (0..2).map(|_| queued(check(&policy, 1, 1, at(0)))).collect();
        for waiting in &mut line {
            let _ = waiting.wake_at(at(0));
        }
        let wanted = all_messages(&limit, at(0));
        assert_eq!(wanted.len(), 1);
        limit.unanswered(&wanted[0], true, at(1));
        for waiting in &mut line {
            assert_eq!(waiting.times_woken(), 1);
            match waiting.attempt(at(1)) {
                Attempt::Admitted(_) => assert!(passes),
                Attempt::TimedOut(refusal) => assert_eq!((passes, refusal.why), (false, RefusalReason::StoreDown)),
                Attempt::Pending { .. } => panic!("it waits for nothing"),
            }
        }
        assert_eq!(unanswered(&limit), 2);
        assert_eq!(limit.outstanding(at(1)).waiting, 0);
        // The next one asks again, and is answered.
        assert!(fleet.passes(0, at(2)));
        assert_eq!(unanswered(&limit), 2);
    }
}

/// The answer did not come, and nobody knows why: it is asked again, for those who still wait.
#[test]
fn a_question_without_an_answer_is_asked_again_at_once() {
    let mut fleet = Fleet::new(1, &bucket("4/s", 4), shared(OnFailure::Closed));
    let (limit, policy) = (Arc::clone(&fleet.gateways[0].0), Arc::clone(&fleet.gateways[0].1));
    let mut waiting = queued(check(&policy, 1, 1, at(0)));
    let _ = waiting.wake_at(at(0));
    assert!(limit.take_urgent());
    let wanted = all_messages(&limit, at(0));
    let heard = Arc::new(Woken::default());
    assert!(!limit.listen(&Waker::from(Arc::clone(&heard))));
    limit.unanswered(&wanted[0], false, at(5));
    assert_eq!(heard.0.load(Ordering::SeqCst), 1, "the bell is rung");
    assert_eq!(fleet.talk(0, at(6)), 1);
    assert!(matches!(waiting.attempt(at(6)), Attempt::Admitted(_)));
}
