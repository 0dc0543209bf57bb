//! The texts that the configuration had, in a directory beside it: one file for each generation, which is the text itself
//! behind a comment of one line that says when it came to hold, by whom and why.
//!
//! Texts may have secrets in them: the directory and its files are for their owner alone. The number of texts and their bytes
//! are bounded. Files that are damaged are left out.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use base16ct::lower::encode_string;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Texts that are kept.
pub const MAX_GENERATIONS: usize = 20;
/// Bytes of all of them; the newest is kept, whatever it takes.
const MAX_BYTES: u64 = 32 << 20;
/// Bytes of one file that are read.
const MAX_FILE_BYTES: u64 = 8 << 20;
/// Characters of a name, and of what was done.
const MAX_NAME: usize = 64;
const MAX_CHANGE: usize = 200;
/// Names in the directory that are looked at.
const MAX_NAMES: usize = 10_000;
const BEGIN: &str = "# sluicegate history ";

/// A text that the configuration had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// Its number: that of the generation which ran it first.
    pub generation: u64,
    /// When it came to hold (RFC 3339).
    pub time: String,
    /// By whom: the name of a token, `file` for an editor, `start`.
    pub by: String,
    /// The change in a line.
    pub change: String,
    /// SHA-256 of the text, in hex.
    pub sha256: String,
}

/// The texts, the oldest first.
#[derive(Debug)]
pub struct History {
    directory: PathBuf,
    entries: Vec<(HistoryEntry, u64)>,
    /// Numbers of files that are damaged, or too many; they go when their time comes.
    damaged: Vec<u64>,
}

/// SHA-256 of a text, in hex.
pub fn sha256(text: &str) -> String {
    encode_string(&Sha256::digest(text))
}

/// The directory of a configuration's history.
pub fn history_of(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".history");
    name.into()
}

impl History {
    /// Opens the history of a file, empty where there is no directory. Also the faults of it, in words.
    ///
    /// # Errors
    /// The directory cannot be read, or is a link, or others may read it and that cannot be changed.
    pub fn open(file: &Path) -> io::Result<(Self, Vec<String>)> {
        let directory = history_of(file);
        let mut history = Self { directory, entries: Vec::new(), damaged: Vec::new() };
        let directory = &history.directory;
        let metadata = match fs::symlink_metadata(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((history, Vec::new())),
            metadata => metadata?,
        };
        if !metadata.is_dir() {
            return Err(io::Error::other(format!("{} is no directory; move it away", directory.display())));
        }
        if metadata.mode() & 0o077 != 0 {
            fs::set_permissions(directory, fs::Permissions::from_mode(0o700))?;
        }
        let warnings = history.read()?;
        Ok((history, warnings))
    }

    fn read(&mut self) -> io::Result<Vec<String>> {
        let mut numbers: Vec<u64> = Vec::new();
        for entry in fs::read_dir(&self.directory)?.take(MAX_NAMES) {
            numbers.extend(entry?.file_name().to_str().and_then(number_of));
        }
        numbers.sort_unstable();
        let surplus = numbers.len().saturating_sub(MAX_GENERATIONS);
        let mut warnings = Vec::new();
        for (place, number) in numbers.into_iter().enumerate() {
            if place < surplus {
                self.damaged.push(number);
                continue;
            }
            match self.load(number) {
                Ok((entry, text)) => self.entries.push((entry, text.len() as u64)),
                Err(error) => {
                    let file = self.file(number);
                    warnings.push(format!("{} is left out of the history: {error}", file.display()));
                    self.damaged.push(number);
                }
            }
        }
        Ok(warnings)
    }

    /// The texts, the oldest first.
    pub fn entries(&self) -> impl DoubleEndedIterator<Item = &HistoryEntry> {
        self.entries.iter().map(|(entry, _)| entry)
    }

    /// The newest one.
    pub fn latest(&self) -> Option<&HistoryEntry> {
        self.entries().next_back()
    }

    /// A number that no text has had, nor a damaged one.
    pub fn next_generation(&self) -> u64 {
        let last = self.entries().map(|entry| entry.generation).chain(self.damaged.iter().copied()).max();
        last.unwrap_or(0) + 1
    }

    /// The text of a generation.
    ///
    /// # Errors
    /// Its file is gone, or damaged.
    pub fn text(&self, generation: u64) -> io::Result<String> {
        Ok(self.load(generation)?.1)
    }

    /// Adds a text, and forgets those that are too many; the directory is made for the first one. Where it is the newest one
    /// already, nothing is done.
    ///
    /// # Errors
    /// It cannot be written; then the history is as it was.
    pub fn add(&mut self, mut entry: HistoryEntry, text: &str) -> io::Result<()> {
        entry.sha256 = sha256(text);
        if self.latest().is_some_and(|latest| latest.sha256 == entry.sha256) {
            return Ok(());
        }
        entry.by = one_line(&entry.by, MAX_NAME);
        entry.change = one_line(&entry.change, MAX_CHANGE);
        let head = format!("{BEGIN}{}\n", serde_json::to_string(&entry).map_err(io::Error::other)?);
        match DirBuilder::new().mode(0o700).create(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let (path, new) = (self.file(entry.generation), self.directory.join(".new"));
        let _ = fs::remove_file(&new);
        let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new).and_then(|mut file| {
            file.write_all(head.as_bytes())?;
            file.write_all(text.as_bytes())?;
            // Not synced: a reload waits for this, and a text that a crash has cut is left out by its checksum.
            drop(file);
            fs::rename(&new, &path)
        });
        if let Err(error) = written {
            let _ = fs::remove_file(&new);
            return Err(error);
        }
        self.entries.push((entry, text.len() as u64));
        self.forget();
        Ok(())
    }

    fn forget(&mut self) {
        let bytes = |entries: &[(HistoryEntry, u64)]| entries.iter().map(|(_, bytes)| bytes).sum::<u64>();
        while self.entries.len() > MAX_GENERATIONS || (self.entries.len() > 1 && bytes(&self.entries) > MAX_BYTES) {
            let (gone, _) = self.entries.remove(0);
            let _ = fs::remove_file(self.file(gone.generation));
        }
        let oldest = self.entries().map(|entry| entry.generation).min().unwrap_or(0);
        let (gone, kept): (Vec<u64>, Vec<u64>) =
            std::mem::take(&mut self.damaged).into_iter().partition(|number| *number < oldest);
        self.damaged = kept;
        for number in gone {
            let _ = fs::remove_file(self.file(number));
        }
    }

    fn file(&self, generation: u64) -> PathBuf {
        self.directory.join(format!("{generation:06}.toml"))
    }

    fn load(&self, generation: u64) -> io::Result<(HistoryEntry, String)> {
        let path = self.file(generation);
        // Opening a pipe would wait for a process that writes to it.
        if !fs::symlink_metadata(&path)?.is_file() {
            return Err(io::Error::other("it is no file"));
        }
        let mut whole = String::new();
        File::open(&path)?.take(MAX_FILE_BYTES).read_to_string(&mut whole)?;
        let damaged = || io::Error::other("it is damaged");
        let (head, text) = whole.split_once('\n').ok_or_else(damaged)?;
        let head = head.strip_prefix(BEGIN).ok_or_else(damaged)?;
        let entry: HistoryEntry = serde_json::from_str(head).map_err(|_| damaged())?;
        if entry.generation != generation || entry.sha256 != sha256(text) {
            return Err(damaged());
        }
        Ok((entry, text.to_owned()))
    }
}

/// The number that a file's name has.
fn number_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".toml")?;
    // Those of this program have six digits at least, and never so many as to count beyond a u64.
    let is_own = (6..=15).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_own.then(|| digits.parse().ok()).flatten()
}

fn one_line(text: &str, most: usize) -> String {
    text.chars().map(|c| if sluicegate_redact::is_terminal_control(c) { ' ' } else { c }).take(most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(generation: u64) -> HistoryEntry {
        HistoryEntry {
            generation,
            time: "2026-11-25T22:30:00Z".into(),
            by: "ci".into(),
            change: format!("limit n{generation} replaced"),
            sha256: String::new(),
        }
    }

    fn generations(history: &History) -> Vec<u64> {
        history.entries().map(|entry| entry.generation).collect()
    }

    #[test]
    fn twenty_texts_outlive_the_process() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("gateway.toml");
        let (mut history, warnings) = History::open(&file).unwrap();
        assert!(warnings.is_empty() && history.latest().is_none() && history.next_generation() == 1);
        for generation in 1..=23 {
            history.add(entry(generation), &format!("x = {generation}\r\n# no end")).unwrap();
        }
        history.add(entry(24), "x = 23\r\n# no end").unwrap();
        let own = history_of(&file);
        assert_eq!(fs::metadata(&own).unwrap().mode() & 0o777, 0o700);
        assert_eq!(fs::metadata(own.join("000023.toml")).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(&own).unwrap().count(), 20);
        let (history, warnings) = History::open(&file).unwrap();
        assert!(warnings.is_empty());
        assert_eq!(generations(&history), (4..=23).collect::<Vec<_>>(), "the same text is no new one");
        assert_eq!(history.text(4).unwrap(), "x = 4\r\n# no end");
        assert_eq!(history.latest().unwrap().change, "limit n23 replaced");
        assert_eq!((history.next_generation(), history.text(3).is_err()), (24, true));
    }

    #[test]
    fn damaged_and_foreign_files_are_left_out_and_their_numbers_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("gateway.toml");
        let (mut history, _) = History::open(&file).unwrap();
        (1..=3).for_each(|generation| history.add(entry(generation), &format!("x = {generation}")).unwrap());
        let own = history_of(&file);
        let second = fs::read_to_string(own.join("000002.toml")).unwrap();
        fs::write(own.join("000002.toml"), second.replace("x = 2", "x = 3")).unwrap();
        fs::write(own.join("000007.toml"), "").unwrap();
        fs::create_dir(own.join("000008.toml")).unwrap();
        fs::write(own.join("notes.toml"), "mine").unwrap();
        let (mut history, warnings) = History::open(&file).unwrap();
        assert_eq!(generations(&history), [1, 3]);
        assert_eq!(warnings.len(), 3, "{warnings:?}");
        assert!(warnings[0].ends_with("000002.toml is left out of the history: it is damaged"), "{warnings:?}");
        assert_eq!(history.next_generation(), 9);
        for generation in 9..=28 {
            history.add(entry(generation), &format!("x = {generation}")).unwrap();
        }
        assert!(!own.join("000002.toml").exists() && !own.join("000007.toml").exists());
        assert!(own.join("notes.toml").exists());
    }

    #[test]
    fn its_bytes_are_bounded_and_the_newest_stays() {
        let directory = tempfile::tempdir().unwrap();
        let (mut history, _) = History::open(&directory.path().join("g")).unwrap();
        for generation in 1..=10 {
            history.add(entry(generation), &format!("# {generation}{}", "x".repeat(4 << 20))).unwrap();
        }
        assert_eq!(generations(&history), [4, 5, 6, 7, 8, 9, 10], "seven times 4 MiB and a little");
    }

    #[test]
    fn names_and_changes_are_one_short_line() {
        let directory = tempfile::tempdir().unwrap();
        let (mut history, _) = History::open(&directory.path().join("g")).unwrap();
        history.add(HistoryEntry { by: "a\nb".into(), change: "é\u{1b}".repeat(1_000), ..entry(1) }, "").unwrap();
        let (history, warnings) = History::open(&directory.path().join("g")).unwrap();
        let latest = history.latest().unwrap();
        assert_eq!((latest.by.as_str(), latest.change.chars().count(), warnings.len()), ("a b", 200, 0));
        assert!(latest.change.starts_with("é é "));
    }

    #[test]
    fn a_link_in_its_place_is_no_history() {
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/", directory.path().join("g.history")).unwrap();
        assert!(History::open(&directory.path().join("g")).is_err());
    }
}
