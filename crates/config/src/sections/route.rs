//! `[[route]]`: its keys, each read on its own. `lower::route` puts them together with each other and with other sections.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use super::actions::{RedirectKeys, RespondKeys, RewriteKeys};
use super::collapse::CollapseKind;
use super::schedule;
use super::server::{BODY_SIZES, TIMEOUTS};
use crate::findings::{Finding, Reported, quoted, ticked};
use crate::form::{Form, NAME};
use crate::kind::{Context, ValueKind as _, by, duration, each, flag, inner, list, size, word};
use crate::lower::bandwidth::{BandwidthKeys, MAX_BANDWIDTHS};
use crate::lower::cors::{CorsKeys, MAX_CONDITIONS};
use crate::lower::edits::EditKeys;
use crate::lower::plans::PlansKeys;
use crate::lower::refusal::RefusalPage;
use crate::lower::{edits, messages, template};
use crate::model::{CollapseRules, MessageRules, OnLimit, Refusal};
use crate::names;
use crate::reader::Node;
use crate::section::{Declare, beside, section};
use crate::token::{header_name, is_token, with_causes};
use sluicegate_admission::{EntryValue, HostPattern, MAX_ENTRIES};
use sluicegate_edit::FieldEdits;
use sluicegate_limiter::MAX_LIMITS;
use sluicegate_overload::Priority;
use sluicegate_time::{ScheduleRules, Span};

section! {
    /// `[[route]]`, but for what a request costs (`CostKeys`).
    read as RouteKeys {
        /// Its name, for logs, metrics and dead letters.
        name: Arc<str> = by(NAME, |node, _| names::read(node, "api"), ToString::to_string).required("\"api\""),
        /// Hosts that it is for; by default all.
        hosts: Vec<HostPattern> = list(HOSTS, hosts, HostPattern::to_string).or_else(Vec::new, "all"),
        /// Paths that begin so; by default all.
        path: () = beside(Form::Text("a path, such as \"/api\""), "all"),
        /// This path alone.
        path_exact: () = beside(Form::Text("a path, such as \"/login\""), "none"),
        /// Paths of which the whole matches a regex.
        path_regex: () = beside(Form::Text("a regular expression, such as `'/users/[0-9]+'`"), "none"),
        /// Methods that it is for; by default all.
        methods: Vec<String> = list(METHODS, methods, String::clone).or_else(Vec::new, "all"),
        /// Headers that a request must have, each with this value.
        headers: Vec<(String, String)> = list(HEADERS, headers, |(name, value)| format!("{name}:{value:?}")).or_else(Vec::new, "all requests"),
        /// Whether paths with `%2F` in them are let through.
        allow_encoded_slash: bool = flag().or("false"),
        /// Whether the server gets the path as it came, for URLs that are signed; dot segments are refused then.
        path_as_received: bool = flag().or("false"),
        /// It is for descriptors of this domain, that Envoy's rate limit service is asked about, and for no request.
        domain: Option<Arc<str>> = by(Form::Text("the `domain` of Envoy's filter"), domain, ToString::to_string).or_nothing("none"),
        /// The entries of those descriptors: exactly these, `"*"` is any value.
        descriptors: Vec<(String, EntryValue)> = by(DESCRIPTORS, descriptors, |_| String::new()).or_else(Vec::new, "none").told("required with `domain`"),
        /// Whether the hits of those descriptors were spent before the question: they count in full, where there is no room too.
        apply_on_stream_done: bool = flag().or("false"),
        /// When it matches anything.
        active: Option<ScheduleRules> = by(Form::Table(schedule::ActiveKeys::rows), schedule::read, ScheduleRules::to_string).or_nothing("always"),
        /// Names of its limits.
        limits: () = beside(Form::List(&Form::Text("the name of a `[[limit]]`"), 0, MAX_LIMITS), "none"),
        /// Customers with limits of their own, in a file.
        plans: () = beside(Form::Table(PlansKeys::rows), "none"),
        /// Requests go to this upstream.
        upstream: () = beside(Form::Text("the name of an `[[upstream]]`"), ONE_OF_THREE),
        /// The gateway answers by itself.
        respond: () = beside(Form::Table(RespondKeys::rows), ONE_OF_THREE),
        /// Clients are sent elsewhere.
        redirect: () = beside(Form::Table(RedirectKeys::rows), ONE_OF_THREE),
        /// The fate of a request that a limit refuses.
        on_limit: OnLimit = by(Form::words::<OnLimit>(), on_limit, |choice| choice.word().to_owned()).or("refuse"),
        /// The order in which requests are refused where limits cannot help: `"low"` first, `"high"` never. Of `[overload]`.
        priority: Priority = word().or("normal"),
        /// Equal GETs in flight are sent once, and all get the answer.
        collapse: Option<CollapseRules> = CollapseKind.or("false"),
        /// From a request's arrival to the last byte of its answer; by default the server's.
        timeout: Option<Option<Span>> = duration(TIMEOUTS).or_word("none").or_nothing("the server's"),
        /// From a request's arrival, or from the last byte of its body, to the head of its answer; by default the server's.
        response_timeout: Option<Option<Span>> = duration(TIMEOUTS).or_word("none").or_nothing("the server's"),
        /// Bytes of a request's body; by default the server's.
        max_body_size: Option<Option<u64>> = size(BODY_SIZES).or_word("none").or_nothing("the server's"),
        /// Bytes of a request's body that are read for keys and costs of its limits; of a longer body they know nothing.
        key_body: u64 = size(KEY_BODIES).or("64KiB"),
        /// Bytes of a request's body that its dead letter keeps.
        capture_body: Option<u64> = size(CAPTURES).or_word("none").or("none"),
        /// Scripts of other origins that may use it.
        cors: () = beside(Form::Table(CorsKeys::rows), "none"),
        /// Fields of a request that are set, added or removed on their way to the server.
        request_headers: FieldEdits = inner(Form::Table(EditKeys::rows), edits::of_request).or_else(FieldEdits::default, "none"),
        /// Fields of every answer that are set, added or removed.
        response_headers: FieldEdits = inner(Form::Table(EditKeys::rows), edits::of_response).or_else(FieldEdits::default, "none"),
        /// Another path for the server.
        rewrite: () = beside(Form::Table(RewriteKeys::rows), "none"),
        /// The `Host` that the server gets.
        host: Option<Arc<str>> = by(Form::Text("a host, with a port or without"), host, ToString::to_string).or_nothing("the client's"),
        /// The look of refusals, where the limit does not say.
        refusal: Option<Arc<Refusal>> = RefusalPage.optional(),
        /// The bandwidths that pace its bytes, by name or as a rate.
        bandwidth: () = beside(BANDWIDTH, "none"),
        /// Bounds of the messages of a WebSocket.
        messages: Option<MessageRules> = inner(Form::Table(messages::MessageKeys::rows), messages::read).or_nothing("none"),
    }
}

/// Bytes of a body that a dead letter keeps at most.
pub const MAX_CAPTURED_BODY: u64 = 256 * 1024;
/// The meaning of a route without any of these.
const ONE_OF_THREE: &str = "one of `upstream`, `respond`, `redirect` is required";
const HOSTS: Form = Form::List(&Form::Text("a host such as \"api.example.com\" or \"*.example.org\""), 1, MAX_HOSTS);
const METHODS: Form = Form::List(&Form::Text("a method"), 1, MAX_CONDITIONS);
const HEADERS: Form = Form::Entries("names of headers", &Form::Text("its value"));
const DESCRIPTORS: Form = Form::Entries("names of entries", &Form::Text("its value, or \"*\""));
const BANDWIDTH: Form = Form::Either(&[
    Form::ByteRate,
    Form::List(&Form::Text("the name of a `[[bandwidth]]`"), 0, MAX_BANDWIDTHS),
    Form::Table(BandwidthKeys::rows),
]);
/// Bytes of a body that is read before admission.
const KEY_BODIES: RangeInclusive<u64> = 1..=1 << 20;
const CAPTURES: RangeInclusive<u64> = 1..=MAX_CAPTURED_BODY;
/// Hosts of one route. A request's is found by its hash.
const MAX_HOSTS: usize = 10_000;

fn on_limit(node: &Node<'_>, context: &Context<'_>) -> Result<OnLimit, Reported> {
    let choice = node.one_of(&[("refuse", OnLimit::Refuse), ("drop", OnLimit::Drop), ("defer", OnLimit::Defer)])?;
    if choice == OnLimit::Defer && !context.has_dead_letter {
        let help = "add the section [dead_letter]: deferred requests are kept in its directory";
        return Err(node.error("`on_limit` = \"defer\" needs a place for what is deferred", help));
    }
    Ok(choice)
}

fn hosts(node: &Node<'_>, _: &Context<'_>) -> Result<Vec<HostPattern>, Reported> {
    conditions(node, MAX_HOSTS, "[\"api.example.com\", \"*.example.org\"]", |item| {
        let text = item.string("a host in quotes", "\"api.example.com\" or \"*.example.org\"")?;
        HostPattern::parse(text)
            .map_err(|error| item.error(format!("invalid host {}", quoted(text)), with_causes(&error)))
    })
}

fn methods(node: &Node<'_>, _: &Context<'_>) -> Result<Vec<String>, Reported> {
    conditions(node, MAX_CONDITIONS, "[\"GET\", \"POST\"]", method)
}

/// The items of an array that may be left out, but not be empty: that would match nothing, or everything.
fn conditions<T: Clone + Eq + Hash>(
    node: &Node<'_>,
    most: usize,
    example: &str,
    read: impl Fn(&Node<'_>) -> Result<T, Reported>,
) -> Result<Vec<T>, Reported> {
    let key = node.label();
    let items = node.array(example)?;
    if items.is_empty() {
        let name = key.trim_matches('`');
        return Err(
            node.error(format!("{key} is empty"), format!("leave {key} out to match all, or write {name} = {example}"))
        );
    }
    if items.len() > most {
        return Err(node.error(format!("{key} has {} items", items.len()), format!("it takes at most {most}")));
    }
    let mut seen = HashSet::new();
    each(&items, |item| {
        let value = read(item)?;
        if !seen.insert(value.clone()) {
            item.error(format!("{} is in {key} twice", quoted(item.as_text().unwrap_or_default())), "remove one");
        }
        Ok(value)
    })
}

fn method(item: &Node<'_>) -> Result<String, Reported> {
    let text = item.string("a method in quotes", "\"GET\"")?;
    if !is_token(text) {
        let help = "methods are words like \"GET\" or \"POST\"";
        return Err(item.error(format!("invalid method {}", quoted(text)), help));
    }
    if text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        let help = format!("methods are upper-case: \"{}\"", text.to_ascii_uppercase());
        return Err(item.error(format!("{} would match no request", quoted(text)), help));
    }
    Ok(text.to_owned())
}

fn headers(node: &Node<'_>, _: &Context<'_>) -> Result<Vec<(String, String)>, Reported> {
    let reader = node.inner("`headers`", "{ x-version = \"2\" }")?;
    let entries: Vec<_> = reader.entries().collect();
    if entries.len() > MAX_CONDITIONS {
        let message = format!("`headers` has {} items", entries.len());
        return Err(node.error(message, format!("it takes at most {MAX_CONDITIONS}")));
    }
    let mut seen: HashMap<String, Range<usize>> = HashMap::new();
    each(&entries, |entry| {
        let name = header_name(&entry.on_key(), entry.label())?;
        if let Some(first) = seen.insert(name.clone(), entry.key_span()) {
            // The table is sorted by name, not by place.
            let (first, second) = if first.start < entry.key_span().start {
                (first, entry.key_span())
            } else {
                (entry.key_span(), first)
            };
            let finding = Finding::error(second, format!("the header {} is in `headers` twice", ticked(&name)));
            let help = "header names are the same in upper and lower case";
            return Err(entry.report(finding.related("the first is at", first).help(help)));
        }
        let value = entry.string("a text in quotes", "{ x-version = \"2\" }")?;
        if value.trim() != value || value.chars().any(|character| character.is_control() && character != '\t') {
            let help = "a value has no control characters, and no blanks at its ends";
            return Err(entry.error(format!("{} would match no request", template::field_text(entry, value)), help));
        }
        Ok((name, value.to_owned()))
    })
}

/// Bytes of a domain, of a name and of a value.
const MAX_DESCRIPTOR_TEXT: usize = 255;

fn domain(node: &Node<'_>, _: &Context<'_>) -> Result<Arc<str>, Reported> {
    descriptor_text(node, node.string("a text in quotes", "\"edge\"")?).map(Into::into)
}

fn descriptors(node: &Node<'_>, _: &Context<'_>) -> Result<Vec<(String, EntryValue)>, Reported> {
    let example = "{ generic_key = \"login\", remote_address = \"*\" }";
    let reader = node.inner("`descriptors`", example)?;
    let entries: Vec<_> = reader.entries().collect();
    if entries.is_empty() {
        return Err(node.error("`descriptors` is empty", format!("name the entries: descriptors = {example}")));
    }
    if entries.len() > MAX_ENTRIES {
        let message = format!("`descriptors` has {} entries", entries.len());
        return Err(node.error(message, format!("it takes at most {MAX_ENTRIES}")));
    }
    each(&entries, |entry| {
        let name = descriptor_text(&entry.on_key(), entry.label())?;
        let value = match descriptor_text(entry, entry.string("a text in quotes", "{ remote_address = \"*\" }")?)? {
            "*" => EntryValue::Any,
            text => EntryValue::Exact(text.to_owned()),
        };
        Ok((name.to_owned(), value))
    })
}

fn descriptor_text<'t>(node: &Node<'_>, text: &'t str) -> Result<&'t str, Reported> {
    if text.is_empty() || text.len() > MAX_DESCRIPTOR_TEXT || text.chars().any(char::is_control) {
        let help = format!("write 1 to {MAX_DESCRIPTOR_TEXT} bytes without control characters");
        return Err(node.error(format!("no descriptor has {}", quoted(text)), help));
    }
    Ok(text)
}

/// The `Host` that the server gets, if it is another than the client's.
fn host(node: &Node<'_>, _: &Context<'_>) -> Result<Arc<str>, Reported> {
    let text = node.string("a host in quotes", "\"app.internal\" or \"app.internal:8080\"")?;
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') && !name.ends_with(':') => (name, port),
        _ => (text, "1"),
    };
    let is_host = HostPattern::parse(name).is_ok() && !name.starts_with('*') && !name.contains("::")
        || name.starts_with('[') && HostPattern::parse(name).is_ok();
    if !is_host || port.parse::<u16>().is_err() || !port.bytes().all(|byte| byte.is_ascii_digit()) {
        let help = "write \"app.internal\" or \"app.internal:8080\"";
        return Err(node.error(format!("invalid host {}", quoted(text)), help));
    }
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::super::cost::CostKeys;
    use super::RouteKeys;
    use crate::{Certificates, Model, diff, parse};

    fn model(keys: &str) -> Model {
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1:1\"\n[[upstream]]\nname = \"a\"\nservers = [\"127.0.0.1:2\"]\n\
             [[upstream]]\nname = \"b\"\nservers = [\"127.0.0.1:3\"]\n[[limit]]\nname = \"l\"\nrate = \"9/s\"\n\
             [[route]]\nname = \"r\"\n{keys}\n"
        );
        parse(&text, Path::new("/g.toml"), Certificates::Unread).unwrap_or_else(|errors| panic!("{errors}")).model
    }

    /// A key that is declared and not compared would change without a word.
    #[test]
    fn a_plan_tells_of_each_key_that_changes() {
        const TO: &str = "upstream = \"a\"";
        let limited = format!("{TO}\nlimits = [\"l\"]");
        let mut told = BTreeSet::new();
        for (key, beside, old, new, line) in [
            ("hosts", TO, "", "[\"a.example\"]", "hosts +a.example"),
            ("path", TO, "", "\"/a\"", "path / -> /a"),
            ("path_exact", TO, "", "\"/a\"", "path / -> exactly /a"),
            ("path_regex", TO, "", "'/[a-z]+'", "path / -> regex /[a-z]+"),
            ("methods", TO, "", "[\"GET\"]", "methods +GET"),
            (
                "domain",
                "descriptors = { a = \"*\" }",
                "\"b\"",
                "\"c\"",
                "path descriptor of b: a=* -> descriptor of c: a=*",
            ),
            ("descriptors", "domain = \"b\"", "{ a = \"*\" }", "{ a = \"1\" }", "b: a=* -> descriptor of b: a=1"),
            (
                "apply_on_stream_done",
                "domain = \"b\"\ndescriptors = { a = \"*\" }",
                "",
                "true",
                "apply_on_stream_done false -> true",
            ),
            ("headers", TO, "", "{ x-a = \"1\" }", "headers +x-a:\"1\""),
            ("allow_encoded_slash", TO, "", "true", "allow_encoded_slash false -> true"),
            ("path_as_received", TO, "", "true", "path_as_received false -> true"),
            ("active", TO, "", "{ days = [\"mon\"] }", "active always -> "),
            ("limits", TO, "", "[\"l\"]", "limits +l"),
            ("cost", TO, "", "2", "cost 1 -> 2"),
            ("default_cost", &format!("{limited}\ncost = \"content-length\""), "8", "5", "cost content-length, else 8"),
            ("max_cost", &format!("{limited}\ncost = \"content-length\""), "8", "5", "cost content-length"),
            ("upstream", "", "\"a\"", "\"b\"", "upstream a -> upstream b"),
            ("respond", "", "{ status = 200 }", "{ status = 404 }", "respond 200 (0 bytes) -> respond 404 (0 bytes)"),
            ("redirect", "", "{ to = \"/a\" }", "{ to = \"/b\" }", "redirect 307 /a -> redirect 307 /b"),
            ("priority", TO, "", "\"low\"", "priority normal -> low"),
            ("collapse", TO, "", "{ headers = [\"accept\"] }", "collapse off -> bodies up to 1MiB by accept"),
            ("on_limit", &*limited, "", "\"drop\"", "on_limit refuse -> drop"),
            ("timeout", TO, "", "\"5s\"", "timeout none -> 5s"),
            ("response_timeout", TO, "", "\"5s\"", "response_timeout 1m -> 5s"),
            ("max_body_size", TO, "", "\"1KiB\"", "max_body_size none -> 1KiB"),
            ("key_body", TO, "", "\"128KiB\"", "key_body 64KiB -> 128KiB"),
            ("capture_body", TO, "", "\"64KiB\"", "capture_body none -> 64KiB"),
            ("cors", TO, "", "{ allow_origins = [\"*\"] }", "cors none -> [*]"),
            ("request_headers", TO, "", "{ remove = [\"x-a\"] }", "request_headers +no x-a"),
            ("response_headers", TO, "", "{ remove = [\"x-a\"] }", "response_headers +no x-a"),
            ("rewrite", TO, "", "{ prefix = \"/v2\" }", "rewrite none -> prefix /v2/"),
            ("host", TO, "", "\"app.internal\"", "host the client's -> app.internal"),
            ("refusal", &*limited, "", "{ status = 503 }", "refusal none -> its own"),
            ("bandwidth", TO, "", "\"1MiB/s\"", "bandwidth"),
            ("messages", TO, "", "{ rate = \"9/s\" }", "messages"),
        ] {
            let with = |value: &str| {
                let line = if value.is_empty() { String::new() } else { format!("{key} = {value}") };
                model(&format!("{beside}\n{line}"))
            };
            let plan = diff(&with(old), &with(new)).to_string();
            assert!(plan.contains(line), "{key}: {plan}");
            assert!(told.insert(key), "{key} is here twice");
        }
        // Routes are paired by their names, and files of plans have tests of their own.
        let rows = [RouteKeys::rows(), CostKeys::rows()].concat();
        let declared: BTreeSet<&str> =
            rows.iter().map(|row| row.key).filter(|key| !["name", "plans"].contains(key)).collect();
        assert_eq!(told, declared);
    }
}
