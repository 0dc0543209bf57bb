//! The same policy as for HTTP/1: refusals, drops, waiting, logs.

use std::time::{Duration, Instant};

use crate::support::{Backend, Gateway, eventually};
use crate::timing::{assert_below, assert_in_time, assert_took, best_of_three};
use crate::wire::{only_letter, telling, wait_outcome};

use super::frames::{
    CANCEL, DATA, END_HEADERS, END_STREAM, Ending, HEADERS, NO_ERROR, RESET, Raw, WHOLE, request, request_with,
};
use super::peer::{ask, connect, request as polite, run};

fn limited(backend: &Backend, limit: &str, route: &str) -> String {
    format!(
        "[server]\nworkers = 1\n[log]\naccess = \"json\"\n[[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n\
         [[limit]]\nname = \"l\"\nkey = \"global\"\n{limit}\n\
         [[route]]\nname = \"free\"\npath = \"/free\"\nupstream = \"app\"\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"l\"]\n{route}\n\
         [dead_letter]\ndirectory = \"dead-letters\"\n",
        backend.address
    )
}

#[test]
fn a_refusal_is_a_429_with_its_fields_and_the_connection_goes_on() {
    let backend = telling();
    let gateway = Gateway::start(&limited(&backend, "rate = \"1/1h\"", ""));
    run(async {
        let sender = connect(gateway.address()).await;
        assert_eq!(ask(&sender, polite("GET", "/", &[])).await.unwrap().status, 200);
        let refused = ask(&sender, polite("GET", "/over?a=b", &[("user-agent", "curl")])).await.unwrap();
        assert_eq!(refused.status, 429);
        assert!(refused.header("retry-after").is_some() && !refused.body.is_empty(), "{refused:?}");
        assert!(refused.header("connection").is_none() && refused.header("keep-alive").is_none());
        assert_eq!(refused.header("content-length").unwrap(), refused.body.len().to_string());
        assert_eq!(ask(&sender, polite("GET", "/free", &[])).await.unwrap().text(), "1 /free");
    });
    wait_outcome(&gateway, "refused", 1);
    assert!(eventually(|| gateway.access_log().len() == 3));
    for line in gateway.access_log() {
        assert_eq!(line["protocol"], "HTTP/2.0", "{line}");
    }
    let line = &gateway.access_log()[1];
    assert_eq!((&line["status"], &line["method"], &line["host"]), (&429.into(), &"GET".into(), &"h".into()));
    assert_eq!(
        (&line["outcome"], &line["limit"], &line["user_agent"]),
        (&"refused".into(), &"l".into(), &"curl".into())
    );
    let letter = only_letter(&gateway);
    assert_eq!((&letter["reason"], &letter["status"]), (&"rate-limited".into(), &429.into()));
    assert_eq!((&letter["path"], &letter["query"], &letter["method"]), (&"/over".into(), &"a=b".into(), &"GET".into()));
    assert_eq!((&letter["host"], &letter["client_ip"]), (&"h".into(), &"127.0.0.1".into()));
    let headers = letter["headers"].to_string();
    assert!(headers.contains("user-agent") && !headers.contains("connection"), "{headers}");
}

#[test]
fn a_refusal_of_a_request_with_a_body_arrives_and_stops_its_sender() {
    let backend = telling();
    let gateway = Gateway::start(&limited(&backend, "rate = \"1/1h\"", ""));
    let mut raw = Raw::open(gateway.address());
    assert_eq!(raw.ask("/").0, 200);
    for body in [0, 14, 16_384] {
        for fields in [request("POST", "/"), request_with("POST", "/", &[("content-length", "1000000")])] {
            let id = raw.headers(END_HEADERS, &fields);
            if body > 0 {
                raw.send(DATA, 0, id, &vec![b'x'; body]);
            }
            let ending = raw.ending(id);
            assert!(matches!(&ending, Ending::Answered(429, body) if !body.is_empty()), "{ending:?}");
            raw.wait(|frame| frame.kind == RESET && frame.stream == id);
            assert_eq!(raw.resets(id), [NO_ERROR]);
            // It may not have known yet.
            raw.send(DATA, END_STREAM, id, b"more");
        }
    }
    // One whose body is whole is not reset.
    let id = raw.headers(END_HEADERS, &request("POST", "/"));
    raw.send(DATA, END_STREAM, id, b"hello");
    let ending = raw.ending(id);
    assert!(matches!(ending, Ending::Answered(429, _)), "{ending:?}");
    assert_eq!(raw.ask("/free").0, 200);
    assert_eq!(backend.requests(), 2);
}

#[test]
fn a_refused_upload_is_read_to_its_end_and_not_reset() {
    let backend = telling();
    let gateway = Gateway::start(&limited(&backend, "rate = \"1/1h\"", ""));
    best_of_three(|| {
        let mut raw = Raw::open(gateway.address());
        raw.ask("/");
        for size in [0, 100, 100_000] {
            for fields in [request("POST", "/"), request_with("POST", "/", &[("content-length", &size.to_string())])] {
                let body = vec![b'x'; size];
                let id = raw.headers(END_HEADERS, &fields);
                let (first, rest) = body.split_at(size / 2);
                for piece in first.chunks(10_000) {
                    raw.upload(0, id, piece);
                }
                let ending = raw.ending(id);
                assert!(matches!(ending, Ending::Answered(429, _)), "{ending:?}");
                for piece in rest.chunks(10_000) {
                    raw.upload(0, id, piece);
                }
                raw.send(DATA, END_STREAM, id, b"");
                assert_eq!(raw.ask("/free").0, 200);
                assert_in_time(raw.resets(id).is_empty(), "its end came within the second");
            }
        }
    });
}

#[test]
fn a_refused_upload_without_an_end_is_read_up_to_a_bound() {
    let backend = telling();
    let gateway = Gateway::start(&limited(&backend, "rate = \"1/1h\"", ""));
    best_of_three(|| {
        let mut raw = Raw::open(gateway.address());
        raw.ask("/");
        let started = Instant::now();
        let id = raw.headers(END_HEADERS, &request("POST", "/"));
        assert!(matches!(raw.ending(id), Ending::Answered(429, _)));
        for _ in 0..16 {
            raw.upload(0, id, &[b'x'; 16 << 10]);
        }
        raw.goaway_or_quiet();
        assert_in_time(raw.resets(id).is_empty(), "256 KiB are read");
        raw.upload(0, id, b"one more");
        raw.wait(|frame| frame.kind == RESET && frame.stream == id);
        assert_eq!(raw.resets(id), [NO_ERROR]);
        assert_below(started.elapsed(), Duration::from_secs(1), "not the time is over but the bound");
    });
}

#[test]
fn a_route_that_drops_resets_the_stream_and_leaves_the_connection() {
    let backend = telling();
    let gateway = Gateway::start(&limited(&backend, "rate = \"1/1h\"", "on_limit = \"drop\""));
    let mut raw = Raw::open(gateway.address());
    assert_eq!(raw.ask("/").0, 200);
    for _ in 0..3 {
        let id = raw.get("/dropped");
        let ending = raw.ending(id);
        assert!(matches!(ending, Ending::Reset(_)), "{ending:?}");
        assert!(!raw.seen.iter().any(|frame| frame.stream == id && frame.kind == HEADERS));
        assert_eq!(raw.ask("/free").0, 200);
    }
    wait_outcome(&gateway, "dropped", 3);
    assert!(eventually(|| gateway.dead_letters().len() == 3));
    assert_eq!(gateway.dead_letters()[0]["status"], 444);
    let dropped = || gateway.access_log().into_iter().find(|line| line["outcome"] == "dropped");
    assert!(eventually(|| dropped().is_some()));
    let line = dropped().unwrap();
    assert_eq!((&line["status"], &line["bytes_sent"]), (&444.into(), &0.into()));
}

#[test]
fn requests_wait_for_their_slot_and_a_cancel_gives_the_place_up() {
    best_of_three(|| {
        let backend = telling();
        let gateway = Gateway::start(&limited(&backend, "rate = \"1/2s\"\nmax_wait = \"30s\"", ""));
        let mut raw = Raw::open(gateway.address());
        assert_eq!(raw.ask("/").0, 200);
        let first = raw.get("/first");
        gateway.wait_metric("sluicegate_limit_waiting", &[], 1.0);
        let second = raw.get("/second");
        gateway.wait_metric("sluicegate_limit_waiting", &[], 2.0);
        raw.reset(first, CANCEL);
        gateway.wait_metric("sluicegate_limit_waiting", &[], 1.0);
        assert_eq!(raw.ask("/free").0, 200, "who waits keeps nobody waiting");
        let started = Instant::now();
        assert!(matches!(raw.ending(second), Ending::Answered(200, _)));
        assert_below(started.elapsed(), Duration::from_millis(2500), "the second, which moved up,");
        gateway.wait_metric("sluicegate_limit_decisions_total", &["decision=\"cancelled\""], 1.0);
        wait_outcome(&gateway, "client-gone", 1);
        // With a body under way, and by the end of the whole connection.
        let third = raw.headers(END_HEADERS, &request("POST", "/third"));
        raw.send(DATA, 0, third, b"the first part");
        gateway.wait_metric("sluicegate_limit_waiting", &[], 1.0);
        raw.reset(third, CANCEL);
        gateway.wait_metric("sluicegate_limit_waiting", &[], 0.0);
        raw.get("/fourth");
        gateway.wait_metric("sluicegate_limit_waiting", &[], 1.0);
        raw.close();
        gateway.wait_metric("sluicegate_limit_waiting", &[], 0.0);
        assert!(
            backend.seen.lock().unwrap().iter().all(|seen| !["/first", "/third", "/fourth"].contains(&seen.target()))
        );
    });
}

#[test]
fn a_wait_in_vain_is_refused() {
    best_of_three(|| {
        let backend = telling();
        let gateway = Gateway::start(&limited(&backend, "rate = \"1/1s\"\nmax_wait = \"1s\"", ""));
        let mut raw = Raw::open(gateway.address());
        assert_eq!(raw.ask("/").0, 200);
        let waiter = raw.get("/waits");
        gateway.wait_metric("sluicegate_limit_waiting", &[], 1.0);
        // Now its room comes in an hour.
        assert_eq!(gateway.reload(&limited(&backend, "rate = \"1/1h\"\nmax_wait = \"1s\"", "")).status, 200);
        let started = Instant::now();
        let ending = raw.ending(waiter);
        assert!(matches!(ending, Ending::Answered(429 | 503, _)), "{ending:?}");
        assert_took(started, 0..2000);
        wait_outcome(&gateway, "wait-timeout", 1);
        assert_eq!(only_letter(&gateway)["reason"], "wait-timeout");
    });
}

#[test]
fn a_route_timeout_is_a_504_and_a_malformed_request_is_logged() {
    best_of_three(|| {
        let backend = Backend::scripted(|wire, _| while wire.request().is_ok() {});
        let gateway = Gateway::start(&limited(&backend, "rate = \"100/1s\"", "timeout = \"300ms\""));
        let mut raw = Raw::open(gateway.address());
        let started = Instant::now();
        assert_eq!(raw.ask("/slow").0, 504);
        assert_took(started, 250..1500);
        backend.wait_closed();
        let id = raw.headers(WHOLE, &request_with("GET", "/", &[("host", "other")]));
        assert!(matches!(raw.ending(id), Ending::Answered(400, _)));
        wait_outcome(&gateway, "malformed", 1);
        assert!(eventually(|| gateway.access_log().iter().any(|line| line["status"] == 400)));
        assert!(gateway.access_log().iter().all(|line| line["protocol"] == "HTTP/2.0"));
    });
}

#[test]
fn a_concurrency_limit_counts_streams() {
    let backend = Backend::scripted(|wire, _| while wire.request().is_ok() {});
    let gateway = Gateway::start(&limited(&backend, "algorithm = \"concurrency\"\nmax_in_flight = 2", ""));
    let mut raw = Raw::open(gateway.address());
    let held: Vec<u32> = (0..2).map(|_| raw.get("/")).collect();
    assert!(eventually(|| backend.requests() == 2));
    let id = raw.get("/");
    let ending = raw.ending(id);
    assert!(matches!(ending, Ending::Answered(429 | 503, _)), "{ending:?}");
    raw.reset(held[0], CANCEL);
    wait_outcome(&gateway, "client-gone", 1);
    let id = raw.get("/");
    assert!(eventually(|| backend.requests() == 3));
    assert!(raw.is_open(id));
}
