//! The lines of a file, which may be compressed. Of a line that is longer than any request no more is held than that.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Bytes of the longest line that is read: more than the gateway writes of any request.
pub(super) const MAX_LINE: usize = 256 * 1024;
/// Bytes read at once.
const CHUNK: usize = 256 * 1024;
/// RFC 1952, 2.3.1.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// RFC 8878, 3.1.1, and the frames of 3.1.2 that are passed over, whose first byte is one of sixteen.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const SKIPPABLE: [u8; 3] = [0x2a, 0x4d, 0x18];

/// A file of lines.
pub(super) struct LineFile {
    /// As it was named.
    pub(super) name: String,
    input: Box<dyn BufRead>,
    /// Of the line that was read last, from 1.
    pub(super) number: u64,
    line: Vec<u8>,
    is_compressed: bool,
}

/// The result of a reading.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LineRead<'l> {
    /// A line, without its end.
    Whole(&'l [u8]),
    /// One that is too long.
    TooLong,
    /// The compressed data break off or are damaged: nothing can be read from here on.
    Cut,
    /// There is no more.
    End,
}

impl LineFile {
    /// Opens a file, or standard input if it is `-`. The bytes that are read of it, compressed as they are, are added to `taken`.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn open(path: &Path, taken: &Rc<Cell<u64>>) -> io::Result<Self> {
        let source: Box<dyn Read> = if path == Path::new("-") {
            Box::new(io::stdin())
        } else {
            let file = File::open(path)?;
            if file.metadata()?.is_dir() {
                return Err(io::Error::other("it is a directory: name the files in it"));
            }
            Box::new(file)
        };
        let name = if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() };
        Self::over(name, Box::new(CountingReader { source, taken: Rc::clone(taken) }))
    }

    fn over(name: String, mut source: Box<dyn Read>) -> io::Result<Self> {
        // A pipe may give its first bytes one by one.
        let mut head = Vec::new();
        source.by_ref().take(4).read_to_end(&mut head)?;
        let (is_gzip, is_zstd) = (head.starts_with(&GZIP), head == ZSTD || head.get(1..) == Some(&SKIPPABLE));
        let source = Box::new(BufReader::with_capacity(CHUNK, io::Cursor::new(head).chain(source)));
        let input: Box<dyn BufRead> = if is_gzip {
            Box::new(BufReader::with_capacity(CHUNK, MultiGzDecoder::new(source)))
        } else if is_zstd {
            Box::new(BufReader::with_capacity(CHUNK, Frames { source, decoder: FrameDecoder::new(), is_open: false }))
        } else {
            source
        };
        Ok(Self { name, input, number: 0, line: Vec::new(), is_compressed: is_gzip || is_zstd })
    }

    /// The next line.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn next(&mut self) -> io::Result<LineRead<'_>> {
        self.line.clear();
        let mut length = 0;
        loop {
            let chunk = match self.input.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) if self.is_compressed => return Ok(LineRead::Cut),
                chunk => chunk?,
            };
            if chunk.is_empty() {
                if length == 0 {
                    return Ok(LineRead::End);
                }
                break;
            }
            let feed = memchr::memchr(b'\n', chunk);
            let text = chunk.get(..feed.unwrap_or(chunk.len())).unwrap_or_default();
            let room = MAX_LINE.saturating_sub(self.line.len());
            self.line.extend_from_slice(text.get(..room).unwrap_or(text));
            let taken = text.len() + usize::from(feed.is_some());
            length += taken;
            self.input.consume(taken);
            if feed.is_some() {
                length -= 1;
                break;
            }
        }
        self.number += 1;
        if length > MAX_LINE {
            return Ok(LineRead::TooLong);
        }
        Ok(LineRead::Whole(self.line.strip_suffix(b"\r").unwrap_or(&self.line)))
    }
}

/// The sum of the sizes of files, if each of them has one.
pub(super) fn size_of(paths: &[PathBuf]) -> Option<u64> {
    let size = |path: &PathBuf| std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file).map(|own| own.len());
    paths.iter().map(size).sum()
}

/// Adds up what is read.
struct CountingReader {
    source: Box<dyn Read>,
    taken: Rc<Cell<u64>>,
}

impl Read for CountingReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer)?;
        self.taken.set(self.taken.get() + read as u64);
        Ok(read)
    }
}

/// Frames of Zstandard, one after the other: the decoder ends with the first.
struct Frames {
    source: Box<dyn BufRead>,
    decoder: FrameDecoder,
    /// Whether the decoder is within a frame.
    is_open: bool,
}

impl Frames {
    /// Begins the next frame that holds something; false at the end.
    fn begin(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.source) {
                Ok(()) => {
                    self.is_open = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    io::copy(&mut self.source.by_ref().take(length.into()), &mut io::sink())?;
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(false)
    }
}

impl Read for Frames {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.is_open || self.begin()? {
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                self.decoder
                    .decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBlocks(1))
                    .map_err(io::Error::other)?;
            }
            let read = self.decoder.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            self.is_open = false;
            let stated = self.decoder.get_checksum_from_data();
            if stated.is_some() && stated != self.decoder.get_calculated_checksum() {
                return Err(io::Error::other("the checksum is another"));
            }
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn read(bytes: Vec<u8>) -> Vec<String> {
        let mut lines = LineFile::over("x".to_owned(), Box::new(io::Cursor::new(bytes))).unwrap();
        let mut all = Vec::new();
        loop {
            all.push(match lines.next().unwrap() {
                LineRead::Whole(line) => String::from_utf8_lossy(line).into_owned(),
                LineRead::TooLong => "too long".to_owned(),
                LineRead::Cut => "cut".to_owned(),
                LineRead::End => return all,
            });
            if all.last().is_some_and(|last| last == "cut") {
                return all;
            }
        }
    }

    fn gzip(text: &str) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(text: &str) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(text.as_bytes(), ruzstd::encoding::CompressionLevel::Fastest)
    }

    #[test]
    fn lines_end_in_any_way_and_an_empty_file_has_none() {
        assert_eq!(read(b"a\r\n\nb".to_vec()), ["a", "", "b"]);
        assert_eq!(read(b"a\n".to_vec()), ["a"]);
        assert_eq!(read(Vec::new()), [""; 0]);
        assert_eq!(read(b"ab".to_vec()), ["ab"]);
    }

    #[test]
    fn compressed_files_are_read_as_they_were_in_all_their_parts() {
        for compress in [gzip as fn(&str) -> Vec<u8>, zstd] {
            assert_eq!(read([compress("a\nb"), compress("c\n")].concat()), ["a", "bc"]);
            assert_eq!(read(compress("")), [""; 0]);
        }
        // A frame that holds nothing of the file.
        let passed_over = [&[0x53, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"xyz"].concat();
        assert_eq!(read([passed_over, zstd("a\n")].concat()), ["a"]);
    }

    #[test]
    fn what_breaks_off_or_is_damaged_is_said_after_what_could_be_read() {
        let text =
            (0..20_000).map(|line| format!("line {line} {}\n", line * 7919 % 10_007)).collect::<Vec<_>>().concat();
        for bytes in [gzip(&text), zstd(&text)] {
            let all = read(bytes[..bytes.len() / 2].to_vec());
            assert_eq!(all.last().map(String::as_str), Some("cut"));
            // Of Zstandard the last window is held back until the frame has ended.
            assert!(bytes.starts_with(&ZSTD) || all[0].starts_with("line 0 "), "{}", all[0]);
            let mut damaged = bytes.clone();
            let end = damaged.len() - 3;
            damaged[end] ^= 1;
            assert_eq!(read(damaged).last().map(String::as_str), Some("cut"));
        }
    }

    #[test]
    fn of_a_line_that_is_too_long_no_more_is_held_than_the_longest() {
        let long = [vec![b'x'; MAX_LINE + 1], b"\nb\n".to_vec()].concat();
        assert_eq!(read(long), ["too long", "b"]);
        assert_eq!(read([vec![b'x'; MAX_LINE], b"\nb".to_vec()].concat())[1], "b");
        let mut lines = LineFile::over("x".to_owned(), Box::new(io::repeat(b'x').take(100 << 20))).unwrap();
        assert_eq!(lines.next().unwrap(), LineRead::TooLong);
        assert!(lines.line.capacity() <= 2 * MAX_LINE, "{}", lines.line.capacity());
        assert_eq!(lines.next().unwrap(), LineRead::End);
    }
}
