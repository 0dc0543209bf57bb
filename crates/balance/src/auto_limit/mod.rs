//! How many requests may be at an upstream's servers at once, found from the latency of their answers: events in, a number out.
//!
//! It is of the gradient family (Netflix, "Performance Under Load", 2018; Envoy's adaptive concurrency). A server that has C
//! places and needs S for a request answers in S up to C requests in flight; beyond, latency grows as their number does, and the
//! throughput does not. While the latency is that without a queue, the number grows. When it is above, the reason is a queue, or
//! requests that take longer now, and latency alone does not tell which. So for one short window fewer requests are sent: a
//! **probe**. The latency of that window beside the one before says how much of it was a queue, and is the one without a queue
//! from then on. A long memory is not needed: a change of S or C is found by the next probe.
//!
//! It knows no requests and no clock. Its caller is the bulkhead of an upstream.

mod samples;
#[cfg(test)]
mod simulation;

use std::collections::HashMap;

use samples::LatencySample;
use sluicegate_time::{Span, Tick};

/// The least and the most that may be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AutoTerms {
    /// At least this many, however slow the servers are.
    pub min: u64,
    /// At most this many.
    pub max: u64,
}

impl Default for AutoTerms {
    fn default() -> Self {
        Self { min: 4, max: 1024 }
    }
}

/// Nothing is known at first. It grows fast, and a longer queue would be noticed late.
const FIRST: f64 = 16.0;

/// Latency above this share of the one without a queue, and what chance may add, may be a queue: where requests wait for a place
/// in the gateway; and where none does, so that chance alone makes none of them wait.
const QUEUED: (f64, f64) = (1.05, 1.5);

/// The requests of a probe, as a share of those that were in flight: where the number has been found, and where it has not.
const PROBE: (f64, f64) = (0.75, 0.5);

/// Beyond the places that servers seem to have, as a share and as a number: without requests that wait there, a place
/// would be free for the time of a way to the server.
const HEADROOM: (f64, f64) = (1.06, 1.5);

/// Windows between probes, where the number has been found and there may be a queue; and a probe is due after so long without one.
const CALM: u32 = 4;
const AUDIT: (Span, Span) = (Span::from_secs(5), Span::from_secs(60));

/// How much it grows in a window that shows no queue: as long as none was seen at all; and later, up to three times as much if
/// window after window shows none.
const FIRST_GROWTH: f64 = 0.5;
const GROWTH: f64 = 1.0 / 16.0;

/// How long the limit before is seen in answers, in latencies.
const SETTLES: f64 = 1.5;

const FOUND: WindowTerms = WindowTerms { samples: 256, least: Span::from_millis(50), most: Span::from_secs(1) };
const PROBING: WindowTerms = WindowTerms { samples: 128, least: Span::from_millis(20), most: Span::from_secs(1) };
const SEEKING: WindowTerms = WindowTerms { samples: 64, least: Span::from_millis(20), most: Span::from_millis(500) };

/// The latency of a probe beside that of before: above the first there was hardly a queue, above the second none.
const NO_QUEUE: f64 = 0.875;
const FREE: f64 = 0.97;

/// Up to this many times the share of requests that were sent, all of them were in a queue.
const ALL_QUEUE: f64 = 1.1;

/// Fewer samples tell nothing.
const LEAST_SAMPLES: u64 = 8;

/// How long a window lasts: as long as the latency and `least`, and then until there are so many samples or it has been
/// `most`.
struct WindowTerms {
    samples: u64,
    least: Span,
    most: Span,
}

/// The state of one upstream.
#[derive(Clone, Debug)]
pub struct AutoLimit {
    terms: AutoTerms,
    /// Found so far; of a probe this is the number before and after it.
    found: f64,
    /// The number of the probe that goes on.
    probe: Option<f64>,
    window: LatencyWindow,
    /// That of the last window, in seconds.
    latency: f64,
    /// Latency without a queue, in seconds.
    base: Option<f64>,
    /// The windows since the last probe, or the one before it.
    loaded: Option<Loaded>,
    /// Windows since the last probe.
    since_probe: u32,
    probed_at: Tick,
    /// After so long the next one is due.
    audit: Span,
    /// Windows in a row in which the number grew.
    grown: u32,
    /// Probes in a row that showed no queue.
    free: u32,
    is_settled: bool,
    /// No queue was seen yet.
    is_new: bool,
}

#[derive(Clone, Copy, Debug)]
struct Loaded {
    latency: f64,
    /// The most requests in flight.
    most: f64,
    /// The share by which chance alone changes the latency, where that differs as much as it does in an exponential
    /// distribution.
    noise: f64,
}

#[derive(Clone, Debug, Default)]
struct LatencyWindow {
    /// `None`: the next event begins it.
    began: Option<Tick>,
    sample: LatencySample,
    /// Requests that timed out or that a server refused with 503: by some clients, and of all.
    overloaded: HashMap<u64, u64>,
    failures: u64,
}

/// Clients of failures that are kept for a window.
const MAX_OVERLOADED: usize = 64;

impl AutoLimit {
    /// One that knows nothing yet.
    pub fn new(terms: AutoTerms) -> Self {
        Self {
            terms,
            found: FIRST.min(terms.max as f64).max(terms.min as f64),
            probe: None,
            window: LatencyWindow::default(),
            latency: 0.0,
            base: None,
            loaded: None,
            since_probe: 0,
            probed_at: Tick::ZERO,
            audit: AUDIT.0,
            grown: 0,
            free: 0,
            is_settled: false,
            is_new: true,
        }
    }

    /// Changes its bounds; what it has found stays where it is within them.
    pub fn set_terms(&mut self, terms: AutoTerms) {
        self.terms = terms;
        self.set_found(self.found);
        // A probe may be outside them.
        (self.probe, self.loaded, self.window) = (None, None, LatencyWindow::default());
    }

    /// How many requests may be at the servers now.
    pub fn limit(&self) -> u64 {
        self.probe.unwrap_or(self.found) as u64
    }

    /// The number that was found: [`limit`](Self::limit) without the probes.
    pub fn found(&self) -> u64 {
        self.found as u64
    }

    /// The head of an answer has come after this time, when so many requests were in flight with it. Whether the limit is
    /// another one now.
    pub fn answered(&mut self, took: Span, client: u64, in_flight: u64, now: Tick) -> bool {
        if now >= *self.window.began.get_or_insert(now) {
            self.window.sample.add(took, client, in_flight);
        }
        self.advance(now)
    }

    /// A request of this client has timed out, or its answer was 503. Whether the limit is another one now.
    pub fn overloaded(&mut self, client: u64, now: Tick) -> bool {
        self.window.began.get_or_insert(now);
        let LatencyWindow { overloaded, failures, .. } = &mut self.window;
        *failures += 1;
        if overloaded.len() < MAX_OVERLOADED || overloaded.contains_key(&client) {
            *overloaded.entry(client).or_default() += 1;
        }
        self.advance(now)
    }

    fn advance(&mut self, now: Tick) -> bool {
        let before = self.limit();
        if self.is_over(now) {
            self.end_window(now);
            // Answers to requests that were sent under the limit before tell of that one.
            let is_changed = self.limit().abs_diff(before) * 8 > before;
            let settles = if is_changed { Span::from_nanos((self.latency * SETTLES * 1e9) as u64) } else { Span::ZERO };
            self.window.began = Some(now + settles);
        }
        self.limit() != before
    }

    fn is_over(&self, now: Tick) -> bool {
        let bounds = match self.probe {
            _ if !self.is_settled => SEEKING,
            Some(_) => PROBING,
            None => FOUND,
        };
        let age = self.window.began.map_or(Span::ZERO, |began| now.since(began));
        let seen = self.window.sample.seen() + self.window.failures;
        let round = Span::from_nanos((self.latency * 1e9) as u64).max(bounds.least);
        age >= round && (seen >= bounds.samples || (age >= bounds.most && seen >= LEAST_SAMPLES))
    }

    fn end_window(&mut self, now: Tick) {
        let is_overloaded = self.is_overloaded();
        let latency = self.window.sample.mean();
        let most = self.window.sample.most_in_flight() as f64;
        let noise = 1.0 / (self.window.sample.seen().max(1) as f64).sqrt();
        self.window.sample.clear();
        self.window.overloaded.clear();
        self.window.failures = 0;
        let probe = self.probe.take();
        if is_overloaded {
            self.set_found(self.found * PROBE.0);
        } else if let Some(latency) = latency {
            self.latency = latency;
            match (probe, self.loaded.take()) {
                (Some(probe), Some(loaded)) => self.probed(latency, probe, loaded, now),
                (_, before) => self.loaded(Loaded { latency, most, noise }, before, now),
            }
        }
    }

    /// Whether at least one of twenty requests was refused or not answered in time, without those of the client that has most of
    /// them; with them where nobody else was answered.
    fn is_overloaded(&self) -> bool {
        let LatencyWindow { overloaded, failures, sample, .. } = &self.window;
        let Some((client, most)) = overloaded.iter().max_by_key(|(_, count)| **count) else { return false };
        let counted = if sample.has_others(*client) { failures - most } else { *failures };
        counted > 0 && counted * 20 >= sample.seen()
    }

    fn loaded(&mut self, seen: Loaded, before: Option<Loaded>, now: Tick) {
        self.since_probe += 1;
        let loaded = before.map_or(seen, |before| Loaded {
            latency: before.latency.midpoint(seen.latency),
            most: before.most.max(seen.most),
            noise: seen.noise,
        });
        self.loaded = Some(loaded);
        let is_binding = loaded.most >= self.found.floor();
        let base = match self.base {
            Some(base) if seen.latency < base => base + (seen.latency - base) * 0.3,
            Some(base) => base,
            None => seen.latency,
        };
        let is_first = self.base.replace(base).is_none();
        let is_queued = seen.latency > base * if is_binding { QUEUED.0 + seen.noise } else { QUEUED.1 };
        let calm = if self.free > 1 { 1 } else { CALM };
        let is_calm = self.is_settled && self.since_probe < calm;
        if is_first || now.since(self.probed_at) >= self.audit || (is_queued && !is_calm) {
            self.start_probe(loaded, now);
        }
        if is_queued {
            (self.grown, self.is_new) = (0, false);
        } else if seen.most * 2.0 >= self.found && self.probe.is_none() {
            self.grown += 1;
            let share = if self.is_new { FIRST_GROWTH } else { GROWTH * f64::from((self.grown / 2).clamp(1, 3)) };
            self.set_found(self.found * (1.0 + share));
        }
    }

    fn start_probe(&mut self, loaded: Loaded, now: Tick) {
        let used = self.found.min(loaded.most).floor();
        let share = if self.is_settled { PROBE.0 } else { PROBE.1 };
        let sent = (used * share).ceil().min(used - 1.0).max(self.terms.min as f64).max(1.0);
        if sent < used {
            self.probe = Some(sent);
        } else {
            // No fewer can be sent: this is as short as the queue gets.
            (self.base, self.since_probe, self.probed_at) = (Some(loaded.latency), 0, now);
        }
    }

    /// Fewer requests were in flight, and this was the latency.
    fn probed(&mut self, latency: f64, probe: f64, loaded: Loaded, now: Tick) {
        (self.since_probe, self.probed_at) = (0, now);
        let used = self.found.min(loaded.most).floor();
        let sent = probe / used;
        let ratio = (latency / loaded.latency).clamp(sent, 1.0 / sent);
        let is_binding = loaded.most >= self.found.floor();
        self.free = if ratio > FREE { self.free + 1 } else { 0 };
        let alone = if self.free > 0 { loaded.latency.midpoint(latency) } else { latency };
        self.base = Some(if self.is_settled { self.base.unwrap_or(alone).midpoint(alone) } else { alone });
        if ratio <= sent * ALL_QUEUE {
            // All of it was a queue, and what was left may be, too.
            (self.is_settled, self.is_new, self.grown) = (false, false, 0);
            (self.audit, self.free) = (AUDIT.0, 0);
            self.set_found(probe);
            return;
        }
        let target = match self.free {
            0 | 1 => (used * ratio).mul_add(HEADROOM.0, HEADROOM.1),
            // As the windows between probes: chance may keep them from it.
            free => used * (1.0 + GROWTH * f64::from(1u32 << (free - 1).min(3))),
        };
        let gain = if self.is_settled { 0.5 } else { 1.0 };
        self.is_new &= ratio > NO_QUEUE;
        self.audit = match self.audit {
            audit if ratio > NO_QUEUE && !is_binding => Span::from_nanos(audit.as_nanos() * 2).min(AUDIT.1),
            _ => AUDIT.0,
        };
        self.is_settled = !self.is_new;
        if is_binding || (ratio < NO_QUEUE && target < self.found) {
            self.set_found(self.found + (target - self.found) * gain);
        }
    }

    fn set_found(&mut self, to: f64) {
        self.found = to.min(self.terms.max as f64).max(self.terms.min as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: AutoTerms = AutoTerms { min: 4, max: 100 };

    fn at(millis: u64) -> Tick {
        Tick::ZERO + Span::from_millis(millis)
    }

    /// Of `clients` clients a request each millisecond, answered after 20 ms, or after what this says of the client's number.
    fn serve(limit: &mut AutoLimit, clients: u64, (from, to): (u64, u64), took: impl Fn(u64) -> u64) {
        for millis in from..to {
            let client = millis % clients;
            let in_flight = limit.limit();
            limit.answered(Span::from_millis(took(client)), client, in_flight, at(millis));
        }
    }

    #[test]
    fn it_begins_with_16_grows_without_a_queue_and_stays_within_its_bounds() {
        let mut limit = AutoLimit::new(TERMS);
        assert_eq!((limit.limit(), AutoLimit::new(AutoTerms { min: 20, max: 20 }).limit()), (16, 20));
        serve(&mut limit, 10, (1_000, 9_000), |_| 20);
        assert_eq!(limit.found(), 100);
        limit.set_terms(AutoTerms { min: 4, max: 50 });
        assert_eq!(limit.found(), 50);
    }

    #[test]
    fn it_does_not_grow_while_less_than_half_of_it_is_used() {
        let mut limit = AutoLimit::new(TERMS);
        for millis in 1_000..9_000 {
            limit.answered(Span::from_millis(20), millis % 10, 7, at(millis));
        }
        assert_eq!(limit.found(), 16);
    }

    #[test]
    fn one_client_whose_requests_take_long_does_not_make_it_smaller() {
        let mut limit = AutoLimit::new(TERMS);
        serve(&mut limit, 10, (1_000, 9_000), |_| 20);
        // A fifth of all requests, and the longer the more there are in flight, as if they waited in a queue.
        let places = std::cell::Cell::new(limit.limit());
        for second in 9..39 {
            serve(&mut limit, 5, (second * 1_000, second * 1_000 + 1_000), |client| {
                if client == 0 { 20 * places.get() } else { 20 }
            });
            places.set(limit.limit());
        }
        assert_eq!(limit.found(), 100);
    }

    #[test]
    fn one_client_whose_requests_cost_nothing_does_not_hide_a_queue() {
        // A server of 20 places; three of four requests are of one client, and do not go there.
        let mut limit = AutoLimit::new(TERMS);
        for millis in (1_000..30_000).step_by(4) {
            let in_flight = limit.limit();
            let took = Span::from_millis(20.max(in_flight));
            limit.answered(took, millis / 4 % 10, in_flight, at(millis));
            (1..4).for_each(|more| _ = limit.answered(Span::from_nanos(1_000), 99, in_flight, at(millis + more)));
        }
        assert!((15..=25).contains(&limit.found()), "20 places, and {} found", limit.found());
    }

    #[test]
    fn fewer_at_most_hold_at_once_while_a_probe_goes_on() {
        let mut limit = AutoLimit::new(AutoTerms { min: 4, max: 1_000 });
        serve(&mut limit, 10, (1_000, 9_000), |_| 20);
        let mut millis = 9_000;
        while limit.limit() == limit.found() {
            let in_flight = limit.limit();
            limit.answered(Span::from_millis(in_flight), millis % 10, in_flight, at(millis));
            millis += 1;
        }
        limit.set_terms(AutoTerms { min: 4, max: 20 });
        assert_eq!(limit.limit(), 20);
        serve(&mut limit, 10, (millis, millis + 5_000), |_| 20);
        assert_eq!(limit.limit(), 20);
    }

    #[test]
    fn timeouts_and_503_of_several_clients_make_it_smaller_and_those_of_one_do_not() {
        let fail = |clients: u64| {
            let mut limit = AutoLimit::new(TERMS);
            serve(&mut limit, 10, (1_000, 9_000), |_| 20);
            for millis in 9_000..9_400 {
                limit.answered(Span::from_millis(20), millis % 10, 50, at(millis));
                if millis % 10 < clients {
                    limit.overloaded(millis % 10, at(millis));
                }
            }
            limit.found()
        };
        assert_eq!((fail(0), fail(1)), (100, 100));
        assert!(fail(2) < 80, "{}", fail(2));
        // One client with many, and a stray one of another.
        let mut limit = AutoLimit::new(TERMS);
        for millis in 1_000..19_000 {
            limit.answered(Span::from_millis(20), millis % 10, 50, at(millis));
            if millis % 10 == 0 || millis % 500 == 1 {
                limit.overloaded(millis % 10, at(millis));
            }
        }
        assert_eq!(limit.found(), 100);
        // No request is answered at all, and there is one client alone.
        let mut limit = AutoLimit::new(TERMS);
        for millis in (0..60_000).step_by(100) {
            limit.overloaded(1, at(millis));
        }
        assert_eq!(limit.found(), 4);
    }
}
