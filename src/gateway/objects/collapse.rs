//! `collapse` of a route.

use std::sync::Arc;

use crate::admission::KeyExpr;
use crate::collapse::RequestRules;
use crate::config::{Action, CollapseRules, RouteSpec};
use crate::proxy::RouteCollapse;

/// The table of a route's equal requests. Headers by which the gateway itself tells clients apart (keys of limits and plans, turns
/// at the upstream) tell requests apart as well, and so do those that the route sets to something else for each.
pub(super) fn make(spec: &RouteSpec) -> Option<Arc<RouteCollapse>> {
    let (CollapseRules { headers, max_body }, Action::Forward(upstream)) = (spec.collapse.as_ref()?, &spec.action)
    else {
        return None;
    };
    let limits = spec.limits.iter().map(|limit| &limit.key);
    let plans = spec.plans.iter().map(|plans| plans.keys().key());
    let keys = limits.chain(plans).chain([&upstream.fair_key, &upstream.hash_key]);
    let told_apart = keys.flat_map(KeyExpr::headers).map(Box::from);
    let written = spec.edits.iter().flat_map(|edits| edits.request.written());
    let varying = written.filter(|(_, value)| value.fixed().is_none()).map(|(name, _)| Box::from(name));
    let rules = RequestRules::new(headers, told_apart.chain(varying));
    Some(Arc::new(RouteCollapse { table: Arc::default(), rules, max_body: *max_body }))
}
