//! `renews` of a limit, and of the keys of plans files.

use std::sync::Arc;

use super::rate_from::proxy_field;
use crate::findings::Reported;
use crate::kind::Context;
use crate::model::LimitRule;
use crate::reader::Node;
use sluicegate_limiter::Algorithm;

/// Reads the name of the field.
pub(super) fn read(node: &Node<'_>, context: &Context<'_>) -> Result<Arc<str>, Reported> {
    proxy_field(node, context, ("renews", "a day"), "\"header:x-renews\"")
}

/// Whether a limit counts by months of a calendar.
pub(crate) fn has_months(algorithm: &Algorithm) -> bool {
    matches!(algorithm, Algorithm::FixedWindow(window) if window.has_months())
}

/// Why the months of a limit cannot begin on a day of each key, and the remedy; `None`: they can.
pub(crate) fn obstacle(is_shared: bool, counts_later: bool) -> Option<(&'static str, &'static str)> {
    if is_shared {
        return Some(("is shared: the store knows one month for all keys", "remove `shared`"));
    }
    counts_later.then_some(("counts when the answer is known, which does not say the day", "remove `count_when`"))
}

/// The same of a limit that is lowered.
pub(crate) fn obstacle_of(rule: &LimitRule) -> Option<(&'static str, &'static str)> {
    obstacle(rule.spec.sharing.is_some(), rule.count_when.is_some())
}

/// Reports one beside keys with which it would do nothing, or not what it says.
pub(super) fn check(
    node: &Node<'_>,
    algorithm: &Algorithm,
    (is_shared, counts_later): (bool, bool),
) -> Result<(), Reported> {
    if !has_months(algorithm) {
        let message = "`renews` of a limit that counts by no month of a calendar";
        return Err(node
            .error(message, "write rate = \"1000/month\" with algorithm = \"fixed-window\" and align = \"calendar\""));
    }
    match obstacle(is_shared, counts_later) {
        Some((why, help)) => Err(node.error(format!("`renews` of a limit that {why}"), format!("{help}, or renews"))),
        None => Ok(()),
    }
}
