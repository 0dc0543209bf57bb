//! Bandwidth and messages where no mix of protocols matters: several workers, other protocols, a client of WebSocket that
//! is not of this house.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::{SinkExt, StreamExt};
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::support::{Backend, Gateway, PATIENCE, write_ok};
use crate::timing::{assert_lasted, assert_shared, assert_took, best_of_three};
use crate::websocket::{runtime, start_server};
use crate::wire::{Wire, get, rules, wait_outcome};

const KIB: usize = 1024;

#[test]
fn downloads_of_one_key_share_its_rate_over_all_workers() {
    best_of_three(|| {
        let backend = Backend::start(|_, stream| write_ok(stream, &vec![b'd'; 258 * KIB]));
        // The first may have the burst for itself: it is small, so that it makes little of a share.
        let bandwidth = "bandwidth = { rate = \"2MiB/s\", burst = \"16KiB\" }";
        let gateway = Gateway::start(&rules(&backend, "", bandwidth).replace("workers = 1", "workers = 4"));
        let started = Instant::now();
        let mut took: Vec<Duration> = thread::scope(|scope| {
            let one = || {
                assert_eq!(Wire::open(gateway.address()).get("/").body.len(), 258 * KIB);
                started.elapsed()
            };
            let downloads: Vec<_> = (0..8).map(|_| scope.spawn(one)).collect();
            downloads.into_iter().map(|download| download.join().unwrap()).collect()
        });
        took.sort();
        // 2 MiB and the burst.
        assert_lasted(took[7], Duration::from_millis(998)..Duration::from_millis(1150), "the last");
        assert_shared(took[0], Duration::from_millis(750), "the first");
    });
}

#[test]
fn two_bandwidths_of_a_route_both_hold_and_routes_share_one_by_its_name() {
    best_of_three(|| {
        let backend = Backend::start(|_, stream| write_ok(stream, &vec![b'd'; 256 * KIB]));
        let sections = "[[bandwidth]]\nname = \"fast\"\nrate = \"8MiB/s\"\nburst = \"64KiB\"\n\
                    [[bandwidth]]\nname = \"slow\"\nrate = \"1MiB/s\"\nburst = \"64KiB\"\nkey = \"global\"\n";
        let more = "[[route]]\nname = \"too\"\npath = \"/too\"\nupstream = \"app\"\nbandwidth = [\"slow\"]\n";
        let text = format!("{}{more}{sections}", rules(&backend, "", "bandwidth = [\"fast\", \"slow\"]"));
        let gateway = Gateway::start(&text);
        let started = Instant::now();
        assert_eq!(Wire::open(gateway.address()).get("/").body.len(), 256 * KIB);
        assert_eq!(Wire::open(gateway.address()).get("/too").body.len(), 256 * KIB);
        let took = started.elapsed();
        // 448 KiB.
        assert_lasted(took, Duration::from_millis(437)..Duration::from_millis(560), "both");
        for (name, kib) in [("fast", 256.0), ("slow", 512.0)] {
            let labels = [format!("bandwidth=\"{name}\""), "direction=\"down\"".to_owned()];
            let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
            let bytes = gateway.metric("sluicegate_bandwidth_bytes_total", &labels);
            assert!((bytes - kib * 1024.0).abs() < 0.5, "{name} {bytes}");
        }
    });
}

/// Bytes of another protocol would be frames of the wrong length to whoever took them for a WebSocket.
#[test]
fn what_is_no_websocket_has_no_messages() {
    let backend = Backend::scripted(|wire, _| {
        if wire.request().is_ok()
            && wire.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: chat\r\n\r\n")
        {
            while let Ok(byte) = wire.take(1) {
                wire.send(byte);
            }
        }
    });
    let gateway = Gateway::start(&rules(&backend, "", "messages = { rate = \"1/h\", max_size = 1 }"));
    for protocols in ["chat", "websocket, chat"] {
        let head = format!("GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: {protocols}\r\n\r\n");
        let mut wire = Wire::with(gateway.address(), head);
        assert_eq!(wire.response("GET").unwrap().status(), 101);
        for _ in 0..3 {
            wire.send("\u{1}\u{5}hello");
            assert_eq!(wire.take(7).unwrap(), b"\x01\x05hello");
        }
    }
    gateway.wait_metric("sluicegate_websocket_over_limit_total", &[], 0.0);
}

#[test]
fn a_websocket_client_is_told_to_come_again() {
    runtime().block_on(async {
        let gateway = Gateway::start(&format!(
            "[[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n\
             [[route]]\nname = \"all\"\nupstream = \"app\"\nmessages = {{ rate = \"5/h\" }}\n",
            start_server()
        ));
        let (mut socket, _) = connect_async(format!("ws://{}/chat", gateway.address())).await.unwrap();
        assert_eq!(socket.next().await.unwrap().unwrap(), Message::text("welcome"));
        for number in 0..5 {
            let text = Message::text(format!("{number} {}", "x".repeat(40_000 * number)));
            socket.send(text.clone()).await.unwrap();
            assert!(socket.next().await.unwrap().unwrap() == text);
        }
        socket.send(Message::text("one more")).await.unwrap();
        let Message::Close(Some(close)) = socket.next().await.unwrap().unwrap() else { panic!("no close frame") };
        assert_eq!(close.code, CloseCode::Again);
        assert!(socket.next().await.is_none_or(|end| end.is_err()));
        gateway.wait_metric("sluicegate_tunnels_open", &[], 0.0);
    });
}

#[test]
fn a_client_that_goes_while_it_waits_is_noticed() {
    let backend = Backend::start(|_, stream| write_ok(stream, &[b'd'; 8 * KIB]));
    let gateway = Gateway::start(&rules(&backend, "", "bandwidth = { rate = \"256B/s\", burst = 1 }"));
    // Half a minute for each.
    let body = "u".repeat(8 * KIB);
    let head = format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", body.len());
    drop(Wire::with(gateway.address(), format!("{head}{body}")));
    gateway.wait_metric("sluicegate_requests_total", &["outcome=\"client-gone\""], 1.0);
    let waits = Wire::with(gateway.address(), get("/"));
    gateway.wait_metric("sluicegate_bandwidth_waits_total", &["direction=\"down\""], 1.0);
    waits.reset();
    gateway.wait_metric("sluicegate_requests_total", &["outcome=\"client-gone\""], 2.0);
}

/// The bytes that come over a stream of HTTP/2 whose window is not opened again, until none do for a while.
async fn first_piece(address: std::net::SocketAddr, window: u32) -> (usize, h2::RecvStream) {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (client, connection) =
        h2::client::Builder::new().initial_window_size(window).handshake::<_, bytes::Bytes>(stream).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    let request = http::Request::builder().uri("http://h/").body(()).unwrap();
    let (answer, _) = client.ready().await.unwrap().send_request(request, true).unwrap();
    let mut body = answer.await.unwrap().into_body();
    let mut came = 0;
    while let Ok(data) = tokio::time::timeout(Duration::from_millis(400), body.data()).await {
        came += data.unwrap().unwrap().len();
    }
    (came, body)
}

/// The time in which a client has to read begins when there is something to read.
#[test]
fn a_client_that_is_slow_after_a_wait_has_its_whole_timeout() {
    let backend = Backend::start(|_, stream| write_ok(stream, &vec![b'd'; 40 * KIB]));
    let bandwidth = "bandwidth = { rate = \"16KiB/s\", burst = 1 }";
    let gateway = Gateway::start(&rules(&backend, "body_timeout = \"500ms\"", bandwidth));
    runtime().block_on(async {
        let (piece, _) = first_piece(gateway.address(), 1 << 20).await;
        assert!(piece > 8 * KIB && piece <= 16 * KIB, "{piece}");
        // What the other one still owes.
        tokio::time::sleep(Duration::from_millis(1200)).await;
        let started = Instant::now();
        let (again, mut body) = first_piece(gateway.address(), piece as u32).await;
        assert_eq!(again, piece);
        // The next piece has been ready for a moment, and the window is shut.
        tokio::time::sleep_until((started + Duration::from_millis(2250)).into()).await;
        body.flow_control().release_capacity(piece).unwrap();
        let next = body.data().await.unwrap();
        assert!(next.is_ok(), "{next:?}");
    });
}

#[test]
fn who_leaves_while_held_owes_nothing_and_holds_no_server() {
    best_of_three(|| {
        let backend = Backend::start(|request, stream| {
            write_ok(stream, if request.target() == "/small" { b"small" } else { &[b'x'; 16_000] })
        });
        let gateway = Gateway::start(&format!(
            "[[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n[[route]]\nname = \"all\"\nupstream = \"app\"\ntimeout = \"none\"\n\
         bandwidth = {{ rate = \"16000B/m\", burst = \"16000B\", key = \"global\" }}\n",
            backend.address
        ));
        assert_eq!(Wire::open(gateway.address()).get("/").body.len(), 16_000);
        let started = Instant::now();
        // Their turns would be a minute apart each. Some end their side, as a browser does that is closed, some are reset.
        for number in 0..30 {
            let wire = Wire::with(gateway.address(), get("/"));
            gateway.wait_metric("sluicegate_bandwidth_waits_total", &["direction=\"down\""], f64::from(number + 1));
            if number % 2 == 0 { wire.finish() } else { wire.reset() }
        }
        gateway.wait_metric("sluicegate_requests_in_flight", &[], 0.0);
        gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
        assert_eq!(Wire::open(gateway.address()).get("/small").text(), "small");
        assert_took(started, 0..15_000);
    });
}

const UPGRADE: &str = "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";

fn paced_socket(server: &Backend, messages: &str) -> (Gateway, Wire) {
    let rules = format!(
        "[[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n[[route]]\nname = \"all\"\nupstream = \"app\"\nmessages = {messages}\n",
        server.address
    );
    let gateway = Gateway::start(&rules);
    let mut wire = Wire::with(gateway.address(), UPGRADE);
    assert_eq!(wire.response("GET").unwrap().status(), 101);
    (gateway, wire)
}

#[test]
fn each_paced_message_goes_on_at_its_own_time() {
    best_of_three(|| {
        let (tell, told) = mpsc::sync_channel(10);
        let server = Backend::scripted(move |wire, _| {
            if wire.request().is_ok() && wire.send(SWITCH) {
                while wire.take(7).is_ok() {
                    let _ = tell.try_send(Instant::now());
                }
            }
        });
        let (_gateway, wire) = paced_socket(&server, "{ rate = \"2/s\", burst = 2, over = \"pace\" }");
        let started = Instant::now();
        assert!(wire.send([0x81, 0x81, 0, 0, 0, 0, b'm'].repeat(4)));
        for due in [0, 0, 500, 1_000].map(Duration::from_millis) {
            let came = told.recv_timeout(PATIENCE).unwrap().duration_since(started);
            assert_lasted(came, due..due + Duration::from_millis(400), "a message");
        }
    });
}

#[test]
fn who_leaves_while_its_messages_are_held_leaves_no_tunnel() {
    let server = Backend::scripted(|wire, _| {
        if wire.request().is_ok() && wire.send(SWITCH) {
            let _ = wire.rest();
        }
    });
    for leave in [|wire: Wire| drop(wire), |wire: Wire| wire.reset()] {
        let (gateway, wire) = paced_socket(&server, "{ rate = \"1/m\", burst = 1, over = \"pace\" }");
        assert!(wire.send([0x89, 0x80, 0, 0, 0, 0].repeat(1_000)));
        gateway.wait_metric("sluicegate_websocket_over_limit_total", &["action=\"paced\""], 1.0);
        leave(wire);
        gateway.wait_metric("sluicegate_tunnels_open", &[], 0.0);
        server.wait_closed();
    }
}

#[test]
fn a_server_whose_frames_cannot_be_followed_ends_the_tunnel() {
    let server = Backend::scripted(|wire, _| {
        if wire.request().is_ok() && wire.send(SWITCH) && wire.send([&[0x82, 127][..], &[0xff; 8]].concat()) {
            let _ = wire.rest();
        }
    });
    let (gateway, mut wire) = paced_socket(&server, "{ rate = \"20/s\" }");
    assert_eq!(wire.take(4).unwrap(), [0x88, 2, 0x03, 0xea], "1002");
    gateway.wait_metric("sluicegate_websocket_over_limit_total", &["action=\"malformed\""], 1.0);
    drop(wire);
    gateway.wait_metric("sluicegate_tunnels_open", &[], 0.0);
    wait_outcome(&gateway, "upstream-error", 1);
}
