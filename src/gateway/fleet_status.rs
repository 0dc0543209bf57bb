//! How the fleet stands, for the operator: figures for the metrics, and the answer of `/api/v1/fleet`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

use super::family::{column, family};
use super::live::LiveLimits;
use crate::config::{LimitId, Model};
use crate::fleet::{Bound, Exchanges, Fleet, Least, Mode, NodeStatus, Watch, Within};
use crate::limiter::{Limit, LimitSpec, Outstanding, Sharing};
use crate::telemetry::{Column, FromStart, Group, Histogram, Registration, Registry};
use crate::time::{Clock, Span, Tick};

family!(GATEWAYS, Gauge, "sluicegate_fleet_gateways", "Gateways of the fleet that live, this one included.", []);
family!(
    /// 1 also while the first connection is made.
    SHARED,
    Gauge,
    "sluicegate_fleet_shared",
    "1 while shared limits ask the store, or other gateways are told, 0 while this gateway decides alone.",
    []
);
family!(
    CIRCUIT_OPEN,
    Gauge,
    "sluicegate_fleet_circuit_open",
    "1 while the store, or a part of it, is not asked: after failures, or without a connection.",
    []
);
family!(
    /// A batch or a heartbeat each. An attempt to connect that fails is `failed` too.
    EXCHANGES,
    Counter,
    "sluicegate_fleet_exchanges_total",
    "Exchanges with the store by result: answered, failed or timed-out.",
    ["result"]
);
family!(
    STORE_SECONDS,
    Histogram,
    "sluicegate_fleet_store_seconds",
    "Duration of exchanges with the store, those without an answer too.",
    []
);
family!(
    LEASED,
    Gauge,
    "sluicegate_fleet_leased",
    "Budget of a limit that the store has granted, not spent.",
    ["limit"]
);
family!(
    /// It is small while the store answers, and grows while it does not.
    DEBT,
    Gauge,
    "sluicegate_fleet_debt",
    "Cost that a limit has spent and the store not acknowledged.",
    ["limit"]
);
family!(WAITING, Gauge, "sluicegate_fleet_waiting", "Requests of a limit that wait for the store.", ["limit"]);
family!(
    LOST,
    Counter,
    "sluicegate_fleet_debt_lost_total",
    "Cost that is never reported to the store: too many keys had some while it was away.",
    ["limit"]
);
family!(
    /// `on_failure` decided them.
    UNANSWERED,
    Counter,
    "sluicegate_fleet_unanswered_total",
    "Requests of a limit that this gateway decided alone while the store was asked: its answer was late, or an error.",
    ["limit"]
);

family!(
    /// Room came back before the instant that the store had named. More than 0: gateways return grants late, as when reports to the
    /// store take longer than a quarter of a second.
    REFUSED_EARLY,
    Counter,
    "sluicegate_fleet_refused_early_total",
    "Requests of a limit that were refused although the store would have had room, as far as this gateway was told.",
    ["limit"]
);

family!(
    /// More than `max_keys` new keys a window, or a client that makes more of them than it leaves to others.
    ALONE,
    Counter,
    "sluicegate_fleet_alone_total",
    "Cost of a limit's keys that this gateway counts alone, since they have no place in the store.",
    ["limit"]
);

const FIGURES: [FleetFigure; 7] = [
    (column(&LEASED, None, FromStart::Always), |all| all.granted),
    (column(&DEBT, None, FromStart::Always), |all| all.owed),
    (column(&WAITING, None, FromStart::Always), |all| all.waiting),
    (column(&LOST, None, FromStart::Always), |all| all.lost),
    (column(&UNANSWERED, None, FromStart::Always), |all| all.unanswered),
    (column(&REFUSED_EARLY, None, FromStart::Always), |all| all.refused_early),
    (column(&ALONE, None, FromStart::Always), |all| all.alone),
];

type FleetFigure = (Column, fn(&Outstanding) -> u64);

/// The columns of a row that are read within this time come from one look at all keys.
const READ_ANEW: Span = Span::from_millis(100);

static OF_LIMIT: Group = Group {
    columns: &[FIGURES[0].0, FIGURES[1].0, FIGURES[2].0, FIGURES[3].0, FIGURES[4].0, FIGURES[5].0, FIGURES[6].0],
};

/// Counts how long the exchanges with the store take.
pub(super) fn took(registry: &Arc<Registry>) -> Histogram {
    registry.histogram(&STORE_SECONDS, &[])
}

/// Figures of the fleet.
pub(super) fn register(registry: &Arc<Registry>, fleet: &Fleet) -> Vec<Registration> {
    let figure = |family, labels: &[&str], read: fn(&Watch) -> u64| {
        let watch = fleet.watch();
        registry.observe_with(family, labels, move || read(&watch))
    };
    let exchanges = |result, read: fn(&Exchanges) -> u64| {
        let watch = fleet.watch();
        registry.observe_with(&EXCHANGES, &[result], move || read(&watch.exchanges()))
    };
    let (gateways, shared) = (fleet.watch(), fleet.watch());
    let mut all = register_fleet(
        registry,
        move || gateways.status().gateways.into(),
        move || u64::from(shared.status().mode != Mode::Alone),
    );
    all.extend([
        figure(&CIRCUIT_OPEN, &[], |watch| u64::from(watch.status().is_circuit_open())),
        exchanges("answered", |exchanges| exchanges.answered),
        exchanges("failed", |exchanges| exchanges.failed),
        exchanges("timed-out", |exchanges| exchanges.timed_out),
    ]);
    all
}

/// Figures of any fleet.
pub(super) fn register_fleet(
    registry: &Arc<Registry>,
    gateways: impl Fn() -> u64 + Send + Sync + 'static,
    shared: impl Fn() -> u64 + Send + Sync + 'static,
) -> Vec<Registration> {
    vec![registry.observe_with(&GATEWAYS, &[], gateways), registry.observe_with(&SHARED, &[], shared)]
}

/// Figures of the limits that are shared; a limit and what plans make of it are told as one.
pub(super) fn register_limits(registry: &Arc<Registry>, limits: &LiveLimits, clock: &Clock) -> Vec<Registration> {
    let mut by_name: HashMap<&Arc<str>, Vec<Arc<Limit>>> = HashMap::new();
    let is_leased = |limit: &Limit| limit.spec().sharing.and_then(Sharing::store).is_some();
    for (id, (limit, _)) in limits.iter().filter(|(_, (limit, place))| place.keys.is_some() && is_leased(limit)) {
        by_name.entry(&id.limit).or_default().push(Arc::clone(limit));
    }
    let register = |(name, limits): (&Arc<str>, Vec<Arc<Limit>>)| {
        let (clock, seen) = (clock.clone(), Mutex::new((Tick::ZERO, [0; FIGURES.len()])));
        registry.observe_row(&OF_LIMIT, name, move |column| {
            let (now, mut seen) = (clock.now(), seen.lock().unwrap_or_else(PoisonError::into_inner));
            if now.since(seen.0) >= READ_ANEW {
                *seen = (now, figures(&limits, now));
            }
            seen.1.get(column).copied().unwrap_or_default()
        })
    };
    by_name.into_iter().map(register).collect()
}

fn figures(limits: &[Arc<Limit>], now: Tick) -> [u64; FIGURES.len()] {
    let all: Vec<Outstanding> = limits.iter().map(|limit| limit.outstanding(now)).collect();
    FIGURES.map(|(_, read)| all.iter().map(read).sum())
}

/// The answer of `/api/v1/fleet`.
pub(super) fn report(fleet: &Fleet, model: &Model, limits: &LiveLimits, clock: &Clock) -> Value {
    let now = clock.now();
    let watch = fleet.watch();
    let (status, latency, exchanges) = (watch.status(), watch.latency(), watch.exchanges());
    let of_limit = |(id, spec, _): (LimitId, &LimitSpec, _)| {
        let sharing = spec.sharing.and_then(Sharing::store)?;
        let (limit, _) = limits.get(&id)?;
        let Outstanding { granted, owed, lost, waiting, unanswered, .. } = limit.outstanding(now);
        let bounds = Bound::of(&spec.algorithm, &sharing, status.gateways);
        Some(json!({
            "limit": &*id.limit,
            "plan": id.plan.as_deref(),
            "shared": if sharing.is_strict() { "strict" } else { "lease" },
            "leased": granted,
            "debt": owed,
            "debt_lost": lost,
            "waiting": waiting,
            "unanswered": unanswered,
            "bounds": bounds.iter().map(bound).collect::<Vec<_>>(),
        }))
    };
    let server = status.nodes.iter().find_map(|node| node.server.as_ref());
    let mut nodes: Vec<&NodeStatus> = status.nodes.iter().collect();
    nodes.sort_by_key(|node| node.address.to_string());
    let evicts = |node: &NodeStatus| node.server.as_ref().and_then(|server| server.evicts.clone());
    json!({
        "mode": status.mode.word(),
        "since": format!("{:.3}", clock.wall(status.since).timestamp()),
        "member": status.member,
        "is_newcomer": !status.is_known,
        "gateways": status.gateways,
        "members": status.names,
        "on_failure": status.on_failure.word(),
        "deadline_ms": status.deadline.in_millis(),
        "store": {
            "address": status.store,
            "product": server.map(|server| server.product.word()),
            "version": server.map(|server| &*server.version),
            "evicts": status.nodes.iter().find_map(evicts),
            "circuit": status.circuit_word(),
            "p50_ms": latency.p50.in_millis(),
            "p99_ms": latency.p99.in_millis(),
            "recent_exchanges": latency.exchanges,
            "answered": exchanges.answered,
            "failed": exchanges.failed,
            "timed_out": exchanges.timed_out,
            "last_error": status.lost.as_ref().map(ToString::to_string),
            "nodes": nodes.into_iter().map(node).collect::<Vec<_>>(),
        },
        "limits": model.counted().filter_map(of_limit).collect::<Vec<_>>(),
    })
}

fn node(node: &NodeStatus) -> Value {
    json!({
        "address": node.address.to_string(),
        "slots": node.slots,
        "version": node.server.as_ref().map(|server| &*server.version),
        "circuit": node.circuit_word(),
        "last_error": node.lost.as_ref().map(ToString::to_string),
    })
}

pub(super) fn bound(bound: &Bound) -> Value {
    let window = match bound.within {
        Within::Any(window) | Within::Window(window) => json!(window.in_millis()),
        // A unit of a calendar has no length: the text says it.
        Within::Each(_) | Within::Instant(_) => Value::Null,
    };
    let (least, least_within) = match bound.least {
        Least::Any(least, span) => (json!(least), json!(span.in_millis())),
        Least::Window(least) => (json!(least), window.clone()),
        // As much as the rate says: the text says how much less.
        Least::Rate(_) => (Value::Null, Value::Null),
    };
    json!({
        "most": bound.most,
        "within_ms": window,
        "least": least,
        "least_within_ms": least_within,
        "text": bound.to_string(),
    })
}
