//! Questions of programs (`decides = "json"`): each one of a body is decided for itself, and answered in its place.
//!
//! Bound: a body has as many bytes as a question may have, and at most [`check::MAX_QUESTIONS`] of them, of which at most
//! [`MAX_WAITING`] about requests wait at once for the store of a limit that is shared.

use std::borrow::Cow;
use std::mem;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;

use super::about_request::{self, RequestAsking, Told, count, give};
use super::check::{self, CheckAnswer, CheckQuestion, QuestionFault, Subject};
use super::description::Described;
use super::reading;
use super::refuse::extra_wait;
use super::waiting;
use crate::answer::{Problem, respond};
use crate::client::{Client, Origin, RequestContext};
use crate::endings::{Cause, Counted, Ending, ExchangeError};
use crate::exchange::Exchange;
use crate::headers::{Sink as _, passed};
use crate::meters::{Decision, Outcome, QuestionOutcome};
use crate::snapshot::QuestionRules;
use crate::view::{KeyedView, LimitView, Waiting};
use sluicegate_admission::{Decided, KeyPart, KeyedAnswer, KeyedLimit};
use sluicegate_config::LimitRule;
use sluicegate_dead_letter::{KeyName, TextRoom};
use sluicegate_limiter::{Fingerprint, Peeked, QuotaLine, Refusal, RefusalReason, Ticket};
use sluicegate_time::{Span, Tick};

/// The path of questions.
const PATH: &str = "/v1/check";
/// Questions of one body about requests that wait for a store at once: each holds an exchange.
const MAX_WAITING: usize = 32;

type Answer = Result<CheckAnswer, QuestionFault>;

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
    let mut answers: Vec<Answer> = Vec::with_capacity(batch.questions.len());
    let mut waiting = Vec::new();
    // The body may have come long after its head, and what waits takes its time: each question is asked as of now.
    let mut now = exchange.worker.clock.now();
    for (place, question) in batch.questions.into_iter().enumerate() {
        let asked = match check::question(question) {
            Ok(question) => ask(exchange, rules, question, now),
            Err(fault) => {
                count(exchange, QuestionOutcome::Invalid);
                Asked::Answered(Err(fault))
            }
        };
        answers.push(match asked {
            Asked::Answered(answer) => answer,
            Asked::Waits(question) => {
                waiting.push(WaitingQuestion { place, question });
                // In its place until it is answered.
                Err(fault(503, ""))
            }
        });
        if waiting.iter().filter(|question: &&WaitingQuestion| question.holds_exchange()).count() == MAX_WAITING {
            settle(exchange, client, mem::take(&mut waiting), &mut answers).await?;
            now = exchange.worker.clock.now();
        }
    }
    settle(exchange, client, waiting, &mut answers).await?;
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

/// A question, asked.
enum Asked {
    Answered(Answer),
    Waits(Unanswered),
}

/// A question that waits for the store of a limit.
enum Unanswered {
    Key { keyed: Rc<KeyedView>, values: Vec<String>, key: Fingerprint, ticket: Ticket },
    Request { exchange: Box<Exchange>, waiting: Waiting },
}

struct WaitingQuestion {
    place: usize,
    question: Unanswered,
}

impl WaitingQuestion {
    fn holds_exchange(&self) -> bool {
        matches!(self.question, Unanswered::Request { .. })
    }
}

fn ask(exchange: &mut Exchange, rules: &Arc<QuestionRules>, question: CheckQuestion, now: Tick) -> Asked {
    let CheckQuestion { about, is_peek } = question;
    let asked = match about {
        Subject::Key { limit, values, cost } => ask_about_key(exchange, (limit, values, cost), is_peek, now),
        Subject::Request(described) if is_peek => {
            peek_at_request(exchange, rules, &described, now).map(Asked::Answered)
        }
        Subject::Request(described) => return ask_about_request(exchange, rules, &described, now),
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

fn fault(status: u16, detail: impl Into<Cow<'static, str>>) -> QuestionFault {
    QuestionFault::new(status, detail.into().into_owned())
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

/// Counts an answer as that to a request is counted.
fn count_key(exchange: &Exchange, KeyedView { limit, rules }: &KeyedView, values: &[String], answer: &KeyedAnswer) {
    let report = &exchange.scratch.report;
    let (key, decision) = match answer {
        KeyedAnswer::Admitted(_) if report.lines().is_empty() => return,
        KeyedAnswer::Admitted(key) if report.has_shadow_refusals() => (*key, Decision::ShadowRefused),
        KeyedAnswer::Admitted(key) => (*key, Decision::Admitted),
        KeyedAnswer::Refused(key, refusal) => match Ending::of(Cause::Refused(refusal.why)).counted {
            Counted::Decision(decision) => (*key, decision),
            _ => return,
        },
        KeyedAnswer::NotAsked | KeyedAnswer::Waiting(..) => return,
    };
    limit.meters.decided(decision);
    limit.keys.count(exchange.worker.index, (key, decision == Decision::Admitted), exchange.arrived, || {
        let mut room = TextRoom::new();
        let mut clip = |KeyPart { source, value }: KeyPart| (source, room.clip(value.as_bytes(), TextRoom::KEY));
        KeyName {
            parts: rules.describe(values).into_iter().map(&mut clip).collect(),
            is_secret: limit.spec.key_is_secret,
        }
    });
}

/// The answer to a question about a key.
fn tell_of_key(exchange: &Exchange, KeyedView { limit, .. }: &KeyedView, answer: &KeyedAnswer, now: Tick) -> Answer {
    let report = &exchange.scratch.report;
    let refusal = match answer {
        KeyedAnswer::Refused(_, refusal) => Some(refusal),
        KeyedAnswer::NotAsked | KeyedAnswer::Admitted(_) | KeyedAnswer::Waiting(..) => None,
    };
    let standing = Standing { lines: report.lines(), is_shadowed: report.has_shadow_refusals(), now };
    let told = standing.tell(exchange, refusal.map(|refusal| (&*limit.spec, Some(refusal))), |_| Some(&limit.spec));
    let is_asked = !matches!(answer, KeyedAnswer::NotAsked);
    let told = told.map(|told| CheckAnswer { limit: is_asked.then(|| Arc::clone(limit.name())), ..told });
    count_told(exchange, &told);
    told
}

fn count_told(exchange: &Exchange, told: &Answer) {
    count(
        exchange,
        match told {
            Ok(CheckAnswer { allowed: true, .. }) => QuestionOutcome::Allowed,
            Ok(_) | Err(_) => QuestionOutcome::Refused,
        },
    );
}

/// How the limits stand that a question was about.
struct Standing<'r> {
    lines: &'r [QuotaLine],
    is_shadowed: bool,
    now: Tick,
}

impl Standing<'_> {
    /// The answer, where these limits let the question pass or this one refuses it. `limit_at` knows them by their places.
    fn tell<'l>(
        &self,
        exchange: &Exchange,
        refused: Option<(&LimitRule, Option<&Refusal>)>,
        limit_at: impl Fn(usize) -> Option<&'l Arc<LimitRule>>,
    ) -> Answer {
        let millis = |span: Span| span.as_nanos().div_ceil(1_000_000);
        let Some((limit, refusal)) = refused else {
            // Limits in shadow mode refuse nothing: their numbers are told where there are no others.
            let least = |line: &&QuotaLine| (line.shadow, line.remaining, std::cmp::Reverse(line.reset));
            let line = self.lines.iter().min_by_key(least);
            return Ok(CheckAnswer {
                allowed: true,
                limit: line.and_then(|line| limit_at(line.limit)).map(|limit| Arc::clone(&limit.spec.name)),
                remaining: line.map(|line| line.remaining),
                limit_value: line.map(|line| line.quota),
                retry_after_ms: Some(0),
                reset_ms: line.and_then(|line| line.reset).map(millis),
                shadow: self.is_shadowed,
            });
        };
        if refusal.is_some_and(|refusal| refusal.why == RefusalReason::StoreDown) {
            return Err(fault(
                503,
                format!("The limit {:?} cannot be asked: its store does not answer.", limit.spec.name),
            ));
        }
        let of_rate = |refusal: &&Refusal| refusal.quota > 0;
        let is_line = |line: &&QuotaLine, refusal: &Refusal| {
            (line.limit, line.quota, line.window) == (refusal.limit, refusal.quota, refusal.window)
        };
        let numbers = refusal.filter(of_rate);
        let line = numbers.and_then(|refusal| self.lines.iter().find(|line| is_line(line, refusal)));
        Ok(CheckAnswer {
            allowed: false,
            limit: Some(Arc::clone(&limit.spec.name)),
            remaining: numbers.map(|refusal| refusal.remaining),
            limit_value: numbers.map(|refusal| refusal.quota),
            retry_after_ms: refusal.and_then(|refusal| refusal.retry_at).map(|at| {
                let wait = (at + extra_wait(exchange, limit)).since(self.now);
                millis(limit.retry_after_max.map_or(wait, |most| wait.min(most))).max(1)
            }),
            reset_ms: line.and_then(|line| line.reset).map(millis),
            shadow: self.is_shadowed,
        })
    }
}

fn ask_about_request(exchange: &Exchange, rules: &Arc<QuestionRules>, described: &Described, now: Tick) -> Asked {
    match about_request::ask(exchange, rules, described, now) {
        Ok(RequestAsking::Told(own, told)) => {
            let answer = tell_of_request(&own, told, now);
            drop(own.end());
            Asked::Answered(answer)
        }
        Ok(RequestAsking::Waits(exchange, waiting)) => Asked::Waits(Unanswered::Request { exchange, waiting }),
        Err(why) => {
            count(exchange, QuestionOutcome::Invalid);
            Asked::Answered(Err(fault(400, why)))
        }
    }
}

/// The answer to a question about a request, which was decided.
fn tell_of_request(exchange: &Exchange, told: Told, now: Tick) -> Answer {
    let report = &exchange.scratch.report;
    let standing = Standing { lines: report.lines(), is_shadowed: report.has_shadow_refusals(), now };
    let route = exchange.record.route.as_ref();
    let limit_at = |place| route?.limit(place).map(|limit| &limit.spec);
    match told {
        Told::Undecided(status, why) => Err(fault(status, why)),
        Told::Allowed => standing.tell(exchange, None, limit_at),
        Told::Refused(refusal) => match exchange.record.limit.as_deref() {
            Some(LimitView { spec, .. }) => standing.tell(exchange, Some((spec, refusal.as_ref())), limit_at),
            None => Err(fault(503, "The limit that refuses the request is gone.")),
        },
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

/// Waits until all of these are answered: no longer than their fleets' deadlines.
async fn settle(
    exchange: &mut Exchange,
    client: &mut Client,
    mut waiting: Vec<WaitingQuestion>,
    answers: &mut [Answer],
) -> Result<(), ExchangeError> {
    if waiting.is_empty() {
        return Ok(());
    }
    waiting::wait_for(exchange, client, |exchange, now, cx| {
        let mut next = Tick::MAX;
        waiting.retain_mut(|WaitingQuestion { place, question }| match question.attempt(exchange, now, cx) {
            Ok(answer) => {
                if let Some(own) = answers.get_mut(*place) {
                    *own = answer;
                }
                false
            }
            Err(wake_at) => {
                next = next.min(wake_at);
                true
            }
        });
        if waiting.is_empty() { Ok(()) } else { Err(next) }
    })
    .await
}

impl Unanswered {
    /// Its answer, or when to ask again.
    fn attempt(&mut self, exchange: &mut Exchange, now: Tick, cx: &Context<'_>) -> Result<Answer, Tick> {
        match self {
            Self::Key { keyed, values, key, ticket } => {
                let answer = KeyedLimit::attempt(*key, ticket, now, cx.waker(), &mut exchange.scratch.report)?;
                count_key(exchange, keyed, values, &answer);
                Ok(tell_of_key(exchange, keyed, &answer, now))
            }
            Self::Request { exchange: own, waiting } => {
                let told = about_request::attempt(own, waiting, now, cx)?;
                Ok(tell_of_request(own, told, now))
            }
        }
    }
}
