use std::sync::Arc;

use loom::thread;
use sluicegate_limiter::Limit;

use super::{admitted, ask, in_flight, key, per_second, policy, refused, room, second};

#[test]
fn two_limits_in_either_order_do_not_wait_for_each_other() {
    loom::model(|| {
        let (a, b) = (Limit::new(per_second(1)), Limit::new(per_second(2)));
        let (forth, back) = (policy(&[&a, &b]), policy(&[&b, &a]));
        let asks = thread::spawn(move || admitted(ask(&back, key(0, 0), second(0))).is_some());
        let here = admitted(ask(&forth, key(0, 0), second(0))).is_some();
        assert!(here ^ asks.join().unwrap(), "one of the two");
        assert_eq!(room(&policy(&[&a]), key(0, 0), second(0)), 0);
        assert_eq!(room(&policy(&[&b]), key(0, 0), second(0)), 1, "the other took nothing");
    });
}

/// The first limit is full. Whoever asks both is refused, and whoever asks the second must never notice.
#[test]
fn nobody_is_refused_for_a_count_that_is_about_to_be_undone() {
    loom::model(|| {
        let (full, free) = (Limit::new(per_second(1)), Limit::new(per_second(1)));
        let (both, other) = (policy(&[&full, &free]), policy(&[&free]));
        assert!(admitted(ask(&policy(&[&full]), key(0, 0), second(0))).is_some());
        let asks = thread::spawn(move || refused(&ask(&both, key(0, 0), second(0))).map(|refusal| refusal.limit));
        assert!(admitted(ask(&other, key(0, 0), second(0))).is_some(), "there was room all the time");
        assert_eq!(asks.join().unwrap(), Some(0));
    });
}

/// A permit gives back to two limits, one after the other, while others take both at once.
#[test]
fn a_permit_of_two_limits_comes_back_whole() {
    loom::model(|| {
        let (a, b) = (Limit::new(in_flight(1)), Limit::new(in_flight(1)));
        let (forth, back) = (policy(&[&a, &b]), policy(&[&b, &a]));
        let permit = admitted(ask(&forth, key(0, 0), second(0))).unwrap();
        let ends = thread::spawn(move || drop(permit));
        let asks = {
            let back = Arc::clone(&back);
            thread::spawn(move || admitted(ask(&back, key(0, 0), second(0))))
        };
        let here = admitted(ask(&forth, key(0, 0), second(0)));
        ends.join().unwrap();
        let kept: Vec<_> = [here, asks.join().unwrap()].into_iter().flatten().collect();
        assert!(kept.len() <= 1, "both limits let one in");
        for limit in [&a, &b] {
            assert_eq!(room(&policy(&[limit]), key(0, 0), second(0)), 1 - kept.len());
        }
        drop(kept);
        assert!(admitted(ask(&back, key(0, 0), second(0))).is_some());
    });
}
