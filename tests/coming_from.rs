//! Each row of `docs/coming-from.md`: the page's own block, under made-up time, gives the numbers that are known of the
//! system it stands for.

#[path = "../examples/pictures/offered.rs"]
mod offered;
#[path = "../examples/pictures/page.rs"]
mod page;

use std::collections::BTreeSet;
use std::sync::Arc;

use offered::{Fate, Request, offer};
use sluicegate::admission::{Cost, CostPlace};
use sluicegate::config::LimitRule;
use sluicegate::limiter::{
    Algorithm, Ask, Counting, Fingerprint, MAX_COUNT, Policy, RefusalReason, Report, Spent, Verdict,
};
use sluicegate::time::{Span, Tick};

const PAGE: &str = include_str!("../docs/coming-from.md");
const TESTS: &str = include_str!("coming_from.rs");
const MINUTE: u64 = 60_000;

/// Headings of rows, and the text below each up to the next heading.
fn rows() -> Vec<(&'static str, &'static str)> {
    let rows = PAGE.split("\n### ").skip(1).map(|row| row.split_once('\n').expect("a text below its heading"));
    rows.map(|(name, text)| (name, text.split("\n## ").next().unwrap_or_default())).collect()
}

/// The limit of the one block of a row.
fn rule(row: &str) -> LimitRule {
    let (_, text) = rows().into_iter().find(|(name, _)| *name == row).unwrap_or_else(|| panic!("no row {row}"));
    let rules: Vec<_> = page::blocks(text).into_iter().flat_map(page::limits).collect();
    let [rule] = <[LimitRule; 1]>::try_from(rules).expect("one limit in a row");
    rule
}

/// A fresh policy of a row's limit.
fn limit(row: &str) -> Arc<Policy> {
    page::policy(&[rule(row)])
}

fn at(millis: u64) -> Tick {
    Tick::ZERO + Span::from_millis(millis)
}

/// Requests of cost 1 at these milliseconds: how long each waited, in milliseconds; `None` was refused.
fn waits(policy: &Arc<Policy>, arrivals: impl IntoIterator<Item = u64>) -> Vec<Option<u64>> {
    waits_of(policy, arrivals.into_iter().map(|millis| (at(millis), 1)))
}

fn waits_of(policy: &Arc<Policy>, requests: impl IntoIterator<Item = (Tick, u64)>) -> Vec<Option<u64>> {
    let requests: Vec<Request> = requests.into_iter().map(|(at, cost)| Request { at, cost }).collect();
    let wait = |(request, fate): (&Request, &Fate)| match fate {
        Fate::Passed(at) => {
            let nanos = at.since(request.at).as_nanos();
            assert_eq!(nanos % 1_000_000, 0, "a whole number of milliseconds");
            Some(nanos / 1_000_000)
        }
        Fate::Refused(..) => None,
    };
    requests.iter().zip(&offer(policy, &requests, Span::ZERO)).map(wait).collect()
}

/// How many of `count` that come at one instant pass then.
fn pass(policy: &Arc<Policy>, millis: u64, count: usize) -> usize {
    waits(policy, vec![millis; count]).into_iter().filter(|wait| *wait == Some(0)).count()
}

/// A for one that passes at its arrival, R for one that is refused.
fn letters(policy: &Arc<Policy>, nanos: impl IntoIterator<Item = u64>) -> String {
    let letter = |wait| match wait {
        Some(0) => 'A',
        None => 'R',
        Some(wait) => panic!("one waited {wait} ms"),
    };
    waits_of(policy, nanos.into_iter().map(|nanos| (Tick::from_nanos(nanos), 1))).into_iter().map(letter).collect()
}

/// The answer to a request that comes now; it consumes nothing, since it costs more than anything may.
fn next_after(policy: &Arc<Policy>, now: Tick) -> Span {
    let mut report = Report::default();
    let mut key = sluicegate::limiter::KeyHasher::fixed().start();
    key.part(0, b"one");
    let ask = [Ask { key: Some(key.finish()), cost: MAX_COUNT, counting: Counting::AtOnce, ..Ask::default() }];
    let _ = policy.check(&ask, Span::ZERO, now, &mut report);
    report.lines()[0].reset.expect("something is taken")
}

#[test]
fn every_row_has_a_test_and_a_line_in_the_table() {
    let rows: BTreeSet<&str> = rows().into_iter().map(|(name, _)| name).collect();
    for row in &rows {
        assert!(TESTS.contains(&format!("#[test]\nfn {row}() {{\n")), "no test is called {row}");
        assert!(TESTS.contains(&format!("(\"{row}\")")), "no test reads the block of {row}");
        let _ = rule(row);
    }
    let lines = PAGE.lines().filter_map(|line| line.strip_suffix("` |")?.rsplit_once('`'));
    assert_eq!(lines.map(|(_, test)| test).collect::<BTreeSet<_>>(), rows);
    assert_eq!(page::blocks(PAGE).len(), rows.len(), "a block outside a row is tested by nobody");
}

#[test]
fn limits_of_whole_programs_are_global_and_those_of_nginx_answer_503() {
    let keyed =
        |key: &str| page::limits(&format!("[[limit]]\nname = \"x\"\nrate = \"1/s\"\nkey = \"{key}\"\n"))[0].clone();
    for (name, _) in rows() {
        let LimitRule { key, status, .. } = rule(name);
        let of_a_program = ["envoy", "guava", "resilience4j", "sentinel"].iter().any(|system| name.starts_with(system));
        assert_eq!(key, keyed(if of_a_program { "global" } else { "client-ip" }).key, "{name}");
        assert_eq!(status, if name.starts_with("nginx") { 503 } else { 429 }, "{name}");
    }
}

#[test]
fn nginx_limit_req() {
    let policy = limit("nginx_limit_req");
    assert_eq!(letters(&policy, [0, 9_999_000, 10_000_000, 19_999_999, 20_000_000]), "ARARA");
}

#[test]
fn nginx_limit_req_burst() {
    let policy = limit("nginx_limit_req_burst");
    assert_eq!(waits(&policy, [0; 7]), [Some(0), Some(100), Some(200), Some(300), None, None, None]);
    assert_eq!(waits(&policy, [10_000; 2]), [Some(0), Some(100)], "a rest earns nothing");
}

#[test]
fn nginx_limit_req_nodelay() {
    let policy = limit("nginx_limit_req_nodelay");
    assert_eq!(letters(&policy, [0; 7]), "AAAARRR");
    assert_eq!(letters(&policy, [99_999_999, 100_000_000, 199_999_999, 200_000_000, 200_000_000]), "RARAR");
}

#[test]
fn nginx_limit_req_delay() {
    let policy = limit("nginx_limit_req_delay");
    assert_eq!(waits(&policy, [0; 7]), [Some(0), Some(0), Some(100), Some(200), None, None, None]);
}

#[test]
fn haproxy_stick_table_rate() {
    let policy = limit("haproxy_stick_table_rate");
    assert_eq!(pass(&policy, 59_000, 20), 10);
    // 10 x 59/60 = 9.83: one passes, and what was refused is not counted.
    assert_eq!(pass(&policy, 61_000, 10), 1);
    // 10 x 45/60 = 7.5, and one of this minute.
    assert_eq!(pass(&policy, 75_000, 10), 2);
    // Ten in the minute before, none in this one: 0, 2.5, 5 and at the end all are free.
    for (millis, free) in [(0, 0), (15_000, 3), (30_000, 5), (59_400, 10)] {
        let policy = limit("haproxy_stick_table_rate");
        assert_eq!(pass(&policy, 0, 10), 10);
        assert_eq!(pass(&policy, MINUTE + millis, 20), free, "{millis} ms into the next minute");
    }
}

#[test]
fn envoy_local_rate_limit() {
    let policy = limit("envoy_local_rate_limit");
    assert_eq!(letters(&policy, [300_000_000; 12]), "AAAARRRRRRRR");
    assert_eq!(letters(&policy, [550_000_000, 1_299_999_999]), "RR", "nothing comes back before the interval's end");
    assert_eq!(letters(&policy, [1_300_000_000; 12]), "AAAARRRRRRRR");
}

#[test]
fn guava_smooth_bursty() {
    let policy = limit("guava_smooth_bursty");
    assert_eq!(waits(&policy, [0, 0, 0]), [Some(0), Some(200), Some(400)]);
    // Each as soon as the one before has passed: 0, 0.2, 0.2.
    let policy = limit("guava_smooth_bursty");
    assert_eq!(waits(&policy, [0, 0, 200]), [Some(0), Some(200), Some(200)]);
    let policy = limit("guava_smooth_bursty");
    assert_eq!(waits_of(&policy, [(at(0), 15), (at(0), 1), (at(0), 1)]), [Some(0), Some(3_000), Some(3_200)]);
    // Who would wait longer than max_wait is refused.
    let policy = limit("guava_smooth_bursty");
    assert_eq!(waits_of(&policy, [(at(0), 50), (at(0), 1), (at(0), 1)]), [Some(0), Some(10_000), None]);
    let policy = limit("guava_smooth_bursty");
    assert_eq!(waits_of(&policy, [(at(0), 15), (at(3_000), 1)]), [Some(0), Some(0)]);
    // A second of rest is stored, five permits, however long the rest.
    assert_eq!(waits(&policy, [60_000; 7])[..], [[Some(0); 6].as_slice(), &[Some(200)]].concat());
}

#[test]
fn guava_stored_permits() {
    let policy = limit("guava_stored_permits");
    assert_eq!(waits(&policy, [0]), [Some(0)]);
    // Its permit is paid at 1 s, and ten seconds later ten are stored.
    let full = at(11_000);
    assert_eq!(waits_of(&policy, [(full, 3), (full, 10), (full, 1)]), [Some(0), Some(0), Some(3_000)]);
    // No more than ten are stored.
    assert_eq!(
        waits_of(&policy, [(at(90_000), 10), (at(90_000), 1), (at(90_000), 1)]),
        [Some(0), Some(0), Some(1_000)]
    );
    // A big request passes now, and the next one pays.
    let policy = limit("guava_stored_permits");
    let costs = [(0, 1), (0, 1), (1_000, 2), (2_000, 4), (4_000, 8), (8_000, 1)];
    let expected = [0, 1_000, 1_000, 2_000, 4_000, 8_000].map(Some);
    assert_eq!(waits_of(&policy, costs.map(|(millis, cost)| (at(millis), cost))), expected);
}

#[test]
fn guava_permits_for_bytes() {
    let cost = &rule("guava_permits_for_bytes").cost;
    assert!(matches!(cost, Some(Cost::Stated(stated)) if matches!(*stated.places, [CostPlace::ContentLength(_)])));
    let policy = limit("guava_permits_for_bytes");
    assert_eq!(waits_of(&policy, [(at(0), 15_000), (at(0), 1)]), [Some(0), Some(3_000)]);
}

#[test]
fn guava_warm_up() {
    let wait_of = |requests: &[(u64, u64)]| {
        let policy = limit("guava_warm_up");
        let requests: Vec<Request> = requests
            .iter()
            .map(|(micros, cost)| Request { at: Tick::from_nanos(micros * 1_000), cost: *cost })
            .collect();
        let fates = offer(&policy, &requests, Span::ZERO);
        let wait = |(request, fate): (&Request, &Fate)| match fate {
            // To the microsecond.
            Fate::Passed(at) => (at.since(request.at).as_nanos() + 500) / 1_000,
            Fate::Refused(why, _) => panic!("{why:?}"),
        };
        requests.iter().zip(&fates).map(wait).collect::<Vec<u64>>()
    };
    let waits = [0, 1_375_000, 1_125_000, 875_000, 625_000, 500_000, 500_000];
    // Each comes when the one before has passed.
    let mut requests = Vec::new();
    let mut now = 0;
    for wait in waits {
        requests.push((now, 1));
        now += wait;
    }
    assert_eq!(wait_of(&requests), waits);
    assert_eq!(wait_of(&[(0, 3), (0, 1)]), [0, waits[1] + waits[2] + waits[3]]);
    let Algorithm::WarmUp(warm_up) = rule("guava_warm_up").spec.algorithm else { panic!("another algorithm") };
    assert_eq!(warm_up.coldest(), Span::from_millis(1_500), "three times as slow when cold");
}

#[test]
fn bucket4j_greedy() {
    let policy = limit("bucket4j_greedy");
    let letters = letters(&policy, (0..20).map(|nth| nth * 60_000_000));
    assert_eq!(letters, "AAAAAARARAARARAARARA");
    assert_eq!(letters.matches('A').count(), 14);
    // 0.4 of a token is left.
    assert_eq!(next_after(&policy, at(19 * 60)), Span::from_millis(60));
}

#[test]
fn bucket4j_intervally() {
    let policy = limit("bucket4j_intervally");
    assert_eq!(pass(&policy, 59_000, 12), 10);
    assert_eq!(pass(&policy, 61_000, 10), 0);
    assert_eq!(pass(&policy, 118_999, 10), 0);
    assert_eq!(pass(&policy, 119_000, 12), 10);
}

#[test]
fn bucket4j_two_bandwidths() {
    let policy = limit("bucket4j_two_bandwidths");
    let passed: Vec<usize> = (0..12).map(|nth| pass(&policy, nth * 100, 50)).collect();
    assert_eq!(passed, [20, 20, 20, 20, 20, 20, 20, 20, 20, 10, 10, 10]);
}

#[test]
fn resilience4j_rate_limiter() {
    let policy = limit("resilience4j_rate_limiter");
    let waits = waits(&policy, vec![0; 25]);
    assert_eq!(waits, [vec![Some(0); 10], vec![Some(1_000); 10], vec![None; 5]].concat());
    // Who comes in the 999 ms that remain waits for their end.
    let policy = limit("resilience4j_rate_limiter");
    let late = self::waits(&policy, [vec![0; 10], vec![1, 999]].concat());
    assert_eq!(late[10..], [Some(999), Some(1)]);
    // The next period has all of its permits, however late in this one they were taken.
    let policy = limit("resilience4j_rate_limiter");
    assert_eq!((pass(&policy, 900, 10), pass(&policy, 1_000, 10)), (10, 10));
}

#[test]
fn sentinel_default() {
    let policy = limit("sentinel_default");
    assert_eq!(pass(&policy, 400, 12), 10);
    assert_eq!(pass(&policy, 999, 12), 0);
    assert_eq!(pass(&policy, 1_000, 12), 10);
    let policy = limit("sentinel_default");
    assert_eq!((pass(&policy, 400, 4), pass(&policy, 600, 12), pass(&policy, 1_000, 12)), (4, 6, 4));
}

#[test]
fn sentinel_rate_limiter() {
    let policy = limit("sentinel_rate_limiter");
    assert_eq!(waits(&policy, [0; 7]), [Some(0), Some(100), Some(200), Some(300), None, None, None]);
    // The fifth turn is at 1.4 s.
    assert_eq!(waits(&policy, [1_000, 1_000, 1_000, 1_000, 1_099, 1_100])[4..], [None, Some(300)]);
}

#[test]
fn java_window_of_rooms() {
    let policy = limit("java_window_of_rooms");
    assert_eq!(letters(&policy, (0..26).map(|nth| nth * 300_000_000)), "A".repeat(26));
    let policy = limit("java_window_of_rooms");
    assert_eq!(letters(&policy, (0..6).map(|nth| nth * 1_000_000)), "AAAARR");
    // Four in each room, and twenty in ten rooms.
    let rooms: Vec<usize> = (1..12).map(|room| pass(&policy, room * 500, 10)).collect();
    assert_eq!(rooms, [4, 4, 4, 4, 0, 0, 0, 0, 0, 4, 4]);
}

#[test]
fn spring_cloud_gateway() {
    let policy = limit("spring_cloud_gateway");
    assert_eq!(letters(&policy, [0, 9_999_999, 10_000_000, 10_000_001, 20_000_000]), "ARARA");
}

#[test]
fn apisix_ai_rate_limiting() {
    let of_tokens = rule("apisix_ai_rate_limiting");
    assert_eq!(of_tokens.cost_from_response.as_ref().unwrap().to_string(), "json:/usage/total_tokens");
    let policy = page::policy(&[of_tokens]);
    let answered = |at: Tick, tokens: u64| {
        let key = Fingerprint::known(1);
        let ask = Ask { key, cost: 1, counting: Counting::Corrected, ..Ask::default() };
        match policy.check(&[ask], Span::MAX, at, &mut Report::default()) {
            Verdict::Admitted(mut permit) => {
                permit.settle(at, |_, _| Spent::Cost(tokens));
                None
            }
            Verdict::Refused(refusal) => refusal.retry_at,
            Verdict::Queued(_) => panic!("it lets nothing wait"),
        }
    };
    assert_eq!([answered(at(5_000), 300), answered(at(6_000), 300)], [None; 2]);
    assert_eq!(answered(at(64_999), 1), Some(at(65_000)));
    assert_eq!(answered(at(65_000), 1), None);
}

#[test]
fn redis_incr_and_expire() {
    let policy = limit("redis_incr_and_expire");
    // Each success is a touch of the key, and none makes the window longer.
    assert_eq!(letters(&policy, (59..=68).map(|second| second * 1_000_000_000)), "A".repeat(10));
    assert_eq!(pass(&policy, 118_000, 1), 0);
    assert_eq!(pass(&policy, 119_000, 12), 10);
}

#[test]
fn redis_incr_by_the_minute() {
    let policy = limit("redis_incr_by_the_minute");
    assert_eq!((pass(&policy, 59_000, 12), pass(&policy, 61_000, 12)), (10, 10));
    let block = "[[limit]]\nname = \"hour\"\nalgorithm = \"fixed-window\"\nrate = \"3000/h\"\n";
    let hour = page::policy(&page::limits(block));
    let minute = waits(&hour, (0..6_000).map(|nth| nth * 10));
    assert_eq!(minute.iter().flatten().count(), 3_000, "all in the first minute");
}

#[test]
fn redis_sorted_set() {
    let policy = limit("redis_sorted_set");
    assert_eq!(pass(&policy, 59_000, 12), 10);
    assert_eq!(pass(&policy, 61_000, 10), 0);
    assert_eq!(letters(&policy, [118_999_999_999, 119_000_000_000]), "RA", "a stamp leaves at exactly t + W");
    let policy = limit("redis_sorted_set");
    let (first, last) = (59_500_000_000, 119_499_999_999);
    assert_eq!(letters(&policy, [vec![first; 10], vec![last, last + 1]].concat()), "A".repeat(10) + "RA");
    let policy = limit("redis_sorted_set");
    let ten_minutes = waits(&policy, (0..6_000).map(|nth| nth * 100));
    assert_eq!(ten_minutes.iter().flatten().count(), 100);
}

#[test]
fn class_dojo_rolling_rate_limiter() {
    let policy = limit("class_dojo_rolling_rate_limiter");
    let letters_of = |policy, millis: &[u64]| letters(policy, millis.iter().map(|millis| millis * 1_000_000));
    let ten_minutes: Vec<u64> = (0..6_000).map(|nth| nth * 100).collect();
    assert_eq!(letters_of(&policy, &ten_minutes), "A".repeat(10) + &"R".repeat(5_990));
    let rested: Vec<u64> = (0..11).map(|nth| 599_900 + MINUTE + nth * 100).collect();
    assert_eq!(letters_of(&policy, &rested), "AAAAAAAAAAR", "a minute of rest");
    let policy = limit("class_dojo_rolling_rate_limiter");
    assert_eq!(letters_of(&policy, &[0, 50, 120, 220]), "ARRA", "apart from the refused ones too");
    let fates = offer(&policy, &[Request { at: at(230), cost: 1 }], Span::ZERO);
    assert_eq!(fates, [Fate::Refused(RefusalReason::Rate, Some(at(330)))], "behind its own stamp");
}
