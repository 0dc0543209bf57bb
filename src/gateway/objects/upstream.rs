//! The upstreams of a generation. The state of one of the generation before goes on: how its servers stand, the places there,
//! requests in flight, the breaker.

use std::collections::HashMap;
use std::sync::Arc;

use crate::balance::{self, Balancer, Member};
use crate::config::{BreakerSpec, Eject, Health, MaxInFlight, Overload, ServerAddress, ServerSpec, UpstreamSpec};
use crate::gateway::error::BuildError;
use crate::gateway::live_state::LiveState;
use crate::proxy::{PlacesPlan, ResponseSamples, Upstream};
use crate::time::{Span, Tick};
use crate::tls;
use crate::upstream::{Bulkhead, Caps, Circuit, Endpoint, Link, Load, ServerPlaces, ServerStates};

/// An upstream upon that of its name in the generation before, if there was one.
pub(super) fn make(
    spec: &Arc<UpstreamSpec>,
    old: Option<&Arc<Upstream>>,
    overload: Option<&Overload>,
    lasting: &LiveState,
) -> Result<Arc<Upstream>, BuildError> {
    let known = KnownServers::of(old);
    let mut servers = Vec::with_capacity(spec.servers.len());
    let mut shares = Vec::with_capacity(spec.servers.len());
    let mut members = Vec::with_capacity(spec.servers.len());
    let mut weights = Vec::with_capacity(spec.servers.len());
    for ServerSpec { address, weight, state, backup } in &spec.servers {
        let name: Arc<str> = address.to_string().into();
        let (host, port) = match address {
            ServerAddress::Tcp { host, port } => (host.as_str().into(), *port),
            ServerAddress::Echo(echo) => {
                let address =
                    lasting.echo.address(echo).map_err(|source| BuildError::Echo { name: echo.clone(), source })?;
                (address.ip().to_string().into(), address.port())
            }
        };
        let weight = lasting.weights.of(&spec.name, &name, *weight);
        weights.push(weight);
        shares.push(balance::Server { name: name.to_string(), weight });
        members.push(Member { name: Arc::clone(&name), service: *state, is_backup: *backup });
        let load = known.load(&name).unwrap_or_else(|| Load::new(lasting.workers));
        servers.push((Endpoint { name, host, port }, load));
    }
    Ok(Arc::new(Upstream {
        balancer: Balancer::new(spec.balance, spec.hash_balance, &shares),
        link: link(spec, old)?,
        places: places(spec, servers.iter().map(|(endpoint, _)| &endpoint.name), (old, &known)),
        circuit: circuit(spec, old),
        responses: responses(spec, old, overload, lasting.workers),
        weights,
        states: states(spec, members, old, lasting.clock.now()),
        servers,
        spec: Arc::clone(spec),
    }))
}

/// Lets its numbers hold, for requests that it has already, too.
pub(super) fn renumber(upstream: &Upstream) {
    if let Some(places) = &upstream.places {
        places.bulkhead.set_caps(caps(&upstream.spec));
    }
    if let (Some(circuit), Some(breaker)) = (&upstream.circuit, &upstream.spec.breaker) {
        circuit.set_terms(breaker.terms());
    }
}

/// How its servers are spoken to. Connections go on only if the TLS is the very same, so it is built anew only where something in
/// its settings has changed.
fn link(spec: &UpstreamSpec, old: Option<&Arc<Upstream>>) -> Result<Link, BuildError> {
    let tls = match (&spec.tls, old.filter(|old| old.spec.tls == spec.tls).and_then(|old| old.link.tls.as_ref())) {
        (Some(_), Some(built)) => Some(Arc::clone(built)),
        (Some(settings), None) => {
            let failed = |source| BuildError::UpstreamTls { name: Arc::clone(&spec.name), source };
            Some(Arc::new(tls::upstream(settings).map_err(failed)?))
        }
        (None, _) => None,
    };
    Ok(Link { protocol: spec.protocol, tls, proxy_protocol: spec.proxy_protocol })
}

/// The servers of the generation before by their names: the requests in flight there, and the places, if there are any. An
/// upstream may have a thousand servers.
struct KnownServers<'u>(HashMap<&'u str, (&'u Arc<Load>, Option<&'u Arc<ServerPlaces>>)>);

impl<'u> KnownServers<'u> {
    fn of(old: Option<&'u Arc<Upstream>>) -> Self {
        let servers = old.iter().flat_map(|old| {
            let places = |place| old.places.as_ref().and_then(|places| places.servers.get(place));
            let servers = old.servers.iter().enumerate();
            servers.map(move |(place, (endpoint, load))| (&*endpoint.name, (load, places(place))))
        });
        Self(servers.collect())
    }

    fn load(&self, name: &str) -> Option<Arc<Load>> {
        self.0.get(name).map(|(load, _)| Arc::clone(load))
    }

    fn places(&self, name: &str) -> Option<Arc<ServerPlaces>> {
        self.0.get(name).and_then(|(_, places)| places.cloned())
    }
}

/// How the servers of an upstream stand: as they did, where it is the same or has some of them.
fn states(upstream: &UpstreamSpec, members: Vec<Member>, old: Option<&Arc<Upstream>>, now: Tick) -> Arc<ServerStates> {
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
fn places<'n>(
    upstream: &UpstreamSpec,
    servers: impl Iterator<Item = &'n Arc<str>>,
    (old, known): (Option<&Arc<Upstream>>, &KnownServers<'_>),
) -> Option<PlacesPlan> {
    let caps = caps(upstream);
    let bulkhead = match old.and_then(|old| old.places.as_ref()).map(|places| Arc::clone(&places.bulkhead)) {
        // Also without caps: requests may wait there, and have places.
        Some(bulkhead) => bulkhead,
        None if upstream.max_in_flight.is_none() && caps.server.is_none() => return None,
        None => Bulkhead::new(caps),
    };
    Some(PlacesPlan { bulkhead, servers: servers.map(|name| known.places(name).unwrap_or_default()).collect() })
}

/// The breaker of an upstream, in the state that it has.
fn circuit(upstream: &UpstreamSpec, old: Option<&Arc<Upstream>>) -> Option<Arc<Circuit>> {
    let terms = upstream.breaker.as_ref().map(BreakerSpec::terms)?;
    let old = old.and_then(|old| old.circuit.clone());
    Some(old.unwrap_or_else(|| Circuit::new(Arc::clone(&upstream.name), terms)))
}

/// The times of its answers, where `[overload]` goes by them.
fn responses(
    upstream: &UpstreamSpec,
    old: Option<&Arc<Upstream>>,
    overload: Option<&Overload>,
    workers: usize,
) -> Option<Arc<ResponseSamples>> {
    overload?.response_time.iter().find(|own| own.upstream == upstream.name)?;
    let old = old.and_then(|old| old.responses.clone());
    Some(old.unwrap_or_else(|| Arc::new(ResponseSamples::new(workers))))
}

fn caps(upstream: &UpstreamSpec) -> Caps {
    Caps {
        upstream: upstream.max_in_flight.and_then(MaxInFlight::fixed),
        server: upstream.server_max_in_flight,
        pending: upstream.max_pending as usize,
        auto: upstream.max_in_flight.and_then(MaxInFlight::auto),
    }
}
