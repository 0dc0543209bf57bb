//! A ring of slots, one for each second of a window. Each counts its samples, and keeps a random part of them. It is
//! the store of [`LatencySamples`](crate::LatencySamples) and [`FailureRate`](crate::FailureRate), its callers.

use sluicegate_time::{Span, Tick};

const SECOND: Span = Span::from_secs(1);

/// Lanes of a slot; a power of two. The number of a client says in which lane its samples are. So a client that has
/// nearly all requests displaces the samples of an eighth of the others, and not of all.
const LANES: usize = 8;

/// The slots of a window and of the running second, with `N` samples at most in each lane.
#[derive(Clone, Debug)]
pub(crate) struct SlotRing<T, const N: usize> {
    slots: Box<[SecondSlot<T>]>,
}

/// The samples of one second.
#[derive(Clone, Debug)]
struct SecondSlot<T> {
    second: u64,
    lanes: [SlotLane<T>; LANES],
}

/// The samples of some clients.
#[derive(Clone, Debug)]
struct SlotLane<T> {
    count: u64,
    kept: Vec<T>,
}

/// The samples of one lane that were kept.
pub(crate) struct KeptSamples<'a, T> {
    /// The samples.
    pub(crate) samples: &'a [T],
    /// How many requests each of them stands for.
    pub(crate) weight: f64,
}

impl<T: Copy, const N: usize> SlotRing<T, N> {
    /// Makes one without samples. The window is rounded up to whole seconds, and is at least one and at most an hour.
    pub(crate) fn new(window: Span) -> Self {
        let seconds = window.as_secs_ceil().clamp(1, 3_600);
        let lane = || SlotLane { count: 0, kept: Vec::with_capacity(N) };
        let slot = || SecondSlot { second: 0, lanes: std::array::from_fn(|_| lane()) };
        Self { slots: (0..=seconds).map(|_| slot()).collect() }
    }

    /// Adds a sample of a client: each of a lane is kept with the same probability.
    pub(crate) fn add(&mut self, sample: T, client: u64, now: Tick, random: u64) {
        let Some(lane) = self.lane(client, now) else { return };
        lane.count += 1;
        if lane.kept.len() < N {
            lane.kept.push(sample);
            return;
        }
        let place = (u128::from(random) * u128::from(lane.count)) >> 64;
        if let Some(kept) = usize::try_from(place).ok().and_then(|place| lane.kept.get_mut(place)) {
            *kept = sample;
        }
    }

    /// The lanes of the last seconds of `window`, or of the ring's own if that is shorter. The running second is none
    /// of them: it is not whole, and a rate would be too low.
    pub(crate) fn kept(&self, window: Span, now: Tick) -> impl Iterator<Item = KeptSamples<'_, T>> {
        let second = second_of(now);
        let length = window.as_secs_ceil().clamp(1, self.slots.len() as u64 - 1);
        let slots = self.slots.iter().filter(move |slot| slot.second < second && second - slot.second <= length);
        let lanes = slots.flat_map(|slot| &slot.lanes).filter(|lane| !lane.kept.is_empty());
        lanes.map(|lane| KeptSamples { samples: &lane.kept, weight: lane.count as f64 / lane.kept.len() as f64 })
    }

    /// The lane of a client in the slot of `now`, without what it had in an earlier round. `None`: the slot has newer
    /// samples already.
    fn lane(&mut self, client: u64, now: Tick) -> Option<&mut SlotLane<T>> {
        let second = second_of(now);
        let place = usize::try_from(second % self.slots.len() as u64).ok()?;
        let slot = self.slots.get_mut(place)?;
        if slot.second < second {
            slot.second = second;
            for lane in &mut slot.lanes {
                lane.count = 0;
                lane.kept.clear();
            }
        }
        if slot.second > second {
            return None;
        }
        slot.lanes.get_mut(lane_of(client))
    }
}

impl<T: Copy + PartialEq, const N: usize> SlotRing<T, N> {
    /// Adds a sample unless the lane is full or has its equal.
    pub(crate) fn add_new(&mut self, sample: T, client: u64, now: Tick) {
        let Some(lane) = self.lane(client, now) else { return };
        if lane.kept.len() < N && !lane.kept.contains(&sample) {
            lane.count += 1;
            lane.kept.push(sample);
        }
    }
}

fn second_of(now: Tick) -> u64 {
    now.as_nanos() / SECOND.as_nanos()
}

/// The lane of a client. Numbers of clients may be small, or differ in few bits (Fibonacci hashing, Knuth).
fn lane_of(client: u64) -> usize {
    (client.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - LANES.ilog2())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Tick {
        Tick::ZERO + Span::from_secs(secs)
    }

    fn total(ring: &SlotRing<u64, 4>, now: Tick) -> f64 {
        ring.kept(Span::MAX, now).map(|kept| kept.weight * kept.samples.len() as f64).sum()
    }

    #[test]
    fn counts_exactly_and_forgets_after_the_window() {
        let mut ring = SlotRing::<u64, 4>::new(Span::from_secs(3));
        (0..10).for_each(|n| ring.add(n, 1, at(7), n << 60));
        (0..2).for_each(|n| ring.add(n, 1, at(8), 0));
        assert!((total(&ring, at(8)) - 10.0).abs() < 1e-9, "the running second does not count");
        assert!((total(&ring, at(9)) - 12.0).abs() < 1e-9);
        assert!((total(&ring, at(10)) - 12.0).abs() < 1e-9);
        assert!((total(&ring, at(11)) - 2.0).abs() < 1e-9);
        assert!(total(&ring, at(12)).abs() < 1e-9);
        ring.add(1, 1, at(11), 0);
        assert!((total(&ring, at(11)) - 2.0).abs() < 1e-9);
        // The slot of second 7 is that of second 11 now.
        ring.add(1, 1, at(7), 0);
        ring.add(1, 1, at(9), 0);
        assert!((total(&ring, at(12)) - 2.0).abs() < 1e-9, "a late sample does not count");
        assert_eq!(ring.kept(Span::from_secs(3), at(12)).count(), 2);
        assert_eq!(ring.kept(Span::from_secs(1), at(12)).count(), 1, "a part of the window");
    }

    #[test]
    fn keeps_each_sample_with_the_same_probability() {
        let mut kept = [0u32; 16];
        let mut random = 1u64;
        for round in 0..20_000 {
            let mut ring = SlotRing::<u64, 4>::new(Span::from_secs(1));
            for n in 0..16 {
                random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let bits = (random ^ (random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                ring.add(n, 1, at(round), (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb));
            }
            for n in ring.kept(Span::MAX, at(round + 1)).flat_map(|kept| kept.samples.iter()) {
                kept[usize::try_from(*n).unwrap()] += 1;
            }
        }
        // 5,000 each: 4 of 16.
        assert!(kept.iter().all(|count| (4_800..5_200).contains(count)), "{kept:?}");
    }

    #[test]
    fn a_ring_never_allocates_more_than_its_slots() {
        let mut ring = SlotRing::<u64, 4>::new(Span::from_secs(2));
        (0..100).for_each(|n| ring.add(n, n, at(n / 10), n));
        assert!(ring.slots.iter().flat_map(|slot| &slot.lanes).all(|lane| lane.kept.capacity() == 4));
    }

    #[test]
    fn a_client_displaces_the_samples_of_its_lane_only() {
        let mut ring = SlotRing::<u64, 4>::new(Span::from_secs(1));
        (0..16).for_each(|client| ring.add(client, client, at(0), 0));
        (0..100_000u64).for_each(|n| ring.add(0, 0, at(0), n << 46));
        let kept: Vec<u64> = ring.kept(Span::MAX, at(1)).flat_map(|kept| kept.samples.to_vec()).collect();
        let others = (1..16).filter(|client| lane_of(*client) != lane_of(0)).count();
        assert_eq!((kept.iter().filter(|client| **client != 0).count(), others), (13, 13));
    }

    #[test]
    fn small_numbers_of_clients_are_in_all_lanes() {
        let mut lanes = [0; LANES];
        (0..800).for_each(|client| lanes[lane_of(client)] += 1);
        assert!(lanes.iter().all(|count| (95..=105).contains(count)), "{lanes:?}");
    }
}
