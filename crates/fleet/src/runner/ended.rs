//! The consequences of how an exchange with the store has ended.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{Batch, FORGOTTEN, FinishedExchange, RECONNECTS, Runner, random};
use crate::Binding;
use crate::circuit::{Circuit, CircuitState, ExchangeOutcome, Pass};
use crate::members::{Members, members_key};
use crate::shared::ScriptReply;
use crate::store::{Store, StoreError};
use crate::store_clock::StoreClock;
use sluicegate_limiter::Wanted;
use sluicegate_time::{Span, Tick};

/// A key that moves may be sent on by the node that has it next, too.
const HOPS: u32 = 2;

/// Settles that other nodes are to be asked: by the link, and whether that has the keys for now only.
type Onward = BTreeMap<(u32, bool), Vec<(Arc<Binding>, Wanted)>>;

impl Runner {
    /// Takes it over.
    pub(super) fn done(&mut self, done: FinishedExchange) {
        match done {
            FinishedExchange::Connected { link, connected } => self.connected(link, connected),
            FinishedExchange::Settled { link, batch, sent, results } => self.settled(link, batch, sent, results),
            FinishedExchange::Beaten { link, sent, is_probe, members } => self.beaten(link, (sent, is_probe), members),
            FinishedExchange::Looked(looked) => self.looked(*looked),
            FinishedExchange::Found(found) => self.found(*found),
        }
    }

    fn connected(&mut self, id: u32, connected: Result<Store, StoreError>) {
        let now = self.clock.now();
        // Another store has been configured meanwhile, or others have its keys.
        let Some(index) = self.links.iter().position(|link| link.id == id) else { return };
        let Some(link) = self.links.get_mut(index) else { return };
        (link.is_connecting, link.is_new) = (false, false);
        match connected {
            Ok(store) => {
                if let Some(policy) = &store.server().evicts {
                    tracing::warn!(
                        target: "sluicegate::fleet::runner::ended", policy,
                        "the fleet's store evicts keys when its memory is full, and forgets counts so: set its maxmemory-policy to noeviction"
                    );
                }
                link.store = Some(Arc::new(store));
                // It may be another machine's.
                link.clock = StoreClock::default();
                let is_asked = link.circuit.state() == CircuitState::Closed;
                let is_probe = !is_asked && link.circuit.pass(now) == Pass::Probe;
                self.adopt_new();
                if is_asked {
                    self.change_mode(None);
                }
                let index = self.links.iter().position(|link| link.id == id);
                if let Some(index) = index.filter(|_| is_asked || is_probe) {
                    self.beat(index, is_probe);
                }
            }
            Err(error) => {
                link.lost = Some(error.clone());
                self.board.not_connected();
                self.adopt_new();
                self.change_mode(Some(&error));
                let longer = (u64::from(random()) * RECONNECTS.as_millis() as u64) >> 32;
                self.connect(id, RECONNECTS + Duration::from_millis(longer));
            }
        }
    }

    /// The first attempt to connect to a server has ended: from then on it has its slots.
    fn adopt_new(&mut self) {
        if !self.links.iter().any(|link| link.is_new) {
            self.is_starting = false;
        }
        self.adopt();
    }

    fn settled(&mut self, id: u32, batch: Batch, sent: Tick, results: Option<Vec<Result<Vec<i64>, StoreError>>>) {
        let now = self.clock.now();
        if let Some(link) = self.link(id) {
            link.batches = link.batches.saturating_sub(1);
        }
        let Batch { settles, is_ask, first, hops } = batch;
        let (mut failure, has_answered) = (None, results.is_some());
        let mut results = results.unwrap_or_default().into_iter();
        let mut onward = Onward::new();
        for settle in settles {
            match results.next() {
                Some(Ok(reply)) => failure = self.replied(id, &settle, &reply, (sent, now)).or(failure),
                Some(Err(StoreError::Moved { redirect: Some(redirect), .. })) if self.owners.is_some() => {
                    match self.target(id, &redirect).filter(|_| hops < HOPS) {
                        Some(target) => onward.entry((target, redirect.is_asked)).or_default().push(settle),
                        None => self.unanswered(&settle, true, now),
                    }
                }
                Some(Err(error)) => {
                    if error.is_of_one_key() {
                        self.log_error(settle.0.limit.name(), &error);
                    } else {
                        failure = Some(error);
                    }
                    // It has answered: no request needs to wait for more.
                    self.unanswered(&settle, true, now);
                }
                None => self.unanswered(&settle, false, now),
            }
        }
        for ((target, is_asked), settles) in onward {
            self.send_batch(target, Batch { settles, is_ask, first, hops: hops + 1 }, is_asked);
        }
        let outcome = match &failure {
            None if has_answered => ExchangeOutcome::Answered,
            None => ExchangeOutcome::TimedOut,
            Some(_) => ExchangeOutcome::Failed,
        };
        self.note(outcome, now.since(sent));
        let error = failure.unwrap_or_else(|| StoreError::silent(self.wait_for(is_ask).into()));
        let change = self.link(id).and_then(|link| link.circuit.settled(outcome, (sent, now), random()));
        self.after(id, outcome, change.is_some(), &error);
        self.send();
    }

    /// A script has answered a settle; the fault if it is none of ours.
    fn replied(
        &mut self,
        id: u32,
        settle: &(Arc<Binding>, Wanted),
        reply: &[i64],
        (sent, now): (Tick, Tick),
    ) -> Option<StoreError> {
        let (binding, wanted) = settle;
        let Some(ScriptReply { answer, clock }) = binding.shared.reply(reply) else {
            self.unanswered(settle, true, now);
            return Some(StoreError::no_answer());
        };
        if let Some(link) = self.link(id) {
            match answer {
                Some(_) => link.clock.read(sent, now, clock),
                // In time here and late there: its clock has been set, or another window of a calendar has begun.
                None => link.clock.reread(sent, now, clock),
            }
        }
        match answer {
            Some(answer) => binding.limit.answered(wanted, sent, &answer, now),
            None => self.unanswered(settle, false, now),
        }
        None
    }

    /// No answer came to it; `is_refused`: none will.
    pub(super) fn unanswered(&mut self, (binding, wanted): &(Arc<Binding>, Wanted), is_refused: bool, now: Tick) {
        binding.limit.unanswered(wanted, is_refused, now);
        self.keep(binding);
    }

    fn beaten(&mut self, id: u32, (sent, is_probe): (Tick, bool), members: Option<Result<Members, StoreError>>) {
        let now = self.clock.now();
        let owner = self.owner_of(&members_key(&self.settings.prefix)).and_then(|owner| self.links.get(owner));
        let has_members = owner.is_some_and(|owner| owner.id == id);
        let (outcome, error) = match members {
            Some(Ok(members)) => {
                if let Some(link) = self.link(id) {
                    link.clock.read(sent, now, members.clock);
                }
                if has_members {
                    self.heard_of(members, sent);
                }
                (ExchangeOutcome::Answered, None)
            }
            // It lives, and another one has the key.
            Some(Err(StoreError::Moved { redirect: Some(redirect), .. })) if self.owners.is_some() => {
                self.target(id, &redirect);
                (ExchangeOutcome::Answered, None)
            }
            Some(Err(error)) => {
                self.log_error("heartbeat", &error);
                (ExchangeOutcome::Failed, Some(error))
            }
            None => (ExchangeOutcome::TimedOut, None),
        };
        self.note(outcome, now.since(sent));
        let count = if is_probe { Circuit::probed } else { Circuit::settled };
        let change = self.link(id).and_then(|link| count(&mut link.circuit, outcome, (sent, now), random()));
        let error = error.unwrap_or_else(|| StoreError::silent(self.settings.deadline.into()));
        self.after(id, outcome, change.is_some(), &error);
    }

    /// The store has heard of this gateway, and named those that live.
    fn heard_of(&mut self, members: Members, sent: Tick) {
        let since = self.heard.filter(|(last, _)| sent.since(*last) < FORGOTTEN).map_or(sent, |(_, since)| since);
        self.living.see(members.count, (sent, since));
        self.heard = Some((sent, since));
        self.board.update(|status| (status.gateways, status.names) = (self.living.count(), members.names));
    }

    /// Draws the consequences of how an exchange with a server has ended.
    fn after(&mut self, id: u32, outcome: ExchangeOutcome, has_changed: bool, error: &StoreError) {
        let Some(link) = self.link(id) else { return };
        let needs_connection = outcome == ExchangeOutcome::Failed && error.needs_connection();
        // A connection over which nothing comes is not waited for.
        let is_stuck = outcome == ExchangeOutcome::TimedOut && link.circuit.state() != CircuitState::Closed;
        if needs_connection || is_stuck {
            link.store = None;
            self.connect(id, if is_stuck { RECONNECTS } else { Duration::ZERO });
        }
        if has_changed || needs_connection {
            if let Some(link) = self.link(id).filter(|link| !link.is_up()) {
                link.lost = Some(error.clone());
            }
            self.change_mode(Some(error));
        }
    }

    /// An exchange has ended.
    fn note(&self, outcome: ExchangeOutcome, took: Span) {
        self.took.observe(took);
        self.board.ended(outcome, took);
    }
}
