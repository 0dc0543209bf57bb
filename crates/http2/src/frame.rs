//! Frames (RFC 9113, 4 and 6): their heads, and those that we write.

use std::fmt;

/// Length of a frame's head, in bytes.
pub(super) const HEAD: usize = 9;
/// The largest payload, ours and the peer's, in bytes: what both must take without having said so (RFC 9113, 4.2).
pub(super) const MAX_PAYLOAD: usize = 16_384;
/// The largest window (RFC 9113, 6.9.1).
pub(super) const MAX_WINDOW: i64 = 0x7FFF_FFFF;
/// The largest number of a stream, and what a first GOAWAY names.
pub(super) const MAX_STREAM: u32 = 0x7FFF_FFFF;

/// Types of frames.
pub(super) mod kind {
    pub(in super::super) const DATA: u8 = 0;
    pub(in super::super) const HEADERS: u8 = 1;
    pub(in super::super) const PRIORITY: u8 = 2;
    pub(in super::super) const RST_STREAM: u8 = 3;
    pub(in super::super) const SETTINGS: u8 = 4;
    pub(in super::super) const PUSH_PROMISE: u8 = 5;
    pub(in super::super) const PING: u8 = 6;
    pub(in super::super) const GOAWAY: u8 = 7;
    pub(in super::super) const WINDOW_UPDATE: u8 = 8;
    pub(in super::super) const CONTINUATION: u8 = 9;
}

/// Flags of frames.
pub(super) mod flag {
    pub(in super::super) const END_STREAM: u8 = 0x1;
    pub(in super::super) const ACK: u8 = 0x1;
    pub(in super::super) const END_HEADERS: u8 = 0x4;
    pub(in super::super) const PADDED: u8 = 0x8;
    pub(in super::super) const PRIORITY: u8 = 0x20;
}

/// Why a stream or a connection ends (RFC 9113, 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reason {
    /// For no error.
    NoError = 0,
    /// The peer has broken a rule that has no name of its own.
    Protocol = 1,
    /// Something of ours failed.
    Internal = 2,
    /// The peer has sent more than there was a window for, or has opened one too far.
    FlowControl = 3,
    /// A frame on a stream that has ended.
    StreamClosed = 5,
    /// A frame of a length that it cannot have.
    FrameSize = 6,
    /// Nobody has looked at the request: it may be sent again.
    RefusedStream = 7,
    /// The stream is of no use any more.
    Cancel = 8,
    /// Fields that cannot be decoded.
    Compression = 9,
    /// The peer makes work for its own sake.
    EnhanceYourCalm = 11,
}

impl Reason {
    /// In a word or two for metrics and logs: lower case, joined with `-`.
    pub fn word(self) -> &'static str {
        match self {
            Self::NoError => "no-error",
            Self::Protocol => "protocol-error",
            Self::Internal => "internal-error",
            Self::FlowControl => "flow-control-error",
            Self::StreamClosed => "stream-closed",
            Self::FrameSize => "frame-size-error",
            Self::RefusedStream => "refused-stream",
            Self::Cancel => "cancel",
            Self::Compression => "compression-error",
            Self::EnhanceYourCalm => "enhance-your-calm",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHead {
    /// Bytes that follow.
    pub(super) length: usize,
    pub(super) kind: u8,
    pub(super) flags: u8,
    /// Without the reserved bit, which is ignored.
    pub(super) stream: u32,
}

impl FrameHead {
    pub(super) fn read(bytes: [u8; HEAD]) -> Self {
        let [high, middle, low, kind, flags, stream @ ..] = bytes;
        Self {
            length: usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low),
            kind,
            flags,
            stream: u32::from_be_bytes(stream) & MAX_STREAM,
        }
    }

    pub(super) fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    fn bytes(self) -> [u8; HEAD] {
        // At most 2^24 - 1: nothing that is written is longer than `MAX_PAYLOAD`.
        let [_, length @ ..] = u32::try_from(self.length).unwrap_or(0).to_be_bytes();
        let mut bytes = [0; HEAD];
        bytes[..3].copy_from_slice(&length);
        bytes[3..5].copy_from_slice(&[self.kind, self.flags]);
        bytes[5..].copy_from_slice(&self.stream.to_be_bytes());
        bytes
    }
}

/// Writes the head of a frame.
pub(super) fn put_head(out: &mut Vec<u8>, length: usize, kind: u8, flags: u8, stream: u32) {
    out.extend_from_slice(&FrameHead { length, kind, flags, stream }.bytes());
}

/// Writes a head over the place that was kept for it at `at`.
pub(super) fn put_head_at(out: &mut [u8], at: usize, length: usize, kind: u8, flags: u8, stream: u32) {
    if let Some(place) = out.get_mut(at..at + HEAD) {
        place.copy_from_slice(&FrameHead { length, kind, flags, stream }.bytes());
    }
}

/// Writes `RST_STREAM`.
pub(super) fn put_reset(out: &mut Vec<u8>, stream: u32, reason: Reason) {
    put_head(out, 4, kind::RST_STREAM, 0, stream);
    out.extend_from_slice(&(reason as u32).to_be_bytes());
}

/// Writes `WINDOW_UPDATE`; `stream` 0 is the connection.
pub(super) fn put_window_update(out: &mut Vec<u8>, stream: u32, by: u32) {
    put_head(out, 4, kind::WINDOW_UPDATE, 0, stream);
    out.extend_from_slice(&by.to_be_bytes());
}

/// Writes PING, or the answer to one.
pub(super) fn put_ping(out: &mut Vec<u8>, flags: u8, payload: &[u8]) {
    put_head(out, payload.len(), kind::PING, flags, 0);
    out.extend_from_slice(payload);
}

/// Writes GOAWAY: no stream above `last` will be looked at.
pub(super) fn put_goaway(out: &mut Vec<u8>, last: u32, reason: Reason) {
    put_head(out, 8, kind::GOAWAY, 0, 0);
    out.extend_from_slice(&last.to_be_bytes());
    out.extend_from_slice(&(reason as u32).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_nine_bytes_and_its_reserved_bit_is_ignored() {
        let head = FrameHead::read([0x01, 0x02, 0x03, 4, 5, 0xFF, 0xFF, 0xFF, 0xFE]);
        assert_eq!(head, FrameHead { length: 0x01_02_03, kind: 4, flags: 5, stream: 0x7FFF_FFFE });
        assert_eq!(head.bytes(), [0x01, 0x02, 0x03, 4, 5, 0x7F, 0xFF, 0xFF, 0xFE]);
        assert!(head.has(flag::END_HEADERS) && head.has(flag::ACK) && !head.has(flag::PADDED));
    }

    #[test]
    fn what_we_write_is_what_the_rfc_draws() {
        let mut out = Vec::new();
        put_reset(&mut out, 3, Reason::Cancel);
        put_window_update(&mut out, 0, 0x7FFF_FFFF);
        put_ping(&mut out, flag::ACK, b"12345678");
        put_goaway(&mut out, 5, Reason::EnhanceYourCalm);
        let expected: &[&[u8]] = &[
            &[0, 0, 4, 3, 0, 0, 0, 0, 3, 0, 0, 0, 8],
            &[0, 0, 4, 8, 0, 0, 0, 0, 0, 0x7F, 0xFF, 0xFF, 0xFF],
            &[0, 0, 8, 6, 1, 0, 0, 0, 0],
            b"12345678",
            &[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 11],
        ];
        assert_eq!(out, expected.concat());
    }

    #[test]
    fn every_reason_has_its_own_word() {
        let all = [
            Reason::NoError,
            Reason::Protocol,
            Reason::Internal,
            Reason::FlowControl,
            Reason::StreamClosed,
            Reason::FrameSize,
            Reason::RefusedStream,
            Reason::Cancel,
            Reason::Compression,
            Reason::EnhanceYourCalm,
        ];
        let words: std::collections::BTreeSet<_> = all.iter().map(ToString::to_string).collect();
        assert_eq!(words.len(), all.len());
    }
}
