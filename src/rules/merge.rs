//! One table of a file made to say what another one says: keys that stay keep their place and their comments, new ones come
//! last, values that change keep the comment behind them.

use std::ops::Range;

use toml_edit::{Array, ArrayOfTables, Item};

use super::inline;
use super::layout::Layout;
use super::splice::Splices;
use super::value::{Table, Value};

/// Makes the changes of one entry.
pub(super) struct Merge<'s, 't> {
    pub(super) layout: Layout<'t>,
    pub(super) splices: &'s mut Splices<'t>,
}

/// Where new keys of a table are written.
struct Body<'t> {
    /// Keys of the tables between the one with the header and this one.
    path: Vec<String>,
    /// Where a new line begins.
    end: usize,
    indentation: &'t str,
}

impl<'t> Merge<'_, 't> {
    /// Makes a table that has a header say what `new` says. `None`, if the parser told no places.
    pub(super) fn table(&mut self, old: &toml_edit::Table, new: &Table) -> Option<()> {
        let end = self.layout.body_end(old)?;
        let first = old.iter().find(|(_, item)| item.is_value()).and_then(|(key, _)| old.key(key)?.span());
        let line = first.map_or_else(|| self.layout.header(old), |span| Some(span.start))?;
        let body = Body { path: Vec::new(), end, indentation: self.layout.indentation(line) };
        self.entries(old, new, &body)
    }

    fn entries(&mut self, old: &toml_edit::Table, new: &Table, body: &Body<'t>) -> Option<()> {
        for (key, item) in old {
            match new.get(key) {
                None => self.remove(old, key, item)?,
                Some(value) if Value::of(item) == *value => {}
                Some(value) => self.item((old, key, item), value, body)?,
            }
        }
        for (key, value) in new.iter().filter(|(key, _)| !old.contains_key(key)) {
            self.add(body, key, value);
        }
        Some(())
    }

    fn item(
        &mut self,
        (table, key, item): (&toml_edit::Table, &str, &Item),
        new: &Value,
        body: &Body<'t>,
    ) -> Option<()> {
        match (item, new) {
            (Item::Value(toml_edit::Value::Array(old)), Value::List(new)) => self.list(old, new),
            (Item::Value(old), _) => {
                self.splices.replace(old.span()?, inline::value(new));
                Some(())
            }
            (Item::Table(old), Value::Table(new)) if !old.is_implicit() => self.table(old, new),
            (Item::Table(old), Value::Table(new)) if !new.is_empty() => {
                let path = body.path.iter().cloned().chain([key.to_owned()]).collect();
                self.entries(old, new, &Body { path, ..*body })
            }
            (Item::ArrayOfTables(old), Value::List(new)) if !new.is_empty() && new.iter().all(is_table) => {
                self.tables(old, new)
            }
            _ => {
                self.remove(table, key, item)?;
                self.add(body, key, new);
                Some(())
            }
        }
    }

    /// Writes a key that is new.
    fn add(&mut self, body: &Body<'t>, key: &str, value: &Value) {
        let path: Vec<&str> = body.path.iter().map(String::as_str).chain([key]).collect();
        self.splices.add_lines(body.end, &[format!("{}{}", body.indentation, inline::line(&path, value))]);
    }

    /// Removes a key and all that is in it.
    fn remove(&mut self, table: &toml_edit::Table, key: &str, item: &Item) -> Option<()> {
        match item {
            Item::None => {}
            Item::Value(value) => {
                let start = self.layout.line_start(table.key(key)?.span()?.start);
                self.splices.replace(start..self.layout.next_line(value.span()?.end), String::new());
            }
            Item::Table(inner) if inner.is_implicit() => {
                for (key, item) in inner {
                    self.remove(inner, key, item)?;
                }
            }
            Item::Table(inner) => self.remove_table(inner)?,
            Item::ArrayOfTables(tables) => {
                for table in tables {
                    self.remove_table(table)?;
                }
            }
        }
        Some(())
    }

    /// Removes a table that has a header, with the comment directly above it, and the tables in it.
    pub(super) fn remove_table(&mut self, table: &toml_edit::Table) -> Option<()> {
        let block = self.layout.block(table)?;
        let start = self.layout.comment_above(block.start);
        // Of the blank lines before and behind it one group stays.
        let is_between_blanks = self.layout.is_blank_before(start) && block.end < self.layout.text.len();
        let mut end = block.end;
        while is_between_blanks && end < self.layout.text.len() && self.layout.is_blank(end) {
            end = self.layout.next_line(end);
        }
        self.splices.replace(start..end, String::new());
        for (key, item) in table {
            match item {
                Item::Table(inner) if inner.is_implicit() => self.remove_headers(inner)?,
                Item::Table(_) | Item::ArrayOfTables(_) => self.remove(table, key, item)?,
                // Within the block.
                Item::None | Item::Value(_) => {}
            }
        }
        Some(())
    }

    /// Removes the tables with headers in one that has none.
    fn remove_headers(&mut self, table: &toml_edit::Table) -> Option<()> {
        for (key, item) in table {
            match item {
                Item::Table(inner) if inner.is_implicit() => self.remove_headers(inner)?,
                Item::Table(_) | Item::ArrayOfTables(_) => self.remove(table, key, item)?,
                Item::None | Item::Value(_) => {}
            }
        }
        Some(())
    }

    /// Tables under headers of their own, one by one.
    fn tables(&mut self, old: &ArrayOfTables, new: &[Value]) -> Option<()> {
        for (table, value) in old.iter().zip(new) {
            if let Value::Table(value) = value {
                self.table(table, value)?;
            }
        }
        for table in old.iter().skip(new.len()) {
            self.remove_table(table)?;
        }
        let (first, last) = (old.get(0)?, old.iter().last()?);
        let header = self.layout.text.get(first.span()?)?;
        let indentation = self.layout.indentation(first.span()?.start);
        let at = self.layout.whole_end(last)?;
        for value in new.iter().skip(old.len()) {
            let Value::Table(table) = value else { continue };
            let keys = table.iter().map(|(key, value)| inline::line(&[key], value));
            let lines: Vec<String> = std::iter::once(header.to_owned()).chain(keys).collect();
            let lines: Vec<String> = lines.into_iter().map(|line| format!("{indentation}{line}")).collect();
            self.splices.add_lines(at, &lines);
        }
        Some(())
    }

    /// An array: items at its begin and end that stay are not touched, nor are their comments.
    fn list(&mut self, old: &Array, new: &[Value]) -> Option<()> {
        let (spans, values) = items(old)?;
        let front = values.iter().zip(new).take_while(|(own, new)| own == new).count();
        let most = values.len().min(new.len()) - front;
        let back = values.iter().rev().zip(new.iter().rev()).take(most).take_while(|(own, new)| own == new).count();
        let gone = spans.get(front..spans.len() - back)?;
        let added: Vec<String> = new.get(front..new.len() - back)?.iter().map(inline::value).collect();
        if spans.is_empty() || new.is_empty() {
            self.splices.replace(old.span()?, format!("[{}]", added.join(", ")));
            return Some(());
        }
        let separator = self.separator(old, &spans)?;
        let added = added.join(&separator);
        let (range, text) = match (gone.first(), gone.last(), spans.get(spans.len() - back)) {
            (Some(first), Some(last), _) if !added.is_empty() => (first.start..last.end, added),
            (Some(first), Some(_), Some(next)) => (first.start..next.start, String::new()),
            (Some(first), Some(last), None) => {
                (self.last_items(spans.get(front.checked_sub(1)?)?, first, last), String::new())
            }
            (_, _, Some(next)) => (next.start..next.start, added + &separator),
            _ => self.behind_last(old, spans.last()?, (&added, &separator))?,
        };
        self.splices.replace(range, text);
        Some(())
    }

    /// The text between two items: a comma, and a line end where each item has a line.
    fn separator(&self, list: &Array, spans: &[Range<usize>]) -> Option<String> {
        let first = spans.first()?.start;
        let begin = self.layout.text.get(list.span()?.start..first)?;
        if !begin.contains('\n') {
            return Some(", ".to_owned());
        }
        Some(format!(",{}{}", self.splices.line_end(), self.layout.indentation(first)))
    }

    /// The text to remove for the last items: their lines, if they have lines of their own, else from the item before on.
    fn last_items(&self, before: &Range<usize>, first: &Range<usize>, last: &Range<usize>) -> Range<usize> {
        let (start, end) = (self.layout.line_start(first.start), self.layout.next_line(last.end));
        let text = |range: Range<usize>| self.layout.text.get(range).unwrap_or_default();
        let owns_begin = start > before.end && text(start..first.start).trim().is_empty();
        let owns_end = text(last.end..end).trim_start().trim_start_matches(',').trim_start();
        let is_clear =
            text(last.end..end).trim_start().starts_with(',') && (owns_end.is_empty() || owns_end.starts_with('#'));
        if owns_begin && is_clear { start..end } else { before.end..last.end }
    }

    /// Adds items behind the last one: behind its comma and comment, where each item has a line.
    fn behind_last(
        &self,
        list: &Array,
        last: &Range<usize>,
        (added, separator): (&str, &str),
    ) -> Option<(Range<usize>, String)> {
        let end = list.span()?.end - 1;
        let rest = self.layout.text.get(last.end..end)?;
        if let Some(newline) = rest.rfind('\n').filter(|_| list.trailing_comma() && separator.contains('\n')) {
            let at = last.end + newline + 1;
            let indentation = separator.rsplit('\n').next()?;
            return Some((at..at, format!("{indentation}{added},{}", self.splices.line_end())));
        }
        Some((last.end..last.end, format!("{separator}{added}")))
    }
}

fn is_table(value: &Value) -> bool {
    matches!(value, Value::Table(_))
}

/// The places and values of an array's items.
fn items(list: &Array) -> Option<(Vec<Range<usize>>, Vec<Value>)> {
    let spans = list.iter().map(toml_edit::Value::span).collect::<Option<Vec<_>>>()?;
    let values = list.iter().map(|value| Value::of(&Item::Value(value.clone())));
    Some((spans, values.collect()))
}
