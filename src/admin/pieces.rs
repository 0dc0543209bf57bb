use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame};
use tokio::sync::Semaphore;
use tokio::task::{JoinError, spawn_blocking};

use super::connections::Seat;
use crate::telemetry::Page;

/// A page that is made while it is sent: each piece when the connection has room for it, on a thread for what may block. So
/// few pieces are held for a reader, and a slow one keeps no thread.
pub(super) struct Pieces {
    made: VecDeque<Bytes>,
    making: Option<Pin<Box<Making>>>,
    /// Places for what may block.
    places: Arc<Semaphore>,
    /// Each piece that the connection takes counts as an answer. Between them it does not count as busy: it would be for as long
    /// as its client does not read.
    seat: Arc<Seat>,
}

/// The next piece, if there is one, and the page, to go on with.
type Making = dyn Future<Output = Result<(Option<Bytes>, Page), JoinError>> + Send;

impl Pieces {
    /// Begins with the `first` ones, which were made already.
    pub(super) fn new(first: [Option<Bytes>; 2], page: Page, places: Arc<Semaphore>, seat: Arc<Seat>) -> Self {
        let making = Some(make(page, Arc::clone(&places)));
        Self { made: first.into_iter().flatten().collect(), making, places, seat }
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = JoinError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, JoinError>>> {
        if let Some(piece) = self.made.pop_front() {
            self.seat.answered();
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        let Some(making) = &mut self.making else { return Poll::Ready(None) };
        let made = ready!(making.as_mut().poll(cx));
        self.making = None;
        Poll::Ready(match made {
            Ok((Some(piece), page)) => {
                self.making = Some(make(page, Arc::clone(&self.places)));
                self.seat.answered();
                Some(Ok(Frame::data(piece)))
            }
            Ok((None, _)) => None,
            Err(panicked) => Some(Err(panicked)),
        })
    }
}

fn make(mut page: Page, places: Arc<Semaphore>) -> Pin<Box<Making>> {
    Box::pin(async move {
        // Nobody closes the semaphore.
        let place = places.acquire_owned().await.ok();
        let made = spawn_blocking(move || {
            let piece = page.next().map(Bytes::from);
            drop(place);
            (piece, page)
        });
        made.await
    })
}
