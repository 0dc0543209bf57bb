//! The answer to a request that a limit refuses, and the records of the refusal.

use std::rc::Rc;

use super::end::{name_request, write_problem};
use super::next::Next;
use super::refused::RefusedRequest;
use crate::answer::{Problem, RefusedBy, Reply, Wants, respond};
use crate::endings::{Cause, Counted, Ending, EndingFate, Status};
use crate::exchange::{Exchange, ResponseOrigin, TemplateContext, write_edits, write_rate_fields};
use crate::headers::Sink as _;
use crate::meters::Outcome;
use crate::scratch::Scratch;
use crate::view::{LimitView, RouteView};
use sluicegate_config::{LimitRule, OnLimit, Refusal as Own};
use sluicegate_dead_letter::{ROOM_IN, Reason, room_in};
use sluicegate_edit::Escape;
use sluicegate_limiter::{Fingerprint, RefusalReason};
use sluicegate_time::Span;

/// How much longer a page may become by what is filled in, in bytes; else the gateway's own words are sent.
const MAX_GROWTH: usize = 64 * 1024;
/// When a request is tried again whose limit does not say when it has room.
const FIRST_GUESS: Span = Span::from_secs(1);
/// When a client may ask again where the disk has refused its request, or there was no room to read it.
const UNKEPT_RETRY: Span = Span::from_secs(5);

/// Refuses a request because a limit says no: records it, and makes the client's answer.
pub fn refuse(exchange: &mut Exchange, refused: &RefusedRequest) -> Next {
    let RefusedRequest { route, limit, key, refusal } = refused;
    let ending = Ending::of(Cause::Refused(refusal.why));
    count_refused(exchange, limit, *key, ending);
    exchange.list_block(limit, *key, refusal.blocked_until);
    exchange.scratch.report.note_refusal(limit.place);
    let extra = extra_wait(exchange, &limit.spec);
    let now = if refusal.why == RefusalReason::WaitTimeout { exchange.ended() } else { exchange.arrived };
    let retry_at = match refusal.why {
        // Nobody knows when it is back: soon, if anybody asks.
        RefusalReason::StoreDown => Some(now + Span::from_secs(1)),
        _ => refusal.retry_at,
    };
    let retry_after_secs = retry_at.map(|at| limit.spec.told_secs((at + extra).since(now)).max(1));
    let own = own_refusal(route, limit);
    let status = status_of(exchange, &ending, limit, own);
    let fate = finish_refused(exchange, route, ending, status);
    if refusal.why != RefusalReason::WaitTimeout {
        exchange.ended_at(now);
    }
    if let Some(reason) = ending.reason {
        exchange.write_dead_letter(reason, *key, Some(refusal));
    }
    if fate == EndingFate::Cut {
        return Next::Over(fate);
    }
    let mut detail = std::mem::take(&mut exchange.scratch.detail);
    ending.words.write(limit.name(), retry_after_secs, &mut detail);
    let problem = Problem { status, detail: &detail, violated: &[limit.name()], retry_after_secs };
    write_refusal(exchange, &problem, own);
    let by = RefusedBy { limit: limit.place, retry_after_secs };
    let Exchange { view, scratch, record, .. } = &mut *exchange;
    let Scratch { reply, report, text, .. } = &mut **scratch;
    write_rate_fields(view, record, report, Some(by), text, reply);
    write_headers(exchange, &problem, own);
    exchange.scratch.detail = detail;
    if exchange.connection.facts.is_own {
        let after = retry_at.map_or(FIRST_GUESS, |at| at.since(now));
        exchange.scratch.reply.put(ROOM_IN.as_bytes(), room_in(after).as_bytes());
    }
    Next::Over(fate)
}

/// A random extra for the wait that a client of a limit is told.
pub fn extra_wait(exchange: &Exchange, limit: &LimitRule) -> Span {
    match limit.retry_after_jitter.as_nanos() {
        0 => Span::ZERO,
        most => Span::from_nanos(exchange.worker.random() % most.saturating_add(1)),
    }
}

/// A request that was to be kept, and that the disk has refused: the limit has said no, and yet it is not the client's fault.
pub fn refuse_unkept(exchange: &mut Exchange, refused: &RefusedRequest) -> Next {
    let RefusedRequest { limit, key, refusal, .. } = refused;
    let ending = Ending { status: Status::Fixed(503), ..Ending::of(Cause::Refused(refusal.why)) };
    count_refused(exchange, limit, *key, ending);
    exchange.list_block(limit, *key, refusal.blocked_until);
    exchange.finish(ending.outcome);
    exchange.record.status = Some(503);
    if let Some(reason) = ending.reason {
        exchange.write_dead_letter(reason, *key, Some(refusal));
    }
    let detail = "The request could not be kept for later.";
    let retry_after_secs = Some(limit.spec.told_secs(UNKEPT_RETRY));
    write_problem(exchange, &Problem { status: 503, detail, violated: &[], retry_after_secs });
    Next::Over(EndingFate::Keep)
}

/// A request that was kept.
pub fn note_deferred(exchange: &mut Exchange, refused: &RefusedRequest) {
    let RefusedRequest { limit, key, refusal, .. } = refused;
    count_refused(exchange, limit, *key, Ending::of(Cause::Refused(refusal.why)));
    exchange.list_block(limit, *key, refusal.blocked_until);
    exchange.finish(Outcome::Deferred);
    exchange.record.status = Some(202);
    exchange.write_dead_letter(Reason::Deferred, *key, Some(refusal));
}

/// Refuses a request that lacks the key of a limit which refuses such requests.
pub fn refuse_keyless(
    exchange: &mut Exchange,
    route: &RouteView,
    limit: &Rc<LimitView>,
    key: Option<Fingerprint>,
) -> Next {
    let had_room = exchange.scratch.state.body.as_ref().is_none_or(|body| body.had_room)
        || limit.spec.key.body_fields().next().is_none();
    let ending = Ending::of(if had_room { Cause::KeyMissing } else { Cause::KeyUnread });
    count_refused(exchange, limit, key, ending);
    let own = own_refusal(route, limit);
    let status = status_of(exchange, &ending, limit, own);
    let fate = finish_refused(exchange, route, ending, status);
    if let Some(reason) = ending.reason {
        exchange.write_dead_letter(reason, key, None);
    }
    if fate == EndingFate::Cut {
        return Next::Over(fate);
    }
    let mut detail = String::new();
    let retry_after_secs = (!had_room).then(|| limit.spec.told_secs(UNKEPT_RETRY));
    ending.words.write(limit.name(), retry_after_secs, &mut detail);
    let problem = Problem { status, detail: &detail, violated: &[limit.name()], retry_after_secs };
    write_refusal(exchange, &problem, own);
    write_headers(exchange, &problem, own);
    Next::Over(fate)
}

/// The status of a refusal. Where it is the limit's, a listener that decides for others may have another one.
fn status_of(exchange: &Exchange, ending: &Ending, limit: &LimitView, own: Option<&Own>) -> u16 {
    let of_listener = exchange.connection.facts.asks.as_ref().and_then(|rules| rules.deny_status);
    ending.status.or(|| of_listener.or_else(|| own.and_then(|own| own.status)).unwrap_or(limit.spec.status))
}

/// The form of the refusal in the file: the limit's, else the route's.
fn own_refusal<'p>(route: &'p RouteView, limit: &'p LimitView) -> Option<&'p Own> {
    limit.spec.refusal.as_deref().or(route.spec.refusal.as_deref())
}

/// Makes the answer: in the operator's words where there are some that the client can read, else in the gateway's.
fn write_refusal(exchange: &mut Exchange, problem: &Problem<'_>, own: Option<&Own>) {
    let Some(body) = own.and_then(|own| own.body.as_ref()) else { return write_problem(exchange, problem) };
    let wants = Wants::of(&exchange.request(), exchange.connection.facts.is_h2);
    if wants.is_grpc || !wants.takes(&body.content_type) {
        return write_problem(exchange, problem);
    }
    let escape = escape_for(&body.content_type);
    respond::own_words(problem.status, problem.retry_after_secs, &body.content_type, &mut exchange.scratch.reply);
    let mut text = std::mem::take(&mut exchange.scratch.reply.body);
    with_template_context(exchange, problem, |context, _, _| body.text.render(context, escape, &mut text));
    // What a client has sent may be long, and be named often.
    if text.len() > body.text.source().len() + MAX_GROWTH {
        return write_problem(exchange, problem);
    }
    exchange.scratch.reply.body = text;
    name_request(exchange);
}

/// Sets the fields of the refusal.
fn write_headers(exchange: &mut Exchange, problem: &Problem<'_>, own: Option<&Own>) {
    let Some(edits) = own.map(|own| &own.headers).filter(|edits| !edits.is_empty()) else { return };
    with_template_context(exchange, problem, |context, reply, text| {
        reply.cut(|name| edits.cuts(name));
        write_edits(edits, ResponseOrigin::Own, context, text, reply);
    });
}

/// Gives `write` what is known, the reply, and a text to work with.
fn with_template_context(
    exchange: &mut Exchange,
    problem: &Problem<'_>,
    write: impl FnOnce(&TemplateContext<'_>, &mut Reply, &mut Vec<u8>),
) {
    exchange.identify();
    let (facts, room) = exchange.split();
    write(&facts.template_context(problem.status, problem.retry_after_secs), room.reply, room.text);
}

/// The escape by which a text of this type takes a client's words for nothing but text.
fn escape_for(content_type: &str) -> Escape {
    let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match kind.as_str() {
        json if json.ends_with("/json") || json.ends_with("+json") => Escape::Json,
        "text/plain" => Escape::None,
        // Whatever a browser may take for markup.
        _ => Escape::Html,
    }
}

/// Says how a refused request ends: with this status, or dropped.
fn finish_refused(exchange: &mut Exchange, route: &RouteView, ending: Ending, status: u16) -> EndingFate {
    // The peer of a question waits for its answer.
    let drops = route.spec.on_limit == OnLimit::Drop && exchange.connection.facts.asks.is_none();
    let ending = if drops { ending.dropped() } else { Ending { status: Status::Fixed(status), ..ending } };
    exchange.finish(ending.outcome);
    exchange.record.status = Some(ending.own_status());
    ending.fate
}

/// Counts a refusal, and notes the limit.
fn count_refused(exchange: &mut Exchange, limit: &Rc<LimitView>, key: Option<Fingerprint>, ending: Ending) {
    exchange.record.limit = Some(Rc::clone(limit));
    if exchange.connection.facts.is_own {
        return;
    }
    exchange.count_key(limit, key, false);
    // The limit in whose queue it waited counts its end, whichever it was refused by then.
    if let Counted::Decision(decision) = ending.counted {
        exchange.record.queued_in.as_ref().unwrap_or(limit).meters.decided(decision);
    }
}
