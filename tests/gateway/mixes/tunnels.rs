//! WebSocket in every mix: an upgrade of HTTP/1 and an extended CONNECT of HTTP/2 (RFC 8441) are the same to the other
//! side. Bytes go through as they are; `websocket.rs` speaks the protocol itself over HTTP/1.

use std::io::Read;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::ext::Protocol;
use h2::{Reason, RecvStream, SendStream};
use http::{Method, Request, Response};
use tokio::task::JoinSet;

use super::peers::{Http, Mix, accept_of, in_every_mix, open_h2, pour, runtime, serve_tcp, soon};
use crate::support::{Backend, Gateway};
use crate::wire::{Wire, wait_outcome};

in_every_mix! {
    bytes_pass_both_ways
    a_client_that_ends_ends_the_server
    a_server_that_ends_ends_the_client
    a_tunnel_that_breaks_breaks_on_the_other_side
    a_hundred_tunnels_stay_apart
    a_server_that_refuses_is_heard
}

/// The key of RFC 6455 and its answer.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

const TO_H2: [Mix; 2] = [Mix { client: Http::One, server: Http::Two }, Mix { client: Http::Two, server: Http::Two }];

/// A server that switches and sends every byte back, after a greeting. `/refused` it refuses, `/bye` gets the greeting
/// and an end, `/cut` a break instead.
fn switching(http: Http) -> (SocketAddr, Option<Backend>) {
    if http == Http::One {
        let backend = Backend::scripted(|wire, _| {
            let Ok(request) = wire.request() else { return };
            assert_eq!(request.header("upgrade"), Some("websocket"), "{request:?}");
            assert_eq!(request.header("connection"), Some("upgrade"));
            assert_eq!(request.header("sec-websocket-version"), Some("13"));
            assert_eq!(request.all("sec-websocket-key").len(), 1);
            if request.target() == "/refused" {
                wire.send("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno");
                return;
            }
            wire.send(format!(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                 Sec-WebSocket-Accept: {}\r\nSec-WebSocket-Protocol: chat\r\n\r\nwelcome",
                accept_of(&request)
            ));
            match request.target() {
                "/bye" => {
                    wire.finish();
                    wire.is_cut();
                }
                "/cut" => assert_eq!(wire.take(1).unwrap(), b"!"),
                _ => {
                    // In pieces as they came: some would end a connection for too many frames that are tiny.
                    let mut room = [0; 16_384];
                    while let Ok(size @ 1..) = wire.stream().read(&mut room) {
                        if !wire.send(&room[..size]) {
                            return;
                        }
                    }
                }
            }
        });
        return (backend.address, Some(backend));
    }
    let (address, _) = serve_tcp(|stream, _| async move {
        let mut builder = h2::server::Builder::new();
        builder.enable_connect_protocol();
        let Ok(mut accepting) = builder.handshake::<_, Bytes>(stream).await else { return };
        while let Some(Ok((request, respond))) = accepting.accept().await {
            tokio::spawn(async move { drop(switch(request, respond).await) });
        }
    });
    (address, None)
}

async fn switch(request: Request<RecvStream>, mut respond: h2::server::SendResponse<Bytes>) -> Result<(), h2::Error> {
    assert_eq!(request.method(), Method::CONNECT, "{request:?}");
    assert_eq!(request.extensions().get::<Protocol>().map(Protocol::as_str), Some("websocket"));
    assert_eq!(request.headers().get("sec-websocket-version").unwrap(), "13");
    for gone in ["sec-websocket-key", "upgrade", "connection", "content-length"] {
        assert!(!request.headers().contains_key(gone), "{request:?}");
    }
    let path = request.uri().path().to_owned();
    let mut recv = request.into_body();
    if path == "/refused" {
        let mut send = respond.send_response(Response::builder().status(403).body(()).unwrap(), false)?;
        return send.send_data("no".into(), true);
    }
    let head = Response::builder().header("sec-websocket-protocol", "chat").body(()).unwrap();
    let mut send = respond.send_response(head, false)?;
    pour(&mut send, b"welcome", path == "/bye").await?;
    if path == "/cut" {
        assert_eq!(recv.data().await.unwrap()?, "!");
        send.send_reset(Reason::CANCEL);
        return Ok(());
    }
    while let Some(data) = recv.data().await {
        let data = data?;
        recv.flow_control().release_capacity(data.len())?;
        if path != "/bye" {
            pour(&mut send, &data, false).await?;
        }
    }
    if path == "/bye" { Ok(()) } else { send.send_data(Bytes::new(), true) }
}

/// A client's end of a tunnel.
pub(super) enum Socket {
    One(Wire),
    Two(SendStream<Bytes>, RecvStream, Vec<u8>),
}

fn connect(path: &str) -> Request<()> {
    let mut request = Request::builder()
        .method(Method::CONNECT)
        .uri(format!("http://test.example{path}"))
        .header("sec-websocket-version", "13")
        .header("sec-websocket-protocol", "chat")
        .body(())
        .unwrap();
    request.extensions_mut().insert(Protocol::from_static("websocket"));
    request
}

impl Socket {
    pub(super) async fn open(mix: Mix, gateway: &Gateway, path: &str) -> Result<Self, (u16, String)> {
        match mix.client {
            Http::One => Self::open_h1(gateway, path),
            Http::Two => Self::open_h2(&open_h2(gateway.address()).await, path).await,
        }
    }

    fn open_h1(gateway: &Gateway, path: &str) -> Result<Self, (u16, String)> {
        let mut wire = Wire::open(gateway.address());
        wire.send(format!(
            "GET {path} HTTP/1.1\r\nHost: test.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Protocol: chat\r\n\r\n"
        ));
        let mut head = wire.head().unwrap();
        if head.status() != 101 {
            wire.body_of(&mut head).unwrap();
            return Err((head.status(), head.text()));
        }
        assert_eq!(head.all("sec-websocket-accept"), [ACCEPT], "{head:?}");
        assert_eq!(head.all("sec-websocket-protocol"), ["chat"]);
        assert_eq!((head.header("upgrade"), head.header("connection")), (Some("websocket"), Some("upgrade")));
        Ok(Self::One(wire))
    }

    async fn open_h2(request: &SendRequest<Bytes>, path: &str) -> Result<Self, (u16, String)> {
        let mut request = request.clone().ready().await.unwrap();
        // That the gateway knows extended CONNECT is in its settings.
        let answered = soon(async {
            while !request.is_extended_connect_protocol_enabled() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let (response, send) = request.send_request(connect(path), false).unwrap();
            (response.await.unwrap(), send)
        });
        let (response, send) = answered.await;
        let (head, mut recv) = response.into_parts();
        if head.status != 200 {
            let mut text = Vec::new();
            while let Some(Ok(data)) = recv.data().await {
                text.extend_from_slice(&data);
            }
            return Err((head.status.as_u16(), String::from_utf8(text).unwrap()));
        }
        assert_eq!(head.headers.get("sec-websocket-protocol").unwrap(), "chat");
        for gone in ["sec-websocket-accept", "upgrade", "connection", "content-length"] {
            assert!(!head.headers.contains_key(gone), "{head:?}");
        }
        Ok(Self::Two(send, recv, Vec::new()))
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) {
        match self {
            Self::One(wire) => assert!(wire.send(bytes)),
            Self::Two(send, ..) => soon(pour(send, bytes, false)).await.unwrap(),
        }
    }

    /// Exactly this much.
    pub(super) async fn take(&mut self, size: usize) -> Vec<u8> {
        match self {
            Self::One(wire) => wire.take(size).unwrap(),
            Self::Two(_, recv, held) => {
                while held.len() < size {
                    let data = soon(recv.data()).await.expect("no end").unwrap();
                    recv.flow_control().release_capacity(data.len()).unwrap();
                    held.extend_from_slice(&data);
                }
                held.drain(..size).collect()
            }
        }
    }

    pub(super) fn finish(&mut self) {
        match self {
            Self::One(wire) => wire.finish(),
            // It may have ended by itself.
            Self::Two(send, ..) => drop(send.send_data(Bytes::new(), true)),
        }
    }

    /// Nothing more comes but an end.
    pub(super) async fn assert_ended(&mut self) {
        match self {
            Self::One(wire) => wire.assert_ended(),
            Self::Two(_, recv, held) => {
                assert!(held.is_empty());
                while let Some(data) = soon(recv.data()).await {
                    assert!(data.unwrap().is_empty());
                }
            }
        }
    }

    /// It ends, and not in order where the protocol can tell.
    async fn assert_broken(&mut self) {
        match self {
            Self::One(wire) => assert!(wire.is_cut()),
            Self::Two(_, recv, _) => drop(soon(recv.data()).await.expect("a reset").unwrap_err()),
        }
    }

    fn cut(self) {
        match self {
            Self::One(wire) => wire.reset(),
            Self::Two(mut send, ..) => send.send_reset(Reason::CANCEL),
        }
    }
}

fn wait_closed(gateway: &Gateway, opened: usize) {
    gateway.wait_metric("sluicegate_tunnels_open", &[], 0.0);
    gateway.wait_metric("sluicegate_tunnels_total", &[], opened as f64);
    wait_outcome(gateway, "upgraded", opened);
}

/// Runs a test with a tunnel whose greeting was read.
fn with_tunnel<F: Future<Output = ()>>(mix: Mix, path: &str, test: impl FnOnce(Socket) -> F) {
    let (address, _backend) = switching(mix.server);
    let gateway = mix.gateway(address);
    runtime().block_on(async {
        let mut socket = Socket::open(mix, &gateway, path).await.unwrap();
        assert_eq!(socket.take(7).await, b"welcome");
        gateway.wait_metric("sluicegate_tunnels_open", &[], 1.0);
        test(socket).await;
        // What was said last is still to be written.
        tokio::time::sleep(Duration::from_millis(50)).await;
    });
    wait_closed(&gateway, 1);
}

fn bytes_pass_both_ways(mix: Mix) {
    with_tunnel(mix, "/", |mut socket| async move {
        let large: Vec<u8> = (0..300_000_u32).map(|at| (at % 251) as u8).collect();
        for bytes in [b"hello".as_slice(), b"GET / HTTP/1.1\r\n\r\n", &large] {
            // In pieces, so that neither side waits for the other to read.
            for piece in bytes.chunks(10_000) {
                socket.send(piece).await;
                assert!(socket.take(piece.len()).await == piece, "{} bytes came back changed", piece.len());
            }
        }
        socket.finish();
        socket.assert_ended().await;
    });
}

fn a_client_that_ends_ends_the_server(mix: Mix) {
    with_tunnel(mix, "/", |mut socket| async move {
        socket.send(b"last words").await;
        socket.finish();
        assert_eq!(socket.take(10).await, b"last words", "what was on its way arrives");
        socket.assert_ended().await;
    });
}

fn a_server_that_ends_ends_the_client(mix: Mix) {
    with_tunnel(mix, "/bye", |mut socket| async move {
        socket.assert_ended().await;
        socket.finish();
    });
}

fn a_tunnel_that_breaks_breaks_on_the_other_side(mix: Mix) {
    with_tunnel(mix, "/cut", |mut socket| async move {
        socket.send(b"!").await;
        match mix.server {
            // A socket that is closed is no more than an end.
            Http::One => socket.assert_ended().await,
            Http::Two => socket.assert_broken().await,
        }
        socket.finish();
    });
    with_tunnel(mix, "/", |socket| async move { socket.cut() });
}

fn a_hundred_tunnels_stay_apart(mix: Mix) {
    const COUNT: usize = 100;
    let (address, _backend) = switching(mix.server);
    let gateway = mix.gateway(address);
    let talk = |mut socket: Socket, number: usize| async move {
        assert_eq!(socket.take(7).await, b"welcome");
        for round in 0..5 {
            let text = format!("{round} of {number}, and more of it");
            socket.send(text.as_bytes()).await;
            assert_eq!(socket.take(text.len()).await, text.as_bytes());
        }
        socket
    };
    match mix.client {
        Http::One => {
            let runtime = runtime();
            let mut sockets: Vec<_> =
                (0..COUNT).map(|at| (at, Socket::open_h1(&gateway, &format!("/{at}")).unwrap())).collect();
            gateway.wait_metric("sluicegate_tunnels_open", &[], COUNT as f64);
            for (at, socket) in sockets.drain(..) {
                runtime.block_on(talk(socket, at)).finish();
            }
        }
        // All over one connection.
        Http::Two => runtime().block_on(async {
            let request = open_h2(gateway.address()).await;
            let mut tasks = JoinSet::new();
            for at in 0..COUNT {
                let request = request.clone();
                tasks.spawn(async move {
                    let socket = Socket::open_h2(&request, &format!("/{at}")).await.unwrap();
                    let mut socket = talk(socket, at).await;
                    socket.finish();
                    socket.assert_ended().await;
                });
            }
            while let Some(done) = tasks.join_next().await {
                done.unwrap();
            }
        }),
    }
    wait_closed(&gateway, COUNT);
}

fn a_server_that_refuses_is_heard(mix: Mix) {
    let (address, _backend) = switching(mix.server);
    let gateway = mix.gateway(address);
    let refused = runtime().block_on(async { Socket::open(mix, &gateway, "/refused").await.err() });
    assert_eq!(refused, Some((403, "no".to_owned())));
    wait_outcome(&gateway, "forwarded", 1);
}

#[test]
fn a_server_that_does_not_know_extended_connect_is_an_error_to_the_client() {
    for mix in TO_H2 {
        let (address, _) = serve_tcp(|stream, _| async move {
            let Ok(mut accepting) = h2::server::handshake(stream).await else { return };
            while let Some(Ok((request, mut respond))) = accepting.accept().await {
                assert_eq!(request.method(), Method::GET, "{request:?}");
                let status = request.uri().path()[1..].parse::<u16>().unwrap();
                drop(respond.send_response(Response::builder().status(status).body(()).unwrap(), true));
            }
        });
        let gateway = mix.gateway(address);
        for status in [200, 404, 426] {
            let opened = runtime().block_on(async { Socket::open(mix, &gateway, &format!("/{status}")).await });
            let Err((seen, _)) = opened else { panic!("{status}: it was opened") };
            // A 200 would be a tunnel to a client of HTTP/2.
            let is_taken_for_one = mix.client == Http::Two && status == 200;
            assert_eq!(seen, if is_taken_for_one { 502 } else { status });
        }
    }
}
