//! The parts that clients hold of something that is bounded, in the order in which they came by it: so that the one who
//! holds most can be found at once, and what it has held longest.

use super::ledger::{ClientAccount, UNKNOWN};
use sluicegate_time::Tick;

const NIL: u32 = u32::MAX;

/// Things that are held, by clients. Each step takes the same time, however many there are.
#[derive(Debug)]
pub struct Holdings<T> {
    nodes: Vec<HoldingNode<T>>,
    /// First of the chain of free nodes.
    free: u32,
    /// By the numbers of accounts.
    holders: Vec<Holder>,
    /// Holders of one thing, of two, and so on: each list in the order in which they came to hold so many. The last list is
    /// not empty. Clients that are not known yet are in none, as they are taken to hold one each.
    levels: Vec<List>,
    count: usize,
}

/// Names one thing for as long as it is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldingId {
    index: u32,
    turn: u32,
}

#[derive(Debug)]
struct HoldingNode<T> {
    /// In the list of its holder, or the chain of free nodes.
    links: Links,
    /// How often it was filled, so that nobody takes out what is there instead.
    turn: u32,
    /// The number of the account of the client that holds it.
    number: u32,
    since: Tick,
    /// `None` in a free node.
    item: Option<T>,
}

#[derive(Clone, Copy, Debug)]
struct Holder {
    /// Nodes, the one that it has held longest in front.
    things: List,
    count: u32,
    /// In the list of those that hold as many.
    links: Links,
}

/// A list through the links of its elements.
#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
}

#[derive(Clone, Copy, Debug)]
struct Links {
    next: u32,
    prev: u32,
}

const EMPTY: List = List { first: NIL, last: NIL };
const UNLINKED: Links = Links { next: NIL, prev: NIL };
const NOTHING: Holder = Holder { things: EMPTY, count: 0, links: UNLINKED };

impl<T> Default for Holdings<T> {
    fn default() -> Self {
        Self { nodes: Vec::new(), free: NIL, holders: Vec::new(), levels: Vec::new(), count: 0 }
    }
}

impl<T> Holdings<T> {
    /// Adds a thing; it is the one that its holder has held shortest. Its owner keeps the account for as long.
    pub fn add(&mut self, account: &ClientAccount, since: Tick, item: T) -> HoldingId {
        let number = account.number();
        let index = match self.free {
            NIL => {
                self.nodes.push(HoldingNode { links: UNLINKED, turn: 0, number: 0, since, item: None });
                self.nodes.len() as u32 - 1
            }
            free => {
                self.free = self.nodes[free as usize].links.next;
                free
            }
        };
        let node = &mut self.nodes[index as usize];
        node.turn = node.turn.wrapping_add(1);
        (node.number, node.since, node.item) = (number as u32, since, Some(item));
        let held = HoldingId { index, turn: node.turn };
        if self.holders.len() <= number {
            self.holders.resize(number + 1, NOTHING);
        }
        self.holders[number].things.append(&mut self.nodes, index);
        self.put_at_level(number, self.holders[number].count + 1);
        self.count += 1;
        held
    }

    /// Takes a thing out; `None` if that was done before.
    pub fn remove(&mut self, held: HoldingId) -> Option<T> {
        let node = self.nodes.get_mut(held.index as usize).filter(|node| node.turn == held.turn)?;
        let item = node.item.take()?;
        let number = node.number as usize;
        self.holders[number].things.remove(&mut self.nodes, held.index);
        self.nodes[held.index as usize].links.next = std::mem::replace(&mut self.free, held.index);
        self.put_at_level(number, self.holders[number].count.saturating_sub(1));
        self.count -= 1;
        Some(item)
    }

    /// Files a thing anew, as held since then and shorter than all else of its holder. The holder goes behind all that hold
    /// as many.
    pub fn renew(&mut self, held: HoldingId, since: Tick) {
        let node = self.nodes.get_mut(held.index as usize);
        let Some(node) = node.filter(|node| node.turn == held.turn && node.item.is_some()) else { return };
        node.since = since;
        let number = node.number as usize;
        let holder = &mut self.holders[number];
        holder.things.remove(&mut self.nodes, held.index);
        holder.things.append(&mut self.nodes, held.index);
        self.put_at_level(number, self.holders[number].count);
    }

    /// How many things this client holds. One that is not known yet is another than all that came before, and holds none.
    pub fn of(&self, account: &ClientAccount) -> u32 {
        self.holders.get(account.number()).map_or(0, |holder| holder.count)
    }

    /// How many the client holds that holds most.
    pub fn most(&self) -> u32 {
        (self.levels.len() as u32).max(u32::from(self.oldest_of_unknown().is_some()))
    }

    /// The thing that the client that holds most has held longest, and since when. Of several clients that hold as many
    /// it is the one that came to hold so many, or whose thing was renewed, before the others: where each holds one,
    /// the client that has held it longest.
    pub fn oldest_of_heaviest(&self) -> Option<(HoldingId, &T, Tick)> {
        let known = self.levels.last().map(|level| self.holders[level.first as usize].things.first);
        let since = |index: u32| self.nodes[index as usize].since;
        let index = match (known, self.oldest_of_unknown()) {
            (Some(known), Some(unknown)) if self.levels.len() == 1 && since(unknown) < since(known) => unknown,
            (known, unknown) => known.or(unknown)?,
        };
        let node = &self.nodes[index as usize];
        Some((HoldingId { index, turn: node.turn }, node.item.as_ref()?, node.since))
    }

    /// How many things are held.
    pub fn len(&self) -> usize {
        self.count
    }

    fn oldest_of_unknown(&self) -> Option<u32> {
        self.holders.get(UNKNOWN).map(|unknown| unknown.things.first).filter(|first| *first != NIL)
    }

    /// Puts a holder behind all that hold `count`. It has held as many until now, or one more or less.
    fn put_at_level(&mut self, number: usize, count: u32) {
        if number == UNKNOWN {
            return;
        }
        let before = std::mem::replace(&mut self.holders[number].count, count) as usize;
        if let Some(level) = before.checked_sub(1) {
            self.levels[level].remove(&mut self.holders, number as u32);
        }
        if let Some(level) = (count as usize).checked_sub(1) {
            if self.levels.len() == level {
                self.levels.push(EMPTY);
            }
            self.levels[level].append(&mut self.holders, number as u32);
        }
        // The one before it is not empty: the holder has gone there, if it still holds something.
        if self.levels.last().is_some_and(|level| level.first == NIL) {
            self.levels.pop();
        }
    }
}

trait Linked {
    fn links(&mut self) -> &mut Links;
}

impl<T> Linked for HoldingNode<T> {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

impl Linked for Holder {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

impl List {
    fn append(&mut self, all: &mut [impl Linked], index: u32) {
        let last = std::mem::replace(&mut self.last, index);
        match last {
            NIL => self.first = index,
            last => all[last as usize].links().next = index,
        }
        *all[index as usize].links() = Links { next: NIL, prev: last };
    }

    fn remove(&mut self, all: &mut [impl Linked], index: u32) {
        let Links { next, prev } = *all[index as usize].links();
        match prev {
            NIL => self.first = next,
            prev => all[prev as usize].links().next = next,
        }
        match next {
            NIL => self.last = prev,
            next => all[next as usize].links().prev = prev,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::super::ledger::{ClientLedger, Entered};
    use super::*;
    use sluicegate_time::Span;

    fn clients(count: usize) -> Vec<Entered> {
        let ledger = ClientLedger::new();
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

    #[test]
    fn of_many_with_one_each_those_that_came_first_go_first() {
        let clients = clients(1_000);
        let mut all = Holdings::default();
        for (number, client) in clients.iter().enumerate() {
            all.add(client, at(number as u64), number);
        }
        // 900 attackers came before 100 others: for each of these that comes one of the attackers goes.
        for gone in 0..900 {
            let (held, item, since) = all.oldest_of_heaviest().unwrap();
            assert_eq!((*item, since), (gone, at(gone as u64)));
            all.remove(held);
        }
        assert_eq!((all.len(), all.oldest_of_heaviest().unwrap().1), (100, &900));
    }

    #[test]
    fn of_several_with_as_many_the_one_that_came_to_it_first_gives_and_who_is_renewed_last() {
        let clients = clients(3);
        let mut all = Holdings::default();
        let mut add = |client: usize, item: u64| all.add(&clients[client], at(item), item);
        let (one, two, _) = (add(0, 1), add(1, 2), add(2, 3));
        let (_, four) = (add(1, 4), add(0, 5));
        assert_eq!(all.oldest_of_heaviest().unwrap().1, &2, "it had two before the other");
        all.renew(two, at(6));
        assert_eq!(all.oldest_of_heaviest().unwrap().1, &1);
        all.remove(one);
        assert_eq!(all.oldest_of_heaviest().unwrap().1, &4);
        all.remove(two);
        assert_eq!(all.oldest_of_heaviest().unwrap().1, &3, "the only one that has had one all the time");
        all.renew(four, at(7));
        assert_eq!(all.most(), 1);
    }

    #[test]
    fn the_older_of_a_known_and_an_unknown_client_gives() {
        let clients = clients(2);
        let unknown = ClientAccount::default();
        let mut all = Holdings::default();
        all.add(&clients[0], at(1), 1);
        all.add(&unknown, at(2), 2);
        all.add(&clients[1], at(3), 3);
        all.add(&unknown, at(4), 4);
        let order: Vec<u64> = std::iter::from_fn(|| {
            let held = all.oldest_of_heaviest()?.0;
            all.remove(held)
        })
        .collect();
        assert_eq!(order, [1, 2, 3, 4]);
    }

    /// It says the same as a list that is searched, whatever comes and goes.
    #[test]
    fn it_agrees_with_a_plain_list() {
        let clients = clients(7);
        let unknown = ClientAccount::default();
        let mut all = Holdings::default();
        // The things that are held, each holder's oldest first; clients in the order in which they came to hold as many as they do.
        let mut plain: Vec<(HoldingId, usize, u64, u64)> = Vec::new();
        let mut order: Vec<usize> = Vec::new();
        let mut random = 0x9e37_79b9_u64;
        for step in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let dice = (random >> 33) as usize;
            let (most_held, has_unknown) = [(60, true), (60, false), (9, true)][step as usize / 100 % 3];
            let is_full = plain.len() > most_held;
            let client = match dice % 5 {
                0 | 1 if !plain.is_empty() => {
                    let (held, client, item, _) = plain.remove(dice / 5 % plain.len());
                    assert_eq!(all.remove(held), Some(item));
                    client
                }
                2 if !plain.is_empty() => {
                    let (held, client, item, _) = plain.remove(dice / 5 % plain.len());
                    all.renew(held, at(step));
                    plain.push((held, client, item, step));
                    client
                }
                _ if is_full => continue,
                _ => {
                    let client = dice / 5 % (clients.len() + usize::from(has_unknown));
                    let account = clients.get(client).map_or(&unknown, |client| client.account());
                    plain.push((all.add(account, at(step), step), client, step, step));
                    client
                }
            };
            order.retain(|other| *other != client);
            order.push(client);
            let mut counts = HashMap::new();
            for (_, client, ..) in plain.iter().filter(|(_, client, ..)| *client < clients.len()) {
                *counts.entry(*client).or_insert(0) += 1;
            }
            let oldest_unknown = plain.iter().find(|(_, client, ..)| *client == clients.len());
            let most = counts.values().copied().max().unwrap_or(0).max(u32::from(oldest_unknown.is_some()));
            assert_eq!((all.most(), all.len()), (most, plain.len()));
            for (number, client) in clients.iter().enumerate() {
                assert_eq!(all.of(client), counts.get(&number).copied().unwrap_or(0));
            }
            let heaviest = order.iter().find(|client| counts.get(*client) == Some(&most));
            let of_known = heaviest.and_then(|heaviest| plain.iter().find(|(_, client, ..)| client == heaviest));
            let of_unknown = oldest_unknown.filter(|_| most == 1);
            let expected = of_known.into_iter().chain(of_unknown).min_by_key(|(.., since)| *since);
            let found = all.oldest_of_heaviest().map(|(held, item, since)| (held, *item, since));
            assert_eq!(found, expected.map(|(held, _, item, since)| (*held, *item, at(*since))));
        }
        assert!(all.nodes.len() <= 61, "nodes are used again");
    }
}
