//! Single keys in a fleet: what is done with them here is told to the others, and what others tell holds here within a second.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::sync::Arc;

use super::keys::Target;
use super::{Control, State};
use crate::admission::{Act, Once};
use crate::config::{LimitId, LimitRule, Model};
use crate::fleet::{Heard, Mode, Notice};
use crate::gateway::build::Lasting;
use crate::gateway::ear::Inner;
use crate::gateway::exceptions::{ActTold, Id, Secrets, read_heard, told, told_act, told_enough};
use crate::gateway::fleet::{self, Membership};
use crate::gateway::live::OfKey;
use crate::gateway::terms;
use crate::limiter::{Fingerprint, Limit, Penalty};
use crate::telemetry::Registry;
use crate::time::{Clock, Span, Tick};

/// A thing that was told longer ago is not done any more: it is left over of a gateway that could not take it back.
const OLD: Span = Span::from_secs(600);

impl Control {
    /// Takes over what the others have told, as it is once nothing else changes here: what is told meanwhile is newer.
    pub(super) fn hear(&self, newest: &dyn Fn() -> Option<Heard>) {
        if self.phase.has_handed_over() {
            return;
        }
        let now = self.clock.now();
        let mut state = self.state();
        let Some(mut heard) = newest() else { return };
        if let Some(membership) = &state.fleet {
            membership.fleet.overlay(&mut heard);
        }
        let secrets = Secrets::of(&state.model, &state.lasting.hasher);
        let Some(mark) = secrets.mark_of_fleet() else { return };
        if heard.is_nothing {
            state.tell_all(&secrets);
            return;
        }
        let heard = read_heard(&heard, mark);
        state.lasting.exceptions.replace(mark, heard.entries);
        if state.renew_of_keys(now) {
            self.renew_counted(&mut state);
        }
        let (model, new) = (Arc::clone(&state.model), heard.acts);
        let known = std::mem::replace(&mut state.acts, new.clone());
        for told in new.iter().filter(|(text, _)| !known.contains_key(*text)).map(|(_, told)| told) {
            let rule = model.limits.iter().find(|rule| rule.spec.name == told.id.limit);
            if let Some(rule) = rule.filter(|rule| *told.by == *rule.key.to_string() && now.since(told.at) < OLD) {
                state.act(rule, told, now);
            }
        }
        state.lasting.install_exceptions(&model);
        drop(state);
        self.keep_exceptions();
    }

    /// The fleet and the figures know what counts from now on.
    pub(super) fn renew_counted(&self, state: &mut State) {
        state.limit_gauges.renew(&self.registry, &state.lasting, &self.clock);
        let (model, running) = (Arc::clone(&state.model), state.fleet.take());
        state.fleet = state.renewed_fleet(&model, running, &self.clock, &self.registry);
    }

    /// From now on what others tell holds here.
    pub(super) fn listen_to_others(self: &Arc<Self>, ear: Inner) -> io::Result<()> {
        let control = Arc::downgrade(self);
        ear.listen(move |newest| match control.upgrade() {
            Some(control) => {
                control.hear(newest);
                true
            }
            None => false,
        })
    }
}

impl State {
    /// The fleet, once it knows which limits are shared.
    pub(super) fn renewed_fleet(
        &self,
        model: &Model,
        running: Option<Membership>,
        clock: &Clock,
        registry: &Arc<Registry>,
    ) -> Option<Membership> {
        let Lasting { limits, of_keys, ear, .. } = &self.lasting;
        fleet::renewed(running, (model, of_keys), limits, (clock, ear), registry)
    }

    /// Has the others told what a key's exceptions are now, and what is done with its counts. Answers whether they know it within
    /// a second; `None`: there are no others.
    pub(super) fn tell(&mut self, target: &Target, act: Option<Act>, now: Tick) -> Option<&'static str> {
        let fleet = &self.fleet.as_ref()?.fleet;
        let id = &target.subject.id;
        let mut notice = told(id, self.lasting.exceptions.get(id));
        if let Some(act) = act {
            let told = ActTold { id: id.clone(), by: Arc::clone(&target.subject.by), act, at: now };
            let mut telling = told_act(&told);
            let is_shared = self.rule(&id.limit).is_some_and(|rule| rule.spec.sharing.is_some());
            // Of a limit that is shared it is done once more when the store has removed its counts.
            if let Some((_, Some(text))) = telling.fields.first().filter(|_| !is_shared) {
                self.acts.insert(text.clone(), told);
            }
            notice.fields.append(&mut telling.fields);
        }
        if act == Some(Act::Reset) {
            notice.forgotten = self.keys_in_store(target);
        }
        notice.fields.extend(told_enough(&self.acts, now).fields);
        fleet.tell(notice);
        Some(match fleet.watch().status().mode {
            Mode::Shared => "told to the other gateways",
            _ => "the other gateways do not know: the store does not answer, and is told when it does",
        })
    }

    /// A store that knows nothing is told everything that this gateway knows of its fleet.
    fn tell_all(&self, secrets: &Secrets) {
        let Some(fleet) = self.fleet.as_ref().map(|membership| &membership.fleet) else { return };
        let mark = secrets.mark_of_fleet();
        let ours = self.lasting.exceptions.iter().filter(|(id, _)| Some(id.mark) == mark);
        let fields: Vec<_> = ours.flat_map(|(id, entry)| told(id, Some(entry)).fields).collect();
        if !fields.is_empty() {
            fleet.tell(Notice { fields, forgotten: Vec::new() });
        }
    }

    /// Where the store has the counts of a key.
    fn keys_in_store(&self, target: &Target) -> Vec<String> {
        let of_key = self.lasting.limits.iter().filter(|(own, _)| counts(own, &target.subject.id));
        let keys = of_key.filter_map(|(_, (_, place))| place.keys.as_deref());
        keys.map(|keys| format!("{keys}{:016x}", target.counted.bits())).collect()
    }

    /// Everything that counts a key: its limit, what plans make of it, and its own numbers.
    pub(super) fn counting(&self, id: &Id) -> Vec<Arc<Limit>> {
        let of_key = self.lasting.limits.iter().filter(|(own, _)| counts(own, id));
        of_key.map(|(_, (limit, _))| Arc::clone(limit)).collect()
    }

    /// Does what another gateway has done with a key: at once where the limit counts it by the fleet's secret, else when the key
    /// comes the next time.
    fn act(&mut self, rule: &LimitRule, told: &ActTold, now: Tick) {
        let limits = self.counting(&told.id);
        if rule.spec.sharing.is_some() {
            for limit in limits {
                act_on(&limit, told.id.print, told.act, now);
            }
            return;
        }
        let window = limits.iter().map(|limit| limit.longest_window()).max().unwrap_or(Span::ZERO);
        let block = rule.spec.penalty.map_or(Span::ZERO, Penalty::block);
        let once = Once::new(told.act, now + window.max(block));
        self.lasting.exceptions.do_once(told.id.clone(), &told.by, once, now);
    }

    /// Sets the limits that count single keys from now on; whether that is another than before.
    fn renew_of_keys(&mut self, now: Tick) -> bool {
        let new = self.lasting.exceptions.counted(&self.model, now);
        let same = |one: &OfKey, other: &OfKey| (&one.id, &one.spec) == (&other.id, &other.spec);
        let old = &self.lasting.of_keys;
        if old.len() == new.len() && new.iter().all(|own| old.iter().any(|other| same(own, other))) {
            return false;
        }
        let kept: HashSet<&LimitId> = new.iter().map(|own| &own.id).collect();
        let gone: Vec<LimitId> = old.iter().map(|own| own.id.clone()).filter(|id| !kept.contains(id)).collect();
        for id in gone {
            if let Some((limit, _)) = self.lasting.limits.remove(&id) {
                limit.release();
            }
        }
        for own in &new {
            terms::live_of_key(&self.model, own, &mut self.lasting.limits);
        }
        self.lasting.of_keys = new;
        true
    }
}

/// Whether a limit counts a key.
fn counts(own: &LimitId, id: &Id) -> bool {
    own.limit == id.limit && own.key.is_none_or(|key| key == id.print)
}

fn act_on(limit: &Limit, key: Fingerprint, act: Act, now: Tick) {
    match act {
        Act::Reset => limit.forget_key(key, now),
        Act::EndBlock => limit.end_block(key, now),
    };
}

/// The things that others have told to be done, by the text that says so.
pub(super) type Acts = BTreeMap<String, ActTold>;
