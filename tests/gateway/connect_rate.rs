//! How often servers are connected to: `connect_rate`.

use std::sync::atomic::Ordering;

use crate::support::{Backend, Gateway, eventually};
use crate::wire::{Wire, get, rules};

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
    assert!(connections(&backend) <= 4, "{}", connections(&backend));
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
