//! `dead-letters stats` with filters: aggregates count as far as they tell, and what they do not tell is said.

use serde_json::Value;

use crate::support::{Client, Gateway, run};

/// A log of so many refusals, of which most were only counted.
fn flooded(key: &str, refused: usize) -> Gateway {
    let mut gateway = Gateway::start(&format!(
        "[server]\nworkers = 1\n[[limit]]\nname = \"per-key\"\nkey = \"{key}\"\nrate = \"1/h\"\n\
         [[route]]\nname = \"all\"\nrespond = {{}}\nlimits = [\"per-key\"]\n[dead_letter]\nmax_key_rate = 5\n"
    ));
    let mut client = Client::connect(gateway.address());
    for _ in 0..=refused {
        client.request("GET", "/", &[("x-user", "ada")], b"");
    }
    gateway.signal("TERM");
    assert!(gateway.wait_exit().success());
    gateway
}

fn stats(gateway: &Gateway, filter: &[&str]) -> (String, Value) {
    let ask = |more: &[&str]| {
        let (status, out, errors) = run(&[&["dead-letters", "stats"], filter, more].concat(), gateway.directory.path());
        assert!(status.success(), "{errors}");
        out
    };
    (ask(&[]), serde_json::from_str(&ask(&["--json"])).unwrap())
}

fn figures(json: &Value) -> [u64; 4] {
    ["requests", "records", "aggregated", "unattributed"].map(|name| json[name].as_u64().unwrap_or(u64::MAX))
}

#[test]
fn a_client_or_a_key_has_the_requests_that_aggregates_count_of_it() {
    let gateway = flooded("client-ip", 1_000);
    let (_, all) = stats(&gateway, &[]);
    let [requests, records, aggregated, unattributed] = figures(&all);
    assert_eq!((requests, unattributed), (1_000, 0), "{all}");
    assert!(records < 500 && aggregated > 500, "{all}");
    for filter in [&["--client", "127.0.0.1"][..], &["--client", "127.0.0.0/8"], &["--key", "127.0.0.1"]] {
        let (text, json) = stats(&gateway, filter);
        assert_eq!(figures(&json), [requests, records, aggregated, 0], "{filter:?}: {json}");
        assert!(
            text.contains(&format!("1000 requests: {records} recorded, {aggregated} counted in aggregates")),
            "{text}"
        );
        assert_eq!(json["reasons"][0]["count"], 1_000, "{json}");
    }
    let (text, json) = stats(&gateway, &["--client", "192.0.2.9"]);
    assert_eq!(figures(&json), [0; 4], "all of them are of another client: {text}");
}

#[test]
fn figures_that_are_not_complete_say_so() {
    let gateway = flooded("header:x-user", 1_000);
    let (_, all) = stats(&gateway, &[]);
    let [_, records, aggregated, _] = figures(&all);
    assert!(aggregated > 500);
    for (filter, lacks) in [
        (["--client", "127.0.0.1"], "client"),
        (["--route", "all"], "route"),
        (["--status", "429"], "status"),
        (["--client", "192.0.2.9"], "client"),
    ] {
        let (text, json) = stats(&gateway, &filter);
        let records = if filter[1] == "192.0.2.9" { 0 } else { records };
        assert_eq!(figures(&json), [records, records, 0, aggregated], "{filter:?}: {json}");
        assert!(
            text.contains(&format!(
                "{records} to {} requests: {records} recorded, 0 to {aggregated} counted in aggregates",
                records + aggregated
            )),
            "{text}"
        );
        assert!(text.contains(&format!("do not tell the {lacks} of {aggregated} requests")), "{text}");
    }
    let (_, json) = stats(&gateway, &["--key", "header:x-user=ada"]);
    assert_eq!(figures(&json), [records + aggregated, records, aggregated, 0], "{json}");
}
