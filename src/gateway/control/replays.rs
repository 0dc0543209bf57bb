//! Replays of dead letters that run in the gateway, for a caller that asks by the API. One at a time, as beside a
//! gateway.

use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::Control;
use crate::admin::NotReplayed;
use crate::dead_letter::ReplayGuard;
use crate::limiter::Rate;
use crate::redact::Redactor;
use crate::replay::{
    Journal, JournalError, Lock, Patience, RecordCounts, RecordsToReplay, Replay, ReplayProgress, ReplayQuery,
    ReplayScheduler, Sender, Settings, Target, overviews,
};
use crate::time::{Clock, Span};

/// The replay that runs, if one does.
#[derive(Default)]
pub(super) struct Replays(Mutex<Option<RunningReplay>>);

/// A replay that runs.
struct RunningReplay {
    name: String,
    progress: Arc<Mutex<ReplayProgress>>,
    /// Dropped, it stops the replay.
    stop: Option<oneshot::Sender<()>>,
    /// Its other end is dropped when the replay has ended.
    ended: Arc<Mutex<Receiver<()>>>,
}

/// All that a replay needs to run.
struct Prepared {
    order: RecordsToReplay,
    sender: Sender,
    journal: Journal,
    settings: Settings,
}

impl Replays {
    fn running(&self) -> std::sync::MutexGuard<'_, Option<RunningReplay>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the one that runs send nothing more; what is under way is waited for. Its journal says where it is.
    pub(super) fn stop(&self, name: Option<&str>) -> bool {
        let mut running = self.running();
        let Some(running) = running.as_mut().filter(|running| name.is_none_or(|name| name == running.name)) else {
            return false;
        };
        running.stop.take().is_some()
    }
}

impl Replays {
    /// Waits for the end of one that was stopped, for so long at the most: what is under way is not to be sent again.
    pub(super) fn wait(&self, within: Span) {
        let ended = self.running().as_ref().map(|running| Arc::clone(&running.ended));
        if let Some(ended) = ended {
            // Not under the lock: a caller that lists replays shall get an answer.
            let _ = ended.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(within.into());
        }
    }
}

impl Control {
    /// Begins a replay, goes on with one, or says what one would do.
    pub(super) fn replay(self: &Arc<Self>, asked: &ReplayQuery) -> Result<Value, NotReplayed> {
        self.takes_rules().map_err(|error| NotReplayed::Ended(format!("Nothing is sent: {error}.")))?;
        let (model, redactor) = {
            let state = self.state();
            (Arc::clone(&state.model), state.lasting.redactor.clone())
        };
        let directory = model.dead_letter.as_ref().ok_or(NotReplayed::NoLog)?.directory.clone();
        let now = self.clock.wall_now();
        // Before it is looked what was sent: so nobody sends between that and the first line of the journal.
        let lock = if asked.dry_run { None } else { Some(Lock::take(&directory)?) };
        let (settings, journal) = match (&asked.resume, lock) {
            (Some(name), Some(lock)) => {
                let (journal, settings) = Journal::resume(lock, &directory, Some(name))?;
                (asked.resumed(settings).map_err(NotReplayed::Wrong)?, Ok(journal))
            }
            (Some(_), None) => {
                return Err(NotReplayed::Wrong("\"resume\" and \"dry_run\" do not go together".to_owned()));
            }
            (None, lock) => (asked.settings(now).map_err(NotReplayed::Wrong)?, Err(lock)),
        };
        let target = Target::of(settings.to.as_deref(), Some(&model));
        let target = target.map_err(|error| NotReplayed::Wrong(error.to_string()))?;
        let order = settings.order(&directory, asked.key(&redactor), None, Some(&model), journal.as_ref().ok());
        let order = order.map_err(NotReplayed::Wrong)?;
        let plan = order.plan(&directory).map_err(|error| NotReplayed::Unreadable(error.to_string()))?;
        let plan = shown(&plan, &target.words());
        let journal = match journal {
            Ok(journal) => journal,
            Err(Some(lock)) => Journal::begin(lock, &directory, &settings, now)?,
            Err(None) => return Ok(json!({ "replay": null, "plan": plan })),
        };
        let name = journal.name().to_owned();
        let prepared = prepare(&settings, &redactor, (target, order, journal), &self.clock)?;
        self.start_replay(directory, &name, prepared)?;
        Ok(json!({ "replay": name, "plan": plan }))
    }

    fn start_replay(
        self: &Arc<Self>,
        directory: std::path::PathBuf,
        name: &str,
        prepared: Prepared,
    ) -> Result<(), NotReplayed> {
        let (stop, stopped) = oneshot::channel();
        let progress = Arc::new(Mutex::new(ReplayProgress::default()));
        let (tell_end, ended) = sync_channel::<()>(1);
        let ended = Arc::new(Mutex::new(ended));
        let running = RunningReplay { name: name.to_owned(), progress: Arc::clone(&progress), stop: Some(stop), ended };
        {
            // The lock of the directory is held: none runs now, but for the thread of one that has just let it go.
            let mut place = self.replays.running();
            // A caller that ends the gateway has stopped what ran before, and looks for no other.
            self.takes_rules().map_err(|error| NotReplayed::Ended(format!("Nothing is sent: {error}.")))?;
            *place = Some(running);
        }
        let (control, clock, own_name) = (Arc::downgrade(self), self.clock.clone(), name.to_owned());
        let run = move || {
            let _tell_end = tell_end;
            let ended = run(&directory, prepared, clock, stopped, &progress);
            match ended {
                Ok(RecordCounts { sent, left, parked, .. }) => {
                    let parked = parked.values().sum::<u64>();
                    tracing::info!(replay = own_name, sent, parked, left, "a replay of dead letters has ended");
                }
                Err(error) => tracing::error!(replay = own_name, error, "a replay of dead letters was stopped"),
            }
            if let Some(control) = control.upgrade() {
                control.replays.running().take_if(|running| running.name == own_name);
            }
        };
        let spawned = thread::Builder::new().name("replay".into()).spawn(run);
        spawned.map_err(|error| {
            self.replays.running().take();
            NotReplayed::Unreadable(format!("no thread can be started: {error}"))
        })?;
        Ok(())
    }

    /// The replays of the log, the newest first, and how far the one is that runs.
    pub(super) fn list_replays(&self) -> Result<Value, NotReplayed> {
        let directory = self.state().model.dead_letter.as_ref().ok_or(NotReplayed::NoLog)?.directory.clone();
        let all = overviews(&directory)?;
        let running = self.replays.running();
        let in_flight = |name: &str| {
            let running = running.as_ref().filter(|running| running.name == name)?;
            Some(running.progress.lock().unwrap_or_else(PoisonError::into_inner).in_flight)
        };
        let replays: Vec<Value> = all
            .iter()
            .rev()
            .map(|replay| {
                let under_way = in_flight(&replay.name);
                json!({
                    "replay": replay.name,
                    "at": replay.at,
                    "sent": replay.sent,
                    "parked": replay.parked,
                    "ended": replay.has_ended,
                    "running": under_way.is_some(),
                    "in_flight": under_way.unwrap_or_default(),
                    "settings": replay.settings,
                })
            })
            .collect();
        Ok(json!({ "replays": replays }))
    }

    /// Stops a replay that runs here; false: none of this name does.
    pub(super) fn stop_replay(&self, name: &str) -> bool {
        self.replays.stop(Some(name))
    }
}

fn prepare(
    settings: &Settings,
    redactor: &Redactor,
    (target, order, journal): (Target, RecordsToReplay, Journal),
    clock: &Clock,
) -> Result<Prepared, NotReplayed> {
    let guard = ReplayGuard::new(redactor, Arc::default());
    let timeout = Duration::from_nanos(settings.timeout);
    let sender = Sender::new(target, Some(guard), timeout, clock.clone());
    let sender = sender.map_err(|error| NotReplayed::Wrong(error.to_string()))?;
    // Told before anything begins. The one that is used is made on the thread of the replay: it cannot move there.
    lineup(settings, clock)?;
    Ok(Prepared { order, sender, journal, settings: settings.clone() })
}

fn lineup(settings: &Settings, clock: &Clock) -> Result<ReplayScheduler, NotReplayed> {
    let patience = Patience::tries(settings.max_tries);
    let of_rate = |rate: Rate| ReplayScheduler::new(rate, settings.parallel as usize, patience, clock.now().as_nanos());
    let lineup = settings.rate.parse().ok().and_then(of_rate);
    lineup.ok_or_else(|| NotReplayed::Wrong(format!("invalid leaky-bucket rate {}", settings.rate)))
}

fn run(
    directory: &std::path::Path,
    prepared: Prepared,
    clock: Clock,
    stopped: oneshot::Receiver<()>,
    progress: &Mutex<ReplayProgress>,
) -> Result<RecordCounts, String> {
    let Prepared { order, sender, journal, settings } = prepared;
    let lineup = lineup(&settings, &clock).map_err(|_| "its rate is none".to_owned())?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    let replay = Replay::new(directory, &order, Arc::new(sender), journal, lineup, clock);
    let stop = async { drop(stopped.await) };
    let show = |now: ReplayProgress| *progress.lock().unwrap_or_else(PoisonError::into_inner) = now;
    runtime.block_on(replay.run(stop, show)).map_err(|error| error.to_string())
}

/// A plan in JSON.
fn shown(plan: &RecordCounts, to: &str) -> Value {
    json!({
        "to": to,
        "matching": plan.matching,
        "to_send": plan.sent,
        "sent_before": plan.sent_before,
        "shadow": plan.shadow,
        "deferred": plan.deferred,
        "refused": plan.refused,
        "waiting": plan.waiting,
        "to_park": plan.parked,
        "only_counted": plan.counted_only,
        "repeated": plan.repeated,
        "damaged": plan.damaged,
    })
}

impl From<JournalError> for NotReplayed {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::Busy(_) => Self::Busy(error.to_string()),
            JournalError::NotFound(..) | JournalError::NothingToResume(_) => Self::Unknown(error.to_string()),
            JournalError::Io(..) => Self::Unreadable(error.to_string()),
        }
    }
}
