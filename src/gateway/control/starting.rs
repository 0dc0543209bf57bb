//! A gateway before its first generation: its threads run, and nothing is built.

use std::path::Path;
use std::sync::{Arc, Mutex, Weak};

use super::admin_commands::AdminCommands;
use super::capacity::{available_cores, max_connections};
use super::phase::GatewayPhase;
use super::records::Records;
use super::replays::Replays;
use super::upgrading::Handover;
use super::written::FileStamp;
use super::{Control, ReloadState};
use crate::config::Model;
use crate::gateway::admin_server::{self, AdminInterface};
use crate::gateway::build;
use crate::gateway::deferring::DeferredRequests;
use crate::gateway::error::BuildError;
use crate::gateway::exceptions::SharedActs;
use crate::gateway::fleet::Membership;
use crate::gateway::gauges::{self, ControlCounts, GenerationFigures};
use crate::gateway::handover::Inheritance;
use crate::gateway::health::HealthChecks;
use crate::gateway::live_state::LiveState;
use crate::gateway::logs::{AccessLogFile, DeadLetterLog, Logging, ProcessLog};
use crate::gateway::notices::NoticeSender;
use crate::gateway::overload::OverloadControl;
use crate::gateway::sockets::Sockets;
use crate::gateway::state_file::StateFile;
use crate::gateway::worker::Workers;
use crate::redact::{RedactRules, Redactor};
use crate::telemetry::Registry;
use crate::time::Clock;

/// The threads that a gateway has from its start to its end.
struct Threads {
    workers: Workers,
    health: HealthChecks,
}

impl Control {
    /// A gateway that is to run a model.
    pub(super) fn idle(
        path: &Path,
        model: &Arc<Model>,
        inherited: &mut Inheritance,
        (logging, notices): (impl Logging, NoticeSender),
    ) -> Result<Arc<Self>, BuildError> {
        let registry = Registry::new();
        let count = model.server.workers.unwrap_or_else(available_cores);
        let (hasher, prints, state_file) = StateFile::of(model, inherited.secret.as_deref());
        // Before there are ticks: they are those of the process before.
        let kept = state_file.as_ref().filter(|_| !inherited.is_upgrade());
        let clock = kept.map_or_else(Clock::system, StateFile::clock);
        let exceptions_file = state_file.as_ref().map(StateFile::exceptions);
        let exceptions = inherited.exceptions(exceptions_file.as_ref());
        let fleet = Membership::new(&clock, &notices, &registry);
        let redactor = Redactor::new(&RedactRules::default());
        let lasting = LiveState::new((clock.clone(), count), (hasher, redactor), exceptions);
        let threads = Threads::start(model, &lasting, &registry).map_err(BuildError::Thread)?;
        let counts = Arc::new(ControlCounts::default());
        let (door, inboxes) = (admin_server::closed_door(), threads.workers.inboxes());
        Ok(Arc::new_cyclic(|control| {
            let commands = Arc::new(AdminCommands(Weak::clone(control)));
            let admin = AdminInterface::new(commands, &door, &registry, &clock);
            let process_log = ProcessLog::new(logging, model.log.clone());
            let state =
                ReloadState::idle((path, model), (&registry, &counts), lasting, threads, (process_log, admin, fleet));
            Self {
                path: path.to_owned(),
                registry,
                clock,
                counts,
                phase: GatewayPhase::default(),
                created: Arc::default(),
                state_file,
                exceptions_file,
                handover: Handover::new(inherited.program.clone(), prints),
                records: Records::of(path),
                door,
                inboxes,
                replays: Replays::default(),
                reloading: Mutex::new(()),
                keeping: Mutex::new(()),
                state: Mutex::new(state),
            }
        }))
    }
}

impl Threads {
    fn start(model: &Arc<Model>, lasting: &LiveState, registry: &Arc<Registry>) -> std::io::Result<Self> {
        let LiveState { clock, workers, .. } = lasting;
        let nothing = build::nothing(model, lasting);
        Ok(Self {
            workers: Workers::start(*workers, nothing, (clock, registry), max_connections(*workers))?,
            health: HealthChecks::start(clock.clone())?,
        })
    }
}

impl ReloadState {
    fn idle(
        (path, model): (&Path, &Arc<Model>),
        (registry, counts): (&Arc<Registry>, &Arc<ControlCounts>),
        lasting: LiveState,
        Threads { workers, health }: Threads,
        (process_log, admin, fleet): (ProcessLog, AdminInterface, Membership),
    ) -> Self {
        Self {
            model: Arc::clone(model),
            digest: Default::default(),
            text_digest: Default::default(),
            refused: None,
            written: FileStamp::at(path),
            files: Vec::new(),
            files_tried: Vec::new(),
            last_error: None,
            last_plan: None,
            registry: Arc::clone(registry),
            dead_letters: DeadLetterLog::default(),
            access_log: AccessLogFile::default(),
            process_log,
            deferring: DeferredRequests::new(&lasting.clock),
            sockets: Sockets::new(workers.inboxes()),
            admin,
            fleet,
            health,
            overload: OverloadControl::new(registry, lasting.clock.clone(), lasting.workers),
            figures: GenerationFigures::default(),
            keeper: None,
            follower: None,
            following: None,
            acts: SharedActs::default(),
            _gauges: gauges::of_process(registry, counts, &workers),
            lasting,
            workers,
        }
    }
}
