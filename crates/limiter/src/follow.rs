//! A limit that another process takes over while this one still admits: what is counted after the copy follows, and is added.
//!
//! A shard is copied and followed under one lock, so that each admission is either in the copy or follows. Three things do not
//! follow: concurrency, which ends with the process; a limit that a fleet shares, since the store is told; and cost that a
//! response gives back after the copy, so that the next process counts a little more at worst. Nor do refusals, of algorithms
//! that count them and of penalties.

use std::sync::atomic::Ordering;

use super::followed::Followed;
use super::limit::{Limit, lock};
use super::persist::Copying;
use sluicegate_time::Tick;

impl Limit {
    /// Gives the records of keys as [`copy_keys`](Self::copy_keys) does, and notes what is counted after them, until
    /// [`stop_following`](Self::stop_following). [Take](Self::take_followed) it often: it is kept until then.
    pub fn copy_and_follow<E>(&self, now: Tick, take: impl FnMut(&[u64]) -> Result<(), E>) -> Result<(), E> {
        self.follow_new_shards(true);
        self.copy(now, Copying::Followed, take)
    }

    /// Takes what was noted since the last time.
    pub fn take_followed(&self, taken: &mut Vec<Followed>) {
        if self.follows().load(Ordering::Relaxed) {
            for shard in self.made() {
                lock(shard).take_followed(taken);
            }
        }
    }

    /// Notes nothing any more.
    pub fn stop_following(&self) {
        self.follow_new_shards(false);
        for shard in self.made() {
            lock(shard).stop_following();
        }
    }

    /// Counts what another process has admitted, whether there is room or not.
    pub fn count_followed(&self, followed: &[Followed]) {
        if self.params().lease.is_some() {
            return;
        }
        for Followed { key, cost, at, renews } in followed {
            if let Some(day) = renews {
                self.lock(*key).follow_day(*key, *day, *at, self.keys());
                continue;
            }
            let wakers = self.lock(*key).count((*key, 0), *cost, *at, self.keys());
            wakers.wake();
        }
    }

    /// Shards that are made from now on begin as those that there are: under the lock under which they are made.
    fn follow_new_shards(&self, follow: bool) {
        let params = self.lock_params();
        self.follows().store(follow, Ordering::Relaxed);
        drop(params);
    }
}
