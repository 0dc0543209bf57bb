//! A string of a JSON text, read as it comes, with its escapes resolved.

/// The bytes of a string, up to a bound.
#[derive(Clone, Debug, Default)]
pub(super) struct TextRoom {
    bytes: Vec<u8>,
    most: usize,
    /// It is longer than the bound, or an escape of it stands for no character.
    is_unusable: bool,
    /// The first half of a character that is written as two escapes.
    high: Option<u16>,
}

impl TextRoom {
    /// Begins a string of which at most so many bytes are kept; with 0 it is unusable.
    pub(super) fn begin(&mut self, most: usize) {
        self.bytes.clear();
        self.most = most;
        self.is_unusable = most == 0;
        self.high = None;
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        if self.is_unusable {
            return;
        }
        self.is_unusable = self.high.is_some() && !bytes.is_empty() || self.bytes.len() + bytes.len() > self.most;
        if !self.is_unusable {
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// Adds the character of an escape of four digits: by two of them where it is beyond the basic plane.
    pub(super) fn push_unit(&mut self, unit: u16) {
        match (self.high.take(), unit) {
            (None, 0xd800..=0xdbff) => self.high = Some(unit),
            (Some(high), 0xdc00..=0xdfff) => {
                let both = char::decode_utf16([high, unit]).next().and_then(Result::ok);
                self.push_character(both);
            }
            (None, _) => self.push_character(char::from_u32(u32::from(unit))),
            (Some(_), _) => self.is_unusable = true,
        }
    }

    fn push_character(&mut self, character: Option<char>) {
        match character {
            Some(character) => self.push(character.encode_utf8(&mut [0; 4]).as_bytes()),
            None => self.is_unusable = true,
        }
    }

    /// The whole string; `None`: it is unusable.
    pub(super) fn whole(&self) -> Option<&str> {
        if self.is_unusable || self.high.is_some() { None } else { str::from_utf8(&self.bytes).ok() }
    }
}
