//! Where the sections of a text begin, by the look of its lines alone: how far a syntax error may reach.

use std::ops::Range;

/// The lines that look like headers.
#[derive(Debug, Default)]
pub(super) struct Outline {
    headers: Vec<usize>,
}

impl Outline {
    /// The outline of `text`.
    pub(super) fn of(text: &str) -> Self {
        let after_newlines = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        let starts = std::iter::once(0).chain(after_newlines);
        Self { headers: starts.filter(|start| is_header(text, *start)).collect() }
    }

    /// The part of `text` about which nothing more can be said after a syntax error at `at`: its line; after a broken
    /// `[header]` all that stands below it, because it belongs to no section.
    pub(super) fn reach(&self, text: &str, at: usize) -> Range<usize> {
        let bytes = text.as_bytes();
        let at = at.min(bytes.len());
        let start = bytes.iter().take(at).rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
        if is_header(text, start) {
            return start..self.header_after(start);
        }
        let length = bytes.iter().skip(at).position(|&byte| byte == b'\n');
        start..length.map_or(usize::MAX, |length| at + length + 1)
    }

    /// Where the next section after `at` begins.
    pub(super) fn header_after(&self, at: usize) -> usize {
        let next = self.headers.partition_point(|header| *header <= at);
        self.headers.get(next).copied().unwrap_or(usize::MAX)
    }
}

fn is_header(text: &str, start: usize) -> bool {
    text.get(start..).is_some_and(|rest| rest.trim_start_matches([' ', '\t']).starts_with('['))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_reaches_over_its_line_or_its_section() {
        let text = "[a]\nb = 1\n  [c\nd = 1\n\n[[e]]\nf";
        let outline = Outline::of(text);
        assert_eq!(outline.reach(text, 8), 4..10, "a line");
        assert_eq!(outline.reach(text, 14), 10..22, "a header and what is below it");
        assert_eq!(outline.reach(text, 28), 28..usize::MAX, "the last line");
        assert_eq!(outline.reach(text, 500), 28..usize::MAX);
        assert_eq!(outline.reach("", 0), 0..usize::MAX);
    }
}
