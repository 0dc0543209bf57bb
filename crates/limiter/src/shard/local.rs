//! A key of a shared limit that this gateway counts by itself: the store does not answer, or has no place for it.

use super::book::Book;
use super::{Fingerprint, FitTime, Moment, Shard, Tick};
use crate::lease::{BudgetSource, Lease, LeaseDecision, LeaseTerms, ReportQueue};
use crate::limit::Params;
use crate::sharing::OnFailure;

impl Shard {
    /// Whether a key without a record may be one of the store.
    pub(super) fn look_for_place(&mut self, key: Fingerprint, client: u32) -> bool {
        let Self { params, book, latest, .. } = self;
        let Some(terms) = &params.lease else { return false };
        book.get_or_insert_default().made.takes(key, client, params.shard_keys, (*latest, terms.window()))
    }

    /// A new key has a place in the store from now on.
    pub(super) fn note_made(&mut self, key: Fingerprint, client: u32) {
        if let Some(terms) = &self.params.lease {
            self.book.get_or_insert_default().made.note(key, client, (self.latest, terms.window()));
        }
    }
}

/// This gateway's own answer, beginning from what the store has said last and what it has spent since.
pub(super) fn say_alone(
    params: &Params,
    terms: &LeaseTerms,
    state: &mut [u64],
    lease: Lease,
    cost: u64,
    now: Tick,
) -> Option<LeaseDecision> {
    let is_fair = match terms.sharing.on_failure {
        // As many gateways as there are may count it alone.
        _ if lease.is_alone() => true,
        OnFailure::Closed => return None,
        OnFailure::Open => return Some(LeaseDecision::Take(BudgetSource::Unbounded)),
        failure => failure == OnFailure::Fair,
    };
    let rule = &params.rule;
    begin_alone(params, terms, state, lease, is_fair, now);
    let taken = terms.taken_alone(cost, is_fair, terms.view());
    Some(match rule.room(state, taken, now) {
        FitTime::Now => LeaseDecision::Take(BudgetSource::Local { taken }),
        FitTime::At { at, .. } => LeaseDecision::Full { until: at, ask_at: at },
        FitTime::OnRelease { .. } | FitTime::Never { .. } => return None,
    })
}

/// From now on this gateway counts by itself, beginning from what the store has said last and what was spent since.
pub(super) fn begin_alone(
    params: &Params,
    terms: &LeaseTerms,
    state: &mut [u64],
    mut lease: Lease,
    is_fair: bool,
    now: Tick,
) {
    let rule = &params.rule;
    rule.advance(state, now);
    if lease.is_local() {
        return;
    }
    let owed = terms.taken_alone(lease.owed(), is_fair, terms.view());
    if owed > 0 {
        rule.commit(state, owed, Moment::at(now));
    }
    lease.set_local();
    params.set_lease(state, lease);
}

/// Whether a key that was counted alone has a place in the store from now on. Its count here is its debt there.
pub(super) fn finds_place(
    params: &Params,
    book: &mut Book,
    state: &mut [u64],
    (key, client): (Fingerprint, u32),
    now: Tick,
) -> bool {
    let (Some(terms), mut lease) = (&params.lease, params.lease_of(state)) else { return false };
    if !terms.is_up(key) || !lease.looks_for_place(terms, now) {
        return false;
    }
    let window = (now, terms.window());
    let finds = book.made.takes(key, client, params.shard_keys, window);
    if finds {
        book.made.note(key, client, window);
        let rule = &params.rule;
        rule.advance(state, now);
        let taken = |rate| rule.fresh(rate).remaining.saturating_sub(rule.standing(state, rate, now).remaining);
        lease.end_alone(terms, (0..rule.rates()).map(taken).max().unwrap_or(0));
        book.list(&mut lease, key, Some(ReportQueue::Soon));
    }
    params.set_lease(state, lease);
    finds
}
