//! A pointer into a JSON text: RFC 6901.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// The most reference tokens of a pointer.
pub const MAX_TOKENS: usize = 16;
/// The most bytes of a reference token.
pub const MAX_TOKEN_BYTES: usize = 128;

/// Where in a JSON text a value is, such as `/usage/total_tokens`. A token that is a number is the place in an array, from 0,
/// or a member of an object; `-`, the place behind an array's last element, never holds a value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct JsonPointer(Arc<[PointerToken]>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PointerToken {
    /// The name of a member.
    name: Box<str>,
    /// The place of an element.
    place: Option<u32>,
}

/// Why a text is no pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointerError {
    /// It does not begin with `/`.
    NoSlash,
    /// A `~` that is followed neither by 0 nor by 1.
    Escape,
    /// More than [`MAX_TOKENS`] tokens.
    TooManyTokens,
    /// A token of more than [`MAX_TOKEN_BYTES`].
    TokenTooLong,
}

impl fmt::Display for PointerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSlash => f.write_str("a JSON pointer begins with \"/\""),
            Self::Escape => f.write_str("\"~\" is written \"~0\" in a JSON pointer, and \"/\" within a name \"~1\""),
            Self::TooManyTokens => write!(f, "a JSON pointer has at most {MAX_TOKENS} names"),
            Self::TokenTooLong => write!(f, "a name in a JSON pointer has at most {MAX_TOKEN_BYTES} bytes"),
        }
    }
}

impl Error for PointerError {}

impl JsonPointer {
    /// Reads one. The empty pointer is the whole text.
    pub fn parse(text: &str) -> Result<Self, PointerError> {
        if text.is_empty() {
            return Ok(Self(Arc::new([])));
        }
        let tokens = text.strip_prefix('/').ok_or(PointerError::NoSlash)?;
        if tokens.split('/').count() > MAX_TOKENS {
            return Err(PointerError::TooManyTokens);
        }
        tokens.split('/').map(PointerToken::parse).collect::<Result<Arc<[_]>, _>>().map(Self)
    }

    pub(super) fn tokens(&self) -> &[PointerToken] {
        &self.0
    }
}

impl fmt::Display for JsonPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|token| write!(f, "/{}", token.name.replace('~', "~0").replace('/', "~1")))
    }
}

impl PointerToken {
    fn parse(text: &str) -> Result<Self, PointerError> {
        if text.split('~').skip(1).any(|rest| !rest.starts_with(['0', '1'])) {
            return Err(PointerError::Escape);
        }
        // In this order: "~01" is "~1".
        let name = text.replace("~1", "/").replace("~0", "~");
        if name.len() > MAX_TOKEN_BYTES {
            return Err(PointerError::TokenTooLong);
        }
        let is_number = name.bytes().all(|byte| byte.is_ascii_digit()) && (name.len() == 1 || !name.starts_with('0'));
        let place = if is_number { name.parse().ok() } else { None };
        Ok(Self { name: name.into(), place })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn place(&self) -> Option<u32> {
        self.place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_shown_as_it_was_written() {
        for text in ["", "/", "/a", "/usage/total_tokens", "/choices/0/n", "/a~1b/c~0d/~01", "//", "/é"] {
            assert_eq!(JsonPointer::parse(text).map(|pointer| pointer.to_string()), Ok(text.to_owned()));
        }
        let tokens = JsonPointer::parse("/~01/a~1b/07/7").unwrap();
        let tokens: Vec<_> = tokens.tokens().iter().map(|token| (&*token.name, token.place)).collect();
        assert_eq!(tokens, [("~1", None), ("a/b", None), ("07", None), ("7", Some(7))]);
    }

    #[test]
    fn what_is_none_is_refused() {
        for (text, error) in [
            ("usage".to_owned(), PointerError::NoSlash),
            ("#/usage".to_owned(), PointerError::NoSlash),
            ("/a~".to_owned(), PointerError::Escape),
            ("/a~2b".to_owned(), PointerError::Escape),
            ("/a".repeat(MAX_TOKENS + 1), PointerError::TooManyTokens),
            (format!("/{}", "a".repeat(MAX_TOKEN_BYTES + 1)), PointerError::TokenTooLong),
        ] {
            assert_eq!(JsonPointer::parse(&text), Err(error), "{text}");
        }
        assert!(JsonPointer::parse(&"/a".repeat(MAX_TOKENS)).is_ok());
        assert!(JsonPointer::parse(&format!("/{}", "a".repeat(MAX_TOKEN_BYTES))).is_ok());
    }
}
