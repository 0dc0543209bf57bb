//! The running gateway as its operator holds it: start, reload, look, end.

mod admin_commands;
mod admin_server;
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
mod sockets;
mod upgrading;
mod written;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::admin_server::{AdminServer, bind_admin, door};
use self::capacity::{available_cores, max_connections};
use self::following::Following;
use self::hearing::take_over;
use self::phase::Phase;
use self::records::Records;
use self::replays::Replays;
use self::sockets::{Bound, bind_all};
use self::upgrading::Handover;
use self::written::Written;
use tokio::sync::mpsc;

use super::build::{self, Built};
use super::deferring::{self, Deferring};
use super::error::BuildError;
use super::exceptions::{ExceptionsFile, SharedActs};
use super::fleet::{self, Membership};
use super::gauges::{self, ControlCounts, LimitGauges};
use super::handover::{Follower, Given, Inheritance};
use super::health::HealthChecks;
use super::live::counted;
use super::live_state::LiveState;
use super::logs::{self, Logging};
use super::notices;
use super::objects;
use super::objects::listener::AdminTls;
use super::state_file::{Keeper, StateFile};
use super::upstream_status;
use super::worker::{Command, WorkerThread};
use crate::admin::AdminAccess;
use crate::config::{self, AdminAddress, Loaded, Model};
use crate::dead_letter::DeadLetters;
use crate::proxy::Feed;
use crate::redact::Redactor;
use crate::telemetry::{AccessLog, Registration, Registry};
use crate::time::{Clock, Span};

/// The running gateway.
pub struct Control {
    path: PathBuf,
    registry: Arc<Registry>,
    clock: Clock,
    counts: Arc<ControlCounts>,
    phase: Phase,
    created: Arc<AtomicBool>,
    /// Where counts outlive the process; `None`: nowhere.
    state_file: Option<StateFile>,
    /// The same of exceptions of keys.
    exceptions_file: Option<ExceptionsFile>,
    handover: Handover,
    logging: Box<dyn Logging>,
    /// The level of the log, where an operator has set it.
    level: Mutex<Option<String>>,
    records: Records,
    /// The door of admin.
    door: Mutex<Arc<AdminAccess>>,
    /// Where workers are told something by who must not wait; they are there while the gateway drains, too.
    inboxes: Vec<mpsc::Sender<Command>>,
    replays: Replays,
    reloading: Mutex<()>,
    /// One writes exceptions of keys at a time.
    keeping: Mutex<()>,
    state: Mutex<State>,
}

/// The state that reloads change, one at a time.
struct State {
    model: Arc<Model>,
    /// Of the text and of the files that it names.
    digest: [u8; 32],
    /// Of the text alone.
    text_digest: [u8; 32],
    /// The digest of a text that was right the last time and yet could not be built, so that the watcher does not try
    /// it again and again.
    refused: Option<[u8; 32]>,
    /// How the file was found when it was looked at last.
    written: Written,
    /// The files of certificates, keys and plans that the running text names.
    files: Vec<PathBuf>,
    /// Those that the text names that was read last: where it was refused, one of them may be mended.
    files_tried: Vec<PathBuf>,
    last_error: Option<String>,
    /// The last reload that changed something, as the API shows it.
    last_plan: Option<serde_json::Value>,
    lasting: LiveState,
    feed: Arc<Feed>,
    workers: Vec<WorkerThread>,
    listening: HashMap<SocketAddr, SocketAddr>,
    dead_letters: Option<DeadLetters>,
    deferring: Option<Deferring>,
    access_log: Option<AccessLog>,
    admin: Option<AdminServer>,
    admin_tls: AdminTls,
    fleet: Option<Membership>,
    health: HealthChecks,
    /// Writes the state file as long as it is here.
    keeper: Option<Keeper>,
    /// Sends counts to the process that takes over.
    follower: Option<Follower>,
    /// Follows the rules of elsewhere.
    following: Option<Following>,
    /// The things that other gateways have told to be done with keys, and that are done.
    acts: SharedActs,
    limit_gauges: LimitGauges,
    upstream_gauges: Vec<Registration>,
    log_gauges: Vec<Registration>,
    _gauges: Vec<Registration>,
}

/// A change that has been built and only has to be swapped in.
struct Prepared {
    redactor: Redactor,
    sockets: Vec<Bound>,
    admin: Option<AdminServer>,
    admin_tls: AdminTls,
    dead_letters: Option<DeadLetters>,
    deferring: Option<deferring::Settings>,
    access_log: Option<AccessLog>,
    built: Built,
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
    /// Starts everything that the file at `path` says, which was loaded before, with what was `inherited`. `logging` is told of
    /// each new `[log]`.
    pub fn start(
        path: &Path,
        loaded: Loaded,
        inherited: &mut Inheritance,
        logging: impl Logging,
    ) -> Result<Arc<Self>, BuildError> {
        let Loaded { model, digest, text_digest, text, files, warnings: _ } = loaded;
        let model = Arc::new(model);
        let registry = Registry::new();
        let workers = model.server.workers.unwrap_or_else(available_cores);
        let (hasher, prints, state_file) = StateFile::of(&model, inherited.secret.as_deref());
        // Before there are ticks: they are those of the process before.
        let kept = state_file.as_ref().filter(|_| !inherited.is_upgrade());
        let clock = kept.map_or_else(Clock::system, StateFile::clock);
        let exceptions_file = state_file.as_ref().map(StateFile::exceptions);
        let (notices, received) = notices::channel();
        let exceptions = inherited.exceptions(exceptions_file.as_ref());
        let redactor = logs::redactor(&model, None)?;
        let mut lasting = LiveState::new((clock.clone(), workers), (hasher, redactor), exceptions, notices);
        let dead_letters = logs::start_dead_letters(&model, &lasting.redactor, &clock)?;
        let access_log = logs::open_access_log(&model, &lasting.redactor)?;
        let deferring = deferring::settings(&model, &lasting.redactor)?;
        let records = Records::of(path);
        let generation = records.first_generation(&text);
        let mut built = build::build(&model, generation, (None, &lasting), dead_letters.clone(), access_log.clone())?;
        let admin_tls = AdminTls::default().renewed(&model, &lasting.tickets)?;
        lasting.limits = built.limits;
        lasting.of_keys = built.of_keys;
        lasting.exceptions.set_tables(built.tables);
        lasting.install_exceptions(&model);
        let acts = take_over(inherited, state_file.as_ref(), (&lasting.limits, prints.mark), &clock);
        let takes_over = inherited.is_upgrade();
        let bound = bind_all(&model, &HashMap::new(), workers, &mut inherited.sockets)?;
        let admin = bind_admin(&model, None, &mut inherited.sockets, takes_over)?;
        let deferring = deferring.map(|settings| Deferring::open(settings, &clock)).transpose()?;
        built.snapshot.deferrals = deferring.as_ref().map(Deferring::store);
        let snapshot = Arc::new(built.snapshot);
        let feed = Feed::new(Arc::clone(&snapshot));
        let health = HealthChecks::start(clock.clone()).map_err(BuildError::Thread)?;
        health.watch(&snapshot);
        let upstream_gauges = upstream_status::register(&registry, &snapshot, &clock);
        let share = max_connections(workers);
        let workers = (0..workers)
            .map(|index| WorkerThread::start(index, clock.clone(), Arc::clone(&feed), Arc::clone(&registry), share))
            .collect::<Result<Vec<_>, _>>()
            .map_err(BuildError::Thread)?;
        let fleet =
            fleet::renew(None, (&model, &lasting.of_keys), &lasting.limits, (&clock, &lasting.notices), &registry)
                .map_err(BuildError::Thread)?;
        let door = door(&model, &admin_tls);
        let counts = Arc::new(ControlCounts::default());
        let inboxes = workers.iter().map(WorkerThread::inbox).collect();
        let gauges = gauges::of_process(&registry, &counts, &feed, &workers);
        let store = deferring.as_ref().map(|own| (own.store(), &clock));
        let log_gauges = gauges::of_logs(&registry, dead_letters.as_ref(), store, access_log.as_ref());
        let limit_gauges = LimitGauges::of(&registry, (&snapshot, &lasting), built.schedules, &clock);
        let mut state = State {
            model,
            digest,
            text_digest,
            refused: None,
            written: Written::at(path),
            files,
            files_tried: Vec::new(),
            last_error: None,
            last_plan: None,
            lasting,
            feed,
            workers,
            listening: HashMap::new(),
            dead_letters,
            deferring,
            access_log,
            admin: None,
            admin_tls,
            fleet,
            health,
            keeper: None,
            follower: None,
            following: None,
            acts,
            limit_gauges,
            upstream_gauges,
            log_gauges,
            _gauges: gauges,
        };
        let handover = Handover::new(inherited.program.clone(), prints);
        // Whatever can fail has been done. Where a process runs before this one, it is served by one of both from here on.
        inherited.agree().map_err(BuildError::NotWanted)?;
        for address in inherited.sockets.left() {
            tracing::warn!(%address, "a listening socket was passed, and the file has no such listener");
        }
        state.listen(bound);
        state.send_deferred(&clock);
        let control = Arc::new(Self {
            path: path.to_owned(),
            registry,
            clock,
            counts,
            phase: Phase::default(),
            created: Arc::default(),
            state_file,
            exceptions_file,
            handover,
            logging: Box::new(logging),
            level: Mutex::default(),
            records,
            door: Mutex::new(door),
            inboxes,
            replays: Replays::default(),
            reloading: Mutex::new(()),
            keeping: Mutex::new(()),
            state: Mutex::new(state),
        });
        control.listen_to_others(received).map_err(BuildError::Thread)?;
        control.keep_state().map_err(BuildError::Thread)?;
        control.renew_following(&mut control.state());
        let entry = control.entry(generation, "start", "started with another text");
        control.records.note(&control.state().model, entry, &text);
        if let Some(bound) = admin {
            let server = control.start_admin(bound)?;
            control.state().admin = Some(server);
        }
        Ok(control)
    }

    /// The file that it runs on.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where it listens: what the file says and what was bound, in the file's order.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let state = self.state();
        let listeners = state.model.listeners.iter();
        listeners.filter_map(|listener| state.listening.get(&listener.address).copied()).collect()
    }

    /// Where the admin interface listens.
    pub fn admin_address(&self) -> Option<AdminAddress> {
        self.state().admin.as_ref().map(|admin| admin.bound.clone())
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

    /// Builds what the model says, then swaps.
    fn change_over(
        self: &Arc<Self>,
        state: &mut State,
        model: Arc<Model>,
        digest: [u8; 32],
        files: Vec<PathBuf>,
    ) -> Result<config::Plan, BuildError> {
        let plan = config::diff(&state.model, &model);
        let prepared = self.prepare(state, &model)?;
        self.swap(state, &model, prepared);
        state.model = model;
        state.digest = digest;
        state.files = files;
        self.renew_following(state);
        Ok(plan)
    }

    /// All of a change that can fail.
    fn prepare(self: &Arc<Self>, state: &mut State, model: &Arc<Model>) -> Result<Prepared, BuildError> {
        let given = &mut Given::default();
        let sockets = bind_all(model, &state.listening, state.workers.len(), given)?;
        let admin = bind_admin(model, state.admin.as_ref().map(|admin| &admin.configured), given, false)?;
        let redactor = logs::redactor(model, Some(&state.lasting.redactor))?;
        let dead_letters = match &state.dead_letters {
            Some(log) if model.dead_letter.is_some() => Some(log.clone()),
            _ => logs::start_dead_letters(model, &redactor, &self.clock)?,
        };
        let access_log = match &state.access_log {
            Some(log) if model.log.has_same_access(&state.model.log) => Some(log.clone()),
            _ => logs::open_access_log(model, &redactor)?,
        };
        let deferring = deferring::settings(model, &redactor)?;
        let generation = self.records.next_generation(state.feed.generation());
        let running = state.feed.latest();
        let upon = (Some(&*running), &state.lasting);
        let mut built = build::build(model, generation, upon, dead_letters.clone(), access_log.clone())?;
        let admin_tls = state.admin_tls.renewed(model, &state.lasting.tickets)?;
        built.snapshot.replay_guard = dead_letters.as_ref().map(|log| log.replay_guard(&redactor));
        let admin = admin.map(|bound| self.start_admin(bound)).transpose()?;
        // Last, because nothing would take it back.
        if state.dead_letters.is_some() {
            logs::reconfigure_dead_letters(model, &redactor, dead_letters.as_ref())?;
        }
        Ok(Prepared { redactor, sockets, admin, admin_tls, dead_letters, deferring, access_log, built })
    }

    /// The rest, which cannot.
    fn swap(&self, state: &mut State, model: &Model, prepared: Prepared) {
        let Prepared { redactor, sockets, admin, admin_tls, dead_letters, deferring, access_log, built } = prepared;
        let Built { mut snapshot, limits, tables, schedules, of_keys } = built;
        objects::renumber(&snapshot);
        for (id, spec, _) in counted(model, &of_keys) {
            if let Some((limit, _)) = limits.get(&id) {
                limit.reconfigure(spec.clone());
            }
        }
        state.deferring = Deferring::renew(state.deferring.take(), deferring, &self.clock);
        snapshot.deferrals = state.deferring.as_ref().map(Deferring::store);
        let snapshot = Arc::new(snapshot);
        state.feed.publish(Arc::clone(&snapshot));
        for worker in &state.workers {
            worker.tell(Command::Refresh);
        }
        if let Some(deferring) = &state.deferring {
            deferring.store().hurry();
        }
        let old_limits = std::mem::replace(&mut state.lasting.limits, limits);
        state.lasting.of_keys = of_keys;
        state.lasting.exceptions.set_tables(tables);
        state.lasting.install_exceptions(model);
        for (id, (limit, _)) in old_limits {
            match state.lasting.limits.get(&id) {
                Some((kept, _)) if Arc::ptr_eq(kept, &limit) => {}
                Some(_) => limit.close(),
                // The numbers of one key have ended: who waits by them waits on.
                None if id.key.is_some() && model.limits.iter().any(|rule| rule.spec.name == id.limit) => {}
                None => limit.release(),
            }
        }
        let running = state.fleet.take();
        state.fleet = state.renewed_fleet(model, running, &self.clock, &self.registry);
        state.lasting.weights.retain(model);
        state.health.watch(&snapshot);
        state.upstream_gauges = upstream_status::register(&self.registry, &snapshot, &self.clock);
        self.renew_door(model, &admin_tls);
        state.admin_tls = admin_tls;
        state.limit_gauges = LimitGauges::of(&self.registry, (&snapshot, &state.lasting), schedules, &self.clock);
        state.stop_listening(model);
        state.listen(sockets);
        state.send_deferred(&self.clock);
        if admin.is_some() || model.admin.is_none() {
            state.admin = admin;
        }
        let store = state.deferring.as_ref().map(|own| (own.store(), &self.clock));
        state.log_gauges = gauges::of_logs(&self.registry, dead_letters.as_ref(), store, access_log.as_ref());
        if let (Some(old), None) = (std::mem::replace(&mut state.dead_letters, dead_letters), &state.dead_letters) {
            old.close();
        }
        // An access log that goes ends with the last exchange that writes to it.
        state.access_log = access_log;
        if let Some(log) = &state.access_log {
            log.set_redactor(redactor.clone());
        }
        state.lasting.redactor = redactor;
        if model.log != state.model.log {
            self.logging.renew(&model.log);
            self.forget_log_level();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
