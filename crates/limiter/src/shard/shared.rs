//! The keys of a limit that is shared: how a request is judged, and what is said to the fleet and heard from it.

use std::task::Waker;

use super::book::{Leftover, is_behind};
use super::local::{finds_place, say_alone};
use super::{
    CHECKS_PER_SWEEP, EffectiveMode, Evaluation, Fingerprint, FitTime, Moment, Quota, RateStanding, Record, Shard,
    Span, Tick, Wakers,
};
use crate::lease::{BudgetSource, Lease, LeaseDecision, ReportQueue};
use crate::limit::Params;
use crate::settle::{Outstanding, SettleAnswer, Turn, Wanted};
use crate::sharing::OnFailure;
use crate::sync::AtomicU64;

/// The claim of one who asks a shared limit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Claim {
    /// The head of the key's queue.
    pub(crate) is_head: bool,
    /// Its place in the line of those who wait for the store.
    pub(crate) place: Option<u64>,
    /// It has waited for the store as long as it may.
    pub(crate) is_late: bool,
    /// The client, by a hash.
    pub(crate) client: u32,
}

impl Shard {
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.params.lease.is_some()
    }

    /// How long a request waits for the store.
    pub(crate) fn store_deadline(&self) -> Span {
        self.params.lease.as_ref().map_or(Span::ZERO, |terms| terms.sharing.deadline)
    }

    /// [`judge`](Self::judge) of a shared limit.
    #[inline(never)]
    pub(crate) fn judge_shared(
        &mut self,
        claim: Claim,
        key: Fingerprint,
        cost: u64,
        now: Tick,
        keys: &AtomicU64,
    ) -> Evaluation {
        let enforced = match self.params.stance {
            EffectiveMode::Enforce => true,
            EffectiveMode::Shadow => false,
            EffectiveMode::Pass | EffectiveMode::Closed => return Evaluation::None,
        };
        self.latest = self.latest.max(now);
        let claim = Claim { is_late: claim.is_late || self.is_given_up(claim, key), ..claim };
        self.checks += 1;
        if self.checks.is_multiple_of(CHECKS_PER_SWEEP) {
            self.sweep(keys);
        }
        let at = self.table.find(key);
        if let Some(rate) = self.params.rule.too_costly(cost) {
            return if enforced {
                Evaluation::TooCostly { rate, at }
            } else {
                Evaluation::Shadowed { at, rate: Some(rate), wait: None }
            };
        }
        if enforced && self.stands_behind(claim, key) {
            return Evaluation::Awaits { at };
        }
        let queued = enforced && !claim.is_head && self.queues.has(key);
        match self.say(claim, key, at, cost) {
            Some(LeaseDecision::Take(_) | LeaseDecision::Ask) if queued => {
                Evaluation::Blocked(self.blocked(key, cost, at, true, FitTime::Now))
            }
            Some(LeaseDecision::Take(source)) => {
                let asking = if claim.is_head { super::Asking::Head } else { super::Asking::Arrival };
                match at.map(Record::At).or_else(|| self.place_for_new(asking, keys)) {
                    Some(record) => Evaluation::Leased { record, source },
                    None if enforced => Evaluation::TableFull,
                    None => Evaluation::Shadowed { at: None, rate: None, wait: None },
                }
            }
            Some(LeaseDecision::Full { until, ask_at }) if enforced => {
                // The head looks again as soon as there may be room.
                let until = if claim.is_head { ask_at } else { self.note_full(at, until) };
                Evaluation::Blocked(self.blocked(key, cost, at, queued, FitTime::At { at: until, rate: 0 }))
            }
            Some(LeaseDecision::Full { until, .. }) => {
                let wait = self.would_wait(FitTime::At { at: until, rate: 0 });
                Evaluation::Shadowed { at, rate: Some(0), wait }
            }
            Some(LeaseDecision::Ask) => self.awaits(claim, at, enforced, keys),
            None => Evaluation::Unavailable { at },
        }
    }

    /// The opinion of one who has to ask the store, whose answer a record of the key is to hold.
    fn awaits(&mut self, claim: Claim, at: Option<usize>, enforced: bool, keys: &AtomicU64) -> Evaluation {
        let asking = if claim.is_head { super::Asking::Head } else { super::Asking::Arrival };
        match at.map(Record::At).or_else(|| self.place_for_new(asking, keys)) {
            Some(record @ Record::Uncounted) => Evaluation::Leased { record, source: BudgetSource::Unbounded },
            None if enforced => Evaluation::TableFull,
            _ => Evaluation::Awaits { at },
        }
    }

    /// An arrival finds a key full until then.
    fn note_full(&mut self, at: Option<usize>, until: Tick) -> Tick {
        if let Some(at) = at {
            let state = self.table.state_mut(at);
            let mut lease = self.params.lease_of(state);
            lease.note_refused();
            self.params.set_lease(state, lease);
        }
        until
    }

    /// Whether the line in which it waited for the store is over.
    fn is_given_up(&self, claim: Claim, key: Fingerprint) -> bool {
        let given_up = |place| self.book.as_ref().is_some_and(|book| book.lines.is_given_up(key, place));
        claim.place.is_some_and(given_up)
    }

    /// Whether others who came before are on their way into the key's queue, and this one would get there first.
    fn stands_behind(&self, claim: Claim, key: Fingerprint) -> bool {
        let (Some(terms), Some(book)) = (&self.params.lease, self.book.as_deref()) else { return false };
        if self.params.spec.max_wait.is_zero() || claim.is_head || claim.is_late || !terms.is_up(key) {
            return false;
        }
        claim.place.map_or_else(|| book.lines.has_arrivals(key), |place| !book.lines.is_front(key, place))
    }

    /// The basis of plans for those who wait: the state of a key, and the instant as of which it is that. The store has said
    /// how much was left and until when the key is full, and not when what is counted was taken. Where it is shown as taken
    /// later than that, the key is planned as an empty one from then on: one that might be let in waits, and the queue
    /// has its bound.
    pub(super) fn outlook(&self, at: Option<usize>) -> (Vec<u64>, Tick) {
        let (rule, latest) = (&self.params.rule, self.latest);
        let state = super::state_of(&self.params, &self.table, at, latest);
        let Some(terms) = &self.params.lease else { return (state, latest) };
        let from = match self.params.lease_of(&state).known(u64::MAX, latest) {
            Some(LeaseDecision::Full { until, .. }) => until,
            _ => latest,
        };
        match rule.room(&state, 1, from) {
            FitTime::At { at, .. } if at > from + terms.sharing.deadline => {
                let mut empty = vec![0; self.params.words()];
                rule.advance(&mut empty, from);
                (empty, from)
            }
            _ => (state, from),
        }
    }

    /// Answers a cost; `None`: nobody can tell, and that is as good as a refusal.
    fn say(&mut self, claim: Claim, key: Fingerprint, at: Option<usize>, cost: u64) -> Option<LeaseDecision> {
        let Self { params, table, book, latest, .. } = self;
        let Some(terms) = &params.lease else { return Some(LeaseDecision::Take(BudgetSource::Unbounded)) };
        let now = *latest;
        let Some(at) = at else {
            let is_away = claim.is_late || !terms.is_up(key);
            let most = params.shard_keys;
            let made = &mut book.get_or_insert_default().made;
            let has_place = made.takes(key, claim.client, most, (now, terms.window()));
            return match terms.sharing.on_failure {
                OnFailure::Closed if is_away && params.stance != EffectiveMode::Shadow => None,
                _ if !has_place => {
                    let taken = terms.taken_alone(cost, true, terms.view());
                    Some(LeaseDecision::Take(BudgetSource::Alone { taken }))
                }
                _ if params.stance == EffectiveMode::Shadow => Some(LeaseDecision::Take(BudgetSource::Unbounded)),
                OnFailure::Open if is_away => Some(LeaseDecision::Take(BudgetSource::Unbounded)),
                failure if is_away => {
                    let taken = terms.taken_alone(cost, failure == OnFailure::Fair, terms.view());
                    Some(LeaseDecision::Take(BudgetSource::Local { taken }))
                }
                _ if is_behind(book.as_deref(), key, claim.place) => Some(LeaseDecision::Ask),
                // It may be one of those, and full.
                _ if book.as_ref().is_some_and(|book| now < book.forgot_until) => Some(LeaseDecision::Ask),
                _ => Some(Lease::default().ask(terms, cost, now)),
            };
        };
        let state = table.state_mut(at);
        if let Some(until) = params.rule.blocked_until(state, now) {
            return Some(LeaseDecision::Full { until, ask_at: until });
        }
        let mut lease = params.lease_of(state);
        if lease.is_alone() && params.stance != EffectiveMode::Shadow {
            let book = book.get_or_insert_default();
            if !finds_place(params, book, state, (key, claim.client), now) {
                return say_alone(params, terms, state, params.lease_of(state), cost, now);
            }
            lease = params.lease_of(state);
        }
        let known = lease.known(cost, now);
        if params.stance == EffectiveMode::Shadow {
            return Some(
                known
                    .filter(|say| matches!(say, LeaseDecision::Full { .. }))
                    .unwrap_or(LeaseDecision::Take(BudgetSource::Unbounded)),
            );
        }
        let is_up = terms.is_up(key);
        if claim.is_late || !is_up {
            let known = lease.known_alone(cost, now);
            if is_up && known.is_none() {
                book.get_or_insert_default().unanswered += 1;
            }
            return known.or_else(|| say_alone(params, terms, state, lease, cost, now));
        }
        match known {
            Some(full @ LeaseDecision::Full { .. }) => Some(full),
            _ if is_behind(book.as_deref(), key, claim.place) => Some(LeaseDecision::Ask),
            Some(say) => Some(say),
            None => {
                let say = lease.ask(terms, cost, now);
                // The front of a line, for which the store was not asked yet: what was held was enough for those before it.
                if say == LeaseDecision::Ask && claim.place.is_some() && !lease.is_busy() {
                    book.get_or_insert_default().list(&mut lease, key, Some(ReportQueue::Asks));
                    params.set_lease(state, lease);
                }
                Some(say)
            }
        }
    }

    /// [`commit`](Self::commit) of a shared limit.
    pub(crate) fn take_leased(
        &mut self,
        (record, source): (Record, BudgetSource),
        (key, client): (Fingerprint, u32),
        cost: u64,
        due: Tick,
        keys: &AtomicU64,
    ) -> Option<usize> {
        let at = self.place(record, key, keys)?;
        if !matches!((record, source), (Record::At(_), _) | (_, BudgetSource::Alone { .. })) {
            self.note_made(key, client);
        }
        let moment = Moment { now: self.latest, due: due.min(self.latest), era: self.era };
        self.spend(at, key, source, cost, moment);
        Some(at)
    }

    pub(super) fn spend(&mut self, at: usize, key: Fingerprint, source: BudgetSource, cost: u64, moment: Moment) {
        let Self { params, table, book, .. } = self;
        let (Some(terms), state) = (&params.lease, table.state_mut(at)) else { return };
        let mut lease = params.lease_of(state);
        if let BudgetSource::Local { taken } | BudgetSource::Alone { taken } = source {
            params.rule.advance(state, moment.now);
            params.rule.commit(state, taken, moment);
            lease.set_local();
        }
        if let BudgetSource::Alone { .. } = source {
            lease.set_alone();
        }
        if lease.is_alone() {
            let book = book.get_or_insert_default();
            book.alone = book.alone.saturating_add(cost);
        }
        let sooner = lease.spend(terms, source, cost, terms.is_up(key));
        book.get_or_insert_default().list(&mut lease, key, sooner);
        params.set_lease(state, lease);
    }

    /// Goes into the line of those who wait for the store; the number of the place. The key has a record from then on, for
    /// what the store says; `None`: there is no room for one.
    pub(crate) fn join_line(
        &mut self,
        (key, client): (Fingerprint, u32),
        cost: u64,
        is_head: bool,
        keys: &AtomicU64,
    ) -> Option<u64> {
        let asking = if is_head { super::Asking::Head } else { super::Asking::Arrival };
        let found = self.table.find(key).map(Record::At);
        let record = found.or_else(|| self.place_for_new(asking, keys))?;
        let at = self.place(record, key, keys)?;
        if !matches!(record, Record::At(_)) {
            self.note_made(key, client);
        }
        let Self { params, table, book, .. } = self;
        let state = table.state_mut(at);
        let mut lease = params.lease_of(state);
        let book = book.get_or_insert_default();
        let number = book.lines.join(key, cost, is_head);
        book.list(&mut lease, key, Some(ReportQueue::Asks));
        params.set_lease(state, lease);
        Some(number)
    }

    pub(crate) fn listen_in_line(&mut self, key: Fingerprint, number: u64, waker: &Waker) -> Option<Waker> {
        self.book.as_mut()?.lines.listen(key, number, waker)
    }

    pub(crate) fn leave_line(&mut self, key: Fingerprint, number: u64) -> Wakers {
        self.book.as_mut().map(|book| book.lines.leave(key, number)).unwrap_or_default()
    }

    /// Whether requests of this key wait for the store.
    pub(super) fn awaits_store(&self, key: Fingerprint) -> bool {
        self.book.as_ref().is_some_and(|book| book.lines.has(key))
    }

    /// Those at the front of all lines and queues, who have to look again once no lock is held.
    pub(crate) fn fronts(&mut self) -> Vec<Waker> {
        let mut fronts = self.book.as_mut().map(|book| book.lines.wake_all()).unwrap_or_default();
        fronts.extend(self.queues.wake_heads());
        fronts
    }

    /// Whether the bell is to be rung; from then on not.
    pub(crate) fn takes_ring(&mut self) -> bool {
        self.book.as_mut().is_some_and(|book| std::mem::take(&mut book.rings))
    }

    /// See [`Limit::begin`](crate::Limit::begin).
    pub(crate) fn begin(&mut self, turn: Turn) {
        let rounds = self.params.lease.as_ref().map_or(1, |terms| terms.rounds);
        if let Some(book) = &mut self.book {
            book.begin(turn, rounds);
        }
    }

    /// The store has answered; the front of the key's line, or the head of its queue, has to look again.
    pub(crate) fn answered(&mut self, wanted: &Wanted, sent: Tick, answer: &SettleAnswer, now: Tick) -> Option<Waker> {
        self.latest = self.latest.max(now);
        let Wanted { key, settle, serial } = wanted;
        let Self { params, table, book, latest, .. } = self;
        let book = book.get_or_insert_default();
        let found = table.find(*key).map(|at| table.state_mut(at)).zip(params.lease.as_ref());
        let room = answer.remaining.iter().take(params.rule.rates()).copied().min().unwrap_or(0);
        let Some((state, terms)) = found else {
            // The key was forgotten meanwhile.
            let charged_at = params.lease.as_ref().map_or(sent, |terms| terms.charged_at(sent + answer.life));
            book.leave_over(Leftover { key: *key, spent: 0, back: answer.granted, charged_at });
            return None;
        };
        let mut lease = params.lease_of(state);
        let (front, want) = book.lines.need(*key);
        if lease.awaits(*serial) {
            let (back, charged_at) = lease.answered(terms, (settle, sent), answer, front, *latest);
            book.leave_over(Leftover { key: *key, spent: 0, back, charged_at });
            params.rule.show(state, &answer.remaining, *latest);
            let is_refused = answer.granted == 0 && answer.retry.is_some();
            let is_short = want > lease.granted(*latest) && lease.known(want, *latest).is_none();
            book.list(&mut lease, *key, (is_short && !is_refused).then_some(ReportQueue::Asks));
        } else {
            // What was left of it was given back, or it was forgotten meanwhile.
            let charged_at = terms.charged_at(sent + answer.life);
            book.leave_over(Leftover { key: *key, spent: 0, back: answer.granted, charged_at });
        }
        book.refused_early += lease.free(room, *latest);
        let is_full = matches!(lease.known(u64::MAX, *latest), Some(LeaseDecision::Full { .. }));
        params.set_lease(state, lease);
        self.queues.mark_stale(*key);
        let front = book.lines.wake(*key);
        // One that waits until the instant that the store named before need not.
        if front.is_none() && !is_full { self.queues.wake_head(*key).next } else { front }
    }

    /// No answer came; `is_refused`: none will come to the request that asks for this key. The wakers to call then, once no
    /// lock is held.
    pub(crate) fn unanswered(&mut self, wanted: &Wanted, is_refused: bool, now: Tick) -> Vec<Waker> {
        let Self { params, table, book, .. } = self;
        let book = book.get_or_insert_default();
        let given_up = if is_refused { book.lines.give_up(wanted.key) } else { Vec::new() };
        let state = table.find(wanted.key).map(|at| table.state_mut(at));
        match state.filter(|state| params.lease.is_some() && params.lease_of(state).awaits(wanted.serial)) {
            Some(state) => {
                let mut lease = params.lease_of(state);
                lease.unanswered();
                let waits = book.lines.has(wanted.key);
                book.list(&mut lease, wanted.key, waits.then_some(ReportQueue::Asks));
                params.set_lease(state, lease);
            }
            None => book.leave_over(Leftover { key: wanted.key, spent: wanted.settle.spent, back: 0, charged_at: now }),
        }
        given_up
    }

    /// A key is forgotten: what is to be said of it is kept.
    pub(super) fn leave_over(&mut self, at: usize, params: &Params) {
        let Self { table, book, latest, .. } = self;
        let (Some(terms), Some(key)) = (&params.lease, table.key_at(at)) else { return };
        let mut lease = params.lease_of(table.state(at));
        let settled = lease.unspend(u64::MAX);
        let spent = u64::MAX - settled;
        let (back, charged_at) = lease.take_back(terms);
        let book = book.get_or_insert_default();
        // Of one that has no place in the store nothing was said.
        if !lease.is_alone() {
            book.forgot_until = terms.refused_until(*latest);
        }
        book.leave_over(Leftover { key, spent, back, charged_at });
        book.tidy(table);
    }

    /// All keys are forgotten.
    pub(super) fn leave_all_over(&mut self, params: &Params) {
        if params.lease.is_some() {
            for at in 0..self.table.places() {
                self.leave_over(at, params);
            }
        }
    }

    /// The refusals of the store are forgotten: it would answer otherwise now, or another one does.
    pub(crate) fn forget_refusals(&mut self, is_same_store: bool) {
        let Self { params, table, .. } = self;
        if params.lease.is_none() {
            return;
        }
        for at in 0..table.places() {
            if table.key_at(at).is_some() {
                let state = table.state_mut(at);
                let mut lease = params.lease_of(state);
                lease.forget_refusal(is_same_store);
                params.set_lease(state, lease);
            }
        }
    }

    /// How a rate of a shared limit stands.
    pub(super) fn shared_quota(
        &mut self,
        key: Fingerprint,
        at: Option<usize>,
        rate: usize,
        next: Option<Tick>,
    ) -> Quota {
        let Self { params, table, queues, latest, .. } = self;
        let (limit, window) = params.shown_quota(rate);
        let mut standing = match at {
            Some(at) => {
                let state = table.state_mut(at);
                params.rule.advance(state, *latest);
                standing(params, state, rate, *latest)
            }
            None => params.rule.fresh(rate),
        };
        if let Some(next) = next {
            standing = RateStanding { remaining: 0, grows_at: Some(next) };
        } else if queues.has(key) {
            standing.remaining = 0;
        }
        Quota { limit, window, standing }
    }

    pub(crate) fn add_outstanding(&self, now: Tick, all: &mut Outstanding) {
        let Some(book) = &self.book else { return };
        all.lost += book.lost;
        all.unanswered += book.unanswered;
        all.refused_early += book.refused_early;
        all.alone += book.alone;
        all.waiting += book.lines.len();
        let (entries, spent) = book.entries();
        all.listed += entries as u64;
        all.owed += spent;
        for at in book.listed().filter_map(|key| self.table.find(key)) {
            let lease = self.params.lease_of(self.table.state(at));
            all.granted += lease.granted(now);
            all.owed += lease.owed();
        }
    }
}

/// The rest of a rate, as far as this gateway knows.
fn standing(params: &Params, state: &[u64], rate: usize, now: Tick) -> RateStanding {
    let (shown, lease) = (params.rule.standing(state, rate, now), params.lease_of(state));
    if let Some(LeaseDecision::Full { until, .. }) = lease.known(1, now) {
        return RateStanding { remaining: 0, grows_at: Some(until) };
    }
    let owed = if lease.is_local() { 0 } else { lease.owed() };
    let (most, _) = params.rule.quota(rate);
    let remaining = (shown.remaining.saturating_sub(owed) + lease.granted(now)).min(most);
    RateStanding { remaining, ..shown }
}
