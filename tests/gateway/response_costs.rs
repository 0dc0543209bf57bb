//! The cost of a request, where its response states it.

use std::io::Write;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;

use crate::support::{Answer, Backend, Gateway, get, get_with};
use crate::wire::{Message, Wire};

/// Answers with the lines of the request's field `x-say`, parted by `|`; the first may be a status.
fn speaking() -> Backend {
    Backend::start(|request, stream| stream.write_all(spoken(request).as_bytes()).is_ok())
}

fn spoken(request: &Message) -> String {
    let mut lines = request.header("x-say").unwrap_or_default().split('|').filter(|line| !line.is_empty()).peekable();
    let status = lines.next_if(|line| !line.contains(':')).unwrap_or("200 OK");
    let fields: String = lines.flat_map(|line| [line, "\r\n"]).collect();
    format!("HTTP/1.1 {status}\r\n{fields}Content-Length: 0\r\n\r\n")
}

fn correcting(backend: &Backend, limit: &str) -> Gateway {
    Gateway::start(&format!(
        "[server]\nresponse_timeout = \"2h\"\n[[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n[[upstream]]\nname = \"gone\"\nservers = [\"127.0.0.1:1\"]\n\
         [[limit]]\nname = \"l\"\nkey = \"global\"\ncost_from_response = \"header:X-Cost\"\n{limit}\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"l\"]\n\
         [[route]]\nname = \"gone\"\npath = \"/gone\"\nupstream = \"gone\"\nlimits = [\"l\"]\n\
         [[route]]\nname = \"late\"\npath = \"/late\"\nupstream = \"app\"\ntimeout = \"100ms\"\nlimits = [\"l\"]\n\
         [[route]]\nname = \"own\"\npath = \"/own\"\nrespond = {{ status = 200 }}\nlimits = [\"l\"]\n",
        backend.address
    ))
}

fn left(answer: &Answer) -> u64 {
    let state = answer.header("ratelimit").unwrap();
    state.split(';').find_map(|part| part.strip_prefix("r=")).unwrap().parse().unwrap()
}

fn say(gateway: &Gateway, lines: &str) -> (u16, u64) {
    let answer = get_with(gateway.address(), "/", &[("x-say", lines)]);
    (answer.status, left(&answer))
}

fn invalid(gateway: &Gateway, count: f64) {
    gateway.wait_metric("sluicegate_limit_cost_invalid_total", &["limit=\"l\""], count);
}

#[test]
fn an_estimate_is_corrected_by_what_the_response_states() {
    let backend = speaking();
    let gateway = correcting(&backend, "rate = \"100/1h\"\ncost = 10\nmax_cost = 20");
    // Each answer has what was left at the arrival of its request, with the estimate taken.
    assert_eq!(say(&gateway, "X-Cost: 3"), (200, 90));
    assert_eq!(say(&gateway, "x-cost: 0"), (200, 87), "three were really taken");
    assert_eq!(say(&gateway, "X-Cost: 15"), (200, 87), "zero is zero");
    assert_eq!(say(&gateway, "X-Cost: 10"), (200, 72));
    assert_eq!(say(&gateway, "404 Not Found|X-Cost: 1"), (404, 62), "whatever the status is");
    invalid(&gateway, 0.0);
    assert_eq!(say(&gateway, ""), (200, 61), "the estimate stands without the field");
    assert_eq!(say(&gateway, "X-Cost: -1"), (200, 51));
    assert_eq!(say(&gateway, "X-Cost: 1|X-Cost: 1"), (200, 41));
    invalid(&gateway, 3.0);
    assert_eq!(say(&gateway, "X-Cost: 99999999999999999999999"), (200, 31));
    invalid(&gateway, 4.0);
    assert_eq!(say(&gateway, "X-Cost: 0"), (200, 11), "no more than max_cost");
    let passed = get_with(gateway.address(), "/", &[("x-say", "X-Cost: 21")]);
    assert_eq!((passed.header("x-cost"), left(&passed)), (Some("21"), 11), "the client sees it");
    assert_eq!(say(&gateway, "X-Cost: 0"), (429, 1), "ten do not fit");
}

#[test]
fn an_estimate_stands_when_the_upstream_does_not_answer() {
    let backend = Backend::start(|request, stream| {
        if request.target().starts_with("/late") {
            return true;
        }
        let early = b"HTTP/1.1 103 Early Hints\r\nX-Cost: 1\r\n\r\n";
        stream.write_all(early).is_ok() && stream.write_all(spoken(request).as_bytes()).is_ok()
    });
    let gateway = correcting(&backend, "rate = \"100/1h\"\ncost = 10");
    for (target, status) in [("/own", 200), ("/gone", 502), ("/late", 504)] {
        let answer = get_with(gateway.address(), target, &[("x-say", "X-Cost: 1")]);
        assert_eq!(answer.status, status, "{target}");
    }
    invalid(&gateway, 0.0);
    assert_eq!(say(&gateway, "X-Cost: 8"), (200, 60), "ten for each");
    assert_eq!(say(&gateway, "X-Cost: 8"), (200, 52), "an interim head is not the response");
}

#[test]
fn a_request_states_an_estimate_and_its_response_the_rest() {
    let backend = speaking();
    let gateway = correcting(&backend, "rate = \"50/1h\"\ncost = \"header:x-guess\"");
    let ask = |guess: &str, lines: &str| {
        let answer = get_with(gateway.address(), "/", &[("x-guess", guess), ("x-say", lines)]);
        (answer.status, left(&answer))
    };
    assert_eq!(ask("40", "X-Cost: 5"), (200, 10));
    assert_eq!(ask("45", "X-Cost: 50"), (200, 0));
    assert_eq!(ask("1", ""), (429, 0), "more than there was is taken");
}

#[test]
fn what_counts_only_with_certain_answers_reserves_nothing() {
    let backend = speaking();
    let gateway = correcting(&backend, "rate = \"50/1h\"\ncost = 5\ncount_when = { status = [\"4xx\"] }");
    assert_eq!(say(&gateway, "X-Cost: 30"), (200, 50));
    assert_eq!(say(&gateway, "401 Unauthorized|X-Cost: 30"), (401, 50));
    assert_eq!(say(&gateway, "401 Unauthorized"), (401, 20), "without the field it is the estimate");
    assert_eq!(say(&gateway, ""), (200, 15));
    invalid(&gateway, 1.0);
}

#[test]
fn in_shadow_mode_it_is_corrected_likewise() {
    let backend = speaking();
    let gateway = correcting(&backend, "rate = \"10/1h\"\ncost = 6\nmode = \"shadow\"");
    let decisions = |decision: &str, count| {
        gateway.wait_metric("sluicegate_limit_decisions_total", &[&format!("decision=\"{decision}\"")], count);
    };
    for lines in ["X-Cost: 1", "X-Cost: 2", "X-Cost: 6"] {
        assert_eq!(get_with(gateway.address(), "/", &[("x-say", lines)]).status, 200);
    }
    decisions("admitted", 3.0);
    decisions("shadow-refused", 0.0);
    assert_eq!(get(gateway.address(), "/").status, 200);
    decisions("shadow-refused", 1.0);
}

#[test]
fn a_handshake_states_its_cost_too() {
    let backend = Backend::scripted(|wire, _| {
        while let Ok(request) = wire.request() {
            if request.header("upgrade").is_some() {
                wire.send(
                    "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: chat\r\nX-Cost: 2\r\n\r\n",
                );
                return drop(wire.rest());
            }
            wire.send(spoken(&request));
        }
    });
    let gateway = correcting(&backend, "rate = \"50/1h\"\ncost = 10");
    let asks = "GET / HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: chat\r\n\r\n";
    let mut wire = Wire::with(gateway.address(), asks);
    assert_eq!(wire.response("GET").unwrap().status(), 101);
    assert_eq!(say(&gateway, "X-Cost: 0"), (200, 38));
}

#[test]
fn who_waits_is_let_in_when_something_is_given_back() {
    let (release, held) = mpsc::channel();
    let held = Arc::new(Mutex::new(held));
    let backend = Backend::start(move |request, stream| {
        if request.target() == "/held" {
            held.lock().unwrap().recv().unwrap();
        }
        stream.write_all(spoken(request).as_bytes()).is_ok()
    });
    let gateway = correcting(&backend, "rate = \"5/30m\"\ncost = 5\nmax_wait = \"1h\"");
    let gateway = &gateway;
    thread::scope(|scope| {
        let first = scope.spawn(|| get_with(gateway.address(), "/held", &[("x-say", "X-Cost: 0")]).status);
        gateway.wait_metric("sluicegate_limit_decisions_total", &["decision=\"admitted\""], 1.0);
        let second = scope.spawn(|| get(gateway.address(), "/").status);
        gateway.wait_metric("sluicegate_limit_decisions_total", &["decision=\"queued\""], 1.0);
        release.send(()).unwrap();
        assert_eq!((first.join().unwrap(), second.join().unwrap()), (200, 200));
    });
}
