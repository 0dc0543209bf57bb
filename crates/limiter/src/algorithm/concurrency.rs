use super::several::RateMeter;
use super::{AlgorithmError, FitTime, LayoutChange, Moment, RateStanding};
use crate::quota::MAX_COUNT;
use sluicegate_time::{Span, Tick};

/// So many at once: a request takes a permit, and gives it back when it has ended.
///
/// **Promises** that the costs of a key's requests in flight are never above `max_in_flight` together. A request is in
/// flight until its [`Permit`](crate::Permit) is dropped: for the proxy, when the last byte of the response is
/// sent or the client is gone. A live key that is forgotten, because the table is full or the limit starts afresh, forgets its permits too,
/// and giving them back changes nothing. **Costs** three words a key, 32 bytes with its fingerprint, and one allocation
/// a request for its permit. **Choose it** for slow requests, where what counts is how many run, not how many come.
/// **Source**: Dijkstra's counting semaphore (1965), first come first served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Concurrency {
    pub(super) max_in_flight: u64,
}

impl Concurrency {
    /// At most `max_in_flight` (1 to [`MAX_COUNT`]) at once.
    pub fn new(max_in_flight: u64) -> Result<Self, AlgorithmError> {
        if !(1..=MAX_COUNT).contains(&max_in_flight) {
            return Err(AlgorithmError::InFlight { given: max_in_flight });
        }
        Ok(Self { max_in_flight })
    }

    /// How many may be in flight.
    pub fn max_in_flight(&self) -> u64 {
        self.max_in_flight
    }

    pub(super) fn meters(&self) -> Vec<Permits> {
        vec![Permits { max: self.max_in_flight }]
    }
}

/// Three words: how many are in flight, since which era, and when the last one was let in.
///
/// The era tells the permits of this record from those of one that was forgotten: they are not given back here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Permits {
    max: u64,
}

impl Permits {
    fn in_flight(chunk: &[u64]) -> u64 {
        chunk.first().copied().unwrap_or(0)
    }
}

impl RateMeter for Permits {
    fn words(&self) -> usize {
        3
    }

    fn quota(&self) -> (u64, Span) {
        (self.max, Span::ZERO)
    }

    #[inline]
    fn largest(&self) -> u64 {
        self.max
    }

    fn fresh(&self) -> u64 {
        self.max
    }

    #[inline]
    fn room(&self, chunk: &[u64], cost: u64, _: Tick) -> FitTime {
        if cost > self.max {
            FitTime::Never { rate: 0 }
        } else if Self::in_flight(chunk).saturating_add(cost) <= self.max {
            FitTime::Now
        } else {
            FitTime::OnRelease { rate: 0 }
        }
    }

    #[inline]
    fn commit(&self, chunk: &mut [u64], cost: u64, moment: Moment) {
        if let [in_flight, era, last, ..] = chunk {
            if *in_flight == 0 {
                *era = moment.era;
            }
            *in_flight = in_flight.saturating_add(cost);
            *last = moment.now.as_nanos();
        }
    }

    fn era(&self, chunk: &[u64]) -> u64 {
        chunk.get(1).copied().unwrap_or(0)
    }

    fn release(&self, chunk: &mut [u64], cost: u64, era: u64) {
        if let [in_flight, since, ..] = chunk
            && *since == era
        {
            *in_flight = in_flight.saturating_sub(cost);
        }
    }

    /// When it grows nobody knows.
    fn standing(&self, chunk: &[u64], _: Tick) -> RateStanding {
        RateStanding { remaining: self.max.saturating_sub(Self::in_flight(chunk)), grows_at: None }
    }

    fn is_idle(&self, chunk: &[u64], _: Tick) -> bool {
        Self::in_flight(chunk) == 0
    }

    fn recency(&self, chunk: &[u64]) -> u64 {
        chunk.get(2).copied().unwrap_or(0)
    }

    fn same_moment(&self, _: Tick, _: Tick) -> bool {
        true
    }

    fn layout_since(&self, _: &Self) -> LayoutChange {
        LayoutChange::Kept
    }

    fn take_over(&self, _: &Self, from: &[u64], to: &mut [u64], _: Tick) {
        for (word, value) in to.iter_mut().zip(from) {
            *word = *value;
        }
    }
}
