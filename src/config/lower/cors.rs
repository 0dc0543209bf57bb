//! `cors` of a route.

use std::ops::RangeInclusive;

use super::route::MAX_CONDITIONS;
use crate::admission::RoutePattern;
use crate::config::findings::quoted;
use crate::config::kind::{every, first_or_word};
use crate::config::model::{Cors, Preflight};
use crate::config::reader::{Node, Reader};
use crate::config::token::{header_name, is_token};
use crate::time::Span;

/// Methods that may be used where none are named: those that HTTP defines for contents.
const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];

/// As long as it takes to notice that a rule was wrong.
const MAX_AGE: Span = Span::from_secs(600);

/// No browser keeps it for longer.
const MAX_AGES: RangeInclusive<Span> = Span::ZERO..=Span::from_secs(86_400);

const EXAMPLE: &str = "[\"https://app.example.com\"]";

/// `pattern` is what the route matches: scripts may use none but its methods.
pub(super) fn lower(node: &Node<'_>, pattern: Option<&RoutePattern>) -> Option<Cors> {
    let mut reader = node.table("`cors`", "{ allow_origins = [\"https://app.example.com\"] }")?;
    let origins_node = reader.required("allow_origins", EXAMPLE);
    let allow_credentials = reader.optional("allow_credentials").map_or(Some(false), |node| node.boolean());
    let count_preflight = reader.optional("count_preflight").map_or(Some(false), |node| node.boolean());
    let preflight = first_or_word(&mut reader, "preflight");
    let of_route = pattern.map(|pattern| &*pattern.methods).filter(|methods| !methods.is_empty());
    let methods = || METHODS.iter().map(ToString::to_string).collect();
    let allow_methods = list(&mut reader, "allow_methods", "[\"GET\", \"POST\"]", methods, method);
    let allow_headers = list(
        &mut reader,
        "allow_headers",
        "[\"x-api-key\"]",
        || vec!["*".to_owned()],
        |item| {
            if item.as_text() == Some("*") { Some("*".to_owned()) } else { field(item) }
        },
    );
    let expose_headers = list(&mut reader, "expose_headers", "[\"x-total\"]", Vec::new, field);
    let max_age = reader.optional("max_age").map_or(Some(MAX_AGE), |node| node.duration(&MAX_AGES));
    if preflight == Some(Preflight::Forward) {
        for key in ["allow_methods", "allow_headers", "max_age"] {
            if let Some(node) = reader.optional(key) {
                let message = format!("{} has no effect: the upstream answers preflights", node.label());
                node.warning(message, "remove it, or preflight = \"forward\"");
            }
        }
    }
    reader.done(&[]);
    let allow_origins = origins(&origins_node?, allow_credentials)?;
    Some(Cors {
        allow_origins,
        allow_credentials: allow_credentials?,
        count_preflight: count_preflight?,
        preflight: preflight?,
        allow_methods: {
            let mut methods = allow_methods?;
            methods.retain(|method| of_route.is_none_or(|own| own.contains(method)));
            methods
        },
        allow_headers: allow_headers?,
        expose_headers: expose_headers?,
        max_age: max_age?,
    })
}

fn origins(node: &Node<'_>, allow_credentials: Option<bool>) -> Option<Vec<String>> {
    let items = node.items(EXAMPLE)?;
    let any = items.iter().any(|item| item.as_text() == Some("*"));
    if items.is_empty() || items.len() > MAX_CONDITIONS {
        node.error(
            format!("`allow_origins` has {} origins", items.len()),
            format!("give 1 to {MAX_CONDITIONS}, or [\"*\"]"),
        );
        return None;
    }
    if any && items.len() > 1 {
        node.error("\"*\" beside other origins", "\"*\" is any origin already: write [\"*\"]");
    }
    if any && allow_credentials == Some(true) {
        let help = "name the origins, or leave allow_credentials out: browsers refuse the two together";
        node.error("any origin with credentials", help);
    }
    every(&items, origin)
}

/// The items of an array that may be left out.
fn list(
    reader: &mut Reader<'_>,
    key: &'static str,
    example: &str,
    default: impl FnOnce() -> Vec<String>,
    lower: impl FnMut(&Node<'_>) -> Option<String>,
) -> Option<Vec<String>> {
    let Some(node) = reader.optional(key) else { return Some(default()) };
    let items = node.items(example)?;
    if items.len() > MAX_CONDITIONS {
        node.error(format!("`{key}` has {} items", items.len()), format!("it takes at most {MAX_CONDITIONS}"));
        return None;
    }
    every(&items, lower)
}

fn field(item: &Node<'_>) -> Option<String> {
    header_name(item, item.text("a header name in quotes", "\"x-api-key\"")?).ok()
}

fn method(item: &Node<'_>) -> Option<String> {
    let text = item.text("a method in quotes", "\"GET\"")?;
    if !is_token(text) || text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        item.error(format!("{} is no method", quoted(text)), "methods are upper-case words like \"GET\" or \"POST\"");
        return None;
    }
    Some(text.to_owned())
}

/// An origin as browsers send it (RFC 6454 section 6.2): scheme, host and no default port, in lower case.
fn origin(item: &Node<'_>) -> Option<String> {
    let text = item.text("an origin in quotes", "\"https://app.example.com\"")?;
    let (scheme, rest) = text.split_once("://").unwrap_or(("", ""));
    let host_ok =
        !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte));
    let default_port = matches!(scheme, "http") && rest.ends_with(":80") || scheme == "https" && rest.ends_with(":443");
    if text == "*"
        || matches!(scheme, "http" | "https") && host_ok && !default_port && text == text.to_ascii_lowercase()
    {
        return Some(text.to_owned());
    }
    let help = "write it as browsers do: scheme and host in lower case, no path, no default port, like \
                \"https://app.example.com\"";
    item.error(format!("{} is no origin", quoted(text)), help);
    None
}
