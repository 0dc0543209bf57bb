//! What a limit's refusal says, and what is recorded of it.

use std::rc::Rc;

use super::edited::{Whose, write_edits};
use super::exchange::Exchange;
use super::meters::{Decision, Outcome};
use super::policy::{Next, fail, write_problem, write_rate_fields};
use super::rate_headers::RefusedBy;
use super::respond::{self, Problem, Reply, Wants};
use super::scratch::Scratch;
use super::snapshot::LimitPlan;
use super::variables::Known;
use super::worker::View;
use crate::admission::Arrival;
use crate::config::{OnLimit, Refusal as Own};
use crate::dead_letter::Reason;
use crate::edit::Escape;
use crate::limiter::{Refusal, Why};
use crate::time::Span;

/// What logs show where a connection was closed without an answer, as nginx has it. It is never sent.
const NO_RESPONSE: u16 = 444;

/// Of a shared limit that is closed while its store is away.
const STORE_DOWN: u16 = 503;

/// How much longer a page may become by what is filled in, in bytes; else the gateway's own words are sent.
const MAX_GROWTH: usize = 64 * 1024;

/// What the client is told when a limit says no.
pub fn refuse(exchange: &mut Exchange, arrival: &Arrival, refusal: &Refusal) -> Next {
    let (outcome, decision, reason) = match refusal.why {
        Why::Rate => (Outcome::Refused, Decision::Refused, Reason::RateLimited),
        Why::QueueFull => (Outcome::Refused, Decision::QueueFull, Reason::QueueFull),
        Why::WaitTimeout => (Outcome::WaitTimeout, Decision::WaitTimeout, Reason::WaitTimeout),
        Why::TooCostly => (Outcome::Refused, Decision::TooCostly, Reason::RateLimited),
        Why::TableFull => (Outcome::Refused, Decision::TableFull, Reason::Overload),
        Why::StoreDown => (Outcome::Refused, Decision::StoreDown, Reason::Overload),
    };
    let view = Rc::clone(&exchange.view);
    let Some(limit) = count_refused(exchange, &view, arrival, refusal.limit, decision) else {
        fail(exchange, outcome, 429, "Over the limit.");
        return Next::Reply;
    };
    let extra = match limit.retry_after_jitter.as_nanos() {
        0 => Span::ZERO,
        most => Span::from_nanos(exchange.worker.random() % most.saturating_add(1)),
    };
    let now = if refusal.why == Why::WaitTimeout { exchange.ended() } else { exchange.arrived };
    let retry_at = match refusal.why {
        // Nobody knows when it is back: soon, if anybody asks.
        Why::StoreDown => Some(now + Span::from_secs(1)),
        _ => refusal.retry_at,
    };
    let retry_after_secs = retry_at.map(|at| (at + extra).since(now).as_secs_ceil().max(1));
    let own = own_refusal(&view, exchange, limit);
    let status = match refusal.why {
        // The client has done nothing wrong, and its rate is not what it should mind.
        Why::StoreDown => STORE_DOWN,
        _ => own.and_then(|own| own.status).unwrap_or(limit.status),
    };
    let drops = finish_refused(exchange, outcome, status);
    if refusal.why != Why::WaitTimeout {
        exchange.ended_at(now);
    }
    exchange.write_dead_letter(reason, arrival.key, Some(refusal));
    if drops {
        return Next::Drop;
    }
    let mut detail = std::mem::take(&mut exchange.scratch.detail);
    describe(refusal.why, &limit.name, retry_after_secs, &mut detail);
    let problem = Problem { status, detail: &detail, violated: &[&limit.name], retry_after_secs };
    write_refusal(exchange, &view, &problem, own);
    let by = RefusedBy { limit: refusal.limit, retry_after_secs };
    let Exchange { scratch, story, .. } = &mut *exchange;
    let Scratch { reply, report, text, .. } = &mut **scratch;
    write_rate_fields(&view, story, report, Some(by), text, reply);
    write_headers(exchange, &view, &problem, own);
    exchange.scratch.detail = detail;
    Next::Reply
}

/// What the client is told when it lacks the key of a limit that refuses such requests.
pub fn refuse_keyless(exchange: &mut Exchange, arrival: &Arrival, place: usize) -> Next {
    let view = Rc::clone(&exchange.view);
    let Some(limit) = count_refused(exchange, &view, arrival, place, Decision::MissingKey) else {
        fail(exchange, Outcome::Refused, 429, "The request lacks the key of a limit.");
        return Next::Reply;
    };
    let own = own_refusal(&view, exchange, limit);
    let status = own.and_then(|own| own.status).unwrap_or(limit.status);
    let drops = finish_refused(exchange, Outcome::Refused, status);
    exchange.write_dead_letter(Reason::RateLimited, arrival.key, None);
    if drops {
        return Next::Drop;
    }
    let detail = format!("The request lacks what the limit {:?} tells clients apart by.", limit.name);
    let problem = Problem { status, detail: &detail, violated: &[&limit.name], retry_after_secs: None };
    write_refusal(exchange, &view, &problem, own);
    write_headers(exchange, &view, &problem, own);
    Next::Reply
}

/// What the refusal looks like by the file: the limit's word, else the route's.
fn own_refusal<'v>(view: &'v View, exchange: &Exchange, limit: &'v LimitPlan) -> Option<&'v Own> {
    let of_route = || view.snapshot.routes.get(exchange.story.route?)?.refusal.as_deref();
    limit.refusal.as_deref().or_else(of_route)
}

/// Makes the answer: in the operator's words where there are some that the client can read, else in the gateway's.
fn write_refusal(exchange: &mut Exchange, view: &View, problem: &Problem<'_>, own: Option<&Own>) {
    let Some(body) = own.and_then(|own| own.body.as_ref()) else { return write_problem(exchange, problem) };
    let wants = Wants::of(&exchange.request(), exchange.connection.facts.is_h2);
    if wants.is_grpc || !wants.takes(&body.content_type) {
        return write_problem(exchange, problem);
    }
    let escape = escape_for(&body.content_type);
    respond::own_words(problem.status, problem.retry_after_secs, &body.content_type, &mut exchange.scratch.reply);
    let mut text = std::mem::take(&mut exchange.scratch.reply.body);
    with_known(exchange, view, problem, |known, _, _| body.text.render(known, escape, &mut text));
    // What a client has sent may be long, and be named often.
    if text.len() > body.text.source().len() + MAX_GROWTH {
        return write_problem(exchange, problem);
    }
    exchange.scratch.reply.body = text;
}

/// Sets the fields of the refusal.
fn write_headers(exchange: &mut Exchange, view: &View, problem: &Problem<'_>, own: Option<&Own>) {
    let Some(edits) = own.map(|own| &own.headers).filter(|edits| !edits.is_empty()) else { return };
    with_known(exchange, view, problem, |known, reply, text| {
        reply.cut(|name| edits.cuts(name));
        write_edits(edits, Whose::Own, known, text, reply);
    });
}

/// Gives `write` what is known, the reply, and a text to work with.
fn with_known(
    exchange: &mut Exchange,
    view: &View,
    problem: &Problem<'_>,
    write: impl FnOnce(&Known<'_>, &mut Reply, &mut Vec<u8>),
) {
    exchange.identify();
    let Exchange { connection, scratch, story, head_bytes, .. } = &mut *exchange;
    let Scratch { inbound, request, report, request_id, reply, text, .. } = &mut **scratch;
    let known = Known {
        request: request.on(inbound.filled().get(..*head_bytes).unwrap_or_default()),
        connection,
        view,
        story,
        report,
        request_id,
        status: problem.status,
        retry_after_secs: problem.retry_after_secs,
    };
    write(&known, reply, text);
}

/// What a client's words must not be taken for in a text of this type.
fn escape_for(content_type: &str) -> Escape {
    let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match kind.as_str() {
        json if json.ends_with("/json") || json.ends_with("+json") => Escape::Json,
        "text/plain" => Escape::None,
        // Whatever a browser may take for markup.
        _ => Escape::Html,
    }
}

/// In words. Put together by hand, since every refusal of a flood is told so.
fn describe(why: Why, name: &str, retry_after_secs: Option<u64>, detail: &mut String) {
    let before = match why {
        Why::TooCostly | Why::Rate | Why::QueueFull => "Over the limit \"",
        Why::WaitTimeout => "Waited for the limit \"",
        Why::TableFull | Why::StoreDown => "The limit \"",
    };
    let after = match why {
        Why::TooCostly => "\"; this request can never fit in it.",
        Why::WaitTimeout => "\" in vain; ",
        Why::TableFull => "\" counts as many clients as it can; ",
        Why::StoreDown => "\" cannot reach its store; ",
        Why::Rate | Why::QueueFull => "\"; ",
    };
    detail.clear();
    detail.extend([before, name, after]);
    match (why, retry_after_secs) {
        (Why::TooCostly, _) => {}
        (_, Some(secs)) => detail.extend(["try again in ", itoa::Buffer::new().format(secs), " s."]),
        (_, None) => detail.push_str("try again later."),
    }
}

/// Says how a refused request ends: with the limit's status, or, if that is true, dropped.
fn finish_refused(exchange: &mut Exchange, outcome: Outcome, status: u16) -> bool {
    let plan = exchange.story.route.and_then(|route| exchange.view.snapshot.routes.get(route));
    let drops = plan.is_some_and(|plan| plan.on_limit == OnLimit::Drop);
    let (outcome, status) = if drops { (Outcome::Dropped, NO_RESPONSE) } else { (outcome, status) };
    exchange.finish(outcome);
    exchange.story.status = Some(status);
    drops
}

/// Counts a refusal and gives the limit.
fn count_refused<'v>(
    exchange: &mut Exchange,
    view: &'v View,
    arrival: &Arrival,
    place: usize,
    decision: Decision,
) -> Option<&'v LimitPlan> {
    exchange.story.limit = Some(place);
    let limit = *view.snapshot.routes.get(arrival.route?)?.limits.get(place)?;
    // The limit in whose queue it waited counts its end, whichever it was refused by then.
    view.meters.decided(exchange.story.queued_in.unwrap_or(limit), decision);
    view.snapshot.limits.get(limit)
}
