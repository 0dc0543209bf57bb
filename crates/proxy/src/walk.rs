//! The walk of one request, from its head to the end of its answer. It names each room that the request passes, in that
//! order, and does little else.
//!
//! Invariant: it returns once the answer is over, whatever happened, and says what becomes of the client's connection.
//! Caller: `serve`.

use std::future::poll_fn;
use std::task::{Context, Poll};

use crate::client::Client;
use crate::decide::{Next, Pause, Waited, asked, end_by, policy, reading, waiting};
use crate::defer::{deferral_status, deferring};
use crate::endings::{Cause, EndingFate, ExchangeError};
use crate::exchange::{Changes, Exchange, MessageRoom, ResponseOrigin, explanation};
use crate::flights::FlightPhase;
use crate::forward::{self, ConnectionFate, RelayEnd};
use crate::headers::Sink;
use crate::meters::Outcome;
use crate::scratch::Scratch;
use crate::tunnel;
#[cfg(debug_assertions)]
use crate::worker::panics;
use sluicegate_http1::{HeadWriter, Piece, Version};
use sluicegate_time::Tick;

/// One request, from its head to the end of its answer.
pub(super) async fn answer(exchange: &mut Exchange, client: &mut Client) -> ConnectionFate {
    let next = match decide(exchange) {
        Ok(next) => next,
        // Boxed, since it is rare and large.
        Err(pause) => match Box::pin(after(pause, exchange, client)).await {
            Ok(next) => next,
            Err(fate) => return fate,
        },
    };
    // By reference: a connection has room for one copy of it.
    match &next {
        Next::Over(fate) => reply(exchange, client, *fate).await,
        Next::Forward(admitted, upstream) => {
            let in_flight = exchange.worker.enter_flight();
            #[cfg(debug_assertions)]
            panics::on_demand(exchange.request().path());
            let forwarded = forward::forward(exchange, client, admitted, upstream).await;
            drop(in_flight);
            match forwarded {
                Ok((RelayEnd::Answered { upstream: left, client }, lease)) => {
                    exchange.finish(Outcome::Forwarded);
                    forward::give_back(exchange, admitted, lease, left);
                    client
                }
                Ok((RelayEnd::Switched, lease)) => Box::pin(tunnel::run(exchange, client, lease)).await,
                Err(error) => give_up(exchange, client, &error).await,
            }
        }
    }
}

fn decide(exchange: &mut Exchange) -> Result<Next, Pause> {
    let facts = &exchange.connection.facts;
    match facts.redirect_to_https {
        Some(port) => Ok(policy::redirect(exchange, port)),
        None if facts.asks.is_some() => Err(Pause::Question),
        None => policy::decide(exchange),
    }
}

/// The next step after a pause, or the end of a connection whose client has gone meanwhile.
async fn after(mut pause: Pause, exchange: &mut Exchange, client: &mut Client) -> Result<Next, ConnectionFate> {
    loop {
        let decided = match pause {
            Pause::Wait(waiting) => {
                exchange.set_phase(FlightPhase::Waiting);
                let decided = match waiting::wait(exchange, client, waiting).await {
                    Waited::Admitted(admitted) => Ok(policy::admit(exchange, admitted)),
                    Waited::InVain(route, key, refusal) => policy::defer_or_refuse(exchange, route, key, refusal),
                    Waited::ClientGone => return Err(ConnectionFate::Cut),
                    Waited::Cancelled => {
                        let cause = Cause::ExchangeError(&ExchangeError::Cancelled);
                        Ok(Next::Over(end_by(exchange, cause, false)))
                    }
                };
                if !matches!(decided, Ok(Next::Forward(..))) {
                    // It waits no more, and goes nowhere.
                    exchange.leaves_flight();
                }
                decided
            }
            Pause::Body(body) => match reading::read(exchange, client, &body).await {
                Ok(()) => policy::decide_with_body(exchange, exchange.worker.clock.now()),
                Err(ExchangeError::ClientGone) => return Err(ConnectionFate::Cut),
                Err(error) => Ok(Next::Over(end_by(exchange, Cause::ExchangeError(&error), false))),
            },
            Pause::Defer(refused) => Ok(deferring::defer(exchange, client, *refused).await),
            Pause::Question => match asked::answer(exchange, client).await {
                Ok(()) => Ok(Next::Over(EndingFate::Keep)),
                Err(ExchangeError::ClientGone) => return Err(ConnectionFate::Cut),
                Err(error) => Ok(Next::Over(end_by(exchange, Cause::ExchangeError(&error), false))),
            },
            Pause::Status => Ok(Next::Over(deferral_status::answer(exchange).await)),
        };
        match decided {
            Ok(next) => return Ok(next),
            Err(another) => pause = another,
        }
    }
}

/// Answers a request that cannot be understood, and has the connection closed: the bytes behind it may not be what they
/// seem.
pub(super) async fn answer_fault(exchange: &mut Exchange, client: &mut Client, cause: Cause<'_>) -> ConnectionFate {
    let fate = end_by(exchange, cause, false);
    reply(exchange, client, fate).await
}

/// Sends the gateway's own answer, which lies ready.
async fn reply(exchange: &mut Exchange, client: &mut Client, fate: EndingFate) -> ConnectionFate {
    if fate == EndingFate::Cut {
        // By an end, not a reset: answers of before may be on their way, and a reset could take them back. If the client
        // has sent more than was read, the kernel makes it a reset all the same.
        return ConnectionFate::Cut;
    }
    let keep = fate == EndingFate::Keep && forward::can_keep(exchange);
    write_reply(exchange, keep);
    let is_out = write_out(exchange, client).await;
    match (keep, exchange.scratch.upload.is_complete()) {
        _ if fate == EndingFate::Linger => ConnectionFate::Linger,
        _ if !is_out => ConnectionFate::Cut,
        (true, true) => ConnectionFate::Keep,
        (true, false) => ConnectionFate::Drain,
        (false, true) => ConnectionFate::Close,
        (false, false) => ConnectionFate::Linger,
    }
}

fn write_reply(exchange: &mut Exchange, keep: bool) {
    exchange.settle(exchange.scratch.reply.status, None, exchange.worker.alarms.coarse_now());
    let route = exchange.record.route.clone();
    let changes = Changes::of(route.as_deref());
    if changes.is_some_and(|changes| changes.has_edits()) {
        exchange.identify();
    }
    if !exchange.scratch.reply.is_chunked {
        // A call of gRPC is told the status in its message.
        exchange.record.status = Some(exchange.scratch.reply.status);
    }
    let version = exchange.scratch.request.version();
    let is_head = exchange.scratch.request.is_head();
    let explanation = exchange.explanation();
    let (facts, room) = exchange.split();
    let MessageRoom { worker, reply, text, to_client, bytes_sent, .. } = room;
    let now = worker.alarms.coarse_now();
    let mut writer = HeadWriter::response(to_client.made(), reply.status, b"");
    match changes {
        None => {
            writer.lines(&reply.lines);
            worker.date.write(worker.clock.wall(now), &mut writer);
        }
        Some(changes) => {
            let origin = if reply.is_problem { ResponseOrigin::Problem } else { ResponseOrigin::Own };
            let mut sink = changes.sink(&mut writer, origin);
            sink.put_piece(Piece::Lines(&reply.lines));
            worker.date.write(worker.clock.wall(now), &mut sink);
            let context = facts.template_context(reply.status, None);
            let changes = if reply.has_cors { changes.without_cors() } else { changes };
            changes.write(&context, origin, text, &mut writer);
        }
    }
    if let Some(explanation) = explanation {
        writer.field(explanation::FIELD, explanation.as_bytes());
    }
    let is_bodiless = matches!(reply.status, 204 | 304);
    let body: &[u8] = if reply.has_route_body { facts.record.route_body() } else { &reply.body };
    if reply.is_chunked {
        writer.field(b"transfer-encoding", b"chunked");
    } else if !is_bodiless {
        writer.number(b"content-length", body.len() as u64);
    }
    forward::write_connection(keep, version, &mut writer);
    writer.end();
    // The method is that of the request that a call is about, not the call's.
    if reply.is_chunked || !is_bodiless && !is_head {
        *bytes_sent = body.len() as u64;
        to_client.add(body, 0..body.len());
    }
}

/// Writes the reply that lies ready for the client. Whether all of it was written.
async fn write_out(exchange: &mut Exchange, client: &mut Client) -> bool {
    let idle = exchange.view.snapshot.server().body_timeout;
    let mut moved_at = exchange.worker.alarms.coarse_now();
    poll_fn(|cx| {
        loop {
            match poll_write_out(exchange, client, cx) {
                Poll::Ready(Ok(0)) => return Poll::Ready(true),
                Poll::Ready(Ok(_)) => moved_at = exchange.worker.alarms.coarse_now(),
                Poll::Ready(Err(_)) => return Poll::Ready(false),
                Poll::Pending => {
                    let due: Tick = moved_at + idle;
                    if exchange.connection.alarm.take_fired() && exchange.worker.alarms.coarse_now() >= due {
                        return Poll::Ready(false);
                    }
                    exchange.worker.alarms.set(&exchange.connection.alarm, due);
                    return Poll::Pending;
                }
            }
        }
    })
    .await
}

fn poll_write_out(exchange: &mut Exchange, client: &mut Client, cx: &mut Context<'_>) -> Poll<std::io::Result<usize>> {
    let Exchange { scratch, record, .. } = exchange;
    let Scratch { to_client, reply, .. } = &mut **scratch;
    let body = if reply.has_route_body { record.route_body() } else { &reply.body };
    to_client.poll_write(cx, &mut client.stream, body)
}

/// An exchange that broke: an answer if none has begun, else the connection is cut, so that nobody takes what went out
/// for all of it.
async fn give_up(exchange: &mut Exchange, client: &mut Client, error: &ExchangeError) -> ConnectionFate {
    exchange.scratch.state.held.clear();
    if exchange.scratch.state.leads.is_some() {
        forward::give_up_lead(exchange, error);
    }
    let begun = exchange.begun;
    let Scratch { to_client, download, state, .. } = &mut *exchange.scratch;
    if begun {
        let waiting = if state.ahead.is_some() { to_client.pending() } else { to_client.waiting() };
        let taken = download.content().saturating_sub(waiting as u64);
        exchange.bytes_sent = state.left_with.unwrap_or(taken);
    } else if to_client.is_unsent() {
        to_client.clear();
    }
    let fate = end_by(exchange, Cause::ExchangeError(error), begun);
    if fate == EndingFate::Cut && exchange.scratch.request.version() == Version::Http10 {
        // Its end is all that delimits this body: a reset tells that it is not complete.
        client.stream.abort();
    }
    reply(exchange, client, fate).await
}
