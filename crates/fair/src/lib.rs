//! Fairness between clients that wait for the same thing: each has one turn before any has two, and where there is no more
//! room to wait, the client that has the most requests there gives one up.
//!
//! Where the thing is a number of places that requests hold for a while, each client has a share of them: the places that
//! are held, divided by the clients that hold one or wait. While others wait, a client that holds its share gets no other
//! place, and one that holds more is asked to give up what it can. A client that is alone may hold all.
//!
//! It knows no time and nothing of what is waited for: its callers, the lines of `upstream`, ask it who comes next. Each step
//! takes logarithmic time, but for the choice of who comes next: it looks at each number of places that some client holds,
//! which are few, since they are different and their sum is that of the places. The memory is that of the requests that
//! wait or hold a place.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::task::{Context, Waker};

/// Requests that wait, client by client in round robin: a storm of one client delays its own requests.
#[derive(Debug)]
pub struct Round<C> {
    /// Clients that wait in the order of their turns, by the number of places that they hold.
    turns: BTreeMap<u64, BTreeMap<u64, C>>,
    /// Those that wait or hold a place.
    clients: HashMap<C, ClientQueue>,
    /// How many requests each client has here.
    counts: BTreeSet<(usize, C)>,
    requests: usize,
    /// Places that are held.
    held: u64,
}

/// The requests of one client.
#[derive(Debug, Default)]
struct ClientQueue {
    turn: u64,
    /// In the order of their coming; `None` until the request has been polled once.
    requests: BTreeMap<u64, Option<Waker>>,
    /// Places that it holds.
    held: u64,
}

/// A request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiter<C> {
    client: C,
    number: u64,
}

impl<C> Default for Round<C> {
    fn default() -> Self {
        let (turns, clients, counts, requests, held) = Default::default();
        Self { turns, clients, counts, requests, held }
    }
}

impl<C: Copy + Ord + Hash> Round<C> {
    /// Adds a request behind those of its client, and a client that has none behind all clients. `number` is larger than any
    /// before.
    pub fn join(&mut self, client: C, number: u64) -> Waiter<C> {
        let waiting = self.clients.entry(client).or_default();
        let before = waiting.requests.len();
        if before == 0 {
            waiting.turn = number;
            self.turns.entry(waiting.held).or_default().insert(number, client);
        }
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
        let (held, old) = (waiting.held, waiting.turn);
        let next = match turn {
            _ if before == 1 => None,
            Some(turn) => Some(turn),
            None => Some(old),
        };
        if next != Some(old) {
            self.unfile(held, old);
        }
        if let Some(turn) = next.filter(|turn| *turn != old) {
            self.file(waiter.client, held, turn);
        }
        self.counted(waiter.client, before, before - 1);
        self.forget(waiter.client);
    }

    /// A request of this client has a place from now on.
    pub fn hold(&mut self, client: C) {
        let held = self.clients.entry(client).or_default().held;
        self.hold_as_many(client, held + 1);
    }

    /// It has given its place back.
    pub fn release(&mut self, client: C) {
        if let Some(held) = self.clients.get(&client).and_then(|waiting| waiting.held.checked_sub(1)) {
            self.hold_as_many(client, held);
            self.forget(client);
        }
    }

    /// How many places are held.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// The places that are a client's share.
    fn share(&self) -> u64 {
        (self.held / (self.clients.len() as u64).max(1)).max(1)
    }

    /// Whether this client holds less than its share.
    pub fn is_below_share(&self, client: C) -> bool {
        self.clients.get(&client).is_none_or(|waiting| waiting.held < self.share())
    }

    /// Whether this client holds more than its share.
    pub fn is_above_share(&self, client: C) -> bool {
        self.clients.get(&client).is_some_and(|waiting| waiting.held > self.share())
    }

    /// Whether more than this many requests wait whose clients hold less than their share.
    pub fn has_wronged(&self, than: usize) -> bool {
        let mut left = than;
        for client in self.turns.range(..self.share()).flat_map(|(_, turns)| turns.values()) {
            match left.checked_sub(self.clients.get(client).map_or(0, |waiting| waiting.requests.len())) {
                Some(rest) => left = rest,
                None => return true,
            }
        }
        false
    }

    /// Makes room for a request of this client where another one has at least two more: the newest request of the
    /// client that has the most is put out, and woken. Whether there is room.
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
        self.requests == 0
    }

    /// The turn of its first client, and the number of that one's first request: the first of those that hold less than
    /// their share, or else of those that hold least.
    pub fn head(&self) -> Option<(u64, u64)> {
        let (turn, client) = self.first()?;
        let (number, _) = self.clients.get(client)?.requests.first_key_value()?;
        Some((turn, *number))
    }

    fn first(&self) -> Option<(u64, &C)> {
        let firsts = self.turns.range(..self.share()).filter_map(|(_, turns)| turns.first_key_value());
        let below = firsts.min_by_key(|(turn, _)| **turn);
        let (turn, client) = below.or_else(|| self.turns.values().next()?.first_key_value())?;
        Some((*turn, client))
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

    /// Wakes the request that comes next.
    pub fn wake_first(&self) {
        let first = self.first().and_then(|(_, client)| self.clients.get(client));
        if let Some((_, Some(waker))) = first.and_then(|waiting| waiting.requests.first_key_value()) {
            waker.wake_by_ref();
        }
    }

    fn hold_as_many(&mut self, client: C, held: u64) {
        let Some(waiting) = self.clients.get_mut(&client) else { return };
        let before = std::mem::replace(&mut waiting.held, held);
        let turn = (!waiting.requests.is_empty()).then_some(waiting.turn);
        self.held = self.held + held - before;
        if let Some(turn) = turn {
            self.unfile(before, turn);
            self.file(client, held, turn);
        }
    }

    fn file(&mut self, client: C, held: u64, turn: u64) {
        if let Some(waiting) = self.clients.get_mut(&client) {
            waiting.turn = turn;
            self.turns.entry(held).or_default().insert(turn, client);
        }
    }

    fn unfile(&mut self, held: u64, turn: u64) {
        if let Some(turns) = self.turns.get_mut(&held) {
            turns.remove(&turn);
            if turns.is_empty() {
                self.turns.remove(&held);
            }
        }
    }

    /// Forgets a client that neither waits nor holds a place.
    fn forget(&mut self, client: C) {
        if self.clients.get(&client).is_some_and(|waiting| waiting.requests.is_empty() && waiting.held == 0) {
            self.clients.remove(&client);
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

    #[test]
    fn a_client_that_holds_its_share_gets_no_other_place_while_one_waits_that_holds_less() {
        let mut round = Round::default();
        (0..4).for_each(|_| round.hold('a'));
        let own = round.join('a', 1);
        assert!(round.is_first(own) && !round.has_wronged(0), "it is alone, and may hold all");
        let others = [round.join('b', 2), round.join('b', 3), round.join('c', 4)];
        assert!(round.is_above_share('a') && round.is_below_share('b') && round.is_below_share('z'));
        assert_eq!([2, 3].map(|than| round.has_wronged(than)), [true, false]);
        for expected in [others[0], others[2]] {
            assert!(round.is_first(expected));
            round.hold(expected.client);
            round.leave(expected, Some(9));
        }
        // Six places for three clients.
        assert!(round.is_first(others[1]) && !round.is_first(own));
        round.leave(others[1], None);
        assert!(round.is_first(own), "others wait no more");
        (0..4).for_each(|_| round.release('a'));
        assert!(round.is_below_share('a') && !round.is_above_share('b'));
        round.leave(own, None);
        for client in ['b', 'c'] {
            round.release(client);
        }
        assert_eq!((round.held(), round.clients.len(), round.turns.len()), (0, 0, 0));
    }

    proptest! {
        #[test]
        fn the_next_is_the_first_of_those_below_their_share_as_a_search_of_all_finds_it(
            steps in prop::collection::vec((0u8..5, 0u8..5, any::<prop::sample::Index>()), 1..200),
        ) {
            let (mut round, mut next) = (Round::default(), 0);
            // Clients that wait in turn, each with its requests; and how many places each holds.
            let mut turns: Vec<(u8, Vec<Waiter<u8>>)> = Vec::new();
            let mut held = std::collections::BTreeMap::<u8, u64>::new();
            for (step, client, index) in steps {
                next += 1;
                match step {
                    0 | 1 => {
                        let waiter = round.join(client, next);
                        match turns.iter_mut().find(|(known, _)| *known == client) {
                            Some((_, requests)) => requests.push(waiter),
                            None => turns.push((client, vec![waiter])),
                        }
                    }
                    2 if held.contains_key(&client) => {
                        round.release(client);
                        held.entry(client).and_modify(|held| *held -= 1);
                        held.retain(|_, held| *held > 0);
                    }
                    3 if !turns.is_empty() => {
                        let at = index.index(turns.len());
                        let gone = turns[at].1.pop().unwrap();
                        round.leave(gone, None);
                        turns.retain(|(_, requests)| !requests.is_empty());
                    }
                    _ => {
                        let Some(at) = turns.iter().position(|(_, requests)| round.is_first(requests[0])) else { continue };
                        let (served, mut requests) = turns.remove(at);
                        round.hold(served);
                        round.leave(requests.remove(0), Some(next));
                        *held.entry(served).or_default() += 1;
                        if !requests.is_empty() {
                            turns.push((served, requests));
                        }
                    }
                }
                let holds = |client: u8| held.get(&client).copied().unwrap_or(0);
                let clients = held.keys().copied().chain(turns.iter().map(|(client, _)| *client));
                let clients = clients.collect::<BTreeSet<_>>().len() as u64;
                let sum: u64 = held.values().sum();
                let share = (sum / clients.max(1)).max(1);
                let least = turns.iter().map(|(client, _)| holds(*client)).min().unwrap_or(0);
                let bound = if least < share { share } else { least + 1 };
                let expected = turns.iter().find(|(client, _)| holds(*client) < bound).map(|(_, requests)| requests[0]);
                prop_assert_eq!(round.head().map(|(_, number)| number), expected.map(|waiter| waiter.number()));
                prop_assert_eq!((round.held(), round.clients.len() as u64), (sum, clients));
                let wronged = turns.iter().filter(|(client, _)| holds(*client) < share);
                let wronged: usize = wronged.map(|(_, requests)| requests.len()).sum();
                prop_assert!(!round.has_wronged(wronged) && (wronged == 0 || round.has_wronged(wronged - 1)));
            }
        }

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
