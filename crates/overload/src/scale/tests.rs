use proptest::prelude::*;

use super::*;

const TERMS: ScaleTerms = ScaleTerms { floor_percent: 20, step_percent: 10 };
const REFUSING: LimitActivity = LimitActivity { is_shedding: false, has_refused: true };

fn at(secs: u64) -> Tick {
    Tick::ZERO + Span::from_secs(secs)
}

/// A reading with a threshold of 1.
fn reading(excess: f64, window: u64) -> SensorReading {
    SensorReading { sensor: 3, value: Some(excess), recent: None, above: 1.0, window: Span::from_secs(window) }
}

/// The scale in percent, second by second, each with the same readings.
fn run(scale: &mut LimitScale, seconds: std::ops::Range<u64>, readings: &[SensorReading]) -> Vec<u32> {
    seconds.map(|second| scale.observe(at(second), readings, REFUSING).basis_points / 100).collect()
}

#[test]
fn goes_down_each_second_to_the_floor_and_says_so() {
    let mut scale = LimitScale::new(TERMS);
    assert_eq!(run(&mut scale, 0..8, &[reading(1.01, 1)]), [90, 80, 70, 60, 50, 40, 30, 20]);
    let state = scale.observe(at(8), &[reading(1.01, 1)], REFUSING);
    assert_eq!((state.basis_points, state.needs_shedding, state.is_by_hand), (2_000, true, false));
    assert_eq!(state.worst.map(|worst| worst.sensor), Some(3));
    assert!(
        !scale.observe(at(9), &[reading(1.0, 1)], REFUSING).needs_shedding,
        "a value at its threshold is not above"
    );
}

#[test]
fn the_floor_is_reached_but_not_passed_by_a_step_that_does_not_fit() {
    let mut scale = LimitScale::new(ScaleTerms { floor_percent: 25, step_percent: 30 });
    assert_eq!(run(&mut scale, 0..4, &[reading(9.0, 1)]), [70, 40, 25, 25]);
    assert_eq!(run(&mut scale, 10..26, &[reading(0.1, 1)])[15], 100);
}

#[test]
fn terms_out_of_range_are_taken_as_the_nearest() {
    let mut scale = LimitScale::new(ScaleTerms { floor_percent: 0, step_percent: 90 });
    assert_eq!(run(&mut scale, 0..3, &[reading(2.0, 1)]), [50, 1, 1]);
    let mut scale = LimitScale::new(ScaleTerms { floor_percent: 200, step_percent: 0 });
    assert!(scale.observe(at(0), &[reading(2.0, 1)], REFUSING).needs_shedding);
}

#[test]
fn a_long_window_allows_one_move_in_it_and_a_large_excess_larger_steps() {
    for (excess, step) in [(1.5, 10), (2.0, 20), (3.9, 20), (4.0, 30), (50.0, 30)] {
        let mut scale = LimitScale::new(TERMS);
        let run = run(&mut scale, 0..12, &[reading(excess, 10)]);
        assert_eq!(run[..10], [100 - step; 10], "{excess}");
        assert_eq!(run[10..], [100 - 2 * step; 2], "{excess}");
    }
    let mut scale = LimitScale::new(TERMS);
    assert_eq!(run(&mut scale, 0..2, &[reading(50.0, 1)]), [90, 80], "a short window needs none");
}

#[test]
fn a_step_of_one_sensor_makes_the_others_wait_for_their_window() {
    let mut scale = LimitScale::new(TERMS);
    run(&mut scale, 0..1, &[reading(1.5, 1)]);
    assert_eq!(run(&mut scale, 1..11, &[reading(1.5, 10)]), [90, 90, 90, 90, 90, 90, 90, 90, 90, 80]);
}

#[test]
fn a_sensor_that_recovers_moves_nothing() {
    let mut scale = LimitScale::new(TERMS);
    let recovering = SensorReading { recent: Some(1.0), ..reading(5.0, 10) };
    assert_eq!(run(&mut scale, 0..30, &[recovering]), [100; 30]);
    assert!(scale.observe(at(30), &[recovering], REFUSING).worst.is_some_and(|worst| worst.is_recovering));
    let not = SensorReading { recent: Some(1.1), ..recovering };
    assert_eq!(run(&mut scale, 31..32, &[not]), [70]);
}

#[test]
fn the_worst_sensor_is_one_that_does_not_recover() {
    let mut scale = LimitScale::new(TERMS);
    let recovering = SensorReading { recent: Some(0.5), ..reading(5.0, 10) };
    let other = |excess| SensorReading { sensor: 7, ..reading(excess, 1) };
    let mut worst = |readings: &[SensorReading]| {
        let state = scale.observe(at(0), readings, REFUSING);
        state.worst.map(|worst| (worst.sensor, worst.is_recovering))
    };
    assert_eq!(worst(&[recovering, other(0.99)]), Some((3, true)));
    assert_eq!(worst(&[recovering, other(1.01)]), Some((7, false)));
    assert_eq!(worst(&[other(1.01), recovering]), Some((7, false)));
}

#[test]
fn goes_up_each_five_seconds_and_not_between() {
    let mut scale = LimitScale::new(TERMS);
    run(&mut scale, 0..3, &[reading(2.0, 1)]);
    let up = run(&mut scale, 3..18, &[reading(0.89, 1)]);
    assert_eq!(up, [70, 70, 70, 70, 80, 80, 80, 80, 80, 90, 90, 90, 90, 90, 100]);
    run(&mut scale, 40..41, &[reading(2.0, 1)]);
    assert_eq!(run(&mut scale, 41..70, &[reading(0.9, 1)]), [90; 29], "between it holds");
    let both = [reading(0.1, 1), reading(0.95, 1)];
    assert_eq!(run(&mut scale, 70..90, &both), [90; 20], "all have to be below");
}

#[test]
fn goes_up_only_after_the_longest_window_of_those_that_were_above() {
    let mut scale = LimitScale::new(TERMS);
    run(&mut scale, 0..1, &[reading(1.5, 1), reading(1.5, 10)]);
    let up = run(&mut scale, 1..12, &[reading(0.1, 1), reading(0.1, 10)]);
    assert_eq!(up, [90, 90, 90, 90, 90, 90, 90, 90, 90, 100, 100]);
}

#[test]
fn does_not_go_up_while_requests_are_shed() {
    let mut scale = LimitScale::new(TERMS);
    run(&mut scale, 0..1, &[reading(1.5, 1)]);
    let shedding = LimitActivity { is_shedding: true, has_refused: true };
    assert_eq!(scale.observe(at(20), &[reading(0.1, 1)], shedding).basis_points, 9_000);
    assert_eq!(scale.observe(at(21), &[reading(0.1, 1)], REFUSING).basis_points, 10_000);
}

/// A scale at 30%, where a step from 20% at second 13 led.
fn on_trial() -> LimitScale {
    let mut scale = LimitScale::new(TERMS);
    run(&mut scale, 0..8, &[reading(1.5, 1)]);
    assert_eq!(run(&mut scale, 8..13, &[reading(0.5, 1)]), [20, 20, 20, 20, 30]);
    scale
}

#[test]
fn a_step_up_that_fails_is_taken_back_and_not_tried_for_five_minutes() {
    let mut scale = LimitScale::new(ScaleTerms { floor_percent: 5, step_percent: 10 });
    run(&mut scale, 0..5, &[reading(1.5, 1)]);
    assert_eq!(run(&mut scale, 5..10, &[reading(0.5, 1)]), [50, 50, 50, 50, 60]);
    // Readings are late.
    assert_eq!(run(&mut scale, 10..12, &[reading(0.5, 1)]), [60, 60]);
    assert_eq!(run(&mut scale, 12..17, &[reading(1.5, 1)]), [50; 5]);
    assert_eq!(run(&mut scale, 17..18, &[reading(1.5, 1)]), [40], "it was not good");
    let up = run(&mut scale, 18..350, &[reading(0.5, 1)]);
    assert_eq!((up[3], up[4]), (40, 50));
    assert!(up[4..294].iter().all(|percent| *percent == 50), "{up:?}");
    assert_eq!((up[293], up[294]), (50, 60), "12 s and 5 minutes");
    // It holds this time for 30 s, and those above are not barred.
    assert_eq!((up[323], up[324], up[329]), (60, 70, 80));
}

#[test]
fn the_bar_falls_where_limits_refuse_nothing() {
    let mut scale = on_trial();
    run(&mut scale, 13..14, &[reading(1.5, 1)]);
    let idle = LimitActivity::default();
    let mut percent = |second| scale.observe(at(second), &[reading(0.5, 1)], idle).basis_points / 100;
    assert_eq!((14..24).map(&mut percent).collect::<Vec<_>>(), [20, 20, 20, 20, 30, 30, 30, 30, 30, 40]);
}

#[test]
fn a_level_that_was_above_for_a_whole_long_window_is_barred() {
    let mut scale = LimitScale::new(TERMS);
    run(&mut scale, 0..21, &[reading(1.5, 10)]);
    let up = run(&mut scale, 21..100, &[reading(0.5, 10)]);
    assert_eq!((up[0], up[78]), (70, 70), "80 was above for 10 s");
    let mut scale = LimitScale::new(TERMS);
    run(&mut scale, 0..3, &[reading(1.5, 1)]);
    assert_eq!(run(&mut scale, 3..100, &[reading(0.5, 1)])[96], 100, "a short window says nothing of a level");
}

#[test]
fn a_reading_that_is_none_is_ignored() {
    let mut scale = LimitScale::new(TERMS);
    let none = SensorReading { value: None, ..reading(0.0, 1) };
    let no_threshold = SensorReading { above: 0.0, ..reading(5.0, 1) };
    let bad = [none, reading(f64::NAN, 1), reading(f64::INFINITY, 1), no_threshold];
    let state = scale.observe(at(0), &bad, REFUSING);
    assert_eq!((state.basis_points, state.worst), (10_000, None));
    run(&mut scale, 1..2, &[reading(1.5, 1)]);
    assert_eq!(run(&mut scale, 2..7, &bad), [90, 90, 90, 90, 100], "none of them keeps it down");
}

#[test]
fn by_hand_sensors_do_not_move_it_until_the_end() {
    let mut scale = LimitScale::new(TERMS);
    scale.set_by_hand(60, Some(at(10)));
    let state = scale.observe(at(0), &[reading(5.0, 1)], REFUSING);
    assert_eq!((state.basis_points, state.is_by_hand, state.needs_shedding), (6_000, true, false));
    assert_eq!(run(&mut scale, 1..12, &[reading(5.0, 1)]), [60, 60, 60, 60, 60, 60, 60, 60, 60, 50, 40]);
    scale.set_by_hand(7, None);
    assert_eq!(run(&mut scale, 12..1_000, &[reading(0.0, 1)]), [7; 988], "below the floor");
    scale.clear();
    assert_eq!(run(&mut scale, 1_000..1_001, &[reading(0.95, 1)]), [20], "from the floor on");
    scale.set_by_hand(250, None);
    assert_eq!(run(&mut scale, 1_001..1_002, &[]), [100]);
    scale.clear();
    scale.clear();
    assert_eq!(run(&mut scale, 1_002..1_003, &[]), [100]);
}

#[test]
fn a_new_floor_holds_at_once() {
    let mut scale = LimitScale::new(TERMS);
    run(&mut scale, 0..8, &[reading(1.5, 1)]);
    scale.set_terms(ScaleTerms { floor_percent: 50, step_percent: 5 });
    assert_eq!(run(&mut scale, 8..9, &[reading(0.95, 1)]), [50]);
}

proptest! {
    #[test]
    fn it_stays_between_floor_and_full_and_moves_no_further_than_its_terms(
        floor in 1u32..=100,
        step in 1u32..=50,
        rounds in prop::collection::vec((0u64..12, 0.0f64..6.0, prop::option::of(0.0f64..6.0), 1u64..12), 1..200),
    ) {
        let mut scale = LimitScale::new(ScaleTerms { floor_percent: floor, step_percent: step });
        let (mut second, mut before) = (0, FULL_SCALE);
        let mut last_down: Option<u64> = None;
        for (wait, excess, recent, window) in rounds {
            second += wait;
            let one = SensorReading { recent, ..reading(excess, window) };
            let now = scale.observe(at(second), &[one], REFUSING).basis_points;
            prop_assert!((floor * 100..=FULL_SCALE).contains(&now));
            if now < before {
                prop_assert!(excess > 1.0 && recent.is_none_or(|recent| recent > 1.0));
                prop_assert!(before - now <= step * 300);
                prop_assert!(last_down.is_none_or(|down| second - down >= window));
                last_down = Some(second);
            } else if now > before {
                prop_assert!(excess < 0.9 && now - before <= step * 100);
            }
            before = now;
        }
    }
}
