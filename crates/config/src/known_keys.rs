//! Every table of the file and its keys, as the readers themselves tell them: an unknown key is answered by the known ones.
//! Lists of keys that are kept by hand are held against this.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::{Certificates, Diagnostic, parse, sections};

/// A key, and a word, that nobody knows and that is near to none.
const UNKNOWN: &str = "qqqqqqqqqqqqqqq";

/// The keys of each table, by the keys that lead to it, such as `listener tls certificates`.
type Tables = BTreeMap<Vec<String>, BTreeSet<String>>;

/// Those of the sections, and of the tables in them to any depth.
pub(super) fn tables() -> Tables {
    let mut tables = Tables::new();
    for section in list_after(&diagnostics(&format!("[{UNKNOWN}]\n")), "unknown section", "sections: ") {
        let is_list =
            diagnostics(&format!("[{section}]\n")).iter().any(|found| found.message.ends_with("list of sections"));
        let header = if is_list { format!("[[{section}]]\n") } else { format!("[{section}]\n") };
        explore(&mut tables, &[section], &Probe { open: header, between: "\n", close: String::new() });
    }
    tables
}

/// Those of one section.
pub(super) fn of_section(name: &str) -> BTreeSet<String> {
    tables().remove([name.to_owned()].as_slice()).unwrap_or_default()
}

/// The words that a key takes in a section that may be written many times.
pub(super) fn words(section: &str, key: &str) -> BTreeSet<String> {
    let probe = Probe { open: format!("[[{section}]]\n"), between: "\n", close: String::new() };
    probe.words(key).into_iter().map(|word| word.trim_matches('"').to_owned()).collect()
}

/// A file that is open in a table, so that an entry can be tried there.
struct Probe {
    open: String,
    between: &'static str,
    close: String,
}

impl Probe {
    fn try_entry(&self, key: &str, value: &str) -> Vec<Diagnostic> {
        diagnostics(&format!("{}{key} = {value}{}", self.open, self.close))
    }

    /// With one more entry.
    fn with(&self, key: &str, value: &str) -> Self {
        let open = format!("{}{key} = {value}{}", self.open, self.between);
        Self { open, between: self.between, close: self.close.clone() }
    }

    /// In the table that is the value of a key, or the first in the list there.
    fn inside(&self, key: &str, before: &str, behind: &str) -> Self {
        let open = format!("{}{key} = {before}", self.open);
        Self { open, between: ", ", close: format!("{behind}{}", self.close) }
    }

    fn keys(&self) -> Vec<String> {
        list_after(&self.try_entry(UNKNOWN, "1"), "unknown key", ": ")
    }

    /// The words that a key takes.
    fn words(&self, key: &str) -> Vec<String> {
        list_after(&self.try_entry(key, &format!("\"{UNKNOWN}\"")), &format!("`{key}` cannot be"), "use one of ")
    }
}

/// Notes the keys of the table that `probe` is in, those that it has only beside certain words, and the tables in it.
fn explore(tables: &mut Tables, path: &[String], probe: &Probe) {
    for key in probe.keys() {
        if !tables.entry(path.to_vec()).or_default().insert(key.clone()) {
            continue;
        }
        let inner = [path, std::slice::from_ref(&key)].concat();
        for (before, behind) in [("{ ", " }"), ("[{ ", " }]")] {
            explore(tables, &inner, &probe.inside(&key, before, behind));
        }
        for word in probe.words(&key) {
            explore(tables, path, &probe.with(&key, &word));
        }
    }
}

fn diagnostics(text: &str) -> Vec<Diagnostic> {
    parse(text, Path::new("/gateway.toml"), Certificates::Unread).unwrap_err().diagnostics().to_vec()
}

/// The list that the remedy of a message has behind some words.
fn list_after(diagnostics: &[Diagnostic], message: &str, words: &str) -> Vec<String> {
    let found = diagnostics.iter().find(|found| found.message.starts_with(message));
    let list = found.and_then(|found| found.help.as_deref()).and_then(|help| help.split_once(words));
    list.map_or_else(Vec::new, |(_, list)| list.split(", ").map(str::to_owned).collect())
}

#[test]
fn declared_tables_have_the_keys_that_are_declared() {
    let tables = tables();
    let all = sections::declared();
    for (path, rows) in &all {
        let path: Vec<String> = path.iter().map(ToString::to_string).collect();
        let declared: BTreeSet<String> = rows.iter().map(|row| row.key.to_owned()).collect();
        assert_eq!(tables.get(&path), Some(&declared), "{path:?}");
        assert!(rows.iter().all(|row| row.doc.ends_with('.')), "{path:?}");
    }
    // Tables whose keys are the user's own have none here, so that each that has some is declared.
    assert_eq!(all.len(), tables.len());
}

#[test]
fn tables_in_tables_are_found_with_their_keys() {
    let tables = tables();
    let keys = |path: &[&str]| {
        let path: Vec<String> = path.iter().map(ToString::to_string).collect();
        tables.get(&path).unwrap_or_else(|| panic!("no {path:?} in {:?}", tables.keys()))
    };
    for (path, some) in [
        (&["server"][..], &["workers", "rate_headers"][..]),
        (&["listener", "tls"], &["certificates", "min_version", "client_ca"]),
        (&["listener", "tls", "certificates"], &["cert", "key"]),
        (&["upstream", "servers"], &["address", "weight"]),
        // Of several algorithms, one of them by a calendar.
        (&["limit"], &["rate", "max_in_flight", "cold_factor", "max_waiting", "align", "zone", "max_cost"]),
        (&["limit", "refusal"], &["body_file", "headers"]),
        (&["route", "bandwidth"], &["direction"]),
        (&["route", "rewrite"], &["prefix", "regex", "to"]),
    ] {
        assert!(some.iter().all(|key| keys(path).contains(*key)), "{path:?} has {:?}", keys(path));
    }
}
