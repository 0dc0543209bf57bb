//! The hops that proxies wrote into a field line, as bytes from the network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The longest address with a port: `[` IPv6 with an IPv4 tail `]:65535`, with room for an obfuscated port.
const MAX_NODE: usize = 80;

/// The elements of a comma-separated list, the last one first.
///
/// Right to left matters: what stands at the right was written by whoever is nearest to us, and nothing that a client
/// put to the left of it, such as a quote that never ends, changes how it is read.
pub(super) struct RightToLeft<'l> {
    rest: Option<&'l [u8]>,
    quoted: bool,
}

impl<'l> RightToLeft<'l> {
    /// `quoted`: commas inside quotes do not separate.
    pub(super) fn new(line: &'l [u8], quoted: bool) -> Self {
        Self { rest: Some(line), quoted }
    }
}

impl<'l> Iterator for RightToLeft<'l> {
    type Item = &'l [u8];

    fn next(&mut self) -> Option<&'l [u8]> {
        let line = self.rest?;
        let mut inside = false;
        let comma = line.iter().rposition(|byte| {
            inside ^= self.quoted && *byte == b'"';
            *byte == b',' && !inside
        });
        let Some(comma) = comma else { return self.rest.take() };
        let (left, right) = line.split_at_checked(comma)?;
        self.rest = Some(left);
        right.get(1..)
    }
}

/// `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:80`, with blanks around it.
pub(super) fn address(text: &[u8]) -> Option<IpAddr> {
    let text = text.trim_ascii();
    let text = std::str::from_utf8(text).ok().filter(|text| text.len() <= MAX_NODE)?;
    let addr = if let Some(literal) = text.strip_prefix('[') {
        let (addr, rest) = literal.split_once(']')?;
        if !rest.is_empty() && !rest.strip_prefix(':').is_some_and(is_port) {
            return None;
        }
        IpAddr::V6(addr.parse::<Ipv6Addr>().ok()?)
    } else if let Ok(addr) = text.parse::<IpAddr>() {
        addr
    } else {
        let (addr, port) = text.rsplit_once(':')?;
        IpAddr::V4(addr.parse::<Ipv4Addr>().ok().filter(|_| is_port(port))?)
    };
    Some(addr.to_canonical())
}

/// The address in the one `for` parameter of an element of `Forwarded` (RFC 7239, 4 to 6). `unknown`, `_obfuscated`,
/// no `for`, two of them: none.
pub(super) fn forwarded_for(element: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    let mut rest = element;
    loop {
        let end = pair_end(rest);
        let pair = rest.get(..end)?.trim_ascii();
        if let Some(equals) = pair.iter().position(|byte| *byte == b'=') {
            let (name, value) = (pair.get(..equals)?, pair.get(equals + 1..)?);
            if name.eq_ignore_ascii_case(b"for") && found.replace(value).is_some() {
                return None;
            }
        }
        match rest.get(end + 1..) {
            Some(after) => rest = after,
            None => break,
        }
    }
    address(unquoted(found?)?)
}

/// Where the first parameter ends: at a semicolon outside quotes, or with the element.
fn pair_end(element: &[u8]) -> usize {
    let mut inside = false;
    let semicolon = element.iter().position(|byte| {
        inside ^= *byte == b'"';
        *byte == b';' && !inside
    });
    semicolon.unwrap_or(element.len())
}

/// Without its quotes. No address needs an escape, so one that has it is none.
fn unquoted(value: &[u8]) -> Option<&[u8]> {
    match value {
        [b'"', inner @ .., b'"'] => Some(inner),
        [b'"', ..] => None,
        _ => Some(value),
    }
}

/// RFC 7239, 6.2: up to five digits, or an obfuscated one.
fn is_port(port: &str) -> bool {
    let is_obfuscated = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
    };
    match port.strip_prefix('_') {
        Some(name) => is_obfuscated(name),
        None => (1..=5).contains(&port.len()) && port.bytes().all(|byte| byte.is_ascii_digit()),
    }
}
