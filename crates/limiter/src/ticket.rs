use std::sync::Arc;
use std::task::Waker;

use super::MAX_LIMITS;
use super::algorithm::TIMER_SLACK;
use super::decision::{Decision, Denial};
use super::limit::EffectiveMode;
use super::permit::Permit;
use super::policy::Policy;
use super::queue::Wakers;
use super::report::Report;
use super::round::{ArrivalOutcome, Claims, Findings, PolicyTransaction, StoreWait, Wait};
use super::verdict::{Ask, Attempt, Refusal, RefusalReason};
use sluicegate_time::{Span, Tick};

/// A request's place in a queue. Dropping it cancels the request and wakes the next in line.
///
/// Its owner calls [`attempt`](Self::attempt) at once, then at `wake_at` of each answer and whenever the waker that it
/// gave is woken, until the answer is another than `Pending`.
#[derive(Debug)]
#[must_use = "dropping a ticket gives up the place"]
pub struct Ticket {
    policy: Arc<Policy>,
    asks: Arc<[Ask]>,
    arrived: Tick,
    timeout: Span,
    /// In whose queue it waits, if in one.
    wait: Option<Wait>,
    /// In whose lines it waits for the store, if in some.
    store: Option<Box<StoreWait>>,
    /// How much longer it may wait for the store, once it has begun to.
    store_left: Option<Span>,
}

/// The outcome of an attempt, and the wakers to wake once no lock is held.
type Stepped = (TicketStep, [Wakers; 2]);

#[derive(Debug)]
enum TicketStep {
    Admitted(Permit),
    Pending(Tick),
    Over(Denial),
}

impl Ticket {
    pub(super) fn new(policy: &Arc<Policy>, asks: &[Ask], arrived: Tick, timeout: Span, wait: Wait) -> Self {
        let asks = asks.iter().take(MAX_LIMITS).copied().collect();
        let policy = Arc::clone(policy);
        Self { policy, asks, arrived, timeout, wait: Some(wait), store: None, store_left: None }
    }

    /// One that waits for the store of limits that are shared.
    pub(super) fn awaiting(
        policy: &Arc<Policy>,
        asks: &[Ask],
        arrived: Tick,
        timeout: Span,
        mut store: StoreWait,
    ) -> Self {
        let asks = asks.iter().take(MAX_LIMITS).copied().collect();
        let left = store.until.since(arrived).min(timeout);
        store.until = arrived + left;
        let (policy, store) = (Arc::clone(policy), Some(Box::new(store)));
        Self { policy, asks, arrived, timeout, wait: None, store, store_left: Some(left) }
    }

    /// The index in the policy of the limit in whose queue it waits now; `None` once it has ended.
    pub fn waits_for(&self) -> Option<usize> {
        self.wait.map(|wait| wait.limit)
    }

    /// When its turn comes in the queue where it waits, if it is known.
    pub(super) fn planned(&self) -> Option<Tick> {
        let Wait { limit, place, .. } = self.wait?;
        let key = self.asks.get(limit)?.key?;
        self.policy.limits().get(limit)?.lock(key).planned(place)
    }

    /// Tries to get in. `waker` is woken when it becomes the head of its queue or when its limit changes; `report` is
    /// filled when it is admitted or times out. After the end it answers `TimedOut`.
    pub fn attempt(&mut self, now: Tick, waker: &Waker, report: &mut Report) -> Attempt {
        let policy = Arc::clone(&self.policy);
        let asks = Arc::clone(&self.asks);
        if self.wait.is_none() && self.store.is_none() {
            return Attempt::TimedOut(ended(now));
        }
        if let (Some(wait), None) = (self.wait, &self.store)
            && let Some(pending) = keep_waiting(&policy, &asks, wait, now, waker)
        {
            return pending;
        }
        let mut round = PolicyTransaction::<MAX_LIMITS>::new(&policy, &asks, now);
        let mut lines = Vec::new();
        let (step, wakers) = match self.wait {
            Some(wait) => self.step(&mut round, wait, now, waker, &mut lines),
            None => (self.step_in_line(&mut round, now, waker, &mut lines), Default::default()),
        };
        if !matches!(step, TicketStep::Pending(_)) {
            report.clear();
            round.report((self.arrived + self.timeout).since(now), report);
        }
        let rings = round.rings();
        drop(round);
        for wakers in wakers.into_iter().chain(lines) {
            wakers.wake();
        }
        if rings != 0 {
            policy.ring(rings);
        }
        match step {
            TicketStep::Admitted(permit) => Attempt::Admitted(permit),
            TicketStep::Pending(wake_at) => Attempt::Pending { wake_at },
            TicketStep::Over(denial) => {
                report.exhaust(denial, asks.get(denial.limit).map_or(0, |ask| ask.cost), now);
                Attempt::TimedOut(report.refusal(denial))
            }
        }
    }

    /// The step of the head, or of one whose time is up, under all locks.
    fn step(
        &mut self,
        round: &mut PolicyTransaction<'_, MAX_LIMITS>,
        wait: Wait,
        now: Tick,
        waker: &Waker,
        lines: &mut Vec<Wakers>,
    ) -> Stepped {
        let Some(shard) = round.shard(wait.limit) else {
            // It waits where it asked, so there is a shard.
            let denial = Denial { limit: wait.limit, rate: 0, why: RefusalReason::WaitTimeout, retry_at: None };
            return (TicketStep::Over(denial), Default::default());
        };
        // A timer may be late: so much after its deadline a head whose room was there in time is still let in.
        let slack = now.since(wait.deadline) <= TIMER_SLACK && shard.was_due(wait.place, wait.deadline, now);
        let due = shard.due(wait.place, now);
        // The store was asked in time, and its answer is waited for.
        let in_time = now <= wait.deadline || slack || self.store.is_some();
        let is_head = shard.is_head(wait.place);
        if shard.stance() == EffectiveMode::Closed || !is_head || !in_time {
            return self.end(round, wait, wait.limit, now);
        }
        match self.ask_store(round, Some(wait.limit), now, waker, lines) {
            // It keeps its place while the store is asked.
            Findings::Awaits => {
                let until = self.store.as_ref().map_or(now, |store| store.until);
                (TicketStep::Pending(until), Default::default())
            }
            Findings::Fits => {
                let permit = round.commit(due);
                self.wait = None;
                let wakers = round.shard(wait.limit).map(|shard| shard.leave(wait.place, true, now));
                (TicketStep::Admitted(permit), [wakers.unwrap_or_default(), Wakers::default()])
            }
            // No hope, as when its own limit was lowered below its cost: it does not hold up those behind it.
            Findings::Impossible(denial) => {
                round.note(denial);
                let (step, wakers) = self.end(round, wait, denial.limit, now);
                match step {
                    TicketStep::Over(ended) if denial.why == RefusalReason::StoreDown => {
                        (TicketStep::Over(Denial { why: denial.why, ..ended }), wakers)
                    }
                    step => (step, wakers),
                }
            }
            Findings::Blocked if now >= wait.deadline => self.end(round, wait, wait.limit, now),
            Findings::Blocked => self.stay_or_move(round, wait, now, waker),
        }
    }

    /// One step, under all locks, of a request that waits for the store or has its answer.
    fn step_in_line(
        &mut self,
        round: &mut PolicyTransaction<'_, MAX_LIMITS>,
        now: Tick,
        waker: &Waker,
        lines: &mut Vec<Wakers>,
    ) -> TicketStep {
        match self.ask_store(round, None, now, waker, lines) {
            Findings::Fits => TicketStep::Admitted(round.commit(now)),
            Findings::Awaits => TicketStep::Pending(self.store.as_ref().map_or(now, |store| store.until)),
            Findings::Impossible(denial) => {
                round.note(denial);
                TicketStep::Over(denial)
            }
            // It is now as if it had just come, but for its patience.
            Findings::Blocked => match round.settle_blocked(self.arrived, self.timeout) {
                ArrivalOutcome::Admitted(permit) => TicketStep::Admitted(permit),
                ArrivalOutcome::Refused(denial) => TicketStep::Over(denial),
                ArrivalOutcome::Waits(wait) => {
                    self.wait = Some(wait);
                    TicketStep::Pending(now)
                }
                ArrivalOutcome::Awaits(_) => TicketStep::Pending(now),
            },
        }
    }

    /// Asks every limit. Where the store has to be asked first, it waits for that as long as it may, over all times that
    /// it does: then each gateway decides for itself. In a queue it may wait as long at each of its turns, since the store
    /// that says "not yet" answers; the last turn begins before its patience ends.
    fn ask_store(
        &mut self,
        round: &mut PolicyTransaction<'_, MAX_LIMITS>,
        head_of: Option<usize>,
        now: Tick,
        waker: &Waker,
        lines: &mut Vec<Wakers>,
    ) -> Findings {
        let is_over = self.store_left.is_some_and(Span::is_zero);
        let is_late = is_over || self.store.as_ref().is_some_and(|store| now >= store.until);
        let findings = round.ask_again(Claims { head_of, store: self.store.as_deref(), is_late });
        if matches!(findings, Findings::Awaits) {
            let left = *self.store_left.get_or_insert_with(|| round.store_deadline());
            let patience = self.wait.map_or(Tick::MAX, |wait| wait.deadline + left).min(self.arrived + self.timeout);
            let store = self.store.get_or_insert_with(|| Box::new(StoreWait::until((now + left).min(patience))));
            if let Some(limit) = round.join_lines(store, head_of) {
                lines.extend(round.leave_lines(store));
                self.store = None;
                return Findings::Impossible(Denial { limit, rate: 0, why: RefusalReason::TableFull, retry_at: None });
            }
            lines.extend(round.listen_in_lines(store, waker));
        } else if let Some(store) = self.store.take() {
            lines.extend(round.leave_lines(&store));
            self.store_left = (!matches!(findings, Findings::Blocked)).then(|| store.until.since(now));
        }
        findings
    }

    /// It cannot get in now: it keeps its place, moves to the queue of the limit whose room comes last, or ends.
    fn stay_or_move(
        &mut self,
        round: &mut PolicyTransaction<'_, MAX_LIMITS>,
        wait: Wait,
        now: Tick,
        waker: &Waker,
    ) -> Stepped {
        let obstacles = round.obstacles();
        let set = obstacles.set();
        if let Some(own) = obstacles.get(wait.limit)
            && set == 1 << wait.limit
        {
            return pending(round, wait, own.planned.at.min(wait.deadline), waker);
        }
        // Who has refused before has had its say in the deadline, and its own queue has a place for it.
        let fresh = obstacles.excusing(wait.refused_by, wait.limit);
        match fresh.decide(self.arrived, self.timeout, wait.deadline) {
            // The patience of a limit whose room nobody can foresee may be over before the request comes to it.
            Some(Decision::Wait { limit, deadline, .. }) if deadline <= now => self.end(round, wait, limit, now),
            Some(Decision::Wait { limit, planned, deadline }) => {
                let refused_by = wait.refused_by | set;
                if limit == wait.limit {
                    if deadline < wait.deadline
                        && let Some(shard) = round.shard(limit)
                    {
                        shard.shorten(wait.place, deadline);
                    }
                    let wait = Wait { deadline, refused_by, ..wait };
                    self.wait = Some(wait);
                    return pending(round, wait, planned.min(deadline), waker);
                }
                let Some(place) = round.join(limit, planned, deadline) else {
                    return self.end(round, wait, limit, now);
                };
                let left = round.shard(wait.limit).map(|shard| shard.leave(wait.place, false, now));
                let wait = Wait { limit, place, deadline, refused_by };
                self.wait = Some(wait);
                let is_head = round.shard(limit).is_some_and(|shard| shard.is_head(place));
                let wake_at = if is_head { planned.min(deadline) } else { deadline + TIMER_SLACK };
                let (step, [replaced, _]) = pending(round, wait, wake_at, waker);
                (step, [left.unwrap_or_default(), replaced])
            }
            Some(Decision::Refuse(denial)) => self.end(round, wait, denial.limit, now),
            None => pending(round, wait, wait.deadline, waker),
        }
    }

    /// It leaves without being admitted; `limit` is the one that ended it.
    fn end(&mut self, round: &mut PolicyTransaction<'_, MAX_LIMITS>, wait: Wait, limit: usize, now: Tick) -> Stepped {
        self.wait = None;
        let left = round.shard(wait.limit).map(|shard| shard.leave(wait.place, false, now));
        // When to come back is what an arrival of now would be told.
        let (rate, retry_at) = match round.ask_again(Claims::default()) {
            Findings::Fits | Findings::Awaits => (0, Some(now)),
            Findings::Impossible(denial) => (denial.rate, None),
            Findings::Blocked => {
                let obstacles = round.obstacles();
                let rate = obstacles.get(limit).map_or(0, |blocked| blocked.planned.rate());
                match obstacles.decide(now, self.timeout, Tick::MAX) {
                    Some(Decision::Refuse(denial)) => (rate, denial.retry_at),
                    _ => (rate, Some(now)),
                }
            }
        };
        let denial = Denial { limit, rate, why: RefusalReason::WaitTimeout, retry_at };
        (TicketStep::Over(denial), [left.unwrap_or_default(), Wakers::default()])
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(store) = self.store.take() {
            for (index, place) in store.places() {
                let key = self.asks.get(index).and_then(|ask| ask.key);
                if let (Some(limit), Some(key)) = (self.policy.limits().get(index), key) {
                    let wakers = limit.lock(key).leave_line(key, place);
                    wakers.wake();
                }
            }
        }
        let Some(wait) = self.wait.take() else { return };
        let key = self.asks.get(wait.limit).and_then(|ask| ask.key);
        if let (Some(limit), Some(key)) = (self.policy.limits().get(wait.limit), key) {
            let wakers = limit.lock(key).leave(wait.place, false, Tick::ZERO);
            wakers.wake();
        }
    }
}

/// The short way, under one lock: not the head, and its time is not up.
fn keep_waiting(policy: &Policy, asks: &[Ask], wait: Wait, now: Tick, waker: &Waker) -> Option<Attempt> {
    let key = asks.get(wait.limit)?.key?;
    let mut shard = policy.limits().get(wait.limit)?.lock(key);
    // Not sent away before the one ahead of it, whose timer may be late, has made its turn come.
    let last_call = wait.deadline + TIMER_SLACK;
    if shard.is_head(wait.place) || now >= last_call || shard.stance() == EffectiveMode::Closed {
        return None;
    }
    let replaced = shard.listen(wait.place, waker);
    drop(shard);
    drop(replaced);
    Some(Attempt::Pending { wake_at: last_call })
}

fn pending(round: &mut PolicyTransaction<'_, MAX_LIMITS>, wait: Wait, wake_at: Tick, waker: &Waker) -> Stepped {
    let replaced = round.shard(wait.limit).and_then(|shard| shard.listen(wait.place, waker));
    (TicketStep::Pending(wake_at), [Wakers::done(replaced), Wakers::default()])
}

/// For a ticket that is attempted after its end.
fn ended(now: Tick) -> Refusal {
    Refusal {
        limit: 0,
        why: RefusalReason::WaitTimeout,
        retry_at: Some(now),
        quota: 0,
        window: Span::ZERO,
        remaining: 0,
        blocked_until: None,
    }
}
