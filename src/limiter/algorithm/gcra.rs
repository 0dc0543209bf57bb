use super::pace::{Pace, check_burst, checked};
use super::several::{Answer, Meter, take_by_steps};
use super::{AlgorithmError, Layout, Moment, Room, Standing, Taken, in_time};
use crate::limiter::quota::Rate;
use crate::time::{Span, Tick};

/// The generic cell rate algorithm: one instant per key, the *theoretical arrival time* up to which it has used its
/// share.
///
/// **Promises** that a request of cost `c` passes only when the share it uses up, with what was used before, is at
/// most `burst` requests ahead of the clock: never more than `burst + L t / W` in any stretch of `t`. With a burst of
/// 1 requests are at least `W / L` apart. **Costs** one word a key, 16 bytes with its fingerprint; two where `W / L`
/// is no whole number of nanoseconds. **Choose it** for even spacing and for very many keys. **Source**: ITU-T I.371,
/// the virtual scheduling algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gcra {
    rates: Vec<Rate>,
    burst: u64,
}

impl Gcra {
    /// Every one of `rates` (1 to [`MAX_RATES`](crate::limiter::MAX_RATES)) holds, each with this `burst` (1 to
    /// [`MAX_COUNT`](crate::limiter::MAX_COUNT), and refilled within a hundred years); without it bursts are of 1.
    pub fn new(rates: &[Rate], burst: Option<u64>) -> Result<Self, AlgorithmError> {
        let (rates, burst) = (checked(rates)?, burst.unwrap_or(1));
        check_burst(&rates, burst)?;
        Ok(Self { rates, burst })
    }

    /// Its rates.
    pub fn rates(&self) -> &[Rate] {
        &self.rates
    }

    /// How many requests pass at once.
    pub fn burst(&self) -> u64 {
        self.burst
    }

    pub(super) fn meters(&self) -> Vec<Credit> {
        self.rates.iter().map(|rate| Credit::new(*rate, self.burst)).collect()
    }
}

/// One rate with a burst: the instant at which the burst will be whole again, if nobody comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::limiter) struct Credit {
    pace: Pace,
    burst: u64,
    /// The cost of the whole burst, in parts.
    whole: u128,
}

impl Credit {
    pub(super) fn new(rate: Rate, burst: u64) -> Self {
        let pace = Pace::new(rate);
        Self { pace, burst, whole: pace.cost(burst) }
    }

    /// The part of the burst that is taken, in requests, rounded up.
    pub(super) fn taken(&self, chunk: &[u64], now: Tick) -> u64 {
        let taken = self.pace.ahead(chunk, now);
        let whole = self.pace.requests_in(taken);
        whole + u64::from(self.pace.cost(whole) < taken)
    }

    /// The part of the burst that is taken, in parts.
    pub(in crate::limiter) fn missing(&self, chunk: &[u64], now: Tick) -> u128 {
        self.pace.ahead(chunk, now)
    }

    pub(in crate::limiter) fn set_missing(&self, chunk: &mut [u64], missing: u128, now: Tick) {
        self.pace.set_ahead(chunk, now, missing);
    }

    /// The parts of so many requests.
    pub(in crate::limiter) fn parts(&self, cost: u64) -> u128 {
        self.pace.cost(cost)
    }

    /// The parts that come back in so long.
    pub(in crate::limiter) fn refilled(&self, span: Span) -> u128 {
        self.pace.parts_of(span)
    }

    /// Makes `taken` what is taken of the burst, or all of it.
    pub(super) fn set_taken(&self, chunk: &mut [u64], taken: u64, now: Tick) {
        self.pace.set_ahead(chunk, now, self.pace.cost(taken.min(self.burst)));
    }
}

impl Meter for Credit {
    fn words(&self) -> usize {
        self.pace.words()
    }

    fn quota(&self) -> (u64, Span) {
        self.pace.quota()
    }

    #[inline]
    fn largest(&self) -> u64 {
        self.burst
    }

    fn fresh(&self) -> u64 {
        self.burst
    }

    #[inline]
    fn room(&self, chunk: &[u64], cost: u64, now: Tick) -> Room {
        if cost > self.burst {
            return Room::Never { rate: 0 };
        }
        let taken = self.pace.ahead(chunk, now) + self.pace.cost(cost);
        match taken.saturating_sub(self.whole) {
            0 => Room::Now,
            excess => Room::At { at: self.pace.after(now, excess), rate: 0 },
        }
    }

    #[inline]
    fn commit(&self, chunk: &mut [u64], cost: u64, moment: Moment) {
        let taken = self.pace.ahead(chunk, moment.due) + self.pace.cost(cost);
        self.pace.set_ahead(chunk, moment.due, taken);
    }

    #[allow(clippy::inline_always, reason = "the whole of a check is one run of instructions")]
    #[inline(always)]
    fn take(&self, chunk: &mut [u64], cost: u64, moment: Moment) -> Answer {
        match (chunk, self.pace.nanos()) {
            // What nearly all are, in numbers of one word: a burst takes a hundred years at most.
            ([until], Some(num)) if moment.due == moment.now && cost <= self.burst => {
                let (now, whole) = (moment.now, self.whole as u64);
                let taken = Tick::from_nanos(*until).since(now).as_nanos().saturating_add(cost * num.get());
                if let Some(free) = whole.checked_sub(taken) {
                    *until = (now + Span::from_nanos(taken)).as_nanos();
                    let (remaining, rest) = num.divide(free);
                    let grows_at =
                        if remaining < self.burst { Some(now + Span::from_nanos(num.get() - rest)) } else { None };
                    return Answer { room: Room::Now, standing: Standing { remaining, grows_at } };
                }
                let room = Room::At { at: now + Span::from_nanos(taken - whole), rate: 0 };
                let standing = if cost == 1 { Standing::none_until(room) } else { self.standing(&[*until], now) };
                Answer { room, standing }
            }
            (chunk, _) => take_by_steps(self, chunk, cost, moment),
        }
    }

    fn give_back(&self, chunk: &mut [u64], cost: u64, taken: &Taken, now: Tick) {
        self.pace.move_back(chunk, cost, taken, 0, now);
    }

    #[inline]
    fn standing(&self, chunk: &[u64], now: Tick) -> Standing {
        let free = self.whole.saturating_sub(self.pace.ahead(chunk, now));
        let remaining = self.pace.requests_in(free);
        Standing::before(remaining, self.burst, |more| self.room(chunk, more, now))
    }

    fn is_idle(&self, chunk: &[u64], now: Tick) -> bool {
        self.pace.ahead(chunk, now) == 0
    }

    fn same_moment(&self, a: Tick, b: Tick) -> bool {
        in_time(a, b)
    }

    fn layout_since(&self, old: &Self) -> Layout {
        if self.pace.same_steps(&old.pace) { Layout::Kept } else { Layout::Rescaled }
    }

    /// As many requests stay taken, at most the burst.
    fn take_over(&self, old: &Self, from: &[u64], to: &mut [u64], latest: Tick) {
        let taken = self.pace.convert(&old.pace, old.pace.ahead(from, latest), true);
        self.pace.set_ahead(to, latest, taken.min(self.whole));
    }
}
