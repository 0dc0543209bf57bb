//! `[log]`

use std::path::PathBuf;

use super::paths::file;
use crate::findings::{Reported, quoted};
use crate::form::{FILE, Form};
use crate::kind::{Context, by, word};
use crate::nearest::nearest;
use crate::reader::{Node, Reader};
use crate::section::{Declare, Section, section};

section! {
    /// `[log]`
    pub struct Log, read as LogKeys {
        /// `error warn info debug trace off` or a filter of `tracing`, such as `info,sluicegate::proxy=debug`; `RUST_LOG`
        /// wins.
        level: String = by(Form::Text("a level, or a filter such as \"info,sluicegate::proxy=debug\""), level, String::clone).or("info"),
        /// How log lines look.
        format: LogFormat = word().or("auto").needs_restart(),
        /// Where log lines go.
        file: Option<PathBuf> = by(FILE, log_file, |path| path.display().to_string()).or_nothing("standard error").needs_restart(),
        /// The access log.
        access: AccessFormat = word().or("off"),
        /// Where the access log goes.
        access_file: Option<PathBuf> = by(FILE, log_file, |path| path.display().to_string()).or_nothing("standard output"),
    }
}

impl Log {
    /// Whether the access log is the same.
    pub fn has_same_access(&self, other: &Self) -> bool {
        (self.access, &self.access_file) == (other.access, &other.access_file)
    }
}

/// The keys of the section, and a word about a file that stays empty.
pub(crate) fn read(reader: Reader<'_>, context: &Context<'_>) -> Result<Log, Reported> {
    let keys = Log::read_keys(reader, context);
    if let (Some(node), Some(Some(_)), Some(AccessFormat::Off) | None) =
        (&keys.access_file.node, keys.access_file.get(), keys.access.get())
    {
        node.warning("`access_file` stays empty: there is no access log", "set access = \"json\" or \"combined\"");
    }
    Log::of(keys)
}

fn log_file(node: &Node<'_>, context: &Context<'_>) -> Result<PathBuf, Reported> {
    file(node, context, "logs/access.log")
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
    check(text).map(|()| text.to_owned()).map_err(|(message, help)| node.error(message, help))
}

/// Whether a text is a level, or a filter; otherwise what is wrong, and how to mend it.
///
/// # Errors
/// It is none: in words.
pub fn check_level(text: &str) -> Result<(), String> {
    check(text).map_err(|(message, help)| format!("{message}: {help}."))
}

fn check(text: &str) -> Result<(), (String, String)> {
    if text.len() > MAX_LEVEL_BYTES {
        return Err((format!("`level` has {} bytes", text.len()), format!("it takes at most {MAX_LEVEL_BYTES}")));
    }
    for part in text.split(',').map(str::trim).filter(|part| !part.contains(['=', '['])) {
        if !LEVELS.contains(&part) {
            let help = nearest(part, LEVELS).map_or_else(
                || format!("use one of {}, or a filter like \"info,sluicegate::proxy=debug\"", LEVELS.join(", ")),
                |near| format!("did you mean \"{near}\"?"),
            );
            return Err((format!("`level` cannot be {}", quoted(part)), help));
        }
    }
    let help = "write a level, or \"info,sluicegate::proxy=debug\"".to_owned();
    let filter = text.parse::<tracing_subscriber::EnvFilter>();
    filter.map(drop).map_err(|error| (format!("invalid filter {}: {error}", quoted(text)), help))
}
