//! Requests of the gateway's own to others: a replay, a webhook, a sink, followed rules, keys of an issuer. Never for the requests of clients.
//!
//! It is hyper's client with rustls: HTTP/1 and HTTP/2, over TLS too, with connections that are kept. Every answer is bounded in
//! time and size; no redirect is followed, since that would send secrets to where nobody named.
//!
//! Callers: `replay`, `dead_letter` for its alerts, and `gateway` for followed rules and keys of issuers.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::response::Parts;
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tower_service::Service;

use sluicegate_tls as tls;
use sluicegate_tls::{Roots, TlsError, UpstreamTls};

/// How long a connect may take, the TLS handshake not included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection may be idle until it is closed.
const IDLE: Duration = Duration::from_secs(10);

/// The protocol that a server is spoken to in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpVersion {
    /// HTTP/2 if TLS's ALPN agrees on it, else HTTP/1.
    Either,
    /// HTTP/1.
    Http1,
    /// HTTP/2, without TLS too.
    Http2,
}

/// Makes a connection.
pub type Connect = Arc<dyn Fn() -> io::Result<TcpStream> + Send + Sync>;

/// Where connections go.
#[derive(Clone)]
pub enum ConnectTarget {
    /// To the host and port that each request names.
    AsNamed,
    /// To the host and port of this, by its scheme, whatever requests name.
    To(Uri),
    /// Each is made so.
    Made(Connect),
}

/// Where requests go, and how.
#[derive(Clone)]
pub struct Destination {
    /// Where connections go.
    pub way: ConnectTarget,
    /// The protocol that is spoken.
    pub speaks: HttpVersion,
    /// How TLS is spoken; `None`: by the authorities of this machine.
    pub tls: Option<Arc<UpstreamTls>>,
}

/// A client with its connections.
#[derive(Clone)]
pub struct HttpClient {
    inner: Client<Directed, Full<Bytes>>,
    max_body: usize,
}

/// A request on its way. It is boxed, since each crate that awaits an async function compiles it anew: hyper's client is large.
pub type Sending<'c> = Pin<Box<dyn Future<Output = Result<ClientResponse, SendError>> + Send + 'c>>;

/// The answer to a request.
#[derive(Debug)]
pub struct ClientResponse {
    /// Its status.
    pub status: StatusCode,
    /// Its fields.
    pub headers: http::HeaderMap,
    /// Its body, as much of it as the client takes and has come.
    pub body: Bytes,
    /// Whether that is all of it.
    pub is_whole: bool,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendError {
    /// No connection could be made: the request was not sent.
    Connect(String),
    /// Not in time.
    Late,
    /// The connection broke, or what came is no answer.
    Broken(String),
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(cause) => write!(f, "cannot connect: {cause}"),
            Self::Late => f.write_str("no answer in time"),
            Self::Broken(cause) => write!(f, "no valid answer: {cause}"),
        }
    }
}

impl std::error::Error for SendError {}

impl HttpClient {
    /// One that takes answers of at most `max_body` bytes.
    ///
    /// # Errors
    /// A [`TlsError`] if TLS cannot be set up.
    pub fn new(destination: &Destination, max_body: usize) -> Result<Self, TlsError> {
        let connector = Directed { way: destination.way.clone(), inner: connector(destination)? };
        let mut builder = Client::builder(TokioExecutor::new());
        builder
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .http2_only(destination.speaks == HttpVersion::Http2);
        Ok(Self { inner: builder.build(connector), max_body })
    }

    /// Sends a request with an absolute URI. `within` is for the answer and its body; an answer whose head came in time is one,
    /// whatever becomes of its body.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn send(&self, request: Request<Full<Bytes>>, within: Duration) -> Sending<'_> {
        Box::pin(self.exchange(request, within))
    }

    async fn exchange(&self, request: Request<Full<Bytes>>, within: Duration) -> Result<ClientResponse, SendError> {
        let (mut head, mut body) = (None, BytesMut::new());
        let asked = tokio::time::timeout(within, self.ask(request, &mut head, &mut body)).await;
        match (head, asked) {
            (Some(head), asked) => {
                let is_whole = matches!(asked, Ok(Ok(true)));
                Ok(ClientResponse { status: head.status, headers: head.headers, body: body.freeze(), is_whole })
            }
            (None, Ok(Err(error))) => Err(error),
            (None, _) => Err(SendError::Late),
        }
    }

    /// Whether all of the body came.
    async fn ask(
        &self,
        request: Request<Full<Bytes>>,
        head: &mut Option<Parts>,
        taken: &mut BytesMut,
    ) -> Result<bool, SendError> {
        let sent = self.inner.request(request).await.map_err(|error| {
            let words = causes(&error);
            if error.is_connect() { SendError::Connect(words) } else { SendError::Broken(words) }
        })?;
        let (parts, mut body) = sent.into_parts();
        *head = Some(parts);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| SendError::Broken(error.to_string()))?;
            let Some(data) = frame.data_ref() else { continue };
            let room = self.max_body - taken.len();
            taken.extend_from_slice(data.get(..room).unwrap_or(data));
            if data.len() > room {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

fn connector(destination: &Destination) -> Result<HttpsConnector<HttpConnector>, TlsError> {
    let (config, name) = match &destination.tls {
        Some(tls) => {
            let mut config = ClientConfig::clone(&tls.config);
            config.alpn_protocols.clear();
            (config, tls.name.clone())
        }
        None => (tls::by_roots(&Roots::system().unwrap_or_else(|_| Roots::none()), None)?, None),
    };
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let builder = HttpsConnectorBuilder::new().with_tls_config(config).https_or_http();
    let builder = match name {
        Some(name) => builder.with_server_name_resolver(FixedServerNameResolver::new(ServerName::to_owned(&name))),
        None => builder,
    };
    Ok(match destination.speaks {
        HttpVersion::Either => builder.enable_http1().enable_http2().wrap_connector(http),
        HttpVersion::Http1 => builder.enable_http1().wrap_connector(http),
        HttpVersion::Http2 => builder.enable_http2().wrap_connector(http),
    })
}

/// Connects to where it is told, whatever the request says.
#[derive(Clone)]
struct Directed {
    way: ConnectTarget,
    inner: HttpsConnector<HttpConnector>,
}

type Connected = <HttpsConnector<HttpConnector> as Service<Uri>>::Response;
type Failed = <HttpsConnector<HttpConnector> as Service<Uri>>::Error;

impl Service<Uri> for Directed {
    type Response = Connected;
    type Error = Failed;
    type Future = Pin<Box<dyn Future<Output = Result<Connected, Failed>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, named: Uri) -> Self::Future {
        match &self.way {
            ConnectTarget::AsNamed => Box::pin(self.inner.call(named)),
            ConnectTarget::To(address) => Box::pin(self.inner.call(address.clone())),
            ConnectTarget::Made(connect) => {
                let stream = connect();
                Box::pin(async move { Ok(MaybeHttpsStream::Http(TokioIo::new(stream?))) })
            }
        }
    }
}
