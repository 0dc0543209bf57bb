//! Reasons why an edit is refused, in words that say how to mend it.

use std::fmt;

use super::kind::RuleKind;

/// Why an edit was not made. No message repeats anything but names of entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EditError {
    /// The file is no TOML. `check` says more.
    Syntax {
        /// The parser's message.
        message: String,
        /// The line, from 1.
        line: usize,
    },
    /// There is no entry of this name.
    NotFound(RuleKind, String),
    /// There is one already.
    Exists(RuleKind, String),
    /// Two entries have this name.
    Twice(RuleKind, String),
    /// The new entry has no name, or one that is no text.
    NoName(RuleKind),
    /// The new entry has another name than the one that it replaces.
    OtherName(RuleKind, String),
    /// The neighbour of a new entry is not there.
    NoNeighbour(RuleKind, String),
    /// The entries are not written under headers of their own.
    Inline(RuleKind),
    /// The file is written in a way that this program cannot edit.
    Unsupported,
}

impl fmt::Display for EditError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax { message, line } => {
                write!(f, "The file is no TOML, at line {line}: {message}. Mend it with an editor first.")
            }
            Self::NotFound(kind, name) => write!(f, "The file has no {} {name:?}.", kind.word()),
            Self::Exists(kind, name) => {
                write!(f, "The file has a {} {name:?} already. Replace it, or give the new one another name.", kind.word())
            }
            Self::Twice(kind, name) => {
                write!(f, "The file has two {} of the name {name:?}. Remove one with an editor.", kind.plural())
            }
            Self::NoName(kind) => write!(f, "Give the {} a name: \"name\": \"{}\".", kind.word(), example(*kind)),
            Self::OtherName(kind, name) => write!(
                f,
                "The body's name is not {name:?}. A {} keeps its name: leave it out, or create another one.",
                kind.word()
            ),
            Self::NoNeighbour(kind, name) => {
                write!(f, "The file has no {} {name:?} to put the new one beside.", kind.word())
            }
            Self::Inline(kind) => write!(
                f,
                "The file has its {} in one array. Write each under a header [[{}]] with an editor first.",
                kind.plural(),
                kind.word()
            ),
            Self::Unsupported => f.write_str(
                "This edit cannot be made here, because of the way in which the file is written. Make it with an editor.",
            ),
        }
    }
}

impl std::error::Error for EditError {}

const fn example(kind: RuleKind) -> &'static str {
    match kind {
        RuleKind::Route => "api",
        RuleKind::Limit => "per-client",
        RuleKind::Upstream => "app",
        RuleKind::Bandwidth => "downloads",
    }
}
