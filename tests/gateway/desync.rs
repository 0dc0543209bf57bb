//! A message that reaches the other side is framed by the gateway alone: one framing, no extensions, no unfit trailers,
//! whatever the versions on both sides. The reader of these tests is strict: an answer read by it is well-framed.

use std::sync::atomic::Ordering;

use crate::support::Backend;
use crate::wire::{Message, Wire, front, get, ok, telling};

const TRAILERS: &str = "X-Checksum: abc\r\nContent-Length: 7\r\nTransfer-Encoding: gzip\r\nHost: evil\r\n\
                        Authorization: Basic eDp5\r\nX-Forwarded-For: 6.6.6.6\r\nSet-Cookie: a=b\r\n";

fn kept() -> Vec<(String, String)> {
    vec![("x-checksum".to_owned(), "abc".to_owned())]
}

/// Answers every request with these bytes.
fn always(bytes: &'static str) -> Backend {
    Backend::scripted(move |wire, _| while wire.request().is_ok() && wire.send(bytes) {})
}

/// The first request that a strict upstream sees when a client sends this.
fn as_seen(bytes: &str) -> Message {
    let backend = telling();
    let gateway = front(&backend);
    let mut wire = Wire::with(gateway.address(), bytes);
    let answer = wire.answer();
    assert_eq!(answer.status(), 200, "{answer:?}");
    let seen = backend.seen.lock().unwrap();
    assert_eq!(seen.len(), 1, "{seen:?}");
    seen[0].clone()
}

#[test]
fn chunk_extensions_and_unfit_trailers_do_not_reach_the_upstream() {
    let seen = as_seen(&format!(
        "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTrailer: X-Checksum\r\n\r\n\
         5;a=b;c=\"d;e\"\r\nhello\r\n3 ;x\r\nabc\r\n0;last\r\n{TRAILERS}\r\n"
    ));
    assert_eq!(seen.text(), "helloabc");
    assert_eq!(seen.trailers, kept());
    assert!(seen.is_chunked(), "{seen:?}");
}

#[test]
fn chunk_extensions_and_unfit_trailers_do_not_reach_the_client() {
    let backend = Backend::scripted(|wire, _| {
        while wire.request().is_ok() {
            wire.send(format!(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0;last\r\n{TRAILERS}\r\n"
            ));
        }
    });
    let gateway = front(&backend);
    let mut wire = Wire::open(gateway.address());
    for _ in 0..3 {
        let answer = wire.get("/");
        assert_eq!((answer.text().as_str(), answer.trailers.clone()), ("hello", kept()), "{answer:?}");
    }
    assert_eq!(backend.connections.load(Ordering::SeqCst), 1, "nothing about it is in doubt");
}

#[test]
fn trailers_that_come_in_pieces_are_filtered_alike() {
    let backend = telling();
    let gateway = front(&backend);
    let wire = Wire::with(gateway.address(), "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
    wire.drip(format!("3;y\r\nabc\r\n0\r\n{TRAILERS}\r\n"), std::time::Duration::from_micros(200));
    let mut wire = wire;
    assert_eq!(wire.answer().status(), 200);
    let seen = backend.seen.lock().unwrap();
    assert_eq!((seen[0].text().as_str(), &seen[0].trailers), ("abc", &kept()));
}

#[test]
fn a_request_has_one_framing_upstream() {
    for (bytes, lengths, chunked, body) in [
        ("GET / HTTP/1.1\r\nHost: h\r\n\r\n", vec![], false, ""),
        ("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello", vec!["5"], false, "hello"),
        ("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0005\r\n\r\nhello", vec!["5"], false, "hello"),
        ("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi", vec!["2"], false, "hi"),
        (
            "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: CHUNKED\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            vec![],
            true,
            "hello",
        ),
        ("POST / HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello", vec!["5"], false, "hello"),
    ] {
        let seen = as_seen(bytes);
        assert_eq!(seen.all("content-length"), lengths, "{bytes:?}");
        assert_eq!(seen.is_chunked(), chunked, "{bytes:?}");
        assert_eq!(seen.text(), body, "{bytes:?}");
        assert!(seen.line.ends_with(" HTTP/1.1"), "{bytes:?}: {}", seen.line);
    }
}

#[test]
fn nominating_the_framing_does_not_remove_it() {
    let seen = as_seen(
        "POST / HTTP/1.1\r\nHost: h\r\nConnection: content-length, transfer-encoding\r\nContent-Length: 5\r\n\r\nhello",
    );
    assert_eq!((seen.all("content-length"), seen.text().as_str()), (vec!["5"], "hello"));
}

#[test]
fn a_body_that_ends_with_its_connection_is_chunked_for_a_1_1_client() {
    let backend = Backend::scripted(|wire, number| {
        if wire.request().is_ok() {
            wire.send(format!("HTTP/1.1 200 OK\r\n\r\nbody {number}"));
        }
    });
    let gateway = front(&backend);
    let mut wire = Wire::open(gateway.address());
    for number in 1..4 {
        let answer = wire.get("/");
        assert!(answer.is_chunked() && !answer.closes(), "{answer:?}");
        assert_eq!(answer.text(), format!("body {number}"));
    }
}

#[test]
fn a_body_without_an_end_stays_close_delimited_for_a_1_0_client() {
    for bytes in [
        "HTTP/1.1 200 OK\r\n\r\nthe body",
        "HTTP/1.0 200 OK\r\n\r\nthe body",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nthe\r\n5\r\n body\r\n0\r\nX-Checksum: a\r\n\r\n",
    ] {
        let backend = Backend::scripted(move |wire, _| {
            if wire.request().is_ok() {
                wire.send(bytes);
            }
        });
        let gateway = front(&backend);
        for request in ["GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"] {
            let mut wire = Wire::with(gateway.address(), request);
            let answer = wire.response("GET").unwrap();
            assert_eq!(answer.text(), "the body", "{bytes:?} for {request:?}");
            assert!(answer.all("transfer-encoding").is_empty() && answer.all("content-length").is_empty());
            assert!(answer.all("connection").iter().all(|value| !value.eq_ignore_ascii_case("keep-alive")));
            wire.assert_ended();
        }
    }
}

#[test]
fn a_response_of_an_old_upstream_is_framed_anew() {
    let backend = always("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello");
    let gateway = front(&backend);
    let mut wire = Wire::open(gateway.address());
    for _ in 0..3 {
        let answer = wire.get("/");
        assert_eq!((answer.text().as_str(), answer.header("content-length")), ("hello", Some("5")));
        assert!(answer.line.starts_with("HTTP/1.1 200"), "{}", answer.line);
    }
    let backend = always("HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    let gateway = front(&backend);
    let mut wire = Wire::open(gateway.address());
    for number in 1..4 {
        assert_eq!(wire.get("/").text(), "hello");
        assert_eq!(backend.connections.load(Ordering::SeqCst), number, "1.0 without keep-alive is not kept");
    }
}

#[test]
fn an_upstream_that_closes_does_not_close_the_client() {
    let backend = Backend::scripted(|wire, number| {
        if wire.request().is_ok() {
            wire.send(format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\n{number}"));
            drop(wire.rest());
        }
    });
    let gateway = front(&backend);
    let mut wire = Wire::open(gateway.address());
    for number in 1..4 {
        let answer = wire.get("/");
        assert_eq!((answer.text(), answer.closes()), (number.to_string(), false));
        assert_eq!(backend.wait_closed(), number, "the gateway keeps none that the upstream wants closed");
    }
}

#[test]
fn a_client_that_closes_does_not_close_the_upstream() {
    let backend = telling();
    let gateway = front(&backend);
    for number in 0..3 {
        let mut wire = Wire::with(gateway.address(), "GET /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        let answer = wire.answer();
        assert_eq!((answer.text().as_str(), answer.closes()), ("1 /x", true), "request {number}");
        wire.assert_ended();
    }
    assert!(backend.seen.lock().unwrap().iter().all(|seen| seen.all("connection").is_empty()));
}

#[test]
fn a_response_whose_body_looks_like_a_response_is_only_a_body() {
    let inner = ok("inner");
    let answer = ok(&inner);
    let backend = Backend::scripted(move |wire, _| while wire.request().is_ok() && wire.send(&answer) {});
    let gateway = front(&backend);
    let mut wire = Wire::with(gateway.address(), [get("/"), get("/")].concat());
    for _ in 0..2 {
        assert_eq!(wire.answer().text(), inner);
    }
}
