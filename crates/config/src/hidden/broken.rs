//! The hidden parts of a text that is not TOML.
//!
//! A line is believed if it is `KEY = VALUE` of a key of the file that is no secret, in a section of the file, or a text in
//! the list that such a line has opened. Of its value all is shown but the parts that could be secrets, and comments. No line
//! of another key's value is shown, nor of a text of several lines. After a line whose end is not clear, such as a secret without
//! its closing quote, none is believed until the next header: its rest could look like a line of its own.

use std::ops::Range;

use toml::de::DeTable;

use super::{FIELDS, KEY, Secrecy, is_name, looks_like_network, name_in, names_a_secret, secrecy, shown};

/// The hidden parts, line by line.
pub(super) fn hidden(text: &str) -> Vec<Range<usize>> {
    let mut reader = BrokenText { text, is_believed: true, has_own_keys: false, open: None, hidden: Vec::new() };
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        reader.line(line, at);
        at += line.len();
    }
    reader.hidden
}

/// A text as far as it was read.
struct BrokenText<'t> {
    text: &'t str,
    /// Whether lines mean what they look like.
    is_believed: bool,
    /// Whether the keys of the section are the user's own, or those of tables that hold secrets.
    has_own_keys: bool,
    /// The value that goes on in the next line.
    open: Option<Open>,
    hidden: Vec<Range<usize>>,
}

/// A value of several lines.
#[derive(Clone, Copy)]
struct Open {
    /// Where its first line begins.
    start: usize,
    shown: Option<Secrecy>,
    brackets: usize,
    /// The three quotes that end the text that is open.
    quotes: Option<&'static str>,
    /// A line of such a text looks like a header: its end may be the beginning of another text.
    is_doubtful: bool,
}

impl BrokenText<'_> {
    fn line(&mut self, line: &str, at: usize) {
        let own = line.trim();
        let is_in_text = self.open.is_some_and(|open| open.quotes.is_some());
        if let Some(open) = self.open.as_mut().filter(|_| is_in_text && own.starts_with('[')) {
            open.is_doubtful = true;
        }
        let header = own.split('#').next().unwrap_or_default().trim_end();
        if !is_in_text && is_header(header) {
            let has_torn_comment = own.get(header.len()..).is_some_and(is_torn_comment);
            (self.is_believed, self.open) = (!has_torn_comment, None);
            self.has_own_keys = !names(header.trim_matches(['[', ']'])).all(is_plain);
            self.hidden.push(at + shown(line)..at + line.len());
        } else if let Some(key) = self.key_of(line) {
            self.value(line, shown(line), at, Some(key), None);
        } else if let Some(open) = self.open.filter(|open| open.shown.is_none() || is_in_text || is_item(own)) {
            let start = if open.shown.is_some() { 0 } else { shown(line) };
            self.value(line, start, at, open.shown, Some(open));
        } else if own.starts_with('#') {
            let begin = line.len() - line.trim_start().len();
            self.hidden.push(at + begin + 1..at + line.len());
            let is_header = own.trim_start_matches(['#', ' ']).starts_with('[');
            self.is_believed &= !is_torn_comment(own) && !is_header;
        } else if !own.is_empty() {
            // Its end may be that of a value which begins here.
            self.value(line, shown(line), at, None, None);
        }
    }

    /// How much is shown of the value of the key of the file that a line begins with; `None`: with none that may be shown.
    fn key_of(&self, line: &str) -> Option<Secrecy> {
        let may_begin = self.open.is_none_or(|open| open.quotes.is_none() && open.shown.is_some());
        let (before, _) = line.split_at(shown(line));
        let key = before.trim_end().strip_suffix('=')?.trim();
        let is_one = !key.is_empty() && !key.contains(['=', '[', ']']);
        let last = names(key).last()?;
        (may_begin && is_one && !self.has_own_keys && names(key).all(is_plain)).then(|| secrecy(last))?
    }

    /// Takes a line of a value, which begins at `start`. `shown`: how much of it may be shown.
    fn value(&mut self, line: &str, start: usize, at: usize, shown: Option<Secrecy>, open: Option<Open>) {
        let before = open.unwrap_or(Open { start: at, shown, brackets: 0, quotes: None, is_doubtful: false });
        let mut open = before;
        // Of a line of a secret all of it counts: how it begins too.
        let ValueEnd { value: end, comment, is_torn } = scan(line, if shown.is_some() { start } else { 0 }, &mut open);
        let value = line.get(start..comment.max(start)).unwrap_or_default();
        // A text of several lines may have swallowed what follows it.
        let is_in_text = before.quotes.is_some();
        let visible = shown
            .filter(|_| self.is_believed && !is_in_text)
            .map_or(0, |secrecy| visible(line.get(start..end).unwrap_or_default(), secrecy));
        self.hidden.push(at + start + visible..at + line.len());
        let hides = visible < value.trim_end().len();
        let is_whole = open.brackets == 0 && open.quotes.is_none();
        // A secret that is torn goes on in a line that could look like any other.
        let is_lost = if is_whole {
            (shown.is_none() || hides) && !is_sound(self.text.get(open.start..at + line.len()).unwrap_or_default())
        } else {
            let goes_on = is_torn || open.brackets > before.brackets || open.quotes.is_some();
            shown.is_some() && hides && !is_in_text && goes_on
        };
        let has_torn_comment = line.get(comment..).is_some_and(is_torn_comment);
        let is_doubtful = open.is_doubtful && open.quotes.is_none();
        self.is_believed &= !is_lost && !has_torn_comment && !is_doubtful;
        self.open = (!is_whole).then_some(open);
    }
}

/// Whether lines surely are a key and all of its value.
fn is_sound(lines: &str) -> bool {
    let is_word = |part: &str| !part.trim().is_empty() && !part.contains(['"', '\'', '[', ']', '{', '}', '#']);
    let is_header = lines.trim_start().starts_with('[');
    !is_header && DeTable::parse(lines).is_ok()
        || lines.split_once('=').is_some_and(|(key, value)| is_word(key) && is_word(value))
}

/// How a line of a value ends.
struct ValueEnd {
    /// Where the value ends, and a comment or something else begins.
    value: usize,
    /// Where its comment begins.
    comment: usize,
    /// Whether a quote is not closed.
    is_torn: bool,
}

/// Reads a line of a value from `at` on.
fn scan(line: &str, mut at: usize, open: &mut Open) -> ValueEnd {
    let bytes = line.as_bytes();
    // Whether a value is there; and where something begins that follows it.
    let (mut is_complete, mut rest_at) = (false, None);
    let mut comment = line.len();
    let mut is_torn = false;
    while let Some(byte) = bytes.get(at) {
        let rest = line.get(at..).unwrap_or_default();
        if let Some(quotes) = open.quotes {
            if quotes == TRIPLE[0] && *byte == b'\\' {
                at += 1;
            } else if rest.starts_with(quotes) {
                (open.quotes, is_complete) = (None, open.brackets == 0);
                at += 2;
            }
            at += 1;
            continue;
        }
        if *byte == b'#' {
            comment = at;
            break;
        }
        if byte.is_ascii_whitespace() {
            at += 1;
            continue;
        }
        if is_complete || open.brackets == 0 && b"]},".contains(byte) {
            rest_at = rest_at.or(Some(at));
        }
        if let Some(quotes) = TRIPLE.into_iter().find(|quotes| rest.starts_with(quotes)) {
            open.quotes = Some(quotes);
            at += 3;
            continue;
        }
        at = match byte {
            b'"' | b'\'' => {
                let Some(end) = end_of_text(bytes, at) else {
                    is_torn = true;
                    comment = [" #", "\t#"]
                        .iter()
                        .filter_map(|mark| rest.find(mark))
                        .min()
                        .map_or(comment, |found| at + found);
                    break;
                };
                end + 1
            }
            b'[' | b'{' | b']' | b'}' | b',' => at + 1,
            _ => {
                at + rest.find(|own: char| own.is_ascii_whitespace() || "\"'#[]{},".contains(own)).unwrap_or(rest.len())
            }
        };
        match byte {
            b'[' | b'{' => open.brackets += 1,
            b']' | b'}' => open.brackets = open.brackets.saturating_sub(1),
            _ => {}
        }
        is_complete = open.brackets == 0;
    }
    ValueEnd { value: rest_at.unwrap_or(comment), comment, is_torn }
}

const TRIPLE: [&str; 2] = ["\"\"\"", "'''"];

/// The quote that closes the text which begins at `start`, in its line.
fn end_of_text(bytes: &[u8], start: usize) -> Option<usize> {
    let quote = bytes.get(start)?;
    let mut at = start + 1;
    loop {
        match bytes.get(at)? {
            b'\\' if *quote == b'"' => at += 1,
            byte if byte == quote => return Some(at),
            _ => {}
        }
        at += 1;
    }
}

/// Whether a comment has an end of something whose beginning is not in it, or the other way round: it may be a line, or a part of
/// one, that was a value.
fn is_torn_comment(comment: &str) -> bool {
    let is_apostrophe = |at: usize| {
        let beside = |own: Option<char>| own.is_some_and(char::is_alphanumeric);
        beside(comment.get(..at).and_then(|before| before.chars().next_back()))
            && beside(comment.get(at + 1..).and_then(|rest| rest.chars().next()))
    };
    let mut count = [0_usize; 4];
    for (at, own) in comment.char_indices() {
        match own {
            '"' => count[0] += 1,
            '\'' if !is_apostrophe(at) => count[1] += 1,
            '[' | '{' => count[2] += 1,
            ']' | '}' => count[3] += 1,
            _ => {}
        }
    }
    let [double, single, opened, closed] = count;
    double % 2 == 1 || single % 2 == 1 || opened != closed || TRIPLE.iter().any(|quotes| comment.contains(quotes))
}

/// How many bytes of a value are shown.
fn visible(value: &str, secrecy: Secrecy) -> usize {
    // It may be an address with a user and a password, however that is written.
    if value.contains('@') {
        return 0;
    }
    let is_table = value.contains('{');
    let mut at = 0;
    let mut before = ' ';
    while let Some(rest) = value.get(at..).filter(|rest| !rest.is_empty()) {
        let network = if secrecy == Secrecy::Networks { word_of(rest, is_of_network) } else { "" };
        if !network.is_empty() {
            if !looks_like_network(network) {
                return at;
            }
            at += network.len();
            continue;
        }
        let (word, behind) = name_in(rest);
        if let Some(address) = rest.strip_prefix("://") {
            // Of an address its host.
            let host = word_of(address, |own| own.is_ascii_alphanumeric() || "-._:[]".contains(own));
            at += 3 + host.len();
            let path = value.get(at..).unwrap_or_default();
            if path.strip_prefix('/').unwrap_or(path).starts_with(|own: char| !"\"', ]}".contains(own)) {
                return at;
            }
        } else if word.is_empty() {
            before = rest.chars().next().unwrap_or(' ');
            at += before.len_utf8();
        } else {
            let is_quoted = ['"', '\''].contains(&before);
            let behind = behind.trim_start_matches(['"', '\'', ' ', '\t']);
            let has_value = behind.starts_with(['=', ':']);
            let is_number = word.starts_with(|own: char| own.is_ascii_digit()) || ["true", "false"].contains(&word);
            let is_strange = is_table && !is_plain(word) && !is_number && (has_value || !is_quoted);
            if is_strange || rest.starts_with(KEY) || (has_value || is_table) && may_be_secret(word) {
                return at;
            }
            at += word.len();
            before = ' ';
        }
    }
    value.len()
}

/// Whether a word is one that has a secret, or fields, for its value.
fn may_be_secret(word: &str) -> bool {
    !is_plain(word) && (names_a_secret(word) || secrecy(word).is_some())
}

/// The characters of this kind that a text begins with.
fn word_of(text: &str, is_part: impl Fn(char) -> bool) -> &str {
    text.split_at(text.find(|own: char| !is_part(own)).unwrap_or(text.len())).0
}

fn is_of_network(own: char) -> bool {
    own.is_ascii_alphanumeric() || ":./".contains(own)
}

/// Whether a line can be an item of a list of texts, or the end of it, and neither a key nor a header.
fn is_item(line: &str) -> bool {
    let is_other = |own: char| own.is_alphabetic() || "#[{".contains(own);
    !line.contains(['=', '{'])
        && !line.contains("://")
        && !line.starts_with(is_other)
        && !line.contains("\":")
        && !line.contains("':")
}

/// The parts of a key with dots.
fn names(key: &str) -> impl Iterator<Item = &str> {
    key.split('.').map(str::trim)
}

/// Whether a word is one of the file whose value may be shown.
fn is_plain(name: &str) -> bool {
    matches!(secrecy(name), Some(Secrecy::Shown | Secrecy::Networks)) && !FIELDS.contains(&name)
}

/// Whether a line is a header of the file, written as it should be.
fn is_header(line: &str) -> bool {
    let inner = line.strip_prefix("[[").and_then(|rest| rest.strip_suffix("]]"));
    let inner = inner.or_else(|| line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')));
    let Some(inner) = inner else { return false };
    let first = names(inner).next().unwrap_or_default();
    secrecy(first).is_some() && names(inner).all(|name| !name.is_empty() && name.chars().all(is_name))
}
