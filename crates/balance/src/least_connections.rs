//! Least connections: the server with the fewest requests in flight for its weight.

use super::rotation::Rotation;
use super::{Facts, Server, is_less_loaded, weight_of};

#[derive(Clone, Debug)]
pub(super) struct LeastConnections {
    weights: Vec<u64>,
    /// The server whose turn it is among equals. By weight, so that idle servers share by weight too.
    rotation: Rotation,
}

impl LeastConnections {
    pub(super) fn new(servers: &[Server]) -> Self {
        Self { weights: servers.iter().map(weight_of).collect(), rotation: Rotation::new(servers) }
    }

    /// O(servers): one look at each load.
    pub(super) fn choose(&self, facts: &Facts<'_>) -> Option<usize> {
        let first = self.rotation.choose(facts)?;
        let mut least = (first, (facts.load(first), self.weights[first]));
        for server in (first + 1..self.weights.len()).chain(0..first).filter(|server| facts.admits(*server)) {
            let load = (facts.load(server), self.weights[server]);
            if is_less_loaded(load, least.1) {
                least = (server, load);
            }
        }
        Some(least.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::servers;
    use super::*;

    fn pick(weights: &[u32], loads: &[u64], turn: u64, excluded: &[usize]) -> Option<usize> {
        let loads = |server: usize| loads[server];
        let facts = Facts { hash: 0, turn, random: 0, loads: &loads, excluded, gate: None, draw: 0 };
        LeastConnections::new(&servers(weights)).choose(&facts)
    }

    #[test]
    fn takes_the_least_loaded_for_its_weight() {
        assert_eq!(pick(&[1, 1, 1], &[5, 3, 4], 0, &[]), Some(1));
        assert_eq!(pick(&[1, 1, 1], &[5, 3, 4], 0, &[1]), Some(2));
        assert_eq!(pick(&[1, 4], &[2, 7], 0, &[]), Some(1));
        assert_eq!(pick(&[1, 4], &[2, 9], 0, &[]), Some(0));
        assert_eq!(pick(&[3, 1], &[u64::MAX, u64::MAX], 0, &[]), Some(0));
    }

    #[test]
    fn equals_take_turns() {
        let picks: Vec<_> = (0..6).map(|turn| pick(&[1, 1, 1], &[2, 2, 2], turn, &[]).unwrap()).collect();
        assert_eq!(picks, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn idle_servers_take_turns_by_weight() {
        let heavy = (0..40).filter(|turn| pick(&[3, 1], &[0, 0], *turn, &[]) == Some(0)).count();
        assert_eq!(heavy, 30);
    }
}
