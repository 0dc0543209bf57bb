//! What is done about a request, whatever the protocols on either side.

use std::rc::Rc;

use super::broken::{Broken, Late};
use super::exchange::{Exchange, Story};
use super::headers::Sink;
use super::meters::{Decision, Outcome};
use super::rate_headers::{self, RefusedBy};
use super::respond::{self, Problem, Wants};
use super::scratch::Scratch;
use super::seen::Seen;
use super::snapshot::RouteAction;
use super::waiting;
use super::worker::View;
use crate::admission::{Admission, Admitted, Arrival, Refused, Waiting};
use crate::config::OnLimit;
use crate::dead_letter::Reason;
use crate::http1::Framing;
use crate::limiter::{Refusal, Report, Why};
use crate::time::Span;

/// What logs show where a connection was closed without an answer, as nginx has it. It is never sent.
const NO_RESPONSE: u16 = 444;

/// What comes next for a request.
pub enum Next {
    /// The reply that lies ready.
    Reply,
    /// The same, and the connection closes.
    ReplyAndClose,
    /// To an upstream.
    Forward(Admitted, usize),
    /// It waits for its place.
    Wait(Waiting),
    /// The connection closes without an answer.
    Drop,
}

/// Asks admission.
pub fn decide(exchange: &mut Exchange) -> Next {
    let Exchange { view, connection, scratch, head_bytes, arrived, .. } = &mut *exchange;
    let Scratch { inbound, request, report, .. } = &mut **scratch;
    let request = request.on(inbound.filled().get(..*head_bytes).unwrap_or_default());
    let seen = Seen { request, connection };
    match view.snapshot.rules.admit(&seen, connection.peer.ip(), *arrived, report) {
        Admission::Malformed(fault) => {
            exchange.worker.connections.malformed(fault);
            fail(exchange, Outcome::Malformed, 400, &fault.to_string());
            // What follows on this connection may not be what it seems.
            Next::ReplyAndClose
        }
        Admission::NoRoute(arrival) => {
            note(exchange, &arrival);
            fail(exchange, Outcome::NoRoute, 404, "No route matches.");
            Next::Reply
        }
        Admission::Refused(arrival, refused) => {
            note(exchange, &arrival);
            match refused {
                Refused::Limit(refusal) => refuse(exchange, &arrival, &refusal),
                Refused::MissingKey { limit } => refuse_keyless(exchange, &arrival, limit),
            }
        }
        Admission::Waiting(waiting) => {
            note(exchange, waiting.arrival());
            exchange.story.queued_in = waiting::limit_of(exchange, &waiting);
            Next::Wait(waiting)
        }
        Admission::Admitted(admitted) => {
            note(exchange, admitted.arrival());
            admit(exchange, admitted)
        }
    }
}

/// Sends the client to the same place by `https`. No limit is asked: to say so costs less than to ask.
pub fn redirect(exchange: &mut Exchange, port: u16) -> Next {
    let Exchange { scratch, head_bytes, .. } = &mut *exchange;
    let Scratch { inbound, request, reply, text, .. } = &mut **scratch;
    let request = request.on(inbound.filled().get(..*head_bytes).unwrap_or_default());
    let Some(authority) = request.authority().filter(|authority| !authority.is_empty()) else {
        fail(exchange, Outcome::Malformed, 400, "The request does not say which host it is for.");
        return Next::ReplyAndClose;
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
    exchange.story.status = Some(308);
    exchange.finish(Outcome::Responded);
    Next::Reply
}

/// Keeps what admission found out, for logs and dead letters.
fn note(exchange: &mut Exchange, arrival: &Arrival) {
    exchange.story.route = arrival.route;
    exchange.story.client = Some(arrival.client.clone());
    if arrival.trusted_peer {
        exchange.adopt_request_id();
    }
    if !arrival.invalid_costs.is_empty() {
        count_invalid_costs(&exchange.view, arrival);
    }
}

fn count_invalid_costs(view: &View, arrival: &Arrival) {
    let Some(plan) = arrival.route.and_then(|route| view.snapshot.routes.get(route)) else { return };
    for limit in arrival.invalid_costs.iter().filter_map(|place| plan.limits.get(place)) {
        view.meters.cost_invalid(*limit);
    }
}

/// Does with an admitted request what its route says.
pub fn admit(exchange: &mut Exchange, mut admitted: Admitted) -> Next {
    exchange.permit = admitted.take_permit();
    let route = admitted.route();
    count_admitted(&exchange.view, &exchange.story, &exchange.scratch.report, route);
    let Exchange { view, scratch, story, .. } = &mut *exchange;
    let Some(plan) = view.snapshot.routes.get(route) else {
        // Routes and plans are built side by side; a hole would be our fault, not the client's.
        fail(exchange, Outcome::UpstreamError, 500, "The route has no plan.");
        return Next::Reply;
    };
    match &plan.action {
        RouteAction::Respond { status, body } => {
            let Scratch { reply, report, text, .. } = &mut **scratch;
            respond::text(*status, body, reply);
            write_rate_fields(view, story, report, None, text, reply);
            exchange.story.status = Some(*status);
            exchange.finish(Outcome::Responded);
            Next::Reply
        }
        RouteAction::Forward(upstream) => {
            let upstream = *upstream;
            let length = match scratch.request.framing() {
                Framing::Length(length) => length,
                _ => scratch.upload.content(),
            };
            if plan.max_body_size.is_some_and(|most| length > most) {
                give_up(exchange, &Broken::TooLarge, false);
                return Next::ReplyAndClose;
            }
            Next::Forward(admitted, upstream)
        }
    }
}

/// Counts an admission by every limit that applies. Whoever waited did so in one queue: that limit counted it as queued
/// and now lets it go, so that for each limit queued = admitted later + wait timeouts + cancelled + waiting.
fn count_admitted(view: &View, story: &Story, report: &Report, route: usize) {
    let Some(plan) = view.snapshot.routes.get(route) else { return };
    let would_refuse = |place| report.shadow_refusals().any(|shadow| shadow == place);
    let mut waited_for = story.queued_in;
    for line in report.lines().iter().filter(|line| line.rate == 0 && !(line.shadow && would_refuse(line.limit))) {
        if let Some(limit) = plan.limits.get(line.limit) {
            let waited = waited_for.take_if(|queued_in| queued_in == limit).is_some();
            view.meters.decided(*limit, if waited { Decision::AdmittedLater } else { Decision::Admitted });
        }
    }
    if let Some(limit) = waited_for {
        // It was replaced meanwhile, and has nothing more to say.
        view.meters.decided(limit, Decision::AdmittedLater);
    }
    for shadow in report.shadow_refusals() {
        if let Some(limit) = plan.limits.get(shadow) {
            view.meters.decided(*limit, Decision::ShadowRefused);
        }
    }
}

/// Adds how the limits of the route stand.
pub fn write_rate_fields(
    view: &View,
    story: &Story,
    report: &Report,
    refused: Option<RefusedBy>,
    text: &mut Vec<u8>,
    sink: &mut impl Sink,
) {
    let snapshot = &view.snapshot;
    let Some(route) = story.route else { return };
    let name_of = |place| snapshot.limit_of(route, place).map_or("", |limit| &*limit.name);
    rate_headers::write(snapshot.rate_headers, report, name_of, refused, text, sink);
}

/// What the client is told when a limit says no.
pub fn refuse(exchange: &mut Exchange, arrival: &Arrival, refusal: &Refusal) -> Next {
    let (outcome, decision, reason) = match refusal.why {
        Why::Rate => (Outcome::Refused, Decision::Refused, Reason::RateLimited),
        Why::QueueFull => (Outcome::Refused, Decision::QueueFull, Reason::QueueFull),
        Why::WaitTimeout => (Outcome::WaitTimeout, Decision::WaitTimeout, Reason::WaitTimeout),
        Why::TooCostly => (Outcome::Refused, Decision::TooCostly, Reason::RateLimited),
        Why::TableFull => (Outcome::Refused, Decision::TableFull, Reason::Overload),
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
    let retry_after_secs = refusal.retry_at.map(|at| (at + extra).since(now).as_secs_ceil().max(1));
    let drops = finish_refused(exchange, outcome, limit.status);
    if refusal.why != Why::WaitTimeout {
        exchange.ended_at(now);
    }
    exchange.write_dead_letter(reason, arrival.key, Some(refusal));
    if drops {
        return Next::Drop;
    }
    let mut detail = std::mem::take(&mut exchange.scratch.detail);
    describe(refusal.why, &limit.name, retry_after_secs, &mut detail);
    let problem = Problem { status: limit.status, detail: &detail, violated: &[&limit.name], retry_after_secs };
    write_problem(exchange, &problem);
    exchange.scratch.detail = detail;
    let by = RefusedBy { limit: refusal.limit, retry_after_secs };
    let Exchange { scratch, story, .. } = &mut *exchange;
    let Scratch { reply, report, text, .. } = &mut **scratch;
    write_rate_fields(&view, story, report, Some(by), text, reply);
    Next::Reply
}

/// In words. Put together by hand, since every refusal of a flood is told so.
fn describe(why: Why, name: &str, retry_after_secs: Option<u64>, detail: &mut String) {
    let before = match why {
        Why::TooCostly | Why::Rate | Why::QueueFull => "Over the limit \"",
        Why::WaitTimeout => "Waited for the limit \"",
        Why::TableFull => "The limit \"",
    };
    let after = match why {
        Why::TooCostly => "\"; this request can never fit in it.",
        Why::WaitTimeout => "\" in vain; ",
        Why::TableFull => "\" counts as many clients as it can; ",
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

fn refuse_keyless(exchange: &mut Exchange, arrival: &Arrival, place: usize) -> Next {
    let view = Rc::clone(&exchange.view);
    let Some(limit) = count_refused(exchange, &view, arrival, place, Decision::MissingKey) else {
        fail(exchange, Outcome::Refused, 429, "The request lacks the key of a limit.");
        return Next::Reply;
    };
    let drops = finish_refused(exchange, Outcome::Refused, limit.status);
    exchange.write_dead_letter(Reason::RateLimited, arrival.key, None);
    if drops {
        return Next::Drop;
    }
    let detail = format!("The request lacks what the limit {:?} tells clients apart by.", limit.name);
    let problem = Problem { status: limit.status, detail: &detail, violated: &[&limit.name], retry_after_secs: None };
    write_problem(exchange, &problem);
    Next::Reply
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
) -> Option<&'v super::snapshot::LimitPlan> {
    exchange.story.limit = Some(place);
    let limit = *view.snapshot.routes.get(arrival.route?)?.limits.get(place)?;
    // The limit in whose queue it waited counts its end, whichever it was refused by then.
    view.meters.decided(exchange.story.queued_in.unwrap_or(limit), decision);
    view.snapshot.limits.get(limit)
}

/// Records why an exchange broke, and makes the answer unless one has begun.
pub fn give_up(exchange: &mut Exchange, broken: &Broken, begun: bool) {
    let (outcome, status, detail): (_, _, &str) = match broken {
        Broken::Unreachable(_) => (Outcome::UpstreamError, 502, "No server of the upstream can be reached."),
        Broken::Silent { .. } | Broken::Unread | Broken::Upstream(_) | Broken::Unasked => {
            (Outcome::UpstreamError, 502, "The upstream broke the exchange off.")
        }
        Broken::Response(_) => (Outcome::UpstreamError, 502, "The upstream's answer is not valid."),
        Broken::Request(fault) => (Outcome::Malformed, respond::status_of(*fault), ""),
        Broken::TooLarge => (Outcome::Malformed, 413, "The request's body is too large."),
        Broken::ClientGone => (Outcome::ClientGone, 499, ""),
        Broken::Late(Late::Deadline) => (Outcome::Timeout, 504, "The upstream did not answer in time."),
        Broken::Late(Late::ClientSends) => (Outcome::Timeout, 408, "The request's body did not come in time."),
        Broken::Late(_) => (Outcome::Timeout, 504, "The exchange stood still for too long."),
    };
    let meters = &exchange.worker.connections;
    match broken {
        Broken::Response(fault) => meters.upstream_fault(*fault),
        Broken::Request(fault) => meters.client_fault(*fault),
        Broken::TooLarge => meters.body_too_large.inc(),
        Broken::Unasked => meters.unasked_switch.inc(),
        Broken::Late(Late::ClientSends) => meters.body_timeout.inc(),
        Broken::Late(Late::ClientReads) => meters.read_timeout.inc(),
        Broken::Late(Late::UpstreamReads) => meters.upstream_read_timeout.inc(),
        Broken::Late(Late::UpstreamSends) => meters.upstream_body_timeout.inc(),
        Broken::Late(Late::Deadline) => exchange.blame_timeout(),
        _ => {}
    }
    exchange.finish(outcome);
    if outcome == Outcome::ClientGone {
        return;
    }
    if !begun {
        exchange.story.status = Some(status);
    }
    let reason = match broken {
        Broken::TooLarge => Some(Reason::TooLarge),
        _ if outcome == Outcome::Timeout => Some(Reason::Timeout),
        _ if outcome == Outcome::UpstreamError => Some(Reason::UpstreamError),
        _ => None,
    };
    exchange.ended_at(exchange.worker.clock.now());
    if outcome == Outcome::UpstreamError {
        report(exchange, broken);
    }
    if let Some(reason) = reason {
        exchange.write_dead_letter(reason, Some(exchange.client_key()), None);
    }
    if !begun {
        let text = if let Broken::Request(fault) = broken { fault.to_string() } else { detail.to_owned() };
        write_problem(exchange, &Problem { status, detail: &text, violated: &[], retry_after_secs: None });
    }
}

/// Whether the client's connection can still be used after this.
pub fn is_clean_after(broken: &Broken) -> bool {
    match broken {
        Broken::Unreachable(_)
        | Broken::Silent { .. }
        | Broken::Unread
        | Broken::Upstream(_)
        | Broken::Late(Late::Deadline) => true,
        // An answer that could be understood in two ways is a doubt about everybody who takes part.
        Broken::Response(_)
        | Broken::Unasked
        | Broken::Request(_)
        | Broken::TooLarge
        | Broken::ClientGone
        | Broken::Late(_) => false,
    }
}

fn report(exchange: &Exchange, broken: &Broken) {
    if let Some(more) = exchange.worker.upstream_reports.due(exchange.ended()) {
        let (upstream, server) = exchange.upstream_names().map_or(("", ""), |(upstream, server)| (upstream, server));
        let request_id = exchange.request_id();
        tracing::warn!(%upstream, %server, request_id, more, error = %broken, "upstream error");
    }
}

/// Makes the answer for a request that failed for a reason of no limit's.
pub fn fail(exchange: &mut Exchange, outcome: Outcome, status: u16, detail: &str) {
    exchange.finish(outcome);
    exchange.story.status = Some(status);
    write_problem(exchange, &Problem { status, detail, violated: &[], retry_after_secs: None });
}

fn write_problem(exchange: &mut Exchange, problem: &Problem<'_>) {
    let Exchange { view, scratch, story, head_bytes, .. } = &mut *exchange;
    let Scratch { inbound, request, reply, .. } = &mut **scratch;
    let request = request.on(inbound.filled().get(..*head_bytes).unwrap_or_default());
    let plan = story.route.and_then(|route| view.snapshot.routes.get(route));
    let wants = Wants {
        accept: request.field(b"accept"),
        content_type: request.field(b"content-type"),
        origin: request.field(b"origin"),
    };
    respond::problem(problem, wants, plan.and_then(|plan| plan.cors.as_ref()), reply);
}
