use std::sync::Arc;

use loom::thread;
use sluicegate_limiter::{Limit, Policy, Verdict};

use super::{Waiting, admitted, ask, key, one, patient, per_second, room, second};

/// A limit of which nothing is left in the first second, and those who wait for the next.
fn queue<const N: usize>(most: u64) -> (Arc<Limit>, Arc<Policy>, [Waiting; N]) {
    let (limit, policy) = one(patient(per_second(most)));
    for _ in 0..most {
        assert!(admitted(ask(&policy, key(0, 0), second(0))).is_some());
    }
    let waiting = [(); N].map(|()| Waiting::new(ask(&policy, key(0, 0), second(0))));
    (limit, policy, waiting)
}

/// At the end nobody waits, and so many more get in.
fn ends_with(left: usize, limit: &Limit, policy: &Arc<Policy>) {
    assert_eq!(limit.stats().waiting, 0);
    assert_eq!(room(policy, key(0, 0), second(1)), left);
}

#[test]
fn a_head_that_cancels_while_the_next_listens_wakes_it() {
    loom::model(|| {
        let (limit, policy, [head, next]) = queue(1);
        let cancels = head.cancels(second(0));
        drop(next.get_in(second(1)));
        cancels.join().unwrap();
        ends_with(0, &limit, &policy);
    });
}

#[test]
fn two_that_cancel_at_once_wake_the_third() {
    loom::model(|| {
        let (limit, policy, [head, middle, last]) = queue(1);
        let cancels = [head, middle].map(|waiting| waiting.cancels(second(0)));
        drop(last.get_in(second(1)));
        for thread in cancels {
            thread.join().unwrap();
        }
        ends_with(0, &limit, &policy);
    });
}

/// The one in the middle becomes the head, is woken and gives up, in whichever order.
#[test]
fn one_that_cancels_as_its_turn_comes_passes_it_on() {
    loom::model(|| {
        let (limit, policy, [head, middle, last]) = queue(3);
        let cancels = middle.cancels(second(0));
        let commits = thread::spawn(move || drop(head.get_in(second(1))));
        drop(last.get_in(second(1)));
        commits.join().unwrap();
        cancels.join().unwrap();
        ends_with(1, &limit, &policy);
    });
}

#[test]
fn two_that_are_due_at_once_both_get_in() {
    loom::model(|| {
        let (limit, policy, [head, next]) = queue(2);
        let commits = thread::spawn(move || drop(head.get_in(second(1))));
        drop(next.get_in(second(1)));
        commits.join().unwrap();
        ends_with(0, &limit, &policy);
    });
}

#[test]
fn an_arrival_never_overtakes_one_who_is_due() {
    loom::model(|| {
        let (limit, policy, [head]) = queue(1);
        let arrivals = Arc::clone(&policy);
        let arrives = thread::spawn(move || {
            let verdict = ask(&arrivals, key(0, 0), second(1));
            assert!(matches!(verdict, Verdict::Queued(_)), "{verdict:?} before the one who waited");
        });
        drop(head.get_in(second(1)));
        arrives.join().unwrap();
        ends_with(0, &limit, &policy);
    });
}
