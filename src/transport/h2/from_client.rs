//! A stream that a client opened, as a connection of HTTP/1.1 that carries one exchange.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use h2::Reason;
use h2::server::SendResponse;
use http::{Response, StatusCode};

use super::flood::Flood;
use super::inlet::Inlet;
use super::io_error;
use super::outlet::{Outlet, Piece, body_of};
use super::own_head::OwnHead;
use crate::http1::{Body, Framing};

/// A client's stream.
///
/// Reading gives the request's body, in the form that its head has told, and then nothing until the client goes away.
/// Writing takes interim responses and one final one.
#[derive(Debug)]
pub struct FromClient {
    respond: SendResponse<Bytes>,
    inlet: Option<Inlet>,
    outlet: Option<Outlet>,
    body: Body,
    kind: Kind,
    is_tunnel: bool,
    flood: Rc<Flood>,
    /// Of the task that serves it.
    waker: Waker,
}

/// What was asked, as far as the answer depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// HEAD: no body follows.
    Head,
    /// Extended CONNECT: a tunnel may follow (RFC 8441).
    Connect,
    /// Any other.
    Other,
}

impl FromClient {
    pub(super) fn new(
        respond: SendResponse<Bytes>,
        inlet: Option<Inlet>,
        kind: Kind,
        flood: Rc<Flood>,
        waker: Waker,
    ) -> Self {
        let body = body_of(Framing::None);
        Self { respond, inlet, outlet: None, body, kind, is_tunnel: false, flood, waker }
    }

    /// Whether there is a body to read.
    pub fn has_body(&self) -> bool {
        self.inlet.is_some()
    }

    pub(in crate::transport) fn poll_read(&mut self, cx: &mut Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        if let Some(inlet) = &mut self.inlet {
            match inlet.poll_read(cx, room) {
                Poll::Ready(Ok(0)) => self.inlet = None,
                Poll::Pending if !inlet.is_waiting() => {}
                other => return other,
            }
            if self.is_tunnel {
                return Poll::Ready(Ok(0));
            }
        }
        // The end of a request is not the end of its client: that is a reset, and nothing else comes.
        self.poll_reset(cx).map(|()| Err(io::ErrorKind::ConnectionReset.into()))
    }

    fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.outlet {
            Some(outlet) => outlet.poll_reset(cx),
            None => self.respond.poll_reset(cx).map(drop),
        }
    }

    /// Whether its client has reset it, asked by whoever does not read.
    pub(in crate::transport) fn was_reset(&mut self) -> bool {
        // A stream has one waker for all that is sent on it: another one would take its place.
        let waker = self.waker.clone();
        self.poll_reset(&mut Context::from_waker(&waker)).is_ready()
    }

    pub(in crate::transport) fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.inlet {
            Some(inlet) => inlet.poll_ready(cx).map(drop),
            None if self.is_tunnel => Poll::Ready(()),
            None => Poll::Pending,
        }
    }

    pub(in crate::transport) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        first: &[u8],
        second: &[u8],
    ) -> Poll<io::Result<usize>> {
        let taken = first.len() + second.len();
        if let Some(outlet) = &mut self.outlet {
            ready!(outlet.poll_flush(cx))?;
            if self.is_tunnel {
                outlet.put_raw(first, second);
            } else {
                outlet.put(Piece::read(&mut self.body, first, second)?);
            }
            outlet.begin_flush(cx)?;
            return Poll::Ready(Ok(taken));
        }
        let head = OwnHead::read(first)?;
        let mut status = head.status()?;
        let length = head.length;
        if status == StatusCode::SWITCHING_PROTOCOLS {
            return Poll::Ready(self.begin_tunnel(head, &first[length..], second).map(|()| taken));
        }
        if status.is_informational() {
            self.respond.send_informational(response(status, head)).map_err(io_error)?;
            return Poll::Ready(Ok(length));
        }
        if self.kind == Kind::Connect && status.is_success() {
            // It has not switched, and to a client who asked for a tunnel any 2xx would be one (RFC 8441, 5).
            status = StatusCode::BAD_GATEWAY;
        }
        let is_bodiless = self.kind == Kind::Head || matches!(status.as_u16(), 204 | 304);
        self.body = body_of(if is_bodiless { Framing::None } else { head.framing });
        let piece = Piece::read(&mut self.body, &first[length..], second)?;
        let is_all = piece.is_nothing_more();
        let send = self.respond.send_response(response(status, head), is_all).map_err(io_error)?;
        let outlet = self.outlet.insert(Outlet::new(send, is_all, Some(Rc::clone(&self.flood))));
        outlet.put(piece);
        outlet.begin_flush(cx)?;
        Poll::Ready(Ok(taken))
    }

    /// What switches protocols in HTTP/1 is a 200 here (RFC 8441, 5).
    fn begin_tunnel(&mut self, head: OwnHead, first: &[u8], second: &[u8]) -> io::Result<()> {
        let mut head = head;
        head.fields.remove("sec-websocket-accept");
        let send = self.respond.send_response(response(StatusCode::OK, head), false).map_err(io_error)?;
        let outlet = self.outlet.insert(Outlet::new(send, false, Some(Rc::clone(&self.flood))));
        self.is_tunnel = true;
        if !first.is_empty() || !second.is_empty() {
            outlet.put_raw(first, second);
        }
        Ok(())
    }

    pub(in crate::transport) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.outlet {
            Some(outlet) => outlet.poll_flush(cx),
            None => Poll::Ready(Ok(())),
        }
    }

    pub(in crate::transport) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_tunnel
            && let Some(outlet) = &mut self.outlet
        {
            outlet.finish();
            return outlet.poll_flush(cx);
        }
        Poll::Ready(Ok(()))
    }

    pub(in crate::transport) fn progress(&self) -> u64 {
        self.outlet.as_ref().map_or(0, Outlet::sent)
    }

    /// Ends the stream: what is left of it is reset. Where the response is complete and the request is not, its sender
    /// is told to stop (RFC 9113, 8.1); where the response is not complete, nobody shall take it for all of it.
    pub fn end(mut self) {
        match &mut self.outlet {
            // `h2` says NO_ERROR by itself once the stream is dropped and the response is written. To say it here would
            // take back what of the response waits to be written.
            Some(outlet) if outlet.has_ended() => self.flood.note_answered(),
            Some(outlet) => outlet.reset(Reason::INTERNAL_ERROR),
            None => self.respond.send_reset(Reason::CANCEL),
        }
    }
}

/// The head of a response.
fn response(status: StatusCode, head: OwnHead) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = status;
    *response.headers_mut() = head.fields;
    response
}
