//! The path and the host that a server gets in place of those that the client asked for.

use super::path::{regex_of, target};
use super::template;
use crate::findings::quoted;
use crate::kind::Context;
use crate::reader::Node;
use crate::sections::actions::RewriteKeys;
use crate::sections::route::RouteKeys;
use sluicegate_admission::{PathPattern, normal_path};
use sluicegate_edit::{Rewrite, Scope};

const EXAMPLE: &str = "{ prefix = \"/v2\" } or { regex = '/users/([0-9]+)', to = \"/u?id={1}\" }";

/// `{ prefix = "/v2" }`, `{ regex = '...', to = "..." }` or `{ to = "..." }`, if it is there. `path` is what the route
/// matches.
#[allow(clippy::option_option, reason = "the outer says whether it could be read, the inner what it says")]
pub(super) fn lower(
    keys: &RouteKeys<'_>,
    path: Option<&PathPattern>,
    context: &Context<'_>,
) -> Option<Option<Rewrite>> {
    let Some(node) = &keys.rewrite.node else { return Some(None) };
    if keys.path_as_received.get() == Some(&true) {
        let message = "`rewrite` beside `path_as_received`";
        node.on_key().error(message, "the server gets the path as it came, or another: remove one of them");
        return None;
    }
    let mut table = node.table("`rewrite`", EXAMPLE)?;
    let RewriteKeys { prefix, regex, to } = RewriteKeys::read(&mut table, context);
    table.done();
    match (prefix.node, regex.node, to.node) {
        (Some(prefix), None, None) => self::prefix(&prefix, path).map(Some),
        (None, regex, Some(to)) => whole(regex.as_ref(), &to, path).map(Some),
        (Some(prefix), ..) => {
            let message = "`prefix` beside `regex` or `to`";
            prefix.on_key().error(message, "replace either the route's prefix or the whole path");
            None
        }
        (None, Some(regex), None) => {
            regex.on_key().error("`regex` without `to`", "say what becomes of such a path: to = \"/u?id={1}\"");
            None
        }
        (None, None, None) => {
            node.error("`rewrite` says nothing", format!("write rewrite = {EXAMPLE}"));
            None
        }
    }
}

fn prefix(node: &Node<'_>, path: Option<&PathPattern>) -> Option<Rewrite> {
    let text = node.text("a path in quotes", "\"/v2\"")?;
    let Ok(to) = normal_path(text) else {
        node.error(format!("invalid path {}", quoted(text)), "a path begins with a slash and has no query: \"/v2\"");
        return None;
    };
    match path? {
        PathPattern::Prefix(from) => Some(Rewrite::prefix(from, &to)),
        PathPattern::Exact(_) | PathPattern::Regex(_) | PathPattern::Descriptor(_) => {
            let message = "`prefix` replaces the route's `path`, and this route has none";
            node.on_key().error(message, format!("write rewrite = {{ to = {} }}", quoted(text)));
            None
        }
    }
}

fn whole(regex: Option<&Node<'_>>, to: &Node<'_>, path: Option<&PathPattern>) -> Option<Rewrite> {
    let regex = match (regex, path) {
        (Some(node), _) => Some(regex_of(node)?),
        (None, Some(PathPattern::Regex(regex))) => Some(regex.clone()),
        (None, _) => None,
    };
    let text = to.text("a path in quotes", "\"/u?id={1}\"")?;
    if !(text.starts_with('/') || text.starts_with("{path}") || text.starts_with("{uri}")) || text.contains('#') {
        let help = "write a path, with a query if it has one: \"/u?id={1}\"";
        to.error(format!("invalid server path {}", quoted(text)), help);
        return None;
    }
    let template = template::target(to, text, Scope::Target(regex.as_ref()))?;
    target(to, regex, template).map(Rewrite::Whole)
}

/// Warns of what has no effect on a route that forwards nothing.
pub(super) fn warn_unused(keys: &RouteKeys<'_>) {
    let nodes =
        [&keys.path_as_received.node, &keys.rewrite.node, &keys.host.node, &keys.request_headers.node].into_iter();
    for node in nodes.flatten() {
        let message = format!("{} has no effect: the route forwards nothing", node.label());
        node.warning(message, "remove it, or give the route an upstream");
    }
}
