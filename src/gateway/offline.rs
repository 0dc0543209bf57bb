//! The rules of a file with tables of their own, which count nothing yet: for a command that asks what a file would do.

use std::collections::HashMap;
use std::sync::Arc;

use super::build;
use super::error::BuildError;
use super::exceptions::Tables;
use super::live::{CountingScope, LiveLimits};
use super::terms::ModelTerms;
use crate::admission::{RouteRules, Rules};
use crate::balance::{self, Balancer, Gate};
use crate::config::{Model, RouteSpec, UpstreamSpec};
use crate::limiter::{KeyHasher, Limit, LimitSpec};

/// A file's rules. Limits that are shared in a fleet count here alone, as if this gateway were its only one.
pub struct Offline {
    /// The file.
    pub model: Arc<Model>,
    /// Client, route, key, limits.
    pub rules: Rules<Arc<OfflineRoute>>,
}

/// A route of a file that runs nowhere.
#[derive(Debug)]
pub struct OfflineRoute {
    /// The section of the file that it comes from.
    pub spec: Arc<RouteSpec>,
    /// The part of it that admission goes by.
    pub rules: RouteRules,
    /// Its limits, by their places in [`Model::limits`].
    pub limits: Vec<usize>,
}

impl AsRef<RouteSpec> for OfflineRoute {
    fn as_ref(&self) -> &RouteSpec {
        &self.spec
    }
}

impl AsRef<RouteRules> for OfflineRoute {
    fn as_ref(&self) -> &RouteRules {
        &self.rules
    }
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
            (id, (Limit::new(spec), CountingScope { key: key.clone(), keys: None }))
        });
        let live: LiveLimits = live.collect();
        let schedules = build::schedules(&model);
        let exceptions = Tables::default();
        let limits = ModelTerms::new(&model, &live, &schedules, hasher, &exceptions);
        let places: HashMap<_, _> =
            model.limits.iter().zip(0..).map(|(rule, place)| (&*rule.spec.name, place)).collect();
        let route = |spec: &Arc<RouteSpec>| {
            let limits_of = spec.limits.iter().filter_map(|rule| places.get(&*rule.spec.name).copied());
            let (rules, limits) = (build::route_rules(spec, &limits)?, limits_of.collect());
            Ok(Arc::new(OfflineRoute { spec: Arc::clone(spec), rules, limits }))
        };
        let routes = model.routes.iter().map(route).collect::<Result<_, BuildError>>()?;
        let rules = Rules::new(model.client.rules(), routes, hasher.clone());
        Ok(Self { model, rules })
    }

    /// The server that gets the requests of this hash, all being well, where that is by the hash.
    pub fn server(upstream: &UpstreamSpec, hash: u64) -> Option<String> {
        let server = sticky(&balancer(upstream), hash, None)?;
        Some(upstream.servers.get(server)?.address.to_string())
    }
}

/// The balancer of an upstream.
fn balancer(upstream: &UpstreamSpec) -> Balancer {
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
