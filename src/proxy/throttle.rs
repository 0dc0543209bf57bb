//! Log lines that traffic causes, kept from becoming a flood.

use std::cell::Cell;

use crate::time::{Span, Tick};

/// At most one line in this time.
const EVERY: Span = Span::from_secs(1);

/// Lets one line pass a second and counts the others.
#[derive(Debug, Default)]
pub struct Throttle {
    next: Cell<Tick>,
    held_back: Cell<u64>,
}

impl Throttle {
    /// Whether a line may be written now: how many were held back since the last one.
    pub fn due(&self, now: Tick) -> Option<u64> {
        if now < self.next.get() {
            self.held_back.set(self.held_back.get() + 1);
            return None;
        }
        self.next.set(now + EVERY);
        Some(self.held_back.replace(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_that_tells_of_the_others() {
        let throttle = Throttle::default();
        let at = |millis| Tick::ZERO + Span::from_millis(millis);
        assert_eq!(throttle.due(at(5)), Some(0));
        assert_eq!(throttle.due(at(6)), None);
        assert_eq!(throttle.due(at(1004)), None);
        assert_eq!(throttle.due(at(1005)), Some(2));
        assert_eq!(throttle.due(at(9000)), Some(0));
    }
}
