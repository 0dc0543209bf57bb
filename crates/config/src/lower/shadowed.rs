//! Routes whose requests others take before them: warnings.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use crate::findings::{Finding, Findings, quoted};
use crate::model::{Preflight, RouteSpec};
use crate::names::Name;
use sluicegate_admission::{PathPattern, RoutePattern};
use sluicegate_time::ScheduleRules;

/// Pairs of routes that are compared. A file with more is not searched to its end.
const MAX_PAIRS: usize = 100_000;

/// The requests that the routes of a file match.
#[derive(Default)]
pub(super) struct Claims(Vec<Claim>);

struct Claim {
    name: Name,
    pattern: RoutePattern,
    active: Option<ScheduleRules>,
    takes_preflights: bool,
}

/// Why a route gets nothing, or not what it is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ShadowedBy {
    /// The very same conditions.
    Twin,
    /// The same path, by conditions that are no narrower.
    Wider,
    /// A regex that is tried before matches what the prefix is for: itself, with a slash, and what is below.
    Samples,
}

impl Claims {
    /// Notes what the route `name`, the next one of the file, matches.
    pub(super) fn claim(&mut self, name: &Name, route: &RouteSpec) {
        let cors = route.cors.as_ref();
        self.0.push(Claim {
            name: name.clone(),
            pattern: route.pattern.clone(),
            active: route.active.clone(),
            takes_preflights: cors.is_some_and(|cors| cors.preflight == Preflight::Answer),
        });
    }

    /// Warns of each route whose requests other routes take on every one of its hosts.
    pub(super) fn warn(&self, findings: &Findings) {
        let mut tables: HashMap<String, HostRoutes<'_>> = HashMap::new();
        let mut pairs_left = MAX_PAIRS;
        for claim in &self.0 {
            for host in hosts(&claim.pattern) {
                tables.entry(host).or_default().insert(claim);
            }
        }
        for claim in &self.0 {
            let of_host = |host| tables.get(&host).and_then(|table| table.taker(claim, &mut pairs_left));
            let takers: Option<Vec<_>> = hosts(&claim.pattern).into_iter().map(of_host).collect();
            // Of several hosts the least certain reason is told.
            if let Some((taker, taken)) = takers.and_then(|all| all.into_iter().max_by_key(|(_, taken)| *taken)) {
                findings.push(taken.finding(claim, &taker.name.span));
            }
        }
    }
}

impl ShadowedBy {
    fn finding(self, claim: &Claim, by: &Range<usize>) -> Finding {
        let (what, note, help) = match self {
            Self::Twin => (
                "can never match".to_owned(),
                "the same hosts, path, methods and headers are taken at",
                "remove it, or set it apart by a host, path, method or header; the first of equal routes is taken",
            ),
            Self::Wider => (
                "can never match".to_owned(),
                "the same path, with all of its methods and headers, is taken at",
                "remove it, move it up, or let the other route name fewer methods; the first of equal routes is taken",
            ),
            Self::Samples => (
                format!("gets none of {}", samples(&claim.pattern.path).join(", ")),
                "these match the path_regex that is tried before it, at",
                "narrow that regex, or make this route a path_exact, or a path_regex above it: exact paths are tried \
                 first, then regexes in the file's order, then the longest prefix",
            ),
        };
        let message = format!("the route {} {what}", quoted(&claim.name.text));
        Finding::warning(claim.name.span.clone(), message).related(note, by.clone()).help(help)
    }
}

/// The routes of one host, in the file's order.
#[derive(Default)]
struct HostRoutes<'c> {
    by_path: HashMap<(u8, Cow<'c, str>), Vec<&'c Claim>>,
    regexes: Vec<&'c Claim>,
}

impl<'c> HostRoutes<'c> {
    fn insert(&mut self, claim: &'c Claim) {
        self.by_path.entry(text_of(&claim.pattern.path)).or_default().push(claim);
        if let PathPattern::Regex(_) = claim.pattern.path {
            self.regexes.push(claim);
        }
    }

    /// The first route that takes all that `claim` would, or what it is for.
    fn taker(&self, claim: &Claim, pairs_left: &mut usize) -> Option<(&'c Claim, ShadowedBy)> {
        let mut may_go_on = || {
            *pairs_left = pairs_left.saturating_sub(1);
            *pairs_left > 0
        };
        let same_path = self.by_path.get(&text_of(&claim.pattern.path)).into_iter().flatten();
        let mut before = same_path.take_while(|_| may_go_on());
        if let Some(taker) = before.find(|other| other.comes_before(claim) && other.accepts_all_of(claim)) {
            return Some((*taker, if claim.accepts_all_of(taker) { ShadowedBy::Twin } else { ShadowedBy::Wider }));
        }
        let samples = samples(&claim.pattern.path);
        let matches_all = |other: &Claim| match &other.pattern.path {
            PathPattern::Regex(regex) => samples.iter().all(|sample| regex.is_match(sample)),
            _ => false,
        };
        let mut regexes = self.regexes.iter().filter(|_| !samples.is_empty()).take_while(|_| may_go_on());
        let taker = regexes.find(|other| other.accepts_all_of(claim) && matches_all(other))?;
        Some((*taker, ShadowedBy::Samples))
    }
}

impl Claim {
    /// Whether it is tried before another route of the same host and path.
    fn comes_before(&self, other: &Self) -> bool {
        let rank = |claim: &Self| match claim.pattern.path {
            PathPattern::Regex(_) => (false, 0),
            _ => (claim.pattern.methods.is_empty(), usize::MAX - claim.pattern.headers.len()),
        };
        (rank(self), self.name.span.start) < (rank(other), other.name.span.start)
    }

    /// Whether it takes whatever `other` does, as far as time, method and headers go.
    fn accepts_all_of(&self, other: &Self) -> bool {
        let (own, its) = (&self.pattern, &other.pattern);
        let active = self.active.is_none() || self.active == other.active;
        let methods = own.methods.is_empty()
            || !its.methods.is_empty() && its.methods.iter().all(|method| own.methods.contains(method));
        let headers = own.headers.iter().all(|header| its.headers.contains(header));
        // Preflights come without the headers, and with another method.
        let preflights =
            !other.takes_preflights || self.takes_preflights || own.methods.is_empty() && own.headers.is_empty();
        active && methods && headers && preflights
    }
}

/// Paths that stand for a prefix: itself, with a slash, and one below.
fn samples(path: &PathPattern) -> Vec<String> {
    let PathPattern::Prefix(prefix) = path else { return Vec::new() };
    let prefix = prefix.trim_end_matches('/');
    let itself = (!prefix.is_empty()).then(|| prefix.to_owned());
    itself.into_iter().chain([format!("{prefix}/"), format!("{prefix}/x")]).collect()
}

/// Equal for equal paths.
fn text_of(path: &PathPattern) -> (u8, Cow<'_, str>) {
    match path {
        PathPattern::Exact(text) => (0, text.into()),
        PathPattern::Regex(regex) => (1, regex.as_str().into()),
        PathPattern::Prefix(text) => (2, text.into()),
        PathPattern::Descriptor(pattern) => (3, format!("{pattern:?}").into()),
    }
}

fn hosts(pattern: &RoutePattern) -> Vec<String> {
    let hosts: Vec<String> = pattern.hosts.iter().map(ToString::to_string).collect();
    if hosts.is_empty() { vec![String::new()] } else { hosts }
}
