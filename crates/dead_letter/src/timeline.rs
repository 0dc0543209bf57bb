//! Counts over time by reason, in a bounded number of cells.

use std::collections::BTreeMap;

use super::reason::Reason;
use sluicegate_time::{Span, Wall};

/// The most cells; beyond it they become longer.
const MAX_CELLS: usize = 2048;
/// Lengths of cells and of steps, in seconds. They are lengths of clocks and calendars: steps begin at round times.
const LENGTHS: [u64; 22] = [
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800,
    2_419_200, 31_449_600,
];
/// Of a log that reaches over more than the longest cells have room for.
const LONGEST: u64 = LENGTHS[LENGTHS.len() - 1];

/// Counts of each reason in the order of [`Reason::ALL`], and of all others.
pub type ReasonCounts = [u64; Reason::ALL.len() + 1];

/// How often each reason came when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// By the number of the cell, from the epoch on.
    cells: BTreeMap<u64, ReasonCounts>,
    /// Of a cell, in seconds.
    length: u64,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { cells: BTreeMap::new(), length: LENGTHS[0] }
    }
}

/// A [`Timeline`] in steps of equal length, without a gap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Steps {
    /// When the first one begins: a multiple of its length.
    pub start: Wall,
    /// How long each is.
    pub length: Span,
    /// The share of each.
    pub counts: Vec<ReasonCounts>,
}

impl Timeline {
    /// Counts a reason in words.
    pub fn add(&mut self, at: Wall, reason: &str, count: u64) {
        let place = Reason::ALL.iter().position(|known| known.word() == reason).unwrap_or(Reason::ALL.len());
        let cell = self.cells.entry(seconds(at) / self.length).or_default();
        if let Some(own) = cell.get_mut(place) {
            *own = own.saturating_add(count);
        }
        while self.cells.len() > MAX_CELLS {
            self.lengthen();
        }
    }

    fn lengthen(&mut self) {
        let longer = longer(self.length);
        for (number, counts) in std::mem::take(&mut self.cells) {
            let cell = self.cells.entry(number * self.length / longer).or_default();
            add_all(cell, &counts);
        }
        self.length = longer;
    }

    /// At most so many steps, of all that was counted, and of `from` to `to` where that is more; `None` of nothing.
    pub fn steps(&self, (from, to): (Option<Wall>, Option<Wall>), most: usize) -> Option<Steps> {
        let (first, last) = (self.cells.first_key_value()?.0, self.cells.last_key_value()?.0);
        let first = from.map_or(u64::MAX, seconds).min(first * self.length);
        let last = to.map_or(0, seconds).max(last * self.length);
        let most = most.max(2) as u64;
        let fits = |length: &u64| last / length - first / length < most;
        let of_cells = LENGTHS.into_iter().filter(|length| length.is_multiple_of(self.length));
        let doubled = std::iter::successors(Some(self.length.max(LONGEST)), |length| length.checked_mul(2));
        let length = of_cells.chain(doubled).find(fits)?;
        let mut counts = vec![ReasonCounts::default(); (last / length - first / length + 1) as usize];
        for (number, own) in &self.cells {
            if let Some(step) = counts.get_mut((number * self.length / length - first / length) as usize) {
                add_all(step, own);
            }
        }
        let start = Wall::EPOCH + Span::from_secs(first / length * length);
        Some(Steps { start, length: Span::from_secs(length), counts })
    }
}

/// The next length that such cells fit into as a whole.
fn longer(length: u64) -> u64 {
    let fits = |longer: &u64| *longer > length && longer.is_multiple_of(length);
    LENGTHS.into_iter().find(fits).unwrap_or(length.max(LONGEST) * 2)
}

fn add_all(sum: &mut ReasonCounts, more: &ReasonCounts) {
    for (own, more) in sum.iter_mut().zip(more) {
        *own = own.saturating_add(*more);
    }
}

fn seconds(at: Wall) -> u64 {
    at.as_nanos() / 1_000_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-01-02T03:04:05Z
    const START: u64 = 1_767_323_045;

    fn at(second: u64) -> Wall {
        Wall::EPOCH + Span::from_secs(second)
    }

    fn sums(steps: &Steps) -> Vec<u64> {
        steps.counts.iter().map(|counts| counts.iter().sum()).collect()
    }

    #[test]
    fn steps_are_round_and_as_short_as_their_number_allows() {
        let mut timeline = Timeline::default();
        for second in 0..90 {
            timeline.add(at(START + second), "rate-limited", 1);
        }
        let steps = |most| {
            let steps = timeline.steps((None, None), most).unwrap();
            (steps.start.as_nanos() / 1_000_000_000, steps.length.as_nanos() / 1_000_000_000, sums(&steps))
        };
        assert_eq!(steps(90), (START, 1, vec![1; 90]));
        assert_eq!((steps(89).1, steps(46).1, steps(45).1), (2, 2, 5), "steps of two begin a second before");
        assert_eq!(steps(10), (START - 5, 10, vec![5, 10, 10, 10, 10, 10, 10, 10, 10, 5]));
        assert_eq!(steps(2), (START - 5, 60, vec![55, 35]));
        assert_eq!(Timeline::default().steps((None, None), 10), None);
    }

    #[test]
    fn steps_reach_over_what_was_asked_for() {
        let mut timeline = Timeline::default();
        timeline.add(at(START), "timeout", 3);
        timeline.add(at(START), "of-a-later-version", 2);
        let steps = timeline.steps((Some(at(START - 3)), Some(at(START + 2))), 80).unwrap();
        assert_eq!(sums(&steps), [0, 0, 0, 5, 0, 0]);
        let mut counts = ReasonCounts::default();
        (counts[Reason::Timeout as usize], counts[Reason::ALL.len()]) = (3, 2);
        assert_eq!(steps.counts[3], counts);
        let inner = timeline.steps((Some(at(START + 1)), Some(at(START - 1))), 80).unwrap();
        assert_eq!(sums(&inner), [5], "what was counted is in it whatever was asked for");
    }

    #[test]
    fn cells_are_bounded_in_number_and_nothing_is_lost() {
        let mut timeline = Timeline::default();
        // Later ones first, as of several gateways.
        for number in (0..20_000_u64).rev() {
            timeline.add(at(START + number * 7), "breaker", 1);
        }
        assert!(timeline.cells.len() <= MAX_CELLS);
        let steps = timeline.steps((None, None), 100).unwrap();
        assert!(steps.counts.len() <= 100 && steps.counts.len() > 40, "{}", steps.counts.len());
        assert_eq!(sums(&steps).iter().sum::<u64>(), 20_000);
        timeline.add(Wall::EPOCH, "breaker", 1);
        timeline.add(Wall::MAX, "breaker", 1);
        let steps = timeline.steps((None, None), 10).unwrap();
        assert!(steps.counts.len() <= 10);
        assert_eq!(sums(&steps).iter().sum::<u64>(), 20_002);
    }
}
