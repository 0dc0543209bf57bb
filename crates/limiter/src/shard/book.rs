//! A shard's messages to the fleet: the keys that have something to say, and the lines of those who wait.
//!
//! A key stays in its list until its message can be sent. A message that was made and then waited would keep the key busy
//! meanwhile: its requests would wait for the answer to something that nobody has asked.

use std::collections::VecDeque;

use super::line::KeyQueues;
use super::made::Made;
use super::{Fingerprint, Tick};
use crate::lease::{Lease, ReportQueue};
use crate::settle::{Collect, Turn};
use crate::table::Table;

/// A shard's state of the fleet beside the words of its keys.
#[derive(Clone, Debug, Default)]
pub(super) struct Book {
    pub(super) lines: KeyQueues,
    pub(super) made: Made,
    /// Cost of keys that had no place in the store, ever.
    pub(super) alone: u64,
    /// The keys of each [`ReportQueue`], first in, first out.
    rounds: VecDeque<Fingerprint>,
    soon: VecDeque<Fingerprint>,
    asks: VecDeque<Fingerprint>,
    /// So many of the first of `rounds` have their turn.
    turns: usize,
    /// Keys that have their turn, too, and whose part of the store was busy.
    busy: VecDeque<Fingerprint>,
    /// They report what they have spent on credit, too.
    reports: bool,
    /// A key that has no record may have been forgotten until then, with what the store had said of it.
    pub(super) forgot_until: Tick,
    /// Messages about keys that have been forgotten.
    leftovers: VecDeque<Leftover>,
    pub(super) lost: u64,
    pub(super) unanswered: u64,
    pub(super) refused_early: u64,
    pub(super) serial: u32,
    /// How many rounds there were.
    begun: u32,
    /// The bell is to be rung once the lock is given back.
    pub(super) rings: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Leftover {
    pub(super) key: Fingerprint,
    pub(super) spent: u64,
    pub(super) back: u64,
    pub(super) charged_at: Tick,
}

/// One that may have something to say.
#[derive(Clone, Copy, Debug)]
pub(super) enum Speaker {
    /// A key from this list; `reports`: of what it has spent on credit, too.
    Key {
        key: Fingerprint,
        list: ReportQueue,
        reports: bool,
    },
    Forgotten(Leftover),
}

impl Speaker {
    pub(super) fn key(&self) -> Fingerprint {
        match self {
            Self::Key { key, .. } | Self::Forgotten(Leftover { key, .. }) => *key,
        }
    }
}

/// Above so many what is to be said of a forgotten key is lost, and counted: the store is away, and somebody makes up keys.
const MOST_LEFTOVERS: usize = 4_096;

/// A list of keys may have so many more than twice the table before those that have been forgotten are taken out.
const LISTS_SPARE: usize = 64;

impl Book {
    /// Enters a key that may have something to say: in a round, and before that in the list `sooner`.
    pub(super) fn list(&mut self, lease: &mut Lease, key: Fingerprint, sooner: Option<ReportQueue>) {
        if lease.has_news() && lease.list(ReportQueue::Rounds) {
            self.rounds.push_back(key);
        }
        let Some(list) = sooner.filter(|list| lease.list(*list)) else { return };
        match list {
            ReportQueue::Rounds => self.rounds.push_back(key),
            ReportQueue::Soon => self.soon.push_back(key),
            ReportQueue::Asks => self.asks.push_back(key),
        }
        self.rings = true;
    }

    /// All keys that are listed have their turn. Cost that is spent on credit is reported in each `rounds`-th round.
    pub(super) fn begin(&mut self, turn: Turn, rounds: u32) {
        self.begun = self.begun.wrapping_add(u32::from(turn == Turn::Round));
        self.rounds.append(&mut self.busy);
        self.turns = self.rounds.len();
        self.reports |= turn == Turn::All || self.begun.is_multiple_of(rounds);
    }

    /// Takes the next one whose turn it is from its list.
    pub(super) fn next(&mut self, collect: Collect) -> Option<Speaker> {
        let key = |key, list, reports| Speaker::Key { key, list, reports };
        if collect == Collect::Asks {
            return Some(key(self.asks.pop_front()?, ReportQueue::Asks, true));
        }
        if let Some(leftover) = self.leftovers.pop_front() {
            return Some(Speaker::Forgotten(leftover));
        }
        if let Some(soon) = self.soon.pop_front() {
            return Some(key(soon, ReportQueue::Soon, true));
        }
        let in_turn = self.turns.checked_sub(1).and_then(|rest| {
            self.turns = rest;
            self.rounds.pop_front()
        });
        let in_turn = in_turn.or_else(|| self.busy.pop_front());
        if in_turn.is_none() {
            (self.turns, self.reports) = (0, false);
        }
        Some(key(in_turn?, ReportQueue::Rounds, self.reports))
    }

    /// Speakers that could not be heard wait behind the others, and keep their turns.
    pub(super) fn put_back(&mut self, speakers: Vec<Speaker>) {
        for speaker in speakers {
            match speaker {
                Speaker::Forgotten(leftover) => self.leftovers.push_back(leftover),
                Speaker::Key { key, list: ReportQueue::Asks, .. } => self.asks.push_back(key),
                Speaker::Key { key, list: ReportQueue::Soon, .. } => self.soon.push_back(key),
                Speaker::Key { key, list: ReportQueue::Rounds, reports } => {
                    self.busy.push_back(key);
                    self.reports |= reports;
                }
            }
        }
    }

    pub(super) fn leave_over(&mut self, leftover: Leftover) {
        if leftover.spent == 0 && leftover.back == 0 {
            return;
        }
        if self.leftovers.len() < MOST_LEFTOVERS {
            self.leftovers.push_back(leftover);
        } else {
            self.lost = self.lost.saturating_add(leftover.spent);
        }
    }

    /// Takes forgotten keys out of lists that have grown too long: while the store is away nobody empties them, and each new
    /// key goes into them.
    pub(super) fn tidy(&mut self, table: &Table) {
        for keys in [&mut self.rounds, &mut self.busy, &mut self.soon, &mut self.asks] {
            if keys.len() > 2 * table.len() + LISTS_SPARE {
                let mut all = Vec::from(std::mem::take(keys));
                all.sort_unstable_by_key(|key| key.bits());
                all.dedup();
                all.retain(|key| table.find(*key).is_some());
                *keys = all.into();
            }
        }
    }

    /// The keys that may have spent something, or hold a grant.
    pub(super) fn listed(&self) -> impl Iterator<Item = Fingerprint> {
        self.rounds.iter().chain(&self.busy).copied()
    }

    /// The entries of all lists, and the cost that forgotten keys have spent.
    pub(super) fn entries(&self) -> (usize, u64) {
        let entries = self.rounds.len() + self.busy.len() + self.soon.len() + self.asks.len() + self.leftovers.len();
        (entries, self.leftovers.iter().map(|leftover| leftover.spent).sum())
    }
}

/// Whether others wait for the store's answer before the request that has this place in the line, or none.
pub(super) fn is_behind(book: Option<&Book>, key: Fingerprint, place: Option<u64>) -> bool {
    let Some(book) = book else { return false };
    match place {
        Some(place) => !book.lines.is_front(key, place),
        None => book.lines.has(key),
    }
}
