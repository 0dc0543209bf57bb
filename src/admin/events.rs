use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::sleep;

use super::connections::{Asking, Seat};
use super::dead_letters::Subscription;
use super::{AdminAccess, Commands, told};

/// How often a stream looks for more.
const POLL: Duration = Duration::from_millis(200);

/// Of what a turn has read so much is sent at once. Each piece that the connection takes tells that its client reads.
const PIECE: usize = 16 * 1024;

/// The events of a subscription: made while they are sent, each lot when the connection has taken the one before. A subscriber
/// that reads slowly falls behind in the log, and holds no more than one lot.
pub(super) struct Events {
    made: Bytes,
    making: Option<Pin<Box<Making>>>,
    seat: Arc<Seat>,
    /// The connection is busy as long as this is here, so that none is closed for another one.
    _asking: Asking,
    /// Its place among the streams.
    _place: OwnedSemaphorePermit,
}

type Making = dyn Future<Output = Result<Option<(Bytes, EventSource)>, JoinError>> + Send;

/// Where events come from.
pub(super) struct EventSource {
    pub(super) subscription: Subscription,
    pub(super) commands: Arc<dyn Commands>,
    /// The door by which its subscriber came. When there is another one it ends: whoever comes again says anew who it is.
    pub(super) door: Arc<AdminAccess>,
    /// Places for what may block.
    pub(super) turns: Arc<Semaphore>,
    pub(super) heartbeat: Duration,
    pub(super) shutdown: watch::Receiver<bool>,
}

impl Events {
    pub(super) fn new(source: EventSource, seat: &Arc<Seat>, place: OwnedSemaphorePermit) -> Self {
        let made = source.subscription.comment("what follows").into();
        Self { made, making: Some(Box::pin(source.next())), seat: Arc::clone(seat), _asking: seat.ask(), _place: place }
    }
}

impl Body for Events {
    type Data = Bytes;
    type Error = JoinError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, JoinError>>> {
        while self.made.is_empty() {
            let Some(making) = &mut self.making else { return Poll::Ready(None) };
            let made = ready!(making.as_mut().poll(cx));
            self.making = None;
            match made {
                Ok(Some((made, source))) => {
                    self.made = made;
                    self.making = Some(Box::pin(source.next()));
                }
                Ok(None) => return Poll::Ready(None),
                Err(panicked) => return Poll::Ready(Some(Err(panicked))),
            }
        }
        let length = self.made.len().min(PIECE);
        let piece = self.made.split_to(length);
        self.seat.answered();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}

impl EventSource {
    /// The next thing to send, when there is something; `None` when the server ends, or the log does.
    async fn next(mut self) -> Result<Option<(Bytes, Self)>, JoinError> {
        let mut told = pin!(told(self.shutdown.clone()));
        let mut quiet = pin!(sleep(self.heartbeat));
        loop {
            if !self.subscription.is_behind {
                tokio::select! {
                    biased;
                    () = &mut told => return Ok(None),
                    () = &mut quiet => {}
                    () = sleep(POLL) => {}
                }
            }
            if !Arc::ptr_eq(&self.door, &self.commands.door()) {
                return Ok(None);
            }
            let Self { mut subscription, commands, door, turns, heartbeat, shutdown } = self;
            let turn = async {
                // Nobody closes the semaphore.
                let place = Arc::clone(&turns).acquire_owned().await.ok();
                let commands = Arc::clone(&commands);
                let turn = spawn_blocking(move || {
                    let events = subscription.turn(&*commands);
                    drop(place);
                    (events, subscription)
                });
                turn.await
            };
            let (events, subscription) = tokio::select! {
                biased;
                () = &mut told => return Ok(None),
                turned = turn => turned?,
            };
            self = Self { subscription, commands, door, turns, heartbeat, shutdown };
            match events {
                None => return Ok(None),
                Some(events) if events.is_empty() => {}
                Some(events) => return Ok(Some((events.into(), self))),
            }
            // Also while it reads on and nothing matches.
            tokio::select! {
                biased;
                () = &mut quiet => return Ok(Some((self.subscription.comment("heartbeat").into(), self))),
                () = std::future::ready(()) => {}
            }
        }
    }
}
