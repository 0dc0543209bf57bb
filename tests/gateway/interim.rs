//! Interim responses and `Expect: 100-continue`.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::support::{Backend, Gateway};
use crate::timing::{assert_took, best_of_three};
use crate::wire::{Wire, front, get, ok, rules, tell, telling};

const EXPECTING: &str =
    "POST /up HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5\r\nX-After: expect\r\n\r\n";

/// Bytes of a body that would be a request if they were read as one.
const TRAP: &str = "GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n";

fn many_interims() -> Backend {
    Backend::scripted(|wire, _| {
        while wire.request().is_ok() {
            wire.send("HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n");
            wire.send("HTTP/1.1 103 Early Hints\r\nConnection: x-hop\r\nX-Hop: 1\r\nLink: </b.css>\r\n\r\n");
            wire.send(ok("real"));
        }
    })
}

#[test]
fn every_interim_response_reaches_a_1_1_client_before_the_real_one() {
    let backend = many_interims();
    let gateway = front(&backend);
    let mut wire = Wire::open(gateway.address());
    for _ in 0..3 {
        wire.send(get("/"));
        let all: Vec<_> = (0..4).map(|_| wire.response("GET").unwrap()).collect();
        let statuses: Vec<u16> = all.iter().map(crate::wire::Message::status).collect();
        assert_eq!(statuses, [102, 103, 103, 200]);
        assert_eq!(all[1].header("link"), Some("</a.css>; rel=preload"));
        assert_eq!((all[2].header("link"), all[2].header("x-hop")), (Some("</b.css>"), None));
        assert_eq!(all[3].text(), "real");
    }
    assert_eq!(backend.connections.load(Ordering::SeqCst), 1, "interim responses put nothing in doubt");
}

#[test]
fn no_interim_response_reaches_a_1_0_client() {
    let backend = many_interims();
    let gateway = front(&backend);
    let mut wire = Wire::with(gateway.address(), "GET / HTTP/1.0\r\n\r\n");
    let answer = wire.response("GET").unwrap();
    assert_eq!((answer.status(), answer.text().as_str()), (200, "real"));
    wire.assert_ended();
}

#[test]
fn a_thousand_interim_responses_are_still_interim() {
    let backend = Backend::scripted(|wire, _| {
        while wire.request().is_ok() {
            wire.send("HTTP/1.1 103 Early Hints\r\nX-Hint: h\r\n\r\n".repeat(1000));
            wire.send(ok("real"));
        }
    });
    let gateway = front(&backend);
    let mut wire = Wire::with(gateway.address(), get("/"));
    for _ in 0..1000 {
        assert_eq!(wire.response("GET").unwrap().status(), 103);
    }
    assert_eq!(wire.response("GET").unwrap().text(), "real");
}

#[test]
fn an_expectation_is_forwarded_and_the_upstreams_100_releases_the_body() {
    let backend = Backend::scripted(|wire, _| {
        while let Ok(mut request) = wire.head() {
            assert_eq!(request.header("expect"), Some("100-continue"));
            wire.send("HTTP/1.1 100 Continue\r\nX-Theirs: 1\r\n\r\n");
            if wire.body_of(&mut request).is_ok() {
                wire.send(ok(&request.text()));
            }
        }
    });
    let gateway = front(&backend);
    let mut wire = Wire::open(gateway.address());
    for _ in 0..2 {
        wire.send(EXPECTING);
        let first = wire.response("POST").unwrap();
        assert_eq!(first.status(), 100);
        wire.send("hello");
        let second = wire.response("POST").unwrap();
        assert_eq!((second.status(), second.text().as_str()), (200, "hello"), "and only one 100 before it");
    }
    assert_eq!(backend.seen.lock().unwrap()[0].all("expect").len(), 1);
}

#[test]
fn a_silent_upstream_makes_the_gateway_ask_for_the_body_after_a_second() {
    best_of_three(|| {
        let backend = telling();
        let gateway = front(&backend);
        let started = Instant::now();
        let mut wire = Wire::with(gateway.address(), EXPECTING);
        assert_eq!(wire.response("POST").unwrap().status(), 100);
        assert_took(started, 500..2000);
        wire.send("hello");
        assert_eq!(wire.response("POST").unwrap().text(), "1 /up");
        assert_eq!(backend.seen.lock().unwrap()[0].text(), "hello");
        assert_eq!(wire.get("/next").text(), "1 /next");
    });
}

#[test]
fn a_client_that_does_not_wait_for_its_100_is_served() {
    let backend = telling();
    let gateway = front(&backend);
    let mut wire = Wire::open(gateway.address());
    for _ in 0..3 {
        wire.send(format!("{EXPECTING}hello"));
        assert_eq!(wire.answer_to("POST").text(), "1 /up");
    }
    assert!(backend.seen.lock().unwrap().iter().all(|seen| seen.text() == "hello"));
}

/// An upstream that decides on the head alone.
fn deciding(answer: &'static str) -> Backend {
    Backend::scripted(move |wire, number| {
        let Ok(mut head) = wire.head() else { return };
        if head.header("expect").is_none() {
            wire.send(ok(&format!("{number} {}", head.target())));
        } else if !wire.send(answer) || wire.body_of(&mut head).is_err() {
            return;
        }
        tell(wire, number);
    })
}

#[test]
fn a_final_status_in_place_of_the_100_closes_and_the_body_is_no_request() {
    for answer in [
        "HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno",
        "HTTP/1.1 417 Expectation Failed\r\nContent-Length: 2\r\n\r\nno",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n",
    ] {
        let backend = deciding(answer);
        let gateway = front(&backend);
        let head =
            format!("POST /up HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n", TRAP.len());
        let mut wire = Wire::with(gateway.address(), head);
        let first = wire.response("POST").unwrap();
        assert_eq!((first.text().as_str(), first.closes()), ("no", true), "{answer:?}: {first:?}");
        wire.send(TRAP);
        wire.assert_ended();
        assert_eq!(Wire::open(gateway.address()).get("/next").text(), "2 /next", "a new upstream connection");
        assert!(backend.seen.lock().unwrap().iter().all(|seen| seen.target() != "/smuggled"));
    }
}

#[test]
fn a_body_that_comes_in_spite_of_a_final_status_is_no_request_either() {
    for _ in 0..10 {
        let backend = deciding("HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno");
        let gateway = front(&backend);
        let head =
            format!("POST /up HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n", TRAP.len());
        let mut wire = Wire::with(gateway.address(), format!("{head}{TRAP}"));
        let first = wire.answer_to("POST");
        assert_eq!(first.status(), 401);
        if first.closes() {
            wire.assert_ended();
        } else {
            assert!(wire.get("/next").text().ends_with(" /next"));
        }
        assert!(backend.seen.lock().unwrap().iter().all(|seen| seen.target() != "/smuggled"));
    }
}

#[test]
fn a_refused_request_never_gets_a_100() {
    let backend = telling();
    let gateway = Gateway::start(&format!(
        "[[limit]]\nname = \"l\"\nkey = \"global\"\nrate = \"1/1h\"\n{}",
        rules(&backend, "", "limits = [\"l\"]")
    ));
    assert_eq!(Wire::open(gateway.address()).get("/").status(), 200);
    let mut wire = Wire::with(gateway.address(), EXPECTING);
    let answer = wire.response("POST").unwrap();
    assert_eq!((answer.status(), answer.closes()), (429, true));
    wire.send("hello");
    wire.assert_ended();
    assert_eq!(backend.requests(), 1);
}

#[test]
fn an_expectation_of_a_1_0_client_is_ignored() {
    let backend = telling();
    let gateway = front(&backend);
    let mut wire =
        Wire::with(gateway.address(), "POST /old HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello");
    let answer = wire.response("POST").unwrap();
    assert_eq!((answer.status(), answer.text().as_str()), (200, "1 /old"));
    assert_eq!(backend.seen.lock().unwrap()[0].header("expect"), None);
}

#[test]
fn an_unasked_100_from_the_upstream_takes_no_answers_place() {
    let backend = Backend::scripted(|wire, number| {
        while let Ok(request) = wire.request() {
            wire.send("HTTP/1.1 100 Continue\r\n\r\n");
            wire.send(ok(&format!("{number} {}", request.target())));
        }
    });
    let gateway = front(&backend);
    let mut wire = Wire::with(gateway.address(), [get("/a"), get("/b")].concat());
    assert_eq!(wire.answer().text(), "1 /a");
    assert_eq!(wire.answer().text(), "1 /b");
    wire.assert_quiet(Duration::from_millis(50));
}
