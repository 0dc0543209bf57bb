//! Kinds of values: how one is read, how a plan shows it, how it tells of a change. The declaration of a key names one, see
//! `section`.

use std::fmt::Display;
use std::ops::RangeInclusive;

use super::certificates::CertificateFiles;
use super::change::Changes;
use super::findings::{Reported, quoted, ticked};
use super::form::{Form, STATUS};
use super::nearest::nearest;
use super::reader::Node;
use super::size::{parse_size, show_size};
use super::statuses::StatusSet;
use sluicegate_limiter::OnFailure;
use sluicegate_time::Span;
use sluicegate_words::Word;

/// A value may depend on this beside its own text.
#[derive(Clone, Copy)]
pub(super) struct Context<'c> {
    pub(super) files: &'c CertificateFiles,
    /// Whether a listener asks its clients for certificates.
    pub(super) asks_for_clients: bool,
    /// Whether the file names proxies whose word is believed.
    pub(super) trusts_proxies: bool,
    /// The field of the client's address, if it is none of those that every gateway believes from proxies alone.
    pub(super) address_header: Option<&'c str>,
    /// Whether there is `[jwt]`.
    pub(super) has_jwt: bool,
    /// Listeners that decide for others.
    pub(super) deciding: Deciding,
    /// Whether there is a dead-letter log.
    pub(super) has_dead_letter: bool,
    /// Whether there is `[overload]`.
    pub(super) has_overload: bool,
    /// How the limits of a fleet are shared; `None`: there is none.
    pub(super) fleet: Option<FleetTerms>,
}

impl<'c> Context<'c> {
    /// As it is before the first section is read.
    pub(super) fn before_sections(files: &'c CertificateFiles) -> Self {
        Self {
            files,
            asks_for_clients: false,
            trusts_proxies: false,
            address_header: None,
            has_jwt: false,
            deciding: Deciding::default(),
            has_dead_letter: false,
            has_overload: false,
            fleet: None,
        }
    }
}

/// The listeners of a file that decide for others.
#[derive(Clone, Copy, Default)]
pub(super) struct Deciding {
    /// Every listener does, so that a route needs nothing to do.
    pub(super) are_all: bool,
    /// One is asked about keys of limits, whichever route has them.
    pub(super) by_key: bool,
    /// One is asked about descriptors.
    pub(super) by_descriptor: bool,
}

/// The settings of `[fleet]` that hold for each shared limit.
#[derive(Clone, Copy)]
pub(super) enum FleetTerms {
    /// It has a store, which a request waits for so long, and which this stands in for.
    Store { deadline: Span, on_failure: OnFailure },
    /// Its gateways tell each other.
    Peers,
}

/// The values of a key.
pub(super) trait ValueKind: Sized {
    /// Once read.
    type Value;

    /// Reads a value, or reports what is wrong with it.
    fn read(&self, node: &Node<'_>, context: &Context<'_>) -> Result<Self::Value, Reported>;

    /// The value in words, for the plan of a reload.
    fn show(&self, value: &Self::Value) -> String;

    /// The form of its values, for the reference and the schema.
    fn form(&self) -> Form;

    /// A word that it takes beside these.
    fn word(&self) -> Option<&'static str> {
        None
    }

    /// The meaning of a key that is not written, in words, where it has no default.
    fn nothing(&self) -> &'static str {
        "none"
    }

    /// Adds the words of a plan for a change.
    fn compare(&self, what: &'static str, old: &Self::Value, new: &Self::Value, changes: &mut Changes)
    where
        Self::Value: PartialEq,
    {
        changes.value(what, old, new, |value| self.show(value));
    }

    /// It takes a word, too: `None`.
    fn or_word(self, word: &'static str) -> OrWord<Self> {
        OrWord { kind: self, word }
    }
}

/// A value that need not be written, and has no default; a plan then says `shown`.
pub(super) struct Optional<K> {
    pub(super) kind: K,
    pub(super) shown: &'static str,
}

impl<K: ValueKind> ValueKind for Optional<K> {
    type Value = Option<K::Value>;

    fn read(&self, node: &Node<'_>, context: &Context<'_>) -> Result<Self::Value, Reported> {
        self.kind.read(node, context).map(Some)
    }

    fn show(&self, value: &Self::Value) -> String {
        value.as_ref().map_or_else(|| self.shown.to_owned(), |value| self.kind.show(value))
    }

    fn form(&self) -> Form {
        self.kind.form()
    }

    fn word(&self) -> Option<&'static str> {
        self.kind.word()
    }

    fn nothing(&self) -> &'static str {
        self.shown
    }

    fn compare(&self, what: &'static str, old: &Self::Value, new: &Self::Value, changes: &mut Changes)
    where
        Self::Value: PartialEq,
    {
        match (old, new) {
            // One whose text is not all of it.
            (Some(was), Some(is)) if old != new && self.kind.show(was) == self.kind.show(is) => {
                changes.note(what, "has other contents".to_owned());
            }
            _ => changes.value(what, old, new, |value| self.show(value)),
        }
    }
}

/// See [`Kind::or_word`].
pub(super) struct OrWord<K> {
    kind: K,
    word: &'static str,
}

impl<K: ValueKind> ValueKind for OrWord<K> {
    type Value = Option<K::Value>;

    fn read(&self, node: &Node<'_>, context: &Context<'_>) -> Result<Self::Value, Reported> {
        match node.as_text() {
            Some(text) if text == self.word => return Ok(None),
            Some(text) if nearest(text, [self.word]).is_some() => {
                let message = format!("{} cannot be {}", node.label(), quoted(text));
                return Err(node.error(message, format!("did you mean \"{}\"?", self.word)));
            }
            _ => {}
        }
        self.kind.read(&node.or_word(self.word), context).map(Some)
    }

    fn show(&self, value: &Self::Value) -> String {
        value.as_ref().map_or_else(|| self.word.to_owned(), |value| self.kind.show(value))
    }

    fn form(&self) -> Form {
        self.kind.form()
    }

    fn word(&self) -> Option<&'static str> {
        Some(self.word)
    }
}

/// `true` or `false`.
pub(super) fn flag() -> By<bool> {
    by(Form::Flag, |node, _| node.flag(), bool::to_string)
}

/// One of the words of `W`.
pub(super) fn word<W: Word>() -> By<W> {
    by(Form::words::<W>(), |node, _| node.word(), |word| word.word().to_owned())
}

/// A whole number within a range.
pub(super) fn count<N: Number>(range: RangeInclusive<N>) -> Ranged<N> {
    let form = Form::Whole(range.start().into_u64(), range.end().into_u64());
    Ranged { range, form, read: |node, range| node.count(range), show: N::to_string }
}

/// A size in bytes within a range, such as `"64KiB"`, or a plain number of bytes.
pub(super) fn size<N: Number>(range: RangeInclusive<N>) -> Ranged<N> {
    let form = Form::Size(range.start().into_u64(), range.end().into_u64());
    Ranged { range, form, read: |node, range| node.bytes(range), show: |bytes| show_size((*bytes).into_u64()) }
}

/// A number within a range, whole or not.
pub(super) fn number(range: RangeInclusive<f64>) -> Ranged<f64> {
    let form = Form::Number(*range.start(), *range.end());
    Ranged { range, form, read: |node, range| node.fraction(range), show: f64::to_string }
}

/// A duration within a range, such as `"250ms"`.
pub(super) fn duration(range: RangeInclusive<Span>) -> Ranged<Span> {
    let form = Form::Duration(*range.start(), *range.end());
    Ranged { range, form, read: |node, range| node.span_of_time(range), show: Span::to_string }
}

/// A value within a range.
pub(super) struct Ranged<V> {
    range: RangeInclusive<V>,
    form: Form,
    read: fn(&Node<'_>, &RangeInclusive<V>) -> Result<V, Reported>,
    show: fn(&V) -> String,
}

impl<V> ValueKind for Ranged<V> {
    type Value = V;

    fn read(&self, node: &Node<'_>, _: &Context<'_>) -> Result<V, Reported> {
        (self.read)(node, &self.range)
    }

    fn show(&self, value: &V) -> String {
        (self.show)(value)
    }

    fn form(&self) -> Form {
        self.form
    }
}

/// Reads one value.
type ValueReader<V> = fn(&Node<'_>, &Context<'_>) -> Result<V, Reported>;

/// A value of this form, which these two functions read and show.
pub(super) fn by<V>(form: Form, read: ValueReader<V>, show: fn(&V) -> String) -> By<V> {
    By { form, read, show }
}

/// A value that a kind reads of a table to make its own of it; plans do not show it.
pub(super) fn inner<V>(form: Form, read: ValueReader<V>) -> By<V> {
    By { form, read, show: |_| String::new() }
}

pub(super) struct By<V> {
    form: Form,
    read: ValueReader<V>,
    show: fn(&V) -> String,
}

impl<V> ValueKind for By<V> {
    type Value = V;

    fn read(&self, node: &Node<'_>, context: &Context<'_>) -> Result<V, Reported> {
        (self.read)(node, context)
    }

    fn show(&self, value: &V) -> String {
        (self.show)(value)
    }

    fn form(&self) -> Form {
        self.form
    }
}

/// A list of this form; a plan shows what comes and what goes.
pub(super) fn list<V>(form: Form, read: ValueReader<Vec<V>>, show: fn(&V) -> String) -> List<V> {
    List { form, read, show }
}

pub(super) struct List<V> {
    form: Form,
    read: ValueReader<Vec<V>>,
    show: fn(&V) -> String,
}

impl<V> ValueKind for List<V> {
    type Value = Vec<V>;

    fn read(&self, node: &Node<'_>, context: &Context<'_>) -> Result<Vec<V>, Reported> {
        (self.read)(node, context)
    }

    fn show(&self, value: &Vec<V>) -> String {
        value.iter().map(self.show).collect::<Vec<_>>().join(" ")
    }

    fn form(&self) -> Form {
        self.form
    }

    fn compare(&self, what: &'static str, old: &Vec<V>, new: &Vec<V>, changes: &mut Changes)
    where
        Vec<V>: PartialEq,
    {
        if old != new {
            let texts = |items: &[V]| items.iter().map(self.show).collect::<Vec<_>>();
            let (was, is) = (texts(old), texts(new));
            if was == is {
                // Items whose texts are not all of them.
                changes.note(what, "has other contents".to_owned());
            }
            changes.list(what, &was, &is);
        }
    }
}

/// Most statuses of one key: each answer is compared with all.
const MAX_STATUSES: usize = 32;

/// Statuses of answers, such as `"401"`, or classes of them, such as `"5xx"`; `"!422"` takes one out.
pub(super) fn statuses() -> By<StatusSet> {
    by(
        Form::List(&STATUS, 1, MAX_STATUSES),
        |node, _| {
            let items = node.array("[\"401\", \"5xx\"]")?;
            if items.is_empty() || items.len() > MAX_STATUSES {
                let message = format!("{} has {} statuses", node.label(), items.len());
                return Err(node.error(message, format!("give 1 to {MAX_STATUSES}")));
            }
            let texts = each(&items, |item| {
                let text = item.string("a status in quotes", "\"401\" or \"5xx\"")?;
                StatusSet::parse(&[text]).map(|_| text).map_err(|text| no_status(item, text))
            })?;
            let set = StatusSet::parse(&texts).map_err(|text| no_status(node, text))?;
            if set.is_empty() {
                return Err(node.error(format!("{} has no status left", node.label()), "remove an entry with `!`"));
            }
            Ok(set)
        },
        StatusSet::to_string,
    )
}

pub(super) fn no_status(node: &Node<'_>, text: &str) -> Reported {
    let help = "write three digits, 200 to 599, or a class: \"2xx\" \"3xx\" \"4xx\" \"5xx\"; with `!` before it, it is taken out";
    node.error(format!("invalid status {}", quoted(text)), help)
}

/// A share in whole percent within a range, such as `"50%"`.
pub(super) fn percent(range: RangeInclusive<u32>) -> Ranged<u32> {
    let form = Form::Percent(*range.start(), *range.end());
    Ranged { range, form, read: |node, range| node.percent(range), show: |percent| format!("{percent}%") }
}

/// Reads each item of a list. All of them are read before one failure counts, so that all their errors are reported.
pub(super) fn each<'t, T>(
    items: &[Node<'t>],
    read: impl FnMut(&Node<'t>) -> Result<T, Reported>,
) -> Result<Vec<T>, Reported> {
    items.iter().map(read).collect::<Vec<_>>().into_iter().collect()
}

/// Whole numbers that the file can hold.
pub(super) trait Number: Copy + PartialOrd + Display + TryFrom<u64> {
    fn into_u64(self) -> u64;
}

macro_rules! numbers {
    ($($N:ty)*) => {
        $(impl Number for $N {
            fn into_u64(self) -> u64 {
                u64::try_from(self).unwrap_or(u64::MAX)
            }
        })*
    };
}
numbers!(u8 u16 u32 u64 usize);

/// Values of the plain kinds.
impl Node<'_> {
    pub(super) fn flag(&self) -> Result<bool, Reported> {
        self.as_boolean().ok_or_else(|| self.wrong_type("a boolean", "true or false"))
    }

    pub(super) fn count<N: Number>(&self, range: &RangeInclusive<N>) -> Result<N, Reported> {
        let Some(integer) = self.as_integer() else {
            let example = format!("a number from {} to {}", range.start(), range.end());
            return Err(self.wrong_type("a whole number", &example));
        };
        // TOML's own reader has checked the digits; what does not fit in 128 bits is far out of any range.
        let number = i128::from_str_radix(integer.as_str(), integer.radix()).ok();
        let number = number.and_then(|number| N::try_from(u64::try_from(number).ok()?).ok());
        let in_range = number.filter(|number| range.contains(number));
        in_range.ok_or_else(|| self.out_of_range(&ticked(&integer.to_string()), range.start(), range.end()))
    }

    pub(super) fn fraction(&self, range: &RangeInclusive<f64>) -> Result<f64, Reported> {
        let Some(text) = self.as_decimal() else { return Err(self.wrong_type("a number", "1.25")) };
        let in_range = text.parse::<f64>().ok().filter(|number| range.contains(number));
        in_range.ok_or_else(|| self.out_of_range(&ticked(text), range.start(), range.end()))
    }

    pub(super) fn percent(&self, range: &RangeInclusive<u32>) -> Result<u32, Reported> {
        let text = self.string("a share in quotes", "\"50%\"")?;
        let number = text.strip_suffix('%').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        let Some(number) = number.and_then(|digits| digits.parse().ok()) else {
            let message = format!("{}: invalid percentage {}", self.label(), quoted(text));
            return Err(self.error(message, "a share is a whole number and a percent sign, like \"50%\""));
        };
        let in_range = range.contains(&number).then_some(number);
        let show = |percent: &u32| format!("{percent}%");
        in_range.ok_or_else(|| self.out_of_range(&quoted(text), show(range.start()), show(range.end())))
    }

    pub(super) fn span_of_time(&self, range: &RangeInclusive<Span>) -> Result<Span, Reported> {
        let text = self.string("a duration in quotes", "\"250ms\", \"5s\" or \"1m\"")?;
        let span = text.parse::<Span>().map_err(|error| {
            self.error(format!("{}: invalid duration {}", self.label(), quoted(text)), error.to_string())
        })?;
        let in_range = range.contains(&span).then_some(span);
        in_range.ok_or_else(|| self.out_of_range(&quoted(text), range.start(), range.end()))
    }

    pub(super) fn bytes<N: Number>(&self, range: &RangeInclusive<N>) -> Result<N, Reported> {
        if self.is_integer() {
            return self.count(range);
        }
        let text = self.string("a size in quotes", "\"64KiB\", \"10MB\" or a plain number of bytes")?;
        let bytes = parse_size(text).ok_or_else(|| {
            let message = format!("{}: invalid size {}", self.label(), quoted(text));
            self.error(message, "a size is a whole number and one of B KiB MiB GiB KB MB GB, like \"64KiB\"")
        })?;
        let in_range = N::try_from(bytes).ok().filter(|bytes| range.contains(bytes));
        let show = |bytes: &N| show_size(bytes.into_u64());
        in_range.ok_or_else(|| self.out_of_range(&quoted(text), show(range.start()), show(range.end())))
    }

    pub(super) fn word<W: Word>(&self) -> Result<W, Reported> {
        let words: Vec<(&str, W)> = W::ALL.iter().map(|own| (own.word(), *own)).collect();
        self.one_of(&words)
    }
}

/// [`each`] where `None` was reported.
pub(super) fn every<'t, T>(items: &[Node<'t>], read: impl FnMut(&Node<'t>) -> Option<T>) -> Option<Vec<T>> {
    items.iter().map(read).collect::<Vec<_>>().into_iter().collect()
}
