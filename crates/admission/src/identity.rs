//! The key of one request: as a fingerprint for the limiter, as a stable hash for stickiness, in words for the
//! dead-letter log. All three read the same bytes.

use super::body::{BodyField, BodyValue};
use super::client::ClientIp;
use super::descriptor;
use super::key::{KeyExpr, KeyPart, KeySource};
use super::path::without_escaped_delims;
use super::spelling::{Missing, basic_user, cookie_values, credentials, loose, query_values};
use super::view::RequestView;
use sluicegate_balance::stable_hash;
use sluicegate_limiter::{Fingerprint, KeyBuilder, KeyHasher};

/// Decoded bytes that are handed on together; a longer value is several pieces.
const PIECE: usize = 128;
/// Fields that are read as credentials.
const CREDENTIALS: [&str; 2] = ["authorization", "proxy-authorization"];
/// Marks a piece that more of the same value follows.
const MORE: u8 = 0x80;
/// The client's address in place of a missing key: never the same as `client-ip`, nor as any value.
const IN_PLACE: u8 = 0x40;

/// The sources of a request's keys.
pub(super) struct KeyFacts<'r, V: ?Sized> {
    pub(super) view: &'r V,
    pub(super) client: &'r ClientIp,
    pub(super) host: Option<&'r str>,
    pub(super) path: &'r str,
    pub(super) route: &'r str,
}

impl KeyExpr {
    /// The fingerprint that the limiter counts by.
    pub(super) fn fingerprint<V: RequestView + ?Sized>(
        &self,
        facts: &KeyFacts<'_, V>,
        hasher: &KeyHasher,
    ) -> Result<Fingerprint, Missing> {
        let mut key = hasher.start();
        for part in self.parts() {
            part.read(facts, &mut key)?;
        }
        Ok(key.finish())
    }

    /// A hash that is equal in every process and version; of the client's address where the request lacks a part.
    pub(super) fn sticky_hash<V: RequestView + ?Sized>(&self, facts: &KeyFacts<'_, V>) -> u64 {
        let mut hash = StableHash(0);
        for part in self.parts() {
            if part.read(facts, &mut hash).is_err() {
                hash = StableHash(0);
                hash.part(KeySource::ClientIp.tag(), &facts.client.key());
                break;
            }
        }
        hash.0
    }

    /// Each part in words.
    pub(super) fn describe<V: RequestView + ?Sized>(&self, facts: &KeyFacts<'_, V>) -> Result<Vec<KeyPart>, Missing> {
        let describe = |part: &KeySource| {
            let mut text = Text(Vec::new());
            part.read(facts, &mut text)?;
            let value = match part {
                part if part.is_client(facts.client) => facts.client.key_text(),
                _ => String::from_utf8_lossy(&text.0).into_owned(),
            };
            Ok(KeyPart { source: part.to_string(), value })
        };
        self.parts().iter().map(describe).collect()
    }
}

/// Whether some server cuts it off around a value.
pub(super) fn is_blank(character: char) -> bool {
    character.is_whitespace() || character.is_control() || character == '\u{feff}'
}

/// The fingerprint of a client that lacks the key.
pub(super) fn fingerprint_in_place(client: &ClientIp, hasher: &KeyHasher) -> Fingerprint {
    let mut key = hasher.start();
    key.part(IN_PLACE, &client.key());
    key.finish()
}

/// The same in words.
pub(super) fn describe_in_place(client: &ClientIp) -> KeyPart {
    KeyPart { source: KeySource::ClientIp.to_string(), value: client.key_text() }
}

/// Whether the field of that name, in lower case, holds credentials.
pub(super) fn is_credentials(name: &str) -> bool {
    CREDENTIALS.contains(&name)
}

impl KeySource {
    /// Numbers of sources. The stable hash depends on them: they never change.
    pub(super) const fn tag(&self) -> u8 {
        match self {
            Self::ClientIp => 1,
            Self::Header(_) => 2,
            Self::Cookie(_) => 3,
            Self::Query(_) => 4,
            Self::Host => 5,
            Self::Method => 6,
            Self::Path => 7,
            Self::Route => 8,
            Self::BasicUser => 9,
            Self::Global => 10,
            Self::TlsSubject => 11,
            Self::TlsFingerprint => 12,
            Self::Body(BodyField::Json(_)) => 15,
            Self::Body(BodyField::Form(_)) => 16,
            Self::Jwt(claim) if claim.is_verified() => 17,
            Self::Jwt(_) => 18,
            Self::Descriptor(_) => 19,
        }
    }

    /// Whether its value is the address of this client.
    fn is_client(&self, client: &ClientIp) -> bool {
        match self {
            Self::ClientIp => true,
            Self::Descriptor(name) => &**name == descriptor::REMOTE_ADDRESS && !client.addr().is_unspecified(),
            _ => false,
        }
    }

    fn read<V: RequestView + ?Sized>(&self, facts: &KeyFacts<'_, V>, sink: &mut impl KeySink) -> Result<(), Missing> {
        let tag = self.tag();
        let found = match self {
            Self::ClientIp => sink.whole(tag, &facts.client.key()),
            Self::Header(name) if is_credentials(name) => {
                let field = sole_line(facts.view, name, |one, other| credentials(one).eq(credentials(other)))?;
                sink.pieces(tag, credentials(field))
            }
            Self::Header(name) => sink.whole(tag, sole_line(facts.view, name, <[u8]>::eq)?),
            Self::Cookie(name) => sink.pieces(tag, loose(sole_cookie(facts.view, name)?)),
            Self::Query(name) => {
                let mut values = query_values(facts.view.query().unwrap_or_default(), name);
                let value = values.next().unwrap_or_default();
                if !values.all(|other| loose(other).eq(loose(value))) {
                    return Err(Missing::Unusable);
                }
                sink.pieces(tag, loose(value))
            }
            Self::Host => sink.whole(tag, facts.host.unwrap_or_default().as_bytes()),
            Self::Method => sink.whole(tag, facts.view.method().as_bytes()),
            Self::Path => sink.whole(tag, without_escaped_delims(facts.path).as_bytes()),
            Self::Route => sink.whole(tag, facts.route.as_bytes()),
            Self::BasicUser => {
                let same = |one: &[u8], other: &[u8]| credentials(one).eq(credentials(other));
                sink.pieces(tag, basic_user(sole_line(facts.view, "authorization", same)?)?)
            }
            Self::TlsSubject => sink.whole(tag, facts.view.tls_subject().unwrap_or_default().as_bytes()),
            Self::TlsFingerprint => sink.whole(tag, facts.view.tls_fingerprint().unwrap_or_default().as_bytes()),
            Self::Body(field) => match facts.view.body().map(|body| body.value(field)) {
                Some(BodyValue::Text(text)) => sink.whole(tag, text.trim_matches(is_blank).as_bytes()),
                // A number has several spellings but for whole ones.
                Some(BodyValue::Number(number)) => sink.whole(tag, number.plain().ok_or(Missing::Unusable)?.as_bytes()),
                Some(BodyValue::Unusable) => return Err(Missing::Unusable),
                Some(BodyValue::Absent) | None => false,
            },
            Self::Jwt(claim) => {
                let mut found = false;
                facts
                    .view
                    .jwt_claim(claim, facts.client.number(), &mut |value| found = sink.whole(tag, value.as_bytes()))?;
                found
            }
            Self::Descriptor(_) if self.is_client(facts.client) => sink.whole(tag, &facts.client.key()),
            Self::Descriptor(name) => {
                // An empty value is one: Envoy names a field that is there and empty.
                let value = descriptor::entry(facts.view.query().unwrap_or_default(), name);
                value.is_some_and(|value| {
                    sink.pieces(tag, value);
                    true
                })
            }
            Self::Global => {
                sink.part(tag, &[]);
                true
            }
        };
        if found { Ok(()) } else { Err(Missing::Absent) }
    }
}

/// The value of the field lines of that name, which must all be the same; empty if there is none.
fn sole_line<'v, V: RequestView + ?Sized>(
    view: &'v V,
    name: &str,
    same: impl Fn(&[u8], &[u8]) -> bool,
) -> Result<&'v [u8], Missing> {
    view.sole_header(name, &same).ok_or(Missing::Unusable)
}

/// The value of the cookies of that name, which must all be the same; empty if there is none.
fn sole_cookie<'v, V: RequestView + ?Sized>(view: &'v V, name: &str) -> Result<&'v [u8], Missing> {
    let mut first = None;
    let mut is_sole = true;
    view.for_each_header("cookie", &mut |line| {
        for value in cookie_values(line, name) {
            match (first, value) {
                (None, Ok(value)) => first = Some(value),
                (Some(first), Ok(value)) => is_sole &= loose(value).eq(loose(first)),
                (_, Err(_)) => is_sole = false,
            }
        }
    });
    if is_sole { Ok(first.unwrap_or_default()) } else { Err(Missing::Unusable) }
}

/// A receiver of the bytes of a key.
pub(super) trait KeySink {
    fn part(&mut self, tag: u8, bytes: &[u8]);

    /// One value; whether it is not empty.
    fn whole(&mut self, tag: u8, bytes: &[u8]) -> bool {
        self.part(tag, bytes);
        !bytes.is_empty()
    }

    /// One value byte by byte, in constant memory; whether it is not empty. All pieces but the last are full and
    /// marked, so two values are equal exactly if their pieces are.
    fn pieces(&mut self, tag: u8, bytes: impl Iterator<Item = u8>) -> bool {
        let mut piece = [0; PIECE];
        let mut used = 0;
        for byte in bytes {
            if used == PIECE {
                self.part(tag | MORE, &piece);
                used = 0;
            }
            if let Some(place) = piece.get_mut(used) {
                *place = byte;
            }
            used += 1;
        }
        self.part(tag, piece.get(..used).unwrap_or_default());
        used > 0
    }
}

impl KeySink for KeyBuilder {
    fn part(&mut self, tag: u8, bytes: &[u8]) {
        KeyBuilder::part(self, tag, bytes);
    }
}

/// Each part is hashed together with the hash of those before it.
struct StableHash(u64);

impl KeySink for StableHash {
    fn part(&mut self, tag: u8, bytes: &[u8]) {
        self.0 = stable_hash([self.0.to_le_bytes().as_slice(), &[tag], bytes]);
    }
}

struct Text(Vec<u8>);

impl KeySink for Text {
    fn part(&mut self, _tag: u8, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;
    use crate::client::{AddressHeader, ClientRules, Clients};
    use crate::view::PlainRequest;

    fn client(addr: &str) -> ClientIp {
        let rules =
            ClientRules { trusted_proxies: Vec::new(), address_header: AddressHeader::XForwardedFor, ipv6_prefix: 64 };
        let peer: IpAddr = addr.parse().unwrap();
        Clients::new(rules).identify(&PlainRequest::new("GET", "/"), peer).client
    }

    fn with_facts<T>(view: &PlainRequest, read: impl FnOnce(&KeyFacts<'_, PlainRequest>) -> T) -> T {
        let client = client("192.0.2.1");
        read(&KeyFacts { view, client: &client, host: view.authority(), path: view.path(), route: "r" })
    }

    fn print_of(key: &[&str], view: &PlainRequest) -> Result<Fingerprint, Missing> {
        let key = KeyExpr::parse(key).unwrap();
        with_facts(view, |facts| key.fingerprint(facts, &KeyHasher::fixed()))
    }

    fn words_of(key: &[&str], view: &PlainRequest) -> Result<Vec<(String, String)>, Missing> {
        let key = KeyExpr::parse(key).unwrap();
        let words = with_facts(view, |facts| key.describe(facts))?;
        Ok(words.into_iter().map(|part| (part.source, part.value)).collect())
    }

    fn full() -> PlainRequest {
        PlainRequest::new("PUT", "/p?q=v%201&r=2")
            .host("h.example")
            .with("x-k", "  one ")
            .with("cookie", "a=1; s=%62")
            .with("cookie", "t=2")
            .with("authorization", "Basic dTpw")
            .certificate("CN=billing", "00ff")
            .claim("jwt:sub", "ada")
            .claim("jwt-unverified:sub", "eve")
    }

    #[test]
    fn each_source_is_read() {
        for (source, value) in [
            ("client-ip", "192.0.2.1"),
            ("header:x-k", "one"),
            ("cookie:s", "b"),
            ("query:q", "v 1"),
            ("query:r", "2"),
            ("host", "h.example"),
            ("method", "PUT"),
            ("path", "/p"),
            ("route", "r"),
            ("basic:user", "u"),
            ("tls:subject", "CN=billing"),
            ("tls:fingerprint", "00ff"),
            ("jwt:sub", "ada"),
            ("jwt-unverified:sub", "eve"),
            ("global", ""),
        ] {
            assert_eq!(words_of(&[source], &full()), Ok(vec![(source.to_owned(), value.to_owned())]));
        }
        let prints: Vec<_> = [
            "client-ip",
            "header:x-k",
            "cookie:s",
            "query:q",
            "host",
            "method",
            "path",
            "route",
            "tls:subject",
            "tls:fingerprint",
        ]
        .iter()
        .map(|source| print_of(&[source], &full()).unwrap())
        .collect();
        assert!((1..prints.len()).all(|at| !prints[..at].contains(&prints[at])));
    }

    #[test]
    fn what_is_empty_or_absent_is_missing() {
        let bare = PlainRequest::new("GET", "/");
        let empty = PlainRequest::new("GET", "/?q=&x=1")
            .host("")
            .with("x-k", "  ")
            .with("cookie", "s=\"\"; t=1")
            .with("authorization", "");
        let other = PlainRequest::new("GET", "/?Q=1").with("cookie", "S=1").with("authorization", "Bearer YTpi");
        for source in
            ["header:x-k", "cookie:s", "query:q", "host", "basic:user", "tls:subject", "tls:fingerprint", "jwt:sub"]
        {
            for request in [&bare, &empty, &other] {
                assert_eq!(print_of(&[source], request), Err(Missing::Absent), "{source}");
                assert_eq!(print_of(&["client-ip", source], request), Err(Missing::Absent), "{source}");
                assert_eq!(words_of(&[source], request), Err(Missing::Absent), "{source}");
            }
        }
        for source in ["client-ip", "method", "path", "route", "global"] {
            assert!(print_of(&[source], &bare).is_ok(), "{source}");
        }
    }

    #[test]
    fn several_parts_are_one_key() {
        let request = |a: &str, b: &str| PlainRequest::new("GET", "/").with("a", a).with("b", b);
        let print = |a, b| print_of(&["header:a", "header:b"], &request(a, b)).unwrap();
        assert_eq!(print("x", "y"), print("x", "y"));
        assert_ne!(print("x", "y"), print("y", "x"));
        assert_ne!(print("xy", "z"), print("x", "yz"));
        assert_ne!(print("x", "y"), print_of(&["header:a"], &request("x", "y")).unwrap());
    }

    #[test]
    fn several_values_that_differ_are_unusable() {
        let get = |target: &str| PlainRequest::new("GET", target);
        for (source, request) in [
            ("query:k", get("/?k=1&k=2")),
            ("query:k", get("/?k=1&x=0&%6b=2")),
            ("query:k", get("/?k=&k=2")),
            ("query:k", get("/?k=2&k")),
            ("query:k", get("/?k=1&k=1&k=2")),
            ("cookie:k", get("/").with("cookie", "k=1; k=2")),
            ("cookie:k", get("/").with("cookie", "k=1").with("cookie", "a=0; k=2")),
            ("cookie:k", get("/").with("cookie", "k=; k=2")),
            ("cookie:k", get("/").with("cookie", "k=1; k=2").with("cookie", "k=1")),
            ("header:k", get("/").with("k", "1").with("k", "2")),
            ("header:k", get("/").with("k", "").with("k", "2")),
            ("header:k", get("/").with("k", "1").with("k", "")),
            ("header:authorization", get("/").with("authorization", "Bearer a").with("authorization", "Bearer A")),
            ("basic:user", get("/").with("authorization", "Basic dTpw").with("authorization", "Basic djpw")),
            ("basic:user", get("/").with("authorization", "Bearer x").with("authorization", "Basic djpw")),
            ("basic:user", get("/").with("authorization", "Basic !")),
            ("basic:user", get("/").with("authorization", "Basic OnA=")),
        ] {
            assert_eq!(print_of(&[source], &request), Err(Missing::Unusable), "{source} {request:?}");
            assert_eq!(print_of(&["client-ip", source], &request), Err(Missing::Unusable), "{source} {request:?}");
            assert_eq!(words_of(&[source], &request), Err(Missing::Unusable), "{source} {request:?}");
        }
    }

    #[test]
    fn a_value_that_is_repeated_is_that_value() {
        let once = PlainRequest::new("GET", "/?k=a+b").with("k", "v").with("cookie", "k=a b");
        let once = once.with("authorization", "Basic dTpw");
        let twice = PlainRequest::new("GET", "/?k=a%20b&x=1&k=a+b").with("k", "v ").with("k", "v");
        let twice = twice.with("cookie", "k=a%20b; k=\"a+b\"").with("cookie", "x=1; k=a b");
        let twice = twice.with("authorization", "basic  dTpw").with("authorization", "Basic dTpw");
        for source in ["query:k", "cookie:k", "header:k", "basic:user", "header:authorization"] {
            assert!(print_of(&[source], &once).is_ok(), "{source}");
            assert_eq!(print_of(&[source], &once), print_of(&[source], &twice), "{source}");
        }
    }

    #[test]
    fn the_spelling_of_a_scheme_makes_no_new_key() {
        for source in ["authorization", "proxy-authorization"] {
            let print = |value: &str| {
                let request = PlainRequest::new("GET", "/").with(source, value);
                print_of(&[&format!("header:{source}")], &request).unwrap()
            };
            for spelling in ["bearer aB", "BEARER aB", "Bearer   aB", "Bearer\taB", " bEarer aB "] {
                assert_eq!(print(spelling), print("Bearer aB"), "{spelling}");
            }
            for other in ["Bearer ab", "Bearer", "BeareraB", "Basic aB", "aB"] {
                assert_ne!(print(other), print("Bearer aB"), "{other}");
            }
            assert_ne!(print("aB"), print("ab"), "without a scheme the case is the token's");
        }
    }

    #[test]
    fn every_byte_of_a_long_value_counts() {
        let long = "v".repeat(5_000);
        for source in ["header:k", "cookie:k", "query:k"] {
            let print = |value: &str| {
                let request = PlainRequest::new("GET", &format!("/?k={value}"));
                print_of(&[source], &request.with("k", value).with("cookie", format!("k={value}"))).unwrap()
            };
            assert_eq!(print(&long), print(&long));
            assert_ne!(print(&long), print(&format!("{long}w")), "{source}");
            assert_ne!(print(&format!("{long}v")), print(&format!("{long}w")), "{source}");
            for length in [PIECE - 1, PIECE, PIECE + 1, 2 * PIECE] {
                let value = "v".repeat(length);
                assert_ne!(print(&value), print(&format!("{value}v")), "{source} {length}");
                assert_ne!(print(&value), print(&format!("w{}", &value[1..])), "{source} {length}");
            }
        }
        let escaped = "%76".repeat(300);
        let (plain, escaped) = (format!("/?k={}", "v".repeat(300)), format!("/?k={escaped}"));
        assert_eq!(
            print_of(&["query:k"], &PlainRequest::new("GET", &plain)),
            print_of(&["query:k"], &PlainRequest::new("GET", &escaped))
        );
        let words = words_of(&["query:k"], &PlainRequest::new("GET", &escaped)).unwrap();
        assert_eq!(words, [("query:k".to_owned(), "v".repeat(300))]);
    }

    #[test]
    fn the_address_in_place_of_a_key_is_no_other_key() {
        let (one, two) = (client("192.0.2.1"), client("192.0.2.2"));
        let hasher = KeyHasher::fixed();
        let in_place = fingerprint_in_place(&one, &hasher);
        assert_eq!(in_place, fingerprint_in_place(&one, &hasher));
        assert_ne!(in_place, fingerprint_in_place(&two, &hasher));
        let as_value = PlainRequest::new("GET", "/").with("k", one.key());
        assert_ne!(Ok(in_place), print_of(&["client-ip"], &as_value));
        assert_ne!(Ok(in_place), print_of(&["header:k"], &as_value));
    }

    /// The parts that a sink gets, one by one.
    #[derive(Default, PartialEq, Eq, Debug)]
    struct Parts(Vec<(u8, Vec<u8>)>);

    impl KeySink for Parts {
        fn part(&mut self, tag: u8, bytes: &[u8]) {
            self.0.push((tag, bytes.to_vec()));
        }
    }

    /// Values of a key's parts, each with its tag: an even one is written whole, an odd one in pieces. Their lengths are about
    /// those of one and two pieces.
    fn values() -> impl Strategy<Value = Vec<(u8, Vec<u8>)>> {
        let value = (1..=12_u8, prop_oneof![0..3_usize, 126..131_usize, 254..259_usize], 0..2_u8)
            .prop_map(|(tag, length, letter)| (tag, vec![letter; length]));
        prop::collection::vec(value, 0..4)
    }

    fn parts_of(values: &[(u8, Vec<u8>)]) -> Parts {
        let mut parts = Parts::default();
        for (tag, value) in values {
            match tag % 2 {
                0 => parts.whole(*tag, value),
                _ => parts.pieces(*tag, value.iter().copied()),
            };
        }
        parts
    }

    proptest! {
        /// Different lists of parts are different bytes, see the limiter's own property.
        #[test]
        fn different_values_are_different_parts(one in values(), other in values(), address: [u8; 16]) {
            prop_assert_eq!(one == other, parts_of(&one) == parts_of(&other));
            // An address in place of the whole key is a part that no value is.
            prop_assert!(parts_of(&one).0.iter().all(|(tag, _)| *tag != IN_PLACE));
            prop_assert_ne!(parts_of(&one), Parts(vec![(IN_PLACE, address.to_vec())]));
        }
    }

    #[test]
    fn every_source_has_a_tag_of_its_own() {
        let sources = [
            "client-ip",
            "header:a",
            "cookie:a",
            "query:a",
            "host",
            "method",
            "path",
            "route",
            "basic:user",
            "global",
            "tls:subject",
            "tls:fingerprint",
        ];
        let tags = sources.map(|source| KeyExpr::parse(&[source]).unwrap().parts()[0].tag());
        assert_eq!(tags, std::array::from_fn(|at| at as u8 + 1));
        assert!(tags.iter().all(|tag| tag & (MORE | IN_PLACE) == 0));
    }

    #[test]
    fn the_sticky_hash_stays_the_same_from_version_to_version() {
        let hash_of = |key: &[&str], view: &PlainRequest| {
            with_facts(view, |facts| KeyExpr::parse(key).unwrap().sticky_hash(facts))
        };
        assert_eq!(hash_of(&["client-ip"], &full()), STICKY_CLIENT);
        assert_eq!(hash_of(&["cookie:s", "path"], &full()), STICKY_TWO);
        let bare = PlainRequest::new("GET", "/p");
        assert_eq!(hash_of(&["path", "cookie:s"], &bare), STICKY_CLIENT, "what lacks the key sticks by its address");
        assert_ne!(hash_of(&["path"], &bare), STICKY_CLIENT);
    }

    const STICKY_CLIENT: u64 = 12_780_656_892_514_979_546;
    const STICKY_TWO: u64 = 11_778_435_716_205_432_819;
}
