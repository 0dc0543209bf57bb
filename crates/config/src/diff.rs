//! The plan of a reload: what a new [`Model`] changes, by the identities that survive it (the name of a limit, an
//! upstream, a route; the address of a listener). It is what the operator reads; the gateway goes by the models.

use std::collections::{HashMap, HashSet};
use std::fmt::{self, Write as _};
use std::sync::Arc;

use super::change::{Change, Fate};
use super::describe;
use super::describe_bandwidth;
use super::describe_order;
use super::describe_plans;
use super::model::{LimitRule, Model, PlanLimit};
use super::section::Section;
use super::sections;
use sluicegate_fleet::SharedLimit;
use sluicegate_limiter::Carry;

/// Lines of a printed plan; what is beyond is counted.
const MAX_LINES: usize = 100;

/// The changes of a reload, in the order: sections, listeners, upstreams, limits, plans, bandwidths, routes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    items: Vec<Item>,
}

/// The fate of one part of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The kind of part.
    pub part: Part,
    /// The part: a name, an address, or a section's header.
    pub name: String,
    /// Its fate.
    pub fate: Fate,
}

/// A kind of part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// A section that is written once.
    Section,
    /// `[[listener]]`
    Listener,
    /// `[[upstream]]`
    Upstream,
    /// `[[limit]]`
    Limit,
    /// A plans file, with the key that its keys are values of.
    Plans,
    /// A limit whose numbers a plan overrides.
    PlanLimit,
    /// `[[bandwidth]]`
    Bandwidth,
    /// `[[route]]`
    Route,
}

/// A route or limit of `old` that `new` has no more, or a route's limit, or a network of `deny`, in words; `None` if there is
/// none. A file of which only the first half was written lacks such.
pub fn removed(old: &Model, new: &Model) -> Option<String> {
    let limits: HashSet<&str> = new.limits.iter().map(|limit| &*limit.spec.name).collect();
    if let Some(gone) = old.limits.iter().find(|limit| !limits.contains(&*limit.spec.name)) {
        return Some(format!("limit {}", gone.spec.name));
    }
    let denied: HashSet<_> = new.client.deny.iter().collect();
    if let Some(gone) = old.client.deny.iter().find(|network| !denied.contains(network)) {
        return Some(format!("{gone} in `deny`"));
    }
    let routes: HashMap<&str, &[Arc<LimitRule>]> =
        new.routes.iter().map(|route| (&*route.name, &*route.limits)).collect();
    old.routes.iter().find_map(|route| {
        let Some(kept) = routes.get(&*route.name) else { return Some(format!("route {}", route.name)) };
        let is_kept = |limit: &Arc<LimitRule>| kept.iter().any(|own| own.spec.name == limit.spec.name);
        let gone = route.limits.iter().find(|limit| !is_kept(limit))?;
        Some(format!("limit {} of route {}", gone.spec.name, route.name))
    })
}

/// The changes of a reload from `old` to `new`.
pub fn diff(old: &Model, new: &Model) -> Plan {
    let Model {
        // sections tells of these nine.
        server: _,
        log: _,
        client: _,
        dead_letter: _,
        admin: _,
        fleet: _,
        follow: _,
        jwt: _,
        overload: _,
        // Its entries are told one by one.
        followed: _,
        listeners,
        upstreams,
        limits,
        plan_limits,
        // describe_bandwidth::sections gives those that have a section.
        bandwidths: _,
        routes,
    } = old;
    let mut items = sections(old, new);
    items.extend(pair(
        Part::Listener,
        listeners,
        &new.listeners,
        |listener| listener.address.to_string(),
        |old, new| old.compare(new, false).into_fate(),
    ));
    items.extend(pair(
        Part::Upstream,
        upstreams,
        &new.upstreams,
        |upstream| upstream.name.to_string(),
        |old, new| old.compare(new, false).into_fate(),
    ));
    items.extend(pair(
        Part::Limit,
        limits,
        &new.limits,
        |limit| limit.spec.name.to_string(),
        |old, new| limit(old, new),
    ));
    let books = (describe_plans::books(old), describe_plans::books(new));
    items.extend(pair(Part::Plans, &books.0, &books.1, describe_plans::name, |old, new| {
        describe_plans::book(old, new).into_fate()
    }));
    let of_plans = |old: &PlanLimit, new: &PlanLimit| {
        limit(&describe_plans::limit_rule(old, &new.rule), &describe_plans::limit_rule(new, &new.rule))
    };
    items.extend(pair(Part::PlanLimit, plan_limits, &new.plan_limits, describe_plans::limit_name, of_plans));
    items.extend(pair(
        Part::Bandwidth,
        describe_bandwidth::sections(old),
        describe_bandwidth::sections(new),
        |bandwidth| bandwidth.name.to_string(),
        describe_bandwidth::fate,
    ));
    items.extend(pair(
        Part::Route,
        routes,
        &new.routes,
        |route| route.name.to_string(),
        |was, is| describe::route((&old.server, was), (&new.server, is)).into_fate(),
    ));
    Plan { items }
}

impl Plan {
    /// The fate of each part, also of those that stay.
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.items.iter().all(|item| item.fate == Fate::Kept)
    }

    /// Whether something changes only at the next start.
    pub fn needs_restart(&self) -> bool {
        self.items.iter().any(|item| matches!(item.fate, Fate::NeedsRestart(_)))
    }
}

impl fmt::Display for Plan {
    /// A line for each part that changes, and one that counts what stays. Without a line end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("nothing changed");
        }
        let moving = || self.items.iter().filter(|item| item.fate != Fate::Kept);
        for (index, item) in moving().take(MAX_LINES).enumerate() {
            if index > 0 {
                f.write_char('\n')?;
            }
            write!(f, "{item}")?;
        }
        let more = moving().count().saturating_sub(MAX_LINES);
        if more > 0 {
            write!(f, "\n... and {more} more")?;
        }
        let kept: Vec<String> = [Part::Listener, Part::Upstream, Part::Limit, Part::Route]
            .into_iter()
            .map(|part| (part, self.items.iter().filter(|item| item.part == part && item.fate == Fate::Kept).count()))
            .filter(|(_, count)| *count > 0)
            .map(|(part, count)| format!("{count} {part}{}", if count == 1 { "" } else { "s" }))
            .collect();
        if kept.is_empty() { Ok(()) } else { write!(f, "\nkept: {}", kept.join(", ")) }
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.part != Part::Section {
            write!(f, "{} ", self.part)?;
        }
        write!(f, "{}: ", self.name)?;
        match &self.fate {
            Fate::Kept => f.write_str("kept"),
            Fate::Changed(changes) => write!(f, "changed: {}", sentence(changes)),
            Fate::Rescaled(changes) => write!(f, "rescaled, its counts go on: {}", sentence(changes)),
            Fate::Reset(changes) => write!(f, "reset, it counts from zero: {}", sentence(changes)),
            Fate::Added => f.write_str("added"),
            Fate::Removed => f.write_str("removed"),
            Fate::NeedsRestart(changes) => write!(f, "needs a restart: {}", sentence(changes)),
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Section => "section",
            Self::Listener => "listener",
            Self::Upstream => "upstream",
            Self::Limit | Self::PlanLimit => "limit",
            Self::Plans => "plans",
            Self::Bandwidth => "bandwidth",
            Self::Route => "route",
        })
    }
}

fn sentence(changes: &[Change]) -> String {
    changes.iter().map(Change::to_string).collect::<Vec<_>>().join(", ")
}

/// Pairs the old and the new of one kind by name: the new ones in their order, then the removed ones in theirs.
fn pair<'m, T>(
    part: Part,
    old: &'m [T],
    new: &'m [T],
    name: impl Fn(&T) -> String,
    judge: impl Fn(&'m T, &'m T) -> Fate,
) -> Vec<Item> {
    let mut before: HashMap<String, &T> = old.iter().map(|item| (name(item), item)).collect();
    let mut items = Vec::with_capacity(new.len());
    for item in new {
        let name = name(item);
        let fate = before.remove(&name).map_or(Fate::Added, |old| judge(old, item));
        items.push(Item { part, name, fate });
    }
    let gone = old.iter().map(name).filter(|name| before.contains_key(name));
    items.extend(gone.map(|name| Item { part, name, fate: Fate::Removed }));
    items
}

fn sections(old: &Model, new: &Model) -> Vec<Item> {
    let mut items = section("[server]", Some(&old.server), Some(&new.server));
    items.extend(section("[log]", Some(&old.log), Some(&new.log)));
    items.extend(section("[jwt]", old.jwt.as_ref(), new.jwt.as_ref()));
    items.extend(section("[client]", Some(&old.client), Some(&new.client)));
    let order = describe_order::routes(&old.routes, &new.routes).into_fate();
    items.push(Item { part: Part::Section, name: "route order".to_owned(), fate: order });
    items.extend(section("[dead_letter]", old.dead_letter.as_ref(), new.dead_letter.as_ref()));
    items.extend(section("[overload]", old.overload.as_ref(), new.overload.as_ref()));
    items.extend(section("[admin]", old.admin.as_ref(), new.admin.as_ref()));
    items.extend(section("[fleet]", old.fleet.as_ref(), new.fleet.as_ref()));
    items.extend(section("[rules]", old.follow.as_ref(), new.follow.as_ref()));
    items
}

fn section<S: Section>(name: &str, old: Option<&S>, new: Option<&S>) -> Vec<Item> {
    let fates = match (old, new) {
        (Some(old), Some(new)) => {
            let restart = old.compare(new, true).into_vec();
            let restart = (!restart.is_empty()).then_some(Fate::NeedsRestart(restart));
            [Some(old.compare(new, false).into_fate()), restart]
        }
        (None, Some(_)) => [Some(Fate::Added), None],
        (Some(_), None) => [Some(Fate::Removed), None],
        (None, None) => [None, None],
    };
    let item = |fate| Item { part: Part::Section, name: name.to_owned(), fate };
    fates.into_iter().flatten().map(item).collect()
}

/// Counts survive everything but another algorithm or another key.
fn limit(old: &LimitRule, new: &LimitRule) -> Fate {
    let changes = sections::limit::compare(old, new).into_vec();
    if changes.is_empty() {
        Fate::Kept
    } else if old.key != new.key || counts_elsewhere(old, new) {
        Fate::Reset(changes)
    } else {
        match new.spec.algorithm.carries(&old.spec.algorithm) {
            Carry::Kept => Fate::Changed(changes),
            Carry::Rescaled => Fate::Rescaled(changes),
            Carry::Nothing => Fate::Reset(changes),
        }
    }
}

/// Whether the store counts a shared limit under another name.
fn counts_elsewhere(old: &LimitRule, new: &LimitRule) -> bool {
    let layout = |rule: &LimitRule| {
        let shared = rule.spec.sharing.and_then(|_| SharedLimit::new(&rule.spec.algorithm).ok())?;
        Some(shared.layout())
    };
    layout(old).zip(layout(new)).is_some_and(|(old, new)| old != new)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use crate::Certificates;

    const BASE: &str = r#"
[[listener]]
address = "127.0.0.1:8080"
[[upstream]]
name = "app"
servers = ["127.0.0.1:9001", "127.0.0.1:9002"]
[[limit]]
name = "per-client"
rate = "100/s"
[[limit]]
name = "per-key"
key = "header:x-api-key"
rate = "5000/h"
[[route]]
name = "api"
path = "/api"
limits = ["per-client", "per-key"]
upstream = "app"
[[route]]
name = "rest"
respond = { status = 404, body = "no" }
"#;

    fn model(text: &str) -> Model {
        super::super::parse(text, Path::new("/gateway.toml"), Certificates::Unread)
            .unwrap_or_else(|errors| panic!("{errors}"))
            .model
    }

    /// The plan for the file in which each `(from, to)` was replaced.
    fn plan(edits: &[(&str, &str)]) -> String {
        let text = edits.iter().fold(BASE.to_owned(), |text, (from, to)| {
            assert!(text.contains(from), "{from:?}");
            text.replacen(from, to, 1)
        });
        diff(&model(BASE), &model(&text)).to_string()
    }

    #[test]
    fn says_so_when_nothing_changed() {
        assert_eq!(plan(&[]), "nothing changed");
        assert_eq!(plan(&[("[[limit]]", "# a comment\n[[limit]]\nmode = \"enforce\"")]), "nothing changed");
        assert!(!diff(&model(BASE), &model(BASE)).needs_restart());
    }

    #[test]
    fn a_new_number_keeps_the_counts() {
        assert_eq!(
            plan(&[("\"100/s\"", "\"200/s\"\nmode = \"shadow\"")]),
            "limit per-client: changed: rate 100/s -> 200/s, mode enforce -> shadow\n\
             kept: 1 listener, 1 upstream, 1 limit, 2 routes"
        );
    }

    #[test]
    fn another_algorithm_starts_afresh_and_another_pace_rescales() {
        let kept = "\nkept: 1 listener, 1 upstream, 1 limit, 2 routes";
        let bucket = "\"100/s\"\nalgorithm = \"token-bucket\"";
        let text = plan(&[("\"100/s\"", bucket)]);
        assert!(text.starts_with("limit per-client: "), "{text}");
        assert!(text.ends_with(&format!("algorithm timer-wheel -> token-bucket{kept}")), "{text}");
        let from = |edits: &[(&str, &str)]| {
            let old = BASE.replacen("\"100/s\"", bucket, 1);
            let new = edits.iter().fold(old.clone(), |text, (from, to)| text.replacen(from, to, 1));
            diff(&model(&old), &model(&new)).to_string()
        };
        assert_eq!(
            from(&[("token-bucket\"", "token-bucket\"\nburst = 7")]),
            format!("limit per-client: changed: burst the rate's -> 7{kept}")
        );
        assert_eq!(
            from(&[("\"100/s\"", "\"200/s\"")]),
            format!("limit per-client: rescaled, its counts go on: rate 100/s -> 200/s{kept}")
        );
        assert_eq!(
            from(&[("token-bucket\"", "token-bucket\"\nrefill = \"interval\"")]),
            format!("limit per-client: rescaled, its counts go on: refill greedy -> interval{kept}")
        );
    }

    #[test]
    fn another_window_or_other_slots_rescale() {
        let kept = "\nkept: 1 listener, 1 upstream, 1 limit, 2 routes";
        let line = "limit per-client: rescaled, its counts go on: ";
        assert_eq!(plan(&[("\"100/s\"", "\"100/2s\"")]), format!("{line}rate 100/s -> 100/2s{kept}"));
        assert_eq!(plan(&[("\"100/s\"", "\"100/s\"\nslots = 20")]), format!("{line}slots 10 -> 20{kept}"));
        assert_eq!(
            plan(&[("\"100/s\"", "\"100/s\"\nbound = \"strict\"")]),
            format!("{line}bound sliding -> strict{kept}")
        );
        assert_eq!(
            plan(&[("\"100/s\"", "[\"100/s\", \"20/100ms\"]")]),
            format!("{line}rate 100/s -> 100/s and 20/100ms, slots 10 -> 10 and 10{kept}")
        );
    }

    #[test]
    fn another_key_starts_from_zero() {
        assert_eq!(
            plan(&[("\"header:x-api-key\"", "[\"client-ip\", \"header:x-api-key\"]"), ("5000/h", "6000/h")]),
            "limit per-key: reset, it counts from zero: key header:x-api-key -> client-ip + header:x-api-key, \
             rate 5000/h -> 6000/h\n\
             kept: 1 listener, 1 upstream, 1 limit, 2 routes"
        );
    }

    #[test]
    fn parts_come_and_go_by_name() {
        assert_eq!(
            plan(&[
                ("127.0.0.1:8080", "127.0.0.1:8081"),
                ("\"127.0.0.1:9002\"]", "\"127.0.0.1:9003\", { address = \"127.0.0.1:9001\", weight = 2 }]"),
                ("\"127.0.0.1:9001\", ", ""),
                ("name = \"rest\"", "name = \"others\""),
                ("limits = [\"per-client\", \"per-key\"]", "limits = [\"per-client\"]"),
                (
                    "[[limit]]\nname = \"per-key\"\nkey = \"header:x-api-key\"\nrate = \"5000/h\"\n",
                    "[admin]\naddress = \"127.0.0.1:9900\"\n"
                ),
            ]),
            "[admin]: added\n\
             listener 127.0.0.1:8081: added\n\
             listener 127.0.0.1:8080: removed\n\
             upstream app: changed: servers +127.0.0.1:9003 +127.0.0.1:9001 (weight 2) -127.0.0.1:9001 -127.0.0.1:9002\n\
             limit per-key: removed\n\
             route api: changed: limits -per-key\n\
             route others: added\n\
             route rest: removed\n\
             kept: 1 limit"
        );
    }

    #[test]
    fn the_servers_timeout_is_told_once() {
        assert_eq!(
            plan(&[("[[listener]]", "[server]\ntimeout = \"5s\"\n[[listener]]")]),
            "[server]: changed: timeout none -> 5s\nkept: 1 listener, 1 upstream, 2 limits, 2 routes"
        );
        assert_eq!(
            plan(&[("[[listener]]", "[server]\nresponse_timeout = \"5s\"\n[[listener]]")]),
            "[server]: changed: response_timeout 1m -> 5s\nkept: 1 listener, 1 upstream, 2 limits, 2 routes"
        );
        assert_eq!(
            plan(&[("path = \"/api\"", "path_exact = \"/api\"\ntimeout = \"5s\"\nresponse_timeout = \"none\"")]),
            "route api: changed: path /api -> exactly /api, timeout none -> 5s, response_timeout 1m -> none\nkept: 1 listener, 1 upstream, 2 limits, 1 route"
        );
    }

    #[test]
    fn the_servers_bound_of_bodies_is_told_once() {
        let server = "[server]\nmax_body_size = \"1MiB\"\n[[listener]]";
        assert_eq!(
            plan(&[("[[listener]]", server)]),
            "[server]: changed: max_body_size none -> 1MiB\nkept: 1 listener, 1 upstream, 2 limits, 2 routes"
        );
        let own = ("path = \"/api\"", "path = \"/api\"\nmax_body_size = 0");
        assert_eq!(
            plan(&[own]),
            "route api: changed: max_body_size none -> 0B\nkept: 1 listener, 1 upstream, 2 limits, 1 route"
        );
        let changed = "[server]: changed: max_body_size none -> 1MiB\n\
                       route api: changed: max_body_size none -> 0B\nkept: 1 listener, 1 upstream, 2 limits, 1 route";
        assert_eq!(plan(&[("[[listener]]", server), own]), changed);
    }

    #[test]
    fn timeouts_and_sizes_of_http_change_at_once() {
        for (line, change) in [
            ("head_timeout = \"1s\"", "head_timeout 30s -> 1s"),
            ("keep_alive_timeout = \"1s\"", "keep_alive_timeout 75s -> 1s"),
            ("body_timeout = \"90s\"", "body_timeout 1m -> 90s"),
            ("min_body_rate = \"off\"", "min_body_rate 240B/s -> off"),
            ("tunnel_timeout = \"none\"", "tunnel_timeout 1h -> none"),
            ("max_head_size = \"8KiB\"", "max_head_size 64KiB -> 8KiB"),
            ("max_head_fields = 64", "max_head_fields 128 -> 64"),
        ] {
            let text = BASE.replacen("[[listener]]", &format!("[server]\n{line}\n[[listener]]"), 1);
            let plan = diff(&model(BASE), &model(&text));
            assert!(!plan.needs_restart(), "{line}");
            let expected = format!("[server]: changed: {change}\nkept: 1 listener, 1 upstream, 2 limits, 2 routes");
            assert_eq!(plan.to_string(), expected);
        }
        assert_eq!(
            plan(&[("name = \"app\"", "name = \"app\"\nconnect_timeout = \"250ms\"")]),
            "upstream app: changed: connect_timeout 5s -> 250ms\nkept: 1 listener, 2 limits, 2 routes"
        );
    }

    #[test]
    fn what_waits_for_a_restart_says_so() {
        let text = BASE.replacen("[[listener]]", "[server]\nworkers = 4\n[[listener]]", 1);
        let plan = diff(&model(BASE), &model(&text));
        assert!(plan.needs_restart());
        assert_eq!(
            plan.to_string(),
            "[server]: needs a restart: workers auto -> 4\nkept: 1 listener, 1 upstream, 2 limits, 2 routes"
        );
    }

    #[test]
    fn a_limit_that_moves_in_the_file_changes_nothing() {
        let (first, rest) = BASE.split_once("[[limit]]\nname = \"per-key\"").unwrap();
        let (second, rest) = rest.split_once("[[route]]").unwrap();
        let moved = format!("[[limit]]\nname = \"per-key\"{second}{first}[[route]]{rest}");
        assert_eq!(diff(&model(BASE), &model(&moved)).to_string(), "nothing changed", "names count, not places");
    }

    #[test]
    fn the_order_of_routes_is_part_of_them() {
        let (head, routes) = BASE.split_once("[[route]]").unwrap();
        let (api, rest) = routes.split_once("[[route]]").unwrap();
        let swapped = format!("{head}[[route]]{rest}[[route]]{api}");
        assert_eq!(
            diff(&model(BASE), &model(&swapped)).to_string(),
            "route order: changed: another order from rest on\nkept: 1 listener, 1 upstream, 2 limits, 2 routes"
        );
    }

    #[test]
    fn a_plan_names_the_routes_that_a_regex_is_tried_before() {
        const REGEX: &str = "[[route]]\nname = \"old\"\npath_regex = '/v[0-9]+/.*'\nrespond = {}\n";
        let with = |first: &str, last: &str| {
            let (head, routes) = BASE.split_once("[[route]]").unwrap();
            model(&format!("{head}{first}[[route]]{routes}{last}"))
        };
        let plan = |old: &Model, new: &Model| diff(old, new).to_string();
        let kept = "kept: 1 listener, 1 upstream, 2 limits, ";
        // Wherever it stands.
        for with_regex in [with(REGEX, ""), with("", REGEX)] {
            assert_eq!(
                plan(&model(BASE), &with_regex),
                format!("route order: changed: now tried old before api, rest\nroute old: added\n{kept}2 routes")
            );
            assert_eq!(
                plan(&with_regex, &model(BASE)),
                format!(
                    "route order: changed: no longer tried old before api, rest\nroute old: removed\n{kept}2 routes"
                )
            );
        }
        let as_prefix = REGEX.replace("path_regex = '/v[0-9]+/.*'", "path = \"/v1\"");
        assert_eq!(
            plan(&with(&as_prefix, ""), &with(REGEX, "")),
            format!(
                "route order: changed: now tried old before api, rest\n\
                 route old: changed: path /v1 -> regex /v[0-9]+/.*\n{kept}2 routes"
            )
        );
        let as_exact = REGEX.replace("path_regex = '/v[0-9]+/.*'", "path_exact = \"/v1\"");
        let other = REGEX.replace("old", "older");
        assert!(
            !plan(&with(&as_exact, ""), &with(&as_exact, &other)).contains("before old"),
            "exact paths are before regexes"
        );
        assert_eq!(
            plan(&with(&format!("{REGEX}{other}"), ""), &with(&format!("{other}{REGEX}"), "")),
            format!("route order: changed: another order from older on, now tried older before old\n{kept}4 routes")
        );
        let elsewhere = REGEX.replace("respond", "hosts = [\"h.example\"]\nrespond");
        assert_eq!(plan(&model(BASE), &with(&elsewhere, "")), format!("route old: added\n{kept}2 routes"));
        let many: String = (0..8).map(|number| REGEX.replace("old", &format!("r{number}"))).collect();
        assert_eq!(
            plan(&with(&many, ""), &with(REGEX, &many)),
            format!(
                "route order: changed: another order from api on, now tried old before r0, r1, r2, r3, r4 and 5 more\n\
                 route old: added\n{kept}10 routes"
            )
        );
    }

    #[test]
    fn a_regex_is_shown_as_it_was_written() {
        assert!(plan(&[("path = \"/api\"", "path_regex = '/v[0-9]+'")]).contains("path /api -> regex /v[0-9]+\n"));
    }

    #[test]
    fn a_plan_of_any_size_has_a_bounded_print() {
        let mut text = BASE.to_owned();
        for number in 0..150 {
            let _ = write!(text, "[[route]]\nname = \"r{number}\"\npath = \"/{number}\"\nrespond = {{}}\n");
        }
        let printed = diff(&model(BASE), &model(&text)).to_string();
        assert_eq!(printed.lines().count(), MAX_LINES + 2);
        assert!(printed.contains("\n... and 50 more\nkept: "));
    }

    prop_compose! {
        /// Files over few names and values, so that two of them share many.
        fn any_file()(
            workers in 1..3_u8,
            // Sizes of the server that no route has for its own.
            server_size in 1..3_u8,
            limits in prop::collection::btree_map(0..4_u8, (1..3_u32, 1..3_u8, 0..2_u8), 0..4),
            routes in prop::collection::vec((0..5_u8, 0..2_u8, any::<bool>(), 0..3_usize), 1..5),
        ) -> String {
            let mut text = format!(
                "[server]\nworkers = {workers}\nmax_body_size = {server_size}\n\
                 [[listener]]\naddress = \"127.0.0.1:8080\"\n"
            );
            for (name, (rate, window, key)) in &limits {
                let key = ["client-ip", "host"][usize::from(*key)];
                let _ = write!(text, "[[limit]]\nname = \"l{name}\"\nkey = \"{key}\"\nrate = \"{rate}/{window}s\"\n");
            }
            let names: Vec<String> = limits.keys().map(|name| format!("\"l{name}\"")).collect();
            let mut seen = Vec::new();
            for (name, path, limited, size) in routes {
                if seen.contains(&name) {
                    continue;
                }
                seen.push(name);
                let limits = if limited { names.join(", ") } else { String::new() };
                let _ = write!(text, "[[route]]\nname = \"r{name}\"\npath = \"/{path}\"\nlimits = [{limits}]\nrespond = {{}}\n");
                text.push_str(["", "max_body_size = 3\n", "max_body_size = \"none\"\n"][size]);
            }
            text
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// No change without a line, no line without a change; what is new one way is gone the other way.
        #[test]
        fn a_plan_says_all_and_only_what_differs(one in any_file(), two in any_file()) {
            let (old, new) = (model(&one), model(&two));
            prop_assert!(diff(&old, &old).is_empty());
            let (there, back) = (diff(&old, &new), diff(&new, &old));
            let same = one == two;
            prop_assert_eq!(there.is_empty(), same, "{}", there);
            prop_assert_eq!(there.items().len(), back.items().len());
            for item in there.items() {
                let mirrored = |other: &&Item| other.part == item.part && other.name == item.name
                    && matches!(other.fate, Fate::NeedsRestart(_)) == matches!(item.fate, Fate::NeedsRestart(_));
                let other = back.items().iter().find(mirrored);
                let fits = match (&item.fate, other.map(|other| &other.fate)) {
                    (Fate::Added, Some(Fate::Removed)) | (Fate::Removed, Some(Fate::Added)) => true,
                    (fate, Some(other)) => std::mem::discriminant(fate) == std::mem::discriminant(other),
                    (_, None) => false,
                };
                prop_assert!(fits, "{} has no mirror in {:?}", item, other);
            }
            // Applied by name, the plan leads from the old names to the new ones.
            let count = |fate: &Fate, part| there.items().iter().filter(|item| item.part == part && item.fate == *fate).count();
            let after = old.limits.len() + count(&Fate::Added, Part::Limit) - count(&Fate::Removed, Part::Limit);
            prop_assert_eq!(after, new.limits.len());
        }
    }
}
