//! A plant for simulations: limits, a server with a queue, and sensors whose readings come late.

use std::collections::VecDeque;

use sluicegate_overload::{
    FailureRate, FailureSet, LatencySamples, LimitActivity, LimitScale, Priority, PriorityCounts, SampleSet,
    ScaleState, ScaleTerms, SensorReading, ServerFailure, ShedLevel, Shedding,
};
use sluicegate_time::{Span, Tick};

/// Requests a second that the server can answer.
pub const CAPACITY: f64 = 200.0;

/// Steps of the simulation in a second.
const STEPS: u64 = 20;

const WINDOW: Span = Span::from_secs(10);
const RECENT: Span = Span::from_secs(2);

/// Random numbers that depend on nothing but the seed (`SplitMix64`).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// From 0 to 1.
    pub fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The measure of overload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sensor {
    /// Mean of a second; it saturates at 100%.
    Cpu,
    /// It follows the load slowly, and does not saturate.
    Memory,
    /// Quantile 0.95 of the last 10 s.
    ResponseTime,
    /// Timeouts a minute.
    DeadLetters,
}

#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub seed: u64,
    pub sensor: Sensor,
    /// The sum of all limits at 100%, in parts of the capacity. Infinite: no limit is adaptive.
    pub limit: f64,
    pub floor_percent: u32,
    /// How late readings come, in seconds.
    pub delay: usize,
    /// After this time a request is given up.
    pub timeout: Span,
    /// Shares of low and normal requests; the others are high.
    pub low: f64,
    pub normal: f64,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            seed: 1,
            sensor: Sensor::Cpu,
            limit: 2.0,
            floor_percent: 20,
            delay: 0,
            timeout: Span::from_secs(2),
            low: 0.0,
            normal: 1.0,
        }
    }
}

/// One second of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct Second {
    pub state: ScaleState,
    pub level: ShedLevel,
    pub reading: f64,
    /// Answered within half a second, in parts of the capacity.
    pub goodput: f64,
    /// Refused by limits.
    pub refused: u64,
    /// Refused by shedding, by priority.
    pub shed: [u64; 3],
}

pub struct Plant {
    setup: Setup,
    random: Random,
    now: Tick,
    scale: LimitScale,
    shedding: Shedding,
    state: ScaleState,
    level: ShedLevel,
    queue: VecDeque<(Tick, u64)>,
    /// Parts of requests that have come, that limits admit and that the server can answer.
    credit: [f64; 3],
    memory: f64,
    samples: LatencySamples,
    failures: FailureRate,
    late: VecDeque<[Option<f64>; 2]>,
}

impl Plant {
    pub fn new(setup: Setup) -> Self {
        let mut scale = LimitScale::new(ScaleTerms { floor_percent: setup.floor_percent, step_percent: 10 });
        let state = scale.observe(Tick::ZERO, &[], LimitActivity::default());
        Self {
            setup,
            random: Random(setup.seed),
            now: Tick::ZERO,
            scale,
            shedding: Shedding::new(),
            state,
            level: ShedLevel::NONE,
            queue: VecDeque::new(),
            credit: [0.0; 3],
            memory: 0.0,
            samples: LatencySamples::new(WINDOW),
            failures: FailureRate::new(WINDOW),
            late: VecDeque::new(),
        }
    }

    /// Runs for some seconds under a load in parts of the capacity.
    pub fn run(&mut self, seconds: u64, load: f64) -> Vec<Second> {
        (0..seconds).map(|_| self.second(load)).collect()
    }

    fn second(&mut self, load: f64) -> Second {
        let mut counts = PriorityCounts::default();
        let (mut good, mut refused, mut shed, mut admitted) = (0.0, 0, [0; 3], 0.0);
        for _ in 0..STEPS {
            self.now = self.now + Span::from_millis(1_000 / STEPS);
            let scale = f64::from(self.state.basis_points) / 10_000.0;
            let noise = 0.9 + 0.2 * self.random.share();
            self.credit[0] += load * noise * CAPACITY / STEPS as f64;
            // A bucket that holds a quarter of a second.
            let rate = self.setup.limit * scale * CAPACITY;
            self.credit[1] = (self.credit[1] + rate / STEPS as f64).min(rate / 4.0 + 1.0);
            while self.credit[0] >= 1.0 {
                self.credit[0] -= 1.0;
                let priority = self.count(&mut counts);
                if self.level.refuses(priority, self.random.next()) {
                    shed[priority as usize] += 1;
                } else if self.setup.limit.is_finite() && self.credit[1] < 1.0 {
                    refused += 1;
                } else {
                    self.credit[1] -= 1.0;
                    admitted += 1.0;
                    self.queue.push_back((self.now, self.random.next() % 50));
                }
            }
            good += self.serve();
        }
        let demand = admitted / CAPACITY;
        self.memory += (demand - self.memory) / 3.0;
        let values = self.measure(demand);
        let reading = self.observe(values, counts, refused > 0);
        let (state, level) = (self.state, self.level);
        Second { state, level, reading, goodput: good / CAPACITY, refused, shed }
    }

    fn count(&mut self, counts: &mut PriorityCounts) -> Priority {
        let draw = self.random.share();
        if draw < self.setup.low {
            counts.low += 1;
            Priority::Low
        } else if draw < self.setup.low + self.setup.normal {
            counts.normal += 1;
            Priority::Normal
        } else {
            counts.high += 1;
            Priority::High
        }
    }

    /// Answers the oldest requests, and gives up those that waited too long. Returns how many were quick.
    fn serve(&mut self) -> f64 {
        let mut good = 0.0;
        while let Some((came, client)) = self.queue.front().copied()
            && self.now.since(came) >= self.setup.timeout
        {
            self.queue.pop_front();
            let random = self.random.next();
            self.samples.add(self.setup.timeout, client, self.now, random);
            self.failures.add(ServerFailure::Timeout, client, self.now, random);
        }
        self.credit[2] = (self.credit[2] + CAPACITY / STEPS as f64).min(CAPACITY / STEPS as f64 + 1.0);
        while self.credit[2] >= 1.0 {
            let Some((came, client)) = self.queue.pop_front() else { break };
            self.credit[2] -= 1.0;
            let latency = Span::from_nanos(self.now.since(came).as_nanos() + 20_000_000);
            self.samples.add(latency, client, self.now, self.random.next());
            self.failures.note_answer(client, self.now);
            if latency < Span::from_millis(500) {
                good += 1.0;
            }
        }
        good
    }

    /// The value of the sensor, and that of the last seconds.
    fn measure(&self, demand: f64) -> [Option<f64>; 2] {
        match self.setup.sensor {
            Sensor::Cpu => [Some(demand.min(1.0)), None],
            Sensor::Memory => [Some(self.memory), None],
            Sensor::ResponseTime => {
                let value = self.quantile(WINDOW);
                [value, value.filter(|value| *value > 800.0).and_then(|_| self.quantile(RECENT))]
            }
            Sensor::DeadLetters => [WINDOW, RECENT].map(|window| {
                let mut set = FailureSet::new(window);
                set.collect(&self.failures, self.now);
                Some(set.per_minute())
            }),
        }
    }

    fn quantile(&self, window: Span) -> Option<f64> {
        let mut set = SampleSet::new(window);
        set.collect(&self.samples, self.now);
        set.quantile(0.95, Span::from_millis(800)).map(Span::in_millis)
    }

    /// Gives the sensor's values, as late as they come, to the scale and the shedding.
    fn observe(&mut self, values: [Option<f64>; 2], counts: PriorityCounts, has_refused: bool) -> f64 {
        self.late.push_back(values);
        let is_there = self.late.len() > self.setup.delay;
        let [value, recent] = if is_there { self.late.pop_front().unwrap_or_default() } else { [None; 2] };
        let (above, window) = match self.setup.sensor {
            Sensor::Cpu | Sensor::Memory => (0.85, Span::from_secs(1)),
            Sensor::ResponseTime => (800.0, WINDOW),
            Sensor::DeadLetters => (1_200.0, WINDOW),
        };
        let reading = SensorReading { sensor: 0, value, recent, above, window };
        let activity = LimitActivity { is_shedding: self.level > ShedLevel::NONE, has_refused };
        self.state = self.scale.observe(self.now, &[reading], activity);
        let may_begin = self.state.needs_shedding || self.setup.limit.is_infinite();
        self.level = self.shedding.observe(self.now, self.state.worst, counts, may_begin);
        self.state.worst.map_or(0.0, |worst| worst.excess)
    }
}
