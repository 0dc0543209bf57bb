//! How many retries are allowed: a share of the requests of the last ten seconds, and a few more, so that retries never
//! multiply an outage.
//!
//! Each worker has its own and counts its own requests.

use super::window::{Counts, Window};
use crate::time::{Span, Tick};

const LENGTH: Span = Span::from_secs(10);

/// Allows retries as a share of the live requests of the last ten seconds, counted in buckets of a second.
#[derive(Clone, Debug)]
pub struct RetryBudget {
    percent: u64,
    floor: u64,
    window: Window,
}

impl RetryBudget {
    /// Makes a budget of `percent` retries for every hundred requests of ten seconds, and of `floor_per_10s` retries
    /// in ten seconds however few the requests are.
    pub fn new(percent: u32, floor_per_10s: u32) -> Self {
        Self { percent: percent.into(), floor: floor_per_10s.into(), window: Window::new(LENGTH) }
    }

    /// Changes what it allows; what it has counted stays.
    pub fn set_terms(&mut self, percent: u32, floor_per_10s: u32) {
        (self.percent, self.floor) = (percent.into(), floor_per_10s.into());
    }

    /// Counts a request of a client; a retry of it is not one.
    pub fn request(&mut self, now: Tick) {
        self.window.add(Counts { all: 1, marked: 0 }, now);
    }

    /// Takes one retry from the budget; false, and nothing is taken, when there is none left.
    pub fn take(&mut self, now: Tick) -> bool {
        let Counts { all: requests, marked: retries } = self.window.total(now);
        let is_left = (retries + 1) * 100 <= requests.saturating_mul(self.percent).saturating_add(self.floor * 100);
        if is_left {
            self.window.add(Counts { all: 0, marked: 1 }, now);
        }
        is_left
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(millis: u64) -> Tick {
        Tick::ZERO + Span::from_millis(millis)
    }

    fn taken(budget: &mut RetryBudget, now: Tick) -> usize {
        std::iter::repeat_with(|| budget.take(now)).take(10_000).take_while(|is_taken| *is_taken).count()
    }

    #[test]
    fn ten_percent_of_a_thousand_requests_and_the_floor_are_allowed() {
        let mut budget = RetryBudget::new(10, 30);
        (0..1_000).for_each(|n| budget.request(at(n)));
        assert_eq!(taken(&mut budget, at(1_000)), 130);
        assert!(!budget.take(at(9_999)));
        // The second 0 with its 1000 requests has gone, the retries of the second 1 have not.
        assert!(!budget.take(at(10_500)));
        assert_eq!(taken(&mut budget, at(11_000)), 30);
    }

    #[test]
    fn a_part_of_a_retry_is_none() {
        let mut budget = RetryBudget::new(10, 0);
        (0..19).for_each(|_| budget.request(at(0)));
        assert_eq!(taken(&mut budget, at(0)), 1);
        budget.request(at(0));
        assert_eq!(taken(&mut budget, at(0)), 1);
    }

    #[test]
    fn without_share_and_floor_there_are_no_retries() {
        let mut budget = RetryBudget::new(0, 0);
        (0..1_000).for_each(|_| budget.request(at(0)));
        assert!(!budget.take(at(0)));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

        #[test]
        fn it_allows_exactly_what_a_list_of_all_requests_and_retries_would(
            percent in 0u32..150,
            floor in 0u32..8,
            steps in prop::collection::vec((prop_oneof![4 => Just(0u64), 3 => 0u64..1_500, 1 => 0u64..15_000], any::<bool>()), 0..200),
        ) {
            let mut budget = RetryBudget::new(percent, floor);
            let (mut millis, mut requests, mut retries) = (0, Vec::new(), Vec::new());
            for (wait, is_request) in steps {
                millis += wait;
                if is_request {
                    budget.request(at(millis));
                    requests.push(millis / 1_000);
                    continue;
                }
                let within = |list: &[u64]| list.iter().filter(|second| **second + 10 > millis / 1_000).count() as u64;
                let allowed = within(&requests) * u64::from(percent) + u64::from(floor) * 100;
                let is_allowed = (within(&retries) + 1) * 100 <= allowed;
                prop_assert_eq!(budget.take(at(millis)), is_allowed);
                if is_allowed {
                    retries.push(millis / 1_000);
                    prop_assert!(within(&retries) * 100 <= allowed);
                }
            }
        }
    }
}
