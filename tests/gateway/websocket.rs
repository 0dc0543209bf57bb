//! A real WebSocket client and server on both sides of the gateway.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, accept_async, connect_async};

use crate::support::{Gateway, PATIENCE};

pub fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Greets, and sends every text and every binary message back.
async fn serve(stream: TcpStream) {
    let mut socket = accept_async(stream).await.unwrap();
    // Sent at once: it may leave together with the 101.
    socket.send(Message::text("welcome")).await.unwrap();
    while let Some(Ok(message)) = socket.next().await {
        if (message.is_text() || message.is_binary()) && socket.send(message).await.is_err() {
            return;
        }
    }
}

/// Serves in a thread of its own until the process ends.
pub fn start_server() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        runtime().block_on(async {
            let listener = TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream));
            }
        });
    });
    address
}

fn gateway_to(address: SocketAddr) -> Gateway {
    Gateway::start(&format!(
        "[[upstream]]\nname = \"app\"\nservers = [\"{address}\"]\n[[route]]\nname = \"all\"\nupstream = \"app\"\n"
    ))
}

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

async fn open(gateway: &Gateway) -> Socket {
    let (mut socket, response) = connect_async(format!("ws://{}/chat", gateway.address())).await.unwrap();
    assert_eq!(response.status().as_u16(), 101);
    assert_eq!(receive(&mut socket).await, Message::text("welcome"));
    socket
}

async fn receive(socket: &mut Socket) -> Message {
    tokio::time::timeout(PATIENCE, socket.next()).await.expect("a message in time").unwrap().unwrap()
}

#[test]
fn messages_of_every_kind_pass_both_ways() {
    runtime().block_on(async {
        let gateway = gateway_to(start_server());
        let mut socket = open(&gateway).await;
        let large: Vec<u8> = (0..1_000_000_u32).map(|number| (number % 251) as u8).collect();
        for message in [
            Message::text("hello"),
            Message::text(""),
            Message::text("ü".repeat(40_000)),
            Message::binary(large),
            Message::binary(b"GET / HTTP/1.1\r\n\r\n".as_slice()),
        ] {
            socket.send(message.clone()).await.unwrap();
            assert!(receive(&mut socket).await == message, "{} bytes came back changed", message.len());
        }
        socket.send(Message::Ping(b"are you there".as_slice().into())).await.unwrap();
        assert_eq!(receive(&mut socket).await, Message::Pong(b"are you there".as_slice().into()));
        let close = CloseFrame { code: CloseCode::Away, reason: "done".into() };
        socket.close(Some(close.clone())).await.unwrap();
        assert_eq!(receive(&mut socket).await, Message::Close(Some(close)));
        assert!(socket.next().await.is_none(), "and then an end");
        drop(socket);
        gateway.wait_metric("sluicegate_tunnels_open", &[], 0.0);
        gateway.wait_metric("sluicegate_tunnels_total", &[], 1.0);
    });
}

#[test]
fn many_sockets_stay_apart() {
    runtime().block_on(async {
        let gateway = gateway_to(start_server());
        let mut sockets = Vec::new();
        for _ in 0..50 {
            sockets.push(open(&gateway).await);
        }
        for round in 0..5 {
            for (number, socket) in sockets.iter_mut().enumerate() {
                socket.send(Message::text(format!("{round} of {number}"))).await.unwrap();
            }
            for (number, socket) in sockets.iter_mut().enumerate() {
                assert_eq!(receive(socket).await, Message::text(format!("{round} of {number}")));
            }
        }
    });
}

#[test]
fn a_server_that_goes_away_ends_the_client() {
    runtime().block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let gateway = gateway_to(listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut socket = accept_async(stream).await.unwrap();
            socket.send(Message::text("welcome")).await.unwrap();
        });
        let mut socket = open(&gateway).await;
        server.await.unwrap();
        let end = tokio::time::timeout(Duration::from_secs(10), socket.next()).await.expect("an end in time");
        assert!(end.is_none_or(|message| message.is_err()));
    });
}
