//! `Forwarded` (RFC 7239).

use super::lines::FieldValues;
use super::{Forwarding, Sink};

/// The element of our peer (RFC 7239, 4), behind those of others: addresses of IPv6 and authorities are no tokens, so they
/// stand in quotes. The lines of others are left out if one of them is no list: behind a quote that nobody closes our
/// element would be a part of theirs.
#[inline(never)]
pub fn add(facts: &Forwarding<'_>, others: &FieldValues<'_>, sink: &mut impl Sink) {
    let (before, after): (&[u8], &[u8]) = if facts.peer.contains(&b':') { (b"\"[", b"]\"") } else { (b"", b"") };
    let is_quotable = !facts.authority.iter().any(|byte| matches!(byte, b'"' | b'\\'));
    let host: [&[u8]; 3] = if is_quotable { [b";host=\"", facts.authority, b"\""] } else { Default::default() };
    let element = [b"for=", before, facts.peer, after, host[0], host[1], host[2], b";proto=", facts.scheme];
    if !others.is_empty() && others.values().all(is_list) {
        others.put(b"forwarded", &element, sink);
    } else {
        sink.put_joined(b"forwarded", &element);
    }
}

/// Whether a line is a list of elements: pairs with semicolons between them, of which the elements may lack any.
fn is_list(line: &[u8]) -> bool {
    let mut rest = line;
    loop {
        rest = rest.trim_ascii_start();
        if let Some(behind) = pair(rest) {
            rest = behind.trim_ascii_start();
        }
        match rest.split_first() {
            None => return true,
            Some((b',' | b';', behind)) => rest = behind,
            Some(_) => return false,
        }
    }
}

/// The text behind a `token=token` or `token="..."`; `None`: `line` begins with neither.
fn pair(line: &[u8]) -> Option<&[u8]> {
    let value = behind_token(line)?.strip_prefix(b"=")?;
    match value.strip_prefix(b"\"") {
        None => behind_token(value),
        Some(mut quoted) => loop {
            quoted = match quoted {
                [b'"', rest @ ..] => return Some(rest),
                [b'\\', _, rest @ ..] | [_, rest @ ..] => rest,
                [] => return None,
            };
        },
    }
}

fn behind_token(text: &[u8]) -> Option<&[u8]> {
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let length = text.iter().position(|byte| !is_token(byte)).unwrap_or(text.len());
    (length > 0).then(|| &text[length..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_one_and_what_is_half_of_one_is_none() {
        for list in [
            "for=192.0.2.43",
            "For=\"[2001:db8:cafe::17]:4711\"",
            "for=192.0.2.60;proto=http;by=203.0.113.43",
            "for=192.0.2.43, for=198.51.100.17",
            "for=_hidden, , by=unknown ; for=\"a,b;c\\\"d\"",
            "",
            " ,",
        ] {
            assert!(is_list(list.as_bytes()), "{list}");
        }
        for other in
            ["garbage", "for=", "=a", "for=\"a", "for=\"a\\\"", "for=a b", "for=a\"b\"", "for=[::1]", "for=a=b"]
        {
            assert!(!is_list(other.as_bytes()), "{other}");
        }
    }
}
