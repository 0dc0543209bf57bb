//! The data plane: one exchange from the client's request to the last byte of its response.
//!
//! It runs on worker threads, each with its own runtime, sockets, upstream connections and in-flight wheel; nothing on
//! the path of a request is shared between them but the limiter's key tables. It decides nothing itself: `admission`
//! says who may pass, `balance` where to, and [`forward`] takes nothing but what admission let through.
//!
//! Invariants: one [`Snapshot`] per exchange, loaded once; two clock readings per exchange, at its arrival and at its
//! end; exactly one outcome per exchange, however it ends; an error becomes a status in [`respond`] only. Caller:
//! `gateway`, which builds snapshots and starts the workers.

mod body;
mod exchange;
mod flight;
mod forward;
mod h1;
mod headers;
mod listener;
mod meters;
mod rate_headers;
mod respond;
mod snapshot;
mod throttle;
mod waiting;
mod worker;

use http::{HeaderMap, Response};
use hyper::body::Incoming;

use crate::admission::{Admission, Admitted, Arrival, Refused, RequestView};
use crate::dead_letter::Reason;
use crate::limiter::{Refusal, Report, Why};
use crate::time::Span;
use body::{RequestBody, ResponseBody};
use exchange::Exchange;
use forward::{ForwardError, Forwarded};
use meters::{Decision, Outcome};
use rate_headers::RefusedBy;
use respond::{Problem, Wants};

pub use listener::{accept, bind};
pub use snapshot::{Feed, LimitPlan, RouteAction, RoutePlan, Snapshot, UpstreamPlan};
pub use worker::{Worker, WorkerGauges};

/// One request, from its head to the head of its response.
async fn exchange(mut exchange: Box<Exchange>, body: Incoming) -> Response<ResponseBody> {
    if let Some(fault) = exchange.head.fault() {
        return malformed(exchange, fault, body);
    }
    let view = std::rc::Rc::clone(&exchange.view);
    let peer = exchange.connection.peer.ip();
    match view.snapshot.rules.admit(&exchange.head, peer, exchange.arrived) {
        Admission::Malformed(fault) => malformed(exchange, &fault.to_string(), body),
        Admission::NoRoute(arrival) => {
            note(&mut exchange, &arrival);
            let problem = Problem { status: 404, detail: "No route matches.", violated: &[], retry_after_secs: None };
            answer(exchange, Outcome::NoRoute, &problem, body)
        }
        Admission::Refused(arrival, refused) => {
            note(&mut exchange, &arrival);
            match refused {
                Refused::Limit(refusal) => refuse(exchange, &arrival, &refusal, body),
                Refused::MissingKey { limit } => refuse_keyless(exchange, &arrival, limit, body),
            }
        }
        Admission::Waiting(waiting) => {
            note(&mut exchange, waiting.arrival());
            exchange.story.queued_in = waiting::limit_of(&exchange, &waiting);
            match waiting::wait(&exchange, waiting).await {
                Ok(admitted) => admit(exchange, admitted, body).await,
                Err((arrival, refusal)) => refuse(exchange, &arrival, &refusal, body),
            }
        }
        Admission::Admitted(admitted) => {
            note(&mut exchange, admitted.arrival());
            admit(exchange, admitted, body).await
        }
    }
}

/// Keeps what admission found out, for logs and dead letters.
fn note(exchange: &mut Exchange, arrival: &Arrival) {
    exchange.story.route = arrival.route;
    exchange.story.client = Some(arrival.client.clone());
    if arrival.trusted_peer {
        exchange.adopt_request_id();
    }
}

/// Does with an admitted request what its route says.
async fn admit(mut exchange: Box<Exchange>, admitted: Admitted, body: Incoming) -> Response<ResponseBody> {
    let view = std::rc::Rc::clone(&exchange.view);
    let route = admitted.route();
    let report = admitted.arrival().report.clone();
    count_admitted(&exchange, route, &report);
    let Some(plan) = view.snapshot.routes.get(route) else {
        // Routes and plans are built side by side; a hole would be our fault, not the client's.
        return fail(exchange, Outcome::UpstreamError, 500, "The route has no plan.", body);
    };
    let upstream = match &plan.action {
        RouteAction::Respond { status, body: text } => {
            let mut reply = respond::text(*status, text);
            write_rate_fields(&exchange, &report, None, &mut reply);
            exchange.story.status = Some(*status);
            exchange.finish(Outcome::Responded);
            return h1::reply(reply, exchange, body);
        }
        RouteAction::Forward(upstream) => *upstream,
    };
    let place = exchange.worker.flights.enter(admitted.deadline(), &exchange.connection);
    exchange.worker.publish_in_flight();
    let body = RequestBody::new(body, &exchange.upload_ended);
    let forwarded = tokio::select! {
        biased;
        forwarded = forward::forward(&mut exchange, admitted, upstream, body) => forwarded,
        () = place.expired() => {
            drop(place);
            exchange.blame_timeout();
            return timed_out(exchange);
        }
    };
    match forwarded {
        Ok((response, lease)) => relay(exchange, &report, (response, lease), place),
        Err(error) => unforwarded(exchange, &error),
    }
}

/// The upstream's response, on its way to the client.
fn relay(
    mut exchange: Box<Exchange>,
    report: &Report,
    (response, lease): Forwarded,
    place: flight::Place,
) -> Response<ResponseBody> {
    let (head, body) = response.into_parts();
    let mut fields = HeaderMap::with_capacity(head.headers.len() + 4);
    headers::forward_response(&head.headers, &mut fields);
    write_rate_fields(&exchange, report, None, &mut fields);
    exchange.story.status = Some(head.status.as_u16());
    let mut response = Response::new(ResponseBody::relay(body, lease, place, exchange));
    *response.status_mut() = head.status;
    *response.headers_mut() = fields;
    response
}

/// Counts an admission by every limit that applies. Whoever waited did so in one queue: that limit counted it as queued
/// and now lets it go, so that for each limit queued = admitted later + wait timeouts + cancelled + waiting.
fn count_admitted(exchange: &Exchange, route: usize, report: &Report) {
    let view = &exchange.view;
    let Some(plan) = view.snapshot.routes.get(route) else { return };
    let would_refuse = |place| report.shadow_refusals().any(|shadow| shadow == place);
    for line in report.lines().iter().filter(|line| line.rate == 0 && !(line.shadow && would_refuse(line.limit))) {
        if let Some(limit) = plan.limits.get(line.limit) {
            let waited = exchange.story.queued_in == Some(*limit);
            view.meters.decided(*limit, if waited { Decision::AdmittedLater } else { Decision::Admitted });
        }
    }
    for shadow in report.shadow_refusals() {
        if let Some(limit) = plan.limits.get(shadow) {
            view.meters.decided(*limit, Decision::ShadowRefused);
        }
    }
}

fn write_rate_fields(exchange: &Exchange, report: &Report, refused: Option<RefusedBy>, sink: &mut impl headers::Sink) {
    let snapshot = &exchange.view.snapshot;
    let Some(route) = exchange.story.route else { return };
    let name_of = |place| snapshot.limit_of(route, place).map_or("", |limit| &*limit.name);
    rate_headers::write(snapshot.rate_headers, report, name_of, refused, sink);
}

/// What the client is told when a limit says no.
fn refuse(mut exchange: Box<Exchange>, arrival: &Arrival, refusal: &Refusal, body: Incoming) -> Response<ResponseBody> {
    let (outcome, decision, reason) = match refusal.why {
        Why::Rate => (Outcome::Refused, Decision::Refused, Reason::RateLimited),
        Why::QueueFull => (Outcome::Refused, Decision::QueueFull, Reason::QueueFull),
        Why::WaitTimeout => (Outcome::WaitTimeout, Decision::WaitTimeout, Reason::WaitTimeout),
        Why::TooCostly => (Outcome::Refused, Decision::TooCostly, Reason::RateLimited),
        Why::TableFull => (Outcome::Refused, Decision::TableFull, Reason::Overload),
    };
    let Some((status, name, jitter)) = refusing_limit(&mut exchange, arrival, refusal.limit, decision) else {
        return fail(exchange, outcome, 429, "Over the limit.", body);
    };
    let extra = match jitter.as_nanos() {
        0 => Span::ZERO,
        most => Span::from_nanos(exchange.worker.random() % most.saturating_add(1)),
    };
    let now = if refusal.why == Why::WaitTimeout { exchange.ended() } else { exchange.arrived };
    let retry_after_secs = refusal.retry_at.map(|at| (at + extra).since(now).as_secs_ceil().max(1));
    let again = retry_after_secs.map_or("try again later".to_owned(), |secs| format!("try again in {secs} s"));
    let detail = match refusal.why {
        Why::TooCostly => format!("Over the limit {name:?}; this request can never fit in it."),
        Why::WaitTimeout => format!("Waited for the limit {name:?} in vain; {again}."),
        Why::TableFull => format!("The limit {name:?} counts as many clients as it can; {again}."),
        Why::Rate | Why::QueueFull => format!("Over the limit {name:?}; {again}."),
    };
    let problem = Problem { status, detail: &detail, violated: &[&name], retry_after_secs };
    let by = RefusedBy { limit: refusal.limit, retry_after_secs };
    exchange.finish(outcome);
    exchange.story.status = Some(status);
    exchange.write_dead_letter(reason, arrival.key, Some(refusal));
    let mut reply = problem_reply(&exchange, &problem);
    write_rate_fields(&exchange, &arrival.report, Some(by), &mut reply);
    h1::reply(reply, exchange, body)
}

fn refuse_keyless(
    mut exchange: Box<Exchange>,
    arrival: &Arrival,
    place: usize,
    body: Incoming,
) -> Response<ResponseBody> {
    let Some((status, name, _)) = refusing_limit(&mut exchange, arrival, place, Decision::MissingKey) else {
        return fail(exchange, Outcome::Refused, 429, "The request lacks the key of a limit.", body);
    };
    let detail = format!("The request lacks what the limit {name:?} tells clients apart by.");
    let problem = Problem { status, detail: &detail, violated: &[&name], retry_after_secs: None };
    exchange.story.status = Some(status);
    exchange.write_dead_letter(Reason::RateLimited, arrival.key, None);
    answer(exchange, Outcome::Refused, &problem, body)
}

/// Counts a refusal and gives the status, name and jitter of the limit.
fn refusing_limit(
    exchange: &mut Exchange,
    arrival: &Arrival,
    place: usize,
    decision: Decision,
) -> Option<(u16, String, Span)> {
    exchange.story.limit = Some(place);
    let view = std::rc::Rc::clone(&exchange.view);
    let route = arrival.route?;
    let limit = *view.snapshot.routes.get(route)?.limits.get(place)?;
    // The limit in whose queue it waited counts its end, whichever it was refused by then.
    view.meters.decided(exchange.story.queued_in.unwrap_or(limit), decision);
    let plan = view.snapshot.limits.get(limit)?;
    Some((plan.status, plan.name.to_string(), plan.retry_after_jitter))
}

fn malformed(exchange: Box<Exchange>, detail: &str, body: Incoming) -> Response<ResponseBody> {
    let problem = Problem { status: 400, detail, violated: &[], retry_after_secs: None };
    let mut response = answer(exchange, Outcome::Malformed, &problem, body);
    // What follows on this connection may not be what it seems.
    response.headers_mut().insert(http::header::CONNECTION, http::HeaderValue::from_static("close"));
    response
}

fn timed_out(mut exchange: Box<Exchange>) -> Response<ResponseBody> {
    exchange.story.status = Some(504);
    exchange.write_dead_letter(Reason::Timeout, exchange.client_key(), None);
    let detail = "The upstream did not answer in time.";
    let problem = Problem { status: 504, detail, violated: &[], retry_after_secs: None };
    answer_bodiless(exchange, Outcome::Timeout, &problem)
}

fn unforwarded(mut exchange: Box<Exchange>, error: &ForwardError) -> Response<ResponseBody> {
    let (outcome, status, detail) = match error {
        ForwardError::Unreachable(_) => (Outcome::UpstreamError, 502, "No server of the upstream can be reached."),
        ForwardError::Broken(_) | ForwardError::Unasked => {
            (Outcome::UpstreamError, 502, "The upstream broke the exchange off.")
        }
        ForwardError::Client(_) => (Outcome::ClientGone, 400, "The request broke off."),
        ForwardError::Target => (Outcome::Malformed, 400, "The target cannot be sent on."),
    };
    exchange.story.status = Some(status);
    if outcome == Outcome::UpstreamError {
        if let Some(more) = exchange.worker.upstream_reports.due(exchange.ended()) {
            let (upstream, server) = exchange.story.upstream.clone().unwrap_or_else(|| ("".into(), "".into()));
            let request_id = &exchange.request_id;
            tracing::warn!(%upstream, %server, request_id, more, %error, "upstream error");
        }
        exchange.write_dead_letter(Reason::UpstreamError, exchange.client_key(), None);
    }
    let problem = Problem { status, detail, violated: &[], retry_after_secs: None };
    answer_bodiless(exchange, outcome, &problem)
}

fn fail(
    exchange: Box<Exchange>,
    outcome: Outcome,
    status: u16,
    detail: &str,
    body: Incoming,
) -> Response<ResponseBody> {
    answer(exchange, outcome, &Problem { status, detail, violated: &[], retry_after_secs: None }, body)
}

fn answer(
    mut exchange: Box<Exchange>,
    outcome: Outcome,
    problem: &Problem<'_>,
    body: Incoming,
) -> Response<ResponseBody> {
    exchange.finish(outcome);
    exchange.story.status = Some(problem.status);
    h1::reply(problem_reply(&exchange, problem), exchange, body)
}

/// An answer after the body was given to an upstream: whatever of it is unread is lost with that connection.
fn answer_bodiless(mut exchange: Box<Exchange>, outcome: Outcome, problem: &Problem<'_>) -> Response<ResponseBody> {
    exchange.finish(outcome);
    exchange.story.status = Some(problem.status);
    h1::reply_after_body(problem_reply(&exchange, problem), exchange)
}

fn problem_reply(exchange: &Exchange, problem: &Problem<'_>) -> respond::Reply {
    let plan = exchange.story.route.and_then(|route| exchange.view.snapshot.routes.get(route));
    let wants = Wants {
        accept: exchange.head.header("accept"),
        content_type: exchange.head.header("content-type"),
        origin: exchange.head.header("origin"),
    };
    respond::problem(problem, wants, plan.and_then(|plan| plan.cors.as_ref()))
}
