//! A generation of the configuration with what one worker keeps for it: its connections to servers, its counters, how it
//! sees the states of servers.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::meters::{self, Meters};
use super::route_view::RouteView;
use super::snapshot::Snapshot;
use crate::telemetry::Registry;
use crate::time::Clock;
use crate::upstream::{ConnectRate, Endpoint, GateView, Pace, Server, Watched};

/// Retries in ten seconds that are allowed however few the requests are, of all workers.
const LEAST_RETRIES: u32 = 30;

/// A worker's servers by upstream and endpoint: what identifies them across reloads.
pub type Servers = HashMap<(Arc<str>, Endpoint), Rc<Server>>;

/// A snapshot with what this worker keeps for it.
pub struct View {
    /// The shared part.
    pub snapshot: Arc<Snapshot>,
    /// Its routes, in the order of [`Rules::routes`](crate::admission::Rules::routes).
    pub routes: Vec<Rc<RouteView>>,
    /// This worker's servers: upstream by upstream, in the balancer's order.
    pub servers: Vec<Vec<Rc<Server>>>,
    /// How this worker sees the servers of each upstream.
    pub gates: Vec<Rc<GateView>>,
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
        let mut kept = HashMap::new();
        let mut servers = Vec::with_capacity(snapshot.upstreams.len());
        let mut gates = Vec::with_capacity(snapshot.upstreams.len());
        for (upstream, plan) in snapshot.model.upstreams.iter().zip(&snapshot.upstreams) {
            let rate = ConnectRate::new(upstream.connect_rate.limit(), upstream.connect_rate.window());
            let mut of_upstream = Vec::with_capacity(plan.servers.len());
            let view = Rc::new(GateView::new(Arc::clone(&plan.states)));
            for (place, (endpoint, load)) in plan.servers.iter().enumerate() {
                let key = (Arc::clone(&upstream.name), endpoint.clone());
                let server = match known.remove(&key) {
                    Some(server) if *server.link() == plan.link => {
                        server.set_connect_rate(rate);
                        server
                    }
                    // What was spoken to it before is of no use now.
                    old => {
                        old.inspect(|old| old.retire());
                        let waits = meters::connect_waits(registry, &upstream.name);
                        let pace = Pace::new(rate, clock.clone(), waits);
                        let times = meters::server_times(registry, &upstream.name, &endpoint.name);
                        Server::new(endpoint.clone(), plan.link.clone(), (Arc::clone(load), times), worker, pace)
                    }
                };
                let failures = upstream.eject.as_ref().map(|eject| eject.failures);
                server.watch(Watched { view: Rc::clone(&view), server: place, failures });
                of_upstream.push(Rc::clone(&server));
                kept.insert(key, server);
            }
            servers.push(of_upstream);
            gates.push(view);
        }
        for gone in known.values() {
            gone.retire();
        }
        *known = kept;
        let meters = Meters::new(registry, &snapshot, old);
        for (place, (upstream, plan)) in snapshot.model.upstreams.iter().zip(&snapshot.upstreams).enumerate() {
            let workers = plan.servers.first().map_or(1, |(_, load)| load.workers());
            if let (Some(meters), Some(retry)) = (meters.upstream(place), &upstream.retry) {
                meters.budget.borrow_mut().set_terms(retry.budget, LEAST_RETRIES.div_ceil(workers as u32));
            }
        }
        let routes = RouteView::all(&snapshot, &meters);
        Self { snapshot, routes, servers, gates, meters }
    }
}
