//! A hierarchical timer wheel: Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (SOSP 1987), with the
//! occupancy bitmap per level that tokio's wheel has.
//!
//! Time is counted in grains of one granularity since the wheel's start. A grain number is eleven digits of six bits,
//! and an entry lies on the level of the highest digit in which its grain differs from the wheel's position, in the
//! slot that this digit names. So everything on a level below the highest digit that a sweep changes is due, however far
//! the sweep jumps, and no slot is looked at but the occupied ones.

use super::{Span, Tick};

/// Digits of six bits in a grain number of 64.
const LEVELS: usize = 11;
const DIGIT_BITS: u32 = 6;
const SLOTS: usize = 1 << DIGIT_BITS;
/// The list of what was due already when it was inserted, after the lists of all slots.
const DUE: usize = LEVELS * SLOTS;
const NIL: u32 = u32::MAX;

/// Entries that fire at their deadline, each in O(1) to insert, remove and refile.
///
/// It is no clock and starts nothing: its owner calls [`sweep`](Self::sweep) with the time. Entries keep their absolute
/// deadline, so none fires early, and none fires a whole granularity late. Removed memory is reused, never given
/// back: how many entries there may be is the caller's bound (2^32 - 2 is the wheel's own).
#[derive(Debug)]
pub struct Wheel<T> {
    start: Tick,
    granularity: u64,
    /// The grain that the last sweep reached. Every entry outside the due list has a later one.
    position: u64,
    occupied: [u64; LEVELS],
    /// First node of each slot's ring of nodes, and of the due list; `NIL` when empty.
    heads: Box<[u32]>,
    nodes: Vec<WheelNode<T>>,
    /// First of the chain of free nodes.
    free: u32,
    len: usize,
    inserted: u64,
}

/// Names one entry of a [`Wheel`] until that fires or is removed; afterwards it names nothing, ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    index: u32,
    generation: u64,
}

#[derive(Debug)]
struct WheelNode<T> {
    /// The number of the insertion that filled it: unlike a counter of reuses it never comes round again.
    generation: u64,
    deadline: Tick,
    next: u32,
    prev: u32,
    list: u16,
    /// `None` in a free node.
    value: Option<T>,
}

impl<T> Wheel<T> {
    /// An empty wheel that stands at `start`. A granularity of zero is one nanosecond.
    pub fn new(start: Tick, granularity: Span) -> Self {
        Self {
            start,
            granularity: granularity.as_nanos().max(1),
            position: 0,
            occupied: [0; LEVELS],
            heads: vec![NIL; DUE + 1].into_boxed_slice(),
            nodes: Vec::new(),
            free: NIL,
            len: 0,
            inserted: 0,
        }
    }

    /// Adds an entry. One whose deadline the last sweep has passed fires at the next sweep.
    ///
    /// # Panics
    /// With 2^32 - 1 entries in the wheel; the caller's own bound comes long before.
    pub fn insert(&mut self, deadline: Tick, value: T) -> Handle {
        self.inserted += 1;
        let generation = self.inserted;
        let node = WheelNode { generation, deadline, next: NIL, prev: NIL, list: 0, value: Some(value) };
        let index = if self.free == NIL {
            let index = self.nodes.len() as u32;
            assert!(self.nodes.len() < NIL as usize, "a timer wheel holds at most 2^32 - 1 entries");
            self.nodes.push(node);
            index
        } else {
            let index = self.free;
            self.free = self.nodes[index as usize].next;
            self.nodes[index as usize] = node;
            index
        };
        self.len += 1;
        self.link(index);
        Handle { index, generation }
    }

    /// Takes an entry out; `None` if it has fired or was removed.
    pub fn remove(&mut self, handle: Handle) -> Option<T> {
        if !self.holds(handle) {
            return None;
        }
        self.unlink(handle.index);
        self.release(handle.index)
    }

    /// Moves an entry to another deadline; `false` if it has fired or was removed.
    pub fn refile(&mut self, handle: Handle, deadline: Tick) -> bool {
        if !self.holds(handle) {
            return false;
        }
        let list = self.list_of(deadline);
        let node = &mut self.nodes[handle.index as usize];
        node.deadline = deadline;
        if usize::from(node.list) != list {
            self.unlink(handle.index);
            self.link(handle.index);
        }
        true
    }

    /// Every entry, in no order.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.nodes.iter().filter_map(|node| node.value.as_ref())
    }

    /// Moves the wheel to `now` and appends to `fired` what is due by then, slot by slot; the order within a slot is
    /// not promised. Costs one look at each occupied slot that was passed, none at an empty one.
    ///
    /// A `now` before that of an earlier sweep does nothing.
    pub fn sweep(&mut self, now: Tick, fired: &mut Vec<T>) {
        if now < self.start_of(self.position) {
            return;
        }
        let target = self.grain_of(now);
        self.fire_list(DUE, fired);
        let changed = self.position ^ target;
        if changed == 0 {
            return;
        }
        self.position = target;
        let top = level_of(changed);
        for level in 0..top {
            self.fire_slots(level, self.occupied[level], fired);
        }
        let digit = digit_of(target, top);
        let passed = self.occupied[top] & ((1u64 << digit) - 1);
        self.fire_slots(top, passed, fired);
        if self.occupied[top] & (1 << digit) != 0 {
            self.split_list(top * SLOTS + digit, fired);
        }
    }

    /// A time before which no entry fires, for idling: at most one granularity after the earliest deadline, and earlier
    /// when that is far off. `None` when the wheel is empty.
    pub fn next_due(&self) -> Option<Tick> {
        if self.heads[DUE] != NIL {
            return Some(self.start_of(self.position));
        }
        let level = self.occupied.iter().position(|slots| *slots != 0)?;
        let digit = u64::from(self.occupied[level].trailing_zeros());
        let shift = DIGIT_BITS * level as u32;
        // The position with this digit replaced and the digits below it zero.
        let above = self.position.checked_shr(shift + DIGIT_BITS).map_or(0, |high| high << (shift + DIGIT_BITS));
        Some(self.start_of(above | digit << shift))
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn holds(&self, handle: Handle) -> bool {
        self.nodes
            .get(handle.index as usize)
            .is_some_and(|node| node.value.is_some() && node.generation == handle.generation)
    }

    /// When a grain begins.
    fn start_of(&self, grain: u64) -> Tick {
        self.start + Span::from_nanos(grain.saturating_mul(self.granularity))
    }

    /// The grain that `now` has reached. The end of time reaches the last, cut short as it may be.
    fn grain_of(&self, now: Tick) -> u64 {
        let elapsed = now.since(self.start).as_nanos();
        if now == Tick::MAX { elapsed.div_ceil(self.granularity) } else { elapsed / self.granularity }
    }

    /// Where an entry of this deadline belongs. Rounding is here and nowhere else: up, to the first grain that begins
    /// no earlier than the deadline.
    fn list_of(&self, deadline: Tick) -> usize {
        let grain = deadline.since(self.start).as_nanos().div_ceil(self.granularity);
        if grain <= self.position {
            return DUE;
        }
        let level = level_of(grain ^ self.position);
        level * SLOTS + digit_of(grain, level)
    }

    /// Appends a node to the list of its deadline. A list is a ring, so that the head's `prev` is its tail.
    fn link(&mut self, index: u32) {
        let list = self.list_of(self.nodes[index as usize].deadline);
        let head = self.heads[list];
        let (prev, next) = if head == NIL { (index, index) } else { (self.nodes[head as usize].prev, head) };
        let node = &mut self.nodes[index as usize];
        node.list = list as u16;
        node.prev = prev;
        node.next = next;
        self.nodes[prev as usize].next = index;
        self.nodes[next as usize].prev = index;
        if head == NIL {
            self.heads[list] = index;
            if list != DUE {
                self.occupied[list / SLOTS] |= 1 << (list % SLOTS);
            }
        }
    }

    fn unlink(&mut self, index: u32) {
        let WheelNode { next, prev, list, .. } = self.nodes[index as usize];
        let list = usize::from(list);
        if next == index {
            self.take_list(list);
            return;
        }
        self.nodes[prev as usize].next = next;
        self.nodes[next as usize].prev = prev;
        if self.heads[list] == index {
            self.heads[list] = next;
        }
    }

    /// Empties a list and returns its first node. The nodes still form their ring.
    fn take_list(&mut self, list: usize) -> u32 {
        if list != DUE {
            self.occupied[list / SLOTS] &= !(1 << (list % SLOTS));
        }
        std::mem::replace(&mut self.heads[list], NIL)
    }

    fn release(&mut self, index: u32) -> Option<T> {
        let node = &mut self.nodes[index as usize];
        node.next = self.free;
        self.free = index;
        self.len -= 1;
        node.value.take()
    }

    fn fire_slots(&mut self, level: usize, mut slots: u64, fired: &mut Vec<T>) {
        while slots != 0 {
            self.fire_list(level * SLOTS + slots.trailing_zeros() as usize, fired);
            slots &= slots - 1;
        }
    }

    fn fire_list(&mut self, list: usize, fired: &mut Vec<T>) {
        let head = self.take_list(list);
        let mut index = head;
        while index != NIL {
            let next = self.nodes[index as usize].next;
            fired.extend(self.release(index));
            index = if next == head { NIL } else { next };
        }
    }

    /// Fires what is due in the slot that the position has just entered and files the rest on lower levels.
    fn split_list(&mut self, list: usize, fired: &mut Vec<T>) {
        let head = self.take_list(list);
        let mut index = head;
        while index != NIL {
            let WheelNode { next, deadline, .. } = self.nodes[index as usize];
            if self.list_of(deadline) == DUE {
                fired.extend(self.release(index));
            } else {
                self.link(index);
            }
            index = if next == head { NIL } else { next };
        }
    }
}

/// The level of the highest digit that is set in `changed`, which is not zero.
fn level_of(changed: u64) -> usize {
    (changed.ilog2() / DIGIT_BITS) as usize
}

fn digit_of(grain: u64, level: usize) -> usize {
    (grain >> (DIGIT_BITS * level as u32)) as usize % SLOTS
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn at(nanos: u64) -> Tick {
        Tick::from_nanos(nanos)
    }

    fn wheel<T>(start: u64, granularity: u64) -> Wheel<T> {
        Wheel::new(at(start), Span::from_nanos(granularity))
    }

    fn swept<T>(wheel: &mut Wheel<T>, now: u64) -> Vec<T> {
        let mut fired = Vec::new();
        wheel.sweep(at(now), &mut fired);
        fired
    }

    #[test]
    fn fires_at_the_deadline_and_not_before() {
        let mut wheel = wheel(1_000, 10);
        wheel.insert(at(1_100), "a");
        wheel.insert(at(1_101), "b");
        assert_eq!(swept(&mut wheel, 1_099), [""; 0]);
        assert_eq!(swept(&mut wheel, 1_100), ["a"]);
        assert_eq!(swept(&mut wheel, 1_109), [""; 0]);
        assert_eq!(swept(&mut wheel, 1_110), ["b"]);
        assert!(wheel.is_empty());
    }

    #[test]
    fn a_deadline_in_the_past_fires_at_the_next_sweep() {
        let mut wheel = wheel(1_000, 10);
        wheel.insert(at(0), 1);
        assert_eq!(swept(&mut wheel, 1_000), [1]);
        swept(&mut wheel, 5_000);
        wheel.insert(at(4_000), 2);
        assert_eq!(wheel.next_due(), Some(at(5_000)));
        assert_eq!(swept(&mut wheel, 5_000), [2]);
    }

    #[test]
    fn time_that_runs_backwards_does_nothing() {
        let mut wheel = wheel(0, 10);
        swept(&mut wheel, 1_000);
        wheel.insert(at(900), 1);
        wheel.insert(at(1_050), 2);
        assert_eq!(swept(&mut wheel, 899), [0; 0]);
        assert_eq!(swept(&mut wheel, 1_050), [1, 2]);
    }

    #[test]
    fn one_jump_fires_everything_passed_in_the_order_of_slots() {
        let mut wheel = wheel(0, 1);
        let deadlines = [u64::MAX - 1, 1 << 40, 70_000, 4_096, 64, 63, 1];
        for deadline in deadlines {
            wheel.insert(at(deadline), deadline);
        }
        assert_eq!(swept(&mut wheel, 1 << 41), [1, 63, 64, 4_096, 70_000, 1 << 40]);
        assert_eq!(wheel.len(), 1);
    }

    #[test]
    fn the_end_of_time_can_be_a_deadline() {
        for granularity in [1, 7, 1_000_000] {
            let mut wheel = wheel(12_345, granularity);
            wheel.insert(Tick::MAX, ());
            assert!(swept(&mut wheel, u64::MAX - 2 * granularity).is_empty());
            assert_eq!(swept(&mut wheel, u64::MAX).len(), 1);
            wheel.insert(Tick::MAX, ());
            assert_eq!(swept(&mut wheel, u64::MAX).len(), 1);
        }
    }

    #[test]
    fn a_stale_handle_reaches_nothing() {
        let mut wheel = wheel(0, 1);
        let old = wheel.insert(at(10), "old");
        assert_eq!(wheel.remove(old), Some("old"));
        assert_eq!(wheel.remove(old), None);
        assert!(!wheel.refile(old, at(1)));
        let new = wheel.insert(at(10), "new");
        assert_eq!(old.index, new.index);
        assert_eq!(wheel.remove(old), None);
        assert_eq!(swept(&mut wheel, 10), ["new"]);
        assert_eq!(wheel.remove(new), None);
    }

    #[test]
    fn memory_is_reused_after_removal_and_firing() {
        let mut wheel = wheel(0, 1);
        for round in 0..1_000u64 {
            let handles: Vec<_> = (0..16).map(|i| wheel.insert(at(round * 100 + i), i)).collect();
            for handle in &handles[..8] {
                wheel.remove(*handle);
            }
            assert_eq!(swept(&mut wheel, round * 100 + 99).len(), 8);
        }
        assert_eq!(wheel.nodes.len(), 16);
    }

    #[test]
    fn next_due_is_exact_for_what_is_near() {
        let mut wheel = wheel(1_000, 10);
        swept(&mut wheel, 5_000);
        wheel.insert(at(5_021), ());
        wheel.insert(at(90_000), ());
        assert_eq!(wheel.next_due(), Some(at(5_030)));
    }

    #[test]
    fn next_due_leads_to_the_first_deadline_in_few_steps() {
        let mut wheel = wheel(0, 1);
        assert_eq!(wheel.next_due(), None);
        wheel.insert(at(1 << 50), ());
        let mut steps = 0;
        loop {
            let due = wheel.next_due().unwrap();
            assert!(due <= at(1 << 50));
            steps += 1;
            if !swept(&mut wheel, due.as_nanos()).is_empty() {
                break;
            }
        }
        assert!(steps <= LEVELS);
    }

    /// Entries by number, with their deadlines; the rule of firing is written out in 128 bits.
    struct Oracle {
        start: u64,
        granularity: u64,
        position: u128,
        entries: BTreeMap<usize, u64>,
    }

    impl Oracle {
        /// The first grain's beginning that is no earlier than the deadline; the last grain ends with time.
        fn fires_at(&self, deadline: u64) -> u128 {
            let (start, granularity) = (u128::from(self.start), u128::from(self.granularity));
            let since = u128::from(deadline).saturating_sub(start);
            (start + since.div_ceil(granularity) * granularity).min(u128::from(u64::MAX))
        }

        fn sweep(&mut self, now: u64) -> Vec<usize> {
            if u128::from(now) < self.position {
                return Vec::new();
            }
            let elapsed = u128::from(now - self.start);
            self.position = if now == u64::MAX {
                u128::from(now)
            } else {
                u128::from(now) - elapsed % u128::from(self.granularity)
            };
            let due = self.entries.iter().filter(|(_, d)| self.fires_at(**d) <= u128::from(now));
            let due: Vec<_> = due.map(|(id, _)| *id).collect();
            for id in &due {
                self.entries.remove(id);
            }
            due
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64),
        Remove(prop::sample::Index),
        Refile(prop::sample::Index, u64),
        Sweep(u64),
        SweepNextDue,
    }

    /// Any size of distance: as many around 2^5 as around 2^60.
    fn distance() -> impl Strategy<Value = u64> {
        (0u32..=64, any::<u64>()).prop_map(|(bits, noise)| noise.checked_shr(64 - bits).unwrap_or(0))
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => distance().prop_map(Step::Insert),
            1 => any::<prop::sample::Index>().prop_map(Step::Remove),
            2 => (any::<prop::sample::Index>(), distance()).prop_map(|(i, d)| Step::Refile(i, d)),
            2 => distance().prop_map(Step::Sweep),
            1 => Just(Step::SweepNextDue),
        ]
    }

    fn check(start: u64, granularity: u64, steps: Vec<Step>) -> Result<(), TestCaseError> {
        let mut wheel = wheel(start, granularity);
        let mut oracle = Oracle { start, granularity, position: start.into(), entries: BTreeMap::new() };
        let mut handles: Vec<Handle> = Vec::new();
        let mut now = start;
        for step in steps {
            match step {
                Step::Insert(distance) => {
                    // A quarter of the distance may lie in the past.
                    let deadline = (now - now.min(distance / 4)).saturating_add(distance);
                    oracle.entries.insert(handles.len(), deadline);
                    handles.push(wheel.insert(at(deadline), handles.len()));
                }
                Step::Remove(which) if !handles.is_empty() => {
                    let id = which.index(handles.len());
                    let expected = oracle.entries.remove(&id).map(|_| id);
                    prop_assert_eq!(wheel.remove(handles[id]), expected);
                }
                Step::Refile(which, distance) if !handles.is_empty() => {
                    let id = which.index(handles.len());
                    let deadline = now.saturating_add(distance);
                    let expected = oracle.entries.get_mut(&id).map(|d| *d = deadline).is_some();
                    prop_assert_eq!(wheel.refile(handles[id], at(deadline)), expected);
                }
                Step::Remove(_) | Step::Refile(..) => {}
                Step::Sweep(distance) => {
                    now = now.saturating_add(distance);
                    let mut fired = swept(&mut wheel, now);
                    fired.sort_unstable();
                    prop_assert_eq!(fired, oracle.sweep(now));
                }
                Step::SweepNextDue => {
                    let Some(due) = wheel.next_due() else { continue };
                    now = now.max(due.as_nanos());
                    let mut fired = swept(&mut wheel, now);
                    fired.sort_unstable();
                    prop_assert_eq!(fired, oracle.sweep(now));
                }
            }
            let earliest = oracle.entries.values().map(|d| oracle.fires_at(*d)).min();
            prop_assert_eq!(wheel.next_due().is_some(), earliest.is_some());
            if let (Some(due), Some(earliest)) = (wheel.next_due(), earliest) {
                let due = u128::from(due.as_nanos());
                prop_assert!(due <= earliest.max(oracle.position));
                // Sleeping until then leads on, unless there is something to fire at once.
                prop_assert!(due > oracle.position || earliest <= oracle.position);
            }
            prop_assert_eq!(wheel.len(), oracle.entries.len());
        }
        let mut rest = swept(&mut wheel, u64::MAX);
        rest.sort_unstable();
        prop_assert_eq!(rest, oracle.sweep(u64::MAX));
        prop_assert!(wheel.is_empty() && wheel.occupied == [0; LEVELS] && wheel.heads.iter().all(|h| *h == NIL));
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

        #[test]
        fn agrees_with_a_sorted_map(
            start in prop_oneof![Just(0u64), distance()],
            granularity in prop_oneof![Just(1u64), Just(1_000_000), 1..5_000u64, distance()],
            steps in prop::collection::vec(step(), 1..200),
        ) {
            check(start, granularity.max(1), steps)?;
        }
    }
}
