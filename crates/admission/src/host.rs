//! The one spelling of a host: lower case, without port and without one trailing dot; IPv6 literals in their shortest
//! form, in brackets.

use std::io::Write as _;
use std::net::Ipv6Addr;

use super::malformed::Malformed;

/// The longest host, as DNS has it (RFC 1035, 2.3.4).
const MAX_HOST: usize = 255;

/// Room for a host that does not come in its one spelling, on the stack of the caller that asks.
pub(super) struct HostRoom([u8; MAX_HOST]);

impl HostRoom {
    pub(super) const fn new() -> Self {
        Self([0; MAX_HOST])
    }
}

/// The host of `host[:port]`. An empty authority is none (RFC 9112, 3.2: a client without one sends an empty `Host`).
///
/// Letters, digits, `-`, `_`, `~` and single dots are what a host is made of; the escapes and punctuation that RFC 3986
/// allows beside them are in no name that resolves, and are refused.
pub(super) fn normalise<'h>(authority: Option<&'h str>, room: &'h mut HostRoom) -> Result<Option<&'h str>, Malformed> {
    match authority {
        None | Some("") => Ok(None),
        Some(authority) if authority.starts_with('[') => literal(authority, room).map(Some),
        Some(authority) => name(authority, room).map(Some),
    }
}

fn name<'h>(authority: &'h str, room: &'h mut HostRoom) -> Result<&'h str, Malformed> {
    if let Some(host) = plainly_normal(authority) {
        return Ok(host);
    }
    let host = without_port(authority)?;
    let host = host.strip_suffix('.').unwrap_or(host);
    match spelling(host.as_bytes())? {
        Spelling::Normal => Ok(host),
        Spelling::Upper => {
            let lower = room.0.get_mut(..host.len()).ok_or(Malformed::Authority)?;
            lower.copy_from_slice(host.as_bytes());
            lower.make_ascii_lowercase();
            std::str::from_utf8(lower).map_err(|_| Malformed::Authority)
        }
    }
}

/// From the right, where the digits of a port stop: most names have none, and are not searched for a colon.
fn without_port(authority: &str) -> Result<&str, Malformed> {
    let last = authority.bytes().rposition(|byte| !byte.is_ascii_digit());
    let Some((host, port)) = last.and_then(|last| authority.split_at_checked(last)) else { return Ok(authority) };
    match port.strip_prefix(':') {
        Some(port) if is_port(port) => Ok(host),
        Some(_) => Err(Malformed::Authority),
        None => Ok(authority),
    }
}

/// Bits of a byte's class in [`PLAIN_BITS`].
const IS_DOT: u8 = 1;
const IS_NOT_PLAIN: u8 = 2;
const PLAIN_BITS: [u8; 256] = plain_bits();

const fn plain_bits() -> [u8; 256] {
    let mut bits = [IS_NOT_PLAIN; 256];
    let mut byte = 0;
    while byte < bits.len() {
        match byte as u8 {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'~' => bits[byte] = 0,
            b'.' => bits[byte] = IS_DOT,
            _ => {}
        }
        byte += 1;
    }
    bits
}

/// The name without its port, if it is in its one spelling, as most are, and the port nothing odd: `None` says no more
/// than that one has to look closer. In one pass, since this is done for every request.
fn plainly_normal(authority: &str) -> Option<&str> {
    let mut two_dots = 0;
    let mut previous = IS_DOT;
    let mut length = 0;
    for byte in authority.bytes() {
        let bits = PLAIN_BITS[usize::from(byte)];
        if bits == IS_NOT_PLAIN {
            break;
        }
        two_dots |= previous & bits;
        previous = bits;
        length += 1;
    }
    // The bits of two dots meet at two in a row, at a first one, and at a last one.
    let is_normal = two_dots | previous == 0 && length <= MAX_HOST;
    let (host, port) = authority.split_at_checked(length).filter(|_| is_normal)?;
    let is_port = match port.as_bytes() {
        [] => true,
        [b':', digits @ ..] if digits.len() <= 5 => {
            let number = digits.iter().fold(0, |number, digit| number * 10 + u32::from(digit.wrapping_sub(b'0')));
            digits.iter().all(u8::is_ascii_digit) && u16::try_from(number).is_ok()
        }
        _ => false,
    };
    is_port.then_some(host)
}

fn literal<'h>(authority: &str, room: &'h mut HostRoom) -> Result<&'h str, Malformed> {
    let (address, rest) = authority.get(1..).and_then(|rest| rest.split_once(']')).ok_or(Malformed::Authority)?;
    if !rest.is_empty() && !rest.strip_prefix(':').is_some_and(is_port) {
        return Err(Malformed::Authority);
    }
    let address: Ipv6Addr = address.parse().map_err(|_| Malformed::Authority)?;
    let mut free = room.0.as_mut_slice();
    write!(free, "[{address}]").map_err(|_| Malformed::Authority)?;
    let left = free.len();
    let written = room.0.get(..MAX_HOST - left).ok_or(Malformed::Authority)?;
    std::str::from_utf8(written).map_err(|_| Malformed::Authority)
}

/// Digits, perhaps none (RFC 3986, 3.2.3), at most 65535.
fn is_port(port: &str) -> bool {
    port.bytes().all(|byte| byte.is_ascii_digit()) && (port.is_empty() || port.parse::<u16>().is_ok())
}

enum Spelling {
    Normal,
    Upper,
}

fn spelling(host: &[u8]) -> Result<Spelling, Malformed> {
    let mut upper = false;
    let mut previous = b'.';
    for byte in host {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'~' => {}
            b'A'..=b'Z' => upper = true,
            b'.' if previous != b'.' => {}
            _ => return Err(Malformed::Authority),
        }
        previous = *byte;
    }
    match (previous, upper) {
        // Empty, or with an empty last label.
        (b'.', _) => Err(Malformed::Authority),
        _ if host.len() > MAX_HOST => Err(Malformed::Authority),
        (_, true) => Ok(Spelling::Upper),
        (_, false) => Ok(Spelling::Normal),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelt(authority: &str) -> Result<Option<String>, Malformed> {
        let mut room = HostRoom::new();
        normalise(Some(authority), &mut room).map(|host| host.map(str::to_owned))
    }

    #[test]
    fn brings_every_spelling_to_one() {
        let longest = format!("{}.example", "a".repeat(247));
        for (authority, host) in [
            ("api.example.com", "api.example.com"),
            ("API.Example.COM", "api.example.com"),
            ("api.example.com.", "api.example.com"),
            ("Api.example.com.:8080", "api.example.com"),
            ("localhost:", "localhost"),
            ("localhost:65535", "localhost"),
            ("localhost:00080", "localhost"),
            ("localhost:0000080", "localhost"),
            ("a_b-c~1", "a_b-c~1"),
            ("127.0.0.1:80", "127.0.0.1"),
            ("[::1]", "[::1]"),
            ("[2001:DB8:0:0::1]:443", "[2001:db8::1]"),
            (&longest, &longest),
            (&longest.to_uppercase(), &longest),
        ] {
            assert_eq!(spelt(authority), Ok(Some(host.to_owned())), "{authority}");
        }
    }

    #[test]
    fn no_host_is_no_host() {
        let mut room = HostRoom::new();
        assert_eq!(normalise(None, &mut room), Ok(None));
        assert_eq!(spelt(""), Ok(None));
    }

    #[test]
    fn refuses_what_is_no_authority() {
        let too_long = "a".repeat(256);
        for authority in [
            ":80",
            ".",
            "..",
            "a..",
            ".a",
            "a..b",
            "a:b",
            "a:65536",
            "a:+1",
            "a:+80",
            "a:a99",
            "a:99999",
            "a:999999",
            "a:1:2",
            "::1",
            "[::1",
            "[::1]x",
            "[::1]:x",
            "[::1%25eth0]",
            "[v1.a]",
            "[]",
            "user@a",
            "a/b",
            "a b",
            "a,b",
            "a%2eb",
            "\u{e9}.example",
            "a\0",
            "?",
            " a",
            &too_long,
            &too_long.to_uppercase(),
        ] {
            assert_eq!(spelt(authority), Err(Malformed::Authority), "{authority:?}");
        }
    }
}
