//! Field names that are recognised while a head is read.

/// Field names that matter to the connection or the framing: found while reading, not looked up later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// None of the others.
    Other,
    /// `Authorization`
    Authorization,
    /// `Connection`
    Connection,
    /// `Content-Length`
    ContentLength,
    /// `Expect`
    Expect,
    /// `Host`
    Host,
    /// `Keep-Alive`
    KeepAlive,
    /// `Proxy-Authenticate`
    ProxyAuthenticate,
    /// `Proxy-Authorization`
    ProxyAuthorization,
    /// `Proxy-Connection`
    ProxyConnection,
    /// `TE`
    Te,
    /// `Trailer`
    Trailer,
    /// `Transfer-Encoding`
    TransferEncoding,
    /// `Upgrade`
    Upgrade,
    /// `WWW-Authenticate`
    WwwAuthenticate,
}

impl Known {
    /// The field of this name, in any case.
    pub fn of(name: &[u8]) -> Self {
        match name.len() {
            2 if is_name(name, b"te") => Self::Te,
            4 if is_name(name, b"host") => Self::Host,
            6 if is_name(name, b"expect") => Self::Expect,
            7 if is_name(name, b"trailer") => Self::Trailer,
            7 if is_name(name, b"upgrade") => Self::Upgrade,
            10 if is_name(name, b"connection") => Self::Connection,
            10 if is_name(name, b"keep-alive") => Self::KeepAlive,
            13 if is_name(name, b"authorization") => Self::Authorization,
            14 if is_name(name, b"content-length") => Self::ContentLength,
            16 if is_name(name, b"proxy-connection") => Self::ProxyConnection,
            16 if is_name(name, b"www-authenticate") => Self::WwwAuthenticate,
            17 if is_name(name, b"transfer-encoding") => Self::TransferEncoding,
            18 if is_name(name, b"proxy-authenticate") => Self::ProxyAuthenticate,
            19 if is_name(name, b"proxy-authorization") => Self::ProxyAuthorization,
            _ => Self::Other,
        }
    }

    /// Whether the field speaks of one connection only, and is never passed on as it is (RFC 9110, 7.6.1).
    pub fn is_hop_by_hop(self) -> bool {
        match self {
            Self::Connection
            | Self::KeepAlive
            | Self::ProxyAuthenticate
            | Self::ProxyConnection
            | Self::Te
            | Self::TransferEncoding
            | Self::Upgrade => true,
            Self::Other
            | Self::Authorization
            | Self::ContentLength
            | Self::Expect
            | Self::Host
            | Self::ProxyAuthorization
            | Self::Trailer
            | Self::WwwAuthenticate => false,
        }
    }
}

/// Whether the value of a field of authentication names NTLM or Negotiate in any case, among whatever other schemes: they
/// authenticate the connection and not the request. Told by their first four letters, as `HAProxy` does, and rather too often
/// than too seldom: also behind a comma in quotes.
pub fn authenticates_connection(value: &[u8]) -> bool {
    value.split(|byte| *byte == b',').any(|scheme| {
        let begins = |with: &[u8]| scheme.trim_ascii_start().get(..4).is_some_and(|it| it.eq_ignore_ascii_case(with));
        begins(b"ntlm") || begins(b"nego")
    })
}

/// Whether `name` is `lower` in any case. `lower` is letters and hyphens: setting the bit of lower case makes no other
/// byte one of these but control bytes, which are in no name or value.
pub fn is_name<const N: usize>(name: &[u8], lower: &[u8; N]) -> bool {
    if name.len() != N {
        return false;
    }
    // Two words that overlap cover 8 to 16 bytes, two halves 4 to 8.
    match (name.first_chunk(), name.last_chunk(), lower.first_chunk(), lower.last_chunk()) {
        (Some(a), Some(b), Some(c), Some(d)) if N <= 16 => is_same_word(*a, *c) && is_same_word(*b, *d),
        _ => match (name.first_chunk(), name.last_chunk(), lower.first_chunk(), lower.last_chunk()) {
            (Some(a), Some(b), Some(c), Some(d)) if N <= 8 => is_same_half(*a, *c) && is_same_half(*b, *d),
            _ => name.eq_ignore_ascii_case(lower),
        },
    }
}

fn is_same_word(bytes: [u8; 8], lower: [u8; 8]) -> bool {
    u64::from_ne_bytes(bytes) | u64::from_ne_bytes([0x20; 8]) == u64::from_ne_bytes(lower)
}

fn is_same_half(bytes: [u8; 4], lower: [u8; 4]) -> bool {
    u32::from_ne_bytes(bytes) | u32::from_ne_bytes([0x20; 4]) == u32::from_ne_bytes(lower)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [(&str, Known); 14] = [
        ("Authorization", Known::Authorization),
        ("Connection", Known::Connection),
        ("Content-Length", Known::ContentLength),
        ("Expect", Known::Expect),
        ("Host", Known::Host),
        ("Keep-Alive", Known::KeepAlive),
        ("Proxy-Authenticate", Known::ProxyAuthenticate),
        ("Proxy-Authorization", Known::ProxyAuthorization),
        ("Proxy-Connection", Known::ProxyConnection),
        ("TE", Known::Te),
        ("Trailer", Known::Trailer),
        ("Transfer-Encoding", Known::TransferEncoding),
        ("Upgrade", Known::Upgrade),
        ("WWW-Authenticate", Known::WwwAuthenticate),
    ];

    #[test]
    fn a_name_is_known_in_any_case_and_only_whole() {
        for (name, known) in NAMES {
            for spelling in [name.to_owned(), name.to_lowercase(), name.to_uppercase()] {
                assert_eq!(Known::of(spelling.as_bytes()), known);
            }
            assert_eq!(Known::of(format!("{name}s").as_bytes()), Known::Other);
            assert_eq!(Known::of(format!("x{name}").as_bytes()), Known::Other);
            assert_eq!(Known::of(&name.as_bytes()[1..]), Known::Other);
        }
        assert_eq!(Known::of(b""), Known::Other);
    }

    #[test]
    fn no_other_token_byte_passes_for_the_right_one() {
        for (name, known) in NAMES {
            for at in 0..name.len() {
                for byte in (0x21..=0x7e).chain(0x80..=0xff) {
                    let mut bytes = name.as_bytes().to_vec();
                    bytes[at] = byte;
                    let is_same = bytes.eq_ignore_ascii_case(name.as_bytes());
                    assert_eq!(Known::of(&bytes), if is_same { known } else { Known::Other }, "{bytes:?}");
                }
            }
        }
    }

    #[test]
    fn hop_by_hop_are_the_fields_of_one_connection() {
        let of_the_message = [Known::ContentLength, Known::Expect, Known::Host, Known::Trailer];
        let of_authentication = [Known::Authorization, Known::ProxyAuthorization, Known::WwwAuthenticate];
        let others = [of_the_message.as_slice(), &of_authentication].concat();
        for (_, known) in NAMES {
            assert_eq!(known.is_hop_by_hop(), !others.contains(&known), "{known:?}");
        }
        assert!(!Known::Other.is_hop_by_hop());
    }
}
