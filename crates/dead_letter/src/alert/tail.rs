//! The lines that were appended to a file since it was read last.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::super::line::MAX_LINE;

/// Bytes that are read at once.
const CHUNK: usize = 64 * 1024;

/// A file up to where it has been read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tail {
    inode: u64,
    offset: u64,
}

/// How far a reading got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TailProgress {
    /// To the end of the last whole line.
    All,
    /// As far as it was let.
    Part,
}

impl Tail {
    /// Shows the whole lines that were appended, without their line feeds, until `show` says that it is enough, or `budget` bytes
    /// are read. Where another file has taken the name, or this one is shorter than it was, `begin` is called and it is read from
    /// its beginning. A line that is longer than any entry is passed over.
    pub(super) fn read(
        &mut self,
        path: &Path,
        budget: &mut u64,
        mut begin: impl FnMut(),
        mut show: impl FnMut(&[u8]) -> bool,
    ) -> io::Result<TailProgress> {
        let mut file = File::open(path)?;
        let metadata = file.metadata()?;
        if metadata.ino() != self.inode || metadata.len() < self.offset {
            *self = Self { inode: metadata.ino(), offset: 0 };
            begin();
        }
        if metadata.len() == self.offset {
            return Ok(TailProgress::All);
        }
        file.seek(SeekFrom::Start(self.offset))?;
        let mut input = BufReader::with_capacity(CHUNK, file);
        let mut line = Vec::new();
        while *budget > 0 {
            let Some(taken) = next_line(&mut input, &mut line)? else { return Ok(TailProgress::All) };
            self.offset += taken;
            *budget = budget.saturating_sub(taken);
            if taken <= MAX_LINE as u64 && !show(&line) {
                break;
            }
        }
        Ok(TailProgress::Part)
    }
}

/// Reads a line, and says how many bytes it has with its line feed; `None`: there is no whole one. Of one that is too long no
/// more than [`MAX_LINE`] bytes are held.
fn next_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Option<u64>> {
    line.clear();
    let mut taken = 0;
    loop {
        let chunk = match input.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            chunk => chunk?,
        };
        if chunk.is_empty() {
            return Ok(None);
        }
        let feed = memchr::memchr(b'\n', chunk);
        let length = feed.map_or(chunk.len(), |at| at + 1);
        let text = chunk.get(..feed.unwrap_or(length)).unwrap_or_default();
        let room = MAX_LINE.saturating_sub(line.len()).min(text.len());
        line.extend_from_slice(text.get(..room).unwrap_or_default());
        taken += length as u64;
        input.consume(length);
        if feed.is_some() {
            return Ok(Some(taken));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;

    use super::*;

    fn read(tail: &mut Tail, path: &Path, most: usize) -> (Vec<String>, usize, TailProgress) {
        let (mut lines, mut begun) = (Vec::new(), 0);
        let show = |line: &[u8]| {
            lines.push(String::from_utf8(line.to_vec()).unwrap());
            lines.len() < most
        };
        let progress = tail.read(path, &mut u64::MAX.clone(), || begun += 1, show).unwrap();
        (lines, begun, progress)
    }

    #[test]
    fn only_whole_new_lines_are_shown() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        let mut file = File::create(&path).unwrap();
        let mut tail = Tail::default();
        file.write_all(b"one\ntwo\nthr").unwrap();
        let lines = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(read(&mut tail, &path, 9), (lines(&["one", "two"]), 1, TailProgress::All));
        assert_eq!(read(&mut tail, &path, 9), (lines(&[]), 0, TailProgress::All));
        file.write_all(b"ee\nfour\n").unwrap();
        assert_eq!(read(&mut tail, &path, 1), (lines(&["three"]), 0, TailProgress::Part));
        assert_eq!(read(&mut tail, &path, 9), (lines(&["four"]), 0, TailProgress::All));
        // Longer than any entry.
        file.write_all(&vec![b'x'; MAX_LINE]).unwrap();
        file.write_all(b"\nfive\n").unwrap();
        assert_eq!(read(&mut tail, &path, 9), (lines(&["five"]), 0, TailProgress::All));
    }

    #[test]
    fn another_file_of_that_name_or_a_shorter_one_is_read_from_its_beginning() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        let mut tail = Tail::default();
        fs::write(&path, "one\ntwo\n").unwrap();
        read(&mut tail, &path, 9);
        fs::write(&path, "two\n").unwrap();
        assert_eq!(read(&mut tail, &path, 9), (vec!["two".to_owned()], 1, TailProgress::All));
        let other = directory.path().join("b");
        fs::write(&other, "two\nthree\n").unwrap();
        fs::rename(&other, &path).unwrap();
        assert_eq!(read(&mut tail, &path, 9).1, 1);
    }
}
