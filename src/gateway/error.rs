//! Why a model that parsed cannot run here and now.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use crate::config::ListenAddress;
use crate::limiter::PolicyError;
use crate::redact::SecretError;
use crate::tls::TlsError;

/// Why a model that parsed cannot run here and now.
#[derive(Debug)]
pub enum BuildError {
    /// A listening socket.
    Listen {
        /// The address.
        address: SocketAddr,
        /// `[[listener]]` or `[admin]`.
        section: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A listening socket whose port an earlier listener of this gateway holds.
    OwnPort {
        /// The address.
        address: SocketAddr,
        /// The address of the listener that holds it.
        own: SocketAddr,
    },
    /// A Unix socket.
    UnixSocket {
        /// `[[listener]]` or `[admin]`.
        section: &'static str,
        /// The address.
        address: ListenAddress,
        /// Why.
        source: io::Error,
    },
    /// An echo server.
    Echo {
        /// Its name.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// The dead-letter log.
    DeadLetters {
        /// Its directory.
        directory: String,
        /// Why.
        source: io::Error,
    },
    /// The gateway that runs does not let this one take over.
    NotWanted(io::Error),
    /// The file of a log.
    LogFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The key of the marks that stand for secrets.
    RedactSecret(SecretError),
    /// The limits of a route.
    Limits {
        /// The route.
        route: Arc<str>,
        /// Why.
        source: PolicyError,
    },
    /// A listener's TLS.
    ListenerTls {
        /// The listener.
        address: ListenAddress,
        /// Why.
        source: TlsError,
    },
    /// Admin's TLS.
    AdminTls(TlsError),
    /// TLS to an upstream.
    UpstreamTls {
        /// The upstream.
        name: Arc<str>,
        /// Why.
        source: TlsError,
    },
    /// A thread could not be started.
    Thread(io::Error),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen { address, section, source } => {
                write!(f, "{section} {address}: cannot listen: {source}")?;
                match source.kind() {
                    io::ErrorKind::AddrInUse => {
                        write!(f, "; something else holds the port (ss -ltnp shows what), or choose another")
                    }
                    io::ErrorKind::PermissionDenied => {
                        write!(f, "; ports below 1024 need root or CAP_NET_BIND_SERVICE")
                    }
                    io::ErrorKind::AddrNotAvailable => write!(f, "; this machine has no such address"),
                    _ => Ok(()),
                }
            }
            Self::OwnPort { address, own } => write!(
                f,
                "[[listener]] {address}: this gateway itself listens on {own}, and two sockets cannot share the port; \
                 remove {own} in one reload and add {address} in the next, or restart"
            ),
            Self::UnixSocket { section, address, source } => write!(
                f,
                "{section} {address}: cannot listen: {source}; let the gateway's user write its directory, or choose another"
            ),
            Self::Echo { name, source } => write!(f, "echo:{name} cannot be started: {source}"),
            Self::DeadLetters { directory, source } => write!(f, "[dead_letter] {directory}: {source}"),
            Self::NotWanted(source) => {
                write!(f, "the gateway that runs does not hand over: it has ended, or goes on ({source})")
            }
            Self::LogFile { path, source } => write!(
                f,
                "[log] access_file {} cannot be opened: {source}; make its directory, or let the gateway's user write there",
                path.display()
            ),
            Self::RedactSecret(error) => write!(f, "[dead_letter] {error}"),
            Self::Limits { route, source } => write!(f, "route {route:?}: {source}"),
            Self::ListenerTls { address, source } => write!(f, "[[listener]] {address}: {source}"),
            Self::AdminTls(source) => write!(f, "[admin]: {source}"),
            Self::UpstreamTls { name, source } => write!(f, "upstream {name:?}: {source}"),
            Self::Thread(source) => write!(f, "a thread cannot be started: {source}"),
        }
    }
}

impl std::error::Error for BuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Listen { source, .. }
            | Self::UnixSocket { source, .. }
            | Self::Echo { source, .. }
            | Self::DeadLetters { source, .. }
            | Self::LogFile { source, .. }
            | Self::NotWanted(source)
            | Self::Thread(source) => Some(source),
            Self::RedactSecret(error) => Some(error),
            Self::Limits { source, .. } => Some(source),
            Self::AdminTls(source) | Self::ListenerTls { source, .. } | Self::UpstreamTls { source, .. } => {
                Some(source)
            }
            Self::OwnPort { .. } => None,
        }
    }
}
