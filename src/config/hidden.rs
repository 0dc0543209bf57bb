//! The parts of a line of the file that a report does not show. The file may hold secrets: keys that are exempt, credentials
//! that a route adds. A report of a mistake goes further than the file: to standard error, to the log, to the admin interface.
//!
//! The line may be no TOML, so a secret may stand there without quotes, or with one of two. In doubt too much is hidden.

use std::ops::Range;

use super::nearest::nearest;
use crate::redact::names_a_secret;

/// The beginning of a value of a limit's key in `exempt`.
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
    Scan::of(line, key_above(above)).values.iter().filter_map(|value| value.hidden(line)).collect()
}

/// Whether a message may repeat the part `span` of a line: it is a value of a key in this very line, and not hidden.
pub(super) fn may_repeat(line: &str, span: &Range<usize>) -> bool {
    let scan = Scan::of(line, None);
    let touched = |value: &&Value<'_>| value.text.start < span.end && span.start < value.text.end;
    scan.values.iter().filter(touched).all(|value| value.key.is_some() && value.hidden(line).is_none())
}

/// A value in a line, and the key that it belongs to.
struct Value<'t> {
    /// Without quotes.
    text: Range<usize>,
    key: Option<&'t str>,
}

impl Value<'_> {
    fn hidden(&self, line: &str) -> Option<Range<usize>> {
        let text = line.get(self.text.clone())?;
        let is_secret = self.key.is_some_and(|key| is_exempt(key) && !looks_like_network(text) || is_credential(key));
        let start = self.text.start + if text.starts_with(KEY) { KEY.len() } else { 0 };
        ((is_secret || text.starts_with(KEY)) && start < self.text.end).then_some(start..self.text.end)
    }
}

/// A line, taken apart as far as that goes without a parser.
#[derive(Default)]
struct Scan<'t> {
    values: Vec<Value<'t>>,
    /// The last key that is written in it; empty in the header of a section.
    key: Option<&'t str>,
    /// How many more brackets are opened than closed, from that key on.
    opened: isize,
}

impl<'t> Scan<'t> {
    /// `above` is the key that the line goes on with.
    fn of(line: &'t str, above: Option<&'t str>) -> Self {
        let mut scan = Self { key: is_header(line).then_some(""), ..Self::default() };
        let (mut at, mut rest) = (0, line);
        while let Some(first) = rest.chars().next() {
            let key = scan.key.or(above);
            at = match first {
                '"' | '\'' => {
                    let end = at + end_of_literal(rest, first);
                    scan.take(line, at + 1..end, (end + 1).min(line.len()), key)
                }
                _ if !is_between(first) => scan.take_word(line, at, key),
                between => {
                    scan.opened += isize::from(between == '[') - isize::from(between == ']');
                    at + between.len_utf8()
                }
            };
            rest = line.get(at..).unwrap_or_default();
        }
        scan
    }

    /// Takes the word without quotes that begins at `at`. Gives where to go on.
    fn take_word(&mut self, line: &'t str, at: usize, key: Option<&'t str>) -> usize {
        let rest = line.get(at..).unwrap_or_default();
        let end = at + rest.find(is_between).unwrap_or(rest.len());
        let text = line.get(at..end).unwrap_or_default();
        let key = key.filter(|_| !is_short_number(text));
        let is_secret = text.starts_with(KEY) || key.is_some_and(|key| is_exempt(key) || is_credential(key));
        if !is_secret || is_key(text) && assigns(line.get(end..).unwrap_or_default(), text) {
            return self.take(line, at..end, end, key);
        }
        // Of a secret without quotes nobody knows where it ends: credentials may hold commas.
        let is_list = !key.is_some_and(is_credential);
        let length = rest.find(|next| is_list && ",]}".contains(next)).unwrap_or(rest.len());
        let length = rest.get(..length).unwrap_or(rest).trim_end().len();
        self.values.push(Value { text: at..at + length, key });
        at + length
    }

    /// Takes what stands at `text` and ends before `end`, with its quotes: as a key if a value follows, else as a value.
    /// Gives where to go on.
    fn take(&mut self, line: &'t str, text: Range<usize>, end: usize, key: Option<&'t str>) -> usize {
        let (own, rest) = (line.get(text.clone()).unwrap_or_default(), line.get(end..).unwrap_or_default());
        if is_key(own) && assigns(rest, own) {
            // A value that is missing may stand in the next line.
            let is_missing = rest.trim().trim_start_matches('=').is_empty();
            (self.key, self.opened) = (Some(own), isize::from(is_missing));
        } else {
            self.values.push(Value { text, key });
        }
        end
    }
}

/// The key that the line below `above` goes on with: that of an array that is open.
fn key_above(above: &str) -> Option<&str> {
    let mut opened = 0;
    for line in above.lines().rev().take(MAX_LINES_ABOVE) {
        let scan = Scan::of(line, None);
        opened += scan.opened;
        if scan.key.is_some() {
            return scan.key.filter(|_| opened > 0);
        }
    }
    None
}

/// How many bytes the literal at the start of a text has, without its last quote; one without an end is the whole text.
fn end_of_literal(text: &str, quote: char) -> usize {
    let mut is_escaped = true;
    let ends = |own: char| {
        let ends = own == quote && !is_escaped;
        is_escaped = own == '\\' && quote == '"' && !is_escaped;
        ends
    };
    text.find(ends).unwrap_or(text.len())
}

/// Whether a character stands between values and is part of none.
fn is_between(character: char) -> bool {
    character.is_whitespace() || "=,[]{}#\"'".contains(character)
}

fn is_key(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

/// Whether a text without quotes is a number that is too short for a secret.
fn is_short_number(text: &str) -> bool {
    text.len() <= 4 && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether `rest` makes `text`, after which it stands, a key. Base64 may end in an equals sign too, but no value follows.
fn assigns(rest: &str, text: &str) -> bool {
    let value = rest.trim_start().strip_prefix('=').map(str::trim_start);
    value.is_some_and(|value| is_exempt(text) || !value.is_empty() && !value.starts_with([',', '=', ']', '}', '#']))
}

/// Whether a line is the header of a section, if a broken one.
fn is_header(line: &str) -> bool {
    let Some(name) = line.trim().strip_prefix('[') else { return false };
    let name = name.trim_start_matches('[').split([']', '#']).next().unwrap_or_default();
    is_key(name.trim())
}

/// The last part of a dotted key.
fn last_part(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}

fn is_exempt(key: &str) -> bool {
    nearest(last_part(key), ["exempt"]).is_some()
}

/// Whether a key is the name of a header with credentials. Keys of the file itself have neither capitals nor hyphens.
fn is_credential(key: &str) -> bool {
    let name = last_part(key);
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
            // Without quotes, or with one of two.
            ("", "exempt = [key:gold]", "exempt = [key:****]"),
            ("", "exempt = [ key:QUJD==, ::1, gold ]", "exempt = [ key:******, ::1, **** ]"),
            ("", "exempt = [key:gold\", 'x']", "exempt = [key:*****, '*']"),
            ("", "exempt = key:gold # why", "exempt = key:**********"),
            ("", "deny = [key:gold, \"all\"]", "deny = [key:****, \"all\"]"),
            ("", "set = { X-Api-Key = a b,c }", "set = { X-Api-Key = *******"),
            // Of an array over several lines, and in one line with others.
            ("exempt = [\n", "  \"QUJD=\",", "  \"*****\","),
            ("exempt = [\n  \"QUJD=\",\n  \"a=b\",\n  QUJD=,\n", "  \"gold\",", "  \"****\","),
            ("exempt = [\n", "  gold==", "  ******"),
            ("exempt =\n", "[\"gold\", 'x', key:y]", "[\"****\", '*', key:*]"),
            ("limit.exempt = [\n  # none\n", "  \"gold\"", "  \"****\""),
            ("X-Api-Key = [\n", "\"a\", \"b\"", "\"*\", \"*\""),
            (
                "",
                "limit = [{ exempt = [\"a\"], name = \"b\" }, { exempt = ['c'] }]",
                "limit = [{ exempt = [\"*\"], name = \"b\" }, { exempt = ['*'] }]",
            ),
            // The lines behind such an array are shown.
            ("exempt = [\n  \"a\",\n]\n", "rate 5/s", "rate 5/s"),
            ("exempt = [\n", "[[limit", "[[limit"),
            ("exempt = [\n", "rate = 5/s", "rate = 5/s"),
        ] {
            assert_eq!(shown(above, line), expected, "{line}");
        }
    }

    #[test]
    fn a_message_repeats_what_is_no_secret_for_sure() {
        for (line, part, repeats) in [
            ("timeout = 5m", "5m", true),
            ("methods = [GET]", "GET", true),
            ("timeout = { a = 5m, b = x }", "x", true),
            ("exempt = [key:gold]", "key:gold", false),
            ("exempt = [key:gold]", "key", false),
            ("exempt = gold", "gold", false),
            ("set = { Authorization = gold }", "gold", false),
            ("deny = [key:gold]", "key:gold", false),
            // The line may belong to `exempt` above.
            ("  gold,", "gold", false),
        ] {
            let start = line.rfind(part).unwrap();
            assert_eq!(may_repeat(line, &(start..start + part.len())), repeats, "{line}");
        }
    }
}
