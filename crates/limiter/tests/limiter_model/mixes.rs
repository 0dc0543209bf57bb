//! Several limits of any algorithms on one request: all or nothing.

use std::sync::Arc;

use proptest::prelude::*;
use sluicegate_limiter::time::{Span, Tick};
use sluicegate_limiter::{Ask, Counting, Limit, LimitSpec, Penalty, Policy, QuotaLine, RefusalReason, Report, Verdict};

use super::oracle::{ALL, BLUR, Case, TIMED, cases};
use super::workers::Workers;
use super::{MS, key, policy, runs, spec};

/// The most limits of a mix here.
pub const LIMITS: usize = 4;
/// How long one is told to stay away for room that nobody can foresee.
const UNFORESEEN: u64 = 1_000 * MS;

#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Nanoseconds since the one before.
    pub after: u64,
    /// The limits that apply, as bits.
    pub on: u8,
    pub name: u64,
    pub costs: [u64; LIMITS],
    /// Cancels, or ends, the request that arrived so many before.
    pub gone: Option<usize>,
}

pub fn arrivals(most: usize) -> impl Strategy<Value = Vec<Arrival>> {
    let after = prop_oneof![
        4 => Just(0u64),
        3 => (0u64..300).prop_map(|millis| millis * MS),
        2 => 0u64..400 * MS,
        1 => 0u64..3_000 * MS,
    ];
    let on = prop_oneof![1 => Just(15u8), 2 => 1u8..16];
    let costs = prop_oneof![2 => Just([1u64; LIMITS]), 1 => prop::array::uniform4(1u64..5)];
    let gone = prop::option::weighted(0.25, 1usize..6);
    let arrival = (after, on, 0u64..2, costs, gone);
    let arrival = arrival.prop_map(|(after, on, name, costs, gone)| Arrival { after, on, name, costs, gone });
    prop::collection::vec(arrival, 1..most)
}

pub fn patience() -> impl Strategy<Value = u64> {
    prop_oneof![1 => Just(0u64), 3 => (1u64..2_000).prop_map(|millis| millis * MS), 2 => 0u64..2_000 * MS]
}

/// An algorithm, its patience, and how many may wait.
pub type Setting = (Case, u64, u64);

fn limit_of((case, max_wait, max_queue): &Setting) -> Arc<Limit> {
    Limit::new(LimitSpec {
        algorithm: case.algorithm.clone(),
        max_wait: Span::from_nanos(*max_wait),
        max_queue: Some(*max_queue),
        ..spec("1/s")
    })
}

pub struct Gate {
    pub limits: Vec<Arc<Limit>>,
    pub policy: Arc<Policy>,
    pub workers: Workers,
    pub now: u64,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    id: usize,
    /// `None`: refused.
    waits: Option<bool>,
    lines: Vec<QuotaLine>,
}

impl Gate {
    pub fn new(settings: &[Setting]) -> Self {
        Self::of(settings.iter().map(limit_of).collect())
    }

    fn of(limits: Vec<Arc<Limit>>) -> Self {
        let policy = policy(&limits.iter().collect::<Vec<_>>());
        Self { limits, policy, workers: Workers::default(), now: 0 }
    }

    fn asks(&self, arrival: &Arrival) -> Vec<Ask> {
        let ask = |limit: usize| Ask {
            key: (arrival.on & (1 << limit) != 0).then(|| key(arrival.name)),
            cost: arrival.costs[limit],
            counting: Counting::AtOnce,
            ..Ask::default()
        };
        (0..self.limits.len()).map(ask).collect()
    }

    pub fn ask(&self, arrival: &Arrival, report: &mut Report) -> Verdict {
        self.policy.check(&self.asks(arrival), Span::MAX, Tick::from_nanos(self.now), report)
    }

    pub fn run_to(&mut self, now: u64) {
        self.now = now;
        self.workers.run_to(Tick::from_nanos(now));
    }

    /// Lets time pass and somebody go, before the arrival itself.
    pub fn before(&mut self, id: usize, arrival: &Arrival) {
        self.run_to(self.now + arrival.after);
        if let Some(before) = arrival.gone {
            let _ = self.workers.cancel(id.wrapping_sub(before)) || self.workers.end(id.wrapping_sub(before));
        }
    }

    /// Whoever is let in, or waits if it `stays`, is seen to.
    pub fn keep(&mut self, id: usize, verdict: Verdict, stays: bool) {
        match verdict {
            Verdict::Admitted(permit) => self.workers.permits.push((id, permit)),
            Verdict::Queued(ticket) if stays => self.workers.take(id, ticket, Tick::from_nanos(self.now)),
            Verdict::Queued(_) | Verdict::Refused(_) => {}
        }
    }

    /// Plays the arrivals; the `shy` ones pass on unseen. Those of several limits stay when they have to wait if
    /// `all_wait`.
    fn play(&mut self, arrivals: &[Arrival], shy: &[usize], all_wait: bool) -> Vec<Told> {
        let mut told = Vec::new();
        for (id, arrival) in arrivals.iter().enumerate() {
            self.before(id, arrival);
            if shy.contains(&id) {
                continue;
            }
            let mut report = Report::default();
            let verdict = self.ask(arrival, &mut report);
            let waits = match verdict {
                Verdict::Admitted(_) => Some(false),
                Verdict::Queued(_) => Some(true),
                Verdict::Refused(_) => None,
            };
            told.push(Told { id, waits, lines: report.lines().to_vec() });
            self.keep(id, verdict, all_wait || arrival.on.is_power_of_two());
        }
        told
    }

    /// Whether some key was forgotten that comes back poorer than it was.
    fn has_lost_savings(&self, settings: &[Setting]) -> bool {
        self.limits.iter().zip(settings).any(|(limit, (case, ..))| case.saves() && limit.stats().evicted_idle > 0)
    }
}

/// The requests that one key of one limit has counted: who, when and how much.
#[derive(Clone, Debug, Default)]
struct Past(Vec<(usize, u64, u64)>);

impl Past {
    fn log(&self) -> Vec<(u64, u64)> {
        self.0.iter().map(|(_, at, cost)| (*at, *cost)).collect()
    }
}

/// How a limit stands for a key, without taking anything of it.
pub fn look(limit: &Arc<Limit>, name: u64, now: u64) -> Vec<(u64, Option<Span>)> {
    let ask = [Ask { key: Some(key(name)), cost: 1, counting: Counting::Later, ..Ask::default() }];
    let mut report = Report::default();
    drop(policy(&[limit]).check(&ask, Span::ZERO, Tick::from_nanos(now), &mut report));
    report.lines().iter().map(|line| (line.remaining, line.reset)).collect()
}

proptest! {
    #![proptest_config(runs(3_000))]

    /// Nobody waits: who is admitted and who is not, which limit is named, and when to come back, from the definitions.
    #[test]
    fn a_mix_admits_just_what_all_its_definitions_allow(
        cases in prop::collection::vec(cases(ALL), 1..=LIMITS),
        arrivals in arrivals(50),
    ) {
        let settings: Vec<Setting> = cases.into_iter().map(|case| (case, 0, 3)).collect();
        let mut gate = Gate::new(&settings);
        let mut pasts = vec![[Past::default(), Past::default()]; settings.len()];
        for (id, arrival) in arrivals.iter().enumerate() {
            gate.before(id, arrival);
            let now = gate.now;
            if let Some(gone) = arrival.gone.map(|before| id.wrapping_sub(before)) {
                let in_flight = settings.iter().zip(&mut pasts).filter(|((case, ..), _)| case.is_in_flight());
                for past in in_flight.flat_map(|(_, pasts)| pasts) {
                    past.0.retain(|(id, ..)| *id != gone);
                }
            }
            let applies = |limit: &usize| arrival.on & (1 << limit) != 0;
            let applying: Vec<usize> = (0..settings.len()).filter(applies).collect();
            let (mut blocked, mut costly, mut is_unsure) = (Vec::new(), None, false);
            for limit in &applying {
                let (case, cost) = (&settings[*limit].0, arrival.costs[*limit]);
                let log = &pasts[*limit][arrival.name as usize].log();
                is_unsure |= case.is_unsure(log, now);
                if case.is_too_costly(cost) {
                    costly = costly.or(Some(*limit));
                } else if !case.fits(log, cost, now) {
                    blocked.push((*limit, case.first_room(log, cost, now)));
                }
            }
            let verdict = gate.ask(arrival, &mut Report::default());
            if gate.has_lost_savings(&settings) {
                return Ok(());
            }
            match &verdict {
                Verdict::Admitted(_) => {
                    prop_assert!(is_unsure || costly.is_none() && blocked.is_empty(), "{}: {:?} at {}", id, blocked, now);
                    for limit in &applying {
                        pasts[*limit][arrival.name as usize].0.push((id, now, arrival.costs[*limit]));
                    }
                }
                Verdict::Queued(_) => prop_assert!(false, "nobody waits"),
                Verdict::Refused(refusal) if refusal.why == RefusalReason::TooCostly => {
                    prop_assert_eq!((Some(refusal.limit), refusal.retry_at), (costly, None));
                }
                Verdict::Refused(_) if is_unsure => {}
                Verdict::Refused(refusal) => {
                    prop_assert!(costly.is_none() && !blocked.is_empty() && refusal.why == RefusalReason::Rate, "{} at {}", id, now);
                    let room = |room: Option<u64>| room.unwrap_or(now + UNFORESEEN);
                    let latest = blocked.iter().map(|(_, at)| room(*at)).max().unwrap_or(0);
                    let retry = refusal.retry_at.map_or(0, Tick::as_nanos);
                    let named = blocked.iter().find(|(limit, _)| *limit == refusal.limit);
                    prop_assert!(retry.abs_diff(latest) <= blur(&settings), "{} at {}, not {}", retry, now, latest);
                    prop_assert!(named.is_some_and(|(_, at)| room(*at).abs_diff(latest) <= blur(&settings)), "{:?}", refusal);
                    let (case, log) = (&settings[refusal.limit].0, &pasts[refusal.limit][arrival.name as usize].log());
                    let quotas = case.algorithm.rates().iter().zip(&case.rates);
                    // Of a burst above the rate it is the quota of several windows.
                    let is_told = |limit: u64, window: Span| {
                        let windows = refusal.quota / limit;
                        (limit * windows, window.as_nanos() * windows) == (refusal.quota, refusal.window.as_nanos())
                    };
                    let mut last = quotas.filter(|(quota, _)| is_told(quota.limit(), quota.window()));
                    let is_last = last.any(|(_, rate)| {
                        let at = room(rate.first_room(log, arrival.costs[refusal.limit], now));
                        at.abs_diff(latest) <= blur(&settings)
                    });
                    prop_assert!(is_last || case.is_in_flight(), "{:?} is about another rate", refusal);
                }
            }
            gate.keep(id, verdict, false);
        }
    }

    /// Those who are refused leave no trace: without them everybody else is told the same, and ends the same.
    #[test]
    fn a_refused_request_changes_nothing_for_anybody(
        settings in prop::collection::vec((cases(ALL), patience(), 0u64..4), 1..=LIMITS),
        arrivals in arrivals(40),
    ) {
        let mut gate = Gate::new(&settings);
        let told = gate.play(&arrivals, &[], true);
        let refused: Vec<usize> = told.iter().filter(|told| told.waits.is_none()).map(|told| told.id).collect();
        let mut twin = Gate::new(&settings);
        let twin_told = twin.play(&arrivals, &refused, true);
        for gate in [&mut gate, &mut twin] {
            gate.run_to(gate.now + 10_000 * MS);
        }
        if gate.has_lost_savings(&settings) || twin.has_lost_savings(&settings) {
            return Ok(());
        }
        let told: Vec<Told> = told.into_iter().filter(|told| told.waits.is_some()).collect();
        prop_assert_eq!(told, twin_told);
        prop_assert_eq!(&gate.workers.ends, &twin.workers.ends);
        // Who looks moves the hand that sweeps, too.
        let counting = settings.iter().zip(gate.limits.iter().zip(&twin.limits)).filter(|((case, ..), _)| !case.saves());
        for (_, (limit, twin)) in counting {
            prop_assert_eq!(look(limit, 0, gate.now), look(twin, 0, gate.now));
            prop_assert_eq!(look(limit, 1, gate.now), look(twin, 1, gate.now));
        }
    }

    /// A limit that takes note of refusals, for a penalty, does so for itself alone.
    #[test]
    fn a_refusal_that_is_counted_is_counted_in_its_own_limit(
        settings in prop::collection::vec((cases(TIMED), Just(0u64), 0u64..4), 2..=LIMITS),
        arrivals in arrivals(40),
    ) {
        let strict = |limit: Arc<Limit>| {
            let penalty = Penalty::new(2, Span::from_secs(1), Span::from_millis(700)).ok();
            Limit::new(LimitSpec { penalty, ..limit.spec() })
        };
        let mut limits: Vec<_> = settings.iter().map(limit_of).collect();
        limits[0] = strict(Arc::clone(&limits[0]));
        let mut gate = Gate::of(limits);
        let twins: Vec<_> = settings.iter().map(|setting| Gate::new(std::slice::from_ref(setting))).collect();
        for (id, arrival) in arrivals.iter().enumerate() {
            gate.before(id, arrival);
            let verdict = gate.ask(arrival, &mut Report::default());
            let is_admitted = matches!(verdict, Verdict::Admitted(_));
            gate.keep(id, verdict, false);
            for (index, twin) in twins.iter().enumerate().skip(1) {
                let ask = gate.asks(arrival)[index];
                if is_admitted && ask.key.is_some() {
                    let seen = twin.policy.check(&[ask], Span::MAX, Tick::from_nanos(gate.now), &mut Report::default());
                    prop_assert!(matches!(seen, Verdict::Admitted(_)) || settings[index].0.saves());
                }
                if settings[index].0.saves() {
                    continue;
                }
                let (real, twin) = (&gate.limits[index], &twin.limits[0]);
                prop_assert_eq!(look(real, arrival.name, gate.now), look(twin, arrival.name, gate.now), "limit {}", index);
            }
        }
    }

    /// With waiters of one limit only (the plans are exact then), a nanosecond before its retry time the same request
    /// would be refused, and at it, it is not.
    #[test]
    fn the_retry_time_over_a_mix_is_tight(
        settings in prop::collection::vec((cases(TIMED), patience(), 0u64..4), 2..=LIMITS),
        arrivals in arrivals(30),
    ) {
        let mut gate = Gate::new(&settings);
        let mut refusals = Vec::new();
        for (id, arrival) in arrivals.iter().enumerate() {
            gate.before(id, arrival);
            let verdict = gate.ask(arrival, &mut Report::default());
            if let Verdict::Refused(refusal) = &verdict
                && let Some(retry_at) = refusal.retry_at
            {
                refusals.push((id, gate.now, retry_at.as_nanos()));
            }
            gate.keep(id, verdict, arrival.on.is_power_of_two());
        }
        for (id, now, retry_at) in refusals {
            prop_assert!(retry_at > now, "{} at {} retries at {}", id, now, retry_at);
            for (instant, refused) in [(retry_at - 1, true), (retry_at, false)] {
                let mut gate = Gate::new(&settings);
                let _ = gate.play(&arrivals[..=id], &[], false);
                gate.run_to(instant);
                let verdict = gate.ask(&arrivals[id], &mut Report::default());
                prop_assert_eq!(matches!(verdict, Verdict::Refused(_)), refused, "arrival {} of {} at {}", id, now, instant);
            }
        }
    }
}

fn blur(settings: &[Setting]) -> u64 {
    let is_warm = settings.iter().any(|(case, ..)| case.algorithm.name() == "warm-up");
    if is_warm { BLUR } else { 0 }
}
