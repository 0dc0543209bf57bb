//! Clients that send, or read, as slowly as they may: whatever drips, a route's timeout ends it, and heads that never end
//! hold their bytes and no more.

use std::io::Read;
use std::thread;
use std::time::{Duration, Instant};

use crate::h2::frames::{DATA, END_HEADERS, Ending, Raw, request};
use crate::support::{Backend, Gateway};
use crate::timing::{assert_took, best_of_three};
use crate::wire::{Wire, rules, settle, telling, wait_fault, wait_outcome};

/// Between two bytes, far below every timeout of what stands still.
const STEP: Duration = Duration::from_millis(20);

fn silent() -> Backend {
    Backend::scripted(|wire, _| while wire.request().is_ok() {})
}

#[test]
fn a_body_that_drips_ends_by_the_timeout_of_its_route() {
    best_of_three(|| {
        let backend = silent();
        let gateway = Gateway::start(&rules(&backend, "body_timeout = \"5s\"", "timeout = \"600ms\""));
        for framing in ["Content-Length: 1000000", "Transfer-Encoding: chunked"] {
            let mut wire = Wire::with(gateway.address(), format!("POST / HTTP/1.1\r\nHost: h\r\n{framing}\r\n\r\n"));
            let started = Instant::now();
            let dripping = wire.stream().try_clone().unwrap();
            let drip = thread::spawn(move || {
                let part: &[u8] = if framing.starts_with('T') { b"1\r\nx\r\n" } else { b"x" };
                while std::io::Write::write_all(&mut &dripping, part).is_ok() {
                    thread::sleep(STEP);
                }
            });
            assert_eq!(wire.answer().status(), 504, "{framing}");
            // It began before the clock of this test did.
            assert_took(started, 500..2000);
            drop(wire);
            drip.join().unwrap();
            backend.wait_closed();
        }
        wait_outcome(&gateway, "timeout", 2);
        // The same over HTTP/2, whose connection stays.
        let mut raw = Raw::open(gateway.address());
        let id = raw.headers(END_HEADERS, &request("POST", "/"));
        let started = Instant::now();
        while raw.is_open(id) && started.elapsed() < Duration::from_secs(5) {
            raw.send(DATA, 0, id, b"x");
            thread::sleep(STEP);
        }
        assert!(matches!(raw.ending(id), Ending::Answered(504, _)));
        assert_took(started, 500..2000);
        backend.wait_closed();
        wait_outcome(&gateway, "timeout", 3);
        assert_eq!(raw.ask("/local").0, 200);
    });
}

#[test]
fn an_answer_that_is_read_in_drips_ends_by_the_timeout_of_its_route() {
    best_of_three(|| {
        let backend = Backend::scripted(|wire, _| {
            while wire.request().is_ok() {
                let body = vec![b'x'; 64 << 20];
                wire.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()));
                if !wire.send(body) {
                    return;
                }
            }
        });
        let gateway = Gateway::start(&rules(&backend, "body_timeout = \"5s\"", "timeout = \"800ms\""));
        let started = Instant::now();
        let wire = Wire::with(gateway.address(), "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        let mut stream = wire.stream();
        let mut read = 0;
        // As slowly as a body may be read, which never stands still.
        while started.elapsed() < Duration::from_secs(5) {
            match stream.read(&mut [0; 100]) {
                Ok(size @ 1..) => read += size,
                _ => break,
            }
            if gateway.metric("sluicegate_requests_total", &["outcome=\"timeout\""]) > 0.5 {
                break;
            }
            thread::sleep(STEP);
        }
        assert_took(started, 800..2500);
        assert!(read > 0);
        wait_outcome(&gateway, "timeout", 1);
        backend.wait_closed();
        gateway.wait_metric("sluicegate_requests_in_flight", &[], 0.0);
    });
}

#[test]
fn heads_that_never_end_hold_their_bytes_and_no_more() {
    const HELD: usize = 200;
    const SIZE: usize = 60_000;
    let backend = telling();
    let gateway = Gateway::start(&rules(&backend, "head_timeout = \"4s\"", ""));
    settle(&gateway);
    let before = gateway.resident();
    let head = format!("GET / HTTP/1.1\r\nHost: h\r\nX: {}", "x".repeat(SIZE));
    let held: Vec<_> = (0..HELD).map(|_| Wire::with(gateway.address(), &head)).collect();
    settle(&gateway);
    let each = gateway.resident().saturating_sub(before) / HELD as u64;
    // `max_head_size`, and as much again while the buffer grows.
    assert!(each <= 2 * 64 * 1024, "{each} bytes each");
    for mut wire in held {
        assert_eq!(wire.answer().status(), 408);
        wire.assert_ended();
    }
    wait_fault(&gateway, "client", "head-timeout", HELD);
    assert_eq!(backend.requests(), 0);
}
