//! The bytes that a client has sent: where in them the head of a request is, what is here of its body, and what follows.

use std::ops::{Deref, DerefMut, Range};

use super::capture::Capture;
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
}

impl Inbound {
    /// Room for this many bytes, empty.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { bytes: Buffer::with_capacity(capacity), head: 0, body: 0, rest_at: 0, is_kept: true, capture: None }
    }

    /// A request has come with so many bytes of head.
    pub fn begin(&mut self, head: usize) {
        (self.head, self.body, self.rest_at, self.is_kept, self.capture) = (head, 0, head, true, None);
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
        let mut bytes = Buffer::with_capacity(self.head);
        bytes.room().copy_from_slice(self.head());
        bytes.advance(self.head);
        let capture = self.capture.take();
        *self = Self { bytes, head: self.head, body: 0, rest_at: self.head, is_kept: false, capture };
    }

    /// Drops the body, which was written on, and keeps the rest in a buffer of so many bytes. Answers whether it fits in there.
    pub fn shed_body(&mut self, capacity: usize) -> bool {
        let rest = self.bytes.filled().get(self.rest_at..).unwrap_or_default();
        if self.head + rest.len() > capacity {
            return false;
        }
        let mut bytes = Buffer::with_capacity(capacity);
        for part in [self.head(), rest] {
            bytes.room().get_mut(..part.len()).unwrap_or_default().copy_from_slice(part);
            bytes.advance(part.len());
        }
        (self.bytes, self.body, self.rest_at, self.is_kept) = (bytes, 0, self.head, false);
        true
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
