//! How fast one worker connects to one server.
//!
//! A client that is refused quickly comes again quickly, and a client that takes its requests back as soon as they are under way
//! makes the gateway open a connection for each: what that costs is bounded here, whoever is to blame. `line` says
//! which request gets a turn first.

use sluicegate_time::{Span, Tick};

/// So much of a rate may come at once, in time: what a short wait or a burst of clients needs.
const AT_ONCE: Span = Span::from_millis(100);

/// How often something may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectRate {
    /// From one to the next.
    pub every: Span,
}

/// Turns at a rate, without a clock of its own.
#[derive(Debug)]
pub struct Turns {
    rate: ConnectRate,
    /// When all turns that were taken would have been over, had they come one by one.
    over_at: Tick,
}

impl ConnectRate {
    /// So many in so long.
    pub fn new(count: u64, time: Span) -> Self {
        Self { every: Span::from_nanos((time.as_nanos() / count.max(1)).max(1)) }
    }
}

impl Turns {
    /// None taken.
    pub fn new(rate: ConnectRate) -> Self {
        Self { rate, over_at: Tick::ZERO }
    }

    /// Takes a turn, or says when there is one.
    pub fn take(&mut self, now: Tick) -> Result<(), Tick> {
        let over_at = self.over_at.max(now);
        let ahead = Span::from_nanos(AT_ONCE.as_nanos().saturating_sub(self.rate.every.as_nanos()));
        if over_at.since(now) > ahead {
            return Err(over_at - ahead);
        }
        self.over_at = over_at + self.rate.every;
        Ok(())
    }

    /// The rate from now on. As many turns as are not over yet are not over then.
    pub fn set_rate(&mut self, rate: ConnectRate, now: Tick) {
        let ahead = u128::from(self.over_at.since(now).as_nanos());
        let ahead = ahead * u128::from(rate.every.as_nanos()) / u128::from(self.rate.every.as_nanos());
        self.over_at = now + Span::from_nanos(u64::try_from(ahead).unwrap_or(u64::MAX));
        self.rate = rate;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Span = Span::from_secs(1);

    fn at(millis: u64) -> Tick {
        Tick::ZERO + Span::from_secs(100) + Span::from_millis(millis)
    }

    fn taken(turns: &mut Turns, now: Tick) -> usize {
        (0..10_000).take_while(|_| turns.take(now).is_ok()).count()
    }

    #[test]
    fn a_tenth_of_a_second_may_come_at_once_and_then_one_by_one() {
        let rate = ConnectRate::new(2_000, SECOND);
        let mut turns = Turns::new(rate);
        assert_eq!(rate.every, Span::from_nanos(500_000));
        assert_eq!(taken(&mut turns, at(0)), 200);
        assert_eq!(turns.take(at(0)), Err(at(0) + rate.every));
        assert_eq!(taken(&mut turns, at(0) + rate.every), 1);
        assert_eq!(taken(&mut turns, at(10)), 19, "as many as the time has room for");
        assert_eq!(taken(&mut turns, at(60_000)), 200, "rest is no credit beyond that");
        let in_a_second: usize = (60_000..61_000).map(|millis| taken(&mut turns, at(millis))).sum();
        assert_eq!(in_a_second, 1_998, "the last millisecond of it is not over");
    }

    #[test]
    fn a_slow_rate_has_its_turns_singly() {
        let mut turns = Turns::new(ConnectRate::new(2, SECOND));
        assert_eq!(taken(&mut turns, at(0)), 1);
        assert_eq!(turns.take(at(499)), Err(at(500)));
        assert_eq!(taken(&mut turns, at(500)), 1);
        assert_eq!(turns.take(at(500)), Err(at(1_000)));
    }

    #[test]
    fn a_change_of_the_rate_holds_for_the_turns_that_were_taken_too() {
        let (slow, fast) = (ConnectRate::new(1, Span::from_secs(60)), ConnectRate::new(1_000, SECOND));
        let mut turns = Turns::new(slow);
        assert_eq!(taken(&mut turns, at(0)), 1);
        assert_eq!(turns.take(at(6_000)), Err(at(60_000)));
        turns.set_rate(fast, at(6_000));
        assert_eq!(turns.over_at, at(6_000) + Span::from_nanos(900_000), "nine tenths of one");
        assert_eq!(taken(&mut turns, at(6_000)), 99);
        turns.set_rate(slow, at(6_099));
        assert_eq!(turns.take(at(6_099)), Err(at(6_099) + Span::from_secs(54)), "nine tenths again");
    }
}
