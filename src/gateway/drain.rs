//! Signals: the end of the process, the reading of its file, and those that nginx survives.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::control::Control;
use super::service;

/// Signals that come within this time of the first count as one: `timeout`, `docker stop` with an init, or a shell may
/// signal the process and its group.
const ONE_WISH: Duration = Duration::from_millis(100);

/// How the process came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessEnd {
    /// Work in flight was waited for, as long as the grace allows.
    Drained,
    /// A second signal ended it at once.
    Forced,
}

/// The signals of this process. They are caught from the moment that this exists: before, SIGHUP would end it.
pub struct Signals {
    runtime: Runtime,
    /// SIGTERM, SIGINT, SIGQUIT.
    ends: [Signal; 3],
    hangup: Signal,
    reopen: Signal,
    upgrade: Signal,
    /// Signals that would end the process if nobody caught them, and end no nginx.
    noted: Vec<Signal>,
}

/// SIGSYS on Linux, of which tokio has no name.
const SIGSYS: i32 = 31;

const REOPENED: &str = "SIGUSR1: the log files are opened anew";
const NO_LOG_FILE: &str = "SIGUSR1: there is no log file to reopen; the logs go to standard output and standard error";

impl Signals {
    /// Catches them from now on.
    pub fn catch() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let inside = runtime.enter();
        let ends = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::quit()];
        let [terminate, interrupt, quit] = ends.map(signal);
        let ends = [terminate?, interrupt?, quit?];
        let hangup = signal(SignalKind::hangup())?;
        let upgrade = signal(SignalKind::user_defined2())?;
        let reopen = signal(SignalKind::user_defined1())?;
        let noted = [SignalKind::alarm(), SignalKind::io(), SignalKind::from_raw(SIGSYS)];
        let noted = noted.into_iter().map(signal).collect::<io::Result<_>>()?;
        drop(inside);
        Ok(Self { runtime, ends, hangup, reopen, upgrade, noted })
    }

    /// Serves until SIGTERM, SIGINT or SIGQUIT, or until another process has taken over, then drains; another signal ends at
    /// once. SIGHUP reloads, SIGUSR2 hands over.
    pub fn serve(mut self, control: &Arc<Control>) -> ProcessEnd {
        for mut signal in self.noted.drain(..) {
            self.runtime.spawn(async move { while signal.recv().await.is_some() {} });
        }
        let (mut reopen, reopening) = (self.reopen, Arc::clone(control));
        self.runtime.spawn(async move {
            while reopen.recv().await.is_some() {
                // Logged behind, so that a line goes to the new file at once.
                let line = if reopening.reopen_logs() { REOPENED } else { NO_LOG_FILE };
                tracing::info!("{line}");
            }
        });
        let end = self.runtime.block_on(async {
            loop {
                tokio::select! {
                    () = told_to_end(&mut self.ends) => break,
                    () = control.handed_over() => break,
                    _ = self.upgrade.recv() => {
                        let control = Arc::clone(control);
                        // How it went is logged.
                        drop(tokio::task::spawn_blocking(move || control.upgrade()));
                    }
                    _ = self.hangup.recv() => {
                        let control = Arc::clone(control);
                        // What is wrong has been logged, and counted, where it was found.
                        drop(tokio::task::spawn_blocking(move || {
                            service::reloading();
                            let result = control.reload(true);
                            if !control.pass_on_hangup() {
                                service::reloaded(result.is_ok());
                            }
                        }));
                    }
                }
            }
            let draining = Arc::clone(control);
            let drained = tokio::task::spawn_blocking(move || draining.drain());
            let told_again = async {
                if control.has_handed_over() {
                    // This process drains because another one takes its place: that is the first time that it is told to end.
                    told_to_end(&mut self.ends).await;
                }
                tokio::time::sleep(ONE_WISH).await;
                // What came meanwhile is the same wish: forget it.
                let _ = tokio::time::timeout(Duration::ZERO, async {
                    loop {
                        told_to_end(&mut self.ends).await;
                    }
                })
                .await;
                told_to_end(&mut self.ends).await;
            };
            tokio::select! {
                _ = drained => ProcessEnd::Drained,
                () = told_again => ProcessEnd::Forced,
                () = control.is_left_alone() => ProcessEnd::Forced,
            }
        });
        // A drain that was cut short must not hold the process.
        self.runtime.shutdown_background();
        end
    }
}

async fn told_to_end([terminate, interrupt, quit]: &mut [Signal; 3]) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        _ = quit.recv() => {}
    }
}
