//! Tunnels: only where the client asked and the upstream's 101 agrees, then bytes as they come, both ways.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Backend, Gateway, eventually};
use crate::timing::{assert_took, best_of_three};
use crate::wire::{Wire, front, ok, only_letter, rules, telling, wait_outcome};

const ASK: &str = "GET /chat HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: chat\r\n\r\n";
const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: chat\r\n\r\n";

/// Switches to a protocol that sends everything back, and ends when the other side does.
fn echoing() -> Backend {
    Backend::scripted(|wire, _| {
        if wire.request().is_ok() && wire.send(SWITCH) {
            while let Ok(byte) = wire.take(1) {
                wire.send(byte);
            }
        }
    })
}

/// A client whose connection has become a tunnel.
fn tunnelled(gateway: &Gateway) -> Wire {
    let mut wire = Wire::with(gateway.address(), ASK);
    let answer = wire.response("GET").unwrap();
    assert_eq!(answer.status(), 101, "{answer:?}");
    wire
}

#[test]
fn a_tunnel_carries_bytes_both_ways_and_is_counted() {
    let backend = echoing();
    let gateway = front(&backend);
    let mut wire = Wire::with(gateway.address(), ASK);
    let answer = wire.response("GET").unwrap();
    assert_eq!((answer.status(), answer.header("upgrade")), (101, Some("chat")));
    assert!(answer.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("upgrade")), "{answer:?}");
    assert!(answer.header("transfer-encoding").is_none() && answer.header("content-length").is_none());
    for text in ["hello", "GET / HTTP/1.1\r\n\r\n", "\0\u{1}\n"] {
        wire.send(text);
        assert_eq!(wire.take(text.len()).unwrap(), text.as_bytes());
    }
    gateway.wait_metric("sluicegate_tunnels_open", &[], 1.0);
    gateway.wait_metric("sluicegate_tunnels_total", &[], 1.0);
    drop(wire);
    backend.wait_closed();
    gateway.wait_metric("sluicegate_tunnels_open", &[], 0.0);
    gateway.wait_metric("sluicegate_tunnels_total", &[], 1.0);
    wait_outcome(&gateway, "upgraded", 1);
    let seen = backend.seen.lock().unwrap();
    assert_eq!(seen[0].header("upgrade"), Some("chat"));
    assert!(seen[0].header("connection").is_some_and(|value| value.eq_ignore_ascii_case("upgrade")), "{:?}", seen[0]);
    assert_eq!(seen[0].header("x-forwarded-for"), Some("127.0.0.1"));
}

#[test]
fn what_is_sent_with_the_handshake_arrives_on_both_sides() {
    let backend = Backend::scripted(|wire, _| {
        if wire.request().is_ok() && wire.send(format!("{SWITCH}first of the upstream")) {
            let first = wire.take("first of the client".len()).unwrap();
            wire.send(first);
            drop(wire.rest());
        }
    });
    let gateway = front(&backend);
    let mut wire = Wire::with(gateway.address(), format!("{ASK}first of the client"));
    assert_eq!(wire.response("GET").unwrap().status(), 101);
    assert_eq!(wire.take("first of the upstream".len()).unwrap(), b"first of the upstream");
    assert_eq!(wire.take("first of the client".len()).unwrap(), b"first of the client");
}

#[test]
fn a_refused_upgrade_leaves_an_ordinary_connection() {
    let backend = telling();
    let gateway = front(&backend);
    let mut wire = Wire::with(gateway.address(), ASK);
    let answer = wire.answer();
    assert_eq!((answer.status(), answer.text().as_str(), answer.closes()), (200, "1 /chat", false));
    assert_eq!(wire.get("/next").text(), "1 /next");
    gateway.wait_metric("sluicegate_tunnels_total", &[], 0.0);
    wait_outcome(&gateway, "forwarded", 2);
}

#[test]
fn an_upgrade_that_connection_does_not_name_is_not_forwarded() {
    let backend = telling();
    let gateway = front(&backend);
    for head in [
        "GET / HTTP/1.1\r\nHost: h\r\nUpgrade: chat\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: h\r\nConnection: keep-alive\r\nUpgrade: chat\r\n\r\n",
        "GET / HTTP/1.0\r\nConnection: upgrade, keep-alive\r\nUpgrade: chat\r\n\r\n",
    ] {
        assert_eq!(Wire::with(gateway.address(), head).answer().status(), 200);
    }
    let seen = backend.seen.lock().unwrap();
    assert!(seen.iter().all(|seen| seen.all("upgrade").is_empty() && seen.all("connection").is_empty()), "{seen:?}");
}

#[test]
fn h2c_is_never_forwarded() {
    let backend = telling();
    let gateway = front(&backend);
    for protocols in ["h2c", "H2C", "h2c, chat", "chat, h2c"] {
        let head = format!(
            "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: {protocols}\r\n\
             HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
        );
        assert_eq!(Wire::with(gateway.address(), head).answer().status(), 200);
    }
    for seen in backend.seen.lock().unwrap().iter() {
        assert!(seen.all("upgrade").iter().all(|value| !value.to_ascii_lowercase().contains("h2c")), "{seen:?}");
        assert!(seen.all("http2-settings").is_empty(), "{seen:?}");
    }
}

#[test]
fn a_101_that_nobody_asked_for_or_that_names_another_protocol_is_a_502() {
    let asked = |ask: &'static str, switch: &'static str, why: &str| {
        let backend = Backend::scripted(move |wire, _| {
            if wire.request().is_ok() {
                wire.send(format!("{switch}SSH-2.0-evil\r\n"));
                drop(wire.rest());
            }
        });
        let gateway = front(&backend);
        let mut wire = Wire::with(gateway.address(), ask);
        let answer = wire.response("GET").unwrap();
        assert_eq!(answer.status(), 502, "{switch:?}");
        assert!(answer.text().contains("101 is no switch of protocols"), "{answer:?}");
        let told = only_letter(&gateway)["why"].to_string();
        assert!(told.contains(&format!("; the server answered 101, but {why}")), "{told}");
        backend.wait_closed();
        wait_outcome(&gateway, "upstream-error", 1);
        gateway.wait_metric("sluicegate_tunnels_total", &[], 0.0);
    };
    let none = "the request asked for no upgrade";
    let other = "for no protocol that the request offered";
    asked("GET / HTTP/1.1\r\nHost: h\r\n\r\n", SWITCH, none);
    asked("GET / HTTP/1.1\r\nHost: h\r\nUpgrade: chat\r\n\r\n", SWITCH, none);
    asked(ASK, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n", other);
    asked(ASK, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: chatter\r\n\r\n", other);
    asked(ASK, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\r\n", other);
}

#[test]
fn an_end_on_one_side_is_passed_on_and_the_other_direction_goes_on() {
    let backend = Backend::scripted(|wire, _| {
        if wire.request().is_ok() && wire.send(SWITCH) {
            let all = wire.rest().unwrap_or_default();
            wire.send([b"after the end: ".as_slice(), &all].concat());
        }
    });
    let gateway = front(&backend);
    let mut wire = tunnelled(&gateway);
    wire.send("question");
    wire.finish();
    assert_eq!(wire.rest().unwrap(), b"after the end: question");
    backend.wait_closed();
    gateway.wait_metric("sluicegate_tunnels_open", &[], 0.0);

    let backend = Backend::scripted(|wire, _| {
        if wire.request().is_ok() && wire.send(SWITCH) {
            wire.send("last word");
            wire.finish();
            let heard = wire.rest().unwrap_or_default();
            assert_eq!(heard, b"still heard");
        }
    });
    let gateway = front(&backend);
    let mut wire = tunnelled(&gateway);
    assert_eq!(wire.rest().unwrap(), b"last word");
    wire.send("still heard");
    wire.finish();
    backend.wait_closed();
    gateway.wait_metric("sluicegate_tunnels_open", &[], 0.0);
}

#[test]
fn a_slow_reader_gets_everything_although_it_has_ended_its_side() {
    const SIZE: usize = 12 << 20;
    let backend = Backend::scripted(|wire, _| {
        if wire.request().is_ok() && wire.send(SWITCH) {
            assert!(wire.rest().is_ok_and(|rest| rest.is_empty()));
            wire.send(vec![b'd'; SIZE]);
        }
    });
    let gateway = front(&backend);
    let mut wire = tunnelled(&gateway);
    wire.finish();
    let started = Instant::now();
    let mut came = 0;
    // So slowly that the gateway's socket has no room for seconds.
    while started.elapsed() < Duration::from_millis(6500) {
        came += wire.take(512).unwrap().len();
        thread::sleep(Duration::from_millis(50));
    }
    let rest = wire.rest().unwrap();
    assert!(rest.iter().all(|byte| *byte == b'd'));
    assert_eq!(came + rest.len(), SIZE);
}

#[test]
fn a_reset_on_one_side_ends_the_other() {
    let backend = echoing();
    let gateway = front(&backend);
    let wire = tunnelled(&gateway);
    wire.reset();
    backend.wait_closed();
    gateway.wait_metric("sluicegate_tunnels_open", &[], 0.0);
    gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
}

#[test]
fn a_tunnel_without_a_byte_ends_on_both_sides_at_its_timeout() {
    best_of_three(|| {
        let backend = echoing();
        let gateway = Gateway::start(&rules(&backend, "tunnel_timeout = \"400ms\"", ""));
        let mut wire = tunnelled(&gateway);
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(200));
            wire.send("x");
            assert_eq!(wire.take(1).unwrap(), b"x", "bytes keep it open");
        }
        let started = Instant::now();
        assert!(wire.is_cut());
        assert_took(started, 350..1500);
        backend.wait_closed();
        gateway.wait_metric("sluicegate_tunnels_open", &[], 0.0);
    });
}

#[test]
fn a_tunnel_outlives_every_timeout_of_requests() {
    let backend = echoing();
    let server = "head_timeout = \"200ms\"\nkeep_alive_timeout = \"200ms\"\nbody_timeout = \"200ms\"";
    let gateway = Gateway::start(&rules(&backend, server, "timeout = \"300ms\""));
    let mut wire = tunnelled(&gateway);
    wire.assert_quiet(Duration::from_millis(900));
    wire.send("still here");
    assert_eq!(wire.take(10).unwrap(), b"still here");
}

#[test]
fn a_handshake_that_is_not_answered_has_the_routes_timeout() {
    best_of_three(|| {
        let backend = Backend::scripted(|wire, _| while wire.request().is_ok() {});
        let gateway = Gateway::start(&rules(&backend, "", "timeout = \"300ms\""));
        let started = Instant::now();
        assert_eq!(Wire::with(gateway.address(), ASK).answer().status(), 504);
        assert_took(started, 290..1200);
        backend.wait_closed();
    });
}

#[test]
fn a_rate_limit_counts_handshakes() {
    let backend = echoing();
    let gateway = Gateway::start(&format!(
        "[[limit]]\nname = \"l\"\nkey = \"global\"\nrate = \"2/1h\"\n{}",
        rules(&backend, "", "limits = [\"l\"]")
    ));
    let held: Vec<Wire> = (0..2).map(|_| tunnelled(&gateway)).collect();
    assert_eq!(Wire::with(gateway.address(), ASK).response("GET").unwrap().status(), 429);
    gateway.wait_metric("sluicegate_tunnels_open", &[], 2.0);
    assert_eq!(backend.connections.load(Ordering::SeqCst), held.len());
}

#[test]
fn a_tunnel_holds_no_more_than_its_buffers() {
    const SIZE: usize = 64 << 20;
    let backend = Backend::scripted(|wire, _| {
        if wire.request().is_ok() && wire.send(SWITCH) {
            let block = vec![b'd'; 1 << 20];
            for _ in 0..SIZE / block.len() {
                if !wire.send(&block) {
                    return;
                }
            }
            wire.finish();
            let came = wire.rest().map(|rest| rest.len());
            assert_eq!(came.unwrap_or_default(), SIZE);
        }
    });
    let gateway = front(&backend);
    let before = gateway.resident();
    let mut wire = tunnelled(&gateway);
    let writer = wire.stream().try_clone().unwrap();
    let writing = thread::spawn(move || {
        let block = vec![b'u'; 1 << 20];
        for _ in 0..SIZE / block.len() {
            std::io::Write::write_all(&mut &writer, &block).unwrap();
        }
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let came = wire.rest().unwrap();
    assert!(came.len() == SIZE && came.iter().all(|byte| *byte == b'd'), "{} bytes", came.len());
    writing.join().unwrap();
    backend.wait_closed();
    let grown = gateway.resident().saturating_sub(before);
    assert!(grown < 8 << 20, "grew by {grown} bytes");
    assert!(eventually(|| gateway.metric("sluicegate_tunnels_open", &[]) < 0.5));
}

#[test]
fn an_upgrade_with_a_body_sends_the_body_first() {
    let backend = Backend::scripted(|wire, _| {
        while let Ok(request) = wire.request() {
            if request.text() != "body" {
                wire.send(ok("wrong"));
                return;
            }
            wire.send(SWITCH);
            let byte = wire.take(1).unwrap_or_default();
            wire.send(byte);
        }
    });
    let gateway = front(&backend);
    let head = ASK.replace("GET", "POST").replace("\r\n\r\n", "\r\nContent-Length: 4\r\n\r\n");
    let mut wire = Wire::with(gateway.address(), format!("{head}bodyX"));
    assert_eq!(wire.response("POST").unwrap().status(), 101);
    assert_eq!(wire.take(1).unwrap(), b"X");
}
