//! One field line: RFC 9112, 5.

use super::fault::Fault;
use super::known::Known;
use super::scan::{self, Control};

/// A range of a head's bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    pub(super) start: u32,
    pub(super) end: u32,
}

impl Span {
    pub(super) fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    /// The bytes; none if they are not the ones that were read.
    pub(super) fn of(self, bytes: &[u8]) -> &[u8] {
        bytes.get(self.start as usize..self.end as usize).unwrap_or_default()
    }

    pub(super) fn is_empty(self) -> bool {
        self.start == self.end
    }
}

/// A field line of a head.
#[derive(Clone, Copy, Debug)]
pub(super) struct FieldLine {
    pub(super) name: Span,
    pub(super) value: Span,
    pub(super) known: Known,
    /// Whether the line is `name: value`, with that one space: then it is copied as it is.
    pub(super) is_plain: bool,
}

impl FieldLine {
    /// Reads the line that begins at `at`; gives where the next one begins (RFC 9112, 5.1 and 5.2). `None` if it is
    /// malformed: [`fault_in_field`] says how.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "half of its instructions would be calling it")]
    pub(super) fn read(head: &[u8], at: usize) -> Option<(Self, usize)> {
        let line = head.get(at..)?;
        let length = line.iter().position(|byte| !is_token_byte(*byte)).filter(|length| *length > 0)?;
        let (name, rest) = line.split_at(length);
        let colon = at + length;
        // As nearly all lines are written. The others are trimmed.
        let (start, is_spaced) = match rest {
            [b':', b' ', first, ..] if *first > b' ' => (colon + 2, true),
            [b':', ..] => (skip_spaces(head, colon + 1), false),
            _ => return None,
        };
        let line_end = find_line_end(head, start)?;
        let is_plain = is_spaced && !matches!(head[line_end - 1], b' ' | b'\t');
        let end = if is_plain { line_end } else { last_visible(head, start, line_end) };
        let line = Self { name: Span::new(at, colon), value: Span::new(start, end), known: Known::of(name), is_plain };
        Some((line, line_end + CRLF_LENGTH as usize))
    }
}

/// The fault of the line that begins at `at`, which could not be read. Whether its ends are wrong is not asked here but
/// where lines are searched.
#[cold]
pub(super) fn fault_in_field(head: &[u8], at: usize) -> Fault {
    let line = head.get(at..).unwrap_or_default();
    let length = line.iter().take_while(|byte| is_token_byte(**byte)).count();
    match &line[length..] {
        [] => Fault::Truncated,
        [b':', value @ ..] if length > 0 => {
            let has_control = value.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t');
            if has_control { Fault::FieldValue } else { Fault::Truncated }
        }
        _ => Fault::FieldName,
    }
}

/// Where the value begins, after optional spaces.
fn skip_spaces(head: &[u8], from: usize) -> usize {
    let mut start = from;
    while matches!(head.get(start), Some(b' ' | b'\t')) {
        start += 1;
    }
    start
}

/// Where the value ends, before optional spaces.
fn last_visible(head: &[u8], start: usize, line_end: usize) -> usize {
    let mut end = line_end;
    while end > start && matches!(head[end - 1], b' ' | b'\t') {
        end -= 1;
    }
    end
}

/// Where the CRLF is that ends a value, from `from` on: `None` if another control byte but a tab comes before.
#[inline(always)]
#[expect(clippy::inline_always, reason = "half of its instructions would be calling it")]
pub(super) fn find_line_end(head: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        at = scan::find::<Control>(head, at)?;
        match head[at..] {
            [b'\r', b'\n', ..] => return Some(at),
            [b'\t', ..] => at += 1,
            _ => return None,
        }
    }
}

/// How long a line's end is.
pub(super) const CRLF_LENGTH: u32 = 2;

/// Whether a field value or a target holds a control byte that it may not: any but a tab.
pub fn has_control(bytes: &[u8]) -> bool {
    let mut from = 0;
    while let Some(at) = scan::find::<Control>(bytes, from) {
        if bytes.get(at) != Some(&b'\t') {
            return true;
        }
        from = at + 1;
    }
    false
}

/// Whether a byte may be in a token (RFC 9110, 5.6.2).
pub fn is_token_byte(byte: u8) -> bool {
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
