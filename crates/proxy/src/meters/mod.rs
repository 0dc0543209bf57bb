//! The counters of a worker: of routes, limits and upstreams in `traffic`, of bandwidths and messages in `pace`, of
//! connections in `connections`.
//!
//! Each counter has one writer, the worker; `telemetry` adds them up. An enum of words is a label: whoever adds a variant has
//! its counter. Callers: every room that meets such an event.

mod connections;
mod pace;
mod traffic;

pub(super) use connections::{ConnectionMeters, HandshakeOutcome, HeaderResult, QuestionOutcome};
pub(super) use pace::{BandwidthMeters, MessageMeters, Over, WayMeters};
pub(super) use traffic::{
    Decision, Finished, LimitMeters, Meters, Outcome, Retried, RouteMeters, UpstreamMeters, connect_waits, server_times,
};
