//! Reads the body of a request before admission, where limits of its route look at it.
//!
//! Bound: a body is read up to `key_body` of its route and up to `head_timeout` from the arrival of its request. One that does not
//! fit into the buffer that its request has anyway shares the room of bodies with all others, by client too, as long as its buffer
//! is larger: until its server has answered and has all of it, or the request has ended. Where it does not fit there, limits know nothing of it, and the request goes on.

use std::future::poll_fn;
use std::task::{Context, Poll};

use crate::answer::Wants;
use crate::client::{Client, PROBE, fault_in};
use crate::endings::ExchangeError;
use crate::exchange::Exchange;
use crate::headers::passed;
use crate::scratch::{BUFFER_BYTES, ContentReader, ReadBody, Scratch};
use sluicegate_admission::{BodyFacts, BodyReader, BodyRules, RequestView as _};
use sluicegate_http1::{Framing, Version};
use sluicegate_time::Tick;

/// Reads the fields of a body. The error ends the request: its client has gone, or its body cannot be understood.
pub async fn read(exchange: &mut Exchange, client: &mut Client, rules: &BodyRules) -> Result<(), ExchangeError> {
    let body = if is_readable(exchange, rules) {
        read_fields(exchange, client, rules).await?
    } else {
        ReadBody { facts: BodyFacts::unusable(&rules.fields), had_room: true }
    };
    exchange.scratch.state.body = Some(Box::new(body));
    Ok(())
}

/// Whether a body may be read to its end: it has no content coding, its type is one, and it is not said to be too long.
fn is_readable(exchange: &Exchange, rules: &BodyRules) -> bool {
    let context = exchange.context();
    let sole = |name: &str| context.sole_header(name, &<[u8]>::eq);
    let is_plain =
        sole("content-encoding").is_some_and(|coding| coding.is_empty() || coding.eq_ignore_ascii_case(b"identity"));
    let is_long = matches!(exchange.scratch.request.framing(), Framing::Length(length) if length > rules.most);
    is_plain && sole("content-type").is_some() && !is_long
}

/// The reading of one body.
struct Collecting<R> {
    most: u64,
    until: Tick,
    content: ContentReader,
    /// Gets its content.
    reader: R,
    /// How far the bytes were read that are here.
    taken: usize,
    had_room: bool,
    /// Whether all of it was read.
    is_whole: bool,
}

/// Bytes of the body of a question.
pub const MAX_QUESTION: u64 = 1024 * 1024;

/// Reads the body of a question. The inner error: there is none, by the status that says so and why.
pub async fn read_question(
    exchange: &mut Exchange,
    client: &mut Client,
) -> Result<Result<Vec<u8>, (u16, &'static str)>, ExchangeError> {
    const TOO_LARGE: (u16, &str) = (413, "The body of a question has at most 1 MiB.");
    if matches!(exchange.scratch.request.framing(), Framing::Length(length) if length > MAX_QUESTION) {
        return Ok(Err(TOO_LARGE));
    }
    let mut content = Vec::new();
    let take = |bytes: &[u8]| content.extend_from_slice(bytes);
    let (had_room, is_whole) = collect(exchange, client, MAX_QUESTION, take).await?;
    Ok(if is_whole && content.len() as u64 <= MAX_QUESTION {
        Ok(content)
    } else if !had_room {
        Err((503, "There is no room to read more questions now: ask again, or in smaller bodies."))
    } else if exchange.scratch.upload.content() > MAX_QUESTION {
        Err(TOO_LARGE)
    } else {
        Err((408, "The question did not come in time."))
    })
}

/// Reads the body of a call of gRPC of this path; of other paths a text says what is known here. The inner error: this is none, by
/// the status that says so and why.
pub async fn read_call(
    exchange: &mut Exchange,
    client: &mut Client,
    (path, only): (&str, &'static str),
) -> Result<Result<Vec<u8>, (u16, &'static str)>, ExchangeError> {
    let request = exchange.request();
    if !Wants::of(&request, exchange.connection.facts.is_h2).is_grpc {
        return Ok(Err((415, "This listener is asked by gRPC: POST over HTTP/2 of type application/grpc.")));
    }
    if request.path() != path {
        return Ok(Err((404, only)));
    }
    read_question(exchange, client).await
}

async fn read_fields(
    exchange: &mut Exchange,
    client: &mut Client,
    rules: &BodyRules,
) -> Result<ReadBody, ExchangeError> {
    let mut reader = BodyReader::new(&rules.fields, passed::field(&exchange.request(), b"content-type"));
    let (had_room, is_whole) = collect(exchange, client, rules.most, |bytes: &[u8]| reader.feed(bytes)).await?;
    Ok(ReadBody { facts: reader.finish(is_whole), had_room })
}

/// Reads a body. Whether there was room to read it, and whether all of it was read.
async fn collect(
    exchange: &mut Exchange,
    client: &mut Client,
    most: u64,
    reader: impl FnMut(&[u8]),
) -> Result<(bool, bool), ExchangeError> {
    let mut collecting = Collecting {
        most,
        until: exchange.arrived + exchange.view.snapshot.server().head_timeout,
        content: ContentReader::new(exchange.scratch.request.framing()),
        reader,
        taken: exchange.scratch.inbound.body().start,
        had_room: true,
        is_whole: false,
    };
    let room = exchange.body_room();
    let Scratch { inbound, request, upload, to_client, .. } = &mut *exchange.scratch;
    // The request before it on its connection may have left a charge, with what is here of this one.
    inbound.charge.get_or_insert(room);
    if request.expects_continue() && upload.content() == 0 && request.version() == Version::Http11 {
        // The limits that have no need of the body let the request pass: its client is asked for it.
        to_client.made().extend_from_slice(PROBE);
    }
    poll_fn(|cx| poll_collect(cx, (exchange, client), &mut collecting)).await?;
    let Collecting { had_room, is_whole, .. } = collecting;
    let charge = &mut exchange.scratch.inbound.charge;
    charge.take_if(|charge| !charge.holds());
    Ok((had_room, is_whole))
}

/// Ready when all of the body is here, or no more of it is to be read.
fn poll_collect(
    cx: &mut Context<'_>,
    (exchange, client): (&mut Exchange, &mut Client),
    collecting: &mut Collecting<impl FnMut(&[u8])>,
) -> Poll<Result<(), ExchangeError>> {
    let Exchange { worker, connection, scratch, .. } = exchange;
    let Scratch { inbound, upload, to_client, .. } = &mut **scratch;
    let Collecting { most, until, content, reader, taken, had_room, is_whole } = collecting;
    // Chunks may be small, and what is around them is sent on too.
    let most_kept = usize::try_from(*most).unwrap_or(usize::MAX).saturating_mul(2).saturating_add(BUFFER_BYTES);
    connection.alarm.take_fired();
    loop {
        if upload.content() > *most || inbound.body().len() >= most_kept {
            return Poll::Ready(Ok(()));
        }
        let end = inbound.body().end;
        content.read(inbound.filled().get(*taken..end).unwrap_or_default(), |bytes| reader(bytes));
        *taken = end;
        if upload.is_complete() {
            *is_whole = true;
            return Poll::Ready(Ok(()));
        }
        if !to_client.is_empty() && matches!(to_client.poll_write(cx, &mut client.stream, &[]), Poll::Ready(Err(_))) {
            return Poll::Ready(Err(ExchangeError::ClientGone));
        }
        let growth = inbound.growth(most_kept);
        match &mut inbound.charge {
            Some(charge) if growth <= charge.free() => charge.take(growth),
            _ => {
                *had_room = false;
                return Poll::Ready(Ok(()));
            }
        }
        inbound.make_room(most_kept);
        match client.poll_read(cx, inbound.room()) {
            Poll::Ready(Ok(size @ 1..)) => inbound.advance(size),
            Poll::Ready(Ok(_)) => return Poll::Ready(Err(ExchangeError::ClientGone)),
            Poll::Ready(Err(error)) => {
                return Poll::Ready(Err(fault_in(&error).map_or(ExchangeError::ClientGone, ExchangeError::Request)));
            }
            Poll::Pending if worker.alarms.coarse_now() >= *until => return Poll::Ready(Ok(())),
            Poll::Pending => {
                worker.alarms.set(&connection.alarm, *until);
                return Poll::Pending;
            }
        }
        inbound.accept(upload).map_err(ExchangeError::Request)?;
    }
}
