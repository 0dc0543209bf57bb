//! The claim of a token that a key is made of.

use std::fmt;
use std::hash::{Hash, Hasher};

use sluicegate_json::{JsonPointer, PointerError};

/// A claim of the bearer token of `Authorization` (RFC 6750, RFC 7519), as a key names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtClaim {
    /// The source of the key, such as `jwt:sub`.
    source: Box<str>,
    is_verified: bool,
    pointer: JsonPointer,
}

impl Hash for JwtClaim {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // All else follows from it.
        self.source.hash(state);
    }
}

impl fmt::Display for JwtClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)
    }
}

impl JwtClaim {
    /// That of a source such as `jwt:sub` or `jwt-unverified:/realm/id`; `None`: it is none of these.
    ///
    /// # Errors
    /// A [`PointerError`]: it names no claim.
    pub(super) fn parse(source: &str) -> Option<Result<Self, PointerError>> {
        let (is_verified, name) = match source.split_once(':')? {
            ("jwt", name) => (true, name),
            ("jwt-unverified", name) => (false, name),
            _ => return None,
        };
        let pointer = match name {
            "" => Err(PointerError::NoSlash),
            pointer if pointer.starts_with('/') => JsonPointer::parse(pointer),
            name => JsonPointer::parse(&format!("/{}", name.replace('~', "~0").replace('/', "~1"))),
        };
        Some(pointer.map(|pointer| Self { source: source.into(), is_verified, pointer }))
    }

    /// The source of the key, such as `jwt:sub`.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether the signature of its token has to be verified.
    pub const fn is_verified(&self) -> bool {
        self.is_verified
    }

    /// Where in the payload it is.
    pub fn pointer(&self) -> &JsonPointer {
        &self.pointer
    }
}

/// The token that a request brings; `None`: it brings none. `field` is the value of `Authorization`.
pub fn bearer_token(field: &[u8]) -> Option<&[u8]> {
    let field = field.trim_ascii();
    let (scheme, rest) = field.split_at_checked(6)?;
    let is_bearer =
        scheme.eq_ignore_ascii_case(b"bearer") && rest.first().is_none_or(|byte| *byte == b' ' || *byte == b'\t');
    is_bearer.then(|| rest.trim_ascii())
}
