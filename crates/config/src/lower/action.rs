//! The action of a route: `upstream`, `respond` or `redirect`.

use std::sync::Arc;

use super::{file, path, template};
use crate::findings::{Finding, quoted};
use crate::kind::Context;
use crate::model::{Action, Body};
use crate::names::Declared;
use crate::reader::{Node, Reader};
use crate::sections::actions::{RedirectKeys, RespondKeys};
use crate::sections::route::RouteKeys;
use crate::sections::upstream::UpstreamSpec;
use sluicegate_admission::PathPattern;
use sluicegate_edit::Scope;

const KEYS: [&str; 3] = ["upstream", "respond", "redirect"];

/// Exactly one of them. `path` is what the route matches, whose groups a redirect may name.
pub(super) fn lower(
    keys: &RouteKeys<'_>,
    reader: &Reader<'_>,
    path: Option<&PathPattern>,
    upstreams: &Declared<'_, UpstreamSpec>,
    context: &Context<'_>,
) -> Option<Action> {
    let nodes = [&keys.upstream, &keys.respond, &keys.redirect].map(|key| key.node.as_ref());
    let mut given = nodes.iter().flatten();
    if let (Some(first), Some(second)) = (given.next(), given.next()) {
        if let Some(upstream) = &nodes[0] {
            upstreams.refer(upstream);
        }
        let message = format!("{} and {} in one route", first.label(), second.label());
        let finding = Finding::error(second.key_span(), message).related("the first is at", first.key_span());
        second.push(finding.help("remove one: a route forwards a request, answers it, or sends the client elsewhere"));
        return None;
    }
    match nodes {
        [Some(node), ..] => upstreams.item(upstreams.refer(node)?).cloned().map(Action::Forward),
        [_, Some(node), _] => respond(node, context),
        [.., Some(node)] => redirect(node, path, context),
        // Its requests are only asked about: it answers none.
        [None, None, None] if (context.deciding.are_all || keys.domain.node.is_some()) && !says(reader) => {
            let body = Body { bytes: [].into(), content_type: "text/plain".into() };
            Some(Action::Respond { status: 200, body })
        }
        [None, None, None] => {
            if !says(reader) {
                let help = "add upstream = \"...\", or respond = { status = 200, body = \"hello\\n\" }";
                reader.absent("[[route]] does nothing: it has neither `upstream` nor `respond` nor `redirect`", help);
            }
            None
        }
    }
}

/// Whether one of them is there, be it wrong.
fn says(reader: &Reader<'_>) -> bool {
    KEYS.into_iter().any(|key| reader.has(key) || reader.has_misspelt(key))
}

fn respond(node: &Node<'_>, context: &Context<'_>) -> Option<Action> {
    let mut reader = node.table("`respond`", "{ status = 200, body = \"hello\\n\" }")?;
    let RespondKeys { status, body, file, content_type } = RespondKeys::read(&mut reader, context);
    reader.done();
    let (status, body_node, file_node, type_node) = (status.value.ok(), body.node, file.node, content_type.node);
    if let (Some(body), Some(file)) = (&body_node, &file_node) {
        let finding = Finding::error(file.key_span(), "`body` and `file` in one response");
        file.push(finding.related("`body` is at", body.key_span()).help("remove one of the two"));
        return None;
    }
    let bytes = match (&body_node, &file_node) {
        (_, Some(node)) => file::read(node, context.files, "sorry.html").ok(),
        (Some(node), None) => node.text("a text in quotes", "\"hello\\n\"").map(|text| text.as_bytes().into()),
        (None, None) => Some([].into()),
    };
    let content_type = file::content_type(type_node.as_ref(), file_node.as_ref());
    let is_empty = bytes.as_ref().is_none_or(|bytes: &Arc<[u8]>| bytes.is_empty()) && file_node.is_none();
    if let (Some(node), Some(status @ (204 | 205 | 304)), false) = (body_node.or(file_node), status, is_empty) {
        node.error(format!("a response of status {status} has no body"), "remove the body, or use status 200");
    }
    let body = Body { bytes: bytes?, content_type: content_type.ok()? };
    Some(Action::Respond { status: status?, body })
}

fn redirect(node: &Node<'_>, path: Option<&PathPattern>, context: &Context<'_>) -> Option<Action> {
    let example = "{ to = \"https://www.example.com{uri}\", status = 308 }";
    let mut reader = node.table("`redirect`", example)?;
    let RedirectKeys { to, status } = RedirectKeys::read(&mut reader, context);
    reader.done();
    let to_node = to.node?;
    let text = to_node.text("an address in quotes", "\"https://www.example.com{uri}\"")?;
    let regex = match path {
        Some(PathPattern::Regex(regex)) => Some(regex),
        _ => None,
    };
    let is_path = text.starts_with('/') && !text.starts_with("//") || text.starts_with("{path}") || text == "{uri}";
    let is_address = ["http://", "https://", "{scheme}://"].iter().any(|begin| text.starts_with(begin));
    if !is_path && !is_address {
        let help = "write an address, \"https://www.example.com{uri}\", or a path of this host, \"/new{path}\"";
        to_node.error(format!("{} is nowhere to go", quoted(text)), help);
        return None;
    }
    if is_address && !ends_its_host(text) {
        let help = "put a slash behind the host: what a client wrote could make it another one";
        to_node.error(format!("{} lets clients choose where they are sent", quoted(text)), help);
        return None;
    }
    let to = template::target(&to_node, text, Scope::Target(regex))?;
    let target = path::target(&to_node, regex.cloned(), to)?;
    Some(Action::Redirect { status: status.value.ok()?, target })
}

/// Whether what stands between `://` and the first slash is the operator's own word, or the host that was asked for.
fn ends_its_host(text: &str) -> bool {
    let after = text.split_once("://").map_or(text, |(_, after)| after);
    let host = after.split('/').next().unwrap_or(after);
    // Both begin with a slash.
    let host = host.strip_suffix("{path}").or(host.strip_suffix("{uri}")).unwrap_or(host);
    let host = host.replace("{host}", "h").replace("{authority}", "h");
    !host.is_empty() && !host.contains('{') && !host.contains('@')
}
