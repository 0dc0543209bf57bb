//! Model -> snapshot. Nothing here touches what runs.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use super::accepting::Counts;
use super::exceptions::{Exceptions, Secrets};
use super::live::{KeyLimit, LiveLimits};
use super::notices::NoticeSender;
use super::outlive::{self, UpstreamState};
use super::terms::{self, Limits};
use super::tls::Secured;
use super::weights::Weights;
use crate::admission::{KeyExpr, Networks, PlanTerms, RouteRules, Rules};
use crate::balance::{self, Balancer, Member, Strategy};
use crate::config::{
    Action, AdminAddress, LimitRule, Listener, Model, Preflight, Route, ServerAddress, ServerSpec, Upstream,
};
use crate::dead_letter::DeadLetters;
use crate::limiter::{KeyHasher, PolicyError};
use crate::proxy::{
    KeyTally, LimitPlan, ListenerPlan, RouteAction, RouteEdits, RoutePacing, RoutePlan, Snapshot, UpstreamPlan,
};
use crate::redact::{Redactor, SecretError};
use crate::telemetry::AccessLog;
use crate::time::{Clock, Schedule};
use crate::tls::{Tickets, TlsError};
use crate::upstream::{EchoServers, Endpoint, Link, Load};

/// Why a model that parsed cannot run here and now.
#[derive(Debug)]
pub enum BuildError {
    /// A listening socket.
    Listen {
        /// The address.
        address: SocketAddr,
        /// `[[listener]]` or `[admin]`.
        section: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A listening socket whose port an earlier listener of this gateway holds.
    OwnPort {
        /// The address.
        address: SocketAddr,
        /// The address of the listener that holds it.
        own: SocketAddr,
    },
    /// The Unix socket of admin.
    AdminSocket {
        /// The address.
        address: AdminAddress,
        /// Why.
        source: io::Error,
    },
    /// An echo server.
    Echo {
        /// Its name.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// The dead-letter log.
    DeadLetters {
        /// Its directory.
        directory: String,
        /// Why.
        source: io::Error,
    },
    /// The gateway that runs does not let this one take over.
    NotWanted(io::Error),
    /// The file of a log.
    LogFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The key of the marks that stand for secrets.
    RedactSecret(SecretError),
    /// The limits of a route.
    Limits {
        /// The route.
        route: Arc<str>,
        /// Why.
        source: PolicyError,
    },
    /// A listener's TLS.
    ListenerTls {
        /// The listener.
        address: SocketAddr,
        /// Why.
        source: TlsError,
    },
    /// Admin's TLS.
    AdminTls(TlsError),
    /// TLS to an upstream.
    UpstreamTls {
        /// The upstream.
        name: Arc<str>,
        /// Why.
        source: TlsError,
    },
    /// A thread could not be started.
    Thread(io::Error),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen { address, section, source } => {
                write!(f, "{section} {address}: cannot listen: {source}")?;
                match source.kind() {
                    io::ErrorKind::AddrInUse => {
                        write!(f, "; something else holds the port (ss -ltnp shows what), or choose another")
                    }
                    io::ErrorKind::PermissionDenied => {
                        write!(f, "; ports below 1024 need root or CAP_NET_BIND_SERVICE")
                    }
                    io::ErrorKind::AddrNotAvailable => write!(f, "; this machine has no such address"),
                    _ => Ok(()),
                }
            }
            Self::OwnPort { address, own } => write!(
                f,
                "[[listener]] {address}: this gateway itself listens on {own}, and two sockets cannot share the port; \
                 remove {own} in one reload and add {address} in the next, or restart"
            ),
            Self::AdminSocket { address, source } => write!(
                f,
                "[admin] {address}: cannot listen: {source}; let the gateway's user write its directory, or choose another"
            ),
            Self::Echo { name, source } => write!(f, "echo:{name} cannot be started: {source}"),
            Self::DeadLetters { directory, source } => write!(f, "[dead_letter] {directory}: {source}"),
            Self::NotWanted(source) => {
                write!(f, "the gateway that runs does not hand over: it has ended, or goes on ({source})")
            }
            Self::LogFile { path, source } => write!(
                f,
                "[log] access_file {} cannot be opened: {source}; make its directory, or let the gateway's user write there",
                path.display()
            ),
            Self::RedactSecret(error) => write!(f, "[dead_letter] {error}"),
            Self::Limits { route, source } => write!(f, "route {route:?}: {source}"),
            Self::ListenerTls { address, source } => write!(f, "[[listener]] {address}: {source}"),
            Self::AdminTls(source) => write!(f, "[admin]: {source}"),
            Self::UpstreamTls { name, source } => write!(f, "upstream {name:?}: {source}"),
            Self::Thread(source) => write!(f, "a thread cannot be started: {source}"),
        }
    }
}

impl std::error::Error for BuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Listen { source, .. }
            | Self::AdminSocket { source, .. }
            | Self::Echo { source, .. }
            | Self::DeadLetters { source, .. }
            | Self::LogFile { source, .. }
            | Self::NotWanted(source)
            | Self::Thread(source) => Some(source),
            Self::RedactSecret(error) => Some(error),
            Self::Limits { source, .. } => Some(source),
            Self::AdminTls(source) | Self::ListenerTls { source, .. } | Self::UpstreamTls { source, .. } => {
                Some(source)
            }
            Self::OwnPort { .. } => None,
        }
    }
}

/// The parts that outlive a snapshot, by the names that identify them across reloads.
pub struct LiveState {
    /// Live limits, and what they count by.
    pub limits: LiveLimits,
    /// In-flight cells of each upstream's servers.
    pub loads: HashMap<(Arc<str>, Arc<str>), Arc<Load>>,
    /// The weights that an operator has given to servers.
    pub weights: Weights,
    /// The memory of each upstream.
    pub upstreams: HashMap<Arc<str>, UpstreamState>,
    /// Tells when servers came to their states.
    pub clock: Clock,
    /// The settings of TLS.
    pub tls: Secured,
    /// The counts of connections.
    pub accepting: Counts,
    /// The keys of session tickets.
    pub tickets: Tickets,
    /// The servers inside this process.
    pub echo: EchoServers,
    /// The secret of key fingerprints.
    pub hasher: KeyHasher,
    /// The redactor, which makes the marks that stand for secrets.
    pub redactor: Redactor,
    /// How many workers there are.
    pub workers: usize,
    /// The counts of the keys that limits meet, and the parts of those keys.
    pub tallies: HashMap<Arc<str>, (KeyExpr, Arc<KeyTally>)>,
    /// The exceptions of single keys.
    pub exceptions: Exceptions,
    /// The limits that count those keys that have numbers of their own.
    pub of_keys: Vec<KeyLimit>,
    /// Hears what other gateways tell.
    pub notices: NoticeSender,
}

impl LiveState {
    /// From now on the exceptions of keys hold, for the limits of this model.
    pub fn install_exceptions(&mut self, model: &Model) {
        let secrets = Secrets::of(model, &self.hasher);
        self.exceptions.install(model, &self.limits, &secrets, self.clock.wall_now());
    }
}

/// A snapshot that is ready to be published, and what has to be done when it is.
pub struct Built {
    /// To be published.
    pub snapshot: Snapshot,
    /// Live limits from now on.
    pub limits: LiveLimits,
    /// In-flight cells from now on.
    pub loads: HashMap<(Arc<str>, Arc<str>), Arc<Load>>,
    /// The settings of TLS from now on.
    pub tls: Secured,
    /// The counts of connections from now on.
    pub accepting: Counts,
    /// When limits hold that do not always, from now on.
    pub schedules: HashMap<Arc<str>, Arc<Schedule>>,
    /// The limits that count single keys with numbers of their own, from now on.
    pub of_keys: Vec<KeyLimit>,
}

/// Builds the snapshot of a model. Limits that stay are taken over, not yet reconfigured.
pub fn build(
    model: &Arc<Model>,
    generation: u64,
    lasting: &mut LiveState,
    dead_letters: Option<DeadLetters>,
    access_log: Option<AccessLog>,
) -> Result<Built, BuildError> {
    lasting.exceptions.make_tables(model);
    let of_keys = lasting.exceptions.counted(model, lasting.clock.wall_now());
    let live = terms::live(model, &of_keys, lasting);
    let tls = lasting.tls.renew(model, &lasting.tickets)?;
    let accepting = lasting.accepting.renew(model);
    let mut loads = HashMap::new();
    let mut upstreams = Vec::with_capacity(model.upstreams.len());
    for upstream in &model.upstreams {
        upstreams.push(Arc::new(upstream_plan(upstream, lasting, &mut loads, &tls)?));
    }
    let schedules = schedules(model);
    let limits = Limits::new(model, &live, &schedules, &lasting.hasher, &lasting.exceptions);
    let mut rules = Vec::with_capacity(model.routes.len());
    for route in &model.routes {
        rules.push(route_rules(route, model, &limits)?);
    }
    let snapshot = Snapshot {
        generation,
        model: Arc::clone(model),
        rules: Rules::new(model.client.rules(), rules, lasting.hasher.clone()),
        deny: Networks::new(model.client.deny.iter().copied()),
        accept: accepting.plan(model)?,
        routes: model.routes.iter().map(|route| Arc::new(route_plan(route))).collect(),
        limits: model.limits.iter().map(|rule| Arc::new(limit_plan(rule, lasting))).collect(),
        sends_proxy_headers: upstreams.iter().any(|upstream| upstream.link.proxy_protocol.is_some()),
        upstreams,
        bandwidths: accepting.bandwidths(model),
        listeners: model
            .listeners
            .iter()
            .map(|listener| (listener.address, listener_plan(listener, &tls, &accepting)))
            .collect(),
        replay_guard: dead_letters.as_ref().map(|log| log.replay_guard(&lasting.redactor)),
        dead_letters,
        // Opened last, and put in then.
        deferrals: None,
        access_log,
        hasher: lasting.hasher.clone(),
    };
    Ok(Built { snapshot, limits: live, loads, tls, accepting, schedules, of_keys })
}

fn upstream_plan(
    upstream: &Upstream,
    lasting: &mut LiveState,
    loads: &mut HashMap<(Arc<str>, Arc<str>), Arc<Load>>,
    tls: &Secured,
) -> Result<UpstreamPlan, BuildError> {
    let mut servers = Vec::with_capacity(upstream.servers.len());
    let mut shares = Vec::with_capacity(upstream.servers.len());
    let mut members = Vec::with_capacity(upstream.servers.len());
    let mut weights = Vec::with_capacity(upstream.servers.len());
    for ServerSpec { address, weight, state, backup } in &upstream.servers {
        let name: Arc<str> = address.to_string().into();
        let (host, port) = match address {
            ServerAddress::Tcp { host, port } => (host.as_str().into(), *port),
            ServerAddress::Echo(echo) => {
                let address =
                    lasting.echo.address(echo).map_err(|source| BuildError::Echo { name: echo.clone(), source })?;
                (address.ip().to_string().into(), address.port())
            }
        };
        let key = (Arc::clone(&upstream.name), Arc::clone(&name));
        let load = lasting.loads.get(&key).cloned().unwrap_or_else(|| Load::new(lasting.workers));
        loads.insert(key, Arc::clone(&load));
        let weight = lasting.weights.of(&upstream.name, &name, *weight);
        weights.push(weight);
        shares.push(balance::Server { name: name.to_string(), weight });
        members.push(Member { name: Arc::clone(&name), service: *state, is_backup: *backup });
        servers.push((Endpoint { name, host, port }, load));
    }
    let old = lasting.upstreams.get(&upstream.name);
    Ok(UpstreamPlan {
        balancer: Balancer::new(upstream.balance, upstream.hash_balance, &shares),
        link: Link {
            protocol: upstream.protocol,
            tls: tls.upstream(&upstream.name),
            proxy_protocol: upstream.proxy_protocol,
        },
        places: outlive::places(upstream, servers.iter().map(|(endpoint, _)| &endpoint.name), old),
        circuit: outlive::circuit(upstream, old),
        weights,
        states: outlive::states(upstream, members, old, lasting.clock.now()),
        servers,
    })
}

fn listener_plan(listener: &Listener, tls: &Secured, accepting: &Counts) -> ListenerPlan {
    let Listener {
        address,
        // Counts has the places, and Secured the TLS, both by the address.
        max_connections: _,
        protocol: _,
        tls: _,
        reject_unknown_sni: _,
        // Asked by the methods below.
        redirect_to_https: _,
        proxy_protocol: _,
        proxy_protocol_from: _,
    } = listener;
    ListenerPlan {
        places: accepting.places(listener),
        tls: tls.listener(address),
        redirect_to_https: listener.redirect_port(),
        proxied_by: listener.proxied_by().map(|from| Arc::new(Networks::new(from.iter().copied()))),
    }
}

/// The part of a route that admission needs.
pub(super) fn route_rules(route: &Route, model: &Model, limits: &Limits<'_>) -> Result<RouteRules, BuildError> {
    let hash_key = match route.action {
        Action::Forward(upstream) => model
            .upstreams
            .get(upstream)
            .filter(|upstream| upstream.balance == Strategy::Hash && upstream.servers.len() > 1)
            .map(|upstream| upstream.hash_key.clone()),
        Action::Respond { .. } | Action::Redirect { .. } => None,
    };
    let terms = limits.terms(route)?;
    let plans = limits.plans(route, &terms)?;
    let PlanTerms { policy, limits, timeout, .. } = terms;
    Ok(RouteRules {
        name: Arc::clone(&route.name),
        pattern: route.pattern.clone(),
        active: route.active.clone().map(|rules| Arc::new(Schedule::new(rules))),
        policy,
        limits,
        hash_key,
        timeout,
        response_timeout: route.response_timeout,
        count_preflight: route.cors.as_ref().is_none_or(|cors| cors.count_preflight),
        takes_preflights: route.cors.as_ref().is_some_and(|cors| cors.preflight == Preflight::Answer),
        plans,
    })
}

/// When limits hold that do not always: one for all routes that use such a limit.
pub(super) fn schedules(model: &Model) -> HashMap<Arc<str>, Arc<Schedule>> {
    let schedule =
        |rule: &LimitRule| Some((Arc::clone(&rule.spec.name), Arc::new(Schedule::new(rule.active.clone()?))));
    model.limits.iter().filter_map(schedule).collect()
}

fn route_plan(route: &Route) -> RoutePlan {
    let Route {
        name,
        // route_rules takes them, the last two by Limits.
        pattern: _,
        active: _,
        cost: _,
        response_timeout: _,
        plans: _,
        limits,
        action,
        on_limit,
        timeout,
        max_body_size,
        capture_body,
        cors,
        // route_edits takes them.
        request_headers: _,
        response_headers: _,
        rewrite: _,
        host: _,
        refusal,
        // route_pacing takes them.
        bandwidth: _,
        messages: _,
    } = route;
    RoutePlan {
        name: Arc::clone(name),
        action: match action {
            Action::Forward(upstream) => RouteAction::Forward(*upstream),
            Action::Respond { status, body } => RouteAction::Respond { status: *status, body: body.clone() },
            Action::Redirect { status, target } => RouteAction::Redirect { status: *status, target: target.clone() },
        },
        on_limit: *on_limit,
        cors: cors.clone(),
        limits: limits.clone(),
        timeout: *timeout,
        max_body_size: *max_body_size,
        capture_body: *capture_body,
        edits: route_edits(route),
        refusal: refusal.clone(),
        pacing: route_pacing(route),
    }
}

fn route_pacing(route: &Route) -> Option<Box<RoutePacing>> {
    let is_free = route.bandwidth.is_empty() && route.messages.is_none();
    (!is_free).then(|| Box::new(RoutePacing { bandwidths: route.bandwidth.clone(), messages: route.messages }))
}

fn route_edits(route: &Route) -> Option<Box<RouteEdits>> {
    let edits = RouteEdits {
        request: route.request_headers.clone(),
        response: route.response_headers.clone(),
        rewrite: route.rewrite.clone(),
        host: route.host.clone(),
    };
    (!edits.is_empty()).then(|| Box::new(edits))
}

fn limit_plan(rule: &LimitRule, lasting: &LiveState) -> LimitPlan {
    let LimitRule {
        // The live limit has the rest of it.
        spec,
        key_is_secret,
        timeout,
        status,
        count_when,
        cost_from_response,
        retry_after_jitter,
        refusal,
        // Limits takes them, for what holds on a route.
        key,
        on_missing_key: _,
        cost: _,
        exempt: _,
        active: _,
        // For single keys that have other numbers.
        settings: _,
    } = rule;
    let known = lasting.tallies.get(&spec.name).filter(|(own, _)| own == key);
    LimitPlan {
        keys: known.map_or_else(|| Arc::new(KeyTally::new(lasting.workers)), |(_, tally)| Arc::clone(tally)),
        name: Arc::clone(&spec.name),
        key_is_secret: *key_is_secret,
        key_is_in_access_log: key.is_in_access_log(),
        status: *status,
        retry_after_jitter: *retry_after_jitter,
        timeout: *timeout,
        count_when: count_when.clone(),
        cost_from_response: cost_from_response.clone(),
        refusal: refusal.clone(),
    }
}
