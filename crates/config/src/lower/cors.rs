//! `cors` of a route.

use std::ops::RangeInclusive;

use crate::findings::{Reported, quoted};
use crate::form::{FIELD, Form};
use crate::kind::{Context, duration, each, flag, list, word};
use crate::model::{Cors, Preflight};
use crate::reader::Node;
use crate::section::{Declare as _, section};
use crate::token::{header_name, is_token};
use sluicegate_time::Span;

/// Methods that may be used where none are named: those that HTTP defines for contents.
const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];

/// Methods or headers that one route names; each may be compared with each request.
pub(crate) const MAX_CONDITIONS: usize = 256;

/// No browser keeps it for longer.
const MAX_AGES: RangeInclusive<Span> = Span::ZERO..=Span::from_secs(86_400);

const EXAMPLE: &str = "[\"https://app.example.com\"]";

const ORIGINS: Form = Form::List(&Form::Text("an origin, or \"*\""), 1, MAX_CONDITIONS);
const METHOD_NAMES: Form = Form::List(&Form::Text("a method"), 0, MAX_CONDITIONS);
const FIELDS: Form = Form::List(&FIELD, 0, MAX_CONDITIONS);

section! {
    /// `cors`
    read as CorsKeys {
        /// Origins whose scripts may use the route; `["*"]`: all.
        allow_origins: Vec<String> = list(ORIGINS, allowed, String::clone).required("[\"https://app.example.com\"]"),
        /// Whether they may send cookies.
        allow_credentials: bool = flag().or("false"),
        /// Whether limits count preflights.
        count_preflight: bool = flag().or("false"),
        /// The one that answers preflights: the gateway, or the upstream.
        preflight: Preflight = word().or("answer"),
        /// Methods that they may use, of those of the route.
        allow_methods: Vec<String> = list(METHOD_NAMES, methods, String::clone)
            .or_else(all_methods, "GET, HEAD, POST, PUT, PATCH, DELETE"),
        /// Headers that they may send.
        allow_headers: Vec<String> = list(FIELDS, headers, String::clone)
            .or_else(|| vec!["*".to_owned()], "all"),
        /// Headers of answers that they may read.
        expose_headers: Vec<String> = list(FIELDS, exposed, String::clone).or_else(Vec::new, "none"),
        /// How long browsers keep the answer to a preflight: by default as long as it takes to notice that a rule was wrong.
        max_age: Span = duration(MAX_AGES).or("10m"),
    }
}

/// `methods` are the route's: scripts may use none but these.
pub(super) fn read(node: &Node<'_>, methods: Option<&[String]>, context: &Context<'_>) -> Result<Cors, Reported> {
    let mut reader = node.inner("`cors`", "{ allow_origins = [\"https://app.example.com\"] }")?;
    let keys = CorsKeys::read(&mut reader, context);
    reader.done();
    if keys.preflight.get() == Some(&Preflight::Forward) {
        for node in [&keys.allow_methods.node, &keys.allow_headers.node, &keys.max_age.node].into_iter().flatten() {
            let message = format!("{} has no effect: the upstream answers preflights", node.label());
            node.warning(message, "remove it, or preflight = \"forward\"");
        }
    }
    let origins = origins(&keys);
    let of_route = methods.filter(|methods| !methods.is_empty());
    let mut allow_methods = keys.allow_methods.value?;
    allow_methods.retain(|method| of_route.is_none_or(|own| own.contains(method)));
    Ok(Cors {
        allow_origins: origins?,
        allow_credentials: keys.allow_credentials.value?,
        count_preflight: keys.count_preflight.value?,
        preflight: keys.preflight.value?,
        allow_methods,
        allow_headers: keys.allow_headers.value?,
        expose_headers: keys.expose_headers.value?,
        max_age: keys.max_age.value?,
    })
}

fn origins(keys: &CorsKeys<'_>) -> Result<Vec<String>, Reported> {
    let key = &keys.allow_origins;
    // Also where another one of them is wrong.
    if let Some(node) = key.node.as_ref().filter(|node| node.is_array())
        && node.array(EXAMPLE)?.iter().any(|origin| origin.as_text() == Some("*"))
        && keys.allow_credentials.get() == Some(&true)
    {
        let help = "name the origins, or leave allow_credentials out: browsers refuse the two together";
        node.error("any origin with credentials", help);
    }
    key.value.clone()
}

fn allowed(node: &Node<'_>, _: &Context<'_>) -> Result<Vec<String>, Reported> {
    let items = node.array(EXAMPLE)?;
    if items.is_empty() || items.len() > MAX_CONDITIONS {
        let message = format!("`allow_origins` has {} origins", items.len());
        return Err(node.error(message, format!("give 1 to {MAX_CONDITIONS}, or [\"*\"]")));
    }
    if items.len() > 1 && items.iter().any(|item| item.as_text() == Some("*")) {
        node.error("\"*\" beside other origins", "\"*\" is any origin already: write [\"*\"]");
    }
    each(&items, origin)
}

fn all_methods() -> Vec<String> {
    METHODS.map(str::to_owned).to_vec()
}

fn methods(node: &Node<'_>, _: &Context<'_>) -> Result<Vec<String>, Reported> {
    items(node, "[\"GET\", \"POST\"]", method)
}

fn headers(node: &Node<'_>, _: &Context<'_>) -> Result<Vec<String>, Reported> {
    items(node, "[\"x-api-key\"]", |item| if item.as_text() == Some("*") { Ok("*".to_owned()) } else { field(item) })
}

fn exposed(node: &Node<'_>, _: &Context<'_>) -> Result<Vec<String>, Reported> {
    items(node, "[\"x-total\"]", field)
}

/// The items of an array that may be left out.
fn items(
    node: &Node<'_>,
    example: &str,
    read: impl FnMut(&Node<'_>) -> Result<String, Reported>,
) -> Result<Vec<String>, Reported> {
    let items = node.array(example)?;
    if items.len() > MAX_CONDITIONS {
        let message = format!("{} has {} items", node.label(), items.len());
        return Err(node.error(message, format!("it takes at most {MAX_CONDITIONS}")));
    }
    each(&items, read)
}

fn field(item: &Node<'_>) -> Result<String, Reported> {
    header_name(item, item.string("a header name in quotes", "\"x-api-key\"")?)
}

fn method(item: &Node<'_>) -> Result<String, Reported> {
    let text = item.string("a method in quotes", "\"GET\"")?;
    if !is_token(text) || text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        let help = "methods are upper-case words like \"GET\" or \"POST\"";
        return Err(item.error(format!("invalid method {}", quoted(text)), help));
    }
    Ok(text.to_owned())
}

/// An origin as browsers send it (RFC 6454 section 6.2): scheme, host and no default port, in lower case.
fn origin(item: &Node<'_>) -> Result<String, Reported> {
    let text = item.string("an origin in quotes", "\"https://app.example.com\"")?;
    let (scheme, rest) = text.split_once("://").unwrap_or(("", ""));
    let host_ok =
        !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte));
    let default_port = matches!(scheme, "http") && rest.ends_with(":80") || scheme == "https" && rest.ends_with(":443");
    if text == "*"
        || matches!(scheme, "http" | "https") && host_ok && !default_port && text == text.to_ascii_lowercase()
    {
        return Ok(text.to_owned());
    }
    let help = "write it as browsers do: scheme and host in lower case, no path, no default port, like \
                \"https://app.example.com\"";
    Err(item.error(format!("invalid origin {}", quoted(text)), help))
}
