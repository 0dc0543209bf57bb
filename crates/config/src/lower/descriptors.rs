//! Routes with `domain`: they are for descriptors that Envoy's rate limit service is asked about, and for no request.

use crate::findings::{Finding, quoted};
use crate::model::{LimitRule, PlanLimit, RouteSpec};
use crate::names::Declared;
use crate::reader::Node;
use sluicegate_admission::{DescriptorPattern, KeyExpr, PathPattern};

/// Reports a limit that the descriptors of a route cannot be held to, or, without a pattern, one for descriptors.
pub(super) fn check_limit(node: &Node<'_>, rule: &LimitRule, pattern: Option<&DescriptorPattern>) {
    let limit = quoted(&rule.spec.name);
    if check_key(node, &format!("the limit {limit}"), &rule.key, pattern) && pattern.is_some() {
        let of_requests = [
            (rule.cost.is_some(), "has `cost`"),
            (rule.rate_from.is_some(), "has `rate_from`"),
            (rule.renews.is_some(), "has `renews`"),
        ];
        let what = of_requests.into_iter().find_map(|(is_so, what)| is_so.then_some(what));
        if let Some(what) = what.or_else(|| rule.why_not_by_key()) {
            let message = format!("the limit {limit} {what}, which needs a request, in a route with `domain`");
            node.error(message, "give the route another limit: the cost of a descriptor is its `hits_addend`");
        }
    }
}

/// Reports a key that such descriptors do not have, or, without a pattern, that only descriptors have. Whether it is sound.
pub(super) fn check_key(node: &Node<'_>, owner: &str, key: &KeyExpr, pattern: Option<&DescriptorPattern>) -> bool {
    let Some(pattern) = pattern else {
        let Some(entry) = key.descriptor_entries().next() else { return true };
        let message = format!("{owner} counts by \"descriptor:{entry}\", which no request has");
        node.error(message, "use it in routes with `domain` and `descriptors`, or give it another key");
        return false;
    };
    if let Some(part) = key.part_of_a_request() {
        let message = format!("{owner} counts by \"{part}\", which no descriptor has");
        let help = "write key = \"descriptor:remote_address\" for the client's address, \"descriptor:NAME\" for another entry, \
                    or \"global\"";
        node.error(message, help);
        return false;
    }
    if let Some(entry) = key.descriptor_entries().find(|entry| !pattern.has_entry(entry)) {
        let message = format!("{owner} counts by \"descriptor:{entry}\", which is not among `descriptors`");
        node.error(message, format!("add {entry} = \"*\" to `descriptors`, or give the limit another key"));
        return false;
    }
    true
}

/// Reports routes for descriptors that cannot be decided for others: with the numbers of plans too.
pub(super) fn check_plans(routes: &Declared<'_, RouteSpec>, plans: &[PlanLimit]) {
    for (name, route) in routes.each() {
        if of(&route.pattern.path).is_some()
            && let Some(why) = route.why_undecidable(plans)
        {
            let message = format!("the descriptors of the route {} cannot be decided: {why}", quoted(&name.text));
            let finding = Finding::error(name.span.clone(), message);
            routes.findings().push(finding.help("it needs the exchange itself: give the route other limits"));
        }
    }
}

/// Warns of routes for descriptors where no listener is asked about any.
pub(super) fn warn_unasked(routes: &Declared<'_, RouteSpec>) {
    for (name, _) in routes.each().filter(|(_, route)| of(&route.pattern.path).is_some()) {
        let message = format!("no listener is asked about the descriptors of the route {}", quoted(&name.text));
        let finding = Finding::warning(name.span.clone(), message);
        routes.findings().push(finding.help("add a [[listener]] with decides = \"envoy-rls\""));
    }
}

/// The descriptors that it is for, if it is for some.
pub(super) fn of(path: &PathPattern) -> Option<&DescriptorPattern> {
    match path {
        PathPattern::Descriptor(descriptor) => Some(descriptor),
        _ => None,
    }
}
