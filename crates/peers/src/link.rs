use std::collections::{BTreeMap, VecDeque};

use sluicegate_time::{Span, Tick};

use crate::{Acknowledgement, CountKey, KeyCount, ReplayWindow};

/// Datagrams whose acknowledgement is waited for: one that is older is told again.
const MAX_IN_FLIGHT: usize = 128;

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
}

/// The last count of a key that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SentCount {
    epoch: u64,
    count: u64,
    at: Tick,
    /// When a count of which nothing is acknowledged yet was sent first.
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

    /// Whether this count was sent a moment ago, so that its acknowledgement may be on its way.
    pub(crate) fn is_on_its_way(&self, key: CountKey, (epoch, count): (u64, u64), again: Span, now: Tick) -> bool {
        let sent = self.sent.get(&key);
        sent.is_some_and(|sent| (sent.epoch, sent.count) == (epoch, count) && now < sent.at + again)
    }

    /// Writes down that these are sent now. The number and the acknowledgement go with them.
    pub(crate) fn send(&mut self, entries: &[KeyCount], now: Tick) -> (u64, Option<Acknowledgement>) {
        self.sequence = self.sequence.saturating_add(1);
        self.owes_acknowledgement = false;
        for entry in entries {
            let since = self.sent.get(&entry.key).map_or(now, |sent| sent.since);
            self.sent.insert(entry.key, SentCount { epoch: entry.epoch, count: entry.count, at: now, since });
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
                self.sent.remove(&entry.key);
            }
        }
        (known, first)
    }

    /// Nothing of a key is waited for any more.
    pub(crate) fn forget(&mut self, key: CountKey) {
        self.sent.remove(&key);
    }
}
