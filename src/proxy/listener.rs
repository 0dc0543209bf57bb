//! Sockets that listen, and the connections that they accept.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use super::alarm::Alarm;
use super::client::Client;
use super::connection::{Connection, Facts, Listening, Open};
use super::connection_meters::Handshook;
use super::proxied;
use super::snapshot::ListenerPlan;
use super::throttle::Throttle;
use super::worker::{ConnectionGuard, Worker};
use super::{h1, h2};
use crate::proxy_protocol::Header;
use crate::time::Tick;
use crate::tls::ServerTls;
use crate::transport::{self, HandshakeError, Stream};

/// Length of the kernel's queue of connections that nobody has accepted yet.
const BACKLOG: i32 = 4096;
/// How long accepting pauses after an error such as "too many open files".
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Binds one listening socket per worker to `address`, all sharing the port.
///
/// A port that something else holds is an error, although `SO_REUSEPORT` would let us share it with whoever also set
/// the option: so the address is bound once without it first. With port 0 the first socket's port is everybody's.
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
    configured: SocketAddr,
    listener: std::net::TcpListener,
    mut stop: oneshot::Receiver<()>,
) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "a listening socket cannot be used");
            return;
        }
    };
    let reports = Throttle::default();
    let listening = Listening::new(configured);
    loop {
        tokio::select! {
            biased;
            _ = &mut stop => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => open(&worker, stream, peer, &listening),
                // The client was gone before it was accepted: that says nothing about us.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    worker.connections.accept_errors.inc();
                    if let Some(more) = reports.due(worker.clock.now()) {
                        tracing::warn!(%error, more, "accept failed; pausing");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    let Ok(listener) = listener.into_std() else { return };
    while let Ok((stream, peer)) = listener.accept() {
        if stream.set_nonblocking(true).is_ok()
            && let Ok(stream) = TcpStream::from_std(stream)
        {
            open(&worker, stream, peer, &listening);
        }
    }
    listening.close();
    worker.alarms.ring_all();
}

fn open(worker: &Rc<Worker>, stream: TcpStream, peer: SocketAddr, listening: &Rc<Listening>) {
    let plan = worker.listener(listening.address());
    let client = match &plan.proxied_by {
        None => Some(peer.ip()),
        // Whose it is follows.
        Some(proxies) if proxies.contains(peer.ip()) => None,
        Some(_) => return proxied::turn_away(worker, &stream, peer, listening.address()),
    };
    if client.is_some_and(|client| worker.denies(client)) {
        deny(worker, &stream);
        return;
    }
    let Some(guard) = worker.connection_opened(client, &plan) else {
        // Whoever comes too often learns it at once, and the kernel keeps nothing of it.
        drop(stream.set_zero_linger());
        return;
    };
    // Without it the kernel may hold the end of a response back for 40 ms.
    drop(stream.set_nodelay(true));
    let now = worker.clock.now();
    worker.alarms.note(now);
    let due = now + worker.handshake_timeout();
    let socket = Accepted { stream, peer, plan, due, listening: Rc::clone(listening), guard };
    if client.is_some() {
        socket.serve(None);
    } else {
        tokio::task::spawn_local(socket.serve_proxied());
    }
}

fn deny(worker: &Worker, stream: &TcpStream) {
    worker.connections.denied.inc();
    // A reset: nothing was said that it could spoil, and the kernel keeps nothing of a connection that was reset.
    drop(stream.set_zero_linger());
}

/// A connection of which nothing was read yet.
struct Accepted {
    stream: TcpStream,
    peer: SocketAddr,
    plan: ListenerPlan,
    /// When a client has to be ready to be served.
    due: Tick,
    listening: Rc<Listening>,
    guard: ConnectionGuard,
}

impl Accepted {
    /// Reads the PROXY header, then serves the client that it tells of.
    async fn serve_proxied(mut self) {
        let worker = Rc::clone(self.guard.worker());
        let Self { stream, peer, due, listening, .. } = &mut self;
        let read = Box::pin(proxied::read_header(&worker, stream, *peer, listening, *due)).await;
        let Some(proxied) = read else { return };
        self.peer = proxied.endpoints.map_or(self.peer, |ends| ends.source);
        let client = self.peer.ip();
        if worker.denies(client) {
            return deny(&worker, &self.stream);
        }
        if !self.guard.is_of(client) {
            drop(self.stream.set_zero_linger());
            return;
        }
        worker.alarms.note(worker.clock.now());
        self.serve(Some(proxied));
    }

    fn serve(self, proxied: Option<Rc<Header>>) {
        let Self { stream, peer, plan, due, listening, guard } = self;
        let worker = guard.worker();
        let was_tls = proxied.as_ref().is_some_and(|proxied| proxied.tls());
        let redirect_to_https = plan.redirect_to_https.filter(|_| !was_tls);
        let facts = Facts { redirect_to_https, proxied, ..Facts::default() };
        // Two tasks and not one that branches: a connection that waits has no room for what the other one needs.
        if let Some(tls) = plan.tls {
            tokio::task::spawn_local(serve_tls(stream, tls, peer, facts, listening, due, guard));
            return;
        }
        let now = worker.alarms.recently();
        let (id, account, max_requests) = (worker.next_connection(), guard.account(), worker.max_requests());
        let connection = Connection::new(id, peer, facts, account, listening, max_requests, now);
        tokio::task::spawn_local(h1::serve(Open::new(connection, guard), Client::new(Stream::Plain(stream))));
    }
}

/// Shakes hands, then serves what ALPN has chosen.
async fn serve_tls(
    stream: TcpStream,
    tls: Arc<ServerTls>,
    peer: SocketAddr,
    facts: Facts,
    listening: Rc<Listening>,
    due: Tick,
    guard: ConnectionGuard,
) {
    let worker = Rc::clone(guard.worker());
    let Some(accepted) = Box::pin(shake_hands(&worker, stream, tls, peer, &listening, due)).await else { return };
    let transport::Accepted { stream, is_h2, certificate, .. } = accepted;
    let certificate = certificate.map(Rc::new);
    let own_end = if is_h2 { stream.own_end().map(Rc::new) } else { None };
    let facts = Facts { is_tls: true, is_h2, certificate, own_end, redirect_to_https: None, ..facts };
    let now = worker.clock.now();
    worker.alarms.note(now);
    let (id, account, max_requests) = (worker.next_connection(), guard.account(), worker.max_requests());
    let connection = Connection::new(id, peer, facts, account, listening, max_requests, now);
    if is_h2 {
        Box::pin(h2::serve(&worker, stream, Vec::new(), &connection)).await;
        worker.alarms.cancel(&connection.alarm);
        worker.forget(connection.id);
        drop(guard);
    } else {
        h1::serve(Open::new(connection, guard), Client::new(stream)).await;
    }
}

/// A handshake, if there is a place for it and it ends in time.
async fn shake_hands(
    worker: &Rc<Worker>,
    stream: TcpStream,
    tls: Arc<ServerTls>,
    peer: SocketAddr,
    listening: &Listening,
    due: Tick,
) -> Option<transport::Accepted> {
    let alarm = Rc::<Alarm>::default();
    // Its place is taken with its first byte: whoever says nothing takes none from those who do. It is looked for in the
    // socket, since a new one may be taken for readable and not be.
    let spoken = in_time(worker, &alarm, due, Some(listening), stream.peek(&mut [0])).await;
    let (place, ended) = match spoken.map(|_| worker.enter_handshake()) {
        None if listening.is_closing() => {
            worker.alarms.cancel(&alarm);
            return None;
        }
        None => (None, None),
        Some(None) => {
            worker.alarms.cancel(&alarm);
            worker.connections.handshook(Handshook::TooMany);
            drop(stream.set_zero_linger());
            return None;
        }
        Some(place) => (place, in_time(worker, &alarm, due, None, transport::accept(stream, &tls)).await),
    };
    drop(place);
    worker.alarms.cancel(&alarm);
    worker.connections.handshook(match &ended {
        Some(Ok(accepted)) if accepted.resumed => Handshook::Resumed,
        Some(Ok(_)) => Handshook::Full,
        Some(Err(HandshakeError::PlainHttp(_))) => Handshook::PlainHttp,
        Some(Err(HandshakeError::Io(_))) => Handshook::ClientGone,
        Some(Err(_)) => Handshook::Failed,
        None => Handshook::Timeout,
    });
    match ended? {
        Ok(accepted) => return Some(accepted),
        Err(HandshakeError::PlainHttp(socket)) => {
            // It fits into the empty buffer of a socket: no need to wait.
            let _ = socket.try_write(transport::NOT_TLS);
            h1::linger_on(worker, peer, socket).await;
        }
        Err(HandshakeError::Refused(error, socket)) => {
            tracing::debug!(%peer, %error, "a TLS handshake failed");
            // What the client has sent ahead would make the kernel take the alert back.
            h1::linger_on(worker, peer, socket).await;
        }
        Err(error) => tracing::debug!(%peer, %error, "a TLS handshake failed"),
    }
    None
}

/// What `work` ends in, if it ends before `due`; and soon, once `listening` closes, where nothing was begun yet.
pub async fn in_time<T>(
    worker: &Worker,
    alarm: &Rc<Alarm>,
    mut due: Tick,
    mut listening: Option<&Listening>,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = pin!(work);
    poll_fn(|cx| {
        alarm.wakes(cx);
        if let Poll::Ready(ended) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(ended));
        }
        let now = worker.alarms.recently();
        if alarm.has_rung() && now >= due {
            return Poll::Ready(None);
        }
        if listening.take_if(|listening| listening.is_closing()).is_some() {
            // Its first byte may be on the way.
            due = due.min(now + h1::LAST_REQUEST);
        }
        worker.alarms.set(alarm, due);
        Poll::Pending
    })
    .await
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
