//! `count_when` of a limit.

use crate::findings::Reported;
use crate::kind::{Context, statuses};
use crate::reader::Node;
use crate::section::{Declare, section};
use crate::statuses::StatusSet;
use sluicegate_limiter::Algorithm;

const EXAMPLE: &str = "{ status = [\"401\", \"5xx\"] }";

section! {
    /// `count_when`
    read as CountWhenKeys {
        /// Statuses of answers that count, such as "401", or classes of them, such as "5xx"; "!422" takes one out.
        status: StatusSet = statuses().required("[\"401\", \"5xx\"]"),
    }
}

/// Reads it.
pub(super) fn read(node: &Node<'_>, context: &Context<'_>) -> Result<StatusSet, Reported> {
    let mut reader = node.inner("`count_when`", EXAMPLE)?;
    let keys = CountWhenKeys::read(&mut reader, context);
    reader.done();
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
