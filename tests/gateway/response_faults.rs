//! Upstreams that speak no HTTP/1.1: a 502, or a cut where the head has gone out; never a response that looks whole.

use std::sync::Mutex;
use std::sync::mpsc;
use std::time::Duration;

use crate::support::{Backend, Gateway};
use crate::wire::{Faults, Wire, front, get, only_letter, rules, wait_fault, wait_outcome};

/// A backend that answers each connection's only request with the next of these, and waits for the gateway's end.
fn misbehaving(answers: Vec<Vec<u8>>) -> Backend {
    let answers = Mutex::new(answers.into_iter());
    Backend::scripted(move |wire, _| {
        if wire.request().is_ok() {
            let next = answers.lock().unwrap().next().unwrap_or_default();
            wire.send(next);
            drop(wire.rest());
        }
    })
}

/// Each answer is a 502 whose reason is counted, and its connection is closed; an empty reason where more would be
/// right.
fn refuses(cases: &[(&[u8], &str)]) {
    let backend = misbehaving(cases.iter().map(|(bytes, _)| bytes.to_vec()).collect());
    let gateway = Gateway::start(&rules(&backend, "max_head_size = \"4KiB\"\nmax_head_fields = 16", ""));
    let mut faults = Faults::default();
    let mut wrong = Vec::new();
    for (bytes, reason) in cases {
        let mut wire = Wire::with(gateway.address(), get("/"));
        wire.stream().set_read_timeout(Some(Duration::from_secs(3))).unwrap();
        let status = wire.response("GET").map(|answer| answer.status()).map_err(|error| error.to_string());
        drop(wire);
        backend.wait_closed();
        let counted = faults.next(&gateway, "upstream");
        if status != Ok(502) || (!reason.is_empty() && counted != *reason) {
            let start = String::from_utf8_lossy(&bytes[..bytes.len().min(120)]).into_owned();
            wrong.push(format!("{start:?} is 502 {reason:?}, and not {status:?} {counted:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    wait_outcome(&gateway, "upstream-error", cases.len());
    gateway.wait_metric("sluicegate_http1_faults_total", &["side=\"upstream\""], cases.len() as f64);
    gateway.wait_metric("sluicegate_http1_faults_total", &["side=\"client\""], 0.0);
}

#[test]
fn rfc_9112_2_2_and_4_status_lines() {
    refuses(&[
        (b"HTTP/1.1 200 OK\nContent-Length: 0\r\n\r\n", "bare-lf"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\n\n", "bare-lf"),
        (b"\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ""),
        (b"HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n", "status-line"),
        (b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n", "status-line"),
        (b"HTTP/1.1 099 OK\r\nContent-Length: 0\r\n\r\n", "status-line"),
        (b"HTTP/1.1 +20 OK\r\nContent-Length: 0\r\n\r\n", "status-line"),
        (b"HTTP/1.1  200 OK\r\nContent-Length: 0\r\n\r\n", "status-line"),
        (b"HTTP/1.1 200 a\0b\r\nContent-Length: 0\r\n\r\n", "status-line"),
        (b"ICY 200 OK\r\nContent-Length: 0\r\n\r\n", "status-line"),
        (b"http/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "status-line"),
        (b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n", ""),
        (b"<html>hello</html>\r\n\r\n", "status-line"),
        (b"\x15\x03\x01\x00\x02\x02\x0a\r\n\r\n", ""),
    ]);
}

#[test]
fn rfc_9112_5_fields() {
    let big = [b"HTTP/1.1 200 OK\r\nX: ".as_slice(), &[b'x'; 8000], b"\r\nContent-Length: 0\r\n\r\n"].concat();
    let many = format!("HTTP/1.1 200 OK\r\n{}Content-Length: 0\r\n\r\n", "X: y\r\n".repeat(20));
    refuses(&[
        (b"HTTP/1.1 200 OK\r\nX : y\r\nContent-Length: 0\r\n\r\n", "field-name"),
        (b"HTTP/1.1 200 OK\r\n: y\r\nContent-Length: 0\r\n\r\n", "field-name"),
        (b"HTTP/1.1 200 OK\r\nno colon\r\nContent-Length: 0\r\n\r\n", "field-name"),
        (b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 0\r\n\r\n", "obsolete-fold"),
        (b"HTTP/1.1 200 OK\r\nX: a\0\r\nContent-Length: 0\r\n\r\n", "field-value"),
        (b"HTTP/1.1 200 OK\r\nX: a\rb\r\nContent-Length: 0\r\n\r\n", "field-value"),
        (&big, "head-too-large"),
        (many.as_bytes(), "too-many-fields"),
    ]);
}

#[test]
fn rfc_9112_6_framing() {
    refuses(&[
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "length-and-coding"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", "length-and-coding"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "content-length-repeated"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", "content-length-repeated"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\nhello", "content-length-repeated"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello", "content-length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0x5\r\n\r\nhello", "content-length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775808\r\n\r\nhello", "content-length"),
        (b"HTTP/1.1 204 No Content\r\nContent-Length: x\r\n\r\n", "content-length"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "coding-unknown"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", "coding-repeated"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\nhello", "coding-not-final"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked;a\r\n\r\n0\r\n\r\n", "coding-not-final"),
        (b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "coding-on-1.0"),
    ]);
}

#[test]
fn a_malformed_response_is_a_502_with_a_dead_letter() {
    let backend = misbehaving(vec![b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n".to_vec()]);
    let gateway = front(&backend);
    let mut wire = Wire::with(gateway.address(), [get("/"), get("/local")].concat());
    let answer = wire.answer();
    assert_eq!((answer.status(), answer.closes()), (502, true), "after a doubt neither connection is used again");
    wire.assert_ended();
    let letter = only_letter(&gateway);
    assert_eq!((&letter["reason"], &letter["status"]), (&"upstream-error".into(), &502.into()));
    assert_eq!(letter["upstream"], "app");
}

#[test]
fn an_upstream_that_ends_before_its_head_does_is_a_502() {
    for part in ["", "HTTP/1.1 2", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r"] {
        let backend = Backend::scripted(move |wire, _| {
            if wire.request().is_ok() {
                wire.send(part);
            }
        });
        let gateway = front(&backend);
        assert_eq!(Wire::with(gateway.address(), get("/")).answer().status(), 502, "{part:?}");
        assert_eq!(backend.requests(), 1, "{part:?}: a new connection gives no reason to try again");
        wait_outcome(&gateway, "upstream-error", 1);
    }
}

#[test]
fn a_body_that_breaks_its_framing_cuts_the_client() {
    // The head has gone out when the fault comes: the only way to say so is an end without the terminator.
    for (start, fault, reason) in [
        ("Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", "zz\r\n\r\n0\r\n\r\n", "chunk-size"),
        ("Transfer-Encoding: chunked\r\n\r\n4\r\nhalf", "X\r\n0\r\n\r\n", "chunk-end"),
        ("Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", "1;a\nb\r\nx\r\n0\r\n\r\n", "chunk-extension"),
        ("Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", "0\r\nX : y\r\n\r\n", "trailer"),
        ("Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", "", "truncated"),
        ("Content-Length: 10\r\n\r\nhalf", "", "truncated"),
    ] {
        let (tell, told) = mpsc::sync_channel::<()>(1);
        let told = Mutex::new(told);
        let backend = Backend::scripted(move |wire, _| {
            if wire.request().is_ok() {
                wire.send(format!("HTTP/1.1 200 OK\r\n{start}"));
                let _ = told.lock().unwrap().recv();
                wire.send(fault);
                if !fault.is_empty() {
                    drop(wire.rest());
                }
            }
        });
        let gateway = front(&backend);
        let mut wire = Wire::with(gateway.address(), get("/"));
        let head = wire.head().unwrap();
        assert_eq!(head.status(), 200);
        tell.send(()).unwrap();
        let rest = wire.rest().unwrap_or_default();
        let text = String::from_utf8_lossy(&rest);
        assert!(text.contains("half") && !text.contains("0\r\n\r\n") && text.len() < 14, "{reason}: {text:?}");
        backend.wait_closed();
        wait_fault(&gateway, "upstream", reason, 1);
        wait_outcome(&gateway, "upstream-error", 1);
        assert_eq!(only_letter(&gateway)["reason"], "upstream-error");
    }
}

#[test]
fn a_bad_chunk_behind_the_head_never_looks_whole() {
    let backend = misbehaving(vec![b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n0\r\n\r\n".to_vec()]);
    let gateway = front(&backend);
    match Wire::with(gateway.address(), get("/")).response("GET") {
        Ok(answer) => assert_eq!(answer.status(), 502),
        Err(error) => assert!(error.kind() != std::io::ErrorKind::WouldBlock, "cut, and not left waiting: {error}"),
    }
    wait_fault(&gateway, "upstream", "chunk-size", 1);
    backend.wait_closed();
}

#[test]
fn an_endless_head_from_the_upstream_is_a_502() {
    let backend = Backend::scripted(|wire, _| {
        if wire.request().is_ok() && wire.send("HTTP/1.1 200 OK\r\n") {
            while wire.send(format!("X: {}\r\n", "y".repeat(1000))) {}
        }
    });
    let gateway = front(&backend);
    assert_eq!(Wire::with(gateway.address(), get("/")).answer().status(), 502);
    backend.wait_closed();
}
