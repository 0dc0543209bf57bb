//! Asks a server whether it works, over a connection of its own.

use std::fmt;
use std::future::poll_fn;
use std::io;

use super::connect::{ConnectError, open_stream};
use super::{Endpoint, Link};
use sluicegate_http1::{Body, ChunkPart, Fault, HeadEnd, HeadLimits, ResponseHead, Side};
use sluicegate_transport::{Protocol, Stream, open_channel};

/// The most that is read of an answer's head, and of an answer of gRPC.
const MAX_HEAD: usize = 16 * 1024;
const LIMITS: HeadLimits = HeadLimits { max_bytes: MAX_HEAD, max_fields: 100 };

/// A message of gRPC that is empty: the whole server is meant, not one of its services.
const EMPTY_MESSAGE: &[u8] = &[0; 5];
/// The message that says `SERVING` (grpc.health.v1, `HealthCheckResponse`), with its head.
const SERVING: &[u8] = &[0, 0, 0, 0, 2, 8, 1];

/// Why a server did not say that it works.
#[derive(Debug)]
pub enum ProbeError {
    /// It could not be connected to.
    Connect(ConnectError),
    /// The connection broke.
    Io(io::Error),
    /// It closed the connection before the end of its answer.
    Closed,
    /// Its answer is not valid.
    Invalid(Fault),
    /// It answers so, by gRPC.
    NotServing(String),
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "{error}"),
            Self::Io(error) => write!(f, "connection failed: {error}"),
            Self::Closed => write!(f, "connection closed before the answer"),
            Self::Invalid(fault) => write!(f, "invalid answer ({}): {fault}", fault.word()),
            Self::NotServing(status) => write!(f, "not serving: {status}"),
        }
    }
}

/// Connects, with the TLS handshake if there is one.
pub async fn probe_tcp(endpoint: &Endpoint, link: &Link) -> Result<(), ProbeError> {
    open_stream(endpoint, link, None).await.map(drop).map_err(ProbeError::Connect)
}

/// The status of the answer to a GET of `path`.
pub async fn probe_http(endpoint: &Endpoint, link: &Link, host: &str, path: &str) -> Result<u16, ProbeError> {
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: {host}\r\nuser-agent: sluicegate-health\r\naccept: */*\r\nconnection: close\r\n\r\n"
    );
    let mut exchange = Exchange::open(endpoint, link).await?;
    exchange.send(request.as_bytes()).await?;
    exchange.read_head().await
}

/// Asks the health service of gRPC. The server has to speak HTTP/2.
pub async fn probe_grpc(endpoint: &Endpoint, link: &Link, host: &str) -> Result<(), ProbeError> {
    let head = format!(
        "POST /grpc.health.v1.Health/Check HTTP/1.1\r\nhost: {host}\r\nuser-agent: sluicegate-health\r\n\
         content-type: application/grpc\r\nte: trailers\r\ncontent-length: {}\r\n\r\n",
        EMPTY_MESSAGE.len()
    );
    let mut exchange = Exchange::open(endpoint, link).await?;
    exchange.send(&[head.as_bytes(), EMPTY_MESSAGE].concat()).await?;
    let status = exchange.read_head().await?;
    if status != 200 {
        return Err(ProbeError::NotServing(format!("status {status}")));
    }
    let (message, trailers) = exchange.read_body().await?;
    // An answer without a message has its status in the head.
    let status = grpc_status(&trailers).or_else(|| grpc_status(&exchange.head));
    match status.as_deref() {
        Some("0") if message == SERVING => Ok(()),
        Some("0") => Err(ProbeError::NotServing("the service says that it does not serve".to_owned())),
        Some(code) => Err(ProbeError::NotServing(format!("grpc-status {code}"))),
        None => Err(ProbeError::NotServing("no grpc-status".to_owned())),
    }
}

/// The value of `grpc-status` among field lines.
fn grpc_status(lines: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(lines);
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    let mut status = fields.filter(|(name, _)| name.eq_ignore_ascii_case("grpc-status"));
    status.next().map(|(_, value)| value.trim().to_owned())
}

/// One question and its answer.
struct Exchange {
    stream: Stream,
    /// Bytes that have come and were not looked at yet.
    come: Vec<u8>,
    /// Of the answer.
    head: Vec<u8>,
    response: ResponseHead,
}

impl Exchange {
    async fn open(endpoint: &Endpoint, link: &Link) -> Result<Self, ProbeError> {
        let stream = open_stream(endpoint, link, None).await.map_err(ProbeError::Connect)?;
        let stream = match link.protocol {
            Protocol::Http1 => stream,
            Protocol::Http2 => {
                let channel = open_channel(stream, link.tls.is_some()).await.map_err(ProbeError::Io)?;
                Stream::ToServer(Box::new(channel.open()))
            }
        };
        Ok(Self { stream, come: Vec::new(), head: Vec::new(), response: ResponseHead::default() })
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), ProbeError> {
        let mut sent = 0;
        while let Some(rest) = bytes.get(sent..).filter(|rest| !rest.is_empty()) {
            let written = poll_fn(|cx| self.stream.poll_write(cx, rest, b"")).await.map_err(ProbeError::Io)?;
            if written == 0 {
                return Err(ProbeError::Closed);
            }
            sent += written;
        }
        poll_fn(|cx| self.stream.poll_flush(cx)).await.map_err(ProbeError::Io)
    }

    /// Reads more; 0 at the end.
    async fn read(&mut self) -> Result<usize, ProbeError> {
        let mut room = [0; 4096];
        let size = poll_fn(|cx| self.stream.poll_read(cx, &mut room)).await.map_err(ProbeError::Io)?;
        self.come.extend_from_slice(room.get(..size).unwrap_or_default());
        Ok(size)
    }

    /// The status of the final answer.
    async fn read_head(&mut self) -> Result<u16, ProbeError> {
        let mut end = HeadEnd::default();
        loop {
            let found = end.find(&self.come, Side::Response, &LIMITS).map_err(ProbeError::Invalid)?;
            if let Some(length) = found {
                let rest = self.come.split_off(length);
                self.head = std::mem::replace(&mut self.come, rest);
                self.response.parse(&self.head, &LIMITS, false).map_err(ProbeError::Invalid)?;
                if !self.response.is_interim() {
                    return Ok(self.response.status());
                }
                end.reset();
            } else if self.read().await? == 0 {
                return Err(ProbeError::Closed);
            }
        }
    }

    /// The content of a short body, and its trailer lines.
    async fn read_body(&mut self) -> Result<(Vec<u8>, Vec<u8>), ProbeError> {
        let mut body = Body::new(self.response.framing(), ChunkPart::Content);
        let mut content = Vec::new();
        loop {
            let mut come = std::mem::take(&mut self.come);
            let accepted = body.accept(&mut come).map_err(ProbeError::Invalid)?;
            content.extend_from_slice(come.get(..accepted.kept).unwrap_or_default());
            if body.is_complete() {
                return Ok((content, body.trailer_lines().to_vec()));
            }
            if content.len() > MAX_HEAD {
                return Err(ProbeError::NotServing("its answer is too long".to_owned()));
            }
            if self.read().await? == 0 {
                body.end().map_err(ProbeError::Invalid)?;
            }
        }
    }
}
