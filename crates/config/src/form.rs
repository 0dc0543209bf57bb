//! The form of the values that a key takes. Its declaration names it, and what tells all keys comes from it: the reference in
//! words, the schema in JSON Schema.

use super::size::show_size;
use sluicegate_admission::MAX_KEY_PARTS;
use sluicegate_time::Span;
use sluicegate_words::Word;

/// The form of a value. Numbers are the least and the most.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    /// `true` or `false`.
    Flag,
    /// A whole number.
    Whole(u64, u64),
    /// A number.
    Number(f64, f64),
    /// Bytes, as a text such as `"64KiB"` or as a number.
    Size(u64, u64),
    /// A share, such as `"50%"`.
    Percent(u32, u32),
    /// A time, such as `"250ms"`.
    Duration(Span, Span),
    /// A rate, such as `"100/s"`.
    Rate,
    /// Bytes in a time, such as `"10MiB/s"`.
    ByteRate,
    /// Bytes in a second.
    BytesPerSecond(u64, u64),
    /// One of these whole numbers.
    Numbers(&'static [u64]),
    /// Any text that these words describe.
    Text(&'static str),
    /// One of these words, each with its doc.
    Words(fn() -> Vec<(&'static str, &'static str)>),
    /// A list, and how many items it has.
    List(&'static Form, usize, usize),
    /// A table whose keys are declared.
    Table(fn() -> Vec<Row>),
    /// A table whose keys are the user's own, which these words describe.
    Entries(&'static str, &'static Form),
    /// One of these.
    Either(&'static [Form]),
}

/// A key as it is declared.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) key: &'static str,
    /// Its doc comment.
    pub(super) doc: &'static str,
    /// The form of its values.
    pub(super) form: Form,
    /// A word that it takes beside them.
    pub(super) word: Option<&'static str>,
    /// The meaning of a file without it.
    pub(super) absent: NotWritten,
    /// Whether a change waits for a restart.
    pub(super) needs_restart: bool,
    /// How much of its value a report shows.
    pub(super) secrecy: Secrecy,
}

/// How much of the value of a key a report of a mistake shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Secrecy {
    /// All of it, but for texts that look like secrets.
    Shown,
    /// Networks alone; of the value of a limit's key how it begins.
    Hidden,
    /// A SHA-256, and nothing else: the token itself may have been written.
    Hash,
    /// A list of tables, whose keys say more. As anything else it may hold secrets themselves.
    Tables,
    /// An address up to the end of its host.
    Host,
    /// An address up to the end of its path.
    Path,
    /// All of it; in a text that is not TOML networks alone.
    Networks,
}

/// The meaning of a file without a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotWritten {
    /// That of the default, as it would be written.
    Default(&'static str),
    /// These words tell it.
    Means(&'static str),
    /// An error, whose remedy has this example.
    Required(&'static str),
}

impl Row {
    /// The values that it takes, in words.
    pub(super) fn takes(&self) -> String {
        let form = self.form.takes();
        match self.word {
            Some(word) => format!("{form}; or `\"{word}\"`"),
            None => form,
        }
    }
}

/// A status of an answer, or a class of them, or one that is taken out.
pub(super) const STATUS: Form =
    Form::Text("a status such as \"401\", a class of them such as \"5xx\", or one that is taken out such as \"!422\"");

/// A network, or an address alone.
pub(super) const NETWORK: Form = Form::Text("a network such as \"10.0.0.0/8\", or an address alone");

/// The name of a section.
pub(super) const NAME: Form = Form::Text("a name: 1 to 64 of `A-Z a-z 0-9 . _ -`");

/// The name of a header field.
pub(super) const FIELD: Form = Form::Text("the name of a header");

/// The path of a file.
pub(super) const FILE: Form = Form::Text("the path of a file, relative to the directory of this one");

/// The one or the several parts of a key.
pub(super) const KEY: Form = Form::Either(&[KEY_PART, Form::List(&KEY_PART, 1, MAX_KEY_PARTS)]);

const KEY_PART: Form = Form::Text(
    "a source: \"client-ip\", \"header:NAME\", \"cookie:NAME\", \"query:NAME\", \"json:/POINTER\", \"form:NAME\", \"host\", \
     \"method\", \"path\", \"route\", \"basic:user\", \"tls:subject\", \"tls:fingerprint\" or \"global\"",
);

/// The same of a key that is made of the head of a request alone.
pub(super) const HEAD_KEY: Form = Form::Either(&[HEAD_KEY_PART, Form::List(&HEAD_KEY_PART, 1, MAX_KEY_PARTS)]);

const HEAD_KEY_PART: Form = Form::Text(
    "a source: \"client-ip\", \"header:NAME\", \"cookie:NAME\", \"query:NAME\", \"host\", \"method\", \"path\", \"route\", \
     \"basic:user\", \"tls:subject\", \"tls:fingerprint\", \"jwt:CLAIM\", \"jwt-unverified:CLAIM\" or \"global\"",
);

impl Form {
    /// The words of `W`.
    pub(super) const fn words<W: Word>() -> Self {
        Self::Words(|| W::ALL.iter().map(|own| (own.word(), own.doc())).collect())
    }

    /// The form in words, as Markdown. Tables are told elsewhere.
    pub(super) fn takes(self) -> String {
        match self {
            Self::Flag => "`true` or `false`".to_owned(),
            Self::Whole(least, most) => format!("a whole number, {least} to {most}"),
            Self::Number(least, most) => format!("a number, {least} to {most}"),
            Self::Size(least, most) => format!("a size, {} to {}", show_size(least), show_size(most)),
            Self::Percent(least, most) => format!("a share, {least}% to {most}%"),
            Self::Duration(least, most) => format!("a duration, {least} to {most}"),
            Self::Rate => "a rate".to_owned(),
            Self::ByteRate => "bytes in a time, such as `\"10MiB/s\"`".to_owned(),
            Self::BytesPerSecond(least, most) => {
                format!("bytes a second, `\"{}/s\"` to `\"{}/s\"`", show_size(least), show_size(most))
            }
            Self::Numbers(all) => all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            Self::Text(words) => in_code(words),
            Self::Words(words) => {
                let words: Vec<_> = words().iter().map(|(word, _)| format!("`\"{word}\"`")).collect();
                words.join(", ")
            }
            Self::List(item, least, most) => format!("a list{}{}", how_many(least, most), item.takes()),
            Self::Table(_) => "a table".to_owned(),
            Self::Entries(names, value) => format!("a table with {names}, each with {}", value.takes()),
            Self::Either(forms) => one_of(forms),
        }
    }

    /// The words that it may be, each with its doc.
    pub(super) fn all_words(self) -> Vec<(&'static str, &'static str)> {
        match self {
            Self::Words(words) => words(),
            Self::List(form, ..) | Self::Entries(_, form) => form.all_words(),
            Self::Either(forms) => forms.iter().flat_map(|form| form.all_words()).collect(),
            _ => Vec::new(),
        }
    }

    /// The keys of the table that it is, or that stands in it.
    pub(super) fn rows(self) -> Vec<Row> {
        match self {
            Self::Table(rows) => rows(),
            Self::List(form, ..) | Self::Entries(_, form) => form.rows(),
            Self::Either(forms) => forms.iter().flat_map(|form| form.rows()).collect(),
            _ => Vec::new(),
        }
    }
}

/// The forms one after the other; a list of the one before is not told twice.
fn one_of(forms: &[Form]) -> String {
    let mut told: Vec<String> = Vec::new();
    for form in forms {
        let words = match form {
            Form::List(item, ..) if told.last() == Some(&item.takes()) => "a list of these".to_owned(),
            _ => form.takes(),
        };
        told.push(words);
    }
    told.join("; or ")
}

/// The number of items, before what they are.
fn how_many(least: usize, most: usize) -> String {
    match (least, most) {
        (0, usize::MAX) => ": ".to_owned(),
        (least, usize::MAX) => format!(" of {least} or more: "),
        (0, most) => format!(" of up to {most}: "),
        (least, most) => format!(" of {least} to {most}: "),
    }
}

/// Values in quotes become code.
fn in_code(words: &str) -> String {
    let mut parts = words.split('"');
    let mut text = parts.next().unwrap_or_default().to_owned();
    while let Some(value) = parts.next() {
        text.push_str("`\"");
        text.push_str(value);
        text.push_str("\"`");
        text.push_str(parts.next().unwrap_or_default());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_told_in_words() {
        const ITEM: Form = Form::Text("a path such as \"/a\"");
        for (form, words) in [
            (Form::Flag, "`true` or `false`"),
            (Form::Either(&[Form::Rate, Form::List(&Form::Rate, 1, 4)]), "a rate; or a list of these"),
            (Form::Size(1, 64 << 10), "a size, 1B to 64KiB"),
            (Form::Duration(Span::from_millis(10), Span::from_secs(60)), "a duration, 10ms to 1m"),
            (Form::List(&ITEM, 1, 9), "a list of 1 to 9: a path such as `\"/a\"`"),
            (
                Form::Either(&[Form::Flag, Form::List(&Form::Rate, 0, usize::MAX)]),
                "`true` or `false`; or a list: a rate",
            ),
        ] {
            assert_eq!(form.takes(), words);
        }
    }
}
