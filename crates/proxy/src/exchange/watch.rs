//! Watching the client while the gateway waits for something else: a place in a queue, a connection.

use std::task::{Context, Poll};

use super::life::Exchange;
use crate::client::{Client, Gone, PROBE};
use crate::endings::ExchangeError;
use crate::scratch::Scratch;
use sluicegate_http1::Version;
use sluicegate_time::Tick;

/// Ready when the client has gone, or an operator has cancelled its request: either is what broke it. Sets the alarm for
/// `due`, or for when the client has to be looked at before.
pub fn poll_gone(cx: &mut Context<'_>, exchange: &mut Exchange, client: &mut Client, due: Tick) -> Poll<ExchangeError> {
    match look(cx, exchange, client, due) {
        Ok(()) if exchange.is_cancelled() => Poll::Ready(ExchangeError::Cancelled),
        Ok(()) => Poll::Pending,
        Err(gone) => Poll::Ready(gone.into()),
    }
}

fn look(cx: &mut Context<'_>, exchange: &mut Exchange, client: &mut Client, due: Tick) -> Result<(), Gone> {
    while !exchange.scratch.upload.is_complete() && read_ahead(cx, exchange, client)? {}
    let Exchange { worker, connection, scratch, .. } = exchange;
    let Scratch { inbound, request, upload, to_client, .. } = &mut **scratch;
    if upload.is_complete() {
        while client.poll_ahead(cx, inbound)? {}
    }
    let rung = connection.alarm.take_fired();
    let now = worker.alarms.coarse_now();
    let probe = rung && client.look(now)?;
    if probe && to_client.is_empty() && request.version() == Version::Http11 {
        to_client.made().extend_from_slice(PROBE);
    }
    if !to_client.is_empty() && matches!(to_client.poll_write(cx, &mut client.stream, &[]), Poll::Ready(Err(_))) {
        return Err(Gone);
    }
    let is_unread = inbound.room().is_empty();
    let next = client.next_look(is_unread, now);
    worker.alarms.set(&connection.alarm, due.min(next));
    Ok(())
}

/// Reads on in the request's body, as far as there is room for it, since its end may be the client's.
fn read_ahead(cx: &mut Context<'_>, exchange: &mut Exchange, client: &mut Client) -> Result<bool, Gone> {
    let Scratch { inbound, upload, .. } = &mut *exchange.scratch;
    if inbound.len() < inbound.body().end {
        return Ok(false);
    }
    inbound.cut_taken();
    if inbound.room().is_empty() {
        return Ok(false);
    }
    match client.poll_read(cx, inbound.room()) {
        Poll::Ready(Ok(size @ 1..)) => inbound.advance(size),
        Poll::Ready(_) => return Err(Gone),
        Poll::Pending => return Ok(false),
    }
    // A fault stays, and is met again when the body is sent on.
    Ok(inbound.accept(upload).is_ok())
}
