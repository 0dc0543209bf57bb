//! A request that is kept whole, the answer that it got, and how both are bytes.
//!
//! Form: 4 bytes of length, big end first, a head as JSON, the body as it came. Bytes of the head that need not be UTF-8 stand
//! as the characters of the same numbers (ISO 8859-1), so that nothing is replaced.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use http::Method;
use http::header::{HeaderName, HeaderValue};
use http::uri::{Authority, PathAndQuery};
use serde::{Deserialize, Serialize};

use sluicegate_time::Tick;

/// Bytes of a request beside its body that the bounds count.
const OVERHEAD: usize = 512;

/// A request to be sent later, all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deferral {
    /// The route that it matched.
    pub route: Arc<str>,
    /// The limit that refused it.
    pub limit: Arc<str>,
    /// Requests with the same one, and of the same client, go one after the other: the limit and its key.
    pub order: Vec<u8>,
    /// Its client.
    pub client: IpAddr,
    /// Whether a trusted proxy had sent it.
    pub trusted_peer: bool,
    /// Whether it came over TLS.
    pub is_https: bool,
    /// The id that the gateway knew it by.
    pub request_id: String,
    /// Its method.
    pub method: String,
    /// Its host, as the client named it; may be empty.
    pub host: Vec<u8>,
    /// Its path and query.
    pub target: Vec<u8>,
    /// Its fields.
    pub headers: Vec<(Vec<u8>, Vec<u8>)>,
    /// Its body.
    pub body: Vec<u8>,
    /// Before then its limit has no room.
    pub not_before: Tick,
    /// The idempotency key that it is sent under, if it has none itself.
    pub idempotency_key: String,
}

/// The answer that a deferred request got, as far as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptAnswer {
    /// Its status.
    pub status: u16,
    /// Its fields.
    pub headers: Vec<(Vec<u8>, Vec<u8>)>,
    /// Its body, or the beginning of it.
    pub body: Vec<u8>,
    /// Whether some of its body is missing.
    pub truncated: bool,
}

#[derive(Serialize, Deserialize)]
struct RequestHead {
    method: String,
    host: String,
    target: String,
    headers: Vec<(String, String)>,
    trusted_peer: bool,
    https: bool,
    request_id: String,
    idempotency_key: String,
}

#[derive(Serialize, Deserialize)]
struct AnswerHead {
    status: u16,
    headers: Vec<(String, String)>,
    truncated: bool,
}

impl Shown {
    /// As bytes, for what is sealed with them: nobody can put another client in the place of one.
    pub(super) fn bound(&self) -> Vec<u8> {
        let Self { route, limit, client, order } = self;
        format!("{route}\0{limit}\0{client}\0{order:016x}").into_bytes()
    }
}

/// The part of a request that its line shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) route: Arc<str>,
    pub(super) limit: Arc<str>,
    pub(super) client: IpAddr,
    pub(super) order: u64,
}

impl Deferral {
    /// About how many bytes it takes on the disk: the bounds count by it.
    pub fn bytes(&self) -> u64 {
        let headers: usize = self.headers.iter().map(|(name, value)| written(name) + written(value) + 8).sum();
        let own = written(&self.host) + written(&self.target) + headers + self.body.len();
        // Base64.
        (OVERHEAD + own + own / 3) as u64
    }

    /// The part of it that no library sends, if there is one: the gateway reads more than that.
    pub fn unfit(&self) -> Option<&'static str> {
        let fits_field = |(name, value): &(Vec<u8>, Vec<u8>)| {
            HeaderName::from_bytes(name).is_ok() && HeaderValue::from_bytes(value).is_ok()
        };
        if Method::from_bytes(self.method.as_bytes()).is_err() {
            Some("method")
        } else if self.target.first() != Some(&b'/') || PathAndQuery::try_from(&*self.target).is_err() {
            Some("path")
        } else if !self.host.is_empty() && Authority::try_from(&*self.host).is_err() {
            Some("host")
        } else if !self.headers.iter().all(fits_field) {
            Some("headers")
        } else {
            None
        }
    }

    /// The part that its line shows.
    pub(super) fn shown(&self, order: u64) -> Shown {
        Shown { route: Arc::clone(&self.route), limit: Arc::clone(&self.limit), client: self.client, order }
    }

    /// The part that is sealed.
    pub(super) fn sealed_part(&self) -> Vec<u8> {
        let head = RequestHead {
            method: self.method.clone(),
            host: wide(&self.host),
            target: wide(&self.target),
            headers: self.headers.iter().map(|(name, value)| (wide(name), wide(value))).collect(),
            trusted_peer: self.trusted_peer,
            https: self.is_https,
            request_id: self.request_id.clone(),
            idempotency_key: self.idempotency_key.clone(),
        };
        joined(&head, &self.body)
    }

    /// The request of what its line shows and what was sealed. Its `order` is another, and `not_before` is not kept.
    pub(super) fn of(shown: &Shown, bytes: &[u8]) -> Option<Self> {
        let (head, body) = parted::<RequestHead>(bytes)?;
        Some(Self {
            route: Arc::clone(&shown.route),
            limit: Arc::clone(&shown.limit),
            order: shown.order.to_be_bytes().to_vec(),
            client: shown.client,
            trusted_peer: head.trusted_peer,
            is_https: head.https,
            request_id: head.request_id,
            method: head.method,
            host: narrow(&head.host)?,
            target: narrow(&head.target)?,
            headers: narrow_all(&head.headers)?,
            body: body.to_vec(),
            not_before: Tick::ZERO,
            idempotency_key: head.idempotency_key,
        })
    }
}

impl KeptAnswer {
    /// The part that is sealed: all of it.
    pub(super) fn sealed_part(&self) -> Vec<u8> {
        let headers = self.headers.iter().map(|(name, value)| (wide(name), wide(value))).collect();
        joined(&AnswerHead { status: self.status, headers, truncated: self.truncated }, &self.body)
    }

    /// The answer of what was sealed.
    pub(super) fn of(bytes: &[u8]) -> Option<Self> {
        let (head, body) = parted::<AnswerHead>(bytes)?;
        let headers = narrow_all(&head.headers)?;
        Some(Self { status: head.status, headers, body: body.to_vec(), truncated: head.truncated })
    }
}

/// The client that shares of the room are counted by: an IPv6 network of 64 bits is one.
pub(super) fn sharer(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        address @ IpAddr::V4(_) => address,
    }
}

fn joined(head: &impl Serialize, body: &[u8]) -> Vec<u8> {
    // Strings and numbers alone: it cannot fail.
    let head = serde_json::to_vec(head).unwrap_or_default();
    let mut bytes = Vec::with_capacity(4 + head.len() + body.len());
    bytes.extend_from_slice(&u32::try_from(head.len()).unwrap_or(u32::MAX).to_be_bytes());
    bytes.extend_from_slice(&head);
    bytes.extend_from_slice(body);
    bytes
}

fn parted<'b, H: Deserialize<'b>>(bytes: &'b [u8]) -> Option<(H, &'b [u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (head, body) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    Some((serde_json::from_slice(head).ok()?, body))
}

/// Bytes that a text takes in the head.
fn written(bytes: &[u8]) -> usize {
    let of_byte = |byte: &u8| match byte {
        b'"' | b'\\' | 0x80.. => 2,
        0x20.. => 1,
        _ => 6,
    };
    bytes.iter().map(of_byte).sum()
}

fn wide(bytes: &[u8]) -> String {
    bytes.iter().copied().map(char::from).collect()
}

fn narrow(text: &str) -> Option<Vec<u8>> {
    text.chars().map(|character| u8::try_from(character).ok()).collect()
}

fn narrow_all(fields: &[(String, String)]) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    fields.iter().map(|(name, value)| Some((narrow(name)?, narrow(value)?))).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn requests_and_answers_come_back_as_they_were(
            host in proptest::collection::vec(any::<u8>(), 0..20),
            value in proptest::collection::vec(any::<u8>(), 0..200),
            body in proptest::collection::vec(any::<u8>(), 0..3_000),
            flags in any::<(bool, bool)>(),
        ) {
            let request = Deferral {
                route: "r".into(),
                limit: "l".into(),
                order: 7_u64.to_be_bytes().to_vec(),
                client: "192.0.2.7".parse().unwrap(),
                trusted_peer: flags.0,
                is_https: flags.1,
                request_id: "id".to_owned(),
                method: "POST".to_owned(),
                host: host.clone(),
                target: b"/x?y=\xff".to_vec(),
                headers: vec![(b"a".to_vec(), value.clone()), (b"a".to_vec(), Vec::new())],
                body: body.clone(),
                not_before: Tick::ZERO,
                idempotency_key: "key".to_owned(),
            };
            let shown = Shown { route: "r".into(), limit: "l".into(), client: request.client, order: 7 };
            let bytes = request.sealed_part();
            prop_assert!(request.bytes() as usize * 3 / 4 > bytes.len(), "{} for {}", request.bytes(), bytes.len());
            prop_assert_eq!(Deferral::of(&shown, &bytes), Some(request));
            let answer = KeptAnswer { status: 201, headers: vec![(host, value)], body, truncated: flags.0 };
            let kept = answer.sealed_part();
            prop_assert_eq!(KeptAnswer::of(&kept), Some(answer));
            for cut in 0..bytes.len().min(200) {
                let _ = Deferral::of(&shown, &bytes[..cut]);
            }
        }
    }

    #[test]
    fn a_request_that_cannot_be_sent_is_told_by_its_part() {
        let fit = Deferral {
            route: "r".into(),
            limit: "l".into(),
            order: Vec::new(),
            client: "192.0.2.7".parse().unwrap(),
            trusted_peer: false,
            is_https: false,
            request_id: String::new(),
            method: "PURGE".to_owned(),
            host: b"a.example:80".to_vec(),
            target: b"/x?y=%00".to_vec(),
            headers: vec![(b"x".to_vec(), b"\xff".to_vec())],
            body: Vec::new(),
            not_before: Tick::ZERO,
            idempotency_key: String::new(),
        };
        assert_eq!(fit.unfit(), None);
        assert_eq!(Deferral { host: Vec::new(), ..fit.clone() }.unfit(), None);
        let cases = [
            (Deferral { method: "A B".to_owned(), ..fit.clone() }, "method"),
            (Deferral { target: b"*".to_vec(), ..fit.clone() }, "path"),
            (Deferral { target: b"/\x7f".to_vec(), ..fit.clone() }, "path"),
            (Deferral { host: b"a b".to_vec(), ..fit.clone() }, "host"),
            (Deferral { headers: vec![(b"x".to_vec(), b"a\nb".to_vec())], ..fit }, "headers"),
        ];
        for (request, part) in cases {
            assert_eq!(request.unfit(), Some(part));
        }
    }

    #[test]
    fn an_ipv6_network_of_64_bits_shares() {
        let of = |text: &str| sharer(text.parse().unwrap()).to_string();
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!((of("192.0.2.7"), of("::ffff:192.0.2.7")), ("192.0.2.7".to_owned(), "192.0.2.7".to_owned()));
    }
}
