//! Requests that are not HTTP/1.1 to the letter: refused, counted by reason, closed, and never forwarded. Behind each
//! comes a good request on the same connection, which nobody may answer.

use std::sync::atomic::Ordering;

use crate::support::{Backend, Client, Gateway, eventually};
use crate::wire::{Faults, Wire, get, rules, telling, wait_fault, wait_outcome};

/// The bytes that are sent, the status and the reason; an empty reason where more than one would be right.
type Case<'a> = (&'a [u8], u16, &'a str);

const BEHIND: &[u8] = b"GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n";

/// Sends each with a good request behind it, and expects the refusal alone.
fn refuses(backend: &Backend, gateway: &Gateway, cases: &[Case]) {
    let mut faults = Faults::default();
    let mut wrong = Vec::new();
    for (bytes, status, reason) in cases {
        let refusal = Wire::with(gateway.address(), [bytes, BEHIND].concat()).refusal();
        let counted = faults.next(gateway, "client");
        if refusal != Ok(*status) || (!reason.is_empty() && counted != *reason) {
            let start = String::from_utf8_lossy(&bytes[..bytes.len().min(120)]).into_owned();
            wrong.push(format!("{start:?} is {status} {reason:?}, and not {refusal:?} {counted:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    gateway.wait_metric("sluicegate_http1_faults_total", &["side=\"client\""], cases.len() as f64);
    let seen = backend.seen.lock().unwrap().clone();
    assert!(seen.is_empty(), "{seen:?}");
}

/// As [`refuses`], for heads: the upstream is not even connected to.
fn refuses_heads(cases: &[Case]) {
    let backend = telling();
    let gateway = Gateway::start(&rules(&backend, "max_head_size = \"4KiB\"\nmax_head_fields = 16", ""));
    refuses(&backend, &gateway, cases);
    wait_outcome(&gateway, "malformed", cases.len());
    assert_eq!(backend.connections.load(Ordering::SeqCst), 0);
}

#[test]
fn rfc_9112_2_2_line_ends_and_folds() {
    refuses_heads(&[
        (b"GET / HTTP/1.1\nHost: h\r\n\r\n", 400, "bare-lf"),
        (b"GET / HTTP/1.1\r\nHost: h\n\r\n", 400, "bare-lf"),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: a\nY: b\r\n\r\n", 400, "bare-lf"),
        (b"GET / HTTP/1.1\r\nHost: h\r\n\n", 400, "bare-lf"),
        (b"GET / HTTP/1.1\n\n", 400, "bare-lf"),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: a\rb\r\n\r\n", 400, "field-value"),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: a\r\r\n\r\n", 400, "field-value"),
        (b"GET / HTTP/1.1\rHost: h\r\n\r\n", 400, ""),
        (b"\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n", 400, "empty-lines"),
        (b"\nGET / HTTP/1.1\r\nHost: h\r\n\r\n", 400, ""),
        (b"GET / HTTP/1.1\r\n Host: h\r\n\r\n", 400, "obsolete-fold"),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: a\r\n b\r\n\r\n", 400, "obsolete-fold"),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: a\r\n\tb: c\r\n\r\n", 400, "obsolete-fold"),
    ]);
}

#[test]
fn rfc_9112_3_request_lines() {
    refuses_heads(&[
        (b"GET /\r\nHost: h\r\n\r\n", 400, ""),
        (b"GET\r\n\r\n", 400, "request-line"),
        (b" GET / HTTP/1.1\r\nHost: h\r\n\r\n", 400, "request-line"),
        (b"GET  / HTTP/1.1\r\nHost: h\r\n\r\n", 400, ""),
        (b"GET / HTTP/1.1 \r\nHost: h\r\n\r\n", 400, ""),
        (b"GET /  HTTP/1.1\r\nHost: h\r\n\r\n", 400, ""),
        (b"GET /a b HTTP/1.1\r\nHost: h\r\n\r\n", 400, ""),
        (b"GET\t/ HTTP/1.1\r\nHost: h\r\n\r\n", 400, "request-line"),
        (b"G@T / HTTP/1.1\r\nHost: h\r\n\r\n", 400, "request-line"),
        (b"GET / http/1.1\r\nHost: h\r\n\r\n", 400, "request-line"),
        (b"GET / HTTP/1.10\r\nHost: h\r\n\r\n", 400, "request-line"),
        (b"GET / HTTP/x.1\r\nHost: h\r\n\r\n", 400, "request-line"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "request-line"),
        (b"GET / HTTP/2.0\r\nHost: h\r\n\r\n", 505, "version"),
        (b"GET / HTTP/1.2\r\nHost: h\r\n\r\n", 505, "version"),
        (b"GET / HTTP/0.9\r\nHost: h\r\n\r\n", 505, "version"),
    ]);
}

#[test]
fn rfc_9110_9_1_methods_that_a_server_may_read_as_others() {
    refuses_heads(&[
        (b"get / HTTP/1.1\r\nHost: h\r\n\r\n", 400, "method-case"),
        (b"Post / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n", 400, "method-case"),
        (b"HEAd / HTTP/1.1\r\nHost: h\r\n\r\n", 400, "method-case"),
        (b"options * HTTP/1.1\r\nHost: h\r\n\r\n", 400, ""),
        (b"x-own / HTTP/1.1\r\nHost: h\r\n\r\n", 400, "method-case"),
    ]);
}

#[test]
fn rfc_9112_3_2_targets() {
    let long = [b"GET /".as_slice(), &[b'a'; 8000], b" HTTP/1.1\r\nHost: h\r\n\r\n"].concat();
    refuses_heads(&[
        (b"GET x HTTP/1.1\r\nHost: h\r\n\r\n", 400, "target-form"),
        (b"GET * HTTP/1.1\r\nHost: h\r\n\r\n", 400, "target-form"),
        (b"GET ftp://h/ HTTP/1.1\r\nHost: h\r\n\r\n", 400, "target-form"),
        (b"GET http:///x HTTP/1.1\r\nHost: h\r\n\r\n", 400, ""),
        (b"GET http://user@h/ HTTP/1.1\r\nHost: h\r\n\r\n", 400, ""),
        (b"GET http://h?\x00 HTTP/1.1\r\nHost: h\r\n\r\n", 400, ""),
        (b"OPTIONS x HTTP/1.1\r\nHost: h\r\n\r\n", 400, "target-form"),
        (b"OPTIONS *x HTTP/1.1\r\nHost: h\r\n\r\n", 400, "target-form"),
        (b"GET h:80 HTTP/1.1\r\nHost: h\r\n\r\n", 400, "target-form"),
        (b"CONNECT h:80 HTTP/1.1\r\nHost: h:80\r\n\r\n", 400, "connect"),
        (b"CONNECT / HTTP/1.1\r\nHost: h\r\n\r\n", 400, "connect"),
        (b"GET /a#b HTTP/1.1\r\nHost: h\r\n\r\n", 400, "target-byte"),
        (b"GET /a\"b HTTP/1.1\r\nHost: h\r\n\r\n", 400, "target-byte"),
        (b"GET /<b HTTP/1.1\r\nHost: h\r\n\r\n", 400, "target-byte"),
        (b"GET /b> HTTP/1.1\r\nHost: h\r\n\r\n", 400, "target-byte"),
        (b"GET /\xc3\xa9 HTTP/1.1\r\nHost: h\r\n\r\n", 400, ""),
        (b"GET /\x7f HTTP/1.1\r\nHost: h\r\n\r\n", 400, ""),
        (b"GET /a\x00 HTTP/1.1\r\nHost: h\r\n\r\n", 400, ""),
        (b"GET /a\tb HTTP/1.1\r\nHost: h\r\n\r\n", 400, ""),
        (&long, 414, "target-too-long"),
    ]);
}

#[test]
fn rfc_9112_3_2_host() {
    refuses_heads(&[
        (b"GET / HTTP/1.1\r\n\r\n", 400, "host-missing"),
        (b"GET http://h/ HTTP/1.1\r\n\r\n", 400, "host-missing"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, "host-repeated"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: y\r\nhOST: a\r\n\r\n", 400, "host-repeated"),
        (b"GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n", 400, "host-repeated"),
        (b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400, "host-invalid"),
        (b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400, "host-invalid"),
        (b"GET / HTTP/1.1\r\nHost: a@b\r\n\r\n", 400, "host-invalid"),
        (b"GET / HTTP/1.1\r\nHost: a?b\r\n\r\n", 400, "host-invalid"),
        (b"GET / HTTP/1.1\r\nHost: a#b\r\n\r\n", 400, "host-invalid"),
        (b"GET / HTTP/1.1\r\nHost: a\\b\r\n\r\n", 400, "host-invalid"),
        (b"GET / HTTP/1.1\r\nHost: \xc3\xa9\r\n\r\n", 400, "host-invalid"),
        (b"GET http://h/ HTTP/1.1\r\nHost: a b\r\n\r\n", 400, "host-invalid"),
    ]);
}

#[test]
fn rfc_9112_5_1_names_and_rfc_9110_5_5_values() {
    refuses_heads(&[
        (b"GET / HTTP/1.1\r\nHost : h\r\n\r\n", 400, "field-name"),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX\t: 1\r\n\r\n", 400, "field-name"),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400, "field-name"),
        (b"GET / HTTP/1.1\r\nHost: h\r\n: 1\r\n\r\n", 400, "field-name"),
        (b"GET / HTTP/1.1\r\nHost: h\r\nno colon\r\n\r\n", 400, "field-name"),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX(Y): 1\r\n\r\n", 400, "field-name"),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX\0: 1\r\n\r\n", 400, "field-name"),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX\xe9: 1\r\n\r\n", 400, "field-name"),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: a\0b\r\n\r\n", 400, "field-value"),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: a\x7fb\r\n\r\n", 400, "field-value"),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: \x0b\r\n\r\n", 400, "field-value"),
    ]);
}

#[test]
fn rfc_9112_6_1_transfer_codings() {
    const POST: &str = "POST / HTTP/1.1\r\nHost: h\r\n";
    let of = |version: &str, lines: &str| format!("{}{lines}\r\n\r\n0\r\n\r\n", POST.replace("HTTP/1.1", version));
    let table = [
        ("Transfer-Encoding: gzip, chunked", 501, "coding-unknown"),
        ("Transfer-Encoding: x, chunked", 501, "coding-unknown"),
        ("Transfer-Encoding: identity", 400, "coding-not-final"),
        ("Transfer-Encoding: xchunked", 400, "coding-not-final"),
        ("Transfer-Encoding: chunked;q=1", 400, "coding-not-final"),
        ("Transfer-Encoding: \"chunked\"", 400, "coding-not-final"),
        ("Transfer-Encoding:", 400, "coding-not-final"),
        ("Transfer-Encoding: chunked, gzip", 400, "coding-not-final"),
        ("Transfer-Encoding: ,chunked", 400, ""),
        ("Transfer-Encoding: chunked,", 400, ""),
        ("Transfer-Encoding: chunked, chunked", 400, "coding-repeated"),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", 400, "coding-repeated"),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", 400, "coding-not-final"),
        ("Transfer-Encoding: \u{b}chunked", 400, "field-value"),
        ("Transfer-Encoding: chunked\r\nContent-Length: 5", 400, "length-and-coding"),
        ("Content-Length: 5\r\nTransfer-Encoding: chunked", 400, "length-and-coding"),
        ("Content-Length: 5\r\nTransfer-Encoding: identity", 400, ""),
    ];
    let texts: Vec<(String, u16, &str)> =
        table.iter().map(|(lines, status, reason)| (of("HTTP/1.1", lines), *status, *reason)).collect();
    let mut cases: Vec<Case> = texts.iter().map(|(text, status, reason)| (text.as_bytes(), *status, *reason)).collect();
    let old = of("HTTP/1.0", "Transfer-Encoding: chunked");
    cases.push((old.as_bytes(), 400, "coding-on-1.0"));
    refuses_heads(&cases);
}

#[test]
fn rfc_9112_6_3_lengths() {
    let of = |lines: &str| format!("POST / HTTP/1.1\r\nHost: h\r\n{lines}\r\n\r\nhello");
    let table = [
        ("Content-Length: +5", "content-length"),
        ("Content-Length: -5", "content-length"),
        ("Content-Length: 0x5", "content-length"),
        ("Content-Length: 5a", "content-length"),
        ("Content-Length: 5 5", "content-length"),
        ("Content-Length: 5;", "content-length"),
        ("Content-Length: 1_0", "content-length"),
        ("Content-Length: 5.0", "content-length"),
        ("Content-Length:", "content-length"),
        ("Content-Length: \u{665}", "content-length"),
        ("Content-Length: 9223372036854775808", "content-length"),
        ("Content-Length: 18446744073709551621", "content-length"),
        ("Content-Length: 5, 5", "content-length-repeated"),
        ("Content-Length: 5\r\nContent-Length: 5", "content-length-repeated"),
        ("Content-Length: 5\r\nContent-Length: 6", "content-length-repeated"),
        ("Content-Length: 5\r\ncontent-length: 0", "content-length-repeated"),
    ];
    let texts: Vec<(String, &str)> = table.iter().map(|(lines, reason)| (of(lines), *reason)).collect();
    let cases: Vec<Case> = texts.iter().map(|(text, reason)| (text.as_bytes(), 400, *reason)).collect();
    refuses_heads(&cases);
}

#[test]
fn rfc_9110_10_1_1_expectations() {
    refuses_heads(&[
        (b"GET / HTTP/1.1\r\nHost: h\r\nExpect: 200-ok\r\n\r\n", 417, "expectation"),
        (b"GET / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue, x\r\n\r\n", 417, "expectation"),
    ]);
}

#[test]
fn rfc_9112_7_1_chunks() {
    const HEAD: &str = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
    let long = format!("5;{}\r\nhello\r\n0\r\n\r\n", "x".repeat(300));
    let trailers = format!("0\r\n{}\r\n", "X: y\r\n".repeat(40));
    let big_trailer = format!("0\r\nX: {}\r\n\r\n", "y".repeat(9000));
    let table = [
        ("x\r\nhello\r\n0\r\n\r\n", "chunk-size"),
        ("-5\r\nhello\r\n0\r\n\r\n", "chunk-size"),
        ("+5\r\nhello\r\n0\r\n\r\n", "chunk-size"),
        ("0x5\r\nhello\r\n0\r\n\r\n", "chunk-size"),
        (" 5\r\nhello\r\n0\r\n\r\n", "chunk-size"),
        ("\r\nhello\r\n0\r\n\r\n", "chunk-size"),
        ("00000000000000005\r\nhello\r\n0\r\n\r\n", "chunk-size"),
        ("8000000000000000\r\nhello\r\n0\r\n\r\n", "chunk-size"),
        ("fffffffffffffffff\r\nhello\r\n0\r\n\r\n", "chunk-size"),
        (";x\r\nhello\r\n0\r\n\r\n", "chunk-size"),
        ("5\nhello\r\n0\r\n\r\n", ""),
        ("5\rhello\r\n0\r\n\r\n", ""),
        ("5;a\nb\r\nhello\r\n0\r\n\r\n", "chunk-extension"),
        ("5;a\rb\r\nhello\r\n0\r\n\r\n", ""),
        ("5;a\0\r\nhello\r\n0\r\n\r\n", "chunk-extension"),
        (long.as_str(), "chunk-extension"),
        ("5\r\nhelloX\r\n0\r\n\r\n", "chunk-end"),
        ("5\r\nhello\n0\r\n\r\n", "chunk-end"),
        ("5\r\nhello0\r\n\r\n", "chunk-end"),
        ("4\r\nhello\r\n0\r\n\r\n", "chunk-end"),
        ("0\r\nX: a\n\r\n", "trailer"),
        ("0\r\nX : a\r\n\r\n", "trailer"),
        ("0\r\nX: a\r\n b\r\n\r\n", "trailer"),
        ("0\r\nX: a\0\r\n\r\n", "trailer"),
        ("0\r\nno colon\r\n\r\n", "trailer"),
        (trailers.as_str(), "trailer"),
        (big_trailer.as_str(), "trailer"),
    ];
    let texts: Vec<(String, &str)> = table.iter().map(|(body, reason)| (format!("{HEAD}{body}"), *reason)).collect();
    let cases: Vec<Case> = texts.iter().map(|(text, reason)| (text.as_bytes(), 400, *reason)).collect();
    let backend = telling();
    refuses(&backend, &Gateway::start(&rules(&backend, "", "")), &cases);
}

#[test]
fn a_bad_chunk_in_the_middle_cuts_the_upstream_and_answers_400() {
    let backend = Backend::scripted(|wire, _| drop(wire.request()));
    let gateway = Gateway::start(&rules(&backend, "", ""));
    let mut wire =
        Wire::with(gateway.address(), "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
    assert!(eventually(|| backend.connections.load(Ordering::SeqCst) == 1), "the head goes before the body's end");
    wire.send([b"zz\r\n\r\n0\r\n\r\n".as_slice(), BEHIND].concat());
    let answer = wire.answer();
    assert_eq!((answer.status(), answer.closes()), (400, true));
    wire.assert_ended();
    backend.wait_closed();
    assert_eq!(backend.requests(), 0, "the upstream must not take what it has for a whole request");
    wait_fault(&gateway, "client", "chunk-size", 1);
}

#[test]
fn what_can_become_no_request_is_refused_at_once() {
    // Nothing follows and the client waits: a gateway that waited for the head's end would wait with it.
    let backend = telling();
    let gateway = Gateway::start(&rules(&backend, "head_timeout = \"60s\"", ""));
    for bytes in [
        b"\x16".as_slice(),
        b"\0",
        b"(",
        b"\r\n\r\n",
        b"GET / HTTP/1.1\n",
        b"GET / HTTP/1.1\r\nHost: h\n",
        b"GET / HTTP/1.1\r\nHost: h\r\n X",
    ] {
        let mut wire = Wire::with(gateway.address(), bytes);
        assert_eq!(wire.answer().status(), 400, "{:?}", String::from_utf8_lossy(bytes));
        wire.assert_ended();
    }
}

#[test]
fn a_single_empty_line_before_a_request_is_forgiven() {
    let backend = telling();
    let gateway = Gateway::start(&rules(&backend, "", ""));
    let mut wire = Wire::with(gateway.address(), format!("\r\n{}", get("/first")));
    assert_eq!(wire.answer().text(), "1 /first");
    wire.send(format!("\r\n{}", get("/second")));
    assert_eq!(wire.answer().text(), "1 /second");
}

#[test]
fn a_head_that_breaks_off_is_no_request() {
    let backend = telling();
    let gateway = Gateway::start(&rules(&backend, "", ""));
    for bytes in ["GET / HTTP/1.1\r\nHost: h\r\n", "GET / HTTP/1.1\r\nHost: h\r\n\r", "G"] {
        let mut wire = Wire::with(gateway.address(), bytes);
        wire.finish();
        assert!(wire.is_cut(), "{bytes:?}");
    }
    assert_eq!(backend.connections.load(Ordering::SeqCst), 0);
}

#[test]
fn a_client_that_goes_on_sending_reads_its_400() {
    let backend = telling();
    let gateway = Gateway::start(&rules(&backend, "", ""));
    for _ in 0..20 {
        let mut wire = Wire::with(gateway.address(), "GET / HTTP/1.1\r\nHost : h\r\n\r\n");
        for _ in 0..8 {
            // Closed without lingering, this would be answered by a reset that takes the 400 with it.
            wire.send([b'x'; 4096]);
        }
        assert_eq!(wire.answer().status(), 400);
        wire.assert_ended();
    }
}

#[test]
fn a_strict_gateway_still_takes_what_the_rfcs_allow() {
    let backend = telling();
    let gateway = Gateway::start(&rules(&backend, "", ""));
    let mut client = Client::connect(gateway.address());
    for request in [
        "GET /plain HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /brackets?a[]={b}|c\\^`%zz HTTP/1.1\r\nHost: h\r\n\r\n",
        "M-SEARCH /method HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /v6 HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n",
        "GET /obs HTTP/1.1\r\nHost: h\r\nX: caf\u{e9}\t!\r\nY:\r\nZ:tight\r\n\r\n",
        "POST /zeros HTTP/1.1\r\nHost: h\r\nContent-Length: 0005\r\n\r\nhello",
        "POST /case HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: \t CHUNKED \r\n\r\n5 ;a=b;c=\"d\"\r\nhello\r\n0\r\n\r\n",
        "POST /leading HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0000000000000005\r\nhello\r\n00\r\n\r\n",
    ] {
        std::io::Write::write_all(&mut client.stream, request.as_bytes()).unwrap();
        let answer = client.read_answer(false).unwrap();
        assert_eq!(answer.status, 200, "{request:?}: {}", answer.text());
    }
    let seen = backend.seen.lock().unwrap();
    assert!(seen.iter().skip(5).all(|request| request.body == b"hello"), "{seen:?}");
}
