//! The plan of one key, changed in its plans file, which may have millions of them.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Seek as _, Write};
use std::num::NonZeroU8;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use base16ct::lower::encode_string;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::Control;
use super::reloading::Cause;
use super::rules::{print_in_plans, wrong_key};
use crate::config::PlanBook;
use crate::gateway::limit_status;
use crate::limiter::Fingerprint;
use crate::rules::{
    self, EntryEdit, Holds, IfMatch, KeyChange, KeyFound, PlansError, Replacement, RuleRefusal, WriteError, set_plan,
};

impl Control {
    /// Changes the plan of a key. The new file is a copy, which takes the place of the other one if that is still as it was read.
    pub(super) fn change_plan(
        self: &Arc<Self>,
        (route, change): (&str, &KeyChange),
        if_match: &IfMatch,
        by: &str,
    ) -> Result<Holds, RuleRefusal> {
        let book = self.book_of(route)?;
        // Before the file is copied, which may be long: the tag that anybody has read is that of the plans that run.
        let loaded = rules::etag(&encode_string(book.digest()));
        if_match.check(&loaded)?;
        let print = check(&book, change)?;
        let not_loaded = || RuleRefusal::NotLoaded { file: book.shown().display().to_string() };
        let not_read = |error: io::Error| RuleRefusal::not_read(&format!("{}: {error}", book.path().display()));
        let path = fs::canonicalize(book.path()).map_err(not_read)?;
        let as_read = stamp(&path).map_err(not_read)?;
        // Open until this change holds, so that it can be brought back; if the process is killed, nothing is left of it.
        let former = File::open(&path).map_err(not_read)?;
        let mut new =
            BufWriter::new(Hashed { to: Replacement::begin(&path).map_err(not_written)?, hash: Sha256::new() });
        let is_key = |own: &str| book.fingerprint(own).is_ok_and(|own| own == print);
        let copied = set_plan(BufReader::new(&former), &mut new, is_key, change);
        let (found, digest) = copied.map_err(|error| not_copied(&error))?;
        let new = new.into_inner().map_err(|error| not_copied(&PlansError::Io(error.into_error())))?;
        let etag = rules::etag(&encode_string(&digest));
        if etag != loaded && *if_match != IfMatch::Any {
            return Err(not_loaded());
        }
        let before = self.state().workers.feed.generation();
        let Some(done) = done(change, &found)? else { return Ok(self.holds(before, etag, None)) };
        let new_etag = rules::etag(&encode_string(&new.hash.finalize()));
        new.to.commit(|| stamp(&path).is_ok_and(|now| now == as_read)).map_err(|error| match error {
            WriteError::Changed => not_loaded(),
            failed @ WriteError::Failed { .. } => not_written(failed),
        })?;
        let line = format!("a key of route {route} {}", done.word());
        let cause = Cause { asked: true, by, change: Some(&line) };
        self.take_over_or(cause, || bring_back(&path, &former))?;
        let told = self.told(&book, change, &found);
        Ok(Holds { told: Some(told), ..self.holds(before, new_etag, Some(done)) })
    }

    fn holds(&self, before: u64, etag: String, done: Option<EntryEdit>) -> Holds {
        let state = self.state();
        let plan = state
            .last_plan
            .as_ref()
            .filter(|_| done.is_some())
            .map_or_else(|| json!(null), |last| last["plan"].clone());
        let generation = state.workers.feed.generation();
        Holds { etag, before, generation, done, plan, warnings: json!([]), told: None }
    }

    /// The plans that the key had and has, for the log. The key is redacted as in changes of keys of a limit: where one of that
    /// key says that it is secret, it is.
    fn told(&self, book: &PlanBook, change: &KeyChange, found: &KeyFound) -> (String, String) {
        let state = self.state();
        let own = book.keys().key();
        let says_so = state.model.limits.iter().any(|rule| rule.key == *own && rule.key_is_secret == Some(true));
        let (key, after) = match change {
            KeyChange::Set { key, plan, renews } => (key, Some((plan, *renews))),
            KeyChange::Delete { key } => (key, None),
        };
        let before = if let KeyFound::Plan(plan, renews) = found { Some((plan, *renews)) } else { None };
        // A plan alone leaves the day as it is.
        let after = after.map(|(plan, renews)| (plan, renews.or(before.and_then(|(_, renews)| renews))));
        let key = limit_status::shown(&state.lasting.redactor, &own.to_string(), key, says_so.then_some(true));
        let words = |plan: Option<(&String, Option<NonZeroU8>)>| match plan {
            Some((plan, Some(day))) => format!("{key}: plan {plan:?}, renews {day}"),
            Some((plan, None)) => format!("{key}: plan {plan:?}"),
            None => format!("{key}: the default plan"),
        };
        (words(before), words(after))
    }
}

/// The fingerprint of the key, if the change fits the plans and the keys of the file. No message repeats the key.
fn check(book: &PlanBook, change: &KeyChange) -> Result<Fingerprint, RuleRefusal> {
    let (KeyChange::Set { key, .. } | KeyChange::Delete { key }) = change;
    let print = print_in_plans(book, key)?;
    match change {
        KeyChange::Set { plan, .. } if !book.names().iter().any(|name| **name == **plan) => {
            let names = book.names().iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
            Err(wrong_key(format!("The plans file has no such plan; it has {names}.")))
        }
        _ => Ok(print),
    }
}

/// The fate of the key's line; `None` if it said so before.
fn done(change: &KeyChange, found: &KeyFound) -> Result<Option<EntryEdit>, RuleRefusal> {
    match (change, found) {
        (KeyChange::Set { plan, renews, .. }, KeyFound::Plan(before, day)) => {
            Ok((plan != before || renews.is_some() && renews != day).then_some(EntryEdit::Replaced))
        }
        (KeyChange::Set { .. }, KeyFound::Nothing) => Ok(Some(EntryEdit::Created)),
        (KeyChange::Delete { .. }, KeyFound::Plan(..)) => Ok(Some(EntryEdit::Deleted)),
        (KeyChange::Delete { .. }, KeyFound::Nothing) => {
            Err(RuleRefusal::NotFound("The key has no line in the plans file: it has the default plan.".to_owned()))
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "as map_err gives it")]
fn not_written(error: WriteError) -> RuleRefusal {
    RuleRefusal::NotWritten(error.to_string())
}

fn not_copied(error: &PlansError) -> RuleRefusal {
    let said = error.to_string();
    match error {
        PlansError::Io(_) => RuleRefusal::NotWritten(said),
        PlansError::NoKeys | PlansError::Line(_) => RuleRefusal::Conflict(said),
    }
}

/// Writes the former file in the place of the one that has replaced it.
fn bring_back(path: &Path, mut former: &File) -> Result<(), RuleRefusal> {
    let failed = |error| not_copied(&PlansError::Io(error));
    let mut new = Replacement::begin(path).map_err(not_written)?;
    former.rewind().map_err(failed)?;
    io::copy(&mut former, &mut new).map_err(failed)?;
    new.commit(|| true).map_err(not_written)
}

/// Whatever changes with each write of a file.
fn stamp(path: &Path) -> io::Result<(u64, u64, [i64; 4])> {
    let file = fs::metadata(path)?;
    // Opening a pipe would wait for a process that writes to it.
    if !file.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok((file.ino(), file.len(), [file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec()]))
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
