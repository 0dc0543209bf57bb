use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use sluicegate_limiter::time::Tick;
use sluicegate_limiter::{Attempt, Permit, Refusal, Report, Ticket};

/// Remembers that it was woken.
#[derive(Default)]
pub struct Flag(pub AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A waiting request and what its worker would do for it.
pub struct Waiting {
    pub id: usize,
    pub ticket: Ticket,
    pub flag: Arc<Flag>,
    pub wake_at: Tick,
}

/// How a waiting request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    pub id: usize,
    pub at: Tick,
    pub admitted: bool,
}

/// The workers: attempt each ticket when its timer or its waker says so, and at no other time.
#[derive(Default)]
pub struct Workers {
    pub now: Tick,
    pub waiting: Vec<Waiting>,
    pub ends: Vec<End>,
    pub cancelled: usize,
    /// Of those who got in and have not ended.
    pub permits: Vec<(usize, Permit)>,
    /// How many of those have ended.
    pub ended: usize,
    /// The answers to those who waited in vain, and how all limits stood.
    pub timeouts: Vec<(End, Refusal, Report)>,
}

impl Workers {
    pub fn take(&mut self, id: usize, ticket: Ticket, now: Tick) {
        self.run_to(now);
        self.waiting.push(Waiting { id, ticket, flag: Arc::default(), wake_at: now });
        self.run_to(now);
    }

    /// Drops the ticket of `id` if it still waits.
    pub fn cancel(&mut self, id: usize) -> bool {
        let found = self.waiting.iter().position(|waiting| waiting.id == id);
        if let Some(index) = found {
            drop(self.waiting.remove(index));
            self.cancelled += 1;
            self.run_to(self.now);
        }
        found.is_some()
    }

    /// The request of `id` has ended, if it got in.
    pub fn end(&mut self, id: usize) -> bool {
        let found = self.permits.iter().position(|(known, _)| *known == id);
        if let Some(index) = found {
            drop(self.permits.remove(index));
            self.ended += 1;
            self.run_to(self.now);
        }
        found.is_some()
    }

    pub fn run_to(&mut self, until: Tick) {
        while let Some((index, now)) = self.next(until) {
            self.now = now;
            let waiting = &mut self.waiting[index];
            let waker = Waker::from(Arc::clone(&waiting.flag));
            let mut report = Report::default();
            let attempt = waiting.ticket.attempt(now, &waker, &mut report);
            let id = waiting.id;
            let admitted = match attempt {
                Attempt::Pending { wake_at } => {
                    assert!(wake_at > now, "a waiter would spin: {wake_at:?} at {now:?}");
                    waiting.wake_at = wake_at;
                    continue;
                }
                Attempt::Admitted(permit) => {
                    self.permits.push((id, permit));
                    true
                }
                Attempt::TimedOut(refusal) => {
                    self.timeouts.push((End { id, at: now, admitted: false }, refusal, report));
                    false
                }
            };
            drop(self.waiting.remove(index));
            self.ends.push(End { id, at: now, admitted });
        }
        self.now = self.now.max(until);
    }

    fn next(&self, until: Tick) -> Option<(usize, Tick)> {
        if let Some(woken) = self.waiting.iter().position(|waiting| waiting.flag.0.swap(false, Ordering::SeqCst)) {
            return Some((woken, self.now));
        }
        let due = self.waiting.iter().enumerate().filter(|(_, waiting)| waiting.wake_at <= until);
        due.min_by_key(|(_, waiting)| waiting.wake_at).map(|(index, waiting)| (index, waiting.wake_at.max(self.now)))
    }
}
