use proptest::prelude::*;
use sluicegate_limiter::time::{Span, Tick};
use sluicegate_limiter::{Bound, LimitSpec, Report, Verdict};

use super::naive::NaiveRate;
use super::workers::Workers;
use super::{MS, asks, bounds, one, runs, spec, wheel};

#[derive(Clone, Copy, Debug)]
struct Setting {
    limit: u64,
    window_millis: u64,
    slots: u32,
    bound: Bound,
    max_wait_millis: u64,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Arrive(u64),
    Pause(u64),
    Cancel(usize),
    Reload(Setting),
}

fn setting() -> impl Strategy<Value = Setting> {
    let limit = prop_oneof![4 => 1u64..12, 1 => Just(300u64), 1 => Just(70_000)];
    let window = prop_oneof![Just(100u64), Just(500), Just(1000), Just(3000)];
    let slots = prop_oneof![Just(1u32), Just(2), Just(4), Just(5), Just(10), Just(20)];
    (limit, window, slots, bounds(), 0u64..2000).prop_map(|(limit, window_millis, slots, bound, max_wait_millis)| {
        Setting { limit, window_millis, slots, bound, max_wait_millis }
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pause = prop_oneof![2 => 0u64..30 * MS, 3 => 0u64..400 * MS, 1 => 0u64..40_000 * MS];
    let step = prop_oneof![
        8 => prop_oneof![3 => Just(1u64), 1 => 1u64..200].prop_map(Step::Arrive),
        4 => pause.prop_map(Step::Pause),
        1 => (0usize..100).prop_map(Step::Cancel),
        1 => setting().prop_map(Step::Reload),
    ];
    prop::collection::vec(step, 1..100)
}

fn spec_of(setting: Setting) -> LimitSpec {
    let rate = format!("{}/{}ms", setting.limit, setting.window_millis);
    LimitSpec {
        algorithm: wheel(&[&rate], Some(setting.slots), setting.bound),
        max_wait: Span::from_millis(setting.max_wait_millis),
        max_queue: Some(5),
        ..spec("1/s")
    }
}

/// The known past: everything admitted, and from when on the rings that were in force remember.
struct Past {
    rate: NaiveRate,
    known_from: u64,
    log: Vec<(u64, u64)>,
}

impl Past {
    fn rate(setting: Setting) -> NaiveRate {
        NaiveRate::new(setting.limit, setting.window_millis, u64::from(setting.slots), setting.bound)
    }

    fn admit(&mut self, at: u64, cost: u64) -> Result<(), TestCaseError> {
        self.log.push((at, cost));
        let remembered: Vec<_> = self.log.iter().copied().filter(|(at, _)| *at >= self.known_from).collect();
        let sum = self.rate.sum(&remembered, at);
        prop_assert!(sum <= self.rate.limit, "{} of {} at {}", sum, self.rate.limit, at);
        Ok(())
    }

    /// A longer window cannot count what a shorter one has let go.
    fn reload(&mut self, setting: Setting, now: u64) {
        let oldest = (now / self.rate.slot + 1).saturating_sub(self.rate.summed) * self.rate.slot;
        self.known_from = self.known_from.max(oldest);
        self.rate = Self::rate(setting);
    }
}

proptest! {
    #![proptest_config(runs(3_000))]

    /// Limits, windows, slots and bounds that change under way: no admission exceeds what is in force when it happens,
    /// over real time; nobody waits past the deadline it came with; every request ends once.
    #[test]
    fn a_reload_never_admits_more_than_what_is_in_force(start in setting(), steps in steps()) {
        let (limit, policy) = one(spec_of(start));
        let mut past = Past { rate: Past::rate(start), known_from: 0, log: Vec::new() };
        let mut workers = Workers::default();
        let (mut now, mut patience, mut costs, mut deadlines, mut queued) = (0, start.max_wait_millis, vec![], vec![], 0);
        let steps = steps.into_iter().chain([Step::Pause(200_000 * MS)]);
        for (id, step) in steps.enumerate() {
            let ended = workers.ends.len();
            costs.push(if let Step::Arrive(cost) = step { cost } else { 0 });
            deadlines.push(now + patience * MS);
            match step {
                Step::Arrive(cost) => {
                    let verdict =
                        policy.check(&asks(1, cost)[..1], Span::MAX, Tick::from_nanos(now), &mut Report::default());
                    match verdict {
                        Verdict::Admitted(_) => past.admit(now, cost)?,
                        Verdict::Refused(refusal) => prop_assert!(refusal.retry_at.is_none_or(|at| at.as_nanos() >= now)),
                        Verdict::Queued(ticket) => {
                            queued += 1;
                            workers.take(id, ticket, Tick::from_nanos(now));
                        }
                    }
                }
                Step::Pause(nanos) => {
                    now += nanos;
                    workers.run_to(Tick::from_nanos(now));
                }
                Step::Cancel(which) => _ = workers.cancel(which),
                Step::Reload(setting) => {
                    past.reload(setting, now);
                    patience = setting.max_wait_millis;
                    let _ = limit.reconfigure(spec_of(setting));
                    // The heads that it woke look again at this instant.
                    workers.run_to(Tick::from_nanos(now));
                }
            }
            for end in &workers.ends[ended..] {
                prop_assert!(end.at.as_nanos() <= deadlines[end.id] + 2 * MS, "{:?} of {}", end, deadlines[end.id]);
                if end.admitted {
                    past.admit(end.at.as_nanos(), costs[end.id])?;
                }
            }
        }
        // FIFO: those who got in did so in the order in which they came.
        let in_order: Vec<usize> = workers.ends.iter().filter(|end| end.admitted).map(|end| end.id).collect();
        prop_assert!(in_order.is_sorted(), "{:?}", in_order);
        prop_assert_eq!(queued, workers.ends.len() + workers.cancelled);
        prop_assert_eq!(limit.stats().waiting, 0);
        // In the end it is as good as new.
        let last = limit.spec();
        for _ in 0..past.rate.limit.min(50) {
            let verdict = policy.check(&asks(1, 1)[..1], Span::MAX, Tick::from_nanos(now), &mut Report::default());
            prop_assert!(matches!(verdict, Verdict::Admitted(_)), "{:?}", last);
        }
    }
}
