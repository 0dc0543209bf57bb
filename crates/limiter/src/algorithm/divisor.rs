/// Division by a number that is known beforehand, for one multiplication and at most one step more.
///
/// **Source**: Granlund and Montgomery, "Division by Invariant Integers using Multiplication" (1994), with the quotient
/// from a reciprocal of one word, which is at most one too small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Divisor {
    by: u64,
    /// `floor((2^64 - 1) / by)`.
    reciprocal: u64,
}

impl Divisor {
    /// 0 is taken for 1.
    pub(super) fn new(by: u64) -> Self {
        let by = by.max(1);
        Self { by, reciprocal: u64::MAX / by }
    }

    pub(super) const fn get(self) -> u64 {
        self.by
    }

    /// Quotient and remainder.
    #[inline]
    pub(super) const fn divide(self, number: u64) -> (u64, u64) {
        let quotient = ((number as u128 * self.reciprocal as u128) >> 64) as u64;
        let rest = number - quotient * self.by;
        if rest >= self.by { (quotient + 1, rest - self.by) } else { (quotient, rest) }
    }

    #[inline]
    pub(super) const fn quotient(self, number: u64) -> u64 {
        self.divide(number).0
    }

    #[inline]
    pub(super) const fn remainder(self, number: u64) -> u64 {
        self.divide(number).1
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Numbers of every length, and those next to a power of two.
    fn any_length() -> impl Strategy<Value = u64> {
        prop_oneof![
            (any::<u64>(), 0u32..64).prop_map(|(bits, shift)| bits >> shift),
            (0u32..64, 0u64..3).prop_map(|(shift, less)| (u64::MAX >> shift).wrapping_sub(less)),
        ]
    }

    proptest! {
        #[test]
        fn divides_as_the_machine_does(number in any_length(), by in any_length()) {
            let by = by.max(1);
            prop_assert_eq!(Divisor::new(by).divide(number), (number / by, number % by));
            // Where the quotient changes.
            let edge = number / by * by;
            prop_assert_eq!(Divisor::new(by).divide(edge), (edge / by, 0));
            if let Some(below) = edge.checked_sub(1) {
                prop_assert_eq!(Divisor::new(by).divide(below), (below / by, below % by));
            }
        }
    }

    #[test]
    fn nothing_divides_by_zero() {
        assert_eq!(Divisor::new(0).divide(7), (7, 0));
    }
}
