use std::io::Read;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Backend, Client, Gateway, PATIENCE, eventually};
use crate::timing::{assert_took, best_of_three};
use crate::wire::{Wire, rules};

const SLOW: &str = "[server]\nshutdown_grace = \"5s\"\n[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
                    [[route]]\nname = \"all\"\nupstream = \"app\"\n";

#[test]
fn sigterm_finishes_what_is_in_flight_and_ends_with_0() {
    best_of_three(|| {
        let mut gateway = Gateway::start(SLOW);
        let mut idle = Client::connect(gateway.address());
        assert_eq!(idle.get("/").status, 200);
        gateway.wait_metric("sluicegate_requests_in_flight", &[], 0.0);
        let mut slow = Client::connect(gateway.address());
        slow.send("GET", "/?delay=700ms", &[], b"");
        gateway.wait_metric("sluicegate_requests_in_flight", &[], 1.0);
        let started = Instant::now();
        gateway.signal("TERM");
        assert_eq!(idle.read_rest().unwrap(), b"", "an idle connection is closed");
        let answer = slow.read_answer(false).unwrap();
        assert_eq!(answer.status, 200);
        assert!(gateway.wait_exit().success());
        // It does not wait longer than it has to.
        assert_took(started, 0..4000);
        assert!(std::net::TcpStream::connect(gateway.address()).is_err());
    });
}

#[test]
fn the_grace_is_a_bound() {
    best_of_three(|| {
        let mut gateway = Gateway::start(&SLOW.replace("5s", "300ms"));
        let mut slow = Client::connect(gateway.address());
        slow.send("GET", "/?delay=30s", &[], b"");
        gateway.wait_metric("sluicegate_requests_in_flight", &[], 1.0);
        let started = Instant::now();
        gateway.signal("TERM");
        assert!(gateway.wait_exit().success());
        assert_took(started, 300..5000);
        assert!(slow.read_answer(false).is_err());
    });
}

#[test]
fn a_second_signal_ends_at_once() {
    best_of_three(|| {
        let mut gateway = Gateway::start(&SLOW.replace("5s", "60s"));
        let mut slow = Client::connect(gateway.address());
        slow.send("GET", "/?delay=50s", &[], b"");
        gateway.wait_metric("sluicegate_requests_in_flight", &[], 1.0);
        // A burst of signals is one wish, as `timeout` sends two.
        gateway.signal("TERM");
        gateway.signal("TERM");
        assert!(eventually(|| gateway.log().contains("draining")));
        thread::sleep(Duration::from_millis(400));
        assert!(gateway.is_running(), "the burst did not end it");
        gateway.signal("TERM");
        let started = Instant::now();
        assert_eq!(gateway.wait_exit().code(), Some(143));
        assert_took(started, 0..5000);
    });
}

#[test]
fn busy_connections_lose_no_request_when_the_gateway_drains() {
    let mut gateway = Gateway::start(SLOW);
    let threads: Vec<_> = (0..16)
        .map(|_| {
            let address = gateway.address();
            thread::spawn(move || {
                let mut client = Client::connect(address);
                loop {
                    client.send("GET", "/", &[], b"");
                    let answer = client.read_answer(false).expect("a request that was sent gets its answer");
                    assert_eq!(answer.status, 200);
                    if answer.header("connection") == Some("close") {
                        return;
                    }
                }
            })
        })
        .collect();
    thread::sleep(Duration::from_millis(300));
    gateway.signal("TERM");
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(gateway.wait_exit().success());
}

#[test]
fn drain_delay_says_not_ready_first_and_listens_on() {
    best_of_three(|| {
        let mut gateway = Gateway::start(&SLOW.replace("[server]", "[server]\ndrain_delay = \"1500ms\""));
        let started = Instant::now();
        gateway.signal("TERM");
        assert!(eventually(|| gateway.ask_admin("/readyz").status == 503));
        assert_eq!(gateway.ask_admin("/healthz").status, 200);
        for _ in 0..20 {
            let answer = crate::support::get(gateway.address(), "/");
            assert_eq!((answer.status, answer.header("connection")), (200, None), "a new connection is served");
        }
        assert!(gateway.wait_exit().success());
        assert_took(started, 1500..6000);
    });
}

#[test]
fn no_signal_ends_it_that_nginx_survives_and_sigquit_drains() {
    let mut gateway = Gateway::start(SLOW);
    for name in ["USR1", "ALRM", "IO", "SYS", "WINCH", "PIPE", "CHLD", "USR1"] {
        gateway.signal(name);
        assert_eq!(crate::support::get(gateway.address(), "/").status, 200, "{name}");
    }
    assert!(eventually(|| gateway.log().matches("no log file to reopen").count() == 2), "{}", gateway.log());
    gateway.signal("QUIT");
    assert!(gateway.wait_exit().success());
}

/// A server of WebSocket that sends the first bytes at once, and the rest when it is told; what it got, to its end.
fn saying(first: &'static [u8], rest: &'static [u8]) -> (Backend, SyncSender<()>, Receiver<Vec<u8>>) {
    let (go, told) = sync_channel(1);
    let (tell, got) = sync_channel(1);
    let told = Mutex::new(told);
    let backend = Backend::scripted(move |wire, _| {
        let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        if wire.request().is_err() || !wire.send(switch) || !wire.send(first) {
            return;
        }
        told.lock().unwrap().recv_timeout(PATIENCE).unwrap();
        wire.send(rest);
        let mut all = Vec::new();
        let _ = wire.stream().try_clone().unwrap().read_to_end(&mut all);
        let _ = tell.send(all);
    });
    (backend, go, got)
}

#[test]
fn a_websocket_is_closed_by_1001_behind_the_frame_that_is_open() {
    const FRAME: [u8; 6] = [0x82, 4, 1, 2, 3, 4];
    const NEXT: [u8; 3] = [0x81, 1, b'x'];
    // Where the grace ends in its stream: between frames, in a frame, and in a frame's head.
    for (cut, passes) in [(6, &FRAME[..]), (4, &FRAME), (2, &FRAME), (1, &[0x82, 4, 1, 2, 3, 4, 0x81, 1, b'x'])] {
        let all: &'static [u8] = Box::leak([&FRAME[..], &NEXT].concat().into_boxed_slice());
        let (first, rest) = all.split_at(cut);
        let (backend, go, got) = saying(first, rest);
        let mut gateway = Gateway::start(&rules(&backend, "shutdown_grace = \"100ms\"", ""));
        let ask = "GET /chat HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        let mut wire = Wire::with(gateway.address(), ask);
        assert_eq!(wire.response("GET").unwrap().status(), 101);
        assert_eq!(wire.take(cut).unwrap(), first);
        gateway.signal("TERM");
        assert!(eventually(|| gateway.log().contains("shutdown grace period over")));
        go.send(()).unwrap();
        let mut told = first.to_vec();
        wire.stream().try_clone().unwrap().read_to_end(&mut told).unwrap();
        let expected = [passes, &[0x88, 2, 0x03, 0xe9]].concat();
        assert_eq!(told, expected, "cut at {cut}");
        drop(wire);
        let [0x88, 0x82, a, b, _, _, high, low] = got.recv_timeout(PATIENCE).unwrap()[..] else {
            panic!("no close frame of a client");
        };
        assert_eq!([high ^ a, low ^ b], [0x03, 0xe9]);
        assert!(gateway.wait_exit().success());
    }
}
