//! Requests that wait for the store's answer: a line for each key of a shard that has any.
//!
//! A line is first in, first out; only its front may take what is granted, and an arrival goes behind it. The request
//! that leaves the front wakes the next. A place is found by its number, which only grows, so that to leave from the
//! middle costs a binary search.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::task::Waker;

use crate::key::Fingerprint;
use crate::queue::{FingerprintHasher, Wakers};

#[derive(Clone, Debug, Default)]
pub(super) struct KeyQueues {
    by_key: HashMap<Fingerprint, KeyQueue, BuildHasherDefault<FingerprintHasher>>,
    /// The number of the last place.
    last: u64,
}

#[derive(Clone, Debug, Default)]
struct KeyQueue {
    places: VecDeque<LinePlace>,
    /// The cost of all who are in it.
    cost: u64,
    /// How many of them are not in the key's queue yet.
    arrivals: u64,
}

#[derive(Clone, Debug)]
struct LinePlace {
    number: u64,
    cost: u64,
    /// The head of the key's queue.
    is_head: bool,
    waker: Option<Waker>,
    /// It has left from the middle.
    is_empty: bool,
}

impl KeyQueues {
    pub(super) fn has(&self, key: Fingerprint) -> bool {
        !self.by_key.is_empty() && self.by_key.contains_key(&key)
    }

    /// Whether some are in it who are in no queue yet, and go there before the request that comes now.
    pub(super) fn has_arrivals(&self, key: Fingerprint) -> bool {
        !self.by_key.is_empty() && self.by_key.get(&key).is_some_and(|line| line.arrivals > 0)
    }

    /// Goes behind all others; the number of the place. `is_head`: of the key's queue.
    pub(super) fn join(&mut self, key: Fingerprint, cost: u64, is_head: bool) -> u64 {
        self.last += 1;
        let line = self.by_key.entry(key).or_default();
        line.cost = line.cost.saturating_add(cost);
        line.arrivals += u64::from(!is_head);
        line.places.push_back(LinePlace { number: self.last, cost, is_head, waker: None, is_empty: false });
        self.last
    }

    pub(super) fn is_front(&self, key: Fingerprint, number: u64) -> bool {
        let front = self.by_key.get(&key).and_then(|line| line.places.front());
        front.is_some_and(|place| place.number == number)
    }

    /// Remembers whom to wake; hands back the waker that it replaces, to be dropped once no lock is held.
    pub(super) fn listen(&mut self, key: Fingerprint, number: u64, waker: &Waker) -> Option<Waker> {
        let line = self.by_key.get_mut(&key)?;
        let known = &mut line.places.get_mut(line.find(number)?)?.waker;
        match known {
            Some(known) if known.will_wake(waker) => None,
            _ => known.replace(waker.clone()),
        }
    }

    /// Leaves; the next one is to be woken if it is the front now.
    pub(super) fn leave(&mut self, key: Fingerprint, number: u64) -> Wakers {
        let Some(line) = self.by_key.get_mut(&key) else { return Wakers::default() };
        let Some(place) = line.find(number).and_then(|at| line.places.get_mut(at)) else { return Wakers::default() };
        if place.is_empty {
            return Wakers::default();
        }
        place.is_empty = true;
        let (cost, is_head, done) = (place.cost, place.is_head, place.waker.take());
        line.arrivals = line.arrivals.saturating_sub(u64::from(!is_head));
        line.cost = line.cost.saturating_sub(cost);
        let mut has_moved = false;
        while line.places.front().is_some_and(|place| place.is_empty) {
            line.places.pop_front();
            has_moved = true;
        }
        let next = line.places.front_mut().filter(|_| has_moved).and_then(|front| front.waker.take());
        if line.places.is_empty() {
            self.by_key.remove(&key);
        }
        Wakers { next, done }
    }

    /// The cost of the front, and of all.
    pub(super) fn need(&self, key: Fingerprint) -> (u64, u64) {
        let line = self.by_key.get(&key);
        line.and_then(|line| Some((line.places.front()?.cost, line.cost))).unwrap_or_default()
    }

    /// How many wait.
    pub(super) fn len(&self) -> u64 {
        self.by_key.values().map(|line| line.places.iter().filter(|place| !place.is_empty).count() as u64).sum()
    }

    /// The store will not answer: the line of this key is over. All who were in it are to be woken.
    pub(super) fn give_up(&mut self, key: Fingerprint) -> Vec<Waker> {
        let line = self.by_key.remove(&key);
        line.into_iter().flat_map(|line| line.places).filter_map(|place| place.waker).collect()
    }

    /// Whether this place is no more, since its line was given up.
    pub(super) fn is_given_up(&self, key: Fingerprint, number: u64) -> bool {
        self.by_key.get(&key).is_none_or(|line| line.find(number).is_none())
    }

    /// The front of this key has to look again.
    pub(super) fn wake(&mut self, key: Fingerprint) -> Option<Waker> {
        self.by_key.get_mut(&key)?.places.front_mut()?.waker.take()
    }

    /// All fronts have to look again.
    pub(super) fn wake_all(&mut self) -> Vec<Waker> {
        self.by_key.values_mut().filter_map(|line| line.places.front_mut()?.waker.take()).collect()
    }
}

impl KeyQueue {
    fn find(&self, number: u64) -> Option<usize> {
        self.places.binary_search_by_key(&number, |place| place.number).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(bits: u64) -> Fingerprint {
        Fingerprint::from_bits(bits)
    }

    #[test]
    fn who_comes_first_is_the_front_and_who_leaves_it_makes_the_next_one_it() {
        let mut lines = KeyQueues::default();
        let [a, b, c] = [2, 3, 4].map(|cost| lines.join(key(1), cost, false));
        let other = lines.join(key(2), 7, false);
        assert_eq!((lines.need(key(1)), lines.need(key(2)), lines.need(key(3))), ((2, 9), (7, 7), (0, 0)));
        let _ = lines.leave(key(1), b);
        let _ = lines.leave(key(1), b);
        assert_eq!(lines.need(key(1)), (2, 6), "from the middle, once");
        assert!(lines.is_front(key(1), a) && !lines.is_front(key(1), c) && lines.is_front(key(2), other));
        let _ = lines.leave(key(1), a);
        assert!(lines.is_front(key(1), c), "the empty place is gone as well");
        let _ = lines.leave(key(1), c);
        assert!(!lines.has(key(1)) && lines.has(key(2)));
    }

    #[test]
    fn a_line_that_is_given_up_is_none_to_those_who_come_later() {
        let mut lines = KeyQueues::default();
        let [front, next] = [2, 3].map(|cost| lines.join(key(1), cost, false));
        let other = lines.join(key(2), 7, false);
        assert!(lines.listen(key(1), next, Waker::noop()).is_none());
        assert_eq!(lines.give_up(key(1)).len(), 1, "the front does not listen");
        assert!([front, next].iter().all(|place| lines.is_given_up(key(1), *place)));
        let later = lines.join(key(1), 4, false);
        assert_eq!(lines.need(key(1)), (4, 4));
        assert!(!lines.is_given_up(key(1), later) && lines.is_given_up(key(1), next));
        assert!(!lines.is_given_up(key(2), other));
        let _ = lines.leave(key(1), front);
        assert!(lines.is_front(key(1), later));
    }

    #[test]
    fn the_head_of_a_queue_is_no_arrival() {
        let mut lines = KeyQueues::default();
        let (head, arrival) = (lines.join(key(1), 1, true), lines.join(key(1), 1, false));
        let _ = lines.join(key(2), 1, true);
        assert!(lines.has_arrivals(key(1)) && !lines.has_arrivals(key(2)) && !lines.has_arrivals(key(3)));
        let _ = lines.leave(key(1), head);
        assert!(lines.has_arrivals(key(1)));
        let _ = lines.leave(key(1), arrival);
        assert!(!lines.has_arrivals(key(1)));
    }
}
