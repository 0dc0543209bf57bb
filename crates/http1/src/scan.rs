//! Searching for the first byte of a class, eight bytes at a time in plain arithmetic (Mycroft's test for a zero byte;
//! Warren, "Hacker's Delight", 6-1). Within a head this beats a call into a vectorised search: lines are short.

const ONES: u64 = u64::MAX / 0xff;
const HIGH_BITS: u64 = ONES << 7;

/// A set of bytes.
pub(super) trait ByteClass {
    /// Whether a byte is in it.
    fn holds(byte: u8) -> bool;

    /// The high bit of each byte of `word` that is in it. Only the lowest one is exact: borrows may set others above.
    fn marks(word: u64) -> u64;
}

/// One byte.
pub(super) struct Is<const BYTE: u8>;

impl<const BYTE: u8> ByteClass for Is<BYTE> {
    fn holds(byte: u8) -> bool {
        byte == BYTE
    }

    fn marks(word: u64) -> u64 {
        zeros(word ^ spread(BYTE))
    }
}

/// Control bytes: below the space, and DEL.
pub(super) struct Control;

impl ByteClass for Control {
    fn holds(byte: u8) -> bool {
        byte.is_ascii_control()
    }

    fn marks(word: u64) -> u64 {
        below(word, b' ') | zeros(word ^ spread(0x7f))
    }
}

/// Bytes that end a request's target or may not be in one: all but 0x21 to 0x7E without `"`, `#`, `<` and `>`.
pub(super) struct NotTarget;

impl ByteClass for NotTarget {
    fn holds(byte: u8) -> bool {
        !matches!(byte, 0x21..=0x7e) || matches!(byte, b'"' | b'#' | b'<' | b'>')
    }

    fn marks(word: u64) -> u64 {
        let above = (((word & !HIGH_BITS) + ONES) | word) & HIGH_BITS;
        let hash_or_quote = zeros(word & !ONES ^ spread(b'"'));
        let angle = zeros(word & !spread(2) ^ spread(b'<'));
        below(word, b'!') | above | hash_or_quote | angle
    }
}

/// Where the first byte of a class is, from `from` on.
#[inline(always)]
#[expect(clippy::inline_always, reason = "half of its instructions would be calling it")]
pub(super) fn find<C: ByteClass>(bytes: &[u8], from: usize) -> Option<usize> {
    let (words, rest) = bytes.get(from..)?.as_chunks();
    let mut at = from;
    for word in words {
        let marks = C::marks(u64::from_le_bytes(*word));
        if marks != 0 {
            return Some(at + first(marks));
        }
        at += 8;
    }
    find_in_rest::<C>(bytes, rest.len())
}

/// The same among the last `left` bytes, which are fewer than eight.
#[cold]
fn find_in_rest<C: ByteClass>(bytes: &[u8], left: usize) -> Option<usize> {
    let at = bytes.len() - left;
    let Some(word) = bytes.last_chunk().filter(|_| left > 0) else {
        return bytes[at..].iter().position(|byte| C::holds(*byte)).map(|skipped| at + skipped);
    };
    // What comes before them is shifted out of the last word; the zeros that come in are not looked at.
    let marks = C::marks(u64::from_le_bytes(*word) >> (64 - 8 * left));
    (marks != 0 && first(marks) < left).then(|| at + first(marks))
}

fn first(marks: u64) -> usize {
    (marks.trailing_zeros() / 8) as usize
}

const fn spread(byte: u8) -> u64 {
    ONES * byte as u64
}

fn zeros(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & HIGH_BITS
}

/// Bytes below `limit`, which is at most 0x80.
fn below(word: u64, limit: u8) -> u64 {
    word.wrapping_sub(spread(limit)) & !word & HIGH_BITS
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn naive<C: ByteClass>(bytes: &[u8], from: usize) -> Option<usize> {
        (from..bytes.len()).find(|at| C::holds(bytes[*at]))
    }

    fn check<C: ByteClass>(bytes: &[u8]) {
        for from in 0..=bytes.len() + 1 {
            assert_eq!(find::<C>(bytes, from), naive::<C>(bytes, from), "{bytes:?} from {from}");
        }
    }

    fn check_all(bytes: &[u8]) {
        check::<Is<b'\n'>>(bytes);
        check::<Is<0>>(bytes);
        check::<Control>(bytes);
        check::<NotTarget>(bytes);
    }

    #[test]
    fn finds_each_byte_at_each_place_next_to_each_other_byte() {
        for byte in 0..=255u8 {
            for neighbour in [0, 1, b'\t', b'\n', b' ', b'!', b'a', 0x7e, 0x7f, 0x80, 0x81, 0xff] {
                for length in [1, 7, 8, 9, 16, 19] {
                    for at in 0..length {
                        let mut bytes = vec![neighbour; length];
                        bytes[at] = byte;
                        check_all(&bytes);
                    }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn agrees_with_one_byte_at_a_time(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            check_all(&bytes);
        }
    }
}
