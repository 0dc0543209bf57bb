//! Small texts that have a grammar of their own: names, tokens of HTTP, errors of others in one line.

use std::fmt::Write as _;

use super::findings::{Reported, quoted};
use super::reader::Node;

/// Longest name. Names are labels of metrics and fields of log records.
pub(super) const MAX_NAME_BYTES: usize = 64;

/// Whether `text` may be a name.
pub(super) fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=MAX_NAME_BYTES).contains(&text.len()) && text.bytes().all(allowed)
}

/// An error and its causes, in one line.
pub(super) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}

/// Whether `text` is a token of RFC 9110 section 5.6.2, as header names and methods are.
pub(super) fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

/// A header name in lower case, where it is one.
pub(super) fn header_name(node: &Node<'_>, name: &str) -> Result<String, Reported> {
    if is_token(name) {
        return Ok(name.to_ascii_lowercase());
    }
    let message = format!("invalid header name {}", quoted(name));
    Err(node.error(message, "a header name is made of letters, digits and !#$%&'*+-.^_`|~"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_plain() {
        for good in ["a", "per-client", "v1.2_x", &"x".repeat(64)] {
            assert!(is_name(good), "{good:?}");
        }
        for bad in ["", "a b", "ä", "a/b", "a\n", "a\"", &"x".repeat(65)] {
            assert!(!is_name(bad), "{bad:?}");
        }
    }
}
