//! The keys that come most often, in bounded memory.

/// Keys of a set. A key can be in one set alone, which its bits choose.
const WAYS: usize = 8;

/// The most frequent of any number of keys, by the Space-Saving algorithm (Metwally, Agrawal, El Abbadi, "Efficient
/// computation of frequent and top-k elements in data streams", 2005) in sets of eight: to count a key looks at one set,
/// whatever its size. A count is never too low. It is too high by [`excess`](Top::excess) at most, which is 0 until a set has
/// met more keys than it has places. The keys have to be hashes under a secret: else strangers could choose whom they meet.
///
/// A name is made only for a key that may be among the first: in a flood of keys that come once each, none is.
#[derive(Debug)]
pub struct TopKeys<N> {
    sets: Box<[[KeySlot<N>; WAYS]]>,
}

#[derive(Debug)]
struct KeySlot<N> {
    key: u64,
    /// 0: the place is free.
    count: u64,
    excess: u64,
    name: Option<N>,
}

/// One of the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Top<N> {
    /// The key.
    pub key: u64,
    /// How often it came, at most.
    pub count: u64,
    /// By how much `count` may be too high.
    pub excess: u64,
    /// Its name.
    pub name: N,
}

impl<N> TopKeys<N> {
    /// Room for 8 keys in each of `sets` (at least one) sets.
    pub fn new(sets: usize) -> Self {
        let free = || KeySlot { key: 0, count: 0, excess: 0, name: None };
        Self { sets: (0..sets.max(1)).map(|_| std::array::from_fn(|_| free())).collect() }
    }

    /// Counts a key once. `name` is asked where it may be one of the first and has none yet.
    #[inline]
    pub fn add(&mut self, key: u64, name: impl FnOnce() -> N) {
        // The high bits: limits choose a shard by the low ones.
        let at = ((u128::from(key) * self.sets.len() as u128) >> 64) as usize;
        let Some(set) = self.sets.get_mut(at) else { return };
        if let Some(entry) = set.iter_mut().find(|entry| entry.key == key && entry.count > 0) {
            entry.count = entry.count.saturating_add(1);
            if entry.name.is_none() && entry.is_heavy() {
                entry.name = Some(name());
            }
            return;
        }
        let Some(least) = set.iter_mut().min_by_key(|entry| entry.count) else { return };
        *least = KeySlot { key, count: least.count.saturating_add(1), excess: least.count, name: None };
        if least.is_heavy() {
            least.name = Some(name());
        }
    }

    /// The first `most` of those that have a name, the most frequent first.
    pub fn top(&self, most: usize) -> Vec<Top<&N>> {
        let of = |entry: &'_ KeySlot<N>| (entry.key, entry.count, entry.excess);
        let named = self.sets.iter().flatten().filter_map(|entry| Some((of(entry), entry.name.as_ref()?)));
        let mut top: Vec<_> = named.map(|((key, count, excess), name)| Top { key, count, excess, name }).collect();
        top.sort_by_key(|top| (std::cmp::Reverse(top.count - top.excess), top.key));
        top.truncate(most);
        top
    }

    /// The count of a key, and by how much it may be too high.
    pub fn count_of(&self, key: u64) -> Option<(u64, u64)> {
        let entry = self.sets.iter().flatten().find(|entry| entry.key == key && entry.count > 0)?;
        Some((entry.count, entry.excess))
    }
}

impl<N> KeySlot<N> {
    /// Whether a good part of its count is its own.
    fn is_heavy(&self) -> bool {
        self.count - self.excess > self.excess / 8
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// A bijection of 64 bits (`SplitMix64`): as a hash under a secret would spread them.
    fn spread(key: u64) -> u64 {
        let mut bits = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ bits >> 31
    }

    #[test]
    fn few_keys_are_counted_exactly_and_in_order() {
        let mut keys = TopKeys::new(1);
        for (key, times) in [(1, 5), (2, 53_636), (3, 24)] {
            (0..times).for_each(|_| keys.add(key, || format!("k{key}")));
        }
        let top: Vec<_> = keys.top(2).into_iter().map(|top| (top.name.as_str(), top.count, top.excess)).collect();
        assert_eq!(top, [("k2", 53_636, 0), ("k3", 24, 0)]);
        assert_eq!((keys.count_of(1), keys.count_of(4)), (Some((5, 0)), None));
    }

    #[test]
    fn a_flood_of_keys_that_come_once_makes_hardly_a_name_and_hides_nobody() {
        let mut keys = TopKeys::new(16);
        let mut named = 0;
        for round in 0..100_000_u64 {
            keys.add(spread(round), || named += 1);
            if round % 20 == 0 {
                keys.add(spread(u64::MAX), || ());
            }
        }
        // Until a place has stood for eight keys that came once.
        assert!(named <= 8 * 16 * WAYS, "{named}");
        let first = &keys.top(1)[0];
        assert_eq!(first.key, spread(u64::MAX));
        assert!(first.count >= 5_000 && first.count - first.excess <= 5_000, "{first:?}");
    }

    proptest! {
        #[test]
        fn a_count_is_never_too_low_and_too_high_by_its_excess_at_most(
            stream in prop::collection::vec(0u64..60, 0..2_000),
            sets in 1usize..5,
        ) {
            let mut keys = TopKeys::new(sets);
            let mut exact: HashMap<u64, u64> = HashMap::new();
            for key in stream {
                keys.add(spread(key), || ());
                *exact.entry(spread(key)).or_default() += 1;
            }
            for (key, times) in exact {
                if let Some((count, excess)) = keys.count_of(key) {
                    prop_assert!(count >= times && count - excess <= times, "{count} {excess} {times}");
                }
            }
        }
    }
}
