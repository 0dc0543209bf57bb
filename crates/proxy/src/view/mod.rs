//! One generation of the configuration as one worker sees it: each route and upstream with this worker's counters and connections.
//!
//! It is built when a generation begins, and found once for a request, which keeps it by an `Rc`. Callers: `worker`, which
//! builds it, and each room that has an exchange.

mod generation;
mod route;
mod upstream;

pub(super) use generation::View;
pub(super) use route::{BandwidthView, KeyedView, LimitView, RouteView};
pub(super) use upstream::{Servers, UpstreamView};

use std::rc::Rc;

/// The answer of admission.
pub(super) type Admission = sluicegate_admission::Admission<Rc<RouteView>>;
/// A request that may be forwarded.
pub(super) type Admitted = sluicegate_admission::Admitted<Rc<RouteView>>;
/// A request that waits for its room in a limit.
pub(super) type Waiting = sluicegate_admission::Waiting<Rc<RouteView>>;
