use std::collections::VecDeque;

use sluicegate_limiter::time::Tick;
use sluicegate_limiter::{Algorithm, Bound};

use super::MS;
use super::oracle::{Case, Log};
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

    pub fn sum(&self, log: &Log, now: u64) -> u64 {
        log.iter().filter(|(at, _)| self.leaves(*at) > now / self.slot * self.slot).map(|(_, cost)| cost).sum()
    }
}

/// One key of one limit, as the specification has it: a log, and a queue whose plan is made anew each time.
#[derive(Clone, Debug)]
pub struct Naive {
    pub case: Case,
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
    pub fn new(case: Case, max_wait: u64, max_queue: usize) -> Self {
        Self { case, max_wait, max_queue, log: Vec::new(), queue: VecDeque::new(), now: 0 }
    }

    fn first_room(&self, log: &Log, cost: u64, from: u64) -> u64 {
        self.case.first_room(log, cost, from).expect("room comes with time")
    }

    /// The log with everybody in the queue admitted, and when the last one is.
    fn plan(&self) -> (Vec<(u64, u64)>, u64) {
        let mut log = self.log.clone();
        let mut now = self.now;
        for waiter in &self.queue {
            now = self.first_room(&log, waiter.cost, now);
            log.push((now, waiter.cost));
        }
        (log, now)
    }

    pub fn arrive(&mut self, id: usize, cost: u64, timeout: u64) -> NaiveVerdict {
        if self.case.is_too_costly(cost) {
            return NaiveVerdict::TooCostly;
        }
        if self.queue.is_empty() && self.case.fits(&self.log, cost, self.now) {
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

    /// How many more of cost 1, of one rate; of a leaky bucket that lets wait, how many may wait.
    pub fn remaining(&self, rate: usize) -> u64 {
        if matches!(self.case.algorithm, Algorithm::LeakyBucket(_)) && self.max_queue > 0 {
            return self.max_queue.saturating_sub(self.queue.len()) as u64;
        }
        if self.queue.is_empty() { self.case.rates[rate].remaining(&self.log, self.now) } else { 0 }
    }
}
