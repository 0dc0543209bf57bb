//! `cost` and `max_cost`, of a limit or of a route.

use std::ops::RangeInclusive;

use crate::findings::{Reported, quoted};
use crate::form::Form;
use crate::kind::{Context, by, count};
use crate::nearest::nearest;
use crate::reader::Node;
use crate::section::{Declare, section};
use crate::token::header_name;
use sluicegate_admission::Cost;
use sluicegate_limiter::{Algorithm, MAX_COUNT};

section! {
    /// The cost of a request, as a limit or a route says it.
    read as CostKeys {
        /// A number, or where each request says it: "header:NAME" or "content-length".
        cost: Option<Cost> = by(COST, cost, Cost::to_string).or_nothing("the route's").told("of a limit the route's; of a route 1"),
        /// The most that is believed of what a message says.
        max_cost: u64 = count(COSTS).or("1000000000000"),
    }
}

const COST: Form = Form::Either(&[Form::Whole(1, MAX_COUNT), Form::Text("\"header:NAME\" or \"content-length\"")]);

/// A request costs so much.
const COSTS: RangeInclusive<u64> = 1..=MAX_COUNT;

impl CostKeys<'_> {
    /// The cost with its bound, if it could be read.
    pub(crate) fn bounded(&self) -> Result<Option<Cost>, Reported> {
        // A bound that could not be read is an error already; a fixed cost does not hang on it.
        Ok(match self.cost.value.clone()? {
            Some(Cost::Header { name, max: _ }) => Some(Cost::Header { name, max: self.max_cost.value? }),
            Some(Cost::ContentLength { max: _ }) => Some(Cost::ContentLength { max: self.max_cost.value? }),
            other => other,
        })
    }

    /// The cost of every request, where all cost the same: 1 if nothing is said. `None` if each states its own.
    pub(crate) fn fixed(&self) -> Option<u64> {
        match self.bounded().ok()? {
            None => Some(1),
            Some(Cost::Fixed(cost)) => Some(cost),
            Some(_) => None,
        }
    }

    /// Warns of a bound where no message says a cost.
    pub(crate) fn warn_of_unused(&self) {
        if let (Some(node), Ok(None | Some(Cost::Fixed(_)))) = (&self.max_cost.node, self.bounded()) {
            let help = "write cost = \"header:NAME\" or \"content-length\" beside it, or remove max_cost";
            node.warning("`max_cost` has no effect: it bounds a `cost` that each request states", help);
        }
    }

    /// Reports a cost that no window of the limit can hold, and a bound that lets such costs be stated. `limit` is its
    /// name where the cost is the route's.
    pub(crate) fn check_fits(&self, algorithm: Option<&Algorithm>, limit: Option<&str>) {
        match (self.bounded(), &self.cost.node, &self.max_cost.node) {
            (Ok(Some(Cost::Fixed(cost))), Some(node), _) => check_fits(node, cost, algorithm, limit),
            (Ok(Some(Cost::Header { max, .. } | Cost::ContentLength { max })), _, Some(node)) => {
                check_bound(node, max, algorithm, limit);
            }
            _ => {}
        }
    }
}

/// A rule between keys sets the most that is believed.
fn cost(node: &Node<'_>, _: &Context<'_>) -> Result<Cost, Reported> {
    match node.as_text() {
        None => node.count(&COSTS).map(Cost::Fixed),
        Some("content-length") => Ok(Cost::ContentLength { max: MAX_COUNT }),
        Some(text) => {
            let Some(name) = text.strip_prefix("header:") else {
                let help = match nearest(text, ["content-length", "header:NAME"]) {
                    Some(near) => format!("did you mean \"{near}\"?"),
                    None => "write a whole number, \"header:NAME\" or \"content-length\"".to_owned(),
                };
                return Err(node.error(format!("invalid cost {}", quoted(text)), help));
            };
            Ok(Cost::Header { name: header_name(node, name)?.into(), max: MAX_COUNT })
        }
    }
}

/// Warns of a bound above what the limit admits: what is stated between the two is refused, where the bound was surely
/// meant to let it in.
fn check_bound(node: &Node<'_>, max: u64, algorithm: Option<&Algorithm>, limit: Option<&str>) {
    let Some(Largest { cost: most, what, .. }) = algorithm.map(largest).filter(|largest| max > largest.cost) else {
        return;
    };
    let of = limit.map(|name| format!(" of the limit {}", quoted(name))).unwrap_or_default();
    let message = format!("a cost above {most} never fits into {what}{of}: such requests are refused");
    let help = format!("set max_cost = {most} to let them take all of it, or leave max_cost out to refuse them");
    node.warning(message, help);
}

/// Reports a cost that the limit never admits. `limit` is its name where the cost is the route's.
pub(crate) fn check_fits(node: &Node<'_>, cost: u64, algorithm: Option<&Algorithm>, limit: Option<&str>) {
    let Some(Largest { cost: most, what, raise }) = algorithm.map(largest) else { return };
    if cost > most {
        let of = limit.map(|name| format!(" of the limit {}", quoted(name))).unwrap_or_default();
        let message = format!("a cost of {cost} never fits into {what}{of}: every request would be refused");
        node.error(message, format!("lower the cost to at most {most}, or raise {raise}"));
    }
}

/// The largest cost that a limit admits.
struct Largest {
    cost: u64,
    /// The bound that it has to fit into.
    what: String,
    /// The setting that would let more in.
    raise: &'static str,
}

/// All rates must hold, so the smallest decides.
fn largest(algorithm: &Algorithm) -> Largest {
    let cost = algorithm.largest_cost();
    let tightest = || {
        let rates = algorithm.rates().iter().enumerate();
        rates.min_by_key(|(_, rate)| rate.limit()).map(|(index, _)| algorithm.rate_text(index))
    };
    let (what, raise) = match algorithm {
        Algorithm::TokenBucket(_) | Algorithm::Gcra(_) => (format!("a burst of {cost}"), "the burst"),
        Algorithm::Concurrency(_) => (format!("a max_in_flight of {cost}"), "max_in_flight"),
        Algorithm::SlidingWindow(_) => (format!("a slot_limit of {cost}"), "slot_limit"),
        Algorithm::LeakyBucket(_) | Algorithm::SmoothBursty(_) | Algorithm::WarmUp(_) => {
            ("a hundred years".to_owned(), "the rate")
        }
        _ => (format!("the rate {}", tightest().unwrap_or_default()), "the rate"),
    };
    Largest { cost, what, raise }
}
