//! The addresses from which admin is used: nothing is to lock an operator out.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

/// Addresses that are kept; the one that asked longest ago goes first.
const MAX_PEERS: usize = 256;

/// Addresses whose requests were let in, the latest last.
#[derive(Debug, Default)]
pub(super) struct AdminPeers(Mutex<VecDeque<IpAddr>>);

impl AdminPeers {
    /// A request of this address was let in.
    pub(super) fn note(&self, address: IpAddr) {
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = peers.iter().position(|own| *own == address);
        if let Some(place) = known.or((peers.len() >= MAX_PEERS).then_some(0)) {
            peers.remove(place);
        }
        peers.push_back(address);
    }

    /// All of them.
    pub(super) fn all(&self) -> Vec<IpAddr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_each_once_and_those_that_asked_last() {
        let peers = AdminPeers::default();
        let address = |number: usize| IpAddr::from(u32::try_from(number).unwrap().to_be_bytes());
        (0..MAX_PEERS).for_each(|number| peers.note(address(number)));
        peers.note(address(0));
        peers.note(address(MAX_PEERS));
        let all = peers.all();
        assert_eq!((all.len(), all[0], all[MAX_PEERS - 2]), (MAX_PEERS, address(2), address(0)));
    }
}
