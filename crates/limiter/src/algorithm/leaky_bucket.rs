use super::AlgorithmError;
use super::pace::checked;
use super::turns::Turns;
use crate::quota::{MAX_DEFAULT_QUEUE, Rate};
use sluicegate_time::Span;

/// The leaky bucket: requests queue up and leave one every `W / L`, as water drips out of a bucket.
///
/// **Promises** that two requests of a key leave at least `W / L` apart (a request of cost `c` keeps the next `c`
/// times as long), and that no more than `max_waiting` wait. It waits by itself: `max_wait` is 1 s if not said
/// otherwise. A waiter's successor is timed from when it was due, not from when its worker's timer rang (up to 2 ms
/// later), so the pace does not drift. **Costs** one word a key, 16 bytes with its fingerprint; two where `W / L` is no
/// whole number of nanoseconds; and its waiters. **Choose it** before something that must be fed evenly. **Source**:
/// Turner (1986) as a queue, as nginx's `limit_req` has it; where the published queues let one waiter too many in
/// (`>` for `>=`), here it is strictly `max_waiting`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeakyBucket {
    pub(super) rates: Vec<Rate>,
    pub(super) max_waiting: u64,
}

impl LeakyBucket {
    /// Every one of `rates` (1 to [`MAX_RATES`](crate::MAX_RATES)) holds. `max_waiting` is how many may wait
    /// per key, at least 1; without it the first rate's `L`, at most [`MAX_DEFAULT_QUEUE`].
    pub fn new(rates: &[Rate], max_waiting: Option<u64>) -> Result<Self, AlgorithmError> {
        let rates = checked(rates)?;
        let max_waiting = max_waiting.or(rates.first().map(|rate| rate.limit().min(MAX_DEFAULT_QUEUE))).unwrap_or(1);
        if max_waiting == 0 {
            return Err(AlgorithmError::NobodyWaits);
        }
        Ok(Self { rates, max_waiting })
    }

    /// Its rates.
    pub fn rates(&self) -> &[Rate] {
        &self.rates
    }

    /// How many may wait per key.
    pub fn max_waiting(&self) -> u64 {
        self.max_waiting
    }

    pub(super) fn meters(&self) -> Vec<Turns> {
        self.rates.iter().map(|rate| Turns::new(*rate, Span::ZERO)).collect()
    }
}
