//! The path of a route: a prefix, an exact path or a regex.

use regex::Regex;

use super::language::{self, Groups};
use crate::admission::{PathPattern, PathPatternError, without_escaped_delims};
use crate::config::findings::quoted;
use crate::config::reader::{Node, Reader};
use crate::edit::{Target, Template};

/// A regex over a path, and whether it may take long on a long one.
pub(super) struct PathRegex {
    pub(super) regex: Regex,
    pub(super) is_slow: bool,
}

/// The path of a route, and whether it is a regex that may take long.
pub(super) struct RoutePath {
    pub(super) pattern: PathPattern,
    pub(super) has_slow_regex: bool,
}

/// `path`, `path_exact` or `path_regex`: at most one; without any, all paths.
pub(super) fn lower(reader: &mut Reader<'_>) -> Option<RoutePath> {
    let prefix = reader.optional("path");
    let exact = reader.optional("path_exact");
    let regex = reader.optional("path_regex");
    let mut given = [&prefix, &exact, &regex].into_iter().flatten();
    if let (Some(first), Some(second)) = (given.next(), given.next()) {
        let message = format!("{} and {} in one route", first.label(), second.label());
        second.error(message, "a route has one path: make a second route for the other");
        return None;
    }
    let pattern = match (&prefix, &exact, &regex) {
        (Some(node), _, _) => plain(node, PathPattern::prefix)?,
        (_, Some(node), _) => plain(node, PathPattern::exact)?,
        (_, _, Some(node)) => {
            let PathRegex { regex, is_slow } = regex_of(node)?;
            return Some(RoutePath { pattern: PathPattern::Regex(regex), has_slow_regex: is_slow });
        }
        (None, None, None) => PathPattern::Prefix("/".to_owned()),
    };
    Some(RoutePath { pattern, has_slow_regex: false })
}

fn plain(node: &Node<'_>, parse: impl Fn(&str) -> Result<PathPattern, PathPatternError>) -> Option<PathPattern> {
    let text = node.text("a path in quotes", "\"/api\"")?;
    let parsed = match slip(text) {
        Some(help) => Err(help),
        None => parse(text).map_err(|error| super::with_causes(&error)),
    };
    match parsed {
        Ok(pattern) => Some(pattern),
        Err(help) => {
            node.error(format!("{} is no path of a route", quoted(text)), help);
            None
        }
    }
}

/// What is surely not meant, or has a better remedy than a parser of paths could name.
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
    match PathPattern::regex(text) {
        Ok(pattern) => {
            let PathPattern::Regex(regex) = pattern else { return None };
            warn_of_escapes(node, text);
            let is_slow = language::may_be_slow(regex.as_str());
            if is_slow {
                let help = format!(
                    "a path can bring it into more than {} states, such as by `.*` before a counted repetition: name \
                     what may stand there, such as [^/]*. Paths above max_regex_input of [server] are not tried on it",
                    language::MAX_QUICK_STATES
                );
                node.warning(format!("the regex {} may take more than 1 ms on a path of 8 KiB", quoted(text)), help);
            }
            Some(PathRegex { regex, is_slow })
        }
        Err(PathPatternError::Regex(regex::Error::CompiledTooBig(bound))) => {
            let message = format!("the regex {} is too large", quoted(text));
            node.error(message, format!("it may compile to at most {bound} bytes: use smaller repetitions"));
            None
        }
        Err(PathPatternError::Regex(error)) => {
            // The crate draws the error over several lines; the last one says what it is.
            let drawn = error.to_string();
            let reason = drawn.lines().last().unwrap_or_default().trim_start_matches("error: ");
            let message = format!("{} is no regex: {reason}", quoted(text));
            node.error(message, "see docs.rs/regex for the syntax, and quote it with '...'");
            None
        }
        Err(error) => {
            node.error(format!("{} is no path of a route", quoted(text)), super::with_causes(&error));
            None
        }
    }
}

/// A place where requests are sent, which is said at `node`. `is_slow`: whether the regex may take long to match.
pub(super) fn target(node: &Node<'_>, regex: Option<Regex>, is_slow: bool, to: Template) -> Target {
    let target = Target::new(regex, to);
    let Some(regex) = target.regex().filter(|_| target.names_groups()) else {
        return target.bounded(usize::MAX, is_slow);
    };
    let Groups { is_slow: are_slow, longest } = language::groups(regex.as_str());
    if are_slow {
        node.warning(
            "to find the groups of the regex may take more than 1 ms on a path of 8 KiB",
            "it has many states, such as by a counted repetition, and several ways to match: use smaller repetitions, or \
             name no group here. Paths above max_regex_input of [server] are not tried on it",
        );
    }
    target.bounded(longest, is_slow || are_slow)
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
