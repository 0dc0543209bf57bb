//! Admin's own figures.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Semaphore;

use crate::telemetry::{Counter, Family, MetricKind, Registration, Registry};

/// The content type that Prometheus expects of a page in its text format.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A request was being answered over each of the 64 that were open. A request whose body has not come is none.
static REFUSED_CONNECTIONS: Family = Family {
    name: "sluicegate_admin_connections_refused_total",
    help: "Connections to admin that were closed unread because there were too many.",
    kind: MetricKind::Counter,
    labels: &[],
};

pub(super) fn refused_connections(registry: &Arc<Registry>) -> Counter {
    registry.counter(&REFUSED_CONNECTIONS, &[])
}

/// There are at most 16.
static STREAMS: Family = Family {
    name: "sluicegate_admin_dead_letter_streams",
    help: "Subscribers to dead letters.",
    kind: MetricKind::Gauge,
    labels: &[],
};

/// How many of all places for streams are taken.
pub(super) fn streams(registry: &Arc<Registry>, places: &Arc<Semaphore>, all: usize) -> Registration {
    let places = Arc::clone(places);
    registry.observe_with(&STREAMS, &[], move || all.saturating_sub(places.available_permits()) as u64)
}

words! {
    /// Why a request was denied.
    pub(super) enum DenialReason {
        /// It does not say who asks.
        NoToken = "no-token",
        /// Nobody has its token, or its certificate.
        WrongToken = "wrong-token",
        /// Its address has sent too many wrong tokens.
        TooMany = "too-many",
        /// Whoever asks has a lower role.
        Role = "role",
    }
}

static DENIED: Family = Family {
    name: "sluicegate_admin_denied_total",
    help: "Requests to admin that were denied, by the reason: no-token, wrong-token, too-many wrong ones from the address, role.",
    kind: MetricKind::Counter,
    labels: &["reason"],
};

/// Counts what is denied.
pub(super) struct Denied(Mutex<[Counter; DenialReason::ALL.len()]>);

impl Denied {
    pub(super) fn new(registry: &Arc<Registry>) -> Self {
        Self(Mutex::new(DenialReason::ALL.map(|reason| registry.counter(&DENIED, &[reason.word()]))))
    }

    pub(super) fn by(&self, reason: DenialReason) {
        let counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counters[reason as usize].inc();
    }
}
