//! Clients that go away, by a reset, by an end that looks like a half-close, or in the middle of a body.

use std::fs;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::connections::connect_from;
use crate::support::{Backend, Client, Gateway, eventually};
use crate::timing::{assert_took, best_of_three};
use crate::wire::{Message, Wire, front, get, ok, rules, telling, wait_outcome};

/// Takes requests and says nothing; the script ends when the gateway closes.
fn silent() -> Backend {
    Backend::scripted(|wire, _| while wire.request().is_ok() {})
}

/// Answers each request after 1.5 s.
fn thoughtful() -> Backend {
    Backend::scripted(|wire, _| {
        while wire.request().is_ok() {
            thread::sleep(Duration::from_millis(1500));
            wire.send(ok("late"));
        }
    })
}

/// A client that has sent this and whose request is with the upstream.
fn waiting(gateway: &Gateway, backend: &Backend, bytes: &str) -> Wire {
    let wire = Wire::with(gateway.address(), bytes);
    assert!(eventually(|| backend.requests() == 1));
    wire
}

fn assert_aborted(gateway: &Gateway, backend: &Backend, gone: Instant, within: u64) {
    backend.wait_closed();
    assert_took(gone, 0..within);
    wait_outcome(gateway, "client-gone", 1);
    gateway.wait_metric("sluicegate_requests_in_flight", &[], 0.0);
    gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
    assert_eq!(backend.requests(), 1);
}

/// A client that goes while its request waits for the server: also behind more than the gateway reads ahead.
fn aborts_when_the_client_goes(go: impl Fn(Wire), within: u64) {
    best_of_three(|| {
        for bytes in [get("/"), get("/").repeat(2), get("/").repeat(2000)] {
            let backend = silent();
            let gateway = front(&backend);
            let wire = waiting(&gateway, &backend, &bytes);
            let gone = Instant::now();
            go(wire);
            assert_aborted(&gateway, &backend, gone, within);
        }
    });
}

#[test]
fn a_client_that_resets_aborts_its_upstream_request() {
    aborts_when_the_client_goes(Wire::reset, 1000);
}

#[test]
fn a_client_that_closes_plainly_is_found_out_by_an_interim_response() {
    aborts_when_the_client_goes(drop, 2000);
}

#[test]
fn a_client_that_is_gone_before_its_body_was_sent_aborts_its_upstream_request() {
    let backend = Backend::scripted(|wire, _| drop(wire.request()));
    let gateway = front(&backend);
    for by_reset in [false, true] {
        let before = backend.connections.load(Ordering::SeqCst);
        let wire =
            Wire::with(gateway.address(), "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nthe first part");
        assert!(eventually(|| backend.connections.load(Ordering::SeqCst) == before + 1));
        if by_reset {
            wire.reset();
        } else {
            wire.finish();
        }
        backend.wait_closed();
    }
    wait_outcome(&gateway, "client-gone", 2);
    assert_eq!(backend.requests(), 0, "half a body is no request");
}

#[test]
fn a_chunked_body_that_breaks_off_is_not_ended_for_the_upstream() {
    let backend = Backend::scripted(|wire, _| drop(wire.request()));
    let gateway = front(&backend);
    let wire =
        Wire::with(gateway.address(), "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
    assert!(eventually(|| backend.connections.load(Ordering::SeqCst) == 1));
    wire.finish();
    backend.wait_closed();
    wait_outcome(&gateway, "client-gone", 1);
    assert_eq!(backend.requests(), 0);
}

#[test]
fn a_half_close_after_a_request_gets_its_answer_and_nothing_else() {
    let backend = telling();
    let gateway = front(&backend);
    for number in 0..20 {
        let mut wire = Wire::open(gateway.address());
        wire.send(get("/x"));
        wire.finish();
        let answer = wire.response("GET").unwrap();
        assert_eq!((answer.status(), answer.text().as_str()), (200, "1 /x"), "request {number}");
        wire.assert_ended();
    }
}

#[test]
fn a_half_close_behind_pipelined_requests_gets_all_answers() {
    let backend = telling();
    let gateway = front(&backend);
    let mut wire = Wire::with(gateway.address(), (0..50).map(|n| get(&format!("/{n}"))).collect::<String>());
    wire.finish();
    for number in 0..50 {
        assert_eq!(wire.answer().text(), format!("1 /{number}"));
    }
    wire.assert_ended();
}

#[test]
fn a_half_close_gets_an_answer_that_takes_its_time() {
    let backend = thoughtful();
    let gateway = front(&backend);
    let mut wire = Wire::with(gateway.address(), get("/"));
    wire.finish();
    let mut statuses = Vec::new();
    loop {
        let response = wire.response("GET").unwrap();
        statuses.push(response.status());
        if response.status() >= 200 {
            assert_eq!(response.text(), "late");
            break;
        }
    }
    assert!(statuses.len() <= 5 && statuses[..statuses.len() - 1].iter().all(|status| *status == 100), "{statuses:?}");
    wire.assert_ended();
    wait_outcome(&gateway, "forwarded", 1);
}

#[test]
fn a_half_close_of_a_1_0_client_gets_no_interim_response() {
    let backend = thoughtful();
    let gateway = front(&backend);
    let mut wire = Wire::with(gateway.address(), "GET / HTTP/1.0\r\n\r\n");
    wire.finish();
    let answer = wire.response("GET").unwrap();
    assert_eq!((answer.status(), answer.text().as_str()), (200, "late"));
    wire.assert_ended();
}

#[test]
fn a_client_that_leaves_in_the_middle_of_a_response_aborts_it() {
    let backend = Backend::scripted(|wire, _| {
        if wire.request().is_ok() && wire.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n") {
            while wire.send("5\r\nhello\r\n") {
                thread::sleep(Duration::from_millis(5));
            }
        }
    });
    let gateway = front(&backend);
    let mut wire = Wire::with(gateway.address(), get("/"));
    assert_eq!(wire.head().unwrap().status(), 200);
    drop(wire);
    backend.wait_closed();
    wait_outcome(&gateway, "client-gone", 1);
}

/// Begins an answer that does not end, with this framing and one event, and goes on when it is told to.
fn events(framing: &'static str) -> (Backend, mpsc::SyncSender<&'static str>) {
    let (tell, told) = mpsc::sync_channel(8);
    let told = Mutex::new(told);
    let backend = Backend::scripted(move |wire, number| {
        if wire.request().is_err() {
            return;
        }
        wire.send(format!("HTTP/1.1 200 OK\r\n{framing}\r\n"));
        wire.send(if framing.is_empty() { "event\n" } else { "6\r\nevent\n\r\n" });
        if number == 1 {
            while let Ok(bytes) = told.lock().unwrap().recv() {
                wire.send(bytes);
            }
        } else {
            drop(wire.rest());
        }
    });
    (backend, tell)
}

const CHUNKED: &str = "Transfer-Encoding: chunked\r\n";

#[test]
fn a_client_that_closes_during_an_idle_event_stream_gives_its_place_up_at_once() {
    for framing in [CHUNKED, ""] {
        let (backend, _tell) = events(framing);
        let limit = "[[limit]]\nname = \"l\"\nkey = \"global\"\nalgorithm = \"concurrency\"\nmax_in_flight = 1\n";
        let gateway = Gateway::start(&(rules(&backend, "", "limits = [\"l\"]") + limit));
        let mut wire = Wire::with(gateway.address(), get("/"));
        assert_eq!(wire.head().unwrap().status(), 200);
        assert_eq!(wire.take(9).unwrap(), b"6\r\nevent\n");
        assert_eq!(Wire::with(gateway.address(), get("/")).answer().status(), 429);
        // All of it is read, so that its kernel says no more than that it has ended its side.
        let end_of_chunk: &[u8] = if framing.is_empty() { b"" } else { b"\r\n" };
        assert_eq!(wire.take(end_of_chunk.len()).unwrap(), end_of_chunk);
        drop(wire);
        wait_outcome(&gateway, "client-gone", 1);
        assert_eq!(Wire::with(gateway.address(), get("/")).head().unwrap().status(), 200);
    }
}

#[test]
fn a_half_close_during_an_event_stream_gets_all_of_it() {
    for (framing, more, end) in [(CHUNKED, "5\r\nmore\n\r\n", "0\r\n\r\n"), ("", "more\n", "")] {
        let (backend, tell) = events(framing);
        let gateway = front(&backend);
        let mut wire = Wire::with(gateway.address(), get("/"));
        wire.finish();
        assert_eq!(wire.head().unwrap().status(), 200);
        assert_eq!(wire.take(11).unwrap(), b"6\r\nevent\n\r\n");
        // It is asked before the next chunk, and another time in between.
        assert_eq!(wire.take(1).unwrap(), b"0");
        tell.send(more).unwrap();
        let mut rest = wire.take(10).unwrap();
        while !rest.ends_with(b"more\n\r\n") {
            rest.extend(wire.take(1).unwrap());
        }
        let head = rest.strip_suffix(b"\r\nmore\n\r\n").unwrap();
        assert!(head.iter().rev().skip(1).all(|digit| *digit == b'0') && head.ends_with(b"5"), "{head:?}");
        tell.send(end).unwrap();
        drop(tell);
        let last = String::from_utf8(wire.rest().unwrap()).unwrap();
        let zeros = last.strip_suffix("\r\n\r\n").unwrap();
        assert!(!zeros.is_empty() && zeros.bytes().all(|digit| digit == b'0'), "{last:?}");
        wait_outcome(&gateway, "forwarded", 1);
    }
}

#[test]
fn an_event_stream_that_breaks_off_after_a_question_is_not_taken_for_a_whole_one() {
    let (backend, tell) = events(CHUNKED);
    let gateway = front(&backend);
    let mut wire = Wire::with(gateway.address(), get("/"));
    wire.finish();
    assert_eq!(wire.head().unwrap().status(), 200);
    // The zero that asks the client could be the size of the last chunk, for one that takes the end of the connection for a line's.
    assert_eq!(wire.take(12).unwrap(), b"6\r\nevent\n\r\n0");
    drop(tell);
    let error = wire.rest().expect_err("a reset");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn a_client_that_leaves_while_it_waits_for_a_limit_reaches_no_upstream() {
    let backend = telling();
    let gateway = Gateway::start(&format!(
        "[[limit]]\nname = \"l\"\nkey = \"global\"\nrate = \"1/1h\"\nmax_wait = \"1h\"\n{}",
        rules(&backend, "", "limits = [\"l\"]\nresponse_timeout = \"none\"")
    ));
    assert_eq!(Wire::open(gateway.address()).get("/").status(), 200);
    let wire = Wire::with(gateway.address(), get("/"));
    gateway.wait_metric("sluicegate_limit_waiting", &[], 1.0);
    wire.reset();
    gateway.wait_metric("sluicegate_limit_waiting", &[], 0.0);
    wait_outcome(&gateway, "client-gone", 1);
    assert_eq!(backend.requests(), 1);
}

/// How many bytes of a client lie in the gateway's socket, unread.
fn unread(gateway: &Gateway, wire: &Wire) -> u64 {
    let ends = [gateway.address(), wire.stream().local_addr().unwrap()].map(|end| format!(":{:04X}", end.port()));
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let mut rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.find(|row| row[1].ends_with(&ends[0]) && row[2].ends_with(&ends[1])).expect("the connection");
    u64::from_str_radix(row[4].split_once(':').unwrap().1, 16).unwrap()
}

#[test]
fn a_client_that_closes_behind_an_upload_that_is_stuck_aborts_it() {
    best_of_three(|| {
        let (tell, told) = mpsc::sync_channel::<()>(1);
        let told = Mutex::new(told);
        let backend = Backend::scripted(move |wire, _| {
            if wire.head().is_ok() {
                let _ = told.lock().unwrap().recv();
            }
        });
        let gateway = front(&backend);
        let wire = Wire::with(gateway.address(), "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000000\r\n\r\n");
        let block = [b'x'; 16 << 10];
        // As much as is taken, and then one block that stays unread, behind which there is room for the client's end.
        let is_taken = || {
            let sent = Instant::now();
            while unread(&gateway, &wire) > 0 {
                if sent.elapsed() > Duration::from_millis(300) {
                    return false;
                }
                thread::sleep(Duration::from_millis(1));
            }
            true
        };
        while is_taken() {
            assert!(wire.send(block));
        }
        let gone = Instant::now();
        drop(wire);
        wait_outcome(&gateway, "client-gone", 1);
        assert_took(gone, 0..2000);
        gateway.wait_metric("sluicegate_requests_in_flight", &[], 0.0);
        gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
        tell.send(()).unwrap();
        backend.wait_closed();
    });
}

#[test]
fn a_client_that_leaves_with_half_a_body_in_a_queue_gives_its_place_up() {
    for by_reset in [false, true] {
        let backend = telling();
        let gateway = Gateway::start(&format!(
            "[[limit]]\nname = \"l\"\nkey = \"global\"\nrate = \"1/2s\"\nmax_wait = \"30s\"\n{}",
            rules(&backend, "", "limits = [\"l\"]")
        ));
        assert_eq!(Wire::open(gateway.address()).get("/first").status(), 200);
        let wire = Wire::with(
            gateway.address(),
            "POST /left HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\nthe first part",
        );
        gateway.wait_metric("sluicegate_limit_waiting", &[], 1.0);
        if by_reset {
            wire.reset();
        } else {
            drop(wire);
        }
        gateway.wait_metric("sluicegate_limit_decisions_total", &["decision=\"cancelled\""], 1.0);
        gateway.wait_metric("sluicegate_limit_waiting", &[], 0.0);
        wait_outcome(&gateway, "client-gone", 1);
        // Its slot is somebody else's.
        assert_eq!(Wire::open(gateway.address()).get("/next").status(), 200);
        let seen = backend.seen.lock().unwrap();
        assert_eq!(seen.iter().map(Message::target).collect::<Vec<_>>(), ["/first", "/next"]);
        assert_eq!(backend.connections.load(Ordering::SeqCst), 1, "nothing was sent on a connection of its own");
    }
}

#[test]
fn a_thousand_clients_that_leave_at_any_moment_leave_nothing_behind() {
    let (tell, told) = mpsc::sync_channel::<()>(2000);
    let told = Mutex::new(told);
    let backend = Backend::scripted(move |wire, _| {
        while wire.request().is_ok() {
            // Each client frees one answer: some are written to clients that have gone.
            let _ = told.lock().unwrap().recv_timeout(Duration::from_millis(20));
            wire.send(ok("answer"));
        }
    });
    let gateway = front(&backend);
    let request = "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 40\r\n\r\n0123456789012345678901234567890123456789";
    for number in 0..1000_usize {
        let wire = Wire::with(gateway.address(), &request[..=number % request.len()]);
        let _ = tell.try_send(());
        if number % 2 == 0 {
            wire.reset();
        }
    }
    gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
    gateway.wait_metric("sluicegate_requests_in_flight", &[], 0.0);
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.get("/after").text(), "answer");
}

/// A client that gives a request up leaves nothing behind in the kernel: servers are told by a reset, not by an end that would
/// have to be waited for (TIME-WAIT). An exchange that was answered ends in order.
#[test]
fn a_server_whose_answer_nobody_waits_for_is_told_by_a_reset() {
    let (tell, ends) = mpsc::sync_channel(10);
    let backend = Backend::scripted(move |wire, _| {
        let target = wire.request().map(|request| request.target().to_owned()).unwrap_or_default();
        if target == "/answered" {
            wire.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
        }
        let end = wire.rest().map_err(|error| error.kind());
        let _ = tell.try_send((target, end));
    });
    let gateway = front(&backend);
    assert_eq!(Wire::open(gateway.address()).get("/answered").text(), "ok");
    let ended = |ends: &mpsc::Receiver<_>| ends.recv_timeout(crate::support::PATIENCE).unwrap();
    assert_eq!(ended(&ends), ("/answered".to_owned(), Ok(Vec::new())));
    let reset = ("/given-up".to_owned(), Err(std::io::ErrorKind::ConnectionReset));
    let wire = Wire::with(gateway.address(), get("/given-up"));
    assert!(eventually(|| backend.requests() == 2));
    wire.reset();
    assert_eq!(ended(&ends), reset);
    let mut raw = crate::h2::frames::Raw::open(gateway.address());
    let stream = raw.get("/given-up");
    assert!(eventually(|| backend.requests() == 3));
    raw.reset(stream, crate::h2::frames::CANCEL);
    assert_eq!(ended(&ends), reset);
}

/// A reset towards the server takes nothing back that it has received: Linux gives what came before it first.
#[test]
fn a_post_that_was_whole_is_delivered_although_its_client_has_left() {
    const BODY: &str = "amount=100&to=somebody";
    let (here, is_here) = mpsc::sync_channel(1);
    let (go, may_go) = mpsc::sync_channel::<()>(1);
    let (tell, told) = mpsc::sync_channel(1);
    let may_go = Mutex::new(may_go);
    let backend = Backend::scripted(move |wire, _| {
        // All of it is in the kernel, and the server has read nothing yet.
        let mut room = [0; 4096];
        while !room.windows(BODY.len()).any(|window| window == BODY.as_bytes()) {
            assert!(wire.stream().peek(&mut room).unwrap() > 0);
        }
        let _ = here.try_send(());
        may_go.lock().unwrap().recv().unwrap();
        let _ = tell.try_send(wire.request().map(|request| request.text()));
    });
    let gateway = front(&backend);
    let length = BODY.len();
    let wire = Wire::with(
        gateway.address(),
        format!("POST /pay HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n{BODY}"),
    );
    is_here.recv_timeout(crate::support::PATIENCE).unwrap();
    wire.reset();
    wait_outcome(&gateway, "client-gone", 1);
    go.send(()).unwrap();
    let delivered = told.recv_timeout(crate::support::PATIENCE).unwrap();
    assert_eq!(delivered.map_err(|error| error.kind()), Ok(BODY.to_owned()));
}

#[test]
fn an_address_whose_clients_leave_a_server_that_stalls_is_refused_nowhere() {
    let backend = silent();
    let gateway = front(&backend);
    let from = |target: &str| {
        let wire = Wire::noting(connect_from("127.0.0.2", gateway.address()), Arc::default());
        wire.send(get(target));
        wire
    };
    // As many as a balancer or a NAT has in a few seconds while its server stands still.
    for round in 1..=12 {
        let batch: Vec<_> = (0..250).map(|_| from("/stalls")).collect();
        assert!(eventually(|| backend.requests() == 250 * round));
        batch.into_iter().for_each(Wire::reset);
        wait_outcome(&gateway, "client-gone", 250 * round);
    }
    let mut health_check = from("/local");
    assert_eq!(health_check.answer().status(), 200);
    assert_eq!(health_check.get("/local").status(), 200);
    // Nor over HTTP/2.
    assert_eq!(crate::h2::frames::Raw::open_from("127.0.0.2", gateway.address()).ask("/local").0, 200);
}
