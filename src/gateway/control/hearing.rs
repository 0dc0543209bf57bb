//! Single keys in a fleet: what is done with them here is told to the others, and what others tell holds here within a second.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::sync::Arc;

use super::key_target::KeyTarget;
use super::{Control, ReloadState};
use crate::admission::{KeyAction, PendingKeyAction};
use crate::config::{LimitId, LimitRule};
use crate::fleet::{Heard, Mode, Notice};
use crate::gateway::component::Component as _;
use crate::gateway::exceptions::{ActTold, Before, Id, Secrets, SharedActs, is_by, read_heard, told, told_act};
use crate::gateway::handover::Inheritance;
use crate::gateway::live::{KeyLimit, LiveLimits};
use crate::gateway::notices::NoticeReceiver;
use crate::gateway::state_file::StateFile;
use crate::gateway::terms;
use crate::limiter::{Fingerprint, Limit, Penalty};
use crate::state::Mark;
use crate::time::{Clock, Span, Tick, Wall};

impl Control {
    /// Takes over what the others have told, as it is once nothing else changes here: what is told meanwhile is newer.
    pub(super) fn hear(&self, newest: &dyn Fn() -> Option<Heard>) {
        if self.phase.has_handed_over() {
            return;
        }
        let now = self.clock.now();
        let wall = self.clock.wall(now);
        let mut state = self.state();
        let Some(mut heard) = newest() else { return };
        state.overlay(&mut heard);
        let secrets = Secrets::of(&state.model, &state.lasting.hasher);
        if secrets.mark_of_fleet().is_none() {
            return;
        }
        if heard.is_nothing {
            state.acts.lock().hear_nothing();
            state.tell_all(&secrets);
            return;
        }
        let mut acts = BTreeMap::new();
        for mark in secrets.marks_of_fleet() {
            let mut heard = read_heard(&heard, mark, wall);
            if let Some(fleet) = state.fleet.fleet().filter(|_| !heard.ended.is_empty()) {
                fleet.tell(Notice { ended: heard.ended, ..Notice::default() });
            }
            state.lasting.exceptions.replace(mark, heard.entries, wall);
            acts.append(&mut heard.acts);
        }
        if state.renew_of_keys(wall) {
            self.renew_counted(&mut state);
        }
        let model = Arc::clone(&state.model);
        let new = state.acts.lock().hear(acts, wall);
        for (text, told) in &new {
            let rule = model.limits.iter().find(|rule| rule.spec.name == told.id.limit);
            if let Some(rule) = rule.filter(|rule| *told.by == *rule.key.to_string()) {
                state.act(rule, (text, told), now);
            }
        }
        state.lasting.install_exceptions(&model);
        drop(state);
        self.keep_exceptions();
    }

    /// The fleet and the figures know what counts from now on.
    pub(super) fn renew_counted(&self, state: &mut ReloadState) {
        let ReloadState { model, workers, lasting, figures, fleet, overload, .. } = state;
        overload.renew(&lasting.limits);
        figures.renew_limits(&self.registry, &workers.feed.latest(), lasting);
        if let Ok(staged) = fleet.stage(model, (&lasting.limits, &lasting.of_keys)) {
            fleet.commit(staged);
        }
    }

    /// From now on what others tell holds here, and they are told what the process before could not tell them.
    pub(super) fn listen_to_others(self: &Arc<Self>, notices: NoticeReceiver) -> io::Result<()> {
        self.state().tell_untold();
        let control = Arc::downgrade(self);
        notices.listen(move |newest| match control.upgrade() {
            Some(control) => {
                control.hear(newest);
                true
            }
            None => false,
        })
    }
}

impl ReloadState {
    /// Has the others told what a key's exceptions are now, and what is done with its counts. Answers whether they know it within
    /// a second, as far as that is known; `None`: there are no others.
    pub(super) fn tell(&mut self, target: &KeyTarget, act: Option<KeyAction>, now: Tick) -> Option<&'static str> {
        let Some(fleet) = self.fleet.fleet() else {
            let is_apart = "the other gateways are not told: without a store this holds at this gateway alone";
            return self.fleet.peers().map(|_| is_apart);
        };
        let secrets = Secrets::of(&self.model, &self.lasting.hasher);
        let mut notice = Notice::default();
        for id in target.ids().filter(|id| secrets.is_of_fleet(id.mark)) {
            notice.fields.append(&mut told(id, self.lasting.exceptions.get(id)).fields);
        }
        let id = &target.subject.id;
        if let Some(act) = act.filter(|_| target.counted.is_some()) {
            let told =
                ActTold { id: id.clone(), by: Arc::clone(&target.subject.by), act, at: self.lasting.clock.wall(now) };
            let mut telling = told_act(&told);
            let is_shared = self.rule(&id.limit).is_some_and(|rule| rule.spec.sharing.is_some());
            // Of a limit that is shared it is done once more when the store has removed its counts.
            if let Some((_, Some(text))) = telling.fields.first().filter(|_| !is_shared) {
                self.acts.lock().note(text.clone(), told);
            }
            notice.fields.append(&mut telling.fields);
        }
        if act == Some(KeyAction::Reset) {
            notice.forgotten = self.keys_in_store(target);
        }
        notice.ended = self.acts.lock().told_enough(self.lasting.clock.wall(now));
        fleet.tell(notice);
        self.lasting.exceptions.set_untold(fleet.untold());
        Some(match fleet.watch().status().mode {
            Mode::Shared if fleet.is_deaf() => {
                "the other gateways do not know: the store does not take exceptions of keys, and the log says why"
            }
            Mode::Shared => "is being told to the other gateways",
            _ => "the other gateways do not know: the store does not answer, and is told when it does",
        })
    }

    /// Adds what was not told yet to what was heard, and keeps it for a process that comes next.
    fn overlay(&mut self, heard: &mut Heard) {
        let Some(fleet) = self.fleet.fleet() else { return };
        let mut untold = fleet.untold();
        // What is on its way may be back already: told again by the next process, it would be an old word.
        untold.fields.retain(|(field, text)| heard.fields.get(field) != text.as_ref());
        if untold.fields.is_empty() {
            untold.forgotten.clear();
        }
        fleet.overlay(heard);
        self.lasting.exceptions.set_untold(untold);
    }

    /// The others are told what the process before could not tell them, where this is still the same fleet.
    fn tell_untold(&self) {
        let Some(fleet) = self.fleet.fleet() else { return };
        let secrets = Secrets::of(&self.model, &self.lasting.hasher);
        let mut untold = self.lasting.exceptions.untold().clone();
        untold.fields.retain(|(field, _)| secrets.marks_of_fleet().any(|mark| is_by(field, mark)));
        if !untold.fields.is_empty() {
            fleet.tell(untold);
        }
    }

    /// A store that knows nothing is told everything that this gateway knows of its fleet.
    fn tell_all(&self, secrets: &Secrets) {
        let Some(fleet) = self.fleet.fleet() else { return };
        let ours = self.lasting.exceptions.iter().filter(|(id, _)| secrets.is_of_fleet(id.mark));
        let fields: Vec<_> = ours.flat_map(|(id, entry)| told(id, Some(entry)).fields).collect();
        if !fields.is_empty() {
            fleet.tell(Notice { fields, ..Notice::default() });
        }
    }

    /// Where the store has the counts of a key.
    fn keys_in_store(&self, target: &KeyTarget) -> Vec<String> {
        let Some(counted) = target.counted else { return Vec::new() };
        let of_key = self.lasting.limits.iter().filter(|(own, _)| target.ids().any(|id| counts(own, id)));
        let keys = of_key.filter_map(|(_, (_, place))| place.keys.as_deref());
        keys.map(|keys| format!("{keys}{:016x}", counted.bits())).collect()
    }

    /// Everything that counts a key: its limit, what plans make of it, and its own numbers.
    pub(super) fn counting(&self, id: &Id) -> Vec<Arc<Limit>> {
        let of_key = self.lasting.limits.iter().filter(|(own, _)| counts(own, id));
        of_key.map(|(_, (limit, _))| Arc::clone(limit)).collect()
    }

    /// Does what another gateway has done with a key: at once where the limit counts it by the fleet's secret, else when the key
    /// comes the next time.
    fn act(&mut self, rule: &LimitRule, (text, told): (&str, &ActTold), now: Tick) {
        let limits = self.counting(&told.id);
        if rule.spec.sharing.is_some() {
            for limit in limits {
                act_on(&limit, told.id.print, told.act, now);
            }
            return;
        }
        let window = limits.iter().map(|limit| limit.longest_window()).max().unwrap_or(Span::ZERO);
        let block = rule.spec.penalty.map_or(Span::ZERO, Penalty::longest_memory);
        let wall = self.lasting.clock.wall(now);
        let once = PendingKeyAction::new(told.act, wall + window.max(block));
        self.acts.lock().wait(text, Arc::clone(&once));
        self.lasting.exceptions.do_once(told.id.clone(), &told.by, once, wall);
    }

    /// Sets the limits that count single keys from now on; whether that is another than before.
    fn renew_of_keys(&mut self, now: Wall) -> bool {
        let new = self.lasting.exceptions.counted(&self.model, now);
        let same = |one: &KeyLimit, other: &KeyLimit| (&one.id, &one.spec) == (&other.id, &other.spec);
        let old = &self.lasting.of_keys;
        if old.len() == new.len() && new.iter().all(|own| old.iter().any(|other| same(own, other))) {
            return false;
        }
        let kept: HashSet<&LimitId> = new.iter().map(|own| &own.id).collect();
        let gone: Vec<LimitId> = old.iter().map(|own| own.id.clone()).filter(|id| !kept.contains(id)).collect();
        for id in gone {
            // Who waits by it waits on: nobody else asks it any more.
            self.lasting.limits.remove(&id);
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

fn act_on(limit: &Limit, key: Fingerprint, act: KeyAction, now: Tick) {
    match act {
        KeyAction::Reset => limit.forget_key(key, now),
        KeyAction::EndBlock => limit.end_block(key, now),
    };
}

/// Gives the limits what counted in the process before, and answers the things that it has done with keys. A process
/// that has none of its counts does nothing that was told before it began: all that it counts is newer.
pub(super) fn take_over(
    inherited: &mut Inheritance,
    file: Option<&StateFile>,
    (limits, mark): (&LiveLimits, Mark),
    clock: &Clock,
) -> SharedActs {
    let now = clock.now();
    let (has_counts, done) = match file {
        _ if inherited.is_upgrade() => (inherited.take_over(limits, mark, now), inherited.acts()),
        Some(file) => (file.take_over(limits, now), file.done()),
        None => Default::default(),
    };
    let acts = file.map(StateFile::acts).unwrap_or_default();
    acts.lock().begin(Before { done, began: (!has_counts).then_some(clock.wall(now)) });
    acts
}
