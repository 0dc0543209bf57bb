//! Sockets that listen, and the connections that they accept.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use super::alarm::Alarm;
use super::h1;
use super::throttle::Throttle;
use super::worker::Worker;
use crate::time::Tick;

/// Length of the kernel's queue of connections that nobody has accepted yet.
const BACKLOG: i32 = 4096;
/// How long accepting pauses after an error such as "too many open files".
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What the connections of one listener on one worker share.
#[derive(Debug, Default)]
pub struct Listening {
    closing: Cell<bool>,
}

/// What is known of a client connection.
pub struct Connection {
    /// The other end.
    pub peer: SocketAddr,
    /// Its address in words, as it is written into forwarding fields.
    pub peer_text: Box<str>,
    /// Rings when something on it may be overdue.
    pub alarm: Rc<Alarm>,
    /// Since when it has waited for a request.
    pub idle_since: Cell<Tick>,
    listening: Rc<Listening>,
}

impl Connection {
    /// A connection from `peer`.
    pub fn new(peer: SocketAddr, listening: Rc<Listening>, now: Tick) -> Rc<Self> {
        let peer_text = peer.ip().to_canonical().to_string().into();
        Rc::new(Self { peer, peer_text, alarm: Rc::default(), idle_since: Cell::new(now), listening })
    }

    /// Whether the listener is gone, so that each answer is the last one of its connection.
    pub fn is_closing(&self) -> bool {
        self.listening.closing.get()
    }
}

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
pub async fn accept(worker: Rc<Worker>, listener: std::net::TcpListener, mut stop: oneshot::Receiver<()>) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "a listening socket cannot be used");
            return;
        }
    };
    let reports = Throttle::default();
    // Nothing is ever sent: connections finish when the sender is gone.
    let listening = Rc::new(Listening::default());
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
    listening.closing.set(true);
    worker.alarms.ring_all();
}

fn open(worker: &Rc<Worker>, stream: TcpStream, peer: SocketAddr, listening: &Rc<Listening>) {
    if worker.denies(peer.ip()) {
        worker.connections.denied.inc();
        // A reset: nothing was said that it could spoil, and the kernel keeps nothing of a connection that was reset.
        drop(stream.set_zero_linger());
        return;
    }
    let Some(guard) = worker.connection_opened() else { return };
    // Without it the kernel may hold the end of a response back for 40 ms.
    drop(stream.set_nodelay(true));
    let worker = Rc::clone(worker);
    let now = worker.clock.now();
    worker.alarms.note(now);
    let connection = Connection::new(peer, Rc::clone(listening), now);
    tokio::task::spawn_local(async move {
        h1::serve(Rc::clone(&worker), stream, Rc::clone(&connection)).await;
        worker.alarms.cancel(&connection.alarm);
        drop(guard);
    });
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
