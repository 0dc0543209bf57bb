//! TLS handshakes, both sides.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use rustls::AlertDescription;
use rustls::pki_types::ServerName;
use rustls::server::Acceptor;
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio_rustls::{LazyConfigAcceptor, TlsConnector};

use super::{Socket, Stream};
use sluicegate_tls::{PeerCertificate, Rejection, ServerTls, UpstreamTls};

/// The type of a TLS record that tells of an error (RFC 8446, 5.1).
const ALERT_RECORD: u8 = 21;

/// The name of HTTP/2 in ALPN (RFC 9113, 3.1).
const H2: &[u8] = b"h2";

/// The answer to a client that speaks plain HTTP to a port of TLS.
pub const NOT_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n\
    cache-control: no-store\r\ncontent-length: 70\r\nconnection: close\r\n\r\nThis port speaks HTTPS. The request came as plain HTTP: use https://.\n";

/// A client's connection after its handshake.
#[derive(Debug)]
pub struct Accepted {
    /// The connection.
    pub stream: Stream,
    /// Whether the client chose HTTP/2.
    pub is_h2: bool,
    /// The identity of the client by its certificate, if it has shown one.
    pub certificate: Option<PeerCertificate>,
    /// Whether it went on from an earlier handshake.
    pub resumed: bool,
}

/// Why there was no handshake.
#[derive(Debug)]
pub enum HandshakeError {
    /// The client speaks no TLS but something that begins like a request of plain HTTP: [`NOT_TLS`] can be said on it.
    PlainHttp(TcpStream),
    /// The other side went away, or its socket failed.
    Io(io::Error),
    /// It could not be agreed on.
    Tls(rustls::Error),
    /// The same with a client, which was told why and may not have read it yet.
    Refused(rustls::Error, TcpStream),
    /// The same of a server.
    Server(Rejection),
    /// The server closed the connection.
    ServerGone,
    /// The server speaks something else.
    NotTls,
    /// The server does not speak the protocol that it is configured to.
    Protocol,
    /// The host of the server's address is no name that a certificate could have.
    Name,
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PlainHttp(_) => write!(f, "plain HTTP on a port of TLS"),
            Self::Io(error) => write!(f, "the connection failed in the handshake: {error}"),
            Self::Tls(error) | Self::Refused(error, _) => write!(f, "{error}"),
            Self::Server(rejection) => write!(f, "{rejection}"),
            Self::ServerGone => write!(f, "the server closed the connection"),
            Self::NotTls => write!(f, "the server does not speak TLS on this port"),
            Self::Protocol => write!(f, "the server does not speak HTTP/2 over TLS (ALPN h2)"),
            Self::Name => write!(f, "the server's host is no name that a certificate could have; set server_name"),
        }
    }
}

impl std::error::Error for HandshakeError {}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(tls) => Self::Tls(tls.clone()),
            None => Self::Io(error),
        }
    }
}

/// Shakes hands with a client. How long that may take is the caller's patience. The socket lingers as the system has it
/// once it is given back, whatever it did before.
pub async fn accept(socket: TcpStream, server: &ServerTls) -> Result<Accepted, HandshakeError> {
    let mut hello = LazyConfigAcceptor::new(Acceptor::default(), Socket::new(socket));
    let ended = match (&mut hello).await {
        Ok(start) => {
            let config = server.for_client(&start.client_hello());
            start.into_stream(config).into_fallible().await
        }
        // It gives the socket back, unless it has ended before.
        Err(error) => Err((error, hello.take_io().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?)),
    };
    match ended {
        Ok(tls) => {
            let (socket, session) = tls.get_ref();
            linger_as_usual(socket.tcp());
            let is_h2 = session.alpn_protocol() == Some(H2);
            let certificate =
                session.peer_certificates().and_then(|chain| chain.first()).map(|der| PeerCertificate::of(der));
            let resumed = session.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
            Ok(Accepted { stream: Stream::Tls(Box::new(tls.into())), is_h2, certificate, resumed })
        }
        // Methods are words in capitals; what else is no handshake is nobody that could read an answer.
        Err((_, socket)) if socket.first_other_byte().is_some_and(|byte| byte.is_ascii_uppercase()) => {
            linger_as_usual(socket.tcp());
            Err(HandshakeError::PlainHttp(socket.into_tcp()))
        }
        Err((error, socket)) => Err(match error.into() {
            HandshakeError::Tls(error) => {
                linger_as_usual(socket.tcp());
                HandshakeError::Refused(error, socket.into_tcp())
            }
            other => other,
        }),
    }
}

fn linger_as_usual(socket: &TcpStream) {
    // If that fails the connection ends by a reset, some time.
    let _ = SockRef::from(socket).set_linger(None);
}

/// Shakes hands with a server that is called `host` in the configuration. `h2`: HTTP/2 or nothing.
pub async fn connect(socket: TcpStream, tls: &UpstreamTls, host: &str, h2: bool) -> Result<Stream, HandshakeError> {
    let name = match (&tls.name, host.parse::<IpAddr>()) {
        (Some(name), _) => name.clone(),
        (None, Ok(address)) => ServerName::IpAddress(address.into()),
        (None, Err(_)) => ServerName::try_from(host.to_owned()).map_err(|_| HandshakeError::Name)?,
    };
    let connector = TlsConnector::from(Arc::clone(&tls.config));
    let stream = match connector.connect(name, Socket::new(socket)).into_fallible().await {
        Ok(stream) => stream,
        Err((_, socket)) if socket.first_other_byte().is_some_and(|byte| byte != ALERT_RECORD) => {
            return Err(HandshakeError::NotTls);
        }
        Err((error, _)) => {
            return Err(match error.into() {
                HandshakeError::Tls(rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol)) if h2 => {
                    HandshakeError::Protocol
                }
                HandshakeError::Tls(error) => HandshakeError::Server(Rejection(error)),
                HandshakeError::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => HandshakeError::ServerGone,
                other => other,
            });
        }
    };
    if h2 && stream.get_ref().1.alpn_protocol() != Some(H2) {
        return Err(HandshakeError::Protocol);
    }
    Ok(Stream::Tls(Box::new(stream.into())))
}
