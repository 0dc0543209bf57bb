//! The buffers and the state of an exchange, kept from one to the next so that none of them allocates.

use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use super::held::Held;
use super::inbound::Inbound;
use super::outgoing::Outgoing;
use super::pacing::Pacing;
use crate::http1::{Body, Buffer, Form, Framing, HeadEnd, RequestHead, ResponseHead};
use crate::limiter::Report;
use crate::proxy::answer::Reply;
use crate::proxy::client::Vouched;
use crate::proxy::deadlines::Timers;
use crate::proxy::endings::Tried;
use crate::proxy::flights::Entry;
use crate::time::Span;

/// Bytes of each of the two buffers of an exchange. A larger head makes its buffer grow; that one is not kept.
pub const BUFFER_BYTES: usize = 16 * 1024;
/// How many sets one worker keeps for later.
const MAX_KEPT: usize = 1024;
/// Room that each of the smaller vectors keeps, in bytes.
const KEPT_BYTES: usize = 8 * 1024;
/// How many sets that nobody needs are kept for a sudden load.
const SPARE: usize = 64;

/// Buffers and everything else that an exchange fills.
#[derive(Debug)]
pub struct Scratch {
    /// The bytes that the client sent.
    pub inbound: Inbound,
    /// Bytes that the upstream sent and that are not written on yet.
    pub outbound: Buffer,
    /// Where a head ends that is not there in full.
    pub head_end: HeadEnd,
    /// The request's head.
    pub request: RequestHead,
    /// The response's head.
    pub response: ResponseHead,
    /// The request's body.
    pub upload: Body,
    /// The response's body.
    pub download: Body,
    /// Bytes on their way to the upstream.
    pub to_upstream: Outgoing,
    /// Bytes on their way to the client.
    pub to_client: Outgoing,
    /// An answer of the gateway's own.
    pub reply: Reply,
    /// How the limits stand.
    pub report: Report,
    /// For values of fields that are put together.
    pub text: Vec<u8>,
    /// The words of a problem.
    pub detail: String,
    /// The path and the query that the server gets, if they are not the client's; else empty.
    pub target: Vec<u8>,
    /// The id of the request, once it has one.
    pub request_id: Vec<u8>,
    /// When parts of the exchange with a server are overdue. Here, since a connection without a request has none.
    pub timers: Timers,
    /// The pacing of its messages' bytes; `None`: they are not paced.
    pub pacing: Option<Box<Pacing>>,
    /// The things that the request holds of its upstream.
    pub held: Held,
    /// Tries that failed, the first one first.
    pub tries: Vec<Tried>,
    /// How long parts of it took.
    pub times: Times,
    /// Whether its client may ask for the explanation of its request, and has.
    pub explains: bool,
    /// The token of the replay that sends it again; `None`: none does.
    pub replayed: Option<Box<Vouched>>,
    /// Where it is entered among the requests in flight; `None`: it is not.
    pub flight: Option<Entry>,
}

/// How long parts of an exchange took, for the access log.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// To connect, in all tries; `None`: it went over connections that were there.
    pub connect: Option<Span>,
    /// From sending it, in the last try, to the head of the answer; `None`: there was none.
    pub head: Option<Span>,
}

impl Scratch {
    fn new() -> Box<Self> {
        let none = || Body::new(Framing::None, Form::AsIs);
        Box::new(Self {
            inbound: Inbound::with_capacity(BUFFER_BYTES),
            outbound: Buffer::with_capacity(BUFFER_BYTES),
            head_end: HeadEnd::default(),
            request: RequestHead::default(),
            response: ResponseHead::default(),
            upload: none(),
            download: none(),
            to_upstream: Outgoing::default(),
            to_client: Outgoing::default(),
            reply: Reply::default(),
            report: Report::default(),
            text: Vec::new(),
            detail: String::new(),
            target: Vec::new(),
            request_id: Vec::new(),
            timers: Timers::default(),
            pacing: None,
            held: Held::default(),
            tries: Vec::new(),
            times: Times::default(),
            explains: false,
            replayed: None,
            flight: None,
        })
    }

    /// Empties it for the next owner; false if it has grown too large to be kept.
    fn tidy(&mut self) -> bool {
        self.inbound.clear();
        self.inbound.capture = None;
        self.outbound.clear();
        self.head_end.reset();
        self.request.clear();
        self.response.clear();
        self.to_upstream.clear();
        self.to_client.clear();
        self.pacing = None;
        self.held.clear();
        self.tries.clear();
        self.times = Times::default();
        self.explains = false;
        self.replayed = None;
        self.to_upstream.keep(KEPT_BYTES);
        self.to_client.keep(KEPT_BYTES);
        let Reply { body, lines, .. } = &mut self.reply;
        for bytes in [&mut self.text, &mut self.target, &mut self.request_id, body, lines] {
            if bytes.capacity() > KEPT_BYTES {
                *bytes = Vec::new();
            }
        }
        if self.detail.capacity() > KEPT_BYTES {
            self.detail = String::new();
        }
        self.inbound.capacity() == BUFFER_BYTES && self.outbound.capacity() == BUFFER_BYTES
    }
}

/// The sets of one worker that nobody uses.
#[derive(Debug, Default)]
#[allow(clippy::vec_box, reason = "they are lent by the box: each is large, and moving it would be a copy")]
pub struct Pool {
    kept: RefCell<Vec<Box<Scratch>>>,
    /// How many were here, at the least, since the last look.
    least: Cell<usize>,
}

impl Pool {
    /// A set, empty.
    pub fn lend(self: &Rc<Self>) -> PooledScratch {
        let mut sets = self.kept.borrow_mut();
        let kept = sets.pop();
        self.least.set(self.least.get().min(sets.len()));
        drop(sets);
        PooledScratch { pool: Rc::clone(self), scratch: Some(kept.unwrap_or_else(Scratch::new)) }
    }

    /// Lets sets go that nobody has needed since the last call. To be called every second.
    pub fn prune(&self) {
        let mut sets = self.kept.borrow_mut();
        let spare = self.least.get().min(sets.len()).saturating_sub(SPARE);
        // Those that were used last are at the end.
        sets.drain(..spare);
        if spare > 0 {
            sets.shrink_to(MAX_KEPT / 8);
        }
        self.least.set(sets.len());
    }
}

/// A set on loan; dropping it gives it back.
#[derive(Debug)]
pub struct PooledScratch {
    pool: Rc<Pool>,
    /// `None` once it was taken or dropped.
    scratch: Option<Box<Scratch>>,
}

impl PooledScratch {
    /// Moves the loan out of its place, which is not to be used any more.
    pub fn take(&mut self) -> Self {
        Self { pool: Rc::clone(&self.pool), scratch: self.scratch.take() }
    }
}

impl Deref for PooledScratch {
    type Target = Scratch;

    fn deref(&self) -> &Scratch {
        match &self.scratch {
            Some(scratch) => scratch,
            None => unreachable!("the loan was moved on"),
        }
    }
}

impl DerefMut for PooledScratch {
    fn deref_mut(&mut self) -> &mut Scratch {
        match &mut self.scratch {
            Some(scratch) => scratch,
            None => unreachable!("the loan was moved on"),
        }
    }
}

impl Drop for PooledScratch {
    fn drop(&mut self) {
        let Some(mut scratch) = self.scratch.take() else { return };
        let mut kept = self.pool.kept.borrow_mut();
        if kept.len() < MAX_KEPT && scratch.tidy() {
            kept.push(scratch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_comes_back_empty_and_is_lent_again() {
        let pool = Rc::new(Pool::default());
        let mut one = pool.lend();
        one.inbound.advance(7);
        let address = std::ptr::from_ref::<Scratch>(&one);
        drop(one);
        let two = pool.lend();
        assert_eq!(std::ptr::from_ref::<Scratch>(&two), address);
        assert!(two.inbound.is_empty());
    }

    #[test]
    fn what_has_grown_is_not_kept() {
        let pool = Rc::new(Pool::default());
        let mut one = pool.lend();
        one.inbound.grow(BUFFER_BYTES + 1);
        drop(one);
        assert!(pool.kept.borrow().is_empty());
    }

    #[test]
    fn small_vectors_that_have_grown_are_let_go_and_the_set_is_kept() {
        let pool = Rc::new(Pool::default());
        let mut one = pool.lend();
        one.to_upstream.made().resize(60_000, b'x');
        one.text.resize(60_000, b'x');
        one.reply.body.resize(60_000, b'x');
        one.target.resize(8_000, b'x');
        drop(one);
        let two = pool.lend();
        let rooms = [two.to_upstream.capacity(), two.text.capacity(), two.reply.body.capacity()];
        assert_eq!(rooms, [0; 3]);
        assert!(two.target.capacity() >= 8_000);
    }

    #[test]
    fn sets_that_nobody_has_needed_between_two_looks_are_let_go() {
        let pool = Rc::new(Pool::default());
        let all: Vec<PooledScratch> = (0..500).map(|_| pool.lend()).collect();
        drop(all);
        // They were needed since the first look.
        pool.prune();
        assert_eq!(pool.kept.borrow().len(), 500);
        drop((0..200).map(|_| pool.lend()).collect::<Vec<_>>());
        pool.prune();
        assert_eq!(pool.kept.borrow().len(), 200 + SPARE);
        pool.prune();
        assert_eq!(pool.kept.borrow().len(), SPARE);
        pool.prune();
        assert_eq!(pool.kept.borrow().len(), SPARE);
    }
}
