//! Fairness between clients that wait for the same thing: each has one turn before any has two, and where there is no more
//! room to wait, whoever has the most requests there gives one up.
//!
//! It knows no time and nothing of what is waited for: its callers, the lines of `upstream`, ask it who comes next. Each step
//! takes logarithmic time, and the memory is that of the requests that wait.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::task::{Context, Waker};

/// Requests that wait, client by client in round robin: a storm of one client delays its own requests.
#[derive(Debug)]
pub struct Round<C> {
    /// Clients in the order of their turns.
    turns: BTreeMap<u64, C>,
    clients: HashMap<C, Waiting>,
    /// How many requests each client has here.
    counts: BTreeSet<(usize, C)>,
    requests: usize,
}

/// The requests of one client.
#[derive(Debug)]
struct Waiting {
    turn: u64,
    /// In the order of their coming; `None` until the request has been polled once.
    requests: BTreeMap<u64, Option<Waker>>,
}

/// A request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiter<C> {
    client: C,
    number: u64,
}

impl<C> Default for Round<C> {
    fn default() -> Self {
        Self { turns: BTreeMap::new(), clients: HashMap::new(), counts: BTreeSet::new(), requests: 0 }
    }
}

impl<C: Copy + Ord + Hash> Round<C> {
    /// Adds a request behind those of its client, and a client that has none behind all clients. `number` is larger than any
    /// before.
    pub fn join(&mut self, client: C, number: u64) -> Waiter<C> {
        let waiting = self.clients.entry(client).or_insert_with(|| {
            self.turns.insert(number, client);
            Waiting { turn: number, requests: BTreeMap::new() }
        });
        let before = waiting.requests.len();
        waiting.requests.insert(number, None);
        self.counted(client, before, before + 1);
        Waiter { client, number }
    }

    /// Takes a request out. `turn`: of its client from now on, if the request has got what it waited for; a number that is
    /// larger than any before.
    pub fn leave(&mut self, waiter: Waiter<C>, turn: Option<u64>) {
        let Some(waiting) = self.clients.get_mut(&waiter.client) else { return };
        let before = waiting.requests.len();
        if waiting.requests.remove(&waiter.number).is_none() {
            return;
        }
        if waiting.requests.is_empty() {
            self.turns.remove(&waiting.turn);
            self.clients.remove(&waiter.client);
        } else if let Some(turn) = turn {
            self.turns.remove(&waiting.turn);
            waiting.turn = turn;
            self.turns.insert(turn, waiter.client);
        }
        self.counted(waiter.client, before, before - 1);
    }

    /// Makes room for a request of this client where another one has at least two more: the newest request of whoever has
    /// the most is put out, and woken. Whether there is room.
    pub fn make_room(&mut self, client: C) -> bool {
        let own = self.clients.get(&client).map_or(0, |waiting| waiting.requests.len());
        let Some((most, holder)) = self.counts.last().copied().filter(|(most, _)| *most > own + 1) else {
            return false;
        };
        let newest = self.clients.get_mut(&holder).and_then(|waiting| waiting.requests.pop_last());
        self.counted(holder, most, most - 1);
        if let Some((_, Some(waker))) = newest {
            waker.wake();
        }
        true
    }

    /// Whether this request still waits.
    pub fn has(&self, waiter: Waiter<C>) -> bool {
        self.clients.get(&waiter.client).is_some_and(|waiting| waiting.requests.contains_key(&waiter.number))
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.requests
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// The turn of its first client, and the number of that one's first request.
    pub fn head(&self) -> Option<(u64, u64)> {
        let (turn, client) = self.turns.first_key_value()?;
        let (number, _) = self.clients.get(client)?.requests.first_key_value()?;
        Some((*turn, *number))
    }

    /// Whether this request comes next.
    pub fn is_first(&self, waiter: Waiter<C>) -> bool {
        self.head().is_some_and(|(_, number)| number == waiter.number)
    }

    /// Whom to wake when it is this request's turn, or when it is put out.
    pub fn wakes(&mut self, waiter: Waiter<C>, cx: &Context<'_>) {
        let waiting = self.clients.get_mut(&waiter.client);
        if let Some(waker) = waiting.and_then(|waiting| waiting.requests.get_mut(&waiter.number))
            && !waker.as_ref().is_some_and(|known| known.will_wake(cx.waker()))
        {
            *waker = Some(cx.waker().clone());
        }
    }

    /// Wakes whoever comes next.
    pub fn wake_first(&self) {
        let first = self.turns.values().next().and_then(|client| self.clients.get(client));
        if let Some((_, Some(waker))) = first.and_then(|waiting| waiting.requests.first_key_value()) {
            waker.wake_by_ref();
        }
    }

    fn counted(&mut self, client: C, before: usize, now: usize) {
        self.requests = self.requests + now - before;
        self.counts.remove(&(before, client));
        if now > 0 {
            self.counts.insert((now, client));
        }
    }
}

impl<C> Waiter<C> {
    /// Its number.
    pub fn number(&self) -> u64 {
        self.number
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn whoever_has_the_most_makes_room_for_whoever_has_less() {
        let mut round = Round::default();
        let many: Vec<_> = (0..5).map(|number| round.join('a', number)).collect();
        assert!(!round.make_room('a'), "for nobody who has as many");
        assert!(round.make_room('b'));
        let other = round.join('b', 5);
        assert_eq!(many.iter().map(|waiter| round.has(*waiter)).collect::<Vec<_>>(), [true, true, true, true, false]);
        assert!(round.make_room('b') && !round.has(many[3]));
        round.join('b', 6);
        assert!(!round.make_room('b'), "three and two: no more is moved");
        assert_eq!((round.len(), round.is_first(many[0]), round.has(other)), (5, true, true));
        round.leave(many[4], Some(9));
        assert!(round.is_first(many[0]), "who was put out has no turn to lose");
    }

    proptest! {
        #[test]
        fn no_client_waits_for_two_turns_of_another_and_the_counts_are_those_of_the_requests(
            steps in prop::collection::vec((0u8..4, 0u8..4, any::<prop::sample::Index>()), 1..200),
            places in 1usize..12,
        ) {
            let (mut round, mut waiting, mut next) = (Round::default(), Vec::<Waiter<u8>>::new(), 0);
            let mut passed = std::collections::HashMap::<(u64, u8), u32>::new();
            for (step, client, index) in steps {
                next += 1;
                match step {
                    0 | 1 => {
                        if round.len() < places || round.make_room(client) {
                            waiting.push(round.join(client, next));
                        }
                        waiting.retain(|waiter| round.has(*waiter));
                    }
                    2 if !waiting.is_empty() => {
                        let gone = waiting.swap_remove(index.index(waiting.len()));
                        round.leave(gone, None);
                    }
                    _ => {
                        let Some(at) = waiting.iter().position(|waiter| round.is_first(*waiter)) else { continue };
                        let served = waiting.swap_remove(at);
                        round.leave(served, Some(next));
                        // A client's first request is never passed twice by requests of one other client.
                        for other in waiting.iter().filter(|other| other.client != served.client) {
                            let is_first = !waiting.iter().any(|own| own.client == other.client && own.number < other.number);
                            if is_first {
                                *passed.entry((other.number, served.client)).or_default() += 1;
                                prop_assert!(passed[&(other.number, served.client)] <= 2);
                            }
                        }
                    }
                }
                prop_assert_eq!(round.len(), waiting.len());
                prop_assert!(round.len() <= places);
                prop_assert_eq!(round.is_empty(), waiting.is_empty());
                let sum: usize = round.counts.iter().map(|(count, _)| count).sum();
                prop_assert_eq!(sum, waiting.len());
                prop_assert_eq!(waiting.iter().filter(|waiter| round.is_first(**waiter)).count(), usize::from(!waiting.is_empty()));
            }
        }
    }
}
