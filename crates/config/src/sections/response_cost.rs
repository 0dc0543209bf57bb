//! `cost_from_response` and `cost_by_status` of a limit, and the keys beside them.

use super::cost::{self, CostKeys, MAX_SOURCES, pointer_at};
use crate::findings::{Reported, quoted};
use crate::form::Form;
use crate::kind::{Context, by, each, no_status, word};
use crate::reader::Node;
use crate::section::{Declare, Key, section};
use crate::statuses::StatusCosts;
use crate::token::header_name;
use sluicegate_admission::{CostSource, MissingUsage, OnAbort, ResponseCost};
use sluicegate_limiter::{Algorithm, MAX_COUNT};

section! {
    /// The cost of a request, as its response says it.
    read as ResponseCostKeys {
        /// Where a response says what its request has cost: a header, a value of its JSON, a trailer; of several the sum.
        cost_from_response: Option<ResponseCost> = by(SOURCES, sources, ResponseCost::to_string).or_nothing("none"),
        /// cost_from_response: the cost of a response that breaks off.
        on_abort: OnAbort = word().or("most"),
        /// cost_from_response: the cost of a stream that does not state it.
        missing_usage: MissingUsage = word().or("estimate"),
        /// The costs of requests whose answers have these statuses, whatever else is said.
        cost_by_status: Option<StatusCosts> = by(STATUS_COSTS, by_status, StatusCosts::to_string).or_nothing("none"),
    }
}

/// Where a response states its cost.
const SOURCES: Form = Form::Either(&[SOURCE, Form::List(&SOURCE, 1, MAX_SOURCES)]);

const SOURCE: Form = Form::Text("\"header:NAME\", \"json:/POINTER\" (RFC 6901) or \"trailer:NAME\"");

const STATUS_COSTS: Form =
    Form::Entries("statuses, such as `401`, or classes of them, such as `5xx`", &Form::Whole(0, MAX_COUNT));

impl ResponseCostKeys<'_> {
    /// Whether a response may turn out to have cost less than its request was counted as.
    pub(super) fn gives_back(&self) -> bool {
        self.cost_from_response.node.is_some() || self.cost_by_status.node.is_some()
    }

    /// The cost of a response, checked beside the keys of its estimate.
    pub(super) fn cost(
        &self,
        keys: &CostKeys<'_>,
        algorithm: Option<&Algorithm>,
    ) -> Result<Option<ResponseCost>, Reported> {
        let (on_abort, missing_usage) = (self.on_abort.value?, self.missing_usage.value?);
        let (Some(stated), Some(node)) = (self.cost_from_response.value.clone()?, &self.cost_from_response.node) else {
            self.warn_without();
            return Ok(None);
        };
        if matches!(algorithm, Some(Algorithm::Concurrency(_))) {
            let message = "algorithm = \"concurrency\" holds what is in flight until it ends, whatever it has cost";
            return Err(node.error(message, "remove cost_from_response, or choose another algorithm"));
        }
        let max = keys.max_cost.value?;
        if let Some(algorithm) = algorithm {
            check(node, keys, max, algorithm);
        }
        let stated = ResponseCost { max, on_abort, missing_usage, ..stated };
        if let (Some(node), false) = (&self.missing_usage.node, stated.is_in_body()) {
            node.on_key()
                .warning("`missing_usage` is of costs that a stream states", "remove it, or read the cost by json:");
        }
        if let (Some(node), true) = (&self.on_abort.node, stated.is_in_head()) {
            node.on_key().warning("`on_abort` has no effect: the head of a response states its cost", "remove it");
        }
        Ok(Some(stated))
    }

    /// The costs of statuses.
    pub(super) fn by_status(&self, algorithm: Option<&Algorithm>) -> Result<Option<StatusCosts>, Reported> {
        if let (Key { node: Some(node), value: Ok(Some(_)) }, Some(algorithm)) = (&self.cost_by_status, algorithm) {
            check_by_status(node, algorithm)?;
        }
        self.cost_by_status.value.clone()
    }

    /// Warns of keys that say how a response's cost is read, where none is.
    fn warn_without(&self) {
        for node in [&self.on_abort.node, &self.missing_usage.node].into_iter().flatten() {
            let message = format!("{} is of `cost_from_response`", node.label());
            node.on_key().warning(message, "write cost_from_response beside it, or remove it");
        }
    }
}

/// Warns of what can hardly be meant beside a cost that the response states.
fn check(node: &Node<'_>, keys: &CostKeys<'_>, max: u64, algorithm: &Algorithm) {
    let most = algorithm.largest_charge();
    match (algorithm, &keys.max_cost.node) {
        (Algorithm::WarmUp(_), _) => node.warning(
            "algorithm = \"warm-up\" gives no quota back: only a request that turns out dearer than its `cost` is corrected",
            "choose another algorithm, or a `cost` that is never above the real one",
        ),
        (Algorithm::LeakyBucket(_) | Algorithm::SmoothBursty(_), None) => node.warning(
            "one response that states a large cost makes its key wait for as long as that takes at the rate",
            "set max_cost to the most that a request may cost",
        ),
        (_, Some(max_node)) if max > most => max_node.warning(
            format!("no more than {most} is ever counted of what a response states"),
            format!("set max_cost = {most}, or a larger rate or burst"),
        ),
        _ => {}
    }
    if let (Some(cost), Some(max_node)) = (keys.fixed().filter(|cost| *cost > max), &keys.max_cost.node) {
        let message =
            format!("`cost` = {cost} is the estimate, and no response is believed that states more than {max}");
        max_node.warning(message, format!("set max_cost to {cost} or more, or a smaller cost"));
    }
}

/// `cost_from_response`. A rule between keys sets the most that is believed.
fn sources(node: &Node<'_>, _: &Context<'_>) -> Result<ResponseCost, Reported> {
    let sources = cost::sources(node, "\"json:/usage/total_tokens\"", source)?;
    Ok(ResponseCost {
        sources: sources.into(),
        max: MAX_COUNT,
        on_abort: OnAbort::default(),
        missing_usage: MissingUsage::default(),
    })
}

/// One place in a response.
fn source(node: &Node<'_>) -> Result<CostSource, Reported> {
    let text = node.string("a source in quotes", "\"json:/usage/total_tokens\"")?;
    match text.split_once(':') {
        Some(("header", name)) => Ok(CostSource::Header(header_name(node, name)?.into())),
        Some(("trailer", name)) => Ok(CostSource::Trailer(header_name(node, name)?.into())),
        Some(("json", pointer)) => pointer_at(node, pointer).map(CostSource::Json),
        _ => {
            let help = "write \"header:NAME\", \"json:/POINTER\" or \"trailer:NAME\"";
            Err(node.error(format!("invalid source of a cost {}", quoted(text)), help))
        }
    }
}

/// Most statuses of one key.
const MAX_STATUSES: usize = 32;

/// `cost_by_status = { 5xx = 0, 401 = 5 }`.
fn by_status(node: &Node<'_>, _: &Context<'_>) -> Result<StatusCosts, Reported> {
    let reader = node.inner("`cost_by_status`", "{ 5xx = 0, 401 = 5 }")?;
    let members: Vec<_> = reader.entries().collect();
    if members.is_empty() || members.len() > MAX_STATUSES {
        let message = format!("{} has {} statuses", node.label(), members.len());
        return Err(node.error(message, format!("give 1 to {MAX_STATUSES}")));
    }
    let costs = each(&members, |member| {
        let cost = member.count(&(0..=MAX_COUNT))?;
        StatusCosts::parse(&[(member.label(), cost)]).map(|_| cost).map_err(|text| no_status(member, text))
    })?;
    let costs: Vec<_> = members.iter().map(Node::label).zip(costs).collect();
    StatusCosts::parse(&costs).map_err(|text| no_status(node, text))
}

/// Reports one beside an algorithm for which answers come too late.
fn check_by_status(node: &Node<'_>, algorithm: &Algorithm) -> Result<(), Reported> {
    if !matches!(algorithm, Algorithm::Concurrency(_)) {
        return Ok(());
    }
    let message = "algorithm = \"concurrency\" holds what is in flight until it ends, whatever its status is";
    Err(node.error(message, "remove cost_by_status, or choose another algorithm"))
}
