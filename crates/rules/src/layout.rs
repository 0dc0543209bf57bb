//! The places of tables in the text of a file, line by line.
//!
//! A table that has a header has a block: its header's line and all down to its last value. The comment directly above a
//! header, without a blank line between them, belongs to it. Comments below the last value belong to nobody.

use std::ops::Range;

use toml_edit::{Item, Table};

/// The text of a file, by lines.
#[derive(Clone, Copy)]
pub(super) struct Layout<'t> {
    pub(super) text: &'t str,
}

impl<'t> Layout<'t> {
    /// Where the line of a place begins.
    pub(super) fn line_start(self, at: usize) -> usize {
        let before = self.text.get(..at).unwrap_or_default();
        before.rfind('\n').map_or(0, |newline| newline + 1)
    }

    /// Where the next line begins; at the last line the end of the text.
    pub(super) fn next_line(self, at: usize) -> usize {
        let rest = self.text.get(at..).unwrap_or_default();
        rest.find('\n').map_or(self.text.len(), |newline| at + newline + 1)
    }

    /// The line that begins at a place, without blanks around it; `None` at the end of the text.
    fn line(self, start: usize) -> Option<&'t str> {
        let line = self.text.get(start..self.next_line(start))?;
        if start >= self.text.len() { None } else { Some(line.trim()) }
    }

    /// Whether no line of something follows: a blank one, or none at all.
    pub(super) fn is_blank(self, start: usize) -> bool {
        self.line(start).is_none_or(str::is_empty)
    }

    /// Whether the line before this one is blank, or there is none.
    pub(super) fn is_blank_before(self, start: usize) -> bool {
        let start = self.line_start(start);
        start == 0 || self.is_blank(self.line_start(start - 1))
    }

    /// The blanks at the begin of a line.
    pub(super) fn indentation(self, at: usize) -> &'t str {
        let line = self.text.get(self.line_start(at)..).unwrap_or_default();
        let length = line.len() - line.trim_start_matches([' ', '\t']).len();
        line.get(..length).unwrap_or_default()
    }

    /// Where the comment directly above a line begins; the line itself, if there is none.
    pub(super) fn comment_above(self, line: usize) -> usize {
        let mut start = self.line_start(line);
        while start > 0 {
            let above = self.line_start(start - 1);
            if above == start || !self.line(above).is_some_and(|line| line.starts_with('#')) {
                break;
            }
            start = above;
        }
        start
    }

    /// Behind the comment directly below a block that ends at `end`, where the comment is not that of what follows.
    pub(super) fn below(self, end: usize) -> usize {
        let mut at = end;
        while let Some(line) = self.line(at) {
            if line.is_empty() {
                return at;
            }
            if !line.starts_with('#') {
                return end;
            }
            at = self.next_line(at);
        }
        at
    }

    /// Where the header of a table stands; `None` of one that has none.
    pub(super) fn header(self, table: &Table) -> Option<usize> {
        let span = table.span().filter(|_| !table.is_implicit())?;
        self.text.get(span.clone())?.starts_with('[').then(|| self.line_start(span.start))
    }

    /// The lines from a table's header down to its last value; those of tables in it are not among them.
    pub(super) fn block(self, table: &Table) -> Option<Range<usize>> {
        Some(self.header(table)?..self.body_end(table)?)
    }

    /// Behind the line of the last value that stands below a table's header itself.
    pub(super) fn body_end(self, table: &Table) -> Option<usize> {
        let last = last_value(table).or_else(|| Some(table.span()?.end))?;
        Some(self.next_line(last))
    }

    /// Behind the last line of a table and of all tables in it.
    pub(super) fn whole_end(self, table: &Table) -> Option<usize> {
        let own = self.block(table).map(|block| block.end);
        let inner = table.iter().flat_map(|(_, item)| tables_of(item)).filter_map(|table| self.whole_end(table));
        own.into_iter().chain(inner).max()
    }
}

/// The end of the last value of a table that stands below its own header.
fn last_value(table: &Table) -> Option<usize> {
    let ends = table.iter().filter_map(|(_, item)| match item {
        Item::Value(value) => Some(value.span()?.end),
        Item::Table(table) if table.is_implicit() => last_value(table),
        _ => None,
    });
    ends.max()
}

/// The tables that an item is.
pub(super) fn tables_of(item: &Item) -> Vec<&Table> {
    match item {
        Item::Table(table) => vec![table],
        Item::ArrayOfTables(tables) => tables.iter().collect(),
        Item::None | Item::Value(_) => Vec::new(),
    }
}
