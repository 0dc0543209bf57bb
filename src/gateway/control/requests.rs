//! The requests in flight, asked of each worker: listed, and cancelled one by one.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use tokio::sync::mpsc::error::TrySendError;

use super::Control;
use crate::gateway::worker::WorkerCommand;
use crate::proxy::{FlightFilter, SeenFlight};
use crate::time::Span;

/// How long workers may take to answer, all together. They answer between two turns of their requests, in microseconds; one
/// that hangs is named, and does not keep the others' requests from being seen.
const PATIENCE: Span = Span::from_secs(2);

impl Control {
    /// The requests that `filter` names, the oldest first, and the workers that have not answered.
    pub(super) fn requests(&self, filter: &FlightFilter) -> (Vec<SeenFlight>, Vec<usize>) {
        let filter = Arc::new(filter.clone());
        let asked: Vec<_> = (0..self.inboxes.len())
            .map(|worker| self.ask(worker, |to| WorkerCommand::List(Arc::clone(&filter), to)))
            .collect();
        let deadline = self.clock.now() + PATIENCE;
        let (mut seen, mut silent) = (Vec::new(), Vec::new());
        for (worker, asked) in asked.into_iter().enumerate() {
            match asked {
                QuestionResult::Told(answer) => match answer.recv_timeout(deadline.since(self.clock.now()).into()) {
                    Ok(own) => seen.extend(own),
                    Err(_) => silent.push(worker),
                },
                QuestionResult::Busy => silent.push(worker),
                QuestionResult::Ended => {}
            }
        }
        seen.sort_unstable_by_key(SeenFlight::rank);
        seen.truncate(filter.max);
        (seen, silent)
    }

    /// Cancels a request of a worker; whether there is one, or `None` if the worker does not answer.
    pub(super) fn cancel_request(&self, worker: usize, number: u64) -> Option<bool> {
        match self.ask(worker, |to| WorkerCommand::Cancel(number, to)) {
            QuestionResult::Told(answer) => answer.recv_timeout(PATIENCE.into()).ok(),
            QuestionResult::Busy => None,
            QuestionResult::Ended => Some(false),
        }
    }

    fn ask<T>(&self, worker: usize, command: impl FnOnce(SyncSender<T>) -> WorkerCommand) -> QuestionResult<T> {
        let Some(inbox) = self.inboxes.get(worker) else { return QuestionResult::Ended };
        let (to, answer) = sync_channel(1);
        match inbox.try_send(command(to)) {
            Ok(()) => QuestionResult::Told(answer),
            Err(TrySendError::Full(_)) => QuestionResult::Busy,
            Err(TrySendError::Closed(_)) => QuestionResult::Ended,
        }
    }
}

/// How a worker took a question.
enum QuestionResult<T> {
    /// The answer comes here.
    Told(std::sync::mpsc::Receiver<T>),
    /// Its inbox is full.
    Busy,
    /// There is no such worker, or it has ended.
    Ended,
}
