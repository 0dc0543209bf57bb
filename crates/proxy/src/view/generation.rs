//! A generation of the configuration with what one worker keeps for it: its routes, its connections to servers, its
//! counters.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::route::{KeyedView, LimitView, RouteView};
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
    /// Limits that are asked about keys alone, by their names.
    pub keyed: HashMap<Arc<str>, Rc<KeyedView>>,
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
        let mut keyed = HashMap::new();
        for limit in &snapshot.limits {
            let name = &limit.spec.spec.name;
            meters.limit(name);
            if let Some(rules) = snapshot.keyed.get(name) {
                let limit = LimitView::new(0, limit, &mut meters);
                keyed.insert(Arc::clone(name), Rc::new(KeyedView { limit, rules: Arc::clone(rules) }));
            }
        }
        for bandwidth in &snapshot.bandwidths {
            meters.bandwidth(&bandwidth.spec.name);
        }
        upstreams.close_others();
        meters.forget_others();
        Self { snapshot, rules, keyed, meters }
    }
}
