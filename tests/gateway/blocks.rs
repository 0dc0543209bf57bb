//! The list of blocks, by penalties and by hand, and what the kernel may be told of it.

use serde_json::{Value, json};

use crate::keys::end;
use crate::support::{Gateway, eventually, get_with, run};

/// The second refusal of an hour blocks for an hour; each limit has its route.
fn rules(limits: &[(&str, &str, &str)], more: &str) -> String {
    let of = |(name, key, more): &(&str, &str, &str)| {
        format!(
            "[[limit]]\nname = \"{name}\"\nkey = {key}\nrate = \"1/h\"\n{more}\n\
             penalty = {{ after = 2, within = \"1h\", block = \"1h\" }}\n\
             [[route]]\nname = \"{name}\"\npath = \"/{name}/\"\nrespond = {{}}\nlimits = [\"{name}\"]\n"
        )
    };
    limits.iter().map(of).collect::<String>() + more
}

const TRUSTING: &str = "[client]\ntrusted_proxies = [\"127.0.0.0/8\"]\n";

fn blocks(gateway: &Gateway) -> Vec<Value> {
    gateway.ask_admin("/api/v1/blocks").json()["blocks"].as_array().unwrap().clone()
}

/// Asks until a penalty has blocked it.
fn get_blocked(gateway: &Gateway, limit: &str, fields: &[(&str, &str)]) {
    for _ in 0..4 {
        get_with(gateway.address(), &format!("/{limit}/"), fields);
    }
}

fn print(gateway: &Gateway, format: &str) -> String {
    let admin = format!("http://{}", gateway.admin);
    let (status, out, error) = run(&["blocks", "--format", format, "--admin", &admin], gateway.directory.path());
    assert!(status.success(), "{error}");
    out
}

#[test]
fn a_penalty_lists_its_key_from_the_refusal_that_begins_the_block_to_its_end() {
    let gateway = Gateway::start(&rules(&[("a", "\"client-ip\"", ""), ("b", "\"client-ip\"", "")], ""));
    let ask = |limit: &str| get_with(gateway.address(), &format!("/{limit}/"), &[]).status;
    assert_eq!([ask("a"), ask("a")], [200, 429]);
    assert_eq!(blocks(&gateway), Vec::<Value>::new(), "the first refusal blocks nobody");
    assert_eq!(ask("a"), 429);
    let listed = blocks(&gateway);
    let [block] = listed.as_slice() else { panic!("{listed:?}") };
    assert_eq!(
        (&block["limit"], &block["key"], &block["kind"], &block["exported"], &block["why_not"]),
        (
            &json!("a"),
            &json!([["client-ip", "127.0.0.1"]]),
            &json!("penalty"),
            &json!(false),
            &json!("it is this machine")
        )
    );
    assert!(block["until"].as_str().is_some_and(|until| until.len() == 24) && block.get("address").is_none());
    get_blocked(&gateway, "b", &[]);
    assert_eq!(blocks(&gateway).len(), 2);
    let ended = gateway.tell_admin("DELETE", "/api/v1/limits/a/keys/127.0.0.1/block", "");
    assert_eq!(ended.status, 200);
    assert_eq!(blocks(&gateway)[0]["limit"], "b");
    gateway.reload(&rules(&[("a", "\"client-ip\"", "")], ""));
    assert_eq!(blocks(&gateway), Vec::<Value>::new(), "its limit is gone");
}

#[test]
fn keys_that_are_no_addresses_are_listed_without_their_secrets_and_never_exported() {
    let key = "[\"client-ip\", \"header:x-api-key\"]";
    let gateway = Gateway::start(&rules(&[("both", key, ""), ("key", "\"header:x-name\"", "")], ""));
    get_blocked(&gateway, "both", &[("x-api-key", "s3cret-of-a-client")]);
    get_blocked(&gateway, "key", &[("x-name", "192.0.2.8 }; flush ruleset")]);
    get_blocked(&gateway, "key", &[("x-name", "192.0.2.7")]);
    let listed = blocks(&gateway);
    assert_eq!(listed.len(), 3, "{listed:?}");
    assert!(listed.iter().all(|block| block["why_not"] == "its key is not the client's address alone"), "{listed:?}");
    let texts = ["table", "json", "nft", "ipset"].map(|format| print(&gateway, format));
    assert!(texts.iter().all(|text| !text.contains("s3cret")), "{texts:?}");
    assert!(texts[0].contains("\n192.0.2.8 }; flush ruleset "), "{}", texts[0]);
    assert!(!texts[2].contains("192.0.2") && !texts[3].contains("192.0.2"), "{texts:?}");
}

#[test]
fn clients_behind_a_proxy_are_listed_and_never_exported() {
    let gateway = Gateway::start(&(rules(&[("a", "\"client-ip\"", "")], "") + TRUSTING));
    get_blocked(&gateway, "a", &[("x-forwarded-for", "192.0.2.7")]);
    let why = |listed: &[Value]| listed.iter().map(|block| block["why_not"].clone()).collect::<Vec<_>>();
    assert_eq!(why(&blocks(&gateway)), ["the client came through a proxy"]);
    let proxied = "[[listener]]\naddress = \"127.0.0.1:0\"\nproxy_protocol = \"required\"\n\
        proxy_protocol_from = [\"127.0.0.1\"]\n[admin]\naddress = \"127.0.0.1:0\"\n";
    let gateway = Gateway::start_whole(&format!("{proxied}{}", rules(&[("a", "\"client-ip\"", "")], "")));
    for _ in 0..4 {
        let request = b"PROXY TCP4 192.0.2.8 127.0.0.1 5 6\r\nGET /a/ HTTP/1.1\r\nHost: a\r\n\r\n";
        crate::wire::Wire::with(gateway.address(), request).answer();
    }
    let listed = blocks(&gateway);
    assert_eq!(
        (&listed[0]["key"][0][1], why(&listed)),
        (&json!("192.0.2.8"), vec!["the client came through a proxy".into()])
    );
    assert!(!print(&gateway, "nft").contains("192.0.2"));
}

#[test]
fn blocks_by_hand_are_exported_but_for_proxies_exempt_clients_and_this_machine() {
    let exempt = "exempt = [\"198.51.100.0/24\", \"2001:db8:5::7\"]";
    let text = rules(&[("a", "\"client-ip\"", exempt), ("b", "\"client-ip\"", "")], "") + TRUSTING;
    let text = text.replace("[\"127.0.0.0/8\"]", "[\"127.0.0.0/8\", \"203.0.113.9\"]");
    let gateway = Gateway::start(&text);
    let block = |limit: &str, key: &str, body: &str| {
        let answer = gateway.tell_admin("PUT", &format!("/api/v1/limits/{limit}/keys/{key}/block"), body);
        assert_eq!(answer.status, 200, "{}", answer.text());
    };
    for key in
        ["192.0.2.7", "198.51.100.1", "203.0.113.9", "127.0.0.9", "2001:db8:0:9::7", "2001:db8:5::1", "::1", "fe80::7"]
    {
        block("b", key, "{\"until\": \"+1h\"}");
    }
    block("a", "192.0.2.7", "{}");
    block("a", "192.0.2.8", "{\"until\": \"+2h\"}");
    let mut why: Vec<_> =
        blocks(&gateway).iter().map(|block| (block["key"][0][1].to_string(), block["why_not"].to_string())).collect();
    why.retain(|(_, why)| why != "null");
    why.sort();
    let expected = [
        ("\"127.0.0.9\"", "\"it is this machine\""),
        ("\"198.51.100.1\"", "\"it is exempt\""),
        ("\"2001:db8:5::1\"", "\"it is exempt\""),
        ("\"203.0.113.9\"", "\"it is a proxy in front\""),
        ("\"::1\"", "\"it is this machine\""),
        ("\"fe80::7\"", "\"it is this machine\""),
    ];
    assert_eq!(why, expected.map(|(key, why)| (key.to_owned(), why.to_owned())));
    let nft = print(&gateway, "nft");
    let lines: Vec<_> = nft.lines().filter(|line| line.starts_with("add element")).collect();
    // The same address without an end wins.
    let secs = |line: &str| line.rsplit(" timeout ").next().unwrap().trim_end_matches("s }").parse::<u64>().unwrap();
    assert!(
        lines[0].starts_with("add element inet sluicegate blocked4 { 192.0.2.7 timeout 86400s, 192.0.2.8 timeout 7"),
        "{nft}"
    );
    assert!(lines[1].starts_with("add element inet sluicegate blocked6 { 2001:db8:0:9::/64 timeout 3"), "{nft}");
    assert!((3_590..=3_600).contains(&secs(lines[1])) && (7_190..=7_200).contains(&secs(lines[0])), "{nft}");
    assert!(nft.ends_with("# ---\n") && lines.len() == 2, "{nft}");
    // By another prefix the gateway counts by other networks, and lets these clients in.
    assert_eq!(gateway.reload(&text.replace("[client]\n", "[client]\nipv6_prefix = 48\n")).status, 200);
    let nft = print(&gateway, "nft");
    assert!(nft.contains("192.0.2.8") && !nft.contains("2001:db8"), "{nft}");
    let json: Value = serde_json::from_str(&print(&gateway, "json")).unwrap();
    let endless = json["blocks"].as_array().unwrap().iter().find(|block| block["until"].is_null()).unwrap();
    assert_eq!((&endless["address"], &endless["kind"]), (&json!("192.0.2.7"), &json!("by-hand")));
    assert!(print(&gateway, "table").contains("no: it is a proxy in front"));
}

#[test]
fn pages_of_both_kinds_have_every_block_once() {
    let gateway = Gateway::start(&rules(&[("key", "\"header:x-name\"", "")], ""));
    for key in ["a", "b", "c"] {
        get_blocked(&gateway, "key", &[("x-name", key)]);
        let by_hand = format!("/api/v1/limits/key/keys/{key}{key}/block");
        assert_eq!(gateway.tell_admin("PUT", &by_hand, "{}").status, 200);
    }
    // One that has ended is on no page, and takes no place of another.
    assert_eq!(gateway.tell_admin("DELETE", "/api/v1/limits/key/keys/b/block", "").status, 200);
    for max in 1..=6 {
        let (mut all, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = gateway.ask_admin(&format!("/api/v1/blocks?max={max}&cursor={cursor}")).json();
            let blocks = page["blocks"].as_array().unwrap();
            all.extend(blocks.iter().map(|block| block["key"][0][1].as_str().unwrap().to_owned()));
            let Some(next) = page["next"].as_str() else { break };
            assert_eq!(blocks.len(), max);
            next.clone_into(&mut cursor);
        }
        all.sort();
        assert_eq!(all, ["a", "aa", "bb", "c", "cc"], "{max}");
    }
    assert_eq!(gateway.ask_admin("/api/v1/blocks?cursor=x").status, 400);
}

#[test]
fn after_a_restart_a_key_is_listed_again_at_its_next_request() {
    let text = "[server]\nstate_file = \"counts\"\n".to_owned() + &rules(&[("key", "\"header:x-name\"", "")], "");
    let gateway = Gateway::start(&text);
    get_blocked(&gateway, "key", &[("x-name", "a")]);
    let until = blocks(&gateway)[0]["until"].clone();
    let gateway = Gateway::start_in(end(gateway), &format!("{}{text}", crate::support::FRAME));
    assert_eq!(blocks(&gateway), Vec::<Value>::new());
    assert_eq!(get_with(gateway.address(), "/key/", &[("x-name", "a")]).status, 429);
    assert_eq!((blocks(&gateway).len(), &blocks(&gateway)[0]["until"]), (1, &until));
}

#[test]
fn a_gateway_that_is_away_is_no_list_without_blocks() {
    let gateway = Gateway::start(&rules(&[("a", "\"client-ip\"", "")], ""));
    let admin = format!("http://{}", gateway.admin);
    let directory = gateway.kill();
    let (status, out, error) = run(&["blocks", "--format", "nft", "--admin", &admin], directory.path());
    assert!(!status.success() && out.is_empty() && error.contains("sluicegate: http://"), "{out}{error}");
    // With --watch it asks on.
    let mut watch = std::process::Command::new(env!("CARGO_BIN_EXE_sluicegate"))
        .args(["blocks", "--watch", "--format", "nft", "--admin", &admin])
        .stdout(std::process::Stdio::piped())
        .stderr(std::fs::File::create(directory.path().join("watch.log")).unwrap())
        .spawn()
        .unwrap();
    let log = || std::fs::read_to_string(directory.path().join("watch.log")).unwrap();
    assert!(eventually(|| log().contains("sluicegate: http://")), "{}", log());
    assert!(watch.try_wait().unwrap().is_none());
    watch.kill().unwrap();
    watch.wait().unwrap();
}
