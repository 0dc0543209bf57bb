//! Requests that share no connection of HTTP/2 with others.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use super::oversized;
use crate::client::Client;
use crate::endings::{ExchangeError, TimeoutKind};
use crate::exchange::{Exchange, poll_gone};
use sluicegate_time::Tick;
use sluicegate_upstream::{Leased, ServerConnections};

/// Why a request has a connection of HTTP/2 to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Apart {
    /// The server may answer its size by closing the connection.
    Oversized,
    /// It authenticates the connection, which carries nothing after it.
    Authenticates,
    /// The connection that it shared with others has died.
    Died,
}

impl Apart {
    /// The reason of a request that no server has got, if there is one.
    pub fn of(exchange: &Exchange) -> Option<Self> {
        if exchange.scratch.request.authenticates_connection() {
            return Some(Self::Authenticates);
        }
        oversized::is_so(exchange).then_some(Self::Oversized)
    }

    /// A kept connection to this server that carries nothing else, where there is a place on one.
    #[cold]
    pub fn reuse(self, index: usize, server: &Rc<ServerConnections>, exchange: &mut Exchange) -> Option<Leased> {
        if self.needs_place(index, exchange) {
            let place = server.alone_places().take(exchange.fair_key());
            exchange.scratch.state.held.alone = place.map(|place| (index, place));
        }
        // That of a request that was given up may be about to die.
        let may_be_kept = self == Self::Oversized && !self.needs_place(index, exchange);
        if may_be_kept { server.reuse_alone(exchange.arrived) } else { None }
    }

    /// Whether the request has no place on such a connection, where it needs one.
    pub fn needs_place(self, index: usize, exchange: &Exchange) -> bool {
        let has_place = exchange.scratch.state.held.alone.as_ref().is_some_and(|(server, _)| *server == index);
        self != Self::Died && !has_place
    }
}

/// Waits for a place, and takes it.
pub async fn wait_for_place(
    (index, server): (usize, &Rc<ServerConnections>),
    exchange: &mut Exchange,
    client: &mut Client,
    deadline: Tick,
    until: Tick,
) -> Result<(), ExchangeError> {
    exchange.scratch.state.held.alone = None;
    let mut waiting = pin!(server.alone_places().wait(exchange.fair_key()).ok_or(ExchangeError::QueueFull)?);
    let place = poll_fn(|cx| {
        if let Poll::Ready(place) = waiting.as_mut().poll(cx) {
            return Poll::Ready(Ok(place));
        }
        if let Poll::Ready(error) = poll_gone(cx, exchange, client, deadline.min(until)) {
            return Poll::Ready(Err(error));
        }
        match exchange.worker.alarms.coarse_now() {
            now if now >= deadline => Poll::Ready(Err(ExchangeError::Timeout(TimeoutKind::Deadline))),
            now if now >= until => Poll::Ready(Err(ExchangeError::QueueFull)),
            _ => Poll::Pending,
        }
    })
    .await?;
    exchange.scratch.state.held.alone = Some((index, place));
    Ok(())
}
