//! Samples of all workers, put together to be read once: where clients are counted, and their weights cut. The rules
//! are in [`samples`](crate::samples). Its caller is the task that reads the sensors once a second.

use std::collections::HashMap;

use sluicegate_time::{Span, Tick};

use crate::samples::{FailureRate, LatencySamples};
use crate::scale::CALM;

/// So few requests say nothing.
const FEWEST: f64 = 20.0;

/// Latencies of all workers.
#[derive(Debug)]
pub struct SampleSet {
    window: Span,
    samples: Vec<WeightedLatency>,
}

#[derive(Clone, Copy, Debug)]
struct WeightedLatency {
    latency: Span,
    client: u64,
    weight: f64,
}

impl SampleSet {
    /// Makes one without samples, for those of the last `window`: that of the workers, or a part of it.
    pub fn new(window: Span) -> Self {
        Self { window, samples: Vec::new() }
    }

    /// Copies the samples of a worker.
    pub fn collect(&mut self, worker: &LatencySamples, now: Tick) {
        for kept in worker.kept(self.window, now) {
            let weighted = kept.samples.iter().map(|sample| WeightedLatency {
                latency: sample.latency,
                client: sample.client,
                weight: kept.weight,
            });
            self.samples.extend(weighted);
        }
    }

    /// Returns the latency that a share of `quantile` (0.0 to 1.0) of all requests does not exceed, each client with
    /// its cap; or that of all clients but the slowest, if that is lower. The slowest client is the one with the
    /// largest weight above 90% of `above`: from there on a reading has an effect on the scale. `None`: fewer than 20
    /// requests.
    pub fn quantile(&mut self, quantile: f64, above: Span) -> Option<Span> {
        let above = Span::from_nanos((above.as_nanos() as f64 * CALM) as u64);
        self.samples.sort_unstable_by_key(|sample| sample.latency);
        let mut totals = ClientTotals::default();
        let mut slow = HashMap::<u64, f64>::new();
        for sample in &self.samples {
            totals.add(sample.client, sample.weight);
            if sample.latency > above {
                *slow.entry(sample.client).or_default() += sample.weight;
            }
        }
        if totals.sum() < FEWEST {
            return None;
        }
        let all = self.capped_quantile(quantile, &totals, None)?;
        if all <= above || totals.clients.len() < 2 {
            return Some(all);
        }
        let cap = totals.cap();
        let weight = |(client, slow): (&u64, &f64)| (slow * totals.factor(*client, cap), *client);
        let (_, slowest) = slow.iter().map(weight).max_by(|(a, _), (b, _)| a.total_cmp(b))?;
        totals.clients.remove(&slowest);
        let others = self.capped_quantile(quantile, &totals, Some(slowest))?;
        Some(all.min(others))
    }

    fn capped_quantile(&self, quantile: f64, totals: &ClientTotals, without: Option<u64>) -> Option<Span> {
        let cap = totals.cap();
        let wanted = quantile.clamp(0.0, 1.0) * totals.clients.values().map(|total| total.min(cap)).sum::<f64>();
        let mut sum = 0.0;
        let mut last = None;
        for sample in self.samples.iter().filter(|sample| Some(sample.client) != without) {
            sum += sample.weight * totals.factor(sample.client, cap);
            last = Some(sample.latency);
            // Sums of fractions are not exact.
            if sum >= wanted - 1e-6 {
                break;
            }
        }
        last
    }
}

/// Failures of all workers.
#[derive(Debug)]
pub struct FailureSet {
    window: Span,
    totals: ClientTotals,
}

impl FailureSet {
    /// Makes one without failures, for those of the last `window`: that of the workers, or a part of it.
    pub fn new(window: Span) -> Self {
        Self { window, totals: ClientTotals::default() }
    }

    /// Copies the failures of a worker.
    pub fn collect(&mut self, worker: &FailureRate, now: Tick) {
        for kept in worker.failed(self.window, now) {
            kept.samples.iter().for_each(|client| self.totals.add(*client, kept.weight));
        }
        for kept in worker.answered(self.window, now) {
            kept.samples.iter().for_each(|client| self.totals.add(*client, 0.0));
        }
    }

    /// Returns the failures a minute, each client with its cap.
    pub fn per_minute(&self) -> f64 {
        let cap = self.totals.cap();
        let sum: f64 = self.totals.clients.values().map(|total| total.min(cap)).sum();
        (sum + 0.0) * 60.0 / self.window.as_secs_ceil().max(1) as f64
    }
}

/// The weights of clients.
#[derive(Debug, Default)]
struct ClientTotals {
    clients: HashMap<u64, f64>,
}

impl ClientTotals {
    fn add(&mut self, client: u64, weight: f64) {
        *self.clients.entry(client).or_default() += weight;
    }

    fn sum(&self) -> f64 {
        self.clients.values().sum()
    }

    /// The largest weight that a client may have.
    fn cap(&self) -> f64 {
        let (mut first, mut second) = (0.0_f64, 0.0_f64);
        for weight in self.clients.values() {
            if *weight > first {
                (first, second) = (*weight, first);
            } else if *weight > second {
                second = *weight;
            }
        }
        let but_one = self.sum() - first;
        match self.clients.len() {
            0 | 1 => first,
            2 => second,
            _ if first <= but_one / 2.0 => first,
            _ if but_one / 2.0 >= second => but_one / 2.0,
            _ => but_one - second,
        }
    }

    /// The part of a client's weight that is left.
    fn factor(&self, client: u64, cap: f64) -> f64 {
        let total = self.clients.get(&client).copied().unwrap_or_default();
        if total > cap { cap / total } else { 1.0 }
    }
}

#[cfg(test)]
mod tests;
