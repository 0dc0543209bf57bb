use std::collections::VecDeque;

use sluicegate::limiter::Bound;
use sluicegate::time::Tick;

use super::MS;
use super::workers::End;

/// A ring as the specification has it: `limit` per `summed` slots of `slot` nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct NaiveRate {
    pub limit: u64,
    pub slot: u64,
    pub summed: u64,
}

impl NaiveRate {
    pub fn new(limit: u64, window_millis: u64, slots: u64, bound: Bound) -> Self {
        match bound {
            Bound::Slot => Self { limit, slot: window_millis * MS, summed: 1 },
            Bound::Sliding => Self { limit, slot: window_millis * MS / slots, summed: slots },
            Bound::Strict => Self { limit, slot: window_millis * MS / slots, summed: slots + 1 },
        }
    }

    /// The instant from which what was admitted at `at` no longer counts.
    pub fn leaves(&self, at: u64) -> u64 {
        (at / self.slot + self.summed) * self.slot
    }

    pub fn sum(&self, log: &[(u64, u64)], now: u64) -> u64 {
        log.iter().filter(|(at, _)| self.leaves(*at) > now / self.slot * self.slot).map(|(_, cost)| cost).sum()
    }
}

/// One key of one limit, as the specification has it: a log, and a queue whose plan is made anew each time.
#[derive(Clone, Debug)]
pub struct Naive {
    pub rates: Vec<NaiveRate>,
    pub max_wait: u64,
    pub max_queue: usize,
    pub log: Vec<(u64, u64)>,
    pub queue: VecDeque<NaiveWaiter>,
    pub now: u64,
}

#[derive(Clone, Debug)]
pub struct NaiveWaiter {
    pub id: usize,
    pub cost: u64,
    pub deadline: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NaiveVerdict {
    Admitted,
    Waits,
    Rate,
    QueueFull,
    TooCostly,
}

impl Naive {
    pub fn fits(&self, log: &[(u64, u64)], cost: u64, now: u64) -> bool {
        self.rates.iter().all(|rate| rate.sum(log, now) + cost <= rate.limit)
    }

    pub fn first_room(&self, log: &[(u64, u64)], cost: u64, from: u64) -> u64 {
        let leaving = self.rates.iter().flat_map(|rate| log.iter().map(|(at, _)| rate.leaves(*at)));
        let mut instants: Vec<u64> = leaving.filter(|at| *at > from).collect();
        instants.push(from);
        instants.sort_unstable();
        instants.into_iter().find(|at| self.fits(log, cost, *at)).expect("all leave in the end")
    }

    /// The log with everybody in the queue admitted, and when the last one is.
    pub fn plan(&self) -> (Vec<(u64, u64)>, u64) {
        let mut log = self.log.clone();
        let mut now = self.now;
        for waiter in &self.queue {
            now = self.first_room(&log, waiter.cost, now);
            log.push((now, waiter.cost));
        }
        (log, now)
    }

    pub fn arrive(&mut self, id: usize, cost: u64, timeout: u64) -> NaiveVerdict {
        if self.rates.iter().any(|rate| cost > rate.limit) {
            return NaiveVerdict::TooCostly;
        }
        if self.queue.is_empty() && self.fits(&self.log, cost, self.now) {
            self.log.push((self.now, cost));
            return NaiveVerdict::Admitted;
        }
        let (log, tail) = self.plan();
        let room = self.first_room(&log, cost, tail);
        let patience = self.max_wait.min(timeout);
        let deadline = self.now.saturating_add(patience);
        if patience == 0 || room > deadline {
            NaiveVerdict::Rate
        } else if self.queue.len() >= self.max_queue {
            NaiveVerdict::QueueFull
        } else {
            self.queue.push_back(NaiveWaiter { id, cost, deadline });
            NaiveVerdict::Waits
        }
    }

    /// Lets in whoever's room has come by `until`.
    pub fn run_to(&mut self, until: u64) -> Vec<End> {
        let mut ends = Vec::new();
        while let Some(head) = self.queue.front() {
            let room = self.first_room(&self.log, head.cost, self.now);
            if room > until {
                break;
            }
            assert!(room <= head.deadline, "whoever may queue gets in");
            self.now = room;
            self.log.push((room, head.cost));
            ends.push(End { id: head.id, at: Tick::from_nanos(room), admitted: true });
            self.queue.pop_front();
        }
        self.now = self.now.max(until);
        ends
    }

    /// Whether an arrival at `at` would be refused if nobody else came.
    pub fn would_refuse(&self, at: u64, cost: u64, timeout: u64) -> bool {
        let mut later = self.clone();
        later.run_to(at);
        !matches!(later.arrive(usize::MAX, cost, timeout), NaiveVerdict::Admitted | NaiveVerdict::Waits)
    }

    /// How many more of cost 1, of one rate.
    pub fn remaining(&self, rate: usize) -> u64 {
        if !self.queue.is_empty() {
            return 0;
        }
        self.rates[rate].limit - self.rates[rate].sum(&self.log, self.now)
    }
}
