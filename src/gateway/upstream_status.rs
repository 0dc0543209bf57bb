//! How the servers of upstreams stand, for metrics and for `GET /api/v1/upstreams`.

use std::sync::Arc;

use serde_json::{Value, json};

use super::family::family;
use crate::balance::{Roster, ServerView};
use crate::proxy::{Snapshot, Upstream};
use crate::telemetry::{Registration, Registry};
use crate::time::{Clock, Tick};
use crate::upstream::{Load, ServerStates};

family!(
    /// Of a server that a reload has removed the series stays until the process ends.
    IN_SERVICE,
    Gauge,
    "sluicegate_upstream_server_up",
    "Whether a server gets requests (up or slow-start): 1 or 0.",
    ["upstream", "server"]
);
family!(
    SERVER_IN_FLIGHT,
    Gauge,
    "sluicegate_upstream_server_requests_in_flight",
    "Requests at a server that it has not answered yet.",
    ["upstream", "server"]
);
family!(
    ANSWERS,
    Counter,
    "sluicegate_upstream_server_requests_total",
    "Requests to a server by result: answered, or failed (no connection, no answer, an invalid one, or a status of eject.on).",
    ["upstream", "server", "result"]
);
family!(
    /// Servers that the operator has taken out are not among them.
    OUT,
    Gauge,
    "sluicegate_upstream_servers_out",
    "Servers of an upstream that are down or ejected.",
    ["upstream"]
);
family!(
    PANIC,
    Gauge,
    "sluicegate_upstream_panic",
    "Whether all servers of an upstream are out, and get requests as if none were: 1 or 0.",
    ["upstream"]
);

family!(
    IN_FLIGHT,
    Gauge,
    "sluicegate_upstream_requests_in_flight",
    "Requests that hold a place at the servers of an upstream with max_in_flight or server_max_in_flight.",
    ["upstream"]
);
family!(
    MAX_IN_FLIGHT,
    Gauge,
    "sluicegate_upstream_max_in_flight",
    "Places at the servers of an upstream with max_in_flight: as written, or as found last with \"auto\".",
    ["upstream"]
);
family!(
    PENDING,
    Gauge,
    "sluicegate_upstream_requests_pending",
    "Requests that wait for a place at the servers of an upstream with max_in_flight or server_max_in_flight.",
    ["upstream"]
);
family!(
    BREAKER,
    Gauge,
    "sluicegate_upstream_breaker_state",
    "State of the breaker of an upstream that has one: 0 closed, 1 open, 2 half-open.",
    ["upstream"]
);

/// The figures of all upstreams of a snapshot.
pub(super) fn register(registry: &Arc<Registry>, snapshot: &Snapshot, clock: &Clock) -> Vec<Registration> {
    let mut registered = Vec::new();
    for upstream in &snapshot.upstreams {
        let name = &*upstream.spec.name;
        let states = Arc::clone(&upstream.states);
        registered.push(registry.observe_with(&PANIC, &[name], move || states.with_roster(Roster::is_panic).into()));
        let (states, own_clock) = (Arc::clone(&upstream.states), clock.clone());
        registered.push(registry.observe_with(&OUT, &[name], move || servers_out(&states, own_clock.now())));
        if let Some(places) = &upstream.places {
            let (one, other) = (Arc::clone(&places.bulkhead), Arc::clone(&places.bulkhead));
            registered.push(registry.observe_with(&IN_FLIGHT, &[name], move || one.counts().0));
            registered.push(registry.observe_with(&PENDING, &[name], move || other.counts().1 as u64));
        }
        if upstream.spec.max_in_flight.is_some() {
            let own = Arc::clone(upstream);
            registered.push(registry.observe_with(&MAX_IN_FLIGHT, &[name], move || most_in_flight(&own).unwrap_or(0)));
        }
        if let Some(circuit) = upstream.circuit.clone() {
            let clock = clock.clone();
            registered.push(registry.observe_with(&BREAKER, &[name], move || circuit.state(clock.now()) as u64));
        }
        for (place, (endpoint, load)) in upstream.servers.iter().enumerate() {
            let labels = [name, &*endpoint.name];
            let (states, clock) = (Arc::clone(&upstream.states), clock.clone());
            let is_up = move || u64::from(is_in_service(&states, place, clock.now()));
            registered.push(registry.observe_with(&IN_SERVICE, &labels, is_up));
            let own = Arc::clone(load);
            registered.push(registry.observe_with(&SERVER_IN_FLIGHT, &labels, move || own.total()));
            for (result, read) in RESULTS {
                let own = Arc::clone(load);
                let labels = [name, &*endpoint.name, result];
                registered.push(registry.observe_with(&ANSWERS, &labels, move || read(&own)));
            }
        }
    }
    registered
}

/// Places at all servers: as the file says, or as found last.
fn most_in_flight(upstream: &Upstream) -> Option<u64> {
    let found = || upstream.places.as_ref().and_then(|places| places.bulkhead.found());
    upstream.spec.max_in_flight.and_then(|most| most.fixed().or_else(found))
}

type ResultReader = fn(&Load) -> u64;

/// The results of requests, and where each is read.
const RESULTS: [(&str, ResultReader); 2] =
    [("answered", |load| load.answers().answered), ("failed", |load| load.answers().failed)];

fn is_in_service(states: &ServerStates, place: usize, now: Tick) -> bool {
    states.with_roster(|roster| roster.servers(now).nth(place).is_some_and(|server| !server.state.is_out()))
}

fn servers_out(states: &ServerStates, now: Tick) -> u64 {
    let is_broken = |server: &ServerView<'_>| server.state.is_out() && !server.state.is_by_operator();
    states.with_roster(|roster| roster.servers(now).filter(is_broken).count() as u64)
}

/// The answer of `/api/v1/upstreams`: of all of them, or of this one.
pub(super) fn report(snapshot: &Snapshot, only: Option<&str>, clock: &Clock) -> Value {
    let now = clock.now();
    let asked = snapshot.upstreams.iter().filter(|upstream| only.is_none_or(|only| only == &*upstream.spec.name));
    let upstreams = asked.map(|upstream| {
        let (servers, is_panic) = upstream.states.with_roster(|roster| {
            let servers = roster.servers(now).zip(&upstream.weights).zip(&upstream.servers);
            let servers: Vec<_> =
                servers.map(|((view, weight), (_, load))| server(&view, *weight, load, (now, clock))).collect();
            (servers, roster.is_panic())
        });
        let (in_flight, pending) = upstream.places.as_ref().map(|places| places.bulkhead.counts()).unzip();
        json!({
            "upstream": &*upstream.spec.name,
            "balance": upstream.spec.balance.word(),
            "panic": is_panic,
            "breaker": upstream.circuit.as_ref().map(|circuit| circuit.state(now).word()),
            "in_flight": in_flight,
            "max_in_flight": most_in_flight(upstream),
            "pending": pending,
            "servers": servers,
        })
    });
    json!({ "upstreams": upstreams.collect::<Vec<_>>() })
}

fn server(view: &ServerView<'_>, weight: u32, load: &Load, (now, clock): (Tick, &Clock)) -> Value {
    let answers = load.answers();
    json!({
        "server": view.name,
        "state": view.state.word(),
        "reason": view.reason,
        "since": format!("{:.3}", clock.wall(view.since).timestamp()),
        "since_ms": now.since(view.since).in_millis(),
        "service": view.service.word(),
        "weight": weight,
        "backup": view.is_backup,
        "share_percent": view.share,
        "out_for_ms": view.out_until.map(|until| until.since(now).in_millis()),
        "in_flight": load.total(),
        "answered": answers.answered,
        "failed": answers.failed,
        "latency_ms": answers.latency.in_millis(),
    })
}
