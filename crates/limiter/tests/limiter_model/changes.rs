//! Reloads of any algorithm into any other, while requests come, wait, are cancelled and end.

use std::sync::Arc;

use proptest::prelude::*;
use sluicegate_limiter::time::{Span, Tick};
use sluicegate_limiter::{
    Algorithm, Gcra, Limit, LimitSpec, Mode, Penalty, Policy, Rate, Refill, Report, SlidingLog, TokenBucket, Verdict,
};

use super::oracle::{ALL, IN_FLIGHT, Shape, shapes};
use super::promises::Promise;
use super::workers::Workers;
use super::{MS, asks, one, runs, spec};

#[derive(Clone, Debug)]
struct Setting {
    shape: Shape,
    mode: Mode,
    max_wait: u64,
    max_queue: u64,
    max_keys: u64,
    penalty: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Arrive(u64),
    Pause(u64),
    /// Cancels or ends the request of so many steps before.
    Gone(usize),
    /// Of the algorithm of before if it stays.
    Reload {
        setting: Setting,
        stays: bool,
    },
}

fn setting(most_rates: usize) -> impl Strategy<Value = Setting> {
    let mode = prop_oneof![6 => Just(Mode::Enforce), 1 => Just(Mode::Shadow), 1 => Just(Mode::Off)];
    let wait = prop_oneof![2 => Just(0u64), 1 => (1u64..2_000).prop_map(|millis| millis * MS)];
    let penalty = prop::bool::weighted(0.1);
    let shape = prop_oneof![4 => shapes(ALL, most_rates), 1 => shapes(IN_FLIGHT, most_rates)];
    (shape, mode, wait, 0u64..4, 2u64..60, penalty).prop_map(|(shape, mode, max_wait, max_queue, max_keys, penalty)| {
        Setting { shape, mode, max_wait, max_queue, max_keys, penalty }
    })
}

fn steps(most_rates: usize) -> impl Strategy<Value = Vec<Step>> {
    let pause = prop_oneof![
        2 => 0u64..30 * MS,
        3 => (0u64..400).prop_map(|millis| millis * MS),
        1 => 0u64..4_000 * MS
    ];
    let reload = (setting(most_rates), prop::bool::weighted(0.8));
    let step = prop_oneof![
        8 => prop_oneof![3 => Just(1u64), 1 => 1u64..9].prop_map(Step::Arrive),
        4 => pause.prop_map(Step::Pause),
        2 => (1usize..8).prop_map(Step::Gone),
        2 => reload.prop_map(|(setting, stays)| Step::Reload { setting, stays }),
    ];
    prop::collection::vec(step, 1..80)
}

fn spec_of(setting: &Setting) -> LimitSpec {
    let penalty = Penalty::new(3, Span::from_millis(500), Span::from_millis(700)).ok().filter(|_| setting.penalty);
    LimitSpec {
        algorithm: setting.shape.case().algorithm,
        mode: setting.mode,
        max_wait: Span::from_nanos(setting.max_wait),
        max_queue: Some(setting.max_queue),
        max_keys: setting.max_keys,
        penalty,
        ..spec("1/s")
    }
}

/// One key of a limit that changes. Another key looks just before each change, so that all know what time it is.
struct Gate {
    limit: Arc<Limit>,
    policy: Arc<Policy>,
    workers: Workers,
    now: u64,
    setting: Setting,
    promise: Promise,
    /// No penalty was ever in force: it refuses besides, and keeps a key from being forgotten when it is idle.
    is_plain: bool,
    /// Whether all that is promised is known: with one rate, as long as there is one.
    is_bound: bool,
    /// When each that was counted, and has not ended, got in, and what it cost.
    counted: Vec<(usize, u64, u64)>,
    costs: Vec<u64>,
    deadlines: Vec<u64>,
    queued: usize,
}

impl Gate {
    fn new(setting: Setting, is_bound: bool) -> Self {
        let (limit, policy) = one(spec_of(&setting));
        let promise = Promise::new(setting.shape.clone());
        let is_plain = !setting.penalty;
        Self {
            limit,
            policy,
            workers: Workers::default(),
            now: 0,
            setting,
            promise,
            is_plain,
            is_bound,
            counted: Vec::new(),
            costs: Vec::new(),
            deadlines: Vec::new(),
            queued: 0,
        }
    }

    fn step(&mut self, id: usize, step: &Step) -> Result<(), TestCaseError> {
        let ended = self.workers.ends.len();
        self.costs.push(if let Step::Arrive(cost) = step { *cost } else { 0 });
        self.deadlines.push(self.now + self.setting.max_wait);
        match step {
            Step::Arrive(cost) => self.arrive(id, *cost)?,
            Step::Pause(nanos) => {
                self.now += nanos;
                self.workers.run_to(Tick::from_nanos(self.now));
            }
            Step::Gone(before) => {
                let which = id.wrapping_sub(*before);
                if let Some(index) = self.counted.iter().position(|(known, ..)| *known == which) {
                    let (_, at, cost) = self.counted.remove(index);
                    self.promise.end(at, cost);
                }
                let _ = self.workers.cancel(which) || self.workers.end(which);
            }
            Step::Reload { setting, stays } => self.reload(setting.clone(), *stays),
        }
        for index in ended..self.workers.ends.len() {
            let end = self.workers.ends[index].clone();
            prop_assert!(
                end.at.as_nanos() <= self.deadlines[end.id] + 2 * MS,
                "{:?} of {}",
                end,
                self.deadlines[end.id]
            );
            if end.admitted {
                self.admitted(end.id, end.at.as_nanos())?;
            }
        }
        if let Some(head) = self.workers.waiting.iter().map(|waiting| waiting.id).min()
            && self.is_surely_known()
        {
            prop_assert!(!self.promise.allows(self.costs[head], self.now), "{} has room at {}", head, self.now);
        }
        let waiting = self.limit.stats().waiting as usize;
        prop_assert_eq!(self.queued, self.workers.ends.len() + self.workers.cancelled + waiting);
        prop_assert_eq!(waiting, self.workers.waiting.len());
        prop_assert!(self.limit.stats().keys <= 2);
        Ok(())
    }

    fn arrive(&mut self, id: usize, cost: u64) -> Result<(), TestCaseError> {
        let now = Tick::from_nanos(self.now);
        let mut report = Report::default();
        match self.policy.check(&asks(1, cost)[..1], Span::MAX, now, &mut report) {
            Verdict::Admitted(permit) => {
                self.admitted(id, self.now)?;
                self.workers.permits.push((id, permit));
            }
            Verdict::Refused(refusal) => {
                prop_assert_eq!(self.setting.mode, Mode::Enforce);
                prop_assert!(refusal.retry_at.is_none_or(|at| at > now), "{:?}", refusal);
                let is_first = self.is_surely_known() && self.workers.waiting.is_empty();
                let allows = self.promise.allows(cost, self.now);
                prop_assert!(!(is_first && allows), "{} is refused at {}", id, self.now);
            }
            Verdict::Queued(ticket) => {
                self.queued += 1;
                self.workers.take(id, ticket, now);
            }
        }
        if self.setting.mode != Mode::Off {
            self.promise.look(self.now);
        }
        Ok(())
    }

    /// Whether what fits by the promise is let in.
    fn is_surely_known(&self) -> bool {
        self.setting.mode == Mode::Enforce && self.is_plain && self.is_bound && self.promise.is_exact()
    }

    /// Whoever is let in is one whom the limit's promise allows; in shadow mode it is counted if it does, and if no
    /// penalty would have refused it.
    fn admitted(&mut self, id: usize, at: u64) -> Result<(), TestCaseError> {
        let cost = self.costs[id];
        let allows = self.promise.allows(cost, at);
        let is_exact = self.promise.is_exact();
        match self.setting.mode {
            Mode::Enforce => {
                prop_assert!(allows || !self.is_bound, "{} of cost {} at {}: {:?}", id, cost, at, self.promise);
            }
            Mode::Shadow if is_exact && !allows => return Ok(()),
            Mode::Shadow if is_exact && self.is_plain => {}
            Mode::Shadow => {
                self.promise.may_admit(at);
                return Ok(());
            }
            Mode::Off => return Ok(()),
        }
        self.promise.admit(cost, at);
        self.counted.push((id, at, cost));
        Ok(())
    }

    fn reload(&mut self, mut setting: Setting, stays: bool) {
        if stays {
            setting.shape.kind = self.setting.shape.sibling(setting.shape.kind);
        }
        if self.setting.mode != Mode::Off {
            drop(self.policy.check(&asks(2, 1)[..1], Span::ZERO, Tick::from_nanos(self.now), &mut Report::default()));
            self.promise.look(self.now);
        }
        if spec_of(&setting).algorithm.name() != self.limit.spec().algorithm.name() {
            // Nothing that was taken before is given back to it.
            self.counted.clear();
        }
        let is_rewritten = setting.penalty != self.setting.penalty;
        self.promise.reload(setting.shape.clone(), is_rewritten, self.now);
        let _ = self.limit.reconfigure(spec_of(&setting));
        self.is_plain &= !setting.penalty;
        self.setting = setting;
        // The heads that it woke look again at this instant.
        self.workers.run_to(Tick::from_nanos(self.now));
    }
}

fn play(mut gate: Gate, steps: &[Step]) -> Result<(), TestCaseError> {
    // Longer than a month.
    for (id, step) in steps.iter().chain([&Step::Pause(40 * 86_400_000 * MS)]).enumerate() {
        gate.step(id, step)?;
    }
    // FIFO: those who got in did so in the order in which they came.
    let in_order: Vec<usize> = gate.workers.ends.iter().filter(|end| end.admitted).map(|end| end.id).collect();
    prop_assert!(in_order.is_sorted(), "{:?}", in_order);
    prop_assert_eq!(gate.limit.stats().waiting, 0);
    // In the end, once all have ended, it is as good as new.
    gate.workers.permits.clear();
    let verdict = gate.policy.check(&asks(1, 1)[..1], Span::MAX, Tick::from_nanos(gate.now), &mut Report::default());
    prop_assert!(matches!(verdict, Verdict::Admitted(_)), "{:?}", gate.setting);
    Ok(())
}

proptest! {
    #![proptest_config(runs(3_000))]

    /// Of one rate: no admission exceeds what is in force when it happens, given what was let in before.
    #[test]
    fn no_reload_lets_in_more_than_was_promised(start in setting(1), steps in steps(1)) {
        play(Gate::new(start, true), &steps)?;
    }

    /// Of any number of rates: nobody waits past its deadline, all end once and in order, and no permit is lost.
    #[test]
    fn no_reload_of_several_rates_loses_anybody(start in setting(3), steps in steps(3)) {
        play(Gate::new(start, false), &steps)?;
    }
}

/// A limit whose rate changes: those algorithms of which a key may have taken more than the next one allows.
fn paced(kind: u8, limit: u64, window: u64) -> LimitSpec {
    let rates = [Rate::new(limit, Span::from_millis(window)).expect("a rate")];
    let algorithm = match kind {
        0 => TokenBucket::new(&rates, None, Refill::Greedy).map(Algorithm::TokenBucket),
        1 => Gcra::new(&rates, Some(limit)).map(Algorithm::Gcra),
        _ => SlidingLog::new(&rates, Span::ZERO, false).map(Algorithm::SlidingLog),
    };
    LimitSpec { algorithm: algorithm.expect("an algorithm"), max_keys: 10, ..spec("1/s") }
}

fn drained(policy: &Arc<Policy>, most: usize, now: Tick) -> (usize, Option<Tick>) {
    for passed in 0..most {
        match policy.check(&asks(1, 1)[..1], Span::ZERO, now, &mut Report::default()) {
            Verdict::Admitted(_) => {}
            Verdict::Refused(refusal) => return (passed, refusal.retry_at),
            Verdict::Queued(_) => unreachable!("none waits"),
        }
    }
    (most, None)
}

#[test]
fn a_rate_that_is_lowered_and_raised_again_lets_nothing_more_pass() {
    const HOUR: u64 = 3_600_000;
    let start = Tick::from_nanos(1_000_000 * HOUR);
    let after = |millis: u64| start + Span::from_millis(millis);
    for kind in 0..3 {
        let (limit, policy) = one(paced(kind, 20, HOUR));
        assert_eq!(drained(&policy, 100, start).0, 20);
        let _ = limit.reconfigure(paced(kind, 5, HOUR));
        let (passed, retry) = drained(&policy, 100, start);
        // Sixteen of the twenty are gone by the higher rate when there is room for one by the lower one.
        let room = after(if kind == 2 { HOUR } else { HOUR * 16 / 20 });
        assert_eq!((passed, retry), (0, Some(room)), "{kind}");
        let _ = limit.reconfigure(paced(kind, 20, HOUR));
        assert_eq!(drained(&policy, 100, start).0, 0, "{kind}");
        // A rate that was lowered for a while takes nothing either.
        let _ = limit.reconfigure(paced(kind, 5, HOUR));
        assert_eq!(drained(&policy, 100, after(HOUR / 2)).0, 0);
        let _ = limit.reconfigure(paced(kind, 20, HOUR));
        assert_eq!(drained(&policy, 100, after(HOUR / 2)).0, if kind == 2 { 0 } else { 10 }, "{kind}");
        assert_eq!(drained(&policy, 100, after(3 * HOUR)).0, 20, "{kind}");
    }
}

/// A rate that is faster and smaller comes in between: it forgets nothing either.
#[test]
fn a_rate_that_is_lowered_through_a_faster_one_lets_nothing_more_pass() {
    for kind in 0..3 {
        let now = Tick::from_nanos(1_000_000_000 * MS);
        let (limit, policy) = one(paced(kind, 30, 60_000));
        assert_eq!(drained(&policy, 100, now).0, 30, "{kind}");
        for (quota, window) in [(1, 1_000), (1, 7_000), (2, 1_000)] {
            let _ = limit.reconfigure(paced(kind, quota, window));
            assert_eq!(drained(&policy, 100, now).0, 0, "{kind}: {quota}/{window}");
        }
    }
}

/// One that was added to it has counted nothing, wherever it stands.
#[test]
fn a_rate_that_is_added_begins_afresh() {
    let now = Tick::from_nanos(1_000_000_000 * MS);
    let with = |kind: u8, rates: &[&str]| {
        let rates: Vec<Rate> = rates.iter().map(|rate| rate.parse().expect("a rate")).collect();
        let algorithm = match kind {
            0 => TokenBucket::new(&rates, None, Refill::Greedy).map(Algorithm::TokenBucket),
            1 => TokenBucket::new(&rates, None, Refill::Interval).map(Algorithm::TokenBucket),
            2 => Gcra::new(&rates, Some(1_000)).map(Algorithm::Gcra),
            _ => SlidingLog::new(&rates, Span::ZERO, false).map(Algorithm::SlidingLog),
        };
        LimitSpec { algorithm: algorithm.expect("an algorithm"), max_keys: 10, ..spec("1/s") }
    };
    for kind in 0..4 {
        for rates in [["1000/h", "5/s"], ["5/s", "1000/h"], ["2000/h", "5/s"], ["1000/d", "5/s"]] {
            let (limit, policy) = one(with(kind, &["1000/h"]));
            assert_eq!(drained(&policy, 400, now).0, 400);
            let _ = limit.reconfigure(with(kind, &rates));
            // Of a log it is known when they came: they are in each window.
            let (passed, later) = [(5, 5), (5, 5), (600, 0), (0, 5)][usize::from(kind)];
            assert_eq!(drained(&policy, 1_000, now).0, passed, "{kind}: {rates:?}");
            assert_eq!(drained(&policy, 1_000, now + Span::from_secs(1)).0, later, "{kind}: {rates:?}");
        }
    }
}

proptest! {
    #![proptest_config(runs(1_000))]

    /// Bursts that are larger than a window has requests, too: no key waits longer than the longest window that there was.
    #[test]
    fn changes_of_the_burst_hold_nobody_up(
        kind in 0u8..2,
        steps in prop::collection::vec(
            (1u64..40, prop::sample::select(vec![1_000u64, 7_000, 60_000]), 1u64..900, 0u64..1_000, 0u64..1_000),
            1..8,
        ),
    ) {
        let with = |quota, window, burst| {
            let rates = [Rate::new(quota, Span::from_millis(window)).expect("a rate")];
            let algorithm = match kind {
                0 => TokenBucket::new(&rates, Some(burst), Refill::Greedy).map(Algorithm::TokenBucket),
                _ => Gcra::new(&rates, Some(burst)).map(Algorithm::Gcra),
            };
            LimitSpec { algorithm: algorithm.expect("an algorithm"), max_keys: 10, ..spec("1/s") }
        };
        let (mut now, mut longest) = (1_000_000_000 * MS, 0);
        let (limit, policy) = one(with(steps[0].0, steps[0].1, steps[0].2));
        for (quota, window, burst, asked, pause) in steps {
            let _ = limit.reconfigure(with(quota, window, burst));
            longest = longest.max(window * MS);
            let (_, retry) = drained(&policy, asked as usize, Tick::from_nanos(now));
            if let Some(retry) = retry {
                prop_assert!(retry.since(Tick::from_nanos(now)) <= Span::from_nanos(longest + 1_000), "{retry:?} at {now}");
            }
            now += pause * MS;
            // So that the limit knows what time it is.
            drop(policy.check(&asks(2, 1)[..1], Span::ZERO, Tick::from_nanos(now), &mut Report::default()));
        }
    }


    /// It drains at the fastest rate that there was, and a stamp leaves after the shortest window at the earliest; no key
    /// waits longer than the longest window.
    #[test]
    fn changes_of_the_rate_forget_nothing_and_hold_nobody_up(
        kind in 0u8..3,
        steps in prop::collection::vec(
            (1u64..40, prop::sample::select(vec![1_000u64, 7_000, 60_000, 3_600_000]), 0u64..30, 0u64..1_000),
            1..12,
        ),
    ) {
        let mut now = 1_000_000_000 * MS;
        let (first, window, ..) = steps[0];
        let (limit, policy) = one(paced(kind, first, window));
        let (mut fastest, mut shortest, mut longest) = (0_f64, u64::MAX, 0);
        let (mut taken, mut at, mut stamps) = (0_f64, now, Vec::new());
        for (quota, window, asked, pause) in steps {
            // So that the limit knows what time it is.
            drop(policy.check(&asks(2, 1)[..1], Span::ZERO, Tick::from_nanos(now), &mut Report::default()));
            taken = (taken - (now - at) as f64 * fastest).max(0.0);
            at = now;
            let _ = limit.reconfigure(paced(kind, quota, window));
            fastest = fastest.max(quota as f64 / (window * MS) as f64);
            (shortest, longest) = (shortest.min(window * MS), longest.max(window * MS));
            for _ in 0..2 {
                let (passed, retry) = drained(&policy, asked as usize, Tick::from_nanos(now));
                taken = (taken - (now - at) as f64 * fastest).max(0.0) + passed as f64;
                at = now;
                stamps.extend(std::iter::repeat_n(now, passed));
                if kind == 2 {
                    let live = stamps.iter().filter(|at| **at + shortest > now).count() as u64;
                    prop_assert!(passed == 0 || live <= quota, "{live} of {quota}");
                } else {
                    prop_assert!(passed == 0 || taken <= quota as f64 + 1e-6, "{taken} of {quota}");
                }
                if let Some(retry) = retry {
                    prop_assert!(retry.since(Tick::from_nanos(now)) <= Span::from_nanos(longest + 1_000), "{retry:?} at {now}");
                }
                now += pause * window * MS / 500;
            }
        }
    }
}
