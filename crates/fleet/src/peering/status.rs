//! How a gateway sees its fleet without a store, for its operator.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::node::PeerTraffic;
use crate::status::{Latency, RecentSpans};
use sluicegate_time::{Span, Tick};

/// How long a count is usually on its way at most, a resend of one that was lost included.
pub const USUAL_WAY: Span = Span::from_millis(100);
/// The longest lag is that of one or two such times.
const LAGS_SEEN: Span = Span::from_secs(30);

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
    /// How long the last counts took from when they were spent, at most, until the peer had said that it knows them.
    pub lag: Latency,
    /// The longest of the last half minute or more, and at least the usual one: an interval and [`USUAL_WAY`].
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
    /// The longest lag since an instant, and in the time before it.
    longest: (Tick, Span, Span),
}

impl PeerBoard {
    pub(super) fn new(status: PeerStatus) -> Self {
        let longest = (status.since, Span::ZERO, Span::ZERO);
        Self(Mutex::new(PeerNotes { status, traffic: PeerTraffic::default(), lags: RecentSpans::default(), longest }))
    }

    /// Changes the status.
    pub(super) fn update(&self, change: impl FnOnce(&mut PeerStatus)) {
        change(&mut self.lock().status);
    }

    pub(super) fn note(&self, traffic: PeerTraffic, keys: usize, lags: &[Span], now: Tick) {
        let mut notes = self.lock();
        (notes.traffic, notes.status.keys) = (traffic, keys);
        if now.since(notes.longest.0) >= LAGS_SEEN {
            notes.longest = (now, Span::ZERO, notes.longest.1);
        }
        for lag in lags {
            notes.lags.push(*lag);
            notes.longest.1 = notes.longest.1.max(*lag);
        }
    }

    pub(super) fn status(&self) -> PeerStatus {
        let (mut status, lags, (_, now, before)) = {
            let notes = self.lock();
            (notes.status.clone(), notes.lags.clone(), notes.longest)
        };
        status.longest_lag = now.max(before).max(status.longest_lag);
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
