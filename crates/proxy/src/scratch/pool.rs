//! The buffers and the state of an exchange, kept from one to the next so that none of them allocates.

use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use super::inbound::Inbound;
use super::outgoing::Outgoing;
use super::request::RequestState;
use crate::answer::Reply;
use crate::deadlines::Timers;
use sluicegate_http1::{Body, Buffer, ChunkPart, Framing, HeadEnd, RequestHead, ResponseHead};
use sluicegate_limiter::Report;

/// Bytes of each of the two buffers of an exchange. A larger head makes its buffer grow; that one is not kept.
pub const BUFFER_BYTES: usize = 16 * 1024;
/// Bytes of such a buffer for a body that is large: a quarter of the calls of the kernel.
const LARGE_BYTES: usize = 64 * 1024;
/// Content after which a body is large. Below it the larger buffer would cost more than the calls that it saves.
const LARGE_AFTER: u64 = 128 * 1024;
/// Large buffers of one worker at once, 3 MiB above the usual ones. Bodies beyond them go through usual buffers.
const MAX_LARGE: usize = 64;
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
    /// When parts of the exchange with a server are overdue. Here, since a connection without a request has none.
    pub timers: Timers,
    /// The state of the request.
    pub state: RequestState,
    /// The buffers of it that are large.
    large: Large,
}

/// The buffers of an exchange that are large.
#[derive(Debug, Default)]
struct Large {
    inbound: bool,
    outbound: bool,
    /// The client was seen to take its time: its response gets no large buffer any more.
    is_slow: bool,
}

impl Scratch {
    fn new() -> Box<Self> {
        let none = || Body::new(Framing::None, ChunkPart::AsIs);
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
            timers: Timers::default(),
            state: RequestState::default(),
            large: Large::default(),
        })
    }

    /// Gives the memory of a body back that was read ahead, once no server is sent it any more.
    #[cold]
    pub fn release_body(&mut self) {
        if self.upload.is_complete() && self.to_upstream.is_empty() {
            self.inbound.shed_body(BUFFER_BYTES);
        }
    }

    /// Empties it for the next owner; false if it has grown too large to be kept.
    fn tidy(&mut self) -> bool {
        self.inbound.clear();
        (self.inbound.capture, self.inbound.charge) = (None, None);
        self.outbound.clear();
        self.head_end.reset();
        self.request.clear();
        self.response.clear();
        self.to_upstream.clear();
        self.to_client.clear();
        self.state.reset();
        self.large = Large::default();
        self.to_upstream.keep(KEPT_BYTES);
        self.to_client.keep(KEPT_BYTES);
        let Reply { body, lines, .. } = &mut self.reply;
        let RequestState { target, request_id, .. } = &mut self.state;
        for bytes in [&mut self.text, target, request_id, body, lines] {
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
    /// Large buffers that are lent.
    large: Cell<usize>,
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

    /// Whether the buffer of the response's body is large.
    #[inline]
    pub fn has_large_outbound(&self) -> bool {
        self.large.outbound
    }

    /// The client takes its time.
    pub fn note_slow(&mut self) {
        self.large.is_slow = true;
    }

    /// Makes the buffer of the response's body, which is empty, as large as is worth it; to be called when a read has filled
    /// it, and while it is large. A paced body has no use for it, and a slow client must not hold it.
    #[cold]
    pub fn fit_outbound(&mut self) {
        let is_large = self.download.content() >= LARGE_AFTER && self.state.pacing.is_none() && !self.large.is_slow;
        if is_large && !self.large.outbound && self.borrow_large() {
            self.large.outbound = true;
            self.outbound = Buffer::with_capacity(LARGE_BYTES);
        } else if !is_large && self.large.outbound {
            self.give_large_back(1);
            self.large.outbound = false;
            self.outbound = Buffer::with_capacity(BUFFER_BYTES);
        }
    }

    /// The same of the request's body, of which nothing is here that has to stay.
    #[cold]
    pub fn fit_inbound(&mut self) {
        let is_large = self.upload.content() >= LARGE_AFTER && self.state.pacing.is_none();
        if is_large && !self.large.inbound && self.borrow_large() {
            self.large.inbound = true;
            self.inbound.grow(LARGE_BYTES);
        }
    }

    /// Leaves what came behind the request, in no more memory than it needs.
    pub fn keep_rest(&mut self) {
        if self.inbound.keep_rest(BUFFER_BYTES) && std::mem::take(&mut self.large.inbound) {
            self.give_large_back(1);
        }
    }

    fn borrow_large(&self) -> bool {
        let lent = self.pool.large.get();
        let may = lent < MAX_LARGE;
        self.pool.large.set(lent + usize::from(may));
        may
    }

    fn give_large_back(&self, count: usize) {
        self.pool.large.set(self.pool.large.get().saturating_sub(count));
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
        if scratch.large.inbound || scratch.large.outbound {
            self.give_large_back(usize::from(scratch.large.inbound) + usize::from(scratch.large.outbound));
        }
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
    fn a_large_body_gets_a_large_buffer_until_its_client_is_slow() {
        let pool = Rc::new(Pool::default());
        let mut one = pool.lend();
        let mut content = vec![b'x'; 128 * 1024];
        one.download.reset(Framing::Length(1 << 30), ChunkPart::AsIs);
        one.download.accept(&mut content[1..]).unwrap();
        one.fit_outbound();
        assert_eq!(one.outbound.capacity(), BUFFER_BYTES, "a byte less than a large one");
        one.download.accept(&mut content[..1]).unwrap();
        one.fit_outbound();
        assert_eq!((one.outbound.capacity(), pool.large.get()), (LARGE_BYTES, 1));
        one.fit_outbound();
        assert_eq!((one.outbound.capacity(), pool.large.get()), (LARGE_BYTES, 1));
        one.note_slow();
        for _ in 0..2 {
            one.fit_outbound();
            assert_eq!((one.outbound.capacity(), pool.large.get()), (BUFFER_BYTES, 0));
        }
    }

    #[test]
    fn a_worker_has_so_many_large_buffers_and_gets_each_back() {
        let pool = Rc::new(Pool::default());
        let mut content = vec![b'x'; 128 * 1024];
        let mut sets: Vec<PooledScratch> = (0..MAX_LARGE).map(|_| pool.lend()).collect();
        for one in &mut sets {
            for body in [true, false] {
                let one = &mut **one;
                let body = if body { &mut one.download } else { &mut one.upload };
                body.reset(Framing::Length(1 << 30), ChunkPart::AsIs);
                body.accept(&mut content).unwrap();
            }
            one.fit_outbound();
            one.fit_inbound();
        }
        let large = |sets: &[PooledScratch]| {
            let outbound = sets.iter().filter(|one| one.outbound.capacity() == LARGE_BYTES).count();
            outbound + sets.iter().filter(|one| one.inbound.capacity() == LARGE_BYTES).count()
        };
        assert_eq!((large(&sets), pool.large.get()), (MAX_LARGE, MAX_LARGE));
        sets.truncate(MAX_LARGE / 2 - 1);
        assert_eq!((large(&sets), pool.large.get()), (MAX_LARGE - 2, MAX_LARGE - 2));
        drop(sets);
        assert_eq!(pool.large.get(), 0);
        assert!(pool.kept.borrow().iter().all(|one| !one.large.inbound && !one.large.outbound));
    }

    #[test]
    fn small_vectors_that_have_grown_are_let_go_and_the_set_is_kept() {
        let pool = Rc::new(Pool::default());
        let mut one = pool.lend();
        one.to_upstream.made().resize(60_000, b'x');
        one.text.resize(60_000, b'x');
        one.reply.body.resize(60_000, b'x');
        one.state.target.resize(8_000, b'x');
        drop(one);
        let two = pool.lend();
        let rooms = [two.to_upstream.capacity(), two.text.capacity(), two.reply.body.capacity()];
        assert_eq!(rooms, [0; 3]);
        assert!(two.state.target.capacity() >= 8_000);
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
