//! The scale settles, keeps its floor and comes back.

use super::plant::{Plant, Second, Sensor, Setup};
use sluicegate_time::Span;

const SENSORS: [Sensor; 4] = [Sensor::Cpu, Sensor::Memory, Sensor::ResponseTime, Sensor::DeadLetters];

/// How far the scale moves from a second on.
fn spread(run: &[Second], from: usize) -> u32 {
    let levels = || run[from..].iter().map(|second| second.state.basis_points);
    levels().max().unwrap_or(0) - levels().min().unwrap_or(0)
}

/// The first second from which on the scale moves by ten points at most.
fn settled(run: &[Second]) -> usize {
    (0..run.len()).find(|from| spread(run, *from) <= 1_000).unwrap_or(run.len())
}

/// Each sensor and delay, with some seeds each, and a limit of between one and five times the capacity.
fn setups(sensors: &[Sensor], timeout: Span) -> Vec<Setup> {
    let mut setups = Vec::new();
    for sensor in sensors {
        for delay in 0..=2 {
            for (seed, limit) in [1.4, 2.3, 4.2].into_iter().enumerate() {
                let seed = seed as u64 + 10 * delay as u64;
                setups.push(Setup {
                    seed,
                    sensor: *sensor,
                    limit,
                    floor_percent: 5,
                    delay,
                    timeout,
                    ..Setup::default()
                });
            }
        }
    }
    setups
}

#[test]
fn settles_within_a_minute_and_comes_back() {
    for setup in setups(&SENSORS, Span::from_secs(2)) {
        for load in [1.0, 5.0] {
            let mut plant = Plant::new(setup);
            let run = plant.run(150, load);
            // Failures are known only when requests have timed out.
            let most = if setup.sensor == Sensor::DeadLetters { 90 } else { 60 };
            assert!(settled(&run) <= most, "load {load}, settled after {} s: {setup:?}", settled(&run));
            let after = plant.run(70, 0.2);
            let back = after.iter().position(|second| second.state.basis_points == 10_000);
            assert!(back.is_some_and(|seconds| seconds <= 60), "load {load}, back after {back:?}: {setup:?}");
        }
    }
}

#[test]
fn settles_where_queues_are_six_times_the_threshold() {
    for setup in setups(&[Sensor::ResponseTime, Sensor::DeadLetters], Span::from_secs(5)) {
        let run = Plant::new(setup).run(180, 5.0);
        let most = if setup.sensor == Sensor::DeadLetters { 110 } else { 60 };
        assert!(settled(&run) <= most, "settled after {} s: {setup:?}", settled(&run));
    }
}

#[test]
fn does_not_move_below_capacity() {
    for setup in setups(&SENSORS, Span::from_secs(2)) {
        let run = Plant::new(setup).run(120, 0.5);
        assert!(run.iter().all(|second| second.state.basis_points == 10_000), "{setup:?}");
    }
}

#[test]
fn keeps_its_floor() {
    for sensor in SENSORS {
        let setup = Setup { sensor, limit: 50.0, floor_percent: 20, ..Setup::default() };
        let run = Plant::new(setup).run(120, 5.0);
        let lowest = run.iter().map(|second| second.state.basis_points).min();
        assert_eq!(lowest, Some(2_000), "{setup:?}");
        assert!(run.iter().any(|second| second.state.needs_shedding), "{setup:?}");
    }
}

#[test]
fn a_level_that_failed_is_tried_again_and_costs_little() {
    for sensor in SENSORS {
        let setup = Setup { sensor, limit: 2.3, floor_percent: 5, ..Setup::default() };
        let run = Plant::new(setup).run(1_000, 5.0);
        assert!(spread(&run, 60) <= 2_000, "{} {setup:?}", spread(&run, 60));
        let mut moves = run[60..].windows(2).filter(|pair| pair[0].state.basis_points != pair[1].state.basis_points);
        assert!(moves.by_ref().count() <= 16, "{setup:?}");
    }
}

#[test]
fn refusals_do_not_raise_the_sensor_of_failures() {
    let setup = Setup { sensor: Sensor::DeadLetters, limit: 2.3, floor_percent: 5, ..Setup::default() };
    let mut plant = Plant::new(setup);
    plant.run(100, 2.0);
    let before = plant.run(20, 2.0);
    // Ten times the load: all that is more is refused.
    let after = plant.run(100, 20.0);
    let refused = |run: &[Second]| run.iter().map(|second| second.refused).sum::<u64>() / run.len() as u64;
    assert!(refused(&after) > 10 * refused(&before), "{} {}", refused(&before), refused(&after));
    assert!(after.iter().all(|second| second.reading < 0.9), "the sensor does not see them");
    assert!(after.iter().all(|second| second.state.basis_points >= before[19].state.basis_points));
}
