use std::sync::Arc;

use proptest::prelude::*;
use sluicegate_limiter::time::{Span, Tick};
use sluicegate_limiter::{Algorithm, Limit, LimitSpec, Policy, Report, Verdict};

use super::oracle::{TIMED, cases};
use super::workers::Workers;
use super::{MS, asks, one, runs, spec};

#[derive(Clone, Copy, Debug)]
struct Arrival {
    /// Nanoseconds since the one before.
    after: u64,
    cost: u64,
    /// Cancels the request that arrived so many before.
    cancels: Option<usize>,
}

fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    let after = prop_oneof![3 => Just(0u64), 3 => (0u64..300).prop_map(|millis| millis * MS), 2 => 0u64..400 * MS];
    let arrival = (after, 1u64..4, prop::option::weighted(0.15, 1usize..6));
    prop::collection::vec(arrival.prop_map(|(after, cost, cancels)| Arrival { after, cost, cancels }), 1..40)
}

struct Gate {
    limit: Arc<Limit>,
    policy: Arc<Policy>,
    workers: Workers,
    now: u64,
}

impl Gate {
    fn new(algorithm: &Algorithm, max_wait: Span) -> Self {
        let (limit, policy) = one(LimitSpec { algorithm: algorithm.clone(), max_wait, ..spec("1/s") });
        Self { limit, policy, workers: Workers::default(), now: 0 }
    }

    fn ask(&self, cost: u64) -> Verdict {
        self.policy.check(&asks(1, cost)[..1], Span::MAX, Tick::from_nanos(self.now), &mut Report::default())
    }

    fn run_to(&mut self, now: u64) {
        self.now = now;
        self.workers.run_to(Tick::from_nanos(now));
    }

    fn play(&mut self, arrivals: &[Arrival], mut seen: impl FnMut(usize, &Verdict, u64)) {
        for (id, arrival) in arrivals.iter().enumerate() {
            self.run_to(self.now + arrival.after);
            if let Some(before) = arrival.cancels {
                self.workers.cancel(id.wrapping_sub(before));
            }
            let verdict = self.ask(arrival.cost);
            seen(id, &verdict, self.now);
            if let Verdict::Queued(ticket) = verdict {
                self.workers.take(id, ticket, Tick::from_nanos(self.now));
            }
        }
    }
}

proptest! {
    #![proptest_config(runs(2_000))]

    /// But for what is in flight, whose room nobody foresees: every request ends once, those who wait get in in the order in which they came and in time, and a refused one is
    /// told the very nanosecond from which it would not be.
    #[test]
    fn waiters_of_every_algorithm_end_once_and_in_order(
        case in cases(TIMED),
        max_wait in prop_oneof![Just(0u64), (1u64..2_000).prop_map(|millis| millis * MS), 0u64..2_000 * MS],
        arrivals in arrivals(),
    ) {
        let max_wait = Span::from_nanos(max_wait);
        let (mut gate, mut refusals) = (Gate::new(&case.algorithm, max_wait), Vec::new());
        let (mut admitted, mut queued, mut came) = (0, 0, Vec::new());
        gate.play(&arrivals, |id, verdict, now| {
            came.push(now);
            match verdict {
                Verdict::Admitted(_) => admitted += 1,
                Verdict::Queued(_) => queued += 1,
                Verdict::Refused(refusal) => refusals.push((id, now, refusal.retry_at.map(Tick::as_nanos))),
            }
        });
        gate.run_to(gate.now + 100_000 * MS);
        prop_assert_eq!(arrivals.len(), admitted + queued + refusals.len());
        prop_assert_eq!(queued, gate.workers.ends.len() + gate.workers.cancelled);
        prop_assert_eq!(gate.limit.stats().waiting, 0);
        for end in &gate.workers.ends {
            prop_assert!(end.admitted, "{:?} had its room planned", end);
            prop_assert!(end.at <= Tick::from_nanos(came[end.id]) + max_wait);
        }
        prop_assert!(gate.workers.ends.is_sorted_by_key(|end| end.id), "{:?}", gate.workers.ends);
        for (id, now, retry_at) in refusals {
            let Some(retry_at) = retry_at else { continue };
            prop_assert!(retry_at > now);
            for (instant, refused) in [(retry_at - 1, true), (retry_at, false)] {
                let mut gate = Gate::new(&case.algorithm, max_wait);
                gate.play(&arrivals[..=id], |_, _, _| {});
                gate.run_to(instant);
                let verdict = gate.ask(arrivals[id].cost);
                prop_assert_eq!(matches!(verdict, Verdict::Refused(_)), refused, "arrival {} at {}", id, instant);
            }
        }
    }
}
