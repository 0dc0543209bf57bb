//! Questions of Envoy (`decides = "ext-authz"`): calls of gRPC, each about one request.

use std::sync::Arc;

use super::about_request::{self, Told, count, give};
use super::envoy::{self, AnswerFields, CallFault, PATH};
use super::questions;
use super::reading;
use crate::answer::{Problem, Wants, respond};
use crate::client::Client;
use crate::endings::ExchangeError;
use crate::exchange::Exchange;
use crate::meters::{Outcome, QuestionOutcome};
use crate::snapshot::QuestionRules;
use sluicegate_limiter::RefusalReason;

/// Answers a call. The error ends the connection.
pub async fn answer(
    exchange: &mut Exchange,
    client: &mut Client,
    rules: &Arc<QuestionRules>,
) -> Result<(), ExchangeError> {
    let only = "This listener knows envoy.service.auth.v3.Authorization/Check alone.";
    let message = match reading::read_call(exchange, client, (PATH, only)).await? {
        Ok(message) => message,
        // By the size of its request a client would pass, where the proxy lets go on what has no decision.
        Err((413, detail)) => {
            deny(exchange, 413, detail);
            return Ok(());
        }
        Err((status, detail)) => {
            give(exchange, QuestionOutcome::Invalid, status, detail.into());
            return Ok(());
        }
    };
    let described = envoy::unframe(&message).map_err(|why| CallFault::Unusable(why.into())).and_then(envoy::describe);
    let described = match described {
        Ok(described) => described,
        Err(CallFault::Unusable(why)) => {
            give(exchange, QuestionOutcome::Invalid, 400, why);
            return Ok(());
        }
        Err(CallFault::Denied(why)) => {
            deny(exchange, 400, &why);
            return Ok(());
        }
    };
    match about_request::read(&described.head, exchange, 0) {
        Ok(head) => about_request::enter(exchange, head, &described, rules),
        Err(why) => {
            deny(exchange, 400, &why);
            return Ok(());
        }
    }
    // Its message may have come long after its head.
    exchange.arrived = exchange.worker.clock.now();
    let told = about_request::decide_in_time(exchange, client, rules).await?;
    match told {
        // Nothing limits it here: it goes on as if there were no question.
        Told::Undecided(404, _) => reply(exchange, &envoy::allowed(AnswerFields::new())),
        Told::Refused(Some(refusal)) if refusal.why == RefusalReason::StoreDown => {
            let detail = "The store of the limit does not answer.";
            let problem = Problem { status: 503, detail, violated: &[], retry_after_secs: None };
            respond::problem(&problem, Wants { is_grpc: true, ..Wants::default() }, &mut exchange.scratch.reply);
        }
        Told::Allowed => {
            let fields = questions::fields_for_another(exchange);
            reply(exchange, &envoy::allowed(fields));
        }
        Told::Undecided(..) | Told::Refused(_) => {
            let own = &exchange.scratch.reply;
            let body = String::from_utf8_lossy(&own.body).into_owned();
            let message = envoy::denied(own.status, questions::fields_of(exchange).collect(), body);
            reply(exchange, &message);
        }
    }
    Ok(())
}

/// Has Envoy refuse a request about which no limit can be asked.
fn deny(exchange: &mut Exchange, status: u16, why: &str) {
    count(exchange, QuestionOutcome::Invalid);
    exchange.record.status = Some(status);
    exchange.finish(Outcome::Responded);
    reply(exchange, &envoy::denied(status, AnswerFields::new(), format!("{why}\n")));
}

/// Answers the call, in the place of the answer that lies ready.
fn reply(exchange: &mut Exchange, message: &[u8]) {
    respond::grpc_message(message, &mut exchange.scratch.reply);
}
