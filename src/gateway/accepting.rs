//! The bounds of connections and of their bytes, across reloads: counts go on under new numbers.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::bandwidths::LiveBandwidths;
use super::build::BuildError;
use crate::admission::Networks;
use crate::config::{Client, Listener, Model};
use crate::limiter::{Algorithm, Bound, Carry, Concurrency, Limit, LimitSpec, Mode, OnFull, Policy, TimerWheel};
use crate::proxy::{AcceptPlan, BandwidthPlan, ClientBounds, ConnectionRejection, Places};
use crate::time::Span;

/// Clients whose connections are counted at once.
const MAX_CLIENTS: u64 = 1_000_000;

/// The counts of connections.
#[derive(Clone, Default)]
pub struct Counts {
    /// Those that a client has open, and its new ones.
    clients: Vec<(ConnectionRejection, Arc<Limit>, LimitSpec)>,
    /// Those of each listener that bounds them.
    listeners: HashMap<SocketAddr, Arc<AtomicU64>>,
    /// Their bytes.
    bytes: LiveBandwidths,
}

impl Counts {
    /// The counts for a model. Those that exist already go on.
    pub(super) fn renew(&self, model: &Model) -> Self {
        let clients = specs(&model.client).into_iter().map(|(by, spec)| {
            let mut known = self.clients.iter().filter(|(own, ..)| *own == by).map(|(_, limit, _)| limit);
            let kept = known.find(|limit| spec.algorithm.carries(&limit.spec().algorithm) != Carry::Nothing);
            (by, kept.map_or_else(|| Limit::new(spec.clone()), Arc::clone), spec)
        });
        let clients = clients.collect();
        let bounded = model.listeners.iter().filter(|listener| listener.max_connections.is_some());
        let listeners = bounded
            .map(|listener| (listener.address, self.listeners.get(&listener.address).cloned().unwrap_or_default()));
        Self { clients, listeners: listeners.collect(), bytes: self.bytes.renew(model) }
    }

    /// Lets the new numbers hold.
    pub(super) fn reconfigure(&self) {
        for (_, limit, spec) in &self.clients {
            limit.reconfigure(spec.clone());
        }
        self.bytes.reconfigure();
    }

    /// The plan by which connections are accepted.
    pub(super) fn plan(&self, model: &Model) -> Result<AcceptPlan, BuildError> {
        let limits: Vec<_> = self.clients.iter().map(|(_, limit, _)| Arc::clone(limit)).collect();
        let policy = Policy::new(limits).map_err(|source| BuildError::Limits { route: "[client]".into(), source })?;
        let reasons: Vec<_> = self.clients.iter().map(|(by, ..)| *by).collect();
        let allow = &model.client.allow;
        Ok(AcceptPlan {
            allow: (!allow.is_empty()).then(|| Networks::new(allow.iter().copied())),
            clients: (!reasons.is_empty()).then_some(ClientBounds { policy, reasons }),
        })
    }

    /// The counters of bytes.
    pub(super) fn bandwidths(&self, model: &Model) -> Vec<Arc<BandwidthPlan>> {
        self.bytes.plans(model)
    }

    /// The counters of bytes, by their names and directions.
    pub(super) fn live_bandwidths(&self) -> impl Iterator<Item = (&Arc<str>, &'static str, &Arc<Limit>)> {
        self.bytes.live()
    }

    /// The places of a listener, if it bounds them.
    pub(super) fn places(&self, listener: &Listener) -> Option<Arc<Places>> {
        Some(Places::new(Arc::clone(self.listeners.get(&listener.address)?), listener.max_connections?))
    }
}

fn specs(client: &Client) -> Vec<(ConnectionRejection, LimitSpec)> {
    let open = client.max_connections.and_then(|most| Concurrency::new(most).ok()).map(Algorithm::Concurrency);
    let new = client.connection_rate.and_then(|rate| TimerWheel::new(&[rate], None, Bound::Sliding).ok());
    let spec = |name: &str, algorithm| LimitSpec {
        name: name.into(),
        algorithm,
        mode: Mode::Enforce,
        max_wait: Span::ZERO,
        max_queue: None,
        max_keys: MAX_CLIENTS,
        // Whoever can come from so many networks is not stopped by forgetting the others.
        on_full: OnFull::EvictOldest,
        penalty: None,
        sharing: None,
    };
    let open = open.map(|algorithm| (ConnectionRejection::Client, spec("max_connections", algorithm)));
    let new = new.map(|wheel| (ConnectionRejection::ClientRate, spec("connection_rate", Algorithm::TimerWheel(wheel))));
    open.into_iter().chain(new).collect()
}
