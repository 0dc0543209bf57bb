//! Waiting for a connection to a server, where it is connected to as often as `connect_rate` allows.
//!
//! A request that waits gets the next turn to connect, or a connection that was given back meanwhile, whichever comes first. While
//! somebody waits who takes such a connection, nobody else gets one: a newcomer joins the line.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::time::{Sleep, sleep};

use super::connect::{Leased, ServerConnections};
use super::line::{QueuePlace, WaitQueue};
use super::pace::{ConnectRate, Turns};
use sluicegate_limiter::Fingerprint;
use sluicegate_telemetry::Counter;
use sluicegate_time::{Clock, Tick};

/// Gives turns to connect to one server.
pub struct Pace {
    turns: RefCell<Turns>,
    line: RefCell<WaitQueue>,
    /// Whether connections that are given back belong to the line.
    is_kept_wanted: Cell<bool>,
    clock: Clock,
    waits: Counter,
}

/// The end of waiting for a turn.
pub enum TurnEnd {
    /// The server may be connected to.
    Connect,
    /// Here is a connection that was given back.
    Kept(Leased),
}

/// A request in the line. Dropping it takes it out; who has got nothing has taken no turn.
struct InLine<'s> {
    server: &'s Rc<ServerConnections>,
    place: QueuePlace,
    is_served: bool,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Pace {
    /// A pace of `rate`. `waits` counts those who had to wait.
    pub fn new(rate: ConnectRate, clock: Clock, waits: Counter) -> Self {
        let (line, is_kept_wanted) = Default::default();
        Self { turns: RefCell::new(Turns::new(rate)), line, is_kept_wanted, clock, waits }
    }

    /// The rate from now on, also for those who wait.
    pub(super) fn set_rate(&self, rate: ConnectRate) {
        self.turns.borrow_mut().set_rate(rate, self.clock.now());
        self.wake();
    }

    /// Whether connections that are given back belong to those who wait.
    pub(super) fn is_kept_wanted(&self) -> bool {
        self.is_kept_wanted.get()
    }

    /// Lets the request that comes next look again.
    pub(super) fn wake(&self) {
        self.line.borrow().wake_first();
    }

    fn take(&self, now: Tick) -> Result<(), Tick> {
        self.turns.borrow_mut().take(now)
    }
}

impl ServerConnections {
    /// Whether it may be connected to without waiting for a turn; if so, it is taken.
    pub fn may_connect(&self) -> bool {
        let pace = self.pace();
        // No turn is taken where none will be used.
        let is_free = || self.is_opening() || pace.take(pace.clock.now()).is_ok();
        self.is_full() || pace.line.borrow().is_empty() && is_free()
    }

    /// Waits until it may be connected to, or for a connection that is given back. `takes_kept`: whether such a one will do.
    pub async fn turn(self: &Rc<Self>, client: Fingerprint, takes_kept: bool) -> TurnEnd {
        // Where servers are told for whom a connection is, one that is given back is for its own client alone.
        let takes_kept = takes_kept && self.link().proxy_protocol.is_none();
        let mut waiting = InLine::join(self, client, takes_kept);
        poll_fn(|cx| waiting.poll(cx)).await
    }
}

impl<'s> InLine<'s> {
    fn join(server: &'s Rc<ServerConnections>, client: Fingerprint, takes_kept: bool) -> Self {
        let pace = server.pace();
        pace.waits.inc();
        let place = pace.line.borrow_mut().join(client, takes_kept);
        pace.is_kept_wanted.set(pace.is_kept_wanted() || takes_kept);
        Self { server, place, is_served: false, timer: None }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<TurnEnd> {
        loop {
            let now = self.server.pace().clock.now();
            let due = match self.look(now) {
                Ok(turn) => {
                    self.is_served = true;
                    return Poll::Ready(turn);
                }
                Err(due) => due,
            };
            self.server.pace().line.borrow_mut().wakes(self.place, cx);
            self.timer = due.map(|due| Box::pin(sleep(due.since(now).into())));
            let is_due = self.timer.as_mut().is_some_and(|timer| timer.as_mut().poll(cx).is_ready());
            if !is_due {
                return Poll::Pending;
            }
        }
    }

    /// The turn that there is for it, or when to look again, if that is known.
    fn look(&self, now: Tick) -> Result<TurnEnd, Option<Tick>> {
        let Self { server, place, .. } = self;
        let line = server.pace().line.borrow();
        let mut due = None;
        if line.is_first_for_kept(*place) {
            if let Some(kept) = server.kept(now) {
                return Ok(TurnEnd::Kept(kept));
            }
            due = server.rested_at(now);
        }
        if line.is_first(*place) {
            if server.is_full() {
                return Ok(TurnEnd::Connect);
            }
            match server.pace().take(now) {
                Ok(()) => return Ok(TurnEnd::Connect),
                Err(at) => due = Some(due.map_or(at, |due| due.min(at))),
            }
        }
        Err(due)
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        let pace = self.server.pace();
        let mut line = pace.line.borrow_mut();
        line.leave(self.place, self.is_served);
        pace.is_kept_wanted.set(line.wants_kept());
        line.wake_first();
    }
}
