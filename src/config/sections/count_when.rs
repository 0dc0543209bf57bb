//! `count_when` of a limit.

use crate::config::findings::{Reported, quoted};
use crate::config::kind::{Context, by, each};
use crate::config::reader::Node;
use crate::config::section::{Declare, section};
use crate::config::statuses::StatusSet;
use crate::limiter::Algorithm;

const EXAMPLE: &str = "{ status = [\"401\", \"5xx\"] }";

/// Most statuses of one limit: each answer is compared with all.
const MAX_STATUSES: usize = 32;

section! {
    /// `count_when`
    read as CountWhenKeys {
        /// Statuses of answers that count, such as "401", or classes of them, such as "5xx".
        status: StatusSet = by(statuses, StatusSet::to_string).required("[\"401\", \"5xx\"]"),
    }
}

/// Reads it.
pub(super) fn read(node: &Node<'_>, context: &Context<'_>) -> Result<StatusSet, Reported> {
    let mut reader = node.inner("`count_when`", EXAMPLE)?;
    let keys = CountWhenKeys::read(&mut reader, context);
    reader.done(&[]);
    keys.status.value
}

/// Reports one beside an algorithm for which answers come too late.
pub(super) fn check(node: &Node<'_>, algorithm: &Algorithm) -> Result<(), Reported> {
    if !matches!(algorithm, Algorithm::Concurrency(_)) {
        return Ok(());
    }
    let message = "algorithm = \"concurrency\" counts what is in flight, and its answer comes too late for that";
    Err(node.error(message, "remove count_when, or choose another algorithm"))
}

fn statuses(node: &Node<'_>, _: &Context<'_>) -> Result<StatusSet, Reported> {
    let items = node.array("[\"401\", \"5xx\"]")?;
    if items.is_empty() || items.len() > MAX_STATUSES {
        let message = format!("`status` has {} statuses", items.len());
        return Err(node.error(message, format!("give 1 to {MAX_STATUSES}")));
    }
    let no_status = |node: &Node<'_>, text: &str| {
        let help = "write three digits, 200 to 599, or a class: \"2xx\" \"3xx\" \"4xx\" \"5xx\"";
        node.error(format!("{} is no status of an answer", quoted(text)), help)
    };
    let texts = each(&items, |item| {
        let text = item.string("a status in quotes", "\"401\" or \"5xx\"")?;
        StatusSet::parse(&[text]).map(|_| text).map_err(|_| no_status(item, text))
    })?;
    StatusSet::parse(&texts).map_err(|_| no_status(node, &texts.join(", ")))
}
