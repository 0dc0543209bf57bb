use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use loom::thread;
use sluicegate_limiter::{LimitSpec, Permit, Policy};

use super::{Waiting, admitted, ask, in_flight, key, one, patient, room, second};

/// How many run, as those who run know it. No lock of loom's: it watches and takes no part.
#[derive(Clone, Default)]
struct Running(Arc<AtomicUsize>);

impl Running {
    fn begin(&self, permit: Permit, most: usize) -> Permit {
        let running = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        assert!(running <= most, "{running} in flight");
        permit
    }

    fn end(&self, permit: Permit) {
        self.0.fetch_sub(1, Ordering::SeqCst);
        drop(permit);
    }

    fn run_once(&self, policy: &Arc<Policy>, most: usize) {
        if let Some(permit) = admitted(ask(policy, key(0, 0), second(0))) {
            let permit = self.begin(permit, most);
            self.end(permit);
        }
    }
}

#[test]
fn never_more_are_in_flight_than_the_cap() {
    loom::model(|| {
        const MOST: usize = 2;
        let (_, policy) = one(in_flight(MOST as u64));
        let running = Running::default();
        let permit = running.begin(admitted(ask(&policy, key(0, 0), second(0))).unwrap(), MOST);
        let ends = {
            let running = running.clone();
            thread::spawn(move || running.end(permit))
        };
        let runs = {
            let (running, policy) = (running.clone(), Arc::clone(&policy));
            thread::spawn(move || {
                running.run_once(&policy, MOST);
                running.run_once(&policy, MOST);
            })
        };
        let kept = admitted(ask(&policy, key(0, 0), second(0))).map(|permit| running.begin(permit, MOST));
        ends.join().unwrap();
        runs.join().unwrap();
        assert_eq!(room(&policy, key(0, 0), second(0)), MOST - usize::from(kept.is_some()), "all were given back");
    });
}

#[test]
fn a_permit_that_is_given_back_lets_the_head_in_and_nobody_else() {
    loom::model(|| {
        let (limit, policy) = one(patient(in_flight(1)));
        let permit = admitted(ask(&policy, key(0, 0), second(0))).unwrap();
        let head = Waiting::new(ask(&policy, key(0, 0), second(0)));
        let ends = thread::spawn(move || drop(permit));
        let arrives = {
            let policy = Arc::clone(&policy);
            thread::spawn(move || assert!(admitted(ask(&policy, key(0, 0), second(0))).is_none(), "overtakes"))
        };
        let permit = head.get_in(second(0));
        ends.join().unwrap();
        arrives.join().unwrap();
        assert_eq!(room(&policy, key(0, 0), second(0)), 0);
        drop(permit);
        assert_eq!((limit.stats().waiting, room(&policy, key(0, 0), second(0))), (0, 1));
    });
}

/// Its bell may be the one that rang.
#[test]
fn a_head_that_cancels_as_a_permit_comes_back_passes_it_on() {
    loom::model(|| {
        let (limit, policy) = one(patient(in_flight(1)));
        let permit = admitted(ask(&policy, key(0, 0), second(0))).unwrap();
        let [head, next] = [(); 2].map(|()| Waiting::new(ask(&policy, key(0, 0), second(0))));
        let cancels = head.cancels(second(0));
        let ends = thread::spawn(move || drop(permit));
        drop(next.get_in(second(0)));
        ends.join().unwrap();
        cancels.join().unwrap();
        assert_eq!((limit.stats().waiting, room(&policy, key(0, 0), second(0))), (0, 1));
    });
}

/// The table has one place, so that each of the two keys takes that of the other.
#[test]
fn what_a_forgotten_record_took_is_not_given_back_to_the_next() {
    loom::model(|| {
        let (limit, policy) = one(LimitSpec { max_keys: 1, ..in_flight(1) });
        let old = admitted(ask(&policy, key(0, 0), second(0))).unwrap();
        let ends = thread::spawn(move || drop(old));
        let other = admitted(ask(&policy, key(0, 1), second(0)));
        let new = admitted(ask(&policy, key(0, 0), second(0)));
        assert!(other.is_some() && new.is_some(), "the place is always to be had");
        ends.join().unwrap();
        assert_eq!(room(&policy, key(0, 0), second(0)), 0, "the new one is in flight");
        drop((other, new));
        assert_eq!(limit.stats().keys, 1);
        assert_eq!(room(&policy, key(0, 0), second(0)), 1);
    });
}
