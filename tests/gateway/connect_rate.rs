//! How often servers are connected to: `connect_rate`.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Instant;

use crate::connections::connect_from;
use crate::support::{Backend, Gateway, PATIENCE, eventually};
use crate::wire::{Wire, get, ok, rules};

/// A server that closes after each answer, and leaves `/slow` without one.
fn closing() -> Backend {
    Backend::scripted(|wire, _| {
        while let Ok(request) = wire.request() {
            if request.target() != "/slow" {
                wire.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
                return;
            }
        }
    })
}

fn gateway(backend: &Backend, rate: &str, route: &str) -> Gateway {
    let rules = rules(backend, "", route);
    Gateway::start(&rules.replace("servers =", &format!("connect_rate = \"{rate}\"\nservers =")))
}

fn connections(backend: &Backend) -> usize {
    backend.connections.load(Ordering::SeqCst)
}

fn waits(gateway: &Gateway, count: usize) {
    gateway.wait_metric("sluicegate_upstream_connect_waits_total", &["upstream=\"app\""], count as f64);
}

#[test]
fn above_it_a_request_waits_within_its_timeout() {
    let backend = closing();
    let gateway = gateway(&backend, "1/m", "timeout = \"300ms\"");
    let mut wire = Wire::open(gateway.address());
    assert_eq!(wire.get("/").status(), 200);
    assert_eq!(wire.get("/").status(), 504);
    assert_eq!((connections(&backend), backend.requests()), (1, 1));
    waits(&gateway, 1);
    // A request that needs no server does not wait.
    assert_eq!(Wire::open(gateway.address()).get("/local").status(), 200);
}

#[test]
fn who_stops_waiting_has_spent_no_turn() {
    let backend = closing();
    let gateway = gateway(&backend, "1/s", "timeout = \"10s\"");
    let started = Instant::now();
    assert_eq!(Wire::open(gateway.address()).get("/").status(), 200);
    let waiting: Vec<_> = (0..20).map(|_| Wire::with(gateway.address(), get("/"))).collect();
    waits(&gateway, 20);
    let mut last = Wire::with(gateway.address(), get("/last"));
    waits(&gateway, 21);
    for wire in waiting {
        wire.reset();
    }
    // Twenty turns would take twenty seconds.
    assert_eq!(last.answer().status(), 200);
    let turns = 2 + started.elapsed().as_secs();
    assert!(connections(&backend) as u64 <= turns, "{} and not {turns}", connections(&backend));
    assert!(eventually(|| backend.seen.lock().unwrap().iter().any(|request| request.target() == "/last")));
}

#[test]
fn a_kept_connection_needs_no_turn_and_a_reload_changes_the_rate() {
    let backend = crate::wire::telling();
    let gateway = gateway(&backend, "1/m", "timeout = \"300ms\"");
    let mut wire = Wire::open(gateway.address());
    for _ in 0..5 {
        assert_eq!(wire.get("/").text(), "1 /");
    }
    waits(&gateway, 0);
    let slow = closing();
    let text = rules(&slow, "", "timeout = \"300ms\"");
    let rated = |rate: &str| text.replace("servers =", &format!("connect_rate = \"{rate}\"\nservers ="));
    assert_eq!(gateway.reload(&rated("1/m")).status, 200);
    assert_eq!((wire.get("/").status(), wire.get("/").status()), (200, 504));
    let answer = gateway.reload(&rated("1000/s"));
    assert!(answer.text().contains("connect_rate 1/m -> 1000/s"), "{}", answer.text());
}

#[test]
fn who_waits_for_a_turn_takes_a_connection_that_is_given_back() {
    let (answer, held) = mpsc::sync_channel(10);
    let held = Mutex::new(held);
    let backend = Backend::scripted(move |wire, _| {
        while let Ok(request) = wire.request() {
            held.lock().unwrap().recv_timeout(PATIENCE).unwrap();
            let answer = ok(request.target());
            let head = answer.find("\r\n\r\n").unwrap() + 4;
            wire.send(if request.line.starts_with("HEAD") { &answer[..head] } else { &answer });
        }
    });
    let gateway = gateway(&backend, "1/m", "timeout = \"15s\"");
    let mut first = Wire::with(gateway.address(), get("/first"));
    assert!(eventually(|| backend.requests() == 1));
    let mut second = Wire::with(gateway.address(), get("/second"));
    waits(&gateway, 1);
    let leaves = Wire::with(gateway.address(), get("/leaves"));
    waits(&gateway, 2);
    // A HEAD, behind which faulty servers send a body: its connection rests for a moment.
    let mut third = Wire::with(gateway.address(), get("/third").replace("GET", "HEAD"));
    waits(&gateway, 3);
    let mut fourth = Wire::with(gateway.address(), get("/fourth"));
    waits(&gateway, 4);
    leaves.reset();
    gateway.wait_metric("sluicegate_requests_total", &["outcome=\"client-gone\""], 1.0);
    for wire in [&mut first, &mut second] {
        answer.send(()).unwrap();
        assert_eq!(wire.answer().status(), 200);
    }
    answer.send(()).unwrap();
    assert_eq!(third.answer_to("HEAD").status(), 200);
    answer.send(()).unwrap();
    assert_eq!(fourth.answer().text(), "/fourth");
    assert_eq!(connections(&backend), 1);
    // Nobody waits any more, so it is anybody's.
    answer.send(()).unwrap();
    assert_eq!(first.get("/next").text(), "/next");
    waits(&gateway, 4);
}

#[test]
fn a_reload_to_a_faster_rate_holds_for_those_who_wait() {
    let backend = closing();
    let text = rules(&backend, "", "timeout = \"15s\"");
    let rated = |rate: &str| text.replace("servers =", &format!("connect_rate = \"{rate}\"\nservers ="));
    let gateway = Gateway::start(&rated("1/m"));
    assert_eq!(Wire::open(gateway.address()).get("/").status(), 200);
    let mut waiting: Vec<_> = (0..3).map(|_| Wire::with(gateway.address(), get("/"))).collect();
    waits(&gateway, 3);
    assert_eq!(gateway.reload(&rated("1000/s")).status, 200);
    for wire in &mut waiting {
        assert_eq!(wire.answer().status(), 200);
    }
}

#[test]
fn a_storm_of_one_client_takes_no_turns_of_another() {
    let backend = closing();
    let gateway = gateway(&backend, "5/s", "timeout = \"15s\"");
    let from = |source: &str, target: &str| {
        let wire = Wire::noting(connect_from(source, gateway.address()), Arc::default());
        wire.send(get(target));
        wire
    };
    let _storm: Vec<_> = (0..40).map(|_| from("127.0.0.2", "/storm")).collect();
    assert!(eventually(|| gateway.metric("sluicegate_upstream_connect_waits_total", &[]) > 34.0));
    let mut honest = from("127.0.0.3", "/honest");
    assert_eq!(honest.answer().status(), 200);
    let seen = backend.seen.lock().unwrap();
    let place = seen.iter().position(|request| request.target() == "/honest").unwrap();
    // The tests of the line, beside its code, tell which turn it has; behind the storm it would have the last one.
    assert!(place < 40, "{place}");
}
