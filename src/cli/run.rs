use std::path::Path;
use std::process::ExitCode;

use super::{banner, log};
use crate::config::{self, Certificates};
use crate::gateway::{Control, End, Signals, Watcher};
use crate::time::Clock;

/// Ended by a second signal: what a shell reports for SIGTERM.
const FORCED: u8 = 143;

/// Runs the gateway until it is told to end.
pub fn run(path: &Path) -> ExitCode {
    let loaded = match config::load(path, Certificates::Lenient(Clock::system().now())) {
        Ok(loaded) => loaded,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let (on_log, log_guard) = log::start(&loaded.model.log);
    raise_open_files();
    let signals = match Signals::catch() {
        Ok(signals) => signals,
        Err(error) => {
            eprintln!("sluicegate: signals cannot be caught: {error}");
            return ExitCode::FAILURE;
        }
    };
    if !loaded.warnings.is_empty() {
        tracing::warn!("{}", loaded.warnings);
    }
    let summary = banner::Summary::of(&loaded.model);
    let control = match Control::start(path, loaded, on_log) {
        Ok(control) => control,
        Err(error) => {
            eprintln!("sluicegate: {error}");
            return ExitCode::FAILURE;
        }
    };
    summary.print(&control);
    if let Err(error) = Watcher::start(&control) {
        tracing::warn!(%error, "the configuration file is not watched; SIGHUP and POST /reload still work");
    }
    match signals.serve(&control) {
        End::Drained => {
            tracing::info!("drained");
            ExitCode::SUCCESS
        }
        End::Forced => {
            tracing::warn!("ended without waiting for what was in flight");
            // It waits a second at most for a reader of the log.
            drop(log_guard);
            std::process::exit(FORCED.into());
        }
    }
}

/// A front door holds many sockets; the usual soft limit of 1,024 is for programs that use `select`.
fn raise_open_files() {
    match rlimit::increase_nofile_limit(u64::MAX) {
        Ok(limit) => tracing::debug!(limit, "open files"),
        Err(error) => tracing::warn!(%error, "the limit on open files cannot be raised"),
    }
}
