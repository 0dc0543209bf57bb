//! The decision about a request, whatever the protocols on either side.

use std::rc::Rc;

use super::end::end_by;
use super::next::{Next, Pause};
use super::refuse;
use super::refused::{RefusedRequest, may_be_kept};
use crate::answer::{PreflightFields, cors, respond};
use crate::client::{RequestContext, replayed};
use crate::endings::{Cause, EndingFate, ExchangeError};
use crate::exchange::{
    Exchange, MessageRoom, TemplateContext, capturing, deferral_path, explanation, write_rate_fields,
};
use crate::headers::{self, Sink as _};
use crate::meters::{Decision, Outcome};
use crate::scratch::{RequestState, Scratch};
use crate::view::{Admission, Admitted, LimitView, RouteView};
use sluicegate_admission::{
    Arrival, BeforeBody, Malformed, Refused, RequestView, is_preflight, normal_path, without_escaped_delims,
};
use sluicegate_config::{Action, Cors};
use sluicegate_edit::{Rewrite, Rewritten, Spellings, Variable};
use sluicegate_http1::Framing;
use sluicegate_limiter::{Fingerprint, Refusal};
use sluicegate_time::Tick;

/// Asks admission.
pub fn decide(exchange: &mut Exchange) -> Result<Next, Pause> {
    if let Some(hash) = exchange.view.snapshot.model.admin.as_ref().and_then(|admin| admin.explain_sha256) {
        exchange.scratch.state.explains = explanation::is_asked(&exchange.request(), &hash);
    }
    if let Some(guard) = &exchange.view.snapshot.replay_guard {
        exchange.scratch.state.replayed =
            replayed::recognise(guard, &exchange.request(), (exchange.arrived, &exchange.worker.clock));
    }
    if exchange.view.snapshot.deferrals.is_some() && deferral_path::asked(&exchange.request()).is_some() {
        return Err(Pause::Status);
    }
    if exchange.connection.facts.is_own && exchange.scratch.state.replayed.is_none() {
        return Ok(Next::Over(end_by(exchange, Cause::Unvouched, false)));
    }
    if exchange.view.rules.reads_bodies()
        && !matches!(exchange.scratch.request.framing(), Framing::None)
        && let Some(early) = before_body(exchange)
    {
        return early;
    }
    let Exchange { worker, view, connection, scratch, arrived, .. } = &mut *exchange;
    let origin = replayed::origin_of(scratch.state.replayed.as_deref(), connection.origin());
    let Scratch { inbound, request, report, .. } = &mut **scratch;
    let request = request.on(inbound.head());
    let tokens = worker.tokens(view, *arrived);
    let context = RequestContext { request, origin, clients: view.rules.clients(), body: None, tokens };
    let admission = view.rules.admit(&context, origin.peer, *arrived, report);
    carry_out(exchange, admission)
}

/// Looks whether limits are about the body of a request, which then is read first; what comes of that, if so.
#[cold]
fn before_body(exchange: &mut Exchange) -> Option<Result<Next, Pause>> {
    let Exchange { worker, view, connection, scratch, arrived, .. } = &mut *exchange;
    let origin = replayed::origin_of(scratch.state.replayed.as_deref(), connection.origin());
    let Scratch { inbound, request, report, .. } = &mut **scratch;
    let request = request.on(inbound.head());
    let tokens = worker.tokens(view, *arrived);
    let context = RequestContext { request, origin, clients: view.rules.clients(), body: None, tokens };
    match view.rules.before_body(&context, origin.peer, *arrived, report)? {
        BeforeBody::Read(body) => Some(Err(Pause::Body(body))),
        BeforeBody::Refused(route, arrival, refused) => Some(refused_by(exchange, route, &arrival, refused)),
    }
}

/// Asks admission about a request whose body was read, as of `now`. By a view of any kind, so that the compiler puts the hot
/// path in line where it is asked without one.
#[cold]
pub fn decide_with_body(exchange: &mut Exchange, now: Tick) -> Result<Next, Pause> {
    let Exchange { worker, view, connection, scratch, .. } = &mut *exchange;
    let origin = replayed::origin_of(scratch.state.replayed.as_deref(), connection.origin());
    let Scratch { inbound, request, report, state: RequestState { body, .. }, .. } = &mut **scratch;
    let request = request.on(inbound.head());
    let tokens = worker.tokens(view, now);
    let body = body.as_deref().map(|body| &body.facts);
    let context = RequestContext { request, origin, clients: view.rules.clients(), body, tokens };
    let any: &dyn RequestView = &context;
    let admission = view.rules.admit(any, origin.peer, now, report);
    carry_out(exchange, admission)
}

/// Does with a request what admission says.
#[expect(clippy::inline_always, reason = "its argument and its result are large, and would be moved")]
#[inline(always)]
fn carry_out(exchange: &mut Exchange, admission: Admission) -> Result<Next, Pause> {
    match admission {
        Admission::Malformed(fault) => Ok(Next::Over(end_by(exchange, Cause::Malformed(fault), false))),
        Admission::NoRoute(arrival) => {
            note(exchange, None, &arrival);
            Ok(Next::Over(end_by(exchange, Cause::NoRoute, false)))
        }
        Admission::Refused(route, arrival, refused) => refused_by(exchange, route, &arrival, refused),
        Admission::Waiting(waiting) => {
            note(exchange, Some(waiting.route()), waiting.arrival());
            note_adaptive(exchange, waiting.limit().and_then(|place| waiting.route().limit(place)));
            exchange.record.queued_in = waiting.limit().and_then(|place| waiting.route().limit(place)).cloned();
            Err(Pause::Wait(waiting))
        }
        Admission::Admitted(admitted) => {
            note(exchange, Some(admitted.route()), admitted.arrival());
            Ok(admit(exchange, admitted))
        }
    }
}

/// Tells what looks after pressure that a limit which it scales has no room for a request.
fn note_adaptive(exchange: &Exchange, limit: Option<&Rc<LimitView>>) {
    if let Some(overload) = &exchange.view.snapshot.overload
        && limit.is_some_and(|limit| limit.spec.spec.is_adaptive)
    {
        overload.note_refusal(exchange.worker.index);
    }
}

/// Refuses a request, or has it kept for later.
#[expect(clippy::inline_always, reason = "its result is large, and would be moved")]
#[inline(always)]
fn refused_by(
    exchange: &mut Exchange,
    route: Rc<RouteView>,
    arrival: &Arrival,
    refused: Refused,
) -> Result<Next, Pause> {
    note(exchange, Some(&route), arrival);
    match refused {
        Refused::Limit(refusal) => defer_or_refuse(exchange, route, arrival.key, refusal),
        Refused::MissingKey { limit } => Ok(match route.limit(limit) {
            Some(limit) => refuse::refuse_keyless(exchange, &route, limit, arrival.key),
            None => Next::Over(end_by(exchange, Cause::KeyMissing, false)),
        }),
    }
}

/// Has a request kept for later that a limit refuses, or refuses it.
pub fn defer_or_refuse(
    exchange: &mut Exchange,
    route: Rc<RouteView>,
    key: Option<Fingerprint>,
    refusal: Refusal,
) -> Result<Next, Pause> {
    let Some(limit) = route.limit(refusal.limit).cloned() else {
        return Ok(Next::Over(end_by(exchange, Cause::Refused(refusal.why), false)));
    };
    note_adaptive(exchange, Some(&limit));
    let may_be_kept = may_be_kept(exchange, &route, refusal.why);
    let refused = RefusedRequest { route, limit, key, refusal };
    if may_be_kept { Err(Pause::Defer(Box::new(refused))) } else { Ok(refuse::refuse(exchange, &refused)) }
}

/// Sends the client to the same place by `https`. No limit is asked: to say so costs less than to ask.
pub fn redirect(exchange: &mut Exchange, port: u16) -> Next {
    let (facts, MessageRoom { reply, text, .. }) = exchange.split();
    let request = facts.request();
    let Some(authority) = request.authority().filter(|authority| !authority.is_empty()) else {
        return Next::Over(end_by(exchange, Cause::HostlessListener, false));
    };
    // An IPv6 address has colons of its own, and stands in brackets.
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => host,
        _ => authority,
    };
    text.clear();
    text.extend_from_slice(b"https://");
    text.extend_from_slice(host.as_bytes());
    if port != 443 {
        text.push(b':');
        text.extend_from_slice(itoa::Buffer::new().format(port).as_bytes());
    }
    // What is about the server as a whole has no path (RFC 9112, 3.3).
    if request.path_bytes() != b"*" {
        text.extend_from_slice(request.path_bytes());
    }
    if let Some(query) = request.query_bytes() {
        text.push(b'?');
        text.extend_from_slice(query);
    }
    // It keeps the method and the body (RFC 9110, 15.4.9).
    respond::text(308, "This is served by https.\n", reply);
    reply.put(b"location", text);
    exchange.record.status = Some(308);
    exchange.finish(Outcome::Responded);
    Next::Over(EndingFate::Keep)
}

/// Keeps what admission found out, for logs and dead letters.
#[expect(clippy::inline_always, reason = "every request passes it once; questions, which call it too, are rare")]
#[inline(always)]
pub(super) fn note(exchange: &mut Exchange, route: Option<&Rc<RouteView>>, arrival: &Arrival) {
    exchange.record.route = route.map(Rc::clone);
    exchange.record.plan = arrival.plan;
    exchange.record.client = Some(arrival.client.clone());
    exchange.record.path.clone_from(&arrival.path);
    capturing::begin(exchange);
    // A request that was kept has the id that its client was told.
    if arrival.trusted_peer || exchange.connection.facts.is_own {
        exchange.adopt_request_id();
    }
    if !arrival.invalid_costs.is_empty() {
        let limits = arrival.invalid_costs.iter().filter_map(|place| route?.limit(place));
        limits.for_each(|limit| limit.meters.cost_invalid());
    }
}

/// Does with an admitted request what its route says.
pub fn admit(exchange: &mut Exchange, mut admitted: Admitted) -> Next {
    exchange.permit = admitted.take_permit();
    let route = &**admitted.route();
    count_admitted(exchange, route);
    if exchange.scratch.report.has_shadow_refusals() {
        exchange.write_shadow_letters();
    }
    if let Some(cors) = route.spec.cors.as_ref().filter(|cors| cors::is_owned(cors))
        && answer_preflight(exchange, cors)
    {
        return responded(exchange);
    }
    match &route.action {
        Action::Respond { status, body } => {
            respond::of_route(*status, &body.content_type, &mut exchange.scratch.reply);
            responded(exchange)
        }
        Action::Redirect { status, target } => {
            let led = lead_to(exchange, |path, context, text| target.render(path, context, text));
            let is_hostless = exchange.request().authority().is_none_or(str::is_empty);
            let names_host =
                || target.to().variables().any(|variable| matches!(variable, Variable::Host | Variable::Authority));
            if led == Rewritten::Same || is_hostless && names_host() {
                return Next::Over(end_by(exchange, Cause::HostlessRoute, false));
            }
            let Scratch { reply, state: RequestState { target, .. }, .. } = &mut *exchange.scratch;
            keep_on_this_host(target);
            respond::text(*status, "See the Location header.\n", reply);
            reply.put(b"location", target);
            responded(exchange)
        }
        // It is for us (RFC 9110, 7.6.2). An answer to TRACE would show fields that only servers are to see.
        Action::Forward(_) if headers::max_forwards(&exchange.request()) == Some(0) => {
            let status = if exchange.request().method() == "OPTIONS" { 200 } else { 501 };
            respond::text(status, "", &mut exchange.scratch.reply);
            responded(exchange)
        }
        Action::Forward(upstream) => {
            let Scratch { request, upload, .. } = &*exchange.scratch;
            let length = match request.framing() {
                Framing::Length(length) => length,
                _ => upload.content(),
            };
            if route.spec.max_body_size.is_some_and(|most| length > most) {
                return Next::Over(end_by(exchange, Cause::ExchangeError(&ExchangeError::TooLarge), false));
            }
            if let Some(rewrite) = route.spec.edits.as_ref().and_then(|edits| edits.rewrite.as_ref())
                && let Err(fault) = rewrite_target(exchange, rewrite)
            {
                return Next::Over(end_by(exchange, Cause::Rewritten(fault), false));
            }
            let upstream = Rc::clone(upstream);
            Next::Forward(admitted, upstream)
        }
    }
}

/// The gateway's own answer lies ready but for how the limits stand.
pub(super) fn responded(exchange: &mut Exchange) -> Next {
    let Exchange { view, scratch, record, .. } = &mut *exchange;
    let Scratch { reply, report, text, .. } = &mut **scratch;
    write_rate_fields(view, record, report, None, text, reply);
    record.status = Some(reply.status);
    exchange.finish(Outcome::Responded);
    Next::Over(EndingFate::Keep)
}

/// Makes the answer if the request is a preflight.
fn answer_preflight(exchange: &mut Exchange, cors: &Cors) -> bool {
    let (facts, MessageRoom { reply, .. }) = exchange.split();
    let context = facts.context();
    let Some(origin) = context.field("origin") else { return false };
    if !is_preflight(&context) {
        return false;
    }
    cors::answer(cors, PreflightFields { origin, headers: context.field("access-control-request-headers") }, reply);
    true
}

/// A path that begins with two slashes would be the name of another host, and browsers read backslashes as slashes.
fn keep_on_this_host(target: &mut Vec<u8>) {
    let slashes = target.iter().take_while(|byte| matches!(byte, b'/' | b'\\')).count();
    if slashes > 1 {
        target.drain(1..slashes);
    }
}

/// Makes the path and the query that the server gets, in their one spelling: what a regex has put together may be a way
/// up.
fn rewrite_target(exchange: &mut Exchange, rewrite: &Rewrite) -> Result<(), Malformed> {
    if lead_to(exchange, |path, context, text| rewrite.apply(path, context, text)) == Rewritten::Same {
        exchange.scratch.state.target.clear();
        return Ok(());
    }
    let has_query = match rewrite {
        Rewrite::Whole(target) => {
            target.to().variables().any(|variable| matches!(variable, Variable::Query | Variable::Uri))
        }
        Rewrite::Prefix { .. } => false,
    };
    let (facts, MessageRoom { target, text, .. }) = exchange.split();
    let request = facts.request();
    // Everything that is put there is escaped to ASCII.
    let made = str::from_utf8(target).map_err(|_| Malformed::PathByte)?;
    let (path, query) = made.split_once('?').map_or((made, None), |(path, query)| (path, Some(query)));
    let path = normal_path(path)?;
    text.clear();
    text.extend_from_slice(path.as_bytes());
    let own = request.query_bytes().filter(|_| !has_query);
    for (mark, query) in
        [b'?', if query.is_some() { b'&' } else { b'?' }].into_iter().zip([query.map(str::as_bytes), own])
    {
        if let Some(query) = query {
            text.push(mark);
            text.extend_from_slice(query);
        }
    }
    std::mem::swap(text, target);
    Ok(())
}

/// Has `write` fill in where a request for its path is sent.
fn lead_to(
    exchange: &mut Exchange,
    write: impl FnOnce(Spellings<'_>, &TemplateContext<'_>, &mut Vec<u8>) -> Rewritten,
) -> Rewritten {
    exchange.identify();
    let (facts, room) = exchange.split();
    room.target.clear();
    let context = facts.template_context(0, None);
    let sent = facts.record.path.as_deref().unwrap_or(context.request.path());
    // What is about the server as a whole has no path.
    if sent == "*" {
        return Rewritten::Same;
    }
    write(Spellings { sent, matched: &without_escaped_delims(sent) }, &context, room.target)
}

/// Counts an admission by every limit that applies. A request that waited did so in one queue: that limit counted it as
/// queued and now lets it go, so that for each limit queued = admitted later + wait timeouts + cancelled + waiting.
#[expect(clippy::inline_always, reason = "as of `note`")]
#[inline(always)]
pub(super) fn count_admitted(exchange: &Exchange, route: &RouteView) {
    let report = &exchange.scratch.report;
    let would_refuse = |place| report.shadow_refusals().any(|shadow| shadow == place);
    let mut waited_for = exchange.record.queued_in.as_ref();
    for line in report.lines().iter().filter(|line| line.rate == 0 && !(line.shadow && would_refuse(line.limit))) {
        if let Some(limit) = route.limit(line.limit) {
            let waited = waited_for.take_if(|queued_in| queued_in.place == line.limit).is_some();
            limit.meters.decided(if waited { Decision::AdmittedAfterWait } else { Decision::Admitted });
            exchange.count_key(limit, report.key(line.limit), true);
        }
    }
    if let Some(limit) = waited_for {
        // It was replaced meanwhile, and has nothing more to say.
        limit.meters.decided(Decision::AdmittedAfterWait);
    }
    for shadow in report.shadow_refusals() {
        if let Some(limit) = route.limit(shadow) {
            limit.meters.decided(Decision::ShadowRefused);
            exchange.count_key(limit, report.key(shadow), false);
        }
    }
}
