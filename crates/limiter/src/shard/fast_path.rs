//! The short way of a check: one limit with one rate, and nobody waits. It answers what the long way of `round` would,
//! for a third of the instructions, and leaves to that whatever is not of this kind.

use super::{CHECKS_PER_SWEEP, Shard};
use crate::algorithm::{CostOutcome, FitTime, Moment};
use crate::key::Fingerprint;
use crate::sync::AtomicU64;
use sluicegate_time::{Span, Tick};

/// The result of the short way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FastPath {
    /// `None`: it was taken. Else when there is room.
    pub(crate) room_at: Option<Tick>,
    pub(crate) remaining: u64,
    pub(crate) grows_at: Option<Tick>,
    pub(crate) quota: u64,
    pub(crate) window: Span,
}

impl Shard {
    /// Takes `cost`, or says that there is no room and no waiting for it; `None`, and nothing taken: go the long way.
    #[allow(clippy::inline_always, reason = "the whole of a check is one run of instructions")]
    #[inline(always)]
    pub(crate) fn check_alone(&mut self, key: Fingerprint, cost: u64, now: Tick, keys: &AtomicU64) -> Option<FastPath> {
        let params = &*self.params;
        if !params.is_plain || self.queues.len() > 0 {
            return None;
        }
        let at = self.table.find(key)?;
        self.latest = self.latest.max(now);
        let moment = Moment { now: self.latest, due: now, era: self.era };
        let CostOutcome { room, standing } = params.rule.take(self.table.state_mut(at), cost, moment)?;
        let (quota, window) = params.quota;
        let alone = match room {
            FitTime::Now => {
                let (remaining, grows_at) = (standing.remaining, standing.grows_at);
                FastPath { room_at: None, remaining, grows_at, quota, window }
            }
            FitTime::At { at, .. } if params.spec.max_wait.is_zero() => {
                // What is stored is of no use to one who is sent away.
                let (remaining, grows_at) =
                    if cost == 1 { (0, Some(at)) } else { (standing.remaining, standing.grows_at) };
                FastPath { room_at: Some(at), remaining, grows_at, quota, window }
            }
            _ => return None,
        };
        if alone.room_at.is_none() {
            self.note(key, cost);
        }
        self.checks += 1;
        if self.checks.is_multiple_of(CHECKS_PER_SWEEP) {
            self.sweep(keys);
        }
        Some(alone)
    }
}
