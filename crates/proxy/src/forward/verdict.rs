//! The answer that a server has begun is told to its roster, for ejection and slow start, and to the breaker of its upstream.

use super::oversized;
use super::relay::Relay;
use sluicegate_balance::Evidence;
use sluicegate_overload::ServerFailure;
use sluicegate_time::Tick;

/// By this status a server says that it cannot take more now (RFC 9110, 15.6.4).
const OVERLOADED: u16 = 503;

impl Relay<'_> {
    /// The head of the answer is here, with this status.
    pub(super) fn answered(&mut self, status: u16, now: Tick) {
        if self.upstream.is_copy() {
            return;
        }
        self.noted(status, now);
        if let Some(place) = &mut self.exchange.scratch.state.held.place {
            place.leave();
        }
        let (client, held) = (self.exchange.client_number(), &mut self.exchange.scratch.state.held);
        if let (Some(pass), Some(upstream)) = (held.pass.take(), &self.exchange.record.upstream) {
            let is_failure = upstream.spec.breaker.as_ref().is_some_and(|breaker| breaker.on.contains(status));
            match is_failure {
                false => pass.done(Evidence::Answer { client }, now),
                // Nobody is to blame.
                true if oversized::explains(self.exchange, status) => {}
                true => pass.done(Evidence::Failure { client }, now),
            }
        }
    }

    /// Tells of the server what it has answered.
    pub(super) fn noted(&mut self, status: u16, now: Tick) {
        let Some(upstream) = &self.exchange.record.upstream else { return };
        let took = now.since(self.sent_at);
        self.exchange.scratch.state.times.head = Some(took);
        let is_failure = upstream.spec.eject.as_ref().is_some_and(|eject| eject.on.contains(status));
        let is_trial = self.exchange.scratch.state.held.trial.take().is_some();
        self.upstream.observe(took);
        let client = self.exchange.client_number();
        // Nobody is to blame for what the size of the request explains.
        let is_fault = is_failure && !oversized::explains(self.exchange, status);
        let worker = &self.exchange.worker;
        let told = self.sent_whole.then_some(took);
        if let Some(place) = &self.exchange.scratch.state.held.place {
            place.observe(told, status == OVERLOADED, client, now);
        }
        if let (Some(responses), Some(took)) = (&upstream.shared.responses, told) {
            responses.add(worker.index, took, client, now, worker.random());
        }
        if let Some(overload) = &self.exchange.view.snapshot.overload {
            let failure = is_fault.then_some(ServerFailure::Status);
            overload.note_end(worker.index, failure, client, now, worker.random());
        }
        if !is_failure {
            self.upstream.answered(client, took, is_trial, now);
        } else if is_fault {
            self.upstream.failed(client, &format!("status {status}"), is_trial, now);
        }
    }
}
