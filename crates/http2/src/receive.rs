//! Requests on their way in: header blocks, bodies, and the windows that they come through.

use super::connection::{Block, Connection, Data, FIRST_WINDOW, MAX_HEADS};
use super::frame::{FrameHead, MAX_STREAM, Reason, flag, kind};
use super::request::{FIELD_OVERHEAD, RequestKind, TrailerReader};
use super::stream::{StreamFailure, StreamIdState, StreamKey};
use sluicegate_http1::Fault;

/// Decoded bytes of the trailers of one request, 32 a field included. They count for the connection alone, so they are
/// held to less than a head is; a call of gRPC sends none.
const MAX_TRAILERS: usize = 8 * 1024;

impl Connection {
    pub(super) fn read_headers(&mut self, head: FrameHead, payload: &[u8]) {
        if head.stream == 0 {
            return self.fail(Reason::Protocol, "HEADERS on no stream");
        }
        let Some((padding, parent, rest)) = parts(head, payload) else {
            return self.fail(Reason::FrameSize, "HEADERS without what their flags promise");
        };
        let Some(fragment) = rest.len().checked_sub(padding).map(|length| &rest[..length]) else {
            return self.fail(Reason::Protocol, "HEADERS with more padding than there is");
        };
        let depends_on_itself = parent == Some(head.stream);
        let (stream, ends) = (head.stream, head.has(flag::END_STREAM));
        let mut block = Block { stream, ends, depends_on_itself, bytes: Vec::new() };
        if head.has(flag::END_HEADERS) {
            return self.read_block(&block, fragment);
        }
        block.bytes.extend_from_slice(fragment);
        self.block = Some(block);
    }

    pub(super) fn read_continuation(&mut self, head: FrameHead, payload: &[u8]) {
        let Some(mut block) = self.block.take() else {
            return self.fail(Reason::Protocol, "CONTINUATION of nothing");
        };
        block.bytes.extend_from_slice(payload);
        // Fields are not shorter than what they are encoded in, but for a few codes that no text is made of.
        if block.bytes.len() > self.limits.max_header_list as usize {
            return self.fail(Reason::EnhanceYourCalm, "a header block without end");
        }
        if head.has(flag::END_HEADERS) {
            self.read_block(&block, &block.bytes);
        } else {
            self.block = Some(block);
        }
    }

    /// Reads a whole header block. It has to be decoded whatever becomes of it: the table is the connection's.
    fn read_block(&mut self, block: &Block, bytes: &[u8]) {
        let id = block.stream;
        match self.streams.place(id) {
            StreamIdState::Here(key) => self.read_trailers(key, block, bytes),
            StreamIdState::Idle if id.is_multiple_of(2) => self.fail(Reason::Protocol, "a stream of an even number"),
            StreamIdState::Idle => self.read_request(block, bytes),
            StreamIdState::Reset => {
                self.skip_block(bytes);
                self.note_late();
            }
            StreamIdState::Ended => self.fail(Reason::StreamClosed, "HEADERS on a stream that has ended"),
            StreamIdState::Forgotten => self.fail(Reason::Protocol, "a stream of a number below another's"),
        }
    }

    /// Counts a frame that nobody wants.
    fn note_late(&mut self) {
        self.flood.note_late();
        if self.flood.spent().is_some() {
            self.fail(Reason::EnhanceYourCalm, "too many frames on streams that were reset or answered");
        }
    }

    fn skip_block(&mut self, bytes: &[u8]) {
        let mut size = 0;
        let decoded = self.decoder.decode(bytes, |name, value| size += name.len() + value.len() + FIELD_OVERHEAD);
        self.work.decoded += size;
        if let Err(error) = decoded {
            self.fail(Reason::Compression, error.what());
        }
    }

    fn read_request(&mut self, block: &Block, bytes: &[u8]) {
        let id = block.stream;
        let is_late = self.takes_no_more();
        if is_late {
            self.streams.note_late(id);
        } else {
            self.streams.note_last(id);
        }
        // Streams that are over and still served count too, so that giving up requests pays for none.
        let most = self.limits.max_streams as usize;
        let is_crowded = self.streams.has_open(most) || self.streams.len() >= most.saturating_mul(2);
        let is_full = is_crowded || self.heads >= MAX_HEADS;
        if is_late || is_full || block.depends_on_itself {
            self.skip_block(bytes);
            match () {
                // Its client has been told that nobody will look at it.
                () if is_late => self.note_late(),
                () if is_full => {
                    self.refused.by_streams += u64::from(is_crowded);
                    self.refused.by_heads += u64::from(!is_crowded);
                    self.note_refused();
                    self.reset(id, Reason::RefusedStream);
                }
                () => self.fail_stream(id, Reason::Protocol, "a stream that depends on itself"),
            }
            return;
        }
        let key = self.streams.open(id);
        let (stream_window, now) = (self.stream_window, self.now);
        let Some(stream) = self.streams.get_mut(key) else { return };
        stream.opened_at = now;
        let (reader, head) = (&mut self.reader, &mut stream.head);
        reader.reset();
        let decoded = self.decoder.decode(bytes, |name, value| reader.field(name, value, head));
        stream.meaning = reader.end(block.ends, head);
        self.work.decoded += head.len();
        if stream.meaning.fault.is_some() {
            // It is refused for what it is, and nobody reads it.
            stream.drop_head();
        }
        stream.head_size = stream.head.len();
        self.heads += stream.head_size;
        stream.length_left = stream.meaning.length;
        stream.has_ended = block.ends;
        stream.recv_window = self.share;
        stream.send_window = stream_window;
        match decoded {
            Ok(()) => self.incoming.push_back(key),
            Err(error) => {
                // The connection is over: what it holds goes with it.
                self.fail(Reason::Compression, error.what());
            }
        }
    }

    /// Counts a request that is refused because there are too many.
    fn note_refused(&mut self) {
        self.flood.note_refused();
        if self.flood.spent().is_some() {
            self.fail(Reason::EnhanceYourCalm, "too many requests beyond those that are served");
        }
    }

    /// Refuses a request that was taken, because its client has too many elsewhere, so that it may be sent again
    /// (RFC 9113, 8.7).
    pub fn refuse(&mut self, key: StreamKey) {
        self.note_refused();
        self.release(key, Reason::RefusedStream);
    }

    fn read_trailers(&mut self, key: StreamKey, block: &Block, bytes: &[u8]) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        if self.heads >= MAX_HEADS && stream.failure.is_none() && !stream.has_ended {
            self.skip_block(bytes);
            return self.fail_stream(key.id, Reason::EnhanceYourCalm, "trailers beyond what a connection may hold");
        }
        stream.trailers.clear();
        let most = MAX_TRAILERS.min(self.limits.max_header_list as usize);
        let mut reader = TrailerReader::new(most, &mut stream.trailers);
        if let Err(error) = self.decoder.decode(bytes, |name, value| reader.field(name, value)) {
            return self.fail(Reason::Compression, error.what());
        }
        let is_malformed = reader.is_malformed();
        self.work.decoded += stream.trailers.len();
        if is_malformed || stream.failure.is_some() || stream.has_ended {
            stream.trailers = Vec::new();
        }
        stream.head_size += stream.trailers.len();
        self.heads += stream.trailers.len();
        let is_tunnel = stream.meaning.kind == RequestKind::Connect;
        match stream.failure {
            Some(StreamFailure::ByUs | StreamFailure::Connection) => return self.note_late(),
            Some(StreamFailure::ByClient) => {
                return self.fail_stream(key.id, Reason::StreamClosed, "HEADERS behind a reset");
            }
            None if stream.has_ended => {
                return self.fail_stream(key.id, Reason::StreamClosed, "HEADERS behind the end");
            }
            None => {}
        }
        if block.depends_on_itself {
            self.fail_stream(key.id, Reason::Protocol, "a stream that depends on itself");
        } else if is_tunnel {
            // RFC 9113, 8.5.
            self.fail_stream(key.id, Reason::Protocol, "HEADERS in a tunnel");
        } else if !block.ends {
            self.fail_stream(key.id, Reason::Protocol, "trailers that are not the end");
        } else if is_malformed {
            self.fail_request(key, Fault::Trailer, "trailers that are malformed");
        } else {
            self.end_request(key);
        }
    }

    /// Takes the head of a frame of data. `None` if nothing of it is to come, or the connection is over.
    pub(super) fn data(&mut self, head: FrameHead) -> Option<Data> {
        if head.stream == 0 {
            self.fail(Reason::Protocol, "DATA on no stream");
            return None;
        }
        let is_padded = head.has(flag::PADDED);
        if is_padded && head.length == 0 {
            self.fail(Reason::FrameSize, "DATA without what their flags promise");
            return None;
        }
        let size = i64::try_from(head.length).unwrap_or(i64::MAX);
        self.recv_window -= size;
        if self.recv_window < 0 {
            self.fail(Reason::FlowControl, "more data than the connection's window");
            return None;
        }
        self.return_owed();
        // Until it knows our settings, a client may take a stream's window for a larger one.
        let least = if self.are_settings_known { 0 } else { (self.share - i64::from(FIRST_WINDOW)).min(0) };
        let place = self.streams.place(head.stream);
        let mut wanted = None;
        match place {
            StreamIdState::Idle => self.fail(Reason::Protocol, "DATA on a stream that is idle"),
            StreamIdState::Reset => self.note_late(),
            StreamIdState::Ended | StreamIdState::Forgotten => {
                self.fail_stream(head.stream, Reason::StreamClosed, "DATA on a stream that has ended");
            }
            StreamIdState::Here(key) => {
                let stream = self.streams.get_mut(key)?;
                stream.recv_window -= size;
                match stream.failure {
                    Some(StreamFailure::ByUs | StreamFailure::Connection) => self.note_late(),
                    Some(StreamFailure::ByClient) => {
                        self.fail_stream(key.id, Reason::StreamClosed, "DATA behind a reset");
                    }
                    None if stream.has_ended => {
                        self.fail_stream(key.id, Reason::StreamClosed, "DATA behind the end");
                    }
                    None if stream.recv_window < least => {
                        self.fail_stream(key.id, Reason::FlowControl, "more data than the stream's window");
                    }
                    None => wanted = Some(key),
                }
            }
        }
        if self.failed().is_some() {
            return None;
        }
        let data = Data {
            key: wanted,
            left: head.length,
            padding: if is_padded { None } else { Some(0) },
            ends: head.has(flag::END_STREAM),
        };
        if !is_padded {
            self.note_data(data);
        }
        if data.left == 0 {
            self.end_data(data);
        }
        Some(data)
    }

    /// Counts a frame of data that carries nothing.
    fn note_data(&mut self, data: Data) {
        self.flood.note(kind::DATA, if data.ends { flag::END_STREAM } else { 0 }, data.left);
        if self.flood.spent().is_some() {
            self.fail(Reason::EnhanceYourCalm, "too many frames that carry nothing");
        }
    }

    /// Takes what comes of a frame of data: how many bytes, and what of it is still to come.
    pub(super) fn read_data(&mut self, mut data: Data, bytes: &[u8]) -> (usize, Option<Data>) {
        let Some(padding) = data.padding else {
            let Some(padding) = bytes.first().map(|byte| usize::from(*byte)) else { return (0, Some(data)) };
            data.left -= 1;
            if padding > data.left {
                self.fail(Reason::Protocol, "DATA with more padding than there is");
                return (1, None);
            }
            data.left -= padding;
            data.padding = Some(padding);
            self.note_data(data);
            // Nobody reads it.
            self.give_back(padding + 1);
            if data.left == 0 {
                self.end_data(data);
            }
            return (1, (data.left + padding > 0).then_some(data));
        };
        if data.left == 0 {
            let taken = padding.min(bytes.len());
            data.padding = Some(padding - taken);
            return (taken, (padding > taken).then_some(data));
        }
        let taken = data.left.min(bytes.len());
        data.left -= taken;
        self.put_data(&mut data, &bytes[..taken]);
        if data.left == 0 {
            self.end_data(data);
        }
        (taken, (data.left + padding > 0).then_some(data))
    }

    fn put_data(&mut self, data: &mut Data, content: &[u8]) {
        let stream = data.key.and_then(|key| self.streams.get_mut(key)).filter(|stream| stream.failure.is_none());
        let Some(stream) = stream else {
            data.key = None;
            return self.give_back(content.len());
        };
        if let Some(left) = &mut stream.length_left {
            let Some(less) = left.checked_sub(content.len() as u64) else {
                self.give_back(content.len());
                if let Some(key) = data.key.take() {
                    self.fail_request(key, Fault::ContentLength, "more data than content-length says");
                }
                return;
            };
            *left = less;
        }
        stream.put_data(content);
        stream.wake();
    }

    fn end_data(&mut self, data: Data) {
        match data.key {
            Some(key) if data.ends => self.end_request(key),
            Some(key) => self.settle_window(key, 0),
            None => {}
        }
    }

    fn end_request(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        if stream.length_left.is_some_and(|left| left > 0) {
            return self.fail_request(key, Fault::ContentLength, "less data than content-length says");
        }
        stream.has_ended = true;
        stream.wake();
        self.settle_window(key, 0);
    }

    /// Ends a stream whose request turns out to be malformed, and keeps why for the task that serves it.
    fn fail_request(&mut self, key: StreamKey, fault: Fault, what: &'static str) {
        if let Some(stream) = self.streams.get_mut(key) {
            stream.meaning.fault = Some(fault);
        }
        self.fail_stream(key.id, Reason::Protocol, what);
    }
}

/// How long the padding of HEADERS is, what their stream depends on, and what is behind that.
fn parts(head: FrameHead, payload: &[u8]) -> Option<(usize, Option<u32>, &[u8])> {
    let (mut padding, mut parent, mut rest) = (0, None, payload);
    if head.has(flag::PADDED) {
        let (first, more) = rest.split_first()?;
        (padding, rest) = (usize::from(*first), more);
    }
    if head.has(flag::PRIORITY) {
        let ([a, b, c, d, _], more) = rest.split_first_chunk()?;
        (parent, rest) = (Some(u32::from_be_bytes([*a, *b, *c, *d]) & MAX_STREAM), more);
    }
    Some((padding, parent, rest))
}
