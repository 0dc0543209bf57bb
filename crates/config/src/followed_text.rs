//! A text that a file follows, with places behind those of the file.

use std::path::PathBuf;

/// The text that is followed, as findings name its places.
#[derive(Debug)]
pub(super) struct Followed {
    /// Its address, or the file that keeps it.
    pub(super) name: PathBuf,
    /// Empty lines and the text.
    padded: String,
    /// Its first byte.
    pub(super) offset: usize,
}

impl Followed {
    pub(super) fn new(name: PathBuf, text: &str, offset: usize) -> Self {
        // Some editors put a byte order mark at the start; it is no part of the text.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        Self { name, padded: "\n".repeat(offset) + text, offset }
    }

    /// The text behind as many empty lines as its first byte says.
    pub(super) fn padded(&self) -> &str {
        &self.padded
    }

    /// The text.
    pub(super) fn text(&self) -> &str {
        self.padded.get(self.offset..).unwrap_or_default()
    }
}
