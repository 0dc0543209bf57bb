//! The simulator: several gateways, one store, and what lies between them, under a driven clock.
//!
//! Everything that is random comes from a seed. Messages are late, lost or arrive twice; gateways crash and come back; keys
//! are forgotten.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::atomic::AtomicBool;

use super::super::*;

const DEADLINE: Span = Span::from_millis(10);
/// How often everything is reported.
const ROUND: Span = LEASE_HOLD;
/// How often a batch is sent at most.
const BATCH: Span = Span::from_millis(1);

pub(super) struct Setting {
    pub(super) seed: u64,
    pub(super) gateways: usize,
    pub(super) sharing: StoreSharing,
    pub(super) algorithm: Algorithm,
    pub(super) keys: u64,
    /// Requests a second at each gateway.
    pub(super) rates: Vec<u64>,
    pub(super) largest_cost: u64,
    pub(super) secs: u64,
    /// Of a message, one way, at most.
    pub(super) delay: Span,
    /// Of a hundred messages so many are lost.
    pub(super) lost: u64,
    /// Of a hundred settles so many arrive twice.
    pub(super) twice: u64,
    /// Of a hundred rounds of a gateway it crashes in so many.
    pub(super) crashes: u64,
    pub(super) max_keys: u64,
    /// How long a request waits for its turn.
    pub(super) max_wait: Span,
    /// Of a hundred requests that wait so many are given up, some time.
    pub(super) gives_up: u64,
    /// Of a hundred rounds of a gateway it loses sight of the store in so many, for a while.
    pub(super) outages: u64,
    /// So many messages for which nobody waits may be on their way from a gateway.
    pub(super) reports: usize,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            seed: 1,
            gateways: 3,
            sharing: lease(0.25, OnFailure::Closed),
            algorithm: wheel(&["100/s"], None, Bound::Sliding),
            keys: 1,
            rates: vec![100; 3],
            largest_cost: 1,
            secs: 8,
            delay: micros(500),
            lost: 0,
            twice: 0,
            crashes: 0,
            max_keys: 1_000,
            max_wait: Span::ZERO,
            gives_up: 0,
            outages: 0,
            reports: usize::MAX,
        }
    }
}

pub(super) fn lease(overshoot: f64, on_failure: OnFailure) -> StoreSharing {
    let overshoot_ppm = (overshoot * f64::from(PPM)) as u32;
    StoreSharing { overshoot_ppm, hold: LEASE_HOLD, deadline: DEADLINE, on_failure, gives_back: false }
}

pub(super) fn strict(on_failure: OnFailure) -> StoreSharing {
    StoreSharing { overshoot_ppm: 0, hold: DEADLINE, deadline: DEADLINE, on_failure, gives_back: false }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Request {
        gateway: usize,
    },
    /// A batch of a gateway is due; `life` tells it from one that has crashed.
    Batch {
        gateway: usize,
        life: u64,
    },
    Round {
        gateway: usize,
        life: u64,
    },
    AtStore {
        settle: usize,
    },
    Reply {
        settle: usize,
    },
    Timeout {
        settle: usize,
    },
    Known {
        gateway: usize,
        life: u64,
    },
    Wake {
        request: u64,
    },
    GiveUp {
        request: u64,
    },
    Back {
        gateway: usize,
        life: u64,
    },
}

pub(super) struct Gateway {
    pub(super) limit: Arc<Limit>,
    policy: Arc<Policy>,
    rung: Arc<Rung>,
    life: u64,
    batch_due: bool,
    last_batch: Tick,
    /// Messages for which nobody waits, on their way.
    reports: usize,
}

#[derive(Default)]
struct Rung(AtomicBool);

impl Wake for Rung {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A settle on its way.
struct Sent {
    gateway: usize,
    life: u64,
    wanted: Wanted,
    at: Tick,
    answer: Option<SettleAnswer>,
    is_report: bool,
    is_over: bool,
}

struct Held {
    gateway: usize,
    life: u64,
    key: u64,
    cost: u64,
    since: Tick,
    waiting: Waiting,
    woken: u64,
}

/// A request that was admitted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pass {
    pub(super) at: Tick,
    pub(super) key: u64,
    pub(super) cost: u64,
    pub(super) gateway: usize,
}

pub(super) struct World {
    pub(super) setting: Setting,
    pub(super) random: u64,
    pub(super) now: Tick,
    events: BinaryHeap<Reverse<(Tick, u64, Event)>>,
    pub(super) ordered: u64,
    pub(super) gateways: Vec<Gateway>,
    pub(super) store: HashMap<u64, Account>,
    pub(super) names: HashMap<u64, u64>,
    settles: Vec<Sent>,
    requests: BTreeMap<u64, Held>,
    pub(super) passes: Vec<Pass>,
    pub(super) arrivals: u64,
    pub(super) operations: u64,
    pub(super) refused: u64,
    /// Admitted after they had waited for their turn.
    pub(super) waited: u64,
    pub(super) charged: u64,
    pub(super) returned: u64,
    /// Of each key and cost until when the store has last had no room for it.
    full: HashMap<(u64, u64), Tick>,
}

impl World {
    pub(super) fn new(setting: Setting) -> Self {
        let random = setting.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let names = (0..setting.keys).map(|name| (key(name).bits(), name)).collect();
        let mut world = Self {
            random,
            now: at(1_000_000),
            events: BinaryHeap::new(),
            ordered: 0,
            gateways: Vec::new(),
            store: HashMap::new(),
            names,
            settles: Vec::new(),
            requests: BTreeMap::new(),
            passes: Vec::new(),
            arrivals: 0,
            operations: 0,
            refused: 0,
            waited: 0,
            charged: 0,
            returned: 0,
            full: HashMap::new(),
            setting,
        };
        for gateway in 0..world.setting.gateways {
            let started = world.start(0);
            world.gateways.push(started);
            world.see(gateway, true, true);
            let first = world.below(ROUND.as_nanos());
            world.after(Span::from_nanos(first), Event::Round { gateway, life: 0 });
            if world.setting.rates[gateway] > 0 {
                world.next_request(gateway);
            }
        }
        world
    }

    fn start(&self, life: u64) -> Gateway {
        let spec = LimitSpec {
            algorithm: self.setting.algorithm.clone(),
            sharing: Some(Sharing::Store(self.setting.sharing)),
            max_keys: self.setting.max_keys,
            max_wait: self.setting.max_wait,
            ..spec("100/s")
        };
        let (limit, policy) = one(spec);
        Gateway { limit, policy, rung: Arc::default(), life, batch_due: false, last_batch: Tick::ZERO, reports: 0 }
    }

    fn see(&self, gateway: usize, is_known: bool, is_up: bool) {
        let live = self.setting.gateways as u32;
        self.gateways[gateway].limit.set_view(FleetView { live, is_known, is_up });
    }

    /// `SplitMix64`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end.max(1)
    }

    pub(super) fn happens(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn after(&mut self, span: Span, event: Event) {
        self.ordered += 1;
        self.events.push(Reverse((self.now + span, self.ordered, event)));
    }

    /// Bursts now and then: requests come together, and then none for a while.
    fn next_request(&mut self, gateway: usize) {
        let mean = 1_000_000_000 / self.setting.rates[gateway];
        let pause = if self.happens(50) { self.below(mean / 10) } else { self.below(mean * 4) };
        self.after(Span::from_nanos(pause), Event::Request { gateway });
    }

    pub(super) fn run(&mut self) {
        let end = self.now + Span::from_secs(self.setting.secs);
        while self.events.peek().is_some_and(|Reverse((at, ..))| *at <= end) {
            let Some(Reverse((at, _, event))) = self.events.pop() else { break };
            self.now = at;
            self.happen(event);
            self.look_at_bells();
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Request { gateway } => {
                self.arrive(gateway);
                self.next_request(gateway);
            }
            Event::Round { gateway, life } if self.gateways[gateway].life == life => {
                if self.happens(self.setting.crashes) {
                    let life = life + 1;
                    self.gateways[gateway] = self.start(life);
                    self.see(gateway, false, true);
                    self.after(Span::from_secs(3), Event::Known { gateway, life });
                    return self.after(ROUND, Event::Round { gateway, life });
                }
                if self.happens(self.setting.outages) {
                    self.see(gateway, self.gateways[gateway].limit.view().is_known, false);
                    let away = self.below(Span::from_secs(1).as_nanos());
                    self.after(Span::from_nanos(away), Event::Back { gateway, life });
                }
                self.gateways[gateway].limit.begin(Turn::Round);
                self.send(gateway);
                self.after(ROUND, Event::Round { gateway, life });
            }
            Event::Batch { gateway, life } if self.gateways[gateway].life == life => {
                self.gateways[gateway].batch_due = false;
                self.gateways[gateway].limit.take_urgent();
                self.gateways[gateway].last_batch = self.now;
                self.send(gateway);
            }
            Event::Known { gateway, life } if self.gateways[gateway].life == life => {
                self.see(gateway, true, self.gateways[gateway].limit.view().is_up);
            }
            Event::Back { gateway, life } if self.gateways[gateway].life == life => {
                self.see(gateway, self.gateways[gateway].limit.view().is_known, true);
            }
            Event::Wake { request } => self.attempt(request),
            Event::GiveUp { request } => drop(self.requests.remove(&request)),
            Event::AtStore { settle } => self.settle(settle),
            Event::Reply { settle } => self.reply(settle),
            Event::Timeout { settle } => self.time_out(settle),
            _ => {}
        }
    }

    fn look_at_bells(&mut self) {
        for gateway in 0..self.gateways.len() {
            let it = &mut self.gateways[gateway];
            let is_urgent = it.limit.listen(&Waker::from(Arc::clone(&it.rung)));
            if (it.rung.0.swap(false, Ordering::SeqCst) || is_urgent) && !it.batch_due {
                it.batch_due = true;
                let (life, wait) = (it.life, (it.last_batch + BATCH).since(self.now));
                self.after(wait, Event::Batch { gateway, life });
            }
        }
        // A request that has been woken looks again at once.
        let is_woken = |(request, held): (&u64, &Held)| (held.waiting.times_woken() > held.woken).then_some(*request);
        for request in self.requests.iter().filter_map(is_woken).collect::<Vec<_>>() {
            self.attempt(request);
        }
    }

    fn arrive(&mut self, gateway: usize) {
        self.arrivals += 1;
        let (key, cost) = (self.below(self.setting.keys), 1 + self.below(self.setting.largest_cost));
        let verdict = check(&self.gateways[gateway].policy, key, cost, self.now);
        match verdict {
            Verdict::Admitted(_) => self.pass(self.arrivals, gateway, key, cost),
            Verdict::Refused(refusal) => self.refuse(key, cost, &refusal),
            Verdict::Queued(_) => {
                let (waiting, life) = (queued(verdict), self.gateways[gateway].life);
                let held = Held { gateway, life, key, cost, since: self.now, waiting, woken: 0 };
                self.requests.insert(self.arrivals, held);
                if self.happens(self.setting.gives_up) {
                    let patience = self.below(self.longest().as_nanos());
                    self.after(Span::from_nanos(patience), Event::GiveUp { request: self.arrivals });
                }
                self.attempt(self.arrivals);
            }
        }
    }

    fn pass(&mut self, request: u64, gateway: usize, key: u64, cost: u64) {
        let life = self.gateways[gateway].life;
        let is_before = |(number, held): (&u64, &Held)| {
            *number < request && (held.gateway, held.key, held.life) == (gateway, key, life)
        };
        let seed = self.setting.seed;
        assert!(!self.requests.iter().any(is_before), "seed {seed}: {request} has overtaken another");
        self.passes.push(Pass { at: self.now, key, cost, gateway });
    }

    fn attempt(&mut self, request: u64) {
        let (now, longest) = (self.now, self.longest());
        let Some(held) = self.requests.get_mut(&request) else { return };
        if held.life != self.gateways[held.gateway].life {
            self.requests.remove(&request);
            return;
        }
        let latest = held.since + longest;
        assert!(now <= latest, "seed {}: nobody waits longer than its patience and the deadline", self.setting.seed);
        held.woken = held.waiting.times_woken();
        match held.waiting.attempt(now) {
            Attempt::Pending { wake_at } => {
                assert!(wake_at <= latest, "nor is told to");
                self.after(wake_at.since(now), Event::Wake { request });
            }
            Attempt::Admitted(_) => {
                let Held { gateway, key, cost, since, .. } = *held;
                self.waited += u64::from(now > since + DEADLINE);
                self.requests.remove(&request);
                self.pass(request, gateway, key, cost);
            }
            Attempt::TimedOut(refusal) => {
                let Held { key, cost, .. } = *held;
                self.requests.remove(&request);
                self.refuse(key, cost, &refusal);
            }
        }
    }

    /// The lower bound: while the store answers, a request is refused only if the store has no room for it, or had none just
    /// before, while grants were out.
    fn refuse(&mut self, key: u64, cost: u64, refusal: &Refusal) {
        self.refused += 1;
        let Setting { seed, sharing, max_wait, outages, keys, max_keys, .. } = self.setting;
        // Keys that have no place in the store are refused without it.
        if refusal.why != RefusalReason::Rate || !max_wait.is_zero() || outages > 0 || keys > max_keys {
            return;
        }
        let full = self.full.get(&(super::super::key(key).bits(), cost)).copied().unwrap_or(Tick::ZERO);
        // While a grant is out it is asked again; a part of a second for the messages.
        let latest = full + sharing.hold + Span::from_millis(350) + DEADLINE + DEADLINE;
        assert!(latest >= self.now, "seed {seed}: refused at {:?}, and full until {full:?}", self.now);
    }

    /// How long a request waits at most.
    fn longest(&self) -> Span {
        (Tick::ZERO + self.setting.max_wait + DEADLINE).since(Tick::ZERO)
    }

    fn send(&mut self, gateway: usize) {
        let (mut wanted, now) = (Vec::new(), self.now);
        let Gateway { limit, life, reports, .. } = &mut self.gateways[gateway];
        let life = *life;
        limit.collect(Collect::Asks, (usize::MAX, &|_| true), now, &mut wanted);
        let asks = wanted.len();
        let most = asks.saturating_add(self.setting.reports - *reports);
        limit.collect(Collect::Reports, (most, &|_| true), now, &mut wanted);
        *reports += wanted.len() - asks;
        for (index, wanted) in wanted.into_iter().enumerate() {
            self.operations += 1;
            let settle = self.settles.len();
            let is_report = index >= asks;
            self.settles.push(Sent { gateway, life, wanted, at: now, answer: None, is_report, is_over: false });
            if !self.happens(self.setting.lost) {
                let delay = self.delay();
                self.after(delay, Event::AtStore { settle });
            }
            // A settle is never sent again: what goes back twice would be budget from nothing.
            if wanted.settle.back == 0 && self.happens(self.setting.twice) {
                let delay = Span::from_nanos(self.delay().as_nanos() * 2);
                self.after(delay, Event::AtStore { settle });
            }
            self.after(DEADLINE, Event::Timeout { settle });
        }
    }

    fn delay(&mut self) -> Span {
        Span::from_nanos(1_000 + self.below(self.setting.delay.as_nanos()))
    }

    fn settle(&mut self, settle: usize) {
        let Sent { wanted, .. } = self.settles[settle];
        let account = self.store.entry(wanted.key.bits()).or_insert_with(|| Account::new(&self.setting.algorithm));
        let answer = account.settle(&wanted.settle, self.setting.sharing.hold, self.now);
        let is_checked = self.setting.max_wait.is_zero() && self.setting.outages == 0;
        for cost in (1..=self.setting.largest_cost).filter(|_| is_checked) {
            // A clone that is asked for it. What it was before holds until now.
            let need = Settle { need: cost, want: cost, ..Settle::default() };
            let retry = account.clone().settle(&need, self.setting.sharing.hold, self.now).retry;
            let full = self.full.entry((wanted.key.bits(), cost)).or_default();
            *full = retry.map_or((*full).min(self.now), |retry| self.now + retry);
        }
        self.charged += wanted.settle.spent + answer.granted;
        self.returned += wanted.settle.back;
        self.settles[settle].answer = Some(answer);
        if !self.happens(self.setting.lost) {
            let delay = self.delay();
            self.after(delay, Event::Reply { settle });
        }
    }

    fn reply(&mut self, settle: usize) {
        let Sent { gateway, life, wanted, at, answer, is_over, .. } = &mut self.settles[settle];
        if std::mem::replace(is_over, true) || self.gateways[*gateway].life != *life {
            return;
        }
        self.gateways[*gateway].limit.answered(wanted, *at, &answer.unwrap(), self.now);
        self.mark_ended(settle);
    }

    /// There is room for the next message.
    fn mark_ended(&mut self, settle: usize) {
        let Sent { gateway, is_report, .. } = self.settles[settle];
        if is_report {
            self.gateways[gateway].reports -= 1;
            if self.setting.reports < usize::MAX {
                self.send(gateway);
            }
        }
    }

    fn time_out(&mut self, settle: usize) {
        let Sent { gateway, life, wanted, is_over, .. } = &mut self.settles[settle];
        if !std::mem::replace(is_over, true) && self.gateways[*gateway].life == *life {
            self.gateways[*gateway].limit.unanswered(wanted, false, self.now);
            self.mark_ended(settle);
        }
    }

    /// The most of one key in any stretch of `span`.
    fn most_in(&self, span: Span) -> u64 {
        let mut most = 0;
        for key in self.names.values() {
            let passes: Vec<_> = self.passes.iter().filter(|pass| pass.key == *key).collect();
            let (mut first, mut sum) = (0, 0);
            for pass in &passes {
                sum += pass.cost;
                while pass.at.since(passes[first].at) >= span {
                    sum -= passes[first].cost;
                    first += 1;
                }
                most = most.max(sum);
            }
        }
        most
    }
}

impl World {
    fn credit(&self) -> u64 {
        let most = self.setting.algorithm.largest_cost();
        let all = most * u64::from(self.setting.sharing.overshoot_ppm) / u64::from(PPM);
        all / self.setting.gateways as u64
    }

    /// The most by which the bucket of one key is overdrawn: how much more was admitted in any stretch of `t` than
    /// `limit t / window`.
    fn most_above(&self, limit: u64, window: Span) -> u64 {
        let mut levels: HashMap<u64, (Tick, u128)> = HashMap::new();
        let mut most = 0;
        let unit = u128::from(window.as_nanos());
        for Pass { at, key, cost, .. } in &self.passes {
            let (before, level) = levels.entry(*key).or_insert((*at, 0));
            let refilled = u128::from(at.since(*before).as_nanos()) * u128::from(limit);
            *level = level.saturating_sub(refilled) + u128::from(*cost) * unit;
            *before = *at;
            most = most.max(*level);
        }
        u64::try_from(most.div_ceil(unit)).unwrap()
    }

    /// The most of one key in one of the windows of `window` since tick 0.
    fn most_in_window(&self, window: Span) -> u64 {
        let mut counts: HashMap<(u64, u64), u64> = HashMap::new();
        for Pass { at, key, cost, .. } in &self.passes {
            *counts.entry((*key, at.as_nanos() / window.as_nanos())).or_default() += cost;
        }
        counts.into_values().max().unwrap_or(0)
    }

    /// The most of one key in a window since tick 0 and, weighted by the share that is left of it, in the one before.
    fn most_weighted(&self, window: Span) -> u64 {
        let (mut counts, mut most): (HashMap<(u64, u64), u64>, u64) = (HashMap::new(), 0);
        let length = window.as_nanos();
        for Pass { at, key, cost, .. } in &self.passes {
            let (index, gone) = (at.as_nanos() / length, at.as_nanos() % length);
            let before = counts.get(&(*key, index.wrapping_sub(1))).copied().unwrap_or(0);
            let count = counts.entry((*key, index)).or_default();
            *count += cost;
            most = most.max(*count + (u128::from(before) * u128::from(length - gone) / u128::from(length)) as u64);
        }
        most
    }

    /// Asserts what is published of this algorithm.
    pub(super) fn assert_bound(&self) {
        let extra = self.credit() * self.setting.gateways as u64;
        let rate = self.setting.algorithm.rates()[0];
        let (limit, window, seed) = (rate.limit(), rate.window(), self.setting.seed);
        let hold = self.setting.sharing.hold;
        let (most, bound) = match &self.setting.algorithm {
            Algorithm::TimerWheel(wheel) => {
                let slot = Span::from_nanos(window.as_nanos() / u64::from(wheel.slots_of(0).unwrap()));
                let stretch = if wheel.bound() == Bound::Strict { window } else { window.since_span(slot) };
                (self.most_in(stretch.since_span(hold)), limit + extra)
            }
            Algorithm::SlidingWindow(sliding) => {
                let slot = Span::from_nanos(window.as_nanos() / u64::from(sliding.slots_of(0).unwrap()));
                let (most, cap) = (self.most_in_window(slot), sliding.slot_limit_of(0).unwrap());
                assert!(most <= cap + extra, "seed {seed}: {most} in a sub-window, {cap} + {extra} are promised");
                (self.most_in(window.since_span(slot)), limit + extra)
            }
            Algorithm::SlidingLog(_) => (self.most_in(window.since_span(hold)), limit),
            Algorithm::SlidingCounter(_) => (self.most_weighted(window), limit + extra),
            Algorithm::FixedWindow(_) => (self.most_in_window(window), limit + extra),
            bucket => {
                let held = (u128::from(limit) * u128::from(hold.as_nanos())).div_ceil(u128::from(window.as_nanos()));
                (self.most_above(limit, window), bucket.largest_cost() + extra + held as u64)
            }
        };
        assert!(most <= bound, "seed {seed}: {most} admitted, at most {bound} are promised");
    }

    /// The least of all keys' only one in any stretch of `span` from its first request on.
    pub(super) fn least_in(&self, span: Span) -> u64 {
        let (mut least, mut after) = (u64::MAX, 0);
        let mut sum = 0;
        for first in &self.passes {
            while self.passes.get(after).is_some_and(|pass| pass.at.since(first.at) <= span) {
                sum += self.passes[after].cost;
                after += 1;
            }
            if first.at + span > self.now {
                break;
            }
            sum -= first.cost;
            least = least.min(sum);
        }
        least
    }

    /// Nothing more arrives, and all that is on its way comes through.
    pub(super) fn settle_down(&mut self) {
        (self.setting.lost, self.setting.crashes, self.setting.outages) = (0, 0, 0);
        self.events.retain(|Reverse((_, _, event))| !matches!(event, Event::Request { .. }));
        self.setting.secs = 2 + self.setting.max_wait.as_millis_ceil() / 1_000;
        self.run();
        assert!(self.requests.is_empty(), "seed {}: {} are stuck", self.setting.seed, self.requests.len());
    }
}

/// Spans do not go below zero.
trait SinceSpan {
    fn since_span(self, other: Span) -> Span;
}

impl SinceSpan for Span {
    fn since_span(self, other: Span) -> Span {
        Span::from_nanos(self.as_nanos().saturating_sub(other.as_nanos()))
    }
}

pub(super) fn micros(micros: u64) -> Span {
    Span::from_nanos(micros * 1_000)
}
