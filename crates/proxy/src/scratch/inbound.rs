//! The bytes that a client has sent: where in them the head of a request is, what is here of its body, and what follows.

use std::ops::{Deref, DerefMut, Range};

use super::capture::Capture;
use super::room::RoomCharge;
use sluicegate_http1::{Accepted, Body, Buffer, Fault};

/// The least room that is read into, in bytes: data of HTTP/2 comes as chunks, of which a smaller one holds none.
const LEAST_ROOM: usize = 64;

/// The bytes of one request: its head at the start, which stays until the exchange ends; behind it what is here of its
/// body, as it is written on; then what came after it.
#[derive(Debug)]
pub struct Inbound {
    bytes: Buffer,
    /// Bytes of the head; 0 if there is none that could be understood.
    head: usize,
    /// Bytes of the body that are here.
    body: usize,
    /// Where the next request begins, once this one is complete.
    rest_at: usize,
    /// Whether all of the body that has come is here.
    is_kept: bool,
    /// Its body, kept for a dead letter; `None`: it is not kept.
    pub capture: Option<Box<Capture>>,
    /// Its share of the room of bodies: the memory of the buffer beyond that of each request. It stays as long as the buffer.
    pub charge: Option<RoomCharge>,
}

impl Inbound {
    /// Room for this many bytes, empty.
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            bytes: Buffer::with_capacity(capacity),
            head: 0,
            body: 0,
            rest_at: 0,
            is_kept: true,
            capture: None,
            charge: None,
        }
    }

    /// A request has come with so many bytes of head.
    pub fn begin(&mut self, head: usize) {
        (self.head, self.body, self.rest_at, self.is_kept, self.capture) = (head, 0, head, true, None);
    }

    /// Puts another head in the place of the one that came, whose request has no body.
    pub fn replace_head(&mut self, head: &[u8]) {
        // Mostly there is none. A new buffer would be filled with zeros for nothing.
        let rest = self.bytes.filled().get(self.rest_at..).unwrap_or_default().to_vec();
        self.bytes.clear();
        self.bytes.grow(head.len() + rest.len());
        for part in [head, &rest] {
            self.bytes.room().get_mut(..part.len()).unwrap_or_default().copy_from_slice(part);
            self.bytes.advance(part.len());
        }
        self.begin(head.len());
    }

    /// The bytes that came are no request.
    pub fn discard_head(&mut self) {
        self.head = 0;
    }

    /// The head.
    #[inline]
    pub fn head(&self) -> &[u8] {
        self.bytes.filled().get(..self.head).unwrap_or_default()
    }

    /// Where what is here of the body lies.
    pub fn body(&self) -> Range<usize> {
        self.head..self.head + self.body
    }

    /// Whether all of the body that has come is here, so that it can be sent again.
    pub fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Where the next request begins, once this one is complete.
    pub fn rest_at(&self) -> usize {
        self.rest_at
    }

    /// The bytes behind this request are not read as one.
    pub fn drops_rest(&mut self) {
        self.rest_at = self.bytes.len();
    }

    /// Reads on in the body, in what came behind the part that is here.
    pub fn accept(&mut self, upload: &mut Body) -> Result<Accepted, Fault> {
        let here = self.head + self.body;
        let accepted = upload.accept(self.bytes.filled_mut().get_mut(here..).unwrap_or_default())?;
        if let Some(capture) = &mut self.capture {
            capture.take(self.bytes.filled().get(here..here + accepted.kept).unwrap_or_default());
        }
        self.body += accepted.kept;
        self.rest_at = here + accepted.taken;
        Ok(accepted)
    }

    /// Cuts off what is behind the part of the body that is here: it was taken in.
    pub fn cut_taken(&mut self) {
        let here = self.head + self.body;
        self.bytes.truncate(here);
    }

    /// Keeps the head alone, in no more room than it needs.
    pub fn keep_head(&mut self) {
        self.refit(self.head, self.bytes.len());
        self.drop_body();
        self.rest_at = self.head;
    }

    /// Drops the body, which was written on, and keeps the rest in a buffer of so many bytes. Answers whether it fits in there.
    pub fn shed_body(&mut self, capacity: usize) -> bool {
        let rest = self.bytes.filled().get(self.rest_at..).unwrap_or_default();
        if self.head + rest.len() > capacity {
            return false;
        }
        self.refit(capacity, self.rest_at);
        (self.body, self.rest_at, self.is_kept) = (0, self.head, false);
        true
    }

    /// Leaves what came behind this request, at the front, and in a buffer of so many bytes if it fits in there. Answers whether
    /// the buffer is another one.
    pub fn keep_rest(&mut self, capacity: usize) -> bool {
        self.discard_head();
        let is_refit = self.bytes.capacity() > capacity && self.bytes.len().saturating_sub(self.rest_at) <= capacity;
        if is_refit {
            self.refit(capacity, self.rest_at);
        } else {
            self.bytes.consume(self.rest_at);
            self.bytes.compact();
        }
        is_refit
    }

    /// Takes a buffer of so many bytes, for the head and what is here from there on.
    fn refit(&mut self, capacity: usize, from: usize) {
        let mut bytes = Buffer::with_capacity(capacity);
        for part in [self.head(), self.bytes.filled().get(from..).unwrap_or_default()] {
            bytes.room().get_mut(..part.len()).unwrap_or_default().copy_from_slice(part);
            bytes.advance(part.len());
        }
        (self.bytes, self.charge) = (bytes, None);
    }

    /// Bytes by which [`make_room`](Self::make_room) would make the buffer larger.
    pub fn growth(&self, most_kept: usize) -> usize {
        let here = self.head + self.body;
        if !self.is_kept || self.body >= most_kept || self.bytes.capacity() - here >= LEAST_ROOM {
            return 0;
        }
        let more = (self.bytes.capacity() * 2).min(self.head + most_kept);
        more.max(here + LEAST_ROOM) - self.bytes.capacity()
    }

    /// Makes room for more of the body, behind what is here as long as that is less than `most_kept`; else in its place.
    pub fn make_room(&mut self, most_kept: usize) {
        if !self.is_kept || self.body >= most_kept {
            return self.drop_body();
        }
        self.cut_taken();
        self.bytes.grow(self.bytes.capacity() + self.growth(most_kept));
    }

    /// Makes room for more of the body by dropping the part that is here, which was written on.
    pub fn drop_body(&mut self) {
        self.is_kept = false;
        self.body = 0;
        self.bytes.truncate(self.head);
    }
}

impl Deref for Inbound {
    type Target = Buffer;

    #[inline]
    fn deref(&self) -> &Buffer {
        &self.bytes
    }
}

impl DerefMut for Inbound {
    #[inline]
    fn deref_mut(&mut self) -> &mut Buffer {
        &mut self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::BodyRoom;
    use sluicegate_http1::{ChunkPart, Framing};

    /// A head of 10 bytes, a body of so many and a rest of so many, in a buffer that has room for `capacity`.
    fn filled(capacity: usize, body: usize, rest: usize) -> Inbound {
        let mut inbound = Inbound::with_capacity(capacity);
        for (byte, count) in [(b'h', 10), (b'b', body), (b'r', rest)] {
            inbound.room()[..count].fill(byte);
            inbound.advance(count);
        }
        inbound.begin(10);
        let mut upload = Body::new(Framing::Length(body as u64), ChunkPart::AsIs);
        inbound.accept(&mut upload).unwrap();
        let mut charge = RoomCharge::new(&BodyRoom::default(), &BodyRoom::default());
        charge.take(5);
        inbound.charge = Some(charge);
        inbound
    }

    #[test]
    fn the_growth_that_is_said_is_the_growth_that_comes() {
        for (capacity, body) in [(4_096, 4_086), (4_096, 4_080), (4_096, 4_000), (100, 90), (100, 10), (80, 70)] {
            for most_kept in [0, 90, 1_000, 4_086, 5_000, 8_182, 1_000_000] {
                let mut inbound = filled(capacity, body, 0);
                let said = inbound.growth(most_kept);
                inbound.make_room(most_kept);
                assert_eq!(inbound.capacity() - capacity, said, "{capacity} {body} {most_kept}");
                assert!(inbound.room().len() >= LEAST_ROOM.min(capacity - 10), "{capacity} {body} {most_kept}");
            }
        }
    }

    #[test]
    fn a_body_is_shed_where_head_and_rest_fit_into_the_smaller_buffer() {
        let mut inbound = filled(400, 200, 90);
        assert!(inbound.shed_body(100));
        assert_eq!((inbound.capacity(), inbound.head(), inbound.body()), (100, &[b'h'; 10][..], 10..10));
        assert_eq!(inbound.filled()[inbound.rest_at()..], [b'r'; 90]);
        assert!(inbound.charge.is_none() && !inbound.is_kept());
        let mut too_long = filled(400, 200, 91);
        assert!(!too_long.shed_body(100));
        assert!(too_long.charge.is_some() && too_long.is_kept());
        assert_eq!((too_long.capacity(), too_long.body(), too_long.rest_at()), (400, 10..210, 210));
    }

    #[test]
    fn what_came_behind_a_request_keeps_its_charge_where_it_has_need_of_the_room() {
        for (capacity, rest, left, holds) in [(400, 100, 100, false), (400, 101, 400, true), (100, 30, 100, true)] {
            let mut inbound = filled(capacity, 50, rest);
            assert_eq!(inbound.keep_rest(100), !holds);
            assert_eq!((inbound.capacity(), inbound.charge.is_some()), (left, holds));
            assert_eq!(inbound.filled(), vec![b'r'; rest]);
        }
    }

    #[test]
    fn a_head_that_is_kept_alone_holds_no_room() {
        let mut inbound = filled(400, 200, 20);
        inbound.keep_head();
        assert_eq!((inbound.capacity(), inbound.filled(), inbound.rest_at()), (10, &[b'h'; 10][..], 10));
        assert!(inbound.charge.is_none() && !inbound.is_kept());
    }
}
