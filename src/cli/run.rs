use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use tracing_appender::non_blocking::WorkerGuard;

use super::{banner, log};
use crate::config::Certificates;
use crate::gateway::{self, Control, Inheritance, PidFile, Prepared, ProcessEnd, Signals, Watcher, service};
use crate::time::Clock;

/// Ended by a second signal: what a shell reports for SIGTERM.
const FORCED: u8 = 143;

/// A gateway that listens.
struct Started {
    control: Arc<Control>,
    signals: Signals,
    log_guard: WorkerGuard,
    pid_file: Option<PidFile>,
}

/// Runs the gateway until it is told to end.
pub fn run(path: &Path) -> ExitCode {
    let mut inherited = match Inheritance::receive() {
        Ok(inherited) => inherited,
        Err(error) => {
            eprintln!("sluicegate: {error}");
            return ExitCode::FAILURE;
        }
    };
    match start(path, &mut inherited) {
        Ok(started) => {
            if !inherited.is_upgrade() {
                service::ready();
            }
            inherited.serving();
            serve(started)
        }
        Err(report) => {
            eprintln!("{report}");
            inherited.failed(&report);
            ExitCode::FAILURE
        }
    }
}

/// Starts it; else what is to be said of why not.
fn start(path: &Path, inherited: &mut Inheritance) -> Result<Started, String> {
    let certificates = Certificates::Lenient(Clock::system().wall_now());
    let loaded = gateway::load(path, certificates).map_err(|error| error.to_string())?;
    let (logging, log_guard) = log::start(&loaded.model.log).map_err(|error| {
        let file = loaded.model.log.file.as_deref().unwrap_or(Path::new("standard error")).display();
        format!("sluicegate: [log] file {file} cannot be opened: {error}; make its directory, or let the gateway's user write there")
    })?;
    raise_open_files();
    let signals = Signals::catch().map_err(|error| format!("sluicegate: signals cannot be caught: {error}"))?;
    if !loaded.warnings.is_empty() {
        tracing::warn!("{}", loaded.warnings);
    }
    let summary = banner::Summary::of(&loaded.model);
    // Written before anybody is served, and put in its place after.
    let pid_file = loaded.model.server.pid_file.as_deref().map(|path| Prepared::beside(path, inherited.is_upgrade())).transpose().map_err(|error| {
        format!(
            "sluicegate: pid_file cannot be written: {error}; make its directory, or let the gateway's user write there"
        )
    })?;
    let control = Control::start(path, loaded, inherited, logging).map_err(|error| format!("sluicegate: {error}"))?;
    let publish = |prepared: Prepared| {
        prepared.publish().inspect_err(|error| tracing::error!(%error, "pid_file cannot be put in its place")).ok()
    };
    let pid_file = pid_file.and_then(publish);
    let watcher = Watcher::new(&control);
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        config = %control.path().display(),
        listeners = control.addresses().iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
        admin = control.admin_address().map(|address| address.to_string()),
        "started"
    );
    // An operator who upgrades has seen it before.
    if !inherited.is_upgrade() {
        summary.print(&control);
    }
    if let Err(error) = watcher.start(&control) {
        tracing::warn!(%error, "the configuration file is not watched; SIGHUP and POST /reload still work");
    }
    Ok(Started { control, signals, log_guard, pid_file })
}

fn serve(started: Started) -> ExitCode {
    let Started { control, signals, log_guard, pid_file } = started;
    match signals.serve(&control) {
        ProcessEnd::Drained => {
            tracing::info!("drained");
            ExitCode::SUCCESS
        }
        ProcessEnd::Forced => {
            tracing::warn!("ended without waiting for what was in flight");
            drop(pid_file);
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
