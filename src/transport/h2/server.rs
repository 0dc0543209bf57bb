//! The HTTP/2 connection of a client.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use socket2::SockRef;

use super::super::Stream;
use super::from_client::FromClient;
use crate::http1::Fault;
use crate::http2::{Connection, Failed, Kind, Limits, Reason, StreamKey};
use crate::time::Tick;

/// Reads of one turn, after which others have theirs: a client that sends without pause is not the only one.
const MAX_READS: usize = 8;
/// What the kernel may hold that it has not sent, in bytes: enough for a sender that never has to wait for us.
const MAX_UNSENT: u32 = 128 * 1024;
/// The most that is read and dropped after the end, so that the peer reads why before its kernel is told of a reset.
const MAX_LINGER: usize = 1024 * 1024;

/// A client's connection, from its preface to its end.
pub struct Accepting {
    stream: Stream,
    connection: Rc<RefCell<Connection>>,
    phase: Phase,
    /// Reads of this turn.
    reads: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// All has been said; the peer's end is waited for. So many bytes of it were dropped.
    Shut(usize),
    Over,
}

/// A request that came.
pub struct Incoming {
    stream: Held,
}

/// Why a connection ended that was not simply closed.
#[derive(Debug)]
pub struct Ended(Failed);

impl Ended {
    /// In a word or two for metrics.
    pub fn reason(&self) -> &'static str {
        self.0.reason.word()
    }

    /// Every word that [`reason`](Self::reason) gives.
    pub const REASONS: [&'static str; 6] = [
        "protocol-error",
        "flow-control-error",
        "stream-closed",
        "frame-size-error",
        "compression-error",
        "enhance-your-calm",
    ];
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.reason, self.0.what)
    }
}

impl Accepting {
    /// A connection over `stream`, of which `ahead` was read already.
    pub fn new(stream: Stream, ahead: &[u8], limits: Limits) -> Self {
        if let Some(socket) = stream.socket() {
            // What the kernel has taken cannot be overtaken: a small answer would wait behind all of a large one. Without
            // the bound it only waits longer.
            let _ = SockRef::from(socket).set_tcp_notsent_lowat(MAX_UNSENT);
        }
        let mut connection = Connection::new(limits);
        connection.feed(ahead);
        Self { stream, connection: Rc::new(RefCell::new(connection)), phase: Phase::Open, reads: 0 }
    }

    /// Takes note that it is `now`: for what it may send that is neither request nor data.
    pub fn note_time(&self, now: Tick) {
        self.connection.borrow_mut().flood().fill(now);
    }

    /// What it has sent too much of, in a word or two.
    pub fn flooded(&self) -> Option<&'static str> {
        self.connection.borrow_mut().flood().spent()
    }

    /// How many requests were refused since the last call because its client had too many.
    pub fn take_refused(&self) -> u64 {
        self.connection.borrow_mut().take_refused()
    }

    /// Takes no more requests from now on, once it [ends gracefully](Self::end_gracefully).
    pub fn take_no_more(&self) {
        self.connection.borrow_mut().take_no_more();
    }

    /// Whether bytes of its peer, or its end, were not read yet.
    pub fn has_unread(&self) -> bool {
        self.stream.has_unread()
    }

    /// Whether it takes no more requests: it has failed, or its client knows that it ends.
    pub fn is_ending(&self) -> bool {
        self.phase != Phase::Open || self.connection.borrow().is_ending()
    }

    /// Why it was ended, if that was for an error of its peer.
    pub fn ended(&self) -> Option<Ended> {
        self.connection.borrow().failed().map(Ended)
    }

    /// The next request, `None` at the end. It also carries everything that its streams read and write, so it has to be
    /// polled as long as there are any. `room`: where it reads; nothing is left there.
    pub fn poll_accept(&mut self, cx: &mut Context<'_>, room: &mut [u8]) -> Poll<Option<Incoming>> {
        let polled = self.poll_turn(cx, room);
        if polled.is_pending() {
            self.reads = 0;
        }
        polled
    }

    fn poll_turn(&mut self, cx: &mut Context<'_>, room: &mut [u8]) -> Poll<Option<Incoming>> {
        self.connection.borrow_mut().wakes(cx);
        while self.phase == Phase::Open {
            if let Some(key) = self.connection.borrow_mut().next_incoming() {
                return Poll::Ready(Some(Incoming { stream: Held { connection: Rc::clone(&self.connection), key } }));
            }
            let is_written = self.poll_write(cx);
            if self.phase == Phase::Over {
                break;
            }
            if self.connection.borrow().is_over() {
                if is_written {
                    ready!(self.poll_shut(cx));
                    continue;
                }
                return Poll::Pending;
            }
            if self.connection.borrow().is_clogged() {
                return Poll::Pending;
            }
            if self.reads == MAX_READS {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            self.reads += 1;
            match ready!(self.stream.poll_read(cx, room)) {
                Ok(size @ 1..) => self.connection.borrow_mut().feed(&room[..size]),
                Ok(0) | Err(_) => self.cut(),
            }
        }
        ready!(self.poll_linger(cx, room));
        self.cut();
        Poll::Ready(None)
    }

    /// Writes what there is. Whether all of it has gone to the kernel.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> bool {
        loop {
            let mut connection = self.connection.borrow_mut();
            let unwritten = connection.unwritten();
            if unwritten.is_empty() {
                break;
            }
            match self.stream.poll_write(cx, unwritten, &[]) {
                Poll::Ready(Ok(size @ 1..)) => connection.advance(size),
                Poll::Ready(_) => {
                    drop(connection);
                    self.cut();
                    return false;
                }
                Poll::Pending => return false,
            }
        }
        match self.stream.poll_flush(cx) {
            Poll::Ready(Ok(())) => true,
            Poll::Ready(Err(_)) => {
                self.cut();
                false
            }
            Poll::Pending => false,
        }
    }

    /// Ends our side.
    fn poll_shut(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.phase = match ready!(self.stream.poll_shutdown(cx)) {
            Ok(()) => Phase::Shut(0),
            Err(_) => Phase::Over,
        };
        Poll::Ready(())
    }

    /// Reads what the peer still sends, up to its end: bytes that nobody has read would make the kernel reset the
    /// connection, and the peer would not learn why it ended.
    fn poll_linger(&mut self, cx: &mut Context<'_>, room: &mut [u8]) -> Poll<()> {
        while let Phase::Shut(dropped) = self.phase {
            self.phase = match ready!(self.stream.poll_read(cx, room)) {
                Ok(size @ 1..) if dropped < MAX_LINGER => Phase::Shut(dropped + size),
                _ => Phase::Over,
            };
        }
        Poll::Ready(())
    }

    /// The end, whatever the peer still says.
    pub fn cut(&mut self) {
        self.phase = Phase::Over;
        self.connection.borrow_mut().cut();
    }

    /// Takes no more requests, and ends when those that are open have (RFC 9113, 6.8). False if it has not even begun.
    pub fn end_gracefully(&mut self) -> bool {
        let mut connection = self.connection.borrow_mut();
        let has_begun = connection.has_begun();
        if has_begun {
            connection.go_away();
        }
        has_begun
    }
}

impl Drop for Accepting {
    fn drop(&mut self) {
        // Whoever still serves a stream of it shall know.
        self.cut();
    }
}

/// A stream that somebody holds. Nobody holds another one of the same key.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) connection: Rc<RefCell<Connection>>,
    pub(super) key: StreamKey,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.connection.borrow_mut().release(self.key, Reason::Internal);
    }
}

impl Incoming {
    /// Writes the head of HTTP/1.1 that means the same, once. It may be one that HTTP/1 does not allow: then it is refused by
    /// whoever reads it, and with it the request. `websocket_key` makes the nonce of a tunnel (RFC 8441), whose head has
    /// none.
    pub fn write_head(&mut self, out: &mut Vec<u8>, websocket_key: impl FnOnce() -> String) {
        let mut connection = self.stream.connection.borrow_mut();
        let key = self.stream.key;
        out.extend_from_slice(connection.head(key));
        connection.drop_head(key);
        if connection.kind(key) == Kind::Connect && connection.fault(key).is_none() {
            out.extend_from_slice(b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: ");
            out.extend_from_slice(websocket_key().as_bytes());
            out.extend_from_slice(b"\r\n");
        } else if connection.is_chunked(key) {
            out.extend_from_slice(b"transfer-encoding: chunked\r\n");
        }
        out.extend_from_slice(b"\r\n");
    }

    /// Why it is malformed, where the codec of HTTP/1 would not find out.
    pub fn fault(&self) -> Option<Fault> {
        self.stream.connection.borrow().fault(self.stream.key)
    }

    /// The stream, to read the body from and to write the response to, by the task that `waker` wakes.
    pub fn into_stream(self, waker: Waker) -> FromClient {
        let kind = {
            let mut connection = self.stream.connection.borrow_mut();
            connection.set_waker(self.stream.key, waker);
            connection.kind(self.stream.key)
        };
        FromClient::new(self.stream, kind)
    }

    /// Says that nobody has looked at the request, so that it may be sent again (RFC 9113, 8.7).
    pub fn refuse(self) {
        self.stream.connection.borrow_mut().release(self.stream.key, Reason::RefusedStream);
    }
}
