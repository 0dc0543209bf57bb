//! `collapse` of `[[route]]`: equal requests in flight are sent once.

use std::ops::RangeInclusive;

use crate::findings::{Finding, Reported, quoted, ticked};
use crate::form::Form;
use crate::kind::{Context, ValueKind, each, list, size};
use crate::lower::edits::FRAMING;
use crate::model::CollapseRules;
use crate::reader::Node;
use crate::section::{Declare as _, section};
use crate::size::show_size;
use crate::token::header_name;

section! {
    /// `collapse` as a table.
    read as CollapseKeys {
        /// Fields by which requests are told apart, beside the target and the host; and that a `Vary` may name.
        headers: Vec<Box<str>> = list(HEADERS, headers, ToString::to_string).or_else(Vec::new, "none"),
        /// The largest body that is kept for others.
        max_body: u64 = size(MAX_BODIES).or("1MiB"),
    }
}

const EXAMPLE: &str = "{ headers = [\"accept\"], max_body = \"1MiB\" }";
const HEADERS: Form = Form::List(&Form::Text("the name of a header"), 0, MAX_HEADERS);
/// Each costs every request of the route.
const MAX_HEADERS: usize = 16;
/// A client has half of the 16 MiB that a worker keeps of bodies, and an answer that is read ahead of its client is there twice.
const MAX_BODIES: RangeInclusive<u64> = 1..=4 << 20;
const DEFAULT_BODY: u64 = 1 << 20;

/// Reads it.
pub(super) struct CollapseKind;

impl ValueKind for CollapseKind {
    type Value = Option<CollapseRules>;

    fn read(&self, node: &Node<'_>, context: &Context<'_>) -> Result<Self::Value, Reported> {
        match node.as_boolean() {
            Some(false) => return Ok(None),
            Some(true) => return Ok(Some(CollapseRules { headers: Vec::new(), max_body: DEFAULT_BODY })),
            None if node.as_table("`collapse`").is_none() => {
                return Err(node.wrong_type("a boolean or a table", EXAMPLE));
            }
            None => {}
        }
        let mut reader = node.inner("`collapse`", EXAMPLE)?;
        let keys = CollapseKeys::read(&mut reader, context);
        reader.done();
        Ok(Some(CollapseRules { headers: keys.headers.value?, max_body: keys.max_body.value? }))
    }

    fn form(&self) -> Form {
        Form::Either(&[Form::Flag, Form::Table(CollapseKeys::rows)])
    }

    fn show(&self, value: &Self::Value) -> String {
        let Some(CollapseRules { headers, max_body }) = value else { return "off".to_owned() };
        let names = if headers.is_empty() { String::new() } else { format!(" by {}", headers.join(", ")) };
        format!("bodies up to {}{names}", show_size(*max_body))
    }
}

fn headers(node: &Node<'_>, _: &Context<'_>) -> Result<Vec<Box<str>>, Reported> {
    let items = node.array("[\"accept\"]")?;
    if items.len() > MAX_HEADERS {
        let message = format!("`headers` has {} names", items.len());
        return Err(node.error(message, format!("it takes at most {MAX_HEADERS}")));
    }
    let mut seen: Vec<(String, std::ops::Range<usize>)> = Vec::new();
    each(&items, |item| {
        let name = header_name(item, item.string("a header name in quotes", "\"accept\"")?)?;
        if let Some((_, first)) = seen.iter().find(|(own, _)| *own == name) {
            let finding = Finding::error(item.span(), format!("the header {} is in the list twice", ticked(&name)));
            return Err(item.report(finding.related("the first is at", first.clone()).help("remove one")));
        }
        if FRAMING.contains(&&*name) || matches!(&*name, "set-cookie" | "x-request-id") {
            let help = "name a field of requests that goes to the server, such as \"accept\"";
            return Err(item.error(format!("{} tells no requests apart", quoted(&name)), help));
        }
        seen.push((name.clone(), item.span()));
        Ok(name.into())
    })
}

/// Warns of a route whose requests never meet.
pub(crate) fn warn_unused(node: Option<&Node<'_>>, is_forward: bool, methods: &[String]) {
    let Some(node) = node.filter(|node| node.as_boolean() != Some(false)) else { return };
    if !is_forward {
        node.warning(
            "`collapse` has no effect: the gateway answers by itself",
            "remove it, or give the route an upstream",
        );
    } else if !methods.is_empty() && !methods.iter().any(|method| matches!(method.as_str(), "GET" | "HEAD")) {
        let help = "remove it, or let the route match \"GET\"";
        node.warning("`collapse` has no effect: it is for GET and HEAD, which `methods` leaves out", help);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::certificates::Certificates;
    use crate::model::CollapseRules;
    use crate::parse;

    fn told(keys: &str) -> (Vec<Option<CollapseRules>>, String) {
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1:1\"\n[[upstream]]\nname = \"a\"\nservers = [\"127.0.0.1:2\"]\n\
             [[route]]\nname = \"r\"\n{keys}\n"
        );
        match parse(&text, Path::new("/g.toml"), Certificates::Unread) {
            Ok(parsed) => (vec![parsed.model.routes[0].collapse.clone()], parsed.warnings.to_string()),
            Err(errors) => (Vec::new(), errors.to_string()),
        }
    }

    #[test]
    fn a_word_is_the_table_with_the_defaults() {
        let read = |value: &str| told(&format!("upstream = \"a\"\ncollapse = {value}")).0.remove(0);
        let rules = |headers: &[&str], max_body| {
            Some(CollapseRules { headers: headers.iter().map(|name| Box::from(*name)).collect(), max_body })
        };
        assert_eq!((read("true"), read("{}"), read("false")), (rules(&[], 1 << 20), rules(&[], 1 << 20), None));
        assert_eq!(read("{ headers = [\"Accept\"], max_body = \"4MiB\" }"), rules(&["accept"], 4 << 20));
    }

    #[test]
    fn faults_say_how_to_mend_them() {
        for (keys, expected) in [
            ("upstream = \"a\"\ncollapse = 1", "a boolean or a table"),
            ("upstream = \"a\"\ncollapse = { headers = [\"a b\"] }", "a header name is made of"),
            ("upstream = \"a\"\ncollapse = { headers = [\"a\", \"A\"] }", "in the list twice"),
            ("upstream = \"a\"\ncollapse = { headers = [\"set-cookie\"] }", "name a field of requests"),
            ("upstream = \"a\"\ncollapse = { headers = [\"Upgrade\"] }", "name a field of requests"),
            ("upstream = \"a\"\ncollapse = { max_body = \"5MiB\" }", "1B to 4MiB"),
            ("respond = {}\ncollapse = true", "give the route an upstream"),
            ("upstream = \"a\"\nmethods = [\"POST\"]\ncollapse = true", "let the route match \"GET\""),
        ] {
            let (_, told) = told(keys);
            assert!(told.contains(expected), "{keys}: {told}");
        }
        assert!(!told("respond = {}\ncollapse = false").1.contains("collapse"));
    }
}
