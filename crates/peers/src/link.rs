use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use sluicegate_time::{Span, Tick};

use crate::{Acknowledgement, CountKey, KeyCount, ReplayWindow};

/// Datagrams whose acknowledgement is waited for: one that is older is told again.
const MAX_IN_FLIGHT: usize = 512;

/// The link to one peer, in both directions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PeerLink {
    /// The life of the peer.
    pub(crate) incarnation: u64,
    pub(crate) is_live: bool,
    /// The numbers that have come from it.
    window: ReplayWindow,
    /// Something came that it has no acknowledgement of.
    owes_acknowledgement: bool,
    /// The number that was sent last.
    pub(crate) sequence: u64,
    in_flight: VecDeque<(u64, Vec<KeyCount>)>,
    /// Of each key that is not acknowledged: what was sent of it.
    sent: BTreeMap<CountKey, SentCount>,
    /// The keys that are to be sent, and since when.
    waiting: BTreeMap<CountKey, Tick>,
    /// When keys are to be sent again that were sent.
    due: BTreeSet<(Tick, CountKey)>,
    /// Those that are looked at begin behind it.
    cursor: Option<CountKey>,
}

/// The last count of a key that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SentCount {
    epoch: u64,
    count: u64,
    at: Tick,
    /// When it is to be sent again.
    again: Tick,
    /// When the first of what is not acknowledged was spent, or was sent if that was later.
    since: Tick,
}

impl PeerLink {
    pub(crate) fn new(incarnation: u64, sequence: u64) -> Self {
        Self {
            incarnation,
            is_live: true,
            window: ReplayWindow::new(),
            owes_acknowledgement: false,
            sequence,
            in_flight: VecDeque::new(),
            sent: BTreeMap::new(),
            waiting: BTreeMap::new(),
            due: BTreeSet::new(),
            cursor: None,
        }
    }

    /// Takes a number in; `false` if it is old or repeated. A datagram with entries is acknowledged.
    pub(crate) fn accept(&mut self, sequence: u64, has_entries: bool) -> bool {
        let is_new = self.window.accept(sequence);
        // A repeated one may say that the acknowledgement was lost.
        self.owes_acknowledgement |= has_entries;
        is_new
    }

    /// Whether the peer waits for an acknowledgement.
    pub(crate) fn owes_acknowledgement(&self) -> bool {
        self.owes_acknowledgement
    }

    /// A key has a count that the peer does not know.
    pub(crate) fn enqueue(&mut self, key: CountKey, since: Tick) {
        self.waiting.entry(key).or_insert(since);
    }

    /// Some keys that are to be sent now, `most` at most: where there are more, others the next time.
    pub(crate) fn waiting(&mut self, now: Tick, most: usize) -> Vec<CountKey> {
        while let Some((at, key)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, key));
            let since = self.sent.get(&key).map_or(now, |sent| sent.since);
            self.enqueue(key, since);
        }
        let Some(cursor) = self.cursor.filter(|_| self.waiting.len() > most) else {
            let keys: Vec<_> = self.waiting.keys().copied().take(most).collect();
            self.cursor = keys.last().copied();
            return keys;
        };
        let behind = self.waiting.range((Bound::Excluded(cursor), Bound::Unbounded));
        let keys: Vec<_> = behind.chain(self.waiting.range(..=cursor)).map(|(key, _)| *key).take(most).collect();
        self.cursor = keys.last().copied();
        keys
    }

    /// Writes down that these are sent now, and again after a time unless they are acknowledged. The number and the acknowledgement go
    /// with them.
    pub(crate) fn send(&mut self, entries: &[KeyCount], again: Span, now: Tick) -> (u64, Option<Acknowledgement>) {
        self.sequence = self.sequence.saturating_add(1);
        self.owes_acknowledgement = false;
        for entry in entries {
            let waited = self.waiting.remove(&entry.key).unwrap_or(now);
            let before = self.sent.remove(&entry.key);
            let since = before.map_or(waited, |sent| {
                self.due.remove(&(sent.again, entry.key));
                sent.since.min(waited)
            });
            let again = now + again;
            self.due.insert((again, entry.key));
            self.sent.insert(entry.key, SentCount { epoch: entry.epoch, count: entry.count, at: now, again, since });
        }
        if !entries.is_empty() {
            self.in_flight.push_back((self.sequence, entries.to_vec()));
        }
        if self.in_flight.len() > MAX_IN_FLIGHT {
            self.in_flight.pop_front();
        }
        let received = self.window.received();
        let acknowledged =
            received.map(|(highest, before)| Acknowledgement { incarnation: self.incarnation, highest, before });
        (self.sequence, acknowledged)
    }

    /// The entries that the peer is known to have now, and since when the one that took longest was on its way.
    pub(crate) fn acknowledge(&mut self, acknowledged: &Acknowledgement) -> (Vec<KeyCount>, Option<Tick>) {
        let mut known = Vec::new();
        self.in_flight.retain_mut(|(sequence, entries)| {
            let is_covered = acknowledged.covers(*sequence);
            if is_covered {
                known.append(entries);
            }
            !is_covered
        });
        let mut first = None;
        for entry in &known {
            let Some(sent) = self.sent.get_mut(&entry.key) else { continue };
            first = Some(first.map_or(sent.since, |first: Tick| first.min(sent.since)));
            sent.since = sent.at;
            if (sent.epoch, sent.count) == (entry.epoch, entry.count) {
                self.due.remove(&(sent.again, entry.key));
                self.sent.remove(&entry.key);
            }
        }
        (known, first)
    }

    /// Nothing of a key is waited for any more.
    pub(crate) fn forget(&mut self, key: CountKey) {
        self.waiting.remove(&key);
        if let Some(sent) = self.sent.remove(&key) {
            self.due.remove(&(sent.again, key));
        }
    }

    /// Nothing of keys but these is.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(&CountKey) -> bool) {
        self.waiting.retain(|key, _| is_kept(key));
        self.sent.retain(|key, _| is_kept(key));
        self.due.retain(|(_, key)| is_kept(key));
    }
}
