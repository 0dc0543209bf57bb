//! Sockets that listen, and the connections that they accept.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::oneshot;

use super::first_byte::{Spoken, first_byte, in_time};
use super::proxied;
use crate::client::{Client, ClientAccount, Connection, Listening, PeerFacts};
use crate::deadlines::Alarm;
use crate::meters::HandshakeOutcome;
use crate::serve::{h1, h2};
use crate::snapshot::{ConnectionRejection, Listener, Throttle};
use crate::worker::{ConnectionGuard, Open, Worker};
use sluicegate_config::ListenAddress;
use sluicegate_proxy_protocol::Header;
use sluicegate_time::Tick;
use sluicegate_tls::ServerTls;
use sluicegate_transport as transport;
use sluicegate_transport::{HandshakeError, Stream};

/// Length of the kernel's queue of connections that nobody has accepted yet.
const BACKLOG: i32 = 4096;
/// How often a connection that has no place tries to take one from another.
const ROOM_TRIES: usize = 4;
/// How long accepting pauses after an error such as "too many open files".
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Binds one listening socket per worker to `address`, all sharing the port.
///
/// A port that something else holds is an error, although `SO_REUSEPORT` would let us share it with a client that also
/// set the option: so the address is bound once without it first. With port 0 the first socket's port is everybody's.
pub fn bind(address: SocketAddr, workers: usize) -> io::Result<Vec<std::net::TcpListener>> {
    if address.port() != 0 {
        drop(socket(address, false)?);
    }
    let first = socket(address, true)?;
    let bound = first.local_addr()?.as_socket().unwrap_or(address);
    first.listen(BACKLOG)?;
    let mut listeners = vec![first.into()];
    while listeners.len() < workers {
        let next = socket(bound, true)?;
        next.listen(BACKLOG)?;
        listeners.push(next.into());
    }
    Ok(listeners)
}

/// A bound socket that does not listen yet. `SO_REUSEADDR` lets a restart take over a port whose old connections are
/// still in TIME-WAIT; next to a socket that listens, binding fails all the same.
fn socket(address: SocketAddr, share: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_reuse_address(true)?;
    if share {
        socket.set_reuse_port(true)?;
    }
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Accepts until told to stop, then takes what the kernel had queued, so that nobody who got through is reset, and lets
/// its connections finish what they do and close.
///
/// `configured` is the address by which the configuration calls the socket.
pub async fn accept(
    worker: Rc<Worker>,
    configured: ListenAddress,
    listener: std::net::TcpListener,
    mut stop: oneshot::Receiver<()>,
) {
    let listener = match Acceptor::of(listener, &configured) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(target: "sluicegate::proxy::accept::listener", %error, "a listening socket cannot be used");
            return;
        }
    };
    let reports = Throttle::default();
    let listening = Listening::new(configured);
    worker.room.add(&listening);
    let mut known = worker.listener(listening.address());
    loop {
        tokio::select! {
            biased;
            _ = &mut stop => break,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => open(&worker, accepted, &listening, &mut known),
                // The client was gone before it was accepted: that says nothing about us.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    worker.connections.accept_errors.inc();
                    if let Some(more) = reports.due(worker.clock.now()) {
                        tracing::warn!(target: "sluicegate::proxy::accept::listener", %error, more, "accept failed; pausing");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    listener.drain(|accepted| open(&worker, accepted, &listening, &mut known));
    listening.close();
    worker.alarms.ring_all();
}

/// A socket that listens, of either kind.
enum Acceptor {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Acceptor {
    /// The socket of a listener, which is one of its family whatever its type says.
    fn of(socket: std::net::TcpListener, configured: &ListenAddress) -> io::Result<Self> {
        match configured {
            ListenAddress::Tcp(_) => TcpListener::from_std(socket).map(Self::Tcp),
            ListenAddress::Unix(_) => {
                let socket = std::os::unix::net::UnixListener::from(OwnedFd::from(socket));
                UnixListener::from_std(socket).map(Self::Unix)
            }
        }
    }

    async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        match self {
            Self::Tcp(listener) => listener.accept().await,
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                of_unix(stream.into_std()?)
            }
        }
    }

    /// Takes what the kernel has queued.
    fn drain(self, mut open: impl FnMut((TcpStream, SocketAddr))) {
        match self {
            Self::Tcp(listener) => {
                let Ok(listener) = listener.into_std() else { return };
                while let Ok((stream, peer)) = listener.accept() {
                    if stream.set_nonblocking(true).is_ok()
                        && let Ok(stream) = TcpStream::from_std(stream)
                    {
                        open((stream, peer));
                    }
                }
            }
            Self::Unix(listener) => {
                let Ok(listener) = listener.into_std() else { return };
                while let Ok((stream, _)) = listener.accept() {
                    if stream.set_nonblocking(true).is_ok()
                        && let Ok(accepted) = of_unix(stream)
                    {
                        open(accepted);
                    }
                }
            }
        }
    }
}

/// A connection of a Unix socket, carried as one of TCP: reads, writes and the rest are the same calls of the kernel, and what
/// only TCP has is refused by it and not missed. Its other end is this machine.
fn of_unix(stream: UnixStream) -> io::Result<(TcpStream, SocketAddr)> {
    let stream = TcpStream::from_std(std::net::TcpStream::from(OwnedFd::from(stream)))?;
    Ok((stream, SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)))
}

/// `known` is the listener as it was last.
fn open(
    worker: &Rc<Worker>,
    (stream, peer): (TcpStream, SocketAddr),
    listening: &Rc<Listening>,
    known: &mut Option<Arc<Listener>>,
) {
    // One that a reload has removed takes those that the kernel had queued as it did.
    if let Some(plan) = worker.listener(listening.address()) {
        *known = Some(plan);
    }
    let Some(plan) = known.clone() else { return };
    let client = match &plan.proxied_by {
        // A peer that may ask is no client, and stands for all of its own.
        None if listening.is_unix() => None,
        None if plan.decides.as_ref().is_some_and(|rules| rules.allow.contains(peer.ip())) => None,
        None => Some(peer.ip()),
        // Whose it is follows.
        Some(proxies) if proxies.contains(peer.ip()) => None,
        Some(_) => return proxied::turn_away(worker, &stream, peer, listening.name()),
    };
    if client.is_some_and(|client| worker.denies(client)) {
        deny(worker, &stream);
        return;
    }
    let arrival = Arrival { stream, peer, client, plan, listening: Rc::clone(listening) };
    match worker.connection_opened(client, &arrival.plan) {
        Ok(guard) => arrival.open(guard),
        Err(by) if worker.make_room(by, listening) => {
            tokio::task::spawn_local(arrival.wait_for_room(Rc::clone(worker)));
        }
        Err(by) => arrival.turn_away(worker, by),
    }
}

/// The way by which the gateway sends itself requests that it has kept: connections that nobody else can make.
pub struct OwnDoor(Rc<Listening>);

impl OwnDoor {
    /// One that is open.
    pub fn new() -> Self {
        Self(Listening::new(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0).into()))
    }

    /// Serves a connection.
    pub fn serve(&self, worker: &Rc<Worker>, stream: std::net::TcpStream) {
        let usable = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
        let Ok((peer, stream)) = usable.and_then(|stream| Ok((stream.peer_addr()?, stream))) else { return };
        drop(stream.set_nodelay(true));
        let now = worker.clock.now();
        worker.alarms.note(now);
        let (place, account) = worker.own_connection_opened().into_parts();
        let facts = PeerFacts { is_own: true, ..PeerFacts::default() };
        let id = worker.next_connection();
        let connection = Connection::new(id, peer, facts, account, Rc::clone(&self.0), u32::MAX, now);
        tokio::task::spawn_local(h1::serve(Open::new(connection, place), Client::new(Stream::Plain(stream))));
    }

    /// Lets its connections finish what they do and close.
    pub fn close(&self, worker: &Worker) {
        self.0.close();
        worker.alarms.ring_all();
    }
}

impl Default for OwnDoor {
    fn default() -> Self {
        Self::new()
    }
}

fn deny(worker: &Worker, stream: &TcpStream) {
    worker.connections.denied.inc();
    // A reset: nothing was said that it could spoil, and the kernel keeps nothing of a connection that was reset.
    drop(stream.set_zero_linger());
}

/// A connection that has no place yet.
struct Arrival {
    stream: TcpStream,
    peer: SocketAddr,
    /// The client that it is from, if that is known before its PROXY header.
    client: Option<IpAddr>,
    plan: Arc<Listener>,
    listening: Rc<Listening>,
}

impl Arrival {
    /// Takes the place of another one, which was asked to end and does so while this one lets others have their turn.
    async fn wait_for_room(self, worker: Rc<Worker>) {
        let mut full = ConnectionRejection::Worker;
        for _ in 0..ROOM_TRIES {
            tokio::task::yield_now().await;
            match worker.connection_opened(self.client, &self.plan) {
                Ok(guard) => return self.open(guard),
                // It had a request on its way, or somebody was quicker.
                Err(by) if worker.make_room(by, &self.listening) => full = by,
                Err(by) => return self.turn_away(&worker, by),
            }
        }
        self.turn_away(&worker, full);
    }

    fn turn_away(self, worker: &Worker, by: ConnectionRejection) {
        worker.connections.turned_away(by);
        // A client that comes too often learns it at once, and the kernel keeps nothing of it.
        drop(self.stream.set_zero_linger());
    }

    fn open(self, guard: ConnectionGuard) {
        let Self { stream, peer, client, plan, listening } = self;
        // Without it the kernel may hold the end of a response back for 40 ms.
        drop(stream.set_nodelay(true));
        let worker = guard.worker();
        let now = worker.clock.now();
        worker.alarms.note(now);
        if let Some(client) = client {
            worker.report_crowd(client, guard.account(), now);
        }
        if !worker.keep_headroom(&plan, &listening, guard.account(), now) {
            return Self { stream, peer, client, plan, listening }.turn_away(worker, ConnectionRejection::Share);
        }
        let due = now + worker.handshake_timeout();
        let socket = AcceptedConnection { stream, peer, plan, due, listening, guard };
        if client.is_some() || socket.plan.proxied_by.is_none() {
            socket.serve(None);
        } else {
            tokio::task::spawn_local(socket.serve_proxied());
        }
    }
}

/// A connection of which nothing was read yet.
struct AcceptedConnection {
    stream: TcpStream,
    peer: SocketAddr,
    plan: Arc<Listener>,
    /// When a client has to be ready to be served.
    due: Tick,
    listening: Rc<Listening>,
    guard: ConnectionGuard,
}

impl AcceptedConnection {
    /// Reads the PROXY header, then serves the client that it tells of. It is no `async fn`, as [`first_byte`] is none.
    #[allow(clippy::manual_async_fn, reason = "see above")]
    fn serve_proxied(mut self) -> impl Future<Output = ()> {
        async move {
            let worker = Rc::clone(self.guard.worker());
            let Self { stream, peer, due, listening, guard, .. } = &mut self;
            let read = Box::pin(proxied::read_header(&worker, stream, *peer, guard.account(), listening, *due)).await;
            let Some(proxied) = read else { return };
            self.peer = proxied.endpoints.map_or(self.peer, |ends| ends.source);
            let client = self.peer.ip();
            if worker.denies(client) {
                return deny(&worker, &self.stream);
            }
            if !self.guard.set_client(client) {
                drop(self.stream.set_zero_linger());
                return;
            }
            worker.alarms.note(worker.clock.now());
            self.serve(Some(proxied));
        }
    }

    fn serve(self, proxied: Option<Rc<Header>>) {
        let Self { stream, peer, plan, due, listening, guard } = self;
        let worker = guard.worker();
        let was_tls = proxied.as_ref().is_some_and(|proxied| proxied.tls());
        let redirect_to_https = plan.redirect_to_https.filter(|_| !was_tls);
        let asks = plan.decides.clone();
        let facts = PeerFacts { redirect_to_https, asks, proxied, ..PeerFacts::default() };
        // Two tasks and not one that branches: a connection that waits has no room for what the other one needs.
        if let Some(tls) = plan.tls.clone() {
            tokio::task::spawn_local(serve_tls(stream, tls, peer, facts, listening, due, guard));
            return;
        }
        let now = worker.alarms.coarse_now();
        let (id, max_requests) = (worker.next_connection(), worker.max_requests());
        let (place, account) = guard.into_parts();
        let connection = Connection::new(id, peer, facts, account, listening, max_requests, now);
        tokio::task::spawn_local(h1::serve(Open::new(connection, place), Client::new(Stream::Plain(stream))));
    }
}

/// Shakes hands, then serves what ALPN has chosen.
async fn serve_tls(
    stream: TcpStream,
    tls: Arc<ServerTls>,
    peer: SocketAddr,
    facts: PeerFacts,
    listening: Rc<Listening>,
    due: Tick,
    guard: ConnectionGuard,
) {
    let worker = Rc::clone(guard.worker());
    let account = Rc::clone(guard.account());
    let shaken = Box::pin(shake_hands(&worker, stream, tls, peer, &account, &listening, due)).await;
    let Some(accepted) = shaken else { return };
    let transport::Accepted { stream, is_h2, certificate, .. } = accepted;
    let certificate = certificate.map(Rc::new);
    let own_end = if is_h2 { stream.own_end().map(Rc::new) } else { None };
    let facts = PeerFacts { is_tls: true, is_h2, certificate, own_end, redirect_to_https: None, ..facts };
    let now = worker.clock.now();
    worker.alarms.note(now);
    let (id, max_requests) = (worker.next_connection(), worker.max_requests());
    let (place, account) = guard.into_parts();
    let connection = Connection::new(id, peer, facts, account, listening, max_requests, now);
    let open = Open::new(connection, place);
    if is_h2 {
        Box::pin(h2::serve(&worker, stream, Vec::new(), &open.connection)).await;
    } else {
        h1::serve(open, Client::new(stream)).await;
    }
}

/// A handshake, if there is a place for it and it ends in time.
async fn shake_hands(
    worker: &Rc<Worker>,
    stream: TcpStream,
    tls: Arc<ServerTls>,
    peer: SocketAddr,
    account: &Rc<ClientAccount>,
    listening: &Listening,
    due: Tick,
) -> Option<transport::Accepted> {
    let alarm = Rc::<Alarm>::default();
    // Its place is taken with its first byte: a client that says nothing takes none from those who do.
    let spoken = first_byte(worker, &alarm, due, account, listening, &stream).await;
    if spoken == Spoken::Dismissed || spoken == Spoken::NotInTime && listening.is_closing() {
        worker.alarms.cancel(&alarm);
        return None;
    }
    let place = if spoken == Spoken::Yes { Some(worker.enter_handshake(peer.ip(), account, &alarm)) } else { None };
    let ended = match &place {
        None => None,
        Some(None) => {
            worker.alarms.cancel(&alarm);
            worker.connections.handshook(HandshakeOutcome::TooMany);
            drop(stream.set_zero_linger());
            return None;
        }
        Some(Some(_)) => {
            // Of one that is cut off in the middle the kernel keeps nothing.
            drop(stream.set_zero_linger());
            in_time(worker, &alarm, due, None, transport::accept(stream, &tls)).await
        }
    };
    drop(place);
    worker.alarms.cancel(&alarm);
    worker.connections.handshook(match &ended {
        Some(Ok(accepted)) if accepted.resumed => HandshakeOutcome::Resumed,
        Some(Ok(_)) => HandshakeOutcome::Full,
        Some(Err(HandshakeError::PlainHttp(_))) => HandshakeOutcome::PlainHttp,
        Some(Err(HandshakeError::Io(_))) => HandshakeOutcome::ClientGone,
        Some(Err(_)) => HandshakeOutcome::Failed,
        None if alarm.take_dismissal().is_some() => HandshakeOutcome::Displaced,
        None => HandshakeOutcome::Timeout,
    });
    match ended? {
        Ok(accepted) => return Some(accepted),
        Err(HandshakeError::PlainHttp(socket)) => {
            // It fits into the empty buffer of a socket: no need to wait.
            let _ = socket.try_write(transport::NOT_TLS);
            h1::linger_on(worker, peer, socket).await;
        }
        Err(HandshakeError::Refused(error, socket)) => {
            tracing::debug!(target: "sluicegate::proxy::accept::listener", %peer, %error, "a TLS handshake failed");
            // What the client has sent ahead would make the kernel take the alert back.
            h1::linger_on(worker, peer, socket).await;
        }
        Err(error) => {
            tracing::debug!(target: "sluicegate::proxy::accept::listener", %peer, %error, "a TLS handshake failed");
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_listens_on_the_first_ones_port() {
        let listeners = bind("127.0.0.1:0".parse().unwrap(), 3).unwrap();
        let ports: Vec<u16> = listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
        assert_eq!(ports.len(), 3);
        assert!(ports.iter().all(|port| *port == ports[0] && *port != 0));
    }

    #[test]
    fn a_port_that_is_taken_is_an_error_even_if_the_other_shares_it() {
        let others = bind("127.0.0.1:0".parse().unwrap(), 1).unwrap();
        let address = others[0].local_addr().unwrap();
        assert_eq!(bind(address, 2).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
