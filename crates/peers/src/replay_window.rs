/// The numbers of datagrams that a peer has sent in one life, as far as they have arrived: the highest, and a bitmap of the 64
/// before it (as in RFC 4303, 3.4.3). A number is accepted once; one that is older than the bitmap never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReplayWindow {
    /// Zero: none yet. Numbers begin with one.
    highest: u64,
    /// Bit i: the number `highest - 1 - i`.
    before: u64,
}

impl ReplayWindow {
    /// A window that nothing has come into.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether a number would be accepted. Zero is none.
    pub fn accepts(&self, number: u64) -> bool {
        match self.highest.checked_sub(number) {
            None => true,
            Some(0) => false,
            Some(behind) => number > 0 && behind <= 64 && self.before & bit(behind) == 0,
        }
    }

    /// Takes a number in; `false` if it was there already or is too old, and nothing has changed.
    pub fn accept(&mut self, number: u64) -> bool {
        if !self.accepts(number) {
            return false;
        }
        if number < self.highest {
            self.before |= bit(self.highest - number);
            return true;
        }
        let ahead = number - self.highest;
        let moved = u32::try_from(ahead).ok().and_then(|ahead| self.before.checked_shl(ahead)).unwrap_or_default();
        self.before = if self.highest == 0 { 0 } else { moved | bit(ahead) };
        self.highest = number;
        true
    }

    /// The highest number, and a bitmap of the 64 before it: bit i is the number `highest - 1 - i`. `None` before the first.
    pub fn received(&self) -> Option<(u64, u64)> {
        (self.highest > 0).then_some((self.highest, self.before))
    }
}

/// The bit of the number that lies so far behind the highest one; none beyond 64.
fn bit(behind: u64) -> u64 {
    u32::try_from(behind).ok().and_then(|behind| 1_u64.checked_shl(behind.saturating_sub(1))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_number_is_accepted_once_and_within_64_of_the_highest() {
        let mut window = ReplayWindow::new();
        assert_eq!(window.received(), None);
        assert!(!window.accept(0), "zero is no number");
        assert!(window.accept(100) && !window.accept(100));
        assert!(window.accept(36) && !window.accept(36), "64 behind");
        assert!(!window.accept(35), "65 behind");
        assert!(window.accept(99) && !window.accept(99));
        assert_eq!(window.received(), Some((100, 1 | 1 << 63)));
        assert!(window.accept(101));
        assert_eq!(window.received(), Some((101, 0b11)), "36 is 65 behind now");
        assert!(!window.accept(36) && window.accept(37));
        assert!(window.accept(165));
        assert_eq!(window.received(), Some((165, 1 << 63)), "101 is 64 behind");
        assert!(window.accept(230));
        assert_eq!(window.received(), Some((230, 0)), "165 is 65 behind");
        assert!(window.accept(u64::MAX) && !window.accept(u64::MAX) && window.accept(u64::MAX - 64));
        assert!(!window.accept(u64::MAX - 65) && !window.accept(1));
    }

    #[test]
    fn the_first_number_has_none_before_it() {
        let mut window = ReplayWindow::new();
        assert!(window.accept(2));
        assert_eq!(window.received(), Some((2, 0)));
        assert!(!window.accept(0) && window.accept(1) && !window.accept(1));
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_set_of_all_numbers(numbers in vec(0_u64..200, 1..300)) {
            let (mut window, mut seen) = (ReplayWindow::new(), BTreeSet::new());
            for number in numbers {
                let highest = seen.last().copied().unwrap_or(0);
                let expected = number > 0 && !seen.contains(&number) && number + 64 >= highest;
                prop_assert_eq!(window.accepts(number), expected);
                prop_assert_eq!(window.accept(number), expected);
                if expected {
                    seen.insert(number);
                }
                let highest = seen.last().copied().unwrap_or(0);
                let bits = (0..64).filter(|i| highest > i + 1 && seen.contains(&(highest - 1 - i)));
                let received = window.received().unwrap_or_default();
                prop_assert_eq!(received, (highest, bits.fold(0, |bits, i| bits | 1 << i)));
            }
        }
    }
}
