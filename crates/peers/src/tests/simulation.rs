//! Runs of many seeds. A failed assertion names its seed.

use super::world::{Setting, World};
use super::*;

/// How many seeds are tried: a hundred times as many where there is time.
fn seeds(usual: u64) -> u64 {
    if std::env::var_os("SLUICEGATE_LONG").is_some() { usual * 100 } else { usual }
}

/// A run without a fault, of which everything else is drawn from the seed.
fn drawn(seed: u64) -> (Setting, World) {
    let setting = Setting {
        seed,
        gateways: 2,
        rate: four(),
        grace: 200,
        millis: 1,
        interval: 20,
        delay: 0,
        lost: 0,
        twice: 0,
        demand: vec![0; 2],
        largest_cost: 1,
        cuts: 0,
        crashes: 0,
        evictions: 0,
    };
    let mut dice = World::new(setting.clone());
    let gateways = 2 + dice.below(4) as u32;
    let (limit, window, burst) =
        [(4, 1_000, 4), (100, 1_000, 20), (50, 1_000, 100), (300, 1_000, 2), (7, 3_000, 5)][dice.below(5) as usize];
    let setting = Setting {
        gateways,
        rate: RefillRate::new(limit, Span::from_millis(window), burst).unwrap(),
        millis: 3_000,
        interval: 5 + dice.below(30),
        delay: dice.below(50),
        twice: dice.below(3) * 10,
        demand: (0..gateways).map(|_| [0, 3, 30, 300, 900][dice.below(5) as usize]).collect(),
        largest_cost: 1 + dice.below(burst.min(3)),
        ..setting
    };
    (setting, dice)
}

/// The hard bound of any stretch, less its refill, in units: the burst, and for each further gateway a burst and the refill of
/// the time in which it is not heard.
fn hard(world: &World, lag: u64) -> u128 {
    let (rate, gateways) = (world.setting.rate, u128::from(world.setting.gateways));
    let further = gateways - 1 + u128::from(world.losses);
    rate.units(rate.burst()) + further * (rate.units(rate.burst()) + rate.refilled(Span::from_millis(lag)))
}

#[test]
fn a_calm_fleet_keeps_both_bounds_in_every_stretch() {
    let mut admitted = 0;
    for seed in 0..seeds(300) {
        let (setting, _) = drawn(seed);
        let lag = setting.delay + setting.interval;
        let rate = setting.rate;
        let mut world = World::new(setting);
        world.run(|world| {
            let recent = rate.units(world.admitted(world.now.checked_sub(lag + 1), world.now));
            let soft = rate.units(rate.burst()) + recent;
            if world.spends.last().is_some_and(|spend| spend.at == world.now) {
                assert!(world.level <= soft, "seed {seed}: {} above {soft} at {}", world.level, world.now);
                assert!(world.level <= hard(world, lag), "seed {seed}: {} at {}", world.level, world.now);
            }
        });
        assert!(world.longest_lag <= lag, "seed {seed}: {} ms of {lag}", world.longest_lag);
        admitted += world.spends.len();
        assert_settled(world);
    }
    assert!(admitted > 30_000, "{admitted}");
}

#[test]
fn a_network_that_loses_and_repeats_costs_no_more_than_its_lag() {
    for seed in 0..seeds(200) {
        let (setting, mut dice) = drawn(seed);
        let mut world = World::new(Setting { lost: dice.below(40), grace: 2_000, ..setting });
        let mut worst = (0, 0);
        world.run(|world| worst = worst.max((world.level, world.now)));
        assert!(world.longest_lag < 2_000, "seed {seed}: {}", world.longest_lag);
        assert!(worst.0 <= hard(&world, world.longest_lag), "seed {seed}: {worst:?} after {} ms", world.longest_lag);
        assert_settled(world);
    }
}

#[test]
fn cuts_crashes_and_evictions_cost_a_burst_each_and_the_refill_of_the_cuts() {
    for seed in 0..seeds(400) {
        let (setting, mut dice) = drawn(seed);
        let (cuts, crashes, evictions) = (dice.below(3), dice.below(3), dice.below(4));
        let lost = dice.below(3) * 10;
        // The lag of the network, and of the members' list after a heal or a crash.
        let usual = if lost + crashes > 0 { 1_000 } else { setting.delay + setting.interval + 100 };
        let mut world = World::new(Setting { lost, cuts, crashes, evictions, ..setting });
        world.run(|world| {
            let lag = usual + world.cut_millis;
            assert!(world.level <= hard(world, lag), "seed {seed}: {} at {}", world.level, world.now);
        });
        assert_settled(world);
    }
}

/// In the end everybody has heard of everything, and nobody has anything to tell.
fn assert_settled(mut world: World) {
    world.settle();
    let seed = world.setting.seed;
    for (index, gateway) in world.gateways.iter().enumerate() {
        assert!(gateway.ledger.unsettled.is_empty(), "seed {seed}: {index} has something to tell");
    }
}

/// With continuous demand at one gateway nothing is lost but bursts, and the refill of the lag.
#[test]
fn continuous_demand_gets_the_rate_less_late_charges() {
    for seed in 0..seeds(150) {
        let (setting, mut dice) = drawn(seed);
        let (lost, twice) = ([0, 0, 20][dice.below(3) as usize], dice.below(30));
        let mut setting = Setting { lost, twice, grace: 2_000, ..setting };
        setting.demand[0] = 1_000;
        let (cost, gateways) = (setting.largest_cost, u128::from(setting.gateways));
        let rate = setting.rate;
        let mut world = World::new(setting);
        world.run(|world| {
            let missing = world.gateways[0].ledger.missing(KEY, at(world.now));
            let least = rate.units(rate.burst() + 1) - rate.units(cost);
            assert!(missing + rate.units(1) > least, "seed {seed}: {missing} missing although it asks");
        });
        let lag = world.longest_lag + 1;
        for from in (0..3_000).step_by(100) {
            for until in (from + 100..3_000).step_by(100) {
                let all = rate.units(world.admitted(u64::checked_sub(from, lag + 1), until));
                let refill = rate.refilled(Span::from_millis(until - from));
                let late = rate.units(rate.burst()) * (gateways - 1)
                    + rate.refilled(Span::from_millis(lag)) * gateways
                    + rate.units(cost);
                assert!(all + late >= refill, "seed {seed}: {all} of {refill} from {from} until {until}");
            }
        }
    }
}
