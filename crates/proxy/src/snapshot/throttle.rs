//! Log lines that traffic causes, kept from becoming a flood.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_time::{Span, Tick};

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

/// At most one line in this time, of those that are no news in a second.
const SELDOM: Span = Span::from_secs(60);

/// Lets one line pass a minute, from all workers together.
#[derive(Debug, Default)]
pub struct Seldom {
    /// When the next one may be written, in nanoseconds.
    next: AtomicU64,
}

impl Seldom {
    /// Takes the turn of a line: whether one may be written now.
    pub fn take_turn(&self, now: Tick) -> bool {
        let next = self.next.load(Ordering::Relaxed);
        let after = (now + SELDOM).since(Tick::ZERO).as_nanos();
        let is_due = now.since(Tick::ZERO).as_nanos() >= next;
        is_due && self.next.compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed).is_ok()
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

    #[test]
    fn one_line_a_minute() {
        let seldom = Seldom::default();
        let at = |secs| Tick::ZERO + Span::from_secs(secs);
        assert_eq!(
            [5, 5, 64, 65, 66, 125].map(|secs| seldom.take_turn(at(secs))),
            [true, false, false, true, false, true]
        );
    }
}
