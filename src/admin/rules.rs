//! The rules as requests change them.

use std::io;

use serde_json::Value;

use crate::rules::{HistoryEntry, Holds, RuleChange, RuleKind, RuleRefusal, ValueTable};

/// The rules of the gateway. All of it may block.
pub trait Rules {
    /// The file's text, and its tag.
    fn text(&self) -> Result<(String, String), RuleRefusal>;

    /// The entries of a kind, in the order of the file, and the text's tag.
    fn list(&self, kind: RuleKind) -> Result<(Vec<ValueTable>, String), RuleRefusal>;

    /// An entry, and the text's tag.
    fn entry(&self, kind: RuleKind, name: &str) -> Result<(ValueTable, String), RuleRefusal>;

    /// The plan that a key of a route has, and the tag of the plans file.
    fn plan_of_key(&self, route: &str, key: &str) -> Result<(Value, String), RuleRefusal>;

    /// The mistakes and warnings of a text.
    fn validate(&self, text: String) -> Value;

    /// The plan of a reload with a text, or with the file as it is.
    fn diff(&self, text: Option<String>) -> Result<Value, RuleRefusal>;

    /// The texts of before, the newest first.
    fn history(&self) -> Vec<HistoryEntry>;

    /// One of them, and its text; `None`: it is not in the history.
    fn generation(&self, generation: u64) -> Option<(HistoryEntry, io::Result<String>)>;

    /// Makes a change, and takes it over at once.
    fn change(&self, asked: &RuleChange) -> Result<Holds, RuleRefusal>;
}
