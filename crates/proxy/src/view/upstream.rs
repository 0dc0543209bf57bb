//! An upstream as one worker sees it.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::meters::{self, Meters, UpstreamMeters};
use crate::snapshot::Upstream;
use sluicegate_admission::KeyExpr;
use sluicegate_config::UpstreamSpec;
use sluicegate_telemetry::Registry;
use sluicegate_time::Clock;
use sluicegate_upstream::{ConnectRate, Endpoint, GateView, Pace, ServerConnections, Watched};

/// Retries in ten seconds that are allowed however few the requests are, of all workers.
const LEAST_RETRIES: u32 = 30;

/// A worker's servers by upstream and endpoint: what identifies them across reloads.
pub type Servers = HashMap<(Arc<str>, Endpoint), Rc<ServerConnections>>;

/// An upstream with all that a request asks of it.
pub struct UpstreamView {
    /// The section of the file that it comes from.
    pub spec: Arc<UpstreamSpec>,
    /// The part of it that workers share.
    pub shared: Arc<Upstream>,
    /// This worker's servers, in the balancer's order.
    pub servers: Vec<Rc<ServerConnections>>,
    /// How this worker sees them.
    pub gate: Rc<GateView>,
    /// The key by which requests that wait at it have their turns; `None`: their clients' addresses.
    pub fair_key: Option<KeyExpr>,
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

/// The upstreams of a generation as a worker sees them, each made when it is first asked for: servers that stay keep their
/// connections.
pub(super) struct UpstreamViews<'w> {
    workshop: Workshop<'w>,
    made: HashMap<Arc<str>, Rc<UpstreamView>>,
}

impl UpstreamView {
    /// The name of the server at this place.
    pub fn server_name(&self, server: usize) -> Option<&Arc<str>> {
        self.shared.servers.get(server).map(|(endpoint, _)| &endpoint.name)
    }
}

impl<'w> UpstreamViews<'w> {
    pub(super) fn new(workshop: Workshop<'w>) -> Self {
        Self { workshop, made: HashMap::new() }
    }

    /// That of an upstream.
    pub(super) fn of(&mut self, upstream: &Arc<Upstream>, meters: &mut Meters) -> Rc<UpstreamView> {
        let Self { workshop, made } = self;
        let name = &upstream.spec.name;
        let made = made.entry(Arc::clone(name)).or_insert_with(|| {
            let gate = Rc::new(GateView::new(Arc::clone(&upstream.states)));
            let servers = workshop.servers(upstream, &gate);
            let meters = meters.upstream(name);
            let workers = upstream.servers.first().map_or(1, |(_, load)| load.workers());
            if let Some(retry) = &upstream.spec.retry {
                meters.budget.borrow_mut().set_terms(retry.budget, LEAST_RETRIES.div_ceil(workers as u32));
            }
            let spec = Arc::clone(&upstream.spec);
            let fair_key = Some(&spec.fair_key).filter(|key| !key.is_client_ip()).cloned();
            Rc::new(UpstreamView { spec, shared: Arc::clone(upstream), servers, gate, fair_key, meters })
        });
        Rc::clone(made)
    }

    /// Closes the connections to servers of the generation before that no upstream has any more.
    pub(super) fn close_others(self) {
        let Self { workshop, made } = self;
        for gone in workshop.known.values() {
            gone.retire();
        }
        let kept = made.values().flat_map(|view| {
            let identity = |server: &Rc<ServerConnections>| (Arc::clone(&view.spec.name), server.endpoint().clone());
            view.servers.iter().map(move |server| (identity(server), Rc::clone(server)))
        });
        *workshop.known = kept.collect();
    }
}

impl Workshop<'_> {
    fn servers(&mut self, shared: &Upstream, gate: &Rc<GateView>) -> Vec<Rc<ServerConnections>> {
        let upstream = &shared.spec;
        let rate = ConnectRate::new(upstream.connect_rate.limit(), upstream.connect_rate.window());
        let failures = upstream.eject.as_ref().map(|eject| eject.failures);
        let server = |(place, (endpoint, load)): (usize, &(Endpoint, _))| {
            let server = match self.known.remove(&(Arc::clone(&upstream.name), endpoint.clone())) {
                Some(server) if *server.link() == shared.link => {
                    server.set_connect_rate(rate);
                    server
                }
                // Connections of before are of no use now.
                old => {
                    old.inspect(|old| old.retire());
                    let waits = meters::connect_waits(self.registry, &upstream.name);
                    let pace = Pace::new(rate, self.clock.clone(), waits);
                    let times = meters::server_times(self.registry, &upstream.name, &endpoint.name);
                    ServerConnections::new(
                        endpoint.clone(),
                        shared.link.clone(),
                        (Arc::clone(load), times),
                        self.worker,
                        pace,
                    )
                }
            };
            server.watch(Watched { view: Rc::clone(gate), server: place, failures });
            server
        };
        shared.servers.iter().enumerate().map(server).collect()
    }
}
