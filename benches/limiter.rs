//! What a check costs: time per check with few and many keys, bytes per key, the worst insert while the table grows,
//! and two threads at once.
//!
//! `cargo bench --bench limiter`; `LIMITER_BENCH_10M=1` adds ten million keys. The clock is not counted: instants are
//! made, not read.

use std::hint::black_box;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput};
use sluicegate::limiter::{
    Algorithm, Ask, Bound, Fingerprint, KeyHasher, Limit, LimitSpec, Mode, OnFull, Policy, Report, TimerWheel, Verdict,
};
use sluicegate::time::{Clock, Span, Tick};

/// Nothing leaves the window while it is measured, and nobody is refused.
const START: Tick = Tick::from_nanos(1_800_000_000_000_000_000);

fn policy(rate: &str, max_keys: u64) -> (Arc<Limit>, Arc<Policy>) {
    let rate = rate.parse().expect("a rate");
    let limit = Limit::new(LimitSpec {
        name: "bench".into(),
        algorithm: Algorithm::TimerWheel(TimerWheel::new(&[rate], Some(10), Bound::Sliding).expect("a wheel")),
        mode: Mode::Enforce,
        max_wait: Span::ZERO,
        max_queue: None,
        max_keys,
        on_full: OnFull::EvictOldest,
        penalty: None,
    });
    let policy = Policy::new(vec![Arc::clone(&limit)]).expect("a policy");
    (limit, policy)
}

fn keys(count: u64) -> Vec<Fingerprint> {
    let hasher = KeyHasher::fixed();
    let key = |name: u64| {
        let mut key = hasher.start();
        key.part(0, &name.to_le_bytes());
        key.finish()
    };
    (0..count).map(key).collect()
}

fn check(policy: &Arc<Policy>, key: Fingerprint, now: Tick, report: &mut Report) -> bool {
    let ask = [Ask { key: Some(key), cost: 1, later: false }];
    matches!(policy.check(&ask, Span::MAX, now, report), Verdict::Admitted(_))
}

/// A walk through the keys that no prefetcher foresees.
struct Walk(u64);

impl Walk {
    fn next(&mut self, keys: &[Fingerprint]) -> Fingerprint {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        keys[((u128::from(self.0) * keys.len() as u128) >> 64) as usize]
    }
}

fn checks(criterion: &mut Criterion, sizes: &[u64]) {
    let mut group = criterion.benchmark_group("check");
    group.throughput(Throughput::Elements(1));
    for &size in sizes {
        let keys = keys(size);
        // Name, rate, nanoseconds that pass per check.
        for (name, rate, step) in [("admitted", "4000000000/h", 1_000), ("refused", "1/h", 0)] {
            let (_, policy) = policy(rate, (size * 2).max(1_000_000));
            let (mut report, mut now, mut walk) = (Report::default(), START, Walk(1));
            for key in &keys {
                check(&policy, *key, now, &mut report);
            }
            group.bench_function(BenchmarkId::new(name, size), |bench| {
                bench.iter(|| {
                    now = now + Span::from_nanos(step);
                    black_box(check(&policy, walk.next(&keys), now, &mut report))
                });
            });
        }
    }
    group.finish();
}

/// The same number of checks by each of two threads, over one table.
fn two_threads(sizes: &[u64]) {
    const CHECKS: u64 = 4_000_000;
    let clock = Clock::system();
    for &size in sizes {
        let keys = keys(size);
        let (_, policy) = policy("4000000000/h", (size * 2).max(1_000_000));
        let mut report = Report::default();
        for key in &keys {
            check(&policy, *key, START, &mut report);
        }
        let started = clock.now();
        thread::scope(|scope| {
            for seed in [1, 2] {
                let (policy, keys) = (&policy, &keys);
                scope.spawn(move || {
                    let (mut report, mut walk) = (Report::default(), Walk(seed));
                    for _ in 0..CHECKS {
                        black_box(check(policy, walk.next(keys), START, &mut report));
                    }
                });
            }
        });
        let took = clock.now().since(started).as_nanos();
        println!("2 threads, {size:>8} keys: {:.1} Mops/s", (2 * CHECKS) as f64 * 1e3 / took as f64);
    }
}

/// Resident bytes of this process.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    pages.and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok()).unwrap_or(0) * 4_096
}

/// Bytes per key and the worst single insert, from nothing to `count` keys.
fn growth(count: u64, rate: &str) {
    let clock = Clock::system();
    let keys = keys(count);
    let (limit, policy) = policy(rate, count * 2);
    let mut report = Report::default();
    let before = resident();
    let mut slowest: Vec<u64> = Vec::new();
    for key in &keys {
        let started = clock.now();
        check(&policy, *key, START, &mut report);
        let took = clock.now().since(started).as_nanos();
        if took > 20_000 {
            slowest.push(took);
        }
    }
    let bytes = (resident() - before) as f64 / limit.stats().keys as f64;
    slowest.sort_unstable_by(|a, b| b.cmp(a));
    slowest.truncate(5);
    let slowest: Vec<String> = slowest.iter().map(|nanos| format!("{:.2}", *nanos as f64 / 1e6)).collect();
    println!("{count:>8} keys of {rate:>9}: {bytes:.1} bytes a key; worst inserts, ms: {}", slowest.join(" "));
}

fn main() {
    let mut sizes = vec![1_000, 1_000_000];
    if std::env::var_os("LIMITER_BENCH_10M").is_some() {
        sizes.push(10_000_000);
    }
    for &size in &sizes[1..] {
        for rate in ["100/s", "10000/s", "1000000/s"] {
            growth(size, rate);
        }
    }
    two_threads(&sizes);
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    checks(&mut criterion, &sizes);
    criterion.final_summary();
}
