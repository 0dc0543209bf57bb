//! Listeners that decide for other proxies: `decides = "auth"`.

use std::net::SocketAddr;

use crate::h2::peer;
use crate::support::{Client, FRAME, Gateway, eventually, run};
use crate::wire::{Message, Wire};

const LIMITS: &str = "[[limit]]\nname = \"per-client\"\nkey = \"client-ip\"\nrate = \"3/1h\"\n\
                      [[route]]\nname = \"api\"\npath = \"/api\"\nlimits = [\"per-client\"]\nrespond = { body = \"api\" }\n\
                      [[route]]\nname = \"other\"\nlimits = [\"per-client\"]\nrespond = {}\n";

/// A listener that decides, with these keys, and all other sections.
fn rules(keys: &str, sections: &str) -> String {
    format!("[[listener]]\naddress = \"[::1]:0\"\ndecides = \"auth\"\ndescribed_by = \"forwarded\"\n{keys}\n{sections}")
}

/// A gateway that proxies at one listener, and decides at another.
fn gateway(keys: &str, sections: &str) -> (Gateway, SocketAddr) {
    let gateway = Gateway::start(&rules(keys, sections));
    let asked = gateway.addresses[1];
    (gateway, asked)
}

/// A question about a request of this client.
fn question(client: &str, method: &str, target: &str) -> String {
    format!(
        "GET / HTTP/1.1\r\nHost: h\r\nX-Forwarded-Method: {method}\r\nX-Forwarded-Uri: {target}\r\n\
         X-Forwarded-For: {client}\r\nX-Forwarded-Proto: http\r\n\r\n"
    )
}

fn ask(address: SocketAddr, question: &str) -> Message {
    Wire::with(address, question).answer()
}

fn answers(gateway: &Gateway, outcome: &str) -> u64 {
    gateway.metric("sluicegate_decisions_asked_total", &["kind=\"auth\"", &format!("outcome=\"{outcome}\"")]) as u64
}

#[test]
fn questions_and_requests_are_counted_by_the_same_limit() {
    let (gateway, asked) = gateway("", LIMITS);
    let about = question("127.0.0.1", "GET", "/api/x");
    let first = ask(asked, &about);
    assert_eq!((first.status(), first.header("ratelimit").map(|left| left.contains("r=2"))), (200, Some(true)));
    assert!(first.body.is_empty() && first.header("x-sluicegate-limit").is_none());
    assert_eq!(Client::connect(gateway.address()).get("/api").status, 200);
    assert_eq!(ask(asked, &about).status(), 200);
    let refused = ask(asked, &about);
    assert_eq!((refused.status(), refused.header("x-sluicegate-limit")), (429, Some("per-client")));
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=3_600).contains(&wait) && refused.text().contains("\"violated-policies\":[\"per-client\"]"));
    assert_eq!(Client::connect(gateway.address()).get("/api").status, 429);
    assert_eq!(ask(asked, &question("192.0.2.7", "GET", "/api/x")).status(), 200, "another client");
    assert_eq!((answers(&gateway, "allowed"), answers(&gateway, "refused")), (3, 1));
    assert_eq!(ask(gateway.address(), &about).status(), 429, "where requests are proxied the fields say nothing");
}

#[test]
fn questions_that_are_none_and_requests_that_are_not_decided_count_nothing() {
    let limits = format!(
        "{LIMITS}[[limit]]\nname = \"at-once\"\nkey = \"client-ip\"\nalgorithm = \"concurrency\"\nmax_in_flight = 9\n\
         [[route]]\nname = \"slow\"\npath = \"/slow\"\nlimits = [\"per-client\", \"at-once\"]\nrespond = {{}}\n"
    );
    let (gateway, asked) = gateway("routes = [\"api\"]", &limits);
    let about = question("192.0.2.7", "GET", "/api");
    let with = |from: &str, to: &str| about.replace(from, to);
    for (question, status, told) in [
        (with("X-Forwarded-Method: GET\r\n", ""), 400, "lacks x-forwarded-method"),
        (with("\r\n\r\n", "\r\nX-Forwarded-For: 192.0.2.8\r\n\r\n"), 400, "x-forwarded-for twice"),
        (with("/api", "/api b"), 400, "a blank"),
        (with("/api", "api"), 400, "begin with a slash"),
        (with("Method: GET", "Method: G@T"), 400, "The described request is none"),
        (with("Method: GET", "Method: get"), 400, "small letter"),
        (with("/api", "/api/%zz"), 400, "percent"),
        (with("/api", "/else"), 404, "not decided here"),
        (with("/api", "/slow"), 404, "not decided here"),
        (with("\r\n\r\n", "\r\nContent-Length: 2\r\n\r\nab"), 400, "has no body"),
    ] {
        let answer = ask(asked, &question);
        let text = answer.text();
        assert!(answer.status() == status && text.to_lowercase().contains(&told.to_lowercase()), "{question}: {text}");
    }
    assert_eq!((answers(&gateway, "invalid"), answers(&gateway, "undecided")), (8, 2));
    assert!(ask(asked, &about).header("ratelimit").unwrap().contains("r=2"), "nothing was counted before");
}

#[test]
fn a_route_whose_plans_have_requests_wait_is_not_decided() {
    let directory = tempfile::tempdir().unwrap();
    let plans = |wait: &str| {
        format!(
            "default = \"free\"\n[plan.free]\n[plan.pro]\nper-client = {{ rate = \"9/1h\"{wait} }}\n[keys]\na = \"pro\"\n"
        )
    };
    std::fs::write(directory.path().join("plans.toml"), plans("")).unwrap();
    let with_plans =
        LIMITS.replacen("respond", "plans = { file = \"plans.toml\", key = \"header:x-key\" }\nrespond", 1);
    let gateway = Gateway::start_in(directory, &format!("{FRAME}{}", rules("", &with_plans)));
    let status = || ask(gateway.addresses[1], &question("192.0.2.7", "GET", "/api")).status();
    assert_eq!(status(), 200);
    std::fs::write(gateway.directory.path().join("plans.toml"), plans(", max_wait = \"1s\"")).unwrap();
    assert!(eventually(|| status() == 404));
}

#[test]
fn a_connection_carries_questions_of_any_method_one_after_the_other() {
    let (_gateway, asked) = gateway("", LIMITS);
    let mut wire = Wire::open(asked);
    let of = |client: &str, method: &str, by: &str| {
        question(client, method, "/api").replacen("GET /", &format!("{by} /"), 1)
    };
    // Some at once, then one by one; the second and the third are refused, and bodies belong to what was asked by GET.
    let about = ["GET", "HEAD", "POST"].map(|method| of("192.0.2.7", method, "GET")).concat();
    wire.send(about.clone() + &question("192.0.2.7", "GET", "/api/%zz") + &about);
    for (status, has_body) in
        [(200, false), (200, false), (200, false), (400, true), (429, true), (429, false), (429, true)]
    {
        let answer = wire.answer();
        assert_eq!((answer.status(), !answer.body.is_empty()), (status, has_body));
    }
    wire.send(of("192.0.2.7", "GET", "HEAD"));
    assert_eq!(wire.answer_to("HEAD").status(), 429);
    wire.send(of("192.0.2.7", "HEAD", "HEAD"));
    assert_eq!(wire.answer_to("HEAD").status(), 429);
    wire.send(of("192.0.2.8", "OPTIONS", "GET"));
    assert_eq!(wire.answer().status(), 200);
    wire.send(of("192.0.2.8", "GET", "GET").replacen("HTTP/1.1", "HTTP/1.0", 1));
    let last = wire.answer();
    assert!(last.status() == 200 && last.closes());
    wire.assert_ended();
}

#[test]
fn a_refusal_has_the_status_that_the_asking_proxy_knows_and_drops_nothing() {
    let limits = LIMITS.replace("path = \"/api\"", "path = \"/api\"\non_limit = \"drop\"").replace("3/1h", "1/1h");
    let (_gateway, asked) = gateway("deny_status = 403", &limits);
    let about = question("192.0.2.7", "GET", "/api");
    assert_eq!(ask(asked, &about).status(), 200);
    let refused = ask(asked, &about);
    assert_eq!((refused.status(), refused.header("x-sluicegate-limit")), (403, Some("per-client")));
}

#[test]
fn only_peers_that_are_allowed_may_ask_and_health_is_open() {
    let (gateway, asked) = gateway("allow = [\"192.0.2.0/24\"]", LIMITS);
    let about = question("192.0.2.7", "GET", "/api");
    for _ in 0..5 {
        assert_eq!(ask(asked, &about).status(), 403);
    }
    assert_eq!((answers(&gateway, "not-allowed"), answers(&gateway, "allowed")), (5, 0));
    let of_client = about.replacen("GET /", "GET /healthz", 1);
    assert_eq!(ask(asked, &of_client).status(), 403, "that the client has sent");
    let health = Wire::open(asked).get("/healthz");
    assert_eq!((health.status(), health.text()), (200, "ok\n".to_owned()));
    assert_eq!(Client::connect(gateway.address()).get("/healthz").header("ratelimit").unwrap().split(";r=").count(), 2);
}

#[test]
fn bounds_of_a_client_are_of_the_one_that_is_described() {
    let client = "[client]\ndeny = [\"192.0.2.66\", \"::1\"]\nmax_connections = 1\nconnection_rate = \"1/1h\"\n";
    let (gateway, asked) = gateway("", &format!("{client}{LIMITS}"));
    let mut wires: Vec<_> = (0..5).map(|_| Wire::open(asked)).collect();
    for wire in &mut wires {
        wire.send(question("192.0.2.66", "GET", "/api"));
        let answer = wire.answer();
        assert!(answer.status() == 403 && answer.text().contains("denied"), "{}", answer.text());
        wire.send(question("192.0.2.7", "GET", "/none/of/it"));
        assert!([200, 429].contains(&wire.answer().status()));
    }
    assert_eq!((answers(&gateway, "denied"), answers(&gateway, "allowed")), (5, 3));
}

#[test]
fn logs_and_dead_letters_tell_that_a_request_was_asked_about() {
    let log = "[log]\naccess = \"json\"\n[dead_letter]\ndirectory = \"dead-letters\"\n";
    let (gateway, asked) = gateway("", &format!("{log}{}", LIMITS.replace("3/1h", "1/1h")));
    let about =
        question("192.0.2.7", "GET", "/api?token=pl4nted").replace("Forwarded-Proto: http", "Forwarded-Proto: https");
    assert_eq!([ask(asked, &about), ask(asked, &about)].map(|answer| answer.status()), [200, 429]);
    assert!(eventually(|| gateway.access_log().len() == 2));
    for line in gateway.access_log() {
        assert_eq!(
            (line["client"].as_str(), line["asked_by"].as_str()),
            (Some("192.0.2.7"), Some("[::1]:0")),
            "{line}"
        );
        assert_eq!((line["method"].as_str(), line["route"].as_str()), (Some("GET"), Some("api")));
    }
    assert!(eventually(|| gateway.dead_letters().len() == 1));
    let letter = &gateway.dead_letters()[0];
    assert_eq!((letter["asked"].as_bool(), letter["scheme"].as_str()), (Some(true), Some("https")), "{letter}");
    assert!(!letter.to_string().contains("pl4nted"), "{letter}");
    let to = format!("http://{}", gateway.address());
    let (_, told, error) = run(
        &["dead-letters", "replay", "--to", &to, "--reason", "rate-limited", "--without-redacted"],
        gateway.directory.path(),
    );
    assert!(told.contains("another proxy has the request"), "{told}{error}");
}

#[test]
fn a_reload_holds_for_connections_that_are_open() {
    let (gateway, asked) = gateway("routes = [\"api\"]", LIMITS);
    let mut wire = Wire::open(asked);
    let mut status = |target: &str| {
        wire.send(question("192.0.2.7", "GET", target));
        wire.answer().status()
    };
    assert_eq!([status("/api"), status("/else")], [200, 404]);
    let text = rules("routes = [\"other\"]", LIMITS);
    assert_eq!(gateway.reload(&text).status, 200);
    assert_eq!([status("/api"), status("/else")], [404, 200]);
}

#[test]
fn http2_asks_like_http1_and_a_refused_call_of_grpc_is_no_success() {
    let (_gateway, asked) = gateway("", &LIMITS.replace("3/1h", "2/1h"));
    peer::run(async {
        let sender = peer::connect(asked).await;
        let fields = [
            ("x-forwarded-method", "POST"),
            ("x-forwarded-uri", "/api"),
            ("x-forwarded-for", "192.0.2.7"),
            ("content-type", "application/grpc"),
        ];
        let mut statuses = Vec::new();
        for _ in 0..3 {
            statuses.push(peer::ask(&sender, peer::request("GET", "/", &fields)).await.unwrap().status);
        }
        assert_eq!(statuses, [200, 200, 429]);
    });
}

#[test]
fn the_holder_of_the_token_is_told_why_a_request_that_was_asked_about_is_refused() {
    // Of the text `a token of an operator`.
    let hash = "bff9682f4d11df0cbfdd82bed8dd589ffacd8e6da29e3b0cd97db9f7fa942ba0";
    let admin = format!("[admin]\naddress = \"127.0.0.1:0\"\nexplain_sha256 = \"{hash}\"\n");
    let front = "[[listener]]\naddress = \"127.0.0.1:0\"\n";
    let text = format!("{admin}{front}{}", rules("", &LIMITS.replace("3/1h", "1/1h")));
    let gateway = Gateway::start_whole(&text);
    let told = |token: &str| {
        let about = question("192.0.2.7", "GET", "/api").replacen(
            "\r\n\r\n",
            &format!("\r\nX-Sluicegate-Explain: {token}\r\n\r\n"),
            1,
        );
        ask(gateway.addresses[1], &about).header("x-sluicegate-explanation").map(str::to_owned)
    };
    for begins in ["admitted; route api; per-client: 0 of 1 in 1h left", "refused by per-client; route api; "] {
        let told = told("a token of an operator").unwrap();
        assert!(told.starts_with(begins), "{told}");
    }
    assert_eq!(told("another one"), None);
}
