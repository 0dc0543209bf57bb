//! `sluicegate schema`: the JSON Schema of the configuration file.

use std::process::ExitCode;

use super::tell::tell;
use crate::config::schema;

pub const EXAMPLES: &str = "Examples:
  sluicegate schema > gateway.schema.json     beside gateway.toml, whose first line then is
                                              #:schema gateway.schema.json
  sluicegate schema | jq .properties.limit    the keys of a section

Editors with a language server for TOML complete and check the file by it. The schema has keys, types, words and ranges of
numbers. Rules between keys, and the ranges of durations and sizes, are checked by `sluicegate check` alone.";

/// Prints it.
pub fn run() -> ExitCode {
    tell(Ok(schema()))
}
