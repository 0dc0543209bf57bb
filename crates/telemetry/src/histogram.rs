use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_time::Span;

/// Upper ends of the buckets but the last, which has none; each belongs to its bucket.
const BOUNDS: [(Span, &str); BUCKETS - 1] = [
    (Span::from_nanos(500_000), "0.0005"),
    (Span::from_millis(1), "0.001"),
    (Span::from_nanos(2_500_000), "0.0025"),
    (Span::from_millis(5), "0.005"),
    (Span::from_millis(10), "0.01"),
    (Span::from_millis(25), "0.025"),
    (Span::from_millis(50), "0.05"),
    (Span::from_millis(100), "0.1"),
    (Span::from_millis(250), "0.25"),
    (Span::from_millis(500), "0.5"),
    (Span::from_secs(1), "1"),
    (Span::from_millis(2_500), "2.5"),
    (Span::from_secs(5), "5"),
    (Span::from_secs(10), "10"),
    (Span::from_secs(30), "30"),
    (Span::from_secs(60), "60"),
];

pub(super) const BUCKETS: usize = 17;

/// How long things took, as one thread sees it; the same terms as [`Counter`](super::Counter).
#[derive(Debug)]
pub struct Histogram {
    cell: Arc<HistogramCell>,
    one_writer: PhantomData<Cell<()>>,
}

#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct HistogramCell {
    counts: [AtomicU64; BUCKETS],
    /// Seconds, as the bits of an `f64`: nanoseconds in 64 bits would wrap within weeks under ten thousand at a time.
    sum: AtomicU64,
}

/// The sums of cells.
#[derive(Clone, Debug, Default)]
pub(super) struct Totals {
    pub(super) counts: [u64; BUCKETS],
    pub(super) sum_seconds: f64,
}

impl Histogram {
    pub(super) fn new(cell: Arc<HistogramCell>) -> Self {
        Self { cell, one_writer: PhantomData }
    }

    /// Counts one thing that took this long.
    #[inline]
    pub fn observe(&self, took: Span) {
        let bucket = BOUNDS.partition_point(|(bound, _)| *bound < took);
        let count = &self.cell.counts[bucket];
        count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        let sum = f64::from_bits(self.cell.sum.load(Ordering::Relaxed)) + took.as_nanos() as f64 / 1e9;
        self.cell.sum.store(sum.to_bits(), Ordering::Relaxed);
    }
}

impl Totals {
    pub(super) fn add(&mut self, cell: &HistogramCell) {
        for (total, count) in self.counts.iter_mut().zip(&cell.counts) {
            *total = total.wrapping_add(count.load(Ordering::Relaxed));
        }
        self.sum_seconds += f64::from_bits(cell.sum.load(Ordering::Relaxed));
    }
}

/// The `le` label of each bucket.
pub(super) fn bounds() -> impl Iterator<Item = &'static str> {
    BOUNDS.iter().map(|(_, text)| *text).chain(["+Inf"])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(observed: &[Span]) -> Totals {
        let cell = Arc::new(HistogramCell::default());
        let histogram = Histogram::new(Arc::clone(&cell));
        for took in observed {
            histogram.observe(*took);
        }
        let mut totals = Totals::default();
        totals.add(&cell);
        totals
    }

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        for (bucket, (bound, text)) in BOUNDS.iter().enumerate() {
            let next = Span::from_nanos(bound.as_nanos() + 1);
            let counts = totals(&[*bound, next]).counts;
            assert_eq!((counts[bucket], counts[bucket + 1]), (1, 1), "{text}");
            assert_eq!(text.parse::<f64>().map(|seconds| (seconds * 1e9) as u64), Ok(bound.as_nanos()));
        }
        assert_eq!(totals(&[Span::ZERO]).counts[0], 1);
        assert_eq!(totals(&[Span::MAX]).counts[BUCKETS - 1], 1);
    }

    #[test]
    fn the_sum_is_in_seconds() {
        let sum = totals(&[Span::from_millis(1_500), Span::from_millis(250)]).sum_seconds;
        assert!((sum - 1.75).abs() < 1e-9, "{sum}");
    }
}
