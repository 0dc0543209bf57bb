//! Names: how they are written, that none is given twice, and what refers to them.

use std::cell::Cell;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::findings::{Finding, Findings, Reported, quoted};
use super::nearest::nearest;
use super::reader::Node;
use super::token::{MAX_NAME_BYTES, is_name};

/// Names listed in a remedy.
const MAX_LISTED: usize = 8;

/// A name and its place.
#[derive(Clone, Debug)]
pub(super) struct Name {
    pub(super) text: Arc<str>,
    pub(super) span: Range<usize>,
}

impl Name {
    /// The text that is written as a name. If it cannot be one, it is a name all the same to whatever refers to it.
    pub(super) fn of(node: &Node<'_>) -> Option<Self> {
        Some(Self { text: node.as_text()?.into(), span: node.span() })
    }
}

/// The `name` of a section.
pub(super) fn read(node: &Node<'_>, example: &str) -> Result<Arc<str>, Reported> {
    let text = node.string("a string", &format!("\"{example}\""))?;
    if is_name(text) {
        return Ok(text.into());
    }
    let help =
        format!("a name is 1 to {MAX_NAME_BYTES} letters, digits, dots, dashes or underscores (A-Z a-z 0-9 . _ -)");
    Err(node.error(format!("{} cannot be a name", quoted(text)), help))
}

/// The sections of one kind, in the file's order. A section that could not be lowered keeps its place and its name, so
/// that what refers to it is no error too.
pub(super) struct Declared<'t, T> {
    kind: &'static str,
    entries: Vec<NameEntry<T>>,
    by_name: HashMap<Arc<str>, usize>,
    has_nameless: bool,
    findings: &'t Findings,
}

struct NameEntry<T> {
    name: Option<Name>,
    item: Option<Arc<T>>,
    used: Cell<bool>,
}

impl<'t, T> Declared<'t, T> {
    /// None of `kind` yet.
    pub(super) fn new(kind: &'static str, findings: &'t Findings) -> Self {
        Self { kind, entries: Vec::new(), by_name: HashMap::new(), has_nameless: false, findings }
    }

    /// Adds the next one of the file; a name that was given before is an error.
    pub(super) fn add(&mut self, name: Option<Name>, item: Option<T>) {
        if let Some(Name { text, span }) = &name {
            let first = self.by_name.get(text).and_then(|index| self.entries.get(*index));
            if let Some(NameEntry { name: Some(first), .. }) = first {
                let message = format!("the {} {} is defined twice", self.kind, quoted(text));
                let finding = Finding::error(span.clone(), message).related("the first is at", first.span.clone());
                self.findings.push(finding.help("give each its own name"));
            } else {
                self.by_name.insert(text.clone(), self.entries.len());
            }
        }
        self.has_nameless |= name.is_none();
        self.entries.push(NameEntry { name, item: item.map(Arc::new), used: Cell::new(false) });
    }

    /// The index of the one that `node` names; a name that nothing has is an error.
    pub(super) fn refer(&self, node: &Node<'_>) -> Option<usize> {
        let text = node.text("a name in quotes", &format!("the name of a [[{}]]", self.kind))?;
        if let Some(index) = self.by_name.get(text) {
            if let Some(entry) = self.entries.get(*index) {
                entry.used.set(true);
            }
            return Some(*index);
        }
        // A section that lost its name may be the one that is meant.
        if !self.has_nameless {
            let message = format!("there is no {} {}", self.kind, quoted(text));
            let help = if self.findings.has_room() { self.remedy(text) } else { String::new() };
            self.findings.push(Finding::absent_in_file(Some(node.span()), message).help(help));
        }
        None
    }

    /// Whether one has this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// The one at `index`, if it could be lowered.
    pub(super) fn item(&self, index: usize) -> Option<&Arc<T>> {
        self.entries.get(index)?.item.as_ref()
    }

    /// The name of the one at `index`.
    pub(super) fn name(&self, index: usize) -> &str {
        self.entries.get(index).and_then(|entry| entry.name.as_ref()).map_or("", |name| &name.text)
    }

    /// Warns of each that nothing referred to.
    pub(super) fn warn_unused(&self) {
        for NameEntry { name, used, .. } in &self.entries {
            if let (Some(Name { text, span }), false) = (name, used.get()) {
                let message = format!("no route uses the {} {}", self.kind, quoted(text));
                let help = format!("name it in a [[route]], or remove this [[{}]]", self.kind);
                self.findings.push(Finding::warning(span.clone(), message).help(help));
            }
        }
    }

    /// Those that have a name and could be lowered.
    pub(super) fn each(&self) -> impl Iterator<Item = (&Name, &Arc<T>)> {
        self.entries.iter().filter_map(|entry| entry.name.as_ref().zip(entry.item.as_ref()))
    }

    pub(super) fn findings(&self) -> &'t Findings {
        self.findings
    }

    /// All of them; `None` if one could not be lowered.
    pub(super) fn into_items(self) -> Option<Vec<Arc<T>>> {
        self.entries.into_iter().map(|entry| entry.item).collect()
    }

    fn remedy(&self, written: &str) -> String {
        let names = || self.entries.iter().filter_map(|entry| entry.name.as_ref()).map(|name| &*name.text);
        if let Some(near) = nearest(written, names()) {
            return format!("did you mean \"{near}\"?");
        }
        let listed: Vec<_> = names().take(MAX_LISTED).collect();
        if listed.is_empty() {
            return format!("the file has no [[{}]]: add one of this name", self.kind);
        }
        let more = if names().nth(MAX_LISTED).is_some() { ", ..." } else { "" };
        format!("add a [[{0}]] of this name; {0}s of the file: {1}{more}", self.kind, listed.join(", "))
    }
}
