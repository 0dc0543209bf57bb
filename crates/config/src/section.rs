//! A key of the file is declared once. From a declaration come its reader, its default, what the plan of a reload says of
//! it, whether it waits for a restart, and whatever else is to know all keys.
//!
//! [`section!`] takes a section's struct, and for each field its doc, its type and its [`Setting`]. It makes the struct of
//! the model; a struct of what is written, [`Key`] by key, for rules between keys; and the [`Section`] of both. A rule
//! between keys stays code beside it.

use toml::de::DeValue;

use super::change::Changes;
use super::findings::{Findings, Reported};
use super::form::{Form, NotWritten, Row, Secrecy};
use super::kind::{By, Context, Optional, ValueKind, inner};
use super::reader::{FoundKey, Node, Reader};

/// A section, or a table within one.
pub(super) trait Section: Sized {
    /// Its keys as they are written.
    type Keys<'t>;

    /// Its keys, as they are declared.
    fn rows() -> Vec<Row>;

    /// Reads all keys, the next one after a mistake too: each is reported.
    fn keys<'t>(reader: &mut Reader<'t>, context: &Context<'_>) -> Self::Keys<'t>;

    /// The values, unless one of them could not be read.
    fn of(keys: Self::Keys<'_>) -> Result<Self, Reported>;

    /// The keys that change at once or, where `restart` is set, at the next start.
    fn compare(&self, new: &Self, restart: bool) -> Changes;

    /// Reads all keys, and reports those that it does not have.
    fn read_keys<'t>(mut reader: Reader<'t>, context: &Context<'_>) -> Self::Keys<'t> {
        let keys = Self::keys(&mut reader, context);
        reader.done();
        keys
    }

    /// Reads one whose keys have nothing to do with each other.
    fn read(reader: Reader<'_>, context: &Context<'_>) -> Result<Self, Reported> {
        Self::of(Self::read_keys(reader, context))
    }
}

/// A key as it is written, or not.
pub(super) struct Key<'t, V> {
    /// The value that holds, by default or as it is written.
    pub(super) value: Result<V, Reported>,
    /// Where it is written.
    pub(super) node: Option<Node<'t>>,
}

impl<'t, V> Key<'t, V> {
    /// The value that holds, if it could be read.
    pub(super) fn get(&self) -> Option<&V> {
        self.value.as_ref().ok()
    }

    /// Where it is written; it has to be, because of what another key says.
    pub(super) fn demand(&self, reader: &Reader<'_>, key: &'static str, example: &str) -> Result<&Node<'t>, Reported> {
        match (&self.node, &self.value) {
            (Some(node), _) => Ok(node),
            (None, Err(reported)) => Err(*reported),
            (None, Ok(_)) => Err(reader.lacks(key, example)),
        }
    }
}

/// A table whose keys are declared on their own.
pub(super) fn table<S: Section>(node: &Node<'_>, example: &str, context: &Context<'_>) -> Result<S, Reported> {
    S::read(node.inner(node.label(), example)?, context)
}

/// A value that code beside the declaration reads, because it hangs on other keys; `shown` is the meaning of none.
pub(super) fn beside(form: Form, shown: &'static str) -> Setting<By<()>> {
    inner(form, |_, _| Ok(())).or_else(|| (), shown)
}

/// Ends the description of the values that a key takes: the one that holds where it is not written.
pub(super) trait Declare: ValueKind {
    /// A default: a value of TOML, or a string without its quotes.
    fn or(self, default: &'static str) -> Setting<Self> {
        Setting { kind: self, absent: Absent::Default(default), needs_restart: false, secrecy: Secrecy::Shown }
    }

    /// It must be written; the remedy shows the example.
    fn required(self, example: &'static str) -> Setting<Self> {
        Setting { kind: self, absent: Absent::Error(example), needs_restart: false, secrecy: Secrecy::Shown }
    }

    /// It need not be written.
    fn optional<V>(self) -> Setting<Self>
    where
        Self: ValueKind<Value = Option<V>>,
    {
        let nothing = self.nothing();
        self.or_else(|| None, nothing)
    }

    /// It need not be written: then it is this, which `shown` tells.
    fn or_else(self, value: fn() -> Self::Value, shown: &'static str) -> Setting<Self> {
        Setting { kind: self, absent: Absent::Value(value, shown), needs_restart: false, secrecy: Secrecy::Shown }
    }

    /// It need not be written; a plan then says `shown`.
    fn or_nothing(self, shown: &'static str) -> Setting<Optional<Self>> {
        Optional { kind: self, shown }.optional()
    }
}

impl<K: ValueKind> Declare for K {}

/// The values that a key takes, and the one that holds where it is not written.
pub(super) struct Setting<K: ValueKind> {
    kind: K,
    absent: Absent<K::Value>,
    needs_restart: bool,
    secrecy: Secrecy,
}

enum Absent<V> {
    Default(&'static str),
    /// An error, whose remedy has this example.
    Error(&'static str),
    /// This value, and what it is in words.
    Value(fn() -> V, &'static str),
}

impl<K: ValueKind> Setting<K> {
    /// The meaning of a file without it, in more words than a plan has room for.
    pub(super) fn told(self, words: &'static str) -> Self {
        match self.absent {
            Absent::Value(value, _) => Self { absent: Absent::Value(value, words), ..self },
            Absent::Default(_) | Absent::Error(_) => self,
        }
    }

    /// A change of it is taken over at the next start.
    pub(super) fn needs_restart(self) -> Self {
        Self { needs_restart: true, ..self }
    }

    /// A report of a mistake shows so much of it.
    pub(super) fn secret(self, secrecy: Secrecy) -> Self {
        Self { secrecy, ..self }
    }

    pub(super) fn row(&self, key: &'static str, doc: &'static str) -> Row {
        let absent = match self.absent {
            Absent::Default(default) => NotWritten::Default(default),
            Absent::Error(example) => NotWritten::Required(example),
            Absent::Value(_, shown) => NotWritten::Means(shown),
        };
        let (form, word, needs_restart, secrecy) =
            (self.kind.form(), self.kind.word(), self.needs_restart, self.secrecy);
        Row { key, doc, form, word, absent, needs_restart, secrecy }
    }

    pub(super) fn read<'t>(
        &self,
        reader: &mut Reader<'t>,
        key: &'static str,
        context: &Context<'_>,
    ) -> Key<'t, K::Value> {
        let value = match (reader.find(key), &self.absent) {
            (FoundKey::Written(node), _) => return Key { value: self.kind.read(&node, context), node: Some(node) },
            (FoundKey::Lost(reported), _) => Err(reported),
            (FoundKey::Absent, Absent::Error(example)) => Err(reader.lacks(key, example)),
            (FoundKey::Absent, Absent::Value(value, _)) => Ok(value()),
            (FoundKey::Absent, Absent::Default(default)) => self.by_default(default, reader, key, context),
        };
        Key { value, node: None }
    }

    fn by_default(
        &self,
        default: &'static str,
        reader: &Reader<'_>,
        key: &'static str,
        context: &Context<'_>,
    ) -> Result<K::Value, Reported> {
        let (value, findings) = (written(default), Findings::default());
        // It cannot fail in a program whose tests have passed: they read each default.
        let fault = |_| reader.absent(format!("the default of `{key}` cannot be read"), "please report it");
        self.kind.read(&Node::by_default(key, &value, &findings), context).map_err(fault)
    }

    /// The value in words, for the plan of a reload.
    pub(super) fn show(&self, value: &K::Value) -> String {
        self.kind.show(value)
    }

    pub(super) fn compare(
        &self,
        (key, restart): (&'static str, bool),
        old: &K::Value,
        new: &K::Value,
        changes: &mut Changes,
    ) where
        K::Value: PartialEq,
    {
        if self.needs_restart == restart {
            self.kind.compare(key, old, new, changes);
        }
    }
}

/// A value of TOML, or a string without its quotes.
fn written(text: &'static str) -> DeValue<'static> {
    DeValue::parse(text).map_or_else(|_| DeValue::String(text.into()), toml::Spanned::into_inner)
}

/// A key by the name of its field, which is written `r#for` where it is a word of Rust.
pub(super) fn name_of(field: &'static str) -> &'static str {
    field.strip_prefix("r#").unwrap_or(field)
}

/// Declares a section, or a table within one; see the module.
///
/// ```text
/// section! {
///     /// `[server]`
///     pub struct Server, read as ServerKeys {
///         /// How long a drain waits for what is in flight.
///         shutdown_grace: Span = duration(GRACES).or("30s"),
///     }
/// }
/// ```
macro_rules! section {
    (
        $(#[$attribute:meta])*
        pub struct $Section:ident, read as $Keys:ident {
            $( $(#[doc = $doc:expr])+ $key:ident: $Value:ty = $setting:expr, )+
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $Section {
            $( $(#[doc = $doc])+ pub $key: $Value, )+
        }

        $crate::section::section! {
            /// The keys as they are written.
            read as $Keys {
                $( $(#[doc = $doc])+ $key: $Value = $setting, )+
            }
        }

        impl $crate::section::Section for $Section {
            type Keys<'t> = $Keys<'t>;

            fn rows() -> Vec<$crate::form::Row> {
                $Keys::rows()
            }

            fn keys<'t>(
                reader: &mut $crate::reader::Reader<'t>,
                context: &$crate::kind::Context<'_>,
            ) -> $Keys<'t> {
                $Keys::read(reader, context)
            }

            fn of(keys: $Keys<'_>) -> Result<Self, $crate::findings::Reported> {
                Ok(Self { $( $key: keys.$key.value? ),+ })
            }

            fn compare(&self, new: &Self, restart: bool) -> $crate::change::Changes {
                let mut changes = $crate::change::Changes::default();
                $( $Keys::$key().compare(($crate::section::name_of(stringify!($key)), restart), &self.$key, &new.$key, &mut changes); )+
                changes
            }
        }
    };
    // The keys alone, of a table whose value is no struct of these fields.
    (
        $(#[$attribute:meta])*
        read as $Keys:ident {
            $( $(#[doc = $doc:expr])+ $key:ident: $Value:ty = $setting:expr, )+
        }
    ) => {
        $(#[$attribute])*
#[allow(clippy::struct_field_names, reason = "keys of the file have the names that they have")]
        pub(crate) struct $Keys<'t> {
            $( pub(crate) $key: $crate::section::Key<'t, $Value>, )+
        }

        impl<'t> $Keys<'t> {
            $(
                pub(crate) fn $key() -> $crate::section::Setting<impl $crate::kind::ValueKind<Value = $Value>> {
                    $setting
                }
            )+

            /// As they are declared.
            pub(crate) fn rows() -> Vec<$crate::form::Row> {
                vec![$( Self::$key().row($crate::section::name_of(stringify!($key)), concat!($( $doc ),+)) ),+]
            }

            /// Reads all of them, the next one after a mistake too: each is reported.
            pub(crate) fn read(
                reader: &mut $crate::reader::Reader<'t>,
                context: &$crate::kind::Context<'_>,
            ) -> Self {
                Self { $( $key: Self::$key().read(reader, $crate::section::name_of(stringify!($key)), context) ),+ }
            }
        }
    };
}
pub(super) use section;

/// Adds what a plan says of a change, key by key: for a table whose value is no struct of its keys.
macro_rules! compare {
    ($Keys:ident { $($key:ident),+ }, $old:expr, $new:expr, $changes:expr) => {
        $( $Keys::$key().compare((stringify!($key), false), &$old.$key, &$new.$key, $changes); )+
    };
}
pub(super) use compare;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use toml::de::DeTable;

    use super::*;
    use crate::certificates::{CertificateFiles, Certificates};
    use crate::change::Change;
    use crate::kind::{Deciding, count, duration, flag};
    use crate::report;
    use crate::sections::admin::Admin;
    use crate::sections::algorithm::{self, Aligned};
    use crate::sections::client::Client;
    use crate::sections::cost::CostKeys;
    use crate::sections::dead_letter::DeadLetter;
    use crate::sections::fleet::Fleet;
    use crate::sections::limit;
    use crate::sections::listener::ListenerSpec;
    use crate::sections::log::Log;
    use crate::sections::server::Server;
    use crate::sections::tls;
    use crate::sections::upstream::{ServerSpec, UpstreamSpec};
    use sluicegate_admission::OnMissingKey;
    use sluicegate_limiter::{Bound, MAX_COUNT, Mode, OnFull, Refill};
    use sluicegate_time::Span;

    section! {
        /// `[toy]`
        pub struct Toy, read as ToyKeys {
            /// How long it spins.
            spin: Span = duration(Span::from_secs(1)..=Span::from_secs(60)).or("5s"),
            /// How many there are,
            /// all in all.
            copies: Option<u8> = count(1..=9).or_word("none").or("none").needs_restart(),
            /// Whether it is red.
            red: bool = flag().required("true"),
        }
    }

    /// Reads `text`; with the report.
    fn read<T>(text: &str, read: impl FnOnce(Reader<'_>, &Context<'_>) -> T) -> (T, String) {
        let files = CertificateFiles::new(Path::new("/toy.toml"), Certificates::Unread);
        let table = DeTable::parse(text).unwrap();
        let findings = Findings::default();
        let reader = Reader::new("[toy]", table.get_ref(), 0..0, &findings);
        let read = read(
            reader,
            &Context {
                files: &files,
                asks_for_clients: false,
                trusts_proxies: false,
                address_header: None,
                has_jwt: false,
                deciding: Deciding::default(),
                has_dead_letter: true,
                has_overload: true,
                fleet: None,
            },
        );
        let report = report::judge(Path::new("toy.toml"), text, findings);
        (read, report.map_or_else(|errors| errors.to_string(), |_| String::new()))
    }

    fn toy(text: &str) -> Toy {
        let (toy, report) = read(text, Toy::read);
        toy.unwrap_or_else(|_| panic!("{report}"))
    }

    #[test]
    fn a_key_that_is_declared_is_read() {
        assert_eq!(toy("red = false"), Toy { spin: Span::from_secs(5), copies: None, red: false });
        let all = Toy { spin: Span::from_millis(1_500), copies: Some(9), red: true };
        assert_eq!(toy("spin = \"1500ms\"\ncopies = 9\nred = true"), all);
    }

    #[test]
    fn all_that_is_wrong_is_reported_at_once() {
        let (toy, report) = read("spin = \"1h\"\ncopies = 10\nspni = 1\n", Toy::read);
        assert!(toy.is_err());
        assert_eq!(
            report,
            r#"error: [toy] has no `red`
 --> toy.toml:1:1
  |
1 | spin = "1h"
  | ^
  |
  = help: add red = true

error: `spin` is out of range: "1h"
 --> toy.toml:1:8
  |
1 | spin = "1h"
  |        ^^^^
  |
  = help: it goes from 1s to 1m

error: `copies` is out of range: `10`
 --> toy.toml:2:10
  |
2 | copies = 10
  |          ^^
  |
  = help: it goes from 1 to 9; or "none"

error: unknown key `spni` in [toy]
 --> toy.toml:3:1
  |
3 | spni = 1
  | ^^^^
  |
  = help: did you mean `spin`?

toy.toml: 4 errors"#
        );
    }

    #[test]
    fn a_word_in_place_of_a_number_is_suggested() {
        let (_, report) = read("copies = \"nonee\"\nred = true", Toy::read);
        assert!(report.contains("`copies` cannot be \"nonee\""), "{report}");
        assert!(report.contains("help: did you mean \"none\"?\n"), "{report}");
        let (_, report) = read("copies = \"many\"\nred = true", Toy::read);
        assert!(report.contains("help: write it as a number from 1 to 9; or \"none\"\n"), "{report}");
    }

    #[test]
    fn a_filter_of_the_log_is_bounded() {
        let level = |bytes: usize| read(&format!("level = \"info{}\"", ",a=info".repeat(bytes / 7)), Log::read).1;
        assert_eq!(level(4_090), "");
        assert!(level(4_200).contains("`level` has 4204 bytes"), "{}", level(4_200));
    }

    #[test]
    fn a_change_is_in_the_plan_or_waits_for_a_restart() {
        let (old, new) = (toy("red = true"), toy("spin = \"7s\"\ncopies = 2\nred = true"));
        let changes = |restart| old.compare(&new, restart).into_vec();
        assert_eq!(changes(false), [Change { what: "spin", how: "5s -> 7s".to_owned() }]);
        assert_eq!(changes(true), [Change { what: "copies", how: "none -> 2".to_owned() }]);
        assert!(old.compare(&old, false).into_vec().is_empty());
    }

    #[test]
    fn the_rows_say_what_is_declared() {
        let rows: Vec<_> =
            Toy::rows().into_iter().map(|row| (row.key, row.doc, row.absent, row.takes(), row.needs_restart)).collect();
        assert_eq!(
            rows,
            [
                ("spin", " How long it spins.", NotWritten::Default("5s"), "a duration, 1s to 1m".to_owned(), false),
                (
                    "copies",
                    " How many there are, all in all.",
                    NotWritten::Default("none"),
                    "a whole number, 1 to 9; or `\"none\"`".to_owned(),
                    true
                ),
                ("red", " Whether it is red.", NotWritten::Required("true"), "`true` or `false`".to_owned(), false),
            ]
        );
    }

    #[test]
    fn every_default_can_be_read() {
        fn check<S: Section>(required: &str) {
            let (section, report) = read(required, S::read);
            assert!(section.is_ok(), "{report}");
        }
        check::<Server>("");
        check::<Log>("");
        check::<Client>("");
        check::<DeadLetter>("");
        check::<Fleet>("store = \"redis://h\"\nsecret_file = \"k\"");
        check::<Admin>("address = \"127.0.0.1:1\"");
        check::<ListenerSpec>("address = \"127.0.0.1:1\"");
        check::<UpstreamSpec>("name = \"a\"\nservers = [\"echo:a\"]");
        check::<ServerSpec>("address = \"echo:a\"");
        let (sound, report) = read("name = \"a\"", |mut reader, context| {
            let keys = limit::LimitKeys::read(&mut reader, context);
            let counting = algorithm::CountingKeys::read(&mut reader, context);
            let cost = CostKeys::read(&mut reader, context);
            let own = [keys.key.value.is_ok(), keys.exempt.value.is_ok(), keys.status.value == Ok(429)];
            let words = (keys.on_missing_key.value, keys.on_full.value, counting.mode.value, counting.refill.value);
            let times = [keys.retry_after_jitter.value, counting.max_wait.value, counting.min_difference.value];
            assert_eq!(
                words,
                (Ok(OnMissingKey::ClientIp), Ok(OnFull::default()), Ok(Mode::default()), Ok(Refill::default()))
            );
            assert_eq!((counting.bound.value, counting.align.value), (Ok(Bound::default()), Ok(Aligned::Epoch)));
            assert_eq!((keys.max_keys.value, cost.max_cost.value), (Ok(1_000_000), Ok(MAX_COUNT)));
            own == [true; 3] && times == [Ok(Span::ZERO); 3] && keys.timeout.value == Ok(None)
        });
        assert!(sound, "{report}");
        let (tls, report) = read("certificates = [{ cert = \"a\", key = \"b\" }]", |mut reader, context| {
            let keys = tls::ListenerKeys::read(&mut reader, context);
            keys.certificates.value.is_ok() && keys.min_version.value.is_ok() && keys.client_certificates.value.is_ok()
        });
        assert!(tls, "{report}");
        let (tls, report) = read("", |mut reader, context| {
            let keys = tls::UpstreamKeys::read(&mut reader, context);
            keys.ca.value.is_ok() && keys.verify.value.is_ok() && keys.server_name.value.is_ok()
        });
        assert!(tls, "{report}");
    }
}
