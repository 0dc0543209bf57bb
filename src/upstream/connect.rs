use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use tokio::io::Interest;
use tokio::net::TcpStream;

use super::{Endpoint, Load};
use crate::time::{Span, Tick};

/// How many idle connections one worker keeps to one server; a further one is closed.
const MAX_IDLE: usize = 512;
/// An idle connection older than this is not used again: below the keep-alive time of most servers.
const MAX_IDLE_AGE: Span = Span::from_secs(50);

/// Why there is no connection.
#[derive(Debug)]
pub enum ConnectError {
    /// The name did not resolve, nobody listens, or the network refused.
    Io(io::Error),
    /// No answer within the upstream's `connect_timeout`.
    Timeout,
}

impl std::fmt::Display for ConnectError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(error) => write!(f, "connect failed: {error}"),
            Self::Timeout => write!(f, "no answer to connect within connect_timeout"),
        }
    }
}

impl std::error::Error for ConnectError {}

struct Idle {
    stream: TcpStream,
    since: Tick,
}

/// One server as one worker sees it: its idle connections and what it has in flight there.
pub struct Server {
    endpoint: Endpoint,
    load: Arc<Load>,
    worker: usize,
    idle: RefCell<Vec<Idle>>,
    retired: Cell<bool>,
}

impl Server {
    /// A server without connections.
    pub fn new(endpoint: Endpoint, load: Arc<Load>, worker: usize) -> Rc<Self> {
        Rc::new(Self { endpoint, load, worker, idle: RefCell::default(), retired: Cell::new(false) })
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
    }

    /// Closes connections that have been idle too long, were closed by the server, or got bytes that nobody asked for.
    pub fn prune(&self, now: Tick) {
        self.idle.borrow_mut().retain(|idle| is_quiet(&idle.stream) && now.since(idle.since) < MAX_IDLE_AGE);
    }

    /// The connection used last, if one is idle, open and silent. It counts as in flight until it is dropped.
    pub fn reuse(self: &Rc<Self>, now: Tick) -> Option<Leased> {
        loop {
            let Idle { stream, since } = self.idle.borrow_mut().pop()?;
            if is_quiet(&stream) && now.since(since) < MAX_IDLE_AGE {
                return Some(Leased::new(Rc::clone(self), stream, true));
            }
        }
    }

    /// A new connection. It counts as in flight until it is dropped. How long it may take is the caller's patience.
    pub async fn connect(self: Rc<Self>) -> Result<Leased, ConnectError> {
        let address = (&*self.endpoint.host, self.endpoint.port);
        let stream = TcpStream::connect(address).await.map_err(ConnectError::Io)?;
        // Without it the kernel may hold the end of a request back for 40 ms.
        stream.set_nodelay(true).map_err(ConnectError::Io)?;
        Ok(Leased::new(self, stream, false))
    }
}

/// Whether nothing has come over an idle connection: neither bytes, which would be taken for the next response, nor its
/// end. Costs no system call: the runtime was told of either when it came, and does nothing here if it was not.
fn is_quiet(stream: &TcpStream) -> bool {
    stream.try_io(Interest::READABLE, || Ok(())).is_err()
}

/// A connection in use. Dropping it closes it, unless it was given back.
pub struct Leased {
    server: Rc<Server>,
    /// `None` once it is given back.
    stream: Option<TcpStream>,
    reused: bool,
    /// Whether it counts as in flight.
    counted: bool,
}

impl Leased {
    fn new(server: Rc<Server>, stream: TcpStream, reused: bool) -> Self {
        server.load.add(server.worker);
        Self { server, stream: Some(stream), reused, counted: true }
    }

    /// Whether it has carried a request before: only then may a failure mean that it died idle.
    pub fn is_reused(&self) -> bool {
        self.reused
    }

    /// The connection itself.
    pub fn stream(&mut self) -> &mut TcpStream {
        match &mut self.stream {
            Some(stream) => stream,
            None => unreachable!("a lease gives its connection back by value"),
        }
    }

    /// The server has done its part: from now on it does not count as in flight, although its answer is still on the
    /// way to the client. So whoever reads that answer and asks again finds the server free.
    pub fn settle(&mut self) {
        if std::mem::take(&mut self.counted) {
            self.server.load.remove(self.server.worker);
        }
    }

    /// Gives the connection back after an exchange of which nothing is left on it.
    ///
    /// `is_drained`: the last read was a short one, which showed that nothing else had come.
    pub fn give_back(mut self, is_drained: bool, now: Tick) {
        let Some(stream) = self.stream.take() else { return };
        let mut idle = self.server.idle.borrow_mut();
        if self.server.retired.get() || idle.len() >= MAX_IDLE {
            return;
        }
        let silent = is_drained
            || is_quiet(&stream)
            || stream.try_read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        if silent {
            idle.push(Idle { stream, since: now });
        }
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        self.settle();
    }
}
