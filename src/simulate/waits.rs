//! How long requests waited.

use crate::time::Span;

/// Bits of a length that a bucket keeps below its highest: a quantile is at most one 64th above what was waited.
const BITS: u32 = 6;

/// A histogram of lengths in microseconds: buckets of one width up to 128, and 64 for each power of two above, as in HDR
/// Histogram (Tene).
#[derive(Clone, Debug, Default)]
pub(super) struct Waits {
    /// Grows to the longest.
    counts: Vec<u64>,
    total: u64,
    longest: Span,
}

impl Waits {
    pub(super) fn add(&mut self, span: Span) {
        let bucket = bucket_of(span.as_nanos() / 1_000);
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        self.total += 1;
        self.longest = self.longest.max(span);
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    pub(super) fn longest(&self) -> Span {
        self.longest
    }

    /// So many of a hundred waited no longer; zero if nobody waited.
    pub(super) fn percentile(&self, percent: u64) -> Span {
        let rank = (self.total * percent).div_ceil(100);
        let mut seen = 0;
        let bucket = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank && *count > 0
        });
        bucket.map_or(Span::ZERO, |bucket| Span::from_nanos(top_of(bucket).saturating_mul(1_000)).min(self.longest))
    }
}

fn bucket_of(micros: u64) -> usize {
    let shift = (u64::BITS - micros.leading_zeros()).saturating_sub(BITS + 1);
    ((u64::from(shift) << BITS) + (micros >> shift)) as usize
}

/// The longest that is in a bucket.
fn top_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket >> BITS).saturating_sub(1);
    let high = bucket - (shift << BITS);
    ((high + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_percentile_is_that_of_all_or_a_64th_above(
            mut spans in prop::collection::vec(prop_oneof![0u64..300, 0u64..10_000_000, Just(1 << 53)], 1..200),
            percent in 1u64..=100,
        ) {
            let mut waits = Waits::default();
            for micros in &spans {
                waits.add(Span::from_nanos(micros * 1_000));
            }
            spans.sort_unstable();
            let rank = (spans.len() as u64 * percent).div_ceil(100);
            let exact = spans[rank as usize - 1];
            let told = waits.percentile(percent).as_nanos() / 1_000;
            prop_assert!(told >= exact && told - exact <= exact / 64, "{told} {exact}");
            prop_assert_eq!(waits.percentile(100), waits.longest());
        }
    }

    #[test]
    fn nobody_waited() {
        assert_eq!((Waits::default().percentile(99), Waits::default().total()), (Span::ZERO, 0));
        let mut waits = Waits::default();
        waits.add(Span::MAX);
        assert!(waits.counts.len() < 4_000, "{}", waits.counts.len());
    }
}
