//! Edits of the configuration's file by others than an editor: entry by entry, with every comment kept, written at once or not
//! at all, and a history of what the file said before.
//!
//! Its parts: [`Document`], which makes an edit of an entry in a text; [`set_plan`], which gives a key of a plans file
//! another plan; [`write_atomically`]; and [`History`]. It judges no rules. A text that was edited is checked by
//! [`config`](sluicegate_config) before it is written.
//!
//! Invariants:
//! - an edit changes the lines of its entry and no others; these stay byte for byte;
//! - the edited text says what it said before, with the edit and nothing else, or there is no edited text;
//! - a file is there as a whole, as it was or as it is to be, whenever the machine stops.
//!
//! Caller: gateway, for admin.

#[macro_use]
extern crate sluicegate_words;

mod array;
mod change;
mod document;
mod error;
mod history;
mod inline;
mod kind;
mod layout;
mod merge;
mod plans;
mod splice;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod value;
mod write;

pub use self::change::{
    Holds, IfMatch, RuleChange, RuleEdit, RuleRefusal, etag, findings, line_of, plan, summary, warning,
};
pub use self::document::{Document, Edit, Edited, EntryChange, EntryEdit, InsertPosition};
pub use self::error::EditError;
pub use self::history::{History, HistoryEntry, MAX_GENERATIONS, history_of, sha256};
pub use self::kind::RuleKind;
pub use self::plans::{KeyChange, KeyFound, PlansError, set_plan};
pub use self::value::{Value, ValueTable};
pub use self::write::{Replacement, WriteError, write_atomically, write_new};
