//! Bounds a key's bytes in a second by waits: bytes are charged as they are read, and go on when they are paid for.
//!
//! The task that waits holds the one piece that its relay holds anyway, and reads nothing: so the kernel, or the window
//! of a stream, slows its peer down. Everybody of one key, on every worker, has its turn in the order in which it has
//! charged.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep, sleep_until};

use crate::client::RequestContext;
use crate::meters::{BandwidthMeters, WayMeters};
use crate::view::{BandwidthView, RouteView};
use sluicegate_admission::{ClientIp, Rules};
use sluicegate_limiter::{Fingerprint, Limit};
use sluicegate_time::{Clock, Span, Tick};

/// The pacing of the two directions of one exchange.
#[derive(Debug, Default)]
pub struct Pacing {
    /// The direction to the client.
    pub down: BandwidthGate,
    /// The direction from the client.
    pub up: BandwidthGate,
    /// How much was charged of the part of the body that goes with the head.
    ahead: usize,
}

/// One direction.
#[derive(Debug, Default)]
pub struct BandwidthGate {
    shares: Vec<Share>,
    hold: Hold,
    has_charged: bool,
    /// Bytes that were charged and may not go on yet.
    owed: u64,
}

/// The part of one bandwidth in a direction: the limit that charges its bytes, by this key.
#[derive(Debug)]
struct Share {
    limit: Arc<Limit>,
    key: Fingerprint,
    meters: Rc<BandwidthMeters>,
    way: fn(&BandwidthMeters) -> &WayMeters,
}

/// A wait until an instant.
///
/// It has a timer of its own, not the worker's wheel, whose sweeps are further apart than the pieces of a fast body.
#[derive(Debug, Default)]
pub struct Hold {
    /// The end of the last wait.
    until: Tick,
    is_on: bool,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Pacing {
    /// The pacing of a request of this route.
    pub fn of(
        route: &RouteView,
        rules: &Rules<Rc<RouteView>>,
        context: &RequestContext<'_>,
        client: &ClientIp,
    ) -> Box<Self> {
        let mut pacing = Self::default();
        for BandwidthView { shared: bandwidth, meters } in &route.bandwidths {
            let key = rules.key_of(context, client, route.rules(), &bandwidth.spec.key);
            let Some(key) = key else { continue };
            let share =
                |limit: &Arc<Limit>, way| Share { limit: Arc::clone(limit), key, meters: Rc::clone(meters), way };
            pacing.down.shares.extend(bandwidth.down.as_ref().map(|limit| share(limit, |meters| &meters.down)));
            pacing.up.shares.extend(bandwidth.up.as_ref().map(|limit| share(limit, |meters| &meters.up)));
        }
        Box::new(pacing)
    }

    /// Charges more bytes of the body; so many of it are here.
    pub fn charge_up(&mut self, more: usize, here: usize, clock: &Clock) {
        self.up.charge(more, clock);
        self.ahead = here;
    }

    /// Charges what is here of the body and was not charged yet; whether there was something.
    pub fn charge_ahead(&mut self, here: usize, clock: &Clock) -> bool {
        let more = here.saturating_sub(self.ahead);
        self.ahead = here;
        self.up.charge(more, clock);
        more > 0
    }

    /// Until when a direction is held, or was.
    pub fn held_until(&self) -> Tick {
        self.down.held_until().max(self.up.held_until())
    }

    /// Whether something may go on that was charged since this was asked last: then others of the same key come first.
    pub fn ends_turn(&mut self) -> bool {
        self.down.ends_turn() | self.up.ends_turn()
    }
}

impl BandwidthGate {
    /// Charges bytes that are to go on when the lane is [free](Self::poll_free).
    pub fn charge(&mut self, bytes: usize, clock: &Clock) {
        if self.shares.is_empty() || bytes == 0 {
            return;
        }
        let now = clock.now();
        self.owed += bytes as u64;
        // Who never had to wait shares with nobody yet.
        self.has_charged = self.hold.timer.is_some();
        for Share { limit, key, meters, way } in &self.shares {
            let (meters, bytes) = (way(meters), bytes as u64);
            let until = limit.charge(*key, bytes, now);
            meters.bytes.add(bytes);
            if until > now {
                meters.waits.inc();
                self.hold.extend(until, now);
            }
        }
    }

    /// Ready when everything that was charged is paid for.
    pub fn poll_free(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let polled = self.hold.poll(cx);
        if polled.is_ready() {
            self.owed = 0;
        }
        polled
    }

    /// Until when it is held, or was.
    pub fn held_until(&self) -> Tick {
        self.hold.until
    }

    /// Whether something may go on that was charged since this was asked last.
    pub fn ends_turn(&mut self) -> bool {
        std::mem::take(&mut self.has_charged) && !self.hold.is_on
    }
}

impl Drop for BandwidthGate {
    /// Gives back the charge for bytes that do not go on any more: others of the key would wait for it.
    fn drop(&mut self) {
        if self.owed > 0 {
            for Share { limit, key, .. } in &self.shares {
                limit.refund(*key, self.owed);
            }
        }
    }
}

impl Hold {
    /// The end of the last wait, which may be to come.
    pub fn until(&self) -> Tick {
        self.until
    }

    /// Holds at least until then.
    pub fn extend(&mut self, until: Tick, now: Tick) {
        if until <= self.until {
            return;
        }
        self.until = until;
        self.is_on = true;
        let at = tokio_instant(until.since(now));
        match &mut self.timer {
            Some(timer) => timer.as_mut().reset(at),
            None => self.timer = Some(Box::pin(sleep_until(at))),
        }
    }

    /// Ready when there is nothing to wait for.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.is_on {
            return Poll::Ready(());
        }
        let polled = self.timer.as_mut().map_or(Poll::Ready(()), |timer| timer.as_mut().poll(cx));
        self.is_on = polled.is_pending();
        polled
    }
}

/// The longest that a timer is set for; the task that waits longer than a year has gone.
const LONGEST: Span = Span::from_secs(365 * 86_400);

fn tokio_instant(from_now: Span) -> Instant {
    #[allow(clippy::disallowed_methods, reason = "tokio's timers take an instant of tokio's own clock")]
    let now = Instant::now();
    now + from_now.min(LONGEST).into()
}
