//! How long a body is: RFC 9112, 6.

use super::fault::Fault;

/// How the end of a body is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// There is no body, whatever the fields say.
    #[default]
    None,
    /// As many bytes; at most 2^63 - 1.
    Length(u64),
    /// Chunks.
    Chunked,
    /// All bytes until the sender closes. Responses only.
    UntilClose,
}

/// The largest length of a body or chunk, so that sums of it and a buffer's size are always representable.
pub(super) const MAX_LENGTH: u64 = i64::MAX as u64;

/// The fields of a head that tell of its body, gathered line by line.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FramingFields {
    length: Option<u64>,
    codings: Codings,
}

impl FramingFields {
    /// Notes a line of `Content-Length`. A second line is refused even if it says the same (RFC 9110, 8.6, allows it).
    pub(super) fn note_length(&mut self, value: &[u8]) -> Result<(), Fault> {
        if self.length.is_some() || value.contains(&b',') {
            return Err(Fault::ContentLengthRepeated);
        }
        self.length = Some(decimal(value).ok_or(Fault::ContentLength)?);
        Ok(())
    }

    /// Notes a line of `Transfer-Encoding`. Several lines are one list (RFC 9110, 5.3).
    pub(super) fn note_codings(&mut self, value: &[u8]) {
        for coding in value.split(|byte| *byte == b',') {
            self.codings.push(coding.trim_ascii());
        }
    }

    /// The value of `Content-Length`.
    pub(super) fn length(self) -> Option<u64> {
        self.length
    }

    /// The framing of the body; [`Framing::None`] if no field frames it.
    pub(super) fn framing(self, is_http_10: bool) -> Result<Framing, Fault> {
        match (self.codings.last, self.length) {
            (None, None) => Ok(Framing::None),
            (None, Some(length)) => Ok(Framing::Length(length)),
            (Some(_), _) if is_http_10 => Err(Fault::CodingOn10),
            (Some(_), Some(_)) => Err(Fault::LengthAndCoding),
            (Some(_), None) => self.codings.check().map(|()| Framing::Chunked),
        }
    }
}

/// The list of transfer codings, as far as it matters.
#[derive(Clone, Copy, Debug, Default)]
struct Codings {
    last: Option<Coding>,
    chunked_before: bool,
    other_before: bool,
    empty: bool,
}

#[derive(Clone, Copy, Debug)]
enum Coding {
    Chunked,
    Other,
}

impl Codings {
    fn push(&mut self, name: &[u8]) {
        match self.last {
            Some(Coding::Chunked) => self.chunked_before = true,
            Some(Coding::Other) => self.other_before = true,
            None => {}
        }
        self.empty |= name.is_empty();
        let is_chunked = name.eq_ignore_ascii_case(b"chunked");
        self.last = Some(if is_chunked { Coding::Chunked } else { Coding::Other });
    }

    /// The list is `chunked` and nothing else.
    fn check(self) -> Result<(), Fault> {
        match self.last {
            Some(Coding::Chunked) if self.empty => Err(Fault::CodingNotFinal),
            Some(Coding::Chunked) if self.chunked_before => Err(Fault::CodingRepeated),
            Some(Coding::Chunked) if self.other_before => Err(Fault::CodingUnknown),
            Some(Coding::Chunked) => Ok(()),
            Some(Coding::Other) | None => Err(Fault::CodingNotFinal),
        }
    }
}

/// `1*DIGIT` of at most [`MAX_LENGTH`].
fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    let mut number: u64 = 0;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        number = number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    (number <= MAX_LENGTH).then_some(number)
}
