//! Numbers of limits by the plan of who asks, over HTTP/1 and HTTP/2.

use std::fmt::Write as _;
use std::fs;

use crate::h2::peer;
use crate::support::{Gateway, PATIENCE, eventually, eventually_in, get_with};

/// Midnights in UTC: how long it is until the next month that begins on that day.
fn until_day(day: i8) -> i64 {
    let now = jiff::Timestamp::now();
    let date = now.to_zoned(jiff::tz::TimeZone::UTC).date();
    let begins = (0..3).map(|months: i64| {
        let month = date.first_of_month().checked_add(jiff::Span::new().months(months)).unwrap();
        let begin = month.with().day(day.min(month.days_in_month())).build().unwrap();
        begin.to_zoned(jiff::tz::TimeZone::UTC).unwrap().timestamp().as_second()
    });
    begins.map(|begin| begin - now.as_second()).find(|left| *left > 0).unwrap()
}

#[test]
fn months_begin_on_the_day_that_the_plans_file_or_a_trusted_proxy_states() {
    let rules = |trusted: &str| {
        format!(
            "[client]\ntrusted_proxies = [\"{trusted}\"]\n[[limit]]\nname = \"l\"\nkey = \"header:x-api-key\"\nrate = \"2/month\"\n\
             algorithm = \"fixed-window\"\nalign = \"calendar\"\nrenews = \"header:x-day\"\n\
             [[route]]\nname = \"all\"\nlimits = [\"l\"]\nrespond = {{}}\n\
             plans = {{ file = \"plans.toml\", key = \"header:x-api-key\" }}\n"
        )
    };
    let plans = "default = \"free\"\n[plan.free]\n[plan.pro]\nl = { rate = \"5/month\" }\n[keys]\n\
        a = { plan = \"pro\", renews = 15 }\nb = { plan = \"free\", renews = 31 }\nc = \"pro\"\nd = { plan = \"pro\", renews = 7 }\n";
    let gateway = start(&rules("127.0.0.0/8"), plans);
    let told = |gateway: &Gateway, fields: &[(&str, &str)]| {
        let answer = get_with(gateway.address(), "/", fields);
        let state = answer.header("ratelimit").unwrap_or_default().to_owned();
        (answer.status, state.split("t=").nth(1).unwrap().parse::<i64>().unwrap())
    };
    let assert_day = |gateway: &Gateway, fields: &[(&str, &str)], day| {
        let before = until_day(day);
        let (status, left) = told(gateway, fields);
        // A day may have begun meanwhile.
        let expected = [before, until_day(day)];
        let is_it = expected.iter().any(|own| (own - 60..=own + 60).contains(&left));
        assert!(status == 200 && is_it, "{fields:?} {status} {left} {expected:?}");
    };
    for (fields, day) in [
        (&[("x-api-key", "a")][..], 15),
        (&[("x-api-key", "b")], 31),
        (&[("x-api-key", "c")], 1),
        (&[("x-api-key", "x")], 1),
        (&[("x-api-key", "d"), ("x-day", "20")], 20),
        (&[("x-api-key", "y"), ("x-day", "9")], 9),
        (&[("x-api-key", "z"), ("x-day", "32")], 1),
        (&[("x-api-key", "a"), ("x-day", "3")], 15),
    ] {
        assert_day(&gateway, fields, day);
    }
    assert_eq!(told(&gateway, &[("x-api-key", "y"), ("x-day", "10")]).0, 200);
    assert_eq!(told(&gateway, &[("x-api-key", "y"), ("x-day", "11")]).0, 429, "another day lowers nothing");
    let other = start(&rules("192.0.2.1"), plans);
    assert_day(&other, &[("x-api-key", "a"), ("x-day", "3")], 15);
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Over {
    Http1,
    Http2,
}

const BOTH: [Over; 2] = [Over::Http1, Over::Http2];

/// Asks with these fields: the status, and the policy of each limit that was asked, such as `"l";q=1;w=3600`.
fn ask_with(gateway: &Gateway, over: Over, path: &str, fields: &[(&str, &str)]) -> (u16, String) {
    match over {
        Over::Http1 => {
            let answer = get_with(gateway.address(), path, fields);
            (answer.status, answer.header("ratelimit-policy").unwrap_or_default().to_owned())
        }
        Over::Http2 => peer::run(async {
            let sender = peer::connect(gateway.address()).await;
            let answer = peer::ask(&sender, peer::request("GET", path, fields)).await.unwrap();
            (answer.status, answer.header("ratelimit-policy").unwrap_or_default().to_owned())
        }),
    }
}

fn ask(gateway: &Gateway, over: Over, key: &str) -> u16 {
    ask_with(gateway, over, "/", &[("x-api-key", key)]).0
}

/// How many of ten requests with a key are admitted.
fn admitted(gateway: &Gateway, over: Over, key: &str) -> usize {
    (0..10).filter(|_| ask(gateway, over, key) == 200).count()
}

const RULES: &str = "[log]\naccess = \"json\"\n[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
    [[limit]]\nname = \"l\"\nkey = \"header:x-api-key\"\nrate = \"2/1h\"\n\
    [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"l\"]\n\
    plans = { file = \"plans.toml\", key = \"header:x-api-key\" }\n\
    [dead_letter]\ndirectory = \"dead-letters\"\n";

const HEAD: &str = "default = \"free\"\n[plan.free]\n[plan.pro]\nl = { rate = \"5/1h\" }\n[plan.team]\n\
    l = { rate = \"7/1h\" }\n[plan.internal]\nl = { mode = \"off\" }\n";

const KEYS: &str = "gold = \"pro\"\nsilver = \"pro\"\n\"crew 1\" = \"team\"\nours = \"internal\"\n";

/// A gateway on these rules beside this plans file.
fn start(rules: &str, plans: &str) -> Gateway {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("plans.toml"), plans).unwrap();
    Gateway::start_in(directory, &format!("{}{rules}", crate::support::FRAME))
}

/// Puts another plans file in the place of the one that there is.
fn replace_plans(gateway: &Gateway, plans: &str) {
    let next = gateway.directory.path().join("plans.next");
    fs::write(&next, plans).unwrap();
    fs::rename(next, gateway.directory.path().join("plans.toml")).unwrap();
}

fn generation(gateway: &Gateway) -> u64 {
    gateway.ask_admin("/api/config").json()["generation"].as_u64().unwrap()
}

#[test]
fn each_key_has_the_numbers_of_its_plan() {
    for over in BOTH {
        let gateway = start(RULES, &format!("{HEAD}[keys]\n{KEYS}"));
        for (key, admits) in [("gold", 5), ("silver", 5), ("crew 1", 7), ("ours", 10), ("nobody", 2), ("Gold", 2)] {
            assert_eq!(admitted(&gateway, over, key), admits, "{key} {over:?}");
        }
        let policy = |key| ask_with(&gateway, over, "/", &[("x-api-key", key)]).1;
        assert_eq!(policy("gold"), "\"l\";q=5;w=3600", "{over:?}");
        assert_eq!(policy("nobody"), "\"l\";q=2;w=3600", "{over:?}");
        assert_eq!(policy("ours"), "", "{over:?}");
    }
}

#[test]
fn who_has_no_key_or_two_is_of_the_default_plan() {
    for over in BOTH {
        let default = HEAD.replace("default = \"free\"", "default = \"pro\"");
        let gateway = start(RULES, &format!("{default}[keys]\n{KEYS}"));
        let without: Vec<u16> = (0..6).map(|_| ask_with(&gateway, over, "/", &[]).0).collect();
        assert_eq!(without, [200, 200, 200, 200, 200, 429], "{over:?}");
        // Counted by its address, as who has none; the count is that plan's.
        let two = [("x-api-key", "crew 1"), ("x-api-key", "ours")];
        assert_eq!(ask_with(&gateway, over, "/", &two).0, 429, "{over:?}");
        assert_eq!(admitted(&gateway, over, "unknown"), 5, "{over:?}");
    }
}

#[test]
fn a_change_of_the_plans_file_alone_moves_keys_and_loses_no_count() {
    for over in BOTH {
        let gateway = start(RULES, &format!("{HEAD}[keys]\n{KEYS}"));
        assert_eq!(admitted(&gateway, over, "gold"), 5);
        assert_eq!((ask(&gateway, over, "silver"), ask(&gateway, over, "silver")), (200, 200));
        assert_eq!(admitted(&gateway, over, "free"), 2);
        // One goes to another plan and starts afresh there; the other stays, with what it has used.
        replace_plans(&gateway, &format!("{HEAD}[keys]\n{}", KEYS.replace("gold = \"pro\"", "gold = \"team\"")));
        assert!(eventually(|| generation(&gateway) == 2), "the file is watched");
        assert_eq!((admitted(&gateway, over, "gold"), admitted(&gateway, over, "silver")), (7, 3), "{over:?}");
        let changed = || gateway.log().contains("changed: keys 4, was 4: +0 -0, 1 in another plan");
        assert!(eventually(changed), "{}", gateway.log());
        assert!(!gateway.log().contains("gold"), "{}", gateway.log());
        // Other numbers hold at once, and what was counted goes on: five of eight are left to who has used none.
        replace_plans(&gateway, &format!("{}[keys]\n{KEYS}", HEAD.replace("5/1h", "8/1h")));
        assert!(eventually(|| generation(&gateway) == 3));
        assert_eq!((admitted(&gateway, over, "gold"), admitted(&gateway, over, "silver")), (3, 3), "{over:?}");
        assert_eq!(admitted(&gateway, over, "free"), 0, "{over:?}");
        let changed = || gateway.log().contains("limit l in the plan pro: changed: rate 5/h -> 8/h");
        assert!(eventually(changed), "{}", gateway.log());
        // A plan that goes lets its keys go to the default one.
        replace_plans(&gateway, "default = \"free\"\n[plan.free]\n[keys]\n");
        assert!(eventually(|| generation(&gateway) == 4));
        assert_eq!(admitted(&gateway, over, "gold"), 2, "{over:?}");
    }
}

#[test]
fn a_broken_plans_file_changes_nothing_and_is_told_without_its_keys() {
    for over in BOTH {
        let gateway = start(RULES, &format!("{HEAD}[keys]\n{KEYS}"));
        assert_eq!(ask(&gateway, over, "gold"), 200);
        replace_plans(&gateway, &format!("{HEAD}[keys]\ngold = \"prp\"\nsecret silver\n"));
        assert!(eventually(|| gateway.log().contains("there is no such plan")), "{}", gateway.log());
        let answer = gateway.ask_reload();
        assert_eq!(answer.status, 422);
        let (text, log) = (answer.text(), gateway.log());
        assert!(text.contains("plans.toml:10:8") && text.contains("plans.toml:11:1"), "{text}");
        assert!(!text.contains("gold") && !text.contains("silver") && !log.contains("silver"), "{text}\n{log}");
        assert_eq!(generation(&gateway), 1);
        assert_eq!(admitted(&gateway, over, "gold"), 4, "the old plans, and the old counts: {over:?}");
        fs::remove_file(gateway.directory.path().join("plans.toml")).unwrap();
        assert!(eventually(|| gateway.log().contains("there is no such file")), "{}", gateway.log());
        assert_eq!(ask(&gateway, over, "ours"), 200);
        replace_plans(&gateway, &format!("{HEAD}[keys]\nnew = \"pro\"\n"));
        assert!(eventually(|| generation(&gateway) == 2), "mended, it is taken over");
        assert_eq!(admitted(&gateway, over, "new"), 5, "{over:?}");
    }
}

#[test]
fn metrics_and_logs_call_the_limit_by_its_name_and_tell_the_plan() {
    for over in BOTH {
        let gateway = start(RULES, &format!("{HEAD}[keys]\n{KEYS}"));
        for key in ["gold", "crew 1", "nobody"] {
            admitted(&gateway, over, key);
        }
        let of = |decision: &str| ["limit=\"l\"".to_owned(), format!("decision=\"{decision}\"")];
        let count = |decision: &str, value| {
            let labels = of(decision);
            gateway.wait_metric("sluicegate_limit_decisions_total", &[&labels[0], &labels[1]], value);
        };
        count("admitted", 14.0);
        count("refused", 16.0);
        gateway.wait_metric("sluicegate_limit_keys", &["limit=\"l\""], 3.0);
        assert!(eventually(|| gateway.access_log().len() == 30 && gateway.dead_letters().len() == 16));
        let count = |values: &[serde_json::Value], plan: &str| {
            values.iter().filter(|value| value["plan"] == plan && value["route"] == "all").count()
        };
        let (lines, letters) = (gateway.access_log(), gateway.dead_letters());
        let expected = [("pro", 10, 5), ("team", 10, 3), ("free", 10, 8)];
        for (plan, all, refused) in expected {
            assert_eq!((count(&lines, plan), count(&letters, plan)), (all, refused), "{plan} {over:?}");
        }
        let of_pro = letters.iter().find(|letter| letter["plan"] == "pro").unwrap();
        assert_eq!((&of_pro["limit"], &of_pro["quota"]["limit"]), (&"l".into(), &5.into()));
    }
}

#[test]
fn a_route_without_plans_says_nothing_of_them() {
    let rules = RULES.replace("plans = {", "# ").replace("2/1h", "1/1h");
    let gateway = start(&rules, "");
    assert_eq!(admitted(&gateway, Over::Http1, "gold"), 1);
    assert!(eventually(|| gateway.access_log().len() == 10 && gateway.dead_letters().len() == 9));
    assert!(gateway.access_log().iter().chain(&gateway.dead_letters()).all(|line| line.get("plan").is_none()));
}

#[test]
fn a_plan_may_wait_where_others_are_refused() {
    let plans = "default = \"free\"\n[plan.free]\n[plan.pro]\nl = { rate = \"1/200ms\", max_wait = \"5s\" }\n\
                 [keys]\ngold = \"pro\"\n";
    for over in BOTH {
        let gateway = start(&RULES.replace("2/1h", "1/1h"), plans);
        let statuses: Vec<u16> = (0..4).map(|_| ask(&gateway, over, "gold")).collect();
        assert_eq!(statuses, [200; 4], "{over:?}");
        assert_eq!((ask(&gateway, over, "none"), ask(&gateway, over, "none")), (200, 429), "{over:?}");
        gateway.wait_metric("sluicegate_limit_waiting", &["limit=\"l\""], 0.0);
    }
}

#[test]
fn a_limit_that_is_off_in_a_plan_has_no_timeout_there() {
    let rules = RULES.replace("rate = \"2/1h\"", "rate = \"2/1h\"\ntimeout = \"300ms\"");
    for over in BOTH {
        let gateway = start(&rules, &format!("{HEAD}[keys]\n{KEYS}"));
        let slow = |key| ask_with(&gateway, over, "/?delay=600ms", &[("x-api-key", key)]).0;
        assert_eq!((slow("ours"), slow("gold"), slow("nobody")), (200, 504, 504), "{over:?}");
        assert!(eventually(|| gateway.dead_letters().len() == 2));
        for letter in gateway.dead_letters() {
            assert_eq!((&letter["reason"], &letter["limit"]), (&"timeout".into(), &"l".into()), "{letter}");
        }
        // Of two, it is the one that holds that ends the request.
        let more = "[[limit]]\nname = \"m\"\nrate = \"9/1h\"\ntimeout = \"400ms\"\n[[route]]";
        let two = rules.replace("[[route]]", more).replace("limits = [\"l\"]", "limits = [\"l\", \"m\"]");
        let gateway = start(&two, &format!("{HEAD}[keys]\n{KEYS}"));
        assert_eq!(ask_with(&gateway, over, "/?delay=900ms", &[("x-api-key", "ours")]).0, 504, "{over:?}");
        assert!(eventually(|| gateway.dead_letters().iter().any(|letter| letter["limit"] == "m")));
        // And the other way round: off for all but one plan.
        let off = rules.replace("timeout = \"300ms\"", "timeout = \"300ms\"\nmode = \"off\"");
        let plans = "default = \"a\"\n[plan.a]\n[plan.b]\nl = { mode = \"enforce\" }\n[keys]\ngold = \"b\"\n";
        let gateway = start(&off, plans);
        let slow = |key| ask_with(&gateway, over, "/?delay=600ms", &[("x-api-key", key)]).0;
        assert_eq!((slow("gold"), slow("nobody")), (504, 200), "{over:?}");
        assert_eq!((admitted(&gateway, over, "gold"), admitted(&gateway, over, "none")), (1, 10), "{over:?}");
        assert!(eventually(|| gateway.dead_letters().iter().any(|letter| letter["limit"] == "l")));
    }
}

#[test]
fn a_million_keys_take_less_than_a_hundred_megabytes_from_the_first_to_the_last_byte() {
    const KEYS: usize = 1_000_000;
    let mut plans = format!("{HEAD}[keys]\n");
    for key in 0..KEYS {
        let _ = writeln!(plans, "\"key-{key:024x}\" = \"{}\"", if key % 2 == 0 { "pro" } else { "team" });
    }
    let gateway = start(RULES, &format!("{HEAD}[keys]\n"));
    assert_eq!(ask(&gateway, Over::Http1, "warm"), 200);
    let (resident, peak) = (gateway.resident(), gateway.most_resident());
    replace_plans(&gateway, &plans);
    assert!(eventually_in(3 * PATIENCE, || generation(&gateway) == 2), "it is not loaded\n{}", gateway.log());
    let (resident, peak) = (gateway.resident() - resident, gateway.most_resident() - peak);
    eprintln!("a million keys: {:.1} MB resident, {:.1} MB at the peak", resident as f64 / 1e6, peak as f64 / 1e6);
    assert!(resident < 100_000_000 && peak < 100_000_000, "{resident} {peak}");
    for over in BOTH {
        let key = |number: usize| format!("key-{number:024x}");
        let base = if over == Over::Http1 { 0 } else { 500_000 };
        assert_eq!(admitted(&gateway, over, &key(base)), 5);
        assert_eq!(admitted(&gateway, over, &key(base + 499_999)), 7);
        assert_eq!(admitted(&gateway, over, &key(KEYS + base)), 2);
    }
}
