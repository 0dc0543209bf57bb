use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::key_tally::KeyTally;
use super::throttle::Seldom;
use super::turned::{ConnectionRejection, headroom};
use sluicegate_admission::{KeyExpr, Networks, ResponseCost, Rules};
use sluicegate_balance::Balancer;
use sluicegate_config::{Body, Cors, MessageRules, Model, OnLimit, Refusal, Server, StatusSet};
use sluicegate_dead_letter::Deferrals;
use sluicegate_dead_letter::{DeadLetters, ReplayGuard};
use sluicegate_edit::{FieldEdits, Rewrite, Target};
use sluicegate_http1::HeadLimits;
use sluicegate_limiter::{KeyHasher, Limit, Policy};
use sluicegate_telemetry::AccessLog;
use sluicegate_time::Span;
use sluicegate_tls::ServerTls;
use sluicegate_upstream::{Bulkhead, Circuit, Endpoint, Link, Load, ServerPlaces, ServerStates};

/// One generation of the configuration, built whole before any request sees it.
pub struct Snapshot {
    /// Its number, which grows by one with each reload that changed something.
    pub generation: u64,
    /// The file as it was read; the rest was built from it.
    pub model: Arc<Model>,
    /// Client, route, key, limits.
    pub rules: Rules,
    /// The networks whose connections are closed.
    pub deny: Networks,
    /// The rules by which other connections are taken.
    pub accept: AcceptPlan,
    /// The plans of routes, in the order of [`Rules::routes`].
    pub routes: Vec<Arc<RoutePlan>>,
    /// The plans of limits, in the file's order.
    pub limits: Vec<Arc<LimitPlan>>,
    /// The parts of upstreams that were built, in the file's order.
    pub upstreams: Vec<Arc<UpstreamPlan>>,
    /// Whether the servers of one are told for whom a connection is.
    pub sends_proxy_headers: bool,
    /// The plans of bandwidths, which [`RoutePacing::bandwidths`] names by their places here.
    pub bandwidths: Vec<Arc<BandwidthPlan>>,
    /// The plans of listeners, by their addresses in the file.
    pub listeners: HashMap<SocketAddr, ListenerPlan>,
    /// The dead-letter log, if there is one.
    pub dead_letters: Option<DeadLetters>,
    /// Requests that are kept for later, if there can be any.
    pub deferrals: Option<Deferrals>,
    /// Recognises requests that a replay of that log sends.
    pub replay_guard: Option<ReplayGuard>,
    /// The access log, if it is on.
    pub access_log: Option<AccessLog>,
    /// The secret of key fingerprints.
    pub hasher: KeyHasher,
}

/// The settings of one listener.
#[derive(Clone, Debug, Default)]
pub struct ListenerPlan {
    /// Connections at once, of all workers; `None`: any number.
    pub places: Option<Arc<Places>>,
    /// Its clients speak TLS, so.
    pub tls: Option<Arc<ServerTls>>,
    /// Every request is answered with a redirect to `https`, to this port.
    pub redirect_to_https: Option<u16>,
    /// Each of its connections begins with a PROXY header, from one of these; `None`: none does.
    pub proxied_by: Option<Arc<Networks>>,
}

/// The rules by which connections are taken.
#[derive(Default)]
pub struct AcceptPlan {
    /// The networks that may connect; `None`: all of them.
    pub allow: Option<Networks>,
    /// How many, and how often, of one client.
    pub clients: Option<ClientBounds>,
}

/// The bounds of one client's connections.
pub struct ClientBounds {
    /// One limit or two.
    pub policy: Arc<Policy>,
    /// The reason that a refusal by each of its limits is counted under, in the policy's order.
    pub reasons: Vec<ConnectionRejection>,
}

/// Places for connections, of all workers.
#[derive(Debug)]
pub struct Places {
    taken: Arc<AtomicU64>,
    max: u64,
}

impl Places {
    /// `max` places; those that are `taken` are counted on.
    pub fn new(taken: Arc<AtomicU64>, max: u64) -> Arc<Self> {
        Arc::new(Self { taken, max })
    }

    /// A place, if one is free.
    pub fn take(&self) -> Option<Place> {
        let free = |taken: u64| (taken < self.max).then_some(taken + 1);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free).ok()?;
        Some(Place(Arc::clone(&self.taken)))
    }

    /// How many are free, if so few are that some have to be made free.
    pub fn last_ones(&self) -> Option<u64> {
        let free = self.max.saturating_sub(self.taken.load(Ordering::Relaxed));
        (free < headroom(self.max)).then_some(free)
    }
}

/// A place that is taken until this is dropped.
#[derive(Debug)]
pub struct Place(Arc<AtomicU64>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The settings of a route for all that follows admission.
pub struct RoutePlan {
    /// The route's name.
    pub name: Arc<str>,
    /// Forward or answer.
    pub action: RouteAction,
    /// The fate of a request that a limit refuses.
    pub on_limit: OnLimit,
    /// The CORS rules, which refusals follow too.
    pub cors: Option<Cors>,
    /// The route's limits, as indexes into [`Snapshot::limits`], in the order of its policy.
    pub limits: Vec<usize>,
    /// The route's own timeout, before the limits' are taken into account.
    pub timeout: Option<Span>,
    /// Bytes that a request's body may have; `None`: any.
    pub max_body_size: Option<u64>,
    /// Bytes of a body that the dead letter of a request keeps; `None`: no bodies.
    pub capture_body: Option<u64>,
    /// The changes that it makes in messages; `None`: it makes none.
    pub edits: Option<Box<RouteEdits>>,
    /// The form of refusals where the limit has none.
    pub refusal: Option<Arc<Refusal>>,
    /// The pacing of its bytes and the bounds of its messages; `None`: it has neither.
    pub pacing: Option<Box<RoutePacing>>,
}

impl RoutePlan {
    /// Whether it bounds the messages of a WebSocket.
    pub fn bounds_messages(&self) -> bool {
        self.pacing.as_ref().is_some_and(|pacing| pacing.messages.is_some())
    }
}

/// The pacing of a route's bytes, and the bounds of its messages.
pub struct RoutePacing {
    /// Indexes into [`Snapshot::bandwidths`].
    pub bandwidths: Vec<usize>,
    /// The bounds of a client's messages over one WebSocket; `None`: it sends what it likes.
    pub messages: Option<MessageRules>,
}

/// A bandwidth: its limits pace bytes.
pub struct BandwidthPlan {
    /// Its name.
    pub name: Arc<str>,
    /// The key by which bytes are counted together.
    pub key: KeyExpr,
    /// The limit of the bytes that clients get; `None`: there is none.
    pub down: Option<Arc<Limit>>,
    /// The limit of the bytes that clients send; `None`: there is none.
    pub up: Option<Arc<Limit>>,
}

/// The changes that a route makes in messages.
pub struct RouteEdits {
    /// In a request's fields.
    pub request: FieldEdits,
    /// In an answer's fields.
    pub response: FieldEdits,
    /// Another path for the server.
    pub rewrite: Option<Rewrite>,
    /// Another `Host` for the server.
    pub host: Option<Arc<str>>,
}

impl RouteEdits {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.request.is_empty() && self.response.is_empty() && self.rewrite.is_none() && self.host.is_none()
    }
}

/// Forward or answer.
pub enum RouteAction {
    /// To [`Snapshot::upstreams`] of this index.
    Forward(usize),
    /// From the gateway.
    Respond {
        /// Its status.
        status: u16,
        /// Its body.
        body: Body,
    },
    /// The client is sent elsewhere.
    Redirect {
        /// Its status.
        status: u16,
        /// Where to.
        target: Target,
    },
}

/// The settings of a limit beside those in the policy.
pub struct LimitPlan {
    /// The limit's name.
    pub name: Arc<str>,
    /// Whether the values of its key are secrets; `None`: their names say so.
    pub key_is_secret: Option<bool>,
    /// Whether the access log has fields of its own for all parts of its key.
    pub key_is_in_access_log: bool,
    /// Status of a refusal.
    pub status: u16,
    /// Largest random extra of Retry-After.
    pub retry_after_jitter: Span,
    /// The limit's timeout, which holds where it is enforced.
    pub timeout: Option<Span>,
    /// The statuses of the answers that count; `None`: every request counts, at its arrival.
    pub count_when: Option<StatusSet>,
    /// Where the upstream's response says what its request has cost; `None`: nowhere.
    pub cost_from_response: Option<ResponseCost>,
    /// The form of its refusals; `None`: as the route says.
    pub refusal: Option<Arc<Refusal>>,
    /// The keys that it admits and refuses most often.
    pub keys: Arc<KeyTally>,
}

/// The part of an upstream that was built; the rest of it is in the model.
pub struct UpstreamPlan {
    /// Chooses the server of each request.
    pub balancer: Balancer,
    /// How its servers are spoken to.
    pub link: Link,
    /// Its servers, in the balancer's order.
    pub servers: Vec<(Endpoint, Arc<Load>)>,
    /// Their weights, in the same order: the file's, or those that an operator gave them.
    pub weights: Vec<u32>,
    /// How they stand.
    pub states: Arc<ServerStates>,
    /// The places at them; `None`: there are any number.
    pub places: Option<PlacesPlan>,
    /// The breaker; `None`: there is none.
    pub circuit: Option<Arc<Circuit>>,
}

/// Places at the servers of an upstream.
pub struct PlacesPlan {
    /// All of them.
    pub bulkhead: Arc<Bulkhead>,
    /// Those at each server, in the balancer's order.
    pub servers: Vec<Arc<ServerPlaces>>,
}

impl Snapshot {
    /// `[server]`
    pub fn server(&self) -> &Server {
        &self.model.server
    }

    /// How large a head may be.
    pub fn head_limits(&self) -> HeadLimits {
        HeadLimits { max_bytes: self.model.server.max_head_size, max_fields: self.model.server.max_head_fields }
    }

    /// How the servers of the upstream of this name stand.
    pub fn states_of(&self, name: &str) -> Option<&Arc<ServerStates>> {
        let place = self.model.upstreams.iter().position(|upstream| &*upstream.name == name)?;
        self.upstreams.get(place).map(|plan| &plan.states)
    }
}

/// Where workers find the current snapshot: one atomic to look at for each exchange, one lock when it has changed.
pub struct Feed {
    /// Log lines about addresses that hold much of a worker.
    pub crowding_reports: Seldom,
    /// Log lines about servers of HTTP/2 that want connections to be authenticated.
    pub authentication_reports: Seldom,
    generation: AtomicU64,
    latest: Mutex<Arc<Snapshot>>,
}

impl Feed {
    /// A feed whose current snapshot is `first`.
    pub fn new(first: Arc<Snapshot>) -> Arc<Self> {
        let generation = AtomicU64::new(first.generation);
        let (crowding_reports, authentication_reports) = Default::default();
        Arc::new(Self { crowding_reports, authentication_reports, generation, latest: Mutex::new(first) })
    }

    /// Makes `next` the current one.
    pub fn publish(&self, next: Arc<Snapshot>) {
        let generation = next.generation;
        let old = {
            let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *latest, next)
        };
        self.generation.store(generation, Ordering::Release);
        drop(old);
    }

    /// The current generation.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The current snapshot.
    pub fn latest(&self) -> Arc<Snapshot> {
        Arc::clone(&self.latest.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
