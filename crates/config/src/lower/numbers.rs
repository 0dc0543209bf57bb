//! Other numbers of a limit than its own: of a plan, or of a single key.

use std::ops::Range;

use toml::Spanned;
use toml::de::DeTable;

use crate::findings::{Findings, Reported};
use crate::kind::Context;
use crate::model::LimitRule;
use crate::reader::{Node, Reader};
use crate::sections::algorithm::{self, Counting};
use crate::sections::{cost, doubts, limit, rate_from};
use sluicegate_admission::Cost;
use sluicegate_limiter::{LimitSpec, Mode};

/// The parts that may differ: numbers, and whether they hold.
pub(super) const NUMBERS: [&str; 13] = [
    "burst",
    "cold_factor",
    "max_burst_seconds",
    "max_in_flight",
    "max_queue",
    "max_wait",
    "max_waiting",
    "min_difference",
    "mode",
    "rate",
    "slot_limit",
    "slots",
    "warm_up",
];

/// Other settings of a limit.
pub(super) const SAME_IN_ALL: [&str; 34] = [
    "active",
    "adaptive",
    "algorithm",
    "align",
    "bound",
    "cost",
    "cost_by_status",
    "cost_from_response",
    "count_refused",
    "count_when",
    "default_cost",
    "exempt",
    "key",
    "key_is_secret",
    "max_cost",
    "max_keys",
    "missing_usage",
    "name",
    "on_abort",
    "on_full",
    "on_missing_key",
    "overshoot",
    "penalty",
    "rate_from",
    "refill",
    "refusal",
    "renews",
    "retry_after_jitter",
    "retry_after_max",
    "shared",
    "status",
    "timeout",
    "week_start",
    "zone",
];

/// The settings of a limit with others in their place. A number that the others do not give is the limit's, and messages about
/// it stand `at` the place that names it.
pub(super) fn merged<'t>(own: &DeTable<'t>, base: &DeTable<'t>, at: &Range<usize>) -> DeTable<'t> {
    let mut merged = DeTable::new();
    for key in algorithm::inherited().filter(|key| !own.contains_key(*key)) {
        if let Some(value) = base.get(key) {
            merged.insert(Spanned::new(at.clone(), key.into()), Spanned::new(at.clone(), value.get_ref().clone()));
        }
    }
    for (key, value) in own {
        merged.insert(key.clone(), value.clone());
    }
    merged
}

/// The parameters of a limit with merged settings. `costs` are those of requests on the routes that use it.
pub(super) fn read(
    merged: &DeTable<'_>,
    entry: &Node<'_>,
    rule: &LimitRule,
    costs: Vec<u64>,
    (context, findings): (&Context<'_>, &Findings),
) -> Result<LimitSpec, Reported> {
    let mut reader = Reader::new(format!("`{}`", entry.label()), merged, entry.key_span(), findings);
    let Counting { algorithm, place, mode, max_wait, max_queue } = algorithm::read(&mut reader, context);
    let costs = match &rule.cost {
        None => costs,
        Some(Cost::Fixed(cost)) => vec![*cost],
        Some(_) => Vec::new(),
    };
    if let (Some(place), Ok(Mode::Enforce | Mode::Shadow), Some(most)) = (&place, mode, costs.iter().max()) {
        cost::check_fits(place, *most, algorithm.as_ref().ok(), None);
        if let (Ok(algorithm), Ok(wait)) = (&algorithm, max_wait.value) {
            doubts::check_turns(max_wait.node.as_ref().unwrap_or(place), algorithm, wait, *most);
        }
    }
    if let (Some(sharing), Ok(algorithm)) = (rule.spec.sharing, &algorithm) {
        limit::check_shared(entry, algorithm, sharing)?;
    }
    let (max_wait, max_queue) = (max_wait.value?, max_queue?);
    if let (Some(_), Ok(algorithm)) = (&rule.rate_from, &algorithm) {
        rate_from::check(entry, algorithm, max_wait, None)?;
    }
    Ok(LimitSpec { algorithm: algorithm?, mode: mode?, max_wait, max_queue, ..rule.spec.clone() })
}
