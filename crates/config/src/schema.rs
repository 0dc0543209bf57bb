//! The JSON Schema of the file, from the declarations of its keys: editors complete and check `gateway.toml` by it.
//!
//! It is of draft 7, the newest that editors of TOML understand. It knows keys, types, words, ranges of numbers, and the look
//! of durations, sizes and rates; not what one key has to do with another: for that there is `sluicegate check`.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::form::{Form, NotWritten, Row};
use super::sections::{FILE, SectionRow};

/// Units of a duration, see `time::Span`.
const DURATION: &str = "^[0-9]+(ns|us|ms|s|m|h|d)$";
/// Units of a size, see `size`.
const SIZE: &str = "^[0-9]+(B|KB|KiB|MB|MiB|GB|GiB)?$";
/// Requests in a time, see `limiter::Rate`; a month is one of a calendar.
const RATE: &str = r"^\s*[0-9]+\s*/\s*(week|month|[0-9]*(ns|us|ms|s|m|h|d))\s*$";
/// Bytes in a time.
const BYTE_RATE: &str = r"^\s*[0-9]+(B|KB|KiB|MB|MiB|GB|GiB)?\s*/\s*[0-9]*(ns|us|ms|s|m|h|d)\s*$";
/// Bytes in a second.
const BYTES_PER_SECOND: &str = r"^\s*[0-9]+(B|KB|KiB|MB|MiB|GB|GiB)?\s*/\s*s\s*$";
const PERCENT: &str = "^[0-9]+%$";

/// The schema of a whole file, as text.
pub fn text() -> String {
    format!("{:#}\n", schema())
}

/// The same.
pub(super) fn schema() -> Value {
    let mut properties = Map::new();
    for section in FILE {
        properties.insert(section.name.to_owned(), of_section(section));
    }
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "gateway.toml of Sluicegate",
        "description": "Made by `sluicegate schema`. Rules between keys are checked by `sluicegate check` alone.",
        "type": "object",
        "additionalProperties": false,
        "required": ["listener"],
        "properties": properties,
    })
}

fn of_section(section: &SectionRow) -> Value {
    let mut schema = table(&(section.rows)());
    if section.is_list {
        schema = json!({ "type": "array", "items": schema });
    }
    describe(&mut schema, section.doc);
    schema
}

/// A table with these keys and no others.
fn table(rows: &[Row]) -> Value {
    let required: Vec<_> =
        rows.iter().filter(|row| matches!(row.absent, NotWritten::Required(_))).map(|row| row.key).collect();
    let properties: Map<_, _> = rows.iter().map(|row| (row.key.to_owned(), of_row(row))).collect();
    let mut schema = json!({ "type": "object", "additionalProperties": false, "properties": properties });
    if !required.is_empty() {
        insert(&mut schema, "required", json!(required));
    }
    schema
}

fn of_row(row: &Row) -> Value {
    let mut schema = of_form(row.form);
    if let Some(word) = row.word {
        schema = json!({ "anyOf": [schema, { "type": "string", "enum": [word] }] });
    }
    describe(&mut schema, &description(row));
    if let NotWritten::Default(default) = row.absent {
        insert(&mut schema, "default", in_json(default));
    }
    schema
}

/// The doc of a key, what it takes where a schema cannot say so, and its words.
fn description(row: &Row) -> String {
    // Writing into a String cannot fail.
    let mut text = row.doc.trim().to_owned();
    if let Form::Size(..)
    | Form::Duration(..)
    | Form::Percent(..)
    | Form::Text(_)
    | Form::ByteRate
    | Form::BytesPerSecond(..) = row.form
    {
        let _ = write!(text, " It takes {}.", row.takes());
    }
    for (word, doc) in row.form.all_words().into_iter().filter(|(_, doc)| !doc.is_empty()) {
        let _ = write!(text, "\n\"{word}\": {}", doc.trim());
    }
    if row.needs_restart {
        text.push_str("\nA change waits for a restart.");
    }
    text
}

fn of_form(form: Form) -> Value {
    let text = |pattern: &str| json!({ "type": "string", "pattern": pattern });
    match form {
        Form::Flag => json!({ "type": "boolean" }),
        Form::Whole(least, most) => json!({ "type": "integer", "minimum": least, "maximum": most }),
        Form::Number(least, most) => json!({ "type": "number", "minimum": least, "maximum": most }),
        Form::Size(least, most) => json!({ "anyOf": [text(SIZE), of_form(Form::Whole(least, most))] }),
        Form::Percent(..) => text(PERCENT),
        Form::Duration(..) => text(DURATION),
        Form::Rate => text(RATE),
        Form::ByteRate => text(BYTE_RATE),
        Form::BytesPerSecond(..) => text(BYTES_PER_SECOND),
        Form::Numbers(all) => json!({ "type": "integer", "enum": all }),
        Form::Text(_) => json!({ "type": "string" }),
        Form::Words(words) => {
            let words: Vec<_> = words().into_iter().map(|(word, _)| word).collect();
            json!({ "type": "string", "enum": words })
        }
        Form::List(item, least, most) => {
            let mut schema = json!({ "type": "array", "items": of_form(*item) });
            if least > 0 {
                insert(&mut schema, "minItems", json!(least));
            }
            if most < usize::MAX {
                insert(&mut schema, "maxItems", json!(most));
            }
            schema
        }
        Form::Table(rows) => table(&rows()),
        Form::Entries(_, value) => json!({ "type": "object", "additionalProperties": of_form(*value) }),
        Form::Either(forms) => {
            let forms: Vec<_> = forms.iter().map(|form| of_form(*form)).collect();
            json!({ "anyOf": forms })
        }
    }
}

/// A default as the file has it: a value of TOML, or a text without its quotes.
fn in_json(default: &str) -> Value {
    let read = toml::from_str::<toml::Table>(&format!("value = {default}")).ok();
    let value = read.and_then(|mut table| serde_json::to_value(table.remove("value")?).ok());
    value.unwrap_or_else(|| json!(default))
}

fn describe(schema: &mut Value, text: &str) {
    insert(schema, "description", json!(text));
}

fn insert(schema: &mut Value, key: &str, value: Value) {
    if let Some(object) = schema.as_object_mut() {
        object.insert(key.to_owned(), value);
    }
}

#[cfg(test)]
pub(super) mod tests;
