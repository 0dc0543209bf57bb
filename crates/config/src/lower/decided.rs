//! The routes that a listener decides for others.

use super::LoweredRules;
use crate::findings::{Finding, quoted};
use crate::reader::Node;

/// Reports those that a listener names in these arrays and that are not there, or that cannot be decided for others. Rules
/// that are not known yet may have them.
pub(super) fn check(decided: Vec<Node<'_>>, rules: &LoweredRules, are_known: bool) {
    if !are_known {
        return;
    }
    for item in decided.into_iter().flat_map(Node::one_or_many) {
        let Some(name) = item.as_text() else { continue };
        let Some(route) = rules.routes.iter().find(|route| *route.name == *name) else {
            let finding = Finding::absent_in_file(Some(item.span()), format!("there is no route {}", quoted(name)));
            item.push(finding.help("name a [[route]] of this file"));
            continue;
        };
        if let Some(why) = route.why_undecidable(&rules.plan_limits) {
            let message = format!("the route {} cannot be decided for others: {why}", quoted(name));
            let help =
                "it needs the exchange itself: leave it to a listener that proxies, or give the route other limits";
            item.error(message, help);
        }
    }
}
