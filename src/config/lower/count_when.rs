//! `count_when` of a limit.

use crate::config::findings::quoted;
use crate::config::reader::{Node, Reader};
use crate::config::statuses::StatusSet;
use crate::limiter::Algorithm;

const EXAMPLE: &str = "{ status = [\"401\", \"5xx\"] }";

/// Most statuses of one limit: each answer is compared with all.
const MAX_STATUSES: usize = 32;

/// Lowers it; `None` where it could not be read. `algorithm` is the limit's, if that could.
#[allow(clippy::option_option, reason = "the outer says whether it could be read, the inner what it says")]
pub(super) fn lower(reader: &mut Reader<'_>, algorithm: Option<&Algorithm>) -> Option<Option<StatusSet>> {
    let Some(node) = reader.optional("count_when") else { return Some(None) };
    let statuses = statuses(&node)?;
    if matches!(algorithm, Some(Algorithm::Concurrency(_))) {
        let help = "remove count_when, or choose another algorithm";
        node.error(
            "algorithm = \"concurrency\" counts what is in flight, and its answer comes too late for that",
            help,
        );
        return None;
    }
    Some(Some(statuses))
}

fn statuses(node: &Node<'_>) -> Option<StatusSet> {
    let mut reader = node.table("`count_when`", EXAMPLE)?;
    let status = reader.required("status", "[\"401\", \"5xx\"]");
    reader.done(&[]);
    let status = status?;
    let items = status.items("[\"401\", \"5xx\"]")?;
    if items.is_empty() || items.len() > MAX_STATUSES {
        status.error(format!("`status` has {} statuses", items.len()), format!("give 1 to {MAX_STATUSES}"));
        return None;
    }
    let texts = super::each(&items, |item| {
        let text = item.text("a status in quotes", "\"401\" or \"5xx\"")?;
        if StatusSet::parse(&[text]).is_err() {
            item.error(
                format!("{} is no status of an answer", quoted(text)),
                "write three digits, 200 to 599, or a class: \"2xx\" \"3xx\" \"4xx\" \"5xx\"",
            );
            return None;
        }
        Some(text)
    })?;
    StatusSet::parse(&texts).ok()
}
