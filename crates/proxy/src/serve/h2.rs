//! HTTP/2 clients: a connection, and each of its streams as an exchange of its own.
//!
//! The connection has one task, which carries the frames of all streams; each stream has one, which speaks HTTP/1.1 to
//! its [`Stream`]: so everything behind the head of a request is the same for both protocols. The timeouts of a
//! connection are on the worker's wheel.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use super::begin::begin;
use super::stream_place::StreamPlace;
use crate::client::{Client, Connection, StreamBound, pays_for};
use crate::endings::Cause;
use crate::exchange::{Exchange, capturing};
use crate::scratch::{BUFFER_BYTES, Scratch};
use crate::walk;
use crate::worker::Worker;
use sluicegate_http1::{Fault, MAX_FIELDS};
use sluicegate_http2::{FIELD_OVERHEAD, Limits, Outcomes, RefusedUnread};
use sluicegate_time::{Span, Tick};
use sluicegate_transport::{Accepting, FromClient, Incoming, Stream, websocket_key};

/// How long a connection that was told that it will end may open streams still, if its client does not say that it knows.
const WARNED: Span = Span::from_secs(1);
/// So many requests may be reset on one connection before it ends because of all that its client has reset. It may be that of
/// a neighbour behind the same address, whose requests are refused meanwhile.
const RESETS_OF_NEIGHBOUR: u32 = 100;
/// The most that is read of a request behind its answer, in bytes, and for how long.
const MAX_DRAIN: usize = 256 * 1024;
const DRAIN: Span = Span::from_secs(1);
/// How long one that has ended may take to do so, beyond its requests.
const LAST_WORDS: Span = Span::from_secs(2);

/// Streams of one connection that are open, and since when there is none.
struct Streams {
    open: Cell<usize>,
    idle_since: Cell<Tick>,
    connection: Rc<Connection>,
    /// Whether the connection is over, although streams of it may not be.
    has_ended: Cell<bool>,
}

/// Where the connection is.
enum Phase {
    Open,
    /// It was told that it will end; when it takes no more streams.
    Warned(Tick),
    /// It takes no more; when it has to have ended.
    Ending(Tick),
}

/// Serves one connection until it ends. `ahead`: what was read of it already.
pub async fn serve(worker: &Rc<Worker>, stream: Stream, ahead: Vec<u8>, connection: &Rc<Connection>) {
    let limits = worker.head_limits();
    // More than is allowed, so that what is too much is refused here and told as in HTTP/1, with its reason.
    let list = limits.max_bytes.saturating_mul(2).saturating_add(FIELD_OVERHEAD * MAX_FIELDS);
    let limits = Limits {
        max_streams: worker.max_streams(),
        max_header_list: u32::try_from(list).unwrap_or(u32::MAX),
        is_of_many: !connection.account.is_of_one_client(),
    };
    let now = worker.clock.now();
    connection.list_silent(now);
    let streams = Streams {
        open: Cell::new(0),
        idle_since: Cell::new(now),
        connection: Rc::clone(connection),
        has_ended: Cell::new(false),
    };
    // Its client is refused for now, and so are the requests that have come with it: they are not even read.
    let is_refused = connection.account.given_up.is_over(now);
    let ahead = if is_refused { Vec::new() } else { ahead };
    let accepting = Accepting::new(stream, &ahead, limits, now);
    if is_refused {
        accepting.calm_down();
    }
    let mut serving = Serving {
        worker,
        connection,
        accepting,
        streams: Rc::new(streams),
        phase: Phase::Open,
        is_flooded: false,
        resets: 0,
        answers: 0,
        opened_at: now,
    };
    drop(ahead);
    poll_fn(|cx| serving.poll(cx)).await;
    if let (Some(ended), None) = (serving.accepting.ended(), serving.accepting.flooded()) {
        worker.connections.h2_ended(&ended);
        tracing::debug!(target: "sluicegate::proxy::serve::h2", peer = %connection.peer, error = %ended, "an HTTP/2 connection ended");
    }
}

/// A connection that is served.
struct Serving<'w> {
    worker: &'w Rc<Worker>,
    connection: &'w Rc<Connection>,
    accepting: Accepting,
    streams: Rc<Streams>,
    phase: Phase,
    /// Whether it was counted as a flood.
    is_flooded: bool,
    /// Requests that its client has reset.
    resets: u32,
    /// Requests that servers have answered.
    answers: u32,
    opened_at: Tick,
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        self.streams.has_ended.set(true);
        self.connection.delist();
    }
}

impl Serving<'_> {
    /// Ready when it has ended.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let (worker, connection) = (self.worker, self.connection);
        connection.alarm.wakes(cx);
        let rung = connection.alarm.take_fired();
        self.accepting.note_time(worker.alarms.coarse_now());
        let mut is_denied = rung && connection.facts.asks.is_none() && worker.denies(connection.peer.ip());
        let accepted = self.poll_accept(cx, &mut is_denied);
        let now = worker.alarms.coarse_now();
        self.account_for_streams(now);
        if let (Some(what), false) = (self.accepting.flooded(), self.is_flooded) {
            worker.connections.h2_flood(what);
            let what = what.word();
            tracing::debug!(target: "sluicegate::proxy::serve::h2", peer = %connection.peer, what, "an HTTP/2 connection was ended for too many frames");
            self.is_flooded = true;
        }
        if accepted.is_ready() {
            return Poll::Ready(());
        }
        if self.accepting.is_ending() && !matches!(self.phase, Phase::Ending(_)) {
            // By an error, or because its client has said that it knows. It may read why, and then it is closed.
            self.phase = Phase::Ending(now + LAST_WORDS);
        }
        let is_unused = self.streams.open.get() == 0;
        if rung && let Some(why) = connection.alarm.take_dismissal() {
            if is_unused && !self.accepting.has_unread() {
                worker.connections.reclaimed(why);
                return self.make_room(cx);
            }
            connection.delist();
            if is_unused {
                // Something is on its way, which need not be a request.
                connection.list_silent(now);
            }
        }
        let idle_until = self.streams.idle_since.get() + worker.keep_alive_timeout();
        let is_idle = is_unused && rung && now >= idle_until;
        if matches!(self.phase, Phase::Open) && (is_idle || is_denied || connection.is_closing()) {
            if is_denied {
                worker.connections.denied.inc();
            }
            let has_begun = self.accepting.end_gracefully();
            if !has_begun && (!connection.is_closing() || now >= self.opened_at + LAST_WORDS) {
                return Poll::Ready(());
            }
            self.phase = Phase::Warned(now + WARNED);
        }
        if let Phase::Warned(until) = self.phase {
            // It may have begun only now.
            self.accepting.end_gracefully();
            if rung && now >= until {
                self.accepting.take_no_more();
                self.phase = Phase::Ending(now + LAST_WORDS);
            }
        }
        let due = match self.phase {
            Phase::Warned(until) => until,
            Phase::Ending(until) if is_unused => {
                let until = until.max(self.streams.idle_since.get() + LAST_WORDS);
                if rung && now >= until {
                    return Poll::Ready(());
                }
                until
            }
            Phase::Ending(_) => now + LAST_WORDS,
            Phase::Open if is_unused => idle_until,
            Phase::Open => now + worker.keep_alive_timeout(),
        };
        worker.alarms.set(&connection.alarm, due);
        Poll::Pending
    }

    /// Says that it takes no more, so that a request that is on its way is known not to have been looked at, and ends.
    fn make_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let has_begun = self.accepting.end_gracefully();
        self.accepting.take_no_more();
        if has_begun {
            let _ = self.poll_accept(cx, &mut false);
        }
        Poll::Ready(())
    }

    /// Counts requests that were refused, and charges those that were given up to the client.
    fn account_for_streams(&mut self, now: Tick) {
        let (meters, given_up) = (&self.worker.connections, &self.connection.account.given_up);
        let refused = self.accepting.take_refused();
        if refused != RefusedUnread::default() {
            meters.streams_refused(StreamBound::ConnectionStreams, refused.by_streams);
            meters.streams_refused(StreamBound::ConnectionHeads, refused.by_heads);
        }
        let Outcomes { resets, abandoned, answers } = self.accepting.take_outcomes();
        // One whose listener goes was asked to end, and may do so when it likes.
        let abandoned = if self.connection.listening.is_closing() { 0 } else { abandoned };
        if resets + abandoned + answers > 0 {
            given_up.note(resets + abandoned, answers, now);
        }
        self.resets = self.resets.saturating_add(resets);
        self.answers = self.answers.saturating_add(answers);
        if resets > 0 && self.resets > RESETS_OF_NEIGHBOUR && given_up.is_over(now) {
            self.accepting.calm_down();
        }
    }

    /// Begins the exchange of each stream that came. Ready when the connection is over.
    fn poll_accept(&mut self, cx: &mut Context<'_>, is_denied: &mut bool) -> Poll<()> {
        let (worker, connection) = (self.worker, self.connection);
        let mut room = worker.h2_room.borrow_mut();
        loop {
            match ready!(self.accepting.poll_accept(cx, &mut room)) {
                Some(incoming) if connection.facts.asks.is_none() && worker.denies(connection.peer.ip()) => {
                    *is_denied = true;
                    incoming.refuse();
                }
                Some(incoming) => {
                    if connection.count_request() {
                        worker.connections.max_requests.inc();
                    }
                    // It may be that of a neighbour behind the same address.
                    let is_spared = self.answers > 0 && pays_for(self.answers, self.resets);
                    open(worker, connection, &self.streams, incoming, is_spared);
                }
                None => return Poll::Ready(()),
            }
        }
    }
}

/// Begins the exchange of a stream. `is_spared`: what its client has given up over other connections is not held against it.
fn open(worker: &Rc<Worker>, connection: &Rc<Connection>, streams: &Rc<Streams>, incoming: Incoming, is_spared: bool) {
    let now = if is_spared { None } else { Some(worker.alarms.coarse_now()) };
    let place = match StreamPlace::take(worker, &connection.account, incoming.held(), now) {
        Ok(place) => place,
        Err(bound) => {
            worker.connections.streams_refused(bound, 1);
            if matches!(bound, StreamBound::ClientHeads | StreamBound::ShareOfHeads | StreamBound::ShareOfStreams) {
                let (peer, now) = (connection.peer.ip(), worker.alarms.coarse_now());
                worker.report_crowding(peer, &connection.account, "HTTP/2 requests", now);
            }
            return match bound {
                StreamBound::ClientHeads | StreamBound::ClientResets => incoming.refuse_and_charge(),
                _ => incoming.refuse(),
            };
        }
    };
    streams.open.set(streams.open.get() + 1);
    streams.connection.begin_request();
    let (worker, connection, streams) = (Rc::clone(worker), connection.stream(), Rc::clone(streams));
    let open = OpenStream { worker, connection, streams, _place: place };
    tokio::task::spawn_local(async move {
        // Boxed where it runs: it is large, and a task is moved before it does.
        Box::pin(serve_stream(&open.worker, incoming, &open.connection)).await;
    });
}

/// A stream that is open. Dropping it, also by a panic, which resets the stream, takes it out of its connection's count.
struct OpenStream {
    worker: Rc<Worker>,
    connection: Rc<Connection>,
    streams: Rc<Streams>,
    _place: StreamPlace,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let Self { worker, connection, streams, .. } = self;
        worker.note_panic();
        worker.alarms.cancel(&connection.alarm);
        streams.open.set(streams.open.get() - 1);
        streams.idle_since.set(worker.alarms.coarse_now());
        if streams.open.get() == 0 && !streams.has_ended.get() {
            streams.connection.rest(worker.alarms.coarse_now());
        }
    }
}

/// One exchange.
async fn serve_stream(worker: &Rc<Worker>, mut incoming: Incoming, connection: &Rc<Connection>) {
    let waker = poll_fn(|cx: &mut Context<'_>| {
        connection.alarm.wakes(cx);
        Poll::Ready(cx.waker().clone())
    })
    .await;
    let mut scratch = worker.pool.lend();
    let head = match incoming.fault() {
        Some(fault) => Err(fault),
        None => write_head(worker, &mut incoming, &mut scratch),
    };
    let stream = incoming.into_stream(waker);
    let reads_ahead = head.is_ok() && stream.has_body();
    let mut client = Client::new(Stream::FromClient(Box::new(stream)));
    if reads_ahead {
        read_ahead(&mut client, &mut scratch).await;
    }
    let now = worker.clock.now();
    worker.alarms.note(now);
    let mut exchange = Exchange::new(worker, connection, scratch, head.unwrap_or_default(), now);
    let begun = head.and_then(|_| begin(&mut exchange));
    match begun {
        Ok(()) => drop(walk::answer(&mut exchange, &mut client).await),
        Err(fault) => drop(walk::answer_fault(&mut exchange, &mut client, Cause::Fault(fault)).await),
    }
    if capturing::is_due(&exchange) {
        capturing::finish(&mut exchange, &mut client).await;
    }
    if let Stream::FromClient(stream) = &client.stream
        && let Some(status) = stream.status_instead()
    {
        exchange.record.status = Some(status);
    }
    let is_served = exchange.was_forwarded();
    drop(exchange.end());
    if let Stream::FromClient(stream) = client.stream {
        drain(worker, connection, &stream).await;
        stream.end(is_served);
    }
}

/// Reads what is left of a request that has its answer. Some clients look at an answer only when they have sent all, and take
/// a reset before that for a failure although the answer is whole (curl before version 8).
async fn drain(worker: &Rc<Worker>, connection: &Rc<Connection>, stream: &FromClient) {
    let (mut left, mut until) = (MAX_DRAIN, None);
    poll_fn(|_| {
        if stream.poll_discard(&mut left).is_ready() {
            return Poll::Ready(());
        }
        let until = *until.get_or_insert_with(|| worker.clock.now() + DRAIN);
        if worker.alarms.coarse_now() >= until {
            return Poll::Ready(());
        }
        connection.alarm.take_fired();
        worker.alarms.set(&connection.alarm, until);
        Poll::Pending
    })
    .await;
}

/// Reads what is here of the body, so that it goes on with the head: in one write, and so that a request that was all
/// here can be sent again. It leaves half of the room, which a body that is longer goes through.
async fn read_ahead(client: &mut Client, scratch: &mut Scratch) {
    let inbound = &mut scratch.inbound;
    poll_fn(|cx| {
        let mut left = inbound.room().len() / 2;
        while left > 0
            && let Poll::Ready(Ok(size @ 1..)) = client.poll_read(cx, &mut inbound.room()[..left])
        {
            inbound.advance(size);
            left -= size;
        }
        Poll::Ready(())
    })
    .await;
}

/// Puts the head that the request would have in HTTP/1.1 where a head of HTTP/1.1 would be; how long it is.
fn write_head(worker: &Worker, incoming: &mut Incoming, scratch: &mut Scratch) -> Result<usize, Fault> {
    let most = worker.head_limits().max_bytes;
    let key = || websocket_key([worker.random(), worker.random()]);
    incoming.write_head(&mut scratch.inbound, (most, BUFFER_BYTES / 2), key).ok_or(Fault::HeadTooLarge)
}
