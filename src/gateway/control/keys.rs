//! Changes of single keys: reset, blocked and let go, with numbers of their own for a while. A change holds for the next request on
//! every worker.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError};

use serde_json::{Value, json};

use super::key_target::KeyTarget;
use super::{Control, ReloadState};
use crate::admin::{KeyChange, Unchanged};
use crate::admission::{Block, KeyAction, Made, OwnNumbers};
use crate::config::{LimitRule, numbers_of_key};
use crate::gateway::blocks::{self, BlockSources};
use crate::gateway::exceptions::{
    BlockAsked, BlockSeen, ExceptionChange, ExceptionSeen, Id, KeyedExceptions, NumbersAsked, NumbersSeen, Secrets,
    parse_until, to_json,
};
use crate::gateway::limit_status::{self, NamedKey};
use crate::gateway::live::CountingScope;
use crate::gateway::terms;
use crate::limiter::{Fingerprint, Limit};
use crate::time::{Tick, Wall};

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
        let target = state.target(limit, value, takes_back, now)?;
        let (mut answer, act) = match change {
            KeyChange::Reset => (state.reset(&target, now), Some(KeyAction::Reset)),
            KeyChange::Block(body) => (state.block(&target, body, by, wall)?, None),
            KeyChange::Unblock => (state.unblock(&target, (now, wall)), Some(KeyAction::EndBlock)),
            KeyChange::Override(body) => (self.set_numbers(&mut state, &target, body, by, wall)?, None),
            KeyChange::NoOverride => (self.drop_numbers(&mut state, &target, wall), None),
        };
        // In a fleet others may have what is not here: they count the key too, and this one may not have heard of its exception.
        if let Some(nothing) = nothing_found(&answer).filter(|_| state.fleet.fleet().is_none()) {
            let shown = &*target.subject.shown;
            return Err(Unchanged::Unknown(format!("Limit {limit:?}, key {shown}: {nothing}; nothing was changed.")));
        }
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

    /// How a key of the limit called `limit` stands.
    pub(super) fn key(&self, limit: &str, value: &str) -> Result<Value, Unchanged> {
        let (state, now) = (self.state(), self.clock.now());
        let target = state.target(limit, value, false, now)?;
        let print = target.counted.ok_or_else(|| {
            let shown = &*target.subject.shown;
            Unchanged::Unknown(format!(
                "The limit {limit:?} counts {shown} by another secret: give the value of the key."
            ))
        })?;
        let own = state.lasting.exceptions.of_key(target.ids(), self.clock.wall(now));
        let key = NamedKey { print, shown: target.subject.shown.to_string() };
        Ok(json!({ "keys": limit_status::key(&state.model, &state.lasting, (limit, &key), &own, now) }))
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
        let seen = |(id, entry): (&Id, &KeyedExceptions)| {
            let mut entry = entry.clone();
            entry.exception = entry.exception.at(now)?;
            Some(ExceptionSeen::of(id, &entry))
        };
        json!({ "exceptions": state.lasting.exceptions.iter().filter_map(seen).collect::<Vec<_>>() })
    }

    /// A page of the keys that are blocked now. `peers` use admin: their addresses are not to be blocked by the kernel.
    pub(super) fn blocks(&self, peers: &[IpAddr], from: u64, max: usize) -> Value {
        let (state, now) = (self.state(), self.clock.now());
        let snapshot = state.workers.feed.latest();
        let ReloadState { model, lasting, .. } = &*state;
        blocks::page(&BlockSources { model, lasting, snapshot: &snapshot, peers, now }, from, max)
    }

    fn set_numbers(
        &self,
        state: &mut ReloadState,
        target: &KeyTarget,
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
        let before = state.change(target, ExceptionChange::Numbers(numbers), now)?;
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

    fn drop_numbers(&self, state: &mut ReloadState, target: &KeyTarget, now: Wall) -> Value {
        let before = state.change(target, ExceptionChange::NoNumbers, now).ok().and_then(|before| before.numbers);
        for id in target.ids() {
            // Who waits by them waits on in that queue: nobody else asks that limit any more.
            drop(state.take_numbers(id));
        }
        self.install(state, target);
        json!({ "own_numbers": null, "before": before.as_ref().map(|own| NumbersSeen::of(own, None)) })
    }

    /// From now on the limit's exceptions hold, and what counts by numbers of its own is known to the fleet and to the figures.
    fn install(&self, state: &mut ReloadState, target: &KeyTarget) {
        state.install_limit(&target.subject.id.limit);
        self.renew_counted(state);
    }
}

impl ReloadState {
    pub(super) fn rule(&self, limit: &str) -> Option<&LimitRule> {
        self.model.limits.iter().find(|rule| *rule.spec.name == *limit).map(|rule| &**rule)
    }

    fn change(
        &mut self,
        target: &KeyTarget,
        change: ExceptionChange,
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
    fn take_numbers(&mut self, id: &Id) -> Option<(Arc<Limit>, CountingScope)> {
        let id = id.limit_id();
        self.lasting.of_keys.retain(|own| own.id != id);
        self.lasting.limits.remove(&id)
    }

    /// Everything that counts a key, and by which fingerprint.
    fn counting_of(&self, target: &KeyTarget) -> Option<(Vec<Arc<Limit>>, Fingerprint)> {
        Some((target.ids().flat_map(|id| self.counting(id)).collect(), target.counted?))
    }

    fn install_limit(&mut self, limit: &str) {
        let Some(rule) = self.model.limits.iter().find(|rule| *rule.spec.name == *limit) else { return };
        let secrets = Secrets::of(&self.model, &self.lasting.hasher);
        self.lasting.exceptions.install_limit(rule, &self.lasting.limits, &secrets);
    }

    fn reset(&self, target: &KeyTarget, now: Tick) -> Value {
        let mut has_counted = false;
        if let Some((limits, key)) = self.counting_of(target) {
            for limit in limits {
                has_counted |= limit.forget_key(key, now);
            }
        }
        json!({ "found": { "counts": has_counted } })
    }

    fn block(&mut self, target: &KeyTarget, body: &[u8], by: &str, now: Wall) -> Result<Value, Unchanged> {
        let asked = BlockAsked::read(body)?;
        let until = ends(asked.until.as_deref(), now)?;
        let block = Block { until, made: made(now, by, asked.reason.as_deref()) };
        let seen = BlockSeen::by_hand(&block);
        let before = self.change(target, ExceptionChange::Block(block), now)?;
        self.install_limit(&target.subject.id.limit);
        Ok(json!({ "block": seen, "before": before.block.as_ref().map(BlockSeen::by_hand) }))
    }

    fn unblock(&mut self, target: &KeyTarget, (now, wall): (Tick, Wall)) -> Value {
        let by_hand = self.change(target, ExceptionChange::Unblock, wall).ok().and_then(|before| before.block);
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

/// The reason why a change that takes something away has found nothing; `None`: it has, or it makes something.
fn nothing_found(answer: &Value) -> Option<&'static str> {
    let found = &answer["found"];
    if found["counts"] == false {
        return Some("nothing is counted of it");
    }
    if found["by_hand"] == false && found["penalty"] == false {
        return Some("it is not blocked");
    }
    let has_none = answer.get("own_numbers").is_some_and(Value::is_null) && answer["before"].is_null();
    has_none.then_some("it has no numbers of its own")
}

fn ends(until: Option<&str>, now: Wall) -> Result<Option<Wall>, Unchanged> {
    until.map(|text| parse_until(text, now)).transpose().map_err(Unchanged::Wrong)
}

fn made(at: Wall, by: &str, reason: Option<&str>) -> Made {
    Made { at, by: by.into(), reason: reason.map(Arc::from) }
}
