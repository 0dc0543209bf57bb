//! `sluicegate upgrade`: another process takes over from the gateway that runs, without a gap.

use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::admin::{AdminArguments, AdminFailure, Gateway, Request};
use super::running;
use crate::config::{self, Certificates};
use crate::gateway::{PidFile, UPGRADE_WITHIN};
use crate::time::{Clock, Span};

pub const EXAMPLES: &str = "Examples:
  mv sluicegate-new /usr/local/bin/sluicegate && sluicegate upgrade -c /etc/sluicegate/gateway.toml
  kill -USR2 $(cat /run/sluicegate/pid)       the same, and the log says how it went

The binary is started that lies where the running one was started from. It gets the
listening sockets and the counts; once it listens the old one finishes what is in flight.";

/// Arguments of `upgrade`.
#[derive(Debug, clap::Args)]
pub struct UpgradeArguments {
    #[command(flatten)]
    admin: AdminArguments,
}

/// How often the file is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The answer comes a little after the process is ready, or is given up.
const MORE: Span = Span::from_secs(4);

/// Upgrades the gateway that runs on this file. Exit 1: no gateway is found, or it goes on as it was, since the file is wrong, say.
pub fn run(path: &Path, arguments: &UpgradeArguments) -> ExitCode {
    match upgrade(path, &arguments.admin) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{}", error.trim_end());
            ExitCode::FAILURE
        }
    }
}

fn upgrade(path: &Path, arguments: &AdminArguments) -> Result<String, String> {
    let model = match running::model(path) {
        Err(_) if arguments.are_given() => None,
        found => Some(found?),
    };
    let pid_file = model.as_ref().and_then(|model| model.server.pid_file.clone());
    if model.as_ref().is_some_and(|model| model.admin.is_none()) && !arguments.are_given() {
        let none = "no way to the gateway that runs: the file has neither [admin] nor pid_file of [server]";
        return by_signal(path, pid_file.as_deref().ok_or(none)?);
    }
    let gateway = Gateway::of(arguments, || model.ok_or_else(String::new), path)?;
    let patience = Duration::from(UPGRADE_WITHIN) + Duration::from(MORE);
    let request = Request { method: "POST", target: "/upgrade", body: None, fields: &[] };
    match (gateway.answer(&request, patience), pid_file) {
        (Ok(text), _) => Ok(text.trim_end().to_owned()),
        (Err(AdminFailure::Unheard(_)), Some(file)) => by_signal(path, &file),
        (Err(AdminFailure::Unheard(error)), None) => Err(format!(
            "no gateway answers at admin {}: {error}; one that runs with another address is told by kill -USR2",
            gateway.shown()
        )),
        (Err(AdminFailure::Lost(error)), _) => Err(format!(
            "admin {} was asked, and its answer is lost: {error}; the log says how it went",
            gateway.shown()
        )),
        (Err(AdminFailure::Answered(text)), _) => Err(text),
    }
}

/// Of the file at `path` another process would say no more than its log does: a wrong one is not tried.
fn by_signal(path: &Path, file: &Path) -> Result<String, String> {
    config::load(path, Certificates::Unread).map_err(|error| error.to_string())?;
    let old = PidFile::holder(file)?;
    let process = i32::try_from(old).ok().and_then(Pid::from_raw).ok_or("no such process")?;
    kill_process(process, Signal::USR2).map_err(|error| format!("process {old} cannot be told: {error}"))?;
    eprintln!("process {old} is told by SIGUSR2; waiting until another one has taken over");
    let clock = Clock::system();
    let until = clock.now() + UPGRADE_WITHIN + MORE;
    while clock.now() < until {
        thread::sleep(LOOK_EVERY);
        // It may be just being replaced.
        if let Some(new) = PidFile::holder(file).ok().filter(|new| *new != old) {
            return Ok(format!("process {new} has taken over from {old}, which drains"));
        }
    }
    Err(format!("process {old} goes on, and no other one has taken over; its log says why"))
}
