//! Rates that a trusted proxy states for single requests.

use std::fs;

use crate::edits::BOTH;
use crate::support::{FRAME, Gateway, eventually, run};

fn rules(trusted: &str) -> String {
    format!(
        "[client]\ntrusted_proxies = [{trusted}]\n\
         [[limit]]\nname = \"l\"\nkey = \"header:x-key\"\nrate = \"5/1h\"\nrate_from = \"header:X-Limit\"\n\
         algorithm = \"fixed-window\"\n\
         [[route]]\nname = \"all\"\nlimits = [\"l\"]\nrespond = {{}}\n"
    )
}

#[test]
fn a_trusted_proxy_states_the_rate_of_a_request_up_to_that_of_the_limit() {
    let gateway = Gateway::start(&rules("\"127.0.0.0/8\""));
    for (nth, protocol) in BOTH.into_iter().enumerate() {
        let ask = |key: &str, limits: &[&str]| {
            let key = format!("{key}{nth}");
            let limits = limits.iter().map(|limit| ("x-limit", *limit));
            let fields: Vec<_> = limits.chain([("x-key", key.as_str())]).collect();
            protocol.ask(&gateway, "GET", "/", &fields)
        };
        let passes = |key: &str, limits: &[&str]| (0..9).take_while(|_| ask(key, limits).status == 200).count();
        let first = ask("a", &["2/h"]);
        assert_eq!((first.status, first.header("ratelimit-policy")), (200, Some("\"l\";q=2;w=3600")));
        assert!(first.header("ratelimit").unwrap().starts_with("\"l\";r=1;t="), "{first:?}");
        assert_eq!(passes("a", &["2/1h"]), 1);
        let refused = ask("a", &["2/h"]);
        assert_eq!((refused.status, refused.header("x-ratelimit-limit")), (429, Some("2")));
        assert!((1..=3_600).contains(&refused.header("retry-after").unwrap().parse::<u64>().unwrap()));
        assert_eq!(passes("a", &["900/h"]), 3, "the rate of the limit is the most");
        assert_eq!(passes("a", &[]), 0);
        for (key, limits) in [("b", &["2/m"][..]), ("c", &["2/h", "2/h"]), ("d", &["2"]), ("e", &["0/h"]), ("f", &[""])]
        {
            assert_eq!(passes(key, limits), 5, "{limits:?} states no rate of this limit");
        }
    }
}

#[test]
fn nobody_else_states_a_rate() {
    let gateway = Gateway::start(&rules("\"192.0.2.1\""));
    for protocol in BOTH {
        let answer = protocol.ask(&gateway, "GET", "/", &[("x-limit", "1/h"), ("x-key", "a")]);
        assert_eq!(answer.header("ratelimit-policy"), Some("\"l\";q=5;w=3600"));
    }
}

#[test]
fn a_plan_gives_the_most_and_the_window() {
    let directory = tempfile::tempdir().unwrap();
    let plans = "default = \"free\"\n[plan.free]\n[plan.pro]\nl = { rate = \"7/m\" }\n[keys]\nk = \"pro\"\n";
    fs::write(directory.path().join("plans.toml"), plans).unwrap();
    let text = format!("{}plans = {{ file = \"plans.toml\", key = \"header:x-key\" }}\n", rules("\"127.0.0.0/8\""));
    let gateway = Gateway::start_in(directory, &format!("{FRAME}{text}"));
    for (key, stated, policy) in [
        ("k", "3/m", "\"l\";q=3;w=60"),
        ("k", "3/h", "\"l\";q=7;w=60"),
        ("k", "9/m", "\"l\";q=7;w=60"),
        ("other", "3/h", "\"l\";q=3;w=3600"),
    ] {
        let answer = BOTH[0].ask(&gateway, "GET", "/", &[("x-limit", stated), ("x-key", key)]);
        assert_eq!(answer.header("ratelimit-policy"), Some(policy), "{key} {stated}");
    }
}

#[test]
fn an_explanation_knows_the_rate_that_is_stated() {
    let gateway = Gateway::start(&rules("\"127.0.0.0/8\""));
    let admin = format!("http://{}", gateway.admin);
    let room = |stated: &str| {
        let words = ["explain", "--json", "GET", "/", "-H", "x-key: a", "-H", stated, "--live", "--admin", &admin];
        let (status, text, errors) = run(&words, gateway.directory.path());
        assert!(status.success(), "{errors}");
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["limits"][0]["room"].clone()
    };
    assert_eq!([room("x-limit: 2/h"), room("x-limit: 2/m"), room("x-limit: 9/h")], [2, 5, 5]);
}

#[test]
fn the_numbers_that_an_operator_gives_a_key_hold_whatever_a_proxy_says() {
    let gateway = Gateway::start(&rules("\"127.0.0.0/8\""));
    let told = gateway.tell_admin("PUT", "/api/v1/limits/l/keys/a/override", "{\"rates\": [\"7/h\"]}");
    assert!(told.status < 300, "{told:?}");
    let policy = || {
        let answer = BOTH[0].ask(&gateway, "GET", "/", &[("x-limit", "2/h"), ("x-key", "a")]);
        answer.header("ratelimit-policy").unwrap().to_owned()
    };
    assert!(eventually(|| policy() == "\"l\";q=7;w=3600"), "{}", policy());
}

#[test]
fn a_reload_takes_the_field_over_and_counts_go_on() {
    let gateway = Gateway::start(&rules("\"127.0.0.0/8\""));
    let ask = |field: &str| BOTH[0].ask(&gateway, "GET", "/", &[(field, "2/h"), ("x-key", "a")]).status;
    assert_eq!([ask("x-limit"), ask("x-limit"), ask("x-limit")], [200, 200, 429]);
    assert_eq!(gateway.reload(&rules("\"127.0.0.0/8\"").replace("X-Limit", "X-Other")).status, 200);
    assert_eq!([ask("x-other"), ask("x-limit")], [429, 200]);
}
