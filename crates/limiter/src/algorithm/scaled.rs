//! A limit under pressure: the same algorithm with a share of its numbers.

use super::Algorithm;
use super::pace::Pace;
use crate::quota::Rate;

/// All of a limit, in basis points.
pub const FULL_SCALE: u32 = 10_000;

/// A share of a number, rounded down, but at least 1: a limit never refuses everything.
pub(crate) fn share_of(number: u64, scale: u32) -> u64 {
    let share = u128::from(number) * u128::from(scale.min(FULL_SCALE)) / u128::from(FULL_SCALE);
    u64::try_from(share).unwrap_or(number).max(1)
}

fn rates_of(rates: &[Rate], scale: u32) -> Vec<Rate> {
    rates.iter().map(|rate| Rate::new(share_of(rate.limit(), scale), rate.window()).unwrap_or(*rate)).collect()
}

/// A burst that does not take longer to come back than any may.
fn burst_of(burst: u64, scale: u32, rates: &[Rate]) -> u64 {
    let most = rates.iter().map(|rate| Pace::new(*rate).largest()).min().unwrap_or(burst);
    share_of(burst, scale).min(most)
}

impl Algorithm {
    /// The same with this share of its numbers, in basis points: rates, bursts, what may wait or be in flight. Each is rounded
    /// down, but never below 1; windows and slots stay.
    #[must_use]
    pub fn scaled(&self, scale: u32) -> Self {
        if scale >= FULL_SCALE {
            return self.clone();
        }
        let rates = rates_of(self.rates(), scale);
        let mut scaled = self.clone();
        match &mut scaled {
            Self::TimerWheel(own) => own.rates = rates,
            Self::TokenBucket(own) => {
                own.burst = own.burst.map(|burst| burst_of(burst, scale, &rates));
                own.rates = rates;
            }
            Self::Gcra(own) => {
                own.burst = burst_of(own.burst, scale, &rates);
                own.rates = rates;
            }
            Self::FixedWindow(own) => own.rates = rates,
            Self::SlidingWindow(own) => {
                own.slot_limit = own.slot_limit.map(|limit| share_of(limit, scale));
                own.rates = rates;
            }
            Self::SlidingCounter(own) => own.rates = rates,
            Self::LeakyBucket(own) => {
                own.max_waiting = share_of(own.max_waiting, scale);
                own.rates = rates;
            }
            Self::SlidingLog(own) => own.rates = rates,
            Self::SmoothBursty(own) => own.rates = rates,
            Self::WarmUp(own) => own.rates = rates,
            Self::Concurrency(own) => own.max_in_flight = share_of(own.max_in_flight, scale),
        }
        scaled
    }
}
