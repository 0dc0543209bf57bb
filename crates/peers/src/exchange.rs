use std::cmp::{Ordering, Reverse};

use sluicegate_time::{Span, Tick};

use crate::ledger::HeardCount;
use crate::link::PeerLink;
use crate::{CountKey, Datagram, KeyCount, PeerId, SpendLedger};

/// Something that a datagram of a peer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerEvent {
    /// So much of a key was spent there: to be taken out of its bucket here, at most as much as comes back in that time.
    Charged {
        /// The key.
        key: CountKey,
        /// The tokens.
        cost: u64,
        /// The time.
        within: Span,
        /// No count of this key was heard before in this life of the peer, or in this gateway's.
        is_first: bool,
    },
    /// It has counts that were sent to it; the one that took longest was sent first then.
    Acknowledged {
        /// When.
        since: Tick,
    },
}

/// The fate of a datagram that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Its counts are charged as far as they are new.
    Applied,
    /// Its number was there before, or is too old: nothing has changed.
    Repeated,
    /// Its sender is no peer that lives, or it is of another life of it: nothing has changed.
    Stranger,
}

impl SpendLedger {
    /// Takes a peer in, or back: its counts are heard, and all own counts that matter are told to it. A new incarnation is a new
    /// peer in the same place. `false`: there are too many.
    pub fn peer_joined(&mut self, peer: PeerId, incarnation: u64, now: Tick) -> bool {
        let same = self.links.get_mut(&peer).filter(|link| link.incarnation == incarnation);
        if let Some(link) = same {
            link.is_live = true;
        } else {
            if !self.links.contains_key(&peer) && !self.make_place() {
                self.hits.peers = self.hits.peers.saturating_add(1);
                return false;
            }
            self.forget(peer);
            self.links.insert(peer, PeerLink::new(incarnation, self.highest_sequence));
        }
        let Some(link) = self.links.get_mut(&peer) else { return false };
        for (key, _) in self.own.iter().filter(|(_, own)| own.untold(peer) > 0) {
            self.unsettled.insert(*key);
            link.enqueue(*key, now);
        }
        true
    }

    /// Takes a peer out for now. Its counts stay, so that nothing is charged twice when it comes back.
    pub fn peer_gone(&mut self, peer: PeerId) {
        if let Some(link) = self.links.get_mut(&peer) {
            link.is_live = false;
        }
        let keys: Vec<_> = self.unsettled.iter().copied().collect();
        for key in keys {
            self.settle(key);
        }
    }

    /// The next datagrams for a peer, `most` at most: of so many keys that are `looked_at` those with the largest untold spend first,
    /// as many as fit in each, and the acknowledgement. None if there is nothing to tell now.
    pub fn outgoing(
        &mut self,
        peer: PeerId,
        now: Tick,
        max_bytes: usize,
        (most, looked_at): (usize, usize),
    ) -> Vec<Datagram> {
        if !self.links.get(&peer).is_some_and(|link| link.is_live) {
            return Vec::new();
        }
        let mut wanted = self.untold(peer, now, looked_at);
        wanted.sort_unstable_by_key(|(weight, entry)| (Reverse(*weight), entry.key));
        let entries: Vec<_> = wanted.into_iter().map(|(_, entry)| entry).collect();
        let Some(link) = self.links.get_mut(&peer) else { return Vec::new() };
        let mut parts: Vec<_> = entries.chunks(Datagram::capacity(max_bytes).max(1)).take(most).collect();
        if parts.is_empty() && link.owes_acknowledgement() {
            parts.push(&[]);
        }
        let (incarnation, again) = (self.incarnation, self.settings.resend_after);
        let datagram = |entries: &[KeyCount]| {
            let (sequence, acknowledged) = link.send(entries, again, now);
            Datagram { incarnation, sequence, acknowledged, entries: entries.to_vec() }
        };
        parts.into_iter().map(datagram).collect()
    }

    /// Hears a datagram of a peer: charges what is new in its counts, below zero if need be. `says` is given all that it says.
    pub fn receive(
        &mut self,
        from: PeerId,
        datagram: &Datagram,
        now: Tick,
        mut says: impl FnMut(PeerEvent),
    ) -> Received {
        let own = self.incarnation;
        let link = self.links.get_mut(&from).filter(|link| link.is_live && link.incarnation == datagram.incarnation);
        let Some(link) = link else { return Received::Stranger };
        if !link.accept(datagram.sequence, !datagram.entries.is_empty()) {
            return Received::Repeated;
        }
        let acknowledged = datagram.acknowledged.filter(|acknowledged| acknowledged.incarnation == own);
        let (known, since) = acknowledged.map(|acknowledged| link.acknowledge(&acknowledged)).unwrap_or_default();
        if let Some(since) = since {
            says(PeerEvent::Acknowledged { since });
        }
        for entry in known {
            self.know(from, &entry);
        }
        for entry in &datagram.entries {
            if let Some((cost, is_first)) = self.charge(from, entry, now) {
                says(PeerEvent::Charged { key: entry.key, cost, within: entry.level, is_first });
            }
        }
        Received::Applied
    }

    /// Own counts that a peer is to be told, of so many keys at most, each with the units that it would charge.
    fn untold(&mut self, peer: PeerId, now: Tick, most: usize) -> Vec<(u128, KeyCount)> {
        let mut wanted = Vec::new();
        let mut faded = Vec::new();
        let Some(link) = self.links.get_mut(&peer) else { return wanted };
        for key in &link.waiting(now, most) {
            let known = self.limits.get(&key.limit).zip(self.own.get_mut(key));
            let Some((rate, own)) = known.filter(|(_, own)| own.untold(peer) > 0) else {
                link.forget(*key);
                faded.push(*key);
                continue;
            };
            let untold = own.untold(peer);
            let level = own.level(rate, self.settings.grace, now);
            if level == 0 {
                // No bucket would remember any of it.
                own.told.insert(peer, own.count);
                link.forget(*key);
                faded.push(*key);
                continue;
            }
            let entry = KeyCount { key: *key, epoch: own.epoch, count: own.count, level: rate.time_for(level) };
            wanted.push((level.min(rate.units(untold)), entry));
        }
        for key in faded {
            self.settle(key);
        }
        wanted
    }

    /// A peer has a count of this gateway.
    fn know(&mut self, peer: PeerId, entry: &KeyCount) {
        if let Some(own) = self.own.get_mut(&entry.key).filter(|own| own.epoch == entry.epoch) {
            let told = own.told.entry(peer).or_default();
            *told = entry.count.max(*told);
        }
        self.settle(entry.key);
    }

    /// Charges the difference to the last count that was heard, at most what the sender's bucket would still remember. The
    /// first count of a life, or of an epoch, is a difference to zero. Answers the difference, and whether it is the first of the peer.
    fn charge(&mut self, from: PeerId, entry: &KeyCount, now: Tick) -> Option<(u64, bool)> {
        let rate = self.limits.get(&entry.key.limit).copied()?;
        if entry.level.is_zero() && !self.rows.contains_key(&entry.key) {
            return None;
        }
        self.change_row(entry.key, &rate, now, |row| {
            let heard = row.heard.get(&from).copied().unwrap_or(HeardCount { epoch: 0, count: 0 });
            let last = match entry.epoch.cmp(&heard.epoch) {
                Ordering::Less => return None,
                Ordering::Equal => heard.count,
                Ordering::Greater => 0,
            };
            let difference = entry.count.saturating_sub(last);
            if difference == 0 {
                return None;
            }
            row.heard.insert(from, HeardCount { epoch: entry.epoch, count: entry.count });
            let units = rate.units(difference).min(rate.refilled(entry.level));
            row.bucket.charge(&rate, units, now);
            Some((difference, heard.epoch == 0))
        })
    }

    /// Makes place for a further link: one that is gone gives its own up. `false` if there is none.
    fn make_place(&mut self) -> bool {
        if self.links.len() < self.settings.max_peers {
            return true;
        }
        let gone = self.links.iter().find(|(_, link)| !link.is_live).map(|(peer, _)| *peer);
        gone.map(|peer| self.forget(peer)).is_some()
    }

    /// Forgets everything about a peer but the numbers that were sent to it.
    fn forget(&mut self, peer: PeerId) {
        if let Some(link) = self.links.remove(&peer) {
            self.highest_sequence = self.highest_sequence.max(link.sequence);
        }
        for row in self.rows.values_mut() {
            row.heard.remove(&peer);
        }
        for own in self.own.values_mut() {
            own.told.remove(&peer);
        }
    }
}

impl CountKey {
    /// The key of a limit's fingerprint.
    pub fn new(limit: u64, fingerprint: u64) -> Self {
        Self { limit, fingerprint }
    }
}
