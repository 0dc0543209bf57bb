//! A gateway that hands over to another process, which takes its place while it drains.

use std::io;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::Notify;

use super::Control;
use super::reloading::Cause;
use crate::gateway::exceptions::to_json;
use crate::gateway::handover::{CountsSender, HandoverState, NewProcess, Program};
use crate::gateway::service;
use crate::gateway::state_file::Prints;
use crate::gateway::worker::WorkerCommand;
use crate::state::Mark;

/// How long a worker may take to copy its sockets.
const COPY_WITHIN: Duration = Duration::from_secs(5);

/// All that it takes to hand over, and to whom it was done.
pub(super) struct Handover {
    program: Program,
    prints: Prints,
    done: Notify,
    /// The number of the process that has taken over; 0: none has, or it has ended.
    new_pid: Arc<AtomicU32>,
    /// The process that has taken over has ended while this one drains.
    lost: Arc<Notify>,
}

impl Handover {
    pub(super) fn new(program: Program, prints: Prints) -> Self {
        Self { program, prints, done: Notify::new(), new_pid: Arc::default(), lost: Arc::default() }
    }

    /// Tells the secret of this process's keys from others.
    pub(super) fn mark(&self) -> Mark {
        self.prints.mark
    }
}

impl Control {
    /// Starts the binary again, with its sockets, admin and counts. Once that listens this process is to drain, which
    /// [`handed_over`](Self::handed_over) tells a caller that waits for it. Returns the number of the new process.
    ///
    /// # Errors
    /// Why there is none: this one goes on as it was.
    pub fn upgrade(self: &Arc<Self>) -> Result<u32, String> {
        refuse_first_process(process::id())?;
        // No reload meanwhile: it would open other sockets, and the new process reads the file itself.
        let _one_at_a_time = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        if self.phase.has_handed_over() {
            return Err("another process has taken over already".into());
        }
        if !self.phase.is_serving() {
            return Err("the gateway is draining".into());
        }
        let program = self.handover.program.path().display().to_string();
        tracing::info!(%program, "upgrading");
        let result = self.hand_over();
        match &result {
            Ok(pid) => tracing::info!(pid, "the new process serves; this one drains"),
            Err(reason) => tracing::error!(%program, "no upgrade, this process goes on: {reason}"),
        }
        result
    }

    /// Completes when another process has taken over.
    pub async fn handed_over(&self) {
        self.handover.done.notified().await;
    }

    /// Completes when the process that has taken over has ended, and a service manager is there to start another one.
    pub async fn is_left_alone(&self) {
        self.handover.lost.notified().await;
    }

    /// A SIGHUP that came while another process took over is that one's; false if none has.
    pub fn pass_on_hangup(&self) -> bool {
        let new_pid = self.handover.new_pid.load(Ordering::Acquire);
        let Some(new_pid) = i32::try_from(new_pid).ok().and_then(Pid::from_raw) else { return false };
        // It may be ending.
        let _ = kill_process(new_pid, Signal::HUP);
        true
    }

    /// Whether another process has taken over.
    pub fn has_handed_over(&self) -> bool {
        self.phase.has_handed_over()
    }

    fn hand_over(self: &Arc<Self>) -> Result<u32, String> {
        // A reload moves counts to other numbers, which an upgrade does not. A file that this version does not understand may
        // be right for the next one.
        if !self.is_as_it_was() {
            drop(self.reload_alone(Cause::ASKED));
        }
        let legacy = self.legacy().map_err(|error| format!("the listening sockets cannot be copied: {error}"))?;
        let limits = self.state().lasting.limits.clone();
        let mut successor = NewProcess::start(&self.handover.program, &legacy)?;
        let tables = |to| CountsSender::start(to, self.handover.prints.mark, self.clock.clone(), limits.clone());
        let follower = successor.wait(&self.clock, || self.phase.is_serving(), tables)?;
        // One of both accepts, so that a client is counted by one; the kernel keeps connections that come in between.
        self.state().sockets.pause();
        if let Some(follower) = &follower {
            follower.flush();
        }
        if let Err(reason) = successor.go(&self.clock) {
            self.state().sockets.resume(legacy.listeners);
            return Err(reason);
        }
        if !self.phase.hand_over() {
            return Err(successor.ended("this process is told to end"));
        }
        // From here on nothing fails.
        let mut state = self.state();
        self.handover.new_pid.store(successor.pid(), Ordering::Release);
        state.follower = follower;
        state.sockets.leave_files();
        let keeper = state.keeper.take();
        drop(state);
        // It waits for a write that is under way.
        drop(keeper);
        service::is_now(successor.pid());
        // It has the socket, too. A caller that has asked here for the upgrade still gets the answer.
        self.state().admin.end();
        self.handover.done.notify_one();
        let pid = successor.pid();
        let (new_pid, lost) = (Arc::clone(&self.handover.new_pid), Arc::clone(&self.handover.lost));
        successor.watch(move |status| {
            // The number may be a stranger's from now on.
            new_pid.store(0, Ordering::Release);
            tracing::error!(pid, %status, "the process that took over has ended: nothing listens any more");
            // It starts another one when this one has ended, too.
            if service::is_there() {
                lost.notify_one();
            }
        });
        Ok(pid)
    }

    fn legacy(&self) -> io::Result<HandoverState> {
        let state = self.state();
        let mut listeners: Vec<(_, Vec<_>)> =
            state.sockets.iter().map(|(address, _)| (address.clone(), Vec::new())).collect();
        for worker in state.workers.iter() {
            let (tell, told) = sync_channel(1);
            worker.tell(WorkerCommand::Copy(tell));
            let copies = told.recv_timeout(COPY_WITHIN).map_err(|error| match error {
                RecvTimeoutError::Timeout => io::Error::other("a worker does not answer"),
                RecvTimeoutError::Disconnected => io::Error::other("a worker has ended"),
            })?;
            for (address, socket) in copies? {
                if let Some((_, sockets)) = listeners.iter_mut().find(|(known, _)| *known == address) {
                    sockets.push(socket);
                }
            }
        }
        let admin = state.admin.server().and_then(|admin| {
            let (address, socket) = (admin.configured.tcp()?, admin.socket.as_ref()?);
            Some(socket.try_clone().map(|copy| (address, copy)))
        });
        let secret = self.handover.prints.secret.bytes().to_vec();
        let exceptions = String::from_utf8_lossy(&to_json(&state.lasting.exceptions)).into_owned();
        let acts = state.acts.lock().done(self.clock.wall_now());
        let wall = self.clock.wall_state();
        Ok(HandoverState { listeners, admin: admin.transpose()?, secret, exceptions, acts, wall })
    }
}

/// The end of process 1 is the end of its container, and of the new process with it.
fn refuse_first_process(pid: u32) -> Result<(), String> {
    if pid == 1 {
        return Err("this is process 1 of a container, which ends with it: start another container instead".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_process_of_a_container_refuses() {
        assert!(refuse_first_process(1).unwrap_err().contains("container"));
        assert_eq!(refuse_first_process(2), Ok(()));
    }
}
