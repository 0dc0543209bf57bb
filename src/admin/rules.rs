//! The rules as requests change them.

use std::io;

use serde_json::Value;

use crate::rules::{Asked, Entry, Holds, Kind, Refusal, Table};

/// The rules of the gateway. All of it may block.
pub trait Rules {
    /// The file's text, and its tag.
    fn text(&self) -> Result<(String, String), Refusal>;

    /// The entries of a kind, in the order of the file, and the text's tag.
    fn list(&self, kind: Kind) -> Result<(Vec<Table>, String), Refusal>;

    /// An entry, and the text's tag.
    fn entry(&self, kind: Kind, name: &str) -> Result<(Table, String), Refusal>;

    /// The plan that a key of a route has, and the tag of the plans file.
    fn plan_of_key(&self, route: &str, key: &str) -> Result<(Value, String), Refusal>;

    /// The mistakes and warnings of a text.
    fn validate(&self, text: String) -> Value;

    /// The plan of a reload with a text, or with the file as it is.
    fn diff(&self, text: Option<String>) -> Result<Value, Refusal>;

    /// The texts of before, the newest first.
    fn history(&self) -> Vec<Entry>;

    /// One of them, and its text; `None`: it is not in the history.
    fn generation(&self, generation: u64) -> Option<(Entry, io::Result<String>)>;

    /// Makes a change, and takes it over at once.
    fn change(&self, asked: &Asked) -> Result<Holds, Refusal>;
}
