//! Responses on their way out: heads, bodies, and the windows that they go through.

use std::task::Waker;

use super::connection::{Connection, MAX_OUT};
use super::flood::Flood;
use super::frame::{MAX_PAYLOAD, Reason, flag, kind, put_head};
use super::request::RequestKind;
use super::response::{ResponseHead, begin_block, end_block, put_response, put_trailers};
use super::stream::{SendEnd, Stream, StreamKey};
use sluicegate_http1::Fault;

/// Bytes of data that are worth window updates although there was no window for more: what a hundred streams have each of
/// a small window that they share.
const LEAST_CREDITED: usize = 128;
/// The bytes that a stream may send in its turn, although more of them wait than there is room for: smaller frames
/// would cost more than they are worth.
const LEAST_TURN: usize = 4_096;

/// Whether more can be read of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coming<'c> {
    /// This, and perhaps more.
    Data(&'c [u8]),
    /// Nothing yet.
    Nothing,
    /// Nothing any more. These field lines are its trailers.
    End(&'c [u8]),
    /// The stream was reset, or its connection has ended.
    Failed,
}

/// The calls for the server of a stream.
impl Connection {
    /// The request's head of HTTP/1.1, without the empty line and what stands before it for [`kind`](Self::kind) and
    /// [`is_chunked`](Self::is_chunked).
    pub fn head(&self, key: StreamKey) -> &[u8] {
        self.streams.get(key).map_or(&[], |stream| &stream.head)
    }

    /// Lets the head go, once the task that serves the stream has it. It counts as held until the stream is
    /// [released](Self::release).
    pub fn drop_head(&mut self, key: StreamKey) {
        if let Some(stream) = self.streams.get_mut(key) {
            stream.drop_head();
        }
    }

    /// Lets the head go of which nobody has a copy.
    pub fn forget_head(&mut self, key: StreamKey) {
        if let Some(stream) = self.streams.get_mut(key) {
            stream.drop_head();
            self.heads = self.heads.saturating_sub(std::mem::take(&mut stream.head_size));
        }
    }

    /// Decoded bytes that are held of this request.
    pub fn held(&self, key: StreamKey) -> usize {
        self.streams.get(key).map_or(0, |stream| stream.head_size)
    }

    /// The kind of request.
    pub fn kind(&self, key: StreamKey) -> RequestKind {
        self.streams.get(key).map_or(RequestKind::Other, |stream| stream.meaning.kind)
    }

    /// Whether the body has no length, so that HTTP/1.1 tells it in chunks.
    pub fn is_chunked(&self, key: StreamKey) -> bool {
        self.streams.get(key).is_some_and(|stream| stream.meaning.is_chunked)
    }

    /// The fault that the request is to be refused for, where the codec of HTTP/1 would not find out.
    pub fn fault(&self, key: StreamKey) -> Option<Fault> {
        self.streams.get(key).and_then(|stream| stream.meaning.fault)
    }

    /// Notes that a request is served, and not [refused](Self::refuse): then its client may send frames that only make
    /// work.
    pub fn serve(&mut self) {
        self.flood.note_request();
    }

    /// Whom to wake when something comes, or can be sent, or the stream ends.
    pub fn set_waker(&mut self, key: StreamKey, waker: Waker) {
        if let Some(stream) = self.streams.get_mut(key) {
            stream.waker = Some(waker);
        }
    }

    /// Whether nothing more comes and goes, although somebody holds it.
    pub fn has_failed(&self, key: StreamKey) -> bool {
        self.streams.get(key).is_none_or(|stream| stream.failure.is_some())
    }

    /// The part of the body that can be read.
    pub fn coming(&self, key: StreamKey) -> Coming<'_> {
        match self.streams.get(key) {
            Some(stream) if stream.failure.is_some() => Coming::Failed,
            Some(stream) if !stream.unread().is_empty() => Coming::Data(stream.unread()),
            Some(stream) if stream.has_ended => Coming::End(&stream.trailers),
            Some(_) => Coming::Nothing,
            None => Coming::Failed,
        }
    }

    /// Takes note that so much of it was read: the client may send more.
    pub fn consume(&mut self, key: StreamKey, count: usize) {
        if let Some(stream) = self.streams.get_mut(key) {
            let count = count.min(stream.unread().len());
            stream.take_data(count);
            self.give_back(count);
            self.settle_window(key, self.rest_of_data(key));
        }
    }

    /// Drops what has come of a request whose answer is complete; how much that was. `None` if nothing more of it is worth
    /// waiting for: it has ended or was reset, or it is to be reset for what it is.
    pub fn discard(&mut self, key: StreamKey) -> Option<usize> {
        let stream = self.streams.get(key)?;
        let size = stream.unread().len();
        let is_open = stream.failure.is_none() && stream.end == SendEnd::Done && !stream.meaning.is_malformed;
        if !is_open || stream.has_ended {
            return None;
        }
        self.consume(key, size);
        Some(size)
    }

    /// Sends a head with this status, which need not be its own. `ends`: nothing follows.
    pub fn respond(&mut self, key: StreamKey, status: u16, head: &ResponseHead<'_>, ends: bool) {
        let Some(stream) = self.streams.get_mut(key).filter(|stream| stream.failure.is_none()) else { return };
        stream.is_answered |= status >= 200;
        if ends {
            stream.end = SendEnd::Done;
        }
        put_response(&mut self.out, &mut self.encoder, key.id, (status, head), ends);
        self.wake();
    }

    /// Whether all that it was given has gone out, so that it can be given more.
    pub fn is_flushed(&self, key: StreamKey) -> bool {
        self.streams.get(key).is_none_or(|stream| {
            stream.failure.is_some()
                || (stream.unsent().is_empty() && matches!(stream.end, SendEnd::Open | SendEnd::Done))
        })
    }

    /// Bytes of data that have gone out.
    pub fn sent(&self, key: StreamKey) -> u64 {
        self.streams.get(key).map_or(0, |stream| stream.sent)
    }

    /// Sends content, while it [is flushed](Self::is_flushed): `first`, then `second`, and then the end if there is one.
    /// Content that there is no window for is kept, and goes out as one opens.
    pub fn send(&mut self, key: StreamKey, first: &[u8], second: &[u8], end: Sending<'_>) {
        let room = if self.queue.is_empty() { self.room() } else { 0 };
        let Some(stream) = self.streams.get_mut(key).filter(|stream| stream.failure.is_none()) else { return };
        if stream.end != SendEnd::Open {
            return;
        }
        match end {
            Sending::More => {}
            Sending::End => stream.end = SendEnd::WithData,
            Sending::Trailers(lines) => {
                put_trailers(&mut stream.last_block, lines);
                stream.end = SendEnd::Trailers;
            }
        }
        let (mut first, mut second) = (first, second);
        let mut window = usize::try_from(stream.send_window).unwrap_or(0).min(room);
        while window > 0 && first.len() + second.len() > 0 {
            let size = window.min(MAX_PAYLOAD).min(first.len() + second.len());
            let is_all = size == first.len() + second.len();
            let ends = is_all && stream.end == SendEnd::WithData;
            put_head(&mut self.out, size, kind::DATA, if ends { flag::END_STREAM } else { 0 }, key.id);
            let (now, later) = first.split_at(size.min(first.len()));
            self.out.extend_from_slice(now);
            first = later;
            let (now, later) = second.split_at(size - now.len());
            self.out.extend_from_slice(now);
            second = later;
            if ends {
                stream.end = SendEnd::Done;
            }
            window -= size;
            note_sent(&mut self.send_window, &mut self.flood, stream, size, is_all);
        }
        if first.is_empty() && second.is_empty() && stream.unsent().is_empty() {
            self.put_end(key);
        } else {
            stream.held.extend_from_slice(first);
            stream.held.extend_from_slice(second);
            self.enqueue(key);
        }
        self.wake();
    }

    /// Ends the response behind what was given.
    pub fn finish(&mut self, key: StreamKey) {
        if let Some(stream) = self.streams.get_mut(key)
            && stream.end == SendEnd::Open
        {
            stream.end = SendEnd::WithData;
            if stream.unsent().is_empty() {
                self.put_end(key);
                self.wake();
            }
        }
    }

    /// Notes that a server has answered the request: only that pays for requests that are cancelled, the gateway's own
    /// answers cost next to nothing. To be called before the stream is [released](Self::release).
    pub fn note_served(&mut self, key: StreamKey) {
        if self.streams.get(key).is_some_and(|stream| stream.end == SendEnd::Done && stream.failure.is_none()) {
            self.flood.note_answered();
        }
    }

    /// Gives the stream up: what is left of it is reset. Where the response is complete and the request is not, its
    /// sender is told to stop (RFC 9113, 8.1); where the response is not complete, nobody shall take it for all of it.
    pub fn release(&mut self, key: StreamKey, unanswered: Reason) {
        let Some(stream) = self.streams.get(key) else { return };
        let (unread, extra) = (stream.unread().len(), stream.extra);
        self.extra -= extra;
        self.heads = self.heads.saturating_sub(stream.head_size);
        let is_complete = stream.end == SendEnd::Done;
        if stream.is_queued {
            // Its place would be kept for as long as the client opens no window. There are as many as streams: twice
            // `max_streams` at the most, which is 1,000 at the most.
            self.queue.retain(|waiting| *waiting != key);
        }
        let reset = match stream.failure {
            Some(_) => None,
            // The answer goes before it. A request that is malformed is no complete one (RFC 9113, 8.1.1).
            None if is_complete && stream.meaning.is_malformed => Some(Reason::Protocol),
            None if is_complete => (!stream.has_ended).then_some(Reason::NoError),
            None => Some(unanswered),
        };
        self.give_back(unread);
        if let Some(reason) = reset {
            self.reset(key.id, reason);
        }
        self.streams.remove(key);
        if self.streams.len() == 0 {
            // It may be over, or its room may be given back.
            self.wake();
        }
    }

    /// How much data may be put behind what waits to be written.
    fn room(&self) -> usize {
        let window = usize::try_from(self.send_window).unwrap_or(0);
        window.min(MAX_OUT.saturating_sub(self.unwritten().len()))
    }

    /// Lets a stream wait for its turn, if it has something to send and a window.
    pub(super) fn enqueue(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        if !stream.is_queued && stream.failure.is_none() && stream.send_window > 0 && !stream.unsent().is_empty() {
            stream.is_queued = true;
            self.queue.push_back(key);
        }
    }

    /// Sends what there is a window and room for: a frame of each stream that waits, in turn, so that none starves while
    /// the others share a small window.
    pub(super) fn pump(&mut self) {
        while !self.queue.is_empty() {
            let room = self.room();
            if room == 0 {
                return;
            }
            let Some(key) = self.queue.pop_front() else { return };
            let Some(stream) = self.streams.get_mut(key) else { continue };
            stream.is_queued = false;
            if stream.failure.is_some() {
                continue;
            }
            let waiting = stream.unsent();
            // All that wait share what there is.
            let share = (room / (self.queue.len() + 1)).clamp(LEAST_TURN, MAX_PAYLOAD).min(room);
            let size = usize::try_from(stream.send_window).unwrap_or(0).min(share).min(waiting.len());
            let is_all = size == waiting.len();
            let ends = is_all && stream.end == SendEnd::WithData;
            if size > 0 {
                put_head(&mut self.out, size, kind::DATA, if ends { flag::END_STREAM } else { 0 }, key.id);
                self.out.extend_from_slice(&waiting[..size]);
                stream.held_at += size;
            }
            if ends {
                stream.end = SendEnd::Done;
            }
            if is_all {
                stream.held.clear();
                stream.held_at = 0;
                stream.wake();
            }
            note_sent(&mut self.send_window, &mut self.flood, stream, size, is_all);
            if is_all {
                self.put_end(key);
            } else {
                self.enqueue(key);
            }
            self.wake();
        }
    }

    /// Ends a stream whose data has gone out.
    fn put_end(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get_mut(key).filter(|stream| stream.failure.is_none()) else { return };
        match stream.end {
            SendEnd::Open | SendEnd::Done => return,
            SendEnd::WithData => put_head(&mut self.out, 0, kind::DATA, flag::END_STREAM, key.id),
            SendEnd::Trailers => {
                let at = begin_block(&mut self.out);
                self.encoder.begin(&mut self.out);
                self.out.extend_from_slice(&stream.last_block);
                end_block(&mut self.out, at, key.id, true);
            }
        }
        stream.end = SendEnd::Done;
        stream.wake();
    }
}

fn note_sent(window: &mut i64, flood: &mut Flood, stream: &mut Stream, size: usize, is_all: bool) {
    *window -= i64::try_from(size).unwrap_or(i64::MAX);
    stream.send_window -= i64::try_from(size).unwrap_or(i64::MAX);
    stream.sent += size as u64;
    // What a small window has cut is the client's doing: it shall not pay for the next update.
    if is_all || size >= LEAST_CREDITED {
        flood.note_data_sent();
    }
}

/// The part that comes behind content that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending<'s> {
    /// Perhaps more.
    More,
    /// The end.
    End,
    /// Trailers, as field lines that end with an empty one, and the end.
    Trailers(&'s [u8]),
}
