//! One table of a file made to say what another one says: keys that stay keep their place and their comments, new ones come
//! last, values that change keep the comment behind them. Arrays are made so by [`array`].

use toml_edit::{Array, ArrayOfTables, Item};

use super::array;
use super::inline;
use super::layout::Layout;
use super::splice::Splices;
use super::value::{Value, ValueTable};

/// Makes the changes of one entry.
pub(super) struct Merge<'s, 't> {
    pub(super) layout: Layout<'t>,
    pub(super) splices: &'s mut Splices<'t>,
}

/// Where new keys of a table are written.
struct TableBody<'t> {
    /// Keys of the tables between the one with the header and this one.
    path: Vec<String>,
    /// Where a new line begins.
    end: usize,
    indentation: &'t str,
}

impl<'t> Merge<'_, 't> {
    /// Makes a table that has a header say what `new` says. `None`, if the parser told no places.
    pub(super) fn table(&mut self, old: &toml_edit::Table, new: &ValueTable) -> Option<()> {
        let end = self.layout.body_end(old)?;
        let first = old.iter().find(|(_, item)| item.is_value()).and_then(|(key, _)| old.key(key)?.span());
        let line = first.map_or_else(|| self.layout.header(old), |span| Some(span.start))?;
        let body = TableBody { path: Vec::new(), end, indentation: self.layout.indentation(line) };
        self.entries(old, new, &body)
    }

    fn entries(&mut self, old: &toml_edit::Table, new: &ValueTable, body: &TableBody<'t>) -> Option<()> {
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
        body: &TableBody<'t>,
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
                self.entries(old, new, &TableBody { path, ..*body })
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
    fn add(&mut self, body: &TableBody<'t>, key: &str, value: &Value) {
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
        self.remove_headers(table)
    }

    /// Removes the tables with headers that are in one. Its values are in its own block, or it has none.
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

    /// An array: each item that stays keeps the comments that it owns.
    fn list(&mut self, old: &Array, new: &[Value]) -> Option<()> {
        let written = array::edited(self.layout, old, new, self.splices.line_end())?;
        self.splices.replace(old.span()?, written);
        Some(())
    }
}

fn is_table(value: &Value) -> bool {
    matches!(value, Value::Table(_))
}
