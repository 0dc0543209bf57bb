//! A typed reader over a parsed TOML table. It keeps the place of every key and value, reports what is wrong and goes
//! on, and at the end reports the keys that nobody asked for.
//!
//! There is no serde mirror of the file, because serde stops at its first error; and an error at a time is one run of
//! `sluicegate check` per mistake.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::fmt::Write as _;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use super::findings::{Finding, Findings, Reported, quoted, ticked};
use super::nearest::nearest;

/// The name of the file's outermost table in messages.
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
    passed_over: BTreeSet<&'static str>,
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
        let (asked, misplaced, passed_over) = (BTreeSet::new(), Vec::new(), BTreeSet::new());
        Self { what: what.into(), table, span, asked, misplaced, passed_over, findings }
    }

    /// A reader of the outermost table.
    pub(super) fn root(table: &'t DeTable<'t>, findings: &'t Findings) -> Self {
        Self::new(ROOT, table, 0..0, findings)
    }

    /// The same of a text that the file follows, which begins at `start`.
    pub(super) fn followed(table: &'t DeTable<'t>, start: usize, findings: &'t Findings) -> Self {
        Self::new(ROOT, table, start..start, findings)
    }

    /// The place to name for what an outermost table lacks; `None`: the file as a whole.
    pub(super) fn place(&self) -> Option<Range<usize>> {
        (self.span.start > 0).then(|| self.span())
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

    /// Reports that a key which must be there is not. If it is misspelt, the unknown key is what is reported.
    pub(super) fn lacks(&self, key: &'static str, example: &str) -> Reported {
        if self.has_misspelt(key) {
            return Findings::reported_as_unknown();
        }
        self.absent(format!("{} has no `{key}`", self.what), format!("add {key} = {example}"))
    }

    /// The value of a key that may be there.
    pub(super) fn find(&mut self, key: &'static str) -> FoundKey<'t> {
        if self.passed_over.contains(key) {
            return FoundKey::Absent;
        }
        self.asked.insert(key);
        let Some((name, value)) = self.table.get_key_value(key) else { return FoundKey::Absent };
        // A value lost to a syntax error is an empty place.
        if value.span().is_empty() || self.findings.is_damaged(&value.span()) {
            return FoundKey::Lost(self.findings.reported_as_syntax());
        }
        FoundKey::Written(Node {
            label: format!("`{key}`"),
            key_span: name.span(),
            span: value.span(),
            value: value.get_ref(),
            or_word: None,
            findings: self.findings,
        })
    }

    /// The same of a key that must be there; one that is not is reported.
    pub(super) fn required(&mut self, key: &'static str, example: &str) -> Option<Node<'t>> {
        let found = self.find(key);
        if let FoundKey::Absent = found {
            self.lacks(key, example);
        }
        found.written()
    }

    /// [`find`](Self::find); `None` where it is not written, or where an error has been reported.
    pub(super) fn optional(&mut self, key: &'static str) -> Option<Node<'t>> {
        self.find(key).written()
    }

    /// Whether there is such a key, whatever its value.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// From now on a key is none of this table's, and no error where it is written.
    pub(super) fn pass_over(&mut self, key: &'static str) {
        if self.has(key) {
            self.asked.insert(key);
        }
        self.passed_over.insert(key);
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
            or_word: None,
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
    pub(super) fn absent(&self, message: impl Into<String>, help: impl Into<String>) -> Reported {
        self.findings.report(Finding::absent(self.span(), message).help(help))
    }

    /// Ends the reading: reports unknown keys.
    pub(super) fn done(self) {
        for key in self.table.keys() {
            let name: &str = key.get_ref();
            if self.asked.contains(name) || self.misplaced.contains(&name) {
                continue;
            }
            self.findings.push(self.unknown(key));
        }
    }
}

impl Reader<'_> {
    fn unknown(&self, key: &Spanned<Cow<'_, str>>) -> Finding {
        let name = self.named(key);
        let near = if self.findings.has_room() { nearest(key.get_ref(), self.asked.iter().copied()) } else { None };
        if self.what == ROOT {
            return self.unknown_in_root(key, near);
        }
        let message = format!("unknown key{name} in {}", self.what);
        let all = || format!("keys of {}: {}", self.what, self.asked.iter().copied().collect::<Vec<_>>().join(", "));
        let help = match (foreign(key.get_ref()), near) {
            (_, Some(near)) => format!("did you mean `{near}`?"),
            (Some(help), None) => help.to_owned(),
            (None, None) => all(),
        };
        Finding::error(key.span(), message).help(help)
    }

    /// A key that nobody asked for, if it may be named: where the text is no TOML, it may be part of a secret.
    fn named(&self, key: &Spanned<Cow<'_, str>>) -> String {
        if self.findings.are_of_toml() { format!(" {}", ticked(key.get_ref())) } else { String::new() }
    }

    fn unknown_in_root(&self, key: &Spanned<Cow<'_, str>>, near: Option<&str>) -> Finding {
        let name = self.named(key);
        let is_section = self.table.get(&**key.get_ref()).is_some_and(|value| {
            value.get_ref().is_table()
                || value.get_ref().as_array().is_some_and(|items| items.iter().all(|item| item.get_ref().is_table()))
        });
        if !is_section {
            let message = format!("the key{name} stands before the first section");
            let help = foreign(key.get_ref()).unwrap_or("move it below the header of its section, such as [server]");
            return Finding::error(key.span(), message).help(help);
        }
        let help = near.map_or_else(
            || format!("sections: {}", self.asked.iter().copied().collect::<Vec<_>>().join(", ")),
            |near| format!("did you mean `{near}`?"),
        );
        Finding::error(key.span(), format!("unknown section{name}")).help(help)
    }
}

/// The remedy for a key of other programs that is none here, whatever the section.
fn foreign(key: &str) -> Option<&'static str> {
    Some(match key {
        "include" => {
            "the configuration is one file, and includes none; plans of keys have files of their own, and [rules] follow takes rules \
             from elsewhere"
        }
        "allow" | "deny" | "allow_from" | "deny_from" => {
            "networks are allowed and denied for the whole gateway, by `allow` and `deny` of [client]"
        }
        "gzip" | "brotli" | "compress" | "compression" => {
            "the gateway compresses nothing: let the server do it, whose responses pass as they are"
        }
        "proxy_pass" | "backend" | "default_backend" | "reverse_proxy" => {
            "a [[route]] forwards to an [[upstream]] by its name: upstream = \"app\""
        }
        _ => return None,
    })
}

/// A key as it is found in its table.
pub(super) enum FoundKey<'t> {
    /// It is not written.
    Absent,
    /// Something is wrong, so that there is no value to look at.
    Lost(Reported),
    /// Its value.
    Written(Node<'t>),
}

impl<'t> FoundKey<'t> {
    fn written(self) -> Option<Node<'t>> {
        match self {
            Self::Written(node) => Some(node),
            Self::Absent | Self::Lost(_) => None,
        }
    }
}

/// One value of the file and its place.
pub(super) struct Node<'t> {
    /// As the messages call it: its key.
    label: String,
    key_span: Range<usize>,
    span: Range<usize>,
    value: &'t DeValue<'t>,
    /// A word that it takes beside the type that it is read as; every remedy ends with it.
    or_word: Option<&'static str>,
    findings: &'t Findings,
}

impl<'t> Node<'t> {
    /// Where the findings go.
    pub(super) fn findings(&self) -> &'t Findings {
        self.findings
    }

    /// A value that stands nowhere: the default of `key`.
    pub(super) fn by_default(key: &str, value: &'t DeValue<'t>, findings: &'t Findings) -> Self {
        Self { label: format!("`{key}`"), key_span: 0..0, span: 0..0, value, or_word: None, findings }
    }

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

    /// Reports that it is wrong. Where the text is no TOML, nothing is said of a text over several lines: it may have begun
    /// with the quotes that were to end another one, and hold secrets of the lines between.
    pub(super) fn error(&self, message: impl Into<String>, help: impl Into<String>) -> Reported {
        if !self.findings.are_of_toml() && self.value.as_str().is_some_and(|text| text.contains('\n')) {
            return self.findings.reported_as_syntax();
        }
        let mut help = help.into();
        // A question suggests another word already.
        if let Some(word) = self.or_word.filter(|_| !help.ends_with('?')) {
            let _ = write!(help, "; or \"{word}\"");
        }
        self.report(Finding::error(self.span(), message).help(help))
    }

    /// Reports an error at a place of the caller's choice.
    pub(super) fn report(&self, error: Finding) -> Reported {
        self.findings.report(error)
    }

    /// Reports something at a place of the caller's choice.
    pub(super) fn push(&self, finding: Finding) {
        self.findings.push(finding);
    }

    /// Reports that its key is surely not meant.
    pub(super) fn warning(&self, message: impl Into<String>, help: impl Into<String>) {
        self.findings.push(Finding::warning(self.key_span(), message).help(help));
    }

    /// Reports that it is of the wrong type.
    pub(super) fn wrong_type(&self, expected: &str, example: &str) -> Reported {
        let found = match self.value {
            DeValue::String(_) => "a string",
            DeValue::Integer(_) => "an integer",
            DeValue::Float(_) => "a float",
            DeValue::Boolean(_) => "a boolean",
            DeValue::Datetime(_) => "a date or time",
            DeValue::Array(_) => "an array",
            DeValue::Table(_) => "a table",
        };
        self.error(format!("{} takes {expected}, not {found}", self.label), format!("write it as {example}"))
    }

    /// Its text if it is a string; no report if it is not.
    pub(super) fn as_text(&self) -> Option<&'t str> {
        self.value.as_str()
    }

    /// [`string`](Self::string), where an error has been reported: `None`.
    pub(super) fn text(&self, expected: &str, example: &str) -> Option<&'t str> {
        self.string(expected, example).ok()
    }

    /// A string.
    pub(super) fn string(&self, expected: &str, example: &str) -> Result<&'t str, Reported> {
        self.value.as_str().ok_or_else(|| self.wrong_type(expected, example))
    }

    /// It, if it is a boolean; no report if it is not.
    pub(super) fn as_boolean(&self) -> Option<bool> {
        self.value.as_bool()
    }

    /// Whether it is a whole number.
    pub(super) fn is_integer(&self) -> bool {
        self.value.is_integer()
    }

    /// It, if it is a whole number; no report if it is not.
    pub(super) fn as_integer(&self) -> Option<&'t DeInteger<'t>> {
        self.value.as_integer()
    }

    /// Its text, if it is a decimal number; no report if it is not.
    pub(super) fn as_decimal(&self) -> Option<&'t str> {
        match self.value {
            DeValue::Integer(integer) if integer.radix() == 10 => Some(integer.as_str()),
            DeValue::Float(float) => Some(float.as_str()),
            _ => None,
        }
    }

    /// One of a few words.
    pub(super) fn one_of<T: Copy>(&self, words: &[(&'static str, T)]) -> Result<T, Reported> {
        let first = words.first().map(|(word, _)| *word).unwrap_or_default();
        let text = self.string("a word in quotes", &format!("\"{first}\""))?;
        if let Some((_, meaning)) = words.iter().find(|(word, _)| *word == text) {
            return Ok(*meaning);
        }
        let all = words.iter().map(|(word, _)| format!("\"{word}\"")).collect::<Vec<_>>().join(", ");
        let help = match nearest(text, words.iter().map(|(word, _)| *word)) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => format!("use one of {all}"),
        };
        Err(self.error(format!("{} cannot be {}", self.label, quoted(text)), help))
    }

    /// [`array`](Self::array), where an error has been reported: `None`.
    pub(super) fn items(&self, example: &str) -> Option<Vec<Node<'t>>> {
        self.array(example).ok()
    }

    /// The items of an array.
    pub(super) fn array(&self, example: &str) -> Result<Vec<Node<'t>>, Reported> {
        let array = self.value.as_array().ok_or_else(|| self.wrong_type("an array", example))?;
        Ok(array.iter().map(|item| self.item(item)).collect())
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

    /// [`inner`](Self::inner), where an error has been reported: `None`.
    pub(super) fn table(&self, what: impl Into<String>, example: &str) -> Option<Reader<'t>> {
        self.inner(what, example).ok()
    }

    /// A table, to be read in its turn.
    pub(super) fn inner(&self, what: impl Into<String>, example: &str) -> Result<Reader<'t>, Reported> {
        self.as_table(what).ok_or_else(|| self.wrong_type("a table", example))
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

    /// The same value, of which every remedy says that it may be this word, too.
    pub(super) fn or_word(&self, word: &'static str) -> Node<'t> {
        Node { or_word: Some(word), ..self.place() }
    }

    fn item(&self, item: &'t Spanned<DeValue<'t>>) -> Node<'t> {
        Node {
            label: self.label.clone(),
            key_span: self.key_span(),
            span: item.span(),
            value: item.get_ref(),
            or_word: None,
            findings: self.findings,
        }
    }

    /// Reports that it is too small or too large.
    pub(super) fn out_of_range(&self, written: &str, low: impl fmt::Display, high: impl fmt::Display) -> Reported {
        let message = format!("{} is out of range: {written}", self.label);
        self.error(message, format!("it goes from {low} to {high}"))
    }
}
