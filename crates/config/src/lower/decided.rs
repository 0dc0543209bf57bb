//! The routes that a listener decides for others.

use super::{LoweredRules, descriptors};
use crate::findings::{Finding, quoted};
use crate::reader::Node;
use crate::sections::decides::Decides;

/// Reports those that a listener names in these arrays and that are not there, or that cannot be decided for others. Rules
/// that are not known yet may have them.
pub(super) fn check(decided: Vec<(Decides, Node<'_>)>, rules: &LoweredRules, are_known: bool) {
    if !are_known {
        return;
    }
    let items =
        decided.into_iter().flat_map(|(kind, node)| node.one_or_many().into_iter().map(move |item| (kind, item)));
    for (kind, item) in items {
        let Some(name) = item.as_text() else { continue };
        let Some(route) = rules.routes.iter().find(|route| *route.name == *name) else {
            let finding = Finding::absent_in_file(Some(item.span()), format!("there is no route {}", quoted(name)));
            item.push(finding.help("name a [[route]] of this file"));
            continue;
        };
        if (kind == Decides::EnvoyRls) != descriptors::of(&route.pattern.path).is_some() {
            let (is_for, help) = if kind == Decides::EnvoyRls {
                (
                    "requests",
                    "name routes with `domain`: a listener with decides = \"envoy-rls\" is asked about descriptors",
                )
            } else {
                ("descriptors", "name it in a listener with decides = \"envoy-rls\"")
            };
            item.error(format!("the route {} is for {is_for}", quoted(name)), help);
            continue;
        }
        if let Some(why) = route.why_undecidable(&rules.plan_limits) {
            let message = format!("the route {} cannot be decided for others: {why}", quoted(name));
            let help =
                "it needs the exchange itself: leave it to a listener that proxies, or give the route other limits";
            item.error(message, help);
        }
    }
}
