//! How streams and connections end: by their client, by the server behind, by time, by the gateway's own end.

use std::future::poll_fn;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Backend, Gateway, eventually};
use crate::timing::{assert_took, best_of_three};
use crate::wire::{Wire, front, ok, rules, settle, telling, wait_outcome};

use super::frames::{CANCEL, DATA, END_HEADERS, END_STREAM, Ending, Frame, GOAWAY, NO_ERROR, PING, Raw, request};
use super::peer::{ask, connect, open, request as polite, run};

/// Takes whole requests and says nothing; the script ends when the gateway closes.
fn silent() -> Backend {
    Backend::scripted(|wire, _| while wire.request().is_ok() {})
}

#[test]
fn a_cancelled_stream_aborts_its_upstream_request_and_no_other() {
    best_of_three(|| {
        let backend = silent();
        let gateway = Gateway::start(&format!("[log]\naccess = \"json\"\n{}", rules(&backend, "", "")));
        let mut raw = Raw::open(gateway.address());
        let (first, second) = (raw.get("/first"), raw.get("/second"));
        assert!(eventually(|| backend.requests() == 2));
        let gone = Instant::now();
        raw.reset(first, CANCEL);
        backend.wait_closed();
        assert_took(gone, 0..1000);
        wait_outcome(&gateway, "client-gone", 1);
        gateway.wait_metric("sluicegate_requests_in_flight", &[], 1.0);
        assert!(raw.is_open(second));
        assert!(eventually(|| gateway.access_log().len() == 1));
        let line = &gateway.access_log()[0];
        assert_eq!((&line["status"], &line["outcome"]), (&499.into(), &"client-gone".into()));
        assert_eq!((&line["target"], &line["protocol"]), (&"/first".into(), &"HTTP/2.0".into()));
        raw.close();
        backend.wait_closed();
        wait_outcome(&gateway, "client-gone", 2);
        gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
    });
}

#[test]
fn a_cancel_in_the_middle_of_an_upload_aborts_it() {
    best_of_three(|| {
        // One that reads what comes, and one that reads nothing.
        for reads in [true, false] {
            let (tell, told) = std::sync::mpsc::channel();
            let tell = std::sync::Mutex::new(tell);
            let backend = Backend::scripted(move |wire, _| {
                let _ = wire.head();
                tell.lock().unwrap().send(()).unwrap();
                if reads {
                    drop(wire.rest());
                } else {
                    thread::sleep(Duration::from_secs(60));
                }
            });
            let gateway = front(&backend);
            let mut raw = Raw::open(gateway.address());
            let id = raw.headers(END_HEADERS, &request("POST", "/up"));
            told.recv().unwrap();
            // As much as the window holds, and much more than the sockets of this test's server do.
            for _ in 0..15 {
                raw.upload(0, id, &[b'x'; 16_384]);
            }
            settle(&gateway);
            let gone = Instant::now();
            raw.reset(id, CANCEL);
            if reads {
                backend.wait_closed();
            }
            wait_outcome(&gateway, "client-gone", 1);
            assert_took(gone, 0..2000);
            gateway.wait_metric("sluicegate_requests_in_flight", &[], 0.0);
        }
    });
}

#[test]
fn a_cancel_of_an_upload_that_its_server_does_not_take_aborts_it() {
    best_of_three(|| {
        let backend = Backend::scripted(|wire, _| {
            let _ = wire.head();
            thread::sleep(Duration::from_secs(60));
        });
        let gateway = front(&backend);
        run(async {
            let sender = connect(gateway.address()).await;
            let (_response, mut send) = open(&sender, polite("POST", "/up", &[]), false).await;
            // Until no window opens any more: all sockets on the way are full, and nothing of the stream is read.
            loop {
                send.reserve_capacity(65_536);
                let more = tokio::time::timeout(Duration::from_millis(500), poll_fn(|cx| send.poll_capacity(cx)));
                let Ok(room) = more.await else { break };
                send.send_data(vec![b'x'; room.unwrap().unwrap()].into(), false).unwrap();
            }
            let gone = Instant::now();
            send.send_reset(h2::Reason::CANCEL);
            while gateway.metric("sluicegate_requests_total", &["outcome=\"client-gone\""]) < 0.5 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            assert_took(gone, 0..1500);
            assert_eq!(ask(&sender, polite("GET", "/local", &[])).await.unwrap().status, 200);
        });
        gateway.wait_metric("sluicegate_requests_in_flight", &[], 0.0);
    });
}

#[test]
fn a_cancel_in_the_middle_of_a_download_aborts_it() {
    best_of_three(|| {
        let backend = Backend::scripted(|wire, _| {
            if wire.request().is_ok() {
                wire.send("HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n");
                while wire.send(vec![b'x'; 65_536]) {}
            }
        });
        let gateway = front(&backend);
        for credits in [true, false] {
            let mut raw = Raw::open(gateway.address());
            raw.credits = credits;
            let id = raw.get("/");
            raw.wait(|frame| frame.kind == DATA && frame.stream == id);
            let gone = Instant::now();
            raw.reset(id, CANCEL);
            backend.wait_closed();
            assert_took(gone, 0..2000);
        }
        wait_outcome(&gateway, "client-gone", 2);
    });
}

#[test]
fn a_connection_that_is_cut_aborts_all_of_its_requests() {
    best_of_three(|| {
        for by_reset in [false, true] {
            let backend = silent();
            let gateway = front(&backend);
            let mut raw = Raw::open(gateway.address());
            for _ in 0..10 {
                raw.get("/");
            }
            assert!(eventually(|| backend.requests() == 10));
            let gone = Instant::now();
            if by_reset {
                socket2::SockRef::from(raw.stream()).set_linger(Some(Duration::ZERO)).unwrap();
            }
            drop(raw);
            for _ in 0..10 {
                backend.wait_closed();
            }
            assert_took(gone, 0..2000);
            wait_outcome(&gateway, "client-gone", 10);
            gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
        }
    });
}

#[test]
fn a_server_that_dies_before_its_head_is_a_502_and_after_it_a_reset() {
    let backend = Backend::scripted(|wire, _| {
        while let Ok(request) = wire.request() {
            let sent = match request.target() {
                "/no-head" => "",
                "/half-a-head" => "HTTP/1.1 200 OK\r\nContent-",
                "/no-body" => "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n",
                "/half-a-body" => "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello",
                "/half-a-chunk" => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
                "/no-last-chunk" => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
                "/half-the-trailers" => {
                    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-A: 1\r\n"
                }
                _ => "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            };
            wire.send(sent);
            if !sent.ends_with("ok") {
                return;
            }
        }
    });
    let gateway = front(&backend);
    let mut raw = Raw::open(gateway.address());
    for path in ["/no-head", "/half-a-head"] {
        let id = raw.headers(super::frames::WHOLE, &request("POST", path));
        assert!(matches!(raw.ending(id), Ending::Answered(502, _)), "{path}: {:?}", raw.ending(id));
        assert_eq!(raw.ask("/good"), (200, "ok".to_owned()));
    }
    for path in ["/no-body", "/half-a-body", "/half-a-chunk", "/no-last-chunk", "/half-the-trailers"] {
        let id = raw.get(path);
        let ending = raw.ending(id);
        assert!(matches!(ending, Ending::Reset(code) if code != NO_ERROR), "{path}: {ending:?}");
        let ended = |frame: &Frame| frame.stream == id && frame.kind < 2 && frame.flags & END_STREAM != 0;
        assert!(!raw.seen.iter().any(ended), "{path}");
        assert_eq!(raw.ask("/good"), (200, "ok".to_owned()));
    }
}

#[test]
fn sigterm_says_goaway_and_finishes_what_is_in_flight() {
    best_of_three(|| {
        let backend = Backend::scripted(|wire, _| {
            while wire.request().is_ok() {
                thread::sleep(Duration::from_millis(700));
                wire.send(ok("late"));
            }
        });
        let mut gateway = Gateway::start(&rules(&backend, "shutdown_grace = \"10s\"", ""));
        let mut idle = Raw::open(gateway.address());
        assert_eq!(idle.ask("/local").0, 200);
        let mut busy = Raw::open(gateway.address());
        let id = busy.get("/slow");
        gateway.wait_metric("sluicegate_requests_in_flight", &[], 1.0);
        let started = Instant::now();
        gateway.signal("TERM");
        assert_eq!(idle.goaway(), Some(NO_ERROR), "an idle one is told and closed");
        let goaway = busy.wait(|frame| frame.kind == GOAWAY);
        assert_eq!(goaway.code(), NO_ERROR);
        // One that was on its way before the client knew.
        assert_eq!(busy.ending(id), Ending::Answered(200, b"late".to_vec()));
        assert_eq!(busy.goaway(), Some(NO_ERROR));
        let last = busy.seen.iter().rfind(|frame| frame.kind == GOAWAY).unwrap();
        assert_eq!(u32::from_be_bytes(last.payload[..4].try_into().unwrap()), id, "the last stream that was served");
        assert!(gateway.wait_exit().success());
        assert_took(started, 500..6000);
    });
}

#[test]
fn a_client_that_does_not_follow_a_goaway_does_not_outlast_the_grace() {
    best_of_three(|| {
        let backend = telling();
        let mut gateway = Gateway::start(&rules(&backend, "shutdown_grace = \"1s\"", ""));
        let mut raw = Raw::open(gateway.address());
        let id = raw.headers(END_HEADERS, &request("POST", "/never-ends"));
        raw.send(DATA, 0, id, b"x");
        settle(&gateway);
        let started = Instant::now();
        gateway.signal("TERM");
        assert!(gateway.wait_exit().success());
        assert_took(started, 900..5000);
    });
}

#[test]
fn an_idle_connection_is_told_goaway_when_its_time_has_come() {
    best_of_three(|| {
        let backend = Backend::scripted(|wire, _| {
            while let Ok(request) = wire.request() {
                thread::sleep(Duration::from_millis(if request.target() == "/slow" { 1200 } else { 0 }));
                wire.send(ok("answer"));
            }
        });
        let gateway = Gateway::start(&rules(&backend, "keep_alive_timeout = \"400ms\"", ""));
        for use_it in [false, true] {
            let mut raw = Raw::open(gateway.address());
            let mut idle = Instant::now();
            if use_it {
                // One that is in flight keeps it.
                assert_eq!(raw.ask("/slow"), (200, "answer".to_owned()));
                idle = Instant::now();
            }
            raw.wait(|frame| frame.kind == GOAWAY);
            assert_took(idle, 350..1000);
            assert_eq!(raw.goaway(), Some(NO_ERROR));
            assert_took(idle, 350..4000);
        }
        // Pings are no requests.
        let mut raw = Raw::open(gateway.address());
        let idle = Instant::now();
        while raw.send(PING, 0, 0, b"still on") && idle.elapsed() < Duration::from_secs(3) {
            raw.read_for(Duration::from_millis(20));
            if raw.seen.iter().any(|frame| frame.kind == GOAWAY) {
                break;
            }
        }
        assert_took(idle, 350..1500);
        gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
    });
}

#[test]
fn a_request_that_comes_with_the_goaway_is_answered_or_may_be_sent_again() {
    let backend = telling();
    let gateway = Gateway::start(&rules(&backend, "keep_alive_timeout = \"300ms\"", ""));
    for _ in 0..5 {
        let mut raw = Raw::open(gateway.address());
        // The first GOAWAY only warns: what was sent before its receipt counts.
        let goaway = raw.wait(|frame| frame.kind == GOAWAY);
        assert_eq!(u32::from_be_bytes(goaway.payload[..4].try_into().unwrap()) & 0x7FFF_FFFF, 0x7FFF_FFFF);
        let id = raw.get("/late");
        match raw.ending(id) {
            Ending::Answered(200, _) | Ending::Reset(7) => {}
            Ending::Closed => {
                let last = raw.seen.iter().rfind(|frame| frame.kind == GOAWAY).unwrap();
                assert!(u32::from_be_bytes(last.payload[..4].try_into().unwrap()) < id, "{:?}", raw.seen);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_listener_that_a_reload_removes_says_goaway() {
    best_of_three(|| {
        let backend = telling();
        let rest = rules(&backend, "", "");
        let two = format!("[[listener]]\naddress = \"127.0.0.2:0\"\n{rest}");
        let gateway = Gateway::start(&two);
        let mut raw = Raw::open(gateway.addresses[1]);
        assert_eq!(raw.ask("/one").1, "1 /one");
        let mut kept = Raw::open(gateway.addresses[0]);
        assert_eq!(kept.ask("/kept").1, "1 /kept");
        let answer = gateway.reload(&rest);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let started = Instant::now();
        assert_eq!(raw.goaway(), Some(NO_ERROR));
        assert_took(started, 0..4000);
        assert_eq!(kept.ask("/kept").1, "1 /kept");
        assert!(!kept.seen.iter().any(|frame| frame.kind == GOAWAY));
    });
}

#[test]
fn a_client_that_does_not_say_that_it_knows_cannot_put_the_end_off() {
    best_of_three(|| {
        let backend = Backend::scripted(|wire, _| {
            while let Ok(request) = wire.request() {
                thread::sleep(Duration::from_millis(if request.target() == "/slow" { 3000 } else { 0 }));
                wire.send(ok(request.target()));
            }
        });
        let rest = rules(&backend, "", "");
        let gateway = Gateway::start(&format!("[[listener]]\naddress = \"127.0.0.2:0\"\n{rest}"));
        let mut raw = Raw::open(gateway.addresses[1]);
        raw.pongs = false;
        let slow = raw.get("/slow");
        assert!(eventually(|| backend.requests() == 1));
        assert_eq!(gateway.reload(&rest).status, 200);
        let started = Instant::now();
        // Until it is told which one is the last, its requests are answered.
        raw.wait(|frame| frame.kind == GOAWAY);
        let early = raw.get("/early");
        assert_eq!(raw.ending(early), Ending::Answered(200, b"/early".to_vec()));
        let is_last = |frame: &Frame| frame.kind == GOAWAY && frame.payload[..4] != [0x7F, 0xFF, 0xFF, 0xFF];
        let last = raw.wait(is_last);
        assert_took(started, 900..2500);
        assert_eq!((&last.payload[..4], last.code()), (&early.to_be_bytes()[..], NO_ERROR));
        // Frames behind that are not looked at, and no fault.
        let late = raw.headers(END_HEADERS, &request("POST", "/late"));
        raw.send(DATA, 0, late, b"a body");
        raw.window(late, 1);
        raw.send(DATA, END_STREAM, late, b" and its end");
        raw.reset(late, CANCEL);
        assert_eq!(raw.ending(slow), Ending::Answered(200, b"/slow".to_vec()));
        assert_eq!(raw.goaway(), Some(NO_ERROR));
        assert_eq!(backend.requests(), 2);
        gateway.wait_metric("sluicegate_http2_connection_errors_total", &[], 0.0);
    });
}

#[test]
fn http_1_and_http_2_share_a_listener() {
    let backend = telling();
    let gateway = front(&backend);
    assert_eq!(Wire::open(gateway.address()).get("/one").text(), "1 /one");
    assert_eq!(Raw::open(gateway.address()).ask("/two").1, "1 /two");
    // The preface is one only as the first thing.
    let mut wire = Wire::open(gateway.address());
    assert_eq!(wire.get("/three").text(), "1 /three");
    wire.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    assert_eq!(wire.answer().status(), 505);
    // In pieces it is one too.
    let mut raw = Raw::silent(gateway.address());
    for byte in b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x06\x04\0\0\0\0\0\0\x01\0\0\0\0" {
        raw.send_bytes(&[*byte]);
    }
    assert_eq!(raw.ask("/four").1, "1 /four");
}
