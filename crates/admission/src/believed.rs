//! The names of fields that are believed from trusted peers only: without one, a request has none of them.

use sluicegate_http1::is_name;

/// Whether a name begins like those by which a proxy in front tells who the client is, or like our own.
pub fn is_claim(name: &[u8]) -> bool {
    matches!(name, [b'x' | b'X', b'-', ..])
        && (starts_with(name, b"x-forwarded-") || starts_with(name, b"x-sluicegate-"))
}

/// Whether a proxy in front tells by it who the client is.
pub fn is_forwarding(name: &[u8]) -> bool {
    is_name(name, b"forwarded") || is_name(name, b"x-real-ip") || is_claim(name)
}

/// Whether a name is of those that are believed from trusted peers only, and else replaced.
pub fn is_of_a_proxy(name: &[u8]) -> bool {
    is_forwarding(name) || is_name(name, b"x-request-id")
}

/// Whether a server that puts fields into variables, as CGI does, takes a name for this one, in lower case: it reads `_` and
/// `-` as the same.
#[inline]
pub fn passes_for(name: &[u8], lower: &[u8]) -> bool {
    let plain = |byte: &u8| if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    name.len() == lower.len() && name.iter().map(plain).eq(lower.iter().map(plain))
}

#[inline]
fn starts_with(name: &[u8], prefix: &[u8]) -> bool {
    name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}
