use std::task::Waker;

use super::MAX_LIMITS;
use super::algorithm::RateStanding;
use super::decision::{Decision, Denial, Obstacles};
use super::key::Fingerprint;
use super::lease::BudgetSource;
use super::limit::EffectiveMode;
use super::permit::{Owes, Permit};
use super::policy::Policy;
use super::queue::{Waiter, WaiterHandle, Wakers};
use super::report::{QuotaLine, Report};
use super::shard::{Asking, Claim, Evaluation, Record, Shard};
use super::sync::MutexGuard;
use super::verdict::{Ask, Counting, RefusalReason};
use sluicegate_time::{Span, Tick};

/// One request before all its limits at once: their locks taken in order, all asked, then all counted or none. `N` is
/// the most limits that it has room for: nearly every policy has one, and setting up room for eight would be a good part
/// of its check.
#[derive(Debug)]
pub(super) struct PolicyTransaction<'a, const N: usize> {
    policy: &'a Policy,
    asks: &'a [Ask],
    now: Tick,
    shards: [Option<MutexGuard<'a, Shard>>; N],
    opinions: [Evaluation; N],
}

/// The outcome of an arrival.
#[derive(Debug)]
pub(super) enum ArrivalOutcome {
    Admitted(Permit),
    Waits(Wait),
    /// For the store.
    Awaits(StoreWait),
    Refused(Denial),
}

/// A place in a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) limit: usize,
    pub(super) place: WaiterHandle,
    pub(super) deadline: Tick,
    /// The limits whose patience is in the deadline, as bits.
    pub(super) refused_by: u8,
}

/// Places in the lines of those who wait for the store of shared limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreWait {
    /// Of each limit, by its index in the policy.
    places: [Option<u64>; MAX_LIMITS],
    /// Until when it waits: then each gateway decides for itself.
    pub(super) until: Tick,
}

impl StoreWait {
    /// In no line yet.
    pub(super) fn until(until: Tick) -> Self {
        Self { places: [None; MAX_LIMITS], until }
    }

    /// Its places, with the indices of their limits in the policy.
    pub(super) fn places(&self) -> impl Iterator<Item = (usize, u64)> {
        self.places.iter().enumerate().filter_map(|(index, place)| Some((index, (*place)?)))
    }
}

/// The claims of one who asks again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Claims<'w> {
    /// The limit in whose queue it is the head.
    pub(super) head_of: Option<usize>,
    pub(super) store: Option<&'w StoreWait>,
    /// It has waited for the store as long as it may.
    pub(super) is_late: bool,
}

/// The opinions of the limits, taken together.
#[derive(Clone, Copy, Debug)]
pub(super) enum Findings {
    Fits,
    /// Some shared limit has to ask the store first, and no other has no room.
    Awaits,
    /// See [`PolicyTransaction::obstacles`].
    Blocked,
    /// One for which there is no hope.
    Impossible(Denial),
}

impl<'a, const N: usize> PolicyTransaction<'a, N> {
    /// Takes the locks. Asks beyond the policy's limits are not looked at; the policy has at most `N`.
    #[inline]
    pub(super) fn new(policy: &'a Policy, asks: &'a [Ask], now: Tick) -> Self {
        let mut shards = [const { None }; N];
        for &index in policy.order() {
            if let (Some(key), Some(limit), Some(shard)) =
                (asks.get(index).and_then(|ask| ask.key), policy.limits().get(index), shards.get_mut(index))
            {
                *shard = Some(limit.lock(key));
            }
        }
        Self { policy, asks, now, shards, opinions: [Evaluation::None; N] }
    }

    /// A new request: admits it, lets it wait, or refuses it.
    #[inline]
    pub(super) fn arrive(&mut self, timeout: Span) -> ArrivalOutcome {
        match self.ask(Claims::default()) {
            Findings::Fits => ArrivalOutcome::Admitted(self.commit(self.now)),
            Findings::Awaits => self.await_store(),
            Findings::Impossible(denial) => {
                self.note(denial);
                self.note_refused(timeout);
                ArrivalOutcome::Refused(denial)
            }
            Findings::Blocked => self.settle_blocked(self.now, timeout),
        }
    }

    /// A new request: refuses it where [`arrive`](Self::arrive) would, and does nothing else.
    pub(super) fn refuse_early(&mut self, timeout: Span) -> Option<Denial> {
        match self.ask_again(Claims::default()) {
            Findings::Fits | Findings::Awaits => None,
            Findings::Impossible(denial) => {
                self.note(denial);
                self.note_refused(timeout);
                Some(denial)
            }
            Findings::Blocked => match self.obstacles().decide(self.now, timeout, Tick::MAX) {
                Some(Decision::Refuse(denial)) => Some(self.refuse(denial, timeout)),
                Some(Decision::Wait { .. }) | None => None,
            },
        }
    }

    /// Decides about a request, come at `arrived`, for which some limits have no room.
    #[inline]
    pub(super) fn settle_blocked(&mut self, arrived: Tick, timeout: Span) -> ArrivalOutcome {
        match self.obstacles().decide(arrived, timeout, Tick::MAX) {
            None => ArrivalOutcome::Admitted(Permit::default()),
            Some(Decision::Refuse(denial)) => ArrivalOutcome::Refused(self.refuse(denial, timeout)),
            Some(Decision::Wait { limit, planned, deadline }) => {
                let refused_by = self.obstacles().set();
                match self.join(limit, planned, deadline) {
                    Some(place) => ArrivalOutcome::Waits(Wait { limit, place, deadline, refused_by }),
                    None => ArrivalOutcome::Refused(Denial {
                        limit,
                        rate: 0,
                        why: RefusalReason::QueueFull,
                        retry_at: Some(planned),
                    }),
                }
            }
        }
    }

    /// Counts a refusal; answers it as it is then. A key that a penalty had blocked before is told apart: the refusal that begins a
    /// block is one for want of room.
    fn refuse(&mut self, denial: Denial, timeout: Span) -> Denial {
        let blocked = self.blocked();
        let denial = if self.note_refused(timeout) { self.again(denial, timeout) } else { denial };
        let is_blocked = blocked & (1 << denial.limit) != 0;
        if is_blocked { Denial { why: RefusalReason::Blocked, ..denial } } else { denial }
    }

    /// Until when the penalty of this limit blocks its key, now that the refusal has been counted.
    pub(super) fn blocked_until(&mut self, limit: usize) -> Option<Tick> {
        let (key, now) = (self.asks.get(limit)?.key?, self.now);
        self.shard(limit)?.blocked_until(key, now)
    }

    /// The limits, as bits, whose penalty blocks the key.
    fn blocked(&mut self) -> u8 {
        let mut blocked = 0;
        for index in 0..self.policy.limits().len().min(N) {
            let Evaluation::Blocked(_) = self.opinions[index] else { continue };
            let at = self.opinions[index].record();
            if self.shard(index).zip(at).is_some_and(|(shard, at)| shard.is_blocked(at)) {
                blocked |= 1 << index;
            }
        }
        blocked
    }

    /// Asks every limit.
    #[allow(clippy::inline_always, reason = "an arrival's is the hot one; the others go through one that is not")]
    #[inline(always)]
    fn ask(&mut self, claims: Claims<'_>) -> Findings {
        let mut findings = Findings::Fits;
        for index in 0..self.policy.limits().len().min(N) {
            let Some((key, cost)) = self.key_and_cost(index) else { continue };
            let (Some(shard), Some(limit)) = (&mut self.shards[index], self.policy.limits().get(index)) else {
                continue;
            };
            let is_head = claims.head_of == Some(index);
            let at_most = self.asks.get(index).and_then(|ask| ask.at_most);
            let opinion = if shard.is_shared() {
                let place = claims.store.and_then(|wait| wait.places.get(index).copied().flatten());
                let client = self.asks.get(index).map_or(0, |ask| ask.client);
                let claim = Claim { is_head, place, is_late: claims.is_late, client };
                shard.judge_shared(claim, key, cost, self.now, limit.keys())
            } else {
                let asking = if is_head { Asking::Head } else { Asking::Arrival };
                // What the request may not have is left free beside it.
                let cost = at_most.map_or(cost, |most| cost.saturating_add(shard.headroom(most)));
                shard.judge(asking, key, cost, self.now, limit.keys())
            };
            let denial = |rate, why| Findings::Impossible(Denial { limit: index, rate, why, retry_at: None });
            match (opinion, findings) {
                // Of several, the one for which there is no hope at all.
                (Evaluation::TooCostly { .. }, Findings::Impossible(Denial { why: RefusalReason::TooCostly, .. })) => {}
                (Evaluation::TooCostly { rate, .. }, _) => findings = denial(rate, RefusalReason::TooCostly),
                (Evaluation::TableFull, Findings::Fits | Findings::Awaits | Findings::Blocked) => {
                    findings = denial(0, RefusalReason::TableFull);
                }
                (Evaluation::Unavailable { .. }, Findings::Fits | Findings::Awaits | Findings::Blocked) => {
                    findings = denial(0, RefusalReason::StoreDown);
                }
                (Evaluation::Blocked(_), Findings::Fits | Findings::Awaits) => findings = Findings::Blocked,
                (Evaluation::Awaits { .. }, Findings::Fits) => findings = Findings::Awaits,
                _ => {}
            }
            self.opinions[index] = opinion;
        }
        findings
    }

    /// The same for those who are asked rarely, so that the code of an arrival stays in line.
    #[inline(never)]
    pub(super) fn ask_again(&mut self, claims: Claims<'_>) -> Findings {
        self.ask(claims)
    }

    /// It waits for the store in the lines of all limits that have to ask it.
    #[inline(never)]
    fn await_store(&mut self) -> ArrivalOutcome {
        let mut wait = StoreWait::until(self.now + self.store_deadline());
        match self.join_lines(&mut wait, None) {
            None => ArrivalOutcome::Awaits(wait),
            Some(limit) => {
                // Nobody stands behind one who has just come: there is nobody to wake.
                drop(self.leave_lines(&wait));
                ArrivalOutcome::Refused(Denial { limit, rate: 0, why: RefusalReason::TableFull, retry_at: None })
            }
        }
    }

    /// How long it may wait for the store, which is the same for all limits.
    pub(super) fn store_deadline(&self) -> Span {
        self.shards.iter().flatten().map(|shard| shard.store_deadline()).max().unwrap_or(Span::ZERO)
    }

    /// Goes into the line of each limit that has to ask the store, where it has no place yet; answers one that has no room
    /// for the key.
    pub(super) fn join_lines(&mut self, wait: &mut StoreWait, head_of: Option<usize>) -> Option<usize> {
        for index in 0..self.policy.limits().len().min(N) {
            let Evaluation::Awaits { .. } = self.opinions[index] else { continue };
            let Some((key, cost)) = self.key_and_cost(index) else { continue };
            let (Some(shard), Some(limit)) = (&mut self.shards[index], self.policy.limits().get(index)) else {
                continue;
            };
            let client = self.asks.get(index).map_or(0, |ask| ask.client);
            if wait.places[index].is_none() {
                wait.places[index] = shard.join_line((key, client), cost, head_of == Some(index), limit.keys());
                if wait.places[index].is_none() {
                    return Some(index);
                }
            }
        }
        None
    }

    /// Leaves all lines: whom to wake, once no lock is held.
    pub(super) fn leave_lines(&mut self, wait: &StoreWait) -> Vec<Wakers> {
        let mut left = Vec::new();
        for (index, place) in wait.places() {
            let Some((key, _)) = self.key_and_cost(index) else { continue };
            if let Some(shard) = self.shard(index) {
                left.push(shard.leave_line(key, place));
            }
        }
        left
    }

    /// `waker` is woken when the store has answered; gives the wakers that it replaces.
    pub(super) fn listen_in_lines(&mut self, wait: &StoreWait, waker: &Waker) -> Vec<Wakers> {
        let mut replaced = Vec::new();
        for (index, place) in wait.places() {
            let Some((key, _)) = self.key_and_cost(index) else { continue };
            if let Some(shard) = self.shard(index) {
                replaced.push(Wakers::done(shard.listen_in_line(key, place, waker)));
            }
        }
        replaced
    }

    /// The limits, as bits, whose bell is to be rung once no lock is held.
    pub(super) fn rings(&mut self) -> u8 {
        let mut rings = 0;
        for (index, shard) in self.shards.iter_mut().enumerate() {
            if shard.as_mut().is_some_and(|shard| shard.is_shared() && shard.takes_ring()) {
                rings |= 1 << index;
            }
        }
        rings
    }

    /// The last answers of the limits that have no room.
    pub(super) fn obstacles(&self) -> Obstacles<'_> {
        Obstacles::new(self.opinions.get(..self.policy.limits().len()).unwrap_or_default())
    }

    /// Counts the request, which was `due` now or a little before, in every limit where it fits.
    #[inline]
    pub(super) fn commit(&mut self, due: Tick) -> Permit {
        let mut permit = Permit::default();
        for index in 0..self.policy.limits().len().min(N) {
            if let Evaluation::Leased { .. } = self.opinions[index] {
                self.commit_leased(index, due, &mut permit);
                continue;
            }
            let Evaluation::Fits(record) = self.opinions[index] else { continue };
            let Some((key, cost)) = self.key_and_cost(index) else { continue };
            let (Some(shard), Some(limit)) = (&mut self.shards[index], self.policy.limits().get(index)) else {
                continue;
            };
            let (counting, renews) =
                self.asks.get(index).map_or_else(Default::default, |ask| (ask.counting, ask.renews));
            if counting == Counting::Later && !shard.counts_in_flight() {
                permit.add(index, limit, key, cost, Owes::Count { client: 0 });
                continue;
            }
            let record = renews.map_or(record, |day| shard.renew(record, key, day, limit.keys()));
            self.opinions[index] = match shard.commit(record, key, cost, due, limit.keys()) {
                Some(at) => {
                    if let Some(era) = shard.granted(at) {
                        permit.add(index, limit, key, cost, Owes::Release { era });
                    } else if counting == Counting::Corrected {
                        permit.add(index, limit, key, cost, Owes::Correct(shard.reserve(key, at)));
                    }
                    Evaluation::Fits(Record::At(at))
                }
                None => Evaluation::Fits(Record::Uncounted),
            };
        }
        permit
    }

    /// The same for a limit that is shared.
    #[inline(never)]
    fn commit_leased(&mut self, index: usize, due: Tick, permit: &mut Permit) {
        let Evaluation::Leased { record, source } = self.opinions[index] else { return };
        let Some((key, cost)) = self.key_and_cost(index) else { return };
        let (Some(shard), Some(limit)) = (&mut self.shards[index], self.policy.limits().get(index)) else { return };
        let counting = self.asks.get(index).map_or(Counting::AtOnce, |ask| ask.counting);
        let client = self.asks.get(index).map_or(0, |ask| ask.client);
        if counting == Counting::Later {
            return permit.add(index, limit, key, cost, Owes::Count { client });
        }
        let at = shard.take_leased((record, source), (key, client), cost, due, limit.keys());
        if let (Some(_), Counting::Corrected) = (at, counting) {
            permit.add(index, limit, key, cost, Owes::Correct(shard.reserve_leased(source, client)));
        }
        self.opinions[index] = Evaluation::Leased { record: at.map_or(Record::Uncounted, Record::At), source };
    }

    pub(super) fn join(&mut self, limit: usize, planned: Tick, deadline: Tick) -> Option<WaiterHandle> {
        let (key, cost) = self.key_and_cost(limit)?;
        self.shard(limit)?.join(Waiter { key, cost, deadline }, planned)
    }

    pub(super) fn shard(&mut self, limit: usize) -> Option<&mut Shard> {
        self.shards.get_mut(limit)?.as_deref_mut()
    }

    /// Counts a request that a full table ended, once for each such request.
    pub(super) fn note(&mut self, denial: Denial) {
        if denial.why == RefusalReason::TableFull
            && let Some(shard) = self.shard(denial.limit)
        {
            shard.note_refused_full();
        }
    }

    /// Counts a refusal in each limit that refuses it itself and counts such; answers whether room comes later for that.
    fn note_refused(&mut self, timeout: Span) -> bool {
        let mut noted = false;
        for index in 0..self.policy.limits().len().min(N) {
            let Evaluation::Blocked(blocked) = self.opinions[index] else { continue };
            let (at, refuses) = (self.opinions[index].record(), blocked.refuses(self.now, timeout));
            let Some((key, cost)) = self.key_and_cost(index).filter(|_| refuses) else { continue };
            noted |= self.shard(index).is_some_and(|shard| shard.note_refused(key, at, cost));
        }
        noted
    }

    /// The denial, as it is now that refusals have been counted: the time to come back is later.
    fn again(&mut self, denial: Denial, timeout: Span) -> Denial {
        if matches!(self.ask_again(Claims::default()), Findings::Blocked)
            && let Some(Decision::Refuse(denial)) = self.obstacles().decide(self.now, timeout, Tick::MAX)
        {
            return denial;
        }
        denial
    }

    /// Fills the report: how every limit that has an opinion stands now, for a request that may wait for `patience`.
    pub(super) fn report(&mut self, patience: Span, report: &mut Report) {
        for (index, (shard, opinion)) in self.shards.iter_mut().zip(&self.opinions).enumerate() {
            let (Some(shard), Some(key)) = (shard, self.asks.get(index).and_then(|ask| ask.key)) else { continue };
            let shadowed = match *opinion {
                Evaluation::None => continue,
                Evaluation::Shadowed { rate, wait, .. } if wait.is_none_or(|wait| wait > patience) => {
                    report.note_shadow_refusal(index);
                    rate
                }
                Evaluation::Unavailable { .. } | Evaluation::Leased { source: BudgetSource::Unbounded, .. }
                    if shard.is_store_away(key) =>
                {
                    report.note_undecided(index);
                    None
                }
                _ => None,
            };
            let shadow = shard.stance() == EffectiveMode::Shadow;
            let is_one = self.asks.get(index).is_some_and(|ask| ask.cost == 1);
            let at_most = self.asks.get(index).and_then(|ask| ask.at_most);
            let headroom = at_most.map_or(0, |most| shard.headroom(most));
            let planned = opinion.blocked().filter(|_| is_one).map(|blocked| blocked.planned);
            let refuses = opinion.blocked().filter(|blocked| is_one && blocked.refuses(self.now, patience));
            let refused = refuses.map(|blocked| blocked.planned);
            let waits = refuses.map_or(Span::ZERO, |blocked| blocked.max_wait.min(patience));
            for rate in 0..shard.rates() {
                let next = planned.filter(|planned| planned.rate() == rate).map(|planned| planned.at);
                let quota = shard.quota(key, opinion.record(), rate, next);
                let mut standing = quota.standing;
                if headroom > 0 {
                    standing = shard.standing_within(opinion.record(), headroom, standing);
                }
                if let Some(planned) = refused.filter(|planned| planned.rate() == rate && standing.remaining > 0) {
                    // What is stored, or how many may wait, is of no use to one who is sent away.
                    let retry_at = (planned.at - waits).max(self.now);
                    standing = RateStanding { remaining: 0, grows_at: (!planned.on_release).then_some(retry_at) };
                }
                if is_one && shadowed == Some(rate) {
                    standing.remaining = 0;
                }
                report.push(QuotaLine {
                    limit: index,
                    rate,
                    shadow,
                    quota: quota.limit - headroom.min(quota.limit),
                    window: quota.window,
                    remaining: standing.remaining,
                    reset: standing.grows_at.map(|at| at.since(self.now)),
                });
            }
        }
    }

    fn key_and_cost(&self, limit: usize) -> Option<(Fingerprint, u64)> {
        let ask = self.asks.get(limit)?;
        Some((ask.key?, ask.cost))
    }
}
