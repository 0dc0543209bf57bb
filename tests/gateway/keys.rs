//! Single keys: blocked by hand, with numbers of their own, reset; over reloads, restarts and upgrades, and in a fleet.

use std::fs;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Answer, Client, FRAME, Gateway, Store, eventually, get_with, run};

/// A limit by key of two an hour, on two workers.
pub fn rules(limit: &str, more: &str) -> String {
    format!(
        "[server]\nworkers = 2\nstate_file = \"counts\"\n[log]\naccess = \"json\"\naccess_file = \"access.log\"\n[dead_letter]\n\
         [[limit]]\nname = \"per-key\"\nkey = \"header:x-key\"\nrate = \"2/h\"\n{limit}\n\
         [[route]]\nname = \"all\"\nrespond = {{}}\nlimits = [\"per-key\"]\n{more}"
    )
}

pub fn ask(gateway: &Gateway, key: &str) -> Answer {
    get_with(gateway.address(), "/", &[("x-key", key)])
}

/// How many of at most nine are admitted for a key, each over a connection of its own.
pub fn left(gateway: &Gateway, key: &str) -> usize {
    (0..9).take_while(|_| ask(gateway, key).status == 200).count()
}

pub fn tell(gateway: &Gateway, method: &str, key: &str, what: &str, body: &str) -> Value {
    let answer = gateway.tell_admin(method, &format!("/api/v1/limits/per-key/keys/{key}/{what}"), body);
    assert_eq!(answer.status, 200, "{method} {what}: {}", answer.text());
    answer.json()
}

pub fn exceptions(gateway: &Gateway) -> Vec<Value> {
    gateway.ask_admin("/api/v1/exceptions").json()["exceptions"].as_array().unwrap().clone()
}

pub fn end(mut gateway: Gateway) -> TempDir {
    gateway.signal("TERM");
    assert!(gateway.wait_exit().success());
    gateway.kill()
}

#[test]
fn a_block_holds_on_every_worker_for_the_next_request_whatever_else_holds() {
    for limit in ["", "mode = \"shadow\"", "mode = \"off\"", "exempt = [\"127.0.0.0/8\", \"key:a\"]", "status = 403"] {
        let gateway = Gateway::start(&rules(limit, ""));
        // Connections of both workers that are there before the block.
        let mut kept: Vec<Client> = (0..8).map(|_| Client::connect(gateway.address())).collect();
        let mut ask_kept = |key: &str| -> Vec<Answer> {
            kept.iter_mut().map(|client| client.request("GET", "/", &[("x-key", key)], b"")).collect()
        };
        assert!(ask_kept("a").iter().any(|answer| answer.status == 200), "{limit}");
        let answer = tell(&gateway, "PUT", "a", "block", "{\"reason\": \"scraping\"}");
        assert_eq!(answer["block"]["kind"], "by-hand", "{answer}");
        let status = if limit.starts_with("status") { 403 } else { 429 };
        for answer in ask_kept("a") {
            assert_eq!((answer.status, answer.header("retry-after")), (status, None), "{limit}");
            assert_eq!(answer.json()["detail"], "Blocked by the limit \"per-key\"; try again later.");
        }
        assert_eq!(ask(&gateway, "b").status, 200, "another key goes on");
        let answer = tell(&gateway, "DELETE", "a", "block", "");
        assert_eq!(answer["found"], serde_json::json!({ "by_hand": true, "penalty": false }));
        // Two of eight were admitted before.
        let then = if limit.is_empty() || status == 403 { status } else { 200 };
        assert!(ask_kept("a").iter().all(|answer| answer.status == then), "{limit}");
        assert_eq!(gateway.tell_admin("DELETE", "/api/v1/limits/per-key/keys/a/block", "").status, 404, "{limit}");
    }
}

#[test]
fn a_block_has_an_end_and_says_it() {
    let gateway = Gateway::start(&rules("", ""));
    tell(&gateway, "PUT", "a", "block", "{\"until\": \"+1h\"}");
    let answer = ask(&gateway, "a");
    let secs: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!(answer.status == 429 && (3_590..=3_600).contains(&secs), "{secs}");
    // The new one takes the place of the old one.
    let answer = tell(&gateway, "PUT", "a", "block", "{\"until\": \"+1s\"}");
    assert!(answer["before"]["until"].is_string(), "{answer}");
    assert!(eventually(|| ask(&gateway, "a").status == 200));
    assert_eq!(exceptions(&gateway), Vec::<Value>::new());
}

#[test]
fn numbers_of_a_key_take_the_place_of_the_limits_until_they_end() {
    let gateway = Gateway::start(&rules("", ""));
    assert_eq!(left(&gateway, "a"), 2);
    let answer = tell(&gateway, "PUT", "a", "override", "{\"rates\": [\"5/h\"], \"reason\": \"asked for\"}");
    assert_eq!(answer["own_numbers"]["numbers"], "rate = [\"5/h\"]", "{answer}");
    assert_eq!((left(&gateway, "a"), left(&gateway, "b")), (5, 2), "others keep the limit's");
    // A change of the numbers keeps what is counted.
    tell(&gateway, "PUT", "a", "override", "{\"rates\": [\"7/h\"]}");
    assert_eq!(left(&gateway, "a"), 2);
    let key = gateway.ask_admin("/api/v1/limits/per-key/keys/a").json();
    let of_key = key["keys"].as_array().unwrap().iter().find(|line| line["own_numbers"].is_object()).unwrap();
    assert_eq!((&of_key["rates"][0]["limit"], &of_key["room"]), (&7.into(), &0.into()), "{key}");
    let answer = tell(&gateway, "DELETE", "a", "override", "");
    assert_eq!(answer["before"]["numbers"], "rate = [\"7/h\"]", "{answer}");
    assert_eq!(left(&gateway, "a"), 0, "the limit's count was kept meanwhile");
    tell(&gateway, "PUT", "b", "override", "{\"rates\": [\"9/h\"], \"until\": \"+1s\"}");
    assert!(ask(&gateway, "b").status == 200);
    assert!(eventually(|| ask(&gateway, "b").status == 429), "the limit's numbers hold again");
}

#[test]
fn a_reset_forgets_the_counts_of_the_limit_of_plans_and_of_own_numbers() {
    let plans = "default = \"free\"\n[plan.free]\nper-key = { rate = \"3/h\" }\n[keys]\n";
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("plans.toml"), plans).unwrap();
    let with_plans = rules("", "").replace(
        "limits = [\"per-key\"]\n",
        "limits = [\"per-key\"]\nplans = { file = \"plans.toml\", key = \"header:x-key\" }\n",
    );
    let gateway = Gateway::start_in(directory, &format!("{FRAME}{with_plans}"));
    assert_eq!(left(&gateway, "a"), 3);
    assert_eq!(tell(&gateway, "POST", "a", "reset", "")["found"]["counts"], true);
    assert_eq!(left(&gateway, "a"), 3);
    tell(&gateway, "PUT", "a", "override", "{\"rates\": [\"4/h\"]}");
    assert_eq!(left(&gateway, "a"), 4);
    assert_eq!(tell(&gateway, "POST", "a", "reset", "")["found"]["counts"], true);
    assert_eq!(left(&gateway, "a"), 4);
    let answer = gateway.tell_admin("POST", "/api/v1/limits/per-key/keys/never-seen/reset", "");
    assert!(answer.status == 404 && answer.text().contains("nothing is counted of it"), "{}", answer.text());
}

#[test]
fn a_reload_and_a_restart_keep_exceptions_and_what_does_not_fit_any_more_is_told() {
    let gateway = Gateway::start(&rules("", ""));
    tell(&gateway, "PUT", "a", "block", "");
    let answer = tell(&gateway, "PUT", "b", "override", "{\"rates\": [\"5/h\"]}");
    assert_eq!(answer["kept"], "over restarts");
    assert_eq!(left(&gateway, "b"), 5);
    assert!(gateway.reload(&rules("status = 403", "")).text().contains("status"));
    assert_eq!((ask(&gateway, "a").status, left(&gateway, "b")), (403, 0));
    let gateway = Gateway::start_in(end(gateway), &format!("{FRAME}{}", rules("", "")));
    assert_eq!((ask(&gateway, "a").status, left(&gateway, "b"), left(&gateway, "c")), (429, 0, 2));
    // Numbers of another algorithm do not fit: the limit's hold, and the list says why.
    let bursts = rules("", "").replace("rate = \"2/h\"", "algorithm = \"concurrency\"\nmax_in_flight = 9");
    assert_eq!(gateway.reload(&bursts).status, 200);
    assert_eq!(left(&gateway, "b"), 9);
    let listed = exceptions(&gateway);
    let misfit = listed.iter().find_map(|own| own["own_numbers"]["misfit"].as_str()).unwrap();
    assert!(misfit.contains("rate"), "{listed:?}");
    assert!(gateway.log().contains("exceptions of keys do not hold"), "{}", gateway.log());
    assert_eq!(ask(&gateway, "a").status, 429, "the block holds");
    // With the old rules it fits again.
    assert_eq!(gateway.reload(&rules("", "")).status, 200);
    assert_eq!(left(&gateway, "b"), 5);
    let secret = fs::read_to_string(gateway.directory.path().join("counts.exceptions")).unwrap();
    assert!(!secret.contains("\"a\"") && secret.contains("header:x-key"), "{secret}");
}

#[test]
fn an_upgrade_in_place_keeps_exceptions() {
    let mut gateway = Gateway::start(&rules("", "").replace("state_file = \"counts\"\n", ""));
    tell(&gateway, "PUT", "a", "block", "");
    let answer = tell(&gateway, "PUT", "b", "override", "{\"rates\": [\"5/h\"]}");
    assert!(answer["kept"].as_str().unwrap().starts_with("until the process ends"), "{answer}");
    assert_eq!((0..3).filter(|_| ask(&gateway, "b").status == 200).count(), 3);
    assert_eq!(gateway.upgrade()["ok"], true);
    gateway.wait_alone();
    assert_eq!((ask(&gateway, "a").status, left(&gateway, "b")), (429, 2));
}

#[test]
fn a_damaged_file_is_left_aside_and_told() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("counts.exceptions"), "{\"version\": 1, \"exc").unwrap();
    let gateway = Gateway::start_in(directory, &format!("{FRAME}{}", rules("", "")));
    assert_eq!(left(&gateway, "a"), 2);
    assert!(gateway.directory.path().join("counts.exceptions.bad").exists());
    assert!(gateway.log().contains("make them again with `sluicegate keys`"), "{}", gateway.log());
}

/// Workers write side by side.
fn sorted(mut words: Vec<String>) -> Vec<String> {
    words.sort();
    words
}

#[test]
fn a_blocked_key_looks_different_from_a_limited_one() {
    let penalty = "penalty = { after = 2, within = \"1h\", block = \"1h\" }";
    let gateway = Gateway::start(&rules(penalty, ""));
    tell(&gateway, "PUT", "hand", "block", "{\"reason\": \"scraping\"}");
    ask(&gateway, "hand");
    let why = |key: &str| {
        let answer = gateway.tell_admin(
            "POST",
            "/api/v1/explain",
            &format!("{{\"url\": \"/\", \"headers\": [[\"x-key\", \"{key}\"]]}}"),
        );
        answer.json()
    };
    let statuses: Vec<u16> = (0..5).map(|_| ask(&gateway, "penalised").status).collect();
    assert_eq!(statuses, [200, 200, 429, 429, 429]);
    // Two over the limit, the second of which begins the block, and one of a blocked key.
    assert!(eventually(|| gateway.dead_letters().len() >= 4));
    let reasons: Vec<_> =
        gateway.dead_letters().iter().map(|letter| letter["reason"].as_str().unwrap().to_owned()).collect();
    assert_eq!(sorted(reasons), ["blocked", "blocked", "rate-limited", "rate-limited"]);
    let outcomes = || -> Vec<String> {
        let text = fs::read_to_string(gateway.directory.path().join("access.log")).unwrap();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter_map(|line| Some(line["outcome"].as_str()?.to_owned())).collect()
    };
    assert!(eventually(|| outcomes().len() >= 6));
    assert_eq!(sorted(outcomes()), ["blocked", "blocked", "refused", "refused", "responded", "responded"]);
    gateway.wait_metric("sluicegate_limit_decisions_total", &["limit=\"per-key\"", "decision=\"blocked\""], 2.0);
    let explained = why("hand");
    let block = &explained["limits"][0]["block"];
    assert_eq!(
        (&explained["reason"], &block["kind"], &block["reason"]),
        (&"blocked".into(), &"by-hand".into(), &"scraping".into())
    );
    let explained = why("penalised");
    let block = &explained["limits"][0]["block"];
    assert_eq!((&explained["reason"], &block["kind"]), (&"blocked".into(), &"penalty".into()), "{explained}");
    assert!(block["until"].is_string());
    let key = gateway.ask_admin("/api/v1/limits/per-key/keys/penalised").json();
    assert_eq!(key["keys"][0]["block"]["kind"], "penalty", "{key}");
    assert_eq!(tell(&gateway, "DELETE", "penalised", "block", "")["found"]["penalty"], true);
    assert_eq!(why("penalised")["reason"], "rate-limited", "what it has used stays");
}

/// `exempt` and back leaves a block until its time; to drop `penalty` lets everybody go, and to restore it begins anew.
#[test]
fn exempt_leaves_a_block_and_a_dropped_penalty_ends_all() {
    let penalty = "penalty = { after = 1, within = \"1h\", block = \"1h\" }";
    let gateway = Gateway::start(&rules(penalty, ""));
    let reason = || {
        gateway.tell_admin("POST", "/api/v1/explain", "{\"url\": \"/\", \"headers\": [[\"x-key\", \"a\"]]}").json()["reason"].clone()
    };
    for status in [200, 200, 429, 429] {
        assert_eq!(ask(&gateway, "a").status, status);
    }
    assert_eq!(reason(), "blocked");
    assert_eq!(gateway.reload(&rules(&format!("{penalty}\nexempt = [\"key:a\"]"), "")).status, 200);
    assert_eq!(ask(&gateway, "a").status, 200);
    assert_eq!(gateway.reload(&rules(penalty, "")).status, 200);
    assert_eq!(reason(), "blocked", "it was there all the time");
    assert_eq!(gateway.reload(&rules("", "")).status, 200);
    assert_eq!(reason(), "rate-limited", "nobody is blocked any more");
    assert_eq!(gateway.reload(&rules(penalty, "")).status, 200);
    assert_eq!(reason(), "rate-limited", "refusals are counted anew");
    assert_eq!(ask(&gateway, "a").status, 429);
    assert_eq!(reason(), "blocked");
}

#[test]
fn what_cannot_be_is_a_problem_that_says_how_to_mend_it_and_changes_nothing() {
    let gateway = Gateway::start(&rules("", ""));
    let long = format!("{{\"reason\": \"{}\"}}", "x".repeat(300));
    for (method, target, body, status, words) in [
        ("PUT", "none/keys/a/block", "", 404, "There is no limit \"none\"."),
        ("PUT", "per-key/keys//block", "", 404, "That is no value of the key header:x-key"),
        ("PUT", "per-key/keys/a/block", "{", 400, "send {\"until\": \"2026-12-01\""),
        ("PUT", "per-key/keys/a/block", "{\"till\": 1}", 422, "unknown field `till`"),
        ("PUT", "per-key/keys/a/block", "{\"until\": \"yesterday\"}", 422, "is no instant: write it as"),
        ("PUT", "per-key/keys/a/block", "{\"until\": \"2020-01-01\"}", 422, "has passed"),
        ("PUT", "per-key/keys/a/block", "{\"until\": \"2099-01-01\"}", 422, "more than ten years ahead"),
        ("PUT", "per-key/keys/a/block", &long, 422, "longer than 256 characters"),
        ("PUT", "per-key/keys/a/override", "", 400, "send {\"rates\": [\"500/s\"]"),
        ("PUT", "per-key/keys/a/override", "{}", 422, "the key gets no other number"),
        ("PUT", "per-key/keys/a/override", "{\"rates\": [\"500\"]}", 422, "invalid rate \"500\""),
        (
            "PUT",
            "per-key/keys/a/override",
            "{\"rates\": [\"5/s\"], \"mode\": \"off\"}",
            422,
            "\"mode\" of a limit cannot be another",
        ),
        ("PUT", "per-key/keys/a/override", "{\"burst\": 5}", 422, "`burst` is no setting of the algorithm timer-wheel"),
        ("POST", "per-key/keys/a/block", "", 405, "This endpoint answers PUT, DELETE."),
    ] {
        let answer = gateway.tell_admin(method, &format!("/api/v1/limits/{target}"), body);
        let problem = answer.json();
        assert_eq!(answer.status, status, "{target} {body}: {problem}");
        assert!(problem["detail"].as_str().unwrap().contains(words), "{target} {body}: {problem}");
    }
    assert_eq!(exceptions(&gateway), Vec::<Value>::new());
    assert_eq!(left(&gateway, "a"), 2);
}

#[test]
fn the_command_line_changes_keys_and_lists_exceptions() {
    let gateway = Gateway::start(&rules("", ""));
    let (directory, admin) = (gateway.directory.path(), format!("http://{}", gateway.admin));
    let keys = |arguments: &[&str]| {
        let (status, out, error) = run(&[&["keys"], arguments, &["--admin", &admin]].concat(), directory);
        assert!(status.success(), "{arguments:?}: {error}");
        out
    };
    assert_eq!(keys(&["exceptions"]), "No key has an exception.\n");
    let out = keys(&["block", "per-key", "k 1/é", "--until", "+2h", "--reason", "scraping"]);
    assert!(out.contains("blocked by hand (loopback), until 20") && out.contains(": scraping\n"), "{out}");
    assert!(out.contains("kept: over restarts"), "{out}");
    let out = keys(&["override", "per-key", "b", "--rate", "5/h"]);
    assert!(out.contains("own numbers: rate = [\"5/h\"] (loopback), without an end"), "{out}");
    let out = keys(&["exceptions"]);
    assert!(out.contains("blocked by hand") && out.contains("own numbers: rate = [\"5/h\"]"), "{out}");
    assert_eq!(left(&gateway, "b"), 5);
    assert!(keys(&["reset", "per-key", "b"]).contains(": reset\n"));
    assert_eq!(left(&gateway, "b"), 5);
    assert!(keys(&["get", "per-key", "b"]).contains("own numbers: rate"));
    assert!(keys(&["override", "per-key", "b", "--remove"]).contains("it has the limit's numbers again"));
    assert!(keys(&["unblock", "per-key", "k 1/é"]).contains("let go, from a block by hand"));
    let (status, _, error) = run(&["keys", "unblock", "per-key", "k 1/é", "--admin", &admin], directory);
    assert!(!status.success() && error.contains("it is not blocked; nothing was changed"), "{error}");
    let in_zone = |until: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_sluicegate"));
        command.args(["keys", "block", "per-key", "z", "--until", until, "--admin", &admin]).env("TZ", "Asia/Kolkata");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap())
    };
    // 03:30 in Kolkata is 22:00 in UTC, on any day.
    for until in ["tomorrow 3:30", "monday 03:30", "3:30"] {
        let [out, error] = in_zone(until);
        assert!(out.contains("T22:00:00") && error.contains(" 03:30:00 in Asia/Kolkata ("), "{until}: {out}{error}");
    }
    let [_, error] = in_zone("2036-01-02");
    assert_eq!(error, "sluicegate: until 2036-01-02 in UTC\n");
    let (status, _, error) = run(&["keys", "block", "per-key", "a", "--until", "never", "--admin", &admin], directory);
    assert!(!status.success() && error.contains("is no instant"), "{error}");
}

/// Two gateways of one fleet, which know each other; the limit is shared or not.
pub fn two(store: &Store, shared: &str) -> [Gateway; 2] {
    let fleet = format!(
        "[fleet]\nstore = \"redis://{}\"\nsecret_file = \"fleet.key\"\ndeadline = \"1s\"\non_failure = \"closed\"\n",
        store.address()
    );
    let rules = format!("{FRAME}{fleet}{}", rules(&format!("algorithm = \"fixed-window\"\nshared = \"{shared}\""), ""));
    let gateways = [(); 2].map(|()| {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("fleet.key"), "0123456789abcdef".repeat(4)).unwrap();
        Gateway::start_in(directory, &rules)
    });
    for gateway in &gateways {
        assert!(eventually(|| gateway.ask_admin("/api/v1/fleet").json()["gateways"] == 2));
    }
    gateways
}

#[test]
fn all_gateways_of_a_fleet_obey_whether_the_limit_is_shared_or_not() {
    for shared in ["off", "strict", "lease"] {
        let store = Store::start();
        let [one, other] = two(&store, shared);
        let answer = tell(&one, "PUT", "a", "block", "{\"reason\": \"scraping\"}");
        assert_eq!(answer["fleet"], "is being told to the other gateways", "{answer}");
        assert_eq!(ask(&one, "a").status, 429, "{shared}: at once where it was told");
        assert!(eventually(|| ask(&other, "a").text().contains("Blocked by the limit")));
        assert_eq!(exceptions(&other)[0]["block"]["reason"], "scraping");
        // Whoever is asked takes it back.
        tell(&other, "DELETE", "a", "block", "");
        assert!(eventually(|| exceptions(&one).is_empty()), "{shared}");
        tell(&other, "PUT", "b", "override", "{\"rates\": [\"6/h\"]}");
        assert!(eventually(|| !exceptions(&one).is_empty()));
        let both = left(&one, "b") + left(&other, "b");
        // Of a lease a part may lie with the one that has stopped asking.
        let expected = match shared {
            "off" => 12..=12,
            "strict" => 6..=6,
            _ => 4..=6,
        };
        assert!(expected.contains(&both), "{shared}: {both}");
        // A reset holds in both.
        tell(&one, "POST", "b", "reset", "");
        assert!(eventually(|| ask(&other, "b").status == 200), "{shared}");
        assert!(eventually(|| ask(&one, "b").status == 200), "{shared}");
    }
}

#[test]
fn a_newcomer_takes_over_what_the_store_knows_and_a_store_that_was_away_is_told() {
    let store = Store::start();
    let [one, other] = two(&store, "off");
    tell(&one, "PUT", "a", "block", "");
    assert!(eventually(|| exceptions(&other).len() == 1));
    store.pause();
    assert!(eventually(|| one.ask_admin("/api/v1/fleet").json()["mode"] == "alone"));
    let answer = tell(&one, "PUT", "b", "block", "");
    assert!(answer["fleet"].as_str().unwrap().contains("do not know"), "{answer}");
    assert_eq!((ask(&one, "b").status, ask(&other, "b").status), (429, 200));
    store.resume();
    assert!(eventually(|| exceptions(&other).len() == 2), "it is told when the store is back");
    assert_eq!(ask(&other, "b").status, 429);
    // A store that has lost everything is told again.
    store.ask(&["FLUSHALL"]);
    assert!(eventually(|| store.ask(&["HLEN", "sluicegate:exceptions"]).contains('3')));
    let rules = fs::read_to_string(one.file()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("fleet.key"), "0123456789abcdef".repeat(4)).unwrap();
    let newcomer = Gateway::start_in(directory, &rules);
    assert!(eventually(|| ask(&newcomer, "a").status == 429 && ask(&newcomer, "b").status == 429));
    assert_eq!(exceptions(&one).len(), 2);
}

#[test]
fn a_state_file_that_is_new_keeps_nothing_before_the_next_process() {
    let without = rules("", "").replace("state_file = \"counts\"\n", "");
    let gateway = Gateway::start(&without);
    let kept = || tell(&gateway, "PUT", "a", "block", "{}")["kept"].as_str().unwrap().to_owned();
    assert_eq!(kept(), "until the process ends: [server] has no state_file");
    gateway.reload(&rules("", ""));
    assert!(kept().ends_with("such as after `sluicegate upgrade`"), "{}", kept());
}
