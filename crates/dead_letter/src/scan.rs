//! Lines of a file, shown where they lie in a buffer. The buffer grows with the longest line and no further than an entry may
//! be long; what is longer is passed over.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::entry::Entry;
use super::line::MAX_LINE;
use sluicegate_time::Wall;

/// Bytes of a buffer at first, unless it was made with others.
const CHUNK: usize = 256 * 1024;
/// Bytes that are read at first of a segment whose first line is wanted.
const USUAL_LINE: usize = 4 * 1024;

/// One line, or the end of them.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Raw<'a> {
    /// Without its line feed.
    Line(&'a [u8]),
    /// A line that is longer than any entry.
    TooLong,
    /// There is no further line feed.
    End {
        /// Bytes after the last one.
        unfinished: u64,
    },
}

/// Splits what it reads into lines.
pub(super) struct LineSplitter<R> {
    input: R,
    buffer: Vec<u8>,
    /// The part of the buffer that is read and not shown.
    start: usize,
    end: usize,
    taken: u64,
}

impl<R: Read> LineSplitter<R> {
    /// With a buffer that was used before, or an empty one: readers of many files need one buffer.
    pub(super) fn new(input: R, buffer: Vec<u8>) -> Self {
        Self { input, buffer, start: 0, end: 0, taken: 0 }
    }

    /// The buffer, for the next file.
    pub(super) fn into_buffer(self) -> Vec<u8> {
        self.buffer
    }

    /// Bytes of the line that was shown last, line feed included.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// The next line.
    pub(super) fn next_line(&mut self) -> io::Result<Raw<'_>> {
        // Bytes of the line that were let go, and those held that have no line feed.
        let (mut gone, mut searched) = (0, 0);
        loop {
            let fresh = self.buffer.get(self.start + searched..self.end).unwrap_or_default();
            if let Some(at) = memchr::memchr(b'\n', fresh) {
                let (start, length) = (self.start, searched + at);
                self.start += length + 1;
                self.taken = gone + length as u64 + 1;
                let is_too_long = self.taken > MAX_LINE as u64;
                let line = self.buffer.get(start..start + length).unwrap_or_default();
                return Ok(if is_too_long { Raw::TooLong } else { Raw::Line(line) });
            }
            searched = self.end - self.start;
            if searched > MAX_LINE {
                gone += searched as u64;
                (self.start, self.end, searched) = (0, 0, 0);
            }
            if self.fill()? == 0 {
                self.taken = gone + searched as u64;
                return Ok(Raw::End { unfinished: self.taken });
            }
        }
    }

    /// Reads more behind what is held: that moves to the front, and only where it fills all the buffer grows.
    fn fill(&mut self) -> io::Result<usize> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.buffer.len() {
            let larger = if self.buffer.is_empty() { CHUNK } else { 2 * self.buffer.len() };
            self.buffer.resize(larger, 0);
        }
        let room = self.buffer.get_mut(self.end..).unwrap_or_default();
        loop {
            match self.input.read(room) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(read) => {
                    self.end += read;
                    return Ok(read);
                }
            }
        }
    }
}

/// When the first line of a segment was written.
pub(super) fn first_instant(path: &Path) -> Option<Wall> {
    // A directory may have many segments: each is given the room of a usual line, not that of the longest.
    let mut lines = LineSplitter::new(File::open(path).ok()?, vec![0; USUAL_LINE]);
    match lines.next_line().ok()? {
        Raw::Line(line) => Entry::parse(line).map(|entry| entry.at()),
        Raw::TooLong | Raw::End { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Gives a few bytes at a time.
    struct Drops<'a>(&'a [u8], usize);

    impl Read for Drops<'_> {
        fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
            let length = self.0.len().min(self.1).min(room.len());
            room[..length].copy_from_slice(&self.0[..length]);
            self.0 = &self.0[length..];
            Ok(length)
        }
    }

    /// Lengths of lines, `None` of those that are too long; bytes of the last one; and how large the buffer became.
    fn lengths(text: &[u8], at_once: usize, buffer: usize) -> (Vec<Option<usize>>, u64, usize) {
        let mut lines = LineSplitter::new(Drops(text, at_once), vec![0; buffer]);
        let (mut found, mut sum) = (Vec::new(), 0);
        loop {
            match lines.next_line().unwrap() {
                Raw::Line(line) => {
                    assert!(text[sum..].starts_with(line));
                    found.push(Some(line.len()));
                }
                Raw::TooLong => found.push(None),
                Raw::End { unfinished } => {
                    assert_eq!(sum as u64 + unfinished, text.len() as u64);
                    return (found, unfinished, lines.into_buffer().len());
                }
            }
            sum += lines.taken() as usize;
        }
    }

    #[test]
    fn a_line_is_as_long_as_an_entry_may_be_and_no_longer() {
        for (length, found) in [(MAX_LINE - 1, Some(MAX_LINE - 1)), (MAX_LINE, None), (5 * MAX_LINE, None)] {
            let text = [b"a\n".to_vec(), vec![b'x'; length], b"\nbc\n\nd".to_vec()].concat();
            for (at_once, buffer) in [(usize::MAX, 0), (1000, 16), (MAX_LINE, MAX_LINE)] {
                let (lines, unfinished, _) = lengths(&text, at_once, buffer);
                assert_eq!((lines, unfinished), (vec![Some(1), found, Some(2), Some(0)], 1), "{length} {at_once}");
            }
        }
    }

    #[test]
    fn the_buffer_grows_with_the_longest_line_and_has_a_bound() {
        assert_eq!(lengths(b"a\nb\n", 1, 16).2, 16);
        assert_eq!(lengths(&[b'x'; 100], 100, 16).2, 128);
        assert!(lengths(&vec![b'x'; 40 * MAX_LINE], 10_000, 16).2 <= 4 * MAX_LINE);
        assert_eq!(lengths(b"a\n", 1, 0).2, CHUNK);
    }

    proptest! {
        #[test]
        fn lines_are_those_of_split(text in "[ab\n]{0,300}", at_once in 1_usize..50, buffer in 1_usize..40) {
            let (found, unfinished, _) = lengths(text.as_bytes(), at_once, buffer);
            let mut expected: Vec<_> = text.split('\n').map(|line| Some(line.len())).collect();
            let last = expected.pop().flatten();
            prop_assert_eq!((found, Some(unfinished as usize)), (expected, last));
        }
    }
}
