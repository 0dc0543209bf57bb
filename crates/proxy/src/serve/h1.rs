//! HTTP/1 clients: a connection from its first byte to its last, one exchange after the other.
//!
//! While nothing comes, a connection holds no buffer and no exchange. Everything that it waits for is polled by its one
//! task, and everything that can take too long is one alarm on the worker's wheel.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Poll;

use tokio::net::TcpStream;
use tokio::task::coop::consume_budget;

use super::begin::begin;
use super::h2;
use crate::client::{Client, Connection, LINGER, Listening, PeerFacts};
use crate::deadlines::Dismissed;
use crate::endings::Cause;
use crate::exchange::{Exchange, capturing};
use crate::forward::{ConnectionFate, MAX_DISCARD};
use crate::scratch::{PooledScratch, Scratch};
use crate::walk;
use crate::worker::{Open, Worker};
use sluicegate_http1::{Fault, Side};
use sluicegate_http2::PREFACE;
use sluicegate_time::Span;
use sluicegate_transport::Stream;

/// The most that a lingering close reads, in bytes.
const MAX_LINGER: u64 = 16 * 1024 * 1024;
/// How long a connection that is to close waits for a request that may be on its way.
pub const LAST_REQUEST: Span = Span::from_millis(500);

/// The outcome of a wait for a request on an idle connection.
enum Arrived {
    /// A head of this many bytes.
    Head(usize),
    /// Bytes that never become a head.
    Fault(Fault),
    /// A part of a head, and the rest not in time.
    Late,
    /// Not even a byte yet.
    NotYet,
    /// The client's end.
    Nothing,
}

/// Serves one connection until it ends; once its listener closes, until the request that it carries has.
///
/// It is no `async fn`, because that would keep room for its arguments beside what they become.
#[allow(clippy::manual_async_fn, reason = "see above: every idle connection is one of these")]
pub fn serve(open: Open, mut client: Client) -> impl Future<Output = ()> {
    async move {
        let (worker, connection) = (open.worker(), &open.connection);
        let mut kept = None;
        let mut has_answered = false;
        poll_fn(|cx| {
            connection.alarm.wakes(cx);
            Poll::Ready(())
        })
        .await;
        connection.list_silent(connection.idle_since.get());
        loop {
            let mut scratch = match kept.take() {
                Some(scratch) => {
                    // The next request is here already, and so may be hundreds: others have their turn in between.
                    consume_budget().await;
                    scratch
                }
                None if wait_for_bytes(worker, connection, &mut client).await => worker.pool.lend(),
                None => return client.stream.say_goodbye().await,
            };
            let arrived = read_head(worker, connection, &mut client, &mut scratch, has_answered).await;
            let head_bytes = match arrived {
                // Only as the first thing on a connection; by ALPN it would have been another one.
                Arrived::Head(_) if !has_answered && !connection.facts.is_tls && is_preface(&scratch) => {
                    connection.delist();
                    let ahead = scratch.inbound.filled().to_vec();
                    drop(scratch);
                    let connection_of_h2 = open.connection.as_h2(client.stream.own_end());
                    return Box::pin(h2::serve(open.worker(), client.stream, ahead, &connection_of_h2)).await;
                }
                Arrived::Head(head_bytes) => head_bytes,
                Arrived::NotYet => {
                    if has_answered {
                        connection.rest(connection.idle_since.get());
                    } else {
                        connection.list_silent(worker.alarms.coarse_now());
                    }
                    continue;
                }
                Arrived::Nothing => return client.stream.say_goodbye().await,
                Arrived::Fault(_) | Arrived::Late => 0,
            };
            has_answered = true;
            connection.begin_request();
            let now = worker.clock.now();
            worker.alarms.note(now);
            let is_client = !(connection.facts.is_own || connection.facts.asks.is_some());
            if is_client && worker.denies(connection.peer.ip()) {
                // Answers of before may be on their way: an end does not spoil them, as a reset might.
                worker.connections.denied.inc();
                return;
            }
            if connection.count_request() {
                worker.connections.max_requests.inc();
            }
            let mut exchange = Exchange::new(worker, connection, scratch, head_bytes, now);
            let fault = match arrived {
                Arrived::Fault(fault) => Some(Cause::Fault(fault)),
                Arrived::Late => Some(Cause::LateHead),
                Arrived::Nothing | Arrived::NotYet => None,
                Arrived::Head(_) => begin(&mut exchange).err().map(Cause::Fault),
            };
            let mut afterwards = match fault {
                Some(cause) => walk::answer_fault(&mut exchange, &mut client, cause).await,
                None => walk::answer(&mut exchange, &mut client).await,
            };
            if capturing::is_due(&exchange) {
                Box::pin(capturing::finish(&mut exchange, &mut client)).await;
            }
            if afterwards == ConnectionFate::Drain {
                // It has its answer: what the client still sends takes nobody's place.
                drop(std::mem::take(&mut exchange.permit));
                afterwards = drain(&mut exchange, &mut client).await;
            }
            match afterwards {
                ConnectionFate::Keep => {}
                ConnectionFate::Drain | ConnectionFate::Linger => {
                    return Box::pin(linger(exchange.end(), worker, connection, client)).await;
                }
                ConnectionFate::Close => {
                    let rest = exchange.scratch.inbound.rest_at() < exchange.scratch.inbound.len();
                    if rest {
                        return Box::pin(linger(exchange.end(), worker, connection, client)).await;
                    }
                    drop(exchange);
                    return client.stream.say_goodbye().await;
                }
                ConnectionFate::Cut => return,
            }
            let mut scratch = exchange.end();
            scratch.keep_rest();
            scratch.outbound.clear();
            scratch.head_end.reset();
            scratch.request.clear();
            if scratch.inbound.is_empty() {
                let now = worker.alarms.coarse_now();
                connection.rest(now);
            } else {
                kept = Some(scratch);
            }
        }
    }
}

/// Whether an HTTP/2 client speaks, by prior knowledge (RFC 9113, 3.3). The bytes behind the head may not be here yet.
fn is_preface(scratch: &Scratch) -> bool {
    let come = scratch.inbound.filled();
    let length = come.len().min(PREFACE.len());
    come[..length] == PREFACE[..length]
}

/// Waits for the first byte of a request; false when the connection is to close.
async fn wait_for_bytes(worker: &Rc<Worker>, connection: &Rc<Connection>, client: &mut Client) -> bool {
    let idle = worker.keep_alive_timeout();
    let since = connection.idle_since.get();
    let mut last_call = None;
    let mut is_armed = false;
    poll_fn(|cx| {
        if client.has_closed() {
            return Poll::Ready(false);
        }
        let take_fired = connection.alarm.take_fired();
        // Woken, and not by the alarm: the read will tell.
        if is_armed && !take_fired || client.stream.poll_read_ready(cx).is_ready() {
            return Poll::Ready(true);
        }
        if take_fired && let Some(why) = connection.alarm.take_dismissal() {
            if client.stream.has_unread() {
                // A request is on its way after all: another connection makes room.
                connection.delist();
                return Poll::Ready(true);
            }
            worker.connections.reclaimed(why);
            if why == Dismissed::Silent {
                // Nothing was said that a reset could spoil, and the kernel keeps nothing of it.
                client.stream.abort();
            }
            return Poll::Ready(false);
        }
        is_armed = true;
        let now = worker.alarms.coarse_now();
        let mut due = since + idle;
        if connection.is_closing() {
            // A request may be on its way: each answer says that it is the last one, and only a connection over which
            // none comes for a while is closed without having said so.
            due = due.min(*last_call.get_or_insert(now + LAST_REQUEST));
        }
        if take_fired && now >= due {
            return Poll::Ready(false);
        }
        worker.alarms.set(&connection.alarm, due);
        Poll::Pending
    })
    .await
}

/// Reads until a head is there.
async fn read_head(
    worker: &Rc<Worker>,
    connection: &Rc<Connection>,
    client: &mut Client,
    scratch: &mut PooledScratch,
    has_answered: bool,
) -> Arrived {
    let limits = worker.head_limits();
    let mut due = None;
    poll_fn(|cx| {
        loop {
            let Scratch { inbound, head_end, .. } = &mut **scratch;
            match head_end.find(inbound.filled(), Side::Request, &limits) {
                Ok(None) => {}
                Ok(Some(length)) => {
                    head_end.reset();
                    return Poll::Ready(Arrived::Head(length));
                }
                Err(fault) => return Poll::Ready(Arrived::Fault(fault)),
            }
            if inbound.room().is_empty() {
                inbound.compact();
                let more = inbound.capacity() * 4;
                // Room for one byte more than is allowed, so that too much can be told.
                inbound.grow(more.min(limits.max_bytes + 1));
            }
            match client.poll_read(cx, inbound.room()) {
                Poll::Ready(Ok(size @ 1..)) => inbound.advance(size),
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Arrived::Nothing),
                // The socket was taken for readable and is not: the connection goes on being idle.
                Poll::Pending if inbound.is_empty() => return Poll::Ready(Arrived::NotYet),
                Poll::Pending => {
                    if let Some(why) = connection.alarm.take_dismissal() {
                        if !client.stream.has_unread() {
                            worker.connections.reclaimed(why);
                            if !has_answered {
                                // The kernel keeps nothing of it. Answers of before may be on their way, which a reset destroys.
                                client.stream.abort();
                            }
                            return Poll::Ready(Arrived::Nothing);
                        }
                        // More of it is here: another connection makes room.
                        connection.delist();
                    }
                    let now = worker.alarms.coarse_now();
                    connection.list_silent(now);
                    let due = *due.get_or_insert_with(|| worker.clock.now() + worker.head_timeout());
                    if connection.alarm.take_fired() && now >= due {
                        // An empty line behind a request is the beginning of nothing.
                        let is_begun = inbound.filled().iter().any(|byte| !matches!(byte, b'\r' | b'\n'));
                        return Poll::Ready(if is_begun { Arrived::Late } else { Arrived::Nothing });
                    }
                    worker.alarms.set(&connection.alarm, due);
                    return Poll::Pending;
                }
            }
        }
    })
    .await
}

/// Reads what is left of a request that has its answer.
async fn drain(exchange: &mut Exchange, client: &mut Client) -> ConnectionFate {
    let until = exchange.worker.clock.now() + LINGER;
    let mut left = MAX_DISCARD;
    let ended = poll_fn(|cx| {
        loop {
            let Scratch { inbound, upload, .. } = &mut *exchange.scratch;
            if upload.is_complete() {
                return Poll::Ready(ConnectionFate::Keep);
            }
            inbound.drop_body();
            match client.poll_read(cx, inbound.room()) {
                Poll::Ready(Ok(size @ 1..)) => inbound.advance(size),
                Poll::Ready(_) => return Poll::Ready(ConnectionFate::Close),
                Poll::Pending if exchange.worker.alarms.coarse_now() >= until => {
                    return Poll::Ready(ConnectionFate::Linger);
                }
                Poll::Pending => {
                    exchange.connection.alarm.take_fired();
                    exchange.worker.alarms.set(&exchange.connection.alarm, until);
                    return Poll::Pending;
                }
            }
            let Ok(accepted) = inbound.accept(upload) else { return Poll::Ready(ConnectionFate::Linger) };
            match left.checked_sub(accepted.taken as u64) {
                Some(rest) => left = rest,
                None => return Poll::Ready(ConnectionFate::Linger),
            }
        }
    });
    let ended = ended.await;
    if ended == ConnectionFate::Close {
        exchange.scratch.inbound.drops_rest();
    }
    ended
}

/// Reads and drops what the client still sends, so that closing does not reset the connection before it has read its
/// answer. Nothing of it is taken for a request.
async fn linger(mut scratch: PooledScratch, worker: &Rc<Worker>, connection: &Rc<Connection>, mut client: Client) {
    let until = worker.clock.now() + LINGER;
    let mut left = MAX_LINGER;
    poll_fn(|cx| {
        // On a socket this does not wait.
        let _ = client.stream.poll_shutdown(cx);
        loop {
            scratch.inbound.clear();
            match client.poll_read(cx, scratch.inbound.room()) {
                Poll::Ready(Ok(size @ 1..)) if left > size as u64 => left -= size as u64,
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending if worker.alarms.coarse_now() >= until => return Poll::Ready(()),
                Poll::Pending => {
                    connection.alarm.take_fired();
                    worker.alarms.set(&connection.alarm, until);
                    return Poll::Pending;
                }
            }
        }
    })
    .await;
}

/// The same for a socket of which nothing was understood.
pub async fn linger_on(worker: &Rc<Worker>, peer: SocketAddr, socket: TcpStream) {
    let (facts, account, listening) = (PeerFacts::default(), Rc::default(), Listening::new(peer.into()));
    let connection = Connection::new(0, peer, facts, account, listening, u32::MAX, worker.clock.now());
    poll_fn(|cx| {
        connection.alarm.wakes(cx);
        Poll::Ready(())
    })
    .await;
    linger(worker.pool.lend(), worker, &connection, Client::new(Stream::Plain(socket))).await;
    worker.alarms.cancel(&connection.alarm);
}
