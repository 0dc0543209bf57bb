//! The thread that brings messages to webhooks. Whatever they do, nobody waits for it.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinSet;

use super::super::webhook::{self, retry_after};
use super::message;
use super::outbox::{GivenUp, InFlightTry, NotifyOutcome};
use super::shared::AlertShared;
use sluicegate_http_client::{ClientResponse, HttpClient, SendError};
use sluicegate_time::{Clock, Span, Tick, Wall};

/// How long a webhook may take to answer, connecting included.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long the thread sleeps at most.
const IDLE: Span = Span::from_secs(3_600);

/// Brings what is in the outbox until it is closed.
pub(super) fn run(shared: &AlertShared, clock: &Clock) -> io::Result<()> {
    let client = webhook::client().map_err(io::Error::other)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(deliver(shared, &client, clock));
    Ok(())
}

async fn deliver(shared: &AlertShared, client: &HttpClient, clock: &Clock) {
    let mut flights: JoinSet<(InFlightTry, NotifyOutcome)> = JoinSet::new();
    while !shared.is_closed() {
        let now = clock.now();
        let (due, next) = {
            let mut outbox = shared.outbox();
            (outbox.due(now), outbox.next_due())
        };
        for flight in due {
            flights.spawn(fly(client.clone(), flight, clock.clone()));
        }
        let pause = next.map_or(IDLE, |due| due.since(now).min(IDLE));
        tokio::select! {
            () = shared.bell.notified() => {}
            Some(landed) = flights.join_next(), if !flights.is_empty() => {
                if let Ok((flight, outcome)) = landed {
                    land(shared, &flight, outcome, clock.now());
                }
            }
            () = tokio::time::sleep(pause.into()) => {}
        }
    }
}

async fn fly(client: HttpClient, flight: InFlightTry, clock: Clock) -> (InFlightTry, NotifyOutcome) {
    let InFlightTry { message, target, .. } = &flight;
    let key = target.secret.as_ref().and_then(|secret| secret.bytes()).map(|key| &key[..]);
    let delivery = message::delivery(&message.delivery, &message.body);
    let request = webhook::request(target.webhook.uri(), key, &delivery, clock.wall_now());
    let outcome = match request {
        Ok(request) => outcome(client.send(request, TIMEOUT).await, clock.wall_now()),
        Err(error) => NotifyOutcome::Refused(error.to_string()),
    };
    (flight, outcome)
}

fn land(shared: &AlertShared, flight: &InFlightTry, outcome: NotifyOutcome, now: Tick) {
    if let NotifyOutcome::Failed { cause, .. } = &outcome {
        tracing::debug!(target: "sluicegate::dead_letter::alert::send", alert = flight.message.alert, webhook = %flight.target.webhook, cause, "an alert is not delivered yet");
    }
    let random = RandomState::new().build_hasher().finish();
    let given_up = shared.outbox().settle(flight, outcome, now, random);
    if let Some(GivenUp { message, target, tries, cause }) = given_up {
        shared.figures.failures.fetch_add(1, Ordering::Relaxed);
        let (alert, state, webhook) = (message.alert, message.state, &target.webhook);
        tracing::warn!(target: "sluicegate::dead_letter::alert::send", alert, state, %webhook, tries, cause, "a webhook did not take an alert, which is given up");
    }
}

fn outcome(answered: Result<ClientResponse, SendError>, now: Wall) -> NotifyOutcome {
    let answer = match answered {
        Ok(answer) => answer,
        Err(error) => return NotifyOutcome::Failed { cause: error.to_string(), asked: Span::ZERO },
    };
    let cause = format!("status {}", answer.status.as_u16());
    match answer.status.as_u16() {
        200..=299 => NotifyOutcome::Delivered,
        300..=399 => NotifyOutcome::Refused(format!("{cause}: redirects are not followed")),
        408 | 425 | 429 | 500..=599 => NotifyOutcome::Failed { cause, asked: retry_after(&answer, now) },
        _ => NotifyOutcome::Refused(cause),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16) -> ClientResponse {
        ClientResponse {
            status: status.try_into().unwrap(),
            headers: http::HeaderMap::new(),
            body: bytes::Bytes::new(),
            is_whole: true,
        }
    }

    #[test]
    fn what_may_be_over_later_is_tried_again() {
        let outcome = |status| outcome(Ok(answer(status)), Wall::EPOCH);
        for status in [200, 202, 204] {
            assert_eq!(outcome(status), NotifyOutcome::Delivered);
        }
        for status in [408, 425, 429, 500, 502, 503, 599] {
            assert!(matches!(outcome(status), NotifyOutcome::Failed { .. }), "{status}");
        }
        for status in [301, 307, 400, 401, 404, 410] {
            assert!(matches!(outcome(status), NotifyOutcome::Refused(_)), "{status}");
        }
        for error in [SendError::Connect(String::new()), SendError::Late, SendError::Broken(String::new())] {
            assert!(matches!(super::outcome(Err(error), Wall::EPOCH), NotifyOutcome::Failed { .. }));
        }
    }
}
