//! A worker's counters of bytes that are paced and of messages that are bounded.

use sluicegate_telemetry::{Counter, Family, MetricKind, Registry};

static BANDWIDTH_BYTES: Family = Family {
    name: "sluicegate_bandwidth_bytes_total",
    help: "Bytes of bodies and tunnels that a bandwidth counted, by direction: down (to clients) or up (from clients).",
    kind: MetricKind::Counter,
    labels: &["bandwidth", "direction"],
};
static BANDWIDTH_WAITS: Family = Family {
    name: "sluicegate_bandwidth_waits_total",
    help: "How often a piece of a body or a tunnel was held until a bandwidth had room for it, by direction.",
    kind: MetricKind::Counter,
    labels: &["bandwidth", "direction"],
};
static MESSAGES_OVER: Family = Family {
    name: "sluicegate_websocket_over_limit_total",
    help: "WebSocket messages over their route's limit by what became of them: paced, or the connection closed because \
           they were too many (closed), one was too large (too-large), or its frames could not be read (malformed).",
    kind: MetricKind::Counter,
    labels: &["route", "action"],
};

/// A worker's figures of one bandwidth.
#[derive(Debug)]
pub struct BandwidthMeters {
    /// The direction to clients.
    pub down: WayMeters,
    /// The direction from clients.
    pub up: WayMeters,
}

/// One direction.
#[derive(Debug)]
pub struct WayMeters {
    /// Bytes.
    pub bytes: Counter,
    /// Waits.
    pub waits: Counter,
}

words! {
    /// The fate of WebSocket messages over their limit.
    pub enum Over {
        /// One was held.
        Paced = "paced",
        /// The connection was closed for their number.
        Closed = "closed",
        /// It was closed for the size of one.
        TooLarge = "too-large",
        /// It was closed because it cannot be followed.
        Malformed = "malformed",
    }
}

/// A worker's figures of the messages of one route.
pub struct MessageMeters([Counter; Over::ALL.len()]);

impl BandwidthMeters {
    /// A worker's cells.
    pub fn new(registry: &Registry, bandwidth: &str) -> Self {
        let way = |direction| WayMeters {
            bytes: registry.counter(&BANDWIDTH_BYTES, &[bandwidth, direction]),
            waits: registry.counter(&BANDWIDTH_WAITS, &[bandwidth, direction]),
        };
        Self { down: way("down"), up: way("up") }
    }
}

impl MessageMeters {
    /// A worker's cells.
    pub fn new(registry: &Registry, route: &str) -> Self {
        Self(Over::ALL.map(|over| registry.counter(&MESSAGES_OVER, &[route, over.word()])))
    }

    /// Counts messages over the limit.
    pub fn add(&self, over: Over, count: u64) {
        self.0[over as usize].add(count);
    }
}
