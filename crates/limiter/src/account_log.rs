use std::collections::VecDeque;

use super::MAX_RATES;
use super::quota::{MAX_COUNT, Rate};
use sluicegate_time::{Span, Tick};

/// One key's sliding log as the store keeps it: the instants of what was charged, once for all rates.
///
/// Cost that was charged without room takes the places of the oldest. Nothing is decided otherwise by that: a cost fits
/// once the `L` newest have made room for it, however many there are behind them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AccountLog {
    rates: Vec<Rate>,
    /// Oldest first; at most as many as the largest limit.
    stamps: VecDeque<Tick>,
    /// The newest of those for which there was no place. Until it leaves nothing is taken out: nobody knows how many there were.
    lost: Option<Tick>,
}

impl AccountLog {
    pub(super) fn new(rates: &[Rate]) -> Self {
        Self { rates: rates.to_vec(), stamps: VecDeque::new(), lost: None }
    }

    /// When it was last charged: the clock does not go back behind it.
    pub(super) fn newest(&self) -> Tick {
        self.stamps.back().copied().unwrap_or(Tick::ZERO)
    }

    /// The same, `None` if nothing was.
    pub(super) fn last_charge(&self) -> Option<Tick> {
        self.stamps.back().copied()
    }

    fn longest(&self) -> Span {
        self.rates.iter().map(|rate| rate.window()).max().unwrap_or(Span::ZERO)
    }

    /// Forgets what has left the longest window.
    pub(super) fn advance(&mut self, now: Tick) {
        let longest = self.longest();
        self.stamps.retain(|stamp| *stamp + longest > now);
        self.lost = self.lost.filter(|lost| *lost + longest > now);
    }

    pub(super) fn charge(&mut self, cost: u64, now: Tick) {
        let most = self.rates.iter().map(|rate| rate.limit()).max().unwrap_or(0);
        for _ in 0..cost.min(most) {
            self.stamps.push_back(now);
        }
        while self.stamps.len() as u64 > most {
            self.lost = self.stamps.pop_front();
        }
        if cost > most {
            self.lost = Some(now);
        }
    }

    /// Takes out the newest of those that were charged at `then` or before: older ones leave earlier, which is stricter.
    pub(super) fn give_back(&mut self, back: u64, then: Tick) {
        if self.lost.is_some() {
            return;
        }
        let until = self.stamps.partition_point(|stamp| *stamp <= then);
        let from = until.saturating_sub(usize::try_from(back).unwrap_or(usize::MAX));
        self.stamps.drain(from..until);
    }

    /// When a cost fits that no limit is below.
    pub(super) fn fits_at(&self, cost: u64, now: Tick) -> Tick {
        let of_rate = |rate: &Rate| {
            // So many of the newest may stay.
            let stay = usize::try_from(rate.limit().saturating_sub(cost)).unwrap_or(usize::MAX);
            let last = self.stamps.len().checked_sub(stay + 1).and_then(|at| self.stamps.get(at));
            last.map_or(now, |stamp| *stamp + rate.window())
        };
        self.rates.iter().map(of_rate).max().unwrap_or(now).max(now)
    }

    pub(super) fn remaining(&self, now: Tick) -> [u64; MAX_RATES] {
        let mut all = [0; MAX_RATES];
        for (remaining, rate) in all.iter_mut().zip(&self.rates) {
            let left = self.stamps.partition_point(|stamp| *stamp + rate.window() <= now);
            let counted = (self.stamps.len() - left) as u64;
            *remaining = rate.limit().saturating_sub(counted.min(MAX_COUNT));
        }
        all
    }

    pub(super) fn is_idle(&self, now: Tick) -> bool {
        self.stamps.is_empty() || self.newest() + self.longest() <= now
    }
}
