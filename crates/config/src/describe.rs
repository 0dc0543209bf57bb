//! The settings of each part in words, old against new: what the lines of a plan say.

use std::sync::Arc;

use super::change::Changes;
use super::describe_bandwidth;
use super::describe_edits;
use super::describe_plans;
use super::model::{Action, Cors, LimitRule, Preflight, RouteEdits, RouteSpec};
use super::section::compare;
use super::sections::route::RouteKeys;
use super::sections::server::Server;
use super::size::show_size;
use sluicegate_admission::{Cost, PathPattern, RoutePattern};
use sluicegate_time::Span;

/// A route, with the `[server]` that has the defaults of some keys.
pub(super) fn route((old_server, old): (&Server, &RouteSpec), (new_server, new): (&Server, &RouteSpec)) -> Changes {
    let RouteSpec {
        // Routes are paired by it.
        name: _,
        pattern: old_pattern,
        active: _,
        priority: _,
        collapse: _,
        limits,
        cost,
        action: old_action,
        on_limit: _,
        apply_on_stream_done: _,
        timeout,
        response_timeout,
        max_body_size,
        capture_body: _,
        key_body: _,
        cors: old_cors,
        edits,
        refusal,
        bandwidth,
        messages,
        plans,
    } = old;
    let mut changes = Changes::default();
    pattern(&mut changes, old_pattern, &new.pattern);
    compare!(RouteKeys { active, priority, collapse }, old, new, &mut changes);
    let name_of = |book: &Option<_>| book.as_ref().map_or_else(|| "none".to_owned(), describe_plans::name);
    changes.value("plans", &name_of(plans), &name_of(&new.plans), Clone::clone);
    changes.list("limits", &limit_names(limits), &limit_names(&new.limits));
    changes.value("cost", cost, &new.cost, Cost::to_string);
    compare!(RouteKeys { on_limit, apply_on_stream_done }, old, new, &mut changes);
    let (was, mut is) = (action(old_action), action(&new.action));
    // Two addresses with secrets look alike.
    if was == is && matches!(old_action, Action::Redirect { .. }) && *old_action != new.action {
        is.push_str(", another one");
    }
    // Bytes are compared as they are: a file may have a million of them, and a route each.
    let is_other = match (old_action, &new.action) {
        (Action::Respond { .. }, Action::Respond { .. }) => *old_action != new.action,
        _ => was != is,
    };
    if is_other {
        changes.note("action", format!("{was} -> {is}"));
    }
    // A route that follows the server's default is told of once, there.
    let follows = *timeout == old_server.timeout && new.timeout == new_server.timeout;
    if !follows {
        changes.value("timeout", timeout, &new.timeout, |timeout| or_none(*timeout));
    }
    let follows =
        *response_timeout == old_server.response_timeout && new.response_timeout == new_server.response_timeout;
    if !follows {
        changes.value("response_timeout", response_timeout, &new.response_timeout, |timeout| or_none(*timeout));
    }
    let follows = *max_body_size == old_server.max_body_size && new.max_body_size == new_server.max_body_size;
    if !follows {
        changes.value("max_body_size", max_body_size, &new.max_body_size, |bytes| size_or_none(*bytes));
    }
    compare!(RouteKeys { key_body, capture_body }, old, new, &mut changes);
    changes.value("cors", old_cors, &new.cors, |rules| cors(rules.as_ref()));
    let none = RouteEdits::default();
    let (edits, new_edits) = (edits.as_deref().unwrap_or(&none), new.edits.as_deref().unwrap_or(&none));
    describe_edits::headers(&mut changes, "request_headers", &edits.request, &new_edits.request);
    describe_edits::headers(&mut changes, "response_headers", &edits.response, &new_edits.response);
    changes.value("rewrite", &edits.rewrite, &new_edits.rewrite, |rewrite| describe_edits::rewrite(rewrite.as_ref()));
    compare!(RouteKeys { host }, edits, new_edits, &mut changes);
    describe_edits::refusal(&mut changes, refusal.as_deref(), new.refusal.as_deref());
    changes.list("bandwidth", &describe_bandwidth::used(bandwidth), &describe_bandwidth::used(&new.bandwidth));
    changes.value("messages", messages, &new.messages, |rules| describe_bandwidth::messages(rules.as_ref()));
    changes
}

fn pattern(changes: &mut Changes, old: &RoutePattern, new: &RoutePattern) {
    let RoutePattern { hosts: _, path: old_path, methods: _, headers, allow_encoded_slash: _, path_as_received: _ } =
        old;
    compare!(RouteKeys { hosts }, old, new, changes);
    changes.value("path", &path(old_path), &path(&new.path), Clone::clone);
    compare!(RouteKeys { methods }, old, new, changes);
    let (before, after) =
        (describe_edits::conditions(headers, None), describe_edits::conditions(&new.headers, Some(headers)));
    changes.list("headers", &before, &after);
    compare!(RouteKeys { allow_encoded_slash, path_as_received }, old, new, changes);
}

fn limit_names(limits: &[Arc<LimitRule>]) -> Vec<String> {
    limits.iter().map(|limit| limit.spec.name.to_string()).collect()
}

/// In words: the action of a route.
fn action(action: &Action) -> String {
    match action {
        Action::Forward(upstream) => format!("upstream {}", upstream.name),
        Action::Respond { status, body } => format!("respond {status} ({} bytes)", body.bytes.len()),
        Action::Redirect { status, target } => format!("redirect {status} {}", describe_edits::target(target)),
    }
}

fn path(path: &PathPattern) -> String {
    match path {
        PathPattern::Prefix(path) => path.clone(),
        PathPattern::Exact(path) => format!("exactly {path}"),
        PathPattern::Regex(regex) => format!("regex {}", regex.as_str()),
        PathPattern::Descriptor(pattern) => format!("descriptor of {pattern}"),
    }
}

fn cors(cors: Option<&Cors>) -> String {
    let Some(cors) = cors else { return "none".to_owned() };
    let Cors {
        allow_origins,
        allow_credentials,
        count_preflight,
        preflight,
        allow_methods,
        allow_headers,
        expose_headers,
        max_age,
    } = cors;
    let credentials = if *allow_credentials { " with credentials" } else { "" };
    let counted = if *count_preflight { ", preflights counted" } else { "" };
    let answer = match preflight {
        Preflight::Forward => ", preflights forwarded".to_owned(),
        Preflight::Answer => {
            let (methods, headers) = (allow_methods.join(" "), allow_headers.join(" "));
            format!(", methods {methods}, headers {headers}, for {max_age}")
        }
    };
    let exposed = match expose_headers.join(" ") {
        names if names.is_empty() => String::new(),
        names => format!(", exposed {names}"),
    };
    format!("[{}]{credentials}{counted}{answer}{exposed}", allow_origins.join(", "))
}

pub(super) fn or_none(timeout: Option<Span>) -> String {
    timeout.map_or_else(|| "none".to_owned(), |timeout| timeout.to_string())
}

fn size_or_none(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "none".to_owned(), show_size)
}
