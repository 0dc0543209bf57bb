//! Header blocks for a peer, encoded.

use super::{integer, static_table};

/// A literal that is in no table (RFC 7541, 6.2.2).
const NOT_INDEXED: u8 = 0x00;
/// The same, also for those who pass it on (6.2.3).
const NEVER_INDEXED: u8 = 0x10;
/// The bits of a literal's first byte that its index is in. No name that is found has an index below: the rest of it is
/// the next byte.
const INDEX: u8 = 0x0f;
/// The bits of a string's length in its first byte. The other bit is for Huffman.
const LENGTH: u8 = 0x7f;
/// The static index of the name `:status`.
const STATUS: u8 = 8;

/// The static indexes of `authorization`, `cookie`, `proxy-authorization` and `set-cookie`: of secrets that can be
/// guessed bit by bit where they are compressed (7.1.3).
const SECRETS: u64 = 1 << 23 | 1 << 32 | 1 << 49 | 1 << 55;

/// The most bytes that are not the name's or the value's: a byte for the index, two lengths, and zeros behind a name.
const OVERHEAD: usize = 24;

/// Encodes the header blocks of one connection.
///
/// It writes literals: no dynamic table, no Huffman. The answers of a proxy differ from one to the next, so that a
/// table would be searched and filled for little, and the bytes that Huffman saves cost more time than they are worth.
/// It has no state that must be kept in step with the peer's, so that blocks may be written in any order.
#[derive(Debug, Default)]
pub struct Encoder {
    /// The peer has another table, and has not been told that ours is empty.
    is_resized: bool,
}

impl Encoder {
    /// An encoder for a new connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// The peer has announced another `SETTINGS_HEADER_TABLE_SIZE`. The next block says that we use none of it, since a
    /// peer that has made its table smaller waits for our word (RFC 7541, 4.2).
    pub fn table_size_changed(&mut self) {
        self.is_resized = true;
    }

    /// Begins a header block: what has to be said at its beginning.
    #[inline]
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        if self.is_resized {
            self.is_resized = false;
            out.push(0x20);
        }
    }

    /// The pseudo-header field of a response. `status` is 100 to 999.
    #[inline]
    pub fn status(status: u16, out: &mut Vec<u8>) {
        debug_assert!((100..1000).contains(&status));
        let index = match status {
            200 => 8,
            204 => 9,
            206 => 10,
            304 => 11,
            400 => 12,
            404 => 13,
            500 => 14,
            _ => {
                let [hundreds, tens, ones] =
                    [status / 100, status / 10, status].map(|digits| b'0' + (digits % 10) as u8);
                out.extend_from_slice(&[NOT_INDEXED | STATUS, 3, hundreds, tens, ones]);
                return;
            }
        };
        out.push(0x80 | index);
    }

    /// A field; `name` in any case, written in lower case.
    #[inline]
    pub fn field(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        out.reserve(name.len() + value.len() + OVERHEAD);
        match static_table::name_index(name) {
            Some(index) if value.len() < usize::from(LENGTH) => {
                out.extend_from_slice(&[first_byte(index) | INDEX, index - INDEX, value.len() as u8]);
            }
            index => write_start(out, index, name, value.len()),
        }
        out.extend_from_slice(value);
    }
}

/// Of a literal with a static name.
#[inline]
fn first_byte(index: u8) -> u8 {
    if SECRETS >> index & 1 == 1 { NEVER_INDEXED } else { NOT_INDEXED }
}

/// Writes what comes before the value of a literal.
#[inline(never)]
fn write_start(out: &mut Vec<u8>, index: Option<u8>, name: &[u8], length: usize) {
    if let Some(index) = index {
        integer::write(out, first_byte(index), INDEX, usize::from(index));
    } else {
        out.push(NOT_INDEXED);
        integer::write(out, 0, LENGTH, name.len());
        write_lower(out, name);
    }
    integer::write(out, 0, LENGTH, length);
}

/// Writes a name in lower case, eight bytes at a time.
#[inline]
fn write_lower(out: &mut Vec<u8>, name: &[u8]) {
    let (words, rest) = name.as_chunks();
    for word in words {
        out.extend_from_slice(&lower(u64::from_le_bytes(*word)).to_le_bytes());
    }
    match name.last_chunk() {
        Some(last) if !rest.is_empty() => {
            // What was written already is shifted out of the last word, and the zeros that come in are cut off.
            let end = out.len() + rest.len();
            let word = lower(u64::from_le_bytes(*last)) >> (64 - 8 * rest.len());
            out.extend_from_slice(&word.to_le_bytes());
            out.truncate(end);
        }
        Some(_) => {}
        None => out.extend(rest.iter().map(u8::to_ascii_lowercase)),
    }
}

/// Sets the bit of lower case in each byte of `A` to `Z`. The high bit of each byte is out of the sums, so that none
/// carries into the next one (Warren, "Hacker's Delight", 2-18).
fn lower(word: u64) -> u64 {
    const ONES: u64 = u64::MAX / 0xff;
    let low = word & (ONES * 0x7f);
    let from_a = low + ONES * u64::from(0x80 - b'A');
    let past_z = low + ONES * u64::from(0x7f - b'Z');
    word | (from_a & !past_z & !word & (ONES << 7)) >> 2
}
