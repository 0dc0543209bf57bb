//! Properties that hold for every input to `http2`, as far as they can be seen from outside. The fuzz target of `fuzz/`
//! looks for one that breaks it; `cargo test` tries the committed corpus.
//!
//! An input is four bytes that say how to read and serve, then what comes behind the preface.

use std::collections::BTreeMap;

use crate::http2::{Coming, Connection, Failed, Limits, PREFACE, Reason, ResponseHead, Sending, StreamKey};
use crate::time::Tick;

const LIMITS: Limits = Limits { max_streams: 8, max_header_list: 4_096, is_of_many: false };
const HEAD: usize = 9;
const MAX_PAYLOAD: u16 = 16_384;
/// The window that our first frames allow in all (4 MiB); half of it is given back at once.
const WINDOW: i64 = 4 * 1024 * 1024;
/// The bytes that may wait to be written: data, and answers to what came in one piece.
const MOST_OUT: usize = 1024 * 1024;

/// One conversation: it never panics, fails alike however it is cut, and what is written is frames that a client can
/// read. Once all is read and every stream is let go, the client may send again.
pub fn conversation(data: &[u8]) {
    let Some(([options, pieces @ ..], bytes)) = data.split_first_chunk::<4>() else { return };
    let pieces = pieces.map(|size| usize::from(size) + 1);
    let whole = unserved(bytes, &[usize::MAX]);
    assert_eq!(unserved(bytes, &pieces), whole);
    assert_eq!(unserved(bytes, &[1]), whole);
    Served::new(*options).run(bytes, &pieces);
}

fn begun() -> Connection {
    let mut connection = Connection::new(LIMITS, Tick::ZERO);
    connection.feed(PREFACE);
    connection
}

/// The result if nobody answers: the output, the heads and what is to read of each stream, and why it failed.
fn unserved(bytes: &[u8], pieces: &[usize]) -> (Vec<u8>, Vec<u8>, Option<Failed>) {
    let mut connection = begun();
    feed(bytes, pieces, |piece| connection.feed(piece));
    let mut heard = Vec::new();
    while let Some(key) = connection.next_incoming() {
        heard.extend_from_slice(connection.head(key));
        match connection.coming(key) {
            Coming::Data(data) => heard.extend_from_slice(data),
            Coming::End(lines) => heard.extend_from_slice(lines),
            Coming::Nothing => heard.push(b'-'),
            Coming::Failed => heard.push(b'!'),
        }
    }
    (connection.unwritten().to_vec(), heard, connection.failed())
}

fn feed(mut bytes: &[u8], pieces: &[usize], mut take: impl FnMut(&[u8])) {
    let mut sizes = pieces.iter().cycle();
    while !bytes.is_empty() {
        let size = sizes.next().copied().unwrap_or(1).min(bytes.len());
        let (piece, rest) = bytes.split_at(size);
        take(piece);
        bytes = rest;
    }
}

/// A connection whose requests are answered, and what was written.
struct Served {
    connection: Connection,
    /// Streams, and whether their response has begun.
    held: Vec<(StreamKey, bool)>,
    /// Bits that say what is done next.
    choice: u32,
    out: Vec<u8>,
    /// Streams by number: whether their response has ended, and whether they were reset.
    written: BTreeMap<u32, (bool, bool)>,
    granted: i64,
}

impl Served {
    fn new(options: u8) -> Self {
        let choice = u32::from(options).wrapping_mul(0x9E37_79B1) | 1;
        let (held, out) = (Vec::new(), Vec::new());
        Self { connection: begun(), held, choice, out, written: BTreeMap::new(), granted: 65_535 }
    }

    fn choose(&mut self, of: usize) -> usize {
        self.choice = self.choice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        usize::try_from(self.choice >> 8).unwrap_or(0) % of
    }

    fn run(&mut self, bytes: &[u8], pieces: &[usize]) {
        feed(bytes, pieces, |piece| {
            self.connection.feed(piece);
            while let Some(key) = self.connection.next_incoming() {
                self.held.push((key, false));
            }
            self.serve();
            let some = self.choose(200);
            self.write(if some > 150 { usize::MAX } else { some });
        });
        for (key, _) in std::mem::take(&mut self.held) {
            self.connection.release(key, Reason::Internal);
        }
        self.write(usize::MAX);
        assert!(self.out.is_empty(), "a frame that is cut");
        if self.connection.failed().is_none() {
            let left = self.granted - data_of(bytes);
            // But for what is still to come of a last frame that is cut.
            assert!(left > WINDOW / 2 - i64::from(MAX_PAYLOAD) && left <= WINDOW, "{left}");
        }
    }

    fn serve(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let at = self.choose(self.held.len());
        let (key, has_begun) = self.held[at];
        let unread = if let Coming::Data(data) = self.connection.coming(key) { data.len() } else { 0 };
        match self.choose(6) {
            0 => self.connection.consume(key, unread),
            1 => self.connection.consume(key, unread / 2),
            2 if !has_begun && !self.connection.has_failed(key) => {
                let bytes = b"HTTP/1.1 200 OK\r\nx-a: 1\r\n\r\n";
                if let Ok(head) = ResponseHead::read(bytes) {
                    self.connection.respond(key, 200, &head, false);
                    self.held[at].1 = true;
                }
            }
            3 if has_begun && self.connection.is_flushed(key) => {
                let (first, second) = (self.choose(100), self.choose(40_000));
                let end = [Sending::More, Sending::End, Sending::Trailers(b"x-t: 1\r\n\r\n")][self.choose(3)];
                self.connection.send(key, &vec![1; first], &vec![2; second], end);
            }
            4 if has_begun => self.connection.finish(key),
            5 => {
                self.connection.release(key, Reason::Cancel);
                self.held.swap_remove(at);
            }
            _ => {}
        }
    }

    /// Takes what was written as a client does.
    fn write(&mut self, most: usize) {
        let mut left = most;
        while left > 0 && !self.connection.unwritten().is_empty() {
            assert!(self.connection.unwritten().len() < MOST_OUT);
            let size = self.connection.unwritten().len().min(left);
            self.out.extend_from_slice(&self.connection.unwritten()[..size]);
            self.connection.advance(size);
            left -= size;
        }
        while let Some((head, rest)) = self.out.split_first_chunk::<HEAD>() {
            let length = length_of(head);
            assert!(length <= usize::from(MAX_PAYLOAD));
            let Some(payload) = rest.get(..length) else { break };
            let (kind, flags) = (head[3], head[4]);
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            let number = payload.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
            match kind {
                0 | 1 => {
                    let (has_ended, was_reset) = self.written.entry(stream).or_default();
                    assert!(!*has_ended && !*was_reset, "frames behind the end");
                    *has_ended = flags & 1 != 0;
                }
                3 => self.written.entry(stream).or_default().1 = true,
                8 if stream == 0 => {
                    assert!(number > 0);
                    self.granted += i64::from(number);
                }
                4 | 6 | 7 | 8 => {}
                other => panic!("a frame of type {other}"),
            }
            self.out.drain(..HEAD + length);
        }
    }
}

fn length_of(head: &[u8; HEAD]) -> usize {
    usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2])
}

/// The window that the frames of data that have begun to come take.
fn data_of(mut bytes: &[u8]) -> i64 {
    let mut sum = 0;
    while let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() {
        let length = length_of(head);
        sum += if head[3] == 0 { i64::try_from(length).unwrap_or(0) } else { 0 };
        bytes = rest.get(length..).unwrap_or_default();
    }
    sum
}
