//! Sockets that listen, and the connections that they accept.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot, watch};

use super::h1;
use super::throttle::Throttle;
use super::worker::Worker;

/// Length of the kernel's queue of connections that nobody has accepted yet.
const BACKLOG: i32 = 4096;
/// How long accepting pauses after an error such as "too many open files".
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What is known of a client connection.
pub struct Connection {
    /// The other end.
    pub peer: SocketAddr,
    aborted: Cell<bool>,
    abort: Notify,
    linger: Cell<bool>,
    closing: Cell<bool>,
    exchanges: Cell<u64>,
    running: Cell<u64>,
}

impl Connection {
    /// A connection from `peer`.
    pub fn new(peer: SocketAddr) -> Rc<Self> {
        Rc::new(Self {
            peer,
            aborted: Cell::new(false),
            abort: Notify::new(),
            linger: Cell::new(false),
            closing: Cell::new(false),
            exchanges: Cell::new(0),
            running: Cell::new(0),
        })
    }

    /// Counts an exchange that begins.
    pub fn begin(&self) {
        self.exchanges.set(self.exchanges.get() + 1);
        self.running.set(self.running.get() + 1);
    }

    /// Counts an exchange that ends.
    pub fn end(&self) {
        self.running.set(self.running.get().saturating_sub(1));
    }

    /// How many exchanges began; `None` while one is running.
    pub fn exchanges_if_idle(&self) -> Option<u64> {
        (self.running.get() == 0).then(|| self.exchanges.get())
    }

    /// From now on each answer says that the connection closes.
    pub fn close_after_answer(&self) {
        self.closing.set(true);
    }

    /// Whether answers say that the connection closes.
    pub fn is_closing(&self) -> bool {
        self.closing.get()
    }

    /// Cuts the connection, whatever is half sent.
    pub fn abort(&self) {
        self.aborted.set(true);
        self.abort.notify_one();
    }

    /// Whether it was cut.
    pub fn is_aborted(&self) -> bool {
        self.aborted.get()
    }

    /// Completes when the connection is to be cut.
    pub async fn wait_abort(&self) {
        while !self.aborted.get() {
            self.abort.notified().await;
        }
    }

    /// Asks for a lingering close: bytes of a request were left unread, and closing at once would make the kernel
    /// send a reset that destroys the answer on its way.
    pub fn linger(&self) {
        self.linger.set(true);
    }

    /// Whether a lingering close was asked for.
    pub fn lingers(&self) -> bool {
        self.linger.get()
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
    let (_alive, closing) = watch::channel(());
    loop {
        tokio::select! {
            biased;
            _ = &mut stop => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => open(&worker, stream, peer, closing.clone()),
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
            open(&worker, stream, peer, closing.clone());
        }
    }
}

fn open(worker: &Rc<Worker>, stream: TcpStream, peer: SocketAddr, closing: watch::Receiver<()>) {
    let Some(guard) = worker.connection_opened() else { return };
    // Without it the kernel may hold the end of a response back for 40 ms.
    drop(stream.set_nodelay(true));
    let worker = Rc::clone(worker);
    tokio::task::spawn_local(async move {
        h1::serve(worker, stream, peer, closing).await;
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
