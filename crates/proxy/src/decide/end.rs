//! The end of an exchange, as the table of endings says, and the problem that its client is told.

use crate::answer::{Problem, Wants, respond};
use crate::endings::{Cause, Ending, EndingFate, ExchangeError, TimeoutKind};
use crate::exchange::Exchange;
use crate::headers::Sink as _;
use crate::meters::Outcome;
use crate::scratch::{RequestState, Scratch};

/// Ends an exchange as the table of endings says: counts and records it, and makes the answer unless one has begun.
pub fn end_by(exchange: &mut Exchange, cause: Cause<'_>, begun: bool) -> EndingFate {
    let ending = Ending::of(cause);
    ending.counted.count(&exchange.worker.connections);
    if matches!(cause, Cause::ExchangeError(ExchangeError::Timeout(TimeoutKind::Deadline))) {
        exchange.blame_timeout();
    }
    exchange.finish(ending.outcome);
    if ending.outcome == Outcome::ClientGone {
        return EndingFate::Cut;
    }
    let status = ending.own_status();
    if !begun {
        exchange.record.status = Some(status);
    }
    let mut retry_after_secs = None;
    if let Cause::ExchangeError(error) = cause {
        let now = exchange.worker.clock.now();
        exchange.ended_at(now);
        retry_after_secs = error.retry_at(now).map(|at| at.since(now).as_secs_ceil().max(1));
        if matches!(ending.outcome, Outcome::UpstreamError | Outcome::QueueFull) {
            report(exchange, error);
        }
    }
    if let Cause::ExchangeError(ExchangeError::Unasked(fault)) = cause {
        exchange.record.switch_fault = Some(*fault);
    }
    if let Some(reason) = ending.reason {
        exchange.write_dead_letter(reason, Some(exchange.client_key()), None);
    }
    if begun {
        return EndingFate::Cut;
    }
    write_problem(exchange, &Problem { status, detail: &ending.words.text(), violated: &[], retry_after_secs });
    ending.fate
}

fn report(exchange: &Exchange, error: &ExchangeError) {
    if let Some(more) = exchange.worker.upstream_reports.due(exchange.ended()) {
        let upstream = exchange.upstream_name().map_or("", |name| name);
        let server = exchange.server_name().map_or("", |name| name);
        let request_id = exchange.request_id();
        tracing::warn!(target: "sluicegate::proxy::decide::end", %upstream, %server, request_id, more, error = %error, "upstream error");
    }
}

/// Makes the answer that says what went wrong.
pub fn write_problem(exchange: &mut Exchange, problem: &Problem<'_>) {
    let (facts, room) = exchange.split();
    let wants = Wants::of(&facts.request(), facts.connection.facts.is_h2);
    respond::problem(problem, wants, room.reply);
    name_request(exchange);
}

/// Tells the client the id of its request, for a question to the operator: logs and dead letters have it.
pub fn name_request(exchange: &mut Exchange) {
    exchange.identify();
    let Scratch { reply, state: RequestState { request_id, .. }, .. } = &mut *exchange.scratch;
    reply.put(b"x-request-id", request_id);
}
