use std::collections::{BTreeMap, BTreeSet};

use sluicegate_time::{Span, Tick};

use crate::link::PeerLink;
use crate::own_total::OwnTotal;
use crate::rate::DebtBucket;
use crate::{CountKey, PeerId, RefillRate};

/// The bounds and times of a [`SpendLedger`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LedgerSettings {
    /// Keys that have a bucket here at most. A further one takes the place of that which is full again the soonest.
    pub max_keys: usize,
    /// Evicted keys of which something is not told yet, at most. Of a further one that is lost.
    pub max_leftovers: usize,
    /// Peers at most, those that are gone but not forgotten included.
    pub max_peers: usize,
    /// A count that is not acknowledged is told again after so long.
    pub resend_after: Span,
    /// A spend of which a receiver hears within this time is charged in full, an older one as far as a bucket would still
    /// remember it. To be longer than the way to a peer, the interval of telling, and some resends together. At least 1 ns.
    pub grace: Span,
}

/// How often a [`SpendLedger`] met one of its bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BoundHits {
    /// A key took the place of another one.
    pub evicted: u64,
    /// Tokens that were spent and that not every peer will hear of: the leftovers were full.
    pub untold: u64,
    /// Peers that were not taken in.
    pub peers: u64,
}

/// The counts of one gateway: its own, which it tells, and those of its peers, of which it has heard.
///
/// See the crate for the protocol. Two gateways agree on a key if their limits have the same number, rate and burst.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SpendLedger {
    pub(crate) settings: LedgerSettings,
    pub(crate) limits: BTreeMap<u64, RefillRate>,
    pub(crate) incarnation: u64,
    pub(crate) rows: BTreeMap<CountKey, KeyRow>,
    /// When each row is full again, the soonest first.
    full_at: BTreeSet<(Tick, CountKey)>,
    pub(crate) own: BTreeMap<CountKey, OwnTotal>,
    /// Of those so many are of keys that have no row.
    leftovers: usize,
    /// Of those the ones that some peer that lives is not known to know.
    pub(crate) unsettled: BTreeSet<CountKey>,
    pub(crate) links: BTreeMap<PeerId, PeerLink>,
    /// The highest number of a link that was given up: its peer remembers it.
    pub(crate) highest_sequence: u64,
    last_epoch: u64,
    pub(crate) hits: BoundHits,
}

/// A key's bucket here, which its own spend and that of others are taken out of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct KeyRow {
    pub(crate) bucket: DebtBucket,
    pub(crate) heard: BTreeMap<PeerId, HeardCount>,
}

/// The last count heard of a peer in its present life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HeardCount {
    pub(crate) epoch: u64,
    pub(crate) count: u64,
}

impl SpendLedger {
    /// An empty ledger. `incarnation` is a random number of this life of the process, the limits have numbers that all
    /// gateways agree on.
    pub fn new(
        settings: LedgerSettings,
        limits: impl IntoIterator<Item = (u64, RefillRate)>,
        incarnation: u64,
    ) -> Self {
        Self {
            settings,
            limits: limits.into_iter().collect(),
            incarnation,
            rows: BTreeMap::new(),
            full_at: BTreeSet::new(),
            own: BTreeMap::new(),
            leftovers: 0,
            unsettled: BTreeSet::new(),
            links: BTreeMap::new(),
            highest_sequence: 0,
            last_epoch: 0,
            hits: BoundHits::default(),
        }
    }

    /// The number of this life.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// How often a bound was met.
    pub fn bound_hits(&self) -> BoundHits {
        self.hits
    }

    /// Other limits from now on, or others of their numbers. The windows of one that stays are to stay too, since amounts are
    /// counted in them. Of one that goes everything is forgotten.
    pub fn set_limits(&mut self, limits: impl IntoIterator<Item = (u64, RefillRate)>) {
        let limits = limits.into_iter().collect();
        if limits == self.limits {
            return;
        }
        self.limits = limits;
        let limits = &self.limits;
        self.rows.retain(|key, _| limits.contains_key(&key.limit));
        self.own.retain(|key, _| limits.contains_key(&key.limit));
        self.unsettled.retain(|key| limits.contains_key(&key.limit));
        for link in self.links.values_mut() {
            link.retain(|key| limits.contains_key(&key.limit));
        }
        self.leftovers = self.own.keys().filter(|key| !self.rows.contains_key(key)).count();
        let full_at =
            self.rows.iter().filter_map(|(key, row)| Some((row.bucket.full_at(limits.get(&key.limit)?), *key)));
        self.full_at = full_at.collect();
    }

    /// Takes a cost that was admitted here, between two instants, out of its bucket. Nothing if the limit is not known.
    pub fn spend(&mut self, key: CountKey, cost: u64, (since, now): (Tick, Tick)) {
        let Some(rate) = self.limits.get(&key.limit).copied().filter(|_| cost > 0) else { return };
        self.change_row(key, &rate, now, |row| row.bucket.charge(&rate, rate.units(cost), now));
        let times = (self.settings.grace, now);
        let own = self.own.entry(key).or_insert_with(|| {
            self.last_epoch = self.last_epoch.saturating_add(1);
            OwnTotal::new(self.last_epoch, now)
        });
        own.spend(&rate, cost, times);
        for link in self.links.values_mut().filter(|link| link.is_live) {
            link.enqueue(key, since);
            self.unsettled.insert(key);
        }
    }

    /// Whether each peer that lives is known to know all that was spent.
    pub fn is_settled(&self) -> bool {
        self.unsettled.is_empty()
    }

    /// Forgets buckets that have been full for two graces, `most` of them at most: of what was spent of them nothing would be
    /// remembered.
    pub fn tidy(&mut self, now: Tick, most: usize) {
        let long = Span::from_nanos(self.settings.grace.as_nanos().saturating_mul(2));
        for _ in 0..most {
            let Some((_, key)) = self.full_at.first().copied().filter(|(full_at, _)| *full_at + long < now) else {
                return;
            };
            self.evict(key);
        }
    }

    /// The units that are missing from a key's bucket: more than the burst's if it is below zero. See [`RefillRate::units`].
    pub fn missing(&self, key: CountKey, now: Tick) -> u128 {
        let Some(rate) = self.limits.get(&key.limit) else { return 0 };
        self.rows.get(&key).map_or(0, |row| row.bucket.missing(rate, now))
    }

    /// Keys that have a bucket.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether no key has a bucket.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Forgets a key's bucket and the peers' counts of it. Its own count is kept until all peers know it, if the leftovers have
    /// room; a key that comes again before goes on with it, and otherwise begins an epoch.
    pub fn evict(&mut self, key: CountKey) {
        let Some(row) = self.rows.remove(&key) else { return };
        if let Some(rate) = self.limits.get(&key.limit) {
            self.full_at.remove(&(row.bucket.full_at(rate), key));
        }
        if self.unsettled.contains(&key) && self.leftovers < self.settings.max_leftovers {
            self.leftovers += 1;
            return;
        }
        if let Some(own) = self.own.remove(&key) {
            let live = self.links.iter().filter(|(_, link)| link.is_live);
            let untold = live.map(|(peer, _)| own.untold(*peer)).max().unwrap_or_default();
            self.hits.untold = self.hits.untold.saturating_add(untold);
        }
        self.unsettled.remove(&key);
        for link in self.links.values_mut() {
            link.forget(key);
        }
    }

    /// Changes a row, which is made if it is not there.
    pub(crate) fn change_row<R>(
        &mut self,
        key: CountKey,
        rate: &RefillRate,
        now: Tick,
        change: impl FnOnce(&mut KeyRow) -> R,
    ) -> R {
        if !self.rows.contains_key(&key) {
            self.make_room();
            self.leftovers -= usize::from(self.own.contains_key(&key));
        }
        let own = &self.own;
        let row = self.rows.entry(key).or_insert_with(|| {
            // A leftover goes on: its spend is still out.
            let missing = own.get(&key).map_or(0, |own| own.missing(rate, now));
            KeyRow { bucket: DebtBucket::new(missing, now), heard: BTreeMap::new() }
        });
        let before = row.bucket.full_at(rate);
        let result = change(row);
        let after = row.bucket.full_at(rate);
        self.full_at.remove(&(before, key));
        self.full_at.insert((after, key));
        result
    }

    fn make_room(&mut self) {
        while self.rows.len() >= self.settings.max_keys.max(1) {
            let Some((_, soonest)) = self.full_at.first().copied() else { return };
            self.hits.evicted = self.hits.evicted.saturating_add(1);
            self.evict(soonest);
        }
    }

    /// Drops out of the unsettled what every peer that lives knows now, and the own count if it is of an evicted key.
    pub(crate) fn settle(&mut self, key: CountKey) {
        let Some(own) = self.own.get(&key) else {
            self.unsettled.remove(&key);
            return;
        };
        let mut live = self.links.iter().filter(|(_, link)| link.is_live);
        if live.any(|(peer, _)| own.untold(*peer) > 0) {
            return;
        }
        self.unsettled.remove(&key);
        if !self.rows.contains_key(&key) {
            self.own.remove(&key);
            self.leftovers -= 1;
        }
    }
}
