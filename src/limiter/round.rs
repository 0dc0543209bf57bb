use super::algorithm::Standing;
use super::decision::{Decision, Denial, Obstacles};
use super::key::Fingerprint;
use super::limit::Stance;
use super::permit::{Owes, Permit};
use super::policy::Policy;
use super::queue::{Place, Waiter};
use super::report::{QuotaLine, Report};
use super::shard::{Asking, Opinion, Record, Shard};
use super::sync::MutexGuard;
use super::verdict::{Ask, Counting, Why};
use crate::time::{Span, Tick};

/// One request before all its limits at once: their locks taken in order, all asked, then all counted or none. `N` is
/// the most limits that it has room for: nearly every policy has one, and setting up room for eight would be a good part
/// of its check.
#[derive(Debug)]
pub(super) struct Round<'a, const N: usize> {
    policy: &'a Policy,
    asks: &'a [Ask],
    now: Tick,
    shards: [Option<MutexGuard<'a, Shard>>; N],
    opinions: [Opinion; N],
}

/// What became of an arrival.
#[derive(Debug)]
pub(super) enum Outcome {
    Admitted(Permit),
    Waits(Wait),
    Refused(Denial),
}

/// A place in a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) limit: usize,
    pub(super) place: Place,
    pub(super) deadline: Tick,
    /// The limits whose patience is in the deadline, as bits.
    pub(super) refused_by: u8,
}

/// What the limits say, taken together.
#[derive(Clone, Copy, Debug)]
pub(super) enum Findings {
    Fits,
    /// See [`Round::obstacles`].
    Blocked,
    /// One for which there is no hope.
    Impossible(Denial),
}

impl<'a, const N: usize> Round<'a, N> {
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
        Self { policy, asks, now, shards, opinions: [Opinion::None; N] }
    }

    /// A new request: admits it, lets it wait, or refuses it.
    #[inline]
    pub(super) fn arrive(&mut self, timeout: Span) -> Outcome {
        match self.ask(None) {
            Findings::Fits => Outcome::Admitted(self.commit(self.now)),
            Findings::Impossible(denial) => {
                self.note(denial);
                self.note_refused(timeout);
                Outcome::Refused(denial)
            }
            Findings::Blocked => match self.obstacles().decide(self.now, timeout, Tick::MAX) {
                None => Outcome::Admitted(Permit::default()),
                Some(Decision::Refuse(denial)) if self.note_refused(timeout) => {
                    Outcome::Refused(self.again(denial, timeout))
                }
                Some(Decision::Refuse(denial)) => Outcome::Refused(denial),
                Some(Decision::Wait { limit, planned, deadline }) => {
                    let refused_by = self.obstacles().set();
                    match self.join(limit, planned, deadline) {
                        Some(place) => Outcome::Waits(Wait { limit, place, deadline, refused_by }),
                        None => {
                            Outcome::Refused(Denial { limit, rate: 0, why: Why::QueueFull, retry_at: Some(planned) })
                        }
                    }
                }
            },
        }
    }

    /// Asks every limit; `head_of` is the one in whose queue the request is the head.
    #[allow(clippy::inline_always, reason = "an arrival's is the hot one; the others go through one that is not")]
    #[inline(always)]
    fn ask(&mut self, head_of: Option<usize>) -> Findings {
        let mut findings = Findings::Fits;
        for index in 0..self.policy.limits().len().min(N) {
            let Some((key, cost)) = self.key_and_cost(index) else { continue };
            let (Some(shard), Some(limit)) = (&mut self.shards[index], self.policy.limits().get(index)) else {
                continue;
            };
            let asking = if head_of == Some(index) { Asking::Head } else { Asking::Arrival };
            let opinion = shard.judge(asking, key, cost, self.now, limit.keys());
            let denial = |rate, why| Findings::Impossible(Denial { limit: index, rate, why, retry_at: None });
            match (opinion, findings) {
                // Of several, the one for which there is no hope at all.
                (Opinion::TooCostly { .. }, Findings::Impossible(Denial { why: Why::TooCostly, .. })) => {}
                (Opinion::TooCostly { rate, .. }, _) => findings = denial(rate, Why::TooCostly),
                (Opinion::TableFull, Findings::Fits | Findings::Blocked) => findings = denial(0, Why::TableFull),
                (Opinion::Blocked(_), Findings::Fits) => findings = Findings::Blocked,
                _ => {}
            }
            self.opinions[index] = opinion;
        }
        findings
    }

    /// The same for those who are asked rarely, so that the code of an arrival stays in line.
    #[inline(never)]
    pub(super) fn ask_again(&mut self, head_of: Option<usize>) -> Findings {
        self.ask(head_of)
    }

    /// What the limits that have no room said when last asked.
    pub(super) fn obstacles(&self) -> Obstacles<'_> {
        Obstacles::new(self.opinions.get(..self.policy.limits().len()).unwrap_or_default())
    }

    /// Counts the request, which was `due` now or a little before, in every limit where it fits.
    #[inline]
    pub(super) fn commit(&mut self, due: Tick) -> Permit {
        let mut permit = Permit::default();
        for index in 0..self.policy.limits().len().min(N) {
            let Opinion::Fits(record) = self.opinions[index] else { continue };
            let Some((key, cost)) = self.key_and_cost(index) else { continue };
            let (Some(shard), Some(limit)) = (&mut self.shards[index], self.policy.limits().get(index)) else {
                continue;
            };
            let counting = self.asks.get(index).map_or(Counting::AtOnce, |ask| ask.counting);
            if counting == Counting::Later && !shard.counts_in_flight() {
                permit.add(index, limit, key, cost, Owes::Count);
                continue;
            }
            self.opinions[index] = match shard.commit(record, key, cost, due, limit.keys()) {
                Some(at) => {
                    if let Some(era) = shard.granted(at) {
                        permit.add(index, limit, key, cost, Owes::Release { era });
                    } else if counting == Counting::Corrected {
                        permit.add(index, limit, key, cost, Owes::Correct(shard.reserve(key, at)));
                    }
                    Opinion::Fits(Record::At(at))
                }
                None => Opinion::Fits(Record::Uncounted),
            };
        }
        permit
    }

    pub(super) fn join(&mut self, limit: usize, planned: Tick, deadline: Tick) -> Option<Place> {
        let (key, cost) = self.key_and_cost(limit)?;
        self.shard(limit)?.join(Waiter { key, cost, deadline }, planned)
    }

    pub(super) fn shard(&mut self, limit: usize) -> Option<&mut Shard> {
        self.shards.get_mut(limit)?.as_deref_mut()
    }

    /// Counts a request that a full table ended, once for each such request.
    pub(super) fn note(&mut self, denial: Denial) {
        if denial.why == Why::TableFull
            && let Some(shard) = self.shard(denial.limit)
        {
            shard.note_refused_full();
        }
    }

    /// Counts a refusal in each limit that refuses it itself and counts such; answers whether room comes later for that.
    fn note_refused(&mut self, timeout: Span) -> bool {
        let mut noted = false;
        for index in 0..self.policy.limits().len().min(N) {
            let Opinion::Blocked(blocked) = self.opinions[index] else { continue };
            let (at, refuses) = (self.opinions[index].record(), blocked.refuses(self.now, timeout));
            let Some((key, cost)) = self.key_and_cost(index).filter(|_| refuses) else { continue };
            noted |= self.shard(index).is_some_and(|shard| shard.note_refused(key, at, cost));
        }
        noted
    }

    /// The denial, as it is now that refusals have been counted: the time to come back is later.
    fn again(&mut self, denial: Denial, timeout: Span) -> Denial {
        if matches!(self.ask_again(None), Findings::Blocked)
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
                Opinion::None => continue,
                Opinion::Shadowed { rate, wait, .. } if wait.is_none_or(|wait| wait > patience) => {
                    report.note_shadow_refusal(index);
                    rate
                }
                _ => None,
            };
            let shadow = shard.stance() == Stance::Shadow;
            let is_one = self.asks.get(index).is_some_and(|ask| ask.cost == 1);
            let planned = opinion.blocked().filter(|_| is_one).map(|blocked| blocked.planned);
            let refuses = opinion.blocked().filter(|blocked| is_one && blocked.refuses(self.now, patience));
            let refused = refuses.map(|blocked| blocked.planned);
            let waits = refuses.map_or(Span::ZERO, |blocked| blocked.max_wait.min(patience));
            for rate in 0..shard.rates() {
                let next = planned.filter(|planned| planned.rate() == rate).map(|planned| planned.at);
                let quota = shard.quota(key, opinion.record(), rate, next);
                let mut standing = quota.standing;
                if let Some(planned) = refused.filter(|planned| planned.rate() == rate && standing.remaining > 0) {
                    // What is stored, or how many may wait, is of no use to one who is sent away.
                    let retry_at = (planned.at - waits).max(self.now);
                    standing = Standing { remaining: 0, grows_at: (!planned.on_release).then_some(retry_at) };
                }
                if is_one && shadowed == Some(rate) {
                    standing.remaining = 0;
                }
                report.push(QuotaLine {
                    limit: index,
                    rate,
                    shadow,
                    quota: quota.limit,
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
