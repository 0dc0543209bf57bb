//! The fields of a message on their way through what a route changes in them.

use super::cors;
use super::exchange::Story;
use super::headers::Sink;
use super::variables::Known;
use super::worker::View;
use crate::config::Cors;
use crate::edit::{Escape, FieldEdits};
use crate::http1::Piece;

/// A sink that leaves out what is removed or set.
pub struct Edited<'e, S> {
    sink: &'e mut S,
    edits: &'e FieldEdits,
    /// Fields that are left out beside those of the edits, in lower case.
    also: &'static [&'static str],
}

/// Whose answer it is that a route changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// A server's.
    Servers,
    /// The gateway's.
    Own,
}

/// What a route changes in answers.
#[derive(Clone, Copy)]
pub struct Changes<'v> {
    edits: &'v FieldEdits,
    cors: Option<&'v Cors>,
}

static NO_EDITS: FieldEdits = FieldEdits::none();

impl<'v> Changes<'v> {
    /// What the route of an exchange changes; `None`: nothing.
    pub fn of(view: &'v View, story: &Story) -> Option<Self> {
        let plan = view.snapshot.routes.get(story.route?)?;
        let edits = plan.edits.as_deref().map(|edits| &edits.response).filter(|edits| !edits.is_empty());
        let cors = plan.cors.as_ref();
        (edits.is_some() || cors.is_some()).then(|| Self { edits: edits.unwrap_or(&NO_EDITS), cors })
    }

    /// Whether there are edits, for whose values an id may be needed.
    pub fn has_edits(&self) -> bool {
        !self.edits.is_empty()
    }

    /// The same, for an answer that says already what browsers are told.
    pub fn without_cors(self) -> Self {
        Self { cors: None, ..self }
    }

    /// Where the fields of the answer go before [`write`](Self::write) is called.
    pub fn sink<'s, S: Sink>(&'s self, sink: &'s mut S, whose: Whose) -> Edited<'s, S> {
        let owned = whose == Whose::Servers && self.cors.is_some_and(cors::is_owned);
        Edited::new(sink, self.edits, if owned { cors::OWNED } else { &[] })
    }

    /// Adds the fields of the route. `text` is overwritten.
    pub fn write(&self, known: &Known<'_>, whose: Whose, text: &mut Vec<u8>, sink: &mut impl Sink) {
        // Of an upstream that answers preflights itself, all that is about other origins is its own.
        if let Some(rules) = self.cors.filter(|rules| whose == Whose::Own || cors::is_owned(rules)) {
            cors::write(rules, known.request.field(b"origin"), &mut Edited::new(sink, self.edits, &[]));
        }
        write_edits(self.edits, known, text, sink);
    }
}

impl<'e, S: Sink> Edited<'e, S> {
    /// What `edits` leave of what comes, and nothing of the names in `also`.
    pub fn new(sink: &'e mut S, edits: &'e FieldEdits, also: &'static [&'static str]) -> Self {
        Self { sink, edits, also }
    }

    fn cuts(&self, name: &[u8]) -> bool {
        self.edits.cuts(name) || self.also.iter().any(|also| also.as_bytes().eq_ignore_ascii_case(name))
    }
}

impl<S: Sink> Sink for Edited<'_, S> {
    fn put(&mut self, name: &[u8], value: &[u8]) {
        if !self.cuts(name) {
            self.sink.put(name, value);
        }
    }

    fn put_joined(&mut self, name: &[u8], parts: &[&[u8]]) {
        if !self.cuts(name) {
            self.sink.put_joined(name, parts);
        }
    }

    fn put_piece(&mut self, piece: Piece<'_>) {
        let lines = match piece {
            Piece::Field(name, value) => return self.put(name, value),
            Piece::Lines(lines) => lines,
        };
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
            if !self.cuts(name) {
                self.sink.put_piece(Piece::Lines(line));
            }
        }
    }

    fn has(&self, lower_name: &[u8]) -> bool {
        self.sink.has(lower_name)
    }
}

/// Adds what is set and added. A field whose value comes out empty is none. `text` is overwritten.
pub fn write_edits(edits: &FieldEdits, known: &Known<'_>, text: &mut Vec<u8>, sink: &mut impl Sink) {
    for (name, value) in edits.written() {
        text.clear();
        value.render(known, Escape::Field, text);
        let value = text.trim_ascii();
        if !value.is_empty() {
            sink.put(name.as_bytes(), value);
        }
    }
}
