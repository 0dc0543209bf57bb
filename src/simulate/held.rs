//! Requests that wait for earlier ones.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::time::Tick;

/// Places that a request is moved ahead in the line: nearly all come nearly in order.
const NEAR: usize = 64;

/// A request: its instant, its place in the log, and where it lies.
pub(super) type RequestPosition = (Tick, u64, usize);

/// Gives requests back by their instants, and those of one instant by their places in the log. Most stand in a line, which
/// costs next to nothing; those that would have to be moved far ahead are in a heap.
#[derive(Default)]
pub(super) struct HeldRequests {
    line: VecDeque<RequestPosition>,
    late: BinaryHeap<Reverse<RequestPosition>>,
}

impl HeldRequests {
    pub(super) fn len(&self) -> usize {
        self.line.len() + self.late.len()
    }

    pub(super) fn push(&mut self, entry: RequestPosition) {
        let later = self.line.iter().rev().take(NEAR + 1).take_while(|own| **own > entry).count();
        if later > NEAR {
            self.late.push(Reverse(entry));
        } else {
            self.line.insert(self.line.len() - later, entry);
        }
    }

    /// The first one.
    pub(super) fn peek(&self) -> Option<RequestPosition> {
        let (line, late) = (self.line.front().copied(), self.late.peek().map(|Reverse(own)| *own));
        line.into_iter().chain(late).min()
    }

    /// Takes the first one.
    pub(super) fn pop(&mut self) -> Option<RequestPosition> {
        match (self.line.front(), self.late.peek()) {
            (Some(line), Some(Reverse(late))) if late < line => self.late.pop().map(|Reverse(own)| own),
            (None, _) => self.late.pop().map(|Reverse(own)| own),
            (Some(_), _) => self.line.pop_front(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn they_come_back_in_order_however_they_came(
            steps in prop::collection::vec((prop_oneof![0u64..40, 0u64..2_000], 0usize..3), 0..600),
        ) {
            let (mut held, mut model) = (HeldRequests::default(), BinaryHeap::new());
            for (number, (at, pops)) in (0u64..).zip(steps) {
                let entry = (Tick::from_nanos(at + number), number, number as usize);
                held.push(entry);
                model.push(Reverse(entry));
                for _ in 0..pops / 2 {
                    prop_assert_eq!(held.peek(), model.peek().map(|Reverse(own)| *own));
                    prop_assert_eq!(held.pop(), model.pop().map(|Reverse(own)| own));
                }
                prop_assert_eq!(held.len(), model.len());
            }
            while let Some(Reverse(own)) = model.pop() {
                prop_assert_eq!(held.pop(), Some(own));
            }
            prop_assert_eq!(held.pop(), None);
        }
    }
}
