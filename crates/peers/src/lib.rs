//! Counts of shared limits that gateways tell each other, without a store.

mod datagram;
mod exchange;
mod ledger;
mod link;
mod own_total;
mod rate;
mod replay_window;

pub use datagram::{Acknowledgement, Datagram, DatagramError, KeyCount};
pub use exchange::Received;
pub use ledger::{BoundHits, LedgerSettings, SpendLedger};
pub use rate::RefillRate;
pub use replay_window::ReplayWindow;

/// A key of a shared limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CountKey {
    /// The number of the limit, the same at all gateways.
    pub limit: u32,
    /// The key's fingerprint under the fleet's secret.
    pub fingerprint: u64,
}

/// The place of a peer in the fleet, as the members' list numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u32);

#[cfg(test)]
mod tests;
