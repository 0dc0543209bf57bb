//! The power of two choices (Mitzenmacher 1996): the less loaded of two servers drawn at random. Nearly as even as
//! looking at all, and workers that see old loads do not all run to the same server.

use super::{Facts, Server, is_less_loaded, weight_of};

#[derive(Clone, Debug)]
pub(super) struct PowerOfTwo {
    /// Where each server's weight ends when all are laid in a row.
    ends: Vec<u64>,
}

impl PowerOfTwo {
    pub(super) fn new(servers: &[Server]) -> Self {
        let mut end = 0u64;
        Self { ends: servers.iter().map(|server| (end += weight_of(server), end).1).collect() }
    }

    /// O(log servers) for each draw; O(servers) when some are excluded or there is a gate.
    pub(super) fn choose(&self, facts: &Facts<'_>) -> Option<usize> {
        // Two draws from the halves of the random bits.
        let (high, low) = (facts.random >> 32, facts.random & u64::from(u32::MAX));
        let total = self.open_weight(facts);
        let first = self.nth(scaled(high, total), facts)?;
        let first_weight = self.weight(first);
        if total == first_weight {
            return Some(first);
        }
        // The second draw is over the row without the first server: lay its numbers around the gap.
        let start = self.open_start(first, facts);
        let second = scaled(low, total - first_weight);
        let second = self.nth(if second < start { second } else { second + first_weight }, facts)?;
        let load = |server: usize| (facts.load(server), self.weight(server));
        Some(if is_less_loaded(load(second), load(first)) { second } else { first })
    }

    fn start(&self, server: usize) -> u64 {
        if server == 0 { 0 } else { self.ends[server - 1] }
    }

    fn weight(&self, server: usize) -> u64 {
        self.ends[server] - self.start(server)
    }

    /// The length of the row of the admitted servers.
    fn open_weight(&self, facts: &Facts<'_>) -> u64 {
        if facts.admits_all() {
            return self.ends.last().copied().unwrap_or(0);
        }
        self.open_start(self.ends.len(), facts)
    }

    /// Where `server` starts in the row of the admitted servers.
    fn open_start(&self, server: usize, facts: &Facts<'_>) -> u64 {
        if facts.admits_all() {
            return self.start(server);
        }
        (0..server).filter(|before| facts.admits(*before)).map(|before| self.weight(before)).sum()
    }

    /// The server at place `n` of the row of the admitted servers.
    fn nth(&self, n: u64, facts: &Facts<'_>) -> Option<usize> {
        if facts.admits_all() {
            let server = self.ends.partition_point(|end| *end <= n);
            return (server < self.ends.len()).then_some(server);
        }
        let mut left = n;
        (0..self.ends.len()).filter(|server| facts.admits(*server)).find(|server| {
            let found = left < self.weight(*server);
            left = left.saturating_sub(self.weight(*server));
            found
        })
    }
}

/// A number below `range` from 32 random bits (Lemire's multiplication, its bias of range / 2^32 kept).
fn scaled(random: u64, range: u64) -> u64 {
    ((u128::from(random) * u128::from(range)) >> 32) as u64
}

#[cfg(test)]
mod tests {
    use super::super::tests::{noise, servers};
    use super::*;

    fn pick(two: &PowerOfTwo, random: u64, loads: &[u64], excluded: &[usize]) -> Option<usize> {
        let loads = |server: usize| loads[server];
        two.choose(&Facts { hash: 0, turn: 0, random, loads: &loads, excluded, gate: None, draw: 0 })
    }

    fn shares(weights: &[u32], loads: &[u64], excluded: &[usize]) -> Vec<f64> {
        let two = PowerOfTwo::new(&servers(weights));
        let mut counts = vec![0u32; weights.len()];
        for n in 0..40_000 {
            counts[pick(&two, noise(n), loads, excluded).unwrap()] += 1;
        }
        counts.iter().map(|count| f64::from(*count) / 40_000.0).collect()
    }

    fn is_about(shares: &[f64], expected: &[f64]) -> bool {
        shares.iter().zip(expected).all(|(share, expected)| (share - expected).abs() < 0.015)
    }

    #[test]
    fn two_servers_are_always_both_drawn() {
        let two = PowerOfTwo::new(&servers(&[1, 1000]));
        for n in 0..1_000 {
            assert_eq!(pick(&two, noise(n), &[0, 1], &[]), Some(0));
            assert_eq!(pick(&two, noise(n), &[1, 999], &[]), Some(1));
        }
    }

    #[test]
    fn idle_servers_share_by_weight() {
        let shares = shares(&[1, 2, 5], &[0; 3], &[]);
        assert!(is_about(&shares, &[0.125, 0.25, 0.625]), "{shares:?}");
    }

    #[test]
    fn the_rest_share_by_weight_when_some_are_excluded() {
        let shares = shares(&[1, 2, 5, 1], &[0; 4], &[2, 2]);
        assert!(is_about(&shares, &[0.25, 0.5, 0.0, 0.25]), "{shares:?}");
    }

    #[test]
    fn the_most_loaded_is_never_chosen_and_the_least_whenever_it_is_drawn() {
        // Of three equal servers the least loaded is in two draws of three.
        let ranks = [2.0 / 3.0, 1.0 / 3.0, 0.0];
        for loads in [[1, 2, 3], [3, 2, 1], [2, 3, 1]] {
            let shares = shares(&[1, 1, 1], &loads, &[]);
            let expected: Vec<_> = loads.iter().map(|load| ranks[*load as usize - 1]).collect();
            assert!(is_about(&shares, &expected), "{shares:?} for loads {loads:?}");
        }
    }

    #[test]
    fn loads_stay_close_where_random_ones_would_not() {
        // 10 000 balls in 100 bins: the fullest has about 104 by two choices, about 126 by one.
        let two = PowerOfTwo::new(&servers(&[1; 100]));
        let mut loads = vec![0; 100];
        for n in 0..10_000 {
            let server = pick(&two, noise(n), &loads, &[]).unwrap();
            loads[server] += 1;
        }
        assert!(loads.iter().all(|load| (90..=108).contains(load)), "{loads:?}");
    }
}
