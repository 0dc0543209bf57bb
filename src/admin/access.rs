//! Access: tokens, client certificates, and the sockets that only this machine reaches.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use http::StatusCode;
use http::header::AUTHORIZATION;
use http::request::Parts;
use sha2::{Digest, Sha256};

use super::problem::Problem;
use super::role::Role;
use crate::config::{Admin, AdminCertificate, AdminRole, ListenAddress};
use crate::time::{Span, Tick};
use crate::tls::PeerCertificate;

/// Wrong tokens that an address may send at once.
const WRONG_AT_ONCE: u64 = 20;
/// The time after which it may send one more.
const WRONG_EACH: Span = Span::from_secs(1);
/// How far ahead of its rate it may be so.
const WRONG_AHEAD: Span = Span::from_secs(WRONG_AT_ONCE - 1);
/// Addresses of which wrong tokens are counted. Where there are more, one of those that sent the fewest is forgotten.
const MAX_ADDRESSES: usize = 1_024;

/// The callers and their roles, as the configuration says it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Access {
    tokens: Vec<(Arc<str>, [u8; 32], Role)>,
    clients: Vec<(Arc<str>, AdminCertificate, Role)>,
    /// The role of whoever reaches it, where nobody needs to say who asks.
    without: Option<(&'static str, Role)>,
}

/// Whoever asks, once that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Actor {
    /// The name of the token or client, or how it came.
    pub(super) name: Arc<str>,
    pub(super) role: Role,
}

/// The other end of a connection.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    /// `None`: it came by a Unix socket.
    pub(super) address: Option<IpAddr>,
    pub(super) certificate: Option<PeerCertificate>,
}

/// Why it is not known who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unknown {
    /// It says nothing of itself.
    Silent,
    /// Nobody has this token.
    WrongToken,
    /// Nobody is known by the certificate, and there is no token.
    WrongCertificate,
}

impl Access {
    pub(super) fn new(section: &Admin) -> Self {
        let without = match &section.address {
            _ if !section.tokens.is_empty() || !section.clients.is_empty() => None,
            ListenAddress::Unix(_) => Some(("socket", Role::Rules)),
            ListenAddress::Tcp(address) if address.ip().to_canonical().is_loopback() => {
                Some(("loopback", Role::Operate))
            }
            ListenAddress::Tcp(_) => None,
        };
        let tokens = section.tokens.iter().map(|own| (Arc::clone(&own.name), own.sha256, role(own.role)));
        let clients =
            section.clients.iter().map(|own| (Arc::clone(&own.name), own.certificate.clone(), role(own.role)));
        Self { tokens: tokens.collect(), clients: clients.collect(), without }
    }

    /// Nobody may anything.
    pub(super) const fn nobody() -> Self {
        Self { tokens: Vec::new(), clients: Vec::new(), without: None }
    }

    /// Whoever sends a request. A token wins over a certificate.
    pub(super) fn who(&self, head: &Parts, peer: &Peer) -> Result<Actor, Unknown> {
        if let Some((name, role)) = self.without {
            return Ok(Actor { name: name.into(), role });
        }
        if let Some(token) = token_of(head) {
            let found = token.and_then(|token| self.by_token(token));
            return found.ok_or(Unknown::WrongToken);
        }
        let Some(certificate) = &peer.certificate else { return Err(Unknown::Silent) };
        let is = |known: &AdminCertificate| match known {
            AdminCertificate::Subject(subject) => certificate.subject.as_ref() == Some(subject),
            AdminCertificate::Fingerprint(fingerprint) => certificate.fingerprint == *fingerprint,
        };
        let found = self.clients.iter().find(|(_, known, _)| is(known));
        found.map(|(name, _, role)| Actor { name: Arc::clone(name), role: *role }).ok_or(Unknown::WrongCertificate)
    }

    /// Compares with each of them, in a time that does not tell how much is the same.
    fn by_token(&self, token: &[u8]) -> Option<Actor> {
        let hash = Sha256::digest(token);
        let mut found = None;
        for (name, own, role) in &self.tokens {
            if verify_slices_are_equal(own, &hash).is_ok() {
                found = Some(Actor { name: Arc::clone(name), role: *role });
            }
        }
        found
    }
}

const fn role(role: AdminRole) -> Role {
    match role {
        AdminRole::Read => Role::Read,
        AdminRole::Operate => Role::Operate,
        AdminRole::Rules => Role::Rules,
    }
}

/// Whether a request has a token; the inner `None`: several, or none in `Authorization: Bearer TOKEN`.
#[allow(clippy::option_option, reason = "the outer says whether the field is there")]
fn token_of(head: &Parts) -> Option<Option<&[u8]>> {
    let mut fields = head.headers.get_all(AUTHORIZATION).iter();
    let field = fields.next()?.as_bytes();
    if fields.next().is_some() {
        return Some(None);
    }
    let (scheme, token) = field.split_at_checked(7).unwrap_or_default();
    Some(scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii()).filter(|token| !token.is_empty()))
}

/// Whether requests have a token at all: only those can be guesses.
pub(super) fn has_token(head: &Parts) -> bool {
    head.headers.contains_key(AUTHORIZATION)
}

impl From<Unknown> for Problem {
    fn from(unknown: Unknown) -> Self {
        let detail = match unknown {
            Unknown::Silent => "Say who asks: Authorization: Bearer TOKEN, with a token of [admin].",
            Unknown::WrongToken => "This token is none of [admin], or is not sent as Authorization: Bearer TOKEN.",
            Unknown::WrongCertificate => "No client of [admin] has this certificate.",
        };
        Self::new(StatusCode::UNAUTHORIZED, detail).challenge("Bearer")
    }
}

/// How often an address has sent a wrong token of late.
///
/// A token that is worth guessing is short; so an address that has sent too many wrong ones is not even listened to for a
/// while, with whatever token. It is a rate (GCRA) for each address, of IPv6 for each network of 64 bits.
#[derive(Debug, Default)]
pub(super) struct Attempts(Mutex<HashMap<IpAddr, Tick>>);

impl Attempts {
    /// How long an address has to wait until a token of it is looked at; `None`: it need not.
    pub(super) fn wait(&self, peer: &Peer, now: Tick) -> Option<Span> {
        let until = *self.lock().get(&network(peer))?;
        let wait = until.since(now + WRONG_AHEAD);
        (wait > Span::ZERO).then_some(wait)
    }

    /// Counts a wrong token.
    pub(super) fn count(&self, peer: &Peer, now: Tick) {
        let mut all = self.lock();
        let network = network(peer);
        if all.len() >= MAX_ADDRESSES && !all.contains_key(&network) {
            all.retain(|_, until| *until > now);
            let least = all.iter().min_by_key(|(_, until)| **until).map(|(address, _)| *address);
            if let Some(least) = least.filter(|_| all.len() >= MAX_ADDRESSES) {
                all.remove(&least);
            }
        }
        let until = all.entry(network).or_insert(now);
        *until = (*until).max(now) + WRONG_EACH;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<IpAddr, Tick>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The address by which wrong tokens are counted; that of a Unix socket is the unspecified one.
fn network(peer: &Peer) -> IpAddr {
    match peer.address.map(|address| address.to_canonical()) {
        Some(IpAddr::V6(address)) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        Some(address) => address,
        None => Ipv6Addr::UNSPECIFIED.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(address: &str) -> Peer {
        Peer { address: Some(address.parse().unwrap()), certificate: None }
    }

    fn at(seconds: u64) -> Tick {
        Tick::ZERO + Span::from_secs(1_000 + seconds)
    }

    #[test]
    fn twenty_wrong_tokens_of_an_address_at_once_and_then_one_a_second() {
        let attempts = Attempts::default();
        let one = peer("192.0.2.1");
        for sent in 0..20 {
            assert_eq!(attempts.wait(&one, at(0)), None, "{sent}");
            attempts.count(&one, at(0));
        }
        assert_eq!(attempts.wait(&one, at(0)), Some(Span::from_secs(1)));
        assert_eq!(attempts.wait(&peer("192.0.2.2"), at(0)), None);
        assert_eq!(attempts.wait(&one, at(1)), None);
        attempts.count(&one, at(1));
        assert_eq!(attempts.wait(&one, at(1)), Some(Span::from_secs(1)));
        assert_eq!(attempts.wait(&one, at(21)), None);
    }

    #[test]
    fn an_ipv6_network_is_one_address_and_a_mapped_one_is_ipv4() {
        let attempts = Attempts::default();
        for _ in 0..10 {
            attempts.count(&peer("2001:db8::1"), at(0));
            attempts.count(&peer("2001:db8::2"), at(0));
            attempts.count(&peer("::ffff:192.0.2.1"), at(0));
            attempts.count(&peer("192.0.2.1"), at(0));
        }
        assert!(attempts.wait(&peer("2001:db8::3"), at(0)).is_some());
        assert!(attempts.wait(&peer("2001:db8:0:1::1"), at(0)).is_none());
        assert!(attempts.wait(&peer("192.0.2.1"), at(0)).is_some());
    }

    #[test]
    fn a_bounded_number_of_addresses_is_known_and_those_that_sent_most_stay() {
        let attempts = Attempts::default();
        for _ in 0..20 {
            attempts.count(&peer("192.0.2.1"), at(0));
        }
        for number in 0..5_000_u32 {
            attempts.count(
                &Peer { address: Some(IpAddr::from((0x0a00_0000 + number).to_be_bytes())), certificate: None },
                at(0),
            );
        }
        assert_eq!(attempts.lock().len(), MAX_ADDRESSES);
        assert!(attempts.wait(&peer("192.0.2.1"), at(0)).is_some());
    }

    #[test]
    fn a_token_is_sent_in_one_way() {
        let token = |fields: &[&str]| {
            let mut request = http::Request::builder();
            for field in fields {
                request = request.header("authorization", *field);
            }
            let head = request.body(()).unwrap().into_parts().0;
            token_of(&head).map(|token| token.map(<[u8]>::to_vec))
        };
        assert_eq!(token(&[]), None);
        assert_eq!(token(&["Bearer abc"]), Some(Some(b"abc".to_vec())));
        assert_eq!(token(&["bEARER  abc "]), Some(Some(b"abc".to_vec())));
        for wrong in [&["abc"][..], &["Basic abc"], &["Bearer"], &["Bearer  "], &["Bearer a", "Bearer a"], &[""]] {
            assert_eq!(token(wrong), Some(None), "{wrong:?}");
        }
    }
}
