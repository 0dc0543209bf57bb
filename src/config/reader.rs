//! A typed reader over a parsed TOML table. It keeps the place of every key and value, reports what is wrong and goes
//! on, and at the end reports the keys that nobody asked for.
//!
//! There is no serde mirror of the file, because serde stops at its first error; and an error at a time is one run of
//! `sluicegate check` per mistake.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::{Range, RangeInclusive};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::findings::{Finding, Findings, quoted, ticked};
use super::nearest::nearest;
use super::size::{parse_size, show_size};
use crate::time::Span;
use crate::words::Word;

/// What the messages call the file's outermost table.
const ROOT: &str = "the file";

/// One table of the file, read key by key.
pub(super) struct Reader<'t> {
    /// As the messages call it, such as `[[route]]`.
    what: String,
    table: &'t DeTable<'t>,
    /// The place of its header, or of the whole inline table.
    span: Range<usize>,
    asked: BTreeSet<&'static str>,
    misplaced: Vec<&'static str>,
    findings: &'t Findings,
}

impl<'t> Reader<'t> {
    /// A reader of `table`, whose header is at `span`.
    pub(super) fn new(
        what: impl Into<String>,
        table: &'t DeTable<'t>,
        span: Range<usize>,
        findings: &'t Findings,
    ) -> Self {
        Self { what: what.into(), table, span, asked: BTreeSet::new(), misplaced: Vec::new(), findings }
    }

    /// A reader of the outermost table.
    pub(super) fn root(table: &'t DeTable<'t>, findings: &'t Findings) -> Self {
        Self::new(ROOT, table, 0..0, findings)
    }

    /// The table itself.
    pub(super) fn written(&self) -> &'t DeTable<'t> {
        self.table
    }

    /// Where the findings go.
    pub(super) fn findings(&self) -> &'t Findings {
        self.findings
    }

    /// The place of the header.
    pub(super) fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// The value of a key that must be there.
    pub(super) fn required(&mut self, key: &'static str, example: &str) -> Option<Node<'t>> {
        if !self.table.contains_key(key) {
            self.asked.insert(key);
            if !self.has_misspelt(key) {
                self.absent(format!("{} has no `{key}`", self.what), format!("add {key} = {example}"));
            }
            return None;
        }
        self.optional(key)
    }

    /// The value of a key that may be there.
    pub(super) fn optional(&mut self, key: &'static str) -> Option<Node<'t>> {
        self.asked.insert(key);
        let (name, value) = self.table.get_key_value(key)?;
        // A value lost to a syntax error is an empty place; that error has been reported.
        let damaged = value.span().is_empty() || self.findings.is_damaged(&value.span());
        (!damaged).then(|| Node {
            label: format!("`{key}`"),
            key_span: name.span(),
            span: value.span(),
            value: value.get_ref(),
            alternative: "",
            findings: self.findings,
        })
    }

    /// Whether there is such a key, whatever its value.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Whether the value of this key has been asked for.
    pub(super) fn was_asked(&self, key: &str) -> bool {
        self.asked.contains(key)
    }

    /// Whether some key was surely meant to be this one. It will be reported as an unknown key, so that nothing needs
    /// to be said of the one that is missing.
    pub(super) fn has_misspelt(&self, key: &'static str) -> bool {
        self.table.keys().any(|written| nearest(written.get_ref(), [key]).is_some())
    }

    /// Every entry of a table whose keys are the user's own, by the key's text.
    pub(super) fn entries(&self) -> impl Iterator<Item = Node<'t>> {
        let findings = self.findings;
        self.table.iter().map(move |(key, value)| Node {
            label: key.get_ref().to_string(),
            key_span: key.span(),
            span: value.span(),
            value: value.get_ref(),
            alternative: "",
            findings,
        })
    }

    /// Reports a key that has its place elsewhere.
    pub(super) fn misplaced(&mut self, key: &'static str, help: &str) {
        if let Some((name, _)) = self.table.get_key_value(key) {
            self.misplaced.push(key);
            let message = format!("{} is no key of {}", ticked(key), self.what);
            self.findings.push(Finding::error(name.span(), message).help(help));
        }
    }

    /// Reports that something is not in this table.
    pub(super) fn absent(&self, message: impl Into<String>, help: impl Into<String>) {
        self.findings.push(Finding::absent(self.span(), message).help(help));
    }

    /// Ends the reading: reports keys of later versions and unknown ones.
    pub(super) fn done(self, later: &[&'static str]) {
        for key in self.table.keys() {
            let name: &str = key.get_ref();
            if self.asked.contains(name) || self.misplaced.contains(&name) {
                continue;
            }
            if later.contains(&name) {
                let message = if self.what == ROOT {
                    format!("the section {} is not in this version", ticked(name))
                } else {
                    format!("{} of {} is not in this version", ticked(name), self.what)
                };
                self.findings.push(Finding::error(key.span(), message).help("leave it out; a later version has it"));
            } else {
                self.findings.push(self.unknown(key, later));
            }
        }
    }
}

impl Reader<'_> {
    fn unknown(&self, key: &Spanned<Cow<'_, str>>, later: &[&'static str]) -> Finding {
        let name = ticked(key.get_ref());
        let known = || self.asked.iter().copied().chain(later.iter().copied());
        let near = if self.findings.has_room() { nearest(key.get_ref(), known()) } else { None };
        if self.what == ROOT {
            return self.unknown_in_root(key, near);
        }
        let message = format!("unknown key {name} in {}", self.what);
        let help = near.map_or_else(
            || format!("keys of {}: {}", self.what, self.asked.iter().copied().collect::<Vec<_>>().join(", ")),
            |near| format!("did you mean `{near}`?"),
        );
        Finding::error(key.span(), message).help(help)
    }

    fn unknown_in_root(&self, key: &Spanned<Cow<'_, str>>, near: Option<&str>) -> Finding {
        let name = ticked(key.get_ref());
        let is_section = self.table.get(&**key.get_ref()).is_some_and(|value| {
            value.get_ref().is_table()
                || value.get_ref().as_array().is_some_and(|items| items.iter().all(|item| item.get_ref().is_table()))
        });
        if !is_section {
            let message = format!("the key {name} stands before the first section");
            return Finding::error(key.span(), message)
                .help("move it below the header of its section, such as [server]");
        }
        let help = near.map_or_else(
            || format!("sections: {}", self.asked.iter().copied().collect::<Vec<_>>().join(", ")),
            |near| format!("did you mean `{near}`?"),
        );
        Finding::error(key.span(), format!("unknown section {name}")).help(help)
    }
}

/// One value of the file and its place.
pub(super) struct Node<'t> {
    /// As the messages call it: its key.
    label: String,
    key_span: Range<usize>,
    span: Range<usize>,
    value: &'t DeValue<'t>,
    /// The end of every remedy: what it takes beside the type that it is read as.
    alternative: &'static str,
    findings: &'t Findings,
}

impl<'t> Node<'t> {
    /// Its place.
    pub(super) fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// The place of its key.
    pub(super) fn key_span(&self) -> Range<usize> {
        self.key_span.clone()
    }

    /// How messages call it.
    pub(super) fn label(&self) -> &str {
        &self.label
    }

    /// Reports that it is wrong.
    pub(super) fn error(&self, message: impl Into<String>, help: impl Into<String>) {
        let help = format!("{}{}", help.into(), self.alternative);
        self.findings.push(Finding::error(self.span(), message).help(help));
    }

    /// Reports something at a place of the caller's choice.
    pub(super) fn push(&self, finding: Finding) {
        self.findings.push(finding);
    }

    /// Reports that its key is surely not meant.
    pub(super) fn warning(&self, message: impl Into<String>, help: impl Into<String>) {
        self.findings.push(Finding::warning(self.key_span(), message).help(help));
    }

    /// Reports a value that only a later version knows.
    pub(super) fn later(&self, now: &str) {
        let value = self.value.as_str().map(|text| format!(" = {}", quoted(text))).unwrap_or_default();
        self.error(format!("{}{value} is not in this version", self.label), format!("this version has {now}"));
    }

    /// Reports that it is of the wrong type.
    pub(super) fn wrong_type(&self, expected: &str, example: &str) {
        let found = match self.value {
            DeValue::String(_) => "a string",
            DeValue::Integer(_) => "an integer",
            DeValue::Float(_) => "a float",
            DeValue::Boolean(_) => "a boolean",
            DeValue::Datetime(_) => "a date or time",
            DeValue::Array(_) => "an array",
            DeValue::Table(_) => "a table",
        };
        self.error(format!("{} takes {expected}, not {found}", self.label), format!("write it as {example}"));
    }

    /// Its text if it is a string; no report if it is not.
    pub(super) fn as_text(&self) -> Option<&'t str> {
        self.value.as_str()
    }

    /// A string.
    pub(super) fn text(&self, expected: &str, example: &str) -> Option<&'t str> {
        let text = self.value.as_str();
        if text.is_none() {
            self.wrong_type(expected, example);
        }
        text
    }

    /// It, if it is a boolean; no report if it is not.
    pub(super) fn as_boolean(&self) -> Option<bool> {
        self.value.as_bool()
    }

    /// Whether it is a whole number.
    pub(super) fn is_integer(&self) -> bool {
        self.value.is_integer()
    }

    /// A boolean.
    pub(super) fn boolean(&self) -> Option<bool> {
        let boolean = self.value.as_bool();
        if boolean.is_none() {
            self.wrong_type("a boolean", "true or false");
        }
        boolean
    }

    /// A whole number within a range.
    pub(super) fn integer(&self, range: RangeInclusive<u64>) -> Option<u64> {
        let Some(integer) = self.value.as_integer() else {
            self.wrong_type("a whole number", &range.start().to_string());
            return None;
        };
        // TOML's own reader has checked the digits; what does not fit in 128 bits is far out of any range.
        let number = i128::from_str_radix(integer.as_str(), integer.radix()).ok();
        let number = number.and_then(|number| u64::try_from(number).ok());
        self.within(number, &range, &ticked(&integer.to_string()))
    }

    /// A number within a range, whole or not.
    pub(super) fn number(&self, range: &RangeInclusive<f64>) -> Option<f64> {
        let text = match self.value {
            DeValue::Integer(integer) if integer.radix() == 10 => integer.as_str(),
            DeValue::Float(float) => float.as_str(),
            _ => {
                self.wrong_type("a number", "1.25");
                return None;
            }
        };
        let number = text.parse::<f64>().ok().filter(|number| range.contains(number));
        if number.is_none() {
            self.out_of_range(&ticked(text), range.start(), range.end());
        }
        number
    }

    /// A duration within a range, such as `"250ms"`.
    pub(super) fn duration(&self, range: &RangeInclusive<Span>) -> Option<Span> {
        let text = self.text("a duration in quotes", "\"250ms\", \"5s\" or \"1m\"")?;
        match text.parse::<Span>() {
            Ok(span) => self.within(Some(span), range, &quoted(text)),
            Err(error) => {
                self.error(format!("{} = {} is no duration", self.label, quoted(text)), error.to_string());
                None
            }
        }
    }

    /// A duration within a range, or `"none"`.
    #[allow(clippy::option_option, reason = "the outer says whether it could be read, the inner what it says")]
    pub(super) fn duration_or_none(&self, range: &RangeInclusive<Span>) -> Option<Option<Span>> {
        if self.as_text() == Some("none") { Some(None) } else { self.or_none().duration(range).map(Some) }
    }

    /// A size in bytes within a range, such as `"64KiB"`, or a plain number of bytes.
    pub(super) fn size(&self, range: &RangeInclusive<u64>) -> Option<u64> {
        if self.value.is_integer() {
            return self.integer(range.clone());
        }
        let text = self.text("a size in quotes", "\"64KiB\", \"10MB\" or a plain number of bytes")?;
        let Some(bytes) = parse_size(text) else {
            let message = format!("{} = {} is no size", self.label, quoted(text));
            self.error(message, "a size is a whole number and one of B KiB MiB GiB KB MB GB, like \"64KiB\"");
            return None;
        };
        let in_range = range.contains(&bytes).then_some(bytes);
        if in_range.is_none() {
            self.out_of_range(&quoted(text), show_size(*range.start()), show_size(*range.end()));
        }
        in_range
    }

    /// A size in bytes within a range, or `"none"`.
    #[allow(clippy::option_option, reason = "the outer says whether it could be read, the inner what it says")]
    pub(super) fn size_or_none(&self, range: &RangeInclusive<u64>) -> Option<Option<u64>> {
        if self.as_text() == Some("none") { Some(None) } else { self.or_none().size(range).map(Some) }
    }

    /// A word of `W`.
    pub(super) fn word<W: Word>(&self) -> Option<W> {
        self.choice(&W::ALL.iter().map(|own| (own.word(), *own)).collect::<Vec<_>>(), &[])
    }

    /// One of a few words. `later` are words of later versions.
    pub(super) fn choice<T: Copy>(&self, words: &[(&'static str, T)], later: &[&'static str]) -> Option<T> {
        let first = words.first().map(|(word, _)| *word).unwrap_or_default();
        let text = self.text("a word in quotes", &format!("\"{first}\""))?;
        if let Some((_, meaning)) = words.iter().find(|(word, _)| *word == text) {
            return Some(*meaning);
        }
        let all = words.iter().map(|(word, _)| format!("\"{word}\"")).collect::<Vec<_>>().join(", ");
        if later.contains(&text) {
            self.later(&all);
            return None;
        }
        let help = match nearest(text, words.iter().map(|(word, _)| *word).chain(later.iter().copied())) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => format!("use one of {all}"),
        };
        self.error(format!("{} cannot be {}", self.label, quoted(text)), help);
        None
    }

    /// The items of an array.
    pub(super) fn items(&self, example: &str) -> Option<Vec<Node<'t>>> {
        let Some(array) = self.value.as_array() else {
            self.wrong_type("an array", example);
            return None;
        };
        Some(array.iter().map(|item| self.item(item)).collect())
    }

    /// The items of an array, or the value itself where it is none.
    pub(super) fn one_or_many(self) -> Vec<Node<'t>> {
        match self.value.as_array() {
            Some(array) => array.iter().map(|item| self.item(item)).collect(),
            None => vec![self],
        }
    }

    /// Whether it is an array.
    pub(super) fn is_array(&self) -> bool {
        self.value.is_array()
    }

    /// A table, to be read in its turn.
    pub(super) fn table(&self, what: impl Into<String>, example: &str) -> Option<Reader<'t>> {
        let reader = self.as_table(what);
        if reader.is_none() {
            self.wrong_type("a table", example);
        }
        reader
    }

    /// A table if it is one; no report if it is not.
    pub(super) fn as_table(&self, what: impl Into<String>) -> Option<Reader<'t>> {
        self.value.as_table().map(|table| Reader::new(what, table, self.span(), self.findings))
    }

    /// The same value as a place to report at, while the value itself is consumed.
    pub(super) fn place(&self) -> Node<'t> {
        Node { label: self.label.clone(), key_span: self.key_span(), span: self.span(), ..*self }
    }

    /// The same entry, reported at its key.
    pub(super) fn on_key(&self) -> Node<'t> {
        Node { span: self.key_span(), ..self.place() }
    }

    /// The same value, whose remedies say that it may be `"none"` too.
    fn or_none(&self) -> Node<'t> {
        Node { alternative: "; or \"none\"", ..self.place() }
    }

    fn item(&self, item: &'t Spanned<DeValue<'t>>) -> Node<'t> {
        Node {
            label: self.label.clone(),
            key_span: self.key_span(),
            span: item.span(),
            value: item.get_ref(),
            alternative: "",
            findings: self.findings,
        }
    }

    fn within<T: PartialOrd + Copy + fmt::Display>(
        &self,
        value: Option<T>,
        range: &RangeInclusive<T>,
        written: &str,
    ) -> Option<T> {
        let in_range = value.filter(|value| range.contains(value));
        if in_range.is_none() {
            self.out_of_range(written, range.start(), range.end());
        }
        in_range
    }

    fn out_of_range(&self, written: &str, low: impl fmt::Display, high: impl fmt::Display) {
        let message = format!("{} is out of range: {written}", self.label);
        self.error(message, format!("it goes from {low} to {high}"));
    }
}
