use std::collections::hash_map::{DefaultHasher, RandomState};
use std::hash::{BuildHasher, Hasher};
use std::num::NonZeroU64;

/// What the limiter keeps of a key: 64 bits of a keyed hash.
///
/// Constant size, no personal data, and nobody outside the process can choose two keys that collide. Ten million
/// live keys make about 3e-6 expected collisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint(NonZeroU64);

impl Fingerprint {
    /// Its 64 bits; never zero. For logs and for spreading work; it means nothing in another process.
    pub const fn bits(self) -> u64 {
        self.0.get()
    }

    /// The fingerprint with these 64 bits, as [`bits`](Self::bits) gave them; `None` for zero, which is none.
    pub const fn known(bits: u64) -> Option<Self> {
        match NonZeroU64::new(bits) {
            Some(bits) => Some(Self(bits)),
            None => None,
        }
    }

    /// Zero marks an empty place in the table, so it shares the fingerprint 1.
    pub(super) const fn from_bits(bits: u64) -> Self {
        match NonZeroU64::new(bits) {
            Some(bits) => Self(bits),
            None => Self(NonZeroU64::MIN),
        }
    }
}

/// Makes fingerprints; holds the secret of this process. Clones share the secret.
#[derive(Clone, Debug)]
pub struct KeyHasher(DefaultHasher);

impl KeyHasher {
    /// A hasher with a secret that the operating system's randomness chose (`SipHash` with std's `RandomState`).
    pub fn random() -> Self {
        Self(RandomState::new().build_hasher())
    }

    /// A hasher whose secret everybody knows: for tests and benches, where runs must repeat.
    pub fn fixed() -> Self {
        Self(DefaultHasher::new())
    }

    /// Begins the fingerprint of one key.
    #[inline]
    pub fn start(&self) -> KeyBuilder {
        KeyBuilder(self.0.clone())
    }
}

/// A part with its head that is hashed in one piece is at most so long, in bytes.
const SHORT: usize = 64;

/// A key in the making: feed it the parts in order, then [`finish`](Self::finish).
#[derive(Clone, Debug)]
pub struct KeyBuilder(DefaultHasher);

impl KeyBuilder {
    /// Adds one part. `tag` says what kind of part it is; the length goes in too, so that `("ab", "c")` and
    /// `("a", "bc")` are different keys.
    #[inline]
    pub fn part(&mut self, tag: u8, bytes: &[u8]) {
        // In one piece, since the hash takes longer over small ones than over bytes: nothing is 2^56 bytes long.
        let head = (bytes.len() as u64 | u64::from(tag) << 56).to_ne_bytes();
        let mut short = [0; SHORT];
        if let Some(part) = short.get_mut(..head.len() + bytes.len()) {
            let (first, rest) = part.split_at_mut(head.len());
            first.copy_from_slice(&head);
            rest.copy_from_slice(bytes);
            self.0.write(part);
        } else {
            self.0.write(&head);
            self.0.write(bytes);
        }
    }

    /// The fingerprint of all parts.
    #[inline]
    pub fn finish(self) -> Fingerprint {
        Fingerprint::from_bits(self.0.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print_of(hasher: &KeyHasher, parts: &[(u8, &str)]) -> Fingerprint {
        let mut key = hasher.start();
        for (tag, bytes) in parts {
            key.part(*tag, bytes.as_bytes());
        }
        key.finish()
    }

    #[test]
    fn parts_do_not_run_into_each_other() {
        let hasher = KeyHasher::fixed();
        assert_ne!(print_of(&hasher, &[(1, "ab"), (1, "c")]), print_of(&hasher, &[(1, "a"), (1, "bc")]));
        assert_ne!(print_of(&hasher, &[(1, "ab")]), print_of(&hasher, &[(2, "ab")]));
        assert_ne!(print_of(&hasher, &[(1, "")]), print_of(&hasher, &[]));
        assert_eq!(print_of(&hasher, &[(1, "ab")]), print_of(&hasher.clone(), &[(1, "ab")]));
    }

    #[test]
    fn each_process_secret_gives_other_fingerprints() {
        let one = print_of(&KeyHasher::random(), &[(1, "ab")]);
        assert_ne!(one, print_of(&KeyHasher::random(), &[(1, "ab")]));
        assert_ne!(one, print_of(&KeyHasher::fixed(), &[(1, "ab")]));
    }

    #[test]
    fn zero_is_no_fingerprint() {
        assert_eq!(Fingerprint::from_bits(0).bits(), 1);
    }

    #[test]
    fn long_parts_and_high_tags_are_told_apart_as_well() {
        let hasher = KeyHasher::fixed();
        let (a, b) = ("a".repeat(100), "b".repeat(100));
        let print = |tag, text: &str| print_of(&hasher, &[(tag, text)]);
        assert_eq!(print(1, &a), print(1, &a));
        assert_ne!(print(1, &a), print(1, &b));
        assert_ne!(print(1, &a), print(2, &a));
        assert_ne!(print(1, &a), print(1, &a[1..]));
        assert_ne!(print_of(&hasher, &[(1, &a), (1, &b)]), print_of(&hasher, &[(1, &(a.clone() + &b))]));
        assert_ne!(print(0, "a"), print(0x80, "a"));
    }
}
