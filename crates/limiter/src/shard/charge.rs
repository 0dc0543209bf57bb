//! Charges: cost that is counted whatever room there is, by callers that then wait until it is paid for.

use crate::algorithm::CommitFacts;

use super::{Asking, AtomicU64, CHECKS_PER_SWEEP, EffectiveMode, Fingerprint, FitTime, Record, Shard, Tick};

impl Shard {
    /// Counts `cost` at `now`, room or not, and answers when all that the key owes fits. `now` where it fits now, and where
    /// it is not counted: the limit is off, or a new key finds no place.
    pub(crate) fn charge(&mut self, key: Fingerprint, cost: u64, now: Tick, keys: &AtomicU64) -> Tick {
        if matches!(self.params.stance, EffectiveMode::Pass | EffectiveMode::Closed) {
            return now;
        }
        self.latest = self.latest.max(now);
        self.checks += 1;
        if self.checks.is_multiple_of(CHECKS_PER_SWEEP) {
            self.sweep(keys);
        }
        let record = match self.table.find(key) {
            Some(at) => {
                self.params.rule.advance(self.table.state_mut(at), self.latest);
                Some(Record::At(at))
            }
            None => self.place_for_new(Asking::Arrival, keys),
        };
        let Some(at) = record.and_then(|record| self.commit(record, key, cost, self.latest, keys)) else { return now };
        match self.params.rule.room(self.table.state(at), 0, self.latest) {
            FitTime::At { at, .. } => at,
            _ => now,
        }
    }

    /// Gives back `cost` of what the key has been charged and not paid yet.
    pub(crate) fn refund(&mut self, key: Fingerprint, cost: u64) {
        let Some(at) = self.table.find(key) else { return };
        let (rule, state) = (&self.params.rule, self.table.state_mut(at));
        rule.advance(state, self.latest);
        let taken =
            rule.first_words(state).map(|words| CommitFacts { at: self.latest, words, given: 0, is_about: false });
        rule.give_back(state, cost, taken.into_iter(), self.latest);
    }
}
