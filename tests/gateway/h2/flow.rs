//! Windows: a stream that stalls stalls itself alone, and not for ever.

use std::sync::Mutex;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::support::{Backend, Gateway, eventually};
use crate::timing::{assert_took, best_of_three};
use crate::wire::{Message, front, ok, rules, wait_outcome};

use super::frames::{DATA, END_HEADERS, END_STREAM, Ending, HEADERS, NO_ERROR, Raw, request};

const LARGE: usize = 64 << 20;

/// Answers `/large` with [`LARGE`] bytes, takes and never reads the body of `/stuck`, and answers others with their body's
/// size.
fn sizes() -> Backend {
    Backend::scripted(|wire, _| {
        while let Ok(mut request) = wire.head() {
            match request.target() {
                "/large" => {
                    wire.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n"));
                    let piece = vec![b'x'; 1 << 20];
                    for _ in 0..LARGE >> 20 {
                        if !wire.send(&piece) {
                            return;
                        }
                    }
                }
                "/stuck" => {
                    std::thread::sleep(Duration::from_secs(60));
                    return;
                }
                _ => {
                    let Ok(()) = wire.body_of(&mut request) else { return };
                    wire.send(ok(&request.body.len().to_string()));
                }
            }
        }
    })
}

#[test]
fn a_download_that_is_not_read_stalls_no_other() {
    let backend = sizes();
    let gateway = front(&backend);
    let before = gateway.resident();
    let mut raw = Raw::open(gateway.address());
    raw.credits = false;
    // The window of the connection is left open, those of the streams are not.
    raw.window(0, 1 << 30);
    let stalled: Vec<u32> = (0..20).map(|_| raw.get("/large")).collect();
    for id in &stalled {
        let id = *id;
        while raw.body(id).len() < 65_535 {
            raw.read();
        }
    }
    for number in 0..20 {
        assert_eq!(raw.ask(&format!("/{number}")), (200, "0".to_owned()));
    }
    let grown = gateway.resident().saturating_sub(before);
    assert!(grown < 16 << 20, "grew by {grown} bytes");
    assert!(stalled.iter().all(|id| raw.body(*id).len() == 65_535));
    // And it goes on where it is read.
    raw.credits = true;
    raw.seen.clear();
    raw.window(stalled[0], 100_000);
    let mut came = 0;
    while came < 1 << 20 {
        let frame = raw.read().unwrap();
        came += if frame.stream == stalled[0] { frame.payload.len() } else { 0 };
    }
}

#[test]
fn a_hundred_downloads_that_share_a_small_window_are_served_in_turn() {
    const SIZE: usize = 12_000;
    const TURN: usize = 4_096;
    let backend = Backend::scripted(|wire, _| {
        while let Ok(request) = wire.request() {
            let size = if request.target() == "/first" { 65_535 } else { SIZE };
            wire.send(ok(&"x".repeat(size)));
        }
    });
    let gateway = front(&backend);
    let mut raw = Raw::with_settings(gateway.address(), &[(4, 1 << 24)]);
    raw.credits = false;
    let first = raw.get("/first");
    assert!(matches!(raw.ending(first), Ending::Answered(200, body) if body.len() == 65_535));
    // The window is shut: all that comes are heads, and what came with them waits.
    let ids: Vec<u32> = (0..100).map(|_| raw.get("/")).collect();
    for id in &ids {
        raw.wait(|frame| frame.kind == HEADERS && frame.stream == *id);
    }
    let mut came = vec![0; ids.len()];
    let mut given = 0;
    while given < ids.len() * SIZE {
        let more = (2 * TURN).min(ids.len() * SIZE - given);
        given += more;
        raw.window(0, u32::try_from(more).unwrap());
        while came.iter().sum::<usize>() < given {
            let frame = raw.read().unwrap();
            assert!(frame.kind == DATA && frame.payload.len() <= TURN, "{frame:?}");
            came[ids.iter().position(|id| *id == frame.stream).unwrap()] += frame.payload.len();
        }
        let (least, most) = (*came.iter().min().unwrap(), *came.iter().max().unwrap());
        assert!(most - least <= TURN, "{least} to {most} bytes a stream");
    }
    assert!(came.iter().all(|size| *size == SIZE));
}

#[test]
fn an_upload_that_is_not_taken_stalls_no_other() {
    let backend = sizes();
    let gateway = front(&backend);
    let before = gateway.resident();
    let mut raw = Raw::open(gateway.address());
    let piece = [b'x'; 16_384];
    for _ in 0..8 {
        let id = raw.headers(END_HEADERS, &request("POST", "/stuck"));
        // Nearly all that its window holds; how much the gateway takes of it is its own affair.
        for _ in 0..15 {
            raw.upload(0, id, &piece);
        }
    }
    for number in 0..20 {
        let id = raw.headers(END_HEADERS, &request("POST", &format!("/{number}")));
        for _ in 0..4 {
            raw.upload(0, id, &piece);
        }
        raw.send(DATA, END_STREAM, id, b"");
        assert_eq!(raw.ending(id), Ending::Answered(200, b"65536".to_vec()));
    }
    let grown = gateway.resident().saturating_sub(before);
    assert!(grown < 24 << 20, "grew by {grown} bytes");
}

#[test]
fn uploads_that_are_not_taken_leave_each_other_one_its_share_of_the_window() {
    let backend = sizes();
    let gateway = front(&backend);
    let before = gateway.resident();
    let mut raw = Raw::open(gateway.address());
    let stuck: Vec<u32> = (0..40).map(|_| raw.headers(END_HEADERS, &request("POST", "/stuck"))).collect();
    // Each sends all that it may, until no window opens for any.
    loop {
        let mut has_sent = false;
        for id in &stuck {
            while raw.may_send(*id) > 0 {
                let size = raw.may_send(*id).min(16_384);
                raw.upload(0, *id, &vec![b'x'; size as usize]);
                has_sent = true;
            }
        }
        raw.read_for(Duration::from_millis(300));
        if !has_sent {
            break;
        }
    }
    for number in 0..20 {
        let id = raw.headers(END_HEADERS, &request("POST", &format!("/{number}")));
        for _ in 0..50 {
            raw.upload(0, id, &[b'x'; 2_000]);
        }
        raw.send(DATA, END_STREAM, id, b"");
        assert_eq!(raw.ending(id), Ending::Answered(200, b"100000".to_vec()));
    }
    let grown = gateway.resident().saturating_sub(before);
    assert!(grown < 48 << 20, "grew by {grown} bytes");
}

#[test]
fn a_window_that_never_opens_ends_by_the_body_timeout() {
    best_of_three(|| {
        let backend = sizes();
        let gateway = Gateway::start(&rules(&backend, "body_timeout = \"300ms\"", ""));
        let mut raw = Raw::with_settings(gateway.address(), &[(4, 0)]);
        raw.credits = false;
        let started = Instant::now();
        let id = raw.get("/large");
        let ending = raw.ending(id);
        assert!(matches!(ending, Ending::Reset(code) if code != NO_ERROR), "{ending:?}");
        assert_took(started, 250..2000);
        assert_eq!((raw.status(id), raw.body(id).len()), (200, 0));
        backend.wait_closed();
        wait_outcome(&gateway, "timeout", 1);
        gateway.wait_metric("sluicegate_requests_in_flight", &[], 0.0);
        // The connection is none the worse.
        raw.window(0, 1000);
        let id = raw.get("/0");
        raw.wait(|frame| frame.kind == HEADERS && frame.stream == id);
        raw.window(id, 10);
        assert_eq!(raw.ending(id), Ending::Answered(200, b"0".to_vec()));
    });
}

#[test]
fn a_small_answer_for_which_there_is_no_window_ends_by_the_body_timeout_too() {
    best_of_three(|| {
        let backend = sizes();
        let gateway = Gateway::start(&rules(&backend, "body_timeout = \"300ms\"", ""));
        let mut raw = Raw::with_settings(gateway.address(), &[(4, 0)]);
        for path in ["/0", "/local"] {
            let started = Instant::now();
            let id = raw.get(path);
            let ending = raw.ending(id);
            assert!(matches!(ending, Ending::Reset(code) if code != NO_ERROR), "{path}: {ending:?}");
            assert_took(started, 250..2000);
        }
        gateway.wait_metric("sluicegate_requests_in_flight", &[], 0.0);
    });
}

#[test]
fn an_upload_that_stops_ends_by_the_body_timeout() {
    best_of_three(|| {
        let backend = sizes();
        let gateway = Gateway::start(&rules(&backend, "body_timeout = \"300ms\"", ""));
        let mut raw = Raw::open(gateway.address());
        let started = Instant::now();
        let id = raw.headers(END_HEADERS, &request("POST", "/0"));
        raw.send(DATA, 0, id, b"the first part");
        assert!(matches!(raw.ending(id), Ending::Answered(408, _)), "{:?}", raw.ending(id));
        assert_took(started, 250..2000);
        backend.wait_closed();
        assert_eq!(raw.ask("/0").0, 200);
    });
}

#[test]
fn large_bodies_pass_both_ways_in_flat_memory() {
    let backend = sizes();
    let gateway = front(&backend);
    let before = gateway.resident();
    super::peer::run(async {
        let sender = super::peer::connect(gateway.address()).await;
        let (response, _) = super::peer::open(&sender, super::peer::request("GET", "/large", &[]), true).await;
        let mut recv = response.await.unwrap().into_body();
        let mut came = 0;
        while let Some(piece) = super::peer::next(&mut recv).await {
            let piece = piece.unwrap();
            assert!(piece.iter().all(|byte| *byte == b'x'));
            came += piece.len();
        }
        assert_eq!(came, LARGE);
        let body = bytes::Bytes::from(vec![b'u'; LARGE]);
        let answer = super::peer::post(&sender, super::peer::request("POST", "/up", &[]), body, None).await.unwrap();
        assert_eq!(answer.text(), LARGE.to_string());
    });
    let grown = gateway.resident().saturating_sub(before);
    assert!(grown < 16 << 20, "grew by {grown} bytes");
}

#[test]
fn streams_of_one_connection_are_answered_as_their_answers_come() {
    let (tell, told) = mpsc::channel::<()>();
    let told = Mutex::new(told);
    let backend = Backend::scripted(move |wire, _| {
        while let Ok(Message { line, .. }) = wire.request() {
            if line.contains("/late") {
                told.lock().unwrap().recv().unwrap();
            }
            wire.send(ok(&line));
        }
    });
    let gateway = front(&backend);
    let mut raw = Raw::open(gateway.address());
    let late = raw.get("/late");
    assert!(eventually(|| backend.connections.load(std::sync::atomic::Ordering::SeqCst) == 1));
    for number in 0..10 {
        assert_eq!(raw.ask(&format!("/{number}")).0, 200);
    }
    assert!(raw.is_open(late));
    tell.send(()).unwrap();
    assert_eq!(raw.ending(late), Ending::Answered(200, b"GET /late HTTP/1.1".to_vec()));
}
