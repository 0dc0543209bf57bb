//! `[dead_letter]`

use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Component, Path, PathBuf};

use super::alert::{self, Alert};
use super::deferred::{self, DeferredRoom};
use super::secret_file::{FileSecret, SecretFile};
use super::sink::{self, Sink};
use crate::findings::{Reported, quoted};
use crate::form::{FIELD, FILE, Form};
use crate::kind::{Context, by, count, duration, each, list, size};
use crate::reader::{Node, Reader};
use crate::section::{Declare, Section, section};
use crate::size::{parse_size, show_size};
use crate::token::header_name;
use sluicegate_time::Span;

section! {
    /// `[dead_letter]`: the log of what is refused and of what times out.
    pub struct DeadLetter, read as DeadLetterKeys {
        /// Where the segments are. A relative path starts at the file's directory.
        directory: PathBuf = by(Form::Text("the path of a directory"), directory, |path| show_path(path)).or("dead-letters"),
        /// Full records a second in all; above it the log would be the load.
        max_record_rate: u64 = count(RECORD_RATES).or("2000"),
        /// Bytes of full records a second in all, from 64 KiB to 10 GiB.
        max_byte_rate: u64 = by(Form::BytesPerSecond(64 << 10, 10 << 30), byte_rate, |rate| format!("{}/s", show_size(*rate))).or("4MiB/s"),
        /// Full records a second per key.
        max_key_rate: u64 = count(RECORD_RATES).or("10"),
        /// Bytes after which a segment is sealed.
        rotate_size: u64 = size(SIZES).or("64MiB"),
        /// Age at which a segment is sealed.
        rotate_age: Span = duration(AGES).or("1h"),
        /// Bytes in all; the oldest sealed segments go first.
        max_total_size: u64 = size(SIZES).or("4GiB"),
        /// Age at which a sealed segment is removed.
        max_age: Span = duration(AGES).or("14d"),
        /// When what is written is forced to the disk.
        fsync: Fsync = by(
            Form::Text("\"always\", \"rotate\", \"never\", or \"interval:1s\" with a duration"),
            fsync,
            Fsync::to_string,
        ).or("interval:1s"),
        /// Header and query names that are secret, beside the built-in list; lower case.
        redact: Vec<String> = list(Form::List(&FIELD, 0, usize::MAX), redact, String::clone).or("[]"),
        /// The file with the key of the marks that stand for secrets; by default it is beside the directory.
        redact_secret_file: Option<PathBuf> = by(FILE, secret_file, |path| show_path(path)).or_nothing("beside the directory"),
        /// A file with a key of 32 bytes, or 64 hexadecimal digits, under which records keep what is redacted, for a replay.
        seal_key_file: Option<FileSecret> = SecretFile { example: "seal.key", help: SEAL_HELP }.or_nothing("none"),
        /// Whom it tells when the log grows.
        alerts: Vec<Alert> = list(Form::List(&Form::Table(Alert::rows), 0, alert::MAX_ALERTS), alert::read, Alert::to_string).or("[]"),
        /// Where each of its lines is sent.
        sinks: Vec<Sink> = list(Form::List(&Form::Table(Sink::rows), 0, sink::MAX_SINKS), sink::read, Sink::to_string).or("[]"),
        /// The room for requests of routes with `on_limit = "defer"`.
        deferred: DeferredRoom = by(Form::Table(DeferredRoom::rows), deferred::read, DeferredRoom::to_string)
            .or_else(DeferredRoom::default, "its defaults"),
    }
}

impl DeadLetter {
    /// Where the key of deferred requests is unless `seal_key_file` names one: beside the directory too.
    pub fn default_seal_file(directory: &Path) -> PathBuf {
        let mut name = directory.file_name().unwrap_or_default().to_owned();
        name.push(".seal");
        directory.with_file_name(name)
    }

    /// Where the key of the marks is unless the file says otherwise: beside the directory, so that whoever gets a copy of that
    /// does not get it too.
    pub fn default_secret_file(directory: &Path) -> PathBuf {
        let mut name = directory.file_name().unwrap_or_default().to_owned();
        name.push(".secret");
        directory.with_file_name(name)
    }
}

/// `fsync` of `[dead_letter]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fsync {
    /// After each batch of records, before it counts as written.
    Always,
    /// When a segment is sealed.
    Rotate,
    /// Never; the operating system decides.
    Never,
    /// At most this long after a write.
    Interval(Span),
}

impl fmt::Display for Fsync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Always => f.write_str("always"),
            Self::Rotate => f.write_str("rotate"),
            Self::Never => f.write_str("never"),
            Self::Interval(span) => write!(f, "interval:{span}"),
        }
    }
}

const SEAL_HELP: &str = "a key has 32 bytes, or 64 hexadecimal digits: make one with \
                         `(umask 077; sluicegate dead-letters key > seal.key)`";

const RECORD_RATES: RangeInclusive<u64> = 1..=1_000_000;

/// Bytes a second: from a few records to what no disk takes.
const BYTE_RATES: RangeInclusive<u64> = 64 << 10..=10 << 30;

/// From a segment that holds a few records to all that a disk may have.
const SIZES: RangeInclusive<u64> = 64 << 10..=1 << 40;

const AGES: RangeInclusive<Span> = Span::from_secs(1)..=Span::from_secs(3_650 * 86_400);

/// How long written records may be unsafe.
const FSYNC_INTERVALS: RangeInclusive<Span> = Span::from_millis(10)..=Span::from_secs(3_600);

/// Names to redact; each is compared with each header of a record.
const MAX_REDACTED: usize = 256;

/// Reads the section.
pub(crate) fn read(reader: Reader<'_>, context: &Context<'_>) -> Result<DeadLetter, Reported> {
    let keys = DeadLetter::read_keys(reader, context);
    let sizes = check_sizes(&keys);
    let secrets = [
        check_secret_file(
            keys.redact_secret_file.node.as_ref().filter(|_| keys.redact_secret_file.value.is_ok()),
            "dead-letters.secret",
            &keys,
            context,
        ),
        check_secret_file(
            keys.seal_key_file.node.as_ref().filter(|_| keys.seal_key_file.value.is_ok()),
            "seal.key",
            &keys,
            context,
        ),
    ];
    sizes?;
    Reported::none_of(secrets.into_iter().filter_map(Result::err))?;
    DeadLetter::of(keys)
}

fn check_sizes(keys: &DeadLetterKeys<'_>) -> Result<(), Reported> {
    let (Some(total), Some(segment)) = (keys.max_total_size.get(), keys.rotate_size.get()) else { return Ok(()) };
    let Some(node) = keys.max_total_size.node.as_ref().or(keys.rotate_size.node.as_ref()) else { return Ok(()) };
    if total >= segment {
        return Ok(());
    }
    let (total, segment) = (show_size(*total), show_size(*segment));
    let message =
        format!("`max_total_size` ({total}) is below `rotate_size` ({segment}): a segment could never be kept");
    Err(node.error(message, format!("raise max_total_size to at least \"{segment}\", or lower rotate_size")))
}

/// No key is where the log is, because whoever gets that could find values by trying, or open them.
fn check_secret_file(
    node: Option<&Node<'_>>,
    example: &str,
    keys: &DeadLetterKeys<'_>,
    context: &Context<'_>,
) -> Result<(), Reported> {
    let text = node.and_then(Node::as_text);
    let (Some(node), Some(text), Some(log)) = (node, text, keys.directory.get()) else { return Ok(()) };
    if !plain(&context.files.beside(text)).starts_with(plain(log)) {
        return Ok(());
    }
    let help =
        format!("name a file elsewhere, such as \"{example}\": whoever gets a copy of the log shall not get its key");
    Err(node.error(format!("{} is in the log's directory", quoted(text)), help))
}

fn show_path(path: &Path) -> String {
    path.display().to_string()
}

/// `"4MiB/s"`: bytes in a second.
fn byte_rate(node: &Node<'_>, _: &Context<'_>) -> Result<u64, Reported> {
    let text = node.string("bytes a second in quotes", "\"4MiB/s\"")?;
    let rate = text.strip_suffix("/s").and_then(|size| parse_size(size.trim()));
    rate.filter(|rate| BYTE_RATES.contains(rate)).ok_or_else(|| {
        let (low, high) = (show_size(*BYTE_RATES.start()), show_size(*BYTE_RATES.end()));
        let message = format!("`max_byte_rate`: invalid byte rate {}", quoted(text));
        node.error(message, format!("write a size and \"/s\", like \"4MiB/s\", from {low}/s to {high}/s"))
    })
}

fn directory(node: &Node<'_>, context: &Context<'_>) -> Result<PathBuf, Reported> {
    let text = node.string("a path in quotes", "\"dead-letters\"")?;
    if text.is_empty() || text.contains('\0') {
        let message = format!("invalid directory {}", quoted(text));
        return Err(node.error(message, "name a directory, such as \"dead-letters\""));
    }
    Ok(context.files.beside(text))
}

fn secret_file(node: &Node<'_>, context: &Context<'_>) -> Result<PathBuf, Reported> {
    let text = node.string("a path in quotes", "\"/etc/sluicegate/redact.secret\"")?;
    if text.is_empty() || text.ends_with('/') || text.contains('\0') {
        let help = "name a file, such as \"/etc/sluicegate/redact.secret\"";
        return Err(node.error(format!("invalid file name {}", quoted(text)), help));
    }
    Ok(context.files.beside(text))
}

/// A path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(plain.pop()),
            other => plain.push(other),
        }
    }
    plain
}

fn fsync(node: &Node<'_>, _: &Context<'_>) -> Result<Fsync, Reported> {
    const DEFAULT: Fsync = Fsync::Interval(Span::from_secs(1));
    if let Some(interval) = node.as_text().and_then(|text| text.strip_prefix("interval:")) {
        let span = interval.parse::<Span>().ok().filter(|span| FSYNC_INTERVALS.contains(span));
        return span.map(Fsync::Interval).ok_or_else(|| {
            let (low, high) = (FSYNC_INTERVALS.start(), FSYNC_INTERVALS.end());
            let message = format!("invalid `fsync` interval {}", quoted(interval));
            node.error(message, format!("write \"interval:1s\"; it goes from {low} to {high}"))
        });
    }
    let words =
        [("interval:1s", DEFAULT), ("always", Fsync::Always), ("rotate", Fsync::Rotate), ("never", Fsync::Never)];
    node.one_of(&words)
}

fn redact(node: &Node<'_>, _: &Context<'_>) -> Result<Vec<String>, Reported> {
    let items = node.array("[\"x-session\"]")?;
    if items.len() > MAX_REDACTED {
        let message = format!("`redact` has {} names", items.len());
        return Err(node.error(message, format!("it takes at most {MAX_REDACTED}")));
    }
    each(&items, |item| header_name(item, item.string("a name in quotes", "\"x-session\"")?))
}
