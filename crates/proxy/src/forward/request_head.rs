//! The head of a request on its way to a server.

use super::relay_head::offered_protocols;
use crate::client::replayed;
use crate::exchange::{
    Edited, Exchange, MessageRoom, NO_EDITS, RequestFacts, ResponseOrigin, TemplateContext, write_edits,
};
use crate::headers::{self, Also, Forwarding};
use crate::scratch::Scratch;
use crate::view::Admitted;
use sluicegate_admission::AddressHeader;
use sluicegate_config::RouteEdits;
use sluicegate_dead_letter::REPLAY_FIELD;
use sluicegate_edit::FieldEdits;
use sluicegate_http1::{Framing, HeadWriter, Version};

/// The changes that the route of a request makes in messages, if any.
pub fn edits(admitted: &Admitted) -> Option<&RouteEdits> {
    admitted.route().spec.edits.as_deref()
}

/// The request as the server gets it: the normalised path, the client's Host, our forwarding fields, or what the route
/// has in their places; and behind it what is here of its body.
///
/// `to_h2`: it goes into HTTP/2, where a client's wish for trailers may be told (RFC 9113, 8.2.2), as gRPC asks for.
#[allow(clippy::inline_always, reason = "the second caller is apart, and the first is every request")]
#[inline(always)]
pub fn write_request(exchange: &mut Exchange, admitted: &Admitted, to_h2: bool) {
    exchange.identify();
    let new_traceparent = exchange.new_traceparent();
    let Scratch { request, .. } = &*exchange.scratch;
    let (version, framing, expects_continue) = (request.version(), request.framing(), request.expects_continue());
    let (asked, MessageRoom { to_upstream, text, target, .. }) = exchange.split();
    let RequestFacts { connection, view, request_id, replayed, .. } = asked;
    let (edits, reads) = (edits(admitted), admitted.route().reads);
    let head = asked.request();
    let authority = head.authority_bytes().unwrap_or_default();
    let host = edits.and_then(|edits| edits.host.as_deref());
    let real_ip =
        (*view.rules.address_header() == AddressHeader::XRealIp).then(|| admitted.arrival().client.addr().to_string());
    let facts = Forwarding {
        peer: replayed.map_or(&*connection.peer_text, |vouched| &vouched.text).as_bytes(),
        trusted_peer: replayed.map_or(admitted.arrival().trusted_peer, |vouched| vouched.origin.trusted_peer),
        scheme: replayed::origin_of(replayed, connection.origin()).scheme.as_bytes(),
        authority,
        host: host.map_or(authority, str::as_bytes),
        request_id,
        new_traceparent: new_traceparent.as_ref().map(<[u8; _]>::as_slice),
        via: match version {
            _ if connection.facts.is_h2 => b"2.0 sluicegate",
            Version::Http10 => b"1.0 sluicegate",
            Version::Http11 => b"1.1 sluicegate",
        },
        also: match (view.rules.address_header(), &real_ip) {
            (AddressHeader::Forwarded, _) => Also::Forwarded,
            (_, Some(client)) => Also::RealIp(client.as_bytes()),
            _ => Also::Nothing,
        },
        named: view.rules.clients().named_header().map(str::as_bytes),
        upgrade: offered_protocols(&head),
        // At 0 it is not forwarded.
        max_forwards: headers::max_forwards(&head).map(|left| left.saturating_sub(1)),
        expects_continue,
    };
    let path = admitted.arrival().path.as_deref().map_or_else(|| head.path_bytes(), str::as_bytes);
    let (path, query) = if target.is_empty() { (path, head.query_bytes()) } else { (target.as_slice(), None) };
    to_upstream.clear();
    let mut writer = HeadWriter::request(to_upstream.made(), head.method().as_bytes(), path, query);
    let edits = edits.map(|edits| &edits.request).filter(|edits| !edits.is_empty());
    match edits {
        None if !reads.body => headers::forward_request(&head, &facts, &mut writer),
        _ => write_edited(edits, reads.body, &facts, &asked.template_context(0, None), text, &mut writer),
    }
    if to_h2 && (reads.trailers || headers::takes_trailers(&head)) {
        writer.field(b"te", b"trailers");
    }
    if let Some(vouched) = replayed {
        writer.field(REPLAY_FIELD.as_bytes(), &vouched.value);
    }
    match framing {
        // Some servers ask for a length of what usually has a body (RFC 9110, 8.6).
        Framing::None if !to_h2 && matches!(head.method(), "POST" | "PUT" | "PATCH") => {
            writer.number(b"content-length", 0);
        }
        Framing::None | Framing::UntilClose => {}
        Framing::Length(length) => writer.number(b"content-length", length),
        Framing::Chunked => writer.field(b"transfer-encoding", b"chunked"),
    }
    writer.end();
    to_upstream.add(asked.inbound.filled(), asked.inbound.body());
}

/// The fields of a request whose route changes some. Apart, so that the others are not slower for it.
#[inline(never)]
fn write_edited(
    edits: Option<&FieldEdits>,
    reads_body: bool,
    facts: &Forwarding<'_>,
    context: &TemplateContext<'_>,
    text: &mut Vec<u8>,
    writer: &mut HeadWriter<'_>,
) {
    let edits = edits.unwrap_or(&NO_EDITS);
    let also: &'static [&'static str] = if reads_body { &["accept-encoding"] } else { &[] };
    headers::forward_request(&context.request, facts, &mut Edited::without(writer, edits, also));
    write_edits(edits, ResponseOrigin::Servers, context, text, writer);
    if reads_body && !writer.has(b"accept-encoding") {
        // The body is read on its way, and a coded one cannot be (RFC 9110, 12.5.3).
        writer.field(b"accept-encoding", b"identity");
    }
}
