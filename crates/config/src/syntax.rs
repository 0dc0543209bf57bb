//! The errors of the TOML parser, in the words of somebody who wants to mend a file.

use std::ops::Range;

use toml::de::Error;

use super::findings::{Finding, ticked};
use super::hidden::may_repeat;
use super::outline::Outline;

/// Parts of the parser's messages about what may swallow the lines after it, sections and all.
const SWALLOWING: [&str; 7] =
    ["array", "carriage return", "comma", "inline table", "multi-line", "recurse", "unclosed table"];

/// The sections that are written many times.
const LISTS: [&str; 5] = ["listener", "upstream", "limit", "bandwidth", "route"];

/// How the parser's messages about headers that are not closed begin.
const UNCLOSED: [&str; 2] = ["unclosed table", "unclosed array table"];

/// A text whose broken headers were taken out.
pub(super) struct Mended {
    /// The text with blanks in place of each section whose header is broken.
    pub(super) text: String,
    /// The errors of those headers.
    pub(super) errors: Vec<Error>,
}

/// Takes out sections with a header that is not closed, by the `errors` of the text. The parser has gone on to the next header
/// and taken its name for the name of the broken one, so that everything after it was read into the wrong place. `None`: no
/// header is broken.
pub(super) fn without_broken_headers(text: &str, errors: &[Error]) -> Option<Mended> {
    let is_unclosed = |error: &&Error| UNCLOSED.iter().any(|start| error.message().starts_with(start));
    let errors: Vec<Error> = errors.iter().filter(is_unclosed).cloned().collect();
    if errors.is_empty() {
        return None;
    }
    let outline = Outline::of(text);
    let mut bytes = text.as_bytes().to_vec();
    for error in &errors {
        let Range { start, end } = outline.reach(text, error.span().map_or(0, |span| span.start));
        let end = end.min(bytes.len());
        let blanked = bytes.get_mut(start..end).unwrap_or_default();
        blanked.iter_mut().filter(|byte| !matches!(byte, b'\n' | b'\r')).for_each(|byte| *byte = b' ');
    }
    Some(Mended { text: String::from_utf8(bytes).ok()?, errors })
}

/// The parser's errors about `text`, by position. Each is put into words when it is asked for: a broken file may have
/// hundreds of thousands, of which few are told.
pub(super) fn explain(text: &str, mut errors: Vec<Error>) -> impl Iterator<Item = Finding> {
    errors.sort_by_key(|error| error.span().map_or(text.len(), |span| span.start));
    errors.into_iter().map(move |error| explain_one(text, &error))
}

/// The line in which a byte stands, or which it ends, without its end.
fn line_around(text: &str, at: usize) -> Range<usize> {
    let start = text.get(..at).and_then(|before| before.rfind('\n')).map_or(0, |newline| newline + 1);
    let length = text.get(start..).and_then(|rest| rest.find('\n'));
    let end = length.map_or(text.len(), |length| start + length);
    start..end
}

fn not_closed(text: &str, span: Range<usize>) -> Finding {
    let mark = text.get(span.start..=span.start).unwrap_or_default();
    let before = text.get(..span.start).and_then(|before| before.rsplit('\n').next()).unwrap_or_default();
    let is_alone = !before.contains(['[', '{']);
    let finding = Finding::syntax(Some(span), "the quote that begins here is not closed in its line");
    let finding = finding.help(format!("end the value with {mark}"));
    // A list or a table may swallow the lines after it.
    if is_alone { finding.slip_of_the_line() } else { finding }
}

fn explain_one(text: &str, error: &Error) -> Finding {
    let span = error.span().unwrap_or(text.len()..text.len());
    let written = text.get(span.clone()).unwrap_or_default();
    let before = text.get(..span.start).unwrap_or_default();
    let line = before.rsplit('\n').next().unwrap_or_default();
    let whole = line_around(text, span.start);
    let open = text.get(whole.clone()).and_then(open_quote);
    if let Some(offset) = open.filter(|_| !is_within_text(text, whole.start)) {
        return not_closed(text, whole.start + offset..whole.end);
    }
    let is_shown = may_repeat(text, &span);
    let finding = in_words(span, (written, is_shown), line, error.message());
    let is_header = line.trim_start().starts_with('[');
    if is_header || SWALLOWING.iter().any(|part| error.message().contains(part)) {
        return finding;
    }
    finding.slip_of_the_line()
}

/// `line` is what stands before `written` in its line; `is_shown` says whether a message may repeat that.
fn in_words(span: Range<usize>, (written, is_shown): (&str, bool), line: &str, message: &str) -> Finding {
    if message.starts_with("duplicate key") {
        let is_header = line.trim_start().starts_with('[');
        if is_header && LISTS.contains(&written) {
            let finding =
                Finding::syntax(Some(span), format!("`{written}` is written as [{written}] and as [[{written}]]"));
            return finding.help(format!("it is a list of sections: write each of its headers as [[{written}]]"));
        }
        let what = if is_shown { ticked(written) } else { "the key".to_owned() };
        let finding = Finding::syntax(Some(span), format!("{what} is written twice"));
        return finding.help("remove one of the two, or join them");
    }
    let value_follows = line.trim_end().ends_with('=');
    if value_follows && (written.trim().is_empty() || written.starts_with('#')) {
        let finding = Finding::syntax(Some(span), "a value is missing after the equals sign");
        return finding.help("write it, or remove the line");
    }
    let is_word = written.starts_with(|first: char| first.is_ascii_alphanumeric() || "./*_".contains(first));
    let is_bare = value_follows && is_word && message.starts_with("invalid ");
    if is_bare || (message.starts_with("string values must be quoted") && !written.is_empty()) {
        return Finding::syntax(Some(span), "the value must be quoted").help("put double quotes around it");
    }
    if message.starts_with("invalid ") && looks_like_address(line, written) {
        return Finding::syntax(Some(span), "an address must be quoted").help("put double quotes around it");
    }
    let (what, expected) = message.split_once(", expected ").unwrap_or((message, ""));
    let finding = Finding::syntax(Some(span), format!("this is no TOML: {what}"));
    match expected {
        "" | "nothing" => finding,
        expected => finding.help(format!("expected {expected}")),
    }
}

/// Where a text begins that is not closed by the end of the line. Texts of several lines are none.
fn open_quote(line: &str) -> Option<usize> {
    if line.contains("\"\"\"") || line.contains("\'\'\'") {
        return None;
    }
    let (mut open, mut is_escaped) = (None, false);
    for (offset, byte) in line.bytes().enumerate() {
        match (open, byte) {
            (None, b'#') => return None,
            (None, b'"' | b'\'') => open = Some((offset, byte)),
            (Some((_, b'"')), b'\\') if !is_escaped => {
                is_escaped = true;
                continue;
            }
            (Some((_, quote)), own) if own == quote && !is_escaped => open = None,
            _ => {}
        }
        is_escaped = false;
    }
    open.map(|(offset, _)| offset)
}

/// Whether a text of several lines is open before the byte `at`: a quote in its lines opens nothing.
fn is_within_text(text: &str, at: usize) -> bool {
    let before = text.get(..at).unwrap_or_default();
    ["\"\"\"", "'''"].iter().any(|mark| before.matches(mark).count() % 2 == 1)
}

/// Whether the word that ends `line` and begins `written` is an address without quotes: no number has a colon or several dots.
fn looks_like_address(line: &str, written: &str) -> bool {
    let is_part = |own: char| own.is_ascii_alphanumeric() || ".:/-_".contains(own);
    let before = line.rsplit(|own| !is_part(own)).next().unwrap_or_default();
    let behind = written.split(|own| !is_part(own)).next().unwrap_or_default();
    let count = |of: char| before.matches(of).count() + behind.matches(of).count();
    count(':') > 0 || count('.') > 2
}
