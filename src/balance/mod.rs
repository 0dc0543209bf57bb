//! Which server of an upstream gets a request: facts in, choice out.
//!
//! It holds no connection, counts nothing and remembers nothing between two choices: loads, the turn and the random
//! bits are given to it ([`Facts`]), so equal facts give the equal choice. It does not know health or breakers: whoever
//! must not be chosen is in [`Facts::excluded`]. A choice allocates nothing. Its caller is the proxy, once per attempt.
//!
//! Where a load is compared with another, it is compared relative to the servers' weights.

mod hash;
mod hash_ring;
mod least_connections;
mod power_of_two;
mod rotation;

pub use hash::stable_hash;

use hash_ring::HashRing;
use least_connections::LeastConnections;
use power_of_two::PowerOfTwo;
use rotation::Rotation;

words! {
    /// How a server is chosen.
    pub enum Strategy {
        /// Sticky: consistent hashing with bounded load.
        Hash = "hash",
        /// In turn, by weight.
        RoundRobin = "round-robin",
        /// The least loaded for its weight.
        LeastConnections = "least-connections",
        /// The less loaded of two drawn at random by weight.
        PowerOfTwo = "power-of-two",
    }
}

/// A server that can be chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Its identity: the hash ring places it by this, in whatever order the servers are listed.
    pub name: String,
    /// Its share, at least 1 (0 counts as 1).
    pub weight: u32,
}

/// What a choice depends on.
pub struct Facts<'a> {
    /// [`stable_hash`] of what makes requests stick.
    pub hash: u64,
    /// The caller's counter, one up for each request.
    pub turn: u64,
    /// Random bits, new ones for each request.
    pub random: u64,
    /// Requests in flight per server, by its index.
    pub loads: &'a dyn Fn(usize) -> u64,
    /// Indexes that must not be chosen; a short list.
    pub excluded: &'a [usize],
}

impl Facts<'_> {
    fn admits(&self, server: usize) -> bool {
        !self.excluded.contains(&server)
    }

    fn load(&self, server: usize) -> u64 {
        (self.loads)(server)
    }
}

/// The servers of one upstream, laid out for one strategy. Immutable: another list of servers is another `Balancer`.
#[derive(Clone, Debug)]
pub struct Balancer(Layout);

#[derive(Clone, Debug)]
enum Layout {
    /// One server: there is nothing to weigh.
    Only,
    HashRing(HashRing),
    Rotation(Rotation),
    LeastConnections(LeastConnections),
    PowerOfTwo(PowerOfTwo),
}

impl Balancer {
    /// Lays out `servers`. `bound` is the share of the mean load that no server exceeds under [`Strategy::Hash`], like
    /// 1.25 (below 1 it counts as 1); `None` lets a hot key load its server without end.
    pub fn new(strategy: Strategy, bound: Option<f64>, servers: &[Server]) -> Self {
        Self(match strategy {
            _ if servers.len() == 1 => Layout::Only,
            Strategy::Hash => Layout::HashRing(HashRing::new(bound, servers)),
            Strategy::RoundRobin => Layout::Rotation(Rotation::new(servers)),
            Strategy::LeastConnections => Layout::LeastConnections(LeastConnections::new(servers)),
            Strategy::PowerOfTwo => Layout::PowerOfTwo(PowerOfTwo::new(servers)),
        })
    }

    /// Whether [`Facts::loads`] must be of all workers together; else those of the asking worker alone do.
    pub fn counts_all_workers(&self) -> bool {
        matches!(self.0, Layout::LeastConnections(_) | Layout::PowerOfTwo(_))
    }

    /// The index of the server to use; `None` when all are excluded.
    pub fn choose(&self, facts: &Facts<'_>) -> Option<usize> {
        match &self.0 {
            Layout::Only => facts.admits(0).then_some(0),
            Layout::HashRing(ring) => ring.choose(facts),
            Layout::Rotation(rotation) => rotation.choose(facts),
            Layout::LeastConnections(least) => least.choose(facts),
            Layout::PowerOfTwo(two) => two.choose(facts),
        }
    }
}

fn weight_of(server: &Server) -> u64 {
    u64::from(server.weight.max(1))
}

/// Whether `a` is less loaded for its weight than `b`, each a load and a weight.
fn is_less_loaded(a: (u64, u64), b: (u64, u64)) -> bool {
    u128::from(a.0) * u128::from(b.1) < u128::from(b.0) * u128::from(a.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Servers `s0`, `s1` ... of these weights.
    pub(super) fn servers(weights: &[u32]) -> Vec<Server> {
        weights.iter().enumerate().map(|(i, weight)| Server { name: format!("s{i}"), weight: *weight }).collect()
    }

    /// The `n`th of a sequence of well-mixed numbers.
    pub(super) fn noise(n: u64) -> u64 {
        stable_hash([n.to_le_bytes().as_slice()])
    }

    #[test]
    fn who_looks_for_the_least_loaded_counts_all_workers() {
        let counts = |strategy, weights: &[u32]| Balancer::new(strategy, None, &servers(weights)).counts_all_workers();
        assert_eq!(Strategy::ALL.map(|strategy| counts(strategy, &[1, 1])), [false, false, true, true]);
        assert_eq!(Strategy::ALL.map(|strategy| counts(strategy, &[1])), [false; 4], "there is nothing to compare");
    }

    #[test]
    fn chooses_nothing_when_all_are_excluded_or_there_are_none() {
        for strategy in Strategy::ALL {
            for (weights, excluded) in [(vec![1, 5, 2], vec![2, 0, 1]), (vec![], vec![]), (vec![3], vec![0, 0])] {
                let balancer = Balancer::new(strategy, Some(1.25), &servers(&weights));
                let facts = Facts { hash: 7, turn: 7, random: 7, loads: &|_| 100, excluded: &excluded };
                assert_eq!(balancer.choose(&facts), None, "{strategy:?}");
            }
        }
    }

    #[test]
    fn never_chooses_an_excluded_server_and_always_finds_the_last_one() {
        for strategy in Strategy::ALL {
            let balancer = Balancer::new(strategy, Some(1.25), &servers(&[1, 1000, 3, 1]));
            for n in 0..2_000 {
                let loads = |server: usize| noise(n * 4 + server as u64) % 50;
                let mut facts = Facts { hash: noise(n), turn: n, random: noise(n + 1), loads: &loads, excluded: &[1] };
                assert_ne!(balancer.choose(&facts), Some(1), "{strategy:?}");
                facts.excluded = &[0, 1, 2, 1];
                assert_eq!(balancer.choose(&facts), Some(3), "{strategy:?}");
            }
        }
    }

    #[test]
    fn weight_zero_counts_as_one() {
        for strategy in Strategy::ALL {
            let zero = Balancer::new(strategy, None, &servers(&[0, 0]));
            let one = Balancer::new(strategy, None, &servers(&[1, 1]));
            for n in 0..100 {
                let facts = Facts { hash: noise(n), turn: n, random: noise(n), loads: &|_| 0, excluded: &[] };
                assert_eq!(zero.choose(&facts), one.choose(&facts), "{strategy:?}");
            }
        }
    }
}
