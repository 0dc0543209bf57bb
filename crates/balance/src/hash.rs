//! The hash that places servers and keys: XXH64 by Yann Collet, with the constants of its specification.
//!
//! Stickiness must outlive a restart, an upgrade and a change of machine, so the algorithm is written out here: std's
//! hashers promise no algorithm and, keyed at random, no two processes agree. XXH64 is fast on short input, mixes every
//! bit (the ring needs uniform numbers) and has published test vectors. It is not a secret: a client that can choose
//! his key can choose his server; bounded load is what keeps that harmless.

const PRIME_1: u64 = 0x9E37_79B1_85EB_CA87;
const PRIME_2: u64 = 0xC2B2_AE3D_27D4_EB4F;
const PRIME_3: u64 = 0x1656_67B1_9E37_79F9;
const PRIME_4: u64 = 0x85EB_CA77_C2B2_AE63;
const PRIME_5: u64 = 0x27D4_EB2F_1656_67C5;

/// A hash of several byte strings that is equal in every process and version: XXH64 of the first with seed 0, and of
/// each further one with the hash so far as its seed. A part's length is hashed too, so `["ab", "c"]` and `["a", "bc"]`
/// differ.
pub fn stable_hash<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    parts.into_iter().fold(0, |seed, part| xxh64(part, seed))
}

pub(super) fn xxh64(input: &[u8], seed: u64) -> u64 {
    let (stripes, tail) = input.as_chunks::<32>();
    let mut hash = if stripes.is_empty() { seed.wrapping_add(PRIME_5) } else { hash_stripes(stripes, seed) };
    hash = hash.wrapping_add(input.len() as u64);

    let (words, tail) = tail.as_chunks::<8>();
    for word in words {
        hash ^= round(0, u64::from_le_bytes(*word));
        hash = hash.rotate_left(27).wrapping_mul(PRIME_1).wrapping_add(PRIME_4);
    }
    let (halves, tail) = tail.as_chunks::<4>();
    for half in halves {
        hash ^= u64::from(u32::from_le_bytes(*half)).wrapping_mul(PRIME_1);
        hash = hash.rotate_left(23).wrapping_mul(PRIME_2).wrapping_add(PRIME_3);
    }
    for byte in tail {
        hash ^= u64::from(*byte).wrapping_mul(PRIME_5);
        hash = hash.rotate_left(11).wrapping_mul(PRIME_1);
    }

    hash = (hash ^ (hash >> 33)).wrapping_mul(PRIME_2);
    hash = (hash ^ (hash >> 29)).wrapping_mul(PRIME_3);
    hash ^ (hash >> 32)
}

fn hash_stripes(stripes: &[[u8; 32]], seed: u64) -> u64 {
    let mut lanes = [
        seed.wrapping_add(PRIME_1).wrapping_add(PRIME_2),
        seed.wrapping_add(PRIME_2),
        seed,
        seed.wrapping_sub(PRIME_1),
    ];
    for stripe in stripes {
        for (lane, word) in lanes.iter_mut().zip(stripe.as_chunks::<8>().0) {
            *lane = round(*lane, u64::from_le_bytes(*word));
        }
    }
    let [a, b, c, d] = lanes;
    let hash =
        a.rotate_left(1).wrapping_add(b.rotate_left(7)).wrapping_add(c.rotate_left(12)).wrapping_add(d.rotate_left(18));
    lanes.iter().fold(hash, |hash, lane| (hash ^ round(0, *lane)).wrapping_mul(PRIME_1).wrapping_add(PRIME_4))
}

fn round(lane: u64, word: u64) -> u64 {
    lane.wrapping_add(word.wrapping_mul(PRIME_2)).rotate_left(31).wrapping_mul(PRIME_1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_published_values() {
        for (input, expected) in [
            ("", 0xEF46_DB37_51D8_E999),
            ("a", 0xD24E_C4F1_A98C_6E5B),
            ("abc", 0x44BC_2CF5_AD77_0999),
            ("Nobody inspects the spammish repetition", 0xFBCE_A83C_8A37_8BF1),
        ] {
            assert_eq!(xxh64(input.as_bytes(), 0), expected, "{input:?}");
        }
    }

    #[test]
    fn where_one_part_ends_matters() {
        let ab_c = stable_hash([b"ab".as_slice(), b"c"]);
        assert_ne!(ab_c, stable_hash([b"a".as_slice(), b"bc"]));
        assert_ne!(ab_c, stable_hash([b"abc".as_slice()]));
        assert_ne!(ab_c, stable_hash([b"ab".as_slice(), b"c", b""]));
    }

    #[test]
    fn stays_the_same_from_version_to_version() {
        assert_eq!(stable_hash([b"abc".as_slice()]), 0x44BC_2CF5_AD77_0999);
        assert_eq!(stable_hash([[127, 0, 0, 1].as_slice(), b"/"]), 12_273_772_810_956_543_893);
    }
}
