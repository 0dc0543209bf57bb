//! The thread of the store: writes requests and ends in batches, each made durable by one sync, and keeps the room.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use tokio::sync::oneshot;

use super::files::{self, Files, Rotation};
use super::index::{Index, LinePosition, Reserved, StoreBounds, Ticket};
use super::line::{self, DeferredFate, Ended};
use super::{Keys, Message, Owed, Shared, Unkept, lock};
use crate::seal::Sealer;
use crate::segment::Disk;
use crate::store::StoreError;
use sluicegate_time::{Span, Tick};

/// From one look at what has expired, and at old segments, to the next.
const LOOK: Duration = Duration::from_millis(500);
/// How long the end of a request is safe from the death of this process alone. A sync for each would make them wait for the
/// disk one after the other, since the next of a key goes when the one before has its end.
const SYNC_AFTER: Duration = Duration::from_millis(100);
/// Between tries to open a directory that another process has open.
const OPEN_PAUSE: Duration = Duration::from_millis(100);
/// So often one has it open until that is worth a word: for ten seconds.
const IN_USE_TRIES: u32 = 100;
/// Messages of one batch.
const MAX_BATCH: usize = 256;
/// Bytes of its lines, about.
const MAX_BATCH_BYTES: usize = 4 * 1024 * 1024;
/// Bytes of a segment.
const SEGMENT_BYTES: (u64, u64) = (64 * 1024, 16 * 1024 * 1024);

/// Runs until the store is closed.
pub(super) fn run(shared: &Arc<Shared>, receiver: &Receiver<Message>, disk: Box<dyn Disk>) {
    // Dropping it tells the task that waits for the end, also after a panic.
    let _end = ClosingGuard(Arc::clone(shared));
    let Some(files) = open(shared, disk) else { return };
    let Some(mut writer) = DeferredWriter::new(shared, files) else { return };
    shared.is_open.store(true, Ordering::Release);
    shared.fresh.notify_one();
    loop {
        let is_closing = shared.is_closing.load(Ordering::Acquire);
        let first = if is_closing { receiver.try_recv().ok() } else { writer.wait(receiver) };
        let is_last = is_closing && first.is_none();
        writer.turn(first, receiver);
        // All that has ended is written before, unless the disk refuses it.
        if is_last && (writer.owed.is_empty() || writer.fails) {
            return writer.sync();
        }
    }
}

struct ClosingGuard(Arc<Shared>);

impl Drop for ClosingGuard {
    fn drop(&mut self) {
        self.0.is_closing.store(true, Ordering::Release);
        let (ended, told) = &self.0.has_ended;
        *lock(ended) = true;
        told.notify_all();
    }
}

/// Opens the directory, as soon as it can be; `None`: the store is closed before.
fn open(shared: &Shared, disk: Box<dyn Disk>) -> Option<Files> {
    let mut disk = Some(disk);
    let (mut was_told, mut tries) = (false, 0_u32);
    loop {
        let taken = disk.take()?;
        // Read beside what others look at: it may take seconds.
        let mut index = Index::default();
        match Files::open(&shared.directory, taken, &mut index, shared.clock.offset()) {
            Ok((files, found)) => {
                *shared.index() = index;
                if found.damaged > 0 {
                    let directory = shared.directory.display();
                    tracing::warn!(target: "sluicegate::dead_letter::deferred::writer", %directory, lines = found.damaged, "lines of deferred requests are damaged");
                }
                return Some(files);
            }
            Err((error, taken)) => {
                disk = Some(taken);
                tries += 1;
                // One that is about to end, after an upgrade, is nothing to tell of.
                let is_short = matches!(error, StoreError::InUse(_)) && tries < IN_USE_TRIES;
                if !was_told && !is_short {
                    was_told = true;
                    tell_of(&error, &shared.directory);
                }
            }
        }
        if shared.is_closing.load(Ordering::Acquire) {
            return None;
        }
        std::thread::sleep(OPEN_PAUSE);
    }
}

fn tell_of(error: &StoreError, directory: &Path) {
    let directory = directory.display();
    if matches!(error, StoreError::InUse(_)) {
        let help = "give each gateway a directory of its own, or wait until the other one has ended";
        tracing::error!(target: "sluicegate::dead_letter::deferred::writer", %directory, help, "another gateway keeps deferred requests here; this one keeps none");
    } else {
        tracing::error!(target: "sluicegate::dead_letter::deferred::writer", %error, "deferred requests cannot be read; those that a limit refuses are refused");
    }
}

/// A request of a batch.
struct BatchedRequest {
    ticket: Ticket,
    /// Where its line is in the batch.
    at: (usize, usize),
    reserved: Reserved,
    told: oneshot::Sender<Result<u128, Unkept>>,
}

struct DeferredWriter<'s> {
    shared: &'s Shared,
    files: Files,
    keys: Arc<Keys>,
    sealer: Sealer,
    /// Ends that are to be written, those of before first.
    owed: VecDeque<Owed>,
    lines: Vec<u8>,
    /// When ends that were written have to be durable.
    sync_at: Option<Tick>,
    /// Whether the disk failed the last time.
    fails: bool,
    /// Whether an old segment could not be read the last time.
    cannot_move: bool,
}

impl<'s> DeferredWriter<'s> {
    fn new(shared: &'s Shared, files: Files) -> Option<Self> {
        let keys = shared.keys();
        let sealer = Sealer::new(&keys.seal)?;
        Some(Self {
            shared,
            files,
            keys,
            sealer,
            owed: VecDeque::new(),
            lines: Vec::new(),
            sync_at: None,
            fails: false,
            cannot_move: false,
        })
    }

    /// The next message, if one comes before it is time to look at other things. The store itself has a sender: there is always one.
    fn wait(&mut self, receiver: &Receiver<Message>) -> Option<Message> {
        let now = self.shared.clock.now();
        let left = self.sync_at.map_or(LOOK, |due| due.since(now).into());
        receiver.recv_timeout(left.min(LOOK)).ok()
    }

    fn sync(&mut self) {
        self.sync_at = None;
        if let Err(error) = self.files.sync() {
            tracing::warn!(target: "sluicegate::dead_letter::deferred::writer", %error, "what was sent of deferred requests may be sent again if the machine stops now");
        }
    }

    /// One batch, and what else is due.
    fn turn(&mut self, first: Option<Message>, receiver: &Receiver<Message>) {
        let now = self.shared.clock.now();
        let room = *lock(&self.shared.room);
        self.renew_keys();
        self.lines.clear();
        let mut kept = Vec::new();
        let mut next = first;
        let mut count = 0;
        while let Some(message) = next {
            match message {
                Message::Keep(request, order, reserved, told) => {
                    self.shared.queue_bytes.fetch_sub(request.bytes(), Ordering::Relaxed);
                    self.add(&request, order, reserved, told, &mut kept, now);
                }
                Message::Wake => {}
            }
            count += 1;
            let has_room = count < MAX_BATCH && self.lines.len() < MAX_BATCH_BYTES;
            next = if has_room { receiver.try_recv().ok() } else { None };
        }
        self.owe_expired(&room, now);
        self.owed.extend(std::mem::take(&mut *lock(&self.shared.owed)));
        self.write(kept, &room, now);
        if !self.files.is_unsynced() {
            self.sync_at = None;
        } else if *self.sync_at.get_or_insert(now + SYNC_AFTER.into()) <= now {
            self.sync();
        }
        self.make_room(&room, now);
    }

    fn renew_keys(&mut self) {
        let keys = self.shared.keys();
        if !Arc::ptr_eq(&keys, &self.keys)
            && let Some(sealer) = Sealer::new(&keys.seal)
        {
            (self.keys, self.sealer) = (keys, sealer);
        }
    }

    /// Adds a request to the batch, unless nobody waits for it any more.
    fn add(
        &mut self,
        request: &super::Deferral,
        order: u64,
        reserved: Reserved,
        told: oneshot::Sender<Result<u128, Unkept>>,
        kept: &mut Vec<BatchedRequest>,
        now: Tick,
    ) {
        let start = self.lines.len();
        let wall = self.shared.clock.wall(now);
        let id = random_id().filter(|_| !told.is_closed());
        let written = id.and_then(|id| {
            line::write_request(&mut self.lines, id, request, order, &mut self.sealer, wall)?;
            Some(id)
        });
        let is_too_long = self.lines.len() - start > files::MAX_LINE;
        if let Some(id) = written.filter(|_| !is_too_long) {
            let ticket = Ticket::new(id, &request.shown(order), request.not_before);
            kept.push(BatchedRequest { ticket, at: (start, self.lines.len()), reserved, told });
        } else {
            self.lines.truncate(start);
            self.shared.index().release(&reserved);
            let _ = told.send(Err(if is_too_long { Unkept::Full } else { Unkept::Disk }));
        }
    }

    /// Ends those that are too old.
    fn owe_expired(&mut self, room: &StoreBounds, now: Tick) {
        let mut index = self.shared.index();
        let expired = index.expire(room, now);
        for id in &expired {
            let (tries, status) = index.get(*id).map(|entry| entry.tried).unwrap_or_default();
            let ended = Ended { fate: DeferredFate::Expired, at: now, tries, status, reason: None };
            self.owed.push_back(Owed { id: *id, ended, answer: None, told: None });
        }
        drop(index);
        if !expired.is_empty() {
            self.shared.fresh.notify_one();
        }
    }

    /// Ends a request that is in the writer's hand.
    fn owe_failed(&mut self, id: u128, reason: &str, now: Tick) {
        let ended = Ended { fate: DeferredFate::Failed, at: now, tries: 0, status: None, reason: Some(reason.into()) };
        self.owed.push_back(Owed { id, ended, answer: None, told: None });
    }

    /// Writes the batch and what is owed, and tells the task that waits.
    fn write(&mut self, kept: Vec<BatchedRequest>, room: &StoreBounds, now: Tick) {
        let mut ends = Vec::new();
        while self.lines.len() < 2 * MAX_BATCH_BYTES
            && let Some(owed) = self.owed.pop_front()
        {
            let start = self.lines.len();
            let with = (&mut self.sealer, self.shared.clock.offset());
            line::write_end(&mut self.lines, owed.id, &owed.ended, owed.answer.clone(), with);
            ends.push((owed, (start, self.lines.len())));
        }
        if self.lines.is_empty() {
            return;
        }
        // Without the lock: the task that looks meanwhile shall not wait for the disk.
        let totals = self.shared.index().totals();
        match self.files.append(&self.lines, &totals, &rotation(room), !kept.is_empty(), now) {
            Ok(appended) => self.note(kept, ends, &appended, now),
            Err(error) => self.fail(kept, ends, &error),
        }
    }

    fn note(
        &mut self,
        kept: Vec<BatchedRequest>,
        ends: Vec<(Owed, (usize, usize))>,
        appended: &files::Appended,
        now: Tick,
    ) {
        if std::mem::take(&mut self.fails) {
            tracing::info!(target: "sluicegate::dead_letter::deferred::writer", "deferred requests are written again");
        }
        let place = |(start, end): (usize, usize)| LinePosition {
            segment: appended.segment,
            offset: appended.offset + start as u64,
            length: u32::try_from(end - start).unwrap_or(u32::MAX),
        };
        let mut unheard = Vec::new();
        let has_kept = !kept.is_empty();
        let mut index = self.shared.index();
        index.begin(appended.segment);
        index.grew(appended.segment, appended.bytes);
        for BatchedRequest { ticket, at, reserved, told: tell } in kept {
            index.accept(ticket, place(at), &reserved, now);
            // A client that was not told sends it again, and it would be done twice.
            if tell.send(Ok(ticket.id)).is_err() {
                index.begin_end(ticket.id);
                unheard.push(ticket.id);
            }
        }
        let mut ended = Vec::with_capacity(ends.len());
        for (owed, at) in ends {
            let answer = owed.answer.is_some().then(|| place(at));
            index.end(owed.id, owed.ended, answer);
            ended.extend(owed.told);
        }
        drop(index);
        if has_kept {
            self.shared.fresh.notify_one();
        }
        for id in unheard {
            self.owe_failed(id, "its client had gone before it was told", now);
        }
        for tell in ended {
            let _ = tell.send(());
        }
    }

    /// Nothing was written: requests are refused, ends are written later.
    fn fail(&mut self, kept: Vec<BatchedRequest>, ends: Vec<(Owed, (usize, usize))>, error: &StoreError) {
        if !std::mem::replace(&mut self.fails, true) {
            tracing::error!(target: "sluicegate::dead_letter::deferred::writer", %error, "deferred requests cannot be written; those that a limit refuses are answered by 503");
        }
        for (owed, _) in ends.into_iter().rev() {
            self.owed.push_front(owed);
        }
        for BatchedRequest { reserved, told, .. } in kept {
            self.shared.index().release(&reserved);
            let _ = told.send(Err(Unkept::Disk));
        }
    }

    /// Lets the oldest segment go, if it is time; what is pending there moves to the active one before.
    fn make_room(&mut self, room: &StoreBounds, now: Tick) {
        let due = self.shared.index().due(self.files.active(), room, now);
        let Some((segment, pending)) = due.filter(|_| !self.fails) else { return };
        for some in pending.chunks(MAX_BATCH) {
            if let Err(words) = self.copy(some, room, now) {
                if !std::mem::replace(&mut self.cannot_move, true) {
                    tracing::warn!(target: "sluicegate::dead_letter::deferred::writer", error = words, "an old segment of deferred requests stays");
                }
                return;
            }
        }
        // Those whose lines are damaged are ended first.
        if !self.shared.index().may_go(segment) {
            return;
        }
        self.cannot_move = false;
        match self.files.remove(segment) {
            Ok(()) => self.shared.index().forget(segment),
            Err(error) => {
                tracing::warn!(target: "sluicegate::dead_letter::deferred::writer", %error, "an old segment of deferred requests stays");
            }
        }
    }

    /// Writes lines of requests once more. The error is in words: nothing that cannot be read now is given up.
    fn copy(&mut self, ids: &[u128], room: &StoreBounds, now: Tick) -> Result<(), String> {
        self.lines.clear();
        let mut copies = Vec::new();
        for id in ids {
            let start = self.lines.len();
            let line = self.shared.line(*id, |entry| Some(entry.place))?;
            if line::write_copy(&mut self.lines, &line).is_some() {
                copies.push((*id, (start, self.lines.len())));
                continue;
            }
            self.lines.truncate(start);
            if self.shared.index().take_up(*id) {
                self.shared.index().begin_end(*id);
                self.owe_failed(*id, "its line is damaged", now);
            }
        }
        if copies.is_empty() {
            return Ok(());
        }
        let totals = self.shared.index().totals();
        let appended = self.files.append(&self.lines, &totals, &rotation(room), true, now);
        let appended = appended.map_err(|error| error.to_string())?;
        let mut index = self.shared.index();
        index.begin(appended.segment);
        index.grew(appended.segment, appended.bytes);
        for (id, (start, end)) in copies {
            let length = u32::try_from(end - start).unwrap_or(u32::MAX);
            let offset = appended.offset + start as u64;
            index.moved(id, LinePosition { segment: appended.segment, offset, length });
        }
        Ok(())
    }
}

fn rotation(room: &StoreBounds) -> Rotation {
    let (least, most) = SEGMENT_BYTES;
    let age = Span::from_nanos(room.max_age.as_nanos() / 8).max(Span::from_secs(1));
    Rotation { bytes: (room.max_bytes / 8).clamp(least, most), age }
}

/// 128 bits that nobody can guess.
pub(super) fn random_id() -> Option<u128> {
    let mut bytes = [0; 16];
    aws_lc_rs::rand::fill(&mut bytes).ok()?;
    Some(u128::from_be_bytes(bytes))
}
