use std::sync::Arc;

use loom::thread;
use sluicegate_limiter::{Attempt, Limit, LimitSpec, Mode, Policy, Reconfigured};

use super::{Waiting, admitted, ask, key, one, patient, per_second, rate, room, second};

fn full(spec: LimitSpec) -> (Arc<Limit>, Arc<Policy>) {
    let (limit, policy) = one(spec);
    while admitted(ask(&policy, key(0, 0), second(0))).is_some() {}
    (limit, policy)
}

/// The records are rebuilt for another window, and one of them is idle by then.
#[test]
fn a_check_during_a_reload_is_counted_once() {
    loom::model(|| {
        let (limit, policy) = one(per_second(1));
        assert!(admitted(ask(&policy, key(0, 1), second(0))).is_some());
        let reloads = {
            let limit = Arc::clone(&limit);
            thread::spawn(move || limit.reconfigure(rate("4/2s")))
        };
        assert!(admitted(ask(&policy, key(0, 0), second(4))).is_some(), "there is room before and after");
        assert_eq!(reloads.join().unwrap(), Reconfigured::Rescaled);
        assert_eq!(room(&policy, key(0, 0), second(4)), 3);
        let stats = limit.stats();
        assert_eq!(stats.keys + stats.evicted_idle, 2, "{stats:?}");
        limit.release();
        assert_eq!(limit.stats().keys, 0);
    });
}

#[test]
fn two_reloads_at_once_leave_all_shards_alike() {
    loom::model(|| {
        let (limit, policy) = one(LimitSpec { max_keys: 10_000, ..per_second(1) });
        let reloads = [2, 3].map(|most| {
            let limit = Arc::clone(&limit);
            thread::spawn(move || limit.reconfigure(LimitSpec { max_keys: 10_000, ..per_second(most) }))
        });
        assert_eq!(reloads.map(|thread| thread.join().unwrap()), [Reconfigured::Changed; 2]);
        let rooms = [0, 1].map(|shard| room(&policy, key(shard, 0), second(0)));
        assert!(rooms == [2, 2] || rooms == [3, 3], "{rooms:?}");
        assert_eq!(limit.spec().algorithm, per_second(rooms[0] as u64).algorithm);
    });
}

#[test]
fn a_limit_that_closes_ends_who_waits_and_keeps_no_key() {
    loom::model(|| {
        let (limit, policy) = full(patient(per_second(1)));
        let waiting = Waiting::new(ask(&policy, key(0, 0), second(0)));
        let closes = {
            let limit = Arc::clone(&limit);
            thread::spawn(move || limit.close())
        };
        let arrives = {
            let policy = Arc::clone(&policy);
            thread::spawn(move || drop(ask(&policy, key(1, 0), second(0))))
        };
        let end = waiting.end(second(0));
        assert!(matches!(end, Attempt::TimedOut(_)), "{end:?}");
        closes.join().unwrap();
        arrives.join().unwrap();
        let stats = limit.stats();
        assert_eq!((stats.keys, stats.waiting), (0, 0));
    });
}

#[test]
fn a_limit_that_is_removed_lets_all_in_who_wait() {
    loom::model(|| {
        let (limit, policy) = full(patient(per_second(1)));
        let [head, next] = [(); 2].map(|()| Waiting::new(ask(&policy, key(0, 0), second(0))));
        let removes = {
            let limit = Arc::clone(&limit);
            thread::spawn(move || limit.release())
        };
        let commits = thread::spawn(move || drop(head.get_in(second(0))));
        drop(next.get_in(second(0)));
        removes.join().unwrap();
        commits.join().unwrap();
        let stats = limit.stats();
        assert_eq!((stats.keys, stats.waiting), (0, 0));
    });
}

/// The one who is woken by the reload cancels instead.
#[test]
fn a_raised_limit_wakes_the_next_if_the_head_cancels() {
    loom::model(|| {
        let (limit, policy) = full(patient(per_second(1)));
        let [head, next] = [(); 2].map(|()| Waiting::new(ask(&policy, key(0, 0), second(0))));
        let cancels = head.cancels(second(0));
        let raises = {
            let limit = Arc::clone(&limit);
            thread::spawn(move || limit.reconfigure(patient(per_second(2))))
        };
        drop(next.get_in(second(0)));
        assert_eq!(raises.join().unwrap(), Reconfigured::Changed);
        cancels.join().unwrap();
        assert_eq!((limit.stats().waiting, room(&policy, key(0, 0), second(0))), (0, 0));
    });
}

#[test]
fn a_limit_that_is_removed_and_put_back_at_once_is_one_or_the_other() {
    loom::model(|| {
        let (limit, policy) = full(per_second(1));
        let removes = {
            let limit = Arc::clone(&limit);
            thread::spawn(move || limit.release())
        };
        let off = limit.reconfigure(LimitSpec { mode: Mode::Off, ..per_second(1) });
        removes.join().unwrap();
        assert!(matches!(off, Reconfigured::Changed | Reconfigured::Same));
        assert!(admitted(ask(&policy, key(0, 0), second(0))).is_some());
    });
}
