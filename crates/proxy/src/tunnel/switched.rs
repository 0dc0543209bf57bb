//! A connection that speaks another protocol after a 101, such as WebSocket: bytes both ways until both sides are done.
//!
//! It holds buffers only while bytes are in them, so that a tunnel that is silent, as most are most of the time, costs
//! little more than its two sockets. Where its route paces bytes or bounds messages, each direction holds the one piece
//! that it has read until that may go on, and reads no other.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use super::message_gate::code_of;
use super::way_bounds::{IdleStep, TunnelLimits, bounds_of};
use super::websocket::{Frames, GOING_AWAY, close, masked_close};
use crate::client::Client;
use crate::exchange::Exchange;
use crate::flights::FlightPhase;
use crate::forward::ConnectionFate;
use crate::meters::{Outcome, Over};
use crate::scratch::PooledScratch;
use crate::worker::Worker;
use sluicegate_http1::Buffer;
use sluicegate_time::{Span, Tick};
use sluicegate_transport::Stream;
use sluicegate_upstream::Leased;

/// How long a tunnel may be silent of which one side has ended.
const HALF_CLOSED: Span = Span::from_secs(30);
/// How long both sides of a WebSocket that is closed for what its client sent may take to end it.
pub const LAST_WORDS: Span = Span::from_secs(2);
/// How often a client that is held is looked at.
const LOOK_EVERY: Span = Span::from_secs(1);

/// One direction.
struct Way {
    /// Bytes that were read and not written yet.
    carried: Option<PooledScratch>,
    /// The source has closed its side.
    ended: bool,
    /// The other side was told.
    told: bool,
    /// Bytes that came.
    bytes: u64,
    /// Bytes that came and bytes that went: what shows that it is alive.
    moved: u64,
    /// The bounds that slow it down; `None`: it goes on as fast as it can.
    bounds: Option<Box<TunnelLimits>>,
    /// Where frames are, of a WebSocket whose bounds do not look at them.
    frames: Option<Frames>,
}

/// Carries bytes until both sides have ended, one fails, or nothing moves for `tunnel_timeout`.
pub async fn run(exchange: &mut Exchange, client: &mut Client, mut lease: Leased) -> ConnectionFate {
    exchange.finish(Outcome::Upgraded);
    lease.mark_finished();
    let worker = Rc::clone(&exchange.worker);
    let connection = Rc::clone(&exchange.connection);
    let _open = worker.enter_tunnel();
    exchange.set_phase(FlightPhase::Tunnel);
    let (mut up, mut down) = begin(exchange, client, &worker);
    let idle = exchange.view.snapshot.server().tunnel_timeout;
    let mut moved_at = worker.alarms.coarse_now();
    let mut closed_at = Tick::MAX;
    poll_fn(|cx| {
        let before = up.moved + down.moved;
        let mut upward = up.poll(cx, &mut client.stream, lease.stream(), &worker);
        let mut downward = down.poll(cx, lease.stream(), &mut client.stream, &worker);
        if up.bounds.is_some()
            && let Some(over) = look_at_messages(exchange, &mut up, &mut down)
        {
            closed_at = worker.alarms.coarse_now() + LAST_WORDS;
            close_both(code_of(over), &mut up, &mut down, &worker);
            upward = up.poll(cx, &mut client.stream, lease.stream(), &worker);
            downward = down.poll(cx, lease.stream(), &mut client.stream, &worker);
        }
        let is_cancelled = connection.alarm.is_cancelled();
        if is_cancelled {
            exchange.finish(Outcome::Cancelled);
        }
        let ends = worker.alarms.is_over() || is_cancelled;
        if ends && closed_at == Tick::MAX && up.knows_frames() && down.knows_frames() {
            closed_at = worker.alarms.coarse_now() + LAST_WORDS;
            close_both(GOING_AWAY, &mut up, &mut down, &worker);
            upward = up.poll(cx, &mut client.stream, lease.stream(), &worker);
            downward = down.poll(cx, lease.stream(), &mut client.stream, &worker);
        }
        if is_cancelled && closed_at == Tick::MAX {
            // It knows no words to say so.
            return Poll::Ready(());
        }
        let now = worker.alarms.coarse_now();
        if up.moved + down.moved != before {
            moved_at = now;
        }
        match (&upward, &downward) {
            (Poll::Ready(Err(_)), _) | (_, Poll::Ready(Err(_))) | (Poll::Ready(_), Poll::Ready(_)) => {
                return Poll::Ready(());
            }
            _ => {}
        }
        let is_half = upward.is_ready() || downward.is_ready();
        let idle = if is_half { Some(idle.map_or(HALF_CLOSED, |idle| idle.min(HALF_CLOSED))) } else { idle };
        let since = moved_at.max(up.held_until()).max(down.held_until());
        let due = idle.map_or(Tick::MAX, |idle| since + idle).min(closed_at);
        if connection.alarm.take_fired() && now >= due {
            return Poll::Ready(());
        }
        // What is held reads nothing, and would not see that its client has gone.
        let is_held = up.held_until() > now;
        if is_held && has_gone(client, &up) {
            return Poll::Ready(());
        }
        worker.alarms.set(&connection.alarm, if is_held { due.min(now + LOOK_EVERY) } else { due });
        Poll::Pending
    })
    .await;
    exchange.bytes_sent = down.bytes;
    ConnectionFate::Cut
}

/// Takes over what each side has sent already, and gives up the room that only messages need.
fn begin(exchange: &mut Exchange, client: &Client, worker: &Rc<Worker>) -> (Way, Way) {
    let (up_bounds, down_bounds) = bounds_of(exchange);
    let scratch = &mut *exchange.scratch;
    let ahead = scratch.inbound.filled().get(scratch.inbound.rest_at()..).unwrap_or_default();
    let frames = exchange.is_websocket.then(Frames::default);
    let up = Way::new(worker, ahead, client.has_closed(), up_bounds, frames.clone());
    let down = Way::new(worker, scratch.outbound.filled(), false, down_bounds, frames);
    // The head stays, for the access log.
    scratch.inbound.keep_head();
    scratch.outbound = Buffer::default();
    (up, down)
}

/// Whether the client of a tunnel that is held has left. Half an end is a whole one in WebSocket, which has close frames
/// to say it.
#[inline(never)]
fn has_gone(client: &mut Client, up: &Way) -> bool {
    let counts = up.bounds.as_ref().is_some_and(|bounds| bounds.counts_messages());
    client.stream.was_reset() || counts && client.stream.is_closed_behind_bytes()
}

/// Counts what was over the limit of messages; what of it, or of a server's frames, ends the connection, once.
#[inline(never)]
fn look_at_messages(exchange: &mut Exchange, up: &mut Way, down: &mut Way) -> Option<Over> {
    let (paced, over) = up.bounds.as_mut()?.take_over();
    let (_, of_server) = down.bounds.as_mut()?.take_over();
    if paced == 0 && over.is_none() && of_server.is_none() {
        return None;
    }
    let meters = exchange.record.route.as_ref()?.messages.as_ref();
    let count = |over, count| meters.inspect(|meters| meters.add(over, count));
    count(Over::Paced, paced);
    let ends = over.or(of_server)?;
    count(ends, 1);
    exchange.finish(if over.is_some() { Outcome::MessageLimit } else { Outcome::UpstreamError });
    Some(ends)
}

/// Tells both sides that it ends, the client by this code.
#[inline(never)]
fn close_both(code: u16, up: &mut Way, down: &mut Way, worker: &Worker) {
    let [a, b, c, d, ..] = worker.random().to_ne_bytes();
    up.end_with(&masked_close(GOING_AWAY, [a, b, c, d]));
    down.end_with(&close(code));
}

impl Way {
    fn new(
        worker: &Worker,
        bytes: &[u8],
        ended: bool,
        bounds: Option<Box<TunnelLimits>>,
        frames: Option<Frames>,
    ) -> Self {
        let frames = frames.filter(|_| bounds.as_ref().is_none_or(|bounds| !bounds.knows_frames()));
        let mut way = Self { carried: None, ended, told: false, bytes: bytes.len() as u64, moved: 0, bounds, frames };
        if !bytes.is_empty() {
            way.follow(bytes);
            let mut lent = worker.pool.lend();
            match &mut way.bounds {
                None => lent.to_client.made().extend_from_slice(bytes),
                Some(bounds) => bounds.take_ahead(bytes, &mut lent, &worker.clock),
            }
            way.carried = Some(lent);
        }
        way
    }

    /// Takes note of where frames are in what goes on.
    fn follow(&mut self, bytes: &[u8]) {
        if self.frames.as_mut().is_some_and(|frames| !frames.follow(bytes)) {
            self.frames = None;
        }
    }

    /// Whether something can be said between two frames from now on. Where half of a frame's head has gone on just now, that
    /// is known when the rest comes.
    fn knows_frames(&mut self) -> bool {
        if self.frames.as_ref().is_some_and(|frames| frames.partial().is_empty())
            && let Some(frames) = self.frames.take()
        {
            self.bounds.get_or_insert_default().know_frames(frames);
        }
        self.bounds.as_ref().is_some_and(|bounds| bounds.knows_frames())
    }

    /// Says these words, once no frame is open, and ends.
    fn end_with(&mut self, words: &[u8]) {
        if let Some(bounds) = &mut self.bounds {
            bounds.end_with(words);
        }
    }

    /// Until when it is held, or was.
    fn held_until(&self) -> Tick {
        self.bounds.as_ref().map_or(Tick::ZERO, |bounds| bounds.held_until())
    }

    /// Ready when the source has ended and the other side has everything.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut Stream,
        to: &mut Stream,
        worker: &Worker,
    ) -> Poll<io::Result<()>> {
        loop {
            if let Some(lent) = &mut self.carried {
                if let Some(bounds) = &mut self.bounds {
                    ready!(bounds.poll_free(cx));
                }
                let lent = &mut **lent;
                while !lent.to_client.is_empty() {
                    match lent.to_client.poll_write(cx, to, lent.outbound.filled()) {
                        Poll::Ready(Ok(size)) => self.moved += size as u64,
                        Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                        Poll::Pending => return Poll::Pending,
                    }
                }
                if let Some(bounds) = &mut self.bounds
                    && ready!(bounds.poll_more(cx, lent, &worker.clock))
                {
                    continue;
                }
                self.carried = None;
            }
            if let Some(bounds) = &mut self.bounds {
                match bounds.turn(self.ended) {
                    IdleStep::Go => {}
                    IdleStep::Others => {
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    IdleStep::Stopped => return Poll::Pending,
                    IdleStep::Say(words) => {
                        self.ended = true;
                        let mut lent = worker.pool.lend();
                        lent.to_client.made().extend_from_slice(&words);
                        self.carried = Some(lent);
                        continue;
                    }
                }
            }
            if self.ended {
                if !self.told {
                    if to.poll_shutdown(cx).is_pending() {
                        return Poll::Pending;
                    }
                    self.told = true;
                }
                if self.bounds.as_ref().is_some_and(|bounds| bounds.drops()) {
                    return drop_all(cx, from, worker).map(Ok);
                }
                return Poll::Ready(Ok(()));
            }
            if from.poll_read_ready(cx).is_pending() {
                return Poll::Pending;
            }
            let mut lent = worker.pool.lend();
            match from.poll_read(cx, lent.outbound.room()) {
                Poll::Ready(Ok(0)) => self.ended = true,
                Poll::Ready(Ok(size)) => {
                    self.bytes += size as u64;
                    self.moved += size as u64;
                    let scratch = &mut *lent;
                    scratch.outbound.advance(size);
                    self.follow(scratch.outbound.filled());
                    match &mut self.bounds {
                        None => scratch.to_client.add(scratch.outbound.filled(), 0..size),
                        Some(bounds) => bounds.take(scratch, &worker.clock),
                    }
                    self.carried = Some(lent);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

/// Reads what still comes, so that closing does not reset a connection whose peer has not read why it ends. Ready when the
/// peer has ended it too.
#[inline(never)]
fn drop_all(cx: &mut Context<'_>, from: &mut Stream, worker: &Worker) -> Poll<()> {
    loop {
        ready!(from.poll_read_ready(cx));
        let mut lent = worker.pool.lend();
        if !matches!(ready!(from.poll_read(cx, lent.outbound.room())), Ok(1..)) {
            return Poll::Ready(());
        }
    }
}
