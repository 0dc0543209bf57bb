//! Explains a request in words and in JSON: the answer of `sluicegate explain` and of admin.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::exceptions::{BlockSeen, NumbersSeen};
use super::offline::{Offline, sticky};
use crate::admission::{Decided, ExplainedLimit, Networks, PlanPlace, RouteRules, Routed as _, Rules};
use crate::config::{Action, LimitRule, Model, OnLimit, RouteSpec, UpstreamSpec};
use crate::http1::HeadLimits;
use crate::jwt::TokenRules;
use crate::limiter::{Peeked, QuotaLine, Refusal, RefusalReason};
use crate::proxy::{Question, Snapshot, status_of_no_route, status_of_refusal};
use crate::redact::{ClipEnd, Redactor};
use crate::time::{Span, Tick, WallOffset};

/// Routes that were passed over and are listed; there may be ten thousand.
const MAX_PASSED: usize = 100;
/// The status where `on_limit = "drop"`: nothing is sent.
const DROPPED: u16 = 444;
/// The status of a request that is kept to be sent later, if there is room for it.
const DEFERRED: u16 = 202;

/// A request that somebody asks about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExplainRequest {
    /// `GET` if left out.
    #[serde(default = "get")]
    pub method: String,
    /// `https://api.example.com/x?y=z`, or the path alone.
    pub url: String,
    /// Names and values of header fields.
    #[serde(default)]
    pub headers: Vec<(String, String)>,
    /// Its body, for limits that look at it; none if left out.
    #[serde(default)]
    pub body: String,
    /// The other end of the connection; 127.0.0.1 if left out.
    #[serde(default)]
    pub client: Option<IpAddr>,
}

fn get() -> String {
    "GET".to_owned()
}

/// The answer: what would become of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explained {
    /// Its method.
    pub method: String,
    /// Its URL, secrets redacted.
    pub url: String,
    /// The route that it takes.
    pub route: Option<String>,
    /// Other routes and why each does not get it, in the file's order.
    pub passed_over: Vec<PassedOver>,
    /// The address of the client.
    pub client: String,
    /// The other end of the connection.
    pub peer: String,
    /// Whether that is a trusted proxy.
    pub peer_trusted: bool,
    /// The hops that were read to find the client, the nearest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hops: Vec<HopSeen>,
    /// The plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// The limits of its route.
    pub limits: Vec<LimitSeen>,
    /// `admitted`, `refused` or `waits`.
    pub decision: String,
    /// Why it is refused: a reason of dead letters, or `no-route`, `malformed`, `denied`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The same in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The limit that refuses it, or lets it wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// The status of the answer, if the gateway answers itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Until it would be admitted: of one that waits, and of one that is refused and comes back then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_ms: Option<u64>,
    /// From its arrival to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The action of the route: `forward`, `respond` or `redirect`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// The upstream that gets it.
    pub upstream: Option<String>,
    /// The server there, if that does not depend on load or turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// The changes that the route makes in messages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub edits: Vec<String>,
}

/// A route that does not get the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassedOver {
    /// The route.
    pub route: String,
    /// `inactive`, `host`, `path`, `method`, `header` or `later`.
    pub reason: String,
}

/// A hop of the forwarding field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HopSeen {
    /// As it stands there.
    pub hop: String,
    /// Whether it is a trusted proxy.
    pub trusted: bool,
}

/// How a limit stands for the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitSeen {
    /// Its name.
    pub name: String,
    /// `enforce`, `shadow` or `off`.
    pub mode: String,
    /// Its algorithm.
    pub algorithm: String,
    /// Source and value of each part of the key, secrets redacted; empty if the request lacks it.
    pub key: Vec<(String, String)>,
    /// How much the request takes of it.
    pub cost: u64,
    /// Why it does not apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_asked: Option<String>,
    /// Whether the request names a cost that is no number, and takes 1.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub invalid_cost: bool,
    /// The share to which it is scaled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_percent: Option<u8>,
    /// How each rate stands before the request.
    pub rates: Vec<RateSeen>,
    /// How many more of cost 1 it would admit now; that of its tightest rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<u64>,
    /// Its answer if it were the only one: `admitted`, `refused`, `waits`; in shadow mode `refused` if it would refuse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<String>,
    /// Until it would admit the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_ms: Option<u64>,
    /// The key is blocked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<BlockSeen>,
    /// The numbers are those of this key alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_numbers: Option<NumbersSeen>,
}

/// How a rate of a limit stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateSeen {
    /// The quota.
    pub limit: u64,
    /// Its window.
    pub window_ms: u64,
    /// How many more it would admit now.
    pub remaining: u64,
    /// Until that grows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset_ms: Option<u64>,
}

/// The rules that are asked, and the file that they are of.
struct Book<'b, T> {
    model: &'b Model,
    rules: &'b Rules<Arc<T>>,
    tokens: Option<&'b Arc<TokenRules>>,
    redactor: &'b Redactor,
    now: Tick,
    /// The share to which adaptive limits are scaled, in percent; `None`: all of them holds.
    scale: Option<u8>,
}

/// Explains what a file would do with a request that is the first of all.
///
/// # Errors
/// It is no request: in words.
pub fn explain_offline(
    offline: &Offline,
    redactor: &Redactor,
    asked: &ExplainRequest,
    now: Tick,
) -> Result<Explained, String> {
    let Offline { model, rules } = offline;
    Book { model, rules, tokens: None, redactor, now, scale: None }.explain(asked, Offline::server)
}

/// Explains what the gateway that runs would do with a request now.
///
/// # Errors
/// It is no request: in words.
pub(super) fn explain_live(
    snapshot: &Snapshot,
    redactor: &Redactor,
    asked: &ExplainRequest,
    now: Tick,
) -> Result<Explained, String> {
    let Snapshot { model, rules, tokens, .. } = snapshot;
    let server = |upstream: &UpstreamSpec, hash| {
        let upstream = snapshot.upstream(&upstream.name)?;
        let gate = upstream.states.with_roster(|roster| roster.gate(now));
        let chosen = sticky(&upstream.balancer, hash, (!gate.is_plain()).then_some(&gate))?;
        upstream.servers.get(chosen).map(|(endpoint, _)| endpoint.name.to_string())
    };
    let scale = snapshot.overload.as_ref().map(|overload| overload.scale_percent() as u8).filter(|scale| *scale < 100);
    Book { model, rules, tokens: tokens.as_ref(), redactor, now, scale }.explain(asked, server)
}

impl<T: AsRef<RouteRules> + AsRef<RouteSpec>> Book<'_, T> {
    fn explain(
        &self,
        asked: &ExplainRequest,
        server: impl Fn(&UpstreamSpec, u64) -> Option<String>,
    ) -> Result<Explained, String> {
        let question = question(asked)?;
        let limits =
            HeadLimits { max_bytes: self.model.server.max_head_size, max_fields: self.model.server.max_head_fields };
        let found = question.explain(self.rules, self.tokens, &limits, self.now)?;
        let mut explained = Explained {
            method: asked.method.clone(),
            url: self.redactor.target(&asked.url, ClipEnd::Whole).into_owned(),
            route: found.route.as_deref().map(name_of),
            passed_over: found
                .passed_over
                .iter()
                .take(MAX_PASSED)
                .map(|(route, why)| PassedOver { route: name_of(&**route), reason: why.word().to_owned() })
                .collect(),
            client: found.client.to_string(),
            peer: question.peer.to_string(),
            peer_trusted: found.trusted_peer,
            hops: found.hops.iter().map(|hop| HopSeen { hop: hop.text.clone(), trusted: hop.is_trusted }).collect(),
            plan: None,
            limits: Vec::new(),
            decision: "refused".to_owned(),
            reason: None,
            detail: None,
            limit: None,
            status: None,
            next_ms: None,
            timeout_ms: found.timeout.map(Span::as_millis_ceil),
            action: None,
            upstream: None,
            server: None,
            edits: Vec::new(),
        };
        let route: Option<&RouteSpec> = found.route.as_deref().map(AsRef::as_ref);
        if let (Some(taken), Some(route)) = (&found.route, route) {
            explained.plan = plan_name(taken.rules(), found.plan);
            explained.limits = self.limits(route, &explained, &found.limits);
            explained.edits = edits(route);
            act(route, found.sticky_hash, &server, &mut explained);
        }
        self.decide(route, &found.decision, &mut explained);
        let client = &self.model.client;
        let is_in = |networks: &[ipnet::IpNet]| Networks::new(networks.iter().copied()).contains(question.peer);
        if is_in(&client.deny) || !client.allow.is_empty() && !is_in(&client.allow) {
            "refused".clone_into(&mut explained.decision);
            explained.reason = Some("denied".to_owned());
            explained.detail = Some("Connections of this peer are closed: deny or allow of [client].".to_owned());
            (explained.status, explained.next_ms) = (None, None);
        }
        Ok(explained)
    }
}

impl<T> Book<'_, T> {
    fn limits(&self, route: &RouteSpec, explained: &Explained, found: &[ExplainedLimit]) -> Vec<LimitSeen> {
        let limits = found.iter().zip(&route.limits);
        let seen = |(limit, rule): (&ExplainedLimit, &Arc<LimitRule>)| {
            let of_plan = explained.plan.as_ref().and_then(|plan| {
                let mut all = self.model.plan_limits.iter();
                all.find(|own| own.spec.name == rule.spec.name && *own.plan == **plan)
            });
            let spec = of_plan.map_or(&rule.spec, |own| &own.spec);
            self.limit(limit, rule, (spec.mode.word(), spec.algorithm.name()))
        };
        limits.map(seen).collect()
    }

    fn limit(&self, limit: &ExplainedLimit, rule: &LimitRule, (mode, algorithm): (&str, &str)) -> LimitSeen {
        let part = |source: &str, value: &str| {
            let shown = self.redactor.key_part(source, value, ClipEnd::Whole, rule.key_is_secret);
            (source.to_owned(), shown.into_owned())
        };
        let shadow = limit.would_refuse.then_some("refused");
        let block = limit.exception.as_ref().and_then(|own| own.block.as_ref());
        let numbers = limit.exception.as_ref().and_then(|own| own.numbers.as_ref()).filter(|own| own.limit.is_some());
        let offset = WallOffset::of_system();
        let until = block.map_or_else(
            || limit.alone.as_ref().and_then(|alone| self.until(alone)),
            |block| block.until.map(|until| offset.tick(until).since(self.now).as_millis_ceil()),
        );
        LimitSeen {
            name: rule.spec.name.to_string(),
            mode: mode.to_owned(),
            algorithm: algorithm.to_owned(),
            key: limit.key.iter().map(|own| part(&own.source, &own.value)).collect(),
            cost: limit.cost,
            not_asked: limit.not_asked.map(|why| why.word().to_owned()),
            invalid_cost: limit.is_cost_invalid,
            scale_percent: self.scale.filter(|_| rule.spec.is_adaptive),
            rates: rates_of(&limit.rates),
            room: limit.rates.iter().map(|line| line.remaining).min(),
            decision: match block {
                Some(_) => Some("refused".to_owned()),
                None => limit.alone.map(|alone| shadow.unwrap_or(word(&alone)).to_owned()),
            },
            next_ms: until,
            block: BlockSeen::of(block, limit.penalised_until.map(|until| offset.wall(until))),
            own_numbers: numbers.map(|own| NumbersSeen::of(own, None)),
        }
    }

    /// Milliseconds until the request is admitted, if it is not at once and may hope to be.
    fn until(&self, peeked: &Peeked) -> Option<u64> {
        let at = match peeked {
            Peeked::Admitted => None,
            Peeked::Waits { until, .. } => Some(*until),
            Peeked::Refused(refusal) => refusal.retry_at,
        };
        at.map(|at| at.since(self.now).as_millis_ceil())
    }

    fn decide(&self, route: Option<&RouteSpec>, decision: &Decided, explained: &mut Explained) {
        let limit_at = |place: usize| route.and_then(|route| route.limits.get(place)).map(|rule| &**rule);
        let refuse = |explained: &mut Explained, reason: &str, detail: &str, status| {
            "refused".clone_into(&mut explained.decision);
            explained.reason = Some(reason.to_owned());
            explained.detail = Some(detail.to_owned());
            let is_dropped = route.is_some_and(|route| route.on_limit == OnLimit::Drop);
            explained.status = Some(if is_dropped { DROPPED } else { status });
        };
        let status_of = |rule: Option<&LimitRule>, why| {
            let own = rule.and_then(|rule| rule.refusal.as_ref()).or(route.and_then(|route| route.refusal.as_ref()));
            let of_limit = own.and_then(|own| own.status).or(rule.map(|rule| rule.status)).unwrap_or_default();
            status_of_refusal(why, of_limit)
        };
        match decision {
            Decided::Malformed(fault) => {
                refuse(explained, "malformed", &fault.to_string(), status_of_no_route(Some(*fault)));
            }
            Decided::NoRoute => refuse(explained, "no-route", "No route matches.", status_of_no_route(None)),
            Decided::MissingKey { limit } => {
                let rule = limit_at(*limit);
                explained.limit = rule.map(|rule| rule.spec.name.to_string());
                refuse(
                    explained,
                    "rate-limited",
                    "It lacks the key of the limit, which refuses such requests.",
                    status_of(rule, None),
                );
            }
            Decided::Limits(peeked) => {
                word(peeked).clone_into(&mut explained.decision);
                explained.next_ms = self.until(peeked);
                match peeked {
                    Peeked::Admitted => {}
                    Peeked::Waits { limit, .. } => {
                        explained.limit = limit.and_then(limit_at).map(|rule| rule.spec.name.to_string());
                    }
                    Peeked::Refused(Refusal { limit, why, .. }) => {
                        let rule = limit_at(*limit);
                        explained.limit = rule.map(|rule| rule.spec.name.to_string());
                        let (reason, detail) = reason_of(*why);
                        refuse(explained, reason, detail, status_of(rule, Some(*why)));
                        let defers = route.is_some_and(|route| route.on_limit == OnLimit::Defer);
                        if defers
                            && matches!(
                                why,
                                RefusalReason::Rate | RefusalReason::QueueFull | RefusalReason::WaitTimeout
                            )
                        {
                            explained.status = Some(DEFERRED);
                        }
                    }
                }
            }
        }
    }
}

fn name_of(route: &impl AsRef<RouteSpec>) -> String {
    route.as_ref().name.to_string()
}

fn act(
    route: &RouteSpec,
    sticky_hash: u64,
    server: &impl Fn(&UpstreamSpec, u64) -> Option<String>,
    explained: &mut Explained,
) {
    let (action, status) = match &route.action {
        Action::Forward(upstream) => {
            explained.upstream = Some(upstream.name.to_string());
            explained.server = server(upstream, sticky_hash);
            ("forward", None)
        }
        Action::Respond { status, .. } => ("respond", Some(*status)),
        Action::Redirect { status, .. } => ("redirect", Some(*status)),
    };
    explained.action = Some(action.to_owned());
    explained.status = status;
}

/// How rates stand.
pub(super) fn rates_of(lines: &[QuotaLine]) -> Vec<RateSeen> {
    let seen = |line: &QuotaLine| RateSeen {
        limit: line.quota,
        window_ms: line.window.as_millis_ceil(),
        remaining: line.remaining,
        reset_ms: line.reset.map(Span::as_millis_ceil),
    };
    lines.iter().map(seen).collect()
}

/// The request that is asked about.
fn question(asked: &ExplainRequest) -> Result<Question, String> {
    let ExplainRequest { method, url, headers, body, client } = asked;
    let url = url.split('#').next().unwrap_or_default();
    let (is_https, rest) = match url.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
        Some((scheme, _)) if !scheme.contains(['/', '?']) => {
            return Err(format!("The scheme {scheme:?} is neither http nor https."));
        }
        _ => (false, url),
    };
    let is_path = rest.starts_with('/') && !url.contains("://");
    let (authority, target) = match rest.find(['/', '?']) {
        _ if is_path || rest == "*" => (None, rest.to_owned()),
        Some(at) if rest[at..].starts_with('/') => (Some(&rest[..at]), rest[at..].to_owned()),
        Some(at) => (Some(&rest[..at]), format!("/{}", &rest[at..])),
        None => (Some(rest), "/".to_owned()),
    };
    if authority.is_some_and(str::is_empty) {
        return Err("The URL has no host: write https://example.com/path, or a path that begins with /.".to_owned());
    }
    Ok(Question {
        method: method.clone(),
        is_https,
        authority: Some(authority.unwrap_or("localhost").to_owned()),
        target,
        headers: headers.clone(),
        body: body.clone().into_bytes(),
        peer: client.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)),
    })
}

fn word(peeked: &Peeked) -> &'static str {
    match peeked {
        Peeked::Admitted => "admitted",
        Peeked::Waits { .. } => "waits",
        Peeked::Refused(_) => "refused",
    }
}

/// The reason of the dead letter, and a sentence.
fn reason_of(why: RefusalReason) -> (&'static str, &'static str) {
    match why {
        RefusalReason::Rate => ("rate-limited", "The limit has no room."),
        RefusalReason::QueueFull => ("queue-full", "It could wait, but the queue of the key is full."),
        RefusalReason::WaitTimeout => ("wait-timeout", "Its room does not come in time."),
        RefusalReason::TooCostly => ("rate-limited", "It costs more than the limit can ever admit."),
        RefusalReason::TableFull => ("overload", "The table of keys is full, and the limit refuses new ones."),
        RefusalReason::Blocked => ("blocked", "The key is blocked, by a penalty or by hand."),
        RefusalReason::StoreDown => ("overload", "The limit is shared, and closed while its store does not answer."),
    }
}

fn plan_name(rules: &RouteRules, plan: Option<PlanPlace>) -> Option<String> {
    rules.plans.as_ref()?.terms_of(plan?).map(|terms| terms.name.to_string())
}

/// The changes of a route in messages; values may be secrets, and are left out.
fn edits(route: &RouteSpec) -> Vec<String> {
    let mut edits = Vec::new();
    let Some(own) = &route.edits else { return edits };
    for (of, fields) in [("request", &own.request), ("response", &own.response)] {
        let named = |verb: &str, name: &str| format!("{of} header {name}: {verb}");
        edits.extend(fields.set().iter().map(|(name, _)| named("set", name)));
        edits.extend(fields.add().iter().map(|(name, _)| named("added", name)));
        edits.extend(fields.removed().iter().map(|name| named("removed", name)));
    }
    if own.rewrite.is_some() {
        edits.push("path: rewritten".to_owned());
    }
    if let Some(host) = &own.host {
        edits.push(format!("host: {host}"));
    }
    edits
}
