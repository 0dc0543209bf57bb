//! Fields that no server would see: what `Connection` nominates, what speaks of one connection, names with `_` that pass
//! for another, what only a proxy may say. They are absent for keys, costs, plans, conditions, texts and logs.

use std::fs;

use crate::support::{Answer, Client, FRAME, Gateway, eventually, get_with};

const RULES: &str = "[log]\naccess = \"json\"\n[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
    [[limit]]\nname = \"by-key\"\nkey = \"header:x-api-key\"\nrate = \"3/1h\"\n\
    [[limit]]\nname = \"by-te\"\nkey = \"header:te\"\nrate = \"3/1h\"\n\
    [[limit]]\nname = \"by-claim\"\nkey = \"header:x-forwarded-proto\"\nrate = \"3/1h\"\n\
    [[limit]]\nname = \"by-alias\"\nkey = \"header:x_forwarded_host\"\nrate = \"3/1h\"\n\
    [[limit]]\nname = \"by-cost\"\nkey = \"client-ip\"\nrate = \"10/1h\"\ncost = \"header:x-cost\"\nmax_cost = 10\n\
    [[limit]]\nname = \"strict\"\nkey = \"client-ip\"\nrate = \"1/1h\"\n\
    [[limit]]\nname = \"planned\"\nkey = \"client-ip\"\nrate = \"1/1h\"\n\
    [[route]]\nname = \"keyed\"\npath = \"/keyed\"\nupstream = \"app\"\nlimits = [\"by-key\"]\n\
    response_headers = { set = { x-was = \"<{header:x-api-key}>\" } }\n\
    [[route]]\nname = \"te\"\npath = \"/te\"\nupstream = \"app\"\nlimits = [\"by-te\"]\n\
    [[route]]\nname = \"claim\"\npath = \"/claim\"\nupstream = \"app\"\nlimits = [\"by-claim\"]\n\
    [[route]]\nname = \"alias\"\npath = \"/alias\"\nupstream = \"app\"\nlimits = [\"by-alias\"]\n\
    [[route]]\nname = \"cost\"\npath = \"/cost\"\nupstream = \"app\"\nlimits = [\"by-cost\"]\n\
    [[route]]\nname = \"inner\"\npath = \"/door\"\nheaders = { x-inner = \"1\" }\nupstream = \"app\"\n\
    [[route]]\nname = \"outer\"\npath = \"/door\"\nupstream = \"app\"\nlimits = [\"strict\"]\n\
    [[route]]\nname = \"plans\"\npath = \"/plans\"\nupstream = \"app\"\nlimits = [\"planned\"]\n\
    plans = { file = \"plans.toml\", key = \"header:x-api-key\" }\n\
    [dead_letter]\ndirectory = \"dead-letters\"\n";

fn start() -> Gateway {
    let directory = tempfile::tempdir().unwrap();
    let plans = "default = \"free\"\n[plan.free]\n[plan.pro]\nplanned = { rate = \"9/1h\" }\n[keys]\ngold = \"pro\"\n";
    fs::write(directory.path().join("plans.toml"), plans).unwrap();
    Gateway::start_in(directory, &format!("{FRAME}{RULES}"))
}

fn ask(gateway: &Gateway, path: &str, fields: &[(&str, &str)]) -> Answer {
    get_with(gateway.address(), path, fields)
}

/// How many of five requests are admitted, each with a value of its own in this field, and with these.
fn admitted(gateway: &Gateway, path: &str, name: &str, with: &[(&str, &str)]) -> usize {
    let fields = |value| [&[(name, value)], with].concat();
    ["a", "b", "c", "d", "e"].iter().filter(|value| ask(gateway, path, &fields(value)).status == 200).count()
}

#[test]
fn a_field_that_connection_nominates_is_no_key_and_no_text() {
    let gateway = start();
    let nominating = &[("Connection", "X-API-Key")];
    let first = ask(&gateway, "/keyed", &[("x-api-key", "z"), ("Connection", "keep-alive, x-api-key")]);
    assert_eq!((first.status, first.header("x-was"), first.echoed("x-api-key")), (200, Some("<>"), None));
    assert_eq!(admitted(&gateway, "/keyed", "x-api-key", nominating), 2, "by the address: three in all");
    assert_eq!(admitted(&gateway, "/keyed", "x-api-key", &[("Connection", "x-other")]), 5);
    let kept = ask(&gateway, "/keyed", &[("x-api-key", "y"), ("Connection", "x-other")]);
    assert_eq!((kept.status, kept.header("x-was"), kept.echoed("x-api-key").as_deref()), (200, Some("<y>"), Some("y")));
}

#[test]
fn what_speaks_of_one_connection_or_is_cut_for_its_underscores_is_no_key() {
    let gateway = start();
    assert_eq!(admitted(&gateway, "/te", "te", &[]), 3);
    assert_eq!(admitted(&gateway, "/alias", "x_forwarded_host", &[]), 3);
    assert_eq!(admitted(&gateway, "/claim", "x-forwarded-proto", &[]), 3, "the peer is no trusted proxy");
    assert_eq!(admitted(&gateway, "/claim", "x_forwarded_proto", &[]), 0);
}

#[test]
fn a_name_with_underscores_that_only_some_servers_read_names_nobody() {
    let gateway = start();
    assert_eq!(admitted(&gateway, "/keyed", "X_Api_Key", &[]), 3, "by the address, whatever it says");
    assert_eq!(admitted(&gateway, "/keyed", "x-api-key", &[("X_Api_Key", "other")]), 0, "the same");
    let was = |fields: &[(&str, &str)]| ask(&gateway, "/keyed", fields).header("x-was").map(str::to_owned);
    // All servers read the same here.
    for _ in 0..3 {
        assert_eq!(was(&[("X_Api_Key", "one"), ("X-Api-Key", "one")]).as_deref(), Some("<one>"));
    }
    assert_eq!(ask(&gateway, "/keyed", &[("X-Api-Key", "one")]).status, 429);
}

#[test]
fn a_name_with_underscores_is_no_way_round_a_stricter_route() {
    let gateway = Gateway::start(
        "[[limit]]\nname = \"strict\"\nkey = \"client-ip\"\nrate = \"1/1h\"\n\
         [[route]]\nname = \"inner\"\nheaders = { x-admin = \"1\" }\nrespond = { status = 201 }\nlimits = [\"strict\"]\n\
         [[route]]\nname = \"outer\"\nrespond = { status = 202 }\n",
    );
    let status = |fields: &[(&str, &str)]| get_with(gateway.address(), "/", fields).status;
    assert_eq!([status(&[("X-Admin", "1")]), status(&[("X_Admin", "1")])], [201, 429]);
    assert_eq!([status(&[("X_Admin", "0")]), status(&[])], [202, 202]);
}

#[test]
fn the_host_as_a_field_is_the_one_that_the_server_gets() {
    let gateway = Gateway::start(
        "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
         [[limit]]\nname = \"l\"\nkey = \"header:host\"\nrate = \"1/1h\"\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"l\"]\n",
    );
    let status = |host: &str| {
        Client::connect(gateway.address()).request("GET", "http://real.example/", &[("Host", host)], b"").status
    };
    assert_eq!(["a.example", "b.example"].map(status), [200, 429]);
}

#[test]
fn a_nominated_field_states_no_cost_no_plan_and_no_condition() {
    let gateway = start();
    // Without the field it costs one of ten.
    for _ in 0..9 {
        assert_eq!(ask(&gateway, "/cost", &[("x-cost", "10"), ("Connection", "x-cost")]).status, 200);
    }
    assert_eq!(ask(&gateway, "/cost", &[("x-cost", "2")]).status, 429);
    assert_eq!(ask(&gateway, "/cost", &[]).status, 200);

    let inner = [("x-inner", "1"), ("Connection", "x-inner")];
    assert_eq!([ask(&gateway, "/door", &inner).status, ask(&gateway, "/door", &inner).status], [200, 429]);
    assert_eq!(ask(&gateway, "/door", &[("x-inner", "1")]).status, 200, "the other route");

    let gold = [("x-api-key", "gold"), ("Connection", "x-api-key")];
    assert_eq!([ask(&gateway, "/plans", &gold).status, ask(&gateway, "/plans", &gold).status], [200, 429]);
    assert_eq!(ask(&gateway, "/plans", &[("x-api-key", "gold")]).status, 200);
}

#[test]
fn logs_do_not_tell_what_no_server_would_see() {
    let gateway = start();
    let fields = [
        ("User-Agent", "hidden"),
        ("X-Planted", "1"),
        ("X_Forwarded_For", "6.6.6.6"),
        ("TE", "trailers"),
        ("X-Told", "2"),
        ("Connection", "user-agent, x-planted"),
    ];
    assert_eq!([ask(&gateway, "/door", &fields).status, ask(&gateway, "/door", &fields).status], [200, 429]);
    assert!(eventually(|| gateway.access_log().len() == 2 && gateway.dead_letters().len() == 1));
    assert!(gateway.access_log().iter().all(|line| line.get("user_agent").is_none_or(serde_json::Value::is_null)));
    let letter = &gateway.dead_letters()[0];
    let names: Vec<&str> =
        letter["headers"].as_array().unwrap().iter().map(|field| field[0].as_str().unwrap()).collect();
    assert!(names.contains(&"x-told"), "{names:?}");
    for gone in ["user-agent", "x-planted", "x_forwarded_for", "te", "connection"] {
        assert!(!names.contains(&gone), "{gone}: {names:?}");
    }
}

#[test]
fn nobody_hides_behind_a_trusted_proxy_by_nominating_its_field() {
    let gateway = Gateway::start(
        "[client]\ntrusted_proxies = [\"127.0.0.0/8\"]\n[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
         [[limit]]\nname = \"l\"\nkey = \"client-ip\"\nrate = \"1/1h\"\nexempt = [\"127.0.0.0/8\"]\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"l\"]\n",
    );
    let fields = [("X-Forwarded-For", "198.51.100.1"), ("Connection", "x-forwarded-for")];
    let first = ask(&gateway, "/", &fields);
    assert_eq!((first.status, first.echoed("x-forwarded-for").as_deref()), (200, Some("198.51.100.1, 127.0.0.1")));
    assert_eq!(ask(&gateway, "/", &fields).status, 429);
}
