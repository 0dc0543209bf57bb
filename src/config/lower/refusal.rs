//! `refusal` of a limit or a route.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::{edits, file, template};
use crate::config::certificates::{CertificateFiles, Certificates};
use crate::config::findings::quoted;
use crate::config::model::{Refusal, RefusalBody};
use crate::config::reader::{Node, Reader};
use crate::edit::{FieldEdits, Scope, Template};

/// A refusal is the client's or the server's error, never a success.
pub(super) const STATUSES: RangeInclusive<u64> = 400..=599;

/// Variables in one page.
const MAX_VARIABLES: usize = 256;

const EXAMPLE: &str = "{ body_file = \"sorry.html\" }";

/// `{ status, body_file, content_type, headers }`, if it is there.
#[allow(clippy::option_option, reason = "the outer says whether it could be read, the inner what it says")]
pub(super) fn lower(reader: &mut Reader<'_>, files: &CertificateFiles) -> Option<Option<Arc<Refusal>>> {
    let Some(node) = reader.optional("refusal") else { return Some(None) };
    let mut table = node.table("`refusal`", EXAMPLE)?;
    let status_node = table.optional("status");
    let file_node = table.optional("body_file");
    let type_node = table.optional("content_type");
    let headers_node = table.optional("headers");
    table.done(&[]);
    let status = status_node.as_ref().map_or(Some(None), |node| node.integer(STATUSES).map(Some));
    let body = file_node.as_ref().map_or(Some(None), |node| body(node, type_node.as_ref(), files).map(Some));
    if let (None, Some(node)) = (&file_node, &type_node) {
        node.on_key().error("`content_type` without `body_file`", "name the file, or remove content_type");
    }
    let headers =
        headers_node.map_or(Some(Vec::new()), |node| edits::fields(&node, Scope::Refusal, &mut HashMap::new()));
    Some(Some(Arc::new(Refusal {
        status: status?.and_then(|status| u16::try_from(status).ok()),
        body: body?,
        headers: FieldEdits::new(headers?, Vec::new(), Vec::new()),
    })))
}

fn body(node: &Node<'_>, kind: Option<&Node<'_>>, files: &CertificateFiles) -> Option<RefusalBody> {
    let bytes = file::read(node, files);
    let content_type = file::content_type(kind, Some(node));
    let name = quoted(node.as_text().unwrap_or_default());
    let bytes = bytes?;
    let Ok(text) = str::from_utf8(&bytes) else {
        node.error(format!("{} = {name} is not UTF-8", node.label()), "save it as UTF-8");
        return None;
    };
    match Template::parse(text, Scope::Refusal) {
        Ok(template) if template.variables().count() > MAX_VARIABLES => {
            let message = format!("{name} names {} variables", template.variables().count());
            node.error(message, format!("it may name {MAX_VARIABLES}: each is filled in for every refusal"));
            None
        }
        Ok(template) => Some(RefusalBody { text: template, content_type: content_type? }),
        Err(error) => {
            debug_assert!(files.certificates() != Certificates::Unread);
            let line = text[..error.at.start].matches('\n').count() + 1;
            let message = format!("line {line} of {name}: {error}");
            node.error(message, template::remedy(&error, Scope::Refusal));
            None
        }
    }
}
