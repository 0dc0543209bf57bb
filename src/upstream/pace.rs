//! How fast one worker connects to one server.
//!
//! A client that is refused quickly comes again quickly, and a client that takes its requests back as soon as they are under way
//! makes the gateway open a connection for each: what that costs is bounded here, whoever is to blame.

use std::cell::{Cell, RefCell};

use tokio::sync::Semaphore;

use crate::telemetry::Counter;
use crate::time::{Clock, Span, Tick};

/// So much of a rate may come at once, in time: what a short wait or a burst of clients needs.
const AT_ONCE: Span = Span::from_millis(100);

/// How often something may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectRate {
    /// From one to the next.
    pub every: Span,
}

/// Turns at a rate, without a clock of its own.
#[derive(Debug, Default)]
struct Turns {
    /// When all turns that were taken would have been over, had they come one by one.
    over_at: Tick,
}

/// Gives turns to connect, one by one and in the order in which they are asked for.
pub struct Pace {
    rate: Cell<ConnectRate>,
    turns: RefCell<Turns>,
    /// The one that waits first; the others wait for that.
    first: Semaphore,
    clock: Clock,
    waits: Counter,
}

impl ConnectRate {
    /// So many in so long.
    pub fn new(count: u64, time: Span) -> Self {
        Self { every: Span::from_nanos((time.as_nanos() / count.max(1)).max(1)) }
    }
}

impl Turns {
    /// Takes a turn, or says when there is one.
    fn take(&mut self, rate: ConnectRate, now: Tick) -> Result<(), Tick> {
        let over_at = self.over_at.max(now);
        let ahead = Span::from_nanos(AT_ONCE.as_nanos().saturating_sub(rate.every.as_nanos()));
        if over_at.since(now) > ahead {
            return Err(over_at - ahead);
        }
        self.over_at = over_at + rate.every;
        Ok(())
    }
}

impl Pace {
    /// A pace of `rate`. `waits` counts those who had to wait.
    pub fn new(rate: ConnectRate, clock: Clock, waits: Counter) -> Self {
        Self { rate: Cell::new(rate), turns: RefCell::default(), first: Semaphore::const_new(1), clock, waits }
    }

    /// The rate from now on.
    pub fn set_rate(&self, rate: ConnectRate) {
        self.rate.set(rate);
    }

    /// Waits for a turn to connect. A caller that stops waiting has taken none.
    pub async fn turn(&self) {
        if self.first.available_permits() > 0 && self.take().is_ok() {
            return;
        }
        self.waits.inc();
        // Nobody closes it.
        let _first = self.first.acquire().await;
        while let Err(at) = self.take() {
            tokio::time::sleep(at.since(self.clock.now()).into()).await;
        }
    }

    fn take(&self) -> Result<(), Tick> {
        self.turns.borrow_mut().take(self.rate.get(), self.clock.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Tick {
        Tick::ZERO + Span::from_secs(100) + Span::from_millis(millis)
    }

    fn taken(turns: &mut Turns, rate: ConnectRate, now: Tick) -> usize {
        (0..10_000).take_while(|_| turns.take(rate, now).is_ok()).count()
    }

    #[test]
    fn a_tenth_of_a_second_may_come_at_once_and_then_one_by_one() {
        let (rate, mut turns) = (ConnectRate::new(2_000, Span::from_secs(1)), Turns::default());
        assert_eq!(rate.every, Span::from_nanos(500_000));
        assert_eq!(taken(&mut turns, rate, at(0)), 200);
        assert_eq!(turns.take(rate, at(0)), Err(at(0) + rate.every));
        assert_eq!(taken(&mut turns, rate, at(0) + rate.every), 1);
        assert_eq!(taken(&mut turns, rate, at(10)), 19, "as many as the time has room for");
        assert_eq!(taken(&mut turns, rate, at(60_000)), 200, "rest is no credit beyond that");
        let in_a_second: usize = (60_000..61_000).map(|millis| taken(&mut turns, rate, at(millis))).sum();
        assert_eq!(in_a_second, 1_998, "the last millisecond of it is not over");
    }

    #[test]
    fn a_slow_rate_has_its_turns_singly() {
        let (rate, mut turns) = (ConnectRate::new(2, Span::from_secs(1)), Turns::default());
        assert_eq!(taken(&mut turns, rate, at(0)), 1);
        assert_eq!(turns.take(rate, at(499)), Err(at(500)));
        assert_eq!(taken(&mut turns, rate, at(500)), 1);
        assert_eq!(turns.take(rate, at(500)), Err(at(1_000)));
    }

    #[test]
    fn a_faster_rate_holds_at_once() {
        let mut turns = Turns::default();
        let (slow, fast) = (ConnectRate::new(1, Span::from_secs(60)), ConnectRate::new(1_000, Span::from_secs(1)));
        assert_eq!(taken(&mut turns, slow, at(0)), 1);
        assert_eq!(turns.take(slow, at(1)), Err(at(60_000)));
        assert_eq!(turns.take(fast, at(1)), Err(at(60_000) - Span::from_millis(99)));
    }
}
