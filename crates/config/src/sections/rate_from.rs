//! `rate_from` of a limit.

use std::sync::Arc;

use crate::findings::{Reported, quoted};
use crate::kind::Context;
use crate::reader::Node;
use crate::token::header_name;
use sluicegate_limiter::{Algorithm, Sharing};
use sluicegate_time::Span;

/// Reads the name of the field.
pub(super) fn read(node: &Node<'_>, context: &Context<'_>) -> Result<Arc<str>, Reported> {
    proxy_field(node, context, ("rate_from", "a rate"), "\"header:x-limit\"")
}

/// Reads the name of the field in which a trusted proxy states `what`, for this key.
pub(super) fn proxy_field(
    node: &Node<'_>,
    context: &Context<'_>,
    (key, what): (&str, &str),
    example: &str,
) -> Result<Arc<str>, Reported> {
    let text = node.string("a header in quotes", example)?;
    let Some(name) = text.strip_prefix("header:") else {
        let message = format!("invalid source of {what} {}", quoted(text));
        return Err(node.error(message, format!("write {key} = \"header:NAME\"")));
    };
    let name = header_name(node, name)?;
    if !context.trusts_proxies {
        let message = format!("`{key}` has no effect: it is believed from trusted proxies alone, and there are none");
        let help = format!("add the proxy that writes it to `trusted_proxies` of [client], or remove {key}");
        node.warning(message, help);
    }
    Ok(name.into())
}

/// Reports one beside numbers with which it would not be exact, of the limit or of a plan.
pub(crate) fn check(
    node: &Node<'_>,
    algorithm: &Algorithm,
    max_wait: Span,
    sharing: Option<&Sharing>,
) -> Result<(), Reported> {
    let (message, help) = if !algorithm.counts_in_window() {
        let message =
            format!("`rate_from` with algorithm = \"{}\", which does not count in a window", algorithm.name());
        (message, "use timer-wheel, fixed-window, sliding-counter or sliding-log")
    } else if algorithm.rates().len() > 1 {
        let message = format!("`rate_from` beside {} rates: a request states one", algorithm.rates().len());
        (message, "leave one rate, and put the others into a limit of their own")
    } else if !max_wait.is_zero() {
        let message = "`rate_from` of a limit that lets requests wait: one queue cannot keep to several rates";
        (message.to_owned(), "remove max_wait, or rate_from")
    } else if sharing.is_some() {
        let message = "`rate_from` of a shared limit: the store knows one rate of it";
        (message.to_owned(), "remove `shared`, or rate_from")
    } else {
        return Ok(());
    };
    Err(node.error(message, help))
}
