//! Random values and files, for tests.

use proptest::prelude::*;

use super::inline;
use super::value::{Value, ValueTable};

/// Any value that both JSON and TOML have.
pub(super) fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<i64>().prop_map(Value::Integer),
        (-1e18..1e18).prop_map(Value::Float),
        any::<bool>().prop_map(Value::Flag),
        "([ -~é\t\n\r\u{1}\u{7f}\u{202e}]|\\PC){0,8}".prop_map(Value::Text),
        "[a-c\"'\\\\]{0,5}".prop_map(Value::Text),
    ];
    leaf.prop_recursive(3, 20, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::List),
            table_of(inner, 0..4).prop_map(Value::Table),
        ]
    })
}

fn table_of(
    value: impl Strategy<Value = Value> + Clone,
    size: std::ops::Range<usize>,
) -> impl Strategy<Value = ValueTable> + Clone {
    let entries = proptest::collection::vec(("[a-d]|[a-c .é]{0,3}", value), size);
    entries.prop_map(|entries| {
        let mut table = ValueTable::default();
        for (key, value) in &entries {
            table.set(key, value.clone());
        }
        table
    })
}

/// The keys of an entry without its name. They are few, so that an edit meets those that are there.
pub(super) fn entry() -> impl Strategy<Value = ValueTable> {
    let small = prop_oneof![
        (0..3_i64).prop_map(Value::Integer),
        "[ab]{0,1}".prop_map(Value::Text),
        proptest::collection::vec((0..4_i64).prop_map(Value::Integer), 0..5).prop_map(Value::List),
    ];
    let tables = table_of(small.clone(), 0..3);
    let key = prop_oneof![
        3 => small,
        2 => tables.clone().prop_map(Value::Table),
        1 => table_of(tables.clone().prop_map(Value::Table), 0..2).prop_map(Value::Table),
        1 => proptest::collection::vec(tables.prop_map(Value::Table), 0..3).prop_map(Value::List),
    ];
    table_of(key, 0..5).prop_map(|mut table| {
        table.take("name");
        table
    })
}

/// A file, and the comments in it that are of no entry, by their order.
#[derive(Clone, Debug)]
pub(super) struct File {
    pub(super) text: String,
    pub(super) outside: Vec<String>,
    pub(super) items: Vec<Commented>,
}

/// An item of an array that has a line of its own, and the comments that only it has: one at least.
#[derive(Clone, Debug)]
pub(super) struct Commented {
    /// The name of its entry, and the key.
    pub(super) of: (String, String),
    pub(super) value: Value,
    pub(super) above: Option<String>,
    pub(super) behind: Option<String>,
}

/// Files with entries of every kind in any order, each written in one of many ways.
pub(super) fn file() -> impl Strategy<Value = File> {
    let section = (0..6_u8, entry(), proptest::collection::vec(any::<u8>(), 24));
    (proptest::collection::vec(section, 1..7), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(sections, is_crlf, has_end, has_mark)| {
            let mut writer = Writer::default();
            for (number, (kind, entry, dice)) in sections.into_iter().enumerate() {
                writer.dice = dice;
                writer.section(number, kind, &entry);
            }
            let mut text = writer.text;
            if !has_end {
                text.truncate(text.trim_end_matches('\n').len());
            }
            if is_crlf {
                text = text.replace('\n', "\r\n");
            }
            if has_mark {
                text.insert(0, '\u{feff}');
            }
            File { text, outside: writer.outside, items: writer.items }
        },
    )
}

#[derive(Default)]
struct Writer {
    text: String,
    outside: Vec<String>,
    items: Vec<Commented>,
    name: String,
    dice: Vec<u8>,
    comments: usize,
}

impl Writer {
    fn roll(&mut self, sides: u8) -> u8 {
        self.dice.pop().unwrap_or(0) % sides
    }

    fn add(&mut self, text: &str) {
        self.text.push_str(text);
    }

    fn comment(&mut self, is_outside: bool) {
        self.comments += 1;
        let comment = format!("# comment {} [x]", self.comments);
        self.text.push_str(&comment);
        self.text.push('\n');
        if is_outside {
            self.outside.push(comment);
        }
    }

    fn section(&mut self, number: usize, kind: u8, entry: &ValueTable) {
        if self.roll(3) == 0 {
            self.comment(true);
            self.text.push('\n');
        }
        let kinds = ["route", "limit", "upstream", "bandwidth"];
        let Some(kind) = kinds.get(usize::from(kind)) else {
            self.add(&format!("[other-{number}]\nx = 1 # of it\n\n"));
            return;
        };
        if self.roll(3) == 0 {
            self.comment(false);
        }
        let indentation = if self.roll(4) == 0 { "  " } else { "" };
        self.add(&format!("{indentation}[[{kind}]]\n{indentation}name = \"n{number}\"\n"));
        self.name = format!("n{number}");
        let mut later = Vec::new();
        for (key, value) in entry.iter().filter(|(key, _)| *key != "name") {
            self.key(indentation, (kind, key), value, &mut later);
        }
        for (header, table) in later {
            if self.roll(3) == 0 {
                self.comment(false);
            }
            self.add(&format!("{header}\n"));
            table.iter().for_each(|(key, value)| self.line(&[key], value, ""));
        }
        if self.roll(4) == 0 {
            self.comment(true);
            self.text.push('\n');
        }
        (0..self.roll(3)).for_each(|_| self.text.push('\n'));
        if self.roll(3) == 0 {
            self.comment(true);
            self.text.push('\n');
        }
    }

    fn key(
        &mut self,
        indentation: &str,
        (kind, key): (&str, &str),
        value: &Value,
        later: &mut Vec<(String, ValueTable)>,
    ) {
        let quoted = inline::line(&[key], &Value::Flag(true));
        let quoted = quoted.trim_end_matches(" = true");
        let is_dotted = self.roll(2) == 0;
        match value {
            Value::Table(table) if !table.is_empty() && self.roll(3) > 0 => {
                for (inner, value) in table.iter().filter(|_| is_dotted) {
                    self.line(&[key, inner], value, indentation);
                }
                if !is_dotted {
                    later.push((format!("[{kind}.{quoted}]"), table.clone()));
                }
            }
            Value::List(list)
                if !list.is_empty() && list.iter().all(|item| matches!(item, Value::Table(_))) && is_dotted =>
            {
                for item in list {
                    if let Value::Table(table) = item {
                        later.push((format!("[[{kind}.{quoted}]]"), table.clone()));
                    }
                }
            }
            Value::List(list) if is_dotted => {
                self.add(&format!("{indentation}{quoted} = [\n"));
                let has_comma = self.roll(2) == 0;
                for (at, item) in list.iter().enumerate() {
                    let comma = if at + 1 < list.len() || has_comma { "," } else { "" };
                    self.item(key, item, comma);
                }
                self.add(&format!("{indentation}]\n"));
            }
            _ => self.line(&[key], value, indentation),
        }
    }

    /// An item of an array, with a comment above it, behind it, or both.
    fn item(&mut self, key: &str, value: &Value, comma: &str) {
        let number = self.items.len();
        let place = self.roll(3);
        let above = (place != 0).then(|| format!("# above item {number}."));
        let behind = (place != 1).then(|| format!("# behind item {number}."));
        if let Some(above) = &above {
            self.add(&format!("    {above}\n"));
        }
        self.add(&format!("    {}{comma}  {}\n", inline::value(value), behind.as_deref().unwrap_or_default()));
        let of = (self.name.clone(), key.to_owned());
        self.items.push(Commented { of, value: value.clone(), above, behind });
    }

    fn line(&mut self, path: &[&str], value: &Value, indentation: &str) {
        if self.roll(4) == 0 {
            self.comment(false);
        }
        let comment = ["", " # behind", "\t#x"][usize::from(self.roll(3))];
        self.add(&format!("{indentation}{}{comment}\n", inline::line(path, value)));
    }
}
