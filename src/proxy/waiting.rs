//! A request that holds a place in a limit's queue, as a future of its worker.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use tokio::time::{Instant, Sleep, sleep};

use super::exchange::Exchange;
use super::meters::Decision;
use crate::admission::{Admitted, Arrival, Progress, Waiting};
use crate::limiter::Refusal;
use crate::time::Span;

/// Waits until the request is admitted or has waited in vain. Dropping the future gives the place up.
pub async fn wait(exchange: &Exchange, mut waiting: Waiting) -> Result<Admitted, (Arrival, Refusal)> {
    let mut left = Left { exchange, limit: exchange.story.queued_in, settled: false };
    left.count(Decision::Queued);
    let clock = exchange.worker.clock.clone();
    let mut timer = pin!(sleep(Span::ZERO.into()));
    let ended = poll_fn(|cx| {
        loop {
            let now = clock.now();
            match waiting.attempt(now, cx.waker()) {
                Progress::Admitted(admitted) => return Poll::Ready(Ok(admitted)),
                Progress::TimedOut(arrival, refusal) => return Poll::Ready(Err((arrival, refusal))),
                Progress::Pending { wake_at } => {
                    rearm(timer.as_mut(), wake_at.since(now));
                    if timer.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                }
            }
        }
    })
    .await;
    left.settled = true;
    ended
}

/// The timer runs on the runtime's own clock, which this is relative to.
fn rearm(timer: std::pin::Pin<&mut Sleep>, from_now: Span) {
    #[allow(clippy::disallowed_methods, reason = "tokio's timers take an instant of tokio's own clock")]
    let now = Instant::now();
    timer.reset(now + from_now.into());
}

/// The limit in whose queue it is, by its place in the file.
pub fn limit_of(exchange: &Exchange, waiting: &Waiting) -> Option<usize> {
    let route = waiting.arrival().route?;
    exchange.view.snapshot.routes.get(route)?.limits.get(waiting.limit()?).copied()
}

/// Counts a cancel if the client leaves while it waits.
struct Left<'e> {
    exchange: &'e Exchange,
    limit: Option<usize>,
    settled: bool,
}

impl Left<'_> {
    fn count(&self, decision: Decision) {
        if let Some(limit) = self.limit {
            self.exchange.view.meters.decided(limit, decision);
        }
    }
}

impl Drop for Left<'_> {
    fn drop(&mut self) {
        if !self.settled {
            self.count(Decision::Cancelled);
        }
    }
}
