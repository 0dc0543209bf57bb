//! A client that keeps the rules: the one of the `h2` crate.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;

use bytes::Bytes;
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request};
use tokio::net::TcpStream;
use tokio::runtime;

use crate::support::PATIENCE;

pub type Sender = SendRequest<Bytes>;

/// Runs it to its end, in time.
pub fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, work).await.expect("it ends in time") })
}

/// A connection whose frames move in a task of its own.
pub async fn connect(address: SocketAddr) -> Sender {
    over(TcpStream::connect(address).await.unwrap()).await
}

/// The same over a connection on which something else may have been said before.
pub async fn over(stream: TcpStream) -> Sender {
    stream.set_nodelay(true).unwrap();
    let (sender, mut connection) = Builder::new()
        .initial_window_size(256 << 10)
        .initial_connection_window_size(4 << 20)
        .handshake(stream)
        .await
        .unwrap();
    tokio::spawn(async move {
        let _ = poll_fn(|cx| Pin::new(&mut connection).poll(cx)).await;
    });
    let mut sender = sender.ready().await.unwrap();
    // The settings of the gateway have come with its first answer at the latest; extended CONNECT needs them before.
    for _ in 0..100 {
        if sender.is_extended_connect_protocol_enabled() {
            break;
        }
        tokio::task::yield_now().await;
        sender = sender.ready().await.unwrap();
    }
    sender
}

/// A request for a path of this host.
pub fn request(method: &str, path: &str, fields: &[(&str, &str)]) -> Request<()> {
    let mut builder = Request::builder().method(method).uri(format!("http://h{path}"));
    for (name, value) in fields {
        builder = builder.header(*name, *value);
    }
    builder.body(()).unwrap()
}

/// An answer that was read to its end.
#[derive(Debug)]
pub struct Whole {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    pub trailers: Option<HeaderMap>,
    pub interims: Vec<(u16, HeaderMap)>,
}

impl Whole {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// Opens a stream.
pub async fn open(sender: &Sender, request: Request<()>, ends: bool) -> (ResponseFuture, SendStream<Bytes>) {
    let mut sender = sender.clone().ready().await.unwrap();
    sender.send_request(request, ends).unwrap()
}

/// Sends a request without a body and reads its answer.
pub async fn ask(sender: &Sender, request: Request<()>) -> Result<Whole, h2::Error> {
    let (response, _) = open(sender, request, true).await;
    whole(response).await
}

/// Sends a request with a body and perhaps trailers, and reads its answer.
pub async fn post(
    sender: &Sender,
    request: Request<()>,
    body: Bytes,
    trailers: Option<HeaderMap>,
) -> Result<Whole, h2::Error> {
    let (response, mut send) = open(sender, request, false).await;
    let sent = async {
        send_all(&mut send, body, trailers.is_none()).await?;
        trailers.map_or(Ok(()), |trailers| send.send_trailers(trailers))
    };
    let (sent, answer) = tokio::join!(sent, whole(response));
    answer.inspect(|_| sent.unwrap())
}

/// Sends as the window opens.
pub async fn send_all(send: &mut SendStream<Bytes>, mut body: Bytes, ends: bool) -> Result<(), h2::Error> {
    if body.is_empty() && ends {
        return send.send_data(body, true);
    }
    while !body.is_empty() {
        send.reserve_capacity(body.len());
        let Some(room) = poll_fn(|cx| send.poll_capacity(cx)).await else { return Ok(()) };
        let piece = body.split_to(room?.min(body.len()));
        let is_last = ends && body.is_empty();
        send.send_data(piece, is_last)?;
    }
    Ok(())
}

pub async fn whole(mut response: ResponseFuture) -> Result<Whole, h2::Error> {
    let mut interims = Vec::new();
    let response = poll_fn(|cx| {
        while let Poll::Ready(Some(Ok(interim))) = response.poll_informational(cx) {
            interims.push((interim.status().as_u16(), interim.headers().clone()));
        }
        Pin::new(&mut response).poll(cx)
    })
    .await?;
    let (head, mut recv) = response.into_parts();
    let mut body = Vec::new();
    while let Some(piece) = next(&mut recv).await {
        body.extend_from_slice(&piece?);
    }
    let trailers = recv.trailers().await?;
    Ok(Whole { status: head.status.as_u16(), headers: head.headers, body, trailers, interims })
}

/// The next piece of a body, whose window opens again.
pub async fn next(recv: &mut RecvStream) -> Option<Result<Bytes, h2::Error>> {
    let piece = recv.data().await?;
    if let Ok(piece) = &piece {
        recv.flow_control().release_capacity(piece.len()).unwrap();
    }
    Some(piece)
}
