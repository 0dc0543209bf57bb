//! The dead-letter log: every refused or timed-out request is a record, or a count in an aggregate, or a counted drop;
//! the three add up exactly.
//!
//! It is not on the request's way: [`DeadLetters::offer`] never waits for the disk, and what does not fit is counted and
//! left. `replay` sends records again.
//!
//! The walk of an event: `flood` decides, before anything is built, whether it gets a record of its own or a count;
//! `queue` takes the record, bounded in number and bytes; the writer thread (`writer`) redacts ([`sluicegate_redact`]), writes the
//! line (`record`, `line`; `body` the body of a request; `seal` keeps what was redacted, if there is a key) and hands batches to the directory (`store`), which rotates, syncs, keeps within its bounds
//! and keeps a share of them for each reason (`reserve`), and mends the tail after a crash (`recovery`). `reader`, `filter` and `summary` are for those who look,
//! `archive` and `cursor` for those who look again and go on where they were;
//! `scan` and `sieve`, by the `head` of a line, find what they ask for before any JSON is read. `purge` removes what they ask for.
//! `alert` tells people when the log grows; `sink` sends all of it elsewhere; `webhook` is how both ask. `deferred`
//! keeps requests that are sent later.
//!
//! Invariants: a line is at most 64 KiB, and with a body at most 1 MiB; a segment that the process closed holds whole lines only; no secret
//! reaches the disk in clear ([`sluicegate_redact`] says what one is); a failing disk touches no traffic; after [`DeadLetters::close`]
//! `offered = written + aggregated + dropped`, in the counters and in the log itself, provided that no offer was under
//! way when it was called: one that runs beside the last drain may leave its count in `aggregating`.
//!
//! Callers: the proxy offers, the gateway starts, reconfigures and closes, metrics read [`Stats`], admin and the command
//! line read the directory. `replay_guard` tells requests that a replay sends from others.
//!
//! # Format
//!
//! `DIRECTORY/NODE-SEQUENCE.jsonl`, JSON Lines, one object a line, fields in this order:
//!
//! ```json
//! {"v":1,"id":"019b…","ts":"2026-01-02T03:04:05.678901Z","reason":"rate-limited","limit":"per-client","route":"api",
//!  "upstream":"app","node":"gw-1","client_ip":"192.0.2.7","key":[["header:x-api-key","[redacted:3fe0a1b2]"]],
//!  "method":"GET","host":"api.example.com","path":"/api/x","query":"token=[redacted:77aa01c3]","headers":[["accept","*/*"]],
//!  "body":null,"quota":{"limit":100,"window_ms":1000,"remaining":0,"retry_after_ms":250},"why":"route api; …","status":429,"attempts":0,
//!  "trace_id":null,"request_id":null,"crc":"1c291ca3"}
//! ```
//!
//! Of one request at most 16 KiB are taken, of its path and query 4 KiB each, of a header 2 KiB, of a part of its key 512
//! bytes. Before `crc` stands `"truncated":true` if a text was too long (it ends in `…`) or a list was (its last pair is
//! `["…","N more"]`). Two more kinds of lines have the same head (`v`, `id`, `ts`) and end:
//!
//! - `"aggregate":true,"reason":…,"limit":…,"node":…,"count":N,"from":…,"to":…,"top":[{"key":…,"count":N}]`: requests that
//!   flood control counted, and the keys that came most often;
//! - `"dropped":true,"node":…,"count":N,"queue_full":N,"disk_error":N,"from":…,"to":…`: records that are missing.
//!
//! A record has `"scheme":"https"` and `"trusted_peer":true` before its headers if it came over TLS, and from a trusted proxy;
//! then `"asked":true` if another proxy has asked about it.
//! `body` is as in `body`. With `seal_key_file` a record from which something was redacted has, behind `request_id`, `"sealed":{"key":…,"data":…}`: what
//! it does not show, for the holder of that key; `seal` tells the form. `null` stands there if it had no room in the line.
//!
//! `crc` is CRC-32C (Castagnoli) over the bytes of the line from `{` up to, and not including, `,"crc":`; 8 lower-case
//! hex digits. To see what is in a segment: `jq -c 'select(.aggregate|not)' gw-1-0000000001.jsonl`. To verify it:
//!
//! ```python
//! import re, sys
//! def crc32c(data):
//!     c = 0xffffffff
//!     for b in data:
//!         c ^= b
//!         for _ in range(8): c = c >> 1 ^ (0x82f63b78 & -(c & 1))
//!     return c ^ 0xffffffff
//! for n, line in enumerate(open(sys.argv[1], "rb"), 1):
//!     m = re.fullmatch(rb'(.*),"crc":"([0-9a-f]{8})"\}\n', line, re.S)
//!     if not m or crc32c(m[1]) != int(m[2], 16): print(f"line {n} is damaged")
//! ```

#[macro_use]
extern crate sluicegate_words;

mod alert;
mod archive;
mod body;
mod cursor;
mod deferred;
mod entry;
mod filter;
mod flood;
mod head;
mod line;
mod line_prefilter;
mod purge;
mod queue;
mod reader;
mod reason;
mod record;
mod recovery;
mod replay_guard;
mod reserve;
mod scan;
mod seal;
mod segment;
mod sink;
mod store;
mod summary;
mod tally;
mod text_room;
mod timeline;
mod webhook;
mod when;
mod writer;

#[cfg(test)]
mod faults;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::Duration;

pub use alert::{AlertCount, AlertState, Figure as AlertFigure};
pub use archive::{Archive, ArchivePart, Bounds};
pub use body::{KeptBody, RecordedBody};
pub use cursor::{LogCursor, LogCursorError};
pub use deferred::{
    Deferral, Deferrals, DeferredFate, DeferredStatus, Ended as DeferredEnd, Figures as DeferredFigures, KeptAnswer,
    Keys as DeferredKeys, Listed as DeferredListed, Listing as DeferredListing, MAX_KEPT_ANSWER, ROOM_IN, StoreBounds,
    Ticket as DeferredTicket, Totals as DeferredTotals, Unkept, Unreadable, id_text as deferred_id,
    parse_id as parse_deferred_id, read_one as read_deferred, room_in, room_in_millis,
};
pub use entry::{Aggregate, Dropped, Entry, Record, RecordedQuota, TopKey};
pub use filter::{Filter, KeyFilter, StatusFilter, parse_network};
pub use purge::{Purge, PurgePlan, Purged};
pub use reader::{Follower, Found, Reader, Snapshot};
pub use reason::{Reason, UnknownReason};
pub use record::{Draft, Quota};
pub use recovery::Recovery;
pub use replay_guard::{REPLAY_FIELD, ReplayGuard, ReplayOrigin, Replayed, UsedTokens};
pub use seal::{Hidden, OpenError, Opener, Sealed};
pub use segment::{Segment, SegmentName};
pub use sink::{SinkCount, SinkFigures};
pub use store::StoreError;
pub use summary::{Ranking, Summary, in_words};
pub use tally::{Drops, KeyName};
pub use text_room::TextRoom;
pub use timeline::{ReasonCounts, Steps, Timeline};
pub use when::{When, WhenError};

use alert::{Alerts, Meter};
use flood::{Flood, FloodVerdict};
use queue::{Counters, QueueMessage, QueueSlot};
use segment::{Disk, Files};
use sink::Sinks;
use sluicegate_config::DeadLetter;
use sluicegate_limiter::Fingerprint;
use sluicegate_redact::Redactor;
use sluicegate_time::{Clock, Tick};
use store::SegmentStore;
use writer::{Writer, WriterControl};

/// How long [`DeadLetters::close`] waits for a disk that hangs.
const MAX_CLOSE: Duration = Duration::from_secs(5);

/// An event, as far as flood control needs to know it: cheap to make, nothing built.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// Why the request was not served.
    pub reason: Reason,
    /// Whether it was admitted, and a limit in shadow mode would have refused it.
    pub is_shadow: bool,
    /// The limit that decided it.
    pub limit: Option<&'a Arc<str>>,
    /// The route that it matched.
    pub route: Option<&'a Arc<str>>,
    /// The key it was counted under, if any: keys share the room for records fairly.
    pub key: Option<Fingerprint>,
    /// The client that sent it: clients share the room fairly too, however many keys they make up.
    pub client: Option<Fingerprint>,
    /// About how many bytes its record would take.
    pub bytes: u64,
    /// The exchange's clock reading.
    pub now: Tick,
}

/// Where the writer is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Position {
    segment: Option<Arc<std::path::Path>>,
    last_error: Option<String>,
}

/// How the log fares. `written + aggregated + aggregating + dropped + queue_records`, and what the writer holds in hand
/// at this moment, is what was offered; after [`DeadLetters::close`] queue and hand are empty, and so is `aggregating` but
/// for offers that were under way when it was called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Records in the files.
    pub written: u64,
    /// Requests counted in aggregates in the files.
    pub aggregated: u64,
    /// Requests counted for the next aggregates.
    pub aggregating: u64,
    /// Records that were lost.
    pub dropped: Drops,
    /// Records that wait for the writer, of at most 8192.
    pub queue_records: u64,
    /// Bytes that they hold, of at most 16 MiB.
    pub queue_bytes: u64,
    /// The segment being written.
    pub segment: Option<PathBuf>,
    /// The last error, with its path; it may be over.
    pub last_error: Option<String>,
}

/// A handle on the log. When the last one is gone the log closes by itself.
#[derive(Clone)]
pub struct DeadLetters(Arc<Log>);

struct Log {
    flood: Arc<Flood>,
    counters: Arc<Counters>,
    sender: SyncSender<QueueMessage>,
    desk: Arc<WriterControl>,
    alerts: Alerts,
    sinks: Sinks,
    node: String,
    directory: std::sync::Mutex<PathBuf>,
    used_tokens: Arc<UsedTokens>,
}

/// Settings that only have to be taken over.
pub struct NewSettings {
    settings: DeadLetter,
    redactor: Redactor,
    directory: PathBuf,
    store: Option<SegmentStore>,
    rates: flood::Rates,
}

impl Log {
    fn directory(&self) -> std::sync::MutexGuard<'_, PathBuf> {
        self.directory.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl DeadLetters {
    /// Makes and locks the directory, mends what a crash left, and starts the writer thread. The redactor keeps secrets out.
    ///
    /// # Errors
    /// A [`StoreError`] inside an [`io::Error`]: the directory cannot be made or read, or another process holds it. A
    /// disk that is merely full is no error here.
    pub fn start(settings: DeadLetter, redactor: Redactor, node: &str, clock: Clock) -> io::Result<Self> {
        Self::start_on(settings, redactor, node, clock, Box::new(Files))
    }

    /// Whether there is room for a record now. While there is none an event need not say who its client is.
    pub fn has_room(&self, now: Tick) -> bool {
        self.0.flood.has_room(now)
    }

    /// Offers what became of one request; never waits. `build` runs only if there is to be a record and room for it, `name`
    /// only if the request is counted and its key may be among those that come most often.
    pub fn offer(&self, event: &Event<'_>, name: impl FnOnce() -> KeyName, build: impl FnOnce() -> Draft) {
        let log = &*self.0;
        if log.counters.closed.load(Ordering::Acquire) {
            log.counters.queue_full.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if log.flood.admit(event, name) == FloodVerdict::Count {
            return;
        }
        let place = QueueSlot::reserve(&log.counters).and_then(|place| place.fill(build(), event.bytes));
        if let Some(place) = place {
            // A message that does not get in counts itself as dropped.
            let _ = log.sender.try_send(QueueMessage::Record(place));
        }
    }

    /// Makes other settings and another redactor ready. Another directory is made, locked and mended; what is dropped gives it up
    /// again, and nothing of the log has changed.
    ///
    /// # Errors
    /// As [`DeadLetters::start`].
    pub fn stage(&self, settings: DeadLetter, redactor: Redactor) -> io::Result<NewSettings> {
        let log = &*self.0;
        let directory = std::path::absolute(&settings.directory)?;
        let store = if *log.directory() == directory {
            None
        } else {
            let (store, recovery) = SegmentStore::open(&directory, &log.node, Box::new(Files))?;
            tell_of(recovery.as_ref());
            Some(store)
        };
        let rates = log.flood.stage(&settings).map_err(io::Error::other)?;
        Ok(NewSettings { settings, redactor, directory, store, rates })
    }

    /// Goes on with them. The writer moves to another directory with its next batch.
    pub fn commit(&self, new: NewSettings) {
        let log = &*self.0;
        let NewSettings { settings, redactor, directory, store, rates } = new;
        if let Err(error) = log.alerts.renew(&settings.alerts, &directory) {
            tracing::error!(target: "sluicegate::dead_letter", %error, "there are no alerts of dead letters: a thread cannot be started");
        }
        if let Err(error) = log.sinks.renew(&settings.sinks, &directory) {
            tracing::error!(target: "sluicegate::dead_letter", %error, "a sink gets no dead letters: a thread cannot be started");
        }
        log.flood.commit(rates);
        *log.directory() = directory;
        log.desk.reconfigure(settings, redactor, store);
        // If the queue is full the writer is awake anyway.
        let _ = log.sender.try_send(QueueMessage::Wake);
    }

    /// The guard that recognises requests that replays of this log send, by the secret of a redactor.
    pub fn replay_guard(&self, redactor: &Redactor) -> ReplayGuard {
        ReplayGuard::new(redactor, Arc::clone(&self.0.used_tokens))
    }

    /// How the log fares.
    pub fn stats(&self) -> Stats {
        let Log { flood, counters, desk, .. } = &*self.0;
        let (queue_records, queue_bytes) = counters.queued();
        let position = desk.position();
        Stats {
            written: counters.written.load(Ordering::Relaxed),
            aggregated: counters.aggregated.load(Ordering::Relaxed),
            aggregating: flood.waiting(),
            dropped: counters.drops(),
            queue_records,
            queue_bytes,
            segment: position.segment.map(|path| path.to_path_buf()),
            last_error: position.last_error,
        }
    }

    /// Whether there are alerts: whether they count the records.
    pub fn alerts(&self) -> Option<bool> {
        self.0.alerts.kind()
    }

    /// A figure of its alerts.
    pub fn alert_count(&self, what: AlertCount) -> u64 {
        self.0.alerts.count(what)
    }

    /// The figures of its sinks, by their names.
    pub fn sinks(&self) -> Vec<(String, SinkFigures)> {
        self.0.sinks.figures()
    }

    /// Writes what is queued and counted, syncs, and ends the thread; waits at most 5 s for that, and then at most 2 s for
    /// sinks. Later offers are counted drops.
    pub fn close(&self) {
        let log = &*self.0;
        log.counters.closed.store(true, Ordering::Release);
        log.desk.ask_to_close();
        log.alerts.stop();
        let _ = log.sender.try_send(QueueMessage::Wake);
        if !log.desk.wait_for_end(MAX_CLOSE) {
            tracing::warn!(target: "sluicegate::dead_letter", queued = log.counters.queued().0, "the dead-letter disk hangs: left what was queued");
        }
        log.sinks.finish();
    }

    fn start_on(
        settings: DeadLetter,
        redactor: Redactor,
        node: &str,
        clock: Clock,
        disk: Box<dyn Disk>,
    ) -> io::Result<Self> {
        let (store, recovery) = SegmentStore::open(&settings.directory, node, disk)?;
        tell_of(recovery.as_ref());
        let flood = Arc::new(Flood::new(&settings).map_err(io::Error::other)?);
        let counters = Arc::new(Counters::default());
        let desk = Arc::new(WriterControl::default());
        let directory = store.directory().to_owned();
        let now = (clock.now(), clock.offset().clone());
        let meter = Meter { flood: Arc::clone(&flood), counters: Arc::clone(&counters) };
        let alerts = Alerts::new(meter, store.node().to_owned(), clock.clone());
        alerts.renew(&settings.alerts, &directory)?;
        let sinks = Sinks::new(clock.clone());
        sinks.renew(&settings.sinks, &directory)?;
        let writer = Writer::new(settings, redactor, store, Arc::clone(&flood), Arc::clone(&counters), now);
        let (sender, receiver) = queue::queue();
        let of_thread = Arc::clone(&desk);
        thread::Builder::new()
            .name("dead-letters".into())
            .spawn(move || writer::run(writer, receiver, &of_thread, &clock))?;
        let directory = std::sync::Mutex::new(directory);
        Ok(Self(Arc::new(Log {
            flood,
            counters,
            sender,
            desk,
            alerts,
            sinks,
            node: node.to_owned(),
            directory,
            used_tokens: Arc::default(),
        })))
    }
}

fn tell_of(recovery: Option<&Recovery>) {
    if let Some(Recovery { segment, kept, torn, discarded }) = recovery
        && *torn > 0
    {
        let segment = segment.display();
        tracing::warn!(target: "sluicegate::dead_letter", %segment, kept, torn, discarded, "moved the torn end of a dead-letter segment aside");
    }
}
