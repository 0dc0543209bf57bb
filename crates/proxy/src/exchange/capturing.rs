//! Keeps the body of a request for its dead letter, on routes with `capture_body`.
//!
//! A body is kept as it comes, whatever becomes of the request: nobody knows yet whether it will be refused. A refusal is
//! answered at once; then the rest of the body is read for up to [`LINGER`], and the dead letter is offered when that is over.
//! A client that waits for `100 Continue` is not waited for.

use std::future::poll_fn;
use std::task::Poll;

use super::life::Exchange;
use crate::client::{Client, LINGER};
use crate::scratch::{Capture, Scratch};
use sluicegate_http1::Framing;

/// Begins to keep the body, if the route of the request says so.
pub fn begin(exchange: &mut Exchange) {
    let Some(most) = exchange.record.route.as_ref().and_then(|route| route.spec.capture_body) else { return };
    let framing = exchange.scratch.request.framing();
    if most == 0 || exchange.view.snapshot.dead_letters.is_none() || matches!(framing, Framing::None) {
        return;
    }
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let mut capture = Capture::new(most, framing, exchange.body_room());
    let inbound = &mut exchange.scratch.inbound;
    capture.take(inbound.filled().get(inbound.body()).unwrap_or_default());
    inbound.capture = Some(Box::new(capture));
}

/// Whether a dead letter waits for the rest of a body.
pub fn is_due(exchange: &Exchange) -> bool {
    exchange.scratch.inbound.capture.as_ref().is_some_and(|capture| capture.has_letter())
}

/// Reads what is left of the body of a request that has its answer, up to what is kept, and offers its dead letter.
pub async fn finish(exchange: &mut Exchange, client: &mut Client) {
    // It has its answer: what the client still sends takes nobody's place.
    drop(std::mem::take(&mut exchange.permit));
    let until = exchange.worker.clock.now() + LINGER;
    poll_fn(|cx| {
        loop {
            let Scratch { inbound, upload, request, .. } = &mut *exchange.scratch;
            let is_unasked = request.expects_continue() && upload.content() == 0;
            let is_full = inbound.capture.as_ref().is_none_or(|capture| capture.is_full());
            if upload.is_complete() || is_unasked || is_full {
                return Poll::Ready(());
            }
            inbound.drop_body();
            match client.poll_read(cx, inbound.room()) {
                Poll::Ready(Ok(size @ 1..)) => inbound.advance(size),
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending if exchange.worker.alarms.coarse_now() >= until => return Poll::Ready(()),
                Poll::Pending => {
                    exchange.connection.alarm.take_fired();
                    exchange.worker.alarms.set(&exchange.connection.alarm, until);
                    return Poll::Pending;
                }
            }
            if inbound.accept(upload).is_err() {
                return Poll::Ready(());
            }
        }
    })
    .await;
    exchange.offer_posted();
}
