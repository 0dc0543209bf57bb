//! Questions of programs (`decides = "json"`): each one of a body is decided for itself, and answered in its place.
//!
//! Bound: a body has as many bytes as a question may have, and at most [`check::MAX_QUESTIONS`] of them.

use std::sync::Arc;

use super::about_request::{self, count, give};
use super::check::{self, CheckQuestion, QuestionFault, Subject};
use super::description::Described;
use super::questions::{
    Answer, Asked, Standing, Unanswered, ask_all, count_key, count_told, fault, tell_of, tell_of_key,
};
use super::reading;
use crate::answer::{Problem, respond};
use crate::client::{Client, Origin, RequestContext};
use crate::endings::{Cause, Ending, ExchangeError};
use crate::exchange::Exchange;
use crate::headers::{Sink as _, passed};
use crate::meters::{Outcome, QuestionOutcome};
use crate::snapshot::QuestionRules;
use sluicegate_admission::{Decided, KeyedAnswer};
use sluicegate_limiter::{Peeked, QuotaLine};
use sluicegate_time::Tick;

/// The path of questions.
const PATH: &str = "/v1/check";

/// Answers a body of questions. The error ends the connection.
pub async fn answer(
    exchange: &mut Exchange,
    client: &mut Client,
    rules: &Arc<QuestionRules>,
) -> Result<(), ExchangeError> {
    let body = match read(exchange, client).await? {
        Ok(body) => body,
        Err((status, detail)) => {
            give(exchange, QuestionOutcome::Invalid, status, detail.into());
            if status == 405 {
                exchange.scratch.reply.put(b"allow", b"POST");
            }
            return Ok(());
        }
    };
    let batch = match check::read(&body) {
        Ok(batch) => batch,
        Err(fault) => {
            give(exchange, QuestionOutcome::Invalid, 400, fault.into());
            return Ok(());
        }
    };
    let ask = |exchange: &mut Exchange, question: &str, now| match check::question(question) {
        Ok(question) => ask(exchange, rules, question, now),
        Err(fault) => {
            count(exchange, QuestionOutcome::Invalid);
            Asked::Answered(Err(fault))
        }
    };
    let answers = ask_all(exchange, client, batch.questions, ask).await?;
    exchange.finish(Outcome::Responded);
    if let ([Err(QuestionFault { status, detail })], false) = (&*answers, batch.is_array) {
        exchange.record.status = Some(*status);
        let problem = Problem { status: *status, detail, violated: &[], retry_after_secs: None };
        super::end::write_problem(exchange, &problem);
        return Ok(());
    }
    exchange.record.status = Some(200);
    respond::json(&mut exchange.scratch.reply);
    check::write(&answers, batch.is_array, &mut exchange.scratch.reply.body);
    Ok(())
}

/// Reads a body of questions. The inner error: this is none, by the status that says so.
async fn read(
    exchange: &mut Exchange,
    client: &mut Client,
) -> Result<Result<Vec<u8>, (u16, &'static str)>, ExchangeError> {
    let request = exchange.request();
    if request.path() != PATH {
        return Ok(Err((404, "Questions go to /v1/check.")));
    }
    if request.method() != "POST" {
        return Ok(Err((405, "Questions go to /v1/check by POST.")));
    }
    let kind = passed::field(&request, b"content-type").unwrap_or_default();
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    if !kind.eq_ignore_ascii_case(b"application/json") {
        return Ok(Err((415, "A question is JSON: send content-type: application/json.")));
    }
    reading::read_question(exchange, client).await
}

fn ask(exchange: &mut Exchange, rules: &Arc<QuestionRules>, question: CheckQuestion, now: Tick) -> Asked {
    let CheckQuestion { about, is_peek } = question;
    let asked = match about {
        Subject::Key { limit, values, cost } => ask_about_key(exchange, (limit, values, cost), is_peek, now),
        Subject::Request(described) if is_peek => {
            peek_at_request(exchange, rules, &described, now).map(Asked::Answered)
        }
        Subject::Request(described) => match about_request::ask(exchange, rules, &described, now) {
            Ok(asking) => return tell_of(asking, now),
            Err(why) => Err(fault(400, why)),
        },
    };
    asked.unwrap_or_else(|fault| {
        let outcome = match fault.status {
            400 => QuestionOutcome::Invalid,
            403 => QuestionOutcome::Denied,
            _ => QuestionOutcome::Undecided,
        };
        count(exchange, outcome);
        Asked::Answered(Err(fault))
    })
}

fn ask_about_key(
    exchange: &mut Exchange,
    (limit, values, cost): (String, Vec<String>, u64),
    is_peek: bool,
    now: Tick,
) -> Result<Asked, QuestionFault> {
    let Exchange { view, scratch, .. } = &mut *exchange;
    let Some(keyed) = view.keyed.get(&*limit).cloned() else {
        let known = view.snapshot.model.limits.iter().find(|rule| *rule.spec.name == *limit);
        return Err(match known.and_then(|rule| rule.why_not_by_key()) {
            Some(why) => fault(404, format!("The limit {limit:?} {why}: it needs the request itself.")),
            None => fault(404, format!("There is no limit {limit:?}.")),
        });
    };
    let report = &mut scratch.report;
    let wrong = |error| fault(400, format!("Of the limit {limit:?}: {error}."));
    let answer = if is_peek {
        let peeked = keyed.rules.peek(&values, cost, now, report).map_err(wrong)?;
        peeked.ok_or_else(|| {
            fault(404, format!("The limit {limit:?} has to ask its store: there is nothing here to peek at."))
        })?
    } else {
        keyed.rules.check(&values, cost, now, report).map_err(wrong)?
    };
    match answer {
        KeyedAnswer::Waiting(key, ticket) => Ok(Asked::Waits(Unanswered::Key { keyed, values, key, ticket })),
        answer => {
            if !is_peek {
                count_key(exchange, &keyed, &values, &answer);
            }
            Ok(Asked::Answered(tell_of_key(exchange, &keyed, &answer, now)))
        }
    }
}

/// The answer that a question about a request would get.
fn peek_at_request(
    exchange: &Exchange,
    rules: &Arc<QuestionRules>,
    described: &Described,
    now: Tick,
) -> Result<Answer, QuestionFault> {
    let head = about_request::read(&described.head, exchange, 0).map_err(|why| fault(400, why))?;
    let Exchange { worker, view, .. } = exchange;
    if worker.denies(described.client) {
        return Err(fault(403, about_request::DENIED));
    }
    let scheme = if described.is_https { "https" } else { "http" };
    let origin = Origin { peer: described.client, scheme, trusts: None, certificate: None };
    let (clients, tokens) = (view.rules.clients(), worker.tokens(view, now));
    let context = RequestContext { request: head.on(&described.head), origin, clients, body: None, tokens };
    let explained = view.rules.explain(&context, described.client, now);
    if let Decided::Malformed(malformed) = explained.decision {
        let ending = Ending::of(Cause::Malformed(malformed));
        return Err(fault(ending.own_status(), ending.words.text()));
    }
    let Some(route) = &explained.route else { return Err(fault(404, about_request::NO_ROUTE)) };
    if !about_request::is_decided(route, rules) {
        return Err(fault(404, about_request::NOT_HERE));
    }
    let lines: Vec<QuotaLine> = explained.limits.iter().flat_map(|limit| &limit.rates).copied().collect();
    let is_shadowed = explained.limits.iter().any(|limit| limit.would_refuse);
    let standing = Standing { lines: &lines, is_shadowed, now };
    let limit_at = |place| route.limit(place).map(|limit| &limit.spec);
    let refused = |place, refusal| match limit_at(place) {
        Some(limit) => standing.tell(exchange, Some((&**limit, refusal)), limit_at),
        None => Err(fault(404, about_request::NO_ROUTE)),
    };
    let told = match &explained.decision {
        Decided::Limits(Peeked::Refused(refusal)) => refused(refusal.limit, Some(refusal)),
        Decided::Limits(Peeked::Waits { limit: Some(limit), .. }) | Decided::MissingKey { limit } => {
            refused(*limit, None)
        }
        Decided::Limits(Peeked::Waits { limit: None, .. }) => {
            return Err(fault(404, "A limit has to ask its store: there is nothing here to peek at."));
        }
        Decided::Limits(Peeked::Admitted) | Decided::NoRoute | Decided::Malformed(_) => {
            standing.tell(exchange, None, limit_at)
        }
    };
    count_told(exchange, &told);
    Ok(told)
}
