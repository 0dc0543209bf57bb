//! Explains a request: every step of admission in words, without a trace.

use std::net::IpAddr;

use super::admit::{LacksKey, Places, Rules, ask, read_target};
use super::client::{ClientIp, Hop};
use super::excepted;
use super::exceptions::KeyException;
use super::host::HostRoom;
use super::identity::KeyFacts;
use super::key::KeyPart;
use super::malformed::Malformed;
use super::path::NormalPath;
use super::pattern::{PathPattern, RoutePattern};
use super::plans::PlanPlace;
use super::route::{LimitUse, PassedOver, RouteRules, Routed, timeout_at};
use super::spelling::Missing;
use super::terms::Terms;
use super::view::{RequestView, is_preflight};
use sluicegate_limiter::{Ask, MAX_LIMITS, Peeked, Policy, QuotaLine, Report};
use sluicegate_time::{Span, Tick};

/// Everything that is found out about a request, and what would become of it now.
#[derive(Debug)]
pub struct Explanation<R> {
    /// The client.
    pub client: ClientIp,
    /// Whether the peer of the connection is a trusted proxy.
    pub trusted_peer: bool,
    /// The hops that were read to find the client, the nearest first; empty if the peer is not trusted.
    pub hops: Vec<Hop>,
    /// The host in its one spelling.
    pub host: Option<String>,
    /// The path in its one spelling; empty if it has none.
    pub path: String,
    /// The route.
    pub route: Option<R>,
    /// The other routes, in the file's order, and why each does not get it.
    pub passed_over: Vec<(R, PassedOver)>,
    /// The plan that it is of, if its route has plans.
    pub plan: Option<PlanPlace>,
    /// Its limits, in the route's order.
    pub limits: Vec<ExplainedLimit>,
    /// From its arrival to the last byte of its answer; `None` is without end.
    pub timeout: Option<Span>,
    /// The hash that makes it stick to a server; 0 if its route has no hash key.
    pub sticky_hash: u64,
    /// The answer.
    pub decision: Decided,
}

/// The answer that a request would get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decided {
    /// It cannot be understood.
    Malformed(Malformed),
    /// No route matches.
    NoRoute,
    /// It lacks the key of a limit that refuses such requests.
    MissingKey {
        /// The limit's place in the route.
        limit: usize,
    },
    /// The answer of its limits. Indices are places in the route.
    Limits(Peeked),
}

/// One limit of the request's route.
#[derive(Debug)]
pub struct ExplainedLimit {
    /// Why it does not apply; `None`: it does.
    pub not_asked: Option<NotAsked>,
    /// The key, in words; it may be secret. Empty if the request lacks it.
    pub key: Vec<KeyPart>,
    /// How much the request takes.
    pub cost: u64,
    /// Whether the request names a cost that is no number, and takes 1.
    pub is_cost_invalid: bool,
    /// How each of its rates stands before the request. A limit on what is in flight counts the request already.
    pub rates: Vec<QuotaLine>,
    /// Its answer if it were the only one; `None` if it is not asked.
    pub alone: Option<Peeked>,
    /// Whether it would refuse, but is in shadow mode.
    pub would_refuse: bool,
    /// The exceptions of the key that hold now.
    pub exception: Option<KeyException>,
    /// Until when a penalty blocks the key.
    pub penalised_until: Option<Tick>,
}

words! {
    /// Why a limit does not apply to a request.
    pub enum NotAsked {
        /// It is not the time for it.
        Inactive = "inactive",
        /// The client is exempt.
        ExemptClient = "exempt-client",
        /// The key is exempt.
        ExemptKey = "exempt-key",
        /// The request lacks the key, and is passed over.
        NoKey = "no-key",
        /// Preflights are not counted on this route.
        Preflight = "preflight",
        /// Another limit refuses it before: it lacks that one's key.
        NotReached = "not-reached",
    }
}

impl<R: Routed> Rules<R> {
    /// Explains how [`admit`](Self::admit) would treat a request now, and why: by the same code, on copies of what the
    /// limiter knows of its keys. Nothing is counted. It allocates, and looks at every route.
    ///
    /// By a view of any kind, so that no function of the hot path is called from here too: the compiler would no longer put it
    /// in line there.
    pub fn explain(&self, view: &dyn RequestView, peer: IpAddr, now: Tick) -> Explanation<R> {
        let identity = self.shared.clients.identify(view, peer);
        let hops = if identity.trusted_peer { self.shared.clients.hops(view) } else { Vec::new() };
        let mut found = Explanation {
            client: identity.client,
            trusted_peer: identity.trusted_peer,
            hops,
            host: None,
            path: String::new(),
            route: None,
            passed_over: Vec::new(),
            plan: None,
            limits: Vec::new(),
            timeout: None,
            sticky_hash: 0,
            decision: Decided::NoRoute,
        };
        let mut room = HostRoom::new();
        let (path, host) = match read_target(view, &mut room) {
            Ok(target) => target,
            Err(malformed) => return Explanation { decision: Decided::Malformed(malformed), ..found },
        };
        found.host = host.map(str::to_owned);
        found.path = path.text.to_string();
        let matched = path.matched();
        let taken = self.shared.table.find(&self.routes, host, &matched, view, now);
        // Those of descriptors are for no request.
        let is_of_requests = |route: &&R| !matches!(route.rules().pattern.path, PathPattern::Descriptor(_));
        let is_other = |route: &&R| taken.is_none_or(|taken| !std::ptr::eq(*route, taken));
        let others = self.routes.iter().filter(is_of_requests).filter(is_other);
        let why = |route: &R| (route.clone(), route.rules().passed_over(host, &matched, view, now));
        found.passed_over = others.map(why).collect();
        if let Some(malformed) = RoutePattern::refuses(taken.map(|route| &route.rules().pattern), &path) {
            return Explanation { decision: Decided::Malformed(malformed), ..found };
        }
        if let Some(route) = taken {
            explain_limits(route.rules(), view, (host, &path), now, &mut found);
            found.route = Some(route.clone());
        }
        found
    }
}

/// The second half, once the route is known.
fn explain_limits<R>(
    route: &RouteRules,
    view: &dyn RequestView,
    (host, path): (Option<&str>, &NormalPath<'_>),
    now: Tick,
    found: &mut Explanation<R>,
) {
    let client = found.client.clone();
    let sources = KeyFacts { view, client: &client, host, path: &path.text, route: &route.name };
    let terms = Terms::of(route, &sources);
    let mut asks = [Ask::default(); MAX_LIMITS];
    let mut invalid_costs = Places::default();
    let asked =
        ask(route, (terms.limits, found.trusted_peer, terms.renews), &sources, now, &mut asks, &mut invalid_costs);
    let (mut asks, lacking): (Vec<Ask>, _) = match asked {
        Ok(asks) => (asks.to_vec(), None),
        Err(LacksKey { limit }) => (Vec::new(), Some(limit)),
    };
    found.timeout = timeout_at(terms.limits, terms.timeout, now);
    found.plan = terms.plan;
    found.sticky_hash = route.hash_key.as_ref().map_or(0, |key| key.sticky_hash(&sources));
    let patience = found.timeout.into_iter().chain(route.response_timeout).min().unwrap_or(Span::MAX);
    let mut report = Report::default();
    let own = excepted::own_policy(&terms, &sources, &mut asks, now);
    let policy = own.as_ref().unwrap_or(terms.policy);
    found.decision = match lacking {
        Some(limit) => Decided::MissingKey { limit },
        None => Decided::Limits(policy.peek(&asks, patience, now, &mut report)),
    };
    if let Some(blocked) = excepted::blocked(&terms, &sources, now) {
        found.decision = Decided::Limits(Peeked::Refused(blocked.refusal()));
    }
    for (place, rule) in terms.limits.iter().enumerate() {
        let ask = asks.get(place).copied().unwrap_or_default();
        let alone = ask.key.map(|_| peek_alone(policy, place, ask, patience, now));
        found.limits.push(ExplainedLimit {
            not_asked: match (ask.key, lacking) {
                (None, Some(limit)) if limit != place => Some(NotAsked::NotReached),
                (Some(_), _) | (None, Some(_)) => None,
                (None, None) => Some(why_not_asked(route, rule, &sources, now)),
            },
            key: rule.describe_key(&sources),
            cost: ask.cost,
            is_cost_invalid: invalid_costs.iter().any(|invalid| invalid == place),
            rates: report.lines().iter().filter(|line| line.limit == place).copied().collect(),
            alone,
            would_refuse: report.shadow_refusals().any(|shadow| shadow == place),
            exception: excepted::of_request(&terms, place, &sources, now),
            penalised_until: ask.key.zip(policy.limits().get(place)).and_then(|(key, own)| own.blocked_until(key, now)),
        });
    }
}

fn peek_alone(policy: &Policy, place: usize, ask: Ask, patience: Span, now: Tick) -> Peeked {
    let mut alone = [Ask::default(); MAX_LIMITS];
    if let Some(own) = alone.get_mut(place) {
        *own = ask;
    }
    policy.peek(&alone, patience, now, &mut Report::default())
}

/// Of a limit that is not asked.
fn why_not_asked<V: RequestView + ?Sized>(
    route: &RouteRules,
    rule: &LimitUse,
    sources: &KeyFacts<'_, V>,
    now: Tick,
) -> NotAsked {
    if !route.count_preflight && is_preflight(sources.view) {
        return NotAsked::Preflight;
    }
    if !rule.is_active(now) {
        return NotAsked::Inactive;
    }
    if rule.exempt.as_deref().is_some_and(|exempt| exempt.has_client(sources.client)) {
        return NotAsked::ExemptClient;
    }
    match rule.key.fingerprint(sources, &rule.hasher) {
        Err(Missing::Absent) => NotAsked::NoKey,
        _ => NotAsked::ExemptKey,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::testing::{self, route};
    use crate::{
        AddressForm, AddressHeader, ClientRules, Cost, CostPlace, Exempt, ExemptRules, HostPattern, KeyExpr,
        OnMissingKey, PathPattern, PlainRequest, Refused, RoutePattern,
    };
    use sluicegate_limiter::{
        Algorithm, Bound, Concurrency, Gcra, KeyHasher, Limit, LimitSpec, Mode, Penalty, Policy, Refill, RefusalReason,
        SlidingLog, TimerWheel, TokenBucket,
    };

    type Admission = crate::Admission<Arc<RouteRules>>;
    type Rules = super::Rules<Arc<RouteRules>>;

    fn limit(algorithm: Algorithm, mode: Mode, max_wait: Span, penalty: Option<Penalty>) -> Arc<Limit> {
        Limit::new(LimitSpec { mode, max_wait, max_keys: 4, penalty, ..LimitSpec::new("limit", algorithm) })
    }

    fn algorithm(which: usize) -> Algorithm {
        let rates = ["2/s".parse().unwrap()];
        match which {
            0 => Algorithm::TimerWheel(TimerWheel::new(&rates, None, Bound::Sliding).unwrap()),
            1 => Algorithm::Gcra(Gcra::new(&rates, Some(2)).unwrap()),
            2 => Algorithm::TokenBucket(TokenBucket::new(&rates, Some(3), Refill::Greedy).unwrap()),
            3 => Algorithm::SlidingLog(SlidingLog::new(&rates, Span::ZERO, true).unwrap()),
            _ => Algorithm::Concurrency(Concurrency::new(2).unwrap()),
        }
    }

    fn usage(key: &str, on_missing: OnMissingKey, mode: Mode) -> LimitUse {
        let key = KeyExpr::parse(&[key]).unwrap();
        let written = ExemptRules { networks: vec!["192.0.2.9/32".parse().unwrap()], keys: vec!["vip".into()] };
        let exempt = (key != KeyExpr::parse(&["client-ip"]).unwrap())
            .then(|| Exempt::new(&written, &key, AddressForm::default(), &KeyHasher::fixed()))
            .flatten();
        LimitUse {
            key,
            on_missing,
            cost: Cost::stated(CostPlace::Header("x-cost".into()), 5),
            exempt,
            enforced: mode == Mode::Enforce,
            ..testing::usage(&["global"])
        }
    }

    fn pattern(host: &str, path: &str, method: &str, header: &str) -> RoutePattern {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        RoutePattern {
            hosts: some(host).map(|host| HostPattern::parse(&host).unwrap()).into_iter().collect(),
            path: match path.strip_prefix("= ") {
                Some(path) => PathPattern::exact(path).unwrap(),
                None => PathPattern::prefix(path).unwrap(),
            },
            methods: some(method).into_iter().collect(),
            headers: some(header).map(|value| ("x-v".to_owned(), value)).into_iter().collect(),
            allow_encoded_slash: false,
            path_as_received: false,
        }
    }

    fn rules(routes: Vec<RouteRules>) -> Rules {
        let clients = ClientRules {
            trusted_proxies: vec!["10.0.0.0/8".parse().unwrap()],
            address_header: AddressHeader::XForwardedFor,
            ipv6_prefix: 64,
        };
        let routes = routes.into_iter().map(|route| RouteRules { pattern: route.pattern.normalised(), ..route });
        Rules::new(clients, routes.map(Arc::new).collect(), KeyHasher::fixed())
    }

    fn name(route: Option<&Arc<RouteRules>>) -> Option<&str> {
        route.map(|route| &*route.name)
    }

    /// The real decision, as an explanation would say it.
    fn happened(admission: &Admission) -> Decided {
        match admission {
            Admission::Malformed(fault) => Decided::Malformed(*fault),
            Admission::NoRoute(_) => Decided::NoRoute,
            Admission::Refused(_, _, Refused::MissingKey { limit }) => Decided::MissingKey { limit: *limit },
            Admission::Refused(_, _, Refused::Limit(refusal)) => Decided::Limits(Peeked::Refused(*refusal)),
            Admission::Waiting(waiting) => Decided::Limits(Peeked::Waits { limit: waiting.limit(), until: Tick::ZERO }),
            Admission::Admitted(_) => Decided::Limits(Peeked::Admitted),
        }
    }

    fn without_instant(decided: Decided) -> Decided {
        match decided {
            Decided::Limits(Peeked::Waits { limit, .. }) => Decided::Limits(Peeked::Waits { limit, until: Tick::ZERO }),
            other => other,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

        #[test]
        fn an_explanation_is_what_then_happens_and_changes_nothing(
            (first, second) in (0usize..5, 0usize..5),
            wait in prop_oneof![Just(0u64), Just(900)],
            shadow in any::<bool>(),
            with_penalty in any::<bool>(),
            on_missing in select(vec![OnMissingKey::Skip, OnMissingKey::Refuse, OnMissingKey::ClientIp]),
            requests in prop::collection::vec((
                select(vec!["GET", "POST", "get"]),
                select(vec!["a.example", "b.a.example", "other", ""]),
                select(vec!["/api/x", "/api", "/other", "/api%2Fx", "/"]),
                select(vec!["", "k1", "k2", "vip"]),
                select(vec!["", "1", "3", "x"]),
                (select(vec!["192.0.2.1", "192.0.2.9", "10.0.0.1"]), 0u64..400),
            ), 1..40),
        ) {
            let penalty = with_penalty.then(|| Penalty::new(2, Span::from_secs(5), Span::from_secs(2)).unwrap());
            let mode = if shadow { Mode::Shadow } else { Mode::Enforce };
            let max_wait = Span::from_millis(wait);
            let in_flight = |which: usize| matches!(algorithm(which), Algorithm::Concurrency(_));
            let limits = [
                limit(algorithm(first), Mode::Enforce, max_wait, penalty.filter(|_| !in_flight(first))),
                limit(algorithm(second), mode, Span::ZERO, None),
            ];
            let used = || vec![
                (Arc::clone(&limits[0]), usage("header:k", on_missing, Mode::Enforce)),
                (Arc::clone(&limits[1]), usage("client-ip", OnMissingKey::Refuse, mode)),
            ];
            let rules = rules(vec![
                route("posts", pattern("a.example", "/api", "POST", ""), used()),
                route("any", pattern("*.a.example", "/api", "", "1"), used()),
                route("exact", pattern("", "= /api", "", ""), Vec::new()),
                route("api", pattern("", "/api", "", ""), used()),
                route("api-again", pattern("", "/api", "", ""), used()),
            ]);
            let mut kept = Vec::new();
            let mut millis = 1_700_000_000_000;
            for (method, host, path, key, cost, (peer, later)) in requests {
                millis += later;
                let now = Tick::ZERO + Span::from_millis(millis);
                let mut view = PlainRequest::new(method, path).with("x-forwarded-for", "203.0.113.1, 10.9.9.9");
                for (name, value) in [("k", key), ("x-cost", cost), ("x-v", cost)] {
                    if !value.is_empty() {
                        view = view.with(name, value);
                    }
                }
                let view = if host.is_empty() { view } else { view.host(host) };
                let peer = peer.parse().unwrap();
                let before = format!("{limits:?}");
                let explained = rules.explain(&view, peer, now);
                prop_assert_eq!(format!("{limits:?}"), before);
                for (other, why) in &explained.passed_over {
                    let alone = self::rules(vec![RouteRules { policy: Policy::new(Vec::new()).unwrap(), limits: Vec::new(), ..RouteRules::clone(other) }]);
                    let takes = alone.explain(&view, peer, now).route.is_some();
                    // Of a path with an encoded slash nobody asks.
                    if !path.contains('%') {
                        prop_assert_eq!(takes, *why == PassedOver::Later, "{} {:?} {:?}", other.name, why, view);
                    }
                }
                let admission = rules.admit(&view, peer, now, &mut Report::default());
                let (decided, real) = (without_instant(explained.decision), happened(&admission));
                prop_assert_eq!(decided, real, "{:?}", view);
                match &admission {
                    Admission::Waiting(waiting) => prop_assert_eq!(name(Some(waiting.route())), name(explained.route.as_ref())),
                    Admission::Refused(route, arrival, _) => {
                        prop_assert_eq!(name(Some(route)), name(explained.route.as_ref()));
                        prop_assert_eq!(&arrival.client, &explained.client);
                    }
                    Admission::NoRoute(arrival) => {
                        prop_assert!(explained.route.is_none());
                        prop_assert_eq!(&arrival.client, &explained.client);
                    }
                    Admission::Admitted(admitted) => prop_assert_eq!(name(Some(admitted.route())), name(explained.route.as_ref())),
                    Admission::Malformed(_) => {}
                }
                kept.push(admission);
                if kept.len() > 3 {
                    drop(kept.remove(0));
                }
            }
        }
    }

    #[test]
    fn names_the_limit_the_key_the_hop_and_the_instant() {
        let per_key = limit(algorithm(1), Mode::Enforce, Span::ZERO, None);
        let rules = rules(vec![
            route("admin", pattern("", "/admin", "", ""), Vec::new()),
            route(
                "all",
                pattern("", "/", "", ""),
                vec![(per_key, usage("header:k", OnMissingKey::Skip, Mode::Enforce))],
            ),
        ]);
        let now = Tick::ZERO + Span::from_secs(100);
        let view =
            PlainRequest::new("GET", "/x").with("k", "one").with("x-forwarded-for", "6.6.6.6, 192.0.2.9, 10.0.0.7");
        let peer = "10.0.0.1".parse().unwrap();
        let explained = rules.explain(&view, peer, now);
        assert_eq!(explained.client.to_string(), "192.0.2.9");
        let hops: Vec<_> = explained.hops.iter().map(|hop| (hop.text.as_str(), hop.is_trusted)).collect();
        assert_eq!(hops, [("10.0.0.7", true), ("192.0.2.9", false), ("6.6.6.6", false)]);
        assert_eq!(name(explained.route.as_ref()), Some("all"));
        let passed: Vec<_> = explained.passed_over.iter().map(|(route, why)| (&*route.name, *why)).collect();
        assert_eq!(passed, [("admin", PassedOver::Path)]);
        assert_eq!(explained.limits[0].not_asked, Some(NotAsked::ExemptClient));
        let view = view.with("x-cost", "2");
        let stranger = "192.0.2.1".parse().unwrap();
        let admission = rules.admit(&view, stranger, now, &mut Report::default());
        assert!(matches!(admission, Admission::Admitted(_)));
        let explained = rules.explain(&view, stranger, now);
        let [limit] = &*explained.limits else { panic!("one limit") };
        assert_eq!((limit.cost, limit.rates[0].remaining, limit.not_asked), (2, 0, None));
        assert_eq!((limit.key[0].source.as_str(), limit.key[0].value.as_str()), ("header:k", "one"));
        let Decided::Limits(Peeked::Refused(refusal)) = explained.decision else { panic!("used up") };
        assert_eq!((refusal.why, refusal.retry_at), (RefusalReason::Rate, Some(now + Span::from_secs(1))));
        assert_eq!(limit.alone, Some(Peeked::Refused(refusal)));
    }
}
