//! Counts over time, in a bounded number of steps.

use crate::time::{Span, Tick};

/// The most steps; beyond it two become one.
const MAX_STEPS: usize = 240;

/// Admitted and refused of several things, step by step. Steps begin at the first instant and are one second long, or a power
/// of two times that.
#[derive(Clone, Debug)]
pub(super) struct Series {
    start: Option<Tick>,
    width: Span,
    /// Of each thing.
    steps: Vec<Vec<SeriesStep>>,
    /// How many steps there are.
    count: usize,
}

/// Requests of a step: admitted, refused.
pub(super) type SeriesStep = [u64; 2];

impl Series {
    /// Of so many things.
    pub(super) fn new(things: usize) -> Self {
        Self { start: None, width: Span::from_secs(1), steps: vec![Vec::new(); things], count: 0 }
    }

    /// Makes room up to an instant.
    pub(super) fn reach(&mut self, at: Tick) {
        let start = *self.start.get_or_insert(at);
        while at.since(start).as_nanos() / self.width.as_nanos() >= MAX_STEPS as u64 {
            self.width = Span::from_nanos(self.width.as_nanos() * 2);
            for steps in &mut self.steps {
                let pairs =
                    steps.chunks(2).map(|pair| pair.iter().fold([0, 0], |sum, own| [sum[0] + own[0], sum[1] + own[1]]));
                *steps = pairs.collect();
            }
            self.count = self.count.div_ceil(2);
        }
        self.count = self.count.max(self.step_of(at) + 1);
    }

    /// Counts a request of an instant that was reached.
    pub(super) fn add(&mut self, at: Tick, thing: usize, is_admitted: bool) {
        let step = self.step_of(at).min(MAX_STEPS - 1);
        let Some(steps) = self.steps.get_mut(thing) else { return };
        if steps.len() <= step {
            steps.resize(step + 1, [0, 0]);
        }
        if let Some(counts) = steps.get_mut(step).and_then(|own| own.get_mut(usize::from(!is_admitted))) {
            *counts += 1;
        }
    }

    fn step_of(&self, at: Tick) -> usize {
        let start = self.start.unwrap_or(at);
        (at.since(start).as_nanos() / self.width.as_nanos()) as usize
    }

    /// When it begins.
    pub(super) fn start(&self) -> Option<Tick> {
        self.start
    }

    /// How long a step is.
    pub(super) fn width(&self) -> Span {
        self.width
    }

    /// The steps of a thing.
    pub(super) fn of(&self, thing: usize) -> Vec<SeriesStep> {
        let mut steps = self.steps.get(thing).cloned().unwrap_or_default();
        steps.resize(self.count, [0, 0]);
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_become_longer_and_nothing_is_lost() {
        let mut series = Series::new(2);
        let start = Tick::from_nanos(7);
        for second in 0..1_000 {
            let at = start + Span::from_secs(second);
            series.reach(at);
            series.add(at, 0, second % 10 != 0);
        }
        assert_eq!((series.start(), series.width()), (Some(start), Span::from_secs(8)));
        let steps = series.of(0);
        assert_eq!((steps.len(), steps[0], steps[124]), (125, [7, 1], [8, 0]));
        let sum = steps.iter().fold([0, 0], |sum, own| [sum[0] + own[0], sum[1] + own[1]]);
        assert_eq!((sum, series.of(1).len()), ([900, 100], 125));
        // A century later.
        let end = Tick::MAX;
        series.reach(end);
        series.add(end, 1, false);
        assert!(series.of(0).len() <= MAX_STEPS);
        assert_eq!(series.of(1).iter().map(|own| own[1]).sum::<u64>(), 1);
    }
}
