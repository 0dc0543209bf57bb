//! The latencies of one window. They count without those of the client that waited longest in all, so that no client alone
//! can make a server seem slow; where there are fewer than three clients, all count.

use std::collections::HashMap;

use sluicegate_time::Span;

/// Samples that are kept. Of more, each second one, then each fourth, and so on: they are spread over the whole window.
const KEPT: usize = 512;

/// Latency above so many times the median counts as this: a long poll beside short requests tells nothing of a queue.
const TAIL: f64 = 8.0;

/// With fewer clients all of them count.
const CLIENTS: usize = 3;

/// Latencies, each with its client.
#[derive(Clone, Debug, Default)]
pub(super) struct LatencySample {
    kept: Vec<(Span, u64)>,
    /// One of so many is kept, as a power of two.
    stride: u32,
    seen: u64,
    most_in_flight: u64,
}

impl LatencySample {
    pub(super) fn add(&mut self, took: Span, client: u64, in_flight: u64) {
        self.seen += 1;
        self.most_in_flight = self.most_in_flight.max(in_flight);
        if self.seen & ((1 << self.stride) - 1) != 0 {
            return;
        }
        if self.kept.len() == KEPT {
            let mut is_odd = false;
            self.kept.retain(|_| {
                is_odd = !is_odd;
                is_odd
            });
            self.stride += 1;
        }
        self.kept.push((took, client));
    }

    pub(super) fn clear(&mut self) {
        let mut kept = std::mem::take(&mut self.kept);
        kept.clear();
        *self = Self { kept, ..Self::default() };
    }

    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    pub(super) fn most_in_flight(&self) -> u64 {
        self.most_in_flight
    }

    /// The mean latency in seconds.
    pub(super) fn mean(&mut self) -> Option<f64> {
        self.kept.sort_unstable();
        let (median, _) = self.kept.get(self.kept.len() / 2)?;
        let most = median.as_nanos() as f64 * TAIL;
        let mut of_clients: HashMap<u64, (f64, f64)> = HashMap::new();
        for (took, client) in &self.kept {
            let (sum, count) = of_clients.entry(*client).or_default();
            *sum += (took.as_nanos() as f64).min(most);
            *count += 1.0;
        }
        let (mut sum, mut count) = of_clients.values().fold((0.0, 0.0), |all, one| (all.0 + one.0, all.1 + one.1));
        if of_clients.len() >= CLIENTS
            && let Some((own, requests)) = of_clients.into_values().max_by(|one, other| one.0.total_cmp(&other.0))
        {
            (sum, count) = (sum - own, count - requests);
        }
        Some(sum / count / 1e9)
    }
}
