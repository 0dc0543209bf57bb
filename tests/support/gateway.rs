//! The real binary on a configuration of the test's own. Every port is chosen by the kernel.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{Answer, Client, PATIENCE, eventually, get_with};

const BINARY: &str = env!("CARGO_BIN_EXE_sluicegate");

/// Held shared by every running gateway, and whole by a test that measures time: a busy machine would be measured.
static QUIET: RwLock<()> = RwLock::new(());

thread_local! {
    static MEASURES_TIME: Cell<bool> = const { Cell::new(false) };
    static HOLDS_SHARED: Cell<bool> = const { Cell::new(false) };
}

/// A test's share. One for all of its gateways: a second would wait for a test that waits for the first to end.
struct Shared(#[allow(dead_code, reason = "held")] RwLockReadGuard<'static, ()>);

impl Shared {
    fn take() -> Option<Self> {
        if MEASURES_TIME.get() || HOLDS_SHARED.get() {
            return None;
        }
        let shared = Self(QUIET.read().unwrap_or_else(PoisonError::into_inner));
        HOLDS_SHARED.set(true);
        Some(shared)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        HOLDS_SHARED.set(false);
    }
}

/// The hold of a test that measures time.
pub struct Alone(#[allow(dead_code, reason = "held")] RwLockWriteGuard<'static, ()>);

/// Waits until no other gateway runs, and keeps others from starting. To be called before the test starts its own.
pub fn alone() -> Alone {
    let alone = Alone(QUIET.write().unwrap_or_else(PoisonError::into_inner));
    MEASURES_TIME.set(true);
    alone
}

impl Drop for Alone {
    fn drop(&mut self) {
        MEASURES_TIME.set(false);
    }
}

/// A gateway process, ended when it is dropped.
pub struct Gateway {
    _shared: Option<Shared>,
    child: Child,
    /// Processes that have taken over, the newest last.
    heirs: Vec<u32>,
    pub directory: TempDir,
    pub addresses: Vec<SocketAddr>,
    pub admin: SocketAddr,
}

/// The sections that every test needs; ports are the kernel's choice.
pub const FRAME: &str = "[[listener]]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n";

/// A command that has nothing to read.
fn quiet(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    command
}

impl Gateway {
    /// Starts the binary on [`FRAME`] and `configuration` and waits until it listens.
    pub fn start(configuration: &str) -> Self {
        Self::start_whole(&format!("{FRAME}{configuration}"))
    }

    /// Starts the binary on a whole file.
    pub fn start_whole(configuration: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self::start_in(directory, configuration)
    }

    /// Starts the binary in a directory that may hold an earlier one's dead letters.
    pub fn start_in(directory: TempDir, configuration: &str) -> Self {
        Self::spawn(quiet(BINARY), directory, configuration, false)
    }

    /// Starts the binary with a limit on open files.
    pub fn start_with_files(files: u32, configuration: &str) -> Self {
        let mut command = quiet("sh");
        command.args(["-c", &format!("ulimit -n {files}; exec \"$0\" \"$@\""), BINARY]);
        Self::spawn(command, tempfile::tempdir().unwrap(), configuration, false)
    }

    /// Starts the binary by a command that runs it, with its name and arguments behind.
    pub fn start_by(command: Command, configuration: &str) -> Self {
        Self::spawn(command, tempfile::tempdir().unwrap(), configuration, false)
    }

    /// Starts a copy of the binary, which lies at `binary` in its directory.
    pub fn start_copy(configuration: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let binary = directory.path().join("binary");
        // By a process of its own: a file that this one has open for writing is inherited by whatever another test starts at
        // that moment, and cannot be run as long as that has it.
        assert!(Command::new("cp").arg(BINARY).arg(&binary).status().unwrap().success());
        Self::spawn(quiet(binary), directory, configuration, false)
    }

    /// Starts the binary with a log that goes to a pipe that nobody reads.
    pub fn start_unread(configuration: &str) -> Self {
        Self::spawn(quiet(BINARY), tempfile::tempdir().unwrap(), configuration, true)
    }

    fn spawn(mut command: Command, directory: TempDir, configuration: &str, unread: bool) -> Self {
        let shared = Shared::take();
        let file = directory.path().join("gateway.toml");
        fs::write(&file, configuration).unwrap();
        let log = File::create(directory.path().join("stderr.log")).unwrap();
        let mut child = command
            .args(["run", "-c"])
            .arg(&file)
            .stdout(Stdio::piped())
            .stderr(if unread { Stdio::piped() } else { log.into() })
            .spawn()
            .unwrap();
        let (addresses, admin) = read_banner(&mut child, directory.path());
        Self { _shared: shared, child, heirs: Vec::new(), directory, addresses, admin }
    }

    pub fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    pub fn file(&self) -> PathBuf {
        self.directory.path().join("gateway.toml")
    }

    /// Replaces the configuration (FRAME and this) by a rename, and asks for a reload; the answer of the admin interface.
    /// Where the watcher was quicker than the request, its plan, which it has logged, is the answer.
    pub fn reload(&self, configuration: &str) -> Answer {
        let said_before = self.log().len();
        self.replace(configuration);
        let mut answer = self.ask_reload();
        let started = Instant::now();
        while answer.body.starts_with(b"configuration unchanged") && started.elapsed() < Duration::from_secs(1) {
            let log = self.log();
            let lines = log.get(said_before..).unwrap_or_default().lines();
            let lines: Vec<serde_json::Value> = lines.filter_map(|line| serde_json::from_str(line).ok()).collect();
            let reloaded = lines.iter().rfind(|line| line["message"] == "configuration reloaded");
            if let Some(generation) = reloaded.map(|line| &line["generation"]) {
                // A line for each change follows.
                let plan = lines.iter().filter(|line| line["generation"] == *generation);
                let plan: Vec<_> = plan.filter_map(|line| line["message"].as_str()).collect();
                if plan.len() > 1 {
                    answer.body = plan.join("\n").into_bytes();
                }
            }
            thread::sleep(Duration::from_millis(5));
        }
        answer
    }

    pub fn replace(&self, configuration: &str) {
        let next = self.directory.path().join("next.toml");
        fs::write(&next, format!("{FRAME}{configuration}")).unwrap();
        fs::rename(&next, self.file()).unwrap();
    }

    pub fn ask_reload(&self) -> Answer {
        Client::connect(self.admin).request("POST", "/reload", &[("Host", "localhost")], b"")
    }

    /// The answer of the admin interface to a POST.
    pub fn post_admin(&self, target: &str) -> Answer {
        Client::connect(self.admin).request("POST", target, &[("Host", "localhost")], b"")
    }

    /// The answer of the admin interface to any request, with a body of JSON or none.
    pub fn tell_admin(&self, method: &str, target: &str, body: &str) -> Answer {
        let fields = [("Host", "localhost"), ("Content-Type", "application/json")];
        Client::connect(self.admin).request(method, target, &fields, body.as_bytes())
    }

    /// A page of the admin interface.
    pub fn ask_admin(&self, target: &str) -> Answer {
        get_with(self.admin, target, &[("Host", "localhost")])
    }

    /// The sum of all series of a metric whose labels contain all of `labels` (as `name="value"`).
    pub fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let text = self.ask_admin("/metrics").text();
        let is_it = |line: &&str| {
            let (series, _) = line.rsplit_once(' ').unwrap_or((line, ""));
            series.split('{').next() == Some(name) && labels.iter().all(|label| series.contains(label))
        };
        text.lines().filter(is_it).map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
    }

    /// Waits until a metric has a value.
    pub fn wait_metric(&self, name: &str, labels: &[&str], value: f64) {
        let seen = eventually(|| (self.metric(name, labels) - value).abs() < 0.5);
        assert!(seen, "{name}{labels:?} is {} and not {value}", self.metric(name, labels));
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks admin for an upgrade: its answer. Where it is done, the new process is the one that is signalled from then on.
    pub fn upgrade(&mut self) -> serde_json::Value {
        let headers = [("Host", "localhost"), ("Accept", "application/json")];
        let answer = Client::connect(self.admin).request("POST", "/upgrade", &headers, b"").json();
        if let Some(pid) = answer["pid"].as_u64() {
            self.succeeds(pid as u32);
        }
        answer
    }

    /// A process has taken over.
    pub fn succeeds(&mut self, pid: u32) {
        self.heirs.push(pid);
    }

    /// The process that serves.
    pub fn serving(&self) -> u32 {
        self.heirs.last().copied().unwrap_or_else(|| self.child.id())
    }

    /// Waits until all processes but the one that serves have ended.
    pub fn wait_alone(&self) {
        let before = std::iter::once(self.child.id()).chain(self.heirs.iter().copied());
        let before: Vec<_> = before.filter(|pid| *pid != self.serving()).collect();
        assert!(eventually(|| before.iter().all(|pid| has_ended(*pid))), "{before:?}\n{}", self.log());
    }

    pub fn signal(&self, name: &str) {
        let pid = self.serving().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }

    /// Stops the process and waits until none of its threads runs, so that what is sent until [`resume`](Self::resume)
    /// arrives for it all at once.
    pub fn pause(&self) {
        self.signal("STOP");
        let threads = format!("/proc/{}/task", self.child.id());
        let is_stopped = |thread: io::Result<fs::DirEntry>| {
            let state = fs::read_to_string(thread.unwrap().path().join("stat")).unwrap_or_default();
            state.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('T'))
        };
        assert!(eventually(|| fs::read_dir(&threads).unwrap().all(is_stopped)));
    }

    pub fn resume(&self) {
        self.signal("CONT");
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub fn wait_exit(&mut self) -> ExitStatus {
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            thread::sleep(Duration::from_millis(5));
        }
        panic!("the gateway does not end\n{}", self.log());
    }

    /// Ends it by SIGKILL and gives its directory back.
    pub fn kill(mut self) -> TempDir {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        std::mem::replace(&mut self.directory, tempfile::tempdir().unwrap())
    }

    /// The log, with each line in it that the process had logged before the call: before an answer that the test has read, say.
    /// So a line that is not there was not logged until then.
    pub fn log(&self) -> String {
        let pids = || std::iter::once(self.child.id()).chain(self.heirs.iter().copied());
        assert!(eventually(|| pids().all(|pid| !is_writing_log(pid))), "the log's thread does not come to rest");
        fs::read_to_string(self.directory.path().join("stderr.log")).unwrap_or_default()
    }

    /// The access log, if it is JSON: a value for each line.
    pub fn access_log(&self) -> Vec<serde_json::Value> {
        let text = fs::read_to_string(self.directory.path().join("stdout.log")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Every line of the dead-letter log in `directory`, oldest first.
    pub fn dead_letters(&self) -> Vec<serde_json::Value> {
        dead_letters(&self.directory.path().join("dead-letters"))
    }

    /// Resident memory in bytes.
    pub fn resident(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// How long it has been on a processor, in the kernel too.
    pub fn worked(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // Behind the name in brackets; utime and stime are the 14th and 15th, in hundredths (proc(5)).
        let fields = stat.rsplit_once(") ").unwrap().1.split_whitespace().skip(11).take(2);
        Duration::from_millis(10 * fields.map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>())
    }

    /// How nice its thread of this name is.
    pub fn niceness(&self, thread: &str) -> i32 {
        let find = || {
            let threads = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
            // Some end meanwhile.
            let mut stats = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("stat")).ok());
            stats.find(|stat| stat.contains(&format!("({thread})")))
        };
        // A thread has its name once it runs.
        assert!(eventually(|| find().is_some()), "{thread}");
        let stat = find().unwrap();
        // The 19th field; the third is the first behind the name in brackets (proc(5)).
        stat.rsplit_once(") ").unwrap().1.split_whitespace().nth(16).unwrap().parse().unwrap()
    }

    /// The most that it has been.
    pub fn most_resident(&self) -> u64 {
        self.memory("VmHWM:")
    }

    fn memory(&self, what: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with(what)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }
}

/// Whether lines wait for the thread that writes the log. A line that was logged has woken it, and it sleeps only when all are
/// written: so as soon as it sleeps, what was logged before is in the file.
fn is_writing_log(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    // A thread may end meanwhile.
    let mut stats = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("stat")).ok());
    let Some(stat) = stats.find(|stat| stat.contains("(log)")) else { return false };
    // Running or ready to run, or waiting for the disk (proc(5)). One that is stopped writes nothing.
    stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with(['R', 'D']))
}

/// Whether a process has ended, whoever its parent is.
fn has_ended(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('Z'))
}

impl Drop for Gateway {
    fn drop(&mut self) {
        for pid in self.heirs.iter().filter(|pid| !has_ended(**pid)) {
            drop(Command::new("kill").args(["-KILL", &pid.to_string()]).status());
        }
        drop(self.child.kill());
        drop(self.child.wait());
        if thread::panicking() {
            eprintln!("--- the gateway's log\n{}", self.log());
        }
    }
}

/// The whole lines of all segments. A part of a write may be seen before the rest of it.
pub fn dead_letters(directory: &Path) -> Vec<serde_json::Value> {
    let mut segments: Vec<PathBuf> =
        fs::read_dir(directory).map(|entries| entries.map(|entry| entry.unwrap().path()).collect()).unwrap_or_default();
    segments.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    segments.sort();
    let mut lines = Vec::new();
    for segment in segments {
        let text = fs::read_to_string(segment).unwrap();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        lines.extend(whole.lines().map(|line| serde_json::from_str(line).unwrap()));
    }
    lines
}

fn read_banner(child: &mut Child, directory: &Path) -> (Vec<SocketAddr>, SocketAddr) {
    let mut addresses = Vec::new();
    let mut admin = None;
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while lines.read_line(&mut line).unwrap() > 0 {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            // A Unix socket is none of them.
            (Some("listening"), Some(url)) => {
                addresses.extend(url.split_once("://").map(|(_, address)| address.parse::<SocketAddr>().unwrap()));
            }
            (Some("admin"), Some(url)) => {
                let address = url.split_once("://").map(|(_, rest)| rest.trim_end_matches("/metrics"));
                // One on a Unix socket has none.
                admin = address.map(|address| address.parse().unwrap());
            }
            (Some("Try:"), _) => break,
            _ => {}
        }
        line.clear();
    }
    // Access log lines go there too: somebody has to read them.
    let copy = directory.join("stdout.log");
    thread::spawn(move || drop(io::copy(&mut lines, &mut File::create(copy).unwrap())));
    let log = || fs::read_to_string(directory.join("stderr.log")).unwrap_or_default();
    assert!(!addresses.is_empty(), "the gateway did not start\n{}", log());
    (addresses, admin.unwrap_or_else(|| "127.0.0.1:1".parse().unwrap()))
}

/// Runs the binary to its end.
pub fn run(arguments: &[&str], directory: &Path) -> (ExitStatus, String, String) {
    let output = quiet(BINARY).args(arguments).current_dir(directory).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status, text(output.stdout), text(output.stderr))
}
