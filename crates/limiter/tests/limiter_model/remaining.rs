//! The limits as a request that is sent away reads them.

use std::sync::Arc;

use proptest::prelude::*;
use sluicegate_limiter::time::{Span, Tick};
use sluicegate_limiter::{
    Algorithm, Ask, Counting, Limit, LimitSpec, Mode, Penalty, Policy, Refusal, RefusalReason, Report, SlidingLog,
    Verdict,
};

use super::oracle::{ALL, cases};
use super::workers::Workers;
use super::{MS, key, policy, runs, spec};

#[derive(Clone, Debug)]
struct Setting {
    algorithm: Algorithm,
    mode: Mode,
    max_wait: u64,
    max_queue: u64,
    penalty: bool,
}

#[derive(Clone, Copy, Debug)]
struct Arrival {
    /// Nanoseconds since the one before.
    after: u64,
    name: u64,
    cost: u64,
    timeout: Option<u64>,
    /// Cancels, or ends, the request that arrived so many before.
    gone: Option<usize>,
}

fn setting() -> impl Strategy<Value = Setting> {
    let mode = prop_oneof![3 => Just(Mode::Enforce), 1 => Just(Mode::Shadow)];
    let wait = prop_oneof![1 => Just(0u64), 2 => (1u64..2_000).prop_map(|millis| millis * MS), 1 => 0u64..2_000 * MS];
    (cases(ALL), any::<bool>(), mode, wait, 0u64..4, any::<bool>()).prop_map(
        |(case, counts_refused, mode, max_wait, max_queue, penalty)| {
            let algorithm = match case.algorithm {
                Algorithm::SlidingLog(log) if counts_refused => {
                    Algorithm::SlidingLog(SlidingLog::new(log.rates(), log.min_difference(), true).expect("a log"))
                }
                other => other,
            };
            Setting { algorithm, mode, max_wait, max_queue, penalty }
        },
    )
}

fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    let after = prop_oneof![
        4 => Just(0u64),
        3 => (0u64..300).prop_map(|millis| millis * MS),
        2 => 0u64..400 * MS,
        1 => 0u64..3_000 * MS,
    ];
    let cost = prop_oneof![5 => Just(1u64), 1 => 2u64..5];
    let timeout = prop::option::weighted(0.2, 0u64..900 * MS);
    let gone = prop::option::weighted(0.25, 1usize..6);
    let arrival = (after, 0u64..2, cost, timeout, gone);
    let arrival = arrival.prop_map(|(after, name, cost, timeout, gone)| Arrival { after, name, cost, timeout, gone });
    prop::collection::vec(arrival, 1..60)
}

fn limit_of(setting: &Setting) -> Arc<Limit> {
    let penalty = Penalty::new(3, Span::from_millis(500), Span::from_millis(700)).ok();
    Limit::new(LimitSpec {
        algorithm: setting.algorithm.clone(),
        mode: setting.mode,
        max_wait: Span::from_nanos(setting.max_wait),
        max_queue: Some(setting.max_queue),
        penalty: penalty.filter(|_| setting.penalty),
        ..spec("1/s")
    })
}

/// Whether nothing remains on the line that a refusal is about, and the refusal says so.
fn shows_nothing(refusal: &Refusal, report: &Report) -> bool {
    let mut lines = report.lines().iter().filter(|line| line.limit == refusal.limit);
    refusal.remaining == 0
        && lines.any(|line| (line.quota, line.window, line.remaining) == (refusal.quota, refusal.window, 0))
}

fn ask(policy: &Arc<Policy>, arrival: &Arrival, now: u64, report: &mut Report) -> Verdict {
    let ask = Ask { key: Some(key(arrival.name)), cost: arrival.cost, counting: Counting::AtOnce, ..Ask::default() };
    let timeout = arrival.timeout.map_or(Span::MAX, Span::from_nanos);
    policy.check(&vec![ask; policy.limits().len()], timeout, Tick::from_nanos(now), report)
}

proptest! {
    #![proptest_config(runs(3_000))]

    #[test]
    fn a_refusal_of_cost_one_shows_that_nothing_remains(
        settings in prop::collection::vec(setting(), 1..=3),
        arrivals in arrivals(),
    ) {
        let limits: Vec<_> = settings.iter().map(limit_of).collect();
        let policy = policy(&limits.iter().collect::<Vec<_>>());
        let (mut workers, mut now) = (Workers::default(), 0);
        for (id, arrival) in arrivals.iter().enumerate() {
            now += arrival.after;
            workers.run_to(Tick::from_nanos(now));
            if let Some(before) = arrival.gone {
                let _ = workers.cancel(id.wrapping_sub(before)) || workers.end(id.wrapping_sub(before));
            }
            let mut report = Report::default();
            match ask(&policy, arrival, now, &mut report) {
                Verdict::Admitted(permit) => workers.permits.push((id, permit)),
                Verdict::Queued(ticket) => workers.take(id, ticket, Tick::from_nanos(now)),
                Verdict::Refused(refusal) => {
                    prop_assert_eq!(limits[refusal.limit].spec().mode, Mode::Enforce);
                    if arrival.cost == 1 && refusal.why != RefusalReason::TooCostly {
                        prop_assert!(shows_nothing(&refusal, &report), "{}: {:?} at {}: {:?}", id, refusal, now, report);
                    }
                }
            }
            for limit in report.shadow_refusals().filter(|_| arrival.cost == 1) {
                let mut lines = report.lines().iter().filter(|line| line.limit == limit);
                prop_assert!(lines.any(|line| line.shadow && line.remaining == 0), "{} at {}: {:?}", id, now, report);
            }
        }
        workers.run_to(Tick::from_nanos(now + 10_000 * MS));
        for (end, refusal, report) in &workers.timeouts {
            if arrivals[end.id].cost == 1 && refusal.retry_at.is_some_and(|at| at > end.at) {
                prop_assert!(shows_nothing(refusal, report), "{:?}: {:?}: {:?}", end, refusal, report);
            }
        }
    }
}
