//! Requests that fail are sent to another server: which, how often, and with what.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Answer, Backend, Client, FRAME, Gateway, eventually, unused_address, write_ok};
use crate::timing::{assert_lasted, best_of_three};
use crate::wire::Wire;

/// How a server behaves towards `GET` of `/` and everything else that is no `/fine`.
#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Works,
    Says503,
    Says500,
    /// It closes the connection in place of an answer.
    Closes,
    Babbles,
    /// It closes in the middle of a head.
    HalfAHead,
    /// It closes in the middle of a body.
    HalfABody,
    Hangs,
}

struct Server {
    backend: Backend,
    mode: Arc<AtomicU8>,
}

impl Server {
    fn start(name: &'static str, mode: Mode) -> Self {
        let mode = Arc::new(AtomicU8::new(mode as u8));
        let own = Arc::clone(&mode);
        let backend = Backend::start(move |_, stream| {
            let is = |mode: Mode| own.load(Ordering::SeqCst) == mode as u8;
            let text: &[u8] = match () {
                () if is(Mode::Says503) => b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy",
                () if is(Mode::Says500) => b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n",
                () if is(Mode::Babbles) => b"220 smtp.example ESMTP\r\n\r\n",
                () if is(Mode::HalfAHead) => b"HTTP/1.1 200 OK\r\nContent-Le",
                () if is(Mode::HalfABody) => b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",
                () if is(Mode::Works) => return write_ok(stream, name.as_bytes()),
                () => b"",
            };
            if is(Mode::Hangs) {
                thread::sleep(Duration::from_secs(3));
            }
            let is_whole = is(Mode::Says503) || is(Mode::Says500);
            stream.write_all(text).is_ok() && is_whole
        });
        Self { backend, mode }
    }

    fn address(&self) -> SocketAddr {
        self.backend.address
    }
}

/// A gateway of one worker that asks its servers in turn, the first one first.
fn start(servers: &[SocketAddr], more: &str) -> Gateway {
    let servers: Vec<_> = servers.iter().map(|address| format!("\"{address}\"")).collect();
    Gateway::start_whole(&format!(
        "[server]\nworkers = 1\n[[upstream]]\nname = \"app\"\nservers = [{}]\nbalance = \"round-robin\"\neject = \"off\"\n{more}\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\n[dead_letter]\n[log]\naccess = \"json\"\n{FRAME}",
        servers.join(", ")
    ))
}

fn ask(gateway: &Gateway, method: &str, body: &[u8]) -> Answer {
    Client::connect(gateway.address()).request(method, "/", &[("Connection", "close")], body)
}

/// The line of the last request in the access log.
fn logged(gateway: &Gateway, requests: usize) -> Value {
    assert!(eventually(|| gateway.access_log().len() == requests));
    gateway.access_log().pop().unwrap()
}

fn retries(gateway: &Gateway, cause: &str) -> f64 {
    gateway.metric("sluicegate_upstream_retries_total", &[&format!("cause=\"{cause}\"")])
}

#[test]
fn whatever_failed_before_a_byte_of_the_answer_is_tried_at_another_server() {
    for (mode, word, cause) in [
        (Mode::Says503, "503", "status"),
        (Mode::Closes, "reset", "reset"),
        (Mode::Babbles, "invalid", "invalid"),
        (Mode::HalfAHead, "invalid", "invalid"),
        (Mode::Hangs, "timeout", "timeout"),
    ] {
        let servers = [Server::start("a", mode), Server::start("b", Mode::Works)];
        let addresses = [0, 1].map(|place: usize| servers[place].address());
        let gateway = start(&addresses, "retry = { per_try = \"500ms\" }");
        let mut tried = 0;
        for request in 1..=4 {
            let answer = ask(&gateway, "GET", b"");
            assert_eq!((answer.status, &*answer.text()), (200, "b"), "{word}");
            let line = logged(&gateway, request);
            assert_eq!((&line["server"], &line["status"]), (&json!(addresses[1].to_string()), &json!(200)));
            if line.get("tries").is_some() {
                assert_eq!(line["tries"], json!([[addresses[0].to_string(), word]]));
                tried += 1;
            }
        }
        assert_eq!((tried, servers[0].backend.requests(), servers[1].backend.requests()), (2, 2, 4), "{word}");
        assert!((retries(&gateway, cause) - 2.0).abs() < 0.1);
    }
}

#[test]
fn other_failures_methods_and_answers_that_have_begun_are_not_tried_again() {
    for (mode, retry, method, status) in [
        (Mode::Says500, "{}", "GET", 500),
        (Mode::Says503, "{ on = [\"502\"] }", "GET", 503),
        (Mode::Closes, "{ on = [\"503\"] }", "GET", 502),
        (Mode::Says503, "{}", "POST", 503),
        (Mode::Closes, "{}", "POST", 502),
        (Mode::Says503, "{ methods = [\"POST\"] }", "GET", 503),
    ] {
        let servers = [Server::start("a", mode), Server::start("b", Mode::Works)];
        let gateway = start(&[servers[0].address(), servers[1].address()], &format!("retry = {retry}"));
        let statuses: Vec<_> = (0..2).map(|_| ask(&gateway, method, b"").status).collect();
        assert_eq!(statuses.iter().filter(|one| **one == status).count(), 1, "{retry} {method}: {statuses:?}");
        assert_eq!(servers[0].backend.requests() + servers[1].backend.requests(), 2);
    }
    let servers = [Server::start("a", Mode::HalfABody), Server::start("b", Mode::Works)];
    let gateway = start(&[servers[0].address(), servers[1].address()], "retry = {}");
    let answers: Vec<_> = (0..2)
        .map(|_| {
            Wire::with(gateway.address(), "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").response("GET")
        })
        .collect();
    assert_eq!(answers.iter().filter(|answer| answer.is_err()).count(), 1, "a half answer stays a half one");
}

#[test]
fn with_methods_a_post_is_tried_again_with_its_whole_body_up_to_64_kib() {
    let servers = [Server::start("a", Mode::Says503), Server::start("b", Mode::Works)];
    let addresses = [servers[0].address(), servers[1].address()];
    let gateway = start(&addresses, "retry = { methods = [\"POST\"] }");
    for length in [1, 10_000, 40_000, 65_536] {
        let body: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
        for _ in 0..2 {
            assert_eq!(ask(&gateway, "POST", &body).status, 200, "{length}");
        }
        let seen = servers[1].backend.seen.lock().unwrap();
        assert!(seen.iter().rev().take(2).all(|request| request.body == body), "{length} bytes, as they were sent");
        drop(seen);
        assert_eq!(servers[0].backend.seen.lock().unwrap().last().unwrap().body, body);
    }
    let body = vec![b'x'; 65_537 + 30_000];
    let statuses: Vec<_> = (0..2).map(|_| ask(&gateway, "POST", &body).status).collect();
    assert!(statuses.contains(&503) && statuses.contains(&200), "{statuses:?}: too large to be kept");
}

#[test]
fn a_body_that_comes_in_pieces_or_in_chunks_with_trailers_is_the_same_at_the_second_server() {
    let answering =
        |answer: &'static str| Backend::scripted(move |wire, _| while wire.request().is_ok() && wire.send(answer) {});
    let servers = [
        answering("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"),
        answering("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    ];
    let gateway = start(&[servers[0].address, servers[1].address], "retry = {}");
    for _ in 0..2 {
        let mut wire = Wire::with(
            gateway.address(),
            "PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n",
        );
        for piece in 0..8 {
            assert!(wire.send(format!("1000\r\n{}\r\n", char::from(b'a' + piece).to_string().repeat(0x1000))));
            thread::sleep(Duration::from_millis(10));
        }
        assert!(wire.send("0\r\nX-Sum: 7\r\n\r\nGET /next HTTP/1.1\r\nHost: x\r\n\r\n"));
        assert_eq!((wire.answer().status(), wire.answer().status()), (200, 200), "and the next request is whole");
    }
    let seen = servers[1].seen.lock().unwrap();
    let puts: Vec<_> = seen.iter().filter(|request| request.target() == "/").collect();
    let body: Vec<u8> = (0..8).flat_map(|piece| [b'a' + piece; 0x1000]).collect();
    assert!(
        puts.len() == 2
            && puts.iter().all(|request| request.body == body && request.trailers == [("x-sum".into(), "7".into())])
    );
}

#[test]
fn attempts_bound_the_tries_and_the_last_answer_is_the_clients() {
    let servers: Vec<_> = (0..4).map(|_| Server::start("x", Mode::Says503)).collect();
    let addresses: Vec<_> = servers.iter().map(Server::address).collect();
    let gateway = start(&addresses, "retry = { attempts = 3 }");
    let answer = ask(&gateway, "GET", b"");
    assert_eq!((answer.status, &*answer.text()), (503, "busy"));
    assert_eq!(logged(&gateway, 1)["tries"].as_array().unwrap().len(), 2);
    assert_eq!(servers.iter().map(|server| server.backend.requests()).collect::<Vec<_>>().iter().sum::<usize>(), 3);
    for server in &servers {
        server.mode.store(Mode::Closes as u8, Ordering::SeqCst);
    }
    assert_eq!(ask(&gateway, "GET", b"").status, 502);
    let line = logged(&gateway, 2);
    assert_eq!(line["tries"].as_array().unwrap().len(), 3, "the last one too: {line}");
    assert!(eventually(|| !gateway.dead_letters().is_empty()));
    let letter = gateway.dead_letters().pop().unwrap();
    assert_eq!(letter["tries"], line["tries"]);
}

#[test]
fn a_single_server_is_tried_again() {
    let server = Server::start("a", Mode::Works);
    let count = Arc::new(AtomicU8::new(0));
    let own = Arc::clone(&count);
    let flaky = Backend::start(move |_, stream| {
        let is_first = own.fetch_add(1, Ordering::SeqCst).is_multiple_of(2);
        if is_first { false } else { write_ok(stream, b"second") }
    });
    let gateway = start(&[flaky.address], "retry = {}");
    assert_eq!(ask(&gateway, "GET", b"").text(), "second");
    drop(server);
}

#[test]
fn connects_that_fail_are_tried_elsewhere_only_if_on_says_so() {
    let works = Server::start("a", Mode::Works);
    for (retry, statuses) in [("{}", [200, 200]), ("{ on = [\"503\"] }", [200, 502])] {
        let gateway = start(&[unused_address(), works.address()], &format!("retry = {retry}"));
        let mut all: Vec<_> = (0..2).map(|_| ask(&gateway, "POST", b"x").status).collect();
        all.sort_unstable();
        assert_eq!(all, statuses, "{retry}");
    }
}

#[test]
fn retries_never_exceed_the_budget() {
    let servers = [Server::start("a", Mode::Says503), Server::start("b", Mode::Says503)];
    let gateway = start(&[servers[0].address(), servers[1].address()], "retry = { budget = \"20%\" }");
    let mut client = Client::connect(gateway.address());
    let began = Instant::now();
    for _ in 0..200 {
        assert_eq!(client.get("/").status, 503);
    }
    let sent = servers[0].backend.requests() + servers[1].backend.requests();
    // A fifth of the requests so far and thirty in ten seconds; each one of them is a try at the most.
    let windows = began.elapsed().as_secs() as usize / 10 + 1;
    assert!((200 + 60..=200 + 40 + 30 * windows).contains(&sent), "{sent}");
    let refused = gateway.metric("sluicegate_upstream_retries_over_budget_total", &[]);
    assert!((retries(&gateway, "status") + refused - 200.0).abs() < 0.1);
}

#[test]
fn a_try_has_per_try_and_the_request_what_is_left() {
    best_of_three(|| {
        let servers = [Server::start("a", Mode::Hangs), Server::start("b", Mode::Hangs)];
        let gateway = start(&[servers[0].address(), servers[1].address()], "retry = { per_try = \"300ms\" }");
        let began = Instant::now();
        assert_eq!(ask(&gateway, "GET", b"").status, 504);
        assert_lasted(began.elapsed(), Duration::from_millis(600)..Duration::from_millis(1_500), "two tries");
        assert_eq!(logged(&gateway, 1)["tries"].as_array().unwrap().len(), 2);
        // A body that its client has not sent yet is no reason.
        let slow = Wire::with(gateway.address(), "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\na");
        slow.stream().set_read_timeout(Some(Duration::from_millis(700))).unwrap();
        let mut byte = [0];
        assert!(std::io::Read::read(&mut slow.stream(), &mut byte).is_err(), "nothing within 700 ms");
    });
}

#[test]
fn nothing_is_sent_again_when_the_requests_own_time_is_over() {
    for bound in ["timeout", "response_timeout"] {
        let servers = [Server::start("a", Mode::Works), Server::start("b", Mode::Works)];
        let gateway = start(&[servers[0].address(), servers[1].address()], "retry = { attempts = 3 }");
        let mut client = Client::connect(gateway.address());
        // So that each has a kept connection.
        assert!((0..4).all(|_| client.get("/").status == 200));
        let text = std::fs::read_to_string(gateway.file()).unwrap();
        let text = text.replacen("[server]\n", &format!("[server]\n{bound} = \"400ms\"\n"), 1).replacen(FRAME, "", 1);
        assert_eq!(gateway.reload(&text).status, 200);
        for server in &servers {
            server.mode.store(Mode::Hangs as u8, Ordering::SeqCst);
        }
        let before = servers[0].backend.requests() + servers[1].backend.requests();
        assert_eq!(client.get("/").status, 504);
        assert_eq!(servers[0].backend.requests() + servers[1].backend.requests(), before + 1, "{bound}");
    }
}

#[test]
fn per_try_bounds_no_request_that_is_not_sent_again() {
    let slow = Backend::start(|_, stream| {
        thread::sleep(Duration::from_millis(700));
        write_ok(stream, b"late")
    });
    let gateway = start(&[slow.address], "retry = { per_try = \"200ms\" }");
    assert_eq!((ask(&gateway, "POST", b"x").status, ask(&gateway, "GET", b"").status), (200, 504));
}
