//! What is done about a request, whatever the protocols on either side.

use std::rc::Rc;

use super::broken::{Broken, Late};
use super::cors::{self, Asked};
use super::exchange::{Exchange, Story};
use super::headers::Sink;
use super::meters::{Decision, Outcome};
use super::rate_headers::{self, RefusedBy};
use super::refuse;
use super::respond::{self, Problem, Wants};
use super::scratch::Scratch;
use super::seen::Seen;
use super::snapshot::RouteAction;
use super::variables::Known;
use super::waiting;
use super::worker::View;
use crate::admission::{
    Admission, Admitted, Arrival, Malformed, Refused, Waiting, is_preflight, normal_path, without_escaped_delims,
};
use crate::config::Cors;
use crate::dead_letter::Reason;
use crate::edit::{Rewrite, Rewritten, Spellings, Variable};
use crate::http1::Framing;
use crate::limiter::Report;

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
    let seen = Seen { request, connection, rules: &view.snapshot.rules };
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
                Refused::Limit(refusal) => refuse::refuse(exchange, &arrival, &refusal),
                Refused::MissingKey { limit } => refuse::refuse_keyless(exchange, &arrival, limit),
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
    exchange.story.plan = arrival.plan;
    exchange.story.client = Some(arrival.client.clone());
    exchange.story.path.clone_from(&arrival.path);
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
    let view = Rc::clone(&exchange.view);
    let Some(plan) = view.snapshot.routes.get(route) else {
        // Routes and plans are built side by side; a hole would be our fault, not the client's.
        fail(exchange, Outcome::UpstreamError, 500, "The route has no plan.");
        return Next::Reply;
    };
    if let Some(cors) = plan.cors.as_ref().filter(|cors| cors::is_owned(cors))
        && answer_preflight(exchange, cors)
    {
        return responded(exchange, &view);
    }
    match &plan.action {
        RouteAction::Respond { status, body } => {
            respond::of_route(*status, &body.content_type, &mut exchange.scratch.reply);
            responded(exchange, &view)
        }
        RouteAction::Redirect { status, target } => {
            let led = lead_to(exchange, &view, |path, known, text| target.render(path, known, text));
            let is_hostless = exchange.request().authority().is_none_or(str::is_empty);
            let names_host =
                || target.to().variables().any(|variable| matches!(variable, Variable::Host | Variable::Authority));
            if led == Rewritten::Same || is_hostless && names_host() {
                fail(exchange, Outcome::Malformed, 400, "The request does not say which host it is for.");
                return Next::Reply;
            }
            let Scratch { reply, target, .. } = &mut *exchange.scratch;
            keep_on_this_host(target);
            respond::text(*status, "This is elsewhere: see the location of this answer.\n", reply);
            reply.put(b"location", target);
            responded(exchange, &view)
        }
        RouteAction::Forward(upstream) => {
            let Scratch { request, upload, .. } = &*exchange.scratch;
            let length = match request.framing() {
                Framing::Length(length) => length,
                _ => upload.content(),
            };
            if plan.max_body_size.is_some_and(|most| length > most) {
                give_up(exchange, &Broken::TooLarge, false);
                return Next::ReplyAndClose;
            }
            match plan.edits.as_ref().and_then(|edits| edits.rewrite.as_ref()) {
                Some(rewrite) => match rewrite_target(exchange, &view, rewrite) {
                    Ok(()) => Next::Forward(admitted, *upstream),
                    Err(fault) => {
                        fail(exchange, Outcome::Malformed, 400, &format!("Rewritten for the server, {fault}"));
                        Next::Reply
                    }
                },
                None => Next::Forward(admitted, *upstream),
            }
        }
    }
}

/// The gateway's own answer lies ready but for how the limits stand.
fn responded(exchange: &mut Exchange, view: &View) -> Next {
    let Exchange { scratch, story, .. } = &mut *exchange;
    let Scratch { reply, report, text, .. } = &mut **scratch;
    write_rate_fields(view, story, report, None, text, reply);
    story.status = Some(reply.status);
    exchange.finish(Outcome::Responded);
    Next::Reply
}

/// Makes the answer if the request is a preflight.
fn answer_preflight(exchange: &mut Exchange, cors: &Cors) -> bool {
    let Exchange { view, connection, scratch, head_bytes, .. } = &mut *exchange;
    let Scratch { inbound, request, reply, .. } = &mut **scratch;
    let request = request.on(inbound.filled().get(..*head_bytes).unwrap_or_default());
    let seen = Seen { request, connection, rules: &view.snapshot.rules };
    let Some(origin) = seen.field("origin") else { return false };
    if !is_preflight(&seen) {
        return false;
    }
    cors::answer(cors, Asked { origin, headers: seen.field("access-control-request-headers") }, reply);
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
fn rewrite_target(exchange: &mut Exchange, view: &View, rewrite: &Rewrite) -> Result<(), Malformed> {
    if lead_to(exchange, view, |path, known, text| rewrite.apply(path, known, text)) == Rewritten::Same {
        exchange.scratch.target.clear();
        return Ok(());
    }
    let has_query = match rewrite {
        Rewrite::Whole(target) => {
            target.to().variables().any(|variable| matches!(variable, Variable::Query | Variable::Uri))
        }
        Rewrite::Prefix { .. } => false,
    };
    let Exchange { scratch, head_bytes, .. } = &mut *exchange;
    let Scratch { inbound, request, target, text, .. } = &mut **scratch;
    let request = request.on(inbound.filled().get(..*head_bytes).unwrap_or_default());
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
    view: &View,
    write: impl FnOnce(Spellings<'_>, &Known<'_>, &mut Vec<u8>) -> Rewritten,
) -> Rewritten {
    exchange.identify();
    let Exchange { connection, scratch, story, head_bytes, .. } = &mut *exchange;
    let Scratch { inbound, request, report, request_id, target, .. } = &mut **scratch;
    let request = request.on(inbound.filled().get(..*head_bytes).unwrap_or_default());
    target.clear();
    let (status, retry_after_secs) = (0, None);
    let known = Known { request, connection, view, story, report, request_id, status, retry_after_secs };
    let sent = story.path.as_deref().unwrap_or(request.path());
    // What is about the server as a whole has no path.
    if sent == "*" {
        return Rewritten::Same;
    }
    write(Spellings { sent, matched: &without_escaped_delims(sent) }, &known, target)
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
    rate_headers::write(snapshot.server().rate_headers, report, name_of, refused, text, sink);
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

pub fn write_problem(exchange: &mut Exchange, problem: &Problem<'_>) {
    let Exchange { connection, scratch, head_bytes, .. } = &mut *exchange;
    let Scratch { inbound, request, reply, .. } = &mut **scratch;
    let request = request.on(inbound.filled().get(..*head_bytes).unwrap_or_default());
    let wants = Wants::of(&request, connection.facts.is_h2);
    respond::problem(problem, wants, reply);
}
