//! What of a line of the file a report does not show. The file may hold secrets: keys that are exempt, credentials that a route
//! adds. A report of a mistake goes further than the file: to standard error, to the log, to the admin interface.

use std::ops::Range;

use super::nearest::nearest;
use crate::redact::names_a_secret;

/// What begins a value of a limit's key in `exempt`.
const KEY: &str = "key:";

/// How many lines above are searched for the key that a line of an array belongs to; as long as an array of networks may be.
const MAX_LINES_ABOVE: usize = 10_100;

/// Whether a text is written like a network, or tries to be one.
pub(super) fn looks_like_network(text: &str) -> bool {
    text.len() <= 50
        && text.contains(['.', ':'])
        && text.bytes().all(|byte| byte.is_ascii_hexdigit() || b":./".contains(&byte))
}

/// Whether a text may be shown as an entry of a list of networks: what has strayed there from `exempt` may not.
pub(super) fn is_open_entry(text: &str) -> bool {
    !text.starts_with(KEY)
}

/// The parts of a line that are not shown, by their bytes. `above` is the text before it.
pub(super) fn hidden(above: &str, line: &str) -> Vec<Range<usize>> {
    let literals = literals(line);
    if literals.is_empty() {
        return literals;
    }
    let key = key_of(line).or_else(|| above.lines().rev().take(MAX_LINES_ABOVE).find_map(key_of));
    let is_exempt = key.is_some_and(|key| nearest(key, ["exempt"]).is_some());
    let hides = |literal: Range<usize>| {
        let text = line.get(literal.clone())?;
        if text.starts_with(KEY) {
            return Some(literal.start + KEY.len()..literal.end);
        }
        let before = line.get(..literal.start.saturating_sub(1)).unwrap_or_default();
        (is_exempt && !looks_like_network(text) || names_a_credential(before)).then_some(literal)
    };
    literals.into_iter().filter_map(hides).filter(|range| !range.is_empty()).collect()
}

/// The contents of the strings of a line; one without an end goes to the end of the line.
fn literals(line: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(start) = line.get(at..).and_then(|rest| rest.find(['"', '\''])).map(|found| at + found) {
        let quote = line.as_bytes().get(start).copied().unwrap_or_default();
        let mut end = start + 1;
        while let Some(byte) = line.as_bytes().get(end).filter(|byte| **byte != quote) {
            end += if *byte == b'\\' && quote == b'"' { 2 } else { 1 };
        }
        let end = end.min(line.len());
        found.push(start + 1..end);
        at = end + 1;
    }
    found
}

/// The key of a line `key = …`.
fn key_of(line: &str) -> Option<&str> {
    let (key, _) = line.split_once('=')?;
    let key = key.trim().trim_matches(['"', '\'']);
    let is_key = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte));
    is_key.then_some(key)
}

/// Whether a text ends in the name of a header with credentials and `=`. Keys of the file itself have neither capitals nor
/// hyphens.
fn names_a_credential(before: &str) -> bool {
    let Some(name) = before.trim_end().strip_suffix('=') else { return false };
    let name = name.trim_end().trim_end_matches(['"', '\'']);
    let is_part = |character: char| character.is_ascii_alphanumeric() || "_-".contains(character);
    let name = name.rsplit(|character| !is_part(character)).next().unwrap_or_default();
    let is_header = name.contains('-') || name.contains(|character: char| character.is_ascii_uppercase());
    (is_header || ["authorization", "cookie"].contains(&name)) && names_a_secret(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(above: &str, line: &str) -> String {
        let hidden = hidden(above, line);
        line.char_indices()
            .map(|(at, own)| if hidden.iter().any(|range| range.contains(&at)) { '*' } else { own })
            .collect()
    }

    #[test]
    fn secrets_of_the_file_are_not_shown() {
        for (above, line, expected) in [
            (
                "",
                "exempt = [\"key:gold\", \"10.0.0.0/8\", \"gold\"]",
                "exempt = [\"key:****\", \"10.0.0.0/8\", \"****\"]",
            ),
            ("", "exemt = ['key:a\"b', 5]", "exemt = ['key:***', 5]"),
            ("[[limit]]\nexempt = [\n  \"key:a\",\n", "  \"gold\\\"x\",", "  \"*******\","),
            ("", "exempt = [\"key:gold", "exempt = [\"key:****"),
            ("exempt = [\"::1\"]\n", "key = \"client_ip\"", "key = \"client_ip\""),
            ("", "deny = [\"key:gold\", \"all\"]", "deny = [\"key:****\", \"all\"]"),
            (
                "",
                "set = { \"X-Api-Key\" = \"sk\", X-Plain = \"p\" }",
                "set = { \"X-Api-Key\" = \"**\", X-Plain = \"p\" }",
            ),
            ("", "set = { authorization = \"Bearer x\" }", "set = { authorization = \"********\" }"),
            ("", "key = \"header:x-api-key\"", "key = \"header:x-api-key\""),
            ("", "exempt = [\"ké\", 7]", "exempt = [\"**\", 7]"),
        ] {
            assert_eq!(shown(above, line), expected, "{line}");
        }
    }
}
