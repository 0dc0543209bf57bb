//! A body that goes out in DATA frames, read from a body of HTTP/1.1.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use h2::SendStream;
use http::HeaderMap;

use super::flood::Flood;
use super::{io_error, own_head};
use crate::http1::{Body, Form, Framing};

/// Bytes of data that are worth window updates although there was no window for more.
const LEAST_CREDITED: usize = 1024;

/// How a stream is to end, as far as that is known.
#[derive(Debug)]
enum End {
    /// More may come.
    Open,
    /// With the last byte.
    WithData,
    /// With trailers.
    Trailers(HeaderMap),
    /// It has.
    Done,
}

/// A body on its way out. It holds what there is no window for.
#[derive(Debug)]
pub(super) struct Outlet {
    send: SendStream<Bytes>,
    held: Bytes,
    end: End,
    sent: u64,
    flood: Option<Rc<Flood>>,
}

/// What a piece of a body of HTTP/1.1 is in HTTP/2.
#[derive(Debug)]
pub(super) struct Piece {
    content: Bytes,
    end: End,
}

impl Piece {
    /// Reads a piece: what comes next of `body` is in `first` and then in `second`.
    pub(super) fn read(body: &mut Body, first: &[u8], second: &[u8]) -> io::Result<Self> {
        let mut bytes = BytesMut::with_capacity(first.len() + second.len());
        bytes.extend_from_slice(first);
        bytes.extend_from_slice(second);
        let accepted = body.accept(&mut bytes).map_err(|_| io::ErrorKind::InvalidData)?;
        bytes.truncate(accepted.kept);
        let end = if !body.is_complete() {
            End::Open
        } else if body.trailer_lines().is_empty() {
            End::WithData
        } else {
            End::Trailers(own_head::fields(body.trailer_lines())?)
        };
        Ok(Self { content: bytes.freeze(), end })
    }

    /// Whether the head that goes before it ends the stream.
    pub(super) fn is_nothing_more(&self) -> bool {
        self.content.is_empty() && matches!(self.end, End::WithData)
    }
}

impl Outlet {
    /// The stream of a head that has gone out; `ended` with it.
    pub(super) fn new(send: SendStream<Bytes>, ended: bool, flood: Option<Rc<Flood>>) -> Self {
        Self { send, held: Bytes::new(), end: if ended { End::Done } else { End::Open }, sent: 0, flood }
    }

    /// Bytes that were handed to the connection.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// Whether all that it was given has been handed to the connection.
    pub(super) fn is_idle(&self) -> bool {
        self.held.is_empty() && matches!(self.end, End::Open | End::Done)
    }

    /// Whether the stream has ended.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.end, End::Done)
    }

    /// Takes the next piece, while it [is idle](Self::is_idle).
    pub(super) fn put(&mut self, piece: Piece) {
        debug_assert!(self.is_idle());
        if self.has_ended() {
            return;
        }
        self.held = piece.content;
        self.end = piece.end;
    }

    /// Takes bytes as they are.
    pub(super) fn put_raw(&mut self, first: &[u8], second: &[u8]) {
        self.put(Piece { content: [first, second].concat().into(), end: End::Open });
    }

    /// Ends the stream behind what it holds.
    pub(super) fn finish(&mut self) {
        if matches!(self.end, End::Open) {
            self.end = End::WithData;
        }
    }

    /// Hands over what there is a window for. Ready when it is idle.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.held.is_empty() {
            self.send.reserve_capacity(self.held.len());
            let mut room = self.send.capacity();
            if room == 0 {
                room = match ready!(self.send.poll_capacity(cx)) {
                    Some(room) => room.map_err(io_error)?,
                    None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
                };
            }
            let data = self.held.split_to(room.min(self.held.len()));
            let is_last = self.held.is_empty() && matches!(self.end, End::WithData);
            let size = data.len();
            self.sent += size as u64;
            self.send.send_data(data, is_last).map_err(io_error)?;
            // What a small window has cut is the peer's doing: it shall not pay for the next update.
            if let Some(flood) = &self.flood
                && (self.held.is_empty() || size >= LEAST_CREDITED)
            {
                flood.note_data_sent();
            }
            if is_last {
                self.end = End::Done;
            }
        }
        match std::mem::replace(&mut self.end, End::Done) {
            End::Open => self.end = End::Open,
            End::WithData => self.send.send_data(Bytes::new(), true).map_err(io_error)?,
            End::Trailers(trailers) => self.send.send_trailers(trailers).map_err(io_error)?,
            End::Done => {}
        }
        Poll::Ready(Ok(()))
    }

    /// Ready when the peer has reset the stream, or the connection has ended.
    pub(super) fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.send.poll_reset(cx).map(drop)
    }

    /// Ends the stream without its end.
    pub(super) fn reset(&mut self, reason: h2::Reason) {
        if !self.has_ended() {
            self.send.send_reset(reason);
            self.end = End::Done;
            self.held = Bytes::new();
        }
    }
}

/// The body that follows a head of ours.
pub(super) fn body_of(framing: Framing) -> Body {
    Body::new(framing, Form::Content)
}
