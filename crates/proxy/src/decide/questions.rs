//! Questions that are asked: how each is answered, and how those wait that have to ask the store of a limit.
//!
//! Bound: [`MAX_WAITING`] questions of one body that hold an exchange wait at once.

use std::borrow::Cow;
use std::mem;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;

use super::about_request::{self, RequestAsking, Told, count};
use super::check::{CheckAnswer, QuestionFault};
use super::refuse::extra_wait;
use super::waiting;
use crate::client::Client;
use crate::endings::{Cause, Counted, Ending, ExchangeError};
use crate::exchange::Exchange;
use crate::meters::{Decision, QuestionOutcome};
use crate::snapshot::MetBlock;
use crate::view::{KeyedView, LimitView, Waiting};
use sluicegate_admission::{KeyPart, KeyedAnswer, KeyedLimit};
use sluicegate_config::{Decides, LimitRule};
use sluicegate_dead_letter::{KeyName, TextRoom};
use sluicegate_limiter::{Fingerprint, QuotaLine, Refusal, RefusalReason, Ticket};
use sluicegate_time::{Span, Tick};

/// Questions of one body about requests that wait for a store at once: each holds an exchange.
const MAX_WAITING: usize = 32;

/// The answer to a question.
pub type Answer = Result<CheckAnswer, QuestionFault>;

/// A question, asked.
pub enum Asked {
    /// It is decided.
    Answered(Answer),
    /// It is not, yet.
    Waits(Unanswered),
}

/// A question that waits for the store of a limit.
pub enum Unanswered {
    /// About a key.
    Key {
        /// The limit.
        keyed: Rc<KeyedView>,
        /// The values of the key.
        values: Vec<String>,
        /// As the limit counts it.
        key: Fingerprint,
        /// Its place.
        ticket: Ticket,
    },
    /// About a request.
    Request {
        /// That of the request.
        exchange: Box<Exchange>,
        /// Its place.
        waiting: Waiting,
    },
}

/// Asks all questions of one body, each for itself, and waits until they are answered.
pub async fn ask_all<Q>(
    exchange: &mut Exchange,
    client: &mut Client,
    questions: Vec<Q>,
    ask: impl Fn(&mut Exchange, Q, Tick) -> Asked,
) -> Result<Vec<Answer>, ExchangeError> {
    let mut answers: Vec<Answer> = Vec::with_capacity(questions.len());
    let mut waiting = Vec::new();
    // The body may have come long after its head, and what waits takes its time: each question is asked as of now.
    let mut now = exchange.worker.clock.now();
    for (place, question) in questions.into_iter().enumerate() {
        answers.push(match ask(exchange, question, now) {
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
    Ok(answers)
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

/// A question that cannot be decided.
pub fn fault(status: u16, detail: impl Into<Cow<'static, str>>) -> QuestionFault {
    QuestionFault::new(status, detail.into().into_owned())
}

/// Counts an answer as that to a request is counted.
pub fn count_key(exchange: &Exchange, KeyedView { limit, rules }: &KeyedView, values: &[String], answer: &KeyedAnswer) {
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
    let name = || {
        let mut room = TextRoom::new();
        let mut clip = |KeyPart { source, value }: KeyPart| (source, room.clip(value.as_bytes(), TextRoom::KEY));
        KeyName {
            parts: rules.describe(values).into_iter().map(&mut clip).collect(),
            is_secret: limit.spec.key_is_secret,
        }
    };
    limit.keys.count(exchange.worker.index, (key, decision == Decision::Admitted), exchange.arrived, name);
    if let KeyedAnswer::Refused(print, Refusal { blocked_until: Some(until), .. }) = answer {
        // The program that asks is no client.
        let met = MetBlock { limit: limit.name(), print: *print, until: *until, is_direct: false };
        exchange.view.snapshot.blocks.enter(met, exchange.arrived, name);
    }
}

/// The answer to a question about a key.
pub fn tell_of_key(
    exchange: &Exchange,
    KeyedView { limit, .. }: &KeyedView,
    answer: &KeyedAnswer,
    now: Tick,
) -> Answer {
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

/// Counts the answer to a question.
pub fn count_told(exchange: &Exchange, told: &Answer) {
    count(
        exchange,
        match told {
            Ok(CheckAnswer { allowed: true, .. }) => QuestionOutcome::Allowed,
            Ok(_) | Err(_) => QuestionOutcome::Refused,
        },
    );
}

/// How the limits stand that a question was about.
pub struct Standing<'r> {
    /// Each of their rates.
    pub lines: &'r [QuotaLine],
    /// Whether one in shadow mode would have refused it.
    pub is_shadowed: bool,
    /// When it was asked.
    pub now: Tick,
}

impl Standing<'_> {
    /// The answer, where these limits let the question pass or this one refuses it. `limit_at` knows them by their places.
    pub fn tell<'l>(
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
                window: line.map(|line| line.window),
                retry_after_ms: Some(0),
                reset_ms: line.and_then(|line| line.reset).map(millis),
                shadow: self.is_shadowed,
                fields: Vec::new(),
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
            window: numbers.map(|refusal| refusal.window),
            retry_after_ms: refusal.and_then(|refusal| refusal.retry_at).map(|at| {
                let wait = (at + extra_wait(exchange, limit)).since(self.now);
                millis(limit.retry_after_max.map_or(wait, |most| wait.min(most))).max(1)
            }),
            reset_ms: line.and_then(|line| line.reset).map(millis),
            shadow: self.is_shadowed,
            fields: Vec::new(),
        })
    }
}

/// The answer to a question about a request, if it is decided.
pub fn tell_of(asking: RequestAsking, now: Tick) -> Asked {
    match asking {
        RequestAsking::Told(own, told) => {
            let answer = tell_of_request(&own, told, now);
            drop(own.end());
            Asked::Answered(answer)
        }
        RequestAsking::Waits(exchange, waiting) => Asked::Waits(Unanswered::Request { exchange, waiting }),
    }
}

/// The answer to a question about a request, which was decided.
fn tell_of_request(exchange: &Exchange, told: Told, now: Tick) -> Answer {
    let is_rls = exchange.connection.facts.asks.as_ref().is_some_and(|rules| rules.kind == Decides::EnvoyRls);
    let fields = if is_rls { fields_for_another(exchange) } else { Vec::new() };
    Ok(CheckAnswer { fields, ..numbers_of_request(exchange, told, now)? })
}

fn numbers_of_request(exchange: &Exchange, told: Told, now: Tick) -> Answer {
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

/// Fields of an answer of the gateway's own, which are of that answer alone.
const OF_THE_ANSWER: [&str; 3] = ["content-type", "cache-control", "x-content-type-options"];

/// The fields of the answer that lies ready.
pub fn fields_of(exchange: &Exchange) -> impl Iterator<Item = (String, String)> {
    let lines = exchange.scratch.reply.lines.split(|byte| *byte == b'\n');
    lines.filter_map(|line| {
        let (name, value) = str::from_utf8(line).ok()?.split_once(':')?;
        Some((name.to_owned(), value.trim_ascii().to_owned()))
    })
}

/// Those of them that another answer to the request may have.
pub fn fields_for_another(exchange: &Exchange) -> Vec<(String, String)> {
    fields_of(exchange).filter(|(name, _)| !OF_THE_ANSWER.contains(&&**name)).collect()
}
