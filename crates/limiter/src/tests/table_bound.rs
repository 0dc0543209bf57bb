use super::*;

fn bounded(rate: &str, max_keys: u64, on_full: OnFull) -> (Arc<Limit>, Arc<Policy>) {
    one(LimitSpec { max_keys, on_full, ..spec(rate) })
}

#[test]
fn a_flood_of_keys_is_held_to_the_bound() {
    let (limit, policy) = bounded("5/s", 10_000, OnFull::EvictOldest);
    for name in 0..60_000 {
        assert!(admitted(&policy, name, at(name / 100)), "{name}");
        assert!(limit.stats().keys <= 10_000);
    }
    let stats = limit.stats();
    assert_eq!(stats.keys, 10_000);
    assert_eq!(stats.evicted_idle + stats.evicted_live, 50_000);
    assert!(stats.evicted_live > 0);
}

#[test]
fn idle_keys_go_before_live_ones() {
    let (limit, policy) = bounded("1/s", 8, OnFull::EvictOldest);
    for name in 0..8 {
        assert!(admitted(&policy, name, at(0)));
    }
    for name in 0..4 {
        assert!(admitted(&policy, name, at(1500)));
    }
    for name in 10..14 {
        assert!(admitted(&policy, name, at(1500)));
    }
    for name in 0..4 {
        assert!(!admitted(&policy, name, at(1500)), "{name} is still counted");
    }
    assert_eq!((limit.stats().keys, limit.stats().evicted_idle, limit.stats().evicted_live), (8, 4, 0));
}

#[test]
fn of_live_keys_the_least_recently_used_goes() {
    let (limit, policy) = bounded("2/10s", 8, OnFull::EvictOldest);
    for name in 0..8 {
        assert!(admitted(&policy, name, at(0)));
    }
    for name in (0..8).filter(|name| *name != 5) {
        assert!(admitted(&policy, name, at(2000)));
    }
    assert!(admitted(&policy, 9, at(3000)));
    for name in (0..8).filter(|name| *name != 5) {
        assert_eq!(drain(&policy, name, at(3000)), 0, "{name}");
    }
    assert_eq!(limit.stats().evicted_live, 1);
}

#[test]
fn a_key_with_a_queue_is_never_evicted() {
    let (limit, policy) = one(LimitSpec { max_keys: 2, ..waiting("1/s", 5000) });
    assert!(admitted(&policy, 1, at(0)));
    assert!(admitted(&policy, 2, at(0)));
    let mut waiters = [queued(check(&policy, 1, 1, at(0))), queued(check(&policy, 2, 1, at(0)))];
    let refusal = refused(check(&policy, 3, 1, at(0)));
    assert_eq!((refusal.why, refusal.retry_at), (RefusalReason::TableFull, None));
    assert_eq!(limit.stats().refused_full, 1);
    for waiter in &mut waiters {
        assert_eq!(waiter.wake_at(at(0)), at(1000));
    }
    for waiter in &mut waiters {
        assert_eq!(waiter.attempt(at(1000)), Attempt::Admitted(Permit::default()));
    }
    assert!(admitted(&policy, 3, at(1000)));
}

/// The head's record is idle by its turn and is swept; others fill the table.
#[test]
fn a_waiter_keeps_its_turn_when_its_idle_record_was_swept() {
    for on_full in [OnFull::EvictOldest, OnFull::Allow, OnFull::Refuse] {
        let (limit, policy) = one(LimitSpec { max_keys: 4, on_full, ..waiting("1/s", 5000) });
        assert!(admitted(&policy, 1, at(0)));
        let mut waiter = queued(check(&policy, 1, 1, at(0)));
        assert_eq!(waiter.wake_at(at(0)), at(1000));
        for name in 2..40 {
            let _ = check(&policy, name, 1, at(1000));
        }
        let refused_before = limit.stats().refused_full;
        assert_eq!(waiter.attempt(at(1001)), Attempt::Admitted(Permit::default()), "{on_full:?}");
        assert_eq!(limit.stats().refused_full, refused_before);
        assert_eq!(refused(check(&policy, 1, 5, at(1001))).why, RefusalReason::TooCostly);
        let _ = queued(check(&policy, 1, 1, at(1001)));
        assert!(limit.stats().keys <= 5, "{}", limit.stats().keys);
    }
}

#[test]
fn a_waiter_that_another_limits_full_table_ends_is_counted_once() {
    let own = Limit::new(waiting("1/s", 5000));
    let other = Limit::new(LimitSpec { max_keys: 1, on_full: OnFull::Refuse, ..spec("1/m") });
    let both = policy(&[&own, &other]);
    assert!(admitted(&policy(&[&own]), 1, at(0)));
    let mut waiter = queued(check(&both, 1, 1, at(0)));
    assert_eq!(waiter.wake_at(at(0)), at(1000));
    assert!(admitted(&policy(&[&other]), 2, at(500)));
    assert_eq!(waiter.timed_out(at(1000)).why, RefusalReason::WaitTimeout);
    assert_eq!(other.stats().refused_full, 1);
}

#[test]
fn a_full_table_can_refuse_new_keys_or_let_them_pass_uncounted() {
    let (limit, policy) = bounded("1/s", 1, OnFull::Refuse);
    assert!(admitted(&policy, 1, at(0)));
    assert_eq!(refused(check(&policy, 2, 1, at(0))).why, RefusalReason::TableFull);
    assert_eq!(limit.stats().refused_full, 1);
    assert!(admitted(&policy, 2, at(1000)), "the first is idle by now");
    let (limit, policy) = bounded("1/s", 1, OnFull::Allow);
    assert!(admitted(&policy, 1, at(0)));
    assert!(admitted(&policy, 2, at(0)) && admitted(&policy, 2, at(0)));
    assert!(!admitted(&policy, 1, at(0)));
    assert_eq!((limit.stats().allowed_full, limit.stats().keys), (2, 1));
}

#[test]
fn a_lowered_bound_is_reached_as_new_keys_come() {
    let (limit, policy) = bounded("9/s", 100_000, OnFull::EvictOldest);
    for name in 0..20_000 {
        assert!(admitted(&policy, name, at(0)));
    }
    assert_eq!(limit.stats().keys, 20_000);
    let _ = limit.reconfigure(LimitSpec { max_keys: 100, ..limit.spec() });
    for name in 20_000..60_000 {
        assert!(admitted(&policy, name, at(0)));
    }
    // 32 shards: an empty one takes a key.
    assert!(limit.stats().keys <= 100 + 32, "{}", limit.stats().keys);
}

#[test]
fn memory_follows_the_live_keys() {
    let (limit, policy) = bounded("9/s", 100_000, OnFull::EvictOldest);
    for name in 0..20_000 {
        assert!(admitted(&policy, name, at(0)));
    }
    // Only old acquaintances come, few for each of the 32 shards. (A shard that nobody asks keeps what it has.)
    for step in 0..2_000_000u64 {
        let _ = admitted(&policy, step % 400, at(10_000 + step));
    }
    assert!(limit.stats().keys < 1_000, "{}", limit.stats().keys);
}

#[test]
fn evicted_and_made_anew_is_as_never_evicted() {
    // The same traffic with room for all keys and with room for few: whatever is evicted is idle.
    let (roomy, all) = bounded("3/s", 1_000_000, OnFull::Refuse);
    let (tight, few) = bounded("3/s", 64, OnFull::Refuse);
    let mut random = 7u64;
    for step in 0..50_000u64 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let name = (random >> 33) % 40 + step / 1_000 * 7;
        let now = at(step * 7);
        assert_eq!(admitted(&all, name, now), admitted(&few, name, now), "step {step}");
    }
    assert_eq!(tight.stats().refused_full, 0);
    assert!(tight.stats().evicted_idle > 100 && roomy.stats().evicted_live == 0);
}

#[test]
fn a_full_table_is_named_before_a_limit_that_only_has_no_room() {
    let (slow, full) = (Limit::new(spec("1/s")), bounded("1/s", 1, OnFull::Refuse).0);
    assert!(admitted(&policy(&[&slow]), 1, at(0)) && admitted(&policy(&[&full]), 2, at(0)));
    for (limits, named) in [([&slow, &full], 1), ([&full, &slow], 0)] {
        let refusal = refused(check(&policy(&limits), 1, 1, at(0)));
        assert_eq!((refusal.limit, refusal.why, refusal.retry_at), (named, RefusalReason::TableFull, None));
    }
    assert_eq!(full.stats().refused_full, 2);
}
