use super::key::Fingerprint;

/// Records of a fixed number of words, one per key, in one flat vector: the fingerprint, then the key's state.
///
/// Linear probing from a home that grows with the fingerprint (its *high* bits; the shard was chosen by the low ones),
/// at most 3/4 full, and removal by shifting the followers back, so there are no tombstones and no bad days: the
/// table can be grown by a seventh, and shrunk. It does not grow by itself: the caller that inserts sees to it that
/// there is room. Source: Knuth, The Art of Computer Programming 3, 6.4, algorithms L and R.
///
/// With many keys a check costs what its misses do. So records begin at a cache line, and where whole ones fill it the
/// home of a key is the first place of a line: nearly every key is found in the line that is read first.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    words: Vec<u64>,
    /// The word of the first record: where a cache line begins.
    base: usize,
    stride: usize,
    /// The bits of a place that say where in its cache line it is; none where records do not fill one.
    in_line: usize,
    /// Places for records; whole lines of them.
    capacity: usize,
    len: usize,
    /// Where the clock hand stands.
    hand: usize,
}

/// A fingerprint is never zero.
const EMPTY: u64 = 0;
const SMALLEST: usize = 8;
/// Words in a cache line.
const LINE: usize = 8;

impl Table {
    /// An empty table that holds no memory.
    pub(super) fn new(state_words: usize) -> Self {
        let stride = 1 + state_words;
        Self { stride, in_line: if LINE.is_multiple_of(stride) { LINE / stride - 1 } else { 0 }, ..Self::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Where the record of a key is. Good until the next insertion or removal.
    #[allow(clippy::inline_always, reason = "the whole of a check is one run of instructions")]
    #[inline(always)]
    pub(super) fn find(&self, key: Fingerprint) -> Option<usize> {
        if self.len == 0 {
            return None;
        }
        let bits = key.bits();
        let mut at = self.home(bits);
        loop {
            match self.fingerprint(at) {
                found if found == bits => return Some(at),
                EMPTY => return None,
                _ => at = self.next(at),
            }
        }
    }

    #[inline]
    pub(super) fn state(&self, at: usize) -> &[u64] {
        let from = self.word(at);
        self.words.get(from + 1..from + self.stride).unwrap_or_default()
    }

    #[inline]
    pub(super) fn state_mut(&mut self, at: usize) -> &mut [u64] {
        let from = self.word(at);
        self.words.get_mut(from + 1..from + self.stride).unwrap_or_default()
    }

    /// How many places there are, empty ones too.
    pub(super) fn places(&self) -> usize {
        self.capacity
    }

    /// Whether one more record needs [`resize`](Self::resize) first.
    pub(super) fn is_full(&self) -> bool {
        (self.len + 1) * 4 > self.capacity * 3
    }

    /// Whether so little of it is used that [`resize`](Self::resize) would give memory back.
    pub(super) fn is_sparse(&self) -> bool {
        self.capacity > SMALLEST && self.len < self.capacity / 4
    }

    /// Puts in a key that is not there, with a state of zeroes.
    pub(super) fn insert(&mut self, key: Fingerprint) -> usize {
        let mut at = self.home(key.bits());
        while self.fingerprint(at) != EMPTY {
            at = self.next(at);
        }
        let word = self.word(at);
        if let Some(word) = self.words.get_mut(word) {
            *word = key.bits();
            self.len += 1;
        }
        at
    }

    /// Takes a record out and closes the gap.
    pub(super) fn remove(&mut self, at: usize) {
        let mut gap = at;
        let mut from = self.next(at);
        loop {
            let bits = self.fingerprint(from);
            if bits == EMPTY {
                break;
            }
            // A record may move back to the gap unless its home lies after the gap, on the way to where it stands.
            let (home, reach) = (self.home(bits), self.steps(gap, from));
            if self.steps(home, from) >= reach {
                let (word, to) = (self.word(from), self.word(gap));
                self.words.copy_within(word..word + self.stride, to);
                gap = from;
            }
            from = self.next(from);
        }
        let gap = self.word(gap);
        if let Some(words) = self.words.get_mut(gap..gap + self.stride) {
            words.fill(0);
            self.len -= 1;
        }
    }

    /// Moves the clock hand by one place and answers where it stood; `None` in a table without places.
    pub(super) fn tick_hand(&mut self) -> Option<usize> {
        let at = self.hand;
        self.hand = self.next(at);
        (self.capacity > 0).then_some(at)
    }

    /// The key at a place, unless the place is empty.
    pub(super) fn key_at(&self, at: usize) -> Option<Fingerprint> {
        match self.words.get(self.word(at)).copied() {
            None | Some(EMPTY) => None,
            Some(bits) => Some(Fingerprint::from_bits(bits)),
        }
    }

    /// Copies the records that `keep` keeps into a new vector with room for one more, about 2/3 full.
    pub(super) fn resize(&mut self, keep: impl Fn(&[u64]) -> bool) {
        self.rebuild(self.stride - 1, |from, to| {
            let kept = keep(from);
            if kept {
                to.copy_from_slice(from);
            }
            kept
        });
    }

    /// Copies the records into a new vector with room for one more, with `state_words` words each, which `write` fills
    /// from the old ones; a record for which it answers `false` is left out.
    pub(super) fn rebuild(&mut self, state_words: usize, write: impl Fn(&[u64], &mut [u64]) -> bool) {
        self.rebuild_for(1, state_words, write);
    }

    /// Makes room for so many more records at once. Records that come in the order of another table's places need it: in a
    /// table that grows with them they would all lie at its beginning, in one long run.
    pub(super) fn reserve(&mut self, more: usize) {
        if (self.len + more) * 4 > self.capacity * 3 {
            self.rebuild_for(more, self.stride - 1, |from, to| {
                to.copy_from_slice(from);
                true
            });
        }
    }

    fn rebuild_for(&mut self, more: usize, state_words: usize, write: impl Fn(&[u64], &mut [u64]) -> bool) {
        let mut state = vec![0; state_words];
        let records = (0..self.capacity).filter_map(|at| Some((self.key_at(at)?, self.state(at))));
        let kept = records.clone().filter(|(_, from)| write(from, &mut state)).count();
        let mut new = Self::new(state_words);
        new.capacity = ((kept + more) * 3 / 2 + 1).max(SMALLEST).next_multiple_of(new.in_line + 1);
        new.words = vec![EMPTY; new.capacity * new.stride + LINE - 1];
        new.base = new.words.as_ptr().align_offset(LINE * size_of::<u64>()).min(LINE - 1);
        for (key, from) in records {
            state.fill(0);
            if write(from, &mut state) {
                let at = new.insert(key);
                new.state_mut(at).copy_from_slice(&state);
            }
        }
        *self = new;
    }

    /// Forgets every key and gives the memory back.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.stride - 1);
    }

    #[inline]
    fn fingerprint(&self, at: usize) -> u64 {
        self.words.get(self.word(at)).copied().unwrap_or(EMPTY)
    }

    /// Where the record of a place begins.
    #[inline]
    const fn word(&self, at: usize) -> usize {
        self.base + at * self.stride
    }

    /// The high bits, scaled to the lines without a division.
    #[inline]
    fn home(&self, bits: u64) -> usize {
        ((u128::from(bits) * self.capacity as u128) >> 64) as usize & !self.in_line
    }

    #[inline]
    fn next(&self, at: usize) -> usize {
        if at + 1 >= self.capacity { 0 } else { at + 1 }
    }

    /// How far `to` is ahead of `from`, around the end.
    fn steps(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.capacity - from }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn key(bits: u64) -> Fingerprint {
        Fingerprint::from_bits(bits)
    }

    fn put(table: &mut Table, bits: u64, value: u64) {
        if table.is_full() {
            table.resize(|_| true);
        }
        let at = table.insert(key(bits));
        table.state_mut(at)[0] = value;
    }

    #[test]
    fn an_empty_table_holds_no_memory_and_finds_nothing() {
        let table = Table::new(3);
        assert_eq!(table.words.capacity(), 0);
        assert_eq!(table.find(key(7)), None);
        assert!(table.is_full() && !table.is_sparse());
    }

    #[test]
    fn grows_by_steps_and_never_above_three_quarters() {
        let mut table = Table::new(1);
        let mut capacity = 0;
        for bits in 1..=5_000u64 {
            put(&mut table, bits.wrapping_mul(0x9e37_79b9_7f4a_7c15), bits);
            assert!(table.len * 4 <= table.capacity * 3);
            if table.capacity != capacity {
                assert!(capacity < 100 || table.capacity < capacity * 130 / 100, "{capacity} -> {}", table.capacity);
                capacity = table.capacity;
            }
        }
        assert_eq!(table.len(), 5_000);
        assert!(table.capacity * 58 < table.len * 100);
    }

    #[test]
    fn is_full_just_when_one_more_would_be_more_than_three_quarters() {
        let mut table = Table::new(1);
        for bits in 1..=1_000u64 {
            let one_more = (table.len as f64 + 1.0) / table.capacity as f64;
            assert_eq!(table.is_full(), one_more > 0.75, "{} of {}", table.len, table.capacity);
            put(&mut table, bits.wrapping_mul(0x9e37_79b9_7f4a_7c15), bits);
        }
    }

    #[test]
    fn records_begin_at_a_cache_line_and_the_last_has_its_words() {
        for state_words in [1, 2, 3, 7, 8] {
            let mut table = Table::new(state_words);
            for bits in 1..=300u64 {
                put(&mut table, bits.wrapping_mul(0x9e37_79b9_7f4a_7c15), bits);
                let first = table.words.as_ptr() as usize + table.base * size_of::<u64>();
                assert_eq!(first % (LINE * size_of::<u64>()), 0);
                assert_eq!(table.state(table.capacity - 1).len(), state_words);
            }
            let spare = table.words.len() - table.capacity * table.stride;
            assert_eq!(spare, LINE - 1, "and no more");
            table.clear();
            put(&mut table, 1, 1);
            assert_eq!((table.len(), table.state(0).len()), (1, state_words));
        }
    }

    #[test]
    fn what_is_not_kept_is_gone_and_the_table_shrinks() {
        let mut table = Table::new(1);
        for bits in 1..=100u64 {
            put(&mut table, bits << 57 | bits, bits);
        }
        table.resize(|state| state[0] % 10 == 0);
        assert_eq!((table.len(), table.capacity), (10, 20));
        for bits in 1..=100u64 {
            let value = table.find(key(bits << 57 | bits)).map(|at| table.state(at)[0]);
            assert_eq!(value, (bits % 10 == 0).then_some(bits));
        }
    }

    #[test]
    fn the_hand_comes_by_every_place_in_turn() {
        let mut table = Table::new(1);
        assert_eq!(table.tick_hand(), None);
        put(&mut table, 1, 1);
        let places: Vec<usize> = (0..11).filter_map(|_| table.tick_hand()).collect();
        assert_eq!(places, [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2]);
    }

    proptest! {
        /// Few distinct homes, so that clusters form, wrap around the end and close their gaps.
        #[test]
        fn behaves_like_a_map(steps in prop::collection::vec((0u64..4, 0u64..12, any::<bool>()), 1..300)) {
            let mut table = Table::new(1);
            let mut map = HashMap::new();
            for (index, (high, low, insert)) in steps.into_iter().enumerate() {
                let bits = (high.wrapping_sub(1) << 61) | (low + 1);
                match (table.find(key(bits)), insert) {
                    (None, true) => {
                        put(&mut table, bits, index as u64);
                        map.insert(bits, index as u64);
                    }
                    (Some(at), false) => {
                        table.remove(at);
                        map.remove(&bits);
                    }
                    _ => {}
                }
                prop_assert_eq!(table.len(), map.len());
                for high in 0..4u64 {
                    for low in 0..12 {
                        let bits = (high.wrapping_sub(1) << 61) | (low + 1);
                        let found = table.find(key(bits)).map(|at| table.state(at)[0]);
                        prop_assert_eq!(found, map.get(&bits).copied());
                    }
                }
            }
        }
    }
}
