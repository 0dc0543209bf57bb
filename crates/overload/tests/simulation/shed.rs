//! Shedding settles, by priority, and ends with the load.

use super::plant::{Plant, Second, Sensor, Setup};

/// How far the level moves from a second on.
fn spread(run: &[Second], from: usize) -> f64 {
    let levels = || run[from..].iter().map(|second| second.level.value());
    levels().fold(0.0, f64::max) - levels().fold(2.0, f64::min)
}

fn settled(run: &[Second]) -> usize {
    (0..run.len()).find(|from| spread(run, *from) <= 0.2).unwrap_or(run.len())
}

fn setups(limit: f64) -> Vec<Setup> {
    let mut setups = Vec::new();
    for sensor in [Sensor::Cpu, Sensor::Memory, Sensor::ResponseTime, Sensor::DeadLetters] {
        for delay in 0..=2 {
            for (seed, (low, normal)) in [(0.0, 1.0), (0.1, 0.8), (0.4, 0.5)].into_iter().enumerate() {
                setups.push(Setup { seed: seed as u64, sensor, limit, delay, low, normal, ..Setup::default() });
            }
        }
    }
    setups
}

#[test]
fn settles_where_no_limit_is_adaptive_and_refuses_by_priority() {
    for setup in setups(f64::INFINITY) {
        for load in [1.3, 2.0, 5.0] {
            let run = Plant::new(setup).run(180, load);
            assert!(settled(&run) <= 90, "load {load}, settled after {} s: {setup:?}", settled(&run));
            does_its_work(&run[100..], load, setup);
            refuses_by_priority(&run, load, setup);
        }
    }
}

fn does_its_work(run: &[Second], load: f64, setup: Setup) {
    let goodput = run.iter().map(|second| second.goodput).sum::<f64>() / run.len() as f64;
    // Failures are seen only where requests have timed out, and few enough are no overload.
    let least = if setup.sensor == Sensor::DeadLetters { 0.0 } else { 0.5 };
    assert!(goodput >= least, "load {load}, goodput {goodput:.2}: {setup:?}");
    let over = run.iter().filter(|second| second.reading > 1.0).count();
    assert!(over <= 16, "load {load}, above in {over} of 80 s: {setup:?}");
}

fn refuses_by_priority(run: &[Second], load: f64, setup: Setup) {
    assert_eq!(run.iter().map(|second| second.shed[2]).sum::<u64>(), 0, "{setup:?}");
    if setup.low == 0.0 {
        return;
    }
    let first_of = |priority: usize| run.iter().position(|second| second.shed[priority] > 0);
    assert!(first_of(0).is_some(), "load {load}: {setup:?}");
    // The level of a second is that of the next one's requests.
    for pair in run.windows(2) {
        assert!(pair[1].shed[1] == 0 || pair[0].level.value() > 1.0, "load {load}: {setup:?}");
    }
    let of_normal = run[100..].iter().any(|second| second.shed[1] > 0);
    assert!(of_normal || load < 5.0, "load {load}: {setup:?}");
}

#[test]
fn settles_after_the_scale_has_reached_its_floor() {
    for setup in setups(8.0) {
        for load in [2.0, 5.0] {
            let run = Plant::new(setup).run(240, load);
            assert!(settled(&run) <= 110, "load {load}, settled after {} s: {setup:?}", settled(&run));
            assert!(run[110..].iter().all(|second| second.state.basis_points == 2_000), "{setup:?}");
            let begun = run.iter().position(|second| second.level.value() > 0.0);
            let floor = run.iter().position(|second| second.state.basis_points == 2_000);
            assert!(begun > floor, "load {load}: the scale goes first: {setup:?}");
        }
    }
}

#[test]
fn ends_within_five_seconds_of_the_load() {
    for setup in setups(f64::INFINITY) {
        let mut plant = Plant::new(setup);
        plant.run(150, 5.0);
        let after = plant.run(100, 0.4);
        let last = after.iter().rposition(|second| second.level.value() > 0.0).map_or(0, |last| last + 1);
        assert!(last <= 5, "shed until second {last}: {setup:?}");
    }
}
