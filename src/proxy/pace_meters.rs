//! What a worker counts of bytes that are paced and of messages that are bounded.

use crate::telemetry::{Counter, Family, Kind, Registry};

static BANDWIDTH_BYTES: Family = Family {
    name: "sluicegate_bandwidth_bytes_total",
    help: "Bytes of bodies and tunnels that a bandwidth counted, by direction: down (to clients) or up (from clients).",
    kind: Kind::Counter,
    labels: &["bandwidth", "direction"],
};
static BANDWIDTH_WAITS: Family = Family {
    name: "sluicegate_bandwidth_waits_total",
    help: "How often a piece of a body or a tunnel was held until a bandwidth had room for it, by direction.",
    kind: Kind::Counter,
    labels: &["bandwidth", "direction"],
};
static MESSAGES_OVER: Family = Family {
    name: "sluicegate_websocket_over_limit_total",
    help: "WebSocket messages over their route's limit by what became of them: paced, or the connection closed because \
           they were too many (closed), one was too large (too-large), or its frames could not be read (malformed).",
    kind: Kind::Counter,
    labels: &["route", "action"],
};

/// A worker's figures of one bandwidth.
#[derive(Debug)]
pub struct BandwidthMeters {
    /// What clients got.
    pub down: WayMeters,
    /// What clients sent.
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

/// What became of WebSocket messages over their limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Over {
    /// One was held.
    Paced,
    /// The connection was closed for their number.
    Closed,
    /// It was closed for the size of one.
    TooLarge,
    /// It was closed because it cannot be followed.
    Malformed,
}

impl Over {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Paced, "paced"),
        (Self::Closed, "closed"),
        (Self::TooLarge, "too-large"),
        (Self::Malformed, "malformed"),
    ];
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
        Self(Over::ALL.map(|(_, action)| registry.counter(&MESSAGES_OVER, &[route, action])))
    }

    /// Counts messages over the limit.
    pub fn add(&self, over: Over, count: u64) {
        if let Some(counter) = self.0.get(over as usize) {
            counter.add(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_over_a_limit_has_its_own_place() {
        for (place, (over, _)) in Over::ALL.iter().enumerate() {
            assert_eq!(*over as usize, place);
        }
    }
}
