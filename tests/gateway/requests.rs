//! Requests in flight: listed with where they are, and cancelled, in every phase and in both protocols.

use std::net::TcpStream;

use futures_util::StreamExt;
use serde_json::Value;

use crate::administering::Document;
use crate::h2::frames::{Ending, Raw};
use crate::support::wire::{Wire, get, ok};
use crate::support::{Answer, Backend, Client, Gateway, eventually, run};
use crate::websocket;

/// A server that never answers `/silent`, begins its answer to `/begun` and goes on with it no more, and answers others.
fn server() -> Backend {
    Backend::scripted(|wire, _| {
        while let Ok(request) = wire.request() {
            match request.target().split('?').next().unwrap() {
                "/silent" => {}
                "/begun" => drop(wire.send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")),
                _ => drop(wire.send(ok("done"))),
            }
        }
    })
}

fn front(server: &Backend, more: &str) -> Gateway {
    Gateway::start(&format!(
        "[server]\nworkers = 2\nresponse_timeout = \"none\"\n[log]\naccess = \"json\"\n[dead_letter]\n\
         [[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n[[route]]\nname = \"all\"\nupstream = \"app\"\n{more}",
        server.address
    ))
}

fn list(gateway: &Gateway, query: &str) -> Vec<Value> {
    let answer = gateway.ask_admin(&format!("/api/v1/requests{query}"));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer = answer.json();
    assert_eq!(answer["silent_workers"], serde_json::json!([]));
    answer["requests"].as_array().unwrap().clone()
}

/// Waits until so many requests are in this phase; the first one.
fn wait_phase(gateway: &Gateway, phase: &str, count: usize) -> Value {
    let mut seen = Vec::new();
    let is_so = eventually(|| {
        seen = list(gateway, &format!("?phase={phase}"));
        seen.len() == count
    });
    assert!(is_so, "{phase}: {seen:?}");
    seen.into_iter().next().unwrap_or_default()
}

fn cancel(gateway: &Gateway, seen: &Value) -> Answer {
    gateway.tell_admin("DELETE", &format!("/api/v1/requests/{}", seen["id"].as_str().unwrap()), "")
}

fn none_left(gateway: &Gateway) -> bool {
    eventually(|| list(gateway, "").is_empty())
}

#[test]
fn a_request_whose_server_is_silent_is_seen_and_cancelled() {
    let server = server();
    let gateway = front(&server, "");
    let document = Document::of(&gateway);
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.get("/other").status, 200);
    assert_eq!(list(&gateway, ""), Vec::<Value>::new(), "what is over is not in flight");
    client.send("GET", "/silent?secret=1", &[("Host", "a.example")], b"");
    let seen = wait_phase(&gateway, "sent", 1);
    document.check("GET", "/api/v1/requests", &gateway.ask_admin("/api/v1/requests"));
    for (name, value) in [
        ("client", "127.0.0.1"),
        ("method", "GET"),
        ("path", "/silent"),
        ("route", "all"),
        ("upstream", "app"),
        ("server", &server.address.to_string()),
        ("protocol", "HTTP/1.1"),
    ] {
        assert_eq!(seen[name], value, "{seen}");
    }
    let answer = cancel(&gateway, &seen);
    assert_eq!(answer.status, 200);
    document.check("DELETE", "/api/v1/requests/{request}", &answer);
    let answer = client.read_answer(false).unwrap();
    assert_eq!((answer.status, answer.header("connection")), (503, Some("close")));
    assert_eq!(answer.json()["detail"], "An operator cancelled the request.");
    assert_eq!(answer.header("x-request-id"), seen["request_id"].as_str());
    assert_eq!(cancel(&gateway, &seen).status, 404, "it has ended");
    gateway.wait_metric("sluicegate_requests_total", &["outcome=\"cancelled\""], 1.0);
    assert!(eventually(|| gateway.dead_letters().len() == 1));
    assert_eq!(gateway.dead_letters()[0]["reason"], "cancelled");
    assert!(eventually(|| gateway.access_log().iter().any(|line| line["outcome"] == "cancelled")));
    assert!(gateway.log().contains("DELETE /api/v1/requests/"), "a change has its line");
    assert!(none_left(&gateway));
    assert_eq!(Client::connect(gateway.address()).get("/other").status, 200);
}

#[test]
fn one_whose_answer_has_begun_is_cut_and_its_server_is_not_to_blame() {
    let server = server();
    let gateway = front(&server, "");
    let mut wire = Wire::with(gateway.address(), get("/begun"));
    let seen = wait_phase(&gateway, "answering", 1);
    assert_eq!(cancel(&gateway, &seen).status, 200);
    assert!(wire.response("GET").is_err(), "nobody takes it for all of the answer");
    assert_eq!(server.wait_closed(), 1, "the server need not go on");
    gateway.wait_metric("sluicegate_requests_total", &["outcome=\"cancelled\""], 1.0);
    let failed = &gateway.ask_admin("/api/v1/upstreams").json()["upstreams"][0]["servers"][0]["failed"];
    assert_eq!(failed, 0);
}

#[test]
fn one_that_waits_for_a_limit_gives_its_place_up() {
    let server = server();
    let limit = "limits = [\"one\"]\n[[limit]]\nname = \"one\"\nkey = \"global\"\nrate = \"1/1h\"\nmax_wait = \"1h\"\ntimeout = \"3h\"\n";
    let gateway = front(&server, limit);
    assert_eq!(Client::connect(gateway.address()).get("/").status, 200);
    let mut client = Client::connect(gateway.address());
    client.send("GET", "/wait", &[], b"");
    let seen = wait_phase(&gateway, "waiting", 1);
    assert_eq!((&seen["upstream"], &seen["server"]), (&Value::Null, &Value::Null));
    assert_eq!(cancel(&gateway, &seen).status, 200);
    assert_eq!(client.read_answer(false).unwrap().status, 503);
    gateway.wait_metric("sluicegate_limit_waiting", &[], 0.0);
    gateway.wait_metric("sluicegate_limit_decisions_total", &["decision=\"cancelled\""], 1.0);
    assert!(none_left(&gateway));
}

#[test]
fn one_that_waits_for_a_connection_is_cancelled_too() {
    let server = server();
    let place = "[[upstream]]\nname = \"one\"\nmax_in_flight = 1\nmax_pending = 5\npending_timeout = \"60s\"\n";
    let gateway = front(&server, "").kill();
    let text = format!(
        "{}{place}servers = [\"{}\"]\n[[route]]\nname = \"all\"\nupstream = \"one\"\n",
        crate::support::FRAME,
        server.address
    );
    let gateway = Gateway::start_in(gateway, &text);
    let mut first = Client::connect(gateway.address());
    first.send("GET", "/silent", &[], b"");
    wait_phase(&gateway, "sent", 1);
    let mut second = Client::connect(gateway.address());
    second.send("GET", "/silent", &[], b"");
    let seen = wait_phase(&gateway, "connecting", 1);
    assert_eq!(seen["upstream"], "one");
    assert_eq!(cancel(&gateway, &seen).status, 200);
    assert_eq!(second.read_answer(false).unwrap().status, 503);
    assert_eq!(list(&gateway, "").len(), 1, "the other one goes on");
}

#[test]
fn a_stream_is_cancelled_and_its_neighbours_go_on() {
    let server = server();
    let gateway = front(&server, "");
    let mut raw = Raw::open(gateway.address());
    let (begun, silent, other) = (raw.get("/begun"), raw.get("/silent"), raw.get("/silent"));
    let answering = wait_phase(&gateway, "answering", 1);
    wait_phase(&gateway, "sent", 2);
    assert_eq!(answering["protocol"], "HTTP/2.0");
    assert_eq!(cancel(&gateway, &answering).status, 200);
    assert!(matches!(raw.ending(begun), Ending::Reset(_)));
    // The first that came is the oldest.
    let seen = wait_phase(&gateway, "sent", 2);
    assert_eq!(cancel(&gateway, &seen).status, 200);
    assert!(matches!(raw.ending(silent), Ending::Answered(503, _)));
    assert!(raw.is_open(other));
    assert_eq!(raw.ask("/other").0, 200);
    assert_eq!(list(&gateway, "").len(), 1);
}

#[test]
fn a_websocket_is_told_that_it_ends() {
    let gateway = Gateway::start(&format!(
        "[[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n[[route]]\nname = \"all\"\nupstream = \"app\"\n",
        websocket::start_server()
    ));
    let runtime = websocket::runtime();
    let address = gateway.address();
    let mut socket = runtime.block_on(async {
        let (mut socket, _) = tokio_tungstenite::connect_async(format!("ws://{address}/chat")).await.unwrap();
        assert!(socket.next().await.unwrap().unwrap().is_text());
        socket
    });
    let seen = wait_phase(&gateway, "tunnel", 1);
    assert_eq!((&seen["path"], cancel(&gateway, &seen).status), (&"/chat".into(), 200));
    let close = runtime.block_on(socket.next()).unwrap().unwrap();
    assert!(close.is_close(), "{close}");
    drop(socket);
    gateway.wait_metric("sluicegate_requests_total", &["outcome=\"cancelled\""], 1.0);
    assert!(none_left(&gateway));
}

#[test]
fn the_list_has_filters_pages_and_says_what_is_wrong_with_a_question() {
    let server = server();
    let gateway = front(&server, "[[route]]\nname = \"first\"\npath = \"/silent/a\"\nupstream = \"app\"\n");
    let clients: Vec<_> = (0..5).map(|_| Wire::with(gateway.address(), get("/silent"))).collect();
    wait_phase(&gateway, "sent", 5);
    assert_eq!((list(&gateway, "?route=all").len(), list(&gateway, "?route=first").len()), (5, 0));
    assert_eq!((list(&gateway, "?client=127.0.0.1").len(), list(&gateway, "?client=127.0.0.2").len()), (5, 0));
    assert_eq!((list(&gateway, "?min_age=0s").len(), list(&gateway, "?min_age=1h").len()), (5, 0));
    let (mut cursor, mut ids) = (String::new(), Vec::new());
    loop {
        let page = gateway.ask_admin(&format!("/api/v1/requests?max=2&cursor={cursor}")).json();
        let requests = page["requests"].as_array().unwrap();
        assert!((1..=2).contains(&requests.len()), "{page}");
        ids.extend(requests.iter().map(|seen| seen["id"].to_string()));
        let Some(next) = page["next"].as_str() else { break };
        cursor = next.to_owned();
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 5, "over both workers each is told once");
    for wrong in ["phase=asleep", "client=me", "max=0", "max=1001", "cursor=x", "cursor=1-2", "min_age=old"] {
        let answer = gateway.ask_admin(&format!("/api/v1/requests?{wrong}"));
        assert_eq!(answer.status, 400, "{wrong}");
        assert_eq!(answer.json()["parameter"], wrong.split('=').next().unwrap());
    }
    for id in ["x", "0", "0-", "0-99999", "7-1", "-1", "0-18446744073709551616"] {
        assert_eq!(gateway.tell_admin("DELETE", &format!("/api/v1/requests/{id}"), "").status, 404, "{id}");
    }
    drop(clients);
    assert!(none_left(&gateway), "whoever goes away is not in flight any more");
}

#[test]
fn the_command_lists_and_cancels_also_while_the_gateway_drains() {
    let server = server();
    let mut gateway = front(&server, "");
    let mut client = Client::connect(gateway.address());
    client.send("GET", "/silent", &[], b"");
    wait_phase(&gateway, "sent", 1);
    gateway.signal("TERM");
    assert!(eventually(|| TcpStream::connect(gateway.address()).is_err()), "its workers drain");
    let file = gateway.file();
    let directory = file.parent().unwrap();
    let admin = format!("http://{}", gateway.admin);
    let (status, out, error) = run(&["requests", "--admin", &admin, "--phase", "sent"], directory);
    assert!(status.success(), "{error}");
    let line = out.lines().nth(1).unwrap_or_else(|| panic!("{out}"));
    assert!(out.starts_with("ID") && line.contains("GET") && line.ends_with("/silent"), "{out}");
    let id = line.split_whitespace().next().unwrap();
    let (status, out, _) = run(&["requests", "cancel", id, "--admin", &admin], directory);
    assert_eq!((status.success(), out), (true, format!("{id} is cancelled\n")));
    assert_eq!(client.read_answer(false).unwrap().status, 503);
    assert!(gateway.wait_exit().success(), "nothing holds up the end any more");
    let (status, _, error) = run(&["requests", "cancel", id, "--admin", &admin], directory);
    assert!(!status.success() && error.starts_with("sluicegate: "), "{error}");
}
