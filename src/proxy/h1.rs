//! HTTP/1 clients, by hyper. A scaffold: the gateway's own codec takes its place, behind the same
//! [`RequestView`], [`Fields`] and [`Sink`].

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Version, header, request};
use http_body::Body;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::body::{ResponseBody, discard};
use super::exchange::Exchange;
use super::headers::{Fields, Sink};
use super::listener::Connection;
use super::respond::Reply;
use super::worker::Worker;
use crate::admission::RequestView;

/// How long a client may take for a request's head, and how long a kept connection may be idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of a request's head, and of the buffer that it is read into.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Field lines of a request's head.
const MAX_FIELDS: usize = 128;
/// Unread bytes of a refused request that are read and dropped to keep the connection.
const MAX_DISCARD: u64 = 64 * 1024;
/// How long a lingering close waits for the client to have read its answer.
const LINGER: Duration = Duration::from_secs(2);

/// How long a connection that is to close waits for a request that may be on its way.
const LAST_REQUEST: Duration = Duration::from_millis(500);

/// A request's head as hyper gives it.
pub struct Head {
    parts: request::Parts,
}

impl Head {
    fn new(parts: request::Parts) -> Self {
        Self { parts }
    }

    /// Its method.
    pub fn http_method(&self) -> &http::Method {
        &self.parts.method
    }

    /// What it speaks, for logs.
    pub fn protocol(&self) -> &'static str {
        if self.parts.version == Version::HTTP_10 { "HTTP/1.0" } else { "HTTP/1.1" }
    }

    /// Whether it waits for `100 Continue` before it sends its body.
    pub fn expects_continue(&self) -> bool {
        self.parts
            .headers
            .get(header::EXPECT)
            .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
    }

    /// Why this head is refused before anything looks at it, if it is.
    pub fn fault(&self) -> Option<&'static str> {
        let hosts = self.parts.headers.get_all(header::HOST).iter().count();
        if self.parts.method == http::Method::CONNECT {
            Some("CONNECT is not served here: this is a reverse proxy.")
        } else if hosts > 1 {
            Some("The request has more than one Host field.")
        } else if hosts == 0 && self.parts.version == Version::HTTP_11 {
            Some("The request has no Host field.")
        } else {
            None
        }
    }

    /// Its fields, for logs; bytes that are no UTF-8 are replaced.
    pub fn fields_as_text(&self) -> Vec<(String, String)> {
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        self.parts.headers.iter().map(|(name, value)| (name.as_str().to_owned(), text(value))).collect()
    }
}

impl RequestView for Head {
    fn method(&self) -> &str {
        self.parts.method.as_str()
    }

    fn scheme(&self) -> &'static str {
        "http"
    }

    /// The target's own authority wins over `Host` (RFC 9112, 3.2.2).
    fn authority(&self) -> Option<&str> {
        // A host that is no text is malformed, not missing: "?" is what no authority can be.
        let host = || {
            let value = self.parts.headers.get(header::HOST)?;
            Some(std::str::from_utf8(value.as_bytes()).unwrap_or("?"))
        };
        self.parts.uri.authority().map(http::uri::Authority::as_str).or_else(host)
    }

    fn path(&self) -> &str {
        self.parts.uri.path()
    }

    fn query(&self) -> Option<&str> {
        self.parts.uri.query()
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.parts.headers.get(name).map(HeaderValue::as_bytes)
    }

    fn for_each_header(&self, name: &str, visit: &mut dyn FnMut(&[u8])) {
        for value in self.parts.headers.get_all(name) {
            visit(value.as_bytes());
        }
    }
}

impl Fields for Head {
    fn for_each(&self, visit: impl FnMut(&str, &[u8])) {
        self.parts.headers.for_each(visit);
    }
}

impl Fields for HeaderMap {
    fn for_each(&self, mut visit: impl FnMut(&str, &[u8])) {
        for (name, value) in self {
            visit(name.as_str(), value.as_bytes());
        }
    }
}

impl Sink for HeaderMap {
    fn put(&mut self, name: &str, value: &[u8]) {
        // What came from a parsed message or from our own tables is always a name and a value.
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value)) {
            self.append(name, value);
        }
    }

    fn has(&self, name: &str) -> bool {
        self.contains_key(name)
    }
}

/// Serves one connection until it ends; once `closing` has lost its sender, until the request that it carries has.
pub async fn serve(worker: Rc<Worker>, stream: TcpStream, peer: SocketAddr, mut closing: watch::Receiver<()>) {
    let connection = Connection::new(peer);
    let service = service_fn(|request| answer(Rc::clone(&worker), Rc::clone(&connection), request));
    let mut http = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_FIELDS)
        .serve_connection(TokioIo::new(stream), service);
    let ended = {
        let mut finish = pin!(finish_when_closing(&connection, &mut closing));
        let mut finished = false;
        loop {
            tokio::select! {
                biased;
                () = connection.wait_abort() => return,
                ended = std::future::poll_fn(|cx| http.poll_without_shutdown(cx)) => break ended,
                () = &mut finish, if !finished => {
                    finished = true;
                    Pin::new(&mut http).graceful_shutdown();
                }
            }
        }
    };
    if let Err(error) = &ended
        && error.is_parse()
    {
        worker.connections.malformed.inc();
        tracing::debug!(%peer, %error, "connection closed");
    }
    let mut stream = http.into_parts().io.into_inner();
    if stream.shutdown().await.is_ok() && (connection.lingers() || ended.is_err()) {
        linger(stream).await;
    }
}

/// Waits until the connection shall close and nothing runs on it.
///
/// A request may be on its way when a kept connection is to close. So each answer first says that it is the last one, and
/// a connection is closed without one only when none has come for a while.
async fn finish_when_closing(connection: &Connection, closing: &mut watch::Receiver<()>) {
    // It never changes: it ends when the listener is gone.
    let _ = closing.changed().await;
    connection.close_after_answer();
    let mut before = None;
    loop {
        let now = connection.exchanges_if_idle();
        if now.is_some() && now == before {
            return;
        }
        before = now;
        tokio::time::sleep(LAST_REQUEST).await;
    }
}

/// Reads what the client still sends, so that closing does not reset the connection before it has read its answer.
async fn linger(mut stream: TcpStream) {
    let mut scratch = [0; 4096];
    let mut left = MAX_DISCARD;
    let drain = async {
        while let Ok(size @ 1..) = stream.read(&mut scratch).await {
            left = left.saturating_sub(size as u64);
            if left == 0 {
                break;
            }
        }
    };
    drop(tokio::time::timeout(LINGER, drain).await);
}

fn answer(
    worker: Rc<Worker>,
    connection: Rc<Connection>,
    request: Request<Incoming>,
) -> Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, Infallible>>>> {
    Box::pin(async move {
        let arrived = worker.clock.now();
        let (parts, body) = request.into_parts();
        let exchange = Exchange::new(worker, Rc::clone(&connection), Head::new(parts), arrived);
        let mut response = super::exchange(exchange, body).await;
        if connection.is_closing() {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response)
    })
}

/// The gateway's own answer to a request whose body nobody reads.
pub fn reply(reply: Reply, exchange: Box<Exchange>, unread: Incoming) -> Response<ResponseBody> {
    let close = dispose(&exchange, unread);
    respond(reply, exchange, close)
}

/// The gateway's own answer after the request's body was given away.
pub fn reply_after_body(reply: Reply, exchange: Box<Exchange>) -> Response<ResponseBody> {
    let unread = !exchange.upload_ended.get();
    if unread {
        exchange.connection.linger();
    }
    respond(reply, exchange, unread)
}

fn respond(reply: Reply, exchange: Box<Exchange>, close: bool) -> Response<ResponseBody> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let fields = response.headers_mut();
    for (name, value) in &reply.fields {
        fields.put(name, value);
    }
    if close {
        fields.put("connection", b"close");
    }
    response.map(|()| ResponseBody::Own { body: Full::new(reply.body), exchange })
}

/// Gets rid of a request's unread body; whether the connection has to close for it.
fn dispose(exchange: &Exchange, unread: Incoming) -> bool {
    if unread.is_end_stream() {
        return false;
    }
    // Reading would invite the body with a 100 Continue that a refused request must not get.
    if exchange.head.expects_continue() || unread.size_hint().lower() > MAX_DISCARD {
        exchange.connection.linger();
        return true;
    }
    let connection = Rc::clone(&exchange.connection);
    tokio::task::spawn_local(async move {
        let all = tokio::time::timeout(LINGER, pin!(discard(unread, MAX_DISCARD))).await;
        if all != Ok(true) {
            connection.linger();
        }
    });
    false
}
