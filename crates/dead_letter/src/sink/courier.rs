//! The next step of a sink, and its conclusion from an answer. Time is an argument, and the network is not here.
//!
//! The place on the disk is written before a batch is sent, with where that ends: so a batch whose fate nobody knows, after a
//! crash, is sent again with the same bytes and the same mark. It is written again when the batch was taken.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::super::archive::Archive;
use super::super::cursor::LogCursor;
use super::super::segment::list;
use super::super::store::StoreError;
use super::super::webhook::{pause, pause_within};
use super::batch::{self, Batch, MAX_LINES, NextBatch};
use super::checkpoint::{CheckpointContent, CheckpointFile, LogRange, SinkProgress};
use super::figures::{Figures, add, set};
use super::loss_counter::{LossCounter, Lost};
use sluicegate_config::Sink;
use sluicegate_time::{Span, Tick};

/// How often it looks how much it is behind, while it can do nothing else.
pub(super) const LOOK: Span = Span::from_secs(1);
/// The longest pause that a receiver may ask for.
const MAX_ASKED: Span = Span::from_secs(300);
/// After so many batches that were taken one may have twice as many lines as the one that was refused left room for.
const STREAK: u32 = 8;
/// The bound of the pause after a line that was refused alone. It is short because whoever sends requests may choose what is in
/// a line: the others do not wait long for it. It is not nothing because a receiver may refuse everything by mistake.
const MAX_ALONE: Span = Span::from_secs(1);
/// The tries that lines which are refused alone count for: they lengthen no pause of a receiver that is away.
const TRIES_ALONE: u32 = 4;
/// After so many tries a file that cannot be read is as good as damaged.
const UNREADABLE: u32 = 5;

/// The next thing to do.
#[derive(Debug)]
pub(super) enum DeliveryStep {
    Send(InFlightBatch),
    /// Nothing for so long.
    Wait(Span),
}

/// A batch on its way.
#[derive(Clone, Debug)]
pub(super) struct InFlightBatch {
    pub(super) mark: Arc<str>,
    pub(super) body: Bytes,
}

/// The answer to a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BatchOutcome {
    Taken,
    /// It may take it the next time.
    Failed {
        cause: String,
        /// It asks to be left alone for so long.
        asked: Span,
    },
    /// It is too large, or something in it is not to its liking.
    Refused {
        status: u16,
        asked: Span,
    },
}

/// A sink without its thread.
pub(super) struct SinkDelivery {
    sink: Sink,
    archive: Archive,
    /// Where it goes on if there is no file.
    start: LogCursor,
    /// `None`: another process has it, or the disk does not let this one.
    place: Option<CheckpointFile>,
    /// Another process has it.
    is_others: bool,
    /// Tries in a row to read its file that failed.
    unreadable: u32,
    progress: SinkProgress,
    /// Lines that were read and not taken. They are sent as they are, whatever becomes of their segment.
    hand: Option<Batch>,
    /// The first of them, on their way.
    pending: Option<Batch>,
    spill: LossCounter,
    /// Lines of the next batch.
    room: usize,
    /// Batches that were taken in a row.
    streak: u32,
    /// Tries that failed in a row.
    tries: u32,
    due: Tick,
    /// When the batch was read.
    read_at: Tick,
    /// When it looked how much it is behind.
    looked: Option<Tick>,
    /// Troubles that a line of the log has told of already.
    told: Told,
    figures: Arc<Figures>,
}

#[derive(Default)]
struct Told {
    fails: bool,
    loses: bool,
    waits: bool,
    disk: Option<String>,
}

impl SinkDelivery {
    pub(super) fn new(sink: Sink, archive: Archive, figures: Arc<Figures>) -> Self {
        // If it cannot be known where the log ends, nothing of it is left out.
        let start = archive.end().unwrap_or_default();
        Self {
            sink,
            archive,
            start,
            place: None,
            is_others: false,
            unreadable: 0,
            progress: SinkProgress::default(),
            hand: None,
            pending: None,
            spill: LossCounter::default(),
            room: MAX_LINES,
            streak: 0,
            tries: 0,
            due: Tick::ZERO,
            read_at: Tick::ZERO,
            looked: None,
            told: Told::default(),
            figures,
        }
    }

    pub(super) fn sink(&self) -> &Sink {
        &self.sink
    }

    /// Goes on with other settings, at once.
    pub(super) fn renew(&mut self, sink: Sink) {
        self.sink = sink;
        self.due = Tick::ZERO;
    }

    /// Sends what there is without waiting for more, unless it fails.
    pub(super) fn hurry(&mut self) {
        if self.tries == 0 {
            self.due = Tick::ZERO;
        }
    }

    /// Takes the sink's place in the log if no other process has it; whether it is its own now.
    pub(super) fn hold(&mut self) -> bool {
        match &self.place {
            Some(place) if !place.is_deleted() => return true,
            _ => self.place = None,
        }
        let held = CheckpointFile::hold(&self.archive.directory, &self.sink.called());
        let was_others = std::mem::replace(&mut self.is_others, matches!(held, Ok(None)));
        if self.is_others && !self.told.waits {
            tracing::info!(target: "sluicegate::dead_letter::sink::courier", sink = self.sink.called(), "another process sends dead letters to a sink; this one waits");
        }
        self.told.waits = self.is_others;
        let kept = match self.of_disk(held) {
            Some(Some(place)) => self.load(&place).map(|kept| (place, kept)),
            _ => None,
        };
        let Some((place, kept)) = kept else {
            add(&self.figures.failed, u64::from(!self.is_others));
            return false;
        };
        match kept {
            CheckpointContent::Progress(progress) => self.progress = progress,
            CheckpointContent::Nothing => {
                self.progress = SinkProgress { taken: self.start.clone(), sent: None };
                // So that what is written from now on is sent, whatever happens.
                let saved = place.save(&self.progress);
                self.of_disk(saved);
            }
            CheckpointContent::Damaged => {
                tracing::warn!(
                    target: "sluicegate::dead_letter::sink::courier", sink = self.sink.called(), file = %place.path().display(),
                    "the place of a sink of dead letters is damaged: it gets the log from its beginning"
                );
                self.progress = SinkProgress::default();
            }
        }
        if was_others {
            // That process has counted its losses; from its place on they are this one's.
            self.spill = LossCounter::default();
        }
        (self.place, self.hand, self.pending, self.looked) = (Some(place), None, None, None);
        self.take_up();
        true
    }

    fn load(&mut self, place: &CheckpointFile) -> Option<CheckpointContent> {
        let loaded = place.load();
        self.unreadable = if loaded.is_ok() { 0 } else { self.unreadable + 1 };
        let is_given_up = self.unreadable >= UNREADABLE;
        self.of_disk(loaded).or_else(|| is_given_up.then_some(CheckpointContent::Damaged))
    }

    pub(super) fn step(&mut self, now: Tick) -> DeliveryStep {
        if !self.hold() {
            self.watch(now);
            return DeliveryStep::Wait(LOOK);
        }
        if now < self.due {
            self.look(now);
            return DeliveryStep::Wait(self.due.since(now).min(LOOK));
        }
        if self.hand.is_some() {
            self.look(now);
        } else if !self.read(now) {
            return DeliveryStep::Wait(self.due.since(now).min(LOOK));
        }
        if self.pending.is_none() {
            self.prepare();
        }
        let Some(batch) = &self.pending else { return DeliveryStep::Wait(LOOK) };
        DeliveryStep::Send(InFlightBatch { mark: batch.mark(), body: batch.body.clone() })
    }

    /// Takes an answer in; `random` draws the pause before the next try.
    pub(super) fn settle(&mut self, outcome: BatchOutcome, now: Tick, random: u64) {
        let Some(batch) = self.pending.take() else { return };
        match outcome {
            BatchOutcome::Taken => {
                add(&self.figures.taken, 1);
                add(&self.figures.delivered, batch.stretch.lines);
                self.tries = 0;
                self.tell_well();
                // A full one is followed by the next at once.
                let is_full = batch.stretch.lines >= self.room as u64 || batch.has_more || self.spill.lines() > 0;
                self.due = if is_full { now } else { self.read_at + self.sink.batch };
                self.streak += 1;
                if self.streak >= STREAK {
                    (self.room, self.streak) = ((2 * self.room).min(MAX_LINES), 0);
                }
                self.pass(batch.stretch);
            }
            BatchOutcome::Failed { cause, asked } => {
                self.tell_ill(&cause);
                self.tries = self.tries.saturating_add(1);
                self.due = now + pause(self.tries, random).max(asked.min(MAX_ASKED));
                self.pending = Some(batch);
            }
            BatchOutcome::Refused { status, asked } => {
                self.tell_ill(&format!("status {status}"));
                let (lines, asked) = (batch.stretch.lines, asked.min(MAX_ASKED));
                (self.room, self.streak) = ((lines / 2).max(1) as usize, 0);
                if lines > 1 {
                    // The half of it, at once unless it asks for time: there are ten halves at most.
                    self.due = now + asked;
                    self.progress.sent = None;
                    self.show();
                    return;
                }
                self.tries = (self.tries + 1).min(TRIES_ALONE);
                self.due = now + pause_within(MAX_ALONE, self.tries, random).max(asked);
                add(&self.figures.refused, 1);
                let (sink, place) = (self.sink.called(), batch.stretch.from);
                let segment = format!("{}-{}", batch.stretch.node, batch.stretch.sequence);
                tracing::warn!(target: "sluicegate::dead_letter::sink::courier", sink, status, segment, place, "a sink refuses a dead letter, which it will not get");
                self.pass(batch.stretch);
            }
        }
        self.show();
    }

    /// Looks how much it is behind, and what went. A look lists the directory, so batches that follow each other have one
    /// together.
    pub(super) fn look(&mut self, now: Tick) {
        if self.is_time_to_look(now) {
            self.look_now(now);
        }
    }

    fn is_time_to_look(&self, now: Tick) -> bool {
        self.looked.is_none_or(|looked| now >= looked + LOOK)
    }

    fn look_now(&mut self, now: Tick) {
        self.looked = Some(now);
        let listed = list(&self.archive.directory).map_err(StoreError::io("read", &self.archive.directory));
        let Some(segments) = self.of_disk(listed) else { return };
        let position = self.position().clone();
        let lost = self.spill.look(&segments, &position);
        // The process that sends counts them.
        if !self.is_others {
            self.lose(lost);
        }
        if self.spill.lines() > 0 && self.figures.oldest.load(Ordering::Relaxed) == 0 {
            // Nobody has read them yet; they were written since the look before.
            set(&self.figures.oldest, self.archive.clock.wall(now).as_nanos());
        }
        self.show();
    }

    /// Shows how much the sink is behind while this process cannot send: nothing else would say that nobody does.
    fn watch(&mut self, now: Tick) {
        if !self.is_time_to_look(now) {
            return;
        }
        (self.hand, self.pending) = (None, None);
        self.progress = match CheckpointFile::peek(&self.archive.directory, &self.sink.called()) {
            Ok(CheckpointContent::Progress(progress)) => progress,
            Ok(CheckpointContent::Damaged) => SinkProgress::default(),
            Ok(CheckpointContent::Nothing) | Err(_) => SinkProgress { taken: self.start.clone(), sent: None },
        };
        let oldest = match batch::next(&self.archive, self.position(), 1) {
            Ok(NextBatch::Batch(batch)) => batch.oldest().as_nanos(),
            _ => 0,
        };
        set(&self.figures.oldest, oldest);
        self.look_now(now);
    }

    /// In front of what was not read yet.
    fn position(&self) -> &LogCursor {
        self.hand.as_ref().map_or(&self.progress.taken, |hand| &hand.stretch.then)
    }

    /// Takes the batch up again whose fate nobody knows.
    fn take_up(&mut self) {
        let Some(stretch) = self.progress.sent.clone() else { return };
        let read = batch::again(&self.archive.directory, &stretch);
        match self.of_disk(read) {
            Some(Some(batch)) => {
                set(&self.figures.oldest, batch.oldest().as_nanos());
                (self.hand, self.pending) = (Some(batch.clone()), Some(batch));
            }
            // As it was read once it is gone, or unreadable: the archive goes on behind it.
            Some(None) => {
                self.lose(Lost { segments: 0, lines: stretch.lines });
                self.progress = SinkProgress { taken: stretch.then, sent: None };
            }
            // Unreadable now: it is read as any other.
            None => self.progress.sent = None,
        }
    }

    /// Reads the next lines; whether there are some.
    fn read(&mut self, now: Tick) -> bool {
        self.look(now);
        self.read_at = now;
        let read = batch::next(&self.archive, self.position(), self.room);
        let read = self.of_disk(read);
        if let Some(next) = &read {
            for (node, sequence) in batch::written_anew(self.position(), next) {
                tracing::warn!(
                    target: "sluicegate::dead_letter::sink::courier", sink = self.sink.called(),
                    node,
                    sequence,
                    "a file of the log was written anew: a sink gets its remaining lines once more"
                );
            }
        }
        match read {
            Some(NextBatch::Batch(batch)) => {
                if !self.spill.knows(&batch.stretch) {
                    // It may go before the next look.
                    self.look_now(now);
                }
                self.spill.take(&batch.stretch);
                set(&self.figures.oldest, batch.oldest().as_nanos());
                self.hand = Some(batch);
                true
            }
            Some(NextBatch::Nothing(cursor, is_end)) => {
                self.progress.taken = cursor;
                set(&self.figures.oldest, 0);
                self.due = if is_end { now + self.sink.batch } else { now };
                false
            }
            None => {
                self.due = now + LOOK;
                false
            }
        }
    }

    /// Makes a batch of the first lines in hand, and writes down that it is sent.
    fn prepare(&mut self) {
        let Some(hand) = &self.hand else { return };
        let (batch, _) = hand.split(self.room);
        self.progress.sent = Some(batch.stretch.clone());
        self.pending = Some(batch);
        self.save();
        self.show();
    }

    /// Goes on behind a batch.
    fn pass(&mut self, stretch: LogRange) {
        self.hand = self.hand.take().and_then(|hand| hand.split(stretch.lines as usize).1);
        self.progress = SinkProgress { taken: stretch.then, sent: None };
        self.start.clone_from(&self.progress.taken);
        match &self.hand {
            Some(hand) => set(&self.figures.oldest, hand.oldest().as_nanos()),
            None if self.spill.lines() == 0 => set(&self.figures.oldest, 0),
            None => {}
        }
        self.save();
    }

    /// If it cannot be written, the sink gets its lines all the same; a restart repeats them.
    fn save(&mut self) {
        let saved = self.place.as_ref().map(|place| place.save(&self.progress));
        if let Some(saved) = saved
            && self.of_disk(saved).is_some()
        {
            self.told.disk = None;
        }
    }

    fn tell_ill(&mut self, cause: &str) {
        add(&self.figures.failed, 1);
        if !self.told.fails {
            self.told.fails = true;
            let (sink, address) = (self.sink.called(), &self.sink.http);
            tracing::warn!(target: "sluicegate::dead_letter::sink::courier", sink, %address, cause, "a sink does not take dead letters; they wait in the log");
        }
    }

    fn tell_well(&mut self) {
        if self.told.fails {
            let (sink, behind) = (self.sink.called(), self.spill.lines());
            tracing::info!(target: "sluicegate::dead_letter::sink::courier", sink, behind, "a sink takes dead letters again");
        }
        (self.told.fails, self.told.loses) = (false, false);
    }

    fn lose(&mut self, lost: Lost) {
        if lost == Lost::default() {
            return;
        }
        add(&self.figures.lost_lines, lost.lines);
        add(&self.figures.lost_segments, lost.segments);
        if !self.told.loses {
            self.told.loses = true;
            let (sink, Lost { lines, segments }) = (self.sink.called(), lost);
            tracing::warn!(target: "sluicegate::dead_letter::sink::courier", sink, lines, segments, "dead letters went from the log before a sink had them");
        }
    }

    fn show(&self) {
        let waiting = self.hand.as_ref();
        let lines = waiting.map_or(0, |batch| batch.stretch.lines);
        let bytes = waiting.map_or(0, |batch| batch.body.len() as u64);
        set(&self.figures.behind_lines, self.spill.lines() + lines);
        set(&self.figures.behind_bytes, self.spill.bytes() + bytes);
    }

    /// Tells of what is wrong with the disk, once.
    fn of_disk<T>(&mut self, done: Result<T, StoreError>) -> Option<T> {
        match done {
            Ok(value) => Some(value),
            Err(error) => {
                let error = error.to_string();
                if self.told.disk.as_ref() != Some(&error) {
                    tracing::warn!(
                        target: "sluicegate::dead_letter::sink::courier", sink = self.sink.called(),
                        error,
                        "a sink of dead letters has trouble with its files"
                    );
                    self.told.disk = Some(error);
                }
                None
            }
        }
    }
}
