use super::*;
use crate::samples::ServerFailure;

const WINDOW: Span = Span::from_secs(10);
const ABOVE: Span = Span::from_millis(800);

fn at(secs: u64) -> Tick {
    Tick::ZERO + Span::from_secs(secs)
}

fn millis(millis: u64) -> Span {
    Span::from_millis(millis)
}

/// The samples of one worker: so many of each client, with this latency in milliseconds.
fn worker(samples: &[(u64, u64, u64)]) -> LatencySamples {
    let mut worker = LatencySamples::new(WINDOW);
    let mut random = 1u64;
    // Turn by turn and over all seconds, so that slots keep a fair part.
    let most = samples.iter().map(|(count, ..)| *count).max().unwrap_or(0);
    for turn in 0..most {
        for (count, client, latency) in samples {
            if turn * count / most < (turn + 1) * count / most {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                worker.add(millis(*latency), *client, at(turn * 10 / most), random ^ (random >> 33));
            }
        }
    }
    worker
}

fn quantile(workers: &[LatencySamples], quantile: f64) -> Option<Span> {
    let mut set = SampleSet::new(WINDOW);
    for worker in workers {
        set.collect(worker, at(10));
    }
    set.quantile(quantile, ABOVE)
}

/// Honest clients from number 100 on, each with as many samples.
fn honest(clients: u64, each: u64, latency: u64) -> Vec<(u64, u64, u64)> {
    (0..clients).map(|n| (each, 100 + n, latency)).collect()
}

fn of(totals: &[f64]) -> ClientTotals {
    ClientTotals { clients: totals.iter().enumerate().map(|(client, total)| (client as u64, *total)).collect() }
}

#[test]
fn the_cap_is_a_third_of_what_is_left_after_the_cut() {
    for (totals, cap) in [
        (&[90.0][..], 90.0),
        (&[90.0, 10.0], 10.0),
        (&[50.0, 50.0], 50.0),
        (&[90.0, 5.0, 5.0], 5.0),
        (&[90.0, 6.0, 4.0], 4.0),
        (&[60.0, 50.0, 10.0, 2.0], 12.0),
        (&[90.0, 4.0, 3.0, 3.0], 5.0),
        (&[10.0, 10.0, 10.0, 10.0], 10.0),
        (&[90.0, 0.0, 0.0], 0.0),
        (&[90.0, 0.0], 0.0),
    ] {
        let of = of(totals);
        assert!((of.cap() - cap).abs() < 1e-9, "{totals:?}: {}", of.cap());
        let cut: Vec<f64> = totals.iter().map(|total| total.min(cap)).collect();
        let share = (1.0 / totals.len() as f64).max(1.0 / 3.0);
        assert!(cut.iter().all(|part| *part <= share * cut.iter().sum::<f64>() + 1e-9), "{cut:?}");
    }
    assert!(of(&[]).cap().abs() < 1e-9);
}

#[test]
fn a_quantile_is_that_of_all_workers() {
    let fast = worker(&honest(10, 45, 20));
    let slow = worker(&honest(10, 45, 300));
    assert_eq!(quantile(&[fast.clone(), slow.clone()], 0.49), Some(millis(20)));
    assert_eq!(quantile(&[fast.clone(), slow.clone()], 0.51), Some(millis(300)));
    assert_eq!(quantile(std::slice::from_ref(&fast), 1.0), Some(millis(20)));
    assert_eq!(quantile(std::slice::from_ref(&slow), 0.0), Some(millis(300)));
}

#[test]
fn a_busy_worker_weighs_as_much_as_it_serves() {
    // Of 20,000 requests fewer than 1,280 are kept.
    let workers = [worker(&honest(10, 2_000, 20)), worker(&honest(10, 50, 300))];
    assert_eq!(quantile(&workers, 0.95), Some(millis(20)));
    assert_eq!(quantile(&workers, 0.98), Some(millis(300)));
}

#[test]
fn few_requests_say_nothing_and_old_ones_neither() {
    assert_eq!(quantile(&[], 0.95), None);
    assert_eq!(quantile(&[worker(&honest(19, 1, 900))], 0.95), None);
    assert_eq!(quantile(&[worker(&honest(20, 1, 900))], 0.95), Some(millis(900)));
    let mut set = SampleSet::new(WINDOW);
    set.collect(&worker(&honest(20, 10, 900)), at(30));
    assert_eq!(set.quantile(0.95, ABOVE), None);
    let mut recent = SampleSet::new(Span::from_secs(2));
    recent.collect(&worker(&honest(20, 10, 900)), at(10));
    assert!((recent.samples.iter().map(|sample| sample.weight).sum::<f64>() - 40.0).abs() < 1e-9);
}

#[test]
fn one_client_alone_cannot_bring_a_reading_above_the_threshold() {
    // 90% of all requests, all slow: cut to a third that is still a third of quantile 0.95.
    let mut samples = honest(50, 20, 20);
    samples.push((9_000, 1, 5_000));
    assert_eq!(quantile(&[worker(&samples)], 0.95), Some(millis(20)));
    // Nor to where the scale holds and does not go up.
    samples.pop();
    samples.push((9_000, 1, 790));
    assert_eq!(quantile(&[worker(&samples)], 0.95), Some(millis(20)));
    // Nor where there is only one other client.
    assert_eq!(quantile(&[worker(&[(900, 1, 5_000), (100, 100, 20)])], 0.95), Some(millis(20)));
}

#[test]
fn a_flood_of_one_client_does_not_make_it_the_only_one() {
    let mut samples = honest(50, 10, 20);
    samples.push((500_000, 1, 5_000));
    assert_eq!(quantile(&[worker(&samples)], 0.95), Some(millis(20)));
}

#[test]
fn without_leaving_it_out_a_third_would_be_enough() {
    let mut samples = honest(50, 20, 20);
    samples.push((9_000, 1, 5_000));
    let mut set = SampleSet::new(WINDOW);
    set.collect(&worker(&samples), at(10));
    set.samples.sort_unstable_by_key(|sample| sample.latency);
    let mut totals = ClientTotals::default();
    set.samples.iter().for_each(|sample| totals.add(sample.client, sample.weight));
    assert_eq!(set.capped_quantile(0.95, &totals, None), Some(millis(5_000)));
    assert_eq!(set.capped_quantile(0.66, &totals, None), Some(millis(20)));
    assert_eq!(set.capped_quantile(0.68, &totals, None), Some(millis(5_000)));
}

#[test]
fn two_clients_together_can() {
    let mut samples = honest(50, 20, 20);
    samples.extend([(4_500, 1, 5_000), (4_500, 2, 5_000)]);
    assert_eq!(quantile(&[worker(&samples)], 0.95), Some(millis(5_000)));
}

#[test]
fn one_client_cannot_hide_that_the_others_wait() {
    let mut samples = honest(50, 20, 2_000);
    samples.push((90_000, 1, 1));
    assert_eq!(quantile(&[worker(&samples)], 0.95), Some(millis(2_000)));
    assert_eq!(quantile(&[worker(&samples)], 0.5), Some(millis(2_000)));
}

#[test]
fn a_client_that_is_alone_counts() {
    assert_eq!(quantile(&[worker(&[(1_000, 1, 5_000)])], 0.95), Some(millis(5_000)));
}

#[test]
fn a_client_with_most_requests_and_the_others_count_when_all_are_slow() {
    let mut samples = honest(3, 200, 3_000);
    samples.push((9_000, 1, 5_000));
    assert_eq!(quantile(&[worker(&samples)], 0.95), Some(millis(3_000)));
}

/// The failures a minute where each client has so many in 10 s, and some were answered.
fn rate(failed: &[(u64, u64)], answered: &[u64]) -> f64 {
    let mut worker = FailureRate::new(WINDOW);
    for (count, client) in failed {
        (0..*count).for_each(|n| worker.add(ServerFailure::Timeout, *client, at(n * 10 / count), 0));
    }
    for client in answered {
        worker.note_answer(*client, at(5));
    }
    let mut set = FailureSet::new(WINDOW);
    set.collect(&worker, at(10));
    set.per_minute()
}

#[test]
fn failures_are_a_rate_a_minute() {
    assert!(rate(&[], &[1, 2]).abs() < 1e-9);
    assert!((rate(&[(50, 1)], &[]) - 300.0).abs() < 1e-9, "one client alone counts");
    assert!((rate(&[(50, 1), (50, 2), (50, 3)], &[]) - 900.0).abs() < 1e-9);
    assert!((rate(&[(50, 1), (50, 2), (50, 3)], &[1, 2, 3]) - 900.0).abs() < 1e-9);
}

#[test]
fn one_client_adds_half_of_the_failures_of_the_others() {
    assert!((rate(&[(500, 1), (20, 2), (20, 3)], &[4, 5]) - 360.0).abs() < 1e-9);
    assert!(rate(&[(500, 1)], &[2]).abs() < 1e-9, "another client is answered");
    assert!(rate(&[(500, 1)], &[2, 3, 4]).abs() < 1e-9);
    assert!((rate(&[(500, 1), (20, 2)], &[]) - 240.0).abs() < 1e-9, "of two each has half");
}

#[test]
fn the_failures_of_all_workers_are_added() {
    let mut set = FailureSet::new(WINDOW);
    for client in 1..=3 {
        let mut worker = FailureRate::new(WINDOW);
        (0..100).for_each(|n| worker.add(ServerFailure::Connect, client, at(n / 10), n << 58));
        set.collect(&worker, at(10));
    }
    assert!((set.per_minute() - 1_800.0).abs() < 1e-9);
}

#[test]
fn many_clients_that_were_answered_take_no_room() {
    let mut worker = FailureRate::new(WINDOW);
    (0..1_000).for_each(|client| worker.note_answer(client, at(5)));
    let answered: usize = worker.answered(WINDOW, at(10)).map(|kept| kept.samples.len()).sum();
    assert_eq!(answered, 8);
}
