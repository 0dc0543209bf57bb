//! The time to the head of an answer is bounded, and streams and uploads last as long as their bytes move.

use std::thread;
use std::time::{Duration, Instant};

use crate::h2::frames::{Ending, Raw};
use crate::support::{Backend, Gateway, eventually, get};
use crate::timing::{assert_took, best_of_three};
use crate::wire::{Wire, rules, wait_fault, wait_outcome};

const STEP: Duration = Duration::from_millis(250);

#[test]
fn a_head_that_does_not_come_is_a_504_and_keeps_the_clients_connection() {
    best_of_three(|| {
        // Interim answers are no answer.
        let backend = Backend::scripted(|wire, _| {
            while wire.request().is_ok() {
                while wire.send("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n") {
                    thread::sleep(STEP);
                }
            }
        });
        let gateway = Gateway::start(&rules(&backend, "response_timeout = \"700ms\"", ""));
        let mut wire = Wire::with(gateway.address(), "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        let started = Instant::now();
        let mut answer = wire.head().unwrap();
        while answer.status() == 103 {
            answer = wire.head().unwrap();
        }
        assert_eq!(answer.status(), 504);
        assert_took(started, 600..1700);
        backend.wait_closed();
        wait_outcome(&gateway, "timeout", 1);
        assert!(eventually(|| gateway.dead_letters().len() == 1));
        let letter = &gateway.dead_letters()[0];
        assert_eq!((&letter["reason"], &letter["status"]), (&"timeout".into(), &504.into()));
        assert_eq!(letter["limit"], serde_json::Value::Null);
        let mut raw = Raw::open(gateway.address());
        let id = raw.get("/");
        assert!(matches!(raw.ending(id), Ending::Answered(504, _)));
        assert_eq!(raw.ask("/local").0, 200);
    });
}

#[test]
fn a_route_says_how_long_its_answers_may_take() {
    let text = "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n[server]\nresponse_timeout = \"100ms\"\n\
                [[route]]\nname = \"quick\"\nupstream = \"app\"\n\
                [[route]]\nname = \"slow\"\npath = \"/slow\"\nupstream = \"app\"\nresponse_timeout = \"none\"\n";
    let gateway = Gateway::start(text);
    assert_eq!(get(gateway.address(), "/?delay=3s").status, 504);
    assert_eq!(get(gateway.address(), "/slow?delay=400ms").status, 200);
}

#[test]
fn a_wait_in_a_limit_counts() {
    let text = "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n[server]\nresponse_timeout = \"2s\"\n\
                [[limit]]\nname = \"l\"\nkey = \"global\"\nrate = \"1/5s\"\nmax_wait = \"30s\"\n\
                [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"l\"]\n";
    let gateway = Gateway::start(text);
    assert_eq!(get(gateway.address(), "/").status, 200);
    assert_eq!(get(gateway.address(), "/").status, 429, "its turn comes later than its time is over");
}

#[test]
fn events_may_go_on_for_as_long_as_they_come() {
    let backend = Backend::scripted(|wire, _| {
        while wire.request().is_ok() {
            wire.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
            for _ in 0..24 {
                thread::sleep(STEP);
                wire.send("3\r\n:\n\n\r\n");
            }
            wire.send("0\r\n\r\n");
        }
    });
    let server = "response_timeout = \"1s\"\nbody_timeout = \"1500ms\"";
    let gateway = Gateway::start(&rules(&backend, server, ""));
    let mut raw = Raw::open(gateway.address());
    let id = raw.get("/");
    let mut wire = Wire::with(gateway.address(), "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    let started = Instant::now();
    assert_eq!(wire.answer().text(), ":\n\n".repeat(24));
    assert!(started.elapsed() >= Duration::from_secs(5));
    assert!(matches!(raw.ending(id), Ending::Answered(200, body) if body == ":\n\n".repeat(24).into_bytes()));
    wait_outcome(&gateway, "forwarded", 2);
}

#[test]
fn an_upload_that_moves_may_take_longer_and_its_answer_has_its_time_from_the_last_byte() {
    best_of_three(|| {
        let backend = Backend::scripted(|wire, number| {
            // The second one is not answered.
            while wire.request().is_ok() {
                if number == 1 {
                    wire.send("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok");
                    return;
                }
            }
        });
        let server = "response_timeout = \"800ms\"\nmin_body_rate = \"off\"";
        let gateway = Gateway::start(&rules(&backend, server, ""));
        for status in [200, 504] {
            let mut wire = Wire::with(
                gateway.address(),
                "POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 8\r\n\r\n",
            );
            for _ in 0..8 {
                thread::sleep(STEP);
                assert!(wire.send("x"));
            }
            let started = Instant::now();
            assert_eq!(wire.answer().status(), status);
            assert_took(started, if status == 200 { 0..700 } else { 600..2000 });
            drop(wire);
            backend.wait_closed();
        }
    });
}

#[test]
fn an_upload_that_drips_is_a_408_after_30_seconds() {
    if std::env::var_os("SLUICEGATE_LONG").is_none() {
        return;
    }
    let backend = Backend::scripted(|wire, _| while wire.request().is_ok() {});
    let gateway = Gateway::start(&rules(&backend, "", ""));
    let mut wire = Wire::with(gateway.address(), "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9999\r\n\r\n");
    let started = Instant::now();
    wire.stream().set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let dripping = wire.stream().try_clone().unwrap();
    let drip = thread::spawn(move || {
        while std::io::Write::write_all(&mut &dripping, b"x").is_ok() {
            thread::sleep(STEP);
        }
    });
    assert_eq!(wire.answer().status(), 408);
    assert!(started.elapsed() >= Duration::from_secs(29));
    wait_fault(&gateway, "client", "body-too-slow", 1);
    drop(wire);
    drip.join().unwrap();
    backend.wait_closed();
}
