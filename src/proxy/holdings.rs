//! The parts that clients hold of something that is bounded, in the order in which they came by it: so that the one who
//! holds most can be found at once, and what it has held longest.

use super::client_ledger::{ClientAccount, UNKNOWN};
use crate::time::Tick;

const NIL: u32 = u32::MAX;

/// Things that are held, by clients. Each step takes the same time, however many there are.
#[derive(Debug)]
pub struct Holdings<T> {
    nodes: Vec<Node<T>>,
    /// First of the chain of free nodes.
    free: u32,
    /// By the numbers of accounts.
    holders: Vec<Holder>,
    /// Numbers of accounts, those that hold most in front.
    order: Vec<u32>,
    /// How many of `order` hold at least so many, from 0.
    at_least: Vec<u32>,
    count: usize,
    /// How many of them are of clients that are not known yet, who are taken to hold one each.
    unknown: usize,
}

/// Names one thing for as long as it is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    index: u32,
    turn: u32,
}

#[derive(Debug)]
struct Node<T> {
    next: u32,
    prev: u32,
    /// How often it was filled, so that nobody takes out what is there instead.
    turn: u32,
    /// The number of the account of whoever holds it.
    number: u32,
    since: Tick,
    /// `None` in a free node.
    item: Option<T>,
}

#[derive(Clone, Copy, Debug)]
struct Holder {
    first: u32,
    last: u32,
    count: u32,
    /// Where it is in the order; only while it holds something.
    place: u32,
}

const NOTHING: Holder = Holder { first: NIL, last: NIL, count: 0, place: NIL };

impl<T> Default for Holdings<T> {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            free: NIL,
            holders: Vec::new(),
            order: Vec::new(),
            at_least: vec![0],
            count: 0,
            unknown: 0,
        }
    }
}

impl<T> Holdings<T> {
    /// Adds a thing; it is the one that its holder has held shortest. Its owner keeps the account for as long.
    pub fn add(&mut self, account: &ClientAccount, since: Tick, item: T) -> Held {
        let number = account.number();
        let index = match self.free {
            NIL => {
                self.nodes.push(Node { next: NIL, prev: NIL, turn: 0, number: 0, since, item: None });
                self.nodes.len() as u32 - 1
            }
            free => {
                self.free = self.nodes[free as usize].next;
                free
            }
        };
        let node = &mut self.nodes[index as usize];
        node.turn = node.turn.wrapping_add(1);
        (node.number, node.since, node.item) = (number as u32, since, Some(item));
        let held = Held { index, turn: node.turn };
        self.link(number, index);
        if number != UNKNOWN || self.unknown == 0 {
            self.grow(number);
        }
        self.unknown += usize::from(number == UNKNOWN);
        self.count += 1;
        held
    }

    /// Takes a thing out; `None` if that was done before.
    pub fn remove(&mut self, held: Held) -> Option<T> {
        let node = self.nodes.get_mut(held.index as usize).filter(|node| node.turn == held.turn)?;
        let item = node.item.take()?;
        let number = node.number as usize;
        self.unlink(number, held.index);
        self.nodes[held.index as usize].next = std::mem::replace(&mut self.free, held.index);
        self.unknown -= usize::from(number == UNKNOWN);
        if number != UNKNOWN || self.unknown == 0 {
            self.shrink(number);
        }
        self.count -= 1;
        Some(item)
    }

    /// Files a thing anew, as held since then and shorter than all else of its holder.
    pub fn renew(&mut self, held: Held, since: Tick) {
        let node = self.nodes.get_mut(held.index as usize);
        let Some(node) = node.filter(|node| node.turn == held.turn && node.item.is_some()) else { return };
        node.since = since;
        let number = node.number as usize;
        self.unlink(number, held.index);
        self.link(number, held.index);
    }

    /// How many things this client holds.
    pub fn of(&self, account: &ClientAccount) -> u32 {
        self.holders.get(account.number()).map_or(0, |holder| holder.count)
    }

    /// How many the client holds that holds most.
    pub fn most(&self) -> u32 {
        self.at_least.len() as u32 - 1
    }

    /// The thing that the client that holds most has held longest, and since when.
    pub fn oldest_of_heaviest(&self) -> Option<(Held, &T, Tick)> {
        let heaviest = *self.order.first()? as usize;
        let index = self.holders.get(heaviest)?.first;
        let node = self.nodes.get(index as usize)?;
        Some((Held { index, turn: node.turn }, node.item.as_ref()?, node.since))
    }

    /// How many things are held.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Appends a node to the list of its holder.
    fn link(&mut self, number: usize, index: u32) {
        if self.holders.len() <= number {
            self.holders.resize(number + 1, NOTHING);
        }
        let holder = &mut self.holders[number];
        let last = std::mem::replace(&mut holder.last, index);
        if last == NIL {
            holder.first = index;
        } else {
            self.nodes[last as usize].next = index;
        }
        let node = &mut self.nodes[index as usize];
        (node.prev, node.next) = (last, NIL);
    }

    fn unlink(&mut self, number: usize, index: u32) {
        let Node { prev, next, .. } = self.nodes[index as usize];
        let holder = &mut self.holders[number];
        match prev {
            NIL => holder.first = next,
            prev => self.nodes[prev as usize].next = next,
        }
        match next {
            NIL => holder.last = prev,
            next => self.nodes[next as usize].prev = prev,
        }
    }

    /// Counts one more: its holder changes places with the first of those that hold as many.
    fn grow(&mut self, number: usize) {
        let count = self.holders[number].count as usize;
        if count == 0 {
            self.holders[number].place = self.order.len() as u32;
            self.order.push(number as u32);
            self.at_least[0] += 1;
        }
        if self.at_least.len() == count + 1 {
            self.at_least.push(0);
        }
        let first = self.at_least[count + 1];
        self.exchange(self.holders[number].place, first);
        self.at_least[count + 1] += 1;
        self.holders[number].count += 1;
    }

    /// Counts one less: its holder changes places with the last of those that hold as many.
    fn shrink(&mut self, number: usize) {
        let count = self.holders[number].count as usize;
        self.at_least[count] -= 1;
        self.exchange(self.holders[number].place, self.at_least[count]);
        if self.at_least[count] == 0 {
            self.at_least.pop();
        }
        self.holders[number].count -= 1;
        if count == 1 {
            // Nobody in the order holds nothing, so it is the last.
            self.order.pop();
            self.at_least[0] -= 1;
        }
    }

    fn exchange(&mut self, one: u32, other: u32) {
        self.order.swap(one as usize, other as usize);
        for place in [one, other] {
            self.holders[self.order[place as usize] as usize].place = place;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::super::client_ledger::{ClientLedger, Entered};
    use super::*;
    use crate::telemetry::{Family, Kind, Registry};
    use crate::time::Span;

    static OVERFLOWS: Family = Family { name: "overflows_total", help: "-", kind: Kind::Counter, labels: &[] };

    fn clients(count: usize) -> Vec<Entered> {
        let ledger = ClientLedger::new(Registry::new().counter(&OVERFLOWS, &[]));
        (0..count).map(|_| ledger.enter(None)).collect()
    }

    fn at(secs: u64) -> Tick {
        Tick::ZERO + Span::from_secs(secs)
    }

    #[test]
    fn the_heaviest_holders_oldest_is_found() {
        let clients = clients(3);
        let mut all = Holdings::default();
        assert!(all.oldest_of_heaviest().is_none());
        assert_eq!(all.most(), 0);
        let mut add = |client: usize, item: u64| all.add(&clients[client], at(item), item);
        let (one, two, three) = (add(0, 1), add(1, 2), add(1, 3));
        assert_eq!((all.most(), all.of(&clients[0]), all.of(&clients[1]), all.of(&clients[2])), (2, 1, 2, 0));
        assert_eq!(all.oldest_of_heaviest(), Some((two, &2, at(2))));
        assert_eq!(all.remove(two), Some(2));
        assert!(all.remove(two).is_none(), "once");
        let four = all.add(&clients[2], at(4), 4);
        assert!(all.remove(two).is_none(), "nor what is in its place");
        assert_eq!(all.remove(four), Some(4));
        assert_eq!(all.most(), 1);
        assert_eq!(all.remove(three), Some(3));
        assert_eq!(all.oldest_of_heaviest().unwrap().0, one);
        all.remove(one);
        assert_eq!((all.most(), all.len()), (0, 0));
    }

    #[test]
    fn each_of_an_unknown_client_weighs_one() {
        let clients = clients(1);
        let unknown = ClientAccount::default();
        let mut all = Holdings::default();
        let held: Vec<_> = (1..=3).map(|item| all.add(&unknown, at(item), item)).collect();
        assert_eq!((all.most(), all.len()), (1, 3));
        assert_eq!(all.oldest_of_heaviest(), Some((held[0], &1, at(1))));
        let known = [all.add(&clients[0], at(4), 4), all.add(&clients[0], at(5), 5)];
        assert_eq!(all.oldest_of_heaviest(), Some((known[0], &4, at(4))));
        for held in held.into_iter().chain(known) {
            assert!(all.remove(held).is_some());
        }
        assert_eq!((all.most(), all.len()), (0, 0));
    }

    #[test]
    fn what_is_renewed_is_the_youngest() {
        let clients = clients(1);
        let mut all = Holdings::default();
        let held: Vec<_> = (1..=3).map(|item| all.add(&clients[0], at(item), item)).collect();
        all.renew(held[0], at(9));
        assert_eq!(all.oldest_of_heaviest().unwrap().1, &2);
        all.renew(held[2], at(10));
        all.remove(held[1]);
        assert_eq!(all.oldest_of_heaviest(), Some((held[0], &1, at(9))));
    }

    /// It says the same as a list that is searched, whatever comes and goes.
    #[test]
    fn it_agrees_with_a_plain_list() {
        let clients = clients(7);
        let mut all = Holdings::default();
        let mut plain: Vec<(Held, usize, u64)> = Vec::new();
        let mut random = 0x9e37_79b9_u64;
        for step in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let dice = (random >> 33) as usize;
            let is_full = plain.len() > 60;
            match dice % 5 {
                0 | 1 if !plain.is_empty() => {
                    let (held, _, item) = plain.remove(dice / 5 % plain.len());
                    assert_eq!(all.remove(held), Some(item));
                }
                2 if !plain.is_empty() => {
                    let (held, client, item) = plain.remove(dice / 5 % plain.len());
                    all.renew(held, at(step));
                    plain.push((held, client, item));
                }
                _ if is_full => {}
                _ => {
                    let client = dice / 5 % clients.len();
                    let held = all.add(&clients[client], at(step), step);
                    plain.push((held, client, step));
                }
            }
            let mut counts = HashMap::new();
            for (_, client, _) in &plain {
                *counts.entry(*client).or_insert(0) += 1;
            }
            let most = counts.values().copied().max().unwrap_or(0);
            assert_eq!((all.most(), all.len()), (most, plain.len()));
            for (number, client) in clients.iter().enumerate() {
                assert_eq!(all.of(client), counts.get(&number).copied().unwrap_or(0));
            }
            if let Some((_, first, _)) = all.oldest_of_heaviest() {
                let (_, heaviest, _) = plain.iter().find(|(_, _, item)| item == first).unwrap();
                assert_eq!(counts[heaviest], most);
                let oldest = plain.iter().find(|(_, client, _)| client == heaviest).unwrap();
                assert_eq!(oldest.2, *first);
            } else {
                assert!(plain.is_empty());
            }
        }
        assert!(all.nodes.len() <= 61, "nodes are used again");
    }
}
