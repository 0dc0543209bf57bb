//! Connections to the servers behind the gateway, as one worker sees them.
//!
//! Each worker keeps its own idle connections and its own count of requests in flight; nothing here is shared between
//! threads but the [`Load`] cells, which each worker writes alone and whoever balances may read. The room knows
//! nothing of the configuration: `gateway` hands it plain values. Its caller is `proxy/forward`.

mod connect;
mod echo;
mod line;
mod pace;
mod proxy_header;
mod turn;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::proxy_protocol::Version;
use crate::tls::UpstreamTls;
use crate::transport::Protocol;

pub use connect::{ConnectError, Leased, Server};
pub use echo::EchoServers;
pub use pace::ConnectRate;
pub use proxy_header::ProxyHeader;
pub use turn::{Pace, Turn};

/// Where a server is, and what it is called in logs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// As the configuration spells it: `127.0.0.1:9001`, `echo:a`. Stickiness hangs on this name.
    pub name: Arc<str>,
    /// An IP address or a DNS name, resolved at each connect.
    pub host: Arc<str>,
    /// The TCP port.
    pub port: u16,
}

/// How the servers of an upstream are spoken to.
#[derive(Clone, Debug, Default)]
pub struct Link {
    /// What is spoken.
    pub protocol: Protocol,
    /// Over TLS, if this says how.
    pub tls: Option<Arc<UpstreamTls>>,
    /// Whether each connection begins with a PROXY header, and of which version. Not for HTTP/2, whose connections carry
    /// requests of many clients.
    pub proxy_protocol: Option<Version>,
}

impl PartialEq for Link {
    /// Whether connections made by the one may be used by the other.
    fn eq(&self, other: &Self) -> bool {
        let same_tls = match (&self.tls, &other.tls) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        };
        self.protocol == other.protocol && same_tls && self.proxy_protocol == other.proxy_protocol
    }
}

/// Requests in flight to one server: a cell for each worker, written by that worker only.
#[derive(Debug)]
pub struct Load(Box<[AtomicU64]>);

impl Load {
    /// Cells for `workers` workers, all zero.
    pub fn new(workers: usize) -> Arc<Self> {
        Arc::new(Self((0..workers).map(|_| AtomicU64::new(0)).collect()))
    }

    /// In flight over all workers.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|cell| cell.load(Ordering::Relaxed)).sum()
    }

    /// In flight from one worker.
    pub fn of(&self, worker: usize) -> u64 {
        self.0.get(worker).map_or(0, |cell| cell.load(Ordering::Relaxed))
    }

    fn add(&self, worker: usize) {
        if let Some(cell) = self.0.get(worker) {
            // One writer per cell: a plain load and store is exact and spares the locked instruction.
            cell.store(cell.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
        }
    }

    fn remove(&self, worker: usize) {
        if let Some(cell) = self.0.get(worker) {
            cell.store(cell.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_is_the_sum_of_what_the_workers_hold() {
        let load = Load::new(2);
        load.add(0);
        load.add(0);
        load.add(1);
        load.remove(0);
        assert_eq!((load.of(0), load.of(1), load.total()), (1, 1, 2));
        load.remove(1);
        load.remove(1);
        load.add(7);
        assert_eq!(load.total(), 1);
    }
}
