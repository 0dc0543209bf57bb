//! The repair, at a start-up, of the last segment of a process that may have died while writing it.
//!
//! Everything up to the last line whose checksum holds stays in its place, junk between good lines included; the rest
//! is moved to `NAME.torn`. A last line that lacks only its line feed is whole: it gets the line feed.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::line::{MAX_LINE, is_sound};
use super::segment::{private, torn_path};

/// Bytes of torn tails that are kept per segment; what is longer than any crash leaves is no record.
const MAX_TORN: u64 = 8 * MAX_LINE as u64;
/// How much is read at once, from the end backwards. Windows overlap by a line, so none falls between two.
const WINDOW: usize = 2 * MAX_LINE;

/// The findings at the end of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// The segment.
    pub segment: PathBuf,
    /// Bytes of it that were kept.
    pub kept: u64,
    /// Bytes that were taken off its end.
    pub torn: u64,
    /// Of these, the bytes that did not fit into the `.torn` file and are gone.
    pub discarded: u64,
}

/// Makes the end of `segment` sound.
pub(super) fn recover(segment: &Path) -> io::Result<Recovery> {
    let mut file = private().read(true).write(true).open(segment)?;
    let length = file.metadata()?.len();
    let end = last_sound_end(&mut file, length)?;
    let mut recovery = Recovery { segment: segment.to_owned(), kept: end.at, torn: 0, discarded: 0 };
    if end.at < length {
        recovery.torn = length - end.at;
        recovery.discarded = move_tail(&mut file, end.at, &torn_path(segment))?;
        file.set_len(end.at)?;
    }
    if end.lacks_line_feed {
        file.seek(SeekFrom::Start(end.at))?;
        file.write_all(b"\n")?;
        recovery.kept += 1;
    }
    if recovery.torn > 0 || end.lacks_line_feed {
        file.sync_all()?;
    }
    Ok(recovery)
}

struct ValidEnd {
    at: u64,
    lacks_line_feed: bool,
}

/// Where the last line whose checksum holds ends.
fn last_sound_end(file: &mut File, length: u64) -> io::Result<ValidEnd> {
    let mut window_end = length;
    let mut window = Vec::with_capacity(WINDOW);
    loop {
        let start = window_end.saturating_sub(WINDOW as u64);
        file.seek(SeekFrom::Start(start))?;
        window.clear();
        file.take(window_end - start).read_to_end(&mut window)?;
        if let Some((offset, lacks_line_feed)) = last_sound_line(&window, window_end == length) {
            return Ok(ValidEnd { at: start + offset as u64, lacks_line_feed });
        }
        if start == 0 {
            return Ok(ValidEnd { at: 0, lacks_line_feed: false });
        }
        window_end = start + MAX_LINE as u64;
    }
}

/// The offset behind the last good line of `window`, and whether that line still lacks its line feed. The first line
/// may be the rest of one that began earlier: then its checksum fails and the next window has it whole.
fn last_sound_line(window: &[u8], at_end_of_file: bool) -> Option<(usize, bool)> {
    let mut end = window.len();
    let mut is_last = true;
    loop {
        let head = window.get(..end)?;
        let start = head.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        if is_sound(head.get(start..)?) && (!is_last || at_end_of_file) {
            return Some(if is_last { (end, true) } else { (end + 1, false) });
        }
        if start == 0 {
            return None;
        }
        end = start - 1;
        is_last = false;
    }
}

/// Copies what follows `from` to the end of `torn`; says how much of it did not fit.
fn move_tail(file: &mut File, from: u64, torn: &Path) -> io::Result<u64> {
    let mut torn = private().append(true).create(true).open(torn)?;
    let room = MAX_TORN.saturating_sub(torn.metadata()?.len());
    let tail = file.metadata()?.len() - from;
    file.seek(SeekFrom::Start(from))?;
    let copied = io::copy(&mut file.take(room), &mut torn)?;
    torn.sync_all()?;
    Ok(tail - copied)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::record::tests::draft;
    use super::*;
    use sluicegate_redact::{RedactRules, Redactor};

    fn lines(count: usize) -> Vec<u8> {
        let mut out = Vec::new();
        let redactor = Redactor::new(&RedactRules::default());
        (0..count).for_each(|_| draft().write("n", &redactor, &mut out));
        out
    }

    fn recovered(content: &[u8]) -> (Recovery, Vec<u8>, Option<Vec<u8>>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("n-0000000001.jsonl");
        fs::write(&path, content).unwrap();
        let recovery = recover(&path).unwrap();
        (recovery, fs::read(&path).unwrap(), fs::read(torn_path(&path)).ok())
    }

    #[test]
    fn a_segment_cut_at_any_byte_of_its_last_record_keeps_the_others() {
        let whole = lines(3);
        let two = whole[..whole.len() - 1].iter().rposition(|&byte| byte == b'\n').unwrap() + 1;
        for cut in two..=whole.len() {
            let (recovery, kept, torn) = recovered(&whole[..cut]);
            if cut >= whole.len() - 1 {
                assert_eq!((kept, torn), (whole.clone(), None), "cut at {cut}");
                assert_eq!(recovery.torn, 0);
            } else {
                assert_eq!(kept, whole[..two], "cut at {cut}");
                assert_eq!(torn.unwrap_or_default(), whole[two..cut], "cut at {cut}");
                assert_eq!((recovery.kept, recovery.torn, recovery.discarded), (two as u64, (cut - two) as u64, 0));
            }
        }
    }

    #[test]
    fn junk_between_good_lines_stays_where_it_is() {
        let mut content = lines(1);
        content.extend_from_slice(b"\0\0junk\n{\"v\":1}\n\n");
        content.extend_from_slice(&lines(1));
        let (recovery, kept, torn) = recovered(&content);
        assert_eq!((kept, torn, recovery.torn), (content, None, 0));
    }

    #[test]
    fn the_zeros_of_a_power_failure_are_moved_whatever_their_number() {
        let good = lines(2);
        for zeros in [1, MAX_LINE - 1, WINDOW - good.len(), WINDOW - 10, WINDOW, WINDOW + 7, 3 * WINDOW] {
            let content = [good.clone(), vec![0; zeros]].concat();
            let (recovery, kept, torn) = recovered(&content);
            assert_eq!(kept, good, "{zeros} zeros");
            assert_eq!(torn.unwrap().len(), zeros);
            assert_eq!(recovery.torn, zeros as u64);
        }
    }

    #[test]
    fn a_torn_tail_is_kept_up_to_its_bound() {
        let extra = 10;
        let (recovery, kept, torn) = recovered(&vec![b'x'; MAX_TORN as usize + extra]);
        assert_eq!((kept.len(), recovery.kept), (0, 0));
        assert_eq!(torn.unwrap().len() as u64, MAX_TORN);
        assert_eq!(recovery.discarded, extra as u64);
    }

    #[test]
    fn an_empty_segment_is_sound() {
        let (recovery, kept, torn) = recovered(b"");
        assert_eq!((recovery.kept, recovery.torn, kept.len(), torn), (0, 0, 0, None));
    }
}
