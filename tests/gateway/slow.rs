//! Peers that are slow, or stop: what is slow is served, what stops is cut at its timeout.

use std::io::Read;
use std::net::Shutdown;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Backend, Gateway, eventually};
use crate::timing::{assert_took, best_of_three, pause};
use crate::wire::{Wire, front, get, ok, only_letter, rules, telling, wait_fault, wait_outcome};

const STEP: Duration = Duration::from_micros(500);

#[test]
fn requests_that_come_byte_by_byte_arrive_unchanged() {
    let backend = telling();
    let gateway = front(&backend);
    let mut wire = Wire::open(gateway.address());
    wire.drip("GET /slow?a=b HTTP/1.1\r\nHost: h\r\nX-One: 1\r\n\r\n", STEP);
    assert_eq!(wire.answer().text(), "1 /slow?a=b");
    wire.drip("POST /sized HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello", STEP);
    assert_eq!(wire.answer().text(), "1 /sized");
    wire.drip(
        "POST /chunked HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
         5;x=y\r\nhello\r\n00a\r\n, the rest\r\n0\r\nX-Checksum: 7\r\n\r\n",
        STEP,
    );
    assert_eq!(wire.answer().text(), "1 /chunked");
    let seen = backend.seen.lock().unwrap();
    assert_eq!(seen[0].header("x-one"), Some("1"));
    assert_eq!((seen[1].text().as_str(), seen[2].text().as_str()), ("hello", "hello, the rest"));
    assert_eq!(seen[2].trailers, [("x-checksum".to_owned(), "7".to_owned())]);
}

#[test]
fn responses_that_come_byte_by_byte_arrive_unchanged() {
    let backend = Backend::scripted(|wire, _| {
        while let Ok(request) = wire.request() {
            let sent = match request.target() {
                "/sized" => wire.drip("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-One: 1\r\n\r\nhello", STEP),
                "/interim" => wire.drip(format!("HTTP/1.1 103 Early Hints\r\nX: y\r\n\r\n{}", ok("hello")), STEP),
                _ => wire.drip(
                    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n03\r\nllo\r\n0\r\nX-A: 7\r\n\r\n",
                    STEP,
                ),
            };
            assert!(sent);
        }
    });
    let gateway = front(&backend);
    let mut wire = Wire::open(gateway.address());
    for target in ["/sized", "/interim", "/chunked", "/sized"] {
        assert_eq!(wire.get(target).text(), "hello", "{target}");
    }
    assert_eq!(backend.connections.load(Ordering::SeqCst), 1);
}

#[test]
fn a_dripping_head_is_a_408_at_its_timeout_although_bytes_keep_coming() {
    best_of_three(|| {
        let backend = telling();
        let gateway = Gateway::start(&rules(&backend, "head_timeout = \"400ms\"", ""));
        for kept in [false, true] {
            let mut wire = Wire::open(gateway.address());
            if kept {
                assert_eq!(wire.get("/").status(), 200);
            }
            let writer = wire.stream().try_clone().unwrap();
            let started = Instant::now();
            wire.send("GET / HTTP/1.1\r\nHost: h\r\nX: ");
            let dripping = thread::spawn(move || {
                for _ in 0..100 {
                    if std::io::Write::write_all(&mut &writer, b"y").is_err() {
                        return;
                    }
                    thread::sleep(Duration::from_millis(20));
                }
            });
            let answer = wire.answer();
            assert_took(started, 390..1200);
            assert_eq!((answer.status(), answer.closes()), (408, true), "kept: {kept}");
            wire.assert_ended();
            drop(wire);
            dripping.join().unwrap();
        }
        wait_fault(&gateway, "client", "head-timeout", 2);
        assert!(eventually(|| gateway.dead_letters().len() == 2));
        let letter = &gateway.dead_letters()[0];
        assert_eq!((&letter["reason"], &letter["status"]), (&"timeout".into(), &408.into()));
    });
}

#[test]
fn a_head_in_time_is_not_held_against_the_next() {
    best_of_three(|| {
        let backend = telling();
        let gateway = Gateway::start(&rules(&backend, "head_timeout = \"500ms\"", ""));
        let mut wire = Wire::open(gateway.address());
        for _ in 0..3 {
            let head = get("/");
            wire.send(&head[..10]);
            pause(200..350);
            wire.send(&head[10..]);
            assert_eq!(wire.answer().status(), 200);
        }
    });
}

#[test]
fn an_idle_connection_ends_silently() {
    best_of_three(|| {
        let backend = telling();
        let gateway = Gateway::start(&rules(&backend, "keep_alive_timeout = \"300ms\"\nhead_timeout = \"60s\"", ""));
        let started = Instant::now();
        Wire::open(gateway.address()).assert_ended();
        assert_took(started, 290..1200);
        let mut kept = Wire::open(gateway.address());
        for _ in 0..4 {
            assert_eq!(kept.get("/").status(), 200);
            pause(100..200);
        }
        let started = Instant::now();
        kept.assert_ended();
        assert_took(started, 150..1200);
        gateway.wait_metric("sluicegate_http1_faults_total", &[], 0.0);
    });
}

#[test]
fn an_empty_line_behind_a_request_is_not_the_beginning_of_one() {
    best_of_three(|| {
        let backend = telling();
        let gateway = Gateway::start(&rules(&backend, "keep_alive_timeout = \"60s\"\nhead_timeout = \"300ms\"", ""));
        for target in ["/local", "/forwarded"] {
            let mut wire = Wire::with(gateway.address(), format!("{}\r\n", get(target)));
            let started = Instant::now();
            assert_eq!(wire.answer().status(), 200);
            wire.assert_ended();
            assert_took(started, 290..1500);
        }
        gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
        gateway.wait_metric("sluicegate_http1_faults_total", &[], 0.0);
        assert!(gateway.dead_letters().is_empty());
        // And no part of the next one either.
        let mut wire = Wire::with(gateway.address(), format!("{}\r\n", get("/a")));
        assert_eq!(wire.answer().status(), 200);
        assert_eq!(wire.get("/b").status(), 200);
    });
}

#[test]
fn a_request_in_flight_is_not_idle() {
    let backend = Backend::scripted(|wire, _| {
        while wire.request().is_ok() {
            thread::sleep(Duration::from_millis(700));
            wire.send(ok("late"));
        }
    });
    let server = "keep_alive_timeout = \"200ms\"\nhead_timeout = \"200ms\"\nbody_timeout = \"200ms\"";
    let gateway = Gateway::start(&rules(&backend, server, ""));
    assert_eq!(Wire::open(gateway.address()).get("/").text(), "late");
}

#[test]
fn a_client_that_stops_in_its_body_is_a_408() {
    best_of_three(|| {
        let backend = Backend::scripted(|wire, _| drop(wire.request()));
        let gateway = Gateway::start(&rules(&backend, "body_timeout = \"300ms\"", ""));
        let started = Instant::now();
        let mut wire = Wire::with(gateway.address(), "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nhello");
        let answer = wire.answer();
        assert_took(started, 290..1200);
        assert_eq!((answer.status(), answer.closes()), (408, true));
        wire.assert_ended();
        backend.wait_closed();
        assert_eq!(backend.requests(), 0);
        wait_fault(&gateway, "client", "body-timeout", 1);
        let letter = only_letter(&gateway);
        assert_eq!((&letter["reason"], &letter["status"]), (&"timeout".into(), &408.into()));
    });
}

#[test]
fn a_slow_body_is_not_a_stopped_one() {
    let backend = Backend::scripted(|wire, _| {
        while let Ok(request) = wire.request() {
            wire.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", request.body.len()));
            wire.drip(request.body, Duration::from_millis(100));
        }
    });
    let gateway = Gateway::start(&rules(&backend, "body_timeout = \"600ms\"", ""));
    let mut wire = Wire::with(gateway.address(), "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 8\r\n\r\n");
    wire.drip("too slow", Duration::from_millis(100));
    assert_eq!(wire.answer().text(), "too slow");
}

#[test]
fn an_upstream_that_stops_in_its_body_is_cut() {
    best_of_three(|| {
        let backend = Backend::scripted(|wire, _| {
            if wire.request().is_ok() {
                wire.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello");
                drop(wire.rest());
            }
        });
        let gateway = Gateway::start(&rules(&backend, "body_timeout = \"300ms\"", ""));
        let started = Instant::now();
        let mut wire = Wire::with(gateway.address(), get("/"));
        assert_eq!(wire.head().unwrap().status(), 200);
        assert!(wire.is_cut());
        assert_took(started, 290..1200);
        backend.wait_closed();
        let count = |outcome: &str| gateway.metric("sluicegate_requests_total", &[&format!("outcome=\"{outcome}\"")]);
        assert!(eventually(|| count("timeout") + count("upstream-error") > 0.5));
        let reason = only_letter(&gateway)["reason"].clone();
        assert!(reason == "timeout" || reason == "upstream-error", "{reason}");
    });
}

#[test]
fn an_upstream_that_never_reads_a_large_upload_is_a_504() {
    let (tell, told) = mpsc::sync_channel::<()>(1);
    let told = Mutex::new(told);
    let backend = Backend::scripted(move |wire, _| {
        if wire.head().is_ok() {
            let _ = told.lock().unwrap().recv();
            assert!(wire.is_cut(), "what the kernel holds, and then an end");
        }
    });
    let gateway = Gateway::start(&rules(&backend, "body_timeout = \"500ms\"", ""));
    let before = gateway.resident();
    let mut wire = Wire::with(gateway.address(), "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000000\r\n\r\n");
    let writer = wire.stream().try_clone().unwrap();
    let writing = thread::spawn(move || {
        let block = vec![b'x'; 1 << 20];
        (0..1000).take_while(|_| std::io::Write::write_all(&mut &writer, &block).is_ok()).count()
    });
    let answer = wire.answer();
    assert_eq!(answer.status(), 504);
    assert!(gateway.resident().saturating_sub(before) < 8 << 20);
    drop(wire.stream().shutdown(Shutdown::Both));
    let written = writing.join().unwrap();
    assert!(written < 64, "{written} MiB were taken for an upstream that reads nothing");
    tell.send(()).unwrap();
    backend.wait_closed();
}

#[test]
fn a_client_that_does_not_read_holds_its_upstream_back_and_is_cut() {
    best_of_three(|| {
        let taken = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&taken);
        let backend = Backend::scripted(move |wire, _| {
            let Ok(request) = wire.request() else { return };
            if request.target() == "/warm" {
                wire.send(ok("warm"));
                return;
            }
            wire.send("HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n");
            let block = vec![b'x'; 1 << 16];
            while wire.send(&block) {
                count.fetch_add(block.len(), Ordering::SeqCst);
            }
        });
        let gateway = Gateway::start(&rules(&backend, "body_timeout = \"600ms\"", ""));
        assert_eq!(Wire::open(gateway.address()).get("/warm").text(), "warm");
        assert_eq!(backend.wait_closed(), 1);
        let before = gateway.resident();
        let started = Instant::now();
        let mut wire = Wire::with(gateway.address(), get("/"));
        assert!(eventually(|| taken.load(Ordering::SeqCst) > 0));
        thread::sleep(Duration::from_millis(300));
        let grown = gateway.resident().saturating_sub(before);
        assert!(grown < 8 << 20, "grew by {grown} bytes for a client that does not read");
        assert_eq!(backend.wait_closed(), 2);
        assert_took(started, 590..3000);
        let taken = taken.load(Ordering::SeqCst);
        assert!(taken < 64 << 20, "{taken} bytes were read for a client that takes none");
        gateway.wait_metric("sluicegate_requests_in_flight", &[], 0.0);
        let mut received = 0;
        let mut block = vec![0; 1 << 20];
        while let Ok(size) = wire.stream().read(&mut block)
            && size > 0
        {
            received += size;
        }
        assert!(received < 1_000_000_000, "cut");
        let _ = wire.is_cut();
        gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
        wait_outcome(&gateway, "forwarded", 1);
    });
}
