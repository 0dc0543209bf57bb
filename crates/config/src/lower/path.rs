//! The path of a route: a prefix, an exact path or a regex.

use super::domain;
use crate::findings::quoted;
use crate::reader::Node;
use crate::sections::route::RouteKeys;
use crate::token::with_causes;
use sluicegate_admission::{PathPattern, PathPatternError, without_escaped_delims};
use sluicegate_edit::{PathRegex, PathRegexError, RewriteTarget, Template};

/// `path`, `path_exact` or `path_regex`: at most one; without any, all paths. With `domain` none.
pub(super) fn lower(keys: &RouteKeys<'_>) -> Option<PathPattern> {
    if let Some(of_descriptors) = domain::lower(keys)? {
        return Some(of_descriptors);
    }
    let [prefix, exact, regex] = [&keys.path, &keys.path_exact, &keys.path_regex].map(|key| &key.node);
    let mut given = [prefix, exact, regex].into_iter().flatten();
    if let (Some(first), Some(second)) = (given.next(), given.next()) {
        let message = format!("{} and {} in one route", first.label(), second.label());
        second.error(message, "a route has one path: make a second route for the other");
        return None;
    }
    match (prefix, exact, regex) {
        (Some(node), _, _) => plain(node, PathPattern::prefix),
        (_, Some(node), _) => plain(node, PathPattern::exact),
        (_, _, Some(node)) => regex_of(node).map(PathPattern::Regex),
        (None, None, None) => Some(PathPattern::Prefix("/".to_owned())),
    }
}

fn plain(node: &Node<'_>, parse: impl Fn(&str) -> Result<PathPattern, PathPatternError>) -> Option<PathPattern> {
    let text = node.text("a path in quotes", "\"/api\"")?;
    let parsed = match slip(text) {
        Some(help) => Err(help),
        None => parse(text).map_err(|error| with_causes(&error)),
    };
    match parsed {
        Ok(pattern) => Some(pattern),
        Err(help) => {
            node.error(format!("invalid route path {}", quoted(text)), help);
            None
        }
    }
}

/// Paths that are surely not meant, or have a better remedy than a parser of paths could name.
fn slip(text: &str) -> Option<String> {
    if !text.starts_with('/') {
        return Some(format!("a path begins with a slash: \"/{text}\""));
    }
    if let Some(mark) = text.chars().find(|mark| matches!(mark, '?' | '#')) {
        return Some(format!("a path ends before the \"{mark}\"; queries are not matched"));
    }
    if let Some(mark) = text.chars().find(|mark| matches!(mark, '*' | '{' | '}')) {
        let help = "a prefix needs no wildcard, and path_regex takes patterns";
        return Some(format!("\"{mark}\" would stand for itself here: {help}"));
    }
    if text.chars().any(|character| !character.is_ascii_graphic()) {
        return Some(format!("write it as clients send it: \"{}\"", percent_encoded(text)));
    }
    None
}

/// Whatever no path holds as it is, in the form in which it is sent.
fn percent_encoded(text: &str) -> String {
    let encode = |byte: u8| if byte.is_ascii_graphic() { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(encode).collect()
}

/// A regex over the whole normalised path: `/v[0-9]+/.*` matches `/v1/x` and neither `/api/v1/x` nor `/v1`.
pub(super) fn regex_of(node: &Node<'_>) -> Option<PathRegex> {
    let text = node.text("a regex in quotes", "'/v[0-9]+/.*'")?;
    if !node.findings().may_make_regex() {
        return None;
    }
    let made = PathRegex::new(text);
    match &made {
        Ok(regex) => node.findings().made_regex(Some(regex.bytes())),
        Err(PathRegexError::TooLarge) => node.findings().made_regex(None),
        Err(_) => {}
    }
    let reported = report_regex(node, text, made);
    if !node.findings().may_make_regex() {
        node.error(
            "the regexes of the file are too large together: those behind this one were not looked at",
            "a file may have 20 that are refused, and 128 MiB of automata: use smaller repetitions, or `path`",
        );
    }
    reported
}

fn report_regex(node: &Node<'_>, text: &str, made: Result<PathRegex, PathRegexError>) -> Option<PathRegex> {
    let (message, help) = match made {
        Ok(regex) => {
            warn_of_escapes(node, text);
            return Some(regex);
        }
        Err(error @ PathRegexError::TooLarge) => (
            format!("the regex {} is too large: {error}", quoted(text)),
            "use smaller repetitions, and in place of a `.*` before one say what may stand there, such as [^/]*",
        ),
        Err(error) => (
            format!("invalid regular expression {}: {error}", quoted(text)),
            "see docs.rs/regex for the syntax, and quote it with '...'",
        ),
    };
    node.error(message, help);
    None
}

/// A place where requests are sent, which is said at `node`.
pub(super) fn target(node: &Node<'_>, regex: Option<PathRegex>, to: Template) -> Option<RewriteTarget> {
    if !node.findings().may_make_regex() {
        return None;
    }
    let target = RewriteTarget::new(regex, to);
    if let Err(error) = &target {
        node.findings().made_regex(None);
        node.error(
            format!("the groups of the regex may take long to find: {error}"),
            "name no group here; or have fewer states, by + or * in place of counted repetitions and by fewer \
             alternatives; or leave each character one way to go on, as in /([^/]*)/(.*)",
        );
    }
    target.ok()
}

/// Warns of a regex for escapes that no path has when it is matched.
fn warn_of_escapes(node: &Node<'_>, text: &str) {
    if without_escaped_delims(text) != text {
        let message = format!("the regex {} has an escape of one of !$&'()*+,;=:@", quoted(text));
        node.warning(
            message,
            "paths are matched without those escapes: write the character, or \\( for one that regexes use",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_have_a_remedy() {
        assert_eq!(slip("api").as_deref(), Some("a path begins with a slash: \"/api\""));
        assert_eq!(slip("/a?b=1").as_deref(), Some("a path ends before the \"?\"; queries are not matched"));
        assert!(slip("/api/*").is_some_and(|help| help.contains("path_regex")));
        assert_eq!(slip("/ä b").as_deref(), Some("write it as clients send it: \"/%C3%A4%20b\""));
        assert_eq!(slip("/api/v1;x=1/~me/%2F"), None);
    }
}
