//! The choice of the server that gets a request: facts in, choice out. And the states of the servers that may get one:
//! events in, states out.
//!
//! A [`Balancer`] holds no connection, counts nothing and remembers nothing between two choices: loads, the turn and the
//! random bits are given to it ([`Facts`]), so equal facts give the equal choice. It does not know health or ejections:
//! a server that must not be chosen is shut by the [`Gate`] or is in [`Facts::excluded`]. A choice allocates nothing.
//! Its caller is the proxy, once per attempt.
//!
//! Where a load is compared with another, it is compared relative to the servers' weights.
//!
//! All memory is in state machines to which time is an argument: a [`Roster`] knows the states of the servers of
//! one upstream and makes its gate, a [`FailureRow`] says how many failures count, a [`Breaker`] refuses all requests to an upstream that fails, a [`RetryBudget`] says
//! how many retries there may be.

#[macro_use]
extern crate sluicegate_words;

mod auto_limit;
mod breaker;
mod failures;
mod gate;
mod hash;
mod hash_ring;
mod least_connections;
mod power_of_two;
mod retry_budget;
mod roster;
mod rotation;
mod server_state;
mod standing;
mod window;

pub use auto_limit::{AutoLimit, AutoTerms};
pub use breaker::{Breaker, BreakerEvent, BreakerState, BreakerTerms, Evidence, Passage};
pub use failures::{FailureRow, GOOD_ANSWER_LASTS, RecentClients};
pub use gate::{Eligibility, Gate};
pub use hash::stable_hash;
pub use retry_budget::RetryBudget;
pub use roster::Roster;
pub use server_state::{EjectTerms, Event, HealthTerms, Member, ServerState, ServerView, Service, Terms};

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

/// The facts that a choice depends on.
pub struct Facts<'a> {
    /// [`stable_hash`] of what makes requests stick.
    pub hash: u64,
    /// The caller's counter, one up for each request.
    pub turn: u64,
    /// Random bits, new ones for each request.
    pub random: u64,
    /// Requests in flight per server, by its index.
    pub loads: &'a dyn Fn(usize) -> u64,
    /// Indexes that must not be chosen; a short list: of the servers that were tried already.
    pub excluded: &'a [usize],
    /// The servers that may be chosen now; `None`: all of them.
    pub gate: Option<&'a Gate>,
    /// Decides whether a server that starts slowly admits the request: the hash if [`Balancer::is_sticky`], else random
    /// bits, new ones for each request.
    pub draw: u64,
}

impl Facts<'_> {
    fn admits(&self, server: usize) -> bool {
        !self.excluded.contains(&server) && self.gate.is_none_or(|gate| gate.admits(server, self.draw))
    }

    /// Whether every server may be chosen.
    fn admits_all(&self) -> bool {
        self.excluded.is_empty() && self.gate.is_none()
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

    /// Whether the choice depends on the hash of a request alone, as long as all servers are well and none is loaded.
    pub fn is_fixed(&self) -> bool {
        matches!(self.0, Layout::HashRing(_) | Layout::Only)
    }

    /// Whether [`Facts::draw`] must be the hash, so that a key comes to a starting server once and stays.
    pub fn is_sticky(&self) -> bool {
        matches!(self.0, Layout::HashRing(_))
    }

    /// The index of the server to use; `None` when all are excluded or shut. When no server admits the request because
    /// of its share alone, shares count as open.
    pub fn choose(&self, facts: &Facts<'_>) -> Option<usize> {
        match facts.gate {
            Some(gate) if gate.has_shares() && !(0..gate.servers()).any(|server| facts.admits(server)) => {
                self.choose_admitted(&Facts { draw: gate::BELOW_EVERY_SHARE, ..*facts })
            }
            _ => self.choose_admitted(facts),
        }
    }

    fn choose_admitted(&self, facts: &Facts<'_>) -> Option<usize> {
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
    use sluicegate_time::Tick;

    /// Servers `s0`, `s1` ... of these weights.
    pub(super) fn servers(weights: &[u32]) -> Vec<Server> {
        weights.iter().enumerate().map(|(i, weight)| Server { name: format!("s{i}"), weight: *weight }).collect()
    }

    /// The `n`th of a sequence of well-mixed numbers.
    pub(super) fn noise(n: u64) -> u64 {
        stable_hash([n.to_le_bytes().as_slice()])
    }

    /// A gate that never changes, of these entries.
    pub(super) fn gate(entries: &[Eligibility]) -> Gate {
        let door = |entry: &Eligibility| gate::Door { entry: *entry, is_ejected: *entry == Eligibility::Probe };
        Gate::new(entries.iter().map(door).collect(), false, Tick::MAX)
    }

    /// Of the `n`th request: nothing is loaded, nobody excluded.
    fn facts(n: u64) -> Facts<'static> {
        let hash = noise(n);
        Facts { hash, turn: n, random: hash, loads: &|_| 0, excluded: &[], gate: None, draw: hash }
    }

    fn share(percent: u64) -> Eligibility {
        Eligibility::Share(((percent << 32) / 100) as u32)
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
                let facts =
                    Facts { hash: 7, turn: 7, random: 7, loads: &|_| 100, excluded: &excluded, gate: None, draw: 0 };
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
                let mut facts = Facts { random: noise(n + 1), loads: &loads, excluded: &[1], ..facts(n) };
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
                let facts = facts(n);
                assert_eq!(zero.choose(&facts), one.choose(&facts), "{strategy:?}");
            }
        }
    }

    #[test]
    fn keys_alone_are_drawn_by_their_hash() {
        let is_sticky = |strategy, weights: &[u32]| Balancer::new(strategy, None, &servers(weights)).is_sticky();
        assert_eq!(Strategy::ALL.map(|strategy| is_sticky(strategy, &[1, 1])), [true, false, false, false]);
    }

    #[test]
    fn a_gate_of_open_doors_changes_nothing() {
        for strategy in Strategy::ALL {
            let balancer = Balancer::new(strategy, Some(1.25), &servers(&[1, 5, 2]));
            let open = gate(&[Eligibility::Open, Eligibility::Probe, Eligibility::Open]);
            for n in 0..500 {
                let gated = balancer.choose(&Facts { gate: Some(&open), ..facts(n) });
                assert_eq!(gated, balancer.choose(&facts(n)), "{strategy:?}");
            }
        }
    }

    #[test]
    fn never_chooses_a_shut_server_and_always_finds_the_last_one() {
        for strategy in Strategy::ALL {
            let balancer = Balancer::new(strategy, Some(1.25), &servers(&[1, 1000, 3, 1]));
            let (one_shut, one_open) =
                (gate(&OPEN_BUT_1), gate(&[Eligibility::Shut, Eligibility::Shut, Eligibility::Shut, share(1)]));
            for n in 0..2_000 {
                let loads = |server: usize| noise(n * 4 + server as u64) % 50;
                let facts = |gate| Facts { loads: &loads, gate: Some(gate), ..facts(n) };
                let chosen = balancer.choose(&facts(&one_shut));
                assert!(chosen.is_some_and(|server| server != 1), "{strategy:?}");
                let chosen = balancer.choose(&Facts { excluded: &[0, 2], ..facts(&one_shut) });
                assert_eq!(chosen, Some(3), "{strategy:?}");
                assert_eq!(balancer.choose(&facts(&one_open)), Some(3), "{strategy:?}");
                assert_eq!(balancer.choose(&Facts { excluded: &[3], ..facts(&one_open) }), None, "{strategy:?}");
            }
        }
    }

    const OPEN_BUT_1: [Eligibility; 4] = [Eligibility::Open, Eligibility::Shut, Eligibility::Open, Eligibility::Open];

    #[test]
    fn the_only_server_gets_all_requests_however_small_its_share_is_but_none_when_it_is_shut() {
        for strategy in Strategy::ALL {
            let balancer = Balancer::new(strategy, None, &servers(&[1]));
            let (starting, shut) = (gate(&[share(10)]), gate(&[Eligibility::Shut]));
            for n in 0..100 {
                assert_eq!(balancer.choose(&Facts { gate: Some(&starting), ..facts(n) }), Some(0), "{strategy:?}");
                assert_eq!(balancer.choose(&Facts { gate: Some(&shut), ..facts(n) }), None, "{strategy:?}");
            }
        }
    }

    #[test]
    fn servers_that_all_start_share_as_if_none_did() {
        for strategy in Strategy::ALL {
            let balancer = Balancer::new(strategy, None, &servers(&[1, 2, 3]));
            let starting = gate(&[share(20); 3]);
            for n in 0..1_000 {
                let gated = balancer.choose(&Facts { gate: Some(&starting), ..facts(n) });
                assert_eq!(gated, balancer.choose(&facts(n)), "{strategy:?}");
            }
        }
    }

    #[test]
    fn a_server_that_starts_slowly_gets_its_share_of_its_normal_part() {
        const REQUESTS: u64 = 40_000;
        for (strategy, percent) in Strategy::ALL.into_iter().flat_map(|strategy| [(strategy, 10), (strategy, 60)]) {
            let balancer = Balancer::new(strategy, Some(1.25), &servers(&[1, 2, 3, 2]));
            let starting = gate(&[Eligibility::Open, Eligibility::Open, share(percent), Eligibility::Open]);
            let count = |gate| {
                let choices = (0..REQUESTS).map(|n| balancer.choose(&Facts { gate, ..facts(n) }));
                choices.filter(|choice| *choice == Some(2)).count() as f64
            };
            let expected = count(None) * percent as f64 / 100.0;
            let chosen = count(Some(&starting));
            // Five standard deviations of a count of requests that come one by one.
            assert!((chosen - expected).abs() < 5.0 * expected.sqrt(), "{strategy:?}: {chosen} for {expected}");
        }
    }

    #[test]
    fn what_a_slow_server_does_not_get_the_others_share_by_weight() {
        const REQUESTS: u64 = 40_000;
        for strategy in Strategy::ALL {
            let balancer = Balancer::new(strategy, None, &servers(&[4, 4, 8, 4]));
            let starting = gate(&[Eligibility::Open, Eligibility::Open, Eligibility::Open, share(10)]);
            let mut counts = [0u64; 4];
            for n in 0..REQUESTS {
                counts[balancer.choose(&Facts { gate: Some(&starting), ..facts(n) }).unwrap()] += 1;
            }
            // A server's part of the ring strays by some percent.
            let expected = [9_800f64, 9_800.0, 19_600.0, 800.0];
            let is_near = |(count, expected): (&u64, f64)| (*count as f64 / expected - 1.0).abs() < 0.12;
            assert!(counts.iter().zip(expected).all(is_near), "{strategy:?}: {counts:?}");
        }
    }
}
