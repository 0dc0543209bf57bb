use proptest::prelude::*;
use sluicegate_limiter::time::{Span, Tick};
use sluicegate_limiter::{Bound, LimitSpec, RefusalReason, Report, Verdict};

use super::naive::{Naive, NaiveRate, NaiveVerdict};
use super::oracle::{Case, EXACT, Oracle, cases};
use super::workers::{End, Workers};
use super::{MS, asks, bounds, one, runs, spec, wheel};

#[derive(Clone, Debug)]
enum Step {
    Arrive { key: u64, cost: u64, timeout: Option<u64> },
    Pause(u64),
    Cancel(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let arrive =
        (0u64..2, prop_oneof![4 => Just(1u64), 2 => 1u64..4, 1 => 1u64..12], prop::option::weighted(0.2, 0u64..900))
            .prop_map(|(key, cost, timeout)| Step::Arrive { key, cost, timeout });
    let pause = prop_oneof![
        3 => 0u64..20 * MS,
        3 => (0u64..300).prop_map(|millis| millis * MS),
        2 => 0u64..700 * MS,
        1 => (1u64..12).prop_map(|seconds| seconds * 1000 * MS),
    ];
    let step = prop_oneof![6 => arrive, 3 => pause.prop_map(Step::Pause), 1 => (0usize..80).prop_map(Step::Cancel)];
    prop::collection::vec(step, 1..80)
}

/// Limit, window in ms, slots: of one rate or two.
fn rates() -> impl Strategy<Value = Vec<(u64, u64, u32)>> {
    let rate = (
        1u64..10,
        prop_oneof![Just(200u64), Just(500), Just(1000)],
        prop_oneof![Just(1u32), Just(2), Just(5), Just(10)],
    );
    prop::collection::vec(rate, 1..3)
}

fn configure(rates: &[(u64, u64, u32)], bound: Bound, max_wait: u64, max_queue: usize) -> Naive {
    let slots = rates[0].2;
    let parsed: Vec<String> = rates.iter().map(|(limit, window, _)| format!("{limit}/{window}ms")).collect();
    let parsed: Vec<&str> = parsed.iter().map(String::as_str).collect();
    let rate = |(limit, window, _): &(u64, u64, u32)| {
        let rate = NaiveRate::new(*limit, *window, u64::from(slots), bound);
        Oracle::Slots { rate, cap: *limit }
    };
    let algorithm = wheel(&parsed, Some(slots), bound);
    let case = Case { algorithm, rates: rates.iter().map(rate).collect() };
    Naive::new(case, max_wait, max_queue)
}

/// Every verdict, every retry time, every remaining count, the instant at which each waiter gets in, and the balances.
fn agrees(naive: Naive, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let (limit, policy) = one(LimitSpec {
        algorithm: naive.case.algorithm.clone(),
        max_wait: Span::from_nanos(naive.max_wait),
        max_queue: Some(naive.max_queue as u64),
        ..spec("1/s")
    });
    let saves = naive.case.saves();
    let mut naive = [naive.clone(), naive];
    let mut workers = Workers::default();
    let mut expected = Vec::new();
    let (mut arrivals, mut at_once, mut turned_away, mut joined) = (0, 0, 0, 0);
    let mut now = 0;
    for (id, step) in steps.into_iter().chain([Step::Pause(100_000 * MS)]).enumerate() {
        match step {
            Step::Pause(nanos) => {
                now += nanos;
                workers.run_to(Tick::from_nanos(now));
                for naive in &mut naive {
                    expected.extend(naive.run_to(now));
                }
            }
            Step::Cancel(which) => {
                workers.cancel(which);
                for naive in &mut naive {
                    naive.queue.retain(|waiter| waiter.id != which);
                    expected.extend(naive.run_to(now));
                }
            }
            Step::Arrive { key, cost, timeout } => {
                let timeout = timeout.map_or(u64::MAX, |millis| millis * MS);
                arrivals += 1;
                let naive = &mut naive[key as usize];
                let verdict = naive.arrive(id, cost, timeout);
                let mut report = Report::default();
                let patience = Span::from_nanos(timeout);
                let real = policy.check(&asks(key, cost)[..1], patience, Tick::from_nanos(now), &mut report);
                if saves && limit.stats().evicted_idle > 0 {
                    return Ok(());
                }
                let seen = match real {
                    Verdict::Admitted(_) => {
                        at_once += 1;
                        NaiveVerdict::Admitted
                    }
                    Verdict::Queued(ticket) => {
                        joined += 1;
                        workers.take(id, ticket, Tick::from_nanos(now));
                        NaiveVerdict::Waits
                    }
                    Verdict::Refused(refusal) => {
                        turned_away += 1;
                        if let Some(retry) = refusal.retry_at.map(Tick::as_nanos) {
                            prop_assert!(retry > now);
                            prop_assert!(!naive.would_refuse(retry, cost, timeout), "refused at the retry time");
                            prop_assert!(
                                naive.would_refuse(retry - 1, cost, timeout),
                                "admitted before the retry time"
                            );
                        }
                        match refusal.why {
                            RefusalReason::Rate => NaiveVerdict::Rate,
                            RefusalReason::QueueFull => NaiveVerdict::QueueFull,
                            RefusalReason::TooCostly => NaiveVerdict::TooCostly,
                            other => panic!("{other:?} cannot be"),
                        }
                    }
                };
                prop_assert_eq!(seen, verdict, "arrival {} at {}", id, now);
                for line in report.lines() {
                    let is_sent_away = !matches!(seen, NaiveVerdict::Admitted | NaiveVerdict::Waits) && cost == 1;
                    let remaining = naive.remaining(line.rate);
                    if is_sent_away && remaining > 0 && line.remaining == 0 {
                        // What is stored, or may wait, is of no use to it.
                        continue;
                    }
                    prop_assert_eq!(line.remaining, remaining, "{:?} at {}", line, now);
                    let Some(reset) = line.reset.filter(|_| naive.queue.is_empty()) else { continue };
                    let mut later = naive.clone();
                    later.now = now + reset.as_nanos() - 1;
                    prop_assert_eq!(later.remaining(line.rate), line.remaining);
                    later.now += 1;
                    prop_assert!(later.remaining(line.rate) > line.remaining || is_sent_away, "{:?} at {}", line, now);
                }
            }
        }
    }
    let by_id = |ends: &mut Vec<End>| ends.sort_by_key(|end| end.id);
    by_id(&mut workers.ends);
    by_id(&mut expected);
    prop_assert_eq!(&workers.ends, &expected);
    prop_assert_eq!(arrivals, at_once + joined + turned_away);
    prop_assert_eq!(joined, workers.ends.len() + workers.cancelled);
    prop_assert_eq!(limit.stats().waiting, 0);
    Ok(())
}

fn patience() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0u64), (1u64..1500).prop_map(|millis| millis * MS), 0u64..3000 * MS]
}

proptest! {
    #![proptest_config(runs(3_000))]

    #[test]
    fn the_wheel_agrees_with_the_log_on_every_decision(
        rates in rates(),
        bound in bounds(),
        max_wait in patience(),
        max_queue in 0usize..6,
        steps in steps(),
    ) {
        agrees(configure(&rates, bound, max_wait, max_queue), steps)?;
    }

    /// But for warming up and what is in flight: no oracle knows their instants.
    #[test]
    fn every_algorithm_agrees_with_its_definition_on_every_decision(
        case in cases(EXACT),
        max_wait in patience(),
        max_queue in 0usize..6,
        steps in steps(),
    ) {
        agrees(Naive::new(case, max_wait, max_queue), steps)?;
    }
}
