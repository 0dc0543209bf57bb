//! A connection that speaks another protocol after a 101, such as WebSocket: bytes both ways until both sides are done.
//!
//! It holds buffers only while bytes are in them, so that a tunnel that is silent, as most are most of the time, costs
//! little more than its two sockets.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::client::Client;
use super::exchange::Exchange;
use super::meters::Outcome;
use super::relay::Afterwards;
use super::scratch::{Lent, Pool};
use crate::http1::Buffer;
use crate::time::{Span, Tick};
use crate::transport::Stream;
use crate::upstream::Leased;

/// How long a tunnel may be silent of which one side has ended.
const HALF_CLOSED: Span = Span::from_secs(30);

/// One direction.
struct Way {
    /// What was read and not written yet.
    carried: Option<Lent>,
    /// The source has closed its side.
    ended: bool,
    /// The other side was told.
    told: bool,
    /// Bytes that came.
    bytes: u64,
    /// Bytes that came and bytes that went: what shows that it is alive.
    moved: u64,
}

/// Carries bytes until both sides have ended, one fails, or nothing moves for `tunnel_timeout`.
pub async fn run(exchange: &mut Exchange, client: &mut Client, mut lease: Leased) -> Afterwards {
    exchange.finish(Outcome::Upgraded);
    let worker = Rc::clone(&exchange.worker);
    let connection = Rc::clone(&exchange.connection);
    let _open = worker.enter_tunnel();
    let (mut up, mut down) = begin(exchange, client, &worker.pool);
    let idle = exchange.view.snapshot.http1.tunnel_timeout;
    let mut moved_at = worker.alarms.recently();
    poll_fn(|cx| {
        let before = up.moved + down.moved;
        let upward = up.poll(cx, &mut client.stream, lease.stream(), &worker.pool);
        let downward = down.poll(cx, lease.stream(), &mut client.stream, &worker.pool);
        let now = worker.alarms.recently();
        if up.moved + down.moved != before {
            moved_at = now;
        }
        match (&upward, &downward) {
            (Poll::Ready(Err(_)), _) | (_, Poll::Ready(Err(_))) | (Poll::Ready(_), Poll::Ready(_)) => {
                return Poll::Ready(());
            }
            _ => {}
        }
        let is_half = upward.is_ready() || downward.is_ready();
        let idle = if is_half { Some(idle.map_or(HALF_CLOSED, |idle| idle.min(HALF_CLOSED))) } else { idle };
        let due = idle.map_or(Tick::MAX, |idle| moved_at + idle);
        if connection.alarm.has_rung() && now >= due {
            return Poll::Ready(());
        }
        worker.alarms.set(&connection.alarm, due);
        Poll::Pending
    })
    .await;
    exchange.bytes_sent = down.bytes;
    Afterwards::Cut
}

/// Takes over what each side has sent already, and gives up the room that only messages need.
fn begin(exchange: &mut Exchange, client: &Client, pool: &Rc<Pool>) -> (Way, Way) {
    let (head_bytes, rest_at) = (exchange.head_bytes, exchange.rest_at);
    let scratch = &mut *exchange.scratch;
    let ahead = scratch.inbound.filled().get(rest_at..).unwrap_or_default();
    let up = Way::new(pool, ahead, client.has_closed());
    let down = Way::new(pool, scratch.outbound.filled(), false);
    // The head stays, for the access log.
    let mut head = Buffer::with_capacity(head_bytes);
    head.room().copy_from_slice(scratch.inbound.filled().get(..head_bytes).unwrap_or_default());
    head.advance(head_bytes);
    scratch.inbound = head;
    scratch.outbound = Buffer::default();
    (up, down)
}

impl Way {
    fn new(pool: &Rc<Pool>, bytes: &[u8], ended: bool) -> Self {
        let mut way = Self { carried: None, ended, told: false, bytes: bytes.len() as u64, moved: 0 };
        if !bytes.is_empty() {
            let mut lent = pool.lend();
            lent.to_client.made().extend_from_slice(bytes);
            way.carried = Some(lent);
        }
        way
    }

    /// Ready when the source has ended and the other side has everything.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut Stream,
        to: &mut Stream,
        pool: &Rc<Pool>,
    ) -> Poll<io::Result<()>> {
        loop {
            if let Some(lent) = &mut self.carried {
                let lent = &mut **lent;
                while !lent.to_client.is_empty() {
                    match lent.to_client.poll_write(cx, to, lent.outbound.filled()) {
                        Poll::Ready(Ok(size)) => self.moved += size as u64,
                        Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                        Poll::Pending => return Poll::Pending,
                    }
                }
                self.carried = None;
            }
            if self.ended {
                if !self.told {
                    if to.poll_shutdown(cx).is_pending() {
                        return Poll::Pending;
                    }
                    self.told = true;
                }
                return Poll::Ready(Ok(()));
            }
            if from.poll_read_ready(cx).is_pending() {
                return Poll::Pending;
            }
            let mut lent = pool.lend();
            match from.poll_read(cx, lent.outbound.room()) {
                Poll::Ready(Ok(0)) => self.ended = true,
                Poll::Ready(Ok(size)) => {
                    self.bytes += size as u64;
                    self.moved += size as u64;
                    let scratch = &mut *lent;
                    scratch.outbound.advance(size);
                    scratch.to_client.add(scratch.outbound.filled(), 0..size);
                    self.carried = Some(lent);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}
