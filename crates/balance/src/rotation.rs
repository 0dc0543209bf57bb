//! Smooth weighted round robin (nginx, 2012): each turn every server gains its weight, the one that has most is chosen
//! and pays the sum. Weights 5, 1, 1 give `a a b a c a a`, not `a a a a a b c`.
//!
//! The order repeats after the sum of the weights, so it is computed once and a turn is an index: workers need not
//! share its state.

use super::{Facts, Server, weight_of};

/// Turns until the order repeats. Weights whose sum (divided by what they have in common) is above this are rounded to
/// shares of it, each at least one turn.
const MAX_TURNS: u64 = 1 << 14;

#[derive(Clone, Debug)]
pub(super) struct Rotation {
    order: Vec<u32>,
}

impl Rotation {
    pub(super) fn new(servers: &[Server]) -> Self {
        let weights: Vec<u64> = servers.iter().map(weight_of).collect();
        let common = weights.iter().copied().fold(0, greatest_common_divisor).max(1);
        let total = weights.iter().sum::<u64>() / common;
        let shares: Vec<u64> = weights
            .iter()
            .map(|weight| weight / common)
            .map(|weight| if total <= MAX_TURNS { weight } else { (weight * MAX_TURNS / total).max(1) })
            .collect();
        Self { order: smooth_order(&shares) }
    }

    /// O(1) unless servers are excluded or shut.
    pub(super) fn choose(&self, facts: &Facts<'_>) -> Option<usize> {
        let turns = self.order.len() as u64;
        let turn = facts.turn.checked_rem(turns)?;
        let home = self.order[turn as usize] as usize;
        if facts.admits(home) {
            return Some(home);
        }
        // Another place to look on from in each round, so that the turns of a server that is down are spread over the
        // others and do not all fall to the one after it.
        let skip = (facts.turn / turns) % (turns - 1).max(1);
        let mut others = (0..turns - 1).map(|n| self.order[((turn + 1 + (skip + n) % (turns - 1)) % turns) as usize]);
        others.find(|server| facts.admits(*server as usize)).map(|server| server as usize)
    }
}

fn smooth_order(shares: &[u64]) -> Vec<u32> {
    let total: u64 = shares.iter().sum();
    let mut credit = vec![0i64; shares.len()];
    let mut order = Vec::with_capacity(total as usize);
    for _ in 0..total {
        let mut best = 0;
        for (server, share) in shares.iter().enumerate() {
            credit[server] += share.cast_signed();
            if credit[server] > credit[best] {
                best = server;
            }
        }
        credit[best] -= total.cast_signed();
        order.push(best as u32);
    }
    order
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::servers;
    use super::*;

    fn pick(rotation: &Rotation, turn: u64, excluded: &[usize]) -> Option<usize> {
        rotation.choose(&Facts { hash: 0, turn, random: 0, loads: &|_| 0, excluded, gate: None, draw: 0 })
    }

    fn counts(weights: &[u32], turns: u64, excluded: &[usize]) -> Vec<u64> {
        let rotation = Rotation::new(&servers(weights));
        let mut counts = vec![0; weights.len()];
        for turn in 0..turns {
            counts[pick(&rotation, turn, excluded).unwrap()] += 1;
        }
        counts
    }

    #[test]
    fn a_heavy_server_has_its_turns_spread_out() {
        let rotation = Rotation::new(&servers(&[5, 1, 1]));
        let order: Vec<_> = (0..8).filter_map(|turn| pick(&rotation, turn, &[])).collect();
        assert_eq!(order, [0, 0, 1, 0, 2, 0, 0, 0]);
    }

    #[test]
    fn what_weights_have_in_common_does_not_lengthen_the_order() {
        assert_eq!(Rotation::new(&servers(&[500, 100, 100])).order, Rotation::new(&servers(&[5, 1, 1])).order);
    }

    #[test]
    fn the_order_is_bounded_and_leaves_no_server_out() {
        let rotation = Rotation::new(&servers(&[u32::MAX, u32::MAX - 1, 1]));
        assert!(rotation.order.len() <= (1 << 14) + 3);
        assert!(rotation.order.contains(&2));
    }

    #[test]
    fn the_turns_of_a_server_that_is_down_are_spread_over_the_others() {
        assert_eq!(counts(&[1, 1, 1], 600, &[0]), [0, 300, 300]);
        let counts = counts(&[1, 1, 1, 1, 1], 2_000, &[2]);
        assert_eq!(counts, [500, 500, 0, 500, 500]);
    }

    proptest! {
        #[test]
        fn each_round_gives_every_server_its_weight(weights in prop::collection::vec(1u32..30, 1..8)) {
            let round = weights.iter().map(|w| u64::from(*w)).sum::<u64>();
            let expected: Vec<_> = weights.iter().map(|w| u64::from(*w) * 3).collect();
            prop_assert_eq!(counts(&weights, round * 3, &[]), expected);
        }
    }
}
