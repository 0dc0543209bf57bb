//! The operator's door: health, metrics, the configuration in force and reload, over HTTP/1 on an address of its own.
//!
//! It decides nothing and holds no state of the gateway: it acts through [`Commands`], which the gateway gives to it,
//! and reads the metrics' registry. A caller says who it is by a token or a certificate, or is alone on its socket (see `access.rs`);
//! a web page in an operator's browser can do nothing to it (see `guard.rs`). It runs on a thread and runtime of its own, so that
//! nothing here, however slow, holds up traffic. Its caller is the gateway.
//!
//! Everything is bounded: connections, how long a head, a request and a connection may take, commands at once, bodies, streams.

mod access;
mod api;
mod audit;
mod connections;
mod dead_letters;
mod endpoint;
mod endpoints;
mod events;
mod guard;
mod key_change;
mod metrics;
mod openapi;
mod paths;
mod peers;
mod pieces;
mod problem;
mod role;
mod rules;
mod server_change;
mod socket;

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{sleep, timeout};

use crate::config::Admin;
use crate::dead_letter::Archive;
use crate::proxy::{FlightFilter, SeenFlight};
use crate::replay::ReplayQuery;
use crate::telemetry::Registry;
use crate::time::Clock;
use crate::tls::{PeerCertificate, ServerTls};
use crate::transport::{self, Accepted, HandshakeError, TlsStream};
use access::{Access, Peer};
use api::Api;
use connections::{ConnectionTable, Seat};
use socket::AdminStream;
pub use socket::Socket;

/// The door: it knows the callers, and whether they come over TLS.
#[derive(Debug)]
pub struct AdminAccess {
    access: Access,
    tls: Option<Arc<ServerTls>>,
}

impl AdminAccess {
    /// That of a section.
    pub fn new(section: &Admin, tls: Option<Arc<ServerTls>>) -> Arc<Self> {
        Arc::new(Self { access: Access::new(section), tls })
    }

    /// Whether it lets in the same callers, in the same way.
    pub fn is_like(&self, other: &Self) -> bool {
        let is_same_tls = match (&self.tls, &other.tls) {
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            (None, None) => true,
            _ => false,
        };
        is_same_tls && self.access == other.access
    }

    /// One that lets nobody in.
    pub fn closed() -> Arc<Self> {
        Arc::new(Self { access: Access::nobody(), tls: None })
    }

    fn access(&self) -> &Access {
        &self.access
    }
}

pub use self::rules::Rules;
pub use endpoints::NotReplayed;
pub use key_change::{KeyChange, Unchanged};
pub use server_change::{OverloadChange, ServerChange, ServerUnchanged};

/// The requests of admin to the gateway.
pub trait Commands: Send + Sync + 'static {
    /// Whether it takes traffic. Must not block: it is called on admin's own thread.
    fn ready(&self) -> bool;

    /// The door as it is now. Must not block: it is called on admin's own thread.
    fn door(&self) -> Arc<AdminAccess>;

    /// The configuration in force and how its last reload went. May block.
    fn config(&self) -> serde_json::Value;

    /// How the fleet stands. May block.
    fn fleet(&self) -> serde_json::Value;

    /// How the servers of upstreams stand. May block.
    fn upstreams(&self) -> serde_json::Value;

    /// Takes a server out of service, or back, and gives it a weight; how its upstream stands then, or why nothing has changed.
    /// May block.
    fn set_server(
        &self,
        upstream: &str,
        server: &str,
        change: ServerChange,
    ) -> Result<serde_json::Value, ServerUnchanged>;

    /// How `[overload]` stands, after this change if there is one; `None`: the file has no such section. May block.
    fn overload(&self, change: Option<OverloadChange>) -> Option<serde_json::Value>;

    /// The level of the log. May block.
    fn log_level(&self) -> serde_json::Value;

    /// Sets it; or what is wrong with it. May block.
    fn set_log_level(&self, level: &str) -> Result<serde_json::Value, String>;

    /// How the limits stand. May block.
    fn limits(&self) -> serde_json::Value;

    /// The keys that a limit admits and refuses most often; or that there is no such limit. May block.
    fn top_keys(&self, limit: &str) -> Result<serde_json::Value, String>;

    /// How a key of a limit stands, by its value, its mark or its print; or why there is none. Changes nothing. May block.
    fn key(&self, limit: &str, value: &str) -> Result<serde_json::Value, Unchanged>;

    /// Changes a key of a limit, by its value, its mark or its print, in the name of the caller `by`: what was found and what holds from now on. May block.
    fn change_key(
        &self,
        limit: &str,
        value: &str,
        change: KeyChange<'_>,
        by: &str,
    ) -> Result<serde_json::Value, Unchanged>;

    /// The keys that have exceptions. May block.
    fn exceptions(&self) -> serde_json::Value;

    /// At most `max` keys that are blocked now, from a cursor on, and the next cursor. `peers` use this interface. May block.
    fn blocks(&self, peers: &[IpAddr], from: u64, max: usize) -> serde_json::Value;

    /// Explains a request that `asked` describes: what would become of it, in JSON, or what is wrong with the question. Changes nothing. May block.
    fn explain(&self, asked: &[u8]) -> Result<serde_json::Value, String>;

    /// The requests in flight that `filter` names, the oldest first, and the workers that have not answered. May block.
    fn requests(&self, filter: &FlightFilter) -> (Vec<SeenFlight>, Vec<usize>);

    /// Cancels a request, by its worker and its number there; whether there is one, or `None`: the worker does not answer. May
    /// block.
    fn cancel_request(&self, worker: usize, number: u64) -> Option<bool>;

    /// The dead-letter log, if there is one. May block.
    fn dead_letters(&self) -> Option<Archive>;

    /// Begins a replay of dead letters, goes on with one, or says what one would do: its name, or null, and its plan. May block.
    fn replay(&self, asked: &ReplayQuery) -> Result<serde_json::Value, NotReplayed>;

    /// The replays of the log. May block.
    fn replays(&self) -> Result<serde_json::Value, NotReplayed>;

    /// Stops a replay that runs here; false: none of this name does.
    fn stop_replay(&self, name: &str) -> bool;

    /// The rules, to be read and changed; `None`: the gateway has ended.
    fn rules(&self) -> Option<Box<dyn Rules>>;

    /// Reloads the configuration: the plan that was carried out, or the report of why nothing changed. May block.
    fn reload(&self) -> Result<String, String>;

    /// Lets another process take over: its number, or why this one goes on. May block.
    fn upgrade(&self) -> Result<u32, String>;
}

/// How much of everything there may be.
#[derive(Clone, Copy, Debug)]
struct AdminLimits {
    /// Connections at once. For a further one another is closed over which no whole request is being answered, though its
    /// client may not have read the answer yet; if there is none, it is closed unread, and counted.
    connections: usize,
    /// To read a request's head, from the end of the response before: an idle connection is closed after it, too.
    head: Duration,
    /// To answer a request once its head is read. A command that takes longer goes on, but its client gets a 503.
    request: Duration,
    /// After this a connection gets no further request; what is not answered and read by its client within as long as a
    /// request may take is cut off. A stream goes on as long as its client reads.
    connection: Duration,
    /// For the last responses when the server is told to end.
    drain: Duration,
    /// Bytes of a body that an endpoint takes; with more the request gets a 413.
    body: usize,
    /// The same of a body that is ignored.
    ignored: usize,
    /// Streams at once; the next one gets a 503.
    streams: usize,
    /// After so long without an event a stream tells that it lives. Less than a request may take: by this it is known whether
    /// its client reads.
    heartbeat: Duration,
}

const LIMITS: AdminLimits = AdminLimits {
    connections: 64,
    head: Duration::from_secs(5),
    request: Duration::from_secs(30),
    connection: Duration::from_secs(60),
    drain: Duration::from_secs(2),
    body: 1024 * 1024,
    ignored: 64 * 1024,
    streams: 16,
    heartbeat: Duration::from_secs(15),
};

/// How long accepting pauses after it failed: the reason (no file descriptors) does not go away by asking again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves admin on a bound socket until `shutdown` is true or its sender gone; then finishes the requests that are
/// under way, for at most two seconds. To be run on a runtime with its I/O and time enabled.
pub async fn serve(
    socket: Socket,
    registry: Arc<Registry>,
    commands: Arc<dyn Commands>,
    clock: Clock,
    shutdown: watch::Receiver<bool>,
) {
    serve_within(LIMITS, socket, registry, commands, clock, shutdown).await;
}

async fn serve_within(
    limits: AdminLimits,
    socket: Socket,
    registry: Arc<Registry>,
    commands: Arc<dyn Commands>,
    clock: Clock,
    shutdown: watch::Receiver<bool>,
) {
    let refused = metrics::refused_connections(&registry);
    let is_loopback = socket.is_loopback();
    let api = Arc::new(Api::new(limits, is_loopback, registry, Arc::clone(&commands), clock, shutdown.clone()));
    let listener = match socket.listen() {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "admin cannot listen"),
    };
    let mut connections = JoinSet::new();
    let mut seats = ConnectionTable::default();
    let mut told = pin!(told(shutdown.clone()));
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut told => break,
            Some(ended) = connections.join_next_with_id() => {
                leave(&mut seats, ended);
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                if connections.len() >= limits.connections {
                    if !seats.reclaim() {
                        refused.inc();
                        continue;
                    }
                    // The one that was chosen ends at once, if no other did before.
                    if let Some(ended) = connections.join_next_with_id().await {
                        leave(&mut seats, ended);
                    }
                }
                let seat = seats.open();
                let visit =
                    Visit { limits, api: Arc::clone(&api), seat: Arc::clone(&seat), shutdown: shutdown.clone() };
                let served = visit.welcome(stream, peer, commands.door());
                seats.take(peer, seat, connections.spawn(served));
            }
            Err(error) => {
                tracing::warn!(%error, "admin cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    // What is not done by then is dropped with the set.
    let _ = timeout(limits.drain, async { while connections.join_next().await.is_some() {} }).await;
}

fn leave(seats: &mut ConnectionTable, ended: Result<(Id, ()), JoinError>) {
    seats.leave(match ended {
        Ok((id, ())) => id,
        Err(error) => error.id(),
    });
}

/// One connection.
struct Visit {
    limits: AdminLimits,
    api: Arc<Api>,
    seat: Arc<Seat>,
    shutdown: watch::Receiver<bool>,
}

impl Visit {
    /// Shakes hands, where the door has TLS, and serves.
    async fn welcome(self, stream: AdminStream, address: Option<IpAddr>, door: Arc<AdminAccess>) {
        match (stream, &door.tls) {
            (AdminStream::Unix(stream), _) => self.attend(stream, Peer { address, certificate: None }).await,
            (AdminStream::Tcp(stream), None) => self.attend(stream, Peer { address, certificate: None }).await,
            (AdminStream::Tcp(stream), Some(tls)) => {
                // How a handshake fails is its client's affair.
                let shaken = timeout(self.limits.head, transport::accept(stream, tls)).await;
                let Some((stream, certificate)) = shaken.ok().and_then(over_tls) else { return };
                self.attend(stream, Peer { address, certificate }).await;
            }
        }
    }

    /// Serves.
    async fn attend(self, stream: impl AsyncRead + AsyncWrite + Unpin, peer: Peer) {
        let Self { limits, api, seat, shutdown } = self;
        let peer = Arc::new(peer);
        let service = service_fn(|request| {
            let (api, seat, peer) = (Arc::clone(&api), Arc::clone(&seat), Arc::clone(&peer));
            async move { Ok::<_, Infallible>(api.answer(request, &peer, &seat).await) }
        });
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(limits.head);
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        // How a connection fails is its client's affair.
        tokio::select! {
            _ = connection.as_mut() => return,
            () = told(shutdown) => {}
            () = sleep(limits.connection) => {}
        }
        connection.as_mut().graceful_shutdown();
        let mut taking = None;
        while timeout(limits.request, connection.as_mut()).await.is_err() {
            let before = std::mem::replace(&mut taking, seat.taking());
            if taking.is_none() || taking == before {
                return;
            }
        }
    }
}

/// A connection whose handshake has gone well, and the certificate of its client.
fn over_tls(shaken: Result<Accepted, HandshakeError>) -> Option<(Box<TlsStream>, Option<PeerCertificate>)> {
    let Accepted { stream, certificate, .. } = shaken.ok()?;
    match stream {
        transport::Stream::Tls(stream) => Some((stream, certificate)),
        _ => None,
    }
}

/// Completes when the server is to end.
async fn told(mut shutdown: watch::Receiver<bool>) {
    let _ = shutdown.wait_for(|end| *end).await;
}

#[cfg(test)]
mod tests;
