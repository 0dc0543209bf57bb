use std::fmt;
use std::sync::Arc;
use std::task::Waker;

use super::MAX_LIMITS;
use super::limit::Limit;
use super::report::Report;
use super::round::{ArrivalOutcome, PolicyTransaction};
use super::ticket::Ticket;
use super::verdict::{Ask, Attempt, Counting, Peeked, Refusal, Verdict};
use sluicegate_time::{Span, Tick};

/// The limits of one route: a request is admitted by all of them or counted by none.
#[derive(Debug)]
pub struct Policy {
    /// In the file's order, which is the order of reports.
    limits: Vec<Arc<Limit>>,
    /// Indices of `limits` in the order in which their locks are taken, the same in every policy.
    order: Vec<usize>,
}

/// Why limits make no policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyError {
    /// More than [`MAX_LIMITS`].
    TooMany {
        /// How many there are.
        given: usize,
    },
    /// The same limit twice: it would count each request twice.
    Duplicate {
        /// Its name.
        name: Arc<str>,
    },
}

impl Policy {
    /// A policy of these limits, at most [`MAX_LIMITS`], none of them twice.
    pub fn new(limits: Vec<Arc<Limit>>) -> Result<Arc<Self>, PolicyError> {
        if limits.len() > MAX_LIMITS {
            return Err(PolicyError::TooMany { given: limits.len() });
        }
        let mut order: Vec<usize> = (0..limits.len()).collect();
        order.sort_by_key(|index| limits[*index].id());
        let duplicate = order.windows(2).find(|pair| limits[pair[0]].id() == limits[pair[1]].id());
        if let Some(pair) = duplicate {
            return Err(PolicyError::Duplicate { name: limits[pair[0]].name().into() });
        }
        Ok(Arc::new(Self { limits, order }))
    }

    /// A policy of one limit.
    pub fn of_one(limit: Arc<Limit>) -> Arc<Self> {
        Arc::new(Self { limits: vec![limit], order: vec![0] })
    }

    /// Its limits, in the file's order.
    pub fn limits(&self) -> &[Arc<Limit>] {
        &self.limits
    }

    /// Admits a request, queues it or refuses it, and fills `report`.
    ///
    /// `asks` are in the order of [`limits`](Self::limits); a missing one is like one without a key. `timeout` is how
    /// long the request may take from now to its end ([`Span::MAX`]: without end): it does not wait longer. One
    /// synchronous call; it allocates only when a key is new to its table or when the request has to wait.
    pub fn check(self: &Arc<Self>, asks: &[Ask], timeout: Span, now: Tick, report: &mut Report) -> Verdict {
        report.clear();
        match (self.limits.as_slice(), asks) {
            (
                [limit],
                [Ask { key: Some(key), cost, counting: Counting::AtOnce, at_most: None, renews: None, .. }, ..],
            ) => {
                let alone = limit.lock(*key).check_alone(*key, *cost, now, limit.keys());
                match alone {
                    Some(alone) => report.verdict_alone(alone, now),
                    None => self.check_by::<1>(asks, timeout, now, report),
                }
            }
            ([] | [_], _) => self.check_by::<1>(asks, timeout, now, report),
            _ => self.check_by::<MAX_LIMITS>(asks, timeout, now, report),
        }
    }

    /// Refuses a request that [`check`](Self::check) would refuse now, as that does: penalties count it, and `report` is filled.
    /// Any other is left alone: it is counted nowhere and waits nowhere.
    pub fn refuse_early(&self, asks: &[Ask], timeout: Span, now: Tick, report: &mut Report) -> Option<Refusal> {
        report.clear();
        let mut round = PolicyTransaction::<MAX_LIMITS>::new(self, asks, now);
        let denial = round.refuse_early(timeout)?;
        round.report(timeout, report);
        let blocked_until = round.blocked_until(denial.limit);
        drop(round);
        report.exhaust(denial, asks.get(denial.limit).map_or(0, |ask| ask.cost), now);
        Some(Refusal { blocked_until, ..report.refusal(denial) })
    }

    /// The verdict that [`check`](Self::check) would give now, without counting, noting or sweeping anything: it is
    /// asked of copies. The lines of `report` are those of before the request, but of a limit on what is in flight,
    /// which counts it. Limits are copied one after the other, so beside traffic they may be some microseconds apart.
    ///
    /// For the caller that explains; it allocates, and copies up to some 256 KiB of each limit's table under its lock.
    pub fn peek(&self, asks: &[Ask], timeout: Span, now: Tick, report: &mut Report) -> Peeked {
        let copy = |(index, limit): (usize, &Arc<Limit>)| match asks.get(index).and_then(|ask| ask.key) {
            Some(key) => limit.copy_for(key),
            None => Arc::clone(limit),
        };
        let limits = self.limits.iter().enumerate().map(copy).collect();
        let copy = Arc::new(Self { limits, order: self.order.clone() });
        let asks: Vec<Ask> = asks.iter().map(|ask| Ask { counting: Counting::Later, ..*ask }).collect();
        match copy.check(&asks, timeout, now, report) {
            Verdict::Admitted(_) => Peeked::Admitted,
            Verdict::Refused(refusal) => Peeked::Refused(refusal),
            Verdict::Queued(mut ticket) => {
                let (limit, planned) = (ticket.waits_for(), ticket.planned());
                match ticket.attempt(now, Waker::noop(), &mut Report::default()) {
                    Attempt::Admitted(_) => Peeked::Admitted,
                    Attempt::Pending { wake_at } => Peeked::Waits { limit, until: planned.unwrap_or(wake_at) },
                    Attempt::TimedOut(refusal) => Peeked::Refused(refusal),
                }
            }
        }
    }

    /// [`check`](Self::check) by the long way alone, which knows every case.
    #[cfg(test)]
    pub(super) fn check_long(self: &Arc<Self>, asks: &[Ask], timeout: Span, now: Tick, report: &mut Report) -> Verdict {
        report.clear();
        self.check_by::<MAX_LIMITS>(asks, timeout, now, report)
    }

    #[inline(never)]
    fn check_by<const N: usize>(
        self: &Arc<Self>,
        asks: &[Ask],
        timeout: Span,
        now: Tick,
        report: &mut Report,
    ) -> Verdict {
        let mut round = PolicyTransaction::<N>::new(self, asks, now);
        let outcome = round.arrive(timeout);
        round.report(timeout, report);
        let rings = round.rings();
        let blocked_until = match &outcome {
            ArrivalOutcome::Refused(denial) => round.blocked_until(denial.limit),
            _ => None,
        };
        drop(round);
        if rings != 0 {
            self.ring(rings);
        }
        match outcome {
            ArrivalOutcome::Awaits(wait) => Verdict::Queued(Ticket::awaiting(self, asks, now, timeout, wait)),
            ArrivalOutcome::Admitted(permit) => Verdict::Admitted(permit),
            ArrivalOutcome::Refused(denial) => {
                report.exhaust(denial, asks.get(denial.limit).map_or(0, |ask| ask.cost), now);
                Verdict::Refused(Refusal { blocked_until, ..report.refusal(denial) })
            }
            ArrivalOutcome::Waits(wait) => Verdict::Queued(Ticket::new(self, asks, now, timeout, wait)),
        }
    }

    /// Something is urgent for the fleet in these limits, as bits.
    #[cold]
    pub(super) fn ring(&self, rings: u8) {
        for (index, limit) in self.limits.iter().enumerate() {
            if rings & (1 << index) != 0 {
                limit.bell().ring();
            }
        }
    }

    pub(super) fn order(&self) -> &[usize] {
        &self.order
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany { given } => write!(f, "{given} limits on one route: at most {MAX_LIMITS}"),
            Self::Duplicate { name } => {
                write!(f, "the limit {name:?} is named twice: it would count each request twice")
            }
        }
    }
}

impl std::error::Error for PolicyError {}

#[cfg(test)]
mod tests {
    use super::super::tests::spec;
    use super::*;

    #[test]
    fn takes_as_many_limits_as_a_route_may_have_and_no_more() {
        let limits = |count| (0..count).map(|_| Limit::new(spec("1/s"))).collect::<Vec<_>>();
        assert_eq!(Policy::new(limits(MAX_LIMITS)).unwrap().limits().len(), MAX_LIMITS);
        let error = Policy::new(limits(MAX_LIMITS + 1)).unwrap_err();
        assert_eq!(error, PolicyError::TooMany { given: MAX_LIMITS + 1 });
    }

    #[test]
    fn refuses_a_limit_that_is_named_twice() {
        let (one, other) = (Limit::new(spec("1/s")), Limit::new(spec("2/s")));
        for limits in [vec![&one, &one], vec![&one, &other, &one], vec![&other, &one, &one]] {
            let error = Policy::new(limits.into_iter().map(Arc::clone).collect()).unwrap_err();
            assert_eq!(error, PolicyError::Duplicate { name: "1/s".into() });
        }
    }
}
