//! A stream that a client opened, as a connection of HTTP/1.1 that carries one exchange.

use std::cell::{Ref, RefMut};
use std::io;
use std::task::Poll;

use super::server::HeldStream;
use sluicegate_http1::{Body, CHUNK_ROOM, ChunkPart, Framing, write_chunk_head};
use sluicegate_http2::{Coming, Connection, Reason, RequestKind, ResponseHead, Sending, StreamKey};

/// The smallest room that a chunk is written into: its head, a byte, its end.
const LEAST_ROOM: usize = CHUNK_ROOM + 3;

/// The most of a body that is taken at once.
const MAX_TAKEN: usize = 16 * 1024;

/// As much of a body, in two pieces, as is taken at once: that is kept as long as the client opens no window, so it is no more than
/// is of use.
fn taken<'b>(first: &'b [u8], second: &'b [u8]) -> (&'b [u8], &'b [u8]) {
    match first.get(..MAX_TAKEN) {
        Some(first) => (first, &[]),
        None => (first, second.get(..MAX_TAKEN).unwrap_or(second)),
    }
}

/// A client's stream.
///
/// Reading gives the request's body, in the form that its head has told, and then nothing until the client goes away.
/// Writing takes interim responses and one final one. The task that waits is woken by the waker that it was made with.
#[derive(Debug)]
pub struct FromClient {
    held: HeldStream,
    kind: RequestKind,
    is_chunked: bool,
    /// The status that the client was told in place of another one.
    status_instead: Option<u16>,
    incoming: Unread,
    outgoing: Writing,
}

/// The part of the request that is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unread {
    Body,
    /// The end of a chunked body, of which so much was read.
    Tail(usize),
    /// Nothing.
    Done,
}

/// The part that is to be written next.
#[derive(Debug)]
enum Writing {
    Head,
    /// Content, of which so much is to come.
    Length(u64),
    Chunks(Box<Body>),
    Tunnel,
}

impl FromClient {
    pub(super) fn new(held: HeldStream, kind: RequestKind) -> Self {
        let is_chunked = held.connection.borrow().is_chunked(held.key);
        let mut stream =
            Self { held, kind, is_chunked, status_instead: None, incoming: Unread::Body, outgoing: Writing::Head };
        let has_ended = matches!(stream.connection().coming(stream.held.key), Coming::End(_));
        if has_ended && !is_chunked {
            stream.incoming = Unread::Done;
        }
        stream
    }

    fn connection(&self) -> Ref<'_, Connection> {
        self.held.connection.borrow()
    }

    fn connection_mut(&self) -> RefMut<'_, Connection> {
        self.held.connection.borrow_mut()
    }

    /// The status that the client was told in place of the one that was written.
    pub fn status_instead(&self) -> Option<u16> {
        self.status_instead
    }

    /// Whether there is a body to read.
    pub fn has_body(&self) -> bool {
        self.incoming != Unread::Done
    }

    pub(crate) fn poll_read(&mut self, room: &mut [u8]) -> Poll<io::Result<usize>> {
        let key = self.held.key;
        let mut connection = self.held.connection.borrow_mut();
        let (taken, size) = match connection.coming(key) {
            Coming::Failed => {
                return Poll::Ready(Err(match connection.fault(key) {
                    Some(fault) => io::Error::new(io::ErrorKind::InvalidData, fault),
                    None => io::ErrorKind::ConnectionReset.into(),
                }));
            }
            // The end of a request is not the end of its client: that is a reset, and nothing else comes.
            _ if self.incoming == Unread::Done && !self.is_tunnel() => return Poll::Pending,
            Coming::Nothing => return Poll::Pending,
            Coming::Data(data) if self.is_chunked => {
                let Some(content) = room.len().checked_sub(LEAST_ROOM).map(|more| data.len().min(more + 1)) else {
                    return Poll::Pending;
                };
                (content, put_chunk(room, &data[..content]))
            }
            Coming::Data(data) => {
                let size = data.len().min(room.len());
                room[..size].copy_from_slice(&data[..size]);
                (size, size)
            }
            Coming::End(lines) => {
                let size = match self.incoming {
                    Unread::Tail(at) => read_tail(lines, at, room),
                    Unread::Body if self.is_chunked => read_tail(lines, 0, room),
                    Unread::Body | Unread::Done => 0,
                };
                let at = if let Unread::Tail(at) = self.incoming { at } else { 0 } + size;
                let is_all = !self.is_chunked || at == tail_length(lines);
                self.incoming = if is_all { Unread::Done } else { Unread::Tail(at) };
                if size == 0 && !self.is_tunnel() {
                    return Poll::Pending;
                }
                return Poll::Ready(Ok(size));
            }
        };
        connection.consume(key, taken);
        Poll::Ready(Ok(size))
    }

    fn is_tunnel(&self) -> bool {
        matches!(self.outgoing, Writing::Tunnel)
    }

    /// Whether its client has reset it, asked by the task that does not read.
    pub(crate) fn was_reset(&self) -> bool {
        self.connection().has_failed(self.held.key)
    }

    pub(crate) fn poll_read_ready(&self) -> Poll<()> {
        let is_ready = match self.connection().coming(self.held.key) {
            Coming::Nothing => false,
            Coming::End(_) => self.incoming != Unread::Done || self.is_tunnel(),
            Coming::Data(_) | Coming::Failed => true,
        };
        if is_ready { Poll::Ready(()) } else { Poll::Pending }
    }

    pub(crate) fn poll_write(&mut self, first: &[u8], second: &[u8]) -> Poll<io::Result<usize>> {
        let key = self.held.key;
        let mut connection = self.held.connection.borrow_mut();
        if connection.has_failed(key) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if !connection.is_flushed(key) {
            return Poll::Pending;
        }
        let Writing::Head = self.outgoing else {
            let (first, second) = taken(first, second);
            return Poll::Ready(self.outgoing.put(&mut connection, key, first, second));
        };
        let head = ResponseHead::read(first)?;
        let (after, second) = taken(&first[head.length..], second);
        let size = head.length + after.len() + second.len();
        match head.status {
            101 => {
                connection.respond(key, 200, &head, false);
                self.outgoing = Writing::Tunnel;
                self.outgoing.put(&mut connection, key, after, second)?;
            }
            // They are as many as the server likes, so they wait where a body would have to.
            ..200 if connection.is_clogged() => {
                connection.want_room();
                return Poll::Pending;
            }
            interim @ ..200 => {
                connection.respond(key, interim, &head, false);
                return Poll::Ready(Ok(head.length));
            }
            // It has not switched, and to a client who asked for a tunnel any 2xx would be one (RFC 8441, 5).
            200..300 if self.kind == RequestKind::Connect => {
                self.status_instead = Some(502);
                self.outgoing.begin(&mut connection, key, (502, &head), (after, second))?;
            }
            status => {
                let is_bodiless = self.kind == RequestKind::Head || matches!(status, 204 | 304);
                let head = if is_bodiless { head.without_body() } else { head };
                self.outgoing.begin(&mut connection, key, (status, &head), (after, second))?;
            }
        }
        Poll::Ready(Ok(size))
    }

    pub(crate) fn poll_flush(&mut self) -> Poll<io::Result<()>> {
        let connection = self.connection();
        if connection.has_failed(self.held.key) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if connection.is_flushed(self.held.key) { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    pub(crate) fn poll_shutdown(&mut self) -> Poll<io::Result<()>> {
        if self.is_tunnel() {
            self.connection_mut().finish(self.held.key);
            return self.poll_flush();
        }
        Poll::Ready(Ok(()))
    }

    pub(crate) fn progress(&self) -> u64 {
        self.connection().sent(self.held.key)
    }

    /// Drops what comes of a request whose answer is complete, up to `left` bytes. Ready when its client has sent all of it, or
    /// too much, or has gone.
    pub fn poll_discard(&self, left: &mut usize) -> Poll<()> {
        match self.connection_mut().discard(self.held.key).and_then(|size| left.checked_sub(size)) {
            Some(rest) => *left = rest,
            None => return Poll::Ready(()),
        }
        Poll::Pending
    }

    /// Ends the stream: what is left of it is reset. `is_served`: a server has answered it.
    pub fn end(self, is_served: bool) {
        if is_served {
            self.connection_mut().note_served(self.held.key);
        }
        let unanswered = if let Writing::Head = self.outgoing { Reason::Cancel } else { Reason::Internal };
        self.connection_mut().release(self.held.key, unanswered);
    }
}

impl Writing {
    /// Sends the final head, and what of the body came with it.
    fn begin(
        &mut self,
        connection: &mut Connection,
        key: StreamKey,
        (status, head): (u16, &ResponseHead<'_>),
        (first, second): (&[u8], &[u8]),
    ) -> io::Result<()> {
        match head.framing {
            Framing::Chunked => {
                let mut body = Box::new(Body::new(Framing::Chunked, ChunkPart::Content));
                let mut bytes = [first, second].concat();
                let kept = body.accept(&mut bytes).map_err(|_| io::ErrorKind::InvalidData)?.kept;
                let is_empty = kept == 0 && sending(&body) == Sending::End;
                connection.respond(key, status, head, is_empty);
                connection.send(key, &bytes[..kept], &[], sending(&body));
                *self = Self::Chunks(body);
            }
            Framing::Length(length @ 1..) => {
                connection.respond(key, status, head, false);
                *self = Self::Length(length);
                self.put(connection, key, first, second)?;
            }
            _ => {
                connection.respond(key, status, head, true);
                *self = Self::Length(0);
            }
        }
        Ok(())
    }

    /// Sends what comes next; how many bytes that were. Bytes beyond a length are dropped.
    fn put(&mut self, connection: &mut Connection, key: StreamKey, first: &[u8], second: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tunnel => connection.send(key, first, second, Sending::More),
            Self::Length(left) => {
                let most = usize::try_from(*left).unwrap_or(usize::MAX);
                let first = &first[..first.len().min(most)];
                let second = &second[..second.len().min(most - first.len())];
                *left -= (first.len() + second.len()) as u64;
                let end = if *left == 0 { Sending::End } else { Sending::More };
                connection.send(key, first, second, end);
            }
            Self::Chunks(body) => {
                let mut bytes = [first, second].concat();
                let kept = body.accept(&mut bytes).map_err(|_| io::ErrorKind::InvalidData)?.kept;
                connection.send(key, &bytes[..kept], &[], sending(body));
            }
            Self::Head => return Err(io::ErrorKind::InvalidInput.into()),
        }
        Ok(first.len() + second.len())
    }
}

/// The part behind the content of a chunked body.
fn sending(body: &Body) -> Sending<'_> {
    match body.trailer_lines() {
        _ if !body.is_complete() => Sending::More,
        [] => Sending::End,
        lines => Sending::Trailers(lines),
    }
}

/// Writes one chunk; how long it is.
fn put_chunk(room: &mut [u8], content: &[u8]) -> usize {
    let mut head = [0; CHUNK_ROOM];
    // It fits into `room`, which is never as large as that.
    let used = write_chunk_head(&mut head, u32::try_from(content.len()).unwrap_or(u32::MAX));
    let end = used + content.len();
    room[..used].copy_from_slice(&head[CHUNK_ROOM - used..]);
    room[used..end].copy_from_slice(content);
    room[end..end + 2].copy_from_slice(b"\r\n");
    end + 2
}

/// The last chunk and the empty line stand around the trailers.
const BEFORE_TRAILERS: &[u8] = b"0\r\n";
const AFTER_TRAILERS: &[u8] = b"\r\n";

/// How long the end of a chunked body is.
fn tail_length(lines: &[u8]) -> usize {
    BEFORE_TRAILERS.len() + lines.len() + AFTER_TRAILERS.len()
}

/// Copies of the end of a chunked body what lies from `at` on; how much.
fn read_tail(lines: &[u8], at: usize, room: &mut [u8]) -> usize {
    let (mut skipped, mut used) = (at, 0);
    for part in [BEFORE_TRAILERS, lines, AFTER_TRAILERS] {
        let rest = &part[skipped.min(part.len())..];
        skipped = skipped.saturating_sub(part.len());
        let size = rest.len().min(room.len() - used);
        room[used..used + size].copy_from_slice(&rest[..size]);
        used += size;
        if size < rest.len() {
            break;
        }
    }
    used
}

#[cfg(test)]
mod tests;
