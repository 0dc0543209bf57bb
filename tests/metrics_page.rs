//! `docs/metrics.md` is made from the declarations of the metrics: each `static NAME: Family = Family { .. }` and each
//! `family!(NAME, ..)` in `src`, with its doc comment. There is no list to add a new one to, and none to forget it in.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

const INTRO: &str = "# Metrics

<!-- Made from the declarations of the metrics: UPDATE_DOCS=1 cargo test --test metrics_page -->

`GET /metrics` of the `[admin]` interface has them, in the text format of Prometheus. [operating.md](operating.md#metrics) says how to scrape them.

A counter only grows while the process lives, but for three of limits: see [operating.md](operating.md#metrics). A gauge goes up and down. A histogram has times in seconds. The series of a route, limit or upstream that a reload has removed stay until the process ends.

";

/// A metric, as it is declared.
struct Family {
    kind: String,
    labels: Vec<String>,
    help: String,
    doc: String,
}

/// The text of the first literal of Rust in `code`, and the code behind it.
fn literal(code: &str) -> (String, &str) {
    let (mut text, mut rest) = (String::new(), code.split_once('"').expect("a literal").1);
    loop {
        let at = rest.find(['"', '\\']).expect("the end of a literal");
        text.push_str(&rest[..at]);
        if rest[at..].starts_with('"') {
            return (text, &rest[at + 1..]);
        }
        let escaped = rest[at + 1..].chars().next().expect("an escape");
        rest = &rest[at + 1 + escaped.len_utf8()..];
        // A literal goes on in the next line without the blanks before it.
        if escaped == '\n' {
            rest = rest.trim_start();
        } else {
            text.push(escaped);
        }
    }
}

/// The doc comment that `code` ends with.
fn doc_before(code: &str) -> String {
    let lines: Vec<&str> =
        code.trim_end().lines().rev().map_while(|line| line.trim_start().strip_prefix("///")).map(str::trim).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join(" ")
}

/// Adds the families that a file declares.
fn read(code: &str, all: &mut BTreeMap<String, Family>) {
    let code = code.split("#[cfg(test)]\nmod tests {").next().unwrap();
    for (at, _) in code.match_indices(": Family = Family {") {
        let before = &code[..at];
        let doc = doc_before(&before[..before.rfind("static").expect("a static")]);
        let body = &code[at..];
        let (name, rest) = literal(&body[body.find("name:").unwrap()..]);
        let (help, rest) = literal(&rest[rest.find("help:").unwrap()..]);
        let kind = rest.split("Kind::").nth(1).unwrap().split(',').next().unwrap().to_owned();
        let labels = rest.split("labels: &[").nth(1).unwrap().split(']').next().unwrap();
        add(all, &name, Family { kind, labels: labels_of(labels), help, doc });
    }
    for (at, start) in code.match_indices("family!(") {
        let declared = code[at + start.len()..].trim_start();
        let docs = declared.split_inclusive('\n').take_while(|line| line.trim_start().starts_with("///"));
        let (docs, declared) = declared.split_at(docs.map(str::len).sum());
        let doc = doc_before(docs);
        let kind = declared.split(',').nth(1).unwrap().trim().to_owned();
        let (name, rest) = literal(declared);
        let (help, rest) = literal(rest);
        let labels = rest.split('[').nth(1).unwrap().split(']').next().unwrap();
        add(all, &name, Family { kind, labels: labels_of(labels), help, doc });
    }
}

fn labels_of(list: &str) -> Vec<String> {
    list.split(',').map(|label| label.trim().trim_matches('"').to_owned()).filter(|label| !label.is_empty()).collect()
}

fn add(all: &mut BTreeMap<String, Family>, name: &str, family: Family) {
    assert!(name.starts_with("sluicegate_"), "{name}");
    assert!(["Counter", "Gauge", "Histogram"].contains(&family.kind.as_str()), "{name}: {}", family.kind);
    assert!(all.insert(name.to_owned(), family).is_none(), "{name} is declared twice");
}

fn walk(directory: &Path, all: &mut BTreeMap<String, Family>, names: &mut usize) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if !path.ends_with("tests") {
                walk(&path, all, names);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
            let text = fs::read_to_string(&path).unwrap();
            *names += text.split("#[cfg(test)]\nmod tests {").next().unwrap().matches("\"sluicegate_").count();
            if !path.ends_with("family.rs") {
                read(&text, all);
            }
        }
    }
}

#[test]
fn the_page_of_metrics_is_of_this_version() {
    let (mut all, mut names) = (BTreeMap::new(), 0);
    for room in ["src", "crates"] {
        walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join(room), &mut all, &mut names);
    }
    assert_eq!(all.len(), names, "a name of a metric stands outside of a declaration that this test can read");
    let mut page = INTRO.to_owned();
    page.push_str("| metric | kind | labels | meaning |\n|---|---|---|---|\n");
    for (name, Family { kind, labels, help, doc }) in &all {
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        let gap = if doc.is_empty() { "" } else { " " };
        let kind = kind.to_lowercase();
        let meaning = format!("{help}{gap}{doc}").replace('|', "\\|");
        let _ = writeln!(page, "| `{name}` | {kind} | {} | {meaning} |", labels.join(", "));
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(path, &page).unwrap();
    }
    let there = fs::read_to_string(path).unwrap_or_default();
    assert!(there == page, "{path} is behind the declarations; renew it: UPDATE_DOCS=1 cargo test --test metrics_page");
}

#[test]
fn both_forms_of_a_declaration_are_read() {
    let code = r#"
/// One,
/// and two.
static A: Family = Family {
    name: "sluicegate_a_total",
    help: "Of \"a\", \
           in two lines.",
    kind: Kind::Counter,
    labels: &["x", "y"],
};
family!(
    /// More.
    B,
    Gauge,
    "sluicegate_b",
    "Of b.",
    []
);
family!(C, Histogram, "sluicegate_c_seconds", "Of c.", ["z"]);
"#;
    let mut all = BTreeMap::new();
    read(code, &mut all);
    let told: Vec<String> = all
        .iter()
        .map(|(name, family)| format!("{name} {} {:?} {} / {}", family.kind, family.labels, family.help, family.doc))
        .collect();
    assert_eq!(
        told,
        [
            "sluicegate_a_total Counter [\"x\", \"y\"] Of \"a\", in two lines. / One, and two.",
            "sluicegate_b Gauge [] Of b. / More.",
            "sluicegate_c_seconds Histogram [\"z\"] Of c. / ",
        ]
    );
}
