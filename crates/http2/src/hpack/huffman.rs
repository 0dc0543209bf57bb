//! The Huffman code of strings (RFC 7541, 5.2 and Appendix B): decoding only.
//!
//! Bits are looked up eight at a time: whatever is usual in a field has a code of 5 to 8 bits. Seven lookups fit into
//! one word and branch on nothing: a code that is longer counts no bits, so that all lookups after it find it again, and
//! it is told at the end of the word that fewer than seven were found. Longer codes are found by their length: the code
//! is canonical, so that those of one length are numbers in sequence.

/// The bytes, and the end of a string, which is never in one.
const ALL: usize = 257;

/// How many bits the code of each symbol has. The codes follow: they are handed out in the order of their lengths, and
/// of the symbols where the lengths are the same.
#[rustfmt::skip]
const LENGTHS: [u8; ALL] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];

/// The longest code.
const MAX_LENGTH: usize = 30;
/// The longest code that is looked up.
const SHORT: usize = 8;
/// The shortest code that is not.
const LONG: usize = 10;

/// How many lookups fit into one word: at least 57 bits of it are those of the string.
const LOOKUPS: usize = 7;
/// Counts a symbol above the bits of the codes, which are 56 at most.
const ONE_SYMBOL: u8 = 1 << 6;

/// By the next eight bits: the length of the code, and [`ONE_SYMBOL`]. Zero stands for a longer code.
static COUNTS: [u8; 1 << SHORT] = short().0;

/// By the next eight bits: the symbol.
static SYMBOLS: [u8; 1 << SHORT] = short().1;

/// By the length of a code: where codes of this length end, in the highest bits of a word, and what to add to a code of
/// this length for its place in [`IN_ORDER`].
static ENDS: [(u32, u16); MAX_LENGTH + 1] = ends();

/// Symbols in the order of their codes.
static IN_ORDER: [u16; ALL] = in_order();

/// Decodes the string of `length` bytes that `bytes` begins with, to `out` from `at` on, and gives where it ends there.
/// None if it is not such a string.
///
/// Bytes behind the string in `bytes` have no meaning: they are there so that a whole word can be read at the string's
/// end. `out` grows to eight fifths of the string and a word, and is never made shorter: what lies behind the end of
/// the decoded string has no meaning either.
#[inline(never)]
pub(super) fn decode(bytes: &[u8], length: usize, out: &mut Vec<u8>, mut at: usize) -> Option<usize> {
    let string = bytes.get(..length)?;
    let out = room(out, at, length);
    let mut bit = 0;
    while let Some(word) = word_at(string, bit) {
        let (found, bits) = look_up(word, out.get_mut(at..at + 8)?);
        at += found;
        bit += bits;
        if found == LOOKUPS {
            continue;
        }
        let Some(word) = word_at(string, bit) else { break };
        let (symbol, bits) = long(word)?;
        *out.get_mut(at)? = symbol;
        at += 1;
        bit += bits;
    }
    // Fewer than 64 bits, and ones behind them.
    let mut left = length * 8 - bit;
    let mut word = last_word(bytes, bit / 8) << (bit % 8) | u64::MAX >> left;
    loop {
        let (found, bits) = look_up(word, out.get_mut(at..at + 8)?);
        at += found;
        // Past the end, the last code was made of padding.
        left = left.checked_sub(bits)?;
        word = !(!word << bits);
        if found == LOOKUPS && word != u64::MAX {
            continue;
        }
        // Longer codes begin with seven ones: these are all that is left, and are the padding.
        if left < 8 {
            return Some(at);
        }
        let (symbol, bits) = long(word)?;
        *out.get_mut(at)? = symbol;
        at += 1;
        left = left.checked_sub(bits)?;
        word = !(!word << bits);
    }
}

/// Where the symbols are written: with room for a whole word at the end.
#[inline]
fn room(out: &mut Vec<u8>, at: usize, length: usize) -> &mut [u8] {
    // No code is shorter than five bits.
    let needed = at + length * 8 / 5 + 8;
    if out.len() < needed {
        out.resize(needed, 0);
    }
    out
}

/// Writes the symbols that a word begins with, at most seven. Gives how many they are, and how many bits they have.
#[inline]
fn look_up(mut word: u64, room: &mut [u8]) -> (usize, usize) {
    let mut total = 0;
    for symbol in &mut room[..LOOKUPS] {
        let next = (word >> (64 - SHORT)) as usize;
        let count = u32::from(COUNTS[next]);
        *symbol = SYMBOLS[next];
        word <<= count % u32::from(ONE_SYMBOL);
        total += count;
    }
    ((total / u32::from(ONE_SYMBOL)) as usize, (total % u32::from(ONE_SYMBOL)) as usize)
}

/// A symbol whose code is not looked up, and the length of its code. The end of a string is none.
#[cold]
fn long(word: u64) -> Option<(u8, usize)> {
    let word = (word >> 32) as u32;
    let length = (LONG..MAX_LENGTH).find(|length| word < ENDS[*length].0).unwrap_or(MAX_LENGTH);
    let code = word >> (32 - length);
    let place = code.wrapping_add(u32::from(ENDS[length].1)) & 0xffff;
    let symbol = *IN_ORDER.get(place as usize)?;
    u8::try_from(symbol).ok().map(|symbol| (symbol, length))
}

/// At least 57 bits from `bit` on, in the highest bits of a word. None if there are not eight bytes.
#[inline]
fn word_at(string: &[u8], bit: usize) -> Option<u64> {
    let word = string.get(bit / 8..bit / 8 + 8)?.first_chunk()?;
    Some(u64::from_be_bytes(*word) << (bit % 8))
}

/// Eight bytes from `at` on, or the last ones of `bytes` in the highest bits.
#[inline]
fn last_word(bytes: &[u8], at: usize) -> u64 {
    if let Some(word) = word_at(bytes, at * 8) {
        return word;
    }
    let left = bytes.len() - at;
    let word = match bytes.last_chunk() {
        Some(word) => u64::from_be_bytes(*word),
        None => bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    };
    word.unbounded_shl(64 - 8 * left as u32)
}

const fn short() -> ([u8; 1 << SHORT], [u8; 1 << SHORT]) {
    let mut counts = [0; 1 << SHORT];
    let mut symbols = [0; 1 << SHORT];
    let mut next = 0;
    let mut place = 0;
    while LENGTHS[IN_ORDER[place] as usize] as usize <= SHORT {
        let symbol = IN_ORDER[place];
        let length = LENGTHS[symbol as usize];
        let end = next + (1 << (SHORT - length as usize));
        while next < end {
            counts[next] = ONE_SYMBOL | length;
            symbols[next] = symbol as u8;
            next += 1;
        }
        place += 1;
    }
    (counts, symbols)
}

const fn ends() -> [(u32, u16); MAX_LENGTH + 1] {
    let mut table = [(0, 0); MAX_LENGTH + 1];
    let mut code = 0_u32;
    let mut place = 0_u16;
    let mut length = 1;
    while length <= MAX_LENGTH {
        code <<= 1;
        table[length].1 = place.wrapping_sub(code as u16);
        while (place as usize) < ALL && LENGTHS[IN_ORDER[place as usize] as usize] as usize == length {
            code += 1;
            place += 1;
        }
        table[length].0 = code << (32 - length);
        length += 1;
    }
    assert!(code == 1 << MAX_LENGTH && place as usize == ALL, "the code is complete");
    table
}

const fn in_order() -> [u16; ALL] {
    let mut order = [0; ALL];
    let mut place = 0;
    let mut length = 1;
    while length <= MAX_LENGTH {
        let mut symbol = 0;
        while symbol < ALL {
            if LENGTHS[symbol] as usize == length {
                order[place] = symbol as u16;
                place += 1;
            }
            symbol += 1;
        }
        length += 1;
    }
    order
}
