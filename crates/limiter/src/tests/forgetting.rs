//! Single keys are reset, and let out of a block.

use super::*;

fn why(policy: &Arc<Policy>, name: u64, now: Tick) -> Option<(RefusalReason, Option<Tick>)> {
    match check(policy, name, 1, now) {
        Verdict::Refused(refusal) => Some((refusal.why, refusal.retry_at)),
        _ => None,
    }
}

fn blocking(rate: &str) -> LimitSpec {
    let penalty = Penalty::new(2, Span::from_secs(60), Span::from_secs(600)).unwrap();
    LimitSpec { penalty: Some(penalty), ..spec(rate) }
}

#[test]
fn a_key_that_is_reset_begins_anew_and_others_go_on() {
    let (limit, policy) = one(spec("2/1h"));
    for name in [1, 2] {
        assert!(admitted(&policy, name, at(0)) && admitted(&policy, name, at(1)));
        assert!(!admitted(&policy, name, at(2)));
    }
    assert!(limit.forget_key(key(1), at(3)));
    assert_eq!(limit.stats().keys, 1);
    assert!(!limit.forget_key(key(1), at(3)), "there is nothing any more");
    assert!(!limit.forget_key(key(7), at(3)), "nor was there ever");
    assert!(admitted(&policy, 1, at(4)) && admitted(&policy, 1, at(4)));
    assert!(!admitted(&policy, 1, at(5)) && !admitted(&policy, 2, at(5)));
    assert_eq!(limit.stats().keys, 2);
}

#[test]
fn a_block_of_a_penalty_is_told_from_a_refusal_and_ends_when_it_is_told_to() {
    let (limit, policy) = one(blocking("2/1h"));
    assert!(admitted(&policy, 1, at(0)) && admitted(&policy, 1, at(0)));
    assert_eq!(why(&policy, 1, at(1)), Some((RefusalReason::Rate, Some(at(3_600_000)))));
    assert_eq!(limit.blocked_until(key(1), at(1)), None);
    assert_eq!(why(&policy, 1, at(2)).map(|(why, _)| why), Some(RefusalReason::Rate), "it begins the block");
    assert_eq!(limit.blocked_until(key(1), at(2)), Some(at(600_002)));
    assert_eq!(why(&policy, 1, at(3)).map(|(why, _)| why), Some(RefusalReason::Blocked));
    assert!(limit.end_block(key(1), at(4)) && !limit.end_block(key(1), at(4)));
    assert!(!limit.end_block(key(2), at(4)), "of a key that nobody knows");
    assert_eq!(limit.blocked_until(key(1), at(4)), None);
    assert_eq!(
        why(&policy, 1, at(5)),
        Some((RefusalReason::Rate, Some(at(3_600_000)))),
        "what it has used stays counted"
    );
    assert_eq!(why(&policy, 1, at(6)).map(|(why, _)| why), Some(RefusalReason::Rate), "and refusals are counted anew");
    assert_eq!(why(&policy, 1, at(7)).map(|(why, _)| why), Some(RefusalReason::Blocked));
    assert!(limit.forget_key(key(1), at(8)));
    assert!(admitted(&policy, 1, at(9)), "a reset ends the block, too");
}

#[test]
fn a_block_is_named_by_the_limit_that_blocks() {
    let (hard, plain) = (Limit::new(blocking("1/1h")), Limit::new(spec("5/1h")));
    let both = policy(&[&plain, &hard]);
    let asks = [Ask { key: Some(key(1)), cost: 1, counting: Counting::AtOnce, ..Ask::default() }; 2];
    let mut report = Report::default();
    let mut check = |now| match both.check(&asks, Span::MAX, now, &mut report) {
        Verdict::Refused(refusal) => Some((refusal.limit, refusal.why)),
        _ => None,
    };
    assert_eq!(
        [check(at(0)), check(at(1)), check(at(2))],
        [None, Some((1, RefusalReason::Rate)), Some((1, RefusalReason::Rate))]
    );
    assert_eq!(check(at(3)), Some((1, RefusalReason::Blocked)));
    let Peeked::Refused(peeked) = both.peek(&asks, Span::MAX, at(4), &mut Report::default()) else { panic!("blocked") };
    assert_eq!((peeked.limit, peeked.why), (1, RefusalReason::Blocked), "who explains says the same");
}

#[test]
fn who_waits_is_woken_by_a_reset() {
    let (limit, policy) = one(LimitSpec { max_wait: Span::from_secs(100), ..spec("1/1m") });
    assert!(admitted(&policy, 1, at(0)));
    let mut first = queued(check(&policy, 1, 1, at(0)));
    assert_eq!(first.wake_at(at(0)), at(60_000));
    assert!(limit.forget_key(key(1), at(10)));
    assert_eq!(first.times_woken(), 1);
    assert!(matches!(first.attempt(at(10)), Attempt::Admitted(_)));
    assert!(!admitted(&policy, 1, at(11)), "it counts");
}

#[test]
fn what_is_in_flight_is_forgotten_and_gives_nothing_back() {
    let algorithm = Algorithm::Concurrency(Concurrency::new(1).unwrap());
    let (limit, policy) = one(LimitSpec { algorithm, ..spec("1/s") });
    let Verdict::Admitted(first) = check(&policy, 1, 1, at(0)) else { panic!("the first") };
    assert!(!admitted(&policy, 1, at(1)));
    assert!(limit.forget_key(key(1), at(2)));
    let Verdict::Admitted(second) = check(&policy, 1, 1, at(3)) else { panic!("forgotten") };
    drop(first);
    assert!(!admitted(&policy, 1, at(4)), "the place of the second is not given back by the first");
    drop(second);
    assert!(admitted(&policy, 1, at(5)));
}
