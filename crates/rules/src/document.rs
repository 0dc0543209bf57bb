//! The text of a configuration, and edits of its entries by name. An edit replaces lines of the text; all others stay byte for
//! byte. The result is read again, and is refused if it says anything else than the edit asked for.

use toml_edit::{Item, Table as TomlTable};

use super::error::EditError;
use super::inline;
use super::kind::RuleKind;
use super::layout::Layout;
use super::merge::Merge;
use super::splice::Splices;
use super::value::{Value, ValueTable};

const MARK: &str = "\u{feff}";

/// A text that is TOML.
#[derive(Debug)]
pub struct Document {
    /// Some editors put a byte order mark at the start; it stays there.
    has_mark: bool,
    toml: toml_edit::Document<String>,
}

/// One change.
#[derive(Clone, Debug, PartialEq)]
pub struct Edit {
    /// The kind of the entry.
    pub kind: RuleKind,
    /// Its name.
    pub name: String,
    /// The change.
    pub change: EntryChange,
}

/// A change of one entry.
#[derive(Clone, Debug, PartialEq)]
pub enum EntryChange {
    /// A new entry. It has no name in it, or the same.
    Create(ValueTable, InsertPosition),
    /// An entry that is there is to say this instead.
    Replace(ValueTable),
    /// Replaces the entry, if it is there, or creates it.
    Put(ValueTable, InsertPosition),
    /// An entry is removed.
    Delete,
}

/// The place of a new entry among those of its kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum InsertPosition {
    /// Behind all others.
    #[default]
    Last,
    /// Before the one of this name.
    Before(String),
    /// Behind the one of this name.
    After(String),
}

/// Something that was done to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryEdit {
    /// It is new.
    Created,
    /// It says something else.
    Replaced,
    /// It is gone.
    Deleted,
}

impl EntryEdit {
    /// As the history names it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Replaced => "replaced",
            Self::Deleted => "deleted",
        }
    }
}

/// The text after an edit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edited {
    /// All of it.
    pub text: String,
    /// The fate of the entry.
    pub done: EntryEdit,
}

impl Document {
    /// Parses a text. It need not be a configuration that can run.
    ///
    /// # Errors
    /// It is no TOML.
    pub fn parse(text: impl Into<String>) -> Result<Self, EditError> {
        let text = text.into();
        let has_mark = text.starts_with(MARK);
        let text = if has_mark { text.replacen(MARK, "", 1) } else { text };
        match toml_edit::Document::parse(text.clone()) {
            Ok(toml) => Ok(Self { has_mark, toml }),
            Err(error) => {
                let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
                let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
                Err(EditError::Syntax { message: error.message().trim_end_matches('.').to_owned(), line })
            }
        }
    }

    fn text(&self) -> &str {
        self.toml.raw()
    }

    /// The entries of a kind, in the order of the file.
    pub fn list(&self, kind: RuleKind) -> Vec<ValueTable> {
        let Some(Value::List(list)) = self.toml.get(kind.word()).map(Value::of) else { return Vec::new() };
        let tables =
            list.into_iter().filter_map(|value| if let Value::Table(table) = value { Some(table) } else { None });
        tables.collect()
    }

    /// The entry of a name.
    pub fn get(&self, kind: RuleKind, name: &str) -> Option<ValueTable> {
        self.list(kind).into_iter().find(|table| name_of(table) == Some(name))
    }

    /// Everything that the text says.
    pub fn value(&self) -> ValueTable {
        ValueTable::of(self.toml.as_table())
    }

    /// Makes an edit.
    ///
    /// # Errors
    /// The entry is not there, or is there already, or the text cannot be edited so; nothing is done then.
    pub fn edit(&self, edit: &Edit) -> Result<Edited, EditError> {
        let Edit { kind, name, change } = edit;
        let at = self.find(*kind, name)?;
        let absent = || EditError::NotFound(*kind, name.clone());
        let mut splices = Splices::new(self.text());
        let made = match (change, at) {
            (EntryChange::Create(..), Some(_)) => return Err(EditError::Exists(*kind, name.clone())),
            (EntryChange::Replace(_) | EntryChange::Delete, None) => return Err(absent()),
            (EntryChange::Create(new, place) | EntryChange::Put(new, place), None) => {
                self.create(&mut splices, edit, &named(*kind, name, new)?, place)?;
                EntryEdit::Created
            }
            (EntryChange::Replace(new) | EntryChange::Put(new, _), Some(at)) => {
                let table = self.table(*kind, at).ok_or(EditError::Inline(*kind))?;
                let new = named(*kind, name, new)?;
                self.merge(&mut splices).table(table, &new).ok_or(EditError::Unsupported)?;
                EntryEdit::Replaced
            }
            (EntryChange::Delete, Some(at)) => {
                let table = self.table(*kind, at).ok_or(EditError::Inline(*kind))?;
                self.merge(&mut splices).remove_table(table).ok_or(EditError::Unsupported)?;
                EntryEdit::Deleted
            }
        };
        let text = splices.apply().ok_or(EditError::Unsupported)?;
        // The proof: a slip of the code above shall never reach a file.
        let read = Self::parse(text).map_err(|_| EditError::Unsupported)?;
        if read.value() != self.wanted(edit, at)? {
            return Err(EditError::Unsupported);
        }
        let mark = if self.has_mark { MARK } else { "" };
        Ok(Edited { text: format!("{mark}{}", read.text()), done: made })
    }

    fn merge<'s, 't>(&'t self, splices: &'s mut Splices<'t>) -> Merge<'s, 't> {
        Merge { layout: Layout { text: self.text() }, splices }
    }

    /// The place of an entry among those of its kind.
    fn find(&self, kind: RuleKind, name: &str) -> Result<Option<usize>, EditError> {
        let list = self.list(kind);
        let mut places = list.iter().enumerate().filter(|(_, table)| name_of(table) == Some(name)).map(|(at, _)| at);
        let first = places.next();
        if places.next().is_some() { Err(EditError::Twice(kind, name.to_owned())) } else { Ok(first) }
    }

    /// An entry that has a header of its own.
    fn table(&self, kind: RuleKind, at: usize) -> Option<&TomlTable> {
        self.toml.get(kind.word())?.as_array_of_tables()?.get(at)
    }

    fn create<'t>(
        &'t self,
        splices: &mut Splices<'t>,
        edit: &Edit,
        new: &ValueTable,
        place: &InsertPosition,
    ) -> Result<(), EditError> {
        let kind = edit.kind;
        if !matches!(self.toml.get(kind.word()), None | Some(Item::ArrayOfTables(_))) {
            return Err(EditError::Inline(kind));
        }
        let layout = Layout { text: self.text() };
        let before = self.new_place(kind, place)?;
        let next = before.and_then(|at| self.table(kind, at));
        let last = before.unwrap_or(usize::MAX).checked_sub(1);
        let last = last.and_then(|at| self.table(kind, at.min(self.list(kind).len().checked_sub(1)?)));
        let at = match (next, last, place) {
            (Some(next), _, InsertPosition::Before(_)) | (Some(next), None, _) => {
                layout.header(next).map(|at| layout.comment_above(at))
            }
            (_, Some(last), _) => layout.whole_end(last).map(|end| layout.below(end)),
            _ => Some(self.text().len()),
        };
        let at = at.ok_or(EditError::Unsupported)?;
        let mut lines = Vec::new();
        if !layout.is_blank_before(at) || (at == self.text().len() && !self.text().ends_with('\n') && at > 0) {
            lines.push(String::new());
        }
        lines.push(format!("[[{}]]", kind.word()));
        lines.extend(new.iter().map(|(key, value)| inline::line(&[key], value)));
        if !layout.is_blank(at) {
            lines.push(String::new());
        }
        splices.add_lines(at, &lines);
        Ok(())
    }

    /// The place before which a new entry comes; `None`: behind all.
    fn new_place(&self, kind: RuleKind, place: &InsertPosition) -> Result<Option<usize>, EditError> {
        let find = |name: &String| self.find(kind, name)?.ok_or_else(|| EditError::NoNeighbour(kind, name.clone()));
        Ok(match place {
            InsertPosition::Last => None,
            InsertPosition::Before(name) => Some(find(name)?),
            InsertPosition::After(name) => Some(find(name)? + 1).filter(|next| *next < self.list(kind).len()),
        })
    }

    /// Everything that the text is to say after an edit of the entry at `at`.
    fn wanted(&self, edit: &Edit, at: Option<usize>) -> Result<ValueTable, EditError> {
        let Edit { kind, name, change } = edit;
        let mut root = self.value();
        let mut list = self.list(*kind);
        match (change, at) {
            (EntryChange::Delete, Some(at)) => drop(list.remove(at)),
            (EntryChange::Replace(new) | EntryChange::Put(new, _) | EntryChange::Create(new, _), Some(at)) => {
                list[at] = named(*kind, name, new)?;
            }
            (EntryChange::Create(new, place) | EntryChange::Put(new, place), None) => {
                let at = self.new_place(*kind, place)?.unwrap_or(list.len());
                list.insert(at, named(*kind, name, new)?);
            }
            (EntryChange::Replace(_) | EntryChange::Delete, None) => {
                return Err(EditError::NotFound(*kind, name.clone()));
            }
        }
        if list.is_empty() {
            root.take(kind.word());
        } else {
            root.set(kind.word(), Value::List(list.into_iter().map(Value::Table).collect()));
        }
        Ok(root)
    }
}

fn name_of(table: &ValueTable) -> Option<&str> {
    table.get("name").and_then(Value::as_text)
}

/// The entry with its name. A name in it has to be the same.
fn named(kind: RuleKind, name: &str, new: &ValueTable) -> Result<ValueTable, EditError> {
    match new.get("name") {
        None => Ok(new.clone().with_first("name", Value::Text(name.to_owned()))),
        Some(Value::Text(own)) if own == name => Ok(new.clone()),
        Some(_) => Err(EditError::OtherName(kind, name.to_owned())),
    }
}

impl Edit {
    /// A new entry, by the name in it.
    ///
    /// # Errors
    /// It has no name.
    pub fn create(kind: RuleKind, entry: ValueTable, place: InsertPosition) -> Result<Self, EditError> {
        let name = name_of(&entry).ok_or(EditError::NoName(kind))?.to_owned();
        Ok(Self { kind, name, change: EntryChange::Create(entry, place) })
    }
}
