//! The end of a gateway that is told to end.

use std::io;
use std::sync::Arc;
use std::thread;

use super::Control;
use crate::gateway::deferring::{self, Deferring};
use crate::gateway::service;
use crate::gateway::state_file::Keeper;
use crate::gateway::worker::WorkerCommand;
use crate::time::Span;

impl Control {
    /// Writes the state file each `state_interval` from now on, if there is one.
    pub(super) fn keep_state(self: &Arc<Self>) -> io::Result<()> {
        if self.state_file.is_none() {
            return Ok(());
        }
        let control = Arc::downgrade(self);
        let write = move || {
            if let Some(control) = control.upgrade() {
                control.write_state();
            }
        };
        let mut state = self.state();
        state.keeper = Some(Keeper::start(state.model.server.state_interval, write)?);
        Ok(())
    }

    fn write_state(&self) {
        let Some(file) = &self.state_file else { return };
        // Not under the lock: it takes as long as the disk does.
        let limits = self.state().lasting.limits.clone();
        file.write(&limits, &self.clock);
    }

    /// Opens the files of logs anew; false if there is none.
    pub fn reopen_logs(&self) -> bool {
        let state = self.state();
        let (access_log, process_log) = (state.access_log.get().cloned(), state.process_log.log());
        // Not under the lock: it takes as long as a disk does.
        drop(state);
        let has_reopened = access_log.is_some_and(|log| log.reopen());
        process_log.reopen() || has_reopened
    }

    /// Says that it is not ready, for `drain_delay`, so that a balancer sends no more; then stops accepting, waits for what is
    /// in flight, and closes the logs. Where another process has taken over, that one is ready and keeps the state file.
    pub fn drain(&self) {
        let is_upgrade = !self.phase.drain();
        if !is_upgrade {
            service::stopping();
        }
        let server = self.state().model.server.clone();
        let (delay, grace) = (server.drain_delay, server.shutdown_grace);
        if delay > Span::ZERO && !is_upgrade {
            tracing::info!(%delay, "not ready any more, and listening on for drain_delay; a second signal ends at once");
            thread::sleep(delay.into());
        }
        tracing::info!(%grace, "draining; a second signal ends at once");
        if is_upgrade {
            // Not under the lock: it tells what was spent. The process that has taken over waits for its address.
            let peers = self.state().fleet.take_peers();
            drop(peers);
        }
        // Its journal says where it is, and `resume` goes on with it.
        self.replays.stop(None);
        let deferring = {
            let mut state = self.state();
            drop(state.following.take());
            state.deferring.take()
        };
        let sending = deferring.as_ref().and_then(Deferring::stop);
        // Not under the lock: a caller that looks at the gateway meanwhile shall get an answer.
        let mut workers = self.state().workers.take();
        for worker in &workers {
            worker.tell(WorkerCommand::Drain(grace));
        }
        for worker in &mut workers {
            worker.join();
        }
        self.replays.wait(grace);
        if let (Some(deferring), Some(sending)) = (&deferring, sending) {
            deferring::wait_for_end(deferring, sending);
        }
        let (dead_letters, access_log, fleet, follower) = {
            let mut state = self.state();
            (state.dead_letters.take(), state.access_log.take(), state.fleet.take(), state.follower.take())
        };
        // The last of what was counted here.
        drop(follower);
        // It reports the cost that was spent.
        drop(fleet);
        drop(self.state().keeper.take());
        if !is_upgrade {
            self.write_state();
        }
        if let Some(log) = dead_letters {
            log.close();
        }
        if let Some(log) = access_log {
            log.close();
        }
    }
}
