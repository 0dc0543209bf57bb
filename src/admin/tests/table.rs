//! The table of endpoints: the documents that are made of it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

use serde_json::Value;

use crate::admin::endpoint::{Endpoint, Gives, ParameterPlace, Takes, Verb};
use crate::admin::role::Role;
use crate::admin::{endpoints, openapi};

#[test]
fn each_endpoint_has_its_own_name_and_place() {
    let all: Vec<&Endpoint> = endpoints::all().collect();
    let ids: BTreeSet<_> = all.iter().map(|own| own.id).collect();
    let places: BTreeSet<_> = all.iter().map(|own| (own.path, own.method.word())).collect();
    assert_eq!((ids.len(), places.len()), (all.len(), all.len()));
    for own in all {
        assert!(own.summary.ends_with('.'), "{}: a sentence ends with a period", own.id);
        // A path leads to its own endpoints, not to those of another one whose names take any text.
        let (found, _) = endpoints::at(own.path).unwrap();
        assert!(found.iter().any(|found| found.id == own.id), "{} is hidden by {}", own.id, found[0].path);
    }
}

#[test]
fn only_health_is_open_and_whatever_changes_something_is_for_operators() {
    for own in endpoints::all() {
        let is_health = matches!(own.path, "/healthz" | "/readyz");
        assert_eq!(own.role == Role::Open, is_health, "{}", own.id);
        let asks = matches!(own.id, "explain" | "validateConfig" | "diffConfig");
        assert_eq!(
            own.role >= Role::Operate,
            own.method != Verb::Get && !asks || own.role == Role::Rules,
            "{}",
            own.id
        );
    }
}

/// Every `$ref` of a document.
fn references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            found.extend(members.get("$ref").and_then(Value::as_str).map(str::to_owned));
            members.values().for_each(|value| references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

#[test]
fn the_document_has_every_endpoint_and_every_schema_that_it_names() {
    let document = openapi::document();
    assert_eq!(document["openapi"], "3.1.0");
    assert!(document.get("servers").is_none());
    for own in endpoints::all() {
        let operation = &document["paths"][own.path][own.method.word().to_ascii_lowercase()];
        assert_eq!(
            (operation["operationId"].as_str(), operation["x-role"].as_str()),
            (Some(own.id), Some(own.role.word()))
        );
        let names = own.path.matches('{').count() + own.parameters.len();
        assert_eq!(operation["parameters"].as_array().map(Vec::len), Some(names), "{}", own.id);
    }
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(found.len() > 10, "{found:?}");
    for reference in found {
        assert!(document.pointer(reference.trim_start_matches('#')).is_some(), "{reference}");
    }
}

fn shown(endpoint: &Endpoint) -> String {
    let mut text = format!(
        "### `{} {}`\n\nRole: {}. {}\n",
        endpoint.method.word(),
        endpoint.path,
        endpoint.role.word(),
        endpoint.summary
    );
    for parameter in endpoint.parameters {
        let place = match parameter.place {
            ParameterPlace::Query => "Parameter",
            ParameterPlace::Header => "Header field",
        };
        let required = if parameter.required { ", required" } else { "" };
        let _ = write!(text, "\n- {place} `{}`{required}: {}", parameter.name, parameter.about);
    }
    if let Takes::Json(schema) = endpoint.takes {
        let _ = write!(text, "\n- Body: JSON, `{}`.", schema.name);
    }
    if let Takes::Toml = endpoint.takes {
        text += "\n- Body: TOML, the text of a configuration file.";
    }
    for (status, gives) in endpoint.gives {
        let content = match gives {
            Gives::Nothing => "no body; it still has the tag of `If-None-Match`".to_owned(),
            Gives::Text => "text".to_owned(),
            Gives::Events => "server-sent events".to_owned(),
            Gives::Json(schema) => format!("JSON, `{}`", schema.name),
            Gives::TextOrJson(schema) => format!("text, or JSON with `Accept: application/json`, `{}`", schema.name),
        };
        let _ = write!(text, "\n- {status}: {content}.");
    }
    text + "\n\n"
}

#[test]
fn the_page_of_endpoints_is_as_the_table_is() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/admin-api.md");
    let page = fs::read_to_string(&path).unwrap();
    let mark = "<!-- Made from the table of endpoints: UPDATE_DOCS=1 cargo test --lib admin -->\n\n";
    let (intro, _) = page.split_once(mark).unwrap_or_else(|| panic!("{}: the mark is gone: {mark}", path.display()));
    let made = format!("{intro}{mark}{}", endpoints::all().map(shown).collect::<String>().trim_end().to_owned() + "\n");
    if env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &made).unwrap();
    }
    let page = fs::read_to_string(&path).unwrap();
    assert!(
        page == made,
        "docs/admin-api.md is behind the table of endpoints; renew it: UPDATE_DOCS=1 cargo test --lib admin"
    );
}
