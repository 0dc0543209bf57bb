//! A client's connection: what comes, frame by frame.

use std::collections::VecDeque;
use std::task::{Context, Waker};

use super::flood::{Flood, Outcomes};
use super::frame::{
    FrameHead, HEAD, MAX_PAYLOAD, MAX_STREAM, Reason, flag, kind, put_goaway, put_ping, put_reset, put_window_update,
};
use super::hpack::{Decoder, Encoder};
use super::request::RequestReader;
use super::settings;
use super::stream::{Stream, StreamFailure, StreamIdState, StreamKey, Streams};
use sluicegate_time::Tick;

/// The first bytes of a client (RFC 9113, 3.4). To a codec of HTTP/1 it begins with a head.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Room for the bodies of all streams of a connection on their way in, in bytes; `window` shares it.
pub(super) const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;
/// The most that is in sure shares of the streams of a connection; as much is for those that get more.
pub(super) const SHARES: u32 = CONNECTION_WINDOW / 2;
/// The largest sure share, where a connection has few streams.
const MAX_SHARE: u32 = 64 * 1024;
/// The window of a connection and of each stream before anybody has said another (RFC 9113, 6.9.2).
pub(super) const FIRST_WINDOW: u32 = 65_535;
/// `SETTINGS_HEADER_TABLE_SIZE`, which we leave as it is.
const HEADER_TABLE: usize = 4_096;
/// Bytes that may wait to be written before no more data is put behind them.
pub(super) const MAX_OUT: usize = 64 * 1024;
/// The same before nothing more is read. The answers to what is read come on top of data: a client that downloads as
/// fast as it can has to be heard all the same.
const MAX_OUT_IN_ALL: usize = 2 * MAX_OUT;
/// Decoded bytes of the heads and trailers of requests that are here, beyond which no more are taken: a few bytes can stand
/// for a long field over and over. A hundred and twenty-eight requests with cookies of 8 KiB each are below it, with 2 KiB
/// for what else each of them says.
pub(super) const MAX_HEADS: usize = 1280 * 1024;
/// Room for what is written that an idle connection keeps none of.
const OUT_ROOM: usize = 4 * 1024;
/// Our first GOAWAY is sent with this PING, to hear when its receipt is known.
pub(super) const LAST_PING: &[u8; 8] = b"sluice\x02\x07";

/// The limits of a client's connection.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Requests at once.
    pub max_streams: u32,
    /// Bytes of a request's fields, each with 32 more (RFC 9113, 6.5.2).
    pub max_header_list: u32,
    /// Whether the client speaks for many, as a load balancer does.
    pub is_of_many: bool,
}

/// The work that a client has made us do, as far as the bytes that it has sent do not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Frames that came.
    pub frames: usize,
    /// Bytes of the heads that were decoded.
    pub decoded: usize,
}

/// Requests that were refused unread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusedUnread {
    /// Because as many were here as the client was told.
    pub by_streams: u64,
    /// Because the heads of those that were here were too large together.
    pub by_heads: u64,
}

/// Why a connection was ended by us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The reason that the client was told.
    pub reason: Reason,
    /// The client's mistake.
    pub what: &'static str,
}

/// A client's connection without its I/O: [`feed`](Self::feed) takes what comes, [`unwritten`](Self::unwritten) is what
/// goes out.
#[derive(Debug)]
pub struct Connection {
    pub(super) limits: Limits,
    /// When it was told the time last.
    pub(super) now: Tick,
    pub(super) streams: Streams,
    pub(super) flood: Flood,
    reading: ReadState,
    /// Of a frame that did not come whole.
    rest: Vec<u8>,
    pub(super) decoder: Decoder,
    pub(super) encoder: Encoder,
    pub(super) reader: RequestReader,
    /// A header block that goes on.
    pub(super) block: Option<Block>,
    /// Decoded bytes of the heads and trailers of requests that are here.
    pub(super) heads: usize,
    /// Requests that nobody has taken yet.
    pub(super) incoming: VecDeque<StreamKey>,
    /// The bytes of data that the client may still send.
    pub(super) recv_window: i64,
    /// The bytes that were read and not yet given back to that window.
    pub(super) owed: u32,
    /// The window of a new stream's body on its way in: its sure share of that of the connection.
    pub(super) share: i64,
    /// The room that streams have beyond their shares, in all.
    pub(super) extra: i64,
    /// Whether the client knows our settings. Before, it goes by the first windows of the protocol.
    pub(super) are_settings_known: bool,
    /// The bytes of data that we may send.
    pub(super) send_window: i64,
    /// The same for a new stream.
    pub(super) stream_window: i64,
    /// Streams that wait for a window or for room, the longest first.
    pub(super) queue: VecDeque<StreamKey>,
    pub(super) out: Vec<u8>,
    written: usize,
    /// Whether some stream waits for room behind what is to be written.
    is_room_wanted: bool,
    /// Requests that were refused because there were too many.
    pub(super) refused: RefusedUnread,
    /// The work that it has made us do since it was asked last.
    pub(super) work: Work,
    waker: Option<Waker>,
    is_woken: bool,
    pub(super) going: Going,
    pub(super) has_client_gone_away: bool,
    failed: Option<Failed>,
    is_cut: bool,
}

/// The part that comes next.
#[derive(Clone, Copy, Debug)]
enum ReadState {
    /// So many bytes of the preface have come.
    Preface(usize),
    /// SETTINGS, which have to be the first frame.
    Settings,
    Frame,
    Data(Data),
}

/// A frame of data whose content is coming.
#[derive(Clone, Copy, Debug)]
pub(super) struct Data {
    /// The stream, if anybody wants it.
    pub(super) key: Option<StreamKey>,
    /// Content to come.
    pub(super) left: usize,
    /// Padding behind it; `None` before its length has come.
    pub(super) padding: Option<usize>,
    pub(super) ends: bool,
}

/// A header block that has begun.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) stream: u32,
    pub(super) ends: bool,
    pub(super) depends_on_itself: bool,
    pub(super) bytes: Vec<u8>,
}

/// How far its end has come (RFC 9113, 6.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Going {
    No,
    /// Told that it will end; what was sent before that is known still counts.
    Warned,
    /// Told which stream was the last. No higher one is looked at.
    Last,
}

impl Connection {
    /// One that has begun; our settings wait to be written.
    pub fn new(limits: Limits, now: Tick) -> Self {
        let mut out = Vec::with_capacity(OUT_ROOM);
        let share = share_of(limits.max_streams);
        settings::put(&mut out, limits.max_streams, share, limits.max_header_list);
        put_window_update(&mut out, 0, CONNECTION_WINDOW - FIRST_WINDOW);
        Self {
            limits,
            now,
            streams: Streams::default(),
            flood: Flood::new(limits.is_of_many),
            reading: ReadState::Preface(0),
            rest: Vec::new(),
            decoder: Decoder::new(HEADER_TABLE),
            encoder: Encoder::new(),
            reader: RequestReader::new(limits.max_header_list as usize),
            block: None,
            heads: 0,
            incoming: VecDeque::new(),
            recv_window: i64::from(CONNECTION_WINDOW),
            owed: 0,
            share: i64::from(share),
            extra: 0,
            are_settings_known: false,
            send_window: i64::from(FIRST_WINDOW),
            stream_window: i64::from(FIRST_WINDOW),
            queue: VecDeque::new(),
            out,
            written: 0,
            is_room_wanted: false,
            refused: RefusedUnread::default(),
            work: Work::default(),
            waker: None,
            is_woken: false,
            going: Going::No,
            has_client_gone_away: false,
            failed: None,
            is_cut: false,
        }
    }

    /// Takes note that it is `now`, for what comes from here on.
    pub fn note_time(&mut self, now: Tick) {
        self.now = now;
        self.flood.fill(now);
    }

    /// The frames that the client may still send that are neither request nor data.
    pub fn flood(&self) -> &Flood {
        &self.flood
    }

    /// Whom to wake when there is something to write: the task that polls with this context.
    pub fn wakes(&mut self, cx: &Context<'_>) {
        self.is_woken = false;
        if !self.waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            self.waker = Some(cx.waker().clone());
        }
    }

    /// Wakes the task that writes, once.
    pub(super) fn wake(&mut self) {
        if !self.is_woken {
            self.is_woken = true;
            if let Some(waker) = &self.waker {
                waker.wake_by_ref();
            }
        }
    }

    /// The next request.
    pub fn next_incoming(&mut self) -> Option<StreamKey> {
        self.incoming.pop_front()
    }

    /// The bytes that are to be written.
    pub fn unwritten(&self) -> &[u8] {
        self.out.get(self.written..).unwrap_or_default()
    }

    /// Takes note that so much of it was.
    pub fn advance(&mut self, count: usize) {
        self.written = (self.written + count).min(self.out.len());
        if self.written == self.out.len() {
            self.out.clear();
            self.written = 0;
            self.out.shrink_to(if self.streams.len() == 0 { 0 } else { MAX_OUT });
        } else if self.written > MAX_OUT {
            self.out.drain(..self.written);
            self.written = 0;
        }
        self.pump();
        if self.is_room_wanted && !self.is_clogged() {
            self.is_room_wanted = false;
            for key in self.streams.keys() {
                self.streams.get(key).into_iter().for_each(Stream::wake);
            }
        }
    }

    /// Wakes all streams when it [is clogged](Self::is_clogged) no more.
    pub fn want_room(&mut self) {
        self.is_room_wanted = true;
    }

    /// How many requests were refused since the last call because there were too many.
    pub fn take_refused(&mut self) -> RefusedUnread {
        std::mem::take(&mut self.refused)
    }

    /// Takes the work that the client has made us do since the last call.
    pub fn take_work(&mut self) -> Work {
        std::mem::take(&mut self.work)
    }

    /// How requests have ended since the last call.
    pub fn take_outcomes(&mut self) -> Outcomes {
        self.flood.take_outcomes()
    }

    /// Ends it because its client has cancelled too many requests, over other connections too.
    pub fn calm_down(&mut self) {
        self.flood.note_too_many();
        // It is we who end the requests that are under way.
        self.end_by(Reason::EnhanceYourCalm, "too many resets of one client");
    }

    /// Whether so much waits to be written that nothing is to be read.
    pub fn is_clogged(&self) -> bool {
        self.out.len() - self.written >= MAX_OUT_IN_ALL
    }

    /// Whether the client has begun to speak HTTP/2.
    pub fn has_begun(&self) -> bool {
        !matches!(self.reading, ReadState::Preface(_))
    }

    /// Whether it has nothing more to do but to be closed once all is written: its end was told and its streams are
    /// over, or it has failed.
    pub fn is_over(&self) -> bool {
        let is_told = self.going == Going::Last || self.has_client_gone_away;
        self.failed.is_some() || self.is_cut || (is_told && self.streams.len() == 0 && self.incoming.is_empty())
    }

    /// Whether it takes no more requests.
    pub fn is_ending(&self) -> bool {
        self.failed.is_some() || self.takes_no_more()
    }

    /// Why it was ended, if that was for an error.
    pub fn failed(&self) -> Option<Failed> {
        self.failed
    }

    /// Tells the client that no more requests are taken, and is over when those that are here are (RFC 9113, 6.8).
    pub fn go_away(&mut self) {
        if self.going == Going::No && self.failed.is_none() {
            self.going = Going::Warned;
            put_goaway(&mut self.out, MAX_STREAM, Reason::NoError);
            put_ping(&mut self.out, 0, LAST_PING);
            self.wake();
        }
    }

    /// Takes no more requests from now on, once it [goes away](Self::go_away): who does not answer our ping cannot hold
    /// the connection open.
    pub fn take_no_more(&mut self) {
        if self.going == Going::Warned && self.failed.is_none() {
            self.going = Going::Last;
            put_goaway(&mut self.out, self.streams.last(), Reason::NoError);
            self.wake();
        }
    }

    /// The client's end: nothing can be written to it any more, and nobody waits for the answers.
    pub fn cut(&mut self) {
        self.is_cut = true;
        let abandoned = self.fail_streams();
        self.flood.note_abandoned(abandoned);
    }

    /// Ends the connection for an error (RFC 9113, 5.4.1).
    pub fn fail(&mut self, reason: Reason, what: &'static str) {
        let abandoned = self.end_by(reason, what);
        self.flood.note_abandoned(abandoned);
    }

    /// The same; how many requests end early with it.
    fn end_by(&mut self, reason: Reason, what: &'static str) -> u32 {
        if self.failed.is_some() {
            return 0;
        }
        self.failed = Some(Failed { reason, what });
        put_goaway(&mut self.out, self.streams.last(), reason);
        let ended = self.fail_streams();
        self.wake();
        ended
    }

    /// Lets all streams fail. How many of them end early.
    fn fail_streams(&mut self) -> u32 {
        self.queue.clear();
        let keys: Vec<StreamKey> = self.streams.keys().collect();
        let mut early = 0;
        for key in keys {
            early += u32::from(self.streams.get(key).is_some_and(|stream| stream.is_early(self.now)));
            self.streams.fail(key, StreamFailure::Connection);
        }
        early
    }

    /// Takes bytes that came.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.failed.is_none() {
            let taken = match self.reading {
                ReadState::Preface(have) => self.read_preface(have, bytes),
                ReadState::Data(data) => {
                    let (taken, more) = self.read_data(data, bytes);
                    self.reading = more.map_or(ReadState::Frame, ReadState::Data);
                    taken
                }
                ReadState::Settings | ReadState::Frame if self.rest.is_empty() => self.read_frame(bytes),
                ReadState::Settings | ReadState::Frame => self.read_rest(bytes),
            };
            bytes = bytes.get(taken..).unwrap_or_default();
        }
    }

    fn read_preface(&mut self, have: usize, bytes: &[u8]) -> usize {
        let expected = &PREFACE[have..];
        let taken = expected.len().min(bytes.len());
        if expected[..taken] != bytes[..taken] {
            self.fail(Reason::Protocol, "a preface of another protocol");
        }
        self.reading = if taken == expected.len() { ReadState::Settings } else { ReadState::Preface(have + taken) };
        taken
    }

    /// Reads the frame that `bytes` begin with, or keeps them until the rest has come.
    fn read_frame(&mut self, bytes: &[u8]) -> usize {
        let Some((head, after)) = bytes.split_first_chunk::<HEAD>() else {
            self.rest.extend_from_slice(bytes);
            return bytes.len();
        };
        let head = FrameHead::read(*head);
        if self.fails_by_head(head) {
            return bytes.len();
        }
        if head.kind == kind::DATA {
            self.work.frames += 1;
            self.begin_data(head);
            return HEAD;
        }
        let Some(payload) = after.get(..head.length) else {
            self.rest.extend_from_slice(bytes);
            return bytes.len();
        };
        self.read_payload(head, payload);
        HEAD + head.length
    }

    /// Completes the frame that has begun to come.
    fn read_rest(&mut self, bytes: &[u8]) -> usize {
        // Data is not kept here, and what is too long is refused by its head.
        let length = match self.rest.first_chunk().map(|head| FrameHead::read(*head)) {
            Some(head) if head.kind != kind::DATA && head.length <= MAX_PAYLOAD => head.length,
            _ => 0,
        };
        let wanted = HEAD + length;
        let missing = wanted.saturating_sub(self.rest.len()).min(bytes.len());
        self.rest.extend_from_slice(&bytes[..missing]);
        if self.rest.len() < wanted {
            return missing;
        }
        let whole = std::mem::take(&mut self.rest);
        // A head alone may be all there is of its frame, or it is read once more with its payload.
        let taken = self.read_frame(&whole);
        debug_assert_eq!(taken, whole.len());
        missing
    }

    /// Ends the connection for a frame whose head alone is wrong.
    fn fails_by_head(&mut self, head: FrameHead) -> bool {
        if head.length > MAX_PAYLOAD {
            self.fail(Reason::FrameSize, "a frame above 16,384 bytes");
        } else if self
            .block
            .as_ref()
            .is_some_and(|block| head.kind != kind::CONTINUATION || head.stream != block.stream)
        {
            self.fail(Reason::Protocol, "another frame within a header block");
        } else if matches!(self.reading, ReadState::Settings) && (head.kind != kind::SETTINGS || head.has(flag::ACK)) {
            self.fail(Reason::Protocol, "a first frame that is not SETTINGS");
        }
        self.failed.is_some()
    }

    /// The rest of a frame of data of this stream, whose beginning has come.
    pub(super) fn rest_of_data(&self, key: StreamKey) -> usize {
        if let ReadState::Data(data) = self.reading
            && data.key == Some(key)
        {
            data.left
        } else {
            0
        }
    }

    fn read_payload(&mut self, head: FrameHead, payload: &[u8]) {
        self.reading = ReadState::Frame;
        self.work.frames += 1;
        self.flood.note(head.kind, head.flags, payload.len());
        if self.flood.spent().is_some() {
            return self.fail(Reason::EnhanceYourCalm, "too many frames that carry nothing");
        }
        match head.kind {
            kind::HEADERS => self.read_headers(head, payload),
            kind::CONTINUATION => self.read_continuation(head, payload),
            kind::PRIORITY => self.read_priority(head, payload),
            kind::RST_STREAM => self.read_reset(head, payload),
            kind::SETTINGS => self.read_settings(head, payload),
            kind::PUSH_PROMISE => self.fail(Reason::Protocol, "PUSH_PROMISE from a client"),
            kind::PING => self.read_ping(head, payload),
            kind::GOAWAY => self.read_goaway(head, payload),
            kind::WINDOW_UPDATE => self.read_window_update(head, payload),
            // Unknown types are ignored (RFC 9113, 5.5).
            _ => {}
        }
    }

    fn begin_data(&mut self, head: FrameHead) {
        let data = self.data(head);
        self.reading =
            data.filter(|data| data.left > 0 || data.padding.is_none()).map_or(ReadState::Frame, ReadState::Data);
    }

    /// Ends a stream for an error of its client (RFC 9113, 5.4.2). Where there is none to reset, the connection ends.
    ///
    /// It is charged as if the client had reset it: it could make us do nothing else (CVE-2025-8671).
    pub(super) fn fail_stream(&mut self, id: u32, reason: Reason, what: &'static str) {
        match self.streams.place(id) {
            StreamIdState::Idle => return self.fail(reason, what),
            StreamIdState::Reset => return,
            StreamIdState::Here(key) => {
                if self.streams.get(key).is_some_and(|stream| stream.failure == Some(StreamFailure::ByUs)) {
                    return;
                }
                self.streams.fail(key, StreamFailure::ByUs);
            }
            StreamIdState::Ended | StreamIdState::Forgotten => {}
        }
        self.flood.note_forced_reset();
        if self.flood.spent().is_some() {
            return self.fail(Reason::EnhanceYourCalm, "too many streams that had to be reset");
        }
        self.reset(id, reason);
    }

    /// Writes a reset, and remembers it.
    pub(super) fn reset(&mut self, id: u32, reason: Reason) {
        if self.failed.is_none() {
            put_reset(&mut self.out, id, reason);
            self.streams.remember_reset(id);
            self.wake();
        }
    }

    /// Whether a request of this number comes too late to be looked at.
    pub(super) fn takes_no_more(&self) -> bool {
        self.going == Going::Last
    }
}

/// The sure share of one of so many streams.
fn share_of(max_streams: u32) -> u32 {
    (SHARES / max_streams.max(1)).clamp(1, MAX_SHARE)
}

#[cfg(test)]
impl Connection {
    /// Room that it holds, in bytes, without the decoder's, which bounds itself.
    pub(super) fn memory(&self) -> usize {
        let block = self.block.as_ref().map_or(0, |block| block.bytes.capacity());
        let keys = self.incoming.capacity() + self.queue.capacity();
        self.streams.memory()
            + self.reader.memory()
            + self.rest.capacity()
            + block
            + keys * size_of::<StreamKey>()
            + self.out.capacity()
    }

    /// Whether all of a response has gone out.
    pub(super) fn has_ended(&self, key: StreamKey) -> bool {
        self.streams.get(key).is_some_and(|stream| stream.end == super::stream::SendEnd::Done)
    }

    /// The rest of a frame of data that is still to come and was not given back to the client.
    pub(super) fn left_of_data(&self) -> usize {
        if let ReadState::Data(data) = self.reading { data.left } else { 0 }
    }
}
