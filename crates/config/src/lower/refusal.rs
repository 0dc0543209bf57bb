//! `refusal` of a limit or a route.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::file::MEDIA_TYPE;
use super::{edits, file, template};
use crate::certificates::CertificateFiles;
use crate::change::Changes;
use crate::describe_edits;
use crate::findings::{Reported, quoted};
use crate::form::{FILE, Form};
use crate::kind::{Context, ValueKind, count, inner};
use crate::model::{Refusal, RefusalBody};
use crate::reader::Node;
use crate::section::{Declare, beside, section};
use sluicegate_edit::{FieldEdits, Scope, Template};

/// A refusal is the client's or the server's error, never a success.
pub(crate) const STATUSES: RangeInclusive<u16> = 400..=599;

/// Variables in one page.
const MAX_VARIABLES: usize = 256;

const EXAMPLE: &str = "{ body_file = \"sorry.html\" }";

section! {
    /// `refusal`
    read as RefusalKeys {
        /// The status, where it is not the limit's.
        status: Option<u16> = count(STATUSES).or_nothing("the limit's"),
        /// A file with the text, of at most 1 MiB, which may have variables in it.
        body_file: () = beside(FILE, "the gateway's own text"),
        /// The type of the text; by default it follows from the name of the file.
        content_type: () = beside(MEDIA_TYPE, "by the name of the file"),
        /// Header fields that are set.
        headers: Option<Vec<(Box<str>, Template)>> = inner(edits::FIELDS, fields).or_nothing("none"),
    }
}

/// `refusal` of a limit or a route.
pub(crate) struct RefusalPage;

impl ValueKind for RefusalPage {
    type Value = Option<Arc<Refusal>>;

    fn read(&self, node: &Node<'_>, context: &Context<'_>) -> Result<Self::Value, Reported> {
        let mut table = node.inner("`refusal`", EXAMPLE)?;
        let RefusalKeys { status, body_file, content_type, headers } = RefusalKeys::read(&mut table, context);
        table.done();
        let body = body_file.node.as_ref().map(|node| body(node, content_type.node.as_ref(), context.files));
        if let (None, Some(node)) = (&body_file.node, &content_type.node) {
            node.on_key().error("`content_type` without `body_file`", "name the file, or remove content_type");
        }
        Ok(Some(Arc::new(Refusal {
            status: status.value?,
            body: body.transpose()?,
            headers: FieldEdits::new(headers.value?.unwrap_or_default(), Vec::new(), Vec::new()),
        })))
    }

    fn show(&self, value: &Self::Value) -> String {
        if value.is_some() { "its own" } else { "none" }.to_owned()
    }

    fn form(&self) -> Form {
        Form::Table(RefusalKeys::rows)
    }

    fn compare(&self, _: &'static str, old: &Self::Value, new: &Self::Value, changes: &mut Changes) {
        describe_edits::refusal(changes, old.as_deref(), new.as_deref());
    }
}

fn fields(node: &Node<'_>, _: &Context<'_>) -> Result<Vec<(Box<str>, Template)>, Reported> {
    edits::fields(node, Scope::Refusal, &mut HashMap::new())
}

fn body(node: &Node<'_>, kind: Option<&Node<'_>>, files: &CertificateFiles) -> Result<RefusalBody, Reported> {
    let bytes = file::read(node, files, "sorry.html");
    let content_type = file::content_type(kind, Some(node));
    let name = quoted(node.as_text().unwrap_or_default());
    let bytes = bytes?;
    let Ok(text) = str::from_utf8(&bytes) else {
        return Err(node.error(format!("{} = {name} is not UTF-8", node.label()), "save it as UTF-8"));
    };
    match Template::parse(text, Scope::Refusal) {
        Ok(template) if template.variables().count() > MAX_VARIABLES => {
            let message = format!("{name} names {} variables", template.variables().count());
            Err(node.error(message, format!("it may name {MAX_VARIABLES}: each is filled in for every refusal")))
        }
        Ok(template) => Ok(RefusalBody { text: template, content_type: content_type? }),
        Err(error) => {
            debug_assert!(files.certificates().are_read());
            let line = text[..error.at.start].matches('\n').count() + 1;
            let message = format!("line {line} of {name}: {error}");
            Err(node.error(message, template::remedy(&error, Scope::Refusal)))
        }
    }
}
