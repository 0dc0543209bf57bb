//! The cost of a check beside `governor` and beside a map under a lock, all in one run: time per check with few and
//! with many keys, two threads at once, bytes per key, the worst insert while a table grows, and a flood of new keys.
//!
//! `cargo bench --bench limiter`; `LIMITER_BENCH_KEYS=1000,1000000` leaves the ten million keys out.
//! `LIMITER_BENCH_TIMES='gcra admitted:1000'` does that one as often and nothing else, for a profiler that counts
//! instructions: the difference of two such runs is without the start.
//!
//! The clock is not counted: instants are made, not read. Keys come in turn, and each is elsewhere in the limiter's
//! memory than the one before; their list itself is read in its order, so that with many keys a check costs what the
//! limiter's own memory does. Rounds of all subjects are interleaved, and the median is shown.

mod subjects;

use std::hint::black_box;
use std::thread;

use sluicegate::limiter::{Algorithm, Gcra, OnFull, Report};
use sluicegate::time::{Clock, Span};

use subjects::{Cells, Governor, HashedCells, Naive, Ours, Quotas, START, Subject, Tokens, Wheel, name};

/// Checks in one timed round.
const CHECKS: u64 = 2_000_000;
const ROUNDS: usize = 7;

/// Something that is done so many times.
type Times = Box<dyn FnMut(u64)>;

fn keys<S: Subject>(subject: &S, count: u64) -> Vec<S::Key> {
    (0..count).map(|index| subject.key(name(index))).collect()
}

/// How much time passes from check to check: each key comes just at its rate, so that it is always live.
fn step(quotas: Quotas, keys: u64) -> Span {
    match quotas {
        Quotas::Hundred => Span::from_nanos(1_000_000_000 / 100 / keys),
        Quotas::One => Span::ZERO,
    }
}

/// One check after the other, of a limiter that knows all its keys.
fn checks<S: Subject + 'static>(quotas: Quotas, count: u64) -> Times {
    let subject = S::new(quotas, count);
    let keys = keys(&subject, count);
    let step = step(quotas, count);
    let (mut report, mut now, mut at) = (Report::default(), START, 0);
    for key in &keys {
        now = now + step;
        subject.check(*key, now, &mut report);
    }
    Box::new(move |times| {
        let mut admitted = 0;
        for _ in 0..times {
            now = now + step;
            admitted += u64::from(subject.check(keys[at], now, &mut report));
            at = if at + 1 == keys.len() { 0 } else { at + 1 };
        }
        let all = if quotas == Quotas::One { 0 } else { times };
        assert_eq!(black_box(admitted), all, "it measures something else than it says");
    })
}

/// Two threads, each the half of the checks, over one limiter; the second one is half a list ahead.
fn by_two<S: Subject + 'static>(count: u64) -> Times {
    let subject = S::new(Quotas::Hundred, count);
    let keys = keys(&subject, count);
    let step = step(Quotas::Hundred, count);
    let (mut report, mut now) = (Report::default(), START);
    for key in &keys {
        now = now + step;
        subject.check(*key, now, &mut report);
    }
    Box::new(move |times| {
        thread::scope(|scope| {
            for begin in [0, keys.len() / 2] {
                let (subject, keys) = (&subject, &keys);
                scope.spawn(move || {
                    let (mut report, mut now, mut at) = (Report::default(), now, begin);
                    for _ in 0..times / 2 {
                        now = now + step + step;
                        black_box(subject.check(keys[at], now, &mut report));
                        at = if at + 1 == keys.len() { 0 } else { at + 1 };
                    }
                });
            }
        });
        now = now + Span::from_nanos(step.as_nanos() * times);
    })
}

/// Nanoseconds per check of each, the median of interleaved rounds.
fn measure(cases: &mut [(&str, Times)]) -> Vec<f64> {
    let clock = Clock::system();
    let mut rounds = vec![Vec::new(); cases.len()];
    for _ in 0..ROUNDS {
        for ((_, times), rounds) in cases.iter_mut().zip(&mut rounds) {
            let started = clock.now();
            times(CHECKS);
            rounds.push(clock.now().since(started).as_nanos() as f64 / CHECKS as f64);
        }
    }
    let median = |mut rounds: Vec<f64>| {
        rounds.sort_unstable_by(f64::total_cmp);
        rounds[rounds.len() / 2]
    };
    rounds.into_iter().map(median).collect()
}

fn cases(quotas: Quotas, keys: u64) -> Vec<(&'static str, Times)> {
    vec![
        ("timer-wheel", checks::<Wheel>(quotas, keys)),
        ("gcra", checks::<Cells>(quotas, keys)),
        ("token-bucket", checks::<Tokens>(quotas, keys)),
        ("gcra, key hashed", checks::<HashedCells>(quotas, keys)),
        ("governor", checks::<Governor>(quotas, keys)),
        ("mutex and map", checks::<Naive>(quotas, keys)),
    ]
}

fn cases_by_two(keys: u64) -> Vec<(&'static str, Times)> {
    vec![
        ("timer-wheel", by_two::<Wheel>(keys)),
        ("gcra", by_two::<Cells>(keys)),
        ("token-bucket", by_two::<Tokens>(keys)),
        ("gcra, key hashed", by_two::<HashedCells>(keys)),
        ("governor", by_two::<Governor>(keys)),
        ("mutex and map", by_two::<Naive>(keys)),
    ]
}

/// Prints a table of figures: a line per case, a column per number of keys.
fn table(title: &str, sizes: &[u64], make: impl Fn(u64) -> Vec<(&'static str, Times)>, figure: impl Fn(f64) -> f64) {
    let mut lines: Vec<(&str, Vec<f64>)> = Vec::new();
    for &size in sizes {
        let mut cases = make(size);
        for (at, nanos) in measure(&mut cases).into_iter().enumerate() {
            match lines.get_mut(at) {
                Some((_, figures)) => figures.push(figure(nanos)),
                None => lines.push((cases[at].0, vec![figure(nanos)])),
            }
        }
    }
    print!("\n{title:<32}");
    for size in sizes {
        print!("{size:>12}");
    }
    println!();
    for (name, figures) in lines {
        print!("{name:<32}");
        for figure in figures {
            print!("{figure:>12.1}");
        }
        println!();
    }
}

/// Resident bytes of this process.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    pages.and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok()).unwrap_or(0) * 4_096
}

/// Bytes per key and the worst single insert, from nothing to `count` keys.
fn growth<S: Subject>(name: &str, count: u64) {
    let clock = Clock::system();
    let subject = S::new(Quotas::Hundred, count);
    let keys = keys(&subject, count);
    let mut report = Report::default();
    let before = resident();
    let mut slowest: Vec<u64> = Vec::new();
    for key in &keys {
        let started = clock.now();
        subject.check(*key, START, &mut report);
        let took = clock.now().since(started).as_nanos();
        if took > 20_000 {
            slowest.push(took);
        }
    }
    let bytes = resident().saturating_sub(before) as f64 / count as f64;
    slowest.sort_unstable_by(|a, b| b.cmp(a));
    slowest.truncate(3);
    let slowest: Vec<String> = slowest.iter().map(|nanos| format!("{:>8.2}", *nanos as f64 / 1e6)).collect();
    println!("{name:<20}{count:>12}{bytes:>10.1}   {}", slowest.join(" "));
}

/// New keys without end, one check each, over a table that is full.
fn flood(name: &str, on_full: OnFull, keys: u64, count: u64) {
    let clock = Clock::system();
    let gcra = Gcra::new(&["1/h".parse().expect("a rate")], None).expect("a rate");
    let ours = Ours::new(Algorithm::Gcra(gcra), keys, on_full);
    let mut report = Report::default();
    let (mut admitted, mut full) = (0u64, 0);
    let started = clock.now();
    for index in 0..count {
        if index == keys * 2 {
            full = resident();
        }
        let now = START + Span::from_nanos(index);
        admitted += u64::from(ours.ask(ours.fingerprint(subjects::name(index)), now, &mut report));
    }
    let nanos = clock.now().since(started).as_nanos() as f64 / count as f64;
    let (stats, grown) = (ours.limit.stats(), resident().saturating_sub(full));
    println!(
        "{:<14}{count:>12}{:>12}{admitted:>12}{nanos:>10.1}{:>12.1}",
        name,
        stats.keys,
        grown as f64 / 1024.0 / 1024.0
    );
    assert!(stats.keys <= keys, "more keys than the bound");
    assert!(grown < 8 << 20, "memory grows with the keys that come");
}

/// A part of this in a process of its own, which begins with no memory that others have used.
fn alone(part: &str, wish: &str) {
    let this = std::env::current_exe().expect("the path of this program");
    let status = std::process::Command::new(this).env(part, wish).status().expect("it starts again");
    assert!(status.success(), "{part}={wish} failed");
}

/// `name:count`.
fn wish(text: &str) -> (&str, u64) {
    let (name, count) = text.split_once(':').expect("a name, a colon and a number");
    (name, count.parse().expect("a number after the colon"))
}

fn growth_of((name, count): (&str, u64)) {
    match name {
        "timer-wheel" => growth::<Wheel>(name, count),
        "gcra" => growth::<Cells>(name, count),
        "token-bucket" => growth::<Tokens>(name, count),
        "governor" => growth::<Governor>(name, count),
        _ => growth::<Naive>(name, count),
    }
}

fn flood_of((name, count): (&str, u64)) {
    let on_full = match name {
        "allow" => OnFull::Allow,
        "refuse" => OnFull::Refuse,
        _ => OnFull::EvictOldest,
    };
    flood(name, on_full, 1_000_000, count);
}

/// That case as often, and nothing else.
fn only((name, times): (&str, u64)) {
    let quotas = if name.ends_with("refused") { Quotas::One } else { Quotas::Hundred };
    let name = name.trim_end_matches(" refused").trim_end_matches(" admitted");
    let mut case = cases(quotas, 1_000).into_iter().find(|(known, _)| *known == name).expect("the name of a case");
    case.1(times);
}

fn main() {
    let part = |name: &str| std::env::var(name).ok();
    if let Some(text) = part("LIMITER_BENCH_TIMES") {
        return only(wish(&text));
    }
    if let Some(text) = part("LIMITER_BENCH_GROWTH") {
        return growth_of(wish(&text));
    }
    if let Some(text) = part("LIMITER_BENCH_FLOOD") {
        return flood_of(wish(&text));
    }
    let sizes = std::env::var("LIMITER_BENCH_KEYS").unwrap_or_else(|_| "1000,1000000,10000000".into());
    let sizes: Vec<u64> = sizes.split(',').map(|size| size.parse().expect("a number of keys")).collect();
    table("ns a check, admitted", &sizes, |keys| cases(Quotas::Hundred, keys), |nanos| nanos);
    table("ns a check, refused", &sizes, |keys| cases(Quotas::One, keys), |nanos| nanos);
    table("million checks/s, two threads", &sizes, cases_by_two, |nanos| 1e3 / nanos);
    println!("\n{:<20}{:>12}{:>10}   worst inserts, ms", "growth to", "keys", "B a key");
    for &size in sizes.iter().filter(|size| **size >= 100_000) {
        for name in ["timer-wheel", "gcra", "token-bucket", "governor", "mutex and map"] {
            alone("LIMITER_BENCH_GROWTH", &format!("{name}:{size}"));
        }
    }
    let largest = sizes.iter().max().copied().unwrap_or(0);
    println!(
        "\n{:<14}{:>12}{:>12}{:>12}{:>10}{:>12}",
        "flood, on_full", "new keys", "kept", "admitted", "ns each", "MiB grown"
    );
    for on_full in ["evict-oldest", "allow", "refuse"] {
        alone("LIMITER_BENCH_FLOOD", &format!("{on_full}:{}", largest * 5));
    }
}
