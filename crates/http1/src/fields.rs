//! The field lines of a head, and what those among them say that concern the connection.

use super::fault::Fault;
use super::framing::FramingFields;
use super::head::{HeadLimits, MAX_FIELDS, Version};
use super::known::{Known, is_name};
use super::line::{CRLF_LENGTH, FieldLine, Span, fault_in_field};

/// A piece of a head that is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'b> {
    /// One or more lines as they stand in the head: `name: value`, with one space and no other around, and CRLF.
    Lines(&'b [u8]),
    /// A line that was written in another way: its name and its value.
    Field(&'b [u8], &'b [u8]),
}

/// The most fields that `Connection` may name: each is looked for among all, and real messages name one or two.
const MAX_NOMINATED: usize = 32;

/// The options of `Connection`, over all of its lines.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ConnectionOptions {
    pub(super) close: bool,
    pub(super) keep_alive: bool,
    pub(super) upgrade: bool,
    /// How many others there are: names of fields.
    pub(super) others: usize,
}

/// The field lines of one head.
#[derive(Debug, Default)]
pub(super) struct Fields {
    lines: Vec<FieldLine>,
    pub(super) connection: ConnectionOptions,
    pub(super) framing: FramingFields,
    /// The value of the only `Upgrade`.
    upgrade: Option<Span>,
    upgrades: usize,
}

impl Fields {
    /// Reads the field lines of `head`, which begin at `from`, and the empty line. `visit` is called with each that is
    /// known.
    pub(super) fn parse(
        &mut self,
        head: &[u8],
        from: usize,
        limits: &HeadLimits,
        mut visit: impl FnMut(Known, &[u8], Span) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let max_fields = limits.max_fields.min(MAX_FIELDS);
        let mut at = from;
        while head.get(at..) != Some(b"\r\n") {
            if self.lines.len() >= max_fields {
                return Err(Fault::TooManyFields);
            }
            let (line, next) = FieldLine::read(head, at).ok_or_else(|| fault_in_field(head, at))?;
            if line.known != Known::Other {
                self.note(line.known, line.value, line.value.of(head))?;
                visit(line.known, line.value.of(head), line.value)?;
            }
            self.lines.push(line);
            at = next;
        }
        Ok(())
    }

    pub(super) fn clear(&mut self) {
        self.lines.clear();
        self.connection = ConnectionOptions::default();
        self.framing = FramingFields::default();
        self.upgrade = None;
        self.upgrades = 0;
    }

    pub(super) fn iter<'b>(&'b self, head: &'b [u8]) -> impl Iterator<Item = (Known, &'b [u8], &'b [u8])> + Clone {
        self.lines.iter().map(move |line| (line.known, line.name.of(head), line.value.of(head)))
    }

    /// The first value of a name in lower case.
    pub(super) fn find<'b>(&'b self, head: &'b [u8], lower: &[u8]) -> Option<&'b [u8]> {
        let line = self.lines.iter().find(|line| line.name.of(head).eq_ignore_ascii_case(lower))?;
        Some(line.value.of(head))
    }

    /// Whether `Connection` has options that are not `close`, `keep-alive` or `upgrade`.
    #[inline]
    pub(super) fn has_nominated(&self) -> bool {
        self.connection.others > 0
    }

    /// Options of `Connection` that are not `close`, `keep-alive` or `upgrade`.
    pub(super) fn nominated<'b>(&'b self, head: &'b [u8]) -> impl Iterator<Item = &'b [u8]> {
        let lines = if self.has_nominated() { self.lines.as_slice() } else { &[] };
        let lines = lines.iter().filter(|line| line.known == Known::Connection);
        let options =
            lines.flat_map(move |line| line.value.of(head).split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
        options.filter(|option| {
            !(option.is_empty()
                || option.eq_ignore_ascii_case(b"close")
                || option.eq_ignore_ascii_case(b"keep-alive")
                || option.eq_ignore_ascii_case(b"upgrade"))
        })
    }

    pub(super) fn wants_upgrade(&self) -> bool {
        self.connection.upgrade && self.upgrade.is_some()
    }

    pub(super) fn is_persistent(&self, version: Version) -> bool {
        let ConnectionOptions { close, keep_alive, .. } = self.connection;
        !close && (keep_alive || version == Version::Http11)
    }

    /// The value of `Upgrade`, if there is one line of it and `Connection` names it.
    pub(super) fn upgrade<'b>(&self, head: &'b [u8]) -> Option<&'b [u8]> {
        self.upgrade.filter(|_| self.connection.upgrade).map(|value| value.of(head))
    }

    /// Gives the lines that `keep` wants. Neighbours that are plain come in one piece.
    pub(super) fn copy<'b>(
        &'b self,
        head: &'b [u8],
        mut keep: impl FnMut(Known, &'b [u8], &'b [u8]) -> bool,
        mut put: impl FnMut(Piece<'b>),
    ) {
        let mut run = Span::default();
        for line in &self.lines {
            let (name, value) = (line.name.of(head), line.value.of(head));
            let is_kept = keep(line.known, name, value);
            if is_kept && line.is_plain {
                if run.is_empty() {
                    run.start = line.name.start;
                }
                run.end = line.value.end + CRLF_LENGTH;
                continue;
            }
            if !run.is_empty() {
                put(Piece::Lines(run.of(head)));
                run = Span::default();
            }
            if is_kept {
                put(Piece::Field(name, value));
            }
        }
        if !run.is_empty() {
            put(Piece::Lines(run.of(head)));
        }
    }

    fn note(&mut self, known: Known, span: Span, value: &[u8]) -> Result<(), Fault> {
        match known {
            Known::Connection => self.note_connection(value)?,
            Known::ContentLength => self.framing.note_length(value)?,
            Known::TransferEncoding => self.framing.note_codings(value),
            Known::Upgrade => {
                self.upgrades += 1;
                self.upgrade = Some(span).filter(|span| self.upgrades == 1 && !span.is_empty());
            }
            _ => {}
        }
        Ok(())
    }

    fn note_connection(&mut self, value: &[u8]) -> Result<(), Fault> {
        // What most clients and servers say.
        if is_name(value, b"keep-alive") {
            self.connection.keep_alive = true;
            return Ok(());
        }
        for option in value.split(|byte| *byte == b',') {
            let option = option.trim_ascii();
            match option.len() {
                0 => {}
                5 if is_name(option, b"close") => self.connection.close = true,
                7 if is_name(option, b"upgrade") => self.connection.upgrade = true,
                10 if is_name(option, b"keep-alive") => self.connection.keep_alive = true,
                _ => self.connection.others += 1,
            }
        }
        if self.connection.others > MAX_NOMINATED {
            return Err(Fault::ConnectionOptions);
        }
        Ok(())
    }
}
