//! Pressure, between the workers and the thread that looks after it: that says how far limits are scaled and which requests are
//! shed, and workers say what came, what was refused and what failed. Nothing of it is asked where a file has no `[overload]`.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluicegate_overload::{
    FULL_SCALE, FailureRate, FailureSet, LatencySamples, Priority, PriorityCounts, SampleSet, ServerFailure, ShedLevel,
};
use sluicegate_time::{Span, Tick};

/// Samples of so long count. Failures are a rate, and count for as long: in a minute nothing could come to rest.
pub const SAMPLE_WINDOW: Span = Span::from_secs(10);

/// The state of all workers.
#[derive(Debug)]
pub struct OverloadState {
    scale: AtomicU32,
    shed: AtomicU32,
    counts_failures: AtomicBool,
    workers: Box<[WorkerPressure]>,
}

/// Figures of one worker. Alone on its cache lines, since others write their own.
#[derive(Debug)]
#[repr(align(64))]
struct WorkerPressure {
    /// Requests for servers by priority, those that were shed too.
    low: AtomicU64,
    normal: AtomicU64,
    high: AtomicU64,
    has_refused: AtomicBool,
    failures: Mutex<FailureRate>,
}

/// The times that the servers of one upstream took to the heads of their answers, by worker.
#[derive(Debug)]
pub struct ResponseSamples(Box<[Mutex<LatencySamples>]>);

impl OverloadState {
    /// That of so many workers: nothing is scaled, nothing shed.
    pub fn new(workers: usize) -> Self {
        let worker = |_| WorkerPressure {
            low: AtomicU64::new(0),
            normal: AtomicU64::new(0),
            high: AtomicU64::new(0),
            has_refused: AtomicBool::new(false),
            failures: Mutex::new(FailureRate::new(SAMPLE_WINDOW)),
        };
        Self {
            scale: AtomicU32::new(FULL_SCALE),
            shed: AtomicU32::new(0),
            counts_failures: AtomicBool::new(false),
            workers: (0..workers).map(worker).collect(),
        }
    }

    /// The share to which adaptive limits are scaled, in percent.
    pub fn scale_percent(&self) -> f64 {
        f64::from(self.scale.load(Ordering::Relaxed)) / 100.0
    }

    /// The requests that are shed.
    pub fn shed_level(&self) -> ShedLevel {
        ShedLevel::from_bits(self.shed.load(Ordering::Relaxed))
    }

    /// From now on these hold: the scale in basis points, and the requests that are shed.
    pub fn publish(&self, scale: u32, level: ShedLevel) {
        self.scale.store(scale, Ordering::Relaxed);
        self.shed.store(level.bits(), Ordering::Relaxed);
    }

    /// Whether failures of servers are asked for.
    pub fn count_failures(&self, are_counted: bool) {
        self.counts_failures.store(are_counted, Ordering::Relaxed);
    }

    /// Counts a request for a server, and says whether it may go there. `draw`: random bits, new ones for each request.
    pub fn admits(&self, worker: usize, priority: Priority, draw: u64) -> bool {
        if let Some(own) = self.workers.get(worker) {
            let count = match priority {
                Priority::Low => &own.low,
                Priority::Normal => &own.normal,
                Priority::High => &own.high,
            };
            // One writer for each.
            count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        !self.shed_level().refuses(priority, draw)
    }

    /// An adaptive limit has refused a request, or made it wait.
    pub fn note_refusal(&self, worker: usize) {
        if let Some(own) = self.workers.get(worker)
            && !own.has_refused.load(Ordering::Relaxed)
        {
            own.has_refused.store(true, Ordering::Relaxed);
        }
    }

    /// A server has failed a request of this client, or has answered it where this is `None`.
    pub fn note_end(&self, worker: usize, failure: Option<ServerFailure>, client: u64, now: Tick, random: u64) {
        if !self.counts_failures.load(Ordering::Relaxed) {
            return;
        }
        let Some(own) = self.workers.get(worker) else { return };
        let mut failures = locked(&own.failures);
        match failure {
            Some(failure) => failures.add(failure, client, now, random),
            None => failures.note_answer(client, now),
        }
    }

    /// Requests for servers since the start.
    pub fn arrived(&self) -> PriorityCounts {
        let sum = |count: fn(&WorkerPressure) -> &AtomicU64| {
            self.workers.iter().map(|own| count(own).load(Ordering::Relaxed)).sum()
        };
        PriorityCounts { low: sum(|own| &own.low), normal: sum(|own| &own.normal), high: sum(|own| &own.high) }
    }

    /// Whether an adaptive limit has refused something since this was asked the last time.
    pub fn take_refusals(&self) -> bool {
        self.workers.iter().filter(|own| own.has_refused.swap(false, Ordering::Relaxed)).count() > 0
    }

    /// Failures of servers in a minute, by those of this long.
    pub fn failures_per_minute(&self, window: Span, now: Tick) -> f64 {
        let mut set = FailureSet::new(window);
        self.workers.iter().for_each(|own| set.collect(&locked(&own.failures), now));
        set.per_minute()
    }
}

impl ResponseSamples {
    /// Without samples yet, of so many workers.
    pub fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| Mutex::new(LatencySamples::new(SAMPLE_WINDOW))).collect())
    }

    /// An answer to this client took so long to its head, or did not come in this time. `random`: random bits.
    pub fn add(&self, worker: usize, took: Span, client: u64, now: Tick, random: u64) {
        if let Some(own) = self.0.get(worker) {
            locked(own).add(took, client, now, random);
        }
    }

    /// A quantile of those of this long, without the client that is slowest by `above`; `None`: there are too few.
    pub fn quantile(&self, quantile: f64, above: Span, window: Span, now: Tick) -> Option<Span> {
        let mut set = SampleSet::new(window);
        self.0.iter().for_each(|own| set.collect(&locked(own), now));
        set.quantile(quantile, above)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Tick {
        Tick::ZERO + Span::from_millis(millis)
    }

    #[test]
    fn requests_are_counted_by_priority_and_shed_by_the_level() {
        let state = OverloadState::new(2);
        state.publish(6_000, ShedLevel::from_bits(3 << 15));
        assert!((state.scale_percent() - 60.0).abs() < 0.001 && (state.shed_level().value() - 1.5).abs() < 0.001);
        let passed = |priority| (0..4u64).filter(|draw| state.admits(1, priority, draw << 62)).count();
        assert_eq!((passed(Priority::Low), passed(Priority::Normal), passed(Priority::High)), (0, 2, 4));
        assert!(state.admits(0, Priority::High, 0));
        assert_eq!(state.arrived(), PriorityCounts { low: 4, normal: 4, high: 5 });
        state.note_refusal(1);
        assert_eq!((state.take_refusals(), state.take_refusals()), (true, false));
    }

    #[test]
    fn samples_and_failures_of_all_workers_are_read_together() {
        let (state, samples) = (OverloadState::new(2), ResponseSamples::new(2));
        state.count_failures(true);
        for second in 0..20u64 {
            for client in 0..10u64 {
                let (worker, now) = ((client % 2) as usize, at(second * 1_000 + client));
                samples.add(worker, Span::from_millis(20), client, now, client);
                let failure = (client < 5).then_some(ServerFailure::Timeout);
                state.note_end(worker, failure, client, now, client);
            }
        }
        let now = at(20_000);
        let above = Span::from_millis(100);
        assert_eq!(samples.quantile(0.95, above, SAMPLE_WINDOW, now), Some(Span::from_millis(20)));
        let failures = state.failures_per_minute(SAMPLE_WINDOW, now);
        assert!((failures - 300.0).abs() < 1.0, "{failures}");
    }
}
