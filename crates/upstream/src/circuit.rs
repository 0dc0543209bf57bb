//! The breaker of an upstream, for all workers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluicegate_balance::{Breaker, BreakerEvent, BreakerState, BreakerTerms, Evidence, Passage};
use sluicegate_time::Tick;

/// A breaker that all workers share: while it is closed a request looks at one flag before it is sent, and takes one short
/// lock when its result is known.
pub struct Circuit {
    upstream: Arc<str>,
    is_closed: AtomicBool,
    breaker: Mutex<Breaker>,
}

/// Lets one request pass, until it has a result; dropped without one, it counts for nothing.
pub struct Pass {
    circuit: Arc<Circuit>,
    /// `None`: its result was told.
    passage: Option<Passage>,
}

impl Circuit {
    /// A closed one.
    pub fn new(upstream: Arc<str>, terms: BreakerTerms) -> Arc<Self> {
        Arc::new(Self { upstream, is_closed: AtomicBool::new(true), breaker: Mutex::new(Breaker::new(terms)) })
    }

    /// Changes its terms; its state stays.
    pub fn set_terms(&self, terms: BreakerTerms) {
        self.breaker().set_terms(terms);
    }

    /// Lets a request pass, or tells when the next one may try. `is_whole`: all of the request is here; one that is not
    /// may be withheld by its client.
    pub fn pass(self: &Arc<Self>, is_whole: bool, now: Tick) -> Result<Pass, Tick> {
        let passage =
            if self.is_closed.load(Ordering::Relaxed) { Passage::Normal } else { self.breaker().pass(is_whole, now) };
        match passage {
            Passage::Refused { retry_at } => Err(retry_at),
            passage => Ok(Pass { circuit: Arc::clone(self), passage: Some(passage) }),
        }
    }

    /// Its state.
    pub fn state(&self, now: Tick) -> BreakerState {
        self.breaker().state(now)
    }

    fn tell(&self, event: &BreakerEvent) {
        let (upstream, reason) = (&*self.upstream, &*event.reason);
        let (from, to) = (event.from.word(), event.to.word());
        if event.to == BreakerState::Open {
            tracing::warn!(target: "sluicegate::upstream::circuit", %upstream, from, to, reason, "breaker opened");
        } else {
            tracing::info!(target: "sluicegate::upstream::circuit", %upstream, from, to, reason, "breaker closed");
        }
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pass {
    /// Tells the result of the request.
    pub fn done(mut self, result: Evidence, now: Tick) {
        let Some(passage) = self.passage.take() else { return };
        let mut breaker = self.circuit.breaker();
        if let Some(event) = breaker.done(passage, result, now) {
            self.circuit.is_closed.store(event.to == BreakerState::Closed, Ordering::Relaxed);
            // Under the lock, so that lines are in the order of what they tell.
            self.circuit.tell(&event);
        }
    }

    /// Whether the breaker has opened since the request passed: it is not to be sent, or sent again.
    pub fn is_outdated(&self) -> bool {
        match &self.passage {
            Some(Passage::Normal) => !self.circuit.is_closed.load(Ordering::Relaxed),
            Some(probe) => !self.circuit.breaker().holds(probe),
            None => false,
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if let Some(passage) = self.passage.take()
            && passage != Passage::Normal
        {
            self.circuit.breaker().abandon(passage);
        }
    }
}

impl std::fmt::Debug for Pass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pass").field("passage", &self.passage).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_time::Span;

    const TERMS: BreakerTerms = BreakerTerms {
        errors_percent: 50,
        within: Span::from_secs(10),
        at_least: 4,
        open: Span::from_secs(5),
        probes: 1,
    };

    fn at(secs: u64) -> Tick {
        Tick::ZERO + Span::from_secs(secs)
    }

    #[test]
    fn requests_that_have_not_been_sent_when_it_opens_are_told_and_a_dropped_probe_frees_its_place() {
        let circuit = Circuit::new("app".into(), TERMS);
        let waiting = circuit.pass(true, at(0)).unwrap();
        for _ in 0..4 {
            assert!(!waiting.is_outdated());
            circuit.pass(true, at(0)).unwrap().done(Evidence::Failure { client: 1 }, at(0));
        }
        assert!(waiting.is_outdated());
        drop(waiting);
        assert_eq!(circuit.pass(true, at(4)).unwrap_err(), at(5));
        let probe = circuit.pass(true, at(5)).unwrap();
        assert!(!probe.is_outdated() && circuit.pass(true, at(5)).is_err());
        drop(probe);
        assert_eq!(circuit.state(at(5)), BreakerState::HalfOpen);
        circuit.pass(true, at(5)).unwrap().done(Evidence::Answer { client: 1 }, at(5));
        assert_eq!(circuit.state(at(5)), BreakerState::Closed);
        assert!((0..3).all(|_| circuit.pass(true, at(5)).is_ok()));
    }
}
