//! After any doubt about where a message ends its connection is not used again: what an upstream sends too much never
//! becomes the answer to another request.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use crate::support::{Backend, Gateway, PATIENCE, eventually};
use crate::wire::{Wire, front, get, ok, settle, tell};

/// A first connection that answers and then sends too much, at once and once more a little later; all further ones are
/// clean.
fn poisoned(answer: &'static str, later: &'static str) -> (Backend, mpsc::Receiver<()>) {
    let (done, is_done) = mpsc::sync_channel(1);
    let backend = Backend::scripted(move |wire, number| {
        if number > 1 {
            return tell(wire, number);
        }
        if wire.request().is_err() {
            return;
        }
        wire.send(answer);
        thread::sleep(Duration::from_millis(50));
        wire.send(later);
        let _ = done.try_send(());
        // A request that comes all the same is answered, so that the test sees by whom.
        tell(wire, number);
    });
    (backend, is_done)
}

fn expects_a_clean_second_answer(method: &str, answer: &'static str, later: &'static str) {
    let (backend, is_done) = poisoned(answer, later);
    let gateway: Gateway = front(&backend);
    let mut wire = Wire::with(gateway.address(), format!("{method} /first HTTP/1.1\r\nHost: h\r\n\r\n"));
    let first = wire.answer_to(method);
    let status: u16 = answer[9..12].parse().unwrap();
    assert_eq!(first.status(), status, "{answer:?}");
    assert!(first.text().is_empty() || first.text() == "ok", "{answer:?} gave {:?}", first.text());
    is_done.recv_timeout(PATIENCE).unwrap();
    settle(&gateway);
    let second = wire.get("/second");
    assert_eq!(second.text(), "2 /second", "{answer:?} and later {later:?}: {second:?}");
    assert_eq!(wire.get("/third").text(), "2 /third");
    assert_eq!(backend.connections.load(Ordering::SeqCst), 2);
}

#[test]
fn more_bytes_than_the_length_says() {
    expects_a_clean_second_answer("GET", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokX", "Y");
    expects_a_clean_second_answer("GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n\n", "");
}

#[test]
fn a_second_response() {
    const TWICE: &str =
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison";
    expects_a_clean_second_answer("GET", TWICE, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison");
}

#[test]
fn bytes_behind_the_last_chunk() {
    expects_a_clean_second_answer(
        "GET",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nX",
        "0\r\n\r\n",
    );
}

#[test]
fn a_body_behind_a_response_that_has_none() {
    expects_a_clean_second_answer("GET", "HTTP/1.1 204 No Content\r\n\r\nbody", "more");
    expects_a_clean_second_answer("GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 4\r\n\r\nbody", "more");
    expects_a_clean_second_answer("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody", "more");
}

#[test]
fn junk_while_idle() {
    const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    expects_a_clean_second_answer("GET", OK, "junk");
    expects_a_clean_second_answer("GET", OK, "\r\n");
    expects_a_clean_second_answer("GET", OK, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison");
    expects_a_clean_second_answer("GET", OK, "HTTP/1.1 100 Continue\r\n\r\n");
    expects_a_clean_second_answer("GET", OK, "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n");
}

#[test]
fn a_poisoned_connection_is_closed() {
    let backend = Backend::scripted(|wire, _| {
        if wire.request().is_ok() {
            wire.send(ok("ok"));
            wire.send("junk");
            drop(wire.rest());
        }
    });
    let gateway = front(&backend);
    assert_eq!(Wire::open(gateway.address()).get("/").text(), "ok");
    assert_eq!(backend.wait_closed(), 1);
}

#[test]
fn another_clients_connection_is_not_poisoned_either() {
    let (backend, is_done) = poisoned("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.1 200 OK\r\n\r\nX");
    let gateway = front(&backend);
    assert_eq!(Wire::open(gateway.address()).get("/first").text(), "ok");
    is_done.recv_timeout(PATIENCE).unwrap();
    settle(&gateway);
    for _ in 0..3 {
        assert_eq!(Wire::open(gateway.address()).get("/other").text(), "2 /other");
    }
}

#[test]
fn a_refused_request_leaves_the_upstreams_other_connections_in_use() {
    let backend = Backend::scripted(tell);
    let gateway = front(&backend);
    assert_eq!(Wire::open(gateway.address()).get("/a").text(), "1 /a");
    assert_eq!(Wire::with(gateway.address(), "GET / HTTP/1.1\r\n\r\n").answer().status(), 400);
    assert_eq!(Wire::open(gateway.address()).get("/b").text(), "1 /b");
}

#[test]
fn a_connection_that_is_still_owed_trailers_carries_no_other_request() {
    // Sizes about those of a buffer: with which read the response ends is not to matter.
    for size in [10, 10_000, 20_000, 40_000] {
        let (answer, answering) = mpsc::sync_channel::<()>(1);
        let (done, is_done) = mpsc::sync_channel::<()>(1);
        let answering = Mutex::new(answering);
        let backend = Backend::scripted(move |wire, number| {
            if number > 1 {
                return tell(wire, number);
            }
            let Ok(mut request) = wire.head() else { return };
            let begin = wire.take(b"3\r\nabc\r\n".len()).unwrap();
            assert_eq!(begin, b"3\r\nabc\r\n");
            done.send(()).unwrap();
            answering.lock().unwrap().recv().unwrap();
            wire.send(ok(&"x".repeat(size)));
            done.send(()).unwrap();
            // What comes now is the end of that body, or nothing.
            match wire.body_of(&mut request) {
                Ok(()) => tell(wire, number),
                Err(error) => drop(wire.send(format!("HTTP/1.1 500 {error:?}\r\nContent-Length: 0\r\n\r\n"))),
            }
        });
        let gateway = front(&backend);
        let mut wire = Wire::with(
            gateway.address(),
            "POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        );
        is_done.recv_timeout(PATIENCE).unwrap();
        // The whole answer and the end of the request are there when the gateway looks.
        gateway.pause();
        answer.send(()).unwrap();
        is_done.recv_timeout(PATIENCE).unwrap();
        wire.send("0\r\nX-T: v\r\n\r\n");
        gateway.resume();
        let first = wire.answer_to("POST");
        assert_eq!((first.status(), first.body.len()), (200, size));
        let second = Wire::with(gateway.address(), get("/other")).answer();
        assert!(["1 /other", "2 /other"].contains(&second.text().as_str()), "{size} bytes: {second:?}");
        for seen in backend.seen.lock().unwrap().iter().filter(|seen| seen.target() == "/a") {
            assert_eq!(seen.trailers, [("x-t".to_owned(), "v".to_owned())], "{size} bytes");
        }
    }
}

/// Servers that send the body of an answer to a HEAD, or take the body of a GET for another request, do so a moment later:
/// when the next request has come over the connection already.
#[test]
fn what_a_faulty_server_sends_late_is_nobodys_answer() {
    for first in
        ["HEAD /first HTTP/1.1\r\nHost: h\r\n\r\n", "GET /first HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody"]
    {
        let is_shown = (0..20).any(|_| {
            let backend = Backend::scripted(|wire, number| {
                while let Ok(request) = wire.request() {
                    match (number, request.line.split(' ').next().unwrap(), request.target()) {
                        (_, "HEAD", _) => wire.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"),
                        (_, _, "/first") => wire.send(ok("")),
                        (1, _, _) => wire.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstray"),
                        _ => wire.send(ok("mine")),
                    };
                }
            });
            let gateway = front(&backend);
            let mut other = Wire::open(gateway.address());
            assert_eq!(other.get("/local").status(), 200);
            let mut wire = Wire::open(gateway.address());
            let started = std::time::Instant::now();
            wire.send(first);
            assert!(wire.answer_to(first.split(' ').next().unwrap()).status() < 400);
            let text = other.get("/second").text();
            // On a machine that is slow just now the moment may be over.
            let is_in_time = started.elapsed() < Duration::from_millis(40);
            assert!(!is_in_time || text == "mine", "{first:?}: {text:?}");
            is_in_time
        });
        assert!(is_shown, "{first:?}: each of twenty tries took more than 40 ms");
    }
}

#[test]
fn a_connection_that_had_a_head_is_used_again_after_a_moment() {
    let backend = Backend::scripted(|wire, _| {
        while wire.request().is_ok() {
            wire.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n");
        }
    });
    let gateway = front(&backend);
    let mut wire = Wire::open(gateway.address());
    for _ in 0..3 {
        wire.send("HEAD / HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(wire.answer_to("HEAD").status(), 200);
        thread::sleep(Duration::from_millis(110));
    }
    assert_eq!((backend.requests(), backend.connections.load(Ordering::SeqCst)), (3, 1));
}

#[test]
fn what_is_usual_needs_no_rest() {
    let backend = Backend::scripted(|wire, _| {
        while let Ok(request) = wire.request() {
            match request.target() {
                "/304" => wire.send("HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\n"),
                "/chunked" => wire.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
                _ => wire.send(ok("")),
            };
        }
    });
    let gateway = front(&backend);
    let mut wire = Wire::open(gateway.address());
    for _ in 0..10 {
        for (method, target, body) in [("GET", "/304", ""), ("HEAD", "/chunked", ""), ("DELETE", "/", "body")] {
            let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
            wire.send(format!("{method} {target} HTTP/1.1\r\nHost: h\r\n{length}\r\n{body}"));
            assert!(wire.answer_to(method).status() < 400);
        }
    }
    assert_eq!((backend.requests(), backend.connections.load(Ordering::SeqCst)), (30, 1));
}

#[test]
fn of_many_connections_that_would_rest_most_are_closed() {
    const COUNT: usize = 40;
    // Each request is answered when all have come, so that each has a connection of its own.
    let (all_here, answered) = (Arc::new(Barrier::new(COUNT + 1)), Arc::new(Barrier::new(COUNT + 1)));
    let (here, done) = (Arc::clone(&all_here), Arc::clone(&answered));
    let backend = Backend::scripted(move |wire, _| {
        if wire.request().is_ok() {
            here.wait();
            wire.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n");
            done.wait();
            drop(wire.rest());
        }
    });
    let gateway = front(&backend);
    let head = "HEAD / HTTP/1.1\r\nHost: h\r\n\r\n";
    let mut wires: Vec<_> = (0..COUNT).map(|_| Wire::with(gateway.address(), head)).collect();
    assert!(eventually(|| backend.requests() == COUNT));
    // All answers are there when the gateway looks: none has rested before the last one comes.
    gateway.pause();
    all_here.wait();
    answered.wait();
    gateway.resume();
    for wire in &mut wires {
        assert_eq!(wire.answer_to("HEAD").status(), 200);
    }
    // 16 rest, and 16 more where the others' rest was over meanwhile. Without a bound all would be idle for 50 s.
    for _ in 0..COUNT - 32 {
        backend.wait_closed();
    }
}
