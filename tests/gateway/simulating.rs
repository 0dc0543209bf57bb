//! `sluicegate simulate` on the logs of a gateway that ran.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Client, Gateway, eventually, get_with, run};
use crate::timing::{assert_in_time, best_of_three};

const RULES: &str = "[client]\ntrusted_proxies = [\"127.0.0.1/32\"]\n\
     [log]\naccess = \"json\"\naccess_file = \"access.log\"\n\
     [[limit]]\nname = \"per-client\"\nrate = \"3/h\"\nalgorithm = \"token-bucket\"\n\
     [[limit]]\nname = \"tried\"\nrate = \"1/h\"\nkey = \"path\"\nmode = \"shadow\"\n\
     [[route]]\nname = \"all\"\nlimits = [\"per-client\", \"tried\"]\nrespond = {}\n[dead_letter]\n";

fn simulate(directory: &Path, arguments: &[&str]) -> Value {
    let words = ["simulate", "--json"].iter().chain(arguments).copied().collect::<Vec<_>>();
    let (status, text, errors) = run(&words, directory);
    assert!(status.success(), "{errors}");
    serde_json::from_str(&text).unwrap()
}

fn lines(gateway: &Gateway) -> usize {
    fs::read_to_string(gateway.directory.path().join("access.log")).map_or(0, |text| text.lines().count())
}

/// Seven requests of one client, two of another, one of a third.
fn send(gateway: &Gateway) -> Vec<u16> {
    let clients = ["192.0.2.1", "192.0.2.2", "192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2"];
    let clients = clients.iter().chain(&["192.0.2.1", "192.0.2.1", "192.0.2.3"]).enumerate();
    let sent = clients.map(|(nth, client)| {
        let target = if nth % 2 == 0 { "/even" } else { "/odd" };
        get_with(gateway.address(), target, &[("x-forwarded-for", client)]).status
    });
    let sent = sent.collect();
    assert!(eventually(|| lines(gateway) == 10));
    sent
}

#[test]
fn a_simulation_of_the_same_file_is_what_happened_and_of_another_what_would_have() {
    let gateway = Gateway::start(RULES);
    let directory = gateway.directory.path();
    let statuses = send(&gateway);
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 4);
    let file = fs::read_to_string(gateway.file()).unwrap();
    fs::write(directory.join("candidate.toml"), file.replace("3/h", "5/h")).unwrap();

    let same = simulate(directory, &["access.log"]);
    assert_eq!((&same["requests"], &same["skipped"], &same["refused"]), (&10.into(), &0.into(), &4.into()));
    let [first, tried] = same["limits"].as_array().unwrap().as_slice() else { panic!("{same}") };
    assert_eq!((&first["name"], &first["admitted"], &first["refused"]), (&"per-client".into(), &6.into(), &4.into()));
    let key = serde_json::json!({
        "key": [["client-ip", "192.0.2.1"]], "refused": 4, "admitted": 3, "waited": 0, "p99_wait_ms": 0.0
    });
    assert_eq!(first["keys"], serde_json::json!([key]));
    // As the gateway has counted it.
    let shadow =
        gateway.metric("sluicegate_limit_decisions_total", &["limit=\"tried\"", "decision=\"shadow-refused\""]);
    assert_eq!((&tried["mode"], tried["refused"].as_f64()), (&"shadow".into(), Some(shadow)));

    let two = ["access.log", "-c", "candidate.toml", "--baseline", "gateway.toml", "--html", "report.html"];
    let other = simulate(directory, &two);
    assert_eq!((&other["refused"], &other["baseline"]["refused"]), (&2.into(), &4.into()));
    assert_eq!(other["baseline"]["limits"][0]["refused"], 4);
    assert_eq!(other["limits"][0]["keys"][0]["baseline_refused"], 4);
    let page = fs::read_to_string(directory.join("report.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("192.0.2.1"), "{page}");

    // Dead letters hold those alone that were refused, and those that a limit in shadow mode would have.
    let mut letters = 0;
    assert!(eventually(|| {
        letters = gateway.dead_letters().len();
        letters >= 8
    }));
    let segment = fs::read_dir(directory.join("dead-letters")).unwrap().map(|entry| entry.unwrap().path());
    let segment = segment.filter(|path| path.extension().is_some_and(|own| own == "jsonl")).collect::<Vec<_>>();
    let [segment] = segment.as_slice() else { panic!("{segment:?}") };
    let again = simulate(directory, &[segment.to_str().unwrap()]);
    assert_eq!((again["requests"].as_u64(), &again["skipped"]), (Some(letters as u64), &0.into()));

    let suggested = simulate(directory, &["access.log", "--suggest", "per-client", "--refused", "0%"]);
    assert_eq!(
        (&suggested["suggest"]["value"], &suggested["suggest"]["refused_share"]),
        (&"\"7/h\"".into(), &0.0.into())
    );
}

#[test]
fn a_table_says_it_to_people_and_errors_say_how_to_mend_them() {
    let gateway = Gateway::start(RULES);
    let directory = gateway.directory.path();
    send(&gateway);
    let (status, text, errors) = run(&["simulate", "access.log", "--baseline", "gateway.toml"], directory);
    assert!(status.success(), "{errors}");
    for part in ["10 requests in ", "per-client", "(40.0%)", "HURT MOST BY per-client", "client-ip=192.0.2.1"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(errors.is_empty(), "no bar where no terminal is: {errors}");
    for (arguments, says) in [
        (&["none.log"][..], "none.log: No such file"),
        (&["."], "it is a directory: name the files in it"),
        (&["access.log", "--baseline", "none.toml"], "none.toml"),
        (
            &["access.log", "--suggest", "per-clent"],
            "no [[limit]] is called \"per-clent\"; there are: per-client, tried",
        ),
        (&["-", "--suggest", "per-client"], "name files in place of -"),
        (&["access.log", "--suggest", "per-client", "--refused", "101%"], "from 0% to 100%"),
        (&["access.log", "--html", "none/report.html"], "none/report.html"),
        (&["access.log", "--html", "./access.log"], "that file is read"),
        (&["access.log", "--html", "gateway.toml"], "that file is read"),
        (&["\u{1b}[31m.log"], "\\u{1b}[31m.log: No such file"),
    ] {
        let words = ["simulate"].iter().chain(arguments).copied().collect::<Vec<_>>();
        let (status, text, errors) = run(&words, directory);
        assert!(!status.success() && text.is_empty() && errors.contains(says), "{says}: {errors}");
    }
}

#[test]
fn arrivals_away_from_every_boundary_are_decided_as_by_the_gateway_that_ran() {
    best_of_three(|| {
        let rules = RULES.replace("\"3/h\"\nalgorithm = \"token-bucket\"", "\"5/s\"\nalgorithm = \"gcra\"\nburst = 2");
        let gateway = Gateway::start(&rules);
        let mut client = Client::connect(gateway.address());
        let start = Instant::now();
        let mut refused = 0;
        // Room comes each 200 ms after the first; the others come at least 50 ms before that or after.
        for millis in [0_u64, 10, 50, 100, 250, 260, 300, 450, 500, 650, 700, 850, 900, 1050, 1100, 1110] {
            std::thread::sleep(Duration::from_millis(millis).saturating_sub(start.elapsed()));
            refused += u64::from(client.get("/").status == 429);
        }
        assert!(eventually(|| lines(&gateway) == 16));
        let simulated = simulate(gateway.directory.path(), &["access.log"]);
        assert_eq!(simulated["requests"], 16);
        let told = simulated["limits"][0]["refused"].as_u64().unwrap();
        // A busy machine sends late, and so near a boundary.
        assert_in_time(told == refused, &format!("the gateway refused {refused}, the simulation {told}"));
    });
}

#[test]
fn plans_hold_in_a_simulation_and_in_an_explanation() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    write(
        "plans.toml",
        "default = \"free\"\n[plan.free]\n[plan.pro]\nl = { rate = \"5/1h\" }\n[keys]\ngold = \"pro\"\n",
    );
    write(
        "gateway.toml",
        "[[listener]]\naddress = \"127.0.0.1:1\"\n[[limit]]\nname = \"l\"\nkey = \"header:x-api-key\"\nrate = \"2/1h\"\n\
         [[route]]\nname = \"all\"\nlimits = [\"l\"]\nrespond = {}\n\
         plans = { file = \"plans.toml\", key = \"header:x-api-key\" }\n",
    );
    let line =
        |key: &str| format!("{{\"ts\":1,\"client\":\"::1\",\"path\":\"/\",\"headers\":{{\"x-api-key\":\"{key}\"}}}}\n");
    write("log", &(line("gold").repeat(9) + &line("other").repeat(9)));
    let simulated = simulate(directory.path(), &["log"]);
    assert_eq!((&simulated["admitted"], &simulated["refused"]), (&7.into(), &11.into()));
    let words = ["explain", "GET", "/", "-H", "x-api-key: gold", "--json"];
    let (_, explained, errors) = run(&words, directory.path());
    let explained: Value = serde_json::from_str(&explained).expect(&errors);
    assert_eq!((&explained["plan"], &explained["limits"][0]["room"]), (&"pro".into(), &5.into()));
    fs::remove_file(directory.path().join("plans.toml")).unwrap();
    let (status, _, errors) = run(&["simulate", "log"], directory.path());
    assert!(!status.success() && errors.contains("plans.toml"), "{errors}");
}

/// All come from one address, so by that they would be one client.
#[test]
fn long_keys_that_begin_alike_are_not_taken_for_one() {
    let rules = "[log]\naccess = \"json\"\naccess_file = \"access.log\"\n\
         [[limit]]\nname = \"per-key\"\nrate = \"1/h\"\nkey = \"header:x-api-key\"\n\
         [[route]]\nname = \"all\"\nlimits = [\"per-key\"]\nrespond = {}\n";
    let gateway = Gateway::start(rules);
    for size in [512, 513] {
        for end in ["1", "2"] {
            let key = "k".repeat(size - 1) + end;
            assert_eq!(get_with(gateway.address(), "/", &[("x-api-key", &key)]).status, 200);
        }
    }
    assert!(eventually(|| lines(&gateway) == 4));
    let same = simulate(gateway.directory.path(), &["access.log"]);
    let from = "header:x-api-key: 2 by marks in place of its values, 2 by the client's address, since the log lacks it";
    assert_eq!(same["limits"][0]["key_from"], from, "{same}");
}

#[test]
fn keys_that_stand_in_no_field_of_the_access_log_are_simulated_by_their_marks() {
    let rules = "[log]\naccess = \"json\"\naccess_file = \"access.log\"\n\
         [[limit]]\nname = \"per-key\"\nrate = \"3/h\"\nkey = \"header:x-api-key\"\nexempt = [\"key:k-exempt\"]\n\
         [[limit]]\nname = \"per-user\"\nrate = \"5/h\"\nkey = [\"cookie:sid\", \"basic:user\", \"header:x-api-key\"]\n\
         on_missing_key = \"skip\"\n[[route]]\nname = \"all\"\nlimits = [\"per-key\", \"per-user\"]\nrespond = {}\n";
    let gateway = Gateway::start(rules);
    let directory = gateway.directory.path();
    let mut refused = 0;
    for (nth, key) in ["k-one", "k-two", "k-one", "k-one", "k-one", "k-two", "k-exempt"].iter().enumerate() {
        // dTpw is u:p
        let fields = [("x-api-key", *key), ("cookie", "sid=s-1"), ("authorization", "Basic dTpw")];
        refused += u64::from(get_with(gateway.address(), &format!("/{nth}"), &fields).status == 429);
    }
    assert_eq!((refused, get_with(gateway.address(), "/none", &[]).status), (1, 200));
    assert!(eventually(|| lines(&gateway) == 8));
    let text = fs::read_to_string(directory.join("access.log")).unwrap();
    for secret in ["k-one", "k-two", "s-1"] {
        assert!(!text.contains(secret), "{text}");
    }
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let marks = |target: &str| {
        let line = lines.iter().find(|line| line["target"] == target).unwrap();
        line["keys"].as_object().cloned().unwrap_or_default()
    };
    let names: Vec<String> = marks("/0").keys().cloned().collect();
    assert_eq!(names, ["basic:user", "cookie:sid", "header:x-api-key"], "one for each part: {text}");
    assert!(marks("/0").values().all(|mark| mark.as_str().unwrap().starts_with("[redacted:")), "{text}");
    assert!(marks("/0") == marks("/2") && marks("/0")["header:x-api-key"] != marks("/1")["header:x-api-key"], "{text}");
    assert!(marks("/none").is_empty(), "{text}");

    let same = simulate(directory, &["access.log"]);
    assert_eq!((&same["requests"], &same["refused"]), (&8.into(), &refused.into()), "{same}");
    let limit = |place: usize| &same["limits"][place];
    let from = "header:x-api-key: 7 by marks in place of its values, 1 by the client's address, since the log lacks it";
    assert_eq!(limit(0)["key_from"], from);
    // Of those that `per-key` refuses, and of the one without a key, nothing is asked.
    assert_eq!(limit(1)["key_from"], "cookie:sid + basic:user + header:x-api-key: 6 by marks in place of its values");
    // By the mark that a search finds.
    assert_eq!(limit(0)["keys"][0]["key"][0][1], marks("/0")["header:x-api-key"], "{same}");
    let notes = same["notes"].to_string();
    assert!(
        notes.contains("(per-key, per-user): `exempt` values, plans of keys and numbers of single keys are unknown"),
        "{notes}"
    );
    assert!(notes.contains("counted by the client's address (per-key)"), "{notes}");
    let (_, shown, _) = run(&["simulate", "access.log"], directory);
    assert!(shown.contains(from), "{shown}");
    fs::write(
        directory.join("plain.log"),
        "{\"ts\":1,\"client\":\"::1\",\"path\":\"/\",\"headers\":{\"x-api-key\":\"a\"}}\n",
    )
    .unwrap();
    assert_eq!(simulate(directory, &["plain.log"])["limits"][0]["key_from"], "header:x-api-key: 1 by its values");
}
