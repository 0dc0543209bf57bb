//! Questions of other proxies: the request that one describes takes the place of the question, its route is found and its
//! limits are asked as if it had come here, and the status of the answer is the decision.
//!
//! Bound: a question has no body, and its answer is short. Nothing is counted of one whose peer may not ask, that describes no
//! request, or whose route is not decided here.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

use super::auth;
use super::end::{end_by, write_problem};
use super::policy;
use super::refuse;
use super::refused::RefusedRequest;
use super::waiting::{self, Waited};
use crate::answer::{Problem, respond};
use crate::client::{Client, RequestContext};
use crate::endings::{Cause, ExchangeError};
use crate::exchange::{Exchange, explanation};
use crate::flights::FlightPhase;
use crate::headers::Sink as _;
use crate::meters::{Outcome, QuestionOutcome};
use crate::scratch::Scratch;
use crate::snapshot::QuestionRules;
use crate::view::{Admission, Admitted, LimitView, RouteView, Waiting};
use sluicegate_admission::Refused;
use sluicegate_http1::{Framing, HeadLimits, RequestHead};
use sluicegate_limiter::Fingerprint;

/// The name of the limit that refuses, for the proxy that asks.
const LIMIT: &[u8] = b"x-sluicegate-limit";
/// Where health checks of the listener ask.
const HEALTH: &str = "/healthz";

/// Answers a question: its answer lies ready. The error ends the connection.
pub async fn answer(exchange: &mut Exchange, client: &mut Client) -> Result<(), ExchangeError> {
    let address = exchange.connection.listening.address();
    let now = exchange.view.snapshot.listeners.get(&address);
    // A listener that is gone, or that proxies now, decides as it did over connections that are open.
    let rules = now.and_then(|listener| listener.decides.as_ref()).or(exchange.connection.facts.asks.as_ref()).cloned();
    let question = exchange.request();
    let is_health = question.path() == HEALTH && question.method() == "GET" && !auth::describes(&question);
    if is_health && exchange.scratch.upload.is_complete() {
        respond::text(200, "ok\n", &mut exchange.scratch.reply);
        exchange.finish(Outcome::Responded);
        return Ok(());
    }
    let is_allowed = |rules: &Arc<QuestionRules>| rules.allow.contains(exchange.connection.peer.ip());
    let Some(rules) = rules.filter(is_allowed) else {
        give(exchange, QuestionOutcome::NotAllowed, 403, "This peer may not ask for decisions.");
        return Ok(());
    };
    let asks_for_head = exchange.scratch.request.is_head();
    if let Err(fault) = take_described(exchange, &rules) {
        give(exchange, QuestionOutcome::Invalid, 400, &fault);
        return Ok(());
    }
    if let Err(waiting) = decide_described(exchange, &rules) {
        wait_for_store(exchange, client, waiting).await?;
    }
    // The answer is to the question, which may have another method than the request.
    let Scratch { request, reply, .. } = &mut *exchange.scratch;
    if asks_for_head != request.is_head() {
        reply.body.clear();
        reply.has_route_body = false;
    }
    Ok(())
}

/// Waits for the store of a limit that is shared, which takes no longer than its fleet's deadline.
async fn wait_for_store(exchange: &mut Exchange, client: &mut Client, waiting: Waiting) -> Result<(), ExchangeError> {
    exchange.set_phase(FlightPhase::Waiting);
    let waited = waiting::wait(exchange, client, waiting).await;
    exchange.leaves_flight();
    match waited {
        Waited::Admitted(admitted) => allow(exchange, admitted),
        Waited::InVain(route, key, refusal) => refuse_described(exchange, route, key, Refused::Limit(refusal)),
        Waited::ClientGone => return Err(ExchangeError::ClientGone),
        Waited::Cancelled => return Err(ExchangeError::Cancelled),
    }
    Ok(())
}

/// Puts the described request in the place of the question.
fn take_described(exchange: &mut Exchange, rules: &Arc<QuestionRules>) -> Result<(), Cow<'static, str>> {
    let Scratch { request, .. } = &*exchange.scratch;
    if !matches!(request.framing(), Framing::None | Framing::Length(0)) {
        return Err("A question has no body: have the proxy send none, and no Content-Length.".into());
    }
    let question = (request.version(), request.is_persistent());
    let described = auth::describe(&exchange.request(), rules.described_by, question)?;
    let limits = exchange.view.snapshot.head_limits();
    let limits = HeadLimits { max_bytes: limits.max_bytes.max(described.head.len()), ..limits };
    let mut head = RequestHead::default();
    if let Err(fault) = head.parse(&described.head, &limits) {
        return Err(format!("The described request is none: {fault}.").into());
    }
    exchange.scratch.inbound.replace_head(&described.head);
    exchange.scratch.request = head;
    exchange.connection = exchange.connection.described(described.client, described.is_https, rules);
    Ok(())
}

/// Decides about the described request. The error: a limit that is shared has to ask its store first.
fn decide_described(exchange: &mut Exchange, rules: &QuestionRules) -> Result<(), Waiting> {
    if exchange.worker.denies(exchange.connection.peer.ip()) {
        give(exchange, QuestionOutcome::Denied, 403, "This client is denied.");
        return Ok(());
    }
    if let Some(hash) = exchange.view.snapshot.model.admin.as_ref().and_then(|admin| admin.explain_sha256) {
        exchange.scratch.state.explains = explanation::is_asked(&exchange.request(), &hash);
    }
    let is_decided = |route: &RouteView| {
        route.is_decidable() && rules.routes.as_ref().is_none_or(|names| names.contains(&route.spec.name))
    };
    let Exchange { worker, view, connection, scratch, arrived, .. } = &mut *exchange;
    let (origin, clients, tokens) = (connection.origin(), view.rules.clients(), worker.tokens(view, *arrived));
    let Scratch { inbound, request, report, .. } = &mut **scratch;
    let context = RequestContext { request: request.on(inbound.head()), origin, clients, body: None, tokens };
    let found = view.rules.route_of(&context, *arrived);
    if found.is_some_and(|route| !is_decided(route)) {
        give(exchange, QuestionOutcome::Undecided, 404, "The route of this request is not decided here.");
        return Ok(());
    }
    match view.rules.admit(&context, origin.peer, *arrived, report) {
        Admission::Malformed(fault) => {
            exchange.worker.connections.asked(QuestionOutcome::Invalid);
            // A fault of the client is none of the connection between its proxy and the gateway.
            end_by(exchange, Cause::Malformed(fault), false);
        }
        Admission::NoRoute(arrival) => {
            policy::note(exchange, None, &arrival);
            give(exchange, QuestionOutcome::Undecided, 404, "No route takes this request.");
        }
        Admission::Refused(route, arrival, refused) => {
            policy::note(exchange, Some(&route), &arrival);
            refuse_described(exchange, route, arrival.key, refused);
        }
        Admission::Waiting(waiting) => {
            policy::note(exchange, Some(waiting.route()), waiting.arrival());
            let Some(limit) = waiting.limit().and_then(|place| waiting.route().limit(place)).cloned() else {
                return Err(waiting);
            };
            // An exception of a key has it wait, which its route's limits do not.
            drop(waiting);
            refuse_to_wait(exchange, rules, limit);
        }
        Admission::Admitted(admitted) => {
            policy::note(exchange, Some(admitted.route()), admitted.arrival());
            allow(exchange, admitted);
        }
    }
    Ok(())
}

fn allow(exchange: &mut Exchange, mut admitted: Admitted) {
    exchange.permit = admitted.take_permit();
    policy::count_admitted(exchange, admitted.route());
    if exchange.scratch.report.has_shadow_refusals() {
        exchange.write_shadow_letters();
    }
    exchange.worker.connections.asked(QuestionOutcome::Allowed);
    respond::text(200, "", &mut exchange.scratch.reply);
    policy::responded(exchange);
}

/// A question cannot wait for room: who asks would go on without an answer.
fn refuse_to_wait(exchange: &mut Exchange, rules: &QuestionRules, limit: Rc<LimitView>) {
    let status = rules.deny_status.unwrap_or(limit.spec.status);
    give(exchange, QuestionOutcome::Refused, status, "The limit has this key wait, which a question cannot.");
    let reply = &mut exchange.scratch.reply;
    reply.put(LIMIT, limit.name().as_bytes());
    reply.put_number(b"retry-after", 1);
    exchange.record.limit = Some(limit);
}

fn refuse_described(exchange: &mut Exchange, route: Rc<RouteView>, key: Option<Fingerprint>, refused: Refused) {
    exchange.worker.connections.asked(QuestionOutcome::Refused);
    let place = match &refused {
        Refused::Limit(refusal) => refusal.limit,
        Refused::MissingKey { limit } => *limit,
    };
    let Some(limit) = route.limit(place).cloned() else {
        end_by(exchange, Cause::KeyMissing, false);
        return;
    };
    match refused {
        Refused::MissingKey { .. } => refuse::refuse_keyless(exchange, &route, &limit, key),
        Refused::Limit(refusal) => {
            refuse::refuse(exchange, &RefusedRequest { route, limit: Rc::clone(&limit), key, refusal })
        }
    };
    exchange.scratch.reply.put(LIMIT, limit.name().as_bytes());
}

/// Answers a question that no limit was asked about.
fn give(exchange: &mut Exchange, outcome: QuestionOutcome, status: u16, detail: &str) {
    exchange.worker.connections.asked(outcome);
    exchange.record.status = Some(status);
    exchange.finish(Outcome::Responded);
    write_problem(exchange, &Problem { status, detail, violated: &[], retry_after_secs: None });
}
