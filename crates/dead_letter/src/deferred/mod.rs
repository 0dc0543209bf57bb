//! Requests that a limit refused and that are kept to be sent later: `on_limit = "defer"`.
//!
//! The walk of a request: the proxy reads all of it and [offers](Deferrals::offer) it; room is taken for it at once, or it is
//! refused; the store's thread (`writer`) seals it, writes it with those that came meanwhile, makes them durable by one sync,
//! and only then its client is told. `replay` takes its [`Ticket`], sends it through the gateway's own front door when
//! the limit has room, and tells its [end](Deferrals::end), with the answer, which is written before the next of its key goes, and synced within 100 ms.
//!
//! `request` makes bytes of requests and answers, `line` lines of those, `files` has the segments, `index` knows in memory where
//! each request is and how it fares; `status` says so to whoever has its id, `room_in` when a limit has room; `listing` is for those who look from outside.
//!
//! Invariants: nobody is told of a request that a crash could lose; `deferred = sent + failed + expired + pending`, in memory and
//! on the disk at any moment; a crash of the process repeats the requests that were under way, one of each key at most, under the
//! same idempotency key, and no others; one of the machine those too that ended in the last 100 ms; what is pending stays within the bounds, the disk within twice as much and the answers.
//!
//! # Format
//!
//! `DIRECTORY/deferred/deferred-SEQUENCE.jsonl`, files of their owner alone. The first line has how many there were of each kind
//! before: `{"v":1,"ts":…,"begins":{"deferred":N,"sent":N,"failed":N,"expired":N},"crc":…}`. Then, in any order:
//!
//! ```json
//! {"v":1,"ts":"…","deferred":"ID","route":"api","limit":"per-client","client_ip":"192.0.2.7","order":"16 digits",
//!  "method":"POST","key":"id of the key","data":"sealed, base64","crc":"1c291ca3"}
//! {"v":1,"ts":"…","ended":"ID","fate":"sent","tries":1,"status":201,"key":"…","data":"the answer, sealed","crc":"…"}
//! ```
//!
//! A request that was moved to a later segment has `"copy":true`. `reason` stands behind `status` where it was not sent. The
//! sealed part is as in `request`, by AES-256-GCM as in `seal`, for `sluicegate deferred 1`, a byte, 0 for requests and 1 for
//! answers, and the id.

mod files;
mod index;
mod line;
mod listing;
mod request;
mod room_in;
mod status;
mod writer;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use hmac::{Hmac, Mac as _};
use sha2::Sha256;
use tokio::sync::{Notify, oneshot};

pub use index::{StoreBounds, Ticket};
pub use line::{DeferredFate, Ended, Totals, id_text, parse_id};
pub use listing::{Listed, Listing, read_one};
pub use request::{Deferral, KeptAnswer};
pub use room_in::{ROOM_IN, room_in, room_in_millis};
pub use status::DeferredStatus;

use self::index::{Index, Reserved};
use self::request::sharer;
use super::seal::{OpenError, Opener};
use super::segment::{Disk, Files as RealDisk};
use sluicegate_limiter::{
    Algorithm, Ask, Counting, Fingerprint, Limit, LimitSpec, Policy, Refill, Report, TokenBucket, Verdict,
};
use sluicegate_time::{Clock, Span, Tick};

/// Bytes of an answer's body that are kept.
pub const MAX_KEPT_ANSWER: usize = 64 * 1024;

/// Messages that wait for the thread.
const MAX_QUEUE: usize = 1024;
/// Bytes of requests that wait for the thread.
const MAX_QUEUE_BYTES: u64 = 32 * 1024 * 1024;
/// Answers that are asked for at once, and by one client: nothing else limits who asks for them.
const MAX_READS: usize = 64;
const MAX_READS_OF_CLIENT: usize = 8;
/// How often a client may ask how its requests fare. An answer counts once more for each KiB: they have up to some 88.
const ASKS: &str = "10000/s";
/// Clients whose questions are counted at once.
const MAX_ASKING: u64 = 10_000;
/// How long [`Deferrals::close`] waits for a disk that hangs.
const MAX_CLOSE: Duration = Duration::from_secs(5);

/// The keys of a store.
pub struct Keys {
    /// Lines that are written are sealed under this one.
    pub seal: [u8; 32],
    /// Lines that are read may be sealed under one of these too.
    pub others: Vec<[u8; 32]>,
    /// Orders are numbered under this one, which lasts: requests of one order are in it whatever they are sealed under.
    pub order: [u8; 32],
}

/// Why a request is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unkept {
    /// There is no room for it, or its client has its share already, or the store is not open yet, or no longer.
    Full,
    /// The disk refuses it.
    Disk,
}

/// Why a pending request cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// In words.
    pub words: String,
    /// Whether it can be read at no other time either.
    pub is_final: bool,
}

/// How the store fares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// The numbers since it was first used, as far as its segments tell.
    pub totals: Totals,
    /// Bytes that are pending.
    pub bytes: u64,
    /// Since when the oldest one is pending.
    pub oldest: Option<Tick>,
}

/// A handle on the store.
#[derive(Clone)]
pub struct Deferrals(Arc<Shared>);

struct Shared {
    directory: PathBuf,
    clock: Clock,
    index: Mutex<Index>,
    room: Mutex<StoreBounds>,
    keys: Mutex<Arc<Keys>>,
    sender: SyncSender<Message>,
    queue_bytes: AtomicU64,
    reader: SyncSender<Read>,
    reads: Mutex<HashMap<IpAddr, usize>>,
    asks: Arc<Policy>,
    /// Ends that are not written yet.
    owed: Mutex<Vec<Owed>>,
    is_open: AtomicBool,
    is_closing: AtomicBool,
    fresh: Notify,
    hurry: AtomicBool,
    has_ended: (Mutex<bool>, Condvar),
}

enum Message {
    /// A request, its order, and whom to tell.
    Keep(Box<Deferral>, u64, Reserved, oneshot::Sender<Result<u128, Unkept>>),
    Wake,
}

/// The answer of a request is asked for, by this client.
type Read = (u128, IpAddr, oneshot::Sender<Option<KeptAnswer>>);

struct Owed {
    id: u128,
    ended: Ended,
    answer: Option<Vec<u8>>,
    told: Option<oneshot::Sender<()>>,
}

impl Deferrals {
    /// Starts the thread of the store beside a log's segments. It opens the directory, and waits for a process that has it open.
    ///
    /// # Errors
    /// There is no thread.
    pub fn start(log: &Path, room: StoreBounds, keys: Keys, clock: Clock) -> io::Result<Self> {
        Self::start_on(log, room, keys, clock, Box::new(RealDisk))
    }

    /// Whether a log has deferred requests, of before.
    pub fn exist_in(log: &Path) -> bool {
        files::has_any(&directory_of(log))
    }

    fn start_on(log: &Path, room: StoreBounds, keys: Keys, clock: Clock, disk: Box<dyn Disk>) -> io::Result<Self> {
        let (sender, receiver) = sync_channel(MAX_QUEUE);
        let (reader, reads) = sync_channel(MAX_READS);
        let shared = Arc::new(Shared {
            directory: directory_of(log),
            clock,
            index: Mutex::default(),
            room: Mutex::new(room),
            keys: Mutex::new(Arc::new(keys)),
            sender,
            queue_bytes: AtomicU64::new(0),
            reader,
            reads: Mutex::default(),
            asks: asks().map_err(io::Error::other)?,
            owed: Mutex::default(),
            is_open: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            fresh: Notify::new(),
            hurry: AtomicBool::new(false),
            has_ended: (Mutex::new(false), Condvar::new()),
        });
        // By a thread of its own: who asks for answers does not keep those waiting whose requests are to be written.
        let of_reader = Arc::downgrade(&shared);
        thread::Builder::new().name("deferred-read".into()).spawn(move || read_answers(&of_reader, &reads))?;
        let of_thread = Arc::clone(&shared);
        thread::Builder::new().name("deferred".into()).spawn(move || writer::run(&of_thread, &receiver, disk))?;
        Ok(Self(shared))
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.0.directory
    }

    /// Goes on with other bounds and keys.
    pub fn reconfigure(&self, room: StoreBounds, keys: Keys) {
        *lock(&self.0.room) = room;
        *lock(&self.0.keys) = Arc::new(keys);
    }

    /// Offers a request. The receiver is ready when it is durable, with its id, or when it cannot be.
    ///
    /// # Errors
    /// It was not taken, and nothing comes back.
    pub fn offer(&self, request: Deferral) -> Result<oneshot::Receiver<Result<u128, Unkept>>, Unkept> {
        let shared = &*self.0;
        if !shared.is_open.load(Ordering::Acquire) || shared.is_closing.load(Ordering::Acquire) {
            return Err(Unkept::Full);
        }
        let bytes = request.bytes();
        if shared.queue_bytes.load(Ordering::Relaxed) + bytes > MAX_QUEUE_BYTES {
            return Err(Unkept::Full);
        }
        let room = *lock(&shared.room);
        let order = shared.order_of(&request.order);
        let reserved = shared.index().reserve(request.client, bytes, &room).ok_or(Unkept::Full)?;
        let (tell, told) = oneshot::channel();
        shared.queue_bytes.fetch_add(bytes, Ordering::Relaxed);
        if let Err(error) = shared.sender.try_send(Message::Keep(Box::new(request), order, reserved, tell)) {
            let (std::sync::mpsc::TrySendError::Full(message) | std::sync::mpsc::TrySendError::Disconnected(message)) =
                error;
            if let Message::Keep(_, _, reserved, _) = message {
                shared.queue_bytes.fetch_sub(bytes, Ordering::Relaxed);
                shared.index().release(&reserved);
            }
            return Err(Unkept::Full);
        }
        Ok(told)
    }

    /// Whether there is room for a request of this client with so many bytes of body.
    pub fn has_room(&self, client: IpAddr, body: u64) -> bool {
        let shared = &*self.0;
        let room = *lock(&shared.room);
        let is_open = shared.is_open.load(Ordering::Acquire) && !shared.is_closing.load(Ordering::Acquire);
        is_open && shared.index().has_room(client, body + body / 3, &room)
    }

    /// Whether this client may ask for this request now: it has a rate.
    pub fn may_ask(&self, client: Fingerprint, id: Option<u128>, now: Tick) -> bool {
        let answer = id.and_then(|id| self.0.index().get(id)?.ended.as_ref()?.1);
        let cost = 1 + answer.map_or(0, |place| u64::from(place.length) / 1024);
        let ask = [Ask { key: Some(client), cost, counting: Counting::AtOnce, ..Ask::default() }];
        matches!(self.0.asks.check(&ask, Span::ZERO, now, &mut Report::default()), Verdict::Admitted(_))
    }

    /// How a request fares; `None`: it is not known, or not any more.
    pub fn status(&self, id: u128) -> Option<DeferredStatus> {
        let max_age = lock(&self.0.room).max_age;
        self.0.index().get(id).map(|entry| DeferredStatus {
            id,
            accepted: entry.accepted,
            expires: entry.accepted + max_age,
            ended: entry.ended.as_ref().map(|(ended, _)| ended.clone()),
            has_answer: entry.ended.as_ref().is_some_and(|(_, answer)| answer.is_some()),
        })
    }

    /// Whether the store has been read: before, it knows of nothing.
    pub fn is_open(&self) -> bool {
        self.0.is_open.load(Ordering::Acquire)
    }

    /// The answer that a request got, for this client; `None`: it, or all of them, ask for too many at once.
    pub fn answer(&self, id: u128, client: IpAddr) -> Option<oneshot::Receiver<Option<KeptAnswer>>> {
        let (shared, client) = (&*self.0, sharer(client));
        let (tell, told) = oneshot::channel();
        let mut reads = lock(&shared.reads);
        let own = reads.entry(client).or_default();
        if *own < MAX_READS_OF_CLIENT && shared.reader.try_send((id, client, tell)).is_ok() {
            *own += 1;
            return Some(told);
        }
        if *own == 0 {
            reads.remove(&client);
        }
        None
    }

    /// Waits until there are requests to be sent that were not [taken](Self::take_fresh).
    pub async fn wait_for_fresh(&self) {
        self.0.fresh.notified().await;
    }

    /// Limits have changed: there may be room for requests that wait for it.
    pub fn hurry(&self) {
        self.0.hurry.store(true, Ordering::Release);
        self.0.fresh.notify_one();
    }

    /// Whether [`hurry`](Self::hurry) was called since the last time.
    pub fn take_hurry(&self) -> bool {
        self.0.hurry.swap(false, Ordering::AcqRel)
    }

    /// The pending requests that nobody has taken yet, in their order.
    pub fn take_fresh(&self) -> Vec<Ticket> {
        self.0.index().take_fresh()
    }

    /// The request of a ticket, which is under way from then on; `None`: it is not pending any more.
    pub fn take_up(&self, id: u128) -> Option<Result<Deferral, Unreadable>> {
        let is_taken = self.0.index().take_up(id);
        is_taken.then(|| self.0.load(id))
    }

    /// A request is not under way any more, and still pending; it was sent so often, with this status in the end.
    pub fn put_back(&self, id: u128, tries: u32, status: Option<u16>) {
        self.0.index().put_back(id, (tries, status));
    }

    /// Orders, and clients, whose first request was ended otherwise than by being sent: the next one need not wait for it.
    pub fn take_woken(&self) -> Vec<(u64, IpAddr)> {
        self.0.index().take_woken()
    }

    /// Tells the end of a request. The receiver is ready when that is written.
    pub fn end(&self, id: u128, ended: Ended, answer: Option<&KeptAnswer>) -> oneshot::Receiver<()> {
        let (tell, told) = oneshot::channel();
        let answer = answer.map(KeptAnswer::sealed_part);
        lock(&self.0.owed).push(Owed { id, ended, answer, told: Some(tell) });
        // If the queue is full the thread is awake anyway.
        let _ = self.0.sender.try_send(Message::Wake);
        told
    }

    /// How it fares.
    pub fn figures(&self) -> Figures {
        let index = self.0.index();
        Figures { totals: index.totals(), bytes: index.held().1, oldest: index.oldest() }
    }

    /// Writes what was offered and ended, and ends the thread; waits at most 5 s for that. Whether it has ended.
    pub fn close(&self) -> bool {
        self.0.is_closing.store(true, Ordering::Release);
        let _ = self.0.sender.try_send(Message::Wake);
        let (ended, told) = &self.0.has_ended;
        let waited = told.wait_timeout_while(lock(ended), MAX_CLOSE, |ended| !*ended);
        let has_ended = waited.is_ok_and(|(ended, _)| *ended);
        if !has_ended {
            tracing::warn!(target: "sluicegate::dead_letter::deferred", "the disk of deferred requests hangs");
        }
        has_ended
    }
}

impl Shared {
    fn index(&self) -> MutexGuard<'_, Index> {
        lock(&self.index)
    }

    fn keys(&self) -> Arc<Keys> {
        Arc::clone(&lock(&self.keys))
    }

    /// A number for an order, which says nothing about it to whoever has no key.
    fn order_of(&self, order: &[u8]) -> u64 {
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.keys().order) else { return 0 };
        mac.update(b"sluicegate deferred order 1\0");
        mac.update(order);
        mac.finalize().into_bytes().first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
    }

    /// A pending request, from its line.
    fn load(&self, id: u128) -> Result<Deferral, Unreadable> {
        let not_now = |words| Unreadable { words, is_final: false };
        let damaged = || Unreadable { words: "its line is damaged".to_owned(), is_final: true };
        let bytes = self.line(id, |entry| Some(entry.place)).map_err(not_now)?;
        let Some(line::DeferredLine::Request { shown, .. }) = line::read(&bytes, self.clock.offset()) else {
            return Err(damaged());
        };
        // The key may come back.
        let opened = open(&bytes, &line::place_of(id, Some(&shown)), &self.keys());
        let opened =
            opened.map_err(|error| Unreadable { is_final: error == OpenError::Damaged, words: error.to_string() })?;
        Deferral::of(&shown, &opened).ok_or_else(damaged)
    }

    /// The answer of a request, if it has one that can be read.
    fn load_answer(&self, id: u128) -> Option<KeptAnswer> {
        let place = |entry: &index::DeferredEntry| entry.ended.as_ref().and_then(|(_, answer)| *answer);
        let bytes = self.line(id, place).ok()?;
        KeptAnswer::of(&open(&bytes, &line::place_of(id, None), &self.keys()).ok()?)
    }

    /// The line at the place that `place` names. A segment may go while it is being read: its requests are elsewhere then.
    fn line(
        &self,
        id: u128,
        place: impl Fn(&index::DeferredEntry) -> Option<index::LinePosition>,
    ) -> Result<Vec<u8>, String> {
        let find = || self.index().get(id).and_then(&place).ok_or("it is not known any more");
        let first = find()?;
        match files::read_at(&self.directory, first) {
            Ok(bytes) => Ok(bytes),
            Err(error) => {
                let again = find()?;
                if again == first {
                    return Err(error.to_string());
                }
                files::read_at(&self.directory, again).map_err(|error| error.to_string())
            }
        }
    }
}

/// Reads answers, as long as there is the store.
fn read_answers(shared: &Weak<Shared>, reads: &Receiver<Read>) {
    while let Ok((id, client, tell)) = reads.recv() {
        let Some(shared) = shared.upgrade() else { return };
        let _ = tell.send(shared.load_answer(id));
        let mut reads = lock(&shared.reads);
        let own = reads.entry(client).or_default();
        *own = own.saturating_sub(1);
        if *own == 0 {
            reads.remove(&client);
        }
    }
}

/// The sealed part of a line.
fn open(bytes: &[u8], place: &[u8], keys: &Keys) -> Result<Vec<u8>, OpenError> {
    let sealed = line::sealed_part(bytes).ok_or(OpenError::Damaged)?;
    let mut result = Err(OpenError::OtherKey(sealed.key.clone()));
    for key in std::iter::once(&keys.seal).chain(&keys.others) {
        let opened = Opener::new(key).open_bytes(place, &sealed.key, &sealed.bytes);
        if !matches!(opened, Err(OpenError::OtherKey(_))) {
            result = opened;
        }
    }
    result
}

/// The rate at which clients may ask.
fn asks() -> Result<Arc<Policy>, Box<dyn std::error::Error + Send + Sync>> {
    let limit = Limit::new(LimitSpec {
        max_keys: MAX_ASKING,
        ..LimitSpec::new(
            "deferred-status",
            Algorithm::TokenBucket(TokenBucket::new(&[ASKS.parse()?], None, Refill::Greedy)?),
        )
    });
    Ok(Policy::new(vec![limit])?)
}

fn directory_of(log: &Path) -> PathBuf {
    log.join("deferred")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
