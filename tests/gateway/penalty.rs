//! Keys that keep hitting their limit.

use crate::support::{Gateway, get_with};

const BLOCKING: &str = "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
    [[limit]]\nname = \"per-key\"\nkey = \"header:x-api-key\"\nrate = \"1/1s\"\n\
    penalty = { after = 3, within = \"1h\", block = \"1h\" }\n\
    [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"per-key\"]\n";

#[test]
fn who_is_refused_three_times_is_blocked_for_an_hour_and_others_are_not() {
    let gateway = Gateway::start(BLOCKING);
    let ask = |key: &str| get_with(gateway.address(), "/", &[("X-Api-Key", key)]);
    let mut refusals = Vec::new();
    while refusals.len() < 5 {
        let answer = ask("one");
        if answer.status == 429 {
            refusals.push(answer.header("retry-after").unwrap().parse::<u64>().unwrap());
        }
    }
    assert_eq!(refusals[..2], [1, 1]);
    assert!(refusals[2..].iter().all(|secs| (3_590..=3_600).contains(secs)), "{refusals:?}");
    assert_eq!(ask("two").status, 200);
    gateway.wait_metric("sluicegate_limit_blocks_total", &["limit=\"per-key\""], 1.0);
    assert!(gateway.reload(&BLOCKING.replace("1/1s", "9/1s")).text().contains("rate 1/s -> 9/s"));
    assert_eq!(ask("one").status, 429, "a reload lets nobody out");
}
