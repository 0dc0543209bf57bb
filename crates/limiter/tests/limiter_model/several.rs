use std::sync::Arc;

use proptest::prelude::*;
use sluicegate_limiter::time::{Span, Tick};
use sluicegate_limiter::{Bound, Limit, LimitSpec, OnFull, Policy, Report, Verdict};

use super::naive::NaiveRate;
use super::workers::Workers;
use super::{MS, asks, bounds, policy, runs, spec, wheel};

/// The limits that a request has to pass: the first, the second, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    First,
    Second,
    Both,
}

#[derive(Clone, Copy, Debug)]
struct Arrival {
    /// Nanoseconds since the one before.
    after: u64,
    route: Route,
    cost: u64,
    /// Cancels the request that arrived so many before.
    cancels: Option<usize>,
    /// So many others come with keys of their own, at the instant when the next waiter has its turn, just before it.
    flood: u64,
}

#[derive(Clone, Copy, Debug)]
struct Setting {
    limit: u64,
    window_millis: u64,
    bound: Bound,
    max_wait: u64,
    max_queue: u64,
}

fn setting() -> impl Strategy<Value = Setting> {
    let wait = prop_oneof![Just(0u64), (1u64..1500).prop_map(|millis| millis * MS), 0u64..2000 * MS];
    let window = prop_oneof![Just(100u64), Just(300), Just(1000)];
    (1u64..6, window, bounds(), wait, 0u64..4).prop_map(|(limit, window_millis, bound, max_wait, max_queue)| Setting {
        limit,
        window_millis,
        bound,
        max_wait,
        max_queue,
    })
}

fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    let after = prop_oneof![3 => Just(0u64), 3 => (0u64..300).prop_map(|millis| millis * MS), 2 => 0u64..400 * MS];
    let route = prop_oneof![Just(Route::First), Just(Route::Second), Just(Route::Both)];
    let cancels = prop::option::weighted(0.15, 1usize..6);
    let flood = prop_oneof![Just(0), 0u64..20];
    let arrival = (after, route, 1u64..4, cancels, flood).prop_map(|(after, route, cost, cancels, flood)| Arrival {
        after,
        route,
        cost,
        cancels,
        flood,
    });
    prop::collection::vec(arrival, 1..40)
}

struct Gate {
    limits: [Arc<Limit>; 2],
    first: Arc<Policy>,
    second: Arc<Policy>,
    both: Arc<Policy>,
    workers: Workers,
    now: u64,
    /// How many came in floods.
    flooded: u64,
}

impl Gate {
    /// With room for all keys.
    fn new(settings: &[Setting; 2]) -> Self {
        Self::bounded(settings, 1_000, OnFull::EvictOldest)
    }

    fn bounded(settings: &[Setting; 2], max_keys: u64, on_full: OnFull) -> Self {
        let limits = settings.map(|setting| {
            let rate = format!("{}/{}ms", setting.limit, setting.window_millis);
            Limit::new(LimitSpec {
                algorithm: wheel(&[&rate], Some(10), setting.bound),
                max_wait: Span::from_nanos(setting.max_wait),
                max_queue: Some(setting.max_queue),
                max_keys,
                on_full,
                ..spec("1/s")
            })
        });
        let [first, second] = &limits;
        let (first, second, both) = (policy(&[first]), policy(&[second]), policy(&[first, second]));
        Self { limits, first, second, both, workers: Workers::default(), now: 0, flooded: 0 }
    }

    fn ask(&self, route: Route, cost: u64) -> Verdict {
        let policy = match route {
            Route::First => &self.first,
            Route::Second => &self.second,
            Route::Both => &self.both,
        };
        policy.check(&asks(1, cost), Span::MAX, Tick::from_nanos(self.now), &mut Report::default())
    }

    fn flood(&mut self, keys: u64, until: u64) {
        let next = self.workers.waiting.iter().map(|waiting| waiting.wake_at.as_nanos()).min();
        let Some(next) = next.filter(|next| keys > 0 && *next > self.now && *next <= until) else {
            return;
        };
        self.run_to(next - 1);
        for _ in 0..keys {
            self.flooded += 1;
            let asks = asks(1_000 + self.flooded, 1);
            let _ = self.both.check(&asks, Span::ZERO, Tick::from_nanos(next), &mut Report::default());
        }
    }

    fn run_to(&mut self, now: u64) {
        self.now = now;
        self.workers.run_to(Tick::from_nanos(now));
    }

    /// Plays the arrivals; those of both limits do not stay when they would have to wait, unless `both_wait`.
    fn play(&mut self, arrivals: &[Arrival], both_wait: bool, mut seen: impl FnMut(usize, &Verdict, u64)) {
        for (id, arrival) in arrivals.iter().enumerate() {
            self.run_to(self.now + arrival.after);
            if let Some(before) = arrival.cancels {
                self.workers.cancel(id.wrapping_sub(before));
            }
            let verdict = self.ask(arrival.route, arrival.cost);
            seen(id, &verdict, self.now);
            if let Verdict::Queued(ticket) = verdict
                && (both_wait || arrival.route != Route::Both)
            {
                self.workers.take(id, ticket, Tick::from_nanos(self.now));
            }
        }
    }
}

proptest! {
    #![proptest_config(runs(2_000))]

    /// With waiters of one limit only (the plans are exact then), a nanosecond before its retry time the same request
    /// would be refused, and at it, it is not.
    #[test]
    fn the_retry_time_over_two_limits_is_tight(settings in [setting(), setting()], arrivals in arrivals()) {
        let mut refusals = Vec::new();
        Gate::new(&settings).play(&arrivals, false, |id, verdict, now| {
            if let Verdict::Refused(refusal) = verdict
                && let Some(retry_at) = refusal.retry_at
            {
                refusals.push((id, now, retry_at.as_nanos()));
            }
        });
        for (id, now, retry_at) in refusals {
            prop_assert!(retry_at > now, "{} at {} retries at {}", id, now, retry_at);
            for (instant, refused) in [(retry_at - 1, true), (retry_at, false)] {
                let mut gate = Gate::new(&settings);
                gate.play(&arrivals[..=id], false, |_, _, _| {});
                gate.run_to(instant);
                let verdict = gate.ask(arrivals[id].route, arrivals[id].cost);
                prop_assert_eq!(matches!(verdict, Verdict::Refused(_)), refused, "arrival {} of {} at {}", id, now, instant);
            }
        }
    }

    /// Whoever waits for whatever: no admission exceeds either limit, every request ends once, and none is stuck.
    #[test]
    fn two_limits_hold_together_and_every_request_ends_once(settings in [setting(), setting()], arrivals in arrivals()) {
        let mut gate = Gate::new(&settings);
        let (mut log, mut queued, mut refused) = (Vec::new(), 0, 0);
        gate.play(&arrivals, true, |id, verdict, now| match verdict {
            Verdict::Admitted(_) => log.push((now, id)),
            Verdict::Queued(_) => queued += 1,
            Verdict::Refused(_) => refused += 1,
        });
        let admitted_at_once = log.len();
        gate.run_to(gate.now + 100_000 * MS);
        let later = gate.workers.ends.iter().filter(|end| end.admitted).map(|end| (end.at.as_nanos(), end.id));
        log.extend(later);
        log.sort_unstable();
        for (route, setting) in [Route::First, Route::Second].into_iter().zip(settings) {
            let rate = NaiveRate::new(setting.limit, setting.window_millis, 10, setting.bound);
            let counted = |(at, id): &(u64, usize)| (*at, arrivals[*id].cost);
            let applies = |(_, id): &&(u64, usize)| matches!(arrivals[*id].route, Route::Both) || arrivals[*id].route == route;
            let log: Vec<(u64, u64)> = log.iter().filter(applies).map(counted).collect();
            for (index, (at, _)) in log.iter().enumerate() {
                prop_assert!(rate.sum(&log[..=index], *at) <= setting.limit, "{:?} at {}", route, at);
            }
        }
        let ended = gate.workers.ends.len();
        prop_assert!(gate.workers.waiting.is_empty());
        prop_assert_eq!(arrivals.len(), admitted_at_once + queued + refused);
        prop_assert_eq!(queued, ended + gate.workers.cancelled);
        for limit in &gate.limits {
            prop_assert_eq!(limit.stats().waiting, 0);
        }
    }

    /// In one limit whoever may wait gets in by its deadline, however few keys the table holds and whoever else comes.
    #[test]
    fn whoever_waits_gets_in_however_full_the_table_is(
        settings in [setting(), setting()],
        max_keys in 4u64..12,
        on_full in prop_oneof![Just(OnFull::EvictOldest), Just(OnFull::Allow), Just(OnFull::Refuse)],
        arrivals in arrivals(),
    ) {
        let mut gate = Gate::bounded(&settings, max_keys, on_full);
        let mut queued = 0;
        for (id, arrival) in arrivals.iter().enumerate() {
            let until = gate.now + arrival.after;
            gate.flood(arrival.flood, until);
            gate.run_to(until);
            if let Some(before) = arrival.cancels {
                gate.workers.cancel(id.wrapping_sub(before));
            }
            let route = if arrival.route == Route::Both { Route::First } else { arrival.route };
            if let Verdict::Queued(ticket) = gate.ask(route, arrival.cost) {
                queued += 1;
                gate.workers.take(id, ticket, Tick::from_nanos(gate.now));
            }
            for limit in &gate.limits {
                prop_assert!(limit.stats().keys <= max_keys + 1, "{} keys", limit.stats().keys);
            }
        }
        let until = gate.now + 100_000 * MS;
        gate.flood(30, until);
        gate.run_to(until);
        prop_assert_eq!(queued, gate.workers.ends.len() + gate.workers.cancelled);
        for end in &gate.workers.ends {
            prop_assert!(end.admitted, "{} was sent away at {:?}", end.id, end.at);
        }
    }
}
