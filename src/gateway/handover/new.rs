//! The new process's side.

use std::collections::{BTreeSet, HashMap};
use std::env;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;

use listenfd::ListenFd;

use super::channel;
use super::given::Given;
use super::program::Program;
use super::{FAILED, GO, Hello, PROTOCOL, READY, READY_WITHIN, SERVING, TABLES, VARIABLE};
use crate::gateway::exceptions::{self, Exceptions, ExceptionsFile};
use crate::gateway::live::LiveLimits;
use crate::gateway::state_file::by_name;
use crate::limiter::Limit;
use crate::state::{self, Mark};
use crate::time::{Clock, Tick};

/// Characters of a reason that are told.
const MAX_REASON: usize = 16 << 10;

/// All that a process begins with: nothing, or the legacy of the one before.
pub struct Inheritance {
    /// How it was started, for the one that takes over from it.
    pub program: Program,
    /// Sockets that listen already.
    pub sockets: Given,
    /// By which fingerprints of keys are made; `None`: there was no process before.
    pub secret: Option<Vec<u8>>,
    /// Of the process before.
    version: String,
    /// Of keys, as the process before has them: JSON, or nothing.
    exceptions: String,
    /// The things that it has done with keys.
    acts: BTreeSet<String>,
    line: Option<HandoverChannel>,
}

/// The line to the process before.
struct HandoverChannel {
    lines: BufReader<UnixStream>,
    /// The counts; `None`: those of the process before cannot be read here.
    counts: Option<BufReader<UnixStream>>,
    /// The limits that have taken keys over.
    limits: HashMap<String, Arc<Limit>>,
}

/// Counts what another process counts, in a thread of its own, until that process ends.
fn follow(mut counts: BufReader<UnixStream>, limits: HashMap<String, Arc<Limit>>) {
    let follow = move || {
        while let Some((name, followed)) = state::receive_followed(&mut counts) {
            if let Some(limit) = limits.get(&name) {
                limit.count_followed(&followed);
            }
        }
        tracing::debug!("the gateway before has ended");
    };
    if let Err(error) = thread::Builder::new().name("heir".into()).spawn(follow) {
        tracing::warn!(%error, "what the gateway before still admits is not counted");
    }
}

/// Sockets by the protocol of systemd (`LISTEN_FDS`, `sd_listen_fds(3)`).
fn passed() -> io::Result<Given> {
    let mut passed = ListenFd::from_env();
    let mut given = Given::default();
    for index in 0..passed.len() {
        let failed = |error| io::Error::other(format!("socket {index} of LISTEN_FDS cannot be used: {error}"));
        if let Some(socket) = passed.take_tcp_listener(index).map_err(failed)? {
            given.add(socket.local_addr().map_err(failed)?, socket);
        }
    }
    Ok(given)
}

impl Inheritance {
    /// Takes whatever the process hands over that has started this one: a gateway, or systemd, which passes sockets. To be
    /// called while there is one thread.
    ///
    /// # Errors
    /// The environment says so, and there is no gateway at standard input, or one of another protocol; or what was passed is no
    /// socket.
    pub fn receive() -> io::Result<Self> {
        // First of all: another binary may be put in the place of this one at any time.
        let program = Program::of_this_process()?;
        let (secret, version, exceptions, acts) = (None, String::new(), String::new(), BTreeSet::new());
        if env::var_os(VARIABLE).is_none() {
            return Ok(Self { program, sockets: passed()?, secret, version, exceptions, acts, line: None });
        }
        let mut stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        // Nothing that this process starts is to speak over it.
        rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
        stream.set_read_timeout(Some(READY_WITHIN.into()))?;
        let (sockets, hello) = channel::receive(&mut stream).map_err(|error| {
            let text = format!("{VARIABLE} is set, and standard input is no socket of a gateway ({error}): unset it");
            io::Error::other(text)
        })?;
        stream.set_read_timeout(None)?;
        let line = Some(HandoverChannel { lines: BufReader::new(stream), counts: None, limits: HashMap::new() });
        let mut received = Self { program, sockets: Given::default(), secret, version, exceptions, acts, line };
        if let Err(error) = received.take(sockets.into_iter(), &hello) {
            received.failed(&error.to_string());
            return Err(error);
        }
        Ok(received)
    }

    fn take(&mut self, mut sockets: impl Iterator<Item = OwnedFd>, hello: &[u8]) -> io::Result<()> {
        let Hello { protocol, version, listeners, admin, secret, exceptions, acts, unix, wall } =
            serde_json::from_slice(hello).map_err(io::Error::other)?;
        if protocol != PROTOCOL {
            let own = env!("CARGO_PKG_VERSION");
            let text = format!("version {version} hands over in a way that {own} does not know: restart the gateway");
            return Err(io::Error::other(text));
        }
        for listening in listeners {
            for socket in sockets.by_ref().take(listening.sockets) {
                self.sockets.add(listening.address, TcpListener::from(socket));
            }
        }
        if let Some(address) = admin
            && let Some(socket) = sockets.next()
        {
            self.sockets.add_admin(address, TcpListener::from(socket));
        }
        if let Some((line, counts)) = self.line.as_mut().zip(sockets.next()) {
            line.counts = Some(BufReader::with_capacity(1 << 20, UnixStream::from(counts)));
        }
        for (path, socket) in unix.into_iter().zip(sockets) {
            self.sockets.add_unix(path, TcpListener::from(socket));
        }
        if let Some(wall) = wall {
            // The counts that it hands over are by its ticks.
            Clock::resume(&wall.state());
        }
        self.secret = Some(secret);
        self.version = version;
        self.exceptions = exceptions;
        self.acts = acts;
        Ok(())
    }

    /// The exceptions of keys: those of the process before, if there is one that has any, else those of the file.
    pub fn exceptions(&mut self, file: Option<&ExceptionsFile>) -> Exceptions {
        let handed_over = std::mem::take(&mut self.exceptions);
        if !handed_over.is_empty() {
            match exceptions::from_json(handed_over.as_bytes()) {
                Ok(exceptions) => return exceptions,
                Err(error) => tracing::error!(error, "the exceptions of keys of the gateway that runs cannot be read"),
            }
        }
        file.map(ExceptionsFile::read).unwrap_or_default()
    }

    /// The things that the process before has done with keys.
    pub fn acts(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.acts)
    }

    /// Whether there is a process before this one.
    pub fn is_upgrade(&self) -> bool {
        self.line.is_some()
    }

    /// Asks for the keys of limits, and takes them over; whether it has them. Where that fails, they begin anew, and the log says
    /// why.
    pub fn take_over(&mut self, limits: &LiveLimits, mark: Mark, now: Tick) -> bool {
        let Some(line) = &mut self.line else { return false };
        let Some(counts) = &mut line.counts else { return false };
        line.limits = by_name(limits);
        let asked = writeln!(line.lines.get_ref(), "{TABLES}").map_err(state::ReadError::Io);
        let find = |name: &str| line.limits.get(name).map(Arc::clone);
        match asked.and_then(|()| state::receive(counts, mark, now, find)) {
            Ok(taken) => {
                let version = &self.version;
                tracing::info!(keys = taken.keys, of_version = version, "counts taken over from the gateway that runs");
                if !taken.unknown.is_empty() {
                    let limits = taken.unknown.join(", ");
                    tracing::warn!(limits, "counts left out: these limits are gone, or have other numbers");
                }
                true
            }
            Err(error) => {
                tracing::warn!(%error, "the counts of the gateway that runs begin anew, but for what was taken over");
                // It is told so by this end, and sends no more.
                line.counts = None;
                false
            }
        }
    }

    /// Says that everything is built, and waits until the process before agrees: from then on this one may serve. It counts
    /// whatever the one before still admits, until its end.
    ///
    /// # Errors
    /// It does not: it has ended, or goes on.
    pub fn agree(&mut self) -> io::Result<()> {
        let Some(line) = &mut self.line else { return Ok(()) };
        if let Some(counts) = line.counts.take() {
            follow(counts, std::mem::take(&mut line.limits));
        }
        let mut told = String::new();
        writeln!(line.lines.get_ref(), "{READY}")?;
        (&mut line.lines).take(GO.len() as u64 + 1).read_line(&mut told)?;
        if told.trim_end() == GO { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Says that this process serves.
    pub fn serving(self) {
        let Some(HandoverChannel { lines, .. }) = self.line else { return };
        if let Err(error) = writeln!(lines.get_ref(), "{SERVING}") {
            // It has ended in between: this one serves, which is what matters.
            tracing::warn!(%error, "the gateway before cannot be told that this one serves");
        }
    }

    /// Says that this process cannot take over, and why.
    pub fn failed(&self, reason: &str) {
        let Some(line) = &self.line else { return };
        let reason = serde_json::Value::from(reason.chars().take(MAX_REASON).collect::<String>());
        // Where nobody reads it, the log has it.
        let _ = writeln!(line.lines.get_ref(), "{FAILED}{reason}");
    }
}
