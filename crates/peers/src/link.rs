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
    /// The last count of a key that was sent and is not acknowledged, and when.
    sent: BTreeMap<CountKey, (u64, u64, Tick)>,
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
        sent.is_some_and(|(of, told, at)| (*of, *told) == (epoch, count) && now < *at + again)
    }

    /// Writes down that these are sent now. The number and the acknowledgement go with them.
    pub(crate) fn send(&mut self, entries: &[KeyCount], now: Tick) -> (u64, Option<Acknowledgement>) {
        self.sequence = self.sequence.saturating_add(1);
        self.owes_acknowledgement = false;
        for entry in entries {
            self.sent.insert(entry.key, (entry.epoch, entry.count, now));
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

    /// The entries that the peer is known to have now.
    pub(crate) fn acknowledge(&mut self, acknowledged: &Acknowledgement) -> Vec<KeyCount> {
        let mut known = Vec::new();
        self.in_flight.retain_mut(|(sequence, entries)| {
            let is_covered = acknowledged.covers(*sequence);
            if is_covered {
                known.append(entries);
            }
            !is_covered
        });
        for entry in &known {
            let is_last = |(epoch, count, _): &(u64, u64, Tick)| (*epoch, *count) == (entry.epoch, entry.count);
            if self.sent.get(&entry.key).is_some_and(is_last) {
                self.sent.remove(&entry.key);
            }
        }
        known
    }

    /// Nothing of a key is waited for any more.
    pub(crate) fn forget(&mut self, key: CountKey) {
        self.sent.remove(&key);
    }
}
