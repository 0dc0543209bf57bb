//! The writer thread and its work on records: a pure machine driven by [`Writer::take`], [`Writer::tick`] and
//! [`Writer::close`], and the thread around it.
//!
//! Exactness: a request counts as written or aggregated when the line that stands for it is in the file, as a disk drop
//! when that failed. The summary line of drops is taken off the books only when it is in the file itself.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::Position;
use super::flood::{Flood, SLICE};
use super::queue::{Counters, QueueMessage};
use super::record::Draft;
use super::reserve::ReasonClass;
use super::seal::Sealer;
use super::store::{SegmentStore, StoreError};
use super::tally::Drops;
use sluicegate_config::DeadLetter;
use sluicegate_redact::Redactor;
use sluicegate_time::{Clock, Span, Tick, WallOffset};

/// Bytes that are gathered before they are written; less if the queue runs empty.
const BATCH: usize = 64 * 1024;
/// Records taken from the queue before the once-a-second work is looked at again.
const MAX_BURST: usize = 1024;
/// How long a disk that failed is left alone, and how far apart summaries are.
const SECOND: Span = Span::from_secs(1);

/// Records into segments.
pub(super) struct Writer {
    settings: DeadLetter,
    redactor: Redactor,
    sealer: Option<Sealer>,
    store: SegmentStore,
    flood: Arc<Flood>,
    counters: Arc<Counters>,
    batch: Vec<u8>,
    /// Where each line of the batch ends, and of which class it is.
    ends: Vec<(usize, ReasonClass)>,
    meanings: Vec<Meaning>,
    /// The drops that the log itself tells of.
    reported: Drops,
    /// Until when the log tells of all drops.
    whole_until: Tick,
    /// Makes the times of ticks that lines have.
    offset: WallOffset,
    /// Set while the disk fails: when it is tried again.
    next_try: Option<Tick>,
    last_error: Option<String>,
    last_second: u64,
    /// Whether a second began whose aggregates and drops are not written yet.
    sum_due: bool,
}

/// The meaning of a line of the batch.
enum Meaning {
    Record,
    Aggregate(u64),
    Drops(Drops),
}

impl Writer {
    pub(super) fn new(
        settings: DeadLetter,
        redactor: Redactor,
        store: SegmentStore,
        flood: Arc<Flood>,
        counters: Arc<Counters>,
        (now, offset): (Tick, WallOffset),
    ) -> Self {
        Self {
            sealer: sealer_of(&settings),
            settings,
            redactor,
            store,
            flood,
            counters,
            batch: Vec::with_capacity(2 * BATCH),
            ends: Vec::new(),
            meanings: Vec::new(),
            reported: Drops::default(),
            whole_until: now,
            offset,
            next_try: None,
            last_error: None,
            last_second: second_of(now),
            sum_due: false,
        }
    }

    /// Takes one record; it is on disk after the next flush at the latest.
    pub(super) fn take(&mut self, draft: &Draft, charged: u64, now: Tick) {
        if !self.may_try(now) {
            self.counters.disk_error.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let before = self.batch.len();
        draft.write_sealed(self.store.node(), &self.redactor, self.sealer.as_mut(), &mut self.batch);
        self.flood.charge_more(((self.batch.len() - before) as u64).saturating_sub(charged), now);
        self.line_done(Meaning::Record, ReasonClass::of(draft.reason), now);
    }

    /// Hands the gathered lines to the operating system.
    pub(super) fn flush(&mut self, now: Tick) {
        if self.batch.is_empty() {
            return;
        }
        let written = self.store.append(&self.batch, &self.ends, self.settings.fsync, now);
        let kept = written.as_ref().map_or_else(|error| error.kept, |()| self.batch.len());
        for ((end, _), meaning) in self.ends.iter().zip(&self.meanings) {
            account(&self.counters, &mut self.reported, meaning, *end <= kept);
        }
        self.batch.clear();
        self.ends.clear();
        self.meanings.clear();
        match written {
            Ok(()) => {
                if self.next_try.take().is_some() {
                    tracing::info!(target: "sluicegate::dead_letter::writer", dropped = self.counters.drops().disk_error, "dead letters are written again");
                }
                let rotated = self.store.rotate(&self.settings, now);
                self.note(rotated);
            }
            Err(error) => {
                if self.next_try.is_none() {
                    tracing::warn!(target: "sluicegate::dead_letter::writer", error = %error.source, "dead letters are lost and counted until the disk works again");
                }
                self.next_try = Some(now + SECOND);
                self.note(Err(error.source));
            }
        }
    }

    /// Does the work that is due by now: once a second the aggregates and the summary of drops, then rotation,
    /// retention, syncing.
    pub(super) fn tick(&mut self, now: Tick) {
        if second_of(now) != self.last_second {
            self.last_second = second_of(now);
            self.sum_due = true;
            // Before the disk is tried again: what it frees may be what was missing.
            let retained = self.store.retain(&self.settings, now);
            self.note(retained);
        }
        if self.sum_due && self.may_try(now) {
            self.sum_due = false;
            self.sum_up(now);
        }
        let rotated = self.store.rotate(&self.settings, now);
        self.note(rotated);
        let synced = self.store.sync(self.settings.fsync, now);
        self.note(synced);
    }

    /// Writes what is left and seals the segment.
    pub(super) fn close(&mut self, now: Tick) {
        self.sum_up(now);
        let sealed = self.store.seal(self.settings.fsync, now);
        self.note(sealed);
        let untold = self.counters.drops().since(self.reported);
        if untold.total() > 0 {
            tracing::warn!(target: "sluicegate::dead_letter::writer", { untold.queue_full, untold.disk_error }, "dead letters were lost and the log does not say so");
        }
    }

    /// Goes on with other settings and another redactor, and in another directory if `store` is one.
    pub(super) fn reconfigure(
        &mut self,
        settings: DeadLetter,
        redactor: Redactor,
        store: Option<SegmentStore>,
        now: Tick,
    ) {
        self.flush(now);
        if let Some(store) = store {
            let sealed = self.store.seal(self.settings.fsync, now);
            self.note(sealed);
            self.store = store;
            self.next_try = None;
        }
        if settings.seal_key_file != self.settings.seal_key_file {
            self.sealer = sealer_of(&settings);
        }
        self.settings = settings;
        self.redactor = redactor;
    }

    /// How long nothing is due.
    pub(super) fn idle(&self, now: Tick) -> Span {
        let next_second = Tick::ZERO + Span::from_secs(second_of(now) + 1);
        let due = self.store.sync_due(self.settings.fsync).unwrap_or(Tick::MAX).min(next_second);
        due.since(now).max(Span::from_millis(1))
    }

    /// Where it writes, and what went wrong last.
    pub(super) fn position(&self) -> Position {
        Position { segment: self.store.segment().map(Into::into), last_error: self.last_error.clone() }
    }

    fn sum_up(&mut self, now: Tick) {
        let wall = self.offset.wall(now);
        for tally in self.flood.drain(now, &self.offset) {
            tally.write(self.store.node(), &self.redactor, wall, &mut self.batch);
            self.line_done(Meaning::Aggregate(tally.count), ReasonClass::of(tally.reason), now);
        }
        self.flush(now);
        let untold = self.counters.drops().since(self.reported);
        if untold.total() > 0 {
            untold.write(self.store.node(), self.offset.wall(self.whole_until), wall, &mut self.batch);
            self.line_done(Meaning::Drops(untold), ReasonClass::OTHER, now);
            self.flush(now);
        }
        if self.counters.drops() == self.reported {
            self.whole_until = now;
        }
    }

    fn line_done(&mut self, meaning: Meaning, class: ReasonClass, now: Tick) {
        self.ends.push((self.batch.len(), class));
        self.meanings.push(meaning);
        if self.batch.len() >= BATCH {
            self.flush(now);
        }
    }

    fn may_try(&self, now: Tick) -> bool {
        self.next_try.is_none_or(|at| now >= at)
    }

    fn note(&mut self, outcome: Result<(), StoreError>) {
        if let Err(error) = outcome {
            self.last_error = Some(error.to_string());
        }
    }
}

fn sealer_of(settings: &DeadLetter) -> Option<Sealer> {
    let key = settings.seal_key_file.as_ref()?.bytes()?;
    let sealer = Sealer::new(key);
    if sealer.is_none() {
        tracing::error!(target: "sluicegate::dead_letter::writer", "dead letters are not sealed: the library takes no key; redacted values are lost");
    }
    sealer
}

fn account(counters: &Counters, reported: &mut Drops, meaning: &Meaning, kept: bool) {
    match (meaning, kept) {
        (Meaning::Record, true) => counters.written.fetch_add(1, Ordering::Relaxed),
        (Meaning::Record, false) => counters.disk_error.fetch_add(1, Ordering::Relaxed),
        (Meaning::Aggregate(count), true) => counters.aggregated.fetch_add(*count, Ordering::Relaxed),
        (Meaning::Aggregate(count), false) => counters.disk_error.fetch_add(*count, Ordering::Relaxed),
        (Meaning::Drops(drops), true) => {
            reported.queue_full += drops.queue_full;
            reported.disk_error += drops.disk_error;
            0
        }
        (Meaning::Drops(_), false) => 0,
    };
}

fn second_of(at: Tick) -> u64 {
    at.as_nanos() / SECOND.as_nanos()
}

/// New settings, and another directory if it changes.
type Orders = (DeadLetter, Redactor, Option<SegmentStore>);

/// The orders of the handle to the thread, and the thread's reports.
#[derive(Default)]
pub(super) struct WriterControl {
    state: Mutex<DeskState>,
    ended: Condvar,
}

#[derive(Default)]
struct DeskState {
    orders: Option<Orders>,
    closing: bool,
    ended: bool,
    position: Position,
}

impl WriterControl {
    /// Leaves new settings for the writer. An earlier order that it has not seen is replaced, but for its directory.
    pub(super) fn reconfigure(&self, settings: DeadLetter, redactor: Redactor, store: Option<SegmentStore>) {
        let mut state = self.state();
        let store = store.or_else(|| state.orders.take().and_then(|(_, _, store)| store));
        state.orders = Some((settings, redactor, store));
    }

    fn orders(&self) -> Option<Orders> {
        self.state().orders.take()
    }

    fn is_closing(&self) -> bool {
        self.state().closing
    }

    pub(super) fn ask_to_close(&self) {
        self.state().closing = true;
    }

    /// Whether the thread ended in that time.
    pub(super) fn wait_for_end(&self, timeout: Duration) -> bool {
        let waited = self.ended.wait_timeout_while(self.state(), timeout, |state| !state.ended);
        waited.unwrap_or_else(PoisonError::into_inner).0.ended
    }

    pub(super) fn position(&self) -> Position {
        self.state().position.clone()
    }

    fn state(&self) -> MutexGuard<'_, DeskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The niceness of the writer thread: requests go first on a core that it shares with a worker. The scheduler gives it a
/// quarter of that core all the same (335 of 1024 + 335 parts, `sched_prio_to_weight` of Linux); it needs some hundredths
/// for `max_record_rate`.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 5;

/// The writer thread, until it is asked to close or the last handle is gone.
pub(super) fn run(mut writer: Writer, receiver: Receiver<QueueMessage>, desk: &WriterControl, clock: &Clock) {
    give_way();
    loop {
        let received = receiver.recv_timeout(writer.idle(clock.now()).into());
        // One wake-up for all of a slice: each would cost a request's worker microseconds.
        if received.is_ok() && !desk.is_closing() {
            thread::sleep(SLICE.into());
        }
        let is_over = matches!(received, Err(RecvTimeoutError::Disconnected));
        let messages = received.map_or_else(|_| Vec::new(), |first| with_rest(&receiver, first));
        // After these were received, and before they are written: those of after a reload are written by its settings, and
        // by its redactor.
        run_commands(&mut writer, desk, clock.now());
        drain(&mut writer, messages, clock.now());
        if is_over {
            break;
        }
        let now = clock.now();
        writer.flush(now);
        writer.tick(now);
        let closing = {
            let mut state = desk.state();
            state.position = writer.position();
            state.closing
        };
        if closing {
            break;
        }
    }
    let now = clock.now();
    while let Ok(message) = receiver.try_recv() {
        let messages = with_rest(&receiver, message);
        run_commands(&mut writer, desk, now);
        drain(&mut writer, messages, now);
    }
    run_commands(&mut writer, desk, now);
    // What slips in from here on is counted as dropped, by the place that it holds in the queue.
    drop(receiver);
    writer.close(now);
    let position = writer.position();
    // The task that waits for the end may want to lock the directory.
    drop(writer);
    let mut state = desk.state();
    state.position = position;
    state.ended = true;
    drop(state);
    desk.ended.notify_all();
}

/// Makes this thread nicer, unless the process is already. Elsewhere than in Linux it would be the whole process.
pub(super) fn give_way() {
    #[cfg(target_os = "linux")]
    if rustix::process::getpriority_process(None).is_ok_and(|own| own < NICENESS) {
        // Nobody needs a privilege for that; where it is forbidden all the same, records are written as they were.
        let _ = rustix::process::setpriority_process(None, NICENESS);
    }
}

/// Takes new settings over, if there are any.
fn run_commands(writer: &mut Writer, desk: &WriterControl, now: Tick) {
    if let Some((settings, redactor, store)) = desk.orders() {
        writer.reconfigure(settings, redactor, store, now);
    }
}

/// A message and those that wait behind it.
fn with_rest(receiver: &Receiver<QueueMessage>, first: QueueMessage) -> Vec<QueueMessage> {
    let rest = std::iter::from_fn(|| receiver.try_recv().ok()).take(MAX_BURST);
    std::iter::once(first).chain(rest).collect()
}

fn drain(writer: &mut Writer, messages: Vec<QueueMessage>, now: Tick) {
    for message in messages {
        if let QueueMessage::Record(place) = message
            && let Some((draft, charged)) = place.take()
        {
            writer.take(&draft, charged, now);
        }
    }
}
