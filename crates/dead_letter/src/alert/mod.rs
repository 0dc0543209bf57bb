//! Tells people that the log grows: `alerts` of `[dead_letter]`.
//!
//! It is in nobody's way: a thread of its own looks once a second at the counters and at what was appended to the files, and
//! another one brings messages to webhooks. The writer knows of neither.
//!
//! `backlog` counts what is in the files (`tail` reads what is new); `mark` decides when an alert fires and when it is over;
//! `message` says so, and signs it; `outbox` keeps what is not delivered, and `send` delivers it.
//!
//! Invariants: an alert fires once, and again only after it was over; a message that nobody takes costs eight tries and a line
//! of the log; at most four messages of an alert wait, one of each figure. An alert that fires is forgotten with the
//! process.

mod backlog;
mod mark;
mod message;
mod outbox;
mod send;
mod shared;
mod tail;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use uuid::{NoContext, Uuid};

use self::backlog::Backlog;
use self::mark::{Board, Crossing, LogSample, OpenRecords};
use self::message::{MessageOrigin, unit};
use self::outbox::{AlertTarget, Message};
use self::shared::AlertShared;
use super::flood::Flood;
use super::queue::Counters;
use super::writer::give_way;
use sluicegate_config::Alert;
use sluicegate_time::{Clock, Wall};

pub use self::mark::{AlertState, Figure};

/// From one look to the next.
const LOOK: Duration = Duration::from_secs(1);
/// The same while the files are not read to their ends.
const SOON: Duration = Duration::from_millis(1);

/// The counters of a log.
pub(super) struct Meter {
    pub(super) flood: Arc<Flood>,
    pub(super) counters: Arc<Counters>,
}

impl Meter {
    /// Requests that were offered, but for what the writer has in its hand, and records that were lost.
    fn read(&self) -> (u64, u64) {
        let Self { flood, counters } = self;
        let dropped = counters.drops().total();
        let written = counters.written.load(Ordering::Relaxed) + counters.aggregated.load(Ordering::Relaxed);
        (written + flood.waiting() + counters.queued().0 + dropped, dropped)
    }
}

/// The figures of alerts that metrics show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlertCount {
    /// Records that are neither replayed nor gone.
    Records,
    /// Seconds since the oldest of them.
    OldestSeconds,
    /// How often an alert of this figure fired, or was over.
    Crossings(Figure, AlertState),
    /// Messages that were given up.
    Failures,
}

/// The alerts of a log, and their threads as long as there are any.
pub(super) struct Alerts {
    meter: Arc<Meter>,
    node: String,
    clock: Clock,
    running: Mutex<Option<Running>>,
}

struct Running {
    desk: Arc<AlertControl>,
    shared: Arc<AlertShared>,
    counts_records: bool,
}

impl Alerts {
    pub(super) fn new(meter: Meter, node: String, clock: Clock) -> Self {
        Self { meter: Arc::new(meter), node, clock, running: Mutex::new(None) }
    }

    /// Goes on with these alerts about the log in `directory`.
    pub(super) fn renew(&self, alerts: &[Alert], directory: &Path) -> io::Result<()> {
        let mut running = self.running();
        if alerts.is_empty() {
            end(running.take());
            return Ok(());
        }
        let counts_records = alerts.iter().any(|alert| alert.length.is_some() || alert.age.is_some());
        let (offered, dropped) = self.meter.read();
        let now = self.clock.now();
        let start = LogSample { now, wall: self.clock.wall(now), offered, dropped, backlog: None };
        let order = Order { alerts: alerts.to_vec(), directory: directory.to_owned(), start };
        if let Some(running) = &mut *running {
            running.counts_records = counts_records;
            running.desk.leave(order);
            return Ok(());
        }
        let (desk, shared) = (Arc::new(AlertControl::default()), Arc::new(AlertShared::default()));
        desk.leave(order);
        let watcher = Watcher {
            board: Board::default(),
            backlog: None,
            directory: PathBuf::new(),
            meter: Arc::clone(&self.meter),
            offered: 0,
            node: self.node.clone(),
            clock: self.clock.clone(),
            shared: Arc::clone(&shared),
            sends: false,
            last_error: None,
        };
        let of_thread = Arc::clone(&desk);
        thread::Builder::new().name("letter-alerts".into()).spawn(move || watch(watcher, &of_thread))?;
        *running = Some(Running { desk, shared, counts_records });
        Ok(())
    }

    /// Ends the threads. Messages that are not delivered yet are lost.
    pub(super) fn stop(&self) {
        end(self.running().take());
    }

    /// Whether there are any, and whether they count the records.
    pub(super) fn kind(&self) -> Option<bool> {
        self.running().as_ref().map(|running| running.counts_records)
    }

    /// A figure for metrics.
    pub(super) fn count(&self, what: AlertCount) -> u64 {
        let running = self.running();
        let Some(figures) = running.as_ref().map(|running| &running.shared.figures) else { return 0 };
        match what {
            AlertCount::Records => figures.records.load(Ordering::Relaxed),
            AlertCount::OldestSeconds => match figures.oldest.load(Ordering::Relaxed) {
                0 => 0,
                oldest => self.clock.wall_now().since(Wall::from_nanos(oldest)).as_nanos() / 1_000_000_000,
            },
            AlertCount::Crossings(figure, state) => {
                figures.counter(figure as usize, state as usize).map_or(0, |own| own.load(Ordering::Relaxed))
            }
            AlertCount::Failures => figures.failures.load(Ordering::Relaxed),
        }
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Alerts {
    fn drop(&mut self) {
        self.stop();
    }
}

fn end(running: Option<Running>) {
    let Some(Running { desk, shared, .. }) = running else { return };
    desk.close();
    shared.close();
    let waiting = shared.outbox().waiting();
    if waiting > 0 {
        tracing::warn!(target: "sluicegate::dead_letter::alert", waiting, "alerts that no webhook has taken yet are left");
    }
}

/// The orders of the watching thread.
struct Order {
    alerts: Vec<Alert>,
    directory: PathBuf,
    /// Records that are new count from here on.
    start: LogSample,
}

/// Where it is told so.
#[derive(Default)]
struct AlertControl {
    state: Mutex<DeskState>,
    rung: Condvar,
}

#[derive(Default)]
struct DeskState {
    order: Option<Order>,
    closed: bool,
}

impl AlertControl {
    /// An order that nobody has taken yet is replaced.
    fn leave(&self, order: Order) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).order = Some(order);
        self.rung.notify_one();
    }

    fn close(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.rung.notify_one();
    }

    /// Waits for so long, or until there is an order; false: it is over.
    fn wait(&self, timeout: Duration, take: impl FnOnce(Order)) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_quiet = |state: &mut DeskState| state.order.is_none() && !state.closed;
        let waited = self.rung.wait_timeout_while(state, timeout, is_quiet);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let (order, closed) = (state.order.take(), state.closed);
        drop(state);
        if let Some(order) = order.filter(|_| !closed) {
            take(order);
        }
        !closed
    }
}

/// The thread that looks.
fn watch(mut watcher: Watcher, desk: &AlertControl) {
    // A long log is counted at the start, when requests come already.
    give_way();
    let mut pause = Duration::ZERO;
    while desk.wait(pause, |order| watcher.renew(order)) {
        pause = watcher.look();
    }
}

struct Watcher {
    board: Board,
    /// `None`: no alert asks for it.
    backlog: Option<Backlog>,
    directory: PathBuf,
    meter: Arc<Meter>,
    /// The highest reading of the meter: what the writer has in its hand is in none of its counters.
    offered: u64,
    node: String,
    clock: Clock,
    shared: Arc<AlertShared>,
    /// Whether the thread that sends is there.
    sends: bool,
    last_error: Option<String>,
}

impl Watcher {
    fn renew(&mut self, Order { alerts, directory, start }: Order) {
        self.board.renew(alerts, &start);
        self.backlog = if self.board.counts_records() {
            let kept = self.backlog.take().filter(|backlog| backlog.directory() == directory);
            kept.or_else(|| Some(Backlog::new(&directory)))
        } else {
            None
        };
        self.directory = directory;
        let target = |alert: &Alert| {
            let webhook = alert.webhook.clone()?;
            Some(Arc::new(AlertTarget { webhook, secret: alert.secret_file }))
        };
        let targets: BTreeMap<_, _> =
            self.board.triggers().filter_map(|(id, alert)| Some((id, target(alert)?))).collect();
        let has_webhooks = !targets.is_empty();
        self.shared.outbox().renew(&targets);
        if has_webhooks && !self.sends {
            self.sends = true;
            self.start_sending();
        }
    }

    fn start_sending(&self) {
        let (shared, clock) = (Arc::clone(&self.shared), self.clock.clone());
        let run = move || {
            if let Err(error) = send::run(&shared, &clock) {
                tracing::error!(target: "sluicegate::dead_letter::alert", %error, "no webhook hears of alerts: the thread that sends them cannot work");
            }
        };
        if let Err(error) = thread::Builder::new().name("letter-hooks".into()).spawn(run) {
            tracing::error!(target: "sluicegate::dead_letter::alert", %error, "no webhook hears of alerts: there is no thread to send them");
        }
    }

    /// Looks once; says when to look again.
    fn look(&mut self) -> Duration {
        let (standing, pause) = self.count();
        if let Some(standing) = standing {
            self.shared.figures.stand(standing);
        }
        let (offered, dropped) = self.meter.read();
        self.offered = self.offered.max(offered);
        let now = self.clock.now();
        let wall = self.clock.wall(now);
        let reading = LogSample { now, wall, offered: self.offered, dropped, backlog: standing };
        let crossings = self.board.step(&reading);
        for crossing in &crossings {
            self.tell(crossing, &reading);
        }
        if !crossings.is_empty() {
            self.shared.bell.notify_one();
        }
        pause
    }

    fn count(&mut self) -> (Option<OpenRecords>, Duration) {
        match self.backlog.as_mut().map(Backlog::look) {
            None => (None, LOOK),
            Some(Ok(standing)) => {
                self.last_error = None;
                (standing, if standing.is_some() { LOOK } else { SOON })
            }
            Some(Err(error)) => {
                // Once, not each second.
                let error = error.to_string();
                if self.last_error.as_ref() != Some(&error) {
                    tracing::warn!(target: "sluicegate::dead_letter::alert", error, "dead letters cannot be counted; alerts on length and age stay as they are");
                    self.last_error = Some(error);
                }
                (None, LOOK)
            }
        }
    }

    fn tell(&self, crossing: &Crossing, reading: &LogSample) {
        self.shared.figures.count(crossing);
        let Crossing { figure, state, value, threshold, .. } = crossing;
        let (alert, unit, directory) = (figure.word(), unit(crossing), self.directory.display().to_string());
        match state {
            AlertState::Firing => {
                tracing::warn!(target: "sluicegate::dead_letter::alert", alert, value, threshold, unit, directory, "a dead-letter alert fires");
            }
            AlertState::Resolved => {
                tracing::info!(target: "sluicegate::dead_letter::alert", alert, value, threshold, unit, directory, "a dead-letter alert is over");
            }
        }
        let origin = MessageOrigin { node: &self.node, directory: &directory };
        let oldest = reading.backlog.and_then(|standing| standing.oldest);
        let body = message::body(crossing, origin, oldest, reading.wall);
        let nanos = reading.wall.as_nanos();
        let at = uuid::Timestamp::from_unix(NoContext, nanos / 1_000_000_000, (nanos % 1_000_000_000) as u32);
        let delivery = Uuid::new_v7(at).to_string().into();
        self.shared.outbox().push(crossing.id, Message { delivery, body, alert, state: state.word() });
    }
}
