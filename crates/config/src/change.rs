//! The fate of a part of the configuration in a reload, setting by setting.

use std::collections::HashSet;
use std::fmt::{self, Display};

/// The fate of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It says the same as before.
    Kept,
    /// It changes; what it has counted goes on.
    Changed(Vec<Change>),
    /// A limit with other slots: its counts go on, moved to the new slots.
    Rescaled(Vec<Change>),
    /// A limit with another algorithm or key: it counts from zero.
    Reset(Vec<Change>),
    /// It is new.
    Added,
    /// It is gone.
    Removed,
    /// It changes at the next start only.
    NeedsRestart(Vec<Change>),
}

/// One setting that changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its key.
    pub what: &'static str,
    /// From what to what.
    pub how: String,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.what, self.how)
    }
}

/// Items of a list that a line names one by one.
const MAX_NAMED: usize = 5;

/// The settings that differ.
#[derive(Debug, Default)]
pub(super) struct Changes(Vec<Change>);

impl Changes {
    pub(super) fn into_vec(self) -> Vec<Change> {
        self.0
    }

    /// Changed, or kept where nothing differs.
    pub(super) fn into_fate(self) -> Fate {
        if self.0.is_empty() { Fate::Kept } else { Fate::Changed(self.0) }
    }

    /// `what old -> new`, if they differ.
    pub(super) fn value<T: PartialEq, D: Display>(
        &mut self,
        what: &'static str,
        old: &T,
        new: &T,
        show: impl Fn(&T) -> D,
    ) {
        if old != new {
            self.0.push(Change { what, how: format!("{} -> {}", show(old), show(new)) });
        }
    }

    /// `what how`
    pub(super) fn note(&mut self, what: &'static str, how: String) {
        self.0.push(Change { what, how });
    }

    /// `what +added -removed`, if the lists differ.
    pub(super) fn list(&mut self, what: &'static str, old: &[String], new: &[String]) {
        if old == new {
            return;
        }
        // Lists may have thousands of items.
        let (before, after): (HashSet<_>, HashSet<_>) = (old.iter().collect(), new.iter().collect());
        let added = new.iter().filter(|item| !before.contains(item)).map(|item| format!("+{item}"));
        let removed = old.iter().filter(|item| !after.contains(item)).map(|item| format!("-{item}"));
        let all: Vec<String> = added.chain(removed).collect();
        let how = match (all.get(..MAX_NAMED), all.len()) {
            (_, 0) => "in another order".to_owned(),
            (Some(first), count) if count > MAX_NAMED => format!("{} and {} more", first.join(" "), count - MAX_NAMED),
            _ => all.join(" "),
        };
        self.0.push(Change { what, how });
    }
}
