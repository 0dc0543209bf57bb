//! `sluicegate explain` against what then happens.

use serde_json::Value;

use crate::support::{Client, Gateway, eventually, get_with, run};

const RULES: &str = "[client]\ntrusted_proxies = [\"127.0.0.2/32\"]\n\
     [[upstream]]\nname = \"app\"\nservers = [\"echo:a\", \"echo:b\", \"echo:c\"]\nhash_key = \"header:x-api-key\"\n\
     [[limit]]\nname = \"per-key\"\nrate = \"2/h\"\nkey = \"header:x-api-key\"\nalgorithm = \"token-bucket\"\nstatus = 420\n\
     [[limit]]\nname = \"tried\"\nrate = \"1/h\"\nkey = \"client-ip\"\nmode = \"shadow\"\n\
     [[route]]\nname = \"admin\"\npath = \"/admin\"\nmethods = [\"POST\"]\nrespond = {}\n\
     [[route]]\nname = \"api\"\nlimits = [\"per-key\", \"tried\"]\nupstream = \"app\"\n\
     response_headers = { set = { x-a = \"b\" } }\n[dead_letter]\n";

fn explain(gateway: &Gateway, arguments: &[&str]) -> Value {
    let words = ["explain", "--json"].iter().chain(arguments).copied().collect::<Vec<_>>();
    let (status, text, errors) = run(&words, gateway.directory.path());
    assert!(status.success(), "{errors}");
    serde_json::from_str(&text).unwrap()
}

#[test]
fn a_live_explanation_is_what_then_happens_and_counts_nothing() {
    let gateway = Gateway::start(RULES);
    let admin = format!("http://{}", gateway.admin);
    let live = ["GET", "http://x/admin", "-H", "X-Api-Key: planted-1", "--live", "--admin", &admin];
    let key = [("X-Api-Key", "planted-1")];
    for left in [2, 1] {
        for _ in 0..3 {
            let explained = explain(&gateway, &live);
            assert_eq!((&explained["route"], &explained["decision"]), (&"api".into(), &"admitted".into()));
            assert_eq!(explained["limits"][0]["room"], left, "{explained}");
        }
        assert_eq!(get_with(gateway.address(), "/admin", &key).status, 200);
    }
    let explained = explain(&gateway, &live);
    assert_eq!((&explained["decision"], &explained["limit"]), (&"refused".into(), &"per-key".into()));
    assert_eq!((&explained["status"], &explained["reason"]), (&420.into(), &"rate-limited".into()));
    assert_eq!(explained["passed_over"][0], serde_json::json!({"route": "admin", "reason": "method"}));
    assert_eq!((&explained["client"], &explained["upstream"]), (&"127.0.0.1".into(), &"app".into()));
    let [first, tried] = explained["limits"].as_array().unwrap().as_slice() else { panic!("{explained}") };
    assert_eq!(
        (&first["name"], &first["mode"], &first["decision"]),
        (&"per-key".into(), &"enforce".into(), &"refused".into())
    );
    assert!(first["next_ms"].as_u64().unwrap() > 1_000_000, "{first}");
    assert_eq!((&tried["mode"], &tried["decision"]), (&"shadow".into(), &"refused".into()));
    assert_eq!(explained["edits"][0], "response header x-a: set");
    assert_eq!(get_with(gateway.address(), "/admin", &key).status, 420);
    // The mark is that of dead letters.
    let refused = || gateway.dead_letters().into_iter().find(|letter| letter["limit"] == "per-key");
    assert!(eventually(|| refused().is_some()));
    assert_eq!(first["key"], refused().unwrap()["key"]);
    assert!(!explained.to_string().contains("planted"), "{explained}");
    let other = explain(&gateway, &["GET", "/", "-H", "x-api-key: other", "--live", "--admin", &admin]);
    assert_eq!((&other["decision"], &other["limits"][0]["room"]), (&"admitted".into(), &2.into()));
}

#[test]
fn dead_letters_say_why_and_both_logs_whom_a_shadow_limit_would_have_refused() {
    let gateway = Gateway::start(&format!("[log]\naccess = \"json\"\n{RULES}"));
    let mut client = Client::connect(gateway.address());
    let mut ask = |key: &str| client.request("GET", "/", &[("X-Api-Key", key)], b"").status;
    assert_eq!([ask("one"), ask("one"), ask("one")], [200, 200, 420]);
    assert!(eventually(|| gateway.dead_letters().len() == 2), "{:?}", gateway.dead_letters());
    let letters = gateway.dead_letters();
    let (shadow, refused): (Vec<_>, Vec<_>) = letters.into_iter().partition(|letter| letter["mode"] == "shadow");
    let ([shadow], [refused]) = (&*shadow, &*refused) else { panic!("one of each") };
    assert_eq!((&shadow["limit"], &shadow["reason"]), (&"tried".into(), &"rate-limited".into()));
    assert_eq!(shadow["key"], serde_json::json!([["client-ip", "127.0.0.1"]]));
    let why = "route api; per-key: 0 of 2 in 1h left, room in ";
    assert!(refused["why"].as_str().unwrap().starts_with(why), "{refused}");
    assert!(
        refused["why"].as_str().unwrap().contains(", refuses: no room; tried (shadow): 0 of 1 in 1h left"),
        "{refused}"
    );
    assert!(shadow["why"].as_str().unwrap().ends_with(", would refuse"), "{shadow}");
    assert!(eventually(|| gateway.access_log().len() == 3));
    let lines = gateway.access_log();
    let told = serde_json::json!([{"limit": "tried", "key": [["client-ip", "127.0.0.1"]]}]);
    assert_eq!((lines[0].get("shadow"), &lines[1]["shadow"]), (None, &told));
    let directory = gateway.directory.path();
    let (_, list, _) = run(&["dead-letters", "ls"], directory);
    assert!(list.contains("tried (shadow)"), "{list}");
    let (_, stats, _) = run(&["dead-letters", "stats", "--json"], directory);
    let stats: Value = serde_json::from_str(&stats).unwrap();
    assert_eq!(
        (&stats["requests"], &stats["shadow"], &stats["shadow_limits"][0]["name"]),
        (&1.into(), &1.into(), &"tried".into())
    );
    let (_, shown, _) = run(&["dead-letters", "show", shadow["id"].as_str().unwrap()], directory);
    assert!(shown.contains("would have refused it") && shown.contains("why          route api"), "{shown}");
}

#[test]
fn the_server_is_the_one_that_gets_it_and_the_client_is_found_behind_a_proxy() {
    let gateway = Gateway::start(RULES);
    for number in 0..8 {
        let key = format!("key-{number}");
        let explained = explain(
            &gateway,
            &[
                "GET",
                "/",
                "-H",
                &format!("x-api-key: {key}"),
                "--client",
                "127.0.0.2",
                "-H",
                "X-Forwarded-For: 6.6.6.6, 192.0.2.7",
            ],
        );
        assert_eq!(
            (&explained["client"], &explained["peer"], &explained["peer_trusted"]),
            (&"192.0.2.7".into(), &"127.0.0.2".into(), &true.into())
        );
        let answer = Client::connect(gateway.address()).request("GET", "/", &[("X-Api-Key", key.as_str())], b"");
        let served = answer.json()["server"].as_str().unwrap().to_owned();
        assert_eq!(explained["server"], format!("echo:{served}"), "{explained}");
    }
}

#[test]
fn what_no_route_takes_or_is_no_request_is_said_so() {
    let gateway =
        Gateway::start("[client]\ndeny = [\"192.0.2.0/24\"]\n[[route]]\nname = \"a\"\npath = \"/a\"\nrespond = {}\n");
    let none = explain(&gateway, &["GET", "/b"]);
    assert_eq!(
        (&none["decision"], &none["reason"], &none["status"], &none["route"]),
        (&"refused".into(), &"no-route".into(), &404.into(), &Value::Null)
    );
    assert_eq!(explain(&gateway, &["get", "/a"])["status"], 400);
    assert_eq!(explain(&gateway, &["GET", "/a", "--client", "192.0.2.9"])["reason"], "denied");
    assert_eq!(explain(&gateway, &["GET", "https://h.example/a?b#c"])["action"], "respond");
    for (arguments, told) in [
        (&["GET", "ftp://a/"][..], "neither http nor https"),
        (&["GET", "/a", "-H", "x: a\r\nb: c"], "line break"),
        (&["G T", "/a"], "malformed"),
        (&["GET", "/a", "--live", "--admin", "http://127.0.0.1:1"], "127.0.0.1:1"),
        (&["GET", "/a", "--live", "--admin", "nonsense"], "http://HOST:PORT"),
    ] {
        let (status, _, errors) = run(&[&["explain"], arguments].concat(), gateway.directory.path());
        assert!(!status.success() && errors.contains(told), "{arguments:?}: {errors}");
    }
    let (_, text, _) = run(&["explain", "GET", "/a"], gateway.directory.path());
    assert!(text.contains("route     a\n") && text.contains("decision  admitted, status 200\n"), "{text}");
}

#[test]
fn whoever_has_the_token_gets_the_explanation_with_the_answer() {
    // SHA-256 of "planted-token".
    let hash = "adf96522a46e4c258f2489bf7aa5161965ef284b501f3ab967de68b65ed473c8";
    let gateway = Gateway::start_whole(&format!(
        "[admin]\naddress = \"127.0.0.1:0\"\nexplain_sha256 = \"{hash}\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n{RULES}"
    ));
    let mut client = Client::connect(gateway.address());
    let mut ask = |token: &str| {
        let fields = [("X-Api-Key", "one"), ("X-Sluicegate-Explain", token)];
        let answer = client.request("GET", "/a", &fields, b"");
        let sent = if answer.status == 200 { answer.echoed("x-sluicegate-explain") } else { None };
        (answer.status, answer.header("x-sluicegate-explanation").map(str::to_owned), sent)
    };
    let (status, explanation, sent) = ask("planted-token");
    let explanation = explanation.unwrap();
    assert!(explanation.starts_with("admitted; route api; per-key: 1 of 2 in 1h left"), "{explanation}");
    assert!(explanation.contains("; upstream app, server echo:"), "{explanation}");
    assert_eq!((status, sent), (200, None));
    assert_eq!(ask("planted-tokem").1, None);
    let (status, explanation, _) = ask("planted-token");
    assert_eq!((status, explanation.unwrap().starts_with("refused by per-key; route api; ")), (420, true));
    assert_eq!(ask(""), (420, None, None));
    assert!(eventually(|| gateway.dead_letters().len() >= 3));
    assert!(
        !serde_json::to_string(&gateway.dead_letters()).unwrap().contains("planted"),
        "{:?}",
        gateway.dead_letters()
    );
}

#[test]
fn limits_are_listed_and_a_key_is_looked_at_without_being_counted() {
    let gateway = Gateway::start(RULES);
    let admin = format!("http://{}", gateway.admin);
    let key = [("X-Api-Key", "planted 1")];
    assert_eq!(get_with(gateway.address(), "/", &key).status, 200);
    let directory = gateway.directory.path();
    let get = |limit: &str, value: &str| {
        let (status, text, errors) = run(&["keys", "get", limit, value, "--json", "--admin", &admin], directory);
        let json = if status.success() { serde_json::from_str(&text).unwrap() } else { Value::Null };
        (json, errors)
    };
    for _ in 0..3 {
        let (seen, _) = get("per-key", "planted 1");
        let seen = &seen["keys"][0];
        assert_eq!(
            (&seen["room"], &seen["decision"], &seen["limit"]),
            (&1.into(), &"admitted".into(), &"per-key".into())
        );
        assert!(seen["key"].as_str().unwrap().starts_with("[redacted:"), "{seen}");
    }
    assert_eq!(get_with(gateway.address(), "/", &key).status, 200);
    let (seen, _) = get("per-key", "planted 1");
    assert_eq!((&seen["keys"][0]["room"], &seen["keys"][0]["decision"]), (&0.into(), &"refused".into()));
    assert!(seen["keys"][0]["next_ms"].as_u64().unwrap() > 1_000_000, "{seen}");
    assert_eq!(get("per-key", "other").0["keys"][0]["room"], 2);
    let (tried, _) = get("tried", "127.0.0.1");
    assert_eq!((&tried["keys"][0]["mode"], &tried["keys"][0]["decision"]), (&"shadow".into(), &"refused".into()));
    for (limit, value, told) in
        [("none", "a", "There is no limit"), ("tried", "planted", "no value of the key client-ip")]
    {
        let (_, errors) = get(limit, value);
        assert!(errors.contains(told) && !errors.contains("planted"), "{errors}");
    }
    let (_, list, _) = run(&["limits", "--admin", &admin], directory);
    assert!(
        list.contains("per-key: token-bucket 2/h per header:x-api-key\n  1 of 1000000 keys, 0 waiting; on api\n"),
        "{list}"
    );
    assert!(list.contains("tried (shadow): timer-wheel 1/h per client-ip\n"), "{list}");
}

#[test]
fn the_keys_that_a_limit_meets_most_often_are_told_and_go_on_over_a_reload() {
    let gateway = Gateway::start(RULES);
    let admin = format!("http://{}", gateway.admin);
    let directory = gateway.directory.path();
    for (key, times) in [("planted 1", 5), ("planted 2", 1)] {
        for _ in 0..times {
            get_with(gateway.address(), "/", &[("X-Api-Key", key)]);
        }
    }
    let top = |limit: &str| {
        let (status, text, errors) = run(&["keys", "top", limit, "--json", "--admin", &admin], directory);
        assert!(status.success(), "{errors}");
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let counts =
        |of: &Value| of.as_array().unwrap().iter().map(|own| own["count"].as_u64().unwrap()).collect::<Vec<_>>();
    let keys = top("per-key");
    assert_eq!((counts(&keys["refused"]), counts(&keys["admitted"])), (vec![3], vec![2, 1]));
    assert_eq!(keys["refused"][0]["key"], keys["admitted"][0]["key"]);
    assert!(keys["refused"][0]["key"][0][1].as_str().unwrap().starts_with("[redacted:"), "{keys}");
    // In shadow mode it admits all and says whom it would have refused. Those that another limit refused were counted by none.
    let tried = top("tried");
    assert_eq!((counts(&tried["refused"]), counts(&tried["admitted"])), (vec![2], vec![1]));
    assert_eq!(tried["refused"][0]["key"], serde_json::json!([["client-ip", "127.0.0.1"]]));

    // A reload keeps the counts of a limit whose key stays.
    let changed = RULES.replace("2/h", "9/h").replace("key = \"client-ip\"", "key = \"path\"");
    assert_eq!(gateway.reload(&changed).status, 200);
    get_with(gateway.address(), "/", &[("X-Api-Key", "planted 2")]);
    assert_eq!(counts(&top("per-key")["admitted"]), [2, 2]);
    assert!(eventually(|| top("tried")["admitted"][0]["key"][0][0] == "path"));

    let (_, text, _) = run(&["keys", "top", "per-key", "--admin", &admin], directory);
    assert!(text.contains("REFUSED MOST ") && text.contains("header:x-api-key=[redacted:"), "{text}");
    let (status, _, errors) = run(&["keys", "top", "none", "--admin", &admin], directory);
    assert!(!status.success() && errors.contains("There is no limit \"none\""), "{errors}");
}
