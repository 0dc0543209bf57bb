use super::RefusalReason;
use super::shard::{Blocked, Evaluation};
use sluicegate_time::{Span, Tick};

/// The decision about a request that some limits cannot admit now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// It waits in the queue of the limit whose room comes last.
    Wait { limit: usize, planned: Tick, deadline: Tick },
    /// It does not wait.
    Refuse(Denial),
}

/// The limit that says no and its reason, without the numbers of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Denial {
    pub(super) limit: usize,
    pub(super) rate: usize,
    pub(super) why: RefusalReason,
    pub(super) retry_at: Option<Tick>,
}

/// The limits that cannot admit a request now, among the opinions of all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Obstacles<'a> {
    results: &'a [Evaluation],
    /// The limits, as bits, that have no more say in the deadline.
    heard: u8,
    /// In whose queue the request has its place already.
    own: Option<usize>,
}

impl<'a> Obstacles<'a> {
    pub(super) fn new(results: &'a [Evaluation]) -> Self {
        Self { results, heard: 0, own: None }
    }

    /// For one who waits already: the limits in `heard` have no more say in its deadline, and the queue of `own` has
    /// its place.
    pub(super) fn excusing(self, heard: u8, own: usize) -> Self {
        Self { heard, own: Some(own), ..self }
    }

    /// The obstructing limits, as bits.
    pub(super) fn set(self) -> u8 {
        self.iter().fold(0, |set, (limit, _)| set | 1 << limit)
    }

    pub(super) fn get(self, limit: usize) -> Option<Blocked> {
        self.iter().find(|(index, _)| *index == limit).map(|(_, blocked)| blocked)
    }

    fn iter(self) -> impl Iterator<Item = (usize, Blocked)> {
        self.results.iter().enumerate().filter_map(move |(limit, opinion)| {
            let Evaluation::Blocked(mut blocked) = *opinion else { return None };
            if self.heard & (1 << limit) != 0 {
                blocked.max_wait = Span::MAX;
            }
            if self.own == Some(limit) {
                blocked.place_at = Some(Tick::ZERO);
            }
            Some((limit, blocked))
        })
    }

    /// For a request that arrived at `arrived` and has to be done within `timeout` of that; `patience` is its deadline
    /// so far. `None` when nothing is in its way.
    ///
    /// The retry time, with `p` a limit's instant, `P` the last of them and `m` a limit's patience (`max_wait`, at most
    /// the timeout): at an instant `t` before `P` the limits with `p > t` still refuse, and the request may wait if `P`
    /// is within the patience of all of them. So `t` has to be, for each, at least `p` or at least `P - m`; and unless
    /// that is `P` itself, the queue it would join needs a place.
    pub(super) fn decide(self, arrived: Tick, timeout: Span, patience: Tick) -> Option<Decision> {
        // What most refusals are: one limit, which lets nobody wait.
        if let ([Evaluation::Blocked(blocked)], None) = (self.results, self.own)
            && blocked.max_wait.is_zero()
            && self.heard == 0
            && !blocked.planned.on_release
        {
            let (rate, at) = (blocked.planned.rate(), blocked.planned.at.max(arrived));
            return Some(Decision::Refuse(Denial { limit: 0, rate, why: RefusalReason::Rate, retry_at: Some(at) }));
        }
        // Of several that come last, the one where it has a place already, else the first in the file's order.
        let later = |a: &Blocked, b: &(usize, Blocked)| {
            b.1.planned.at > a.planned.at || b.1.planned.at == a.planned.at && Some(b.0) == self.own
        };
        let (last, last_blocked) = self.iter().reduce(|a, b| if later(&a.1, &b) { b } else { a })?;
        if last_blocked.planned.on_release {
            return Some(self.decide_unforeseen(arrived, timeout, patience, (last, last_blocked)));
        }
        let due = last_blocked.planned.at;
        let wait_of = |blocked: &Blocked| blocked.max_wait.min(timeout);
        let retry_of = |blocked: &Blocked| blocked.planned.at.min(due - wait_of(blocked));
        let deadline = self.iter().map(|(_, blocked)| arrived + wait_of(&blocked)).fold(patience, Tick::min);
        let may_wait = self.iter().all(|(_, blocked)| !wait_of(&blocked).is_zero());
        let place_at = last_blocked.place_at.unwrap_or(due).min(due);
        if may_wait && due <= deadline && place_at == Tick::ZERO {
            return Some(Decision::Wait { limit: last, planned: due, deadline });
        }
        let (named, blocked) = self.iter().reduce(|a, b| if retry_of(&b.1) > retry_of(&a.1) { b } else { a })?;
        let room_at = retry_of(&blocked).max(arrived);
        let full = room_at < place_at && room_at < due;
        Some(if full && due <= deadline && may_wait {
            Decision::Refuse(Denial {
                limit: last,
                rate: last_blocked.planned.rate(),
                why: RefusalReason::QueueFull,
                retry_at: Some(place_at),
            })
        } else {
            let retry_at = Some(if full { place_at } else { room_at });
            Decision::Refuse(Denial { limit: named, rate: blocked.planned.rate(), why: RefusalReason::Rate, retry_at })
        })
    }

    /// When the room that comes last, that of `last`, comes when others have ended: it may wait for that as long as all
    /// are patient and the other rooms come in time. Else it is told to come back in [`UNFORESEEN`], or later if that is
    /// when the others have room.
    fn decide_unforeseen(
        self,
        arrived: Tick,
        timeout: Span,
        patience: Tick,
        (limit, last): (usize, Blocked),
    ) -> Decision {
        let wait_of = |blocked: &Blocked| blocked.max_wait.min(timeout);
        let foreseen = || self.iter().filter(|(_, blocked)| !blocked.planned.on_release);
        let deadline = self.iter().map(|(_, blocked)| arrived + wait_of(&blocked)).fold(patience, Tick::min);
        let may_wait = self.iter().all(|(_, blocked)| !wait_of(&blocked).is_zero());
        let may_wait = may_wait && foreseen().all(|(_, blocked)| blocked.planned.at <= deadline);
        if may_wait && last.place_at == Some(Tick::ZERO) {
            return Decision::Wait { limit, planned: deadline, deadline };
        }
        let why = if may_wait { RefusalReason::QueueFull } else { RefusalReason::Rate };
        let unforeseen = (arrived + UNFORESEEN, limit, last.planned.rate());
        let others = foreseen().map(|(index, blocked)| (blocked.planned.at, index, blocked.planned.rate()));
        let (retry_at, limit, rate) = others.fold(unforeseen, |a, b| if b.0 > a.0 { b } else { a });
        Decision::Refuse(Denial { limit, rate, why, retry_at: Some(retry_at) })
    }
}

/// When to come back for room that comes when others have ended.
const UNFORESEEN: Span = Span::from_secs(1);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::algorithm::FitTime;
    use super::super::queue::Planned;
    use super::*;

    fn tick(nanos: u64) -> Tick {
        Tick::from_nanos(nanos)
    }

    /// A limit's instant, its patience, and when its queue has a place.
    type Facts = (u64, u64, Option<u64>);

    fn results(blocked: &[Facts]) -> Vec<Evaluation> {
        let opinion = |(limit, (planned, max_wait, place)): (usize, &Facts)| {
            let planned = Planned::new(FitTime::At { at: tick(*planned), rate: limit }, Tick::ZERO);
            Evaluation::Blocked(Blocked::new(planned, Span::from_nanos(*max_wait), place.map(tick)))
        };
        blocked.iter().enumerate().map(opinion).collect()
    }

    /// At tick 0.
    fn decide(blocked: &[Facts], timeout: Span) -> Option<Decision> {
        Obstacles::new(&results(blocked)).decide(Tick::ZERO, timeout, Tick::MAX)
    }

    /// The definition, instant by instant: refused at `t` if a limit whose room is yet to come has no patience, or if
    /// the last room is past the patience of one of them, or if the queue of the last one has no place yet.
    fn refused_at(t: u64, blocked: &[Facts], timeout: u64) -> bool {
        let due = blocked.iter().map(|b| b.0).max().unwrap_or(0);
        let last = blocked.iter().find(|b| b.0 == due);
        let mut still = blocked.iter().filter(|b| b.0 > t).peekable();
        let waits = still.peek().is_some();
        still.any(|b| b.1.min(timeout) == 0 || due - t > b.1.min(timeout))
            || (waits && last.is_some_and(|b| b.2.is_none_or(|place| place > t)))
    }

    proptest! {
        #[test]
        fn the_retry_time_is_the_first_instant_that_is_not_refused(
            blocked in prop::collection::vec((1u64..30, 0u64..30, prop::option::of(0u64..30)), 1..4),
            timeout in prop_oneof![Just(u64::MAX), 0u64..30],
        ) {
            // A queue has its place at the latest when its tail gets in.
            let blocked: Vec<_> = blocked.into_iter().map(|(at, wait, place)| (at, wait, place.map(|p| p.min(at)))).collect();
            let due = blocked.iter().map(|b| b.0).max().unwrap_or(0);
            let first = (0..=due).find(|t| !refused_at(*t, &blocked, timeout)).unwrap_or(due);
            match decide(&blocked, Span::from_nanos(timeout)) {
                Some(Decision::Wait { limit, planned, deadline }) => {
                    prop_assert_eq!(first, 0);
                    prop_assert_eq!(planned, tick(due));
                    prop_assert_eq!(blocked[limit].0, due);
                    let patience = blocked.iter().map(|b| b.1).min().unwrap_or(0).min(timeout);
                    prop_assert_eq!(deadline, tick(patience));
                }
                Some(Decision::Refuse(Denial { limit, rate, why, retry_at })) => {
                    prop_assert_eq!(retry_at, Some(tick(first)));
                    prop_assert_eq!(limit, rate);
                    if why == RefusalReason::QueueFull {
                        prop_assert_eq!(blocked[limit].0, due);
                        prop_assert!(blocked[limit].2.is_none_or(|place| place > 0));
                    }
                }
                None => prop_assert!(false, "something is in its way"),
            }
        }
    }

    #[test]
    fn of_several_the_latest_retry_is_named() {
        let denied = |limit, at| {
            let retry_at = Some(tick(at));
            Some(Decision::Refuse(Denial { limit, rate: limit, why: RefusalReason::Rate, retry_at }))
        };
        assert_eq!(decide(&[(10, 0, None), (20, 0, None), (15, 0, None)], Span::MAX), denied(1, 20));
        // The second may wait, so the first is the one that keeps it out.
        assert_eq!(decide(&[(10, 0, None), (20, 15, Some(0))], Span::MAX), denied(0, 10));
    }

    #[test]
    fn one_who_waits_already_keeps_its_place_and_its_deadline() {
        let results = results(&[(20, 25, Some(0)), (20, 5, None)]);
        let obstacles = Obstacles::new(&results);
        let wait = |limit, deadline| Some(Decision::Wait { limit, planned: tick(20), deadline: tick(deadline) });
        assert_eq!(obstacles.excusing(0b10, 1).decide(Tick::ZERO, Span::MAX, tick(30)), wait(1, 25));
        assert_eq!(obstacles.excusing(0b11, 1).decide(Tick::ZERO, Span::MAX, tick(30)), wait(1, 30));
        assert_eq!(obstacles.excusing(0b10, 0).decide(Tick::ZERO, Span::MAX, tick(30)), wait(0, 25));
    }

    #[test]
    fn nothing_in_the_way_is_no_decision() {
        assert_eq!(decide(&[], Span::MAX), None);
    }
}
