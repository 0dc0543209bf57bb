use super::gcra::Credit;
use super::pace::{check_burst, checked};
use super::several::{CostOutcome, RateMeter, take_by_steps};
use super::{AlgorithmError, CommitFacts, FitTime, LayoutChange, Moment, RateStanding, in_time};
use crate::quota::Rate;
use sluicegate_time::{Span, Tick};

words! {
    /// How tokens come back into a bucket.
    pub enum Refill default Greedy {
        /// Evenly, to the fraction of a nanosecond.
        Greedy = "greedy",
        /// `L` at once at the end of every `W`, counted from when the first token was taken out of a full bucket.
        Interval = "interval",
    }
}

/// The token bucket: it holds `burst` tokens, starts full, and gets `L` new ones per `W`; a request takes its cost.
///
/// **Promises** never more than `burst + L t / W` in any stretch of `t`, and with [`Refill::Interval`] never more than
/// `burst + L` in any `W`. **Costs** one word a key, 16 bytes with its fingerprint; two where `W / L` is no whole
/// number of nanoseconds, and with `Interval`. **Choose it** for clients that rest and then come in bursts. **Source**:
/// Turner, "New Directions in Communications" (1986). It keeps the instant at which the bucket is full again: no tokens
/// are counted, no fraction of one is dropped, and nothing ticks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    pub(super) rates: Vec<Rate>,
    pub(super) burst: Option<u64>,
    refill: Refill,
}

impl TokenBucket {
    /// A bucket for every one of `rates` (1 to [`MAX_RATES`](crate::MAX_RATES)), all of which hold. `burst`
    /// is what each holds (1 to [`MAX_COUNT`](crate::MAX_COUNT), and refilled within a hundred years);
    /// without it each holds its own `L`.
    pub fn new(rates: &[Rate], burst: Option<u64>, refill: Refill) -> Result<Self, AlgorithmError> {
        let rates = checked(rates)?;
        if let Some(burst) = burst {
            check_burst(&rates, burst)?;
        }
        Ok(Self { rates, burst, refill })
    }

    /// Its rates.
    pub fn rates(&self) -> &[Rate] {
        &self.rates
    }

    /// The tokens that each bucket holds; `None`: its own `L`.
    pub fn burst(&self) -> Option<u64> {
        self.burst
    }

    /// How tokens come back.
    pub fn refill(&self) -> Refill {
        self.refill
    }

    pub(super) fn meters(&self) -> Vec<Bucket> {
        let bucket = |rate: &Rate| {
            let burst = self.burst.unwrap_or(rate.limit());
            match self.refill {
                Refill::Greedy => Bucket::Greedy(Credit::new(*rate, burst)),
                Refill::Interval => Bucket::Interval(Periods { limit: rate.limit(), window: rate.window(), burst }),
            }
        };
        self.rates.iter().map(bucket).collect()
    }
}

/// One rate's bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Bucket {
    Greedy(Credit),
    Interval(Periods),
}

/// Refilled at the end of periods. Two words: when the period began, and how many tokens are missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Periods {
    limit: u64,
    window: Span,
    burst: u64,
}

impl Periods {
    /// When the period at `now` began and what is missing then; a full bucket has no period.
    fn as_of(&self, chunk: &[u64], now: Tick) -> (Tick, u64) {
        let (began, missing) = match *chunk {
            [began, missing, ..] => (Tick::from_nanos(began), missing),
            _ => (now, 0),
        };
        let window = self.window.as_nanos().max(1);
        let periods = now.since(began).as_nanos() / window;
        let missing = missing.saturating_sub(periods.saturating_mul(self.limit));
        (began + Span::from_nanos(periods.saturating_mul(window)), missing)
    }

    fn set(chunk: &mut [u64], began: Tick, missing: u64) {
        for (word, value) in chunk.iter_mut().zip([began.as_nanos(), missing]) {
            *word = value;
        }
    }

    fn room(&self, chunk: &[u64], cost: u64, now: Tick) -> FitTime {
        if cost > self.burst {
            return FitTime::Never { rate: 0 };
        }
        let (began, missing) = self.as_of(chunk, now);
        let periods = missing.saturating_add(cost).saturating_sub(self.burst).div_ceil(self.limit.max(1));
        if periods == 0 {
            return FitTime::Now;
        }
        FitTime::At { at: began + Span::from_nanos(periods.saturating_mul(self.window.as_nanos())), rate: 0 }
    }

    fn commit(&self, chunk: &mut [u64], cost: u64, due: Tick) {
        let (began, missing) = self.as_of(chunk, due);
        let began = if missing == 0 { due } else { began };
        Self::set(chunk, began, missing.saturating_add(cost));
    }

    /// Puts tokens back, but none that the periods since have brought back already. Tokens that the commit left
    /// missing, and that are missing still, may have been put back for others meanwhile. Periods stay where they are.
    fn give_back(&self, chunk: &mut [u64], cost: u64, taken: &CommitFacts, now: Tick) {
        let still_missing = self.as_of(&taken.words, now).1.saturating_sub(taken.given);
        let (began, missing) = self.as_of(chunk, now);
        Self::set(chunk, began, missing.saturating_sub(cost.min(still_missing)));
    }
}

impl RateMeter for Bucket {
    fn words(&self) -> usize {
        match self {
            Self::Greedy(credit) => credit.words(),
            Self::Interval(_) => 2,
        }
    }

    fn quota(&self) -> (u64, Span) {
        match self {
            Self::Greedy(credit) => credit.quota(),
            Self::Interval(periods) => (periods.limit, periods.window),
        }
    }

    #[inline]
    fn largest(&self) -> u64 {
        match self {
            Self::Greedy(credit) => credit.largest(),
            Self::Interval(periods) => periods.burst,
        }
    }

    fn fresh(&self) -> u64 {
        self.largest()
    }

    #[inline]
    fn room(&self, chunk: &[u64], cost: u64, now: Tick) -> FitTime {
        match self {
            Self::Greedy(credit) => credit.room(chunk, cost, now),
            Self::Interval(periods) => periods.room(chunk, cost, now),
        }
    }

    #[inline]
    fn commit(&self, chunk: &mut [u64], cost: u64, moment: Moment) {
        match self {
            Self::Greedy(credit) => credit.commit(chunk, cost, moment),
            Self::Interval(periods) => periods.commit(chunk, cost, moment.due),
        }
    }

    #[allow(clippy::inline_always, reason = "the whole of a check is one run of instructions")]
    #[inline(always)]
    fn take(&self, chunk: &mut [u64], cost: u64, moment: Moment) -> CostOutcome {
        match self {
            Self::Greedy(credit) => credit.take(chunk, cost, moment),
            Self::Interval(_) => take_by_steps(self, chunk, cost, moment),
        }
    }

    fn give_back(&self, chunk: &mut [u64], cost: u64, taken: &CommitFacts, now: Tick) {
        match self {
            Self::Greedy(credit) => credit.give_back(chunk, cost, taken, now),
            Self::Interval(periods) => periods.give_back(chunk, cost, taken, now),
        }
    }

    fn standing(&self, chunk: &[u64], now: Tick) -> RateStanding {
        match self {
            Self::Greedy(credit) => credit.standing(chunk, now),
            Self::Interval(periods) => {
                let remaining = periods.burst.saturating_sub(periods.as_of(chunk, now).1);
                RateStanding::before(remaining, periods.burst, |more| periods.room(chunk, more, now))
            }
        }
    }

    fn is_idle(&self, chunk: &[u64], now: Tick) -> bool {
        match self {
            Self::Greedy(credit) => credit.is_idle(chunk, now),
            Self::Interval(periods) => periods.as_of(chunk, now).1 == 0,
        }
    }

    fn same_moment(&self, a: Tick, b: Tick) -> bool {
        in_time(a, b)
    }

    fn layout_since(&self, old: &Self) -> LayoutChange {
        match (self, old) {
            (Self::Greedy(new), Self::Greedy(old)) => new.layout_since(old),
            (Self::Interval(new), Self::Interval(old)) if new.limit == old.limit && new.window == old.window => {
                LayoutChange::Kept
            }
            _ => LayoutChange::Rescaled,
        }
    }

    fn continues(&self, old: &Self) -> bool {
        self.quota().1 >= old.quota().1
    }

    fn remembering(&self, old: &Self) -> Self {
        match (self, old) {
            (Self::Greedy(new), Self::Greedy(old)) => Self::Greedy(new.remembering(old)),
            (Self::Greedy(new), Self::Interval(old)) => match Rate::new(old.limit, old.window) {
                Ok(rate) => Self::Greedy(new.remembering(&Credit::new(rate, old.burst))),
                Err(_) => self.clone(),
            },
            (Self::Interval(_), _) => self.clone(),
        }
    }

    /// As many tokens stay taken, and of those that come back in periods at most the burst; a period that is over by the new
    /// window ends now.
    fn take_over(&self, old: &Self, from: &[u64], to: &mut [u64], latest: Tick) {
        let (began, missing) = match old {
            Self::Greedy(credit) => (latest, credit.taken(from, latest)),
            Self::Interval(periods) => periods.as_of(from, latest),
        };
        match (self, old) {
            (Self::Greedy(new), Self::Greedy(old)) => new.take_over(old, from, to, latest),
            (Self::Greedy(new), _) => new.set_taken(to, missing, latest),
            (Self::Interval(new), _) => {
                let began = if latest.since(began) >= new.window { latest } else { began };
                Periods::set(to, began, missing.min(new.burst));
            }
        }
    }
}
