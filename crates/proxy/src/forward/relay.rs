//! One exchange between a client and a server, both of HTTP/1, from the request's first byte on the way to the last one
//! of the response.
//!
//! Both directions run in one task: the response is read while the request is still being sent. Each has one buffer,
//! which is filled again when the other side has taken what was in it, so a slow reader slows its writer down. Only
//! bytes that the codec has understood are written on; a message that it refuses ends the exchange, and then neither
//! connection is used again.

use std::task::{Context, Poll};

use super::collapsing;
use super::halves::{DownloadHalf, Phase, UploadHalf};
use super::relay_head;
use super::retry::{self, MAX_KEPT_BODY};
use crate::client::{Client, fault_in};
use crate::deadlines::Timers;
use crate::endings::{ExchangeError, Failure, TimeoutKind};
use crate::exchange::{Exchange, ResponseOrigin, write_trailers};
use crate::scratch::{RequestState, Scratch};
use sluicegate_http1::{ChunkPart, Fault, Framing, HeadLimits, Side, Version};
use sluicegate_time::{Span, Tick};
use sluicegate_transport::{STREAM_RESET, UNPROCESSED};
use sluicegate_upstream::Leased;

/// How long the upstream may take to say `100 Continue` before the gateway says it in its place.
const CONTINUE_AFTER: Span = Span::from_secs(1);
/// How long an upload may hold a place above its client's share of the upstream's, while others wait.
const HELD_FOR: Span = Span::from_secs(5);
/// A large body that stands still for longer gets no large buffer any more.
const SLOW: Span = Span::from_millis(500);

/// How an exchange ended that nothing broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayEnd {
    /// The whole response went out.
    Answered {
        /// The state of the upstream's connection.
        upstream: Left,
        /// The fate of the client's connection.
        client: ConnectionFate,
    },
    /// The server switches protocols, and the client was told so.
    Switched,
}

/// The state in which an exchange has left the upstream's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// Nothing, so that it can carry another request.
    pub is_clean: bool,
    /// Whether the last read was a short one.
    pub is_drained: bool,
    /// Whether faulty servers often send more: the body of an answer that has none, or an answer to the body of a request
    /// that usually has none.
    pub is_doubtful: bool,
}

/// The fate of a client's connection after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionFate {
    /// It carries the next request.
    Keep,
    /// The same, once the rest of the request's body has been read.
    Drain,
    /// It closes.
    Close,
    /// It closes when the client has read its answer: bytes of the request were left unread.
    Linger,
    /// It closes at once, whatever was half sent.
    Cut,
}

/// The bounds of an exchange.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// When it has to be over.
    pub deadline: Tick,
    /// When the head of the answer has to be there, for a request that was all here when it was sent.
    pub respond_by: Tick,
    /// Size of the response's head.
    pub head: HeadLimits,
    /// Bytes of the request's body.
    pub max_body: u64,
    /// Whether the request may be sent again after a failure, so that its body is kept if it is small.
    pub is_repeatable: bool,
}

impl Bounds {
    /// When a request has to be on its way to a server.
    pub fn before_sent(&self) -> Tick {
        self.deadline.min(self.respond_by)
    }

    /// Says what was late, where the time before the request is sent was over.
    pub fn named<T>(&self, result: Result<T, ExchangeError>) -> Result<T, ExchangeError> {
        result.map_err(|error| match error {
            ExchangeError::Timeout(TimeoutKind::Deadline) if self.respond_by < self.deadline => {
                ExchangeError::Timeout(TimeoutKind::Head)
            }
            error => error,
        })
    }
}

/// The exchange, polled by its client's task.
pub struct Relay<'r> {
    pub(super) exchange: &'r mut Exchange,
    pub(super) client: &'r mut Client,
    pub(super) upstream: &'r mut Leased,
    pub(super) bounds: &'r Bounds,
    /// When the request was sent.
    pub(super) sent_at: Tick,
    /// Whether all of it was here then.
    pub(super) sent_whole: bool,
    /// When a byte moved last, or something else gave reason to be patient.
    pub(super) moved_at: Tick,
    pub(super) up: UploadHalf,
    pub(super) down: DownloadHalf,
}

impl<'r> Relay<'r> {
    /// An exchange whose request lies ready in its scratch.
    pub fn new(
        exchange: &'r mut Exchange,
        client: &'r mut Client,
        upstream: &'r mut Leased,
        bounds: &'r Bounds,
        (sent_at, sent_whole): (Tick, bool),
    ) -> Self {
        let now = exchange.worker.alarms.coarse_now();
        let asks = exchange.scratch.request.expects_continue() && exchange.scratch.upload.content() == 0;
        let continue_at = if asks && !exchange.scratch.upload.is_complete() { now + CONTINUE_AFTER } else { Tick::MAX };
        exchange.scratch.state.held.upload_until = sent_at + HELD_FOR;
        exchange.scratch.timers = Timers::new(bounds.respond_by, exchange.scratch.upload.is_complete());
        Self {
            exchange,
            client,
            upstream,
            bounds,
            sent_at,
            sent_whole,
            moved_at: now,
            up: UploadHalf { continue_at, ..UploadHalf::default() },
            down: DownloadHalf::new(),
        }
    }

    /// Whether the final head of an answer is still to come.
    pub fn waits_for_head(&self) -> bool {
        self.down.phase == Phase::Head
    }

    /// Moves whatever can be moved.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<RelayEnd, ExchangeError>> {
        let started = self.down.has_begun;
        if self.exchange.connection.alarm.take_fired() {
            self.look_at_the_time()?;
        }
        if self.up.is_left && !self.is_followed(cx) {
            return Poll::Ready(Err(ExchangeError::ClientGone));
        }
        loop {
            // The answer first: most turns are about it, and end with it.
            let mut again = self.poll_from_upstream(cx)?;
            again |= self.poll_to_client(cx)?;
            if let Some(end) = self.end() {
                if self.up.is_left {
                    return Poll::Ready(Err(ExchangeError::ClientGone));
                }
                if started {
                    // The head came in an earlier turn; its reading of the clock is not the end's.
                    self.exchange.ended_at(self.exchange.worker.clock.now());
                }
                return Poll::Ready(Ok(end));
            }
            again |= self.poll_to_upstream(cx);
            again |= self.poll_from_client(cx)?;
            if !again {
                self.wait();
                return Poll::Pending;
            }
            let (now, before) = (self.exchange.worker.alarms.coarse_now(), self.moved_at);
            self.moved_at = now;
            if self.exchange.scratch.has_large_outbound() && now.since(before) > SLOW {
                self.exchange.scratch.note_slow();
            }
            if self.exchange.scratch.state.pacing.as_mut().is_some_and(|pacing| pacing.ends_turn()) {
                cx.waker().wake_by_ref();
                self.wait();
                return Poll::Pending;
            }
        }
    }

    fn poll_to_upstream(&mut self, cx: &mut Context<'_>) -> bool {
        let Exchange { scratch, record, .. } = &mut *self.exchange;
        let Scratch { inbound, to_upstream, upload, state: RequestState { pacing, .. }, .. } = &mut **scratch;
        if pacing.as_mut().is_some_and(|pacing| pacing.up.poll_free(cx).is_pending()) {
            return false;
        }
        let is_tail_due = to_upstream.is_empty() && upload.is_complete() && !self.up.has_tail;
        if is_tail_due && !upload.tail().is_empty() {
            self.up.has_tail = true;
            write_trailers(upload.tail(), None, record.route.as_deref(), to_upstream.made());
        }
        if self.up.has_failed || to_upstream.is_empty() {
            return false;
        }
        match to_upstream.poll_write(cx, self.upstream.stream(), inbound.filled()) {
            Poll::Ready(Ok(_)) => {
                self.up.has_written = true;
                if inbound.charge.is_some() && self.down.phase == Phase::Body {
                    scratch.release_body();
                }
                let upload = &scratch.upload;
                !upload.tail().is_empty() || !upload.is_complete()
            }
            Poll::Ready(Err(error)) => {
                // It may have answered before it closed: that is read, and nothing more is sent.
                self.up.has_failed = true;
                to_upstream.clear();
                tracing::trace!(target: "sluicegate::proxy::forward::relay", %error, "the upstream takes no more");
                true
            }
            Poll::Pending => false,
        }
    }

    fn poll_from_client(&mut self, cx: &mut Context<'_>) -> Result<bool, ExchangeError> {
        let Exchange { worker, scratch, .. } = &mut *self.exchange;
        let Scratch { inbound, to_upstream, upload, .. } = &mut **scratch;
        if upload.is_complete() {
            return if self.up.is_left { Ok(false) } else { Ok(self.client.poll_ahead(cx, inbound)?) };
        }
        if !to_upstream.is_empty() || self.up.has_failed {
            return Ok(false);
        }
        let is_full = inbound.room().is_empty();
        inbound.make_room(if self.bounds.is_repeatable { MAX_KEPT_BODY } else { 0 });
        if is_full && !inbound.is_kept() {
            scratch.fit_inbound();
        }
        let Scratch { inbound, to_upstream, upload, state: RequestState { pacing, .. }, .. } = &mut **scratch;
        let before = inbound.body().end;
        let Poll::Ready(read) = self.client.poll_read(cx, inbound.room()) else { return Ok(false) };
        match read {
            Ok(size @ 1..) => inbound.advance(size),
            // It has an answer already, which it may still be reading.
            Ok(0) if self.down.phase == Phase::Body => {
                self.up.has_failed = true;
                self.down.keep = false;
                return Ok(false);
            }
            Err(error) => return Err(fault_in(&error).map_or(ExchangeError::ClientGone, ExchangeError::Request)),
            // A request that is not complete has nobody who waits for its answer.
            Ok(0) => return Err(ExchangeError::ClientGone),
        }
        let accepted = inbound.accept(upload).map_err(ExchangeError::Request)?;
        if upload.content() > self.bounds.max_body {
            return Err(ExchangeError::TooLarge);
        }
        self.up.continue_at = Tick::MAX;
        if let Some(pacing) = pacing {
            pacing.charge_up(accepted.kept, inbound.body().len(), &worker.clock);
        }
        to_upstream.add(inbound.filled(), before..inbound.body().end);
        Ok(true)
    }

    fn poll_from_upstream(&mut self, cx: &mut Context<'_>) -> Result<bool, ExchangeError> {
        if !self.exchange.scratch.to_client.is_empty() && !self.runs_ahead(cx) {
            return Ok(false);
        }
        let Scratch { outbound, download, .. } = &mut *self.exchange.scratch;
        match self.down.phase {
            Phase::Switched => return Ok(false),
            Phase::Body if download.is_complete() => return Ok(false),
            Phase::Body => {
                let is_full = outbound.room().is_empty();
                outbound.clear();
                if is_full || self.exchange.scratch.has_large_outbound() {
                    self.exchange.scratch.fit_outbound();
                }
            }
            Phase::Head => {
                if outbound.room().is_empty() {
                    outbound.compact();
                    outbound.grow(self.bounds.head.max_bytes.min(outbound.capacity() * 4));
                }
            }
        }
        let outbound = &mut self.exchange.scratch.outbound;
        let Poll::Ready(read) = self.upstream.stream().poll_read(cx, outbound.room()) else { return Ok(false) };
        match read {
            Ok(0) => {
                self.upstream_closed()?;
                return Ok(true);
            }
            Ok(size) => {
                self.down.is_drained = size < outbound.room().len() && self.upstream.stream().tells_by_short_reads();
                outbound.advance(size);
            }
            Err(error) if error.kind() == UNPROCESSED && !self.down.has_begun => return Err(ExchangeError::Unread),
            Err(error) if self.down.phase == Phase::Head && !self.down.has_begun && error.kind() != STREAM_RESET => {
                return Err(self.silent());
            }
            Err(error) => return Err(ExchangeError::Upstream(error)),
        }
        self.down.has_begun = true;
        match self.down.phase {
            Phase::Head => self.read_head()?,
            _ => self.pass_body()?,
        }
        Ok(true)
    }

    /// The server closed its side.
    fn upstream_closed(&mut self) -> Result<(), ExchangeError> {
        if self.down.phase == Phase::Head && !self.down.has_begun {
            return Err(self.silent());
        }
        self.down.has_stray = true;
        if self.down.phase == Phase::Head {
            return Err(ExchangeError::Response(Fault::Truncated));
        }
        let Scratch { to_client, download, .. } = &mut *self.exchange.scratch;
        download.end().map_err(ExchangeError::Response)?;
        if self.down.chunks {
            let end: &[u8] = if self.down.in_chunk { b"\r\n0\r\n\r\n" } else { b"0\r\n\r\n" };
            to_client.made().extend_from_slice(end);
        }
        self.settle_usage();
        Ok(())
    }

    /// Settles the costs that the response states, as soon as its last byte is here: the client may take its time.
    #[inline]
    fn settle_usage(&mut self) {
        if self.exchange.scratch.state.usage.is_some() {
            self.exchange.settle_ended_usage();
        }
    }

    fn silent(&self) -> ExchangeError {
        ExchangeError::Silent { written: self.up.has_written }
    }

    /// Looks for heads among what came: interim ones are passed on until the final one is there.
    fn read_head(&mut self) -> Result<(), ExchangeError> {
        loop {
            let is_head = self.exchange.scratch.request.is_head();
            let Scratch { outbound, head_end, response, .. } = &mut *self.exchange.scratch;
            let found = head_end.find(outbound.filled(), Side::Response, &self.bounds.head);
            let Some(length) = found.map_err(ExchangeError::Response)? else { return Ok(()) };
            let head = outbound.filled().get(..length).unwrap_or_default();
            response.parse(head, &self.bounds.head, is_head).map_err(ExchangeError::Response)?;
            head_end.reset();
            let status = response.status();
            if response.is_interim() {
                self.up.continue_at = if status == 100 { Tick::MAX } else { self.up.continue_at };
                if self.exchange.scratch.request.version() == Version::Http11 {
                    relay_head::write_interim(self.exchange, length);
                }
                self.exchange.scratch.outbound.consume(length);
                continue;
            }
            if status == 101 {
                collapsing::missed(self.exchange);
                relay_head::write_switch(self.exchange, length)?;
                self.answered(status, self.exchange.worker.clock.now());
                self.exchange.scratch.outbound.consume(length);
                self.down.phase = Phase::Switched;
                return Ok(());
            }
            if self.bounds.is_repeatable
                && retry::take(self.exchange, Failure::Status(status), self.bounds.before_sent())
            {
                self.noted(status, self.exchange.worker.clock.now());
                return Err(ExchangeError::Status(status));
            }
            self.up.continue_at = Tick::MAX;
            self.pass_head(length);
            self.exchange.scratch.outbound.consume(length);
            self.down.phase = Phase::Body;
            return self.pass_body();
        }
    }

    /// Passes the final head on and begins its body. `length` is how many bytes of what came in it has.
    fn pass_head(&mut self, length: usize) {
        let now = self.exchange.worker.clock.now();
        self.exchange.worker.alarms.note(now);
        self.exchange.ended_at(now);
        let status = self.exchange.scratch.response.status();
        if self.exchange.scratch.response.asks_to_authenticate_connection() {
            self.upstream.make_private();
        }
        self.answered(status, now);
        if let Some((_, place)) = &mut self.exchange.scratch.state.held.alone {
            place.answered();
        }
        self.exchange.settle(status, Some(length), now);
        let framing = self.begin_download();
        if self.exchange.scratch.state.leads.is_some() {
            collapsing::begin(self.exchange, length, framing, now);
        }
        self.down.keep = relay_head::write_final(self.exchange, (length, framing), now);
        if self.exchange.scratch.inbound.charge.is_some() {
            self.exchange.scratch.release_body();
        }
    }

    /// Begins the reading of the response's body, as it is to be written on. How it comes.
    fn begin_download(&mut self) -> Framing {
        let scratch = &mut *self.exchange.scratch;
        let framing = match scratch.response.framing() {
            Framing::Length(_) if self.upstream.stream().has_chunks_beside_length() => Framing::Chunked,
            framing => framing,
        };
        let is_old = scratch.request.version() == Version::Http10;
        let form = if is_old { ChunkPart::Content } else { ChunkPart::AsIs };
        scratch.download.reset(framing, form);
        self.down.chunks = framing == Framing::UntilClose && !is_old;
        framing
    }

    /// Takes what came of the response's body.
    fn pass_body(&mut self) -> Result<(), ExchangeError> {
        let Exchange { worker, scratch, .. } = &mut *self.exchange;
        let Scratch { outbound, to_client, download, state, .. } = &mut **scratch;
        let RequestState { pacing, held, usage, leads, .. } = state;
        let before = download.content();
        let accepted = match (usage, leads) {
            (None, None) => download.accept(outbound.filled_mut()),
            (usage, leads) => download.accept_seen(outbound.filled_mut(), |content| {
                if let Some(usage) = usage {
                    usage.feed(content);
                }
                if let Some(leads) = leads {
                    leads.add(content);
                }
            }),
        };
        let accepted = accepted.map_err(ExchangeError::Response)?;
        if let Some(pacing) = pacing {
            let content = download.content() - before;
            pacing.down.charge(usize::try_from(content).unwrap_or(usize::MAX), &worker.clock);
        }
        self.down.has_stray |= accepted.taken < outbound.len();
        if self.down.chunks && accepted.kept > 0 {
            let made = to_client.made();
            if self.down.in_chunk {
                made.extend_from_slice(b"\r\n");
            }
            relay_head::write_chunk_size(made, accepted.kept);
            self.down.in_chunk = true;
        }
        if accepted.kept > 0 {
            self.down.digits_ahead = 0;
        }
        if download.is_complete() {
            self.upstream.settle();
            held.place = None;
        }
        if accepted.kept > 0 {
            to_client.add(outbound.filled(), 0..accepted.kept);
        }
        if state.leads.is_some() {
            let end = download.is_complete().then(|| !download.trailer_lines().is_empty());
            collapsing::collected(state, end, worker.clock.now());
        }
        self.settle_usage();
        Ok(())
    }

    fn poll_to_client(&mut self, cx: &mut Context<'_>) -> Result<bool, ExchangeError> {
        let Exchange { scratch, record, begun, .. } = &mut *self.exchange;
        let Scratch { outbound, to_client, download, state: RequestState { pacing, .. }, .. } = &mut **scratch;
        if self.up.is_left {
            to_client.clear();
            return Ok(false);
        }
        if pacing.as_mut().is_some_and(|pacing| pacing.down.poll_free(cx).is_pending()) {
            return Ok(false);
        }
        let mut moved = false;
        loop {
            if to_client.is_empty() {
                let is_tail_due = self.down.phase == Phase::Body && download.is_complete() && !self.down.has_tail;
                if !is_tail_due || download.tail().is_empty() {
                    return Ok(moved);
                }
                self.down.has_tail = true;
                write_trailers(
                    download.tail(),
                    Some(ResponseOrigin::Servers),
                    record.route.as_deref(),
                    to_client.made(),
                );
                continue;
            }
            match to_client.poll_write(cx, &mut self.client.stream, outbound.filled()) {
                Poll::Ready(Ok(_)) => {
                    moved = true;
                    *begun |= self.down.phase != Phase::Head;
                }
                Poll::Ready(Err(_)) => return Err(ExchangeError::ClientGone),
                Poll::Pending => return Ok(moved),
            }
        }
    }
}
