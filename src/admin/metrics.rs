use std::sync::Arc;

use crate::telemetry::{Counter, Family, Kind, Registry};

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
