//! The target of a request: RFC 9112, 3.2.

use super::fault::Fault;
use super::line::Span;
use super::scan::{self, Is};

/// The content of a target, as ranges of the head's bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TargetRanges {
    /// Path and query as they were written; empty if the absolute form has neither.
    written: Span,
    /// How long the path of that is. The query is what follows the `?` behind it.
    path_length: u32,
    /// Whether the server as a whole is meant.
    is_asterisk: bool,
    /// `host[:port]` of the absolute form.
    authority: Option<Span>,
}

impl TargetRanges {
    /// Reads what lies from `start` to `end`, which holds no byte that is [`NotTarget`](super::scan::NotTarget).
    ///
    /// Origin form, absolute form of `http` and `https`, and for OPTIONS the asterisk form. Brackets, braces, `^`, `|`,
    /// the backtick and the backslash pass although RFC 3986 wants them encoded, since browsers send them so; what a
    /// backslash means is judged where paths are normalised.
    pub(super) fn parse(head: &[u8], start: usize, end: usize, is_options: bool) -> Result<Self, Fault> {
        let head = head.get(..end).unwrap_or(head);
        match head.get(start..).unwrap_or_default() {
            [b'/', ..] => Ok(Self::split(head, start)),
            b"*" if is_options => Ok(Self { is_asterisk: true, ..Self::default() }),
            target => Self::absolute(head, start, target, is_options),
        }
    }

    pub(super) fn path<'b>(&self, head: &'b [u8]) -> &'b [u8] {
        match self.written.of(head).get(..self.path_length as usize) {
            Some(b"") | None if self.is_asterisk => b"*",
            Some(b"") | None => b"/",
            Some(path) => path,
        }
    }

    pub(super) fn query<'b>(&self, head: &'b [u8]) -> Option<&'b [u8]> {
        self.written.of(head).get(self.path_length as usize + 1..)
    }

    pub(super) fn authority(&self) -> Option<Span> {
        self.authority
    }

    /// `[ absolute-path ] [ "?" query ]`, from `start` to the end.
    fn split(head: &[u8], start: usize) -> Self {
        let path_end = scan::find::<Is<b'?'>>(head, start).unwrap_or(head.len());
        let written = Span::new(start, head.len());
        Self { written, path_length: (path_end - start) as u32, is_asterisk: false, authority: None }
    }

    fn absolute(head: &[u8], start: usize, target: &[u8], is_options: bool) -> Result<Self, Fault> {
        let scheme = [&b"http://"[..], b"https://"].into_iter().find(|scheme| starts_with(target, scheme));
        let rest = &target[scheme.ok_or(Fault::TargetForm)?.len()..];
        let length = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
        let authority = &rest[..length];
        if authority.is_empty() || !is_authority(authority) {
            return Err(Fault::TargetForm);
        }
        let authority_at = start + target.len() - rest.len();
        let path_at = authority_at + length;
        // OPTIONS without path and query asks about the server as a whole (RFC 9112, 3.2.4).
        let is_asterisk = is_options && length == rest.len();
        Ok(Self { authority: Some(Span::new(authority_at, path_at)), is_asterisk, ..Self::split(head, path_at) })
    }
}

/// Whether bytes are `uri-host [ ":" port ]` (RFC 9110, 7.2; RFC 3986, 3.2.2). The host may be empty only where there is
/// no port either; a port may be empty, and is at most 65535.
pub(super) fn is_authority(bytes: &[u8]) -> bool {
    let (host_is_valid, rest) = match bytes {
        [] => return true,
        [b'[', inner @ ..] => {
            let Some(end) = inner.iter().position(|byte| *byte == b']') else { return false };
            (is_literal(&inner[..end]), &inner[end + 1..])
        }
        _ => {
            let end = bytes.iter().position(|byte| !is_name_byte(*byte)).unwrap_or(bytes.len());
            match bytes.get(end) {
                Some(b'%') => {
                    let end = bytes.iter().position(|byte| *byte == b':').unwrap_or(bytes.len());
                    (is_registered_name(&bytes[..end]), &bytes[end..])
                }
                _ => (end > 0, &bytes[end..]),
            }
        }
    };
    host_is_valid && is_port(rest)
}

/// Whether these bytes may stand between the brackets of an IP literal: which address it is, is not judged here.
fn is_literal(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|byte| *byte == b':' || is_name_byte(*byte))
}

fn is_registered_name(bytes: &[u8]) -> bool {
    let mut bytes = bytes.iter();
    while let Some(byte) = bytes.next() {
        let is_valid = match byte {
            b'%' => bytes.next().is_some_and(u8::is_ascii_hexdigit) && bytes.next().is_some_and(u8::is_ascii_hexdigit),
            byte => is_name_byte(*byte),
        };
        if !is_valid {
            return false;
        }
    }
    true
}

/// `unreserved / sub-delims`
fn is_name_byte(byte: u8) -> bool {
    NAME_BYTES[usize::from(byte)]
}

static NAME_BYTES: [bool; 256] = name_bytes();

const fn name_bytes() -> [bool; 256] {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < table.len() {
        table[byte] = matches!(
            byte as u8,
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~'
            | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'='
        );
        byte += 1;
    }
    table
}

/// Nothing, or a colon and digits.
fn is_port(bytes: &[u8]) -> bool {
    let [b':', digits @ ..] = bytes else { return bytes.is_empty() };
    let mut port: u32 = 0;
    digits.iter().all(|digit| {
        port = port * 10 + u32::from(digit.wrapping_sub(b'0'));
        digit.is_ascii_digit() && port <= 65_535
    })
}

fn starts_with(bytes: &[u8], lower: &[u8]) -> bool {
    bytes.get(..lower.len()).is_some_and(|start| start.eq_ignore_ascii_case(lower))
}
