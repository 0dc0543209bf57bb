//! Counts that outlive the process: `state_file` of `[server]`.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::exceptions::{DoneFile, ExceptionsFile, SharedActs};
use super::live::LiveLimits;
use crate::config::{LimitId, Model};
use crate::files;
use crate::limiter::{KeyHasher, Limit};
use crate::redact::{Secret, SecretError};
use crate::state::{self, Mark, Named, ReadError};
use crate::time::{Clock, Span, Tick};

/// Where counts are kept.
pub struct StateFile {
    path: PathBuf,
    mark: Mark,
    /// The things done with keys, which the counts have.
    acts: SharedActs,
}

/// By which fingerprints of keys are made.
pub struct Prints {
    /// The secret, for the process that takes over from this one.
    pub secret: Secret,
    /// Tells it from others.
    pub mark: Mark,
}

impl StateFile {
    /// That of a model, and what makes fingerprints: with a file, by the secret beside it, which is made at the first start,
    /// of the one that a process before has, if there is one. Without the secret there is no file either, and a warning.
    pub fn of(model: &Model, inherited: Option<&[u8]>) -> (KeyHasher, Prints, Option<Self>) {
        let is_upgrade = inherited.is_some();
        let inherited = inherited.map_or_else(Secret::random, Secret::of);
        let Some(path) = model.server.state_file.clone() else { return Self::by(inherited, None) };
        let secret_path = files::beside(&path, ".secret");
        if is_upgrade {
            leave_aside(&path, &secret_path, &inherited);
        }
        match Secret::load_or_keep(&secret_path, inherited.clone()) {
            Ok(secret) => Self::by(secret, Some(path)),
            Err(error) => {
                // The words of others are about the file of [dead_letter].
                let error = match error {
                    SecretError::Make(path, error) => format!(
                        "cannot make {}: {error}; let the gateway's user write the directory of state_file",
                        path.display()
                    ),
                    other => other.to_string(),
                };
                tracing::error!(
                    error,
                    "counts will not outlive the process: the secret beside state_file cannot be used"
                );
                Self::by(inherited, None)
            }
        }
    }

    fn by(secret: Secret, path: Option<PathBuf>) -> (KeyHasher, Prints, Option<Self>) {
        let hasher = KeyHasher::with_bytes(secret.bytes());
        let mark = Mark::of(&hasher);
        (hasher, Prints { secret, mark }, path.map(|path| Self { path, mark, acts: SharedActs::default() }))
    }

    /// Where exceptions of keys are kept: beside it, since their fingerprints are by the same secret.
    pub fn exceptions(&self) -> ExceptionsFile {
        ExceptionsFile::beside(&self.path)
    }

    /// The things done with keys of which it is written that they are, with the counts.
    pub fn acts(&self) -> SharedActs {
        self.acts.clone()
    }

    /// The things that the process before has done with keys.
    pub fn done(&self) -> BTreeSet<String> {
        DoneFile::beside(&self.path).read()
    }

    /// The machine's clock, with the ticks that the file is by.
    pub fn clock(&self) -> Clock {
        let now = Clock::system().wall_now();
        state::wall_of(&self.path, self.mark, now).map_or_else(Clock::system, |state| Clock::resume(&state))
    }

    /// Gives the limits what counted in another process; whether there was any. Whatever is wrong with the file is a line of the
    /// log.
    pub fn take_over(&self, limits: &LiveLimits, now: Tick) -> bool {
        let file = self.path.display();
        let known = by_name(limits);
        match state::read(&self.path, self.mark, now, |name| known.get(name).map(Arc::clone)) {
            Ok(taken) => {
                let age = now.since(taken.at);
                tracing::info!(%file, keys = taken.keys, no_longer = taken.left, %age, "counts taken over");
                if !taken.unknown.is_empty() {
                    let limits = taken.unknown.join(", ");
                    tracing::warn!(%file, limits, "counts left out: these limits are gone, or have other numbers");
                }
                return true;
            }
            Err((ReadError::NoFile, _)) => tracing::info!(%file, "no counts of before: there is no state file yet"),
            Err((error, bad)) => {
                let left_aside = bad.map(|bad| bad.display().to_string());
                tracing::warn!(%file, %error, left_aside, "counts begin anew, but for what was taken over");
            }
        }
        false
    }

    /// Writes what counts now.
    pub fn write(&self, limits: &LiveLimits, clock: &Clock) {
        let now = clock.now();
        let wall = clock.wall(now);
        // Before the counts: of what is done meanwhile they may not have all.
        let done = self.acts.lock().done(wall);
        let written = state::write(&self.path, self.mark, (now, &clock.wall_state()), named(limits));
        let written = written.and_then(|written| DoneFile::beside(&self.path).write(&done).map(|()| written));
        match written {
            Ok(written) => tracing::debug!(keys = written.keys, bytes = written.bytes, "counts written"),
            Err(error) => {
                tracing::error!(file = %self.path.display(), %error, "counts are not written: a restart would lose them");
            }
        }
    }
}

/// The counts of the process before are by its secret: a file of another one is not read, and would be written over.
fn leave_aside(path: &Path, secret_path: &Path, inherited: &Secret) {
    let is_other = |secret: Secret| secret.bytes() != inherited.bytes();
    if Secret::load(secret_path).ok().flatten().is_some_and(is_other) {
        for path in [path, secret_path] {
            let _ = std::fs::rename(path, files::beside(path, ".bad"));
        }
        let file = path.display();
        tracing::warn!(%file, "the state file is of another secret than the gateway that runs; it is left aside as .bad");
    }
}

/// Limits by the names that their keys are kept under.
pub fn by_name(limits: &LiveLimits) -> HashMap<String, Arc<Limit>> {
    limits.iter().map(|(id, place)| (name_of(id, place), Arc::clone(&place.0))).collect()
}

/// Limits with the names that their keys are kept under.
pub fn named(limits: &LiveLimits) -> impl Iterator<Item = Named<'_>> {
    limits.iter().map(|(id, place)| Named { name: name_of(id, place), limit: &place.0 })
}

/// The name that the keys of a limit are kept under: with another key, or as another plan has it, they are others.
fn name_of(id: &LimitId, (_, place): &(Arc<Limit>, super::live::CountingScope)) -> String {
    let plan = id.plan.as_ref().map(|plan| format!(", plan {plan}")).unwrap_or_default();
    let key = id.key.map(|key| format!(", key {:016x}", key.bits())).unwrap_or_default();
    format!("{}{plan}{key}, by {}", id.limit, place.key)
}

/// Writes again and again, until it is dropped.
pub struct Keeper {
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Writes each `interval`, in a thread of its own.
    pub fn start(interval: Span, write: impl Fn() + Send + 'static) -> std::io::Result<Self> {
        let (stop, told) = sync_channel(1);
        let interval = Duration::from(interval);
        let thread = thread::Builder::new().name("state".into()).spawn(move || {
            while told.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                write();
            }
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A write under way ends before the last one begins.
            let _ = thread.join();
        }
    }
}
