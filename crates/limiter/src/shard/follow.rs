//! Costs that are counted after the keys were copied for a process that takes over.

use std::num::NonZeroU8;

use super::{Asking, Record, Shard};
use crate::followed::Followed;
use crate::key::Fingerprint;
use crate::sync::AtomicU64;
use sluicegate_time::Tick;

impl Shard {
    /// Notes what is counted from now on, and nothing of before.
    pub(crate) fn follow(&mut self) {
        self.followed = Some(Vec::new());
    }

    /// Notes nothing any more.
    pub(crate) fn stop_following(&mut self) {
        self.followed = None;
    }

    /// Appends what was noted.
    pub(crate) fn take_followed(&mut self, taken: &mut Vec<Followed>) {
        if let Some(followed) = &mut self.followed {
            taken.append(followed);
        }
    }

    /// Something was counted just now.
    #[inline]
    pub(super) fn note(&mut self, key: Fingerprint, cost: u64) {
        if let Some(followed) = &mut self.followed {
            followed.push(Followed { key, cost, at: self.latest, renews: None });
        }
    }

    /// The next months of a key begin on that day.
    pub(super) fn note_day(&mut self, key: Fingerprint, day: NonZeroU8) {
        if let Some(followed) = &mut self.followed {
            followed.push(Followed { key, cost: 0, at: self.latest, renews: Some(day) });
        }
    }

    /// Another process has said so of a key.
    pub(crate) fn follow_day(&mut self, key: Fingerprint, day: NonZeroU8, now: Tick, keys: &AtomicU64) {
        self.latest = self.latest.max(now);
        let record = self.table.find(key).map(Record::At).or_else(|| self.place_for_new(Asking::Arrival, keys));
        self.renew(record.unwrap_or(Record::Uncounted), key, day, keys);
    }
}
