//! One client cannot drive the scale down for all. Two or three can, and a client that is alone counts.

use sluicegate_overload::{
    FailureRate, FailureSet, LatencySamples, LimitActivity, LimitScale, SampleSet, ScaleTerms, SensorReading,
    ServerFailure,
};
use sluicegate_time::{Span, Tick};

use super::plant::Random;

const WINDOW: Span = Span::from_secs(10);
const ABOVE: Span = Span::from_millis(800);

/// Runs two minutes with 50 honest clients that have 10 requests a second, and attackers that have 90, all slow and
/// failing. Returns the lowest scale in basis points, by latencies and by failures.
fn lowest(seed: u64, honest: u64, attackers: u64) -> [u32; 2] {
    let mut random = Random(seed);
    let terms = ScaleTerms { floor_percent: 20, step_percent: 10 };
    let mut scales = [LimitScale::new(terms), LimitScale::new(terms)];
    let mut lowest = [10_000; 2];
    let mut workers = [0, 1].map(|_| (LatencySamples::new(WINDOW), FailureRate::new(WINDOW)));
    for second in 0..120 {
        let mut now = Tick::ZERO + Span::from_secs(second);
        for turn in 0..100u64 {
            now = now + Span::from_millis(10);
            let (samples, failures) = &mut workers[usize::from(random.share() < 0.5)];
            let is_attack = attackers > 0 && turn % 10 != 0;
            if is_attack {
                let client = 1_000 + random.next() % attackers;
                samples.add(Span::from_secs(5), client, now, random.next());
                failures.add(ServerFailure::Timeout, client, now, random.next());
            } else if honest > 0 {
                let client = random.next() % honest;
                samples.add(Span::from_millis(20 + random.next() % 300), client, now, random.next());
                failures.note_answer(client, now);
            }
        }
        let mut latencies = SampleSet::new(WINDOW);
        let mut failures = FailureSet::new(WINDOW);
        for (samples, failed) in &workers {
            latencies.collect(samples, now);
            failures.collect(failed, now);
        }
        let latency = latencies.quantile(0.95, ABOVE).map(Span::in_millis);
        let values = [(latency, ABOVE.in_millis()), (Some(failures.per_minute()), 600.0)];
        for ((scale, lowest), (value, above)) in scales.iter_mut().zip(&mut lowest).zip(values) {
            let reading = SensorReading { sensor: 0, value, recent: None, above, window: WINDOW };
            let activity = LimitActivity { is_shedding: false, has_refused: true };
            *lowest = scale.observe(now, &[reading], activity).basis_points.min(*lowest);
        }
    }
    lowest
}

#[test]
fn one_client_with_most_requests_moves_nothing() {
    for seed in 0..20 {
        assert_eq!(lowest(seed, 50, 1), [10_000, 10_000], "seed {seed}");
        assert_eq!(lowest(seed, 50, 0), [10_000, 10_000], "seed {seed}");
        assert_eq!(lowest(seed, 4, 1), [10_000, 10_000], "seed {seed}");
    }
}

#[test]
fn two_clients_move_latencies_and_three_failures() {
    for seed in 0..20 {
        assert_eq!(lowest(seed, 50, 2), [2_000, 10_000], "seed {seed}");
        assert_eq!(lowest(seed, 50, 3), [2_000, 2_000], "seed {seed}");
    }
}

#[test]
fn a_client_that_is_alone_counts() {
    for seed in 0..5 {
        assert_eq!(lowest(seed, 0, 1), [2_000, 2_000], "seed {seed}");
    }
}
