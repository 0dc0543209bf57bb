//! W3C Trace Context (Recommendation of 23 November 2021): what of it is passed on.

use super::lines::FieldValues;

/// Vendors that a trace may have state of, and bytes of all of it that are passed on. The recommendation asks to pass on
/// at least 512 (3.3.1.5); more than this is no state but a load.
const MAX_MEMBERS: usize = 32;
const MAX_STATE_BYTES: usize = 4096;

/// The `traceparent` of a request: the only one that there may be (2.2.2).
#[derive(Clone, Copy, Debug, Default)]
pub struct TraceParent<'f> {
    value: Option<&'f [u8]>,
    is_repeated: bool,
}

impl<'f> TraceParent<'f> {
    /// A line of that name.
    pub fn add(&mut self, value: &'f [u8]) {
        self.is_repeated |= self.value.replace(value).is_some();
    }

    /// It, if it is one that is passed on.
    pub fn valid(self) -> Option<&'f [u8]> {
        self.value.filter(|value| !self.is_repeated && is_traceparent(value))
    }
}

/// The trace that goes on by these lines of `traceparent`, if one does.
pub fn trace_of<'f>(lines: impl Iterator<Item = &'f [u8]>) -> Option<&'f [u8]> {
    let mut trace = TraceParent::default();
    lines.for_each(|line| trace.add(line));
    trace.valid()?.get(3..35)
}

/// Whether a value is a `traceparent` that we pass on (W3C Trace Context, version 00 and later).
fn is_traceparent(value: &[u8]) -> bool {
    let hex = |bytes: &[u8]| bytes.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let some = |bytes: &[u8]| bytes.iter().any(|byte| *byte != b'0');
    value.len() >= 55
        && hex(&value[..2])
        && &value[..2] != b"ff"
        && value[2] == b'-'
        && hex(&value[3..35])
        && some(&value[3..35])
        && value[35] == b'-'
        && hex(&value[36..52])
        && some(&value[36..52])
        && value[52] == b'-'
        && hex(&value[53..55])
        && (value.len() == 55 || (&value[..2] != b"00" && value[55] == b'-'))
}

/// Whether lines are a `tracestate` that we pass on (3.3.1): at most 32 members with different keys, and no other bytes
/// than these may have. One that is none is dropped as a whole, for who reads half of it may draw wrong conclusions.
#[inline(never)]
pub fn is_tracestate(lines: &FieldValues<'_>) -> bool {
    let mut keys: [&[u8]; MAX_MEMBERS] = [b""; MAX_MEMBERS];
    let (mut count, mut bytes) = (0, 0);
    for line in lines.values() {
        bytes += line.len() + 2;
        if bytes > MAX_STATE_BYTES {
            return false;
        }
        for member in line.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|member| !member.is_empty()) {
            let Some(at) = member.iter().position(|byte| *byte == b'=') else { return false };
            let (key, value) = (&member[..at], &member[at + 1..]);
            if !is_key(key) || !is_value(value) || keys[..count].contains(&key) || count == MAX_MEMBERS {
                return false;
            }
            keys[count] = key;
            count += 1;
        }
    }
    count > 0
}

/// `vendor`, or `tenant@vendor` (3.3.1.3.1).
fn is_key(key: &[u8]) -> bool {
    let is_part = |part: &[u8], longest: usize, may_begin_with_digit: bool| {
        let is_first = |byte: &u8| byte.is_ascii_lowercase() || may_begin_with_digit && byte.is_ascii_digit();
        let is_other =
            |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-' | b'*' | b'/');
        part.first().is_some_and(is_first) && part.len() <= longest && part.iter().all(is_other)
    };
    match key.iter().position(|byte| *byte == b'@') {
        None => is_part(key, 256, false),
        Some(at) => is_part(&key[..at], 241, true) && is_part(&key[at + 1..], 14, false),
    }
}

/// Up to 256 printable characters but comma and equals sign, the last of them no blank (3.3.1.3.2).
fn is_value(value: &[u8]) -> bool {
    let is_char = |byte: &u8| matches!(byte, b' '..=b'~') && !matches!(byte, b',' | b'=');
    !value.is_empty() && value.len() <= 256 && value.iter().all(is_char)
}
