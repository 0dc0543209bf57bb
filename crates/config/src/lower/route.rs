//! `[[route]]`: its keys beside each other and beside other sections.

use std::ops::Range;
use std::sync::Arc;

use super::bandwidth::Bandwidths;
use super::plans::RoutesWithPlans;
use super::{action, cors, descriptors, domain, edits, messages, path, rewrite};
use crate::findings::{Finding, quoted};
use crate::kind::{Context, every};
use crate::model::{Action, Cors, LimitRule, OnLimit, RouteEdits, RouteSpec};
use crate::names::{Declared, Name};
use crate::reader::{Node, Reader};
use crate::section::Key;
use crate::sections::collapse;
use crate::sections::cost::CostKeys;
use crate::sections::doubts;
use crate::sections::route::RouteKeys;
use crate::sections::server::ServerKeys;
use crate::sections::upstream::UpstreamSpec;
use sluicegate_admission::{Cost, PathPattern, RoutePattern};
use sluicegate_edit::{FieldEdits, Rewrite, Scope};
use sluicegate_limiter::{MAX_LIMITS, Mode};

/// Lowers one; its name also where the rest is wrong. `server` has the defaults.
pub(super) fn lower<'t>(
    mut reader: Reader<'t>,
    upstreams: &Declared<'_, UpstreamSpec>,
    limits: &Declared<'_, LimitRule>,
    bandwidths: &mut Bandwidths<'_>,
    plans: &mut RoutesWithPlans<'t>,
    server: &ServerKeys<'_>,
    context: &Context<'_>,
) -> (Option<Name>, Option<RouteSpec>) {
    let keys = RouteKeys::read(&mut reader, context);
    let cost = CostKeys::read(&mut reader, context);
    // Invalid names are registered too, so that references do not cause a second error.
    let name = keys.name.node.as_ref().and_then(Name::of);
    let path = path::lower(&keys);
    cost.warn_of_unused();
    cost.warn_of_default();
    let used = keys.limits.node.as_ref().map_or_else(|| Some(Vec::new()), |node| used_limits(node, limits));
    check_limits(&keys, &cost, path.as_ref(), used.iter().flatten().filter_map(|index| limits.item(*index)));
    check_limits_of_edits(&keys, used.as_deref(), limits);
    let descriptor = path.as_ref().and_then(descriptors::of);
    if descriptor.is_some() {
        domain::check_keys(&keys, &cost);
    }
    plans.note(keys.plans.node.as_ref(), used.as_deref(), cost.fixed(), descriptor);
    let action = action::lower(&keys, &reader, path.as_ref(), upstreams, context);
    check_timeouts(&keys, server);
    warn_of_on_limit(&keys, used.as_deref());
    warn_of_unused(&keys, action.as_ref(), context);
    let cors = cors_of(&keys, context);
    let rewrite = rewrite::lower(&keys, path.as_ref(), context);
    if action.as_ref().is_some_and(|action| !action.is_forward()) {
        rewrite::warn_unused(&keys);
        messages::warn_unused(keys.messages.node.as_ref());
    }
    edits::check_beside_cors(&keys.response_headers, cors.as_ref().and_then(Option::as_ref));
    let bandwidth = bandwidths.of_route(keys.bandwidth.node.as_ref(), name.as_ref(), action.as_ref());
    reader.done();
    let route = (|| {
        Some(RouteSpec {
            name: name.as_ref()?.text.clone(),
            pattern: RoutePattern {
                hosts: keys.hosts.value.ok()?,
                path: path?,
                methods: keys.methods.value.ok()?,
                headers: keys.headers.value.ok()?,
                allow_encoded_slash: keys.allow_encoded_slash.value.ok()?,
                path_as_received: keys.path_as_received.value.ok()?,
            },
            active: keys.active.value.ok()?,
            priority: keys.priority.value.ok()?,
            collapse: keys.collapse.value.ok()?,
            limits: used?.into_iter().map(|index| limits.item(index).cloned()).collect::<Option<_>>()?,
            cost: cost.bounded().ok()?.unwrap_or(Cost::ONE),
            action: action?,
            on_limit: keys.on_limit.value.ok()?,
            apply_on_stream_done: keys.apply_on_stream_done.value.ok()?,
            timeout: keys.timeout.value.ok()?.or(server.timeout.get().copied())?,
            response_timeout: keys.response_timeout.value.ok()?.or(server.response_timeout.get().copied())?,
            max_body_size: keys.max_body_size.value.ok()?.or(server.max_body_size.get().copied())?,
            capture_body: keys.capture_body.value.ok()?,
            key_body: keys.key_body.value.ok()?,
            cors: cors?,
            edits: edits_of(keys.request_headers, keys.response_headers, rewrite?, keys.host)?,
            refusal: keys.refusal.value.ok()?,
            bandwidth: bandwidth?,
            messages: keys.messages.value.ok()?,
            plans: None,
        })
    })();
    (name, route)
}

/// Warns of a priority by which nothing is refused, and of requests that never meet.
fn warn_of_unused(keys: &RouteKeys<'_>, action: Option<&Action>, context: &Context<'_>) {
    let methods = keys.methods.get().map_or(&[][..], Vec::as_slice);
    collapse::warn_unused(keys.collapse.node.as_ref(), action.is_none_or(Action::is_forward), methods);
    let Some(node) = &keys.priority.node else { return };
    if !context.has_overload {
        node.warning(
            "`priority` has no effect: the file has no [overload]",
            "add [overload] with cpu = \"85%\", or remove it",
        );
    } else if action.is_some_and(|action| !action.is_forward()) {
        node.warning("`priority` has no effect: only requests for servers are shed", "remove it");
    }
}

/// Reports costs that do not fit into the route's limits, and limits that are for other routes than this.
fn check_limits<'l>(
    keys: &RouteKeys<'_>,
    cost: &CostKeys<'_>,
    path: Option<&PathPattern>,
    rules: impl Iterator<Item = &'l Arc<LimitRule>>,
) {
    for rule in rules {
        if rule.cost.is_none() && rule.spec.mode != Mode::Off {
            cost.check_fits(Some(&rule.spec.algorithm), Some(&rule.spec.name));
        }
        if let (Some(node), Some(path)) = (&keys.limits.node, path) {
            descriptors::check_limit(node, rule, descriptors::of(path));
        }
    }
}

#[allow(clippy::option_option, reason = "the outer says whether they could be read, the inner whether there are any")]
fn edits_of(
    request: Key<'_, FieldEdits>,
    response: Key<'_, FieldEdits>,
    rewrite: Option<Rewrite>,
    host: Key<'_, Option<Arc<str>>>,
) -> Option<Option<Box<RouteEdits>>> {
    let (request, response) = (request.value.ok()?, response.value.ok()?);
    let edits = RouteEdits { request, response, rewrite, host: host.value.ok()? };
    Some((edits != RouteEdits::default()).then(|| Box::new(edits)))
}

#[allow(clippy::option_option, reason = "the outer says whether it could be read, the inner what it says")]
fn cors_of(keys: &RouteKeys<'_>, context: &Context<'_>) -> Option<Option<Cors>> {
    let methods = keys.methods.get().map(Vec::as_slice);
    keys.cors.node.as_ref().map_or(Some(None), |node| cors::read(node, methods, context).ok().map(Some))
}

/// Warns of a route that waits longer for a head than for all of the answer.
fn check_timeouts(keys: &RouteKeys<'_>, server: &ServerKeys<'_>) {
    let timeout = keys.timeout.get().and_then(|own| own.or(server.timeout.get().copied()));
    if let (Some(node), Some(Some(own)), Some(timeout)) =
        (&keys.response_timeout.node, keys.response_timeout.get(), timeout)
    {
        doubts::check_response(node, *own, timeout);
    }
}

fn warn_of_on_limit(keys: &RouteKeys<'_>, used: Option<&[usize]>) {
    if let (Some(node), Some(OnLimit::Drop | OnLimit::Defer), Some([])) =
        (&keys.on_limit.node, keys.on_limit.get(), used)
    {
        node.warning("`on_limit` has no effect: the route has no limits", "name them in `limits`, or remove on_limit");
    }
}

/// Reports fields whose values name limits that the route does not have.
fn check_limits_of_edits(keys: &RouteKeys<'_>, used: Option<&[usize]>, limits: &Declared<'_, LimitRule>) {
    // The names of limits that could not be read are not known.
    let Some(used) = used else { return };
    let names: Vec<&str> = used.iter().map(|index| limits.name(*index)).collect();
    edits::check_limits(&keys.request_headers, Scope::Request, &names);
    edits::check_limits(&keys.response_headers, Scope::Response, &names);
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
