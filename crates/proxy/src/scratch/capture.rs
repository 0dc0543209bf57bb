//! The body of a request that is kept for its dead letter: its first bytes, the others counted.
//!
//! Bound: all bodies that a worker keeps at once share the room of [`RoomCharge`]; without room there, the rest is counted only.

use super::room::RoomCharge;
use sluicegate_dead_letter::{KeptBody, Reason};
use sluicegate_http1::{Body, ChunkPart, Framing};
use sluicegate_limiter::{Fingerprint, Refusal};
use sluicegate_time::Tick;

/// A body that is being kept.
#[derive(Debug)]
pub struct Capture {
    bytes: Vec<u8>,
    most: usize,
    length: u64,
    content: ContentReader,
    room: RoomCharge,
    was_posted: bool,
    /// The dead letter that waits for the rest.
    letter: Option<Letter>,
}

/// Takes the content out of a body, as it is written on.
#[derive(Debug)]
pub struct ContentReader {
    /// Takes chunks apart; `None`: the body has none.
    chunks: Option<Body>,
}

/// A dead letter that waits for a body.
#[derive(Clone, Copy, Debug)]
pub struct Letter {
    pub reason: Reason,
    pub key: Option<Fingerprint>,
    pub refusal: Option<Refusal>,
    /// When its fate was decided.
    pub at: Tick,
}

impl Capture {
    /// Nothing of it yet.
    pub fn new(most: usize, framing: Framing, room: RoomCharge) -> Self {
        let content = ContentReader::new(framing);
        Self { bytes: Vec::new(), most, length: 0, content, room, was_posted: false, letter: None }
    }

    /// Takes the next bytes, as they are written on.
    pub fn take(&mut self, bytes: &[u8]) {
        let Self { bytes: kept, most, length, content, room, .. } = self;
        content.read(bytes, |bytes| {
            let has_gap = *length > kept.len() as u64;
            *length += bytes.len() as u64;
            // Bytes behind a gap would be a body that no client has sent.
            let most = if has_gap { 0 } else { (*most - kept.len()).min(room.free()) };
            let bytes = bytes.get(..most).unwrap_or(bytes);
            kept.extend_from_slice(bytes);
            room.take(bytes.len());
        });
    }

    /// Whether more of it would not be kept.
    pub fn is_full(&self) -> bool {
        self.length > self.bytes.len() as u64 || self.bytes.len() >= self.most
    }

    /// The body for a dead letter. `is_complete`: all of it has come.
    pub fn body(&self, is_complete: bool) -> KeptBody {
        let is_whole = is_complete && self.length == self.bytes.len() as u64;
        KeptBody { bytes: self.bytes.clone(), length: self.length, is_whole }
    }

    /// Keeps no more than `most` bytes.
    pub fn limit(&mut self, most: usize) {
        let before = self.bytes.len();
        self.bytes.truncate(most);
        self.most = self.most.min(most);
        self.room.give_back(before - self.bytes.len());
    }

    /// The bytes that are kept, which are the body if all of it has come and was kept.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes that are kept.
    pub fn kept(&self) -> usize {
        self.bytes.len()
    }

    /// Keeps a dead letter until the rest has come.
    pub fn post(&mut self, letter: Letter) {
        self.was_posted = true;
        self.letter = Some(letter);
    }

    /// Whether a dead letter has waited for it.
    pub fn was_posted(&self) -> bool {
        self.was_posted
    }

    /// Whether a dead letter waits.
    pub fn has_letter(&self) -> bool {
        self.letter.is_some()
    }

    /// The dead letter that waits, which does so no longer.
    pub fn take_letter(&mut self) -> Option<Letter> {
        self.letter.take()
    }
}

impl ContentReader {
    /// Of a body with this framing, from its beginning.
    pub fn new(framing: Framing) -> Self {
        Self { chunks: (framing == Framing::Chunked).then(|| Body::new(framing, ChunkPart::Content)) }
    }

    /// Gives what the next bytes have of the content. They have been understood before.
    pub fn read(&mut self, bytes: &[u8], take: impl FnOnce(&[u8])) {
        let Some(chunks) = &mut self.chunks else { return take(bytes) };
        let mut bytes = bytes.to_vec();
        if let Ok(accepted) = chunks.accept(&mut bytes) {
            take(bytes.get(..accepted.kept).unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::client::BodyRoom;
    use crate::scratch::room::MOST_OF_WORKER;

    fn capture(most: usize, framing: Framing) -> (Capture, BodyRoom) {
        let room = BodyRoom::default();
        (Capture::new(most, framing, RoomCharge::new(&room, &BodyRoom::default())), room)
    }

    #[test]
    fn keeps_the_first_bytes_and_counts_the_others() {
        let (mut capture, room) = capture(5, Framing::Length(9));
        for piece in [&b"abc"[..], b"def", b"ghi"] {
            capture.take(piece);
        }
        assert_eq!(capture.body(true), KeptBody { bytes: b"abcde".to_vec(), length: 9, is_whole: false });
        assert_eq!(room.get(), 5);
        drop(capture);
        assert_eq!(room.get(), 0);
    }

    #[test]
    fn a_body_is_whole_if_all_of_it_came_and_is_kept() {
        let (mut capture, _) = capture(5, Framing::Length(5));
        capture.take(b"abc");
        assert!(!capture.body(false).is_whole);
        capture.take(b"de");
        assert!(capture.body(true).is_whole && capture.is_full());
    }

    #[test]
    fn a_worker_keeps_so_many_bytes_and_nothing_behind_a_gap() {
        let (mut capture, room) = capture(100, Framing::Length(9));
        room.set(MOST_OF_WORKER - 2);
        capture.take(b"abc");
        room.set(0);
        capture.take(b"def");
        assert_eq!(capture.body(true), KeptBody { bytes: b"ab".to_vec(), length: 6, is_whole: false });
    }

    proptest! {
        #[test]
        fn chunks_are_taken_apart_however_they_are_cut(
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..20), 0..6),
            step in 1_usize..30,
        ) {
            let mut wire: Vec<u8> = Vec::new();
            for piece in &pieces {
                wire.extend(format!("{:x}\r\n", piece.len()).bytes());
                wire.extend_from_slice(piece);
                wire.extend_from_slice(b"\r\n");
            }
            wire.extend_from_slice(b"0\r\n\r\n");
            let (mut capture, _) = capture(1_000, Framing::Chunked);
            wire.chunks(step).for_each(|bytes| capture.take(bytes));
            let body = capture.body(true);
            prop_assert_eq!(body.bytes, pieces.concat());
            prop_assert!(body.is_whole);
        }
    }
}
