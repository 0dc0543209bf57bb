//! The plan of one key, changed in its plans file, which may have millions of them.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::Control;
use super::reloading::Cause;
use super::rules::{hex, wrong_key};
use crate::config::PlanBook;
use crate::limiter::Fingerprint;
use crate::rules::{self, Done, Holds, IfMatch, KeyChange, KeyFound, Refusal, Replacement, WriteError};

impl Control {
    /// Changes the plan of a key. The new file is a copy, which takes the place of the other one if that is still as it was read.
    pub(super) fn change_plan(
        self: &Arc<Self>,
        route: &str,
        change: &KeyChange,
        if_match: &IfMatch,
        by: &str,
    ) -> Result<Holds, Refusal> {
        let book = self.book_of(route)?;
        let print = check(&book, change)?;
        let path = fs::canonicalize(book.path()).map_err(|error| not_read(book.path(), &error))?;
        // Whatever happens next, the former file has a name until this change holds.
        let kept = Kept::of(&path)?;
        let as_read = stamp(&path).map_err(|error| not_read(&path, &error))?;
        let mut new =
            BufWriter::new(Hashed { to: Replacement::begin(&path).map_err(not_written)?, hash: Sha256::new() });
        let from = BufReader::new(File::open(&path).map_err(|error| not_read(&path, &error))?);
        let is_key = |own: &str| book.fingerprint(own).is_ok_and(|own| own == print);
        let copied = rules::set_plan(from, &mut new, is_key, change);
        let (found, digest) = copied.map_err(|error| Refusal::NotWritten(error.to_string()))?;
        let new = new.into_inner().map_err(|error| not_read(&path, error.error()))?;
        let etag = rules::etag(&hex(&digest));
        if_match.check(&etag)?;
        let before = self.state().feed.generation();
        let Some(done) = done(change, &found)? else { return Ok(self.holds(before, etag, None)) };
        let new_etag = rules::etag(&hex(&new.hash.finalize().into()));
        new.to.commit(|| stamp(&path).is_ok_and(|now| now == as_read)).map_err(|error| match error {
            WriteError::Changed => Refusal::Stale { etag: tag_of(&path).unwrap_or_default() },
            failed @ WriteError::Failed { .. } => not_written(failed),
        })?;
        let line = format!("a key of route {route} {}", done.word());
        let cause = Cause { asked: true, by, change: Some(&line) };
        self.take_over_or(cause, || kept.bring_back().map_err(|error| not_read(&path, &error)))?;
        Ok(self.holds(before, new_etag, Some(done)))
    }

    fn holds(&self, before: u64, etag: String, done: Option<Done>) -> Holds {
        let state = self.state();
        let plan = state
            .last_plan
            .as_ref()
            .filter(|_| done.is_some())
            .map_or_else(|| json!(null), |last| last["plan"].clone());
        Holds { etag, before, generation: state.feed.generation(), done, plan, warnings: json!([]) }
    }
}

/// The fingerprint of the key, if the change fits the plans and the keys of the file. No message repeats the key.
fn check(book: &PlanBook, change: &KeyChange) -> Result<Fingerprint, Refusal> {
    let (KeyChange::Set { key, .. } | KeyChange::Delete { key }) = change;
    let print = book.fingerprint(key).map_err(wrong_key)?;
    match change {
        KeyChange::Set { plan, .. } if !book.names().iter().any(|name| **name == **plan) => {
            let names = book.names().iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
            Err(wrong_key(format!("The plans file has no such plan; it has {names}.")))
        }
        _ => Ok(print),
    }
}

/// The fate of the key's line; `None` if it said so before.
fn done(change: &KeyChange, found: &KeyFound) -> Result<Option<Done>, Refusal> {
    match (change, found) {
        (KeyChange::Set { plan, .. }, KeyFound::Plan(before)) => Ok((plan != before).then_some(Done::Replaced)),
        (KeyChange::Set { .. }, KeyFound::Nothing) => Ok(Some(Done::Created)),
        (KeyChange::Delete { .. }, KeyFound::Plan(_)) => Ok(Some(Done::Deleted)),
        (KeyChange::Delete { .. }, KeyFound::Nothing) => {
            Err(Refusal::NotFound("The key has no line in the plans file: it has the default plan.".to_owned()))
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "as map_err gives it")]
fn not_written(error: WriteError) -> Refusal {
    Refusal::NotWritten(error.to_string())
}

fn not_read(path: &Path, error: &io::Error) -> Refusal {
    Refusal::NotWritten(format!("{}: {error}. Mend that and repeat the change.", path.display()))
}

/// Whatever changes with each write of a file.
fn stamp(path: &Path) -> io::Result<(u64, u64, [i64; 4])> {
    let file = fs::metadata(path)?;
    Ok((file.ino(), file.len(), [file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec()]))
}

fn tag_of(path: &Path) -> io::Result<String> {
    let mut hashed = Hashed { to: io::sink(), hash: Sha256::new() };
    io::copy(&mut File::open(path)?, &mut hashed)?;
    Ok(rules::etag(&hex(&hashed.hash.finalize().into())))
}

/// Hashes all that is written.
struct Hashed<W> {
    to: W,
    hash: Sha256,
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.hash.update(bytes.get(..written).unwrap_or_default());
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// A second name of a file that is to be replaced; it goes when this is dropped.
struct Kept {
    real: PathBuf,
    second: PathBuf,
}

impl Kept {
    fn of(real: &Path) -> Result<Self, Refusal> {
        let mut name = std::ffi::OsString::from(".");
        name.push(real.file_name().unwrap_or_default());
        name.push(format!(".{}.old", std::process::id()));
        let kept = Self { real: real.to_owned(), second: real.with_file_name(name) };
        // One that an earlier process left behind.
        let _ = fs::remove_file(&kept.second);
        fs::hard_link(real, &kept.second).map_err(|error| not_read(real, &error))?;
        Ok(kept)
    }

    fn bring_back(&self) -> io::Result<()> {
        fs::rename(&self.second, &self.real)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.second);
    }
}
