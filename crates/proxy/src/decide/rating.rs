//! Questions of Envoy's rate limit filter (`decides = "envoy-rls"`): calls of gRPC, each about several descriptors, each of which is
//! decided for itself.

use std::sync::Arc;

use super::about_request::{self, count, give};
use super::check::{CheckAnswer, QuestionFault};
use super::description::{Described, DescribedLine};
use super::envoy::{self, AnswerFields};
use super::questions::{Asked, ask_all, fault, tell_of};
use super::rate_limit::{self, PATH};
use super::reading;
use crate::answer::{Problem, Wants, respond};
use crate::client::Client;
use crate::endings::ExchangeError;
use crate::exchange::Exchange;
use crate::meters::{Outcome, QuestionOutcome};
use crate::snapshot::QuestionRules;
use sluicegate_admission::{Descriptor, PlainRequest};
use sluicegate_http1::Version;
use sluicegate_time::Tick;

/// Answers a call. The error ends the connection.
pub async fn answer(
    exchange: &mut Exchange,
    client: &mut Client,
    rules: &Arc<QuestionRules>,
) -> Result<(), ExchangeError> {
    let only = "This listener knows envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit alone.";
    let message = match reading::read_call(exchange, client, (PATH, only)).await? {
        Ok(message) => message,
        // By the size of its request a client would pass, where the proxy lets go on what has no decision.
        Err((413, _)) => {
            count(exchange, QuestionOutcome::Invalid);
            exchange.record.status = Some(413);
            exchange.finish(Outcome::Responded);
            respond::grpc_message(&rate_limit::over_limit(), &mut exchange.scratch.reply);
            return Ok(());
        }
        Err((status, detail)) => {
            give(exchange, QuestionOutcome::Invalid, status, detail.into());
            return Ok(());
        }
    };
    let call = match envoy::unframe(&message).and_then(rate_limit::read) {
        Ok(call) => call,
        Err(why) => {
            give(exchange, QuestionOutcome::Invalid, 400, why.into());
            return Ok(());
        }
    };
    exchange.worker.connections.overrides_ignored(call.overrides() as u64);
    let ask = |exchange: &mut Exchange, question, now| ask(exchange, rules, question, now);
    let answers = ask_all(exchange, client, call.questions(), ask).await?;
    exchange.finish(Outcome::Responded);
    let mut undecided = None;
    let tell = |answer| match answer {
        Ok(answer) => Some(answer),
        // Nothing limits it here.
        Err(QuestionFault { status: 404, .. }) => None,
        Err(QuestionFault { status: 503, detail }) => {
            undecided = Some(detail);
            None
        }
        // By what its client has sent: where it has no decision it would pass.
        Err(_) => Some(CheckAnswer::default()),
    };
    let mut told: Vec<Option<CheckAnswer>> = answers.into_iter().map(tell).collect();
    // The caller has a rule of its own for what has no decision; what another descriptor refuses is refused all the same.
    if let Some(detail) = undecided.filter(|_| told.iter().flatten().all(|answer| answer.allowed)) {
        let problem = Problem { status: 503, detail: &detail, violated: &[], retry_after_secs: None };
        exchange.record.status = Some(503);
        respond::problem(&problem, Wants { is_grpc: true, ..Wants::default() }, &mut exchange.scratch.reply);
        return Ok(());
    }
    exchange.record.status = Some(200);
    let fields = fields_of(&mut told);
    respond::grpc_message(&rate_limit::answered(&told, fields), &mut exchange.scratch.reply);
    Ok(())
}

/// The fields for the response of the request: those of the first descriptor that is over its limit, else of the one with the
/// least left.
fn fields_of(told: &mut [Option<CheckAnswer>]) -> AnswerFields {
    let rank = |answer: &&mut CheckAnswer| {
        (answer.allowed, if answer.allowed { answer.remaining.unwrap_or(u64::MAX) } else { 0 })
    };
    let first = told.iter_mut().flatten().min_by_key(rank);
    first.map(|answer| std::mem::take(&mut answer.fields)).unwrap_or_default()
}

/// Asks about a descriptor with so many hits.
fn ask(
    exchange: &mut Exchange,
    rules: &Arc<QuestionRules>,
    question: Option<(Descriptor<'_>, u64)>,
    now: Tick,
) -> Asked {
    let view = exchange.view.clone();
    let found = question.and_then(|(descriptor, hits)| {
        let route = view.rules.route_of_descriptor(&descriptor, now)?;
        about_request::is_decided(route, rules).then_some((descriptor, hits, route))
    });
    let Some((descriptor, hits, route)) = found else {
        count(exchange, QuestionOutcome::Undecided);
        return Asked::Answered(Err(fault(404, about_request::NO_ROUTE)));
    };
    let (target, client) = (descriptor.target(), descriptor.client());
    if route.spec.apply_on_stream_done && hits > 0 {
        let request = PlainRequest::new(Descriptor::METHOD, &target);
        let counted = view.rules.count_hits(route, hits, (&request, client), now);
        counted.iter().filter_map(|place| route.limit(place)).for_each(|limit| limit.meters.used(hits));
        count(exchange, QuestionOutcome::Allowed);
        return Asked::Answered(Ok(CheckAnswer { allowed: true, ..CheckAnswer::default() }));
    }
    let line = DescribedLine {
        method: Descriptor::METHOD.as_bytes(),
        target: target.as_bytes(),
        host: b"",
        version: Version::Http11,
        is_persistent: true,
    };
    let described = line.head(std::iter::empty()).map(|head| Described { head, client, is_https: false });
    let asked =
        described.and_then(|described| about_request::ask_hits(exchange, rules, &described, (route, hits), now));
    match asked {
        Ok(asking) => tell_of(asking, now),
        Err(why) => {
            count(exchange, QuestionOutcome::Invalid);
            Asked::Answered(Err(fault(400, why)))
        }
    }
}
