//! The immutable model that the text of `gateway.toml` is lowered to. Everything in it has been parsed: a value of
//! these types is a configuration that can be built.

use std::sync::Arc;

use super::plans::{KnownPlans, PlanBook};
use super::sections::admin::Admin;
use super::sections::client::Client;
use super::sections::dead_letter::DeadLetter;
use super::sections::fleet::Fleet;
use super::sections::jwt::Jwt;
use super::sections::listener::ListenerSpec;
use super::sections::log::Log;
use super::sections::overload::Overload;
use super::sections::rules::Follow;
use super::sections::server::Server;
use super::sections::upstream::UpstreamSpec;
use super::statuses::{StatusCosts, StatusSet};
use sluicegate_admission::{Cost, ExemptRules, JwtClaim, KeyExpr, OnMissingKey, ResponseCost, RoutePattern};
use sluicegate_edit::{FieldEdits, Rewrite, RewriteTarget, Template};
use sluicegate_limiter::{Algorithm, Fingerprint, Gcra, LimitSpec, Mode, Rate};
use sluicegate_overload::Priority;
use sluicegate_time::{ScheduleRules, Span};

/// A whole configuration.
#[derive(Clone, Debug)]
pub struct Model {
    /// `[server]`
    pub server: Server,
    /// `[log]`
    pub log: Log,
    /// `[client]`
    pub client: Client,
    /// `[[listener]]`, at least one, no address twice.
    pub listeners: Vec<Arc<ListenerSpec>>,
    /// `[[upstream]]`, names are unique.
    pub upstreams: Vec<Arc<UpstreamSpec>>,
    /// `[[limit]]`, names are unique.
    pub limits: Vec<Arc<LimitRule>>,
    /// Limits whose numbers a plan overrides, each plan's once.
    pub plan_limits: Vec<PlanLimit>,
    /// `[[bandwidth]]`, and behind them what routes have of their own; names are unique.
    pub bandwidths: Vec<Arc<BandwidthSpec>>,
    /// `[[route]]`, names are unique.
    pub routes: Vec<Arc<RouteSpec>>,
    /// `[dead_letter]`, if there is such a section.
    pub dead_letter: Option<DeadLetter>,
    /// `[admin]`, if there is such a section.
    pub admin: Option<Admin>,
    /// `[fleet]`, if there is such a section.
    pub fleet: Option<Fleet>,
    /// `[rules]`, if there is such a section: upstreams, limits, bandwidths and routes come from elsewhere.
    pub follow: Option<Follow>,
    /// SHA-256 of the text that they come from; `None`: from the file itself, or they are not known.
    pub followed: Option<[u8; 32]>,
    /// `[jwt]`, if there is such a section.
    pub jwt: Option<Jwt>,
    /// `[overload]`, if there is such a section.
    pub overload: Option<Overload>,
}

/// `[[limit]]`
#[derive(Clone, Debug, PartialEq)]
pub struct LimitRule {
    /// The part that the limiter needs.
    pub spec: LimitSpec,
    /// Requests of one key are counted together.
    pub key: KeyExpr,
    /// Whether the values of its key are secrets; `None`: their names say so.
    pub key_is_secret: Option<bool>,
    /// The fate of a request that lacks the key.
    pub on_missing_key: OnMissingKey,
    /// From arrival to the last byte of the response; `None`: the route's alone.
    pub timeout: Option<Span>,
    /// Status of a refusal, 400 to 599.
    pub status: u16,
    /// The answers that count; `None`: every request, at its arrival.
    pub count_when: Option<StatusSet>,
    /// Overrides the route's cost.
    pub cost: Option<Cost>,
    /// Where the upstream's response says what its request has cost; `None`: nowhere.
    pub cost_from_response: Option<ResponseCost>,
    /// The costs that statuses of answers have, whatever else is said; `None`: none has.
    pub cost_by_status: Option<StatusCosts>,
    /// The field by which a trusted proxy states the rate of a request, in lower case; `None`: none does.
    pub rate_from: Option<Arc<str>>,
    /// The field (in lower case) in which a trusted proxy states the day on which the months of a key begin; `None`: the line of
    /// the key in a plans file does.
    pub renews: Option<Arc<str>>,
    /// Clients that are neither counted nor refused.
    pub exempt: ExemptRules,
    /// The longest wait that clients are told of; `None`: they are told the true one.
    pub retry_after_max: Option<Span>,
    /// A random extra of at most this, added to `Retry-After`.
    pub retry_after_jitter: Span,
    /// The look of its refusals; `None`: as the route says.
    pub refusal: Option<Arc<Refusal>>,
    /// When it holds; `None`: always.
    pub active: Option<ScheduleRules>,
    /// The keys that say how it counts, as they are written: a single key may have some of them otherwise.
    pub settings: Arc<str>,
}

impl LimitRule {
    /// Whether an answer may turn out to have cost less than its request was counted as.
    pub fn gives_back(&self) -> bool {
        self.count_when.is_some() || self.cost_from_response.is_some() || self.cost_by_status.is_some()
    }

    /// The reason for which it cannot be asked about a key alone, if there is one. Its plans do not matter there.
    pub fn why_not_by_key(&self) -> Option<&'static str> {
        self.needs_exchange(std::iter::once(&self.spec))
    }

    /// The part of it that needs the exchange itself, with any of these numbers.
    fn needs_exchange<'s>(&self, mut specs: impl Iterator<Item = &'s LimitSpec> + Clone) -> Option<&'static str> {
        let needs = [
            (specs.clone().any(|spec| matches!(spec.algorithm, Algorithm::Concurrency(_))), "is of \"concurrency\""),
            (specs.any(|spec| spec.max_wait > Span::ZERO), "has `max_wait`"),
            (self.count_when.is_some(), "has `count_when`"),
            (self.cost_from_response.is_some(), "has `cost_from_response`"),
            (self.cost_by_status.is_some(), "has `cost_by_status`"),
        ];
        needs.into_iter().find_map(|(is_so, what)| is_so.then_some(what))
    }

    /// A wait for this limit as clients are told of it, in whole seconds.
    pub fn told_secs(&self, wait: Span) -> u64 {
        let secs = wait.as_secs_ceil();
        match self.retry_after_max {
            None => secs,
            Some(most) => secs.min(most.as_nanos() / 1_000_000_000),
        }
    }
}

/// `[[route]]`
#[derive(Clone, Debug)]
pub struct RouteSpec {
    /// Its name.
    pub name: Arc<str>,
    /// The requests that it matches.
    pub pattern: RoutePattern,
    /// When it matches anything; `None`: always.
    pub active: Option<ScheduleRules>,
    /// Its limits, in the order of the file, none twice.
    pub limits: Vec<Arc<LimitRule>>,
    /// The cost of one request, where the limit does not say.
    pub cost: Cost,
    /// The action for an admitted request.
    pub action: Action,
    /// The action for a request that a limit refuses.
    pub on_limit: OnLimit,
    /// The order in which its requests are shed.
    pub priority: Priority,
    /// Its equal requests in flight are sent once, by these rules; `None`: each is sent.
    pub collapse: Option<CollapseRules>,
    /// Whether the hits of its descriptors were spent before the question.
    pub apply_on_stream_done: bool,
    /// The route's own timeout, or the server's default; `None` is "none".
    pub timeout: Option<Span>,
    /// The route's own `response_timeout`, or the server's default; `None` is "none".
    pub response_timeout: Option<Span>,
    /// Bytes of a request's body, the route's own or the server's default; 0 takes no body, `None` is "none".
    pub max_body_size: Option<u64>,
    /// Bytes of a body that a dead letter keeps; `None`: no bodies.
    pub capture_body: Option<u64>,
    /// Bytes of a request's body that are read for keys and costs of its limits.
    pub key_body: u64,
    /// `cors`, if the route has it.
    pub cors: Option<Cors>,
    /// The changes that it makes in messages; `None`: it makes none.
    pub edits: Option<Box<RouteEdits>>,
    /// The look of refusals where the limit does not say.
    pub refusal: Option<Arc<Refusal>>,
    /// The bandwidths that pace its bytes, none twice.
    pub bandwidth: Vec<Arc<BandwidthSpec>>,
    /// The bounds of the messages of a client over one WebSocket, if there are any.
    pub messages: Option<MessageRules>,
    /// `plans`, if the route has them and files are read.
    pub plans: Option<Arc<PlanBook>>,
}

/// `collapse` of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollapseRules {
    /// Fields by which requests are told apart, in lower case, beside the target and the host.
    pub headers: Vec<Box<str>>,
    /// Bytes of a body that is kept for others.
    pub max_body: u64,
}

/// The changes that a route makes in messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteEdits {
    /// `request_headers`: in a request's fields on their way to the server.
    pub request: FieldEdits,
    /// `response_headers`: in the fields of every answer, the gateway's own too.
    pub response: FieldEdits,
    /// Another path for the server.
    pub rewrite: Option<Rewrite>,
    /// The `Host` that the server gets; `None`: the client's.
    pub host: Option<Arc<str>>,
}

impl RouteSpec {
    /// The reason for which nobody but a listener that proxies can decide its requests: it needs the exchange itself, or the
    /// body. `plans`: limits with the numbers of plans.
    pub fn why_undecidable(&self, plans: &[PlanLimit]) -> Option<String> {
        let reads_body = |cost: &Cost| cost.body_fields().next().is_some();
        let of_route = [
            (self.on_limit == OnLimit::Defer, "`on_limit` = \"defer\""),
            (!self.bandwidth.is_empty(), "`bandwidth`"),
            (self.messages.is_some(), "`messages`"),
            (reads_body(&self.cost), "`cost` out of the body"),
        ];
        if let Some((_, what)) = of_route.into_iter().find(|(is_so, _)| *is_so) {
            return Some(format!("it has {what}"));
        }
        self.limits.iter().find_map(|limit| {
            let of_plans = plans.iter().filter(|plan| Arc::ptr_eq(&plan.rule, limit)).map(|plan| &plan.spec);
            let specs = std::iter::once(&limit.spec).chain(of_plans);
            let is_on = specs.clone().any(|spec| spec.mode != Mode::Off);
            let reads = |field: bool| field && is_on;
            let of_body = [
                (reads(limit.key.body_fields().next().is_some()), "has a `key` out of the body"),
                (reads(limit.cost.as_ref().is_some_and(reads_body)), "has a `cost` out of the body"),
            ];
            let of_body = || of_body.into_iter().find_map(|(is_so, what)| is_so.then_some(what));
            let what = limit.needs_exchange(specs).or_else(of_body)?;
            Some(format!("its limit \"{}\" {what}", limit.spec.name))
        })
    }

    /// Whether its bytes are paced, or its messages bounded.
    pub fn is_paced(&self) -> bool {
        !self.bandwidth.is_empty() || self.messages.is_some()
    }
}

/// `[[bandwidth]]`, or `bandwidth` of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BandwidthSpec {
    /// Its name; of a route's own `route:` and the route's.
    pub name: Arc<str>,
    /// Bytes of one key are counted together.
    pub key: KeyExpr,
    /// Bytes in a time.
    pub rate: Rate,
    /// Bytes that need not wait.
    pub burst: u64,
    /// The algorithm of both.
    pub algorithm: Gcra,
    /// The bytes that count.
    pub direction: Direction,
    /// Keys that are kept at once, in each direction.
    pub max_keys: u64,
}

words! {
    /// `direction` of a bandwidth.
    pub enum Direction {
        /// Each for itself.
        Both = "both",
        /// Bytes that clients get.
        Down = "down",
        /// Bytes that clients send.
        Up = "up",
    }
}

impl BandwidthSpec {
    /// Whether it counts what clients get.
    pub fn is_down(&self) -> bool {
        self.direction != Direction::Up
    }

    /// Whether it counts what clients send.
    pub fn is_up(&self) -> bool {
        self.direction != Direction::Down
    }
}

/// `messages` of a route: what a client may send over one WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageRules {
    /// How many, and how many at once; `None`: any number.
    pub rate: Option<(Rate, u64)>,
    /// The fate of messages over the rate.
    pub over: MessageOver,
    /// Bytes of one; `None`: any number.
    pub max_size: Option<u64>,
}

words! {
    /// `over` of `messages`.
    pub enum MessageOver {
        /// The connection is closed, with 1013 (try again later).
        Close = "close",
        /// It is read more slowly.
        Pace = "pace",
    }
}

/// A limit as a plan has it. It counts by itself, apart from the limit of `[[limit]]` and from other plans.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanLimit {
    /// The limit of `[[limit]]`.
    pub rule: Arc<LimitRule>,
    /// The plan's name.
    pub plan: Arc<str>,
    /// The limit's own parameters, with the plan's numbers.
    pub spec: LimitSpec,
}

/// A part that counts by itself, as it is known across reloads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LimitId {
    /// The limit's name.
    pub limit: Arc<str>,
    /// The plan that overrides its numbers; `None`: the limit of `[[limit]]`.
    pub plan: Option<Arc<str>>,
    /// The single key that has numbers of its own; `None`: all others.
    pub key: Option<Fingerprint>,
}

impl Model {
    /// Whether the rules come from elsewhere and are not known.
    pub fn lacks_rules(&self) -> bool {
        self.follow.is_some() && self.followed.is_none()
    }

    /// Whether one of its listeners decides for others.
    pub fn decides(&self) -> bool {
        self.listeners.iter().any(|listener| listener.decides.is_some())
    }

    /// Whether one of its keys is made of a claim, or one of rules that are not here yet may be.
    pub(super) fn may_ask_for_claims(&self) -> bool {
        self.lacks_rules() || !self.jwt_claims().is_empty()
    }

    /// The claims of verified tokens that its keys are made of.
    pub fn jwt_claims(&self) -> Vec<JwtClaim> {
        let limits = self.limits.iter().map(|limit| &limit.key);
        let plans = self.routes.iter().filter_map(|route| Some(route.plans.as_ref()?.keys().key()));
        let bandwidths = self.bandwidths.iter().map(|bandwidth| &bandwidth.key);
        let upstreams = self.upstreams.iter().flat_map(|upstream| [&upstream.hash_key, &upstream.fair_key]);
        let keys = limits.chain(plans).chain(bandwidths).chain(upstreams);
        keys.flat_map(KeyExpr::jwt_claims).filter(|claim| claim.is_verified()).cloned().collect()
    }

    /// The plans files that were read for it.
    pub fn known_plans(&self) -> KnownPlans {
        KnownPlans::new(self.routes.iter().filter_map(|route| route.plans.clone()).collect())
    }

    /// Everything that counts by itself: whose it is, with which parameters and by which key.
    pub fn counted(&self) -> impl Iterator<Item = (LimitId, &LimitSpec, &KeyExpr)> {
        let own = self.limits.iter().map(|rule| (None, &rule.spec, &rule.key));
        let of_plans = self.plan_limits.iter().map(|own| (Some(Arc::clone(&own.plan)), &own.spec, &own.rule.key));
        own.chain(of_plans)
            .map(|(plan, spec, key)| (LimitId { limit: Arc::clone(&spec.name), plan, key: None }, spec, key))
    }
}

/// `cors` of a route (Fetch standard, 3.3): which scripts of other origins may call it and read its answers, refusals
/// too. Preflights of such a route are answered by the gateway, and not counted; on other routes a preflight counts like
/// any request, because a client that can write an `OPTIONS` request could otherwise get past every limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cors {
    /// Origins that may read; `["*"]` is any.
    pub allow_origins: Vec<String>,
    /// Whether `Access-Control-Allow-Credentials: true` goes out; not with `"*"`.
    pub allow_credentials: bool,
    /// Whether preflights are counted all the same.
    pub count_preflight: bool,
    /// The one that answers preflights.
    pub preflight: Preflight,
    /// Methods that may be used, upper case.
    pub allow_methods: Vec<String>,
    /// Fields that may be sent, lower case; `["*"]` is any.
    pub allow_headers: Vec<String>,
    /// Fields of answers that may be read beside those that always may and the rate fields; lower case.
    pub expose_headers: Vec<String>,
    /// How long a browser may keep the answer to a preflight, up to 24 h.
    pub max_age: Span,
}

words! {
    /// The side that answers the preflights of a route with `cors`.
    pub enum Preflight {
        /// The gateway, which then says all about it: what the upstream says of origins and credentials is replaced.
        Answer = "answer",
        /// The upstream, whose own fields are left alone.
        Forward = "forward",
    }
}

/// `refusal` of a limit or a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// 400 to 599; `None`: the limit's `status`.
    pub status: Option<u16>,
    /// In place of the gateway's own words.
    pub body: Option<RefusalBody>,
    /// Fields that are set.
    pub headers: FieldEdits,
}

/// The text of a refusal in place of the gateway's own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusalBody {
    /// At most 1 MiB.
    pub text: Template,
    /// Of the text, such as `text/html; charset=utf-8`.
    pub content_type: Arc<str>,
}

words! {
    /// The fate of a request that a limit of a route refuses.
    pub enum OnLimit {
        /// It is answered with the limit's status.
        Refuse = "refuse",
        /// Its connection is closed without an answer.
        Drop = "drop",
        /// It is kept, and sent when the limit has room.
        Defer = "defer",
    }
}

/// The action of a route for an admitted request.
#[derive(Clone, Debug, PartialEq)]
pub enum Action<U = Arc<UpstreamSpec>> {
    /// Forward it to this upstream.
    Forward(U),
    /// Answer it from the gateway.
    Respond {
        /// 200 to 599.
        status: u16,
        /// The body.
        body: Body,
    },
    /// Send the client elsewhere.
    Redirect {
        /// 301, 302, 303, 307 or 308.
        status: u16,
        /// Where to.
        target: RewriteTarget,
    },
}

impl<U> Action<U> {
    /// Whether an upstream answers.
    pub fn is_forward(&self) -> bool {
        matches!(self, Self::Forward(_))
    }

    /// The same, by another form of the upstream.
    pub fn map<V>(&self, map: impl FnOnce(&U) -> V) -> Action<V> {
        match self {
            Self::Forward(upstream) => Action::Forward(map(upstream)),
            Self::Respond { status, body } => Action::Respond { status: *status, body: body.clone() },
            Self::Redirect { status, target } => Action::Redirect { status: *status, target: target.clone() },
        }
    }
}

/// The body of an answer of the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    /// At most 1 MiB.
    pub bytes: Arc<[u8]>,
    /// Of the bytes, such as `text/plain; charset=utf-8`.
    pub content_type: Arc<str>,
}
