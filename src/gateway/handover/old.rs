//! The old process's side.

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::program::Program;
use super::{
    FAILED, GO, HandedWall, Hello, ListeningAddress, MAX_LINE, PROTOCOL, READY, READY_WITHIN, SERVING, TABLES,
    VARIABLE, channel,
};
use crate::config::ListenAddress;
use crate::gateway::live::LiveLimits;
use crate::gateway::state_file::named;
use crate::limiter::Followed;
use crate::state::{self, Mark};
use crate::time::{Clock, Span, Tick, WallState};

/// How often what was counted is sent.
const FOLLOW_EVERY: Duration = Duration::from_millis(20);
/// How long it may take to send what was counted.
const FLUSH_WITHIN: Duration = Duration::from_secs(1);
/// How often who waits for the new process looks up.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long the new process may take to serve, when everything is built.
const SERVING_WITHIN: Span = Span::from_secs(3);
/// How long the new process may take to end, once it has said why.
const END_WITHIN: u32 = 20;

/// A gateway as it is handed over.
pub struct HandoverState {
    /// Sockets, by what the configuration calls their addresses.
    pub listeners: Vec<(ListenAddress, Vec<TcpListener>)>,
    /// That of admin.
    pub admin: Option<(SocketAddr, TcpListener)>,
    /// By which fingerprints of keys are made.
    pub secret: Vec<u8>,
    /// The exceptions of keys, as JSON.
    pub exceptions: String,
    /// The things that are done with keys.
    pub acts: BTreeSet<String>,
    /// How its wall clock and its ticks stand.
    pub wall: WallState,
}

/// The process that takes over.
pub struct NewProcess {
    child: Child,
    lines: BufReader<io::Take<UnixStream>>,
    /// For counts, until it asks for them.
    counts: Option<UnixStream>,
}

impl NewProcess {
    /// Starts it, and hands the sockets over.
    pub fn start(program: &Program, legacy: &HandoverState) -> Result<Self, String> {
        let path = program.path().display();
        let pair = || UnixStream::pair().map_err(|error| format!("no pair of sockets: {error}"));
        let ((own, theirs), (counts, their_counts)) = (pair()?, pair()?);
        let mut command = program.command();
        command.env(VARIABLE, "1").stdin(Stdio::from(OwnedFd::from(theirs)));
        let child = command.spawn().map_err(|error| format!("{path} cannot be started: {error}"))?;
        // It has the other end alone, so that its end is the end of the line.
        drop(command);
        let mut successor = Self { child, lines: BufReader::new(own.take(MAX_LINE)), counts: Some(counts) };
        match successor.greet(legacy, &their_counts) {
            Ok(()) => Ok(successor),
            // It may have gone before it was greeted, or right after.
            Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                Err(successor.ended("it ended before it was ready"))
            }
            Err(error) => Err(successor.ended(&format!("it takes no sockets: {error}"))),
        }
    }

    fn greet(&mut self, legacy: &HandoverState, counts: &UnixStream) -> io::Result<()> {
        self.line().set_read_timeout(Some(LOOK_EVERY))?;
        self.line().set_write_timeout(Some(READY_WITHIN.into()))?;
        let HandoverState { listeners, admin, secret, exceptions, acts, wall } = legacy;
        // Each worker has a copy of the same Unix socket.
        let unix: Vec<(&PathBuf, &TcpListener)> = listeners
            .iter()
            .filter_map(|(address, sockets)| match address {
                ListenAddress::Unix(path) => Some((path, sockets.first()?)),
                ListenAddress::Tcp(_) => None,
            })
            .collect();
        let listeners: Vec<_> =
            listeners.iter().filter_map(|(address, sockets)| Some((address.tcp()?, sockets))).collect();
        let listening =
            |(address, sockets): &(_, &Vec<_>)| ListeningAddress { address: *address, sockets: sockets.len() };
        let hello = Hello {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").into(),
            listeners: listeners.iter().map(listening).collect(),
            admin: admin.as_ref().map(|(address, _)| *address),
            secret: secret.clone(),
            exceptions: exceptions.clone(),
            acts: acts.clone(),
            unix: unix.iter().map(|(path, _)| PathBuf::clone(path)).collect(),
            wall: Some(HandedWall::of(wall)),
        };
        let sockets = listeners.iter().flat_map(|(_, sockets)| *sockets).chain(admin.iter().map(|(_, socket)| socket));
        let unix = unix.iter().map(|(_, socket)| socket.as_fd());
        let sockets: Vec<_> = sockets.map(AsFd::as_fd).chain([counts.as_fd()]).chain(unix).collect();
        channel::send(&mut self.line().try_clone()?, &sockets, &serde_json::to_vec(&hello)?)
    }

    fn line(&self) -> &UnixStream {
        self.lines.get_ref().get_ref()
    }

    /// The number of the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it is ready. The process that sends counts is given the socket for them when it asks. `may_go_on`
    /// says whether it is still wanted. If it does not get ready it is ended.
    ///
    /// # Errors
    /// Why it is not ready, for people.
    pub fn wait<T>(
        &mut self,
        clock: &Clock,
        may_go_on: impl Fn() -> bool,
        tables: impl Fn(UnixStream) -> io::Result<T>,
    ) -> Result<Option<T>, String> {
        let until = clock.now() + READY_WITHIN;
        let mut sends = None;
        loop {
            match &*self.said(clock, until, &may_go_on)? {
                TABLES => match self.counts.take().map(&tables).transpose() {
                    Ok(sending) => sends = sending.or(sends),
                    Err(error) => return Err(self.ended(&format!("counts cannot be sent: {error}"))),
                },
                READY => return Ok(sends),
                _ => return Err(self.ended("it says what this one does not understand")),
            }
        }
    }

    /// Lets it serve, and waits until it does.
    ///
    /// # Errors
    /// It does not, and was ended.
    pub fn go(&mut self, clock: &Clock) -> Result<(), String> {
        if let Err(error) = writeln!(self.line(), "{GO}") {
            return Err(self.ended(&format!("it cannot be told to serve: {error}")));
        }
        match &*self.said(clock, clock.now() + SERVING_WITHIN, || true)? {
            SERVING => Ok(()),
            _ => Err(self.ended("it says what this one does not understand")),
        }
    }

    /// The next line that it says; else it is ended.
    fn said(&mut self, clock: &Clock, until: Tick, may_go_on: impl Fn() -> bool) -> Result<String, String> {
        let mut line = Vec::new();
        loop {
            let is_line = match self.lines.read_until(b'\n', &mut line) {
                Ok(0) => return Err(self.ended("it ended before it was ready")),
                Ok(_) => line.ends_with(b"\n"),
                // It left words unread.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Err(self.ended("it ended before it was ready"));
                }
                Err(error) if is_timeout(&error) => false,
                Err(error) => return Err(self.ended(&format!("it cannot be heard: {error}"))),
            };
            if !may_go_on() {
                return Err(self.ended("this process is told to end"));
            }
            if is_line {
                break;
            }
            if clock.now() >= until {
                return Err(self.ended("it did not get ready in time"));
            }
        }
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        match text.strip_prefix(FAILED) {
            Some(reason) => Err(self.ended(&serde_json::from_str::<String>(reason).unwrap_or_default())),
            None => Ok(text),
        }
    }

    /// Waits for its end in a thread of its own.
    pub fn watch(self, ended: impl FnOnce(String) + Send + 'static) {
        let Self { mut child, .. } = self;
        let wait = move || match child.wait() {
            Ok(status) => ended(status.to_string()),
            Err(error) => ended(error.to_string()),
        };
        if let Err(error) = thread::Builder::new().name("successor".into()).spawn(wait) {
            tracing::warn!(%error, "the process that has taken over is not watched");
        }
    }

    /// Ends it, and tells why.
    pub fn ended(&mut self, why: &str) -> String {
        drop(self.line().shutdown(Shutdown::Both));
        for _ in 0..END_WITHIN {
            match self.child.try_wait() {
                Ok(None) => thread::sleep(LOOK_EVERY / 2),
                Ok(Some(status)) => return format!("{why} ({status})"),
                Err(error) => return format!("{why}; {error}"),
            }
        }
        drop(self.child.kill());
        drop(self.child.wait());
        format!("{why} (it was killed)")
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

/// Sends counts to the process that takes over, until it is dropped.
pub struct CountsSender {
    /// Asks it to send all at once; its end ends the thread.
    flush: Option<SyncSender<SyncSender<()>>>,
    thread: Option<JoinHandle<()>>,
}

impl CountsSender {
    /// Sends all keys, then what is counted, in a thread of its own.
    pub fn start(to: UnixStream, mark: Mark, clock: Clock, limits: LiveLimits) -> io::Result<Self> {
        to.set_write_timeout(Some(READY_WITHIN.into()))?;
        let (flush, told) = sync_channel(1);
        let thread = thread::Builder::new().name("follower".into()).spawn(move || {
            if let Err(error) = send_all(&to, mark, clock.now(), &limits, &told) {
                tracing::warn!(%error, "the new process takes no counts; it begins anew");
            }
            for (limit, _) in limits.values() {
                limit.stop_following();
            }
        })?;
        Ok(Self { flush: Some(flush), thread: Some(thread) })
    }

    /// Returns when all that was counted until now is sent.
    pub fn flush(&self) {
        let (tell, told) = sync_channel(1);
        if self.flush.as_ref().is_some_and(|flush| flush.try_send(tell).is_ok()) {
            // A new process that takes no counts is not waited for.
            let _ = told.recv_timeout(FLUSH_WITHIN);
        }
    }
}

impl Drop for CountsSender {
    fn drop(&mut self) {
        drop(self.flush.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn send_all(
    to: &UnixStream,
    mark: Mark,
    now: Tick,
    limits: &LiveLimits,
    told: &Receiver<SyncSender<()>>,
) -> io::Result<()> {
    let sent = state::send(to, mark, now, named(limits))?;
    tracing::debug!(keys = sent.keys, bytes = sent.bytes, "counts sent");
    let names: Vec<_> = named(limits).collect();
    let mut followed: Vec<Followed> = Vec::new();
    loop {
        let asked = told.recv_timeout(FOLLOW_EVERY);
        for named in &names {
            followed.clear();
            named.limit.take_followed(&mut followed);
            state::send_followed(to, &named.name, &followed)?;
        }
        match asked {
            Ok(done) => drop(done.try_send(())),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return to.shutdown(Shutdown::Write),
        }
    }
}
