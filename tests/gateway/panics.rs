//! A panic costs the exchange that it is met in, and one of a worker its connections: the gateway goes on.
#![cfg(debug_assertions)]

use crate::h2::frames::{Ending, Raw};
use crate::support::{Backend, Gateway, eventually, get};
use crate::wire::{Wire, rules, telling, wait_outcome};

const OF_EXCHANGE: &str = "GET /panic-of-an-exchange HTTP/1.1\r\nHost: h\r\n\r\n";

fn gateway(backend: &Backend) -> Gateway {
    let limit = "[[limit]]\nname = \"l\"\nkey = \"global\"\nalgorithm = \"concurrency\"\nmax_in_flight = 4\n";
    Gateway::start(&format!("{limit}{}", rules(backend, "", "limits = [\"l\"]")))
}

#[test]
fn a_panic_in_one_exchange_costs_that_exchange_alone() {
    let backend = telling();
    let gateway = gateway(&backend);
    let mut other = Wire::open(gateway.address());
    assert_eq!(other.get("/").status(), 200);
    let mut raw = Raw::open(gateway.address());
    for panics in 1..=6 {
        Wire::with(gateway.address(), OF_EXCHANGE).assert_ended();
        wait_outcome(&gateway, "panic", panics);
    }
    for _ in 0..6 {
        let id = raw.get("/panic-of-an-exchange");
        assert!(matches!(raw.ending(id), Ending::Reset(2)), "INTERNAL_ERROR");
    }
    wait_outcome(&gateway, "panic", 12);
    gateway.wait_metric("sluicegate_panics_total", &[], 12.0);
    gateway.wait_metric("sluicegate_requests_in_flight", &[], 0.0);
    // Their places in the limit are free, and so are their neighbours.
    assert_eq!((raw.ask("/").0, other.get("/").status()), (200, 200));
    // A thread of its own writes the log: the last line may come after what the metrics say.
    let logged = || gateway.log().matches("a panic ended an exchange").count();
    assert!(eventually(|| logged() >= 12), "{}", gateway.log());
    assert_eq!(logged(), 12, "{}", gateway.log());
    assert!(gateway.log().contains("request_id"), "{}", gateway.log());
}

#[test]
fn a_worker_that_panics_is_replaced_and_its_listeners_go_on() {
    let backend = telling();
    let mut gateway = gateway(&backend);
    for panics in 1..=3 {
        let mut idle = Wire::open(gateway.address());
        assert_eq!(idle.get("/local").status(), 200);
        drop(Wire::with(gateway.address(), "GET /panic-of-a-worker HTTP/1.1\r\nHost: h\r\n\r\n"));
        gateway.wait_metric("sluicegate_panics_total", &[], f64::from(panics));
        assert!(idle.is_cut());
        assert_eq!(get(gateway.address(), "/").status, 200);
    }
    gateway.wait_metric("sluicegate_requests_in_flight", &[], 0.0);
    assert!(eventually(|| gateway.log().matches("another one takes its place").count() == 3), "{}", gateway.log());
    assert!(eventually(|| gateway.metric("sluicegate_client_connections", &[]) < 0.5));
    assert!(gateway.is_running());
    gateway.signal("TERM");
    assert!(gateway.wait_exit().success());
}
