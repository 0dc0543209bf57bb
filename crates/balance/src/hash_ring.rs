//! Consistent hashing (Karger et al. 1997) with virtual nodes by weight, as in ketama, and with bounded loads
//! (Mirrokni, Thorup and Zadimoghaddam 2016).
//!
//! A server stands on the ring at the hashes of its name and the numbers 0, 1, 2 ...: as many as its weight times
//! [`POINTS_PER_WEIGHT`]. So its places depend on its name and weight alone, never on the list it is in, and taking a
//! server away moves only the keys it had. A key belongs to the first point at or after its hash; while that server is
//! at its cap or not admitted, to the next one clockwise that is neither.

use super::hash::xxh64;
use super::{Facts, Server, is_less_loaded, weight_of};

/// A server's share of the keys strays by about 1 / sqrt(points): 4.4% at weight 1.
const POINTS_PER_WEIGHT: u64 = 512;

/// Points in all: 6 MiB. A total weight above 1024 would need more; then every server keeps only its first half of
/// points, or quarter and so on, at least one. The keys of the dropped points move when that begins; weights above it
/// gain nothing, so let them have a small common measure.
const MAX_POINTS: u64 = 1 << 19;

/// A server with fewer requests in flight than this is never at its cap: among so few, the mean is noise.
const NEVER_CAPPED_BELOW: u64 = 8;

/// Points to walk past full servers before looking for the least loaded one instead. Only a server of a tiny share
/// that alone has room is not met in so many.
const MAX_WALK: usize = 256;

/// Points to walk past servers that are not admitted before looking for the key's server by name instead. Of servers of
/// equal weights the walk meets one of a thousand in so many.
const MAX_SEARCH: usize = 1 << 13;

/// The bound in millionths, so that caps are exact.
const BOUND_SCALE: f64 = 1e6;

#[derive(Clone, Debug)]
pub(super) struct HashRing {
    /// Points in ascending order, and whose each one is.
    points: Vec<u64>,
    owners: Vec<u32>,
    weights: Vec<u64>,
    names: Vec<u64>,
    /// `None`: no bound on loads.
    bound_millionths: Option<u64>,
}

impl HashRing {
    pub(super) fn new(bound: Option<f64>, servers: &[Server]) -> Self {
        let weights: Vec<u64> = servers.iter().map(weight_of).collect();
        let halvings = halvings(weights.iter().sum());
        let mut ring: Vec<(u64, u32)> = Vec::new();
        let names: Vec<u64> = servers.iter().map(|server| xxh64(server.name.as_bytes(), 0)).collect();
        for (owner, name) in names.iter().enumerate() {
            let points = ((weights[owner] * POINTS_PER_WEIGHT) >> halvings).max(1);
            ring.extend((0..points).map(|n| (xxh64(&n.to_le_bytes(), *name), owner as u32)));
        }
        // Two points at one place (1 in 10^8 rings) are ordered by name: never by position in the list.
        ring.sort_unstable_by(|a, b| {
            a.0.cmp(&b.0).then_with(|| servers[a.1 as usize].name.cmp(&servers[b.1 as usize].name))
        });
        let (points, owners) = ring.into_iter().unzip();
        let bound_millionths = bound.map(|bound| (bound.max(1.0) * BOUND_SCALE).round() as u64);
        Self { points, owners, weights, names, bound_millionths }
    }

    /// O(log points) while the key's server has room; beyond that the caps cost one look at each server's load, and
    /// servers that are not admitted some steps each, for a server is met every (all weights / admitted weights) points.
    pub(super) fn choose(&self, facts: &Facts<'_>) -> Option<usize> {
        let first = self.points.partition_point(|point| *point < facts.hash);
        let mut caps = None;
        let (mut full, mut shut) = (0, 0);
        for step in 0..self.points.len() {
            let position = first + step;
            let position = if position >= self.points.len() { position - self.points.len() } else { position };
            let server = self.owners[position] as usize;
            if !facts.admits(server) {
                shut += 1;
                // Perhaps nobody is: better to know now than to walk on.
                let is_lost = shut == MAX_WALK && !self.admits_somebody(facts);
                if is_lost || shut == MAX_SEARCH {
                    break;
                }
            } else if self.has_room(server, facts, &mut caps) {
                return Some(server);
            } else {
                full += 1;
                if full == MAX_WALK {
                    break;
                }
            }
        }
        if full == 0 { self.nearest_by_name(facts) } else { self.least_loaded(facts) }
    }

    fn admits_somebody(&self, facts: &Facts<'_>) -> bool {
        (0..self.weights.len()).any(|server| facts.admits(server))
    }

    /// Rendezvous hashing among the admitted servers, without weights, for a key near which none of them stands. Like
    /// the ring it moves no key but those of a server that comes or goes.
    fn nearest_by_name(&self, facts: &Facts<'_>) -> Option<usize> {
        let mut caps = None;
        let admitted = (0..self.names.len()).filter(|server| facts.admits(*server));
        let with_room = admitted.filter(|server| self.has_room(*server, facts, &mut caps));
        let nearest = with_room.max_by_key(|server| xxh64(&facts.hash.to_le_bytes(), self.names[*server]));
        nearest.or_else(|| self.least_loaded(facts))
    }

    fn has_room(&self, server: usize, facts: &Facts<'_>, caps: &mut Option<Caps>) -> bool {
        let Some(bound_millionths) = self.bound_millionths else {
            return true;
        };
        let load = facts.load(server);
        if load < NEVER_CAPPED_BELOW {
            return true;
        }
        let caps = caps.get_or_insert_with(|| Caps::new(bound_millionths, &self.weights, facts));
        load < caps.of(self.weights[server])
    }

    fn least_loaded(&self, facts: &Facts<'_>) -> Option<usize> {
        let loads = (0..self.weights.len()).filter(|server| facts.admits(*server));
        let loads = loads.map(|server| (server, (facts.load(server), self.weights[server])));
        loads.reduce(|least, next| if is_less_loaded(next.1, least.1) { next } else { least }).map(|least| least.0)
    }
}

/// The common part of the caps of one choice. They are taken over the servers that may be chosen: the cap of the last
/// one left is above its load, and always one of them is below its cap.
struct Caps {
    /// Bound times (requests in flight + 1), in millionths.
    load_millionths: u128,
    weight: u128,
}

impl Caps {
    fn new(bound_millionths: u64, weights: &[u64], facts: &Facts<'_>) -> Self {
        let (mut load, mut total) = (1u64, 0u64);
        for (server, weight) in weights.iter().enumerate().filter(|(server, _)| facts.admits(*server)) {
            load = load.saturating_add(facts.load(server));
            total += weight;
        }
        Self {
            load_millionths: u128::from(load).saturating_mul(u128::from(bound_millionths)),
            weight: u128::from(total).saturating_mul(BOUND_SCALE as u128),
        }
    }

    /// How many requests a server of this weight may have in flight.
    fn of(&self, weight: u64) -> u64 {
        let cap = self.load_millionths.saturating_mul(u128::from(weight)).div_ceil(self.weight.max(1));
        u64::try_from(cap).unwrap_or(u64::MAX)
    }
}

/// How often the number of points is to be halved for the ring to stay within [`MAX_POINTS`].
fn halvings(total_weight: u64) -> u32 {
    let points = total_weight.saturating_mul(POINTS_PER_WEIGHT);
    points.div_ceil(MAX_POINTS).next_power_of_two().trailing_zeros()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::gate::Eligibility;
    use super::super::tests::{gate, noise, servers};
    use super::*;

    const KEYS: u64 = 20_000;

    fn ring(bound: Option<f64>, servers: &[Server]) -> HashRing {
        HashRing::new(bound, servers)
    }

    fn pick(ring: &HashRing, hash: u64, loads: &[u64], excluded: &[usize]) -> usize {
        let loads = |server: usize| loads[server];
        let facts = Facts { hash, turn: 0, random: 0, loads: &loads, excluded, gate: None, draw: hash };
        ring.choose(&facts).unwrap()
    }

    /// The server of each key behind a gate.
    fn gated(ring: &HashRing, entries: &[Eligibility], keys: u64) -> Vec<usize> {
        let gate = gate(entries);
        let pick = |hash| {
            let facts = Facts { hash, turn: 0, random: 0, loads: &|_| 0, excluded: &[], gate: Some(&gate), draw: hash };
            ring.choose(&facts).unwrap()
        };
        (0..keys).map(|key| pick(noise(key))).collect()
    }

    /// The name of each key's server.
    fn placement(servers: &[Server]) -> Vec<String> {
        let (ring, idle) = (ring(Some(1.25), servers), vec![0; servers.len()]);
        (0..KEYS).map(|key| servers[pick(&ring, noise(key), &idle, &[])].name.clone()).collect()
    }

    fn shares(placement: &[String], servers: &[Server]) -> Vec<f64> {
        let count = |name: &String| placement.iter().filter(|owner| *owner == name).count();
        servers.iter().map(|server| count(&server.name) as f64 / KEYS as f64).collect()
    }

    #[test]
    fn a_ring_placed_once_stays_so() {
        let owners = placement(&servers(&[1, 2, 3]));
        let first: Vec<_> = owners[..12].iter().map(String::as_str).collect();
        assert_eq!(first, ["s2", "s2", "s2", "s2", "s2", "s1", "s1", "s1", "s2", "s2", "s1", "s1"]);
    }

    #[test]
    fn weights_are_respected_within_a_few_percent() {
        for weights in [vec![1; 3], vec![1; 10], vec![1, 2, 5], vec![100, 100, 300], vec![1000, 1000, 500]] {
            let servers = servers(&weights);
            let total = f64::from(weights.iter().sum::<u32>());
            for (share, weight) in shares(&placement(&servers), &servers).iter().zip(&weights) {
                let expected = f64::from(*weight) / total;
                assert!((share / expected - 1.0).abs() < 0.11, "{weights:?}: {share} for {expected}");
            }
        }
    }

    #[test]
    fn the_number_of_points_is_bounded() {
        assert_eq!(ring(None, &servers(&[1, 3])).points.len(), 4 * 512);
        assert_eq!(ring(None, &servers(&[512, 512])).points.len(), 1 << 19);
        assert_eq!(ring(None, &servers(&[512, 513])).points.len(), 1025 * 256);
        assert!(ring(None, &servers(&[u32::MAX, u32::MAX, 1])).points.len() <= 1 << 19);
        assert!(ring(None, &servers(&[u32::MAX, 1])).owners.contains(&1));
    }

    #[test]
    fn never_bites_below_eight_in_flight() {
        let servers = servers(&[1; 10]);
        let ring = ring(Some(1.25), &servers);
        let mut loads = [0; 10];
        let home = pick(&ring, noise(1), &loads, &[]);
        loads[home] = 7;
        assert_eq!(pick(&ring, noise(1), &loads, &[]), home);
        loads[home] = 8;
        assert_ne!(pick(&ring, noise(1), &loads, &[]), home);
    }

    #[test]
    fn the_cap_is_the_bound_times_the_mean_by_weight_rounded_up() {
        // 60 in flight, with this one 61: 1.25 x 61 x 1/3 is 25.4 and 1.25 x 61 x 2/3 is 50.8.
        let ring = ring(Some(1.25), &servers(&[1, 2]));
        for (loads, expected) in [([25, 35], [0, 1]), ([26, 34], [1, 1]), ([10, 50], [0, 1]), ([9, 51], [0, 0])] {
            let picks = |home: usize| {
                let hash = (0..100).map(noise).find(|hash| pick(&ring, *hash, &[0, 0], &[]) == home);
                pick(&ring, hash.unwrap(), &loads, &[])
            };
            assert_eq!([picks(0), picks(1)], expected, "{loads:?}");
        }
    }

    #[test]
    fn without_a_bound_a_hot_key_stays() {
        let ring = ring(None, &servers(&[1; 3]));
        let home = pick(&ring, noise(5), &[0; 3], &[]);
        assert_eq!(pick(&ring, noise(5), &[u64::MAX; 3], &[]), home);
    }

    #[test]
    fn when_only_a_tiny_server_has_room_it_is_found() {
        let ring = ring(Some(1.0), &servers(&[1000, 1000, 1]));
        for key in 0..1_000 {
            assert_eq!(pick(&ring, noise(key), &[50_000, 50_000, 0], &[]), 2);
        }
    }

    #[test]
    fn the_last_server_left_is_never_at_its_cap() {
        let ring = ring(Some(1.25), &servers(&[1; 3]));
        assert_eq!(pick(&ring, noise(1), &[1_000, 0, 0], &[1, 2]), 0);
        assert_eq!(pick(&ring, noise(1), &[u64::MAX, 0, 0], &[1, 2]), 0);
    }

    #[test]
    fn caps_are_taken_over_the_servers_that_may_be_chosen() {
        // Of 40 in flight on two, each may have 26; on three each might have 18 only.
        let ring = ring(Some(1.25), &servers(&[1; 3]));
        for key in 0..1_000 {
            let home = pick(&ring, noise(key), &[0; 3], &[2]);
            assert_eq!(pick(&ring, noise(key), &[20, 20, 0], &[2]), home);
        }
    }

    #[test]
    fn a_key_belongs_to_the_first_point_at_or_after_it_and_after_the_last_to_the_first() {
        let ring = ring(None, &servers(&[1; 3]));
        let owner = |point: usize| ring.owners[point] as usize;
        for (point, hash) in ring.points.iter().enumerate() {
            assert_eq!(pick(&ring, *hash, &[0; 3], &[]), owner(point));
            let next = (point + 1) % ring.points.len();
            assert_eq!(pick(&ring, hash + 1, &[0; 3], &[]), owner(next));
        }
    }

    #[test]
    fn few_open_servers_among_many_keep_their_keys_and_share_them() {
        // Two of 1024: the walk finds one after 512 points in the mean. Two of a ten-thousandth: seldom.
        let mut tiny = vec![100_000; 10];
        tiny.extend([10, 10, 10]);
        for (weights, open) in [(vec![1; 1024], [3, 500, 900]), (tiny, [10, 11, 12])] {
            let ring = ring(Some(1.25), &servers(&weights));
            let entries = |open: &[usize]| -> Vec<Eligibility> {
                let entry = |server| if open.contains(&server) { Eligibility::Open } else { Eligibility::Shut };
                (0..weights.len()).map(entry).collect()
            };
            let (three, two) = (gated(&ring, &entries(&open), 500), gated(&ring, &entries(&open[..2]), 500));
            assert!(three.iter().zip(&two).all(|(three, two)| three == two || *three == open[2]));
            for server in open {
                let count = three.iter().filter(|owner| **owner == server).count();
                assert!((100..240).contains(&count), "{count} of 500 for one of three");
            }
        }
    }

    #[test]
    fn a_key_comes_to_a_starting_server_once_and_stays() {
        let ring = ring(Some(1.25), &servers(&[2, 1, 3, 1]));
        let placed = |share: u64| {
            let entry = if share == 10 { Eligibility::Open } else { Eligibility::Share(((share << 32) / 10) as u32) };
            gated(&ring, &[Eligibility::Open, Eligibility::Open, entry, Eligibility::Open], KEYS)
        };
        let all: Vec<_> = (1..=10).map(placed).collect();
        for (before, after) in all.iter().zip(&all[1..]) {
            let moved: Vec<_> = before.iter().zip(after).filter(|(before, after)| before != after).collect();
            assert!(moved.iter().all(|(_, after)| **after == 2), "only to it");
            // It has 3 of 7 parts, and comes to a tenth of them; a server's part strays by some percent.
            assert!((700..1_050).contains(&moved.len()), "{}", moved.len());
        }
    }

    fn weights() -> impl Strategy<Value = Vec<u32>> {
        prop::collection::vec(1u32..=8, 2..12)
    }

    /// All servers, the index of one, and the others.
    fn one_taken_away() -> impl Strategy<Value = (Vec<Server>, usize, Vec<Server>)> {
        (weights(), any::<prop::sample::Index>()).prop_map(|(weights, gone)| {
            let all = servers(&weights);
            let gone = gone.index(all.len());
            let mut rest = all.clone();
            rest.remove(gone);
            (all, gone, rest)
        })
    }

    fn shuffled() -> impl Strategy<Value = (Vec<Server>, Vec<Server>)> {
        let list = weights().prop_map(|weights| servers(&weights));
        list.prop_flat_map(|list| (Just(list.clone()), Just(list).prop_shuffle()))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

        #[test]
        fn taking_a_server_away_moves_its_keys_and_no_others((all, gone, rest) in one_taken_away()) {
            let (before, after) = (placement(&all), placement(&rest));
            let moved = before.iter().zip(&after).filter(|(before, after)| before != after).count();
            let had = before.iter().filter(|owner| **owner == all[gone].name).count();
            prop_assert_eq!(moved, had);
            // Five standard deviations: of where the points fall and of which keys there are.
            let weight = f64::from(all[gone].weight);
            let share = weight / all.iter().map(|server| f64::from(server.weight)).sum::<f64>();
            let deviation = (share * share / (512.0 * weight) + share / KEYS as f64).sqrt();
            prop_assert!((moved as f64 / KEYS as f64 - share).abs() < 5.0 * deviation, "{moved} moved for {share}");
        }

        #[test]
        fn adding_a_server_moves_keys_to_it_alone(weights in weights(), weight in 1u32..=8) {
            let before = servers(&weights);
            let mut after = before.clone();
            after.insert(0, Server { name: "new".into(), weight });
            let (old, new) = (placement(&before), placement(&after));
            prop_assert!(old.iter().zip(&new).all(|(old, new)| old == new || new == "new"));
            prop_assert!(new.iter().any(|owner| owner == "new"));
        }

        #[test]
        fn the_order_of_the_list_does_not_matter((list, shuffled) in shuffled()) {
            prop_assert_eq!(placement(&list), placement(&shuffled));
        }

        #[test]
        fn no_server_is_above_its_share_of_the_mean_by_more_than_the_bound(
            weights in weights(), seed: u64, hot in 1u64..200, in_flight in 200u64..2_000,
        ) {
            let servers = servers(&weights);
            let ring = ring(Some(1.25), &servers);
            let mut loads = vec![0u64; servers.len()];
            let mut busy = std::collections::VecDeque::new();
            let total: u64 = weights.iter().map(|w| u64::from(*w)).sum();
            for n in 0..in_flight * 3 {
                // Few keys: without the bound most of the load would lie on the servers of the hottest.
                let server = pick(&ring, noise(seed ^ (noise(n) % hot)), &loads, &[]);
                loads[server] += 1;
                busy.push_back(server);
                if busy.len() as u64 > in_flight {
                    loads[busy.pop_front().unwrap()] -= 1;
                }
                let cap = (5 * (in_flight + 1) * u64::from(weights[server])).div_ceil(4 * total).max(8);
                prop_assert!(loads[server] <= cap, "{loads:?} for weights {weights:?}");
            }
        }

        #[test]
        fn an_excluded_server_gives_its_keys_to_the_next_as_if_it_were_gone((all, gone, rest) in one_taken_away()) {
            let (ring, idle) = (ring(Some(1.25), &all), vec![0; all.len()]);
            for (key, expected) in (0..).zip(placement(&rest)).take(2_000) {
                prop_assert_eq!(&all[pick(&ring, noise(key), &idle, &[gone])].name, &expected);
            }
        }

        #[test]
        fn shutting_a_server_moves_its_keys_alone_and_all_come_back_when_it_opens(
            weights in weights(), shut in prop::collection::vec(any::<bool>(), 12), gone: prop::sample::Index,
        ) {
            let ring = ring(Some(1.25), &servers(&weights));
            let entry = |server: usize| if shut[server] { Eligibility::Shut } else { Eligibility::Open };
            let mut before: Vec<_> = (0..weights.len()).map(entry).collect();
            let gone = gone.index(weights.len());
            before[gone] = Eligibility::Open;
            before[(gone + 1) % weights.len()] = Eligibility::Open;
            let mut after = before.clone();
            after[gone] = Eligibility::Shut;
            let (old, new) = (gated(&ring, &before, 3_000), gated(&ring, &after, 3_000));
            prop_assert!(old.iter().zip(&new).all(|(old, new)| (old == new) == (*old != gone)));
            prop_assert_eq!(gated(&ring, &before, 3_000), old);
        }
    }
}
