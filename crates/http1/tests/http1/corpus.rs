//! The fuzzers' corpus, read again by every run of the tests.

use std::fs;
use std::path::{Path, PathBuf};

use crate::properties;

/// The files that the fuzz target of this name keeps, by their names.
pub fn files(target: &str) -> Vec<(String, Vec<u8>)> {
    let directory = tests().join("corpus").join(target);
    let mut files: Vec<(String, Vec<u8>)> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect();
    files.sort();
    files
}

/// Where the files of these tests lie.
pub fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join("http1")
}

fn replay(target: &str, property: impl Fn(&[u8])) {
    let files = files(target);
    assert!(files.len() > 50, "only {} files", files.len());
    for (name, data) in files {
        println!("{target}/{name}: {}", data.escape_ascii());
        property(&data);
    }
}

#[test]
fn heads_of_the_corpus_have_the_properties() {
    replay("head", properties::head);
}

#[test]
fn chunked_bodies_of_the_corpus_have_the_properties() {
    replay("chunk", properties::chunk);
}

#[test]
fn connections_of_the_corpus_have_the_properties() {
    replay("framing", properties::framing_of_a_connection);
}

#[test]
fn the_table_of_classics_has_the_properties() {
    for classic in crate::differential::classics() {
        println!("{}", classic.name);
        let data = classic.input();
        properties::head(&data);
        properties::framing_of_a_connection(&data);
    }
}
