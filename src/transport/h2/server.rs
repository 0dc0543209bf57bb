//! The HTTP/2 connection of a client.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::ext::Protocol;
use h2::server::{Builder, Connection, Handshake, SendResponse};
use h2::{Reason, RecvStream};
use http::header::{CONTENT_LENGTH, COOKIE, HOST};
use http::{HeaderValue, Method, Request};

use super::super::Stream;
use super::flood::Flood;
use super::from_client::{FromClient, Kind};
use super::guard::{Farewell, Guard};
use super::inlet::{Form, Inlet};
use super::{CONNECTION_WINDOW, SEND_BUFFER, STREAM_WINDOW, has_outer_blank};
use crate::http1::Fault;

/// What a client of HTTP/2 sends first (RFC 9113, 3.4). To a codec of HTTP/1 it begins with a head.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How many streams of a connection may have been reset before anybody has looked at them.
const RESET_UNSEEN: usize = 64;

/// How many streams that we have reset are remembered, and how long. What still comes on one is nobody's fault: a client
/// whose uploads are refused has sent it before it knew. On one that is forgotten it is an error, of which `h2` bears
/// 1,024 in the life of a connection.
const RESET_KNOWN: usize = 1_024;
const RESET_KNOWN_FOR: Duration = Duration::from_secs(10);

/// What a client's connection may take.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Requests at once.
    pub max_streams: u32,
    /// Bytes of a request's fields, each with 32 more (RFC 9113, 6.5.2).
    pub max_header_list: u32,
}

/// A connection, from its preface to its end.
pub struct Accepting {
    state: State,
    flood: Rc<Flood>,
    is_ending: bool,
    farewell: Rc<Farewell>,
}

enum State {
    Shaking(Box<Handshake<Guard, Bytes>>),
    Open(Box<Connection<Guard, Bytes>>),
    Over,
}

/// A request that came.
pub struct Incoming {
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
    flood: Rc<Flood>,
}

/// Why a connection ended that was not simply closed.
#[derive(Debug)]
pub struct Ended(h2::Error);

impl Ended {
    /// In a word or two for metrics: `protocol-error`, or `io` where the socket failed, which is not counted: clients go
    /// away as they like.
    pub fn reason(&self) -> &'static str {
        match self.0.reason() {
            None => "io",
            Some(Reason::NO_ERROR) => "no-error",
            Some(Reason::PROTOCOL_ERROR) => "protocol-error",
            Some(Reason::FLOW_CONTROL_ERROR) => "flow-control-error",
            Some(Reason::FRAME_SIZE_ERROR) => "frame-size-error",
            Some(Reason::COMPRESSION_ERROR) => "compression-error",
            Some(Reason::ENHANCE_YOUR_CALM) => "enhance-your-calm",
            Some(_) => "other",
        }
    }

    /// Every word that [`reason`](Self::reason) gives and that is counted.
    pub const REASONS: [&'static str; 7] = [
        "no-error",
        "protocol-error",
        "flow-control-error",
        "frame-size-error",
        "compression-error",
        "enhance-your-calm",
        "other",
    ];
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Accepting {
    /// A connection over `stream`, of which `ahead` was read already.
    pub fn new(stream: Stream, ahead: Vec<u8>, bounds: Bounds) -> Self {
        let flood = Flood::new();
        let guard = Guard::of_client(stream, ahead, PREFACE.len(), Rc::clone(&flood));
        let farewell = guard.farewell();
        let handshake = Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buffer_size(SEND_BUFFER)
            .max_concurrent_streams(bounds.max_streams)
            .max_header_list_size(bounds.max_header_list)
            .max_pending_accept_reset_streams(RESET_UNSEEN)
            .max_concurrent_reset_streams(RESET_KNOWN)
            .reset_stream_duration(RESET_KNOWN_FOR)
            .enable_connect_protocol()
            .handshake(guard);
        Self { state: State::Shaking(Box::new(handshake)), flood, is_ending: false, farewell }
    }

    /// What it may still send that is neither request nor data.
    pub fn flood(&self) -> &Rc<Flood> {
        &self.flood
    }

    /// Whether all that it had to say has been said, and only the peer's end is waited for.
    pub fn is_shut(&self) -> bool {
        self.farewell.is_said.get()
    }

    /// Waits for the peer's end no more; why the connection ended, if that was for an error.
    pub fn cut(&mut self, cx: &mut Context<'_>) -> Option<Ended> {
        self.farewell.is_over.set(true);
        match self.poll_accept(cx) {
            Poll::Ready(Some(Err(ended))) if self.is_shut() => Some(ended),
            _ => None,
        }
    }

    /// The next request, `None` at the end. It also carries everything that its streams read and write, so it has to be
    /// polled as long as there are any.
    pub fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Incoming, Ended>>> {
        loop {
            match &mut self.state {
                State::Shaking(handshake) => match ready!(pin!(handshake).poll(cx)) {
                    Ok(connection) => self.state = State::Open(Box::new(connection)),
                    Err(error) => {
                        self.state = State::Over;
                        return Poll::Ready(Some(Err(Ended(error))));
                    }
                },
                State::Open(connection) => {
                    let accepted = pin!(connection.accept()).poll(cx);
                    if !self.is_ending && self.flood.spent().is_some() {
                        self.is_ending = true;
                        connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                        continue;
                    }
                    return match ready!(accepted) {
                        Some(Ok((request, respond))) => {
                            Poll::Ready(Some(Ok(Incoming { request, respond, flood: Rc::clone(&self.flood) })))
                        }
                        Some(Err(error)) => {
                            self.state = State::Over;
                            Poll::Ready(Some(Err(Ended(error))))
                        }
                        None => {
                            self.state = State::Over;
                            Poll::Ready(None)
                        }
                    };
                }
                State::Over => return Poll::Ready(None),
            }
        }
    }

    /// Takes no more requests, and ends when those that are open have (RFC 9113, 6.8). False if it has not even begun.
    pub fn end_gracefully(&mut self) -> bool {
        match &mut self.state {
            State::Open(connection) => {
                connection.graceful_shutdown();
                true
            }
            State::Shaking(_) | State::Over => false,
        }
    }
}

impl Incoming {
    /// Writes the head of HTTP/1.1 that means the same. It may be one that HTTP/1 does not allow: then it is refused by
    /// whoever reads it, and with it the request. `websocket_key` makes the nonce of a tunnel
    /// (RFC 8441), whose head has none.
    pub fn write_head(&self, out: &mut Vec<u8>, websocket_key: impl FnOnce() -> String) {
        let (uri, fields) = (self.request.uri(), self.request.headers());
        let tunnel = self.tunnel();
        let mut put = |parts: &[&[u8]]| parts.iter().for_each(|part| out.extend_from_slice(part));
        let method = if tunnel.is_some() { "GET" } else { self.request.method().as_str() };
        // The target of a plain CONNECT is an authority, and is refused.
        let is_plain_connect = self.request.method() == Method::CONNECT && tunnel.is_none();
        let target = match uri.path_and_query() {
            _ if is_plain_connect => uri.authority().map_or("", |authority| authority.as_str()),
            // The scheme decides what the path means, and we know two. Without an authority `h2` forgets it.
            Some(target) if uri.scheme_str().is_none_or(|scheme| scheme == "http" || scheme == "https") => {
                target.as_str()
            }
            _ => "",
        };
        put(&[method.as_bytes(), b" ", target.as_bytes(), b" HTTP/1.1\r\n"]);
        if let Some(authority) = uri.authority() {
            put(&[b"host: ", authority.as_str().as_bytes(), b"\r\n"]);
        }
        let mut has_cookie = false;
        for (name, value) in fields {
            if name == COOKIE {
                has_cookie = true;
                continue;
            }
            // It may say the same once more (RFC 9113, 8.3.1); another one makes two, which no request may have.
            let same =
                |authority: &http::uri::Authority| authority.as_str().as_bytes().eq_ignore_ascii_case(value.as_bytes());
            if name == HOST && uri.authority().is_some_and(same) {
                continue;
            }
            put(&[name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"]);
        }
        if has_cookie {
            // What was cut for compression is one field again (RFC 9113, 8.2.3).
            put(&[b"cookie: "]);
            for (place, crumb) in fields.get_all(COOKIE).iter().enumerate() {
                put(&[if place > 0 { b"; " } else { b"" }, crumb.as_bytes()]);
            }
            put(&[b"\r\n"]);
        }
        if let Some(protocol) = tunnel {
            let protocol = protocol.as_str().as_bytes();
            let key = websocket_key();
            let key = key.as_bytes();
            put(&[b"connection: upgrade\r\nupgrade: ", protocol, b"\r\nsec-websocket-key: ", key, b"\r\n"]);
        } else if self.is_chunked() {
            put(&[b"transfer-encoding: chunked\r\n"]);
        }
        put(&[b"\r\n"]);
    }

    /// Why it is malformed, where neither `h2` nor the codec of HTTP/1 would find out: the one does not look, the other
    /// would read it as something else.
    pub fn fault(&self) -> Option<Fault> {
        let fields = self.request.headers();
        if fields.values().any(|value| has_outer_blank(value.as_bytes())) {
            return Some(Fault::FieldValue);
        }
        if fields.get_all(HOST).iter().any(HeaderValue::is_empty) {
            // Allowed in HTTP/1 only (RFC 9113, 8.3.1).
            return Some(Fault::HostInvalid);
        }
        // Any bytes could be in it. Another protocol could not be spoken to, but a request without it would be understood.
        let is_known = |protocol: &Protocol| protocol.as_str().eq_ignore_ascii_case("websocket");
        (!self.tunnel().is_none_or(is_known)).then_some(Fault::Connect)
    }

    /// The protocol of an extended CONNECT.
    fn tunnel(&self) -> Option<&Protocol> {
        self.request.extensions().get::<Protocol>()
    }

    fn is_chunked(&self) -> bool {
        !self.request.body().is_end_stream() && !self.request.headers().contains_key(CONTENT_LENGTH)
    }

    /// The stream, to read the body from and to write the response to, by the task that `waker` wakes.
    pub fn into_stream(self, waker: Waker) -> FromClient {
        let kind = match *self.request.method() {
            Method::HEAD => Kind::Head,
            Method::CONNECT if self.tunnel().is_some() => Kind::Connect,
            _ => Kind::Other,
        };
        let form = if self.is_chunked() && kind != Kind::Connect { Form::Chunks } else { Form::Raw };
        let body = self.request.into_body();
        let inlet = (!body.is_end_stream()).then(|| Inlet::new(body, form));
        FromClient::new(self.respond, inlet, kind, self.flood, waker)
    }

    /// Says that nobody has looked at the request, so that it may be sent again (RFC 9113, 8.7).
    pub fn refuse(mut self) {
        self.respond.send_reset(Reason::REFUSED_STREAM);
    }
}
