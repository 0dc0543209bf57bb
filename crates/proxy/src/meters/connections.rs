//! A worker's counters of its connections, which no configuration changes.

use crate::client::StreamBound;
use crate::deadlines::Dismissed;
use crate::snapshot::ConnectionRejection;
use sluicegate_admission::Malformed;
use sluicegate_config::Decides;
use sluicegate_http1::Fault;
use sluicegate_http2::FloodKind;
use sluicegate_telemetry::{Counter, Family, MetricKind, Registry};
use sluicegate_transport::{ConnectionError, Ended};

static CONNECTIONS: Family = Family {
    name: "sluicegate_client_connections_total",
    help: "Client connections accepted.",
    kind: MetricKind::Counter,
    labels: &[],
};
/// An example is too many open files. The pause is 50 ms.
static ACCEPT_ERRORS: Family = Family {
    name: "sluicegate_accept_errors_total",
    help: "Failed accepts, after each of which accepting pauses.",
    kind: MetricKind::Counter,
    labels: &[],
};
/// `share`: few places are left, and the client has more connections than that.
static CONNECTIONS_REFUSED: Family = Family {
    name: "sluicegate_client_connections_refused_total",
    help: "Client connections closed at once, by the bound that they were over: max_connections of a worker or the limit \
           on open files (worker), of a listener (listener), of a client (client), connection_rate (client-rate), or its share of the last places (share).",
    kind: MetricKind::Counter,
    labels: &["reason"],
};
static CONNECTIONS_RECLAIMED: Family = Family {
    name: "sluicegate_client_connections_reclaimed_total",
    help: "Client connections closed near a bound to make room for others: no whole request had come for a while (silent), \
           or they were idle after one (idle).",
    kind: MetricKind::Counter,
    labels: &["reason"],
};
static CONNECTIONS_MAX_REQUESTS: Family = Family {
    name: "sluicegate_client_connections_max_requests_total",
    help: "Client connections closed because they had carried max_requests.",
    kind: MetricKind::Counter,
    labels: &[],
};
static CONNECTIONS_DENIED: Family = Family {
    name: "sluicegate_client_connections_denied_total",
    help: "Client connections closed because [client] deny names their peer, or allow does not: at once, or at their \
           next request.",
    kind: MetricKind::Counter,
    labels: &[],
};
/// `side` is the sender: `client` or `upstream`. [operating.md](operating.md#rejected-messages) has the reasons.
/// Every series is there from the start.
static FAULTS: Family = Family {
    name: "sluicegate_http1_faults_total",
    help: "HTTP/1 messages refused for what they are, by the side that sent them and the reason: what is malformed, too \
           large, or did not come in time.",
    kind: MetricKind::Counter,
    labels: &["side", "reason"],
};
static HANDSHAKES: Family = Family {
    name: "sluicegate_tls_handshakes_total",
    help: "TLS handshakes with clients by result: full, resumed, failed, client-gone, timeout, plain-http (no TLS at all), \
           too-many (closed at once because max_handshakes were going on, or half as many of the same client), displaced \
           (ended because max_handshakes were going on and its client had most of them).",
    kind: MetricKind::Counter,
    labels: &["result"],
};
static PROXY_HEADERS: Family = Family {
    name: "sluicegate_proxy_protocol_headers_total",
    help: "Connections to listeners with proxy_protocol = \"required\", by what they began with: a header with the client's \
           addresses (proxied), one without (local), something else (malformed), nothing in time (timeout) or at all \
           (client-gone); and those of peers that proxy_protocol_from does not list (unlisted).",
    kind: MetricKind::Counter,
    labels: &["result"],
};
static H2_ENDED: Family = Family {
    name: "sluicegate_http2_connection_errors_total",
    help: "HTTP/2 connections of clients that ended by an error, by the reason that either side gave (RFC 9113, 7).",
    kind: MetricKind::Counter,
    labels: &["reason"],
};
/// [http2.md](http2.md#bounds) has the bounds.
static H2_FLOODS: Family = Family {
    name: "sluicegate_http2_floods_total",
    help: "HTTP/2 connections of clients that were ended because they sent too many frames of a kind that carries nothing.",
    kind: MetricKind::Counter,
    labels: &["frames"],
};
/// `kind` is the listener's `decides`. `allowed` and `refused` are decisions; the others are counted by no limit.
static DECISIONS_ASKED: Family = Family {
    name: "sluicegate_decisions_asked_total",
    help: "Questions of other programs to listeners with `decides`, by their answers: allowed; refused by a limit; denied by \
           [client]; undecided, since no route takes the request or it cannot be decided for others; invalid; \
           not-allowed, since its peer is not in `allow`.",
    kind: MetricKind::Counter,
    labels: &["kind", "outcome"],
};
static OVERRIDES_IGNORED: Family = Family {
    name: "sluicegate_descriptor_limits_ignored_total",
    help: "Descriptors that came to a listener with decides = \"envoy-rls\" with a limit of their own, which is not read: the \
           limits of the file hold.",
    kind: MetricKind::Counter,
    labels: &[],
};
/// Bounds: `connection-streams`, `connection-heads`, `client-heads`, `client-resets`, `share-of-streams`,
/// `share-of-heads`, `worker-streams`, `worker-heads`; see [http2.md](http2.md#bounds).
static H2_REFUSED: Family = Family {
    name: "sluicegate_http2_streams_refused_total",
    help: "HTTP/2 requests refused unread (REFUSED_STREAM), by the bound that they met: requests or decoded heads that \
           are under way, of their connection, their client, their worker or their client's share of it; or what their \
           client has given up before.",
    kind: MetricKind::Counter,
    labels: &["bound"],
};
/// A panic is a fault of the gateway itself: the log names it with the request's id. Please report it.
static PANICS: Family = Family {
    name: "sluicegate_panics_total",
    help: "Panics, each of which has cost the request or the connection that it was met in, or a worker its connections.",
    kind: MetricKind::Counter,
    labels: &[],
};
static TUNNELS: Family = Family {
    name: "sluicegate_tunnels_total",
    help: "Connections that were switched to another protocol, such as WebSocket.",
    kind: MetricKind::Counter,
    labels: &[],
};

words! {
    /// How a TLS handshake with a client ended.
    pub enum HandshakeOutcome {
        /// With new keys.
        Full = "full",
        /// With those of an earlier one.
        Resumed = "resumed",
        /// They could not agree.
        Failed = "failed",
        /// The client went away.
        ClientGone = "client-gone",
        /// It took too long.
        Timeout = "timeout",
        /// The client speaks plain HTTP.
        PlainHttp = "plain-http",
        /// It was not begun: too many were going on.
        TooMany = "too-many",
        /// It was ended for that of another client.
        Displaced = "displaced",
    }
}

words! {
    /// The beginning of a connection, where a PROXY header is required.
    pub enum HeaderResult {
        /// A header with the client's addresses.
        Proxied = "proxied",
        /// A header without.
        Local = "local",
        /// Something else.
        Malformed = "malformed",
        /// Nothing, in the time that there was.
        Timeout = "timeout",
        /// Nothing: it was closed.
        ClientGone = "client-gone",
        /// It was not asked: it may not say for whom it is.
        Unlisted = "unlisted",
    }
}

words! {
    /// The answer to a question of another program.
    pub enum QuestionOutcome {
        /// The request may go on.
        Allowed = "allowed",
        /// A limit refuses it.
        Refused = "refused",
        /// Its client is denied by `[client]`.
        Denied = "denied",
        /// No route takes it, or not one that can be decided for others.
        Undecided = "undecided",
        /// It describes no request.
        Invalid = "invalid",
        /// Its peer may not ask.
        NotAllowed = "not-allowed",
    }
}

/// A worker's counters that no configuration changes.
pub struct ConnectionMeters {
    /// Accepted connections.
    pub accepted: Counter,
    turned: [Counter; ConnectionRejection::ALL.len()],
    reclaimed_silent: Counter,
    reclaimed_idle: Counter,
    /// Connections that have carried all the requests that they may.
    pub max_requests: Counter,
    /// Connections closed because their peer is denied.
    pub denied: Counter,
    /// Failed accepts.
    pub accept_errors: Counter,
    /// Panics.
    pub panics: Counter,
    /// Connections switched to another protocol.
    pub tunnels: Counter,
    /// Heads that did not come in time.
    pub head_timeout: Counter,
    /// Bodies that did not come in time.
    pub body_timeout: Counter,
    /// Bodies that came below the least rate.
    pub body_too_slow: Counter,
    /// Clients that stopped reading their answer.
    pub read_timeout: Counter,
    /// Upstreams that stopped sending their answer.
    pub upstream_body_timeout: Counter,
    /// Upstreams that stopped reading a request.
    pub upstream_read_timeout: Counter,
    /// Upstreams that switched to a protocol that nobody had asked for.
    pub unexpected_upgrade: Counter,
    /// Bodies larger than allowed.
    pub body_too_large: Counter,
    streams_refused: [Counter; StreamBound::ALL.len()],
    asked: [[Counter; QuestionOutcome::ALL.len()]; Decides::ALL.len()],
    handshakes: [Counter; HandshakeOutcome::ALL.len()],
    headers: [Counter; HeaderResult::ALL.len()],
    h2_ended: [Counter; ConnectionError::ALL.len()],
    h2_floods: [Counter; FloodKind::ALL.len()],
    overrides_ignored: Counter,
    malformed: [Counter; Malformed::ALL.len()],
    client_faults: [Counter; Fault::ALL.len()],
    upstream_faults: [Counter; Fault::ALL.len()],
}

impl ConnectionMeters {
    /// A worker's cells.
    pub fn new(registry: &Registry) -> Self {
        let faults = |side| Fault::ALL.map(|fault| registry.counter(&FAULTS, &[side, fault.word()]));
        Self {
            accepted: registry.counter(&CONNECTIONS, &[]),
            turned: ConnectionRejection::ALL.map(|bound| registry.counter(&CONNECTIONS_REFUSED, &[bound.word()])),
            reclaimed_silent: registry.counter(&CONNECTIONS_RECLAIMED, &["silent"]),
            reclaimed_idle: registry.counter(&CONNECTIONS_RECLAIMED, &["idle"]),
            max_requests: registry.counter(&CONNECTIONS_MAX_REQUESTS, &[]),
            denied: registry.counter(&CONNECTIONS_DENIED, &[]),
            accept_errors: registry.counter(&ACCEPT_ERRORS, &[]),
            panics: registry.counter(&PANICS, &[]),
            tunnels: registry.counter(&TUNNELS, &[]),
            head_timeout: registry.counter(&FAULTS, &["client", "head-timeout"]),
            body_timeout: registry.counter(&FAULTS, &["client", "body-timeout"]),
            body_too_slow: registry.counter(&FAULTS, &["client", "body-too-slow"]),
            read_timeout: registry.counter(&FAULTS, &["client", "read-timeout"]),
            upstream_body_timeout: registry.counter(&FAULTS, &["upstream", "body-timeout"]),
            upstream_read_timeout: registry.counter(&FAULTS, &["upstream", "read-timeout"]),
            unexpected_upgrade: registry.counter(&FAULTS, &["upstream", "unexpected-upgrade"]),
            body_too_large: registry.counter(&FAULTS, &["client", "body-too-large"]),
            streams_refused: StreamBound::ALL.map(|bound| registry.counter(&H2_REFUSED, &[bound.word()])),
            asked: Decides::ALL.map(|kind| {
                QuestionOutcome::ALL.map(|outcome| registry.counter(&DECISIONS_ASKED, &[kind.word(), outcome.word()]))
            }),
            handshakes: HandshakeOutcome::ALL.map(|result| registry.counter(&HANDSHAKES, &[result.word()])),
            headers: HeaderResult::ALL.map(|result| registry.counter(&PROXY_HEADERS, &[result.word()])),
            h2_ended: ConnectionError::ALL.map(|error| registry.counter(&H2_ENDED, &[error.word()])),
            overrides_ignored: registry.counter(&OVERRIDES_IGNORED, &[]),
            h2_floods: FloodKind::ALL.map(|kind| registry.counter(&H2_FLOODS, &[kind.word()])),
            malformed: Malformed::ALL.map(|fault| registry.counter(&FAULTS, &["client", fault.word()])),
            client_faults: faults("client"),
            upstream_faults: faults("upstream"),
        }
    }

    /// Counts a connection that was closed at once.
    pub fn turned_away(&self, by: ConnectionRejection) {
        self.turned[by as usize].inc();
    }

    /// Counts a connection that was closed for another.
    pub fn reclaimed(&self, why: Dismissed) {
        match why {
            Dismissed::Silent => self.reclaimed_silent.inc(),
            Dismissed::Idle => self.reclaimed_idle.inc(),
            Dismissed::Handshake => {}
        }
    }

    /// Counts a request that admission could not understand.
    pub fn malformed(&self, fault: Malformed) {
        self.malformed[fault as usize].inc();
    }

    /// Counts how a handshake ended.
    pub fn handshook(&self, result: HandshakeOutcome) {
        self.handshakes[result as usize].inc();
    }

    /// Counts what a connection began with.
    pub fn header_read(&self, result: HeaderResult) {
        self.headers[result as usize].inc();
    }

    /// A question of this kind has this answer.
    pub fn asked(&self, kind: Decides, outcome: QuestionOutcome) {
        self.asked[kind as usize][outcome as usize].inc();
    }

    /// So many descriptors had limits of their own.
    pub fn overrides_ignored(&self, count: u64) {
        self.overrides_ignored.add(count);
    }

    /// Counts requests of HTTP/2 that were refused unread.
    pub fn streams_refused(&self, by: StreamBound, count: u64) {
        self.streams_refused[by as usize].add(count);
    }

    /// Counts an HTTP/2 connection that ended by an error.
    pub fn h2_ended(&self, ended: &Ended) {
        if let Some(error) = ended.error() {
            self.h2_ended[error as usize].inc();
        }
    }

    /// Counts an HTTP/2 connection that was ended for too many frames of a kind.
    pub fn h2_flood(&self, frames: FloodKind) {
        self.h2_floods[frames as usize].inc();
    }

    /// Counts a fault of a client.
    pub fn client_fault(&self, fault: Fault) {
        self.client_faults[fault as usize].inc();
    }

    /// Counts a fault of an upstream.
    pub fn upstream_fault(&self, fault: Fault) {
        self.upstream_faults[fault as usize].inc();
    }
}
