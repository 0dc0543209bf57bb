//! Bodies on their way, never held whole.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;

use super::exchange::Exchange;
use super::flight::Place;
use super::meters::Outcome;
use crate::upstream::Leased;

/// The body of a request to an upstream.
pub enum RequestBody {
    /// None: the request may be sent again.
    Empty(Empty<Bytes>),
    /// The client's, as it comes.
    Client {
        /// What is left of it.
        body: Incoming,
        /// Set when nothing is.
        ended: Rc<Cell<bool>>,
    },
}

impl RequestBody {
    /// A body for what came from the client; `ended` is set once it has been read to its end.
    pub fn new(body: Incoming, ended: &Rc<Cell<bool>>) -> Self {
        if body.is_end_stream() {
            ended.set(true);
            Self::Empty(Empty::new())
        } else {
            Self::Client { body, ended: Rc::clone(ended) }
        }
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Empty(_))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Empty(_) => Poll::Ready(None),
            Self::Client { body, ended } => {
                let polled = Pin::new(&mut *body).poll_frame(cx);
                if matches!(polled, Poll::Ready(None)) || body.is_end_stream() {
                    ended.set(true);
                }
                polled
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty(_) => true,
            Self::Client { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty(_) => SizeHint::with_exact(0),
            Self::Client { body, .. } => body.size_hint(),
        }
    }
}

/// The body of a response to a client, with what must live until it ends.
pub enum ResponseBody {
    /// Made by the gateway.
    Own {
        /// Its bytes.
        body: Full<Bytes>,
        /// Told of the end by being dropped.
        exchange: Box<Exchange>,
    },
    /// The upstream's, as it comes.
    Upstream(Box<Relay>),
}

/// An upstream's response body, its connection and the exchange that it belongs to.
pub struct Relay {
    body: Incoming,
    lease: Option<Leased<RequestBody>>,
    place: Place,
    exchange: Box<Exchange>,
    end: End,
}

/// What has been seen of the end of an upstream's body.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Unseen,
    Complete,
    Failed,
}

impl ResponseBody {
    /// The rest of an upstream's response.
    pub fn relay(body: Incoming, lease: Leased<RequestBody>, place: Place, exchange: Box<Exchange>) -> Self {
        place.head_sent();
        Self::Upstream(Box::new(Relay { body, lease: Some(lease), place, exchange, end: End::Unseen }))
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Own { body, exchange } => match Pin::new(body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    exchange.sent(&frame);
                    Poll::Ready(Some(Ok(frame)))
                }
                Poll::Ready(Some(Err(never))) => match never {},
                Poll::Ready(None) => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            },
            Self::Upstream(relay) => {
                let polled = Pin::new(&mut relay.body).poll_frame(cx);
                match &polled {
                    Poll::Ready(Some(Ok(frame))) => relay.exchange.sent(frame),
                    Poll::Ready(Some(Err(_))) => relay.end = End::Failed,
                    Poll::Ready(None) => relay.end = End::Complete,
                    Poll::Pending => {}
                }
                polled
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own { body, .. } => body.is_end_stream(),
            Self::Upstream(relay) => relay.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own { body, .. } => body.size_hint(),
            Self::Upstream(relay) => relay.body.size_hint(),
        }
    }
}

impl Drop for Relay {
    /// The one place where a forwarded exchange learns how it ended.
    fn drop(&mut self) {
        if self.place.has_expired() {
            self.exchange.timed_out_late();
        } else if self.end == End::Failed {
            self.exchange.broken_off_late();
        } else if self.end == End::Complete || self.body.is_end_stream() {
            self.exchange.finish(Outcome::Forwarded);
            // A server that answered before it had the whole request: that connection still owes it the rest, so it
            // closes, and nobody else waits for it.
            if self.exchange.upload_ended.get()
                && let Some(lease) = self.lease.take()
            {
                lease.give_back(self.exchange.ended());
            }
        }
        // Else the client went away, which is what an exchange says that nobody finished.
    }
}

/// Reads and drops at most `limit` bytes of a body; whether that was all of it.
pub async fn discard(mut body: Incoming, limit: u64) -> bool {
    let mut left = limit;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return false };
        let size = frame.data_ref().map_or(0, |data| data.len() as u64);
        match left.checked_sub(size) {
            Some(rest) => left = rest,
            None => return false,
        }
    }
    true
}
