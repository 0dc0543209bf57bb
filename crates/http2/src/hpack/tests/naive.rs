//! RFC 7541 as it is written, without a thought of speed: the oracle.

use std::collections::HashMap;

use super::super::HpackError;

pub(super) type Field = (Vec<u8>, Vec<u8>);

/// Code and length of each byte and of the end of a string, as Appendix B lists them.
#[rustfmt::skip]
#[expect(clippy::unreadable_literal, reason = "as they are listed")]
pub(super) const CODES: [(u32, u8); 257] = [
    (0x1ff8, 13), (0x7fffd8, 23), (0xfffffe2, 28), (0xfffffe3, 28), (0xfffffe4, 28), (0xfffffe5, 28),
    (0xfffffe6, 28), (0xfffffe7, 28), (0xfffffe8, 28), (0xffffea, 24), (0x3ffffffc, 30), (0xfffffe9, 28),
    (0xfffffea, 28), (0x3ffffffd, 30), (0xfffffeb, 28), (0xfffffec, 28), (0xfffffed, 28), (0xfffffee, 28),
    (0xfffffef, 28), (0xffffff0, 28), (0xffffff1, 28), (0xffffff2, 28), (0x3ffffffe, 30), (0xffffff3, 28),
    (0xffffff4, 28), (0xffffff5, 28), (0xffffff6, 28), (0xffffff7, 28), (0xffffff8, 28), (0xffffff9, 28),
    (0xffffffa, 28), (0xffffffb, 28), (0x14, 6), (0x3f8, 10), (0x3f9, 10), (0xffa, 12),
    (0x1ff9, 13), (0x15, 6), (0xf8, 8), (0x7fa, 11), (0x3fa, 10), (0x3fb, 10),
    (0xf9, 8), (0x7fb, 11), (0xfa, 8), (0x16, 6), (0x17, 6), (0x18, 6),
    (0x0, 5), (0x1, 5), (0x2, 5), (0x19, 6), (0x1a, 6), (0x1b, 6),
    (0x1c, 6), (0x1d, 6), (0x1e, 6), (0x1f, 6), (0x5c, 7), (0xfb, 8),
    (0x7ffc, 15), (0x20, 6), (0xffb, 12), (0x3fc, 10), (0x1ffa, 13), (0x21, 6),
    (0x5d, 7), (0x5e, 7), (0x5f, 7), (0x60, 7), (0x61, 7), (0x62, 7),
    (0x63, 7), (0x64, 7), (0x65, 7), (0x66, 7), (0x67, 7), (0x68, 7),
    (0x69, 7), (0x6a, 7), (0x6b, 7), (0x6c, 7), (0x6d, 7), (0x6e, 7),
    (0x6f, 7), (0x70, 7), (0x71, 7), (0x72, 7), (0xfc, 8), (0x73, 7),
    (0xfd, 8), (0x1ffb, 13), (0x7fff0, 19), (0x1ffc, 13), (0x3ffc, 14), (0x22, 6),
    (0x7ffd, 15), (0x3, 5), (0x23, 6), (0x4, 5), (0x24, 6), (0x5, 5),
    (0x25, 6), (0x26, 6), (0x27, 6), (0x6, 5), (0x74, 7), (0x75, 7),
    (0x28, 6), (0x29, 6), (0x2a, 6), (0x7, 5), (0x2b, 6), (0x76, 7),
    (0x2c, 6), (0x8, 5), (0x9, 5), (0x2d, 6), (0x77, 7), (0x78, 7),
    (0x79, 7), (0x7a, 7), (0x7b, 7), (0x7ffe, 15), (0x7fc, 11), (0x3ffd, 14),
    (0x1ffd, 13), (0xffffffc, 28), (0xfffe6, 20), (0x3fffd2, 22), (0xfffe7, 20), (0xfffe8, 20),
    (0x3fffd3, 22), (0x3fffd4, 22), (0x3fffd5, 22), (0x7fffd9, 23), (0x3fffd6, 22), (0x7fffda, 23),
    (0x7fffdb, 23), (0x7fffdc, 23), (0x7fffdd, 23), (0x7fffde, 23), (0xffffeb, 24), (0x7fffdf, 23),
    (0xffffec, 24), (0xffffed, 24), (0x3fffd7, 22), (0x7fffe0, 23), (0xffffee, 24), (0x7fffe1, 23),
    (0x7fffe2, 23), (0x7fffe3, 23), (0x7fffe4, 23), (0x1fffdc, 21), (0x3fffd8, 22), (0x7fffe5, 23),
    (0x3fffd9, 22), (0x7fffe6, 23), (0x7fffe7, 23), (0xffffef, 24), (0x3fffda, 22), (0x1fffdd, 21),
    (0xfffe9, 20), (0x3fffdb, 22), (0x3fffdc, 22), (0x7fffe8, 23), (0x7fffe9, 23), (0x1fffde, 21),
    (0x7fffea, 23), (0x3fffdd, 22), (0x3fffde, 22), (0xfffff0, 24), (0x1fffdf, 21), (0x3fffdf, 22),
    (0x7fffeb, 23), (0x7fffec, 23), (0x1fffe0, 21), (0x1fffe1, 21), (0x3fffe0, 22), (0x1fffe2, 21),
    (0x7fffed, 23), (0x3fffe1, 22), (0x7fffee, 23), (0x7fffef, 23), (0xfffea, 20), (0x3fffe2, 22),
    (0x3fffe3, 22), (0x3fffe4, 22), (0x7ffff0, 23), (0x3fffe5, 22), (0x3fffe6, 22), (0x7ffff1, 23),
    (0x3ffffe0, 26), (0x3ffffe1, 26), (0xfffeb, 20), (0x7fff1, 19), (0x3fffe7, 22), (0x7ffff2, 23),
    (0x3fffe8, 22), (0x1ffffec, 25), (0x3ffffe2, 26), (0x3ffffe3, 26), (0x3ffffe4, 26), (0x7ffffde, 27),
    (0x7ffffdf, 27), (0x3ffffe5, 26), (0xfffff1, 24), (0x1ffffed, 25), (0x7fff2, 19), (0x1fffe3, 21),
    (0x3ffffe6, 26), (0x7ffffe0, 27), (0x7ffffe1, 27), (0x3ffffe7, 26), (0x7ffffe2, 27), (0xfffff2, 24),
    (0x1fffe4, 21), (0x1fffe5, 21), (0x3ffffe8, 26), (0x3ffffe9, 26), (0xffffffd, 28), (0x7ffffe3, 27),
    (0x7ffffe4, 27), (0x7ffffe5, 27), (0xfffec, 20), (0xfffff3, 24), (0xfffed, 20), (0x1fffe6, 21),
    (0x3fffe9, 22), (0x1fffe7, 21), (0x1fffe8, 21), (0x7ffff3, 23), (0x3fffea, 22), (0x3fffeb, 22),
    (0x1ffffee, 25), (0x1ffffef, 25), (0xfffff4, 24), (0xfffff5, 24), (0x3ffffea, 26), (0x7ffff4, 23),
    (0x3ffffeb, 26), (0x7ffffe6, 27), (0x3ffffec, 26), (0x3ffffed, 26), (0x7ffffe7, 27), (0x7ffffe8, 27),
    (0x7ffffe9, 27), (0x7ffffea, 27), (0x7ffffeb, 27), (0xffffffe, 28), (0x7ffffec, 27), (0x7ffffed, 27),
    (0x7ffffee, 27), (0x7ffffef, 27), (0x7fffff0, 27), (0x3ffffee, 26), (0x3fffffff, 30),
];

#[rustfmt::skip]
pub(super) const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

pub(super) struct Naive {
    pub(super) dynamic: Vec<Field>,
    max_size: u128,
    limit: u128,
    symbols: HashMap<(u32, u8), usize>,
}

impl Naive {
    pub(super) fn new(limit: usize) -> Self {
        let symbols = CODES.iter().enumerate().map(|(symbol, code)| (*code, symbol)).collect();
        Self { dynamic: Vec::new(), max_size: (limit as u128).min(4096), limit: limit as u128, symbols }
    }

    /// The fields before an error, and the error.
    pub(super) fn decode(&mut self, block: &[u8]) -> (Vec<Field>, Result<(), HpackError>) {
        let mut fields = Vec::new();
        let mut rest = block.to_vec();
        rest.reverse();
        let result = self.fields(&mut rest, &mut fields);
        (fields, result)
    }

    fn fields(&mut self, rest: &mut Vec<u8>, fields: &mut Vec<Field>) -> Result<(), HpackError> {
        let mut is_first = true;
        while let Some(first) = rest.pop() {
            if first >> 7 == 1 {
                let index = integer(first, 7, rest)?;
                fields.push(self.at(index)?);
            } else if first >> 5 == 1 {
                if !is_first {
                    return Err(HpackError::TableSizeLate);
                }
                self.max_size = integer(first, 5, rest)?;
                if self.max_size > self.limit {
                    return Err(HpackError::TableSize);
                }
                self.evict();
                continue;
            } else {
                let index = integer(first, if first >> 6 == 1 { 6 } else { 4 }, rest)?;
                let name = if index == 0 { self.string(rest)? } else { self.at(index)?.0 };
                let value = self.string(rest)?;
                fields.push((name.clone(), value.clone()));
                if first >> 6 == 1 {
                    self.dynamic.insert(0, (name, value));
                    self.evict();
                }
            }
            is_first = false;
        }
        Ok(())
    }

    fn evict(&mut self) {
        let size = |entries: &[Field]| entries.iter().map(|(n, v)| (n.len() + v.len() + 32) as u128).sum::<u128>();
        while size(&self.dynamic) > self.max_size {
            self.dynamic.pop();
        }
    }

    fn at(&self, index: u128) -> Result<Field, HpackError> {
        let index = index.checked_sub(1).ok_or(HpackError::Index)? as usize;
        match STATIC.get(index) {
            Some((name, value)) => Ok((name.as_bytes().to_vec(), value.as_bytes().to_vec())),
            None => self.dynamic.get(index - STATIC.len()).cloned().ok_or(HpackError::Index),
        }
    }

    fn string(&self, rest: &mut Vec<u8>) -> Result<Vec<u8>, HpackError> {
        let first = rest.pop().ok_or(HpackError::Truncated)?;
        let length = integer(first, 7, rest)?;
        let mut bytes = Vec::new();
        for _ in 0..length {
            bytes.push(rest.pop().ok_or(HpackError::Truncated)?);
        }
        if first >> 7 == 1 { self.huffman(&bytes).ok_or(HpackError::Huffman) } else { Ok(bytes) }
    }

    /// Bit by bit.
    pub(super) fn huffman(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let (mut code, mut length) = (0, 0);
        for byte in bytes {
            for place in (0..8).rev() {
                code = code << 1 | u32::from(byte >> place & 1);
                length += 1;
                if let Some(symbol) = self.symbols.get(&(code, length)) {
                    out.push(u8::try_from(*symbol).ok()?);
                    (code, length) = (0, 0);
                }
            }
        }
        (length < 8 && code == (1 << length) - 1).then_some(out)
    }
}

/// With at most four bytes behind the first.
fn integer(first: u8, bits: u8, rest: &mut Vec<u8>) -> Result<u128, HpackError> {
    let most = (1 << bits) - 1;
    let mut value = u128::from(first) & most;
    if value < most {
        return Ok(value);
    }
    let mut factor = 1;
    loop {
        if factor == 1 << 28 {
            return Err(HpackError::Integer);
        }
        let byte = rest.pop().ok_or(HpackError::Truncated)?;
        value += u128::from(byte % 128) * factor;
        factor *= 128;
        if byte < 128 {
            return Ok(value);
        }
    }
}

/// A string in the Huffman code, padded as it must be.
pub(super) fn huffman_encode(bytes: &[u8]) -> Vec<u8> {
    let mut bits: Vec<u8> = Vec::new();
    for byte in bytes {
        let (code, length) = CODES[usize::from(*byte)];
        bits.extend((0..length).rev().map(|place| (code >> place & 1) as u8));
    }
    while !bits.len().is_multiple_of(8) {
        bits.push(1);
    }
    bits.chunks(8).map(|byte| byte.iter().fold(0, |byte, bit| byte << 1 | bit)).collect()
}

pub(super) fn integer_encode(out: &mut Vec<u8>, first: u8, bits: u8, value: usize) {
    let most = (1 << bits) - 1;
    if value < most {
        out.push(first | value as u8);
        return;
    }
    out.push(first | most as u8);
    let mut rest = value - most;
    while rest >= 128 {
        out.push((rest % 128 + 128) as u8);
        rest /= 128;
    }
    out.push(rest as u8);
}
