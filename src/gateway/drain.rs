//! Signals: what ends the process, and what makes it read its file again.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::control::Control;

/// Signals that come within this time of the first are one wish: `timeout`, `docker stop` with an init, or a shell may
/// signal the process and its group.
const ONE_WISH: Duration = Duration::from_millis(100);

/// How the process came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// What was in flight was waited for, as long as the grace allows.
    Drained,
    /// A second signal ended it at once.
    Forced,
}

/// The signals of this process. They are caught from the moment that this exists: before, SIGHUP would end it.
pub struct Signals {
    runtime: Runtime,
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// Catches them from now on.
    pub fn catch() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let inside = runtime.enter();
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        let hangup = signal(SignalKind::hangup())?;
        drop(inside);
        Ok(Self { runtime, terminate, interrupt, hangup })
    }

    /// Serves until SIGTERM or SIGINT, then drains; a second one ends at once. SIGHUP reloads.
    pub fn serve(mut self, control: &Arc<Control>) -> End {
        let end = self.runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = self.terminate.recv() => break,
                    _ = self.interrupt.recv() => break,
                    _ = self.hangup.recv() => {
                        let control = Arc::clone(control);
                        // What is wrong has been logged, and counted, where it was found.
                        drop(tokio::task::spawn_blocking(move || control.reload(true)));
                    }
                }
            }
            let draining = Arc::clone(control);
            let drained = tokio::task::spawn_blocking(move || draining.drain());
            let told_again = async {
                tokio::time::sleep(ONE_WISH).await;
                // What came meanwhile is the same wish: forget it.
                let _ = tokio::time::timeout(Duration::ZERO, async {
                    loop {
                        tokio::select! { _ = self.terminate.recv() => {}, _ = self.interrupt.recv() => {} }
                    }
                })
                .await;
                tokio::select! { _ = self.terminate.recv() => {}, _ = self.interrupt.recv() => {} }
            };
            tokio::select! {
                _ = drained => End::Drained,
                () = told_again => End::Forced,
            }
        });
        // A drain that was cut short must not hold the process.
        self.runtime.shutdown_background();
        end
    }
}
