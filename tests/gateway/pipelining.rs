//! Many requests on one connection, and what may stand between them.

use std::io::Write;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use crate::support::{Backend, FRAME, Gateway, eventually};
use crate::wire::{Wire, front, get, rules, telling, wait_fault, wait_outcome};

#[test]
fn ten_thousand_pipelined_requests_are_answered_in_order() {
    const COUNT: usize = 10_000;
    let backend = telling();
    let gateway = front(&backend);
    let mut wire = Wire::open(gateway.address());
    let writer = wire.stream().try_clone().unwrap();
    let writing = thread::spawn(move || {
        let all: String = (0..COUNT).map(|number| get(&format!("/{number}"))).collect();
        (&writer).write_all(all.as_bytes()).unwrap();
    });
    for number in 0..COUNT {
        assert_eq!(wire.answer().text(), format!("1 /{number}"));
    }
    writing.join().unwrap();
    wire.assert_quiet(Duration::from_millis(20));
    wait_outcome(&gateway, "forwarded", COUNT);
}

#[test]
fn requests_that_do_not_fit_the_buffer_together_are_split_where_they_end() {
    let backend = telling();
    let gateway = front(&backend);
    // Bodies of every length make a head cross each edge of a buffer of a power of two.
    let mut wire = Wire::open(gateway.address());
    let writer = wire.stream().try_clone().unwrap();
    let writing = thread::spawn(move || {
        for number in 0..300 {
            let body = "b".repeat(number * 7);
            let head = format!("POST /{number} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", body.len());
            (&writer).write_all(format!("{head}{body}").as_bytes()).unwrap();
        }
    });
    for number in 0..300 {
        assert_eq!(wire.answer().text(), format!("1 /{number}"));
    }
    writing.join().unwrap();
    let seen = backend.seen.lock().unwrap();
    assert!(seen.iter().enumerate().all(|(number, request)| request.body.len() == number * 7));
}

#[test]
fn requests_behind_a_body_are_read_where_the_body_ends() {
    let backend = telling();
    let gateway = front(&backend);
    let inner = get("/smuggled");
    let sized = format!("POST /sized HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{inner}", inner.len());
    let chunked = format!(
        "POST /chunked HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
         {:x}\r\n{inner}\r\n0\r\nX-T: GET /smuggled HTTP/1.1\r\n\r\n",
        inner.len()
    );
    let empty = "POST /empty HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n";
    let all = [&*sized, &*chunked, &get("/a"), empty, &*chunked, &*sized, &get("/b")].concat();
    for split in [all.len(), 1, 7, 100] {
        let mut wire = Wire::open(gateway.address());
        for part in all.as_bytes().chunks(split) {
            wire.send(part);
        }
        let targets: Vec<String> = (0..7).map(|_| wire.answer().text()).collect();
        let expected = ["1 /sized", "1 /chunked", "1 /a", "1 /empty", "1 /chunked", "1 /sized", "1 /b"];
        assert_eq!(targets, expected, "sent in pieces of {split}");
        wire.assert_quiet(Duration::from_millis(10));
    }
}

#[test]
fn a_malformed_request_in_the_middle_ends_what_follows_and_not_what_came_before() {
    let backend = telling();
    let gateway = front(&backend);
    let bad = "GET /bad HTTP/1.1\r\nHost : h\r\n\r\n";
    let all = [get("/a"), get("/b"), bad.to_owned(), get("/c"), get("/d")].concat();
    let mut wire = Wire::with(gateway.address(), all);
    assert_eq!(wire.answer().text(), "1 /a");
    assert_eq!(wire.answer().text(), "1 /b");
    let answer = wire.answer();
    assert_eq!((answer.status(), answer.closes()), (400, true));
    wire.assert_ended();
    wait_fault(&gateway, "client", "field-name", 1);
    assert_eq!(backend.requests(), 2);
}

#[test]
fn a_request_behind_connection_close_is_not_answered() {
    let backend = telling();
    let gateway = front(&backend);
    let last = "GET /last HTTP/1.1\r\nHost: h\r\nConnection: Close\r\n\r\n";
    let mut wire = Wire::with(gateway.address(), [get("/a"), last.to_owned(), get("/never")].concat());
    assert_eq!(wire.answer().text(), "1 /a");
    let answer = wire.answer();
    assert_eq!((answer.text().as_str(), answer.closes()), ("1 /last", true));
    wire.assert_ended();
    assert_eq!(backend.requests(), 2);
}

/// Answers by target with what has no body.
fn bodiless() -> Backend {
    Backend::scripted(|wire, number| {
        while let Ok(request) = wire.request() {
            wire.send(match (request.line.split(' ').next().unwrap(), request.target()) {
                (_, "/204") => "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
                (_, "/304") => "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nContent-Length: 9999\r\n\r\n".to_owned(),
                ("HEAD", "/sized") => "HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n".to_owned(),
                ("HEAD", "/chunked") => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
                ("HEAD", _) => "HTTP/1.1 200 OK\r\n\r\n".to_owned(),
                (_, "/empty") => "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned(),
                _ => crate::wire::ok(&format!("{number} {}", request.target())),
            });
        }
    })
}

#[test]
fn answers_without_a_body_keep_both_connections_in_step() {
    let backend = bodiless();
    let gateway = front(&backend);
    let asked = [
        ("HEAD", "/sized", 200),
        ("GET", "/a", 200),
        ("HEAD", "/chunked", 200),
        ("GET", "/204", 204),
        ("GET", "/b", 200),
        ("GET", "/304", 304),
        ("HEAD", "/304", 304),
        ("HEAD", "/none", 200),
        ("GET", "/empty", 200),
        ("POST", "/204", 204),
        ("GET", "/c", 200),
    ];
    let all: Vec<String> =
        asked.iter().map(|(method, target, _)| format!("{method} {target} HTTP/1.1\r\nHost: h\r\n\r\n")).collect();
    let mut wire = Wire::with(gateway.address(), all.concat());
    for (method, target, status) in asked {
        let answer = wire.answer_to(method);
        assert_eq!((answer.status(), answer.closes()), (status, false), "{method} {target}");
        match (method, target) {
            ("HEAD", "/sized") => assert_eq!(answer.header("content-length"), Some("1234")),
            (_, "/304") => assert_eq!(answer.header("etag"), Some("\"x\"")),
            (_, "/204") => assert!(answer.header("content-length").is_none(), "{answer:?}"),
            ("GET", "/a" | "/b" | "/c") => assert!(answer.text().ends_with(&format!(" {target}")), "{answer:?}"),
            _ => {}
        }
    }
    wire.assert_quiet(Duration::from_millis(20));
    // The client's is kept, and of those to the server all but four, which rest after an answer that speaks of a body.
    let connections = backend.connections.load(Ordering::SeqCst);
    assert!((1..=5).contains(&connections), "{connections}");
}

#[test]
fn a_head_request_that_the_gateway_answers_has_no_body() {
    let backend = telling();
    let gateway = Gateway::start(&rules(&backend, "", ""));
    let mut wire = Wire::with(gateway.address(), "HEAD /local HTTP/1.1\r\nHost: h\r\n\r\n");
    let answer = wire.answer_to("HEAD");
    assert_eq!((answer.status(), answer.header("content-length")), (200, Some("6")));
    assert_eq!(wire.get("/local").text(), "local\n");
}

#[test]
fn a_1_0_client_is_closed_unless_it_asks_to_be_kept() {
    let backend = telling();
    let gateway = front(&backend);
    let mut wire = Wire::with(gateway.address(), "GET /a HTTP/1.0\r\n\r\nGET /b HTTP/1.0\r\n\r\n");
    assert_eq!(wire.answer().text(), "1 /a");
    wire.assert_ended();
    let mut wire = Wire::open(gateway.address());
    for _ in 0..3 {
        wire.send("GET /kept HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n");
        let answer = wire.answer();
        assert_eq!(answer.text(), "1 /kept");
        assert!(answer.all("connection").iter().any(|value| value.eq_ignore_ascii_case("keep-alive")), "{answer:?}");
    }
    wire.send("GET /last HTTP/1.0\r\n\r\n");
    assert_eq!(wire.answer().text(), "1 /last");
    wire.assert_ended();
    let mut wire = Wire::with(gateway.address(), "GET /x HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n");
    assert_eq!(wire.answer().text(), "1 /x");
    wire.assert_ended();
}

#[test]
fn a_slow_first_answer_holds_the_ones_behind_it_back() {
    let backend = Backend::scripted(|wire, _| {
        while let Ok(request) = wire.request() {
            if request.target() == "/slow" {
                thread::sleep(Duration::from_millis(200));
            }
            wire.send(crate::wire::ok(request.target()));
        }
    });
    let gateway = front(&backend);
    let mut wire = Wire::with(gateway.address(), [get("/slow"), get("/local"), get("/fast")].concat());
    let bodies: Vec<String> = (0..3).map(|_| wire.answer().text()).collect();
    assert_eq!(bodies, ["/slow", "local\n", "/fast"]);
}

#[test]
fn requests_behind_one_whose_response_stops_in_its_head_are_answered() {
    let backend = Backend::scripted(|wire, _| {
        while let Ok(request) = wire.request() {
            if request.target() == "/stall" {
                wire.send(format!("HTTP/1.1 200 OK\r\nX: {}\r\nZ: z", "y".repeat(200)));
            } else {
                wire.send(crate::wire::ok(request.target()));
            }
        }
    });
    let gateway = Gateway::start(&rules(&backend, "", "timeout = \"400ms\""));
    let behind: Vec<String> = (0..12).map(|number| format!("/{number}")).collect();
    let all = behind.iter().fold(get("/stall"), |all, target| all + &get(target));
    let mut wire = Wire::with(gateway.address(), all);
    assert_eq!(wire.answer().status(), 504);
    for target in behind {
        let answer = wire.answer();
        assert_eq!((answer.status(), answer.text().as_str()), (200, target.as_str()), "{answer:?}");
    }
    wire.assert_quiet(Duration::from_millis(20));
    wait_outcome(&gateway, "forwarded", 12);
    wait_outcome(&gateway, "timeout", 1);
}

#[test]
fn a_malformed_request_has_nothing_of_the_one_before_it() {
    let backend = telling();
    let gateway = Gateway::start_whole(&format!("[log]\naccess = \"json\"\n{FRAME}{}", rules(&backend, "", "")));
    for target in ["/local", "/forwarded"] {
        let before = gateway.access_log().len();
        let head = format!("HEAD {target} HTTP/1.1\r\nHost: h\r\n\r\n");
        let mut wire = Wire::with(gateway.address(), format!("{head}\0bad\r\n\r\n"));
        assert_eq!(wire.answer_to("HEAD").status(), 200);
        let answer = wire.answer();
        assert_eq!((answer.status(), answer.closes()), (400, true));
        assert!(!answer.body.is_empty(), "a HEAD has no body, and this is none");
        wire.assert_ended();
        assert!(eventually(|| gateway.access_log().len() == before + 2));
        let line = &gateway.access_log()[before + 1];
        assert_eq!(line["status"], 400, "{line}");
        assert!(!line.to_string().contains("HEAD") && !line.to_string().contains(target), "{line}");
    }
}

/// The limit numbers the answers: what remains tells how many were admitted before.
#[test]
fn whoever_has_sent_a_thousand_requests_ahead_does_not_keep_others_waiting() {
    const QUOTA: usize = 10_000_000;
    let gateway = Gateway::start(&format!(
        "[server]\nworkers = 1\n[[limit]]\nname = \"all\"\nkey = \"global\"\nrate = \"{QUOTA}/h\"\n\
         [[route]]\nname = \"local\"\nlimits = [\"all\"]\nrespond = {{ status = 200, body = \"\" }}\n"
    ));
    let mut other = Wire::open(gateway.address());
    assert_eq!(other.get("/").status(), 200);
    let hog = Wire::open(gateway.address());
    gateway.pause();
    hog.stream().set_nonblocking(true).unwrap();
    let requests = get("/").repeat(50_000);
    let sent = hog.stream().write(requests.as_bytes()).unwrap() / get("/").len();
    assert!(sent > 1_000, "only {sent} requests lie ready");
    other.send(get("/"));
    gateway.resume();
    let answer = other.answer();
    let remaining =
        answer.header("ratelimit").and_then(|line| line.split("r=").nth(1)?.split(';').next()?.parse().ok());
    let before = QUOTA - remaining.unwrap_or(0);
    assert!(before < 500, "{before} of {sent} requests went first");
}
