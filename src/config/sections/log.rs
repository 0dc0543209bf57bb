//! `[log]`

use crate::config::findings::{Reported, quoted};
use crate::config::kind::{Context, by, word};
use crate::config::nearest::nearest;
use crate::config::reader::Node;
use crate::config::section::{Declare, section};

section! {
    /// `[log]`
    pub struct Log, read as LogKeys {
        /// `error warn info debug trace off` or a filter of `tracing`, such as `info,sluicegate::proxy=debug`; `RUST_LOG`
        /// wins.
        level: String = by(level, String::clone).or("info"),
        /// How log lines look.
        format: LogFormat = word().or("auto").needs_restart(),
        /// The access log.
        access: AccessFormat = word().or("off"),
    }
}

words! {
    /// `format` of `[log]`.
    pub enum LogFormat {
        /// Human on a terminal, else JSON.
        Auto = "auto",
        /// Lines for people.
        Human = "human",
        /// JSON lines.
        Json = "json",
    }
}

words! {
    /// `access` of `[log]`.
    pub enum AccessFormat {
        /// No access log.
        Off = "off",
        /// A JSON object a line.
        Json = "json",
        /// The combined log format.
        Combined = "combined",
    }
}

/// Bytes of a filter. The time to read one grows with the square of its parts.
const MAX_LEVEL_BYTES: usize = 4_096;

const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

/// A level, or a filter such as `"info,sluicegate::proxy=debug"`. A lone word that is no level would be taken for a
/// target by the filter's own parser, and silence everything else: so it is checked here.
fn level(node: &Node<'_>, _: &Context<'_>) -> Result<String, Reported> {
    let text = node.string("a level in quotes", "\"info\"")?;
    if text.len() > MAX_LEVEL_BYTES {
        let message = format!("`level` has {} bytes", text.len());
        return Err(node.error(message, format!("it takes at most {MAX_LEVEL_BYTES}")));
    }
    for part in text.split(',').map(str::trim).filter(|part| !part.contains(['=', '['])) {
        if !LEVELS.contains(&part) {
            let help = nearest(part, LEVELS).map_or_else(
                || format!("use one of {}, or a filter like \"info,sluicegate::proxy=debug\"", LEVELS.join(", ")),
                |near| format!("did you mean \"{near}\"?"),
            );
            return Err(node.error(format!("`level` cannot be {}", quoted(part)), help));
        }
    }
    match text.parse::<tracing_subscriber::EnvFilter>() {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => {
            let help = "write a level, or \"info,sluicegate::proxy=debug\"";
            Err(node.error(format!("{} is no filter: {error}", quoted(text)), help))
        }
    }
}
