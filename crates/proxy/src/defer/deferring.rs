//! Keeps a request that a limit refuses, on routes with `on_limit = "defer"`: all of it is read, then it is offered to the
//! store, and its client is told 202 once it is durable.
//!
//! Where there is no room for it, in the store or for its body in the memory of the worker, it is refused as anywhere else.
//! Requests that the gateway sends itself again are never kept a second time, and neither are those that ask for another
//! protocol, come with a client certificate, or are calls of gRPC.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::client::{Client, PROBE, fault_in};
use crate::deadlines::{ExchangeStage, ExchangeTimeouts, Overdue, Timers};
use crate::decide::{Next, RefusedRequest, end_by, name_request, refuse};
use crate::endings::{Cause, EndingFate, ExchangeError, TimeoutKind};
use crate::exchange::deferral_path::PREFIX;
use crate::exchange::{Exchange, write_rate_fields};
use crate::headers::{Sink as _, passed};
use crate::scratch::{Capture, Scratch};
use sluicegate_dead_letter::{Deferral, Unkept, deferred_id as id_text};
use sluicegate_http1::{Framing, Version};
use sluicegate_time::{Span, Tick};

/// How long a client waits for the disk.
const KEEP_WITHIN: Duration = Duration::from_secs(10);

/// Why a request is not kept.
enum NotRead {
    /// It cannot be understood, is too large, late, or its client has gone.
    ExchangeError(ExchangeError),
    /// The worker has no room for its body.
    NoRoom,
}

/// Keeps a request, or refuses it.
pub async fn defer(exchange: &mut Exchange, client: &mut Client, refused: RefusedRequest) -> Next {
    let kept = match read_body(exchange, client).await {
        Ok(()) => keep(exchange, &refused).await,
        Err(NotRead::NoRoom) => Err(Unkept::Full),
        Err(NotRead::ExchangeError(error)) => {
            limit_capture(exchange);
            return Next::Over(end_by(exchange, Cause::ExchangeError(&error), false));
        }
    };
    // The dead letter has no more of it than its route says.
    limit_capture(exchange);
    match kept {
        Ok(id) => accepted(exchange, &refused, id),
        Err(Unkept::Full) => refuse::refuse(exchange, &refused),
        Err(Unkept::Disk) => refuse::refuse_unkept(exchange, &refused),
    }
}

/// Tells the client where it may ask for its request.
fn accepted(exchange: &mut Exchange, refused: &RefusedRequest, id: u128) -> Next {
    refuse::note_deferred(exchange, refused);
    let place = format!("{PREFIX}{}", id_text(id));
    let Exchange { view, scratch, record, .. } = &mut *exchange;
    let Scratch { reply, report, text, .. } = &mut **scratch;
    reply.clear();
    reply.status = 202;
    reply.put(b"content-type", b"application/json");
    reply.put(b"location", place.as_bytes());
    reply.put_no_store();
    reply.body =
        format!("{{\"id\":\"{}\",\"state\":\"pending\",\"location\":\"{place}\"}}\n", id_text(id)).into_bytes();
    write_rate_fields(view, record, report, None, text, reply);
    name_request(exchange);
    Next::Over(EndingFate::Keep)
}

/// Offers the request, and waits until it is durable.
async fn keep(exchange: &Exchange, refused: &RefusedRequest) -> Result<u128, Unkept> {
    let store = exchange.view.snapshot.deferrals.as_ref().ok_or(Unkept::Full)?;
    let request = Some(deferral(exchange, refused)).filter(|request| request.unfit().is_none());
    let told = store.offer(request.ok_or(Unkept::Full)?)?;
    // A disk that hangs keeps nobody waiting for ever. The store ends without a word when the process does.
    let told = tokio::time::timeout(KEEP_WITHIN, told).await;
    told.map_or(Err(Unkept::Disk), |told| told.unwrap_or(Err(Unkept::Disk)))
}

/// The request, all of it.
fn deferral(exchange: &Exchange, refused: &RefusedRequest) -> Deferral {
    let RefusedRequest { route, limit, refusal, .. } = refused;
    let request = exchange.request();
    let mut order = limit.name().as_bytes().to_vec();
    let parts = exchange.key_parts(Some(limit));
    for part in &parts {
        order.extend_from_slice(b"\0");
        order.extend_from_slice(part.source.as_bytes());
        order.extend_from_slice(b"\0");
        order.extend_from_slice(part.value.as_bytes());
    }
    let client = exchange.client_address();
    if parts.is_empty() {
        order.extend_from_slice(client.to_string().as_bytes());
    }
    let mut target = request.path_bytes().to_vec();
    if let Some(query) = request.query_bytes() {
        target.push(b'?');
        target.extend_from_slice(query);
    }
    let body = exchange.scratch.inbound.capture.as_ref().map_or(&[][..], |capture| capture.bytes()).to_vec();
    Deferral {
        route: Arc::clone(&route.spec.name),
        limit: Arc::clone(limit.name()),
        order,
        client,
        trusted_peer: exchange.view.rules.clients().trusts(exchange.connection.peer.ip()),
        is_https: exchange.context().origin.scheme == "https",
        request_id: exchange.request_id(),
        method: request.method().to_owned(),
        host: request.authority_bytes().unwrap_or_default().to_vec(),
        target,
        headers: passed::fields(&request).map(|(name, value)| (name.to_vec(), value.to_vec())).collect(),
        body,
        not_before: refusal.retry_at.unwrap_or(Tick::ZERO),
        idempotency_key: format!("{:016x}{:016x}", exchange.worker.random(), exchange.worker.random()),
    }
}

/// Reads the whole body into memory.
async fn read_body(exchange: &mut Exchange, client: &mut Client) -> Result<(), NotRead> {
    let Some(section) = exchange.view.snapshot.model.dead_letter.as_ref() else { return Err(NotRead::NoRoom) };
    let most = section.deferred.max_body_size;
    let told = match exchange.scratch.request.framing() {
        Framing::Length(length) => length.min(most),
        _ => 0,
    };
    // Where there is no room for it none of it is read.
    let store = exchange.view.snapshot.deferrals.as_ref();
    if !store.is_some_and(|store| store.has_room(exchange.client_address(), told)) {
        return Err(NotRead::NoRoom);
    }
    let room = exchange.body_room();
    let Scratch { inbound, request, upload, to_client, .. } = &mut *exchange.scratch;
    let framing = request.framing();
    inbound.capture = None;
    if matches!(framing, Framing::Length(length) if length > most) || upload.content() > most {
        return Err(NotRead::ExchangeError(ExchangeError::TooLarge));
    }
    if framing == Framing::None {
        return Ok(());
    }
    // All that came while it waited is here, or it was written over.
    if !inbound.is_kept() {
        return Err(NotRead::NoRoom);
    }
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let mut capture = Capture::new(most, framing, room);
    capture.take(inbound.filled().get(inbound.body()).unwrap_or_default());
    inbound.capture = Some(Box::new(capture));
    if request.expects_continue() && upload.content() == 0 && request.version() == Version::Http11 {
        to_client.made().extend_from_slice(PROBE);
    }
    exchange.scratch.timers = Timers::new(Tick::MAX, false);
    let mut moved_at = exchange.worker.alarms.coarse_now();
    poll_fn(|cx| poll_body(exchange, client, most as u64, &mut moved_at, cx)).await
}

fn poll_body(
    exchange: &mut Exchange,
    client: &mut Client,
    most: u64,
    moved_at: &mut Tick,
    cx: &mut Context<'_>,
) -> Poll<Result<(), NotRead>> {
    let failed = |error| Poll::Ready(Err(NotRead::ExchangeError(error)));
    loop {
        let Scratch { inbound, upload, to_client, .. } = &mut *exchange.scratch;
        if !to_client.is_empty() && matches!(to_client.poll_write(cx, &mut client.stream, &[]), Poll::Ready(Err(_))) {
            return failed(ExchangeError::ClientGone);
        }
        let Some(capture) = &inbound.capture else { return Poll::Ready(Err(NotRead::NoRoom)) };
        if upload.content() > most {
            return failed(ExchangeError::TooLarge);
        }
        if capture.kept() as u64 != upload.content() {
            return Poll::Ready(Err(NotRead::NoRoom));
        }
        // The bytes of HTTP/1 that said 100 have to be out before an answer.
        if upload.is_complete() && to_client.is_empty() {
            return Poll::Ready(Ok(()));
        }
        inbound.drop_body();
        let read = if upload.is_complete() { Poll::Pending } else { client.poll_read(cx, inbound.room()) };
        match read {
            Poll::Ready(Ok(size @ 1..)) => inbound.advance(size),
            // A client that has not sent all of it waits for no answer.
            Poll::Ready(Ok(0)) => return failed(ExchangeError::ClientGone),
            Poll::Ready(Err(error)) => {
                return failed(fault_in(&error).map_or(ExchangeError::ClientGone, ExchangeError::Request));
            }
            Poll::Pending => {
                return match wait(exchange, *moved_at) {
                    Some(late) => failed(ExchangeError::Timeout(late)),
                    None => Poll::Pending,
                };
            }
        }
        *moved_at = exchange.worker.alarms.coarse_now();
        if let Err(fault) = inbound.accept(upload) {
            return failed(ExchangeError::Request(fault));
        }
    }
}

/// Sets the alarm for when the client is too slow, unless it is.
fn wait(exchange: &mut Exchange, moved_at: Tick) -> Option<TimeoutKind> {
    let server = exchange.view.snapshot.server();
    let patience = ExchangeTimeouts {
        deadline: Tick::MAX,
        respond_by: Tick::MAX,
        response_timeout: Span::MAX,
        idle: server.body_timeout,
        min_body_rate: server.min_body_rate.unwrap_or(0),
    };
    let now = exchange.worker.alarms.coarse_now();
    let Scratch { upload, timers, .. } = &mut *exchange.scratch;
    let standing = ExchangeStage {
        is_answered: false,
        is_uploading: true,
        waits_for_client: true,
        is_moving: true,
        uploaded: upload.content(),
        moved_at,
    };
    if exchange.connection.alarm.take_fired()
        && let Some(overdue) = timers.overdue(&patience, &standing, now)
    {
        return Some(if overdue == Overdue::SlowBody { TimeoutKind::ClientDrips } else { TimeoutKind::ClientSends });
    }
    let due = timers.next(&patience, &standing, now);
    exchange.worker.alarms.set(&exchange.connection.alarm, due);
    None
}

/// Keeps no more of the body than the route says that dead letters have.
fn limit_capture(exchange: &mut Exchange) {
    let most = exchange.record.route.as_ref().and_then(|route| route.spec.capture_body);
    let capture = &mut exchange.scratch.inbound.capture;
    match most {
        Some(most @ 1..) => {
            if let Some(capture) = capture {
                capture.limit(usize::try_from(most).unwrap_or(usize::MAX));
            }
        }
        _ => *capture = None,
    }
}
