//! Field lines as ranges of a head's bytes, and what those among them say that concern the connection.

use super::fault::Fault;
use super::framing::FramingFields;
use super::head::{HeadLimits, MAX_FIELDS, Version};
use super::scan::{self, Control};
use super::write::HeadWriter;

/// Field names that matter to the connection or the framing: found while reading, not looked up later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// None of the others.
    Other,
    /// `Connection`
    Connection,
    /// `Content-Length`
    ContentLength,
    /// `Expect`
    Expect,
    /// `Host`
    Host,
    /// `Keep-Alive`
    KeepAlive,
    /// `Proxy-Authenticate`
    ProxyAuthenticate,
    /// `Proxy-Connection`
    ProxyConnection,
    /// `TE`
    Te,
    /// `Trailer`
    Trailer,
    /// `Transfer-Encoding`
    TransferEncoding,
    /// `Upgrade`
    Upgrade,
}

impl Known {
    /// Which one a name is, in any case.
    pub fn of(name: &[u8]) -> Self {
        match name.len() {
            2 if is(name, b"te") => Self::Te,
            4 if is(name, b"host") => Self::Host,
            6 if is(name, b"expect") => Self::Expect,
            7 if is(name, b"trailer") => Self::Trailer,
            7 if is(name, b"upgrade") => Self::Upgrade,
            10 if is(name, b"connection") => Self::Connection,
            10 if is(name, b"keep-alive") => Self::KeepAlive,
            14 if is(name, b"content-length") => Self::ContentLength,
            16 if is(name, b"proxy-connection") => Self::ProxyConnection,
            17 if is(name, b"transfer-encoding") => Self::TransferEncoding,
            18 if is(name, b"proxy-authenticate") => Self::ProxyAuthenticate,
            _ => Self::Other,
        }
    }

    /// Whether the field speaks of one connection only, and is never passed on as it is (RFC 9110, 7.6.1).
    pub fn is_hop_by_hop(self) -> bool {
        match self {
            Self::Connection
            | Self::KeepAlive
            | Self::ProxyAuthenticate
            | Self::ProxyConnection
            | Self::Te
            | Self::TransferEncoding
            | Self::Upgrade => true,
            Self::Other | Self::ContentLength | Self::Expect | Self::Host | Self::Trailer => false,
        }
    }
}

/// A range of a head's bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    start: u32,
    end: u32,
}

impl Span {
    pub(super) fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    /// The bytes; none if they are not the ones that were read.
    pub(super) fn of(self, bytes: &[u8]) -> &[u8] {
        bytes.get(self.start as usize..self.end as usize).unwrap_or_default()
    }

    pub(super) fn text(self, bytes: &[u8]) -> Option<&str> {
        std::str::from_utf8(self.of(bytes)).ok()
    }

    pub(super) fn is_empty(self) -> bool {
        self.start == self.end
    }
}

#[derive(Clone, Copy, Debug)]
struct Field {
    name: Span,
    value: Span,
    known: Known,
    /// Whether the line is `name: value`, with that one space: then it is copied as it is.
    is_plain: bool,
}

/// What `Connection` says, over all of its lines.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ConnectionOptions {
    pub(super) close: bool,
    pub(super) keep_alive: bool,
    pub(super) upgrade: bool,
    /// Whether there are others: names of fields.
    pub(super) others: bool,
}

/// The field lines of one head.
#[derive(Debug, Default)]
pub(super) struct Fields {
    lines: Vec<Field>,
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
            let (line, next) = Field::read(head, at)?;
            if line.known != Known::Other {
                self.note(&line, line.value.of(head))?;
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

    pub(super) fn iter<'b>(&'b self, head: &'b [u8]) -> impl Iterator<Item = (Known, &'b [u8], &'b [u8])> {
        self.lines.iter().map(move |line| (line.known, line.name.of(head), line.value.of(head)))
    }

    /// The first value of a name in lower case.
    pub(super) fn find<'b>(&'b self, head: &'b [u8], lower: &[u8]) -> Option<&'b [u8]> {
        let line = self.lines.iter().find(|line| line.name.of(head).eq_ignore_ascii_case(lower))?;
        Some(line.value.of(head))
    }

    /// Options of `Connection` that are not `close`, `keep-alive` or `upgrade`.
    pub(super) fn nominated<'b>(&'b self, head: &'b [u8]) -> impl Iterator<Item = &'b [u8]> {
        let lines = if self.connection.others { self.lines.as_slice() } else { &[] };
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

    /// Writes the lines that `keep` wants. Neighbours that are plain are written in one go.
    pub(super) fn copy<'b>(
        &'b self,
        head: &'b [u8],
        writer: &mut HeadWriter<'_>,
        mut keep: impl FnMut(Known, &'b [u8], &'b [u8]) -> bool,
    ) {
        let mut run = Span::default();
        for line in &self.lines {
            let (name, value) = (line.name.of(head), line.value.of(head));
            let is_kept = keep(line.known, name, value);
            if is_kept && line.is_plain {
                if run.end != line.name.start {
                    writer.lines(run.of(head));
                    run.start = line.name.start;
                }
                run.end = line.value.end + CRLF_LENGTH;
                continue;
            }
            writer.lines(run.of(head));
            run = Span::default();
            if is_kept {
                writer.field(name, value);
            }
        }
        writer.lines(run.of(head));
    }

    fn note(&mut self, line: &Field, value: &[u8]) -> Result<(), Fault> {
        match line.known {
            Known::Connection => self.note_connection(value),
            Known::ContentLength => self.framing.note_length(value)?,
            Known::TransferEncoding => self.framing.note_codings(value),
            Known::Upgrade => {
                self.upgrades += 1;
                self.upgrade = Some(line.value).filter(|span| self.upgrades == 1 && !span.is_empty());
            }
            _ => {}
        }
        Ok(())
    }

    fn note_connection(&mut self, value: &[u8]) {
        // What most clients and servers say.
        if is(value, b"keep-alive") {
            self.connection.keep_alive = true;
            return;
        }
        for option in value.split(|byte| *byte == b',') {
            let option = option.trim_ascii();
            match option.len() {
                0 => {}
                5 if is(option, b"close") => self.connection.close = true,
                7 if is(option, b"upgrade") => self.connection.upgrade = true,
                10 if is(option, b"keep-alive") => self.connection.keep_alive = true,
                _ => self.connection.others = true,
            }
        }
    }
}

impl Field {
    /// Reads the line that begins at `at`; gives where the next one begins (RFC 9112, 5.1 and 5.2).
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "half of its instructions would be calling it")]
    fn read(head: &[u8], at: usize) -> Result<(Self, usize), Fault> {
        let line = head.get(at..).unwrap_or_default();
        let length = line.iter().position(|byte| !is_token_byte(*byte)).ok_or(Fault::Truncated)?;
        let (name, rest) = line.split_at(length);
        let is_spaced = match rest {
            [b':', b' ', first, ..] if *first > b' ' => true,
            [b':', ..] => false,
            _ => return Err(fault_in_name(line)),
        };
        if name.is_empty() {
            return Err(Fault::FieldName);
        }
        let colon = at + length;
        let start = if is_spaced { colon + 2 } else { skip_spaces(head, colon + 1) };
        let line_end = find_line_end(head, start)?;
        let end = if ends_in_space(&head[start..line_end]) { last_visible(head, start, line_end) } else { line_end };
        let is_plain = is_spaced && end == line_end;
        let line = Self { name: Span::new(at, colon), value: Span::new(start, end), known: Known::of(name), is_plain };
        Ok((line, line_end + CRLF_LENGTH as usize))
    }
}

/// Why no name with a colon stands at the beginning of a line.
#[cold]
fn fault_in_name(line: &[u8]) -> Fault {
    if matches!(line, [b' ' | b'\t', ..]) { Fault::ObsoleteFold } else { Fault::FieldName }
}

/// Where the value begins, after optional spaces.
fn skip_spaces(head: &[u8], from: usize) -> usize {
    let mut start = from;
    while matches!(head.get(start), Some(b' ' | b'\t')) {
        start += 1;
    }
    start
}

fn ends_in_space(value: &[u8]) -> bool {
    matches!(value, [.., b' ' | b'\t'])
}

/// Where the value ends, before optional spaces.
fn last_visible(head: &[u8], start: usize, line_end: usize) -> usize {
    let mut end = line_end;
    while ends_in_space(&head[start..end]) {
        end -= 1;
    }
    end
}

/// Where the CRLF is that ends a field value, from `from` on. Nothing before it is a control byte, but tabs.
#[inline(always)]
#[expect(clippy::inline_always, reason = "half of its instructions would be calling it")]
pub(super) fn find_line_end(head: &[u8], from: usize) -> Result<usize, Fault> {
    let mut at = from;
    loop {
        at = scan::find::<Control>(head, at).ok_or(Fault::Truncated)?;
        match (head[at], head.get(at + 1)) {
            (b'\t', _) => at += 1,
            (b'\r', Some(b'\n')) => return Ok(at),
            (b'\n', _) => return Err(Fault::BareLf),
            _ => return Err(Fault::FieldValue),
        }
    }
}

const CRLF_LENGTH: u32 = 2;

/// Whether a byte may be in a token (RFC 9110, 5.6.2).
pub(super) fn is_token_byte(byte: u8) -> bool {
    TOKEN_BYTES[usize::from(byte)]
}

static TOKEN_BYTES: [bool; 256] = token_bytes();

const fn token_bytes() -> [bool; 256] {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < table.len() {
        table[byte] = matches!(
            byte as u8,
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9'
            | b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~'
        );
        byte += 1;
    }
    table
}

/// Whether `name` is `lower` in any case. `lower` is letters and hyphens: setting the bit of lower case makes no other
/// byte one of these but control bytes, which are in no name or value.
fn is<const N: usize>(name: &[u8], lower: &[u8; N]) -> bool {
    if name.len() != N {
        return false;
    }
    // Two words that overlap cover 8 to 16 bytes, two halves 4 to 8.
    match (name.first_chunk(), name.last_chunk(), lower.first_chunk(), lower.last_chunk()) {
        (Some(a), Some(b), Some(c), Some(d)) if N <= 16 => is_same_word(*a, *c) && is_same_word(*b, *d),
        _ => match (name.first_chunk(), name.last_chunk(), lower.first_chunk(), lower.last_chunk()) {
            (Some(a), Some(b), Some(c), Some(d)) if N <= 8 => is_same_half(*a, *c) && is_same_half(*b, *d),
            _ => name.eq_ignore_ascii_case(lower),
        },
    }
}

fn is_same_word(bytes: [u8; 8], lower: [u8; 8]) -> bool {
    u64::from_ne_bytes(bytes) | u64::from_ne_bytes([0x20; 8]) == u64::from_ne_bytes(lower)
}

fn is_same_half(bytes: [u8; 4], lower: [u8; 4]) -> bool {
    u32::from_ne_bytes(bytes) | u32::from_ne_bytes([0x20; 4]) == u32::from_ne_bytes(lower)
}
