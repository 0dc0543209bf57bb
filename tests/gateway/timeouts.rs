use std::io::{Read, Write};
use std::time::{Duration, Instant};

use crate::support::{Backend, Client, Gateway, eventually, get};
use crate::timing::{assert_lasted, assert_took, best_of_three};
use crate::wire::{Wire, rules};

const LOG: &str = "[dead_letter]\ndirectory = \"dead-letters\"\n";

#[test]
fn a_request_that_overruns_its_timeout_is_a_504_and_its_upstream_request_is_aborted() {
    best_of_three(|| {
        let backend = Backend::start(|_, stream| stream.read(&mut [0; 16]).is_ok_and(|size| size > 0));
        let gateway = Gateway::start(&format!(
            "[[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n[[limit]]\nname = \"l\"\nkey = \"global\"\nrate = \"100/s\"\n\
         timeout = \"300ms\"\n[[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"l\"]\ntimeout = \"5s\"\n{LOG}",
            backend.address
        ));
        let started = Instant::now();
        let answer = get(gateway.address(), "/slow");
        let took = started.elapsed();
        assert_eq!(answer.status, 504);
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
        assert_lasted(took, Duration::from_millis(300)..Duration::from_secs(1), "it");
        backend.wait_closed();
        gateway.wait_metric("sluicegate_requests_total", &["outcome=\"timeout\""], 1.0);
        assert!(eventually(|| gateway.dead_letters().len() == 1));
        let record = &gateway.dead_letters()[0];
        assert_eq!((&record["reason"], &record["status"]), (&"timeout".into(), &504.into()));
        assert_eq!(record["limit"], "l", "the dead letter names whose timeout it was");
    });
}

#[test]
fn a_timeout_in_the_body_cuts_the_connection() {
    let backend = Backend::start(|_, stream| {
        drop(stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"));
        stream.read(&mut [0; 16]).is_ok_and(|size| size > 0)
    });
    let gateway = Gateway::start(&format!(
        "[[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n[[route]]\nname = \"all\"\nupstream = \"app\"\n\
         timeout = \"400ms\"\n{LOG}",
        backend.address
    ));
    let mut client = Client::connect(gateway.address());
    client.send("GET", "/", &[], b"");
    let error = client.read_answer(false).unwrap_err();
    assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "the gateway must cut it, not the test's patience");
    backend.wait_closed();
    assert!(eventually(|| gateway.dead_letters().len() == 1));
    let record = &gateway.dead_letters()[0];
    assert_eq!((&record["reason"], &record["status"]), (&"timeout".into(), &200.into()), "the status that was sent");
    assert_eq!(record["limit"], serde_json::Value::Null, "it was the route's own timeout");
}

#[test]
fn a_timeout_between_two_chunks_that_the_gateway_makes_puts_no_answer_into_the_body() {
    // With its frame, each piece fills segments of this size exactly, so that the client's socket can be full between
    // two of them: then not a byte of the next one is sent.
    const SEGMENT: u32 = 536;
    const PIECES: [usize; 6] = [517, 1041, 1565, 529, 1065, 1601];
    let backend = Backend::scripted(|wire, number| {
        let piece = vec![b'x'; PIECES[number % PIECES.len()]];
        if wire.request().is_ok() && wire.send("HTTP/1.1 200 OK\r\n\r\n") {
            while wire.send(&piece) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    let gateway = Gateway::start(&rules(&backend, "", "timeout = \"2s\""));
    let clients: Vec<Wire> = (0..96)
        .map(|_| {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            socket.set_recv_buffer_size(4096).unwrap();
            socket.set_tcp_mss(SEGMENT).unwrap();
            socket.connect(&gateway.address().into()).unwrap();
            let wire = Wire::noting(socket.into(), std::sync::Arc::default());
            wire.send(crate::wire::get("/"));
            wire
        })
        .collect();
    for _ in &clients {
        backend.wait_closed();
    }
    for mut wire in clients {
        let mut response = Vec::new();
        // Cut: by an end or by a reset.
        let _ = wire.stream().read_to_end(&mut response);
        let text = String::from_utf8_lossy(&response);
        assert_eq!(text.matches("HTTP/1.1 ").count(), 1, "{}", &text[text.len() - 400..]);
        assert!(!text.ends_with("\r\n0\r\n\r\n"), "not as if it were complete");
        let _ = wire.is_cut();
    }
    gateway.wait_metric("sluicegate_responses_total", &["class=\"5xx\""], 0.0);
}

#[test]
fn a_client_that_does_not_read_is_cut_at_the_timeout() {
    let gateway = Gateway::start(
        "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n[[route]]\nname = \"all\"\nupstream = \"app\"\n\
         timeout = \"3s\"\n",
    );
    let mut client = Client::connect(gateway.address());
    client.send("GET", "/?bytes=60000000", &[], b"");
    gateway.wait_metric("sluicegate_requests_total", &["outcome=\"timeout\""], 1.0);
    gateway.wait_metric("sluicegate_requests_in_flight", &[], 0.0);
    assert!(client.read_answer(false).is_err());
}

#[test]
fn what_answers_in_time_is_untouched() {
    let gateway = Gateway::start(
        "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n[[route]]\nname = \"all\"\nupstream = \"app\"\n\
         timeout = \"2s\"\n",
    );
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.get("/?delay=300ms").status, 200);
    assert_eq!(client.get("/").status, 200);
}

#[test]
fn a_stopped_process_sweeps_what_is_overdue_when_it_goes_on() {
    best_of_three(|| {
        let gateway = Gateway::start(
            "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n[[limit]]\nname = \"l\"\nkey = \"global\"\nrate = \"100/s\"\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"l\"]\ntimeout = \"500ms\"\n",
        );
        let mut clients: Vec<Client> = (0..20).map(|_| Client::connect(gateway.address())).collect();
        for client in &mut clients {
            client.send("GET", "/?delay=60s", &[], b"");
        }
        gateway.wait_metric("sluicegate_requests_in_flight", &[], 20.0);
        gateway.signal("STOP");
        std::thread::sleep(Duration::from_secs(2));
        gateway.signal("CONT");
        let resumed = Instant::now();
        for client in &mut clients {
            assert_eq!(client.read_answer(false).unwrap().status, 504);
        }
        assert_took(resumed, 0..1000);
        gateway.wait_metric("sluicegate_requests_total", &["outcome=\"timeout\""], 20.0);
        gateway.wait_metric("sluicegate_requests_in_flight", &[], 0.0);
    });
}
