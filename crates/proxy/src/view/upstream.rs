//! An upstream as one worker sees it.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::meters::{self, Meters, UpstreamMeters};
use crate::snapshot::{Snapshot, UpstreamPlan};
use sluicegate_config::Upstream;
use sluicegate_telemetry::Registry;
use sluicegate_time::Clock;
use sluicegate_upstream::{ConnectRate, Endpoint, GateView, Pace, Server, Watched};

/// Retries in ten seconds that are allowed however few the requests are, of all workers.
const LEAST_RETRIES: u32 = 30;

/// A worker's servers by upstream and endpoint: what identifies them across reloads.
pub type Servers = HashMap<(Arc<str>, Endpoint), Rc<Server>>;

/// An upstream with all that a request asks of it.
pub struct UpstreamView {
    /// As the file has it.
    pub settings: Arc<Upstream>,
    /// The part of it that was built.
    pub plan: Arc<UpstreamPlan>,
    /// This worker's servers, in the balancer's order.
    pub servers: Vec<Rc<Server>>,
    /// How this worker sees them.
    pub gate: Rc<GateView>,
    /// Its figures.
    pub meters: Rc<UpstreamMeters>,
}

/// The means by which a worker makes its servers.
pub struct Workshop<'w> {
    /// Where their figures go.
    pub registry: &'w Registry,
    /// The servers that it has; those of no upstream are left here.
    pub known: &'w mut Servers,
    /// The number of the worker.
    pub worker: usize,
    /// The clock of its paces.
    pub clock: &'w Clock,
}

impl UpstreamView {
    /// All upstreams of a snapshot, in the order of the file: servers that stay keep their connections, those that go close
    /// theirs.
    pub fn all(snapshot: &Snapshot, meters: &Meters, mut workshop: Workshop<'_>) -> Vec<Rc<Self>> {
        let mut kept = HashMap::new();
        let both = snapshot.model.upstreams.iter().zip(&snapshot.upstreams).enumerate();
        let view = |(place, (settings, plan)): (usize, (&Arc<Upstream>, &Arc<UpstreamPlan>))| {
            let meters = meters.upstream(place)?;
            let gate = Rc::new(GateView::new(Arc::clone(&plan.states)));
            let servers = workshop.servers(settings, plan, &gate);
            kept.extend(
                servers
                    .iter()
                    .map(|server| ((Arc::clone(&settings.name), server.endpoint().clone()), Rc::clone(server))),
            );
            let workers = plan.servers.first().map_or(1, |(_, load)| load.workers());
            if let Some(retry) = &settings.retry {
                meters.budget.borrow_mut().set_terms(retry.budget, LEAST_RETRIES.div_ceil(workers as u32));
            }
            Some(Rc::new(Self { settings: Arc::clone(settings), plan: Arc::clone(plan), servers, gate, meters }))
        };
        let all = both.filter_map(view).collect();
        for gone in workshop.known.values() {
            gone.retire();
        }
        *workshop.known = kept;
        all
    }

    /// The name of the server at this place.
    pub fn server_name(&self, server: usize) -> Option<&Arc<str>> {
        self.plan.servers.get(server).map(|(endpoint, _)| &endpoint.name)
    }
}

impl Workshop<'_> {
    fn servers(&mut self, upstream: &Upstream, plan: &UpstreamPlan, gate: &Rc<GateView>) -> Vec<Rc<Server>> {
        let rate = ConnectRate::new(upstream.connect_rate.limit(), upstream.connect_rate.window());
        let failures = upstream.eject.as_ref().map(|eject| eject.failures);
        let server = |(place, (endpoint, load)): (usize, &(Endpoint, _))| {
            let server = match self.known.remove(&(Arc::clone(&upstream.name), endpoint.clone())) {
                Some(server) if *server.link() == plan.link => {
                    server.set_connect_rate(rate);
                    server
                }
                // Connections of before are of no use now.
                old => {
                    old.inspect(|old| old.retire());
                    let waits = meters::connect_waits(self.registry, &upstream.name);
                    let pace = Pace::new(rate, self.clock.clone(), waits);
                    let times = meters::server_times(self.registry, &upstream.name, &endpoint.name);
                    Server::new(endpoint.clone(), plan.link.clone(), (Arc::clone(load), times), self.worker, pace)
                }
            };
            server.watch(Watched { view: Rc::clone(gate), server: place, failures });
            server
        };
        plan.servers.iter().enumerate().map(server).collect()
    }
}
