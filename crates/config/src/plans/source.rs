//! A file line by line, in constant memory, and the digest of all of it.

use std::fs::{File, Metadata};
use std::io::{self, Read};

use memchr::memchr;
use sha2::{Digest, Sha256};

/// Bytes that are read at once.
const BUFFER: usize = 64 << 10;

/// How much is read.
#[derive(Clone, Copy)]
pub(super) struct ReadLimits {
    /// Of the file, in bytes; one that grows beyond while it is read is refused.
    pub(super) file: u64,
    /// Of a line, in bytes.
    pub(super) line: usize,
}

/// One line.
pub(super) struct TextLine<'s> {
    /// From 1.
    pub(super) number: usize,
    /// Without its end; of a line that is too long the beginning.
    pub(super) bytes: &'s [u8],
    /// Whether it is too long.
    pub(super) is_cut: bool,
}

/// Reads lines. Line ends are LF and CRLF, as TOML has them.
pub(super) struct LineSource<R> {
    reader: R,
    limits: ReadLimits,
    buffer: Box<[u8]>,
    /// The part of the buffer that has not been handed out.
    from: usize,
    until: usize,
    /// A line that lies across the buffer's end.
    gathered: Vec<u8>,
    number: usize,
    read: u64,
    hash: Sha256,
}

impl<R: Read> LineSource<R> {
    pub(super) fn new(reader: R, limits: ReadLimits) -> Self {
        Self {
            reader,
            limits,
            buffer: vec![0; BUFFER].into_boxed_slice(),
            from: 0,
            until: 0,
            gathered: Vec::new(),
            number: 0,
            read: 0,
            hash: Sha256::new(),
        }
    }

    /// The next line; `None` at the end.
    pub(super) fn line(&mut self) -> io::Result<Option<TextLine<'_>>> {
        self.gathered.clear();
        let mut is_cut = false;
        loop {
            if self.from == self.until && !self.fill()? {
                if self.gathered.is_empty() && !is_cut {
                    return Ok(None);
                }
                self.number += 1;
                return Ok(Some(TextLine { number: self.number, bytes: &self.gathered, is_cut }));
            }
            let here = self.buffer.get(self.from..self.until).unwrap_or_default();
            let end = memchr(b'\n', here);
            let piece = here.get(..end.unwrap_or(here.len())).unwrap_or_default();
            let room = self.limits.line.saturating_sub(self.gathered.len());
            is_cut |= piece.len() > room;
            let start = self.from;
            self.from += piece.len() + usize::from(end.is_some());
            if end.is_some() && self.gathered.is_empty() && !is_cut {
                // Whole in the buffer, as nearly every line is.
                self.number += 1;
                let bytes = self.buffer.get(start..start + piece.len()).unwrap_or_default();
                return Ok(Some(TextLine { number: self.number, bytes: without_cr(bytes), is_cut }));
            }
            self.gathered.extend_from_slice(piece.get(..room.min(piece.len())).unwrap_or_default());
            if end.is_some() {
                self.number += 1;
                return Ok(Some(TextLine { number: self.number, bytes: without_cr(&self.gathered), is_cut }));
            }
        }
    }

    /// SHA-256 of all that was read: of the file, once its last line was given.
    pub(super) fn digest(self) -> [u8; 32] {
        self.hash.finalize().into()
    }

    /// Whether there is more.
    fn fill(&mut self) -> io::Result<bool> {
        loop {
            match self.reader.read(&mut self.buffer) {
                Ok(bytes) => {
                    (self.from, self.until) = (0, bytes);
                    self.read = self.read.saturating_add(bytes as u64);
                    if self.read > self.limits.file {
                        return Err(io::Error::other("it grows while it is read"));
                    }
                    self.hash.update(self.buffer.get(..bytes).unwrap_or_default());
                    return Ok(bytes > 0);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl LineSource<File> {
    /// The state of the file now.
    pub(super) fn metadata(&self) -> io::Result<Metadata> {
        self.reader.metadata()
    }
}

/// A line that ends with LF may have a CR before it.
fn without_cr(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Gives a few bytes at a time.
    struct Drip<'t>(&'t [u8], usize);

    impl Read for Drip<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let (now, later) = self.0.split_at(self.0.len().min(self.1).min(buffer.len()));
            buffer[..now.len()].copy_from_slice(now);
            self.0 = later;
            Ok(now.len())
        }
    }

    fn all(text: &[u8], step: usize, limits: ReadLimits) -> io::Result<Vec<(usize, Vec<u8>, bool)>> {
        let mut source = LineSource::new(Drip(text, step), limits);
        let mut lines = Vec::new();
        while let Some(line) = source.line()? {
            lines.push((line.number, line.bytes.to_vec(), line.is_cut));
        }
        assert_eq!(source.digest(), <[u8; 32]>::from(Sha256::digest(text)));
        Ok(lines)
    }

    #[test]
    fn a_line_that_is_too_long_is_cut_and_the_next_one_is_whole() {
        let limits = ReadLimits { file: 1_000, line: 4 };
        for step in [1, 3, 100] {
            let lines = all(b"abcd\nabcde\nxy", step, limits).unwrap();
            let expected = [(1, b"abcd".to_vec(), false), (2, b"abcd".to_vec(), true), (3, b"xy".to_vec(), false)];
            assert_eq!(lines, expected, "{step}");
        }
    }

    #[test]
    fn a_file_that_grows_beyond_its_bound_is_refused() {
        assert!(all(b"abc\n", 1, ReadLimits { file: 4, line: 9 }).is_ok());
        assert!(all(b"abc\nd", 1, ReadLimits { file: 4, line: 9 }).is_err());
    }

    proptest! {
        #[test]
        fn gives_the_lines_of_the_text_however_it_comes(text in "[ab\r\n]{0,60}", step in 1..70_usize) {
            let lines = all(text.as_bytes(), step, ReadLimits { file: 1_000, line: 100 }).unwrap();
            let mut expected: Vec<&str> = text.split('\n').collect();
            let last = expected.pop().unwrap_or_default();
            let mut expected: Vec<&str> = expected.iter().map(|line| line.strip_suffix('\r').unwrap_or(line)).collect();
            if !last.is_empty() {
                expected.push(last);
            }
            let expected: Vec<_> = expected.iter().enumerate().map(|(at, line)| (at + 1, line.as_bytes().to_vec(), false)).collect();
            prop_assert_eq!(lines, expected);
        }
    }
}
