//! `[[route]]`

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::ops::Range;

use super::bandwidth::Bandwidths;
use super::plans::Asked;
use super::refusal::RefusalPage;
use super::{action, cors, edits, messages, path, rewrite, template};
use crate::admission::{Cost, HostPattern, RoutePattern};
use crate::config::findings::{Finding, quoted, ticked};
use crate::config::kind::{Context, Kind, every};
use crate::config::model::{Action, LimitRule, OnLimit, Route};
use crate::config::names::{Declared, Name, name};
use crate::config::reader::{Node, Reader};
use crate::config::sections::cost::CostKeys;
use crate::config::sections::server::{BODY_SIZES, ServerKeys, TIMEOUTS};
use crate::config::sections::upstream::Upstream;
use crate::config::sections::{doubts, schedule};
use crate::config::token::{header_name, is_token, with_causes};
use crate::edit::Scope;
use crate::limiter::{MAX_LIMITS, Mode};
use crate::time::Span;

/// Methods or headers of one route; each may be compared with each request.
pub(super) const MAX_CONDITIONS: usize = 256;
/// Hosts of one route. A request's is found by its hash.
const MAX_HOSTS: usize = 10_000;

/// Lowers one; its name also where the rest is wrong. `server` has the defaults.
pub(super) fn lower<'t>(
    mut reader: Reader<'t>,
    upstreams: &Declared<'_, Upstream>,
    limits: &Declared<'_, LimitRule>,
    bandwidths: &mut Bandwidths<'_>,
    plans: &mut Asked<'t>,
    server: &ServerKeys<'_>,
    context: &Context<'_>,
) -> (Option<Name>, Option<Route>) {
    let name = name(&mut reader, "api");
    let pattern = pattern(&mut reader);
    let active = reader.optional("active").map_or(Some(None), |node| schedule::read(&node, context).ok().map(Some));
    let cost = CostKeys::read(&mut reader, context);
    cost.warn_of_unused();
    let used = match reader.optional("limits") {
        Some(node) => used_limits(&node, limits),
        None => Some(Vec::new()),
    };
    for index in used.iter().flatten() {
        let counting = |rule: &&LimitRule| rule.cost.is_none() && rule.spec.mode != Mode::Off;
        if let Some(rule) = limits.item(*index).filter(counting) {
            cost.check_fits(Some(&rule.spec.algorithm), Some(limits.name(*index)));
        }
    }
    plans.note(&mut reader, used.as_deref(), cost.fixed());
    let action = action::lower(&mut reader, pattern.as_ref().map(|pattern| &pattern.path), upstreams, context.files);
    let (timeout, response_timeout) = timeouts(&mut reader, server);
    let max_body_size = max_body_size(&mut reader, server);
    let on_limit = match reader.optional("on_limit") {
        Some(node) => on_limit(&node, used.as_deref()),
        None => Some(OnLimit::Refuse),
    };
    let cors = reader.optional("cors").map_or(Some(None), |node| cors::lower(&node, pattern.as_ref()).map(Some));
    let rewrite = rewrite::lower(&mut reader, pattern.as_ref().map(|pattern| &pattern.path));
    let host = rewrite::host(&mut reader);
    if let Some(Action::Respond { .. } | Action::Redirect { .. }) = action {
        rewrite::warn_unused(&mut reader);
    }
    let request_headers = edits::lower(&mut reader, "request_headers", Scope::Request);
    let response_headers = edits::lower(&mut reader, "response_headers", Scope::Response);
    edits::check_beside_cors(&mut reader, response_headers.as_ref(), cors.as_ref().and_then(Option::as_ref));
    let refusal = reader.optional("refusal").map_or(Some(None), |node| RefusalPage.read(&node, context).ok());
    let bandwidth = bandwidths.of_route(&mut reader, name.as_ref(), action.as_ref());
    let messages = messages::lower(&mut reader, action.as_ref());
    reader.done(&[]);
    let route = (|| {
        Some(Route {
            name: name.as_ref()?.text.clone(),
            pattern: pattern?,
            active: active?,
            limits: used?,
            cost: cost.bounded().ok()?.unwrap_or(Cost::ONE),
            action: action?,
            on_limit: on_limit?,
            timeout: timeout?,
            response_timeout: response_timeout?,
            max_body_size: max_body_size?,
            cors: cors?,
            request_headers: request_headers?,
            response_headers: response_headers?,
            rewrite: rewrite?,
            host: host?,
            refusal: refusal?,
            bandwidth: bandwidth?,
            messages: messages?,
            plans: None,
        })
    })();
    (name, route)
}

/// The route's own, or by default the server's.
#[allow(clippy::option_option, reason = "the outer says whether it could be read, the inner what it says")]
fn max_body_size(reader: &mut Reader<'_>, server: &ServerKeys<'_>) -> Option<Option<u64>> {
    let size = server.max_body_size.get().copied();
    reader.optional("max_body_size").map_or(size, |node| node.size_or_none(&BODY_SIZES))
}

/// `timeout` and `response_timeout`, each of the route or by default the server's.
#[allow(clippy::option_option, reason = "the outer says whether it could be read, the inner what it says")]
fn timeouts(reader: &mut Reader<'_>, server: &ServerKeys<'_>) -> (Option<Option<Span>>, Option<Option<Span>>) {
    let (total, head) = (reader.optional("timeout"), reader.optional("response_timeout"));
    let read = |node: Option<&Node<'_>>, default: Option<&Option<Span>>| {
        node.map_or(default.copied(), |node| node.duration_or_none(&TIMEOUTS))
    };
    let timeout = read(total.as_ref(), server.timeout.get());
    let response_timeout = read(head.as_ref(), server.response_timeout.get());
    if let (Some(node), Some(timeout), Some(response_timeout)) = (&head, timeout, response_timeout) {
        doubts::check_response(node, response_timeout, timeout);
    }
    (timeout, response_timeout)
}

fn on_limit(node: &Node<'_>, used: Option<&[usize]>) -> Option<OnLimit> {
    let on_limit = node.choice(&[("refuse", OnLimit::Refuse), ("drop", OnLimit::Drop)], &["defer"])?;
    if let (OnLimit::Drop, Some([])) = (on_limit, used) {
        node.warning("`on_limit` has no effect: the route has no limits", "name them in `limits`, or remove on_limit");
    }
    Some(on_limit)
}

fn pattern(reader: &mut Reader<'_>) -> Option<RoutePattern> {
    let hosts = list(reader, "hosts", MAX_HOSTS, "[\"api.example.com\", \"*.example.org\"]", |item| {
        let text = item.text("a host in quotes", "\"api.example.com\" or \"*.example.org\"")?;
        match HostPattern::parse(text) {
            Ok(host) => Some(host),
            Err(error) => {
                item.error(format!("{} is no host of a route", quoted(text)), with_causes(&error));
                None
            }
        }
    });
    let path = path::lower(reader);
    let methods = list(reader, "methods", MAX_CONDITIONS, "[\"GET\", \"POST\"]", method);
    let headers = match reader.optional("headers") {
        Some(node) => headers(&node),
        None => Some(Vec::new()),
    };
    let allow_encoded_slash = reader.optional("allow_encoded_slash").map_or(Some(false), |node| node.boolean());
    Some(RoutePattern {
        hosts: hosts?,
        path: path?,
        methods: methods?,
        headers: headers?,
        allow_encoded_slash: allow_encoded_slash?,
    })
}

/// The items of an array that may be left out, but not be empty: that would match nothing, or everything.
fn list<T: Clone + Eq + Hash>(
    reader: &mut Reader<'_>,
    key: &'static str,
    most: usize,
    example: &str,
    lower: impl Fn(&Node<'_>) -> Option<T>,
) -> Option<Vec<T>> {
    let Some(node) = reader.optional(key) else { return Some(Vec::new()) };
    let items = node.items(example)?;
    if items.is_empty() {
        node.error(format!("`{key}` is empty"), format!("leave `{key}` out to match all, or write {key} = {example}"));
        return None;
    }
    if items.len() > most {
        node.error(format!("`{key}` has {} items", items.len()), format!("it takes at most {most}"));
        return None;
    }
    let mut seen = HashSet::new();
    every(&items, |item| {
        let lowered = lower(item)?;
        if !seen.insert(lowered.clone()) {
            item.error(format!("{} is in `{key}` twice", quoted(item.as_text().unwrap_or_default())), "remove one");
        }
        Some(lowered)
    })
}

fn method(item: &Node<'_>) -> Option<String> {
    let text = item.text("a method in quotes", "\"GET\"")?;
    if !is_token(text) {
        item.error(format!("{} is no method", quoted(text)), "methods are words like \"GET\" or \"POST\"");
        return None;
    }
    if text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        let help = format!("methods are upper-case: \"{}\"", text.to_ascii_uppercase());
        item.error(format!("{} would match no request", quoted(text)), help);
        return None;
    }
    Some(text.to_owned())
}

fn headers(node: &Node<'_>) -> Option<Vec<(String, String)>> {
    let reader = node.table("`headers`", "{ x-version = \"2\" }")?;
    let entries: Vec<_> = reader.entries().collect();
    if entries.len() > MAX_CONDITIONS {
        node.error(format!("`headers` has {} items", entries.len()), format!("it takes at most {MAX_CONDITIONS}"));
        return None;
    }
    let mut seen: HashMap<String, Range<usize>> = HashMap::new();
    every(&entries, |entry| {
        let name = header_name(&entry.on_key(), entry.label()).ok()?;
        if let Some(first) = seen.insert(name.clone(), entry.key_span()) {
            // The table is sorted by name, not by place.
            let (first, second) = if first.start < entry.key_span().start {
                (first, entry.key_span())
            } else {
                (entry.key_span(), first)
            };
            let finding = Finding::error(second, format!("the header {} is in `headers` twice", ticked(&name)));
            entry.push(
                finding.related("the first is at", first).help("header names are the same in upper and lower case"),
            );
            return None;
        }
        let value = entry.text("a text in quotes", "{ x-version = \"2\" }")?;
        if value.trim() != value || value.chars().any(|character| character.is_control() && character != '\t') {
            let help = "a value has no control characters, and no blanks at its ends";
            entry.error(format!("{} would match no request", template::field_text(entry, value)), help);
            return None;
        }
        Some((name, value.to_owned()))
    })
}

fn used_limits(node: &Node<'_>, limits: &Declared<'_, LimitRule>) -> Option<Vec<usize>> {
    let items = node.items("[\"per-client\"]")?;
    if items.len() > MAX_LIMITS {
        node.error(format!("the route has {} limits", items.len()), format!("a route has at most {MAX_LIMITS}"));
        return None;
    }
    let mut seen: Vec<(usize, Range<usize>)> = Vec::new();
    every(&items, |item| {
        let index = limits.refer(item)?;
        if let Some((_, first)) = seen.iter().find(|(other, _)| *other == index) {
            let message = format!("the limit {} is in `limits` twice", quoted(limits.name(index)));
            let finding = Finding::error(item.span(), message).related("the first is at", first.clone());
            item.push(finding.help("remove one; to count more per request use cost"));
            return None;
        }
        seen.push((index, item.span()));
        Some(index)
    })
}
