//! Tables with room for a few keys, and many more keys that come.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use proptest::prelude::*;
use sluicegate_limiter::time::{Span, Tick};
use sluicegate_limiter::{Limit, LimitSpec, OnFull, Policy, RefusalReason, Report, Verdict};

use super::naive::{Naive, NaiveVerdict};
use super::oracle::{ALL, Case, EXACT, cases};
use super::workers::{End, Workers};
use super::{MS, asks, one, runs, spec};

#[derive(Clone, Copy, Debug)]
struct Arrival {
    /// Nanoseconds since the one before.
    after: u64,
    name: u64,
    cost: u64,
    /// Cancels, or ends, the request that arrived so many before.
    gone: Option<usize>,
}

fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    let after = prop_oneof![
        6 => Just(0u64),
        3 => (0u64..200).prop_map(|millis| millis * MS),
        1 => 0u64..400 * MS,
        1 => 0u64..5_000 * MS,
    ];
    let name = prop_oneof![2 => 0u64..4, 3 => 0u64..30];
    let cost = prop_oneof![3 => Just(1u64), 1 => 1u64..4];
    let gone = prop::option::weighted(0.25, 1usize..6);
    let arrival = (after, name, cost, gone);
    let arrival = arrival.prop_map(|(after, name, cost, gone)| Arrival { after, name, cost, gone });
    prop::collection::vec(arrival, 1..150)
}

fn on_full() -> impl Strategy<Value = OnFull> {
    prop_oneof![Just(OnFull::EvictOldest), Just(OnFull::Allow), Just(OnFull::Refuse)]
}

/// The effect on a request of a table that had no place for its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Happened {
    Nothing,
    /// Somebody else's count, or its own, was forgotten.
    Evicted,
    Uncounted,
    Refused,
}

struct Gate {
    limit: Arc<Limit>,
    policy: Arc<Policy>,
    on_full: OnFull,
    now: u64,
}

impl Gate {
    fn new(case: &Case, on_full: OnFull, max_keys: u64, max_wait: u64, max_queue: u64) -> Self {
        let (limit, policy) = one(LimitSpec {
            algorithm: case.algorithm.clone(),
            max_wait: Span::from_nanos(max_wait),
            max_queue: Some(max_queue),
            max_keys,
            on_full,
            ..spec("1/s")
        });
        Self { limit, policy, on_full, now: 0 }
    }

    /// Asks, and says what that did to the table; it checks that this is what the limit was told to do.
    fn ask(&self, arrival: &Arrival) -> Result<(Verdict, Happened), TestCaseError> {
        let before = self.limit.stats();
        let asks = asks(arrival.name, arrival.cost);
        let verdict = self.policy.check(&asks[..1], Span::MAX, Tick::from_nanos(self.now), &mut Report::default());
        let after = self.limit.stats();
        let is_full = matches!(&verdict, Verdict::Refused(refusal) if refusal.why == RefusalReason::TableFull);
        prop_assert_eq!(after.refused_full - before.refused_full, u64::from(is_full));
        let happened = if is_full {
            Happened::Refused
        } else if after.allowed_full > before.allowed_full {
            Happened::Uncounted
        } else if after.evicted_live > before.evicted_live {
            Happened::Evicted
        } else {
            Happened::Nothing
        };
        match happened {
            Happened::Evicted => prop_assert_eq!(self.on_full, OnFull::EvictOldest),
            Happened::Uncounted => {
                prop_assert!(self.on_full == OnFull::Allow && matches!(verdict, Verdict::Admitted(_)));
            }
            Happened::Refused => prop_assert_ne!(self.on_full, OnFull::Allow),
            Happened::Nothing => {}
        }
        Ok((verdict, happened))
    }
}

/// Whether a key stands like one that was never seen, or better: it may have saved something up.
fn is_as_new(case: &Case, log: &[(u64, u64)], now: u64) -> bool {
    case.rates.iter().all(|rate| rate.remaining(log, now) >= rate.remaining(&[], now))
}

proptest! {
    #![proptest_config(runs(3_000))]

    /// Nobody waits. As long as no live key was evicted every decision is that of a table without end: a key that was
    /// forgotten when idle, and came back, is none the wiser.
    #[test]
    fn no_live_key_loses_its_count_unless_it_is_evicted(
        case in cases(ALL),
        on_full in on_full(),
        max_keys in 1u64..=12,
        arrivals in arrivals(),
    ) {
        let mut gate = Gate::new(&case, on_full, max_keys, 0, 0);
        let mut workers = Workers::default();
        let mut pasts: HashMap<u64, Vec<(usize, u64, u64)>> = HashMap::new();
        let mut is_whole = true;
        for (id, arrival) in arrivals.iter().enumerate() {
            gate.now += arrival.after;
            if let Some(gone) = arrival.gone.map(|before| id.wrapping_sub(before))
                && case.is_in_flight()
            {
                workers.end(gone);
                for past in pasts.values_mut() {
 past.retain(|(known, ..)| *known != gone);
 }
            }
            let past = pasts.entry(arrival.name).or_default();
            let log: Vec<_> = past.iter().map(|(_, at, cost)| (*at, *cost)).collect();
            let (verdict, happened) = gate.ask(arrival)?;
            is_whole &= happened != Happened::Evicted;
            let fits = case.fits(&log, arrival.cost, gate.now);
            let keys = gate.limit.stats().keys;
            prop_assert!(keys <= max_keys, "{} keys", keys);
            let is_admitted = matches!(verdict, Verdict::Admitted(_));
            if is_whole && !case.is_unsure(&log, gate.now) {
                match happened {
                    Happened::Uncounted | Happened::Refused => {
                        prop_assert!(is_as_new(&case, &log, gate.now), "{} has a count at {}", arrival.name, gate.now);
                    }
                    _ if case.saves() => prop_assert!(fits || !is_admitted, "{} at {}", id, gate.now),
                    _ => prop_assert_eq!(is_admitted, fits, "{} at {}", id, gate.now),
                }
            }
            if let Verdict::Admitted(permit) = verdict {
                workers.permits.push((id, permit));
                if happened != Happened::Uncounted {
                    past.push((id, gate.now, arrival.cost));
                }
            }
        }
    }

    /// The same with waiters; and whatever is evicted, each gets in by its deadline.
    #[test]
    fn whoever_waits_gets_in_at_its_instant_however_full_the_table_is(
        case in cases(EXACT),
        on_full in on_full(),
        max_keys in 1u64..=12,
        max_wait in prop_oneof![(1u64..1_500).prop_map(|millis| millis * MS), 0u64..2_000 * MS],
        max_queue in 0usize..4,
        arrivals in arrivals(),
    ) {
        let mut gate = Gate::new(&case, on_full, max_keys, max_wait, max_queue as u64);
        let new = Naive::new(case, max_wait, max_queue);
        let mut naives: HashMap<u64, Naive> = HashMap::new();
        let (mut workers, mut expected, mut waited, mut queued) = (Workers::default(), Vec::new(), BTreeSet::new(), 0);
        // Keys that may have lost their count.
        let mut lost = BTreeSet::new();
        let mut run_to = |workers: &mut Workers, naives: &mut HashMap<u64, Naive>, now: u64| {
            workers.run_to(Tick::from_nanos(now));
            for naive in naives.values_mut() {
                expected.extend(naive.run_to(now));
            }
            now
        };
        for (id, arrival) in arrivals.iter().enumerate() {
            let lives = gate.limit.stats().evicted_live;
            gate.now = run_to(&mut workers, &mut naives, gate.now + arrival.after);
            if let Some(gone) = arrival.gone.map(|before| id.wrapping_sub(before)) {
                workers.cancel(gone);
                for naive in naives.values_mut() {
 naive.queue.retain(|waiter| waiter.id != gone);
 }
                run_to(&mut workers, &mut naives, gate.now);
            }
            let (verdict, happened) = gate.ask(arrival)?;
            if gate.limit.stats().evicted_live > lives || new.case.saves() {
                // For this one, or for a head whose own record was swept. Never one for which somebody waits.
                let others = naives.iter().filter(|(name, naive)| **name != arrival.name && naive.queue.is_empty());
                lost.extend(others.map(|(name, _)| *name));
                lost.extend(Some(arrival.name).filter(|_| new.case.saves()));
            }
            let naive = naives.entry(arrival.name).or_insert_with(|| new.clone());
            naive.now = gate.now;
            let is_whole = !lost.contains(&arrival.name);
            let seen = match verdict {
                Verdict::Admitted(_) => NaiveVerdict::Admitted,
                Verdict::Queued(ticket) => {
                    queued += 1;
                    waited.insert(arrival.name);
                    workers.take(id, ticket, Tick::from_nanos(gate.now));
                    NaiveVerdict::Waits
                }
                Verdict::Refused(refusal) => match refusal.why {
                    RefusalReason::QueueFull => NaiveVerdict::QueueFull,
                    RefusalReason::TooCostly => NaiveVerdict::TooCostly,
                    _ => NaiveVerdict::Rate,
                },
            };
            let keys = gate.limit.stats().keys;
            prop_assert!(keys <= max_keys + waited.len() as u64, "{} keys", keys);
            if is_whole && matches!(happened, Happened::Uncounted | Happened::Refused) {
                prop_assert!(naive.queue.is_empty() && is_as_new(&naive.case, &naive.log, naive.now), "{} at {}", id, naive.now);
            } else if is_whole {
                prop_assert_eq!(naive.arrive(id, arrival.cost, u64::MAX), seen, "{} at {}", id, gate.now);
            }
        }
        run_to(&mut workers, &mut naives, gate.now + 100_000 * MS);
        prop_assert_eq!(queued, workers.ends.len() + workers.cancelled);
        prop_assert_eq!(gate.limit.stats().waiting, 0);
        for end in &workers.ends {
            prop_assert!(end.admitted, "{} was sent away at {:?}", end.id, end.at);
        }
        let of_whole = |ends: &[End]| {
            let mut ends: Vec<End> = ends.iter().filter(|end| !lost.contains(&arrivals[end.id].name)).cloned().collect();
            ends.sort_by_key(|end| end.id);
            ends
        };
        prop_assert_eq!(of_whole(&workers.ends), of_whole(&expected));
    }
}
