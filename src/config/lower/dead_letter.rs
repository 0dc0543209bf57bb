//! `[dead_letter]`

use std::ops::RangeInclusive;
use std::path::{Component, Path, PathBuf};

use super::header_name;
use crate::config::findings::quoted;
use crate::config::model::{DeadLetter, Fsync};
use crate::config::reader::{Node, Reader};
use crate::config::size::{parse_size, show_size};
use crate::time::Span;

const DIRECTORY: &str = "dead-letters";
const MAX_RECORD_RATE: u64 = 2_000;
const MAX_BYTE_RATE: u64 = 4 << 20;
const MAX_KEY_RATE: u64 = 10;
const ROTATE_SIZE: u64 = 64 << 20;
const ROTATE_AGE: Span = Span::from_secs(3_600);
const MAX_TOTAL_SIZE: u64 = 4 << 30;
const MAX_AGE: Span = Span::from_secs(14 * 86_400);
const FSYNC: Fsync = Fsync::Interval(Span::from_secs(1));

/// Records a second; above it the log would be the load.
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

/// Lowers the section; `file` is where relative paths start from.
pub(super) fn lower(mut reader: Reader<'_>, file: &Path) -> DeadLetter {
    let directory = reader.optional("directory").and_then(|node| directory(&node)).unwrap_or(DIRECTORY);
    let max_record_rate = reader.optional("max_record_rate").and_then(|node| node.integer(RECORD_RATES));
    let max_byte_rate = reader.optional("max_byte_rate").and_then(|node| byte_rate(&node));
    let max_key_rate = reader.optional("max_key_rate").and_then(|node| node.integer(RECORD_RATES));
    let rotate_size_node = reader.optional("rotate_size");
    let rotate_size = rotate_size_node.as_ref().and_then(|node| node.size(&SIZES)).unwrap_or(ROTATE_SIZE);
    let rotate_age = reader.optional("rotate_age").and_then(|node| node.duration(&AGES));
    let total_node = reader.optional("max_total_size");
    let max_total_size = total_node.as_ref().and_then(|node| node.size(&SIZES)).unwrap_or(MAX_TOTAL_SIZE);
    if max_total_size < rotate_size
        && let Some(node) = total_node.or(rotate_size_node)
    {
        let (total, segment) = (show_size(max_total_size), show_size(rotate_size));
        let message =
            format!("`max_total_size` ({total}) is below `rotate_size` ({segment}): a segment could never be kept");
        node.error(message, format!("raise max_total_size to at least \"{segment}\", or lower rotate_size"));
    }
    let max_age = reader.optional("max_age").and_then(|node| node.duration(&AGES));
    let fsync = reader.optional("fsync").and_then(|node| fsync(&node));
    let redact = reader.optional("redact").and_then(|node| redact(&node));
    // `absolute` fails only where there is no working directory; the path is then as good as it can be.
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let beside_file = |path: &str| file.parent().unwrap_or(Path::new("")).join(path);
    let directory = beside_file(directory);
    let secret_node = reader.optional("redact_secret_file");
    let redact_secret_file = secret_node.as_ref().and_then(|node| secret_file(node, &directory, beside_file));
    reader.done(&[]);
    DeadLetter {
        directory,
        max_record_rate: max_record_rate.unwrap_or(MAX_RECORD_RATE),
        max_byte_rate: max_byte_rate.unwrap_or(MAX_BYTE_RATE),
        max_key_rate: max_key_rate.unwrap_or(MAX_KEY_RATE),
        rotate_size,
        rotate_age: rotate_age.unwrap_or(ROTATE_AGE),
        max_total_size,
        max_age: max_age.unwrap_or(MAX_AGE),
        fsync: fsync.unwrap_or(FSYNC),
        redact: redact.unwrap_or_default(),
        redact_secret_file,
    }
}

/// `"4MiB/s"`: bytes in a second.
fn byte_rate(node: &Node<'_>) -> Option<u64> {
    let text = node.text("bytes a second in quotes", "\"4MiB/s\"")?;
    let rate =
        text.strip_suffix("/s").and_then(|size| parse_size(size.trim())).filter(|rate| BYTE_RATES.contains(rate));
    if rate.is_none() {
        let (low, high) = (show_size(*BYTE_RATES.start()), show_size(*BYTE_RATES.end()));
        let message = format!("`max_byte_rate` = {} is no number of bytes a second", quoted(text));
        node.error(message, format!("write a size and \"/s\", like \"4MiB/s\", from {low}/s to {high}/s"));
    }
    rate
}

/// Where the key of the marks is: not where the log is, because whoever gets that could find values by trying.
fn secret_file(node: &Node<'_>, log: &Path, beside_file: impl Fn(&str) -> PathBuf) -> Option<PathBuf> {
    let text = node.text("a path in quotes", "\"/etc/sluicegate/redact.secret\"")?;
    if text.is_empty() || text.ends_with('/') || text.contains('\0') {
        node.error(format!("{} is no file", quoted(text)), "name a file, such as \"/etc/sluicegate/redact.secret\"");
        return None;
    }
    let path = beside_file(text);
    if plain(&path).starts_with(plain(log)) {
        let help = "name a file elsewhere, such as \"dead-letters.secret\": whoever gets a copy of the log shall not get its key";
        node.error(format!("{} is in the log's directory", quoted(text)), help);
        return None;
    }
    Some(path)
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

fn directory<'t>(node: &Node<'t>) -> Option<&'t str> {
    let text = node.text("a path in quotes", "\"dead-letters\"")?;
    if text.is_empty() || text.contains('\0') {
        node.error(format!("{} is no directory", quoted(text)), "name a directory, such as \"dead-letters\"");
        return None;
    }
    Some(text)
}

fn fsync(node: &Node<'_>) -> Option<Fsync> {
    if let Some(interval) = node.as_text().and_then(|text| text.strip_prefix("interval:")) {
        let span = interval.parse::<Span>().ok().filter(|span| FSYNC_INTERVALS.contains(span));
        if span.is_none() {
            let (low, high) = (FSYNC_INTERVALS.start(), FSYNC_INTERVALS.end());
            let message = format!("{} is no interval for `fsync`", quoted(interval));
            node.error(message, format!("write \"interval:1s\"; it goes from {low} to {high}"));
        }
        return span.map(Fsync::Interval);
    }
    let words = [("interval:1s", FSYNC), ("always", Fsync::Always), ("rotate", Fsync::Rotate), ("never", Fsync::Never)];
    node.choice(&words, &[])
}

fn redact(node: &Node<'_>) -> Option<Vec<String>> {
    let items = node.items("[\"x-session\"]")?;
    if items.len() > MAX_REDACTED {
        node.error(format!("`redact` has {} names", items.len()), format!("it takes at most {MAX_REDACTED}"));
        return None;
    }
    super::each(&items, |item| header_name(item, item.text("a name in quotes", "\"x-session\"")?))
}
