//! A stream that is opened to a server, as a connection of HTTP/1.1 that carries one exchange.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::Reason;
use h2::client::{ResponseFuture, SendRequest};
use h2::ext::Protocol;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, Request, Uri, Version};

use super::client::StreamSlot;
use super::inlet::{EndForm, Inlet, write_tail};
use super::outlet::{BodyPiece, Outlet, body_of};
use super::own_head::TrustedHead;
use super::{LengthTrailers, UNPROCESSED, io_error, websocket_accept};
use sluicegate_http1::{Body, Framing, HeadWriter};
use sluicegate_http2::is_type_of_grpc;

/// A stream to a server, which is opened by the head of the request.
///
/// Reading gives interim responses, the response, and its body in the form that its head tells.
#[derive(Debug)]
pub struct ToServer {
    request: SendRequest<Bytes>,
    scheme: Scheme,
    /// Its place among the streams of its connection.
    place: StreamSlot,
    outlet: Option<Outlet>,
    body: Body,
    response: Option<ResponseFuture>,
    inlet: Option<Inlet>,
    /// The bytes that were made of the response's head and are not read yet.
    made: Vec<u8>,
    made_at: usize,
    is_head: bool,
    length_trailers: LengthTrailers,
    /// Whether the body comes in chunks although its head has a length.
    has_chunks_beside_length: bool,
    /// The value of `Sec-WebSocket-Key`, if a tunnel was asked for.
    websocket_key: Option<Bytes>,
    is_tunnel: bool,
    /// Whether it could not be opened.
    has_failed: bool,
}

impl ToServer {
    pub(super) fn new(request: SendRequest<Bytes>, scheme: Scheme, place: StreamSlot) -> Self {
        Self {
            request,
            scheme,
            place,
            outlet: None,
            body: body_of(Framing::None),
            response: None,
            inlet: None,
            made: Vec::new(),
            made_at: 0,
            is_head: false,
            length_trailers: LengthTrailers::default(),
            has_chunks_beside_length: false,
            websocket_key: None,
            is_tunnel: false,
            has_failed: false,
        }
    }

    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, first: &[u8], second: &[u8]) -> Poll<io::Result<usize>> {
        let Some(outlet) = &mut self.outlet else {
            let opened = self.open(cx, first, second);
            // Until it is open, nothing has reached the server.
            self.has_failed = matches!(opened, Poll::Ready(Err(_)));
            if opened.is_ready() {
                // The task that has tried to read before there was a request was told to wait for nothing.
                cx.waker().wake_by_ref();
            }
            return opened.map_ok(|()| first.len() + second.len());
        };
        ready!(outlet.poll_flush(cx))?;
        if self.is_tunnel {
            outlet.put_raw(first, second);
        } else {
            outlet.put(BodyPiece::read(&mut self.body, first, second)?);
        }
        outlet.begin_flush(cx)?;
        Poll::Ready(Ok(first.len() + second.len()))
    }

    /// Opens the stream with the head in `first` and what of the body comes with it.
    fn open(&mut self, cx: &mut Context<'_>, first: &[u8], second: &[u8]) -> Poll<io::Result<()>> {
        ready!(self.request.poll_ready(cx)).map_err(io_error)?;
        let head = TrustedHead::read(first)?;
        self.body = body_of(head.framing);
        let piece = BodyPiece::read(&mut self.body, &first[head.length..], second)?;
        let request = self.request_of(head)?;
        let is_all = piece.is_nothing_more() && self.websocket_key.is_none();
        let (response, send) = self.request.send_request(request, is_all).map_err(io_error)?;
        self.response = Some(response);
        let outlet = self.outlet.insert(Outlet::new(send, is_all));
        if self.websocket_key.is_none() {
            outlet.put(piece);
        }
        Poll::Ready(outlet.begin_flush(cx))
    }

    fn request_of(&mut self, mut head: TrustedHead) -> io::Result<Request<()>> {
        let invalid = |what: &'static str| io::Error::new(io::ErrorKind::InvalidInput, what);
        let (method, target) = head.method_and_target()?;
        let mut method = Method::from_bytes(method).map_err(|_| invalid("the method is none of HTTP/2"))?;
        self.is_head = method == Method::HEAD;
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(self.scheme.clone());
        let path = PathAndQuery::from_maybe_shared(target).map_err(|_| invalid("the path is none of HTTP/2"))?;
        parts.path_and_query = Some(path);
        let host = head.host.take().unwrap_or_default();
        parts.authority = Some(Authority::from_maybe_shared(host).map_err(|_| invalid("the host is none of HTTP/2"))?);
        let is_websocket = head.upgrade.take().is_some_and(|protocol| protocol.eq_ignore_ascii_case(b"websocket"));
        let mut request = Request::new(());
        if is_websocket && self.request.is_extended_connect_protocol_enabled() {
            method = Method::CONNECT;
            let key = head.fields.remove("sec-websocket-key");
            self.websocket_key = Some(key.map(|key| Bytes::copy_from_slice(key.as_bytes())).unwrap_or_default());
            request.extensions_mut().insert(Protocol::from_static("websocket"));
        }
        *request.method_mut() = method;
        *request.uri_mut() = Uri::from_parts(parts).map_err(|_| invalid("the target is none of HTTP/2"))?;
        *request.version_mut() = Version::HTTP_2;
        *request.headers_mut() = head.fields;
        Ok(request)
    }

    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            let rest = self.made.get(self.made_at..).unwrap_or_default();
            if !rest.is_empty() {
                let size = rest.len().min(room.len());
                room[..size].copy_from_slice(&rest[..size]);
                self.made_at += size;
                return Poll::Ready(Ok(size));
            }
            if self.response.is_none() {
                return match &mut self.inlet {
                    Some(inlet) => inlet.poll_read(cx, room),
                    None if self.has_failed => Poll::Ready(Err(UNPROCESSED.into())),
                    // Before the request there is no answer to wait for.
                    None if self.outlet.is_none() => Poll::Pending,
                    None => Poll::Ready(Ok(0)),
                };
            }
            ready!(self.poll_head(cx))?;
        }
    }

    pub(crate) fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.inlet {
            Some(inlet) if self.made_at == self.made.len() => inlet.poll_ready(cx).map(drop),
            _ => Poll::Ready(()),
        }
    }

    /// Makes the next head of HTTP/1.1 out of what the server has answered.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(future) = &mut self.response else { return Poll::Ready(Ok(())) };
        self.made.clear();
        self.made_at = 0;
        if let Poll::Ready(Some(interim)) = future.poll_informational(cx) {
            let (head, ()) = interim.map_err(io_error)?.into_parts();
            // A 101 has no meaning here (RFC 9113, 8.6).
            if head.status != http::StatusCode::SWITCHING_PROTOCOLS {
                write_head(&mut self.made, head.status.as_u16(), &head.headers, &[]);
            }
            return Poll::Ready(Ok(()));
        }
        let (mut head, recv) = ready!(Pin::new(future).poll(cx)).map_err(io_error)?.into_parts();
        self.response = None;
        if let (Some(key), true) = (&self.websocket_key, head.status.is_success()) {
            let accept = websocket_accept(key);
            head.headers.remove("sec-websocket-accept");
            let switch: [(&[u8], &[u8]); 3] =
                [(b"connection", b"upgrade"), (b"upgrade", b"websocket"), (b"sec-websocket-accept", accept.as_bytes())];
            write_head(&mut self.made, 101, &head.headers, &switch);
            self.inlet = Some(Inlet::new(recv, EndForm::Raw));
            self.is_tunnel = true;
            return Poll::Ready(Ok(()));
        }
        let is_bodiless = self.is_head || matches!(head.status.as_u16(), 204 | 304);
        let has_length = head.headers.contains_key(http::header::CONTENT_LENGTH);
        if is_bodiless || has_length {
            write_head(&mut self.made, head.status.as_u16(), &head.headers, &[]);
            if !is_bodiless {
                self.has_chunks_beside_length = !recv.is_end_stream() && self.keeps_trailers_of(&head.headers);
                let form = if self.has_chunks_beside_length { EndForm::Chunks } else { EndForm::Raw };
                self.inlet = Some(Inlet::new(recv, form));
            }
            return Poll::Ready(Ok(()));
        }
        write_head(&mut self.made, head.status.as_u16(), &head.headers, &[(b"transfer-encoding", b"chunked")]);
        if recv.is_end_stream() {
            // An answer of trailers alone, as gRPC has it, stays in one piece.
            write_tail(None, &mut self.made);
        } else {
            self.inlet = Some(Inlet::new(recv, EndForm::Chunks));
        }
        Poll::Ready(Ok(()))
    }

    /// Whether trailers that come behind this head, which has a length, are passed on.
    fn keeps_trailers_of(&self, fields: &http::HeaderMap) -> bool {
        let is_grpc = || fields.get(http::header::CONTENT_TYPE).is_some_and(|kind| is_type_of_grpc(kind.as_bytes()));
        match self.length_trailers {
            LengthTrailers::Dropped => false,
            LengthTrailers::Announced => fields.contains_key(http::header::TRAILER) || is_grpc(),
            LengthTrailers::All => true,
        }
    }

    pub(crate) fn set_length_trailers(&mut self, trailers: LengthTrailers) {
        self.length_trailers = trailers;
    }

    pub(crate) fn has_chunks_beside_length(&self) -> bool {
        self.has_chunks_beside_length
    }

    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.outlet {
            Some(outlet) => outlet.poll_flush(cx),
            None => Poll::Ready(Ok(())),
        }
    }

    pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(outlet) = &mut self.outlet {
            outlet.finish();
            return outlet.poll_flush(cx);
        }
        Poll::Ready(Ok(()))
    }

    /// The server took too long.
    pub(crate) fn distrust(&self) {
        self.place.distrust();
    }

    pub(crate) fn mourns_first(&self) -> bool {
        self.place.mourns_first()
    }

    pub(crate) fn progress(&self) -> u64 {
        self.outlet.as_ref().map_or(0, Outlet::sent)
    }
}

impl Drop for ToServer {
    /// A stream that nobody waits for any more is cancelled at the server too (RFC 9113, 7).
    fn drop(&mut self) {
        if let Some(outlet) = &mut self.outlet {
            outlet.reset(Reason::CANCEL);
        }
    }
}

/// A head of HTTP/1.1. Fields that speak of a connection cannot be in a message of HTTP/2 (RFC 9113, 8.2.2): `h2`
/// refuses it.
fn write_head(out: &mut Vec<u8>, status: u16, fields: &http::HeaderMap, more: &[(&[u8], &[u8])]) {
    let mut writer = HeadWriter::response(out, status, b"");
    for (name, value) in fields {
        writer.field(name.as_str().as_bytes(), value.as_bytes());
    }
    for (name, value) in more {
        writer.field(name, value);
    }
    writer.end();
}
