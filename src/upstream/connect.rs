use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::{Endpoint, Load};
use crate::time::{Span, Tick};

/// How many idle connections one worker keeps to one server; a further one is closed.
const MAX_IDLE: usize = 512;
/// An idle connection older than this is not used again: below the keep-alive time of most servers.
const MAX_IDLE_AGE: Span = Span::from_secs(50);
/// How long a connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Why there is no connection.
#[derive(Debug)]
pub enum ConnectError {
    /// The name did not resolve, nobody listens, or the network refused.
    Io(io::Error),
    /// No answer within 5 s.
    Timeout,
    /// The HTTP layer failed at the start.
    Http(hyper::Error),
}

impl std::fmt::Display for ConnectError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(error) => write!(f, "connect failed: {error}"),
            Self::Timeout => write!(f, "no answer to connect within {} s", CONNECT_TIMEOUT.as_secs()),
            Self::Http(error) => write!(f, "connection failed: {error}"),
        }
    }
}

impl std::error::Error for ConnectError {}

struct Idle<B> {
    sender: SendRequest<B>,
    since: Tick,
}

/// One server as one worker sees it: its idle connections and what it has in flight there.
pub struct Server<B> {
    endpoint: Endpoint,
    load: Arc<Load>,
    worker: usize,
    idle: RefCell<Vec<Idle<B>>>,
    retired: Cell<bool>,
}

impl<B> Server<B>
where
    B: Body<Data = bytes::Bytes> + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
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

    /// Closes connections that have been idle too long or were closed by the server.
    pub fn prune(&self, now: Tick) {
        self.idle.borrow_mut().retain(|idle| !idle.sender.is_closed() && now.since(idle.since) < MAX_IDLE_AGE);
    }

    /// The connection used last, if one is idle and still open. It counts as in flight until it is dropped.
    pub async fn reuse(self: &Rc<Self>, now: Tick) -> Option<Leased<B>> {
        loop {
            let Idle { sender, since } = self.idle.borrow_mut().pop()?;
            if sender.is_closed() || now.since(since) >= MAX_IDLE_AGE {
                continue;
            }
            if !sender.is_ready() {
                // Given back a moment ago, its task may not have run since. It gets one turn; a connection that is
                // busy after that must not make anybody wait.
                tokio::task::yield_now().await;
            }
            if sender.is_ready() {
                return Some(Leased::new(Rc::clone(self), sender, true));
            }
        }
    }

    /// A new connection. It counts as in flight until it is dropped.
    pub async fn connect(self: &Rc<Self>) -> Result<Leased<B>, ConnectError> {
        let address = (&*self.endpoint.host, self.endpoint.port);
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address))
            .await
            .map_err(|_| ConnectError::Timeout)?
            .map_err(ConnectError::Io)?;
        stream.set_nodelay(true).map_err(ConnectError::Io)?;
        let (sender, connection) = http1::Builder::new()
            .max_headers(256)
            .handshake::<_, B>(TokioIo::new(stream))
            .await
            .map_err(ConnectError::Http)?;
        tokio::task::spawn_local(async move {
            // Its end is seen by whoever holds the sender; there is nothing to add here.
            drop(connection.await);
        });
        Ok(Leased::new(Rc::clone(self), sender, false))
    }
}

/// A connection in use. Dropping it closes it, unless it was given back.
pub struct Leased<B> {
    server: Rc<Server<B>>,
    sender: Option<SendRequest<B>>,
    reused: bool,
}

impl<B> Leased<B>
where
    B: Body<Data = bytes::Bytes> + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    fn new(server: Rc<Server<B>>, sender: SendRequest<B>, reused: bool) -> Self {
        server.load.add(server.worker);
        Self { server, sender: Some(sender), reused }
    }

    /// Whether it has carried a request before: only then may a failure mean that it died idle.
    pub fn is_reused(&self) -> bool {
        self.reused
    }

    /// Sends one request. On an error the request comes back if no byte of it was written.
    pub async fn send(
        &mut self,
        request: Request<B>,
    ) -> Result<Response<Incoming>, (hyper::Error, Option<Request<B>>)> {
        let Some(sender) = self.sender.as_mut() else {
            unreachable!("a lease gives its connection back by value");
        };
        sender.try_send_request(request).await.map_err(|mut failed| {
            let request = failed.take_message();
            (failed.into_error(), request)
        })
    }

    /// Gives the connection back after a response that was read to its end.
    pub fn give_back(mut self, now: Tick) {
        let Some(sender) = self.sender.take() else { return };
        let mut idle = self.server.idle.borrow_mut();
        if !self.server.retired.get() && !sender.is_closed() && idle.len() < MAX_IDLE {
            idle.push(Idle { sender, since: now });
        }
    }
}

impl<B> Drop for Leased<B> {
    fn drop(&mut self) {
        self.server.load.remove(self.server.worker);
    }
}
