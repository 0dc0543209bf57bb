//! The slots of a cluster: which part of it has a key.

use crc::{CRC_16_XMODEM, Crc};

use super::store::SLOTS;
use sluicegate_limiter::Fingerprint;

/// The checksum that makes slots (Redis Cluster specification, "Key distribution model"). Keys of ours have no braces, so all of
/// a key counts.
const CHECKSUM: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// The slots of a limit's keys: the checksum of how all of them begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeySlots(u16);

impl KeySlots {
    pub(super) fn new(begin: &str) -> Self {
        Self(CHECKSUM.checksum(begin.as_bytes()))
    }

    /// The slot of the key that ends with this fingerprint, in hexadecimal.
    pub(super) fn slot(self, key: Fingerprint) -> u16 {
        let bits = key.bits();
        let digit = |place: usize| b"0123456789abcdef".get((bits >> (60 - 4 * place)) as usize & 15).copied();
        let digits: [u8; 16] = std::array::from_fn(|place| digit(place).unwrap_or(b'0'));
        let mut checksum = CHECKSUM.digest_with_initial(self.0);
        checksum.update(&digits);
        checksum.finalize() % SLOTS
    }
}

/// The slot of a whole key.
pub(super) fn slot_of(key: &str) -> u16 {
    CHECKSUM.checksum(key.as_bytes()) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_limiter::KeyHasher;

    #[test]
    fn slots_are_those_of_the_specification() {
        // `CLUSTER KEYSLOT` of Redis 7.0.15.
        assert_eq!([slot_of("123456789"), slot_of("foo")], [0x31C3, 12_182]);
        for secret in 0..50 {
            let (begin, key) = ("sluicegate:per-key:00ff:", KeyHasher::with_secret(&[secret; 32]).start().finish());
            assert_eq!(KeySlots::new(begin).slot(key), slot_of(&format!("{begin}{:016x}", key.bits())));
        }
    }
}
