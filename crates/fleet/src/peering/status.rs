//! How a gateway sees its fleet without a store, for its operator.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::node::PeerTraffic;
use crate::status::{Latency, RecentSpans};
use sluicegate_time::{Span, Tick};

/// A gateway's view of its fleet.
#[derive(Clone, Debug)]
pub struct PeerStatus {
    /// The name of this gateway among the members.
    pub member: String,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Why it cannot listen now.
    pub deaf: Option<String>,
    /// The others: those that live, and those that are dead and not forgotten.
    pub peers: Vec<PeerRow>,
    /// When the number of those that live has changed.
    pub since: Tick,
    /// How long the last counts took from when they were first sent until the peer had said that it knows them.
    pub lag: Latency,
    /// The longest of these.
    pub longest_lag: Span,
    /// Keys of which something is known.
    pub keys: usize,
}

/// Another gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerRow {
    /// Its name.
    pub node: String,
    /// Where it is.
    pub address: SocketAddr,
    /// Whether it lives, as far as is known.
    pub is_alive: bool,
    /// Since when.
    pub since: Tick,
}

impl PeerStatus {
    /// Gateways that live, this one included: `N` of the bounds.
    pub fn gateways(&self) -> u32 {
        1 + self.peers.iter().filter(|peer| peer.is_alive).count() as u32
    }
}

/// The notes of the thread, for those who ask.
#[derive(Debug)]
pub(super) struct PeerBoard(Mutex<PeerNotes>);

#[derive(Debug)]
struct PeerNotes {
    status: PeerStatus,
    traffic: PeerTraffic,
    lags: RecentSpans,
}

impl PeerBoard {
    pub(super) fn new(status: PeerStatus) -> Self {
        Self(Mutex::new(PeerNotes { status, traffic: PeerTraffic::default(), lags: RecentSpans::default() }))
    }

    /// Changes the status.
    pub(super) fn update(&self, change: impl FnOnce(&mut PeerStatus)) {
        change(&mut self.lock().status);
    }

    pub(super) fn note(&self, traffic: PeerTraffic, keys: usize, lags: &[Span]) {
        let mut notes = self.lock();
        (notes.traffic, notes.status.keys) = (traffic, keys);
        for lag in lags {
            notes.lags.push(*lag);
        }
    }

    pub(super) fn status(&self) -> PeerStatus {
        let (mut status, lags) = {
            let notes = self.lock();
            (notes.status.clone(), notes.lags.clone())
        };
        status.longest_lag = lags.longest();
        status.lag = lags.latency();
        status
    }

    pub(super) fn traffic(&self) -> PeerTraffic {
        self.lock().traffic
    }

    fn lock(&self) -> MutexGuard<'_, PeerNotes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
