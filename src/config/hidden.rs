//! The parts of a line of the file that a report does not show. The file may hold secrets: keys that are exempt, credentials
//! that a route adds. A report of a mistake goes further than the file: to standard error, to the log, to the admin interface.
//!
//! The line may be no TOML, so a secret may stand there without quotes, with one of two, or behind a name without `=`. So the
//! text is not parsed but followed: from the name of a secret on, all belongs to it until it surely ends. In doubt too much
//! is hidden.

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::ops::Range;

use super::nearest::nearest;
use crate::redact::names_a_secret;

/// The beginning of a value of a limit's key in `exempt`.
const KEY: &str = "key:";

/// Sections of the file, and of a file of plans. Their headers end whatever is open.
const SECTIONS: [&str; 11] =
    ["admin", "bandwidth", "client", "dead_letter", "limit", "listener", "log", "plan", "route", "server", "upstream"];

/// Keys of a limit: at the start of a line each ends an `exempt` that lacks its bracket. `key` and `name` do not, as their
/// values may be anything.
const ENDS: [&str; 37] = [
    "active",
    "after",
    "algorithm",
    "align",
    "bandwidth",
    "bound",
    "burst",
    "cold_factor",
    "cost",
    "cost_from_response",
    "count_refused",
    "count_when",
    "key_is_secret",
    "max_burst_seconds",
    "max_cost",
    "max_in_flight",
    "max_keys",
    "max_queue",
    "max_wait",
    "max_waiting",
    "min_difference",
    "mode",
    "on_full",
    "on_missing_key",
    "penalty",
    "rate",
    "rates",
    "refill",
    "refusal",
    "retry_after_jitter",
    "slot_limit",
    "slots",
    "status",
    "timeout",
    "warm_up",
    "window",
    "zone",
];

/// Other words that stand before a value, and are none.
const BEFORE_VALUES: [&str; 5] = ["key", "keys", "name", "value", "values"];

/// Keys of the file whose values are names, also of fields with secrets, or where a secret comes from.
const NAMES: [&str; 9] =
    ["address_header", "allow_headers", "bandwidth", "expose_headers", "hash_key", "key", "limits", "redact", "remove"];

/// Keys of the file that are like names of secrets.
const OPEN: [&str; 8] = [
    "allow_credentials",
    "hash_key",
    "key",
    "key_is_secret",
    "max_key_rate",
    "max_keys",
    "on_missing_key",
    "redact_secret_file",
];

/// How many values before a name, in its table, are hidden by it.
const MAX_BEFORE: usize = 64;

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

/// Finds the secrets of a text. Fast where it is asked from the front to the back: then each line above is read once.
pub(super) struct Secrets<'t> {
    text: &'t str,
    /// How far the text has been read, to the start of a line, and what holds there.
    read: Cell<(usize, State<'t>)>,
}

/// Parts of a line, in order and apart from each other.
pub(super) struct Hidden(Vec<Range<usize>>);

impl Hidden {
    /// Whether the byte at this place of the line is not shown.
    pub(super) fn covers(&self, at: usize) -> bool {
        self.0.get(self.0.partition_point(|range| range.end <= at)).is_some_and(|range| range.contains(&at))
    }
}

impl<'t> Secrets<'t> {
    /// Those of `text`.
    pub(super) fn new(text: &'t str) -> Self {
        Self { text, read: Cell::default() }
    }

    /// The parts that are not shown of the line that starts at `start`.
    pub(super) fn hidden(&self, start: usize) -> Hidden {
        let mut all: Vec<Range<usize>> = Vec::new();
        for range in self.line(start).into_iter().filter_map(|value| value.hidden) {
            match all.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => all.push(range),
            }
        }
        Hidden(all)
    }

    /// Whether a message may repeat this part of the text: it is a key, or a value of a key in the same line, and not hidden.
    pub(super) fn may_repeat(&self, span: &Range<usize>) -> bool {
        let before = self.text.get(..span.start).unwrap_or_default();
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let touched = |value: &Value| start + value.text.start < span.end && span.start < start + value.text.end;
        self.line(start).iter().filter(|value| touched(value)).all(|value| value.has_key && value.hidden.is_none())
    }

    /// The values of the line that starts at `start`.
    fn line(&self, start: usize) -> Vec<Value> {
        let (mut at, mut state) = self.read.get();
        if start < at {
            (at, state) = Default::default();
        }
        for line in self.text.get(at..start).unwrap_or_default().split_inclusive('\n') {
            state = Scan::above(line, state);
        }
        self.read.set((start, state));
        let line = self.text.get(start..).and_then(|rest| rest.split('\n').next()).unwrap_or_default();
        Scan::of(line, state)
    }
}

/// A value in a line.
struct Value {
    /// Without quotes.
    text: Range<usize>,
    /// Whether its key stands in the same line.
    has_key: bool,
    hidden: Option<Range<usize>>,
}

/// What holds at the start of a line.
#[derive(Clone, Copy, Default)]
struct State<'t> {
    /// The last key that was written.
    key: Option<&'t str>,
    owner: Option<Owner>,
    /// Whether this is a plan, the keys of which are names of limits.
    is_plan: bool,
}

/// A name of a secret, to which all belongs that follows, also tables in it and lines below.
#[derive(Clone, Copy)]
struct Owner {
    is_exempt: bool,
    /// How many brackets are open that came after it.
    inner: usize,
    /// The bracket in which it stands.
    within: Option<u8>,
    /// Whether it is a value itself, such as that of `name`.
    is_value: bool,
    is_section: bool,
    ends_with_line: bool,
    /// Whether no value of it was found yet.
    waits: bool,
    /// The quotes of a text over several lines that is open.
    quotes: Option<&'static str>,
}

/// A line, followed as far as that goes without a parser.
struct Scan<'t> {
    line: &'t str,
    at: usize,
    state: State<'t>,
    values: Vec<Value>,
    /// The brackets that this line has opened, and how many values stood before each.
    open: Vec<(u8, usize)>,
    has_key: bool,
    /// Where the next word stands.
    place: Place,
    is_comment: bool,
}

/// Where a word stands: whether it may be a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The first of its line.
    Line,
    /// The first behind a comma or a brace.
    Entry,
    /// Elsewhere.
    Other,
}

impl<'t> Scan<'t> {
    /// What holds behind a line.
    fn above(line: &'t str, state: State<'t>) -> State<'t> {
        let mut scan = Self::new(line, state);
        while !scan.is_comment && scan.step() {}
        scan.state.owner = scan.state.owner.filter(|owner| !owner.ends_with_line);
        scan.state
    }

    /// The values of a line.
    fn of(line: &'t str, state: State<'t>) -> Vec<Value> {
        let mut scan = Self::new(line, state);
        while scan.step() {}
        scan.values
    }

    fn new(line: &'t str, state: State<'t>) -> Self {
        let mut scan = Self {
            line,
            at: 0,
            state,
            values: Vec::new(),
            open: Vec::new(),
            has_key: false,
            place: Place::Line,
            is_comment: false,
        };
        let is_inside = state.owner.is_some_and(|owner| owner.inner > 0 || owner.waits || owner.quotes.is_some());
        if let Some(name) = header(line).filter(|name| is_section(name) || !is_inside && is_key(name)) {
            let is_plan = name.starts_with("plan.");
            let mut parts = name.split('.').map(unquoted).filter(|_| !is_plan);
            let owner = parts.find_map(|part| owner_by(part, false));
            let owner = owner.map(|owner| Owner { is_section: true, waits: false, ..owner });
            scan.state = State { key: None, owner, is_plan };
            scan.at = line.find(name).unwrap_or(0) + name.len();
        } else if let Some(quotes) = state.owner.and_then(|owner| owner.quotes) {
            scan.take_text(quotes);
        }
        scan
    }

    fn rest(&self) -> &'t str {
        self.line.get(self.at..).unwrap_or_default()
    }

    /// Reads on by one word, literal or other character. Gives whether there was one.
    fn step(&mut self) -> bool {
        let Some(first) = self.rest().chars().next() else { return false };
        match first {
            '"' | '\'' => self.take_literal(first),
            _ if !is_between(first) => self.take_word(),
            _ => {
                self.at += first.len_utf8();
                self.take_between(first);
            }
        }
        true
    }

    fn take_between(&mut self, between: char) {
        match between {
            '#' => {
                self.is_comment = true;
                self.state.owner = self.state.owner.filter(|owner| !owner.ends_with_line);
            }
            // Of a comment no bracket counts.
            _ if self.is_comment => {}
            '[' | '{' => {
                self.open.push((if between == '[' { b'[' } else { b'{' }, self.values.len()));
                if let Some(owner) = &mut self.state.owner {
                    owner.inner += 1;
                }
                self.place = if between == '{' { Place::Entry } else { Place::Other };
            }
            ']' | '}' => {
                self.open.pop();
                self.place = Place::Other;
                match &mut self.state.owner {
                    Some(owner) if owner.inner > 0 => owner.inner -= 1,
                    Some(owner) if owner.within.is_some() => self.state.owner = None,
                    _ => {}
                }
            }
            ',' => self.place = Place::Entry,
            _ => {}
        }
    }

    /// Takes the literal that begins here.
    fn take_literal(&mut self, quote: char) {
        let quotes = if quote == '"' { "\"\"\"" } else { "'''" };
        if self.state.owner.is_some() && self.rest().starts_with(quotes) {
            self.at += quotes.len();
            return self.take_text(quotes);
        }
        let text = self.at + 1..self.at + end_of_literal(self.rest(), quote);
        let own = self.line.get(text.clone()).unwrap_or_default();
        self.at = (text.end + 1).min(self.line.len());
        let is_assigned = assigns(self.rest()) || self.rest().trim_start().starts_with(':');
        self.release(own, is_assigned);
        let place = std::mem::replace(&mut self.place, Place::Other);
        if self.state.owner.is_some() {
            if !is_before_value(own, is_assigned) {
                self.push(text, false);
            }
            return;
        }
        // Escapes may hide the name of a secret.
        if is_assigned && quote == '"' && own.contains('\\') {
            return self.own(Owner::new(false), is_assigned || place == Place::Line);
        }
        let owner = owner_in_literal(own, is_assigned).filter(|(owner, _)| !self.is_only_a_name(*owner));
        if let Some((owner, end)) = owner {
            self.own(owner, is_assigned || place == Place::Line);
            if end < own.len() {
                self.push(text.start + end..text.end, false);
            }
        } else if is_assigned && is_key(own) {
            (self.state.key, self.has_key) = (Some(own), true);
        } else {
            self.push(text, false);
        }
    }

    /// Takes a text in three quotes, from behind the first three, or all of the line where it does not end there.
    fn take_text(&mut self, quotes: &'static str) {
        let found = self.rest().find(quotes);
        let text = self.at..self.at + found.unwrap_or(self.rest().len());
        if let Some(owner) = &mut self.state.owner {
            owner.quotes = found.is_none().then_some(quotes);
        }
        self.at = (text.end + quotes.len()).min(self.line.len());
        self.place = Place::Other;
        self.push(text, false);
    }

    /// Takes the word without quotes that begins here.
    fn take_word(&mut self) {
        let start = self.at;
        let length = self.rest().find(is_between).unwrap_or(self.rest().len());
        let own = self.rest().get(..length).unwrap_or_default();
        self.at += length;
        // Other languages have these between a key and a value.
        if own.bytes().all(|byte| b"+:->".contains(&byte)) {
            return;
        }
        let is_assigned = assigns(self.rest()) || own.ends_with(':');
        let name = own.trim_end_matches(':');
        self.release(name, is_assigned);
        let place = std::mem::replace(&mut self.place, Place::Other);
        if self.state.owner.is_some() {
            if !is_before_value(name, is_assigned) {
                self.take_bare(start, own);
            }
        } else if let Some((owner, end)) =
            owner_in_word(own, is_assigned).filter(|(owner, _)| !self.is_only_a_name(*owner))
        {
            self.own(owner, is_assigned || place == Place::Line || !self.has_key);
            self.at = start + end;
        } else if is_assigned && is_key(name) {
            (self.state.key, self.has_key) = (Some(name), true);
        } else if own.starts_with(KEY) {
            self.take_bare(start, own);
        } else {
            self.push(start..self.at, true);
        }
    }

    /// Takes a secret without quotes. Nobody knows where it ends: credentials may hold commas.
    fn take_bare(&mut self, start: usize, own: &str) {
        if !is_short_number(own) {
            let is_list = self.state.owner.is_none_or(|owner| owner.is_exempt);
            let length = self.rest().find(|next| is_list && ",]}".contains(next)).unwrap_or(self.rest().len());
            let text = self.line.get(start..self.at + length).unwrap_or_default().trim_end();
            self.at = (start + text.len()).max(self.at);
            // It may be part of the secret, or begin a comment.
            self.is_comment |= text.contains('#');
        }
        self.push(start..self.at, true);
    }

    /// Ends the owner where `name`, which was just read, is surely a key beside it.
    fn release(&mut self, name: &str, is_assigned: bool) {
        let Some(owner) = self.state.owner.filter(|owner| !owner.is_section && !self.is_comment) else { return };
        let is_beside = is_assigned && owner.inner == 0 && is_key(name);
        let is_over = match self.place {
            Place::Line => is_beside || ENDS.contains(&name) && has_more(self.rest()),
            Place::Entry => is_beside && owner.within == Some(b'{') && !owner.is_value,
            Place::Other => false,
        };
        if is_over {
            self.state.owner = None;
        }
    }

    /// Whether the name of a secret owns nothing here: it is an entry of a list of names, or the name of a limit in a plan.
    fn is_only_a_name(&self, owner: Owner) -> bool {
        let key = self.state.key.and_then(|key| key.rsplit('.').next());
        let is_entry = !has_more(self.rest()) && key.is_some_and(|key| NAMES.contains(&key));
        is_entry || self.state.is_plan && !owner.is_exempt
    }

    /// Makes all that follows an owner's. `is_key`: it is written like a key, not like a value.
    fn own(&mut self, owner: Owner, is_key: bool) {
        let (within, before) = self.open.last().copied().unzip();
        let ends_with_line = !is_key && self.open.is_empty() && self.has_key;
        if let (false, Some(b'{'), Some(before)) = (is_key, within, before) {
            let values = self.values.get_mut(before..).unwrap_or_default();
            let near = values.iter_mut().rev().take(MAX_BEFORE).filter(|value| !value.text.is_empty());
            near.for_each(|value| value.hidden = Some(value.text.clone()));
        }
        self.state.owner = Some(Owner { within, is_value: !is_key, ends_with_line, ..owner });
        self.has_key |= is_key;
    }

    fn push(&mut self, text: Range<usize>, is_bare: bool) {
        let own = self.line.get(text.clone()).unwrap_or_default();
        let is_secret = self.state.owner.as_mut().is_some_and(|owner| {
            owner.waits = false;
            !(owner.is_exempt && looks_like_network(own) || is_bare && is_short_number(own))
        });
        let start = text.start + if own.starts_with(KEY) { KEY.len() } else { 0 };
        let is_hidden = (is_secret || own.starts_with(KEY)) && start < text.end;
        let hidden = is_hidden.then_some(start..text.end);
        self.values.push(Value { text, has_key: self.has_key, hidden });
    }
}

/// The owner that a word makes, and where its name ends in it.
fn owner_in_word(word: &str, is_assigned: bool) -> Option<(Owner, usize)> {
    let name = word.get(..length_of(word, |byte| is_name(byte) || byte == b'.'))?;
    let mut end = 0;
    name.split('.').find_map(|part| {
        let start = end;
        end += part.len() + 1;
        Some((owner_by(part, is_assigned)?, start + part.len()))
    })
}

/// The owner that a literal makes: it is a name, or has one before a value. And where that value begins.
fn owner_in_literal(literal: &str, is_assigned: bool) -> Option<(Owner, usize)> {
    let literal_from_name = literal.trim_start();
    let (name, rest) = literal_from_name.split_at_checked(length_of(literal_from_name, is_name))?;
    let rest = rest.trim_start();
    let Some(value) = rest.strip_prefix([':', '=']) else {
        return Some((owner_by(name, is_assigned)?, literal.len())).filter(|_| rest.is_empty());
    };
    // A server and its port.
    if !value.is_empty() && value.len() <= 5 && value.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some((owner_by(name, true)?, literal.len() - value.trim_start().len()))
}

fn owner_by(name: &str, is_assigned: bool) -> Option<Owner> {
    let is_exempt = is_exempt(name);
    (is_exempt || is_credential(name, is_assigned)).then(|| Owner::new(is_exempt))
}

impl Owner {
    fn new(is_exempt: bool) -> Self {
        Self {
            is_exempt,
            inner: 0,
            within: None,
            is_value: false,
            is_section: false,
            ends_with_line: false,
            waits: true,
            quotes: None,
        }
    }
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

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-".contains(&byte)
}

fn length_of(text: &str, is_part: impl Fn(u8) -> bool) -> usize {
    text.bytes().position(|byte| !is_part(byte)).unwrap_or(text.len())
}

fn is_key(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| is_name(byte) || byte == b'.')
}

/// Whether a text without quotes is a number that is too short for a secret.
fn is_short_number(text: &str) -> bool {
    text.len() <= 4 && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether a text that belongs to a secret is the key of a table there.
fn is_before_value(text: &str, is_assigned: bool) -> bool {
    let text = text.trim_start_matches('.');
    is_assigned && (ENDS.contains(&text) || BEFORE_VALUES.contains(&text))
}

/// Whether `rest` makes the text before it a key. Base64 may end in an equals sign too, but no value follows.
fn assigns(rest: &str) -> bool {
    let value = rest.trim_start().strip_prefix('=').map(str::trim_start);
    value.is_some_and(|value| !value.is_empty() && !value.starts_with([',', '=', ']', '}', '#']))
}

/// Whether something follows a word that stands before `rest`, so that it may be a key.
fn has_more(rest: &str) -> bool {
    let rest = rest.trim_start();
    !rest.is_empty() && !rest.starts_with([',', ']', '}', '#'])
}

/// The name in the header of a section, if a line looks like one, maybe broken.
fn header(line: &str) -> Option<&str> {
    let name = line.trim_start().strip_prefix('[')?.trim_start_matches('[');
    name.split([']', '#']).next().map(str::trim)
}

/// Whether a name in a header is that of a section, or was meant to be.
fn is_section(name: &str) -> bool {
    let first = unquoted(name.split('.').next().unwrap_or_default());
    nearest(first, SECTIONS).is_some()
}

fn unquoted(part: &str) -> &str {
    part.trim().trim_matches(['"', '\''])
}

fn is_exempt(name: &str) -> bool {
    let start = name.get(.."exempt".len());
    let begins = start.is_some_and(|start| start.eq_ignore_ascii_case("exempt"));
    // No other length is near: most words need not be compared.
    begins || (4..=8).contains(&name.len()) && nearest(name, ["exempt"]).is_some()
}

/// Whether a name is that of a header with credentials. A value is one only with capitals or hyphens: without them it may be
/// the name of anything.
fn is_credential(name: &str, is_key: bool) -> bool {
    let is_header = name.contains('-') || name.contains(|character: char| character.is_ascii_uppercase());
    let is_own = || is_header || ["authorization", "cookie"].contains(&name);
    names_a_secret(name) && if is_key { is_header || nearest(name, OPEN).is_none() } else { is_own() }
}
