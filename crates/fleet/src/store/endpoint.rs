use std::fmt;
use std::path::PathBuf;

use sluicegate_tls::UpstreamSettings;

/// Where a store is, and as whom it is asked.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreEndpoint {
    /// Where it listens.
    pub address: Address,
    /// How it is spoken to over TLS; `None`: in the clear, as always at a socket of this machine.
    pub tls: Option<UpstreamSettings>,
    /// The user of its access list; `None`: the default one.
    pub username: Option<String>,
    /// The user's password.
    pub password: Option<String>,
    /// The number of the database, 0 in most stores.
    pub database: u32,
}

/// Where a store listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// At a port of a host.
    Tcp {
        /// Its name or address.
        host: String,
        /// Its port.
        port: u16,
    },
    /// At a socket of this machine.
    Unix(PathBuf),
}

impl StoreEndpoint {
    /// A store at this address that wants no password.
    pub fn at(address: Address) -> Self {
        Self { address, tls: None, username: None, password: None, database: 0 }
    }
}

/// Without the password.
impl fmt::Debug for StoreEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("address", &self.address)
            .field("tls", &self.tls)
            .field("username", &self.username)
            .field("password", &self.password.as_ref().map(|_| "…"))
            .field("database", &self.database)
            .finish()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}
