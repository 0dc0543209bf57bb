//! `sluicegate import-rls`: the rules of envoyproxy/ratelimit as a configuration file.
//!
//! That service looks for the rule of a descriptor entry by entry: of the rules with the entry's key the one with its value, else
//! the one without a value, and then among the rules below that one alone. The rule where the descriptor ends is its rule. Here
//! a route has all of its entries at once, and the route with the most exact values is taken. So where a rule with a value has
//! others beside it without one, the routes of those are written once more with the value, with the limit that the service would
//! find.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::tell::tell;
use crate::admission::{MAX_ENTRIES, MAX_KEY_PARTS};
use crate::files::read_regular;

pub const EXAMPLES: &str = "Examples:
  sluicegate import-rls config.yaml > gateway.toml && sluicegate check
  sluicegate import-rls config.yaml | less    what cannot be said is in comments, and counted on standard error

Each rule is a route and its limit, which hold in every window: the service counts in windows that begin with the clock's. A
limit takes algorithm = \"fixed-window\" for that.";

/// The arguments of the command.
#[derive(Debug, Args)]
pub struct ImportArguments {
    /// A configuration of envoyproxy/ratelimit: a domain and its descriptors.
    file: PathBuf,
}

/// Bytes of a file.
const MAX_BYTES: usize = 4 * 1024 * 1024;
/// Routes of one file.
const MAX_ROUTES: usize = 10_000;

/// Prints it.
pub fn run(arguments: &ImportArguments) -> ExitCode {
    let ImportArguments { file } = arguments;
    let read = read_regular(file, MAX_BYTES).map_err(|error| error.to_string());
    let text = read.and_then(|bytes| match String::from_utf8(bytes) {
        Ok(text) if text.len() <= MAX_BYTES => Ok(text),
        Ok(_) => Err("it is larger than 4 MiB".to_owned()),
        Err(_) => Err("it is not UTF-8".to_owned()),
    });
    let made = text.and_then(|text| import(&text)).map_err(|error| format!("{}: {error}", file.display()));
    let left_out = made.as_ref().map_or(0, |made| made.matches("# CANNOT: ").count());
    if left_out > 0 {
        eprintln!("sluicegate: {left_out} things are left out: the lines with CANNOT name them");
    }
    tell(made)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RlsFile {
    #[serde(default)]
    #[expect(dead_code, reason = "it has no meaning in a file")]
    name: Option<IgnoredAny>,
    domain: String,
    #[serde(default)]
    descriptors: Vec<RlsRule>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RlsRule {
    key: String,
    value: Option<String>,
    rate_limit: Option<RlsLimit>,
    #[serde(default)]
    descriptors: Vec<RlsRule>,
    #[serde(default)]
    shadow_mode: bool,
    #[serde(default)]
    detailed_metric: bool,
    #[serde(default)]
    value_to_metric: bool,
    #[serde(default)]
    share_threshold: bool,
    #[serde(default)]
    quota_mode: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RlsLimit {
    unit: Option<String>,
    requests_per_unit: Option<u64>,
    unit_multiplier: Option<u64>,
    #[serde(default)]
    unlimited: bool,
    name: Option<String>,
    #[serde(default)]
    replaces: Vec<RlsName>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RlsName {
    name: String,
}

/// An entry of a descriptor: its key, and its value if that is one.
type Entry<'r> = (&'r str, Option<&'r str>);

/// The descriptors with these entries, and their rule: one without a limit, or none, lets them pass.
#[derive(Clone, Debug)]
struct ImportedRoute<'r> {
    entries: Vec<Entry<'r>>,
    rule: Option<&'r RlsRule>,
}

/// The routes of rules beside each other, without the entries above them.
fn routes_of(rules: &[RlsRule]) -> Result<Vec<ImportedRoute<'_>>, String> {
    let mut all = Vec::new();
    for rule in rules {
        let entry = (rule.key.as_str(), rule.value.as_deref());
        if rules
            .iter()
            .take_while(|other| !std::ptr::eq(*other, rule))
            .any(|other| (other.key.as_str(), other.value.as_deref()) == entry)
        {
            return Err(format!("the descriptor {:?} is there twice in one list", shown(&[entry])));
        }
        all.push(ImportedRoute { entries: vec![entry], rule: Some(rule) });
        for below in routes_of(&rule.descriptors)? {
            all.push(ImportedRoute { entries: [&[entry], &*below.entries].concat(), rule: below.rule });
        }
        if all.len() > MAX_ROUTES {
            return Err(format!("it has more than {MAX_ROUTES} rules"));
        }
    }
    let mut seen: HashSet<Vec<Entry<'_>>> = all.iter().map(|route| route.entries.clone()).collect();
    let mut more = Vec::new();
    for exact in rules.iter().filter(|rule| rule.value.is_some()) {
        let of_any = all.iter().filter(|route| route.entries.first() == Some(&(&*exact.key, None)));
        for ImportedRoute { entries, .. } in of_any {
            let rest = entries.get(1..).unwrap_or_default();
            let entries = [&[(&*exact.key, exact.value.as_deref())], rest].concat();
            if seen.insert(entries.clone()) {
                let rule = rule_of(&exact.descriptors, rest);
                more.push(ImportedRoute { entries, rule });
            }
        }
        if all.len() + more.len() > MAX_ROUTES {
            return Err(format!("it has more than {MAX_ROUTES} rules, with those that rules without a value imply"));
        }
    }
    all.extend(more);
    Ok(all)
}

/// The rule that the service finds among these for such entries.
fn rule_of<'r>(rules: &'r [RlsRule], entries: &[Entry<'_>]) -> Option<&'r RlsRule> {
    let ((key, value), rest) = entries.split_first()?;
    let with = |value: Option<&str>| rules.iter().find(|own| own.key == *key && own.value.as_deref() == value);
    let rule = value.and_then(|value| with(Some(value))).or_else(|| with(None))?;
    if rest.is_empty() { Some(rule) } else { rule_of(&rule.descriptors, rest) }
}

/// Reads the rules, and writes the file.
fn import(text: &str) -> Result<String, String> {
    let RlsFile { domain, descriptors, .. } = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    if domain.is_empty() {
        return Err("`domain` is empty".to_owned());
    }
    write(&domain, &descriptors)
}

fn write(domain: &str, descriptors: &[RlsRule]) -> Result<String, String> {
    let routes = routes_of(descriptors)?;
    let mut file = ImportedFile::default();
    file.line("# Rules of envoyproxy/ratelimit. Lines with CANNOT name what has no meaning here.");
    file.line("[[listener]]\naddress = \"127.0.0.1:8081\"\ndecides = \"envoy-rls\"\n");
    for route in &routes {
        file.route(domain, route, &routes);
    }
    Ok(file.text)
}

/// A file that is written.
#[derive(Default)]
struct ImportedFile<'r> {
    text: String,
    /// Those of limits and of routes.
    names: HashSet<(bool, String)>,
    /// The limits that were written: their rules and names; `None`: it could not be written.
    limits: Vec<(&'r RlsRule, Option<String>)>,
}

impl<'r> ImportedFile<'r> {
    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn route(&mut self, domain: &str, route: &ImportedRoute<'r>, all: &[ImportedRoute<'r>]) {
        let ImportedRoute { entries, rule } = route;
        let limited = rule.filter(|rule| rule.rate_limit.as_ref().is_some_and(|limit| !limit.unlimited));
        // Without a limit it is for descriptors that another route would take.
        if limited.is_none() && !all.iter().any(|other| covers(other, route)) {
            return;
        }
        let mut seen = HashSet::new();
        let is_twice = !entries.iter().all(|(key, _)| seen.insert(*key));
        let has_prefix = entries.iter().any(|(_, value)| value.is_some_and(|value| value.ends_with('*')));
        let fault = if is_twice {
            "a descriptor with two entries of one key"
        } else if has_prefix {
            "a value that is a prefix"
        } else if entries.len() > MAX_ENTRIES {
            "a descriptor with more than 16 entries"
        } else {
            ""
        };
        if !fault.is_empty() {
            self.line(&format!("# CANNOT: {fault}: {:?}\n", shown(entries)));
            return;
        }
        let limit = match limited {
            None => None,
            Some(rule) => match self.limit(rule, entries) {
                Some(name) => Some(name),
                None => return,
            },
        };
        let name = self.name(false, entries);
        self.line(&format!("[[route]]\nname = \"{name}\"\ndomain = {}", quoted(domain)));
        let entries: Vec<String> =
            entries.iter().map(|(key, value)| format!("{} = {}", quoted(key), quoted(value.unwrap_or("*")))).collect();
        self.line(&format!("descriptors = {{ {} }}", entries.join(", ")));
        if let Some(limit) = limit {
            self.line(&format!("limits = [\"{limit}\"]"));
        }
        self.line("");
    }

    /// The name of the limit of a rule, which is written if it was not.
    fn limit(&mut self, rule: &'r RlsRule, entries: &[Entry<'_>]) -> Option<String> {
        if let Some((_, name)) = self.limits.iter().find(|(own, _)| std::ptr::eq(*own, rule)) {
            return name.clone();
        }
        let written = self.write_limit(rule, entries);
        self.limits.push((rule, written.clone()));
        written
    }

    fn write_limit(&mut self, rule: &RlsRule, entries: &[Entry<'_>]) -> Option<String> {
        let RlsLimit { unit, requests_per_unit, unit_multiplier, name, replaces, .. } = rule.rate_limit.as_ref()?;
        let wild: Vec<String> = entries
            .iter()
            .filter(|(_, value)| value.is_none())
            .map(|(key, _)| quoted(&format!("descriptor:{key}")))
            .collect();
        let rate = match (requests_per_unit, unit.as_deref().map(str::to_ascii_lowercase), unit_multiplier.unwrap_or(1))
        {
            (None | Some(0), ..) => Err("a limit of no requests".to_owned()),
            (_, _, 0) => Err("a multiplier of 0".to_owned()),
            (Some(count), Some(unit), many) => match (&*unit, many) {
                ("second", many) => Ok(format!("{count}/{many}s")),
                ("minute", many) => Ok(format!("{count}/{many}m")),
                ("hour", many) => Ok(format!("{count}/{many}h")),
                ("day", many) => Ok(format!("{count}/{many}d")),
                ("week", many) => Ok(format!("{count}/{}d", many.saturating_mul(7))),
                ("month", many) => Ok(format!("{count}/{}d", many.saturating_mul(30))),
                ("year", many) => Ok(format!("{count}/{}d", many.saturating_mul(365))),
                _ => Err(format!("the unit {unit:?}")),
            },
            (_, None, _) => Err("a limit without a unit".to_owned()),
        };
        let rate = if wild.len() > MAX_KEY_PARTS { Err(format!("{} values in one key", wild.len())) } else { rate };
        let rate = match rate {
            Ok(rate) => rate,
            Err(why) => {
                self.line(&format!("# CANNOT: {why}: {:?}\n", shown(entries)));
                return None;
            }
        };
        for other in replaces {
            self.line(&format!("# CANNOT: this limit replaces {:?} in a call with both; here both hold.", other.name));
        }
        if let Some(name) = name {
            self.line(&format!("# Its name was {name:?}."));
        }
        let ignored = [
            (rule.share_threshold, "share_threshold"),
            (rule.quota_mode, "quota_mode"),
            (rule.detailed_metric, "detailed_metric"),
            (rule.value_to_metric, "value_to_metric"),
        ];
        for (_, key) in ignored.into_iter().filter(|(is_set, _)| *is_set) {
            self.line(&format!("# CANNOT: {key}."));
        }
        let key = match &*wild {
            [] => "\"global\"".to_owned(),
            [one] => one.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        let limit = self.name(true, entries);
        self.line(&format!("[[limit]]\nname = \"{limit}\"\nkey = {key}\nrate = \"{rate}\""));
        if rule.shadow_mode {
            self.line("mode = \"shadow\"");
        }
        self.line("");
        Some(limit)
    }

    /// A name for such entries that no other limit, or no other route, has yet.
    fn name(&mut self, is_limit: bool, entries: &[Entry<'_>]) -> String {
        let fit = |character: char| {
            if character.is_ascii_alphanumeric() || "._-".contains(character) { character } else { '-' }
        };
        let mut name: String = shown(entries).chars().map(fit).collect();
        name.truncate(50);
        let mut unique = name.clone();
        let mut number = 1;
        while !self.names.insert((is_limit, unique.clone())) {
            number += 1;
            unique = format!("{name}.{number}");
        }
        unique
    }
}

/// Whether a route that has a limit, or none for its own reason, takes all that another would, by fewer values.
fn covers(other: &ImportedRoute<'_>, route: &ImportedRoute<'_>) -> bool {
    let limits = other.rule.is_some_and(|rule| rule.rate_limit.as_ref().is_some_and(|limit| !limit.unlimited));
    limits
        && other.entries != route.entries
        && other.entries.len() == route.entries.len()
        && other.entries.iter().all(|(key, value)| {
            route.entries.iter().any(|(own, exact)| own == key && (value.is_none() || value == exact))
        })
}

/// `generic_key.login_remote_address`
fn shown(entries: &[Entry<'_>]) -> String {
    let mut text = String::new();
    for (index, (key, value)) in entries.iter().enumerate() {
        text.push_str(if index == 0 { "" } else { "_" });
        text.push_str(key);
        if let Some(value) = value {
            // Writing into a String cannot fail.
            let _ = write!(text, ".{value}");
        }
    }
    text
}

/// A text of TOML.
fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::admission::Descriptor;
    use crate::config::{Certificates, parse};
    use crate::gateway::Offline;
    use crate::time::Tick;

    /// Every form of a rule.
    const RULES: &str = "
domain: edge
descriptors:
  - key: database
    value: users
    rate_limit: { unit: second, requests_per_unit: 500 }
  - key: message_type
    value: marketing
    descriptors:
      - key: to_number
        rate_limit: { unit: DAY, requests_per_unit: 5, name: a-limit }
  - key: to_number
    rate_limit: { unit: day, requests_per_unit: 100, unit_multiplier: 2 }
  - key: user
    rate_limit: { unit: hour, requests_per_unit: 7, replaces: [{ name: a-limit }] }
    shadow_mode: true
    detailed_metric: true
  - key: user
    value: vip
    rate_limit: { unlimited: true }
  - key: status
    value: 404
    rate_limit: { unit: month, requests_per_unit: 3 }
  - key: path
    value: /foo*
    rate_limit: { unit: minute, requests_per_unit: 1 }
  - key: user
    value: banned
    rate_limit: { unit: minute, requests_per_unit: 0 }
";

    fn read(text: &str) -> Offline {
        let file = import(text).unwrap();
        let parsed = parse(&file, Path::new("/gateway.toml"), Certificates::Unread);
        let parsed = parsed.unwrap_or_else(|errors| panic!("{errors}\n{file}"));
        assert_eq!(parsed.warnings.to_string(), "", "{file}");
        Offline::new(Arc::new(parsed.model)).unwrap()
    }

    /// The settings of a descriptor's limit: empty without one; `None`: no route is for it.
    fn limit_of(offline: &Offline, domain: &str, entries: &[(&str, &str)]) -> Option<String> {
        let entries = entries.iter().map(|(name, value)| (*name, value.as_bytes()));
        let descriptor = Descriptor::new(domain, entries)?;
        let route = offline.rules.route_of_descriptor(&descriptor, Tick::ZERO)?;
        let limit = route.spec.limits.first();
        Some(limit.map(|limit| limit.settings.to_string()).unwrap_or_default())
    }

    #[test]
    fn rules_become_routes_and_what_has_no_meaning_is_said() {
        let file = import(RULES).unwrap();
        for line in [
            "# CANNOT: a value that is a prefix: \"path./foo*\"",
            "# CANNOT: a limit of no requests: \"user.banned\"",
            "# CANNOT: this limit replaces \"a-limit\" in a call with both; here both hold.",
            "# CANNOT: detailed_metric.",
            "# Its name was \"a-limit\".",
            "name = \"message_type.marketing_to_number\"",
            "key = \"descriptor:to_number\"",
            "descriptors = { \"message_type\" = \"marketing\", \"to_number\" = \"*\" }",
            "mode = \"shadow\"",
        ] {
            assert!(file.lines().any(|own| own == line), "{line}\n{file}");
        }
        let offline = read(RULES);
        for (entries, rate) in [
            (&[("database", "users")][..], Some("500/1s")),
            (&[("database", "other")], None),
            (&[("message_type", "marketing"), ("to_number", "1")], Some("5/1d")),
            (&[("message_type", "marketing")], None),
            (&[("to_number", "1")], Some("100/2d")),
            (&[("user", "a")], Some("7/1h")),
            (&[("user", "vip")], Some("")),
            (&[("status", "404")], Some("3/30d")),
        ] {
            let limit = limit_of(&offline, "edge", entries);
            let is_it = limit
                .as_ref()
                .zip(rate)
                .is_none_or(|(limit, rate)| limit.contains(rate) && limit.is_empty() == rate.is_empty());
            assert!(limit.is_some() == rate.is_some() && is_it, "{entries:?}: {limit:?}");
        }
    }

    #[test]
    fn a_file_that_is_none_is_refused_with_its_place() {
        for (text, told) in [
            ("domain: ''\ndescriptors: []", "`domain` is empty"),
            ("descriptors: []", "domain"),
            ("domain: a\ndescriptors:\n  - key: b\n    rate_limits: 1", "rate_limits"),
            ("domain: a\ndescriptors:\n  - key: b\n  - key: b", "twice in one list"),
            ("domain: [", ""),
            ("a: &a [*a]", ""),
        ] {
            let error = import(text).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
    }

    /// Lists of rules, whose keys say how deep they are: the service goes by the order of entries, routes do not.
    fn rules(depth: usize) -> BoxedStrategy<Vec<RlsRule>> {
        let below = if depth < 2 { rules(depth + 1) } else { Just(()).prop_map(|()| Vec::new()).boxed() };
        let limit = prop::option::weighted(0.7, (1_u64..1_000_000, prop::bool::weighted(0.2)));
        let rule =
            (0_usize..2, prop::option::of(0_usize..2), limit, below).prop_map(move |(key, value, limit, below)| {
                let rate_limit = limit.map(|(count, unlimited)| RlsLimit {
                    unit: Some("hour".to_owned()),
                    requests_per_unit: Some(count),
                    unit_multiplier: None,
                    unlimited,
                    name: None,
                    replaces: Vec::new(),
                });
                RlsRule {
                    key: format!("{depth}{key}"),
                    value: value.map(|value| value.to_string()),
                    rate_limit,
                    descriptors: below,
                    shadow_mode: false,
                    detailed_metric: false,
                    value_to_metric: false,
                    share_threshold: false,
                    quota_mode: false,
                }
            });
        let sole = |rules: Vec<RlsRule>| {
            let mut seen = HashSet::new();
            rules.into_iter().filter(|rule| seen.insert((rule.key.clone(), rule.value.clone()))).collect()
        };
        vec(rule, 0..5).prop_map(sole).boxed()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

        #[test]
        fn each_descriptor_has_the_limit_that_the_service_finds(
            rules in rules(0), descriptors in vec(vec((0_usize..2, 0_usize..3), 1..4), 60),
        ) {
            let file = write("edge", &rules).unwrap();
            prop_assume!(file.contains("[[route]]"));
            let parsed = parse(&file, Path::new("/gateway.toml"), Certificates::Unread);
            let offline = Offline::new(Arc::new(parsed.unwrap_or_else(|errors| panic!("{errors}\n{file}")).model)).unwrap();
            for places in descriptors {
                let texts: Vec<(String, String)> = places.iter().enumerate()
                    .map(|(depth, (key, value))| (format!("{depth}{key}"), value.to_string()))
                    .collect();
                let exact: Vec<Entry<'_>> = texts.iter().map(|(key, value)| (&**key, Some(&**value))).collect();
                let limit = rule_of(&rules, &exact).and_then(|rule| rule.rate_limit.as_ref()).filter(|limit| !limit.unlimited);
                let expected = limit.map(|limit| format!("\"{}/1h\"", limit.requests_per_unit.unwrap()));
                let entries: Vec<(&str, &str)> = texts.iter().map(|(key, value)| (&**key, &**value)).collect();
                let told = limit_of(&offline, "edge", &entries).unwrap_or_default();
                let is_it = expected.as_ref().map_or(told.is_empty(), |rate| told.contains(rate));
                prop_assert!(is_it, "{:?}: {:?}, {:?}\n{}", entries, expected, told, file);
            }
        }
    }
}
