//! A naive client: it reads what comes out frame by frame and counts.

use std::collections::{BTreeMap, VecDeque};

use super::*;

/// The client's view of one stream.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) content: Vec<u8>,
    pub(super) heads: usize,
    pub(super) trailers: Option<Vec<(String, String)>>,
    pub(super) ends: usize,
    pub(super) resets: Vec<u32>,
    /// The bytes of data that we may send to it.
    pub(super) window: i64,
    /// The bytes that it may send to us, less those that it was first allowed.
    pub(super) granted: i64,
}

/// A client that reads.
#[derive(Debug)]
pub(super) struct Client {
    rest: Vec<u8>,
    pub(super) streams: BTreeMap<u32, Seen>,
    /// The bytes of data that we may send in all.
    pub(super) window: i64,
    initial: i64,
    /// Windows that it has named in SETTINGS, until we say that we know.
    named: VecDeque<Option<i64>>,
    pub(super) granted: i64,
    /// Streams of the frames of data, in their order.
    pub(super) order: Vec<u32>,
    /// Whether each of them was the last of its stream.
    pub(super) lasts: Vec<bool>,
    pub(super) gone_away: Vec<(u32, u32)>,
}

impl Client {
    pub(super) fn new() -> Self {
        Self {
            rest: Vec::new(),
            streams: BTreeMap::new(),
            window: 65_535,
            initial: 65_535,
            named: VecDeque::new(),
            granted: 0,
            order: Vec::new(),
            lasts: Vec::new(),
            gone_away: Vec::new(),
        }
    }

    pub(super) fn opens(&mut self, stream: u32) {
        self.streams.insert(stream, Seen { window: self.initial, ..Seen::default() });
    }

    pub(super) fn names(&mut self, window: i64) {
        self.named.push_back(Some(window));
    }

    /// Takes bytes that came out. Panics at what no client would bear.
    pub(super) fn reads(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        while let Some(head) = self.rest.first_chunk::<HEAD>() {
            let FrameHead { length, kind, flags, stream } = FrameHead::read(*head);
            assert!(length <= 16_384);
            if self.rest.len() < HEAD + length {
                return;
            }
            let payload: Vec<u8> = self.rest.drain(..HEAD + length).skip(HEAD).collect();
            self.reads_frame(&Frame { kind, flags, stream, payload });
        }
    }

    fn reads_frame(&mut self, frame: &Frame) {
        let ends = matches!(frame.kind, kind::DATA | kind::HEADERS) && frame.flags & flag::END_STREAM != 0;
        let number = |at: usize| u32::from_be_bytes(frame.payload[at..at + 4].try_into().unwrap());
        match frame.kind {
            kind::SETTINGS if frame.flags & flag::ACK != 0 => {
                if let Some(Some(window)) = self.named.pop_front() {
                    self.streams.values_mut().for_each(|seen| seen.window += window - self.initial);
                    self.initial = window;
                }
                return;
            }
            kind::PING | kind::SETTINGS => return,
            kind::GOAWAY => return self.gone_away.push((number(0), number(4))),
            kind::WINDOW_UPDATE if frame.stream == 0 => return self.granted += i64::from(number(0)),
            _ => {}
        }
        let seen = self.streams.get_mut(&frame.stream).expect("a stream that nobody has opened");
        match frame.kind {
            kind::WINDOW_UPDATE => return seen.granted += i64::from(number(0)),
            kind::RST_STREAM => return seen.resets.push(number(0)),
            _ => {}
        }
        assert!(seen.ends == 0 && seen.resets.is_empty(), "{frame:?} behind the end");
        match frame.kind {
            kind::DATA => {
                assert!(seen.heads > 0, "data without a head");
                let size = i64::try_from(frame.payload.len()).unwrap();
                assert!(size > 0 || ends, "a frame that says nothing");
                self.window -= size;
                seen.window -= size;
                assert!(size == 0 || (self.window >= 0 && seen.window >= 0), "more than there is a window for");
                seen.content.extend_from_slice(&frame.payload);
                self.order.push(frame.stream);
                self.lasts.push(ends);
            }
            kind::HEADERS => {
                assert_ne!(frame.flags & flag::END_HEADERS, 0);
                let fields = fields(&frame.payload);
                if fields.first().is_some_and(|(name, _)| name == ":status") {
                    seen.heads += 1;
                } else {
                    assert!(ends && seen.trailers.is_none(), "trailers that are not the end");
                    seen.trailers = Some(fields);
                }
            }
            other => panic!("a frame of type {other}"),
        }
        seen.ends += usize::from(ends);
    }

    /// Reads all that there is.
    pub(super) fn reads_all(&mut self, connection: &mut Connection) {
        let bytes = written(connection);
        self.reads(&bytes);
    }
}
