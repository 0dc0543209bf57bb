//! The order in which routes are tried, old against new: what a plan says of routes that change their place.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::change::Changes;
use super::model::RouteSpec;
use sluicegate_admission::{HostPattern, PathPattern};

/// Routes that a line names one by one.
const MAX_NAMED: usize = 5;
/// Regexes of which a plan says before which routes they are tried; the others are counted.
const MAX_TOLD: usize = 20;
/// Pairs of routes that are compared. A plan says so if there are more.
const MAX_PAIRS: usize = 1 << 20;

/// The order of the file decides between equally specific routes, so another order of the same routes is a change. So is
/// a regex that is tried before other routes which stay.
pub(super) fn routes(old: &[Arc<RouteSpec>], new: &[Arc<RouteSpec>]) -> Changes {
    let (before, after) = (names(old), names(new));
    let stayed_before = old.iter().filter(|route| after.contains(&*route.name));
    let stayed_after = new.iter().filter(|route| before.contains(&*route.name));
    let mut changes = Changes::default();
    if let Some((_, first)) = stayed_before.zip(stayed_after).find(|(old, new)| old.name != new.name) {
        changes.note("another order", format!("from {} on", first.name));
    }
    let is_same = |(old, new): (&Arc<RouteSpec>, &Arc<RouteSpec>)| {
        old.name == new.name && old.pattern.path == new.pattern.path && old.pattern.hosts == new.pattern.hosts
    };
    if old.len() != new.len() || !old.iter().zip(new).all(is_same) {
        regexes(&mut changes, old, new, &before.intersection(&after).copied().collect());
    }
    changes
}

fn names(routes: &[Arc<RouteSpec>]) -> HashSet<&str> {
    routes.iter().map(|route| &*route.name).collect()
}

/// Before which of the routes that stay each regex is tried, where that changes.
fn regexes(changes: &mut Changes, old: &[Arc<RouteSpec>], new: &[Arc<RouteSpec>], stay: &HashSet<&str>) {
    let (was, is) = (pairs(old, stay), pairs(new, stay));
    let (known, held): (HashSet<_>, HashSet<_>) = (was.iter().collect(), is.iter().collect());
    let begun = is.iter().filter(|pair| !known.contains(pair));
    // Two that change their places are told of once.
    let ended = was.iter().filter(|pair| !held.contains(pair) && !held.contains(&(pair.1, pair.0)));
    let begun = by_regex(begun).into_iter().map(|line| ("now tried", line));
    let mut lines = begun.chain(by_regex(ended).into_iter().map(|line| ("no longer tried", line)));
    for (what, (regex, routes)) in lines.by_ref().take(MAX_TOLD) {
        let more = routes.len().saturating_sub(MAX_NAMED);
        let named = routes.get(..MAX_NAMED).unwrap_or(&routes).join(", ");
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        changes.note(what, format!("{regex} before {named}{more}"));
    }
    let more = lines.count();
    if more > 0 {
        changes.note("and so", format!("{more} more regexes"));
    }
    if was.len().max(is.len()) == MAX_PAIRS {
        changes.note("beyond", format!("{MAX_PAIRS} pairs of routes nothing was compared"));
    }
}

/// Each regex with each route of the same host that stays and is tried after it, in the file's order.
fn pairs<'m>(routes: &'m [Arc<RouteSpec>], stay: &HashSet<&str>) -> Vec<(&'m str, &'m str)> {
    let mut regexes = Vec::new();
    let mut prefixes_of: HashMap<Option<&HostPattern>, Vec<&RouteSpec>> = HashMap::new();
    let mut regexes_of: HashMap<Option<&HostPattern>, Vec<(usize, &RouteSpec)>> = HashMap::new();
    for (index, route) in routes.iter().enumerate() {
        for host in hosts(route) {
            match &route.pattern.path {
                PathPattern::Exact(_) | PathPattern::Descriptor(_) => {}
                PathPattern::Prefix(_) => prefixes_of.entry(host).or_default().push(route),
                PathPattern::Regex(_) => regexes_of.entry(host).or_default().push((index, route)),
            }
        }
        if matches!(route.pattern.path, PathPattern::Regex(_)) {
            regexes.push((index, route));
        }
    }
    let behind = |(index, regex): (usize, &'m Arc<RouteSpec>)| {
        let mut seen = HashSet::new();
        let of_hosts = hosts(regex).into_iter().flat_map(|host| {
            let later = regexes_of.get(&host).into_iter().flatten().filter(move |(other, _)| *other > index);
            let later = later.map(|(_, route)| *route);
            later.chain(prefixes_of.get(&host).into_iter().flatten().copied()).collect::<Vec<_>>()
        });
        let stays = of_hosts.filter(|route| stay.contains(&*route.name) && seen.insert(&*route.name));
        stays.map(|route| (&*regex.name, &*route.name)).collect::<Vec<_>>()
    };
    regexes.into_iter().flat_map(behind).take(MAX_PAIRS).collect()
}

/// `None`: the routes without hosts.
fn hosts(route: &RouteSpec) -> Vec<Option<&HostPattern>> {
    let hosts: Vec<_> = route.pattern.hosts.iter().map(Some).collect();
    if hosts.is_empty() { vec![None] } else { hosts }
}

/// One line for each regex.
fn by_regex<'p, 'm>(pairs: impl Iterator<Item = &'p (&'m str, &'m str)>) -> Vec<(&'m str, Vec<&'m str>)>
where
    'm: 'p,
{
    let mut lines: Vec<(&str, Vec<&str>)> = Vec::new();
    for (regex, route) in pairs {
        match lines.last_mut() {
            Some((last, routes)) if last == regex => routes.push(route),
            _ => lines.push((regex, vec![route])),
        }
    }
    lines
}
