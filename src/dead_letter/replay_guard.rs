//! The token of a replay, `X-Sluicegate-Replay: N;TOKEN`: how a gateway knows the requests that its own dead letters are sent
//! again by.
//!
//! The token vouches for the client of the record: the gateway takes it for the client, so that limits count whom they would
//! have counted; and it leaves no second record, so that a replay that is refused does not feed the next one. N is the number
//! of the try.
//!
//! Form: base64url without padding of 8 bytes of time (milliseconds since 1970), 16 bytes of the client's address (IPv6, or IPv4
//! mapped into it) and an HMAC-SHA-256 over N, time, client, method, host and target, under a key that is made of the redaction
//! secret of the log. It holds for that very request, for [`VALID`] before and after its time: whoever sees it on a server can
//! ask for the same once more, as the same client, and for nothing else.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use base64ct::{Base64UrlUnpadded, Encoding as _};
use hmac::{Hmac, Mac as _};
use sha2::Sha256;

use crate::redact::Redactor;
use crate::time::{Span, Tick};

/// The name of the field, in lower case.
pub const REPLAY_FIELD: &str = "x-sluicegate-replay";

/// How far from its time a token holds.
const VALID: Span = Span::from_secs(5 * 60);
const TIME_BYTES: usize = 8;
const CLIENT_BYTES: usize = 16;
const TAG_BYTES: usize = 32;
const TOKEN_BYTES: usize = TIME_BYTES + CLIENT_BYTES + TAG_BYTES;
/// Bytes of a field's value: the number, `;`, the token.
const MAX_VALUE: usize = 10 + 1 + TOKEN_BYTES.div_ceil(3) * 4;

/// The part of a request that a token holds for.
#[derive(Clone, Copy, Debug)]
pub struct Replayed<'r> {
    /// Its method.
    pub method: &'r [u8],
    /// Its host, as it is sent.
    pub host: &'r [u8],
    /// Its path and query, as they are sent.
    pub target: &'r [u8],
}

/// Makes tokens and looks at them, under one secret.
#[derive(Clone)]
pub struct ReplayGuard {
    mac: Hmac<Sha256>,
}

impl fmt::Debug for ReplayGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReplayGuard")
    }
}

impl ReplayGuard {
    /// Under the secret of a redactor.
    pub fn new(redactor: &Redactor) -> Self {
        Self { mac: redactor.mac_of(b"sluicegate replay guard 1\0") }
    }

    /// The field's value for a try of a record of this client.
    pub fn sign(&self, number: u32, client: IpAddr, request: &Replayed<'_>, now: Tick) -> String {
        let time = (now.as_nanos() / 1_000_000).to_be_bytes();
        let client = wide(client);
        let tag = self.tag(number, time, &client, request).finalize().into_bytes();
        let token = [&time[..], &client, &tag].concat();
        format!("{number};{}", Base64UrlUnpadded::encode_string(&token))
    }

    /// The client that a field's value vouches for; `None`: it is not valid for this request at this time.
    pub fn client(&self, value: &[u8], request: &Replayed<'_>, now: Tick) -> Option<IpAddr> {
        let text = std::str::from_utf8(value).ok().filter(|text| text.len() <= MAX_VALUE)?;
        let (number, token) = text.split_once(';')?;
        let number: u32 = number.parse().ok()?;
        let mut bytes = [0; TOKEN_BYTES];
        let token = Base64UrlUnpadded::decode(token, &mut bytes).ok()?;
        let (time, rest) = token.split_first_chunk::<TIME_BYTES>()?;
        let (client, tag) = rest.split_first_chunk::<CLIENT_BYTES>()?;
        self.tag(number, *time, client, request).verify_slice(tag).ok()?;
        let at = Tick::from_nanos(u64::from_be_bytes(*time).saturating_mul(1_000_000));
        let is_timely = now.since(at) <= VALID && at.since(now) <= VALID;
        is_timely.then(|| Ipv6Addr::from(*client).to_canonical())
    }

    fn tag(
        &self,
        number: u32,
        time: [u8; TIME_BYTES],
        client: &[u8; CLIENT_BYTES],
        request: &Replayed<'_>,
    ) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        mac.update(&number.to_be_bytes());
        mac.update(&time);
        mac.update(client);
        for part in [request.method, request.host, request.target] {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        mac
    }
}

fn wide(client: IpAddr) -> [u8; CLIENT_BYTES] {
    match client {
        IpAddr::V4(client) => client.to_ipv6_mapped().octets(),
        IpAddr::V6(client) => client.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redact::{RedactRules, Secret};

    const NOW: Tick = Tick::from_nanos(1_767_323_045_678_901_234);
    const REQUEST: Replayed<'static> = Replayed { method: b"POST", host: b"a.example", target: b"/x?y=1" };

    fn guard(secret: u8) -> ReplayGuard {
        ReplayGuard::new(&Redactor::with_secret(&Secret::of(&[secret; 32]), &RedactRules::default()))
    }

    #[test]
    fn a_token_vouches_for_the_client_of_that_very_request() {
        for client in ["192.0.2.7", "2001:db8::7"] {
            let client: IpAddr = client.parse().unwrap();
            let value = guard(1).sign(3, client, &REQUEST, NOW);
            assert!(value.starts_with("3;") && value.len() <= MAX_VALUE, "{value}");
            assert_eq!(guard(1).client(value.as_bytes(), &REQUEST, NOW), Some(client));
            assert_eq!(guard(2).client(value.as_bytes(), &REQUEST, NOW), None, "another secret");
            for other in [
                Replayed { method: b"PUT", ..REQUEST },
                Replayed { host: b"b.example", ..REQUEST },
                Replayed { target: b"/x?y=2", ..REQUEST },
                // Lengths are part of it.
                Replayed { host: b"a.example/", target: b"x?y=1", ..REQUEST },
            ] {
                assert_eq!(guard(1).client(value.as_bytes(), &other, NOW), None, "{other:?}");
            }
        }
    }

    #[test]
    fn a_token_holds_for_five_minutes() {
        let client = IpAddr::from([192, 0, 2, 7]);
        let value = guard(1).sign(1, client, &REQUEST, NOW);
        let at = |now: Tick| guard(1).client(value.as_bytes(), &REQUEST, now);
        let near = Span::from_secs(299);
        let far = Span::from_secs(301);
        assert_eq!([at(NOW + near), at(NOW - near)], [Some(client); 2]);
        assert_eq!([at(NOW + far), at(NOW - far)], [None; 2]);
    }

    #[test]
    fn any_change_of_a_token_is_noticed() {
        let value = guard(1).sign(1, IpAddr::from([192, 0, 2, 7]), &REQUEST, NOW);
        for at in 0..value.len() {
            let mut bytes = value.clone().into_bytes();
            bytes[at] = if bytes[at] == b'2' { b'3' } else { b'2' };
            assert_eq!(guard(1).client(&bytes, &REQUEST, NOW), None, "{at}");
            assert_eq!(guard(1).client(&value.as_bytes()[..at], &REQUEST, NOW), None, "{at}");
        }
        for garbage in [&b""[..], b";", b"1;", b"x;AAAA", b"\xff", &[b'1'; 1_000]] {
            assert_eq!(guard(1).client(garbage, &REQUEST, NOW), None);
        }
    }
}
