use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::access_text;
use super::log_file::{LogFile, Reopen};
use sluicegate_redact::{Clip, Redactor};
use sluicegate_time::{Span, Wall};

/// Entries that may wait for the writer; what comes beyond is dropped and counted.
const QUEUE: usize = 8192;

/// How long the writer gathers after an entry woke it. Waking a thread costs its waker microseconds: so at most a
/// hundred requests a second pay for it, and the queue holds what 800 000 requests a second bring meanwhile.
const GATHER: Duration = Duration::from_millis(10);

/// Bytes gathered before they are written, idle or not.
const BUFFER: usize = 64 * 1024;

/// How long [`AccessLog::close`] waits for the writer.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// How a line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLogFormat {
    /// A JSON object.
    Json,
    /// The combined log format of Apache and nginx.
    Combined,
}

/// Bytes of a text that are logged; of a longer one the beginning is, and marked as cut. Together with the length of the queue they bound
/// the memory of lines that wait (32 MiB; 48 where fields of clients are not UTF-8; as much again with the parts of long keys), and the work of the writer for one line.
pub const MAX_LOGGED_TARGET: usize = 2048;
/// As [`MAX_LOGGED_TARGET`], of any other field of the request.
pub const MAX_LOGGED_FIELD: usize = 512;

/// Parts of keys of a line.
pub const MAX_LOGGED_KEYS: usize = 8;

/// One finished exchange. Text from the client stays as it came but for its length: the writer redacts it, and the format
/// escapes it.
#[derive(Clone, Debug)]
pub struct AccessEntry {
    /// When the request arrived.
    pub at: Wall,
    /// The client that sent the request.
    pub client: IpAddr,
    /// Its method.
    pub method: Clip,
    /// Its host.
    pub host: Clip,
    /// Path and query as received.
    pub target: Clip,
    /// `HTTP/1.1` and so on.
    pub protocol: &'static str,
    /// Status of the response.
    pub status: u16,
    /// Bytes of the response's body.
    pub bytes_sent: u64,
    /// From arrival to the end of the response.
    pub took: Span,
    /// From arrival to admission, or to the end of a wait in vain: in the queues of limits, and for the store of a fleet;
    /// `None`: it has not waited.
    pub waited: Option<Span>,
    /// To connect to servers, in all tries; `None`: it went over connections that were there.
    pub connect: Option<Span>,
    /// From sending it, in the last try, to the head of the answer; `None`: no server answered.
    pub head: Option<Span>,
    /// The route, if one matched.
    pub route: Option<Arc<str>>,
    /// The upstream, if it was forwarded.
    pub upstream: Option<Arc<str>>,
    /// The server, if one was chosen.
    pub server: Option<Arc<str>>,
    /// Tries that failed before, or that made it fail: the server and the reason.
    pub tries: Vec<(Arc<str>, Cow<'static, str>)>,
    /// How it ended, in one kebab-case word.
    pub outcome: &'static str,
    /// The limit that refused it.
    pub limit: Option<Arc<str>>,
    /// Its plan, if its route has plans.
    pub plan: Option<Arc<str>>,
    /// The limits in shadow mode that would have refused it.
    pub shadow: Vec<ShadowRefusal>,
    /// The limits whose answers state costs, and the cost that each has counted.
    pub used: Vec<(Arc<str>, u64)>,
    /// Source and value of the parts of keys that it was counted by and that no other field has.
    pub keys: Vec<(String, Clip)>,
    /// Its `X-Request-Id`.
    pub request_id: String,
    /// Its `User-Agent`.
    pub user_agent: Option<Clip>,
    /// Its `Referer`.
    pub referer: Option<Clip>,
    /// The listener over which another proxy has asked about it; `None`: it came itself.
    pub asked_by: Option<Arc<str>>,
}

/// A limit in shadow mode that would have refused.
#[derive(Clone, Debug)]
pub struct ShadowRefusal {
    /// Its name.
    pub limit: Arc<str>,
    /// Source and value of each part of the key.
    pub key: Vec<(String, Clip)>,
    /// Whether its values are secrets; `None`: their names say so.
    pub key_is_secret: Option<bool>,
}

/// Where finished exchanges are offered to the log; any number of clones. The writer ends when it is closed or the last
/// clone is gone, and in both cases writes what is queued first.
#[derive(Clone)]
pub struct AccessLog {
    format: AccessLogFormat,
    queue: SyncSender<AccessLogMessage>,
    shared: Arc<AccessLogShared>,
    /// Nothing is ever sent: it ends with the writer.
    ended: Arc<Mutex<Receiver<()>>>,
    /// Of a log in a file.
    reopen: Option<Reopen>,
}

/// How [`AccessLog::close`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// Everything offered before has been written, or counted as dropped.
    Drained,
    /// The writer is stuck in its output and was left to itself.
    Abandoned,
}

enum AccessLogMessage {
    Entry(Box<AccessEntry>),
    Wake,
}

#[derive(Debug)]
struct AccessLogShared {
    closed: AtomicBool,
    dropped: AtomicU64,
    /// The writer takes it for each batch.
    redactor: Mutex<Redactor>,
}

impl AccessLogShared {
    fn new(redactor: Redactor) -> Self {
        Self { closed: AtomicBool::new(false), dropped: AtomicU64::new(0), redactor: Mutex::new(redactor) }
    }

    fn redactor(&self) -> Redactor {
        self.redactor.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl AccessLog {
    /// Starts the writer thread. Output that fails costs the lines that it should have taken, never the log: each batch
    /// tries again.
    pub fn start(format: AccessLogFormat, redactor: Redactor, out: Box<dyn Write + Send>) -> Self {
        let (queue, entries) = sync_channel(QUEUE);
        let (ending, ended) = sync_channel(0);
        let shared = Arc::new(AccessLogShared::new(redactor.clone()));
        let writer =
            AccessLogWriter { format, redactor, out, shared: Arc::clone(&shared), lines: Vec::new(), torn: false };
        let thread = thread::Builder::new().name("access-log".into());
        // Without a thread the queue has no receiver: every entry is counted as dropped.
        let spawned = thread.spawn(move || {
            let _ending = ending;
            writer.run(&entries);
        });
        if let Err(error) = spawned {
            tracing::error!(target: "sluicegate::telemetry::access_log", %error, "the access log has no thread and drops every line");
        }
        Self { format, queue, shared, ended: Arc::new(Mutex::new(ended)), reopen: None }
    }

    /// The same with a file, which is [opened anew](Self::reopen) when that is asked for.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn to_file(format: AccessLogFormat, redactor: Redactor, path: &Path) -> io::Result<Self> {
        let reopen = Reopen::default();
        let file = LogFile::open(path, &reopen)?;
        Ok(Self { reopen: Some(reopen), ..Self::start(format, redactor, Box::new(file)) })
    }

    /// Whether its lines have keys.
    pub fn has_keys(&self) -> bool {
        self.format == AccessLogFormat::Json
    }

    /// Opens its file anew; false if it has none.
    pub fn reopen(&self) -> bool {
        let Some(reopen) = &self.reopen else { return false };
        reopen.ask();
        // It flushes when it wakes, and opens the file then, though nobody asks for anything.
        let _ = self.queue.try_send(AccessLogMessage::Wake);
        true
    }

    /// Sets the redactor of the lines that are written from now on.
    pub fn set_redactor(&self, redactor: Redactor) {
        *self.shared.redactor.lock().unwrap_or_else(PoisonError::into_inner) = redactor;
    }

    /// Hands an entry to the writer; drops and counts it when the queue is full or the log closed. Never waits.
    pub fn offer(&self, entry: AccessEntry) {
        let closed = self.shared.closed.load(Ordering::Acquire);
        if closed || self.queue.try_send(AccessLogMessage::Entry(Box::new(entry))).is_err() {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Refuses further entries, writes what is queued, flushes and ends the writer, within two seconds. Closing again
    /// changes nothing.
    pub fn close(&self) -> Closed {
        self.shared.closed.store(true, Ordering::Release);
        // Should the queue be full, the writer is awake and will see the flag at its end.
        let _ = self.queue.try_send(AccessLogMessage::Wake);
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        match ended.recv_timeout(CLOSE_WITHIN) {
            Err(RecvTimeoutError::Timeout) => Closed::Abandoned,
            Ok(()) | Err(RecvTimeoutError::Disconnected) => Closed::Drained,
        }
    }

    /// Entries that were not written.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for AccessLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessLog").field("shared", &self.shared).finish_non_exhaustive()
    }
}

struct AccessLogWriter {
    format: AccessLogFormat,
    redactor: Redactor,
    out: Box<dyn Write + Send>,
    shared: Arc<AccessLogShared>,
    lines: Vec<u8>,
    /// Whether the output ends within a line, because it failed there.
    torn: bool,
}

impl AccessLogWriter {
    fn run(mut self, entries: &Receiver<AccessLogMessage>) {
        while let Ok(message) = entries.recv() {
            self.redactor = self.shared.redactor();
            self.take(message);
            if !self.shared.closed.load(Ordering::Acquire) {
                thread::sleep(GATHER);
            }
            loop {
                // Read before the queue is seen empty, so that nothing offered before the close is left behind.
                let closed = self.shared.closed.load(Ordering::Acquire);
                while let Ok(message) = entries.try_recv() {
                    self.take(message);
                }
                self.flush();
                if closed {
                    return;
                }
                // A close that came meanwhile has spent its wake-up on what was just taken: none other comes.
                if !self.shared.closed.load(Ordering::Acquire) {
                    break;
                }
            }
        }
    }

    fn take(&mut self, message: AccessLogMessage) {
        let AccessLogMessage::Entry(entry) = message else { return };
        access_text::write_line(self.format, &entry, &self.redactor, &mut self.lines);
        if self.lines.len() >= BUFFER {
            self.write();
        }
    }

    fn flush(&mut self) {
        self.write();
        // A failed flush cannot be made good: what it lost is not known.
        let _ = self.out.flush();
    }

    /// Writes all lines; what the output refuses is dropped and counted, line by line.
    fn write(&mut self) {
        if self.lines.is_empty() {
            return;
        }
        let mending = usize::from(self.torn);
        if self.torn {
            self.lines.insert(0, b'\n');
        }
        let written = write_most(&mut *self.out, &self.lines);
        if let Some(last) = self.lines[..written].last() {
            self.torn = *last != b'\n';
        }
        let lost = self.lines[written.max(mending)..].split_inclusive(|byte| *byte == b'\n').count();
        self.shared.dropped.fetch_add(lost as u64, Ordering::Relaxed);
        self.lines.clear();
        // For each batch: under load the queue may never be empty.
        self.redactor = self.shared.redactor();
    }
}

/// Like `write_all`, but says how far it came.
fn write_most(out: &mut dyn Write, bytes: &[u8]) -> usize {
    let mut written = 0;
    while written < bytes.len() {
        match out.write(&bytes[written..]) {
            Ok(0) => break,
            Ok(more) => written = (written + more).min(bytes.len()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc;

    use super::super::access_text::tests::entry;
    use super::*;
    use sluicegate_redact::RedactRules;
    use sluicegate_time::Clock;

    fn redactor() -> Redactor {
        Redactor::new(&RedactRules::default())
    }

    fn start(format: AccessLogFormat, out: Box<dyn Write + Send>) -> AccessLog {
        AccessLog::start(format, redactor(), out)
    }

    /// An output that a test can read and break.
    #[derive(Clone, Default)]
    struct Pipe(Arc<Mutex<PipeState>>);

    #[derive(Default)]
    struct PipeState {
        bytes: Vec<u8>,
        /// Bytes that it still takes; `None` is any number.
        room: Option<usize>,
        flushed: usize,
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut state = self.0.lock().unwrap();
            let taken = bytes.len().min(state.room.unwrap_or(usize::MAX));
            if taken == 0 {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            state.room = state.room.map(|room| room - taken);
            state.bytes.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            let mut state = self.0.lock().unwrap();
            state.flushed = state.bytes.len();
            Ok(())
        }
    }

    impl Pipe {
        fn lines(&self) -> Vec<String> {
            let state = self.0.lock().unwrap();
            String::from_utf8(state.bytes.clone()).unwrap().lines().map(str::to_owned).collect()
        }
    }

    /// An output that waits for the test before each write, as long as the test is there.
    struct Gate(mpsc::Receiver<()>, SyncSender<()>, Pipe);

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.1.send(());
            let _ = self.0.recv();
            self.2.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn close_writes_and_flushes_everything_offered_before() {
        let pipe = Pipe::default();
        let log = start(AccessLogFormat::Combined, Box::new(pipe.clone()));
        for _ in 0..5_000 {
            log.offer(entry());
        }
        assert_eq!(log.close(), Closed::Drained);
        assert_eq!(pipe.lines().len(), 5_000);
        let state = pipe.0.lock().unwrap();
        assert_eq!((log.dropped(), state.flushed), (0, state.bytes.len()));
    }

    #[test]
    fn a_new_redactor_is_taken_also_while_the_queue_is_never_empty() {
        let ((go, gate), (tell, told)) = (sync_channel(0), sync_channel(1_000));
        let pipe = Pipe::default();
        let log = start(AccessLogFormat::Combined, Box::new(Gate(gate, tell, pipe.clone())));
        let offer = || log.offer(AccessEntry { target: "/a?tenant=acme".into(), ..entry() });
        offer();
        told.recv().unwrap();
        // They are more than one write takes, and wait while the writer stands.
        (0..4_000).for_each(|_| offer());
        go.send(()).unwrap();
        told.recv().unwrap();
        log.set_redactor(Redactor::new(&RedactRules { secret: vec!["tenant".into()], ..RedactRules::default() }));
        drop(go);
        assert_eq!(log.close(), Closed::Drained);
        let lines = pipe.lines();
        assert_eq!((lines.len(), lines[0].contains("tenant=acme")), (4_001, true));
        assert!(lines[4_000].contains("tenant=[redacted:"), "{}", lines[4_000]);
    }

    #[test]
    fn a_close_is_not_missed_while_the_queue_is_full() {
        let ((go, gate), (tell, told)) = (sync_channel(0), sync_channel(1_000));
        let pipe = Pipe::default();
        let log = start(AccessLogFormat::Combined, Box::new(Gate(gate, tell, pipe.clone())));
        log.offer(entry());
        // The writer stands in its first write, so that nothing leaves the queue.
        told.recv().unwrap();
        (0..QUEUE + 3).for_each(|_| log.offer(entry()));
        assert_eq!(log.dropped(), 3);
        let closed = std::thread::scope(|scope| {
            let closing = scope.spawn(|| log.close());
            while !log.shared.closed.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            drop(go);
            closing.join().unwrap()
        });
        assert_eq!((closed, pipe.lines().len()), (Closed::Drained, QUEUE + 1));
    }

    /// The writer wakes some 10 ms after the first entry: the close comes before, while and after it takes what is there.
    #[test]
    fn a_close_is_not_missed_whenever_it_comes() {
        for round in 0..100_u64 {
            let log = start(AccessLogFormat::Json, Box::new(Pipe::default()));
            let clock = Clock::system();
            let close_at = clock.now() + Span::from_nanos(9_700_000 + 12_000 * round);
            // As few as the writer can write in time on a busy machine too.
            let mut offered = 0;
            while clock.now() < close_at {
                if offered < 200 {
                    log.offer(entry());
                    offered += 1;
                }
            }
            assert_eq!(log.close(), Closed::Drained, "round {round}");
        }
    }

    #[test]
    fn what_is_offered_after_the_close_is_dropped_and_counted() {
        let pipe = Pipe::default();
        let log = start(AccessLogFormat::Json, Box::new(pipe.clone()));
        assert_eq!((log.close(), log.close()), (Closed::Drained, Closed::Drained));
        log.clone().offer(entry());
        assert_eq!((log.dropped(), pipe.lines().len()), (1, 0));
    }

    #[test]
    fn a_closed_log_takes_nothing_even_while_its_writer_is_stuck() {
        let (open, gate) = mpsc::sync_channel(1);
        let (entering, entered) = mpsc::sync_channel(1);
        let log = start(AccessLogFormat::Json, Box::new(Gate(gate, entering, Pipe::default())));
        log.offer(entry());
        entered.recv().unwrap();
        log.shared.closed.store(true, Ordering::Release);
        log.offer(entry());
        assert_eq!(log.dropped(), 1);
        drop(open);
    }

    #[test]
    fn ends_when_the_last_handle_is_dropped() {
        let pipe = Pipe::default();
        let log = start(AccessLogFormat::Json, Box::new(pipe.clone()));
        let ended = Arc::clone(&log.ended);
        log.offer(entry());
        drop((log.clone(), log));
        let ended = ended.lock().unwrap();
        assert_eq!(ended.recv_timeout(Duration::from_secs(5)), Err(RecvTimeoutError::Disconnected));
        assert_eq!(pipe.lines().len(), 1);
    }

    #[test]
    fn a_full_queue_drops_and_counts_and_a_stuck_output_is_abandoned() {
        let (open, gate) = mpsc::sync_channel(1);
        let (entering, entered) = mpsc::sync_channel(1);
        let log = start(AccessLogFormat::Json, Box::new(Gate(gate, entering, Pipe::default())));
        log.offer(entry());
        entered.recv().unwrap();
        for _ in 0..QUEUE + 7 {
            log.offer(entry());
        }
        assert_eq!(log.dropped(), 7);
        assert_eq!(log.close(), Closed::Abandoned);
        drop(open);
    }

    #[test]
    fn a_broken_output_costs_its_lines_and_the_log_goes_on() {
        let pipe = Pipe::default();
        let mut line = Vec::new();
        access_text::write_line(AccessLogFormat::Combined, &entry(), &redactor(), &mut line);
        let mut writer = AccessLogWriter {
            format: AccessLogFormat::Combined,
            redactor: redactor(),
            out: Box::new(pipe.clone()),
            shared: Arc::new(AccessLogShared::new(redactor())),
            lines: Vec::new(),
            torn: false,
        };
        // Room for one line and a piece of the second.
        pipe.0.lock().unwrap().room = Some(line.len() + 5);
        for _ in 0..3 {
            writer.take(AccessLogMessage::Entry(Box::new(entry())));
        }
        writer.flush();
        assert_eq!(writer.shared.dropped.load(Ordering::Relaxed), 2);
        writer.take(AccessLogMessage::Entry(Box::new(entry())));
        writer.flush();
        assert_eq!(writer.shared.dropped.load(Ordering::Relaxed), 3);
        pipe.0.lock().unwrap().room = None;
        writer.take(AccessLogMessage::Entry(Box::new(entry())));
        writer.flush();
        let lines = pipe.lines();
        assert_eq!((lines.len(), lines[1].len()), (3, 5));
        assert_eq!((lines[0].len(), lines[2].len()), (line.len() - 1, line.len() - 1));
    }
}
