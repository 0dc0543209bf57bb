//! Requests that wait for a connection to one server, client by client in round robin.
//!
//! A client gets one turn before any other that waits gets its second, however many requests each has here: a storm of one
//! client delays its own requests. It knows no time and no connections; `server` asks it who comes next. It has as many places
//! as its worker has requests under way, which are bounded: one for each client connection and `max_connections` streams.
//! Each step takes logarithmic time.

use std::task::Context;

use sluicegate_fair::{Round, Waiter};
use sluicegate_limiter::Fingerprint;

/// Requests that wait.
#[derive(Default)]
pub struct WaitQueue {
    /// Those that take any connection, and those that only take a new one.
    rounds: [Round<Fingerprint>; 2],
    next: u64,
}

/// Where a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePlace {
    waiter: Waiter<Fingerprint>,
    takes_kept: bool,
}

impl WaitQueue {
    /// Adds a request. `takes_kept`: whether a connection that was used before is good enough for it.
    pub fn join(&mut self, client: Fingerprint, takes_kept: bool) -> QueuePlace {
        let number = self.number();
        let waiter = self.rounds[usize::from(!takes_kept)].join(client, number);
        QueuePlace { waiter, takes_kept }
    }

    /// Takes a request out. `is_served`: it has got what it waited for, so that its client goes behind all others.
    pub fn leave(&mut self, place: QueuePlace, is_served: bool) {
        let turn = self.number();
        self.rounds[usize::from(!place.takes_kept)].leave(place.waiter, is_served.then_some(turn));
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.rounds.iter().all(Round::is_empty)
    }

    /// Whether somebody waits who takes a connection that was used before.
    pub fn wants_kept(&self) -> bool {
        !self.rounds[0].is_empty()
    }

    /// Whether this request is the next one to connect.
    pub fn is_first(&self, place: QueuePlace) -> bool {
        let heads = self.rounds.iter().filter_map(Round::head);
        heads.min_by_key(|(turn, _)| *turn).is_some_and(|(_, number)| number == place.waiter.number())
    }

    /// Whether this request is the next one to get a connection that was used before.
    pub fn is_first_for_kept(&self, place: QueuePlace) -> bool {
        self.rounds[0].is_first(place.waiter)
    }

    /// Whom to wake when it is this request's turn.
    pub fn wakes(&mut self, place: QueuePlace, cx: &Context<'_>) {
        self.rounds[usize::from(!place.takes_kept)].wakes(place.waiter, cx);
    }

    /// Wakes the request that comes next: there may be a turn, or a connection.
    pub fn wake_first(&self) {
        self.rounds.iter().for_each(Round::wake_first);
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: u64) -> Fingerprint {
        Fingerprint::known(number).unwrap()
    }

    /// The order in which requests are served, each by its place among `all`.
    fn order(line: &mut WaitQueue, all: &[QueuePlace]) -> Vec<usize> {
        let mut left: Vec<usize> = (0..all.len()).collect();
        let mut served = Vec::new();
        while let Some(at) = left.iter().position(|index| line.is_first(all[*index])) {
            let index = left.remove(at);
            line.leave(all[index], true);
            served.push(index);
        }
        served
    }

    #[test]
    fn each_client_has_one_turn_before_any_has_two() {
        let mut line = WaitQueue::default();
        let clients = [1, 1, 1, 1, 2, 2, 3];
        let all: Vec<_> = clients.map(|number| line.join(client(number), true)).into();
        assert_eq!(order(&mut line, &all), [0, 4, 6, 1, 5, 2, 3]);
        assert!(line.is_empty());
    }

    #[test]
    fn who_comes_while_others_wait_goes_behind_the_clients_and_not_behind_their_requests() {
        let mut line = WaitQueue::default();
        let mut all: Vec<_> = (0..1_000).map(|_| line.join(client(1), true)).collect();
        line.leave(all[0], true);
        all.push(line.join(client(2), true));
        assert!(line.is_first(all[1]), "its turn came before the other was here");
        line.leave(all[1], true);
        assert!(line.is_first(all[1_000]));
        line.leave(all[1_000], true);
        assert!(line.is_first(all[2]));
    }

    #[test]
    fn who_goes_away_leaves_the_turn_to_its_client() {
        let mut line = WaitQueue::default();
        let all: Vec<_> = [1, 1, 2].map(|number| line.join(client(number), true)).into();
        line.leave(all[0], false);
        assert!(line.is_first(all[1]));
        line.leave(all[1], false);
        assert!(line.is_first(all[2]));
        line.leave(all[2], false);
        line.leave(all[2], false);
        assert!(line.is_empty() && !line.is_first(all[2]));
        assert!(line.rounds.iter().all(Round::is_empty));
    }

    #[test]
    fn who_needs_a_new_connection_waits_for_a_turn_and_lets_others_take_a_kept_one() {
        let mut line = WaitQueue::default();
        let fresh = line.join(client(1), false);
        assert!(!line.wants_kept() && !line.is_empty());
        let all = [fresh, line.join(client(1), true), line.join(client(2), true)];
        assert!(line.wants_kept() && line.is_first_for_kept(all[1]) && !line.is_first(all[1]));
        assert_eq!(order(&mut line, &all), [0, 1, 2]);
    }
}
