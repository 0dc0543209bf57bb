use std::collections::HashMap;

use crate::support::{Gateway, get, get_with};

fn servers(names: &[&str], more: &str) -> String {
    let list: Vec<String> = names.iter().map(|name| format!("\"echo:{name}\"")).collect();
    format!(
        "[[upstream]]\nname = \"app\"\nservers = [{}]\n{more}\n[[route]]\nname = \"all\"\nupstream = \"app\"\n",
        list.join(", ")
    )
}

fn map(gateway: &Gateway, keys: u32) -> HashMap<u32, String> {
    let mut client = crate::support::Client::connect(gateway.address());
    (0..keys)
        .map(|key| {
            let name = format!("key-{key}");
            let answer = client.request("GET", "/", &[("X-User", &name)], b"");
            (key, answer.json()["server"].as_str().unwrap().to_owned())
        })
        .collect()
}

#[test]
fn a_key_sticks_to_its_server_and_a_removed_server_moves_only_its_own_keys() {
    const KEYS: u32 = 400;
    let sticky = "hash_key = \"header:x-user\"";
    let gateway = Gateway::start(&servers(&["a", "b", "c", "d"], sticky));
    let before = map(&gateway, KEYS);
    assert_eq!(before, map(&gateway, KEYS), "the same key, the same server");
    for name in ["a", "b", "c", "d"] {
        let share = before.values().filter(|server| *server == name).count();
        assert!((50..=150).contains(&share), "{name} has {share} of {KEYS}");
    }
    assert_eq!(gateway.reload(&servers(&["d", "b", "a"], sticky)).status, 200);
    let after = map(&gateway, KEYS);
    for (key, server) in &before {
        if server == "c" {
            assert_ne!(after[key], "c");
        } else {
            assert_eq!(after[key], *server, "key {key} moved although its server stayed");
        }
    }
}

#[test]
fn the_map_is_the_same_in_another_process() {
    let sticky = "hash_key = \"header:x-user\"";
    let first = map(&Gateway::start(&servers(&["a", "b", "c"], sticky)), 50);
    let second = map(&Gateway::start(&servers(&["c", "a", "b"], sticky)), 50);
    assert_eq!(first, second);
}

#[test]
fn round_robin_follows_the_weights() {
    let gateway = Gateway::start_whole(&format!(
        "[server]\nworkers = 1\n{}[[upstream]]\nname = \"app\"\nbalance = \"round-robin\"\n\
         servers = [{{ address = \"echo:a\", weight = 3 }}, \"echo:b\"]\n[[route]]\nname = \"all\"\nupstream = \"app\"\n",
        crate::support::FRAME
    ));
    let mut client = crate::support::Client::connect(gateway.address());
    let mut count = HashMap::new();
    for _ in 0..40 {
        let server = client.get("/").json()["server"].as_str().unwrap().to_owned();
        *count.entry(server).or_insert(0) += 1;
    }
    assert_eq!((count["a"], count["b"]), (30, 10));
}

#[test]
fn the_other_balancers_use_every_server() {
    for balance in ["least-connections", "power-of-two"] {
        let gateway = Gateway::start(&servers(&["a", "b", "c"], &format!("balance = \"{balance}\"")));
        let mut client = crate::support::Client::connect(gateway.address());
        let mut count = HashMap::new();
        for _ in 0..90 {
            let server = client.get("/").json()["server"].as_str().unwrap().to_owned();
            *count.entry(server).or_insert(0) += 1;
        }
        assert_eq!(count.len(), 3, "{balance}: {count:?}");
        assert!(count.values().all(|share| *share >= 10), "{balance}: {count:?}");
    }
}

#[test]
fn least_connections_avoids_the_busy_server() {
    let gateway = Gateway::start(&servers(&["a", "b"], "balance = \"least-connections\""));
    let mut slow = crate::support::Client::connect(gateway.address());
    slow.send("GET", "/?delay=3s", &[], b"");
    gateway.wait_metric("sluicegate_requests_in_flight", &[], 1.0);
    let answers: Vec<_> = (0..10)
        .map(|_| {
            let server = get(gateway.address(), "/").json()["server"].clone();
            // The answer is here a moment before its server is counted as free.
            gateway.wait_metric("sluicegate_requests_in_flight", &[], 1.0);
            server
        })
        .collect();
    assert!(answers.iter().all(|server| *server == answers[0]), "{answers:?}");
    assert_ne!(slow.read_answer(false).unwrap().json()["server"], answers[0]);
}

#[test]
fn without_its_key_a_request_sticks_by_its_client() {
    let gateway = Gateway::start(&servers(&["a", "b", "c"], "hash_key = \"header:x-user\""));
    let first = get(gateway.address(), "/").json()["server"].clone();
    for _ in 0..5 {
        assert_eq!(get(gateway.address(), "/other").json()["server"], first);
    }
    assert_eq!(get_with(gateway.address(), "/", &[("X-User", "u")]).status, 200);
}
