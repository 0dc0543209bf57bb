//! `docs/reference.md`: every key of the file, from its declaration.

use std::fmt::Write as _;

use super::form::{Form, NotWritten, Row};
use super::sections::FILE;

const INTRO: &str = "# Reference of `gateway.toml`

<!-- Made from the declarations of the keys: UPDATE_DOCS=1 cargo test --lib reference -->

Every key, with the values that it takes and its default. `gateway.toml` of the repository shows most of them at work, and the other pages say when to use them. An editor that knows JSON Schema completes and checks the file:

```
sluicegate schema > gateway.schema.json     # beside the file, whose first line then is: #:schema gateway.schema.json
sluicegate check                            # also finds what a schema cannot know, such as a name that refers to nothing
```

| value | how it is written |
|---|---|
| duration | a whole number and a unit, `ns us ms s m h d`: `\"250ms\"`, `\"5s\"`, `\"1h\"` |
| rate | a whole number, a slash and a duration: `\"100/s\"`, `\"20/100ms\"`, `\"5000/h\"` |
| size | a whole number and a unit, `B KB KiB MB MiB GB GiB`: `\"64KiB\"`; or a number of bytes |
| share | a whole number and a percent sign: `\"50%\"` |
| path of a file | relative to the directory of `gateway.toml`, or absolute |

A change holds at once when the file is saved, unless the key says that it waits for a restart. An unknown key is an error.
";

/// The whole page.
fn page() -> String {
    let mut page = INTRO.to_owned();
    let names: Vec<_> = FILE.iter().map(|section| format!("[{0}](#{0})", section.name)).collect();
    let _ = writeln!(page, "\nSections: {}.", names.join(", "));
    for section in FILE {
        let _ = writeln!(page, "\n## {}\n\n{}", section.name, section.doc);
        let header = if section.is_list { format!("[[{}]]", section.name) } else { format!("[{}]", section.name) };
        let often = if section.is_list { ", which may be written many times" } else { "" };
        let _ = writeln!(page, "\nKeys of `{header}`{often}:\n");
        table(&mut page, &header, &(section.rows)());
    }
    page
}

/// The keys of a table, and then those of the tables in it.
fn table(page: &mut String, place: &str, rows: &[Row]) {
    page.push_str("| key | meaning | takes | default |\n|---|---|---|---|\n");
    for row in rows {
        let _ =
            writeln!(page, "| `{}` | {} | {} | {} |", row.key, cell(&meaning(row)), cell(&takes(row)), default(row));
    }
    for row in rows {
        let inner = row.form.rows();
        if !inner.is_empty() {
            let place = format!("{place} {}", row.key);
            let _ = writeln!(page, "\nKeys of `{place}`:\n");
            table(page, &place, &inner);
        }
    }
}

fn meaning(row: &Row) -> String {
    let restart = if row.needs_restart { " A change waits for a restart." } else { "" };
    format!("{}{restart}", row.doc.trim())
}

/// The values, and what each word means.
fn takes(row: &Row) -> String {
    let words = row.form.all_words();
    if let (Form::Words(_), false) = (row.form, words.is_empty()) {
        let words: Vec<_> = words.iter().map(|(word, doc)| format!("`\"{word}\"`: {}", doc.trim())).collect();
        let also = row.word.map(|word| format!("<br>`\"{word}\"`")).unwrap_or_default();
        return format!("{}{also}", words.join("<br>"));
    }
    row.takes()
}

fn default(row: &Row) -> String {
    match row.absent {
        NotWritten::Default(text) => format!("`{}`", cell(&written(text))),
        NotWritten::Means(words) => words.to_owned(),
        NotWritten::Required(example) => format!("required, such as `{}`", cell(example)),
    }
}

/// A default as it would be written.
fn written(text: &str) -> String {
    match toml::from_str::<toml::Table>(&format!("value = {text}")).map(|table| table["value"].clone()) {
        Ok(toml::Value::String(text)) => format!("\"{text}\""),
        Ok(_) => text.to_owned(),
        Err(_) => format!("\"{text}\""),
    }
}

/// A text as a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[test]
fn the_reference_is_of_this_version() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference.md");
    renewed(path, &page());
}

#[test]
fn the_schema_is_of_this_version() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/gateway.schema.json");
    renewed(path, &super::schema::text());
}

#[test]
fn the_page_on_reloads_names_each_key_that_waits_for_a_restart() {
    let page = include_str!("../../../docs/operating.md");
    let line = page.lines().find(|line| line.starts_with("| needs a restart |")).unwrap();
    let mut named: Vec<&str> = line.split('`').skip(1).step_by(2).filter(|word| !word.starts_with('[')).collect();
    let waits = |section: &super::sections::SectionRow| {
        (section.rows)().into_iter().filter(|row| row.needs_restart).map(|row| row.key).collect::<Vec<_>>()
    };
    let mut waiting: Vec<&str> = FILE.iter().flat_map(waits).collect();
    named.sort_unstable();
    waiting.sort_unstable();
    assert_eq!(named, waiting);
}

/// Compares a file that is made with what it should be, or makes it.
fn renewed(path: &str, made: &str) {
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, made).unwrap();
    }
    let there = std::fs::read_to_string(path).unwrap_or_default();
    assert!(there == made, "{path} is behind the declarations; renew it: UPDATE_DOCS=1 cargo test --lib reference");
}
