//! The latencies of one window. Each client has one voice, whatever number of requests it has, and of three clients and more the
//! slowest and the fastest have none: so no client alone can make a server seem slow, or hide that it is.

use std::collections::HashMap;

use sluicegate_time::Span;

/// Samples that are kept. Of more, each second one, then each fourth, and so on: they are spread over the whole window.
const KEPT: usize = 512;

/// Latency above so many times the usual one counts as this: a long poll beside short requests tells nothing of a queue.
const TAIL: f64 = 8.0;

/// With fewer clients all of them have a voice.
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

    /// Whether somebody else than this client was answered.
    pub(super) fn has_others(&self, client: u64) -> bool {
        self.kept.iter().any(|(_, own)| *own != client)
    }

    /// The mean latency in seconds, of clients' means.
    pub(super) fn mean(&self) -> Option<f64> {
        let uncut = self.client_means(f64::INFINITY);
        // Of clients that have as many requests as they like, and not of requests.
        let usual = uncut.get(uncut.len() / 2)?;
        let means = self.client_means(usual * TAIL);
        let voices = match means.get(1..means.len() - 1) {
            Some(inner) if means.len() >= CLIENTS => inner,
            _ => &means,
        };
        let sum: f64 = voices.iter().sum();
        Some((sum / voices.len() as f64 / 1e9).max(f64::MIN_POSITIVE))
    }

    /// The mean of each client in nanoseconds, the least first.
    fn client_means(&self, most: f64) -> Vec<f64> {
        let mut of_clients: HashMap<u64, (f64, f64)> = HashMap::new();
        for (took, client) in &self.kept {
            let (sum, count) = of_clients.entry(*client).or_default();
            *sum += (took.as_nanos() as f64).min(most);
            *count += 1.0;
        }
        let mut means: Vec<f64> = of_clients.into_values().map(|(sum, count)| sum / count).collect();
        means.sort_unstable_by(f64::total_cmp);
        means
    }
}
