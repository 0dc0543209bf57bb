//! Frames of WebSocket (RFC 6455, 5.2) by their heads alone: where each begins, and how long it is. Their payload is
//! neither looked at nor unmasked, so that it may be compressed or be of any extension.

/// Bytes of the longest head, without the mask.
const MAX_HEAD: usize = 10;

/// The close frame's code for who may come again.
pub const TRY_AGAIN_LATER: u16 = 1013;
/// For an endpoint that has gone.
pub const GOING_AWAY: u16 = 1001;
/// For who breaks the protocol.
pub const PROTOCOL_ERROR: u16 = 1002;
/// For a message that is too long.
pub const TOO_BIG: u16 = 1009;

const MASKED: u8 = 0x80;
const CLOSE: u8 = 0x88;

/// A frame, as its head describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Whether it is its message's last one.
    pub is_final: bool,
    /// 0 goes on with a message, 1 to 7 begin one, 8 to 15 are control frames.
    pub opcode: u8,
    /// Bytes that it carries.
    pub length: u64,
}

/// The outcome of one step of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// So many bytes belong to the frame that is open.
    Inside(usize),
    /// All bytes are the beginning of a head that is not complete.
    Partial,
    /// A frame begins; so many of the bytes are of its head, whose first ones may have come before.
    Frame(usize, Frame),
    /// A length that no frame can have.
    Malformed,
}

/// Reads one direction of a connection as it comes.
#[derive(Clone, Debug, Default)]
pub struct Frames {
    head: [u8; MAX_HEAD],
    /// How much of the head is here; a complete one stays until the next begins.
    known: usize,
    is_complete: bool,
    /// Bytes of the open frame that are still to come, the mask among them.
    left: u64,
}

impl Frames {
    /// Reads on in `bytes`, which are not empty and have not been read.
    pub fn step(&mut self, bytes: &[u8]) -> Step {
        if self.left > 0 {
            let size = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
            self.left -= size as u64;
            return Step::Inside(size);
        }
        if self.is_complete {
            (self.known, self.is_complete) = (0, false);
        }
        let before = self.known;
        for byte in bytes {
            if let Some(place) = self.head.get_mut(self.known) {
                *place = *byte;
                self.known += 1;
            }
            if self.known == self.needed() {
                self.is_complete = true;
                return self.open().map_or(Step::Malformed, |frame| Step::Frame(self.known - before, frame));
            }
        }
        Step::Partial
    }

    /// Reads all of these bytes, and tells whether they can be frames.
    pub fn follow(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let size = match self.step(bytes) {
                Step::Inside(size) | Step::Frame(size, _) => size,
                Step::Partial => bytes.len(),
                Step::Malformed => return false,
            };
            bytes = bytes.get(size..).unwrap_or_default();
        }
        true
    }

    /// The beginning of a head that is not complete.
    pub fn partial(&self) -> &[u8] {
        if self.is_complete { &[] } else { self.head.get(..self.known).unwrap_or_default() }
    }

    /// The first bytes of the head that was read last.
    pub fn head(&self, size: usize) -> &[u8] {
        self.head.get(..size).unwrap_or_default()
    }

    /// Whether no frame is open.
    pub fn is_between(&self) -> bool {
        self.left == 0
    }

    /// How long the head is, as far as can be told.
    fn needed(&self) -> usize {
        match (self.known, self.head[1] & !MASKED) {
            (2.., 126) => 4,
            (2.., 127) => MAX_HEAD,
            _ => 2,
        }
    }

    fn open(&mut self) -> Option<Frame> {
        let long = |bytes: &[u8]| bytes.iter().fold(0, |length, byte| length << 8 | u64::from(*byte));
        let length = match self.head[1] & !MASKED {
            126 => long(&self.head[2..4]),
            127 => long(&self.head[2..MAX_HEAD]),
            short => u64::from(short),
        };
        if length >> 63 != 0 {
            return None;
        }
        self.left = length + if self.head[1] & MASKED == 0 { 0 } else { 4 };
        Some(Frame { is_final: self.head[0] & 0x80 != 0, opcode: self.head[0] & 0x0f, length })
    }
}

/// A close frame as a server sends it.
pub fn close(code: u16) -> [u8; 4] {
    let [high, low] = code.to_be_bytes();
    [CLOSE, 2, high, low]
}

/// A close frame as a client sends it.
pub fn masked_close(code: u16, mask: [u8; 4]) -> [u8; 8] {
    let [high, low] = code.to_be_bytes();
    let [first, second, third, fourth] = mask;
    [CLOSE, MASKED | 2, first, second, third, fourth, high ^ first, low ^ second]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every frame of a whole stream with the place where it begins, as the RFC has it: one after the other.
    fn naive(mut bytes: &[u8]) -> Vec<(usize, Frame)> {
        let whole = bytes.len();
        let mut frames = Vec::new();
        while let [first, second, rest @ ..] = bytes {
            let (length, rest) = match second & 0x7f {
                126 => (u64::from(u16::from_be_bytes(rest[..2].try_into().unwrap())), &rest[2..]),
                127 => (u64::from_be_bytes(rest[..8].try_into().unwrap()), &rest[8..]),
                short => (u64::from(short), rest),
            };
            frames.push((whole - bytes.len(), Frame { is_final: first >> 7 == 1, opcode: first & 15, length }));
            let mask = if second >> 7 == 1 { 4 } else { 0 };
            bytes = &rest[mask + usize::try_from(length).unwrap()..];
        }
        frames
    }

    /// Reads a stream that comes in these pieces: its frames, and its bytes as they were told, put together again.
    fn read(pieces: &[&[u8]]) -> (Vec<(usize, Frame)>, Vec<u8>) {
        let (mut reader, mut found, mut told) = (Frames::default(), Vec::new(), Vec::new());
        let mut came = 0;
        for piece in pieces {
            let mut at = 0;
            while at < piece.len() {
                let held = reader.partial().len();
                match reader.step(&piece[at..]) {
                    Step::Inside(size) => {
                        told.extend_from_slice(&piece[at..at + size]);
                        at += size;
                    }
                    Step::Partial => at = piece.len(),
                    Step::Frame(size, frame) => {
                        found.push((came + at - held, frame));
                        told.extend_from_slice(reader.head(held));
                        told.extend_from_slice(&piece[at..at + size]);
                        at += size;
                    }
                    Step::Malformed => panic!("malformed"),
                }
            }
            came += piece.len();
        }
        assert!(reader.is_between() && reader.partial().is_empty());
        (found, told)
    }

    fn frame(first: u8, masked: bool, form: u8, size: usize) -> Vec<u8> {
        let mask = if masked { 0x80 } else { 0 };
        let mut bytes = vec![first];
        match (form, size) {
            (0, 0..=125) => bytes.push(mask | size as u8),
            (0 | 1, 0..=65_535) => {
                bytes.push(mask | 0x7e);
                bytes.extend((size as u16).to_be_bytes());
            }
            _ => {
                bytes.push(mask | 0x7f);
                bytes.extend((size as u64).to_be_bytes());
            }
        }
        bytes.extend(std::iter::repeat_n(0x81, size + if masked { 4 } else { 0 }));
        bytes
    }

    proptest! {
        #[test]
        fn the_same_frames_wherever_a_stream_is_cut(
            frames in prop::collection::vec((any::<u8>(), any::<bool>(), 0..3u8, 0..300usize), 1..6),
            pieces in prop::collection::vec(1..40usize, 0..60),
        ) {
            let bytes: Vec<u8> =
                frames.iter().flat_map(|(first, masked, form, size)| frame(*first, *masked, *form, *size)).collect();
            let expected = (naive(&bytes), bytes.clone());
            prop_assert_eq!(expected.0.len(), frames.len());
            for cut in 0..=bytes.len() {
                prop_assert_eq!(read(&[&bytes[..cut], &bytes[cut..]]), expected.clone());
            }
            let singles: Vec<&[u8]> = bytes.chunks(1).collect();
            prop_assert_eq!(read(&singles), expected.clone());
            let mut rest = bytes.as_slice();
            let mut many: Vec<&[u8]> = pieces.iter().map(|size| {
                let (now, later) = rest.split_at((*size).min(rest.len()));
                rest = later;
                now
            }).collect();
            many.push(rest);
            prop_assert_eq!(read(&many), expected);
        }
    }

    #[test]
    fn a_length_of_more_than_63_bits_is_refused_and_the_longest_one_taken() {
        let mut long = vec![0x82, 0xff];
        long.extend([0xff; 8]);
        assert_eq!(Frames::default().step(&long), Step::Malformed);
        long[2] = 0x7f;
        let frame = Frame { is_final: true, opcode: 2, length: u64::MAX >> 1 };
        let mut reader = Frames::default();
        assert_eq!(reader.step(&long), Step::Frame(10, frame));
        assert_eq!((reader.step(&[0; 9]), reader.is_between()), (Step::Inside(9), false));
    }

    #[test]
    fn close_frames_are_as_each_side_may_send_them() {
        assert_eq!(close(1013), [0x88, 0x02, 0x03, 0xf5]);
        assert_eq!(masked_close(1001, [0xff, 0, 1, 2]), [0x88, 0x82, 0xff, 0, 1, 2, 0x03 ^ 0xff, 0xe9]);
    }
}
