//! The client's connection, and how a client that goes away is noticed while nothing is read from it.

use std::io;
use std::task::{Context, Poll, Waker};

use sluicegate_http1::{Buffer, Fault};
use sluicegate_time::{Span, Tick};
use sluicegate_transport::Stream;

/// How long a lingering close waits for the client to have read its answer, and how long what is left of a request may
/// take to come.
pub const LINGER: Span = Span::from_secs(2);
/// How often a socket that is not read is looked at.
const LOOK_EVERY: Span = Span::from_millis(200);
/// How often a client that has closed its side is asked whether it is still there.
const PROBE_EVERY: Span = Span::from_secs(5);

/// An interim response that changes nothing (RFC 9110, 15.2.1): the kernel of a client that has gone answers it with a
/// reset, one that only closed its side skips it.
pub const PROBE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// The client went away: what it asked for has no reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// A client's connection, or a stream of one.
#[derive(Debug)]
pub struct Client {
    /// The stream that carries its bytes.
    pub stream: Stream,
    /// Whether the client has closed its side. It may still be reading.
    closed: bool,
    look_at: Tick,
    probe_at: Tick,
}

impl Client {
    /// One that was just accepted.
    pub fn new(stream: Stream) -> Self {
        Self { stream, closed: false, look_at: Tick::MAX, probe_at: Tick::MAX }
    }

    /// Whether the client has closed its side.
    pub fn has_closed(&self) -> bool {
        self.closed
    }

    /// Reads into `room`, which is not empty; 0 bytes if the client has closed its side.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        debug_assert!(!room.is_empty());
        if self.closed {
            return Poll::Ready(Ok(0));
        }
        let polled = self.stream.poll_read(cx, room);
        if matches!(polled, Poll::Ready(Ok(0))) {
            self.closed = true;
        }
        polled
    }

    /// Reads what comes after a request that is complete: the next one, which is left for later, or the client's end.
    /// Whether there was something.
    pub fn poll_ahead(&mut self, cx: &mut Context<'_>, inbound: &mut Buffer) -> Result<bool, Gone> {
        if self.closed || inbound.room().is_empty() {
            return Ok(false);
        }
        match self.poll_read(cx, inbound.room()) {
            Poll::Ready(Ok(size @ 1..)) => {
                inbound.advance(size);
                Ok(true)
            }
            Poll::Ready(Err(_)) => Err(Gone),
            Poll::Ready(Ok(0)) | Poll::Pending => Ok(false),
        }
    }

    /// Sends a [`PROBE`] at once, where nothing was written before and what is to be written has to wait.
    pub fn probe_now(&mut self) -> Result<(), Gone> {
        let mut context = Context::from_waker(Waker::noop());
        match self.stream.poll_write(&mut context, PROBE, &[]) {
            Poll::Ready(Ok(size)) if size == PROBE.len() => {}
            Poll::Pending => return Ok(()),
            // Half of one would make what follows unreadable.
            Poll::Ready(_) => return Err(Gone),
        }
        match self.stream.poll_flush(&mut context) {
            Poll::Ready(Err(_)) => Err(Gone),
            _ => Ok(()),
        }
    }

    /// When to call [`look`](Self::look) next; `is_unread`: nothing is read from the socket, although it is open.
    pub fn next_look(&mut self, is_unread: bool, now: Tick) -> Tick {
        if !self.closed && !is_unread {
            self.look_at = Tick::MAX;
        } else if self.look_at == Tick::MAX {
            self.look_at = now + LOOK_EVERY;
            if self.closed && self.probe_at == Tick::MAX {
                self.probe_at = self.look_at;
            }
        }
        self.look_at
    }

    /// Looks whether the client has reset the connection. Whether it is time for a [`PROBE`].
    pub fn look(&mut self, now: Tick) -> Result<bool, Gone> {
        if now < self.look_at {
            return Ok(false);
        }
        self.look_at = now + LOOK_EVERY;
        if self.stream.was_reset() {
            return Err(Gone);
        }
        if self.probe_at == Tick::MAX && (self.closed || self.stream.is_closed_behind_bytes()) {
            self.probe_at = now;
        }
        let due = now >= self.probe_at;
        if due {
            self.probe_at = now + PROBE_EVERY;
        }
        Ok(due)
    }
}

/// The fault of a request, where its stream of HTTP/2 has found one.
pub fn fault_in(error: &io::Error) -> Option<Fault> {
    error.get_ref()?.downcast_ref().copied()
}
