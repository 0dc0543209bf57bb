//! Extended CONNECT (RFC 8441): a stream that carries WebSocket to a server of HTTP/1.

use std::io::Read;
use std::time::Instant;

use base64ct::{Base64, Encoding};
use sha1::{Digest, Sha1};

use crate::support::{Backend, Gateway, eventually};
use crate::timing::{assert_took, best_of_three};
use crate::wire::{Wire, front, only_letter, rules, wait_outcome};

use super::frames::{CANCEL, DATA, END_HEADERS, END_STREAM, Ending, Fields, HEADERS, Raw, SETTINGS, pairs, status_of};

fn ask(path: &str) -> Fields {
    pairs(&[
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "http"),
        (":authority", "h"),
        (":path", path),
        ("sec-websocket-version", "13"),
        ("origin", "http://h"),
    ])
}

/// Says 101 as RFC 6455 has it.
fn switch(wire: &mut Wire) -> bool {
    let Ok(request) = wire.request() else { return false };
    let key = request.header("sec-websocket-key").unwrap_or_default().to_owned();
    let accept = Base64::encode_string(
        &Sha1::new().chain_update(key).chain_update("258EAFA5-E914-47DA-95CA-C5AB0DC85B11").finalize(),
    );
    wire.send(format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Accept: {accept}\r\nX-Own: 1\r\n\r\n"
    ))
}

fn echoing() -> Backend {
    Backend::scripted(|wire, _| {
        if switch(wire) {
            let mut room = [0; 4096];
            let mut stream = wire.stream().try_clone().unwrap();
            while let Ok(size @ 1..) = stream.read(&mut room) {
                wire.send(&room[..size]);
            }
        }
    })
}

fn tunnelled(gateway: &Gateway) -> (Raw, u32) {
    let mut raw = Raw::open(gateway.address());
    let id = raw.headers(END_HEADERS, &ask("/chat?a=b"));
    let head = raw.wait(|frame| frame.kind == HEADERS && frame.stream == id);
    assert_eq!((status_of(&head.payload), head.flags & END_STREAM), (200, 0), "{head:?}");
    (raw, id)
}

fn read(raw: &mut Raw, id: u32, size: usize) -> Vec<u8> {
    while raw.body(id).len() < size {
        raw.read().expect("more data");
    }
    raw.body(id)
}

#[test]
fn the_settings_say_that_it_may_be_asked_for() {
    let backend = echoing();
    let gateway = front(&backend);
    let mut raw = Raw::open(gateway.address());
    let settings = raw.wait(|frame| frame.kind == SETTINGS);
    assert!(settings.payload.chunks(6).any(|entry| entry == [0, 8, 0, 0, 0, 1]));
}

#[test]
fn a_tunnel_carries_bytes_both_ways_and_its_connection_carries_others() {
    let backend = echoing();
    let gateway = front(&backend);
    let (mut raw, id) = tunnelled(&gateway);
    let text = b"hello GET / HTTP/1.1\r\n\r\n0\r\n\r\n\0\x01\xFF";
    for byte in text {
        raw.upload(0, id, &[*byte]);
    }
    assert_eq!(read(&mut raw, id, text.len()), text);
    let large = vec![b'w'; 60_000];
    for piece in large.chunks(8_192) {
        raw.upload(0, id, piece);
    }
    assert_eq!(read(&mut raw, id, text.len() + large.len())[text.len()..], large);
    assert_eq!(raw.ask("/local").0, 200);
    gateway.wait_metric("sluicegate_tunnels_open", &[], 1.0);
    let seen = backend.seen.lock().unwrap()[0].clone();
    assert_eq!(seen.line, "GET /chat?a=b HTTP/1.1");
    assert_eq!((seen.header("upgrade"), seen.header("sec-websocket-version")), (Some("websocket"), Some("13")));
    assert!(seen.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("upgrade")), "{seen:?}");
    assert_eq!((seen.all("host"), seen.header("origin")), (vec!["h"], Some("http://h")));
    assert!(seen.all("transfer-encoding").is_empty() && seen.all("content-length").is_empty());
    // The client ends its side, the server then does, and the stream ends in order.
    raw.send(DATA, END_STREAM, id, b"");
    backend.wait_closed();
    let ending = raw.ending(id);
    assert!(matches!(ending, Ending::Answered(200, _)), "{ending:?}");
    wait_outcome(&gateway, "upgraded", 1);
    gateway.wait_metric("sluicegate_tunnels_open", &[], 0.0);
    assert_eq!(raw.ask("/local").0, 200);
}

#[test]
fn each_tunnel_has_a_nonce_of_its_own() {
    let backend = echoing();
    let gateway = front(&backend);
    let (mut raw, _) = tunnelled(&gateway);
    let id = raw.headers(END_HEADERS, &ask("/chat"));
    raw.wait(|frame| frame.kind == HEADERS && frame.stream == id);
    let seen = backend.seen.lock().unwrap();
    let keys: Vec<_> = seen.iter().map(|seen| seen.header("sec-websocket-key").unwrap().to_owned()).collect();
    assert!(keys.iter().all(|key| Base64::decode_vec(key).unwrap().len() == 16), "{keys:?}");
    assert_ne!(keys[0], keys[1]);
}

#[test]
fn what_a_client_sends_before_the_answer_arrives_behind_it() {
    let backend = Backend::scripted(|wire, _| {
        if switch(wire) {
            let bytes = wire.take(5).unwrap();
            wire.send(bytes);
            drop(wire.rest());
        }
    });
    let gateway = front(&backend);
    let mut raw = Raw::open(gateway.address());
    let id = raw.headers(END_HEADERS, &ask("/chat"));
    raw.send(DATA, 0, id, b"early");
    assert_eq!(read(&mut raw, id, 5), b"early");
}

#[test]
fn a_server_that_ends_its_side_ends_the_stream() {
    let backend = Backend::scripted(|wire, _| {
        if switch(wire) {
            wire.send("last words");
        }
    });
    let gateway = front(&backend);
    let (mut raw, id) = tunnelled(&gateway);
    let ending = raw.ending(id);
    assert_eq!(ending, Ending::Answered(200, b"last words".to_vec()));
    raw.send(DATA, END_STREAM, id, b"");
    gateway.wait_metric("sluicegate_tunnels_open", &[], 0.0);
    assert_eq!(raw.ask("/local").0, 200);
}

#[test]
fn a_client_that_resets_closes_the_server() {
    best_of_three(|| {
        let backend = echoing();
        let gateway = front(&backend);
        let (mut raw, id) = tunnelled(&gateway);
        let gone = Instant::now();
        raw.reset(id, CANCEL);
        backend.wait_closed();
        assert_took(gone, 0..1000);
        gateway.wait_metric("sluicegate_tunnels_open", &[], 0.0);
        assert_eq!(raw.ask("/local").0, 200);
    });
}

#[test]
fn an_answer_that_does_not_switch_is_no_tunnel() {
    for (bytes, status) in [
        ("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno", 403),
        ("HTTP/1.1 426 Upgrade Required\r\nContent-Length: 2\r\n\r\nno", 426),
        ("HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 2\r\n\r\nno", 302),
        // To the client a 2xx would be a tunnel.
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno", 502),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n", 502),
    ] {
        let backend = Backend::scripted(move |wire, _| while wire.request().is_ok() && wire.send(bytes) {});
        let gateway = front(&backend);
        let mut raw = Raw::open(gateway.address());
        let id = raw.headers(END_HEADERS, &ask("/chat"));
        assert_eq!(raw.ending(id), Ending::Answered(status, b"no".to_vec()), "{bytes:?}");
        gateway.wait_metric("sluicegate_tunnels_total", &[], 0.0);
        assert_eq!(raw.ask("/local").0, 200);
    }
}

#[test]
fn a_101_that_does_not_answer_the_key_is_a_502() {
    for accept in ["", "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"] {
        let backend = Backend::scripted(move |wire, _| {
            if wire.request().is_ok() {
                let head = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n";
                wire.send(format!("{head}{accept}\r\n"));
                drop(wire.rest());
            }
        });
        let gateway = front(&backend);
        let mut raw = Raw::open(gateway.address());
        let id = raw.headers(END_HEADERS, &ask("/chat"));
        assert!(matches!(raw.ending(id), Ending::Answered(502, _)), "{accept:?}");
        let why = "the server answered 101, but its Sec-WebSocket-Accept does not fit the key of the request";
        let told = only_letter(&gateway)["why"].to_string();
        assert!(told.contains(why), "{told}");
        gateway.wait_metric("sluicegate_tunnels_total", &[], 0.0);
    }
}

#[test]
fn a_101_to_who_has_not_asked_is_a_502() {
    let backend = Backend::scripted(|wire, _| {
        switch(wire);
    });
    let gateway = front(&backend);
    let mut raw = Raw::open(gateway.address());
    assert_eq!(raw.ask("/chat").0, 502);
    assert!(eventually(|| gateway.metric("sluicegate_tunnels_open", &[]) < 0.5));
}

#[test]
fn an_answer_that_would_pass_for_a_tunnel_is_a_502_for_the_client_and_in_the_log() {
    let backend = echoing();
    let gateway = Gateway::start(&format!("[log]\naccess = \"json\"\n{}", rules(&backend, "", "")));
    let mut raw = Raw::open(gateway.address());
    let id = raw.headers(END_HEADERS, &ask("/local"));
    assert!(matches!(raw.ending(id), Ending::Answered(502, _)));
    assert!(eventually(|| gateway.access_log().len() == 1));
    assert_eq!(gateway.access_log()[0]["status"], 502);
}

#[test]
fn a_tunnel_that_outlives_the_grace_is_closed_by_1001() {
    let backend = echoing();
    let mut gateway = Gateway::start(&rules(&backend, "shutdown_grace = \"100ms\"", ""));
    let (mut raw, id) = tunnelled(&gateway);
    let hello = [0x82, 3, 1, 2, 3];
    raw.send(DATA, 0, id, &hello);
    assert_eq!(read(&mut raw, id, hello.len()), hello);
    gateway.signal("TERM");
    assert_eq!(read(&mut raw, id, hello.len() + 4)[hello.len()..], [0x88, 2, 0x03, 0xe9]);
    raw.wait(|frame| frame.stream == id && frame.flags & END_STREAM != 0);
    assert!(gateway.wait_exit().success());
}
