use super::pace::{Pace, check_burst, checked};
use super::several::{CostOutcome, RateMeter, take_by_steps};
use super::{AlgorithmError, CommitFacts, FitTime, LayoutChange, Moment, RateStanding, in_time};
use crate::quota::Rate;
use sluicegate_time::{Span, Tick};

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
    pub(super) rates: Vec<Rate>,
    pub(super) burst: u64,
}

impl Gcra {
    /// Every one of `rates` (1 to [`MAX_RATES`](crate::MAX_RATES)) holds, each with this `burst` (1 to
    /// [`MAX_COUNT`](crate::MAX_COUNT), and refilled within a hundred years); without it bursts are of 1.
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
pub(crate) struct Credit {
    pace: Pace,
    burst: u64,
    /// The cost of the whole burst, in parts.
    whole: u128,
    /// The largest burst that there was: so much a key may have taken.
    most: u64,
    /// The longest window that there was: what a key has taken above the burst is kept as far as it drains in that, so that
    /// no key waits longer.
    longest: Span,
    /// The fastest pace of before, where that is faster and keys may have taken more than the burst. By it all that a key has
    /// taken drains besides, in words behind those of the rate itself: a key has room where both have. So a key that had
    /// taken more than the burst of now neither waits longer than it would have then, nor has it forgotten when the burst
    /// grows again.
    past: Option<Pace>,
}

impl Credit {
    pub(super) fn new(rate: Rate, burst: u64) -> Self {
        let pace = Pace::new(rate);
        Self { pace, burst, whole: pace.cost(burst), most: burst, longest: rate.window(), past: None }
    }

    /// The requests that are taken, rounded up.
    pub(super) fn taken(&self, chunk: &[u64], now: Tick) -> u64 {
        let by = |pace: &Pace, chunk: &[u64]| {
            let taken = pace.ahead(chunk, now);
            let whole = pace.requests_in(taken);
            whole + u64::from(pace.cost(whole) < taken)
        };
        let past = self.past_of(chunk).map_or(0, |(pace, chunk)| by(pace, chunk));
        by(&self.pace, self.own(chunk)).max(past)
    }

    /// The part of the burst that is taken, in parts.
    pub(crate) fn missing(&self, chunk: &[u64], now: Tick) -> u128 {
        self.pace.ahead(self.own(chunk), now)
    }

    pub(crate) fn set_missing(&self, chunk: &mut [u64], missing: u128, now: Tick) {
        self.pace.set_ahead(self.split_mut(chunk).0, now, missing);
    }

    /// The parts of so many requests.
    pub(crate) fn parts(&self, cost: u64) -> u128 {
        self.pace.cost(cost)
    }

    /// The parts that come back in so long.
    pub(crate) fn refilled(&self, span: Span) -> u128 {
        self.pace.parts_of(span)
    }

    /// Makes `taken` what is taken.
    pub(super) fn set_taken(&self, chunk: &mut [u64], taken: u64, now: Tick) {
        let (own, past) = self.split_mut(chunk);
        self.pace.set_ahead(own, now, self.pace.cost(taken.min(self.burst)));
        if let Some(pace) = &self.past {
            pace.set_ahead(past, now, pace.cost(taken).min(self.most_kept(pace)));
        }
    }

    /// So much stays taken after a change, where it drains by this pace.
    fn most_kept(&self, pace: &Pace) -> u128 {
        pace.cost(self.burst) - pace.cost(1) + pace.parts_of(self.longest)
    }

    /// The words of the rate itself.
    #[inline]
    fn own<'c>(&self, chunk: &'c [u64]) -> &'c [u64] {
        chunk.get(..self.pace.words()).unwrap_or(chunk)
    }

    /// The pace of before and its words.
    #[inline]
    fn past_of<'c>(&self, chunk: &'c [u64]) -> Option<(&Pace, &'c [u64])> {
        Some((self.past.as_ref()?, chunk.get(self.pace.words()..)?))
    }

    fn split_mut<'c>(&self, chunk: &'c mut [u64]) -> (&'c mut [u64], &'c mut [u64]) {
        let at = self.pace.words().min(chunk.len());
        chunk.split_at_mut(at)
    }

    /// When what is taken by the pace of before leaves room for `cost`, if it has none now.
    #[cold]
    fn past_room(&self, chunk: &[u64], cost: u64, now: Tick) -> Option<Tick> {
        let (pace, chunk) = self.past_of(chunk)?;
        let excess = (pace.ahead(chunk, now) + pace.cost(cost)).saturating_sub(pace.cost(self.burst));
        (excess > 0).then(|| pace.after(now, excess))
    }
}

impl RateMeter for Credit {
    fn words(&self) -> usize {
        self.pace.words() + self.past.map_or(0, |past| past.words())
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
    fn room(&self, chunk: &[u64], cost: u64, now: Tick) -> FitTime {
        if cost > self.burst {
            return FitTime::Never { rate: 0 };
        }
        let taken = self.pace.ahead(self.own(chunk), now) + self.pace.cost(cost);
        let past = if self.past.is_some() { self.past_room(chunk, cost, now) } else { None };
        match (taken.saturating_sub(self.whole), past) {
            (0, None) => FitTime::Now,
            (0, Some(at)) => FitTime::At { at, rate: 0 },
            (excess, past) => FitTime::At { at: self.pace.after(now, excess).max(past.unwrap_or(Tick::ZERO)), rate: 0 },
        }
    }

    #[inline]
    fn commit(&self, chunk: &mut [u64], cost: u64, moment: Moment) {
        let (own, past) = self.split_mut(chunk);
        let taken = self.pace.ahead(own, moment.due) + self.pace.cost(cost);
        self.pace.set_ahead(own, moment.due, taken);
        if let Some(pace) = &self.past {
            pace.set_ahead(past, moment.due, pace.ahead(past, moment.due) + pace.cost(cost));
        }
    }

    #[allow(clippy::inline_always, reason = "the whole of a check is one run of instructions")]
    #[inline(always)]
    fn take(&self, chunk: &mut [u64], cost: u64, moment: Moment) -> CostOutcome {
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
                    return CostOutcome { room: FitTime::Now, standing: RateStanding { remaining, grows_at } };
                }
                let room = FitTime::At { at: now + Span::from_nanos(taken - whole), rate: 0 };
                let standing = if cost == 1 { RateStanding::none_until(room) } else { self.standing(&[*until], now) };
                CostOutcome { room, standing }
            }
            (chunk, _) => take_by_steps(self, chunk, cost, moment),
        }
    }

    fn give_back(&self, chunk: &mut [u64], cost: u64, taken: &CommitFacts, now: Tick) {
        let Some(pace) = &self.past else {
            return self.pace.move_back(chunk, cost, taken, 0, now);
        };
        let (own, past) = self.split_mut(chunk);
        let [first, second] = taken.words;
        if own.len() == 1 {
            self.pace.move_back(own, cost, &CommitFacts { words: [first, 0], ..*taken }, 0, now);
        } else {
            self.pace.move_back(own, cost, taken, 0, now);
        }
        // Where the words are more the commit's are not known: it stays taken, which is stricter.
        if own.len() == 1 && past.len() == 1 {
            pace.move_back(past, cost, &CommitFacts { words: [second, 0], ..*taken }, 0, now);
        }
    }

    #[inline]
    fn standing(&self, chunk: &[u64], now: Tick) -> RateStanding {
        let free = self.whole.saturating_sub(self.pace.ahead(self.own(chunk), now));
        let mut remaining = self.pace.requests_in(free);
        if let Some((pace, past)) = self.past_of(chunk) {
            let free = pace.cost(self.burst).saturating_sub(pace.ahead(past, now));
            remaining = remaining.min(pace.requests_in(free));
        }
        RateStanding::before(remaining, self.burst, |more| self.room(chunk, more, now))
    }

    fn is_idle(&self, chunk: &[u64], now: Tick) -> bool {
        self.pace.ahead(self.own(chunk), now) == 0
            && self.past_of(chunk).is_none_or(|(pace, past)| pace.ahead(past, now) == 0)
    }

    fn same_moment(&self, a: Tick, b: Tick) -> bool {
        in_time(a, b)
    }

    fn layout_since(&self, old: &Self) -> LayoutChange {
        let same_past = match (&self.past, &old.past) {
            (None, None) => true,
            (Some(new), Some(old)) => new.same_steps(old),
            _ => false,
        };
        // Above a burst that was lowered much.
        let is_too_much = |pace: &Pace| pace.cost(old.most).min(old.most_kept(pace)) > self.most_kept(pace);
        let forgets = is_too_much(&self.pace) || self.past.as_ref().is_some_and(is_too_much);
        if self.pace.same_steps(&old.pace) && same_past && !forgets {
            LayoutChange::Kept
        } else {
            LayoutChange::Rescaled
        }
    }

    /// A bucket knows how much was taken, and not when: so it says nothing of a shorter window.
    fn continues(&self, old: &Self) -> bool {
        self.quota().1 >= old.quota().1
    }

    fn remembering(&self, old: &Self) -> Self {
        let fastest = old.past.unwrap_or(old.pace);
        let matters = fastest.is_faster_than(&self.pace) && old.most > self.burst;
        let (most, longest) = (self.burst.max(old.most), self.longest.max(old.longest));
        Self { most, longest, past: matters.then_some(fastest), ..self.clone() }
    }

    /// As many requests stay taken. Those above the burst drain at the faster of the paces, and in the longest window; where
    /// the pace of before is not remembered they are forgotten.
    fn take_over(&self, old: &Self, from: &[u64], to: &mut [u64], latest: Tick) {
        let taken_by = |pace: &Pace| {
            let own = pace.convert(&old.pace, old.pace.ahead(old.own(from), latest), true);
            let past = old.past_of(from).map_or(0, |(was, past)| pace.convert(was, was.ahead(past, latest), true));
            own.max(past).min(self.most_kept(pace))
        };
        let taken = taken_by(&self.pace);
        let was_faster = |pace: &Pace| pace.is_faster_than(&self.pace);
        let is_slower = was_faster(&old.pace) || old.past.as_ref().is_some_and(was_faster);
        let (own, past) = self.split_mut(to);
        self.pace.set_ahead(own, latest, if is_slower { taken.min(self.whole) } else { taken });
        if let Some(pace) = &self.past {
            pace.set_ahead(past, latest, taken_by(pace));
        }
    }
}
