//! A generation of the configuration with what one worker keeps for it: its routes, its connections to servers, its
//! counters.

use std::rc::Rc;
use std::sync::Arc;

use super::route::RouteView;
use super::upstream::{Servers, UpstreamViews, Workshop};
use crate::meters::Meters;
use crate::snapshot::Snapshot;
use sluicegate_admission::Rules;
use sluicegate_telemetry::Registry;
use sluicegate_time::Clock;

/// A snapshot with what this worker keeps for it.
pub struct View {
    /// The shared part.
    pub snapshot: Arc<Snapshot>,
    /// Client, route, key, limits: with the routes as this worker sees them.
    pub rules: Rules<Rc<RouteView>>,
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
        let mut meters = Meters::after(registry, old);
        let mut upstreams = UpstreamViews::new(Workshop { registry, known, worker, clock });
        let rules = snapshot.rules.map(|route| Rc::new(RouteView::new(route, &mut meters, &mut upstreams)));
        // Of those that no route names, too.
        for upstream in &snapshot.upstreams {
            upstreams.of(upstream, &mut meters);
        }
        for limit in &snapshot.limits {
            meters.limit(&limit.spec.spec.name);
        }
        for bandwidth in &snapshot.bandwidths {
            meters.bandwidth(&bandwidth.spec.name);
        }
        upstreams.close_others();
        meters.forget_others();
        Self { snapshot, rules, meters }
    }
}
