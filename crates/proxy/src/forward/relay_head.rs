//! The head of a response on its way to the client.

use crate::answer::DateCell;
use crate::endings::{ExchangeError, SwitchFault};
use crate::exchange::{
    Changes, Exchange, MessageRoom, ResponseOrigin, TemplateContext, explanation, write_rate_fields,
};
use crate::headers::{self, passed};
use crate::scratch::Scratch;
use sluicegate_http1::{CHUNK_ROOM, Framing, HeadWriter, Request, Response, Version, write_chunk_head};
use sluicegate_time::{Tick, Wall};
use sluicegate_transport::websocket_accept;

/// Unread bytes of a request that are worth reading for keeping its connection.
pub const MAX_DISCARD: u64 = 64 * 1024;

/// Passes an interim response on (RFC 9110, 15.2).
pub fn write_interim(exchange: &mut Exchange, length: usize) {
    let Exchange { scratch, record, .. } = exchange;
    let Scratch { outbound, response, to_client, .. } = &mut **scratch;
    let response = response.on(outbound.filled().get(..length).unwrap_or_default());
    let mut writer = HeadWriter::response(to_client.made(), response.status(), response.reason());
    forward_interim(&response, None, Changes::of(record.route.as_deref()), &mut writer);
    writer.end();
}

/// The fields of a head that is not the final one: what a route leaves out is left out, and nothing is added.
fn forward_interim(
    response: &Response<'_>,
    upgrade: Option<&[u8]>,
    changes: Option<Changes<'_>>,
    writer: &mut HeadWriter<'_>,
) {
    let _ = match changes {
        None => headers::forward_response(response, upgrade, writer),
        Some(changes) => {
            headers::forward_response(response, upgrade, &mut changes.sink(writer, ResponseOrigin::Servers))
        }
    };
}

/// The protocols that the client offers to switch to, if they may be offered to the upstream. HTTP itself may not: what
/// is said in it would pass by every rule.
pub fn offered_protocols<'b>(request: &Request<'b>) -> Option<&'b [u8]> {
    let offers = request.upgrade()?;
    let is_barred = |offer: &[u8]| {
        let name = offer.trim_ascii().split(|byte| *byte == b'/').next().unwrap_or_default();
        [b"h2c".as_slice(), b"h2", b"http", b"tls", b""].iter().any(|barred| name.eq_ignore_ascii_case(barred))
    };
    (!offers.split(|byte| *byte == b',').any(is_barred)).then_some(offers)
}

/// Passes a 101 on, if it switches to what the client asked for (RFC 9110, 7.8).
pub fn write_switch(exchange: &mut Exchange, length: usize) -> Result<(), ExchangeError> {
    let Exchange { scratch, record, connection, .. } = &mut *exchange;
    let Scratch { inbound, outbound, request, response, to_client, to_upstream, upload, .. } = &mut **scratch;
    let request = request.on(inbound.head());
    let response = response.on(outbound.filled().get(..length).unwrap_or_default());
    let asked = offered_protocols(&request);
    let asked = asked.ok_or(ExchangeError::Unasked(SwitchFault::NotAsked))?;
    let mut offers = asked.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    let chosen = response.upgrade().filter(|chosen| offers.any(|offer| offer.eq_ignore_ascii_case(chosen)));
    let chosen =
        chosen.filter(|chosen| !chosen.is_empty()).ok_or(ExchangeError::Unasked(SwitchFault::OtherProtocol))?;
    if !upload.is_complete() || !to_upstream.is_empty() {
        return Err(ExchangeError::Unasked(SwitchFault::BodyUnderWay));
    }
    let is_websocket = chosen.eq_ignore_ascii_case(b"websocket");
    // A client of HTTP/2 has no key, and cannot look at the answer to ours.
    if connection.facts.is_h2 && !is_accepted(&request, &response) {
        return Err(ExchangeError::Unasked(SwitchFault::WrongAccept));
    }
    let mut writer = HeadWriter::response(to_client.made(), 101, response.reason());
    forward_interim(&response, Some(chosen), Changes::of(record.route.as_deref()), &mut writer);
    writer.end();
    exchange.record.status = Some(101);
    exchange.is_websocket = is_websocket;
    exchange.settle(101, Some(length), exchange.worker.clock.now());
    Ok(())
}

/// Whether the server has answered the request's key of WebSocket (RFC 6455, 4.1), by one line.
fn is_accepted(request: &Request<'_>, response: &Response<'_>) -> bool {
    let key = passed::field(request, b"sec-websocket-key").unwrap_or_default();
    let mut answers = response.fields().filter(|(name, _)| name.eq_ignore_ascii_case(b"sec-websocket-accept"));
    answers.next().is_some_and(|(_, answer)| answer == websocket_accept(key).as_bytes()) && answers.next().is_none()
}

/// Writes the head of the response itself, which has this many bytes and such a body. Whether the client's connection can
/// be kept after it.
pub fn write_final(exchange: &mut Exchange, (length, framing): (usize, Framing), now: Tick) -> bool {
    let keep = can_keep(exchange);
    exchange.record.status = Some(exchange.scratch.response.status());
    let version = exchange.scratch.request.version();
    let explanation = exchange.explanation();
    let (facts, MessageRoom { worker, outbound, response, to_client, text, .. }) = exchange.split();
    let content_length = response.content_length();
    let response = response.on(outbound.filled().get(..length).unwrap_or_default());
    let mut writer = HeadWriter::response(to_client.made(), response.status(), response.reason());
    match Changes::of(facts.record.route.as_deref()) {
        None => {
            let passed = headers::forward_response(&response, None, &mut writer);
            write_rate_fields(facts.view, facts.record, facts.report, None, text, &mut writer);
            if !passed.date {
                worker.date.write(worker.clock.wall(now), &mut writer);
            }
        }
        Some(changes) => {
            let context = facts.template_context(response.status(), None);
            write_changed(&response, changes, &context, &worker.date, worker.clock.wall(now), text, &mut writer);
        }
    }
    if let Some(explanation) = explanation {
        writer.field(explanation::FIELD, explanation.as_bytes());
    }
    let is_delimited = match (framing, version) {
        (Framing::None | Framing::Length(_), _) => {
            if let Some(length) = content_length {
                writer.number(b"content-length", length);
            }
            true
        }
        (Framing::Chunked | Framing::UntilClose, Version::Http11) => {
            if let Some(length) = content_length.filter(|_| facts.connection.facts.is_h2) {
                // Trailers may follow, for which HTTP/2 has a place beside the length.
                writer.number(b"content-length", length);
            }
            writer.field(b"transfer-encoding", b"chunked");
            true
        }
        (Framing::Chunked | Framing::UntilClose, Version::Http10) => false,
    };
    let keep = keep && is_delimited;
    write_connection(keep, version, &mut writer);
    writer.end();
    keep
}

/// The fields of a response whose route changes some. Apart, so that the others are not slower for it.
#[inline(never)]
fn write_changed(
    response: &Response<'_>,
    changes: Changes<'_>,
    context: &TemplateContext<'_>,
    date: &DateCell,
    now: Wall,
    text: &mut Vec<u8>,
    writer: &mut HeadWriter<'_>,
) {
    let mut sink = changes.sink(writer, ResponseOrigin::Servers);
    let passed = headers::forward_response(response, None, &mut sink);
    write_rate_fields(context.view, context.record, context.report, None, text, &mut sink);
    if !passed.date {
        date.write(now, &mut sink);
    }
    changes.write(context, ResponseOrigin::Servers, text, writer);
}

/// Says what becomes of the connection, where its version does not say it already (RFC 9112, 9.3).
pub fn write_connection(keep: bool, version: Version, writer: &mut HeadWriter<'_>) {
    match (keep, version) {
        (false, _) => writer.field(b"connection", b"close"),
        (true, Version::Http10) => writer.field(b"connection", b"keep-alive"),
        (true, Version::Http11) => {}
    }
}

/// The line that begins a chunk.
pub fn write_chunk_size(out: &mut Vec<u8>, size: usize) {
    let mut room = [0; CHUNK_ROOM];
    // A piece is never larger than a buffer.
    let used = write_chunk_head(&mut room, u32::try_from(size).unwrap_or(u32::MAX));
    out.extend_from_slice(&room[CHUNK_ROOM - used..]);
}

/// Whether the connection can be kept although the answer may come before the end of the request.
pub fn can_keep(exchange: &Exchange) -> bool {
    let Scratch { request, upload, .. } = &*exchange.scratch;
    let is_readable = upload.is_complete()
        || (!request.expects_continue() || upload.content() > 0)
            && upload.remaining().is_some_and(|left| left <= MAX_DISCARD);
    is_readable && request.is_persistent() && !exchange.connection.is_closing()
}
