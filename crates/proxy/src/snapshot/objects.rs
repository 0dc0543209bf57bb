use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::block_list::BlockList;
use super::key_tally::KeyTally;
use super::overload::{OverloadState, ResponseSamples};
use super::throttle::Seldom;
use super::turned::{ConnectionRejection, headroom};
use sluicegate_admission::{KeyedLimit, Networks, RouteRules, Rules};
use sluicegate_balance::Balancer;
use sluicegate_collapse::{Collapse, RequestRules};
use sluicegate_config::{
    Action, BandwidthSpec, Decides, DescribedBy, LimitRule, ListenAddress, ListenerSpec, Model, RouteSpec, Server,
    UpstreamSpec,
};
use sluicegate_dead_letter::Deferrals;
use sluicegate_dead_letter::{DeadLetters, ReplayGuard};
use sluicegate_http1::HeadLimits;
use sluicegate_jwt::TokenRules;
use sluicegate_limiter::{KeyHasher, Limit, Policy};
use sluicegate_telemetry::AccessLog;
use sluicegate_time::Schedule;
use sluicegate_tls::ServerTls;
use sluicegate_upstream::{Bulkhead, Circuit, Endpoint, Link, Load, ServerPlaces, ServerStates};

/// One generation of the configuration, built whole before any request sees it.
pub struct Snapshot {
    /// Its number, which grows by one with each reload that changed something.
    pub generation: u64,
    /// The file as it was read; the rest was built from it.
    pub model: Arc<Model>,
    /// Client, route, key, limits: with the routes, in the file's order.
    pub rules: Rules<Arc<Route>>,
    /// The networks whose connections are closed.
    pub deny: Networks,
    /// The rules by which other connections are taken.
    pub accept: AcceptPlan,
    /// Limits, in the file's order.
    pub limits: Vec<RouteLimit>,
    /// Those of them that listeners are asked about by keys alone, by their names.
    pub keyed: HashMap<Arc<str>, Arc<KeyedLimit>>,
    /// When limits hold that do not always, by their names.
    pub schedules: HashMap<Arc<str>, Arc<Schedule>>,
    /// Upstreams, in the file's order.
    pub upstreams: Vec<Arc<Upstream>>,
    /// Bandwidths: those of the file, then what routes have of their own.
    pub bandwidths: Vec<Arc<Bandwidth>>,
    /// Whether the servers of one are told for whom a connection is.
    pub sends_proxy_headers: bool,
    /// Listeners, by their addresses in the file.
    pub listeners: HashMap<ListenAddress, Arc<Listener>>,
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
    /// The keys that penalties block.
    pub blocks: Arc<BlockList>,
    /// Pressure, where the file has `[overload]`.
    pub overload: Option<Arc<OverloadState>>,
    /// The rules of tokens whose claims keys are made of; `None`: no key is.
    pub tokens: Option<Arc<TokenRules>>,
}

/// A listener, shared by all workers.
pub struct Listener {
    /// The section of the file that it comes from.
    pub spec: Arc<ListenerSpec>,
    /// Connections at once, of all workers; `None`: any number.
    pub places: Option<Arc<Places>>,
    /// Its clients speak TLS, so.
    pub tls: Option<Arc<ServerTls>>,
    /// Every request is answered with a redirect to `https`, to this port.
    pub redirect_to_https: Option<u16>,
    /// Each of its requests asks about another one, by these rules; `None`: it proxies.
    pub decides: Option<Arc<QuestionRules>>,
    /// Each of its connections begins with a PROXY header, from one of these; `None`: none does.
    pub proxied_by: Option<Networks>,
}

/// The rules by which a listener decides for others.
#[derive(Debug)]
pub struct QuestionRules {
    /// The form of the questions.
    pub kind: Decides,
    /// The fields by which a question describes a request, where it does so by fields.
    pub described_by: DescribedBy,
    /// Peers that may ask.
    pub allow: Networks,
    /// Names of the routes that it decides; `None`: all that can be decided for others.
    pub routes: Option<HashSet<Arc<str>>>,
    /// The status of a refusal; `None`: as its limit says.
    pub deny_status: Option<u16>,
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

    /// The count of those that are taken.
    pub fn taken(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.taken)
    }

    /// A place, if one is free.
    pub fn take(&self) -> Option<ConnectionSlot> {
        let free = |taken: u64| (taken < self.max).then_some(taken + 1);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free).ok()?;
        Some(ConnectionSlot(Arc::clone(&self.taken)))
    }

    /// How many are free, if so few are that some have to be made free.
    pub fn last_ones(&self) -> Option<u64> {
        let free = self.max.saturating_sub(self.taken.load(Ordering::Relaxed));
        (free < headroom(self.max)).then_some(free)
    }
}

/// A place that is taken until this is dropped.
#[derive(Debug)]
pub struct ConnectionSlot(Arc<AtomicU64>);

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A route, shared by all workers.
pub struct Route {
    /// The section of the file that it comes from.
    pub spec: Arc<RouteSpec>,
    /// The part of it that admission goes by.
    pub rules: RouteRules,
    /// Forward or answer.
    pub action: Action<Arc<Upstream>>,
    /// Its limits, in the order of its policy.
    pub limits: Vec<RouteLimit>,
    /// The bandwidths that pace its bytes.
    pub bandwidths: Vec<Arc<Bandwidth>>,
    /// Equal requests in flight are sent once; `None`: each is sent.
    pub collapse: Option<Arc<RouteCollapse>>,
    /// Whether its requests can be decided for others.
    pub is_decidable: bool,
}

impl AsRef<RouteRules> for Route {
    #[inline]
    fn as_ref(&self) -> &RouteRules {
        &self.rules
    }
}

impl AsRef<RouteSpec> for Route {
    fn as_ref(&self) -> &RouteSpec {
        &self.spec
    }
}

/// A limit as routes have it.
#[derive(Clone)]
pub struct RouteLimit {
    /// The section of the file that it comes from.
    pub spec: Arc<LimitRule>,
    /// The keys that it admits and refuses most often.
    pub keys: Arc<KeyTally>,
}

/// Requests of a route that are sent once.
#[derive(Debug)]
pub struct RouteCollapse {
    /// Those that are in flight.
    pub table: Arc<Collapse>,
    /// Whether two are equal.
    pub rules: RequestRules,
    /// Bytes of a body that is kept for others.
    pub max_body: u64,
}

/// A bandwidth: its limits pace bytes.
pub struct Bandwidth {
    /// The section of the file that it comes from.
    pub spec: Arc<BandwidthSpec>,
    /// The limit of the bytes that clients get; `None`: there is none.
    pub down: Option<Arc<Limit>>,
    /// The limit of the bytes that clients send; `None`: there is none.
    pub up: Option<Arc<Limit>>,
}

/// An upstream, shared by all workers.
pub struct Upstream {
    /// The section of the file that it comes from.
    pub spec: Arc<UpstreamSpec>,
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
    /// Concurrency slots per server; `None`: unlimited.
    pub places: Option<PlacesPlan>,
    /// The breaker; `None`: there is none.
    pub circuit: Option<Arc<Circuit>>,
    /// The times of its answers, where `[overload]` goes by them.
    pub responses: Option<Arc<ResponseSamples>>,
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

    /// The upstream of this name.
    pub fn upstream(&self, name: &str) -> Option<&Arc<Upstream>> {
        self.upstreams.iter().find(|upstream| &*upstream.spec.name == name)
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
