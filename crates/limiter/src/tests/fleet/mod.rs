//! Shared limits in a simulated fleet, by seed, which a failed assertion names. The bound that is published holds over every
//! stretch, and nobody waits longer for the store than the deadline.

mod world;

use super::*;
use world::{Setting, World, lease, micros, strict};

/// How many seeds are tried: a hundred times as many where there is time.
fn seeds(usual: u64) -> u64 {
    if std::env::var_os("SLUICEGATE_LONG").is_some() { usual * 100 } else { usual }
}

fn algorithms() -> Vec<Algorithm> {
    let rates = |text: &str| vec![text.parse::<Rate>().unwrap()];
    vec![
        wheel(&["100/s"], None, Bound::Sliding),
        wheel(&["40/s"], None, Bound::Strict),
        wheel(&["7/s"], Some(5), Bound::Sliding),
        Algorithm::TokenBucket(TokenBucket::new(&rates("50/s"), Some(20), Refill::Greedy).unwrap()),
        Algorithm::Gcra(Gcra::new(&rates("100/s"), Some(10)).unwrap()),
        Algorithm::FixedWindow(FixedWindow::new(&rates("60/s"), Align::Epoch).unwrap()),
        Algorithm::SlidingWindow(SlidingWindow::new(&rates("100/s"), None, None).unwrap()),
        Algorithm::SlidingLog(SlidingLog::new(&rates("30/s"), Span::ZERO, false).unwrap()),
        Algorithm::SlidingCounter(SlidingCounter::new(&rates("60/s")).unwrap()),
        Algorithm::SlidingWindow(SlidingWindow::new(&rates("40/2s"), Some(4), Some(15)).unwrap()),
    ]
}

/// A setting of which everything is drawn from the seed.
fn drawn(seed: u64) -> Setting {
    let mut dice = World::new(Setting { seed, rates: vec![0; 3], ..Setting::default() });
    let algorithms = algorithms();
    let algorithm = algorithms[dice.below(algorithms.len() as u64) as usize].clone();
    let gateways = 1 + dice.below(5) as usize;
    let limit = algorithm.rates()[0].limit();
    let rates = (0..gateways).map(|_| 1 + dice.below(limit * 3)).collect();
    let overshoot = [0.0, 0.1, 0.25, 0.5, 1.0][dice.below(5) as usize];
    let is_log = matches!(algorithm, Algorithm::SlidingLog(_));
    let sharing =
        if dice.happens(25) || is_log { strict(OnFailure::Closed) } else { lease(overshoot, OnFailure::Closed) };
    Setting {
        seed,
        gateways,
        sharing,
        algorithm,
        keys: 1 + dice.below(3),
        rates,
        largest_cost: 1 + dice.below(3),
        secs: 6,
        delay: micros(100 + dice.below(4_000)),
        lost: dice.below(3) * 3,
        twice: dice.below(3) * 3,
        reports: [1, 3, usize::MAX][dice.below(3) as usize],
        ..Setting::default()
    }
}

#[test]
fn keeps_its_bound_in_every_stretch_whatever_the_network_does() {
    for seed in 0..seeds(600) {
        let mut world = World::new(drawn(seed));
        world.run();
        world.assert_bound();
        assert!(!world.passes.is_empty(), "seed {seed}");
    }
}

/// Whoever asks for all that there is gets it, whatever is granted to others meanwhile, and no budget waits for the end of a
/// window.
#[test]
fn gives_what_it_promises_to_a_burst() {
    let rates = |text: &str| vec![text.parse::<Rate>().unwrap()];
    let algorithms = [
        wheel(&["100/h"], None, Bound::Sliding),
        wheel(&["60/m"], None, Bound::Sliding),
        wheel(&["20/h"], None, Bound::Sliding),
        Algorithm::FixedWindow(FixedWindow::new(&rates("1000/10h"), Align::Epoch).unwrap()),
        Algorithm::TokenBucket(TokenBucket::new(&rates("100/h"), Some(100), Refill::Greedy).unwrap()),
        Algorithm::Gcra(Gcra::new(&rates("100/h"), Some(60)).unwrap()),
        Algorithm::SlidingCounter(SlidingCounter::new(&rates("100/h")).unwrap()),
        Algorithm::SlidingLog(SlidingLog::new(&rates("100/h"), Span::ZERO, false).unwrap()),
    ];
    for seed in 0..seeds(9) {
        for algorithm in &algorithms {
            let is_log = matches!(algorithm, Algorithm::SlidingLog(_));
            for sharing in
                [lease(0.25, OnFailure::Closed), strict(OnFailure::Closed)].into_iter().skip(usize::from(is_log))
            {
                let gateways = 1 + seed as usize % 3;
                // The others ask a little, and hold what they do not use.
                let rates = [[2_000, 5, 20], [2_000, 600, 600]][seed as usize / 3 % 2][..gateways].to_vec();
                let largest_cost = 1 + seed % 2;
                let algorithm = algorithm.clone();
                let least = algorithm.largest_cost() + 1 - largest_cost;
                let delay = micros(100 + 300 * (seed % 7));
                let setting = Setting {
                    seed,
                    gateways,
                    sharing,
                    algorithm,
                    rates,
                    largest_cost,
                    delay,
                    secs: 2,
                    ..Setting::default()
                };
                let mut world = World::new(setting);
                world.run();
                world.assert_bound();
                let passed: u64 = world.passes.iter().map(|pass| pass.cost).sum();
                let kind = (&world.setting.algorithm, sharing.is_strict());
                assert!(passed >= least, "seed {seed}: {passed} of {least} of {kind:?}");
                let early = |gateway: &world::Gateway| gateway.limit.outstanding(world.now).refused_early;
                assert_eq!(world.gateways.iter().map(early).sum::<u64>(), 0, "seed {seed}: {kind:?}");
            }
        }
    }
}

/// Of the grant that opens it little is spent, and the rest goes back sooner than it came.
#[test]
fn gives_all_of_a_window_that_opens_with_the_first_request() {
    for seed in 0..seeds(60) {
        let algorithm = FixedWindow::new(&["10/h".parse().unwrap()], Align::First).unwrap();
        let setting = Setting {
            seed,
            algorithm: Algorithm::FixedWindow(algorithm),
            rates: vec![20; 3],
            delay: micros(100 + 300 * (seed % 7)),
            secs: 3,
            ..Setting::default()
        };
        let mut world = World::new(setting);
        world.run();
        assert_eq!(world.passes.len(), 10, "seed {seed}");
    }
}

/// With continuous demand, in any stretch that is longer than the window by as much as a grant may be out.
#[test]
fn gives_what_it_promises_in_every_stretch() {
    let rates = |text: &str| vec![text.parse::<Rate>().unwrap()];
    let second = Span::from_secs(1);
    for (algorithm, stretch, least) in [
        (wheel(&["100/s"], None, Bound::Sliding), second, 100),
        (wheel(&["40/s"], None, Bound::Strict), Span::from_millis(1_100), 40),
        (Algorithm::SlidingWindow(SlidingWindow::new(&rates("100/s"), None, None).unwrap()), second, 100),
        (Algorithm::SlidingLog(SlidingLog::new(&rates("30/s"), Span::ZERO, false).unwrap()), second, 30),
        (Algorithm::TokenBucket(TokenBucket::new(&rates("50/s"), Some(20), Refill::Greedy).unwrap()), second, 50),
        (Algorithm::Gcra(Gcra::new(&rates("100/s"), Some(10)).unwrap()), second, 100),
    ] {
        for seed in 0..seeds(12) {
            let is_log = matches!(algorithm, Algorithm::SlidingLog(_));
            let sharing =
                if is_log || seed % 3 == 0 { strict(OnFailure::Closed) } else { lease(0.25, OnFailure::Closed) };
            let gateways = 1 + seed as usize % 4;
            let (largest_cost, delay) = (1 + seed % 2, micros(100 + 300 * (seed % 5)));
            let (algorithm, rates) = (algorithm.clone(), vec![400; gateways]);
            let setting =
                Setting { seed, gateways, sharing, algorithm, rates, largest_cost, delay, ..Setting::default() };
            let mut world = World::new(setting);
            world.run();
            world.assert_bound();
            let given =
                world.least_in((Tick::ZERO + stretch + sharing.hold + Span::from_millis(350)).since(Tick::ZERO));
            assert!(given + largest_cost > least, "seed {seed}: {given} of {least} of {:?}", world.setting.algorithm);
        }
    }
}

#[test]
fn keeps_its_bound_when_gateways_crash_and_come_back() {
    for seed in 0..seeds(200) {
        let mut world = World::new(Setting { crashes: 4, ..drawn(1_000 + seed) });
        world.run();
        world.assert_bound();
    }
}

/// The same where requests wait for their turn, are given up, and gateways lose sight of the store: in the order of their
/// arrival at each gateway, none longer than it is patient and the deadline.
#[test]
fn keeps_its_bound_and_their_order_where_requests_wait_for_their_turn() {
    let mut all_waited = 0;
    for seed in 0..seeds(300) {
        let max_wait = micros([30_000, 200_000, 900_000, 2_500_000][seed as usize % 4]);
        let crashes = [0, 2][seed as usize / 4 % 2];
        let outages = [0, 0, 3][seed as usize / 8 % 3];
        let mut world = World::new(Setting { max_wait, gives_up: 10, crashes, outages, ..drawn(3_000 + seed) });
        world.run();
        world.assert_bound();
        all_waited += world.waited;
        world.settle_down();
        world.assert_bound();
        for gateway in &world.gateways {
            let waiting = (gateway.limit.stats().waiting, gateway.limit.outstanding(world.now).waiting);
            assert_eq!(waiting, (0, 0), "seed {seed}");
        }
    }
    assert!(all_waited > 10_000, "{all_waited}");
}

#[test]
fn reports_all_that_was_spent_although_keys_are_forgotten() {
    let mut all_forgotten = 0;
    for seed in 0..seeds(60) {
        let mut world = World::new(Setting { keys: 60, max_keys: 20, lost: 0, secs: 4, ..drawn(2_000 + seed) });
        world.run();
        let forgotten: u64 = world.gateways.iter().map(|gateway| gateway.limit.stats().evicted_live).sum();
        world.settle_down();
        let admitted: u64 = world.passes.iter().map(|pass| pass.cost).sum();
        // Beyond `max_keys` keys a window some have no place in the store.
        let alone: u64 = world.gateways.iter().map(|gateway| gateway.limit.outstanding(world.now).alone).sum();
        let counted = world.charged - world.returned + alone;
        assert!(alone < admitted && counted >= admitted, "seed {seed}: {admitted} admitted, {counted} counted");
        all_forgotten += forgotten;
        for gateway in &world.gateways {
            let Outstanding { owed, granted, lost, waiting, .. } = gateway.limit.outstanding(world.now);
            assert_eq!((owed, granted, lost, waiting), (0, 0, 0, 0), "seed {seed}");
        }
    }
    assert!(all_forgotten > 1_000, "{all_forgotten}");
}

#[test]
fn costs_the_store_little_and_gives_each_gateway_its_part() {
    for (limit, rate, most) in
        [("100/s", 17, 0.4), ("100/s", 33, 0.5), ("100/s", 60, 0.5), ("1000/s", 170, 0.1), ("1000/s", 600, 0.15)]
    {
        let mut world = World::new(Setting {
            algorithm: wheel(&[limit], None, Bound::Sliding),
            rates: vec![rate; 3],
            secs: 20,
            ..Setting::default()
        });
        world.run();
        let operations = world.operations as f64 / world.arrivals as f64;
        assert!(operations <= most, "{limit}, {rate}/s: {operations:.3} operations a request");
        for gateway in 0..3 {
            let own = world.passes.iter().filter(|pass| pass.gateway == gateway).count();
            let even = world.passes.len() / 3;
            assert!(own * 4 >= even, "{limit}: gateway {gateway} admitted {own} of {even}");
        }
    }
}
