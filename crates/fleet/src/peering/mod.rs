//! Limits that gateways share without a store: each admits at once, and tells the others what it has admitted.
//!
//! - [`PeerFleet`]: the thread that tells and hears (`runner`).
//! - `node`: what it does, without the network: bytes come and go, and time is an argument.
//! - `membership`: who lives: SWIM by the crate `foca`. `identity`: which life of a gateway it is.
//! - `seal`: what makes a datagram one of a gateway that has the secret.
//! - [`told_rates`]: the limits that can be shared so, in the numbers of `sluicegate_peers`, which has the protocol of counts.
//!
//! A member that lies within the secret is not guarded against: it can say that it has spent what it likes.

mod identity;
mod membership;
mod node;
mod runner;
mod seal;
mod status;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use tokio::sync::watch;

use super::shared::NotShared;
use runner::PeerRunner;
use sluicegate_limiter::{Algorithm, Limit, Rate, Refill};
use sluicegate_peers::RefillRate;
use sluicegate_telemetry::Histogram;
use sluicegate_time::{Clock, Span};
use status::PeerBoard;

#[cfg(test)]
mod tests;

pub use node::PeerTraffic;
pub use seal::DropReason;
pub use status::{PeerRow, PeerStatus, USUAL_WAY};

/// How a gateway takes part in a fleet without a store.
#[derive(Clone, PartialEq, Eq)]
pub struct PeerSettings {
    /// Where it listens, and is reached by the others.
    pub listen: SocketAddr,
    /// Where others may be found. This gateway may be among them.
    pub peers: Vec<PeerAddress>,
    /// The time from one message to the next, while there is something to tell.
    pub interval: Span,
    /// The secrets of the fleet: the one that is used, and one that is only known.
    pub secrets: Vec<[u8; 32]>,
    /// The name of this gateway.
    pub node: Arc<str>,
}

/// Where a gateway may be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerAddress {
    /// At an address.
    Fixed(SocketAddr),
    /// At all addresses that a name stands for, which are asked for again and again.
    Dns {
        /// The name.
        host: String,
        /// The port.
        port: u16,
    },
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(address) => address.fmt(f),
            Self::Dns { host, port } => write!(f, "dns:{host}:{port}"),
        }
    }
}

/// Without the secrets.
impl fmt::Debug for PeerSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerSettings").field("listen", &self.listen).field("peers", &self.peers).finish_non_exhaustive()
    }
}

/// A limit, and the number of each of its rates, the same at all gateways.
#[derive(Debug)]
pub struct PeerBinding {
    limit: Arc<Limit>,
    rates: Vec<(u64, RefillRate)>,
}

impl PeerBinding {
    /// A limit, and the numbers of its [`told_rates`].
    pub fn new(limit: Arc<Limit>, rates: Vec<(u64, RefillRate)>) -> Self {
        Self { limit, rates }
    }
}

/// The rates of an algorithm, if gateways can tell each other what they count of it: token buckets with greedy refill, and gcra.
/// Others would need to know when a cost was counted.
pub fn told_rates(algorithm: &Algorithm) -> Result<Vec<RefillRate>, NotShared> {
    let refuse = || NotShared::Untold { name: algorithm.name() };
    let of = |rate: &Rate, burst: u64| RefillRate::new(rate.limit(), rate.window(), burst).ok_or_else(refuse);
    match algorithm {
        Algorithm::TokenBucket(bucket) if bucket.refill() == Refill::Greedy => {
            bucket.rates().iter().map(|rate| of(rate, bucket.burst().unwrap_or(rate.limit()))).collect()
        }
        Algorithm::Gcra(gcra) => gcra.rates().iter().map(|rate| of(rate, gcra.burst())).collect(),
        _ => Err(refuse()),
    }
}

/// A gateway's part in a fleet without a store: a thread that lives as long as this.
pub struct PeerFleet {
    /// `None` once it ends.
    part: Option<watch::Sender<PeerParticipation>>,
    thread: Option<JoinHandle<()>>,
    board: Arc<PeerBoard>,
    settings: PeerSettings,
}

/// How the gateway takes part. When its sender goes, the gateway leaves the fleet.
type PeerParticipation = (PeerSettings, Vec<Arc<PeerBinding>>);

impl PeerFleet {
    /// Starts the thread. Where it cannot listen it tries again and again, and this gateway decides alone.
    /// `lag` counts how long counts took from when they were spent, at most, until the peer had said that it knows them.
    pub fn start(
        settings: PeerSettings,
        bindings: Vec<Arc<PeerBinding>>,
        clock: Clock,
        lag: Histogram,
    ) -> std::io::Result<Self> {
        let (part, parts) = watch::channel((settings.clone(), bindings));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let runner = PeerRunner::new(&settings, clock, lag);
        let board = Arc::clone(runner.board());
        let run = move || {
            runtime.block_on(runner.run(parts));
            // A name that is still asked for is not waited for.
            runtime.shutdown_background();
        };
        let thread = Builder::new().name("fleet".into()).spawn(run)?;
        Ok(Self { part: Some(part), thread: Some(thread), board, settings })
    }

    /// Whether it goes on with these settings, or another one has to be started in its place.
    pub fn goes_on_with(&self, settings: &PeerSettings) -> bool {
        PeerSettings { peers: settings.peers.clone(), ..self.settings.clone() } == *settings
    }

    /// From now on it takes part so.
    pub fn configure(&self, settings: PeerSettings, bindings: Vec<Arc<PeerBinding>>) {
        if let Some(part) = &self.part {
            part.send_replace((settings, bindings));
        }
    }

    /// For those who ask how it stands.
    pub fn watch(&self) -> PeerWatch {
        PeerWatch(Arc::clone(&self.board))
    }
}

/// Looks at a fleet without a store, as long as one likes.
#[derive(Clone, Debug)]
pub struct PeerWatch(Arc<PeerBoard>);

impl PeerWatch {
    /// How it stands.
    pub fn status(&self) -> PeerStatus {
        self.0.status()
    }

    /// Figures of all that has come and gone since the start.
    pub fn traffic(&self) -> PeerTraffic {
        self.0.traffic()
    }
}

impl Drop for PeerFleet {
    /// Tells what was spent, and that this gateway goes. Takes half a second at most.
    fn drop(&mut self) {
        self.part = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for PeerFleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerFleet").finish_non_exhaustive()
    }
}
