//! Changes of single keys: reset, blocked and let go, with numbers of their own for a while. A change holds for the next request on
//! every worker.

use std::sync::{Arc, PoisonError};

use serde_json::{Value, json};

use super::{Control, State};
use crate::admin::{KeyChange, Unchanged};
use crate::admission::{Act, Block, Made, OwnNumbers};
use crate::config::{LimitRule, numbers_of_key};
use crate::gateway::exceptions::{
    BlockAsked, BlockSeen, Change, Entry, ExceptionSeen, Id, NumbersAsked, NumbersSeen, Secrets, Subject, parse_until,
    to_json,
};
use crate::gateway::limit_status;
use crate::gateway::live::Place;
use crate::gateway::terms;
use crate::limiter::{Fingerprint, Limit};
use crate::time::{Tick, Wall};

/// A key, and by which fingerprint its limit counts it.
pub(super) struct Target {
    pub(super) subject: Subject,
    /// The same key where an exception that it has was made by another secret, or for another key of the limit.
    others: Vec<Subject>,
    /// As its limit counts it; `None`: there is no such limit any more, or it has another key.
    pub(super) counted: Option<Fingerprint>,
}

impl Target {
    /// All that it is known by.
    pub(super) fn ids(&self) -> impl Iterator<Item = &Id> {
        [&self.subject].into_iter().chain(&self.others).map(|subject| &subject.id)
    }
}

impl Control {
    /// Changes a key of the limit called `limit`. The answer says what was found and what holds from now on.
    ///
    /// A reload and an upgrade in place are waited for: a change in between would be lost.
    pub(super) fn change_key(
        &self,
        limit: &str,
        value: &str,
        change: KeyChange<'_>,
        by: &str,
    ) -> Result<Value, Unchanged> {
        let _one_at_a_time = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        if self.phase.has_handed_over() {
            return Err(Unchanged::Ended("Another process has taken over: ask again.".into()));
        }
        let now = self.clock.now();
        let wall = self.clock.wall(now);
        let mut state = self.state();
        let takes_back = matches!(change, KeyChange::Unblock | KeyChange::NoOverride);
        let target = state.target(limit, value, takes_back)?;
        let (mut answer, act) = match change {
            KeyChange::Reset => (state.reset(&target, now), Some(Act::Reset)),
            KeyChange::Block(body) => (state.block(&target, body, by, wall)?, None),
            KeyChange::Unblock => (state.unblock(&target, (now, wall)), Some(Act::EndBlock)),
            KeyChange::Override(body) => (self.set_numbers(&mut state, &target, body, by, wall)?, None),
            KeyChange::NoOverride => (self.drop_numbers(&mut state, &target, wall), None),
        };
        if let Some(told) = state.tell(&target, act, now) {
            answer["fleet"] = told.into();
        }
        drop(state);
        // Also of a reset: it may have to be told by the process that comes next.
        let kept = self.keep_exceptions();
        if change != KeyChange::Reset {
            answer["kept"] = kept.into();
        }
        let shown = &*target.subject.shown;
        answer["limit"] = limit.into();
        answer["key"] = shown.into();
        Ok(answer)
    }

    /// Writes them where they outlive the process; says whether they do.
    pub(super) fn keep_exceptions(&self) -> &'static str {
        const UNTIL_END: &str = "until the process ends: [server] has no state_file";
        const NOT_YET: &str =
            "until the process ends: state_file holds from the next one on, such as after `sluicegate upgrade`";
        let Some(file) = &self.exceptions_file else {
            return if self.state().model.server.state_file.is_some() { NOT_YET } else { UNTIL_END };
        };
        let _one_at_a_time = self.keeping.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under that lock: the last one to write writes the newest.
        let json = to_json(&self.state().lasting.exceptions);
        match file.write(&json) {
            Ok(()) => "over restarts",
            Err(error) => {
                tracing::error!(file = %file.path().display(), %error, "exceptions of keys are not written: a restart would lose them");
                "until the process ends: the file beside state_file cannot be written, see the log"
            }
        }
    }

    /// All exceptions that hold, in the order of their limits.
    pub(super) fn exceptions(&self) -> Value {
        let (state, now) = (self.state(), self.clock.wall_now());
        let seen = |(id, entry): (&Id, &Entry)| {
            let mut entry = entry.clone();
            entry.exception = entry.exception.at(now)?;
            Some(ExceptionSeen::of(id, &entry))
        };
        json!({ "exceptions": state.lasting.exceptions.iter().filter_map(seen).collect::<Vec<_>>() })
    }

    fn set_numbers(
        &self,
        state: &mut State,
        target: &Target,
        body: &[u8],
        by: &str,
        now: Wall,
    ) -> Result<Value, Unchanged> {
        let asked = NumbersAsked::read(body)?;
        let until = ends(asked.until.as_deref(), now)?;
        numbers_of_key(&state.model, &target.subject.id.limit, &asked.toml).map_err(Unchanged::Wrong)?;
        let numbers =
            OwnNumbers { until, made: made(now, by, asked.reason.as_deref()), text: asked.toml.into(), limit: None };
        let seen = NumbersSeen::of(&numbers, None);
        let before = state.change(target, Change::Numbers(numbers), now)?;
        let id = &target.subject.id;
        for other in &target.others {
            // It goes on with what the numbers before have counted.
            if let Some(limit) = state.take_numbers(&other.id) {
                state.lasting.limits.entry(id.limit_id()).or_insert(limit);
            }
        }
        if let Some(of_key) = state.lasting.exceptions.counted_of(&state.model, id, now) {
            terms::live_of_key(&state.model, &of_key, &mut state.lasting.limits);
            state.lasting.of_keys.retain(|own| own.id != of_key.id);
            state.lasting.of_keys.push(of_key);
        }
        self.install(state, target);
        let before = before.numbers.as_ref().map(|own| NumbersSeen::of(own, None));
        Ok(json!({ "own_numbers": seen, "before": before }))
    }

    fn drop_numbers(&self, state: &mut State, target: &Target, now: Wall) -> Value {
        let before = state.change(target, Change::NoNumbers, now).ok().and_then(|before| before.numbers);
        for id in target.ids() {
            // Who waits by them waits on in that queue: nobody else asks that limit any more.
            drop(state.take_numbers(id));
        }
        self.install(state, target);
        json!({ "own_numbers": null, "before": before.as_ref().map(|own| NumbersSeen::of(own, None)) })
    }

    /// From now on the limit's exceptions hold, and what counts by numbers of its own is known to the fleet and to the figures.
    fn install(&self, state: &mut State, target: &Target) {
        state.install_limit(&target.subject.id.limit);
        self.renew_counted(state);
    }
}

impl State {
    /// The key that is meant. An exception can be taken back though its limit is gone, or has another key.
    fn target(&self, limit: &str, value: &str, takes_back: bool) -> Result<Target, Unchanged> {
        let secrets = Secrets::of(&self.model, &self.lasting.hasher);
        let named = self.lasting.exceptions.named(limit, value, (self.model.client.address_form(), &secrets));
        match self.target_now(limit, value, &secrets) {
            Ok(mut target) => {
                // One that does not hold may hold again; what is made now takes the place of one that holds.
                let is_other = |named: &Subject| named.id != target.subject.id;
                let holds = |named: &Subject| named.by == target.subject.by && secrets.by_mark(named.id.mark).is_some();
                target.others =
                    named.into_iter().filter(|named| is_other(named) && (takes_back || holds(named))).collect();
                Ok(target)
            }
            Err(error) => {
                let mut named = named.into_iter().filter(|_| takes_back);
                let subject = named.next().ok_or(error)?;
                Ok(Target { subject, others: named.collect(), counted: None })
            }
        }
    }

    /// The key of a limit as it is now.
    fn target_now(&self, limit: &str, value: &str, secrets: &Secrets) -> Result<Target, Unchanged> {
        let rule = self.rule(limit).ok_or_else(|| Unchanged::Unknown(limit_status::no_limit_of(&self.model, limit)))?;
        let (mark, hasher) = secrets.for_new();
        let key = limit_status::named_key(&self.model, (&self.lasting.hasher, &self.lasting.redactor), rule, value)
            .map_err(Unchanged::Unknown)?;
        let print = rule
            .key
            .fingerprint_of_value(value, self.model.client.address_form(), hasher)
            .map_err(|error| Unchanged::Unknown(error.to_string()))?;
        let id = Id { limit: Arc::clone(&rule.spec.name), mark: *mark, print };
        let subject = Subject { id, by: rule.key.to_string().into(), shown: key.shown.as_str().into() };
        Ok(Target { subject, others: Vec::new(), counted: Some(key.print) })
    }

    pub(super) fn rule(&self, limit: &str) -> Option<&LimitRule> {
        self.model.limits.iter().find(|rule| *rule.spec.name == *limit)
    }

    fn change(
        &mut self,
        target: &Target,
        change: Change,
        now: Wall,
    ) -> Result<crate::admission::KeyException, Unchanged> {
        let exceptions = &mut self.lasting.exceptions;
        let ends = change.end();
        let mut before =
            exceptions.change(&target.subject, change, now).map_err(|full| Unchanged::Full(full.to_string()))?;
        for other in &target.others {
            let other =
                exceptions.change(other, ends.clone(), now).map_err(|full| Unchanged::Full(full.to_string()))?;
            before = before.or(other);
        }
        Ok(before)
    }

    /// The limit that counts a key by numbers of its own counts it no more.
    fn take_numbers(&mut self, id: &Id) -> Option<(Arc<Limit>, Place)> {
        let id = id.limit_id();
        self.lasting.of_keys.retain(|own| own.id != id);
        self.lasting.limits.remove(&id)
    }

    /// Everything that counts a key, and by which fingerprint.
    fn counting_of(&self, target: &Target) -> Option<(Vec<Arc<Limit>>, Fingerprint)> {
        Some((target.ids().flat_map(|id| self.counting(id)).collect(), target.counted?))
    }

    fn install_limit(&mut self, limit: &str) {
        let Some(rule) = self.model.limits.iter().find(|rule| *rule.spec.name == *limit) else { return };
        let secrets = Secrets::of(&self.model, &self.lasting.hasher);
        self.lasting.exceptions.install_limit(rule, &self.lasting.limits, &secrets);
    }

    fn reset(&self, target: &Target, now: Tick) -> Value {
        let mut has_counted = false;
        if let Some((limits, key)) = self.counting_of(target) {
            for limit in limits {
                has_counted |= limit.forget_key(key, now);
            }
        }
        json!({ "found": { "counts": has_counted } })
    }

    fn block(&mut self, target: &Target, body: &[u8], by: &str, now: Wall) -> Result<Value, Unchanged> {
        let asked = BlockAsked::read(body)?;
        let until = ends(asked.until.as_deref(), now)?;
        let block = Block { until, made: made(now, by, asked.reason.as_deref()) };
        let seen = BlockSeen::by_hand(&block);
        let before = self.change(target, Change::Block(block), now)?;
        self.install_limit(&target.subject.id.limit);
        Ok(json!({ "block": seen, "before": before.block.as_ref().map(BlockSeen::by_hand) }))
    }

    fn unblock(&mut self, target: &Target, (now, wall): (Tick, Wall)) -> Value {
        let by_hand = self.change(target, Change::Unblock, wall).ok().and_then(|before| before.block);
        self.install_limit(&target.subject.id.limit);
        let mut by_penalty = false;
        if let Some((limits, key)) = self.counting_of(target) {
            for limit in limits {
                by_penalty |= limit.end_block(key, now);
            }
        }
        json!({ "block": null, "found": { "by_hand": by_hand.is_some(), "penalty": by_penalty } })
    }
}

fn ends(until: Option<&str>, now: Wall) -> Result<Option<Wall>, Unchanged> {
    until.map(|text| parse_until(text, now)).transpose().map_err(Unchanged::Wrong)
}

fn made(at: Wall, by: &str, reason: Option<&str>) -> Made {
    Made { at, by: by.into(), reason: reason.map(Arc::from) }
}
