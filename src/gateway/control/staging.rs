//! All components in one: a generation is staged as a whole, and committed as a whole.

use std::sync::Arc;

use super::ReloadState;
use crate::config::Model;
use crate::gateway::admin_server::AdminInterface;
use crate::gateway::build::Logs;
use crate::gateway::component::Component;
use crate::gateway::deferring::{DeferredRequests, Deferring};
use crate::gateway::error::BuildError;
use crate::gateway::fleet::Membership;
use crate::gateway::gauges::GenerationFigures;
use crate::gateway::handover::Given;
use crate::gateway::health::HealthChecks;
use crate::gateway::live_state::LiveState;
use crate::gateway::logs::{AccessLogFile, DeadLetterLog, ProcessLog};
use crate::gateway::overload::OverloadControl;
use crate::gateway::sockets::Sockets;
use crate::gateway::worker::Workers;

type StagedOf<C> = <C as Component>::Staged;

/// A generation that is ready.
pub(super) struct Staged {
    live: StagedOf<LiveState>,
    dead_letters: StagedOf<DeadLetterLog>,
    access_log: StagedOf<AccessLogFile>,
    process_log: StagedOf<ProcessLog>,
    deferring: StagedOf<DeferredRequests>,
    workers: StagedOf<Workers>,
    health: StagedOf<HealthChecks>,
    fleet: StagedOf<Membership>,
    overload: StagedOf<OverloadControl>,
    doors: Doors,
}

/// The sockets of a generation, by which it is reached.
pub(super) struct Doors {
    sockets: StagedOf<Sockets>,
    admin: StagedOf<AdminInterface>,
}

impl ReloadState {
    /// Makes a model ready; nothing that runs is changed. Sockets may be `given` by a process before, which this one replaces if
    /// it `takes_over`.
    pub(super) fn stage(
        &self,
        model: &Arc<Model>,
        generation: u64,
        (given, takes_over): (&mut Given, bool),
    ) -> Result<Staged, BuildError> {
        let doors = Doors {
            sockets: self.sockets.stage(model, given)?,
            admin: self.admin.stage(model, (&self.lasting.tickets, given, takes_over))?,
        };
        let live = self.lasting.stage(model, ())?;
        let dead_letters = self.dead_letters.stage(model, (&live.redactor, &self.lasting.clock))?;
        let access_log = self.access_log.stage(model, &live.redactor)?;
        let logs = Logs { dead_letters: dead_letters.get().cloned(), access_log: access_log.log.clone() };
        let workers = self.workers.stage(model, (&live, &self.lasting, generation, logs))?;
        Ok(Staged {
            process_log: self.process_log.stage(model, ())?,
            deferring: self.deferring.stage(model, &live.redactor)?,
            health: self.health.stage(model, &workers)?,
            overload: self.overload.stage(model, (&workers, &live.limits))?,
            fleet: self.fleet.stage(model, (&live.limits, &live.of_keys))?,
            doors,
            live,
            dead_letters,
            access_log,
            workers,
        })
    }

    /// From now on it runs, but for its doors: they are to be [opened](Self::open).
    pub(super) fn commit(&mut self, model: &Arc<Model>, staged: Staged) -> Doors {
        let Staged {
            live,
            dead_letters,
            access_log,
            process_log,
            deferring,
            mut workers,
            health,
            fleet,
            overload,
            doors,
        } = staged;
        // Logs first, so that they redact by the new rules whatever is written under these. Numbers before the routes that
        // count on them.
        self.dead_letters.commit(dead_letters);
        self.access_log.commit(access_log);
        self.lasting.commit(live);
        self.deferring.commit(deferring);
        workers.deferrals = self.deferring.get().map(Deferring::store);
        self.workers.commit(workers);
        self.lasting.release();
        if let Some(deferring) = self.deferring.get() {
            // By the new numbers there may be room.
            deferring.store().hurry();
        }
        self.fleet.commit(fleet);
        self.health.commit(health);
        self.overload.commit(overload);
        self.dead_letters.release();
        self.process_log.commit(process_log);
        self.model = Arc::clone(model);
        self.figures = self.figures();
        doors
    }

    /// Listens, and sends what was deferred.
    pub(super) fn open(&mut self, doors: Doors) {
        self.sockets.commit(doors.sockets);
        if let Some(deferring) = self.deferring.get() {
            deferring.send(&self.workers, &self.lasting.clock);
        }
        self.admin.commit(doors.admin);
    }

    fn figures(&self) -> GenerationFigures {
        let snapshot = self.workers.feed.latest();
        let store = self.deferring.get().map(Deferring::store);
        let logs = (self.dead_letters.get(), self.access_log.get(), store);
        GenerationFigures::of(&self.registry, (&snapshot, &self.lasting), logs)
    }
}
