//! `cost` and `max_cost`, of a limit or of a route.

use std::num::NonZeroU64;
use std::ops::RangeInclusive;

use crate::findings::{Reported, quoted};
use crate::form::Form;
use crate::kind::{Context, by, count, each};
use crate::nearest::nearest;
use crate::reader::Node;
use crate::section::{Declare, section};
use crate::token::header_name;
use sluicegate_admission::{BodyField, Cost, CostPlace, StatedCost};
use sluicegate_json::JsonPointer;
use sluicegate_limiter::{Algorithm, MAX_COUNT};

section! {
    /// The cost of a request, as a limit or a route says it.
    read as CostKeys {
        /// A number, or where each request says it: a header, the length of its body, a value of its JSON; of several the sum.
        cost: Option<Cost> = by(COST, cost, Cost::to_string).or_nothing("the route's").told("of a limit the route's; of a route 1"),
        /// The most that is believed of what a message says.
        max_cost: u64 = count(COSTS).or("1000000000000"),
        /// The cost of a request that does not say it.
        default_cost: u64 = count(COSTS).or("1"),
    }
}

const COST: Form = Form::Either(&[Form::Whole(1, MAX_COUNT), PLACE, Form::List(&PLACE, 1, MAX_SOURCES)]);

const PLACE: Form = Form::Text("\"header:NAME\", \"content-length\", \"content-length/BYTES\" or \"json:/POINTER\"");

/// The most sources of one cost.
pub(super) const MAX_SOURCES: usize = 8;

/// The most bytes of a body that may cost 1.
const MAX_PART: u64 = 1 << 30;

/// A request costs so much.
const COSTS: RangeInclusive<u64> = 1..=MAX_COUNT;

impl CostKeys<'_> {
    /// The cost with its bound, if it could be read.
    pub(crate) fn bounded(&self) -> Result<Option<Cost>, Reported> {
        // A bound that could not be read is an error already; a fixed cost does not hang on it.
        Ok(match self.cost.value.clone()? {
            Some(Cost::Stated(StatedCost { places, .. })) => {
                Some(Cost::Stated(StatedCost { places, max: self.max_cost.value?, default: self.default_cost.value? }))
            }
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

    /// Warns of a default where all requests cost the same.
    pub(crate) fn warn_of_default(&self) {
        if let (Some(node), Ok(None | Some(Cost::Fixed(_)))) = (&self.default_cost.node, self.bounded()) {
            let help = "write cost = \"json:/POINTER\", \"header:NAME\" or \"content-length\" beside it, or remove default_cost";
            node.warning("`default_cost` has no effect: it is of requests that do not say their `cost`", help);
        }
    }

    /// Reports a cost that no window of the limit can hold, and a bound that lets such costs be stated. `limit` is its
    /// name where the cost is the route's.
    pub(crate) fn check_fits(&self, algorithm: Option<&Algorithm>, limit: Option<&str>) {
        match (self.bounded(), &self.cost.node) {
            (Ok(Some(Cost::Fixed(cost))), Some(node)) => check_fits(node, cost, algorithm, limit),
            (Ok(Some(Cost::Stated(StatedCost { max, default, .. }))), _) => {
                if let Some(node) = &self.max_cost.node {
                    check_bound(node, max, algorithm, limit);
                }
                if let Some(node) = &self.default_cost.node {
                    check_fits(node, default, algorithm, limit);
                }
            }
            _ => {}
        }
    }
}

/// Rules between keys set the most that is believed, and the default.
fn cost(node: &Node<'_>, _: &Context<'_>) -> Result<Cost, Reported> {
    if !node.is_array() && node.as_text().is_none() {
        return node.count(&COSTS).map(Cost::Fixed);
    }
    let places = sources(node, "\"json:/max_tokens\"", place)?.into();
    Ok(Cost::Stated(StatedCost { places, max: MAX_COUNT, default: 1 }))
}

/// One source, or a list of several, none of them twice.
pub(super) fn sources<T: PartialEq>(
    node: &Node<'_>,
    example: &str,
    read: impl Fn(&Node<'_>) -> Result<T, Reported>,
) -> Result<Vec<T>, Reported> {
    if node.as_text().is_some() {
        return Ok(vec![read(node)?]);
    }
    let items = node.array(example)?;
    if items.is_empty() || items.len() > MAX_SOURCES {
        let message = format!("{} has {} sources", node.label(), items.len());
        return Err(node.error(message, format!("give 1 to {MAX_SOURCES}")));
    }
    let sources = each(&items, read)?;
    for (place, (own, item)) in sources.iter().zip(&items).enumerate() {
        if sources.iter().take(place).any(|before| before == own) {
            return Err(item.error("this source is here twice: it would count twice", "remove one of the two"));
        }
    }
    Ok(sources)
}

/// One place in a request.
fn place(node: &Node<'_>) -> Result<CostPlace, Reported> {
    let text = node.string("a source in quotes", "\"json:/max_tokens\"")?;
    let place = match text.split_once([':', '/']) {
        None if text == "content-length" => CostPlace::ContentLength(NonZeroU64::MIN),
        Some(("content-length", bytes)) if text.contains('/') => {
            let per = bytes.parse().ok().filter(|per: &NonZeroU64| per.get() <= MAX_PART);
            let message = format!("invalid part of a length {}", quoted(bytes));
            let help = format!("write the bytes that cost 1, 1 to {MAX_PART}, as in \"content-length/4\"");
            CostPlace::ContentLength(per.ok_or_else(|| node.error(message, help))?)
        }
        Some(("header", name)) if text.starts_with("header:") => CostPlace::Header(header_name(node, name)?.into()),
        Some(("json", _)) if text.starts_with("json:") => {
            CostPlace::Json(BodyField::Json(pointer_at(node, &text["json:".len()..])?))
        }
        _ => {
            let help = match nearest(text, ["content-length", "header:NAME", "json:/POINTER"]) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => {
                    "write a whole number, \"header:NAME\", \"json:/POINTER\", \"content-length\" or \"content-length/4\"".to_owned()
                }
            };
            return Err(node.error(format!("invalid cost {}", quoted(text)), help));
        }
    };
    Ok(place)
}

/// A JSON pointer.
pub(super) fn pointer_at(node: &Node<'_>, text: &str) -> Result<JsonPointer, Reported> {
    JsonPointer::parse(text).map_err(|error| {
        node.error(
            format!("invalid JSON pointer {}: {error}", quoted(text)),
            "write it as in \"json:/usage/total_tokens\"",
        )
    })
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
