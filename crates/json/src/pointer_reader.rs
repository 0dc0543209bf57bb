//! Reads JSON texts as they come, and keeps the values at a few pointers.

use super::number::JsonNumber;
use super::pointer::{JsonPointer, MAX_TOKEN_BYTES, MAX_TOKENS};
use super::text::TextRoom;

/// The most containers within each other; a text that has more is not read.
pub const MAX_DEPTH: usize = 128;
/// The most bytes of a string that is kept as a value.
pub const MAX_TEXT_BYTES: usize = 1024;

/// A value at a pointer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FoundValue {
    /// None, or `null`.
    #[default]
    Nothing,
    /// A number.
    Number(JsonNumber),
    /// A string, its escapes resolved.
    Text(Box<str>),
    /// Neither: an object, an array, `true`, `false`, or a string that is not kept, too long or no Unicode.
    Other,
}

/// Reads one text after the other. Of each pointer it keeps the last value in a text that was complete.
#[derive(Clone, Debug)]
pub struct PointerReader {
    tracks: Vec<Track>,
    state: TextState,
    /// Containers that are open.
    depth: usize,
    /// A bit for each of them, the innermost the lowest: whether it is an object.
    kinds: u128,
    /// The places within the outer arrays.
    places: [u32; MAX_TOKENS + 1],
    text: TextRoom,
    number: JsonNumber,
    keeps_texts: bool,
}

/// One pointer on its way through a text.
#[derive(Clone, Debug)]
struct Track {
    pointer: JsonPointer,
    /// So many of its tokens lead to where the reader is.
    matched: usize,
    /// A bit for each of its tokens: whether its member came already in the object that is open there.
    seen: u32,
    is_ambiguous: bool,
    /// In the text that is read.
    found: FoundValue,
    /// In those before it.
    last: FoundValue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextState {
    /// Before a value.
    Value,
    /// Behind `[`.
    FirstElement,
    /// Behind `{`.
    FirstKey,
    /// Before a key.
    Key,
    /// Behind a key.
    Colon,
    /// Behind a value of a container.
    AfterValue,
    /// Behind the value that is the text.
    Done,
    /// In a string.
    Text(TextUse),
    /// Behind a backslash.
    Escape(TextUse),
    /// In the four digits behind `\u`: those to come, and what those before say.
    Unit(TextUse, u8, u16),
    Number(NumberState),
    /// In a literal: the bytes to come.
    Literal(&'static [u8], bool),
    /// It is no JSON.
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextUse {
    Key,
    Value,
}

/// The last part of a number that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NumberState {
    Minus,
    Zero,
    Integer,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

impl NumberState {
    /// The part that this byte is of; `None`: it does not go on.
    fn next(self, byte: u8) -> Option<Self> {
        match (self, byte) {
            (Self::Minus, b'0') => Some(Self::Zero),
            (Self::Minus, b'1'..=b'9') | (Self::Integer, b'0'..=b'9') => Some(Self::Integer),
            (Self::Zero | Self::Integer, b'.') => Some(Self::Point),
            (Self::Point | Self::Fraction, b'0'..=b'9') => Some(Self::Fraction),
            (Self::Zero | Self::Integer | Self::Fraction, b'e' | b'E') => Some(Self::Exponent),
            (Self::Exponent, b'+' | b'-') => Some(Self::ExponentSign),
            (Self::Exponent | Self::ExponentSign | Self::ExponentDigits, b'0'..=b'9') => Some(Self::ExponentDigits),
            _ => None,
        }
    }

    fn is_complete(self) -> bool {
        matches!(self, Self::Zero | Self::Integer | Self::Fraction | Self::ExponentDigits)
    }
}

impl PointerReader {
    /// Reads at these pointers. With `keeps_texts` strings are kept; else they are [`FoundValue::Other`].
    pub fn new(pointers: impl IntoIterator<Item = JsonPointer>, keeps_texts: bool) -> Self {
        let track = |pointer| Track {
            pointer,
            matched: 0,
            seen: 0,
            is_ambiguous: false,
            found: FoundValue::Nothing,
            last: FoundValue::Nothing,
        };
        Self {
            tracks: pointers.into_iter().map(track).collect(),
            state: TextState::Value,
            depth: 0,
            kinds: 0,
            places: [0; MAX_TOKENS + 1],
            text: TextRoom::default(),
            number: JsonNumber::new(),
            keeps_texts,
        }
    }

    /// Takes the next bytes of a text.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while let Some((&byte, rest)) = bytes.split_first() {
            bytes = match self.state {
                TextState::Failed => return,
                TextState::Text(used) => self.in_text(used, bytes),
                TextState::Number(state) => {
                    if let Some(next) = state.next(byte) {
                        self.number.push(byte);
                        self.state = TextState::Number(next);
                        rest
                    } else {
                        self.end_number(state);
                        bytes
                    }
                }
                _ => {
                    self.step(byte);
                    rest
                }
            };
        }
    }

    /// The text ends; another one may follow. Whether it was complete, and JSON: only then its values are kept.
    pub fn end_text(&mut self) -> bool {
        if let TextState::Number(state) = self.state {
            self.end_number(state);
        }
        let is_complete = self.state == TextState::Done;
        for track in &mut self.tracks {
            let found = std::mem::take(&mut track.found);
            if is_complete && found != FoundValue::Nothing {
                track.last = found;
            }
            track.matched = 0;
            track.seen = 0;
        }
        self.state = TextState::Value;
        self.depth = 0;
        is_complete
    }

    /// Whether nothing can be read any more before the text ends.
    pub fn has_failed(&self) -> bool {
        self.state == TextState::Failed
    }

    /// The value at a pointer: the last one of the texts that were complete.
    pub fn value(&self, pointer: &JsonPointer) -> &FoundValue {
        self.tracks.iter().find(|track| track.pointer == *pointer).map_or(&FoundValue::Nothing, |track| &track.last)
    }

    /// Whether an object on the way to a pointer has its member twice, or in another case: parsers differ in which one they
    /// take.
    pub fn is_ambiguous(&self, pointer: &JsonPointer) -> bool {
        self.tracks.iter().any(|track| track.pointer == *pointer && track.is_ambiguous)
    }

    /// Takes a byte outside strings and numbers.
    fn step(&mut self, byte: u8) {
        self.state = match (self.state, byte) {
            (TextState::Escape(used), _) => return self.escape(used, byte),
            (TextState::Unit(used, left, unit), _) => return self.unit(used, left, unit, byte),
            (TextState::Literal([next, rest @ ..], is_null), _) if *next == byte => match rest {
                [] => return self.end_scalar(if is_null { &FoundValue::Nothing } else { &FoundValue::Other }),
                _ => TextState::Literal(rest, is_null),
            },
            (TextState::Literal(..) | TextState::Failed, _) => TextState::Failed,
            (_, b' ' | b'\t' | b'\r' | b'\n') => return,
            (TextState::FirstElement, b']') | (TextState::FirstKey, b'}') => return self.close(),
            (TextState::Value | TextState::FirstElement, _) => return self.begin_value(byte),
            (TextState::FirstKey | TextState::Key, b'"') => {
                self.text.begin(if self.is_followed() { MAX_TOKEN_BYTES } else { 0 });
                TextState::Text(TextUse::Key)
            }
            (TextState::Colon, b':') => TextState::Value,
            (TextState::AfterValue, b',') if self.is_in_object() => TextState::Key,
            (TextState::AfterValue, b',') => {
                if let Some(place) = self.places.get_mut(self.depth) {
                    *place = place.saturating_add(1);
                }
                TextState::Value
            }
            (TextState::AfterValue, b'}') if self.is_in_object() => return self.close(),
            (TextState::AfterValue, b']') if !self.is_in_object() => return self.close(),
            _ => TextState::Failed,
        };
    }

    fn is_in_object(&self) -> bool {
        self.kinds & 1 == 1
    }

    /// Whether a pointer leads into the container that is open.
    fn is_followed(&self) -> bool {
        self.tracks.iter().any(|track| track.is_followed(self.depth))
    }

    fn begin_value(&mut self, byte: u8) {
        if self.depth > 0
            && !self.is_in_object()
            && let Some(place) = self.places.get(self.depth)
        {
            let followed = self.tracks.iter_mut().filter(|track| track.is_followed(self.depth));
            followed.for_each(|track| track.take_place(self.depth, *place));
        }
        self.state = match byte {
            b'{' | b'[' => return self.open(byte == b'{'),
            b'"' => {
                let is_kept = self.keeps_texts && self.tracks.iter().any(|track| track.is_at(self.depth));
                self.text.begin(if is_kept { MAX_TEXT_BYTES } else { 0 });
                TextState::Text(TextUse::Value)
            }
            b'-' | b'0'..=b'9' => {
                self.number = JsonNumber::new();
                self.number.push(byte);
                TextState::Number(match byte {
                    b'-' => NumberState::Minus,
                    b'0' => NumberState::Zero,
                    _ => NumberState::Integer,
                })
            }
            b't' => TextState::Literal(b"rue", false),
            b'f' => TextState::Literal(b"alse", false),
            b'n' => TextState::Literal(b"ull", true),
            _ => TextState::Failed,
        };
    }

    fn open(&mut self, is_object: bool) {
        if self.depth == MAX_DEPTH {
            self.state = TextState::Failed;
            return;
        }
        for track in self.tracks.iter_mut().filter(|track| track.is_at(self.depth)) {
            track.found = FoundValue::Other;
        }
        self.depth += 1;
        self.kinds = self.kinds << 1 | u128::from(is_object);
        if let Some(place) = self.places.get_mut(self.depth) {
            *place = 0;
        }
        for track in self.tracks.iter_mut().filter(|track| track.is_followed(self.depth)) {
            track.seen &= !(1 << self.depth);
        }
        self.state = if is_object { TextState::FirstKey } else { TextState::FirstElement };
    }

    fn close(&mut self) {
        self.depth -= 1;
        self.kinds >>= 1;
        self.end_value();
    }

    /// A value that is no container is complete.
    fn end_scalar(&mut self, value: &FoundValue) {
        for track in self.tracks.iter_mut().filter(|track| track.is_at(self.depth)) {
            track.found = value.clone();
        }
        self.end_value();
    }

    fn end_value(&mut self) {
        if self.depth == 0 {
            self.state = TextState::Done;
            return;
        }
        for track in self.tracks.iter_mut().filter(|track| track.matched == self.depth) {
            track.matched -= 1;
        }
        self.state = TextState::AfterValue;
    }

    fn end_number(&mut self, state: NumberState) {
        if state.is_complete() {
            self.end_scalar(&FoundValue::Number(self.number));
        } else {
            self.state = TextState::Failed;
        }
    }

    /// Takes bytes of a string up to its end or an escape; what is left.
    fn in_text<'b>(&mut self, used: TextUse, bytes: &'b [u8]) -> &'b [u8] {
        let end = memchr::memchr2(b'"', b'\\', bytes).unwrap_or(bytes.len());
        let (plain, rest) = bytes.split_at(end);
        if plain.iter().any(|byte| *byte < b' ') {
            self.state = TextState::Failed;
            return &[];
        }
        self.text.push(plain);
        match rest.split_first() {
            None => rest,
            Some((b'"', rest)) => {
                self.end_string(used);
                rest
            }
            Some((_, rest)) => {
                self.state = TextState::Escape(used);
                rest
            }
        }
    }

    fn end_string(&mut self, used: TextUse) {
        match used {
            TextUse::Value => {
                let value = self.text.whole().map_or(FoundValue::Other, |text| FoundValue::Text(text.into()));
                self.end_scalar(&value);
            }
            TextUse::Key => {
                if let Some(key) = self.text.whole() {
                    let followed = self.tracks.iter_mut().filter(|track| track.is_followed(self.depth));
                    followed.for_each(|track| track.take_key(self.depth, key));
                }
                self.state = TextState::Colon;
            }
        }
    }

    fn escape(&mut self, used: TextUse, byte: u8) {
        let character = match byte {
            b'"' | b'\\' | b'/' => byte,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                self.state = TextState::Unit(used, 4, 0);
                return;
            }
            _ => {
                self.state = TextState::Failed;
                return;
            }
        };
        self.text.push(&[character]);
        self.state = TextState::Text(used);
    }

    fn unit(&mut self, used: TextUse, left: u8, unit: u16, byte: u8) {
        let Some(digit) = char::from(byte).to_digit(16) else {
            self.state = TextState::Failed;
            return;
        };
        let unit = unit << 4 | digit as u16;
        self.state = TextState::Unit(used, left - 1, unit);
        if left == 1 {
            self.text.push_unit(unit);
            self.state = TextState::Text(used);
        }
    }
}

impl Track {
    /// Whether it leads into the container at this depth.
    fn is_followed(&self, depth: usize) -> bool {
        self.matched + 1 == depth && self.matched < self.pointer.tokens().len()
    }

    /// Whether it names the value that begins at this depth.
    fn is_at(&self, depth: usize) -> bool {
        self.matched == depth && self.matched == self.pointer.tokens().len()
    }

    /// Follows it to a member of the object that is open. One that some parsers take for it, since they fold names, makes it
    /// ambiguous, also alone.
    fn take_key(&mut self, depth: usize, key: &str) {
        let Some(token) = self.pointer.tokens().get(self.matched) else { return };
        let is_own = token.name() == key;
        if !is_own && !folded(token.name()).eq(folded(key)) {
            return;
        }
        let is_second = self.seen & 1 << depth != 0;
        self.is_ambiguous |= is_second || !is_own;
        self.seen |= 1 << depth;
        if is_own {
            self.matched = depth;
            if is_second {
                // The last one counts, whatever it holds.
                self.found = FoundValue::Nothing;
            }
        }
    }

    /// Follows it to an element of the array that is open.
    fn take_place(&mut self, depth: usize, place: u32) {
        if self.pointer.tokens().get(self.matched).is_some_and(|token| token.place() == Some(place)) {
            self.matched = depth;
        }
    }
}

/// A name as parsers read it that compare names without their case: ASCII, and the two other letters that are lower or upper case
/// of one of ASCII.
fn folded(name: &str) -> impl Iterator<Item = char> {
    name.chars().map(|letter| match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        letter => letter.to_ascii_lowercase(),
    })
}

#[cfg(test)]
mod tests;
