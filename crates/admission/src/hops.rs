//! The hops that proxies wrote into a field line, as bytes from the network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The longest address with a port: `[` IPv6 with an IPv4 tail `]:65535`, with room for an obfuscated port.
const MAX_NODE: usize = 80;

/// The elements of a comma-separated list, the last one first.
///
/// Right to left matters: what stands at the right was written by the proxy that is nearest to us, and nothing that a
/// client put to the left of it, such as a quote that never ends, changes how it is read.
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
        let mut at = line.len();
        let comma = line.iter().rposition(|byte| {
            at = at.saturating_sub(1);
            inside ^= self.quoted && *byte == b'"' && !is_escaped(line, at);
            *byte == b',' && !inside
        });
        let Some(comma) = comma else { return self.rest.take() };
        let (left, right) = line.split_at_checked(comma)?;
        self.rest = Some(left);
        right.get(1..)
    }
}

/// Whether the byte at `at`, which is part of a quoted string, is the second of a quoted pair (RFC 9110, 5.6.4): a quote
/// that a client had written into its `Host` ends nothing there.
fn is_escaped(line: &[u8], at: usize) -> bool {
    let before = line.get(..at).unwrap_or_default();
    before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

/// `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:80`, with blanks around it.
pub fn address(text: &[u8]) -> Option<IpAddr> {
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
    let (mut inside, mut is_escaped) = (false, false);
    let semicolon = element.iter().position(|byte| {
        inside ^= *byte == b'"' && !is_escaped;
        is_escaped = inside && *byte == b'\\' && !is_escaped;
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A parser of one element by the letter of RFC 7239, 4, from left to right: its pairs, names in lower case, values
    /// without quotes and escapes. `None`: it is no element.
    fn pairs(element: &str) -> Option<Vec<(String, String)>> {
        let mut rest = element.chars().peekable();
        let mut pairs = Vec::new();
        loop {
            let is_token = |c: &char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(*c);
            let mut name = String::new();
            while let Some(c) = rest.next_if(is_token) {
                name.push(c.to_ascii_lowercase());
            }
            rest.next_if_eq(&'=').filter(|_| !name.is_empty())?;
            let mut value = String::new();
            if rest.next_if_eq(&'"').is_some() {
                loop {
                    match rest.next()? {
                        '"' => break,
                        '\\' => value.push(rest.next()?),
                        c => value.push(c),
                    }
                }
            } else {
                while let Some(c) = rest.next_if(is_token) {
                    value.push(c);
                }
            }
            pairs.push((name, value));
            match rest.next() {
                None => return Some(pairs),
                Some(';') => {}
                Some(_) => return None,
            }
        }
    }

    /// The client of an element, by the naive parser: the one `for`, if it is an address.
    fn naive(element: &str) -> Option<IpAddr> {
        let pairs = pairs(element)?;
        let mut values = pairs.iter().filter(|(name, _)| name == "for").map(|(_, value)| value.as_str());
        let (value, None) = (values.next()?, values.next()) else { return None };
        address(value.as_bytes()).filter(|_| value == value.trim())
    }

    /// A string in quotes, in which anything may be escaped, and quotes and backslashes are.
    fn quoted() -> impl Strategy<Value = String> {
        let byte = prop::sample::select(vec!['"', '\\', ',', ';', '=', ' ', 'a', '1', '.', ':', '[', '_']);
        prop::collection::vec((byte, any::<bool>()), 0..12).prop_map(|bytes| {
            let inner = bytes.iter().map(|(byte, escapes)| match (byte, escapes) {
                ('"' | '\\', _) | (_, true) => format!("\\{byte}"),
                (byte, false) => byte.to_string(),
            });
            format!("\"{}\"", inner.collect::<String>())
        })
    }

    /// An element as a proxy writes it.
    fn element() -> impl Strategy<Value = String> {
        let node = prop::sample::select(vec![
            "1.1.1.1",
            "\"1.1.1.1:80\"",
            "\"[2001:db8::1]\"",
            "\"[2001:db8::1]:4711\"",
            "\"1.1.1.1:_x\"",
            "unknown",
            "_hidden",
            "\"[2001:db8::1\"",
            "\"\\1.1.1.1\"",
            "1.1.1.1.1",
            "",
        ]);
        let name = prop::sample::select(vec!["for", "For", "by", "host", "proto", "x"]);
        let pair = (name, prop_oneof![quoted(), node.prop_map(str::to_owned)]);
        prop::collection::vec(pair.prop_map(|(name, value)| format!("{name}={value}")), 1..5)
            .prop_map(|pairs| pairs.join(";"))
    }

    /// Bytes that a client may have sent, many of which mean something here.
    fn left() -> impl Strategy<Value = String> {
        prop_oneof![
            element(),
            "[ -~]{0,20}",
            prop::collection::vec(
                prop::sample::select(vec!["\"", "\\", ",", ";", "=", "for=6.6.6.6", " ", "x"]),
                0..10
            )
            .prop_map(|parts| parts.concat()),
        ]
    }

    proptest! {
        /// The element that a proxy has added is read as the RFC has it, whatever a client has written before it.
        #[test]
        fn what_a_proxy_adds_is_read_by_itself(left in left(), blank in " ?", added in element()) {
            let line = format!("{left},{blank}{added}");
            let mut hops = RightToLeft::new(line.as_bytes(), true);
            let last = hops.next().unwrap();
            prop_assert_eq!(str::from_utf8(last).unwrap(), format!("{blank}{added}"));
            prop_assert_eq!(str::from_utf8(hops.next().unwrap()).unwrap().len() <= left.len(), true);
            let (ours, theirs) = (forwarded_for(last), naive(&added));
            // No address needs an escape: one that has it is none here.
            prop_assert!(ours == theirs || ours.is_none() && added.contains('\\'), "{ours:?} {theirs:?}");
        }

        #[test]
        fn elements_are_told_apart_as_the_rfc_has_it(added in prop::collection::vec(element(), 1..5)) {
            let line = added.join(", ");
            let hops = RightToLeft::new(line.as_bytes(), true).map(|hop| str::from_utf8(hop).unwrap().trim());
            prop_assert!(hops.eq(added.iter().rev().map(String::as_str)), "{line}");
        }
    }

    #[test]
    fn a_quote_in_a_quoted_host_ends_nothing() {
        // By what stands at its left, the client has the quotes paired so that all of it is one element.
        for line in [
            r#"for=6.6.6.6;x=", for=1.1.1.1;host="a\"b,c""#,
            r#"for=6.6.6.6;x=",for=1.1.1.1;host="a\"b""#,
            r#"for=6.6.6.6, for=1.1.1.1;host="\\\"""#,
            r#"for=6.6.6.6, host="\";for=6.6.6.6;x=\"";for=1.1.1.1"#,
        ] {
            let last = RightToLeft::new(line.as_bytes(), true).next().unwrap();
            assert_eq!(forwarded_for(last), Some("1.1.1.1".parse().unwrap()), "{line}");
        }
    }
}
