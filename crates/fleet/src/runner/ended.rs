//! The consequences of how an exchange with the store has ended.

use std::sync::Arc;
use std::time::Duration;

use super::{Batch, FORGOTTEN, FinishedExchange, RECONNECTS, Runner, random};
use crate::Binding;
use crate::circuit::{CircuitState, ExchangeOutcome, Pass};
use crate::members::Members;
use crate::shared::ScriptReply;
use crate::store::{Store, StoreError};
use crate::store_clock::StoreClock;
use sluicegate_limiter::Wanted;
use sluicegate_time::{Span, Tick};

impl Runner {
    /// Takes it over.
    pub(super) fn done(&mut self, done: FinishedExchange) {
        match done {
            // Another store has been configured meanwhile.
            FinishedExchange::Connected { endpoint, .. } if *endpoint != self.settings.endpoint => {
                self.is_connecting = false;
                self.connect(Duration::ZERO);
            }
            FinishedExchange::Connected { connected, .. } => self.connected(connected),
            FinishedExchange::Settled { batch, sent, results } => self.settled(&batch, sent, results),
            FinishedExchange::Beaten { sent, is_probe, members } => self.beaten(sent, is_probe, members),
            FinishedExchange::Looked(looked) => self.looked(*looked),
        }
    }

    fn connected(&mut self, connected: Result<Store, StoreError>) {
        (self.is_connecting, self.is_starting) = (false, false);
        match connected {
            Ok(store) => {
                if let Some(policy) = &store.server().evicts {
                    tracing::warn!(
                        target: "sluicegate::fleet::runner::ended", policy,
                        "the fleet's store evicts keys when its memory is full, and forgets counts so: set its maxmemory-policy to noeviction"
                    );
                }
                self.board.update(|status| status.server = Some(store.server().clone()));
                self.store = Some(Arc::new(store));
                // It may be another machine's.
                self.store_clock = StoreClock::default();
                if self.circuit.state() == CircuitState::Closed {
                    self.change_mode(None);
                    self.beat(false);
                } else if self.circuit.pass(self.clock.now()) == Pass::Probe {
                    self.beat(true);
                }
            }
            Err(error) => {
                self.board.not_connected();
                self.change_mode(Some(&error));
                let longer = (u64::from(random()) * RECONNECTS.as_millis() as u64) >> 32;
                self.connect(RECONNECTS + Duration::from_millis(longer));
            }
        }
    }

    fn settled(&mut self, batch: &Batch, sent: Tick, results: Option<Vec<Result<Vec<i64>, StoreError>>>) {
        self.batches -= 1;
        let now = self.clock.now();
        let mut failure = None;
        let has_answered = results.is_some();
        let unanswered = |runner: &mut Self, (binding, wanted): &(Arc<Binding>, Wanted), is_refused| {
            binding.limit.unanswered(wanted, is_refused, now);
            runner.keep(binding);
        };
        let mut results = results.unwrap_or_default().into_iter();
        for settle in &batch.settles {
            let (binding, wanted) = settle;
            let reply = results.next();
            let read = match &reply {
                Some(Ok(reply)) => binding.shared.reply(reply),
                _ => None,
            };
            match read {
                Some(ScriptReply { answer: Some(answer), clock }) => {
                    self.store_clock.read(sent, now, clock);
                    binding.limit.answered(wanted, sent, &answer, now);
                }
                // In time here and late there: its clock has been set, or another window of a calendar has begun.
                Some(ScriptReply { answer: None, clock }) => {
                    self.store_clock.reread(sent, now, clock);
                    unanswered(self, settle, false);
                }
                // With an error it has answered: nobody needs to wait for more.
                None => unanswered(self, settle, reply.is_some()),
            }
            match reply {
                Some(Err(error)) if error.is_of_one_key() => self.log_error(binding.limit.name(), &error),
                Some(Err(error)) => failure = Some(error),
                Some(Ok(_)) if read.is_none() => failure = Some(StoreError::no_answer()),
                _ => {}
            }
        }
        let outcome = match &failure {
            None if has_answered => ExchangeOutcome::Answered,
            None => ExchangeOutcome::TimedOut,
            Some(_) => ExchangeOutcome::Failed,
        };
        self.note(outcome, now.since(sent));
        let error = failure.unwrap_or_else(|| StoreError::silent(self.wait_for(batch.is_ask).into()));
        let change = self.circuit.settled(outcome, now, random());
        self.after(outcome, change.is_some(), &error);
        self.send();
    }

    fn beaten(&mut self, sent: Tick, is_probe: bool, members: Option<Result<Members, StoreError>>) {
        let now = self.clock.now();
        let (outcome, error) = match members {
            Some(Ok(members)) => {
                self.store_clock.read(sent, now, members.clock);
                let since =
                    self.heard.filter(|(last, _)| sent.since(*last) < FORGOTTEN).map_or(sent, |(_, since)| since);
                self.living.see(members.count, (sent, since));
                self.heard = Some((sent, since));
                self.board.update(|status| (status.gateways, status.names) = (self.living.count(), members.names));
                (ExchangeOutcome::Answered, None)
            }
            Some(Err(error)) => {
                self.log_error("heartbeat", &error);
                (ExchangeOutcome::Failed, Some(error))
            }
            None => (ExchangeOutcome::TimedOut, None),
        };
        self.note(outcome, now.since(sent));
        let change = if is_probe {
            self.circuit.probed(outcome, now, random())
        } else {
            self.circuit.settled(outcome, now, random())
        };
        let error = error.unwrap_or_else(|| StoreError::silent(self.settings.deadline.into()));
        self.after(outcome, change.is_some(), &error);
    }

    /// Draws the consequences of how an exchange has ended.
    fn after(&mut self, outcome: ExchangeOutcome, has_changed: bool, error: &StoreError) {
        let needs_connection = outcome == ExchangeOutcome::Failed && error.needs_connection();
        // A connection over which nothing comes is not waited for.
        let is_stuck = outcome == ExchangeOutcome::TimedOut && self.circuit.state() != CircuitState::Closed;
        if needs_connection || is_stuck {
            self.lose_connection();
            self.connect(if is_stuck { RECONNECTS } else { Duration::ZERO });
        }
        if has_changed || needs_connection {
            self.change_mode(Some(error));
        }
    }

    pub(super) fn lose_connection(&mut self) {
        self.store = None;
        self.board.update(|status| status.server = None);
    }

    /// An exchange has ended.
    fn note(&self, outcome: ExchangeOutcome, took: Span) {
        self.took.observe(took);
        self.board.ended(outcome, took);
    }
}
