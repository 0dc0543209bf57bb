//! Upstreams that answer before they have the whole request, or end their connection before they answer.

use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

use crate::support::Backend;
use crate::timing::{assert_took, best_of_three};
use crate::wire::{Wire, front, get, ok, rules, settle, tell, wait_outcome};

const TRAP: &str = "GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n";

/// A first connection that answers on the head alone and reads on; all further ones read first.
fn early(answer: &'static str) -> Backend {
    Backend::scripted(move |wire, number| {
        if number > 1 {
            return tell(wire, number);
        }
        if wire.head().is_ok() {
            wire.send(answer);
            drop(wire.rest());
        }
    })
}

#[test]
fn the_rest_of_a_small_body_is_drained_or_the_connection_closed() {
    let backend = early("HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno");
    let gateway = front(&backend);
    let body = TRAP.repeat(20);
    let mut wire = Wire::with(
        gateway.address(),
        format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{}", body.len(), &body[..TRAP.len()]),
    );
    let answer = wire.answer_to("POST");
    assert_eq!((answer.status(), answer.text().as_str()), (401, "no"));
    wire.send(&body[TRAP.len()..]);
    if answer.closes() {
        wire.assert_ended();
    } else {
        assert_eq!(wire.get("/next").text(), "2 /next");
    }
    assert_eq!(backend.wait_closed(), 1, "half a request is left on it");
    assert_eq!(Wire::open(gateway.address()).get("/other").text(), "2 /other");
    assert!(backend.seen.lock().unwrap().iter().all(|seen| seen.target() != "/smuggled"));
}

#[test]
fn a_large_upload_that_is_answered_early_ends_with_the_answer() {
    for framing in ["Content-Length: 100000000", "Transfer-Encoding: chunked"] {
        let backend = early("HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno");
        let gateway = front(&backend);
        let mut wire =
            Wire::with(gateway.address(), format!("POST / HTTP/1.1\r\nHost: h\r\n{framing}\r\n\r\n4\r\nbody\r\n"));
        let answer = wire.answer_to("POST");
        assert_eq!((answer.status(), answer.text().as_str()), (413, "no"), "{framing}");
        assert!(answer.closes(), "{framing}: {answer:?}");
        // A client that is still sending is not reset before it has read its answer.
        wire.send(vec![b'0'; 10_000]);
        wire.assert_ended();
        assert_eq!(backend.wait_closed(), 1);
        assert_eq!(Wire::open(gateway.address()).get("/next").text(), "2 /next");
        wait_outcome(&gateway, "forwarded", 2);
    }
}

#[test]
fn an_early_answer_that_goes_on_is_sent_while_the_body_is_sent() {
    // The upstream echoes each byte of the body as it comes: neither side is done before the other.
    let backend = Backend::scripted(|wire, _| {
        while wire.head().is_ok() {
            wire.send("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n");
            for _ in 0..8 {
                let Ok(byte) = wire.take(1) else { return };
                wire.send(byte);
            }
        }
    });
    let gateway = front(&backend);
    let mut wire = Wire::open(gateway.address());
    for _ in 0..2 {
        wire.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 8\r\n\r\n");
        assert_eq!(wire.head().unwrap().status(), 200);
        for byte in b"abcdefgh" {
            wire.send([*byte]);
            assert_eq!(wire.take(1).unwrap(), [*byte]);
        }
    }
    assert_eq!(backend.connections.load(Ordering::SeqCst), 1);
}

#[test]
fn a_connection_that_the_upstream_closes_idle_is_not_used_again() {
    let (close, closing) = mpsc::sync_channel::<()>(1);
    let closing = Mutex::new(closing);
    let backend = Backend::scripted(move |wire, number| {
        if number > 1 {
            return tell(wire, number);
        }
        if wire.request().is_ok() {
            wire.send(ok("first"));
            let _ = closing.lock().unwrap().recv();
        }
    });
    let gateway = front(&backend);
    let mut wire = Wire::open(gateway.address());
    assert_eq!(wire.get("/").text(), "first");
    close.send(()).unwrap();
    assert_eq!(backend.wait_closed(), 1);
    settle(&gateway);
    // Not even a request that must not be sent twice notices.
    wire.send("POST /pay HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\npay");
    assert_eq!(wire.answer().text(), "2 /pay");
    gateway.wait_metric("sluicegate_upstream_retries_total", &[], 0.0);
}

/// Each connection answers its first request; `second` says what becomes of the next one.
fn dying_at_the_second(second: impl Fn(&mut Wire, usize) + Send + Sync + 'static) -> Backend {
    Backend::scripted(move |wire, number| {
        if wire.request().is_ok() && wire.send(ok("first")) {
            second(wire, number);
        }
    })
}

#[test]
fn a_request_is_tried_again_only_once() {
    // The connection that was kept dies under the second request, and so does the new one.
    let backend = Backend::scripted(|wire, number| {
        if wire.request().is_ok() && number == 1 {
            wire.send(ok("first"));
            drop(wire.request());
        }
    });
    let gateway = front(&backend);
    let mut wire = Wire::open(gateway.address());
    assert_eq!(wire.get("/").text(), "first");
    assert_eq!(wire.get("/again").status(), 502);
    assert_eq!(backend.requests(), 3);
    gateway.wait_metric("sluicegate_upstream_retries_total", &["cause=\"stale-connection\""], 1.0);
    wait_outcome(&gateway, "upstream-error", 1);
}

#[test]
fn only_what_may_be_done_twice_is_tried_again() {
    for (method, retried) in [
        ("GET", true),
        ("HEAD", true),
        ("OPTIONS", true),
        ("PUT", true),
        ("DELETE", true),
        ("POST", false),
        ("PATCH", false),
    ] {
        let backend = dying_at_the_second(|wire, _| drop(wire.request()));
        let gateway = front(&backend);
        let mut wire = Wire::open(gateway.address());
        assert_eq!(wire.get("/").text(), "first");
        wire.send(format!("{method} /again HTTP/1.1\r\nHost: h\r\n\r\n"));
        let status = wire.answer_to(method).status();
        assert_eq!((status, backend.requests()), if retried { (200, 3) } else { (502, 2) }, "{method}");
    }
}

#[test]
fn a_post_whose_body_was_sent_is_not_sent_again() {
    let backend = dying_at_the_second(|wire, _| drop(wire.request()));
    let gateway = front(&backend);
    let mut wire = Wire::open(gateway.address());
    assert_eq!(wire.get("/").text(), "first");
    wire.send("POST /pay HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\npay");
    assert_eq!(wire.answer().status(), 502);
    let seen = backend.seen.lock().unwrap();
    assert_eq!(seen.iter().filter(|request| request.text() == "pay").count(), 1);
}

#[test]
fn a_request_is_not_tried_again_once_a_byte_of_the_answer_came() {
    for start in ["H", "HTTP/1.1 200 OK\r\nContent-Len", "HTTP/1.1 100 Continue\r\n\r\n"] {
        let backend = dying_at_the_second(move |wire, _| {
            if wire.request().is_ok() {
                wire.send(start);
            }
        });
        let gateway = front(&backend);
        let mut wire = Wire::open(gateway.address());
        assert_eq!(wire.get("/").text(), "first");
        wire.send(get("/again"));
        assert_eq!(wire.answer().status(), 502, "{start:?}");
        assert_eq!(backend.requests(), 2, "{start:?}");
        gateway.wait_metric("sluicegate_upstream_retries_total", &[], 0.0);
    }
}

#[test]
fn an_upstream_that_takes_no_connection_is_given_up_after_connect_timeout() {
    best_of_three(|| {
        // A queue of one that nobody empties: the kernel lets further connects wait.
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
        socket.listen(0).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        let mut filling = Vec::new();
        while let Ok(stream) = std::net::TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
            filling.push(stream);
        }
        let backend = Backend::fixed("unused");
        let rules = rules(&backend, "", "").replace(&backend.address.to_string(), &address.to_string());
        let rules = rules.replace("servers =", "connect_timeout = \"300ms\"\nservers =");
        let gateway = crate::support::Gateway::start(&rules);
        let started = std::time::Instant::now();
        let answer = Wire::open(gateway.address()).get("/");
        assert!(matches!(answer.status(), 502 | 504), "{answer:?}");
        assert_took(started, 300..2000);
        assert!(!filling.is_empty());
        assert_eq!(crate::wire::only_letter(&gateway)["upstream"], "app");
    });
}

#[test]
fn an_early_answer_reaches_a_client_that_ends_its_upload_meanwhile() {
    let (go_on, going_on) = mpsc::sync_channel::<()>(1);
    let going_on = Mutex::new(going_on);
    let backend = Backend::scripted(move |wire, _| {
        if wire.head().is_ok() && wire.send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 10\r\n\r\n12345") {
            let _ = going_on.lock().unwrap().recv();
            wire.send("67890");
            drop(wire.rest());
        }
    });
    let gateway = front(&backend);
    let mut wire = Wire::with(gateway.address(), "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\nabc");
    assert_eq!(wire.head().unwrap().status(), 413);
    assert_eq!(wire.take(5).unwrap(), b"12345");
    wire.finish();
    settle(&gateway);
    go_on.send(()).unwrap();
    assert_eq!(wire.rest().unwrap(), b"67890");
    backend.wait_closed();
    wait_outcome(&gateway, "forwarded", 1);
}
