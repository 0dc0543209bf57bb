use super::Wall;

const SECOND: u64 = 1_000_000_000;

/// Bits of the length in seconds.
const LENGTH_BITS: u32 = 28;
/// About eight years and a half.
const LONGEST: u64 = (1 << LENGTH_BITS) - 1;

/// Whole seconds of Unix time from one to another, and a mark of what is so between them: in one word, so that threads
/// share it without a lock and nobody ever sees half of one.
///
/// From the highest bit: 35 of its first second (a [`Wall`] has fewer), 28 of its length, and the mark. Zero is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stretch(u64);

impl Stretch {
    /// From `from` until before `until`, in seconds since the epoch, of which what a tick cannot say is cut off. Where it
    /// is longer than a word can say, it is a part of it that begins at `around`, which it contains.
    pub(super) fn new(from: i64, until: i64, mark: bool, around: u64) -> Self {
        let from = u64::try_from(from).unwrap_or(0);
        let until = u64::try_from(until).unwrap_or(0);
        let from = if until.saturating_sub(from) > LONGEST { from.max(around) } else { from };
        let length = until.saturating_sub(from).min(LONGEST);
        Self(from << (LENGTH_BITS + 1) | length << 1 | u64::from(mark))
    }

    pub(super) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub(super) const fn bits(self) -> u64 {
        self.0
    }

    #[inline]
    pub(super) const fn contains(self, second: u64) -> bool {
        second.wrapping_sub(self.first()) < self.length()
    }

    #[inline]
    pub(super) const fn mark(self) -> bool {
        self.0 & 1 == 1
    }

    /// Its first instant.
    #[inline]
    pub(super) const fn from(self) -> Wall {
        Wall::from_nanos(self.first().saturating_mul(SECOND))
    }

    /// The first instant after it.
    #[inline]
    pub(super) const fn until(self) -> Wall {
        Wall::from_nanos((self.first() + self.length()).saturating_mul(SECOND))
    }

    const fn first(self) -> u64 {
        self.0 >> (LENGTH_BITS + 1)
    }

    const fn length(self) -> u64 {
        self.0 >> 1 & LONGEST
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LAST: u64 = u64::MAX / SECOND;

    #[test]
    fn nothing_is_in_an_empty_one() {
        for second in [0, 1, LAST] {
            assert!(!Stretch::from_bits(0).contains(second));
            assert!(!Stretch::new(5, 5, true, 5).contains(second));
        }
    }

    #[test]
    fn what_is_too_long_begins_around_now() {
        let all = Stretch::new(i64::MIN, i64::MAX, true, 1_800_000_000);
        assert!(all.mark() && all.contains(1_800_000_000) && all.contains(1_800_000_000 + LONGEST - 1));
        assert!(!all.contains(1_799_999_999) && !all.contains(1_800_000_000 + LONGEST));
    }

    proptest! {
        #[test]
        fn holds_what_was_put_into_it(from in 0..=LAST, length in 1..=LONGEST, mark: bool, other in 0..=LAST) {
            let until = from + length;
            let stretch = Stretch::new(from.cast_signed(), until.cast_signed(), mark, from);
            prop_assert_eq!(Stretch::from_bits(stretch.bits()), stretch);
            prop_assert_eq!((stretch.mark(), stretch.from()), (mark, Wall::from_nanos(from * SECOND)));
            prop_assert_eq!(stretch.until(), Wall::from_nanos(until.saturating_mul(SECOND)));
            for second in [from.saturating_sub(1), from, until - 1, until, other] {
                prop_assert_eq!(stretch.contains(second), (from..until).contains(&second));
            }
        }
    }
}
