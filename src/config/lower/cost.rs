//! `cost` and `max_cost`, of a limit or of a route, and `cost_from_response` of a limit.

use super::limit::{self, COSTS, Largest};
use crate::admission::{Cost, ResponseCost};
use crate::config::findings::quoted;
use crate::config::nearest::nearest;
use crate::config::reader::{Node, Reader};
use crate::config::token::header_name;
use crate::limiter::{Algorithm, MAX_COUNT};

/// What one request costs, and where it is said.
#[allow(clippy::option_option, reason = "the outer says whether it could be read, the inner what it says")]
pub(super) struct Written<'t> {
    /// The outer says whether it could be read, the inner what it says.
    cost: Option<Option<Cost>>,
    cost_node: Option<Node<'t>>,
    max_node: Option<Node<'t>>,
}

/// Lowers both keys of a table.
pub(super) fn lower<'t>(reader: &mut Reader<'t>) -> Written<'t> {
    let (max_node, max) = max_cost(reader);
    let written = written(reader, max_node, max);
    if let (Some(node), Some(None | Some(Cost::Fixed(_)))) = (&written.max_node, &written.cost) {
        node.warning(
            "`max_cost` has no effect: it bounds a `cost` that each request states",
            "write cost = \"header:NAME\" or \"content-length\" beside it, or remove max_cost",
        );
    }
    written
}

/// Lowers all three keys of a limit; of the response's cost the outer says whether it could be read, the inner what it
/// says.
#[allow(clippy::option_option, reason = "the outer says whether it could be read, the inner what it says")]
pub(super) fn lower_with_response<'t>(
    reader: &mut Reader<'t>,
    algorithm: Option<&Algorithm>,
) -> (Written<'t>, Option<Option<ResponseCost>>) {
    let Some(node) = reader.optional("cost_from_response") else { return (lower(reader), Some(None)) };
    let (max_node, max) = max_cost(reader);
    let response = of_response(&node, max, algorithm);
    let written = written(reader, max_node, max);
    if let (Some(_), Some(algorithm)) = (&response, algorithm) {
        check_response(&node, &written, max.unwrap_or(MAX_COUNT), algorithm);
    }
    (written, response.map(Some))
}

/// Warns of what can hardly be meant beside a cost that the response states.
fn check_response(node: &Node<'_>, written: &Written<'_>, max: u64, algorithm: &Algorithm) {
    let most = algorithm.largest_charge();
    match (algorithm, &written.max_node) {
        (Algorithm::WarmUp(_), _) => node.warning(
            "algorithm = \"warm-up\" gives nothing back: only what turns out dearer than its `cost` is corrected",
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
    if let (Some(cost), Some(max_node)) = (written.fixed().filter(|cost| *cost > max), &written.max_node) {
        let message =
            format!("`cost` = {cost} is the estimate, and no response is believed that states more than {max}");
        max_node.warning(message, format!("set max_cost to {cost} or more, or a smaller cost"));
    }
}

impl Written<'_> {
    /// What was said, if it could be read.
    #[allow(clippy::option_option, reason = "the outer says whether it could be read, the inner what it says")]
    pub(super) fn cost(&self) -> Option<Option<Cost>> {
        self.cost.clone()
    }

    /// The cost of every request, where all cost the same: 1 if nothing is said. `None` if each states its own.
    pub(super) fn fixed(&self) -> Option<u64> {
        match self.cost.as_ref()? {
            None => Some(1),
            Some(Cost::Fixed(cost)) => Some(*cost),
            Some(_) => None,
        }
    }

    /// Reports a cost that no window of the limit can hold, and a bound that lets such costs be stated. `limit` is its
    /// name where the cost is the route's.
    pub(super) fn check_fits(&self, algorithm: Option<&Algorithm>, limit: Option<&str>) {
        match (&self.cost, &self.cost_node, &self.max_node) {
            (Some(Some(Cost::Fixed(cost))), Some(node), _) => limit::check_fits(node, *cost, algorithm, limit),
            (Some(Some(Cost::Header { max, .. } | Cost::ContentLength { max })), _, Some(node)) => {
                check_bound(node, *max, algorithm, limit);
            }
            _ => {}
        }
    }
}

fn max_cost<'t>(reader: &mut Reader<'t>) -> (Option<Node<'t>>, Option<u64>) {
    let node = reader.optional("max_cost");
    let max = node.as_ref().map_or(Some(MAX_COUNT), |node| node.integer(COSTS));
    (node, max)
}

fn written<'t>(reader: &mut Reader<'t>, max_node: Option<Node<'t>>, max: Option<u64>) -> Written<'t> {
    let cost_node = reader.optional("cost");
    let cost = match &cost_node {
        Some(node) => cost(node, max).map(Some),
        // A bound that could not be read is an error already; nothing else hangs on it.
        None => Some(None),
    };
    Written { cost, cost_node, max_node }
}

fn of_response(node: &Node<'_>, max: Option<u64>, algorithm: Option<&Algorithm>) -> Option<ResponseCost> {
    let text = node.text("a header in quotes", "\"header:x-cost\"")?;
    let Some(name) = text.strip_prefix("header:") else {
        let message = format!("{} is no header of a response", quoted(text));
        node.error(message, "write cost_from_response = \"header:NAME\"");
        return None;
    };
    let name = header_name(node, name).ok()?;
    if matches!(algorithm, Some(Algorithm::Concurrency(_))) {
        node.error(
            "algorithm = \"concurrency\" holds what is in flight until it ends, whatever it has cost",
            "remove cost_from_response, or choose another algorithm",
        );
        return None;
    }
    Some(ResponseCost { name: name.into(), max: max? })
}

fn cost(node: &Node<'_>, max: Option<u64>) -> Option<Cost> {
    match node.as_text() {
        None => node.integer(COSTS).map(Cost::Fixed),
        Some("content-length") => max.map(|max| Cost::ContentLength { max }),
        Some(text) => {
            let Some(name) = text.strip_prefix("header:") else {
                let help = match nearest(text, ["content-length", "header:NAME"]) {
                    Some(near) => format!("did you mean \"{near}\"?"),
                    None => "write a whole number, \"header:NAME\" or \"content-length\"".to_owned(),
                };
                node.error(format!("{} is no cost", quoted(text)), help);
                return None;
            };
            let name = header_name(node, name).ok()?;
            max.map(|max| Cost::Header { name: name.into(), max })
        }
    }
}

/// Warns of a bound above what the limit admits: what is stated between the two is refused, where the bound was surely
/// meant to let it in.
fn check_bound(node: &Node<'_>, max: u64, algorithm: Option<&Algorithm>, limit: Option<&str>) {
    let Some(Largest { cost: most, what, .. }) = algorithm.map(limit::largest).filter(|largest| max > largest.cost)
    else {
        return;
    };
    let of = limit.map(|name| format!(" of the limit {}", quoted(name))).unwrap_or_default();
    let message = format!("a cost above {most} never fits into {what}{of}: such requests are refused");
    let help = format!("set max_cost = {most} to let them take all of it, or leave max_cost out to refuse them");
    node.warning(message, help);
}
