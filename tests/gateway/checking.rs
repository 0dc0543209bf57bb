//! Listeners that programs ask: `decides = "json"`.

use std::io::{BufReader, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::administering::Document;
use crate::support::{Answer, Client, FRAME, Gateway, Store, eventually, get_with, read_answer};
use crate::wire::Wire;

const LIMITS: &str = "[[limit]]\nname = \"per-key\"\nkey = \"header:x-key\"\nrate = \"3/1h\"\n\
                      [[limit]]\nname = \"tried\"\nkey = \"client-ip\"\nrate = \"1/1h\"\nmode = \"shadow\"\n\
                      [[limit]]\nname = \"at-once\"\nkey = \"client-ip\"\nalgorithm = \"concurrency\"\nmax_in_flight = 9\n\
                      [[route]]\nname = \"api\"\npath = \"/api\"\nlimits = [\"per-key\", \"tried\"]\nrespond = {}\n\
                      [[route]]\nname = \"slow\"\npath = \"/slow\"\nlimits = [\"at-once\"]\nrespond = {}\n";

/// A gateway that proxies at one listener, and is asked at another.
fn gateway(keys: &str, sections: &str) -> (Gateway, SocketAddr) {
    let gateway =
        Gateway::start(&format!("[[listener]]\naddress = \"[::1]:0\"\ndecides = \"json\"\n{keys}\n{sections}"));
    let asked = gateway.addresses[1];
    (gateway, asked)
}

fn post(address: SocketAddr, body: &str) -> Answer {
    Client::connect(address).request("POST", "/v1/check", &[("Content-Type", "application/json")], body.as_bytes())
}

fn ask(address: SocketAddr, question: &Value) -> Value {
    let answer = post(address, &question.to_string());
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")), "{}", answer.text());
    answer.json()
}

fn about_key(limit: &str, key: &str) -> Value {
    json!({ "limit": limit, "key": key })
}

fn about_request(url: &str, key: &str) -> Value {
    json!({ "request": { "method": "GET", "url": url, "client": "192.0.2.7", "headers": { "X-Key": key } } })
}

/// Asks over a Unix socket.
fn post_unix(socket: &Path, body: &str) -> Answer {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let length = body.len();
    write!(
        stream,
        "POST /v1/check HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    read_answer(&mut BufReader::new(stream), false).unwrap()
}

/// Without the spans, which go by.
fn told(answer: &Value) -> (Option<bool>, Option<&str>, Option<u64>, Option<u64>) {
    (
        answer["allowed"].as_bool(),
        answer["limit"].as_str(),
        answer["remaining"].as_u64(),
        answer["limit_value"].as_u64(),
    )
}

fn outcomes(gateway: &Gateway, outcome: &str) -> u64 {
    gateway.metric("sluicegate_decisions_asked_total", &["kind=\"json\"", &format!("outcome=\"{outcome}\"")]) as u64
}

#[test]
fn keys_and_requests_and_what_is_proxied_are_counted_by_the_same_limit() {
    let (gateway, asked) = gateway("", LIMITS);
    let first = ask(asked, &about_key("per-key", "a"));
    assert_eq!(told(&first), (Some(true), Some("per-key"), Some(2), Some(3)));
    assert_eq!((first["retry_after_ms"].as_u64(), &first["shadow"]), (Some(0), &json!(false)));
    assert_eq!(get_with(gateway.address(), "/api", &[("X-Key", "a")]).status, 200);
    let third = ask(asked, &about_request("/api/x", "a"));
    assert_eq!(told(&third), (Some(true), Some("per-key"), Some(0), Some(3)));
    let refused =
        [about_key("per-key", "a"), about_request("http://h/api?x", "a")].map(|question| ask(asked, &question));
    for refused in &refused {
        assert_eq!(told(refused), (Some(false), Some("per-key"), Some(0), Some(3)), "{refused}");
        let millis = refused["retry_after_ms"].as_u64().unwrap();
        assert!((1..=3_600_000).contains(&millis) && refused["reset_ms"].is_u64(), "{refused}");
    }
    assert_eq!(get_with(gateway.address(), "/api", &[("X-Key", "a")]).status, 429);
    assert_eq!((outcomes(&gateway, "allowed"), outcomes(&gateway, "refused")), (2, 2));
    let decided = |decision: &str| {
        gateway.metric("sluicegate_limit_decisions_total", &["limit=\"per-key\"", &format!("decision=\"{decision}\"")])
    };
    assert_eq!((decided("admitted") as u64, decided("refused") as u64), (3, 3));
}

#[test]
fn an_array_is_answered_in_its_order_each_question_for_itself() {
    let (gateway, asked) = gateway("routes = [\"api\"]", LIMITS);
    let answers = ask(
        asked,
        &json!([
            { "limit": "per-key", "key": "b", "cost": 2 },
            { "limit": "none", "key": "b" },
            { "limit": "per-key", "key": "b", "cost": 4 },
            { "limit": "per-key" },
            { "limit": "at-once", "key": "192.0.2.7" },
            { "limit": "tried", "key": "192.0.2.9" },
            { "limit": "tried", "key": "192.0.2.9" },
            { "limit": "tried", "key": "x" },
            7,
            about_request("/none", "b"),
            about_request("/slow", "b"),
            about_request("/api/%zz", "b"),
            { "limit": "per-key", "key": "b", "peek": true },
            { "limit": "per-key", "key": "b" },
            { "limit": "per-key", "key": "b", "peek": true },
        ]),
    );
    Document::of(&gateway).check(
        "POST",
        "/v1/check",
        &post(asked, &json!([about_key("none", "a"), about_key("tried", "::1")]).to_string()),
    );
    Document::of(&gateway).check("POST", "/v1/check", &post(asked, &about_key("per-key", "doc").to_string()));
    Document::of(&gateway).check("POST", "/v1/check", &post(asked, "{}"));
    let statuses: Vec<u64> =
        answers.as_array().unwrap().iter().map(|own| own["status"].as_u64().unwrap_or(200)).collect();
    assert_eq!(statuses, [200, 404, 200, 400, 404, 200, 200, 400, 400, 404, 404, 400, 200, 200, 200], "{answers}");
    let details: Vec<&str> = answers.as_array().unwrap().iter().filter_map(|own| own["detail"].as_str()).collect();
    for (detail, told) in details.iter().zip([
        "There is no limit \"none\"",
        "the key has one part, and there are 0 values",
        "is of \"concurrency\": it needs the request itself",
        "is no address",
        "This is no question",
        "No route takes",
        "not decided here",
        "percent",
    ]) {
        assert!(detail.contains(told), "{told}: {detail}");
    }
    assert_eq!(told(&answers[2]), (Some(false), Some("per-key"), Some(1), Some(3)));
    assert!(answers[2]["retry_after_ms"].is_null(), "it can never pass: {}", answers[2]);
    assert_eq!(
        (&answers[5]["shadow"], &answers[6]["shadow"], &answers[6]["allowed"]),
        (&json!(false), &json!(true), &json!(true))
    );
    assert_eq!(told(&answers[12]), (Some(true), Some("per-key"), Some(1), Some(3)), "a peek is before");
    assert_eq!(told(&answers[14]), (Some(false), Some("per-key"), Some(0), Some(3)));
    assert_eq!((outcomes(&gateway, "invalid"), outcomes(&gateway, "undecided")), (5, 5));
    assert_eq!(ask(asked, &json!([])), json!([]));
}

#[test]
fn a_peek_at_a_request_counts_nothing_and_says_the_same() {
    let (gateway, asked) = gateway("", LIMITS);
    let mut peek = about_request("/api", "p");
    peek["peek"] = json!(true);
    for left in [3, 3] {
        assert_eq!(told(&ask(asked, &peek)), (Some(true), Some("per-key"), Some(left), Some(3)));
    }
    for _ in 0..3 {
        assert_eq!(ask(asked, &about_request("/api", "p"))["allowed"], json!(true));
    }
    let peeked = ask(asked, &peek);
    assert_eq!(told(&peeked), (Some(false), Some("per-key"), Some(0), Some(3)));
    assert!(peeked["retry_after_ms"].is_u64() && peeked["shadow"] == json!(true), "{peeked}");
    for (url, status) in [("/none", 404), ("/api/%zz", 400), ("/slow", 404)] {
        peek["request"]["url"] = json!(url);
        assert_eq!(post(asked, &peek.to_string()).status, status, "{url}");
    }
    let key = gateway.metric("sluicegate_limit_decisions_total", &["limit=\"per-key\"", "decision=\"admitted\""]);
    assert_eq!(key as u64, 3);
}

#[test]
fn a_body_that_holds_no_questions_is_answered_and_the_next_one_is_served() {
    let (gateway, asked) = gateway("", LIMITS);
    let json = [("Content-Type", "application/json")];
    let mut client = Client::connect(asked);
    let mut status = |method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]| {
        client.request(method, target, headers, body).status
    };
    assert_eq!(status("POST", "/v1/check", &json, b"{"), 400);
    assert_eq!(status("POST", "/v1/check", &[], b"{}"), 415);
    assert_eq!(status("POST", "/v1/check", &[("Content-Type", "text/json")], b"{}"), 415);
    assert_eq!(status("POST", "/", &json, b"{}"), 404);
    assert_eq!(status("PUT", "/v1/check", &json, b"{}"), 405);
    assert_eq!(status("GET", "/v1/check", &[], b""), 405);
    assert_eq!(status("GET", "/healthz", &[], b""), 200);
    let typed = [("Content-Type", "application/json; charset=utf-8")];
    assert_eq!(status("POST", "/v1/check", &typed, about_key("per-key", "a").to_string().as_bytes()), 200);
    let many = json!(vec![about_key("per-key", "m"); 257]).to_string();
    assert_eq!(status("POST", "/v1/check", &json, many.as_bytes()), 400);
    assert_eq!(outcomes(&gateway, "invalid"), 7);
    // A mebibyte is read, and one byte more is not.
    let padded = |size: usize| {
        let question = about_key("per-key", "m").to_string();
        let blanks = " ".repeat(size - question.len());
        question + &blanks
    };
    assert_eq!(post(asked, &padded(1 << 20)).status, 200);
    assert_eq!(post(asked, &padded((1 << 20) + 1)).status, 413);
    let mut chunked = Wire::with(
        asked,
        "POST /v1/check HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
    );
    chunked.send(format!("{:x}\r\n{}\r\n0\r\n\r\n", (1 << 20) + 1, padded((1 << 20) + 1)));
    assert_eq!(chunked.answer().status(), 413);
    let question = about_key("per-key", "slow").to_string();
    let mut slow = Wire::with(
        asked,
        format!(
            "POST /v1/check HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n\
             Content-Length: {}\r\n\r\n",
            question.len()
        ),
    );
    assert_eq!(slow.head().unwrap().status(), 100);
    for byte in question.bytes() {
        slow.send([byte]);
    }
    assert_eq!(slow.answer().status(), 200);
}

#[test]
fn a_question_is_asked_when_its_body_has_come() {
    let (_gateway, asked) = gateway("", LIMITS);
    let question = about_key("per-key", "late").to_string();
    let mut wire = Wire::with(
        asked,
        format!(
            "POST /v1/check HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            question.len()
        ),
    );
    // As long as a slot of this limit, and more: what is counted at the head would leave with it.
    std::thread::sleep(Duration::from_secs(2));
    wire.send(question);
    let answer: Value = serde_json::from_slice(&wire.answer().body).unwrap();
    let next = ask(asked, &about_key("per-key", "late"));
    let reset = |answer: &Value| answer["reset_ms"].as_u64().unwrap();
    assert!(reset(&answer).abs_diff(reset(&next)) < 1_800, "{answer} {next}");
}

#[test]
fn only_peers_that_are_allowed_may_ask() {
    let (gateway, asked) = gateway("allow = [\"192.0.2.0/24\"]", LIMITS);
    for _ in 0..5 {
        let answer = post(asked, &about_key("per-key", "a").to_string());
        assert!(answer.status == 403 && answer.text().contains("may not ask"), "{}", answer.text());
    }
    assert_eq!(outcomes(&gateway, "not-allowed"), 5);
    assert_eq!(gateway.metric("sluicegate_limit_keys", &["limit=\"per-key\""]) as u64, 0);
}

#[test]
fn limits_alone_are_a_file() {
    let gateway = Gateway::start_whole(
        "[[listener]]\naddress = \"127.0.0.1:0\"\ndecides = \"json\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
         [[limit]]\nname = \"all\"\nkey = \"global\"\nrate = \"2/1h\"\n",
    );
    let answers: Vec<_> =
        (0..3).map(|_| ask(gateway.address(), &json!({ "limit": "all" }))["allowed"].clone()).collect();
    assert_eq!(answers, [true, true, false]);
    assert!(!gateway.log().contains("no route uses"), "{}", gateway.log());
    assert_eq!(post(gateway.address(), &about_request("/", "a").to_string()).status, 404);
}

#[test]
fn exceptions_of_keys_and_penalties_hold_for_questions() {
    let limits = LIMITS.replacen(
        "rate = \"3/1h\"",
        "rate = \"3/1h\"\npenalty = { after = 2, within = \"1m\", block = \"1h\" }",
        1,
    );
    let (gateway, asked) = gateway("", &limits);
    let body = "{\"reason\":\"abuse\"}";
    assert_eq!(gateway.tell_admin("PUT", "/api/v1/limits/per-key/keys/bad/block", body).status, 200);
    let blocked = ask(asked, &about_key("per-key", "bad"));
    assert_eq!(told(&blocked), (Some(false), Some("per-key"), None, None));
    assert!(blocked["retry_after_ms"].is_null(), "a block without an end: {blocked}");
    let numbers = "{\"rates\":[\"1/1h\"]}";
    assert_eq!(gateway.tell_admin("PUT", "/api/v1/limits/per-key/keys/own/override", numbers).status, 200);
    let own: Vec<_> = (0..2).map(|_| told(&ask(asked, &about_key("per-key", "own"))).0).collect();
    assert_eq!(own, [Some(true), Some(false)]);
    let hot: Vec<_> = (0..6).map(|_| ask(asked, &about_key("per-key", "hot"))).collect();
    assert_eq!(
        hot.iter().map(|own| own["allowed"] == true).collect::<Vec<_>>(),
        [true, true, true, false, false, false]
    );
    assert_eq!(
        gateway.metric("sluicegate_limit_decisions_total", &["limit=\"per-key\"", "decision=\"blocked\""]) as u64,
        2
    );
}

#[test]
fn log_and_dead_letters_have_what_was_asked_about() {
    let (gateway, asked) =
        gateway("", &format!("{LIMITS}[log]\naccess = \"json\"\n[dead_letter]\ndirectory = \"dead-letters\"\n"));
    let questions: Vec<_> = (0..4).map(|_| about_request("http://h/api?x=1", "secret")).collect();
    let answers = ask(asked, &json!(questions));
    assert_eq!(answers[3]["allowed"], json!(false));
    assert!(eventually(|| gateway.access_log().len() == 5));
    let lines = gateway.access_log();
    let about: Vec<_> =
        lines.iter().map(|line| (line["target"].as_str(), line["status"].as_u64(), line["client"].as_str())).collect();
    let of_request = |status| (Some("/api?x=1"), Some(status), Some("192.0.2.7"));
    let expected = [
        of_request(200),
        of_request(200),
        of_request(200),
        of_request(429),
        (Some("/v1/check"), Some(200), Some("::1")),
    ];
    assert_eq!(about, expected);
    assert!(lines.iter().all(|line| line["asked_by"] == "[::1]:0"), "{lines:?}");
    assert!(eventually(|| gateway.dead_letters().iter().any(|letter| letter["limit"] == "per-key")));
    let letters = gateway.dead_letters();
    let letter = letters.iter().find(|letter| letter["limit"] == "per-key").unwrap();
    assert_eq!(
        (&letter["asked"], &letter["path"], &letter["client_ip"]),
        (&json!(true), &json!("/api"), &json!("192.0.2.7"))
    );
    assert!(!letters.iter().any(|letter| letter.to_string().contains("secret")));
}

#[test]
fn strict_limits_ask_their_store_for_each_question_of_an_array() {
    let store = Store::start();
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("fleet.key"), "0123456789abcdef".repeat(4)).unwrap();
    let gateway = Gateway::start_in(
        directory,
        &format!(
            "{FRAME}[[listener]]\naddress = \"[::1]:0\"\ndecides = \"json\"\n\
             [fleet]\nstore = \"redis://{}\"\nsecret_file = \"fleet.key\"\ndeadline = \"1s\"\non_failure = \"closed\"\n\
             [[limit]]\nname = \"per-key\"\nkey = \"header:x-key\"\nrate = \"30/1h\"\nalgorithm = \"fixed-window\"\n\
             align = \"first\"\nshared = \"strict\"\n\
             [[route]]\nname = \"api\"\nlimits = [\"per-key\"]\nrespond = {{}}\n",
            store.address()
        ),
    );
    let asked = gateway.addresses[1];
    assert!(eventually(|| ask(asked, &about_key("per-key", "first"))["remaining"].is_u64()));
    let questions: Vec<_> =
        (0..80).map(|place| if place % 2 == 0 { about_key("per-key", "a") } else { about_request("/", "a") }).collect();
    let answers = ask(asked, &json!(questions));
    let allowed = answers.as_array().unwrap().iter().filter(|answer| answer["allowed"] == true).count();
    assert_eq!(allowed, 30, "{answers}");
    assert!(answers.as_array().unwrap().iter().all(|answer| answer["limit"] == "per-key"), "{answers}");
    assert_eq!(post(asked, &json!({ "limit": "per-key", "key": "n", "peek": true }).to_string()).status, 404);
    drop(store);
    assert!(eventually(|| gateway.log().contains("fleet store lost")));
    let answers = ask(asked, &json!([about_key("per-key", "z"), about_request("/", "z")]));
    for answer in answers.as_array().unwrap() {
        assert_eq!(answer["status"], json!(503), "{answer}");
        assert!(answer["detail"].as_str().unwrap().contains("its store does not answer"), "{answer}");
    }
}

#[test]
fn ten_thousand_keys_take_the_memory_that_requests_take() {
    let (gateway, asked) = gateway("", LIMITS);
    let many = |asker: usize, from: usize| {
        let questions: Vec<_> =
            (from..from + 250).map(|key| about_key("per-key", &format!("{asker}-{key:05}"))).collect();
        ask(asked, &json!(questions));
    };
    many(0, 0);
    let before = gateway.resident();
    (0..40).for_each(|batch| many(1, batch * 250));
    let by_arrays = gateway.resident().saturating_sub(before);
    let mut client = Client::connect(gateway.address());
    for key in 0..10_000 {
        client.request("GET", "/api", &[("X-Key", &format!("2-{key:05}"))], b"");
    }
    let by_requests = gateway.resident().saturating_sub(before).saturating_sub(by_arrays);
    assert_eq!(gateway.metric("sluicegate_limit_keys", &["limit=\"per-key\""]) as u64, 20_250);
    assert!(by_arrays <= by_requests + (4 << 20), "{by_arrays} bytes by arrays, {by_requests} by requests");
}

const UNIX: &str = "[[listener]]\naddress = \"unix:check.sock\"\ndecides = \"json\"\n";

#[test]
fn a_unix_socket_is_asked_by_whom_its_file_lets_in_and_goes_with_its_listener() {
    let mut gateway = Gateway::start(&format!("{UNIX}{LIMITS}[log]\naccess = \"json\"\n"));
    let socket = gateway.directory.path().join("check.sock");
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o660);
    let question = about_key("per-key", "u").to_string();
    for left in [2, 1] {
        let answer = post_unix(&socket, &question);
        assert_eq!((answer.status, told(&answer.json()).2), (200, Some(left)));
    }
    assert_eq!(get_with(gateway.address(), "/api", &[("X-Key", "u")]).status, 200);
    assert_eq!(told(&post_unix(&socket, &question).json()).0, Some(false));
    assert!(eventually(|| gateway.access_log().len() == 4));
    let name = format!("unix:{}", socket.display());
    let lines = gateway.access_log();
    assert_eq!(lines.iter().filter(|line| line["asked_by"] == name.as_str()).count(), 3, "{lines:?}");
    let other = UNIX.replace("decides", "socket_group = \"daemon\"\ndecides");
    assert_eq!(gateway.reload(&format!("{other}{LIMITS}")).status, 200);
    let group = || std::fs::metadata(&socket).unwrap().gid();
    // Only root gives files away.
    if rustix::process::geteuid().is_root() {
        assert!(eventually(|| group() == 1), "Debian's number of this group");
    }
    assert_eq!(gateway.reload(LIMITS).status, 200);
    assert!(eventually(|| !socket.exists()));
    assert_eq!(gateway.reload(&format!("{UNIX}{LIMITS}")).status, 200);
    assert_eq!(told(&post_unix(&socket, &question).json()).0, Some(false), "counts stay");
    gateway.signal("TERM");
    gateway.wait_exit();
    assert!(!socket.exists());
}

#[test]
fn a_unix_socket_is_there_all_the_time_of_an_upgrade() {
    let mut gateway = Gateway::start(&format!("{UNIX}{LIMITS}"));
    let socket = gateway.directory.path().join("check.sock");
    let stop = Arc::new(AtomicBool::new(false));
    let asker = std::thread::spawn({
        let (socket, stop) = (socket.clone(), Arc::clone(&stop));
        move || {
            let mut asked = 0;
            while !stop.load(Ordering::Relaxed) {
                assert_eq!(post_unix(&socket, &about_key("per-key", &format!("k{asked}")).to_string()).status, 200);
                asked += 1;
            }
            asked
        }
    });
    let old = gateway.pid();
    gateway.upgrade();
    assert_ne!(gateway.serving(), old);
    gateway.wait_alone();
    assert_eq!(post_unix(&socket, &about_key("per-key", "after").to_string()).status, 200);
    stop.store(true, Ordering::Relaxed);
    assert!(asker.join().unwrap() > 0);
    assert!(socket.exists());
}
