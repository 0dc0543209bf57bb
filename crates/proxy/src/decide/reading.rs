//! Reads the body of a request before admission, where limits of its route look at it.
//!
//! Bound: a body is read up to `key_body` of its route and up to `head_timeout` from the arrival of its request, and all that are
//! read at once share the room of bodies that are kept for dead letters, by client too. Where a body does not fit, limits
//! know nothing of it, and the request goes on.

use std::future::poll_fn;
use std::task::{Context, Poll};

use crate::client::{Client, PROBE, fault_in};
use crate::endings::ExchangeError;
use crate::exchange::Exchange;
use crate::headers::passed;
use crate::scratch::{BUFFER_BYTES, Capture, Scratch};
use sluicegate_admission::{BodyFacts, BodyReader, BodyRules};
use sluicegate_http1::{Framing, Version};
use sluicegate_time::Tick;

/// Reads the fields of a body. The error ends the request: its client has gone, or its body cannot be understood.
pub async fn read(exchange: &mut Exchange, client: &mut Client, rules: &BodyRules) -> Result<(), ExchangeError> {
    let facts = if is_readable(exchange, rules) {
        collect(exchange, client, rules).await?
    } else {
        BodyFacts::unusable(&rules.fields)
    };
    exchange.scratch.state.body = Some(Box::new(facts));
    Ok(())
}

/// Whether a body may be read to its end: it has no content coding, its type is one, and it is not said to be too long.
fn is_readable(exchange: &Exchange, rules: &BodyRules) -> bool {
    let request = exchange.request();
    let sole = |name: &[u8]| passed::sole(&request, name, &<[u8]>::eq);
    let is_plain =
        sole(b"content-encoding").is_some_and(|coding| coding.is_empty() || coding.eq_ignore_ascii_case(b"identity"));
    let is_long = matches!(exchange.scratch.request.framing(), Framing::Length(length) if length > rules.most);
    is_plain && sole(b"content-type").is_some() && !is_long
}

async fn collect(exchange: &mut Exchange, client: &mut Client, rules: &BodyRules) -> Result<BodyFacts, ExchangeError> {
    let most = usize::try_from(rules.most).unwrap_or(usize::MAX);
    let until = exchange.arrived + exchange.view.snapshot.server().head_timeout;
    let share = exchange.connection.account.captured.get_or_init(Default::default);
    let Scratch { request, upload, to_client, .. } = &mut *exchange.scratch;
    let mut kept = Capture::new(most, request.framing(), &exchange.worker.captures, share);
    if request.expects_continue() && upload.content() == 0 && request.version() == Version::Http11 {
        // The limits that have no need of the body let the request pass: its client is asked for it.
        to_client.made().extend_from_slice(PROBE);
    }
    let mut taken = exchange.scratch.inbound.body().start;
    poll_fn(|cx| poll_collect(cx, (exchange, client), (&mut kept, &mut taken), (most, until))).await?;
    let body = kept.body(exchange.scratch.upload.is_complete());
    let mut reader = BodyReader::new(&rules.fields, passed::field(&exchange.request(), b"content-type"));
    reader.feed(&body.bytes);
    Ok(reader.finish(body.is_whole))
}

/// Ready when all of the body is here, or no more of it is to be read.
fn poll_collect(
    cx: &mut Context<'_>,
    (exchange, client): (&mut Exchange, &mut Client),
    (kept, taken): (&mut Capture, &mut usize),
    (most, until): (usize, Tick),
) -> Poll<Result<(), ExchangeError>> {
    let Exchange { worker, connection, scratch, .. } = exchange;
    let Scratch { inbound, upload, to_client, .. } = &mut **scratch;
    // Chunks may be small, and what is around them is sent on too.
    let room = 2 * most + BUFFER_BYTES;
    connection.alarm.take_fired();
    loop {
        kept.take(inbound.filled().get(*taken..inbound.body().end).unwrap_or_default());
        *taken = inbound.body().end;
        if upload.is_complete() || kept.is_full() || inbound.body().len() >= room {
            return Poll::Ready(Ok(()));
        }
        if !to_client.is_empty() && matches!(to_client.poll_write(cx, &mut client.stream, &[]), Poll::Ready(Err(_))) {
            return Poll::Ready(Err(ExchangeError::ClientGone));
        }
        inbound.make_room(room);
        match client.poll_read(cx, inbound.room()) {
            Poll::Ready(Ok(size @ 1..)) => inbound.advance(size),
            Poll::Ready(Ok(_)) => return Poll::Ready(Err(ExchangeError::ClientGone)),
            Poll::Ready(Err(error)) => {
                return Poll::Ready(Err(fault_in(&error).map_or(ExchangeError::ClientGone, ExchangeError::Request)));
            }
            Poll::Pending if worker.alarms.coarse_now() >= until => return Poll::Ready(Ok(())),
            Poll::Pending => {
                worker.alarms.set(&connection.alarm, until);
                return Poll::Pending;
            }
        }
        inbound.accept(upload).map_err(ExchangeError::Request)?;
    }
}
