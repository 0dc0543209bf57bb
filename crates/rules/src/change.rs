//! A change of the rules as it is asked for, and its outcome.

use std::fmt;

use serde_json::{Value as Json, json};

use super::document::{Edit, Edited, EntryEdit};
use super::error::EditError;
use super::plans::KeyChange;
use sluicegate_config::{Change, Diagnostic, Fate, LoadError, Plan, Severity};

/// Items of a plan that are listed one by one.
const MAX_ITEMS: usize = 1_000;

/// A change that somebody asks for.
#[derive(Debug)]
pub struct RuleChange {
    /// The change.
    pub wanted: RuleEdit,
    /// The text that it is meant for.
    pub if_match: IfMatch,
    /// The caller: the name of a token.
    pub by: String,
}

/// A change of the rules.
#[derive(Debug)]
pub enum RuleEdit {
    /// An edit of one entry.
    Edit(Edit),
    /// The text of an earlier generation is to hold again.
    Rollback {
        /// Its number.
        generation: u64,
        /// Also if it changes who may administer the gateway.
        force: bool,
    },
    /// Another plan for a key of a route.
    PlanOfKey {
        /// The route.
        route: String,
        /// The change; its key may be a secret.
        change: KeyChange,
    },
}

/// The texts that a change is meant for: `If-Match` of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IfMatch {
    /// Nothing is said.
    Absent,
    /// Whatever is there.
    Any,
    /// One of these.
    Tags(Vec<String>),
}

impl IfMatch {
    /// The lines of the field (RFC 9110, 13.1.1). Weak tags match nothing.
    pub fn of<'l>(lines: impl Iterator<Item = &'l str>) -> Self {
        let tags: Vec<String> = lines.flat_map(|line| line.split(',')).map(|tag| tag.trim().to_owned()).collect();
        match tags.as_slice() {
            [] => Self::Absent,
            [any] if any == "*" => Self::Any,
            _ => Self::Tags(tags),
        }
    }

    /// Checks that a change is meant for the text of this tag.
    ///
    /// # Errors
    /// It is meant for another one, or that is not said.
    pub fn check(&self, etag: &str) -> Result<(), RuleRefusal> {
        match self {
            Self::Any => Ok(()),
            Self::Tags(tags) if tags.iter().any(|tag| tag == etag) => Ok(()),
            Self::Tags(_) => Err(RuleRefusal::Stale { etag: etag.to_owned() }),
            Self::Absent => Err(RuleRefusal::NoPrecondition { etag: etag.to_owned() }),
        }
    }
}

/// The tag of a text by its SHA-256 in hex.
pub fn etag(sha256: &str) -> String {
    format!("\"{sha256}\"")
}

/// A change that holds.
#[derive(Clone, Debug)]
pub struct Holds {
    /// The tag of the text that holds now.
    pub etag: String,
    /// The generation that ran before.
    pub before: u64,
    /// The generation that runs.
    pub generation: u64,
    /// The fate of the entry; `None` where nothing had to be done.
    pub done: Option<EntryEdit>,
    /// The plan that was carried out; null where nothing had to be done.
    pub plan: Json,
    /// Warnings about the new text.
    pub warnings: Json,
    /// The state before and the state now, in words for the log, with secrets redacted; `None`: the generations say it.
    pub told: Option<(String, String)>,
}

/// Why a change was not made. The file and the running rules are as they were.
#[derive(Clone, Debug, PartialEq)]
pub enum RuleRefusal {
    /// `[admin] rules = "read-only"`.
    ReadOnly,
    /// `[rules] follow`: the rules come from elsewhere.
    Followed {
        /// The address.
        url: String,
    },
    /// There is no `If-Match`.
    NoPrecondition {
        /// The tag of the text.
        etag: String,
    },
    /// The text is another one.
    Stale {
        /// Its tag.
        etag: String,
    },
    /// The file of plans is another one than runs: no tag that can be read is its own.
    NotLoaded {
        /// The file.
        file: String,
    },
    /// There is no entry, generation or plan of this name.
    NotFound(String),
    /// The entry is there already; or the file is written in a way that cannot be edited, or cannot be read; or somebody's text
    /// would be lost.
    Conflict(String),
    /// The rules would be wrong.
    Invalid {
        /// All in a sentence.
        detail: String,
        /// One by one.
        findings: Json,
    },
    /// The file could not be written.
    NotWritten(String),
    /// The rules are right, and yet cannot run here.
    NotRunning(String),
    /// The gateway takes no rules any more.
    Ends(String),
}

impl RuleRefusal {
    /// The text of a file that cannot be used.
    pub fn of_load(error: &LoadError) -> Self {
        match error {
            LoadError::Read { .. } => Self::not_read(&error.to_string()),
            LoadError::Unfollowed { report, .. } => Self::Conflict(report.clone()),
            LoadError::Invalid { errors, .. } => {
                let count = errors.total();
                let detail = format!(
                    "The rules would have {count} mistake{}; see findings. Nothing was changed.",
                    if count == 1 { "" } else { "s" }
                );
                Self::Invalid { detail, findings: findings(errors.diagnostics()) }
            }
        }
    }
}

impl RuleRefusal {
    /// A file that is not there, or that the gateway may not read: no fault of the storage.
    pub fn not_read(error: &str) -> Self {
        let error = error.trim_end_matches('.');
        Self::Conflict(format!("{error}. Put the file there so that the gateway's user may read it, and ask again."))
    }
}

impl From<EditError> for RuleRefusal {
    fn from(error: EditError) -> Self {
        let said = error.to_string();
        match error {
            EditError::NotFound(..) => Self::NotFound(said),
            EditError::NoName(_) | EditError::OtherName(..) | EditError::NoNeighbour(..) => {
                Self::Invalid { detail: said, findings: json!([]) }
            }
            EditError::Syntax { .. }
            | EditError::Exists(..)
            | EditError::Twice(..)
            | EditError::Inline(_)
            | EditError::Unsupported => Self::Conflict(said),
        }
    }
}

impl fmt::Display for RuleRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Followed { url } => return write!(f, "The rules come from {url}: change them there."),
            Self::ReadOnly => {
                "The rules are read-only here: [admin] rules = \"read-only\". Change the file where it comes from."
            }
            Self::NoPrecondition { .. } => {
                "Say which text the change is meant for: send If-Match with the ETag of the answer that you have read."
            }
            Self::Stale { .. } => {
                "The file is another one than you have read. Read it again and repeat the change with its ETag."
            }
            Self::NotLoaded { file } => {
                return write!(
                    f,
                    "The plans file {file} has changed and is not loaded: POST /reload first. Then read the plan again and \
                     repeat the change with its ETag."
                );
            }
            Self::NotFound(said)
            | Self::Conflict(said)
            | Self::Invalid { detail: said, .. }
            | Self::NotWritten(said)
            | Self::NotRunning(said)
            | Self::Ends(said) => said,
        })
    }
}

impl std::error::Error for RuleRefusal {}

/// The effect of an edit, in a line for the history.
pub fn line_of(edit: &Edit, edited: &Edited) -> String {
    format!("{} {} {}", edit.kind.word(), edit.name, edited.done.word())
}

/// Mistakes or warnings, each with its place and the remedy.
pub fn findings(found: &[Diagnostic]) -> Json {
    let one = |found: &Diagnostic| {
        json!({
            "severity": match found.severity {
                Severity::Error => "error",
                Severity::Warning => "warning",
            },
            "message": found.message,
            "file": found.file.as_ref().map(|file| file.display().to_string()),
            "line": found.place.map(|place| place.line),
            "column": found.place.map(|place| place.column),
            "help": found.help,
        })
    };
    found.iter().map(one).collect()
}

/// A warning about a change as a whole.
pub fn warning(message: &str, help: &str) -> Json {
    json!({ "severity": "warning", "message": message, "file": null, "line": null, "column": null, "help": help })
}

/// A plan as a text and as a list of what does not stay as it is.
pub fn plan(plan: &Plan) -> Json {
    let moving: Vec<_> = plan.items().iter().filter(|item| item.fate != Fate::Kept).collect();
    let items: Vec<Json> = moving
        .iter()
        .take(MAX_ITEMS)
        .map(|item| {
            let (fate, changes) = fate(&item.fate);
            let changes: Vec<Json> =
                changes.iter().map(|change| json!({ "what": change.what, "how": change.how })).collect();
            json!({ "part": item.part.to_string(), "name": item.name, "fate": fate, "changes": changes })
        })
        .collect();
    json!({
        "text": plan.to_string(),
        "changes": items,
        "more": moving.len().saturating_sub(MAX_ITEMS),
        "needs_restart": plan.needs_restart(),
    })
}

/// A plan in a short line, for the history.
pub fn summary(plan: &Plan) -> String {
    let moving = plan.items().iter().filter(|item| item.fate != Fate::Kept);
    let words: Vec<String> = moving
        .take(10)
        .map(|item| match item.part {
            sluicegate_config::Part::Section => format!("{} {}", item.name, fate(&item.fate).0),
            part => format!("{part} {} {}", item.name, fate(&item.fate).0),
        })
        .collect();
    if words.is_empty() { "nothing but its wording".to_owned() } else { words.join(", ") }
}

fn fate(fate: &Fate) -> (&'static str, &[Change]) {
    match fate {
        Fate::Kept => ("kept", &[]),
        Fate::Changed(changes) => ("changed", changes),
        Fate::Rescaled(changes) => ("rescaled", changes),
        Fate::Reset(changes) => ("reset", changes),
        Fate::Added => ("added", &[]),
        Fate::Removed => ("removed", &[]),
        Fate::NeedsRestart(changes) => ("needs-restart", changes),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use sluicegate_config as config;
    use sluicegate_config::Certificates;

    #[test]
    fn a_change_is_meant_for_one_text() {
        let of = |lines: &[&'static str]| IfMatch::of(lines.iter().copied());
        assert_eq!(of(&[]).check("\"a\""), Err(RuleRefusal::NoPrecondition { etag: "\"a\"".into() }));
        assert_eq!(of(&["*"]).check("\"a\""), Ok(()));
        assert_eq!(of(&["\"b\", \"a\""]).check("\"a\""), Ok(()));
        assert_eq!(of(&["\"b\"", " \"a\" "]).check("\"a\""), Ok(()));
        for stale in [&["\"b\""][..], &["W/\"a\""], &["a"], &[""], &["*, \"b\""]] {
            assert_eq!(of(stale).check("\"a\""), Err(RuleRefusal::Stale { etag: "\"a\"".into() }), "{stale:?}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_no_fault_of_the_storage() {
        let error = config::load(Path::new("/no/g.toml"), Certificates::Unread).unwrap_err();
        let RuleRefusal::Conflict(said) = RuleRefusal::of_load(&error) else { panic!("{error}") };
        assert!(said.contains("/no/g.toml") && said.contains(". Put the file there"), "{said}");
    }

    #[test]
    fn a_plan_is_told_as_text_and_as_a_list() {
        let model = |text: &str| {
            let text = format!(
                "[[listener]]\naddress = \"127.0.0.1:8080\"\n{text}[[route]]\nname = \"all\"\nrespond = {{}}\n"
            );
            config::parse(&text, Path::new("/g.toml"), Certificates::Unread).unwrap().model
        };
        let limit = |rate| format!("[[limit]]\nname = \"l\"\nrate = \"{rate}/s\"\n");
        let made = plan(&config::diff(&model(&limit(1)), &model(&limit(2))));
        assert_eq!(
            made["changes"],
            json!([{ "part": "limit", "name": "l", "fate": "changed", "changes": [{ "what": "rate", "how": "1/s -> 2/s" }] }])
        );
        assert_eq!((&made["more"], &made["needs_restart"]), (&json!(0), &json!(false)));
        assert!(made["text"].as_str().unwrap().starts_with("limit l: changed: rate 1/s -> 2/s\n"), "{made}");
        let added = config::diff(&model(""), &model(&limit(2)));
        assert_eq!(summary(&added), "limit l added");
        assert_eq!(summary(&config::diff(&model(""), &model(""))), "nothing but its wording");
    }

    #[test]
    fn a_refused_text_tells_its_mistakes_one_by_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("g.toml");
        std::fs::write(&path, "[[limit]]\nname = \"a\"\nrate = 5\n").unwrap();
        let refusal = RuleRefusal::of_load(&config::load(&path, Certificates::Unread).unwrap_err());
        let RuleRefusal::Invalid { detail, findings } = refusal else { panic!("{refusal}") };
        assert!(detail.starts_with("The rules would have "), "{detail}");
        let rate = findings.as_array().unwrap().iter().find(|found| found["line"] == 3).unwrap();
        assert_eq!((&rate["column"], &rate["severity"], &rate["file"]), (&json!(8), &json!("error"), &Json::Null));
    }
}
