//! A client from an address of its choice, over HTTP/1.1 or HTTP/2, by TCP or TLS, on one connection.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::Runtime;

use crate::mixes::peers::{runtime, soon};
use crate::support::Answer;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Over {
    Http1,
    Http2,
}

pub const BOTH: [Over; 2] = [Over::Http1, Over::Http2];

/// Inside, as the page has it.
pub const INSIDE: &str = "127.0.0.1";
/// Outside.
pub const OUTSIDE: &str = "127.0.0.2";

pub struct Caller {
    runtime: Runtime,
    sender: Sender,
}

enum Sender {
    One(http1::SendRequest<Full<Bytes>>),
    Two(http2::SendRequest<Full<Bytes>>),
}

impl Caller {
    pub fn open(over: Over, from: &str, to: SocketAddr) -> Self {
        let runtime = runtime();
        let sender = runtime.block_on(async { shake(over, connect(from, to).await).await });
        Self { runtime, sender }
    }

    /// Over a connection that begins with these bytes.
    pub fn open_behind(over: Over, header: &[u8], to: SocketAddr) -> Self {
        let runtime = runtime();
        let sender = runtime.block_on(async {
            let mut stream = connect(INSIDE, to).await;
            stream.write_all(header).await.unwrap();
            shake(over, stream).await
        });
        Self { runtime, sender }
    }

    /// Over TLS; the configuration's ALPN has to be that of the protocol.
    pub fn open_tls(over: Over, from: &str, to: SocketAddr, config: Arc<ClientConfig>) -> Self {
        let runtime = runtime();
        let sender = runtime.block_on(async {
            let name = ServerName::try_from("localhost").unwrap();
            let stream = connect(from, to).await;
            shake(over, tokio_rustls::TlsConnector::from(config).connect(name, stream).await.unwrap()).await
        });
        Self { runtime, sender }
    }

    pub fn get(&mut self, path: &str, fields: &[(&str, &str)]) -> Answer {
        self.ask("GET", path, fields, b"")
    }

    pub fn ask(&mut self, method: &str, path: &str, fields: &[(&str, &str)], body: &[u8]) -> Answer {
        self.try_ask(method, path, fields, body).unwrap_or_else(|error| panic!("{method} {path}: {error:?}"))
    }

    /// The host is `test.example`, or that of the fields.
    pub fn try_ask(
        &mut self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Answer, hyper::Error> {
        let body = Full::new(Bytes::copy_from_slice(body));
        let host = fields.iter().find(|(name, _)| *name == "host").map_or("test.example", |(_, value)| value);
        let mut request = Request::builder().method(method);
        for (name, value) in fields.iter().filter(|(name, _)| *name != "host") {
            request = request.header(*name, *value);
        }
        let asked = async {
            let answer = match &mut self.sender {
                Sender::One(sender) => {
                    sender.ready().await?;
                    sender.send_request(request.header("host", host).uri(path).body(body).unwrap()).await?
                }
                Sender::Two(sender) => {
                    sender.ready().await?;
                    sender.send_request(request.uri(format!("http://{host}{path}")).body(body).unwrap()).await?
                }
            };
            let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
            let headers = answer.headers().iter().map(|(name, value)| (name.to_string(), text(value))).collect();
            let status = answer.status().as_u16();
            Ok(Answer { status, headers, body: answer.into_body().collect().await?.to_bytes().to_vec() })
        };
        self.runtime.block_on(soon(asked))
    }

    /// How many of these requests, one after the other, are let in: the others are refused with this status.
    pub fn admitted(&mut self, count: usize, refusal: u16, path: &str, fields: &[(&str, &str)]) -> usize {
        let mut admitted = 0;
        for _ in 0..count {
            match self.get(path, fields).status {
                200 => admitted += 1,
                status => assert_eq!(status, refusal, "{path} {fields:?}"),
            }
        }
        admitted
    }
}

async fn connect(from: &str, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
    let stream = socket.connect(to).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

async fn shake(over: Over, stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Sender {
    let stream = TokioIo::new(stream);
    match over {
        Over::Http1 => {
            let (sender, connection) = http1::handshake(stream).await.unwrap();
            tokio::spawn(async move { drop(connection.await) });
            Sender::One(sender)
        }
        Over::Http2 => {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
            tokio::spawn(async move { drop(connection.await) });
            Sender::Two(sender)
        }
    }
}

/// The limits that refused, by a refusal's own words.
pub fn violated(answer: &Answer) -> Vec<String> {
    let policies = answer.json()["violated-policies"].as_array().unwrap().clone();
    policies.iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

/// The seconds of `Retry-After`.
pub fn retry_after(answer: &Answer) -> u64 {
    answer.header("retry-after").unwrap_or_else(|| panic!("no retry-after: {answer:?}")).parse().unwrap()
}
