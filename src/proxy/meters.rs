//! What a worker counts. Each cell has one writer; `telemetry` sums them when somebody asks.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::telemetry::{Counter, Family, Histogram, Kind, Registry};

use super::pace_meters::{BandwidthMeters, MessageMeters, Over};
use super::snapshot::{RoutePlan, Snapshot};
use crate::admission::Malformed;
use crate::http1::Fault;
use crate::http2::Flood;
use crate::transport::Ended;

static REQUESTS: Family = Family {
    name: "sluicegate_requests_total",
    help: "Finished requests by route and outcome.",
    kind: Kind::Counter,
    labels: &["route", "outcome"],
};
static RESPONSES: Family = Family {
    name: "sluicegate_responses_total",
    help: "Responses sent by route and class of status.",
    kind: Kind::Counter,
    labels: &["route", "class"],
};
static DECISIONS: Family = Family {
    name: "sluicegate_limit_decisions_total",
    help: "Decisions of each limit: admitted, admitted-later, refused, queue-full, wait-timeout, too-costly, \
           table-full, missing-key, cancelled, queued, shadow-refused.",
    kind: Kind::Counter,
    labels: &["limit", "decision"],
};
static COSTS_INVALID: Family = Family {
    name: "sluicegate_limit_cost_invalid_total",
    help: "Stated costs that were not taken as they stood, by limit: of a request, what is no number (it counts as 1); \
           of a response, what is missing, no number or above max_cost.",
    kind: Kind::Counter,
    labels: &["limit"],
};
static UPSTREAM_SECONDS: Family = Family {
    name: "sluicegate_upstream_response_seconds",
    help: "Time from sending a request to the head of its response, by upstream.",
    kind: Kind::Histogram,
    labels: &["upstream"],
};
static UPSTREAM_RETRIES: Family = Family {
    name: "sluicegate_upstream_retries_total",
    help: "Requests sent again, by upstream and cause.",
    kind: Kind::Counter,
    labels: &["upstream", "cause"],
};
static CONNECTIONS: Family = Family {
    name: "sluicegate_client_connections_total",
    help: "Client connections accepted.",
    kind: Kind::Counter,
    labels: &[],
};
static ACCEPT_ERRORS: Family = Family {
    name: "sluicegate_accept_errors_total",
    help: "Failed accepts, after each of which accepting pauses.",
    kind: Kind::Counter,
    labels: &[],
};
static CONNECTIONS_REFUSED: Family = Family {
    name: "sluicegate_client_connections_refused_total",
    help: "Client connections closed at once, by the bound that they were over: max_connections of a worker or the limit \
           on open files (worker), of a listener (listener), of a client (client), or connection_rate (client-rate).",
    kind: Kind::Counter,
    labels: &["reason"],
};
static CONNECTIONS_USED_UP: Family = Family {
    name: "sluicegate_client_connections_used_up_total",
    help: "Client connections closed because they had carried max_requests.",
    kind: Kind::Counter,
    labels: &[],
};
static CONNECTIONS_DENIED: Family = Family {
    name: "sluicegate_client_connections_denied_total",
    help: "Client connections closed because [client] deny names their peer, or allow does not: at once, or at their \
           next request.",
    kind: Kind::Counter,
    labels: &[],
};
static FAULTS: Family = Family {
    name: "sluicegate_http1_faults_total",
    help: "HTTP/1 messages refused for what they are, by the side that sent them and the reason: what is malformed, too \
           large, or did not come in time.",
    kind: Kind::Counter,
    labels: &["side", "reason"],
};
static HANDSHAKES: Family = Family {
    name: "sluicegate_tls_handshakes_total",
    help: "TLS handshakes with clients by result: full, resumed, failed, client-gone, timeout, plain-http (no TLS at all), \
           too-many (closed at once because max_handshakes were going on).",
    kind: Kind::Counter,
    labels: &["result"],
};
static PROXY_HEADERS: Family = Family {
    name: "sluicegate_proxy_protocol_headers_total",
    help: "Connections to listeners with proxy_protocol = \"required\", by what they began with: a header with the client's \
           addresses (proxied), one without (local), something else (malformed), nothing in time (timeout) or at all \
           (client-gone); and those of peers that proxy_protocol_from does not list (unlisted).",
    kind: Kind::Counter,
    labels: &["result"],
};
static H2_ENDED: Family = Family {
    name: "sluicegate_http2_connection_errors_total",
    help: "HTTP/2 connections of clients that ended by an error, by the reason that either side gave (RFC 9113, 7).",
    kind: Kind::Counter,
    labels: &["reason"],
};
static H2_FLOODS: Family = Family {
    name: "sluicegate_http2_floods_total",
    help: "HTTP/2 connections of clients that were ended because they sent too many frames of a kind that carries nothing.",
    kind: Kind::Counter,
    labels: &["frames"],
};
static H2_REFUSED: Family = Family {
    name: "sluicegate_http2_streams_refused_total",
    help: "HTTP/2 requests refused unread because too many were in flight for the limit on open files.",
    kind: Kind::Counter,
    labels: &[],
};
static TUNNELS: Family = Family {
    name: "sluicegate_tunnels_total",
    help: "Connections that were switched to another protocol, such as WebSocket.",
    kind: Kind::Counter,
    labels: &[],
};

/// How an exchange ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Outcome {
    /// The upstream's response went out whole.
    Forwarded,
    /// The gateway answered as the route says.
    Responded,
    /// A limit refused.
    Refused,
    /// It waited for a limit in vain.
    WaitTimeout,
    /// It overran its timeout.
    Timeout,
    /// The upstream could not be reached or broke off.
    UpstreamError,
    /// The client went away.
    ClientGone,
    /// No route matched.
    NoRoute,
    /// The request was not acceptable.
    Malformed,
    /// The connection was switched to another protocol.
    Upgraded,
    /// A limit refused, and the connection was closed without an answer.
    Dropped,
    /// The connection was switched to another protocol, and closed for what its client sent there.
    MessageLimit,
}

impl Outcome {
    const ALL: [Self; 12] = [
        Self::Forwarded,
        Self::Responded,
        Self::Refused,
        Self::WaitTimeout,
        Self::Timeout,
        Self::UpstreamError,
        Self::ClientGone,
        Self::NoRoute,
        Self::Malformed,
        Self::Upgraded,
        Self::Dropped,
        Self::MessageLimit,
    ];

    /// Its name in metrics and in the access log.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Forwarded => "forwarded",
            Self::Responded => "responded",
            Self::Refused => "refused",
            Self::WaitTimeout => "wait-timeout",
            Self::Timeout => "timeout",
            Self::UpstreamError => "upstream-error",
            Self::ClientGone => "client-gone",
            Self::NoRoute => "no-route",
            Self::Malformed => "malformed",
            Self::Upgraded => "upgraded",
            Self::Dropped => "dropped",
            Self::MessageLimit => "message-limit",
        }
    }
}

/// What a limit said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Decision {
    /// Admitted at once.
    Admitted,
    /// Put in its queue.
    Queued,
    /// Admitted from its queue.
    AdmittedLater,
    /// Refused: no room.
    Refused,
    /// Refused: its queue is full.
    QueueFull,
    /// Waited in vain.
    WaitTimeout,
    /// Can never fit.
    TooCostly,
    /// Its key table is full.
    TableFull,
    /// The key is missing and the limit refuses that.
    MissingKey,
    /// The client went away while it waited.
    Cancelled,
    /// A shadow limit would have refused.
    ShadowRefused,
}

impl Decision {
    const ALL: [(Self, &'static str); 11] = [
        (Self::Admitted, "admitted"),
        (Self::Queued, "queued"),
        (Self::AdmittedLater, "admitted-later"),
        (Self::Refused, "refused"),
        (Self::QueueFull, "queue-full"),
        (Self::WaitTimeout, "wait-timeout"),
        (Self::TooCostly, "too-costly"),
        (Self::TableFull, "table-full"),
        (Self::MissingKey, "missing-key"),
        (Self::Cancelled, "cancelled"),
        (Self::ShadowRefused, "shadow-refused"),
    ];
}

/// By which bound a connection was closed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turned {
    /// Those of a worker.
    Worker,
    /// Those of a listener.
    Listener,
    /// Those of a client.
    Client,
    /// New ones of a client.
    ClientRate,
}

impl Turned {
    const ALL: [(Self, &str); 4] = [
        (Self::Worker, "worker"),
        (Self::Listener, "listener"),
        (Self::Client, "client"),
        (Self::ClientRate, "client-rate"),
    ];
}

/// How a TLS handshake with a client ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Handshook {
    /// With new keys.
    Full,
    /// With those of an earlier one.
    Resumed,
    /// They could not agree.
    Failed,
    /// The client went away.
    ClientGone,
    /// It took too long.
    Timeout,
    /// The client speaks plain HTTP.
    PlainHttp,
    /// It was not begun: too many were going on.
    TooMany,
}

impl Handshook {
    const ALL: [(Self, &'static str); 7] = [
        (Self::Full, "full"),
        (Self::Resumed, "resumed"),
        (Self::Failed, "failed"),
        (Self::ClientGone, "client-gone"),
        (Self::Timeout, "timeout"),
        (Self::PlainHttp, "plain-http"),
        (Self::TooMany, "too-many"),
    ];
}

/// What a connection began with, where a PROXY header is required.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Headed {
    /// A header with the client's addresses.
    Proxied,
    /// A header without.
    Local,
    /// Something else.
    Malformed,
    /// Nothing, in the time that there was.
    Timeout,
    /// Nothing: it was closed.
    ClientGone,
    /// It was not asked: it may not say for whom it is.
    Unlisted,
}

impl Headed {
    const ALL: [(Self, &'static str); 6] = [
        (Self::Proxied, "proxied"),
        (Self::Local, "local"),
        (Self::Malformed, "malformed"),
        (Self::Timeout, "timeout"),
        (Self::ClientGone, "client-gone"),
        (Self::Unlisted, "unlisted"),
    ];
}

const CLASSES: [&str; 4] = ["2xx", "3xx", "4xx", "5xx"];

/// A worker's counters for one generation of the configuration. Those of a name that stays are taken over by the next:
/// making them takes the registry's lock.
pub struct Meters {
    routes: Named<RouteMeters>,
    unrouted: Rc<RouteMeters>,
    limits: Named<LimitMeters>,
    upstreams: Named<UpstreamMeters>,
    bandwidths: Named<BandwidthMeters>,
    /// Of the routes that bound messages.
    messages: Named<MessageMeters>,
}

type Named<T> = Vec<(Arc<str>, Rc<T>)>;

/// What stands under each name: the old one, if there is one.
fn named<'n, T>(
    names: impl Iterator<Item = &'n Arc<str>>,
    old: Option<&Named<T>>,
    make: impl Fn(&str) -> T,
) -> Named<T> {
    let old: HashMap<&str, &Rc<T>> = old.into_iter().flatten().map(|(name, meters)| (&**name, meters)).collect();
    names
        .map(|name| {
            let kept = old.get(&**name).map(|meters| Rc::clone(meters));
            (Arc::clone(name), kept.unwrap_or_else(|| Rc::new(make(name))))
        })
        .collect()
}

struct RouteMeters {
    outcomes: Vec<Counter>,
    classes: Vec<Counter>,
}

struct LimitMeters {
    decisions: Vec<Counter>,
    costs_invalid: Counter,
}

/// A worker's figures of one upstream.
pub struct UpstreamMeters {
    /// Time to the response head.
    pub seconds: Histogram,
    /// Sent again because the connection had died idle.
    pub stale: Counter,
    /// Sent to another server because one could not be reached.
    pub unreachable: Counter,
}

/// A worker's counters that no configuration changes.
pub struct ConnectionMeters {
    /// Accepted connections.
    pub accepted: Counter,
    turned: [Counter; Turned::ALL.len()],
    /// Connections that have carried all the requests that they may.
    pub used_up: Counter,
    /// Connections closed because their peer is denied.
    pub denied: Counter,
    /// Failed accepts.
    pub accept_errors: Counter,
    /// Connections switched to another protocol.
    pub tunnels: Counter,
    /// Heads that did not come in time.
    pub head_timeout: Counter,
    /// Bodies that did not come in time.
    pub body_timeout: Counter,
    /// Clients that stopped reading their answer.
    pub read_timeout: Counter,
    /// Upstreams that stopped sending their answer.
    pub upstream_body_timeout: Counter,
    /// Upstreams that stopped reading a request.
    pub upstream_read_timeout: Counter,
    /// Upstreams that switched to a protocol that nobody had asked for.
    pub unasked_switch: Counter,
    /// Bodies larger than allowed.
    pub body_too_large: Counter,
    /// HTTP/2 requests refused for want of file descriptors.
    pub streams_refused: Counter,
    handshakes: Vec<Counter>,
    headed: [Counter; Headed::ALL.len()],
    h2_ended: Vec<(&'static str, Counter)>,
    h2_floods: Vec<(&'static str, Counter)>,
    malformed: Vec<Counter>,
    client_faults: Vec<Counter>,
    upstream_faults: Vec<Counter>,
}

impl ConnectionMeters {
    /// A worker's cells.
    pub fn new(registry: &Registry) -> Self {
        let faults = |side| Fault::ALL.iter().map(|fault| registry.counter(&FAULTS, &[side, fault.reason()])).collect();
        Self {
            accepted: registry.counter(&CONNECTIONS, &[]),
            turned: Turned::ALL.map(|(_, text)| registry.counter(&CONNECTIONS_REFUSED, &[text])),
            used_up: registry.counter(&CONNECTIONS_USED_UP, &[]),
            denied: registry.counter(&CONNECTIONS_DENIED, &[]),
            accept_errors: registry.counter(&ACCEPT_ERRORS, &[]),
            tunnels: registry.counter(&TUNNELS, &[]),
            head_timeout: registry.counter(&FAULTS, &["client", "head-timeout"]),
            body_timeout: registry.counter(&FAULTS, &["client", "body-timeout"]),
            read_timeout: registry.counter(&FAULTS, &["client", "read-timeout"]),
            upstream_body_timeout: registry.counter(&FAULTS, &["upstream", "body-timeout"]),
            upstream_read_timeout: registry.counter(&FAULTS, &["upstream", "read-timeout"]),
            unasked_switch: registry.counter(&FAULTS, &["upstream", "unasked-switch"]),
            body_too_large: registry.counter(&FAULTS, &["client", "body-too-large"]),
            streams_refused: registry.counter(&H2_REFUSED, &[]),
            handshakes: Handshook::ALL.iter().map(|(_, text)| registry.counter(&HANDSHAKES, &[text])).collect(),
            headed: Headed::ALL.map(|(_, text)| registry.counter(&PROXY_HEADERS, &[text])),
            h2_ended: Ended::REASONS.iter().map(|text| (*text, registry.counter(&H2_ENDED, &[text]))).collect(),
            h2_floods: Flood::KINDS.iter().map(|text| (*text, registry.counter(&H2_FLOODS, &[text]))).collect(),
            malformed: Malformed::ALL.map(|fault| registry.counter(&FAULTS, &["client", fault.reason()])).into(),
            client_faults: faults("client"),
            upstream_faults: faults("upstream"),
        }
    }

    /// Counts a connection that was closed at once.
    pub fn turned_away(&self, by: Turned) {
        if let Some(counter) = self.turned.get(by as usize) {
            counter.inc();
        }
    }

    /// Counts a request that admission could not understand.
    pub fn malformed(&self, fault: Malformed) {
        if let Some(counter) = self.malformed.get(fault as usize) {
            counter.inc();
        }
    }

    /// Counts how a handshake ended.
    pub fn handshook(&self, result: Handshook) {
        if let Some(counter) = self.handshakes.get(result as usize) {
            counter.inc();
        }
    }

    /// Counts what a connection began with.
    pub fn headed(&self, result: Headed) {
        if let Some(counter) = self.headed.get(result as usize) {
            counter.inc();
        }
    }

    /// Counts an HTTP/2 connection that ended by an error.
    pub fn h2_ended(&self, ended: &Ended) {
        count_word(&self.h2_ended, ended.reason());
    }

    /// Counts an HTTP/2 connection that was ended for too many frames of a kind.
    pub fn h2_flood(&self, frames: &str) {
        count_word(&self.h2_floods, frames);
    }

    /// Counts a fault of a client.
    pub fn client_fault(&self, fault: Fault) {
        count(&self.client_faults, fault);
    }

    /// Counts a fault of an upstream.
    pub fn upstream_fault(&self, fault: Fault) {
        count(&self.upstream_faults, fault);
    }
}

fn count_word(counters: &[(&'static str, Counter)], word: &str) {
    if let Some((_, counter)) = counters.iter().find(|(known, _)| *known == word) {
        counter.inc();
    }
}

/// Faults are in the order of their declaration.
fn count(faults: &[Counter], fault: Fault) {
    if let Some(counter) = faults.get(fault as usize) {
        counter.inc();
    }
}

impl RouteMeters {
    fn new(registry: &Registry, route: &str) -> Self {
        Self {
            outcomes: Outcome::ALL
                .iter()
                .map(|outcome| registry.counter(&REQUESTS, &[route, outcome.text()]))
                .collect(),
            classes: CLASSES.iter().map(|class| registry.counter(&RESPONSES, &[route, class])).collect(),
        }
    }
}

impl Meters {
    /// A worker's cells for a snapshot, those of `old` where the names are the same.
    pub fn new(registry: &Arc<Registry>, snapshot: &Snapshot, old: Option<&Self>) -> Self {
        let of_limit = |limit: &str| LimitMeters {
            decisions: Decision::ALL.iter().map(|(_, text)| registry.counter(&DECISIONS, &[limit, text])).collect(),
            costs_invalid: registry.counter(&COSTS_INVALID, &[limit]),
        };
        let of_upstream = |upstream: &str| UpstreamMeters {
            seconds: registry.histogram(&UPSTREAM_SECONDS, &[upstream]),
            stale: registry.counter(&UPSTREAM_RETRIES, &[upstream, "stale-connection"]),
            unreachable: registry.counter(&UPSTREAM_RETRIES, &[upstream, "unreachable"]),
        };
        let (routes, limits, upstreams) = (&snapshot.routes, &snapshot.limits, &snapshot.upstreams);
        let has_messages = |route: &&RoutePlan| route.pacing.as_ref().is_some_and(|pacing| pacing.messages.is_some());
        let bounded = routes.iter().filter(has_messages);
        Self {
            routes: named(routes.iter().map(|route| &route.name), old.map(|old| &old.routes), |route| {
                RouteMeters::new(registry, route)
            }),
            unrouted: old.map_or_else(|| Rc::new(RouteMeters::new(registry, "")), |old| Rc::clone(&old.unrouted)),
            limits: named(limits.iter().map(|limit| &limit.name), old.map(|old| &old.limits), of_limit),
            messages: named(bounded.map(|route| &route.name), old.map(|old| &old.messages), |route| {
                MessageMeters::new(registry, route)
            }),
            bandwidths: named(
                snapshot.bandwidths.iter().map(|one| &one.name),
                old.map(|old| &old.bandwidths),
                |bandwidth| BandwidthMeters::new(registry, bandwidth),
            ),
            upstreams: named(upstreams.iter().map(|one| &one.name), old.map(|old| &old.upstreams), of_upstream),
        }
    }

    /// Counts a finished exchange.
    pub fn finished(&self, route: Option<usize>, outcome: Outcome, status: Option<u16>) {
        let meters = route.and_then(|route| self.routes.get(route)).map_or(&self.unrouted, |(_, meters)| meters);
        if let Some(counter) = meters.outcomes.get(outcome as usize) {
            counter.inc();
        }
        // Nothing was sent to who was dropped: its status is for the logs.
        let sent = status.filter(|_| outcome != Outcome::Dropped);
        let class = sent.map(|status| usize::from(status / 100).wrapping_sub(2));
        if let Some(counter) = class.and_then(|class| meters.classes.get(class)) {
            counter.inc();
        }
    }

    /// Counts what a limit said; `limit` is its place in the file.
    pub fn decided(&self, limit: usize, decision: Decision) {
        if let Some(counter) = self.limits.get(limit).and_then(|(_, limit)| limit.decisions.get(decision as usize)) {
            counter.inc();
        }
    }

    /// Counts a cost that is no number; `limit` is the limit's place in the file.
    pub fn cost_invalid(&self, limit: usize) {
        if let Some((_, limit)) = self.limits.get(limit) {
            limit.costs_invalid.inc();
        }
    }

    /// Counts messages over the limit of their route.
    pub fn messages_over(&self, route: &str, over: Over, count: u64) {
        if let Some((_, meters)) = self.messages.iter().find(|(name, _)| **name == *route) {
            meters.add(over, count);
        }
    }

    /// The figures of a bandwidth, by its place.
    pub fn bandwidth(&self, bandwidth: usize) -> Option<&Rc<BandwidthMeters>> {
        self.bandwidths.get(bandwidth).map(|(_, meters)| meters)
    }

    /// The figures of an upstream, by its place in the file.
    pub fn upstream(&self, upstream: usize) -> Option<&UpstreamMeters> {
        self.upstreams.get(upstream).map(|(_, meters)| &**meters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_and_decision_has_its_own_place() {
        for (place, outcome) in Outcome::ALL.iter().enumerate() {
            assert_eq!(*outcome as usize, place);
        }
        for (place, fault) in Malformed::ALL.iter().enumerate() {
            assert_eq!(*fault as usize, place);
        }
        for (place, fault) in Fault::ALL.iter().enumerate() {
            assert_eq!(*fault as usize, place);
        }
        for (place, (result, _)) in Handshook::ALL.iter().enumerate() {
            assert_eq!(*result as usize, place);
        }
        for (place, (result, _)) in Headed::ALL.iter().enumerate() {
            assert_eq!(*result as usize, place);
        }
        for (place, (decision, _)) in Decision::ALL.iter().enumerate() {
            assert_eq!(*decision as usize, place);
        }
    }
}
