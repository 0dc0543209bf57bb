use super::AlgorithmError;
use super::pace::checked;
use super::turns::Turns;
use crate::quota::Rate;
use sluicegate_time::Span;

/// Guava's smooth bursty limiter: a big request passes now, and the next one pays for it by waiting. Time in which
/// nobody came is saved up and lets as many pass at once.
///
/// **Promises** `L / W` in the long run, after what is saved up in at most `max_burst` of rest. A request passes when
/// it is its turn whatever it costs; the turn after it comes as much later as it cost more than was saved up. It waits
/// by itself: `max_wait` is 1 s if not said otherwise. Turns are timed from when a request was due, not from when its
/// worker's timer rang (up to 2 ms later). A key never seen has saved nothing. **Costs** one word a key, 16 bytes with
/// its fingerprint; two where `W / L` is no whole number of nanoseconds. **Choose it** for bandwidth and other costs
/// that are known only when they are large. **Source**: Guava, `SmoothRateLimiter.SmoothBursty`; but a key that is
/// forgotten when it has saved all it can comes back with nothing, and another rate keeps the number of permits, where
/// Guava scales it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmoothBursty {
    pub(super) rates: Vec<Rate>,
    max_burst: Span,
}

const MAX_BURST: Span = Span::from_secs(1);
/// The longest rest that is saved up, a day: who rests longer comes back with the burst of a day.
const LONGEST_BURST: Span = Span::from_secs(86_400);

impl SmoothBursty {
    /// Every one of `rates` (1 to [`MAX_RATES`](crate::MAX_RATES)) holds. `max_burst` is how much rest is
    /// saved up, at most a day; without it a second.
    pub fn new(rates: &[Rate], max_burst: Option<Span>) -> Result<Self, AlgorithmError> {
        let (rates, max_burst) = (checked(rates)?, max_burst.unwrap_or(MAX_BURST));
        if max_burst > LONGEST_BURST {
            return Err(AlgorithmError::BurstTooLong { longest: LONGEST_BURST });
        }
        Ok(Self { rates, max_burst })
    }

    /// Its rates.
    pub fn rates(&self) -> &[Rate] {
        &self.rates
    }

    /// How much rest is saved up.
    pub fn max_burst(&self) -> Span {
        self.max_burst
    }

    pub(super) fn meters(&self) -> Vec<Turns> {
        self.rates.iter().map(|rate| Turns::new(*rate, self.max_burst)).collect()
    }
}
