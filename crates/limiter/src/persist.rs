//! The keys of a limit as they outlive the process: copied shard by shard while requests are counted, and taken over by a new
//! process before its first request.
//!
//! States hold instants since 1970, so they mean the same in another process. They are copied as a rule without a past writes
//! them: a limit that was reconfigured may pack its words otherwise.

use super::algorithm::Rule;
use super::key::Fingerprint;
use super::limit::{Limit, lock};
use sluicegate_time::Tick;
use std::sync::atomic::Ordering;

/// The meaning of the words of a limit's keys: they are taken over only by a limit of the same layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyLayout {
    /// Words of a key, its fingerprint among them.
    pub words: usize,
    /// The algorithm, its numbers and its penalty.
    pub text: String,
}

/// The time after a copy of the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copying {
    /// Nothing.
    Alone,
    /// Whatever is counted from then on is noted.
    Followed,
}

impl Limit {
    /// The layout of its keys; `None`: they do not outlive the process, as what is in flight.
    pub fn key_layout(&self) -> Option<KeyLayout> {
        let spec = self.spec();
        let rule = Rule::new(&spec.algorithm, spec.penalty, None);
        if rule.needs_release() {
            return None;
        }
        Some(KeyLayout { words: 1 + rule.words(), text: format!("{rule:?}") })
    }

    /// Gives the records of the keys that count at `now`, some thousands at a time: each a fingerprint and its state. A key
    /// that comes or goes meanwhile may be there or not.
    pub fn copy_keys<E>(&self, now: Tick, take: impl FnMut(&[u64]) -> Result<(), E>) -> Result<(), E> {
        self.copy(now, Copying::Alone, take)
    }

    pub(super) fn copy<E>(
        &self,
        now: Tick,
        copying: Copying,
        mut take: impl FnMut(&[u64]) -> Result<(), E>,
    ) -> Result<(), E> {
        let spec = self.spec();
        let plain = Rule::new(&spec.algorithm, spec.penalty, None);
        let (mut copied, mut records) = (Vec::new(), Vec::new());
        for shard in self.made() {
            copied.clear();
            let mut shard = lock(shard);
            if copying == Copying::Followed {
                shard.follow();
            }
            let params = shard.copy_to(&mut copied);
            drop(shard);
            let Some(params) = params else { continue };
            let rule = &params.rule;
            records.clear();
            let stride = 1 + rule.words();
            for record in copied.chunks_exact(stride) {
                let Some((key, state)) = record.split_first() else { continue };
                if rule.is_idle(state, now) {
                    continue;
                }
                records.push(*key);
                if *rule == plain {
                    records.extend_from_slice(state);
                } else {
                    let from = records.len();
                    records.resize(from + plain.words(), 0);
                    plain.take_over(rule, state, &mut records[from..], now);
                }
            }
            if !records.is_empty() {
                take(&records)?;
            }
        }
        Ok(())
    }

    /// Takes records over that [`copy_keys`](Self::copy_keys) gave, of the same layout, as far as they still count at `now`
    /// and there is room; how many. A key that is known already keeps its state.
    pub fn take_over_keys(&self, records: &[u64], now: Tick) -> u64 {
        let params = self.params();
        if params.rule.needs_release() {
            return 0;
        }
        let records: Vec<_> = records
            .chunks_exact(1 + params.rule.words())
            .filter_map(|record| record.split_first())
            .filter_map(|(bits, state)| Some((Fingerprint::known(*bits)?, state)))
            .collect();
        self.is_heir().store(true, Ordering::Relaxed);
        // They come shard by shard, if there were as many.
        let of_shards = records.chunk_by(|(one, _), (other, _)| self.is_together(*one, *other));
        of_shards.map(|records| self.lock(records[0].0).take_over(records, now, self.keys())).sum()
    }
}
