//! The running gateway as its operator holds it: start, reload, look, end.

mod admin_commands;
mod capacity;
mod draining;
mod following;
mod hearing;
mod key_target;
mod keys;
mod log_level;
mod phase;
mod plan_entries;
mod records;
mod reloading;
mod replays;
mod requests;
mod rules;
mod seen;
mod servers;
mod staging;
mod starting;
mod upgrading;
mod written;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

#[cfg(test)]
pub(super) use self::admin_commands::AdminCommands;
use self::following::Following;
use self::hearing::take_over;
use self::phase::GatewayPhase;
use self::records::Records;
use self::replays::Replays;
use self::upgrading::Handover;
use self::written::FileStamp;
use super::admin_server::{AdminInterface, Door};
use super::deferring::DeferredRequests;
use super::error::BuildError;
use super::exceptions::{ExceptionsFile, SharedActs};
use super::fleet::Membership;
use super::gauges::{ControlCounts, GenerationFigures};
use super::handover::{CountsSender, Given, Inheritance};
use super::health::HealthChecks;
use super::live_state::LiveState;
use super::logs::{AccessLogFile, DeadLetterLog, Logging, ProcessLog};
use super::notices;
use super::overload::OverloadControl;
use super::sockets::Sockets;
use super::state_file::{Keeper, StateFile};
use super::worker::{WorkerCommand, Workers};
use crate::config::{ListenAddress, Loaded, Model};
use crate::telemetry::{Registration, Registry};
use crate::time::{Clock, Span};

/// The running gateway.
pub struct Control {
    path: PathBuf,
    registry: Arc<Registry>,
    clock: Clock,
    counts: Arc<ControlCounts>,
    phase: GatewayPhase,
    created: Arc<AtomicBool>,
    /// Where counts outlive the process; `None`: nowhere.
    state_file: Option<StateFile>,
    /// The same of exceptions of keys.
    exceptions_file: Option<ExceptionsFile>,
    handover: Handover,
    records: Records,
    /// The door of admin.
    door: Door,
    /// Where workers are told something by who must not wait; they are there while the gateway drains, too.
    inboxes: Vec<mpsc::Sender<WorkerCommand>>,
    replays: Replays,
    reloading: Mutex<()>,
    /// One writes exceptions of keys at a time.
    keeping: Mutex<()>,
    state: Mutex<ReloadState>,
}

/// The state that reloads change, one at a time: facts of what was read, then the components.
struct ReloadState {
    model: Arc<Model>,
    /// Of the text and of the files that it names.
    digest: [u8; 32],
    /// Of the text alone.
    text_digest: [u8; 32],
    /// The digest of a text that was right the last time and yet could not be built, so that the watcher does not try
    /// it again and again.
    refused: Option<[u8; 32]>,
    /// How the file was found when it was looked at last.
    written: FileStamp,
    /// The files of certificates, keys and plans that the running text names.
    files: Vec<PathBuf>,
    /// Those that the text names that was read last: where it was refused, one of them may be mended.
    files_tried: Vec<PathBuf>,
    last_error: Option<String>,
    /// The last reload that changed something, as the API shows it.
    last_plan: Option<serde_json::Value>,
    registry: Arc<Registry>,
    lasting: LiveState,
    workers: Workers,
    sockets: Sockets,
    dead_letters: DeadLetterLog,
    access_log: AccessLogFile,
    process_log: ProcessLog,
    deferring: DeferredRequests,
    admin: AdminInterface,
    fleet: Membership,
    health: HealthChecks,
    overload: OverloadControl,
    figures: GenerationFigures,
    /// Writes the state file as long as it is here.
    keeper: Option<Keeper>,
    /// Sends counts to the process that takes over.
    follower: Option<CountsSender>,
    /// Follows the rules of elsewhere.
    following: Option<Following>,
    /// The things that other gateways have told to be done with keys, and that are done.
    acts: SharedActs,
    _gauges: Vec<Registration>,
}

/// The outcome of a reload.
#[derive(Debug)]
pub enum Reloaded {
    /// The text, and what it names, is what runs already, or is not taken over yet.
    Unchanged,
    /// A new generation runs; the plan says what changed.
    Changed(String),
}

impl Control {
    /// Starts everything that the file at `path` says, which was loaded before, with what was `inherited`: a reload of a gateway in
    /// which nothing runs yet. `logging` is told of each new `[log]`.
    pub fn start(
        path: &Path,
        loaded: Loaded,
        inherited: &mut Inheritance,
        logging: impl Logging,
    ) -> Result<Arc<Self>, BuildError> {
        let Loaded { model, digest, text_digest, text, files, warnings: _ } = loaded;
        let model = Arc::new(model);
        let (notices, received) = notices::channel();
        let control = Self::idle(path, &model, inherited, (logging, notices))?;
        // Callers of admin wait with their changes until all of it runs.
        let one_at_a_time = control.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = control.records.first_generation(&text);
        let mut state = control.state();
        let takes_over = inherited.is_upgrade();
        let staged = state.stage(&model, generation, (&mut inherited.sockets, takes_over))?;
        let doors = state.commit(&model, staged);
        (state.digest, state.text_digest, state.files) = (digest, text_digest, files);
        let counted = (&state.lasting.limits, control.handover.mark());
        state.acts = take_over(inherited, control.state_file.as_ref(), counted, &control.clock);
        // The model runs. Where a process runs before this one, it is served by one of both from here on.
        inherited.agree().map_err(BuildError::NotWanted)?;
        for address in inherited.sockets.left() {
            tracing::warn!(%address, "a listening socket was passed, and the file has no such listener");
        }
        state.open(doors);
        control.renew_following(&mut state);
        drop(state);
        control.listen_to_others(received).map_err(BuildError::Thread)?;
        control.keep_state().map_err(BuildError::Thread)?;
        let entry = control.entry(generation, "start", "started with another text");
        control.records.note(&model, entry, &text);
        drop(one_at_a_time);
        Ok(control)
    }

    /// The file that it runs on.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where it listens: what the file says and what was bound, in the file's order.
    pub fn addresses(&self) -> Vec<ListenAddress> {
        let state = self.state();
        let listeners = state.model.listeners.iter();
        listeners.filter_map(|listener| state.sockets.address(&listener.address)).collect()
    }

    /// Where the admin interface listens.
    pub fn admin_address(&self) -> Option<ListenAddress> {
        self.state().admin.server().map(|admin| admin.bound.clone())
    }

    /// The files whose changes matter: the configuration first, then the certificates, keys and plans that it names.
    pub fn watched(&self) -> Vec<PathBuf> {
        let state = self.state();
        let mut files: Vec<PathBuf> = state.files.iter().chain(&state.files_tried).cloned().collect();
        files.sort_unstable();
        files.dedup();
        files.insert(0, self.path.clone());
        files
    }

    /// Whether changes of the files are taken over as they happen.
    pub fn watches(&self) -> bool {
        self.state().model.server.watch
    }

    /// To be set where a file was created under the configuration's name, and not renamed to it: it is written from then on.
    pub fn created(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.created)
    }

    /// How long what the file says has to stand before it is taken over, if it may be half done.
    pub fn stands_in(&self) -> Option<Span> {
        // While it drains nothing is taken over any more.
        if self.phase.is_serving() { self.state().written.stands_in(self.clock.now()) } else { None }
    }

    /// Stages what the model says, then commits it.
    fn change_over(self: &Arc<Self>, state: &mut ReloadState, model: &Arc<Model>) -> Result<(), BuildError> {
        let generation = self.records.next_generation(state.workers.feed.generation());
        let staged = state.stage(model, generation, (&mut Given::default(), false))?;
        let doors = state.commit(model, staged);
        state.open(doors);
        self.renew_following(state);
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, ReloadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
