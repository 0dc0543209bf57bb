//! The HTTP/2 connection of a client.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use socket2::SockRef;

use super::super::Stream;
use super::from_client::FromClient;
use sluicegate_http1::{Buffer, Fault};
use sluicegate_http2::{
    Coming, Connection, Failed, FloodKind, Limits, Outcomes, Reason, RefusedUnread, RequestKind, StreamKey, Work,
};
use sluicegate_time::Tick;

/// Bytes of one turn, after which others have theirs: a client that sends without pause is not the only one. Those of
/// heads count as they are decoded.
const TURN_BYTES: usize = 256 * 1024;
/// Frames of one turn: ten bytes are one.
const TURN_FRAMES: usize = 128;
/// How much is read at once of a client whose frames are small: less than 64 bytes, with their heads, one with another.
const SMALL_READ: usize = 1024;
const SMALL_FRAME: usize = 64;
/// The bytes that the kernel may hold unsent: enough for a sender that never has to wait for us.
const MAX_UNSENT: u32 = 128 * 1024;
/// Room behind a head that is all of a request: so that nobody takes the buffer for a full one.
const LEAST_BEHIND: usize = 64;
/// The fields of a request to upgrade that one of HTTP/2 lacks.
const UPGRADE: &[u8] = b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: ";
/// The most that is read and dropped after the end, so that the peer reads why before its kernel is told of a reset.
const MAX_LINGER: usize = 1024 * 1024;

/// A client's connection, from its preface to its end.
pub struct Accepting {
    stream: Stream,
    connection: Rc<RefCell<Connection>>,
    phase: StreamPhase,
    turn: TurnWork,
}

/// The work that a connection has done since others had their turn.
#[derive(Clone, Copy, Debug, Default)]
struct TurnWork {
    bytes: usize,
    frames: usize,
    /// Whether the last that was read had many frames in few bytes.
    is_dense: bool,
}

impl TurnWork {
    fn is_over(self) -> bool {
        self.bytes >= TURN_BYTES || self.frames >= TURN_FRAMES
    }

    /// How much is to be read next.
    fn most(self) -> usize {
        if self.is_dense { SMALL_READ } else { usize::MAX }
    }

    /// Takes note of what was read.
    fn note(&mut self, size: usize, work: Work) {
        self.bytes += size + work.decoded;
        self.frames += work.frames;
        self.is_dense = work.frames * SMALL_FRAME > size;
    }

    /// The next one.
    fn next(self) -> Self {
        Self { is_dense: self.is_dense, ..Self::default() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamPhase {
    Open,
    /// All has been said; the peer's end is waited for. So many bytes of it were dropped.
    Shut(usize),
    Over,
}

/// A request that came.
pub struct Incoming {
    stream: HeldStream,
}

words! {
    /// An error that ends a connection (RFC 9113, 7).
    pub enum ConnectionError {
        /// `PROTOCOL_ERROR`
        Protocol = "protocol-error",
        /// `FLOW_CONTROL_ERROR`
        FlowControl = "flow-control-error",
        /// `STREAM_CLOSED`
        StreamClosed = "stream-closed",
        /// `FRAME_SIZE_ERROR`
        FrameSize = "frame-size-error",
        /// `COMPRESSION_ERROR`
        Compression = "compression-error",
        /// `ENHANCE_YOUR_CALM`
        EnhanceYourCalm = "enhance-your-calm",
    }
}

/// Why a connection ended that was not simply closed.
#[derive(Debug)]
pub struct Ended(Failed);

impl Ended {
    /// The error that either side gave; `None` if it was none that ends a connection.
    pub fn error(&self) -> Option<ConnectionError> {
        match self.0.reason {
            Reason::Protocol => Some(ConnectionError::Protocol),
            Reason::FlowControl => Some(ConnectionError::FlowControl),
            Reason::StreamClosed => Some(ConnectionError::StreamClosed),
            Reason::FrameSize => Some(ConnectionError::FrameSize),
            Reason::Compression => Some(ConnectionError::Compression),
            Reason::EnhanceYourCalm => Some(ConnectionError::EnhanceYourCalm),
            Reason::NoError | Reason::Internal | Reason::RefusedStream | Reason::Cancel => None,
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.reason, self.0.what)
    }
}

impl Accepting {
    /// A connection over `stream`, of which `ahead` was read already.
    pub fn new(stream: Stream, ahead: &[u8], limits: Limits, now: Tick) -> Self {
        if let Some(socket) = stream.socket() {
            // What the kernel has taken cannot be overtaken: a small answer would wait behind all of a large one. Without
            // the bound it only waits longer.
            let _ = SockRef::from(socket).set_tcp_notsent_lowat(MAX_UNSENT);
        }
        let mut connection = Connection::new(limits, now);
        connection.feed(ahead);
        Self {
            stream,
            connection: Rc::new(RefCell::new(connection)),
            phase: StreamPhase::Open,
            turn: TurnWork::default(),
        }
    }

    /// Takes note that it is `now`: for what it may send that is neither request nor data, and cancel.
    pub fn note_time(&self, now: Tick) {
        self.connection.borrow_mut().note_time(now);
    }

    /// The frames that it has sent too many of.
    pub fn flooded(&self) -> Option<FloodKind> {
        self.connection.borrow().flood().spent()
    }

    /// How many requests were refused since the last call because its client had too many.
    pub fn take_refused(&self) -> RefusedUnread {
        self.connection.borrow_mut().take_refused()
    }

    /// How requests have ended since the last call.
    pub fn take_outcomes(&self) -> Outcomes {
        self.connection.borrow_mut().take_outcomes()
    }

    /// Ends it because its client has cancelled too many requests, over other connections too.
    pub fn calm_down(&self) {
        self.connection.borrow_mut().calm_down();
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
        self.phase != StreamPhase::Open || self.connection.borrow().is_ending()
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
            self.turn = self.turn.next();
        }
        polled
    }

    fn poll_turn(&mut self, cx: &mut Context<'_>, room: &mut [u8]) -> Poll<Option<Incoming>> {
        self.connection.borrow_mut().wakes(cx);
        while self.phase == StreamPhase::Open {
            if let Some(key) = self.connection.borrow_mut().next_incoming() {
                return Poll::Ready(Some(Incoming {
                    stream: HeldStream { connection: Rc::clone(&self.connection), key },
                }));
            }
            let is_written = self.poll_write(cx);
            if self.phase == StreamPhase::Over {
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
            if self.turn.is_over() {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let most = room.len().min(self.turn.most());
            match ready!(self.stream.poll_read(cx, &mut room[..most])) {
                Ok(size @ 1..) => {
                    let mut connection = self.connection.borrow_mut();
                    connection.feed(&room[..size]);
                    self.turn.note(size, connection.take_work());
                }
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
            Ok(()) => StreamPhase::Shut(0),
            Err(_) => StreamPhase::Over,
        };
        Poll::Ready(())
    }

    /// Reads what the peer still sends, up to its end: bytes that nobody has read would make the kernel reset the
    /// connection, and the peer would not learn why it ended.
    fn poll_linger(&mut self, cx: &mut Context<'_>, room: &mut [u8]) -> Poll<()> {
        while let StreamPhase::Shut(dropped) = self.phase {
            if self.turn.is_over() {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            self.phase = match ready!(self.stream.poll_read(cx, room)) {
                Ok(size @ 1..) if dropped < MAX_LINGER => {
                    self.turn.note(size, Work::default());
                    StreamPhase::Shut(dropped + size)
                }
                _ => StreamPhase::Over,
            };
        }
        Poll::Ready(())
    }

    /// The end, whatever the peer still says.
    pub fn cut(&mut self) {
        self.phase = StreamPhase::Over;
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
        // The task that still serves a stream of it shall know.
        self.cut();
    }
}

/// A stream that somebody holds. Nobody holds another one of the same key.
#[derive(Debug)]
pub(super) struct HeldStream {
    pub(super) connection: Rc<RefCell<Connection>>,
    pub(super) key: StreamKey,
}

impl Drop for HeldStream {
    fn drop(&mut self) {
        self.connection.borrow_mut().release(self.key, Reason::Internal);
    }
}

impl Incoming {
    /// Writes the head of HTTP/1.1 that means the same, once, unless it is longer than `most`; how long it is. `body_room`:
    /// room that there has to be behind it if more of the request may come. The head may be one that HTTP/1 does not allow:
    /// then it is refused by the task that reads it, and with it the request. `websocket_key` makes the nonce of a
    /// tunnel (RFC 8441), whose head has none.
    pub fn write_head(
        &mut self,
        inbound: &mut Buffer,
        (most, body_room): (usize, usize),
        websocket_key: impl FnOnce() -> String,
    ) -> Option<usize> {
        let mut connection = self.stream.connection.borrow_mut();
        let key = self.stream.key;
        let is_tunnel = connection.kind(key) == RequestKind::Connect;
        let nonce = if is_tunnel { websocket_key() } else { String::new() };
        let head = connection.head(key);
        let parts: [&[u8]; 4] = match () {
            () if is_tunnel => [head, UPGRADE, nonce.as_bytes(), b"\r\n\r\n"],
            () if connection.is_chunked(key) => [head, b"transfer-encoding: chunked\r\n", b"", b"\r\n"],
            () => [head, b"", b"", b"\r\n"],
        };
        let length = parts.iter().map(|part| part.len()).sum();
        if length > most {
            connection.forget_head(key);
            return None;
        }
        let is_whole = !is_tunnel && matches!(connection.coming(key), Coming::End(_));
        let behind = if is_whole { LEAST_BEHIND } else { body_room };
        inbound.grow(length + behind);
        for part in parts {
            inbound.room()[..part.len()].copy_from_slice(part);
            inbound.advance(part.len());
        }
        connection.drop_head(key);
        Some(length)
    }

    /// Decoded bytes that are held of it until its stream ends.
    pub fn held(&self) -> usize {
        self.stream.connection.borrow().held(self.stream.key)
    }

    /// Why it is malformed, where the codec of HTTP/1 would not find out.
    pub fn fault(&self) -> Option<Fault> {
        self.stream.connection.borrow().fault(self.stream.key)
    }

    /// The stream, to read the body from and to write the response to, by the task that `waker` wakes.
    pub fn into_stream(self, waker: Waker) -> FromClient {
        let kind = {
            let mut connection = self.stream.connection.borrow_mut();
            connection.serve();
            connection.set_waker(self.stream.key, waker);
            connection.kind(self.stream.key)
        };
        FromClient::new(self.stream, kind)
    }

    /// Says that nobody has looked at the request, so that it may be sent again (RFC 9113, 8.7).
    pub fn refuse(self) {
        self.stream.connection.borrow_mut().release(self.stream.key, Reason::RefusedStream);
    }

    /// The same because its client has too many, for which its connection pays.
    pub fn refuse_and_charge(self) {
        self.stream.connection.borrow_mut().refuse(self.stream.key);
    }
}

#[cfg(test)]
mod tests;
