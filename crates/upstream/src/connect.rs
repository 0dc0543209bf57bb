use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio::sync::Notify;

use super::alone::AlonePlaces;
use super::{ConnectRate, Endpoint, GateView, Link, Load, Pace, ProxyHeader};
use sluicegate_balance::{FailureRow, GOOD_ANSWER_LASTS};
use sluicegate_telemetry::Histogram;
use sluicegate_time::{Span, Tick};
use sluicegate_transport::{Channel, HandshakeError, Memory, Protocol, Stream, connect, open_channel};

/// How many idle connections one worker keeps to one server; a further one is closed.
const MAX_IDLE: usize = 512;
/// An idle connection older than this is not used again: below the keep-alive time of most servers.
const MAX_IDLE_AGE: Span = Span::from_secs(50);

/// How long a connection is not used again over which a faulty server may yet send something: the body of an answer to a
/// HEAD, or an answer to the body of a GET that it took for another request.
const REST: Span = Span::from_millis(50);
/// How many connections of one worker to one server rest at once; a further one is closed. A client that asks with HEAD alone
/// must not fill the idle connections with such as nobody can use.
const MAX_RESTING: usize = 16;

/// How many HTTP/2 connections one worker keeps to one server; more are opened only while the others carry as many
/// requests as the server allows.
const MAX_CHANNELS: usize = 64;

/// Why there is no connection.
#[derive(Debug)]
pub enum ConnectError {
    /// The name did not resolve, nobody listens, or the network refused.
    Io(io::Error),
    /// TLS could not be agreed on. Boxed: it is large, and every exchange has room for an error.
    Tls(Box<HandshakeError>),
    /// Every connection carries as many requests as the server allows.
    Full,
    /// No answer within the upstream's `connect_timeout`.
    Timeout,
}

impl std::fmt::Display for ConnectError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(error) => write!(f, "connect failed: {error}"),
            Self::Tls(error) => write!(f, "TLS handshake failed: {error}"),
            Self::Full => write!(f, "{MAX_CHANNELS} HTTP/2 connections carry as many requests as the server allows"),
            Self::Timeout => write!(f, "no answer to connect within connect_timeout, or the time that the request had"),
        }
    }
}

impl std::error::Error for ConnectError {}

/// Errors of Unix where this process, or this machine, may open no more files.
const NO_FILES: [i32; 2] = [24, 23];

impl ConnectError {
    /// Whether the server is to blame, and not the gateway, which has no more files, ports or memory, or meets a bound of
    /// its own.
    pub fn is_servers_fault(&self) -> bool {
        match self {
            Self::Io(error) => {
                let is_own = matches!(error.kind(), io::ErrorKind::AddrNotAvailable | io::ErrorKind::OutOfMemory);
                !is_own && !error.raw_os_error().is_some_and(|code| NO_FILES.contains(&code))
            }
            Self::Tls(_) | Self::Timeout => true,
            Self::Full => false,
        }
    }
}

struct Idle {
    stream: Stream,
    since: Tick,
    /// Until when it is not used, because something may yet come that belongs to its last exchange.
    rests_until: Option<Tick>,
    header: Option<Box<ProxyHeader>>,
}

impl Idle {
    fn is_resting(&self, now: Tick) -> bool {
        self.rests_until.is_some_and(|until| now < until)
    }

    /// Whether it can carry another request.
    fn check_usable(&mut self, now: Tick) -> bool {
        now.since(self.since) < MAX_IDLE_AGE && self.check_quiet()
    }

    fn check_quiet(&mut self) -> bool {
        self.stream.check_quiet() && (self.rests_until.is_none() || !self.stream.has_unread())
    }
}

/// An idle connection that only the connection of a client may use again for which it was kept.
pub struct PrivateConnection(Idle);

/// An HTTP/2 connection, and when a request went over it last.
pub(super) struct IdleConnection {
    pub(super) channel: Channel,
    pub(super) used: Tick,
}

/// One server as one worker sees it: its idle connections and what it has in flight there.
pub struct ServerConnections {
    endpoint: Endpoint,
    link: Link,
    load: Arc<Load>,
    times: ServerTimes,
    worker: usize,
    idle: RefCell<Vec<Idle>>,
    channels: RefCell<Vec<IdleConnection>>,
    /// HTTP/2 connections that carry one request at a time.
    pub(super) alone: RefCell<Vec<IdleConnection>>,
    alone_places: Rc<AlonePlaces>,
    pace: Pace,
    /// Whether an HTTP/2 connection is being opened, which all wait for who need one.
    opening: Cell<bool>,
    opened: Notify,
    pub(super) retired: Cell<bool>,
    /// Failures in a row of this worker's requests.
    failures: RefCell<FailureRow>,
    watched: RefCell<Option<Watched>>,
}

/// How long a server takes, as one worker sees it.
pub struct ServerTimes {
    /// To connect, the TLS handshake included, or until that failed.
    pub connect: Histogram,
    /// From sending a request to the head of its answer, or until it was given up.
    pub response: Histogram,
}

/// By whom it is watched, so that it is given no requests while it fails.
#[derive(Clone)]
pub struct Watched {
    /// Its upstream's servers, as this worker sees them.
    pub view: Rc<GateView>,
    /// Its place among them.
    pub server: usize,
    /// Failures in a row that take it out of service; `None`: none does.
    pub failures: Option<u32>,
}

impl ServerConnections {
    /// A server without connections.
    pub fn new(
        endpoint: Endpoint,
        link: Link,
        (load, times): (Arc<Load>, ServerTimes),
        worker: usize,
        pace: Pace,
    ) -> Rc<Self> {
        Rc::new(Self {
            endpoint,
            link,
            load,
            times,
            worker,
            idle: RefCell::default(),
            channels: RefCell::default(),
            alone: RefCell::default(),
            alone_places: Rc::default(),
            pace,
            opening: Cell::new(false),
            opened: Notify::new(),
            retired: Cell::new(false),
            failures: RefCell::default(),
            watched: RefCell::default(),
        })
    }

    /// How often it may be connected to, from now on.
    pub fn set_connect_rate(&self, rate: ConnectRate) {
        self.pace.set_rate(rate);
    }

    /// By whom it is watched from now on.
    pub fn watch(&self, watched: Watched) {
        self.watched.replace(Some(watched));
    }

    /// A connect has taken so long, or has failed after that.
    pub fn note_connect(&self, took: Span) {
        self.times.connect.observe(took);
    }

    /// A connect has failed, or a request of `client` or its answer, and the server is to blame. `cause` is for people.
    /// `is_trial`: of the one request that tries the server.
    pub fn note_failure(&self, client: Option<u64>, cause: &str, is_trial: bool, now: Tick) {
        self.load.failed(self.worker);
        let watched = self.watched.borrow();
        let Some(Watched { view, server, failures: Some(most) }) = &*watched else { return };
        let mut failures = self.failures.borrow_mut();
        match client {
            Some(client) => failures.failed(client, now),
            None => failures.unreachable(),
        }
        let counted = failures.counted(self.load.clients_answered_since(now - GOOD_ANSWER_LASTS));
        if counted < *most && !view.wants_verdict(*server, is_trial) {
            return;
        }
        *failures = FailureRow::default();
        drop(failures);
        view.states().failed(*server, cause, now);
    }

    /// A request of this client was answered.
    fn note_answer(&self, client: u64, took: Span, is_trial: bool, now: Tick) {
        self.load.answered(self.worker, took);
        let watched = self.watched.borrow();
        let Some(Watched { view, server, failures }) = &*watched else { return };
        if failures.is_some() {
            self.load.answered_client(self.worker, client, now);
            if !self.failures.borrow().is_empty() {
                self.failures.take();
            }
        }
        if view.wants_verdict(*server, is_trial) {
            view.states().recovered(*server, now);
        }
    }

    /// The places of requests on connections that carry nothing else.
    pub fn alone_places(&self) -> &Rc<AlonePlaces> {
        &self.alone_places
    }

    /// Turns to connect to it.
    pub(super) fn pace(&self) -> &Pace {
        &self.pace
    }

    /// Whether an HTTP/2 connection is being opened: who needs one waits for that.
    pub(super) fn is_opening(&self) -> bool {
        self.opening.get()
    }

    /// Whether there are as many HTTP/2 connections as there may be.
    pub(super) fn is_full(&self) -> bool {
        self.channels.borrow().len() >= MAX_CHANNELS
    }

    /// How it is spoken to.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Where it is.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Requests in flight there, from every worker.
    pub fn load(&self) -> &Load {
        &self.load
    }

    /// Closes what is idle; connections in use close when they are given back.
    pub fn retire(&self) {
        self.retired.set(true);
        self.idle.borrow_mut().clear();
        self.channels.borrow_mut().clear();
        self.alone.borrow_mut().clear();
    }

    /// Closes the idle connections that were for this connection of a client and no other: it has ended.
    pub fn forget(&self, owner: u64) {
        self.idle.borrow_mut().retain(|idle| idle.header.as_ref().is_none_or(|header| header.owner() != Some(owner)));
    }

    /// Closes connections that have been idle too long, were closed by the server, or got bytes that nobody asked for.
    pub fn prune(&self, now: Tick) {
        self.idle.borrow_mut().retain_mut(|idle| idle.stream.check_quiet() && now.since(idle.since) < MAX_IDLE_AGE);
        for channels in [&self.channels, &self.alone] {
            channels.borrow_mut().retain_mut(|kept| {
                kept.used = kept.used.min(now);
                let is_used = kept.channel.streams() > 0 || now.since(kept.used) < MAX_IDLE_AGE;
                is_used && !kept.channel.is_closed()
            });
        }
    }

    /// The connection used last, if one is idle, open and silent, and nobody waits for it. It counts as in flight until it
    /// is dropped.
    pub fn reuse(self: &Rc<Self>, now: Tick) -> Option<Leased> {
        if self.pace.is_kept_wanted() { None } else { self.kept(now) }
    }

    /// The same for those who wait for it.
    pub(super) fn kept(self: &Rc<Self>, now: Tick) -> Option<Leased> {
        if self.link.protocol == Protocol::Http2 {
            let stream = self.stream(Some(now))?;
            return Some(Leased::new(Rc::clone(self), stream, None, true));
        }
        loop {
            let mut idle = self.idle.borrow_mut();
            let mut last = idle.pop()?;
            if last.is_resting(now) {
                let awake = idle.iter().rposition(|idle| !idle.is_resting(now));
                let rested = awake.map(|place| idle.remove(place));
                idle.push(last);
                last = rested?;
            }
            if last.check_usable(now) {
                return Some(Leased::new(Rc::clone(self), last.stream, None, true));
            }
        }
    }

    /// A connection that its client's connection has for itself, if it is still open and silent.
    pub fn reuse_private(self: &Rc<Self>, PrivateConnection(mut idle): PrivateConnection) -> Option<Leased> {
        if self.retired.get() || !idle.check_quiet() {
            return None;
        }
        let mut lease = Leased::new(Rc::clone(self), idle.stream, idle.header, true);
        lease.make_private();
        Some(lease)
    }

    /// When the first of the connections that rest may be used again.
    pub(super) fn rested_at(&self, now: Tick) -> Option<Tick> {
        let idle = self.idle.borrow();
        idle.iter().filter(|idle| idle.is_resting(now)).filter_map(|idle| idle.rests_until).min()
    }

    /// The same as [`reuse`](Self::reuse) where servers are told for whom a connection is: only one that began with this header.
    pub fn reuse_for(self: &Rc<Self>, now: Tick, header: &ProxyHeader) -> Option<Leased> {
        let mut idle = self.idle.borrow_mut();
        loop {
            let is_it = |idle: &Idle| idle.header.as_deref() == Some(header) && !idle.is_resting(now);
            let place = idle.iter().rposition(is_it)?;
            let mut found = idle.remove(place);
            if found.check_usable(now) {
                return Some(Leased::new(Rc::clone(self), found.stream, found.header, true));
            }
        }
    }

    /// A stream of an HTTP/2 connection that has room for one.
    fn stream(&self, now: Option<Tick>) -> Option<Stream> {
        let mut channels = self.channels.borrow_mut();
        channels.retain(|kept| !kept.channel.is_closed());
        let kept = channels.iter_mut().find(|kept| kept.channel.has_room())?;
        kept.used = now.unwrap_or(kept.used);
        Some(Stream::ToServer(Box::new(kept.channel.open())))
    }

    /// A new connection, for the task that has a [turn](Self::turn). It counts as in flight until it is dropped. How
    /// long it may take is the caller's patience. `None` where it waited for the HTTP/2 connection of another request
    /// and there is no room on it, or none at all: it needs a turn of its own.
    ///
    /// `header`: for whom it is, if the server is to be told.
    pub async fn connect(self: Rc<Self>, header: Option<Box<ProxyHeader>>) -> Result<Option<Leased>, ConnectError> {
        let stream = match self.link.protocol {
            Protocol::Http1 => Some(open_stream(&self.endpoint, &self.link, header.as_deref()).await?),
            Protocol::Http2 => self.open_channel().await?,
        };
        Ok(stream.map(|stream| Leased::new(self, stream, header, false)))
    }

    /// A stream of a new HTTP/2 connection, or of the one that somebody else is opening, if there is room on it.
    async fn open_channel(&self) -> Result<Option<Stream>, ConnectError> {
        if self.opening.get() {
            self.opened.notified().await;
            return Ok(self.stream(None));
        }
        if self.is_full() {
            return Err(ConnectError::Full);
        }
        let _opening = Opening::begin(self);
        let stream = open_stream(&self.endpoint, &self.link, None).await?;
        let channel = open_channel(stream, self.link.tls.is_some()).await.map_err(ConnectError::Io)?;
        let stream = Stream::ToServer(Box::new(channel.open()));
        if !self.retired.get() {
            self.channels.borrow_mut().push(IdleConnection { channel, used: Tick::MAX });
        }
        Ok(Some(stream))
    }
}

/// A connection of its own, after the handshake if there is one. `header`: for whom it is, if the server is to be told;
/// for nobody but the gateway by default.
pub(super) async fn open_stream(
    endpoint: &Endpoint,
    link: &Link,
    header: Option<&ProxyHeader>,
) -> Result<Stream, ConnectError> {
    let mut socket = dial(endpoint).await.map_err(ConnectError::Io)?;
    // Without it the kernel may hold the end of a request back for 40 ms.
    socket.set_nodelay(true).map_err(ConnectError::Io)?;
    if let Some(version) = link.proxy_protocol {
        // Before TLS: the header is of the connection, not of what is said on it.
        let bytes = header.map_or_else(|| ProxyHeader::of_nobody(version), |header| header.bytes(version));
        socket.write_all(&bytes).await.map_err(ConnectError::Io)?;
    }
    let stream = match &link.tls {
        None => Stream::Plain(socket),
        Some(tls) => {
            let is_h2 = link.protocol == Protocol::Http2;
            let connected = Box::pin(connect(socket, tls, &endpoint.host, is_h2)).await;
            connected.map_err(|error| ConnectError::Tls(Box::new(error)))?
        }
    };
    stream.linger_as_usual();
    Ok(stream)
}

/// A connection to the first address of a server that takes one. An owner that gives it up, also while it is being made, leaves
/// nothing in the kernel: it ends by a reset until it is told to [linger as usual](Stream::linger_as_usual).
async fn dial(endpoint: &Endpoint) -> io::Result<TcpStream> {
    let mut last = None;
    for address in lookup_host((&*endpoint.host, endpoint.port)).await? {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_zero_linger()?;
        match socket.connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address")))
}

/// An HTTP/2 connection that is being opened; whatever comes of it, those who wait are woken.
struct Opening<'s>(&'s ServerConnections);

impl<'s> Opening<'s> {
    fn begin(server: &'s ServerConnections) -> Self {
        server.opening.set(true);
        Self(server)
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.0.opening.set(false);
        self.0.opened.notify_waiters();
        self.0.pace.wake();
    }
}

/// A connection in use. Dropping it resets it, unless it was given back or its exchange is [over](Self::mark_finished).
pub struct Leased {
    server: Rc<ServerConnections>,
    /// `None` once it is given back.
    stream: Option<Stream>,
    header: Option<Box<ProxyHeader>>,
    reused: bool,
    /// Whether it is for one client's connection alone, from now on.
    is_private: bool,
    /// Whether it counts as in flight.
    counted: bool,
    over: bool,
}

impl Leased {
    pub(super) fn new(
        server: Rc<ServerConnections>,
        stream: Stream,
        header: Option<Box<ProxyHeader>>,
        reused: bool,
    ) -> Self {
        server.load.add(server.worker);
        Self { server, stream: Some(stream), header, reused, is_private: false, counted: true, over: false }
    }

    /// One that reads an answer of a server of the same upstream that is here already: no connection, and nothing in flight.
    pub fn of_copy(server: &Rc<ServerConnections>, copy: Memory) -> Self {
        let stream = Some(Stream::Memory(Box::new(copy)));
        Self {
            server: Rc::clone(server),
            stream,
            header: None,
            reused: false,
            is_private: false,
            counted: false,
            over: true,
        }
    }

    /// Whether it reads such an answer, which tells nothing of the server.
    pub fn is_copy(&self) -> bool {
        matches!(self.stream, Some(Stream::Memory(_)))
    }

    /// Keeps it from all but the connection of the client that it works for: what goes over it authenticates it.
    pub fn make_private(&mut self) {
        self.is_private = true;
    }

    /// Whether it is never given to others.
    pub fn is_private(&self) -> bool {
        self.is_private
    }

    /// The server that it is to.
    pub fn server(&self) -> &Rc<ServerConnections> {
        &self.server
    }

    /// Whether it has carried a request before: only then may a failure mean that it died idle.
    pub fn is_reused(&self) -> bool {
        self.reused
    }

    /// The head of an answer is here.
    pub fn observe(&self, took: Span) {
        self.server.times.response.observe(took);
    }

    /// An answer to a request of this client is a good one.
    pub fn answered(&self, client: u64, took: Span, is_trial: bool, now: Tick) {
        self.server.note_answer(client, took, is_trial, now);
    }

    /// A request of this client has no answer, or a bad one, and the server is to blame.
    pub fn failed(&self, client: u64, cause: &str, is_trial: bool, now: Tick) {
        self.server.note_failure(Some(client), cause, is_trial, now);
    }

    /// The connection itself.
    pub fn stream(&mut self) -> &mut Stream {
        match &mut self.stream {
            Some(stream) => stream,
            None => unreachable!("a lease gives its connection back by value"),
        }
    }

    /// The server has done its part: from now on it does not count as in flight, although its answer is still on the
    /// way to the client. So the task that reads that answer and asks again finds the server free.
    pub fn settle(&mut self) {
        if std::mem::take(&mut self.counted) {
            self.server.load.remove(self.server.worker);
        }
    }

    /// Nothing is broken off any more when the connection ends: its exchange has ended in order, or it carries something
    /// else than exchanges from now on.
    pub fn mark_finished(&mut self) {
        self.over = true;
    }

    /// Gives the connection back after an exchange of which nothing is left on it.
    ///
    /// `is_drained`: the last read was a short one, which showed that nothing else had come. `is_doubtful`: a faulty server
    /// may yet send something that belongs to this exchange, so the connection rests for a moment before it is used again.
    pub fn give_back(mut self, is_drained: bool, is_doubtful: bool, now: Tick) {
        if self.is_private {
            return;
        }
        let Some(mut stream) = self.stream.take() else { return };
        let mut idle = self.server.idle.borrow_mut();
        if stream.is_single_use() || self.server.retired.get() {
            return;
        }
        if idle.len() >= MAX_IDLE && self.header.is_none() || !(is_drained || stream.check_surely_quiet()) {
            return;
        }
        if idle.len() >= MAX_IDLE {
            // One for another client is of no use to this one; the oldest will be missed the least.
            drop(idle.remove(0));
        }
        if is_doubtful && idle.iter().filter(|idle| idle.is_resting(now)).count() >= MAX_RESTING {
            return;
        }
        let rests_until = if is_doubtful { Some(now + REST) } else { None };
        idle.push(Idle { stream, since: now, rests_until, header: self.header.take() });
    }

    /// The same for one that is private: its client's connection keeps it. `None`: it can carry nothing more.
    pub fn keep(mut self, is_drained: bool, is_doubtful: bool, now: Tick) -> Option<PrivateConnection> {
        let mut stream = self.stream.take().filter(|stream| !stream.is_single_use())?;
        if !(is_drained || stream.check_surely_quiet()) {
            return None;
        }
        // It does not rest: whatever comes late is of the client that it belongs to.
        let rests_until = is_doubtful.then_some(now);
        Some(PrivateConnection(Idle { stream, since: now, rests_until, header: self.header.take() }))
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        self.settle();
        if let (Some(stream), false) = (&mut self.stream, self.over) {
            stream.reset();
        }
        if self.server.pace.is_kept_wanted() {
            // A stream of HTTP/2 makes room by its end.
            drop(self.stream.take());
            self.server.pace.wake();
        }
    }
}
