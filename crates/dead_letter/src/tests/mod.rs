//! The room as a whole, beside a writer without its thread ([`Bench`]) or with it.

mod archive;
mod disk;
mod log;
mod purging;
mod reading;
mod segments;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::faults::Faults;
use super::flood::{Flood, FloodVerdict};
use super::queue::Counters;
use super::record::tests::draft;
use super::store::SegmentStore;
use super::writer::Writer;
use super::{DeadLetters, Draft, Drops, Entry, Event, KeyName, Reason, Snapshot, Summary};
use sluicegate_config as config;
use sluicegate_config::{Certificates, DeadLetter};
use sluicegate_limiter::Fingerprint;
use sluicegate_redact::{RedactRules, Redactor};
use sluicegate_time::{Span, Tick, Wall, WallOffset};

const SECOND: Span = Span::from_secs(1);

/// 2026-01-02T03:04:05Z
fn start() -> Tick {
    Tick::from_nanos(1_767_323_045_000_000_000)
}

/// The same by a wall clock that was not set.
fn wall(tick: Tick) -> Wall {
    WallOffset::default().wall(tick)
}

/// The writer without its thread.
struct Bench {
    writer: Writer,
    flood: Arc<Flood>,
    counters: Arc<Counters>,
    faults: Faults,
    now: Tick,
    offset: WallOffset,
    offered: u64,
}

impl Bench {
    fn new(settings: DeadLetter) -> Self {
        let faults = Faults::default();
        let (store, _) = SegmentStore::open(&settings.directory, "gw", faults.disk()).unwrap();
        let flood = Arc::new(Flood::new(&settings).unwrap());
        let counters = Arc::new(Counters::default());
        let offset = WallOffset::default();
        let own = (Arc::clone(&flood), Arc::clone(&counters));
        let writer = Writer::new(settings, redactor(), store, own.0, own.1, (start(), offset.clone()));
        Self { writer, flood, counters, faults, now: start(), offset, offered: 0 }
    }

    /// Records, past flood control.
    fn record(&mut self, count: u64) {
        for _ in 0..count {
            self.writer.take(&Draft { at: wall(self.now), ..draft() }, u64::MAX, self.now);
        }
        self.offered += count;
    }

    /// A record of another reason.
    fn record_of(&mut self, reason: Reason) {
        self.writer.take(&Draft { at: wall(self.now), reason, ..draft() }, u64::MAX, self.now);
        self.offered += 1;
    }

    /// Events, through flood control.
    fn offer(&mut self, count: u64) {
        let limit: Arc<str> = "per-client".into();
        for _ in 0..count {
            let event = event(Some(&limit), None, self.now);
            if self.flood.admit(&event, KeyName::default) == FloodVerdict::Record {
                self.writer.take(&Draft { at: wall(self.now), ..draft() }, event.bytes, self.now);
            }
        }
        self.offered += count;
    }

    fn flush(&mut self) {
        self.writer.flush(self.now);
    }

    fn pass(&mut self, span: Span) {
        self.now = self.now + span;
        self.writer.flush(self.now);
        self.writer.tick(self.now);
    }

    fn written(&self) -> u64 {
        self.counters.written.load(Ordering::Relaxed)
    }
}

/// `[dead_letter]` as it is by default, in this directory.
pub(super) fn settings(directory: &Path) -> DeadLetter {
    let text = "[[listener]]\naddress = \"127.0.0.1:80\"\n[[route]]\nname = \"all\"\nrespond = {}\n[dead_letter]\n";
    let parsed = config::parse(text, Path::new("gateway.toml"), Certificates::Unread).unwrap();
    DeadLetter { directory: directory.to_owned(), ..parsed.model.dead_letter.unwrap() }
}

/// A redactor that knows the built-in names alone.
fn redactor() -> Redactor {
    Redactor::new(&RedactRules::default())
}

fn entries(directory: &Path) -> (Vec<Entry>, u64) {
    let mut reader = Snapshot::take(directory).unwrap().read();
    let mut entries = Vec::new();
    while let Some(found) = reader.next_entry().unwrap() {
        entries.push(found.entry);
    }
    (entries, reader.damaged())
}

/// Records, requests in aggregates, and drops that the log itself tells of.
fn told(directory: &Path) -> (u64, u64, Drops) {
    let mut summary = Summary::default();
    let (entries, damaged) = entries(directory);
    for entry in &entries {
        summary.add(entry);
    }
    assert_eq!(damaged, 0);
    (summary.records, summary.aggregated, summary.dropped)
}

fn segment_names(directory: &Path) -> Vec<String> {
    Snapshot::take(directory).unwrap().segments().iter().map(|segment| segment.name.file_name()).collect()
}

fn event(limit: Option<&Arc<str>>, key: Option<Fingerprint>, now: Tick) -> Event<'_> {
    Event { reason: Reason::RateLimited, is_shadow: false, limit, route: None, key, client: None, bytes: 1_000, now }
}

/// Budgets that have room for whatever a test offers.
fn roomy(directory: &Path) -> DeadLetter {
    DeadLetter { max_record_rate: 1_000_000, max_byte_rate: 1 << 40, ..settings(directory) }
}

fn offer_to(log: &DeadLetters, count: u64, key: Option<Fingerprint>) {
    let limit: Arc<str> = "per-client".into();
    for _ in 0..count {
        log.offer(&event(Some(&limit), key, start()), KeyName::default, draft);
    }
}
