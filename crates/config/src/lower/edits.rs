//! `request_headers` and `response_headers` of a route, and the headers of a refusal.

use std::collections::HashMap;
use std::ops::Range;

use super::template;
use crate::findings::{Finding, Reported, quoted, ticked};
use crate::form::{FIELD, Form};
use crate::kind::{Context, each};
use crate::model::{Cors, Preflight};
use crate::nearest::nearest;
use crate::reader::Node;
use crate::section::{Key, beside, section};
use crate::token::header_name;
use sluicegate_edit::{FieldEdits, Scope, Template, Variable, is_same_field};
use sluicegate_redact::names_a_secret;

/// Fields that are set, added or removed by one route; each costs every request.
const MAX_EDITS: usize = 64;

/// Fields that frame a message, or are about one connection only: the writer of the message sees to them.
pub(crate) const FRAMING: [&str; 10] = [
    "connection",
    "content-length",
    "expect",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
];

/// `request_headers`
pub(crate) fn of_request(node: &Node<'_>, context: &Context<'_>) -> Result<FieldEdits, Reported> {
    read(node, Scope::Request, context)
}

/// `response_headers`
pub(crate) fn of_response(node: &Node<'_>, context: &Context<'_>) -> Result<FieldEdits, Reported> {
    read(node, Scope::Response, context)
}

/// Names of fields and their values.
pub(super) const FIELDS: Form =
    Form::Entries("names of headers", &Form::Either(&[VALUE, Form::List(&VALUE, 0, usize::MAX)]));
const VALUE: Form = Form::Text("a value, which may have variables in it");

section! {
    /// `request_headers`, `response_headers`
    read as EditKeys {
        /// Fields that are set: one that is there is replaced.
        set: () = beside(FIELDS, "none"),
        /// Fields that are added to those that are there.
        add: () = beside(FIELDS, "none"),
        /// Fields that are removed.
        remove: () = beside(Form::List(&FIELD, 0, usize::MAX), "none"),
    }
}

/// `{ set = { NAME = "VALUE" }, add = { NAME = "VALUE" }, remove = ["NAME"] }`.
fn read(node: &Node<'_>, scope: Scope<'_>, context: &Context<'_>) -> Result<FieldEdits, Reported> {
    let mut table = node.inner(node.label(), "{ set = { x-served-by = \"{server}\" }, remove = [\"x-debug\"] }")?;
    let EditKeys { set, add, remove } = EditKeys::read(&mut table, context);
    table.done();
    let (set_node, add_node, remove_node) = (set.node, add.node, remove.node);
    let mut places = HashMap::new();
    let set = set_node.map_or(Ok(Vec::new()), |node| fields(&node, scope, &mut places));
    let add = add_node.map_or(Ok(Vec::new()), |node| fields(&node, scope, &mut HashMap::new()));
    let remove = remove_node.map_or(Ok(Vec::new()), |node| names(&node, scope, &places));
    let (set, add, remove) = (set?, add?, remove?);
    let edits = set.len() + add.len() + remove.len();
    if edits > MAX_EDITS {
        let message = format!("{} has {edits} edits", node.label());
        return Err(node.error(message, format!("it takes at most {MAX_EDITS}")));
    }
    Ok(FieldEdits::new(set, add, remove))
}

/// `{ NAME = "VALUE" }`; several values of one name are an array. `places` is where each name stands.
pub(super) fn fields(
    node: &Node<'_>,
    scope: Scope<'_>,
    places: &mut HashMap<String, Range<usize>>,
) -> Result<Vec<(Box<str>, Template)>, Reported> {
    let reader = node.inner(node.label(), "{ x-served-by = \"gateway\" }")?;
    let entries: Vec<_> = reader.entries().collect();
    let mut all = Vec::new();
    let mut fault = Ok(());
    for entry in entries {
        let name = field_name(&entry.on_key(), entry.label(), scope);
        if let Ok(name) = &name
            && let Some(first) = places.insert(name.clone(), entry.key_span())
        {
            let finding = Finding::error(entry.key_span(), format!("the header {} is there twice", ticked(name)));
            let help = "header names are the same in upper and lower case";
            fault = Err(entry.report(finding.related("the other is at", first).help(help)));
        }
        for value in entry.one_or_many() {
            match (&name, template::field_value(&value, scope)) {
                (Ok(name), Ok(value)) => all.push((name.as_str().into(), value)),
                (Err(reported), _) => fault = Err(*reported),
                (_, Err(reported)) => fault = Err(reported),
            }
        }
    }
    fault.map(|()| all)
}

fn names(node: &Node<'_>, scope: Scope<'_>, set: &HashMap<String, Range<usize>>) -> Result<Vec<Box<str>>, Reported> {
    each(&node.array("[\"x-debug\"]")?, |item| {
        let text = item.string("a header name in quotes", "\"x-debug\"")?;
        let name = field_name(item, text, scope)?;
        if let Some(first) = set.get(&name) {
            let finding = Finding::error(item.span(), format!("the header {} is set and removed", ticked(&name)));
            let help = "to set a header replaces what there is of it: take it out of `remove`";
            return Err(item.report(finding.related("it is set at", first.clone()).help(help)));
        }
        Ok(name.into())
    })
}

/// The name of a field that may be changed.
fn field_name(node: &Node<'_>, text: &str, scope: Scope<'_>) -> Result<String, Reported> {
    let name = header_name(node, text)?;
    if name == "host" && matches!(scope, Scope::Request) {
        let help = "the route's own `host` says which Host the server gets";
        return Err(node.error("`host` is not changed here", help));
    }
    if FRAMING.iter().any(|framing| is_same_field(framing, name.as_bytes())) {
        let help = "it is about one connection or the message's length, and the gateway writes it";
        return Err(node.error(format!("the header {} cannot be changed", ticked(&name)), help));
    }
    if name == "content-type" && matches!(scope, Scope::Refusal) {
        let help = "say it by `content_type`: the text is escaped for it";
        return Err(node.error("`content-type` is not set here", help));
    }
    Ok(name)
}

/// Reports values that name limits which the route does not have; `limits` are those that it has.
pub(super) fn check_limits(key: &Key<'_, FieldEdits>, scope: Scope<'_>, limits: &[&str]) {
    let (Some(_), Some(node)) = (key.get(), &key.node) else { return };
    let fields = entries(node).into_iter().flat_map(|edits| entries(&edits));
    for value in fields.flat_map(Node::one_or_many) {
        let template = value.as_text().and_then(|text| Template::parse(text, scope).ok());
        for variable in template.iter().flat_map(Template::variables) {
            if let Variable::LimitState(limit) = variable
                && !limits.contains(&&**limit)
            {
                report_limit(&value, limit, limits);
            }
        }
    }
}

/// The entries of a table; of anything else none.
fn entries<'t>(node: &Node<'t>) -> Vec<Node<'t>> {
    node.as_table("").map_or_else(Vec::new, |table| table.entries().collect())
}

fn report_limit(value: &Node<'_>, limit: &str, limits: &[&str]) {
    let message = if names_a_secret(value.label()) {
        "this names a limit that the route does not have".to_owned()
    } else {
        format!("the route has no limit {}", quoted(limit))
    };
    let all = if limits.is_empty() {
        "it has no limits: name them in `limits`".to_owned()
    } else {
        format!("its limits are {}", limits.join(", "))
    };
    let help = match nearest(limit, limits.iter().copied()) {
        Some(near) => format!("did you mean {{limit.{near}.state}}? {}", all.replacen("its", "Its", 1)),
        None => all,
    };
    value.error(message, help);
}

/// Reports edits of what `cors` says.
pub(super) fn check_beside_cors(key: &Key<'_, FieldEdits>, cors: Option<&Cors>) {
    let (Some(edits), Some(Cors { preflight: Preflight::Answer, .. })) = (key.get(), cors) else { return };
    let names = ["access-control-allow-origin", "access-control-allow-credentials", "access-control-expose-headers"];
    let changed = |name: &&str| edits.cuts(name.as_bytes()) || edits.add().iter().any(|(own, _)| **own == **name);
    if let (Some(name), Some(node)) = (names.iter().find(|name| changed(name)), &key.node) {
        let help = "say it by `cors`, or let preflight = \"forward\" leave it to the upstream";
        node.on_key().error(format!("the header {} beside `cors`, which writes it", ticked(name)), help);
    }
}
