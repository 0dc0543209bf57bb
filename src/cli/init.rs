//! `sluicegate init`: a configuration file to begin with.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use super::safe::quoted;

pub const EXAMPLES: &str = "Examples:
  sluicegate init                             write ./gateway.toml
  sluicegate init -c my.toml && sluicegate run -c my.toml

A file that is there is never changed.";

/// The file.
const TEXT: &str = include_str!("init.toml");

/// Writes it. Exit 1: there is a file already, or it cannot be written.
pub fn run(path: &Path) -> ExitCode {
    match File::create_new(path).and_then(|mut file| file.write_all(TEXT.as_bytes())) {
        Ok(()) => {
            let name = path.display();
            let option = if path == Path::new("gateway.toml") {
                String::new()
            } else {
                format!(" -c {}", quoted(&name.to_string()))
            };
            let said = format!(
                "{name}: written. Next:\n  sluicegate run{option}\n  curl -i http://127.0.0.1:8080/\n\
                 Then change the file; it is read again when you save it.\n"
            );
            // The file is there, read or not.
            let _ = io::stdout().write_all(said.as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            eprintln!("sluicegate: {} is there already, and stays as it is; name another file by -c", path.display());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("sluicegate: {}: cannot write: {error}", path.display());
            ExitCode::FAILURE
        }
    }
}
