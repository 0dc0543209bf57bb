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
use super::next::Next;
use super::policy;
use super::refuse;
use super::refused::RefusedRequest;
use crate::answer::{Problem, respond};
use crate::client::RequestContext;
use crate::endings::{Cause, EndingFate, TOO_MANY_REQUESTS};
use crate::exchange::{Exchange, explanation};
use crate::headers::Sink as _;
use crate::meters::{Outcome, QuestionOutcome};
use crate::scratch::Scratch;
use crate::snapshot::QuestionRules;
use crate::view::{Admission, RouteView};
use sluicegate_admission::{Arrival, Refused};
use sluicegate_http1::{Framing, HeadLimits, RequestHead};

/// The name of the limit that refuses, for the proxy that asks.
const LIMIT: &[u8] = b"x-sluicegate-limit";
/// Where health checks of the listener ask.
const HEALTH: &str = "/healthz";

/// Answers a question.
#[cold]
pub fn decide(exchange: &mut Exchange) -> Next {
    let address = exchange.connection.listening.address();
    let now = exchange.view.snapshot.listeners.get(&address);
    // A listener that is gone, or that proxies now, decides as it did over connections that are open.
    let rules = now.and_then(|listener| listener.decides.as_ref()).or(exchange.connection.facts.asks.as_ref()).cloned();
    let question = exchange.request();
    let is_health = question.path() == HEALTH && question.method() == "GET" && !auth::describes(&question);
    if is_health && exchange.scratch.upload.is_complete() {
        respond::text(200, "ok\n", &mut exchange.scratch.reply);
        exchange.finish(Outcome::Responded);
        return Next::Over(EndingFate::Keep);
    }
    let is_allowed = |rules: &Arc<QuestionRules>| rules.allow.contains(exchange.connection.peer.ip());
    let Some(rules) = rules.filter(is_allowed) else {
        return give(exchange, QuestionOutcome::NotAllowed, 403, "This peer may not ask for decisions.");
    };
    let asks_for_head = exchange.scratch.request.is_head();
    if let Err(fault) = take_described(exchange, &rules) {
        return give(exchange, QuestionOutcome::Invalid, 400, &fault);
    }
    let next = decide_described(exchange, &rules);
    // The answer is to the question, which may have another method than the request.
    let Scratch { request, reply, .. } = &mut *exchange.scratch;
    if asks_for_head != request.is_head() {
        reply.body.clear();
        reply.has_route_body = false;
    }
    next
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

fn decide_described(exchange: &mut Exchange, rules: &QuestionRules) -> Next {
    if exchange.worker.denies(exchange.connection.peer.ip()) {
        return give(exchange, QuestionOutcome::Denied, 403, "This client is denied.");
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
        return give(exchange, QuestionOutcome::Undecided, 404, "The route of this request is not decided here.");
    }
    match view.rules.admit(&context, origin.peer, *arrived, report) {
        Admission::Malformed(fault) => {
            exchange.worker.connections.asked(QuestionOutcome::Invalid);
            end_by(exchange, Cause::Malformed(fault), false);
            // A fault of the client is none of the connection between its proxy and the gateway.
            Next::Over(EndingFate::Keep)
        }
        Admission::NoRoute(arrival) => {
            policy::note(exchange, None, &arrival);
            give(exchange, QuestionOutcome::Undecided, 404, "No route takes this request.")
        }
        Admission::Refused(route, arrival, refused) => {
            policy::note(exchange, Some(&route), &arrival);
            refuse_described(exchange, route, &arrival, refused)
        }
        // An exception of a key has it wait, which its route's limits do not.
        Admission::Waiting(waiting) => {
            policy::note(exchange, Some(waiting.route()), waiting.arrival());
            exchange.record.limit = waiting.limit().and_then(|place| waiting.route().limit(place)).cloned();
            drop(waiting);
            let limit = exchange.record.limit.clone();
            let status = limit.as_ref().map_or(TOO_MANY_REQUESTS, |limit| limit.spec.status);
            let (status, detail) =
                (rules.deny_status.unwrap_or(status), "The limit has this key wait, which a question cannot.");
            let next = give(exchange, QuestionOutcome::Refused, status, detail);
            if let Some(limit) = limit {
                exchange.scratch.reply.put(LIMIT, limit.name().as_bytes());
            }
            exchange.scratch.reply.put_number(b"retry-after", 1);
            next
        }
        Admission::Admitted(mut admitted) => {
            policy::note(exchange, Some(admitted.route()), admitted.arrival());
            exchange.permit = admitted.take_permit();
            policy::count_admitted(exchange, admitted.route());
            if exchange.scratch.report.has_shadow_refusals() {
                exchange.write_shadow_letters();
            }
            exchange.worker.connections.asked(QuestionOutcome::Allowed);
            respond::text(200, "", &mut exchange.scratch.reply);
            policy::responded(exchange)
        }
    }
}

fn refuse_described(exchange: &mut Exchange, route: Rc<RouteView>, arrival: &Arrival, refused: Refused) -> Next {
    exchange.worker.connections.asked(QuestionOutcome::Refused);
    let place = match &refused {
        Refused::Limit(refusal) => refusal.limit,
        Refused::MissingKey { limit } => *limit,
    };
    let Some(limit) = route.limit(place).cloned() else {
        return Next::Over(end_by(exchange, Cause::KeyMissing, false));
    };
    let next = match refused {
        Refused::MissingKey { .. } => refuse::refuse_keyless(exchange, &route, &limit, arrival.key),
        Refused::Limit(refusal) => {
            let refused = RefusedRequest { route, limit: Rc::clone(&limit), key: arrival.key, refusal };
            refuse::refuse(exchange, &refused)
        }
    };
    exchange.scratch.reply.put(LIMIT, limit.name().as_bytes());
    next
}

/// Answers a question that no limit was asked about.
fn give(exchange: &mut Exchange, outcome: QuestionOutcome, status: u16, detail: &str) -> Next {
    exchange.worker.connections.asked(outcome);
    exchange.record.status = Some(status);
    exchange.finish(Outcome::Responded);
    write_problem(exchange, &Problem { status, detail, violated: &[], retry_after_secs: None });
    Next::Over(EndingFate::Keep)
}
