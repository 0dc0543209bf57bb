//! The end of a command that answers a question.

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

/// From one look to the next with `--watch`.
pub const AGAIN: Duration = Duration::from_secs(1);

/// Whether the environment does not forbid colours on a terminal (<https://no-color.org>).
pub fn wants_colour() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

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

/// The same of a question that is asked once or, to `watch`, again each second until interrupted.
pub fn tell_again(watch: bool, mut look: impl FnMut() -> Result<String, String>) -> ExitCode {
    if !watch {
        return tell(look());
    }
    loop {
        let looked = look();
        let shown = match &looked {
            Ok(text) if io::stdout().is_terminal() => write!(io::stdout(), "\x1b[H\x1b[2J{text}"),
            Ok(text) => writeln!(io::stdout(), "{text}"),
            Err(error) => writeln!(io::stderr(), "sluicegate: {error}"),
        };
        // Nobody reads any more.
        if shown.and_then(|()| io::stdout().flush()).is_err() {
            return if looked.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
        thread::sleep(AGAIN);
    }
}
