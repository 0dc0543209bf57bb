//! Exceptions of single keys that outlive something: a process, a fleet, a limit, a store that was away, their own time.

use std::fs;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::keys::{ask, end, exceptions, left, rules, tell, two};
use crate::support::{FRAME, Gateway, Store, eventually};

const SECRET: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Waits until a gateway has heard what another one has told until now.
fn has_heard(teller: &Gateway, hearer: &Gateway, key: &str) {
    tell(teller, "PUT", key, "block", "");
    assert!(eventually(|| ask(hearer, key).text().contains("Blocked by the limit")));
}

fn again(gateway: Gateway) -> Gateway {
    let text = fs::read_to_string(gateway.file()).unwrap();
    Gateway::start_in(end(gateway), &text)
}

fn status_of(gateway: &Gateway, method: &str, key: &str, what: &str) -> u16 {
    gateway.tell_admin(method, &format!("/api/v1/limits/per-key/keys/{key}/{what}"), "").status
}

fn misfits(gateway: &Gateway) -> Vec<String> {
    let of = |seen: &Value| seen["misfit"].as_str().unwrap_or_default().to_owned();
    exceptions(gateway).iter().map(of).collect()
}

#[test]
fn a_reset_that_was_done_is_not_done_again_by_the_process_that_comes_next() {
    let store = Store::start();
    let [one, mut other] = two(&store, "off");
    assert_eq!(left(&other, "a"), 2);
    tell(&one, "POST", "a", "reset", "");
    has_heard(&one, &other, "x");
    assert_eq!(left(&other, "a"), 2, "it is done once");
    other = again(other);
    has_heard(&one, &other, "y");
    assert_eq!(left(&other, "a"), 0, "and by the next process no more");
    assert_eq!(other.upgrade()["ok"], true);
    other.wait_alone();
    has_heard(&one, &other, "z");
    assert_eq!(left(&other, "a"), 0, "nor by one that takes over");
}

#[test]
fn a_reset_that_was_told_while_a_gateway_was_away_or_that_waits_for_its_key_is_done() {
    let store = Store::start();
    let [one, other] = two(&store, "off");
    assert_eq!((left(&other, "a"), left(&other, "b")), (2, 2));
    tell(&one, "POST", "b", "reset", "");
    has_heard(&one, &other, "x");
    let (text, directory) = (fs::read_to_string(other.file()).unwrap(), end(other));
    tell(&one, "POST", "a", "reset", "");
    let other = Gateway::start_in(directory, &text);
    has_heard(&one, &other, "y");
    assert_eq!((left(&other, "a"), left(&other, "b")), (2, 2));
}

#[test]
fn a_gateway_without_counts_of_before_does_nothing_that_was_told_before_it_began() {
    let store = Store::start();
    let [one, other] = two(&store, "off");
    tell(&one, "POST", "a", "reset", "");
    has_heard(&one, &other, "x");
    let text = fs::read_to_string(other.file()).unwrap().replace("state_file = \"counts\"\n", "");
    store.pause();
    let other = Gateway::start_in(end(other), &text);
    assert_eq!(left(&other, "a"), 2);
    store.resume();
    has_heard(&one, &other, "y");
    assert_eq!(left(&other, "a"), 0);
}

#[test]
fn what_has_ended_long_ago_is_removed_from_the_store_and_what_others_write_in_between_is_not() {
    let store = Store::start();
    let [one, other] = two(&store, "off");
    tell(&one, "PUT", "a", "block", "{\"until\": \"2030-01-01\"}");
    assert!(eventually(|| exceptions(&other).len() == 1));
    let fields = store.ask(&["HKEYS", "sluicegate:exceptions"]);
    let field = fields.lines().find(|field| field.starts_with("key:")).unwrap();
    let text = store.ask(&["HGET", "sluicegate:exceptions", field]);
    assert!(text.contains("2030-01-01T00:00:00Z"), "{text}");
    let ended = text.trim().replace("2030", "2020");
    store.ask(&["HSET", "sluicegate:exceptions", field, &ended, "version", "other"]);
    assert!(eventually(|| store.ask(&["HEXISTS", "sluicegate:exceptions", field]).trim() == "0"));
    assert!(eventually(|| exceptions(&one).is_empty() && exceptions(&other).is_empty()));
}

#[test]
fn exceptions_of_before_a_fleet_are_taken_back_and_those_of_a_fleet_that_is_gone_are_told() {
    let store = Store::start();
    let alone = format!("{FRAME}{}", rules("algorithm = \"fixed-window\"", ""));
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("fleet.key"), SECRET).unwrap();
    let gateway = Gateway::start_in(directory, &alone);
    for key in ["a", "b"] {
        tell(&gateway, "PUT", key, "block", "");
    }
    tell(&gateway, "PUT", "c", "override", "{\"rates\": [\"5/h\"]}");
    let fleet = format!("[fleet]\nstore = \"redis://{}\"\nsecret_file = \"fleet.key\"\n", store.address());
    let in_fleet = rules("algorithm = \"fixed-window\"", &fleet);
    assert_eq!(gateway.reload(&in_fleet).status, 200);
    assert_eq!((ask(&gateway, "a").status, ask(&gateway, "b").status), (429, 429));
    assert_eq!(tell(&gateway, "DELETE", "a", "block", "")["found"]["by_hand"], true);
    assert_eq!(ask(&gateway, "a").status, 200);
    // Another block takes its place, also where it ends sooner.
    let answer = tell(&gateway, "PUT", "b", "block", "{\"until\": \"+1s\"}");
    assert_eq!(answer["before"]["kind"], "by-hand", "{answer}");
    assert!(eventually(|| ask(&gateway, "b").status == 200));
    let answer = tell(&gateway, "PUT", "c", "override", "{\"rates\": [\"7/h\"]}");
    assert_eq!(answer["before"]["numbers"], "rate = [\"5/h\"]", "{answer}");
    assert_eq!(left(&gateway, "c"), 7);
    tell(&gateway, "DELETE", "c", "override", "");
    assert_eq!((left(&gateway, "c"), exceptions(&gateway).len()), (2, 0));
    // And back: nobody knows these keys any more.
    for key in ["d", "e"] {
        tell(&gateway, "PUT", key, "block", "");
    }
    assert_eq!(gateway.reload(&rules("algorithm = \"fixed-window\"", "")).status, 200);
    assert_eq!(ask(&gateway, "d").status, 200);
    let misfits = misfits(&gateway);
    assert!(misfits.len() == 2 && misfits.iter().all(|own| own.contains("another secret")), "{misfits:?}");
    assert_eq!(gateway.log().matches("exceptions of keys do not hold").count(), 1, "{}", gateway.log());
    // By their fingerprints they can be removed.
    for seen in exceptions(&gateway) {
        let print = seen["print"].as_str().unwrap();
        assert_eq!(tell(&gateway, "DELETE", print, "block", "")["found"]["by_hand"], true);
    }
    assert_eq!(exceptions(&gateway), Vec::<Value>::new());
}

#[test]
fn an_exception_of_a_limit_that_is_gone_is_told_and_can_be_removed() {
    let gateway = Gateway::start(&rules("", ""));
    tell(&gateway, "PUT", "a", "block", "");
    tell(&gateway, "PUT", "b", "override", "{\"rates\": [\"5/h\"]}");
    tell(&gateway, "PUT", "c", "block", "");
    assert_eq!(gateway.reload(&rules("", "").replace("per-key", "renamed")).status, 200);
    assert_eq!(misfits(&gateway), ["there is no such limit any more"; 3]);
    for (method, key, what, status) in [
        ("PUT", "a", "block", 404),
        ("POST", "a", "reset", 404),
        ("DELETE", "never", "block", 404),
        ("DELETE", "a", "block", 200),
        ("DELETE", "a", "block", 404),
        ("DELETE", "b", "override", 200),
    ] {
        assert_eq!(status_of(&gateway, method, key, what), status, "{method} {key} {what}");
    }
    assert_eq!(exceptions(&gateway).len(), 1);
    assert_eq!(gateway.reload(&rules("", "")).status, 200);
    assert_eq!((left(&gateway, "a"), left(&gateway, "b"), left(&gateway, "c")), (2, 2, 0));
    // The same of one whose limit has another key now.
    assert_eq!(gateway.reload(&rules("", "").replace("header:x-key", "header:x-other")).status, 200);
    assert!(misfits(&gateway)[0].contains("is header:x-other now"));
    assert_eq!(status_of(&gateway, "DELETE", "c", "block"), 200);
    assert_eq!(exceptions(&gateway), Vec::<Value>::new());
}

/// Three ask by numbers of their own of one in two seconds, which `end` ends while two of them wait. `first_waits`, asked before
/// they come: how long the first of these waits at the least, after the one that passed. The bounds are of one side and count from before the first, so
/// that a busy machine makes nothing of them untrue.
fn waits_on(gateway: &Gateway, until: &str, first_waits: impl FnOnce() -> Duration, end: impl FnOnce()) {
    tell(gateway, "PUT", "a", "override", &format!("{{\"rates\": [\"1/2s\"], \"max_wait\": \"30s\"{until}}}"));
    let (begun, first_waits) = (Instant::now(), first_waits());
    assert_eq!(ask(gateway, "a").status, 200);
    thread::scope(|scope| {
        let answers: Vec<_> = (0..2).map(|_| scope.spawn(|| (ask(gateway, "a").status, begun.elapsed()))).collect();
        let in_flight = || gateway.ask_admin("/api/v1/requests").json()["requests"].as_array().unwrap().len();
        assert!(eventually(|| in_flight() == 2));
        end();
        let left = in_flight();
        assert!(left == 2 || begun.elapsed() >= first_waits, "nobody is let go: {left}");
        let mut answers: Vec<_> = answers.into_iter().map(|answer| answer.join().unwrap()).collect();
        answers.sort_unstable_by_key(|(_, after)| *after);
        assert!(answers.iter().all(|(status, _)| *status == 200), "{answers:?}");
        assert!(answers[0].1 >= first_waits, "{answers:?}");
        assert!(answers[1].1 >= first_waits + Duration::from_secs(2), "{answers:?}");
    });
    assert_eq!(left(gateway, "a"), 2, "the limit's own numbers hold for who comes now");
}

#[test]
fn who_waits_by_numbers_that_end_waits_on_in_that_queue() {
    let removed = |gateway: &Gateway| drop(tell(gateway, "DELETE", "a", "override", ""));
    let gateway = Gateway::start(&rules("", ""));
    let whole = || Duration::from_millis(1_500);
    waits_on(&gateway, "", whole, || removed(&gateway));
    let gateway = Gateway::start(&rules("", ""));
    waits_on(&gateway, ", \"until\": \"+1s\"", whole, || {
        assert!(eventually(|| exceptions(&gateway).is_empty()));
        assert_eq!(gateway.reload(&rules("status = 403", "")).status, 200);
    });
    // Those of a limit that is shared ask the store as long as they wait, whoever has removed the numbers. Its windows are those of
    // the clock, which is the same machine's: the next one lets the first in.
    for is_told in [false, true] {
        let store = Store::start();
        let [one, other] = two(&store, "strict");
        let next_window = || {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            Duration::from_millis(1_990_u64.saturating_sub(now.as_millis() as u64 % 2_000))
        };
        waits_on(&one, "", next_window, || {
            removed(if is_told { &other } else { &one });
            assert!(eventually(|| exceptions(&one).is_empty()));
        });
    }
}

#[test]
fn a_change_made_while_the_store_is_away_outlives_a_restart_and_an_upgrade() {
    for is_upgrade in [false, true] {
        let store = Store::start();
        let [mut one, other] = two(&store, "off");
        tell(&one, "PUT", "a", "block", "");
        assert!(eventually(|| exceptions(&other).len() == 1));
        store.pause();
        assert!(eventually(|| one.ask_admin("/api/v1/fleet").json()["mode"] == "alone"));
        tell(&one, "PUT", "b", "block", "");
        tell(&one, "DELETE", "a", "block", "");
        if is_upgrade {
            assert_eq!(one.upgrade()["ok"], true);
            one.wait_alone();
        } else {
            one = again(one);
        }
        assert_eq!((ask(&one, "a").status, ask(&one, "b").status), (200, 429));
        store.resume();
        assert!(eventually(|| ask(&other, "b").text().contains("Blocked by the limit")));
        assert_eq!(ask(&other, "a").status, 200, "{is_upgrade}");
        assert_eq!((ask(&one, "b").status, exceptions(&one).len(), exceptions(&other).len()), (429, 1, 1));
        // It was told once: a word of others is newer than it.
        let text = fs::read_to_string(one.file()).unwrap();
        assert!(eventually(|| !untold(&one)));
        let directory = end(one);
        tell(&other, "DELETE", "b", "block", "");
        let one = Gateway::start_in(directory, &text);
        assert!(eventually(|| exceptions(&one).is_empty()), "{is_upgrade}");
        assert_eq!((exceptions(&other).len(), ask(&one, "b").status), (0, 200));
    }
}

/// Whether the file of a gateway has something that is not told yet.
fn untold(gateway: &Gateway) -> bool {
    let text = fs::read_to_string(gateway.directory.path().join("counts.exceptions")).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()["untold"].is_object()
}
