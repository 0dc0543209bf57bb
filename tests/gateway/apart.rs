//! Servers of HTTP/2 that answer a request by closing the connection that all share: what the gateway can tell before goes over a
//! connection that carries nothing else, and so does what has died with another request's connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{Request, Response};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::mixes::peers::serve_tcp;
use crate::support::{Gateway, eventually};
use crate::wire::{Message, Wire, get};

/// A server that answers with the number of the connection, and ends that at `/kill`, and at a field above 8 KiB but for `/taken…`,
/// as nginx does.
struct Fragile {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    released: watch::Sender<bool>,
}

impl Fragile {
    fn start() -> Self {
        let (released, release) = watch::channel(false);
        let (address, connections) = serve_tcp(move |stream, number| attend(stream, number, release.clone()));
        Self { address, connections, released }
    }

    fn gateway(&self, more: &str) -> Gateway {
        Gateway::start(&format!(
            "[server]\nworkers = 1\n[[upstream]]\nname = \"app\"\nservers = [\"{}\"]\nprotocol = \"h2\"\n{more}\n\
             [[route]]\nname = \"all\"\nupstream = \"app\"\n",
            self.address
        ))
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Lets those that wait go on.
    fn release(&self) {
        self.released.send(true).unwrap();
    }
}

async fn attend(stream: TcpStream, number: usize, release: watch::Receiver<bool>) {
    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
    while let Some(Ok((request, respond))) = connection.accept().await {
        let is_large = request.headers().values().any(|value| value.len() > 8192);
        if request.uri().path() == "/kill" || is_large && !request.uri().path().starts_with("/taken") {
            return;
        }
        tokio::spawn(answer(request, respond, number, release.clone()));
    }
}

/// `/slow` waits with its head, `…/download` with its body.
async fn answer(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    number: usize,
    mut release: watch::Receiver<bool>,
) -> Result<(), h2::Error> {
    let body = Bytes::from(number.to_string());
    let head = Response::builder().header("content-length", body.len()).body(()).unwrap();
    let path = request.uri().path();
    let is_download = path.ends_with("/download");
    if path == "/slow" {
        let _ = release.wait_for(|is_so| *is_so).await;
    }
    let mut send = respond.send_response(head, false)?;
    if is_download {
        let _ = release.wait_for(|is_so| *is_so).await;
    }
    send.send_data(body, true)
}

fn large(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: h\r\nCookie: {}\r\n\r\n", "c".repeat(20_000))
}

fn ask(gateway: &Gateway, request: &str) -> Message {
    Wire::with(gateway.address(), request).answer()
}

#[test]
fn a_request_that_its_server_finds_too_large_ends_no_answer_of_others() {
    let server = Fragile::start();
    let gateway = server.gateway("breaker = { at_least = 5 }");
    let mut others: Vec<_> = (0..8).map(|_| Wire::with(gateway.address(), get("/download"))).collect();
    let mut heads: Vec<_> = others.iter_mut().map(|wire| wire.head().unwrap()).collect();
    for _ in 0..12 {
        assert_eq!(ask(&gateway, &large("/")).status(), 502);
    }
    server.release();
    for (wire, head) in others.iter_mut().zip(&mut heads) {
        wire.body_of(head).unwrap();
        assert_eq!((head.status(), head.text().as_str()), (200, "1"));
    }
    assert_eq!(ask(&gateway, &get("/")).text(), "1", "the breaker is closed, and the connection there");
}

#[test]
fn what_dies_with_the_connection_of_another_request_is_sent_again_over_its_own() {
    let server = Fragile::start();
    let gateway = server.gateway("");
    let mut others: Vec<_> = (0..6).map(|_| Wire::with(gateway.address(), get("/slow"))).collect();
    let mut post = Wire::with(gateway.address(), "POST /slow HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n");
    gateway.wait_metric("sluicegate_upstream_server_requests_in_flight", &[], 7.0);
    let killer = ask(&gateway, "POST /kill HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n");
    assert_eq!((killer.status(), post.answer().status()), (502, 502), "they may have been carried out");
    assert!(eventually(|| server.connections() == 7));
    server.release();
    let mut numbers: Vec<usize> = others.iter_mut().map(|wire| wire.answer().text().parse().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [2, 3, 4, 5, 6, 7], "each over its own");
    gateway.wait_metric("sluicegate_upstream_retries_total", &["cause=\"stale-connection\""], 6.0);
}

#[test]
fn a_request_that_kills_its_own_connection_is_sent_twice_and_no_more() {
    let server = Fragile::start();
    let gateway = server.gateway("");
    assert_eq!(ask(&gateway, &get("/kill")).status(), 502);
    assert_eq!(server.connections(), 2);
}

#[test]
fn large_heads_go_on_working_where_the_server_takes_them() {
    let server = Fragile::start();
    let gateway = server.gateway("");
    assert_eq!(ask(&gateway, &get("/")).text(), "1");
    for _ in 0..3 {
        let answer = ask(&gateway, &large("/taken"));
        assert_eq!((answer.status(), answer.text().as_str()), (200, "2"), "over one that is kept");
    }
    // More at once than there are places for one client.
    let mut many: Vec<_> = (0..24).map(|_| Wire::with(gateway.address(), large("/taken"))).collect();
    assert!(many.iter_mut().all(|wire| wire.answer().status() == 200));
    assert!(server.connections() <= 2 + 8, "{}", server.connections());
    assert_eq!(ask(&gateway, &get("/")).text(), "1");
}

#[test]
fn answers_that_take_their_time_keep_no_large_request_from_being_sent() {
    let server = Fragile::start();
    let gateway = server.gateway("pending_timeout = \"5s\"");
    let mut streams: Vec<_> = (0..24).map(|_| Wire::with(gateway.address(), large("/taken/download"))).collect();
    let mut heads: Vec<_> = streams.iter_mut().map(|wire| wire.head().unwrap()).collect();
    assert!(heads.iter().all(|head| head.status() == 200));
    assert_eq!(ask(&gateway, &large("/taken")).status(), 200);
    // One client has half of what is left, of the answers too.
    let mut more: Vec<_> = (0..50).map(|_| Wire::with(gateway.address(), large("/taken/download"))).collect();
    let statuses: Vec<u16> = more.iter_mut().map(|wire| wire.head().unwrap().status()).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 64 - 24, "{statuses:?}");
    server.release();
    for (wire, head) in streams.iter_mut().zip(&mut heads) {
        wire.body_of(head).unwrap();
    }
    assert_eq!(ask(&gateway, &large("/taken")).status(), 200);
}

#[test]
fn whatever_has_died_is_sent_again_however_often_connections_die() {
    let server = Fragile::start();
    let gateway = server.gateway("");
    for _ in 0..4 {
        let mut others: Vec<_> = (0..60).map(|_| Wire::with(gateway.address(), get("/slow"))).collect();
        gateway.wait_metric("sluicegate_upstream_server_requests_in_flight", &[], 60.0);
        let before = server.connections();
        let killer = ask(&gateway, "POST /kill HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(killer.status(), 502);
        assert!(eventually(|| server.connections() == before + 60));
        server.release();
        assert!(others.iter_mut().all(|wire| wire.answer().status() == 200));
        server.released.send(false).unwrap();
    }
}

#[test]
fn the_operator_bounds_the_head_that_servers_get() {
    let server = Fragile::start();
    let gateway = server.gateway("max_head_size = \"16KiB\"");
    assert_eq!(ask(&gateway, &large("/taken")).status(), 431);
    assert_eq!((ask(&gateway, &get("/")).status(), server.connections()), (200, 1));
}

#[test]
fn what_authenticates_a_connection_of_h2_is_the_last_thing_on_it() {
    let server = Fragile::start();
    let gateway = server.gateway("");
    let proof = "GET / HTTP/1.1\r\nHost: h\r\nAuthorization: NTLM user=alice\r\n\r\n";
    let numbers = [&get("/"), proof, proof, &get("/"), &large("/taken")].map(|request| ask(&gateway, request).text());
    assert_eq!(numbers, ["1", "2", "3", "1", "4"]);
}
