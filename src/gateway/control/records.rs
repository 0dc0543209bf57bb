//! The history of the configuration's texts, as the running gateway keeps it.

use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::config::{Model, RulesAccess};
use crate::rules::{self, Entry, History};

/// The history, if there is one.
pub(super) struct Records(Mutex<Kept>);

struct Kept {
    /// `None` if it cannot be read: nothing is written then.
    history: Option<History>,
    /// Whether it was told that it cannot be written.
    has_warned: bool,
}

impl Records {
    /// The history of a file. It is read, and made when the first text is added.
    pub(super) fn of(path: &Path) -> Self {
        let history = match History::open(path) {
            Ok((history, warnings)) => {
                for warning in warnings {
                    tracing::warn!("{warning}");
                }
                Some(history)
            }
            Err(error) => {
                let directory = rules::history_of(path);
                tracing::warn!(%error, "no history of the rules is kept; {} cannot be read", directory.display());
                None
            }
        };
        Self(Mutex::new(Kept { history, has_warned: false }))
    }

    /// The number of the generation that begins with the process: that of its text, if the last one had the same.
    pub(super) fn first_generation(&self, text: &str) -> u64 {
        let kept = self.kept();
        let Some(history) = &kept.history else { return 1 };
        let latest = history.latest().filter(|latest| latest.sha256 == rules::sha256(text));
        latest.map_or_else(|| history.next_generation(), |latest| latest.generation)
    }

    /// The number of the generation after `current`, which no text has had.
    pub(super) fn next_generation(&self, current: u64) -> u64 {
        let kept = self.kept();
        let next = kept.history.as_ref().map_or(1, History::next_generation);
        next.max(current + 1)
    }

    /// Adds a text that holds, where the rules of `model` may be changed by the API.
    pub(super) fn note(&self, model: &Model, entry: Entry, text: &str) {
        if !model.admin.as_ref().is_some_and(|admin| admin.rules == RulesAccess::Edit) {
            return;
        }
        let mut kept = self.kept();
        let Kept { history: Some(history), has_warned } = &mut *kept else { return };
        if let Err(error) = history.add(entry, text)
            && !std::mem::replace(has_warned, true)
        {
            // As of a file that its package owns: nobody changes it by the API, and nothing is wrong.
            tracing::info!(
                %error,
                "the history of the rules cannot be written: let the gateway's user write to the directory of the \
                 configuration, or say [admin] rules = \"read-only\""
            );
        }
    }

    /// The texts, the newest first.
    pub(super) fn list(&self) -> Vec<Entry> {
        self.kept().history.as_ref().map_or_else(Vec::new, |history| history.entries().rev().cloned().collect())
    }

    /// The entry and text of a generation; `None`: it is not in the history.
    pub(super) fn text(&self, generation: u64) -> Option<(Entry, io::Result<String>)> {
        let kept = self.kept();
        let history = kept.history.as_ref()?;
        let entry = history.entries().find(|entry| entry.generation == generation)?.clone();
        Some((entry, history.text(generation)))
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
