//! `docs/algorithms.md` shows what the limiter does: its blocks pass `check`, and its pictures and table are what the
//! code draws from them.

#[path = "../examples/pictures/drawing.rs"]
mod drawing;
#[path = "../examples/pictures/offered.rs"]
mod offered;
#[path = "../examples/pictures/page.rs"]
mod page;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use drawing::{Picture, draw};
use sluicegate::time::Span;

const PAGE: &str = include_str!("../docs/algorithms.md");

fn pictures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/pictures")
}

fn drawn() -> Vec<Picture> {
    page::blocks(PAGE).into_iter().flat_map(page::limits).map(|rule| draw(&rule)).collect()
}

#[test]
fn the_committed_pictures_are_what_the_program_draws() {
    let drawn = drawn();
    for Picture { name, svg, .. } in &drawn {
        let committed = fs::read_to_string(pictures().join(format!("{name}.svg"))).unwrap_or_default();
        assert!(committed == *svg, "docs/pictures/{name}.svg is not what the code does: cargo run --example pictures");
    }
    let named: BTreeSet<_> = drawn.iter().map(|picture| format!("{}.svg", picture.name)).collect();
    let files = fs::read_dir(pictures()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    assert_eq!(files.collect::<BTreeSet<_>>(), named, "a picture of each block, and no other");
}

#[test]
fn the_table_is_what_the_limiter_does() {
    let rows: Vec<String> = drawn().into_iter().map(|picture| picture.row).collect();
    let (_, below) =
        PAGE.split_once("| limit | bytes a key | at once | later | refused |\n|---|---|---|---|---|\n").unwrap();
    let table: Vec<&str> = below.lines().take_while(|line| line.starts_with('|')).collect();
    assert_eq!(table, rows);
}

#[test]
fn each_block_is_followed_by_its_picture() {
    for (block, after) in PAGE.split("```toml\n").skip(1).map(|rest| rest.split_once("```\n").unwrap()) {
        let rules = page::limits(block);
        assert_eq!(rules.len(), 1, "one limit to draw in {block}");
        let name = &rules[0].spec.name;
        assert!(after.starts_with(&format!("\n![{name}](pictures/{name}.svg)\n")), "the picture below {block}");
    }
}

#[test]
fn every_algorithm_has_a_section_with_a_block_of_it() {
    let mut shown = BTreeSet::new();
    for section in PAGE.split("\n## ").skip(1) {
        let (title, text) = section.split_once('\n').unwrap();
        for rule in page::blocks(text).into_iter().flat_map(page::limits) {
            assert_eq!(rule.spec.algorithm.name(), title, "a block under the heading of another algorithm");
            shown.insert(title);
        }
    }
    let all = [
        "concurrency",
        "fixed-window",
        "gcra",
        "leaky-bucket",
        "sliding-counter",
        "sliding-log",
        "sliding-window",
        "smooth-bursty",
        "timer-wheel",
        "token-bucket",
        "warm-up",
    ];
    assert_eq!(shown, BTreeSet::from(all));
}

/// Settings as the page has them: the section and the line of its table, what the default is to be written as with the
/// rate of the blocks, values at the ends of the range, and values beyond it.
type Setting = (&'static str, &'static str, Option<&'static str>, &'static [&'static str], &'static [&'static str]);

const SETTINGS: [Setting; 15] = [
    (
        "timer-wheel",
        "| `bound` | `\"sliding\"` | `\"slot\"`, `\"sliding\"`, `\"strict\"` |",
        Some("\"sliding\""),
        &["\"slot\"", "\"strict\""],
        &["\"log\""],
    ),
    (
        "timer-wheel",
        "| `slots` | 10 for W below a minute, else 60, or the nearest number that divides | 1 to 3600, equal slots of 1 ms or more |",
        Some("10"),
        &["1", "100"],
        &["0", "7", "3601"],
    ),
    (
        "token-bucket",
        "| `burst` | L | 1 to 10^12, refilled within 36,500 days |",
        Some("5"),
        &["1", "15768000000"],
        &["0", "15768000001"],
    ),
    (
        "token-bucket",
        "| `refill` | `\"greedy\"` | `\"greedy\"`, `\"interval\"` |",
        Some("\"greedy\""),
        &["\"interval\""],
        &["\"no\""],
    ),
    ("gcra", "| `burst` | 1 | 1 to 10^12, refilled within 36,500 days |", Some("1"), &["2"], &["0", "15768000001"]),
    (
        "leaky-bucket",
        "| `max_waiting` | L, at most 10,000 | 1 to 1,000,000 |",
        Some("5"),
        &["1", "1000000"],
        &["0", "1000001"],
    ),
    (
        "fixed-window",
        "| `align` | `\"epoch\"` | `\"epoch\"`, `\"first\"`, `\"calendar\"` |",
        Some("\"epoch\""),
        &["\"first\""],
        // No calendar has windows of a second.
        &["\"last\"", "\"calendar\""],
    ),
    (
        "sliding-window",
        "| `slots` | 10, or the nearest number that divides | 1 to 3600, equal slots of 1 ms or more |",
        Some("10"),
        &["1", "100"],
        &["0", "7", "3601"],
    ),
    (
        "sliding-window",
        "| `slot_limit` | twice the even share: 2 L / N, rounded up | 1 to 10^12, of which L counts |",
        Some("1"),
        &["5", "1000000000000"],
        &["0", "1000000000001"],
    ),
    ("sliding-log", "| `min_difference` | `\"0s\"` | up to `\"1d\"` |", Some("\"0s\""), &["\"1d\""], &["\"86401s\""]),
    ("sliding-log", "| `count_refused` | `false` | `true`, `false` |", Some("false"), &["true"], &["1"]),
    ("smooth-bursty", "| `max_burst_seconds` | 1 | 0 to 86,400 |", Some("1"), &["0", "86400"], &["86401"]),
    (
        "warm-up",
        "| `warm_up` | required | `\"1ms\"` to `\"1h\"` |",
        None,
        &["\"1ms\"", "\"1h\""],
        &["\"999us\"", "\"3601s\""],
    ),
    ("warm-up", "| `cold_factor` | 3 | 2 to 100 |", Some("3"), &["2", "100"], &["1", "101"]),
    (
        "concurrency",
        "| `max_in_flight` | required | 1 to 10^12 |",
        None,
        &["1", "1000000000000"],
        &["0", "1000000000001"],
    ),
];

/// The first block of a section, without `setting`.
fn block_without(algorithm: &str, setting: &str) -> String {
    let section =
        PAGE.split("\n## ").find(|section| section.starts_with(&format!("{algorithm}\n"))).expect("a section");
    let block = page::blocks(section)[0];
    let kept = block.lines().filter(|line| !line.starts_with(&format!("{setting} = ")));
    kept.fold(String::new(), |block, line| block + line + "\n")
}

#[test]
fn settings_have_the_defaults_and_the_ranges_that_the_page_says() {
    let rows = PAGE.lines().filter(|line| line.starts_with("| `") && line.matches(" | ").count() == 2);
    let rows: BTreeSet<&str> = rows.filter(|line| !line.starts_with("| `timer-wheel")).collect();
    assert_eq!(rows, SETTINGS.iter().map(|setting| setting.1).collect(), "a setting that nobody tests");
    let picture = |block: &str| draw(&page::limits(block)[0]).svg;
    let is_refused = |block: &str| page::try_limits(block).is_err();
    for (algorithm, row, default, within, beyond) in SETTINGS {
        let setting = row.split('`').nth(1).expect("a name");
        let block = block_without(algorithm, setting);
        // Cold requests are up to 20 s apart with the largest cold_factor.
        let with = |value: &str| {
            let wait = if value == "100" { "max_wait = \"20s\"\n" } else { "" };
            format!("{block}{setting} = {value}\n{wait}")
        };
        match default {
            Some(default) => assert_eq!(picture(&block), picture(&with(default)), "{algorithm} {setting}"),
            None => assert!(is_refused(&block), "{algorithm} {setting} is required"),
        }
        for value in within {
            assert!(!is_refused(&with(value)), "{algorithm} {setting} = {value}");
        }
        for value in beyond {
            assert!(is_refused(&with(value)), "{algorithm} {setting} = {value}");
        }
    }
}

#[test]
fn waiting_has_the_defaults_and_the_ranges_that_the_page_says() {
    for rule in page::blocks(PAGE).into_iter().filter(|block| !block.contains("max_wait")).flat_map(page::limits) {
        let name = rule.spec.algorithm.name();
        let paces = ["leaky-bucket", "smooth-bursty", "warm-up"].contains(&name);
        assert_eq!(rule.spec.max_wait, Span::from_secs(u64::from(paces)), "{name}");
        let block = block_without(name, "max_wait");
        let is_refused = |line: &str| page::try_limits(&format!("{block}{line}\n")).is_err();
        assert!(!is_refused("max_wait = \"1h\"") && is_refused("max_wait = \"3601s\""), "{name}");
        let queue = |most: &str| is_refused(&format!("max_wait = \"1s\"\nmax_queue = {most}"));
        let has_queue = name != "leaky-bucket";
        assert!(queue("1") != has_queue && queue("1000000") != has_queue && queue("0") && queue("1000001"), "{name}");
    }
}
