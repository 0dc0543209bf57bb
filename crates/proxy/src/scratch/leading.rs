//! The answer of a request that others follow, as it is collected for them.

use std::task::Context;

use super::room::RoomCharge;
use sluicegate_collapse::{BODY_PATIENCE, Leader, SharedAnswer};
use sluicegate_time::Tick;

/// The lead of a request, and what is here of its answer.
#[derive(Debug)]
pub struct Leading {
    leader: Leader,
    head: Vec<u8>,
    has_request_id: bool,
    /// Whether the length of the body is still to be added to the head.
    wants_length: bool,
    body: Vec<u8>,
    most: u64,
    room: RoomCharge,
    overflow: Option<Overflow>,
    late_at: Tick,
}

/// The reason for which a body is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// It is larger than what may be kept.
    Size,
    /// The worker, or the client, keeps too much already.
    Room,
}

/// The head of an answer that may be shared.
#[derive(Debug)]
pub struct SharedHead {
    /// Its lines, without the empty one.
    pub lines: Vec<u8>,
    /// Whether a line with the id of the request is missing there.
    pub has_request_id: bool,
    /// Whether the length of the body is to be added.
    pub wants_length: bool,
}

impl Leading {
    /// Nothing is here yet. Of a body it keeps `most` bytes, if there is `room` for them.
    pub fn new(leader: Leader, most: u64, room: RoomCharge) -> Self {
        let (head, body) = <(Vec<u8>, Vec<u8>)>::default();
        Self {
            leader,
            head,
            has_request_id: false,
            wants_length: false,
            body,
            most,
            room,
            overflow: None,
            late_at: Tick::MAX,
        }
    }

    /// Whether somebody follows. The task that asks is woken when that may have changed.
    pub fn is_followed(&self, cx: &Context<'_>) -> bool {
        self.leader.is_followed(cx)
    }

    /// The head is here.
    pub fn begin(&mut self, head: SharedHead, now: Tick) {
        let SharedHead { lines, has_request_id, wants_length } = head;
        (self.head, self.has_request_id, self.wants_length) = (lines, has_request_id, wants_length);
        self.late_at = now + BODY_PATIENCE;
        self.leader.head(now);
    }

    /// Takes a piece of the body.
    pub fn add(&mut self, content: &[u8]) {
        let length = self.body.len() + content.len();
        if length as u64 > self.most {
            self.overflow = Some(Overflow::Size);
        } else if content.len() > self.room.free() {
            self.overflow = self.overflow.or(Some(Overflow::Room));
        }
        if self.overflow.is_none() {
            self.room.take(content.len());
            self.body.extend_from_slice(content);
        }
    }

    /// The reason for which the body is not kept; `None`: it is.
    pub fn overflow(&self) -> Option<Overflow> {
        self.overflow
    }

    /// Whether the body takes so long that nobody waits for it any more.
    pub fn is_late(&self, now: Tick) -> bool {
        self.late_at <= now
    }

    /// All of the answer is here: whoever follows gets it.
    pub fn share(self) {
        let Self { leader, mut head, has_request_id, wants_length, mut body, .. } = self;
        if wants_length {
            head.extend_from_slice(b"content-length: ");
            head.extend_from_slice(itoa::Buffer::new().format(body.len()).as_bytes());
            head.extend_from_slice(b"\r\n");
        }
        body.shrink_to_fit();
        leader.share(SharedAnswer::new(head, has_request_id, body));
    }

    /// There is no answer for others.
    pub fn miss(self, now: Tick) {
        self.leader.miss(now);
    }

    /// The same for a reason that is of this request alone.
    pub fn leave_alone(self) {
        self.leader.leave_alone();
    }
}
