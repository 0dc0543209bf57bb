//! A generation of the configuration with what one worker keeps for it: its routes, its connections to servers, its
//! counters.

use std::rc::Rc;
use std::sync::Arc;

use super::route::RouteView;
use super::upstream::{Servers, UpstreamView, Workshop};
use crate::meters::Meters;
use crate::snapshot::Snapshot;
use sluicegate_telemetry::Registry;
use sluicegate_time::Clock;

/// A snapshot with what this worker keeps for it.
pub struct View {
    /// The shared part.
    pub snapshot: Arc<Snapshot>,
    /// Its routes, in the order of [`Rules::routes`](sluicegate_admission::Rules::routes).
    pub routes: Vec<Rc<RouteView>>,
    /// This worker's counters.
    pub meters: Meters,
}

impl View {
    /// Of a snapshot: servers that stay keep their connections, those that go close theirs; counters go on.
    pub fn build(
        snapshot: Arc<Snapshot>,
        registry: &Arc<Registry>,
        known: &mut Servers,
        worker: usize,
        clock: &Clock,
        old: Option<&Meters>,
    ) -> Self {
        let meters = Meters::new(registry, &snapshot, old);
        let upstreams = UpstreamView::all(&snapshot, &meters, Workshop { registry, known, worker, clock });
        let routes = RouteView::all(&snapshot, &meters, &upstreams);
        Self { snapshot, routes, meters }
    }
}
