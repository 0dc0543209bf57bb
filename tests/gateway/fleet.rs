//! Several gateways and one store: what a shared limit admits in all, and what becomes of it without the store.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use rcgen::{CertificateParams, KeyPair};
use tempfile::TempDir;

use crate::support::{Answer, FRAME, Gateway, Store, eventually, get_with, run};

/// Nobody waits so long; but a busy machine is not a store that fails.
const DEADLINE: &str = "1s";

fn rules(store: SocketAddr, on_failure: &str, limit: &str) -> String {
    format!(
        "{FRAME}[fleet]\nstore = \"redis://{store}\"\nsecret_file = \"fleet.key\"\ndeadline = \"{DEADLINE}\"\n\
         on_failure = \"{on_failure}\"\n\
         [[limit]]\nname = \"per-key\"\nkey = \"header:x-key\"\nalgorithm = \"fixed-window\"\nalign = \"first\"\n{limit}\n\
         [[route]]\nname = \"all\"\nlimits = [\"per-key\"]\nrespond = {{ status = 200, body = \"ok\" }}\n"
    )
}

fn start(configuration: &str) -> Gateway {
    start_in(tempfile::tempdir().unwrap(), configuration)
}

fn start_in(directory: TempDir, configuration: &str) -> Gateway {
    fs::write(directory.path().join("fleet.key"), "0123456789abcdef".repeat(4)).unwrap();
    Gateway::start_in(directory, configuration)
}

fn three(store: &Store, on_failure: &str, limit: &str) -> [Gateway; 3] {
    let rules = rules(store.address(), on_failure, limit);
    let gateways = [(); 3].map(|()| start(&rules));
    for gateway in &gateways {
        // Until they have found each other a first request may be decided alone.
        assert!(eventually(|| ask(gateway, "first").header("ratelimit").is_some()));
    }
    gateways
}

fn ask(gateway: &Gateway, key: &str) -> Answer {
    get_with(gateway.address(), "/", &[("X-Key", key)])
}

/// How many of so many requests pass.
fn pass(gateway: &Gateway, key: &str, requests: usize) -> usize {
    (0..requests).filter(|_| ask(gateway, key).status == 200).count()
}

/// Waits until the log has so many lines with this text.
fn wait_log(gateway: &Gateway, text: &str, count: usize) {
    assert!(eventually(|| gateway.log().matches(text).count() >= count), "{text}: {}", gateway.log());
}

const LOST: &str = "fleet store lost";
const BACK: &str = "fleet store answers";

#[test]
fn three_gateways_admit_a_strict_limit_once() {
    let store = Store::start();
    let gateways = three(&store, "closed", "rate = \"12/1h\"\nshared = \"strict\"");
    let passed: Vec<usize> = gateways.iter().map(|gateway| pass(gateway, "a", 5)).collect();
    assert_eq!(passed, [5, 5, 2]);
    assert_eq!(ask(&gateways[0], "b").header("ratelimit"), Some("\"per-key\";r=11;t=3600"), "another key");
    let refused = ask(&gateways[1], "a");
    assert_eq!((refused.status, refused.header("ratelimit").map(|text| &text[..13])), (429, Some("\"per-key\";r=0")));
}

#[test]
fn three_gateways_exceed_a_leased_limit_by_no_more_than_they_say() {
    let store = Store::start();
    let gateways = three(&store, "closed", "rate = \"100/1h\"\nshared = \"lease\"");
    for (index, gateway) in gateways.iter().enumerate() {
        ask_new_keys(gateway, &store, &format!("credit-{index}"));
    }
    let mut passed = [0; 3];
    for _ in 0..100 {
        for (gateway, passed) in gateways.iter().zip(&mut passed) {
            *passed += pass(gateway, "a", 1);
        }
    }
    let all: usize = passed.iter().sum();
    // floor(0.25 x 100 / 3) = 8 of each at the most.
    assert!((100..=124).contains(&all), "{passed:?}");
    assert!(passed.iter().all(|own| own * 4 >= 33), "{passed:?}");
}

#[test]
fn without_the_store_each_gateway_decides_as_the_file_says_and_pays_afterwards() {
    for (on_failure, passed, status) in [("full", 12, 429), ("fair", 4, 429), ("open", 30, 200), ("closed", 0, 503)] {
        let store = Store::start();
        let gateways = three(&store, on_failure, "rate = \"12/1h\"\nshared = \"strict\"");
        // That there are three is heard within a second.
        assert!(eventually(|| members(&store) == 3));
        let heartbeats = scripts(&store);
        assert!(eventually(|| scripts(&store) >= heartbeats + 6), "two of each, and each knows of three");
        let address = store.address();
        drop(store);
        for gateway in &gateways {
            wait_log(gateway, LOST, 1);
            assert_eq!(pass(gateway, "a", 30), passed, "{on_failure}");
        }
        let refused = ask(&gateways[0], "a");
        assert_eq!(refused.status, status, "{on_failure}");
        if status == 503 {
            assert_eq!(refused.header("retry-after"), Some("1"));
        }
        let _store = Store::start_at(address);
        for gateway in &gateways {
            wait_log(gateway, BACK, 1);
        }
        if passed > 0 {
            for gateway in &gateways {
                assert!(eventually(|| ask(gateway, "a").status == 429), "{on_failure}: what was spent is owed");
            }
        } else {
            assert!(eventually(|| ask(&gateways[0], "a").status == 200), "{on_failure}");
        }
    }
}

#[test]
fn a_store_that_stops_is_noticed_and_found_again() {
    let store = Store::start();
    let gateways = three(&store, "full", "rate = \"12/1h\"\nshared = \"strict\"");
    assert_eq!(pass(&gateways[0], "a", 10), 10);
    store.pause();
    // The first ones wait for it, and are decided then.
    assert_eq!(pass(&gateways[0], "a", 30), 2, "what the store said last was left");
    wait_log(&gateways[0], LOST, 1);
    store.resume();
    wait_log(&gateways[0], BACK, 1);
    assert!(eventually(|| ask(&gateways[1], "a").status == 429));
    assert_eq!(counted(&store), 12, "asks that were left in the stopped store have taken nothing");
}

#[test]
fn another_rate_goes_on_with_the_same_count_and_a_limit_may_stop_being_shared() {
    let store = Store::start();
    let gateways = three(&store, "closed", "rate = \"12/1h\"\nshared = \"strict\"");
    assert_eq!(pass(&gateways[0], "a", 20), 12);
    let more = rules(store.address(), "closed", "rate = \"20/1h\"\nshared = \"strict\"");
    for gateway in &gateways {
        assert_eq!(gateway.reload(more.strip_prefix(FRAME).unwrap()).status, 200);
    }
    assert_eq!(pass(&gateways[1], "a", 20), 8);
    let own = rules(store.address(), "closed", "rate = \"20/1h\"");
    assert_eq!(gateways[2].reload(own.strip_prefix(FRAME).unwrap()).status, 200);
    assert_eq!(pass(&gateways[2], "a", 30), 20, "alone it begins afresh");
    assert_eq!(pass(&gateways[1], "a", 5), 0);
}

#[test]
fn a_gateway_that_ends_reports_what_it_has_spent() {
    let store = Store::start();
    let mut gateways = three(&store, "closed", "rate = \"100/1h\"\nshared = \"lease\"");
    let asked = ask_new_keys(&gateways[0], &store, "a");
    gateways[0].signal("TERM");
    gateways[0].wait_exit();
    assert_eq!(members(&store), 2, "at once, not when its heartbeats are missed");
    assert_eq!(keys(&store), asked, "what was on credit is reported before it ends");
}

#[test]
fn a_limit_that_is_removed_while_the_store_is_away_pays_afterwards() {
    let store = Store::start();
    let rules = rules(store.address(), "full", "rate = \"12/1h\"\nshared = \"strict\"");
    let gateway = start(&rules);
    assert!(eventually(|| ask(&gateway, "first").header("ratelimit").is_some()));
    assert_eq!(pass(&gateway, "a", 5), 5);
    store.pause();
    assert_eq!(pass(&gateway, "a", 4), 4);
    wait_log(&gateway, LOST, 1);
    let other = rules.replace("per-key", "other");
    assert_eq!(gateway.reload(other.strip_prefix(FRAME).unwrap()).status, 200);
    assert_eq!(pass(&gateway, "a", 1), 1);
    store.resume();
    wait_log(&gateway, BACK, 1);
    assert!(eventually(|| counted(&store) >= 9), "{}", counted(&store));
    assert_eq!(counted(&store), 9);
}

/// Something else writes where our counts are.
#[test]
fn whoever_asks_for_a_key_that_the_store_cannot_count_does_not_wait_for_the_deadline() {
    let store = Store::start();
    let rules = rules(store.address(), "open", "rate = \"12/1h\"\nshared = \"strict\"");
    let gateway = start(&format!("[log]\naccess = \"json\"\n{rules}"));
    assert!(eventually(|| ask(&gateway, "first").header("ratelimit").is_some()));
    let key = store.ask(&["keys", "sluicegate:per-key:*"]).trim().to_owned();
    store.ask(&["set", &key, "of another"]);
    assert!(eventually(|| {
        assert_eq!(get_with(gateway.address(), "/broken", &[("X-Key", "first")]).status, 200);
        let access = gateway.access_log();
        // DEADLINE.
        let waited =
            access.iter().filter(|line| line["target"] == "/broken").filter_map(|line| line["wait_ms"].as_f64());
        waited.into_iter().any(|waited| waited < 1_000.0)
    }));
    assert!(status(&gateway)["limits"][0]["unanswered"].as_u64().unwrap() >= 1);
    assert!(gateway.log().contains("holds another type"), "{}", gateway.log());
    store.ask(&["del", &key]);
    assert_eq!(ask(&gateway, "first").status, 200);
    assert!(counted(&store) >= 1, "it is counted again");
}

#[test]
fn the_status_says_how_the_fleet_stands() {
    let store = Store::start();
    let gateways = three(&store, "full", "rate = \"12/1h\"\nshared = \"strict\"");
    assert!(eventually(|| status(&gateways[0])["members"].as_array().is_some_and(|members| members.len() == 3)));
    let shared = status(&gateways[0]);
    assert_eq!(
        (&shared["mode"], &shared["gateways"], &shared["on_failure"]),
        (&"shared".into(), &3.into(), &"full".into())
    );
    assert_eq!((&shared["store"]["product"], &shared["store"]["circuit"]), (&"Redis".into(), &"closed".into()));
    assert!(shared["store"]["p50_ms"].as_f64().unwrap() > 0.0, "{shared}");
    let limit = &shared["limits"][0];
    assert_eq!((&limit["limit"], &limit["shared"]), (&"per-key".into(), &"strict".into()));
    assert_eq!(limit["bounds"][0]["text"], "at most 12 in each window of 1h, at least 12");
    gateways[0].wait_metric("sluicegate_fleet_gateways", &[], 3.0);
    gateways[0].wait_metric("sluicegate_fleet_shared", &[], 1.0);
    gateways[0].wait_metric("sluicegate_fleet_circuit_open", &[], 0.0);
    assert!(gateways[0].metric("sluicegate_fleet_exchanges_total", &["result=\"answered\""]) >= 1.0);
    assert!(gateways[0].metric("sluicegate_fleet_store_seconds_count", &[]) >= 1.0);
    // It asks the admin interface of the file, which has another port here.
    let (file, directory) = (gateways[0].file(), gateways[0].directory.path());
    let admin = format!("[admin]\naddress = \"{}\"", gateways[0].admin);
    let text = fs::read_to_string(file).unwrap().replace("[admin]\naddress = \"127.0.0.1:0\"", &admin);
    fs::write(directory.join("status.toml"), text).unwrap();
    let shown = || run(&["fleet", "status", "-c", "status.toml"], directory);
    let (exit, text, error) = shown();
    assert!(exit.success() && text.contains("circuit closed"), "{text}{error}");
    assert!(
        text.contains("per-key  strict") && text.contains("at most 12 in each window of 1h, at least 12"),
        "{text}"
    );
    let leased = fs::read_to_string(directory.join("status.toml")).unwrap().replace("\"strict\"", "\"lease\"");
    fs::write(directory.join("leased.toml"), leased).unwrap();
    // 12, and floor(0.25 x 12 / N) of each.
    for (gateways, most) in [("1", 15), ("3", 15), ("5", 12)] {
        let (exit, text, _) = run(&["check", "-c", "leased.toml", "--gateways", gateways], directory);
        let bound = format!(
            ": at most {most} in each window of 1h, at least 12\na key without a place in the store (max_keys)"
        );
        assert!(exit.success() && text.contains(&bound), "{gateways}: {text}");
    }

    drop(store);
    wait_log(&gateways[0], LOST, 1);
    assert_eq!(pass(&gateways[0], "a", 30), 12);
    let alone = status(&gateways[0]);
    assert_eq!((&alone["mode"], &alone["limits"][0]["debt"]), (&"alone".into(), &12.into()));
    assert!(alone["store"]["last_error"].as_str().is_some_and(|error| error.contains("check that")), "{alone}");
    gateways[0].wait_metric("sluicegate_fleet_debt", &["limit=\"per-key\""], 12.0);
    gateways[0].wait_metric("sluicegate_fleet_shared", &[], 0.0);
    let (exit, text, error) = shown();
    assert!(exit.success() && text.contains(": alone since"), "{text}{error}");
    assert!(text.contains("not connected, circuit open"), "{text}");
    assert_eq!(status(&gateways[0])["store"]["circuit"], "open");
    gateways[0].wait_metric("sluicegate_fleet_circuit_open", &[], 1.0);

    let without = format!("{FRAME}[[route]]\nname = \"all\"\nrespond = {{ status = 200, body = \"ok\" }}\n");
    let alone = Gateway::start_whole(&without);
    assert_eq!(status(&alone)["mode"], "off");
}

/// The instant of admission is the arrival and the wait.
#[test]
fn the_access_log_says_how_long_a_request_waited_for_the_store() {
    let store = Store::start();
    let rules = rules(store.address(), "full", "rate = \"12/1h\"\nshared = \"strict\"");
    let gateway = start(&format!("[log]\naccess = \"json\"\n{rules}"));
    assert!(eventually(|| ask(&gateway, "first").header("ratelimit").is_some()));
    store.pause();
    assert_eq!(ask(&gateway, "a").status, 200);
    assert!(eventually(|| gateway.access_log().iter().any(|line| {
        let (waited, took) = (line["wait_ms"].as_f64(), line["took_ms"].as_f64().unwrap());
        // DEADLINE.
        waited.is_some_and(|waited| waited >= 1_000.0 && waited <= took)
    })));
    store.resume();
}

/// The answer of admin.
fn status(gateway: &Gateway) -> serde_json::Value {
    gateway.ask_admin("/api/v1/fleet").json()
}

/// As `openssl req -x509` makes one for this address.
fn write_certificate(files: &Path) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["redis.test".to_owned()]).unwrap().self_signed(&key).unwrap();
    fs::write(files.join("cert.pem"), certificate.pem()).unwrap();
    fs::write(files.join("key.pem"), key.serialize_pem()).unwrap();
}

#[test]
fn a_store_over_tls_is_used_once_its_authority_is_right() {
    let (files, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_certificate(files.path());
    write_certificate(other.path());
    let store = Store::start_tls(files.path());
    let over_tls = format!("store = \"rediss://{}\"\nca = \"ca.pem\"\nserver_name = \"redis.test\"", store.address());
    let limit = "rate = \"12/1h\"\nshared = \"strict\"";
    let rules =
        rules(store.address(), "closed", limit).replace(&format!("store = \"redis://{}\"", store.address()), &over_tls);
    let directory = tempfile::tempdir().unwrap();
    let ca = directory.path().join("ca.pem");
    fs::copy(other.path().join("cert.pem"), &ca).unwrap();
    let gateway = start_in(directory, &rules);
    wait_log(&gateway, LOST, 1);
    wait_log(&gateway, "no TLS with the store of [fleet]: no authority that is trusted here", 1);
    assert_eq!(ask(&gateway, "a").status, 503);
    // The file is watched.
    fs::copy(files.path().join("cert.pem"), &ca).unwrap();
    wait_log(&gateway, BACK, 1);
    let second = start_in(with_file(&files.path().join("cert.pem")), &rules);
    assert!(eventually(|| ask(&second, "b").status == 200));
    assert_eq!((pass(&gateway, "a", 8), pass(&second, "a", 8)), (8, 4));
}

/// A directory with this file as `ca.pem`.
fn with_file(file: &Path) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::copy(file, directory.path().join("ca.pem")).unwrap();
    directory
}

/// Asks for one new key after the other until one is admitted on credit, which a gateway has once the others know it. How
/// many that were.
fn ask_new_keys(gateway: &Gateway, store: &Store, name: &str) -> usize {
    let first = keys(store);
    let mut asked = 0;
    let has_credit = eventually(|| {
        let before = keys(store);
        asked += 1;
        assert_eq!(ask(gateway, &format!("{name}-{asked}")).status, 200);
        keys(store) == before
    });
    assert!(has_credit);
    first + asked
}

/// How many gateways the store knows.
fn members(store: &Store) -> usize {
    store.ask(&["zcard", "sluicegate:members"]).trim().parse().unwrap_or(0)
}

/// How many keys of the limit the store counts.
fn keys(store: &Store) -> usize {
    store.ask(&["keys", "sluicegate:per-key:*"]).lines().filter(|line| !line.is_empty()).count()
}

/// The largest count of a key in the store.
fn counted(store: &Store) -> u64 {
    let keys = store.ask(&["keys", "sluicegate:per-key:*"]);
    let counts = keys.lines().map(|key| store.ask(&["hget", key, "0:count"]).trim().parse::<u64>().unwrap_or(0));
    counts.max().unwrap_or(0)
}

/// How many scripts the store has run: with nobody asking, heartbeats.
fn scripts(store: &Store) -> usize {
    let figures = store.ask(&["info", "commandstats"]);
    let calls = figures.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    calls.and_then(|calls| calls.split(',').next()?.parse().ok()).unwrap_or(0)
}

#[test]
fn a_question_about_a_request_waits_for_the_store_and_no_longer_than_for_it() {
    let store = Store::start();
    let asks = "[[listener]]\naddress = \"[::1]:0\"\ndecides = \"auth\"\ndescribed_by = \"forwarded\"\n";
    let rules = rules(store.address(), "closed", "rate = \"3/1h\"\nshared = \"strict\"");
    let gateway = start(&format!("{rules}{asks}"));
    let about = |key: &str| {
        let fields =
            [("X-Forwarded-Method", "GET"), ("X-Forwarded-Uri", "/"), ("X-Forwarded-For", "192.0.2.7"), ("X-Key", key)];
        get_with(gateway.addresses[1], "/", &fields)
    };
    let answers: Vec<_> = (0..5).map(|_| about("a")).collect();
    assert_eq!(answers.iter().map(|answer| answer.status).collect::<Vec<_>>(), [200, 200, 200, 429, 429]);
    assert_eq!(answers[2].header("ratelimit").map(|left| left.contains("r=0")), Some(true));
    assert_eq!(answers[3].header("x-sluicegate-limit"), Some("per-key"));
    assert_eq!((about("b").status, ask(&gateway, "b").status), (200, 200));
    drop(store);
    wait_log(&gateway, LOST, 1);
    assert_eq!((about("c").status, about("c").header("retry-after").is_some()), (503, true));
}
