use std::sync::Arc;

use loom::thread;
use sluicegate_limiter::{Fingerprint, Limit, LimitSpec, OnFull, Policy, Reconfigured};

use super::{Waiting, admitted, ask, key, one, patient, per_second, room, second};

/// A limit of two shards, with fewer keys than two shards are made for: their number stays when the bound is lowered.
fn two_shards(max_keys: u64, on_full: OnFull) -> (Arc<Limit>, Arc<Policy>) {
    let spec = LimitSpec { on_full, ..per_second(2) };
    // 24 bytes a key, 7/10 full, 256 KiB a shard.
    let (limit, policy) = one(LimitSpec { max_keys: 10_000, ..spec.clone() });
    assert_eq!(limit.reconfigure(LimitSpec { max_keys, ..spec }), Reconfigured::Changed);
    (limit, policy)
}

/// Whether one of two is left to a key, as it has to be if it was admitted once and is still known; or two.
fn counted_once(policy: &Arc<Policy>, key: Fingerprint) -> bool {
    room(policy, key, second(0)) == 1
}

/// Checks that a limit holds as many keys as it says: its tables are emptied one by one, and nothing is left.
fn empties(limit: &Limit) {
    limit.release();
    assert_eq!(limit.stats().keys, 0, "a key was counted twice, or not at all");
}

/// Two keys of one shard come at once, and there is one place.
#[test]
fn two_new_keys_of_a_shard_share_its_one_place_in_turn() {
    loom::model(|| {
        let (limit, policy) = one(LimitSpec { max_keys: 1, ..per_second(2) });
        let comes = {
            let policy = Arc::clone(&policy);
            thread::spawn(move || admitted(ask(&policy, key(0, 1), second(0))).is_some())
        };
        let here = admitted(ask(&policy, key(0, 0), second(0))).is_some();
        assert!(comes.join().unwrap() && here);
        let stats = limit.stats();
        assert_eq!((stats.keys, stats.evicted_live), (1, 1));
        empties(&limit);
    });
}

/// Two keys of two shards come at once: both may see the last place free, and then each has one.
#[test]
fn the_bound_is_exceeded_by_no_more_than_those_who_come_at_once() {
    loom::model(|| {
        let (limit, policy) = two_shards(1, OnFull::Refuse);
        let comes = {
            let policy = Arc::clone(&policy);
            thread::spawn(move || admitted(ask(&policy, key(1, 0), second(0))).is_some())
        };
        let here = admitted(ask(&policy, key(0, 0), second(0))).is_some();
        let both = [here, comes.join().unwrap()];
        let let_in = both.iter().filter(|came| **came).count() as u64;
        let stats = limit.stats();
        assert!(let_in >= 1, "the first one finds the place free");
        assert_eq!((stats.keys, stats.refused_full), (let_in, 2 - let_in));
        for (shard, came) in (0..).zip(both) {
            assert!(!came || counted_once(&policy, key(shard, 0)), "nobody is evicted");
        }
        assert!(admitted(ask(&policy, key(0, 1), second(0))).is_none(), "from then on it is full");
        empties(&limit);
    });
}

/// Each thread brings two keys of both shards, the other way round: one evicts what the other has just counted.
#[test]
fn keys_that_evict_each_other_are_each_counted_once() {
    loom::model(|| {
        let (limit, policy) = two_shards(1, OnFull::EvictOldest);
        let comes = {
            let policy = Arc::clone(&policy);
            thread::spawn(move || [1, 0].map(|shard| admitted(ask(&policy, key(shard, 0), second(0))).is_some()))
        };
        let here = [0, 1].map(|shard| admitted(ask(&policy, key(shard, 1), second(0))).is_some());
        assert_eq!([comes.join().unwrap(), here], [[true; 2]; 2]);
        let stats = limit.stats();
        assert!((1..=3).contains(&stats.keys), "{stats:?}");
        assert_eq!(stats.keys + stats.evicted_live, 4, "each that came is there, or was forgotten");
        empties(&limit);
    });
}

/// One key is idle and its place is wanted, while it comes back itself.
#[test]
fn a_key_that_comes_back_as_its_idle_record_is_taken_is_counted_once() {
    loom::model(|| {
        let (limit, policy) = one(LimitSpec { max_keys: 2, ..per_second(2) });
        assert!(admitted(ask(&policy, key(0, 0), second(0))).is_some());
        assert!(admitted(ask(&policy, key(0, 1), second(0))).is_some());
        let comes = {
            let policy = Arc::clone(&policy);
            thread::spawn(move || admitted(ask(&policy, key(0, 2), second(5))).is_some())
        };
        assert!(admitted(ask(&policy, key(0, 0), second(5))).is_some());
        assert!(comes.join().unwrap());
        let stats = limit.stats();
        assert_eq!(stats.evicted_live, 0, "there was an idle one");
        assert_eq!(stats.keys + stats.evicted_idle, 3 + u64::from(stats.evicted_idle == 2));
        for number in [0, 2] {
            assert_eq!(room(&policy, key(0, number), second(5)), 1);
        }
        empties(&limit);
    });
}

/// A waiter keeps its place, but not its record once that is idle: another key sweeps it away as the waiter's turn comes.
#[test]
fn a_head_whose_record_is_swept_as_it_gets_in_is_counted_once() {
    loom::model(|| {
        let (limit, policy) = one(patient(per_second(1)));
        // The second one moves the hand half-way, so that the third sweeps the place of the first.
        for number in [0, 2] {
            assert!(admitted(ask(&policy, key(0, number), second(0))).is_some());
        }
        let head = Waiting::new(ask(&policy, key(0, 0), second(0)));
        let comes = {
            let policy = Arc::clone(&policy);
            thread::spawn(move || admitted(ask(&policy, key(0, 1), second(1))).is_some())
        };
        drop(head.get_in(second(1)));
        assert!(comes.join().unwrap());
        for number in [0, 1] {
            assert_eq!(room(&policy, key(0, number), second(1)), 0);
        }
        let stats = limit.stats();
        assert_eq!((stats.evicted_live, stats.waiting), (0, 0));
        empties(&limit);
    });
}
