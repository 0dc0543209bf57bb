//! Integers that begin in the low bits of a byte (RFC 7541, 5.1).

use super::HpackError;

/// How many bytes may follow the first one: 28 bits, which no length or size that makes sense is beyond. More could be
/// valid by the letter only, as zeros in front.
const MAX_MORE: usize = 4;

/// Reads an integer whose first byte is `first`, and is in the bits of `mask` there. `at` is behind this byte.
#[inline]
pub(super) fn read(block: &[u8], at: &mut usize, first: u8, mask: u8) -> Result<usize, HpackError> {
    let value = first & mask;
    if value == mask { read_more(block, at, mask) } else { Ok(usize::from(value)) }
}

/// Reads the bytes that follow when all bits of the mask are ones.
#[inline(never)]
fn read_more(block: &[u8], at: &mut usize, mask: u8) -> Result<usize, HpackError> {
    let mut value = usize::from(mask);
    for place in 0..MAX_MORE {
        let byte = *block.get(*at).ok_or(HpackError::Truncated)?;
        *at += 1;
        value += usize::from(byte & 0x7f) << (7 * place);
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(HpackError::Integer)
}

/// Writes an integer into the bits of `mask` of a byte whose other bits are those of `first`, and as many bytes more as
/// it takes.
#[inline]
pub(super) fn write(out: &mut Vec<u8>, first: u8, mask: u8, value: usize) {
    if value < usize::from(mask) {
        out.push(first | value as u8);
    } else {
        write_more(out, first | mask, value - usize::from(mask));
    }
}

#[inline(never)]
fn write_more(out: &mut Vec<u8>, first: u8, mut rest: usize) {
    out.push(first);
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}
