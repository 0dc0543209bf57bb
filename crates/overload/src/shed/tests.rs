use proptest::prelude::*;

use super::*;

fn at(secs: u64) -> Tick {
    Tick::ZERO + Span::from_secs(secs)
}

#[expect(clippy::unnecessary_wraps, reason = "as the argument is")]
fn worst(excess: f64, window: u64) -> Option<WorstSensor> {
    Some(WorstSensor { sensor: 0, excess, is_recovering: false, window: Span::from_secs(window) })
}

const MIX: PriorityCounts = PriorityCounts { low: 200, normal: 600, high: 200 };

#[test]
fn refuses_low_first_then_normal_and_high_never() {
    let refused = |bits, priority| (0..256u64).filter(|n| ShedLevel(bits).refuses(priority, n << 56)).count();
    let by_level = |bits| [Priority::Low, Priority::Normal, Priority::High].map(|priority| refused(bits, priority));
    assert_eq!(by_level(0), [0, 0, 0]);
    assert_eq!(by_level(ONE / 4), [64, 0, 0]);
    assert_eq!(by_level(ONE), [256, 0, 0]);
    assert_eq!(by_level(ONE + ONE / 2), [256, 128, 0]);
    assert_eq!(by_level(2 * ONE), [256, 256, 0]);
    assert!(!ShedLevel::NONE.refuses(Priority::Low, 0));
    assert!(ShedLevel::MOST.refuses(Priority::Normal, u64::MAX));
}

#[test]
fn a_level_is_the_same_after_it_was_stored() {
    let level = ShedLevel::from_value(1.25);
    assert_eq!(ShedLevel::from_bits(level.bits()), level);
    assert_eq!(level.bits(), 81_920);
    assert!((level.value() - 1.25).abs() < 1e-9);
    assert_eq!(ShedLevel::from_bits(u32::MAX), ShedLevel::MOST);
    assert_eq!(ShedLevel::from_value(-1.0), ShedLevel::NONE);
    assert_eq!(ShedLevel::from_value(f64::NAN), ShedLevel::NONE);
}

#[test]
fn begins_only_where_it_may() {
    let mut shedding = Shedding::new();
    assert!((0..100).all(|second| shedding.observe(at(second), worst(3.0, 1), MIX, false) == ShedLevel::NONE));
    assert!(shedding.observe(at(100), worst(3.0, 1), MIX, true) > ShedLevel::NONE);
    assert!(shedding.observe(at(101), worst(3.0, 1), MIX, false) > shedding_level(0.2), "what has begun goes on");
    let mut shedding = Shedding::new();
    let recovering = worst(3.0, 10).map(|worst| WorstSensor { is_recovering: true, ..worst });
    assert_eq!(shedding.observe(at(0), recovering, MIX, true), ShedLevel::NONE);
    assert_eq!(shedding.observe(at(1), None, MIX, true), ShedLevel::NONE);
    assert_eq!(shedding.observe(at(2), worst(1.0, 1), MIX, true), ShedLevel::NONE);
}

fn shedding_level(value: f64) -> ShedLevel {
    ShedLevel::from_value(value)
}

#[test]
fn the_level_follows_from_the_counts_of_priorities() {
    let shedding = Shedding { low: 200.0, normal: 600.0, high: 200.0, newest: 1_000.0, ..Shedding::new() };
    let level = |allowed| shedding.level_for(allowed, 1_000.0).value();
    for (allowed, expected) in [(1_000.0, 0.0), (900.0, 0.5), (800.0, 1.0), (500.0, 1.5), (200.0, 2.0), (100.0, 2.0)] {
        assert!((level(allowed) - expected).abs() < 1e-4, "{allowed}: {}", level(allowed));
    }
    let only_low = Shedding { low: 100.0, newest: 100.0, ..Shedding::new() };
    assert!((only_low.level_for(0.0, 100.0).value() - 1.0).abs() < 1e-9);
    let none = Shedding::new();
    assert_eq!(none.level_for(0.0, 0.0), ShedLevel::NONE);
}

#[test]
fn a_small_excess_that_is_new_moves_little_and_a_long_one_more() {
    let mut shedding = Shedding::new();
    let mut before = 1_000.0;
    let falls: Vec<u32> = (0..5)
        .map(|second| {
            shedding.observe(at(second), worst(1.01, 1), MIX, true);
            let fall = (1.0 - shedding.allowed.unwrap() / before) * 1_000.0;
            before = shedding.allowed.unwrap();
            fall.round() as u32
        })
        .collect();
    // In parts of a thousand.
    assert_eq!(falls, [1, 20, 39, 58, 58]);
}

#[test]
fn a_long_window_allows_one_move_in_it() {
    let mut shedding = Shedding::new();
    let levels: Vec<_> = (0..21).map(|second| shedding.observe(at(second), worst(2.0, 10), MIX, true)).collect();
    assert!(levels[..10].iter().all(|level| *level == levels[0]));
    assert!(levels[10] > levels[9] && levels[10..20].iter().all(|level| *level == levels[10]));
    assert!(levels[20] > levels[19]);
}

#[test]
fn after_a_long_window_it_grows_no_further_than_halfway_back_for_five_minutes() {
    let mut shedding = Shedding::new();
    shedding.observe(at(0), worst(2.0, 10), MIX, true);
    // 1,000 falls by 0.7 ln 2.
    assert!((shedding.allowed.unwrap() - 615.57).abs() < 0.01);
    (1..300).for_each(|second| _ = shedding.observe(at(second), worst(0.1, 10), MIX, false));
    assert!((shedding.allowed.unwrap() - 784.58).abs() < 0.01, "{:?}", shedding.allowed);
    (300..330).for_each(|second| _ = shedding.observe(at(second), worst(0.1, 10), MIX, false));
    assert!(shedding.allowed.unwrap() >= 1_000.0);
}

#[test]
fn it_holds_between_and_grows_below() {
    let mut shedding = Shedding::new();
    (0..10).for_each(|second| _ = shedding.observe(at(second), worst(1.5, 1), MIX, true));
    let held = shedding.level();
    assert!((10..100).all(|second| shedding.observe(at(second), worst(0.95, 1), MIX, true) == held));
    assert!((100..102).all(|second| shedding.observe(at(second), worst(0.5, 1), MIX, true) == held), "too few");
    assert!(shedding.observe(at(102), worst(0.5, 1), MIX, true) < held);
    let ended =
        (103..200).map(|second| shedding.observe(at(second), worst(0.5, 1), MIX, true)).position(|level| level.0 == 0);
    assert!(ended.is_some_and(|seconds| seconds < 40), "{ended:?}");
}

#[test]
fn it_ends_when_the_load_goes_and_is_there_again_within_a_minute() {
    let mut shedding = Shedding::new();
    (0..20).for_each(|second| _ = shedding.observe(at(second), worst(1.5, 1), MIX, true));
    let held = shedding.level();
    assert!(held > shedding_level(1.5));
    let few = PriorityCounts { low: 20, normal: 60, high: 20 };
    assert_eq!(shedding.observe(at(20), worst(0.1, 1), few, false), ShedLevel::NONE);
    assert!((21..50).all(|second| shedding.observe(at(second), worst(0.1, 1), few, false) == ShedLevel::NONE));
    (50..65).for_each(|second| _ = shedding.observe(at(second), worst(0.95, 1), MIX, false));
    assert!(shedding.level() > shedding_level(1.4), "{:?}", shedding.level());
    (65..130).for_each(|second| _ = shedding.observe(at(second), worst(0.1, 1), few, false));
    (130..140).for_each(|second| _ = shedding.observe(at(second), worst(0.95, 1), MIX, false));
    assert_eq!(shedding.level(), ShedLevel::NONE, "forgotten");
}

#[test]
fn a_remembered_rate_does_not_fall_while_the_scale_can_go_down() {
    let mut shedding = Shedding::new();
    shedding.observe(at(0), worst(1.5, 1), MIX, true);
    let few = PriorityCounts { low: 20, normal: 60, high: 20 };
    (1..30).for_each(|second| _ = shedding.observe(at(second), worst(0.95, 1), few, false));
    let before = shedding.allowed;
    assert!(before.is_some());
    (30..40).for_each(|second| _ = shedding.observe(at(second), worst(3.0, 1), few, false));
    assert_eq!((shedding.allowed, shedding.level()), (before, ShedLevel::NONE));
    assert!(shedding.observe(at(40), worst(3.0, 1), few, true) > ShedLevel::NONE);
}

#[test]
fn what_is_never_refused_bounds_the_rate() {
    let mut shedding = Shedding::new();
    (0..300).for_each(|second| _ = shedding.observe(at(second), worst(9.0, 1), MIX, true));
    assert_eq!(shedding.level(), ShedLevel::MOST);
    assert!((shedding.allowed.unwrap() - 200.0).abs() < 1e-6);
}

proptest! {
    #[test]
    fn any_input_gives_a_level_from_none_to_most(
        rounds in prop::collection::vec(
            (0u64..20, prop::option::of(0.0f64..100.0), 1u64..12, [0u64..3, 0u64..300, 0u64..3], any::<bool>()), 1..100,
        ),
    ) {
        let mut shedding = Shedding::new();
        let mut second = 0;
        for (wait, excess, window, [low, normal, high], may_begin) in rounds {
            second += wait;
            let worst = excess.and_then(|excess| worst(excess, window));
            let level = shedding.observe(at(second), worst, PriorityCounts { low, normal, high }, may_begin);
            prop_assert!((ShedLevel::NONE..=ShedLevel::MOST).contains(&level));
            prop_assert!(shedding.allowed.is_none_or(f64::is_finite));
            prop_assert_eq!(level, shedding.level());
        }
    }
}
