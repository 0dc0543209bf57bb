//! Header blocks of a peer, decoded.

use std::fmt;
use std::ops::Range;

use super::dynamic_table::DynamicTable;
use super::{huffman, integer, static_table};

/// The size of a dynamic table before its peer chooses another one (RFC 9113, 6.5.2).
const DEFAULT_TABLE: usize = 4096;
/// The greatest table: sizes beyond cannot be chosen, since no integer is as great.
const MAX_TABLE: usize = 1 << 28;
/// How much room for decoded strings is kept from one block to the next.
const KEPT_SCRATCH: usize = 16 * 1024;

/// Why a block cannot be decoded: the connection is of no use any more (`COMPRESSION_ERROR`; RFC 9113, 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HpackError {
    /// The block ends within a field.
    Truncated,
    /// An integer is too large, or takes too many bytes.
    Integer,
    /// An index is 0, or beyond both tables.
    Index,
    /// A string is not Huffman-coded as it says: its end, its padding or the end-of-string symbol.
    Huffman,
    /// A size of the dynamic table is above what was announced.
    TableSize,
    /// A size of the dynamic table does not stand at the beginning of the block.
    TableSizeLate,
}

impl HpackError {
    /// In words.
    pub fn what(self) -> &'static str {
        match self {
            Self::Truncated => "a header block that ends within a field",
            Self::Integer => "an integer of a header block that is too large",
            Self::Index => "an index of a header block that is in neither table",
            Self::Huffman => "a string of a header block that is not Huffman-coded as it says",
            Self::TableSize => "a header block that makes the dynamic table larger than was announced",
            Self::TableSizeLate => "a header block that changes the size of the dynamic table behind its beginning",
        }
    }
}

impl fmt::Display for HpackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what())
    }
}

impl std::error::Error for HpackError {}

/// Decodes the header blocks of one connection, all of them and in their order.
#[derive(Debug)]
pub struct Decoder {
    table: DynamicTable,
    /// Strings of the field that is being read, where they are not slices of the block.
    scratch: Vec<u8>,
}

/// A string of the field that is being read.
enum FieldString<'b> {
    /// As it stands in the block or in the static table.
    Plain(&'b [u8]),
    /// A range of the scratch.
    Scratch(Range<usize>),
}

impl<'b> FieldString<'b> {
    #[inline]
    fn bytes<'s>(self, scratch: &'s [u8]) -> &'s [u8]
    where
        'b: 's,
    {
        match self {
            Self::Plain(bytes) => bytes,
            Self::Scratch(range) => &scratch[range],
        }
    }
}

impl Decoder {
    /// `max_table`: what we have announced as `SETTINGS_HEADER_TABLE_SIZE`, in bytes (4,096 by default; at most 2^28). A
    /// peer that has not yet heard of less than 4,096 may use more, and is then misunderstood or refused.
    pub fn new(max_table: usize) -> Self {
        let limit = max_table.min(MAX_TABLE);
        Self { table: DynamicTable::new(limit.min(DEFAULT_TABLE), limit), scratch: Vec::new() }
    }

    /// Decodes one whole header block (HEADERS and its CONTINUATIONs put together), calls `field` with the name and the
    /// value of each field in order. The decoder is of no use after an error.
    ///
    /// The block's length says nothing about that of its fields: a byte may stand for a field of the size of the table.
    pub fn decode(&mut self, block: &[u8], mut field: impl FnMut(&[u8], &[u8])) -> Result<(), HpackError> {
        let mut at = 0;
        if let Some(0x20..0x40) = block.first() {
            self.resize_table(block, &mut at)?;
        }
        while let Some(first) = block.get(at) {
            at += 1;
            if *first < 0x80 {
                self.literal(block, &mut at, *first, &mut field)?;
                continue;
            }
            let index = integer::read(block, &mut at, *first, 0x7f)?;
            let (name, value) = match static_table::entry(index) {
                Some(entry) => entry,
                None => self.dynamic_entry(index)?,
            };
            field(name, value);
        }
        if self.scratch.len() > KEPT_SCRATCH {
            self.scratch = Vec::new();
        }
        Ok(())
    }

    /// Bytes of memory that it holds.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.table.memory() + self.scratch.capacity()
    }

    /// Reads the sizes that a block begins with: two of them can have a meaning, the smallest and the last.
    #[cold]
    fn resize_table(&mut self, block: &[u8], at: &mut usize) -> Result<(), HpackError> {
        while let Some(first @ 0x20..0x40) = block.get(*at) {
            *at += 1;
            let size = integer::read(block, at, *first, 0x1f)?;
            if !self.table.resize(size) {
                return Err(HpackError::TableSize);
            }
        }
        Ok(())
    }

    /// Reads a field whose value is written out.
    fn literal(
        &mut self,
        block: &[u8],
        at: &mut usize,
        first: u8,
        field: &mut impl FnMut(&[u8], &[u8]),
    ) -> Result<(), HpackError> {
        let (mask, is_kept) = match first {
            0x40.. => (0x3f, true),
            0x20.. => return Err(HpackError::TableSizeLate),
            _ => (0x0f, false),
        };
        let mut used = 0;
        let name = match integer::read(block, at, first, mask)? {
            0 => text(block, at, &mut self.scratch, &mut used)?,
            index => match static_table::entry(index) {
                Some((name, _)) => FieldString::Plain(name),
                None => self.dynamic_name(index, &mut used)?,
            },
        };
        let value = text(block, at, &mut self.scratch, &mut used)?;
        let (name, value) = (name.bytes(&self.scratch), value.bytes(&self.scratch));
        field(name, value);
        if is_kept {
            self.table.insert(name, value);
        }
        Ok(())
    }

    /// The entry with an index that the static table does not have. 0 is no index, and is beyond the table here.
    #[inline]
    fn dynamic_entry(&self, index: usize) -> Result<(&[u8], &[u8]), HpackError> {
        self.table.entry(index.wrapping_sub(static_table::LENGTH + 1)).ok_or(HpackError::Index)
    }

    /// The name of such an entry, out of the way of an insertion that evicts it.
    fn dynamic_name(&mut self, index: usize, used: &mut usize) -> Result<FieldString<'static>, HpackError> {
        let index = index.wrapping_sub(static_table::LENGTH + 1);
        let (name, _) = self.table.entry(index).ok_or(HpackError::Index)?;
        if self.scratch.len() < name.len() {
            self.scratch.resize(name.len(), 0);
        }
        self.scratch[..name.len()].copy_from_slice(name);
        *used = name.len();
        Ok(FieldString::Scratch(0..name.len()))
    }
}

/// Reads a string. The scratch has `used` bytes of the field's other string.
#[inline(always)]
#[expect(clippy::inline_always, reason = "half of its instructions would be calling it")]
fn text<'b>(
    block: &'b [u8],
    at: &mut usize,
    scratch: &mut Vec<u8>,
    used: &mut usize,
) -> Result<FieldString<'b>, HpackError> {
    let first = *block.get(*at).ok_or(HpackError::Truncated)?;
    *at += 1;
    let length = integer::read(block, at, first, 0x7f)?;
    let (bytes, end) = (&block[*at..], *at + length);
    let plain = bytes.get(..length).ok_or(HpackError::Truncated)?;
    *at = end;
    if first < 0x80 {
        return Ok(FieldString::Plain(plain));
    }
    let start = *used;
    *used = huffman::decode(bytes, length, scratch, start).ok_or(HpackError::Huffman)?;
    Ok(FieldString::Scratch(start..*used))
}
