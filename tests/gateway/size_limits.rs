//! How large a head and a body may be, and what is told of one that is larger.

use std::sync::atomic::Ordering;

use crate::support::{Backend, Gateway, eventually};
use crate::wire::{Wire, get, ok, only_letter, rules, telling, wait_fault, wait_outcome};

fn padded(size: usize) -> String {
    let head = get("/padded");
    let line = |length: usize| format!("X-Pad: {}\r\n", "p".repeat(length));
    let fixed = head.len() + line(0).len();
    head.replace("Host:", &format!("{}Host:", line(size - fixed)))
}

#[test]
fn a_head_below_its_limit_passes_both_ways() {
    let backend = Backend::scripted(|wire, _| {
        while let Ok(request) = wire.request() {
            let pad = request.header("x-pad").unwrap_or_default().to_owned();
            wire.send(format!("HTTP/1.1 200 OK\r\nX-Back: {pad}\r\nContent-Length: 2\r\n\r\nok"));
        }
    });
    let gateway = Gateway::start(&rules(&backend, "", ""));
    let mut wire = Wire::open(gateway.address());
    for size in [100, 4_000, 4_096, 4_097, 8_192, 16_384, 16_385, 40_000, 60_000] {
        wire.send(padded(size));
        let answer = wire.answer();
        assert_eq!((answer.status(), answer.text().as_str()), (200, "ok"), "a head of {size} bytes");
        let came = answer.header("x-back").map(str::len);
        assert_eq!(came, backend.seen.lock().unwrap().last().unwrap().header("x-pad").map(str::len));
        assert!(came.unwrap() > size - 100);
    }
    assert_eq!(backend.connections.load(Ordering::SeqCst), 1);
}

#[test]
fn the_limit_of_a_head_is_exact_and_configured() {
    let backend = telling();
    let gateway = Gateway::start(&rules(&backend, "max_head_size = \"4KiB\"", ""));
    assert_eq!(Wire::with(gateway.address(), padded(4096)).answer().status(), 200);
    let mut wire = Wire::with(gateway.address(), padded(4097));
    let answer = wire.answer();
    assert_eq!((answer.status(), answer.closes()), (431, true));
    wire.assert_ended();
    wait_fault(&gateway, "client", "head-too-large", 1);
    wait_outcome(&gateway, "malformed", 1);
    assert_eq!(backend.requests(), 1);
}

/// Sends this, and expects a refusal with a dead letter.
fn refused_as_too_large(server: &str, route: &str, bytes: &str, status: u16, reason: &str) {
    let backend = telling();
    let gateway = Gateway::start(&rules(&backend, server, route));
    let mut wire = Wire::with(gateway.address(), bytes);
    let answer = wire.answer();
    assert_eq!((answer.status(), answer.closes()), (status, true), "{answer:?}");
    wire.send(get("/smuggled"));
    wire.assert_ended();
    wait_fault(&gateway, "client", reason, 1);
    wait_outcome(&gateway, "malformed", 1);
    let letter = only_letter(&gateway);
    assert_eq!((&letter["reason"], &letter["status"]), (&"too-large".into(), &status.into()), "{letter}");
    assert_eq!(letter["client_ip"], "127.0.0.1");
    assert_eq!(backend.requests(), 0);
}

#[test]
fn a_head_that_is_too_large_is_a_431_before_it_ends() {
    let endless = format!("GET / HTTP/1.1\r\nHost: h\r\nX: {}", "x".repeat(5000));
    refused_as_too_large("max_head_size = \"4KiB\"", "", &endless, 431, "head-too-large");
}

#[test]
fn too_many_fields_are_a_431() {
    let many = format!("GET / HTTP/1.1\r\nHost: h\r\n{}", "X: y\r\n".repeat(8));
    refused_as_too_large("max_head_fields = 8", "", &many, 431, "too-many-fields");
}

#[test]
fn a_target_that_is_too_long_is_a_414_before_its_line_ends() {
    let endless = format!("GET /{}", "x".repeat(5000));
    refused_as_too_large("max_head_size = \"4KiB\"", "", &endless, 414, "target-too-long");
}

#[test]
fn as_many_fields_as_are_allowed_pass() {
    let backend = telling();
    let gateway = Gateway::start(&rules(&backend, "max_head_fields = 8", ""));
    let head = format!("GET / HTTP/1.1\r\nHost: h\r\n{}\r\n", "X: y\r\n".repeat(7));
    assert_eq!(Wire::with(gateway.address(), head).answer().status(), 200);
    assert_eq!(backend.seen.lock().unwrap()[0].all("x").len(), 7);
}

#[test]
fn a_body_whose_length_is_too_large_is_a_413_and_the_upstream_hears_nothing() {
    let backend = telling();
    let gateway = Gateway::start(&rules(&backend, "", "max_body_size = \"1KiB\""));
    let mut wire = Wire::with(gateway.address(), "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1025\r\n\r\n");
    let answer = wire.answer();
    assert_eq!((answer.status(), answer.closes()), (413, true));
    // The body comes all the same, and begins like a request.
    wire.send(format!("{}{}", get("/smuggled"), "x".repeat(1000)));
    wire.assert_ended();
    wait_fault(&gateway, "client", "body-too-large", 1);
    let letter = only_letter(&gateway);
    assert_eq!((&letter["reason"], &letter["status"]), (&"too-large".into(), &413.into()));
    assert_eq!(letter["route"], "all");
    assert_eq!(backend.connections.load(Ordering::SeqCst), 0);
}

#[test]
fn a_body_that_grows_too_large_is_a_413_and_its_upstream_is_cut() {
    let backend = Backend::scripted(|wire, _| drop(wire.request()));
    let gateway = Gateway::start(&rules(&backend, "", "max_body_size = \"1KiB\""));
    let chunk = |size: usize| format!("{size:x}\r\n{}\r\n", "x".repeat(size));
    let mut wire = Wire::with(
        gateway.address(),
        format!("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n{}", chunk(1000)),
    );
    assert!(eventually(|| backend.connections.load(Ordering::SeqCst) == 1));
    wire.send(format!("{}0\r\n\r\n{}", chunk(25), get("/smuggled")));
    let answer = wire.answer();
    assert_eq!((answer.status(), answer.closes()), (413, true));
    wire.assert_ended();
    backend.wait_closed();
    assert_eq!(backend.requests(), 0);
    wait_fault(&gateway, "client", "body-too-large", 1);
    assert_eq!(only_letter(&gateway)["reason"], "too-large");
}

#[test]
fn a_body_as_large_as_allowed_passes() {
    let backend = Backend::scripted(|wire, _| {
        while let Ok(request) = wire.request() {
            wire.send(ok(&request.body.len().to_string()));
        }
    });
    let gateway = Gateway::start(&rules(&backend, "", "max_body_size = \"1KiB\""));
    let body = "x".repeat(1024);
    let mut wire = Wire::open(gateway.address());
    wire.send(format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1024\r\n\r\n{body}"));
    assert_eq!(wire.answer().text(), "1024");
    // Only content counts, not how it is cut into chunks.
    let chunks = "1;extension=value\r\nx\r\n".repeat(1024);
    wire.send(format!("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n"));
    assert_eq!(wire.answer().text(), "1024");
}

#[test]
fn a_routes_own_limit_holds_in_place_of_the_servers() {
    let upload = |server: &str, route: &str| {
        let backend = telling();
        let gateway = Gateway::start(&rules(&backend, server, route));
        let bytes = format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2000\r\n\r\n{}", "x".repeat(2000));
        Wire::with(gateway.address(), bytes).answer().status()
    };
    assert_eq!(upload("max_body_size = \"1KiB\"", ""), 413);
    assert_eq!(upload("max_body_size = \"1KiB\"", "max_body_size = \"2KiB\""), 200);
    assert_eq!(upload("max_body_size = \"1KiB\"", "max_body_size = \"none\""), 200);
    assert_eq!(upload("max_body_size = \"2KiB\"", "max_body_size = \"1KiB\""), 413);
    assert_eq!(upload("", ""), 200, "none by default");
}

#[test]
fn a_refused_body_that_never_ends_does_not_hold_the_connection_open() {
    let backend = telling();
    let gateway = Gateway::start(&rules(&backend, "", "max_body_size = \"1KiB\""));
    let mut wire = Wire::with(gateway.address(), "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000000\r\n\r\n");
    assert_eq!(wire.answer().status(), 413);
    let block = [b'x'; 4096];
    assert!(eventually(|| !wire.send(block)), "lingering has an end");
    gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
}

#[test]
fn a_client_that_writes_all_of_its_upload_before_it_reads_learns_why_it_was_refused() {
    let backend = telling();
    let gateway = Gateway::start(&rules(&backend, "", "max_body_size = \"1KiB\""));
    let body = vec![b'x'; 10 << 20];
    for _ in 0..3 {
        let head = format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", body.len());
        let mut wire = Wire::with(gateway.address(), head);
        assert!(wire.send(&body), "cut while it writes");
        let answer = wire.answer_to("POST");
        assert_eq!((answer.status(), answer.closes()), (413, true));
        wire.assert_ended();
    }
    assert_eq!(backend.connections.load(Ordering::SeqCst), 0);
}
