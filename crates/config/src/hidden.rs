//! The parts of the file that a report does not show. The file may hold secrets: keys that are exempt, credentials that a
//! route adds. A report of a mistake goes further than the file: to standard error, to the log, to the admin interface.
//!
//! The rule, which `docs/operating.md` tells:
//! - Of a file that is TOML a report shows the line, but no comment and no secret. Secret is the value of each key that is
//!   declared so ([`Secrecy`]), misspelt or not, and of each key that is named like a secret ([`names_a_secret`]) and is no
//!   key of the file; of the address of a webhook or a sink all behind its host, of that of followed rules all behind its path;
//!   all beside such a name, in its list or table, that is no key of the file; and a text such as `Authorization: VALUE`,
//!   `key:VALUE` or `redis://USER:VALUE@HOST`. All that is in such a value is hidden, over however many lines, but for the
//!   networks and short numbers that a list may hold.
//! - Of a file that is not TOML the same holds of the lines that surely belong to a key of the file ([`broken`]). Of any other
//!   line a report shows the key or header that begins it, and the equals sign, as far as these are words of the file's own
//!   language.
//!
//! In doubt too much is hidden.
//!
//! Messages keep to the rule by [`secret_in`] and [`may_repeat`].

mod broken;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::OnceLock;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::form::{Row, Secrecy};
use super::nearest::nearest;
use sluicegate_redact::names_a_secret;

/// Settings whose tables and lists have names of header fields in them.
const FIELDS: [&str; 5] = ["add", "headers", "request_headers", "response_headers", "set"];

/// Keys of a table of which one may name a header field whose value stands beside it.
const NAMES: [&str; 4] = ["field", "header", "key", "name"];

/// The beginning of a value of a limit's key in `exempt`.
const KEY: &str = "key:";

/// A number without quotes that is no longer is no secret.
const SHORT: usize = 4;

/// The words of the file. Without them, no word is known and all is hidden.
static LANGUAGE: OnceLock<Language> = OnceLock::new();

struct Language {
    /// Keys and sections of the file, each with how much of its value is shown. A word that is a secret in one table is one in all.
    words: HashMap<&'static str, Secrecy>,
    /// Those of which a report does not show all.
    guarded: Vec<(&'static str, Secrecy)>,
}

/// Tells the words of the file, as they are declared; to be called before a text is read. The declarations cannot be asked from
/// here, since they make reports themselves.
pub(super) fn declare(sections: impl Iterator<Item = (&'static str, Vec<Row>)>) {
    LANGUAGE.get_or_init(|| {
        // Of plans files the words above `[keys]`.
        let mut words: HashMap<&str, Secrecy> = ["default", "plan"].map(|word| (word, Secrecy::Shown)).into();
        for (name, rows) in sections {
            words.entry(name).or_insert(Secrecy::Shown);
            learn(&mut words, rows);
        }
        let guarded =
            words.iter().filter(|(_, own)| **own != Secrecy::Shown).map(|(word, own)| (*word, *own)).collect();
        Language { words, guarded }
    });
}

fn learn(all: &mut HashMap<&'static str, Secrecy>, rows: Vec<Row>) {
    for row in rows {
        let known = all.entry(row.key).or_insert(row.secrecy);
        if row.secrecy != Secrecy::Shown {
            *known = row.secrecy;
        }
        learn(all, row.form.rows());
    }
}

/// The words of which a report does not show all.
fn guarded() -> impl Iterator<Item = (&'static str, Secrecy)> {
    LANGUAGE.get().into_iter().flat_map(|language| language.guarded.iter().copied())
}

/// Whether a word is a key or a section of the file.
fn is_known(name: &str) -> bool {
    secrecy(name).is_some_and(|secrecy| secrecy != Secrecy::Tables)
}

/// How much of its value is shown; `None`: it is no word of the file.
fn secrecy(name: &str) -> Option<Secrecy> {
    LANGUAGE.get()?.words.get(name).copied()
}

/// Whether a text is written like a network, or tries to be one.
pub(super) fn looks_like_network(text: &str) -> bool {
    text.len() <= 50
        && text.contains(['.', ':'])
        && text.bytes().all(|byte| byte.is_ascii_hexdigit() || b":./".contains(&byte))
}

/// Where a secret begins that a text holds behind its name, wherever the text stands: a value of a limit's key, or a header
/// with credentials.
pub(super) fn secret_in(text: &str) -> Option<usize> {
    let own = text.trim_start();
    let (name, rest) = name_in(own);
    let rest = rest.trim_start();
    let value =
        rest.strip_prefix('=').or_else(|| rest.strip_prefix(':').filter(|value| value.starts_with([' ', '\t'])));
    let value = value.filter(|_| names_a_secret(name)).or_else(|| own.strip_prefix(KEY));
    let value = value.or_else(|| own.split_once("://").map(|(_, rest)| rest).filter(|rest| has_credentials(rest)))?;
    Some(text.len() - value.len())
}

/// Whether the address of a server, behind its scheme, says who asks: `user:password@host`, or `?password=` behind a path.
fn has_credentials(address: &str) -> bool {
    let query = address.split_once('?').map_or("", |(_, query)| query);
    address.contains('@') || query.split('&').any(|pair| names_a_secret(name_in(pair).0))
}

/// Whether a message may repeat this part of a `text` that is not TOML.
pub(super) fn may_repeat(text: &str, part: &Range<usize>) -> bool {
    let start = text.get(..part.start).and_then(|before| before.rfind('\n')).map_or(0, |newline| newline + 1);
    text.get(start..).is_some_and(|line| part.end <= start + shown(line))
}

/// The secrets of a text.
#[derive(Default)]
pub(super) struct Secrets {
    /// In order and apart from each other.
    hidden: Vec<Range<usize>>,
}

impl Secrets {
    /// Those of `text`, which is TOML or was meant to be.
    pub(super) fn of(text: &str) -> Self {
        let hidden = match DeTable::parse(text) {
            Ok(root) => Walk::over(text, root.get_ref()),
            Err(_) => broken::hidden(text),
        };
        Self { hidden: joined(hidden) }
    }

    /// Whether a report does not show the byte at this place.
    pub(super) fn hide(&self, at: usize) -> bool {
        self.hidden.get(self.hidden.partition_point(|range| range.end <= at)).is_some_and(|range| range.contains(&at))
    }
}

/// How many bytes are shown of a line that is not TOML.
fn shown(line: &str) -> usize {
    let mut rest = line.trim_start_matches([' ', '\t', '[']);
    loop {
        let (name, behind) = name_in(rest);
        if !is_known(name) {
            break;
        }
        let Some(part) = behind.strip_prefix('.') else {
            rest = behind.trim_start_matches([' ', '\t', ']', '=']);
            break;
        };
        rest = part;
    }
    line.len() - rest.len()
}

/// The meaning of the keys of a table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keys {
    Sections,
    Settings,
    /// Names of header fields: the user's own.
    Fields,
    /// Below an unknown key: those of settings or of fields.
    Unknown,
    /// Names of plans, and of limits in a plan.
    Plans,
    Limits,
}

impl Keys {
    /// Whether all is secret that `name` has for a value here.
    fn own_a_secret(self, name: &str) -> bool {
        let is_own = match self {
            Self::Sections | Self::Settings | Self::Unknown => !is_known(name),
            Self::Fields => true,
            Self::Plans | Self::Limits => false,
        };
        is_declared(name) || is_own && names_a_secret(name)
    }

    /// Whether names of header fields may stand here.
    fn may_be_fields(self) -> bool {
        matches!(self, Self::Fields | Self::Unknown)
    }

    /// The keys of a table that is the value of `name` here.
    fn below(self, name: &str) -> Self {
        match (self, name) {
            (Self::Sections, "plan") => Self::Plans,
            (Self::Plans, _) => Self::Limits,
            // Names of fields, without values.
            (Self::Fields, "remove") | (Self::Limits, _) => Self::Settings,
            (Self::Fields, _) => Self::Fields,
            (_, name) if FIELDS.iter().any(|fields| is_meant(name, fields)) => Self::Fields,
            // Nobody knows what an unknown key is for: it may be a spelling of these, or that of another program.
            (Self::Unknown, _) => Self::Unknown,
            (_, name) if !is_known(name) => Self::Unknown,
            _ => Self::Settings,
        }
    }
}

/// Finds what is hidden of a text that is TOML.
struct Walk<'t> {
    text: &'t str,
    hidden: Vec<Range<usize>>,
    /// Literals with a `#`, which begins no comment.
    hashes: Vec<Range<usize>>,
    /// The line that was asked for last.
    line: Range<usize>,
}

impl<'t> Walk<'t> {
    fn over(text: &'t str, root: &DeTable<'_>) -> Vec<Range<usize>> {
        let mut walk = Self { text, hidden: Vec::new(), hashes: Vec::new(), line: 0..0 };
        walk.table(root, Keys::Sections);
        walk.comments();
        walk.hidden
    }

    fn table(&mut self, table: &DeTable<'_>, keys: Keys) {
        let is_pair = table.values().any(names_a_field);
        for (key, value) in table {
            let name = &**key.get_ref();
            self.literal(key.span(), secret_in(name).is_some());
            let is_other = is_pair && !NAMES.contains(&name);
            let is_value = is_other && (keys.may_be_fields() || !is_known(name) || is_meant(name, "value"));
            let secrecy = secrecy(name).unwrap_or(Secrecy::Shown);
            if secrecy == Secrecy::Hash && is_hash(value) {
                self.literal(value.span(), false);
            } else if secrecy == Secrecy::Tables && is_list_of_tables(value) {
                self.value(value, Keys::Settings);
            } else if self.is_address(name, value, Secrecy::Host) {
                self.address(value, host_end);
            } else if self.is_address(name, value, Secrecy::Path) {
                self.address(value, path_end);
            } else if keys.own_a_secret(name) || is_value {
                self.secret(value, is_declared(name));
            } else {
                self.value(value, keys.below(name));
            }
        }
    }

    fn value(&mut self, value: &Spanned<DeValue<'_>>, keys: Keys) {
        let is_field = keys.may_be_fields();
        match value.get_ref() {
            DeValue::Table(table) => self.table(table, keys),
            DeValue::Array(items) => {
                let names_one = |item: &Spanned<DeValue<'_>>| item.get_ref().as_str().is_some_and(names_a_secret);
                if is_field && items.iter().any(names_one) {
                    return self.secret(value, false);
                }
                items.iter().for_each(|item| self.value(item, keys));
            }
            DeValue::String(text) => {
                let (name, rest) = name_in(text.trim_start());
                let is_header = keys == Keys::Fields && !rest.is_empty() && names_a_secret(name);
                self.literal(value.span(), is_header || secret_in(text).is_some());
            }
            _ => {}
        }
    }

    /// Hides all of a value; of a list of networks and secrets only these.
    fn secret(&mut self, value: &Spanned<DeValue<'_>>, is_list: bool) {
        match value.get_ref() {
            DeValue::Table(table) => {
                // Of keys that are written again, as parts of others or in headers, the tree has only the first place.
                if self.text.get(value.span()).is_some_and(|written| written.starts_with('[')) {
                    self.hidden.push(value.span());
                }
                for (key, value) in table {
                    let before = self.text.get(..key.span().start).unwrap_or_default();
                    if before.trim_end_matches([' ', '\t']).ends_with('.') {
                        let line = self.start_of_line(before.len());
                        self.hidden.push(line..before.len());
                    }
                    self.literal(key.span(), true);
                    self.secret(value, is_list);
                }
            }
            DeValue::Array(items) => items.iter().for_each(|item| self.secret(item, is_list)),
            DeValue::String(text) => self.literal(value.span(), !(is_list && looks_like_network(text))),
            _ if value.span().len() <= SHORT => {}
            _ => self.hidden.push(value.span()),
        }
    }

    /// Hides of an address all behind its host, or its path.
    fn address(&mut self, value: &Spanned<DeValue<'_>>, end: fn(&str) -> Option<usize>) {
        let span = value.span();
        let shown = value.get_ref().as_str().and(self.text.get(span.clone())).and_then(end);
        match shown {
            Some(shown) => {
                self.hidden.push(span.start + shown..span.end - 1);
                // It begins no comment.
                self.hashes.push(span);
            }
            None => self.secret(value, false),
        }
    }

    /// Whether a value is the address of a key that is shown so far. Many words are like these names, so where one is misspelt
    /// the value tells.
    fn is_address(&self, name: &str, value: &Spanned<DeValue<'_>>, shown: Secrecy) -> bool {
        let has_address = || self.text.get(value.span()).is_some_and(|written| written.contains('/'));
        secrecy(name) == Some(shown) || is_meant_as(name, |own| own == shown) && has_address()
    }

    /// Where the line of a place begins. One line may have all the keys of a file.
    fn start_of_line(&mut self, at: usize) -> usize {
        if !self.line.contains(&at) {
            let (before, behind) = self.text.split_at_checked(at).unwrap_or_default();
            let end = behind.find('\n').map_or(usize::MAX, |length| at + length + 1);
            self.line = before.rfind('\n').map_or(0, |newline| newline + 1)..end;
        }
        self.line.start
    }

    /// Takes a key or a text: its quotes are shown, and how it begins.
    fn literal(&mut self, span: Range<usize>, is_secret: bool) {
        let written = self.text.get(span.clone()).unwrap_or_default();
        let quotes = match written.as_bytes() {
            [b'"', b'"', b'"', _, ..] | [b'\'', b'\'', b'\'', _, ..] => 3,
            [b'"' | b'\'', ..] => 1,
            _ => 0,
        };
        let prefix = written.get(quotes..).map_or(0, |own| if own.starts_with(KEY) { KEY.len() } else { 0 });
        if is_secret {
            self.hidden.push(span.start + quotes + prefix..span.end.saturating_sub(quotes));
        }
        if written.contains('#') {
            self.hashes.push(span);
        }
    }

    /// Hides the comments: what stands there may have been a setting.
    fn comments(&mut self) {
        self.hashes.sort_unstable_by_key(|literal| literal.start);
        let mut literals = self.hashes.iter().peekable();
        let mut at = 0;
        while let Some(hash) = self.text.get(at..).and_then(|rest| rest.find('#')).map(|length| at + length) {
            while literals.next_if(|literal| literal.end <= hash).is_some() {}
            at = match literals.peek() {
                Some(literal) if literal.start < hash => literal.end,
                _ => {
                    let rest = self.text.get(hash..).unwrap_or_default();
                    let end = hash + rest.find('\n').unwrap_or(rest.len());
                    self.hidden.push(hash + 1..end);
                    end
                }
            };
        }
    }
}

/// The same ranges in order, without those that are empty, and joined where they touch.
fn joined(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let touches = next.start <= last.end;
        if touches {
            last.end = last.end.max(next.end);
        }
        touches
    });
    ranges
}

/// Where the host ends of an address in quotes, if it is written so that nothing of a secret stands before.
fn host_end(written: &str) -> Option<usize> {
    let quote = written.chars().next()?;
    let address = written.strip_prefix(quote)?.strip_suffix(quote)?;
    let host = address.strip_prefix("https://").or_else(|| address.strip_prefix("http://"))?;
    let length = host.find(['/', '?', '#']).unwrap_or(host.len());
    let is_host = |own: char| own.is_ascii_alphanumeric() || "-._:[]".contains(own);
    host.get(..length)?.chars().all(is_host).then_some(1 + address.len() - host.len() + length)
}

/// The same of its path.
fn path_end(written: &str) -> Option<usize> {
    let host = host_end(written)?;
    let rest = written.get(host..)?;
    Some(host + rest.find(['?', '#']).unwrap_or(rest.len() - 1))
}

fn is_list_of_tables(value: &Spanned<DeValue<'_>>) -> bool {
    let is_table = |item: &Spanned<DeValue<'_>>| matches!(item.get_ref(), DeValue::Table(_));
    value.get_ref().as_array().is_some_and(|items| items.iter().all(is_table))
}

/// Whether a value is a SHA-256.
fn is_hash(value: &Spanned<DeValue<'_>>) -> bool {
    let text = value.get_ref().as_str();
    text.is_some_and(|text| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Whether a key is one that is declared secret, or was meant to be.
fn is_declared(name: &str) -> bool {
    let is_secret = |own: Secrecy| matches!(own, Secrecy::Hidden | Secrecy::Hash);
    let begins = |own: &str| name.get(..own.len()).is_some_and(|start| start.eq_ignore_ascii_case(own));
    is_meant_as(name, is_secret) || guarded().any(|(own, secrecy)| is_secret(secrecy) && begins(own))
}

/// Whether a key is one of those, or a misspelt one.
fn is_meant_as(name: &str, is_one: impl Fn(Secrecy) -> bool) -> bool {
    guarded().any(|(own, secrecy)| is_one(secrecy) && is_meant(name, own))
}

/// Whether a key is `setting`, or a misspelt one.
fn is_meant(name: &str, setting: &str) -> bool {
    name == setting || !is_known(name) && nearest(name, [setting]).is_some()
}

/// Whether a value is the name of a field with secrets; no name of a file, nor a key such as `header:x-api-key`.
fn names_a_field(value: &Spanned<DeValue<'_>>) -> bool {
    value.get_ref().as_str().is_some_and(|text| text.chars().all(is_name) && names_a_secret(text))
}

/// The name that a text begins with, and what follows.
fn name_in(text: &str) -> (&str, &str) {
    text.split_at(text.find(|own: char| !is_name(own)).unwrap_or(text.len()))
}

fn is_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || "_-".contains(character)
}
