//! The real binary on a configuration of the test's own, a client that speaks plain HTTP/1, and servers that behave as
//! they are told. Every port is chosen by the kernel. How a test measures time is said in `timing`.

pub mod wire;

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use wire::{Message, Wire};

const BINARY: &str = env!("CARGO_BIN_EXE_sluicegate");

/// Longest that a test waits for something that has to happen.
pub const PATIENCE: Duration = Duration::from_secs(20);

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

/// What a test holds that measures time.
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
    pub directory: TempDir,
    pub addresses: Vec<SocketAddr>,
    pub admin: SocketAddr,
}

/// The sections that every test needs; ports are the kernel's choice.
pub const FRAME: &str = "[[listener]]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n";

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
        Self::spawn(Command::new(BINARY), directory, configuration, false)
    }

    /// Starts the binary with a limit on open files.
    pub fn start_with_files(files: u32, configuration: &str) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -n {files}; exec \"$0\" \"$@\""), BINARY]);
        Self::spawn(command, tempfile::tempdir().unwrap(), configuration, false)
    }

    /// Starts the binary with a log that goes to a pipe that nobody reads.
    pub fn start_unread(configuration: &str) -> Self {
        Self::spawn(Command::new(BINARY), tempfile::tempdir().unwrap(), configuration, true)
    }

    fn spawn(mut command: Command, directory: TempDir, configuration: &str, unread: bool) -> Self {
        let shared = Shared::take();
        let file = directory.path().join("gateway.toml");
        fs::write(&file, configuration).unwrap();
        let log = File::create(directory.path().join("stderr.log")).unwrap();
        let mut child = command
            .args(["run", "-c"])
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(if unread { Stdio::piped() } else { log.into() })
            .spawn()
            .unwrap();
        let (addresses, admin) = read_banner(&mut child, directory.path());
        Self { _shared: shared, child, directory, addresses, admin }
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
            let messages = lines.filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
            let texts = messages.filter_map(|line| Some(line["message"].as_str()?.to_owned()));
            let mut plans = texts.filter(|text| text.starts_with("configuration reloaded"));
            if let Some(plan) = plans.next_back() {
                answer.body = plan.into_bytes();
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

    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
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

    pub fn log(&self) -> String {
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
        let threads = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        // Some end meanwhile.
        let mut stats = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("stat")).ok());
        let stat = stats.find(|stat| stat.contains(&format!("({thread})"))).unwrap();
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

impl Drop for Gateway {
    fn drop(&mut self) {
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
            (Some("listening"), Some(url)) => addresses.push(url.split_once("://").unwrap().1.parse().unwrap()),
            (Some("admin"), Some(url)) => {
                admin = Some(url["http://".len()..].trim_end_matches("/metrics").parse().unwrap());
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

/// Waits until something is so.
pub fn eventually(is_so: impl FnMut() -> bool) -> bool {
    eventually_in(PATIENCE, is_so)
}

/// The same, for what takes longer.
pub fn eventually_in(patience: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while started.elapsed() < patience {
        if is_so() {
            return true;
        }
        thread::sleep(Duration::from_millis(5));
    }
    false
}

/// A response as a client sees it.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// A field that reached an echo server.
    pub fn echoed(&self, name: &str) -> Option<String> {
        let json = self.json();
        let headers = json["headers"].as_array().unwrap().clone();
        headers.iter().find(|pair| pair[0] == name).map(|pair| pair[1].as_str().unwrap().to_owned())
    }
}

/// A connection that stays open between requests.
pub struct Client {
    pub stream: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let reader = BufReader::new(stream.try_clone().unwrap());
        Self { stream, reader }
    }

    pub fn get(&mut self, target: &str) -> Answer {
        self.request("GET", target, &[], b"")
    }

    pub fn request(&mut self, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.send(method, target, headers, body);
        self.read_answer(method == "HEAD").unwrap()
    }

    pub fn send(&mut self, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) {
        let mut head = format!("{method} {target} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head.push_str("Host: test.example\r\n");
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body);
        self.stream.write_all(&bytes).unwrap();
    }

    pub fn read_answer(&mut self, headless: bool) -> io::Result<Answer> {
        read_answer(&mut self.reader, headless)
    }

    /// Reads until the other side closes.
    pub fn read_rest(&mut self) -> io::Result<Vec<u8>> {
        let mut rest = Vec::new();
        self.reader.read_to_end(&mut rest)?;
        Ok(rest)
    }
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "closed in the middle of a message")
}

fn read_line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    match line.strip_suffix("\r\n") {
        Some(line) => Ok(line.to_owned()),
        None => Err(cut()),
    }
}

pub fn read_head(reader: &mut impl BufRead) -> io::Result<(String, Vec<(String, String)>)> {
    let first = read_line(reader)?;
    let mut headers = Vec::new();
    loop {
        let line = read_line(reader)?;
        if line.is_empty() {
            return Ok((first, headers));
        }
        let (name, value) = line.split_once(':').ok_or_else(cut)?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
}

pub fn read_body(reader: &mut impl BufRead, headers: &[(String, String)], until_close: bool) -> io::Result<Vec<u8>> {
    let value = |name| headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    let mut body = Vec::new();
    if value("transfer-encoding").is_some_and(|coding| coding.contains("chunked")) {
        loop {
            let size = read_line(reader)?;
            let size = usize::from_str_radix(size.split(';').next().unwrap().trim(), 16).map_err(|_| cut())?;
            let start = body.len();
            body.resize(start + size, 0);
            reader.read_exact(&mut body[start..])?;
            if size == 0 {
                while !read_line(reader)?.is_empty() {}
                return Ok(body);
            }
            read_line(reader)?;
        }
    }
    if let Some(length) = value("content-length") {
        body.resize(length.parse().unwrap(), 0);
        reader.read_exact(&mut body)?;
    } else if until_close {
        reader.read_to_end(&mut body)?;
    }
    Ok(body)
}

pub fn read_answer(reader: &mut impl BufRead, headless: bool) -> io::Result<Answer> {
    loop {
        let (first, headers) = read_head(reader)?;
        let status: u16 = first.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(cut)?;
        if status < 200 {
            continue;
        }
        let bodiless = headless || status == 204 || status == 304;
        let body = if bodiless { Vec::new() } else { read_body(reader, &headers, true)? };
        return Ok(Answer { status, headers, body });
    }
}

/// One request on a connection of its own.
pub fn get(address: SocketAddr, target: &str) -> Answer {
    Client::connect(address).get(target)
}

/// One request with fields of its own.
pub fn get_with(address: SocketAddr, target: &str, headers: &[(&str, &str)]) -> Answer {
    Client::connect(address).request("GET", target, headers, b"")
}

/// A server on a port of its own; each request is given to the test's function, which writes what it wants.
pub struct Backend {
    pub address: SocketAddr,
    pub connections: Arc<AtomicUsize>,
    pub seen: Arc<Mutex<Vec<Message>>>,
    closed: mpsc::Receiver<usize>,
}

impl Backend {
    /// Serves until the process ends. `answer` gets the request and the connection; false closes it.
    pub fn start(answer: impl Fn(&Message, &mut TcpStream) -> bool + Send + Sync + 'static) -> Self {
        Self::serve(move |mut stream, _, log| {
            let (reader, stream) = (&mut BufReader::new(stream.try_clone().unwrap()), &mut stream);
            while let Ok((line, headers)) = read_head(reader) {
                let Ok(body) = read_body(reader, &headers, false) else { break };
                let seen = Message { line, headers, body, ..Message::default() };
                log.lock().unwrap().push(seen.clone());
                if !answer(&seen, stream) {
                    break;
                }
            }
        })
    }

    /// Gives each connection to the test's script, with its number from 1, and closes it when the script ends.
    pub fn scripted(script: impl Fn(&mut Wire, usize) + Send + Sync + 'static) -> Self {
        Self::serve(move |stream, number, log| script(&mut Wire::noting(stream, Arc::clone(log)), number))
    }

    fn serve(attend: impl Fn(TcpStream, usize, &Arc<Mutex<Vec<Message>>>) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (tell_closed, closed) = mpsc::sync_channel(10_000);
        let (count, log, attend) = (Arc::clone(&connections), Arc::clone(&seen), Arc::new(attend));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let connection = count.fetch_add(1, Ordering::SeqCst) + 1;
                let (log, attend, tell_closed) = (Arc::clone(&log), Arc::clone(&attend), tell_closed.clone());
                thread::spawn(move || {
                    attend(stream.try_clone().unwrap(), connection, &log);
                    drop(stream.shutdown(Shutdown::Both));
                    let _ = tell_closed.try_send(connection);
                });
            }
        });
        Self { address, connections, seen, closed }
    }

    /// Answers each head at once with these bytes, and then reads whatever comes.
    pub fn start_early(answer: &'static [u8]) -> Self {
        Self::serve(move |mut stream, _, _| {
            let reader = &mut BufReader::new(stream.try_clone().unwrap());
            while read_head(reader).is_ok() {
                if stream.write_all(answer).is_err() {
                    return;
                }
            }
        })
    }

    /// Answers everything with 200 and this body.
    pub fn fixed(body: &'static str) -> Self {
        Self::start(move |_, stream| write_ok(stream, body.as_bytes()))
    }

    /// Waits until a connection has ended, by the gateway's hand or by its script's; its number.
    pub fn wait_closed(&self) -> usize {
        self.closed.recv_timeout(PATIENCE).expect("the gateway should have closed its connection")
    }

    pub fn requests(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

/// A whole answer with a length; whether it could be written.
pub fn write_ok(stream: &mut TcpStream, body: &[u8]) -> bool {
    let mut bytes = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
    bytes.extend_from_slice(body);
    stream.write_all(&bytes).is_ok()
}

/// An address at which nobody listens, nor will unless the test does: a port that was free at 127.0.0.1 may be another
/// test's a moment later, but no other test uses this loopback address.
pub fn unused_address() -> SocketAddr {
    static TAKEN: AtomicU8 = AtomicU8::new(0);
    let [.., high, low] = std::process::id().to_be_bytes();
    let host = [127, 64 + TAKEN.fetch_add(1, Ordering::Relaxed) % 128, high, low];
    TcpListener::bind(SocketAddr::from((host, 0))).unwrap().local_addr().unwrap()
}

/// Runs the binary to its end.
pub fn run(arguments: &[&str], directory: &Path) -> (ExitStatus, String, String) {
    let output = Command::new(BINARY).args(arguments).current_dir(directory).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status, text(output.stdout), text(output.stderr))
}
