//! Requests whose bytes are paced: they go on when what is here of them is paid for.

use std::future::poll_fn;
use std::task::Poll;

use crate::client::Client;
use crate::endings::{ExchangeError, TimeoutKind};
use crate::exchange::{Exchange, poll_gone};
use crate::scratch::Pacing;
use crate::view::Admitted;
use sluicegate_time::Tick;

/// Begins to pace a request: it goes on when what is here of its body is paid for. It takes no connection before.
pub async fn begin(
    exchange: &mut Exchange,
    client: &mut Client,
    admitted: &Admitted,
    deadline: Tick,
) -> Result<(), ExchangeError> {
    let rules = &exchange.view.rules;
    let pacing = Pacing::of(admitted.route(), rules, &exchange.context(), &admitted.arrival().client);
    exchange.scratch.state.pacing = Some(pacing);
    // While it waits, more of it may come.
    while charge_ahead(exchange) {
        poll_fn(|cx| {
            if exchange.scratch.state.pacing.as_mut().is_none_or(|pacing| pacing.up.poll_free(cx).is_ready()) {
                return Poll::Ready(Ok(()));
            }
            if let Poll::Ready(error) = poll_gone(cx, exchange, client, deadline) {
                return Poll::Ready(Err(error));
            }
            if exchange.worker.alarms.coarse_now() >= deadline {
                return Poll::Ready(Err(ExchangeError::Timeout(TimeoutKind::Deadline)));
            }
            Poll::Pending
        })
        .await?;
    }
    Ok(())
}

/// Charges what is here of the body and was not charged yet; whether there was something.
pub fn charge_ahead(exchange: &mut Exchange) -> bool {
    let here = exchange.scratch.inbound.body().len();
    let Some(pacing) = &mut exchange.scratch.state.pacing else { return false };
    pacing.charge_ahead(here, &exchange.worker.clock)
}
