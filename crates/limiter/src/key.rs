use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::num::NonZeroU64;

use sha2::{Digest, Sha256};
use siphasher::sip::SipHasher13;

/// The form in which the limiter keeps a key: 64 bits of a keyed hash.
///
/// Constant size, no personal data, and nobody without the secret can choose two keys that collide. Ten million
/// live keys make about 3e-6 expected collisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(NonZeroU64);

impl Fingerprint {
    /// The one that comes before all others.
    pub const LEAST: Self = Self(NonZeroU64::MIN);

    /// Its 64 bits; never zero. For logs and for spreading work; it means nothing under another secret.
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

/// Makes fingerprints; holds the secret under which they are made. Clones share the secret.
///
/// A fingerprint is SipHash-1-3 (Aumasson and Bernstein, "`SipHash`: a fast short-input PRF", 2012) of the parts, all numbers
/// little-endian: two processes with the same secret make the same fingerprints, whatever their version and architecture.
#[derive(Clone)]
pub struct KeyHasher(SipHasher13);

/// Goes before the secret from which a key of `SipHash` is derived: the same secret may serve something else too.
const LABEL: &[u8] = b"sluicegate fingerprints 1\n";

impl KeyHasher {
    /// A hasher with a secret of this process alone, which the operating system's randomness chose.
    pub fn random() -> Self {
        let state = RandomState::new();
        Self(SipHasher13::new_with_keys(state.hash_one(0_u64), state.hash_one(1_u64)))
    }

    /// A hasher whose secret everybody knows: for tests and benches, where runs must repeat.
    pub fn fixed() -> Self {
        Self(SipHasher13::new_with_keys(0, 0))
    }

    /// A hasher with a secret that other processes have as well. The key of `SipHash` is the first 16 bytes of SHA-256 over a
    /// fixed label and the secret.
    pub fn with_secret(secret: &[u8; 32]) -> Self {
        Self::with_bytes(secret)
    }

    /// The same with a secret of any length; below 16 bytes it can be guessed.
    pub fn with_bytes(secret: &[u8]) -> Self {
        let digest = Sha256::new().chain_update(LABEL).chain_update(secret).finalize();
        let mut halves = digest.chunks_exact(8).map(|half| half.try_into().map_or(0, u64::from_le_bytes));
        Self(SipHasher13::new_with_keys(halves.next().unwrap_or_default(), halves.next().unwrap_or_default()))
    }

    /// The fingerprint of a key that is one text.
    pub fn of(&self, key: &[u8]) -> Fingerprint {
        let mut parts = self.start();
        parts.part(0, key);
        parts.finish()
    }

    /// Begins the fingerprint of a key of several parts.
    #[inline]
    pub fn start(&self) -> KeyBuilder {
        KeyBuilder(self.0)
    }
}

/// Two are equal if they make the same fingerprints.
impl PartialEq for KeyHasher {
    fn eq(&self, other: &Self) -> bool {
        self.0.keys() == other.0.keys()
    }
}

impl Eq for KeyHasher {}

/// Without the secret.
impl fmt::Debug for KeyHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyHasher").finish_non_exhaustive()
    }
}

/// A part with its head that is hashed in one piece is at most so long, in bytes.
const SHORT: usize = 64;

/// A key in the making: feed it the parts in order, then [`finish`](Self::finish).
#[derive(Clone)]
pub struct KeyBuilder(SipHasher13);

impl KeyBuilder {
    /// Adds one part. `tag` says what kind of part it is; the length goes in too, so that `("ab", "c")` and
    /// `("a", "bc")` are different keys.
    #[inline]
    pub fn part(&mut self, tag: u8, bytes: &[u8]) {
        write(&mut self.0, tag, bytes);
    }

    /// The fingerprint of all parts.
    #[inline]
    pub fn finish(self) -> Fingerprint {
        Fingerprint::from_bits(self.0.finish())
    }
}

/// Without the state, from which the secret follows.
impl fmt::Debug for KeyBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyBuilder").finish_non_exhaustive()
    }
}

/// Writes one part: 8 bytes of its length and, in the highest, its tag; then itself. No list of parts is the beginning of what
/// another one is written as, but of a list that goes on: different lists are different bytes.
#[inline]
fn write(hasher: &mut impl Hasher, tag: u8, bytes: &[u8]) {
    // In one piece, since the hash takes longer over small ones than over bytes: nothing is 2^56 bytes long.
    let head = (bytes.len() as u64 | u64::from(tag) << 56).to_le_bytes();
    let mut short = [0; SHORT];
    if let Some(part) = short.get_mut(..head.len() + bytes.len()) {
        let (first, rest) = part.split_at_mut(head.len());
        first.copy_from_slice(&head);
        rest.copy_from_slice(bytes);
        hasher.write(part);
    } else {
        hasher.write(&head);
        hasher.write(bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::collections::hash_map::DefaultHasher;

    use proptest::prelude::*;

    use super::*;

    /// A list of parts.
    type Parts = Vec<(u8, Vec<u8>)>;

    /// Keeps the bytes that are hashed.
    #[derive(Default)]
    struct Bytes(Vec<u8>);

    impl Hasher for Bytes {
        fn write(&mut self, bytes: &[u8]) {
            self.0.extend_from_slice(bytes);
        }

        fn finish(&self) -> u64 {
            0
        }
    }

    fn bytes_of(parts: &Parts) -> Vec<u8> {
        let mut bytes = Bytes::default();
        for (tag, part) in parts {
            write(&mut bytes, *tag, part);
        }
        bytes.0
    }

    /// Parts of few letters and tags, of lengths about those at which they are written otherwise.
    fn parts() -> impl Strategy<Value = Parts> {
        let part = (0..4_u8, prop_oneof![0..4_usize, 50..60_usize, 120..130_usize], 0..3_u8)
            .prop_map(|(tag, length, letter)| (tag, vec![letter; length]));
        prop::collection::vec(part, 0..4)
    }

    proptest! {
        #[test]
        fn different_parts_are_different_bytes(one in parts(), other in parts()) {
            prop_assert_eq!(one == other, bytes_of(&one) == bytes_of(&other));
        }

        /// The standard library's is the same function today, with the key zero.
        #[test]
        fn the_hash_is_siphash_1_3(parts in parts()) {
            let (mut key, mut std) = (KeyHasher::fixed().start(), DefaultHasher::new());
            for (tag, part) in &parts {
                key.part(*tag, part);
            }
            std.write(&bytes_of(&parts));
            prop_assert_eq!(key.finish(), Fingerprint::from_bits(std.finish()));
        }
    }

    /// All short lists of parts that look like the heads of others: nothing but zeros, and tags of zero and one.
    #[test]
    fn parts_that_look_like_heads_are_different_bytes() {
        let parts: Vec<(u8, Vec<u8>)> =
            (0..=17).flat_map(|length| (0..2).map(move |tag| (tag, vec![0; length]))).collect();
        let mut lists: Vec<Parts> = vec![Vec::new()];
        let mut longest = lists.clone();
        for _ in 0..3 {
            let longer = |list: &Parts| {
                parts.iter().map(|part| [&list[..], std::slice::from_ref(part)].concat()).collect::<Vec<_>>()
            };
            longest = longest.iter().flat_map(longer).collect();
            lists.extend_from_slice(&longest);
        }
        let different: HashSet<Vec<u8>> = lists.iter().map(bytes_of).collect();
        assert_eq!((lists.len(), different.len()), (1 + 36 + 36 * 36 + 36 * 36 * 36, lists.len()));
    }

    /// Gateways of one fleet have to agree on these, whatever their version: the numbers never change.
    #[test]
    fn fingerprints_stay_the_same_from_version_to_version() {
        let hasher = KeyHasher::with_secret(&std::array::from_fn(|at| at as u8));
        let long = "x".repeat(100);
        let keys: [&[(u8, &str)]; 5] =
            [&[], &[(1, "")], &[(1, "192.0.2.1")], &[(2, "gold"), (5, "api.example.com")], &[(0x82, &long), (2, "y")]];
        assert_eq!(keys.map(|parts| print_of(&hasher, parts).bits()), GOLDEN);
    }

    /// By another implementation, in another language.
    const GOLDEN: [u64; 5] = [
        9_241_359_010_427_166_042,
        1_448_870_701_668_141_205,
        16_012_494_927_291_142_902,
        574_764_278_481_277_350,
        17_920_744_470_132_215_944,
    ];

    #[test]
    fn a_secret_decides_and_is_not_shown() {
        let (one, other) = (KeyHasher::with_secret(&[7; 32]), KeyHasher::with_secret(&[8; 32]));
        assert_eq!(print_of(&one, &[(1, "a")]), print_of(&KeyHasher::with_secret(&[7; 32]), &[(1, "a")]));
        assert_ne!(print_of(&one, &[(1, "a")]), print_of(&other, &[(1, "a")]));
        assert!(one == one.clone() && one != other);
        assert_ne!(
            print_of(&KeyHasher::with_secret(&[0; 32]), &[(1, "a")]),
            print_of(&KeyHasher::fixed(), &[(1, "a")])
        );
        assert_eq!(format!("{one:?} {:?}", one.start()), "KeyHasher { .. } KeyBuilder { .. }");
    }

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
