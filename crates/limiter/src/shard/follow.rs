//! Costs that are counted after the keys were copied for a process that takes over.

use super::Shard;
use crate::followed::Followed;
use crate::key::Fingerprint;

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
            followed.push(Followed { key, cost, at: self.latest });
        }
    }
}
