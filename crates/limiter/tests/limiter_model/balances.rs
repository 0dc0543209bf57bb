//! The balances of requests that came, that wait and that have ended, over several limits of any algorithms.

use proptest::prelude::*;
use sluicegate_limiter::{Report, Verdict};

use super::mixes::{Gate, LIMITS, arrivals, patience};
use super::oracle::{ALL, cases};
use super::{MS, runs};

proptest! {
    #![proptest_config(runs(3_000))]

    /// Each request ends once, none past its deadline; what has come is at any time what was refused, let in, and waits;
    /// and in flight there is nothing but what was let in and has not ended.
    #[test]
    fn every_request_is_somewhere_at_any_time(
        settings in prop::collection::vec((cases(ALL), patience(), 0u64..4), 1..=LIMITS),
        arrivals in arrivals(50),
    ) {
        let mut gate = Gate::new(&settings);
        let (mut at_once, mut refused, mut queued) = (0, 0, 0);
        let mut came = Vec::new();
        for (id, arrival) in arrivals.iter().enumerate() {
            gate.before(id, arrival);
            came.push(gate.now);
            let verdict = gate.ask(arrival, &mut Report::default());
            match &verdict {
                Verdict::Admitted(_) => at_once += 1,
                Verdict::Queued(_) => queued += 1,
                Verdict::Refused(_) => refused += 1,
            }
            gate.keep(id, verdict, true);
            let waiting: u64 = gate.limits.iter().map(|limit| limit.stats().waiting).sum();
            let later = gate.workers.ends.iter().filter(|end| end.admitted).count();
            let timed_out = gate.workers.timeouts.len();
            prop_assert_eq!(id + 1, at_once + queued + refused);
            prop_assert_eq!(gate.workers.ends.len(), later + timed_out);
            prop_assert_eq!(queued, later + timed_out + gate.workers.cancelled + waiting as usize);
            prop_assert_eq!(waiting as usize, gate.workers.waiting.len());
            prop_assert_eq!(at_once + later, gate.workers.permits.len() + gate.workers.ended);
        }
        gate.run_to(gate.now + 10_000 * MS);
        prop_assert_eq!(queued, gate.workers.ends.len() + gate.workers.cancelled);
        for end in &gate.workers.ends {
            let on = arrivals[end.id].on;
            let most = settings.iter().enumerate().filter(|(limit, _)| on & (1 << limit) != 0).map(|(_, (_, wait, _))| *wait);
            let deadline = came[end.id] + most.max().unwrap_or(0);
            prop_assert!(end.at.as_nanos() <= deadline + 2 * MS, "{:?} came at {}", end, came[end.id]);
        }
        for limit in &gate.limits {
            prop_assert_eq!(limit.stats().waiting, 0);
        }
        // All have ended: what was taken of what is in flight has come back.
        gate.workers.permits.clear();
        for (limit, (case, ..)) in gate.limits.iter().zip(&settings).filter(|(_, (case, ..))| case.is_in_flight()) {
            for name in 0..2 {
                let whole = case.rates[0].remaining(&[], 0);
                prop_assert_eq!(super::mixes::look(limit, name, gate.now), vec![(whole - 1, None)], "but for who looks");
            }
        }
    }
}
