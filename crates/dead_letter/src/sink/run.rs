//! The thread of a sink. Whatever its receiver does, nobody waits for it.

use std::collections::hash_map::RandomState;
use std::future::pending;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::header::HeaderName;
use tokio::sync::Notify;

use super::super::webhook::{self, Delivery, retry_after};
use super::super::writer::give_way;
use super::courier::{BatchOutcome, DeliveryStep, InFlightBatch, LOOK, SinkDelivery};
use sluicegate_config::Sink;
use sluicegate_http_client::{ClientResponse, HttpClient, SendError};
use sluicegate_time::{Clock, Wall};

/// How long a receiver may take to answer, connecting included.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The field by which a repeat of a batch is known.
const BATCH: HeaderName = HeaderName::from_static("x-sluicegate-batch");

/// Where the thread is told what to do.
#[derive(Debug, Default)]
pub(super) struct DeliveryControl {
    order: Mutex<Option<Sink>>,
    /// Nothing is written any more: it ends when all is sent, or is not taken.
    ending: AtomicBool,
    closed: AtomicBool,
    bell: Notify,
    ended: Mutex<bool>,
    end: Condvar,
}

impl DeliveryControl {
    /// Goes on with other settings; those that nobody has taken yet are replaced.
    pub(super) fn leave(&self, sink: Sink) {
        *self.order() = Some(sink);
        self.bell.notify_one();
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.bell.notify_one();
    }

    /// Lets it send what is left.
    pub(super) fn finish(&self) {
        self.ending.store(true, Ordering::Release);
        self.bell.notify_one();
    }

    /// Waits at most so long until the thread sends nothing more.
    pub(super) fn wait_for_end(&self, timeout: Duration) {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.end.wait_timeout_while(ended, timeout, |ended| !*ended);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    fn tell_end(&self) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.end.notify_all();
    }

    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn order(&self) -> MutexGuard<'_, Option<Sink>> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until there is an order, or it is closed.
    async fn rung(&self) {
        while !self.is_closed() && self.order().is_none() {
            self.bell.notified().await;
        }
    }

    /// The same, or until it is to end.
    async fn woken(&self) {
        while !self.is_closed() && !self.is_ending() && self.order().is_none() {
            self.bell.notified().await;
        }
    }
}

/// Sends batches until it is closed.
pub(super) fn run(courier: SinkDelivery, desk: &DeliveryControl, clock: &Clock) -> io::Result<()> {
    give_way();
    let client = webhook::client().map_err(io::Error::other)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(deliver(courier, desk, &client, clock));
    desk.tell_end();
    Ok(())
}

async fn deliver(mut courier: SinkDelivery, desk: &DeliveryControl, client: &HttpClient, clock: &Clock) {
    while !desk.is_closed() {
        let order = desk.order().take();
        if let Some(sink) = order {
            courier.renew(sink);
        }
        let is_ending = desk.is_ending();
        if is_ending {
            courier.hurry();
        }
        match courier.step(clock.now()) {
            DeliveryStep::Send(flight) => fly(&mut courier, &flight, desk, client, clock).await,
            DeliveryStep::Wait(_) if is_ending => return,
            DeliveryStep::Wait(pause) => tokio::select! {
                () = desk.woken() => {}
                () = tokio::time::sleep(pause.into()) => {}
            },
        }
    }
}

/// Sends a batch once. One that is cut off by an order or the end is sent again.
async fn fly(
    courier: &mut SinkDelivery,
    flight: &InFlightBatch,
    desk: &DeliveryControl,
    client: &HttpClient,
    clock: &Clock,
) {
    let sink = courier.sink();
    let key = sink.secret_file.as_ref().and_then(|secret| secret.bytes()).map(|key| &key[..]);
    let delivery = Delivery { content_type: "application/x-ndjson", mark: (BATCH, &flight.mark), body: &flight.body };
    let request = webhook::request(sink.http.uri(), key, &delivery, clock.wall_now());
    let answered = async {
        match request {
            Ok(request) => client.send(request, TIMEOUT).await,
            // The address was read by the same parser.
            Err(_) => pending().await,
        }
    };
    tokio::pin!(answered);
    loop {
        tokio::select! {
            () = desk.rung() => return,
            answered = &mut answered => {
                let now = clock.now();
                courier.settle(outcome(answered, clock.wall(now)), now, RandomState::new().build_hasher().finish());
                return;
            }
            // Segments that go meanwhile are counted before.
            () = tokio::time::sleep(LOOK.into()) => courier.look(clock.now()),
        }
    }
}

fn outcome(answered: Result<ClientResponse, SendError>, now: Wall) -> BatchOutcome {
    let answer = match answered {
        Ok(answer) => answer,
        Err(error) => return BatchOutcome::Failed { cause: error.to_string(), asked: sluicegate_time::Span::ZERO },
    };
    let (status, asked) = (answer.status.as_u16(), retry_after(&answer, now));
    match status {
        200..=299 => BatchOutcome::Taken,
        400 | 413 | 422 => BatchOutcome::Refused { status, asked },
        300..=399 => BatchOutcome::Failed { cause: format!("status {status}: redirects are not followed"), asked },
        _ => BatchOutcome::Failed { cause: format!("status {status}"), asked },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_time::Span;

    #[test]
    fn an_answer_takes_a_batch_or_refuses_it_or_puts_it_off() {
        let answer = |status: u16| {
            let headers = [(http::header::RETRY_AFTER, "7".parse().unwrap())].into_iter().collect();
            let answer = ClientResponse {
                status: status.try_into().unwrap(),
                headers,
                body: bytes::Bytes::new(),
                is_whole: true,
            };
            outcome(Ok(answer), Wall::EPOCH)
        };
        for status in [200, 202, 204, 299] {
            assert_eq!(answer(status), BatchOutcome::Taken);
        }
        for status in [400, 413, 422] {
            assert_eq!(answer(status), BatchOutcome::Refused { status, asked: Span::from_secs(7) });
        }
        for status in [301, 304, 307, 401, 403, 404, 408, 410, 415, 429, 500, 502, 503, 504] {
            let BatchOutcome::Failed { asked, .. } = answer(status) else { panic!("{status}") };
            assert_eq!(asked, Span::from_secs(7));
        }
        for error in [SendError::Connect(String::new()), SendError::Late, SendError::Broken(String::new())] {
            assert!(matches!(outcome(Err(error), Wall::EPOCH), BatchOutcome::Failed { .. }));
        }
    }
}
