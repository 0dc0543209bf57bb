use std::net::IpAddr;
use std::num::NonZeroU8;
use std::sync::Arc;
use std::task::Waker;

use super::client::{AddressHeader, ClientIp, ClientRules, Clients, Identity};
use super::cost::InvalidCost;
use super::excepted;
use super::host::{self, HostRoom};
use super::identity::{KeyFacts, fingerprint_in_place};
use super::key::{KeyExpr, KeyPart, OnMissingKey};
use super::malformed::Malformed;
use super::path::{NormalPath, normalise_target};
use super::pattern::RoutePattern;
use super::plans::PlanPlace;
use super::route::{LimitUse, RouteRules, RouteTable, Routed, timeout_at};
use super::spelling::Missing;
use super::terms::Terms;
use super::view::{RequestView, is_preflight};
use sluicegate_limiter::{Ask, Attempt, Fingerprint, KeyHasher, MAX_LIMITS, Permit, Refusal, Report, Ticket, Verdict};
use sluicegate_time::{Span, Tick};

/// The answer of admission to a request.
#[derive(Debug)]
#[must_use]
pub enum Admission<R> {
    /// It cannot be understood: 400.
    Malformed(Malformed),
    /// No route matches: 404.
    NoRoute(Arrival),
    /// A limit of its route refuses it.
    Refused(R, Arrival, Refused),
    /// It has a place in a limit's queue.
    Waiting(Waiting<R>),
    /// It may be forwarded.
    Admitted(Admitted<R>),
}

/// The facts found about a request, whatever became of it.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The client.
    pub client: ClientIp,
    /// Whether the peer of the connection is a trusted proxy.
    pub trusted_peer: bool,
    /// The path in its one spelling; `None` if it came so.
    pub path: Option<Box<str>>,
    /// The key of the limit that refused.
    pub key: Option<Fingerprint>,
    /// The limits for which the request named a cost that is no number, and which count it as 1.
    pub invalid_costs: Places,
    /// The plan that it is of, if its route has plans.
    pub plan: Option<PlanPlace>,
}

/// Limits of a route, by their places in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places(u8);

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is over a limit.
    Limit(Refusal),
    /// It lacks the key of a limit that refuses such requests.
    MissingKey {
        /// The limit's place in the route.
        limit: usize,
    },
}

/// The right to be forwarded. Only admission can make it:
///
/// ```compile_fail,E0451
/// # use sluicegate_admission::{Admitted, Arrival};
/// fn forged<R>(admitted: Admitted<R>, arrival: Arrival) -> Admitted<R> {
///     Admitted { arrival, ..admitted }
/// }
/// ```
#[derive(Debug)]
pub struct Admitted<R> {
    route: R,
    arrival: Arrival,
    facts: Facts,
    waited: bool,
    permit: Permit,
}

/// The decisions about a request that are made before the limits are asked.
#[derive(Clone, Copy, Debug)]
struct Facts {
    sticky_hash: u64,
    /// [`Tick::MAX`]: never; without an `Option`, since every connection has room for this.
    deadline: Tick,
    /// The same.
    respond_by: Tick,
    arrived: Tick,
}

/// A request that waits for its room in a limit. Dropping it gives its place up.
///
/// Its owner calls [`attempt`](Self::attempt) at once, then at `wake_at` of each answer and whenever the waker that it
/// gave is woken, until the answer is another than `Pending`.
#[derive(Debug)]
#[must_use = "dropping it gives the place up"]
pub struct Waiting<R>(Box<Queued<R>>);

#[derive(Debug)]
struct Queued<R> {
    ticket: Ticket,
    route: R,
    arrival: Arrival,
    facts: Facts,
    keys: [Option<Fingerprint>; MAX_LIMITS],
}

/// The state of a waiting request.
#[derive(Debug)]
#[must_use]
pub enum Progress<R> {
    /// It may be forwarded.
    Admitted(Admitted<R>),
    /// It goes on waiting.
    Pending {
        /// When to attempt again, unless the waker is woken before.
        wake_at: Tick,
    },
    /// It has waited in vain.
    TimedOut(Arrival, Refusal),
}

/// All rules of one configuration.
#[derive(Clone, Debug)]
pub struct Rules<R> {
    pub(super) routes: Vec<R>,
    pub(super) shared: Arc<CommonRules>,
}

/// The part of the rules that does not hang on what their owner keeps with routes.
#[derive(Debug)]
pub(super) struct CommonRules {
    pub(super) clients: Clients,
    pub(super) table: RouteTable,
    pub(super) hasher: KeyHasher,
    /// Whether a limit of some route looks at bodies.
    pub(super) reads_bodies: bool,
}

impl<R: Routed> Rules<R> {
    /// Lays the rules out for traffic. `hasher` is for what is counted by no limit: peers and bandwidths. It has to outlive
    /// reloads, as their tables do.
    pub fn new(clients: ClientRules, routes: Vec<R>, hasher: KeyHasher) -> Self {
        let table = RouteTable::new(&routes);
        let reads_bodies = routes.iter().any(|route| route.rules().body.is_some());
        Self { routes, shared: Arc::new(CommonRules { clients: Clients::new(clients), table, hasher, reads_bodies }) }
    }

    /// The same rules, with something else kept with each route, which has to have the same [`RouteRules`].
    pub fn map<Q: Routed>(&self, map: impl FnMut(&R) -> Q) -> Rules<Q> {
        Rules { routes: self.routes.iter().map(map).collect(), shared: Arc::clone(&self.shared) }
    }

    /// The field by which trusted proxies say who the client is.
    pub fn address_header(&self) -> &AddressHeader {
        self.shared.clients.header()
    }

    /// The rules of who is believed.
    pub fn clients(&self) -> &Clients {
        &self.shared.clients
    }

    /// The fingerprint that tells a peer from others by its address; `None` of a trusted proxy, which stands
    /// for many.
    pub fn key_of_peer(&self, peer: IpAddr) -> Option<Fingerprint> {
        let client = self.shared.clients.of_peer(peer)?;
        Some(fingerprint_in_place(&client, &self.shared.hasher))
    }

    /// The client of a request over a connection with this peer, where admission does not ask for it.
    #[cold]
    pub fn client_of<V: RequestView + ?Sized>(&self, view: &V, peer: IpAddr) -> ClientIp {
        self.shared.clients.identify(view, peer).client
    }

    /// The routes, in the order in which they were given.
    pub fn routes(&self) -> &[R] {
        &self.routes
    }

    /// The route that a request takes; `None` where none does, or it cannot be understood. No limit is asked.
    #[cold]
    pub fn route_of<V: RequestView + ?Sized>(&self, view: &V, now: Tick) -> Option<&R> {
        let mut room = HostRoom::new();
        let (path, host) = read_target(view, &mut room).ok()?;
        self.shared.table.find(&self.routes, host, &path.matched(), view, now)
    }

    /// Decides about one request: who asks, along which route, under which keys, and whether the limits let it in.
    ///
    /// `peer` is the other end of the connection. `report` is emptied, and then says how the limits stand, if any were
    /// asked; it is large and would be copied at each move, so its owner keeps it. Nothing is allocated for a request
    /// that is admitted at once, if its path came in its one spelling, without escapes of `!$&'()*+,;=:@`, and the limiter's
    /// tables know its keys.
    pub fn admit<V: RequestView + ?Sized>(
        &self,
        view: &V,
        peer: IpAddr,
        now: Tick,
        report: &mut Report,
    ) -> Admission<R> {
        report.clear();
        let identity = self.shared.clients.identify(view, peer);
        let mut room = HostRoom::new();
        let (path, host) = match read_target(view, &mut room) {
            Ok(target) => target,
            Err(malformed) => return Admission::Malformed(malformed),
        };
        let route = self.shared.table.find(&self.routes, host, &path.matched(), view, now);
        if let Some(malformed) = RoutePattern::refuses(route.map(|route| &route.rules().pattern), &path) {
            return Admission::Malformed(malformed);
        }
        let arrival = Arrival::new(identity);
        match route {
            Some(route) => self.ask_limits(route, view, (host, path), arrival, now, report, |_| ()),
            None => Admission::NoRoute(Arrival { path: path.into_changed(), ..arrival }),
        }
    }

    /// The second half of [`admit`](Self::admit), once the route is known. `adapt` may change what is asked.
    #[expect(clippy::too_many_arguments, reason = "they are moved into one place of the hot path")]
    pub(super) fn ask_limits<V: RequestView + ?Sized>(
        &self,
        found: &R,
        view: &V,
        (host, path): (Option<&str>, NormalPath<'_>),
        mut arrival: Arrival,
        now: Tick,
        report: &mut Report,
        adapt: impl FnOnce(&mut [Ask]),
    ) -> Admission<R> {
        let route = found.rules();
        let sources = KeyFacts { view, client: &arrival.client, host, path: &path.text, route: &route.name };
        let terms = Terms::of(route, &sources);
        let has_exceptions = excepted::are_any(&terms);
        if has_exceptions && let Some(blocked) = excepted::blocked(&terms, &sources, now) {
            (arrival.plan, arrival.key) = (terms.plan, Some(blocked.key));
            arrival.path = route.pattern.changed(path);
            return Admission::Refused(found.clone(), arrival, Refused::Limit(blocked.refusal()));
        }
        let mut asks = [Ask::default(); MAX_LIMITS];
        let mut invalid_costs = Places::default();
        let limits = (terms.limits, arrival.trusted_peer, terms.renews);
        let asked = ask(route, limits, &sources, now, &mut asks, &mut invalid_costs);
        let timeout = timeout_at(terms.limits, terms.timeout, now);
        // A request that waits longer than either has waited in vain.
        let patience = timeout.into_iter().chain(route.response_timeout).min().unwrap_or(Span::MAX);
        arrival.invalid_costs = invalid_costs;
        arrival.plan = terms.plan;
        let verdict = match asked {
            Ok([]) => Verdict::Admitted(Permit::default()),
            Ok(asks) => {
                adapt(asks);
                report.note_keys(asks.iter().map(|ask| ask.key));
                let own = if has_exceptions {
                    excepted::act(&terms, &sources, asks, now);
                    excepted::own_policy(&terms, &sources, asks, now)
                } else {
                    None
                };
                own.as_ref().unwrap_or(terms.policy).check(asks, patience, now, report)
            }
            Err(LacksKey { limit }) => {
                let hasher = terms.limits.get(limit).map_or(&self.shared.hasher, |rule| &rule.hasher);
                arrival.key = Some(fingerprint_in_place(&arrival.client, hasher));
                arrival.path = route.pattern.changed(path);
                return Admission::Refused(found.clone(), arrival, Refused::MissingKey { limit });
            }
        };
        if let Verdict::Refused(refusal) = verdict {
            arrival.key = asks.get(refusal.limit).and_then(|ask| ask.key);
            arrival.path = route.pattern.changed(path);
            return Admission::Refused(found.clone(), arrival, Refused::Limit(refusal));
        }
        let facts = Facts {
            sticky_hash: route.hash_key.as_ref().map_or(0, |key| key.sticky_hash(&sources)),
            deadline: timeout.map_or(Tick::MAX, |timeout| now + timeout),
            respond_by: route.response_timeout.map_or(Tick::MAX, |timeout| now + timeout),
            arrived: now,
        };
        arrival.path = route.pattern.changed(path);
        match verdict {
            Verdict::Queued(ticket) => {
                let keys = asks.map(|ask| ask.key);
                Admission::Waiting(Waiting(Box::new(Queued { ticket, route: found.clone(), arrival, facts, keys })))
            }
            Verdict::Admitted(permit) => {
                Admission::Admitted(Admitted { route: found.clone(), arrival, facts, waited: false, permit })
            }
            // Answered above.
            Verdict::Refused(refusal) => Admission::Refused(found.clone(), arrival, Refused::Limit(refusal)),
        }
    }

    /// Whom a bandwidth of a route counts this request's bytes with: its own address in place of a key that it lacks.
    pub fn key_of<V: RequestView + ?Sized>(
        &self,
        view: &V,
        client: &ClientIp,
        route: &RouteRules,
        key: &KeyExpr,
    ) -> Option<Fingerprint> {
        let mut room = HostRoom::new();
        let (path, host) = read_target(view, &mut room).ok()?;
        let facts = KeyFacts { view, client, host, path: &path.text, route: &route.name };
        Some(
            key.fingerprint(&facts, &self.shared.hasher)
                .unwrap_or_else(|_| fingerprint_in_place(client, &self.shared.hasher)),
        )
    }
}

impl RouteRules {
    /// The key under which the limit at this place counts this request; `None` if it lacks the key.
    pub fn key_of_limit<V: RequestView + ?Sized>(
        &self,
        view: &V,
        client: &ClientIp,
        limit: usize,
    ) -> Option<Fingerprint> {
        let rule = self.limits.get(limit)?;
        let mut room = HostRoom::new();
        let (path, host) = read_target(view, &mut room).ok()?;
        let facts = KeyFacts { view, client, host, path: &path.text, route: &self.name };
        rule.key.fingerprint(&facts, &rule.hasher).ok()
    }

    /// The key under which the limit at this place counts this request, in words. Empty if the limit does not apply to it.
    /// For dead letters only: it allocates, and what it gives may be secret.
    pub fn describe_key<V: RequestView + ?Sized>(&self, view: &V, client: &ClientIp, limit: usize) -> Vec<KeyPart> {
        let Some(rule) = self.limits.get(limit) else { return Vec::new() };
        let mut room = HostRoom::new();
        let Ok((path, host)) = read_target(view, &mut room) else { return Vec::new() };
        let facts = KeyFacts { view, client, host, path: &path.text, route: &self.name };
        rule.describe_key(&facts)
    }
}

/// Fills in what is asked of each limit (of which a plan may say when its months begin) and gives the part that was filled: empty if none is to be asked.
pub(super) fn ask<'a, V: RequestView + ?Sized>(
    route: &RouteRules,
    (limits, trusted_peer, renews): (&[LimitUse], bool, Option<NonZeroU8>),
    sources: &KeyFacts<'_, V>,
    now: Tick,
    asks: &'a mut [Ask; MAX_LIMITS],
    invalid_costs: &mut Places,
) -> Result<&'a mut [Ask], LacksKey> {
    if limits.is_empty() || !route.count_preflight && is_preflight(sources.view) {
        return Ok(&mut []);
    }
    for (limit, (ask, rule)) in asks.iter_mut().zip(limits).enumerate() {
        let exempt = rule.exempt.as_deref();
        if !rule.is_active(now) || exempt.is_some_and(|exempt| exempt.has_client(sources.client)) {
            continue;
        }
        let key = match (rule.key.fingerprint(sources, &rule.hasher), rule.on_missing) {
            (Ok(key), _) => Some(key),
            (Err(_), OnMissingKey::ClientIp) | (Err(Missing::Unusable), OnMissingKey::Skip) => {
                Some(fingerprint_in_place(sources.client, &rule.hasher))
            }
            (Err(_), OnMissingKey::Refuse) if rule.enforced => return Err(LacksKey { limit }),
            (Err(_), OnMissingKey::Skip | OnMissingKey::Refuse) => None,
        };
        let key = key.filter(|key| !exempt.is_some_and(|exempt| exempt.has_key(*key)));
        // Of a shared limit alone, since it takes a hash.
        let client = if rule.shared { fingerprint_in_place(sources.client, &rule.hasher).bits() as u32 } else { 0 };
        *ask = Ask { key, cost: 1, counting: rule.counting, client, ..Ask::default() };
        // A limit that does not apply does not look at the cost either.
        if key.is_some() {
            ask.cost = rule.cost.of(sources.view).unwrap_or_else(|InvalidCost { counts_as }| {
                invalid_costs.add(limit);
                counts_as
            });
            if trusted_peer && let Some(from) = &rule.rate_from {
                ask.at_most = from.stated(sources.view);
            }
            if let Some(renewal) = &rule.renewal {
                let stated = if trusted_peer { renewal.stated(sources.view) } else { None };
                ask.renews = stated.or(renews);
            }
        }
    }
    let asked = limits.len().min(MAX_LIMITS);
    Ok(asks.get_mut(..asked).unwrap_or_default())
}

/// The limit at this place in the route refuses who lacks its key.
pub(super) struct LacksKey {
    pub(super) limit: usize,
}

impl Arrival {
    #[inline]
    pub(super) fn new(identity: Identity) -> Self {
        let Identity { client, trusted_peer } = identity;
        let invalid_costs = Places::default();
        Self { client, trusted_peer, path: None, key: None, invalid_costs, plan: None }
    }
}

impl Places {
    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Each of them, in the route's order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..MAX_LIMITS).filter(move |place| self.0 & (1 << place) != 0)
    }

    /// `place` is below [`MAX_LIMITS`].
    pub(super) fn add(&mut self, place: usize) {
        self.0 |= 1 << place;
    }
}

impl<R> Admitted<R> {
    /// The facts found about the request.
    pub fn arrival(&self) -> &Arrival {
        &self.arrival
    }

    /// Its route.
    pub fn route(&self) -> &R {
        &self.route
    }

    /// The hash that makes it stick to a server, equal in every process and version; 0 if its route has no hash key.
    pub fn sticky_hash(&self) -> u64 {
        self.facts.sticky_hash
    }

    /// When the head of its answer has to be there; `None`: never.
    pub fn respond_by(&self) -> Option<Tick> {
        Some(self.facts.respond_by).filter(|by| *by < Tick::MAX)
    }

    /// When it has to be over; `None`: never.
    pub fn deadline(&self) -> Option<Tick> {
        Some(self.facts.deadline).filter(|deadline| *deadline < Tick::MAX)
    }

    /// When it arrived.
    pub fn arrived(&self) -> Tick {
        self.facts.arrived
    }

    /// Whether it waited in a queue.
    pub fn waited(&self) -> bool {
        self.waited
    }

    /// The permit that gives back to its limits at its end: to be kept until the last byte of the response is sent, or
    /// the client is gone. The second time it is empty.
    pub fn take_permit(&mut self) -> Permit {
        std::mem::take(&mut self.permit)
    }
}

impl<R: Clone> Waiting<R> {
    /// Tries to get in. `waker` is woken when there is reason to try again before `wake_at`. `report` is filled anew
    /// when it is admitted or times out. After the end it answers `TimedOut`.
    pub fn attempt(&mut self, now: Tick, waker: &Waker, report: &mut Report) -> Progress<R> {
        let place = &mut *self.0;
        match place.ticket.attempt(now, waker, report) {
            Attempt::Admitted(permit) => {
                report.note_keys(place.keys.into_iter());
                let (route, arrival, facts) = (place.route.clone(), place.arrival.clone(), place.facts);
                Progress::Admitted(Admitted { route, arrival, facts, waited: true, permit })
            }
            Attempt::Pending { wake_at } => Progress::Pending { wake_at },
            Attempt::TimedOut(refusal) => {
                place.arrival.key = place.keys.get(refusal.limit).copied().flatten();
                Progress::TimedOut(place.arrival.clone(), refusal)
            }
        }
    }

    /// The facts found about the request.
    pub fn arrival(&self) -> &Arrival {
        &self.0.arrival
    }

    /// Its route.
    pub fn route(&self) -> &R {
        &self.0.route
    }

    /// The place in its route of the limit in whose queue it is; `None` once it has ended.
    pub fn limit(&self) -> Option<usize> {
        self.0.ticket.waits_for()
    }
}

/// The path and the host in their one spelling.
pub(super) fn read_target<'v, V: RequestView + ?Sized>(
    view: &'v V,
    room: &'v mut HostRoom,
) -> Result<(NormalPath<'v>, Option<&'v str>), Malformed> {
    if view.method().bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Err(Malformed::MethodCase);
    }
    let path = normalise_target(view.method(), view.path())?;
    let host = host::normalise(view.authority(), room)?;
    Ok((path, host))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::sync::Arc;

    use super::super::identity::describe_in_place;
    use super::*;
    use crate::testing;
    use crate::{
        AddressHeader, BeforeBody, BodyFacts, BodyField, BodyReader, BodyRules, Cost, CostPlace, Exempt, ExemptRules,
        KeyExpr, PathPattern, PlainRequest,
    };
    use sluicegate_json::JsonPointer;
    use sluicegate_limiter::{Algorithm, Bound, Limit, LimitSpec, Mode, RefusalReason, TimerWheel};
    use sluicegate_time::{Schedule, ScheduleRules, Zone};

    type Admission = super::Admission<Arc<RouteRules>>;
    type Progress = super::Progress<Arc<RouteRules>>;
    type Rules = super::Rules<Arc<RouteRules>>;
    type Waiting = super::Waiting<Arc<RouteRules>>;

    const PEER: &str = "192.0.2.1";

    /// One per second, by this key.
    fn limited(key: &[&str], on_missing: OnMissingKey, max_wait: Span) -> (Arc<Limit>, LimitUse) {
        let rates = ["1/s".parse().unwrap()];
        let limit = Limit::new(LimitSpec {
            max_wait,
            max_keys: 1_000,
            ..LimitSpec::new("limit", Algorithm::TimerWheel(TimerWheel::new(&rates, None, Bound::Sliding).unwrap()))
        });
        (limit, LimitUse { on_missing, ..testing::usage(key) })
    }

    fn route(prefix: &str, limits: Vec<(Arc<Limit>, LimitUse)>) -> RouteRules {
        testing::route(prefix, testing::pattern(PathPattern::Prefix(prefix.to_owned())), limits)
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

    /// The place of a route in the file.
    fn place(rules: &Rules, route: &Arc<RouteRules>) -> usize {
        rules.routes().iter().position(|own| Arc::ptr_eq(own, route)).unwrap()
    }

    fn at_millis(millis: u64) -> Tick {
        Tick::ZERO + Span::from_millis(millis)
    }

    fn admit_from(rules: &Rules, peer: &str, view: &PlainRequest) -> Admission {
        rules.admit(view, peer.parse().unwrap(), Tick::ZERO, &mut Report::default())
    }

    /// The limits that are reported for a request that is admitted, by their place in the route.
    fn places_asked(rules: &Rules, view: &PlainRequest) -> Vec<usize> {
        let mut report = Report::default();
        let admission = rules.admit(view, PEER.parse().unwrap(), Tick::ZERO, &mut report);
        assert!(is_admitted(&admission));
        report.lines().iter().map(|line| line.limit).collect()
    }

    fn attempt(waiting: &mut Waiting, now: Tick) -> Progress {
        waiting.attempt(now, Waker::noop(), &mut Report::default())
    }

    fn admit(rules: &Rules, view: &PlainRequest) -> Admission {
        admit_from(rules, PEER, view)
    }

    fn get(target: &str) -> PlainRequest {
        PlainRequest::new("GET", target)
    }

    fn is_admitted(admission: &Admission) -> bool {
        matches!(admission, Admission::Admitted(_))
    }

    fn is_over_limit(admission: &Admission) -> bool {
        matches!(admission, Admission::Refused(_, _, Refused::Limit(refusal)) if refusal.why == RefusalReason::Rate)
    }

    #[test]
    fn admits_on_a_route_without_limits() {
        let rules = rules(vec![
            route("/other", Vec::new()),
            RouteRules { timeout: Some(Span::from_secs(5)), ..route("/", Vec::new()) },
        ]);
        let now = at_millis(7);
        let mut report = Report::default();
        let Admission::Admitted(admitted) = rules.admit(&get("/x"), PEER.parse().unwrap(), now, &mut report) else {
            panic!("nothing stands in its way")
        };
        assert_eq!(place(&rules, admitted.route()), 1);
        assert_eq!(admitted.arrived(), now);
        assert_eq!(admitted.deadline(), Some(at_millis(5_007)));
        assert!(!admitted.waited());
        assert_eq!(admitted.sticky_hash(), 0);
        let arrival = admitted.arrival();
        assert_eq!((arrival.path.as_deref(), arrival.trusted_peer), (None, false));
        assert_eq!(arrival.client.to_string(), PEER);
        assert!(report.lines().is_empty());
    }

    #[test]
    fn without_a_timeout_there_is_no_deadline() {
        let rules = rules(vec![route("/", Vec::new())]);
        let Admission::Admitted(admitted) = admit(&rules, &get("/")) else { panic!("nothing stands in its way") };
        assert_eq!(admitted.deadline(), None);
    }

    #[test]
    fn the_report_is_of_this_request_alone() {
        let limits = vec![limited(&["client-ip"], OnMissingKey::Refuse, Span::ZERO)];
        let rules = rules(vec![route("/limited", limits), route("/free", Vec::new())]);
        let mut report = Report::default();
        for (path, lines) in [("/limited", 1), ("/free", 0), ("/limited", 1), ("/none", 0), ("/limited", 1), ("x", 0)] {
            drop(rules.admit(&get(path), PEER.parse().unwrap(), Tick::ZERO, &mut report));
            assert_eq!(report.lines().len(), lines, "{path}");
        }
    }

    #[test]
    fn no_route_is_told_with_the_path_that_was_looked_for() {
        let rules = rules(vec![route("/api", Vec::new())]);
        let Admission::NoRoute(arrival) = admit(&rules, &get("/x/../y")) else { panic!("there is none") };
        assert_eq!(arrival.path.as_deref(), Some("/y"));
    }

    #[test]
    fn what_cannot_be_understood_is_malformed() {
        let rules = rules(vec![route("/", Vec::new())]);
        for (request, expected) in [
            (PlainRequest::new("get", "/"), Malformed::MethodCase),
            (PlainRequest::new("POSt", "/"), Malformed::MethodCase),
            (get("x"), Malformed::PathForm),
            (get("/%0"), Malformed::PathEncoding),
            (get("/").host("a b"), Malformed::Authority),
            (get("/a%2fb"), Malformed::EncodedSlash),
            (get("/a\\b"), Malformed::EncodedSlash),
        ] {
            assert!(
                matches!(admit(&rules, &request), Admission::Malformed(found) if found == expected),
                "{expected:?}"
            );
        }
        assert!(is_admitted(&admit(&rules, &PlainRequest::new("OPTIONS", "*"))));
    }

    #[test]
    fn an_encoded_slash_is_for_routes_that_allow_it() {
        let mut allowing = route("/files", Vec::new());
        allowing.pattern.allow_encoded_slash = true;
        let rules = rules(vec![allowing, route("/public", Vec::new())]);
        let Admission::Admitted(admitted) = admit(&rules, &get("/files/a%2f..%2fb")) else { panic!("it is allowed") };
        assert_eq!(admitted.arrival().path.as_deref(), Some("/files/a%2F..%2Fb"));
        for path in ["/public/a%2fb", "/files%2fa", "/none/a%2fb", "/files/a%2fb/../../public"] {
            assert!(matches!(admit(&rules, &get(path)), Admission::Malformed(Malformed::EncodedSlash)), "{path}");
        }
    }

    #[test]
    fn refuses_whom_the_limit_refuses_and_nobody_else() {
        let rules = rules(vec![route("/", vec![limited(&["header:k"], OnMissingKey::Refuse, Span::ZERO)])]);
        let (one, two) = (get("/").with("k", "one"), get("/").with("k", "two"));
        assert_eq!(places_asked(&rules, &one), [0]);
        let Admission::Refused(_, arrival, Refused::Limit(refusal)) = admit(&rules, &one) else { panic!("the second") };
        assert_eq!((refusal.limit, refusal.why, refusal.retry_at), (0, RefusalReason::Rate, Some(at_millis(1_000))));
        let mut key = KeyHasher::fixed().start();
        key.part(2, b"one");
        assert_eq!(arrival.key, Some(key.finish()));
        assert!(is_admitted(&admit(&rules, &two)));
    }

    #[test]
    fn no_spelling_of_the_path_or_host_has_a_count_of_its_own() {
        let rules = rules(vec![
            route("/api/", vec![limited(&["host", "path"], OnMissingKey::ClientIp, Span::ZERO)]),
            route("/", Vec::new()),
        ]);
        assert!(is_admitted(&admit(&rules, &get("/api/login").host("example.com"))));
        for (host, path) in [
            ("example.com", "/api/login"),
            ("EXAMPLE.com.:80", "/api//login"),
            ("example.com", "/%61pi/./log%69n"),
            ("example.com", "/x/%2e%2E/api/login"),
            ("example.com", "//api/x/../login"),
        ] {
            assert!(is_over_limit(&admit(&rules, &get(path).host(host))), "{host}{path}");
        }
        assert!(is_admitted(&admit(&rules, &get("/api/logout").host("example.com"))));
    }

    #[test]
    fn clients_without_the_key_are_counted_by_their_address() {
        let rules = rules(vec![route("/", vec![limited(&["route", "header:k"], OnMissingKey::ClientIp, Span::ZERO)])]);
        assert!(is_admitted(&admit_from(&rules, "192.0.2.1", &get("/"))));
        assert!(is_admitted(&admit_from(&rules, "192.0.2.2", &get("/"))));
        let again = admit_from(&rules, "192.0.2.1", &get("/").with("k", " "));
        assert!(is_over_limit(&again));
        assert!(is_admitted(&admit_from(&rules, "192.0.2.1", &get("/").with("k", "1"))));
    }

    #[test]
    fn a_limit_that_skips_clients_without_the_key_does_not_apply_to_them() {
        let rules = rules(vec![route(
            "/",
            vec![
                limited(&["header:k"], OnMissingKey::Skip, Span::ZERO),
                limited(&["client-ip"], OnMissingKey::Refuse, Span::ZERO),
            ],
        )]);
        assert_eq!(places_asked(&rules, &get("/")), [1]);
        let Admission::Refused(_, arrival, Refused::Limit(refusal)) = admit(&rules, &get("/")) else {
            panic!("the second")
        };
        let mut key = KeyHasher::fixed().start();
        key.part(1, &arrival.client.key());
        assert_eq!((refusal.limit, arrival.key), (1, Some(key.finish())));
        let only_skipping = self::rules(vec![route("/", vec![limited(&["header:k"], OnMissingKey::Skip, Span::ZERO)])]);
        for _ in 0..3 {
            assert!(is_admitted(&admit(&only_skipping, &get("/"))));
        }
    }

    #[test]
    fn who_garbles_the_key_is_not_skipped_but_counted_by_its_address() {
        let by = |key: &str| rules(vec![route("/", vec![limited(&[key], OnMissingKey::Skip, Span::ZERO)])]);
        let garbled = [
            ("query:k", get("/?k=1&k=2"), get("/?k=3&k=4")),
            ("cookie:k", get("/").with("cookie", "k=1; k=2"), get("/").with("cookie", "k=3").with("cookie", "k=4")),
            ("header:k", get("/").with("k", "1").with("k", "2"), get("/").with("k", "3").with("k", "4")),
            ("basic:user", get("/").with("authorization", "Basic !"), get("/").with("authorization", "Basic OnA=")),
        ];
        for (key, one, other) in garbled {
            let rules = by(key);
            assert!(is_admitted(&admit(&rules, &one)), "{key}");
            let Admission::Refused(_, arrival, _) = admit(&rules, &other) else {
                panic!("it is over the limit: {key}")
            };
            assert!(is_admitted(&admit_from(&rules, "192.0.2.2", &other)), "{key}");
            let words = rules.routes()[0].describe_key(&other, &arrival.client, 0);
            assert_eq!(words, [describe_in_place(&arrival.client)], "{key}");
        }
    }

    #[test]
    fn who_garbles_the_key_is_refused_where_those_without_it_are() {
        let rules = rules(vec![route("/", vec![limited(&["query:k"], OnMissingKey::Refuse, Span::ZERO)])]);
        let garbled = admit(&rules, &get("/?k=1&k=2"));
        assert!(matches!(garbled, Admission::Refused(_, _, Refused::MissingKey { limit: 0 })));
    }

    #[test]
    fn a_limit_may_refuse_clients_without_the_key() {
        let by_address = limited(&["client-ip"], OnMissingKey::ClientIp, Span::ZERO);
        let rules = rules(vec![route("/", vec![by_address, limited(&["header:k"], OnMissingKey::Refuse, Span::ZERO)])]);
        let refused = |peer| match admit_from(&rules, peer, &get("/")) {
            Admission::Refused(route, arrival, Refused::MissingKey { limit }) => {
                (limit, place(&rules, &route), arrival.key)
            }
            other => panic!("it lacks the key: {other:?}"),
        };
        let (limit, route, key) = refused("192.0.2.1");
        assert_eq!((limit, route), (1, 0));
        assert!(key.is_some() && key != refused("192.0.2.2").2, "floods are told apart by the client's address");
        assert!(is_admitted(&admit(&rules, &get("/").with("k", "1"))), "the refused one was counted nowhere");
    }

    #[test]
    fn a_limit_in_shadow_mode_refuses_nobody_for_lack_of_a_key() {
        let (limit, usage) = limited(&["header:k"], OnMissingKey::Refuse, Span::ZERO);
        limit.reconfigure(LimitSpec { mode: Mode::Shadow, ..limit.spec() });
        let rules = rules(vec![route("/", vec![(limit, LimitUse { enforced: false, ..usage })])]);
        assert!(is_admitted(&admit(&rules, &get("/"))));
    }

    /// Ten an hour by client address, each request at this cost.
    fn costing(cost: Cost) -> (Arc<Limit>, LimitUse) {
        let (limit, usage) = limited(&["client-ip"], OnMissingKey::Refuse, Span::ZERO);
        let rates = ["10/1h".parse().unwrap()];
        let algorithm = Algorithm::TimerWheel(TimerWheel::new(&rates, None, Bound::Sliding).unwrap());
        (Limit::new(LimitSpec { algorithm, ..limit.spec() }), LimitUse { cost, ..usage })
    }

    #[test]
    fn a_request_is_counted_at_the_cost_that_it_states() {
        let by_header = |max| Cost::stated(CostPlace::Header("x-cost".into()), max);
        let rules = rules(vec![route("/", vec![costing(by_header(8)), costing(Cost::Fixed(2))])]);
        let mut report = Report::default();
        let mut remaining = |stated: &str| {
            let view = get("/").with("x-cost", stated);
            let admission = rules.admit(&view, PEER.parse().unwrap(), Tick::ZERO, &mut report);
            assert!(is_admitted(&admission), "{stated}");
            report.lines().iter().map(|line| line.remaining).collect::<Vec<_>>()
        };
        assert_eq!(remaining("3"), [7, 8]);
        assert_eq!(remaining("0"), [6, 6]);
        assert_eq!(remaining("three"), [5, 4]);
        let Admission::Refused(_, _, Refused::Limit(refusal)) =
            admit(&rules, &get("/").with("x-cost", "99999999999999"))
        else {
            panic!("8 do not fit into 5")
        };
        assert_eq!((refusal.limit, refusal.why, refusal.remaining), (0, RefusalReason::Rate, 5));
        assert_eq!(remaining("5"), [0, 2]);
    }

    #[test]
    fn a_cost_above_what_could_ever_fit_is_refused_for_good() {
        let rules =
            rules(vec![route("/", vec![costing(Cost::stated(CostPlace::ContentLength(NonZeroU64::MIN), 1_000))])]);
        let Admission::Refused(_, _, Refused::Limit(refusal)) = admit(&rules, &get("/").with("content-length", "11"))
        else {
            panic!("11 never fit into 10")
        };
        assert_eq!((refusal.why, refusal.retry_at), (RefusalReason::TooCostly, None));
        assert!(is_admitted(&admit(&rules, &get("/").with("content-length", "10"))), "nothing was counted");
    }

    #[test]
    fn a_cost_that_is_no_number_is_told_for_each_limit_that_applies() {
        let stated = || Cost::stated(CostPlace::Header("x-cost".into()), 10);
        let skipped = limited(&["header:k"], OnMissingKey::Skip, Span::ZERO);
        let skipped = (skipped.0, LimitUse { cost: stated(), ..skipped.1 });
        let rules = rules(vec![route(
            "/",
            vec![
                skipped,
                costing(stated()),
                costing(Cost::ONE),
                costing(Cost::stated(CostPlace::ContentLength(NonZeroU64::MIN), 9)),
                costing(stated()),
            ],
        )]);
        let invalid = |view: &PlainRequest| match admit(&rules, view) {
            Admission::Admitted(admitted) => admitted.arrival().invalid_costs.iter().collect::<Vec<_>>(),
            other => panic!("there is room: {other:?}"),
        };
        assert_eq!(invalid(&get("/").with("x-cost", "1, 1")), [1, 4]);
        assert!(invalid(&get("/").with("x-cost", "1")).is_empty());
        assert!(invalid(&get("/")).is_empty());
        assert_eq!(invalid(&get("/").with("x-cost", "-1").with("k", "v")), [0, 1, 4]);
    }

    #[test]
    fn who_is_exempt_is_counted_by_the_other_limits_alone() {
        let (limit, usage) = limited(&["header:k"], OnMissingKey::Refuse, Span::ZERO);
        let written = ExemptRules { networks: vec!["192.0.2.0/24".parse().unwrap()], keys: vec!["gold".into()] };
        let exempt = Exempt::new(&written, &usage.key, crate::AddressForm::default(), &KeyHasher::fixed());
        let usage = LimitUse { exempt, cost: Cost::stated(CostPlace::Header("x-cost".into()), 1), ..usage };
        let rules = rules(vec![route("/", vec![(limit, usage), costing(Cost::ONE)])]);
        let places = |peer: &str, view: &PlainRequest| {
            let mut report = Report::default();
            let admission = rules.admit(view, peer.parse().unwrap(), Tick::ZERO, &mut report);
            let Admission::Admitted(admitted) = admission else { panic!("nothing stands in its way: {admission:?}") };
            assert!(admitted.arrival().invalid_costs.is_empty());
            report.lines().iter().map(|line| line.limit).collect::<Vec<_>>()
        };
        let (gold, lead) = (get("/").with("k", "gold").with("x-cost", "?"), get("/").with("k", "lead"));
        assert_eq!(places("192.0.2.1", &get("/").with("x-cost", "?")), [1], "it may lack the key");
        assert_eq!(places("192.0.2.1", &lead), [1]);
        assert_eq!(places("198.51.100.1", &gold), [1]);
        assert_eq!(places("198.51.100.1", &gold), [1]);
        assert_eq!(places("198.51.100.1", &lead), [0, 1]);
        assert!(is_over_limit(&admit_from(&rules, "198.51.100.1", &lead)));
        let keyless = admit_from(&rules, "198.51.100.1", &get("/"));
        assert!(matches!(keyless, Admission::Refused(_, _, Refused::MissingKey { limit: 0 })));
    }

    /// From 18:00 of the 24th of December 2026 until 18:00 of the 26th, in UTC.
    fn holidays() -> Arc<Schedule> {
        let local = |text: &str| text.parse().ok();
        let rules = ScheduleRules::once(local("2026-12-24T18:00"), local("2026-12-26T18:00"), Zone::utc()).unwrap();
        Arc::new(Schedule::new(rules))
    }

    const CHRISTMAS_EVE: Tick = Tick::from_nanos(1_798_135_200_000_000_000);
    const TWO_DAYS: Span = Span::from_secs(2 * 86_400);
    const INSTANT: Span = Span::from_nanos(1);

    #[test]
    fn each_limit_counts_by_fingerprints_of_its_own_secret() {
        let secret = KeyHasher::with_secret(&[7; 32]);
        let key_of = |hasher: &KeyHasher, on_missing, exempt: &[&str], view: &PlainRequest| {
            let (limit, usage) = limited(&["header:k"], on_missing, Span::ZERO);
            let written = ExemptRules { networks: Vec::new(), keys: exempt.iter().map(|key| (*key).into()).collect() };
            let exempt = Exempt::new(&written, &usage.key, crate::AddressForm::default(), hasher);
            let usage = LimitUse { hasher: hasher.clone(), exempt, ..usage };
            let rules = rules(vec![route("/", vec![(limit, usage)])]);
            // The first one takes all that there is.
            for _ in 0..2 {
                let admission = rules.admit(view, PEER.parse().unwrap(), at_millis(0), &mut Report::default());
                if let Admission::Refused(_, arrival, _) = admission {
                    return arrival.key;
                }
            }
            None
        };
        let print = |hasher: &KeyHasher, tag, bytes: &[u8]| {
            let mut key = hasher.start();
            key.part(tag, bytes);
            Some(key.finish())
        };
        let client = PEER.parse::<std::net::Ipv4Addr>().unwrap().to_ipv6_mapped().octets();
        for hasher in [&secret, &KeyHasher::fixed()] {
            let with = get("/").with("k", "one");
            assert_eq!(key_of(hasher, OnMissingKey::Skip, &[], &with), print(hasher, 2, b"one"));
            assert_eq!(key_of(hasher, OnMissingKey::Skip, &["one"], &with), None);
            assert_eq!(key_of(hasher, OnMissingKey::Skip, &["two"], &with), print(hasher, 2, b"one"));
            // In place of a missing key, and of one for want of which the request is refused.
            for on_missing in [OnMissingKey::ClientIp, OnMissingKey::Refuse] {
                assert_eq!(key_of(hasher, on_missing, &[], &get("/")), print(hasher, 0x40, &client));
            }
        }
    }

    #[test]
    fn a_limit_that_is_not_active_is_as_if_the_route_did_not_name_it() {
        let (limit, usage) = limited(&["header:k"], OnMissingKey::Refuse, Span::ZERO);
        let usage = LimitUse {
            active: Some(holidays()),
            cost: Cost::stated(CostPlace::Header("x-cost".into()), 1),
            timeout_while_active: Some(Span::from_secs(3)),
            ..usage
        };
        let scheduled = (Arc::clone(&limit), usage);
        let all = || {
            rules(vec![RouteRules {
                timeout: Some(Span::from_secs(9)),
                ..route("/", vec![scheduled.clone(), limited(&["global"], OnMissingKey::Skip, Span::ZERO)])
            }])
        };
        let ask = |now: Tick, view: &PlainRequest| {
            let mut report = Report::default();
            let admission = all().admit(view, PEER.parse().unwrap(), now, &mut report);
            (admission, report.lines().iter().map(|line| line.limit).collect::<Vec<_>>())
        };
        let keyless = get("/").with("x-cost", "?");
        let second = Span::from_secs(1);
        for (now, is_active) in [
            (CHRISTMAS_EVE - INSTANT, false),
            (CHRISTMAS_EVE + second, true),
            (CHRISTMAS_EVE + TWO_DAYS - INSTANT, true),
            (CHRISTMAS_EVE + TWO_DAYS + second, false),
            (CHRISTMAS_EVE + TWO_DAYS + TWO_DAYS, false),
        ] {
            match ask(now, &keyless) {
                (Admission::Refused(_, _, Refused::MissingKey { limit: 0 }), _) => assert!(is_active, "{now:?}"),
                (Admission::Admitted(admitted), lines) => {
                    assert!(!is_active, "{now:?}");
                    assert_eq!(lines, [1], "it is not in the rate headers");
                    assert!(admitted.arrival().invalid_costs.is_empty(), "nor is its cost looked at");
                    assert_eq!(admitted.deadline(), Some(now + Span::from_secs(9)), "nor does its timeout hold");
                }
                (other, _) => panic!("{other:?} at {now:?}"),
            }
        }
        assert_eq!(limit.stats().keys, 0);
        let now = CHRISTMAS_EVE + Span::from_secs(60);
        let (Admission::Admitted(admitted), lines) = ask(now, &get("/").with("k", "v")) else { panic!("the first") };
        assert_eq!((lines, admitted.deadline()), (vec![0, 1], Some(now + Span::from_secs(3))));
        assert_eq!(limit.stats().keys, 1);
    }

    #[test]
    fn the_shortest_timeout_of_those_that_hold_is_the_requests() {
        let with = |timeout: Option<u64>, active: bool| {
            let (limit, usage) = limited(&["global"], OnMissingKey::Skip, Span::ZERO);
            let active = active.then(holidays);
            (limit, LimitUse { active, timeout_while_active: timeout.map(Span::from_secs), ..usage })
        };
        let limits = vec![with(Some(5), true), with(None, true), with(Some(7), true)];
        let of =
            |timeout: Option<u64>| RouteRules { timeout: timeout.map(Span::from_secs), ..route("/", limits.clone()) };
        for (own, then, else_) in [(None, Some(5), None), (Some(3), Some(3), Some(3)), (Some(6), Some(5), Some(6))] {
            let seconds = |span: Option<u64>| span.map(Span::from_secs);
            assert_eq!(timeout_at(&of(own).limits, of(own).timeout, CHRISTMAS_EVE), seconds(then), "{own:?}");
            assert_eq!(
                timeout_at(&of(own).limits, of(own).timeout, CHRISTMAS_EVE - INSTANT),
                seconds(else_),
                "{own:?}"
            );
        }
    }

    #[test]
    fn who_waits_when_a_limit_ends_keeps_its_place() {
        let (limit, usage) = limited(&["global"], OnMissingKey::Skip, Span::from_secs(5));
        let usage = LimitUse { active: Some(holidays()), ..usage };
        let rules = rules(vec![route("/", vec![(Arc::clone(&limit), usage)])]);
        let ends = CHRISTMAS_EVE + TWO_DAYS;
        let before = ends - Span::from_millis(100);
        let ask = |now| rules.admit(&get("/"), PEER.parse().unwrap(), now, &mut Report::default());
        assert!(is_admitted(&ask(before)));
        let Admission::Waiting(mut waiting) = ask(before) else { panic!("it may wait") };
        let Progress::Pending { wake_at } = attempt(&mut waiting, before) else { panic!("no room yet") };
        assert!(wake_at > ends, "its room comes as if the limit went on");
        assert!(is_admitted(&ask(ends)), "others pass it meanwhile");
        let Progress::Pending { .. } = attempt(&mut waiting, ends) else { panic!("no room yet") };
        let Progress::Admitted(_) = attempt(&mut waiting, wake_at) else { panic!("there is room") };
        assert_eq!(limit.stats().waiting, 0);
    }

    #[test]
    fn a_route_that_is_not_active_leaves_its_requests_to_the_next() {
        let maintenance = RouteRules { active: Some(holidays()), ..route("/api", Vec::new()) };
        let rules = rules(vec![maintenance, route("/api", Vec::new()), route("/", Vec::new())]);
        let taken = |path: &str, now| match rules.admit(&get(path), PEER.parse().unwrap(), now, &mut Report::default())
        {
            Admission::Admitted(admitted) => place(&rules, admitted.route()),
            other => panic!("nothing stands in its way: {other:?}"),
        };
        let ends = CHRISTMAS_EVE + TWO_DAYS;
        for (now, route) in [(CHRISTMAS_EVE - INSTANT, 1), (CHRISTMAS_EVE, 0), (ends - INSTANT, 0), (ends, 1)] {
            assert_eq!(taken("/api/x", now), route, "{now:?}");
            assert_eq!(taken("/x", now), 2, "{now:?}");
        }
        let alone = self::rules(vec![RouteRules { active: Some(holidays()), ..route("/", Vec::new()) }]);
        let ask = |now| alone.admit(&get("/"), PEER.parse().unwrap(), now, &mut Report::default());
        assert!(matches!(ask(ends), Admission::NoRoute(_)) && is_admitted(&ask(CHRISTMAS_EVE)));
    }

    #[test]
    fn clients_behind_a_trusted_proxy_are_counted_apart() {
        let rules = rules(vec![route("/", vec![limited(&["client-ip"], OnMissingKey::Refuse, Span::ZERO)])]);
        let through = |peer, client| admit_from(&rules, peer, &get("/").with("x-forwarded-for", client));
        let Admission::Admitted(admitted) = through("10.0.0.1", "198.51.100.1") else { panic!("the first") };
        assert!(admitted.arrival().trusted_peer);
        assert_eq!(admitted.arrival().client.to_string(), "198.51.100.1");
        assert!(is_admitted(&through("10.0.0.1", "198.51.100.2")));
        assert!(is_over_limit(&through("10.0.0.2", "198.51.100.1")));
        assert!(is_admitted(&through("203.0.113.1", "198.51.100.3")));
        assert!(is_over_limit(&through("203.0.113.1", "198.51.100.4")), "its claims are not believed");
    }

    #[test]
    fn preflights_are_counted_unless_the_route_says_otherwise() {
        let preflight = || {
            PlainRequest::new("OPTIONS", "/").with("origin", "https://a").with("access-control-request-method", "PUT")
        };
        for count_preflight in [true, false] {
            let limits = vec![limited(&["client-ip"], OnMissingKey::Refuse, Span::ZERO)];
            let rules = rules(vec![RouteRules { count_preflight, ..route("/", limits) }]);
            assert!(is_admitted(&admit(&rules, &preflight())));
            assert_eq!(is_over_limit(&admit(&rules, &preflight())), count_preflight);
            let only_options = PlainRequest::new("OPTIONS", "/").with("origin", "https://a");
            assert_eq!(is_admitted(&admit(&rules, &only_options)), !count_preflight);
            assert!(is_over_limit(&admit(&rules, &only_options)));
        }
    }

    #[test]
    fn waits_and_is_admitted_when_there_is_room() {
        let limits = vec![limited(&["client-ip"], OnMissingKey::Refuse, Span::from_secs(5))];
        let rules = rules(vec![RouteRules { timeout: Some(Span::from_secs(9)), ..route("/", limits) }]);
        assert!(is_admitted(&admit(&rules, &get("/a/../"))));
        let mut report = Report::default();
        let Admission::Waiting(mut waiting) =
            rules.admit(&get("/a/../b"), PEER.parse().unwrap(), Tick::ZERO, &mut report)
        else {
            panic!("it may wait")
        };
        assert_eq!(report.lines().len(), 1);
        assert_eq!(waiting.limit(), Some(0));
        assert_eq!(waiting.arrival().path.as_deref(), Some("/b"));
        let Progress::Pending { wake_at } = attempt(&mut waiting, Tick::ZERO) else { panic!("no room yet") };
        assert_eq!(wake_at, at_millis(1_000));
        let mut report = Report::default();
        let Progress::Admitted(admitted) = waiting.attempt(wake_at, Waker::noop(), &mut report) else {
            panic!("there is room")
        };
        assert!(admitted.waited());
        assert_eq!(admitted.arrived(), Tick::ZERO);
        assert_eq!(admitted.deadline(), Some(at_millis(9_000)), "from its arrival, not from its admission");
        assert_eq!(admitted.arrival().path.as_deref(), Some("/b"));
        assert_eq!(report.lines().len(), 1);
        assert_eq!(waiting.limit(), None);
    }

    #[test]
    fn who_waits_in_vain_is_told_by_which_limit_and_key() {
        let limits = vec![
            limited(&["header:k"], OnMissingKey::Skip, Span::ZERO),
            limited(&["client-ip"], OnMissingKey::Refuse, Span::from_millis(1_500)),
        ];
        let rules = rules(vec![route("/", limits)]);
        assert!(is_admitted(&admit(&rules, &get("/"))));
        let Admission::Waiting(mut waiting) = admit(&rules, &get("/")) else { panic!("it may wait") };
        let Progress::Pending { .. } = attempt(&mut waiting, Tick::ZERO) else { panic!("no room yet") };
        let Progress::TimedOut(arrival, refusal) = attempt(&mut waiting, at_millis(60_000)) else {
            panic!("its time is over")
        };
        assert_eq!((refusal.limit, refusal.why), (1, RefusalReason::WaitTimeout));
        let mut key = KeyHasher::fixed().start();
        key.part(1, &arrival.client.key());
        assert_eq!(arrival.key, Some(key.finish()));
    }

    #[test]
    fn the_sticky_hash_is_of_the_hash_key_and_else_of_the_client() {
        let sticky = RouteRules { hash_key: Some(KeyExpr::parse(&["cookie:s"]).unwrap()), ..route("/", Vec::new()) };
        let rules = rules(vec![sticky]);
        let hash = |peer, cookie: &str| match admit_from(&rules, peer, &get("/").with("cookie", cookie)) {
            Admission::Admitted(admitted) => admitted.sticky_hash(),
            other => panic!("nothing stands in its way: {other:?}"),
        };
        assert_eq!(hash("192.0.2.1", "s=1"), hash("192.0.2.2", "a=0; s=1"));
        assert_ne!(hash("192.0.2.1", "s=1"), hash("192.0.2.1", "s=2"));
        assert_ne!(hash("192.0.2.1", ""), hash("192.0.2.2", ""));
        assert_eq!(hash("192.0.2.1", ""), hash("192.0.2.1", "t=1"));
    }

    #[test]
    fn a_key_is_described_as_it_was_counted() {
        let rules = rules(vec![route(
            "/",
            vec![
                limited(&["header:k", "path"], OnMissingKey::ClientIp, Span::ZERO),
                limited(&["query:q"], OnMissingKey::Skip, Span::ZERO),
            ],
        )]);
        let Admission::Admitted(admitted) = admit_from(&rules, "2001:db8::1", &get("/")) else {
            panic!("nothing stands in its way")
        };
        let client = admitted.arrival().client.clone();
        let described = |view: &PlainRequest, limit| {
            let parts = rules.routes()[0].describe_key(view, &client, limit);
            parts.into_iter().map(|part| format!("{}={}", part.source, part.value)).collect::<Vec<_>>()
        };
        assert_eq!(described(&get("/a/../b").with("k", "v"), 0), ["header:k=v", "path=/b"]);
        assert_eq!(described(&get("/b"), 0), ["client-ip=2001:db8::/64"]);
        assert_eq!(described(&get("/?q=%31"), 1), ["query:q=1"]);
        assert!(described(&get("/"), 1).is_empty());
        assert!(described(&get("/"), 2).is_empty());
    }

    const POSTER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    /// A request with a body that is read, or not.
    struct Posted(Option<BodyFacts>);

    impl RequestView for Posted {
        fn method(&self) -> &'static str {
            "POST"
        }
        fn scheme(&self) -> &'static str {
            "http"
        }
        fn authority(&self) -> Option<&str> {
            None
        }
        fn path(&self) -> &'static str {
            "/"
        }
        fn query(&self) -> Option<&str> {
            None
        }
        fn header(&self, _: &str) -> Option<&[u8]> {
            None
        }
        fn for_each_header<'v>(&'v self, _: &str, _: &mut dyn FnMut(&'v [u8])) {}
        fn body(&self) -> Option<&BodyFacts> {
            self.0.as_ref()
        }
    }

    fn posted(body: &str, fields: &[BodyField]) -> Posted {
        let mut reader = BodyReader::new(&fields.into(), None);
        reader.feed(body.as_bytes());
        Posted(Some(reader.finish(true)))
    }

    /// By address, and by the user of the body.
    fn both(on_missing: OnMissingKey) -> Rules {
        let limits = vec![
            limited(&["client-ip"], OnMissingKey::Skip, Span::ZERO),
            limited(&["json:/user"], on_missing, Span::ZERO),
        ];
        let route = route("/", limits);
        rules(vec![RouteRules { body: BodyRules::of(route.limits.iter(), 100), ..route }])
    }

    #[test]
    fn a_body_is_read_only_where_no_other_limit_refuses() {
        let rules = both(OnMissingKey::ClientIp);
        assert!(rules.reads_bodies());
        let now = Tick::ZERO + Span::from_secs(100);
        let mut report = Report::default();
        let before = |report: &mut Report, now| rules.before_body(&Posted(None), POSTER, now, report);
        let Some(BeforeBody::Read(body)) = before(&mut report, now) else { panic!() };
        assert_eq!(body.fields.iter().map(ToString::to_string).collect::<Vec<_>>(), ["json:/user"]);
        assert!(matches!(before(&mut report, now), Some(BeforeBody::Read(_))), "nothing was counted");
        let ann = posted("{\"user\":\"ann\"}", &body.fields);
        assert!(matches!(rules.admit(&ann, POSTER, now, &mut report), Admission::Admitted(_)));
        let Some(BeforeBody::Refused(_, arrival, Refused::Limit(refusal))) = before(&mut report, now) else { panic!() };
        assert_eq!((refusal.limit, refusal.why), (0, RefusalReason::Rate));
        assert_eq!(arrival.client.addr(), POSTER);
        assert!(matches!(before(&mut report, now + Span::from_secs(2)), Some(BeforeBody::Read(_))));
    }

    #[test]
    fn users_are_told_apart_by_the_body_and_its_cost_is_what_it_states() {
        let field = BodyField::Json(JsonPointer::parse("/n").unwrap());
        let (limit, usage) = limited(&["json:/user"], OnMissingKey::Refuse, Span::ZERO);
        let usage = LimitUse { cost: Cost::stated(CostPlace::Json(field), 9), ..usage };
        let route = route("/", vec![(limit, usage)]);
        let body = BodyRules::of(route.limits.iter(), 100).unwrap();
        let rules = rules(vec![RouteRules { body: Some(Arc::clone(&body)), ..route }]);
        let admit = |text: &str| rules.admit(&posted(text, &body.fields), POSTER, Tick::ZERO, &mut Report::default());
        assert!(matches!(admit("{\"user\":\"ann\",\"n\":1}"), Admission::Admitted(_)));
        assert!(matches!(admit("{\"user\":\"ann\",\"n\":1}"), Admission::Refused(_, _, Refused::Limit(_))));
        assert!(matches!(admit("{\"user\":\"bob\"}"), Admission::Admitted(_)));
        assert!(matches!(admit("{\"user\":\"eve\",\"n\":2}"), Admission::Refused(_, _, Refused::Limit(_))), "2 of 1");
        for text in ["{}", "", "{\"user\":\"ann\",\"user\":\"zoe\"}", "user=zoe"] {
            let refused = admit(text);
            assert!(
                matches!(refused, Admission::Refused(_, _, Refused::MissingKey { limit: 0 })),
                "{text} {refused:?}"
            );
        }
    }
}
