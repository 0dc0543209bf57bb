//! The first byte of a connection, and work that has to be done in time before a request can come.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use tokio::net::TcpStream;

use crate::client::{ClientAccount, Listening};
use crate::deadlines::Alarm;
use crate::serve::h1;
use crate::worker::Worker;
use sluicegate_time::Tick;
use sluicegate_transport as transport;

/// Whether a connection has said something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoken {
    /// Its first byte is here, or its end.
    Yes,
    /// It has not said anything in time, or before its listener closed.
    NotInTime,
    /// It was closed to make room for another one.
    Dismissed,
}

/// Waits for the first byte of a connection, which may have to make room for another one meanwhile. The byte is looked for
/// in the socket, since a new one may be taken for readable and not be.
///
/// It is no `async fn`, because that would keep room for its arguments twice in each silent connection.
#[allow(clippy::manual_async_fn, reason = "see above")]
pub fn first_byte<'w>(
    worker: &'w Worker,
    alarm: &'w Rc<Alarm>,
    due: Tick,
    account: &ClientAccount,
    listening: &'w Listening,
    stream: &'w TcpStream,
) -> impl Future<Output = Spoken> + use<'w> {
    let silent = listening.reclaimable.list(account, alarm, worker.alarms.coarse_now());
    async move {
        let _silent = silent;
        if in_time(worker, alarm, due, Some(listening), stream.peek(&mut [0])).await.is_some() {
            // It may have been asked to end just before: its handshake is not.
            alarm.take_dismissal();
            alarm.take_fired();
            return Spoken::Yes;
        }
        match alarm.take_dismissal() {
            None => Spoken::NotInTime,
            Some(_) if transport::has_unread(stream) => Spoken::Yes,
            Some(why) => {
                worker.connections.reclaimed(why);
                drop(stream.set_zero_linger());
                Spoken::Dismissed
            }
        }
    }
}

/// The end of `work`, if it ends before `due` and nobody asks for its place. Once `listening` closes, where nothing was
/// begun yet, it has to end soon.
pub async fn in_time<T>(
    worker: &Worker,
    alarm: &Rc<Alarm>,
    mut due: Tick,
    mut listening: Option<&Listening>,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = pin!(work);
    poll_fn(|cx| {
        alarm.wakes(cx);
        if let Poll::Ready(ended) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(ended));
        }
        let now = worker.alarms.coarse_now();
        if alarm.take_fired() && (now >= due || alarm.is_dismissed()) {
            return Poll::Ready(None);
        }
        if listening.take_if(|listening| listening.is_closing()).is_some() {
            // Its first byte may be on the way.
            due = due.min(now + h1::LAST_REQUEST);
        }
        worker.alarms.set(alarm, due);
        Poll::Pending
    })
    .await
}
