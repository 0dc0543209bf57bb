//! Reports, word for word, each a pair of files in `tests/reports`: what an operator reads whose file is wrong. A case needs no
//! Rust: write `NAME.toml`, run the test with `UPDATE_DOCS=1`, and read the `NAME.report` that it writes.
//!
//! `NAME.toml` is judged as a text alone. In `checked/` its files are read as `check` reads them, in `run/` as a start does:
//! certificates `a`, `b`, `ab`, `unnamed`, `old`, `new` and `ending` are there, each `.pem` with its `.key`, and it is
//! 2026-06-01. A folder in `folders/` holds `gateway.toml` and all that it names.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::golden_tls::{self, DIRECTORY};
use super::{Certificates, KnownPlans, golden_plans, load_again, parse};

/// How a case is looked at: errors and warnings.
type Judge = fn(&Path) -> String;

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reports")
}

fn judge_text(case: &Path, file: &Path, certificates: Certificates) -> String {
    let directory = format!("{}/", file.parent().unwrap().display());
    let report = match parse(&fs::read_to_string(case).unwrap(), file, certificates) {
        Ok(parsed) => parsed.warnings.to_string(),
        Err(errors) => errors.to_string(),
    };
    if directory == "/" { report } else { report.replace(&directory, "") }
}

fn alone(case: &Path) -> String {
    judge_text(case, Path::new("gateway.toml"), Certificates::Unread)
}

fn checked(case: &Path) -> String {
    judge_text(case, &DIRECTORY.path().join("gateway.toml"), Certificates::Strict(golden_tls::NOW))
}

fn run(case: &Path) -> String {
    judge_text(case, &DIRECTORY.path().join("gateway.toml"), Certificates::Lenient(golden_tls::NOW))
}

fn folder(case: &Path) -> String {
    let strict = Certificates::Strict(golden_plans::NOW);
    let report = match load_again(&case.join("gateway.toml"), strict, &KnownPlans::default()) {
        Ok(loaded) => loaded.warnings.to_string(),
        Err(error) => error.to_string(),
    };
    report.replace(&format!("{}/", case.display()), "")
}

/// Compares the report of each case of a kind with its file, or writes it; gives how many there were.
fn compare(kind: &str, judge: Judge, wrong: &mut Vec<String>) -> usize {
    let is_case = |path: &PathBuf| match kind {
        "folders" => path.is_dir(),
        _ => path.extension().is_some_and(|extension| extension == "toml"),
    };
    let paths: Vec<PathBuf> = fs::read_dir(cases().join(kind)).unwrap().map(|entry| entry.unwrap().path()).collect();
    let (named, others): (BTreeSet<PathBuf>, BTreeSet<PathBuf>) = paths.into_iter().partition(is_case);
    for report in others.iter().filter(|path| path.extension().is_some_and(|own| own == "report")) {
        let has_case = named.contains(&report.with_extension("toml")) || named.contains(&report.with_extension(""));
        if !has_case {
            wrong.push(format!("{} has no case beside it", report.display()));
        }
    }
    for case in &named {
        let file = case.with_extension("report");
        let report = judge(case) + "\n";
        if std::env::var_os("UPDATE_DOCS").is_some() {
            fs::write(&file, report).unwrap();
            continue;
        }
        let expected = fs::read_to_string(&file).unwrap_or_default();
        if report != expected {
            wrong.push(format!("{}: expected\n\n{expected}\nand it is\n\n{report}", file.display()));
        }
    }
    named.len()
}

#[test]
fn each_report_is_that_of_its_file() {
    let mut wrong = Vec::new();
    let kinds: [(&str, Judge); 4] = [("", alone), ("checked", checked), ("run", run), ("folders", folder)];
    let found = kinds.map(|(kind, judge)| compare(kind, judge, &mut wrong));
    assert!(found.iter().all(|count| *count > 0), "{found:?}");
    let count = wrong.len();
    let wrong = wrong.join("\n\n");
    assert!(wrong.is_empty(), "{count} of {found:?}; where these are meant: UPDATE_DOCS=1\n\n{wrong}");
}
