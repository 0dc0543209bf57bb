//! Reloads: the file read anew, by the caller that asks for it.

use std::sync::Arc;
use std::sync::PoisonError;
use std::thread;

use super::written::FileStamp;
use super::{Control, ReloadState, Reloaded};
use crate::config::{self, Candidate, Certificates, LoadError, Loaded};
use crate::gateway::follow;
use crate::rules;

/// The reason of a reload.
#[derive(Clone, Copy)]
pub(super) struct Cause<'c> {
    /// False for the watcher, whose events are hints: the same content is not reported twice.
    pub(super) asked: bool,
    /// The author of the text, as the history names it.
    pub(super) by: &'c str,
    /// The change in a line; `None`: as the plan has it.
    pub(super) change: Option<&'c str>,
}

impl Cause<'_> {
    /// Somebody asks for a reload of the file as an editor has left it.
    pub(super) const ASKED: Self = Self { asked: true, by: "file", change: None };
}

/// The texts that are read.
pub(super) enum ReadTexts {
    /// The file as it is.
    File,
    /// A text in its place.
    Text(String),
    /// The file, with a text in the place of the rules that it follows.
    Candidate(Candidate),
}

impl From<Option<String>> for ReadTexts {
    fn from(text: Option<String>) -> Self {
        text.map_or(Self::File, Self::Text)
    }
}

/// A text that holds since a reload.
struct AcceptedText {
    text: String,
    summary: String,
}

/// Why a text does not hold: its digest, where it is right and cannot be built, and the report.
type NotTaken = (Option<[u8; 32]>, String);

impl Control {
    /// Reads the file again, and those that it names, and changes over to what it says. A file that is wrong changes nothing.
    ///
    /// `asked` is false for the watcher, whose events are hints: the same content is not reported twice.
    pub fn reload(self: &Arc<Self>, asked: bool) -> Result<Reloaded, String> {
        let _one_at_a_time = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        self.reload_alone(Cause { asked, ..Cause::ASKED })
    }

    /// The same for who holds the lock.
    pub(super) fn reload_alone(self: &Arc<Self>, cause: Cause<'_>) -> Result<Reloaded, String> {
        self.takes_rules()?;
        let asked = cause.asked;
        let mut written = FileStamp::at(&self.path);
        if !asked && self.is_as_it_was() {
            self.state().written = written;
            return Ok(Reloaded::Unchanged);
        }
        let loaded = self.load(ReadTexts::File).and_then(|loaded| self.complete(loaded));
        if !asked {
            self.note_creation(&written);
        }
        let mut state = self.state();
        state.note_files(&loaded);
        let is_known = !asked && state.has_seen(&loaded);
        let is_half_done = match &loaded {
            Ok(read) if !asked && !is_known => {
                written.may_be_half_done(&state.written, &state.model, read, self.clock.now())
            }
            _ => false,
        };
        state.written = written;
        if is_known || is_half_done {
            return Ok(Reloaded::Unchanged);
        }
        let loaded = loaded.map_err(|error| (None, error.to_string()));
        let taken = loaded.and_then(|loaded| self.take_over(&mut state, loaded, cause));
        let done = self.tell(&mut state, taken);
        let (model, generation) = (Arc::clone(&state.model), state.workers.feed.generation());
        // The history is written to a disk: not under the lock that others look through.
        drop(state);
        let (reloaded, taken) = done?;
        if let Some(AcceptedText { text, summary }) = taken {
            let entry = self.entry(generation, cause.by, cause.change.unwrap_or(&summary));
            self.records.note(&model, entry, &text);
        }
        Ok(reloaded)
    }

    /// Whether it takes new rules.
    pub(super) fn takes_rules(&self) -> Result<(), String> {
        if self.phase.has_handed_over() {
            return Err("another process has taken over, which reads the configuration".into());
        }
        if !self.phase.is_serving() {
            return Err("the gateway is draining; it reads no new configuration".into());
        }
        Ok(())
    }

    /// Changes over to what was read, if it differs from what runs.
    fn take_over(
        self: &Arc<Self>,
        state: &mut ReloadState,
        loaded: Loaded,
        cause: Cause<'_>,
    ) -> Result<(Reloaded, Option<AcceptedText>), NotTaken> {
        let Loaded { model, warnings, digest, text_digest, text, files } = loaded;
        if digest == state.digest {
            return Ok((Reloaded::Unchanged, None));
        }
        let model = Arc::new(model);
        let plan = config::diff(&state.model, &model);
        self.change_over(state, &model).map_err(|error| (Some(digest), error.to_string()))?;
        (state.digest, state.text_digest, state.files) = (digest, text_digest, files);
        let summary = rules::summary(&plan);
        state.last_plan = Some(serde_json::json!({
            "generation": state.workers.feed.generation(),
            "time": self.clock.wall_now().timestamp().to_string(),
            "by": cause.by,
            "plan": rules::plan(&plan),
        }));
        let and = if warnings.is_empty() { String::new() } else { format!("\n{warnings}") };
        Ok((Reloaded::Changed(plan.to_string() + &and), Some(AcceptedText { text, summary })))
    }

    /// Writes the outcome to the log, and keeps it for the caller that asks.
    fn tell(
        &self,
        state: &mut ReloadState,
        taken: Result<(Reloaded, Option<AcceptedText>), NotTaken>,
    ) -> Result<(Reloaded, Option<AcceptedText>), String> {
        match taken {
            Ok((reloaded, taken)) => {
                state.refused = None;
                state.last_error = None;
                match &reloaded {
                    Reloaded::Unchanged => tracing::info!("configuration unchanged"),
                    Reloaded::Changed(plan) => {
                        self.counts.reloaded(true);
                        let generation = state.workers.feed.generation();
                        tracing::info!(generation, "configuration reloaded");
                        // A line of its own for each change, so that it can be searched for.
                        for change in plan.lines() {
                            tracing::info!(generation, "{change}");
                        }
                    }
                }
                Ok((reloaded, taken))
            }
            Err((refused, report)) => {
                tracing::error!("reload rejected; the current configuration stays:\n{report}");
                state.refused = refused;
                state.last_error = Some(report.clone());
                self.counts.reloaded(false);
                Err(report)
            }
        }
    }

    /// Whether the file has the text that runs, and names no others: then there is nothing to read.
    pub(super) fn is_as_it_was(&self) -> bool {
        let state = self.state();
        let names_others = !state.files.is_empty() || !state.files_tried.is_empty();
        let text = (!names_others && state.last_error.is_none()).then_some(state.text_digest);
        drop(state);
        text.is_some() && config::text_digest(&self.path) == text
    }

    /// Reads the file, or a text in its place, in a thread that ends with that. An allocator such as glibc's keeps room for each
    /// thread that has freed much; that of a thread which has ended is the next one's, so that all reloads together keep it once.
    pub(super) fn load(&self, what: ReadTexts) -> Result<Loaded, LoadError> {
        // Reading may take as long as a file system likes: not under the lock that others look through.
        let known = self.state().model.known_plans();
        let certificates = Certificates::Lenient(self.clock.wall_now());
        let load = || match what {
            ReadTexts::File => config::load_again(&self.path, certificates, &known),
            ReadTexts::Text(text) => config::load_text(text, &self.path, certificates, &known),
            ReadTexts::Candidate(candidate) => config::load_following(&candidate, &self.path, certificates, &known),
        };
        thread::scope(|scope| match thread::Builder::new().name("reader".into()).spawn_scoped(scope, load) {
            Ok(reader) => reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(source) => Err(LoadError::Read { path: self.path.clone(), source }),
        })
    }

    /// The same with the rules of elsewhere, where none are kept: as at the start, nothing is taken over without.
    fn complete(&self, loaded: Loaded) -> Result<Loaded, LoadError> {
        if !loaded.model.lacks_rules() {
            return Ok(loaded);
        }
        let known = self.state().model.known_plans();
        follow::complete(loaded, &self.path, Certificates::Lenient(self.clock.wall_now()), &known)
    }

    /// An entry of the history, of now.
    pub(super) fn entry(&self, generation: u64, by: &str, change: &str) -> rules::HistoryEntry {
        rules::HistoryEntry {
            generation,
            time: self.clock.wall_now().timestamp().to_string(),
            by: by.to_owned(),
            change: change.to_owned(),
            sha256: String::new(),
        }
    }
}
