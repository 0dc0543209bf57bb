//! The rules of a file with tables of their own, which count nothing yet: for whoever asks what a file would do.

use std::sync::Arc;

use super::build::{self, BuildError};
use super::exceptions::Exceptions;
use super::live::{LiveLimits, Place};
use super::terms::Limits;
use crate::admission::Rules;
use crate::balance::{self, Balancer, Gate};
use crate::config::{Model, Upstream};
use crate::limiter::{KeyHasher, Limit, LimitSpec};

/// A file's rules. Limits that are shared in a fleet count here alone, as if this gateway were its only one.
pub struct Offline {
    /// The file.
    pub model: Arc<Model>,
    /// Client, route, key, limits.
    pub rules: Rules,
    balancers: Vec<Balancer>,
}

impl Offline {
    /// The rules of a file. No socket, file or thread is made.
    ///
    /// # Errors
    /// The limits of a route are no policy.
    pub fn new(model: Arc<Model>) -> Result<Self, BuildError> {
        Self::with(model, &KeyHasher::random())
    }

    /// The same, whose keys have the fingerprints of this hasher.
    ///
    /// # Errors
    /// As of [`new`](Self::new).
    pub fn with(model: Arc<Model>, hasher: &KeyHasher) -> Result<Self, BuildError> {
        let live = model.counted().map(|(id, spec, key)| {
            let spec = LimitSpec { sharing: None, ..spec.clone() };
            (id, (Limit::new(spec), Place { key: key.clone(), keys: None }))
        });
        let live: LiveLimits = live.collect();
        let schedules = build::schedules(&model);
        let exceptions = Exceptions::default();
        let limits = Limits::new(&model, &live, &schedules, hasher, &exceptions);
        let rules = model.routes.iter().map(|route| build::route_rules(route, &model, &limits));
        let rules = Rules::new(model.client.rules(), rules.collect::<Result<_, _>>()?, hasher.clone());
        let balancers = model.upstreams.iter().map(|upstream| balancer(upstream)).collect();
        Ok(Self { model, rules, balancers })
    }

    /// The server that gets the requests of this hash, all being well, where that is by the hash.
    pub fn server(&self, upstream: usize, hash: u64) -> Option<String> {
        let server = sticky(self.balancers.get(upstream)?, hash, None)?;
        Some(self.model.upstreams.get(upstream)?.servers.get(server)?.address.to_string())
    }
}

/// The balancer of an upstream.
fn balancer(upstream: &Upstream) -> Balancer {
    let servers = upstream.servers.iter();
    let servers: Vec<_> =
        servers.map(|server| balance::Server { name: server.address.to_string(), weight: server.weight }).collect();
    Balancer::new(upstream.balance, upstream.hash_balance, &servers)
}

/// The server that a hash leads to, when none is loaded; `None` where the choice is not by the hash.
pub(super) fn sticky(balancer: &Balancer, hash: u64, gate: Option<&Gate>) -> Option<usize> {
    let facts = balance::Facts { hash, turn: 0, random: 0, loads: &|_| 0, excluded: &[], gate, draw: hash };
    if balancer.is_fixed() { balancer.choose(&facts) } else { None }
}
