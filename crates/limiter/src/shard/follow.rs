//! Costs that are noted as they are counted: for a process that takes over, and for the gateways that share a limit without a store.

use std::num::NonZeroU8;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Asking, EffectiveMode, Fingerprint, Record, Shard, Wakers};
use crate::followed::Followed;
use crate::peer_spends::{PeerDebt, PeerSpends};
use crate::sync::AtomicU64;
use sluicegate_time::Tick;

/// The notes of a shard: for a process that takes over, for peers, or both.
#[derive(Clone, Debug, Default)]
pub(super) struct CountedCosts {
    /// For a process that takes over.
    heir: Option<Vec<Followed>>,
    /// For the peers.
    peers: Option<UntoldCosts>,
}

/// Costs that the peers are not told yet.
#[derive(Clone, Debug)]
struct UntoldCosts {
    spends: Vec<(Fingerprint, u64)>,
    lost: u64,
    /// Each key stands in them once, or did when there were too many. Once is enough until they are taken: it takes a while, under the
    /// lock of the shard.
    is_merged: bool,
    /// There are some, in a shard of the limit.
    some: Arc<AtomicBool>,
}

/// So many spends of a shard wait to be taken, some milliseconds of a busy one. More are lost, and counted: the fleet's thread has no time.
const MOST_UNTOLD: usize = 16_384;
/// Room for so many is kept.
const KEPT_ROOM: usize = 1_024;

impl Shard {
    /// Notes what is counted from now on for a process that takes over, and nothing of before.
    pub(crate) fn follow(&mut self) {
        self.counted.get_or_insert_default().heir = Some(Vec::new());
    }

    /// Notes nothing for it any more.
    pub(crate) fn stop_following(&mut self) {
        self.change_counted(|counted| counted.heir = None);
    }

    /// Appends what was noted for it.
    pub(crate) fn take_followed(&mut self, taken: &mut Vec<Followed>) {
        if let Some(followed) = self.counted.as_mut().and_then(|counted| counted.heir.as_mut()) {
            taken.append(followed);
        }
    }

    /// Notes what is counted from now on for the peers, or nothing any more. `some` is set when there is something.
    pub(crate) fn tell_peers(&mut self, some: Option<&Arc<AtomicBool>>) {
        let some = some.cloned();
        self.counted.get_or_insert_default();
        self.change_counted(|counted| match (some, &counted.peers) {
            (None, _) => counted.peers = None,
            (Some(_), Some(_)) => {}
            (Some(some), None) => {
                counted.peers = Some(UntoldCosts { spends: Vec::new(), lost: 0, is_merged: false, some });
            }
        });
    }

    /// Appends what was noted for the peers.
    pub(crate) fn take_spends(&mut self, taken: &mut PeerSpends) {
        if let Some(untold) = self.counted.as_mut().and_then(|counted| counted.peers.as_mut()) {
            taken.spends.append(&mut untold.spends);
            untold.spends.shrink_to(KEPT_ROOM);
            taken.lost += std::mem::take(&mut untold.lost);
            untold.is_merged = false;
        }
    }

    /// Something was counted just now.
    #[inline]
    pub(super) fn note(&mut self, key: Fingerprint, cost: u64) {
        if let Some(counted) = &mut self.counted {
            counted.note(key, cost, self.latest);
        }
    }

    /// The next months of a key begin on that day.
    pub(super) fn note_day(&mut self, key: Fingerprint, day: NonZeroU8) {
        if let Some(followed) = self.counted.as_mut().and_then(|counted| counted.heir.as_mut()) {
            followed.push(Followed { key, cost: 0, at: self.latest, renews: Some(day) });
        }
    }

    /// Another process has said so of a key.
    pub(crate) fn follow_day(&mut self, key: Fingerprint, day: NonZeroU8, now: Tick, keys: &AtomicU64) {
        self.latest = self.latest.max(now);
        let record = self.table.find(key).map(Record::At).or_else(|| self.place_for_new(Asking::Arrival, keys));
        self.renew(record.unwrap_or(Record::Uncounted), key, day, keys);
    }

    /// See [`Limit::owe`](crate::Limit::owe). Nothing where a new key finds no place, or the rate is none that peers share.
    pub(crate) fn owe(
        &mut self,
        key: Fingerprint,
        (rate, debt): (usize, PeerDebt),
        now: Tick,
        keys: &AtomicU64,
    ) -> Wakers {
        if matches!(self.params.stance, EffectiveMode::Pass | EffectiveMode::Closed) {
            return Wakers::default();
        }
        self.latest = self.latest.max(now);
        let found = self.table.find(key).map(Record::At);
        let record = found.or_else(|| self.place_for_new(Asking::Arrival, keys));
        let record = record.filter(|record| !matches!(record, Record::Uncounted));
        let Some(at) = record.and_then(|record| self.place(record, key, keys)) else { return Wakers::default() };
        let Self { params, table, latest, counted, queues, .. } = self;
        let state = table.state_mut(at);
        params.rule.advance(state, *latest);
        let Some((credit, words)) = params.rule.credit_of(state, rate) else { return Wakers::default() };
        let PeerDebt { cost, within, may_be_counted } = debt;
        let (owed, missing) = (credit.parts(cost).min(credit.refilled(within)), credit.missing(words, *latest));
        let missing = if may_be_counted { missing.max(owed) } else { missing.saturating_add(owed) };
        credit.set_missing(words, missing, *latest);
        if let (0, Some(followed)) = (rate, counted.as_mut().and_then(|counted| counted.heir.as_mut())) {
            followed.push(Followed { key, cost, at: *latest, renews: None });
        }
        queues.wake_head(key)
    }

    /// A copy of a shard notes nothing.
    pub(crate) fn forget_notes(&mut self) {
        self.counted = None;
    }

    fn change_counted(&mut self, change: impl FnOnce(&mut CountedCosts)) {
        let Some(counted) = &mut self.counted else { return };
        change(counted);
        if counted.heir.is_none() && counted.peers.is_none() {
            self.counted = None;
        }
    }
}

impl CountedCosts {
    #[inline(never)]
    fn note(&mut self, key: Fingerprint, cost: u64, at: Tick) {
        if let Some(followed) = &mut self.heir {
            followed.push(Followed { key, cost, at, renews: None });
        }
        let Some(UntoldCosts { spends, lost, is_merged, some }) = &mut self.peers else { return };
        if spends.len() >= MOST_UNTOLD && !*is_merged {
            merge(spends);
            // Where that has made much room it may be done again.
            *is_merged = spends.len() > MOST_UNTOLD / 2;
        }
        let has_room = spends.len() < MOST_UNTOLD;
        match spends.last_mut() {
            Some((last, spent)) if *last == key => *spent = spent.saturating_add(cost),
            _ if has_room => spends.push((key, cost)),
            _ => *lost = lost.saturating_add(cost),
        }
        some.store(true, Ordering::Relaxed);
    }
}

/// Each key once.
fn merge(spends: &mut Vec<(Fingerprint, u64)>) {
    spends.sort_unstable_by_key(|(key, _)| key.bits());
    spends.dedup_by(|later, kept| {
        let is_same = later.0 == kept.0;
        if is_same {
            kept.1 = kept.1.saturating_add(later.1);
        }
        is_same
    });
}
