//! Routes that can never match, since others take all of their requests before them: warnings.

use std::collections::HashMap;
use std::ops::Range;

use super::language::Language;
use super::names::Name;
use crate::admission::{PathPattern, RoutePattern};
use crate::config::findings::{Finding, Findings, quoted};
use crate::config::model::{Preflight, Route};
use crate::time::ScheduleRules;

/// Pairs of routes that are compared beyond their texts. A file with more is not searched to its end.
const MAX_PAIRS: usize = 100_000;
/// Automata that are made for one file, and as often they are compared.
const MAX_AUTOMATA: usize = 64;

/// The requests that the routes of a file match.
#[derive(Default)]
pub(super) struct Claims(Vec<Claim>);

struct Claim {
    name: Name,
    pattern: RoutePattern,
    active: Option<ScheduleRules>,
    takes_preflights: bool,
}

/// Why a route never matches, or hardly ever.
enum Taken {
    /// The very same conditions.
    Twin,
    /// The same path, by conditions that are no narrower.
    Wider,
    /// Its path has an exact route of its own.
    Exact,
    /// All of its paths match a regex that is tried before.
    Regex,
    /// A regex that is tried before matches what the prefix is for: itself, with a slash, and what is below.
    Samples,
}

impl Claims {
    /// Notes what the route `name`, the next one of the file, matches.
    pub(super) fn claim(&mut self, name: &Name, route: &Route) {
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
        let mut tables: HashMap<String, Table<'_>> = HashMap::new();
        let mut search = Search::default();
        for claim in &self.0 {
            for host in hosts(&claim.pattern) {
                tables.entry(host).or_default().insert(claim);
            }
        }
        for claim in &self.0 {
            let of_host = |host| tables.get(&host).and_then(|table| table.taker(claim, &mut search));
            let takers: Option<Vec<_>> = hosts(&claim.pattern).into_iter().map(of_host).collect();
            // Of several hosts the least certain reason is told.
            let taker = takers.and_then(|all| all.into_iter().max_by_key(|(_, taken)| matches!(taken, Taken::Samples)));
            if let Some((taker, taken)) = taker {
                findings.push(taken.finding(claim, &taker.name.span));
            }
        }
    }
}

impl Taken {
    fn finding(&self, claim: &Claim, by: &Range<usize>) -> Finding {
        let name = quoted(&claim.name.text);
        let (message, note, help) = match self {
            Self::Twin => (
                format!("the route {name} can never match"),
                "the same hosts, path, methods and headers are taken at",
                "remove it, or set it apart by a host, path, method or header; the first of equal routes is taken",
            ),
            Self::Wider => (
                format!("the route {name} can never match"),
                "the same path, with all of its methods and headers, is taken at",
                "remove it, move it up, or let the other route name fewer methods; the first of equal routes is taken",
            ),
            Self::Exact => (
                format!("the route {name} can never match"),
                "its only path is taken by the path_exact at",
                "remove it, or let it match more than that path; exact paths are tried before regexes",
            ),
            Self::Regex => (
                format!("the route {name} can never match"),
                "all of its paths match the path_regex that is tried before it, at",
                "narrow that regex, or make this route a path_exact, or a path_regex above it: exact paths are tried \
                 first, then regexes in the file's order, then the longest prefix",
            ),
            Self::Samples => {
                let samples = samples(&claim.pattern.path);
                let (last, rest) =
                    samples.split_last().map_or(("", String::new()), |(last, rest)| (last, rest.join(", ")));
                (
                    format!("the route {name} hardly ever matches: {rest} and {last} match a path_regex"),
                    "this path_regex is tried before it, at",
                    "narrow that regex, or make this route a path_exact, or a path_regex above it: exact paths are \
                     tried first, then regexes in the file's order, then the longest prefix",
                )
            }
        };
        Finding::warning(claim.name.span.clone(), message).related(note, by.clone()).help(help)
    }
}

/// The routes of one host, in the file's order.
#[derive(Default)]
struct Table<'c> {
    by_path: HashMap<String, Vec<&'c Claim>>,
    by_condition: HashMap<String, &'c Claim>,
    regexes: Vec<&'c Claim>,
    has_exact: bool,
}

impl<'c> Table<'c> {
    fn insert(&mut self, claim: &'c Claim) {
        self.by_condition.entry(scheduled(claim)).or_insert(claim);
        self.by_path.entry(text_of(&claim.pattern.path)).or_default().push(claim);
        match &claim.pattern.path {
            PathPattern::Regex(_) => self.regexes.push(claim),
            PathPattern::Exact(_) => self.has_exact = true,
            PathPattern::Prefix(_) => {}
        }
    }

    /// The first route that takes all that `claim` would.
    fn taker(&self, claim: &Claim, search: &mut Search) -> Option<(&'c Claim, Taken)> {
        self.twin(claim).or_else(|| self.wider(claim, search)).or_else(|| match &claim.pattern.path {
            PathPattern::Exact(_) => None,
            PathPattern::Prefix(_) => self.regex_over_prefix(claim, search),
            PathPattern::Regex(_) => self.before_regex(claim, search),
        })
    }

    fn twin(&self, claim: &Claim) -> Option<(&'c Claim, Taken)> {
        let always = self.by_condition.get(&conditions(&claim.pattern));
        let taker = [always, self.by_condition.get(&scheduled(claim))].into_iter().flatten();
        let mut taker = taker.filter(|taker| taker.is_above(claim) && taker.accepts_all_of(claim));
        taker.next().map(|taker| (*taker, Taken::Twin))
    }

    fn wider(&self, claim: &Claim, search: &mut Search) -> Option<(&'c Claim, Taken)> {
        let same_path = self.by_path.get(&text_of(&claim.pattern.path))?;
        let taker = same_path
            .iter()
            .find(|other| search.may_go_on() && other.comes_before(claim) && other.accepts_all_of(claim));
        taker.map(|taker| (*taker, Taken::Wider))
    }

    fn regex_over_prefix(&self, claim: &Claim, search: &mut Search) -> Option<(&'c Claim, Taken)> {
        let samples = samples(&claim.pattern.path);
        let mut likely = None;
        for other in self.regexes.iter().filter(|other| other.accepts_all_of(claim)) {
            if !search.may_go_on() {
                break;
            }
            if !samples.iter().all(|sample| other.matches(sample)) {
                continue;
            }
            if search.covers(other, claim) {
                return Some((*other, Taken::Regex));
            }
            likely = likely.or(Some((*other, Taken::Samples)));
        }
        likely
    }

    fn before_regex(&self, claim: &Claim, search: &mut Search) -> Option<(&'c Claim, Taken)> {
        let above = |other: &&&Claim| other.is_above(claim) && other.accepts_all_of(claim);
        let mut above = self.regexes.iter().filter(above).peekable();
        if above.peek().is_none() && !self.has_exact {
            return None;
        }
        let shortest = search.language(&claim.pattern.path)?.shortest()?;
        for other in above {
            if !search.may_go_on() {
                return None;
            }
            if other.matches(&shortest) && search.covers(other, claim) {
                return Some((*other, Taken::Regex));
            }
        }
        let exact = self.by_path.get(&text_of(&PathPattern::Exact(shortest)))?;
        let taker = exact.iter().find(|other| search.may_go_on() && other.accepts_all_of(claim))?;
        search.covers(taker, claim).then_some((*taker, Taken::Exact))
    }
}

impl Claim {
    fn is_above(&self, other: &Self) -> bool {
        self.name.span.start < other.name.span.start
    }

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

    fn matches(&self, path: &str) -> bool {
        matches!(&self.pattern.path, PathPattern::Regex(regex) if regex.is_match(path))
    }
}

/// The work that a file may still cost, and the automata that were made.
struct Search {
    pairs_left: usize,
    automata_left: usize,
    /// `None` where there is no small one.
    languages: HashMap<String, Option<Language>>,
}

impl Search {
    fn may_go_on(&mut self) -> bool {
        self.pairs_left = self.pairs_left.saturating_sub(1);
        self.pairs_left > 0
    }

    /// Whether every path of `claim` is surely one of `other`.
    fn covers(&mut self, other: &Claim, claim: &Claim) -> bool {
        let both = [other, claim].map(|claim| text_of(&claim.pattern.path));
        if self.language(&other.pattern.path).is_none() || self.language(&claim.pattern.path).is_none() {
            return false;
        }
        self.automata_left = self.automata_left.saturating_sub(1);
        let [Some(Some(other)), Some(Some(claim))] = both.map(|text| self.languages.get(&text)) else { return false };
        other.covers(claim) == Some(true)
    }

    fn language(&mut self, path: &PathPattern) -> Option<&Language> {
        let left = &mut self.automata_left;
        let language = self.languages.entry(text_of(path)).or_insert_with(|| {
            *left = left.checked_sub(1)?;
            match path {
                PathPattern::Regex(regex) => Language::of(&format!(r"\A(?:{})\z", regex.as_str())),
                PathPattern::Prefix(prefix) => Language::below(prefix),
                PathPattern::Exact(path) => Language::of(&format!(r"\A{}\z", regex::escape(path))),
            }
        });
        language.as_ref()
    }
}

impl Default for Search {
    fn default() -> Self {
        Self { pairs_left: MAX_PAIRS, automata_left: MAX_AUTOMATA, languages: HashMap::new() }
    }
}

/// Paths that stand for a prefix: itself, with a slash, and one below.
fn samples(path: &PathPattern) -> Vec<String> {
    let PathPattern::Prefix(prefix) = path else { return Vec::new() };
    let prefix = prefix.trim_end_matches('/');
    let itself = (!prefix.is_empty()).then(|| prefix.to_owned());
    itself.into_iter().chain([format!("{prefix}/"), format!("{prefix}/x")]).collect()
}

fn text_of(path: &PathPattern) -> String {
    format!("{path:?}")
}

fn hosts(pattern: &RoutePattern) -> Vec<String> {
    let hosts: Vec<String> = pattern.hosts.iter().map(ToString::to_string).collect();
    if hosts.is_empty() { vec![String::new()] } else { hosts }
}

/// The path, methods and headers that a route matches, as a text: on one host, equal texts match equal requests.
fn conditions(pattern: &RoutePattern) -> String {
    let (mut methods, mut headers) = (pattern.methods.clone(), pattern.headers.clone());
    methods.sort();
    headers.sort();
    format!("{:?} {methods:?} {headers:?}", pattern.path)
}

fn scheduled(claim: &Claim) -> String {
    let conditions = conditions(&claim.pattern);
    match &claim.active {
        Some(active) => format!("{conditions} {active}"),
        None => conditions,
    }
}
