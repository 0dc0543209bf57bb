//! The counters of a worker. Each cell has one writer; `telemetry` sums them when somebody asks.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use sluicegate_balance::RetryBudget;
use sluicegate_telemetry::{
    Column, Counter, Counters, Family, FromStart, Group, Histogram, MetricKind, Registry, RowCounter,
};
use sluicegate_time::Span;
use sluicegate_upstream::ServerTimes;

use super::pace::{BandwidthMeters, MessageMeters};

/// Outcomes: `forwarded`; `responded` (by the route itself); `refused`; `blocked` (the same of a key that is
/// blocked); `wait-timeout`; `timeout`; `upstream-error`; `client-gone`; `no-route`; `malformed` (also too large);
/// `upgraded` (a tunnel, counted when it ends); `message-limit` (a WebSocket closed for the messages of its client);
/// `dropped` (a limit said no, and the route has `on_limit = "drop"`); `deferred` (the same with `"defer"`, and it
/// was kept); `breaker` (that of the upstream was open); `queue-full` (no place at the upstream); `shed` (by its route's `priority`); `cancelled` (by an
/// operator). `route` is empty where no route matched.
static REQUESTS: Family = Family {
    name: "sluicegate_requests_total",
    help: "Finished requests by route and outcome.",
    kind: MetricKind::Counter,
    labels: &["route", "outcome"],
};
/// A refused gRPC call counts as its limit's status. A 101 is in no class, and neither is a dropped request.
static RESPONSES: Family = Family {
    name: "sluicegate_responses_total",
    help: "Responses sent by route and class of status.",
    kind: MetricKind::Counter,
    labels: &["route", "class"],
};
/// It is there of a route that has had a request.
static REQUEST_SECONDS: Family = Family {
    name: "sluicegate_request_seconds",
    help: "Time from the arrival of a request to the end of its answer, by route.",
    kind: MetricKind::Histogram,
    labels: &["route"],
};
static WAIT_SECONDS: Family = Family {
    name: "sluicegate_request_wait_seconds",
    help: "Time that requests which waited did so, for a limit, its store or a place at the upstream, by route.",
    kind: MetricKind::Histogram,
    labels: &["route"],
};
/// `admitted` at once; `queued`, then `admitted-after-wait`, `wait-timeout` or `cancelled`; `refused`; `blocked`;
/// `queue-full`; `too-costly`; `table-full`; `missing-key`; `shadow-refused`.
static DECISIONS: Family = Family {
    name: "sluicegate_limit_decisions_total",
    help: "Decisions of each limit: admitted, admitted-after-wait, refused, queue-full, wait-timeout, too-costly, \
           table-full, missing-key, cancelled, queued, shadow-refused.",
    kind: MetricKind::Counter,
    labels: &["limit", "decision"],
};
/// For a response the estimate stands then, or `max_cost`.
static COSTS_INVALID: Family = Family {
    name: "sluicegate_limit_cost_invalid_total",
    help: "Stated costs that were not taken as they stood, by limit: of a request, what is no number (it counts as 1); \
           of a response, what is missing, no number or above max_cost.",
    kind: MetricKind::Counter,
    labels: &["limit"],
};
/// Of a limit with `cost_from_response` or `cost_by_status`, and of hits with `apply_on_stream_done`; of the others each request
/// has cost what it was counted as.
static COSTS_USED: Family = Family {
    name: "sluicegate_limit_used_total",
    help: "Costs of answered requests as they were counted in the end, by limit with cost_from_response or cost_by_status; and \
           hits of descriptors with apply_on_stream_done.",
    kind: MetricKind::Counter,
    labels: &["limit"],
};
static UPSTREAM_SECONDS: Family = Family {
    name: "sluicegate_upstream_response_seconds",
    help: "Time from sending a request to the head of its response, or until it was given up, by upstream and server.",
    kind: MetricKind::Histogram,
    labels: &["upstream", "server"],
};
static CONNECT_SECONDS: Family = Family {
    name: "sluicegate_upstream_connect_seconds",
    help: "Time to connect to a server, the TLS handshake included, or until that failed, by upstream and server.",
    kind: MetricKind::Histogram,
    labels: &["upstream", "server"],
};
static COLLAPSED: Family = Family {
    name: "sluicegate_route_collapsed_total",
    help: "Requests that were not sent and got a copy of another one's answer (`collapse`).",
    kind: MetricKind::Counter,
    labels: &["route"],
};
/// `stale-connection`: an idle connection had died. `unreachable`: a server could not be connected to, so another was
/// tried if there was one. By `retry`: `reset`, `invalid`, `timeout`, `status`.
static UPSTREAM_RETRIES: Family = Family {
    name: "sluicegate_upstream_retries_total",
    help: "Requests sent again, by upstream and cause.",
    kind: MetricKind::Counter,
    labels: &["upstream", "cause"],
};
static RETRIES_REFUSED: Family = Family {
    name: "sluicegate_upstream_retries_over_budget_total",
    help: "Failed requests that were not sent to another server because the budget of retry was used up, by upstream.",
    kind: MetricKind::Counter,
    labels: &["upstream"],
};
static CONNECT_WAITS: Family = Family {
    name: "sluicegate_upstream_connect_waits_total",
    help: "Requests that waited for a turn to connect to a server because connect_rate was reached, by upstream.",
    kind: MetricKind::Counter,
    labels: &["upstream"],
};

/// The counters of a route: an [`Outcome`] each, then the classes of statuses.
const ROUTE_COLUMNS: [Column; Outcome::ALL.len() + StatusClass::ALL.len()] = {
    let mut columns = [Column { family: &REQUESTS, value: None, from_start: FromStart::Never }; _];
    let mut at = 0;
    while at < Outcome::ALL.len() {
        let outcome = Outcome::ALL[at];
        columns[at].value = Some(outcome.word());
        columns[at].from_start = outcome.shown();
        at += 1;
    }
    while at < columns.len() {
        let class = StatusClass::ALL[at - Outcome::ALL.len()];
        columns[at] = Column { family: &RESPONSES, value: Some(class.word()), from_start: class.shown() };
        at += 1;
    }
    columns
};

/// The counters of a limit: a [`Decision`] each, then its invalid costs, and the costs that it has counted.
const LIMIT_COLUMNS: [Column; Decision::ALL.len() + 2] = {
    let mut columns = [Column { family: &DECISIONS, value: None, from_start: FromStart::Never }; _];
    let mut at = 0;
    while at < Decision::ALL.len() {
        let decision = Decision::ALL[at];
        columns[at].value = Some(decision.word());
        if matches!(decision, Decision::Admitted | Decision::Refused | Decision::ShadowRefused) {
            columns[at].from_start = FromStart::Always;
        }
        at += 1;
    }
    columns[at].family = &COSTS_INVALID;
    columns[at + 1].family = &COSTS_USED;
    columns
};

words! {
    /// How an exchange ended.
    pub enum Outcome {
        /// The upstream's response went out whole.
        Forwarded = "forwarded",
        /// The gateway answered as the route says.
        Responded = "responded",
        /// A limit refused.
        Refused = "refused",
        /// A limit refused because the key was blocked: by a penalty, or by hand.
        Blocked = "blocked",
        /// It waited for a limit in vain.
        WaitTimeout = "wait-timeout",
        /// It overran its timeout.
        Timeout = "timeout",
        /// The upstream could not be reached or broke off.
        UpstreamError = "upstream-error",
        /// The client went away.
        ClientGone = "client-gone",
        /// No route matched.
        NoRoute = "no-route",
        /// The request was not acceptable.
        Malformed = "malformed",
        /// The connection was switched to another protocol.
        Upgraded = "upgraded",
        /// A limit refused, and the connection was closed without an answer.
        Dropped = "dropped",
        /// The connection was switched to another protocol, and closed for what its client sent there.
        MessageLimit = "message-limit",
        /// A panic cut it off.
        Panic = "panic",
        /// The upstream's breaker was open.
        Breaker = "breaker",
        /// There was no place at the upstream.
        QueueFull = "queue-full",
        /// Requests of its route's priority were shed.
        Shed = "shed",
        /// A limit refused, and the request is kept to be sent later.
        Deferred = "deferred",
        /// An operator cancelled it.
        Cancelled = "cancelled",
    }
}

impl Outcome {
    /// Where its series is there before it counts: what routes count every day, and what alerts are made of. The row without a
    /// name counts what came to no route.
    const fn shown(self) -> FromStart {
        match self {
            Self::Forwarded | Self::Responded | Self::Refused | Self::Timeout | Self::UpstreamError => FromStart::Named,
            Self::NoRoute | Self::Malformed => FromStart::Unnamed,
            _ => FromStart::Never,
        }
    }
}

words! {
    /// The decision of a limit.
    pub enum Decision {
        /// Admitted at once.
        Admitted = "admitted",
        /// Put in its queue.
        Queued = "queued",
        /// Admitted from its queue.
        AdmittedAfterWait = "admitted-after-wait",
        /// Refused: no room.
        Refused = "refused",
        /// Refused: its key is blocked.
        Blocked = "blocked",
        /// Refused: its queue is full.
        QueueFull = "queue-full",
        /// Waited in vain.
        WaitTimeout = "wait-timeout",
        /// Can never fit.
        TooCostly = "too-costly",
        /// Its key table is full.
        TableFull = "table-full",
        /// It is shared, and closed while the store does not answer.
        StoreDown = "store-down",
        /// The key is missing and the limit refuses that.
        MissingKey = "missing-key",
        /// The client went away while it waited.
        Cancelled = "cancelled",
        /// A shadow limit would have refused.
        ShadowRefused = "shadow-refused",
    }
}

words! {
    /// A class of statuses.
    enum StatusClass {
        /// Success.
        Success = "2xx",
        /// Elsewhere.
        Redirect = "3xx",
        /// The client's mistake, or more than its limit.
        ClientError = "4xx",
        /// A mistake on this side.
        ServerError = "5xx",
    }
}

impl StatusClass {
    /// Where its series is there before it counts.
    const fn shown(self) -> FromStart {
        match self {
            Self::Success => FromStart::Named,
            Self::Redirect => FromStart::Never,
            Self::ClientError | Self::ServerError => FromStart::Always,
        }
    }

    /// That of a final status.
    fn of(status: u16) -> Option<Self> {
        Some(match status {
            200..300 => Self::Success,
            300..400 => Self::Redirect,
            400..500 => Self::ClientError,
            500..600 => Self::ServerError,
            _ => return None,
        })
    }
}

/// A counter of a route.
#[derive(Clone, Copy, Debug)]
enum OfRoute {
    Outcome(Outcome),
    Class(StatusClass),
}

impl RowCounter for OfRoute {
    const GROUP: &'static Group = &Group { columns: &ROUTE_COLUMNS };

    #[inline]
    fn column(self) -> usize {
        match self {
            Self::Outcome(outcome) => outcome as usize,
            Self::Class(class) => Outcome::ALL.len() + class as usize,
        }
    }
}

/// A counter of a limit.
#[derive(Clone, Copy, Debug)]
enum OfLimit {
    Decision(Decision),
    CostInvalid,
    CostUsed,
}

impl RowCounter for OfLimit {
    const GROUP: &'static Group = &Group { columns: &LIMIT_COLUMNS };

    #[inline]
    fn column(self) -> usize {
        match self {
            Self::Decision(decision) => decision as usize,
            Self::CostInvalid => Decision::ALL.len(),
            Self::CostUsed => Decision::ALL.len() + 1,
        }
    }
}

/// A worker's counters for one generation of the configuration, each made when it is first asked for. Those of a name that
/// stays are taken over by the next: making them takes the registry's lock.
pub struct Meters {
    registry: Arc<Registry>,
    unrouted: Rc<RouteMeters>,
    routes: NamedCounters<RouteMeters>,
    limits: NamedCounters<LimitMeters>,
    upstreams: NamedCounters<UpstreamMeters>,
    bandwidths: NamedCounters<BandwidthMeters>,
    messages: NamedCounters<MessageMeters>,
}

/// The counters of one kind, by name.
struct NamedCounters<T> {
    kept: HashMap<Arc<str>, Rc<T>>,
    /// Those of the generation before that were not asked for yet.
    old: HashMap<Arc<str>, Rc<T>>,
}

impl<T> NamedCounters<T> {
    fn after(old: Option<&Self>) -> Self {
        Self { kept: HashMap::new(), old: old.map(|old| old.kept.clone()).unwrap_or_default() }
    }

    /// That of a name: the old one if there is one, else a new one.
    fn of(&mut self, name: &Arc<str>, make: impl FnOnce(&str) -> T) -> Rc<T> {
        let Self { kept, old } = self;
        let meters = kept.entry(Arc::clone(name));
        Rc::clone(meters.or_insert_with(|| old.remove(name).unwrap_or_else(|| Rc::new(make(name)))))
    }
}

/// A worker's figures of one route. The histograms are made by the first request that has something for them: there may be
/// ten thousand routes.
pub struct RouteMeters {
    registry: Arc<Registry>,
    name: Box<str>,
    counters: Counters<OfRoute>,
    took: OnceCell<Histogram>,
    waited: OnceCell<Histogram>,
    collapsed: OnceCell<Counter>,
}

impl RouteMeters {
    fn new(registry: &Arc<Registry>, route: &str) -> Self {
        Self {
            registry: Arc::clone(registry),
            name: route.into(),
            counters: registry.counters(route),
            took: OnceCell::new(),
            waited: OnceCell::new(),
            collapsed: OnceCell::new(),
        }
    }

    /// Counts a request that gets the answer of another one.
    pub fn collapsed(&self) {
        self.collapsed.get_or_init(|| self.registry.counter(&COLLAPSED, &[&self.name])).inc();
    }

    /// Counts a finished exchange.
    pub fn finished(&self, exchange: &Finished) {
        let Finished { outcome, status, took, waited } = *exchange;
        let histogram = |family| self.registry.histogram(family, &[&self.name]);
        self.took.get_or_init(|| histogram(&REQUEST_SECONDS)).observe(took);
        if let Some(waited) = waited {
            self.waited.get_or_init(|| histogram(&WAIT_SECONDS)).observe(waited);
        }
        self.counters.inc(OfRoute::Outcome(outcome));
        // Nothing was sent to who was dropped: its status is for the logs.
        let sent = status.filter(|_| outcome != Outcome::Dropped);
        if let Some(class) = sent.and_then(StatusClass::of) {
            self.counters.inc(OfRoute::Class(class));
        }
    }
}

/// A worker's figures of one limit.
pub struct LimitMeters(Counters<OfLimit>);

impl LimitMeters {
    /// Counts a decision.
    pub fn decided(&self, decision: Decision) {
        self.0.inc(OfLimit::Decision(decision));
    }

    /// Counts a cost that is no number.
    pub fn cost_invalid(&self) {
        self.0.inc(OfLimit::CostInvalid);
    }

    /// Counts a cost that an answer has settled.
    pub fn used(&self, cost: u64) {
        self.0.add(OfLimit::CostUsed, cost);
    }
}

/// How an exchange went, for [`RouteMeters::finished`].
#[derive(Clone, Copy, Debug)]
pub struct Finished {
    /// How it ended.
    pub outcome: Outcome,
    /// The status of its answer.
    pub status: Option<u16>,
    /// From its arrival to its end.
    pub took: Span,
    /// The part of that in which it waited.
    pub waited: Option<Span>,
}

/// A worker's figures of one upstream.
pub struct UpstreamMeters {
    /// Sent again because the connection had died idle.
    pub stale: Counter,
    retried: [Counter; Retried::ALL.len()],
    /// The retries that are allowed. Here, since it outlives a reload, too.
    pub budget: RefCell<RetryBudget>,
}

words! {
    /// Why a request was sent to another server, or not.
    pub enum Retried {
        /// The server could not be reached.
        Unreachable = "unreachable",
        /// It closed the connection before an answer.
        Reset = "reset",
        /// Its answer was not valid.
        Invalid = "invalid",
        /// It did not answer within `per_try`.
        Timeout = "timeout",
        /// Its answer had a status of `on`.
        Status = "status",
        /// Not sent: the budget was used up.
        OverBudget = "over-budget",
    }
}

impl UpstreamMeters {
    /// Counts one.
    pub fn retried(&self, why: Retried) {
        if let Some(counter) = self.retried.get(why as usize) {
            counter.inc();
        }
    }
}

/// How long a server of an upstream takes.
pub fn server_times(registry: &Registry, upstream: &str, server: &str) -> ServerTimes {
    ServerTimes {
        connect: registry.histogram(&CONNECT_SECONDS, &[upstream, server]),
        response: registry.histogram(&UPSTREAM_SECONDS, &[upstream, server]),
    }
}

/// Counts connects to servers of an upstream that waited for their turn.
pub fn connect_waits(registry: &Registry, upstream: &str) -> Counter {
    registry.counter(&CONNECT_WAITS, &[upstream])
}

impl Meters {
    /// A worker's cells after those of the generation before, if there was one.
    pub fn after(registry: &Arc<Registry>, old: Option<&Self>) -> Self {
        Self {
            registry: Arc::clone(registry),
            unrouted: old.map_or_else(|| Rc::new(RouteMeters::new(registry, "")), |old| Rc::clone(&old.unrouted)),
            routes: NamedCounters::after(old.map(|old| &old.routes)),
            limits: NamedCounters::after(old.map(|old| &old.limits)),
            upstreams: NamedCounters::after(old.map(|old| &old.upstreams)),
            bandwidths: NamedCounters::after(old.map(|old| &old.bandwidths)),
            messages: NamedCounters::after(old.map(|old| &old.messages)),
        }
    }

    /// The figures of requests that no route matched.
    pub fn unrouted(&self) -> &RouteMeters {
        &self.unrouted
    }

    /// The figures of a route.
    pub fn route(&mut self, name: &Arc<str>) -> Rc<RouteMeters> {
        self.routes.of(name, |name| RouteMeters::new(&self.registry, name))
    }

    /// The figures of a limit.
    pub fn limit(&mut self, name: &Arc<str>) -> Rc<LimitMeters> {
        self.limits.of(name, |name| LimitMeters(self.registry.counters(name)))
    }

    /// The figures of a bandwidth.
    pub fn bandwidth(&mut self, name: &Arc<str>) -> Rc<BandwidthMeters> {
        self.bandwidths.of(name, |name| BandwidthMeters::new(&self.registry, name))
    }

    /// The figures of the messages of a route.
    pub fn messages(&mut self, route: &Arc<str>) -> Rc<MessageMeters> {
        self.messages.of(route, |route| MessageMeters::new(&self.registry, route))
    }

    /// The figures of an upstream.
    pub fn upstream(&mut self, name: &Arc<str>) -> Rc<UpstreamMeters> {
        let registry = &self.registry;
        self.upstreams.of(name, |name| UpstreamMeters {
            budget: RefCell::new(RetryBudget::new(0, 0)),
            stale: registry.counter(&UPSTREAM_RETRIES, &[name, "stale-connection"]),
            retried: Retried::ALL.map(|why| match why {
                Retried::OverBudget => registry.counter(&RETRIES_REFUSED, &[name]),
                why => registry.counter(&UPSTREAM_RETRIES, &[name, why.word()]),
            }),
        })
    }

    /// Lets those go that no name of this generation has asked for.
    pub fn forget_others(&mut self) {
        self.routes.old = HashMap::new();
        self.limits.old = HashMap::new();
        self.upstreams.old = HashMap::new();
        self.bandwidths.old = HashMap::new();
        self.messages.old = HashMap::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_row_counts_every_day_is_there_from_the_start() {
        let registry = Registry::new();
        let rows = (
            registry.counters::<OfRoute>(""),
            registry.counters::<OfRoute>("api"),
            registry.counters::<OfLimit>("api"),
        );
        let page = registry.render();
        let of = |begin: &str| -> Vec<&str> {
            page.lines().filter_map(|line| line.strip_prefix(begin)?.strip_suffix("\"} 0")).collect()
        };
        assert_eq!(of("sluicegate_requests_total{route=\"\",outcome=\""), ["no-route", "malformed"]);
        assert_eq!(of("sluicegate_responses_total{route=\"\",class=\""), ["4xx", "5xx"]);
        let common = ["forwarded", "responded", "refused", "timeout", "upstream-error"];
        assert_eq!(of("sluicegate_requests_total{route=\"api\",outcome=\""), common);
        assert_eq!(of("sluicegate_responses_total{route=\"api\",class=\""), ["2xx", "4xx", "5xx"]);
        let decisions = ["admitted", "refused", "shadow-refused"];
        assert_eq!(of("sluicegate_limit_decisions_total{limit=\"api\",decision=\""), decisions);
        drop(rows);
    }

    #[test]
    fn every_counter_counts_in_its_own_column() {
        let registry = Registry::new();
        let (route, limit) = (registry.counters("api"), registry.counters("api"));
        let mut expected = Vec::new();
        let mut count = |of: &str, word: &str, inc: &dyn Fn()| {
            expected.push(format!("{of}=\"{word}\"}} {}", expected.len() + 1));
            (0..expected.len()).for_each(|_| inc());
        };
        for outcome in Outcome::ALL {
            count("outcome", outcome.word(), &|| route.inc(OfRoute::Outcome(outcome)));
        }
        for class in StatusClass::ALL {
            count("class", class.word(), &|| route.inc(OfRoute::Class(class)));
        }
        for decision in Decision::ALL {
            count("decision", decision.word(), &|| limit.inc(OfLimit::Decision(decision)));
        }
        count("limit", "api", &|| limit.inc(OfLimit::CostInvalid));
        let page = registry.render();
        assert!(expected.iter().all(|line| page.lines().any(|own| own.ends_with(&**line))), "{expected:?}\n{page}");
    }
}
