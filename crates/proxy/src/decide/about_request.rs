//! The decision about a request that a question describes: its route is found, and its limits are asked, as if it had come here.
//! The answer that a proxy gets lies ready then, and [`Told`] says the same for other forms of an answer.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;

use super::description::Described;
use super::end::{end_by, write_problem};
use super::policy;
use super::refuse;
use super::refused::RefusedRequest;
use super::waiting::{self, Waited};
use crate::answer::{Problem, respond};
use crate::client::{Client, RequestContext};
use crate::endings::{Cause, Ending, ExchangeError};
use crate::exchange::{Exchange, explanation};
use crate::flights::FlightPhase;
use crate::headers::Sink as _;
use crate::meters::{Outcome, QuestionOutcome};
use crate::scratch::Scratch;
use crate::snapshot::QuestionRules;
use crate::view::{Admission, Admitted, LimitView, RouteView, Waiting};
use sluicegate_admission::{Progress, Refused, RequestView};
use sluicegate_config::Decides;
use sluicegate_http1::{HeadLimits, RequestHead};
use sluicegate_limiter::{Fingerprint, Refusal};
use sluicegate_time::Tick;

/// The name of the limit that refuses, for the proxy that asks.
const LIMIT: &[u8] = b"x-sluicegate-limit";

/// The decision about a request. Its limit is in the record of the exchange.
#[derive(Debug)]
pub enum Told {
    /// It may go on.
    Allowed,
    /// A limit refuses it; `None`: for want of its key, or of room for which it would have to wait.
    Refused(Option<Refusal>),
    /// No limit was asked: the status that says so, and why.
    Undecided(u16, Cow<'static, str>),
}

/// Reads the head of a described request, of as many bytes as a head may have or `at_least` says.
///
/// # Errors
/// It is none: in words.
pub fn read(described: &[u8], exchange: &Exchange, at_least: usize) -> Result<RequestHead, Cow<'static, str>> {
    let limits = exchange.view.snapshot.head_limits();
    let limits = HeadLimits { max_bytes: limits.max_bytes.max(at_least), ..limits };
    if described.len() > limits.max_bytes {
        return Err("The described request is none: its head is larger than max_head_size.".into());
    }
    let mut head = RequestHead::default();
    match head.parse(described, &limits) {
        Ok(()) => Ok(head),
        Err(fault) => {
            let fault = fault.to_string();
            Err(format!("The described request is none: {}.", fault.trim_end_matches('.')).into())
        }
    }
}

/// Makes the exchange that of a described request, whose head was read.
pub fn enter(exchange: &mut Exchange, head: RequestHead, described: &Described, rules: &Arc<QuestionRules>) {
    exchange.scratch.inbound.replace_head(&described.head);
    exchange.scratch.request = head;
    exchange.connection = exchange.connection.described(described.client, described.is_https, rules);
}

/// A question about a request, in an exchange of its own: log, dead letters and figures are those of a request.
pub enum RequestAsking {
    /// It is decided.
    Told(Box<Exchange>, Told),
    /// A limit that is shared asks its store.
    Waits(Box<Exchange>, Waiting),
}

/// Asks about a request, by a question that came in this exchange.
///
/// # Errors
/// It is none: in words. Nothing was counted.
pub fn ask(
    exchange: &Exchange,
    rules: &Arc<QuestionRules>,
    described: &Described,
    now: Tick,
) -> Result<RequestAsking, Cow<'static, str>> {
    begin(exchange, rules, described, now, |own| decide(own, rules))
}

/// Asks about a descriptor of this route with so many hits, which is described as a request.
///
/// # Errors
/// As of [`ask`].
pub fn ask_hits(
    exchange: &Exchange,
    rules: &Arc<QuestionRules>,
    described: &Described,
    (route, hits): (&Rc<RouteView>, u64),
    now: Tick,
) -> Result<RequestAsking, Cow<'static, str>> {
    begin(exchange, rules, described, now, |own| decide_hits(own, rules, route, hits))
}

fn begin(
    exchange: &Exchange,
    rules: &Arc<QuestionRules>,
    described: &Described,
    now: Tick,
    decide: impl FnOnce(&mut Exchange) -> Result<Told, Waiting>,
) -> Result<RequestAsking, Cow<'static, str>> {
    let head = read(&described.head, exchange, 0)?;
    let Exchange { worker, connection, .. } = exchange;
    let mut own = Box::new(Exchange::new(worker, connection, worker.pool.lend(), 0, now));
    enter(&mut own, head, described, rules);
    Ok(match decide(&mut own) {
        Ok(told) => RequestAsking::Told(own, told),
        Err(waiting) => RequestAsking::Waits(own, waiting),
    })
}

/// Asks again about a request that waits for the store of a limit: the decision, or when to ask again unless the task is woken
/// before.
///
/// # Errors
/// It waits on, until this instant.
pub fn attempt(own: &mut Exchange, waiting: &mut Waiting, now: Tick, cx: &Context<'_>) -> Result<Told, Tick> {
    match waiting.attempt(now, cx.waker(), &mut own.scratch.report) {
        Progress::Pending { wake_at } => Err(wake_at),
        Progress::Admitted(admitted) => Ok(allow(own, admitted)),
        Progress::TimedOut(arrival, refusal) => {
            let route = Rc::clone(waiting.route());
            Ok(refuse(own, route, arrival.key, Refused::Limit(refusal)))
        }
    }
}

/// Whether a listener with these rules decides about requests of a route.
pub fn is_decided(route: &RouteView, rules: &QuestionRules) -> bool {
    route.is_decidable() && rules.routes.as_ref().is_none_or(|names| names.contains(&route.spec.name))
}

/// Decides, and waits for the store of a limit that is shared: no longer than its fleet's deadline.
pub async fn decide_in_time(
    exchange: &mut Exchange,
    client: &mut Client,
    rules: &QuestionRules,
) -> Result<Told, ExchangeError> {
    let waiting = match decide(exchange, rules) {
        Ok(told) => return Ok(told),
        Err(waiting) => waiting,
    };
    exchange.set_phase(FlightPhase::Waiting);
    let waited = waiting::wait(exchange, client, waiting).await;
    exchange.leaves_flight();
    match waited {
        Waited::Admitted(admitted) => Ok(allow(exchange, admitted)),
        Waited::InVain(route, key, refusal) => Ok(refuse(exchange, route, key, Refused::Limit(refusal))),
        Waited::ClientGone => Err(ExchangeError::ClientGone),
        Waited::Cancelled => Err(ExchangeError::Cancelled),
    }
}

/// Decides. The error: a limit that is shared has to ask its store first.
fn decide(exchange: &mut Exchange, rules: &QuestionRules) -> Result<Told, Waiting> {
    if exchange.worker.denies(exchange.connection.peer.ip()) {
        return Ok(give(exchange, QuestionOutcome::Denied, 403, DENIED.into()));
    }
    if let Some(hash) = exchange.view.snapshot.model.admin.as_ref().and_then(|admin| admin.explain_sha256) {
        exchange.scratch.state.explains = explanation::is_asked(&exchange.request(), &hash);
    }
    let Exchange { worker, view, connection, scratch, arrived, .. } = &mut *exchange;
    let (origin, clients, tokens) = (connection.origin(), view.rules.clients(), worker.tokens(view, *arrived));
    let Scratch { inbound, request, report, .. } = &mut **scratch;
    let context = RequestContext { request: request.on(inbound.head()), origin, clients, body: None, tokens };
    // By a view of any kind, so that the path of proxied requests stays the only caller of its functions.
    let context: &dyn RequestView = &context;
    let found = view.rules.route_of(context, *arrived);
    if found.is_some_and(|route| !is_decided(route, rules)) {
        return Ok(give(exchange, QuestionOutcome::Undecided, 404, NOT_HERE.into()));
    }
    let admission = view.rules.admit(context, origin.peer, *arrived, report);
    conclude(exchange, rules, admission)
}

/// The same about hits of a descriptor, whose route is known.
fn decide_hits(
    exchange: &mut Exchange,
    rules: &QuestionRules,
    route: &Rc<RouteView>,
    hits: u64,
) -> Result<Told, Waiting> {
    let client = exchange.connection.peer.ip();
    // A descriptor without an address has no client.
    if !client.is_unspecified() && exchange.worker.denies(client) {
        return Ok(give(exchange, QuestionOutcome::Denied, 403, DENIED.into()));
    }
    let Exchange { view, connection, scratch, arrived, .. } = &mut *exchange;
    let (origin, clients) = (connection.origin(), view.rules.clients());
    let Scratch { inbound, request, report, .. } = &mut **scratch;
    let context = RequestContext { request: request.on(inbound.head()), origin, clients, body: None, tokens: None };
    let admission = view.rules.admit_hits(route, hits, (&context, origin.peer), *arrived, report);
    conclude(exchange, rules, admission)
}

/// Does with a question what admission says.
fn conclude(exchange: &mut Exchange, rules: &QuestionRules, admission: Admission) -> Result<Told, Waiting> {
    match admission {
        Admission::Malformed(fault) => {
            count(exchange, QuestionOutcome::Invalid);
            let cause = Cause::Malformed(fault);
            end_by(exchange, cause, false);
            let ending = Ending::of(cause);
            Ok(Told::Undecided(ending.own_status(), ending.words.text()))
        }
        Admission::NoRoute(arrival) => {
            policy::note(exchange, None, &arrival);
            Ok(give(exchange, QuestionOutcome::Undecided, 404, NO_ROUTE.into()))
        }
        Admission::Refused(route, arrival, refused) => {
            policy::note(exchange, Some(&route), &arrival);
            Ok(refuse(exchange, route, arrival.key, refused))
        }
        Admission::Waiting(waiting) => {
            policy::note(exchange, Some(waiting.route()), waiting.arrival());
            let Some(limit) = waiting.limit().and_then(|place| waiting.route().limit(place)).cloned() else {
                return Err(waiting);
            };
            // An exception of a key has it wait, which its route's limits do not.
            drop(waiting);
            Ok(refuse_to_wait(exchange, rules, limit))
        }
        Admission::Admitted(admitted) => {
            policy::note(exchange, Some(admitted.route()), admitted.arrival());
            Ok(allow(exchange, admitted))
        }
    }
}

/// No route takes the request.
pub const NO_ROUTE: &str = "No route takes this request.";
/// Another listener may decide it.
pub const NOT_HERE: &str = "The route of this request is not decided here.";
/// `[client]` denies its client.
pub const DENIED: &str = "This client is denied.";

/// The request may go on.
pub fn allow(exchange: &mut Exchange, mut admitted: Admitted) -> Told {
    exchange.permit = admitted.take_permit();
    policy::count_admitted(exchange, admitted.route());
    if exchange.scratch.report.has_shadow_refusals() {
        exchange.write_shadow_letters();
    }
    count(exchange, QuestionOutcome::Allowed);
    respond::text(200, "", &mut exchange.scratch.reply);
    policy::responded(exchange);
    Told::Allowed
}

/// A question cannot wait for room: its caller would go on without an answer.
fn refuse_to_wait(exchange: &mut Exchange, rules: &QuestionRules, limit: Rc<LimitView>) -> Told {
    let status = rules.deny_status.unwrap_or(limit.spec.status);
    let why = "The limit has this key wait, which a question cannot.";
    give(exchange, QuestionOutcome::Refused, status, why.into());
    let reply = &mut exchange.scratch.reply;
    reply.put(LIMIT, limit.name().as_bytes());
    reply.put_number(b"retry-after", 1);
    exchange.record.limit = Some(limit);
    Told::Refused(None)
}

/// A limit refuses the request.
pub fn refuse(exchange: &mut Exchange, route: Rc<RouteView>, key: Option<Fingerprint>, refused: Refused) -> Told {
    count(exchange, QuestionOutcome::Refused);
    let (place, refusal) = match &refused {
        Refused::Limit(refusal) => (refusal.limit, Some(*refusal)),
        Refused::MissingKey { limit } => (*limit, None),
    };
    let Some(limit) = route.limit(place).cloned() else {
        end_by(exchange, Cause::KeyMissing, false);
        return Told::Refused(refusal);
    };
    match refusal {
        None => refuse::refuse_keyless(exchange, &route, &limit, key),
        Some(refusal) => refuse::refuse(exchange, &RefusedRequest { route, limit: Rc::clone(&limit), key, refusal }),
    };
    exchange.scratch.reply.put(LIMIT, limit.name().as_bytes());
    Told::Refused(refusal)
}

/// Answers a question that no limit was asked about.
pub fn give(exchange: &mut Exchange, outcome: QuestionOutcome, status: u16, detail: Cow<'static, str>) -> Told {
    count(exchange, outcome);
    exchange.record.status = Some(status);
    exchange.finish(Outcome::Responded);
    write_problem(exchange, &Problem { status, detail: &detail, violated: &[], retry_after_secs: None });
    Told::Undecided(status, detail)
}

/// Counts the answer to a question.
pub fn count(exchange: &Exchange, outcome: QuestionOutcome) {
    let kind = exchange.connection.facts.asks.as_ref().map_or(Decides::Auth, |rules| rules.kind);
    exchange.worker.connections.asked(kind, outcome);
}
