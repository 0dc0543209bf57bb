//! The fields of a message on their way through what a route changes in them.

use super::variables::TemplateContext;
use crate::answer::cors;
use crate::headers::{Sink, passed};
use crate::view::RouteView;
use sluicegate_config::Cors;
use sluicegate_edit::{Escape, FieldEdits, is_same_field};
use sluicegate_http1::{Piece, line_name};

/// A sink that leaves out what is removed or set.
pub struct Edited<'e, S> {
    sink: &'e mut S,
    edits: &'e FieldEdits,
    /// Fields that are left out beside those of the edits, in lower case.
    also: &'static [&'static str],
    /// The source of the answer that they are of.
    origin: ResponseOrigin,
}

/// The source of an answer that a route changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseOrigin {
    /// A server.
    Servers,
    /// The gateway.
    Own,
    /// The gateway, in an answer that says what went wrong.
    Problem,
}

/// The changes that a route makes in answers.
#[derive(Clone, Copy)]
pub struct Changes<'v> {
    edits: &'v FieldEdits,
    cors: Option<&'v Cors>,
}

impl ResponseOrigin {
    /// Whether a route may change this field. An answer of the gateway's keeps its `Content-Type`: a page is escaped
    /// for its type, and a call of gRPC has its own. An error keeps its fields for caches too: how long caches keep the
    /// answers of a route is no word about its errors.
    fn may_change(self, name: &[u8]) -> bool {
        match self {
            Self::Servers => true,
            Self::Own => !is_same_field("content-type", name),
            Self::Problem => !is_same_field("content-type", name) && !is_for_caches(name),
        }
    }
}

/// Whether caches are told by this field to keep an answer: `Cache-Control`, those that say it to some caches alone and
/// go before it (RFC 9213, `CDN-Cache-Control` and its kind), and those of before it.
fn is_for_caches(name: &[u8]) -> bool {
    const OTHERS: [&str; 4] = ["expires", "surrogate-control", "edge-control", "x-accel-expires"];
    let end = name.len().saturating_sub("cache-control".len());
    is_same_field("cache-control", name.get(end..).unwrap_or_default())
        || OTHERS.iter().any(|other| is_same_field(other, name))
}

/// Edits that change nothing.
pub static NO_EDITS: FieldEdits = FieldEdits::none();

impl<'v> Changes<'v> {
    /// The changes of a request's route; `None`: it makes none.
    pub fn of(route: Option<&'v RouteView>) -> Option<Self> {
        let spec = &*route?.spec;
        let edits = spec.edits.as_deref().map(|edits| &edits.response).filter(|edits| !edits.is_empty());
        let cors = spec.cors.as_ref();
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
    pub fn sink<'s, S: Sink>(&'s self, sink: &'s mut S, origin: ResponseOrigin) -> Edited<'s, S> {
        let owned = origin == ResponseOrigin::Servers && self.cors.is_some_and(cors::is_owned);
        Edited { sink, edits: self.edits, also: if owned { cors::OWNED } else { &[] }, origin }
    }

    /// Adds the fields of the route. `text` is overwritten.
    pub fn write(
        &self,
        context: &TemplateContext<'_>,
        origin: ResponseOrigin,
        text: &mut Vec<u8>,
        sink: &mut impl Sink,
    ) {
        write_edits(self.edits, origin, context, text, sink);
        // Of an upstream that answers preflights itself, all that is about other origins is its own. Edits do not reach
        // this: caches would take the answer to one origin for everybody's.
        if let Some(rules) = self.cors.filter(|rules| origin != ResponseOrigin::Servers || cors::is_owned(rules)) {
            cors::write(rules, passed::field(&context.request, b"origin"), sink);
        }
    }
}

impl<'e, S: Sink> Edited<'e, S> {
    /// A sink for the fields of a request, which leaves out those that `edits` cut and those of `also`, in lower case.
    pub fn without(sink: &'e mut S, edits: &'e FieldEdits, also: &'static [&'static str]) -> Self {
        Self { sink, edits, also, origin: ResponseOrigin::Servers }
    }

    fn cuts(&self, name: &[u8]) -> bool {
        self.origin.may_change(name) && (self.edits.cuts(name) || self.is_default(name))
            || self.also.iter().any(|also| is_same_field(also, name))
    }

    /// Whether the gateway says this only where the route does not: that caches keep none of its own answers.
    fn is_default(&self, name: &[u8]) -> bool {
        let adds = || self.edits.add().iter().any(|(own, _)| is_same_field(own, name));
        self.origin == ResponseOrigin::Own && is_same_field("cache-control", name) && adds()
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
            if !self.cuts(line_name(line)) {
                self.sink.put_piece(Piece::Lines(line));
            }
        }
    }

    fn has(&self, lower_name: &[u8]) -> bool {
        self.sink.has(lower_name)
    }
}

/// Adds what is set and added. A field whose value comes out empty is none. `text` is overwritten.
pub fn write_edits(
    edits: &FieldEdits,
    origin: ResponseOrigin,
    context: &TemplateContext<'_>,
    text: &mut Vec<u8>,
    sink: &mut impl Sink,
) {
    for (name, value) in edits.written().filter(|(name, _)| origin.may_change(name.as_bytes())) {
        text.clear();
        value.render(context, Escape::Field, text);
        let value = text.trim_ascii();
        if !value.is_empty() {
            sink.put(name.as_bytes(), value);
        }
    }
}

/// Adds the trailers of a request or an answer and the line that ends them, but for those that its route leaves out of
/// the head: who merges trailers into the head would take them for what was removed or set there.
pub fn write_trailers(tail: &[u8], origin: Option<ResponseOrigin>, route: Option<&RouteView>, made: &mut Vec<u8>) {
    let edits = route.and_then(|route| route.spec.edits.as_deref());
    let cuts = |name: &[u8]| match origin {
        None => edits.is_some_and(|edits| edits.request.cuts(name)),
        Some(origin) => Changes::of(route).is_some_and(|changes| changes.sink(&mut Nowhere, origin).cuts(name)),
    };
    for line in tail.split_inclusive(|byte| *byte == b'\n') {
        if !cuts(line_name(line)) {
            made.extend_from_slice(line);
        }
    }
}

/// A sink of which only is asked what it leaves out.
struct Nowhere;

impl Sink for Nowhere {
    fn put(&mut self, _: &[u8], _: &[u8]) {}

    fn has(&self, _: &[u8]) -> bool {
        false
    }
}
