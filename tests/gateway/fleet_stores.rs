//! Gateways whose store is several servers: a cluster, or one that Sentinels watch.

use std::fs;

use crate::support::{Answer, Cluster, FRAME, Gateway, Sentinels, Store, eventually, get_with, unused_address};

/// Nobody waits so long; but a busy machine is not a store that fails.
const DEADLINE: &str = "500ms";
/// More than any node of a cluster of three has none of.
const KEYS: usize = 24;

fn start(store: &str, on_failure: &str) -> Gateway {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("fleet.key"), "0123456789abcdef".repeat(4)).unwrap();
    let text = format!(
        "{FRAME}[fleet]\nstore = \"{store}\"\nsecret_file = \"fleet.key\"\ndeadline = \"{DEADLINE}\"\n\
         on_failure = \"{on_failure}\"\n\
         [[limit]]\nname = \"per-key\"\nkey = \"header:x-key\"\nrate = \"6/1h\"\nshared = \"strict\"\n\
         [[limit]]\nname = \"own\"\nkey = \"header:x-key\"\nrate = \"6/1h\"\n\
         [[route]]\nname = \"own\"\npath = \"/own\"\nlimits = [\"own\"]\nrespond = {{ status = 200, body = \"ok\" }}\n\
         [[route]]\nname = \"all\"\nlimits = [\"per-key\"]\nrespond = {{ status = 200, body = \"ok\" }}\n"
    );
    Gateway::start_in(directory, &text)
}

/// Two of them, once they know each other and all of the store.
fn two(store: &str, on_failure: &str, nodes: usize) -> [Gateway; 2] {
    let gateways = [(); 2].map(|()| start(store, on_failure));
    for gateway in &gateways {
        assert!(eventually(|| is_whole(gateway, nodes) && status(gateway)["gateways"] == 2), "{}", status(gateway));
    }
    gateways
}

fn status(gateway: &Gateway) -> serde_json::Value {
    gateway.ask_admin("/api/v1/fleet").json()
}

/// Whether so many servers are asked.
fn is_whole(gateway: &Gateway, nodes: usize) -> bool {
    let status = status(gateway);
    let circuits = status["store"]["nodes"].as_array().cloned().unwrap_or_default();
    status["mode"] == "shared" && circuits.len() == nodes && circuits.iter().all(|node| node["circuit"] == "closed")
}

fn ask(gateway: &Gateway, key: &str) -> Answer {
    get_with(gateway.address(), "/", &[("X-Key", key)])
}

fn name(key: usize) -> String {
    format!("key-{key}")
}

/// How many of so many requests of a key pass, in turn at each gateway.
fn pass(gateways: &[Gateway], key: &str, requests: usize) -> usize {
    (0..requests).filter(|index| ask(&gateways[index % gateways.len()], key).status == 200).count()
}

/// The node that holds each key, by the one that got a key of the limit more when it was asked once.
fn places(gateways: &[Gateway], nodes: &[Store]) -> Vec<usize> {
    let counts = || nodes.iter().map(|node| node.keys_of("per-key").len()).collect::<Vec<_>>();
    let place = |key| {
        let before = counts();
        assert_eq!(ask(&gateways[0], &name(key)).status, 200);
        counts().iter().zip(&before).position(|(now, before)| now > before).expect("a node has it")
    };
    (0..KEYS).map(place).collect()
}

#[test]
fn each_key_of_a_cluster_is_admitted_once_and_a_node_that_is_away_takes_only_its_own_keys_with_it() {
    let cluster = Cluster::start(3);
    let gateways = two(&cluster.store(), "closed", 3);
    let places = places(&gateways, &cluster.nodes);
    assert!((0..3).all(|node| places.contains(&node)), "{places:?}");
    assert_eq!(pass(&gateways, &name(0), 9), 5, "6 in all");
    let slots = status(&gateways[0])["store"]["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| node["slots"].as_u64().unwrap())
        .sum::<u64>();
    assert_eq!(slots, 16_384);

    cluster.nodes[1].pause();
    let asks_away =
        |gateway| (0..KEYS).filter(|key| places[*key] == 1).all(|key| ask(gateway, &name(key)).status == 503);
    assert!(gateways.iter().all(|gateway| eventually(|| asks_away(gateway))), "its keys are refused");
    for gateway in &gateways {
        assert!(eventually(|| gateway.log().contains("a part of the fleet store is lost")), "{}", gateway.log());
        gateway.wait_metric("sluicegate_fleet_circuit_open", &[], 1.0);
        gateway.wait_metric("sluicegate_fleet_shared", &[], 1.0);
        // No request waits for it any more: none is without an answer.
        let unanswered = || status(gateway)["limits"][0]["unanswered"].clone();
        let before = unanswered();
        assert!(asks_away(gateway));
        assert_eq!(unanswered(), before);
    }
    for key in (1..KEYS).filter(|key| places[*key] != 1) {
        assert_eq!(pass(&gateways, &name(key), 8), 5, "the others are counted as before");
    }
    assert_eq!(get_with(gateways[0].address(), "/own", &[("X-Key", "a")]).status, 200);

    cluster.nodes[1].resume();
    assert!(eventually(|| gateways.iter().all(|gateway| is_whole(gateway, 3))), "{}", status(&gateways[0]));
    for key in (1..KEYS).filter(|key| places[*key] == 1) {
        assert_eq!(pass(&gateways, &name(key), 8), 5, "and so are they");
    }
    assert!(eventually(|| gateways[0].log().contains("a part of the fleet store answers again")));
}

#[test]
fn what_is_spent_while_a_node_of_a_cluster_is_away_is_owed_to_it() {
    let mut cluster = Cluster::start(3);
    let gateways = two(&cluster.store(), "fair", 3);
    let places = places(&gateways, &cluster.nodes);
    let key = name(places.iter().position(|place| *place == 2).unwrap());
    let other = name(places.iter().position(|place| *place == 0).unwrap());
    cluster.nodes[2].pause();
    assert!(eventually(|| gateways.iter().all(|gateway| !is_whole(gateway, 3))));
    // Of six, one was counted: at each gateway the rest of three.
    let passed = pass(&gateways, &key, 20);
    assert!((5..=6).contains(&passed), "{passed}: L / N each");
    assert_eq!(pass(&gateways, &other, 20), 5);
    cluster.nodes[2].resume();
    assert!(eventually(|| gateways.iter().all(|gateway| is_whole(gateway, 3))));
    assert!(eventually(|| gateways.iter().all(|gateway| status(gateway)["limits"][0]["debt"] == 0)));
    assert_eq!(pass(&gateways, &key, 20), 0);
    // Killed, it is the same: nobody else has its keys.
    drop(cluster.nodes.pop());
    assert!(eventually(|| gateways.iter().all(|gateway| !is_whole(gateway, 3))));
    assert_eq!(pass(&gateways, &other, 5), 0, "full, by the store");
}

#[test]
fn slots_move_to_another_node_and_to_one_that_is_new_and_no_count_is_lost() {
    let mut cluster = Cluster::start(2);
    let gateways = two(&cluster.store(), "closed", 2);
    cluster.grow();
    let slot_of = |key: &str| {
        let of_store = cluster.nodes[0].keys_of("per-key");
        assert_eq!(ask(&gateways[0], key).status, 200);
        let now = cluster.nodes[0].keys_of("per-key");
        let new = now.iter().find(|key| !of_store.contains(key))?.clone();
        Some(cluster.nodes[0].tell(&format!("cluster keyslot {new}")))
    };
    let mut found = (0..KEYS).filter_map(|key| Some((name(key), slot_of(&name(key))?)));
    for to in [1, 2] {
        let (key, slot) = found.next().expect("the first node has some");
        assert_eq!(pass(&gateways, &key, 2), 2);
        cluster.move_slot(&slot, 0, to);
        // The old one says where it is; one that was never heard of is connected then.
        assert!(eventually(|| ask(&gateways[0], &key).status == 200), "{to}: {}", gateways[0].log());
        cluster.give_slot(&slot, to);
        assert!(eventually(|| ask(&gateways[1], &key).status == 200), "{to}: {}", gateways[1].log());
        assert_eq!(pass(&gateways, &key, 9), 1, "six in all");
    }
    assert!(eventually(|| gateways.iter().all(|gateway| is_whole(gateway, 3))), "{}", status(&gateways[0]));
}

#[test]
fn exceptions_of_keys_hold_at_all_gateways_of_a_cluster() {
    let cluster = Cluster::start(3);
    let gateways = two(&cluster.store(), "closed", 3);
    for key in 0..KEYS {
        assert_eq!(pass(&gateways, &name(key), 8), 6);
    }
    // Their counts lie at all nodes, and the word of it at one.
    for key in 0..6 {
        let target = format!("/api/v1/limits/per-key/keys/{}/reset", name(key));
        assert_eq!(gateways[0].tell_admin("POST", &target, "").status, 200);
    }
    for key in 0..6 {
        assert!(eventually(|| ask(&gateways[1], &name(key)).status == 200), "{key}: {}", gateways[1].log());
    }
    assert_eq!(pass(&gateways, &name(7), 2), 0);
}

/// The counts of two limits of a request lie at different nodes.
#[test]
fn limits_at_several_nodes_take_all_or_nothing() {
    let cluster = Cluster::start(3);
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("fleet.key"), "0123456789abcdef".repeat(4)).unwrap();
    let limit = |name: &str, rate: u32| {
        format!("[[limit]]\nname = \"{name}\"\nkey = \"header:x-{name}\"\nrate = \"{rate}/1h\"\nshared = \"strict\"\n")
    };
    let text = format!(
        "{FRAME}[fleet]\nstore = \"{}\"\nsecret_file = \"fleet.key\"\ndeadline = \"{DEADLINE}\"\non_failure = \"closed\"\n{}{}\
         [[route]]\nname = \"all\"\nlimits = [\"large\", \"small\"]\nrespond = {{ status = 200, body = \"ok\" }}\n",
        cluster.store(),
        limit("large", 30),
        limit("small", 2)
    );
    let gateway = Gateway::start_in(directory, &text);
    assert!(eventually(|| is_whole(&gateway, 3)));
    let ask = |small: usize| get_with(gateway.address(), "/", &[("X-Large", "one"), ("X-Small", &name(small))]).status;
    // Each small key passes twice, and what is refused by it takes nothing of the large one.
    let passed: Vec<usize> = (0..15).map(|small| (0..6).filter(|_| ask(small) == 200).count()).collect();
    assert_eq!(passed, [2; 15]);
    assert_eq!(ask(99), 429, "30 are taken");
    let holds = |node: &Store| usize::from(!node.keys_of("small").is_empty());
    assert_eq!(cluster.nodes.iter().map(holds).sum::<usize>(), 3);
}

#[test]
fn a_failover_of_sentinels_is_followed_and_the_count_goes_on() {
    let mut store = Sentinels::start(1);
    let gateways = two(&store.store(), "closed", 1);
    assert_eq!(pass(&gateways, "a", 4), 4);
    let old = store.servers[0].address();
    let new = store.servers[1].address().to_string();
    assert_eq!(status(&gateways[0])["store"]["nodes"][0]["address"], old.to_string());
    // A Sentinel that is away is not missed.
    drop(store.sentinels.pop());
    assert!(eventually(|| store.servers[1].keys_of("per-key").len() == 1));
    drop(store.servers.remove(0));
    let is_there = |gateway: &Gateway, address: &str| {
        is_whole(gateway, 1) && status(gateway)["store"]["nodes"][0]["address"] == address
    };
    assert!(eventually(|| gateways.iter().all(|gateway| is_there(gateway, &new))), "{}", status(&gateways[0]));
    for text in ["fleet store lost", "fleet store answers"] {
        assert!(eventually(|| gateways[0].log().contains(text)), "{text}: {}", gateways[0].log());
    }
    assert_eq!(pass(&gateways, "a", 9), 2, "six in all");

    // The old one comes back, empty and as a primary: Sentinels make a replica of it, and nobody asks it before.
    store.servers.push(Store::start_at(old));
    assert!(eventually(|| store.servers[1].tell("info replication").contains("role:slave")));
    assert_eq!(pass(&gateways, "a", 9), 0);
    assert!(eventually(|| store.servers[1].tell("info replication").contains("master_link_status:up")));
    assert!(eventually(|| store.sentinels[0].tell("sentinel failover mymaster") == "OK"));
    assert!(
        eventually(|| gateways.iter().all(|gateway| is_there(gateway, &old.to_string()))),
        "{}",
        status(&gateways[0])
    );
    assert_eq!(pass(&gateways, "a", 9), 0, "by the will of the operator, with both alive");
    assert_eq!(pass(&gateways, "b", 9), 6);
}

/// With a second replica the failover goes on for a while after the first one has become the primary.
#[test]
fn a_failover_by_hand_leads_to_the_new_primary_once() {
    let store = Sentinels::start(2);
    let gateway = start(&store.store(), "closed");
    assert!(eventually(|| is_whole(&gateway, 1)));
    assert_eq!(store.sentinels[0].tell("sentinel failover mymaster"), "OK");
    let address = || status(&gateway)["store"]["nodes"][0]["address"].clone();
    let (old, mut seen) = (address(), Vec::new());
    let is_over = || {
        store
            .sentinels
            .iter()
            .all(|sentinel| sentinel.tell("sentinel master mymaster").contains("role-reported\nmaster"))
    };
    assert!(eventually(|| {
        seen.push(address());
        *seen.last().unwrap() != old
    }));
    let new = seen.last().unwrap().clone();
    let mut quiet = 0;
    assert!(eventually(|| {
        quiet = if is_over() { quiet + 1 } else { 0 };
        seen.push(address());
        quiet > 100
    }));
    let changes = seen.windows(2).filter(|two| two[0] != two[1]).count();
    assert_eq!((changes, seen.last()), (1, Some(&new)), "{seen:?}");
}

#[test]
fn a_replica_of_a_cluster_takes_over_with_the_counts_of_its_master() {
    let mut cluster = Cluster::start(3);
    cluster.replicate(0);
    let gateways = two(&cluster.store(), "closed", 3);
    let places = places(&gateways, &cluster.nodes[..3]);
    let of_master: Vec<usize> = (0..KEYS).filter(|key| places[*key] == 0).collect();
    assert!(eventually(|| cluster.nodes[3].keys_of("per-key").len() == cluster.nodes[0].keys_of("per-key").len()));
    drop(cluster.nodes.remove(0));
    let replica = cluster.nodes[2].address().to_string();
    let has_taken_over = |gateway: &Gateway| {
        let nodes = status(gateway)["store"]["nodes"].as_array().cloned().unwrap_or_default();
        is_whole(gateway, 3) && nodes.iter().any(|node| node["address"] == *replica)
    };
    assert!(eventually(|| gateways.iter().all(has_taken_over)), "{}", status(&gateways[0]));
    for key in of_master {
        assert_eq!(pass(&gateways, &name(key), 8), 5, "one was counted before");
    }
}

#[test]
fn a_key_that_is_reset_while_another_node_is_away_is_reset_once() {
    let cluster = Cluster::start(3);
    let gateways = two(&cluster.store(), "closed", 3);
    let places = places(&gateways, &cluster.nodes);
    let of_words = cluster.owner_of("sluicegate:exceptions");
    let (away, here) = ((of_words + 1) % 3, (of_words + 2) % 3);
    let key_at = |node| name(places.iter().position(|place| *place == node).unwrap());
    let (key_away, key_here) = (key_at(away), key_at(here));
    assert_eq!(pass(&gateways, &key_here, 8), 5);
    cluster.nodes[away].pause();
    assert!(eventually(|| gateways.iter().all(|gateway| !is_whole(gateway, 3))));
    for key in [&key_away, &key_here] {
        let target = format!("/api/v1/limits/per-key/keys/{key}/reset");
        assert_eq!(gateways[0].tell_admin("POST", &target, "").status, 200);
    }
    assert!(eventually(
        || cluster.nodes[here].keys_of("per-key").len() < places.iter().filter(|place| **place == here).count()
    ));
    let mut passed = 0;
    // It looks whether others have told something a few times a second.
    let begun = std::time::Instant::now();
    while begun.elapsed() < std::time::Duration::from_secs(2) {
        passed += pass(&gateways, &key_here, 2);
    }
    assert_eq!(passed, 6, "as many as after one reset");
    cluster.nodes[away].resume();
    assert!(eventually(|| ask(&gateways[1], &key_away).status == 200 && is_whole(&gateways[1], 3)));
}

#[test]
fn a_node_to_which_a_slot_was_moving_takes_only_that_slot_with_it() {
    let mut cluster = Cluster::start(3);
    let gateways = two(&cluster.store(), "closed", 3);
    let places = places(&gateways, &cluster.nodes);
    let of_first: Vec<String> = (0..KEYS).filter(|key| places[*key] == 0).map(name).collect();
    let moved = cluster.nodes[0].keys_of("per-key")[0].clone();
    let slot = cluster.nodes[0].tell(&format!("cluster keyslot {moved}"));
    cluster.move_slot(&slot, 0, 2);
    drop(cluster.nodes.pop());
    // One of them lies at the node that is away, the others are counted, while it is asked for all the time.
    let mut counts = vec![1; of_first.len()];
    for _ in 0..40 {
        for (key, count) in of_first.iter().zip(&mut counts) {
            *count += usize::from(ask(&gateways[0], key).status == 200);
        }
    }
    counts.sort_unstable();
    assert!(counts[1..].iter().all(|count| *count == 6) && counts[0] <= 6, "{counts:?}");
    let nodes = status(&gateways[0])["store"]["nodes"].as_array().cloned().unwrap();
    let first = nodes.iter().find(|node| node["address"] == *cluster.nodes[0].address().to_string());
    assert_eq!(first.unwrap()["circuit"], "closed");
}

#[test]
fn a_reload_leads_to_another_store_and_another_list_of_nodes_changes_nothing() {
    let (single, cluster) = (Store::start(), Cluster::start(2));
    let gateway = start(&format!("redis://{}", single.address()), "closed");
    assert!(eventually(|| is_whole(&gateway, 1)));
    assert_eq!(pass(std::slice::from_ref(&gateway), "a", 9), 6);
    let text = fs::read_to_string(gateway.file()).unwrap().strip_prefix(FRAME).unwrap().to_owned();
    let text_of = |store: &str| text.replace(&format!("redis://{}", single.address()), store);
    assert_eq!(gateway.reload(&text_of(&cluster.store())).status, 200);
    assert!(eventually(|| is_whole(&gateway, 2)), "{}", status(&gateway));
    assert_eq!(pass(std::slice::from_ref(&gateway), "a", 9), 6, "counted afresh there");
    let one = format!("redis-cluster://{}", cluster.nodes[1].address());
    assert_eq!(gateway.reload(&text_of(&one)).status, 200);
    assert_eq!(ask(&gateway, "b").status, 200, "nothing was lost meanwhile");
    assert!(is_whole(&gateway, 2));
    assert_eq!(pass(std::slice::from_ref(&gateway), "a", 3), 0);
}

#[test]
fn what_is_no_sentinel_or_no_cluster_says_how_to_mend_it() {
    let (store, mut sentinels) = (Store::start(), Sentinels::start(1));
    let (single, sentinel, nowhere) = (store.address(), sentinels.sentinels[0].address(), unused_address());
    for (address, said) in [
        (format!("redis-sentinel://{single}/mymaster"), "let [fleet] store name the port of Sentinels"),
        (format!("redis-sentinel://{sentinel}/other"), "watch no primary \\\"other\\\""),
        (format!("redis-sentinel://{nowhere}/mymaster"), "no Sentinel of [fleet] store answers"),
        (format!("redis-cluster://{single}"), "let [fleet] store begin with redis:// or redis-sentinel://"),
        (format!("redis-cluster://{nowhere}"), "the store cannot be reached"),
        (format!("redis://{sentinel}"), "let [fleet] store begin with redis-sentinel://"),
    ] {
        let gateway = start(&address, "closed");
        assert!(eventually(|| gateway.log().contains(said)), "{address}: {}", gateway.log());
        assert_eq!(ask(&gateway, "a").status, 503, "{address}");
    }
    sentinels.sentinels.truncate(1);
    let gateway = start(&format!("redis-sentinel://{nowhere},{sentinel}/mymaster"), "closed");
    assert!(eventually(|| is_whole(&gateway, 1)), "one of them is enough: {}", gateway.log());
    let node = Cluster::start(1);
    let gateway = start(&format!("redis://{}", node.nodes[0].address()), "closed");
    assert!(eventually(|| is_whole(&gateway, 1)), "a cluster of one works as a single server: {}", gateway.log());
}

/// The file of the secret gets the new one as a second line, then as the first, and then the old one is removed.
#[test]
fn a_secret_is_replaced_and_blocks_by_hand_hold_all_the_time() {
    let store = Store::start();
    let gateways = two(&format!("redis://{}", store.address()), "closed", 1);
    let (old, new) = ("0123456789abcdef".repeat(4), "fedcba9876543210".repeat(4));
    let block = |gateway: &Gateway, key: &str| {
        let target = format!("/api/v1/limits/per-key/keys/{key}/block");
        assert_eq!(gateway.tell_admin("PUT", &target, "{}").status, 200);
    };
    let is_blocked = |key: &str| eventually(|| gateways.iter().all(|gateway| ask(gateway, key).status == 429));
    block(&gateways[0], "first");
    assert!(is_blocked("first"));
    for (step, secrets) in [format!("{old}\n{new}\n"), format!("{new}\n{old}\n")].iter().enumerate() {
        for (index, gateway) in gateways.iter().enumerate() {
            fs::write(gateway.directory.path().join("fleet.key"), secrets).unwrap();
            let text = fs::read_to_string(gateway.file()).unwrap().strip_prefix(FRAME).unwrap().to_owned();
            assert_eq!(gateway.reload(&text).status, 200);
            // The one gateway has another secret in use than the other meanwhile.
            block(gateway, &format!("{step}-{index}"));
        }
        for key in ["first", "0-0", "0-1", "1-0", "1-1"].iter().take(3 + 2 * step) {
            assert!(is_blocked(key), "step {step}: {key}");
        }
    }
    let unblock = gateways[1].tell_admin("DELETE", "/api/v1/limits/per-key/keys/first/block", "");
    assert_eq!(unblock.status, 200);
    assert!(
        eventually(|| gateways.iter().all(|gateway| ask(gateway, "first").status == 200)),
        "made by the old secret"
    );
    assert_eq!(pass(&gateways, "fresh", 9), 6, "both count by the new one");
}
