//! A client that writes frames byte by byte and keeps no rule but those that it is told to keep.

use std::collections::BTreeMap;
use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::connections::connect_from;
use crate::support::PATIENCE;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RESET: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW: u8 = 8;
pub const CONTINUATION: u8 = 9;

/// Also ACK, of SETTINGS and PING.
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;
pub const PADDED: u8 = 8;
pub const WHOLE: u8 = END_STREAM | END_HEADERS;

pub const NO_ERROR: u32 = 0;
pub const PROTOCOL_ERROR: u32 = 1;
pub const FLOW_CONTROL_ERROR: u32 = 3;
pub const STREAM_CLOSED: u32 = 5;
pub const FRAME_SIZE_ERROR: u32 = 6;
pub const REFUSED_STREAM: u32 = 7;
pub const CANCEL: u32 = 8;
pub const COMPRESSION_ERROR: u32 = 9;
pub const ENHANCE_YOUR_CALM: u32 = 11;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Fields as they are sent.
pub type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// One frame (RFC 9113, 4.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    /// The code that `RST_STREAM` and `GOAWAY` carry.
    pub fn code(&self) -> u32 {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().unwrap())
    }
}

/// How a stream ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With `END_STREAM`: the status, and the body.
    Answered(u16, Vec<u8>),
    /// By `RST_STREAM`, perhaps in the middle of an answer: its code.
    Reset(u32),
    /// By the connection's GOAWAY: its code.
    GoneAway(u32),
    /// By the connection's end, without a word.
    Closed,
}

/// A connection.
pub struct Raw {
    reader: BufReader<TcpStream>,
    /// Whether windows are opened again for data that came.
    pub credits: bool,
    /// Whether PING is answered.
    pub pongs: bool,
    /// Everything that came but acknowledgements.
    pub seen: Vec<Frame>,
    next: u32,
    is_ponged: bool,
    /// Bytes of data that [`upload`](Self::upload) has sent, by stream.
    uploaded: BTreeMap<u32, u32>,
}

impl Raw {
    /// A connection whose settings are exchanged. It wants no table for the compression of fields.
    pub fn open(address: SocketAddr) -> Self {
        Self::with_settings(address, &[])
    }

    pub fn with_settings(address: SocketAddr, settings: &[(u16, u32)]) -> Self {
        Self::begin(TcpStream::connect(address).unwrap(), settings)
    }

    /// The same from an address of this machine.
    pub fn open_from(source: &str, address: SocketAddr) -> Self {
        Self::begin(connect_from(source, address), &[])
    }

    fn begin(stream: TcpStream, settings: &[(u16, u32)]) -> Self {
        let mut raw = Self::over(stream);
        raw.send_bytes(PREFACE);
        let mut all = vec![(1, 0)];
        all.extend_from_slice(settings);
        raw.settings(&all);
        raw.wait(|frame| frame.kind == SETTINGS && frame.flags == 0);
        raw
    }

    /// A connection on which nothing was said.
    pub fn silent(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).unwrap())
    }

    fn over(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self {
            reader: BufReader::with_capacity(64 << 10, stream),
            credits: true,
            pongs: true,
            seen: Vec::new(),
            next: 1,
            is_ponged: false,
            uploaded: BTreeMap::new(),
        }
    }

    pub fn stream(&self) -> &TcpStream {
        self.reader.get_ref()
    }

    /// Whether all of it could be written.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> bool {
        self.reader.get_ref().write_all(bytes).is_ok()
    }

    pub fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> bool {
        self.send_bytes(&frame(kind, flags, stream, payload))
    }

    pub fn settings(&mut self, settings: &[(u16, u32)]) -> bool {
        let payload: Vec<u8> =
            settings.iter().flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()).collect();
        self.send(SETTINGS, 0, 0, &payload)
    }

    pub fn window(&mut self, stream: u32, more: u32) -> bool {
        self.send(WINDOW, 0, stream, &more.to_be_bytes())
    }

    pub fn reset(&mut self, stream: u32, code: u32) -> bool {
        self.send(RESET, 0, stream, &code.to_be_bytes())
    }

    /// How much data may be sent on a stream, as far as is known, if all that was sent went by [`upload`](Self::upload).
    pub fn may_send(&self, stream: u32) -> u32 {
        let first = self.seen.iter().find(|frame| frame.kind == SETTINGS).and_then(|frame| {
            let mut entries = frame.payload.chunks(6);
            entries.find(|entry| entry[..2] == [0, 4]).map(|entry| u32::from_be_bytes(entry[2..].try_into().unwrap()))
        });
        let given = |of: u32| {
            let updates = self.seen.iter().filter(|frame| frame.kind == WINDOW && frame.stream == of);
            updates.map(Frame::code).sum::<u32>()
        };
        let of_stream = first.unwrap_or(65_535) + given(stream) - self.uploaded.get(&stream).unwrap_or(&0);
        of_stream.min(65_535 + given(0) - self.uploaded.values().sum::<u32>())
    }

    /// Sends data once the windows have room for it.
    pub fn upload(&mut self, flags: u8, stream: u32, bytes: &[u8]) {
        let size = u32::try_from(bytes.len()).unwrap();
        while self.may_send(stream) < size {
            assert!(self.read().is_some(), "the connection has ended; seen {}", self.story());
        }
        *self.uploaded.entry(stream).or_default() += size;
        self.send(DATA, flags, stream, bytes);
    }

    /// A new stream's number.
    pub fn stream_id(&mut self) -> u32 {
        self.next += 2;
        self.next - 2
    }

    /// Sends HEADERS on a new stream, whose number it gives.
    pub fn headers(&mut self, flags: u8, fields: &Fields) -> u32 {
        let id = self.stream_id();
        self.send(HEADERS, flags, id, &block(fields));
        id
    }

    /// Sends a whole GET.
    pub fn get(&mut self, path: &str) -> u32 {
        self.headers(WHOLE, &request("GET", path))
    }

    /// Sends a GET and gives the status and the body that answer it.
    pub fn ask(&mut self, path: &str) -> (u16, String) {
        let id = self.get(path);
        match self.ending(id) {
            Ending::Answered(status, body) => (status, String::from_utf8_lossy(&body).into_owned()),
            other => panic!("{path} ends in {other:?}"),
        }
    }

    /// The next frame that is no acknowledgement; `None` at the connection's end.
    pub fn read(&mut self) -> Option<Frame> {
        loop {
            match self.try_read() {
                Ok(Some(frame)) => return Some(frame),
                Ok(None) => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    panic!("nothing comes; seen {}", self.story())
                }
                Err(_) => return None,
            }
        }
    }

    /// `None` for the answer to a PING.
    fn try_read(&mut self) -> io::Result<Option<Frame>> {
        loop {
            let frame = self.event()?;
            match (frame.kind, frame.flags & END_STREAM) {
                (PING, END_STREAM) => return Ok(None),
                (SETTINGS, END_STREAM) => {}
                _ => return Ok(Some(frame)),
            }
        }
    }

    /// The next frame, an acknowledgement too.
    pub fn event(&mut self) -> io::Result<Frame> {
        let mut head = [0; 9];
        self.reader.read_exact(&mut head)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let stream = u32::from_be_bytes(head[5..].try_into().unwrap()) & 0x7FFF_FFFF;
        let mut payload = vec![0; length];
        self.reader.read_exact(&mut payload)?;
        let frame = Frame { kind: head[3], flags: head[4], stream, payload };
        match (frame.kind, frame.flags & END_STREAM) {
            (PING, END_STREAM) => {
                self.is_ponged = true;
                return Ok(frame);
            }
            (SETTINGS, END_STREAM) => return Ok(frame),
            (SETTINGS, _) => drop(self.send(SETTINGS, END_STREAM, 0, &[])),
            (PING, _) if self.pongs => drop(self.send(PING, END_STREAM, 0, &frame.payload.clone())),
            (DATA, ended) if self.credits && length > 0 => {
                let more = u32::try_from(length).unwrap();
                self.window(0, more);
                if ended == 0 {
                    self.window(stream, more);
                }
            }
            _ => {}
        }
        self.seen.push(frame.clone());
        Ok(frame)
    }

    /// Reads until a frame is such, which may have come already.
    pub fn wait(&mut self, is_it: impl Fn(&Frame) -> bool) -> Frame {
        if let Some(frame) = self.seen.iter().find(|frame| is_it(frame)) {
            return frame.clone();
        }
        loop {
            match self.read() {
                Some(frame) if is_it(&frame) => return frame,
                Some(_) => {}
                None => panic!("the connection has ended; seen {}", self.story()),
            }
        }
    }

    /// Reads until the stream has ended.
    pub fn ending(&mut self, stream: u32) -> Ending {
        loop {
            let mut answered = None;
            for frame in &self.seen {
                match frame.kind {
                    RESET if frame.stream == stream && answered.is_none() => return Ending::Reset(frame.code()),
                    DATA | HEADERS if frame.stream == stream && frame.flags & END_STREAM != 0 => answered = Some(()),
                    GOAWAY if frame.code() != NO_ERROR => return Ending::GoneAway(frame.code()),
                    _ => {}
                }
            }
            if answered.is_some() {
                return Ending::Answered(self.status(stream), self.body(stream));
            }
            if self.read().is_none() {
                return Ending::Closed;
            }
        }
    }

    /// Reads to the connection's end; the code of its last GOAWAY.
    pub fn goaway(&mut self) -> Option<u32> {
        while self.read().is_some() {}
        self.seen.iter().rev().find(|frame| frame.kind == GOAWAY).map(Frame::code)
    }

    /// The same, or until an answer to a PING says that all that was sent before has been read.
    pub fn goaway_or_quiet(&mut self) -> Option<u32> {
        self.is_ponged = false;
        self.send(PING, 0, 0, b"all read");
        while !self.is_ponged && self.read_or_pong() {}
        self.seen.iter().rev().find(|frame| frame.kind == GOAWAY).map(Frame::code)
    }

    /// Whether nothing that ends a stream has come, after a turn of the connection.
    pub fn is_open(&mut self, stream: u32) -> bool {
        self.goaway_or_quiet();
        let ends = |frame: &Frame| {
            frame.kind == RESET || matches!(frame.kind, DATA | HEADERS) && frame.flags & END_STREAM != 0
        };
        !self.seen.iter().any(|frame| frame.stream == stream && ends(frame))
    }

    /// Reads a frame, an answer to a PING too; false at the connection's end.
    fn read_or_pong(&mut self) -> bool {
        match self.try_read() {
            Ok(_) => true,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                panic!("nothing comes; seen {}", self.story())
            }
            Err(_) => false,
        }
    }

    /// Whatever has come within this time.
    pub fn read_for(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while let Some(left) = until.checked_duration_since(Instant::now())
            && !left.is_zero()
        {
            self.stream().set_read_timeout(Some(left)).unwrap();
            // A frame that is cut by the end of the time would be lost: there is none in these tests.
            if self.try_read().is_err() {
                break;
            }
        }
        self.stream().set_read_timeout(Some(PATIENCE)).unwrap();
    }

    /// The final status of a stream.
    pub fn status(&self, stream: u32) -> u16 {
        let heads = self.seen.iter().filter(|frame| frame.kind == HEADERS && frame.stream == stream);
        heads.map(|frame| status_of(&frame.payload)).find(|status| *status >= 200).unwrap_or_default()
    }

    /// The bytes that have come of the body of a stream.
    pub fn body(&self, stream: u32) -> Vec<u8> {
        let data = self.seen.iter().filter(|frame| frame.kind == DATA && frame.stream == stream);
        data.flat_map(|frame| frame.payload.clone()).collect()
    }

    /// The codes of `RST_STREAM` that came on a stream.
    pub fn resets(&self, stream: u32) -> Vec<u32> {
        self.seen.iter().filter(|frame| frame.kind == RESET && frame.stream == stream).map(Frame::code).collect()
    }

    pub fn close(&self) {
        drop(self.stream().shutdown(Shutdown::Both));
    }

    fn story(&self) -> String {
        let last = self.seen.len().saturating_sub(20);
        format!("{} frames, the last {:?}", self.seen.len(), &self.seen[last..])
    }
}

/// The bytes of a frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Fields of HPACK, each a literal without indexing and without Huffman's code (RFC 7541, 6.2.2).
pub fn block(fields: &Fields) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        string(&mut block, name);
        string(&mut block, value);
    }
    block
}

fn string(block: &mut Vec<u8>, text: &[u8]) {
    integer(block, 0, 127, text.len());
    block.extend_from_slice(text);
}

/// An integer whose prefix holds numbers below `most` (RFC 7541, 5.1).
pub fn integer(block: &mut Vec<u8>, first: u8, most: usize, number: usize) {
    if number < most {
        block.push(first | u8::try_from(number).unwrap());
        return;
    }
    block.push(first | u8::try_from(most).unwrap());
    let mut rest = number - most;
    while rest >= 128 {
        block.push(u8::try_from(rest % 128).unwrap() | 128);
        rest /= 128;
    }
    block.push(u8::try_from(rest).unwrap());
}

pub fn pairs(fields: &[(&str, &str)]) -> Fields {
    fields.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec())).collect()
}

/// The fields of a request that nobody could object to.
pub fn request(method: &str, path: &str) -> Fields {
    pairs(&[(":method", method), (":scheme", "http"), (":authority", "h"), (":path", path)])
}

/// The same with more fields.
pub fn request_with(method: &str, path: &str, more: &[(&str, &str)]) -> Fields {
    [request(method, path), pairs(more)].concat()
}

/// The status that a block of fields begins with: from the static table, or three digits in Huffman's code, since the
/// dynamic table is switched off.
pub fn status_of(block: &[u8]) -> u16 {
    let start = block.iter().position(|byte| byte & 0xE0 != 0x20).unwrap_or_default();
    match block[start..] {
        [byte @ 0x88..=0x8E, ..] => [200, 204, 206, 304, 400, 404, 500][usize::from(byte - 0x88)],
        [0x08 | 0x18 | 0x48, 3, a, b, c, ..] => [a, b, c].iter().fold(0, |sum, d| sum * 10 + u16::from(d - b'0')),
        [0x08 | 0x18 | 0x48, size, ref rest @ ..] if size & 0x80 != 0 => {
            let bits: Vec<bool> = rest[..usize::from(size & 0x7F)]
                .iter()
                .flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1 == 1))
                .collect();
            let number = |range: &[bool]| range.iter().fold(0_u16, |sum, bit| sum << 1 | u16::from(*bit));
            let mut at = 0;
            let mut status = 0;
            for _ in 0..3 {
                let five = number(&bits[at..at + 5]);
                let (digit, width) = if five < 3 { (five, 5) } else { (number(&bits[at..at + 6]) - 0x19 + 3, 6) };
                status = status * 10 + digit;
                at += width;
            }
            status
        }
        // Trailers have none.
        _ => 0,
    }
}

#[test]
fn a_status_is_read_in_each_of_its_forms() {
    for (block, status) in [
        (&[0x88_u8][..], 200),
        (&[0x20, 0x8C], 400),
        (&[0x48, 3, b'4', b'2', b'9'], 429),
        // 4: 011010, 2: 00010, 9: 011111, padded by ones.
        (&[0x08, 0x83, 0b0110_1000, 0b0100_1111, 0b1111_1111], 429),
    ] {
        assert_eq!(status_of(block), status, "{block:x?}");
    }
}
