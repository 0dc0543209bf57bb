//! The part of `sluicegate fleet status` that is of a fleet without a store.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Deserialize;

/// How a gateway sees the others.
#[derive(Debug, Deserialize)]
pub(super) struct PeersReport {
    listen: String,
    error: Option<String>,
    topology: String,
    transport: String,
    gateways: Vec<PeerLine>,
    lag_p50_ms: f64,
    lag_p99_ms: f64,
    lag_max_ms: f64,
    keys: u64,
    sent: TrafficCounts,
    received: TrafficCounts,
    dropped: BTreeMap<String, u64>,
    untold: u64,
}

#[derive(Debug, Deserialize)]
struct PeerLine {
    node: String,
    address: String,
    state: String,
    since: String,
}

#[derive(Debug, Deserialize)]
struct TrafficCounts {
    datagrams: u64,
    bytes: u64,
}

impl PeersReport {
    pub(super) fn write(&self, gateways: u32, out: &mut String) -> std::fmt::Result {
        let Self { listen, topology, transport, lag_p50_ms, lag_p99_ms, lag_max_ms, sent, received, .. } = self;
        writeln!(out, "listens     {listen}, {transport}, {topology}")?;
        if let Some(error) = &self.error {
            writeln!(out, "error       it cannot listen: {error}")?;
        }
        writeln!(out, "gateways    {gateways}")?;
        for PeerLine { node, address, state, since } in &self.gateways {
            writeln!(out, "{state:<12}{node} at {address} since {since}")?;
        }
        writeln!(out, "lag         p50 {lag_p50_ms} ms, p99 {lag_p99_ms} ms, at most {lag_max_ms} ms, there and back")?;
        if self.gateways.iter().any(|peer| peer.state == "dead") {
            writeln!(out, "warning     one that is dead or cut off: in a cut each side has the whole of each limit")?;
        }
        writeln!(out, "keys        {}", self.keys)?;
        writeln!(out, "sent        {} datagrams, {} bytes", sent.datagrams, sent.bytes)?;
        writeln!(out, "received    {} datagrams, {} bytes", received.datagrams, received.bytes)?;
        let dropped = self.dropped.iter().filter(|(_, count)| **count > 0);
        let dropped: Vec<String> = dropped.map(|(reason, count)| format!("{count} {reason}")).collect();
        if !dropped.is_empty() {
            writeln!(out, "dropped     {}", dropped.join(", "))?;
        }
        if self.untold > 0 {
            writeln!(out, "untold      {} of what was admitted here", self.untold)?;
        }
        Ok(())
    }
}
