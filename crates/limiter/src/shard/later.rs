//! Costs of a shared limit that are known only once the request has been answered.

use super::book::Leftover;
use super::local::begin_alone;
use super::{Asking, Fingerprint, FitTime, Moment, Record, Shard, Tick};
use crate::lease::{BudgetSource, LeaseDecision};
use crate::sharing::OnFailure;
use crate::sync::AtomicU64;

impl Shard {
    /// Counts what a request has cost beside what was taken for it, whether there is room or not. Nothing where the key owes
    /// a window more than it has already, see [`count`](Self::count).
    pub(super) fn count_shared(&mut self, (key, client): (Fingerprint, u32), more: u64, keys: &AtomicU64) {
        let found = self.table.find(key).map(Record::At);
        let has_place = found.is_some() || self.look_for_place(key, client);
        let record = found.or_else(|| self.place_for_new(Asking::Arrival, keys)).unwrap_or(Record::Uncounted);
        let now = self.latest;
        let at = self.place(record, key, keys);
        if found.is_none() && has_place {
            self.note_made(key, client);
        }
        let Some(at) = at else {
            let book = self.book.get_or_insert_default();
            if has_place {
                book.leave_over(Leftover { key, spent: more, back: 0, charged_at: now });
            } else {
                book.lost = book.lost.saturating_add(more);
            }
            return;
        };
        let Self { params, table, .. } = self;
        let (Some(terms), state) = (&params.lease, table.state_mut(at)) else { return };
        let lease = params.lease_of(state);
        if let Some(LeaseDecision::Full { until, .. }) = lease.known(1, now)
            && until > terms.refused_until(now)
        {
            return;
        }
        let failure = terms.sharing.on_failure;
        let is_alone = lease.is_alone() || !has_place;
        let source = if lease.granted(now) >= more {
            // The budget that is held is charged already. Left there, it would admit one request after the other that is
            // counted later.
            BudgetSource::Grant
        } else if is_alone
            || (lease.is_local() || !terms.is_up(key)) && matches!(failure, OnFailure::Fair | OnFailure::Full)
        {
            let is_fair = is_alone || failure == OnFailure::Fair;
            begin_alone(params, terms, state, lease, is_fair, now);
            if let FitTime::At { at, rate } = params.rule.room(state, 0, now)
                && at.since(now) > params.rule.longest(rate)
            {
                return;
            }
            let taken = terms.taken_alone(more, is_fair, terms.view());
            if is_alone { BudgetSource::Alone { taken } } else { BudgetSource::Local { taken } }
        } else {
            BudgetSource::Credit
        };
        self.spend(at, key, source, more, Moment::at(now));
    }

    /// A request has cost less than was taken for it.
    pub(super) fn give_back_shared(&mut self, key: Fingerprint, less: u64, taken_at: Tick) {
        let Self { params, table, book, .. } = self;
        let back = table.find(key).map_or(less, |at| {
            let state = table.state_mut(at);
            let mut lease = params.lease_of(state);
            let back = lease.unspend(less);
            params.set_lease(state, lease);
            back
        });
        book.get_or_insert_default().leave_over(Leftover { key, spent: 0, back, charged_at: taken_at });
    }
}
