use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::telemetry::{Counter, Family, Kind, Registration, Registry};

/// What Prometheus expects of a page in its text format.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

static REFUSED_CONNECTIONS: Family = Family {
    name: "sluicegate_admin_connections_refused_total",
    help: "Connections to admin that were closed unread because there were too many.",
    kind: Kind::Counter,
    labels: &[],
};

pub(super) fn refused_connections(registry: &Arc<Registry>) -> Counter {
    registry.counter(&REFUSED_CONNECTIONS, &[])
}

static STREAMS: Family = Family {
    name: "sluicegate_admin_dead_letter_streams",
    help: "Subscribers to dead letters.",
    kind: Kind::Gauge,
    labels: &[],
};

/// How many of all places for streams are taken.
pub(super) fn streams(registry: &Arc<Registry>, places: &Arc<Semaphore>, all: usize) -> Registration {
    let places = Arc::clone(places);
    registry.observe_with(&STREAMS, &[], move || all.saturating_sub(places.available_permits()) as u64)
}
