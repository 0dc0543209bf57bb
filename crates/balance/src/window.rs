//! Counts of the last while, in ten buckets: the running one and the nine before it. Adding and asking are O(1), and O(10)
//! when time has jumped.

use sluicegate_time::{Span, Tick};

const BUCKETS: u64 = 10;

/// How many there were, and how many of another kind beside them: results and errors, or requests and retries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WindowCounts {
    pub(super) all: u64,
    pub(super) marked: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Window {
    /// Nanoseconds of one bucket.
    width: u64,
    /// The number of the running bucket since tick 0.
    running: u64,
    buckets: [WindowCounts; BUCKETS as usize],
    total: WindowCounts,
}

impl Window {
    pub(super) fn new(length: Span) -> Self {
        let width = (length.as_nanos() / BUCKETS).max(1);
        Self { width, running: 0, buckets: [WindowCounts::default(); BUCKETS as usize], total: WindowCounts::default() }
    }

    pub(super) fn add(&mut self, counts: WindowCounts, now: Tick) {
        self.advance(now);
        if let Some(bucket) = self.buckets.get_mut((self.running % BUCKETS) as usize) {
            bucket.all += counts.all;
            bucket.marked += counts.marked;
            self.total.all += counts.all;
            self.total.marked += counts.marked;
        }
    }

    pub(super) fn total(&mut self, now: Tick) -> WindowCounts {
        self.advance(now);
        self.total
    }

    /// Empties the buckets that are too old. Workers read the clock before they take a lock, so `now` may be a little
    /// behind: then it counts in the running bucket.
    fn advance(&mut self, now: Tick) {
        let current = now.as_nanos() / self.width;
        let passed = current.saturating_sub(self.running).min(BUCKETS);
        self.running = self.running.max(current);
        for back in 0..passed {
            // `passed` is at most `running`, so this does not go below 0.
            let place = ((self.running - back) % BUCKETS) as usize;
            let old = self.buckets.get_mut(place).map(std::mem::take).unwrap_or_default();
            self.total.all -= old.all;
            self.total.marked -= old.marked;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: WindowCounts = WindowCounts { all: 1, marked: 0 };

    #[test]
    fn a_count_stays_for_ten_buckets() {
        let at = |millis| Tick::ZERO + Span::from_millis(millis);
        let mut window = Window::new(Span::from_secs(10));
        window.add(ONE, at(5_999));
        window.add(WindowCounts { all: 2, marked: 1 }, at(6_000));
        assert_eq!(window.total(at(14_999)), WindowCounts { all: 3, marked: 1 });
        assert_eq!(window.total(at(15_000)), WindowCounts { all: 2, marked: 1 });
        assert_eq!(window.total(at(16_000)), WindowCounts { all: 0, marked: 0 });
    }

    #[test]
    fn a_jump_of_time_empties_it_and_time_that_runs_backwards_counts_now() {
        let mut window = Window::new(Span::from_nanos(3));
        window.add(ONE, Tick::from_nanos(5));
        window.add(ONE, Tick::from_nanos(2));
        assert_eq!(window.total(Tick::from_nanos(14)), WindowCounts { all: 2, marked: 0 });
        assert_eq!(window.total(Tick::MAX), WindowCounts::default());
        window.add(ONE, Tick::ZERO);
        assert_eq!(window.total(Tick::MAX), ONE);
    }
}
