//! The schema beside the reader: it takes what that takes, and refuses what it can know to be wrong.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::{Map, Value, json};

use super::super::{Certificates, parse, sections};
use super::{Form, NotWritten, Row, schema};

static VALIDATOR: LazyLock<Validator> = LazyLock::new(|| jsonschema::validator_for(&schema()).unwrap());

/// A file as JSON, as an editor hands it to a validator.
fn in_json(text: &str) -> Value {
    serde_json::to_value(toml::from_str::<toml::Table>(text).unwrap()).unwrap()
}

fn faults(file: &Value) -> Vec<String> {
    VALIDATOR.iter_errors(file).map(|error| format!("{}: {error}", error.instance_path())).collect()
}

fn is_taken(file: &Value) -> bool {
    parse(&toml::to_string(file).unwrap(), Path::new("/gateway.toml"), Certificates::Unread).is_ok()
}

/// A file that has every table that there is.
const WHOLE: &str = include_str!("whole.toml");

/// Each text that the reader takes anywhere in the tests of the configuration comes here too.
pub(crate) fn check_accepted(text: &str) {
    // A long one says nothing that a short one does not, and takes its time.
    if text.len() < 20_000 && !text.contains('\u{0}') {
        let faults = faults(&in_json(text));
        assert!(faults.is_empty(), "the schema refuses what the reader takes: {faults:?} of\n{text}");
    }
}

#[test]
fn it_takes_the_files_of_the_repository() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for file in ["gateway.toml", "docker/gateway.toml", "packaging/gateway.toml"] {
        let text = std::fs::read_to_string(root.join(file)).unwrap();
        assert_eq!(faults(&in_json(&text)), Vec::<String>::new(), "{file}");
    }
}

/// Each block of TOML in the recipes that begins with a listener is a whole file.
#[test]
fn it_takes_every_recipe() {
    let page = include_str!("../../../../docs/recipes.md");
    let blocks = page.split("```toml\n").skip(1).filter_map(|rest| rest.split_once("```")).map(|(block, _)| block);
    let files: Vec<_> = blocks.filter(|block| block.contains("[[listener]]")).collect();
    assert!(files.len() > 10, "{} recipes", files.len());
    for file in files {
        assert_eq!(faults(&in_json(file)), Vec::<String>::new(), "{file}");
    }
}

/// The places of the tables in a file, by the keys that lead to each; items of lists by their numbers.
fn tables(value: &Value, at: &str, keys: &mut Vec<String>, found: &mut Vec<(String, Vec<String>)>) {
    match value {
        Value::Object(object) => {
            found.push((at.to_owned(), keys.clone()));
            for (key, value) in object {
                keys.push(key.clone());
                tables(value, &format!("{at}/{key}"), keys, found);
                keys.pop();
            }
        }
        Value::Array(items) => {
            for (place, item) in items.iter().enumerate() {
                tables(item, &format!("{at}/{place}"), keys, found);
            }
        }
        _ => {}
    }
}

/// The file with one table changed.
fn changed(file: &Value, at: &str, change: impl FnOnce(&mut Map<String, Value>)) -> Value {
    let mut file = file.clone();
    change(file.pointer_mut(at).unwrap().as_object_mut().unwrap());
    file
}

/// Values of which a key takes at most some.
fn of_other_types() -> [Value; 6] {
    [json!(-1), json!(1.5e300), json!("qqq qqq"), json!([[]]), json!({ "qqq": 1 }), json!([{ "qqq": 1 }])]
}

/// A file whose rules come from elsewhere has none of its own.
const FOLLOWS: &str = "[[listener]]\naddress = \"127.0.0.1:80\"\n[rules]\nfollow = \"https://rules.example/text\"\n\
                       every = \"5s\"\ntoken_file = \"token\"\nca = \"ca.pem\"\nkept_file = \"kept\"\n";

#[test]
fn it_refuses_in_every_table_what_the_reader_refuses() {
    let declared: BTreeSet<Vec<String>> = declared().into_iter().map(|(path, _)| path).collect();
    let mut seen = BTreeSet::new();
    for text in [WHOLE, FOLLOWS] {
        parse(text, Path::new("/gateway.toml"), Certificates::Unread).unwrap_or_else(|errors| panic!("{errors}"));
        let file = in_json(text);
        let mut found = Vec::new();
        tables(&file, "", &mut Vec::new(), &mut found);
        for (at, path) in found.into_iter().filter(|(_, path)| path.is_empty() || declared.contains(path)) {
            refuses_in_table(&file, &at, &path);
            seen.insert(path);
        }
    }
    seen.remove(&Vec::new());
    assert_eq!(seen, declared, "whole.toml lacks a table");
}

fn declared() -> Vec<(Vec<String>, Vec<Row>)> {
    let names = |path: Vec<&str>| path.into_iter().map(str::to_owned).collect();
    sections::declared().into_iter().map(|(path, rows)| (names(path), rows)).collect()
}

fn refuses_in_table(file: &Value, at: &str, path: &[String]) {
    let unknown = changed(file, at, |table| drop(table.insert("qqq".into(), json!(1))));
    assert!(!is_taken(&unknown) && !faults(&unknown).is_empty(), "an unknown key in {at}");
    let rows = declared().into_iter().find(|(own, _)| own == path).map_or(Vec::new(), |(_, rows)| rows);
    for row in rows.iter().filter(|row| matches!(row.absent, NotWritten::Required(_))) {
        let without = changed(file, at, |table| drop(table.remove(row.key)));
        assert!(!is_taken(&without) && !faults(&without).is_empty(), "{at} without {}", row.key);
    }
    for key in file.pointer(at).unwrap().as_object().unwrap().keys() {
        let refused = of_other_types().into_iter().filter(|value| {
            let other = changed(file, at, |table| drop(table.insert(key.clone(), value.clone())));
            let refuses = !faults(&other).is_empty();
            assert!(!(refuses && is_taken(&other)), "the schema refuses {key} = {value} in {at}");
            refuses
        });
        // A text may be any: its own rules are not the schema's.
        assert!(refused.count() >= 4, "{key} in {at} takes nearly anything");
    }
}

#[test]
fn it_refuses_a_word_that_is_none() {
    let file = in_json(WHOLE);
    let mut tried = 0;
    for (path, rows) in declared() {
        for row in rows.iter().filter(|row| matches!(row.form, Form::Words(_))) {
            let mut found = Vec::new();
            tables(&file, "", &mut Vec::new(), &mut found);
            let (at, _) = found.into_iter().find(|(_, own)| *own == path).unwrap();
            let other = changed(&file, &at, |table| drop(table.insert(row.key.into(), json!("qqq"))));
            assert!(!is_taken(&other) && !faults(&other).is_empty(), "{} = \"qqq\" in {at}", row.key);
            tried += 1;
        }
    }
    assert!(tried > 20, "{tried} keys take words");
}

/// As an editor shows it.
#[test]
fn a_mistake_is_told_with_its_place() {
    let text =
        "[[listener]]\naddress = \"127.0.0.1:80\"\nadress = 1\n[[limit]]\nname = \"a\"\nmode = \"of\"\ntimeout = 5\n";
    let mut said = faults(&in_json(text));
    said.sort();
    assert_eq!(said.len(), 3, "{said:#?}");
    assert!(said[0].starts_with("/limit/0/mode: \"of\" is not one of"), "{said:#?}");
    assert!(said[1].starts_with("/limit/0/timeout: 5 is not valid under any of"), "{said:#?}");
    assert!(said[2].starts_with("/listener/0: Additional properties are not allowed ('adress'"), "{said:#?}");
}
