//! The parts of a token: the compact form of RFC 7515, 7.1.

use base64ct::{Base64UrlUnpadded, Encoding as _};

use sluicegate_json::{FoundValue, JsonPointer, PointerReader};

/// The most bytes of a token.
pub const MAX_TOKEN_BYTES: usize = 8 * 1024;

/// A claim of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimValue {
    /// A text, or a whole number as it is written.
    Text(Box<str>),
    /// The token has no such claim, or an empty one.
    Absent,
    /// The claim is neither, or longer than 1 KiB, or the token cannot be read.
    Unfit,
}

/// The parts of a token, not decoded.
pub(super) struct TokenParts<'t> {
    pub(super) header: &'t [u8],
    pub(super) payload: &'t [u8],
    pub(super) signature: &'t [u8],
    /// The bytes that are signed: the first two with the dot between them.
    pub(super) signed: &'t [u8],
}

impl<'t> TokenParts<'t> {
    /// Takes a token apart; `None`: it is none.
    pub(super) fn of(token: &'t [u8]) -> Option<Self> {
        if token.len() > MAX_TOKEN_BYTES {
            return None;
        }
        let first = token.iter().position(|byte| *byte == b'.')?;
        let last = token.iter().rposition(|byte| *byte == b'.')?;
        let (signed, signature) = (token.get(..last)?, token.get(last + 1..)?);
        let (header, payload) = (token.get(..first)?, token.get(first + 1..last)?);
        let is_one = !header.is_empty() && !payload.is_empty() && !payload.contains(&b'.');
        is_one.then_some(Self { header, payload, signature, signed })
    }
}

/// The bytes of a part: base64url without padding, in its one spelling.
pub(super) fn decoded(part: &[u8]) -> Option<Vec<u8>> {
    Base64UrlUnpadded::decode_vec(str::from_utf8(part).ok()?).ok()
}

/// Reads a part that is a JSON object at the pointers of a reader. `None`: it is none, or a member that is asked for is there
/// twice, in whatever case.
pub(super) fn read<'p>(
    part: &[u8],
    mut reader: PointerReader,
    pointers: impl Iterator<Item = &'p JsonPointer>,
) -> Option<PointerReader> {
    let text = decoded(part)?;
    if text.trim_ascii_start().first() != Some(&b'{') || str::from_utf8(&text).is_err() {
        return None;
    }
    reader.feed(&text);
    let is_whole = reader.end_text();
    let mut pointers = pointers;
    (is_whole && !pointers.any(|pointer| reader.is_ambiguous(pointer))).then_some(reader)
}

impl ClaimValue {
    /// The value that was found for a claim.
    pub(super) fn of(found: &FoundValue) -> Self {
        match found {
            FoundValue::Nothing => Self::Absent,
            FoundValue::Text(text) if text.is_empty() => Self::Absent,
            FoundValue::Text(text) => Self::Text(text.clone()),
            FoundValue::Number(number) => number.plain().map_or(Self::Unfit, |text| Self::Text(text.into())),
            FoundValue::Other => Self::Unfit,
        }
    }
}

/// A claim of a token of which nothing is verified: its sender may write what it likes.
pub fn unverified_claim(token: &[u8], claim: &JsonPointer) -> ClaimValue {
    let Some(parts) = TokenParts::of(token) else { return ClaimValue::Unfit };
    let reader = PointerReader::new([claim.clone()], true);
    match read(parts.payload, reader, std::iter::once(claim)) {
        Some(reader) => ClaimValue::of(reader.value(claim)),
        None => ClaimValue::Unfit,
    }
}
