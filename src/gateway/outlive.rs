//! The memory of upstreams that outlives a reload: how their servers stand, the places there, the breaker; and which keys
//! limits meet most often.

use std::collections::HashMap;
use std::sync::Arc;

use crate::admission::KeyExpr;
use crate::balance::{self, Member};
use crate::config::{BreakerSpec, Eject, Health, Upstream};
use crate::proxy::{KeyTally, PlacesPlan, Snapshot, UpstreamPlan};
use crate::time::{Span, Tick};
use crate::upstream::{Bulkhead, Caps, Circuit, ServerPlaces, ServerStates};

/// The memory of one upstream.
pub struct UpstreamState {
    states: Arc<ServerStates>,
    bulkhead: Option<Arc<Bulkhead>>,
    places: HashMap<Arc<str>, Arc<ServerPlaces>>,
    circuit: Option<Arc<Circuit>>,
}

/// The memory of each upstream of a snapshot, by its name.
pub fn memories(snapshot: &Snapshot) -> HashMap<Arc<str>, UpstreamState> {
    let upstreams = snapshot.model.upstreams.iter().zip(&snapshot.upstreams);
    upstreams.map(|(upstream, plan)| (Arc::clone(&upstream.name), UpstreamState::of(plan))).collect()
}

/// The counts of the keys that each limit of a snapshot meets, by its name, and the parts of those keys.
pub fn tallies(snapshot: &Snapshot) -> HashMap<Arc<str>, (KeyExpr, Arc<KeyTally>)> {
    let limits = snapshot.model.limits.iter().zip(&snapshot.limits);
    limits.map(|(rule, plan)| (Arc::clone(&plan.name), (rule.key.clone(), Arc::clone(&plan.keys)))).collect()
}

/// Gives what goes on its new numbers. To be done once a snapshot is published.
pub fn renumber(snapshot: &Snapshot) {
    for (upstream, plan) in snapshot.model.upstreams.iter().zip(&snapshot.upstreams) {
        if let Some(places) = &plan.places {
            places.bulkhead.set_caps(caps(upstream));
        }
        if let (Some(circuit), Some(breaker)) = (&plan.circuit, &upstream.breaker) {
            circuit.set_terms(breaker.terms());
        }
    }
}

impl UpstreamState {
    fn of(plan: &UpstreamPlan) -> Self {
        let servers = plan.servers.iter().map(|(endpoint, _)| Arc::clone(&endpoint.name));
        let places = plan.places.as_ref();
        Self {
            states: Arc::clone(&plan.states),
            bulkhead: places.map(|places| Arc::clone(&places.bulkhead)),
            places: servers.zip(places.into_iter().flat_map(|places| places.servers.iter().cloned())).collect(),
            circuit: plan.circuit.clone(),
        }
    }
}

/// How the servers of an upstream stand: as they did, where it is the same or has some of them.
pub fn states(upstream: &Upstream, members: Vec<Member>, old: Option<&UpstreamState>, now: Tick) -> Arc<ServerStates> {
    let terms = balance::Terms {
        eject: upstream.eject.as_ref().map(Eject::terms),
        slow_start: upstream.slow_start.unwrap_or(Span::ZERO),
        health: upstream.health.as_ref().map(Health::terms),
    };
    match old.map(|old| &old.states) {
        Some(states) if states.is_of(&terms, &members) => Arc::clone(states),
        Some(states) => states.reloaded(terms, members, now),
        None => ServerStates::new(Arc::clone(&upstream.name), terms, members, now),
    }
}

/// The places at an upstream's servers, those that are taken among them; `None`: there are any number.
pub fn places<'n>(
    upstream: &Upstream,
    servers: impl Iterator<Item = &'n Arc<str>>,
    old: Option<&UpstreamState>,
) -> Option<PlacesPlan> {
    let caps = caps(upstream);
    let bulkhead = match old.and_then(|old| old.bulkhead.clone()) {
        // Also without caps: requests may wait there, and have places.
        Some(bulkhead) => bulkhead,
        None if caps.upstream.is_none() && caps.server.is_none() => return None,
        None => Bulkhead::new(caps),
    };
    let place = |name| old.and_then(|old| old.places.get(name).cloned()).unwrap_or_default();
    Some(PlacesPlan { bulkhead, servers: servers.map(place).collect() })
}

/// The breaker of an upstream, in the state that it has.
pub fn circuit(upstream: &Upstream, old: Option<&UpstreamState>) -> Option<Arc<Circuit>> {
    let terms = upstream.breaker.as_ref().map(BreakerSpec::terms)?;
    let old = old.and_then(|old| old.circuit.clone());
    Some(old.unwrap_or_else(|| Circuit::new(Arc::clone(&upstream.name), terms)))
}

fn caps(upstream: &Upstream) -> Caps {
    Caps {
        upstream: upstream.max_in_flight,
        server: upstream.server_max_in_flight,
        pending: upstream.max_pending as usize,
    }
}
