//! A replay from its plan to its end.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use tokio::task::JoinSet;

use super::journal::{Journal, JournalError, RecordFate, number_of};
use super::request::{Means, NotReplayable, ReplayRequest};
use super::scheduler::{InFlightReplay, NextSend, Queued as _, ReplayScheduler, TryOutcome, Verdict};
use super::sender::Sender;
use sluicegate_dead_letter::{Entry, Filter, Found, Reader, Reason, Record, Snapshot, StoreError};
use sluicegate_time::{Clock, Span};

/// Reasons that are counted apart: some have words of servers in them.
const MOST_REASONS: usize = 64;

/// The records that are sent.
#[derive(Debug)]
pub struct RecordsToReplay {
    /// Those that match.
    pub filter: Filter,
    /// Records of refusals are left out: neither a reason nor a limit asks for them.
    pub failures_only: bool,
    /// Methods beside the idempotent ones.
    pub methods: Vec<Method>,
    /// Records that were sent by replays of before; they are left out.
    pub sent: HashSet<u128>,
    /// Records that have their fate in the journal that goes on.
    pub done: HashSet<u128>,
    /// How requests are made of them.
    pub means: Means,
}

/// How many records there are of each kind, before or after a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordCounts {
    /// Records that match.
    pub matching: u64,
    /// Those to be sent; after a replay, those that were.
    pub sent: u64,
    /// Those that were sent before.
    pub sent_before: u64,
    /// Those that a limit in shadow mode would have refused: they were served.
    pub shadow: u64,
    /// Those that were deferred: the gateway sends them itself.
    pub deferred: u64,
    /// Those of refusals that were not asked for, by their reason. They are left out.
    pub refused: BTreeMap<String, u64>,
    /// Those of methods that were not asked for, by method. They wait.
    pub waiting: BTreeMap<String, u64>,
    /// Those that are set aside, by reason.
    pub parked: BTreeMap<String, u64>,
    /// Those that were neither sent nor parked when the replay was stopped.
    pub left: u64,
    /// Requests that were counted and have no record.
    pub counted_only: u64,
    /// Lines that tell of a record once more.
    pub repeated: u64,
    /// Lines that are no entries.
    pub damaged: u64,
    /// Whether sealed fields are sent.
    pub opens_seals: bool,
}

impl RecordCounts {
    /// Records that are set aside.
    pub fn parked(&self) -> u64 {
        self.parked.values().sum()
    }

    /// Records of methods that were not asked for.
    pub fn waiting(&self) -> u64 {
        self.waiting.values().sum()
    }

    fn park(&mut self, reason: &str) {
        count(&mut self.parked, reason, "other reasons");
    }
}

/// Counts one by its word; beyond [`MOST_REASONS`] words, among the `others`.
fn count(counts: &mut BTreeMap<String, u64>, word: &str, others: &str) {
    let is_known = counts.len() < MOST_REASONS || counts.contains_key(word);
    *counts.entry(if is_known { word } else { others }.to_owned()).or_default() += 1;
}

/// Why a replay ended early.
#[derive(Debug)]
pub enum ReplayError {
    /// The log cannot be read.
    Store(StoreError),
    /// The journal cannot be written.
    Journal(JournalError),
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => error.fmt(f),
            Self::Journal(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ReplayError {}

impl From<StoreError> for ReplayError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<JournalError> for ReplayError {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

/// How far a replay is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayProgress {
    /// Records that were sent.
    pub sent: u64,
    /// Records that are parked.
    pub parked: u64,
    /// Tries that are under way.
    pub in_flight: usize,
}

/// The kinds of records, to a replay.
enum RecordKind {
    Send(Box<ReplayRequest>),
    Unfit(String, NotReplayable),
    Other,
}

/// The records of an order, one after the other, each once: a line may be there twice, in a copy of a segment.
struct RecordSource<'o> {
    order: &'o RecordsToReplay,
    reader: Reader,
    met: HashSet<u128>,
}

impl<'o> RecordSource<'o> {
    fn open(directory: &Path, order: &'o RecordsToReplay) -> Result<Self, StoreError> {
        Ok(Self { order, reader: Snapshot::take(directory)?.read_matching(&order.filter), met: HashSet::new() })
    }

    /// The next record that the order is about, counted; `None` at the end.
    fn next(&mut self, counts: &mut RecordCounts) -> Result<Option<RecordKind>, StoreError> {
        while let Some(found) = self.reader.next_entry()? {
            if !self.order.filter.matches(&found.entry) {
                continue;
            }
            match &found.entry {
                Entry::Aggregate(aggregate) => counts.counted_only += aggregate.count,
                Entry::Dropped(_) => {}
                Entry::Record(record) if !self.met.insert(number_of(&record.id)) => {
                    counts.repeated += 1;
                }
                Entry::Record(record) => match self.order.kind(record, &found, counts) {
                    RecordKind::Other => {}
                    kind => return Ok(Some(kind)),
                },
            }
        }
        counts.damaged = self.reader.damaged();
        Ok(None)
    }

    /// Reads the log once more, without the records that were met; those are to be met again.
    fn again(&mut self, directory: &Path, left: &HashSet<u128>) -> Result<(), StoreError> {
        self.met.retain(|id| !left.contains(id));
        self.reader = Snapshot::take(directory)?.read_matching(&self.order.filter);
        Ok(())
    }
}

impl RecordsToReplay {
    fn kind(&self, record: &Record, found: &Found, counts: &mut RecordCounts) -> RecordKind {
        let number = number_of(&record.id);
        if self.done.contains(&number) {
            return RecordKind::Other;
        }
        counts.matching += 1;
        if found.entry.is_shadow() {
            counts.shadow += 1;
        } else if record.reason == Reason::Deferred.word() {
            counts.deferred += 1;
        } else if self.sent.contains(&number) {
            counts.sent_before += 1;
        } else if self.failures_only && !record.is_failure() {
            count(&mut counts.refused, &record.reason, "other reasons");
        } else if !self.takes(&record.method) {
            count(&mut counts.waiting, &record.method, "other methods");
        } else {
            return match ReplayRequest::of(record, found, &self.means) {
                Ok(letter) => {
                    counts.opens_seals |= letter.was_sealed && self.means.opener.is_some();
                    RecordKind::Send(Box::new(letter))
                }
                Err(unfit) => RecordKind::Unfit(record.id.clone(), unfit),
            };
        }
        RecordKind::Other
    }

    fn takes(&self, method: &str) -> bool {
        // Idempotent by RFC 9110, 9.2.2; TRACE would show a server's secrets to nobody.
        matches!(method, "GET" | "HEAD" | "OPTIONS" | "PUT" | "DELETE")
            || self.methods.iter().any(|asked| asked.as_str() == method)
    }

    /// The counts of what a replay would do: nothing is sent, nothing is written.
    ///
    /// # Errors
    /// A [`StoreError`].
    pub fn plan(&self, directory: &Path) -> Result<RecordCounts, StoreError> {
        let mut counts = RecordCounts::default();
        let mut source = RecordSource::open(directory, self)?;
        while let Some(kind) = source.next(&mut counts)? {
            match kind {
                RecordKind::Send(_) => counts.sent += 1,
                RecordKind::Unfit(_, unfit) => counts.park(&unfit.to_string()),
                RecordKind::Other => {}
            }
        }
        Ok(counts)
    }
}

/// A replay that is under way.
pub struct Replay<'r> {
    directory: &'r Path,
    order: &'r RecordsToReplay,
    sender: Arc<Sender>,
    journal: Journal,
    lineup: ReplayScheduler,
    clock: Clock,
    /// Records that were given to the lineup and have their fate.
    settled: u64,
}

/// Records that found no room for their keys; they are met again when there is.
#[derive(Default)]
struct LeftOut {
    ids: HashSet<u128>,
    orders: HashSet<String>,
}

/// A try that is over.
type FinishedTry = (Box<InFlightReplay>, TryOutcome);

impl<'r> Replay<'r> {
    /// One that has not begun.
    pub fn new(
        directory: &'r Path,
        order: &'r RecordsToReplay,
        sender: Arc<Sender>,
        journal: Journal,
        lineup: ReplayScheduler,
        clock: Clock,
    ) -> Self {
        Self { directory, order, sender, journal, lineup, clock, settled: 0 }
    }

    /// Runs it, until all have their fate or `stop` is ready: then nothing more is sent, and what is under way is waited for.
    ///
    /// # Errors
    /// See [`ReplayError`]. The journal has all that was done before.
    pub async fn run(
        mut self,
        stop: impl Future<Output = ()>,
        mut show: impl FnMut(ReplayProgress),
    ) -> Result<RecordCounts, ReplayError> {
        let mut stop = std::pin::pin!(stop);
        let mut counts = RecordCounts::default();
        let mut source = RecordSource::open(self.directory, self.order)?;
        let (mut has_more, mut is_stopped) = (true, false);
        let mut left_out = LeftOut::default();
        let mut tries: JoinSet<FinishedTry> = JoinSet::new();
        let mut offered = 0;
        loop {
            while has_more && !is_stopped && self.lineup.has_room() {
                has_more = self.take_one(&mut source, &mut counts, &mut offered, &mut left_out)?;
            }
            if !has_more && !is_stopped && !left_out.ids.is_empty() && self.lineup.has_run_low() {
                // Records that had no room are met again.
                source.again(self.directory, &left_out.ids)?;
                (left_out, has_more) = (LeftOut::default(), true);
                continue;
            }
            let now = self.clock.now();
            let wait = match if is_stopped { self.rest() } else { self.lineup.next(now) } {
                NextSend::Send(sending) => {
                    let sender = Arc::clone(&self.sender);
                    tries.spawn(async move {
                        let outcome = sender.send(&sending).await;
                        (sending, outcome)
                    });
                    continue;
                }
                NextSend::Idle => break,
                NextSend::Wait(due) => due.since(now),
                NextSend::Busy => Span::from_secs(3600),
            };
            show(ReplayProgress { sent: counts.sent, parked: counts.parked(), in_flight: tries.len() });
            tokio::select! {
                biased;
                () = &mut stop, if !is_stopped => is_stopped = true,
                Some(done) = tries.join_next() => {
                    match done {
                        Ok((sending, outcome)) => self.settle(*sending, &outcome, &mut counts)?,
                        // A try that panicked is a fault of ours. Its record has no fate, and --resume takes it up.
                        Err(_) => self.lineup.lost(),
                    }
                }
                () = tokio::time::sleep(Duration::from(wait)) => {}
            }
        }
        counts.left = offered - self.settled + left_out.ids.len() as u64;
        if !is_stopped && counts.left == 0 {
            self.journal.end(self.clock.wall_now())?;
        }
        Ok(counts)
    }

    /// When nothing more is sent.
    fn rest(&self) -> NextSend {
        if self.lineup.in_flight() > 0 { NextSend::Busy } else { NextSend::Idle }
    }

    /// Takes the next record of the log; false at its end.
    fn take_one(
        &mut self,
        source: &mut RecordSource<'_>,
        counts: &mut RecordCounts,
        offered: &mut u64,
        left_out: &mut LeftOut,
    ) -> Result<bool, ReplayError> {
        match source.next(counts)? {
            None => return Ok(false),
            // Behind one that had no room no other of its key goes.
            Some(RecordKind::Send(letter))
                if left_out.orders.contains(&letter.order) || !self.lineup.has_room_for(&letter.order()) =>
            {
                left_out.ids.insert(number_of(&letter.id));
                left_out.orders.insert(letter.order);
            }
            Some(RecordKind::Send(letter)) => {
                *offered += 1;
                self.lineup.offer(*letter);
            }
            Some(RecordKind::Unfit(id, unfit)) => {
                let reason = unfit.to_string();
                counts.park(&reason);
                self.journal.tell(&id, &RecordFate::Parked(reason), 0, self.clock.wall_now())?;
            }
            Some(RecordKind::Other) => {}
        }
        Ok(true)
    }

    fn settle(
        &mut self,
        sending: InFlightReplay,
        outcome: &TryOutcome,
        counts: &mut RecordCounts,
    ) -> Result<(), ReplayError> {
        let now = self.clock.now();
        let (id, tries) = (sending.letter.id.clone(), sending.number);
        let fate = match self.lineup.done(sending, outcome, now) {
            Verdict::Again(_) => return Ok(()),
            Verdict::Sent(status) => {
                counts.sent += 1;
                RecordFate::Sent(status)
            }
            Verdict::Parked(reason) => {
                counts.park(&reason);
                RecordFate::Parked(reason)
            }
        };
        self.settled += 1;
        Ok(self.journal.tell(&id, &fate, tries, self.clock.wall(now))?)
    }
}
