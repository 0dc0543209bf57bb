//! One generation of the configuration as one worker sees it: each route and upstream with this worker's counters and connections.
//!
//! It is built when a generation begins, and found once for a request, which keeps it by an `Rc`. Callers: `worker`, which
//! builds it, and whoever has an exchange.

mod generation;
mod route;
mod upstream;

pub(super) use generation::View;
pub(super) use route::{BandwidthView, LimitView, RouteView};
pub(super) use upstream::{Servers, UpstreamView};
