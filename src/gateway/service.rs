//! Words to a service manager, as systemd has them (`sd_notify(3)`); nothing where there is none.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use sd_notify::NotifyState;

/// How long the manager may take to read what it is told.
const READ_WITHIN: Duration = Duration::from_secs(5);

/// Whether there is a service manager.
pub fn is_there() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// The gateway listens.
pub fn ready() {
    tell(&[NotifyState::Ready]);
}

/// A reload begins; [`reloaded`] is to follow.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "the service manager is not told of a reload: there is no clock"),
    }
}

/// A reload has ended.
pub fn reloaded(is_done: bool) {
    let status =
        if is_done { "" } else { "The last reload was rejected; the current configuration stays: see the log." };
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The gateway ends.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Another process is the service from now on. Returns when the manager knows: what it reads of a process that has ended it
/// cannot attribute to a service.
pub fn is_now(pid: u32) {
    tell(&[NotifyState::MainPid(pid)]);
    let wait = || -> io::Result<()> {
        let (mut own, theirs) = UnixStream::pair()?;
        own.set_read_timeout(Some(READ_WITHIN))?;
        sd_notify::notify_with_fds(&[NotifyState::Custom("BARRIER=1")], &[theirs.as_fd()])?;
        drop(theirs);
        // Its end is the only thing that can come.
        own.read(&mut [0]).map(|_| ())
    };
    if let Err(error) = wait() {
        tracing::warn!(%error, "the service manager may not know that another process has taken over");
    }
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, ?state, "the service manager cannot be told");
    }
}
