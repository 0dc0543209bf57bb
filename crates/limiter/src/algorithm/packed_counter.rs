/// The width of the counts of a ring: so many bits of a word each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PackedCounter {
    /// Lanes per word, as a power of two.
    shift: u32,
    /// Bits per lane, and the largest count.
    bits: u32,
    most: u64,
}

impl PackedCounter {
    pub(super) const U8: Self = Self::new(3);
    pub(super) const U16: Self = Self::new(2);
    pub(super) const U32: Self = Self::new(1);
    pub(super) const U64: Self = Self::new(0);

    const fn new(shift: u32) -> Self {
        let bits = u64::BITS >> shift;
        Self { shift, bits, most: u64::MAX >> (u64::BITS - bits) }
    }

    /// The narrowest that holds a count of `most`.
    pub(super) const fn holding(most: u64) -> Self {
        if most <= Self::U8.most {
            Self::U8
        } else if most <= Self::U16.most {
            Self::U16
        } else if most <= Self::U32.most {
            Self::U32
        } else {
            Self::U64
        }
    }

    /// The words that hold so many lanes.
    pub(super) const fn words(self, lanes: usize) -> usize {
        lanes.div_ceil(1 << self.shift)
    }

    /// The largest count.
    pub(super) const fn most(self) -> u64 {
        self.most
    }

    /// The word that holds a lane, and how far up in it.
    #[inline]
    pub(super) const fn place(self, lane: u64) -> (usize, u32) {
        let in_word = lane & ((1 << self.shift) - 1);
        ((lane >> self.shift) as usize, in_word as u32 * self.bits)
    }

    /// The first lane of a word.
    #[inline]
    pub(super) const fn first_of(self, word: usize) -> u64 {
        (word as u64) << self.shift
    }

    /// The lane of a word, from the low end, with which the sum reaches `much`: in a word whose sum does, and not 0.
    #[inline]
    pub(super) const fn that_reaches(self, word: u64, much: u64) -> u32 {
        // What is asked for mostly: the first one that is not empty.
        let first = word.trailing_zeros() >> (6 - self.shift);
        if much <= 1 { first } else { self.that_reaches_much(word, much) }
    }

    #[inline(never)]
    const fn that_reaches_much(self, mut word: u64, much: u64) -> u32 {
        let (mut lane, mut sum) = (0, 0);
        loop {
            sum += word & self.most;
            match word.checked_shr(self.bits) {
                Some(rest) if sum < much && rest != 0 => (word, lane) = (rest, lane + 1),
                _ => return lane,
            }
        }
    }

    /// Adds to a lane. Never spills into the next one: a count stops at [`most`](Self::most).
    #[inline]
    pub(super) fn add(self, words: &mut [u64], lane: u64, more: u64) {
        let (word, up) = self.place(lane);
        if let Some(word) = words.get_mut(word) {
            let count = ((*word >> up) & self.most).saturating_add(more).min(self.most);
            *word = (*word & !(self.most << up)) | (count << up);
        }
    }

    /// Takes out of a lane, as far as it goes; nothing out of one that is full, since nobody knows how much has been added
    /// to it.
    pub(super) fn take_out(self, words: &mut [u64], lane: u64, less: u64) {
        let (word, up) = self.place(lane);
        if let Some(word) = words.get_mut(word) {
            let count = (*word >> up) & self.most;
            if count < self.most {
                *word = (*word & !(self.most << up)) | (count.saturating_sub(less) << up);
            }
        }
    }

    /// The sum of all lanes of a word, without a loop over them.
    #[inline]
    pub(super) const fn sum(self, word: u64) -> u64 {
        match self.shift {
            3 => {
                let pairs = (word & 0x00ff_00ff_00ff_00ff) + ((word >> 8) & 0x00ff_00ff_00ff_00ff);
                pairs.wrapping_mul(0x0001_0001_0001_0001) >> 48
            }
            2 => {
                let pairs = (word & 0x0000_ffff_0000_ffff) + ((word >> 16) & 0x0000_ffff_0000_ffff);
                (pairs & 0xffff_ffff) + (pairs >> 32)
            }
            1 => (word & 0xffff_ffff) + (word >> 32),
            _ => word,
        }
    }

    /// The sum of all lanes.
    #[inline]
    pub(super) fn sum_of(self, words: &[u64]) -> u64 {
        let sum = |lane: Self| words.iter().map(|word| lane.sum(*word)).sum();
        // Each with its width known, so that the loop is over words alone.
        match self.shift {
            3 => sum(Self::U8),
            2 => sum(Self::U16),
            1 => sum(Self::U32),
            _ => sum(Self::U64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_words_sum_exactly() {
        assert_eq!(PackedCounter::U8.sum(u64::MAX), 8 * 0xff);
        assert_eq!(PackedCounter::U16.sum(u64::MAX), 4 * 0xffff);
        assert_eq!(PackedCounter::U32.sum(u64::MAX), 2 * 0xffff_ffff);
        assert_eq!(PackedCounter::U64.sum(u64::MAX), u64::MAX);
    }

    #[test]
    fn the_narrowest_that_holds_a_count_is_taken() {
        for (lane, most) in [
            (PackedCounter::U8, 0xff),
            (PackedCounter::U16, 0xffff),
            (PackedCounter::U32, 0xffff_ffff),
            (PackedCounter::U64, u64::MAX),
        ] {
            assert_eq!((PackedCounter::holding(most), lane.most()), (lane, most));
            assert_eq!(PackedCounter::holding(most.saturating_add(1)).bits, (lane.bits * 2).min(64));
        }
    }

    #[test]
    fn lanes_lie_side_by_side_from_the_low_end() {
        assert_eq!([0, 7, 8, 9].map(|lane| PackedCounter::U8.place(lane)), [(0, 0), (0, 56), (1, 0), (1, 8)]);
        assert_eq!(PackedCounter::U64.place(5), (5, 0));
        assert_eq!(
            (PackedCounter::U16.first_of(2), PackedCounter::U16.words(9), PackedCounter::U8.words(16)),
            (8, 3, 2)
        );
        assert_eq!([1 << 15, 1 << 16, 1 << 63].map(|word| PackedCounter::U16.that_reaches(word, 1)), [0, 1, 3]);
        assert_eq!([1, 2, 3, 5, 6].map(|much| PackedCounter::U8.that_reaches(0x03_00_02, much)), [0, 0, 2, 2, 2]);
        assert_eq!(PackedCounter::U64.that_reaches(1 << 63, 1 << 63), 0);
    }
}
