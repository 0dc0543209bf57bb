use std::fmt;
use std::path::PathBuf;

use sluicegate_tls::UpstreamSettings;

/// Where a server of a store is, and the user by which it is asked.
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

/// How servers make up a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deployment {
    /// One server, the one of the endpoint.
    Single,
    /// One server at a time, the primary that Sentinels watch.
    Sentinel {
        /// Where some of them listen.
        sentinels: Vec<Address>,
        /// Their name for it.
        name: String,
    },
    /// The masters of a cluster, each with some of the keys.
    Cluster {
        /// Where some nodes listen.
        seeds: Vec<Address>,
    },
}

/// Where a store listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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

impl Deployment {
    /// Where the store is, in words; `only` is the only server's address.
    pub(crate) fn place(&self, only: &Address) -> String {
        let list = |all: &[Address]| all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        match self {
            Self::Single => only.to_string(),
            Self::Sentinel { sentinels, name } => format!("{name} of the Sentinels {}", list(sentinels)),
            Self::Cluster { seeds } => format!("the cluster of {}", list(seeds)),
        }
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
