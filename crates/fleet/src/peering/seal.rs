//! The seal of a datagram: who sends it, its number, and that it is from one who has the secret.

use std::net::{IpAddr, SocketAddr};

use hmac::{Hmac, Mac};
use sha2::Sha256;

/// The version of this form.
const VERSION: u8 = 1;
/// Version, contents, sender, receiver, number.
const HEADER: usize = 1 + 1 + 8 + 8 + 8;
const TAG: usize = 16;
/// A datagram is at most so long, in bytes: it passes any network in one piece.
pub(super) const MAX_DATAGRAM: usize = 1_200;
/// And what it carries.
pub(super) const MAX_CARRIED: usize = MAX_DATAGRAM - HEADER - TAG;
/// Keeps this use of the secret apart from others.
const LABEL: &[u8] = b"sluicegate peers 1";

/// The contents of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contents {
    /// A message about members.
    Members,
    /// Counts.
    Counts,
}

words! {
    /// Why a datagram is dropped, with no other effect.
    pub enum DropReason {
        /// It is longer than 1,200 bytes.
        TooLong = "too-long",
        /// It is cut, of another version, or carries something that cannot be read.
        Malformed = "malformed",
        /// Its sender does not have the secret, or it was changed, or it was for another gateway.
        Forged = "forged",
        /// It was there before, or it is far older than the latest one.
        Replayed = "replayed",
        /// Its sender is not among the members that live, or it is for a life of this gateway that is over.
        Stranger = "stranger",
    }
}

/// Seals and opens datagrams: the first of its secrets seals, all of them open.
///
/// The bytes are version (1), 0 or 1 for messages about members or counts (1), the incarnation of the sender (8), with counts that of
/// the receiver and else 0 (8), the number to this receiver (8), what is carried, and the first 16 bytes of HMAC-SHA-256 over the
/// receiver's address and all of that. So counts that were caught are of no use at another gateway, nor in its next life.
pub(super) struct DatagramSeal(Vec<Hmac<Sha256>>);

/// A datagram that was opened.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OpenedDatagram<'b> {
    pub(super) contents: Contents,
    /// The incarnation of the sender.
    pub(super) sender: u64,
    /// That of the receiver, as the sender knows it; 0: it need not.
    pub(super) receiver: u64,
    pub(super) number: u64,
    pub(super) carried: &'b [u8],
}

impl DatagramSeal {
    pub(super) fn new(secrets: &[[u8; 32]]) -> Self {
        // HMAC takes keys of any length.
        let keyed = |secret: &[u8; 32]| {
            let derived = Hmac::<Sha256>::new_from_slice(secret).ok()?.chain_update(LABEL).finalize().into_bytes();
            Hmac::new_from_slice(&derived).ok()
        };
        Self(secrets.iter().filter_map(keyed).collect())
    }

    /// A datagram from `sender` to the gateway at an address, with its number.
    pub(super) fn seal(
        &self,
        (sender, to, receiver): (u64, SocketAddr, u64),
        contents: Contents,
        number: u64,
        carried: &[u8],
    ) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + carried.len() + TAG);
        bytes.push(VERSION);
        bytes.push(u8::from(contents == Contents::Counts));
        bytes.extend(sender.to_be_bytes());
        bytes.extend(receiver.to_be_bytes());
        bytes.extend(number.to_be_bytes());
        bytes.extend(carried);
        if let Some(keyed) = self.0.first() {
            let tag = over(keyed, to, &bytes).finalize().into_bytes();
            bytes.extend(&tag[..TAG]);
        }
        bytes
    }

    /// Opens one that has come to the gateway at `own`.
    pub(super) fn open<'b>(&self, own: SocketAddr, bytes: &'b [u8]) -> Result<OpenedDatagram<'b>, DropReason> {
        if bytes.len() > MAX_DATAGRAM {
            return Err(DropReason::TooLong);
        }
        let (sealed, tag) = bytes.split_last_chunk::<TAG>().ok_or(DropReason::Malformed)?;
        let (head, carried) = sealed.split_at_checked(HEADER).ok_or(DropReason::Malformed)?;
        let &[VERSION, contents, ref numbers @ ..] = head else { return Err(DropReason::Malformed) };
        if !self.0.iter().any(|keyed| over(keyed, own, sealed).verify_truncated_left(tag).is_ok()) {
            return Err(DropReason::Forged);
        }
        let contents = match contents {
            0 => Contents::Members,
            1 => Contents::Counts,
            _ => return Err(DropReason::Malformed),
        };
        let (sender, numbers) = numbers.split_first_chunk::<8>().ok_or(DropReason::Malformed)?;
        let (receiver, number) = numbers.split_first_chunk::<8>().ok_or(DropReason::Malformed)?;
        let number = number.first_chunk::<8>().ok_or(DropReason::Malformed)?;
        Ok(OpenedDatagram {
            contents,
            sender: u64::from_be_bytes(*sender),
            receiver: u64::from_be_bytes(*receiver),
            number: u64::from_be_bytes(*number),
            carried,
        })
    }
}

fn over(keyed: &Hmac<Sha256>, to: SocketAddr, sealed: &[u8]) -> Hmac<Sha256> {
    let keyed = keyed.clone().chain_update(to.port().to_be_bytes());
    let keyed = match to.ip() {
        IpAddr::V4(ip) => keyed.chain_update(ip.octets()),
        IpAddr::V6(ip) => keyed.chain_update(ip.octets()),
    };
    keyed.chain_update(sealed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receiver(last: u8, port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], port))
    }

    #[test]
    fn one_who_has_a_secret_is_heard_and_nobody_else() {
        let (own, secrets) = (receiver(1, 7946), [[1; 32], [2; 32]]);
        let seal = DatagramSeal::new(&secrets);
        let bytes = seal.seal((7, own, 5), Contents::Counts, 9, b"counts");
        assert_eq!(bytes.len(), HEADER + 6 + TAG);
        let opened =
            OpenedDatagram { contents: Contents::Counts, sender: 7, receiver: 5, number: 9, carried: b"counts" };
        assert_eq!(seal.open(own, &bytes), Ok(opened));
        // While a secret is replaced, both open.
        let other = DatagramSeal::new(&secrets[1..]);
        assert_eq!(other.open(own, &bytes), Err(DropReason::Forged));
        assert!(seal.open(own, &other.seal((7, own, 5), Contents::Members, 1, b"")).is_ok());
        // For another receiver.
        for other in [receiver(1, 7947), receiver(2, 7946)] {
            assert_eq!(seal.open(other, &bytes), Err(DropReason::Forged));
        }
        // Changed anywhere, cut anywhere, or longer.
        for place in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[place] ^= 1;
            let expected = if place == 0 { DropReason::Malformed } else { DropReason::Forged };
            assert_eq!(seal.open(own, &changed), Err(expected), "{place}");
            let cut = seal.open(own, &bytes[..place]);
            let expected = if place < HEADER + TAG { DropReason::Malformed } else { DropReason::Forged };
            assert_eq!(cut, Err(expected), "{place}");
        }
        assert_eq!(seal.open(own, &[&bytes[..], &[0]].concat()), Err(DropReason::Forged));
        assert_eq!(seal.open(own, &[1; MAX_DATAGRAM + 1]), Err(DropReason::TooLong));
        let full = seal.seal((7, own, 5), Contents::Counts, 9, &[0; MAX_CARRIED]);
        assert!(full.len() == MAX_DATAGRAM && seal.open(own, &full).is_ok());
        // Without a secret no datagram is taken in.
        let none = DatagramSeal::new(&[]);
        assert_eq!(none.open(own, &none.seal((7, own, 5), Contents::Members, 1, &[0; 40])), Err(DropReason::Forged));
    }
}
