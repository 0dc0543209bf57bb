//! Questions of others: an answer for the form in which each listener is asked. Of `decides = "auth"` the request that a question
//! describes takes its place, its limits are asked as if it had come here, and the status of the answer is the decision.
//!
//! Bound: such a question has no body, and its answer is short. Nothing is counted of one whose peer may not ask, that describes
//! no request, or whose route is not decided here.

use std::borrow::Cow;
use std::sync::Arc;

use super::about_request::{self, give};
use super::auth;
use super::authorizing;
use super::checking;
use super::rating;
use crate::answer::respond;
use crate::client::Client;
use crate::endings::ExchangeError;
use crate::exchange::Exchange;
use crate::meters::{Outcome, QuestionOutcome};
use crate::scratch::Scratch;
use crate::snapshot::QuestionRules;
use sluicegate_config::Decides;
use sluicegate_http1::Framing;

/// Where health checks of the listener ask.
const HEALTH: &str = "/healthz";

/// Answers a question: its answer lies ready. The error ends the connection.
pub async fn answer(exchange: &mut Exchange, client: &mut Client) -> Result<(), ExchangeError> {
    let now = exchange.view.snapshot.listeners.get(exchange.connection.listening.address());
    // A listener that is gone, or that proxies now, decides as it did over connections that are open.
    let rules = now.and_then(|listener| listener.decides.as_ref()).or(exchange.connection.facts.asks.as_ref()).cloned();
    let question = exchange.request();
    let is_health = question.path() == HEALTH && question.method() == "GET" && !auth::describes(&question);
    if is_health && exchange.scratch.upload.is_complete() {
        respond::text(200, "ok\n", &mut exchange.scratch.reply);
        exchange.finish(Outcome::Responded);
        return Ok(());
    }
    let is_allowed = |rules: &Arc<QuestionRules>| {
        // Of a Unix socket its mode and its group say who may open it.
        exchange.connection.listening.is_unix() || rules.allow.contains(exchange.connection.peer.ip())
    };
    let Some(rules) = rules.filter(is_allowed) else {
        give(exchange, QuestionOutcome::NotAllowed, 403, "This peer may not ask for decisions.".into());
        return Ok(());
    };
    match rules.kind {
        Decides::Auth => authorize(exchange, client, &rules).await,
        Decides::Json => checking::answer(exchange, client, &rules).await,
        Decides::ExtAuthz => authorizing::answer(exchange, client, &rules).await,
        Decides::EnvoyRls => rating::answer(exchange, client, &rules).await,
    }
}

/// Answers a question by its status.
async fn authorize(
    exchange: &mut Exchange,
    client: &mut Client,
    rules: &Arc<QuestionRules>,
) -> Result<(), ExchangeError> {
    let asks_for_head = exchange.scratch.request.is_head();
    if let Err(fault) = take_described(exchange, rules) {
        give(exchange, QuestionOutcome::Invalid, 400, fault);
        return Ok(());
    }
    about_request::decide_in_time(exchange, client, rules).await?;
    // The answer is to the question, which may have another method than the request.
    let Scratch { request, reply, .. } = &mut *exchange.scratch;
    if asks_for_head != request.is_head() {
        reply.body.clear();
        reply.has_route_body = false;
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
    // It came in a head that was not too large.
    let head = about_request::read(&described.head, exchange, described.head.len())?;
    about_request::enter(exchange, head, &described, rules);
    Ok(())
}
