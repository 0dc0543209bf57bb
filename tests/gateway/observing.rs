use std::time::Duration;
use std::{fs, thread};

use crate::support::{Backend, Client, FRAME, Gateway, eventually, get, get_with, write_ok};

const APP: &str =
    "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n[[route]]\nname = \"all\"\nupstream = \"app\"\n";

#[test]
fn the_admin_interface_answers_on_its_own_address() {
    let gateway = Gateway::start(APP);
    assert_eq!(gateway.ask_admin("/healthz").status, 200);
    assert_eq!(gateway.ask_admin("/readyz").status, 200);
    assert_eq!(gateway.ask_admin("/api/config").json()["generation"], 1);
    assert_eq!(gateway.ask_admin("/nothing").status, 404);
    assert_eq!(gateway.ask_admin("/reload").status, 405);
    assert_eq!(get(gateway.address(), "/healthz").json()["path"], "/healthz", "the front door has no such page");
}

#[test]
fn metrics_tell_what_happened() {
    let gateway = Gateway::start(APP);
    let mut client = Client::connect(gateway.address());
    for _ in 0..7 {
        client.get("/");
    }
    gateway.wait_metric("sluicegate_requests_total", &["route=\"all\"", "outcome=\"forwarded\""], 7.0);
    gateway.wait_metric("sluicegate_responses_total", &["route=\"all\"", "class=\"2xx\""], 7.0);
    gateway.wait_metric("sluicegate_upstream_response_seconds_count", &["upstream=\"app\""], 7.0);
    gateway.wait_metric("sluicegate_client_connections", &[], 1.0);
    let text = gateway.ask_admin("/metrics").text();
    assert!(text.contains("# TYPE sluicegate_requests_total counter"), "{text}");
    assert!(text.contains("# TYPE sluicegate_upstream_response_seconds histogram"), "{text}");
}

#[test]
fn the_access_log_is_one_line_per_exchange() {
    let gateway = Gateway::start_whole(&format!("[log]\naccess = \"json\"\n{FRAME}{APP}"));
    let hostile = "x\",\"status\":1,\\ü";
    assert_eq!(get_with(gateway.address(), "/a?b=c", &[("User-Agent", "it's me")]).status, 200);
    assert_eq!(get_with(gateway.address(), "/second?token=planted&x=1", &[("Referer", hostile)]).status, 200);
    let lines = || {
        let text = fs::read_to_string(gateway.directory.path().join("stdout.log")).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let mut lines: Vec<_> = lines.collect();
        // Two connections may be two workers', and each logs when it has answered: in the order of their targets.
        lines.sort_by_key(|line| line["target"].to_string());
        lines
    };
    assert!(eventually(|| lines().len() == 2));
    let first = &lines()[0];
    assert_eq!((&first["method"], &first["status"], &first["route"]), (&"GET".into(), &200.into(), &"all".into()));
    assert_eq!(first["user_agent"], "it's me");
    assert_eq!(first["client"], "127.0.0.1");
    assert_eq!(lines()[1]["referer"], hostile);
    let target = lines()[1]["target"].as_str().unwrap().to_owned();
    assert!(
        target.starts_with("/second?token=") && target.contains("redacted") && target.ends_with("&x=1"),
        "{target}"
    );
}

/// The log's thread redacts, and only what has been cut to a bounded length before.
#[test]
fn a_logged_target_is_cut_and_redacted_like_a_dead_letter() {
    let gateway = Gateway::start_whole(&format!("[log]\naccess = \"json\"\n{FRAME}{APP}"));
    let equals = format!("/1{}", "=".repeat(3_900));
    // The cut falls into the password, before the `@` that would tell it as one.
    let start = "/2?next=https%3A%2F%2Fuser%3A";
    let halved = format!("{start}{}planted{}%40h%2F", "x".repeat(2_040 - start.len()), "x".repeat(99));
    for target in [&equals, &halved, "/3/token=planted/a;jsessionid=planted?sub_key=planted"] {
        assert_eq!(get_with(gateway.address(), target, &[("User-Agent", &"u".repeat(5_000))]).status, 200);
    }
    assert!(eventually(|| gateway.access_log().len() == 3));
    let mut lines = gateway.access_log();
    lines.sort_by_key(|line| line["target"].to_string());
    let targets: Vec<&str> = lines.iter().map(|line| line["target"].as_str().unwrap()).collect();
    assert_eq!(targets[0], format!("{}…", &equals[..2_048]));
    assert!(targets[1].starts_with("/2?next=[redacted:") && targets[1].ends_with("]…"), "{}", targets[1]);
    assert!(
        targets[2].starts_with("/3/token=[redacted:") && targets[2].contains("/a;jsessionid=[redacted:"),
        "{}",
        targets[2]
    );
    assert!(!lines.iter().any(|line| line.to_string().contains("planted")), "{lines:?}");
    for line in &lines {
        assert_eq!(line["user_agent"], format!("{}…", "u".repeat(512)));
        assert_eq!(line["truncated"], true);
    }
}

#[test]
fn the_log_is_json_when_nobody_watches() {
    let gateway = Gateway::start(APP);
    gateway.reload(&APP.replace("echo:a", "echo:b"));
    assert!(eventually(|| gateway.log().contains("configuration reloaded")));
    for line in gateway.log().lines() {
        let json: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(json["level"].is_string() && json["ts"].is_string(), "{line}");
        assert_eq!(json["pid"], gateway.pid(), "{line}");
    }
}

#[test]
fn the_log_level_changes_without_a_restart_and_the_format_says_that_it_needs_one() {
    let gateway = Gateway::start(APP);
    assert_eq!(gateway.reload(&format!("[log]\nlevel = \"debug\"\n{APP}")).status, 200);
    assert!(eventually(|| gateway.log().contains("[log]: changed: level info -> debug")), "{}", gateway.log());
    let down = APP.replace("echo:a", "127.0.0.1:1");
    assert_eq!(gateway.reload(&format!("[log]\nlevel = \"debug\"\nformat = \"human\"\n{down}")).status, 200);
    assert_eq!(get(gateway.address(), "/").status, 502);
    assert!(eventually(|| gateway.log().contains("cannot connect")), "a line that only debug shows");
    assert!(gateway.log().contains("needs a restart: format auto -> human"));
}

#[test]
fn the_access_log_can_be_switched_on_and_off() {
    let gateway = Gateway::start(APP);
    assert_eq!(get(gateway.address(), "/silent").status, 200);
    assert_eq!(gateway.reload(&format!("[log]\naccess = \"combined\"\n{APP}")).status, 200);
    assert_eq!(get(gateway.address(), "/logged").status, 200);
    let log = || fs::read_to_string(gateway.directory.path().join("stdout.log")).unwrap_or_default();
    assert!(eventually(|| log().contains("\"GET /logged HTTP/1.1\" 200")), "{}", log());
    assert_eq!(gateway.reload(APP).status, 200);
    assert_eq!(get(gateway.address(), "/silent").status, 200);
    assert!(!log().contains("/silent"));
}

#[test]
fn a_log_that_nobody_reads_stops_no_traffic() {
    let gateway = Gateway::start_unread(&format!("[log]\nlevel = \"trace\"\n{FRAME}{APP}"));
    let mut client = Client::connect(gateway.address());
    let broken = format!("[[route]]\nname = \"{}\"\n", "x".repeat(5000));
    for _ in 0..40 {
        assert_eq!(gateway.reload(&broken).status, 422);
        assert_eq!(client.get("/").status, 200);
    }
}

#[test]
fn the_access_log_tells_where_the_time_went_and_clients_learn_the_id_of_their_request() {
    let backend = Backend::start(|_, stream| {
        thread::sleep(Duration::from_millis(30));
        write_ok(stream, b"late")
    });
    let gateway = Gateway::start(&format!(
        "[log]\naccess = \"json\"\n[server]\nworkers = 1\n[[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n\
         [[limit]]\nname = \"two\"\nrate = \"2/h\"\nkey = \"client-ip\"\nalgorithm = \"token-bucket\"\n\
         [[limit]]\nname = \"paced\"\nrate = \"1/50ms\"\nkey = \"global\"\nmax_wait = \"5s\"\n\
         [[route]]\nname = \"paced\"\npath = \"/paced\"\nlimits = [\"paced\"]\nrespond = {{}}\n\
         [[route]]\nname = \"all\"\nlimits = [\"two\"]\nupstream = \"app\"\n",
        backend.address
    ));
    let mut client = Client::connect(gateway.address());
    let statuses = ["/1", "/2", "/3"].map(|path| client.get(path).status);
    assert_eq!(statuses, [200, 200, 429]);
    let refused = client.get("/4");
    assert_eq!((client.get("/paced/1").status, client.get("/paced/2").status), (200, 200));
    let id = refused.header("x-request-id").unwrap().to_owned();
    let lines = || gateway.access_log();
    assert!(eventually(|| lines().len() == 6), "{:?}", lines());
    let lines = lines();
    let time = |line: usize, name: &str| lines[line][name].as_f64();
    assert!(time(0, "connect_ms").is_some() && time(1, "connect_ms").is_none(), "the connection is kept: {lines:?}");
    for line in [0, 1] {
        let (head, took) = (time(line, "head_ms").unwrap(), time(line, "took_ms").unwrap());
        assert!(head >= 30.0 && head <= took, "{lines:?}");
    }
    assert!(time(2, "head_ms").is_none() && time(2, "connect_ms").is_none() && time(2, "wait_ms").is_none());
    assert_eq!(lines[3]["request_id"], id.as_str());
    assert!(lines.iter().all(|line| line["ts"].is_string()), "{lines:?}");
    let waited = time(5, "wait_ms").unwrap();
    assert!(time(4, "wait_ms").is_none() && waited > 0.0 && waited <= time(5, "took_ms").unwrap(), "{lines:?}");
    gateway.wait_metric("sluicegate_request_seconds_count", &["route=\"all\""], 4.0);
    gateway.wait_metric("sluicegate_request_wait_seconds_count", &["route=\"paced\""], 1.0);
    assert!(!gateway.ask_admin("/metrics").text().contains("request_wait_seconds_count{route=\"all\""));
}
