//! Charges: they are counted whatever room there is, and waited for afterwards.

use super::*;

fn paced(rate: u64, burst: u64) -> LimitSpec {
    let rate = Rate::new(rate, Span::from_secs(1)).unwrap();
    LimitSpec { algorithm: Algorithm::Gcra(Gcra::new(&[rate], Some(burst)).unwrap()), ..spec("1/s") }
}

#[test]
fn a_burst_is_free_and_what_is_above_it_is_waited_for_to_the_nanosecond() {
    let limit = Limit::new(paced(1_000, 250));
    assert_eq!(limit.charge(key(1), 250, at(0)), at(0));
    assert_eq!(limit.charge(key(1), 100, at(0)), at(100), "a millisecond each");
    assert_eq!(limit.charge(key(1), 100, at(0)), at(200), "in the order in which they came");
    assert_eq!(limit.charge(key(1), 1, at(50)), at(201), "whatever has been paid meanwhile");
    assert_eq!(limit.charge(key(2), 100, at(50)), at(50), "each key for itself");
    assert_eq!(limit.charge(key(1), 250, at(451)), at(451), "the burst is whole again");
    assert_eq!(limit.charge(key(1), 1, at(451)), at(452));
}

#[test]
fn a_debt_of_many_windows_is_counted_too() {
    let limit = Limit::new(paced(1_000, 1));
    for turn in 1..=50 {
        assert_eq!(limit.charge(key(1), 16_384, at(0)), at(16_384 * turn - 1));
    }
}

#[test]
fn so_much_passes_and_no_more_when_somebody_always_waits() {
    // 10 MiB/s takes no whole number of nanoseconds a byte.
    let (rate, burst) = (10 << 20, 64 << 10);
    let limit = Limit::new(paced(rate, burst));
    let (mut now, mut passed) = (at(0), 0_u64);
    while now < at(10_000) {
        now = now.max(limit.charge(key(1), 16_000, now));
        passed += 16_000;
        let most = u128::from(burst) + u128::from(rate) * u128::from(now.as_nanos()) / 1_000_000_000;
        assert!(u128::from(passed) <= most, "{passed} of {most} at {now:?}");
    }
    let least = 10 * rate;
    assert!(passed >= least, "{passed} and not {least}");
}

#[test]
fn a_new_rate_holds_for_what_is_charged_from_then_on() {
    let limit = Limit::new(paced(1_000, 100));
    assert_eq!(limit.charge(key(1), 300, at(0)), at(200));
    limit.reconfigure(paced(100, 100));
    assert_eq!(limit.charge(key(1), 10, at(0)), at(100), "ten milliseconds each, on top of a burst that is spent");
    limit.release();
    assert_eq!(limit.charge(key(1), 1_000_000, at(300)), at(300), "it holds no more");
}

#[test]
fn who_gives_up_owes_nothing() {
    let limit = Limit::new(paced(1_000, 100));
    assert_eq!(limit.charge(key(1), 5_100, at(0)), at(5_000));
    assert_eq!(limit.charge(key(1), 200, at(0)), at(5_200));
    limit.refund(key(1), 5_100);
    assert_eq!(limit.charge(key(1), 10, at(0)), at(110), "what others owe stays owed");
    limit.refund(key(1), 1_000_000);
    assert_eq!(limit.charge(key(1), 100, at(0)), at(0), "and nobody gets more than the burst");
    assert_eq!(limit.charge(key(1), 1, at(0)), at(1));
    limit.refund(key(2), 7);
    assert_eq!(limit.stats().keys, 1, "who was never charged is not known");
}

#[test]
fn a_full_table_forgets_the_oldest() {
    let limit = Limit::new(LimitSpec { max_keys: 2, ..paced(1_000, 1) });
    for name in 1..=3 {
        assert_eq!(limit.charge(key(name), 1_001, at(name)), at(name + 1_000));
    }
    let stats = limit.stats();
    assert_eq!((stats.keys, stats.evicted_live), (2, 1));
    assert_eq!(limit.charge(key(1), 1, at(4)), at(4), "with a burst that is whole");
}
