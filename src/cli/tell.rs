//! The end of a command that answers a question.

use std::io::{self, Write as _};
use std::process::ExitCode;

/// Prints an answer, or on standard error why there is none: exit 1.
pub fn tell(answer: Result<String, String>) -> ExitCode {
    match answer {
        Ok(text) => {
            // Nobody reads any more.
            let _ = io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("sluicegate: {error}");
            ExitCode::FAILURE
        }
    }
}
