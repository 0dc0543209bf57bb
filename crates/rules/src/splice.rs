//! Replacements in a text, all made at once. Everything else stays byte for byte.

use std::ops::Range;

/// Replacements of one text. Their ranges do not overlap.
pub(super) struct Splices<'t> {
    text: &'t str,
    /// LF or CRLF, as the text ends its first line.
    line_end: &'static str,
    made: Vec<Splice>,
}

struct Splice {
    range: Range<usize>,
    with: String,
    /// Whether it begins a line.
    is_line: bool,
}

impl<'t> Splices<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        let first = text.split_inclusive('\n').next().unwrap_or_default();
        let line_end = if first.ends_with("\r\n") { "\r\n" } else { "\n" };
        Self { text, line_end, made: Vec::new() }
    }

    /// Puts a text in the place of another one.
    pub(super) fn replace(&mut self, range: Range<usize>, with: String) {
        self.made.push(Splice { range, with, is_line: false });
    }

    /// Adds lines where a line begins, or at the end of the text. Lines that were added to the same place before come
    /// before.
    pub(super) fn add_lines(&mut self, at: usize, lines: &[String]) {
        let with = lines.iter().flat_map(|line| [line.as_str(), self.line_end]).collect();
        self.made.push(Splice { range: at..at, with, is_line: true });
    }

    /// The end of a line.
    pub(super) fn line_end(&self) -> &'static str {
        self.line_end
    }

    /// The text with all of them. `None`, if two overlap.
    pub(super) fn apply(mut self) -> Option<String> {
        // Stable: of what is added to one place, the first stays first.
        self.made.sort_by_key(|splice| (splice.range.start, splice.range.end));
        let mut new = String::with_capacity(self.text.len() + 256);
        let mut at = 0;
        for splice in self.made {
            new.push_str(self.text.get(at..splice.range.start)?);
            // The last line of a file may lack its end.
            if splice.is_line && !new.is_empty() && !new.ends_with('\n') {
                new.push_str(self.line_end);
            }
            new.push_str(&splice.with);
            at = splice.range.end;
        }
        new.push_str(self.text.get(at..)?);
        Some(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacements_are_made_by_their_places() {
        let mut splices = Splices::new("a = 1\nb = 2");
        splices.add_lines(11, &["c = 3".into(), "d = 4".into()]);
        splices.replace(4..5, "one".into());
        splices.add_lines(11, &["e = 5".into()]);
        splices.replace(6..11, String::new());
        assert_eq!(splices.apply().unwrap(), "a = one\nc = 3\nd = 4\ne = 5\n");
        let mut splices = Splices::new("a = 1\r\nb = 2");
        splices.add_lines(12, &["c = 3".into()]);
        assert_eq!(splices.apply().unwrap(), "a = 1\r\nb = 2\r\nc = 3\r\n");
    }

    #[test]
    fn what_overlaps_is_refused() {
        let mut splices = Splices::new("abcdef");
        splices.replace(0..3, String::new());
        splices.replace(2..4, String::new());
        assert_eq!(splices.apply(), None);
    }
}
