//! A head of HTTP/1.1 that we wrote ourselves, as a header block.
//!
//! It is known to be right: the codec has read what came, and its writer wrote what goes. So it is split and not checked;
//! what does not fit all the same is an error and no panic.

use std::io;

use memchr::memchr;

use super::frame::{HEAD, MAX_PAYLOAD, flag, kind, put_head_at};
use super::hpack::Encoder;
use sluicegate_http1::{Framing, Known, is_name};

/// A head that we wrote cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;

impl From<Unreadable> for io::Error {
    fn from(_: Unreadable) -> Self {
        Self::new(io::ErrorKind::InvalidData, "a head of our own cannot be read")
    }
}

/// The content of a head of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHead<'h> {
    /// The status.
    pub status: u16,
    /// Its bytes, up to the end of the empty line.
    pub length: usize,
    /// How the body is framed; [`Framing::None`] if no field says. Chunks may come beside a length, which is a field then.
    pub framing: Framing,
    /// Its field lines.
    lines: &'h [u8],
}

impl<'h> ResponseHead<'h> {
    /// Reads the head that `bytes` begin with.
    pub fn read(bytes: &'h [u8]) -> Result<Self, Unreadable> {
        let lines_at = memchr(b'\n', bytes).ok_or(Unreadable)? + 1;
        let status = match bytes.get(9..12) {
            Some([a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9']) => {
                u16::from(a - b'0') * 100 + u16::from(b - b'0') * 10 + u16::from(c - b'0')
            }
            _ => return Err(Unreadable),
        };
        let mut framing = Framing::None;
        let mut lines = FieldLines(bytes.get(lines_at..).unwrap_or_default());
        for line in &mut lines {
            let (name, value) = line?;
            match Known::of(name) {
                Known::TransferEncoding => framing = Framing::Chunked,
                Known::ContentLength if framing != Framing::Chunked => {
                    let digits = std::str::from_utf8(value).map_err(|_| Unreadable)?;
                    framing = Framing::Length(digits.parse().map_err(|_| Unreadable)?);
                }
                _ => {}
            }
        }
        if !lines.0.starts_with(b"\r\n") {
            return Err(Unreadable);
        }
        let end = bytes.len() - lines.0.len();
        Ok(Self { status, length: end + 2, framing, lines: bytes.get(lines_at..end).unwrap_or_default() })
    }

    /// The same for a response without a body, whatever its fields say of one (RFC 9112, 6.3).
    #[must_use]
    pub fn without_body(self) -> Self {
        Self { framing: Framing::None, ..self }
    }
}

/// Writes the frames of a response's head. A head with 101 is one with 200 (RFC 8441, 5), which accepts no nonce.
pub(super) fn put_response(
    out: &mut Vec<u8>,
    encoder: &mut Encoder,
    stream: u32,
    (status, head): (u16, &ResponseHead<'_>),
    ends: bool,
) {
    let is_tunnel = head.status == 101;
    out.reserve(head.lines.len() + 32);
    let at = begin_block(out);
    encoder.begin(out);
    Encoder::status(if is_tunnel { 200 } else { status }, out);
    for (name, value) in FieldLines(head.lines).flatten() {
        match Known::of(name) {
            Known::Connection
            | Known::KeepAlive
            | Known::ProxyConnection
            | Known::TransferEncoding
            | Known::Upgrade => {}
            Known::Other if is_tunnel && is_name(name, b"sec-websocket-accept") => {}
            _ => Encoder::field(name, value, out),
        }
    }
    end_block(out, at, stream, ends);
}

/// Encodes trailers, whose lines end with an empty one. It is no whole block yet: that begins when it goes out.
pub(super) fn put_trailers(block: &mut Vec<u8>, lines: &[u8]) {
    for (name, value) in FieldLines(lines).flatten() {
        Encoder::field(name, value, block);
    }
}

/// Keeps room for a frame's head; where.
pub(super) fn begin_block(out: &mut Vec<u8>) -> usize {
    let at = out.len();
    out.extend_from_slice(&[0; HEAD]);
    at
}

/// Writes the heads of HEADERS and CONTINUATION for the block that follows the room at `at`.
pub(super) fn end_block(out: &mut Vec<u8>, at: usize, stream: u32, ends: bool) {
    let last_flag = if ends { flag::END_STREAM } else { 0 };
    let length = out.len() - at - HEAD;
    if length <= MAX_PAYLOAD {
        put_head_at(out, at, length, kind::HEADERS, flag::END_HEADERS | last_flag, stream);
        return;
    }
    let block = out.split_off(at + HEAD);
    out.truncate(at);
    let count = block.len().div_ceil(MAX_PAYLOAD);
    for (number, piece) in block.chunks(MAX_PAYLOAD).enumerate() {
        let (kind, first_flag) = if number == 0 { (kind::HEADERS, last_flag) } else { (kind::CONTINUATION, 0) };
        let end_flag = if number + 1 == count { flag::END_HEADERS } else { 0 };
        let place = begin_block(out);
        out.extend_from_slice(piece);
        put_head_at(out, place, piece.len(), kind, first_flag | end_flag, stream);
    }
}

/// Field lines, up to an empty one.
struct FieldLines<'h>(&'h [u8]);

impl<'h> Iterator for FieldLines<'h> {
    type Item = Result<(&'h [u8], &'h [u8]), Unreadable>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.0;
        if rest.is_empty() || rest.starts_with(b"\r\n") {
            return None;
        }
        let Some((end, colon)) = memchr(b'\n', rest)
            .and_then(|end| Some((end, memchr(b':', rest.get(..end)?)?)))
            .filter(|(_, colon)| *colon > 0)
        else {
            self.0 = &[];
            return Some(Err(Unreadable));
        };
        self.0 = &rest[end + 1..];
        Some(Ok((&rest[..colon], rest[colon + 1..end].trim_ascii())))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::frame::FrameHead;
    use super::super::hpack::Decoder;
    use super::*;
    use sluicegate_http1::HeadWriter;

    /// Frames, each with its payload.
    fn frames(mut bytes: &[u8]) -> Vec<(FrameHead, Vec<u8>)> {
        let mut all = Vec::new();
        while let Some((head, rest)) = bytes.split_first_chunk() {
            let head = FrameHead::read(*head);
            all.push((head, rest[..head.length].to_vec()));
            bytes = &rest[head.length..];
        }
        all
    }

    fn decoded(frames: &[(FrameHead, Vec<u8>)]) -> Vec<(String, Vec<u8>)> {
        let block: Vec<u8> = frames.iter().flat_map(|(_, payload)| payload.clone()).collect();
        let mut fields = Vec::new();
        let decode =
            |name: &[u8], value: &[u8]| fields.push((String::from_utf8(name.to_vec()).unwrap(), value.to_vec()));
        Decoder::new(4096).decode(&block, decode).unwrap();
        fields
    }

    fn written(bytes: &[u8], ends: bool) -> Vec<(FrameHead, Vec<u8>)> {
        let head = ResponseHead::read(bytes).unwrap();
        let mut out = b"before".to_vec();
        put_response(&mut out, &mut Encoder::new(), 5, (head.status, &head), ends);
        frames(out.strip_prefix(b"before").unwrap())
    }

    #[test]
    fn a_response_is_its_parts_without_what_speaks_of_the_connection() {
        let bytes =
            b"HTTP/1.1 404 Not Found\r\nX-A:  1 \r\nconnection: close\r\nkeep-alive: 5\r\nproxy-connection: x\r\n\
                      upgrade: h2c\r\nx-empty:\r\nContent-Length: 12\r\n\r\nthe body";
        let head = ResponseHead::read(bytes).unwrap();
        assert_eq!((head.status, head.framing, &bytes[head.length..]), (404, Framing::Length(12), &b"the body"[..]));
        let frames = written(bytes, false);
        assert_eq!(frames.len(), 1);
        let FrameHead { kind, flags, stream, .. } = frames[0].0;
        assert_eq!((kind, flags, stream), (kind::HEADERS, flag::END_HEADERS, 5));
        let expected = [(":status", "404"), ("x-a", "1"), ("x-empty", ""), ("content-length", "12")];
        assert_eq!(decoded(&frames), expected.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec())));
        assert_eq!(written(bytes, true)[0].0.flags, flag::END_HEADERS | flag::END_STREAM);
        let chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        assert_eq!(ResponseHead::read(chunked).unwrap().framing, Framing::Chunked);
        assert_eq!(decoded(&written(chunked, false)), [(":status".to_owned(), b"200".to_vec())]);
    }

    #[test]
    fn what_switches_protocols_is_a_200_that_accepts_nothing() {
        let bytes = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
                      Sec-WebSocket-Accept: abc\r\nsec-websocket-protocol: chat\r\n\r\n";
        let expected = [(":status", "200"), ("sec-websocket-protocol", "chat")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec()));
        assert_eq!(decoded(&written(bytes, false)), expected);
    }

    #[test]
    fn a_block_that_is_too_long_for_a_frame_goes_on_in_continuations() {
        for length in [16_384 - 20, 16_384, 40_000, 100_000] {
            let value = "v".repeat(length);
            let head = format!("HTTP/1.1 200 OK\r\nx-a: {value}\r\n\r\n");
            let frames = written(head.as_bytes(), true);
            assert_eq!(frames.len(), (length + 9).div_ceil(MAX_PAYLOAD));
            let flags: Vec<(u8, u8)> = frames.iter().map(|(head, _)| (head.kind, head.flags)).collect();
            let last = flags.len() - 1;
            for (number, (kind, flags)) in flags.into_iter().enumerate() {
                let end = if number == last { flag::END_HEADERS } else { 0 };
                let expected =
                    if number == 0 { (kind::HEADERS, flag::END_STREAM | end) } else { (kind::CONTINUATION, end) };
                assert_eq!((kind, flags), expected, "{length}");
            }
            assert_eq!(decoded(&frames)[1], ("x-a".to_owned(), value.into_bytes()));
        }
    }

    #[test]
    fn what_is_no_head_is_an_error() {
        for bytes in [
            &b""[..],
            b"\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n",
            b"HTTP/1.1 2x0 OK\r\n\r\n",
            b"HTTP/1.1 020 OK\r\n\r\n",
            b"HTTP/1.1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n: no name\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        ] {
            assert_eq!(ResponseHead::read(bytes), Err(Unreadable), "{}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn trailers_are_read_up_to_their_end() {
        let mut block = Vec::new();
        put_trailers(&mut block, b"Grpc-Status: 0\r\nx-a:1\r\n\r\n");
        let mut fields = Vec::new();
        Decoder::new(4096).decode(&block, |name, value| fields.push((name.to_vec(), value.to_vec()))).unwrap();
        assert_eq!(fields, [(b"grpc-status".to_vec(), b"0".to_vec()), (b"x-a".to_vec(), b"1".to_vec())]);
    }

    proptest! {
        #[test]
        fn whatever_our_writer_writes_is_read(
            status in 200_u16..600,
            fields in proptest::collection::vec(("x-[a-zA-Z0-9-]{0,12}", "([!-~]([ -~]{0,20}[!-~])?)?"), 0..12),
        ) {
            let mut bytes = Vec::new();
            let mut head = HeadWriter::response(&mut bytes, status, b"");
            for (name, value) in &fields {
                head.field(name.as_bytes(), value.as_bytes());
            }
            head.end();
            let mut expected = vec![(":status".to_owned(), status.to_string().into_bytes())];
            expected.extend(fields.iter().map(|(name, value)| (name.to_lowercase(), value.clone().into_bytes())));
            prop_assert_eq!(decoded(&written(&bytes, true)), expected);
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = ResponseHead::read(&bytes);
            let _ = ResponseHead::read(&[b"HTTP/1.1 200 OK\r\n", &bytes[..], b"\r\n\r\n"].concat());
        }
    }
}
