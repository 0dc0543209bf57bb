//! A shard's messages to the fleet: the keys that have something to say, and the lines of those who wait.

use super::line::Lines;
use super::{Fingerprint, Tick};
use crate::limiter::lease::Lease;
use crate::limiter::table::Table;

/// A shard's state of the fleet beside the words of its keys.
#[derive(Debug, Default)]
pub(super) struct Book {
    pub(super) lines: Lines,
    /// Keys with something to say in each round.
    pub(super) listed: Vec<Fingerprint>,
    /// Keys with something to say in the next batch.
    pub(super) urgent: Vec<Fingerprint>,
    /// Messages about keys that have been forgotten.
    pub(super) leftovers: Vec<Leftover>,
    pub(super) lost: u64,
    pub(super) serial: u32,
    /// How many rounds there were.
    pub(super) rounds: u32,
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

/// Above so many what is to be said of a forgotten key is lost, and counted: the store is away, and somebody makes up keys.
const MOST_LEFTOVERS: usize = 4_096;

/// A list of keys may have so many more than twice the table before those that have been forgotten are taken out.
const LISTS_SPARE: usize = 64;

impl Book {
    /// Enters a key that may have something to say.
    pub(super) fn list(&mut self, lease: &mut Lease, key: Fingerprint, is_urgent: bool) {
        if lease.has_news() && lease.list(false) {
            self.listed.push(key);
        }
        if is_urgent && lease.list(true) {
            self.urgent.push(key);
            self.rings = true;
        }
    }

    pub(super) fn leave_over(&mut self, leftover: Leftover) {
        if leftover.spent == 0 && leftover.back == 0 {
            return;
        }
        if self.leftovers.len() < MOST_LEFTOVERS {
            self.leftovers.push(leftover);
        } else {
            self.lost = self.lost.saturating_add(leftover.spent);
        }
    }

    /// Takes forgotten keys out of lists that have grown too long: while the store is away nobody empties them, and each new
    /// key goes into them.
    pub(super) fn tidy(&mut self, table: &Table) {
        for keys in [&mut self.listed, &mut self.urgent] {
            if keys.len() > 2 * table.len() + LISTS_SPARE {
                keys.sort_unstable_by_key(|key| key.bits());
                keys.dedup();
                keys.retain(|key| table.find(*key).is_some());
            }
        }
    }
}

/// Whether others wait for the store's answer before whoever has this place in the line, or none.
pub(super) fn is_behind(book: Option<&Book>, key: Fingerprint, place: Option<u64>) -> bool {
    let Some(book) = book else { return false };
    match place {
        Some(place) => !book.lines.is_front(key, place),
        None => book.lines.has(key),
    }
}
