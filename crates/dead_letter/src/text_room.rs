//! How much of what a stranger has sent a record takes.

use sluicegate_redact::Clip;

/// Bytes of one request that its record takes, as they came; all of its texts share them.
pub(super) const MAX_TEXT: usize = 16 * 1024;

/// Bytes of a record beside those, about.
const OWN_WORDS: usize = 640;

/// The room that one record has for what a stranger sent, so that what waits for the writer, its work and the disk do not
/// depend on the size of heads.
#[derive(Debug)]
pub struct TextRoom(usize);

impl TextRoom {
    /// Bytes of a method.
    pub const METHOD: usize = 64;
    /// Bytes of a host, and of the name of a header.
    pub const HOST: usize = 256;
    /// Bytes of a part of the key.
    pub const KEY: usize = 512;
    /// Bytes of a path, and of a query.
    pub const PATH: usize = 4 * 1024;
    /// Bytes of a header's value.
    pub const HEADER: usize = 2 * 1024;
    /// Headers of a record.
    pub const HEADERS: usize = 128;

    /// That of a new record.
    pub fn new() -> Self {
        Self(MAX_TEXT)
    }

    /// About how many bytes a record takes, with its own words, of a request with a head of so many.
    pub fn of_head(head: usize) -> u64 {
        (head.min(MAX_TEXT) + OWN_WORDS) as u64
    }

    /// A text, cut to its own bound and to the room that is left.
    pub fn clip(&mut self, text: &[u8], most: usize) -> Clip {
        let clip = Clip::of(text, most.min(self.0));
        self.0 = self.0.saturating_sub(text.len().min(most));
        clip
    }

    /// Whether nothing more goes in.
    pub fn is_full(&self) -> bool {
        self.0 == 0
    }
}

impl Default for TextRoom {
    fn default() -> Self {
        Self::new()
    }
}
