//! The token of a replay, `X-Sluicegate-Replay: N;TOKEN`: how a gateway knows the requests that its own dead letters are sent
//! again by.
//!
//! The token vouches for the client of the record: the gateway takes it for the client, so that limits count whom they would
//! have counted; and it leaves no second record, so that a replay that is refused does not feed the next one. It also says
//! whether a trusted proxy had sent the request, whose fields are believed then, and whether it came over TLS. N is the number
//! of the try.
//!
//! Form: base64url without padding of 8 bytes of time (milliseconds since 1970), 8 random bytes, by which two requests that are
//! alike have tokens of their own, a byte of flags, 16 bytes of the client's address (IPv6, or IPv4 mapped into it) and an
//! HMAC-SHA-256 over N, time, random bytes, flags, client, method, host and target, under a key
//! that is made of the redaction secret of the log. It holds once, for [`VALID`] before and after its time: a server that it is
//! passed on to can do nothing with it. Gateways that share the secret do not share the memory of used tokens.

use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use base64ct::{Base64UrlUnpadded, Encoding as _};
use hmac::{Hmac, Mac as _};
use sha2::Sha256;

use sluicegate_redact::Redactor;
use sluicegate_time::{Span, Tick, Wall};

/// The name of the field, in lower case.
pub const REPLAY_FIELD: &str = "x-sluicegate-replay";

/// How far from its time a token holds.
const VALID: Span = Span::from_secs(10);
/// Used tokens that are remembered, of the last [`VALID`] twice over; beyond, none is valid.
const MAX_USED: usize = 1 << 20;
const IS_PROXIED: u8 = 1;
const IS_HTTPS: u8 = 2;
const TIME_BYTES: usize = 8;
const RANDOM_BYTES: usize = 8;
const CLIENT_BYTES: usize = 16;
const TAG_BYTES: usize = 32;
const TOKEN_BYTES: usize = TIME_BYTES + RANDOM_BYTES + 1 + CLIENT_BYTES + TAG_BYTES;
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

/// The facts that a token vouches for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayOrigin {
    /// The client of the record.
    pub client: IpAddr,
    /// Whether a trusted proxy had sent the request.
    pub trusted_peer: bool,
    /// Whether it came over TLS.
    pub is_https: bool,
}

impl ReplayOrigin {
    fn flags(self) -> u8 {
        u8::from(self.trusted_peer) * IS_PROXIED + u8::from(self.is_https) * IS_HTTPS
    }
}

/// Tokens that were used.
#[derive(Debug, Default)]
pub struct UsedTokens(Mutex<Used>);

#[derive(Debug, Default)]
struct Used {
    /// Of which span of twice [`VALID`] the first set is; the second is of the one before.
    span: u64,
    sets: [HashSet<u64>; 2],
}

impl UsedTokens {
    /// Whether a token with this tag is used for the first time.
    fn is_first(&self, tag: &[u8; TAG_BYTES], now: Tick) -> bool {
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let span = now.as_nanos() / (2 * VALID.as_nanos());
        if span != used.span {
            let is_next = span == used.span + 1;
            let [first, second] = &mut used.sets;
            std::mem::swap(first, second);
            first.clear();
            if !is_next {
                second.clear();
            }
            used.span = span;
        }
        let (print, _) = tag.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
        let print = u64::from_be_bytes(*print);
        let [first, second] = &mut used.sets;
        !second.contains(&print) && first.len() < MAX_USED && first.insert(print)
    }
}

/// Makes tokens and looks at them, under one secret.
#[derive(Clone)]
pub struct ReplayGuard {
    mac: Hmac<Sha256>,
    used: Arc<UsedTokens>,
}

impl fmt::Debug for ReplayGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReplayGuard")
    }
}

impl ReplayGuard {
    /// Under the secret of a redactor.
    pub fn new(redactor: &Redactor, used: Arc<UsedTokens>) -> Self {
        Self { mac: redactor.mac_of(b"sluicegate replay guard 1\0"), used }
    }

    /// The field's value for a try of a record of this client.
    pub fn sign(&self, number: u32, origin: ReplayOrigin, request: &Replayed<'_>, now: Wall) -> String {
        let mut stamp = [0; TIME_BYTES + RANDOM_BYTES];
        let (time, random) = stamp.split_at_mut(TIME_BYTES);
        time.copy_from_slice(&(now.as_nanos() / 1_000_000).to_be_bytes());
        // The library has always had them. Without, the second of two requests alike in a millisecond would have to come again.
        let _ = aws_lc_rs::rand::fill(random);
        let (flags, client) = (origin.flags(), wide(origin.client));
        let tag = self.tag(number, &stamp, flags, &client, request).finalize().into_bytes();
        let token = [&stamp[..], &[flags], &client, &tag].concat();
        format!("{number};{}", Base64UrlUnpadded::encode_string(&token))
    }

    /// The origin that a field's value vouches for; `None`: it is not valid for this request at this time, or was used. Used
    /// tokens are remembered by ticks, since a wall clock that is set back must not forget them.
    pub fn origin(&self, value: &[u8], request: &Replayed<'_>, (wall, now): (Wall, Tick)) -> Option<ReplayOrigin> {
        let text = std::str::from_utf8(value).ok().filter(|text| text.len() <= MAX_VALUE)?;
        let (number, token) = text.split_once(';')?;
        let number: u32 = number.parse().ok()?;
        let mut bytes = [0; TOKEN_BYTES];
        let token = Base64UrlUnpadded::decode(token, &mut bytes).ok()?;
        let (stamp, rest) = token.split_first_chunk::<{ TIME_BYTES + RANDOM_BYTES }>()?;
        let (time, _) = stamp.split_first_chunk::<TIME_BYTES>()?;
        let ([flags], rest) = rest.split_first_chunk::<1>()?;
        let (client, tag) = rest.split_first_chunk::<CLIENT_BYTES>()?;
        self.tag(number, stamp, *flags, client, request).verify_slice(tag).ok()?;
        let at = Wall::from_nanos(u64::from_be_bytes(*time).saturating_mul(1_000_000));
        let is_timely = wall.since(at) <= VALID && at.since(wall) <= VALID;
        if !is_timely || !self.used.is_first(tag.first_chunk()?, now) {
            return None;
        }
        let client = Ipv6Addr::from(*client).to_canonical();
        Some(ReplayOrigin { client, trusted_peer: flags & IS_PROXIED != 0, is_https: flags & IS_HTTPS != 0 })
    }

    fn tag(
        &self,
        number: u32,
        stamp: &[u8; TIME_BYTES + RANDOM_BYTES],
        flags: u8,
        client: &[u8; CLIENT_BYTES],
        request: &Replayed<'_>,
    ) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        mac.update(&number.to_be_bytes());
        mac.update(stamp);
        mac.update(&[flags]);
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
    use sluicegate_redact::{RedactRules, Secret};

    const NOW: Wall = Wall::from_nanos(1_767_323_045_678_901_234);
    const REQUEST: Replayed<'static> = Replayed { method: b"POST", host: b"a.example", target: b"/x?y=1" };

    fn guard(secret: u8) -> ReplayGuard {
        let redactor = Redactor::with_secret(&Secret::of(&[secret; 32]), &RedactRules::default());
        ReplayGuard::new(&redactor, Arc::default())
    }

    /// Both clocks show the same.
    fn both(now: Wall) -> (Wall, Tick) {
        (now, Tick::from_nanos(now.as_nanos()))
    }

    fn origin(client: &str) -> ReplayOrigin {
        ReplayOrigin { client: client.parse().unwrap(), trusted_peer: false, is_https: false }
    }

    #[test]
    fn a_token_vouches_for_the_origin_of_that_very_request() {
        for client in ["192.0.2.7", "2001:db8::7"] {
            for (trusted_peer, is_https) in [(false, false), (true, false), (false, true), (true, true)] {
                let origin = ReplayOrigin { trusted_peer, is_https, ..origin(client) };
                let value = guard(1).sign(3, origin, &REQUEST, NOW);
                assert!(value.starts_with("3;") && value.len() <= MAX_VALUE, "{value}");
                assert_eq!(guard(1).origin(value.as_bytes(), &REQUEST, both(NOW)), Some(origin));
                assert_eq!(guard(2).origin(value.as_bytes(), &REQUEST, both(NOW)), None, "another secret");
                for other in [
                    Replayed { method: b"PUT", ..REQUEST },
                    Replayed { host: b"b.example", ..REQUEST },
                    Replayed { target: b"/x?y=2", ..REQUEST },
                    // Lengths are part of it.
                    Replayed { host: b"a.example/", target: b"x?y=1", ..REQUEST },
                ] {
                    assert_eq!(guard(1).origin(value.as_bytes(), &other, both(NOW)), None, "{other:?}");
                }
            }
        }
    }

    #[test]
    fn a_token_holds_once() {
        let guard = guard(1);
        let value = guard.sign(1, origin("192.0.2.7"), &REQUEST, NOW);
        let again = guard.clone();
        assert!(guard.origin(value.as_bytes(), &REQUEST, both(NOW)).is_some());
        for later in [0, 1, 5, 9] {
            let now = NOW + Span::from_secs(later);
            assert_eq!(again.origin(value.as_bytes(), &REQUEST, both(now)), None, "{later} s later");
        }
        // Another try, or another request that is the same but for its body.
        let alike = guard.sign(1, origin("192.0.2.7"), &REQUEST, NOW);
        assert!(guard.origin(alike.as_bytes(), &REQUEST, both(NOW)).is_some());
        let next = guard.sign(2, origin("192.0.2.7"), &REQUEST, NOW);
        assert!(guard.origin(next.as_bytes(), &REQUEST, both(NOW)).is_some());
    }

    #[test]
    fn a_token_holds_for_ten_seconds_and_is_remembered_for_longer() {
        let origin = origin("192.0.2.7");
        let value = guard(1).sign(1, origin, &REQUEST, NOW);
        let at = |now: Wall| guard(1).origin(value.as_bytes(), &REQUEST, both(now));
        let (near, far) = (Span::from_millis(9_900), Span::from_millis(10_100));
        assert_eq!([at(NOW + near), at(NOW - near)], [Some(origin); 2]);
        assert_eq!([at(NOW + far), at(NOW - far)], [None; 2]);
        // Used at its earliest, it is known still at its latest, wherever the spans end.
        for offset in 0..40 {
            let now = NOW + Span::from_millis(offset * 500);
            let guard = guard(1);
            let value = guard.sign(1, origin, &REQUEST, now);
            assert!(guard.origin(value.as_bytes(), &REQUEST, both(now - near)).is_some());
            assert_eq!(guard.origin(value.as_bytes(), &REQUEST, both(now + near)), None, "{offset}");
        }
    }

    #[test]
    fn a_wall_clock_that_is_set_back_forgets_no_token() {
        let (guard, tick) = (guard(1), Tick::from_nanos(NOW.as_nanos()));
        let value = guard.sign(1, origin("192.0.2.7"), &REQUEST, NOW);
        assert!(guard.origin(value.as_bytes(), &REQUEST, (NOW, tick)).is_some());
        for back in 0..10 {
            let (wall, now) = (NOW - Span::from_secs(back), tick + Span::from_millis(back));
            assert_eq!(guard.origin(value.as_bytes(), &REQUEST, (wall, now)), None, "{back}");
        }
    }

    #[test]
    fn any_change_of_a_token_is_noticed() {
        let value = guard(1).sign(1, origin("192.0.2.7"), &REQUEST, NOW);
        for at in 0..value.len() {
            let mut bytes = value.clone().into_bytes();
            bytes[at] = if bytes[at] == b'2' { b'3' } else { b'2' };
            assert_eq!(guard(1).origin(&bytes, &REQUEST, both(NOW)), None, "{at}");
            assert_eq!(guard(1).origin(&value.as_bytes()[..at], &REQUEST, both(NOW)), None, "{at}");
        }
        for garbage in [&b""[..], b";", b"1;", b"x;AAAA", b"\xff", &[b'1'; 1_000]] {
            assert_eq!(guard(1).origin(garbage, &REQUEST, both(NOW)), None);
        }
    }
}
