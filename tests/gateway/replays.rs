//! Replays that the gateway itself runs, for whoever asks by the API.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::administering::Document;
use crate::support::{Answer, Backend, Client, Gateway, eventually, run, unused_address};

const REPLAY: &str = "/api/v1/dead-letters/replay";
const REPLAYS: &str = "/api/v1/dead-letters/replays";

/// A gateway on whose limit each user has a request an hour, and six records of two users.
fn front(backend: &Backend) -> Gateway {
    let gateway = Gateway::start_whole(&format!(
        "[[listener]]\naddress = \"{}\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
         [[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n\
         [[limit]]\nname = \"per-user\"\nkey = \"header:x-user\"\nrate = \"1/h\"\n\
         [[route]]\nname = \"api\"\nupstream = \"app\"\nlimits = [\"per-user\"]\n\
         [dead_letter]\nmax_key_rate = 100000\n",
        unused_address(),
        backend.address
    ));
    let mut client = Client::connect(gateway.address());
    for number in 0..=3 {
        for user in ["ada", "bob"] {
            let status = client.request("GET", &format!("/{user}/{number}"), &[("x-user", user)], b"").status;
            assert_eq!(status, if number == 0 { 200 } else { 429 });
        }
    }
    assert!(eventually(|| gateway.dead_letters().len() == 6));
    gateway
}

fn backend() -> Backend {
    Backend::fixed("taken")
}

fn order(gateway: &Gateway, body: &Value) -> Answer {
    gateway.tell_admin("POST", REPLAY, &body.to_string())
}

fn replays(gateway: &Gateway) -> Vec<Value> {
    gateway.ask_admin(REPLAYS).json()["replays"].as_array().unwrap().clone()
}

fn wait_end(gateway: &Gateway) -> Value {
    assert!(eventually(|| replays(gateway).first().is_some_and(|replay| replay["running"] == false)));
    replays(gateway).remove(0)
}

/// How often each path has come to the server.
fn paths(backend: &Backend) -> BTreeMap<String, usize> {
    let seen = backend.seen.lock().unwrap();
    seen.iter().fold(BTreeMap::new(), |mut counts, message| {
        *counts.entry(message.target().to_owned()).or_default() += 1;
        counts
    })
}

#[test]
fn a_replay_is_planned_run_and_listed_as_that_of_the_command_is() {
    let backend = backend();
    let gateway = front(&backend);
    let document = Document::of(&gateway);
    let planned = order(&gateway, &json!({ "since": "1h", "limit": "per-user", "to": "app", "dry_run": true }));
    assert_eq!((planned.status, &planned.json()["replay"]), (200, &Value::Null));
    document.check("POST", REPLAY, &planned);
    assert_eq!(
        (&planned.json()["plan"]["to_send"], &planned.json()["plan"]["to"]),
        (&6.into(), &"the servers of upstream app".into())
    );
    assert_eq!(replays(&gateway), Vec::<Value>::new());

    let begun = order(&gateway, &json!({ "limit": "per-user", "to": "app", "rate": "1000/s" }));
    assert_eq!(begun.status, 202, "{}", begun.text());
    document.check("POST", REPLAY, &begun);
    let replay = wait_end(&gateway);
    document.check("GET", REPLAYS, &gateway.ask_admin(REPLAYS));
    let figures = ["replay", "sent", "parked", "ended"].map(|name| replay[name].clone());
    assert_eq!(figures, [begun.json()["replay"].clone(), 6.into(), 0.into(), true.into()]);
    assert_eq!(paths(&backend).values().sum::<usize>(), 2 + 6);
    assert!(paths(&backend).values().all(|count| *count == 1), "{:?}", paths(&backend));
    assert!(
        gateway.log().contains("POST /api/v1/dead-letters/replay")
            && eventually(|| gateway.log().contains("has ended"))
    );
    let (status, out, _) = run(&["dead-letters", "replay", "ls"], gateway.directory.path());
    assert!(status.success() && out.contains(replay["replay"].as_str().unwrap()), "{out}");
    let again = order(&gateway, &json!({ "limit": "per-user", "to": "app", "dry_run": true })).json();
    assert_eq!((&again["plan"]["to_send"], &again["plan"]["sent_before"]), (&0.into(), &6.into()));
}

#[test]
fn one_runs_at_a_time_is_stopped_and_goes_on() {
    let backend = backend();
    let gateway = front(&backend);
    let begun = order(&gateway, &json!({ "limit": "per-user", "to": "app", "rate": "1/h" })).json();
    let name = begun["replay"].as_str().unwrap();
    assert!(eventually(|| replays(&gateway)[0]["sent"] == 1));
    let other = order(&gateway, &json!({ "limit": "per-user", "to": "app" }));
    assert_eq!(other.status, 409, "{}", other.text());
    let (status, _, error) = run(&["dead-letters", "replay", "--to", "app"], gateway.directory.path());
    assert!(!status.success() && error.contains("another replay"), "{error}");
    assert_eq!(gateway.tell_admin("DELETE", &format!("{REPLAYS}/other"), "").status, 404);
    let stopped = gateway.tell_admin("DELETE", &format!("{REPLAYS}/{name}"), "");
    assert_eq!(stopped.status, 200);
    Document::of(&gateway).check("DELETE", "/api/v1/dead-letters/replays/{replay}", &stopped);
    assert_eq!(wait_end(&gateway)["ended"], false);
    for wrong in [json!({ "resume": name, "limit": "per-user" }), json!({ "resume": name, "dry_run": true })] {
        assert_eq!(order(&gateway, &wrong).status, 422, "{wrong}");
    }
    assert_eq!(order(&gateway, &json!({ "resume": "none" })).status, 404);
    let resumed = order(&gateway, &json!({ "resume": name, "rate": "1000/s" }));
    assert_eq!((resumed.status, &resumed.json()["replay"]), (202, &name.into()), "{}", resumed.text());
    assert!(eventually(|| replays(&gateway)[0]["ended"] == true));
    assert!(paths(&backend).values().all(|count| *count == 1), "{:?}", paths(&backend));
    assert_eq!(paths(&backend).len(), 8);
}

#[test]
fn a_gateway_that_ends_stops_its_replay_and_the_next_one_goes_on() {
    let backend = backend();
    let mut gateway = front(&backend);
    let begun = order(&gateway, &json!({ "limit": "per-user", "to": "app", "rate": "1/h" })).json();
    assert!(eventually(|| replays(&gateway)[0]["sent"] == 1));
    gateway.signal("TERM");
    assert!(gateway.wait_exit().success());
    let text = std::fs::read_to_string(gateway.file()).unwrap();
    let gateway = Gateway::start_in(gateway.kill(), &text);
    assert_eq!(order(&gateway, &json!({ "resume": begun["replay"], "rate": "1000/s" })).status, 202);
    assert!(eventually(|| replays(&gateway)[0]["ended"] == true));
    assert_eq!(paths(&backend).len(), 8);
    assert!(paths(&backend).values().all(|count| *count == 1), "{:?}", paths(&backend));
}

#[test]
fn an_order_that_is_wrong_says_so_and_begins_nothing() {
    let backend = backend();
    let gateway = front(&backend);
    for (wrong, says) in [
        (json!({ "speed": "1/s" }), "unknown field `speed`"),
        (json!({ "rate": "fast" }), "\"rate\""),
        (json!({ "to": "none" }), "neither a URL"),
        // Whoever may operate need not be who may read what was redacted.
        (json!({ "to": "http://127.0.0.1:9/" }), "sluicegate dead-letters replay --to"),
        (json!({ "reason": "late" }), "\"reason\""),
        (json!({ "since": "soon" }), "\"since\""),
        (json!({ "client": "me" }), "\"client\""),
        (json!({ "status": "9xx" }), "\"status\""),
        (json!({ "methods": ["post"] }), "\"methods\""),
        (json!({ "parallel": 0 }), "\"parallel\""),
        (json!({ "max_tries": 101 }), "\"max_tries\""),
        (json!({ "timeout": "1h" }), "\"timeout\""),
    ] {
        let answer = order(&gateway, &wrong);
        assert_eq!(answer.status, 422, "{wrong}: {}", answer.text());
        assert!(answer.json()["detail"].as_str().unwrap().contains(says), "{wrong}: {}", answer.text());
    }
    assert_eq!(replays(&gateway), Vec::<Value>::new(), "no journal is left behind");
    let none = Gateway::start("[[route]]\nname = \"all\"\nrespond = {}\n");
    assert_eq!((order(&none, &json!({})).status, none.ask_admin(REPLAYS).status), (404, 404));
}

#[test]
fn a_gateway_that_ends_waits_for_the_try_that_is_under_way() {
    // It takes its time for whatever a replay sends.
    let (tell, told) = std::sync::mpsc::sync_channel(1);
    let backend = Backend::scripted(move |wire, _| {
        while let Ok(request) = wire.request() {
            if request.header("idempotency-key").is_some() {
                let _ = tell.try_send(());
                std::thread::sleep(std::time::Duration::from_secs(1));
            }
            wire.send(crate::wire::ok("taken"));
        }
    });
    let mut gateway = front(&backend);
    let begun = order(&gateway, &json!({ "limit": "per-user", "to": "app", "rate": "1/h" })).json();
    told.recv_timeout(crate::support::PATIENCE).unwrap();
    gateway.signal("TERM");
    assert!(gateway.wait_exit().success());
    let text = std::fs::read_to_string(gateway.file()).unwrap();
    let gateway = Gateway::start_in(gateway.kill(), &text);
    let replay = replays(&gateway).remove(0);
    assert_eq!((&replay["replay"], &replay["sent"]), (&begun["replay"], &1.into()), "its fate is known: {replay}");
}
