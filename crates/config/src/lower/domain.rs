//! `domain` of a route and its other keys beside it.

use crate::reader::Node;
use crate::sections::cost::CostKeys;
use crate::sections::route::RouteKeys;
use sluicegate_admission::{DescriptorPattern, PathPattern};

/// The descriptors of a route with `domain` or `descriptors`; the inner `None`: it is a route for requests.
#[allow(clippy::option_option, reason = "the outer says whether they could be read, the inner whether there are any")]
pub(super) fn lower(keys: &RouteKeys<'_>) -> Option<Option<PathPattern>> {
    let lacks = |node: &Node<'_>, other: &str, help: &str| {
        node.on_key().error(format!("{} without `{other}`", node.label()), help);
        None
    };
    match (&keys.domain.node, &keys.descriptors.node) {
        (None, None) => {
            if let Some(node) = &keys.apply_on_stream_done.node {
                return lacks(node, "domain", "it is for routes with `domain` and `descriptors`");
            }
            Some(None)
        }
        (Some(node), None) => lacks(node, "descriptors", "add descriptors = { generic_key = \"login\" }"),
        (None, Some(node)) => lacks(node, "domain", "add domain = \"edge\", as `domain` of Envoy's filter says it"),
        (Some(_), Some(_)) => {
            let (domain, entries) = (keys.domain.get()?.as_ref()?, keys.descriptors.get()?);
            Some(Some(PathPattern::Descriptor(DescriptorPattern::new(domain.to_string(), entries.clone()))))
        }
    }
}

/// Reports the keys that are about requests.
pub(super) fn check_keys(keys: &RouteKeys<'_>, cost: &CostKeys<'_>) {
    let of_requests = [
        &keys.hosts.node,
        &keys.path.node,
        &keys.path_exact.node,
        &keys.path_regex.node,
        &keys.methods.node,
        &keys.headers.node,
        &keys.allow_encoded_slash.node,
        &keys.path_as_received.node,
        &keys.upstream.node,
        &keys.respond.node,
        &keys.redirect.node,
        &keys.timeout.node,
        &keys.response_timeout.node,
        &keys.max_body_size.node,
        &keys.key_body.node,
        &keys.capture_body.node,
        &keys.cors.node,
        &keys.request_headers.node,
        &keys.response_headers.node,
        &keys.rewrite.node,
        &keys.host.node,
        &keys.refusal.node,
        &keys.bandwidth.node,
        &keys.messages.node,
        &cost.cost.node,
        &cost.max_cost.node,
        &cost.default_cost.node,
    ];
    for node in of_requests.into_iter().flatten() {
        let message = format!("{} in a route with `domain`", node.label());
        let help = "remove it: a descriptor says what is counted, its `hits_addend` how much, and the proxy acts on the answer";
        node.on_key().error(message, help);
    }
}
