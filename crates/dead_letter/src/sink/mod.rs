//! Sends the log to others: `sinks` of `[dead_letter]`.
//!
//! The log itself is what a sink has still to get: its thread reads the directory, as whoever asks over admin does, and the
//! writer knows nothing of it. So a receiver that is slow or away costs a file handle and a batch of memory, however long it
//! is so; what retention removes meanwhile is lost for the sink, and counted.
//!
//! `place` keeps how far it is, on the disk; `batch` reads the next lines; `spill` counts those that wait, and those that go
//! before their turn; `courier` decides what to do next, and `run` does it; `figures` is for metrics.
//!
//! Invariants: a line is passed over only when it was taken, refused alone, or gone; batches of one segment keep its order; a
//! batch that is sent again after a crash has the bytes and the mark of before, and at most one is; one process at a time
//! sends for a sink of a directory; at most two batches are in memory, and what was read is sent whatever becomes of its
//! segment.

mod batch;
mod checkpoint;
mod courier;
mod figures;
mod loss_counter;
mod run;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use self::courier::SinkDelivery;
use self::figures::Figures;
use self::run::DeliveryControl;
use super::archive::Archive;
use sluicegate_config::Sink;
use sluicegate_redact::{RedactRules, Redactor};
use sluicegate_time::Clock;

pub use self::figures::{SinkCount, SinkFigures};

/// How long [`Sinks::finish`] waits for receivers.
const MAX_FINISH: Duration = Duration::from_secs(2);

/// The sinks of a log, each with a thread.
pub(super) struct Sinks {
    clock: Clock,
    running: Mutex<BTreeMap<String, Running>>,
}

struct Running {
    desk: Arc<DeliveryControl>,
    sink: Sink,
    directory: PathBuf,
    figures: Arc<Figures>,
}

impl Running {
    fn start(sink: &Sink, directory: &Path, clock: &Clock) -> io::Result<Self> {
        let (desk, figures) = (Arc::new(DeliveryControl::default()), Arc::new(Figures::default()));
        // No filter asks for keys.
        let redactor = Redactor::new(&RedactRules::default());
        let archive = Archive { directory: directory.to_owned(), redactor, clock: clock.clone() };
        let mut courier = SinkDelivery::new(sink.clone(), archive, Arc::clone(&figures));
        // Now, so that a new sink gets whatever is written from now on.
        courier.hold();
        let (of_thread, clock) = (Arc::clone(&desk), clock.clone());
        let run = move || {
            if let Err(error) = run::run(courier, &of_thread, &clock) {
                tracing::error!(target: "sluicegate::dead_letter::sink", %error, "a sink gets no dead letters: the thread that sends them cannot work");
            }
        };
        thread::Builder::new().name("letter-sink".into()).spawn(run)?;
        Ok(Self { desk, sink: sink.clone(), directory: directory.to_owned(), figures })
    }
}

impl Sinks {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, running: Mutex::default() }
    }

    /// Goes on with these sinks of the log in `directory`. Those of the same names go on where they are.
    pub(super) fn renew(&self, sinks: &[Sink], directory: &Path) -> io::Result<()> {
        let mut running = self.running();
        running.retain(|name, own| {
            let stays = own.directory == directory && sinks.iter().any(|sink| sink.called() == *name);
            if !stays {
                own.desk.close();
            }
            stays
        });
        for sink in sinks {
            match running.get_mut(&sink.called()) {
                Some(own) if own.sink == *sink => {}
                Some(own) => {
                    own.sink = sink.clone();
                    own.desk.leave(sink.clone());
                }
                None => {
                    running.insert(sink.called(), Running::start(sink, directory, &self.clock)?);
                }
            }
        }
        Ok(())
    }

    /// Ends the threads, when the log is written: what is left is sent within some time, unless it is not taken. The rest is
    /// in the log, for the next process.
    pub(super) fn finish(&self) {
        let running = std::mem::take(&mut *self.running());
        for own in running.values() {
            own.desk.finish();
        }
        let (clock, start) = (&self.clock, self.clock.now());
        for own in running.values() {
            own.desk.wait_for_end(MAX_FINISH.saturating_sub(clock.now().since(start).into()));
            own.desk.close();
        }
    }

    /// The figures of each, by its name.
    pub(super) fn figures(&self) -> Vec<(String, SinkFigures)> {
        let figures = |own: &Running| SinkFigures { shared: Arc::clone(&own.figures), clock: self.clock.clone() };
        self.running().iter().map(|(name, own)| (name.clone(), figures(own))).collect()
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<String, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Sinks {
    fn drop(&mut self) {
        for own in self.running().values() {
            own.desk.close();
        }
    }
}
