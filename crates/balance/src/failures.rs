//! The failures that count: those of three clients, or of clients beside which no other one has had a good answer of late.
//!
//! So what one client asks for, and a server cannot answer, judges nothing for the others; and a server that is dead is found
//! by the first failures, also where there is one client alone. Clients are numbers here, equal for the requests of one.

use sluicegate_time::{Span, Tick};

/// So many clients are believed, whatever others say.
const ENOUGH: usize = 3;

/// A good answer to another client speaks for a server for so long.
pub const GOOD_ANSWER_LASTS: Span = Span::from_secs(10);

/// The clients that were seen last, and when. Three are known: more are not needed to know whether failures are of three, nor
/// whether one beside the two that may have failed was answered.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecentClients([Option<(u64, Tick)>; ENOUGH]);

impl RecentClients {
    /// Sees a client now.
    pub fn note(&mut self, client: u64, now: Tick) {
        let known = self.0.iter().position(|seen| seen.is_some_and(|(known, _)| known == client));
        if let Some(until_it) = self.0.get_mut(..=known.unwrap_or(ENOUGH - 1)) {
            until_it.rotate_right(1);
        }
        self.0[0] = Some((client, now));
    }

    /// Those that were seen at this instant or later.
    pub fn since(&self, instant: Tick) -> impl Iterator<Item = u64> + Clone + use<> {
        self.0.into_iter().flatten().filter(move |(_, at)| *at >= instant).map(|(client, _)| client)
    }
}

/// Whether the failures of the clients that have `failed` count, where these were `answered`.
pub(super) fn count(failed: &(impl Iterator<Item = u64> + Clone), mut answered: impl Iterator<Item = u64>) -> bool {
    failed.clone().count() >= ENOUGH || answered.all(|client| failed.clone().any(|other| other == client))
}

/// The failures in a row of one server.
#[derive(Clone, Debug, Default)]
pub struct FailureRow {
    unreachable: u32,
    failed: u32,
    clients: RecentClients,
}

impl FailureRow {
    /// Adds a connect that has failed: it is the server's alone, whichever client asked.
    pub fn unreachable(&mut self) {
        self.unreachable = self.unreachable.saturating_add(1);
    }

    /// Adds a request of this client that has failed.
    pub fn failed(&mut self, client: u64, now: Tick) {
        self.failed = self.failed.saturating_add(1);
        self.clients.note(client, now);
    }

    /// How many of them count, where these clients have had good answers of late.
    pub fn counted(&self, answered: impl Iterator<Item = u64>) -> u32 {
        let is_counted = count(&self.clients.since(Tick::ZERO), answered);
        self.unreachable.saturating_add(if is_counted { self.failed } else { 0 })
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.unreachable == 0 && self.failed == 0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn at(secs: u64) -> Tick {
        Tick::ZERO + Span::from_secs(secs)
    }

    fn row(clients: &[u64]) -> FailureRow {
        let mut row = FailureRow::default();
        for client in clients {
            row.failed(*client, at(1));
        }
        row
    }

    #[test]
    fn one_client_alone_is_believed_and_one_beside_another_that_was_answered_is_not() {
        assert_eq!(row(&[7, 7, 7]).counted(std::iter::empty()), 3);
        assert_eq!(row(&[7, 7, 7]).counted([7].into_iter()), 3, "its own good answers speak for nothing");
        assert_eq!(row(&[7, 7, 7]).counted([7, 8].into_iter()), 0);
        assert_eq!(row(&[7, 8, 7]).counted([7, 8].into_iter()), 3, "both have failed");
        assert_eq!(row(&[7, 8, 9]).counted([1, 2].into_iter()), 3, "three have");
    }

    #[test]
    fn connects_count_whoever_asked() {
        let mut row = row(&[7, 7]);
        row.unreachable();
        assert_eq!((row.counted([8].into_iter()), row.counted(std::iter::empty()), row.is_empty()), (1, 3, false));
    }

    proptest! {
        #[test]
        fn three_places_know_as_much_as_a_list_of_all(
            events in prop::collection::vec((0u64..3, 1u64..6, any::<bool>()), 0..60),
            lasts in 1u64..8,
        ) {
            let (mut failed, mut answered) = (RecentClients::default(), RecentClients::default());
            let mut all = Vec::new();
            let mut now = 10;
            for (wait, client, is_good) in events {
                now += wait;
                all.push((now, client, is_good));
                if is_good { answered.note(client, at(now)) } else { failed.note(client, at(now)) }
                let since = now - lasts;
                let of = |wanted: bool| -> HashSet<u64> {
                    let some = all.iter().filter(|(when, _, is_good)| *when >= since && *is_good == wanted);
                    some.map(|(_, client, _)| *client).collect()
                };
                let expected = of(false).len() >= 3 || of(true).is_subset(&of(false));
                prop_assert_eq!(count(&failed.since(at(since)), answered.since(at(since))), expected);
            }
        }
    }
}
