//! A request that holds a place in a limit's queue, as a future of its worker.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep, sleep};

use crate::client::Client;
use crate::endings::ExchangeError;
use crate::exchange::{Exchange, poll_gone};
use crate::meters::{Decision, LimitMeters};
use crate::view::{Admitted, RouteView, Waiting};
use sluicegate_admission::Progress;
use sluicegate_limiter::{Fingerprint, Refusal};
use sluicegate_time::{Span, Tick};

/// How the wait ended.
pub enum Waited {
    /// The request may be forwarded.
    Admitted(Admitted),
    /// It has waited in vain.
    InVain(Rc<RouteView>, Option<Fingerprint>, Refusal),
    /// The client went away, and gave the place up.
    ClientGone,
    /// An operator has cancelled the request, which gave the place up.
    Cancelled,
}

/// Waits until the request is admitted or has waited in vain. Dropping the future gives the place up.
pub async fn wait(exchange: &mut Exchange, client: &mut Client, mut waiting: Waiting) -> Waited {
    let limit = exchange.record.queued_in.as_ref().map(|limit| Rc::clone(&limit.meters));
    let mut left = Left { limit, settled: false };
    left.count(Decision::Queued);
    let mut looked = exchange.arrived;
    let waited = wait_for(exchange, client, |exchange, now, cx| {
        looked = now;
        match waiting.attempt(now, cx.waker(), &mut exchange.scratch.report) {
            Progress::Admitted(admitted) => Ok(Waited::Admitted(admitted)),
            Progress::TimedOut(arrival, refusal) => {
                Ok(Waited::InVain(Rc::clone(waiting.route()), arrival.key, refusal))
            }
            Progress::Pending { wake_at } => Err(wake_at),
        }
    });
    let ended = waited.await.unwrap_or_else(|gone| match gone {
        ExchangeError::Cancelled => Waited::Cancelled,
        _ => Waited::ClientGone,
    });
    exchange.record.waited = Some(looked.since(exchange.arrived));
    left.settled = !matches!(ended, Waited::ClientGone | Waited::Cancelled);
    ended
}

/// Waits for something that is tried until it is done; each try that is not says when to try again, unless the task is woken
/// before.
///
/// It has a timer of its own, not the worker's wheel: a place in a queue comes free at its slot, to the millisecond.
///
/// # Errors
/// The client has gone meanwhile, or the request was cancelled.
pub async fn wait_for<T>(
    exchange: &mut Exchange,
    client: &mut Client,
    mut attempt: impl FnMut(&mut Exchange, Tick, &Context<'_>) -> Result<T, Tick>,
) -> Result<T, ExchangeError> {
    let clock = exchange.worker.clock.clone();
    let mut timer = pin!(sleep(Span::ZERO.into()));
    poll_fn(|cx| {
        loop {
            let now = clock.now();
            let next = match attempt(exchange, now, cx) {
                Ok(done) => return Poll::Ready(Ok(done)),
                Err(next) => next,
            };
            if let Poll::Ready(gone) = poll_gone(cx, exchange, client, Tick::MAX) {
                return Poll::Ready(Err(gone));
            }
            rearm(timer.as_mut(), next.since(now));
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    })
    .await
}

/// The timer runs on the runtime's own clock, which this is relative to.
fn rearm(timer: std::pin::Pin<&mut Sleep>, from_now: Span) {
    #[allow(clippy::disallowed_methods, reason = "tokio's timers take an instant of tokio's own clock")]
    let now = Instant::now();
    timer.reset(now + from_now.into());
}

/// Counts a cancel if the request ends while it waits.
struct Left {
    limit: Option<Rc<LimitMeters>>,
    settled: bool,
}

impl Left {
    fn count(&self, decision: Decision) {
        if let Some(limit) = &self.limit {
            limit.decided(decision);
        }
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        if !self.settled {
            self.count(Decision::Cancelled);
        }
    }
}
