//! How many retries are allowed: a share of the requests of the last ten seconds, and a few more, so that retries never
//! multiply an outage.
//!
//! Each worker has its own and counts its own requests. While several clients ask, one of them takes at most half of what is
//! left, so that the retries of a client whose requests all fail are not those of the others.

use super::failures::RecentClients;
use super::window::{Window, WindowCounts};
use sluicegate_time::{Span, Tick};

const LENGTH: Span = Span::from_secs(10);

/// Clients whose retries are counted each for itself: those that had most.
const CLIENTS: usize = 8;

/// Allows retries as a share of the live requests of the last ten seconds, counted in buckets of a second.
#[derive(Clone, Debug)]
pub struct RetryBudget {
    percent: u64,
    floor: u64,
    window: Window,
    /// Those that had a request last.
    clients: RecentClients,
    /// The retries of some.
    retried: [(u64, Window); CLIENTS],
}

impl RetryBudget {
    /// Makes a budget of `percent` retries for every hundred requests of ten seconds, and of `floor_per_10s` retries
    /// in ten seconds however few the requests are.
    pub fn new(percent: u32, floor_per_10s: u32) -> Self {
        let (clients, retried) = (RecentClients::default(), std::array::from_fn(|_| (0, Window::new(LENGTH))));
        Self { percent: percent.into(), floor: floor_per_10s.into(), window: Window::new(LENGTH), clients, retried }
    }

    /// Changes what it allows; what it has counted stays.
    pub fn set_terms(&mut self, percent: u32, floor_per_10s: u32) {
        (self.percent, self.floor) = (percent.into(), floor_per_10s.into());
    }

    /// Counts a request of this client; a retry of it is not one.
    pub fn request(&mut self, client: u64, now: Tick) {
        self.window.add(WindowCounts { all: 1, marked: 0 }, now);
        self.clients.note(client, now);
    }

    /// Takes one retry from the budget for this client; false, and nothing is taken, when there is none left for it.
    pub fn take(&mut self, client: u64, now: Tick) -> bool {
        let WindowCounts { all: requests, marked: retries } = self.window.total(now);
        let allowed = requests.saturating_mul(self.percent).saturating_add(self.floor * 100) / 100;
        let left = allowed.saturating_sub(retries);
        let is_shared = self.clients.since(now - LENGTH).any(|other| other != client);
        if left == 0 {
            return false;
        }
        let Some((_, own)) = self.of_client(client, now) else { return false };
        if is_shared && own.total(now).marked >= left {
            return false;
        }
        own.add(WindowCounts { all: 0, marked: 1 }, now);
        self.window.add(WindowCounts { all: 0, marked: 1 }, now);
        true
    }

    /// The retries of this client: in the place of those of the client that had fewest, if it has none.
    fn of_client(&mut self, client: u64, now: Tick) -> Option<&mut (u64, Window)> {
        let known = self.retried.iter_mut().position(|(of, own)| *of == client && own.total(now).marked > 0);
        let fewest = || {
            let counts = self.retried.iter_mut().map(|(_, own)| own.total(now).marked).enumerate();
            counts.min_by_key(|(_, count)| *count).map(|(place, _)| place)
        };
        let place = known.or_else(fewest)?;
        let found = self.retried.get_mut(place)?;
        if known.is_none() {
            *found = (client, Window::new(LENGTH));
        }
        Some(found)
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
        std::iter::repeat_with(|| budget.take(1, now)).take(10_000).take_while(|is_taken| *is_taken).count()
    }

    #[test]
    fn ten_percent_of_a_thousand_requests_and_the_floor_are_allowed() {
        let mut budget = RetryBudget::new(10, 30);
        (0..1_000).for_each(|n| budget.request(1, at(n)));
        assert_eq!(taken(&mut budget, at(1_000)), 130);
        assert!(!budget.take(1, at(9_999)));
        // The second 0 with its 1000 requests has gone, the retries of the second 1 have not.
        assert!(!budget.take(1, at(10_500)));
        assert_eq!(taken(&mut budget, at(11_000)), 30);
    }

    #[test]
    fn a_part_of_a_retry_is_none() {
        let mut budget = RetryBudget::new(10, 0);
        (0..19).for_each(|_| budget.request(1, at(0)));
        assert_eq!(taken(&mut budget, at(0)), 1);
        budget.request(1, at(0));
        assert_eq!(taken(&mut budget, at(0)), 1);
    }

    #[test]
    fn without_share_and_floor_there_are_no_retries() {
        let mut budget = RetryBudget::new(0, 0);
        (0..1_000).for_each(|_| budget.request(1, at(0)));
        assert!(!budget.take(1, at(0)));
    }

    #[test]
    fn a_client_takes_half_of_what_is_left_while_others_ask() {
        let mut budget = RetryBudget::new(10, 30);
        (0..300).for_each(|_| budget.request(1, at(0)));
        budget.request(2, at(0));
        assert_eq!(taken(&mut budget, at(0)), 30, "of 60");
        let of_other = (0..30).filter(|_| budget.take(2, at(0))).count();
        assert_eq!(of_other, 15);
        assert_eq!((3..9).filter(|client| budget.take(*client, at(0))).count(), 6, "there is one for each newcomer");
        // The other one has not come again.
        (0..100).for_each(|_| budget.request(1, at(10_500)));
        assert_eq!(taken(&mut budget, at(10_500)), 40);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

        #[test]
        fn it_allows_exactly_what_a_list_of_all_requests_and_retries_would(
            percent in 0u32..150,
            floor in 0u32..8,
            steps in prop::collection::vec(
                (prop_oneof![4 => Just(0u64), 3 => 0u64..1_500, 1 => 0u64..15_000], any::<bool>(), 1u64..4),
                0..200,
            ),
        ) {
            let mut budget = RetryBudget::new(percent, floor);
            let (mut millis, mut requests, mut retries) = (0, Vec::new(), Vec::new());
            for (wait, is_request, client) in steps {
                millis += wait;
                if is_request {
                    budget.request(client, at(millis));
                    requests.push((millis, client));
                    continue;
                }
                let within = |list: &[(u64, u64)], of: &dyn Fn(u64) -> bool| {
                    list.iter().filter(|(when, client)| when / 1_000 + 10 > millis / 1_000 && of(*client)).count() as u64
                };
                let (all, own) = (|_| true, |of| of == client);
                let allowed = within(&requests, &all) * u64::from(percent) / 100 + u64::from(floor);
                let left = allowed.saturating_sub(within(&retries, &all));
                let is_shared = requests.iter().any(|(when, other)| when + 10_000 >= millis && *other != client);
                let is_allowed = left > 0 && (!is_shared || within(&retries, &own) < left);
                prop_assert_eq!(budget.take(client, at(millis)), is_allowed);
                if is_allowed {
                    retries.push((millis, client));
                }
            }
        }
    }
}
