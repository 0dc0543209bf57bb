//! A server of C places that needs S for each request, behind an [`AutoLimit`].

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::*;

/// How long requests take at the server.
#[derive(Clone, Copy, Debug)]
pub(super) enum Service {
    Constant,
    Uniform,
    Exponential,
}

/// A stretch of time with a server of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stage {
    pub secs: u64,
    pub places: usize,
    pub service: Span,
    /// Requests offered, as a share of what the server can do; `None`: always more than may be sent.
    pub load: Option<f64>,
}

/// The end of a stage: its first 10 s are left out.
#[derive(Debug)]
pub(super) struct Seen {
    pub throughput: f64,
    pub most: u64,
    pub least: u64,
    /// The share of requests that had to wait for a place.
    pub waited: f64,
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

pub(super) struct World {
    limit: AutoLimit,
    random: Random,
    service: Service,
    now: u64,
    next_arrival: u64,
    /// Sent, by the time of their ends.
    running: BinaryHeap<Reverse<(u64, u64)>>,
    /// Sent, and waiting at the server for one of its places: when each was sent.
    queue: VecDeque<u64>,
    pending: u64,
}

impl World {
    pub(super) fn new(seed: u64, service: Service, terms: AutoTerms) -> Self {
        Self {
            limit: AutoLimit::new(terms),
            random: Random(seed),
            service,
            now: 1_000_000_000,
            next_arrival: 0,
            running: BinaryHeap::new(),
            queue: VecDeque::new(),
            pending: 0,
        }
    }

    fn in_flight(&self) -> u64 {
        (self.running.len() + self.queue.len()) as u64
    }

    fn took(&mut self, mean: Span) -> u64 {
        let mean = mean.as_nanos() as f64;
        let drawn = match self.service {
            Service::Constant => mean,
            Service::Uniform => mean * self.random.next().mul_add(1.0, 0.5),
            Service::Exponential => -mean * (1.0 - self.random.next()).ln(),
        };
        drawn as u64 + 1
    }

    fn send(&mut self, stage: &Stage) {
        while self.in_flight() < self.limit.limit() && (stage.load.is_none() || self.pending > 0) {
            self.pending = self.pending.saturating_sub(1);
            self.queue.push_back(self.now);
        }
        while self.running.len() < stage.places && !self.queue.is_empty() {
            let sent = self.queue.pop_front().unwrap();
            let end = self.now + self.took(stage.service);
            self.running.push(Reverse((end, sent)));
        }
    }

    pub(super) fn stage(&mut self, stage: Stage) -> Seen {
        let (begin, end) = (self.now, self.now + stage.secs * 1_000_000_000);
        let measured = begin + 10_000_000_000;
        let mut seen = Seen { throughput: 0.0, most: 0, least: u64::MAX, waited: 0.0 };
        let (mut arrived, mut waited) = (0u64, 0u64);
        let gap = stage.load.map(|load| stage.service.as_nanos() as f64 / (stage.places as f64 * load));
        self.next_arrival = if gap.is_some() { self.now } else { u64::MAX };
        loop {
            self.send(&stage);
            let next_end = self.running.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
            self.now = next_end.min(self.next_arrival);
            if self.now >= end {
                self.now = end;
                break;
            }
            if self.next_arrival <= next_end {
                let gap = gap.unwrap();
                self.next_arrival += (-gap * (1.0 - self.random.next()).ln()) as u64 + 1;
                self.pending += 1;
                if self.now >= measured {
                    arrived += 1;
                    waited += u64::from(self.in_flight() >= self.limit.limit());
                }
                continue;
            }
            let in_flight = self.in_flight();
            let Reverse((_, sent)) = self.running.pop().unwrap();
            let client = (self.random.next() * 10.0) as u64;
            let (took, now) = (Span::from_nanos(self.now - sent), Tick::from_nanos(self.now));
            self.limit.answered(took, client, in_flight, now);
            if self.now >= measured {
                seen.throughput += 1.0;
                seen.most = seen.most.max(in_flight);
                seen.least = seen.least.min(self.limit.limit());
            }
        }
        let possible = stage.places as f64 * (end - measured) as f64 / stage.service.as_nanos() as f64;
        seen.throughput /= possible;
        seen.waited = waited as f64 / arrived.max(1) as f64;
        seen
    }
}

fn most(places: usize) -> u64 {
    places as u64 + (places as u64 / 4).max(4)
}

/// Stages of 30 s: a server of so many places, requests that take three times as long and again as before, three times the places
/// and again as before.
fn stages(places: usize, millis: u64) -> [Stage; 5] {
    let base = Stage { secs: 30, places, service: Span::from_millis(millis), load: None };
    let slow = Stage { service: Span::from_millis(millis * 3), ..base };
    [base, slow, base, Stage { places: places * 3, ..base }, base]
}

const TERMS: AutoTerms = AutoTerms { min: 4, max: 1024 };

/// Checks each stage: the least throughput, and the most in flight as a share of what [`most`] says.
fn check(service: Service, (places, millis): (usize, u64), (throughput, share): (f64, f64)) {
    // Without chance one seed is as any other.
    let seeds = if matches!(service, Service::Constant) { 1 } else { 4 };
    for seed in 0..seeds {
        let mut world = World::new(seed, service, TERMS);
        for (number, stage) in stages(places, millis).into_iter().enumerate() {
            let seen = world.stage(stage);
            let bound = most(stage.places) as f64 * share;
            let about = format!("{service:?}, {places} places, {millis} ms, seed {seed}, stage {number}: {seen:?}");
            assert!(seen.throughput >= throughput && seen.most as f64 <= bound, "{about}");
        }
    }
}

#[test]
fn the_places_of_a_server_are_found_within_10_s_and_again_after_each_step() {
    for places in [4, 8, 20, 100, 300] {
        for millis in [5, 20] {
            check(Service::Constant, (places, millis), (0.95, 1.0));
        }
    }
}

#[test]
fn they_are_found_less_exactly_where_requests_take_different_times() {
    for places in [20, 100] {
        check(Service::Uniform, (places, 20), (0.95, 1.3));
        check(Service::Exponential, (places, 20), (0.87, 1.75));
    }
}

#[test]
fn requests_hardly_wait_at_a_server_that_is_half_used() {
    for (service, places, millis) in
        [(Service::Constant, 8, 20), (Service::Uniform, 20, 5), (Service::Exponential, 100, 20)]
    {
        for seed in 0..4 {
            let mut world = World::new(seed, service, TERMS);
            let [base, ..] = stages(places, millis);
            world.stage(base);
            let seen = world.stage(Stage { load: Some(0.5), ..base });
            assert!(
                seen.waited < 0.01 && seen.throughput > 0.47,
                "{service:?}, {places} places, seed {seed}: {seen:?}"
            );
        }
    }
}
