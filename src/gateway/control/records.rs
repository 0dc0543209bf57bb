//! The history of the configuration's texts, as the running gateway keeps it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::config::{Model, RulesAccess};
use crate::rules::{self, History, HistoryEntry};

/// The history, if there is one.
pub(super) struct Records(Mutex<StoredRecords>);

struct StoredRecords {
    path: PathBuf,
    /// Why it cannot be read, in place of it: nothing is written then.
    history: Result<History, String>,
    /// Why the text that holds is not in it.
    fault: Option<String>,
    /// Whether that was told since a text was written.
    has_warned: bool,
}

impl Records {
    /// The history of a file. It is read, and made when the first text is added.
    pub(super) fn of(path: &Path) -> Self {
        let history = open(path);
        if let Err(error) = &history {
            tracing::warn!(error, "no history of the rules is kept");
        }
        Self(Mutex::new(StoredRecords { path: path.to_owned(), history, fault: None, has_warned: false }))
    }

    /// The number of the generation that begins with the process: that of its text, if the last one had the same.
    pub(super) fn first_generation(&self, text: &str) -> u64 {
        let kept = self.kept();
        let Ok(history) = &kept.history else { return 1 };
        let latest = history.latest().filter(|latest| latest.sha256 == rules::sha256(text));
        latest.map_or_else(|| history.next_generation(), |latest| latest.generation)
    }

    /// The number of the generation after `current`, which no text has had. A history that could not be read is tried again:
    /// somebody may have mended it.
    pub(super) fn next_generation(&self, current: u64) -> u64 {
        let mut kept = self.kept();
        if kept.history.is_err() {
            kept.history = open(&kept.path);
        }
        kept.history.as_ref().map_or(1, History::next_generation).max(current + 1)
    }

    /// Adds a text that holds, where the rules of `model` may be changed by the API.
    pub(super) fn note(&self, model: &Model, entry: HistoryEntry, text: &str) {
        let mut kept = self.kept();
        if !model.admin.as_ref().is_some_and(|admin| admin.rules == RulesAccess::Edit) {
            kept.fault = None;
            return;
        }
        let is_start = entry.by == "start";
        let noted = match &mut kept.history {
            Ok(history) => history.add(entry, text).map_err(|error| error.to_string()),
            Err(error) => Err(error.clone()),
        };
        kept.fault = noted.err();
        match &kept.fault {
            None => kept.has_warned = false,
            // As of a file that its package owns: nobody has changed it by the API, and nothing is wrong.
            Some(error) if is_start => tracing::info!(error, "the history of the rules is not written: {REMEDY}"),
            Some(_) if kept.has_warned => {}
            Some(error) => {
                tracing::warn!(error, "the history of the rules is not written: {REMEDY}");
                kept.has_warned = true;
            }
        }
    }

    /// A warning, if the text that holds is not in the history.
    pub(super) fn warning(&self) -> Option<serde_json::Value> {
        let kept = self.kept();
        let (error, directory) = (kept.fault.as_ref()?, rules::history_of(&kept.path));
        let message = format!(
            "the text is in no history, and no rollback brings it back: {} is not written: {error}",
            directory.display()
        );
        Some(rules::warning(&message, REMEDY))
    }

    /// The texts, the newest first.
    pub(super) fn list(&self) -> Vec<HistoryEntry> {
        self.kept().history.as_ref().map_or_else(|_| Vec::new(), |history| history.entries().rev().cloned().collect())
    }

    /// The entry and text of a generation; `None`: it is not in the history.
    pub(super) fn text(&self, generation: u64) -> Option<(HistoryEntry, io::Result<String>)> {
        let kept = self.kept();
        let history = kept.history.as_ref().ok()?;
        let entry = history.entries().find(|entry| entry.generation == generation)?.clone();
        Some((entry, history.text(generation)))
    }

    fn kept(&self) -> MutexGuard<'_, StoredRecords> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a history that is not written is mended.
const REMEDY: &str = "let the gateway's user own the directory and write to it; the next change is kept then. Or say [admin] rules = \
                      \"read-only\"";

fn open(path: &Path) -> Result<History, String> {
    let (history, warnings) = History::open(path).map_err(|error| error.to_string())?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    Ok(history)
}
