//! Finds the route of a request.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;
use std::sync::Arc;

use super::body::BodyField;
use super::cost::Cost;
use super::descriptor::Descriptor;
use super::exceptions::KeyExceptions;
use super::exempt::Exempt;
use super::identity::{KeyFacts, describe_in_place};
use super::key::{KeyExpr, KeyPart, OnMissingKey};
use super::pattern::{HostPattern, PathPattern, RoutePattern};
use super::plans::RoutePlans;
use super::rate_from::RateFrom;
use super::renewal::Renewal;
use super::spelling::Missing;
use super::view::{RequestView, is_preflight};
use sluicegate_balance::stable_hash;
use sluicegate_limiter::{Counting, KeyHasher, Policy};
use sluicegate_time::{Schedule, Span, Tick};

/// One route: what it matches and which limits hold there.
#[derive(Clone, Debug)]
pub struct RouteRules {
    /// Its name.
    pub name: Arc<str>,
    /// The pattern that it matches.
    pub pattern: RoutePattern,
    /// When it matches anything at all; `None`: always.
    pub active: Option<Arc<Schedule>>,
    /// Its limits.
    pub policy: Arc<Policy>,
    /// How each limit is used, in the order of the policy. A limit of the policy that has no entry here does not apply.
    pub limits: Vec<LimitUse>,
    /// The key by which requests stick together; `None` where nothing asks for it.
    pub hash_key: Option<KeyExpr>,
    /// The fields of its requests' bodies that limits look at; `None`: they look at none.
    pub body: Option<Arc<BodyRules>>,
    /// From arrival to the last byte of the response: the smallest of the route's and of those of its enforced limits
    /// that always hold; `None` is without end.
    pub timeout: Option<Span>,
    /// From arrival to the head of the answer; `None` is without end.
    pub response_timeout: Option<Span>,
    /// Whether CORS preflights are counted like any request. If not, a client that can write an OPTIONS request gets
    /// past the limits with it.
    pub count_preflight: bool,
    /// Whether a CORS preflight is for this route if the method that it asks for is.
    pub takes_preflights: bool,
    /// The plans, each with its terms in place of `policy`, `limits` and `timeout`; `None`: these, for everybody.
    pub plans: Option<Box<RoutePlans>>,
}

/// The part of a request's body that limits look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyRules {
    /// Each field once.
    pub fields: Arc<[BodyField]>,
    /// The most bytes of a body that is read for them.
    pub most: u64,
}

impl BodyRules {
    /// For the fields that limits use, in whatever plan; `None` where they use none.
    pub fn of<'l>(limits: impl Iterator<Item = &'l LimitUse>, most: u64) -> Option<Arc<Self>> {
        let mut fields: Vec<BodyField> = Vec::new();
        for field in limits.flat_map(LimitUse::body_fields) {
            if !fields.contains(field) {
                fields.push(field.clone());
            }
        }
        (!fields.is_empty()).then(|| Arc::new(Self { fields: fields.into(), most }))
    }
}

/// A route that admission knows, with whatever its owner keeps with it. It is cloned for each request, so it is a pointer.
pub trait Routed: Clone {
    /// The part of it that admission goes by.
    fn rules(&self) -> &RouteRules;
}

impl<T: AsRef<RouteRules>> Routed for Arc<T> {
    #[inline]
    fn rules(&self) -> &RouteRules {
        (**self).as_ref()
    }
}

impl<T: AsRef<RouteRules>> Routed for Rc<T> {
    #[inline]
    fn rules(&self) -> &RouteRules {
        (**self).as_ref()
    }
}

impl AsRef<Self> for RouteRules {
    fn as_ref(&self) -> &Self {
        self
    }
}

/// How a route uses a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitUse {
    /// The key by which requests are counted together.
    pub key: KeyExpr,
    /// Makes the fingerprints by which they are counted. It has to outlive reloads, as the table of the limit does.
    pub hasher: KeyHasher,
    /// The treatment of a request that lacks the key.
    pub on_missing: OnMissingKey,
    /// The cost of one request.
    pub cost: Cost,
    /// Where the rate of a single request stands; `None`: all have that of the limit.
    pub rate_from: Option<RateFrom>,
    /// Where the day is stated on which months begin; `None`: it counts by none.
    pub renewal: Option<Renewal>,
    /// When that is counted.
    pub counting: Counting,
    /// Whether other gateways share it.
    pub shared: bool,
    /// The requests that are neither counted nor refused; `None`: there are none.
    pub exempt: Option<Arc<Exempt>>,
    /// Single keys that are blocked by hand, or have numbers of their own.
    pub exceptions: Arc<KeyExceptions>,
    /// Whether the limit refuses anybody: one in shadow mode does not, not even who lacks its key.
    pub enforced: bool,
    /// When it is asked at all; `None`: always.
    pub active: Option<Arc<Schedule>>,
    /// Its timeout, where that too holds only while it is active.
    pub timeout_while_active: Option<Span>,
}

/// From arrival to the last byte of the response, for a request that arrives now: the smallest of the timeouts that hold
/// now, where `timeout` always does; `None` is without end.
pub(super) fn timeout_at(limits: &[LimitUse], timeout: Option<Span>, now: Tick) -> Option<Span> {
    let of_limits = limits.iter().filter_map(|usage| usage.timeout_while_active.filter(|_| usage.is_active(now)));
    of_limits.chain(timeout).min()
}

impl LimitUse {
    /// The fields of a request's body that its key and its cost are made of.
    pub(super) fn body_fields(&self) -> impl Iterator<Item = &BodyField> {
        self.key.body_fields().chain(self.cost.body_fields())
    }

    /// The key under which it counts a request, in words: the client in place of one that is missing. Empty if the limit does
    /// not apply to who lacks it.
    pub(super) fn describe_key<V: RequestView + ?Sized>(&self, facts: &KeyFacts<'_, V>) -> Vec<KeyPart> {
        self.key.describe(facts).unwrap_or_else(|missing| match (missing, self.on_missing) {
            (Missing::Absent, OnMissingKey::Skip) => Vec::new(),
            _ => vec![describe_in_place(facts.client)],
        })
    }

    /// Whether it holds for a request that arrives now.
    #[inline]
    pub fn is_active(&self, now: Tick) -> bool {
        holds(self.active.as_deref(), now)
    }
}

words! {
    /// Why a route does not get a request.
    pub enum PassedOver {
        /// It is not the time for it.
        Inactive = "inactive",
        /// The host is another.
        Host = "host",
        /// The path does not match.
        Path = "path",
        /// The method is another.
        Method = "method",
        /// A header field lacks the value that it asks for.
        Header = "header",
        /// It matches, and so does another that comes before it: one that is more specific, or stands first in the file.
        Later = "later",
    }
}

impl RouteRules {
    /// Why this route, which does not get a request, does not. `host` and `path` are as for the lookup.
    pub(super) fn passed_over<V: RequestView + ?Sized>(
        &self,
        host: Option<&str>,
        path: &str,
        view: &V,
        now: Tick,
    ) -> PassedOver {
        let RoutePattern { hosts, path: own, .. } = &self.pattern;
        let is_of = |pattern: &HostPattern| match host {
            Some(host) if pattern.is_wildcard() => {
                host.strip_suffix(pattern.name()).is_some_and(|label| label.ends_with('.'))
            }
            host => host == Some(pattern.name()),
        };
        let is_within =
            |prefix: &str| path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let has_path = match own {
            PathPattern::Exact(own) => own == path,
            PathPattern::Prefix(own) => own.trim_end_matches('/').is_empty() || is_within(own.trim_end_matches('/')),
            PathPattern::Regex(regex) => regex.is_match(path),
            PathPattern::Descriptor(_) => false,
        };
        if !holds(self.active.as_deref(), now) {
            PassedOver::Inactive
        } else if !hosts.is_empty() && !hosts.iter().any(is_of) {
            PassedOver::Host
        } else if !has_path {
            PassedOver::Path
        } else if accepts(self, view) {
            PassedOver::Later
        } else if self.pattern.headers.is_empty() || !takes_method(self, view) {
            PassedOver::Method
        } else {
            PassedOver::Header
        }
    }
}

fn takes_method<V: RequestView + ?Sized>(route: &RouteRules, view: &V) -> bool {
    let methods = &route.pattern.methods;
    methods.is_empty() || methods.iter().any(|method| method == view.method())
}

/// The routes, laid out for lookup.
///
/// A request takes the first route that matches it in this order: the most specific host (exact, then the longest
/// wildcard, then routes without hosts), then the exact path, expressions in the file's order, the longest prefix. Routes
/// of the same exact path or prefix: one that names methods before one that does not, then the one that names more header
/// fields, then the one that stands first in the file. Between expressions nothing but the file's order decides, as with
/// nginx. A host whose routes do not match the request does not hide those of less specific hosts. A route that is not
/// active matches nothing.
///
/// A lookup costs one hash per prefix of the path at which some prefix of a route could end, however many routes there
/// are. Linear are only expressions (each tried in turn), and routes of the same host and path, told apart by method and
/// header fields.
#[derive(Clone, Debug, Default)]
pub(super) struct RouteTable {
    exact_hosts: TextMap<PathTable>,
    /// By the host without `*.`.
    wildcards: TextMap<PathTable>,
    wildcard_lengths: Vec<usize>,
    any_host: PathTable,
    /// By the shape of the descriptors that they match; the more specific before the others.
    descriptors: TextMap<Vec<usize>>,
}

/// The routes of one host.
#[derive(Clone, Debug, Default)]
struct PathTable {
    exact: TextMap<Vec<usize>>,
    /// By the prefix without its last slash, so `/` is empty.
    prefixes: TextMap<Vec<usize>>,
    /// Longest first.
    prefix_lengths: Vec<usize>,
    /// In the file's order.
    expressions: Vec<usize>,
}

impl RouteTable {
    pub(super) fn new<R: Routed>(routes: &[R]) -> Self {
        let mut order: Vec<usize> = (0..routes.len()).collect();
        order.sort_by_key(|route| {
            let pattern = routes.get(*route).map(|route| &route.rules().pattern);
            let headers = pattern.map_or(0, |pattern| match &pattern.path {
                PathPattern::Descriptor(descriptor) => descriptor.exact_entries(),
                _ => pattern.headers.len(),
            });
            (pattern.is_none_or(|pattern| pattern.methods.is_empty()), Reverse(headers), *route)
        });
        let mut table = Self::default();
        for index in order {
            let Some(pattern) = routes.get(index).map(|route| &route.rules().pattern) else { continue };
            if let PathPattern::Descriptor(descriptor) = &pattern.path {
                table.descriptors.entry(descriptor.shape().into()).or_default().push(index);
                continue;
            }
            for host in &pattern.hosts {
                let hosts = if host.is_wildcard() { &mut table.wildcards } else { &mut table.exact_hosts };
                hosts.entry(host.name().into()).or_default().insert(&pattern.path, index);
            }
            if pattern.hosts.is_empty() {
                table.any_host.insert(&pattern.path, index);
            }
        }
        table.wildcard_lengths = lengths(&table.wildcards);
        let hosts = table.exact_hosts.values_mut().chain(table.wildcards.values_mut());
        for paths in hosts.chain([&mut table.any_host]) {
            paths.prefix_lengths = lengths(&paths.prefixes);
            paths.expressions.sort_unstable();
        }
        table
    }

    /// `host` is in its one spelling, `path` in that which routes match.
    pub(super) fn find<'r, R: Routed, V: RequestView + ?Sized>(
        &self,
        routes: &'r [R],
        host: Option<&str>,
        path: &str,
        view: &V,
        now: Tick,
    ) -> Option<&'r R> {
        let accepts = |route: &usize| {
            let is_active = |route: &&RouteRules| holds(route.active.as_deref(), now);
            routes.get(*route).map(R::rules).filter(is_active).is_some_and(|route| accepts(route, view))
        };
        let matches = |route: &usize| match routes.get(*route).map(|route| &route.rules().pattern.path) {
            Some(PathPattern::Regex(regex)) => regex.is_match(path),
            _ => false,
        };
        let within = |paths: &PathTable| paths.find(path, accepts, matches);
        let named = |host| {
            let exact = self.exact_hosts.get(host).and_then(within);
            exact.or_else(|| self.wildcards_of(host).find_map(within))
        };
        routes.get(host.and_then(named).or_else(|| within(&self.any_host))?)
    }

    /// The route of a descriptor: the first that matches, the one with the most exact values before others, else in the file's
    /// order.
    pub(super) fn find_descriptor<'r, R: Routed>(
        &self,
        routes: &'r [R],
        descriptor: &Descriptor<'_>,
        now: Tick,
    ) -> Option<&'r R> {
        if self.descriptors.is_empty() {
            return None;
        }
        let matches = |rules: &RouteRules| match &rules.pattern.path {
            PathPattern::Descriptor(pattern) => pattern.matches(descriptor) && holds(rules.active.as_deref(), now),
            _ => false,
        };
        let same_shape = self.descriptors.get(&*descriptor.shape())?;
        same_shape.iter().filter_map(|route| routes.get(*route)).find(|route| matches(route.rules()))
    }

    /// Longest first.
    fn wildcards_of<'t>(&'t self, host: &'t str) -> impl Iterator<Item = &'t PathTable> {
        self.wildcard_lengths.iter().filter_map(move |length| {
            let (label, name) = host.split_at_checked(host.len().checked_sub(*length)?)?;
            // Something stands before the dot, because no host begins with one.
            label.ends_with('.').then(|| self.wildcards.get(name)).flatten()
        })
    }
}

impl PathTable {
    /// Routes of the same exact path or prefix are inserted in the order in which they are tried.
    fn insert(&mut self, pattern: &PathPattern, route: usize) {
        match pattern {
            PathPattern::Exact(path) => self.exact.entry(path.as_str().into()).or_default().push(route),
            PathPattern::Prefix(path) => {
                self.prefixes.entry(path.trim_end_matches('/').into()).or_default().push(route);
            }
            PathPattern::Regex(_) => self.expressions.push(route),
            PathPattern::Descriptor(_) => {}
        }
    }

    fn find(&self, path: &str, accepts: impl Fn(&usize) -> bool, matches: impl Fn(&usize) -> bool) -> Option<usize> {
        let first = |routes: &Vec<usize>| routes.iter().copied().find(&accepts);
        let exact = if self.exact.is_empty() { None } else { self.exact.get(path).and_then(first) };
        let expression = || self.expressions.iter().copied().find(|route| accepts(route) && matches(route));
        let found = exact.or_else(expression);
        if found.is_some() {
            return found;
        }
        // Longest first. By hand: a closure would be a call for each request.
        for length in &self.prefix_lengths {
            let Some((prefix, rest)) = path.split_at_checked(*length) else { continue };
            if (rest.is_empty() || rest.starts_with('/') || prefix.is_empty())
                && let Some(found) = self.prefixes.get(prefix).and_then(first)
            {
                return Some(found);
            }
        }
        None
    }
}

/// Whether what has this schedule, if any, holds now.
#[inline]
fn holds(schedule: Option<&Schedule>, now: Tick) -> bool {
    schedule.is_none_or(|schedule| schedule.is_active(now))
}

/// Whether method and header fields are what the route asks for. A preflight comes without the fields of the request that
/// it is about, so that method alone decides.
fn accepts<V: RequestView + ?Sized>(route: &RouteRules, view: &V) -> bool {
    let pattern = &route.pattern;
    let takes =
        |method: &[u8]| pattern.methods.is_empty() || pattern.methods.iter().any(|own| own.as_bytes() == method);
    if route.takes_preflights && view.method() == "OPTIONS" && is_preflight(view) {
        return takes(b"OPTIONS") || takes(view.header("access-control-request-method").unwrap_or_default());
    }
    let has = |(name, value): &(String, String)| {
        let is_it = |line: &[u8]| line.trim_ascii() == value.as_bytes().trim_ascii();
        if let Some(own) = view.header(name) {
            return is_it(own);
        }
        // A line that only some servers read as this field: a stricter route is not for others alone.
        let mut has = false;
        view.for_each_header(name, &mut |line| has |= is_it(line));
        has
    };
    takes(view.method().as_bytes()) && pattern.headers.iter().all(has)
}

/// The lengths of the keys, longest first, each once.
fn lengths<T>(map: &TextMap<T>) -> Vec<usize> {
    let mut lengths: Vec<usize> = map.keys().map(|key| key.len()).collect();
    lengths.sort_unstable_by(|a, b| b.cmp(a));
    lengths.dedup();
    lengths
}

type TextMap<T> = HashMap<Box<str>, T, BuildHasherDefault<TextHasher>>;

/// A fast hash without a secret: the keys are the operator's, and what a client looks up is not stored, so it cannot
/// make a lookup longer than those keys allow.
#[derive(Clone, Copy, Debug, Default)]
struct TextHasher(u64);

impl Hasher for TextHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0 ^= stable_hash([bytes]);
    }

    /// The mark that ends a text; there is one text per key.
    fn write_u8(&mut self, _mark: u8) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::pattern::HostPattern;
    use super::*;
    use crate::testing;
    use crate::view::PlainRequest;
    use sluicegate_time::{ScheduleRules, Zone};

    fn route(hosts: &[&str], path: PathPattern, methods: &[&str], headers: &[&str]) -> RouteRules {
        RouteRules {
            pattern: RoutePattern {
                hosts: hosts.iter().map(|host| HostPattern::parse(host).unwrap()).collect(),
                methods: methods.iter().map(|method| (*method).to_owned()).collect(),
                headers: headers.iter().map(|name| ((*name).to_owned(), "1".to_owned())).collect(),
                ..testing::pattern(path)
            },
            ..testing::route("route", testing::pattern(PathPattern::Prefix("/".to_owned())), Vec::new())
        }
    }

    fn prefix(text: &str) -> PathPattern {
        PathPattern::prefix(text).unwrap()
    }

    fn exact(text: &str) -> PathPattern {
        PathPattern::exact(text).unwrap()
    }

    fn expression(text: &str) -> PathPattern {
        PathPattern::regex(text).unwrap()
    }

    /// Finds routes by their places.
    struct Found {
        table: RouteTable,
        routes: Vec<Arc<RouteRules>>,
    }

    impl Found {
        fn of(routes: &[RouteRules]) -> Self {
            let routes: Vec<_> = routes.iter().cloned().map(Arc::new).collect();
            Self { table: RouteTable::new(&routes), routes }
        }

        fn find(&self, host: Option<&str>, path: &str, view: &PlainRequest, now: Tick) -> Option<usize> {
            let found = self.table.find(&self.routes, host, path, view, now)?;
            self.routes.iter().position(|route| Arc::ptr_eq(route, found))
        }
    }

    fn found(routes: &[RouteRules], host: &str, path: &str) -> Option<usize> {
        Found::of(routes).find(Some(host), path, &PlainRequest::new("GET", path), Tick::ZERO)
    }

    #[test]
    fn a_prefix_matches_whole_segments() {
        let routes = [route(&[], prefix("/api/"), &[], &[]), route(&[], prefix("/a%2Fb"), &[], &[])];
        for (path, expected) in [
            ("/api", Some(0)),
            ("/api/", Some(0)),
            ("/api/x/y", Some(0)),
            ("/apix", None),
            ("/api%2Fx", None),
            ("/ap", None),
            ("/", None),
            ("/x/api", None),
            ("/a%2Fb/c", Some(1)),
        ] {
            assert_eq!(found(&routes, "a", path), expected, "{path}");
        }
    }

    #[test]
    fn the_root_matches_everything_even_an_asterisk() {
        let routes = [route(&[], prefix("/"), &[], &[])];
        for path in ["/", "/a", "/a/b", "*"] {
            assert_eq!(found(&routes, "a", path), Some(0), "{path}");
        }
    }

    #[test]
    fn exact_comes_before_expressions_in_the_files_order_before_the_longest_prefix() {
        let routes = [
            route(&[], prefix("/a"), &[], &[]),
            route(&[], prefix("/a/b"), &[], &[]),
            route(&[], expression("/a/c.*"), &[], &[]),
            route(&[], exact("/a/c"), &[], &[]),
            route(&["other"], prefix("/"), &[], &[]),
            route(&[], expression("/x.*"), &[], &[]),
            route(&[], expression("/xy.*"), &[], &[]),
        ];
        for (path, expected) in [
            ("/a/b", Some(1)),
            ("/a/b/", Some(1)),
            ("/a/b/c", Some(1)),
            ("/a", Some(0)),
            ("/a/c", Some(3)),
            ("/a/c/", Some(2)),
            ("/a/cd", Some(2)),
            ("/xyz", Some(5)),
            ("/", None),
        ] {
            assert_eq!(found(&routes, "h", path), expected, "{path}");
        }
    }

    #[test]
    fn between_expressions_methods_and_fields_decide_whether_and_not_which() {
        let routes = [
            route(&[], expression("/a.*"), &["PUT"], &[]),
            route(&[], expression("/a.*"), &[], &["x"]),
            route(&[], expression("/.*"), &[], &[]),
            route(&[], expression("/a.*"), &["GET"], &["x", "y"]),
            route(&[], expression("/a.*"), &["GET"], &[]),
            route(&[], prefix("/a"), &["GET"], &["x", "y"]),
        ];
        let table = Found::of(&routes);
        for (method, fields, expected) in
            [("GET", &["x", "y"][..], 1), ("PUT", &["x", "y"], 0), ("GET", &["y"], 2), ("GET", &[], 2), ("PUT", &[], 0)]
        {
            let request = fields.iter().fold(PlainRequest::new(method, "/ab"), |view, name| view.with(name, "1"));
            assert_eq!(table.find(None, "/ab", &request, Tick::ZERO), Some(expected), "{method} {fields:?}");
        }
    }

    #[test]
    fn the_most_specific_host_comes_first_but_hides_nothing() {
        let routes = [
            route(&[], exact("/x"), &[], &[]),
            route(&["*.org"], prefix("/"), &[], &[]),
            route(&["*.example.org"], prefix("/"), &["POST", "GET"], &[]),
            route(&["a.example.org"], prefix("/only"), &[], &[]),
            route(&["*.example.org"], prefix("/x"), &["PUT"], &[]),
        ];
        for (host, path, expected) in [
            ("a.example.org", "/only", Some(3)),
            ("a.example.org", "/x", Some(2)),
            ("b.c.example.org", "/x", Some(2)),
            ("example.org", "/x", Some(1)),
            ("aexample.org", "/y", Some(1)),
            ("org", "/x", Some(0)),
            ("org", "/y", None),
            ("a.example.com", "/x", Some(0)),
        ] {
            assert_eq!(found(&routes, host, path), expected, "{host}{path}");
        }
        let table = Found::of(&routes);
        assert_eq!(table.find(None, "/x", &PlainRequest::new("GET", "/x"), Tick::ZERO), Some(0));
    }

    #[test]
    fn method_then_more_header_fields_then_file_order_decide_between_equal_paths() {
        let routes = [
            route(&[], prefix("/"), &[], &[]),
            route(&[], prefix("/"), &[], &["x", "y"]),
            route(&[], prefix("/"), &["GET"], &[]),
            route(&[], prefix("/"), &["GET"], &["x"]),
            route(&[], prefix("/"), &["GET"], &["y"]),
        ];
        let table = Found::of(&routes);
        for (method, fields, expected) in [
            ("GET", &[("x", "1"), ("y", "1")][..], 3),
            ("GET", &[("y", " 1 ")], 4),
            ("GET", &[("x", "2"), ("x", "1")], 2),
            ("GET", &[], 2),
            ("get", &[], 0),
            ("PUT", &[("x", "1"), ("y", "1")], 1),
            ("PUT", &[("x", "1")], 0),
        ] {
            let request =
                fields.iter().fold(PlainRequest::new(method, "/"), |view, (name, value)| view.with(name, value));
            assert_eq!(table.find(None, "/", &request, Tick::ZERO), Some(expected), "{method} {fields:?}");
        }
    }

    /// Every route is looked at, and the best of those that match is taken.
    fn by_looking_at_all(
        routes: &[RouteRules],
        host: Option<&str>,
        path: &str,
        view: &PlainRequest,
        now: Tick,
    ) -> Option<usize> {
        let rank = |(index, route): (usize, &RouteRules)| {
            let pattern = &route.pattern;
            let host_rank = if pattern.hosts.is_empty() {
                0
            } else {
                let rank_of = |own: &HostPattern| match host? {
                    host if !own.is_wildcard() => (host == own.name()).then_some(1000),
                    host => host.ends_with(&format!(".{}", own.name())).then_some(own.name().len()),
                };
                pattern.hosts.iter().filter_map(rank_of).max()?
            };
            let path_rank = match &pattern.path {
                PathPattern::Exact(own) => (path == own).then_some((3, 0))?,
                PathPattern::Regex(regex) => regex.is_match(path).then_some((2, routes.len() - index))?,
                PathPattern::Prefix(own) if own == "/" => (1, 1),
                PathPattern::Prefix(own) => {
                    (path == own || path.starts_with(&format!("{own}/"))).then_some((1, own.len()))?
                }
                PathPattern::Descriptor(_) => return None,
            };
            let is_active = route.active.as_ref().is_none_or(|_| now >= OPENS);
            let method = pattern.methods.is_empty() || pattern.methods.contains(&view.method().to_owned());
            let headers = pattern.headers.iter().all(|(name, _)| view.header(name).is_some());
            (is_active && method && headers).then_some((
                (host_rank, path_rank, !pattern.methods.is_empty(), pattern.headers.len(), Reverse(index)),
                index,
            ))
        };
        routes.iter().enumerate().filter_map(rank).max().map(|(_, index)| index)
    }

    fn some_of(all: &'static [&'static str], most: usize) -> impl Strategy<Value = Vec<&'static str>> {
        prop::sample::subsequence(all, 0..=most)
    }

    fn path() -> impl Strategy<Value = String> {
        prop::collection::vec(prop::sample::select(vec!["a", "b", "ab"]), 0..4)
            .prop_map(|parts| format!("/{}", parts.join("/")))
    }

    fn any_route() -> impl Strategy<Value = RouteRules> {
        let hosts = some_of(&["x.a.org", "a.org", "*.a.org", "*.org", "*.x.a.org", "org"], 2);
        let pattern = prop_oneof![
            path().prop_map(|path| prefix(&path)),
            path().prop_map(|path| exact(&path)),
            prop::sample::select(vec!["/a.*", ".*b", ".*"]).prop_map(expression),
        ];
        (hosts, pattern, some_of(&["GET", "PUT"], 1), some_of(&["x", "y"], 2), prop::bool::weighted(0.3)).prop_map(
            |(hosts, path, methods, headers, scheduled)| {
                let rules = ScheduleRules::once("1970-01-01T00:01".parse().ok(), None, Zone::utc()).unwrap();
                let active = scheduled.then(|| Arc::new(Schedule::new(rules)));
                RouteRules { active, ..route(&hosts, path, &methods, &headers) }
            },
        )
    }

    /// When routes that have a schedule begin to match.
    const OPENS: Tick = Tick::from_nanos(60_000_000_000);

    proptest! {
        #[test]
        fn takes_the_route_that_looking_at_all_of_them_takes(
            routes in prop::collection::vec(any_route(), 0..12),
            requests in prop::collection::vec(
                (
                    prop::option::of(prop::sample::select(vec!["x.a.org", "y.x.a.org", "a.org", "b.org", "org", "com"])),
                    path(),
                    prop::sample::select(vec!["GET", "PUT"]),
                    some_of(&["x", "y"], 2),
                    prop::sample::select(vec![Tick::ZERO, OPENS]),
                ),
                8,
            ),
        ) {
            let table = Found::of(&routes);
            for (host, path, method, headers, now) in requests {
                let view = headers.iter().fold(PlainRequest::new(method, &path), |view, name| view.with(name, "1"));
                let expected = by_looking_at_all(&routes, host, &path, &view, now);
                prop_assert_eq!(table.find(host, &path, &view, now), expected);
            }
        }
    }
}
