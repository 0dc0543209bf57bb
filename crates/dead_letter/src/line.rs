//! One line of a segment, byte by byte: JSON strings with bounds, and the checksum at the end.
//!
//! Own writer rather than `serde_json`, for three reasons: field order and the checksum's place are part of the format,
//! strings are cut by their *written* length so that a line has a hard bound, and every character that controls, hides or turns
//! text around is escaped so that `tail -f` of a segment cannot drive a terminal.

use std::borrow::Cow;

use sluicegate_redact::{ByNumber, ClipEnd, is_terminal_control};

/// No line is longer than this, line feed included; the bounds of `record.rs` and of `body.rs` add up to less.
pub(super) const MAX_LINE: usize = 1024 * 1024;
/// A line without a body is no longer than this.
pub(super) const MAX_PLAIN_LINE: usize = 64 * 1024;

const CHECK_NAME: &[u8] = b",\"crc\":\"";
/// `,"crc":"` + 8 digits + `"}`
const CHECK_LENGTH: usize = 18;
/// All that may follow the last field: `,"truncated":true`, the checksum, the line feed.
const END_LENGTH: usize = 17 + CHECK_LENGTH + 1;
const ELLIPSIS: &str = "…";

/// Writes one JSON object as a line at the end of a buffer.
pub(super) struct LineWriter<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
    cut: bool,
}

impl<'a> LineWriter<'a> {
    /// Opens the object; its first field is the format's version.
    pub(super) fn begin(out: &'a mut Vec<u8>) -> Self {
        let start = out.len();
        out.extend_from_slice(b"{\"v\":1");
        Self { out, start, cut: false }
    }

    /// The object so far.
    pub(super) fn written(&self) -> &[u8] {
        self.out.get(self.start..).unwrap_or_default()
    }

    /// A string of at most `max` written bytes, or null.
    pub(super) fn text(&mut self, name: &str, value: Option<&str>, max: usize) {
        self.name(name);
        match value {
            Some(text) => self.cut |= push_string(self.out, text, max),
            None => self.out.extend_from_slice(b"null"),
        }
    }

    /// A string of at most `max` written bytes; one that was cut before ends in `…`, as one that is cut here.
    pub(super) fn clip(&mut self, name: &str, value: Cow<'_, str>, end: ClipEnd, max: usize) {
        self.name(name);
        self.cut |= push_clip(self.out, value, end, max);
    }

    /// A whole number.
    pub(super) fn number(&mut self, name: &str, value: u64) {
        self.name(name);
        push_number(self.out, value);
    }

    /// `true`: a mark that is left out where it is false.
    pub(super) fn mark(&mut self, name: &str) {
        self.name(name);
        self.out.extend_from_slice(b"true");
    }

    /// `true` or `false`.
    pub(super) fn truth(&mut self, name: &str, value: bool) {
        self.name(name);
        self.out.extend_from_slice(if value { b"true" } else { b"false" });
    }

    /// Null.
    pub(super) fn null(&mut self, name: &str) {
        self.name(name);
        self.out.extend_from_slice(b"null");
    }

    /// An object of numbers, or null.
    pub(super) fn numbers(&mut self, name: &str, fields: Option<&[(&str, Option<u64>)]>) {
        self.name(name);
        let Some(fields) = fields else {
            self.out.extend_from_slice(b"null");
            return;
        };
        for (index, (name, value)) in fields.iter().enumerate() {
            self.out.extend_from_slice(if index == 0 { b"{\"" } else { b",\"" });
            self.out.extend_from_slice(name.as_bytes());
            self.out.extend_from_slice(b"\":");
            match value {
                Some(value) => push_number(self.out, *value),
                None => self.out.extend_from_slice(b"null"),
            }
        }
        self.out.push(b'}');
    }

    /// An object of texts that stand for themselves; null if it makes the line longer than `most`, or one is empty.
    pub(super) fn words_or_null(&mut self, name: &str, fields: &[(&str, &str)], most: usize) {
        self.name(name);
        let start = self.out.len();
        for (index, (name, text)) in fields.iter().enumerate() {
            self.out.extend_from_slice(if index == 0 { b"{\"" } else { b",\"" });
            self.out.extend_from_slice(name.as_bytes());
            self.out.extend_from_slice(b"\":");
            push_string(self.out, text, most);
        }
        self.out.push(b'}');
        let has_room = self.out.len() - self.start + END_LENGTH <= most;
        if !has_room || fields.iter().any(|(_, text)| text.is_empty()) {
            self.out.truncate(start);
            self.out.extend_from_slice(b"null");
        }
    }

    /// A list of pairs. Those over a bound are left out, and a last pair `["…","N more"]` says so; `more` were left out
    /// before. How many pairs there are without that.
    pub(super) fn pairs<'t>(
        &mut self,
        name: &str,
        pairs: impl ExactSizeIterator<Item = ((&'t str, ClipEnd), (Cow<'t, str>, ClipEnd))>,
        more: usize,
        bounds: &PairBounds,
    ) -> usize {
        self.name(name);
        self.out.push(b'[');
        let start = self.out.len();
        let mut left_out = more;
        let count = pairs.len();
        for (index, ((name, name_end), (value, value_end))) in pairs.enumerate() {
            let before = self.out.len();
            if index > 0 {
                self.out.push(b',');
            }
            let mut over = index >= bounds.count;
            if !over {
                self.out.push(b'[');
                let mut cut = push_clip(self.out, Cow::Borrowed(name), name_end, bounds.name);
                self.out.push(b',');
                cut |= push_clip(self.out, value, value_end, bounds.value);
                self.out.push(b']');
                over = self.out.len() - start > bounds.total;
                self.cut |= cut;
            }
            if over {
                self.out.truncate(before);
                left_out += count - index;
                break;
            }
        }
        if left_out > 0 {
            if self.out.len() > start {
                self.out.push(b',');
            }
            self.out.extend_from_slice(format!("[\"{ELLIPSIS}\",\"{left_out} more\"]").as_bytes());
            self.cut = true;
        }
        self.out.push(b']');
        count + more - left_out
    }

    /// A list of objects, whose fields `write` adds.
    pub(super) fn objects<T>(&mut self, name: &str, objects: &[T], write: impl Fn(&mut LineWriter<'_>, &T)) {
        self.name(name);
        self.out.push(b'[');
        for (index, object) in objects.iter().enumerate() {
            if index > 0 {
                self.out.push(b',');
            }
            self.fields(|fields| write(fields, object));
        }
        self.out.push(b']');
    }

    /// An object, whose fields `write` adds.
    pub(super) fn object(&mut self, name: &str, write: impl FnOnce(&mut LineWriter<'_>)) {
        self.name(name);
        self.fields(write);
    }

    fn fields(&mut self, write: impl FnOnce(&mut LineWriter<'_>)) {
        let start = self.out.len();
        let mut fields = LineWriter { out: self.out, start, cut: false };
        write(&mut fields);
        self.cut |= fields.cut;
        // Each field begins with a comma.
        if let Some(first) = self.out.get_mut(start) {
            *first = b'{';
        }
        self.out.push(b'}');
    }

    /// Closes the object behind fields that are written already, each with its comma.
    pub(super) fn finish_with(self, fields: &str) {
        self.out.extend_from_slice(fields.as_bytes());
        self.finish();
    }

    /// Closes the object: `truncated` if anything was cut, then the checksum, then the line feed.
    pub(super) fn finish(mut self) {
        if self.cut {
            self.mark("truncated");
        }
        let sum = crc32c::crc32c(self.out.get(self.start..).unwrap_or_default());
        self.out.extend_from_slice(CHECK_NAME);
        self.out.extend_from_slice(format!("{sum:08x}\"}}\n").as_bytes());
    }

    fn name(&mut self, name: &str) {
        self.out.extend_from_slice(b",\"");
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
    }
}

/// How long a list of pairs may get.
pub(super) struct PairBounds {
    /// How many pairs.
    pub(super) count: usize,
    /// Written bytes of a name.
    pub(super) name: usize,
    /// Written bytes of a value.
    pub(super) value: usize,
    /// Written bytes of all pairs.
    pub(super) total: usize,
}

/// Whether a text takes at most so many bytes between its quotes.
pub(super) fn takes_text(text: &str, most: usize) -> bool {
    written_length(text, most) <= most
}

/// Whether `line` (without its line feed) carries the checksum of its own bytes.
pub(super) fn is_sound(line: &[u8]) -> bool {
    let Some((body, check)) = line.len().checked_sub(CHECK_LENGTH).and_then(|at| line.split_at_checked(at)) else {
        return false;
    };
    let Some(digits) = check.strip_prefix(CHECK_NAME).and_then(|rest| rest.strip_suffix(b"\"}")) else {
        return false;
    };
    format!("{:08x}", crc32c::crc32c(body)).as_bytes() == digits
}

/// Writes a text that may have been cut before; says whether it is cut now.
fn push_clip(out: &mut Vec<u8>, text: Cow<'_, str>, end: ClipEnd, max: usize) -> bool {
    match end {
        ClipEnd::Whole => push_string(out, &text, max),
        ClipEnd::Cut => {
            push_string(out, &(text.into_owned() + ELLIPSIS), max);
            true
        }
    }
}

/// Writes `text` as a JSON string of at most `max` bytes between the quotes; says whether it was cut.
fn push_string(out: &mut Vec<u8>, text: &str, max: usize) -> bool {
    // Most texts stand for themselves: then nobody looks at each character three times.
    let is_plain = is_plain(text);
    let length = if is_plain { text.len() } else { written_length(text, max) };
    let cut = length > max;
    let room = if cut { max.saturating_sub(ELLIPSIS.len()) } else { max };
    out.push(b'"');
    if is_plain {
        out.extend_from_slice(text.as_bytes().get(..room).unwrap_or(text.as_bytes()));
    } else {
        push_characters(out, text, room);
    }
    if cut {
        out.extend_from_slice(ELLIPSIS.as_bytes());
    }
    out.push(b'"');
    cut
}

/// Whether a text stands for itself in a JSON string, and is of printable ASCII. It looks at all of the text: without an
/// early end, the compiler takes many bytes at once.
fn is_plain(text: &str) -> bool {
    let special = text.bytes().fold(0, |any, byte| {
        any | u8::from(byte < b' ') | u8::from(byte > b'~') | u8::from(byte == b'"') | u8::from(byte == b'\\')
    });
    special == 0
}

/// Writes as many characters as have room, escaped.
fn push_characters(out: &mut Vec<u8>, text: &str, room: usize) {
    let mut used = 0;
    for character in text.chars() {
        let length = escaped_length(character);
        if used + length > room {
            break;
        }
        used += length;
        push_char(out, character);
    }
}

/// How many bytes `text` takes between the quotes; stops counting somewhere above `enough`.
fn written_length(text: &str, enough: usize) -> usize {
    let mut length = 0;
    for character in text.chars() {
        length += escaped_length(character);
        if length > enough {
            break;
        }
    }
    length
}

fn escaped_length(character: char) -> usize {
    match character {
        '"' | '\\' => 2,
        _ if is_terminal_control(character) => 6 * character.len_utf16(),
        _ => character.len_utf8(),
    }
}

fn push_char(out: &mut Vec<u8>, character: char) {
    match character {
        '"' => out.extend_from_slice(b"\\\""),
        '\\' => out.extend_from_slice(b"\\\\"),
        _ if is_terminal_control(character) => out.extend_from_slice(ByNumber(character).to_string().as_bytes()),
        _ => out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
    }
}

fn push_number(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(value.to_string().as_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn string_of(text: &str, max: usize) -> (String, bool) {
        let mut out = Vec::new();
        let cut = push_string(&mut out, text, max);
        (String::from_utf8(out).unwrap(), cut)
    }

    #[test]
    fn the_checksum_covers_the_bytes_before_its_own_field() {
        let mut out = b"earlier line\n".to_vec();
        let mut line = LineWriter::begin(&mut out);
        line.text("reason", Some("timeout"), 16);
        line.number("status", 504);
        line.finish();
        let body = "{\"v\":1,\"reason\":\"timeout\",\"status\":504";
        let expected = format!("earlier line\n{body},\"crc\":\"{:08x}\"}}\n", crc32c::crc32c(body.as_bytes()));
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn the_checksum_is_castagnoli() {
        // RFC 3720 appendix B.4 and the customary check value.
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa);
    }

    #[test]
    fn any_flipped_bit_breaks_the_line() {
        let mut out = Vec::new();
        let mut line = LineWriter::begin(&mut out);
        line.text("path", Some("/a"), 16);
        line.finish();
        out.pop();
        assert!(is_sound(&out));
        for at in 0..out.len() {
            for bit in 0..8 {
                let mut bad = out.clone();
                bad[at] ^= 1 << bit;
                assert!(!is_sound(&bad), "byte {at} bit {bit}");
            }
        }
        assert!(!is_sound(b""));
        assert!(!is_sound(b",\"crc\":\"0000000\"}"));
    }

    #[test]
    fn no_control_character_is_written_raw() {
        assert_eq!(
            string_of("a\u{1b}[2J\u{9b}\u{7f}\n\"\\é\u{202e}\u{e0041}", 100),
            ("\"a\\u001b[2J\\u009b\\u007f\\u000a\\\"\\\\é\\u202e\\udb40\\udc41\"".into(), false)
        );
    }

    #[test]
    fn a_long_text_is_cut_by_its_written_length() {
        assert_eq!(string_of("abcdef", 6), ("\"abcdef\"".into(), false));
        assert_eq!(string_of("abcdefg", 6), ("\"abc…\"".into(), true));
        assert_eq!(string_of("\u{1}\u{1}", 11), ("\"\\u0001…\"".into(), true));
    }

    #[test]
    fn pairs_over_a_bound_are_counted_in_a_last_pair() {
        let bounds = PairBounds { count: 2, name: 8, value: 8, total: 1000 };
        let mut out = Vec::new();
        let mut line = LineWriter::begin(&mut out);
        let pairs = [("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")];
        let pairs = pairs.map(|(name, value)| ((name, ClipEnd::Whole), (Cow::Borrowed(value), ClipEnd::Whole)));
        line.pairs("h", pairs.into_iter(), 0, &bounds);
        line.finish();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.starts_with(
                "{\"v\":1,\"h\":[[\"a\",\"1\"],[\"b\",\"2\"],[\"…\",\"2 more\"]],\"truncated\":true,\"crc\":\""
            ),
            "{text}"
        );
    }

    proptest! {
        #[test]
        fn strings_read_back_as_they_were(text in "\\PC{0,40}|[\\x00-\\u{a0}\u{202e}\u{e0041}\"\\\\]{0,40}") {
            let (written, cut) = string_of(&text, 10_000);
            prop_assert!(!cut);
            prop_assert_eq!(serde_json::from_str::<String>(&written).unwrap(), text);
        }

        #[test]
        fn a_plain_string_is_written_as_character_by_character(text in "[ !#-\\[\\]-~]{0,60}", max in 0_usize..80) {
            let is_cut = text.len() > max;
            let mut all = b"\"".to_vec();
            push_characters(&mut all, &text, if is_cut { max.saturating_sub(ELLIPSIS.len()) } else { max });
            let end = if is_cut { "…\"" } else { "\"" };
            prop_assert_eq!(string_of(&text, max), (String::from_utf8(all).unwrap() + end, is_cut));
        }

        #[test]
        fn a_cut_string_keeps_its_bound_and_stays_json(text in "[\\x00-\\u{a0}\"\\\\€]{0,60}", max in 3_usize..80) {
            let (written, cut) = string_of(&text, max);
            prop_assert!(written.len() <= max + 2);
            let read = serde_json::from_str::<String>(&written).unwrap();
            prop_assert_eq!(cut, read != text);
        }
    }
}
