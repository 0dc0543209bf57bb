//! Values as TOML writes them on one line.

use std::fmt::Write as _;

use super::value::{Value, ValueTable};
use sluicegate_redact::is_terminal_control;

/// A value on one line.
pub(super) fn value(value: &Value) -> String {
    match value {
        Value::Text(text) => quoted(text),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => float(*number),
        Value::Flag(flag) => flag.to_string(),
        Value::List(list) => format!("[{}]", list.iter().map(self::value).collect::<Vec<_>>().join(", ")),
        Value::Table(entries) if entries.is_empty() => "{}".to_owned(),
        Value::Table(entries) => format!("{{ {} }}", table(entries)),
    }
}

fn table(table: &ValueTable) -> String {
    table.iter().map(|(key, value)| line(&[key], value)).collect::<Vec<_>>().join(", ")
}

/// `a.b = value`
pub(super) fn line(path: &[&str], value: &Value) -> String {
    format!("{} = {}", path.iter().copied().map(key).collect::<Vec<_>>().join("."), self::value(value))
}

fn key(key: &str) -> String {
    let is_bare = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if is_bare { key.to_owned() } else { quoted(key) }
}

/// `{:?}` has a point or an exponent, as TOML wants it.
fn float(number: f64) -> String {
    if number.is_nan() { "nan".to_owned() } else { format!("{number:?}") }
}

/// A text in quotes, on one line. With backslashes in it, as patterns have them, in single ones, where none is to be escaped.
fn quoted(text: &str) -> String {
    let hidden = |c: char| c != '\t' && (c.is_control() || is_terminal_control(c));
    if text.contains(['\\', '"']) && !text.contains('\'') && !text.contains(hidden) {
        return format!("'{text}'");
    }
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            // Nothing that is written here shall steer the terminal of who reads the file.
            c if hidden(c) => drop(write!(quoted, "\\U{:08X}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing;

    #[test]
    fn values_are_written_on_one_line() {
        let table = ValueTable::from_json(
            r#"{"name": "a b", "path": "^/\\d+$", "it": "it's \"\\", "n": [1, -2.5, 1e10, true], "t": {"x-y": {}, "a.b": {"c": "é\n\u202e"}}}"#
                .as_bytes(),
        );
        let written = r#"{ name = "a b", path = '^/\d+$', it = "it's \"\\", n = [1, -2.5, 10000000000.0, true], t = { x-y = {}, "a.b" = { c = "é\n\U0000202E" } } }"#;
        assert_eq!(value(&Value::Table(table.unwrap())), written);
    }

    proptest! {
        #[test]
        fn toml_reads_a_value_as_it_was(wanted in testing::value()) {
            let text = line(&["a", "b.c", ""], &wanted);
            prop_assert!(!text.contains('\n'));
            let read = toml_edit::Document::parse(text.as_str()).unwrap();
            prop_assert_eq!(Value::of(&read["a"]["b.c"][""]), wanted, "{}", text);
        }
    }
}
