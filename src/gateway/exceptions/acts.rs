use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::shared::{ActTold, field_of_act};
use crate::admission::PendingKeyAction;
use crate::time::{Span, Wall};

/// A thing that was told longer ago is not done any more: it is left over of a gateway that could not take it back.
const OLD: Span = Span::from_secs(600);
/// So long a reset is told to others: each reads it within a second.
const TOLD_FOR: Span = Span::from_secs(60);

/// The things to be done with keys that the gateways of a fleet have told each other. Each is done once: by whichever process of
/// this gateway hears of it first.
#[derive(Debug, Default)]
pub struct KeyActions {
    /// Those in the store, by the text that says so.
    known: BTreeMap<String, KnownAct>,
    /// Those that the process before has done, until this one has heard the store for the first time.
    before: Before,
}

#[derive(Debug)]
struct KnownAct {
    told: ActTold,
    /// It is done when the key comes the next time; `None`: it is done.
    waits: Option<Arc<PendingKeyAction>>,
}

/// The things that need not be done by a process that starts.
#[derive(Debug, Default)]
pub struct Before {
    /// Done by the process before, whose counts this one has.
    pub done: BTreeSet<String>,
    /// There are no counts of before: whatever was told before this instant would be done with newer ones.
    pub began: Option<Wall>,
}

/// The same, for who changes keys and who writes what is done beside the counts.
#[derive(Clone, Debug, Default)]
pub struct SharedActs(Arc<Mutex<KeyActions>>);

impl SharedActs {
    /// For who has the lock of the gateway's state, or none.
    pub fn lock(&self) -> MutexGuard<'_, KeyActions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeyActions {
    /// This process starts after another one.
    pub fn begin(&mut self, before: Before) {
        self.before = before;
    }

    /// Takes over what is in the store, and answers what is to be done.
    pub fn hear(&mut self, heard: BTreeMap<String, ActTold>, now: Wall) -> Vec<(String, ActTold)> {
        let Before { done, began } = std::mem::take(&mut self.before);
        let mut old = std::mem::take(&mut self.known);
        let mut new = Vec::new();
        for (text, told) in heard {
            let known = old.remove(&text);
            let is_over = now.since(told.at) >= OLD || began.is_some_and(|began| told.at < began);
            if known.is_none() && !is_over && !done.contains(&text) {
                new.push((text.clone(), told.clone()));
            }
            self.known.insert(text, known.unwrap_or(KnownAct { told, waits: None }));
        }
        new
    }

    /// The store knows nothing: what is told from now on is new.
    pub fn hear_nothing(&mut self) {
        self.before = Before::default();
    }

    /// This gateway has done it itself.
    pub fn note(&mut self, text: String, told: ActTold) {
        self.known.insert(text, KnownAct { told, waits: None });
    }

    /// It is not done before its key comes the next time.
    pub fn wait(&mut self, text: &str, once: Arc<PendingKeyAction>) {
        if let Some(known) = self.known.get_mut(text) {
            known.waits = Some(once);
        }
    }

    /// Those that are done, and that a process which starts now would do again.
    pub fn done(&self, now: Wall) -> BTreeSet<String> {
        let is_done = |known: &KnownAct| known.waits.as_ref().is_none_or(|once| once.is_done());
        let young = self.known.iter().filter(|(_, known)| now.since(known.told.at) < OLD && is_done(known));
        young.map(|(text, _)| text.clone()).chain(self.before.done.iter().cloned()).collect()
    }

    /// Those that were told long enough: their fields, and the texts that these have.
    pub fn told_enough(&self, now: Wall) -> Vec<(String, String)> {
        let is_old = |told: &ActTold| now.since(told.at) > TOLD_FOR || told.at > now + TOLD_FOR;
        let old = self.known.iter().filter(|(_, known)| is_old(&known.told));
        old.map(|(text, known)| (field_of_act(&known.told.id, known.told.act), text.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::KeyAction;
    use crate::gateway::exceptions::Id;
    use crate::limiter::Fingerprint;
    use crate::state::Mark;

    fn at(seconds: u64) -> Wall {
        Wall::EPOCH + Span::from_secs(10_000 + seconds)
    }

    fn told(print: u64, seconds: u64) -> (String, ActTold) {
        let id = Id { limit: "one".into(), mark: Mark::known(7), print: Fingerprint::known(print).unwrap() };
        let told = ActTold { id, by: "client-ip".into(), act: KeyAction::Reset, at: at(seconds) };
        (format!("{print} at {seconds}"), told)
    }

    fn hear(acts: &mut KeyActions, heard: &[(String, ActTold)], seconds: u64) -> Vec<String> {
        acts.hear(heard.iter().cloned().collect(), at(seconds)).into_iter().map(|(text, _)| text).collect()
    }

    #[test]
    fn a_thing_is_done_once_and_by_the_next_process_no_more() {
        let (one, two, old) = (told(1, 5), told(2, 6), told(3, 0));
        let mut acts = KeyActions::default();
        assert_eq!(hear(&mut acts, &[one.clone(), old], 600), [&*one.0], "ten minutes are long ago");
        assert_eq!(hear(&mut acts, &[one.clone(), two.clone()], 600), [&*two.0]);
        let once = PendingKeyAction::new(KeyAction::Reset, at(9_000));
        acts.wait(&two.0, Arc::clone(&once));
        assert_eq!(acts.done(at(600)), BTreeSet::from([one.0.clone()]), "the other one waits for its key");
        assert!(once.begins());
        let done = acts.done(at(600));
        assert_eq!(done, BTreeSet::from([one.0.clone(), two.0.clone()]));
        assert_eq!(acts.done(at(606)), BTreeSet::new(), "nobody would do them any more");
        let mut next = KeyActions::default();
        next.begin(Before { done: done.clone(), began: None });
        assert_eq!(next.done(at(600)), done, "also for the one after it, if it hears nothing");
        let three = told(4, 1);
        assert_eq!(hear(&mut next, &[one.clone(), two.clone(), three.clone()], 600), [three.0]);
        assert_eq!(hear(&mut next, &[], 600), Vec::<String>::new());
        assert_eq!(hear(&mut next, &[one], 600).len(), 1, "what was gone from the store is new");
    }

    #[test]
    fn without_counts_of_before_there_is_nothing_to_do_of_before() {
        let (one, two) = (told(1, 5), told(2, 6));
        let mut acts = KeyActions::default();
        acts.begin(Before { done: BTreeSet::new(), began: Some(at(6)) });
        assert_eq!(hear(&mut acts, &[one.clone(), two.clone()], 7), [two.0]);
        acts.begin(Before { done: BTreeSet::new(), began: Some(at(6)) });
        acts.hear_nothing();
        assert_eq!(hear(&mut acts, &[told(3, 5)], 7).len(), 1, "a clock that is slow");
    }

    #[test]
    fn what_was_told_for_a_minute_is_removed_with_its_own_text() {
        let mut acts = KeyActions::default();
        let (text, told) = told(2, 5);
        acts.note(text.clone(), told.clone());
        assert_eq!(acts.told_enough(at(65)), []);
        assert_eq!(acts.told_enough(at(66)), [(field_of_act(&told.id, told.act), text)]);
    }
}
