//! The chunked transfer coding: RFC 9112, 7.1.

use super::body::{Accepted, ChunkPart};
use super::fault::Fault;
use super::framing::MAX_LENGTH;
use super::trailers::{TrailerStep, Trailers};

/// The most digits in a chunk size, leading zeros included.
const MAX_DIGITS: u8 = 16;
/// The most bytes between the size of a chunk and the end of its line.
const MAX_EXTENSION: u32 = 256;
/// The same, over all chunks of a body: extensions are work for us that brings nobody a byte (CVE-2023-39326).
const MAX_EXTENSIONS: u32 = 16 * 1024;

/// Reads chunks as they come. Each byte is looked at once; data is skipped in bulk.
#[derive(Debug, Default)]
pub(super) struct Chunked {
    state: ChunkState,
    /// Of the chunk: what its digits say so far, then how much data is to come.
    size: u64,
    digits: u8,
    extension: u32,
    extensions: u32,
    content: u64,
    trailers: Trailers,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ChunkState {
    /// Before or within the digits of a size.
    #[default]
    Size,
    /// Spaces after the size: only an extension may follow.
    Space,
    /// In an extension.
    Extension,
    /// LF is next, and ends the line of the size.
    SizeLf,
    Data,
    /// CR is next, after the data.
    DataCr,
    /// LF is next, after the data.
    DataLf,
    Trailers,
    Complete,
    Failed(Fault),
}

/// The fate of a byte that is not data.
#[derive(PartialEq, Eq)]
enum ByteFate {
    Kept,
    Dropped,
}

impl Chunked {
    pub(super) fn reset(&mut self) {
        self.state = ChunkState::Size;
        self.size = 0;
        self.digits = 0;
        self.extension = 0;
        self.extensions = 0;
        self.content = 0;
        self.trailers.reset();
    }

    pub(super) fn is_complete(&self) -> bool {
        self.state == ChunkState::Complete
    }

    pub(super) fn is_between(&self) -> bool {
        self.state == ChunkState::Size && self.digits == 0
    }

    pub(super) fn content(&self) -> u64 {
        self.content
    }

    pub(super) fn tail(&self) -> &[u8] {
        self.trailers.tail()
    }

    pub(super) fn accept(
        &mut self,
        bytes: &mut [u8],
        form: ChunkPart,
        content: impl FnMut(&[u8]),
    ) -> Result<Accepted, Fault> {
        let accepted = self.advance(bytes, form, content);
        if let Err(fault) = accepted {
            self.state = ChunkState::Failed(fault);
        }
        accepted
    }

    fn advance(
        &mut self,
        bytes: &mut [u8],
        form: ChunkPart,
        mut content: impl FnMut(&[u8]),
    ) -> Result<Accepted, Fault> {
        let Accepted { mut taken, mut kept } = Accepted::default();
        while let Some(byte) = bytes.get(taken).copied() {
            let fate = match self.state {
                ChunkState::Complete => break,
                ChunkState::Failed(fault) => return Err(fault),
                ChunkState::Data => {
                    let length = self.skip_data(bytes.len() - taken);
                    content(&bytes[taken..taken + length]);
                    if kept != taken {
                        bytes.copy_within(taken..taken + length, kept);
                    }
                    taken += length;
                    kept += length;
                    continue;
                }
                ChunkState::Trailers => {
                    let step = self.trailers.accept(&bytes[taken..])?;
                    if self.trailers.is_complete() {
                        self.state = ChunkState::Complete;
                    }
                    match step {
                        TrailerStep::EmptyLine => ByteFate::Kept,
                        TrailerStep::Taken(length) => {
                            taken += length;
                            continue;
                        }
                    }
                }
                _ => self.step(byte)?,
            };
            taken += 1;
            if fate == ByteFate::Kept && form == ChunkPart::AsIs {
                bytes[kept] = byte;
                kept += 1;
            }
        }
        Ok(Accepted { taken, kept })
    }

    /// Takes at most `available` bytes of data.
    fn skip_data(&mut self, available: usize) -> usize {
        let length = usize::try_from(self.size).map_or(available, |size| size.min(available));
        self.size -= length as u64;
        self.content = self.content.saturating_add(length as u64);
        if self.size == 0 {
            self.state = ChunkState::DataCr;
        }
        length
    }

    /// Takes a byte outside data and trailers.
    fn step(&mut self, byte: u8) -> Result<ByteFate, Fault> {
        match (self.state, byte) {
            (ChunkState::Size, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => self.push_digit(byte)?,
            (ChunkState::Size, b'\r') if self.digits > 0 => self.state = ChunkState::SizeLf,
            (ChunkState::Size, b' ' | b'\t') if self.digits > 0 => return self.drop_extension(ChunkState::Space),
            (ChunkState::Size, b';') if self.digits > 0 => return self.drop_extension(ChunkState::Extension),
            (ChunkState::Space, b' ' | b'\t') => return self.drop_extension(ChunkState::Space),
            (ChunkState::Extension, b'\r') => self.state = ChunkState::SizeLf,
            (ChunkState::Space, b';') | (ChunkState::Extension, b'\t' | b' '..=b'~' | 0x80..) => {
                return self.drop_extension(ChunkState::Extension);
            }
            (ChunkState::Space | ChunkState::Extension, _) => return Err(Fault::ChunkExtension),
            (ChunkState::SizeLf, b'\n') => self.begin_data(),
            (ChunkState::DataCr, b'\r') => self.state = ChunkState::DataLf,
            (ChunkState::DataLf, b'\n') => self.state = ChunkState::Size,
            (ChunkState::DataCr | ChunkState::DataLf, _) => return Err(Fault::ChunkEnd),
            _ => return Err(Fault::ChunkSize),
        }
        Ok(ByteFate::Kept)
    }

    fn push_digit(&mut self, byte: u8) -> Result<(), Fault> {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            _ => (byte | 0x20) - b'a' + 10,
        };
        // Fifteen digits are below 2^60: the sixteenth does not overflow.
        if self.digits == MAX_DIGITS {
            return Err(Fault::ChunkSize);
        }
        self.digits += 1;
        self.size = self.size << 4 | u64::from(digit);
        if self.size > MAX_LENGTH { Err(Fault::ChunkSize) } else { Ok(()) }
    }

    fn drop_extension(&mut self, next: ChunkState) -> Result<ByteFate, Fault> {
        self.extension += 1;
        self.extensions += 1;
        if self.extension > MAX_EXTENSION || self.extensions > MAX_EXTENSIONS {
            return Err(Fault::ChunkExtension);
        }
        self.state = next;
        Ok(ByteFate::Dropped)
    }

    fn begin_data(&mut self) {
        self.state = if self.size == 0 { ChunkState::Trailers } else { ChunkState::Data };
        self.digits = 0;
        self.extension = 0;
    }
}
