//! How a fleet without a store stands, for the operator: figures for the metrics, and the answer of `/api/v1/fleet`.

use std::sync::Arc;

use serde_json::{Value, json};

use super::family::family;
use super::fleet_status;
use super::live::LiveLimits;
use crate::config::{LimitId, Model};
use crate::fleet::{Bound, DropReason, PeerFleet, PeerRow, PeerTraffic, PeerWatch};
use crate::limiter::{LimitSpec, Sharing};
use crate::telemetry::{Histogram, Registration, Registry};
use crate::time::{Clock, Span};

family!(
    /// Only without a store.
    DATAGRAMS,
    Counter,
    "sluicegate_fleet_datagrams_total",
    "Datagrams between gateways without a store: sent, or received and taken in.",
    ["direction"]
);
family!(
    /// Only without a store. Without the headers of UDP and IP.
    BYTES,
    Counter,
    "sluicegate_fleet_bytes_total",
    "Bytes of datagrams between gateways without a store: sent, or received and taken in.",
    ["direction"]
);
family!(
    /// Only without a store. `forged` is a gateway with another secret, or an attack; some are `stranger` while gateways find each
    /// other.
    DROPPED,
    Counter,
    "sluicegate_fleet_dropped_total",
    "Datagrams that were dropped with no other effect, by reason.",
    ["reason"]
);
family!(
    /// Only without a store. The way back is in it.
    LAG,
    Histogram,
    "sluicegate_fleet_lag_seconds",
    "Time from when a cost was admitted, at most, until another gateway had said that it knows it.",
    []
);
family!(
    /// Only without a store. More than 0: more than 100,000 keys were spent at once, or the machine had no time.
    UNTOLD,
    Counter,
    "sluicegate_fleet_untold_total",
    "Cost that was admitted here and that not all other gateways hear of.",
    []
);

/// Counts how late counts are known.
pub(super) fn lag(registry: &Arc<Registry>) -> Histogram {
    registry.histogram(&LAG, &[])
}

/// Figures of the fleet.
pub(super) fn register(registry: &Arc<Registry>, fleet: &PeerFleet) -> Vec<Registration> {
    let figure = |family, labels: &[&str], read: fn(&PeerTraffic) -> u64| {
        let watch = fleet.watch();
        registry.observe_with(family, labels, move || read(&watch.traffic()))
    };
    let watch = || fleet.watch();
    let (gateways, shared) = (watch(), watch());
    let mut all = fleet_status::register_fleet(
        registry,
        move || gateways.status().gateways().into(),
        move || u64::from(is_shared(&shared)),
    );
    all.extend([
        figure(&DATAGRAMS, &["sent"], |traffic| traffic.sent),
        figure(&DATAGRAMS, &["received"], |traffic| traffic.received),
        figure(&BYTES, &["sent"], |traffic| traffic.sent_bytes),
        figure(&BYTES, &["received"], |traffic| traffic.received_bytes),
        figure(&UNTOLD, &[], |traffic| traffic.untold),
    ]);
    all.extend(DropReason::ALL.map(|reason| {
        let watch = watch();
        registry.observe_with(&DROPPED, &[reason.word()], move || watch.traffic().dropped[reason as usize])
    }));
    all
}

/// Whether another gateway is told.
fn is_shared(watch: &PeerWatch) -> bool {
    let status = watch.status();
    status.deaf.is_none() && status.gateways() > 1
}

/// The answer of `/api/v1/fleet`.
pub(super) fn report(fleet: &PeerFleet, model: &Model, limits: &LiveLimits, clock: &Clock) -> Value {
    let watch = fleet.watch();
    let (status, traffic) = (watch.status(), watch.traffic());
    let of_limit = |(id, spec, _): (LimitId, &LimitSpec, _)| {
        limits.get(&id).filter(|_| spec.sharing == Some(Sharing::Peers))?;
        let bounds = Bound::told(&spec.algorithm, status.gateways(), status.longest_lag);
        Some(json!({
            "limit": &*id.limit,
            "plan": id.plan.as_deref(),
            "shared": "peers",
            "bounds": bounds.iter().map(fleet_status::bound).collect::<Vec<_>>(),
        }))
    };
    let millis = |span: Span| span.in_millis();
    let since = |tick| format!("{:.3}", clock.wall(tick).timestamp());
    let row = |peer: &PeerRow| {
        json!({
            "node": peer.node,
            "address": peer.address.to_string(),
            "state": if peer.is_alive { "alive" } else { "dead" },
            "since": since(peer.since),
        })
    };
    let dropped = DropReason::ALL.map(|reason| (reason.word().to_owned(), json!(traffic.dropped[reason as usize])));
    json!({
        "mode": if is_shared(&watch) { "shared" } else { "alone" },
        "since": since(status.since),
        "member": status.member,
        "gateways": status.gateways(),
        "peers": {
            "listen": status.listen.to_string(),
            "error": status.deaf,
            "topology": model.fleet.as_ref().map(|fleet| fleet.topology.word()),
            "transport": model.fleet.as_ref().map(|fleet| fleet.transport.word()),
            "gateways": status.peers.iter().map(row).collect::<Vec<_>>(),
            "lag_p50_ms": millis(status.lag.p50),
            "lag_p99_ms": millis(status.lag.p99),
            "lag_max_ms": millis(status.longest_lag),
            "keys": status.keys,
            "sent": { "datagrams": traffic.sent, "bytes": traffic.sent_bytes },
            "received": { "datagrams": traffic.received, "bytes": traffic.received_bytes },
            "dropped": dropped.into_iter().collect::<serde_json::Map<_, _>>(),
            "untold": traffic.untold,
            "evicted": traffic.evicted,
        },
        "limits": model.counted().filter_map(of_limit).collect::<Vec<_>>(),
    })
}
