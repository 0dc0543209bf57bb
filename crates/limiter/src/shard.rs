mod book;
mod charge;
mod collect;
mod correct;
mod fast_path;
mod follow;
mod forget;
mod later;
mod line;
mod local;
mod made;
mod persist;
mod places;
mod shared;

use std::num::NonZeroU8;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

use super::algorithm::{FitTime, LayoutChange, Moment, Noted, RateStanding, Rule, TIMER_SLACK};
use super::key::Fingerprint;
use super::lease::BudgetSource;
use super::limit::{EffectiveMode, OnFull, Params};
use super::queue::{Planned, Queues, Waiter, WaiterHandle, Wakers};
use super::sync::AtomicU64;
use super::table::Table;
use book::Book;
use correct::Ledger;
use follow::CountedCosts;
use sluicegate_time::{Span, Tick};

pub(super) use correct::Reserved;

pub(super) use fast_path::FastPath;
pub(super) use shared::Claim;

/// A part of a limit's keys, under one lock: their records, who waits for them, and the parameters they live by.
///
/// Whatever keys are sent, an operation looks at one record and, when a key is new, at a few more that the clock hand
/// passes. Two things take longer: the table is copied to grow or shrink, for which it is kept small; and a queue's plan
/// is made anew after a cancel, which [`Queues`] bounds.
///
/// In this order, behind the lock: what every check writes shares a cache line with the lock, so that two workers who take
/// turns in a shard pass one line to each other, and what every check reads is in the next ones.
#[derive(Clone, Debug)]
#[repr(C)]
pub(super) struct Shard {
    /// The latest instant seen here: time does not go back for a worker that read its clock a little earlier.
    latest: Tick,
    checks: u64,
    /// Grows whenever a live key is forgotten.
    era: u64,
    params: Arc<Params>,
    table: Table,
    queues: Queues,
    ledger: Ledger,
    counts: ShardCounts,
    /// Of a limit that is shared, once it is asked.
    book: Option<Box<Book>>,
    /// Costs that are counted from now on, for those who are told; `None`: there are none.
    counted: Option<Box<CountedCosts>>,
}

/// Counters of what happened for want of places.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ShardCounts {
    pub(super) evicted_idle: u64,
    pub(super) evicted_live: u64,
    pub(super) refused_full: u64,
    pub(super) allowed_full: u64,
    pub(super) blocks: u64,
}

/// The kind of request that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asking {
    /// Does not overtake those who wait.
    Arrival,
    /// The head of this key's queue.
    Head,
}

/// One limit's opinion of one request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Evaluation {
    /// It has none: the limit does not apply, or is off.
    None,
    Fits(Record),
    /// It does not fit, but the limit is in shadow mode.
    Shadowed {
        at: Option<usize>,
        /// The rate that has no room; `None`: the table has none.
        rate: Option<usize>,
        /// How long it would have had to wait for room; `None`: it would have been refused at once.
        wait: Option<Span>,
    },
    Blocked(Blocked),
    /// It fits a limit that is shared.
    Leased {
        record: Record,
        source: BudgetSource,
    },
    /// Nobody can tell before the store has answered.
    Awaits {
        at: Option<usize>,
    },
    /// The store does not answer, and until it does everybody is refused.
    Unavailable {
        at: Option<usize>,
    },
    TooCostly {
        rate: usize,
        at: Option<usize>,
    },
    TableFull,
}

/// Where the record of a key that fits is, or will be.
#[derive(Clone, Copy, Debug)]
pub(super) enum Record {
    At(usize),
    New,
    /// In place of another key's.
    Instead {
        of: usize,
        idle: bool,
    },
    Uncounted,
}

/// No room now, or others wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocked {
    /// When it would be its turn.
    pub(super) planned: Planned,
    /// How long it may wait.
    pub(super) max_wait: Span,
    /// When the queue has a place: the first instant if it has one now, `None` if never.
    pub(super) place_at: Option<Tick>,
    at: Option<usize>,
}

/// How a rate stands, with its numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quota {
    pub(super) limit: u64,
    pub(super) window: Span,
    pub(super) standing: RateStanding,
}

/// Places that the hand passes when a key is new, to drop idle ones.
const SWEPT: usize = 4;
/// Records that are looked at to find room for a new key at the bound.
const LOOKED_AT: usize = 16;
/// Places that the hand passes at most to find them. Tables are at least a quarter full, so it finds one.
const PASSED: usize = 128;
/// So that memory follows the live keys even when no new ones come, the hand also moves once in so many checks.
const CHECKS_PER_SWEEP: u64 = 64;

impl Shard {
    pub(super) fn new(params: Arc<Params>) -> Self {
        Self {
            latest: Tick::ZERO,
            checks: 0,
            era: 0,
            table: Table::new(params.words()),
            params,
            queues: Queues::default(),
            ledger: Ledger::default(),
            counts: ShardCounts::default(),
            book: None,
            counted: None,
        }
    }

    pub(super) fn counts(&self) -> ShardCounts {
        self.counts
    }

    pub(super) fn waiting(&self) -> u64 {
        self.queues.len() as u64
    }

    pub(super) fn stance(&self) -> EffectiveMode {
        self.params.stance
    }

    pub(super) fn rates(&self) -> usize {
        self.params.rule.rates()
    }

    /// Whether `cost` fits at `now`, and if not, when it would. Counts nothing.
    #[allow(clippy::inline_always, reason = "an opinion is large: out of line it would be copied")]
    #[inline(always)]
    pub(super) fn judge(
        &mut self,
        asking: Asking,
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
        self.checks += 1;
        if self.checks.is_multiple_of(CHECKS_PER_SWEEP) {
            self.sweep(keys);
        }
        let params = &*self.params;
        let at = self.table.find(key);
        let too_costly = params.rule.too_costly(cost);
        let room = match at {
            None => FitTime::Now,
            Some(at) => {
                let state = self.table.state_mut(at);
                params.rule.advance(state, self.latest);
                params.rule.room(state, cost, self.latest)
            }
        };
        if let Some(rate) = too_costly {
            return if enforced {
                Evaluation::TooCostly { rate, at }
            } else {
                Evaluation::Shadowed { at, rate: Some(rate), wait: None }
            };
        }
        let queued = enforced && asking == Asking::Arrival && self.queues.has(key);
        if room != FitTime::Now || queued {
            return if enforced {
                Evaluation::Blocked(self.blocked(key, cost, at, queued, room))
            } else {
                let rate = Some(Planned::new(room, self.latest).rate());
                Evaluation::Shadowed { at, rate, wait: self.would_wait(room) }
            };
        }
        match at.map(Record::At).or_else(|| self.place_for_new(asking, keys)) {
            Some(record) => Evaluation::Fits(record),
            None if enforced => Evaluation::TableFull,
            None => Evaluation::Shadowed { at: None, rate: None, wait: None },
        }
    }

    /// A request was refused because the table is full.
    pub(super) fn note_refused_full(&mut self) {
        self.counts.refused_full += 1;
    }

    /// Counts `cost` where [`judge`](Self::judge) said, with nothing in between; answers where the record is now. `due`
    /// is now, or a little before where a timer was late.
    #[inline]
    pub(super) fn commit(
        &mut self,
        record: Record,
        key: Fingerprint,
        cost: u64,
        due: Tick,
        keys: &AtomicU64,
    ) -> Option<usize> {
        let at = self.place(record, key, keys)?;
        let state = self.table.state_mut(at);
        let moment = Moment { now: self.latest, due: due.min(self.latest), era: self.era };
        self.params.rule.commit(state, cost, moment);
        self.note(key, cost);
        Some(at)
    }

    /// The months of the key begin on that day from its next window on: to be said just before a [`commit`](Self::commit), to
    /// the record that this answers.
    #[cold]
    pub(super) fn renew(&mut self, record: Record, key: Fingerprint, day: NonZeroU8, keys: &AtomicU64) -> Record {
        let Some(at) = (!matches!(record, Record::Uncounted)).then(|| self.place(record, key, keys)).flatten() else {
            return record;
        };
        self.params.rule.renew(self.table.state_mut(at), day, self.latest);
        self.note_day(key, day);
        Record::At(at)
    }

    /// The era of what was just committed `at`; `None` if it is not to be given back.
    #[inline]
    pub(super) fn granted(&self, at: usize) -> Option<u64> {
        self.params.rule.needs_release().then(|| self.params.rule.era(self.table.state(at)))
    }

    pub(super) fn counts_in_flight(&self) -> bool {
        self.params.rule.needs_release()
    }

    /// Counts `cost` at `now`, whether there is room or not. Not at all where a new key finds no place; where the key owes
    /// more than a window already, so that nobody can shut a key for long by many requests at once; and where what is in
    /// flight is counted, which nobody would give back. Gives whom to wake, since every plan is another one now.
    pub(super) fn count(
        &mut self,
        (key, client): (Fingerprint, u32),
        cost: u64,
        now: Tick,
        keys: &AtomicU64,
    ) -> Wakers {
        if matches!(self.params.stance, EffectiveMode::Pass | EffectiveMode::Closed) || self.counts_in_flight() {
            return Wakers::default();
        }
        self.latest = self.latest.max(now);
        let cost = cost.min(self.params.rule.most_counted());
        if self.is_shared() {
            self.count_shared((key, client), cost, keys);
            return Wakers::default();
        }
        let record = match self.table.find(key) {
            Some(at) => {
                let rule = &self.params.rule;
                let state = self.table.state_mut(at);
                rule.advance(state, self.latest);
                // When nothing is owed any more: room for a cost of its own may be further away than a window.
                if let FitTime::At { at, rate } = rule.room(state, 0, self.latest)
                    && at.since(self.latest) > rule.longest(rate)
                {
                    return Wakers::default();
                }
                Record::At(at)
            }
            None => self.place_for_new(Asking::Arrival, keys).unwrap_or(Record::Uncounted),
        };
        self.commit(record, key, cost, self.latest, keys);
        self.queues.wake_head(key)
    }

    /// Gives back what was taken under `era`; nothing if the key has been forgotten since.
    pub(super) fn release(&mut self, key: Fingerprint, cost: u64, era: u64) -> Wakers {
        let Some(at) = self.table.find(key) else { return Wakers::default() };
        self.params.rule.release(self.table.state_mut(at), cost, era);
        self.queues.wake_head(key)
    }

    /// Counts a request that this limit itself refused for want of room, if it counts such; answers whether room comes
    /// later for that.
    pub(super) fn note_refused(&mut self, key: Fingerprint, at: Option<usize>, cost: u64) -> bool {
        let Some(at) = at.filter(|_| self.params.rule.counts_refused()) else { return false };
        let noted = self.params.rule.note_refused(self.table.state_mut(at), cost, self.latest);
        self.counts.blocks += u64::from(noted == Noted::Blocked);
        if noted == Noted::Nothing {
            return false;
        }
        self.queues.mark_stale(key);
        true
    }

    /// How a rate stands for a key, whose record is `at`, as of the last [`judge`](Self::judge) or
    /// [`commit`](Self::commit) on it. `next` is when a cost of 1 fits into the rate, if it was said.
    pub(super) fn quota(&mut self, key: Fingerprint, at: Option<usize>, rate: usize, next: Option<Tick>) -> Quota {
        if self.is_shared() {
            return self.shared_quota(key, at, rate, next);
        }
        let rule = &self.params.rule;
        let (limit, window) = self.params.shown_quota(rate);
        let mut standing = match at {
            Some(_) if next.is_some() && rule.stands_as_room_says() => RateStanding { remaining: 0, grows_at: next },
            Some(at) => rule.standing(self.table.state(at), rate, self.latest),
            None => rule.fresh(rate),
        };
        let enforced = self.params.stance == EffectiveMode::Enforce;
        if enforced && rule.counts_waiters() && self.params.max_queue > 0 {
            let state = state_of(&self.params, &self.table, at, self.latest);
            let remaining = self.params.max_queue.saturating_sub(self.queues.waiting(key));
            standing = RateStanding { remaining, grows_at: self.queues.next_out(rule, &state, key, self.latest) };
        } else if enforced && self.queues.has(key) {
            let state = state_of(&self.params, &self.table, at, self.latest);
            let next = self.queues.plan(rule, &state, key, 1, self.latest);
            // Who waits for others to end cannot be told when.
            standing = RateStanding { remaining: 0, grows_at: (!next.on_release).then_some(next.at) };
        }
        Quota { limit, window, standing }
    }

    /// How much of its only rate a request may not have that is held to `most`.
    pub(super) fn headroom(&self, most: NonZeroU64) -> u64 {
        match self.params.spec.algorithm.rates() {
            [rate] => rate.limit().saturating_sub(most.get()),
            _ => 0,
        }
    }

    /// How a rate stands for a request that may not have `headroom` of it.
    #[cold]
    pub(super) fn standing_within(&self, at: Option<usize>, headroom: u64, whole: RateStanding) -> RateStanding {
        let remaining = whole.remaining.saturating_sub(headroom);
        let Some(at) = at.filter(|_| remaining == 0) else { return RateStanding { remaining, ..whole } };
        let grows_at = match self.params.rule.room(self.table.state(at), headroom.saturating_add(1), self.latest) {
            FitTime::At { at, .. } => Some(at),
            FitTime::Now | FitTime::OnRelease { .. } | FitTime::Never { .. } => whole.grows_at,
        };
        RateStanding { remaining, grows_at }
    }

    /// Lets a waiter in at the tail of its key's queue; `at` is when it is planned for.
    pub(super) fn join(&mut self, waiter: Waiter, at: Tick) -> Option<WaiterHandle> {
        let (state, _) = self.outlook(self.table.find(waiter.key));
        self.queues.push(&self.params.rule, &state, waiter, at)
    }

    /// Takes a waiter out. `committed`: it was just admitted; else it gives up.
    pub(super) fn leave(&mut self, place: WaiterHandle, committed: bool, now: Tick) -> Wakers {
        self.queues.leave(&self.params.rule, place, committed, now.max(self.latest))
    }

    /// When a waiter's turn comes.
    pub(super) fn planned(&self, place: WaiterHandle) -> Option<Tick> {
        self.queues.planned(place)
    }

    pub(super) fn is_head(&self, place: WaiterHandle) -> bool {
        self.queues.is_head(place)
    }

    pub(super) fn listen(&mut self, place: WaiterHandle, waker: &Waker) -> Option<Waker> {
        self.queues.listen(place, waker)
    }

    pub(super) fn shorten(&mut self, place: WaiterHandle, deadline: Tick) {
        self.queues.shorten(place, deadline);
    }

    /// When the head of a queue was due: now, or up to [`TIMER_SLACK`] before, when its timer should have rung.
    pub(super) fn due(&self, place: WaiterHandle, now: Tick) -> Tick {
        self.queues.planned(place).filter(|at| *at <= now && now.since(*at) <= TIMER_SLACK).unwrap_or(now)
    }

    /// Whether a head that comes at `now`, a little after `deadline`, had its room in time, as far as time goes.
    pub(super) fn was_due(&self, place: WaiterHandle, deadline: Tick, now: Tick) -> bool {
        self.params.rule.same_moment(deadline, now) || self.queues.planned(place).is_some_and(|at| at <= deadline)
    }

    /// From now on by these parameters; hands back the wakers of all heads, to be woken once no lock is held.
    pub(super) fn switch(&mut self, params: Arc<Params>, keys: &AtomicU64) -> Vec<Waker> {
        let old = std::mem::replace(&mut self.params, params);
        let (params, rule) = (&self.params, &self.params.rule);
        let mut layout = rule.layout_since(&old.rule);
        self.era += u64::from(layout == LayoutChange::Reset);
        if layout > LayoutChange::Repacked {
            self.ledger.clear();
        }
        let was_shared = old.lease.is_some();
        if was_shared != params.lease.is_some() {
            layout = layout.max(LayoutChange::Repacked);
        }
        if was_shared && params.lease.is_none() {
            // The others go on sharing it: what was spent here is reported.
            self.leave_all_over(&old);
        }
        if layout != LayoutChange::Kept {
            let (before, latest) = (self.table.len(), self.latest);
            let (params, rule) = (&self.params, &self.params.rule);
            self.table.rebuild(params.words(), |from, to| {
                let kept = layout != LayoutChange::Reset && !old.is_idle(from, latest);
                if kept {
                    rule.take_over(&old.rule, from, to, latest);
                    if was_shared && params.lease.is_some() {
                        params.set_lease(to, old.lease_of(from));
                    }
                }
                kept
            });
            self.dropped(before, keys);
        }
        let (rule, was) = (&self.params.rule, &old.rule);
        let numbers = |rule: &Rule| (0..rule.rates()).map(|rate| rule.quota(rate)).collect::<Vec<_>>();
        if was_shared && (rule.largest(), numbers(rule)) != (was.largest(), numbers(was)) {
            self.forget_refusals(true);
        }
        self.queues.invalidate(self.params.words())
    }

    /// Forgets every key; the waiters stay.
    pub(super) fn forget_all(&mut self, keys: &AtomicU64) {
        keys.fetch_sub(self.table.len() as u64, Ordering::Relaxed);
        self.leave_all_over(&Arc::clone(&self.params));
        self.era += 1;
        self.ledger.clear();
        self.table.clear();
    }

    /// Why and until when there is no room for a key.
    #[inline(never)]
    fn blocked(&mut self, key: Fingerprint, cost: u64, at: Option<usize>, queued: bool, room: FitTime) -> Blocked {
        let (state, from) = if queued { self.outlook(at) } else { Default::default() };
        let Self { params, queues, latest, .. } = self;
        let (rule, max_wait) = (&params.rule, params.spec.max_wait);
        if queued {
            let planned = queues.plan(rule, &state, key, cost, from);
            let place_at = queues.place_at(rule, &state, key, params.max_queue, from);
            return Blocked { planned, max_wait, place_at, at };
        }
        let planned = Planned::new(room, *latest);
        Blocked { planned, max_wait, place_at: (params.max_queue > 0).then_some(Tick::ZERO), at }
    }

    /// Whether it is shared, and its store is not there to say what is counted.
    pub(super) fn is_store_away(&self, key: Fingerprint) -> bool {
        self.params.lease.as_ref().is_some_and(|terms| !terms.is_up(key))
    }

    /// How long a request of a shadow limit would wait for `room`, if it might.
    fn would_wait(&self, room: FitTime) -> Option<Span> {
        let params = &*self.params;
        if matches!(room, FitTime::OnRelease { .. }) {
            return (params.max_queue > 0).then_some(params.spec.max_wait).filter(|wait| !wait.is_zero());
        }
        let wait = Planned::new(room, self.latest).at.since(self.latest);
        (params.max_queue > 0 && wait <= params.spec.max_wait).then_some(wait)
    }
}

/// A copy of a key's state as of `now`. Only those who wait pay for it.
fn state_of(params: &Params, table: &Table, at: Option<usize>, now: Tick) -> Vec<u64> {
    let mut state = at.map_or_else(|| vec![0; params.words()], |at| table.state(at).to_vec());
    params.rule.advance(&mut state, now);
    state
}

impl Blocked {
    /// Whether it is refused, had it only this limit to pass: it arrives now and has to be done within `timeout`.
    pub(super) fn refuses(&self, now: Tick, timeout: Span) -> bool {
        let wait = self.max_wait.min(timeout);
        let late = self.planned.at > now + wait && !self.planned.on_release;
        wait.is_zero() || late || self.place_at != Some(Tick::ZERO)
    }
}

#[cfg(test)]
impl Blocked {
    pub(super) fn new(planned: Planned, max_wait: Span, place_at: Option<Tick>) -> Self {
        Self { planned, max_wait, place_at, at: None }
    }
}

impl Evaluation {
    /// Why there is no room, if that is what it is.
    pub(super) fn blocked(&self) -> Option<Blocked> {
        if let Self::Blocked(blocked) = *self { Some(blocked) } else { None }
    }

    /// Where the key's record is, if it has one.
    pub(super) fn record(&self) -> Option<usize> {
        match *self {
            Self::Fits(Record::At(at)) | Self::Leased { record: Record::At(at), .. } => Some(at),
            Self::Blocked(Blocked { at, .. })
            | Self::TooCostly { at, .. }
            | Self::Shadowed { at, .. }
            | Self::Awaits { at }
            | Self::Unavailable { at } => at,
            _ => None,
        }
    }
}
